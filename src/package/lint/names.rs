//! Reports names of objects that change again and again, and names that instances of two namespaces share.

use super::sketch::At;
use crate::api::{BuiltIn, Gvk};
use crate::diag::Diagnostic;
use crate::template::{Engine, ReadPath, Segment};
use crate::template_scan::Outlines;
use crate::{ForEach, Resource, graph};

/// Reports names that change or that instances share.
pub(super) fn check(engine: &Engine, outlines: &Outlines, resource: &Resource, found: &mut Vec<Diagnostic>) {
    for child in &resource.children {
        let [gvk] = child.kinds.as_slice() else { continue };
        let Some(root) = outlines.root(&child.template) else { continue };
        let At::Part(name) = root.at(&["metadata", "name"]) else { continue };
        if name.has_statements() || name.sets("name") {
            continue;
        }
        let Ok(text) = engine.text(name.written().trim_matches(['"', '\'']), &name.location()) else {
            continue;
        };
        let reads = graph::expand_lets([text.reads()], &resource.lets);
        let warning = |code, message: String, help: &str| {
            let warning = Diagnostic::warning(code, message).located(name.location());
            warning.path("metadata.name").help(help)
        };
        if let Some((path, when)) = reads.iter().find_map(|path| Some((path, changes(path)?))) {
            let message = format!(
                "`{path}` changes {when}: each time the object gets a new name, and the old one is deleted"
            );
            found.push(warning(
                "package::unstable-name",
                message,
                "name the object after what stays the same: {{ name }}; to restart pods after a change, put a hash into an annotation of their template",
            ));
        }
        if !resource.kind.namespaced || !is_cluster_scoped(gvk) {
            continue;
        }
        // Items of a list in the spec may be chosen to differ, and a name of nothing else is chosen as a whole.
        let reads_name = reads.iter().any(|path| is_name(path));
        let is_counted = |each: &&ForEach| each.in_.text().is_some_and(|list| list.starts_with("range("));
        let each = child.for_each.as_ref().filter(|each| reads_name || is_counted(each));
        let item = each.map(|each| each.as_.as_str());
        if reads.iter().all(|path| is_same_elsewhere(path, item)) {
            let message = format!(
                "the name of the {} does not contain the namespace: instances of the same name in two namespaces would be \
                 in conflict about one object",
                gvk.kind
            );
            let help = if gvk.is("v1", "Namespace") {
                "write the namespace of the instance, too: {{ [namespace, name] | join('-') | dns_label }}"
            } else {
                "write the namespace of the instance, too: \"{{ namespace }}.{{ name }}\""
            };
            found.push(warning("package::shared-name", message, help));
        }
    }
}

/// When a field changes that the API server counts up.
fn changes(path: &ReadPath) -> Option<&'static str> {
    let keys: Vec<&str> = path.segments.iter().filter_map(Segment::as_key).collect();
    match keys.as_slice() {
        [.., "metadata", "resourceVersion"] => Some("with every write"),
        [.., "metadata", "generation"] | [.., "status", "observedGeneration"] => {
            Some("with every change of a spec")
        }
        _ => None,
    }
}

fn is_cluster_scoped(gvk: &Gvk) -> bool {
    BuiltIn::find(gvk.group(), &gvk.kind).is_some_and(|known| !known.namespaced)
}

/// Whether an instance of the same name in another namespace may read the same value. What its spec or other objects say
/// may be chosen to differ.
fn is_same_elsewhere(path: &ReadPath, item: Option<&str>) -> bool {
    match path.root.as_str() {
        // What a `let` reads is among the paths, too.
        "defaults" | "operator" | "cluster" | "let" => true,
        root => is_name(path) || item == Some(root),
    }
}

/// Whether it is the name of the instance.
fn is_name(path: &ReadPath) -> bool {
    match (path.root.as_str(), path.segments.as_slice()) {
        ("name", _) => true,
        ("instance", [Segment::Key(metadata), Segment::Key(name)]) => {
            metadata == "metadata" && name == "name"
        }
        _ => false,
    }
}

//! Compares the names and keys to which pods, bindings and other objects refer with the objects that the package
//! creates.

use super::grants::literal;
use super::objects::{Names, Object, Objects};
use super::sketch::{At, Part};
use crate::diag::{Diagnostic, did_you_mean};
use crate::template::{Pattern, PatternPart};

/// How many values a comparison of two names counts for.
const COMPARISON: usize = 16;

/// A reference to an object by name.
pub(super) struct Reference<'a> {
    pub(super) kind: &'static str,
    pub(super) name: Part<'a>,
    /// The keys of the object's data that are read.
    keys: Vec<Part<'a>>,
    /// Whether the reference allows that the object is missing.
    pub(super) optional: bool,
    /// Whether only the package can make an object with the name of the instance.
    is_own: bool,
}

/// The references in a pod, at any depth.
pub(super) fn of_pod(pod: Part<'_>) -> Vec<Reference<'_>> {
    let mut found = Vec::new();
    pod.each_entry(&mut |key, value| found.extend(reference(key, value)));
    found
}

/// The references to Services, roles, accounts and workloads in an object that is not a pod.
pub(super) fn of_object<'a>(root: Part<'a>, kind: &str) -> Vec<Reference<'a>> {
    let mut found = Vec::new();
    let service =
        |name| Reference { kind: "Service", name, keys: Vec::new(), optional: false, is_own: false };
    match kind {
        "StatefulSet" => {
            if let At::Part(name) = root.at(&["spec", "serviceName"]) {
                found.push(service(name));
            }
        }
        "Ingress" => root.each_entry(&mut |key, value| {
            if key == "service"
                && let At::Part(name) = value.get("name")
            {
                found.push(service(name));
            }
        }),
        "RoleBinding" | "ClusterRoleBinding" => found.extend(of_binding(root)),
        "HorizontalPodAutoscaler" => {
            if let At::Part(target) = root.at(&["spec", "scaleTargetRef"])
                && literal(target, "apiVersion").as_deref() == Some("apps/v1")
            {
                found.extend(own(target, &["Deployment", "StatefulSet", "ReplicaSet"]));
            }
        }
        _ => {}
    }
    found
}

/// A reference that has a kind, one of these, and a name.
fn own<'a>(part: Part<'a>, kinds: &[&'static str]) -> Option<Reference<'a>> {
    let At::Part(name) = part.get("name") else { return None };
    let kind = literal(part, "kind")?;
    let kind = kinds.iter().copied().find(|known| *known == kind)?;
    Some(Reference { kind, name, keys: Vec::new(), optional: false, is_own: true })
}

/// The role of a binding, and the accounts to which it is bound.
fn of_binding(root: Part<'_>) -> Vec<Reference<'_>> {
    let mut found = Vec::new();
    if let At::Part(role) = root.get("roleRef") {
        found.extend(own(role, &["Role", "ClusterRole"]));
    }
    let subjects = match root.get("subjects") {
        At::Part(list) => list.all_items().unwrap_or_default(),
        _ => Vec::new(),
    };
    for subject in subjects {
        let is_here = match subject.get("namespace") {
            At::Absent => true,
            At::Part(part) => part
                .expression()
                .is_some_and(|text| matches!(text.as_str(), "namespace" | "instance.metadata.namespace")),
            At::Open => false,
        };
        if is_here {
            found.extend(own(subject, &["ServiceAccount"]));
        }
    }
    found
}

fn reference<'a>(key: &str, value: Part<'a>) -> Option<Reference<'a>> {
    let (kind, name_key) = match key {
        "configMapKeyRef" | "configMapRef" | "configMap" => ("ConfigMap", "name"),
        "secretKeyRef" | "secretRef" => ("Secret", "name"),
        "secret" => ("Secret", "secretName"),
        "persistentVolumeClaim" => ("PersistentVolumeClaim", "claimName"),
        "serviceAccountName" => {
            let kind = "ServiceAccount";
            return Some(Reference { kind, name: value, keys: Vec::new(), optional: false, is_own: false });
        }
        _ => return None,
    };
    let part = |key| match value.get(key) {
        At::Part(part) => Some(part),
        _ => None,
    };
    // The Secret of a projected volume is named by `name`.
    let name = part(name_key).or_else(|| part("name"))?;
    let items = part("items").and_then(Part::all_items).unwrap_or_default();
    let of_items = items.into_iter().filter_map(|item| match item.get("key") {
        At::Part(key) => Some(key),
        _ => None,
    });
    let keys = part("key").into_iter().chain(of_items).collect();
    let optional = !matches!(value.get("optional"), At::Absent);
    Some(Reference { kind, name, keys, optional, is_own: false })
}

/// Reports a reference to an object or key that no child creates.
pub(super) fn check(
    reference: &Reference<'_>,
    objects: &Objects<'_>,
    names: &Names<'_>,
    found: &mut Vec<Diagnostic>,
) {
    let name = names.of_part(reference.name);
    let kind = reference.kind;
    let candidates: Vec<&Object<'_>> = objects.of_kind(kind).collect();
    if !reference.name.counts(COMPARISON * (candidates.len() + objects.foreign.len())) {
        return;
    }
    let is_foreign = objects.foreign.iter().any(|(other, of)| *other == kind && !of.differs(&name));
    if candidates.is_empty() && !reference.is_own || is_foreign || reference.optional {
        return;
    }
    if let Some(object) = candidates.iter().find(|object| is_same(&object.name, &name)) {
        return reference.keys.iter().for_each(|key| has_key(*key, kind, object, names, found));
    }
    if candidates.iter().any(|object| !object.name.differs(&name)) {
        return;
    }
    let shown: Vec<String> = candidates.iter().map(|object| object.name.to_string()).collect();
    // The instance's name is a part of most names and does not make two of them similar.
    let short = |text: &str| text.replace("{{ name }}", "~");
    let short_names: Vec<String> = shown.iter().map(|name| short(name)).collect();
    let near = did_you_mean(&short(&name.to_string()), short_names.iter().map(String::as_str));
    let near = near.filter(|near| near.contains('~') == name.has_instance());
    let near = near.and_then(|near| shown.iter().find(|name| short(name) == near));
    // A name without the instance's name may belong to an object of others. But if a child has the same name
    // with the instance's name in front, that was probably forgotten.
    let forgotten = || {
        name.as_literal()
            .and_then(|text| shown.iter().find(|known| **known == format!("{{{{ name }}}}-{text}")))
    };
    let near = near.or_else(forgotten);
    if near.is_none() && (!name.has_instance() || objects.others) {
        return;
    }
    let message = format!("no child is a {kind} `{name}`");
    let help = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None if shown.is_empty() => {
            "add such a child; if others make the object, declare it as a ref".to_owned()
        }
        None => format!(
            "there is {}; if others make the object, declare it as a ref, or as `optional: true`",
            shown.join(", ")
        ),
    };
    let warning = Diagnostic::warning("package::no-object", message).located(reference.name.location());
    found.push(warning.help(help));
}

/// Whether two names are the same text wherever both are rendered: also those of the members of forEach children, if they
/// read the same.
fn is_same(one: &Pattern, other: &Pattern) -> bool {
    one.equals(other) || one == other && one.has_instance() && !one.0.contains(&PatternPart::Unknown)
}

/// Reports a key that an object does not have.
fn has_key(key: Part<'_>, kind: &str, object: &Object<'_>, names: &Names<'_>, found: &mut Vec<Diagnostic>) {
    let Some(root) = object.root else { return };
    let fields: &[&str] = if kind == "Secret" { &["data", "stringData"] } else { &["data", "binaryData"] };
    let mut keys = Vec::new();
    for field in fields {
        match root.get(field) {
            At::Part(data) => match data.all_keys() {
                Some(more) => keys.extend(more),
                None => return,
            },
            At::Absent => {}
            At::Open => return,
        }
    }
    if !key.counts(COMPARISON * keys.len()) {
        return;
    }
    let known: Vec<Pattern> = keys.into_iter().map(|key| names.of_part(key)).collect();
    let wanted = names.of_part(key);
    if known.iter().any(|known| !known.differs(&wanted)) {
        return;
    }
    let shown: Vec<String> = known.iter().map(ToString::to_string).collect();
    let message = format!("the {kind} of `{}` has no key `{wanted}`", object.child);
    let help = match did_you_mean(&wanted.to_string(), shown.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None if shown.is_empty() => "add it to the template of the child".to_owned(),
        None => format!("there is {}", shown.join(", ")),
    };
    found.push(Diagnostic::warning("package::no-object", message).located(key.location()).help(help));
}

/// Whether a reference certainly refers to that object.
pub(super) fn is_to(reference: &Reference<'_>, object: &Object<'_>, names: &Names<'_>) -> bool {
    let name = names.of_part(reference.name);
    // The names of members of a forEach child have an unknown part. A reference with the same pattern refers
    // to one of them.
    let same_parts = || name == object.name && name.0.contains(&PatternPart::Instance);
    reference.kind == object.kind && !reference.optional && (object.name.equals(&name) || same_parts())
}

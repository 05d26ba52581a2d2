//! Compiles the files of a package to a [`Package`].
//!
//! Every stage continues after an error with what it could read, so that one run reports all errors: the tree of
//! `operator.yaml`, then CRDs, templates and expressions, then their references to each other.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use semver::Version;
use serde_json::{Map, Value};

use super::check::is_news;
use super::child::no_choice;
use super::chosen_account::choosers;
use super::compiler::{Compiler, Crd};
use super::decode::{At, Decode, Decoder};
use super::files::{Files, OPERATOR_YAML, UNREADABLE};
use super::lint;
use super::locate::place;
use super::manifest::{self, Manifest, SemVerRange};
use super::powers::{Power, Powers};
use super::requires;
use super::secrecy::positions;
use super::template_scan::{MAX_VALUES, Outline, Outlines};
use super::{DeletionPolicy, Package, Resource};
use crate::api::Gvk;
use crate::crd;
use crate::diag::{Diagnostic, Location, Source, Span, did_you_mean};
use crate::template::foreign_syntax::in_text;
use crate::template::{Engine, Limits};
use crate::yaml::{self, Node};

/// Compiles and lints a package. The result contains the warnings.
///
/// # Errors
/// All diagnostics, warnings included, if one of them is an error.
pub fn compile(files: &Files) -> Result<(Package, Vec<Diagnostic>), Vec<Diagnostic>> {
    match inspect(files) {
        (Some(package), found) if !found.iter().any(Diagnostic::is_error) => Ok((package, found)),
        (_, found) => Err(found),
    }
}

/// Compiles and lints a package. Returns all diagnostics, and the package as far as it could be read. Only a
/// package without errors can be run; a package with errors can still be checked further.
pub(super) fn inspect(files: &Files) -> (Option<Package>, Vec<Diagnostic>) {
    let Some(source) = files.get(OPERATOR_YAML) else {
        let message = format!("{} has no {OPERATOR_YAML}", files.root().display());
        return (None, vec![Diagnostic::error(UNREADABLE, message)]);
    };
    let templates: Vec<_> = files
        .iter()
        .filter(|(path, _)| path.starts_with("templates/"))
        .map(|(path, source)| (path.to_owned(), Arc::clone(source)))
        .collect();
    let (manifest, complete, mut diagnostics) = match read_manifest(source) {
        Ok((manifest, complete, diagnostics)) => (Some(manifest), complete, diagnostics),
        Err(errors) => (None, false, errors),
    };
    let (engine, found) = Engine::compile(&templates, Limits::default());
    let readable = complete && found.is_empty();
    diagnostics.extend(found);

    let mut compiler = Compiler {
        files,
        engine: Arc::new(engine),
        outlines: Outlines::of(templates.iter().map(|(path, file)| (path.as_str(), file))),
        child_templates: BTreeSet::new(),
        spec_reads: lint::fields::SpecReads::default(),
        read_lets: Some(BTreeSet::new()),
        readable,
        complete,
        used: HashSet::new(),
        diagnostics,
    };
    let mut package = manifest.and_then(|manifest| compiler.package(manifest));
    if let Some(package) = &mut package {
        package.powers = compiler.powers(package, (source, &templates));
    }
    compiler.written(source, &templates);
    compiler.other_crds();
    compiler.unused();
    let mut diagnostics = compiler.diagnostics;
    sort(&mut diagnostics);
    (package, diagnostics)
}

/// Sorts by file and position, `operator.yaml` first, and removes duplicates.
pub fn sort(diagnostics: &mut Vec<Diagnostic>) {
    diagnostics.sort_by_cached_key(|diagnostic| {
        diagnostic.location.as_ref().map(|location| {
            let main = Path::new(&location.source.name).file_name().is_some_and(|name| name == OPERATOR_YAML);
            (!main, location.source.name.clone(), location.span, diagnostic.message.clone())
        })
    });
    diagnostics.dedup();
}

type Read = (Manifest, bool, Vec<Diagnostic>);

/// Reads the manifest, and returns whether all of it could be read.
fn read_manifest(source: &Arc<Source>) -> Result<Read, Vec<Diagnostic>> {
    let node = one_document(source).map_err(|error| vec![error])?;
    let mut decoder = Decoder::new(source);
    let manifest = Manifest::decode(&node, &mut decoder);
    let diagnostics = decoder.finish();
    match manifest {
        Some(manifest) => Ok((manifest, !diagnostics.iter().any(hides_names), diagnostics)),
        None => Err(diagnostics),
    }
}

/// Whether the part with the error may define a name. Then a reader of an unknown name must not be reported.
fn hides_names(diagnostic: &Diagnostic) -> bool {
    const NAMES: [&str; 9] =
        ["let", "refs", "children", "forEach", "as", "defaults", "id", "resources", "spec"];
    const PLAIN: [&str; 21] = [
        "version",
        "appVersion",
        "description",
        "keywords",
        "home",
        "license",
        "kubernetes",
        "operetta",
        "email",
        "deletionPolicy",
        "conflictPolicy",
        "onImmutableChange",
        "maxUnavailable",
        "adopt",
        "onLoss",
        "readyWhen",
        "when",
        "paused",
        "dependsOn",
        "message",
        "reason",
    ];
    let path = diagnostic.path.as_deref().unwrap_or_default();
    let last = path.rsplit('.').next().unwrap_or_default();
    let last = last.split('[').next().unwrap_or_default();
    match diagnostic.code {
        "package::unknown-key" => last.is_empty() || did_you_mean(last, NAMES).is_some(),
        "package::not-yet" => false,
        "package::missing" => true,
        _ => !PLAIN.contains(&last),
    }
}

/// The document of a file, which must contain exactly one.
pub(super) fn one_document(source: &Arc<Source>) -> Result<Node, Diagnostic> {
    let mut documents = yaml::parse(source, &yaml::Options::default())?;
    if let [_, second, ..] = documents.as_slice() {
        let error = Diagnostic::error(
            "package::documents",
            "the file contains several YAML documents, one is allowed",
        );
        return Err(error.at(source, second.span).help("move the others to separate files"));
    }
    documents.pop().filter(|node| !node.is_null()).ok_or_else(|| {
        Diagnostic::error("package::empty", "the file is empty")
            .at(source, Span::new(0, source.text.len().min(1)))
    })
}

impl Compiler<'_> {
    fn package(&mut self, manifest: Manifest) -> Option<Package> {
        let spec = manifest.spec.0?;
        if let Some(range) = spec.requires.as_ref().and_then(|requires| requires.operetta.as_ref()) {
            self.fits(range);
        }
        let (kubernetes, apis) = spec.requires.map_or((None, None), |r| (r.kubernetes, r.apis));
        if let Some(range) = kubernetes.as_ref().filter(|range| !requires::is_possible(&range.value.0)) {
            let message = format!(
                "no version of Kubernetes that Operetta supports (1.30 and later) is in the range {}",
                range.value.0
            );
            let error = range.error("package::requires", message);
            self.diagnostics.push(error.help("write for example \">=1.30\""));
        }
        let defaults = spec.defaults.map_or_else(Map::new, |defaults| defaults.0);
        let permissions = self.permissions(spec.permissions.unwrap_or_default());
        let shared = spec.lets.map(|lets| lets.0).unwrap_or_default();
        let manifests = spec.resources.0.unwrap_or_default();
        if manifests.is_empty() && self.complete {
            let error = Diagnostic::error("package::empty", "the package has no resources");
            self.diagnostics
                .push(error.path("spec.resources").help("add one: resources: [{crd: crds/x.yaml}]"));
        }
        let mut resources: Vec<Resource> = Vec::with_capacity(manifests.len());
        for manifest in manifests {
            resources.extend(self.resource(manifest, &shared, &defaults));
        }
        self.kinds_once(&resources);
        self.instances_chosen(&mut resources);
        self.others(&mut resources);
        let required = self.required(apis.unwrap_or_default(), &resources);
        let locked = self.locked();
        if self.complete {
            self.undeclared(&required, &locked, &resources);
        }
        for (name, _) in &shared {
            if self.readable && self.read_lets.as_ref().is_some_and(|read| !read.contains(&name.value)) {
                self.diagnostics.push(lint::edges::unused_let(&name.value, &name.at));
            }
        }
        self.diagnostics.extend(lint::workloads::workloads(
            &self.engine,
            &self.outlines,
            &resources,
            &defaults,
        ));
        if self.readable {
            let found = lint::relations::relations(&self.engine, &self.outlines, &resources, &defaults);
            self.diagnostics.extend(found);
            // The reader of the field may be in a part with an error.
            if !self.diagnostics.iter().any(Diagnostic::is_error) {
                self.diagnostics.extend(self.spec_reads.unread());
            }
        }
        if self.outlines.is_exhausted() {
            let message = format!(
                "the templates have more than {MAX_VALUES} values, so not all were checked; a partial counts each time it is inserted"
            );
            let help = "use fewer or smaller partials and lists; mistakes may remain that lint has not found";
            self.diagnostics.push(Diagnostic::warning("package::budget", message).help(help));
        }
        let name = manifest.metadata.0?.name;
        Some(Package {
            name: name.value.0,
            location: name.at,
            version: spec.version.0?.value.0,
            app_version: spec.app_version,
            description: spec.description,
            kubernetes: kubernetes.map(|range| range.value.0),
            required,
            locked,
            digest: self.files.digest(),
            powers: Powers::default(),
            permissions,
            defaults: Value::Object(defaults),
            engine: Arc::clone(&self.engine),
            resources,
            files: self.files.clone(),
        })
    }

    /// What the pods of a package may do, as its files show.
    fn powers(
        &self,
        package: &Package,
        (operator, templates): (&Arc<Source>, &[(String, Arc<Source>)]),
    ) -> Powers {
        let own = Outline::of(operator);
        let templates = templates.iter().map(|(path, file)| (path.as_str(), file, self.outlines.get(path)));
        let files = templates.chain([(OPERATOR_YAML, operator, own.as_ref())]);
        let mut powers = Powers::read(files, &self.child_templates);
        let positions = positions(&self.outlines);
        for resource in &package.resources {
            for file in choosers(&self.engine, resource, &positions) {
                powers.add(file, Power::ServiceAccount);
            }
        }
        powers
    }

    /// Checks the text of the files before templates are evaluated.
    fn written(&mut self, operator: &Arc<Source>, templates: &[(String, Arc<Source>)]) {
        let mut unclear = Vec::new();
        if let Ok(node) = one_document(operator) {
            lint::words::keys(operator, &node, &mut self.diagnostics);
            lint::words::unclear(operator, &node, &mut unclear);
        }
        for (path, outline) in self.outlines.iter() {
            let kinds =
                self.engine.template(path).and_then(|template| template.kinds().ok().map(<[_]>::to_vec));
            let node = outline.last();
            lint::words::keys(outline.source(), &node, &mut self.diagnostics);
            let is_built_in = kinds.is_some_and(|kinds| kinds.iter().all(lint::objects::is_built_in));
            lint::words::values(outline.source(), &node, is_built_in, &mut self.diagnostics);
            if !is_built_in {
                lint::words::unclear(outline.source(), &node, &mut unclear);
            }
        }
        unclear.retain(|warning| is_news(&self.diagnostics, warning));
        self.diagnostics.extend(unclear);
        for source in templates.iter().map(|(_, source)| source).chain([operator]) {
            for (at, length, help) in in_text(&source.text) {
                let message = "this is literal text: it is not an expression of Operetta";
                let warning = Diagnostic::warning("package::foreign", message);
                self.diagnostics.push(warning.at(source, Span::new(at, at + length)).help(help));
            }
        }
        for (path, outline) in self.outlines.iter() {
            // If the list of children could not be read, every template of an object may be a child's
            // template.
            let gives_object = || self.engine.template(path).is_some_and(|template| template.kinds().is_ok());
            let is_child = self.child_templates.contains(path) || !self.complete && gives_object();
            outline.own_keys(is_child, &mut self.diagnostics);
            if is_child {
                outline.fields(&mut self.diagnostics);
            }
        }
        self.diagnostics.extend(lint::omitted_text(&self.engine));
    }

    /// Reports a package that does not support this version of Operetta.
    fn fits(&mut self, range: &At<SemVerRange>) {
        if let Ok(ours) = Version::parse(env!("CARGO_PKG_VERSION"))
            && !range.value.0.matches(&ours)
        {
            let message = format!("the package requires Operetta {}, this is {ours}", range.value.0);
            self.diagnostics.push(
                range
                    .error("package::requires", message)
                    .help("use another version of the package or of Operetta"),
            );
        }
    }

    /// Children that are themselves instances of the package's kinds may hold data, so they need an explicit
    /// deletion policy.
    fn instances_chosen(&mut self, resources: &mut [Resource]) {
        let own: HashSet<Gvk> = resources.iter().flat_map(Resource::served_kinds).collect();
        for child in resources.iter_mut().flat_map(|resource| &mut resource.children) {
            if child.explicit_policy || !child.kinds.iter().any(|kind| own.contains(kind)) {
                continue;
            }
            child.deletion_policy = DeletionPolicy::Retain;
            self.diagnostics.push(no_choice(child));
        }
    }

    fn kinds_once(&mut self, resources: &[Resource]) {
        for (index, resource) in resources.iter().enumerate() {
            let name = (&resource.kind.group, &resource.kind.kind);
            if resources[..index].iter().any(|other| (&other.kind.group, &other.kind.kind) == name) {
                let message = format!("the package contains the kind {} twice", resource.kind.kind);
                self.diagnostics.push(
                    Diagnostic::error("package::duplicate", message).located(resource.location.clone()),
                );
            }
        }
    }

    /// The file to which `operator.yaml` refers; `folder` is the folder where it is expected.
    pub(super) fn file(&mut self, path: &At<String>, folder: &str) -> Option<Arc<Source>> {
        if let Some(source) = self.files.get(&path.value) {
            self.used.insert(path.value.clone());
            return Some(Arc::clone(source));
        }
        let candidates = || self.files.iter().map(|(path, _)| path).filter(|path| path.starts_with(folder));
        let same_name = |candidate: &&str| candidate.rsplit('/').next() == path.value.rsplit('/').next();
        let near = did_you_mean(&path.value, candidates()).or_else(|| candidates().find(same_name));
        let error = path.error("package::missing-file", format!("the package has no file {}", path.value));
        self.diagnostics.push(match near {
            Some(near) => error.help(format!("did you mean {near}?")),
            None => error.help(format!("the path is relative to the package: {folder}x.yaml")),
        });
        None
    }

    /// The CRD of a resource, the kind that it defines, and its location.
    pub(super) fn crd(&mut self, crd: manifest::Crd) -> Option<Crd> {
        let (node, source, location) = match crd {
            manifest::Crd::Inline(inline) => (inline.value, Arc::clone(&inline.at.source), inline.at),
            manifest::Crd::Path(path) => {
                let source = self.file(&path, "crds/")?;
                match one_document(&source) {
                    Ok(node) => (node, Arc::clone(&source), Location::new(&source, Span::new(0, 0))),
                    Err(error) => {
                        self.diagnostics.push(error);
                        return None;
                    }
                }
            }
        };
        self.crd_of(node, source, location)
    }

    /// Checks unreferenced CRDs if the part that could not be read may refer to them.
    fn other_crds(&mut self) {
        if self.complete {
            return;
        }
        let all: Vec<(String, Arc<Source>)> = self
            .files
            .iter()
            .filter(|(path, _)| path.starts_with("crds/") && !self.used.contains(*path))
            .map(|(path, source)| (path.to_owned(), Arc::clone(source)))
            .collect();
        for (_, source) in all {
            match one_document(&source) {
                Ok(node) => {
                    let location = Location::new(&source, Span::new(0, 0));
                    self.crd_of(node, source, location);
                }
                Err(error) => self.diagnostics.push(error),
            }
        }
    }

    fn crd_of(&mut self, node: Node, source: Arc<Source>, location: Location) -> Option<Crd> {
        let value = node.to_json();
        lint::words::keys(&source, &node, &mut self.diagnostics);
        lint::words::in_schema(&source, &node, &mut self.diagnostics);
        // Even if the CRD has errors, its schema is used to check the templates.
        let found = crd::check(&value);
        let sound = found.is_empty();
        for (path, message, help) in found {
            let error =
                Diagnostic::error("package::crd", message).at(&source, place(&node, &path)).path(path);
            self.diagnostics.push(Diagnostic { help, ..error });
        }
        let kind = crd::kind(&value);
        if kind.is_none() && sound {
            let error = Diagnostic::error("package::crd", "this is not a CustomResourceDefinition");
            self.diagnostics.push(error.located(location.clone()));
        }
        if let Some(kind) = kind.as_ref().filter(|kind| is_reserved(&kind.group)) {
            let message = format!(
                "the group {} is reserved: a package cannot bring kinds of Operetta's own group or of Kubernetes' groups",
                kind.group
            );
            let error = Diagnostic::error("crd::reserved-group", message);
            let error = error.at(&source, place(&node, "spec.group")).path("spec.group".to_owned());
            self.diagnostics.push(error.help("use a group of a domain of yours, such as shop.example.org"));
        }
        Some(Crd { value, kind: kind?, location, node, source })
    }

    /// Reports unreferenced files: they are probably forgotten, or their path is misspelt.
    fn unused(&mut self) {
        if self.diagnostics.iter().any(Diagnostic::is_error) {
            return; // the part that uses them may be the one with the error
        }
        let mut open = vec![OPERATOR_YAML.to_owned()];
        open.extend(self.used.iter().cloned());
        while let Some(source) = open.pop().and_then(|path| self.files.get(&path)) {
            let partials = partials(&source.text)
                .map(|name| format!("templates/{}", name.trim_start_matches("templates/")));
            let new: Vec<_> = partials.filter(|path| self.used.insert(path.clone())).collect();
            open.extend(new);
        }
        for (path, source) in self.files.iter() {
            if path != OPERATOR_YAML && !self.used.contains(path) {
                let warning =
                    Diagnostic::warning("package::unused-file", "nothing in the package uses this file");
                self.diagnostics.push(warning.at(source, Span::new(0, 0)).help("remove it"));
            }
        }
    }
}

/// The names in the `partial` calls of a text.
fn partials(text: &str) -> impl Iterator<Item = &str> {
    text.split("partial(").skip(1).filter_map(|rest| {
        let rest = rest.trim_start_matches([' ', '\n', '\\']);
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        Some(rest[1..].split([quote, '\\']).next().unwrap_or_default())
    })
}

/// Whether a group belongs to Operetta or to Kubernetes. A manager that mistook its own kinds for those of a
/// package would reconcile itself.
fn is_reserved(group: &str) -> bool {
    let is_of =
        |domain: &str| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    group == "operetta.dev" || is_of("k8s.io") || is_of("kubernetes.io") || !group.contains('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_or_their_nearest_parent() {
        let source = Source::new("a.yaml", "a:\n  - b: 1\n    c.d/e: {f: 2}\n  - 7\n");
        let node = one_document(&source).unwrap();
        for (path, line, column) in [
            ("", 1, 1),
            ("a", 1, 1),
            ("a[0]", 2, 5),
            ("a[0].b", 2, 5),
            ("a[0][c.d/e]", 3, 5),
            ("a[0][c.d/e].f", 3, 13),
            ("a[0][c.d/e].g", 3, 5),
            ("a[1]", 4, 5),
            ("a[9].b", 1, 1),
            ("x.y", 1, 1),
            ("a[", 1, 1),
        ] {
            assert_eq!(source.line_col(place(&node, path).start), (line, column), "{path}");
        }
    }

    #[test]
    fn groups_of_operetta_and_kubernetes_are_reserved() {
        for group in ["operetta.dev", "k8s.io", "networking.k8s.io", "a.kubernetes.io", "apps", "batch", ""] {
            assert!(is_reserved(group), "{group}");
        }
        for group in ["apps.operetta.dev", "cluster.x-k8s.io", "shop.example.org", "myk8s.io"] {
            assert!(!is_reserved(group), "{group}");
        }
    }

    #[test]
    fn calls_of_partial_are_found() {
        let text = r#"{{ partial("a.yaml") }} {{ partial( 'b/c.yaml', x=1) }} "{{ partial(\"d.yaml\") }}" partial(x)"#;
        assert_eq!(partials(text).collect::<Vec<_>>(), ["a.yaml", "b/c.yaml", "d.yaml"]);
    }
}

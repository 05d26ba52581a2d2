//! Compiles refs.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::compiler::{Compiler, Names};
use super::decode::{At, Must};
use super::graph;
use super::manifest::{self, TemplateText};
use super::model::{NamespaceRef, NamespaceRefs, Ref, RefSource, Tree};
use super::template_scan::lone_expression;
use crate::api::Gvk;
use crate::template::{Segment, Text};

impl Compiler<'_> {
    /// Compiles the refs of a resource.
    pub(super) fn refs(&mut self, manifests: &[manifest::Ref], names: &Names<'_>) -> Vec<Ref> {
        let mut found: Vec<Ref> = Vec::with_capacity(manifests.len());
        for manifest in manifests {
            let id = &manifest.id;
            if found.iter().any(|other| other.id == id.value.0) {
                let error = id.error("package::duplicate", format!("two refs have the id `{}`", id.value.0));
                self.diagnostics.push(error.help("rename one of them"));
            }
            if let Some(reference) = self.reference(manifest, names) {
                found.push(reference);
            } else {
                // The ref has errors, so its readers must not be reported as reading an unknown ref.
                self.complete = false;
                self.readable = false;
            }
        }
        found
    }

    fn reference(&mut self, manifest: &manifest::Ref, names: &Names<'_>) -> Option<Ref> {
        let (id, namespaced) = (&manifest.id, names.namespaced);
        let when = self.optional(manifest.when.as_ref());
        let for_each = match &manifest.for_each {
            Some(for_each) => Some(self.for_each(for_each)?),
            None => None,
        };
        if manifest.exec.is_some() || manifest.http.is_some() {
            let observation = self.observation(manifest, names)?;
            return Some(Ref {
                id: id.value.0.clone(),
                gvk: None,
                target: RefSource::Observe(Box::new(observation)),
                for_each,
                when,
                optional: false,
                affects_ready: true,
                reads: Arc::from([]),
                asks_state: false,
                location: id.at.clone(),
            });
        }
        self.of_objects(manifest);
        let (Some(Must(api_version)), Some(Must(kind))) = (&manifest.api_version, &manifest.kind) else {
            let message = format!("the ref `{}` needs apiVersion and kind", id.value.0);
            let error = id.error("package::missing", message);
            self.diagnostics.push(error.help("add both; an observation has `exec` or `http` instead"));
            return None;
        };
        let (api_version, kind) = (api_version.as_ref()?, kind.as_ref()?);
        let target = match (&manifest.name, &manifest.selector) {
            (Some(name), None) => {
                if let Some(namespaces) = &manifest.namespaces {
                    let error = namespaces.error("package::value", "`namespaces` requires a selector");
                    self.diagnostics.push(error.help("write namespace: x"));
                    return None;
                }
                let namespace = match &manifest.namespace {
                    Some(namespace) => self.namespace(namespace, namespaced)?,
                    None => NamespaceRef::Own,
                };
                RefSource::Name(self.text(&name.0)?, namespace)
            }
            (None, Some(selector)) => {
                let namespaces = self.namespaces(manifest, namespaced)?;
                RefSource::Select(self.tree(selector)?, namespaces)
            }
            (Some(name), Some(_)) => {
                let error = name.0.error("package::value", "a ref has a name or a selector, not both");
                self.diagnostics.push(error.help("remove one of them"));
                return None;
            }
            (None, None) => {
                let message = format!("the ref `{}` has neither `name` nor `selector`", id.value.0);
                let error = id.error("package::missing", message);
                self.diagnostics.push(error.help("add the name of the object: name: \"{{ spec.x }}\""));
                return None;
            }
        };
        if manifest.optional.is_some() && matches!(target, RefSource::Select(..)) {
            let error = id.error("package::value", "`optional` requires a ref by name");
            self.diagnostics.push(error.help("remove it: a selector without matches yields an empty list"));
        }
        Some(Ref {
            id: id.value.0.clone(),
            gvk: Some(Gvk::new(api_version.value.0.as_str(), kind.value.0.as_str())),
            target,
            for_each,
            when,
            optional: manifest.optional.unwrap_or_default(),
            affects_ready: true,
            reads: Arc::from([]),
            asks_state: false,
            location: id.at.clone(),
        })
    }

    fn namespaces(&mut self, manifest: &manifest::Ref, namespaced: bool) -> Option<NamespaceRefs> {
        match (&manifest.namespace, manifest.namespaces.as_ref()) {
            (Some(namespace), Some(_)) => {
                let error =
                    namespace.0.error("package::value", "the ref has both `namespace` and `namespaces`");
                self.diagnostics.push(error.help("remove one of them"));
                None
            }
            (Some(namespace), None) => {
                Some(NamespaceRefs::List(vec![self.namespace(namespace, namespaced)?]))
            }
            (None, Some(At { value: manifest::Namespaces::All, .. })) => Some(NamespaceRefs::All),
            (None, Some(At { value: manifest::Namespaces::List(list), .. })) => {
                let namespaces = list.iter().map(|namespace| self.namespace(namespace, namespaced));
                namespaces.collect::<Option<Vec<_>>>().map(NamespaceRefs::List)
            }
            (None, None) => Some(NamespaceRefs::List(vec![NamespaceRef::Own])),
        }
    }

    /// Compiles a namespace. For namespaced instances, it must be a literal or `operator.namespace`.
    pub(super) fn namespace(
        &mut self,
        TemplateText(source): &TemplateText,
        namespaced: bool,
    ) -> Option<NamespaceRef> {
        if !source.value.contains("{{") && !source.value.contains("{%") {
            return Some(NamespaceRef::Literal(source.value.clone()));
        }
        match lone_expression(&source.value) {
            Some("operator.namespace") => return Some(NamespaceRef::Operator),
            Some("namespace" | "instance.metadata.namespace") if namespaced => {
                return Some(NamespaceRef::Own);
            }
            _ => {}
        }
        if namespaced {
            let error = source.error("package::namespace", "a ref's namespace must not be computed");
            self.diagnostics.push(error.help(
                "remove it (the default is the instance's own), or write a literal or {{ operator.namespace }}: \
                 otherwise users who can create an instance could read in any namespace",
            ));
            return None;
        }
        self.text(source).map(NamespaceRef::Computed)
    }

    pub(super) fn tree(&mut self, tree: &manifest::Tree) -> Option<Tree> {
        Some(match tree {
            manifest::Tree::Text(source) => Tree::Text(self.text(source)?),
            manifest::Tree::List(items) => {
                Tree::List(items.iter().map(|item| self.tree(item)).collect::<Option<_>>()?)
            }
            manifest::Tree::Map(entries) => {
                let mut found = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    found.push((key.clone(), self.tree(value)?));
                }
                Tree::Map(found)
            }
            manifest::Tree::Constant(value) => Tree::Text(Text::literal(value.clone())),
        })
    }

    /// Orders refs so that each comes after the refs that it reads. Refs create no edges between children,
    /// but a ref must not depend on itself.
    pub(super) fn ordered_refs(&mut self, refs: Vec<Ref>, lets: &crate::template::Lets) -> Vec<Ref> {
        let index: HashMap<&str, usize> =
            refs.iter().enumerate().map(|(place, reference)| (reference.id.as_str(), place)).collect();
        let edges: Vec<BTreeSet<usize>> = refs
            .iter()
            .map(|reference| {
                graph::expand_lets(reference.own_reads(), lets)
                    .into_iter()
                    .filter(|path| path.root == "refs")
                    .filter_map(|path| match path.segments.first() {
                        Some(Segment::Key(id)) => index.get(id.as_str()).copied(),
                        _ => None,
                    })
                    .collect()
            })
            .collect();
        match graph::order(&edges) {
            Ok(order) => {
                let mut refs: Vec<Option<Ref>> = refs.into_iter().map(Some).collect();
                order.iter().filter_map(|&place| refs[place].take()).collect()
            }
            Err(cycle) => {
                let ids: Vec<_> =
                    cycle.iter().chain(cycle.first()).map(|&at| format!("refs.{}", refs[at].id)).collect();
                if let Some(&first) = cycle.first() {
                    let message = format!("these refs need each other: {}", ids.join(" -> "));
                    let error = crate::diag::Diagnostic::error("package::cycle", message);
                    self.diagnostics.push(error.located(refs[first].location.clone()));
                }
                refs
            }
        }
    }
}

//! The objects that the children of a resource create, with their names as far as they are known before
//! rendering.

use super::sketch::{At, Part, Text};
use crate::RefSource;
use crate::Resource;
use crate::api::{BuiltIn, Gvk};
use crate::diag::{Location, Source, Span};
use crate::plan::{Action, Plan};
use crate::template::{Engine, Known, Pattern, PatternPart};
use crate::template_scan::Outlines;

/// Whether a group is built in. Of the kinds of built-in groups, only those in `lint::pods` create pods.
pub(crate) fn is_built_in(gvk: &Gvk) -> bool {
    let group = gvk.group();
    !group.contains('.') || group.ends_with(".k8s.io")
}

/// The path to the pod, or to its template, of a kind that creates pods.
pub(crate) fn pod_path(gvk: &Gvk) -> Option<&'static [&'static str]> {
    BuiltIn::find(gvk.group(), &gvk.kind)?.pod
}

/// Derives patterns from the texts of a resource.
pub(crate) struct Names<'a> {
    engine: &'a Engine,
    known: Known<'a>,
    /// Whether the variable `name` is always the name of the instance. A partial may receive another one.
    has_name: bool,
    here: Location,
}

impl<'a> Names<'a> {
    pub(crate) fn new(engine: &'a Engine, known: Known<'a>) -> Self {
        let has_name = !engine.partial_variables().contains("name");
        let here = Location::new(&Source::new("", ""), Span::new(0, 0));
        Self { engine, known, has_name, here }
    }

    /// The pattern of a string of `operator.yaml`.
    pub(super) fn pattern(&self, text: &crate::template::Text) -> Pattern {
        self.engine.pattern(text, self.known)
    }

    /// The pattern of a scalar in a template.
    pub(super) fn of_text(&self, text: &Text) -> Pattern {
        let written = match text {
            Text::Literal(text) => return Pattern::literal(text),
            Text::Computed(written) => written,
        };
        match self.engine.text(written, &self.here) {
            Ok(text) => {
                let pattern = self.pattern(&text);
                if self.has_name || !pattern.has_instance() { pattern } else { Pattern::unknown() }
            }
            Err(_) => Pattern::unknown(),
        }
    }

    /// The pattern of a part of a template.
    pub(crate) fn of_part(&self, part: Part<'_>) -> Pattern {
        let pattern = part.text().map_or_else(Pattern::unknown, |text| self.of_text(&text));
        if pattern.has_instance() && part.sets("name") { Pattern::unknown() } else { pattern }
    }
}

/// An object that a child creates.
pub(crate) struct Object<'a> {
    /// The id of the child.
    pub(super) child: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) name: Pattern,
    /// The sketch of its template, if it has one.
    pub(super) root: Option<Part<'a>>,
}

/// The objects that a resource creates or uses.
pub(crate) struct Objects<'a> {
    pub(crate) made: Vec<Object<'a>>,
    /// The names of objects that the package only reads or patches.
    pub(super) foreign: Vec<(&'a str, Pattern)>,
    /// Whether controllers other than those of Kubernetes may create further objects.
    pub(super) others: bool,
}

impl<'a> Objects<'a> {
    pub(crate) fn of(outlines: &'a Outlines, resource: &'a Resource, names: &Names<'_>) -> Self {
        let mut made = Vec::new();
        let name_of = |part: Option<Part<'_>>, path: &[&str]| match part.map(|part| part.at(path)) {
            Some(At::Part(part)) => names.of_part(part),
            _ => Pattern::unknown(),
        };
        for child in &resource.children {
            let root = outlines.root(&child.template).filter(|_| child.kinds.len() == 1);
            for gvk in &child.kinds {
                let name = name_of(root, &["metadata", "name"]);
                if &*gvk.kind == "StatefulSet" {
                    made.extend(claims(root, &child.id, &name, names));
                }
                made.push(Object { child: &child.id, kind: &gvk.kind, name, root });
            }
        }
        let refs = resource.refs.iter().filter_map(|reference| match (&reference.gvk, &reference.target) {
            (Some(gvk), RefSource::Name(name, _)) => Some((&*gvk.kind, names.pattern(name))),
            (Some(gvk), _) => Some((&*gvk.kind, Pattern::unknown())),
            _ => None,
        });
        let patched =
            resource.plans.iter().flat_map(Plan::visits).filter_map(|visit| match &visit.step.action {
                Action::Patch(patch) => Some((&*patch.gvk.kind, names.pattern(&patch.name))),
                _ => None,
            });
        let others = resource.children.iter().flat_map(|child| &child.kinds).any(|gvk| !is_built_in(gvk));
        Self { foreign: refs.chain(patched).collect(), made, others }
    }

    /// The objects of a kind.
    pub(super) fn of_kind<'o>(&'o self, kind: &'o str) -> impl Iterator<Item = &'o Object<'a>> {
        self.made.iter().filter(move |object| object.kind == kind)
    }
}

/// The claims of a `StatefulSet`, which have the name `<claim>-<name>-<ordinal>`.
fn claims<'a>(root: Option<Part<'a>>, child: &'a str, name: &Pattern, names: &Names<'_>) -> Vec<Object<'a>> {
    let object = |claim: Pattern| {
        let mut parts = claim.0;
        parts.push(PatternPart::Text("-".to_owned()));
        parts.extend(name.0.iter().cloned());
        parts.extend([PatternPart::Text("-".to_owned()), PatternPart::Unknown]);
        Object { child, kind: "PersistentVolumeClaim", name: Pattern(parts), root: None }
    };
    let items = match root.map(|root| root.at(&["spec", "volumeClaimTemplates"])) {
        Some(At::Part(list)) => list.all_items(),
        Some(At::Absent) => return Vec::new(),
        _ => None,
    };
    let Some(items) = items else { return vec![object(Pattern::unknown())] };
    let claim = |item: Part<'_>| match item.at(&["metadata", "name"]) {
        At::Part(part) => names.of_part(part),
        _ => Pattern::unknown(),
    };
    items.into_iter().map(|item| object(claim(item))).collect()
}

/// The pod, or the template of the pods, of a child or a Job.
pub(super) fn pod_of<'a>(root: Part<'a>, gvk: &Gvk) -> Option<Part<'a>> {
    match root.at(pod_path(gvk)?) {
        At::Part(part) => Some(part),
        _ => None,
    }
}

//! The dependency graph: edges between children, their order, and the paths of live objects that are read.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::compiler::Compiler;
use super::compiler::Flat;
use super::expression_sites::Parts;
use super::plan::Plan;
use super::{Call, Child, Ref, graph};
use crate::api::Gvk;
use crate::diag::did_you_mean;
use crate::template::{ReadPath, Segment};

impl Compiler<'_> {
    /// Finds the edges and orders dependencies first.
    pub(super) fn ordered(&mut self, mut parts: Parts, manifests: &[Flat]) -> Option<Parts> {
        let mut index: HashMap<&str, usize> = HashMap::new();
        for (place, flat) in manifests.iter().enumerate() {
            index.entry(&flat.child.id.value.0).or_insert(place);
        }
        let mut edges = self.declared(manifests, &index);
        let mut live = vec![Vec::new(); manifests.len()];
        let mut refs: Vec<RefReads> = parts.refs.iter().map(|_| RefReads::default()).collect();
        let mut reads_own_output = vec![false; manifests.len()];
        let mut reads_refs = vec![BTreeSet::new(); manifests.len()];
        let engine = Arc::clone(&self.engine);
        for usage in parts.expression_sites(&engine) {
            for path in graph::expand_lets([usage.reads], &parts.lets) {
                if let Some(child) = usage.child.filter(|_| reads_back(path)) {
                    reads_own_output[child] = true;
                }
                if let ("refs", [Segment::Key(id), rest @ ..]) =
                    (path.root.as_str(), path.segments.as_slice())
                    && let Some(place) = parts.refs.iter().position(|reference| reference.id == *id)
                {
                    refs[place].add(path, rest, &parts.refs[place]);
                    if let Some(child) = usage.child.filter(|_| usage.renders())
                        && parts.refs[place].gvk.is_some()
                    {
                        reads_refs[child].insert(id.clone());
                    }
                }
                let (on, mut rest) = match (path.root.as_str(), path.segments.as_slice()) {
                    ("children" | "retained", [Segment::Key(id), rest @ ..]) => {
                        (index.get(id.as_str()).copied(), rest)
                    }
                    ("self", rest) if usage.sees_self() => (usage.child, rest),
                    _ => continue,
                };
                let Some(on) = on else { continue };
                if path.root != "self" && parts.children[on].for_each.is_some() {
                    rest = rest.get(1..).unwrap_or_default(); // without the member's key
                }
                // A test such as `is ready` needs nothing that is not kept of every object.
                if !path.flag || !rest.is_empty() {
                    live[on].push(rest.to_vec());
                }
                // The live object of the child itself is the previous one, so there is nothing to wait for.
                // Objects that a former instance has left do not change while the child waits.
                let orders = usage.orders() && path.root == "children";
                if let Some(child) = usage.child.filter(|&child| orders && child != on) {
                    edges[child].insert(on);
                }
            }
        }
        let observations = parts.refs.iter().filter_map(Ref::call).filter_map(Call::pod);
        let steps = parts.plans.iter().flat_map(Plan::visits).filter_map(|visit| visit.step.action.pod());
        for pod in observations.chain(steps).filter(|pod| pod.of.is_none()) {
            if let Some(&on) = index.get(pod.child.child.as_str()) {
                live[on].extend(found_by(&parts.children[on]));
            }
        }
        let order = match graph::order(&edges) {
            Ok(order) => order,
            Err(cycle) => {
                self.goes_round(manifests, &cycle);
                return None;
            }
        };
        for (reference, reads) in parts.refs.iter_mut().zip(refs) {
            reference.asks_state = reads.state;
            let plain = reads.paths.iter().map(|path| super::observation::plain_prefix(path));
            let plain = plain.map(|path| path.into_iter().map(Segment::Key).collect()).collect();
            reference.reads =
                graph::outermost(plain).iter().map(|path| super::observation::plain_prefix(path)).collect();
        }
        for (child, reads_refs) in parts.children.iter_mut().zip(reads_refs) {
            child.reads_refs = reads_refs.into_iter().collect();
        }
        for (child, (live, reads_own_output)) in live.into_iter().zip(reads_own_output).enumerate() {
            parts.children[child].reads_live = graph::outermost(live);
            parts.children[child].reads_own_output = reads_own_output;
        }
        parts.children = arranged(parts.children, &edges, &order);
        Some(parts)
    }

    /// Adds the edges of `dependsOn`.
    fn declared(&mut self, manifests: &[Flat], index: &HashMap<&str, usize>) -> Vec<BTreeSet<usize>> {
        let mut edges = vec![BTreeSet::new(); manifests.len()];
        for (child, flat) in manifests.iter().enumerate() {
            for on in flat.child.depends_on.iter().flatten() {
                match index.get(on.value.as_str()) {
                    Some(&on_index) if on_index == child => {
                        self.diagnostics.push(on.error("package::cycle", "a child cannot depend on itself"));
                    }
                    Some(&on_index) => {
                        edges[child].insert(on_index);
                    }
                    None if self.complete => {
                        let error =
                            on.error("package::unknown-child", format!("there is no child `{}`", on.value));
                        let near = did_you_mean(&on.value, index.keys().copied());
                        self.diagnostics.push(match near {
                            Some(near) => error.help(format!("did you mean `{near}`?")),
                            None => error,
                        });
                    }
                    None => {}
                }
            }
        }
        edges
    }

    /// Reports a dependency cycle.
    fn goes_round(&mut self, manifests: &[Flat], cycle: &[usize]) {
        let ids: Vec<_> = cycle
            .iter()
            .chain(cycle.first())
            .map(|&child| manifests[child].child.id.value.0.as_str())
            .collect();
        let message = format!("these children wait for each other: {}", ids.join(" -> "));
        if let Some(&first) = cycle.first() {
            let error = manifests[first].child.id.error("package::cycle", message);
            self.diagnostics.push(error.help(
                "each reads the next in its template, `when`, `forEach` or `dependsOn`; remove one of these dependencies",
            ));
        }
    }
}

/// The path of a child by which its pods are found: the selector of a workload.
pub(super) fn found_by(child: &Child) -> Option<Vec<Segment>> {
    let is_pod = child.has_kind(&Gvk::new("v1", "Pod"));
    (!is_pod).then(|| ["spec", "selector"].map(|key| Segment::Key(key.to_owned())).to_vec())
}

/// The children in order, with their dependencies and depths.
fn arranged(children: Vec<Child>, edges: &[BTreeSet<usize>], order: &[usize]) -> Vec<Child> {
    let mut position = vec![0; order.len()];
    for (place, &child) in order.iter().enumerate() {
        position[child] = place;
    }
    let mut children: Vec<Option<Child>> = children.into_iter().map(Some).collect();
    let mut arranged: Vec<Child> = order.iter().filter_map(|&child| children[child].take()).collect();
    for (place, &child) in order.iter().enumerate() {
        let mut depends_on: Vec<usize> = edges[child].iter().map(|&on| position[on]).collect();
        depends_on.sort_unstable();
        for &on in &depends_on {
            arranged[on].ordered = true;
        }
        let deepest = depends_on.iter().map(|&on| arranged[on].depth + 1).max();
        let child = &mut arranged[place];
        child.depth = deepest.unwrap_or(0);
        child.ordered |= !depends_on.is_empty();
        child.depends_on = depends_on;
    }
    arranged
}

/// The paths that expressions read of the objects of a ref.
#[derive(Default)]
struct RefReads {
    paths: Vec<Vec<Segment>>,
    state: bool,
}

impl RefReads {
    fn add(&mut self, path: &ReadPath, rest: &[Segment], reference: &Ref) {
        // The path in the object is what follows the key and the list index.
        let rest = rest.get(reference.steps()..).unwrap_or_default();
        if path.flag && rest.is_empty() {
            self.state = true;
        } else if rest != [Segment::Key("error".to_owned())] || reference.is_list() {
            self.paths.push(rest.to_vec());
        }
    }
}

/// Whether the path may depend on what the reader renders.
fn reads_back(path: &ReadPath) -> bool {
    let key = |at: usize| match path.segments.get(at) {
        Some(Segment::Key(key)) => Some(key.as_str()),
        _ => None,
    };
    match path.root.as_str() {
        "refs" | "children" | "retained" | "self" => true,
        "instance" => match key(0) {
            Some("metadata") => matches!(key(1), None | Some("resourceVersion" | "managedFields")),
            Some("status") | None => true,
            Some(_) => false,
        },
        _ => false,
    }
}

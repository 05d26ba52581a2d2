//! Checks the commands in children of other instances of the package, once all of its kinds are compiled.

use super::compiler::{Compiler, near};
use super::graph;
use super::model::{NamespaceRef, RefSource, Resource};
use super::order::found_by;
use crate::api::{BuiltIn, Gvk};
use crate::diag::Diagnostic;
use crate::plan::{ChildPod, Other, PodPort};

impl Compiler<'_> {
    /// Checks which other instances, and which of their children, the steps and observations of each kind reach. The fields
    /// by which the pods of those children are found are kept.
    pub(super) fn others(&mut self, resources: &mut [Resource]) {
        let mut reached: Vec<(usize, String)> = Vec::new();
        for resource in &*resources {
            let wrong: Vec<_> =
                resource.requests().filter_map(|to| no_pods(resources, resource, to)).collect();
            self.diagnostics.extend(wrong);
            for pod in resource.pods() {
                let Some(of) = &pod.of else { continue };
                match self.target(resources, resource, of) {
                    Ok(position) => {
                        let found = child_problem(&resources[position], pod);
                        self.diagnostics.extend(found);
                        reached.push((position, pod.child.child.clone()));
                    }
                    Err(problem) => self.diagnostics.extend(problem),
                }
            }
        }
        for (position, id) in reached {
            let resource = &mut resources[position];
            resource.is_reached = true;
            for child in resource.children.iter_mut().filter(|child| child.id == id) {
                let paths = std::mem::take(&mut child.reads_live);
                child.reads_live = graph::outermost(paths.into_iter().chain(found_by(child)).collect());
            }
        }
    }

    /// The kind of the instance that `of` names. `Err(None)`: what is wrong is reported already.
    fn target(
        &self,
        resources: &[Resource],
        resource: &Resource,
        of: &Other,
    ) -> Result<usize, Option<Diagnostic>> {
        let Some(reference) = resource.reference(&of.reference) else { return Err(None) };
        let wrong = |message: String, help: &str| {
            Err(Some(Diagnostic::error("package::of", message).located(of.location.clone()).help(help)))
        };
        let id = &reference.id;
        let (Some(gvk), RefSource::Name(_, namespace), None) =
            (&reference.gvk, &reference.target, &reference.for_each)
        else {
            let message = format!("`of` needs a ref to one object by its name, and `{id}` is not one");
            return wrong(message, "give the ref apiVersion, kind and name, and no forEach");
        };
        let Some(position) = resources.iter().position(|known| known.is_of(gvk)) else {
            if !self.complete {
                return Err(None); // the kind may be in the part that could not be read
            }
            let message = format!("`of` needs a ref to a kind of this package, and {} is none", gvk.kind);
            return wrong(message, &kinds(resources));
        };
        if !is_same_namespace(resource, &resources[position], namespace) {
            let message =
                format!("`of` reaches instances in the namespace of this instance, and `{id}` names others");
            return wrong(message, "remove the ref's `namespace`; both kinds must be namespaced, or neither");
        }
        Ok(position)
    }
}

/// Who may create an instance must not reach pods in other namespaces with the rights of the package.
fn is_same_namespace(reader: &Resource, target: &Resource, namespace: &NamespaceRef) -> bool {
    matches!(namespace, NamespaceRef::Own) && reader.kind.namespaced == target.kind.namespaced
}

fn child_problem(target: &Resource, pod: &ChildPod) -> Option<Diagnostic> {
    let at = pod.child.location.clone();
    let (id, kind) = (&pod.child.child, &target.kind.kind);
    let Some(child) = target.child(id) else {
        let error =
            Diagnostic::error("package::unknown-child", format!("{kind} has no child `{id}`")).located(at);
        return Some(near(error, id, target.children.iter().map(|child| child.id.as_str())));
    };
    if pod.child.key.is_some() && child.for_each.is_none() {
        let message = format!("`{id}` of {kind} has no forEach, so it has no members");
        return Some(Diagnostic::error("package::value", message).located(at).help(format!("write {id}")));
    }
    None
}

/// A request to a child that has no pods. A Service is not called, because its endpoints are not proven to be children: who
/// may edit EndpointSlices would choose where the request goes.
fn no_pods(resources: &[Resource], resource: &Resource, to: &PodPort) -> Option<Diagnostic> {
    const WITH_PODS: [&str; 5] = ["Pod", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"];
    let owner = to.pod.owner(resource, |gvk| resources.iter().find(|known| known.is_of(gvk)))?;
    let child = owner.child(&to.pod.child.child)?;
    let gvk = child.kinds.iter().find(|gvk| is_built_in(gvk) && !WITH_PODS.contains(&&*gvk.kind))?;
    let message = format!("`{}` is a {}, and requests go to pods", child.id, gvk.kind);
    let error = Diagnostic::error("package::value", message).located(to.pod.child.location.clone());
    Some(error.help("name the Pod, or the Deployment, StatefulSet or DaemonSet, whose pods answer; set `host` to the name in the server's certificate"))
}

fn is_built_in(gvk: &Gvk) -> bool {
    BuiltIn::find(gvk.group(), &gvk.kind).is_some()
}

fn kinds(resources: &[Resource]) -> String {
    let kinds: Vec<String> = resources
        .iter()
        .map(|resource| {
            let Gvk { api_version, kind } = resource.kind.gvk();
            format!("{kind} ({api_version})")
        })
        .collect();
    format!("there is {}", kinds.join(", "))
}

#[cfg(test)]
mod tests;

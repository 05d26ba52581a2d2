//! Checks the containers that commands name, and the ports that probes name.

use super::objects::{Names, pod_of};
use super::sketch::{At, Part};
use crate::Resource;
use crate::diag::{Diagnostic, Location, did_you_mean};
use crate::plan::{Action, Exec, Plan};
use crate::template::Pattern;
use crate::template_scan::Outlines;

/// The commands of a resource, each with the location of its step or ref.
pub(super) fn commands(resource: &Resource) -> Vec<(Exec, Location)> {
    let of_refs = resource.refs.iter().filter_map(|reference| match reference.call() {
        Some(crate::Call::Exec(exec)) => Some((exec.clone(), reference.location.clone())),
        _ => None,
    });
    let of_steps =
        resource.plans.iter().flat_map(Plan::visits).filter_map(|visit| match &visit.step.action {
            Action::Exec(exec) => Some((exec.clone(), visit.step.location.clone())),
            _ => None,
        });
    of_refs.chain(of_steps).collect()
}

/// Reports a command whose container the pods of the child do not have, or that names no container although
/// there are several.
pub(super) fn exec<'a>(
    (resource, resources): (&'a Resource, &'a [Resource]),
    outlines: &Outlines,
    names_of: &dyn Fn(&'a Resource) -> Names<'a>,
    found: &mut Vec<Diagnostic>,
) {
    let names = names_of(resource);
    for (exec, at) in commands(resource) {
        let Some(owner) = exec.pod.owner(resource, |gvk| resources.iter().find(|known| known.is_of(gvk)))
        else {
            continue;
        };
        let Some(child) = owner.child(&exec.pod.child.child) else { continue };
        let [gvk] = child.kinds.as_slice() else { continue };
        let Some(pod) = outlines.root(&child.template).and_then(|root| pod_of(root, gvk)) else { continue };
        let own_names = names_of(owner);
        let Some(main) = containers(pod, "containers") else { continue };
        let Some(others) = containers(pod, "initContainers") else { continue };
        let named = |part: &Part<'_>| match part.get("name") {
            At::Part(name) => own_names.of_part(name),
            _ => Pattern::unknown(),
        };
        let known: Vec<Pattern> = main.iter().chain(&others).map(named).collect();
        let shown: Vec<String> = known.iter().map(ToString::to_string).collect();
        let id = &child.id;
        let (message, help, at) = match &exec.container {
            Some(text) => {
                let wanted = names.pattern(text);
                if known.iter().any(|name| !name.differs(&wanted)) {
                    continue;
                }
                let help = match did_you_mean(&wanted.to_string(), shown.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("there is {}", shown.join(", ")),
                };
                let at = text.location().unwrap_or(at);
                (format!("the pods of `{id}` have no container `{wanted}`"), help, at)
            }
            // Several containers in branches of the template may be alternatives.
            None if main.iter().filter(|part| !part.is_in_branch()).count() > 1 => {
                let help = format!("set `container` to one of {}", shown.join(", "));
                (format!("the pods of `{id}` have several containers, and the command names none"), help, at)
            }
            None => continue,
        };
        found.push(Diagnostic::warning("package::container", message).located(at).help(help));
    }
}

/// The containers of a pod in all branches; `None` if there may be others.
fn containers<'a>(pod: Part<'a>, list: &str) -> Option<Vec<Part<'a>>> {
    match pod.at(&["spec", list]) {
        At::Part(list) => list.all_items(),
        At::Absent => Some(Vec::new()),
        At::Open => None,
    }
}

/// Reports probes that name a port which their container does not have.
pub(super) fn probes(pod: Part<'_>, names: &Names<'_>, found: &mut Vec<Diagnostic>) {
    for container in
        ["containers", "initContainers"].iter().filter_map(|list| containers(pod, list)).flatten()
    {
        let ports = match container.get("ports") {
            At::Part(list) => list.all_items(),
            At::Absent => Some(Vec::new()),
            At::Open => None,
        };
        let Some(ports) = ports else { continue };
        let known: Vec<Pattern> = ports
            .into_iter()
            .map(|port| match port.get("name") {
                At::Part(name) => names.of_part(name),
                At::Absent => Pattern::literal(""),
                At::Open => Pattern::unknown(),
            })
            .collect();
        for probe in ["readinessProbe", "livenessProbe", "startupProbe"] {
            for action in ["httpGet", "tcpSocket"] {
                let At::Part(port) = container.at(&[probe, action, "port"]) else { continue };
                let Some(name) = names.of_part(port).as_literal().filter(|name| name.parse::<u32>().is_err())
                else {
                    continue;
                };
                let wanted = Pattern::literal(&name);
                if !port.counts(known.len()) || known.iter().any(|known| !known.differs(&wanted)) {
                    continue;
                }
                let shown: Vec<String> =
                    known.iter().map(ToString::to_string).filter(|name| !name.is_empty()).collect();
                let message = format!("the container has no port `{name}`");
                let help = match did_you_mean(&name, shown.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "name it in `ports` of the container, or write its number".to_owned(),
                };
                found.push(
                    Diagnostic::error("package::selector", message).located(port.location()).help(help),
                );
            }
        }
    }
}

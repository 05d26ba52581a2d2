//! Checks between the parts of a resource that need the objects which its children create.

use serde_json::{Map, Value};

use super::objects::{Names, Objects, pod_of};
use super::sketch::At;
use super::{applied, claims, containers, hosts, immutable, labels, lengths, names, references};
use crate::Resource;
use crate::diag::Diagnostic;
use crate::plan::{Action, Plan};
use crate::template::{Engine, Known};
use crate::template_scan::Outlines;

/// Reports all contradictions between the parts of a resource.
pub(crate) fn relations<'a>(
    engine: &'a Engine,
    outlines: &'a Outlines,
    resources: &'a [Resource],
    defaults: &'a Map<String, Value>,
) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let names_of = |resource: &'a Resource| Names::new(engine, Known { lets: &resource.lets, defaults });
    for resource in resources {
        let names = names_of(resource);
        let objects = Objects::of(outlines, resource, &names);
        let mut references = Vec::new();
        let mut pods = Vec::new();
        for child in &resource.children {
            let [gvk] = child.kinds.as_slice() else { continue };
            let Some(root) = outlines.root(&child.template) else { continue };
            references.extend(references::of_object(root, &gvk.kind));
            pods.extend(pod_of(root, gvk));
        }
        for visit in resource.plans.iter().flat_map(Plan::visits) {
            if let Action::Job { template } = &visit.step.action
                && let Some(At::Part(pod)) =
                    outlines.root(template).map(|root| root.at(&["spec", "template"]))
            {
                pods.push(pod);
            }
        }
        for pod in pods {
            references.extend(references::of_pod(pod));
            containers::probes(pod, &names, &mut found);
        }
        for reference in &references {
            references::check(reference, &objects, &names, &mut found);
        }
        containers::exec((resource, resources), outlines, &names_of, &mut found);
        applied::check(resource, outlines, &objects, &names, &mut found);
        lengths::check(resource, &objects, &names, &mut found);
        names::check(engine, outlines, resource, &mut found);
        labels::check(outlines, resource, &mut found);
        claims::check(outlines, resource, &mut found);
        hosts::check(engine, resource, defaults, &mut found);
        immutable::check(engine, outlines, resource, &mut found);
    }
    found
}

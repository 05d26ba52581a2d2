//! What is known of the names of the objects that instances of a package have, before anything is rendered.

use serde_json::Map;

use super::Resource;
use super::lint::objects::{Names, Objects, pod_path};
use super::model::Package;
use super::plan::{Action, Plan};
use super::template::{Known, Pattern, PatternPart};
use super::template_scan::Outlines;

/// An object of a child or of a step, or one that a controller of Kubernetes makes for it.
#[derive(Debug, Clone)]
pub struct Made<'p> {
    /// The resource whose instances have it.
    pub resource: &'p Resource,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: Pattern,
}

/// The objects of the children of a package and the Jobs of its plans, with what their workloads make.
pub fn made(package: &Package) -> Vec<Made<'_>> {
    let outlines = Outlines::of(package.files.iter());
    let empty = Map::new();
    let defaults = package.defaults.as_object().unwrap_or(&empty);
    let mut found = Vec::new();
    for resource in &package.resources {
        let names = Names::new(&package.engine, Known { lets: &resource.lets, defaults });
        let objects = Objects::of(&outlines, resource, &names);
        let workloads: Vec<&str> = { resource.children.iter() }
            .flat_map(|child| &child.kinds)
            .filter(|gvk| &*gvk.kind != "Pod" && pod_path(gvk).is_some())
            .map(|gvk| &*gvk.kind)
            .collect();
        for object in objects.made {
            let made_for_it = match object.kind {
                "Deployment" => Some("ReplicaSet"),
                "CronJob" => Some("Job"),
                _ => None,
            };
            let pods = workloads.contains(&object.kind).then_some("Pod");
            for kind in made_for_it.into_iter().chain(pods) {
                found.push(Made { resource, kind: kind.to_owned(), name: continued(&object.name) });
            }
            found.push(Made { resource, kind: object.kind.to_owned(), name: object.name });
        }
        for visit in resource.plans.iter().flat_map(Plan::visits) {
            if let Action::Job { .. } = &visit.step.action {
                let words = format!("-{}", visit.step.name.to_lowercase());
                let name = continued(&Pattern(vec![PatternPart::Instance, PatternPart::Text(words)]));
                found.extend(["Job", "Pod"].map(|kind| Made {
                    resource,
                    kind: kind.to_owned(),
                    name: name.clone(),
                }));
            }
        }
    }
    found
}

/// A name that begins with another one and a dash.
fn continued(name: &Pattern) -> Pattern {
    let mut name = name.clone();
    name.0.extend([PatternPart::Text("-".to_owned()), PatternPart::Unknown]);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_children_and_of_what_is_made_for_them_are_known() {
        let load = |name: &str| {
            let package = crate::load::operator(name);
            made(&package).into_iter().map(|one| format!("{}/{}", one.kind, one.name)).collect::<Vec<_>>()
        };
        let webapp = load("webapp");
        for name in [
            "Deployment/{{ name }}",
            "Service/{{ name }}",
            "ReplicaSet/{{ name }}-{{ ... }}",
            "Pod/{{ name }}-{{ ... }}",
        ] {
            assert!(webapp.iter().any(|one| one == name), "{name} is not in {webapp:?}");
        }
        let etcd = load("etcd");
        for name in ["Job/{{ name }}-snapshot-{{ ... }}", "Pod/{{ name }}-snapshot-{{ ... }}"] {
            assert!(etcd.iter().any(|one| one == name), "{name} is not in {etcd:?}");
        }
    }
}

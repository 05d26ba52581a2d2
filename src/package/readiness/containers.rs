//! Containers whose image an apply has changed, but which the kubelet has not replaced yet.
//!
//! A kubelet reports the new generation as observed, and the Pod as ready, before it restarts the container.
//! The name of the image does not show which container runs, because runtimes may report another tag of the
//! same image. So the apply that changes an image records the ids of the running containers in an annotation,
//! and the Pod is not ready while they still run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The annotation of a Pod whose images an apply has changed: the containers that ran at that time, as JSON.
pub const ANNOTATION: &str = "operetta.dev/replaced-containers";

/// A running container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The id, including the name of the runtime.
    id: Box<str>,
    /// The image that the Pod named when the container was started.
    image: Box<str>,
}

/// Containers by name.
pub type Containers = BTreeMap<Box<str>, Container>;

/// The running containers of a Pod.
pub fn running(pod: &Value) -> Containers {
    let noted = noted(pod);
    let running = images(pod).filter_map(|(name, image)| {
        let id = status(pod, name)?["containerID"].as_str().filter(|id| !id.is_empty())?;
        let same = noted.get(name).filter(|noted| *noted.id == *id);
        let image = same.map_or(image, |noted| &noted.image);
        Some((name.into(), Container { id: id.into(), image: image.into() }))
    });
    running.collect()
}

/// The annotation for an apply of `desired` to a Pod with these running containers; `None` if it changes none
/// of their images.
pub fn replaced_by(desired: &Value, running: &Containers) -> Option<String> {
    let wanted: BTreeMap<&str, &str> = images(desired).collect();
    let named = running.iter().map(|(name, container)| (&**name, container));
    let is_replaced = |(name, container): &(&str, &Container)| {
        wanted.get(name).is_some_and(|image| **image != *container.image)
    };
    let replaced: BTreeMap<&str, &Container> = named.filter(is_replaced).collect();
    if replaced.is_empty() { None } else { serde_json::to_string(&replaced).ok() }
}

/// The containers that still run although their image has changed.
pub(super) fn outdated(pod: &Value) -> Vec<&str> {
    let noted = noted(pod);
    let is_outdated = |(name, image): &(&str, &str)| {
        let (Some(noted), Some(status)) = (noted.get(*name), status(pod, name)) else { return false };
        status["containerID"].as_str() == Some(&*noted.id)
            && *noted.image != **image
            && status["image"].as_str().is_none_or(|reported| full_name(reported) != full_name(image))
    };
    images(pod).filter(is_outdated).map(|(name, _)| name).collect()
}

fn noted(pod: &Value) -> Containers {
    let annotation = pod["metadata"]["annotations"][ANNOTATION].as_str();
    annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The containers that a kubelet restarts when their image changes, with their images. A finished init
/// container is not restarted.
fn images(pod: &Value) -> impl Iterator<Item = (&str, &str)> {
    let list = |name: &str| pod["spec"][name].as_array().into_iter().flatten();
    let sidecars = list("initContainers").filter(|container| container["restartPolicy"] == "Always");
    let all = list("containers").chain(sidecars);
    all.filter_map(|container| Some((container["name"].as_str()?, container["image"].as_str()?)))
}

fn status<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let lists = ["containerStatuses", "initContainerStatuses"];
    lists.into_iter().flat_map(|list| statuses(pod, list)).find(|status| status["name"] == name)
}

/// The full name of an image, as runtimes report it: `busybox` is `docker.io/library/busybox:latest`.
fn full_name(image: &str) -> String {
    let (first, rest) = image.split_once('/').unwrap_or(("", image));
    let is_host = first.contains(['.', ':']) || first == "localhost";
    let path = match (first, is_host) {
        ("", _) => format!("docker.io/library/{rest}"),
        (_, true) => image.to_owned(),
        (_, false) => format!("docker.io/{image}"),
    };
    let has_version = path.rsplit('/').next().is_some_and(|last| last.contains([':', '@']));
    if has_version { path } else { path + ":latest" }
}

pub(super) fn statuses<'a>(object: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    object["status"][list].as_array().into_iter().flatten()
}

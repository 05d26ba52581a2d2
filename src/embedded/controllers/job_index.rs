//! Jobs with indexes: which ones are done, as text, and what a pod of an index has.

use std::collections::BTreeSet;

use operetta_kube_model::facts::{items, text};
use serde_json::{Value, json};

const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// Parses `0-2,5`.
pub(super) fn parse_indexes(text: &str) -> BTreeSet<i64> {
    let parts = text.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<i64>().ok()?..=last.parse().ok()?)
    });
    parts.flatten().collect()
}

/// The reverse of [`parse_indexes`].
pub(super) fn format_indexes(indexes: &BTreeSet<i64>) -> String {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let parts = ranges.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    parts.collect::<Vec<_>>().join(",")
}

/// Gives a pod its index.
pub(super) fn prepare_index(pod: &mut Value, job: &str, index: i64) {
    pod["metadata"]["generateName"] = format!("{job}-{index}-").into();
    pod["metadata"]["annotations"][INDEX] = index.to_string().into();
    pod["metadata"]["labels"][INDEX] = index.to_string().into();
    if text(&pod["spec"]["hostname"]).is_empty() {
        pod["spec"]["hostname"] = format!("{job}-{index}").into();
    }
    for list in ["initContainers", "containers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            let env = items(&container["env"]);
            if !env.iter().any(|known| known["name"] == VARIABLE) {
                let path = format!("metadata.labels['{INDEX}']");
                let new = json!({"name": VARIABLE, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}});
                container["env"] = env.iter().cloned().chain([new]).collect::<Vec<_>>().into();
            }
        }
        if pod["spec"][list].is_null()
            && let Some(spec) = pod["spec"].as_object_mut()
        {
            spec.remove(list);
        }
    }
}

//! `PodSecurity`: pods must keep the rules of the level that labels of their namespace name.

mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;

use operetta_kube_model::Fault;
use operetta_kube_model::facts::{items, key, name};
use serde_json::Value;

use self::rules::{LATEST, Level, Policy, Violation, violations};
use super::write::{Write, forbidden};
use crate::model::{Context, Failure, Object, Outcome};
use crate::state::State;

/// The prefix of the labels of a namespace.
const PREFIX: &str = "pod-security.kubernetes.io/";

/// Subresources of pods that change no spec.
const IGNORED: [&str; 8] = ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

/// The policies that the labels of a namespace name.
#[derive(Debug)]
struct Policies {
    enforce: Policy,
    warn: Policy,
    faults: Vec<Fault>,
}

fn level(text: &str) -> Option<Level> {
    match text {
        "privileged" => Some(Level::Privileged),
        "baseline" => Some(Level::Baseline),
        "restricted" => Some(Level::Restricted),
        _ => None,
    }
}

fn minor(text: &str) -> Option<u32> {
    if text == "latest" {
        return Some(LATEST);
    }
    let digits = text.strip_prefix("v1.")?;
    let is_number = digits.chars().all(|c| c.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| is_number)
}

impl Policies {
    /// Reads labels.
    fn read<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Self {
        let mut faults = Vec::new();
        // A label that is invalid gives `Some(None)`.
        let mut read = |mode: &str| {
            let mut fault = |name: &str, text: &str, why: &str| {
                faults.push(Fault::invalid(format!("metadata.labels[{name}]"), text, why));
            };
            let (own, version) = (format!("{PREFIX}{mode}"), format!("{PREFIX}{mode}-version"));
            let found = label(&own).map(|text| {
                let found = level(text);
                if found.is_none() {
                    fault(&own, text, "must be one of privileged, baseline, restricted");
                }
                found
            });
            let minor = label(&version).map(|text| {
                let found = minor(text);
                if found.is_none() {
                    fault(&version, text, "must be \"latest\" or \"v1.x\"");
                }
                found.unwrap_or(LATEST)
            });
            (found, minor)
        };
        let (level, minor) = read("enforce");
        read("audit");
        let (warn_level, warn_minor) = read("warn");
        let enforce = Policy {
            level: level.map_or(Level::Privileged, |level| level.unwrap_or(Level::Restricted)),
            minor: minor.unwrap_or(LATEST),
        };
        let warn = match (warn_level, level.flatten()) {
            (Some(level), _) => {
                Policy { level: level.unwrap_or(Level::Privileged), minor: warn_minor.unwrap_or(LATEST) }
            }
            // Without a level for warnings, the enforced level warns, too.
            (None, Some(_)) => Policy { minor: warn_minor.unwrap_or(enforce.minor), ..enforce },
            (None, None) => Policy { level: Level::Privileged, minor: LATEST },
        };
        Self { enforce, warn, faults }
    }

    fn of(namespace: &Value) -> Self {
        Self::read(|label| namespace["metadata"]["labels"][label].as_str())
    }
}

/// The reasons and details of violations.
fn detailed(found: &[Violation]) -> String {
    let parts = found.iter().map(|violation| format!("{} ({})", violation.reason, violation.detail));
    parts.collect::<Vec<_>>().join(", ")
}

pub(super) fn validate(state: &mut State, context: &mut Context<'_>, write: &Write<'_>) -> Outcome<()> {
    let object = write.object();
    let is_pod = context.kind.resource() == "pods";
    let template = match context.kind.resource() {
        "namespaces" => &Value::Null,
        "pods" => object,
        "podtemplates" => &object["template"],
        "cronjobs.batch" => &object["spec"]["jobTemplate"]["spec"]["template"],
        "replicationcontrollers"
        | "replicasets.apps"
        | "deployments.apps"
        | "statefulsets.apps"
        | "daemonsets.apps"
        | "jobs.batch" => &object["spec"]["template"],
        _ => return Ok(()),
    };
    let is_ignored = if is_pod {
        IGNORED.contains(&context.subresource())
            || write.operation == "UPDATE" && has_same_images(write.old(), object)
    } else {
        !context.subresource().is_empty()
    };
    if is_ignored || write.operation == "DELETE" {
        return Ok(());
    }
    if context.kind.resource() == "namespaces" {
        return namespace(state, context, write);
    }
    let namespace = state.store.get("namespaces", &key("", context.namespace()));
    let is_labelled =
        |namespace: &&Arc<Object>| namespace.labels.iter().any(|(label, _)| label.starts_with(PREFIX));
    let Some(namespace) = namespace.filter(is_labelled) else { return Ok(()) };
    let policies = Policies::read(|label| namespace.label(label));
    if is_pod {
        let found = violations(policies.enforce, template);
        if !found.is_empty() {
            let why = format!("violates PodSecurity \"{}\": {}", policies.enforce, detailed(&found));
            return Err(forbidden(context, object, &why));
        }
    }
    let found = violations(policies.warn, template);
    if !found.is_empty() {
        let warning = format!("would violate PodSecurity \"{}\": {}", policies.warn, detailed(&found));
        context.warnings.push(warning);
    }
    Ok(())
}

/// Whether an update of a pod adds no container and changes no image.
fn has_same_images(old: &Value, new: &Value) -> bool {
    let of = |pod: &Value, list: &str| -> Vec<Value> {
        items(&pod["spec"][list]).iter().map(|container| container["image"].clone()).collect()
    };
    ["containers", "initContainers", "ephemeralContainers"].iter().all(|list| of(old, list) == of(new, list))
}

/// Checks the labels of a namespace, and warns of pods that break the rules of a new level.
fn namespace(state: &State, context: &mut Context<'_>, write: &Write<'_>) -> Outcome<()> {
    let next = Policies::of(write.object());
    let old = Policies::of(write.old());
    if !next.faults.is_empty() && next.faults != old.faults {
        return Err(Failure::invalid("", "Namespace", write.name, &next.faults));
    }
    let (old, next) = (old.enforce, next.enforce);
    let is_relaxed = next.minor == old.minor && next.level <= old.level;
    if write.operation == "CREATE" || next.level == Level::Privileged || is_relaxed {
        return Ok(());
    }
    // The pods with the same violations.
    let mut pods: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (_, pod) in state.store.range("pods", &key(write.name, ""), None) {
        let pod = pod.parsed();
        let found = violations(next, &pod.value);
        if !found.is_empty() {
            let reasons: Vec<&str> = found.iter().map(|violation| violation.reason).collect();
            pods.entry(reasons.join(", ")).or_default().push(name(&pod.value).to_owned());
        }
    }
    if pods.is_empty() {
        return Ok(());
    }
    let mut warnings: Vec<String> = pods
        .iter()
        .map(|(reasons, pods)| {
            let others = match pods.len() {
                1 => String::new(),
                2 => " (and 1 other pod)".to_owned(),
                count => format!(" (and {} other pods)", count - 1),
            };
            format!("{}{others}: {reasons}", pods[0])
        })
        .collect();
    warnings.sort();
    let name = write.name;
    context.warnings.push(format!(
        "existing pods in namespace {name:?} violate the new PodSecurity enforce level \"{next}\""
    ));
    context.warnings.append(&mut warnings);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(labels: &Value) -> Policies {
        let labels: Vec<(String, Value)> = labels
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| (format!("{PREFIX}{name}"), value.clone()))
            .collect();
        Policies::of(&json!({"metadata": {"labels": Value::Object(labels.into_iter().collect())}}))
    }

    #[test]
    fn labels_are_levels_and_versions() {
        for (labels, enforce, warn) in [
            (json!({}), "privileged:latest", "privileged:latest"),
            (json!({"enforce": "baseline"}), "baseline:latest", "baseline:latest"),
            (
                json!({"enforce": "restricted", "enforce-version": "v1.24"}),
                "restricted:v1.24",
                "restricted:v1.24",
            ),
            (json!({"enforce": "baseline", "warn": "restricted"}), "baseline:latest", "restricted:latest"),
            (
                json!({"enforce": "restricted", "warn": "privileged"}),
                "restricted:latest",
                "privileged:latest",
            ),
            (
                json!({"enforce": "baseline", "enforce-version": "v1.24", "warn-version": "v1.30"}),
                "baseline:v1.24",
                "baseline:v1.30",
            ),
            // A level that cannot be read is enforced as the strictest one.
            (json!({"enforce": "strict"}), "restricted:latest", "privileged:latest"),
        ] {
            let policies = read(&labels);
            assert_eq!(
                (policies.enforce.to_string(), policies.warn.to_string()),
                (enforce.to_owned(), warn.to_owned()),
                "{labels}"
            );
        }
        let faults =
            read(&json!({"enforce": "strict", "audit-version": "v2", "warn-version": "v1.05"})).faults;
        let faults: Vec<String> = faults.iter().map(Fault::message).collect();
        assert_eq!(
            faults,
            [
                "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be one of privileged, baseline, restricted",
                "metadata.labels[pod-security.kubernetes.io/audit-version]: Invalid value: \"v2\": must be \"latest\" or \"v1.x\"",
                "metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: \"v1.05\": must be \"latest\" or \"v1.x\"",
            ]
        );
    }
}

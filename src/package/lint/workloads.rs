//! Checks the consistency of the objects of a resource: selectors and labels, ports, volumes, names in lists.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::objects::{Names, is_built_in, pod_path};
use super::sketch::{At, Part, Text, Texts};
use crate::diag::{Diagnostic, Location};
use crate::plan::{Action, Plan};
use crate::template::{Engine, Known, Pattern, Template};
use crate::template_scan::Outlines;
use crate::{REPLICAS, RefSource, Resource, Tree, has_replicas};

/// Labels that Kubernetes controllers or Operetta set on pods.
const SET_BY_OTHERS: [&str; 10] = [
    "operetta.dev/",
    "pod-template-hash",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "batch.kubernetes.io/",
    "statefulset.kubernetes.io/",
    "apps.kubernetes.io/",
    "topology.kubernetes.io/",
    "kubernetes.io/",
];

/// The pods of a child.
struct Pods<'a> {
    /// The template of the pods; `None` if it is unknown.
    template: Option<Part<'a>>,
    labels: Texts,
}

impl<'a> Pods<'a> {
    fn new(template: Option<Part<'a>>) -> Self {
        let labels = match template.map(|part| part.at(&["metadata", "labels"])) {
            Some(At::Part(labels)) => labels.texts(),
            Some(At::Absent) => Texts::default(),
            Some(At::Open) | None => Texts::unknown(),
        };
        Self { template, labels }
    }
}

/// The label of a selector that pods certainly do not have.
fn missing(selector: &Texts, labels: &Texts, names: &Names<'_>) -> Option<String> {
    if selector.whole.is_some() && selector.whole == labels.whole {
        return None;
    }
    let wanted = selector.known.iter().map(|(key, value)| (key.as_str(), names.of_text(value)));
    missing_label(wanted, labels, names)
}

fn missing_label<'s>(
    wanted: impl IntoIterator<Item = (&'s str, Pattern)>,
    labels: &Texts,
    names: &Names<'_>,
) -> Option<String> {
    for (key, wanted) in wanted {
        let is_set =
            |known: &&str| if known.ends_with('/') { key.starts_with(*known) } else { key == *known };
        if labels.open || SET_BY_OTHERS.iter().any(is_set) {
            continue;
        }
        if labels.get(key).is_none_or(|value| names.of_text(value).differs(&wanted)) {
            return Some(key.to_owned());
        }
    }
    None
}

/// Reports all inconsistencies of the objects of a resource.
pub(crate) fn workloads(
    engine: &Engine,
    outlines: &Outlines,
    resources: &[Resource],
    defaults: &Map<String, Value>,
) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let pods: Vec<Option<Pods<'_>>> =
        resources.iter().flat_map(|resource| pods(outlines, resource)).collect();
    let mut seen = Vec::new();
    for resource in resources {
        let names = Names::new(engine, Known { lets: &resource.lets, defaults });
        refs(outlines, resource, &pods, &names, &mut found);
        let has_pods = self::pods(outlines, resource).iter().any(Option::is_some);
        for child in &resource.children {
            let [gvk] = child.kinds.as_slice() else { continue };
            let Some(root) =
                outlines.root(&child.template).filter(|_| !seen.contains(&child.template.as_str()))
            else {
                continue;
            };
            seen.push(child.template.as_str());
            if let Some(path) = pod_path(gvk)
                && let At::Part(template) = root.at(path)
            {
                own_labels(root, template, &gvk.kind, &names, &mut found);
                pod(template, root, &mut found);
            }
            if has_replicas(gvk) && child.yields.is_none() {
                omitted_replicas(engine, root, &child.template, &mut found);
            }
            if has_pods {
                selects(root, &gvk.kind, &pods, &names, &mut found);
            }
            if gvk.is("v1", "Service")
                && let At::Part(ports) = root.at(&["spec", "ports"])
            {
                unique(ports, "name", "port", &mut found);
            }
        }
    }
    found
}

/// The pods of the children of a resource; `None` for a child whose pods are unknown.
fn pods<'a>(outlines: &'a Outlines, resource: &'a Resource) -> Vec<Option<Pods<'a>>> {
    let mut found = Vec::new();
    for child in &resource.children {
        // Its template has an error, which is reported by itself.
        if child.kinds.is_empty() {
            found.push(None);
        }
        for gvk in &child.kinds {
            let Some(path) = pod_path(gvk) else {
                if !is_built_in(gvk) {
                    found.push(None);
                }
                continue;
            };
            let template = match outlines.root(&child.template).map(|root| root.at(path)) {
                Some(At::Part(part)) if child.kinds.len() == 1 => Some(part),
                _ => None,
            };
            found.push(Some(Pods::new(template)));
        }
    }
    found
}

/// Reports a workload whose selector does not match its own pods.
fn own_labels(
    root: Part<'_>,
    template: Part<'_>,
    kind: &str,
    names: &Names<'_>,
    found: &mut Vec<Diagnostic>,
) {
    if !matches!(kind, "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet") {
        return;
    }
    let At::Part(selector) = root.at(&["spec", "selector", "matchLabels"]) else { return };
    if let Some(key) = missing(&selector.texts(), &Pods::new(Some(template)).labels, names) {
        let message = format!("the selector does not match the labels of the workload's own pods: `{key}`");
        found.push(
            Diagnostic::error("package::selector", message)
                .located(at_key(selector, &key))
                .path("spec.selector.matchLabels")
                .help("add the same label to spec.template.metadata.labels"),
        );
    }
}

/// Reports a number of replicas that is left out at times, by `omit` or a branch, as before an autoscaler sets it.
fn omitted_replicas(engine: &Engine, root: Part<'_>, template: &str, found: &mut Vec<Diagnostic>) {
    let At::Part(number) = root.at(&REPLICAS) else { return };
    let omits = engine.template(template).map(Template::omits).unwrap_or_default();
    let (source, span) = (number.source(), number.node().span);
    let is_in = |at: &Location| {
        at.source.name == source.name && span.start <= at.span.start && at.span.end <= span.end
    };
    let is_in_branch = || match root.at(&["spec", "selector"]) {
        At::Part(other) => number.is_in_branch() && !other.is_in_branch(),
        At::Absent | At::Open => false,
    };
    if omits.iter().any(is_in) || is_in_branch() {
        let message = "where `replicas` is omitted, a new object has 1, and an existing one keeps its number";
        found.push(
            Diagnostic::warning("package::yields", message).located(number.location()).path("spec.replicas").help(
                "always give the number, and let the child yield it to an autoscaler, for example by yields: \
                 \"{{ ['spec.replicas'] if spec.autoscaling else [] }}\"",
            ),
        );
    }
}

/// The location of a key, or of the whole map if it does not have the key.
fn at_key(part: Part<'_>, key: &str) -> Location {
    let entry = part.node().entry(key).map(|(key, _)| key.span);
    entry.map_or_else(|| part.location(), |span| Location::new(part.source(), span))
}

/// Reports an object that selects no pods, or a port that no selected pod has.
fn selects(
    root: Part<'_>,
    kind: &str,
    pods: &[Option<Pods<'_>>],
    names: &Names<'_>,
    found: &mut Vec<Diagnostic>,
) {
    let path: &[&str] = match kind {
        "Service" => &["spec", "selector"],
        "PodDisruptionBudget" => &["spec", "selector", "matchLabels"],
        "NetworkPolicy" => &["spec", "podSelector", "matchLabels"],
        _ => return,
    };
    let At::Part(part) = root.at(path) else { return };
    let selector = part.texts();
    if selector.known.is_empty() {
        return;
    }
    let mut fitting = Vec::new();
    let mut misses = None;
    for pods in pods {
        let Some(pods) = pods else { return };
        match missing(&selector, &pods.labels, names) {
            Some(key) => misses = misses.or(Some(key)),
            None => fitting.push(pods),
        }
    }
    if fitting.is_empty() {
        let Some(key) = misses else { return };
        let message = format!("the {kind} selects no pods of this package: none has the label `{key}`");
        found.push(
            Diagnostic::warning("package::selector", message)
                .located(at_key(part, &key))
                .path(path.join("."))
                .help("use labels from spec.template.metadata.labels of a child"),
        );
        return;
    }
    if kind == "Service" {
        ports(root, &fitting, names, found);
    }
}

/// Reports a ref that selects pods by the name of the instance, while no pod of the package has such labels.
fn refs(
    outlines: &Outlines,
    resource: &Resource,
    pods: &[Option<Pods<'_>>],
    names: &Names<'_>,
    found: &mut Vec<Diagnostic>,
) {
    let of_jobs = resource.plans.iter().flat_map(Plan::visits).filter_map(|visit| match &visit.step.action {
        Action::Job { template } => {
            let template = match outlines.root(template).map(|root| root.at(&["spec", "template"])) {
                Some(At::Part(part)) => Some(part),
                _ => None,
            };
            Some(Pods::new(template))
        }
        _ => None,
    });
    // The pods of a child may be unknown.
    let Some(of_children) = pods.iter().map(Option::as_ref).collect::<Option<Vec<_>>>() else { return };
    let of_jobs: Vec<Pods<'_>> = of_jobs.collect();
    let all = || of_children.iter().copied().chain(&of_jobs).map(|pods| &pods.labels);
    for reference in &resource.refs {
        let (Some(gvk), RefSource::Select(Tree::Map(selector), _)) = (&reference.gvk, &reference.target)
        else {
            continue;
        };
        let match_labels = selector.iter().find_map(|(key, value)| match value {
            Tree::Map(labels) if key == "matchLabels" => Some(labels),
            _ => None,
        });
        let wanted: Vec<(&str, Pattern)> = match_labels
            .unwrap_or(selector)
            .iter()
            .filter_map(|(key, value)| match value {
                Tree::Text(text) => Some((key.as_str(), names.pattern(text))),
                Tree::List(_) | Tree::Map(_) => None,
            })
            .collect();
        // Others may make pods of other names.
        let is_own = gvk.is("v1", "Pod") && wanted.iter().any(|(_, value)| value.has_instance());
        let misses: Option<Vec<String>> =
            all().map(|labels| missing_label(wanted.iter().cloned(), labels, names)).collect();
        if let Some(key) = misses.filter(|_| is_own).and_then(|misses| misses.into_iter().next()) {
            let message = format!(
                "the ref `{}` selects no pods of this package: none has the label `{key}`",
                reference.id
            );
            found.push(
                Diagnostic::warning("package::selector", message)
                    .located(reference.location.clone())
                    .help("use labels from spec.template.metadata.labels of a child"),
            );
        }
    }
}

/// Reports target ports of a Service that no container has.
fn ports(root: Part<'_>, pods: &[&Pods<'_>], names: &Names<'_>, found: &mut Vec<Diagnostic>) {
    let At::Part(ports) = root.at(&["spec", "ports"]) else { return };
    let Some(known) = pods.iter().map(|pods| container_ports(pods, names)).collect::<Option<Vec<_>>>() else {
        return;
    };
    let known: Vec<Port> = known.into_iter().flatten().collect();
    for port in ports.items().into_iter().flatten() {
        let target = match port.get("targetPort") {
            At::Part(target) => target,
            At::Absent => match port.get("port") {
                At::Part(target) => target,
                _ => continue,
            },
            At::Open => continue,
        };
        if target.text().is_none() || !target.counts(known.len()) {
            continue;
        }
        let wanted = names.of_part(target);
        let is_name = wanted.as_literal().is_some_and(|text| text.parse::<u32>().is_err());
        let fits = |port: &Port| {
            let own = if is_name { &port.name } else { &port.number };
            own.as_ref().is_some_and(|own| !own.differs(&wanted))
        };
        // A port need not be declared. But if others are, a number that differs from all of them is probably
        // a mistake.
        if known.iter().any(fits) || (known.is_empty() && !is_name) {
            continue;
        }
        let message = format!("no container of the selected pods has the port {wanted}");
        let mut shown: Vec<String> = known
            .iter()
            .flat_map(|port| [&port.name, &port.number])
            .filter_map(|text| text.as_ref().and_then(Pattern::as_literal))
            .collect();
        shown.dedup();
        let help = if shown.is_empty() {
            "declare the port in `ports` of a container".to_owned()
        } else {
            format!("there is {}", shown.join(", "))
        };
        found.push(
            Diagnostic::warning("package::selector", message)
                .located(target.location())
                .path("spec.ports")
                .help(help),
        );
    }
}

struct Port {
    name: Option<Pattern>,
    number: Option<Pattern>,
}

/// The ports of the containers of pods; `None` if they are unknown.
fn container_ports(pods: &Pods<'_>, names: &Names<'_>) -> Option<Vec<Port>> {
    let template = pods.template?;
    let mut found = Vec::new();
    for list in ["containers", "initContainers"] {
        let containers = match template.at(&["spec", list]) {
            At::Part(part) => part.all_items()?,
            At::Absent => continue,
            At::Open => return None,
        };
        for container in containers {
            let ports = match container.get("ports") {
                At::Part(part) => part.all_items()?,
                At::Absent => continue,
                At::Open => return None,
            };
            for port in ports {
                let text = |key| match port.get(key) {
                    At::Part(part) => part.text().map(|text| Some(names.of_text(&text))),
                    At::Absent => Some(None),
                    At::Open => None,
                };
                found.push(Port { name: text("name")?, number: text("containerPort")? });
            }
        }
    }
    Some(found)
}

/// Checks names within one pod.
fn pod(template: Part<'_>, root: Part<'_>, found: &mut Vec<Diagnostic>) {
    let mut volumes: Option<Vec<Text>> = items_at(template, &["spec", "volumes"])
        .and_then(|volumes| volumes.into_iter().map(|volume| text_at(volume, &["name"])).collect());
    let claims: Option<Vec<Text>> = items_at(root, &["spec", "volumeClaimTemplates"])
        .and_then(|claims| claims.into_iter().map(|claim| text_at(claim, &["metadata", "name"])).collect());
    volumes = volumes.zip(claims).map(|(volumes, claims)| [volumes, claims].concat());
    for kind in ["containers", "initContainers"] {
        let At::Part(part) = template.at(&["spec", kind]) else { continue };
        for container in part.all_items().into_iter().flatten() {
            // Names that are keys of a list are checked against the schema instead.
            if let At::Part(ports) = container.get("ports") {
                unique(ports, "name", "port", found);
            }
            let (At::Part(mounts), Some(volumes)) = (container.get("volumeMounts"), &volumes) else {
                continue;
            };
            for mount in mounts.all_items().into_iter().flatten() {
                let At::Part(name) = mount.get("name") else { continue };
                let Some(Text::Literal(text)) = name.text().filter(|_| name.counts(volumes.len())) else {
                    continue;
                };
                let is_volume = |volume: &Text| match volume {
                    Text::Literal(known) => *known == text,
                    Text::Computed(_) => true,
                };
                if !volumes.iter().any(is_volume) {
                    let message = format!("the pod has no volume `{text}`");
                    found.push(
                        Diagnostic::error("package::selector", message)
                            .located(name.location())
                            .path("volumeMounts")
                            .help("use a volume of spec.volumes or volumeClaimTemplates"),
                    );
                }
            }
        }
    }
}

fn items_at<'a>(part: Part<'a>, path: &[&str]) -> Option<Vec<Part<'a>>> {
    match part.at(path) {
        At::Part(part) => part.all_items(),
        At::Absent => Some(Vec::new()),
        At::Open => None,
    }
}

fn text_at(part: Part<'_>, path: &[&str]) -> Option<Text> {
    match part.at(path) {
        At::Part(part) => part.text(),
        _ => None,
    }
}

/// Reports two items of a list with the same name.
fn unique(list: Part<'_>, key: &str, what: &str, found: &mut Vec<Diagnostic>) {
    let mut seen = HashSet::new();
    for item in list.items().into_iter().flatten() {
        let At::Part(name) = item.get(key) else { continue };
        let Some(text) = name.text() else { continue };
        if seen.contains(&text) {
            let (Text::Literal(shown) | Text::Computed(shown)) = &text;
            let message = format!("two items of this list are the {what} {shown}");
            let error = Diagnostic::error("package::duplicate", message).located(name.location());
            found.push(error.help("rename one of them, or remove it"));
        } else {
            seen.insert(text);
        }
    }
}

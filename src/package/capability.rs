//! Capability levels of a package, I to V of the Operator capability model, computed from what was compiled.
//!
//! Nothing is declared by the author: a level follows from plans, triggers, children and conditions, and has every level below it. What
//! only looks like a feature does not count: a plan is a backup only if one of its steps does work outside of Kubernetes' state, and
//! printer columns are no metrics.

use std::collections::BTreeSet;
use std::fmt;

use super::lint::sketch::{At, Part};
use super::model::{Package, Resource, Tree};
use super::plan::{Action, ChangedPath, Event, OnLoss, Plan};
use super::template_scan::Outlines;
use crate::api::Gvk;

/// Fields of a spec that are sizes.
pub const SIZES: [&str; 5] = ["replicas", "size", "members", "instances", "count"];
/// The maximum number of reasons of one feature.
const REASONS: usize = 3;
/// Kinds of children that are a feature, with their groups.
const FEATURE_KINDS: [(Feature, &str, &[&str]); 6] = [
    (Feature::Metrics, "monitoring.coreos.com", &["ServiceMonitor", "PodMonitor", "Probe", "ScrapeConfig"]),
    (Feature::Metrics, "monitoring.googleapis.com", &["PodMonitoring", "ClusterPodMonitoring"]),
    (Feature::Metrics, "operator.victoriametrics.com", &["VMServiceScrape", "VMPodScrape"]),
    (Feature::Scaling, "autoscaling", &["HorizontalPodAutoscaler"]),
    (Feature::Scaling, "autoscaling.k8s.io", &["VerticalPodAutoscaler"]),
    (Feature::Scaling, "keda.sh", &["ScaledObject"]),
];
/// Words in the names of what backs up, and of what restores.
const BACKUP: [&str; 2] = ["backup", "snapshot"];
const RESTORE: [&str; 1] = ["restore"];

/// A level of the capability model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// I: what an instance declares is made, and its readiness is reported.
    BasicInstall = 1,
    /// II: a new version reaches running instances in order.
    SeamlessUpgrades,
    /// III: data is backed up and restored, and losses are repaired.
    FullLifecycle,
    /// IV: metrics, and conditions that say what is wrong.
    DeepInsights,
    /// V: it scales and acts by itself.
    AutoPilot,
}

impl Level {
    const ALL: [Self; 5] = [
        Self::BasicInstall,
        Self::SeamlessUpgrades,
        Self::FullLifecycle,
        Self::DeepInsights,
        Self::AutoPilot,
    ];

    /// The number, 1 to 5.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The Roman number.
    pub fn roman(self) -> &'static str {
        ["I", "II", "III", "IV", "V"][self as usize - 1]
    }

    fn next(level: Option<Self>) -> Option<Self> {
        Self::ALL.get(level.map_or(0, |level| level as usize)).copied()
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = ["Basic Install", "Seamless Upgrades", "Full Lifecycle", "Deep Insights", "Auto Pilot"];
        write!(f, "{} {}", self.roman(), words[*self as usize - 1])
    }
}

/// What a level consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// Instances make something.
    Install,
    /// A new version reaches them in order.
    Upgrade,
    /// Data is stored elsewhere.
    Backup,
    /// It comes back from there.
    Restore,
    /// A loss or a failure is answered.
    Recovery,
    /// Something measures.
    Metrics,
    /// Conditions of the package's own.
    Conditions,
    /// The size follows the load.
    Scaling,
    /// A plan begins without a person.
    Automation,
}

impl Feature {
    const ALL: [Self; 9] = [
        Self::Install,
        Self::Upgrade,
        Self::Backup,
        Self::Restore,
        Self::Recovery,
        Self::Metrics,
        Self::Conditions,
        Self::Scaling,
        Self::Automation,
    ];

    /// The level that requires it.
    pub fn level(self) -> Level {
        match self {
            Self::Install => Level::BasicInstall,
            Self::Upgrade => Level::SeamlessUpgrades,
            Self::Backup | Self::Restore | Self::Recovery => Level::FullLifecycle,
            Self::Metrics | Self::Conditions => Level::DeepInsights,
            Self::Scaling | Self::Automation => Level::AutoPilot,
        }
    }

    /// What a package without it lacks.
    fn lack(self) -> &'static str {
        match self {
            Self::Install => "children, or a plan with steps",
            Self::Upgrade => {
                "a plan that starts with `upgraded` or `changed`, or workloads that Kubernetes or maxUnavailable rolls out"
            }
            Self::Backup => "a backup: a Job, command or request in a kind, plan or step with that name",
            Self::Restore => "a restore: a Job, command or request in a kind, plan or step with that name",
            Self::Recovery => {
                "recovery: `onLoss` of a child with a plan, or a plan with a condition as its trigger"
            }
            Self::Metrics => {
                "metrics: a ServiceMonitor or PodMonitor, a port named `metrics`, or the annotation prometheus.io/scrape"
            }
            Self::Conditions => "conditions of its own",
            Self::Scaling => {
                "scaling: a HorizontalPodAutoscaler or its like, or a plan that starts by itself and patches the size"
            }
            Self::Automation => "a plan that starts by a condition, the end of a certificate or a schedule",
        }
    }
}

/// Why a feature counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The feature.
    pub feature: Feature,
    /// What has it, such as `plan upgrade (upgraded)`. That of another kind begins with it: `EtcdBackup plan take`.
    pub what: String,
}

/// The level of one kind, or of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rating {
    /// The level; `None` if not even the first is reached.
    pub level: Option<Level>,
    /// What counts, in the order of the features. The first few of each.
    pub reasons: Vec<Reason>,
    /// What is missing for the next level.
    pub missing: Vec<&'static str>,
}

impl Rating {
    /// The level that something is missing for.
    pub fn next(&self) -> Option<Level> {
        Level::next(self.level)
    }
}

/// A kind with its level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindRating {
    /// The kind.
    pub kind: String,
    /// The kinds of the package that it works for, such as the cluster that a backup is of. Those are rated with it, and it does not
    /// count by itself.
    pub serves: Vec<String>,
    /// Its level.
    pub rating: Rating,
}

/// The levels of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// The lowest level of the kinds that serve no other one.
    pub level: Option<Level>,
    /// All kinds, in the order of the package.
    pub kinds: Vec<KindRating>,
}

/// The levels of a package.
pub fn capability(package: &Package) -> Capability {
    let outlines = Outlines::of(package.files.iter());
    let own: Vec<Vec<Reason>> =
        package.resources.iter().map(|resource| reasons(resource, &outlines)).collect();
    let serves: Vec<BTreeSet<usize>> = (0..package.resources.len()).map(|at| served(package, at)).collect();
    let kind = |at: usize| package.resources[at].kind.kind.as_str();
    let rated = (0..package.resources.len()).map(|at| {
        let mut reasons = own[at].clone();
        for helper in (0..serves.len()).filter(|helper| *helper != at && serves[*helper].contains(&at)) {
            // What a helper makes, and how it is upgraded itself, says nothing about what it serves.
            let counts = own[helper].iter().filter(|one| one.feature > Feature::Upgrade);
            reasons.extend(counts.map(|Reason { feature, what }| Reason {
                feature: *feature,
                what: format!("{} {what}", kind(helper)),
            }));
        }
        KindRating {
            kind: kind(at).to_owned(),
            serves: serves[at].iter().map(|at| kind(*at).to_owned()).collect(),
            rating: rate(reasons),
        }
    });
    let kinds: Vec<KindRating> = rated.collect();
    let is_alone = kinds.iter().all(|kind| !kind.serves.is_empty());
    let level = kinds.iter().filter(|kind| is_alone || kind.serves.is_empty()).map(|kind| kind.rating.level);
    Capability { level: level.min().flatten(), kinds }
}

fn rate(mut reasons: Vec<Reason>) -> Rating {
    reasons.sort_by_key(|reason| reason.feature);
    reasons.dedup();
    let has = |feature: Feature| reasons.iter().any(|reason| reason.feature == feature);
    let lacks = |level: Level| Feature::ALL.into_iter().filter(move |one| one.level() == level && !has(*one));
    let level = Level::ALL.into_iter().take_while(|level| lacks(*level).next().is_none()).last();
    let missing = Level::next(level).into_iter().flat_map(lacks).map(Feature::lack).collect();
    let mut counted = 0;
    let mut last = None;
    reasons.retain(|reason| {
        counted = if last == Some(reason.feature) { counted + 1 } else { 1 };
        last = Some(reason.feature);
        counted <= REASONS
    });
    Rating { level, reasons, missing }
}

/// The kinds of the package that a kind reads, makes or calls, directly or through others, except itself.
fn served(package: &Package, at: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open = vec![at];
    while let Some(here) = open.pop() {
        let resource = &package.resources[here];
        let visits = resource.plans.iter().flat_map(Plan::visits);
        let called: Vec<&Gvk> = visits
            .filter_map(|visit| match &visit.step.action {
                Action::Plan(call) => call.of.as_ref().map(|of| &of.gvk),
                _ => None,
            })
            .collect();
        for gvk in resource.kinds().into_iter().chain(called) {
            let other = package.resources.iter().position(|other| other.is_of(gvk));
            if let Some(other) = other.filter(|other| *other != at)
                && found.insert(other)
            {
                open.push(other);
            }
        }
    }
    found
}

/// What a kind has by itself.
fn reasons(resource: &Resource, outlines: &Outlines) -> Vec<Reason> {
    let mut found = Vec::new();
    let mut add = |feature, what: String| found.push(Reason { feature, what });
    match resource.children.len() {
        0 => {}
        1 => add(Feature::Install, "1 child".to_owned()),
        count => add(Feature::Install, format!("{count} children")),
    }
    for child in &resource.children {
        let id = &child.id;
        let limit = child.max_unavailable.as_ref().map(|_| "maxUnavailable");
        if let Some(how) = child.kinds.iter().find(|gvk| is_rolling(gvk)).map(|gvk| &*gvk.kind).or(limit) {
            add(Feature::Upgrade, format!("child {id} ({how})"));
        }
        match &child.on_loss {
            OnLoss::Recreate => {}
            OnLoss::Plan(plan) => add(Feature::Recovery, format!("child {id} (onLoss: {plan})")),
            OnLoss::Computed(_) => add(Feature::Recovery, format!("child {id} (onLoss)")),
        }
        for gvk in &child.kinds {
            for (feature, group, kinds) in FEATURE_KINDS {
                if gvk.group() == group && kinds.contains(&&*gvk.kind) {
                    add(feature, format!("child {id} ({})", gvk.kind));
                }
            }
        }
        if let Some(how) = outlines.root(&child.template).and_then(measured) {
            add(Feature::Metrics, format!("child {id} ({how})"));
        }
    }
    for condition in &resource.conditions {
        add(Feature::Conditions, format!("condition {}", condition.type_));
    }
    for plan in &resource.plans {
        of_plan(resource, plan, &mut add);
    }
    found
}

/// Whether a controller of Kubernetes replaces the pods of a kind one after another.
fn is_rolling(gvk: &Gvk) -> bool {
    gvk.group() == "apps" && ["Deployment", "StatefulSet", "DaemonSet"].contains(&&*gvk.kind)
}

/// How the pods of a template can be measured.
fn measured(root: Part<'_>) -> Option<&'static str> {
    let mut found = None;
    root.each_entry(&mut |key, value| {
        if key == "prometheus.io/scrape" {
            found = Some("prometheus.io/scrape");
        } else if key == "ports" {
            for port in value.all_items().unwrap_or_default() {
                let At::Part(name) = port.get("name") else { continue };
                let is_metrics = |word: &str| word == "metrics" || word == "exporter";
                if name.node().as_str().is_some_and(|name| name.split('-').any(is_metrics)) {
                    found = Some("port for metrics");
                }
            }
        }
    });
    found
}

fn of_plan(resource: &Resource, plan: &Plan, add: &mut impl FnMut(Feature, String)) {
    let name = &plan.name;
    let visits = plan.visits();
    let does_work = visits.iter().any(|visit| !matches!(visit.step.action, Action::Fail(_)));
    if !does_work {
        return;
    }
    if resource.children.is_empty() {
        add(Feature::Install, format!("plan {name}"));
    }
    let mut events: Vec<&str> = plan.triggers.iter().filter_map(|trigger| upgrade(&trigger.event)).collect();
    events.dedup();
    if !events.is_empty() {
        add(Feature::Upgrade, format!("plan {name} ({})", events.join(", ")));
    }
    let mut own: Vec<&str> = Vec::new();
    for trigger in &plan.triggers {
        let word = match &trigger.event {
            Event::Condition { .. } => "condition",
            Event::Expires { .. } => "expires",
            Event::Schedule { .. } => "schedule",
            _ => continue,
        };
        if !own.contains(&word) {
            own.push(word);
        }
    }
    if !own.is_empty() {
        add(Feature::Automation, format!("plan {name} ({})", own.join(", ")));
    }
    if own.contains(&"condition") {
        add(Feature::Recovery, format!("plan {name} (condition)"));
    }
    let kind = &resource.kind.kind;
    for visit in &visits {
        let step = &visit.step;
        let template = match &step.action {
            Action::Job { template } => template.as_str(),
            Action::Exec(_) | Action::Http(_) => "",
            Action::Patch(patch) if !own.is_empty() && sets_size(&patch.merge) => {
                add(
                    Feature::Scaling,
                    format!("plan {name} ({}), which patches {}", own.join(", "), patch.gvk.kind),
                );
                continue;
            }
            _ => continue,
        };
        for (feature, words) in [(Feature::Backup, &BACKUP[..]), (Feature::Restore, &RESTORE)] {
            let named = [kind, name, &step.name, template].into_iter().map(str::to_lowercase);
            if named.into_iter().any(|text| words.iter().any(|word| text.contains(word))) {
                add(feature, format!("plan {name}, step {}", step.name));
            }
        }
    }
}

/// The event, if a new version of the package or any change of the spec is one.
fn upgrade(event: &Event) -> Option<&'static str> {
    match event {
        Event::Upgraded => Some("upgraded"),
        Event::Changed(paths) => {
            let is_whole = |path: &ChangedPath| matches!(path, ChangedPath::Spec(names) if names.len() == 1);
            (paths.is_empty() || paths.iter().any(is_whole)).then_some("changed")
        }
        _ => None,
    }
}

/// Whether a patch sets a field of the spec that is a size.
fn sets_size(merge: &Tree) -> bool {
    let Tree::Map(entries) = merge else { return false };
    let spec = entries.iter().find(|(key, _)| key == "spec").map(|(_, spec)| spec);
    let Some(Tree::Map(fields)) = spec else { return false };
    fields.iter().any(|(key, _)| SIZES.contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files;

    /// A kind `Shop` with these children, plans and conditions, and whose template has this text.
    fn shop(parts: &str, template: &str) -> Capability {
        let text = format!(
            "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: shop}}\nspec:\n  version: 1.0.0\n  \
             resources:\n  - crd: crds/a.yaml\n{parts}"
        );
        let crd = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: shops.example.org}\nspec:\n  \
             group: example.org\n  scope: Namespaced\n  names: {kind: Shop, plural: shops}\n  versions:\n  - name: v1\n    \
             served: true\n    storage: true\n    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, \
             properties: {size: {type: integer, default: 1}}}}}}\n";
        let mut files = vec![("operator.yaml", text), ("crds/a.yaml", crd.to_owned())];
        if parts.contains("templates/a.yaml") {
            files.push(("templates/a.yaml", template.to_owned()));
        }
        let package = crate::compile(&Files::from_texts("shop", files));
        capability(&package.unwrap_or_else(|errors| panic!("{parts}: {errors:?}")).0)
    }

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: \"{{ name }}\"}\nspec:\n  containers:\n  - name: shop\n    \
         image: shop:1\n    ports: [{name: http-metrics, containerPort: 9090}]\n";
    const CHILD: &str = "    children:\n    - {id: pod, template: templates/a.yaml}\n";
    const CONDITION: &str =
        "    conditions:\n    - {type: Slow, when: spec.size > 3, reason: Big, message: big}\n";

    /// Each step adds one feature, and the level follows once all features of a level are there.
    #[test]
    fn a_level_needs_all_features_of_those_below() {
        let deploy = "    plans:\n      deploy:\n        steps: [{name: all, apply: [pod]}]\n";
        let update = "      update:\n        trigger: [upgraded, changed]\n        steps: [{name: all, apply: [pod]}]\n";
        let exec = |name: &str| {
            format!(
                "      {name}:\n        steps: [{{name: run, exec: {{child: pod, container: shop, command: [{name}]}}, idempotent: \
                 true}}]\n"
            )
        };
        let repair = "      repair:\n        trigger: {condition: spec.size > 2}\n        steps: [{name: all, apply: [pod]}]\n";
        let grow = "      grow:\n        trigger: {schedule: \"0 0 * * *\"}\n        steps: [{name: more, patch: {apiVersion: \
             example.org/v1, kind: Shop, name: \"{{ name }}\", merge: {spec: {size: 3}}}}]\n";
        let mut parts = CHILD.to_owned() + deploy;
        let mut levels = vec![shop(&parts, POD)];
        for part in [update, &exec("backup"), &exec("restore"), repair, CONDITION, grow] {
            if part == CONDITION {
                parts.insert_str(0, part);
            } else {
                parts += part;
            }
            levels.push(shop(&parts, POD));
        }
        let numbers: Vec<u8> = levels.iter().map(|one| one.level.map_or(0, Level::number)).collect();
        assert_eq!(numbers, [1, 2, 2, 2, 3, 4, 5]);
        let last = levels.last().map(|one| &one.kinds[0].rating).unwrap();
        let what: Vec<&str> = last.reasons.iter().map(|reason| reason.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "1 child",
                "plan update (upgraded, changed)",
                "plan backup, step run",
                "plan restore, step run",
                "plan repair (condition)",
                "child pod (port for metrics)",
                "condition Slow",
                "plan grow (schedule), which patches Shop",
                "plan repair (condition)",
                "plan grow (schedule)",
            ]
        );
        assert_eq!(last.missing, Vec::<&str>::new());
        assert_eq!(levels[2].kinds[0].rating.missing, [Feature::Restore.lack(), Feature::Recovery.lack()]);
        // A higher level does not count without those below it.
        let early = shop(&(CONDITION.to_owned() + CHILD + deploy), POD);
        assert_eq!(early.level, Some(Level::BasicInstall));
    }

    #[test]
    fn a_name_alone_is_no_backup() {
        let fails = "    plans:\n      backup:\n        steps: [{name: later, fail: {message: not yet}}]\n";
        let waits = "    plans:\n      backup:\n        steps: [{name: apply, apply: [pod]}]\n";
        for plans in [fails, waits] {
            let rating = shop(&(CHILD.to_owned() + plans), POD).kinds.remove(0).rating;
            assert!(rating.reasons.iter().all(|reason| reason.feature != Feature::Backup), "{rating:?}");
        }
        // A kind without children whose plans only fail makes nothing.
        assert_eq!(shop(fails, POD).level, None);
    }

    #[test]
    fn a_kind_that_works_for_another_is_rated_with_it() {
        let load = |name: &str| capability(&crate::load::operator(name));
        let etcd = load("etcd");
        assert_eq!(etcd.level, Some(Level::FullLifecycle));
        let kind = |name: &str| etcd.kinds.iter().find(|kind| kind.kind == name).unwrap();
        assert_eq!(kind("EtcdBackup").serves, ["EtcdCluster"]);
        assert_eq!(kind("EtcdBackup").rating.level, Some(Level::BasicInstall));
        let has = |what: &str| kind("EtcdCluster").rating.reasons.iter().any(|reason| reason.what == what);
        assert!(has("EtcdBackup plan take, step snapshot"), "{:?}", kind("EtcdCluster"));
        assert_eq!(load("webapp").level, Some(Level::SeamlessUpgrades));
        assert_eq!(load("flight-ticket").level, Some(Level::SeamlessUpgrades));
    }
}

//! What a revision of a package may do, where it is installed: its rights, and the hosts that it calls.

use std::collections::BTreeSet;

use super::objects::Placement;
use super::rules::{Place, Right, Rights};
use crate::package::plan::{Action, Http, Step};
use crate::package::powers::Power;
use crate::package::{Call, Package, RefSource};
use crate::template::UrlPart;

/// How many namespaces a sentence names.
const NAMED: usize = 5;

/// What a revision of a package may do, where it is installed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Demands {
    /// The rights of its account. The place of each is all namespaces, one, or none.
    pub(super) rights: Rights,
    /// Those of its rights by which an instance writes into namespaces that it chooses.
    pub(super) chosen: Rights,
    /// What its pods may do beside what is in them.
    pub(super) powers: BTreeSet<Power>,
    /// The hosts that its steps and observations call.
    pub(super) calls: BTreeSet<String>,
    /// Group and plural of its own kinds.
    pub(super) own: BTreeSet<(String, String)>,
    /// The manager's namespace.
    pub(super) manager: String,
}

impl Demands {
    /// The demands of a revision with these derived rights.
    pub fn of(package: &Package, rights: &Rights, at: &Placement) -> Self {
        let own = package.resources.iter().map(|resource| &resource.kind);
        let is_chosen = |right: &&Right| right.place == Place::Everywhere && !is_read(right);
        Self {
            chosen: rights.iter().filter(is_chosen).cloned().collect(),
            powers: package.powers.all(),
            rights: rights.iter().flat_map(|right| placed(right, at)).collect(),
            calls: calls(package),
            own: own.map(|kind| (kind.group.clone(), kind.plural.clone())).collect(),
            manager: at.manager_namespace.clone(),
        }
    }

    /// The same, without rights that are not granted.
    #[must_use]
    pub fn granted_by(&self, granted: &Rights) -> Self {
        let of = |rights: &Rights| rights.iter().filter(|right| granted.grants(right)).cloned().collect();
        Self { rights: of(&self.rights), chosen: of(&self.chosen), ..self.clone() }
    }

    /// The demands of several revisions at once.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.rights.extend(other.rights.iter().cloned());
        self.chosen.extend(other.chosen.iter().cloned());
        self.powers.extend(other.powers);
        self.calls.extend(other.calls);
        self.own.extend(other.own);
        self
    }

    /// Whether a right is to a kind of the package itself.
    pub(super) fn is_own(&self, right: &Right) -> bool {
        let plural = right.resource.split('/').next().unwrap_or_default();
        self.own.contains(&(right.group.clone(), plural.to_owned()))
    }
}

/// Whether a right is only to read.
pub(super) fn is_read(right: &Right) -> bool {
    matches!(right.verb.as_str(), "get" | "list" | "watch")
}

/// A right in the places where it is granted.
pub(super) fn placed(right: &Right, at: &Placement) -> Vec<Right> {
    let in_namespace = |name: &String| Right { place: Place::Namespace(name.clone()), ..right.clone() };
    match (&right.place, &at.namespaces) {
        (Place::Home, Some(all)) => all.iter().map(in_namespace).collect(),
        (Place::Home, None) => vec![Right { place: Place::Everywhere, ..right.clone() }],
        (Place::Manager, _) => vec![in_namespace(&at.manager_namespace)],
        _ => vec![right.clone()],
    }
}

/// The places in words, such as ` in all namespaces`; empty for objects without a namespace.
pub(super) fn places_text(places: &BTreeSet<&Place>) -> String {
    if places.contains(&Place::Everywhere) {
        return " in all namespaces".to_owned();
    }
    let names = places.iter().filter_map(|place| match place {
        Place::Namespace(name) => Some(name.as_str()),
        _ => None,
    });
    let names: Vec<&str> = names.collect();
    let shown = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => String::new(),
        count if count > NAMED => format!(" in {shown} and {} more namespaces", count - NAMED),
        _ => format!(" in {shown}"),
    }
}

/// The hosts that steps and observations call.
fn calls(package: &Package) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for resource in &package.resources {
        for reference in &resource.refs {
            if let RefSource::Observe(observation) = &reference.target
                && let Call::Http(http) = &observation.call
            {
                found.extend(hosts(package, http));
            }
        }
        for plan in &resource.plans {
            of_steps(package, &plan.steps, &mut found);
        }
    }
    found
}

fn of_steps(package: &Package, steps: &[Step], found: &mut BTreeSet<String>) {
    for step in steps {
        match &step.action {
            Action::Steps(_, steps) => of_steps(package, steps, found),
            Action::Http(http) => found.extend(hosts(package, http)),
            _ => {}
        }
    }
}

/// The hosts that a request may go to.
fn hosts(package: &Package, http: &Http) -> Vec<String> {
    if http.to.is_some() {
        return Vec::new(); // a pod of a child
    }
    if !http.hosts.is_empty() {
        return http.hosts.clone();
    }
    if let Some(url) = http.url.as_literal() {
        return vec![host(url.as_str().unwrap_or_default())];
    }
    let values = package.engine.url_values(&http.url).unwrap_or_default();
    let computed = values.iter().find(|value| value.part == UrlPart::Authority).map(|value| {
        let (source, span) = (&value.location.source.text, value.location.span);
        let written = source.get(span.start..span.end).unwrap_or_default().trim();
        let default = written.strip_prefix("defaults.").and_then(|name| package.defaults[name].as_str());
        default.map_or_else(|| format!("the host in `{written}`"), host)
    });
    let literal = || {
        let first = http.url.location()?;
        let before = first.source.text.get(..first.span.start)?;
        Some(host(&before[before.rfind("://")?..]))
    };
    computed.or_else(literal).into_iter().collect()
}

/// The host of a URL.
fn host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default().trim().to_owned()
}

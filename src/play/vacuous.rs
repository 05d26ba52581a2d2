//! Finds what cases say that could not be otherwise: that something is absent that nothing ever has, or nothing after a change.
//!
//! What is known of a whole package counts: names that cases use as those of what is there, names that templates give, and fields of
//! schemas. The rest the case must show by itself, so that it has the same verdict alone and among others.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use operetta_lang::schema::{Lookup, Schema};
use serde_json::Value;

use super::absence::{Absence, Claim, Owner, Place};
use super::catalog::Catalog;
use super::suite::{Action, Case, Check, Expect, Step, Suite};
use super::witness::has;
use crate::diag::{Diagnostic, Location, Span};
use crate::package::decode::At;
use crate::package::made;
use crate::package::test_file::{Part, Partial};
use crate::template::{Pattern, PatternPart};
use crate::yaml::{Node, NodeValue};

/// The key of a part that stands for the conditions of the status.
const CONDITIONS: &str = "conditions";

/// The mistake of a case that expects nothing after its last change.
pub(super) fn without_expectation(case: &Case) -> Option<Diagnostic> {
    let own = &case.steps[case.before..];
    let last = own.iter().rposition(changes);
    let rest = &own[last.map_or(0, |last| last + 1)..];
    let has_invariants = case.invariants.len() > case.shared;
    if has_invariants || rest.iter().any(|step| !changes(step) && !matches!(step.action, Action::Wait(_))) {
        return None;
    }
    let (message, at) = match last {
        Some(last) => ("the case expects nothing after its last change", &own[last].location),
        None => ("the case expects nothing", &case.location),
    };
    let error = Diagnostic::error("test::vacuous", message).located(at.clone());
    Some(error.help("add a step `expect`, or an expression to its `always` or `never`"))
}

/// Whether a step changes something and expects nothing itself.
fn changes(step: &Step) -> bool {
    step.refused.is_none() && !matches!(step.action, Action::Expect(_) | Action::Exec(_) | Action::Wait(_))
}

/// What the cases of a package use as what is there.
pub(super) struct Known<'s> {
    /// The kinds and names of objects.
    names: BTreeSet<(&'s str, &'s str)>,
    /// The members of children, by id and key.
    members: BTreeSet<(&'s str, &'s str)>,
    parts: Vec<(Owner, &'s Value)>,
    suites: &'s [Suite],
    /// The names that templates give; computed once they are needed.
    given: OnceCell<Vec<Given>>,
}

/// A name that a template gives to an object.
struct Given {
    kind: String,
    name: Pattern,
    /// Whether it is an object of an instance that may itself be a child: then no case need say the name of the instance.
    is_nested: bool,
}

impl<'s> Known<'s> {
    pub(super) fn of(suites: &'s [Suite]) -> Self {
        let (names, members, parts) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let mut known = Self { names, members, parts, suites, given: OnceCell::new() };
        for step in suites.iter().flat_map(|suite| &suite.cases).flat_map(|case| &case.steps) {
            if step.refused.is_none() {
                known.note(&step.action);
            }
        }
        known
    }

    fn note(&mut self, action: &'s Action) {
        match action {
            Action::Apply(objects) => {
                let named = objects.iter().filter_map(|object| {
                    Some((object.value["kind"].as_str()?, object.value["metadata"]["name"].as_str()?))
                });
                self.names.extend(named);
                let parts = objects.iter().filter_map(|object| {
                    Some((Owner::Kind(object.value["kind"].as_str()?.to_owned()), &object.value))
                });
                self.parts.extend(parts);
            }
            Action::Patch(address, _) | Action::Delete(address) => {
                self.names.insert((address.kind.as_str(), address.name.as_str()));
            }
            Action::Exec(command) => drop(self.names.insert(("Pod", command.pod.as_str()))),
            Action::Expect(expect) => {
                for (owner, part) in parts(expect) {
                    self.parts.push((owner, &part.value.value));
                }
                for (_, address, partial) in &expect.objects {
                    if let Partial::Part(_) = partial {
                        self.names.insert((address.kind.as_str(), address.name.as_str()));
                    }
                }
                for (name, partial) in &expect.children {
                    if let (Some(member), Partial::Part(_)) = (member(&name.value), partial) {
                        self.members.insert(member);
                    }
                }
            }
            _ => {}
        }
    }

    /// What a case must show to be there.
    pub(super) fn claims(&self, case: &Case, catalog: &Catalog<'_>) -> Vec<Claim> {
        let mut said: BTreeMap<Absence, Location> = BTreeMap::new();
        let mut say = |absence: Absence, at: Location| {
            said.entry(absence).or_insert(at);
        };
        for invariant in &case.invariants {
            sought(&invariant.expression, &mut say);
        }
        for step in &case.steps {
            let Action::Expect(expect) = &step.action else { continue };
            for check in &expect.that {
                sought(check, &mut say);
            }
            if let Some(Partial::Absent(absent)) = &expect.instance {
                say(Absence::Instance, absent.at.clone());
            }
            for (name, address, partial) in &expect.objects {
                if let Partial::Absent(_) = partial {
                    let (namespace, kind) = (address.namespace.clone(), address.kind.clone());
                    say(Absence::Object { namespace, kind, name: address.name.clone() }, name.at.clone());
                }
            }
            for (name, partial) in &expect.children {
                let is_absent = match partial {
                    Partial::Absent(_) => true,
                    Partial::Count(count) => count.value == 0,
                    Partial::Part(_) => false,
                };
                if let Some((id, key)) = member(&name.value).filter(|_| is_absent) {
                    say(Absence::Member { id: id.to_owned(), key: key.to_owned() }, name.at.clone());
                }
            }
            for (owner, part) in parts(expect) {
                let mut found = Vec::new();
                nulls(&part.value.node, &mut Vec::new(), &mut found);
                for (places, span) in found {
                    say(Absence::Value(owner.clone(), places), Location::new(&part.at.source, span));
                }
            }
        }
        said.into_iter()
            .filter(|(absence, _)| !self.is_possible(absence, catalog, case))
            .map(|(absence, at)| {
                let like = self.like(&absence);
                Claim::new(absence, at, like.iter().map(String::as_str))
            })
            .collect()
    }

    /// Whether the absence of something says something in any case.
    fn is_possible(&self, absence: &Absence, catalog: &Catalog<'_>, case: &Case) -> bool {
        match absence {
            Absence::Instance => false,
            Absence::Object { kind, name, .. } => self.is_name(kind, name, false),
            Absence::Named { kind, name, is_start } => self.is_name(kind, name, *is_start),
            Absence::Member { id, key } => self.members.contains(&(id.as_str(), key.as_str())),
            Absence::Value(owner, places) => {
                is_declared(owner, places, catalog, case)
                    || self.parts.iter().any(|(of, part)| of == owner && has(part, places))
            }
        }
    }

    fn is_name(&self, kind: &str, name: &str, is_start: bool) -> bool {
        let is_used = |used: &str| if is_start { used.starts_with(name) } else { used == name };
        if self.names.iter().any(|&(of, used)| of == kind && is_used(used)) {
            return true;
        }
        let mut wanted = Pattern::literal(name);
        if is_start {
            wanted.0.push(PatternPart::Unknown);
        }
        self.given().iter().any(|one| one.kind == kind && !wanted.differs(&one.name))
    }

    fn given(&self) -> &[Given] {
        self.given.get_or_init(|| given(self.suites, &self.names))
    }

    /// Whether a claim is a mistake whatever is played: an absent object has nearly the name of another one, and only children of
    /// instances that cases apply are of its kind.
    pub(super) fn is_mistake(&self, claim: &Claim) -> bool {
        let Absence::Object { kind, name, .. } = &claim.absence else { return false };
        let mut of_kind = self.given().iter().filter(|one| one.kind == *kind).peekable();
        // Short names are all alike.
        claim.meant.is_some()
            && name.len() > 3
            && of_kind.peek().is_some()
            && of_kind.all(|one| !one.is_nested)
    }

    /// The names like which one may be meant.
    fn like(&self, absence: &Absence) -> Vec<String> {
        let (all, of) = match absence {
            Absence::Object { kind, .. } | Absence::Named { kind, .. } => (&self.names, kind),
            Absence::Member { id, .. } => (&self.members, id),
            Absence::Instance | Absence::Value(..) => return Vec::new(),
        };
        let used = all.iter().filter(|(owner, _)| *owner == of.as_str()).map(|(_, name)| (*name).to_owned());
        let is_object = !matches!(absence, Absence::Member { .. });
        let given = self.given().iter().filter(|one| is_object && one.kind == *of);
        used.chain(given.filter_map(|one| one.name.as_literal())).collect()
    }
}

/// The names that templates give to the objects of the instances that cases apply.
fn given(suites: &[Suite], names: &BTreeSet<(&str, &str)>) -> Vec<Given> {
    let mut of_kind: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for &(kind, name) in names {
        of_kind.entry(kind).or_default().push(name);
    }
    let upgrades = suites.iter().flat_map(|suite| &suite.cases).flat_map(|case| &case.steps);
    let upgrades = upgrades.filter_map(|step| match &step.action {
        Action::Upgrade(package) => Some(package),
        _ => None,
    });
    let mut packages: Vec<_> = suites.iter().flat_map(|suite| &suite.packages).chain(upgrades).collect();
    packages.sort_by(|a, b| a.digest.cmp(&b.digest));
    packages.dedup_by(|a, b| a.digest == b.digest);
    let all: Vec<_> = packages.into_iter().flat_map(|package| made(package)).collect();
    let kinds: BTreeSet<&str> = all.iter().map(|one| &*one.kind).collect();
    let mut given = Vec::new();
    for one in &all {
        let owner = &*one.resource.kind.kind;
        let instances = of_kind.get(owner).map_or(&[][..], Vec::as_slice);
        let names: Vec<PatternPart> = if !one.name.has_instance() || instances.is_empty() {
            vec![PatternPart::Unknown]
        } else {
            instances.iter().map(|instance| PatternPart::Text((*instance).to_owned())).collect()
        };
        for name in &names {
            let named = |part: &PatternPart| match part {
                PatternPart::Instance => name.clone(),
                part => part.clone(),
            };
            given.push(Given {
                kind: one.kind.clone(),
                name: Pattern(one.name.0.iter().map(named).collect()),
                is_nested: kinds.contains(owner),
            });
        }
    }
    given
}

fn sought(check: &Check, say: &mut impl FnMut(Absence, Location)) {
    for one in check.expr.sought() {
        say(Absence::Named { kind: one.kind, name: one.name, is_start: one.is_start }, one.location);
    }
}

fn part(partial: &Partial) -> Option<&At<Part>> {
    match partial {
        Partial::Part(part) => Some(part),
        Partial::Absent(_) | Partial::Count(_) => None,
    }
}

/// The parts of objects that a step expects.
fn parts(expect: &Expect) -> Vec<(Owner, &At<Part>)> {
    let instance = expect.instance.as_ref().and_then(part).map(|part| (Owner::Instance, part));
    let children = expect.children.iter().filter_map(|(name, partial)| {
        let id = name.value.split('[').next().unwrap_or_default();
        Some((Owner::Child(id.to_owned()), part(partial)?))
    });
    let objects = expect
        .objects
        .iter()
        .filter_map(|(_, address, partial)| Some((Owner::Kind(address.kind.clone()), part(partial)?)));
    instance.into_iter().chain(children).chain(objects).collect()
}

/// The id and the key of a member of a child: `members[0]`.
fn member(name: &str) -> Option<(&str, &str)> {
    let (id, key) = name.split_once('[')?;
    Some((id, key.trim_end_matches(']').trim_matches(['\'', '"'])))
}

/// The paths of nulls in a part.
fn nulls(node: &Node, places: &mut Vec<Place>, found: &mut Vec<(Vec<Place>, Span)>) {
    match &node.value {
        NodeValue::Map(entries) => {
            for (key, value) in entries {
                places.push(Place::Key(key.as_str().unwrap_or_default().to_owned()));
                if value.is_null() {
                    found.push((places.clone(), key.span));
                } else {
                    nulls(value, places, found);
                }
                places.pop();
            }
        }
        NodeValue::Seq(items) => {
            places.push(Place::Items);
            for item in items {
                nulls(item, places, found);
            }
            places.pop();
        }
        _ => {}
    }
}

/// Whether the schemas of the objects name the path, or the package the condition.
fn is_declared(owner: &Owner, places: &[Place], catalog: &Catalog<'_>, case: &Case) -> bool {
    let subject = catalog.subject(case);
    let none = BTreeSet::new();
    let kinds = match owner {
        Owner::Child(id) => catalog.children.get(id.as_str()).unwrap_or(&none),
        Owner::Instance | Owner::Kind(_) => &none,
    };
    let is_kind = |gvk: &crate::api::Gvk| match owner {
        Owner::Instance => subject.as_ref() == Some(gvk),
        Owner::Child(_) => kinds.contains(gvk),
        Owner::Kind(kind) => *gvk.kind == **kind,
    };
    if let [Place::Key(first), Place::Key(name), rest @ ..] = places
        && first == CONDITIONS
    {
        // The fields of conditions are checked already.
        let mut instances = catalog.instances.iter();
        return !rest.is_empty()
            || instances.any(|(gvk, types)| is_kind(gvk) && types.contains_key(name.as_str()));
    }
    catalog.schemas(is_kind).into_iter().any(|(_, schema)| names(schema, places))
}

/// Whether a schema names a path. A key of a map is not named.
fn names(schema: Schema<'_>, places: &[Place]) -> bool {
    let Some((first, rest)) = places.split_first() else { return true };
    let below = match first {
        Place::Items => schema.items(),
        Place::Key(key) => match schema.field(key) {
            Lookup::Known(below) => {
                let is_named = key == "metadata" || schema.fields().any(|(name, _)| name == key);
                Some(below).filter(|_| is_named)
            }
            Lookup::Unknown(_) | Lookup::Open => None,
        },
    };
    below.is_some_and(|below| names(below, rest))
}

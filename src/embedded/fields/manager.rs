//! `managedFields`: how writes change who owns which fields.

use std::fmt::Write as _;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::compare::{compare, same};
use super::merge::merge;
use super::remove::remove;
use super::set::Set;
use super::typed::field_set;
use crate::schema::Typed;

/// The most entries of updates that are kept apart.
const MAX_UPDATERS: usize = 10;

/// The entry for fields that existed before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Who writes: the identity of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) manager: String,
    pub(crate) is_apply: bool,
    pub(crate) version: String,
    pub(crate) subresource: String,
}

impl Owner {
    /// Whether an entry is this owner's. The version does not matter for applies.
    fn is(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.is_apply == other.is_apply
            && self.subresource == other.subresource
            && (self.is_apply || self.version == other.version)
    }

    /// As messages about conflicts name it.
    fn describe(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            let _ = write!(text, " with subresource {:?}", self.subresource);
        }
        text
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    owner: Owner,
    time: Option<String>,
    set: Set,
}

/// All entries of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Managed(Vec<Entry>);

/// Fields of other managers that an apply would change.
#[derive(Debug, Default)]
pub(crate) struct Conflicts(pub(crate) Vec<(String, Vec<String>)>);

/// What an update of fields needs to know of the kind.
pub(crate) struct Rules<'r, 'a> {
    /// The schema of a version of the kind, if it is served.
    pub(crate) schema: &'r dyn Fn(&str) -> Option<Typed<'a>>,
    /// Fields that writers of this subresource do not own.
    pub(crate) reset: &'r Set,
    pub(crate) now: &'r str,
    /// A new object of the kind, before anything is set.
    pub(crate) empty: &'r Value,
}

impl Managed {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads `metadata.managedFields`; `None` if it is invalid.
    pub(crate) fn parse(value: &Value) -> Option<Self> {
        let mut entries = Vec::new();
        for entry in value.as_array().map(Vec::as_slice).unwrap_or_default() {
            let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
            let is_apply = match entry["operation"].as_str() {
                Some("Apply") => true,
                Some("Update") => false,
                _ => return None,
            };
            if entry["fieldsType"] != "FieldsV1" && !entry["fieldsType"].is_null() {
                return None;
            }
            let owner = Owner {
                manager: text("manager"),
                is_apply,
                version: text("apiVersion"),
                subresource: text("subresource"),
            };
            let set =
                if entry["fieldsV1"].is_null() { Set::default() } else { Set::parse(&entry["fieldsV1"])? };
            entries.push(Entry { owner, time: entry["time"].as_str().map(str::to_owned), set });
        }
        Some(Self(entries))
    }

    /// The value of `metadata.managedFields`.
    pub(crate) fn to_json(&self) -> Value {
        let mut entries: Vec<&Entry> = self.0.iter().collect();
        entries.sort_by(|a, b| {
            let key = |e: &Entry| {
                (!e.owner.is_apply, e.time.clone(), e.owner.manager.clone(), e.owner.version.clone())
            };
            key(a).cmp(&key(b)).then_with(|| a.owner.subresource.cmp(&b.owner.subresource))
        });
        let json = entries.into_iter().map(|entry| {
            let mut map = Map::new();
            let mut put = |key: &str, value: &str| {
                if !value.is_empty() {
                    map.insert(key.to_owned(), value.into());
                }
            };
            put("manager", &entry.owner.manager);
            put("operation", if entry.owner.is_apply { "Apply" } else { "Update" });
            put("apiVersion", &entry.owner.version);
            put("time", entry.time.as_deref().unwrap_or_default());
            put("fieldsType", "FieldsV1");
            put("subresource", &entry.owner.subresource);
            map.insert("fieldsV1".to_owned(), Value::Object(entry.set.to_json()));
            Value::Object(map)
        });
        Value::Array(json.collect())
    }

    /// Equal but for the times.
    pub(crate) fn same_but_times(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().all(|a| other.0.iter().any(|b| a.owner == b.owner && a.set == b.set))
    }

    /// Removes fields that changed from the entries of all but `except`. Returns the conflicts, and changes nothing,
    /// if there are some and `force` is not set.
    fn take(
        &mut self,
        (old, new): (&Value, &Value),
        except: Option<&Owner>,
        force: bool,
        rules: &Rules<'_, '_>,
    ) -> Result<(), Conflicts> {
        self.0.retain(|entry| (rules.schema)(&entry.owner.version).is_some());
        let mut next = self.0.clone();
        let mut conflicts = Conflicts::default();
        for entry in &mut next {
            if except.is_some_and(|except| except.is(&entry.owner)) {
                continue;
            }
            let Some(typed) = (rules.schema)(&entry.owner.version) else { continue };
            let found = compare(typed, old, new).without(rules.reset);
            let changed = found.modified.below.union(&found.added.below);
            let conflict = entry.set.intersection(&changed);
            if !conflict.is_empty() {
                let mut manager = entry.owner.describe();
                if !entry.owner.is_apply {
                    let _ = write!(manager, " using {}", entry.owner.version);
                }
                conflicts.0.push((manager, conflict.paths()));
            }
            entry.set = entry.set.difference(&conflict).difference(&found.removed.below);
        }
        if !force && !conflicts.0.is_empty() {
            return Err(conflicts);
        }
        next.retain(|entry| !entry.set.is_empty());
        self.0 = next;
        Ok(())
    }

    /// Records an update of an object. `old` and `new` have no managedFields.
    pub(crate) fn update(&mut self, old: &Value, new: &Value, owner: &Owner, rules: &Rules<'_, '_>) {
        let Some(typed) = (rules.schema)(&owner.version) else { return };
        let found = compare(typed, old, new);
        // Nobody loses fields that the writer could not have changed.
        let _ = self.take((old, new), None, true, rules);
        let set = found.modified.below.union(&found.added.below).without(rules.reset);
        let set = set.difference(unowned());
        if !set.is_empty() {
            let time = Some(rules.now.to_owned());
            match self.0.iter_mut().find(|entry| owner.is(&entry.owner)) {
                Some(entry) => {
                    entry.set = set.union(&entry.set);
                    entry.time = time;
                }
                None => self.0.push(Entry { owner: owner.clone(), time, set }),
            }
        }
        for entry in &mut self.0 {
            entry.set = entry.set.difference(unowned());
        }
        self.0.retain(|entry| !entry.set.is_empty());
        self.cap();
    }

    /// Merges the oldest entries of updates if there are too many.
    fn cap(&mut self) {
        let mut updaters: Vec<usize> = (0..self.0.len()).filter(|at| !self.0[*at].owner.is_apply).collect();
        if updaters.len() <= MAX_UPDATERS {
            return;
        }
        updaters.sort_by(|a, b| {
            let (a, b) = (&self.0[*a], &self.0[*b]);
            a.time.cmp(&b.time).then_with(|| a.owner.manager.cmp(&b.owner.manager))
        });
        let excess = updaters.len() - MAX_UPDATERS;
        let oldest: Vec<Entry> = updaters[..=excess].iter().map(|at| self.0[*at].clone()).collect();
        self.0.retain(|entry| !oldest.contains(entry));
        for mut entry in oldest {
            "ancient-changes".clone_into(&mut entry.owner.manager);
            entry.owner.subresource = String::new();
            match self.0.iter_mut().find(|known| entry.owner.is(&known.owner)) {
                Some(known) => {
                    known.set = known.set.union(&entry.set);
                    known.time = known.time.take().max(entry.time);
                }
                None => self.0.push(entry),
            }
        }
    }

    /// Applies `config` to `live`; both have no managedFields. Returns the new object.
    pub(crate) fn apply(
        &mut self,
        live: &Value,
        config: &Value,
        owner: &Owner,
        force: bool,
        rules: &Rules<'_, '_>,
    ) -> Result<Value, Conflicts> {
        let Some(typed) = (rules.schema)(&owner.version) else { return Ok(live.clone()) };
        if self.0.is_empty() && !live["metadata"]["uid"].is_null() {
            let before = Owner {
                manager: BEFORE_FIRST_APPLY.to_owned(),
                is_apply: false,
                version: owner.version.clone(),
                subresource: owner.subresource.clone(),
            };
            self.update(rules.empty, live, &before, rules);
        }
        let merged = merge(Some(typed), Some(live), Some(config)).unwrap_or_default();
        let set = field_set(typed, config).without(rules.reset);
        let mut next = self.clone();
        let at = next.0.iter().position(|entry| owner.is(&entry.owner));
        let last = at.map(|at| next.0.remove(at));
        next.0.push(Entry {
            owner: owner.clone(),
            time: last.as_ref().and_then(|entry| entry.time.clone()),
            set,
        });
        let new = match &last {
            Some(last) if !last.set.is_empty() => next.prune(merged, last, rules),
            _ => merged,
        };
        next.take((live, &new), Some(owner), force, rules)?;
        for entry in &mut next.0 {
            entry.set = entry.set.difference(unowned());
        }
        next.0.retain(|entry| !entry.set.is_empty());
        *self = next;
        Ok(new)
    }

    /// Whether somebody owns a field.
    pub(crate) fn has_owner_of(&self, path: &Set) -> bool {
        self.0.iter().any(|entry| !entry.set.intersection(path).is_empty())
    }

    /// Removes the time of the entry of a writer, as the API server does for `scale`.
    pub(crate) fn forget_time(&mut self, owner: &Owner) {
        for entry in self.0.iter_mut().filter(|entry| owner.is(&entry.owner)) {
            entry.time = None;
        }
    }

    /// Sets the time of the entry of a writer.
    pub(crate) fn touch(&mut self, owner: &Owner, now: &str) {
        for entry in self.0.iter_mut().filter(|entry| owner.is(&entry.owner)) {
            entry.time = Some(now.to_owned());
        }
    }

    /// Removes what the last apply of a manager had and this one, already among the entries, has not, unless others
    /// own it.
    fn prune(&self, merged: Value, last: &Entry, rules: &Rules<'_, '_>) -> Value {
        let Some(typed) = (rules.schema)(&last.owner.version) else { return merged };
        let named = |set: &Set, typed: Typed<'_>| set.with_named(Some(typed));
        let mut pruned = remove(Some(typed), &merged, &named(&last.set, typed));
        let mut versions: Vec<&str> = vec![&last.owner.version];
        for entry in &self.0 {
            if !versions.contains(&&*entry.owner.version) {
                versions.push(&entry.owner.version);
            }
        }
        for version in versions {
            let of_version = self.0.iter().filter(|entry| entry.owner.version == version);
            let managed = of_version.fold(None, |all: Option<Set>, entry| {
                Some(all.map_or_else(|| entry.set.clone(), |all| all.union(&entry.set)))
            });
            if let (Some(managed), Some(typed)) = (managed, (rules.schema)(version)) {
                let all = named(&field_set(typed, &merged), typed);
                let kept = named(&field_set(typed, &pruned), typed).union(&named(&managed, typed));
                pruned = remove(Some(typed), &merged, &all.difference(&kept));
            }
        }
        let kept = named(&field_set(typed, &pruned), typed);
        let all = named(&field_set(typed, &merged), typed);
        let gone = all.difference(&kept).intersection(&named(&last.set, typed));
        remove(Some(typed), &merged, &gone)
    }
}

/// Fields that nobody owns.
fn unowned() -> &'static Set {
    static FIELDS: LazyLock<Set> = LazyLock::new(|| {
        let meta = |name| ["metadata", name];
        let names = [
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "generation",
            "managedFields",
            "resourceVersion",
        ];
        let paths = names.map(meta);
        let mut all: Vec<&[&str]> = paths.iter().map(|path| &path[..]).collect();
        all.extend([&["apiVersion"][..], &["kind"], &["metadata"]]);
        Set::of(&all)
    });
    &FIELDS
}

/// Whether an apply changed nothing.
pub(crate) fn unchanged(live: &Value, new: &Value) -> bool {
    same(live, new)
}

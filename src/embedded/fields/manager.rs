//! `managedFields`: how writes change who owns which fields.

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use operetta_kube_model::fields::{self, Entry, FieldSet, MANAGED, Owner, UNOWNED, same};
use serde_json::Value;

use super::merge::merge;
use super::remove::remove;
use super::rules::{Changes, Conflicts, Refused, Rules};
use super::typed::{add_named, field_set, reconcile};

/// The most entries of updates that are kept apart.
const MAX_UPDATERS: usize = 10;

/// The version of the subresource `scale`.
const SCALE: &str = "autoscaling/v1";

/// The entry for fields that existed before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// A writer as messages about conflicts name it.
fn described(owner: &Owner) -> String {
    let mut text = format!("{:?}", owner.manager);
    if !owner.subresource.is_empty() {
        let _ = write!(text, " with subresource {:?}", owner.subresource);
    }
    if !owner.is_apply {
        let _ = write!(text, " using {}", owner.version);
    }
    text
}

/// All entries of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Managed(Vec<Entry>);

impl Managed {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes `metadata.managedFields` of an object and returns its value.
    pub(crate) fn remove(object: &mut Value) -> Value {
        let meta = object.get_mut("metadata").and_then(Value::as_object_mut);
        meta.and_then(|meta| meta.remove(MANAGED)).unwrap_or_default()
    }

    /// Removes `metadata.managedFields` of an object and reads it; `None` if it is invalid.
    pub(crate) fn take(object: &mut Value) -> Option<Self> {
        Self::parse(&Self::remove(object))
    }

    /// Writes `metadata.managedFields` of an object, if there are managers.
    pub(crate) fn put(&self, object: &mut Value) {
        if !self.is_empty() {
            let mut sorted = self.clone();
            sorted.sort();
            object["metadata"][MANAGED] = fields::to_value(&sorted.0);
        }
    }

    /// Reads `metadata.managedFields`; `None` if it is invalid.
    pub(crate) fn parse(value: &Value) -> Option<Self> {
        fields::read(value).map(Self)
    }

    /// Sorts the entries as the server stores them.
    pub(crate) fn sort(&mut self) {
        fields::sort(&mut self.0);
    }

    /// Writes `metadata.managedFields`.
    pub(crate) fn write(&self, out: &mut String) {
        fields::write(&self.0, out);
    }

    /// Equal but for the times, once both are sorted. A later time may change the order: then a write that changes nothing else is
    /// stored, and the object gets another version.
    pub(crate) fn same_but_times(&self, stored: &Self) -> bool {
        self.0.len() == stored.0.len()
            && self.0.iter().zip(&stored.0).all(|(a, b)| a.owner == b.owner && a.fields == b.fields)
    }

    /// Equal but for the times and the order.
    pub(crate) fn same_in_any_order(&self, stored: &Self) -> bool {
        let has = |entry: &Entry| stored.0.iter().any(|a| a.owner == entry.owner && a.fields == entry.fields);
        self.0.len() == stored.0.len() && self.0.iter().all(has)
    }

    /// Of two entries of one owner, which `scale` may leave, the last is read.
    fn dedupe(&mut self) {
        let mut at = 0;
        while let Some(entry) = self.0.get(at) {
            if self.0.iter().skip(at + 1).any(|later| later.owner.is(&entry.owner)) {
                self.0.remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Drops entries of versions that no built-in kind has, and follows changes of schemas. Fails if the live object cannot
    /// be read in the version of an entry.
    fn reconcile(&mut self, live: &Value, rules: &Rules<'_, '_>) -> Result<(), String> {
        self.dedupe();
        let mut result = Ok(());
        self.0.retain_mut(|entry| match rules.view(&entry.owner.version, live) {
            Ok(Some((typed, _))) => {
                if rules.is_custom {
                    let mut set = entry.set().clone();
                    if reconcile(&mut set, typed) {
                        entry.fields = set.into();
                    }
                }
                true
            }
            Ok(None) => false,
            Err(why) => {
                result = Err(why);
                true
            }
        });
        result
    }

    /// Removes fields that changed from the entries of all but `except`. Returns the conflicts, and changes nothing,
    /// if there are some and `force` is not set.
    fn release(
        &mut self,
        objects: (&Value, &Value),
        changes: &mut Changes,
        except: Option<&Owner>,
        force: bool,
        rules: &Rules<'_, '_>,
    ) -> Result<(), Refused> {
        let mut next = self.0.clone();
        let mut conflicts = Conflicts::default();
        for entry in &mut next {
            if except.is_some_and(|except| except.is(&entry.owner)) {
                continue;
            }
            let Some(found) = changes.of(&entry.owner.version, objects, rules)? else { continue };
            let (changed, removed) = &*found;
            if entry.set().intersects(changed) {
                let conflict = entry.set().intersection(changed);
                conflicts.0.push((described(&entry.owner), conflict.paths()));
                entry.subtract(&conflict);
            }
            entry.subtract(removed);
        }
        if !force && !conflicts.0.is_empty() {
            return Err(Refused::Conflicts(conflicts));
        }
        next.retain(|entry| !entry.set().is_empty());
        self.0 = next;
        Ok(())
    }

    /// Records an update of an object. `old` and `new` have no managedFields.
    pub(crate) fn update(&mut self, old: &Value, new: &Value, owner: &Owner, rules: &Rules<'_, '_>) {
        // The API server removes the managers that it cannot compute.
        if self.try_update(old, new, owner, rules).is_err() {
            self.0.clear();
        }
    }

    fn try_update(
        &mut self,
        old: &Value,
        new: &Value,
        owner: &Owner,
        rules: &Rules<'_, '_>,
    ) -> Result<(), Refused> {
        self.reconcile(old, rules)?;
        let mut changes = Changes::default();
        // Nobody loses fields that the writer could not have changed.
        self.release((old, new), &mut changes, None, true, rules)?;
        let Some(found) = changes.of(&owner.version, (old, new), rules)? else { return Ok(()) };
        let mut set = found.0.clone();
        set.subtract(unowned());
        if !set.is_empty() {
            let time = Some(rules.now.to_owned());
            match self.0.iter_mut().find(|entry| owner.is(&entry.owner)) {
                Some(entry) => {
                    entry.add(&set);
                    entry.time = time;
                }
                None => self.0.push(Entry { owner: Arc::new(owner.clone()), time, fields: set.into() }),
            }
        }
        self.settle();
        self.cap();
        Ok(())
    }

    /// Removes what nobody owns, and entries that are empty.
    fn settle(&mut self) {
        for entry in &mut self.0 {
            entry.subtract(unowned());
        }
        self.0.retain(|entry| !entry.set().is_empty());
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
            let owner = Arc::make_mut(&mut entry.owner);
            "ancient-changes".clone_into(&mut owner.manager);
            owner.subresource = String::new();
            match self.0.iter_mut().find(|known| entry.owner.is(&known.owner)) {
                Some(known) => {
                    known.add(entry.set());
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
    ) -> Result<Value, Refused> {
        let Some(typed) = (rules.schema)(&owner.version) else { return Ok(live.clone()) };
        if self.0.is_empty() && !live["metadata"]["uid"].is_null() {
            let before = Owner {
                manager: BEFORE_FIRST_APPLY.to_owned(),
                is_apply: false,
                version: owner.version.clone(),
                subresource: owner.subresource.clone(),
            };
            self.update(&(rules.empty)(), live, &before, rules);
        }
        let merged = merge(Some(typed), Some(live), Some(config)).unwrap_or_default();
        let mut set = field_set(typed, config);
        set.cut(rules.reset);
        let mut next = self.clone();
        next.reconcile(live, rules)?;
        let at = next.0.iter().position(|entry| owner.is(&entry.owner));
        let last = at.map(|at| next.0.remove(at));
        let is_smaller = last
            .as_ref()
            .is_some_and(|last| last.owner.version != owner.version || !last.set().is_subset(&set));
        let time = last.as_ref().and_then(|entry| entry.time.clone());
        next.0.push(Entry { owner: Arc::new(owner.clone()), time, fields: set.into() });
        let new = match &last {
            Some(last) if is_smaller => next.prune(&merged, last, &owner.version, rules)?,
            _ => merged,
        };
        next.release((live, &new), &mut Changes::default(), Some(owner), force, rules)?;
        next.settle();
        let applied = next.0.iter_mut().find(|entry| owner.is(&entry.owner));
        if let (Some(last), Some(applied)) = (last, applied)
            && last.fields == applied.fields
        {
            applied.fields = last.fields;
        }
        *self = next;
        Ok(new)
    }

    /// The managers of the replicas as those of the subresource `scale`. `path` says where a version has its replicas.
    pub(crate) fn to_scale(&self, path: &dyn Fn(&str) -> Option<FieldSet>) -> Self {
        let mut managed = self.clone();
        managed.dedupe();
        managed
            .0
            .retain(|entry| path(&entry.owner.version).is_some_and(|path| entry.set().intersects(&path)));
        for entry in &mut managed.0 {
            SCALE.clone_into(&mut Arc::make_mut(&mut entry.owner).version);
            entry.fields = scale_replicas().clone().into();
        }
        managed
    }

    /// The managers of the object whose replicas `scale` manages now, in a version.
    pub(crate) fn with_scale(
        &self,
        scale: &Self,
        version: &str,
        path: &dyn Fn(&str) -> Option<FieldSet>,
    ) -> Self {
        let mut rest: Vec<&Entry> = scale.0.iter().collect();
        let mut all = Self::default();
        for entry in &self.0 {
            let Some(path) = path(&entry.owner.version) else { continue };
            let mut entry = entry.clone();
            if entry.set().intersects(&path) {
                // Updates are never found: their version is a part of them.
                match rest.iter().position(|kept| kept.owner.is(&entry.owner)) {
                    Some(at) => {
                        rest.remove(at);
                    }
                    None => entry.subtract(&path),
                }
            }
            if !entry.set().is_empty() {
                all.0.push(entry);
            }
        }
        let own = path(version).unwrap_or_default();
        for entry in rest.into_iter().filter(|entry| entry.set().intersects(scale_replicas())) {
            let owner = Owner { version: version.to_owned(), ..Owner::clone(&entry.owner) };
            all.0.push(Entry { owner: owner.into(), time: None, fields: own.clone().into() });
        }
        all
    }

    /// Sets the time of the entry of a writer.
    pub(crate) fn touch(&mut self, owner: &Owner, now: &str) {
        for entry in self.0.iter_mut().filter(|entry| owner.is(&entry.owner)) {
            entry.time = Some(now.to_owned());
        }
    }

    /// Removes what the last apply of a manager had and this one, already among the entries, has not, unless others
    /// own it.
    fn prune(
        &self,
        merged: &Value,
        last: &Entry,
        version: &str,
        rules: &Rules<'_, '_>,
    ) -> Result<Value, String> {
        let to_last = |object, what: &str| {
            let view = rules.view(&last.owner.version, object);
            view.map_err(|why| format!("failed to convert {what} object to last applied version: {why}"))
        };
        let Some((typed, merged)) = to_last(merged, "merged")? else { return Ok(merged.clone()) };
        let named = |mut set: FieldSet, typed| {
            add_named(&mut set, Some(typed));
            set
        };
        let mut pruned = remove(Some(typed), &merged, &named(last.set().clone(), typed));
        let mut versions: Vec<&str> = vec![&last.owner.version];
        for entry in &self.0 {
            if !versions.contains(&&*entry.owner.version) {
                versions.push(&entry.owner.version);
            }
        }
        for version in versions {
            let of_version = self.0.iter().filter(|entry| entry.owner.version == version);
            let sets = of_version.map(|entry| entry.set().clone());
            let Some(managed) = sets.reduce(|all, set| all.union(&set)) else { continue };
            let view = |object, what: &str| {
                rules.view(version, object).map_err(|why| {
                    format!("failed add back owned items: failed to convert {what} object at version {version}: {why}")
                })
            };
            let next = match (view(&merged, "merged")?, view(&pruned, "pruned")?) {
                (Some((typed, merged)), Some((_, pruned))) => {
                    let all = named(field_set(typed, &merged), typed);
                    let kept = named(field_set(typed, &pruned), typed).union(&named(managed, typed));
                    remove(Some(typed), &merged, &all.difference(&kept))
                }
                _ => continue,
            };
            pruned = next;
        }
        let Some((_, pruned)) = to_last(&pruned, "pruned")? else { return Ok(merged.into_owned()) };
        let kept = named(field_set(typed, &pruned), typed);
        let all = named(field_set(typed, &merged), typed);
        let gone = all.difference(&kept).intersection(&named(last.set().clone(), typed));
        let pruned = remove(Some(typed), &merged, &gone);
        let back = rules.view(version, &pruned)?.map(|(_, value)| value.into_owned());
        Ok(back.unwrap_or(pruned))
    }
}

/// Fields that nobody owns.
fn unowned() -> &'static FieldSet {
    static FIELDS: LazyLock<FieldSet> = LazyLock::new(|| {
        let paths = UNOWNED.map(|name| ["metadata", name]);
        let mut all: Vec<&[&str]> = paths.iter().map(|path| &path[..]).collect();
        all.extend([&["apiVersion"][..], &["kind"], &["metadata"]]);
        FieldSet::of(&all)
    });
    &FIELDS
}

/// Where `scale` has the replicas.
fn scale_replicas() -> &'static FieldSet {
    static FIELD: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::of(&[&["spec", "replicas"]]));
    &FIELD
}

/// Whether an apply changed nothing.
pub(crate) fn unchanged(live: &Value, new: &Value) -> bool {
    same(live, new)
}

//! Restoring a keyed list that another manager has edited.
//!
//! A Service port that is changed by hand from 80 to 81 is another item of the list: ours is gone, the other one has the
//! same name, and our apply, which adds ours again, is refused each time. An apply removes an item only if no other manager
//! owns it; so the item is moved into our entry first.
//!
//! The same holds for fields that exclude each other: a volume with another source has lost ours, and our apply would add a
//! second one. No schema names these fields; the refusal does.

use operetta_kube_model::fields::{FieldSet, Fit, Key, Owner, entries, read, same, to_value};
use serde_json::{Map, Value};

use super::owned::{of_manager, sets, take};
use super::path::FieldPath;

/// Items that stand in the way of our next apply: those of keyed lists in the live object (with its
/// managedFields) which the desired object does not have, where our entry lost an item that the desired object has,
/// or the name of one that they now have.
///
/// Only items that a plain write made are returned. What another manager applied is its declaration,
/// and what has no owner (filled in at admission) is no edit. Items that another manager merely added, while
/// all of ours are intact, are left alone.
pub fn conflicting_items(live: &Value, desired: &Value, manager: &str) -> Vec<FieldPath> {
    search(live, desired, manager).found
}

/// The fields of plain writes that the API server names as excluding ours: `fields` are the paths at fault of
/// a refusal which say so. A field is one of them if the server names it, or if the server names ours
/// and only one beside it can be meant. `None` if one of the paths is not explained so: then taking the fields
/// of the others would not make the apply pass.
pub fn excluding(live: &Value, desired: &Value, manager: &str, fields: &[String]) -> Option<Vec<FieldPath>> {
    let replaced = search(live, desired, manager).replaced;
    let mut found = Vec::new();
    for field in fields {
        let conflicting = named(&replaced, |fields, spell| fields.named(field, spell))?;
        if !found.contains(&conflicting) {
            found.push(conflicting);
        }
    }
    (!found.is_empty()).then_some(found)
}

/// The members of unions that the API server names as faults: maps that no manager owns and the desired object lacks, beside a text
/// that our apply changes. The text selects the member, and the server has set the map as the default for the former text. `faults`: the paths at fault of a refusal, in any words.
pub fn former_members<'a>(
    live: &Value,
    desired: &Value,
    manager: &str,
    faults: impl IntoIterator<Item = &'a str>,
) -> Vec<FieldPath> {
    let replaced = search(live, desired, manager).replaced;
    let member = |fault: &'a str| named(&replaced, |fields, spell| fields.former_member(fault, spell));
    faults.into_iter().filter_map(member).collect()
}

/// Whether no manager owns a field or something below it.
pub fn is_ownerless(live: &Value, path: &FieldPath) -> bool {
    entries(live).all(|entry| entry.set().at(&path.0).is_none())
}

/// How a path is compared: as it is, or without list indices.
type Spell = fn(&str) -> String;

/// The field that a path at fault is about. The index in our list may differ from that in the live one.
fn named(
    replaced: &[ReplacedFields],
    field: impl Fn(&ReplacedFields, Spell) -> Option<FieldPath>,
) -> Option<FieldPath> {
    let exact = replaced.iter().find_map(|fields| field(fields, str::to_owned));
    exact.or_else(|| {
        let mut alike = replaced.iter().filter_map(|fields| field(fields, without_indices));
        alike.next().filter(|_| alike.next().is_none())
    })
}

fn search(live: &Value, desired: &Value, manager: &str) -> Search {
    let of = |is_wanted: &dyn Fn(&Owner) -> bool| sets(live, is_wanted).collect::<FieldSet>();
    let ours = of_manager(live, manager).unwrap_or_default();
    let updates = of(&Owner::is_update);
    let applies = of(&|owner| owner.is_apply && owner.subresource.is_empty() && owner.manager != manager);
    let subresources = of(&|owner| !owner.subresource.is_empty());
    let mut search = Search::default();
    let here = Owners {
        ours: Some(&ours),
        updates: Some(&updates),
        applies: Some(&applies),
        subresources: Some(&subresources),
        is_owned_whole: false,
    };
    search.value(live, desired, here);
    search
}

/// A map in which our apply replaces something, and what it lacks of what is there.
#[derive(Debug)]
struct ReplacedFields {
    path: Vec<Key>,
    /// As the server writes it: `spec.volumes[0]`.
    text: String,
    /// If our entry lacks a field of the desired object, the fields of plain writes: name, and whether it is a map.
    theirs: Vec<(Box<str>, bool)>,
    /// Fields that no manager owns: the API server may have set them, or our entry has given them up.
    ownerless: Vec<(Box<str>, bool)>,
    /// Fields of the desired object, and whether they are maps.
    ours: Vec<(Box<str>, bool)>,
    /// Whether the apply changes a text of this map, which may say what belongs beside it.
    is_switched: bool,
}

impl ReplacedFields {
    /// The field of this map that a path at fault is about, if the server says that it excludes another one.
    fn named(&self, fault: &str, spell: Spell) -> Option<FieldPath> {
        let only = |fields: &mut dyn Iterator<Item = &(Box<str>, bool)>| {
            fields.next().filter(|_| fields.next().is_none()).cloned()
        };
        let (fault, here) = (spell(fault), spell(&self.text));
        let (name, _) = if fault == here {
            let all = if self.theirs.is_empty() { &self.ownerless } else { &self.theirs };
            only(&mut all.iter())?
        } else {
            let name = fault.strip_prefix(&here)?.strip_prefix('.')?;
            let mut others = self.theirs.iter().chain(&self.ownerless);
            if let Some(other) = others.find(|(other, _)| **other == *name) {
                other.clone()
            } else {
                let (_, is_map) = self.ours.iter().find(|(ours, _)| **ours == *name)?;
                let mut alike = self.theirs.iter().filter(|(_, other)| other == is_map);
                only(&mut alike).or_else(|| only(&mut self.theirs.iter()))?
            }
        };
        Some(self.path_of(name))
    }

    /// The map without an owner that a path at fault names, if the apply changes a text beside it.
    fn former_member(&self, fault: &str, spell: Spell) -> Option<FieldPath> {
        let (fault, here) = (spell(fault), spell(&self.text));
        let name = fault.strip_prefix(&here)?.strip_prefix('.').filter(|_| self.is_switched)?;
        let member = self.ownerless.iter().find(|(ownerless, is_map)| *is_map && **ownerless == *name);
        member.map(|(name, _)| self.path_of(name.clone()))
    }

    fn path_of(&self, name: Box<str>) -> FieldPath {
        FieldPath(self.path.iter().cloned().chain([Key::Field(name)]).collect())
    }
}

/// A path without list indices.
fn without_indices(path: &str) -> String {
    let mut rest = path;
    let mut out = String::new();
    while let Some((before, behind)) = rest.split_once('[') {
        out.push_str(before);
        rest = behind.split_once(']').map_or("", |(_, behind)| behind);
    }
    out + rest
}

impl FieldPath {
    /// Whether a path at fault, as the server writes it, lies in the list of this item, or is the list.
    pub fn is_in_list_of(&self, fault: &str) -> bool {
        let Some((Key::Item(_), list)) = self.0.split_last() else { return false };
        let list = list.iter().filter_map(Key::name).collect::<Vec<_>>().join(".");
        let fault = without_indices(fault);
        fault.strip_prefix(&list).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// The manager of the plain write that owns an item.
pub fn holder(live: &Value, item: &FieldPath) -> Option<String> {
    let entry = entries(live).find(|entry| entry.owner.is_update() && entry.set().at(&item.0).is_some())?;
    Some(entry.owner.manager.clone())
}

/// The managedFields in which our Apply entry owns these items, and the plain writes that did no
/// longer do. To be written by one JSON patch together with a test of the resourceVersion; the next
/// apply then removes the items. `None`: there is nothing to move, or no entry of ours to move it to.
pub fn move_to_ours(managed_fields: &Value, manager: &str, conflicting_items: &[FieldPath]) -> Option<Value> {
    let mut entries = read(managed_fields)?;
    let mut moved = FieldSet::default();
    for entry in entries.iter_mut().filter(|entry| entry.owner.is_update()) {
        for path in conflicting_items {
            if let Some(taken) = take(entry, &path.0) {
                moved.extend(&taken);
                // The item itself is moved, not only its fields. Otherwise the apply leaves an empty item.
                moved.extend(&FieldSet::leaf().under(&path.0));
            }
        }
    }
    entries.retain(|entry| !(entry.owner.is_update() && entry.set().is_empty()));
    let ours = entries.iter_mut().find(|entry| entry.owner.is_apply_of(manager))?;
    let mut owned = ours.set().union(&moved);
    let mut is_changed = !moved.is_empty();
    for path in conflicting_items.iter().filter(|path| moved.at(&path.0).is_none()) {
        is_changed |= claim(&mut owned, &path.0);
    }
    ours.fields = owned.into();
    is_changed.then(|| to_value(&entries))
}

/// Adds a field that no manager owns to our field set; `false` if our set lacks a list item that it is in, or has it.
fn claim(owned: &mut FieldSet, path: &[Key]) -> bool {
    let Some(Key::Field(_)) = path.last() else { return false };
    let is_ours = |(at, key): (usize, &Key)| matches!(key, Key::Field(_)) || owned.at(&path[..=at]).is_some();
    let is_claimed = path.iter().enumerate().all(is_ours) && owned.at(path).is_none();
    if is_claimed {
        owned.extend(&FieldSet::leaf().under(path));
    }
    is_claimed
}

/// The same node in our field set, in that of updates, in that of other appliers and in that of writes to subresources.
#[derive(Clone, Copy)]
struct Owners<'a> {
    ours: Option<&'a FieldSet>,
    updates: Option<&'a FieldSet>,
    applies: Option<&'a FieldSet>,
    subresources: Option<&'a FieldSet>,
    /// Whether a manager owns a node above as a whole.
    is_owned_whole: bool,
}

impl<'a> Owners<'a> {
    fn each(self, step: impl Fn(&'a FieldSet) -> Option<&'a FieldSet>) -> Self {
        Self {
            ours: self.ours.and_then(&step),
            updates: self.updates.and_then(&step),
            applies: self.applies.and_then(&step),
            subresources: self.subresources.and_then(&step),
            is_owned_whole: self.is_whole(),
        }
    }

    fn all(self) -> [Option<&'a FieldSet>; 4] {
        [self.ours, self.updates, self.applies, self.subresources]
    }

    /// Whether a manager owns the node with all that is in it.
    fn is_whole(self) -> bool {
        self.is_owned_whole || self.all().into_iter().flatten().any(FieldSet::is_leaf)
    }

    fn field(self, name: &str) -> Self {
        self.each(|node| node.field(name))
    }

    fn child(self, key: &Key) -> Self {
        self.each(|node| node.child(key))
    }

    /// The keys of all items of a keyed list that anybody owns.
    fn items(self) -> impl Iterator<Item = &'a Key> {
        [self.ours, self.updates, self.applies]
            .into_iter()
            .flatten()
            .flat_map(FieldSet::items)
            .map(|(key, _)| key)
    }
}

#[derive(Default)]
struct Search {
    path: Vec<Key>,
    /// The path as the server writes it.
    steps: Vec<String>,
    found: Vec<FieldPath>,
    replaced: Vec<ReplacedFields>,
}

impl Search {
    fn value(&mut self, live: &Value, desired: &Value, owners: Owners<'_>) {
        match (live, desired) {
            (Value::Object(live), Value::Object(desired)) => {
                self.place(live, desired, owners);
                for (name, wanted) in desired {
                    if let Some(value) = live.get(name) {
                        let dot = if self.steps.is_empty() { "" } else { "." };
                        self.below(Key::Field(name.as_str().into()), format!("{dot}{name}"), |search| {
                            search.value(value, wanted, owners.field(name));
                        });
                    }
                }
            }
            (Value::Array(live), Value::Array(desired)) => self.list(live, desired, owners),
            _ => {}
        }
    }

    fn below(&mut self, key: Key, step: String, look: impl FnOnce(&mut Self)) {
        self.path.push(key);
        self.steps.push(step);
        look(self);
        self.steps.pop();
        self.path.pop();
    }

    /// Notes what plain writes have put into a map from which our entry has lost something, and what no manager owns in a
    /// map of which we apply something new.
    fn place(&mut self, live: &Map<String, Value>, desired: &Map<String, Value>, owners: Owners<'_>) {
        let is_lost = desired.iter().any(|(name, wanted)| {
            let node = owners.ours.and_then(|ours| ours.field(name));
            !wanted.is_null() && node.is_none()
        });
        let is_switched =
            desired.iter().any(|(name, wanted)| wanted.is_string() && live.get(name) != Some(wanted));
        if !is_lost && !is_switched {
            return;
        }
        let is_replaced = is_lost && owners.ours.is_some_and(|ours| !ours.is_leaf());
        let named = |(name, value): (&String, &Value)| (name.as_str().into(), value.is_object());
        let beside = |is_wanted: &dyn Fn(Owners<'_>) -> bool| -> Vec<(Box<str>, bool)> {
            let fields = live.iter().filter(|(name, _)| !desired.contains_key(*name));
            fields.filter(|(name, _)| is_wanted(owners.field(name))).map(named).collect()
        };
        let theirs = beside(&|field| {
            is_replaced && field.updates.is_some() && field.applies.is_none() && field.ours.is_none()
        });
        let ownerless = beside(&|field| !field.is_whole() && field.all().iter().all(Option::is_none));
        if !theirs.is_empty() || !ownerless.is_empty() {
            let ours = desired.iter().map(named).collect();
            let (path, text) = (self.path.clone(), self.steps.concat());
            self.replaced.push(ReplacedFields { path, text, theirs, ownerless, ours, is_switched });
        }
    }

    fn list(&mut self, live: &[Value], desired: &[Value], owners: Owners<'_>) {
        // A live item says all key fields (the server filled them in), so its key is found exactly.
        let keys: Vec<Option<&Key>> =
            live.iter().map(|item| owners.items().find(|key| key.fits(item) == Some(Fit::Exact))).collect();
        let Some(sample) = owners.items().next() else { return };
        let owned = |index: usize| {
            let key = keys[index];
            key.and_then(|key| owners.ours?.child(key)).is_some_and(|node| node.member)
        };
        let pairs = pair(live, desired, sample, owned);
        let lost_item = pairs.iter().any(|pair| pair.is_none_or(|index| !owned(index)));
        let lost_name = |name: &Value| {
            desired.iter().zip(&pairs).any(|(item, pair)| {
                let ours = pair.and_then(|index| keys[index]).and_then(|key| owners.ours?.child(key));
                item.get("name") == Some(name) && ours.is_some_and(|node| node.field("name").is_none())
            })
        };
        for (index, item) in live.iter().enumerate() {
            let Some(key) = keys[index] else { continue };
            let place = owners.child(key);
            let edited = place.updates.is_some() && place.applies.is_none();
            if let Some(at) = pairs.iter().position(|pair| *pair == Some(index)) {
                // The desired item leaves a part of its key to the server, and another manager has set it.
                if edited && !owned(index) && key.fits(&desired[at]) != Some(Fit::Exact) {
                    self.found.push(self.here(key));
                    continue;
                }
                self.below(key.clone(), format!("[{index}]"), |search| {
                    search.value(item, &desired[at], place);
                });
                continue;
            }
            if edited && (lost_item || item.get("name").is_some_and(lost_name)) {
                self.found.push(self.here(key));
            }
        }
    }

    fn here(&self, key: &Key) -> FieldPath {
        FieldPath(self.path.iter().chain([key]).cloned().collect())
    }
}

/// For each item of the desired object, the live item of the same key, one that is ours first; `sample` is any key of
/// the list.
pub(super) fn pair(
    live: &[Value],
    desired: &[Value],
    sample: &Key,
    owned: impl Fn(usize) -> bool,
) -> Vec<Option<usize>> {
    let Key::Item(fields) = sample else { return vec![None; desired.len()] };
    let mut used = vec![false; live.len()];
    let mut pairs = vec![None; desired.len()];
    // First the items that say all of their key, then those that leave a part to the server's default.
    for partial in [false, true] {
        for (wanted, pair) in desired.iter().zip(&mut pairs) {
            let says_all = fields.iter().all(|(name, _)| wanted.get(&**name).is_some_and(|v| !v.is_null()));
            if pair.is_some() || says_all == partial {
                continue;
            }
            let fits = |index: &usize| {
                !used[*index]
                    && fields.iter().all(|(name, _)| match (wanted.get(&**name), live[*index].get(&**name)) {
                        (None | Some(Value::Null), _) => true,
                        (Some(own), Some(live)) => same(own, live),
                        (Some(_), None) => false,
                    })
            };
            let found = (0..live.len()).filter(fits).min_by_key(|index| !owned(*index));
            if let Some(index) = found {
                used[index] = true;
                *pair = Some(index);
            }
        }
    }
    pairs
}

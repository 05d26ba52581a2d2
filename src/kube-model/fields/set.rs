//! A set of fields.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::key::Key;

/// A set of fields: a place in an object, and the places of the set below it. Equal sets are equal values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FieldSet {
    /// Whether the place itself is in the set, not only some of what is below. The object itself never is.
    pub member: bool,
    /// Sorted. None of them is empty.
    below: Vec<(Key, FieldSet)>,
}

impl FieldSet {
    /// A place that is in the set, with nothing below.
    pub fn leaf() -> Self {
        Self { member: true, below: Vec::new() }
    }

    /// A set of fields of maps.
    pub fn of(paths: &[&[&str]]) -> Self {
        let keys = |path: &[&str]| path.iter().map(|name| Key::field(name)).collect::<Vec<_>>();
        paths.iter().filter(|path| !path.is_empty()).map(|path| Self::leaf().under(&keys(path))).collect()
    }

    /// The set that has this one at a path.
    #[must_use]
    pub fn under(self, path: &[Key]) -> Self {
        path.iter().rev().fold(self, |set, key| Self { member: false, below: vec![(key.clone(), set)] })
    }

    /// Reads `fieldsV1`; `None` if it is invalid.
    pub fn parse(fields_v1: &Value) -> Option<Self> {
        let mut set = Self::read(fields_v1)?;
        set.member = false;
        Some(set)
    }

    fn read(json: &Value) -> Option<Self> {
        let map = json.as_object()?;
        let mut pairs = Vec::with_capacity(map.len());
        for (raw, json) in map.iter().filter(|(raw, _)| *raw != ".") {
            let (kind, rest) = raw.split_at_checked(2)?;
            let key = match kind {
                "f:" => Key::field(rest),
                "k:" => {
                    let fields: Map<String, Value> = serde_json::from_str(rest).ok()?;
                    // No item has no key field at all. Here that means any item.
                    if fields.is_empty() {
                        continue;
                    }
                    Key::item(fields.into_iter().map(|(name, value)| (name.into(), value)))
                }
                "v:" => Key::value(serde_json::from_str(rest).ok()?),
                "i:" => Key::Index(rest.parse().ok()?),
                // The API server ignores kinds of keys that it does not know, too, so that new ones can be added.
                _ if kind.ends_with(':') => continue,
                _ => return None,
            };
            pairs.push((key, Self::read(json)?));
        }
        // `{}` is a place with nothing below.
        let member = map.contains_key(".") || pairs.is_empty();
        Some(Self { member, ..Self::of_pairs(pairs, &Self::united) })
    }

    /// The set that has these sets, none of them empty, at these keys. `unite` makes one set of those that are at one key.
    pub fn of_pairs(mut pairs: Vec<(Key, Self)>, unite: &dyn Fn(Vec<Self>) -> Self) -> Self {
        pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut below: Vec<(Key, Self)> = Vec::with_capacity(pairs.len());
        let mut pairs = pairs.into_iter().peekable();
        while let Some((key, set)) = pairs.next() {
            let mut more: Vec<Self> =
                std::iter::from_fn(|| pairs.next_if(|(next, _)| *next == key)).map(|(_, set)| set).collect();
            if more.is_empty() {
                below.push((key, set));
            } else {
                more.push(set);
                below.push((key, unite(more)));
            }
        }
        Self { member: false, below }
    }

    fn united(mut sets: Vec<Self>) -> Self {
        if sets.len() < 2 {
            return sets.pop().unwrap_or_default();
        }
        let member = sets.iter().any(|set| set.member);
        let pairs = sets.into_iter().flat_map(|set| set.below).collect();
        Self { member, ..Self::of_pairs(pairs, &Self::united) }
    }

    /// Writes `fieldsV1`.
    pub fn write(&self, out: &mut String) {
        out.push('{');
        if self.member && !self.below.is_empty() {
            out.push_str("\".\":{}");
        }
        for (key, set) in &self.below {
            if !out.ends_with('{') {
                out.push(',');
            }
            key.write(out);
            out.push(':');
            set.write(out);
        }
        out.push('}');
    }

    /// Whether nothing is in the set.
    pub fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }

    /// Whether the place is owned as a whole: nothing is known below it.
    pub fn is_leaf(&self) -> bool {
        self.member && self.below.is_empty()
    }

    /// What is directly below: fields come first, sorted by name.
    pub fn below(&self) -> &[(Key, Self)] {
        &self.below
    }

    /// What is directly below, to be changed. Nothing may become empty.
    pub fn below_mut(&mut self) -> impl Iterator<Item = (&Key, &mut Self)> {
        self.below.iter_mut().map(|(key, set)| (&*key, set))
    }

    /// The items of a keyed list.
    pub fn items(&self) -> impl Iterator<Item = &(Key, Self)> {
        self.below.iter().filter(|(key, _)| matches!(key, Key::Item(_)))
    }

    /// What is at a field of a map.
    pub fn field(&self, name: &str) -> Option<&Self> {
        let order = |key: &Key| key.name().map_or(Ordering::Greater, |known| known.cmp(name));
        let at = self.below.binary_search_by(|(key, _)| order(key));
        at.ok().map(|at| &self.below[at].1)
    }

    /// What is at a key.
    pub fn child(&self, key: &Key) -> Option<&Self> {
        self.place(key).ok().map(|at| &self.below[at].1)
    }

    /// What is at a path of fields of maps.
    pub fn get(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |set, name| set.field(name))
    }

    /// What is at a path.
    pub fn at(&self, path: &[Key]) -> Option<&Self> {
        path.iter().try_fold(self, |set, key| set.child(key))
    }

    fn place(&self, key: &Key) -> Result<usize, usize> {
        self.below.binary_search_by(|(known, _)| known.cmp(key))
    }

    /// Puts a set that is not empty at a key, in place of what is there.
    pub fn insert(&mut self, key: Key, set: Self) {
        match self.place(&key) {
            Ok(at) => self.below[at].1 = set,
            Err(at) => self.below.insert(at, (key, set)),
        }
    }

    /// Adds the fields of another set.
    pub fn extend(&mut self, other: &Self) {
        self.member |= other.member;
        let count = self.below.len();
        for (key, set) in &other.below {
            match self.below[..count].binary_search_by(|(known, _)| known.cmp(key)) {
                Ok(at) => self.below[at].1.extend(set),
                Err(_) => self.below.push((key.clone(), set.clone())),
            }
        }
        if self.below.len() > count {
            self.below.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
    }

    /// Removes the fields of another set.
    pub fn subtract(&mut self, other: &Self) {
        self.member &= !other.member;
        self.below.retain_mut(|(key, set)| {
            if let Some(gone) = other.child(key) {
                set.subtract(gone);
            }
            !set.is_empty()
        });
    }

    /// Removes the fields of another set and all below them.
    pub fn cut(&mut self, other: &Self) {
        self.below.retain_mut(|(key, set)| match other.child(key) {
            Some(gone) if gone.member => false,
            Some(gone) => {
                set.cut(gone);
                !set.is_empty()
            }
            None => true,
        });
    }

    /// Removes the fields of another set, and the maps and items that contain them. What else is in these stays.
    pub fn subtract_along(&mut self, other: &Self) {
        self.member = false;
        self.below.retain_mut(|(key, set)| {
            if let Some(gone) = other.child(key) {
                set.subtract_along(gone);
            }
            !set.is_empty()
        });
    }

    /// The fields that are in one of two sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.extend(other);
        all
    }

    /// The fields that are not in another set.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut rest = self.clone();
        rest.subtract(other);
        rest
    }

    /// The fields that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let both = self.below.iter().filter_map(|(key, set)| {
            let both = set.intersection(other.child(key)?);
            (!both.is_empty()).then(|| (key.clone(), both))
        });
        Self { member: self.member && other.member, below: both.collect() }
    }

    /// Whether a field is in both sets.
    pub fn intersects(&self, other: &Self) -> bool {
        let intersects =
            |(key, set): &(Key, Self)| other.child(key).is_some_and(|other| set.intersects(other));
        self.member && other.member || self.below.iter().any(intersects)
    }

    /// Whether another set has all fields of this one.
    pub fn is_subset(&self, other: &Self) -> bool {
        let is_subset = |(key, set): &(Key, Self)| other.child(key).is_some_and(|other| set.is_subset(other));
        (!self.member || other.member) && self.below.iter().all(is_subset)
    }

    /// The paths as people read them, such as `.spec.ports[port=80].name`.
    pub fn paths(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.walk("", &mut found);
        found
    }

    fn walk(&self, prefix: &str, found: &mut Vec<String>) {
        let members = self.below.iter().filter(|(_, set)| set.member);
        found.extend(members.map(|(key, _)| format!("{prefix}{key}")));
        for (key, set) in self.below.iter().filter(|(_, set)| !set.below.is_empty()) {
            set.walk(&format!("{prefix}{key}"), found);
        }
    }
}

impl FromIterator<FieldSet> for FieldSet {
    /// The fields that are in any of the sets.
    fn from_iter<I: IntoIterator<Item = Self>>(sets: I) -> Self {
        Self::united(sets.into_iter().collect())
    }
}

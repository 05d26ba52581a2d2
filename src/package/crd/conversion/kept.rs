//! The annotation with the values that an object cannot hold in its version, and the limit of its size.

use std::collections::BTreeMap;

use serde_json::Value;

use super::node::{self, Node};

/// The name of the annotation. It contains, for each version, places and values that only that version has.
pub(super) const KEPT: &str = "operetta.dev/other-versions";
/// Replaces the entries of a version if they are too large.
pub(super) const LEFT_OUT: &str = "left out";
/// The maximum size of the keys and values of all annotations. API servers refuse larger ones, even after a
/// conversion.
pub(super) const MAX_ANNOTATIONS: usize = 256 << 10;

/// The content of the annotation.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Kept(BTreeMap<String, Entries>);

/// The entries of one version.
#[derive(Debug, PartialEq)]
enum Entries {
    /// Each text is `[place, value]` or `[place]` in JSON.
    Texts(Vec<String>),
    LeftOut,
}

/// Whether the annotations of an object say that its conversion left values out.
pub fn leaves_out(annotations: Option<&BTreeMap<String, String>>) -> bool {
    annotations.and_then(|all| all.get(KEPT)).is_some_and(|text| Kept::parse(text).leaves_out())
}

impl Kept {
    /// The annotation of an object; `None` if it has none.
    pub(super) fn read(object: &Node<'_>) -> Option<Self> {
        let text = object.get("metadata")?.get("annotations")?.get(KEPT)?.as_string()?;
        Some(Self::parse(&text))
    }

    /// Parses the annotation. Users can edit it, so entries that cannot be parsed are ignored.
    fn parse(text: &str) -> Self {
        let of_version = |text: &str| match node::items(text) {
            Some(items) => Some(Entries::Texts(items.into_iter().map(str::to_owned).collect())),
            None => (Node::Part(text).as_string()? == LEFT_OUT).then_some(Entries::LeftOut),
        };
        let versions = node::entries(text).unwrap_or_default().into_iter();
        Self(versions.filter_map(|(version, text)| Some((version, of_version(text)?))).collect())
    }

    pub(super) fn all_left_out<'v>(versions: impl Iterator<Item = &'v String>) -> Self {
        Self(versions.map(|version| (version.clone(), Entries::LeftOut)).collect())
    }

    pub(super) fn leaves_out(&self) -> bool {
        self.0.values().any(|entries| *entries == Entries::LeftOut)
    }

    pub(super) fn forget_left_out(&mut self) {
        self.0.retain(|_, entries| *entries != Entries::LeftOut);
    }

    /// Removes and returns the entries of a version.
    pub(super) fn take(&mut self, version: &str) -> Vec<String> {
        match self.0.remove(version) {
            Some(Entries::Texts(texts)) => texts,
            _ => Vec::new(),
        }
    }

    pub(super) fn add(&mut self, version: &str, new: impl IntoIterator<Item = String>) {
        let mut new = new.into_iter().peekable();
        if new.peek().is_none() {
            return;
        }
        let entries = self.0.entry(version.to_owned()).or_insert_with(|| Entries::Texts(Vec::new()));
        if let Entries::Texts(texts) = entries {
            texts.extend(new);
        }
    }

    fn text(&self) -> String {
        let versions = self.0.iter().map(|(version, entries)| {
            let entries = match entries {
                Entries::Texts(texts) => format!("[{}]", texts.join(",")),
                Entries::LeftOut => Value::from(LEFT_OUT).to_string(),
            };
            format!("{}:{entries}", Value::from(version.as_str()))
        });
        format!("{{{}}}", versions.collect::<Vec<_>>().join(","))
    }

    pub(super) fn write(&self, object: &mut Node<'_>) {
        let Some(metadata @ Node::Object(_)) = object.get_mut("metadata") else { return };
        if self.0.is_empty() {
            let annotations = metadata.get_mut("annotations");
            let is_empty = annotations.is_some_and(|annotations| {
                annotations.remove(KEPT).is_some() && annotations.is_empty_object()
            });
            if is_empty {
                metadata.remove("annotations");
            }
            return;
        }
        if !matches!(metadata.get("annotations"), Some(Node::Object(_))) {
            metadata.insert("annotations", Node::empty_object());
        }
        if let Some(annotations) = metadata.get_mut("annotations") {
            annotations.insert(KEPT, Node::string(&self.text()));
        }
    }
}

/// The size that the other annotations of an object leave for this one.
pub(super) struct Room(usize);

impl Room {
    pub(super) fn of(object: &Node<'_>) -> Self {
        let annotations = object.get("metadata").and_then(|metadata| metadata.get("annotations"));
        let others: usize = match annotations {
            Some(Node::Object(map)) => {
                let others = map.iter().filter(|(key, _)| key != KEPT);
                others.map(|(key, value)| key.len() + value.as_string().unwrap_or_default().len()).sum()
            }
            _ => 0,
        };
        Self(MAX_ANNOTATIONS.saturating_sub(others + KEPT.len()))
    }

    pub(super) fn fits(&self, kept: &Kept) -> bool {
        kept.0.is_empty() || kept.text().len() <= self.0
    }

    /// Leaves entries out until the rest fits: first those of the version with the largest entries. If even
    /// the replacement texts do not fit, the whole annotation is left out.
    pub(super) fn leave_out(&self, kept: &mut Kept) {
        while !self.fits(kept) {
            let size = |entries: &Entries| match entries {
                Entries::Texts(texts) => texts.iter().map(|text| text.len() + 1).sum(),
                Entries::LeftOut => 0_usize,
            };
            let largest = kept.0.values_mut().filter(|entries| size(entries) > 0).max_by_key(|e| size(e));
            match largest {
                Some(entries) => *entries = Entries::LeftOut,
                None => kept.0.clear(),
            }
        }
    }
}

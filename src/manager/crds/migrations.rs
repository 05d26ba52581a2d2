//! What is known of the migrations that are under way.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::children::names;
use crate::crd;

/// The result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Only the storage version is stored now. The number is that of the objects.
    Done(usize),
    /// The next turn is due after that time.
    Later(Duration),
}

/// The migrations that are under way, by the name of the CRD.
#[derive(Default)]
pub(in crate::manager) struct Migrations(pub(super) Mutex<HashMap<String, Entry>>);

/// A migration, and how far it is while a turn of it runs.
#[derive(Default)]
pub(super) struct Entry {
    /// The state between two turns; `None` while a turn runs.
    pub(super) idle: Option<Migration>,
    pub(super) progress: (bool, String),
}

/// What is known of a migration. Its turns are those of one CRD with one spec.
pub(super) struct Migration {
    pub(super) uid: String,
    pub(super) generation: i64,
    pub(super) to: String,
    pub(super) stage: Stage,
    /// Why the last turn failed.
    pub(super) problem: Option<String>,
}

pub(super) enum Stage {
    /// The migration waits until all API servers know the CRD: one that does not would store objects in the
    /// former version.
    Spreading { until: Duration },
    /// The objects that are still to be written, and the number of all objects.
    Writing { left: VecDeque<Stored>, total: usize },
}

/// An object to write.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// The conversion to the storage version left values out.
    pub(super) is_cut: bool,
}

impl Stored {
    /// `namespace/name`, or `name`.
    pub(super) fn full_name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }
}

impl Migrations {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the migrations of these CRDs are, and whether one of them does not proceed; `None` if there is none.
    pub(super) fn progress<'a>(&self, crds: impl Iterator<Item = &'a str>) -> Option<(bool, String)> {
        let all = self.lock();
        let found: Vec<(bool, String)> =
            crds.filter_map(|crd| Some(all.get(crd)?.progress.clone())).collect();
        let texts: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
        (!found.is_empty()).then(|| (found.iter().any(|(is_stuck, _)| *is_stuck), texts.join("; ")))
    }
}

impl Migration {
    pub(super) fn of(crd: &Value, until: Duration) -> Self {
        Self {
            uid: crd["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            generation: crd["metadata"]["generation"].as_i64().unwrap_or_default(),
            to: crd::storage_version(crd).unwrap_or_default().to_owned(),
            stage: Stage::Spreading { until },
            problem: None,
        }
    }

    pub(super) fn is_of(&self, crd: &Value) -> bool {
        crd["metadata"]["uid"] == *self.uid && crd["metadata"]["generation"] == self.generation
    }

    pub(super) fn progress(&self, crd: &str) -> (bool, String) {
        let to = &self.to;
        let text = match &self.stage {
            Stage::Spreading { .. } => format!("the objects of the CRD {crd} are to be stored as {to}"),
            Stage::Writing { left, total } => {
                format!("{} of {total} objects of the CRD {crd} are stored as {to}", total - left.len())
            }
        };
        match &self.problem {
            Some(problem) => (true, format!("{text}; {problem}")),
            None => (false, text),
        }
    }

    /// The record on the CRD that all objects up to `last` are written.
    pub(super) fn record(&self, last: &str) -> String {
        format!("{}/{}/{last}", self.uid, self.generation)
    }

    /// The last object that an earlier manager has written.
    pub(super) fn resumes_after<'a>(&self, crd: &'a Value) -> Option<&'a str> {
        crd["metadata"]["annotations"][names::MIGRATED]
            .as_str()?
            .strip_prefix(self.uid.as_str())?
            .strip_prefix('/')?
            .strip_prefix(self.generation.to_string().as_str())?
            .strip_prefix('/')
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd(uid: &str, generation: i64, record: &str) -> Value {
        json!({
            "metadata": {"uid": uid, "generation": generation, "annotations": {names::MIGRATED: record}},
            "spec": {"versions": [{"name": "v1", "storage": true}]},
        })
    }

    #[test]
    fn a_migration_resumes_on_the_same_crd_with_the_same_spec() {
        let live = crd("u", 3, "u/3/a/b");
        let migration = Migration::of(&live, Duration::ZERO);
        assert_eq!(migration.record("a/b"), "u/3/a/b");
        assert_eq!(migration.resumes_after(&live), Some("a/b"));
        for other in
            [crd("u", 4, "u/3/a/b"), crd("v", 3, "u/3/a/b"), crd("u", 33, "u/3/a/b"), crd("u", 3, "")]
        {
            assert_eq!(Migration::of(&other, Duration::ZERO).resumes_after(&other), None, "{other}");
            assert_eq!(
                migration.is_of(&other),
                other["metadata"]["uid"] == "u" && other["metadata"]["generation"] == 3
            );
        }
    }

    #[test]
    fn the_progress_counts_stored_objects_and_names_the_problem() {
        let object = |name: &str| Stored {
            namespace: Some("n".into()),
            name: name.into(),
            uid: String::new(),
            resource_version: String::new(),
            is_cut: false,
        };
        let mut migration = Migration::of(&crd("u", 1, ""), Duration::ZERO);
        let all = Migrations::default();
        assert_eq!(all.progress(["x"].into_iter()), None);
        migration.stage = Stage::Writing { left: [object("a"), object("b")].into(), total: 5 };
        assert_eq!(migration.progress("x"), (false, "3 of 5 objects of the CRD x are stored as v1".into()));
        migration.problem = Some("n/a: refused".into());
        let progress = migration.progress("x");
        all.lock().insert("x".into(), Entry { idle: None, progress });
        let (is_stuck, text) = all.progress(["w", "x"].into_iter()).unwrap();
        assert!(is_stuck && text.ends_with("are stored as v1; n/a: refused"), "{text}");
    }
}

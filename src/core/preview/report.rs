//! The result of a preview.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};

use super::diff::FieldChange;
use crate::api::ObjectRef;
use crate::package::plan::{Action, Plan, Step};
use crate::rights::Review;

/// What a package would do to the instances of a cluster.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The name of the package.
    pub package: String,
    /// The revision that is previewed.
    pub revision: String,
    /// The revision that is active by the `Operator`, and those that instances report now, with how many instances do. Instances
    /// without a status report none.
    pub active: BTreeMap<String, usize>,
    /// Its CRDs.
    pub crds: Vec<CrdReport>,
    /// Its instances, sorted by kind, namespace and name.
    pub instances: Vec<InstanceReport>,
    /// What could not be read, so that the preview may lack something.
    pub problems: Vec<String>,
    /// The rights that the account of the package gains and loses.
    pub rights: Review,
    /// What this user may not read or try, so that the preview does not show it.
    pub notes: Vec<String>,
}

/// What becomes of one CRD.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CrdReport {
    /// Its name.
    pub name: String,
    /// What is written.
    pub write: CrdWrite,
    /// The fields that change.
    pub fields: Vec<FieldChange>,
    /// How many instances there are where the preview looks.
    pub instances: usize,
    /// The versions that are removed once all stored instances are migrated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub migrates_from: Vec<String>,
    /// Why it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The stored instances that its new schema would reject, or from which it would take values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<Rejected>,
}

/// What is written of a CRD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CrdWrite {
    /// The CRD is created.
    Created,
    /// The CRD is changed.
    Updated,
    /// The CRD stays as it is.
    Unchanged,
    /// The package no longer has it: it stays, and nothing is done about its instances any more.
    Dropped,
    /// The CRD is refused, and nothing of the package is written.
    Refused,
}

/// A stored instance that a new schema would reject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// `namespace/name`, or `name`.
    pub instance: String,
    /// What is wrong, each with its path.
    pub violations: Vec<String>,
}

/// What becomes of one instance.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceReport {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// The revision of the package that it reports now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The writes of children, in the order in which they are decided.
    pub changes: Vec<Change>,
    /// The plans that run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plans: Vec<PlanReport>,
    /// What is refused, or has no value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
    /// What waits for something that a preview cannot foresee.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<String>,
    /// What a person should know of it, though nothing is refused and nothing waits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Why it was not previewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// One write of a child.
#[derive(Debug, Clone)]
pub struct Change {
    /// `id` or `id[key]`.
    pub item: String,
    /// The object.
    pub object: ObjectRef,
    /// What is done.
    pub write: Write,
    /// The fields that change; none for a deletion.
    pub fields: Vec<FieldChange>,
    /// Whether its pods restart: its pod template changes, or it is recreated.
    pub restarts_pods: bool,
}

/// What is done to a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Write {
    /// The child is created.
    Created,
    /// An object that another client has created becomes the child.
    Adopted,
    /// The child gets another desired object.
    Updated,
    /// The child is deleted and created again, because a field is immutable.
    Recreated,
    /// Changes of other clients are undone. This has nothing to do with the new revision.
    Repaired,
    /// The child is deleted.
    Pruned,
    /// The child stays, marked as retained.
    Retained,
    /// The child stays until a person approves its deletion.
    AwaitsApproval,
    /// Its marks are removed, and it belongs to no instance any more.
    Orphaned,
    /// A mark of a removal is taken off.
    Unmarked,
}

/// A plan that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanReport {
    /// The plans of the run, in order.
    pub plans: Vec<String>,
    /// What starts it: `Rollout`, `Condition` and so on.
    pub cause: String,
    /// The reason, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The revision of the package that the run has from its start to its end.
    pub revision: String,
    /// The steps of the plans, such as `members/apply (apply members)`. Which of them are skipped is decided as the run
    /// reaches them.
    pub steps: Vec<String>,
}

/// Something that is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// The item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// The object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The reason in conditions, such as `ImmutableField`.
    pub reason: String,
    /// The message, for people.
    pub message: String,
}

impl Serialize for Change {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ObjectRef { gvk, namespace, name } = &self.object;
        let mut object = json!({"apiVersion": &*gvk.api_version, "kind": &*gvk.kind, "name": &**name});
        if let Some(namespace) = namespace {
            object["namespace"] = Value::from(&**namespace);
        }
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("item", &self.item)?;
        map.serialize_entry("object", &object)?;
        map.serialize_entry("write", &self.write)?;
        map.serialize_entry("restartsPods", &self.restarts_pods)?;
        map.serialize_entry("fields", &self.fields)?;
        map.end()
    }
}

impl Write {
    /// The word in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Adopted => "adopted",
            Self::Updated => "updated",
            Self::Recreated => "recreated",
            Self::Repaired => "repaired",
            Self::Pruned => "pruned",
            Self::Retained => "retained",
            Self::AwaitsApproval => "awaits approval",
            Self::Orphaned => "orphaned",
            Self::Unmarked => "unmarked",
        }
    }

    /// Whether it has to do with the new revision, and is no repair of what others have changed.
    pub fn is_change(self) -> bool {
        self != Self::Repaired
    }
}

impl InstanceReport {
    /// `namespace/name`, or `name`.
    pub fn full_name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }

    /// Whether nothing happens to it.
    pub fn is_unchanged(&self) -> bool {
        self.changes.is_empty()
            && self.plans.is_empty()
            && self.refused.is_empty()
            && self.waits.is_empty()
            && self.skipped.is_none()
    }
}

impl Report {
    /// Whether a CRD or a change of an instance is refused, or an instance rejected.
    pub fn is_refused(&self) -> bool {
        self.has_refused_crd() || self.instances.iter().any(|instance| !instance.refused.is_empty())
    }

    /// How many objects are written in this way.
    pub fn count(&self, write: Write) -> usize {
        let changes = self.instances.iter().flat_map(|instance| &instance.changes);
        changes.filter(|change| change.write == write).count()
    }

    /// Whether a CRD is refused, so that nothing of the package is written.
    pub fn has_refused_crd(&self) -> bool {
        self.crds.iter().any(|crd| crd.write == CrdWrite::Refused)
    }
}

/// The steps of a plan with what each does, nested steps behind the path of their parents.
pub fn steps_of(plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    collect("", &plan.steps, &mut found);
    found
}

fn collect(parent: &str, steps: &[Step], found: &mut Vec<String>) {
    for step in steps {
        let path = if parent.is_empty() { step.name.clone() } else { format!("{parent}/{}", step.name) };
        let children = |members: &[crate::package::plan::Members]| {
            members.iter().map(|members| members.child.as_str()).collect::<Vec<_>>().join(", ")
        };
        let what = match &step.action {
            Action::Steps(_, inner) => {
                collect(&path, inner, found);
                continue;
            }
            Action::Apply(members) => format!("apply {}", children(members)),
            Action::Delete(members) => format!("delete {}", children(members)),
            Action::Job { .. } => "job".to_owned(),
            Action::Exec(_) => "exec".to_owned(),
            Action::Http(_) => "http".to_owned(),
            Action::Wait(_) => "wait".to_owned(),
            Action::Pause(_) => "pause".to_owned(),
            Action::Patch(_) => "patch".to_owned(),
            Action::Plan(call) => format!("plan {}", call.plan),
            Action::Approve { .. } => "approve".to_owned(),
            Action::Fail(_) => "fail".to_owned(),
            Action::Record => "record".to_owned(),
        };
        let each = if step.for_each.is_some() { ", for each item" } else { "" };
        let may = if step.when.is_some() || step.unless.is_some() { ", conditional" } else { "" };
        found.push(format!("{path} ({what}{each}{may})"));
    }
}

//! The state of one step of a run, as it is stored.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::member::Member;
use super::stored_number::{self, is_zero};

/// The phase of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StepPhase {
    /// The step is reached, and it is not decided whether it runs.
    #[default]
    Pending,
    /// The step runs.
    Running,
    /// The step is done.
    Succeeded,
    /// The `when` or `unless` of the step has excluded it.
    Skipped,
    /// The step has failed.
    Failed,
}

impl StepPhase {
    /// Whether it never changes again.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

/// The state of one step that a run has reached.
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StepState {
    /// Its identity: its path with item keys and inlined plans, `leaving[prod]/sure`.
    pub path: String,
    /// The phase of the step.
    pub phase: StepPhase,
    /// Why it failed, one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why it failed, why its last attempt failed, or what people are asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// For how long the run had been running when it was reached, or when its last round began.
    #[serde(with = "stored_number")]
    pub since_milliseconds: u64,
    /// The number of its last attempt, from 1; 0 if it needs none.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// How many attempts have failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// Whether the outcome of its last attempt is open: intended, and perhaps sent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub in_flight: bool,
    /// Whether the last attempt may have been carried out without an answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
    /// The hash of the request of its last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// For how long the run has to have been running before the next attempt.
    #[serde(with = "stored_number::optional", skip_serializing_if = "Option::is_none")]
    pub retry_milliseconds: Option<u64>,
    /// The objects of its attempts: Jobs, or `PlanRuns` of other instances. The last is that of the last attempt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<AttemptObject>,
    /// The items of its loop, or of a `repeat` those of the rounds that have begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<LoopItem>>,
    /// The members that an apply step names by computed keys, in its order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    /// How many of them run at once; `None` is what the package says, which is no template then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u16>,
    /// The parameters of the plan that it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<Value>,
    /// The number of `spec.approvals` when its question was asked: earlier ones do not answer it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<usize>,
    /// The groups whose members may answer; empty: all users with the verb `approve`. The admission policy reads them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// For the implicit last step: how many of `applied` the steps before it have applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied_before: Option<usize>,
    /// Whether it has failed, and the plan for that case runs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failing: bool,
    /// Whether its failure does not count: the run has continued.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignored: bool,
    /// Its outputs.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub outputs: Map<String, Value>,
    /// Whether the Secret of the run holds its answer, which is stored elsewhere by now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
}

/// An object that an attempt of a step has created.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttemptObject {
    /// Its name.
    pub name: String,
    /// Its uid, once it is seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// One item of a loop.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoopItem {
    /// Its key in paths.
    pub key: String,
    /// The item.
    pub value: Value,
}

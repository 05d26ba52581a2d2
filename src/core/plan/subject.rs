//! What a write for the runs of an instance changes, if no other depends on it: if the API server refuses it, the others are carried
//! out, and it is tried again later. Without the memory of the instance, or the origin of a run, nothing is done.

use serde_json::Value;

use super::action::{RunAction, RunObject};
use super::run::DELETE_CHILD;

/// What a write changes. The API server may refuse changes of an object and take those of its status, or the other way round.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A run that is created, of the plan of that name.
    NewRun(String),
    /// Another object that is created: its kind and its name.
    NewObject(&'static str, String),
    /// The state of the run with that uid.
    State(String),
    /// What the `PlanRun` with that uid shows of a state that the memory has. The next state may go to the memory.
    Shown(String),
    /// The object with that uid, but for its status.
    Object(String),
    /// The end of the object with that uid.
    Deletion(String),
}

impl RunAction {
    /// What the action changes, if no other depends on it.
    pub fn subject(&self) -> Option<Subject> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some(match self {
            Self::If { then, .. } => return then.subject(),
            Self::Create(RunObject::PlanRun, body) if body["spec"]["plan"] != DELETE_CHILD => {
                Subject::NewRun(text(&body["spec"]["plan"]))
            }
            Self::Create(RunObject::PlanRun, body) => {
                Subject::NewObject("PlanRun", text(&body["metadata"]["name"]))
            }
            Self::Create(RunObject::Job, body) => Subject::NewObject("Job", text(&body["metadata"]["name"])),
            Self::Store { memory: None, run, .. } => Subject::State(run.uid.clone()),
            Self::Show(run, _) => Subject::Shown(run.uid.clone()),
            Self::Change(_, object, _) => Subject::Object(object.uid.clone()),
            Self::Delete(_, object) => Subject::Deletion(object.uid.clone()),
            _ => return None,
        })
    }
}

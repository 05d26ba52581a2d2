//! The plans of a resource as an annotation of its CRD: the command line lists them and checks requests with it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::package::Resource;
use crate::package::plan::{Event, OnLoss, Trigger};

/// The longest annotation with the schemas of parameters. All annotations of an object may have 256 KiB.
const MOST: usize = 64 << 10;

/// A plan, as the CRD of its kind shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PublishedPlan {
    /// Its name.
    pub name: String,
    /// What starts it, for people; empty if only a request or another plan does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<String>,
    /// The schema of its parameters; `None` if it takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Value>,
}

/// The plans of a resource, with what starts them.
pub fn of(resource: &Resource) -> Vec<PublishedPlan> {
    let lost = |plan: &str| {
        let children = resource.children.iter();
        let starts = children.filter(|child| matches!(&child.on_loss, OnLoss::Plan(name) if name == plan));
        starts.map(|child| format!("loss of {}", child.id)).collect::<Vec<_>>()
    };
    resource
        .plans
        .iter()
        .map(|plan| PublishedPlan {
            name: plan.name.clone(),
            triggers: plan.triggers.iter().map(trigger).chain(lost(&plan.name)).collect(),
            params: plan.params.clone(),
        })
        .collect()
}

/// The text of the annotation; `None` if the resource has no plans.
pub(crate) fn published(resource: &Resource) -> Option<String> {
    let mut plans = of(resource);
    let text = |plans: &[PublishedPlan]| serde_json::to_string(plans).unwrap_or_default();
    if text(&plans).len() > MOST {
        for params in plans.iter_mut().filter_map(|plan| plan.params.as_mut()) {
            *params = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        }
    }
    (!plans.is_empty()).then(|| text(&plans))
}

/// Reads the plans from the text of an annotation.
pub fn read(annotation: &str) -> Vec<PublishedPlan> {
    serde_json::from_str(annotation).unwrap_or_default()
}

fn trigger(trigger: &Trigger) -> String {
    match &trigger.event {
        Event::Created => "created".into(),
        Event::Upgraded => "upgraded".into(),
        Event::Deleted => "deleted".into(),
        Event::Condition { .. } => "condition".into(),
        Event::Expires { .. } => "expires".into(),
        Event::Changed(paths) if paths.is_empty() => "changed".into(),
        Event::Changed(paths) => {
            let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
            format!("changed {}", paths.join(" "))
        }
        Event::Schedule { schedule, .. } => match schedule.as_literal().and_then(Value::as_str) {
            Some(schedule) => format!("schedule {schedule}"),
            None => "schedule".into(),
        },
    }
}

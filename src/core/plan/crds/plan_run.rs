//! The CustomResourceDefinition of `PlanRun`.

use serde_json::{Value, json};

use crate::crd::{OwnKind, column};

/// The kind of a run.
pub const PLAN_RUN: OwnKind = OwnKind { kind: "PlanRun", plural: "planruns", namespaced: true };

/// The most approvals of a run: it bounds the cost of the rules about them.
const MAX_APPROVALS: usize = 64;

/// The CustomResourceDefinition of `PlanRun`.
pub fn plan_run() -> Value {
    let schema = json!({
        "description": "A request for a run of a plan, and the record of that run.",
        "properties": {"spec": spec(), "status": status()},
    });
    let columns = vec![
        column("Kind", ".spec.of.kind", "The kind of the instance.", 1),
        column("Of", ".spec.of.name", "The instance.", 0),
        column("Plan", ".spec.plan", "The plan.", 0),
        column("Phase", ".status.phase", "Where the run stands.", 0),
        column("Step", ".status.steps[-1:].path", "The last step that it has reached.", 0),
        column("Message", ".status.message", "Why.", 1),
    ];
    PLAN_RUN.crd(schema, columns, &[".spec.of.kind", ".spec.of.name", ".spec.plan", ".status.phase"])
}

fn text(description: &str, most: usize) -> Value {
    json!({"type": "string", "maxLength": most, "description": description})
}

fn spec() -> Value {
    let same = |field: &str| {
        json!({
            "rule": format!(
                "has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
            ),
            "message": format!("{field} is immutable: create another PlanRun"),
        })
    };
    // A loop over literal indices costs little in the estimate of the API server; comparing texts costs too much.
    let indices = (0..MAX_APPROVALS).map(|index| index.to_string()).collect::<Vec<_>>().join(",");
    json!({
        "type": "object",
        "required": ["of", "plan"],
        "properties": {
            "of": {
                "type": "object",
                "description": "The instance, in the namespace of this object.",
                "required": ["apiVersion", "kind", "resource", "name"],
                "properties": {
                    "apiVersion": {
                        "type": "string",
                        "maxLength": 316,
                        "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/v[0-9][a-z0-9]*$",
                        "description": "Its apiVersion, for example example.com/v1.",
                    },
                    "kind": text("Its kind.", 63),
                    "resource": text("The plural of its kind, for which the verb `run` is checked.", 63),
                    "name": text("Its name.", 253),
                },
                "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "of is immutable: create another PlanRun"}],
            },
            "plan": {
                "type": "string",
                "minLength": 1,
                "maxLength": 40,
                "description": "The name of the plan.",
                "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "plan is immutable: create another PlanRun"}],
            },
            "params": {
                "type": "object",
                "description": "The parameters, as the plan's schema has them.",
                "x-kubernetes-preserve-unknown-fields": true,
            },
            "retryOf": text("The name of a failed run that is resumed at its failed step.", 253),
            "cancel": {"type": "boolean", "description": "Whether the run is to be cancelled."},
            "requestedBy": text("Who asks for the run: the user who creates this object.", 256),
            "approvals": {
                "type": "array",
                "maxItems": MAX_APPROVALS,
                "x-kubernetes-list-type": "atomic",
                "description": "Answers to the approve steps; only ever appended.",
                "items": {
                    "type": "object",
                    "required": ["step", "verdict", "by"],
                    "properties": {
                        "step": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": 512,
                            "description": "The path of the step.",
                        },
                        "verdict": {"type": "string", "enum": ["Approve", "Reject"], "description": "The answer."},
                        "by": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": 256,
                            "description": "Who answers: the user who adds this entry.",
                        },
                    },
                },
            },
        },
        "x-kubernetes-validations": [
            same("retryOf"),
            same("requestedBy"),
            {
                "rule": "!has(oldSelf.cancel) || !oldSelf.cancel || (has(self.cancel) && self.cancel)",
                "message": "a cancellation cannot be taken back: create another PlanRun",
            },
            {
                "rule": format!(
                    "!has(oldSelf.approvals) || (has(self.approvals) && size(self.approvals) >= size(oldSelf.approvals) && \
                     [{indices}].all(i, i >= size(oldSelf.approvals) || self.approvals[i] == oldSelf.approvals[i]))"
                ),
                "message": "approvals are only appended: an answer cannot be changed or taken back",
            },
        ],
    })
}

fn status() -> Value {
    let time =
        |description: &str| json!({"type": "string", "format": "date-time", "description": description});
    let members = |description: &str| {
        json!({
            "type": "array",
            "x-kubernetes-list-type": "atomic",
            "description": description,
            "items": {
                "type": "object",
                "required": ["child"],
                "properties": {
                    "child": {"type": "string", "description": "The id of the child."},
                    "key": {"x-kubernetes-preserve-unknown-fields": true, "description": "The key of a member."},
                },
            },
        })
    };
    let string = |description: &str| json!({"type": "string", "description": description});
    let phases = ["Pending", "Running", "Interrupted", "Succeeded", "Failed", "Cancelled", "Superseded"];
    json!({
        "type": "object",
        "description": "The state of the run, which the manager writes.",
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "phase": {"type": "string", "enum": phases, "description": "Where the run stands."},
            "reason": string("Why, one word."),
            "message": string("Why, a sentence."),
            "cause": string("What has started it."),
            "plans": {
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {"type": "string"},
                "description": "Its plans, in the order in which they run.",
            },
            "revision": string("The revision of the package that it runs with."),
            "startedAt": time("When it started first."),
            "finishedAt": time("When it ended."),
            "lost": members("The children whose loss has started it."),
            "applied": members("The children that its steps have come to apply."),
            "deleted": members("The children that its steps have deleted and not applied since."),
            "record": {
                "type": "object",
                "description": "The facts that its steps have recorded.",
                "x-kubernetes-preserve-unknown-fields": true,
            },
            "answers": {
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "description": "The entries of spec.approvals, in the same order, as the manager has seen them.",
                "items": {
                    "type": "object",
                    "properties": {
                        "by": string("Who answers."),
                        "at": time("When the manager saw the answer first."),
                        "ignored": string("Why it never counts."),
                    },
                },
            },
            "steps": {
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "description": "The steps that it has reached, in that order.",
                "items": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {
                        "path": string("The path of the step, with the keys of items: leaving[prod]/sure."),
                        "phase": {
                            "type": "string",
                            "enum": ["Pending", "Running", "Succeeded", "Skipped", "Failed"],
                            "description": "Where the step stands.",
                        },
                        "reason": string("Why it failed, one word."),
                        "message": string("Why it failed, or what people are asked."),
                        "startedAt": time("When it was reached."),
                        "finishedAt": time("When it ended."),
                        "attempt": {"type": "integer", "description": "The number of its last attempt."},
                        "groups": {
                            "type": "array",
                            "x-kubernetes-list-type": "atomic",
                            "items": {"type": "string"},
                            "description": "The groups whose members may answer. Empty: all users with the verb `approve`.",
                        },
                        "outputs": {
                            "type": "object",
                            "description": "Its outputs.",
                            "x-kubernetes-preserve-unknown-fields": true,
                        },
                    },
                },
            },
        },
    })
}

//! Builders for plans and their steps.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::Gvk;
use crate::diag::{Location, Source, Span};
use crate::package::Tree;
use crate::package::plan::*;
use crate::template::{Engine, Expr, Limits, Text};

pub(in crate::plan) const JOB: &str =
    "spec: {template: {spec: {containers: [{name: a, image: \"{{ spec.image }}\"}]}}}\n";

pub(in crate::plan) static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let files = [("templates/job.yaml".to_owned(), Source::new("templates/job.yaml", JOB))];
    let (engine, errors) = Engine::compile(&files, Limits::default());
    assert!(errors.is_empty(), "{errors:?}");
    engine
});

fn location(text: &str) -> Location {
    let source: Arc<Source> = Source::new("operator.yaml", text);
    Location::new(&source, Span { start: 0, end: text.len() })
}

pub(in crate::plan) fn expr(text: &str) -> Expr {
    ENGINE.expression(text, &location(text)).unwrap()
}

pub(in crate::plan) fn text(text: &str) -> Text {
    ENGINE.text(text, &location(text)).unwrap()
}

pub(in crate::plan) fn step(name: &str, action: Action) -> Step {
    Step {
        name: name.into(),
        action,
        when: None,
        unless: None,
        for_each: None,
        repeat: None,
        timeout: None,
        retries: None,
        until: None,
        on_failure: OnFailure::Fail,
        outputs: Vec::new(),
        store: None,
        record: Vec::new(),
        message: None,
        expect: None,
        idempotent: false,
        force: None,
        interruptible: None,
        location: location(name),
    }
}

pub(in crate::plan) fn apply(name: &str, members: &[&str]) -> Step {
    step(name, Action::Apply(members.iter().map(|text| self::members(text)).collect()))
}

pub(in crate::plan) fn delete(name: &str, members: &[&str]) -> Step {
    step(name, Action::Delete(members.iter().map(|text| self::members(text)).collect()))
}

/// Parses `peers`, or `members[{{ i }}]`.
pub(in crate::plan) fn members(source: &str) -> Members {
    let (child, key) = match source.split_once('[') {
        Some((child, key)) => (child, Some(text(&key[..key.len() - 1]))),
        None => (source, None),
    };
    let key = key.map(|key| {
        match key.as_literal().and_then(Value::as_str).and_then(|key| key.parse::<u64>().ok()) {
            Some(number) => Text::literal(json!(number)),
            None => key,
        }
    });
    Members { child: child.into(), key, location: location(source) }
}

pub(in crate::plan) fn job(name: &str) -> Step {
    step(name, Action::Job { template: "templates/job.yaml".into() })
}

pub(in crate::plan) fn http(name: &str, method: &str, url: &str) -> Step {
    step(
        name,
        Action::Http(Box::new(Http {
            method: method.into(),
            to: None,
            url: text(url),
            hosts: Vec::new(),
            headers: Vec::new(),
            body: Body::Json(Tree::Map(vec![("size".into(), Tree::Text(text("{{ spec.size }}")))])),
            key: None,
            auth: None,
            tls: None,
            redirects: 0,
            max_bytes: 1 << 20,
            attempt_timeout: Duration::from_secs(30),
        })),
    )
}

pub(in crate::plan) fn exec(name: &str, child: &str) -> Step {
    step(
        name,
        Action::Exec(Exec {
            pod: ChildPod { of: None, child: members(child), ordinal: None },
            container: None,
            command: Tree::List(["etcdctl", "member", "list"].map(|word| Tree::Text(text(word))).into()),
            stdin: None,
        }),
    )
}

pub(in crate::plan) fn patch(name: &str) -> Step {
    step(
        name,
        Action::Patch(Box::new(Patch {
            gvk: Gvk::new("v1", "Node"),
            name: text("n"),
            namespace: None,
            merge: Tree::Map(Vec::new()),
        })),
    )
}

pub(in crate::plan) fn wait(name: &str, until: &str) -> Step {
    let until = Until { expr: expr(until), search: None, is_path: false, value: None };
    step(name, Action::Wait(Box::new(until)))
}

pub(in crate::plan) fn pause(name: &str, duration: &str) -> Step {
    step(name, Action::Pause(text(duration)))
}

pub(in crate::plan) fn phase(name: &str, steps: Vec<Step>) -> Step {
    step(name, Action::Steps(Strategy::Serial, steps))
}

pub(in crate::plan) fn parallel(name: &str, steps: Vec<Step>) -> Step {
    step(name, Action::Steps(Strategy::Parallel, steps))
}

pub(in crate::plan) fn inline(name: &str, plan: &str) -> Step {
    step(name, Action::Plan(Call { plan: plan.into(), of: None, params: None }))
}

pub(in crate::plan) fn approve(name: &str, message: &str, count: u32) -> Step {
    step(
        name,
        Action::Approve {
            message: text(message),
            count,
            not_requester: true,
            service_accounts: false,
            groups: Vec::new(),
        },
    )
}

pub(in crate::plan) fn note(name: &str, key: &str, value: &str) -> Step {
    Step { record: vec![(key.into(), expr(value))], ..step(name, Action::Record) }
}

pub(in crate::plan) fn fail(name: &str, message: &str) -> Step {
    step(name, Action::Fail(text(message)))
}

/// The parts of a step that few steps have.
pub(in crate::plan) trait StepBuild {
    fn when(self, when: &str) -> Self;
    fn each(self, in_: &str, as_: &str, max_parallel: usize) -> Self;
    fn repeat(self, pick: &str, as_: &str, until: &str, limit: u32) -> Self;
    fn timeout(self, timeout: &str) -> Self;
    fn retries(self, limit: Option<u32>, backoff: u64) -> Self;
    fn on_failure(self, on_failure: OnFailure) -> Self;
    fn output(self, name: &str, value: &str) -> Self;
    fn records(self, key: &str, value: &str) -> Self;
    fn stores(self, child: &str, key: &str, value: &str) -> Self;
    fn idempotent(self) -> Self;
}

impl StepBuild for Step {
    fn when(mut self, when: &str) -> Self {
        self.when = Some(expr(when));
        self
    }

    fn each(mut self, in_: &str, as_: &str, max_parallel: usize) -> Self {
        self.for_each = Some(Loop {
            in_: expr(in_),
            as_: as_.into(),
            max_parallel: Some(Text::literal(max_parallel.into())),
        });
        self
    }

    fn repeat(mut self, pick: &str, as_: &str, until: &str, limit: u32) -> Self {
        self.repeat = Some(Repeat { pick: expr(pick), as_: as_.into(), until: expr(until), limit });
        self
    }

    fn timeout(mut self, timeout: &str) -> Self {
        self.timeout = Some(text(timeout));
        self
    }

    fn retries(mut self, limit: Option<u32>, backoff: u64) -> Self {
        self.retries = Some(Retries {
            limit,
            backoff: Duration::from_secs(backoff),
            max_backoff: Duration::from_secs(300),
        });
        self
    }

    fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    fn output(mut self, name: &str, value: &str) -> Self {
        self.outputs.push(Output { name: name.into(), value: expr(value), search: None, secret: false });
        self
    }

    fn records(mut self, key: &str, value: &str) -> Self {
        self.record.push((key.into(), expr(value)));
        self
    }

    fn stores(mut self, child: &str, key: &str, value: &str) -> Self {
        self.store = Some(Store { child: members(child), data: vec![(key.into(), expr(value))] });
        self
    }

    fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }
}

pub(in crate::plan) fn plan(name: &str, steps: Vec<Step>) -> Plan {
    Plan {
        name: name.into(),
        triggers: Vec::new(),
        params: None,
        concurrency: Concurrency::Forbid,
        exclusive: true,
        affects_ready: true,
        interruptible: true,
        priority: 0,
        on_cleanup_failure: None,
        strategy: Strategy::Serial,
        steps,
        location: location(name),
    }
}

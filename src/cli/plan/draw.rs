//! A run as a tree of its steps, and the changes of a run as lines. No I/O.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;

use super::target::{Run, text};
use crate::age::age;
use crate::cli::out::printable;
use crate::cli::show::{Branch, Cell, Line, Severity, Terminal, with_messages};
use crate::facts::condition;
use crate::plan::{Phase, PlanRun, StepPhase, StepState};
use serde_json::Value;

/// The columns of the tree; messages are in the last one.
const HEADER: [&str; 5] = ["STEP", "STATUS", "ATTEMPTS", "TIME", "MESSAGE"];

/// What a run waits for, as the conditions of its instance say. Beside a run that does not affect it, Ready is True.
pub(super) fn waits(instance: Option<&Value>, run: &str) -> Option<(String, String)> {
    let message = condition(instance?, "Ready")?["message"].as_str()?;
    let (_, rest) = message.split_once(&format!("{run}, step "))?;
    let (step, message) = rest.split_once(": ")?;
    // The message may go on with other findings.
    let message = message.split("; ").next().unwrap_or(message);
    Some((step.to_owned(), message.to_owned()))
}

/// Why the instance of a run that is active does not get further by itself. A run that waits for another one says so itself.
fn stalled(instance: Option<&Value>, run: &PlanRun) -> Option<String> {
    let stalled = condition(instance.filter(|_| run.phase() == Phase::Running)?, "Stalled")?;
    let (reason, message) = (stalled["reason"].as_str()?, stalled["message"].as_str()?);
    (stalled["status"] == "True")
        .then(|| printable(&format!("the instance is Stalled ({reason}): {message}")))
}

/// The run, and below it its steps as far as it has reached them.
pub(super) fn tree(run: &Run, instance: Option<&Value>, terminal: Terminal, now: Timestamp) -> String {
    let Run { run, .. } = run;
    let waits = waits(instance, &run.name);
    let message = waits.is_none().then(|| stalled(instance, run)).flatten();
    let line = vec![
        Cell::plain(&run.name),
        phase(run),
        Cell::default(),
        Cell::text(took(run, now)),
        Cell::text(message.unwrap_or_else(|| above_steps(run))),
    ];
    let steps = run.status.as_ref().map(|status| &status.steps[..]).unwrap_or_default();
    let mut inner: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for (index, outer) in outer(steps).into_iter().enumerate() {
        inner.entry(outer).or_default().push(index);
    }
    let below = Reached { run, steps, inner, waits, now }.below(None);
    let tree = Branch { line, below }.lines(terminal);
    let lines: Vec<Line> = [HEADER.map(Cell::plain).to_vec()].into_iter().chain(tree).collect();
    with_messages(&lines, HEADER.len() - 1, terminal)
}

/// The steps that a run has reached.
struct Reached<'a> {
    run: &'a PlanRun,
    steps: &'a [StepState],
    /// The steps in each step.
    inner: HashMap<Option<usize>, Vec<usize>>,
    waits: Option<(String, String)>,
    now: Timestamp,
}

impl Reached<'_> {
    fn below(&self, outer: Option<usize>) -> Vec<Branch> {
        let prefix = outer.map_or(0, |outer| self.steps[outer].path.len());
        let branch = |index: &usize| {
            let step = &self.steps[*index];
            let waiting = self.waits.as_ref().filter(|(path, _)| *path == step.path);
            let attempts = if step.attempt > 0 { step.attempt.to_string() } else { String::new() };
            let line = vec![
                Cell::text(step.path[prefix..].trim_start_matches('/')),
                Cell::new(phase_of(step), step_severity(step)),
                Cell::text(attempts),
                Cell::text(step_time(step, self.run, self.now)),
                Cell::text(step_message(step, waiting.map(|(_, message)| message.as_str()))),
            ];
            Branch { line, below: self.below(Some(*index)) }
        };
        self.inner.get(&outer).into_iter().flatten().map(branch).collect()
    }
}

/// What a run is: its plans, its instance, what has started it.
pub(super) fn title(run: &PlanRun) -> String {
    let plans = run.plans().join(", ");
    let by = run.spec.requested_by.as_ref().map(|user| format!(" by {user}")).unwrap_or_default();
    let retry = run.spec.retry_of.as_ref().map(|name| format!(", retry of {name}")).unwrap_or_default();
    let params = match &run.spec.params {
        Value::Object(params) if !params.is_empty() => format!(", params {}", run.spec.params),
        _ => String::new(),
    };
    printable(&format!(
        "plan {plans} of {} ({}{by}{retry}{params})",
        text(&run.spec.of),
        run.cause().as_str()
    ))
}

/// What a run leaves behind: its facts, and the children that it has deleted.
pub(super) fn remarks(run: &PlanRun) -> String {
    let Some(status) = &run.status else { return String::new() };
    let mut lines = Vec::new();
    if !status.record.is_empty() {
        let facts: Vec<&str> = status.record.keys().map(String::as_str).collect();
        lines.push(format!("recorded: {}", facts.join(", ")));
    }
    if !status.deleted.is_empty() && run.phase() != Phase::Succeeded {
        let members: Vec<String> = status.deleted.iter().map(ToString::to_string).collect();
        lines.push(format!("deleted and not applied again: {}", members.join(", ")));
    }
    lines.iter().map(|line| printable(line) + "\n").collect()
}

/// The innermost step that contains each step, by index.
fn outer(steps: &[StepState]) -> Vec<Option<usize>> {
    let by_path: HashMap<&str, usize> =
        steps.iter().enumerate().map(|(index, step)| (step.path.as_str(), index)).collect();
    let outer_of = |path: &str| {
        let mut cuts = path.char_indices().rev().filter(|(_, c)| matches!(c, '/' | '['));
        cuts.find_map(|(at, _)| by_path.get(&path[..at]).copied())
    };
    steps.iter().map(|step| outer_of(&step.path)).collect()
}

/// The phase of a run in its colour.
pub(super) fn phase(run: &PlanRun) -> Cell {
    let severity = match run.phase() {
        Phase::Succeeded => Severity::Good,
        Phase::Failed => Severity::Bad,
        Phase::Cancelled | Phase::Superseded => Severity::Dim,
        Phase::Pending | Phase::Running | Phase::Interrupted => Severity::Busy,
    };
    Cell::new(format!("{:?}", run.phase()), severity)
}

fn step_severity(step: &StepState) -> Severity {
    match step.phase {
        StepPhase::Succeeded => Severity::Good,
        StepPhase::Skipped => Severity::Dim,
        StepPhase::Failed if step.ignored => Severity::Dim,
        StepPhase::Failed => Severity::Bad,
        StepPhase::Pending | StepPhase::Running => Severity::Busy,
    }
}

fn phase_of(step: &StepState) -> String {
    if step.phase == StepPhase::Running && step.asked.is_some() {
        return "Asking".to_owned();
    }
    format!("{:?}", step.phase)
}

/// How long a run has taken.
pub(super) fn took(run: &PlanRun, now: Timestamp) -> String {
    let status = run.status.as_ref();
    let started = status.and_then(|status| status.started_at.as_deref());
    let end = status.and_then(|status| status.finished_at.as_deref()?.parse().ok()).unwrap_or(now);
    started.map(|started| age(end, Some(started))).unwrap_or_default()
}

/// How long a step has taken. A step of a run that has ended takes no more time.
fn step_time(step: &StepState, run: &PlanRun, now: Timestamp) -> String {
    let run_end = run.status.as_ref().and_then(|status| status.finished_at.as_deref());
    let end = step.finished_at.as_deref().or(run_end).and_then(|end| end.parse().ok()).unwrap_or(now);
    step.started_at.as_deref().map(|started| age(end, Some(started))).unwrap_or_default()
}

/// Reason and message of a run.
pub(super) fn sentence(run: &PlanRun) -> String {
    let Some(status) = &run.status else {
        return "no manager has taken it yet".to_owned();
    };
    printable(&joined(&status.reason, &status.message))
}

/// Reason and message of a run, for the line above its steps: what a failed step says itself is not repeated.
fn above_steps(run: &PlanRun) -> String {
    let said_below = run.status.as_ref().and_then(|status| {
        let failed = status.steps.iter().filter(|step| step.phase == StepPhase::Failed);
        let mut before = failed.filter_map(|step| {
            let message = Some(step.message.as_str()).filter(|message| !message.is_empty())?;
            status.message.strip_suffix(message)?.strip_suffix(": ")
        });
        before.next().map(|before| joined(&status.reason, before))
    });
    said_below.map_or_else(|| sentence(run), |said| printable(&said))
}

fn joined(reason: &str, message: &str) -> String {
    match (reason, message) {
        ("", text) | (text, "") => text.to_owned(),
        _ => format!("{reason}: {message}"),
    }
}

fn step_message(step: &StepState, waiting: Option<&str>) -> String {
    match step.phase {
        StepPhase::Succeeded if !step.outputs.is_empty() => {
            let names: Vec<&str> = step.outputs.keys().map(String::as_str).collect();
            format!("outputs: {}", names.join(", "))
        }
        StepPhase::Succeeded | StepPhase::Skipped => String::new(),
        StepPhase::Failed => {
            let text = joined(&step.reason, &step.message);
            if step.ignored { format!("{text} (ignored)") } else { text }
        }
        StepPhase::Pending | StepPhase::Running => {
            let own = match step.objects.last() {
                _ if !step.message.is_empty() => joined(&step.reason, &step.message),
                Some(object) => object.name.clone(),
                None => String::new(),
            };
            match waiting {
                // The wait for another attempt says why the last one failed.
                Some(waiting) if step.failures > 0 && !own.is_empty() && !waiting.contains(&step.message) => {
                    format!("{waiting} (last attempt: {own})")
                }
                Some(waiting) => waiting.to_owned(),
                None => own,
            }
        }
    }
}

/// The changes of a run since it was last seen, one line each.
#[derive(Default)]
pub(super) struct Changes {
    run: Option<(Phase, String)>,
    steps: HashMap<String, (String, u32, String)>,
}

impl Changes {
    pub(super) fn next(&mut self, run: &Run, instance: Option<&Value>, now: Timestamp) -> Vec<String> {
        let Run { run, .. } = run;
        let waits = waits(instance, &run.name);
        let mut lines = Vec::new();
        let clock = |time: Option<&str>| {
            let time = time.and_then(|time| time.parse::<Timestamp>().ok()).unwrap_or(now);
            Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
        };
        let status = run.status.clone().unwrap_or_default();
        let ended = status.phase.is_final();
        let mut of_run = |lines: &mut Vec<String>| {
            // No step says what a pending run waits for.
            let said = sentence(run);
            let about = if run.phase() == Phase::Pending { said.clone() } else { String::new() };
            let now_is = Some((run.phase(), about));
            if self.run != now_is {
                self.run = now_is;
                let time = status.finished_at.as_deref().filter(|_| ended).or(status.started_at.as_deref());
                let colon = if said.is_empty() { "" } else { ": " };
                lines.push(format!(
                    "{} run {} {:?}{colon}{said}",
                    clock(time),
                    printable(&run.name),
                    run.phase()
                ));
            }
        };
        if !ended {
            of_run(&mut lines);
        }
        for step in &status.steps {
            let waiting =
                waits.as_ref().filter(|(path, _)| *path == step.path).map(|(_, message)| message.as_str());
            let now_is = (phase_of(step), step.attempt, step_message(step, waiting));
            if self.steps.get(&step.path) == Some(&now_is) {
                continue;
            }
            let (phase, attempt, message) = now_is.clone();
            self.steps.insert(step.path.clone(), now_is);
            let time = step.finished_at.as_deref().or(step.started_at.as_deref());
            let time = if step.phase.is_final() { clock(time) } else { clock(None) };
            let attempt = if attempt > 1 { format!(" (attempt {attempt})") } else { String::new() };
            let colon = if message.is_empty() { "" } else { ": " };
            lines.push(printable(&format!("{time} step {} {phase}{attempt}{colon}{message}", step.path)));
        }
        if ended {
            of_run(&mut lines);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TERMINAL: Terminal = Terminal { colours: false, unicode: true, width: None };

    fn at(second: u32) -> String {
        format!("2026-11-21T12:00:{second:02}Z")
    }

    fn step(path: &str, phase: &str, more: &Value) -> Value {
        let mut step = json!({"path": path, "phase": phase, "startedAt": at(1)});
        if !matches!(phase, "Running" | "Pending") {
            step["finishedAt"] = at(3).into();
        }
        for (key, value) in more.as_object().into_iter().flatten() {
            step[key] = value.clone();
        }
        step
    }

    fn run(phase: &str, steps: &[Value]) -> Run {
        Run::new(json!({
            "metadata": {"name": "a-2", "namespace": "n"},
            "spec": {"of": {"apiVersion": "x/v1", "kind": "Shop", "name": "a"}, "plan": "move", "requestedBy": "ann",
                "params": {"to": "b"}},
            "status": {"phase": phase, "startedAt": at(0), "steps": steps, "plans": ["move"], "cause": "Request",
                "record": {"place": {"value": 1, "sequence": 1}}, "deleted": [{"child": "m", "key": 0}]},
        }))
        .unwrap()
    }

    fn example() -> Run {
        run(
            "Running",
            &[
                step("first", "Succeeded", &json!({"outputs": {"id": 1}, "attempt": 1})),
                step("each", "Running", &json!({})),
                step("each[a/b]", "Succeeded", &json!({})),
                step("each[c]", "Running", &json!({})),
                step("each[c]/sure", "Running", &json!({"asked": 0, "message": "Really?"})),
                step(
                    "bad",
                    "Failed",
                    &json!({"reason": "JobFailed", "message": "exit 3", "ignored": true, "attempt": 2}),
                ),
                step("bad/onFailure/note", "Skipped", &json!({})),
                step(
                    "work",
                    "Running",
                    &json!({"attempt": 2, "failures": 1, "reason": "JobFailed", "message": "exit 4",
                "objects": [{"name": "a-work-1"}, {"name": "a-work-2"}]}),
                ),
            ],
        )
    }

    fn instance() -> Value {
        json!({"status": {"conditions": [{"type": "Ready", "status": "False",
            "message": "x waits; a-2, step work: Job a-work-2 is not done; y waits for the run a-2"}]}})
    }

    #[test]
    fn steps_are_shown_as_a_tree() {
        let expected = "\
STEP                   STATUS      ATTEMPTS   TIME   MESSAGE
a-2                    Running                10s
├─ first               Succeeded   1          2s     outputs: id
├─ each                Running                9s
│  ├─ [a/b]            Succeeded              2s
│  └─ [c]              Running                9s
│     └─ sure          Asking                 9s     Really?
├─ bad                 Failed      2          2s     JobFailed: exit 3 (ignored)
│  └─ onFailure/note   Skipped                2s
└─ work                Running     2          9s     Job a-work-2 is not done (last attempt: JobFailed: exit 4)
";
        let shown = tree(&example(), Some(&instance()), TERMINAL, at(10).parse().unwrap());
        assert_eq!(shown, expected);
        let narrow = tree(
            &example(),
            Some(&instance()),
            Terminal { unicode: false, width: Some(90), ..TERMINAL },
            at(10).parse().unwrap(),
        );
        assert!(narrow.is_ascii() && narrow.lines().all(|line| line.len() <= 90), "{narrow}");
        assert!(narrow.contains(" is not done (last\n"), "{narrow}");
    }

    #[test]
    fn the_message_of_a_failure_is_shown_once() {
        let failed =
            json!({"reason": "JobFailed", "message": "Job a-x failed: exit 3", "attempt": 2, "failures": 2});
        let mut ended = run("Failed", &[step("work", "Failed", &failed)]);
        let status = ended.run.status.as_mut().unwrap();
        (status.reason, status.message) =
            ("JobFailed".into(), "step `work`: Job a-x failed: exit 3".to_owned());
        status.finished_at = Some(at(4));
        let shown = tree(&ended, None, TERMINAL, at(10).parse().unwrap());
        assert_eq!(shown.matches("exit 3").count(), 1, "{shown}");
        assert!(shown.contains("JobFailed: step `work`\n"), "{shown}");
        let again = run("Running", &[step("work", "Running", &failed)]);
        let waits = json!({"status": {"conditions": [{"type": "Ready", "status": "False",
            "message": "a-2, step work: attempt 2 failed: Job a-x failed: exit 3"}]}});
        let shown = tree(&again, Some(&waits), TERMINAL, at(10).parse().unwrap());
        assert_eq!(shown.matches("exit 3").count(), 1, "{shown}");
    }

    #[test]
    fn a_run_of_a_stalled_instance_says_why_that_is() {
        let stalled = json!({"status": {"conditions": [
            {"type": "Ready", "status": "False", "reason": "ApplyRefused", "message": "m[1] (Pod n/a-1): exceeded quota"},
            {"type": "Stalled", "status": "True", "reason": "ApplyRefused", "message": "m[1] (Pod n/a-1): exceeded quota"},
        ]}});
        let steps = [step("back", "Running", &json!({}))];
        let shown =
            |phase: &str| tree(&run(phase, &steps), Some(&stalled), TERMINAL, at(10).parse().unwrap());
        let why = "the instance is Stalled (ApplyRefused): m[1] (Pod n/a-1): exceeded quota";
        assert!(shown("Running").contains(why), "{}", shown("Running"));
        assert!(!shown("Succeeded").contains(why), "{}", shown("Succeeded"));
    }

    #[test]
    fn the_title_names_plan_instance_and_requester() {
        let run = example().run;
        assert_eq!(title(&run), "plan move of shop/a (Request by ann, params {\"to\":\"b\"})");
        assert_eq!(remarks(&run), "recorded: place\ndeleted and not applied again: m[0]\n");
    }

    #[test]
    fn each_change_is_one_line() {
        let mut changes = Changes::default();
        let now = at(10).parse().unwrap();
        let first = run("Running", &[step("one", "Running", &json!({}))]);
        assert_eq!(
            changes.next(&first, None, now),
            ["2026-11-21T12:00:00Z run a-2 Running", "2026-11-21T12:00:10Z step one Running"]
        );
        assert!(changes.next(&first, None, now).is_empty());
        let mut last = run("Failed", &[step("one", "Failed", &json!({"message": "no"}))]);
        last.run.status.as_mut().unwrap().message = "step one: no".into();
        last.run.status.as_mut().unwrap().finished_at = Some(at(4));
        assert_eq!(
            changes.next(&last, None, now),
            ["2026-11-21T12:00:03Z step one Failed: no", "2026-11-21T12:00:04Z run a-2 Failed: step one: no"]
        );
    }
}

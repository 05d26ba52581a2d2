//! Explores which run may apply which child, what blocks what, and which run goes first: all interleavings of
//! what users, the cluster and failures do with what the manager does, in small worlds. The decisions are the
//! real ones; only the server is in memory.
//!
//! Two worlds that differ only in times count as one if time has passed equally often since the manager acted. A crash is an event like
//! the others; crashes at each write are explored elsewhere (`plan::tests::crashes`, and on a real API server).

mod events;
mod packages;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicUsize, Ordering};

use events::{BROKEN, Event, IDLE, URGENT, choices, happen, pool, refers};
use packages::{CAREFUL, RESOURCE};

use super::*;
use crate::plan::{Cause, Subject};

/// The name of a child that no step of a rollout names: it follows the instance when no run keeps it.
const LOOSE: &str = "zz";

/// The most runs that a world may have, without those that follow others in a row. More of them show that something is tried again
/// for ever.
const MOST_RUNS: usize = 9;

/// How many runs follow another one in a row before something else happens.
const MOST_IN_A_ROW: u64 = 2;

/// How often time may pass without a decision to act.
const MOST_PASSES: u8 = 8;

/// What is left of an exploration.
#[derive(Debug, Clone, Copy)]
struct Rest {
    /// The events that can happen still, as bits.
    events: u32,
    /// How often time has passed since the manager has acted.
    passes: u8,
}

/// What an exploration has counted.
#[derive(Debug, Default)]
struct Explored {
    worlds: usize,
    steps: usize,
    ends: usize,
    /// Ends where a person has to go on, and could.
    resumed: usize,
    /// Waits after a run for a loss that has succeeded, and has not brought the child back.
    in_vain: usize,
}

impl Explored {
    fn add(&mut self, more: &Self) {
        self.worlds += more.worlds;
        self.steps += more.steps;
        self.ends += more.ends;
        self.resumed += more.resumed;
        self.in_vain += more.in_vain;
    }
}

struct Explorer {
    events: Vec<Event>,
    seen: HashSet<u64>,
    /// The worlds since something else than a decision has happened.
    decided: Vec<u64>,
    explored: Explored,
}

impl Explorer {
    fn explore(resource: &str, size: u64, events: &[Event]) -> Explored {
        let mut templates = vec![("m", config("{{ name }}-{{ i }}"))];
        if resource.contains("id: config") {
            templates.push(("config", config("z")));
            templates.push(("loose", config(LOOSE)));
        }
        let package = package(resource, &templates);
        let mut world = World::with_runs(package, &json!({"size": size, "text": "x"}));
        world.settle();
        assert!(matches!(world.decide().verdict, Verdict::Ready { .. }), "{:?}", world.decide().verdict);
        world.quick = false;
        let mut explorer = Self {
            events: events.to_vec(),
            seen: HashSet::new(),
            decided: Vec::new(),
            explored: Explored::default(),
        };
        let all = Rest { events: (1u32 << events.len()) - 1, passes: 0 };
        explorer.visit(world, all, &mut Vec::new());
        explorer.explored
    }

    fn visit(&mut self, world: World, left: Rest, trace: &mut Vec<String>) {
        let key = key_of(&world, left);
        if !self.seen.insert(key) {
            if self.decided.contains(&key) {
                comes_to_rest(world, trace);
            }
            return;
        }
        self.explored.worlds += 1;
        // What stays, such as a condition, starts its plan again while time passes.
        if world.runs.runs.values().filter(|run| repeats(run) == 0).count() > MOST_RUNS {
            told(&world, "runs are started again and again", trace);
        }
        let decision = world.decide();
        let has_decided = !decision.actions.is_empty();
        if !has_decided
            && matches!(decision.verdict, Verdict::Ready { .. })
            && world.names() != wanted(&world)
        {
            told(&world, "the instance is Ready without the children that it wants", trace);
        }
        if has_decided {
            let mut world = world.clone();
            world.log.clear();
            let writes: Vec<String> = decision.actions.iter().filter_map(brief).collect();
            let is_new = |world: &World| {
                let is_there = world.names().contains(&LOOSE);
                is_there && world.value(LOOSE, "text") == world.instance["spec"]["text"]
            };
            let was_new = is_new(&world);
            world.carry_out(decision.actions, decision.target_changes);
            if was_new && !is_new(&world) {
                told(&world, "a child has the old target again", trace);
            }
            self.decided.push(key);
            let left = Rest { passes: 0, ..left };
            self.next(format!("{} {}", world.log.join(", "), writes.join(", ")), world, left, trace);
            self.decided.pop();
        }
        // What else happens begins another chain of decisions.
        let decided = std::mem::take(&mut self.decided);
        self.happen(world, left, trace, (has_decided, decision.again, &decision.verdict));
        self.decided = decided;
    }

    fn next(&mut self, what: String, world: World, left: Rest, trace: &mut Vec<String>) {
        self.explored.steps += 1;
        trace.push(what);
        self.visit(world, left, trace);
        trace.pop();
    }

    /// What happens beside the decision of the manager.
    fn happen(
        &mut self,
        mut world: World,
        left: Rest,
        trace: &mut Vec<String>,
        (mut moved, wake, verdict): (bool, Option<Duration>, &Verdict),
    ) {
        let starting = |observed: &Observed| observed.readiness != Readiness::Ready;
        if world.objects.values().any(starting) {
            moved = true;
            let mut world = world.clone();
            for object in world.objects.values_mut() {
                object.readiness = Readiness::Ready;
            }
            self.next("ready".into(), world, left, trace);
        }
        for (index, event) in self.events.clone().into_iter().enumerate() {
            let bit = 1 << index;
            let is_possible = match event {
                Event::Mend => refers(&world, BROKEN),
                Event::Help => refers(&world, IDLE),
                Event::Accept => world.runs.refuses.is_some(),
                Event::Calm => world.instance["spec"]["alarm"] == true,
                Event::Air => world.instance["spec"]["smoke"] == true,
                // An edit back comes after the edit.
                Event::Size(_) => self.events[..index]
                    .iter()
                    .zip(0..)
                    .all(|(before, at)| !matches!(before, Event::Size(_)) || left.events & (1 << at) == 0),
                _ => true,
            };
            if left.events & bit != 0 && is_possible {
                let mut world = world.clone();
                happen(&mut world, event);
                let left = Rest { events: left.events & !bit, ..left };
                self.next(format!("{event:?}"), world, left, trace);
            }
        }
        if moved {
            return;
        }
        let in_a_row = world.runs.runs.values().map(repeats).max().unwrap_or_default();
        if in_a_row >= MOST_IN_A_ROW && left.events != 0 {
            return;
        }
        if let Some(wake) = wake {
            if left.passes == MOST_PASSES {
                told(&world, "time passes, and the manager does nothing", trace);
            }
            if in_a_row > MOST_IN_A_ROW + 1 {
                told(&world, "a plan runs again and again, though nothing makes it fail", trace);
            }
            if is_in_vain(&world) {
                self.explored.in_vain += 1;
            }
            world.pass(wake);
            let left = Rest { passes: left.passes + 1, ..left };
            return self.next(format!("{wake:?} pass"), world, left, trace);
        }
        if left.events == 0 {
            self.explored.ends += 1;
            self.end(world, verdict, trace);
        }
    }

    /// Checks a world in which nothing happens any more.
    fn end(&mut self, mut world: World, verdict: &Verdict, trace: &[String]) {
        if has_open(&world) {
            told(&world, "a run waits for ever", trace);
        }
        if !matches!(verdict, Verdict::Ready { .. }) {
            // A person goes on with the newest rollout that has not succeeded.
            self.explored.resumed += 1;
            let mut runs = world.runs.snapshot(world.now, &world.instance).runs;
            runs.sort_by_key(PlanRun::number);
            let is_ended =
                |run: &&PlanRun| matches!(run.phase(), Phase::Failed | Phase::Cancelled) && run.has_started();
            let Some(last) = runs.iter().rev().find(is_ended) else {
                told(&world, "it is not Ready, and nothing says why", trace);
            };
            if last.has_object() || last.is_rollout() {
                retry(&mut world, last);
            } else {
                // What its steps have done is not known any more.
                request(&mut world, "again", &last.spec.plan);
            }
            world.quick = true;
            for object in world.objects.values_mut() {
                object.readiness = Readiness::Ready;
            }
            for _ in 0..20 {
                world.settle();
                match world.decide().again {
                    Some(wake) if has_open(&world) => world.pass(wake),
                    _ => break,
                }
            }
            if !matches!(world.decide().verdict, Verdict::Ready { .. }) {
                told(&world, "a retry does not help", trace);
            }
        }
        let wanted = wanted(&world);
        if world.names() != wanted {
            told(&world, "the instance is Ready without the children that it wants", trace);
        }
        for name in &wanted {
            if world.value(name, "text") != world.instance["spec"]["text"] {
                told(&world, "Ready with an old target", trace);
            }
        }
    }
}

/// The names of the children that the instance wants.
fn wanted(world: &World) -> Vec<String> {
    let size = world.instance["spec"]["size"].as_u64().unwrap();
    let mut wanted: Vec<String> = (0..size).map(|i| format!("a-{i}")).collect();
    if world.package.resources[0].children.len() > 1 {
        wanted.extend(["z".to_owned(), LOOSE.to_owned()]);
    }
    wanted
}

/// How many runs went before a run in a row.
fn repeats(run: &Value) -> u64 {
    run["status"]["repeats"].as_u64().unwrap_or_default()
}

/// Whether a child is away though the newest run for losses has succeeded.
fn is_in_vain(world: &World) -> bool {
    let runs = world.runs.snapshot(world.now, &world.instance).runs;
    let losses = runs.iter().filter(|run| run.cause() == Cause::Loss);
    let newest = losses.max_by_key(|run| run.number());
    newest.is_some_and(|run| run.phase() == Phase::Succeeded) && world.names() != wanted(world)
}

/// Checks that decisions alone do not lead to each other without end.
fn comes_to_rest(mut world: World, trace: &[String]) {
    for _ in 0..100 {
        let decision = world.decide();
        if decision.actions.is_empty() {
            return;
        }
        world.carry_out(decision.actions, decision.target_changes);
    }
    told(&world, "the same is tried again for ever", trace);
}

fn told(world: &World, why: &str, trace: &[String]) -> ! {
    let findings: Vec<String> = world.decide().findings.iter().map(ToString::to_string).collect();
    let run = |run: &Value| {
        let (status, spec) = (&run["status"], &run["spec"]);
        json!([run["metadata"]["name"], spec["plan"], status["phase"], status["reason"], status["message"]])
            .to_string()
    };
    let runs: Vec<String> = world.runs.runs.values().map(run).collect();
    panic!(
        "{why}\n{:?}\n{}\n{}\n{:?}\n{}",
        world.decide().verdict,
        findings.join("\n"),
        runs.join("\n"),
        world.names(),
        trace.join("\n")
    );
}

/// What the trace says of a write of a run.
fn brief(action: &Action) -> Option<String> {
    let Action::Run(action) = action else { return None };
    let action = match &**action {
        RunAction::If { then, .. } => then,
        action => action,
    };
    Some(match action {
        RunAction::Create(_, body) => format!("create {}", body["metadata"]["name"]),
        RunAction::Store { run, status, .. } | RunAction::Show(run, status) => {
            let mut steps = status["steps"].as_array().into_iter().flatten();
            let step = steps.rfind(|step| step["finishedAt"].is_null());
            format!("{} is {} {}", run.name, status["phase"], step.map_or(&Value::Null, |step| &step["path"]))
        }
        RunAction::Remember(write) => format!("remember {}", write.body["spec"]["active"]),
        RunAction::Change(_, run, patch) => format!("{} {patch}", run.name),
        _ => return None,
    })
}

fn retry(world: &mut World, run: &PlanRun) {
    request(world, "again", &run.spec.plan);
    world.store().runs.get_mut("again").unwrap()["spec"]["retryOf"] = run.name.as_str().into();
}

fn has_open(world: &World) -> bool {
    world.runs.snapshot(world.now, &world.instance).runs.iter().any(|run| !run.is_final())
}

/// A hash of what distinguishes a world from others: all but times and versions.
fn key_of(world: &World, left: Rest) -> u64 {
    fn strip(value: &Value, text: &mut String) {
        const TIMES: [&str; 10] = [
            "startedAt",
            "finishedAt",
            "created",
            "creationTimestamp",
            "resourceVersion",
            "usedMilliseconds",
            "sinceMilliseconds",
            "message",
            "stepsDigest",
            "sequence",
        ];
        match value {
            Value::Object(map) => {
                for (name, value) in map.iter().filter(|(name, _)| !TIMES.contains(&name.as_str())) {
                    let _ = write!(text, "{name}:");
                    strip(value, text);
                }
                text.push(';');
            }
            Value::Array(items) => {
                for item in items {
                    strip(item, text);
                }
                text.push(']');
            }
            other => drop(write!(text, "{other},")),
        }
    }
    let mut text = format!(
        "{} {} {} {} {}",
        left.events,
        left.passes,
        refers(world, BROKEN),
        refers(world, IDLE),
        world.runs.refuses.is_some()
    );
    strip(&world.instance["spec"], &mut text);
    strip(&world.instance["metadata"]["annotations"], &mut text);
    for (name, object) in &world.objects {
        let _ = write!(
            text,
            "{name} {} {}",
            world.server.objects[name]["data"],
            object.readiness == Readiness::Ready
        );
    }
    for (name, run) in &world.runs.runs {
        text.push_str(name);
        strip(run, &mut text);
        let uid = run["metadata"]["uid"].as_str().unwrap();
        for subject in [Subject::State, Subject::Object].map(|of| of(uid.to_owned())) {
            let _ = write!(text, "{} ", world.state.refused_run(&subject, world.now).is_some());
        }
    }
    strip(world.runs.state.as_ref().unwrap_or(&Value::Null), &mut text);
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Explores these choices of events, with a thread for each processor.
fn explore_all(resource: &str, size: u64, chosen: impl Iterator<Item = Vec<Event>>) -> Explored {
    let chosen: Vec<Vec<Event>> = chosen.collect();
    let next = AtomicUsize::new(0);
    let explore = || {
        let mut total = Explored::default();
        while let Some(events) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            total.add(&Explorer::explore(resource, size, events));
        }
        total
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(explore)).collect();
        let mut total = Explored::default();
        for worker in workers {
            match worker.join() {
                Ok(explored) => total.add(&explored),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        total
    })
}

/// Explores each two lists of events, three events at most, on one of two packages. `OPERETTA_SWEEP` says how many: `0`, each list
/// alone; `1`, each two of more lists; `3`, each three of those; all of these on both packages.
#[test]
fn no_interleaving_of_runs_deadlocks_or_forgets_a_loss() {
    let sweep = std::env::var("OPERETTA_SWEEP").unwrap_or_default();
    let count = match &*sweep {
        "0" => 1,
        "3" => 3,
        _ => 2,
    };
    let mut in_vain = 0;
    let (ends, resumed) = if count == 1 { (10, 0) } else { (200, 10) };
    for (number, (resource, size)) in [(CAREFUL, 3), (RESOURCE, 2)].into_iter().enumerate() {
        let pool = pool(size, !matches!(&*sweep, "" | "0"));
        let (skipped, stride, most) = if sweep.is_empty() { (number, 2, 3) } else { (0, 1, usize::MAX) };
        let chosen =
            choices(&pool, count).filter(|events| events.len() <= most).skip(skipped).step_by(stride);
        let explored = explore_all(resource, size, chosen);
        eprintln!("{size} members, {count} of {}: {explored:?}", pool.len());
        assert!(explored.ends > ends && explored.resumed >= resumed, "{explored:?}");
        in_vain += explored.in_vain;
    }
    assert!(count == 1 || in_vain > 0, "no loss has stayed after its plan");
}

/// The API server refuses the writes of all PlanRuns, or those of a requested one that goes first, from any moment to any other, with
/// some lists of other events. `OPERETTA_SWEEP=1`: with each of more lists; `3`: with each two of those.
#[test]
fn no_refused_write_deadlocks_runs_or_forgets_a_loss() {
    let sweep = std::env::var("OPERETTA_SWEEP").unwrap_or_default();
    let (count, stride) = match &*sweep {
        "3" => (2, 1),
        "1" => (1, 1),
        _ => (1, 3),
    };
    let one = [Event::Request(URGENT), Event::RefuseOne, Event::Accept];
    let mut total = Explored::default();
    for refusal in [&[Event::Refuse, Event::Accept][..], &one] {
        for (number, (resource, size)) in [(CAREFUL, 3), (RESOURCE, 2)].into_iter().enumerate() {
            let mut pool = pool(size, !matches!(&*sweep, "" | "0"));
            pool.retain(|events| !events.iter().any(|event| refusal.contains(event)));
            let chosen = choices(&pool, count).skip(number).step_by(stride);
            let explored = explore_all(resource, size, chosen.map(|events| [&events[..], refusal].concat()));
            eprintln!("{size} members, {count} of {} and {refusal:?}: {explored:?}", pool.len());
            total.add(&explored);
        }
    }
    assert!(total.ends > 100, "{total:?}");
}

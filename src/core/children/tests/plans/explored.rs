//! Explores which run may apply which child, what blocks what, and which run goes first: all interleavings of
//! what users, the cluster and failures do with what the manager does, in small worlds. The decisions are the
//! real ones; only the server is in memory.
//!
//! Two worlds that differ only in times count as one. A crash is an event like the others; crashes at each write are explored
//! elsewhere (`plan::tests::crashes`, and on a real API server).

mod packages;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicUsize, Ordering};

use packages::{CAREFUL, RESOURCE};

use super::*;
use crate::plan::Subject;

/// An event that happens once, at any moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// A user edits `spec.size`.
    Size(u64),
    /// A user edits `spec.text`.
    Text(&'static str),
    /// The member with this number is lost.
    Lose(u64),
    /// A user requests a run of a plan.
    Request(&'static str),
    /// A user cancels the active run, or one that waits if none is active.
    Cancel,
    /// A user deletes the PlanRun of the active run, or of one that waits if none is active.
    Delete,
    /// A condition becomes true, and stays so whatever its plan does.
    Alarm,
    /// The condition becomes false.
    Calm,
    /// A second condition becomes true, and stays so.
    Smoke,
    /// The second condition becomes false.
    Air,
    /// Steps fail from now on.
    Break,
    /// Steps do not fail any more.
    Mend,
    /// The manager starts again.
    Restart,
    /// The API server refuses changes of PlanRuns from now on.
    Refuse,
    /// The API server refuses changes of the PlanRun [`URGENT`] from now on.
    RefuseOne,
    /// The API server does not refuse them any more.
    Accept,
}

/// The name of a child that no step of a rollout names: it follows the instance when no run keeps it.
const LOOSE: &str = "zz";

/// The name of a requested run that goes first, and its plan.
const URGENT: &str = "repair";

/// The most runs that a world may have. More of them show that something is tried again for ever.
const MOST_RUNS: usize = 9;

/// What an exploration has counted.
#[derive(Debug, Default)]
struct Explored {
    worlds: usize,
    steps: usize,
    ends: usize,
    /// Ends where a person has to go on, and could.
    resumed: usize,
}

impl Explored {
    fn add(&mut self, more: &Self) {
        self.worlds += more.worlds;
        self.steps += more.steps;
        self.ends += more.ends;
        self.resumed += more.resumed;
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
        let all = (1u32 << events.len()) - 1;
        explorer.visit(world, all, &mut Vec::new());
        explorer.explored
    }

    fn visit(&mut self, world: World, left: u32, trace: &mut Vec<String>) {
        let key = key_of(&world, left);
        if !self.seen.insert(key) {
            if self.decided.contains(&key) {
                comes_to_rest(world, trace);
            }
            return;
        }
        self.explored.worlds += 1;
        // A condition that stays starts its plan again while time passes.
        let is_first = |run: &&Value| run["status"]["repeats"].as_u64().is_none_or(|repeats| repeats < 2);
        if world.runs.runs.values().filter(is_first).count() > MOST_RUNS {
            told(&world, "runs are started again and again", trace);
        }
        let decision = world.decide();
        let has_decided = !decision.actions.is_empty();
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
            self.next(format!("{} {}", world.log.join(", "), writes.join(", ")), world, left, trace);
            self.decided.pop();
        }
        // What else happens begins another chain of decisions.
        let decided = std::mem::take(&mut self.decided);
        self.happen(world, left, trace, (has_decided, decision.again, &decision.verdict));
        self.decided = decided;
    }

    fn next(&mut self, what: String, world: World, left: u32, trace: &mut Vec<String>) {
        self.explored.steps += 1;
        trace.push(what);
        self.visit(world, left, trace);
        trace.pop();
    }

    /// What happens beside the decision of the manager.
    fn happen(
        &mut self,
        world: World,
        left: u32,
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
                Event::Mend => !world.foreign.is_empty(),
                Event::Accept => world.runs.refuses.is_some(),
                Event::Calm => world.instance["spec"]["alarm"] == true,
                Event::Air => world.instance["spec"]["smoke"] == true,
                // An edit back comes after the edit.
                Event::Size(_) => self.events[..index]
                    .iter()
                    .zip(0..)
                    .all(|(before, at)| !matches!(before, Event::Size(_)) || left & (1 << at) == 0),
                _ => true,
            };
            if left & bit != 0 && is_possible {
                let mut world = world.clone();
                happen(&mut world, event);
                self.next(format!("{event:?}"), world, left & !bit, trace);
            }
        }
        if moved {
            return;
        }
        if let Some(wake) = wake.filter(|_| has_open(&world) || !matches!(verdict, Verdict::Ready { .. })) {
            let mut world = world;
            world.now += wake;
            return self.next(format!("{wake:?} pass"), world, left, trace);
        }
        if left == 0 {
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
                    Some(wake) if has_open(&world) => world.now += wake,
                    _ => break,
                }
            }
            if !matches!(world.decide().verdict, Verdict::Ready { .. }) {
                told(&world, "a retry does not help", trace);
            }
        }
        let size = world.instance["spec"]["size"].as_u64().unwrap();
        let mut wanted: Vec<String> = (0..size).map(|i| format!("a-{i}")).collect();
        if world.package.resources[0].children.len() > 1 {
            wanted.extend(["z".to_owned(), LOOSE.to_owned()]);
        }
        if world.names() != wanted {
            told(&world, "Ready without what is wanted", trace);
        }
        for name in &wanted {
            if world.value(name, "text") != world.instance["spec"]["text"] {
                told(&world, "Ready with an old target", trace);
            }
        }
    }
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

/// The PlanRun of the active run, or of one that waits.
fn open_run(world: &World) -> Option<String> {
    let phase = |run: &Value| run["status"]["phase"].as_str().unwrap_or_default().to_owned();
    let is_open = |run: &&Value| matches!(&*phase(run), "" | "Pending" | "Running" | "Interrupted");
    let open = world.runs.runs.values().filter(is_open);
    let run = open.max_by_key(|run| phase(run) == "Running")?;
    run["metadata"]["name"].as_str().map(str::to_owned)
}

fn happen(world: &mut World, event: Event) {
    let edit = |world: &mut World, field: &str, value: Value| {
        let mut spec = world.instance["spec"].clone();
        spec[field] = value;
        world.edit(spec);
    };
    match event {
        Event::Size(size) => edit(world, "size", size.into()),
        Event::Text(text) => edit(world, "text", text.into()),
        Event::Lose(member) => drop(world.remove(&format!("ConfigMap/a-{member}"))),
        Event::Request(plan) => request(world, plan, plan),
        Event::Cancel => {
            if let Some(name) = open_run(world) {
                world.store().runs.get_mut(&name).unwrap()["spec"]["cancel"] = true.into();
            }
        }
        Event::Delete => {
            if let Some(name) = open_run(world) {
                world.store().delete(&name);
            }
        }
        Event::Alarm => edit(world, "alarm", true.into()),
        Event::Calm => edit(world, "alarm", false.into()),
        Event::Smoke => edit(world, "smoke", true.into()),
        Event::Air => edit(world, "smoke", false.into()),
        Event::Break => {
            let value = Arc::new(json!({"metadata": {"name": "broken", "namespace": "n"}}));
            world.foreign.push(Arc::new(Referred {
                namespace: Some("n".into()),
                name: "broken".into(),
                value,
                ready: true,
            }));
        }
        Event::Mend => world.foreign.clear(),
        Event::Restart => world.restart(),
        Event::Refuse => world.store().refuses = Some(|action| changes_plan_run(action, None)),
        Event::RefuseOne => world.store().refuses = Some(|action| changes_plan_run(action, Some(URGENT))),
        Event::Accept => world.store().refuses = None,
    }
}

/// Whether an action writes a PlanRun, of that name if there is one. What goes to the memory instead is no such write.
fn changes_plan_run(action: &RunAction, name: Option<&str>) -> bool {
    match action {
        RunAction::If { then, .. } => changes_plan_run(then, name),
        RunAction::Store { memory: None, run, .. }
        | RunAction::Show(run, _)
        | RunAction::Change(RunObject::PlanRun, run, _) => name.is_none_or(|name| run.name == name),
        _ => false,
    }
}

/// A hash of what distinguishes a world from others: all but times and versions.
fn key_of(world: &World, left: u32) -> u64 {
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
    let mut text = format!("{left} {} {}", world.foreign.len(), world.runs.refuses.is_some());
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

/// The events that may happen in a world of that size; those of one list happen in this order. `all`: whether
/// the less important ones are included.
fn pool(size: u64, all: bool) -> Vec<Vec<Event>> {
    let mut pool = vec![
        vec![Event::Size(size + 1), Event::Size(size)],
        vec![Event::Text("y")],
        vec![Event::Lose(0)],
        vec![Event::Lose(1)],
        vec![Event::Request("repair")],
        vec![Event::Request("hold")],
        vec![Event::Request("nothing")],
        vec![Event::Cancel],
        vec![Event::Break, Event::Mend],
        vec![Event::Alarm, Event::Calm],
    ];
    if all {
        pool.push(vec![Event::Size(size + 1)]);
        pool.push(vec![Event::Size(size - 1)]);
        pool.push(vec![Event::Request("backup")]);
        pool.push(vec![Event::Restart]);
        pool.push(vec![Event::Lose(0), Event::Lose(0)]);
        pool.push(vec![Event::Delete]);
        pool.push(vec![Event::Smoke, Event::Air]);
    }
    pool
}

/// All choices of that many lists of events from the pool.
fn choices(pool: &[Vec<Event>], count: u32) -> impl Iterator<Item = Vec<Event>> {
    let chosen = (0u32..1 << pool.len()).filter(move |chosen| chosen.count_ones() == count);
    chosen.map(|chosen| {
        let lists = pool.iter().enumerate().filter(|(index, _)| chosen & (1 << index) != 0);
        lists.flat_map(|(_, events)| events.clone()).collect()
    })
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

/// Explores each two lists of events on one of two packages. `OPERETTA_SWEEP` says how many: `0`, each list alone; `1`, each two
/// of more lists; `3`, each three of those; all of these on both packages.
#[test]
fn no_interleaving_of_runs_deadlocks_or_forgets_a_loss() {
    let sweep = std::env::var("OPERETTA_SWEEP").unwrap_or_default();
    let count = match &*sweep {
        "0" => 1,
        "3" => 3,
        _ => 2,
    };
    let (ends, resumed) = if count == 1 { (10, 0) } else { (200, 10) };
    for (number, (resource, size)) in [(CAREFUL, 3), (RESOURCE, 2)].into_iter().enumerate() {
        let pool = pool(size, !matches!(&*sweep, "" | "0"));
        let (skipped, stride) = if sweep.is_empty() { (number, 2) } else { (0, 1) };
        let chosen = choices(&pool, count).skip(skipped).step_by(stride);
        let explored = explore_all(resource, size, chosen);
        eprintln!("{size} members, {count} of {}: {explored:?}", pool.len());
        assert!(explored.ends > ends && explored.resumed >= resumed, "{explored:?}");
    }
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

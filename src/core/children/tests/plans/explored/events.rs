//! What users, the cluster and failures do in the worlds that are explored.

use super::*;

/// An event that happens once, at any moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
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
    /// The plan for losses does nothing from now on, and succeeds.
    Idle,
    /// The plan for losses does its work again.
    Help,
    /// The manager starts again.
    Restart,
    /// The API server refuses changes of PlanRuns from now on.
    Refuse,
    /// The API server refuses changes of the PlanRun [`URGENT`] from now on.
    RefuseOne,
    /// The API server does not refuse them any more.
    Accept,
}

/// The names of the objects that make steps fail, and the plan for losses do nothing.
pub(super) const BROKEN: &str = "broken";
pub(super) const IDLE: &str = "idle";

/// The name of a requested run that goes first, and its plan.
pub(super) const URGENT: &str = "repair";

/// The PlanRun of the active run, or of one that waits.
fn open_run(world: &World) -> Option<String> {
    let phase = |run: &Value| run["status"]["phase"].as_str().unwrap_or_default().to_owned();
    let is_open = |run: &&Value| matches!(&*phase(run), "" | "Pending" | "Running" | "Interrupted");
    let open = world.runs.runs.values().filter(is_open);
    let run = open.max_by_key(|run| phase(run) == "Running")?;
    run["metadata"]["name"].as_str().map(str::to_owned)
}

/// Creates an object that the package reads.
fn refer(world: &mut World, name: &str) {
    world.foreign.push(referred(json!({"metadata": {"name": name, "namespace": "n"}}), true));
}

/// Whether such an object exists.
pub(super) fn refers(world: &World, name: &str) -> bool {
    world.foreign.iter().any(|object| &*object.name == name)
}

pub(super) fn happen(world: &mut World, event: Event) {
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
        Event::Break => refer(world, BROKEN),
        Event::Mend => world.foreign.retain(|object| &*object.name != BROKEN),
        Event::Idle => refer(world, IDLE),
        Event::Help => world.foreign.retain(|object| &*object.name != IDLE),
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

/// The events that may happen in a world of that size; those of one list happen in this order. `all`: whether
/// the less important ones are included.
pub(super) fn pool(size: u64, all: bool) -> Vec<Vec<Event>> {
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
        vec![Event::Idle, Event::Help],
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
pub(super) fn choices(pool: &[Vec<Event>], count: u32) -> impl Iterator<Item = Vec<Event>> {
    let chosen = (0u32..1 << pool.len()).filter(move |chosen| chosen.count_ones() == count);
    chosen.map(|chosen| {
        let lists = pool.iter().enumerate().filter(|(index, _)| chosen & (1 << index) != 0);
        lists.flat_map(|(_, events)| events.clone()).collect()
    })
}

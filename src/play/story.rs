//! A failing schedule as a story of at most ten lines.

use std::time::Duration;

use super::course::Part;
use super::deeds::{Decider, Deed, bare};
use super::disturbance::{Disturbance, Target};
use super::end::{End, differences};
use super::ended::Ended;
use super::schedules::{Base, reactions};
use super::suite::Suite;
use crate::package::plan::{Action, Step, written_duration};
use crate::package::{Package, Resource};

/// How many lines a story has at most, and how many characters a line.
const LINES: usize = 10;
const WIDTH: usize = 240;

/// A schedule under which a case fails, as short as it can be.
#[derive(Debug, Clone)]
pub(crate) struct Story {
    pub place: (usize, usize),
    pub part: Part,
    /// Empty if it fails without disturbance.
    pub schedule: Vec<Disturbance>,
    pub lines: Vec<String>,
}

/// Why a play counts as failed, in lines.
pub(super) fn failure(ended: &Ended, undisturbed: &End) -> Option<Vec<String>> {
    if let Some(failure) = &ended.failure {
        let at = failure.location.as_ref().map(|location| format!("{location}: ")).unwrap_or_default();
        let help = failure.help.iter().flat_map(|help| help.lines()).map(str::to_owned);
        return Some([format!("{at}{}", failure.message)].into_iter().chain(help).collect());
    }
    let differences = differences(undisturbed, &ended.end);
    (!differences.is_empty()).then(|| ["In the end:".to_owned()].into_iter().chain(differences).collect())
}

impl Story {
    pub(super) fn new(suites: &[Suite], base: &Base, schedule: Vec<Disturbance>, ended: &Ended) -> Self {
        let mut lines = Vec::new();
        for struck in &ended.struck {
            let Disturbance { target, number, .. } = struck.disturbance;
            let what = match target {
                Target::Play => struck.text.clone(),
                _ => format!("the manager {} ({} {number})", struck.text, target.word()),
            };
            let pod = struck.pod.as_ref().map_or_else(String::new, |pod| format!(" ({pod})"));
            lines.push(format!("{}: {what}: {}{pod}", after(struck.at), struck.disturbance.story()));
        }
        let suite = &suites[base.place.0];
        // That a pod which has died is created again is no mistake.
        let pods = ended.struck.iter().filter_map(|struck| struck.pod.as_ref());
        let expected: Vec<String> = pods.map(|pod| format!("applies pods/{pod}")).collect();
        let suspect = reactions(base, ended).find(|deed| !expected.contains(&deed.text));
        lines.extend(suspect.map(|deed| wrong(suite, deed)));
        let failure = failure(ended, &base.end)
            .unwrap_or_else(|| vec!["it fails only sometimes: the same schedule has passed now".to_owned()]);
        lines.extend(failure);
        Self { place: base.place, part: base.part, schedule, lines: short(lines) }
    }

    /// A case that fails without disturbance.
    pub(super) fn undisturbed(ended: &Ended) -> Self {
        let lines = ["it fails without disturbance:".to_owned()].into_iter();
        let lines = lines.chain(failure(ended, &End::new()).unwrap_or_default()).collect();
        Self { place: ended.place, part: Part::Whole, schedule: Vec::new(), lines: short(lines) }
    }
}

fn after(time: Duration) -> String {
    format!(
        "after {}",
        written_duration(Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or_default()))
    )
}

/// At most ten lines that are not too long.
fn short(mut lines: Vec<String>) -> Vec<String> {
    if lines.len() > LINES {
        let more = lines.len() - LINES + 1;
        lines.truncate(LINES - 1);
        lines.push(format!("({more} more lines)"));
    }
    let cut = |line: String| match line.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    };
    lines.into_iter().map(cut).collect()
}

/// What was done, and which step of which file has decided it.
fn wrong(suite: &Suite, deed: &Deed) -> String {
    let what = format!("{}: the manager {}, which it does not do otherwise", after(deed.at), deed.text);
    let Some(by) = &deed.by else { return what };
    let place = suite.packages.iter().find_map(|package| locate(package, by));
    let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
    format!("{what}: step {} of run {}{place}", by.step, by.run)
}

/// Where the step is in `operator.yaml`.
fn locate(package: &Package, by: &Decider) -> Option<String> {
    let resource = package.resources.iter().find(|resource| resource.kind.kind == by.kind)?;
    let path = bare(&by.step);
    let mut names: Vec<&str> = path.split('/').collect();
    // A run of several plans names the plan first.
    let plan = match by.plans.iter().find(|plan| by.plans.len() > 1 && *plan == names[0]) {
        Some(plan) => {
            names.remove(0);
            plan
        }
        None => by.plans.first()?,
    };
    let step = find(resource, &resource.plan(plan)?.steps, &names)?;
    Some(step.location.to_string())
}

fn find<'p>(resource: &'p Resource, steps: &'p [Step], names: &[&str]) -> Option<&'p Step> {
    let (first, rest) = names.split_first()?;
    let step = steps.iter().find(|step| step.name == *first)?;
    let inner = match &step.action {
        Action::Steps(_, steps) => find(resource, steps, rest),
        Action::Plan(call) if call.of.is_none() => find(resource, &resource.plan(&call.plan)?.steps, rest),
        _ => None,
    };
    inner.or(Some(step))
}

//! `operetta test --explore` and `--replay`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::out;
use crate::play::{self, Disturbance, Limits, Story, Suite, What};

/// The largest file of a schedule, in bytes.
const FILE: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Exploration")]
pub(super) struct ExploreArgs {
    /// Play the cases under schedules: the manager is killed at a write, answers are lost or refused, watches end
    ///
    /// Each must end as without disturbance. First each disturbance of each write alone, then several at random.
    #[arg(long)]
    explore: bool,

    /// How many schedules are played at most
    #[arg(long, value_name = "COUNT", default_value_t = 1000, requires = "explore")]
    schedules: usize,

    /// How long schedules are played at most, such as 60s
    #[arg(long = "for", value_name = "DURATION", value_parser = crate::cli::command::duration, requires = "explore")]
    time: Option<Duration>,

    /// The seed of the order and of what is random
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "explore")]
    seed: u64,

    /// Where the schedule of the first failure is stored
    #[arg(long, value_name = "FILE", default_value = "operetta-schedule.json", requires = "explore")]
    save: PathBuf,

    /// Play the stored schedule of a failure again
    #[arg(long, value_name = "FILE", conflicts_with = "explore")]
    replay: Option<PathBuf>,
}

impl ExploreArgs {
    /// Whether the cases are explored or replayed, and not only played.
    pub(super) fn is_wanted(&self) -> bool {
        self.explore || self.replay.is_some()
    }
}

/// Explores a package, or plays a stored schedule. Returns whether nothing failed.
pub(super) fn run(
    args: &ExploreArgs,
    folder: &Path,
    suites: &[Suite],
    selected: &[(usize, usize)],
    threads: usize,
) -> bool {
    if let Some(file) = &args.replay {
        return replay(file, suites);
    }
    out::line(format!("\n{}: exploring {} cases, seed {}", folder.display(), selected.len(), args.seed));
    let started = Instant::now();
    let limits = Limits { schedules: args.schedules, time: args.time, seed: args.seed, threads };
    let (played, stories) = play::explore(suites, selected, limits);
    for story in &stories {
        tell(suites, story);
    }
    let seconds = started.elapsed().as_secs_f64();
    let word = if stories.is_empty() { "ok" } else { "FAILED" };
    out::line(format!("\nexploration: {word}. {played} schedules in {seconds:.1} s; {} fail", stories.len()));
    if let Some(story) = stories.iter().find(|story| !story.schedule.is_empty()) {
        let text = format!("{:#}\n", document(suites, story));
        match fs::write(&args.save, text) {
            Ok(()) => drop(out::line(format!(
                "the first is stored in {}: play it with --replay",
                args.save.display()
            ))),
            Err(error) => out::note(format!("error: {} cannot be written: {error}", args.save.display())),
        }
    }
    stories.is_empty()
}

fn case_of<'s>(suites: &'s [Suite], story: &Story) -> (&'s str, &'s str) {
    let (suite, case) = story.place;
    (&suites[suite].path, &suites[suite].cases[case].name)
}

/// A failure as a short story.
fn tell(suites: &[Suite], story: &Story) {
    let (file, name) = case_of(suites, story);
    out::line(format!("\n---- {name} ({file}) ----"));
    if story.schedule.is_empty() {
        out::line("It fails without disturbance:");
    }
    for (disturbance, request) in &story.struck {
        out::line(format!("write {}: {request}", disturbance.write));
        out::line(format!("  {}", disturbance.what.story()));
    }
    out::line(out::printable(&story.failure));
}

fn document(suites: &[Suite], story: &Story) -> Value {
    let (file, name) = case_of(suites, story);
    let disturbances = story.schedule.iter().map(|one| json!({"write": one.write, "what": one.what.word()}));
    let disturbances: Vec<Value> = disturbances.collect();
    json!({"file": file, "case": name, "disturbances": disturbances})
}

fn replay(file: &Path, suites: &[Suite]) -> bool {
    let wrong = |why: &str| {
        out::note(format!("error: {} is no stored schedule: {why}", file.display()));
        false
    };
    if fs::metadata(file).is_ok_and(|metadata| metadata.len() > FILE) {
        return wrong("it is too large");
    }
    let stored: Value = match fs::read(file).map_err(|error| error.to_string()) {
        Err(why) => return wrong(&why),
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Err(error) => return wrong(&error.to_string()),
            Ok(stored) => stored,
        },
    };
    let is_it = |suite: &Suite, name: &str| stored["case"] == name && stored["file"] == *suite.path;
    let place = suites.iter().enumerate().find_map(|(index, suite)| {
        let case = suite.cases.iter().position(|case| is_it(suite, &case.name))?;
        Some((index, case))
    });
    let Some(place) = place else { return wrong("its case is not there") };
    let disturbances = stored["disturbances"].as_array().into_iter().flatten().map(|one| {
        let what = What::ALL.into_iter().find(|what| one["what"] == what.word())?;
        Some(Disturbance { write: one["write"].as_u64()?, what })
    });
    let Some(schedule) = disturbances.collect::<Option<Vec<_>>>() else {
        return wrong("a disturbance is unknown");
    };
    match play::replay(suites, place, &schedule) {
        Some(story) => {
            tell(suites, &story);
            out::line("\nreplay: FAILED");
            false
        }
        None => out::line("\nreplay: ok"),
    }
}

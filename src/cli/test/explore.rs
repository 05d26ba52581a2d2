//! `operetta test --explore` and `--replay`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::out;
use crate::package::read_named;
use crate::play::{self, Disturbance, InjectedFault, Limits, Part, Story, Suite};

/// The largest file of a schedule, in bytes.
const FILE: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Exploration")]
pub(super) struct ExploreArgs {
    /// Play the cases under schedules: the manager is killed, answers are lost or refused, watches are late, pods die
    ///
    /// Each must end as without disturbance. First each disturbance of each moment alone, with combinations in between.
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

    /// How many failures end the exploration
    #[arg(long, value_name = "COUNT", default_value_t = 5, requires = "explore")]
    failures: usize,

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

/// What exploring a package has found, or playing a stored schedule.
pub(super) struct Found {
    pub is_ok: bool,
    pub document: Value,
}

/// Explores a package, or plays a stored schedule.
pub(super) fn run(
    args: &ExploreArgs,
    folder: &Path,
    suites: &[Suite],
    selected: &[(usize, usize)],
    threads: usize,
    is_text: bool,
) -> Found {
    let line = |text: String| {
        if is_text {
            out::line(text);
        }
    };
    let name = out::path(folder);
    if let Some(file) = &args.replay {
        let story = match replay(folder, file, suites) {
            Ok(story) => story,
            Err(why) => {
                out::note(format!("error: {} is no stored schedule: {why}", file.display()));
                return Found { is_ok: false, document: json!({"package": name, "error": why}) };
            }
        };
        let failures: Vec<Value> = story.iter().map(|story| document(suites, story)).collect();
        story.iter().flat_map(|story| told(suites, story)).for_each(line);
        line(format!("\nreplay: {}", if story.is_some() { "FAILED" } else { "ok" }));
        return Found { is_ok: story.is_none(), document: json!({"package": name, "failures": failures}) };
    }
    line(format!("\n{name}: exploring {} cases, seed {}", selected.len(), args.seed));
    let started = Instant::now();
    let limits = Limits {
        schedules: args.schedules,
        failures: args.failures,
        time: args.time,
        seed: args.seed,
        threads,
    };
    let explored = play::explore(suites, selected, limits);
    let (played, stories) = (explored.played, explored.stories);
    stories.iter().flat_map(|story| told(suites, story)).for_each(line);
    let seconds = started.elapsed().as_secs_f64();
    let word = if stories.is_empty() { "ok" } else { "FAILED" };
    line(format!("\nexploration: {word}. {played} schedules in {seconds:.1} s; {} fail", stories.len()));
    if let Some(story) = stories.iter().find(|story| !story.schedule.is_empty()) {
        let text = format!("{:#}\n", document(suites, story));
        // Written beside it and renamed: a link of that name is replaced, and not followed.
        match operetta_registry::write(&args.save, text.as_bytes()) {
            Ok(()) => line(format!("the first is stored in {}: play it with --replay", args.save.display())),
            Err(error) => out::note(format!("error: {} cannot be written: {error}", args.save.display())),
        }
    }
    let failures: Vec<Value> = stories.iter().map(|story| document(suites, story)).collect();
    let document = json!({"package": name, "schedules": played, "seed": args.seed, "seconds": seconds, "failures": failures});
    Found { is_ok: stories.is_empty(), document }
}

fn case_of<'s>(suites: &'s [Suite], story: &Story) -> (&'s str, &'s str) {
    let (suite, case) = story.place;
    (&suites[suite].path, &suites[suite].cases[case].name)
}

/// The word of a part in files of schedules.
fn part_word(part: Part) -> &'static str {
    match part {
        Part::Whole => "whole",
        Part::Before => "before",
        Part::After => "after",
    }
}

/// A failure as a short story.
fn told(suites: &[Suite], story: &Story) -> Vec<String> {
    let (file, name) = case_of(suites, story);
    let head = match story.part {
        Part::Before => format!("\n---- the steps before each case ({}) ----", out::printable(file)),
        _ => format!("\n---- {} ({}) ----", out::printable(name), out::printable(file)),
    };
    [head].into_iter().chain(story.lines.iter().map(|line| out::printable(line))).collect()
}

fn document(suites: &[Suite], story: &Story) -> Value {
    let (file, name) = case_of(suites, story);
    let disturbances = story.schedule.iter().map(|one| {
        let mut value = json!({"what": one.what.word(), "choice": one.choice});
        value[one.target.word()] = one.number.into();
        value
    });
    let disturbances: Vec<Value> = disturbances.collect();
    json!({
        "file": file, "case": name, "part": part_word(story.part), "disturbances": disturbances, "story": story.lines,
    })
}

/// A disturbance of a file.
fn disturbance(value: &Value) -> Option<Disturbance> {
    let (target, number) =
        InjectedFault::ALL.iter().find_map(|(target, _)| Some((*target, value[target.word()].as_u64()?)))?;
    let what = InjectedFault::of(target).iter().copied().find(|what| value["what"] == what.word())?;
    Some(Disturbance { target, number, what, choice: value["choice"].as_u64().unwrap_or_default() })
}

/// Plays a stored schedule again. Returns its story if it fails.
fn replay(folder: &Path, file: &Path, suites: &[Suite]) -> Result<Option<Story>, String> {
    let text = read_named(&[folder], file, FILE).map_err(|why| why.to_string())?;
    let stored: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let is_it = |suite: &Suite, name: &str| stored["case"] == name && stored["file"] == *suite.path;
    let place = suites.iter().enumerate().find_map(|(index, suite)| {
        let case = suite.cases.iter().position(|case| is_it(suite, &case.name))?;
        Some((index, case))
    });
    let place = place.ok_or("its case is not there")?;
    let parts = [Part::Whole, Part::Before, Part::After];
    let part = parts.into_iter().find(|part| stored["part"] == part_word(*part)).unwrap_or(Part::Whole);
    let disturbances = stored["disturbances"].as_array().into_iter().flatten().map(disturbance);
    let schedule = disturbances.collect::<Option<Vec<_>>>().ok_or("a disturbance is unknown")?;
    Ok(play::replay(suites, place, part, &schedule))
}

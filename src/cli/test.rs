//! `operetta test`: plays the cases of packages.

mod explore;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::json;

use super::out;
use crate::diag::Diagnostic;
use crate::package::plan::written_duration;
use crate::play::{self, Ended, Reached, Suite};

/// Play the test cases of packages, without a cluster
///
/// The cases of tests/*.yaml of a package run on an embedded Kubernetes API with the real manager, each in a cluster of its own and in
/// virtual time. What the programs in pods do is said in tests/world.yaml.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta test operators/etcd
  operetta test operators/*
  operetta test operators/etcd --case resize           # the cases whose name contains this
  operetta test operators/etcd -o junit > report.xml
  operetta test operators/etcd --explore --for 5m      # with kills, lost answers, refusals and ended watches
  operetta test operators/etcd --replay operetta-schedule.json

Exit codes: 0 all cases pass; 1 a case fails, or a file has mistakes; 2 wrong usage.")]
pub(super) struct Args {
    /// Folders of packages
    #[arg(required = true, value_name = "PACKAGE")]
    packages: Vec<PathBuf>,

    /// Play only cases whose name contains this text
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,

    /// How many cases are played at once [default: the number of processors]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,

    /// List the children, plans and steps that no case has reached
    #[arg(long)]
    coverage: bool,

    #[command(flatten)]
    explore: explore::ExploreArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A JSON document
    Json,
    /// The XML of `JUnit`
    Junit,
}

/// A package with its cases.
struct Tested {
    folder: String,
    suites: Vec<Suite>,
    ended: Vec<Ended>,
    took: Duration,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let mut is_ok = true;
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
    let mut all = Vec::new();
    for folder in &args.packages {
        let (packages, broken) = super::load::load_all(std::slice::from_ref(folder));
        is_ok &= broken.is_empty();
        for package in packages {
            match play::load(folder, &package) {
                Ok(suites) => {
                    let selected = select(&suites, args.case.as_deref());
                    if args.explore.is_wanted() {
                        is_ok &= explore::run(&args.explore, folder, &suites, &selected, threads);
                    } else {
                        all.push(test(args, folder, suites, &selected, threads));
                    }
                }
                Err(errors) => {
                    out::report(&errors);
                    out::note(format!("error: the tests of {} cannot be read", folder.display()));
                    is_ok = false;
                }
            }
        }
    }
    match args.output {
        None => {}
        Some(Format::Json) => drop(out::text(&document(&all))),
        Some(Format::Junit) => drop(out::text(&junit(&all))),
    }
    is_ok &= all.iter().flat_map(|tested| &tested.ended).all(|ended| ended.failure.is_none());
    if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The cases whose name contains a text.
fn select(suites: &[Suite], text: Option<&str>) -> Vec<(usize, usize)> {
    let cases = suites.iter().enumerate().flat_map(|(suite, one)| {
        one.cases.iter().enumerate().map(move |(case, one)| ((suite, case), &one.name))
    });
    cases.filter(|(_, name)| text.is_none_or(|text| name.contains(text))).map(|(place, _)| place).collect()
}

fn test(
    args: &Args,
    folder: &Path,
    suites: Vec<Suite>,
    selected: &[(usize, usize)],
    threads: usize,
) -> Tested {
    let folder = folder.display().to_string();
    let is_text = args.output.is_none();
    let skipped = suites.iter().map(|suite| suite.cases.len()).sum::<usize>() - selected.len();
    if is_text {
        out::line(format!("\n{folder}: {}", counted(selected.len(), "case")));
    }
    let started = Instant::now();
    let ended = play::play(&suites, selected, threads, |ended| {
        if is_text {
            let word = if ended.failure.is_some() { "FAILED" } else { "ok" };
            out::line(format!("test {} ... {word} ({})", name(&suites, ended), passed(ended)));
        }
    });
    let took = started.elapsed();
    if is_text {
        summary(args, &suites, &ended, skipped, took);
    }
    Tested { folder, suites, ended, took }
}

fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

fn name<'s>(suites: &'s [Suite], ended: &Ended) -> &'s str {
    let (suite, case) = ended.place;
    &suites[suite].cases[case].name
}

/// The time of a play, in whole seconds.
fn passed(ended: &Ended) -> String {
    written_duration(Duration::from_secs(ended.passed.as_secs()))
}

fn summary(args: &Args, suites: &[Suite], ended: &[Ended], skipped: usize, took: Duration) {
    let failures: Vec<&Ended> = ended.iter().filter(|ended| ended.failure.is_some()).collect();
    for ended in &failures {
        let Some(failure) = &ended.failure else { continue };
        out::line(format!("\n---- {} ----", name(suites, ended)));
        out::report(std::slice::from_ref::<Diagnostic>(failure));
    }
    let word = if failures.is_empty() { "ok" } else { "FAILED" };
    let simulated: Duration = ended.iter().map(|ended| ended.passed).sum();
    out::line(format!(
        "\ntest result: {word}. {} passed; {} failed; {skipped} filtered out; {} of virtual time in {:.2} s",
        ended.len() - failures.len(),
        failures.len(),
        written_duration(Duration::from_secs(simulated.as_secs())),
        took.as_secs_f64(),
    ));
    let reached: Reached = ended.iter().flat_map(|ended| ended.reached.iter().cloned()).collect();
    let all = play::reachable(suites);
    let missed: Vec<&String> = all.difference(&reached).collect();
    let count = |what: &str| {
        let is = |name: &&String| kind_of(name) == what;
        (all.iter().filter(is).count(), missed.iter().filter(|name| kind_of(name) == what).count())
    };
    let parts = ["child", "plan", "step"].map(|what| (what, count(what)));
    let parts = parts.into_iter().filter(|(_, (all, _))| *all > 0).map(|(what, (all, missed))| {
        let what = if what == "child" {
            "children"
        } else if what == "plan" {
            "plans"
        } else {
            "steps"
        };
        format!("{} of {all} {what}", all - missed)
    });
    out::line(format!("reached: {}", parts.collect::<Vec<_>>().join(", ")));
    if args.coverage {
        for name in missed {
            out::line(format!("  not reached: {name}"));
        }
    } else if !missed.is_empty() && skipped == 0 {
        out::line("--coverage lists the others");
    }
}

/// What a name of something reached is about.
fn kind_of(name: &str) -> &'static str {
    if name.contains(" step ") {
        "step"
    } else if name.contains(" child ") {
        "child"
    } else {
        "plan"
    }
}

fn document(all: &[Tested]) -> String {
    let packages = all.iter().map(|tested| {
        let reached: Reached = tested.ended.iter().flat_map(|ended| ended.reached.iter().cloned()).collect();
        let missed: Vec<String> = play::reachable(&tested.suites).difference(&reached).cloned().collect();
        let cases = tested.ended.iter().map(|ended| {
            json!({
                "file": tested.suites[ended.place.0].path,
                "name": name(&tested.suites, ended),
                "passed": ended.failure.is_none(),
                "virtualSeconds": ended.passed.as_secs_f64(),
                "failure": ended.failure.as_ref().map(ToString::to_string),
            })
        });
        json!({
            "package": tested.folder,
            "seconds": tested.took.as_secs_f64(),
            "cases": cases.collect::<Vec<_>>(),
            "notReached": missed,
        })
    });
    out::json(&json!({"packages": packages.collect::<Vec<_>>()}))
}

fn junit(all: &[Tested]) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for tested in all {
        let failures = tested.ended.iter().filter(|ended| ended.failure.is_some()).count();
        let _ = writeln!(
            text,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" time=\"{:.3}\">",
            xml(&tested.folder),
            tested.ended.len(),
            tested.took.as_secs_f64(),
        );
        for ended in &tested.ended {
            let file = &tested.suites[ended.place.0].path;
            let head = format!(
                "    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\"",
                xml(file),
                xml(name(&tested.suites, ended)),
                ended.passed.as_secs_f64(),
            );
            let _ = match &ended.failure {
                None => writeln!(text, "{head}/>"),
                Some(failure) => writeln!(
                    text,
                    "{head}>\n      <failure message=\"{}\">{}</failure>\n    </testcase>",
                    xml(&failure.message),
                    xml(&failure.to_string()),
                ),
            };
        }
        text += "  </testsuite>\n";
    }
    text + "</testsuites>\n"
}

/// Text in XML. Control characters have no form there.
fn xml(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\n' => safe += "&#10;",
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_is_safe_in_xml() {
        assert_eq!(super::xml("a<b>&\"c\"\u{1b}[0m"), "a&lt;b&gt;&amp;&quot;c&quot;\u{fffd}[0m");
    }
}

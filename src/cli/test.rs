//! `operetta test`: plays the cases of packages.

mod cluster;
mod explore;
mod init;
mod update;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::{Value, json};

use cluster::{Place, Which};

use super::out;
use super::show::named;
use crate::diag::Diagnostic;
use crate::package::Package;
use crate::package::plan::written_duration;
use crate::play::{self, Ended, Reached, Sources, Suite};
use crate::printable;

/// How many cases are named when none is selected.
const NAMED: usize = 20;
/// How many lines of a failure are shown, and how many characters of each, without `--full`.
const LINES: usize = 60;
const WIDTH: usize = 240;

/// Play the test cases of packages, without a cluster
///
/// The cases of tests/*.yaml of a package run on an embedded Kubernetes API with the real manager, each in a cluster of its own and in
/// virtual time. What the programs in pods do is said in tests/world.yaml.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta test operators/etcd
  operetta test operators/*
  operetta test operators/etcd --case resize           # the cases whose name contains this
  operetta test operators/etcd --init --from my.yaml   # writes a first test file
  operetta test operators/etcd --update                # records what is there in the expectations that differ
  operetta test operators/etcd -o junit > report.xml
  operetta test operators/etcd --explore --for 5m      # with kills, lost answers, late watches, dying pods
  operetta test operators/etcd --replay operetta-schedule.json
  operetta test operators/webapp --cluster local       # the same cases on a real kube-apiserver on this machine

Environment:
  KUBECONFIG         the kubeconfig of --cluster current
  OPERETTA_CACHE     where the control plane of --cluster local is kept (default: ~/.cache/operetta)

Exit codes: 0 all cases pass; 1 a case fails, or a file has mistakes; 2 wrong usage.")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
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

    /// Where the cases are played: in real time on a real control plane, each in a namespace of its own
    #[arg(long, value_enum, default_value_t = Which::Embedded, conflicts_with_all = ["explore", "replay", "update", "init"])]
    cluster: Which,

    /// Record what is there: replace the values of expectations that differ, and nothing else of the files
    #[arg(long, conflicts_with_all = ["explore", "replay"])]
    update: bool,

    /// Packages without cases are no failure
    #[arg(long)]
    allow_no_cases: bool,

    /// List the children, plans and steps that no case has reached
    #[arg(long)]
    coverage: bool,

    /// Show each failure as a whole: all lines, each to its end
    #[arg(long)]
    full: bool,

    /// Write a first test file from an instance, as it behaves; no file is overwritten
    #[arg(long, conflicts_with_all = ["explore", "replay", "update", "case", "output", "coverage"])]
    init: bool,

    /// The file with the instance of --init [default: the shortest of the package's examples]
    #[arg(long, value_name = "FILE", requires = "init")]
    from: Option<PathBuf>,

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
    let mut place = None;
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
    let (mut all, mut explored) = (Vec::new(), Vec::new());
    // The names of the cases of packages of which none is selected.
    let (mut others, mut is_selected) = (Vec::new(), false);
    let mut bytes = 0;
    for folder in &args.packages {
        let (packages, broken) = super::load::load_all(std::slice::from_ref(folder));
        is_ok &= broken.is_empty();
        for package in packages {
            if args.init {
                is_ok &= init::run(folder, &package, args.from.as_ref());
                continue;
            }
            if args.allow_no_cases && !folder.join("tests").exists() {
                continue;
            }
            let mut sources = Sources::of(folder);
            sources.bytes = bytes;
            let loaded = play::inspect(folder, &package, &mut sources).map(|(suites, warnings)| {
                out::report(&warnings);
                suites
            });
            bytes = sources.bytes;
            let loaded = match loaded {
                Ok(suites) if args.update => {
                    update::run(suites, folder, &package, args.case.as_deref(), threads)
                }
                loaded => loaded,
            };
            match loaded {
                Ok(suites) if suites.is_empty() => {
                    if !args.allow_no_cases {
                        let tests = out::path(&folder.join("tests"));
                        out::note(format!(
                            "error: {tests} has no case\n  help: `operetta test --init` writes a first file, and --allow-no-cases \
                             makes this no failure"
                        ));
                        is_ok = false;
                    }
                }
                Ok(suites) => {
                    let selected = play::select(&suites, args.case.as_deref());
                    is_selected |= !selected.is_empty();
                    if selected.is_empty() {
                        let cases = suites.iter().flat_map(|suite| &suite.cases);
                        others.extend(cases.map(|case| out::printable(&case.name)));
                    } else if args.explore.is_wanted() {
                        let is_text = args.output.is_none();
                        let found = explore::run(&args.explore, folder, &suites, &selected, threads, is_text);
                        is_ok &= found.is_ok;
                        explored.push(found.document);
                    } else {
                        // Mistakes are reported before a control plane is started.
                        if place.is_none() {
                            place = match Place::open(args.cluster) {
                                Ok(place) => place,
                                Err(error) => {
                                    out::note(format!("error: {error}"));
                                    return ExitCode::FAILURE;
                                }
                            };
                        }
                        match test(args, (folder, &package), suites, &selected, (threads, place.as_mut())) {
                            Ok(tested) => all.push(tested),
                            Err(error) => {
                                out::note(format!("error: {error}"));
                                is_ok = false;
                            }
                        }
                    }
                }
                Err(errors) => {
                    out::report(&errors);
                    out::note(format!("error: the tests of {} cannot be read", out::path(folder)));
                    is_ok = false;
                }
            }
        }
    }
    if let (Some(text), false, false) = (&args.case, is_selected, others.is_empty()) {
        let (text, names) = (out::printable(text), named(&others, NAMED));
        out::note(format!("error: no case has `{text}` in its name\n  help: the names are {names}"));
        is_ok = false;
    }
    if let Some(place) = place {
        is_ok &= !place.is_interrupted;
        place.close();
    }
    match args.output {
        None => {}
        Some(Format::Json) if args.explore.is_wanted() => drop(out::text(&packages(&explored))),
        Some(Format::Json) => drop(out::text(&document(&all))),
        Some(Format::Junit) => drop(out::text(&junit(&all))),
    }
    is_ok &= all.iter().flat_map(|tested| &tested.ended).all(|ended| ended.failure.is_none());
    if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn test(
    args: &Args,
    (folder, package): (&Path, &Arc<Package>),
    suites: Vec<Suite>,
    selected: &[(usize, usize)],
    (threads, place): (usize, Option<&mut Place>),
) -> Result<Tested, String> {
    let folder = out::path(folder);
    let is_text = args.output.is_none();
    let skipped = suites.iter().map(|suite| suite.cases.len()).sum::<usize>() - selected.len();
    if is_text {
        out::line(format!("\n{folder}: {}", counted(selected.len(), "case")));
    }
    let started = Instant::now();
    let told = |ended: &Ended| {
        if is_text {
            let word = match (&ended.failure, &ended.skipped) {
                (Some(_), _) => format!("FAILED ({})", passed(ended)),
                (None, Some(why)) => format!("skipped: {why}"),
                (None, None) => format!("ok ({})", passed(ended)),
            };
            out::line(format!("test {} ... {word}", name(&suites, ended)));
        }
    };
    let ended = match place {
        Some(place) => place.play(package, &suites, selected, told)?,
        None => play::play(&suites, selected, threads, told),
    };
    let took = started.elapsed();
    if is_text {
        summary(args, &suites, &ended, skipped, took);
    }
    Ok(Tested { folder, suites, ended, took })
}

fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// The name of a case as it is shown: a name may have lines that are commands to a CI system, and control sequences.
fn name<'s>(suites: &'s [Suite], ended: &Ended) -> Cow<'s, str> {
    let (suite, case) = ended.place;
    printable::line(&suites[suite].cases[case].name)
}

/// The time of a play, in whole seconds.
fn passed(ended: &Ended) -> String {
    written_duration(Duration::from_secs(ended.passed.as_secs()))
}

fn summary(args: &Args, suites: &[Suite], ended: &[Ended], skipped: usize, took: Duration) {
    let failures: Vec<&Ended> = ended.iter().filter(|ended| ended.failure.is_some()).collect();
    let mut is_cut = false;
    for ended in &failures {
        out::line(format!("\n---- {} ----", name(suites, ended)));
        is_cut |= report_failure(args, ended);
    }
    if is_cut {
        out::line("--full shows what is left out above");
    }
    let word = if failures.is_empty() { "ok" } else { "FAILED" };
    let simulated: Duration = ended.iter().map(|ended| ended.passed).sum();
    let unplayed = ended.iter().filter(|ended| ended.skipped.is_some()).count();
    let unplayed_too = if unplayed > 0 { format!(" {unplayed} skipped;") } else { String::new() };
    let time = match args.cluster {
        Which::Embedded => {
            let simulated = written_duration(Duration::from_secs(simulated.as_secs()));
            format!("{simulated} of virtual time in {:.2} s", took.as_secs_f64())
        }
        Which::Local | Which::Current => format!("{:.0} s", took.as_secs_f64()),
    };
    out::line(format!(
        "\ntest result: {word}. {} passed; {} failed;{unplayed_too} {skipped} filtered out; {time}",
        ended.len() - failures.len() - unplayed,
        failures.len(),
    ));
    let reached: Reached = ended.iter().flat_map(|ended| ended.reached.iter().cloned()).collect();
    let parts = play::coverage(suites, &reached).into_iter().filter(|(.., all)| *all > 0);
    let parts = parts.map(|(what, reached, all)| format!("{reached} of {all} {what}"));
    out::line(format!("reached: {}", parts.collect::<Vec<_>>().join(", ")));
    let all = play::reachable(suites);
    let missed: Vec<&String> = all.difference(&reached).collect();
    if args.coverage {
        for name in missed {
            out::line(format!("  not reached: {name}"));
        }
    } else if !missed.is_empty() && skipped == 0 {
        out::line("--coverage lists the others");
    }
}

/// Prints why a case has failed, and what there was then. Returns whether something is left out.
fn report_failure(args: &Args, ended: &Ended) -> bool {
    let Some(failure) = &ended.failure else { return false };
    let most = if args.full { (usize::MAX, usize::MAX) } else { (LINES, WIDTH) };
    let (message, is_message_cut) = cut(failure.message.lines(), most);
    let (help, is_help_cut) = cut(failure.help.iter().flat_map(|help| help.lines()), most);
    let (scene, is_scene_cut) = cut(ended.scene.iter().map(String::as_str), most);
    let help = failure.help.as_ref().map(|_| help.join("\n"));
    out::report(&[Diagnostic { message: message.join("\n"), help, ..(**failure).clone() }]);
    if !scene.is_empty() {
        out::line("at that moment:");
    }
    for line in scene {
        out::line(format!("  {}", printable::line(&line)));
    }
    is_message_cut || is_help_cut || is_scene_cut
}

/// The first lines, each up to a number of characters, and whether something is left out.
fn cut<'t>(lines: impl Iterator<Item = &'t str>, (most, width): (usize, usize)) -> (Vec<String>, bool) {
    let (mut shown, mut is_cut) = (Vec::new(), false);
    for line in lines {
        if shown.len() == most {
            is_cut = true;
            break;
        }
        shown.push(match line.char_indices().nth(width) {
            Some((end, _)) => {
                is_cut = true;
                format!("{}...", &line[..end])
            }
            None => line.to_owned(),
        });
    }
    (shown, is_cut)
}

fn document(all: &[Tested]) -> String {
    let packages = all.iter().map(|tested| {
        let reached: Reached = tested.ended.iter().flat_map(|ended| ended.reached.iter().cloned()).collect();
        let missed: Vec<String> = play::reachable(&tested.suites).difference(&reached).cloned().collect();
        let cases = tested.ended.iter().map(|ended| {
            json!({
                "file": tested.suites[ended.place.0].path,
                "name": name(&tested.suites, ended),
                "passed": ended.failure.is_none() && ended.skipped.is_none(),
                "skipped": ended.skipped.as_ref().map(ToString::to_string),
                "virtualSeconds": ended.passed.as_secs_f64(),
                "failure": ended.failure.as_ref().map(ToString::to_string),
                "scene": ended.scene.iter().map(|line| printable::line(line)).collect::<Vec<_>>(),
            })
        });
        json!({
            "package": tested.folder,
            "seconds": tested.took.as_secs_f64(),
            "cases": cases.collect::<Vec<_>>(),
            "notReached": missed,
        })
    });
    self::packages(&packages.collect::<Vec<_>>())
}

fn packages(packages: &[Value]) -> String {
    out::json(&json!({"packages": packages}))
}

fn junit(all: &[Tested]) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for tested in all {
        let failures = tested.ended.iter().filter(|ended| ended.failure.is_some()).count();
        let skipped = tested.ended.iter().filter(|ended| ended.skipped.is_some()).count();
        let _ = writeln!(
            text,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\" time=\"{:.3}\">",
            xml(&tested.folder),
            tested.ended.len(),
            tested.took.as_secs_f64(),
        );
        for ended in &tested.ended {
            let file = &tested.suites[ended.place.0].path;
            let head = format!(
                "    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\"",
                xml(file),
                xml(&name(&tested.suites, ended)),
                ended.passed.as_secs_f64(),
            );
            let _ = match (&ended.failure, &ended.skipped) {
                (None, None) => writeln!(text, "{head}/>"),
                (None, Some(why)) => writeln!(
                    text,
                    "{head}>\n      <skipped message=\"{}\"/>\n    </testcase>",
                    xml(&why.to_string()),
                ),
                (Some(failure), _) => writeln!(
                    text,
                    "{head}>\n      <failure message=\"{}\">{}</failure>\n    </testcase>",
                    xml(&failure.message),
                    xml(&[&[failure.to_string()][..], &ended.scene].concat().join("\n")),
                ),
            };
        }
        text += "  </testsuite>\n";
    }
    text + "</testsuites>\n"
}

/// Text of several lines, made safe to show, in XML. Two characters have no form there.
fn xml(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in printable::lines(text).chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\n' => safe += "&#10;",
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    #[test]
    fn long_texts_are_cut() {
        let shown = |text: &str, most| super::cut(text.lines(), most);
        assert_eq!(shown("ab\ncd", (2, 2)), (vec!["ab".to_owned(), "cd".to_owned()], false));
        assert_eq!(shown("abß\ncd", (2, 2)), (vec!["ab...".to_owned(), "cd".to_owned()], true));
        assert_eq!(shown("ab\ncd", (1, 9)), (vec!["ab".to_owned()], true));
    }

    #[test]
    fn text_is_safe_in_xml() {
        assert_eq!(super::xml("a<b>&\"c\"\u{1b}[0m"), "a&lt;b&gt;&amp;&quot;c&quot;\\u{1b}[0m");
        assert_eq!(super::xml("a\n\t\u{202e}b\u{200b}"), "a&#10;\t\\u{202e}b\\u{200b}");
        // https://www.w3.org/TR/xml/#charsets
        let is_char = |c: char| matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}');
        let all: String = (char::MIN..=char::MAX).collect();
        assert!(super::xml(&all).chars().all(is_char));
    }
}

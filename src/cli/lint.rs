//! `operetta lint`: reports all errors of packages without a cluster.

mod github;
mod rules;
mod sarif;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};

use super::command::{Failure, end};
use super::connect::{self, ClusterOptions};
use super::out;
use super::show::plural;
use crate::diag::{self, Diagnostic, Severity};
use crate::manager::Manager;
use crate::package::{self, Package};
use crate::play::{self, Sources};
use crate::rights;

/// Check packages without a cluster
///
/// Reads operator.yaml, the CRDs and the templates of each package and reports all errors at once, with file, line and
/// a solution: unknown keys, paths that the CRD's schema does not have, unknown children, cycles, missing files. The
/// cases and worlds in tests/ are checked without playing them: kinds, fields, plans, expressions, rules. It also
/// reports conflicts between the given packages: two with the same CRD, or with CRDs of one group with the same names.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta lint operators/webapp
  operetta lint operators/* --strict            # in CI: warnings count, too
  operetta lint operators/webapp --cluster      # before an update: what would instances lose?
  operetta lint operators/webapp -o json | jq -r '.[] | \"\\(.file):\\(.line): \\(.message)\"'
  operetta lint operators/* -o github           # in a workflow: findings beside their lines
  operetta lint operators/* -o sarif > lint.sarif

Exit codes: 0 nothing wrong (warnings allowed without --strict), 1 findings, 2 wrong usage, a package \
cannot be read, no API server (--cluster) or the output not be written.")]
pub(super) struct Args {
    /// Folders of packages
    #[arg(required = true, value_name = "PACKAGE")]
    packages: Vec<PathBuf>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,

    /// Fail on warnings, too
    #[arg(long)]
    strict: bool,

    /// Also check whether instances in the kubeconfig's cluster would lose values. Writes nothing
    #[arg(long)]
    pub(super) cluster: bool,

    #[command(flatten)]
    place: ClusterOptions,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// For people, with excerpts
    Text,
    /// A list of {package, severity, code, message, file, line, column, endLine, endColumn, path, help}
    Json,
    /// SARIF 2.1.0, for code scanning services
    Sarif,
    /// Workflow commands of GitHub Actions, which shows findings beside their lines
    Github,
}

/// Lints the packages and prints the findings. Returns the documented exit codes.
pub(super) fn run(args: &Args) -> ExitCode {
    report(args, findings(&args.packages).0)
}

/// Like [`run`], and also checks the packages against a cluster.
pub(super) async fn run_in_cluster(args: &Args) -> ExitCode {
    let server = match connect::connect_in(&args.place).await {
        Ok(server) => server,
        Err(error) => return end(Err(Failure::usage(error))),
    };
    let (mut found, loaded) = findings(&args.packages);
    for (index, package) in loaded {
        found[index].extend(Manager::inspect(&server.cluster, &package).await);
        let refused = package.refuses_kubernetes(&server.version);
        found[index].extend(refused.map(|message| Diagnostic::error("package::requires", message)));
    }
    report(args, found)
}

fn report(args: &Args, found: Vec<Vec<Diagnostic>>) -> ExitCode {
    let shown = args.packages.iter().map(|path| path.display().to_string());
    let found: Vec<(String, Vec<Diagnostic>)> = shown.zip(found).collect();
    let each = || found.iter().flat_map(|(package, found)| found.iter().map(|one| (package.as_str(), one)));
    let text = match args.output {
        Output::Text => text(&found),
        Output::Json => {
            let items = each().map(|(package, diagnostic)| to_json(package, diagnostic));
            out::json(&items.collect::<Value>())
        }
        Output::Sarif => out::json(&sarif::log(each())),
        Output::Github => github::commands(each()),
    };
    let count = |severity| each().filter(|(_, diagnostic)| diagnostic.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let unreadable = each().any(|(_, diagnostic)| diagnostic.code == package::UNREADABLE);
    let code = exit_code(errors, warnings, unreadable, args.strict);
    if args.output == Output::Github { out::commands(&text, code) } else { out::all(&text, code) }
}

/// Text output: each finding with its excerpt, and one line per package.
fn text(found: &[(String, Vec<Diagnostic>)]) -> String {
    let mut text = String::new();
    for (package, found) in found {
        text.push_str(&diag::render(found, console::colors_enabled()));
        let count = |severity| found.iter().filter(|diagnostic| diagnostic.severity == severity).count();
        let package = out::printable(package);
        let _ = writeln!(text, "{package}: {}", summary(count(Severity::Error), count(Severity::Warning)));
    }
    text
}

/// Packages, each with the index of its folder.
type ByFolder = Vec<(usize, Arc<Package>)>;

/// Checks each package by itself, by the schemas, and for conflicts with the packages before it. Also returns
/// the valid packages, with the index of their folder.
fn findings(folders: &[PathBuf]) -> (Vec<Vec<Diagnostic>>, ByFolder) {
    let (mut found, mut read, mut places) = (Vec::new(), Vec::new(), Vec::new());
    let mut bytes = 0;
    let mut seen = HashSet::new();
    for (index, folder) in folders.iter().enumerate() {
        let (package, mut diagnostics) = package::inspect(folder);
        diagnostics.extend(package.iter().flat_map(rights::check));
        // A package that is given twice does not conflict with itself.
        if let Some(package) = package
            && seen.insert(folder.canonicalize().unwrap_or_else(|_| folder.clone()))
        {
            let is_sound = !diagnostics.iter().any(Diagnostic::is_error);
            let package = Arc::new(package);
            // What cases name is not known of a package with errors.
            if is_sound {
                diagnostics.extend(of_tests(folder, &package, &mut bytes));
            }
            read.push((package, is_sound));
            places.push(index);
        }
        found.push(diagnostics);
    }
    let all: Vec<&Package> = read.iter().map(|(package, _)| &**package).collect();
    for (index, problem) in package::check(&all) {
        let known = &mut found[places[index]];
        if package::is_news(known, &problem) {
            known.push(problem);
        }
    }
    for found in &mut found {
        package::sort(found);
    }
    let sound: Vec<usize> = (0..read.len()).filter(|&index| read[index].1).collect();
    let packages: Vec<_> = sound.iter().map(|&index| all[index]).collect();
    for (index, problem) in package::conflicts(&packages) {
        found[places[sound[index]]].push(problem);
    }
    for &index in &sound {
        found[places[index]].extend(rights::note(all[index]));
    }
    let sound = places.into_iter().zip(read).filter(|(_, (_, is_sound))| *is_sound);
    (found, sound.map(|(place, (package, _))| (place, package)).collect())
}

/// What `operetta test` reports of the cases and worlds of a package before it plays them. `bytes`: how much has been read of cases.
fn of_tests(folder: &Path, package: &Arc<Package>, bytes: &mut u64) -> Vec<Diagnostic> {
    if !folder.join("tests").exists() {
        return Vec::new();
    }
    let mut sources = Sources::of(folder);
    sources.bytes = *bytes;
    let found = play::inspect(folder, package, &mut sources);
    *bytes = sources.bytes;
    found.map_or_else(|found| found, |(_, warnings)| warnings)
}

fn exit_code(errors: usize, warnings: usize, unreadable: bool, strict: bool) -> ExitCode {
    match () {
        () if unreadable => ExitCode::from(2),
        () if errors > 0 || (strict && warnings > 0) => ExitCode::from(1),
        () => ExitCode::SUCCESS,
    }
}

fn summary(errors: usize, warnings: usize) -> String {
    match (errors, warnings) {
        (0, 0) => "nothing wrong".to_owned(),
        (0, _) => plural(warnings, "warning"),
        (_, 0) => plural(errors, "error"),
        _ => format!("{}, {}", plural(errors, "error"), plural(warnings, "warning")),
    }
}

fn to_json(package: &str, diagnostic: &Diagnostic) -> Value {
    let mut item = json!({
        "package": package,
        "severity": match diagnostic.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        },
        "code": diagnostic.code,
        "message": diagnostic.message,
        "path": diagnostic.path,
        "help": diagnostic.help,
    });
    if let Some(location) = &diagnostic.location {
        let (line, column) = location.source.line_col(location.span.start);
        let (end_line, end_column) = location.source.line_col(location.span.end);
        item["file"] = json!(location.source.name);
        item["line"] = json!(line);
        item["column"] = json!(column);
        item["endLine"] = json!(end_line);
        item["endColumn"] = json!(end_column);
    }
    item
}

//! `operetta tree`: an instance with all its objects.

mod branch;
mod draw;
mod gather;

use std::process::ExitCode;
use std::time::Duration;

use console::Term;
use serde_json::json;

use super::catalog::{Catalog, check_names, kind_and_name};
use super::connect::{self, ClusterOptions};
use super::out;
use crate::yaml;
use draw::Style;
use gather::{Found, Gather};

/// The interval of `--watch`.
const PERIOD: Duration = Duration::from_secs(2);

/// Show an instance with all its objects
///
/// Shows children by their ids in the package and members of a forEach below their id, each with its readiness and what
/// is missing. Pods are below their workload. Children of child instances are below these. Then it shows the conditions
/// of the instance.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta tree etcdcluster/example
  operetta tree etcdcluster example -n prod --watch
  operetta tree webapp/hello -o json | jq -r '.instance.children[] | select(.ready | not) | .message'

Readiness is by the rules of each kind; a readyWhen of the package counts in the conditions only. -o json and yaml \
print {apiVersion, kind: Tree, instance, problems}; instance and everything in its children (of an instance) and \
dependents (of a workload) have the keys id, key, object {apiVersion, kind, namespace, name, uid}, ready, status \
(Ready, NotReady, Failed, Terminating; of an instance as in `operetta get`), reason, message, creationTimestamp, \
deletionTimestamp, finalizers (while it is being deleted), marks (Retained, DeletionPending, NotApplied, \
ExposesSecretData), \
conditions, children, dependents.

Exit codes: 0 success; 1 not found, an unknown kind, no API server, or something could not be read and is missing; \
2 wrong usage, or the output cannot be written.")]
pub(super) struct Args {
    /// KIND/NAME, or KIND NAME
    #[arg(required = true, num_args = 1..=2, value_names = ["KIND/NAME", "NAME"])]
    instance: Vec<String>,

    /// The namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", conflicts_with = "watch")]
    output: Option<Output>,

    /// Read again every two seconds, and print the tree when it has changed
    #[arg(short, long)]
    watch: bool,

    /// Omit the header
    #[arg(long)]
    no_headers: bool,

    #[command(flatten)]
    place: ClusterOptions,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// The tree as JSON
    Json,
    /// The tree as YAML
    Yaml,
}

pub(super) async fn run(args: &Args) -> ExitCode {
    match tree(args).await {
        Ok(code) => code,
        Err(error) => {
            out::note(format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The kind and the name of the arguments.
fn asked(words: &[String]) -> Result<(&str, &str), String> {
    kind_and_name(words).ok_or_else(|| {
        format!(
            "{} is not an instance: use KIND/NAME; `operetta get` lists the instances",
            out::printable(&words.join(" "))
        )
    })
}

async fn tree(args: &Args) -> Result<ExitCode, String> {
    let (kind, name) = asked(&args.instance)?;
    check_names(args.namespace.as_deref(), Some(name))?;
    let server = connect::connect_in(&args.place).await?;
    let catalog = Catalog::read(&server.cluster).await?;
    let kind = catalog.find(kind)?;
    let namespace = args.namespace.as_deref().unwrap_or(server.current_namespace());
    let gather = Gather { cluster: &server.cluster, catalog: &catalog };
    let mut shown: Option<serde_json::Value> = None;
    loop {
        let found = gather.tree(kind, namespace, name).await?;
        if !args.watch {
            let code = if found.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            let code = out::all(&text(args, &found), code);
            out::message(&remarks(&found));
            return Ok(code);
        }
        // Ages are not compared: they change all the time.
        let looks = json!([found.root.to_json(), found.warnings, found.problems]);
        if shown.as_ref() != Some(&looks) {
            let is_first = shown.replace(looks).is_none();
            if !print_anew(&format!("{}{}", text(args, &found), remarks(&found)), is_first) {
                return Ok(ExitCode::SUCCESS);
            }
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// The warnings and errors about what the tree may lack.
fn remarks(found: &Found) -> String {
    let warnings = found.warnings.iter().map(|warning| format!("warning: {warning}\n"));
    warnings.chain(found.problems.iter().map(|problem| format!("error: {problem}\n"))).collect()
}

fn text(args: &Args, found: &Found) -> String {
    let shape = || {
        json!({
            "apiVersion": "operetta.dev/v1alpha1", "kind": "Tree",
            "instance": found.root.to_json(), "problems": found.problems,
        })
    };
    match args.output {
        Some(Output::Json) => out::json(&shape()),
        Some(Output::Yaml) => yaml::to_string(&shape()),
        None => {
            let terminal = Term::stdout();
            let style = Style {
                colours: console::colors_enabled(),
                unicode: is_unicode_terminal(),
                header: !args.no_headers,
                width: terminal.is_term().then(|| usize::from(terminal.size().1)),
            };
            draw::text(&found.root, style, crate::clock::now())
        }
    }
}

/// Prints a tree over the previous one, or below it. Returns false if the reader has closed the output.
fn print_anew(text: &str, is_first: bool) -> bool {
    let before = match (is_first, Term::stdout().is_term() && !out::is_dumb()) {
        (_, true) => "\x1b[H\x1b[2J",
        (true, false) => "",
        (false, false) => "\n",
    };
    out::text(&format!("{before}{text}"))
}

/// Whether the locale of this process uses UTF-8.
pub(super) fn is_unicode_terminal() -> bool {
    is_unicode(|name| std::env::var(name).ok())
}

/// Whether the locale uses UTF-8, in the order of precedence of the C library.
fn is_unicode(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_parsed_as_kind_and_name() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            asked(&words).map(|(kind, name)| format!("{kind} {name}"))
        };
        assert_eq!(of(&["a/b"]).unwrap(), "a b");
        assert_eq!(of(&["a", "b"]).unwrap(), "a b");
        for words in [&["a"][..], &["a/"], &["/b"], &["a/b/c"], &["a", "b/c"]] {
            assert!(of(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn the_locale_decides_on_unicode() {
        for (set, expected) in [
            (&[][..], false),
            (&[("LANG", "en_GB.UTF-8")], true),
            (&[("LANG", "en_GB.UTF-8"), ("LC_ALL", "C")], false),
            (&[("LANG", "C"), ("LC_CTYPE", "de_DE.utf8")], true),
            (&[("LANG", "C.UTF-8"), ("LC_ALL", "")], true),
        ] {
            let of =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            assert_eq!(is_unicode(of), expected, "{set:?}");
        }
    }
}

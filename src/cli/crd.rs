//! `operetta crd`: the CRDs of packages as they should be kept elsewhere.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::out;
use crate::children::names;
use crate::package::Package;
use crate::yaml;

/// Print the CRDs of packages with what Operetta adds to them
///
/// For a CRD that something else applies, too (Argo CD, Flux, Helm, `kubectl apply`): keep this text there
/// instead of the package's. It has the status subresource, the schema of the status, the printer columns and
/// the name of the package, so that `operetta run` finds nothing to change in its spec and nobody takes it
/// from the other. No cluster is asked.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta crd operators/etcd > crds/etcd.yaml
  operetta crd operators/etcd | kubectl apply --server-side -f -

Exit codes: 0 success, 1 a package cannot be loaded, 2 wrong usage.")]
pub(super) struct Args {
    /// Folders of packages
    #[arg(required = true, value_name = "PACKAGE")]
    packages: Vec<PathBuf>,

    /// How they are printed
    #[arg(short, long, value_enum, default_value_t = Output::Yaml, value_name = "FORMAT")]
    output: Output,
}

/// How CRDs are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// One document each
    Yaml,
    /// One object, or a List
    Json,
}

/// Prints the CRDs. Exit codes as the help says.
pub(super) fn run(args: &Args) -> ExitCode {
    let (packages, broken) = super::load(&args.packages);
    if broken > 0 {
        return ExitCode::FAILURE;
    }
    let crds: Vec<Value> = packages.iter().flat_map(|package| crds(package)).collect();
    let text = match args.output {
        Output::Yaml => crds.iter().fold(String::new(), |mut text, crd| {
            let _ = write!(text, "---\n{}", yaml::to_string(crd));
            text
        }),
        Output::Json => match crds.as_slice() {
            [one] => format!("{one:#}\n"),
            all => format!("{:#}\n", json!({"apiVersion": "v1", "kind": "List", "items": all})),
        },
    };
    out::all(&text, ExitCode::SUCCESS)
}

/// The CRDs of a package as they are to be applied, but for what only a running manager knows.
fn crds(package: &Package) -> Vec<Value> {
    let with_owner = |mut crd: Value| {
        crd["metadata"]["labels"][names::OPERATOR] = package.name.as_str().into();
        crd
    };
    package.resources.iter().map(|resource| with_owner(resource.augmented_crd())).collect()
}

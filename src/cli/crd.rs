//! `operetta crd`: prints the CRDs of packages for use in Git.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::Value;

use super::command::Format;
use super::out;
use crate::children::names;
use crate::package::Package;

/// Print the CRDs of packages with the additions of Operetta
///
/// Use this output instead of the package's CRD where another tool (Argo CD, Flux, Helm, `kubectl apply`) applies the
/// CRD. It contains the status subresource, the schema of the status, the printer columns, the category `operetta` and
/// the name of the package, so `operetta run` does not change its spec. The command needs no cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta crd operators/etcd > crds/etcd.yaml
  operetta crd operators/etcd | kubectl apply --server-side -f -

Exit codes: 0 success, 1 a package cannot be loaded, 2 wrong usage.")]
pub(super) struct Args {
    /// Folders of packages
    #[arg(required = true, value_name = "PACKAGE")]
    packages: Vec<PathBuf>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Yaml, value_name = "FORMAT")]
    output: Format,
}

/// Prints the CRDs. Returns the documented exit codes.
pub(super) fn run(args: &Args) -> ExitCode {
    let Some(packages) = super::load::load(&args.packages) else { return ExitCode::FAILURE };
    let crds: Vec<Value> = packages.iter().flat_map(|package| crds(package)).collect();
    let text = match (args.output, crds.as_slice()) {
        (Format::Json, [one]) => out::json(one),
        (format, all) => format.objects(all),
    };
    out::all(&text, ExitCode::SUCCESS)
}

/// The CRDs of a package, without the parts that only a running manager knows.
fn crds(package: &Package) -> Vec<Value> {
    let with_owner = |mut crd: Value| {
        crd["metadata"]["labels"][names::OPERATOR] = package.name.as_str().into();
        crd
    };
    package.resources.iter().map(|resource| with_owner(resource.augmented_crd())).collect()
}

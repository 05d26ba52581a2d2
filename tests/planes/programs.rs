//! Programs in Go that only tests run. They are built and cached as those of control planes are; their modules are no part of the
//! product.

use std::path::PathBuf;

use operetta::local::{Module, Program, Tool};

use crate::support::options;

macro_rules! text {
    ($name:literal, $file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/local/go/", $name, "/", $file))
    };
}

/// Declares a program of a module in `src/local/go`, with the file that imports the packages to build.
macro_rules! program {
    ($name:literal, $imports:literal, $package:literal) => {
        Tool::Other(&Program {
            name: $name,
            package: $package,
            module: Module {
                name: $name,
                files: [
                    ("go.mod", text!($name, "go.mod")),
                    ("go.sum", text!($name, "go.sum")),
                    ($imports, text!($name, $imports)),
                ],
                ldflags: "-s -w",
            },
        })
    };
}

/// The package manager, for tests of charts.
pub(crate) const HELM: Tool = program!("helm", "tools.go", "helm.sh/helm/v4/cmd/helm");
/// The registry of the CNCF.
pub(crate) const DISTRIBUTION: Tool = program!("distribution", "main.go", ".");
/// Smaller registries in one program.
pub(crate) const REGISTRIES: Tool = program!("registries", "main.go", ".");
/// The signer of Sigstore.
pub(crate) const COSIGN: Tool = program!("cosign", "main.go", ".");

#[test]
fn programs_match_their_go_modules() {
    for tool in [HELM, DISTRIBUTION, REGISTRIES, COSIGN] {
        let Tool::Other(program) = tool else { panic!("{} is no program of tests", tool.name()) };
        let [(_, module), _, (_, imports)] = program.module.files;
        assert!(module.contains("\ngo 1.26"), "{}", program.name);
        let is_imported = imports.contains(&format!("\"{}\"", program.package));
        assert!(program.package == "." || is_imported, "{}", program.package);
    }
}

/// The path of a program, which is built if it is not in the cache.
pub(crate) async fn built(tool: Tool) -> PathBuf {
    let options = options();
    let found = tool.built(&options.environment, &options.progress).await;
    found.unwrap_or_else(|error| panic!("{error}"))
}

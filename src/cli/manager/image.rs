//! `operetta manager image`: writes the manager's image as an OCI layout.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use super::oci::{self, Entry, Image, Settings};
use super::{elf, sbom, values};
use crate::cli::out;

/// Write the manager's image as an OCI layout, without Docker
///
/// The image contains the executable and nothing else: no shell, no package manager. The same executable gives the same
/// image. An SBOM (SPDX) of all crates is an artifact beside it. Tools such as skopeo, crane and oras copy the layout to a
/// registry; `operetta dev --node --image` runs it.
///
/// The executable must be linked statically, such as by `cargo build --release --target x86_64-unknown-linux-musl`, or
/// with its libraries in the image (--libraries).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta manager image --output image
  operetta manager image --binary amd64/operetta --binary arm64/operetta --output image --gzip
  skopeo copy --all oci:image:operetta:0.1.0 docker://registry.example.org/operetta:0.1.0

Exit codes: 0 success, 1 the executable cannot be used, or the layout not be written, 2 wrong usage.")]
pub(super) struct Args {
    /// The folder of the layout, which must not exist or be empty
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,

    /// The executable, one for each architecture; repeatable [default: this one]
    #[arg(long = "binary", value_name = "FILE")]
    binaries: Vec<PathBuf>,

    /// The name of the image
    #[arg(long, value_name = "NAME", default_value = values::IMAGE)]
    name: String,

    /// Add the shared libraries that the executable needs on this machine, as ldd names them
    #[arg(long)]
    libraries: bool,

    /// A file of CA certificates (PEM), for HTTPS requests of packages
    #[arg(long, value_name = "FILE")]
    ca_certificates: Option<PathBuf>,

    /// Compress the layer
    #[arg(long)]
    gzip: bool,
}

/// Where programs look for CA certificates.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

pub(super) fn run(args: &Args) -> ExitCode {
    match write(args) {
        Ok(text) => out::all(&text, ExitCode::SUCCESS),
        Err(error) => {
            out::note(format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn write(args: &Args) -> Result<String, String> {
    let binaries = if args.binaries.is_empty() {
        vec![std::env::current_exe().map_err(|error| format!("this executable: {error}"))?]
    } else {
        args.binaries.clone()
    };
    let mut images: BTreeMap<&str, Image<'_>> = BTreeMap::new();
    for path in &binaries {
        let image = image(path, args)?;
        let architecture = image.architecture;
        if images.insert(architecture, image).is_some() {
            return Err(format!("two executables are for {architecture}"));
        }
    }
    let images: Vec<Image<'_>> = images.into_values().collect();
    let settings = Settings { name: &args.name, version: env!("CARGO_PKG_VERSION"), gzip: args.gzip };
    let layout = oci::layout(&images, &settings).map_err(|error| error.to_string())?;
    let folder = &args.output;
    let failed = |path: &Path, error: &std::io::Error| format!("{}: {error}", path.display());
    if std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(format!("{} is not empty", folder.display()));
    }
    for (name, content) in &layout {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| failed(parent, &error))?;
        }
        std::fs::write(&path, content).map_err(|error| failed(&path, &error))?;
    }
    let architectures: Vec<&str> = images.iter().map(|image| image.architecture).collect();
    Ok(format!("{}: {} for {}\n", folder.display(), args.name, architectures.join(", ")))
}

fn image(path: &Path, args: &Args) -> Result<Image<'static>, String> {
    let shown = path.display();
    let read = |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let content = read(path)?;
    let header = elf::read(&content).map_err(|wrong| format!("{shown} cannot be used: {wrong}"))?;
    let mut files = oci::accounts();
    files.push(Entry { path: "operetta".into(), content, is_executable: true });
    if header.needs_loader {
        if !args.libraries {
            return Err(format!(
                "{shown} is linked dynamically\n  help: build it with `cargo build --release --target \
                 x86_64-unknown-linux-musl`, or give --libraries"
            ));
        }
        for library in libraries(path)? {
            let content = read(&library)?;
            let path = library.to_string_lossy().trim_start_matches('/').to_owned();
            files.push(Entry { path, content, is_executable: true });
        }
    }
    if let Some(certificates) = &args.ca_certificates {
        files.push(Entry { path: CERTIFICATES.into(), content: read(certificates)?, is_executable: false });
    }
    let sbom = format!("{:#}\n", sbom::document(env!("CARGO_PKG_VERSION"))).into_bytes();
    Ok(Image { architecture: header.architecture, files, sbom })
}

/// The libraries and the loader that an executable needs on this machine.
fn libraries(path: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("ldd").arg(path).output().map_err(|error| format!("ldd: {error}"))?;
    if !output.status.success() {
        return Err(format!("ldd {}: {}", path.display(), String::from_utf8_lossy(&output.stderr).trim()));
    }
    named(&String::from_utf8_lossy(&output.stdout))
}

/// The files that ldd names.
fn named(text: &str) -> Result<Vec<PathBuf>, String> {
    let mut all = Vec::new();
    for line in text.lines().map(str::trim) {
        let (name, found) = line.split_once(" => ").unwrap_or((line, line));
        let found = found.split(" (").next().unwrap_or_default().trim();
        if found.starts_with('/') {
            all.push(PathBuf::from(found));
        } else if found == "not found" {
            return Err(format!("ldd does not find {name}"));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_with_a_path_are_returned() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x0000)\n\t\
                    /lib64/ld-linux-x86-64.so.2 (0x0000)\n";
        assert_eq!(
            named(text),
            Ok(vec!["/lib/x86_64-linux-gnu/libm.so.6".into(), "/lib64/ld-linux-x86-64.so.2".into()])
        );
        assert!(named("\tlibx.so => not found\n").unwrap_err().contains("libx.so"));
    }
}

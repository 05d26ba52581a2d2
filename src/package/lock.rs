//! `operator.lock`: the packages that were chosen for what a package requires, with their digests. It is a file of the package, so
//! that a signature of the package covers it.

use std::fmt::Write as _;
use std::sync::Arc;

use super::compile::one_document;
use super::decode::{At, Decode as _, Decoder, Must, manifest};
use super::manifest::{PackageName, Repository, SemVer, Sha256};
use super::model::Locked;
use crate::diag::{Diagnostic, Source};

/// How many packages may be chosen.
pub const MOST_PACKAGES: usize = 64;

manifest! {
    /// The packages that were chosen, each after those that it requires.
    pub struct Lock {
        /// The packages.
        "packages" packages: Must<Vec<At<Entry>>>,
    }
}

manifest! {
    /// A package.
    pub struct Entry {
        /// Its name.
        "name" name: Must<PackageName>,
        /// Its version.
        "version" version: Must<SemVer>,
        /// Its repository.
        "package" package: Must<Repository>,
        /// The digest of its manifest.
        "digest" digest: Must<Sha256>,
    }
}

/// Reads the file. What is wrong with it is added to `diagnostics`.
pub(super) fn read(source: &Arc<Source>, diagnostics: &mut Vec<Diagnostic>) -> Vec<Locked> {
    let node = match one_document(source) {
        Ok(node) => node,
        Err(error) => {
            diagnostics.push(error);
            return Vec::new();
        }
    };
    let mut decoder = Decoder::new(source);
    let lock = Lock::decode(&node, &mut decoder);
    diagnostics.extend(decoder.finish());
    let mut found: Vec<Locked> = Vec::new();
    for At { value, at, path } in lock.and_then(|lock| lock.packages.0).unwrap_or_default() {
        let (Some(name), Some(version)) = (value.name.0, value.version.0) else { continue };
        let (Some(package), Some(digest)) = (value.package.0, value.digest.0) else { continue };
        let entry = Locked { name: name.0, version: version.0, package: package.0, digest: digest.0 };
        let mut error = |message: String| {
            let error = Diagnostic::error("package::lock", message).located(at.clone()).path(path.clone());
            diagnostics.push(error.help("`operetta package --update` writes the file again"));
        };
        if found.len() == MOST_PACKAGES {
            error(format!("more than {MOST_PACKAGES} packages"));
            break;
        }
        if found.iter().any(|other| other.name == entry.name || other.package == entry.package) {
            error(format!("the package {} is there twice", entry.name));
            continue;
        }
        found.push(entry);
    }
    found
}

/// The text of the file.
pub fn text(packages: &[Locked]) -> String {
    let mut text = String::from(
        "# Written by `operetta package`: the packages that were chosen for spec.requires.apis. Keep it with operator.yaml.\n\
         # `operetta package --update` chooses again.\npackages:\n",
    );
    for Locked { name, version, package, digest } in packages {
        let _ = write!(
            text,
            "- name: {name}\n  version: \"{version}\"\n  package: {package}\n  digest: {digest}\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Vec<Locked>, Vec<String>) {
        let mut diagnostics = Vec::new();
        let found = read(&Source::new("operator.lock", text), &mut diagnostics);
        (found, diagnostics.into_iter().map(|found| found.message).collect())
    }

    fn entry(name: &str) -> Locked {
        Locked {
            name: name.to_owned(),
            version: "1.2.0-rc.1".parse().unwrap(),
            package: format!("oci://localhost:5000/acme/{name}"),
            digest: format!("sha256:{}", "0a".repeat(32)),
        }
    }

    #[test]
    fn the_text_of_packages_is_read_back() {
        let all = vec![entry("cache"), entry("queue")];
        assert_eq!(parse(&text(&all)), (all, Vec::new()));
    }

    #[test]
    fn other_texts_are_errors() {
        let good = text(&[entry("cache")]);
        for (text, expected) in [
            (good.replace("sha256:0a", "sha256:0A"), "must be sha256:"),
            (good.replace("oci://", "https://"), "must be oci://HOST/PATH"),
            (good.replace("acme/cache", "acme/cache:1.0.0"), "must be oci://HOST/PATH"),
            (good.replace("1.2.0-rc.1", "1.2"), "is not a SemVer version"),
            (text(&[entry("cache"), entry("cache")]), "the package cache is there twice"),
            (text(&(0..65).map(|at| entry(&format!("a{at}"))).collect::<Vec<_>>()), "more than 64 packages"),
        ] {
            let (_, messages) = parse(&text);
            assert!(messages.iter().any(|message| message.contains(expected)), "{expected}: {messages:?}");
        }
    }
}

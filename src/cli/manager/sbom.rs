//! The SBOM of this program: every crate of Cargo.lock with its version and checksum, as SPDX 2.3. The crates of the workspace
//! are the program itself.

use serde_json::Value;

use crate::cli::spdx::{Component, document as document_of};

/// The Cargo.lock with which this program was built.
const LOCK: &str = include_str!("../../../Cargo.lock");

/// A package of Cargo.lock.
#[derive(Debug, Default, PartialEq, Eq)]
struct Locked<'a> {
    name: &'a str,
    version: &'a str,
    checksum: Option<&'a str>,
}

/// The document for this version.
pub(super) fn document(version: &str) -> Value {
    spdx(&packages(LOCK), version)
}

/// The packages of a Cargo.lock, whose form is fixed: one field a line.
fn packages(lock: &str) -> Vec<Locked<'_>> {
    let field = |block: &'_ str, name: &str| -> Option<(usize, usize)> {
        let start = block.find(&format!("\n{name} = \""))? + name.len() + 5;
        let length = block[start..].find('"')?;
        Some((start, start + length))
    };
    let blocks = lock.split("\n[[package]]").skip(1);
    let packages = blocks.filter_map(|block| {
        let text = |name: &str| field(block, name).map(|(start, end)| &block[start..end]);
        Some(Locked { name: text("name")?, version: text("version")?, checksum: text("checksum") })
    });
    packages.filter(|package| package.checksum.is_some() || package.name == "operetta").collect()
}

fn spdx(packages: &[Locked<'_>], version: &str) -> Value {
    let component = |package: &Locked<'_>| Component {
        name: package.name.to_owned(),
        version: Some(package.version.to_owned()),
        purl: Some(format!("pkg:cargo/{}@{}", package.name, package.version)),
        sha256: package.checksum.map(str::to_owned),
        ..Component::default()
    };
    let is_root = |package: &&Locked<'_>| package.name == "operetta";
    let root = packages.iter().find(is_root).map_or_else(
        || Component {
            name: "operetta".to_owned(),
            version: Some(version.to_owned()),
            ..Component::default()
        },
        component,
    );
    let others: Vec<Component> = packages.iter().filter(|package| !is_root(package)).map(component).collect();
    document_of(&root, &others, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_of_the_lock_file_is_listed_once() {
        let document = document(env!("CARGO_PKG_VERSION"));
        let packages = document["packages"].as_array().unwrap();
        assert_eq!(packages.len(), LOCK.matches("\nchecksum = ").count() + 1);
        let mut ids: Vec<&str> = packages.iter().map(|package| package["SPDXID"].as_str().unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), packages.len());
        let kube = packages.iter().find(|package| package["name"] == "kube").unwrap();
        assert_eq!(kube["checksums"][0]["checksumValue"].as_str().unwrap().len(), 64);
        assert_eq!(crate::cli::spdx::tests::problems(&document), Vec::<String>::new());
    }
}

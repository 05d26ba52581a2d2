//! The SBOM of this program: every crate of Cargo.lock with its version and checksum, as SPDX 2.3. The crates of the workspace
//! are the program itself.

use serde_json::{Value, json};

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
    let id = |package: &Locked<'_>| {
        format!("SPDXRef-{}-{}", package.name, package.version.replace('+', "-")).replace('_', "-")
    };
    let described: Vec<Value> = packages
        .iter()
        .map(|package| {
            let purl = format!("pkg:cargo/{}@{}", package.name, package.version);
            let mut described = json!({
                "SPDXID": id(package),
                "name": package.name,
                "versionInfo": package.version,
                "downloadLocation": "NOASSERTION",
                "externalRefs": [{
                    "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl,
                }],
            });
            if let Some(checksum) = package.checksum {
                described["checksums"] = json!([{"algorithm": "SHA256", "checksumValue": checksum}]);
            }
            described
        })
        .collect();
    let root = format!("SPDXRef-operetta-{version}");
    let uses = packages.iter().filter(|package| package.name != "operetta").map(|package| {
        json!({"spdxElementId": root, "relationshipType": "DEPENDS_ON", "relatedSpdxElement": id(package)})
    });
    let describes = json!({"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": root});
    let relationships: Vec<Value> = [describes].into_iter().chain(uses).collect();
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("operetta-{version}"),
        "documentNamespace": format!("https://operetta.dev/sbom/operetta-{version}"),
        // The time of the build would make each build different.
        "creationInfo": {"created": "1970-01-01T00:00:00Z", "creators": ["Tool: operetta"]},
        "packages": described,
        "relationships": relationships,
    })
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
        let root = &document["relationships"][0]["relatedSpdxElement"];
        assert!(ids.contains(&root.as_str().unwrap()), "{root}");
    }
}

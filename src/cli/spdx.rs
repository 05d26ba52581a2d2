//! SBOMs in SPDX 2.3.

use serde_json::{Value, json};

/// What a document lists.
#[derive(Debug, Default)]
pub(super) struct Component {
    pub name: String,
    pub version: Option<String>,
    /// The package URL.
    pub purl: Option<String>,
    /// The SHA-256 in hex.
    pub sha256: Option<String>,
    pub description: Option<String>,
    /// What it is: `APPLICATION`, `CONTAINER`, `LIBRARY`.
    pub purpose: Option<&'static str>,
}

impl Component {
    /// Its identifier in the document: letters, digits, `.` and `-`.
    fn id(&self) -> String {
        let version = self.version.as_ref().map(|version| format!("-{version}")).unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        let words = format!("{}{version}", self.name);
        let words: String = words.chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
        format!("SPDXRef-{words}")
    }

    fn value(&self, id: &str) -> Value {
        // Without `filesAnalyzed`, files would have to be listed.
        let mut value = json!({
            "SPDXID": id, "name": self.name, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
        });
        if let Some(version) = &self.version {
            value["versionInfo"] = json!(version);
        }
        if let Some(description) = &self.description {
            value["description"] = json!(description);
        }
        if let Some(purpose) = self.purpose {
            value["primaryPackagePurpose"] = json!(purpose);
        }
        if let Some(sha256) = &self.sha256 {
            value["checksums"] = json!([{"algorithm": "SHA256", "checksumValue": sha256}]);
        }
        if let Some(purl) = &self.purl {
            value["externalRefs"] = json!([{
                "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl,
            }]);
        }
        value
    }
}

/// The document about `root`, which depends on the others. `unique`: what no other document about this name and version has, if
/// there may be several.
pub(super) fn document(root: &Component, others: &[Component], unique: &str) -> Value {
    let name = format!("{}-{}", root.name, root.version.as_deref().unwrap_or_default());
    let mut ids: Vec<String> = Vec::with_capacity(others.len() + 1);
    for component in [root].into_iter().chain(others) {
        let id = component.id();
        // `a/b` and `a-b` are different names.
        let taken = ids.iter().filter(|other| **other == id || other.starts_with(&format!("{id}--"))).count();
        ids.push(if taken == 0 { id } else { format!("{id}--{}", taken + 1) });
    }
    let relation = |from: &str, kind: &str, to: &str| json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to});
    let describes = ids.iter().take(1).map(|root| relation("SPDXRef-DOCUMENT", "DESCRIBES", root));
    let depends = ids.iter().skip(1).map(|other| relation(&ids[0], "DEPENDS_ON", other));
    let packages = [root].into_iter().chain(others).zip(&ids).map(|(component, id)| component.value(id));
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": format!("https://operetta.dev/sbom/{name}{unique}"),
        // The field is required. The time of the making would make each document different.
        "creationInfo": {
            "created": "1970-01-01T00:00:00Z",
            "creators": [concat!("Tool: operetta-", env!("CARGO_PKG_VERSION"))],
        },
        "packages": packages.collect::<Vec<_>>(),
        "relationships": describes.chain(depends).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What is wrong with a document, by the JSON schema of SPDX 2.3 and the text of the specification.
    pub(in crate::cli) fn problems(document: &Value) -> Vec<String> {
        let mut found = Vec::new();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for field in ["SPDXID", "dataLicense", "documentNamespace", "name", "spdxVersion"] {
            if text(&document[field]).is_empty() {
                found.push(format!("{field} is missing"));
            }
        }
        let namespace = text(&document["documentNamespace"]);
        if !namespace.starts_with("https://") || namespace.contains(['#', ' ']) {
            found.push(format!("{namespace} is no URI without a fragment"));
        }
        let is_time = |text: &str| text.len() == 20 && text.ends_with('Z');
        if !is_time(&text(&document["creationInfo"]["created"])) {
            found.push("creationInfo.created".to_owned());
        }
        if !text(&document["creationInfo"]["creators"][0]).starts_with("Tool: ") {
            found.push("creationInfo.creators".to_owned());
        }
        let mut ids = vec!["SPDXRef-DOCUMENT".to_owned()];
        for package in document["packages"].as_array().into_iter().flatten() {
            let id = text(&package["SPDXID"]);
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
            if !id.strip_prefix("SPDXRef-").is_some_and(|id| !id.is_empty() && id.chars().all(plain)) {
                found.push(format!("{id:?} is no SPDXID"));
            }
            if ids.contains(&id) {
                found.push(format!("{id} is there twice"));
            }
            if text(&package["name"]).is_empty() || text(&package["downloadLocation"]).is_empty() {
                found.push(format!("{id} lacks name or downloadLocation"));
            }
            // Otherwise packageVerificationCode is mandatory.
            if package["filesAnalyzed"] != false {
                found.push(format!("{id} has files"));
            }
            for checksum in package["checksums"].as_array().into_iter().flatten() {
                let sum = text(&checksum["checksumValue"]);
                let is_sum = sum.len() == 64 && sum.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
                if checksum["algorithm"] != "SHA256" || !is_sum {
                    found.push(format!("{id}: {checksum}"));
                }
            }
            for reference in package["externalRefs"].as_array().into_iter().flatten() {
                let locator = text(&reference["referenceLocator"]);
                let is_category = reference["referenceCategory"] == "PACKAGE-MANAGER";
                if !is_category || reference["referenceType"] != "purl" || !locator.starts_with("pkg:") {
                    found.push(format!("{id}: {reference}"));
                }
            }
            ids.push(id);
        }
        let relationships = document["relationships"].as_array().cloned().unwrap_or_default();
        if !relationships.iter().any(|one| one["relationshipType"] == "DESCRIBES") {
            found.push("nothing is described".to_owned());
        }
        for one in &relationships {
            for end in ["spdxElementId", "relatedSpdxElement"] {
                if !ids.contains(&text(&one[end])) {
                    found.push(format!("{} is not there", one[end]));
                }
            }
        }
        found
    }
}

//! The built-in kinds, as kube-apiserver describes them itself.

use serde_json::Value;

/// The version of Kubernetes that they are of.
pub const VERSION: &str = "1.36";

/// Written by `generate/main.go` of the embedded API.
static DEFINITIONS: &[u8] = include_bytes!("data/definitions.z");
/// The aggregated discovery of a real server without CRDs.
static DISCOVERY: &[u8] = include_bytes!("data/discovery.z");

/// A bound for an unpacked text; far above its real size.
const MAX_BYTES: usize = 16 << 20;

/// The text of a compressed file.
pub fn unpack(bytes: &[u8]) -> String {
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(bytes, MAX_BYTES).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

/// The definitions of their schemas: a line for each, with its name and its JSON. Beside the words of OpenAPI, a definition that
/// is a kind begins with `kind`, its apiVersion and name, and a field has `go`: its Go type, after `?` if it is a pointer, after
/// `-` if its zero value is not written.
pub fn definitions() -> String {
    unpack(DEFINITIONS)
}

/// What a server without CRDs answers to a request for its groups.
pub fn discovery() -> Vec<Value> {
    serde_json::from_str(&unpack(DISCOVERY)).unwrap_or_default()
}

/// The resources in what [`discovery`] returns, each with its group and version.
pub fn resources(discovery: &[Value]) -> impl Iterator<Item = (&str, &str, &Value)> {
    discovery.iter().flat_map(|group| {
        let name = group["metadata"]["name"].as_str().unwrap_or_default();
        group["versions"].as_array().into_iter().flatten().flat_map(move |of| {
            let version = of["version"].as_str().unwrap_or_default();
            of["resources"].as_array().into_iter().flatten().map(move |resource| (name, version, resource))
        })
    })
}

/// `apps/v1`, or `v1` in the group without a name.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

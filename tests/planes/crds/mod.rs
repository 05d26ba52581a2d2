//! What of the tests of CRDs needs processes: commands of `operetta`, webhooks that an API server calls, the Lease. The others are in
//! `tests/engine/crds`.

mod children;
mod conversion;
mod narrowing;

use serde_json::Value;

use crate::support::crds::{has_status, operetta};
use crate::support::ext::file;

#[test]
fn crd_command_prints_yaml_and_json_alike() {
    let yaml = operetta(&["crd", "operators/webapp"]);
    let json: Value = serde_json::from_str(&operetta(&["crd", "-o", "json", "operators/webapp"])).unwrap();
    assert_eq!(operetta::yaml::from_str(&yaml).unwrap(), json);
    assert_eq!(json["metadata"]["labels"]["operetta.dev/operator"], "webapp");
    assert_eq!(json["metadata"].get("annotations"), None);
    assert!(has_status(&json));
    assert!(file("operators/webapp/crds/webapp.yaml").len() < yaml.len());
}

//! The kind that a CRD defines.

use serde_json::{Value, json};

use super::super::kind;
use super::{changed, read};
use crate::api::ApiKind;

#[test]
fn kind_of_a_crd_is_read() {
    let of = |name: &str| kind(&read(name)).expect(name);
    let ticket = of("flightticket");
    assert_eq!(
        ticket,
        ApiKind {
            group: "flights.com".into(),
            version: "v1".into(),
            kind: "FlightTicket".into(),
            plural: "flighttickets".into(),
            namespaced: true,
        }
    );
    assert_eq!(ticket.api_version(), "flights.com/v1");
    assert_eq!(of("etcdcluster").version, "v1beta2");
    let versions = |list: Value| kind(&changed("/spec/versions", list)).map(|kind| kind.version);
    let version =
        |name: &str, served: bool, storage: bool| json!({"name": name, "served": served, "storage": storage});
    assert_eq!(
        versions(json!([version("v1", true, false), version("v2", true, true)])).as_deref(),
        Some("v2")
    );
    assert_eq!(
        versions(json!([version("v1", true, false), version("v2", false, true)])).as_deref(),
        Some("v1")
    );
    assert_eq!(versions(json!([version("v1", false, true)])), None);
    assert!(!kind(&changed("/spec/scope", json!("Cluster"))).expect("kind").namespaced);
    for broken in [
        json!(null),
        json!({"spec": []}),
        changed("/spec/names/plural", json!("")),
        changed("/spec/group", json!(1)),
    ] {
        assert_eq!(kind(&broken), None);
    }
}

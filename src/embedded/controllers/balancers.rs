//! Load balancers: Services get the addresses that the world gives them. Without one they wait, as in a cluster without a cloud.

use std::net::IpAddr;

use jiff::Timestamp;
use operetta_kube_model::facts::is_deleting;
use serde_json::json;

use super::client::{self, SERVICES, get};
use crate::api::Api;

/// The program that writes the status of Services.
const MANAGER: &str = "cloud-controller-manager";

pub(super) fn sync(api: &mut Api, key: &str, now: Timestamp) {
    let Some(mut service) = get(api, &SERVICES, key) else { return };
    if service["spec"]["type"] != "LoadBalancer" || is_deleting(&service) {
        return;
    }
    let address = api.programs.address(&service, &api.state, now);
    // Addresses that others have written stay.
    let Some(address) = address else { return };
    let entry = if address.parse::<IpAddr>().is_ok() {
        json!({"ip": address, "ipMode": "VIP"})
    } else {
        json!({"hostname": address})
    };
    let mut status = service["status"].clone();
    status["loadBalancer"]["ingress"] = json!([entry]);
    client::set_status(api, MANAGER, &SERVICES, &mut service, status, now);
}

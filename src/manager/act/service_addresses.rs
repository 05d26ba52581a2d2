//! Refusals of dry runs that say nothing about the write: those about the address of a Service.
//!
//! In a dry run the API server asks the allocator of any one `ServiceCIDR` for the address (`MetaAllocator.DryRun`, measured on
//! 1.36). If there are several, it may refuse an address that lies in another one, and every Service while that one is being
//! deleted. A write asks the allocator whose range has the address.

use std::net::IpAddr;

use serde_json::Value;
use tracing::debug;

use crate::api::{ApiKind, CallError};
use crate::cluster::Cluster;

/// Whether the refusal of a dry run says nothing about the write: it is about an address that a `ServiceCIDR` has, or that
/// the server is to choose.
pub(super) async fn is_undecided(cluster: &Cluster, body: &Value, refusal: &CallError) -> bool {
    if !is_allocation_failure(refusal) {
        return false;
    }
    let addresses = requested(body);
    if addresses.is_empty() {
        return true;
    }
    let ranges = match cluster
        .as_itself()
        .list(&ApiKind::built_in("networking.k8s.io/v1", "ServiceCIDR"), None, "")
        .await
    {
        Ok(ranges) => ranges,
        Err(error) => {
            debug!(%error, "cannot list ServiceCIDRs; the dry run counts");
            return false;
        }
    };
    let cidrs = ranges.iter().filter_map(|range| range["spec"]["cidrs"].as_array()).flatten();
    let cidrs: Vec<&str> = cidrs.filter_map(Value::as_str).collect();
    addresses.iter().all(|address| cidrs.iter().any(|cidr| contains(cidr, *address)))
}

/// Whether no address could be allocated for a Service.
fn is_allocation_failure(refusal: &CallError) -> bool {
    refusal.code == 422
        && refusal.fields().all(|field| field == "spec.clusterIPs")
        && refusal.whole().contains("failed to allocate IP")
}

/// The addresses that a Service names itself.
fn requested(body: &Value) -> Vec<IpAddr> {
    let spec = &body["spec"];
    let all = spec["clusterIPs"].as_array().into_iter().flatten().chain([&spec["clusterIP"]]);
    all.filter_map(|address| address.as_str()?.parse().ok()).collect()
}

fn contains(cidr: &str, address: IpAddr) -> bool {
    let Some((first, bits)) = cidr.split_once('/') else { return false };
    let (Ok(first), Ok(bits)) = (first.parse(), bits.parse::<u32>()) else { return false };
    match (first, address) {
        (IpAddr::V4(first), IpAddr::V4(address)) => {
            (first.to_bits() ^ address.to_bits()).checked_shr(32_u32.saturating_sub(bits)).unwrap_or(0) == 0
        }
        (IpAddr::V6(first), IpAddr::V6(address)) => {
            (first.to_bits() ^ address.to_bits()).checked_shr(128_u32.saturating_sub(bits)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_matched_with_cidrs() {
        let is_in = |cidr: &str, address: &str| contains(cidr, address.parse().unwrap());
        assert!(is_in("10.96.0.0/16", "10.96.210.2") && is_in("10.96.7.0/24", "10.96.7.255"));
        assert!(is_in("0.0.0.0/0", "10.96.0.1") && is_in("10.96.0.1/32", "10.96.0.1"));
        assert!(is_in("fd00:10:96::/112", "fd00:10:96::a") && !is_in("fd00:10:96::/112", "fd00:10:97::a"));
        assert!(!is_in("10.96.0.0/16", "10.97.0.1") && !is_in("10.96.0.0/16", "fd00::1"));
        assert!(!is_in("10.96.0.0", "10.96.0.0") && !is_in("none/8", "10.96.0.0"));
    }

    #[test]
    fn only_failed_allocations_are_undecided() {
        let refusal = |field: &str, message: &str| {
            let status = json!({"kind": "Status", "status": "Failure", "code": 422, "reason": "Invalid",
                "message": format!("Service \"a\" is invalid: {field}: Invalid value: [\"10.0.0.1\"]: {message}"),
                "details": {"causes": [{"field": field, "reason": "FieldValueInvalid", "message": message}]}});
            CallError::from_status(&serde_json::from_value(status).unwrap())
        };
        let of = |field, message| is_allocation_failure(&refusal(field, message));
        assert!(of("spec.clusterIPs", "failed to allocate IP: allocator not ready"));
        assert!(of("spec.clusterIPs", "failed to allocate IP 10.0.0.1: it is not in the valid range"));
        assert!(!of("spec.clusterIPs", "may not be changed once set"));
        assert!(!of("spec.ports", "failed to allocate IP"));
    }

    #[test]
    fn the_addresses_of_a_service_are_read_from_both_fields() {
        let of = |spec: Value| requested(&json!({"spec": spec})).len();
        assert_eq!(of(json!({"clusterIP": "None"})), 0);
        assert_eq!(of(json!({"ports": []})), 0);
        assert_eq!(of(json!({"clusterIP": "10.0.0.1"})), 1);
        assert_eq!(of(json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]})), 3);
    }
}

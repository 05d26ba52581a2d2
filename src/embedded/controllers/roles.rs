//! Roles that consist of others.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::Api;
use crate::model::{Request, User, meta};
use crate::state::rights::{AGGREGATOR, CLUSTER_ROLES, RBAC, aggregated};

/// Gives aggregated roles the rules of the roles that they consist of.
pub(super) fn aggregate(api: &mut Api, now: Timestamp) {
    let latest = api.state.store.latest(CLUSTER_ROLES);
    if latest == api.state.aggregated {
        return;
    }
    api.state.aggregated = latest;
    let roles: Vec<Value> =
        api.state.store.range(CLUSTER_ROLES, "", None).map(|(_, role)| role.bare()).collect();
    for role in roles.iter().filter(|role| role["aggregationRule"].is_object()) {
        let rules = aggregated(role, &roles);
        if role["rules"].as_array().map(Vec::as_slice).unwrap_or_default() == rules {
            continue;
        }
        let name = meta::text(role, "name");
        let body = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}).to_string();
        let uri = format!("/apis/{RBAC}/v1/clusterroles/{name}?fieldManager={AGGREGATOR}&force=true");
        let request = Request {
            method: "PATCH",
            uri: &uri,
            content_type: "application/apply-patch+yaml",
            accept: "application/json",
            user_agent: AGGREGATOR,
            user: &User::default(),
            body: body.as_bytes(),
        };
        api.handle(&request, now);
    }
}

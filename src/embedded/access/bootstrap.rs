//! The roles and bindings of every cluster, and roles that consist of others.

use std::sync::OnceLock;

use jiff::Timestamp;
use operetta_kube_model::built_in::unpack;
use serde_json::{Value, json};

use crate::api::{Api, key, time};
use crate::request::{Request, User};
use crate::{meta, stored};

use super::RBAC;
use super::rights::aggregated;

/// What a new server makes: `generate/roles.py`.
static ROLES: &[u8] = include_bytes!("../data/roles.z");

pub(crate) const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";

/// Makes the roles and bindings of every cluster.
pub(crate) fn seed(api: &mut Api, now: Timestamp) {
    static PARSED: OnceLock<Vec<Value>> = OnceLock::new();
    let all = PARSED.get_or_init(complete);
    let now = time(now);
    for object in all {
        let mut object = object.clone();
        let plural = format!("{}s", object["kind"].as_str().unwrap_or_default().to_lowercase());
        let Some(kind) = api.kinds.find(RBAC, "v1", &plural).cloned() else { continue };
        let meta = &mut object["metadata"];
        meta["uid"] = api.uid().into();
        meta["creationTimestamp"] = now.clone().into();
        for manager in meta["managedFields"].as_array_mut().into_iter().flatten() {
            manager["time"] = now.clone().into();
        }
        let key = key(meta::text(&object, "namespace"), meta::text(&object, "name"));
        stored::put(api, &kind, &key, object);
    }
}

/// The recorded objects, with the rules of aggregated roles.
fn complete() -> Vec<Value> {
    let mut all: Vec<Value> = serde_json::from_str(&unpack(ROLES)).unwrap_or_default();
    // A role may consist of one that does: view, edit, admin.
    for _ in 0..3 {
        let roles: Vec<Value> = all.iter().filter(|role| role["kind"] == "ClusterRole").cloned().collect();
        for role in all.iter_mut().filter(|role| role["aggregationRule"].is_object()) {
            let manager = json!({"manager": MANAGER, "operation": "Apply", "apiVersion": "rbac.authorization.k8s.io/v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:rules": {}}});
            role["rules"] = aggregated(role, &roles).into();
            if let Some(managers) = role["metadata"]["managedFields"].as_array_mut() {
                managers.retain(|known| known["manager"] != MANAGER);
                managers.insert(0, manager);
            }
        }
    }
    all
}

/// The manager of the rules of aggregated roles.
const MANAGER: &str = "clusterrole-aggregation-controller";

/// Gives aggregated roles the rules of the roles that they consist of. Returns whether something changed.
pub(crate) fn aggregate(api: &mut Api, now: Timestamp) -> bool {
    let latest = api.store.latest(CLUSTER_ROLES);
    if latest == api.aggregated {
        return false;
    }
    api.aggregated = latest;
    let roles: Vec<Value> = api.store.range(CLUSTER_ROLES, "", None).map(|(_, role)| role.bare()).collect();
    let mut changed = false;
    for role in roles.iter().filter(|role| role["aggregationRule"].is_object()) {
        let rules = aggregated(role, &roles);
        if role["rules"].as_array().map(Vec::as_slice).unwrap_or_default() == rules {
            continue;
        }
        let name = meta::text(role, "name");
        let body = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}).to_string();
        let uri = format!("/apis/{RBAC}/v1/clusterroles/{name}?fieldManager={MANAGER}&force=true");
        let request = Request {
            method: "PATCH",
            uri: &uri,
            content_type: "application/apply-patch+yaml",
            accept: "application/json",
            user_agent: MANAGER,
            user: &User::default(),
            body: body.as_bytes(),
        };
        changed |= api.handle(&request, now).code == 200;
    }
    changed
}

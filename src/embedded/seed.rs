//! The objects of every cluster: namespaces, roles, the Service of the API server, priority classes.

use std::sync::{Mutex, OnceLock, PoisonError};

use jiff::Timestamp;
use operetta_kube_model::built_in::unpack;
use operetta_kube_model::facts::{key, time};
use serde_json::{Value, json};

use crate::model::{User, meta};
use crate::state::State;
use crate::state::rights::{AGGREGATOR, CLUSTER_ROLES, RBAC, aggregated};
use crate::state::stored::put;
use crate::strategy::priority::system_classes;
use crate::verbs::accounts;
use crate::verbs::write::write_as;

/// The roles and bindings that a new server makes: `generate/roles.py`.
static ROLES: &[u8] = include_bytes!("data/roles.z");

/// Where the API server listens, for those who ask for the endpoints of its Service.
const SERVER: (&str, u16) = ("172.18.0.1", 6443);

/// A state with the objects of every cluster.
pub(crate) fn seeded(now: Timestamp) -> State {
    // Many APIs begin at one time, and making the roles takes longer than most that is done with them.
    static LAST: Mutex<Option<(Timestamp, State)>> = Mutex::new(None);
    let last = || LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let known = last().as_ref().filter(|(time, _)| *time == now).map(|(_, state)| state.clone());
    known.unwrap_or_else(|| {
        let state = made(now);
        *last() = Some((now, state.clone()));
        state
    })
}

/// A state whose objects are made now.
fn made(now: Timestamp) -> State {
    let mut state = State::default();
    let user = User::default();
    let create = |state: &mut State, path: &str, object: Value| {
        let _ = write_as(state, ("kube-apiserver", &user), path, object, now);
    };
    let namespaces = ["default", "kube-node-lease", "kube-public", "kube-system"];
    for name in namespaces {
        create(&mut state, "/api/v1/namespaces", json!({"metadata": {"name": name}}));
    }
    put_roles(&mut state, now);
    for (path, object) in services() {
        create(&mut state, path, object);
    }
    for class in system_classes() {
        create(&mut state, "/apis/scheduling.k8s.io/v1/priorityclasses", class);
    }
    accounts::give(&mut state, namespaces, now);
    state.aggregated = state.store.latest(CLUSTER_ROLES);
    state
}

/// Stores the roles and bindings of every cluster.
fn put_roles(state: &mut State, now: Timestamp) {
    static PARSED: OnceLock<Vec<Value>> = OnceLock::new();
    let all = PARSED.get_or_init(roles);
    let now = time(now);
    for object in all {
        let mut object = object.clone();
        let plural = format!("{}s", object["kind"].as_str().unwrap_or_default().to_lowercase());
        let Some(kind) = state.kinds.find(RBAC, "v1", &plural).cloned() else { continue };
        let key = key(meta::text(&object, "namespace"), meta::text(&object, "name"));
        let uid = state.uid(kind.storage(), &key, false);
        state.note_creation(kind.storage(), &key);
        let meta = &mut object["metadata"];
        meta["uid"] = uid.into();
        meta["creationTimestamp"] = now.clone().into();
        for manager in meta["managedFields"].as_array_mut().into_iter().flatten() {
            manager["time"] = now.clone().into();
        }
        put(state, &kind, &key, object);
    }
}

/// The recorded objects, with the rules of aggregated roles.
fn roles() -> Vec<Value> {
    let mut all: Vec<Value> = serde_json::from_str(&unpack(ROLES)).unwrap_or_default();
    // A role may consist of one that does: view, edit, admin.
    for _ in 0..3 {
        let roles: Vec<Value> = all.iter().filter(|role| role["kind"] == "ClusterRole").cloned().collect();
        for role in all.iter_mut().filter(|role| role["aggregationRule"].is_object()) {
            let manager = json!({"manager": AGGREGATOR, "operation": "Apply", "apiVersion": "rbac.authorization.k8s.io/v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:rules": {}}});
            role["rules"] = aggregated(role, &roles).into();
            if let Some(managers) = role["metadata"]["managedFields"].as_array_mut() {
                managers.retain(|known| known["manager"] != AGGREGATOR);
                managers.insert(0, manager);
            }
        }
    }
    all
}

/// `default/kubernetes` and its endpoints, each with the path at which it is created.
fn services() -> [(&'static str, Value); 3] {
    let (address, port) = SERVER;
    let meta = |labels: Value| json!({"name": "kubernetes", "namespace": "default", "labels": labels});
    let ports = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let service = json!({"metadata": meta(json!({"component": "apiserver", "provider": "kubernetes"})),
        "spec": {"clusterIP": "10.96.0.1", "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "type": "ClusterIP",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}]}});
    let endpoints = json!({"metadata": meta(json!({"endpointslice.kubernetes.io/skip-mirror": "true"})),
        "subsets": [{"addresses": [{"ip": address}], "ports": ports}]});
    let slice = json!({"metadata": meta(json!({"kubernetes.io/service-name": "kubernetes"})), "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}], "ports": ports});
    [
        ("/api/v1/namespaces/default/services", service),
        ("/api/v1/namespaces/default/endpoints", endpoints),
        ("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice),
    ]
}

//! Changes that count late.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{Api, Body, Request, User};

const ACCESS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const GADGETS: &str = "/apis/example.com/v1/namespaces/default/gadgets";
const SHOP: &str = "/api/v1/namespaces/shop";

/// An API with the time of its world.
struct Cluster {
    api: Api,
    now: Timestamp,
}

impl Cluster {
    fn new(seed: Option<u64>) -> Self {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut cluster = Self { api: Api::new(now), now };
        cluster.settle();
        if let Some(seed) = seed {
            cluster.api.set_lateness(seed);
        }
        cluster
    }

    fn settle(&mut self) {
        while self.api.tick(self.now) {}
    }

    fn send(&mut self, user: &User, method: &str, uri: &str, body: &Value) -> u16 {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request {
            method,
            uri,
            content_type: "application/json",
            accept: "",
            user_agent: "test/1",
            user,
            body: body.as_bytes(),
        };
        let response = self.api.handle(&request, self.now);
        assert!(matches!(response.body, Body::Text(_)), "{method} {uri}");
        response.code
    }

    fn admin(&mut self, method: &str, uri: &str, body: &Value) {
        let code = self.send(&User::default(), method, uri, body);
        assert!(code < 300, "{method} {uri}: {code}");
    }

    fn is_there(&mut self, uri: &str) -> bool {
        self.send(&User::default(), "GET", uri, &Value::Null) == 200
    }

    /// Whether anna may list `ConfigMap`s.
    fn is_allowed(&mut self) -> bool {
        let groups = vec!["system:authenticated".to_owned()];
        let anna = User { name: "anna".to_owned(), groups, ..User::default() };
        self.send(&anna, "GET", MAPS, &Value::Null) == 200
    }

    /// Whether a `ConfigMap` could be created.
    fn is_admitted(&mut self) -> bool {
        let map = json!({"metadata": {"name": "dry"}});
        self.send(&User::default(), "POST", &format!("{MAPS}?dryRun=All"), &map) == 201
    }

    fn grant(&mut self) {
        let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
        self.admin(
            "POST",
            &format!("{ACCESS}/roles"),
            &json!({"metadata": {"name": "reader"}, "rules": rules}),
        );
        let subject = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "anna"});
        let role = json!({"kind": "Role", "apiGroup": "rbac.authorization.k8s.io", "name": "reader"});
        let binding = json!({"metadata": {"name": "reader"}, "subjects": [subject], "roleRef": role});
        self.admin("POST", &format!("{ACCESS}/rolebindings"), &binding);
    }

    fn forbid(&mut self, plural: &str) {
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [plural]});
        let never = json!({"expression": "false", "reason": "Forbidden"});
        let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "validations": [never]});
        let path = format!("{ADMISSION}/validatingadmissionpolicies");
        self.admin("POST", &path, &json!({"metadata": {"name": "no"}, "spec": spec}));
        let spec = json!({"policyName": "no", "validationActions": ["Deny"]});
        let path = format!("{ADMISSION}/validatingadmissionpolicybindings");
        self.admin("POST", &path, &json!({"metadata": {"name": "no"}, "spec": spec}));
    }

    fn define(&mut self) {
        let schema =
            json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let spec = json!({"group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Gadget", "listKind": "GadgetList", "plural": "gadgets", "singular": "gadget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]});
        self.admin("POST", CRDS, &json!({"metadata": {"name": "gadgets.example.com"}, "spec": spec}));
    }

    /// Creates an object whose owner does not exist.
    fn litter(&mut self) {
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"});
        self.admin("POST", MAPS, &json!({"metadata": {"name": "litter", "ownerReferences": [owner]}}));
    }

    fn delete_namespace(&mut self) {
        self.admin("POST", "/api/v1/namespaces", &json!({"metadata": {"name": "shop"}}));
        self.settle();
        self.admin("DELETE", SHOP, &Value::Null);
    }

    /// Waits until this holds. Returns the milliseconds that it took.
    fn until(&mut self, holds: impl Fn(&mut Self) -> bool) -> u32 {
        for millis in 0..10_000 {
            self.settle();
            if holds(self) {
                return millis;
            }
            self.now += SignedDuration::from_millis(1);
        }
        panic!("not within ten seconds");
    }

    /// Lets time pass until nothing is due. Returns how often something was.
    fn rest(&mut self) -> usize {
        self.settle();
        for rounds in 0..100 {
            let Some(due) = self.api.next_due() else { return rounds };
            assert!(due > self.now, "time does not go on");
            self.now = due;
            self.settle();
        }
        panic!("it does not come to rest");
    }

    /// The milliseconds after which each sort of change counts.
    fn delays(&mut self) -> [u32; 7] {
        self.grant();
        let grant = self.until(Self::is_allowed);
        self.admin("DELETE", &format!("{ACCESS}/rolebindings/reader"), &Value::Null);
        let revocation = self.until(|cluster| !cluster.is_allowed());
        self.forbid("configmaps");
        let policy = self.until(|cluster| !cluster.is_admitted());
        self.admin("DELETE", &format!("{ADMISSION}/validatingadmissionpolicybindings/no"), &Value::Null);
        let lifted = self.until(Self::is_admitted);
        self.define();
        let kind = self.until(|cluster| cluster.is_there(GADGETS));
        self.litter();
        let garbage = self.until(|cluster| !cluster.is_there(&format!("{MAPS}/litter")));
        self.delete_namespace();
        let namespace = self.until(|cluster| !cluster.is_there(SHOP));
        [grant, revocation, policy, lifted, kind, garbage, namespace]
    }
}

#[test]
fn changes_count_at_once_by_default() {
    let mut cluster = Cluster::new(None);
    assert_eq!(cluster.delays(), [0; 7]);
    assert_eq!(cluster.api.next_due(), None);
}

#[test]
fn delays_follow_from_the_seed() {
    let delays = |seed| Cluster::new(Some(seed)).delays();
    let first = delays(1);
    assert_eq!(delays(1), first);
    assert_ne!(delays(2), first);
    let most = [300, 300, 1000, 1000, 600, 3000, 9000];
    assert!(first.iter().zip(most).all(|(delay, most)| (1..=most).contains(delay)), "{first:?}");
}

#[test]
fn grants_and_revocations_keep_their_order() {
    let mut cluster = Cluster::new(Some(3));
    cluster.grant();
    cluster.until(Cluster::is_allowed);
    let binding = format!("{ACCESS}/rolebindings/reader");
    let subject = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "anna"});
    let role = json!({"kind": "Role", "apiGroup": "rbac.authorization.k8s.io", "name": "reader"});
    cluster.admin("DELETE", &binding, &Value::Null);
    cluster.now += SignedDuration::from_millis(1);
    let again = json!({"metadata": {"name": "reader"}, "subjects": [subject], "roleRef": role});
    cluster.admin("POST", &format!("{ACCESS}/rolebindings"), &again);
    assert!(cluster.is_allowed(), "the deleted binding still counts");
    cluster.until(|cluster| !cluster.is_allowed());
    assert_eq!(cluster.until(Cluster::is_allowed), 1, "the new one counts as much later as it was created");
}

#[test]
fn nothing_waits_once_all_is_known() {
    let mut cluster = Cluster::new(Some(1));
    assert_eq!(cluster.api.next_due(), None);
    cluster.grant();
    cluster.forbid("configmaps");
    cluster.define();
    cluster.litter();
    assert!(
        cluster.rest() > 0 && cluster.is_allowed() && !cluster.is_admitted() && cluster.is_there(GADGETS)
    );
}

#[test]
fn a_namespace_of_an_api_without_workloads_goes_late() {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut cluster = Cluster { api: Api::bare(now), now };
    cluster.settle();
    cluster.api.set_lateness(1);
    cluster.delete_namespace();
    assert!(cluster.until(|cluster| !cluster.is_there(SHOP)) > 0);
}

#[test]
fn what_a_policy_has_refused_is_tried_again_once_it_counts_no_more() {
    for seed in [None, Some(1)] {
        let mut cluster = Cluster::new(seed);
        cluster.forbid("pods");
        cluster.rest();
        let labels = json!({"app": "web"});
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "image:1"}]}});
        let spec = json!({"replicas": 1, "selector": {"matchLabels": labels}, "template": template});
        let web = json!({"metadata": {"name": "web"}, "spec": spec});
        cluster.admin("POST", "/apis/apps/v1/namespaces/default/replicasets", &web);
        cluster.rest();
        assert_eq!(cluster.api.versions("v1", "Pod").count(), 0);
        cluster.admin("DELETE", &format!("{ADMISSION}/validatingadmissionpolicybindings/no"), &Value::Null);
        cluster.rest();
        assert_eq!(cluster.api.versions("v1", "Pod").count(), 1);
    }
}

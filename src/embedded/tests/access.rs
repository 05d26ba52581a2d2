//! Rights, tokens, conversion and bounds of expressions: what no fixture has.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{Api, Body, Converter, Request, User, Webhook};

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn send(api: &mut Api, user: &User, to: &str, body: &Value) -> (u16, Value) {
    let (method, uri) = to.split_once(' ').unwrap();
    let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request =
        Request { method, uri, content_type, accept: "", user_agent: "test/1", user, body: body.as_bytes() };
    let response = api.handle(&request, now());
    let Body::Text(text) = response.body else { panic!("a watch") };
    (response.code, serde_json::from_str(&text).unwrap_or(Value::String(text.into())))
}

fn admin(api: &mut Api, to: &str, body: &Value) -> Value {
    let (code, answer) = send(api, &User::default(), to, body);
    assert!(code < 300, "{to}: {code} {answer}");
    answer
}

fn settled() -> Api {
    let mut api = Api::new(now());
    while api.tick(now()) {}
    api
}

fn user(name: &str) -> User {
    User { name: name.to_owned(), groups: vec!["system:authenticated".to_owned()], ..User::default() }
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn give(api: &mut Api, name: &str, to: &str, rules: &Value) {
    admin(api, &format!("POST {RBAC}/clusterroles"), &json!({"metadata": {"name": name}, "rules": rules}));
    let subject = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": to});
    let role = json!({"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": name});
    let binding = json!({"metadata": {"name": name}, "subjects": [subject], "roleRef": role});
    admin(api, &format!("POST {RBAC}/clusterrolebindings"), &binding);
}

#[test]
fn default_roles_are_there_and_aggregated() {
    let mut api = settled();
    let view = admin(&mut api, &format!("GET {RBAC}/clusterroles/view"), &Value::Null);
    assert!(view["rules"].as_array().unwrap().iter().any(|rule| rule["apiGroups"][0] == "apps"));
    let admin_role = admin(&mut api, &format!("GET {RBAC}/clusterroles/admin"), &Value::Null);
    assert!(admin_role["rules"].as_array().unwrap().len() > view["rules"].as_array().unwrap().len());
    let more = json!({"metadata": {"name": "more", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"apiGroups": ["x.test"], "resources": ["things"], "verbs": ["get"]}]});
    admin(&mut api, &format!("POST {RBAC}/clusterroles"), &more);
    while api.tick(now()) {}
    for role in ["view", "edit", "admin"] {
        let role = admin(&mut api, &format!("GET {RBAC}/clusterroles/{role}"), &Value::Null);
        let has = role["rules"].as_array().unwrap().iter().any(|rule| rule["apiGroups"][0] == "x.test");
        assert!(has, "{role}");
    }
}

const LIST: &str = "/api/v1/namespaces/default/configmaps";

fn header(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// The message with which `anna` is refused.
fn refusal(api: &mut Api, headers: &[(String, String)]) -> String {
    let refused = api.acting_user(&user("anna"), "GET", LIST, headers, now()).unwrap_err();
    let Body::Text(text) = refused.body else { panic!("a watch") };
    let status: Value = serde_json::from_str(&text).unwrap();
    status["message"].as_str().unwrap().to_owned()
}

#[test]
fn impersonation_needs_the_verb_for_each_part() {
    let mut api = settled();
    let rules = json!([{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/a/b"], "verbs": ["impersonate"]}]);
    give(&mut api, "acts", "anna", &rules);
    let anna = user("anna");
    let bob = [header("impersonate-user", "bob"), header("impersonate-extra-a%2fb", "x y")];
    let acting = api.acting_user(&anna, "GET", LIST, &bob, now()).unwrap();
    assert_eq!((acting.name.as_str(), &acting.groups[..]), ("bob", &["system:authenticated".to_owned()][..]));
    assert_eq!(acting.extra["a/b"], ["x y"]);
    for (name, value, mode) in [
        ("impersonate-group", "system:masters", "user-info"),
        ("impersonate-uid", "1", "user-info"),
        ("impersonate-extra-other", "x", "user-info"),
        ("impersonate-user", "carl", "user-info"),
        ("impersonate-user", "system:serviceaccount:a:b", "serviceaccount"),
    ] {
        let mut headers = vec![header(name, value)];
        if name != "impersonate-user" {
            headers.push(header("impersonate-user", "bob"));
        }
        let message = refusal(&mut api, &headers);
        let wanted = format!(
            "configmaps is forbidden: User \"anna\" cannot impersonate-on:{mode}:list resource \"configmaps\" in API group \"\" in the namespace \"default\""
        );
        assert_eq!(message, wanted);
    }
    assert_eq!(api.acting_user(&anna, "GET", LIST, &[], now()).unwrap(), anna);
    assert!(
        refusal(&mut api, &[header("impersonate-group", "a")]).contains("without impersonating a user name")
    );
}

#[test]
fn constrained_impersonation_is_for_requests_of_its_kind() {
    let mut api = settled();
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["impersonate-on:user-info:list"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "verbs": ["impersonate:user-info"], "resourceNames": ["bob"]}]);
    give(&mut api, "acts", "anna", &rules);
    let bob = [header("impersonate-user", "bob")];
    assert_eq!(api.acting_user(&user("anna"), "GET", LIST, &bob, now()).unwrap().name, "bob");
    assert!(api.acting_user(&user("anna"), "DELETE", LIST, &bob, now()).is_err());
    let message = refusal(&mut api, &[header("impersonate-user", "carl")]);
    assert_eq!(
        message,
        "users.authentication.k8s.io \"carl\" is forbidden: User \"anna\" cannot impersonate:user-info resource \"users\" in API group \"authentication.k8s.io\" at the cluster scope"
    );
}

#[test]
fn tokens_end_with_their_time_and_their_account() {
    let mut api = settled();
    let path = "/api/v1/namespaces/default/serviceaccounts/default";
    let answer = admin(&mut api, &format!("POST {path}/token"), &json!({"spec": {"expirationSeconds": 600}}));
    let token = answer["status"]["token"].as_str().unwrap();
    let user = api.user_of_token(token, now()).unwrap();
    assert_eq!(user.name, "system:serviceaccount:default:default");
    assert!(api.user_of_token(token, now() + SignedDuration::from_secs(601)).is_none());
    assert!(api.user_of_token("other", now()).is_none());
    admin(&mut api, &format!("DELETE {path}"), &Value::Null);
    assert!(api.user_of_token(token, now()).is_none());
}

#[test]
fn tokens_cannot_be_known_without_their_key() {
    let token_with = |key: &str| {
        let mut api = settled();
        api.set_token_key(key.to_owned());
        let path = "POST /api/v1/namespaces/default/serviceaccounts/default/token";
        admin(&mut api, path, &json!({}))["status"]["token"].as_str().unwrap().to_owned()
    };
    let tokens = ["a", "b"].map(token_with);
    assert_ne!(tokens[0], tokens[1], "the same request, another key");
    assert_eq!(tokens[0], token_with("a"), "plays are repeated exactly");
}

fn crd(schema: &Value) -> Value {
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema}});
    json!({"metadata": {"name": "things.x.test"}, "spec": {"group": "x.test", "scope": "Cluster",
        "names": {"plural": "things", "kind": "Thing"}, "versions": [version("v1", false), version("v2", true)],
        "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://x"}}}}})
}

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

#[test]
fn a_version_stays_in_the_crd_while_objects_may_be_stored_in_it() {
    let mut api = settled();
    let crd = |names: &[&str]| {
        let version = |name: &&str| {
            json!({"name": name, "served": true, "storage": *name == names[names.len() - 1],
            "schema": {"openAPIV3Schema": {"type": "object"}}})
        };
        json!({"metadata": {"name": "things.x.test"}, "spec": {"group": "x.test", "scope": "Cluster",
            "names": {"plural": "things", "kind": "Thing"}, "versions": names.iter().map(version).collect::<Vec<_>>()}})
    };
    let path = format!("PATCH {CRDS}/things.x.test");
    admin(&mut api, &format!("POST {CRDS}"), &crd(&["v1"]));
    let both = admin(&mut api, &path, &crd(&["v1", "v2"]));
    assert_eq!(both["status"]["storedVersions"], json!(["v1", "v2"]));
    let (code, told) = send(&mut api, &User::default(), &path, &crd(&["v2"]));
    assert!(
        code == 422 && told["message"].as_str().unwrap().contains("status.storedVersions[0]"),
        "{told:#}"
    );
    admin(&mut api, &format!("{path}/status"), &json!({"status": {"storedVersions": ["v2"]}}));
    assert_eq!(admin(&mut api, &path, &crd(&["v2"]))["status"]["storedVersions"], json!(["v2"]));
}

/// Moves `spec.old` of v1 to `spec.new` of v2, and refuses `bad`.
#[derive(Debug)]
struct Rename;

impl Converter for Rename {
    fn webhook(&self, crd: &Value) -> Option<Arc<dyn Webhook>> {
        assert_eq!(crd["metadata"]["name"], "things.x.test");
        Some(Arc::new(Self))
    }
}

impl Webhook for Rename {
    fn convert(&self, review: &Value) -> Result<Value, String> {
        let request = &review["request"];
        let mut object = request["objects"][0].clone();
        if object["spec"]["old"] == "bad" {
            return Err("no such thing".to_owned());
        }
        let (from, to) =
            if request["desiredAPIVersion"] == "x.test/v2" { ("old", "new") } else { ("new", "old") };
        object["apiVersion"] = request["desiredAPIVersion"].clone();
        object["metadata"]["labels"] = json!({"converted": "yes"});
        object["metadata"]["name"] = "ignored".into();
        let value = object["spec"].as_object_mut().and_then(|spec| spec.remove(from)).unwrap_or_default();
        object["spec"][to] = value;
        Ok(
            json!({"response": {"uid": request["uid"], "convertedObjects": [object], "result": {"status": "Success"}}}),
        )
    }
}

#[test]
fn a_converter_answers_for_webhooks() {
    let mut api = settled();
    let open = json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    admin(&mut api, &format!("POST {CRDS}"), &crd(&open));
    while api.tick(now()) {}
    api.set_converter(Arc::new(Rename));
    let thing = |name: &str, value: &str| json!({"apiVersion": "x.test/v1", "kind": "Thing", "metadata": {"name": name}, "spec": {"old": value}});
    let made = admin(&mut api, "POST /apis/x.test/v1/things", &thing("a", "1"));
    assert_eq!((&made["spec"]["old"], &made["metadata"]["name"]), (&json!("1"), &json!("a")));
    let read = admin(&mut api, "GET /apis/x.test/v2/things/a", &Value::Null);
    assert_eq!(
        (&read["spec"]["new"], &read["metadata"]["labels"]["converted"]),
        (&json!("1"), &json!("yes"))
    );
    let patched = admin(&mut api, "PATCH /apis/x.test/v2/things/a", &json!({"spec": {"new": "2"}}));
    assert_eq!(patched["spec"]["new"], "2");
    let list = admin(&mut api, "GET /apis/x.test/v1/things", &Value::Null);
    assert_eq!(list["items"][0]["spec"], json!({"old": "2"}));
    let (code, answer) = send(&mut api, &User::default(), "POST /apis/x.test/v1/things", &thing("b", "bad"));
    assert_eq!(code, 500);
    assert!(
        answer["message"]
            .as_str()
            .unwrap()
            .contains("conversion webhook for x.test/v1, Kind=Thing failed: no such thing")
    );
}

#[test]
fn endless_expressions_are_stopped() {
    let mut api = settled();
    let rule = json!([{"rule": "self.spec.l.all(a, self.spec.l.all(b, self.spec.l.all(c, a + b + c >= 0)))", "message": "m"}]);
    let schema = json!({"type": "object", "x-kubernetes-validations": rule, "properties": {"spec": {"type": "object",
        "properties": {"l": {"type": "array", "items": {"type": "integer"}}}}}});
    admin(&mut api, &format!("POST {CRDS}"), &crd(&schema));
    while api.tick(now()) {}
    let numbers: Vec<u32> = (0..200).collect();
    let thing = json!({"apiVersion": "x.test/v2", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"l": numbers}});
    let (code, answer) = send(&mut api, &User::default(), "POST /apis/x.test/v2/things", &thing);
    assert_eq!(code, 422);
    assert!(answer["message"].as_str().unwrap().contains("call cost exceeds limit"), "{answer}");
    let deep = format!("{}true{}", "(".repeat(5000), ")".repeat(5000));
    let schema = json!({"type": "object", "x-kubernetes-validations": [{"rule": deep, "message": "m"}]});
    let (code, _) = send(&mut api, &User::default(), &format!("PUT {CRDS}/things.x.test"), &crd(&schema));
    assert_eq!(code, 422);
}

#[test]
fn policies_follow_their_changes() {
    let mut api = settled();
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let rules =
        json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}]);
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": "request.operation == 'DELETE' || object.metadata.name != 'x'"}]}});
    admin(&mut api, &format!("POST {policies}"), &policy);
    let configmap = json!({"metadata": {"name": "x"}});
    let to = "POST /api/v1/namespaces/default/configmaps?dryRun=All";
    admin(&mut api, to, &configmap);
    let bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
    let binding =
        json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    admin(&mut api, &format!("POST {bindings}"), &binding);
    assert_eq!(send(&mut api, &User::default(), to, &configmap).0, 422);
    let patch = json!({"spec": {"validations": [{"expression": "object.metadata.name != 'y'"}]}});
    admin(&mut api, &format!("PATCH {policies}/p"), &patch);
    admin(&mut api, to, &configmap);
    admin(&mut api, &format!("DELETE {bindings}/b"), &Value::Null);
    admin(&mut api, to, &json!({"metadata": {"name": "y"}}));
}

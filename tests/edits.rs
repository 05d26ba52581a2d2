//! Edits by every way that a person or a controller has, of twenty kinds: what is ours is put back, what is
//! theirs stays, with few requests, and then there is silence.
//!
//! Each case has a child of its own, edited once. `OPERETTA_TEST_ONLY` runs the cases whose name has it.

// A table reads better with values than with references to them.
#![allow(clippy::needless_pass_by_value)]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use http::Request;
use operetta::local::{AuditEvent, Mark};
use serde_json::{Value, json};
use support::ext::{
    AUTOSCALER, CLUSTER_ROLE, CONFIG_MAP, CRON_JOB, DAEMON_SET, DEPLOYMENT, DISRUPTION_BUDGET, GAUGE,
    INGRESS, JOB, Kind, LONG, NETWORK_POLICY, POD, QUOTA, ROLE, ROLE_BINDING, SECRET, SERVICE,
    SERVICE_ACCOUNT, SHELF, STATEFUL_SET, Scene, VOLUME_CLAIM, file, fixture, list, managers_requests, read,
    run, uid_of, watching,
};
use support::{Operetta, eventually, kubectl, plane};

/// The id of each child of the package, and its kind.
const CHILDREN: [(&str, Kind); 20] = [
    ("configmap", CONFIG_MAP),
    ("secret", SECRET),
    ("service", SERVICE),
    ("serviceaccount", SERVICE_ACCOUNT),
    ("deployment", DEPLOYMENT),
    ("statefulset", STATEFUL_SET),
    ("daemonset", DAEMON_SET),
    ("job", JOB),
    ("cronjob", CRON_JOB),
    ("ingress", INGRESS),
    ("networkpolicy", NETWORK_POLICY),
    ("role", ROLE),
    ("rolebinding", ROLE_BINDING),
    ("clusterrole", CLUSTER_ROLE),
    ("pdb", DISRUPTION_BUDGET),
    ("quota", QUOTA),
    ("pvc", VOLUME_CLAIM),
    ("pod", POD),
    ("hpa", AUTOSCALER),
    ("gauge", GAUGE),
];

/// A foreign change that metadata cannot explain is answered at most once in so long: a war of that pace
/// shows after it.
const REAPPLY_EVERY: Duration = Duration::from_secs(30);

/// By what way the edit is made.
enum How {
    /// `kubectl ARGS`; NAME stands for the name.
    Kubectl(Vec<&'static str>),
    /// `kubectl patch --type=TYPE`.
    Patch(&'static str, Value),
    /// `kubectl edit`, the editor being `sed`.
    Editor(&'static str),
    /// `kubectl replace` of the object as it is but for this.
    Replace(fn(&mut Value)),
    /// `kubectl apply` of the object as it is but for this.
    ClientApply(fn(&mut Value)),
    /// `kubectl apply --server-side` under our name, of the object as it is but for this.
    ServerReplace(fn(&mut Value)),
    /// `kubectl apply --server-side`, of this beside kind and name.
    ServerApply(&'static [&'static str], Value),
    /// The same, and it must be refused.
    Refused(Value),
    /// A merge patch of a subresource, or none, by a field manager.
    As(&'static str, &'static str, Value),
}

use How::{As, ClientApply, Editor, Kubectl, Patch, Refused, Replace, ServerApply, ServerReplace};

struct Case {
    child: &'static str,
    what: String,
    how: How,
    /// What stays of it: a merge patch of the object as it was.
    stays: Value,
    /// And this change of it.
    change: fn(&mut Value),
    /// How many requests about the object it may cost.
    most: usize,
    /// Compare the order of lists with names, too.
    in_order: bool,
}

impl Case {
    /// This of it stays.
    fn also(mut self, patch: Value) -> Self {
        self.stays = patch;
        self
    }

    /// This of it stays, where a merge patch cannot say it.
    fn with(mut self, change: fn(&mut Value)) -> Self {
        self.change = change;
        self
    }

    fn most(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    fn name(&self) -> String {
        format!("{}: {}", self.child, self.what)
    }
}

/// All of the edit is undone, by one request.
fn put_back(child: &'static str, what: &str, how: How) -> Case {
    Case { child, what: what.to_owned(), how, stays: json!({}), change: |_| (), most: 1, in_order: false }
}

/// This of it stays, and nobody asks anything about it.
fn stays(child: &'static str, what: &str, how: How, stays: Value) -> Case {
    Case { child, what: what.to_owned(), how, stays, change: |_| (), most: 0, in_order: false }
}

fn merge(patch: Value) -> How {
    Patch("merge", patch)
}

fn remove(path: &str) -> How {
    Patch("json", json!([{"op": "remove", "path": path}]))
}

fn set(path: &str, value: impl Into<Value>) -> How {
    let value = value.into();
    Patch("json", json!([{"op": "add", "path": path, "value": value}]))
}

fn labels(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

/// What can be done to any kind.
fn of_any_kind(child: &'static str) -> Vec<Case> {
    const OURS: &str = "app.kubernetes.io/managed-by";
    const OWN_NAME: [&str; 2] = ["--field-manager=operetta/edits", "--force-conflicts"];
    let team = || labels(json!({"team": "a"}));
    // Without any label a Job is given those of its template.
    let replaced = |o: &mut Value| {
        let is_ours = |key: &str| key.starts_with("operetta.dev/") || key == OURS;
        let labels = o["metadata"]["labels"].as_object_mut().unwrap();
        labels.retain(|key, _| !is_ours(key));
        labels.insert("team".into(), "a".into());
    };
    let mut cases = vec![
        stays(child, "a label is added", As("kubectl-label", "", team()), team()),
        stays(
            child,
            "an annotation is added by another applier",
            ServerApply(&["--field-manager=other"], json!({"metadata": {"annotations": {"note": "b"}}})),
            json!({"metadata": {"annotations": {"note": "b"}}}),
        )
        // To a Deployment this is another generation.
        .most(usize::from(child == "deployment")),
        put_back(
            child,
            "a label of ours is removed",
            As("kubectl-label", "", labels(json!({OURS: null, "team": null}))),
        ),
        put_back(
            child,
            "a label of ours is edited under our name",
            As("operetta/edits", "", labels(json!({OURS: "x"}))),
        ),
        put_back(
            child,
            "another applier takes a label of ours by force",
            ServerApply(&["--field-manager=other", "--force-conflicts"], labels(json!({OURS: "other"}))),
        ),
        // Created in vain, read, taken.
        put_back(
            child,
            "it is labelled as another instance's",
            As("kubectl-edit", "", labels(json!({"operetta.dev/instance-uid": "x"}))),
        )
        .most(3),
        // Created in vain, read, taken.
        put_back(child, "all labels of ours are removed by a replace", Replace(replaced))
            .also(team())
            .most(3),
        put_back(
            child,
            "the hash of the intent is edited",
            As("kubectl-annotate", "", json!({"metadata": {"annotations": {"operetta.dev/intent": "x"}}})),
        ),
        // That of the Deployment's controller, too, which answers with another generation.
        put_back(child, "all annotations are removed", remove("/metadata/annotations"))
            .most(if child == "deployment" { 2 } else { 1 }),
        // The server then thinks that all was there before anybody applied, which is mended, too.
        put_back(
            child,
            "managedFields are emptied",
            As("kubectl-edit", "", json!({"metadata": {"managedFields": [{}]}})),
        )
        .most(2),
    ];
    // What the server has made up of a Job or a Pod must not be let go of again.
    if !["job", "pod"].contains(&child) {
        let how = ServerReplace(|o| o["metadata"]["labels"][OURS] = "x".into());
        cases.push(put_back(child, "all of it is applied under our name, a label edited", how));
    }
    // All else of it is gone then.
    if ["configmap", "serviceaccount", "role", "networkpolicy", "quota"].contains(&child) {
        cases.push(
            put_back(child, "a label is applied under our name", ServerApply(&OWN_NAME, team())).most(3),
        );
    }
    if child != "clusterrole" {
        cases.push(put_back(child, "its owner is removed", remove("/metadata/ownerReferences")));
    }
    cases
}

#[rustfmt::skip]
fn of_light_kinds() -> Vec<Case> {
    let greeting = |value: &str| json!({"data": {"greeting": value}});
    vec![
        put_back("configmap", "a value is edited", Editor("s/^  greeting: .*/  greeting: hacked/")),
        put_back("configmap", "a value is patched strategically", Patch("strategic", greeting("x"))),
        put_back("configmap", "an empty value is removed", merge(json!({"data": {"empty": null}}))),
        put_back("configmap", "all data is removed", remove("/data")),
        put_back("configmap", "bytes are replaced", Replace(|o| o["binaryData"]["bytes"] = "AAAA".into())),
        put_back("configmap", "a value is applied by the client", ClientApply(|o| o["data"]["greeting"] = "mine".into())),
        put_back("configmap", "a value is applied by force", ServerApply(&["--force-conflicts"], greeting("mine"))),
        stays("configmap", "a value is applied without force", Refused(greeting("mine")), json!({})),
        stays("configmap", "the same value is applied", ServerApply(&[], greeting("hello")), json!({})),
        put_back("configmap", "an annotation of ours is edited", Kubectl(vec!["annotate", "configmap", "NAME", "--overwrite", "example.org/note=x"])),
        stays("configmap", "a key is added", merge(json!({"data": {"extra": "1"}})), json!({"data": {"extra": "1"}})),
        put_back("configmap", "one key is edited, one added", merge(json!({"data": {"greeting": "x", "extra": "1"}}))).also(json!({"data": {"extra": "1"}})),
        put_back("configmap", "managedFields are emptied and a value edited", merge(json!({"metadata": {"managedFields": [{}]}, "data": {"greeting": "x"}}))).most(2),
        put_back("configmap", "it is deleted", Kubectl(vec!["delete", "configmap", "NAME"])),
        put_back("secret", "a value is edited", Editor("s/^  greeting: .*/  greeting: aGFja2Vk/")),
        put_back("secret", "a value is edited as text", merge(json!({"stringData": {"greeting": "x"}}))),
        put_back("secret", "a key is removed", remove("/data/fixed")),
        put_back("secret", "all data is replaced", Replace(|o| o["data"] = json!({"greeting": "eA=="}))),
        stays("secret", "a key is added", merge(json!({"data": {"extra": "eA=="}})), json!({"data": {"extra": "eA=="}})),
        put_back("serviceaccount", "its token is mounted", merge(json!({"automountServiceAccountToken": true}))),
        put_back("serviceaccount", "its pull secrets are removed", remove("/imagePullSecrets")),
        put_back("role", "its rules are edited", Editor("s/^  - get/  - delete/")),
        put_back("role", "a rule is added", set("/rules/-", json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}))),
        put_back("role", "its rules are emptied", merge(json!({"rules": []}))),
        put_back("rolebinding", "a subject is added", set("/subjects/-", json!({"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}))),
        put_back("rolebinding", "its subjects are removed", remove("/subjects")),
        put_back("clusterrole", "it aggregates others", set("/aggregationRule/clusterRoleSelectors/0", json!({"matchLabels": {"a": "b"}}))),
        put_back("clusterrole", "it aggregates none", Replace(|o| drop(o.as_object_mut().unwrap().remove("aggregationRule")))),
        put_back("networkpolicy", "it is opened", merge(json!({"spec": {"ingress": [{}]}}))),
        put_back("networkpolicy", "it is opened to the outside", merge(json!({"spec": {"egress": [{}]}}))),
        put_back("networkpolicy", "it lets nothing out", merge(json!({"spec": {"egress": []}}))),
        put_back("networkpolicy", "a policy type is removed", remove("/spec/policyTypes/1")),
        put_back("networkpolicy", "it selects fewer pods", merge(json!({"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}))),
        put_back("ingress", "its host is edited", Editor("s/host: a.test/host: b.test/")),
        put_back("ingress", "a rule is added", set("/spec/rules/-", json!({"host": "c.test"}))),
        put_back("ingress", "its tls is removed", remove("/spec/tls")),
        put_back("ingress", "its path is edited", set("/spec/rules/0/http/paths/0/path", "/x")),
        put_back("ingress", "an annotation of ours is removed", Kubectl(vec!["annotate", "ingress", "NAME", "example.org/rewrite-"])),
        stays("ingress", "it gets a default backend", merge(backend()), backend()).most(1),
        put_back("pdb", "fewer must be available", Editor("s/minAvailable: 50%/minAvailable: 1/")),
        put_back("pdb", "it says what may be unavailable instead", merge(json!({"spec": {"minAvailable": null, "maxUnavailable": 1}}))).most(4),
        put_back("pdb", "it selects fewer pods", merge(json!({"spec": {"selector": {"matchLabels": {"more": "x"}}}}))),
        put_back("quota", "it is raised", merge(json!({"spec": {"hard": {"requests.storage": "1Ti"}}}))),
        put_back("quota", "a limit is removed", remove("/spec/hard/requests.storage")),
        stays("quota", "a limit is added", merge(json!({"spec": {"hard": {"pods": "7k"}}})), json!({"spec": {"hard": {"pods": "7k"}}})),
        put_back("hpa", "its maximum is edited", Kubectl(vec!["patch", "hpa", "NAME", "-p", r#"{"spec":{"maxReplicas":9}}"#])),
        put_back("hpa", "its maximum is edited in another version", Kubectl(vec!["patch", "hpa.v1.autoscaling", "NAME", "-p", r#"{"spec":{"maxReplicas":9}}"#])),
        put_back("hpa", "its minimum is edited", set("/spec/minReplicas", 2)),
        put_back("hpa", "a metric is removed", remove("/spec/metrics/0")),
        put_back("hpa", "a metric is edited", set("/spec/metrics/1/external/target/averageValue", "2")),
        stays("hpa", "it gets a behaviour", merge(json!({"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}}})),
            json!({"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 60, "selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]},
                "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]}}}})),
        put_back("pvc", "it is deleted", Kubectl(vec!["delete", "pvc", "NAME", "--wait=false"])).most(2),
    ]
}

fn backend() -> Value {
    json!({"spec": {"defaultBackend": {"service": {"name": "x", "port": {"number": 80}}}}})
}

#[rustfmt::skip]
fn of_services() -> Vec<Case> {
    let port = |name: &str, port: u16| json!({"name": name, "port": port, "protocol": "TCP", "targetPort": port});
    vec![
        put_back("service", "a port is edited", Editor("s/ port: 80$/ port: 81/")).most(3),
        put_back("service", "a port is patched", set("/spec/ports/0/port", 81)).most(3),
        put_back("service", "a port is renamed", set("/spec/ports/0/name", "web")).most(2),
        put_back("service", "a port gets another protocol", set("/spec/ports/0/protocol", "UDP")).most(3),
        put_back("service", "a port leads elsewhere", set("/spec/ports/0/targetPort", 81)),
        put_back("service", "a port is removed", remove("/spec/ports/2")).most(2),
        put_back("service", "all ports are replaced by another", merge(json!({"spec": {"ports": [port("other", 99)]}}))).most(3),
        stays("service", "a port is added", set("/spec/ports/-", json!({"name": "more", "port": 99, "nodePort": 31999})),
            json!({"spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53}, {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53}, port("more", 99)]}})),
        stays("service", "ports are reordered", Replace(|o| o["spec"]["ports"].as_array_mut().unwrap().reverse()), json!({})),
        put_back("service", "its selector is edited", Kubectl(vec!["set", "selector", "service", "NAME", "app=other"])),
        put_back("service", "its selector is narrowed", merge(json!({"spec": {"selector": {"more": "x"}}}))),
        put_back("service", "its type is edited", merge(json!({"spec": {"type": "ClusterIP"}}))),
        stays("service", "a session stays with its pod", merge(json!({"spec": {"sessionAffinity": "ClientIP"}})),
            json!({"spec": {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}}}})),
        put_back("service", "it is deleted", Kubectl(vec!["delete", "service", "NAME"])),
    ]
}

const PODS: &str = "/spec/template/spec";

fn pod_patch(spec: Value) -> Value {
    json!({"spec": {"template": {"spec": spec}}})
}

fn pod_of(object: &mut Value) -> &mut Value {
    &mut object["spec"]["template"]["spec"]
}

fn reversed(object: &mut Value, list: &str) {
    pod_of(object)[list].as_array_mut().unwrap().reverse();
}

fn restarted() -> Value {
    json!({"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "then"}}}}})
}

#[rustfmt::skip]
fn of_workloads() -> Vec<Case> {
    let web = |rest: &str| format!("{PODS}/containers/0/{rest}");
    let mut cases = vec![
        put_back("deployment", "it is scaled by an autoscaler", As("horizontal-pod-autoscaler", "/scale", json!({"spec": {"replicas": 2}}))),
        put_back("deployment", "its image is edited", Editor("s#example.org/web:1#example.org/web:2#")),
        put_back("deployment", "a variable is set", Kubectl(vec!["set", "env", "deployment/NAME", "-c=web", "A=two"])),
        put_back("deployment", "a variable is removed", Kubectl(vec!["set", "env", "deployment/NAME", "-c=web", "A-"])).most(2),
        put_back("deployment", "a variable is renamed", set(&web("env/0/name"), "Z")).most(3),
        put_back("deployment", "an empty variable is renamed", set(&web("env/1/name"), "Z")).most(3),
        put_back("deployment", "a variable comes from elsewhere", Patch("json", json!([
            {"op": "remove", "path": web("env/0/value")},
            {"op": "add", "path": web("env/0/valueFrom"), "value": {"fieldRef": {"fieldPath": "metadata.uid"}}}]))).most(4),
        stays("deployment", "a variable is added", Kubectl(vec!["set", "env", "deployment/NAME", "-c=log", "NEW=x"]), json!({})).with(
            |o| pod_of(o)["containers"][1]["env"] = json!([{"name": "NEW", "value": "x"}])).most(1),
        put_back("deployment", "its resources are set", Kubectl(vec!["set", "resources", "deployment/NAME", "-c=web", "--requests=cpu=1200m"])),
        stays("deployment", "a resource is added", set(&web("resources/limits/memory"), "1Gi"), json!({})).with(
            |o| pod_of(o)["containers"][0]["resources"]["limits"]["memory"] = "1Gi".into()).most(1),
        stays("deployment", "it is paused", Kubectl(vec!["rollout", "pause", "deployment/NAME"]), json!({"spec": {"paused": true}})).most(1),
        put_back("deployment", "initContainers are reordered", Replace(|o| reversed(o, "initContainers"))).in_order(),
        put_back("deployment", "containers are reordered", Replace(|o| reversed(o, "containers"))).in_order(),
        put_back("deployment", "a container is renamed", set(&web("name"), "other")).most(3),
        put_back("deployment", "a container is renamed by an editor", Editor("s/^        name: log$/        name: logs/")).most(3),
        put_back("deployment", "a container is removed", remove(&format!("{PODS}/containers/1"))).most(2),
        stays("deployment", "a container is added", Patch("strategic", pod_patch(json!({"containers": [{"name": "side", "image": "example.org/side:1"}]}))), json!({})).with(
            |o| pod_of(o)["containers"].as_array_mut().unwrap().push(json!({
                "name": "side", "image": "example.org/side:1", "imagePullPolicy": "IfNotPresent", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}))).most(1),
        put_back("deployment", "a container's port is edited", set(&web("ports/0/containerPort"), 81)).most(3),
        put_back("deployment", "a container's port is renamed", set(&web("ports/0/name"), "web")).most(2),
        put_back("deployment", "a container's port is removed", remove(&web("ports/2"))).most(2),
        put_back("deployment", "a container's ports are replaced", set(&web("ports"), json!([{"containerPort": 9}]))).most(3),
        put_back("deployment", "arguments are added", set(&web("args/-"), "-v")),
        put_back("deployment", "a mount is moved", set(&web("volumeMounts/0/mountPath"), "/other")).most(3),
        put_back("deployment", "a volume is another", Patch("json", json!([
            {"op": "remove", "path": format!("{PODS}/volumes/0/emptyDir")},
            {"op": "add", "path": format!("{PODS}/volumes/0/hostPath"), "value": {"path": "/tmp"}}]))).most(4),
        put_back("deployment", "a toleration is added", set(&format!("{PODS}/tolerations/-"), json!({"key": "c", "operator": "Exists"}))),
        put_back("deployment", "pods are spread otherwise", set(&format!("{PODS}/topologySpreadConstraints/0/topologyKey"), "rack")).most(3),
        put_back("deployment", "an alias is of another address", set(&format!("{PODS}/hostAliases/0/ip"), "10.0.0.2")).most(3),
        put_back("deployment", "pods are kept off more nodes", merge(pod_patch(json!({"nodeSelector": {"more": "x"}})))),
        put_back("deployment", "it is rolled out otherwise", merge(json!({"spec": {"strategy": {"type": "Recreate", "rollingUpdate": null}}}))),
        put_back("deployment", "its surge is edited", merge(json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": "50%"}}}}))),
        put_back("deployment", "its image is applied by the client", ClientApply(|o| pod_of(o)["containers"][0]["image"] = "example.org/web:3".into())),
        put_back("deployment", "its image is applied by force", ServerApply(&["--force-conflicts"],
            pod_patch(json!({"containers": [{"name": "web", "image": "example.org/web:4"}]})))),
        stays("deployment", "its image is applied without force", Refused(pod_patch(json!({"containers": [{"name": "web", "image": "x"}]}))), json!({})),
        put_back("deployment", "managedFields are emptied and its image edited", merge(json!({"metadata": {"managedFields": [{}]}, "spec": {"replicas": 0}}))).most(2),
        put_back("deployment", "it is deleted", Kubectl(vec!["delete", "deployment", "NAME", "--cascade=foreground"])),
        put_back("statefulset", "its update strategy is edited", merge(json!({"spec": {"updateStrategy": {"type": "RollingUpdate"}}}))).also(
            json!({"spec": {"updateStrategy": {"type": "OnDelete"}}})),
        put_back("statefulset", "initContainers are reordered", Replace(|o| reversed(o, "initContainers"))).in_order(),
        stays("daemonset", "more may be unavailable", merge(json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}})),
            json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}})).most(1),
        put_back("job", "it is resumed", merge(json!({"spec": {"suspend": false}}))),
        put_back("job", "it works in parallel", Editor("s/parallelism: 1/parallelism: 2/")),
        stays("job", "it gets a deadline", merge(json!({"spec": {"activeDeadlineSeconds": 900}})), json!({"spec": {"activeDeadlineSeconds": 900}})).most(1),
        put_back("job", "it is deleted", Kubectl(vec!["delete", "job", "NAME"])),
        put_back("cronjob", "its schedule is edited", Editor("s/0 3 1 1 /0 4 1 1 /")),
        put_back("cronjob", "it is resumed", Patch("strategic", json!({"spec": {"suspend": false}}))),
        put_back("cronjob", "its image is set", Kubectl(vec!["set", "image", "cronjob/NAME", "work=example.org/work:2"])),
        put_back("cronjob", "its container is renamed", set("/spec/jobTemplate/spec/template/spec/containers/0/name", "other")).most(3),
        stays("cronjob", "jobs replace each other", merge(json!({"spec": {"concurrencyPolicy": "Replace"}})), json!({"spec": {"concurrencyPolicy": "Replace"}})).most(1),
        put_back("pod", "its image is set", Kubectl(vec!["set", "image", "pod/NAME", "web=example.org/web:2"])),
        stays("pod", "it gets a deadline", merge(json!({"spec": {"activeDeadlineSeconds": 900}})), json!({"spec": {"activeDeadlineSeconds": 900}})).most(1),
        put_back("pod", "it is deleted", Kubectl(vec!["delete", "pod", "NAME", "--wait=false"])).most(2),
    ];
    for child in ["deployment", "statefulset", "daemonset"] {
        let target: &'static str = match child {
            "deployment" => "deployment/NAME",
            "statefulset" => "statefulset/NAME",
            _ => "daemonset/NAME",
        };
        cases.push(put_back(child, "its image is set", Kubectl(vec!["set", "image", target, "web=example.org/web:9", "first=example.org/first:9"])));
        cases.push(stays(child, "it is restarted", Kubectl(vec!["rollout", "restart", target]), restarted()).most(1));
        if child != "daemonset" {
            cases.push(put_back(child, "it is scaled", Kubectl(vec!["scale", target, "--replicas=2"])));
        }
    }
    cases
}

#[rustfmt::skip]
fn of_a_custom_kind() -> Vec<Case> {
    vec![
        put_back("gauge", "a part is coloured", set("/spec/parts/0/colour", "blue")),
        stays("gauge", "a default is overridden", set("/spec/parts/1/colour", "blue"), json!({})).with(|o| o["spec"]["parts"][1]["colour"] = "blue".into()).most(1),
        put_back("gauge", "a part is renamed", set("/spec/parts/0/name", "middle")).most(3),
        put_back("gauge", "a part is removed", remove("/spec/parts/1")).most(2),
        stays("gauge", "a part is added", set("/spec/parts/-", json!({"name": "top"})), json!({})).with(
            |o| o["spec"]["parts"].as_array_mut().unwrap().push(json!({"name": "top", "colour": "grey"}))).most(1),
        put_back("gauge", "parts are reordered", Replace(|o| o["spec"]["parts"].as_array_mut().unwrap().reverse())).in_order(),
        put_back("gauge", "a dial's limit is edited", set("/spec/parts/0/dials/0/limit", "7%")),
        put_back("gauge", "a dial's unit is edited", set("/spec/parts/0/dials/0/unit", "mbar")).most(3),
        put_back("gauge", "a dial's defaulted unit is edited", set("/spec/parts/0/dials/2/unit", "kelvin")).most(3),
        put_back("gauge", "all dials are replaced", set("/spec/parts/0/dials", json!([{"kind": "sound"}]))).most(3),
        put_back("gauge", "all dials are removed", remove("/spec/parts/0/dials")).most(2),
        stays("gauge", "a tag is added", set("/spec/tags/-", "c"), json!({"spec": {"tags": ["a", "b", "c"]}})).most(1),
        put_back("gauge", "a tag is removed", remove("/spec/tags/0")),
        put_back("gauge", "a step is edited", set("/spec/steps/0/times", 2)),
        put_back("gauge", "a step is added", set("/spec/steps/-", json!({}))),
        put_back("gauge", "its place is amended", merge(json!({"spec": {"place": {"floor": "1"}}}))),
        put_back("gauge", "something free is edited", set("/spec/free/deep/list/1", "z")),
        stays("gauge", "something free is added", merge(json!({"spec": {"free": {"empty": {"x": 1}}}})), json!({"spec": {"free": {"empty": {"x": 1}}}})).most(1),
        put_back("gauge", "a null is edited", merge(json!({"spec": {"note": "x"}}))),
        stays("gauge", "an empty map is filled", merge(json!({"spec": {"bare": {"a": "x"}}})), json!({"spec": {"bare": {"a": "x"}}})).most(1),
        stays("gauge", "an empty list is filled", merge(json!({"spec": {"none": [{"name": "x"}]}})), json!({"spec": {"none": [{"name": "x"}]}})).most(1),
        put_back("gauge", "its spec is emptied", Replace(|o| o["spec"] = json!({}))).most(2),
        put_back("gauge", "a part is applied by force", ServerApply(&["--force-conflicts"], json!({"spec": {"parts": [{"name": "left", "colour": "pink"}]}}))),
    ]
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = CHILDREN.iter().flat_map(|(child, _)| of_any_kind(child)).collect();
    cases.extend(of_light_kinds());
    cases.extend(of_services());
    cases.extend(of_workloads());
    cases.extend(of_a_custom_kind());
    if let Ok(only) = std::env::var("OPERETTA_TEST_ONLY") {
        cases.retain(|case| case.name().contains(&only));
    }
    cases
}

/// A case with its child's object: the nth case of a kind has that of the nth instance.
struct Trial {
    case: Case,
    kind: Kind,
    name: String,
}

fn trials() -> Vec<Trial> {
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    cases()
        .into_iter()
        .map(|case| {
            let number = used.entry(case.child).and_modify(|n| *n += 1).or_insert(0);
            let name = format!("{}s-{number}", if case.child == "clusterrole" { "edits-" } else { "" });
            let kind = CHILDREN.iter().find(|(child, _)| *child == case.child).unwrap().1;
            Trial { case, kind, name }
        })
        .collect()
}

/// The instances, each with the children that have a case left for it.
fn shelves(trials: &[Trial]) -> Vec<Value> {
    let mut wanted: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for trial in trials {
        wanted.entry(trial.name.trim_start_matches("edits-")).or_default().push(trial.case.child);
    }
    wanted.into_iter().map(|(name, children)| shelf(name, json!({"children": children}))).collect()
}

fn shelf(name: &str, spec: Value) -> Value {
    json!({"apiVersion": SHELF.api_version(), "kind": "Shelf", "metadata": {"name": name}, "spec": spec})
}

/// All objects of the kinds in question, by kind and name.
type Snapshot = BTreeMap<(&'static str, String), Value>;

async fn snapshot(scene: &Scene) -> Snapshot {
    let mut all = Snapshot::new();
    for (_, kind) in CHILDREN {
        let objects = if kind.plural == CLUSTER_ROLE.plural {
            let mut list = read(&scene.client(), kind.path(None, "").trim_end_matches('/')).await.unwrap();
            serde_json::from_value(list["items"].take()).unwrap()
        } else {
            scene.list(kind).await
        };
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            all.insert((kind.plural, name), object);
        }
    }
    all
}

/// The object without what changes by itself.
fn essence(object: &Value, in_order: bool, same: bool) -> Value {
    let mut object: Value =
        serde_json::from_str(&object.to_string().replace(uid_of(object), "<uid>")).unwrap();
    object.as_object_mut().unwrap().remove("status");
    let meta = object["metadata"].as_object_mut().unwrap();
    for field in ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"] {
        meta.remove(field);
    }
    if let Some(annotations) = meta.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| {
            !key.starts_with("deployment.kubernetes.io/")
                && !key.starts_with("deprecated.daemonset")
                && !key.starts_with("kubectl.kubernetes.io/last")
        });
    }
    if let Some(annotations) = object["spec"]["template"]["metadata"]["annotations"].as_object_mut()
        && let Some(time) = annotations.get_mut("kubectl.kubernetes.io/restartedAt")
    {
        *time = "then".into();
    }
    // What the server has given a Service is kept while it lives; the ports of nodes while the ports do.
    if let Some(ports) = object["spec"]["ports"].as_array_mut() {
        for port in ports {
            port.as_object_mut().unwrap().remove("nodePort");
        }
    }
    if !same && let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    if !in_order {
        sort_lists(&mut object);
    }
    prune_nulls(&mut object);
    object
}

/// Lists whose items are maps, in one order.
fn sort_lists(value: &mut Value) {
    match value {
        Value::Array(items) => {
            items.iter_mut().for_each(sort_lists);
            if items.iter().all(Value::is_object) {
                items.sort_by_key(ToString::to_string);
            }
        }
        Value::Object(map) => map.values_mut().for_each(sort_lists),
        _ => {}
    }
}

/// Reading a place that is not there has left a null.
fn prune_nulls(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(prune_nulls);
        }
        _ => {}
    }
}

fn merge_into(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        merge_into(&mut target[key], value);
    }
}

/// Where two values differ, for messages.
fn difference(expected: &Value, found: &Value, path: &str) -> String {
    if let (Value::Object(a), Value::Object(b)) = (expected, found) {
        let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        let differ = keys.into_iter().filter(|key| a.get(*key) != b.get(*key)).map(|key| {
            let (a, b) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
            difference(a, b, &format!("{path}.{key}"))
        });
        return differ.collect::<Vec<_>>().join(", ");
    }
    format!("{path} is {found}, not {expected}")
}

impl Trial {
    fn key(&self) -> (&'static str, String) {
        (self.kind.plural, self.name.clone())
    }

    /// What is wrong with the object now.
    fn judge(&self, before: &Snapshot, now: &Snapshot) -> Option<String> {
        let before = &before[&self.key()];
        let Some(found) = now.get(&self.key()) else { return Some("it is not there".to_owned()) };
        if !found["metadata"]["deletionTimestamp"].is_null() {
            return Some("it is being deleted".to_owned());
        }
        let mut expected = before.clone();
        merge_into(&mut expected, &self.case.stays);
        (self.case.change)(&mut expected);
        let same = uid_of(before) == uid_of(found);
        let expected = essence(&expected, self.case.in_order, same);
        let found = essence(found, self.case.in_order, same);
        (expected != found).then(|| difference(&expected, &found, ""))
    }

    async fn inflict(&self, scene: &Scene) -> Result<(), String> {
        let name = self.name.as_str();
        let group = self.kind.api_version().split_once('/').map(|(group, _)| format!(".{group}"));
        let resource = format!("{}{}", self.kind.plural, group.unwrap_or_default());
        let applied = |body: &Value| {
            let mut body = body.clone();
            body["apiVersion"] = self.kind.api_version().into();
            body["kind"] = self.kind_name().into();
            body["metadata"]["name"] = name.into();
            body.to_string()
        };
        match &self.case.how {
            Kubectl(args) => {
                let args: Vec<String> = args.iter().map(|arg| arg.replace("NAME", name)).collect();
                scene.kubectl_input(&args.iter().map(String::as_str).collect::<Vec<_>>(), "").await?;
            }
            Patch(how, patch) => {
                let (how, patch) = (format!("--type={how}"), patch.to_string());
                let told = scene.kubectl_input(&["patch", &resource, name, &how, "-p", &patch], "").await?;
                if told.contains("no change") {
                    return Err(told);
                }
            }
            Editor(script) => edit(scene, &resource, name, script).await?,
            Replace(change) => self.write(scene, &["replace"], *change).await?,
            ClientApply(change) => self.write(scene, &["apply"], *change).await?,
            ServerReplace(change) => {
                let args = ["apply", "--server-side", "--field-manager=operetta/edits", "--force-conflicts"];
                self.write(scene, &args, *change).await?;
            }
            ServerApply(more, body) => {
                let mut args = vec!["apply", "--server-side", "-f", "-"];
                args.extend(*more);
                scene.kubectl_input(&args, &applied(body)).await?;
            }
            Refused(body) => {
                let args = ["apply", "--server-side", "-f", "-"];
                let Err(error) = scene.kubectl_input(&args, &applied(body)).await else {
                    return Err("it is not refused".to_owned());
                };
                if !error.contains("conflict with \"operetta/edits\"") {
                    return Err(error);
                }
            }
            As(manager, subresource, patch) => {
                let path = self.path(scene);
                let request = Request::patch(format!("{path}{subresource}?fieldManager={manager}"))
                    .header("content-type", "application/merge-patch+json")
                    .body(patch.to_string().into_bytes())
                    .unwrap();
                scene.client().request::<Value>(request).await.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn path(&self, scene: &Scene) -> String {
        let namespace = (self.case.child != "clusterrole").then(|| scene.namespace());
        self.kind.path(namespace, &self.name)
    }

    /// The kind's name, as the template says it.
    fn kind_name(&self) -> String {
        let template = file(&format!("{}/templates/{}.yaml", fixture("edits"), self.case.child));
        let line = template.lines().find_map(|line| line.strip_prefix("kind: "));
        line.unwrap().to_owned()
    }

    /// `kubectl replace` or `kubectl apply` of the object with a change; anew when somebody was faster.
    async fn write(&self, scene: &Scene, verb: &[&str], change: fn(&mut Value)) -> Result<(), String> {
        let mut args = verb.to_vec();
        args.extend(["-f", "-"]);
        let mut attempts = 0;
        loop {
            let mut object = read(&scene.client(), &self.path(scene)).await.ok_or("it is not there")?;
            object.as_object_mut().unwrap().remove("status");
            let meta = object["metadata"].as_object_mut().unwrap();
            meta.remove("managedFields");
            if verb.len() > 1 {
                meta.remove("resourceVersion");
                meta.remove("creationTimestamp");
            }
            change(&mut object);
            match scene.kubectl_input(&args, &object.to_string()).await {
                Ok(_) => return Ok(()),
                Err(error) if error.contains("Conflict") && attempts < 9 => attempts += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// `kubectl edit`.
async fn edit(scene: &Scene, resource: &str, name: &str, script: &str) -> Result<(), String> {
    let plane = plane().await;
    let output = tokio::process::Command::new(plane.kubectl())
        .arg("--kubeconfig")
        .arg(plane.kubeconfig_path())
        .args(["-n", scene.namespace(), "edit", resource, name])
        .env("KUBECACHEDIR", plane.folder().join("kubectl-cache"))
        .env("KUBE_EDITOR", format!("sed -i -e '{script}'"))
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && told.contains("edited") {
        return Ok(());
    }
    Err(format!("edit {script}: {told}{}", String::from_utf8_lossy(&output.stderr)))
}

/// The manager; when the test fails, its warnings are shown.
struct Manager(Mutex<Operetta>);

impl Manager {
    async fn start() -> Self {
        let mut manager = run(plane().await, &["edits"]);
        watching(&mut manager, 1).await;
        Self(Mutex::new(manager))
    }

    fn stop(self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).kill9();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = self.0.lock().unwrap_or_else(PoisonError::into_inner).output();
            let lines: Vec<&str> = output
                .lines()
                .filter(|l| l.contains("WARN") || l.contains("ERROR") || l.contains("panic"))
                .collect();
            eprintln!("the manager:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}

/// The manager's requests about objects since a mark, by plural and name.
fn about_objects(requests: &[AuditEvent]) -> BTreeMap<(String, String), Vec<&AuditEvent>> {
    let mut by_object: BTreeMap<_, Vec<_>> = BTreeMap::new();
    // A dry run is about a shape, which no instance tries twice.
    let counts = |r: &&AuditEvent| r.verb != "watch" && r.subresource.is_empty() && !r.uri.contains("dryRun");
    for request in requests.iter().filter(counts) {
        by_object.entry((request.resource.clone(), request.name.clone())).or_default().push(request);
    }
    by_object
}

/// Waits until the manager has written nothing for so long.
async fn silence(quiet: Duration) {
    let audit = plane().await.audit();
    let (started, mut mark, mut since) = (Instant::now(), audit.mark().unwrap(), Instant::now());
    while since.elapsed() < quiet {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let writes: Vec<_> = managers_requests(&audit, mark).into_iter().filter(AuditEvent::writes).collect();
        assert!(started.elapsed() < LONG, "it does not stop writing:\n{}", list(&writes));
        if !writes.is_empty() {
            (mark, since) = (audit.mark().unwrap(), Instant::now());
        }
    }
}

async fn prepare() -> Scene {
    let gauge = format!("{}/needs/gauge.yaml", fixture("edits"));
    kubectl(&["apply", "-f", &gauge]).await.ok();
    kubectl(&["wait", "--for=condition=Established", "crd/gauges.fixtures.operetta.dev"]).await.ok();
    Scene::unmanaged().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_edit_is_answered_as_it_should_be_and_none_starts_a_war() {
    let scene = prepare().await;
    let manager = Manager::start().await;
    let trials = trials();
    let items = shelves(&trials);
    let list_of = |items: &[Value]| json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    scene.kubectl_input(&["create", "-f", "-"], &list_of(&items)).await.unwrap();
    let audit = plane().await.audit();
    eventually("all children", LONG, async || {
        let now = snapshot(&scene).await;
        let missing: Vec<_> = trials.iter().filter(|t| !now.contains_key(&t.key())).map(Trial::key).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
    })
    .await;
    silence(Duration::from_secs(2)).await;
    let before = snapshot(&scene).await;
    let mark = audit.mark().unwrap();
    let started = Instant::now();
    let edits = trials.iter().map(async |trial| {
        let result = trial.inflict(&scene).await;
        result.err().map(|error| format!("{} cannot be made: {error}", trial.case.name()))
    });
    let edits = futures::stream::iter(edits).buffer_unordered(6).collect::<Vec<_>>().await;
    let impossible: Vec<String> = edits.into_iter().flatten().collect();
    assert!(impossible.is_empty(), "{}", impossible.join("\n"));
    eprintln!("{} edits in {:.1} s", trials.len(), started.elapsed().as_secs_f32());

    let edited = Instant::now();
    let wrong = async || {
        let now = snapshot(&scene).await;
        let wrong: Vec<String> = trials
            .iter()
            .filter_map(|t| Some(format!("{} ({}): {}", t.case.name(), t.name, t.judge(&before, &now)?)))
            .collect();
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(format!("{} of {}:\n{}", wrong.len(), trials.len(), wrong.join("\n")))
        }
    };
    let result = tokio::time::timeout(LONG, async {
        while wrong().await.is_err() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    })
    .await;
    eprintln!("all answered after {:.1} s: {}", edited.elapsed().as_secs_f32(), result.is_ok());
    let rest = (REAPPLY_EVERY + Duration::from_secs(4)).saturating_sub(edited.elapsed());
    tokio::join!(tokio::time::sleep(rest), what_is_yielded(&scene));
    let mut failures = wrong().await.err().unwrap_or_default();
    failures += &too_many(&trials, mark).await;
    assert!(failures.is_empty(), "{failures}");

    // Whatever others have left on the objects: a restart finds all in order.
    manager.stop();
    let mark = audit.mark().unwrap();
    let manager = Manager::start().await;
    silence(Duration::from_secs(4)).await;
    let mut writes = managers_requests(&audit, mark);
    writes.retain(AuditEvent::writes);
    assert!(writes.is_empty(), "everything was right, and yet it wrote:\n{}", list(&writes));
    wrong().await.unwrap();
    manager.stop();
}

/// A field that is given up: to an autoscaler while it is listed, and never to nobody.
async fn what_is_yielded(scene: &Scene) {
    let name = |n: usize| format!("y-{n}-scaled");
    for n in 0..3 {
        scene.apply(&shelf(&format!("y-{n}"), json!({"children": ["scaled"]})).to_string()).await;
        scene.until("there", DEPLOYMENT, &name(n), |o| o["spec"]["replicas"] == 2).await;
    }
    let scale = async |n: usize, manager: &str, replicas: u32| {
        let path = DEPLOYMENT.path(Some(scene.namespace()), &name(n));
        let request = Request::patch(format!("{path}/scale?fieldManager={manager}"))
            .header("content-type", "application/merge-patch+json")
            .body(json!({"spec": {"replicas": replicas}}).to_string().into_bytes())
            .unwrap();
        scene.client().request::<Value>(request).await.unwrap();
    };
    // By the next greeting the intent has been applied anew.
    let greet = async |n: usize, greeting: &str, replicas: u32, mut spec: Value| {
        spec["greeting"] = greeting.into();
        scene.patch(SHELF, &format!("y-{n}"), "merge", &json!({"spec": spec})).await;
        let what = format!("{replicas} replicas, {greeting}");
        let deployment = scene
            .until(&what, DEPLOYMENT, &name(n), |o| {
                o["spec"]["template"]["metadata"]["labels"]["greeting"] == greeting
            })
            .await;
        assert_eq!(deployment["spec"]["replicas"], replicas, "{what}");
    };
    // An autoscaler has it, and goes on having it, until it is no longer listed.
    scale(0, "horizontal-pod-autoscaler", 5).await;
    greet(0, "one", 5, json!({})).await;
    scale(0, "horizontal-pod-autoscaler", 7).await;
    greet(0, "two", 7, json!({})).await;
    greet(0, "three", 2, json!({"yields": false})).await;
    // It is set no more, and nobody else has it: it stays as it is, also when it is repaired.
    greet(1, "one", 2, json!({"scaled": true})).await;
    let label = json!({"metadata": {"labels": {"operetta.dev/child": "x"}}});
    scene.patch(DEPLOYMENT, &name(1), "merge", &label).await;
    let repaired = |o: &Value| o["metadata"]["labels"]["operetta.dev/child"] == "scaled";
    let deployment = scene.until("repaired", DEPLOYMENT, &name(1), repaired).await;
    assert_eq!(deployment["spec"]["replicas"], 2);
    scale(1, "horizontal-pod-autoscaler", 4).await;
    greet(1, "two", 4, json!({})).await;
    // A person's is as good as an autoscaler's.
    scale(2, "kubectl", 3).await;
    greet(2, "one", 3, json!({})).await;
}

/// The trials that cost more requests than they may.
async fn too_many(trials: &[Trial], mark: Mark) -> String {
    let requests = managers_requests(&plane().await.audit(), mark);
    let by_object = about_objects(&requests);
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    let mut text = String::new();
    for trial in trials {
        let asked = by_object.get(&(trial.kind.plural.to_owned(), trial.name.clone()));
        let asked: Vec<AuditEvent> = asked.into_iter().flatten().map(|r| (*r).clone()).collect();
        // Who moves entries of managedFields, and meets a controller that writes a status, reads and tries again.
        let met = asked.iter().filter(|r| r.code == 409 && r.uri.ends_with("fieldManager=operetta")).count();
        let number = asked.len() - 2 * met;
        *counts.entry(number).or_default() += 1;
        if number > trial.case.most {
            let _ = writeln!(
                text,
                "{} ({}): {} requests, not {}:\n{}",
                trial.case.name(),
                trial.name,
                number,
                trial.case.most,
                list(&asked)
            );
        }
    }
    let all: usize = requests.iter().filter(|r| r.verb != "watch").count();
    eprintln!("requests an edit: {counts:?}; {all} in all");
    text
}

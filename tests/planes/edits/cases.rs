//! The edits, and what stays of each.

use serde_json::{Value, json};

use crate::support::ext::{
    AUTOSCALER, CLUSTER_ROLE, CONFIG_MAP, CRON_JOB, DAEMON_SET, DEPLOYMENT, DISRUPTION_BUDGET, GAUGE,
    INGRESS, JOB, Kind, NETWORK_POLICY, POD, QUOTA, ROLE, ROLE_BINDING, SECRET, SERVICE, SERVICE_ACCOUNT,
    STATEFUL_SET, VOLUME_CLAIM,
};

/// The id of each child of the package, and its kind.
pub(crate) const CHILDREN: [(&str, Kind); 20] = [
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

/// How an edit is made.
pub(crate) enum How {
    /// `kubectl ARGS`, in which NAME stands for the object's name.
    Kubectl(Vec<&'static str>),
    /// `kubectl patch --type=TYPE` with this patch.
    Patch(&'static str, Value),
    /// `kubectl edit` with `sed` as the editor.
    Editor(&'static str),
    /// `kubectl replace` of the live object with this change.
    Replace(fn(&mut Value)),
    /// `kubectl apply` of the live object with this change.
    ClientApply(fn(&mut Value)),
    /// `kubectl apply --server-side` of the live object with this change, with our field manager.
    ServerReplace(fn(&mut Value)),
    /// `kubectl apply --server-side` of this, with kind and name added.
    ServerApply(&'static [&'static str], Value),
    /// Like `ServerApply`, but must be refused.
    Refused(Value),
    /// A merge patch by a field manager (first), of a subresource (second; empty for none).
    As(&'static str, &'static str, Value),
}

use How::{As, ClientApply, Editor, Kubectl, Patch, Refused, Replace, ServerApply, ServerReplace};

pub(crate) struct Case {
    pub(crate) child: &'static str,
    pub(crate) what: String,
    pub(crate) how: How,
    /// What stays of the edit, as a merge patch of the object before it.
    pub(crate) stays: Value,
    /// What else stays, as a change of the object before it.
    pub(crate) change: fn(&mut Value),
    /// How many requests about the object the edit may cause.
    pub(crate) most: usize,
    /// Whether the order of lists with named items is compared as well.
    pub(crate) in_order: bool,
}

impl Case {
    /// Sets what stays of the edit.
    pub(crate) fn also(mut self, patch: Value) -> Self {
        self.stays = patch;
        self
    }

    /// Sets what stays of the edit where a merge patch cannot express it.
    pub(crate) fn with(mut self, change: fn(&mut Value)) -> Self {
        self.change = change;
        self
    }

    pub(crate) fn most(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    pub(crate) fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    pub(crate) fn name(&self) -> String {
        format!("{}: {}", self.child, self.what)
    }
}

/// An edit that is completely undone by one request.
pub(crate) fn put_back(child: &'static str, what: &str, how: How) -> Case {
    Case { child, what: what.to_owned(), how, stays: json!({}), change: |_| (), most: 1, in_order: false }
}

/// An edit of which this stays, without any request.
pub(crate) fn stays(child: &'static str, what: &str, how: How, stays: Value) -> Case {
    Case { child, what: what.to_owned(), how, stays, change: |_| (), most: 0, in_order: false }
}

pub(crate) fn merge(patch: Value) -> How {
    Patch("merge", patch)
}

pub(crate) fn remove(path: &str) -> How {
    Patch("json", json!([{"op": "remove", "path": path}]))
}

pub(crate) fn set(path: &str, value: impl Into<Value>) -> How {
    let value = value.into();
    Patch("json", json!([{"op": "add", "path": path, "value": value}]))
}

pub(crate) fn labels(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

/// Edits that are possible for any kind.
pub(crate) fn of_any_kind(child: &'static str) -> Vec<Case> {
    const OURS: &str = "app.kubernetes.io/managed-by";
    const OWN_NAME: [&str; 2] = ["--field-manager=operetta/edits", "--force-conflicts"];
    let team = || labels(json!({"team": "a"}));
    // A Job without labels gets those of its template.
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
        // An annotation of a Deployment changes its generation.
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
        // The manager tries to create it, reads it, and adopts it.
        put_back(
            child,
            "it is labelled as another instance's",
            As("kubectl-edit", "", labels(json!({"operetta.dev/instance-uid": "x"}))),
        )
        .most(3),
        // The manager tries to create it, reads it, and adopts it.
        put_back(child, "all labels of ours are removed by a replace", Replace(replaced))
            .also(team())
            .most(3),
        put_back(
            child,
            "the hash of the intent is edited",
            As(
                "kubectl-annotate",
                "",
                json!({"metadata": {"annotations": {"operetta.dev/applied-hash": "x"}}}),
            ),
        ),
        // The Deployment's controller restores its own annotation, which changes the generation again.
        put_back(child, "all annotations are removed", remove("/metadata/annotations"))
            .most(if child == "deployment" { 2 } else { 1 }),
        // The server then assumes that all fields existed before any apply; the manager corrects that as
        // well.
        put_back(
            child,
            "managedFields are emptied",
            As("kubectl-edit", "", json!({"metadata": {"managedFields": [{}]}})),
        )
        .most(2),
    ];
    // For a Job or a Pod the fields that the server has set would be owned by us and could not be released.
    if !["job", "pod"].contains(&child) {
        let how = ServerReplace(|o| o["metadata"]["labels"][OURS] = "x".into());
        cases.push(put_back(child, "all of it is applied under our name, a label edited", how));
    }
    // Such an apply removes all other fields.
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
pub(crate) fn of_light_kinds() -> Vec<Case> {
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

pub(crate) fn backend() -> Value {
    json!({"spec": {"defaultBackend": {"service": {"name": "x", "port": {"number": 80}}}}})
}

#[rustfmt::skip]
pub(crate) fn of_services() -> Vec<Case> {
    let port = |name: &str, port: u16| json!({"name": name, "port": port, "protocol": "TCP", "targetPort": port});
    vec![
        put_back("service", "a port is edited", Editor("s/ port: 80$/ port: 81/")).most(3),
        put_back("service", "a port is patched", set("/spec/ports/0/port", 81)).most(3),
        put_back("service", "a port is renamed", set("/spec/ports/0/name", "web")).most(2),
        put_back("service", "a port gets another protocol", set("/spec/ports/0/protocol", "UDP")).most(3),
        put_back("service", "a port leads elsewhere", set("/spec/ports/0/targetPort", 81)),
        put_back("service", "a port is removed", remove("/spec/ports/2")).most(2),
        put_back("service", "all ports are replaced by another", merge(json!({"spec": {"ports": [port("other", 99)]}}))).most(3),
        // The first 86 node ports are not used for automatic allocation.
        stays("service", "a port is added", set("/spec/ports/-", json!({"name": "more", "port": 99, "nodePort": 30042})),
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

pub(crate) const PODS: &str = "/spec/template/spec";

pub(crate) fn pod_patch(spec: Value) -> Value {
    json!({"spec": {"template": {"spec": spec}}})
}

pub(crate) fn pod_of(object: &mut Value) -> &mut Value {
    &mut object["spec"]["template"]["spec"]
}

pub(crate) fn reversed(object: &mut Value, list: &str) {
    pod_of(object)[list].as_array_mut().unwrap().reverse();
}

pub(crate) fn restarted() -> Value {
    json!({"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "then"}}}}})
}

#[rustfmt::skip]
pub(crate) fn of_workloads() -> Vec<Case> {
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
        put_back("deployment", "it is deleted", Kubectl(vec!["delete", "deployment", "NAME", "--cascade=foreground", "--wait=false"])),
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
pub(crate) fn of_a_custom_kind() -> Vec<Case> {
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

pub(crate) fn cases() -> Vec<Case> {
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

//! Readiness of real objects: what the API server, the controllers and the fake nodes make of each built-in kind,
//! every state on the way recorded by a watch. Where our rule for a kind looks at no more than metadata, the rule for
//! the whole object must never say otherwise.

mod tally;

use std::sync::{Arc, Mutex, PoisonError};

use crate::support::ext::{CONFIG_MAP, DEPLOYMENT, GATE, LONG, Scene, condition};
use crate::support::{eventually, kubectl, kubectl_stdin};
use futures::StreamExt;
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event};
use operetta::readiness::{Readiness, needs_status, of, of_custom};
use serde_json::{Value, json};

/// An object whose states are recorded: `Ready`, `Terminating`, or the reason why it is not; `!` before the reason
/// of a failure.
struct Record {
    what: String,
    states: Arc<Mutex<Vec<String>>>,
    watch: tokio::task::JoinHandle<()>,
}

impl Drop for Record {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

fn state(object: &Value, custom: Option<bool>) -> String {
    let readiness = custom.map_or_else(|| of(object), |has_status| of_custom(object, has_status));
    let (api, kind) = (object["apiVersion"].as_str().unwrap_or_default(), &object["kind"]);
    let group = api.split_once('/').map_or("", |(group, _)| group);
    if custom.is_none() && !needs_status(group, kind.as_str().unwrap_or_default()) {
        let metadata = json!({"apiVersion": api, "kind": kind, "metadata": object["metadata"]});
        if of(&metadata) != readiness {
            return format!("not told by metadata: {readiness:?}");
        }
    }
    match readiness {
        Readiness::Ready => "Ready".to_owned(),
        Readiness::Terminating => "Terminating".to_owned(),
        Readiness::NotReady { reason, .. } => reason,
        Readiness::Failed { reason, .. } => format!("!{reason}"),
    }
}

impl Record {
    /// Watches an object that does not exist yet. `custom` tells of a custom kind whether it has a status
    /// subresource.
    fn of(
        scene: &Scene,
        (api, kind, plural): (&str, &str, &str),
        namespaced: bool,
        name: &str,
        custom: Option<bool>,
    ) -> Self {
        let (group, version) = api.split_once('/').unwrap_or(("", api));
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: api.into(),
            kind: kind.into(),
            plural: plural.into(),
        };
        let objects: Api<DynamicObject> = if namespaced {
            Api::namespaced_with(scene.client(), scene.namespace(), &resource)
        } else {
            Api::all_with(scene.client(), &resource)
        };
        let states: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&states);
        let (api, kind) = (api.to_owned(), kind.to_owned());
        let what = format!("{kind} {name}");
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let watch = tokio::spawn(async move {
            let mut events = kube::runtime::watcher(objects, config).boxed();
            while let Some(event) = events.next().await {
                let state = match event {
                    Ok(Event::Apply(object) | Event::InitApply(object)) => {
                        let mut object = serde_json::to_value(object).expect("JSON");
                        object["apiVersion"] = api.as_str().into();
                        object["kind"] = kind.as_str().into();
                        state(&object, custom)
                    }
                    Ok(Event::Delete(_)) => "gone".to_owned(),
                    Ok(Event::InitDone) => "watching".to_owned(),
                    _ => continue,
                };
                let mut states = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if states.last() != Some(&state) {
                    states.push(state);
                }
            }
        });
        Self { what, states, watch }
    }

    fn states(&self) -> Vec<String> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it is watched, so that no state is missed.
    async fn watching(&self) {
        self.until("watching").await;
    }

    async fn until(&self, last: &str) {
        eventually(&format!("{}: {last}", self.what), LONG, async || {
            let states = self.states();
            if states.last().is_some_and(|state| state == last) { Ok(()) } else { Err(format!("{states:?}")) }
        })
        .await;
    }

    /// Waits until it has come to a state, by way of these and no others.
    async fn comes_to(&self, last: &str, by: &[&str]) {
        self.until(last).await;
        let states = self.states();
        let way = &states[1..states.len() - 1];
        assert!(way.iter().all(|state| by.contains(&state.as_str())), "{}: {states:?}", self.what);
        eprintln!("{}: {}", self.what, states[1..].join(", "));
    }

    /// Forgets what was, for the next change.
    fn again(&self) {
        *self.states.lock().unwrap_or_else(PoisonError::into_inner) = vec!["watching".to_owned()];
    }
}

/// kubectl takes what begins with a brace for JSON.
fn document(manifest: &str) -> String {
    format!("---\n{manifest}")
}

async fn apply(scene: &Scene, manifest: &str) {
    scene.apply(&document(manifest)).await;
}

const POD_TEMPLATE: &str = "{metadata: {labels: {app: NAME}}, spec: {containers: [{name: a, image: a:1}]}}";

/// A workload of two replicas, or one a node.
fn workload(api: &str, kind: &str, name: &str, spec: &str) -> String {
    let template = POD_TEMPLATE.replace("NAME", name);
    format!(
        "{{apiVersion: {api}, kind: {kind}, metadata: {{name: {name}}}, spec: {{{spec}, selector: {{matchLabels: {{app: {name}}}}}, \
         template: {template}}}}}"
    )
}

#[tokio::test]
async fn workloads_are_ready_when_their_pods_are() {
    let scene = Scene::unmanaged().await;
    // Until the controller has looked, until the pods are there, until they are ready.
    let deployment = [
        "NotObserved",
        "LessReplicas",
        "LessUpdated",
        "LessReady",
        "LessAvailable",
        "Progressing",
        "NotAvailable",
    ];
    let plain = ["NotObserved", "LessReplicas", "LessReady", "LessAvailable"];
    let set = ["NotObserved", "LessReplicas", "LessReady", "LessCurrent", "LessUpdated", "RevisionMismatch"];
    let daemon = ["NotObserved", "LessCurrent", "LessUpdated", "LessReady", "LessAvailable"];
    let controller = format!(
        "{{apiVersion: v1, kind: ReplicationController, metadata: {{name: rc}}, spec: {{replicas: 2, selector: {{app: rc}}, template: {}}}}}",
        POD_TEMPLATE.replace("NAME", "rc")
    );
    let cases = [
        (
            "apps/v1",
            "Deployment",
            "deployments",
            "d",
            workload("apps/v1", "Deployment", "d", "replicas: 2"),
            &deployment[..],
        ),
        (
            "apps/v1",
            "ReplicaSet",
            "replicasets",
            "rs",
            workload("apps/v1", "ReplicaSet", "rs", "replicas: 2"),
            &plain,
        ),
        ("v1", "ReplicationController", "replicationcontrollers", "rc", controller, &plain),
        (
            "apps/v1",
            "StatefulSet",
            "statefulsets",
            "ss",
            workload("apps/v1", "StatefulSet", "ss", "replicas: 2, serviceName: ss"),
            &set,
        ),
        (
            "apps/v1",
            "DaemonSet",
            "daemonsets",
            "ds",
            workload("apps/v1", "DaemonSet", "ds", "minReadySeconds: 0"),
            &daemon,
        ),
    ];
    futures::future::join_all(cases.iter().map(async |(api, kind, plural, name, manifest, by)| {
        let record = Record::of(&scene, (api, kind, plural), true, name, None);
        record.watching().await;
        apply(&scene, manifest).await;
        record.comes_to("Ready", by).await;
        assert_eq!(
            record.states()[1],
            "NotObserved",
            "{kind} is not ready before its controller has seen it"
        );
        // A change of the template, or of the number where pods are not replaced.
        let patch = match *name {
            "rs" | "rc" => json!({"spec": {"replicas": 3}}),
            _ => json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "a:2"}]}}}}),
        };
        record.again();
        scene.kubectl(&["patch", kind, name, "--type=merge", "-p", &patch.to_string()]).await;
        let mut by = by.to_vec();
        by.extend(["LatestGenerationNotObserved", "ExtraPods"]);
        record.comes_to("Ready", &by).await;
        assert!(record.states().len() > 2, "{kind} has waited: {:?}", record.states());
        let held = json!({"metadata": {"finalizers": ["test.operetta.dev/hold"]}}).to_string();
        scene.kubectl(&["patch", kind, name, "--type=merge", "-p", &held]).await;
        scene.kubectl(&["delete", kind, name, "--wait=false"]).await;
        record.until("Terminating").await;
        scene
            .kubectl(&["patch", kind, name, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])
            .await;
        record.until("gone").await;
    }))
    .await;
}

#[tokio::test]
async fn pods_and_jobs() {
    let scene = Scene::unmanaged().await;
    let spec = "containers: [{name: a, image: a}]";
    let pod = ("v1", "Pod", "pods");
    let job = ("batch/v1", "Job", "jobs");
    let template = |more: &str| format!("template: {{spec: {{restartPolicy: Never, {more} {spec}}}}}");
    let nowhere = "nodeSelector: {there: is-none},";
    let cases = [
        (pod, "runs", format!("{{{spec}}}"), "Ready", &["PodPending", "PodNotScheduled"][..]),
        (pod, "nowhere", format!("{{{nowhere} {spec}}}"), "Unschedulable", &["PodPending"]),
        (job, "works", format!("{{{}}}", template("")), "Ready", &["JobNotStarted"]),
        (
            job,
            "late",
            format!("{{activeDeadlineSeconds: 1, {}}}", template(nowhere)),
            "!DeadlineExceeded",
            &["JobNotStarted", "Ready"],
        ),
        (job, "later", format!("{{suspend: true, {}}}", template("")), "Ready", &["JobNotStarted"]),
    ];
    futures::future::join_all(cases.iter().map(async |(kind, name, spec, last, by)| {
        let record = Record::of(&scene, *kind, true, name, None);
        record.watching().await;
        let (api, word, _) = kind;
        apply(
            &scene,
            &format!("{{apiVersion: {api}, kind: {word}, metadata: {{name: {name}}}, spec: {spec}}}"),
        )
        .await;
        record.comes_to(last, by).await;
        assert!(record.states().len() > 2, "{name} has waited: {:?}", record.states());
    }))
    .await;
}

#[tokio::test]
async fn volumes_services_budgets_and_autoscalers() {
    let scene = Scene::unmanaged().await;
    let claim = ("v1", "PersistentVolumeClaim", "persistentvolumeclaims");
    let service = ("v1", "Service", "services");
    let budget = ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets");
    let autoscaler = ("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers");
    let size = "accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}";
    let ports = "ports: [{port: 80}]";
    let target = |name: &str| {
        format!(
            "{{minReplicas: 1, maxReplicas: 2, scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}}}"
        )
    };
    apply(&scene, &workload("apps/v1", "Deployment", "target", "replicas: 1")).await;
    let cases = [
        (claim, "bound", format!("{{{size}}}"), "Ready", &["NotBound"][..]),
        (claim, "unbound", format!("{{storageClassName: nobody, {size}}}"), "NotBound", &[]),
        (service, "inner", format!("{{{ports}}}"), "Ready", &[]),
        (service, "named", "{type: ExternalName, externalName: example.org}".to_owned(), "Ready", &[]),
        (service, "outer", format!("{{type: LoadBalancer, {ports}}}"), "NoAddress", &["NoClusterIP"]),
        (budget, "budget", "{minAvailable: 1, selector: {matchLabels: {app: target}}}".to_owned(), "Ready", &["NotObserved"]),
        (autoscaler, "lost", target("nobody"), "FailedGetScale", &["Ready"]),
        (autoscaler, "scales", target("target"), "Ready", &["FailedGetScale"]),
        (("batch/v1", "CronJob", "cronjobs"), "cron", "{schedule: '0 0 1 1 *', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}}}".to_owned(), "Ready", &[]),
        (("networking.k8s.io/v1", "Ingress", "ingresses"), "web", "{defaultBackend: {service: {name: inner, port: {number: 80}}}}".to_owned(), "Ready", &[]),
        (("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"), "none", "{podSelector: {}}".to_owned(), "Ready", &[]),
    ];
    futures::future::join_all(cases.iter().map(async |(kind, name, spec, last, by)| {
        let record = Record::of(&scene, *kind, true, name, None);
        record.watching().await;
        let (api, word, _) = kind;
        apply(
            &scene,
            &format!("{{apiVersion: {api}, kind: {word}, metadata: {{name: {name}}}, spec: {spec}}}"),
        )
        .await;
        record.comes_to(last, by).await;
        if *name == "outer" {
            let address = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}).to_string();
            scene
                .kubectl(&["patch", "service", name, "--subresource=status", "--type=merge", "-p", &address])
                .await;
            record.until("Ready").await;
        }
    }))
    .await;
}

fn definition(group: &str, plural: &str, kind: &str, subresources: &str) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.{group}}}
spec:
  group: {group}
  names: {{kind: {kind}, plural: {plural}}}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {subresources}
      schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
"
    )
}

#[tokio::test]
async fn definitions_and_custom_kinds() {
    let scene = Scene::unmanaged().await;
    let crd = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions");
    let group = "readiness.operetta.dev";
    for (plural, kind, subresources, last, by) in [
        ("things", "Thing", "{status: {}}", "Ready", &["Installing"][..]),
        ("plains", "Plain", "{}", "Ready", &["Installing"]),
        // Two CRDs of a group cannot have one kind.
        ("others", "Thing", "{}", "!ListKindConflict", &["Installing"]),
    ] {
        let record = Record::of(&scene, crd, false, &format!("{plural}.{group}"), None);
        record.watching().await;
        kubectl_stdin(&["apply", "-f", "-"], &definition(group, plural, kind, subresources)).await.ok();
        record.comes_to(last, by).await;
    }
    kubectl(&["delete", "crd", &format!("others.{group}")]).await.ok();

    let api = format!("{group}/v1");
    let record = Record::of(&scene, (&api, "Plain", "plains"), true, "a", Some(false));
    record.watching().await;
    let plain = format!("{{apiVersion: {api}, kind: Plain, metadata: {{name: a}}, spec: {{a: 1}}}}");
    eventually("the kind to be found", LONG, async || {
        scene.kubectl_input(&["apply", "-f", "-"], &document(&plain)).await
    })
    .await;
    record.comes_to("Ready", &[]).await;

    let record = Record::of(&scene, (&api, "Thing", "things"), true, "a", Some(true));
    record.watching().await;
    apply(&scene, &format!("{{apiVersion: {api}, kind: Thing, metadata: {{name: a}}, spec: {{a: 1}}}}"))
        .await;
    record.until("NotObserved").await;
    let status = async |status: Value| {
        let patch = json!({"status": status}).to_string();
        scene.kubectl(&["patch", "thing", "a", "--subresource=status", "--type=merge", "-p", &patch]).await;
    };
    let one =
        |kind: &str, status: &str, reason: &str| json!([{"type": kind, "status": status, "reason": reason}]);
    status(json!({"observedGeneration": 1, "conditions": one("Ready", "False", "Waits")})).await;
    record.until("Waits").await;
    status(json!({"conditions": one("Ready", "True", "Fine")})).await;
    record.until("Ready").await;
    scene.kubectl(&["patch", "thing", "a", "--type=merge", "-p", r#"{"spec":{"a":2}}"#]).await;
    record.until("LatestGenerationNotObserved").await;
    status(json!({"observedGeneration": 2, "conditions": one("Stalled", "True", "Denied")})).await;
    record.until("!Denied").await;
    status(json!({"conditions": one("Reconciling", "True", "Busy")})).await;
    record.until("Busy").await;
    status(json!({"conditions": one("Synced", "False", "Other")})).await;
    record
        .comes_to(
            "Ready",
            &["NotObserved", "Waits", "Ready", "LatestGenerationNotObserved", "!Denied", "Busy"],
        )
        .await;
}

#[tokio::test]
async fn namespaces_and_api_services() {
    let scene = Scene::unmanaged().await;
    let name = format!("{}-more", scene.namespace());
    let record = Record::of(&scene, ("v1", "Namespace", "namespaces"), false, &name, None);
    record.watching().await;
    kubectl(&["create", "namespace", &name]).await.ok();
    record.comes_to("Ready", &[]).await;
    kubectl(&["delete", "namespace", &name, "--wait=false"]).await.ok();
    record.comes_to("gone", &["Ready", "Terminating"]).await;

    let service = ("apiregistration.k8s.io/v1", "APIService", "apiservices");
    let record = Record::of(&scene, service, false, "v1.apps", None);
    eventually("the server's own", LONG, async || match record.states().first() {
        Some(first) if first == "Ready" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    // Nobody serves it. It goes at once: while it is there, discovery is incomplete.
    let record = Record::of(&scene, service, false, "v1.nobody.operetta.dev", None);
    record.watching().await;
    let manifest = format!(
        "{{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {{name: v1.nobody.operetta.dev}}, spec: {{group: \
         nobody.operetta.dev, version: v1, groupPriorityMinimum: 1, versionPriority: 1, service: {{name: nobody, namespace: {}}}}}}}",
        scene.namespace()
    );
    kubectl_stdin(&["apply", "-f", "-"], &document(&manifest)).await.ok();
    record.comes_to("ServiceNotFound", &["NotAvailable"]).await;
    kubectl(&["delete", "apiservice", "v1.nobody.operetta.dev"]).await.ok();
}

/// Kinds that nothing is awaited of: the manifest's body, and what becomes of it.
const AT_ONCE: &[(&str, &str, &str)] = &[
    ("v1", "ConfigMap", "data: {a: b}"),
    ("v1", "Secret", "data: {a: Yg==}"),
    ("v1", "ServiceAccount", ""),
    ("v1", "Endpoints", "subsets: []"),
    ("v1", "LimitRange", "spec: {limits: [{type: Container, max: {cpu: 64}}]}"),
    ("v1", "ResourceQuota", "spec: {hard: {count/gadgets.example.org: 9}}"),
    ("v1", "PodTemplate", "template: {spec: {containers: [{name: a, image: a}]}}"),
    ("v1", "Event", "involvedObject: {namespace: NAMESPACE}"),
    (
        "v1",
        "PersistentVolume",
        "spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Mi}, storageClassName: nowhere, hostPath: {path: /none}}",
    ),
    ("apps/v1", "ControllerRevision", "revision: 1\ndata: {a: b}"),
    (
        "batch/v1",
        "CronJob",
        "spec: {schedule: '0 0 1 1 *', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}}}",
    ),
    ("networking.k8s.io/v1", "Ingress", "spec: {defaultBackend: {service: {name: a, port: {number: 80}}}}"),
    ("networking.k8s.io/v1", "IngressClass", "spec: {controller: example.org/a}"),
    ("networking.k8s.io/v1", "NetworkPolicy", "spec: {podSelector: {}}"),
    ("rbac.authorization.k8s.io/v1", "Role", "rules: []"),
    (
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: a}",
    ),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "rules: []"),
    (
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBinding",
        "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: a}",
    ),
    ("storage.k8s.io/v1", "StorageClass", "provisioner: example.org/a"),
    ("storage.k8s.io/v1", "CSIDriver", "spec: {attachRequired: false}"),
    ("storage.k8s.io/v1", "CSINode", "spec: {drivers: []}"),
    ("storage.k8s.io/v1", "CSIStorageCapacity", "storageClassName: nobody"),
    ("storage.k8s.io/v1", "VolumeAttributesClass", "driverName: example.org/a\nparameters: {a: b}"),
    (
        "storage.k8s.io/v1",
        "VolumeAttachment",
        "spec: {attacher: a.example.org, nodeName: a, source: {persistentVolumeName: a}}",
    ),
    ("scheduling.k8s.io/v1", "PriorityClass", "value: 1"),
    ("node.k8s.io/v1", "RuntimeClass", "handler: a"),
    ("coordination.k8s.io/v1", "Lease", "spec: {holderIdentity: a}"),
    ("discovery.k8s.io/v1", "EndpointSlice", "addressType: IPv4\nendpoints: []"),
    (
        "events.k8s.io/v1",
        "Event",
        "eventTime: '2026-01-01T00:00:00.000000Z'\nreportingController: example.org/a\nreportingInstance: a\naction: a\nreason: a\ntype: Normal\nregarding: {namespace: NAMESPACE}",
    ),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "webhooks: []"),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "webhooks: []"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", POLICY),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
        "spec: {policyName: nobody, validationActions: [Deny]}",
    ),
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy", MUTATION),
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding", "spec: {policyName: nobody}"),
    ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", "spec: {priorityLevelConfiguration: {name: nobody}}"),
    (
        "flowcontrol.apiserver.k8s.io/v1",
        "PriorityLevelConfiguration",
        "spec: {type: Limited, limited: {nominalConcurrencyShares: 1, limitResponse: {type: Reject}}}",
    ),
    ("resource.k8s.io/v1", "DeviceClass", "spec: {}"),
    ("resource.k8s.io/v1", "ResourceClaim", "spec: {devices: {}}"),
    ("resource.k8s.io/v1", "ResourceClaimTemplate", "spec: {spec: {devices: {}}}"),
    ("networking.k8s.io/v1", "ServiceCIDR", "spec: {cidrs: [10.250.0.0/24]}"),
    ("networking.k8s.io/v1", "IPAddress", "spec: {parentRef: {resource: services, namespace: a, name: a}}"),
];

const POLICY: &str = "spec: {matchConstraints: {resourceRules: [{apiGroups: [example.org], apiVersions: [v1], operations: [CREATE], resources: \
                      [nothings]}]}, validations: [{expression: 'true'}]}";
const MUTATION: &str = "spec: {matchConstraints: {resourceRules: [{apiGroups: [example.org], apiVersions: [v1], operations: [CREATE], resources: \
                        [nothings]}]}, reinvocationPolicy: Never, mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: \
                        'Object{}'}}]}";

/// Kinds with a test of their own, or that nobody makes by hand.
const OTHERS: &[&str] = &[
    "APIService",
    "CustomResourceDefinition",
    "DaemonSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "Job",
    "Namespace",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "ReplicaSet",
    "ReplicationController",
    "Service",
    "StatefulSet",
    // Asked for by nodes and people, and answered.
    "CertificateSigningRequest",
    "Node",
    "ResourceSlice",
];

#[tokio::test]
async fn every_kind_that_the_server_has() {
    let scene = Scene::unmanaged().await;
    let discovery = kube::discovery::Discovery::new(scene.client()).run().await.unwrap();
    let mut served = Vec::new();
    // Other tests bring custom kinds.
    let is_custom = |group: &str| {
        group.ends_with("operetta.dev")
            || group.ends_with("kudo.example.com")
            || ["etcd.database.coreos.com", "flights.com"].contains(&group)
    };
    for group in discovery.groups().filter(|g| !is_custom(g.name())) {
        for (resource, can) in group.recommended_resources() {
            if ["create", "list", "watch"].iter().all(|verb| can.supports_operation(verb)) {
                served.push((resource, can.scope == kube::discovery::Scope::Namespaced));
            }
        }
    }
    let missing: Vec<_> = served
        .iter()
        .filter(|(r, _)| {
            let told = AT_ONCE.iter().any(|(api, kind, _)| *api == r.api_version && *kind == r.kind);
            !told && !OTHERS.contains(&r.kind.as_str())
        })
        .map(|(r, _)| format!("{} {}", r.api_version, r.kind))
        .collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
    let cases = AT_ONCE.iter().filter_map(|(api, kind, body)| {
        let found = served.iter().find(|(r, _)| r.api_version == *api && r.kind == *kind);
        // A gate of the server may be shut.
        found.map(|(resource, namespaced)| (*api, *kind, *body, resource.plural.as_str(), *namespaced))
    });
    let refused = futures::future::join_all(cases.map(async |(api, kind, body, plural, namespaced)| {
        let name = match kind {
            "IPAddress" => "10.250.0.9".to_owned(),
            "CSIDriver" => "any.example.org".to_owned(),
            // Stored as the other kind of that name.
            "Event" if api == "v1" => "core".to_owned(),
            _ => "any".to_owned(),
        };
        let record = Record::of(&scene, (api, kind, plural), namespaced, &name, None);
        record.watching().await;
        let manifest = format!("apiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}}}\n{body}\n")
            .replace("NAMESPACE", scene.namespace());
        if let Err(error) = scene.kubectl_input(&["create", "-f", "-"], &manifest).await {
            return Some(format!("{kind}: {error}"));
        }
        record.comes_to("Ready", &["Ready", "LatestGenerationNotObserved"]).await;
        // Also when it changes.
        record.again();
        let change = match kind {
            // One whose controller looks at each generation.
            "ValidatingAdmissionPolicy" => json!({"spec": {"failurePolicy": "Ignore"}}),
            _ => json!({"metadata": {"labels": {"a": "b"}}}),
        };
        let (group, version) = api.split_once('/').unwrap_or(("", api));
        let resource = format!("{plural}.{version}.{group}");
        scene.kubectl(&["patch", &resource, &name, "--type=merge", "-p", &change.to_string()]).await;
        record.comes_to("Ready", &["Ready", "LatestGenerationNotObserved"]).await;
        None
    }))
    .await;
    let refused: Vec<String> = refused.into_iter().flatten().collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[tokio::test]
async fn ready_when_says_otherwise() {
    let scene = Scene::new().await;
    let gate = |needs: &str| {
        json!({"apiVersion": GATE.api_version(), "kind": "Gate", "metadata": {"name": "g"}, "spec": {"needs": needs}})
            .to_string()
    };
    let ready = |what: &'static [&'static str]| {
        move |o: &Value| {
            let message = condition(o, "Ready")["message"].to_string();
            what.iter().all(|word| message.contains(word))
        }
    };
    scene.apply(&gate("yes")).await;
    // No node takes its pods, and yet it will do.
    scene.until("there", CONFIG_MAP, "g-after-early", |_| true).await;
    let deployment = scene.get(DEPLOYMENT, "g").await;
    assert_ne!(of(&deployment), Readiness::Ready);
    // There, and yet it will not.
    let waits = ready(&["after-late waits for late", "readyWhen is not met yet"]);
    scene.until("waiting", GATE, "g", waits).await;
    scene.patch(CONFIG_MAP, "g-late", "merge", &json!({"data": {"open": "no"}})).await;
    scene
        .until("waiting", GATE, "g", ready(&["after-late waits for late", "readyWhen is not met yet"]))
        .await;
    assert!(scene.find(CONFIG_MAP, "g-after-late").await.is_none());
    scene.patch(CONFIG_MAP, "g-late", "merge", &json!({"data": {"open": "yes"}})).await;
    scene.until("there", CONFIG_MAP, "g-after-late", |_| true).await;
    // The instance's own: not all its children are ready.
    scene.ready(GATE, "g").await;
    assert_ne!(of(&scene.get(DEPLOYMENT, "g").await), Readiness::Ready);

    // One that fails is one that is not met, and says so.
    scene.patch(CONFIG_MAP, "g-odd", "merge", &json!({"data": {"number": "many"}})).await;
    scene.apply(&gate("more")).await;
    scene
        .until("waiting", GATE, "g", ready(&["after-odd waits for odd", "readyWhen", "not a whole number"]))
        .await;
    assert_eq!(scene.get(CONFIG_MAP, "g-after-odd").await["data"]["needs"], "yes");
    scene.patch(CONFIG_MAP, "g-odd", "merge", &json!({"data": {"number": "2"}})).await;
    scene.until("changed", CONFIG_MAP, "g-after-odd", |o| o["data"]["needs"] == "more").await;
    scene.until("waiting", GATE, "g", ready(&["readyWhen is not met yet"])).await;
    // It alone decides, and the message claims no more.
    scene.patch(CONFIG_MAP, "g-late", "merge", &json!({"data": {"open": "more"}})).await;
    scene.until("Ready", GATE, "g", ready(&["readyWhen is met, 6 children are applied"])).await;
    scene.ready(GATE, "g").await;
}

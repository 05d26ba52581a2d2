//! The package of KUDO's cases, started for one test with a manager of its own.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Kind, LONG, Operetta, Scene, is_ready, put_file, run_as};

/// A package for one test, with a manager of its own.
pub(super) struct Own {
    pub(super) scene: Scene,
    pub(super) folder: TempDir,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) manager: Option<Operetta>,
}

/// The files of the package `kudo`; `PLANS` stands for the test's plans.
pub(super) const OPERATOR: &str = "
apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: kudo-NAME}
spec:
  version: VERSION
  resources:
    - crd: crds/server.yaml
      children:
        - {id: config, template: templates/config.yaml}
        - {id: deployment, template: templates/deployment.yaml}
        - {id: service, template: templates/nested/service.yaml}
        - {id: toggled, template: templates/toggled.yaml, when: spec.enabled}
      status: {trace: record.trace, note: record.note}
      plans:
PLANS
        facts: # declares the facts that the status shows
          steps: [{name: facts, record: {trace: \"record.trace | default('')\", note: \"record.note | default('')\"}}]
";

pub(super) const SERVER: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servers.NAME.kudo.example.com}
spec:
  group: NAME.kudo.example.com
  scope: Namespaced
  names: {kind: Server, plural: servers, singular: server, listKind: ServerList}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            spec:
              type: object
              properties:
                replicas: {type: integer, default: 1}
                image: {type: string, default: \"registry.example.com/work:1\"}
                enabled: {type: boolean, default: true}
                param: {type: string, default: a}
                custom: {type: string, default: a}
                list: {type: array, items: {type: string}, default: [one, two]}
                map: {type: object, additionalProperties: {type: integer}, default: {a: 1}}
                sidecar: {type: boolean, default: true}
                fixed: {type: string, default: born, x-kubernetes-validations: [{rule: self == oldSelf, message: fixed is immutable}]}
                broken: {type: boolean, default: false}
";

const FILES: [(&str, &str); 5] = [
    (
        "templates/config.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-config\"}\ndata:\n  version: \"{{ operator.version }}\"\n  param: \"{{ spec.param }}\"\n  list: \"{{ spec.list | join(',') }}\"\n  map: \"{{ spec.map | tojson }}\"\n  enabled: \"{{ spec.enabled }}\"\n  broken: \"{{ spec.map.missing if spec.broken else '' }}\"\n",
    ),
    (
        "templates/deployment.yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: \"{{ name }}\"}\nspec:\n  replicas: {{ spec.replicas }}\n  selector: {matchLabels: {app: \"{{ name }}\"}}\n  template:\n    metadata:\n      labels: {app: \"{{ name }}\"}\n      annotations: {config-hash: \"{{ children.config.data | tojson | sha256 }}\"}\n    spec:\n      containers:\n        - {name: main, image: \"{{ spec.image }}\"}\n        - {{ {'name': 'sidecar', 'image': 'registry.example.com/sidecar:1'} if spec.sidecar else omit }}\n",
    ),
    (
        "templates/nested/service.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: \"{{ name }}\", labels: {param: \"{{ spec.param }}\"}}\nspec: {selector: {app: \"{{ name }}\"}, ports: [{port: 80}]}\n",
    ),
    ("templates/toggled.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-toggled\"}\n"),
    (
        "templates/job.yaml",
        "apiVersion: batch/v1\nkind: Job\nspec:\n  backoffLimit: 0\n  activeDeadlineSeconds: {{ 2 if run.params.end == 'never' else omit }}\n  template:\n    metadata: {annotations: {script.example.com/end: \"{{ run.params.end }}\"}}\n    spec: {restartPolicy: Never, containers: [{name: work, image: \"registry.example.com/work:1\"}]}\n",
    ),
];

impl Own {
    /// Starts a manager of a package with these plans. `name` is the test's, for names that must be unique.
    pub(super) async fn new(name: &'static str, plans: &str) -> Self {
        Self::unstarted(name).await.at("0.1.0", plans).await
    }

    /// Does the same as [`Self::new`], with an instance that is Ready.
    pub(super) async fn with_instance(name: &'static str, plans: &str) -> Self {
        let own = Self::new(name, plans).await;
        own.create(json!({})).await;
        own.ready().await;
        own
    }

    async fn unstarted(name: &'static str) -> Self {
        Self {
            scene: Scene::unmanaged().await,
            folder: tempfile::tempdir().unwrap(),
            name,
            kind: Kind::of(format!("{name}.kudo.example.com/v1"), "servers".to_owned()),
            manager: None,
        }
    }

    /// Restarts the manager with another version of the package.
    pub(super) async fn at(self, version: &str, plans: &str) -> Self {
        let plans = plans.trim_matches('\n');
        self.with(version, &OPERATOR.replace("PLANS", plans)).await
    }

    /// Restarts the manager with a version of the package that has no plans.
    pub(super) async fn without_plans(self, version: &str) -> Self {
        let (resource, _) = OPERATOR.split_once("      status: ").unwrap();
        self.with(version, resource).await
    }

    async fn with(mut self, version: &str, operator: &str) -> Self {
        self.start(version, operator);
        let manager = self.manager.take().unwrap();
        self.manager = Some(manager.watching(1).await);
        self
    }

    /// Starts a manager whose package is refused because of objects in the API server, and waits until its
    /// output contains `says`.
    pub(super) async fn refused(name: &'static str, plans: &str, says: &str) -> Self {
        let mut own = Self::unstarted(name).await;
        let crd = own.crd();
        own.scene.apply(&crd).await;
        own.start("0.1.0", &OPERATOR.replace("PLANS", plans.trim_matches('\n')));
        own.manager.as_mut().unwrap().wait_for(says, LONG).await;
        own
    }

    pub(super) fn manager(&self) -> &Operetta {
        self.manager.as_ref().unwrap()
    }

    fn crd(&self) -> String {
        SERVER.replace("NAME", self.name)
    }

    fn start(&mut self, version: &str, operator: &str) {
        drop(self.manager.take());
        let put = |path: &str, text: &str| put_file(&self.folder.path().join(path), text);
        put("crds/server.yaml", &self.crd());
        put("operator.yaml", &operator.replace("NAME", self.name).replace("VERSION", version));
        for (path, text) in FILES {
            put(path, text);
        }
        self.manager = Some(run_as(
            &format!("kudo-{}", self.name),
            self.scene.plane(),
            &[self.folder.path().to_str().unwrap()],
        ));
    }

    fn instance(&self) -> (&str, Kind) {
        ("Server", self.kind)
    }

    pub(super) async fn create(&self, spec: Value) {
        let object = json!({"apiVersion": self.kind.api_version(), "kind": "Server", "metadata": {"name": "s"}, "spec": spec});
        self.scene.apply(&object.to_string()).await;
    }

    pub(super) async fn edit(&self, spec: Value) {
        self.scene.patch(self.kind, "s", "merge", &json!({"spec": spec})).await;
    }

    pub(super) async fn ready(&self) -> Value {
        self.scene.ready(self.kind, "s").await
    }

    pub(super) async fn traced(&self, trace: &str) {
        self.scene.until(trace, self.kind, "s", |o| is_ready(o) && o["status"]["trace"] == trace).await;
    }

    pub(super) async fn run(&self, plan: &str, params: Value, ends: &str) -> Value {
        let run = self.scene.request(self.instance(), "s", plan, &params).await;
        self.scene.run_is(&run, ends).await
    }

    pub(super) async fn request(&self, plan: &str) -> String {
        self.scene.request(self.instance(), "s", plan, &Value::Null).await
    }

    pub(super) async fn delete(&self) {
        self.scene.kubectl(&["delete", &self.kind.resource_name(), "s"]).await;
    }
}

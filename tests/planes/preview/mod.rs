//! `operetta preview` compared with what then happens: for generated changes of packages, the predicted
//! writes are those that the audit log shows once a manager has the new package. The command is a process: it connects by a kubeconfig
//! only, and prints to the standard output of its process.

mod generate;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::support::ControlPlane;
use operetta::local::{AuditEvent, Mark};
use serde_json::{Value, json};

use crate::support::ext::{Kind, LONG, condition, is_ready, read, run_as};
use crate::support::plans::PLAN_RUN;
use crate::support::{Operetta, Output, eventually, kubectl_of, namespace_on, operetta, own_embedded_plane};
use generate::{Case, GROUP, Mutation};

/// The number of cases.
const CASES: usize = 60;
/// How long nothing more may be written once everything is as predicted.
const REST: Duration = Duration::from_secs(4);

/// A write of a child: its type (`apply`, `note`, `delete`), resource and name.
type Write = (String, String, String);

struct Scene {
    plane: Arc<ControlPlane>,
    namespace: String,
    root: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let plane = own_embedded_plane().await;
        let namespace = namespace_on(&plane).await.to_string();
        Self { plane, namespace, root: tempfile::tempdir().unwrap() }
    }

    async fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let args = ["-n", &self.namespace, "apply", "--server-side", "-f", "-"];
        kubectl_of(&self.plane, &args, &list.to_string()).await.ok();
    }

    async fn list(&self, kind: Kind) -> Vec<Value> {
        let path = kind.path(Some(&self.namespace), "");
        let found = read(&self.plane.client().unwrap(), path.trim_end_matches('/')).await;
        found.and_then(|list| list["items"].as_array().cloned()).unwrap_or_default()
    }

    fn manager(&self, folders: &[String]) -> Operetta {
        let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
        run_as("previews", &self.plane, &folders)
    }

    async fn preview(&self, args: &[&str]) -> Output {
        let args: Vec<&str> = ["preview"].into_iter().chain(args.iter().copied()).collect();
        operetta(self.plane.kubeconfig_path(), &args).await
    }

    /// What Operetta has written since a mark, without dry runs and refused requests.
    fn written(&self, since: Mark) -> Vec<AuditEvent> {
        let events = self.plane.audit().events_since(since).unwrap();
        let is_ours = |event: &AuditEvent| event.user_agent.starts_with("operetta/");
        events
            .into_iter()
            .filter(|event| is_ours(event) && event.counts() && event.writes() && event.code < 300)
            .collect()
    }

    /// The writes of the children of each case.
    fn writes_of_children(&self, since: Mark) -> BTreeMap<usize, BTreeSet<Write>> {
        let mut found: BTreeMap<usize, BTreeSet<Write>> = BTreeMap::new();
        for event in self.written(since) {
            let is_child = !["operetta.dev", GROUP, "coordination.k8s.io", "events.k8s.io"]
                .contains(&event.group.as_str())
                && !["controllerrevisions", "events", "customresourcedefinitions"]
                    .contains(&event.resource.as_str());
            if event.namespace != self.namespace || !is_child || !event.subresource.is_empty() {
                continue;
            }
            let Some(case) = case_of(&event.name) else { panic!("a write of no case: {event:?}") };
            let how = match event.verb.as_str() {
                "delete" => "delete",
                "patch" if event.uri.contains("fieldManager=operetta%2F") => "apply",
                "patch" => "note",
                other => other,
            };
            let write = (how.to_owned(), event.resource.clone(), event.name.clone());
            found.entry(case).or_default().insert(write);
        }
        found
    }
}

impl Scene {
    /// The differences between the predicted writes and runs and those that happened.
    async fn differences(&self, since: Mark, cases: &[Case], reports: &[Value]) -> Vec<String> {
        let mut seen = self.writes_of_children(since);
        let runs = self.list(PLAN_RUN).await;
        let mut wrong = Vec::new();
        for (case, report) in cases.iter().zip(reports) {
            let wanted = predicted(report);
            let seen = seen.remove(&case.new.number).unwrap_or_default();
            let plans = predicted_plans(report);
            let started: BTreeSet<_> = runs.iter().filter_map(|run| rollout(run, case.new.number)).collect();
            if seen != wanted || plans != started {
                let missing: Vec<_> = wanted.difference(&seen).collect();
                let more: Vec<_> = seen.difference(&wanted).collect();
                wrong.push(format!(
                    "{}: predicted and not seen: {missing:?}; seen and not predicted: {more:?}; plans predicted \
                     {plans:?}, seen {started:?}; {report:#}",
                    about(case)
                ));
            }
        }
        wrong
    }
}

/// The instance and the plan of a run, unless it is a deployment of the old package.
fn rollout(run: &Value, case: usize) -> Option<(String, String)> {
    let name = run["spec"]["of"]["name"].as_str().filter(|name| case_of(name) == Some(case))?;
    let plan = run["spec"]["plan"].as_str().filter(|plan| *plan != "deploy" && !plan.contains('/'))?;
    Some((name.to_owned(), plan.to_owned()))
}

/// The number of an object's case: `x12a-c0` belongs to case 12.
fn case_of(name: &str) -> Option<usize> {
    let digits: String = name.strip_prefix('x')?.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn plural(kind: &str) -> String {
    match kind {
        "ConfigMap" => "configmaps",
        "Secret" => "secrets",
        "Service" => "services",
        "ServiceAccount" => "serviceaccounts",
        "RoleBinding" => "rolebindings",
        "Deployment" => "deployments",
        other => panic!("{other}"),
    }
    .to_owned()
}

/// The writes that a preview predicts.
fn predicted(report: &Value) -> BTreeSet<Write> {
    let mut writes = BTreeSet::new();
    for change in
        report["instances"].as_array().unwrap().iter().flat_map(|i| i["changes"].as_array().unwrap())
    {
        let object = &change["object"];
        let resource = plural(object["kind"].as_str().unwrap());
        let name = object["name"].as_str().unwrap();
        let hows: &[&str] = match change["write"].as_str().unwrap() {
            "Created" | "Adopted" | "Updated" | "Repaired" => &["apply"],
            "Recreated" => &["delete", "apply"],
            "Pruned" => &["delete"],
            "Retained" | "AwaitsApproval" | "Orphaned" | "Unmarked" => &["note"],
            other => panic!("{other}"),
        };
        for how in hows {
            writes.insert(((*how).to_owned(), resource.clone(), name.to_owned()));
        }
    }
    writes
}

/// The plans that a preview predicts, by instance.
fn predicted_plans(report: &Value) -> BTreeSet<(String, String)> {
    let instances = report["instances"].as_array().unwrap().iter();
    let plans = instances.flat_map(|instance| {
        let plans = instance["plans"].as_array().into_iter().flatten();
        plans.map(|plan| {
            let name = instance["name"].as_str().unwrap().to_owned();
            (name, plan["plans"][0].as_str().unwrap().to_owned())
        })
    });
    plans.collect()
}

/// Checks that each field of an updated object with a simple path has the predicted value.
async fn check_fields(scene: &Scene, report: &Value, about: &str) {
    for change in
        report["instances"].as_array().unwrap().iter().flat_map(|i| i["changes"].as_array().unwrap())
    {
        if !["Created", "Updated"].contains(&change["write"].as_str().unwrap()) {
            continue;
        }
        let object = &change["object"];
        let api = object["apiVersion"].as_str().unwrap().to_owned();
        let kind = Kind::of(api, plural(object["kind"].as_str().unwrap()));
        let path = kind.path(Some(&scene.namespace), object["name"].as_str().unwrap());
        let live = read(&scene.plane.client().unwrap(), &path).await;
        let live = live.unwrap_or_else(|| panic!("{path} does not exist; {about}"));
        for field in change["fields"].as_array().unwrap() {
            let path = field["path"].as_str().unwrap();
            if path.contains('[') || field["after"] == "(hidden)" {
                continue;
            }
            let pointer = format!("/{}", path.replace('.', "/"));
            let mut value = live.pointer(&pointer).cloned().unwrap_or_default();
            if let Some(owners) = value.as_array().filter(|_| path == "metadata.ownerReferences") {
                let name = |owner: &Value| format!("{}/{}", owner["kind"], owner["name"]).replace('"', "");
                value = owners.iter().map(name).collect();
            }
            assert_eq!(value, field["after"], "{path} of {object}; {about}");
        }
    }
}

#[tokio::test]
async fn predicted_writes_are_those_that_happen() {
    let scene = Scene::new().await;
    let cases: Vec<Case> = (0..CASES).map(Case::new).collect();
    let old: Vec<String> = cases.iter().map(|case| case.old.write(scene.root.path())).collect();
    let new: Vec<String> = cases.iter().map(|case| case.new.write(scene.root.path())).collect();
    let mut manager = scene.manager(&old).watching(CASES).await;
    let mut instances = Vec::new();
    for case in &cases {
        for (name, spec) in case.old.instances() {
            let kind = case.old.kind();
            instances.push(json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name}, "spec": spec}));
        }
    }
    scene.apply(&instances).await;
    for case in &cases {
        until_ready(&scene, case).await;
    }
    manager.kill9();
    let mut others = Vec::new();
    for case in &cases {
        for (suffix, (name, _)) in
            case.others.iter().flat_map(|s| case.old.instances().map(|i| (s.clone(), i)))
        {
            others.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("{name}-{suffix}")}}));
        }
    }
    scene.apply(&others).await;

    let before = scene.plane.audit().mark().unwrap();
    let (mut reports, mut wrong) = (Vec::new(), Vec::new());
    for (case, folder) in cases.iter().zip(&new) {
        let output = scene.preview(&[folder, "-o", "json"]).await;
        let report: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
        if let Err(what) = expected(case, &report, output.status.code()) {
            wrong.push(format!("{}: {what}: {report:#}\n{}", about(case), output.stderr));
        }
        reports.push(report);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let written = scene.written(before);
    assert!(written.is_empty(), "a preview has written: {written:#?}");

    let before = scene.plane.audit().mark().unwrap();
    let manager = scene.manager(&new);
    eventually("all writes and runs to be as predicted", LONG, async || {
        let wrong = scene.differences(before, &cases, &reports).await;
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n\n")) }
    })
    .await;
    tokio::time::sleep(REST).await;
    let wrong = scene.differences(before, &cases, &reports).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let crds: BTreeSet<String> = scene
        .written(before)
        .into_iter()
        .filter(|event| event.resource == "customresourcedefinitions")
        .map(|event| event.name)
        .collect();
    for (case, report) in cases.iter().zip(&reports) {
        let about = about(case);
        let crd = &report["crds"][0];
        let is_written = crds.contains(crd["name"].as_str().unwrap());
        match crd["write"].as_str().unwrap() {
            "Updated" => assert!(is_written, "{about}: {crd:#}"),
            "Refused" => assert!(!is_written, "{about}: {crd:#}"),
            // The manager removes unused kinds from the record at some later time.
            "Unchanged" => {}
            other => panic!("{about}: {other}"),
        }
        check_fields(&scene, report, &about).await;
    }
    // The manager refuses what the preview has refused, for the same reason.
    for case in &cases {
        let words = match case.mutations[0] {
            Mutation::Scope => "spec.scope changes from Namespaced to Cluster",
            Mutation::Narrow => "spec.size must be at most 2",
            _ => continue,
        };
        let kind = Kind::of(format!("{GROUP}/v1"), case.old.plural());
        eventually(&format!("the instances to say {words:?}"), LONG, async || {
            let all = scene.list(kind).await;
            let says =
                |one: &Value| condition(one, "Ready")["message"].as_str().unwrap_or_default().contains(words);
            if all.iter().all(says) { Ok(()) } else { Err(format!("{all:#?}; {}", manager.output())) }
        })
        .await;
    }
}

async fn until_ready(scene: &Scene, case: &Case) {
    let kind = Kind::of(format!("{GROUP}/v1"), case.old.plural());
    eventually(&format!("the instances of case {} to be ready", case.old.number), LONG, async || {
        let all = scene.list(kind).await;
        if all.len() == 2 && all.iter().all(is_ready) { Ok(()) } else { Err(format!("{all:#?}")) }
    })
    .await;
}

/// Whether no value of a Secret is shown.
fn hides_secrets(report: &Value) -> bool {
    let secrets = changes(report).filter(|change| change["object"]["kind"] == "Secret");
    let mut fields = secrets.flat_map(|change| change["fields"].as_array().unwrap());
    let is_hidden = |value: &Value| value.is_null() || *value == "(hidden)";
    fields.all(|field| {
        !field["path"].as_str().unwrap().starts_with("data")
            || is_hidden(&field["before"]) && is_hidden(&field["after"])
    })
}

fn about(case: &Case) -> String {
    format!("case {}: {:?}", case.new.number, case.mutations)
}

fn changes(report: &Value) -> impl Iterator<Item = &Value> {
    let instances = report["instances"].as_array().into_iter().flatten();
    instances.flat_map(|instance| instance["changes"].as_array().into_iter().flatten())
}

/// Checks that each mutation shows an effect, so that no case is empty by mistake.
fn expected(case: &Case, report: &Value, code: Option<i32>) -> Result<(), String> {
    let is_refused = report["summary"]["isRefused"] == true;
    if code != Some(if is_refused { 3 } else { 0 }) {
        return Err(format!("the exit code is {code:?}"));
    }
    if report["instances"].as_array().map(Vec::len) != Some(2) {
        return Err("there are not two instances".to_owned());
    }
    if !hides_secrets(report) {
        return Err("a value of a Secret is shown".to_owned());
    }
    let has = |write: &str| changes(report).any(|change| change["write"] == write);
    let instances = report["instances"].as_array().into_iter().flatten();
    let refused: Vec<&Value> =
        instances.flat_map(|instance| instance["refused"].as_array().into_iter().flatten()).collect();
    let is_refused_for = |reason: &str| refused.iter().any(|refused| refused["reason"] == reason);
    let crd = &report["crds"][0];
    // A refused dry run blocks the whole instance.
    let is_held = case.mutations.contains(&Mutation::Frozen);
    for mutation in &case.mutations {
        let is_shown = match mutation {
            Mutation::Nothing => changes(report).next().is_none() && refused.is_empty(),
            Mutation::Frozen => is_refused_for("ImmutableField"),
            _ if is_held => true,
            Mutation::Value
            | Mutation::RenameId
            | Mutation::RenameWithFormer
            | Mutation::Policy
            | Mutation::Generate => has("Updated"),
            Mutation::Add | Mutation::When => has("Created"),
            Mutation::Collide => is_refused_for("AlreadyExists"),
            Mutation::Recreated => has("Recreated"),
            Mutation::Default => has("Updated") && crd["write"] == "Updated",
            Mutation::Narrow => {
                let violation = crd["rejected"][0]["violations"][0].as_str().unwrap_or_default();
                crd["write"] == "Refused" && violation.starts_with("spec.size")
            }
            Mutation::Scope => is_refusal(crd, "spec.scope changes"),
            Mutation::Version => crd["write"] == "Updated" && crd["migratesFrom"] == json!(["v1"]),
            // Nothing is pruned while a foreign object is in the way of another child.
            _ if case.mutations.contains(&Mutation::Collide) => true,
            Mutation::Remove | Mutation::RenameObject => has("Pruned"),
            Mutation::RemoveRetained => has("Retained"),
            Mutation::RemoveAsked => has("AwaitsApproval"),
            Mutation::Members => has("Pruned") || has("Created"),
        };
        if !is_shown {
            return Err(format!("{mutation:?} does not show"));
        }
    }
    let plans = report["instances"].as_array().into_iter().flatten();
    let mut plans = plans.flat_map(|instance| instance["plans"].as_array().into_iter().flatten());
    if let Some(plan) = plans.find(|plan| plan["revision"] != report["package"]["revision"]) {
        return Err(format!("a plan would run with the revision {}", plan["revision"]));
    }
    let is_rollout = case.new.has_plans() && crd["write"] != "Refused";
    if predicted_plans(report).is_empty() == is_rollout {
        return Err("the plans are not those expected".to_owned());
    }
    Ok(())
}

/// Whether a CRD is refused for this reason, with the number of instances.
fn is_refusal(crd: &Value, words: &str) -> bool {
    let refused = crd["refused"].as_str().unwrap_or_default();
    crd["write"] == "Refused" && refused.contains(words) && refused.contains("2 instances are concerned: ")
}

//! Decisions about the CRDs of a package: comparison and steps. No control plane.

mod handover;
mod remembered;

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::child_scope::UnusedChildScope;
use super::compare::{Comparison, compare};
use super::model::has_status;
use super::*;
use crate::api::{CallError, Class};
use crate::children::names;
use crate::package::Package;
use std::time::Duration;

fn package(adopt: bool) -> Package {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("crds/crd.yaml", &serde_json::to_string(&plain_crd()).unwrap());
    write(
        "templates/c.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\ndata: {a: b}\n",
    );
    write(
        "operator.yaml",
        &format!(
            "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: p}}\nspec:\n  version: 0.1.0\n  \
             resources:\n    - crd: crds/crd.yaml\n      adopt: {adopt}\n      children: [{{id: c, template: templates/c.yaml}}]\n"
        ),
    );
    crate::package::load(folder.path()).unwrap().0
}

fn plain_crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "ws.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced", "names": {"kind": "W", "plural": "ws"},
            "versions": [{"name": "v1", "served": true, "storage": true, "deprecated": false,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"size": {"type": "number", "default": 1.0, "nullable": false}}}}}}}],
        },
    })
}

const OURS: ManagerIdentity<'_> =
    ManagerIdentity { webhook: WebhookState::Absent, lease: "n/operetta", namespace: "n" };
const SPEC: [&str; 4] = ["f:group", "f:names", "f:scope", "f:versions"];

fn entry(manager: &str, operation: &str, fields: &[&str]) -> Value {
    let spec: Map<String, Value> = fields.iter().map(|f| ((*f).to_owned(), json!({}))).collect();
    json!({"manager": manager, "operation": operation, "fieldsV1": {"f:spec": spec}})
}

/// A live CRD with this content and these entries of managedFields.
fn live(text: &Value, labelled: bool, entries: &[Value]) -> Value {
    let mut live = text.clone();
    live["metadata"]["uid"] = "u".into();
    live["metadata"]["resourceVersion"] = "7".into();
    live["metadata"]["managedFields"] = entries.into();
    if labelled {
        live["metadata"]["labels"][names::OPERATOR] = "p".into();
        live["metadata"]["annotations"][names::CHILD_KINDS] = "v1/ConfigMap".into();
        live["metadata"]["annotations"][names::MANAGER] = OURS.lease.into();
        live["metadata"]["annotations"][names::CHILD_NAMESPACES] = "".into();
        register(&mut live);
    }
    live
}

/// Adds the label of the package to managedFields, as the registrar applies it.
fn register(live: &mut Value) {
    let label = json!({"f:labels": {format!("f:{}", names::OPERATOR): {}}});
    let entries = live["metadata"]["managedFields"].as_array_mut().unwrap();
    let is_ours = |entry: &&mut Value| entry["manager"] == MANAGER && entry["operation"] == "Apply";
    match entries.iter_mut().find(is_ours) {
        Some(ours) => ours["fieldsV1"]["f:metadata"] = label,
        None => {
            entries
                .push(json!({"manager": MANAGER, "operation": "Apply", "fieldsV1": {"f:metadata": label}}));
        }
    }
}

fn compared(package: &Package, live: Option<&Value>) -> Comparison {
    taken(package, live, None)
}

fn taken(package: &Package, live: Option<&Value>, from: Option<&str>) -> Comparison {
    compare(live, (package, &package.resources[0]), from, &OURS, &UnusedChildScope::NOTHING)
}

fn patch(package: &Package, live: Option<&Value>) -> CrdPatch {
    match compared(package, live) {
        Comparison::Differs(patch) => *patch,
        other => panic!("{other:?}"),
    }
}

fn refused(package: &Package, live: &Value) -> &'static str {
    match compared(package, Some(live)) {
        Comparison::Refused(problem) => problem.code,
        other => panic!("{other:?}"),
    }
}

/// The body of an apply as the server shows it afterwards.
fn applied(body: &Value) -> Value {
    let mut live = body.clone();
    live["metadata"]["managedFields"] = json!([entry("operetta", "Apply", &SPEC)]);
    live["spec"]["names"]["listKind"] = "WList".into();
    live["spec"]["conversion"] = json!({"strategy": "None"});
    live["spec"]["versions"][0].as_object_mut().unwrap().remove("deprecated");
    register(&mut live);
    live
}

#[test]
fn absent_crd_is_applied_completely_and_then_matches() {
    let package = package(false);
    let body = patch(&package, None).body("ws.example.org", None);
    assert_eq!(body["metadata"]["resourceVersion"], "1");
    assert_eq!(body["spec"].as_object().unwrap().len(), 4);
    assert!(has_status(&body, "v1"));
    let live = applied(&body);
    assert!(matches!(compared(&package, Some(&live)), Comparison::Same));
    // A user has removed the label and put it back: that user owns it now, and it is applied once more.
    let mut relabelled = live.clone();
    relabelled["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"].take();
    assert!(!patch(&package, Some(&relabelled)).with_spec);
    let mut going = live;
    going["metadata"]["deletionTimestamp"] = "x".into();
    assert!(matches!(compared(&package, Some(&going)), Comparison::Terminating));
}

#[test]
fn complete_spec_applied_by_another_client_is_not_written() {
    for adopt in [false, true] {
        let package = package(adopt);
        let mut printed = package.resources[0].augmented_crd();
        printed["metadata"]["labels"][names::OPERATOR] = "p".into();
        let live = live(&printed, true, &[entry("kubectl", "Apply", &SPEC)]);
        let patch = patch(&package, Some(&live));
        assert!(!patch.with_spec, "adopt: {adopt}");
        let body = patch.body("ws.example.org", Some(&live));
        assert_eq!(body.get("spec"), None, "adopt: {adopt}");
        assert_eq!(
            (&body["metadata"]["uid"], &body["metadata"]["resourceVersion"]),
            (&json!("u"), &json!("7"))
        );
    }
}

#[test]
fn an_adopted_crd_keeps_the_spec_of_the_other_manager_as_its_base() {
    let mut theirs = plain_crd();
    theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["more"] =
        json!({"type": "string"});
    let git = [entry("kubectl-client-side-apply", "Update", &SPEC)];
    let unlabelled = live(&theirs, false, &git);
    assert_eq!(refused(&package(false), &unlabelled), "crd::foreign");

    let package = package(true);
    let first = patch(&package, Some(&unlabelled));
    assert!(first.with_spec);
    let body = first.body("ws.example.org", Some(&unlabelled));
    assert!(has_status(&body, "v1"));
    assert_eq!(body["spec"].as_object().unwrap().keys().collect::<Vec<_>>(), ["versions"]);
    let schema = &body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(schema["spec"]["properties"]["more"], json!({"type": "string"}));
    assert_eq!(body["metadata"]["labels"].as_object().unwrap().len(), 1, "Helm's managed-by stays");
    assert_eq!(body["metadata"]["annotations"][names::CRD_BASE], "kubectl-client-side-apply");

    // After our apply the base is still theirs, and an apply never leaves out a field that only we own.
    let mut ours = live(
        &theirs,
        true,
        &[entry("kubectl-client-side-apply", "Update", &SPEC[..3]), entry("operetta", "Apply", &SPEC[3..])],
    );
    ours["metadata"]["annotations"][names::CRD_BASE] = "kubectl-client-side-apply".into();
    ours["spec"]["versions"] = body["spec"]["versions"].clone();
    assert!(matches!(compared(&package, Some(&ours)), Comparison::Same));
    ours["metadata"]["labels"] = json!({});
    let unlabelled = compared(&package, Some(&ours));
    let Comparison::Differs(patch) = unlabelled else { panic!("{unlabelled:?}") };
    assert!(!patch.with_spec);
    let body = patch.body("ws.example.org", Some(&ours));
    assert_eq!(body["spec"].as_object().unwrap().keys().collect::<Vec<_>>(), ["versions"]);
}

#[test]
fn crds_that_a_package_must_not_manage_are_refused() {
    let package = package(true);
    let entries = [entry("kubectl", "Apply", &SPEC)];
    let changed = |pointer: &str, value: Value| {
        let mut crd = live(&plain_crd(), false, &entries);
        *crd.pointer_mut(pointer).unwrap() = value;
        crd
    };
    assert_eq!(refused(&package, &changed("/spec/names/kind", "X".into())), "crd::mismatch");
    assert_eq!(refused(&package, &changed("/spec/scope", "Cluster".into())), "crd::mismatch");
    assert_eq!(refused(&package, &changed("/spec/versions/0/served", false.into())), "crd::mismatch");
    let mut claimed = live(&plain_crd(), true, &entries);
    claimed["metadata"]["labels"][names::OPERATOR] = "q".into();
    assert_eq!(refused(&package, &claimed), "crd::claimed");
    // A label that no registrar has applied does not count: the CRD belongs to no package.
    let mut forged = live(&plain_crd(), false, &entries);
    forged["metadata"]["labels"][names::OPERATOR] = "q".into();
    assert!(matches!(compared(&package, Some(&forged)), Comparison::Differs(_)));
    let not_adopting = self::package(false);
    assert_eq!(refused(&not_adopting, &forged), "crd::foreign");
    // No package may register a CRD that is a child of an instance.
    let mut child = forged.clone();
    child["metadata"]["labels"][names::INSTANCE_UID] = "u".into();
    let labels = json!({format!("f:{}", names::INSTANCE_UID): {}});
    child["metadata"]["managedFields"] = json!([{"manager": "operetta/q", "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": labels}}}]);
    for package in [&package, &not_adopting] {
        assert_eq!(refused(package, &child), "crd::child");
    }
}

const NOW: Duration = Duration::from_secs(1_000);

fn snapshot<'a>(package: &'a Package, live: Option<&Value>) -> CrdSnapshot<'a> {
    let live = Ok(live.cloned());
    let (resource, dry_run) = (&package.resources[0], DryRun::NotSent);
    CrdSnapshot {
        package,
        resource,
        takes_from: None,
        manager: OURS,
        live,
        dry_run,
        lossy: None,
        names: None,
    }
}

fn accepted(tried: &Value) -> DryRun {
    DryRun::Answered(Ok(Box::new(tried.clone())))
}

fn failed(code: u16) -> CallError {
    let status = json!({"code": code, "message": "words of the server", "reason": ""});
    CallError::from_status(&serde_json::from_value(status).unwrap())
}

/// A CRD as the package wants it, which the API server serves.
fn ready(package: &Package) -> Value {
    let mut live = applied(&patch(package, None).body("ws.example.org", None));
    live["metadata"]["uid"] = "u".into();
    live["metadata"]["generation"] = 1.into();
    live["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    live
}

/// Takes the spec out of our entry of managedFields.
fn disown_spec(live: &mut Value) {
    live["metadata"]["managedFields"][0]["fieldsV1"].as_object_mut().unwrap().remove("f:spec");
}

/// Carries out the decisions about a CRD whose schema does not narrow; every dry run is accepted.
fn reconcile(
    package: &Package,
    live: Option<&Value>,
    history: &CrdHistory,
    now: Duration,
) -> (Option<CrdPatch>, CrdOutcome) {
    let mut snapshot = snapshot(package, live);
    if let CrdDecision::DryRun(body) = decide_crd(&snapshot, history, now) {
        snapshot.dry_run = accepted(&body);
    }
    let seen = live.map(CrdVersion::of);
    match decide_crd(&snapshot, history, now) {
        CrdDecision::Settled(state, changed_by) => {
            (None, CrdOutcome { state, seen, changed_by, spec_written: false })
        }
        CrdDecision::Apply(patch, changed_by) => {
            let written = ready(package);
            let (state, seen) = (served(&written, &package.resources[0]), Some(CrdVersion::of(&written)));
            (Some(*patch), CrdOutcome { state, seen, changed_by, spec_written: live.is_some() })
        }
        other => panic!("{other:?}"),
    }
}

fn crds(package: &Arc<Package>) -> PackageCrds {
    PackageCrds::new(Arc::clone(package))
}

/// Reconciles the only CRD of a package. Returns whether it was written, and what is to be reported.
fn turn(crds: &mut PackageCrds, live: Option<&Value>, now: Duration) -> (bool, Vec<Finding>) {
    let package = Arc::clone(&crds.package);
    let (patch, outcome) = reconcile(&package, live, &crds.crds()[0], now);
    (patch.is_some(), crds.record(vec![outcome], OURS, now))
}

#[test]
fn an_absent_crd_is_created_after_a_dry_run() {
    let package = package(false);
    let mut snapshot = snapshot(&package, None);
    let history = CrdHistory::default();
    let CrdDecision::DryRun(body) = decide_crd(&snapshot, &history, NOW) else { panic!("no dry run") };
    snapshot.dry_run = accepted(&body);
    let CrdDecision::Apply(patch, None) = decide_crd(&snapshot, &history, NOW) else { panic!("no apply") };
    assert_eq!(patch.body("ws.example.org", None), body);
}

#[test]
fn only_permanent_failures_of_requests_are_refusals() {
    let package = package(false);
    let state = |snapshot: &CrdSnapshot<'_>| match decide_crd(snapshot, &CrdHistory::default(), NOW) {
        CrdDecision::Settled(state, None) => state,
        other => panic!("{other:?}"),
    };
    for (code, class, is_refused) in [
        (422, Class::Permanent, true),
        (403, Class::Permanent, true),
        (409, Class::Conflict, false),
        (500, Class::Retry, false),
    ] {
        assert_eq!(failed(code).class, class);
        let tried = CrdSnapshot { dry_run: DryRun::Answered(Err(failed(code))), ..snapshot(&package, None) };
        let read = CrdSnapshot { live: Err(failed(code)), ..snapshot(&package, None) };
        for (snapshot, problem) in [(tried, "crd::refused"), (read, "crd::unreachable")] {
            match state(&snapshot) {
                CrdState::Refused(found) if is_refused => assert_eq!(found.code, problem),
                CrdState::Failed(found, wait) if !is_refused => {
                    assert_eq!(found.code, problem);
                    assert_eq!(wait.is_some(), code == 409 && problem == "crd::refused");
                }
                other => panic!("{code} {other:?}"),
            }
        }
    }
}

#[test]
fn spec_that_the_server_normalizes_is_not_written_again() {
    let package = package(false);
    let mut live = ready(&package);
    live["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-normalized"] = "by the server".into();
    disown_spec(&mut live);
    let mut snapshot = snapshot(&package, Some(&live));
    assert!(matches!(decide_crd(&snapshot, &CrdHistory::default(), NOW), CrdDecision::DryRun(_)));
    snapshot.dry_run = accepted(&live);
    match decide_crd(&snapshot, &CrdHistory::default(), NOW) {
        CrdDecision::Settled(CrdState::Ready(info), None) => assert!(info.has_status),
        other => panic!("{other:?}"),
    }
    // The labels are still written.
    live["metadata"]["labels"] = json!({});
    let snapshot = CrdSnapshot { dry_run: accepted(&live), ..self::snapshot(&package, Some(&live)) };
    match decide_crd(&snapshot, &CrdHistory::default(), NOW) {
        CrdDecision::Apply(patch, None) => assert!(!patch.with_spec),
        other => panic!("{other:?}"),
    }
}

#[test]
fn narrowing_schema_waits_for_approval() {
    let package = package(false);
    let mut live = ready(&package);
    disown_spec(&mut live);
    let fields = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    live.pointer_mut(fields).unwrap()["colour"] = json!({"type": "string"});
    let snapshot = || CrdSnapshot { dry_run: accepted(&ready(&package)), ..snapshot(&package, Some(&live)) };
    let history = CrdHistory::default();
    let asks = snapshot();
    let CrdDecision::CheckInstances(narrowed) = decide_crd(&asks, &history, NOW) else {
        panic!("not checked")
    };
    let of =
        |uid: &str, spec: Value| LossyInstance::find(&narrowed[0], uid, uid, Some(&json!({"spec": spec})));
    assert!(of("plain", json!({"size": 1})).is_none());
    let red = of("red", json!({"colour": "red"})).unwrap();
    let deep = LossyInstance::find(&narrowed[0], "deep", "deep", None).unwrap();
    let refusal = |lossy: Vec<LossyInstance>| {
        let snapshot = CrdSnapshot { lossy: Some(Ok(lossy)), ..snapshot() };
        match decide_crd(&snapshot, &history, NOW) {
            CrdDecision::Settled(CrdState::Refused(problem), None) => Some(problem.message),
            CrdDecision::Apply(..) => None,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refusal(Vec::new()), None);
    // An instance that is found in two versions counts once.
    let told = refusal(vec![red.clone(), red.clone(), deep]).unwrap();
    for words in ["2 instances", "red (spec.colour is not in the schema)", "deep (is too deep"] {
        assert!(told.contains(words), "{told}");
    }
    let unread = CrdSnapshot { lossy: Some(Err(failed(500))), ..snapshot() };
    let settled = decide_crd(&unread, &history, NOW);
    assert!(matches!(settled, CrdDecision::Settled(CrdState::Failed(..), None)), "{settled:?}");
    // The command in the message allows exactly this schema.
    let (_, digest) = told.split_once("allow-schema=").unwrap();
    let mut allowed = live.clone();
    allowed["metadata"]["annotations"][names::SCHEMA_ALLOWED] = digest[..16].into();
    let snapshot =
        CrdSnapshot { dry_run: accepted(&ready(&package)), ..self::snapshot(&package, Some(&allowed)) };
    assert!(matches!(decide_crd(&snapshot, &history, NOW), CrdDecision::Apply(..)));
    // A process that only reads sends no dry run, and still learns that the schema narrows.
    let reads = CrdSnapshot { dry_run: DryRun::Skipped, ..self::snapshot(&package, Some(&live)) };
    assert!(matches!(decide_crd(&reads, &history, NOW), CrdDecision::CheckInstances(_)));
}

/// After a restart the revision that was active before comes first, while its successor has already begun a
/// migration.
#[test]
fn previous_revision_does_not_undo_a_migration_after_restart() {
    let package = package(false);
    let mut live = ready(&package);
    let mut newer = live["spec"]["versions"][0].clone();
    (newer["name"], live["spec"]["versions"][0]["storage"]) = ("v2".into(), false.into());
    live["spec"]["versions"].as_array_mut().unwrap().push(newer);
    live["status"]["storedVersions"] = json!(["v1", "v2"]);
    live["metadata"]["annotations"][names::MIGRATED] = "u/1/n/a".into();
    let outdated = |live: &Value, stands_in: bool| {
        let mut history = CrdHistory::default();
        if stands_in {
            history.stand_in();
        }
        match decide_crd(&snapshot(&package, Some(live)), &history, NOW) {
            CrdDecision::Settled(CrdState::Ready(info), None) => Some(info.outdated),
            _ => None,
        }
    };
    assert_eq!(outdated(&live, true), Some(Vec::new()), "the next manager migrates the rest");
    let all = || Some(vec!["v1".to_owned()]);
    assert_eq!(outdated(&live, false), all());
    // The CRD was changed since, or nothing was migrated.
    let mut changed = live.clone();
    changed["metadata"]["generation"] = 2.into();
    assert_eq!(outdated(&changed, true), all());
    live["metadata"]["annotations"].as_object_mut().unwrap().remove(names::MIGRATED);
    assert_eq!(outdated(&live, true), all());
}

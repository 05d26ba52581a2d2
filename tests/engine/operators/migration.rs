//! The migration of many stored objects before a version of their CRD is removed: in batches, reported by the
//! Operator, and resumed by the next manager.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::start;
use crate::support::faults::{Fault, Life, Rule, Verb, Wire};
use crate::support::operators::{Cluster, GROUP, Package, Part, SIZE, is_active, kind_of, scene};
use crate::support::{CRD, Kind, LONG, OPERATOR, condition, eventually, managers_requests};

const COUNT: usize = 350;
/// How many objects are written in one batch.
const TURN: usize = 100;

/// A package with the kinds `slides`, whose CRD has one version with the given name, and `guides`.
fn write(package: &Package, version: &str, of_crd: &str) {
    package.write(version, &[Part::new("slides", SIZE, version), Part::new("guides", SIZE, version)]);
    let path = std::path::Path::new(package.folder()).join("crds/slides.yaml");
    let text =
        std::fs::read_to_string(&path).unwrap().replace("- name: v1\n", &format!("- name: {of_crd}\n"));
    std::fs::write(path, text).unwrap();
}

fn migrating(operator: &Value) -> &str {
    condition(operator, "StorageMigrating")["message"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn long_migration_is_reported_resumed_and_delays_no_crd() {
    let cluster = Cluster::start().await;
    let plane = &cluster.plane;
    let package = Package::new("slides", "0.1.0", "0.1.0");
    write(&package, "0.1.0", "v1alpha1");
    cluster.put_active(&package).await;
    let scene = scene(&cluster).await;
    let instance = |number: usize| {
        json!({
            "apiVersion": format!("{GROUP}/v1alpha1"), "kind": kind_of("slides"),
            "metadata": {"name": format!("i-{number:03}")}, "spec": {"size": number},
        })
    };
    let items: Vec<Value> = (0..COUNT).map(instance).collect();
    scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
    let old = Kind::of(format!("{GROUP}/v1alpha1"), "slides".into());
    scene.ready(old, "i-349").await;
    cluster.until("slides", "active", is_active).await;
    cluster.manager.lock().unwrap().kill9();
    write(&package, "0.2.0", "v1");
    cluster.put(&package).await;

    // The manager gets no further than to the third batch.
    let mark = plane.audit().mark().unwrap();
    let held = |name: &str, until: &Life| {
        let held = Fault::Held(until.clone());
        Rule::on(&[Verb::Patch], held).plural("slides").subresource("").name(name)
    };
    let wire = Wire::new(1, GROUP, &[]);
    wire.rule(held("i-25*", &Life::new()));
    let process = start(&wire, plane).await.expect("it lives");
    let holds = |operator: &Value| migrating(operator).starts_with("200 of 350 ");
    let told = cluster.until("slides", "two turns are done", holds).await;
    let text = migrating(&told);
    assert_eq!(text, "200 of 350 objects of the CRD slides.ops.example.org are stored as v1");
    let ready = condition(&told, "Ready");
    assert_eq!(ready["status"], "False", "{told:#}");
    assert!(ready["message"].as_str().unwrap().contains("200 of 350 objects"), "{told:#}");
    assert_eq!(told["status"]["version"], "0.1.0", "the former revision is active meanwhile");
    process.life.end();
    drop(process.manager);

    // The next manager continues there. Meanwhile another client changes another CRD of the package, which is restored
    // before the last batch.
    wire.heal();
    let (third, last) = (Life::new(), Life::new());
    let rule = wire.rule(held("i-2*", &third));
    wire.rule(held("i-3*", &last));
    let process = start(&wire, plane).await.expect("it lives");
    eventually(
        "the third turn",
        LONG,
        async || if wire.struck(rule) > 0 { Ok(()) } else { Err("not begun") },
    )
    .await;
    let resumes = |operator: &Value| migrating(operator).starts_with("200 of 350 ");
    cluster.until("slides", "the turns before count", resumes).await;
    let second = plane.audit().mark().unwrap();
    let label = json!({"metadata": {"labels": {"operetta.dev/operator": null}}}).to_string();
    let guides = "guides.ops.example.org";
    cluster.kubectl(&["patch", "crd", guides, "--type=merge", "-p", &label], "").await.ok();
    third.end();
    eventually("the other CRD to be restored", LONG, async || {
        let label =
            cluster.find(CRD, guides).await.unwrap()["metadata"]["labels"]["operetta.dev/operator"].take();
        if label == "slides" { Ok(()) } else { Err(label) }
    })
    .await;
    last.end();
    wire.heal();
    let done = cluster.until("slides", "migrated", is_active).await;
    assert_eq!(done["status"]["version"], "0.2.0");
    assert_eq!(migrating(&done), "", "{done:#}");
    let crd = cluster.find(CRD, "slides.ops.example.org").await.unwrap();
    assert_eq!(crd["status"]["storedVersions"], json!(["v1"]), "{crd:#}");
    assert_eq!(crd["metadata"]["annotations"]["operetta.dev/migrated"], json!(null), "{crd:#}");
    process.manager.stop().await;

    let log = managers_requests(&plane.audit(), mark);
    let is_rewrite = |e: &&operetta::local::AuditEvent| {
        e.resource == "slides" && e.verb == "patch" && e.subresource.is_empty() && !e.uri.contains("v1alpha1")
    };
    let mut written: BTreeMap<&str, usize> = BTreeMap::new();
    for event in log.iter().filter(is_rewrite) {
        *written.entry(&event.name).or_default() += 1;
    }
    assert_eq!(written.len(), COUNT);
    // Only the unfinished batch of the killed manager is repeated.
    let twice: Vec<&&str> = written.iter().filter(|(_, count)| **count > 1).map(|(name, _)| name).collect();
    assert!(twice.len() <= TURN && twice.iter().all(|name| name.starts_with("i-2")), "{twice:?}");
    // The other CRD was restored between two batches.
    let log = managers_requests(&plane.audit(), second);
    let last = log.iter().rposition(|e| is_rewrite(&e)).unwrap();
    let restored = log.iter().position(|e| {
        e.resource == "customresourcedefinitions"
            && e.name == guides
            && e.verb == "patch"
            && !e.uri.contains("dryRun")
    });
    assert!(restored.is_some_and(|restored| restored < last), "{restored:?} {last}");
    assert!(cluster.find(OPERATOR, "slides").await.is_some());
}

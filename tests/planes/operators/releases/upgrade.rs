//! The present manager takes over what earlier releases have left: nothing is written, and everything goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    CONFIG_MAP, CRD, ControlPlane, DEPLOYMENT, JOB, LONG, MIX, POD, SECRET, SERVICE, Scene, TRIAL, WEB_APP,
    barrier, eventually, is_lease, is_ready, list, managers_requests, name_of, own_plane, rights, uid_of,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use operetta::local::{AuditEvent, Mark};
use serde_json::{Value, json};

use super::{
    Address, DATA, DESK, FLEETS, KEEPER, MOTLEY, NAMESPACE, ROOMS, SHOPS, SIZE_NEW, SIZE_OLD, STORES, WHOLE,
    about, now, releases, unpack, written,
};
use crate::operators::{Cluster, MANAGERS, is_active, kind_named};
use crate::support::fleets::is_paused;
use crate::support::plans::{is_over, phase, steps, story_of};

/// The CRDs that a manager applies at each start, because an older one may have run before.
const OWN_CRDS: [&str; 5] = [
    "instancestates.operetta.dev",
    "operatorrevisions.operetta.dev",
    "operators.operetta.dev",
    "packagepolicies.operetta.dev",
    "planruns.operetta.dev",
];

/// How long after a start nothing may be written.
const AFTER_START: Duration = Duration::from_secs(15);

#[tokio::test]
async fn present_manager_continues_what_each_release_has_left() {
    let _address = Address::hold().await;
    let releases = releases();
    assert!(!releases.is_empty(), "there is no fixture");
    for release in releases {
        eprintln!("the fixture {}", release.display());
        let plane = own_plane().await;
        unpack(&plane, &release.join(DATA)).await;
        let scene = Scene::existing(&plane, NAMESPACE);
        read_by_commands(&scene).await;
        // Both writes of the manager and what they cause are to be seen.
        settled(&scene).await;
        let about = about(&release);
        let cluster = starts_without_a_write(&plane, &scene, &permitted_at_first(&about)).await;
        cluster.manager.lock().unwrap().kill9();
        let cluster = starts_without_a_write(&plane, &scene, &[]).await;
        for state in about["states"].as_array().unwrap() {
            let state = state.as_str().unwrap();
            eprintln!("{state}");
            goes_on(&cluster, &scene, state).await;
        }
    }
}

/// The commands of the present version show objects of the earlier one.
async fn read_by_commands(scene: &Scene) {
    let shows = |what: &str, text: &str, lines: &[&[&str]]| {
        for words in lines {
            let is_line = |line: &str| words.iter().all(|word| line.contains(word));
            assert!(text.lines().any(is_line), "{what} does not show {words:?}:\n{text}");
        }
    };
    let get = scene.operetta(&["get", "-o", "wide"]).await.ok();
    shows(
        "get",
        &get,
        &[
            &["WebApp", "shop", "True", "Ready"],
            &["Desk", "waiting"],
            &["Desk", "paused", "Paused"],
            &["Mix", "refused", "Stalled"],
            &["Room", "leaving", "Deleting"],
            &["Shop", "given", STORES],
        ],
    );
    let tree = scene.operetta(&["tree", "motley/many"]).await.ok();
    shows("tree", &tree, &[&["asked", "ConfigMap", "DeletionPending"], &["secret", "Secret"]]);
    for (run, line) in [
        ("desk/waiting", &["gate", "Running"]),
        ("desk/asking", &["ask", "Asking"]),
        ("desk/saving", &["dump", "Running"]),
        ("desk/broken", &["two", "Failed"]),
        ("room/leaving", &["sure", "Asking"]),
    ] {
        shows(run, &scene.operetta(&["plan", "status", run]).await.ok(), &[line]);
    }
    let operators = scene.operetta_anywhere(&["operators", "-o", "wide"]).await.ok();
    shows(
        "operators",
        &operators,
        &[&[FLEETS, "UpgradePaused"], &[STORES, "True"], &[SHOPS, "CRDHandedOver"]],
    );
}

/// Waits until the restored components have no more to write: what they find after a restart is not what they left.
async fn settled(scene: &Scene) {
    // The garbage collector begins when it has seen the objects of all kinds.
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "00000000-0000-0000-0000-000000000000"});
    let orphan = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "orphan", "ownerReferences": [owner]}});
    scene.apply(&orphan.to_string()).await;
    scene.gone(CONFIG_MAP, "orphan").await;
    let mut before = BTreeMap::new();
    eventually("the control plane to settle", LONG, async || {
        let now = objects(scene.plane());
        let changed = format!("{:?}", changes(&before, &now));
        before = now;
        tokio::time::sleep(Duration::from_secs(3)).await;
        if changed == "{}" { Ok(()) } else { Err(changed) }
    })
    .await;
}

/// All objects that do not change by themselves, with the revision of etcd in which each was last written.
fn objects(plane: &ControlPlane) -> BTreeMap<String, u64> {
    const HEARTBEATS: [&str; 5] = ["leases/", "masterleases/", "peerserverleases/", "minions/", "events/"];
    let mut all = written(plane);
    all.retain(|key, _| {
        let path = key.trim_start_matches("/registry/");
        !HEARTBEATS.iter().any(|kind| path.starts_with(kind))
    });
    all
}

/// The objects that were created, written or deleted.
fn changes<'a>(before: &'a BTreeMap<String, u64>, now: &'a BTreeMap<String, u64>) -> BTreeSet<&'a str> {
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    keys.into_iter().filter(|key| before.get(*key) != now.get(*key)).map(String::as_str).collect()
}

/// Starts a manager and checks that it changes no object and sends no write, but for `permitted` objects and what each start
/// sends.
async fn starts_without_a_write(plane: &Arc<ControlPlane>, scene: &Scene, permitted: &[String]) -> Cluster {
    let (before, mark) = (objects(plane), plane.audit().mark().unwrap());
    let cluster = Cluster::with_installed_manager(Arc::clone(plane)).await;
    let address = barrier::Address::of(&cluster.manager.lock().unwrap());
    eventually("a manager that is ready", LONG, async || {
        let (line, text) = address.get("/readyz").await;
        if line.contains("200") { Ok(()) } else { Err(text) }
    })
    .await;
    scene.idle(&address).await;
    // Some writes are delayed: a state that stands still for a second, a migration, what a policy protects.
    tokio::time::sleep(AFTER_START).await;
    scene.idle(&address).await;
    let metrics = address.metrics().await;
    let reconciled = metrics.lines().filter(|line| line.starts_with("operetta_reconcile_total{"));
    let reconciled: f64 = reconciled.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
    assert!(reconciled > 20.0, "it has reconciled {reconciled} times:\n{metrics}");
    let is_permitted = |key: &str| permitted.iter().any(|one| one == key);
    let (after, mut sent) = (objects(plane), writes(plane, mark));
    let mut changed = changes(&before, &after);
    changed.retain(|key| !is_permitted(key));
    if !changed.is_empty() {
        let events = scene.kubectl(&["get", "events", "-A", "--sort-by=.metadata.creationTimestamp"]).await;
        panic!("the manager has changed {changed:?}; it has sent:\n{}\n{}", list(&sent), events);
    }
    sent.retain(|r| !is_permitted(&format!("/registry/{}/{}/{}", r.resource, r.namespace, r.name)));
    assert!(sent.is_empty(), "{}", list(&sent));
    cluster
}

/// What the first start of another version may write: its own CRDs, and a certificate that is near its end.
fn permitted_at_first(about: &Value) -> Vec<String> {
    /// A certificate is replaced 60 days after it was made.
    const RENEWED: SignedDuration = SignedDuration::from_hours(59 * 24);
    let crd = |name: &&str| format!("/registry/apiextensions.k8s.io/{}/{name}", CRD.plural);
    let mut all: Vec<String> = OWN_CRDS.iter().map(crd).collect();
    let recorded: Timestamp = about["recorded"].as_str().unwrap().parse().unwrap();
    if now().duration_since(recorded) > RENEWED {
        all.push(format!("/registry/secrets/{MANAGERS}/operetta-webhook"));
    }
    all
}

/// The manager's writes but for those of each start: of its Lease, and applies of its own CRDs, which change nothing.
fn writes(plane: &ControlPlane, mark: Mark) -> Vec<AuditEvent> {
    let mut all = managers_requests(&plane.audit(), mark);
    let account = rights::user("operetta-");
    all.extend(
        plane.audit().requests_since(mark).unwrap().into_iter().filter(|r| r.acting_as.starts_with(&account)),
    );
    all.retain(|request| {
        let is_own_crd = request.resource == CRD.plural && OWN_CRDS.contains(&request.name.as_str());
        let is_question = matches!(
            &*request.resource,
            "selfsubjectreviews" | "selfsubjectaccessreviews" | "subjectaccessreviews"
        );
        request.writes() && !is_lease(request) && !is_own_crd && !is_question
    });
    all
}

/// Checks that a state of the fixture goes on as it would have without the upgrade.
async fn goes_on(cluster: &Cluster, scene: &Scene, state: &str) {
    match state {
        "webapp shop: settled" => {
            scene.kubectl(&["delete", "service", "shop"]).await;
            scene.until("restored", SERVICE, "shop", |_| true).await;
            scene.ready(WEB_APP, "shop").await;
        }
        "desk waiting: a rollout in a wait" => {
            let before = scene.runs("waiting").await;
            assert_eq!(before.len(), 1, "{before:#?}");
            scene.kubectl(&["create", "configmap", "waiting-gate", "--from-literal=open=yes"]).await;
            let run = scene.run_is(name_of(&before[0]), "Succeeded").await;
            assert_eq!(uid_of(&run), uid_of(&before[0]));
            assert_eq!(scene.get(CONFIG_MAP, "waiting-second").await["data"]["stage"], "one");
            scene.ready(DESK, "waiting").await;
            assert_eq!(scene.runs("waiting").await.len(), 1);
            // What the steps before the upgrade have recorded is known.
            assert_eq!(scene.get(DESK, "waiting").await["status"]["trace"], "deploy:one ");
        }
        "desk asking: a run that waits for approval" => {
            let run = scene.run_of("asking", "sure", |run| !is_over(run)).await;
            scene.operetta(&["plan", "approve", "desk/asking"]).await.ok();
            scene.run_is(name_of(&run), "Succeeded").await;
            scene.until("the next step", DESK, "asking", |o| o["status"]["note"] == "sure").await;
        }
        "desk saving: a run with a Job" => {
            let (run, jobs) =
                (scene.run_of("saving", "backup", |run| !is_over(run)).await, scene.jobs().await);
            let job = steps(&run)["dump"]["objects"][0]["name"].as_str().unwrap().to_owned();
            let pods = scene.list(POD).await;
            let pod = pods.iter().find(|pod| pod["metadata"]["labels"]["job-name"] == *job).unwrap();
            let end = ["script.example.com/end=succeed", "script.example.com/after=0s"];
            scene.kubectl(&["annotate", "pod", "--overwrite", name_of(pod), end[0], end[1]]).await;
            scene.run_is(name_of(&run), "Succeeded").await;
            assert_eq!(scene.jobs().await, jobs, "no other Job was created");
        }
        "desk broken: a run that has failed" => {
            let patch = json!({"data": {"open": "yes"}});
            scene.patch(CONFIG_MAP, "broken-gate", "merge", &patch).await;
            scene.operetta(&["plan", "retry", "desk/broken", "--wait"]).await.ok();
            // The first step is not repeated.
            scene.until("the rest", DESK, "broken", |o| o["status"]["note"] == "one three").await;
        }
        "desk nightly: a schedule" => {
            let before: BTreeSet<String> =
                scene.runs("nightly").await.iter().map(|run| uid_of(run).to_owned()).collect();
            scene.patch(DESK, "nightly", "merge", &json!({"spec": {"suspend": false}})).await;
            let is_next = |run: &Value| phase(run) == "Succeeded" && !before.contains(uid_of(run));
            let run = scene.run_of("nightly", "nightly", is_next).await;
            assert_eq!(run["status"]["cause"], "Schedule", "{}", story_of(&run));
            scene.patch(DESK, "nightly", "merge", &json!({"spec": {"suspend": true}})).await;
        }
        "desk paused: an edit while it is paused" => {
            assert_eq!(scene.get(CONFIG_MAP, "paused-config").await["data"]["stage"], "one");
            scene.kubectl(&["annotate", &DESK.resource_name(), "paused", "operetta.dev/paused-"]).await;
            scene.until("rolled out", CONFIG_MAP, "paused-second", |o| o["data"]["stage"] == "two").await;
            scene.ready(DESK, "paused").await;
            assert_eq!(scene.runs("paused").await.len(), 2);
        }
        "keeper alive: a record" => {
            scene.requested(("Keeper", KEEPER), "alive", "failover", &Value::Null, "Succeeded").await;
            scene.until("the next primary", CONFIG_MAP, "alive-state", |o| o["data"]["primary"] == "0").await;
        }
        "keeper gone: retained children of a deleted instance" => {
            let state = scene.get(CONFIG_MAP, "gone-state").await;
            let instance = json!({
                "apiVersion": KEEPER.api_version(), "kind": "Keeper", "metadata": {"name": "gone"}, "spec": {"size": 2},
            });
            scene.apply_ready(KEEPER, "gone", &instance.to_string()).await;
            let adopted = scene.get(CONFIG_MAP, "gone-state").await;
            assert_eq!((uid_of(&adopted), &adopted["data"]), (uid_of(&state), &state["data"]));
            assert_eq!(scene.get(KEEPER, "gone").await["status"]["primary"], 1);
        }
        "motley many: an approval of a deletion, a generated password, children in other places" => {
            let before = scene.get(SECRET, "many").await;
            scene.get(CONFIG_MAP, "many-asked").await;
            scene.operetta(&["plan", "approve", "motley/many"]).await.ok();
            scene.gone(CONFIG_MAP, "many-asked").await;
            // An edit of the Secret keeps the password, whose proof the present manager accepts.
            scene.patch(MOTLEY, "many", "merge", &json!({"spec": {"token": "another"}})).await;
            let is_new = |o: &Value| o["data"]["token"] != before["data"]["token"];
            let secret = scene.until("the new token", SECRET, "many", is_new).await;
            assert_eq!(secret["data"]["password"], before["data"]["password"]);
        }
        "whole done: a Job that is done and gone, a retained child" => {
            let edit = json!({"spec": {"stage": "two", "keep": true}});
            let kept = scene.get(CONFIG_MAP, "done-kept").await;
            scene.patch(WHOLE, "done", "merge", &edit).await;
            let adopted =
                scene.until("adopted", CONFIG_MAP, "done-kept", |o| o["data"]["stage"] == "two").await;
            assert_eq!(uid_of(&adopted), uid_of(&kept));
            scene.ready(WHOLE, "done").await;
            assert!(scene.find(JOB, "done").await.is_none(), "the Job does not run again");
        }
        "mix refused: a refused change" => {
            // The last accepted target is known.
            scene.kubectl(&["delete", "configmap", "refused-first"]).await;
            scene.until("restored", CONFIG_MAP, "refused-first", |_| true).await;
            assert_eq!(scene.get(DEPLOYMENT, "refused").await["spec"]["replicas"], 1);
            assert_eq!(scene.get(CONFIG_MAP, "refused-first").await["data"]["greeting"], "hello");
            scene.patch(MIX, "refused", "merge", &json!({"spec": {"replicas": 2}})).await;
            let is_accepted =
                |o: &Value| is_ready(o) && o["metadata"]["annotations"]["operetta.dev/accepted"].is_null();
            scene.until("accepted", MIX, "refused", is_accepted).await;
            assert_eq!(scene.get(DEPLOYMENT, "refused").await["spec"]["replicas"], 2);
            assert_eq!(scene.get(CONFIG_MAP, "refused-first").await["data"]["greeting"], "moved");
        }
        "room leaving: a cleanup that waits for approval" => {
            let rooms = kind_named(ROOMS);
            scene.get(CONFIG_MAP, "leaving").await;
            scene.operetta(&["plan", "approve", "room/leaving"]).await.ok();
            scene.gone(rooms, "leaving").await;
            scene.gone(CONFIG_MAP, "leaving").await;
        }
        "size both: a conversion with values that one version lacks" => {
            let spec = json!({"replicas": 3, "note": "kept"});
            assert_eq!(scene.get(SIZE_OLD, "both").await["spec"], spec);
            assert_eq!(scene.get(SIZE_NEW, "new").await["spec"], json!({"size": 2, "mode": "safe"}));
            scene.patch(SIZE_NEW, "both", "merge", &json!({"spec": {"size": 5}})).await;
            scene.until("the child", CONFIG_MAP, "both-size", |o| o["data"]["size"] == "5").await;
            let spec = json!({"replicas": 5, "note": "kept"});
            assert_eq!(scene.get(SIZE_OLD, "both").await["spec"], spec);
        }
        "shop given: a CRD that was handed over" => {
            scene.kubectl(&["delete", "configmap", "given"]).await;
            let is_new = |o: &Value| o["metadata"]["labels"]["operetta.dev/operator"] == STORES;
            scene.until("restored", CONFIG_MAP, "given", is_new).await;
            cluster.operetta(&["uninstall", SHOPS]).await.ok();
            scene.ready(kind_named(SHOPS), "given").await;
        }
        "fleet: a paused upgrade in stages" => {
            let fleets = kind_named(FLEETS);
            cluster.until(FLEETS, "paused", is_paused).await;
            assert_eq!(scene.get(CONFIG_MAP, "i-2").await["data"]["value"], "old");
            scene.patch(fleets, "i-1", "merge", &json!({"spec": {"size": 2}})).await;
            scene.until("upgraded", CONFIG_MAP, "i-2", |o| o["data"]["value"] == "new").await;
            cluster.until(FLEETS, "active", is_active).await;
        }
        "trial secret: a generated certificate" => {
            let secrets: Vec<Value> = scene.list(SECRET).await;
            let secrets: Vec<&Value> = secrets
                .iter()
                .filter(|o| {
                    o["metadata"]["annotations"]["operetta.dev/generated"].is_string()
                        && name_of(o).starts_with("secret")
                })
                .collect();
            assert_eq!(secrets.len(), 2, "{secrets:#?}");
            scene.patch(TRIAL, "secret", "merge", &json!({"spec": {"text": "another"}})).await;
            let holds = |o: &Value| o["status"]["text"] == "another" && is_ready(o);
            scene.until("the edit", TRIAL, "secret", holds).await;
            for secret in secrets {
                let now = scene.get(SECRET, name_of(secret)).await;
                let generated = secret["metadata"]["annotations"]["operetta.dev/generated"].as_str().unwrap();
                for key in generated.split(',') {
                    assert_eq!(now["data"][key], secret["data"][key], "{key} of {}", name_of(secret));
                }
            }
        }
        other => panic!("no check of {other:?}"),
    }
}

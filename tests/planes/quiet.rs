//! A settled cluster causes no requests except the renewal of the Lease, and a restart writes nothing.
//!
//! There is one test with its own control plane, because every request of the manager counts.

use std::time::{Duration, Instant};

use crate::leader::LEASE;
use crate::support::{
    AUTOSCALER, Actor, CONFIG_MAP, ETCD, FENCE, LIGHT, LONG, SITE, Scene, WEB_APP, file, fixture, is_lease,
    list, managers_requests, own_plane, run_flags, signal,
};
use operetta::local::{AuditEvent, AuditLog, Mark};
use rustix::process::Signal;
use serde_json::json;

const PACKAGES: [&str; 5] =
    ["operators/etcd", "operators/webapp", "netpol", "light", "examples/packages/site"];

/// How long nothing may be requested.
const QUIET: Duration = Duration::from_secs(60);

/// How long it may take until then: changes that others make to new children, such as the binding of a
/// volume, are checked at most twice a minute.
const SETTLES: Duration = LONG;

/// How long after a restart nothing may be written.
const AFTER_RESTART: Duration = Duration::from_secs(15);

/// The manager's requests without the Lease and without watches; a watch that begins with a list counts.
fn besides_watches(audit: &AuditLog, mark: Mark) -> Vec<AuditEvent> {
    let mut requests = managers_requests(audit, mark);
    requests.retain(|r| (r.verb != "watch" || r.streams_list()) && !is_lease(r));
    requests
}

/// Waits until the manager has sent no request for this time; calls `each` once a second.
async fn quiet_for(audit: &AuditLog, quiet: Duration, mut each: impl AsyncFnMut()) {
    let started = Instant::now();
    let (mut mark, mut since) = (audit.mark().unwrap(), Instant::now());
    let mut asked = Vec::new();
    while since.elapsed() < quiet {
        tokio::time::sleep(Duration::from_secs(1)).await;
        each().await;
        let now = audit.mark().unwrap();
        let requests = besides_watches(audit, mark);
        if !requests.is_empty() {
            (mark, since) = (now, Instant::now());
            asked.extend(requests);
        }
        assert!(started.elapsed() < SETTLES + quiet, "nothing changes, and yet it asks:\n{}", list(&asked));
    }
}

#[tokio::test]
async fn settled_cluster_sends_no_requests_and_restart_writes_nothing() {
    let plane = own_plane().await;
    let audit = plane.audit();
    // The default pause between two renewals.
    let flags = [&["--leader-elect"][..], &LEASE[..2]].concat();
    let mut manager = run_flags(&plane, &flags, &PACKAGES).watching(PACKAGES.len()).await;
    let scene = Scene::on(&plane).await;
    scene.apply(&file("examples/etcd/example-etcd-cluster.yaml")).await;
    scene
        .apply(&file("examples/etcd/volumes.yaml").replace("antiAffinity: true", "antiAffinity: false"))
        .await;
    scene.apply(&file("examples/webapp/full.yaml")).await;
    scene.apply(&file("examples/webapp/minimal.yaml")).await;
    scene.apply(&file(&format!("{}/instances/fence.yaml", fixture("netpol")))).await;
    scene.apply(&file(&format!("{}/instances/light.yaml", fixture("light")))).await;
    // Objects that a Site reads and does not own: by name, optional, for each name in a list, and by labels.
    scene.kubectl(&["create", "secret", "generic", "site-tls", "--from-literal=tls.crt=x"]).await;
    for (name, label, data) in [
        ("banner", "", "text=Hello"),
        ("docs-east-settings", "", "delay=3s"),
        ("page", "page-of=docs", "a=b"),
    ] {
        scene.kubectl(&["create", "configmap", name, &format!("--from-literal={data}")]).await;
        if !label.is_empty() {
            scene.kubectl(&["label", "configmap", name, label]).await;
        }
    }
    let site = file("examples/packages/site/instances/docs.yaml");
    scene.apply(&site.replace("spec:\n", "spec:\n  tlsSecret: site-tls\n")).await;
    let instances = [
        (SITE, "docs"),
        (ETCD, "example-etcd-cluster"),
        (ETCD, "durable"),
        (WEB_APP, "hello"),
        (WEB_APP, "shop"),
        (FENCE, "fence"),
        (LIGHT, "light"),
    ];
    for (kind, name) in instances {
        scene.ready(kind, name).await;
    }
    let read = |o: &serde_json::Value| o["data"]["delay"] == "3s";
    scene.until("what it reads", CONFIG_MAP, "docs-east", read).await;
    scene.until("what it reads", CONFIG_MAP, "docs", |o| o["data"]["pages"] == "page").await;

    // Meanwhile controllers change statuses, as they do all the time.
    let mut reported = 0;
    let report = async || {
        reported += 1;
        let status = json!({"status": {"currentReplicas": 2, "desiredReplicas": reported}});
        let admin = Actor::admin(&plane);
        admin.patch(AUTOSCALER, Some(scene.namespace()), "shop/status", &status).await.unwrap();
    };
    let (mark, since) = (audit.mark().unwrap(), Instant::now());
    quiet_for(&audit, QUIET, report).await;
    // The leader renews its Lease every two seconds with one request.
    let renewals = managers_requests(&audit, mark).iter().filter(|r| is_lease(r)).count();
    let most = usize::try_from(since.elapsed().as_secs()).unwrap() / 2 + 5;
    assert!((1..=most).contains(&renewals), "{renewals} requests about the Lease");
    let watches = managers_requests(&audit, Mark::START).iter().filter(|r| r.verb == "watch").count();
    assert!(watches > 10, "{watches} watches: are these the manager's requests at all?");

    let mark = audit.mark().unwrap();
    signal(manager.pid(), Signal::TERM);
    let status = manager.wait(LONG).await;
    assert!(status.success(), "{status}\n{}", manager.output());
    let _manager = run_flags(&plane, &flags, &PACKAGES).watching(PACKAGES.len()).await;
    quiet_for(&audit, AFTER_RESTART, async || ()).await;
    let mut writes = managers_requests(&audit, mark);
    assert!(writes.iter().any(|r| r.verb == "list" || r.verb == "watch"), "it has not even looked");
    // A manager with plans applies its own CRDs and their policy at each start, because an older manager may
    // have run before.
    let own = ["planruns.operetta.dev", "operatorrevisions.operetta.dev"];
    let is_own = |r: &AuditEvent| own.contains(&r.name.as_str()) || r.resource == "selfsubjectreviews";
    writes.retain(|r| r.writes() && !is_lease(r) && !is_own(r));
    assert!(writes.is_empty(), "everything was right, and yet it wrote:\n{}", list(&writes));
}

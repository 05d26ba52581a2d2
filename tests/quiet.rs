//! A settled cluster costs no calls, and a restart writes nothing.
//!
//! One test, alone on its control plane: every request of the manager counts.

mod support;

use std::time::{Duration, Instant};

use operetta::local::{AuditEvent, AuditLog, Mark};
use rustix::process::Signal;
use support::ext::{
    ETCD, FENCE, LIGHT, LONG, Scene, WEB_APP, file, fixture, list, managers_requests, run, watching,
};
use support::{plane, signal};

const PACKAGES: [&str; 4] = ["operators/etcd", "operators/webapp", "netpol", "light"];

/// How long nothing may be asked.
const QUIET: Duration = Duration::from_secs(60);

/// How long after a restart nothing may be written.
const AFTER_RESTART: Duration = Duration::from_secs(15);

fn besides_watches(audit: &AuditLog, mark: Mark) -> Vec<AuditEvent> {
    let mut requests = managers_requests(audit, mark);
    requests.retain(|r| r.verb != "watch");
    requests
}

/// Waits until the manager has asked nothing for some seconds; the log's end then.
async fn settled(audit: &AuditLog) -> Mark {
    let started = Instant::now();
    loop {
        let mark = audit.mark().unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
        let requests = besides_watches(audit, mark);
        if requests.is_empty() {
            return mark;
        }
        assert!(started.elapsed() < LONG, "it does not settle:\n{}", list(&requests));
    }
}

#[tokio::test]
async fn what_is_settled_costs_no_calls_and_a_restart_writes_nothing() {
    let plane = plane().await;
    let audit = plane.audit();
    let mut manager = run(plane, &PACKAGES);
    watching(&mut manager, PACKAGES.len()).await;
    let scene = Scene::unmanaged().await;
    scene.apply(&file("examples/etcd/example-etcd-cluster.yaml")).await;
    scene
        .apply(&file("examples/etcd/volumes.yaml").replace("antiAffinity: true", "antiAffinity: false"))
        .await;
    scene.apply(&file("examples/webapp/full.yaml")).await;
    scene.apply(&file("examples/webapp/minimal.yaml")).await;
    scene.apply(&file(&format!("{}/instances/fence.yaml", fixture("netpol")))).await;
    scene.apply(&file(&format!("{}/instances/light.yaml", fixture("light")))).await;
    let instances = [
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

    let mark = settled(&audit).await;
    tokio::time::sleep(QUIET).await;
    let requests = besides_watches(&audit, mark);
    assert!(requests.is_empty(), "nothing has changed, and yet it asked:\n{}", list(&requests));
    let watches = managers_requests(&audit, Mark::START).iter().filter(|r| r.verb == "watch").count();
    assert!(watches > 10, "{watches} watches: are these the manager's requests at all?");

    let mark = audit.mark().unwrap();
    signal(manager.pid(), Signal::TERM);
    let status = manager.wait(LONG).await;
    assert!(status.success(), "{status}\n{}", manager.output());
    let mut manager = run(plane, &PACKAGES);
    watching(&mut manager, PACKAGES.len()).await;
    settled(&audit).await;
    tokio::time::sleep(AFTER_RESTART).await;
    let mut writes = managers_requests(&audit, mark);
    assert!(writes.iter().any(|r| r.verb == "list" || r.verb == "watch"), "it has not even looked");
    writes.retain(AuditEvent::writes);
    assert!(writes.is_empty(), "everything was right, and yet it wrote:\n{}", list(&writes));
}

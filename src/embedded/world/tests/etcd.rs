//! The world of etcd with the templates of the package, as its plans use them.

use std::path::Path;
use std::time::Duration;

use operetta_lang::template::{Scope, Var};
use operetta_package::Package;
use serde_json::json;

use super::*;

/// The kinds of the package, by their place in it.
const KINDS: [&str; 3] = ["EtcdCluster", "EtcdBackup", "EtcdRestore"];

/// A cluster with volumes, and what its package and the kubelet do.
struct Cluster {
    play: Play,
    package: Package,
    /// What steps have recorded.
    record: Value,
}

impl Cluster {
    fn new() -> Self {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../operators/etcd");
        let (package, _) = operetta_package::load(Path::new(folder)).unwrap();
        let mut cluster = Self { play: Play::package("etcd"), package, record: json!({}) };
        for kind in KINDS {
            cluster.play.objects.put(json!({"kind": "CustomResourceDefinition", "metadata": {"name": kind}, "spec": {
                "group": "etcd.database.coreos.com", "names": {"kind": kind}, "versions": [{"name": "v1beta2", "storage": true}]}}));
        }
        cluster.play.objects.put(Self::instance());
        cluster.configure();
        cluster
    }

    fn instance() -> Value {
        json!({"kind": "EtcdCluster", "metadata": {"name": "e", "namespace": "n", "uid": "uid-e"},
            "spec": {"size": 3, "repository": "quay.io/coreos/etcd", "version": "3.6.8", "pod": {"persistentVolumeClaimSpec": {}}},
            "status": {"members": {"ready": ["e-0"]}}})
    }

    /// A template of one of the kinds.
    fn render(&self, kind: usize, template: &str, vars: &[(&str, Value)]) -> Value {
        let instance = Self::instance();
        let mut scope = Scope::new();
        for (name, value) in [
            ("name", json!("e")),
            ("namespace", json!("n")),
            ("spec", instance["spec"].clone()),
            ("instance", instance),
            ("defaults", self.package.defaults.clone()),
            ("record", self.record.clone()),
            (
                "run",
                json!({"id": "r", "startedAt": "2026-11-26T01:02:03Z", "params": {"source": Self::backup()}}),
            ),
        ] {
            scope.set(name, Var::Json(value));
        }
        for (name, value) in vars {
            scope.set(name, Var::Json(value.clone()));
        }
        scope.set("self", Var::Undefined);
        scope.set("let", Var::Lets(self.package.resources[kind].lets.clone()));
        let engine = &self.package.engine;
        engine.render(engine.template(&format!("templates/{template}")).unwrap(), &scope).unwrap()
    }

    /// The `ConfigMap` that says how members start for the first time.
    fn configure(&mut self) {
        let mut config = self.render(0, "bootstrap.yaml", &[]);
        config["metadata"]["namespace"] = "n".into();
        self.play.objects.put(config);
    }

    fn claim(&mut self, name: &str) {
        if self.play.objects.object("v1", "PersistentVolumeClaim", "n", name).is_none() {
            let uid = format!("{name}-{}", self.play.seconds);
            let metadata = json!({"name": name, "namespace": "n", "uid": uid});
            self.play.objects.put(json!({"kind": "PersistentVolumeClaim", "metadata": metadata}));
        }
    }

    /// Starts a pod of an instance.
    fn run(&mut self, mut pod: Value, kind: usize, instance: &str, name: &str) -> Course {
        pod["kind"] = "Pod".into();
        pod["metadata"]["name"] = name.into();
        pod["metadata"]["namespace"] = "n".into();
        pod["metadata"]["uid"] = format!("uid-{name}-{}", self.play.seconds).into();
        pod["metadata"]["labels"]["operetta.dev/kind"] =
            format!("{}.etcd.database.coreos.com", KINDS[kind]).into();
        pod["metadata"]["labels"]["operetta.dev/instance"] = instance.into();
        self.play.start(&pod)
    }

    /// Starts the pod of a member; its claim is made if it is missing.
    fn start(&mut self, i: usize) -> Course {
        let pod = self.render(0, "member.yaml", &[("i", i.into())]);
        let claim = pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"].as_str().unwrap();
        self.claim(claim);
        self.run(pod, 0, "e", &format!("e-{i}"))
    }

    /// Starts a member that serves.
    fn serve(&mut self, i: usize) {
        let course = self.start(i);
        assert_eq!(
            (course.ready_after, course.ends_after),
            (Some(Duration::from_secs(2)), None),
            "{}",
            course.message
        );
    }

    fn drop_pod(&mut self, i: usize) {
        self.play.stop("n", &format!("e-{i}"));
    }

    fn drop_claim(&mut self, i: usize) {
        self.play.objects.remove("PersistentVolumeClaim", "n", &format!("e-{i}"));
    }

    /// etcd's list, as the package reads it.
    fn peers(&mut self, at: usize) -> Vec<Value> {
        let list = self.play.prints(&format!("e-{at}"), "etcdctl member list -w json");
        self.read("peers.yaml", "members", &list)
    }

    /// The members that answer, as the package reads them, and the exit code.
    fn answers(&mut self, at: usize) -> (i32, Vec<Value>) {
        let command = "etcdctl endpoint status --cluster --command-timeout=2s -w json";
        let result = self.play.exec(&format!("e-{at}"), command);
        (result.exit_code, self.read("answers.yaml", "endpoints", &result.stdout))
    }

    fn read(&self, template: &str, reference: &str, text: &str) -> Vec<Value> {
        let json: Value = serde_json::from_str(text).unwrap();
        let refs = json!({reference: {"json": json}});
        self.render(0, template, &[("refs", refs)]).as_array().unwrap().clone()
    }

    /// The members; `?` is a learner, `-` one that has not started.
    fn members(&mut self, at: usize) -> String {
        let show = |peer: &Value| {
            let learner = if peer["learner"] == true { "?" } else { "" };
            let started = if peer["started"] == true { "" } else { "-" };
            format!("{}{learner}{started}", peer["ordinal"])
        };
        self.peers(at).iter().map(show).collect::<Vec<_>>().join(" ")
    }

    fn id(&mut self, at: usize, i: usize) -> String {
        let peers = self.peers(at);
        peers.iter().find(|peer| peer["ordinal"] == i).unwrap()["id"].as_str().unwrap().to_owned()
    }

    fn leader(&mut self, at: usize) -> usize {
        let (_, answers) = self.answers(at);
        let leaders: Vec<_> = answers.iter().filter(|answer| answer["leader"] == true).collect();
        assert_eq!(leaders.len(), 1, "{answers:?}");
        usize::try_from(leaders[0]["ordinal"].as_u64().unwrap()).unwrap()
    }

    /// The error of a command.
    fn refused(&mut self, at: usize, command: &str) -> String {
        let result = self.play.exec(&format!("e-{at}"), command);
        assert_eq!(result.exit_code, 1, "{command}: {}{}", result.stdout, result.stderr);
        result.stderr.trim_end().to_owned()
    }

    fn add_command(i: usize) -> String {
        format!("etcdctl member add e-{i} --peer-urls=http://e-{i}.e.n.svc:2380 --learner -w json")
    }

    /// As the plan `resize` grows.
    fn grow(&mut self, i: usize) {
        let added = self.play.prints("e-0", &Self::add_command(i));
        let added: Value = serde_json::from_str(&added).unwrap();
        let id = format!("{:x}", added["member"]["ID"].as_u64().unwrap());
        assert_eq!(self.id(0, i), id);
        let promote = format!("etcdctl member promote {id}");
        assert!(self.refused(0, &promote).ends_with("in sync with leader"), "it has not started");
        let urls: Vec<_> =
            self.peers(0).iter().map(|peer| peer["url"].as_str().unwrap().to_owned()).collect();
        let mut joined = self.record["joined"].as_array().cloned().unwrap_or_default();
        joined.push(i.into());
        self.record["joining"] = i.into();
        self.record["cluster"] = urls[1..].join(",").into();
        self.record["joined"] = joined.into();
        self.configure();
        assert_eq!(self.start(i).exit_code, 1, "the list lacks a member");
        self.drop_pod(i);
        self.record["cluster"] = urls.join(",").into();
        self.configure();
        self.serve(i);
        assert!(!self.play.ready(&format!("e-{i}")), "a learner answers no linearizable read");
        self.play.prints("e-0", &promote);
        assert!(self.play.ready(&format!("e-{i}")));
    }

    /// As the plan `resize` shrinks.
    fn shrink(&mut self, i: usize) {
        let id = self.id(0, i);
        self.play.prints("e-0", &format!("etcdctl member remove {id}"));
        self.drop_pod(i);
        self.drop_claim(i);
    }

    fn backup() -> Value {
        json!({"volume": {"claimName": "b", "path": "a.db"}})
    }

    /// Runs the pod of a Job.
    fn job(&mut self, kind: usize, template: &str, instance: &str, name: &str) -> Course {
        let mut spec = Self::backup();
        let more = match kind {
            1 => json!({"clusterName": "e", "backupPolicy": {"maxBackups": 0}}),
            _ => json!({"etcdCluster": {"name": "e"}}),
        };
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        if kind > 0 {
            let metadata = json!({"name": instance, "namespace": "n", "uid": instance});
            self.play.objects.put(json!({"kind": KINDS[kind], "metadata": metadata, "spec": spec}));
        }
        let refs = json!({"cluster": Self::instance()});
        let vars = [("spec", spec), ("refs", refs), ("name", instance.into())];
        let job = self.render(kind, template, if kind > 0 { &vars } else { &[] });
        let course = self.run(job["spec"]["template"].clone(), kind, instance, name);
        self.play.stop("n", name);
        course
    }

    fn end(self) {
        assert_eq!(self.play.world.faults(), []);
    }
}

#[test]
fn a_cluster_of_three_grows_to_five_and_shrinks() {
    let mut cluster = Cluster::new();
    cluster.serve(0);
    assert!(!cluster.play.ready("e-0"), "one of three has no quorum");
    assert_eq!(cluster.refused(0, "etcdctl member list -w json"), "Error: context deadline exceeded");
    cluster.serve(1);
    assert!(cluster.play.ready("e-0") && cluster.play.ready("e-1"));
    assert_eq!(cluster.members(0), "0 1 2-");
    assert_eq!(cluster.refused(0, &Cluster::add_command(3)), "Error: etcdserver: unhealthy cluster");
    cluster.serve(2);
    let (code, answers) = cluster.answers(1);
    assert_eq!((code, answers.len(), &answers[0]["version"]), (0, 3, &json!("3.6.8")));

    cluster.grow(3);
    cluster.grow(4);
    assert_eq!(cluster.members(4), "0 1 2 3 4");
    assert!(cluster.refused(0, &Cluster::add_command(4)).ends_with("Peer URLs already exists"));
    cluster.play.prints("e-0", &Cluster::add_command(5));
    assert!(cluster.refused(0, &Cluster::add_command(6)).ends_with("too many learner members in cluster"));
    let learner = cluster.id(0, 5);
    cluster.play.prints("e-0", &format!("etcdctl member remove {learner}"));

    assert_eq!(cluster.leader(0), 0);
    let id = cluster.id(0, 2);
    assert_eq!(cluster.refused(1, &format!("etcdctl move-leader {id}")), "Error: no leader endpoint given");
    cluster.play.prints("e-0", &format!("etcdctl move-leader {id}"));
    assert_eq!(cluster.leader(0), 2);
    cluster.drop_pod(2);
    let (code, answers) = cluster.answers(0);
    assert_eq!((code, answers.len()), (1, 4), "an error, and those that answer");
    let next = cluster.leader(0);
    assert_ne!(next, 2);
    cluster.serve(2);
    assert_eq!(cluster.leader(0), next, "a former leader follows");

    cluster.shrink(4);
    cluster.shrink(3);
    assert_eq!(cluster.members(2), "0 1 2");
    assert!(cluster.refused(0, "etcdctl member remove 123").ends_with("member not found"));
    assert_eq!(
        cluster.play.exec("e-1", "etcdctl defrag --command-timeout=60s").takes,
        Duration::from_secs(1)
    );
    cluster.play.prints("e-1", "etcdctl endpoint health --command-timeout=4s");
    cluster.end();
}

#[test]
fn a_member_without_its_data_stays_out() {
    let mut cluster = Cluster::new();
    (0..3).for_each(|i| cluster.serve(i));
    let id = cluster.id(0, 1);
    // Its volume is kept: it continues.
    cluster.drop_pod(1);
    cluster.serve(1);
    assert_eq!(cluster.id(0, 1), id);
    // Pod and volume are gone: its identity does not start again.
    cluster.drop_pod(1);
    cluster.drop_claim(1);
    let course = cluster.start(1);
    assert_eq!((course.ready_after, course.exit_code), (None, 1));
    assert!(course.message.contains("has already been bootstrapped"), "{}", course.message);
    assert!(cluster.refused(0, &Cluster::add_command(3)).ends_with("unhealthy cluster"));
    cluster.drop_pod(1);
    cluster.drop_claim(1);
    // As the plan `failover`: forget it, and add it anew.
    cluster.play.prints("e-0", &format!("etcdctl member remove {id}"));
    cluster.grow(1);
    assert_ne!(cluster.id(0, 1), id);
    assert_eq!(cluster.members(0), "0 2 1");
    // A removed member that starts with its data ends.
    let id = cluster.id(0, 2);
    cluster.play.prints("e-0", &format!("etcdctl member remove {id}"));
    cluster.drop_pod(2);
    assert!(cluster.start(2).message.contains("permanently removed"));
    cluster.end();
}

#[test]
fn without_a_quorum_nothing_is_decided() {
    let mut cluster = Cluster::new();
    (0..3).for_each(|i| cluster.serve(i));
    let id = cluster.id(0, 2);
    cluster.drop_pod(2);
    let other = cluster.id(0, 1);
    let refused = cluster.refused(0, &format!("etcdctl member remove {other}"));
    assert!(refused.ends_with("not enough started members"), "the quorum of two is two: {refused}");
    cluster.drop_pod(1);
    assert!(!cluster.play.ready("e-0"));
    for command in ["etcdctl member list -w json", &format!("etcdctl member remove {id}"), "etcdctl put a b"]
    {
        assert_eq!(cluster.refused(0, command), "Error: context deadline exceeded");
    }
    cluster.serve(2);
    assert!(cluster.play.ready("e-0"));
    cluster.play.prints("e-0", "etcdctl put a b");
    cluster.end();
}

#[test]
fn a_backup_is_restored() {
    let mut cluster = Cluster::new();
    (0..3).for_each(|i| cluster.serve(i));
    cluster.play.prints("e-0", "etcdctl put order-1 shipped");
    cluster.claim("b");

    let course = cluster.job(2, "verify-job.yaml", "r1", "verify-1");
    assert_eq!((course.exit_code, &*course.message), (1, "Failed to copyto: object not found: /backup/a.db"));
    let course = cluster.job(1, "backup-job.yaml", "b1", "backup-1");
    let took = (course.ends_after, course.exit_code, &*course.message);
    assert_eq!(took, (Some(Duration::from_secs(2)), 0, r#"{"path":"a.db"}"#));
    assert_eq!(cluster.job(2, "verify-job.yaml", "r1", "verify-2").exit_code, 0);
    assert_eq!(cluster.play.prints("e-0", "etcdctl del order-1"), "1\n");
    assert_eq!(cluster.play.prints("e-0", "etcdctl get order-1"), "");

    // As the plan `restore`.
    (0..3).for_each(|i| cluster.drop_pod(i));
    assert_eq!(cluster.job(1, "backup-job.yaml", "b1", "backup-2").exit_code, 1, "no member serves");
    cluster.record = json!({"generation": 1, "joined": [0, 1, 2, 3, 4, 5, 6, 7, 8]});
    cluster.configure();
    cluster.claim("e-0-g1");
    assert_eq!(cluster.job(0, "restore-job.yaml", "e", "restore").exit_code, 0);
    cluster.serve(0);
    assert!(cluster.play.ready("e-0"));
    assert_eq!(cluster.members(0), "0");
    assert_eq!(cluster.play.prints("e-0", "etcdctl get order-1"), "order-1\nshipped\n");
    assert_eq!(cluster.start(1).exit_code, 1, "it is not in the list");
    cluster.drop_pod(1);
    cluster.grow(1);
    assert_eq!(cluster.members(1), "0 1");
    cluster.end();
}

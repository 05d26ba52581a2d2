//! The world of etcd, as the plans of the package play it.

use std::time::Duration;

use serde_json::json;

use super::*;

/// A cluster with volumes, and what its package and the kubelet do.
struct Cluster(Play);

/// The answer of a command: its members as `name id?learner`.
fn names(list: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(list).unwrap();
    let show = |member: &Value| {
        let host = member["peerURLs"][0].as_str().unwrap().split(['/', '.']).nth(2).unwrap().to_owned();
        let is_started = !member["clientURLs"].as_array().unwrap().is_empty();
        let state = if member["isLearner"] == true {
            "?"
        } else if is_started {
            ""
        } else {
            "-"
        };
        format!("{host}{state}")
    };
    list["members"].as_array().unwrap().iter().map(show).collect()
}

impl Cluster {
    fn new(size: usize) -> Self {
        let mut play = Play::package("etcd");
        play.objects.put(json!({"kind": "CustomResourceDefinition", "metadata": {"name": "x"}, "spec": {
            "group": "etcd.database.coreos.com", "names": {"kind": "EtcdCluster"}, "versions": [{"name": "v1beta2", "storage": true}]}}));
        play.objects.put(json!({"kind": "EtcdCluster", "metadata": {"name": "e", "namespace": "n", "uid": "e"}, "spec": {}}));
        let mut cluster = Self(play);
        cluster.bootstrap(size, None);
        cluster
    }

    fn peer(i: usize) -> String {
        format!("e-{i}=http://e-{i}.e.n.svc:2380")
    }

    /// The `ConfigMap`: founders, and the member that joins with its list.
    fn bootstrap(&mut self, founders: usize, joining: Option<&(usize, String)>) {
        let mut data = serde_json::Map::new();
        data.insert("token".to_owned(), "t".into());
        let all: Vec<String> = (0..founders).map(Self::peer).collect();
        for i in 0..9 {
            let (state, list) = match joining {
                Some((joining, list)) if *joining == i => ("existing", list.clone()),
                _ if i >= founders => {
                    ("existing", "the-data-of-this-member-is-lost=http://localhost:2380".to_owned())
                }
                _ => ("new", all.join(",")),
            };
            data.insert(format!("{i}.state"), state.into());
            data.insert(format!("{i}.cluster"), list.into());
        }
        self.0.objects.put(
            json!({"kind": "ConfigMap", "metadata": {"name": "e-bootstrap", "namespace": "n"}, "data": data}),
        );
    }

    /// Starts the pod of a member; its claim is made if it is missing.
    fn start(&mut self, i: usize, generation: &str) -> Course {
        let (name, claim) = (format!("e-{i}"), format!("e-{i}{generation}"));
        let seconds = self.0.seconds;
        if self.0.objects.object("v1", "PersistentVolumeClaim", "n", &claim).is_none() {
            let uid = format!("disk-{claim}-{seconds}");
            self.0.objects.put(json!({"kind": "PersistentVolumeClaim", "metadata": {"name": claim, "namespace": "n", "uid": uid}}));
        }
        let from = |key: String| json!({"configMapKeyRef": {"name": "e-bootstrap", "key": key}});
        let mut pod = pod(&name);
        pod["metadata"]["uid"] = format!("pod-{i}-{seconds}").into();
        pod["metadata"]["labels"] = json!({"app": "etcd", "operetta.dev/kind": "EtcdCluster.etcd.database.coreos.com",
            "operetta.dev/instance": "e"});
        pod["spec"] = json!({"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": claim}}], "containers": [{
            "name": "etcd", "image": "quay.io/coreos/etcd:v3.6.8", "volumeMounts": [{"name": "d", "mountPath": "/var/etcd"}],
            "env": [{"name": "ETCD_NAME", "value": name},
                {"name": "ETCD_INITIAL_ADVERTISE_PEER_URLS", "value": format!("http://{name}.e.n.svc:2380")},
                {"name": "ETCD_ADVERTISE_CLIENT_URLS", "value": format!("http://{name}.e.n.svc:2379")},
                {"name": "ETCD_INITIAL_CLUSTER_TOKEN", "valueFrom": from("token".to_owned())},
                {"name": "ETCD_INITIAL_CLUSTER_STATE", "valueFrom": from(format!("{i}.state"))},
                {"name": "ETCD_INITIAL_CLUSTER", "valueFrom": from(format!("{i}.cluster"))}]}]});
        self.0.start(&pod)
    }

    /// Starts a member that serves.
    fn serve(&mut self, i: usize, generation: &str) {
        let course = self.start(i, generation);
        assert_eq!(
            (course.ready_after, course.ends_after),
            (Some(Duration::from_secs(2)), None),
            "{}",
            course.message
        );
    }

    fn drop_pod(&mut self, i: usize) {
        self.0.stop("n", &format!("e-{i}"));
    }

    fn drop_claim(&mut self, i: usize, generation: &str) {
        self.0.objects.remove("PersistentVolumeClaim", "n", &format!("e-{i}{generation}"));
    }

    fn members(&mut self, at: usize) -> Vec<String> {
        names(&self.0.prints(&format!("e-{at}"), "etcdctl member list -w json"))
    }

    fn id(&mut self, at: usize, i: usize) -> String {
        let list = self.0.prints(&format!("e-{at}"), "etcdctl member list -w json");
        let list: Value = serde_json::from_str(&list).unwrap();
        let url = json!([format!("http://e-{i}.e.n.svc:2380")]);
        let member =
            list["members"].as_array().unwrap().iter().find(|member| member["peerURLs"] == url).unwrap();
        format!("{:x}", member["ID"].as_u64().unwrap())
    }

    /// The error of a command.
    fn refused(&mut self, at: usize, command: &str) -> String {
        let result = self.0.exec(&format!("e-{at}"), command);
        assert_eq!(result.exit_code, 1, "{command}: {}{}", result.stdout, result.stderr);
        result.stderr.trim_end().to_owned()
    }

    fn add_command(i: usize) -> String {
        format!("etcdctl member add e-{i} --peer-urls=http://e-{i}.e.n.svc:2380 --learner -w json")
    }

    /// As the plan `resize` grows.
    fn grow(&mut self, i: usize, founders: usize) {
        let added = self.0.prints("e-0", &Self::add_command(i));
        let added: Value = serde_json::from_str(&added).unwrap();
        let id = format!("{:x}", added["member"]["ID"].as_u64().unwrap());
        let promote = format!("etcdctl member promote {id}");
        assert!(self.refused(0, &promote).ends_with("in sync with leader"), "it has not started");
        let urls = names(&added.to_string());
        let list: Vec<String> = urls
            .iter()
            .map(|name| Self::peer(name.trim_end_matches(['?', '-'])[2..].parse().unwrap()))
            .collect();
        self.bootstrap(founders, Some(&(i, list.join(","))));
        self.serve(i, "");
        assert!(!self.0.ready(&format!("e-{i}")), "a learner answers no linearizable read");
        self.0.prints("e-0", &promote);
        assert!(self.0.ready(&format!("e-{i}")));
    }

    /// As the plan `resize` shrinks.
    fn shrink(&mut self, i: usize) {
        let id = self.id(0, i);
        self.0.prints("e-0", &format!("etcdctl member remove {id}"));
        self.drop_pod(i);
        self.drop_claim(i, "");
    }

    fn endpoints(&mut self, at: usize) -> (i32, Vec<Value>) {
        let command = "etcdctl endpoint status --cluster --command-timeout=2s -w json";
        let result = self.0.exec(&format!("e-{at}"), command);
        (result.exit_code, serde_json::from_str(&result.stdout).unwrap())
    }

    fn leader(&mut self, at: usize) -> String {
        let (_, found) = self.endpoints(at);
        let leads = |answer: &&Value| answer["Status"]["leader"] == answer["Status"]["header"]["member_id"];
        let leaders: Vec<_> =
            found.iter().filter(leads).map(|answer| answer["Endpoint"].to_string()).collect();
        assert_eq!(leaders.len(), 1, "{found:?}");
        leaders[0].split(['/', '.']).nth(2).unwrap().to_owned()
    }

    fn end(self) {
        assert_eq!(self.0.world.faults(), []);
    }
}

#[test]
fn three_form_grow_to_five_and_shrink() {
    let mut cluster = Cluster::new(3);
    cluster.serve(0, "");
    assert!(!cluster.0.ready("e-0"), "one of three has no quorum");
    assert_eq!(cluster.refused(0, "etcdctl member list -w json"), "Error: context deadline exceeded");
    cluster.serve(1, "");
    assert!(cluster.0.ready("e-0") && cluster.0.ready("e-1"));
    assert_eq!(cluster.members(0), ["e-0", "e-1", "e-2-"]);
    assert_eq!(cluster.refused(0, &Cluster::add_command(3)), "Error: etcdserver: unhealthy cluster");
    cluster.serve(2, "");
    let (code, answers) = cluster.endpoints(1);
    assert_eq!((code, answers.len(), &answers[0]["Status"]["version"]), (0, 3, &json!("3.6.8")));

    cluster.grow(3, 3);
    cluster.grow(4, 3);
    assert_eq!(cluster.members(4), ["e-0", "e-1", "e-2", "e-3", "e-4"]);
    assert!(cluster.refused(0, &Cluster::add_command(4)).ends_with("Peer URLs already exists"));
    cluster.0.prints("e-0", &Cluster::add_command(5));
    assert!(cluster.refused(0, &Cluster::add_command(6)).ends_with("too many learner members in cluster"));
    let learner = cluster.id(0, 5);
    cluster.0.prints("e-0", &format!("etcdctl member remove {learner}"));

    assert_eq!(cluster.leader(0), "e-0");
    let id = cluster.id(0, 2);
    assert_eq!(cluster.refused(1, &format!("etcdctl move-leader {id}")), "Error: no leader endpoint given");
    cluster.0.prints("e-0", &format!("etcdctl move-leader {id}"));
    assert_eq!(cluster.leader(0), "e-2");
    cluster.drop_pod(2);
    let (code, answers) = cluster.endpoints(0);
    assert_eq!((code, answers.len()), (1, 4), "an error, and those that answer");
    let next = cluster.leader(0);
    assert_ne!(next, "e-2");
    cluster.serve(2, "");
    assert_eq!(cluster.leader(0), next, "a former leader follows");

    cluster.shrink(4);
    cluster.shrink(3);
    assert_eq!(cluster.members(2), ["e-0", "e-1", "e-2"]);
    assert!(cluster.refused(0, "etcdctl member remove 123").ends_with("member not found"));
    assert_eq!(cluster.0.exec("e-1", "etcdctl defrag --command-timeout=60s").takes, Duration::from_secs(1));
    cluster.0.prints("e-1", "etcdctl endpoint health --command-timeout=4s");
    cluster.end();
}

#[test]
fn a_member_without_its_data_stays_out() {
    let mut cluster = Cluster::new(3);
    (0..3).for_each(|i| cluster.serve(i, ""));
    let id = cluster.id(0, 1);
    // Its volume is kept: it continues.
    cluster.drop_pod(1);
    cluster.serve(1, "");
    assert_eq!(cluster.id(0, 1), id);
    // Pod and volume are gone: its identity does not start again.
    cluster.drop_pod(1);
    cluster.drop_claim(1, "");
    let course = cluster.start(1, "");
    assert_eq!((course.ready_after, course.exit_code), (None, 1));
    assert!(course.message.contains("has already been bootstrapped"), "{}", course.message);
    assert!(cluster.refused(0, &Cluster::add_command(3)).ends_with("unhealthy cluster"));
    cluster.drop_pod(1);
    cluster.drop_claim(1, "");
    // As the plan `failover`: forget it, and add it anew.
    cluster.0.prints("e-0", &format!("etcdctl member remove {id}"));
    cluster.grow(1, 3);
    assert_ne!(cluster.id(0, 1), id);
    assert_eq!(cluster.members(0), ["e-0", "e-2", "e-1"]);
    // A removed member that starts with its data ends.
    let id = cluster.id(0, 2);
    cluster.0.prints("e-0", &format!("etcdctl member remove {id}"));
    cluster.drop_pod(2);
    assert!(cluster.start(2, "").message.contains("permanently removed"));
    cluster.end();
}

#[test]
fn without_a_quorum_nothing_is_decided() {
    let mut cluster = Cluster::new(3);
    (0..3).for_each(|i| cluster.serve(i, ""));
    let id = cluster.id(0, 2);
    cluster.drop_pod(2);
    let other = cluster.id(0, 1);
    let refused = cluster.refused(0, &format!("etcdctl member remove {other}"));
    assert!(refused.ends_with("not enough started members"), "the quorum of two is two: {refused}");
    cluster.drop_pod(1);
    assert!(!cluster.0.ready("e-0"));
    for command in ["etcdctl member list -w json", &format!("etcdctl member remove {id}"), "etcdctl put a b"]
    {
        assert_eq!(cluster.refused(0, command), "Error: context deadline exceeded");
    }
    cluster.serve(2, "");
    assert!(cluster.0.ready("e-0"));
    cluster.0.prints("e-0", "etcdctl put a b");
    cluster.end();
}

/// The pod of a Job, with the place of the backup.
fn job(
    name: &str,
    kind: &str,
    spec: &Value,
    container: &Value,
    mounts: &Value,
    claims: &[(&str, &str)],
    play: &mut Play,
) -> Value {
    play.objects.put(json!({"kind": "CustomResourceDefinition", "metadata": {"name": kind}, "spec": {
        "group": "etcd.database.coreos.com", "names": {"kind": kind}, "versions": [{"name": "v1beta2", "storage": true}]}}));
    if kind != "EtcdCluster" {
        play.objects.put(
            json!({"kind": kind, "metadata": {"name": "e1", "namespace": "n", "uid": name}, "spec": spec}),
        );
    }
    let instance = if kind == "EtcdCluster" { "e" } else { "e1" };
    let mut pod = pod(name);
    pod["metadata"]["labels"] = json!({"operetta.dev/kind": format!("{kind}.etcd.database.coreos.com"), "operetta.dev/instance": instance});
    let volumes: Vec<_> = claims
        .iter()
        .map(|(volume, claim)| json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    pod["spec"] = json!({"volumes": volumes, "containers": [container],
        "initContainers": [{"name": "fetch", "volumeMounts": mounts, "env": [{"name": "TARGET", "value": "/backup/a.db"}]}]});
    pod
}

#[test]
fn a_backup_is_restored() {
    let mut cluster = Cluster::new(3);
    (0..3).for_each(|i| cluster.serve(i, ""));
    cluster.0.prints("e-0", "etcdctl put order-1 shipped");
    cluster.0.objects.put(
        json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "b", "namespace": "n", "uid": "b"}}),
    );
    let at = json!([{"name": "s", "mountPath": "/backup"}]);

    let verify = |cluster: &mut Cluster, name: &str| {
        let spec = json!({"etcdCluster": {"name": "e"}});
        let container = json!({"name": "restore", "command": ["etcdutl", "snapshot", "restore"]});
        let pod = job(name, "EtcdRestore", &spec, &container, &at, &[("s", "b")], &mut cluster.0);
        cluster.0.start(&pod)
    };
    let course = verify(&mut cluster, "verify-1");
    assert_eq!((course.exit_code, &*course.message), (1, "Failed to copyto: object not found: /backup/a.db"));

    let container =
        json!({"name": "store", "env": [{"name": "NAME", "value": "a.db"}, {"name": "SUFFIX", "value": ""}]});
    let pod = job(
        "backup",
        "EtcdBackup",
        &json!({"clusterName": "e"}),
        &container,
        &at,
        &[("s", "b")],
        &mut cluster.0,
    );
    let course = cluster.0.start(&pod);
    assert_eq!(
        (course.ends_after, course.exit_code, &*course.message),
        (Some(Duration::from_secs(2)), 0, r#"{"path":"a.db"}"#)
    );
    assert_eq!(verify(&mut cluster, "verify-2").exit_code, 0);
    assert_eq!(cluster.0.prints("e-0", "etcdctl del order-1"), "1\n");
    assert_eq!(cluster.0.prints("e-0", "etcdctl get order-1"), "");

    // As the plan `restore`.
    (0..3).for_each(|i| cluster.drop_pod(i));
    cluster.0.objects.put(json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "e-0-g1", "namespace": "n", "uid": "g1"}}));
    let container = json!({"name": "restore", "volumeMounts": [{"name": "d", "mountPath": "/var/etcd"}],
        "command": ["etcdutl", "snapshot", "restore", "--initial-cluster=e-0=http://e-0.e.n.svc:2380"]});
    let pod = job(
        "restore",
        "EtcdCluster",
        &json!({}),
        &container,
        &at,
        &[("s", "b"), ("d", "e-0-g1")],
        &mut cluster.0,
    );
    assert_eq!(cluster.0.start(&pod).exit_code, 0);
    cluster.0.stop("n", "restore");
    cluster.serve(0, "-g1");
    assert!(cluster.0.ready("e-0"));
    assert_eq!(cluster.members(0), ["e-0"]);
    assert_eq!(cluster.0.prints("e-0", "etcdctl get order-1"), "order-1\nshipped\n");
    // The old members with their old volumes do not join.
    assert_eq!(cluster.start(1, "").exit_code, 1);
    cluster.drop_pod(1);
    cluster.end();
}

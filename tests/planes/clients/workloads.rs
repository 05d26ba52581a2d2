//! Workloads, commands and calls on the embedded API, as the packages that ship use them.

use super::kubectl::Kubectl;
use crate::support::dev::{dev, end};
use crate::support::ext::{LONG, copy_folder};

#[tokio::test]
async fn an_etcd_cluster_is_resized_and_repaired_by_commands() {
    let temporary = tempfile::tempdir().unwrap();
    let example = "examples/etcd/example-etcd-cluster.yaml";
    let mut dev = dev(&["operators/etcd", "--apply", example, "--plain"], temporary.path());
    dev.wait_for("etcdclusters/default/example-etcd-cluster: Ready", LONG).await;
    let kubectl = Kubectl::of(&dev).await;
    let cluster = "etcdcluster/example-etcd-cluster";
    let ready = async |size: usize| {
        let line = format!("wait --for=jsonpath={{.status.readyMembers}}={size} {cluster} --timeout=300s");
        kubectl.says(&line, "", &["condition met"]).await;
        kubectl
            .says(&format!("wait --for=condition=Ready {cluster} --timeout=300s"), "", &["condition met"])
            .await;
        let members = kubectl.says("exec example-etcd-cluster-0 -- etcdctl member list", "", &[]).await;
        assert_eq!(members.matches("example-etcd-cluster-0.").count(), 2, "{members}");
        assert_eq!(members.matches("clientURLs").count(), size, "{members}");
    };
    kubectl.says("exec example-etcd-cluster-0 -- etcdctl put a b", "", &["OK"]).await;
    for size in [5, 3] {
        let line = format!("patch {cluster} --type=merge -p {{\"spec\":{{\"size\":{size}}}}}");
        kubectl.says(&line, "", &["patched"]).await;
        ready(size).await;
    }
    kubectl.says("delete pod example-etcd-cluster-1", "", &["deleted"]).await;
    kubectl.says("wait --for=create pod/example-etcd-cluster-1 --timeout=300s", "", &["condition met"]).await;
    ready(3).await;
    kubectl.says("exec example-etcd-cluster-1 -- etcdctl get a", "", &["b"]).await;
    let failed = kubectl.try_run("exec example-etcd-cluster-1 -- nonsense", "").await.unwrap_err();
    assert!(failed.contains("nonsense") && failed.contains("exit code 127"), "{failed}");
    let missing = kubectl.try_run("exec none -- true", "").await.unwrap_err();
    assert!(missing.contains("pods \"none\" not found"), "{missing}");
    kubectl.says("logs example-etcd-cluster-0", "", &["serving client traffic"]).await;
    end(dev, temporary.path()).await;
}

#[tokio::test]
async fn a_web_application_is_scaled_and_restored() {
    let temporary = tempfile::tempdir().unwrap();
    let example = "examples/webapp/minimal.yaml";
    let mut dev = dev(&["operators/webapp", "--apply", example, "--plain"], temporary.path());
    dev.wait_for("webapps/default/hello: Ready", LONG).await;
    let kubectl = Kubectl::of(&dev).await;
    kubectl.says("scale webapp hello --replicas=5", "", &["scaled"]).await;
    kubectl
        .says("wait --for=jsonpath={.spec.replicas}=5 deployment/hello --timeout=300s", "", &["met"])
        .await;
    kubectl.says("rollout status deployment/hello --timeout=300s", "", &["successfully rolled out"]).await;
    kubectl.says("get deployment hello", "", &["5/5"]).await;
    kubectl.says("delete deployment hello", "", &["deleted"]).await;
    kubectl
        .says("wait --for=condition=Available deployment/hello --timeout=300s", "", &["condition met"])
        .await;
    // Some commands send Protobuf.
    kubectl.says("create deployment web --image=nginx --replicas=2", "", &["created"]).await;
    kubectl.says("rollout status deployment/web --timeout=300s", "", &["successfully rolled out"]).await;
    kubectl.says("rollout restart deployment/web", "", &["restarted"]).await;
    kubectl.says("rollout status deployment/web --timeout=300s", "", &["successfully rolled out"]).await;
    kubectl.says("create job work --image=busybox", "", &["created"]).await;
    kubectl.says("wait --for=condition=Complete job/work --timeout=300s", "", &["condition met"]).await;
    kubectl
        .says("get all", "", &["pod/web-", "deployment.apps/web", "replicaset.apps/web-", "job.batch/work"])
        .await;
    kubectl.says("expose deployment web --port=80", "", &["exposed"]).await;
    kubectl.says("describe service web", "", &["Endpoints:", ":80"]).await;
    kubectl.says("get endpointslices", "", &["ADDRESSTYPE", "IPv4"]).await;
    kubectl.says("set image deployment/web nginx=nginx:2", "", &["updated"]).await;
    kubectl.says("rollout status deployment/web --timeout=300s", "", &["successfully rolled out"]).await;
    kubectl.says("rollout undo deployment/web", "", &["rolled back"]).await;
    kubectl.says("rollout history deployment/web", "", &["REVISION"]).await;
    kubectl.says("create cronjob tick --image=busybox --schedule=*/5~*~*~*~*", "", &["created"]).await;
    kubectl.says("create quota q --hard=pods=99", "", &["created"]).await;
    kubectl.says("create role r --verb=get --resource=pods", "", &["created"]).await;
    kubectl.says("create rolebinding r --role=r --serviceaccount=default:default", "", &["created"]).await;
    kubectl.says("get rolebindings -o wide", "", &["Role/r", "default/default"]).await;
    kubectl.says("run bare --image=busybox:1", "", &["created"]).await;
    kubectl.says("wait --for=condition=Ready pod/bare --timeout=300s", "", &["condition met"]).await;
    kubectl.says("set image pod/bare bare=busybox:2", "", &["updated"]).await;
    let restarts =
        "wait --for=jsonpath={.status.containerStatuses[0].restartCount}=1 pod/bare --timeout=300s";
    kubectl.says(restarts, "", &["condition met"]).await;
    kubectl.says("auth can-i create pods", "", &["yes"]).await;
    let denied =
        kubectl.try_run("auth can-i create pods --as=system:serviceaccount:default:default", "").await;
    assert_eq!(denied.unwrap_err().trim(), "no");
    kubectl.says("auth whoami", "", &["operetta:dev", "system:masters"]).await;
    end(dev, temporary.path()).await;
}

#[tokio::test]
async fn a_world_answers_http_calls() {
    let temporary = tempfile::tempdir().unwrap();
    let example = "examples/flight-ticket/my-flight-ticket.yaml";
    let mut dev = dev(&["operators/flight-ticket", "--apply", example, "--until-ready"], temporary.path());
    assert!(dev.wait(LONG).await.success(), "{}", dev.output());
}

#[tokio::test]
async fn a_changed_world_is_played_and_a_broken_one_is_not() {
    let (temporary, package) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy_folder(std::path::Path::new("operators/webapp"), package.path(), &std::convert::identity);
    let world = package.path().join("tests/world.yaml");
    let folder = package.path().to_str().unwrap();
    let text = |answer: &str| {
        format!(
            "apiVersion: operetta.dev/v1alpha1\nkind: World\nstate: {{calls: 0}}\n\
             exec:\n- {{command: [hi], stdout: {answer}}}\n- {{command: [count], stdout: '{{{{ state.calls }}}}', \
             do: [{{set: {{state.calls: '{{{{ state.calls + 1 }}}}'}}}}]}}\n\
             pods:\n- {{when: pod.metadata.name == 'stuck', waiting: ErrImagePull, message: no such image}}\n"
        )
    };
    std::fs::write(&world, text("one")).unwrap();
    let start = |args: &[&str]| dev(args, temporary.path());
    let mut dev = start(&[folder, "--apply", "examples/webapp/minimal.yaml", "--plain"]);
    dev.wait_for("webapps/default/hello: Ready", LONG).await;
    let kubectl = Kubectl::of(&dev).await;
    kubectl.says("exec deployment/hello -- hi", "", &["one"]).await;
    kubectl.says("exec deployment/hello -- count", "", &["1"]).await;
    kubectl.says("run stuck --image=none", "", &["created"]).await;
    let why = "jsonpath={.status.containerStatuses[0].state.waiting.reason}=ErrImagePull";
    kubectl.says(&format!("wait --for={why} pod/stuck --timeout=300s"), "", &["condition met"]).await;
    kubectl.says("get pod stuck", "", &["ErrImagePull"]).await;
    kubectl.says("describe pod stuck", "", &["Waiting", "ErrImagePull"]).await;
    let message = "get pod stuck -o=jsonpath={.status.containerStatuses[0].state.waiting.message}";
    kubectl.says(message, "", &["no such image"]).await;
    std::fs::write(&world, text("[")).unwrap();
    dev.wait_for("the worlds cannot be reloaded", LONG).await;
    kubectl.says("exec deployment/hello -- hi", "", &["one"]).await;
    std::fs::write(&world, text("two")).unwrap();
    dev.wait_for("reloaded the worlds", LONG).await;
    kubectl.says("exec deployment/hello -- hi", "", &["two"]).await;
    // The state goes on.
    kubectl.says("exec deployment/hello -- count", "", &["2"]).await;
    end(dev, temporary.path()).await;
    std::fs::write(&world, text("[")).unwrap();
    let mut broken = start(&[folder]);
    assert_eq!(broken.wait(LONG).await.code(), Some(1));
    assert!(broken.output().contains("world.yaml:5"), "{}", broken.output());
}

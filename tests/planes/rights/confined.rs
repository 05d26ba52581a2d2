//! What the manager's account cannot do, whoever uses it: RBAC limits it to certain names, and an admission
//! policy limits what it writes under them.

use operetta::rights::{self, confinement};
use serde_json::{Value, json};

use super::strict_plane;
use crate::support::crd::open_crd;
use crate::support::rights::{SYSTEM, apply, grant, manager, run, user};
use crate::support::{LONG, Output, Scene, WEB_APP, eventually, file, kubectl_of};

const FOREIGN: &str = "certificates.cert-manager.example.com";

fn converted(service: &str) -> String {
    let conversion = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"service": {"namespace": SYSTEM, "name": service}}}});
    json!({"spec": {"conversion": conversion}}).to_string()
}

#[tokio::test]
async fn manager_account_writes_only_its_own_objects() {
    let plane = strict_plane().await;
    let kubeconfig = manager(&plane).await;
    apply(&plane, &confinement::objects(SYSTEM)).await;
    for (plural, kind) in [("certificates", "Certificate"), ("issuers", "Issuer")] {
        let crd = open_crd("cert-manager.example.com", plural, kind);
        kubectl_of(&plane, &["apply", "-f", "-"], &crd).await.ok();
    }
    // A package names a foreign CRD: its role includes the CRD, but the manager may not change it.
    let greedy = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
    "metadata": {"name": "operetta-greedy-instances", "labels": {"operetta.dev/aggregate-to-manager": "true"}},
    "rules": [
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
            "resourceNames": [FOREIGN, "things.greedy.k8s.io", "things.greedy.example.com"], "verbs": ["create", "patch"]},
    ]});
    apply(&plane, &[greedy]).await;
    let account = user(rights::MANAGER);
    let as_manager = async |args: &[&str], input: &str| -> Output {
        kubectl_of(&plane, &[&["--as", account.as_str()], args].concat(), input).await
    };
    let refused = async |words: &str, args: &[&str], input: &str| {
        let told = eventually(words, LONG, async || {
            let output = as_manager(args, input).await;
            // Roles and policies take effect a moment later.
            let holds = output.stderr.contains(words);
            if holds { Ok(output.stderr) } else { Err(format!("{}{}", output.stdout, output.stderr)) }
        })
        .await;
        assert!(told.contains("orbidden") || told.contains("denied"), "{told}");
    };
    let apply_it = ["apply", "--server-side", "--force-conflicts", "--field-manager=operetta", "-f", "-"];

    let secret = |name: &str, kind: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": {"name": name, "namespace": SYSTEM, "annotations": {"kubernetes.io/service-account.name": "default"}}})
        .to_string()
    };
    // Objects that are written before the policy is in effect would stay, so use a dry run.
    let probe = ["create", "--dry-run=server", "-f", "-"];
    refused("only its own Secrets", &probe, &secret("other", "Opaque")).await;

    // CRDs: a foreign one that a package names, one of no package, groups of Kubernetes, a webhook that is
    // not its own.
    let patch_foreign = |patch: &str| {
        vec![
            "patch".to_owned(),
            "crd".into(),
            FOREIGN.into(),
            "--type=merge".into(),
            "-p".into(),
            patch.to_owned(),
        ]
    };
    for patch in [
        converted("operetta-webhook"),
        json!({"metadata": {"labels": {"operetta.dev/operator": "greedy"}}}).to_string(),
        json!({"metadata": {"labels": {"operetta.dev/operator": "greedy"}, "annotations": {"operetta.dev/adopt": "true"}}}).to_string(),
    ] {
        let args = patch_foreign(&patch);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refused("CustomResourceDefinition", &args, "").await;
    }
    let words = "cannot patch resource \"customresourcedefinitions\"";
    refused(words, &["patch", "crd", "issuers.cert-manager.example.com", "--type=merge", "-p", "{}"], "")
        .await;
    let greed = |group: &str, labels: Value| {
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("things.{group}"), "labels": labels,
                "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
            "spec": {"group": group, "scope": "Namespaced", "names": {"kind": "Thing", "plural": "things"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}})
        .to_string()
    };
    let labelled = json!({"operetta.dev/operator": "greedy"});
    refused("those that it labels", &apply_it, &greed("greedy.example.com", json!({}))).await;
    refused("of a group of Kubernetes", &apply_it, &greed("greedy.k8s.io", labelled.clone())).await;
    as_manager(&apply_it, &greed("greedy.example.com", labelled)).await.ok();
    let name = "things.greedy.example.com";
    refused(
        "sets no conversion webhook but its own",
        &["patch", "crd", name, "--type=merge", "-p", &converted("spy")],
        "",
    )
    .await;
    // A person permits it to adopt the foreign CRD.
    kubectl_of(&plane, &["annotate", "crd", FOREIGN, "operetta.dev/adopt=true"], "").await.ok();
    let adopted = json!({"metadata": {"labels": {"operetta.dev/operator": "greedy"}}}).to_string();
    as_manager(&["patch", "crd", FOREIGN, "--type=merge", "-p", &adopted], "").await.ok();

    // Policies: only its own names, and not the policy that confines it.
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "deny-all"}, "spec": {"validations": [{"expression": "false"}]}});
    refused("cannot patch resource \"validatingadmissionpolicies\"", &apply_it, &policy.to_string()).await;
    refused(
        "cannot create resource \"validatingadmissionpolicies\"",
        &["create", "-f", "-"],
        &policy.to_string(),
    )
    .await;
    for args in [
        ["delete", "validatingadmissionpolicy", &confinement::name(SYSTEM)],
        ["delete", "validatingadmissionpolicybinding", &confinement::name(SYSTEM)],
    ] {
        refused("cannot delete resource", &args, "").await;
    }

    // Secrets: only its own ones, and no tokens.
    let own = "operetta-generated-data";
    refused("only its own Secrets", &["create", "-f", "-"], &secret("other", "Opaque")).await;
    refused(
        "only its own Secrets",
        &["create", "-f", "-"],
        &secret(own, "kubernetes.io/service-account-token"),
    )
    .await;
    as_manager(&["create", "-f", "-"], &secret(own, "Opaque")).await.ok();
    refused(
        "cannot create resource \"serviceaccounts/token\"",
        &["-n", SYSTEM, "create", "token", "default"],
        "",
    )
    .await;

    // Within these limits it works.
    kubectl_of(&plane, &["-n", SYSTEM, "delete", "secret", own], "").await.ok();
    grant(&plane, &["operators/webapp"], |_| {}).await;
    let _operetta = run(&plane, &kubeconfig, &["operators/webapp"]).watching(1).await;
    let scene = Scene::on(&plane).await;
    scene.apply_ready(WEB_APP, "shop", &file("examples/webapp/full.yaml")).await;
}

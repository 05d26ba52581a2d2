//! The rights of a package are shown before it is installed or upgraded, accepted by the user, and granted
//! only if its revision is accepted.

use serde_json::{Value, json};

use super::{Cluster, MANAGERS, OPERATOR, Package, Part, REVISION, SIZE, is_active, says, scene};
use crate::support::ext::{CONFIG_MAP, condition};

/// The exit code if the rights are not accepted.
const NOT_AGREED: i32 = 5;

/// Adds a child of a kind to the first resource of a package.
fn add_child(package: &Package, id: &str, api_version: &str, kind: &str, more: &str) {
    let path = std::path::Path::new(package.folder());
    let text =
        format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: \"{{{{ name }}}}\"}}\n{more}");
    std::fs::write(path.join(format!("templates/{id}.yaml")), text).unwrap();
    let manifest = std::fs::read_to_string(path.join("operator.yaml")).unwrap();
    let children = format!("children: [{{id: {id}, template: templates/{id}.yaml}}, ");
    std::fs::write(path.join("operator.yaml"), manifest.replace("children: [", &children)).unwrap();
}

/// Adds entries to the spec of a package.
fn add_to_spec(package: &Package, text: &str) {
    let path = std::path::Path::new(package.folder()).join("operator.yaml");
    let manifest = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, manifest.replace("  resources:\n", &format!("{text}  resources:\n"))).unwrap();
}

/// Whether the account of a package may do something.
async fn may(cluster: &Cluster, package: &str, verb: &str, resource: &str, namespace: &str) -> bool {
    let user = format!("system:serviceaccount:{MANAGERS}:operetta-{package}");
    let args = ["auth", "can-i", verb, resource, "-n", namespace, "--as", &user];
    cluster.kubectl(&args, "").await.stdout.trim() == "yes"
}

/// Whether the stored revisions of a package have a role with rights to a resource. The manager of these
/// tests uses its own rights, so nothing is bound: `rights/revisions.rs` tests bindings.
async fn has_role(cluster: &Cluster, package: &str, resource: &str) -> bool {
    let selector = format!("operetta.dev/operator={package}");
    let found = cluster.kubectl(&["get", "clusterroles", "-l", &selector, "-o", "json"], "").await.stdout;
    let roles: Value = serde_json::from_str(&found).unwrap();
    let rules =
        roles["items"].as_array().unwrap().iter().filter_map(|role| role["rules"].as_array().cloned());
    rules.flatten().any(|rule| rule["resources"].as_array().is_some_and(|all| all.contains(&resource.into())))
}

#[tokio::test]
async fn more_rights_than_before_are_shown_and_must_be_accepted() {
    let cluster = Cluster::shared().await;
    let package = Package::new("purses", "0.1.0", "old");
    // Ordinary rights are shown.
    let installed = cluster.operetta(&["install", package.folder()]).await;
    let line = "get, list, watch, create, patch, delete configmaps in all namespaces";
    assert!(installed.stderr.contains("rights: the package may\n") && installed.stderr.contains(line));
    installed.ok();
    assert!(has_role(cluster, "purses", "configmaps").await);
    let before = cluster.find(OPERATOR, "purses").await.unwrap();

    package.write("0.2.0", &[Part::new("purses", SIZE, "new")]);
    add_child(&package, "account", "v1", "ServiceAccount", "automountServiceAccountToken: false\n");
    let second = package.revision().await;
    let gained = "rights: the package may now\n  get, list, watch, create, patch, delete serviceaccounts in all namespaces";
    says(cluster.told(&["upgrade", package.folder(), "--preview"]).await, 0, &[gained]);
    let (code, told) = cluster.told(&["upgrade", package.folder()]).await;
    assert!(code == NOT_AGREED && told.contains(gained) && told.contains("--accept-rights"), "{code} {told}");
    // Nothing was written.
    assert_eq!(cluster.find(OPERATOR, "purses").await.unwrap()["spec"], before["spec"]);
    assert!(cluster.find(REVISION, &second).await.is_none());
    assert!(!has_role(cluster, "purses", "serviceaccounts").await);

    cluster.operetta(&["upgrade", package.folder(), "--accept-rights"]).await.ok();
    cluster.until("purses", "upgraded", is_active).await;
    assert!(has_role(cluster, "purses", "serviceaccounts").await);
    // The same rights need no acceptance, and neither do fewer rights.
    cluster.operetta(&["upgrade", package.folder()]).await.ok();
    package.write("0.3.0", &[Part::new("purses", SIZE, "newer")]);
    let upgraded = cluster.operetta(&["upgrade", package.folder()]).await;
    assert!(upgraded.stderr.contains("rights: the package may no longer\n"), "{}", upgraded.stderr);
    upgraded.ok();
}

#[tokio::test]
async fn far_reaching_rights_must_be_accepted_at_installation() {
    let cluster = Cluster::shared().await;
    let package = Package::new("vaults", "0.1.0", "{{ spec.size }}");
    add_child(&package, "keys", "v1", "Secret", "data: {a: eA==}\n");
    let lines = [
        "remarkable: the package\n  reads or writes Secrets of all namespaces: get, list, watch, create, patch, delete secrets in",
        "--accept-rights",
    ];
    let (code, told) = cluster.told(&["install", package.folder()]).await;
    assert!(code == NOT_AGREED && lines.iter().all(|line| told.contains(line)), "{code} {told}");
    assert!(cluster.find(OPERATOR, "vaults").await.is_none());
    assert!(!has_role(cluster, "vaults", "secrets").await);
    // Lint reports the same rights as a note and finds nothing wrong.
    let linted = cluster.operetta(&["lint", package.folder(), "--strict"]).await;
    let told = linted.ok();
    assert!(
        told.contains("reads or writes Secrets of all namespaces") && told.contains("nothing wrong"),
        "{told}"
    );
    cluster.operetta(&["install", package.folder(), "--accept-rights"]).await.ok();
    assert!(has_role(cluster, "vaults", "secrets").await);
}

#[tokio::test]
async fn refused_revision_gets_no_rights() {
    let cluster = Cluster::shared().await;
    let package = cluster.installed(Package::new("refusals", "0.1.0", "old")).await;
    let scene = scene(cluster).await;
    package.ready(&scene, "one", &json!({"size": 3})).await;
    // The schema would remove values of the instance.
    package.write("0.2.0", &[Part::new("refusals", "size: {type: string}", "new")]);
    add_to_spec(&package, "  permissions:\n    - {apiGroups: [\"*\"], resources: [\"*\"], verbs: [\"*\"]}\n");
    let (code, told) = cluster.told(&["upgrade", package.folder(), "--accept-rights"]).await;
    assert!(
        code == 1 && told.contains("uses wildcards: * *.*") && told.contains("stays active"),
        "{code} {told}"
    );
    assert!(!may(cluster, "refusals", "delete", "nodes", "default").await);
    assert!(!may(cluster, "refusals", "list", "secrets", scene.namespace()).await);
    assert!(has_role(cluster, "refusals", "configmaps").await);
}

/// A revision that was installed without its rights has none: whoever grants them later is asked.
#[tokio::test]
async fn rights_that_were_never_granted_must_be_accepted() {
    let cluster = Cluster::shared().await;
    let package = cluster.installed(Package::new("hidings", "0.1.0", "old")).await;
    let first = package.revision().await;
    package.write("0.2.0", &[Part::new("hidings", SIZE, "new")]);
    add_to_spec(&package, "  permissions:\n    - {apiGroups: [\"*\"], resources: [\"*\"], verbs: [\"*\"]}\n");
    let greedy = package.revision().await;
    cluster.operetta(&["upgrade", package.folder(), "--rights=false"]).await.ok();
    cluster.until("hidings", "upgraded", is_active).await;
    let wildcard = "uses wildcards: * *.*";
    for args in [&["upgrade", package.folder()][..], &["upgrade", package.folder(), "--preview"]] {
        let (code, told) = cluster.told(args).await;
        let expected = if args.len() == 2 { NOT_AGREED } else { 0 };
        assert!(code == expected && told.contains("  * *.* in all namespaces"), "{args:?} {code} {told}");
    }
    // The next revision does not need them, and the rollback to this one would grant them.
    package.write("0.3.0", &[Part::new("hidings", SIZE, "newer")]);
    cluster.operetta(&["upgrade", package.folder(), "--accept-rights"]).await.ok();
    cluster.until("hidings", "upgraded", is_active).await;
    assert!(!has_role(cluster, "hidings", "*").await);
    let (code, told) = cluster.told(&["rollback", "hidings", "--to", &greedy]).await;
    assert!(code == NOT_AGREED && told.contains(wildcard), "{code} {told}");
    assert!(!has_role(cluster, "hidings", "*").await);
    let named = cluster.find(OPERATOR, "hidings").await.unwrap()["spec"]["revision"].clone();
    assert_ne!(named, greedy.as_str());
    // A revision that has its roles needs no consent, and one that gets them needs it once.
    cluster.operetta(&["rollback", "hidings", "--to", &first]).await.ok();
    cluster.operetta(&["rollback", "hidings", "--to", &greedy, "--accept-rights"]).await.ok();
    assert!(has_role(cluster, "hidings", "*").await);
    cluster.operetta(&["rollback", "hidings", "--to", &first]).await.ok();
    cluster.operetta(&["rollback", "hidings", "--to", &greedy]).await.ok();
}

/// A user who may edit Operators and not read roles.
#[tokio::test]
async fn a_rollback_by_a_user_who_may_not_read_roles_says_so_and_goes_on() {
    let cluster = Cluster::shared().await;
    let package = cluster.installed(Package::new("blinds", "0.1.0", "old")).await;
    let first = package.revision().await;
    package.write("0.2.0", &[Part::new("blinds", SIZE, "new")]);
    cluster.operetta(&["upgrade", package.folder()]).await.ok();
    let account = crate::support::ext::account(&cluster.plane, "blind", "configmaps").await;
    let rolled = crate::support::operetta(&account, &["rollback", "blinds"]).await;
    assert!(
        rolled.stderr.contains("cannot be read, so none are applied") && rolled.stderr.contains("forbidden"),
        "{}",
        rolled.stderr
    );
    rolled.ok();
    let operator = cluster.until("blinds", "rolled back", is_active).await;
    assert_eq!(operator["status"]["activeRevision"], first.as_str());
}

/// A package of a cluster-scoped kind whose instances choose where their pods run, and with which account.
#[tokio::test]
async fn namespaces_and_accounts_that_an_instance_chooses_must_be_accepted() {
    let cluster = Cluster::shared().await;
    let package = Package::new("wanderers", "0.1.0", "old");
    let path = std::path::Path::new(package.folder());
    let crd = std::fs::read_dir(path.join("crds")).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(&crd).unwrap();
    std::fs::write(
        &crd,
        text.replace("Namespaced", "Cluster")
            .replace(SIZE, "size: {type: integer}, place: {type: string}, account: {type: string}"),
    )
    .unwrap();
    for template in std::fs::read_dir(path.join("templates")).unwrap() {
        let template = template.unwrap().path();
        std::fs::write(
            template,
            "apiVersion: v1\nkind: Pod\nmetadata: {name: \"{{ name }}\", namespace: \"{{ spec.place }}\"}\nspec:\n  serviceAccountName: \
             \"{{ spec.account }}\"\n  containers: [{name: a, image: \"example.org/a:1\"}]\n",
        )
        .unwrap();
    }
    let words = [
        "runs pods with a ServiceAccount that an instance chooses",
        "writes into namespaces that an instance chooses: create, patch, delete pods",
    ];
    let (code, told) = cluster.told(&["install", package.folder()]).await;
    assert!(code == NOT_AGREED && words.iter().all(|words| told.contains(words)), "{code} {told}");
    let linted = cluster.operetta(&["lint", package.folder()]).await;
    let told = format!("{}{}", linted.stdout, linted.stderr);
    assert!(words.iter().all(|words| told.contains(words)), "{told}");
    cluster.operetta(&["install", package.folder(), "--accept-rights"]).await.ok();
    // What nobody has opened by name stays closed, whatever was accepted.
    let apply = async |name: &str, place: &str, account: &str| {
        let spec = json!({"place": place, "account": account});
        let text = package.instance(name, &spec);
        cluster.kubectl(&["apply", "-f", "-"], &text).await.ok();
    };
    apply("one", MANAGERS, "default").await;
    apply("two", "kube-system", "default").await;
    let stalled = async |name: &str, words: &str| {
        crate::support::eventually(words, crate::support::ext::LONG, async || {
            let instance = cluster.find(package.kind(), name).await.unwrap();
            let stalled = condition(&instance, "Stalled")["message"].to_string();
            if stalled.contains(words) { Ok(()) } else { Err(format!("{instance:#}")) }
        })
        .await;
    };
    stalled("one", &format!("--system-namespaces {MANAGERS}")).await;
    stalled("two", "who may write there controls the cluster").await;
    let args = ["upgrade", package.folder(), "--system-namespaces", MANAGERS];
    cluster.operetta(&args).await.ok();
    apply("three", MANAGERS, "operetta").await;
    stalled("three", "it would act as operetta").await;
    let pods = cluster.kubectl(&["get", "pods", "-n", MANAGERS, "-o", "name"], "").await.ok();
    assert!(!pods.contains("/three"), "{pods}");
    crate::support::eventually("a pod there", crate::support::ext::LONG, async || {
        let pods = cluster.kubectl(&["get", "pods", "-A", "-o", "name"], "").await.ok();
        if pods.contains("pod/one") && !pods.contains("pod/two") { Ok(()) } else { Err(pods) }
    })
    .await;
    for name in ["one", "two", "three"] {
        cluster.kubectl(&["delete", &package.kind().resource_name(), name], "").await.ok();
    }
}

#[tokio::test]
async fn one_command_installs_for_some_namespaces() {
    let cluster = Cluster::shared().await;
    let package = Package::new("tents", "0.1.0", "old");
    let (own, others) = (scene(cluster).await, scene(cluster).await);
    let late = format!("late-{}", own.namespace());
    let names = format!("{},{late}", own.namespace());
    let args = ["install", package.folder(), "--namespaces", &names];
    let installed = cluster.operetta(&args).await;
    installed.ok();
    let named = |operator: &Value| operator["spec"]["namespaces"]["names"].clone();
    let operator = cluster.find(OPERATOR, "tents").await.unwrap();
    assert_eq!(named(&operator).as_array().unwrap().len(), 2, "{operator:#}");
    assert!(has_role(cluster, "tents", "configmaps").await);
    assert!(!may(cluster, "tents", "create", "configmaps", others.namespace()).await);
    for scene in [&own, &others] {
        scene.apply(&package.instance("one", &json!({}))).await;
    }
    own.ready(package.kind(), "one").await;
    others.until("not served", package.kind(), "one", |o| condition(o, "Ready")["status"] == "Unknown").await;

    // Roles for a namespace that does not exist yet are created later.
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": late}}).to_string();
    cluster.kubectl(&["apply", "-f", "-"], &namespace).await.ok();
    cluster.operetta(&args).await.ok();
    // An upgrade and a rollback keep the namespaces.
    package.write("0.2.0", &[Part::new("tents", SIZE, "new")]);
    cluster.operetta(&["upgrade", package.folder()]).await.ok();
    own.until("upgraded", CONFIG_MAP, "one", |o| o["data"]["value"] == "new").await;
    cluster.operetta(&["rollback", "tents"]).await.ok();
    assert_eq!(named(&cluster.find(OPERATOR, "tents").await.unwrap()), named(&operator));
    assert!(others.find(CONFIG_MAP, "one").await.is_none());
    // One more namespace means more rights.
    let more = format!("{names},{}", others.namespace());
    let args = ["install", package.folder(), "--namespaces", &more];
    cluster.operetta(&["upgrade", package.folder()]).await.ok();
    assert_eq!(cluster.told(&args).await.0, NOT_AGREED);
    cluster.operetta(&[&args[..], &["--accept-rights"]].concat()).await.ok();
    others.ready(package.kind(), "one").await;
}

#[tokio::test]
async fn reserved_namespaces_are_served_only_if_they_are_named() {
    let cluster = Cluster::shared().await;
    let package = cluster.installed(Package::new("annexes", "0.1.0", "old")).await;
    let instance = package.instance("one", &json!({}));
    let read = async |kind: &str| {
        let args = ["get", kind, "one", "-n", "kube-system", "-o", "json", "--ignore-not-found"];
        let text = cluster.kubectl(&args, "").await.ok();
        serde_json::from_str::<Value>(&text).unwrap_or_default()
    };
    cluster.kubectl(&["apply", "-n", "kube-system", "-f", "-"], &instance).await.ok();
    let told = crate::support::eventually("it is told", crate::support::ext::LONG, async || {
        let object = read("annexes").await;
        match condition(&object, "Ready")["message"].as_str() {
            Some(message) => Ok(message.to_owned()),
            None => Err(format!("{object:#}")),
        }
    })
    .await;
    assert!(
        told.contains("does not serve the namespace kube-system") && told.contains("spec.namespaces"),
        "{told}"
    );
    assert_eq!(read("configmap").await, Value::Null);
    let args = ["install", package.folder(), "--namespaces", "kube-system", "--accept-rights"];
    cluster.operetta(&args).await.ok();
    crate::support::eventually("it is served", crate::support::ext::LONG, async || {
        let object = read("configmap").await;
        if object["data"]["value"] == "old" { Ok(()) } else { Err(format!("{object:#}")) }
    })
    .await;
    cluster.kubectl(&["delete", "annexes", "one", "-n", "kube-system"], "").await.ok();
}

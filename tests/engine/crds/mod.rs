//! CRDs of packages that others apply, edit, delete and recreate; CRDs of children's kinds that are created
//! later and changed; CRDs as large projects ship them. Commands and webhooks of CRDs: `tests/planes/crds`.

mod managers;
mod narrowing;
mod versions;

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::crds::{
    SIZE, config, crd, has_status, instance, live, operetta, package, schema, until_crd, until_event,
};
use crate::support::ext::{
    CONFIG_MAP, CRD, Kind, LONG, Scene, condition, find_in, is_ready, kind, run, run_as, uid_of,
};
use crate::support::{eventually, kubectl, kubectl_of, kubectl_stdin, own_plane_of_tests, plane_of_tests};

/// Whether the manager owns fields of the CRD's spec.
fn owns_spec(crd: &Value) -> bool {
    let entries = crd["metadata"]["managedFields"].as_array().unwrap();
    entries.iter().any(|e| e["manager"] == "operetta" && !e["fieldsV1"]["f:spec"].is_null())
}

struct Packages {
    root: tempfile::TempDir,
    folders: Vec<String>,
}

impl Packages {
    fn add(&mut self, name: &str, crd: &str, adopt: bool, children: &[&str]) -> String {
        let folder = package(self.root.path(), name, crd, adopt, children);
        operetta(&["lint", &folder]);
        self.folders.push(folder.clone());
        folder
    }
}

#[tokio::test]
async fn crds_that_others_apply_edit_and_delete() {
    let mut all = Packages { root: tempfile::tempdir().unwrap(), folders: Vec::new() };
    let sized = config("spec.size");
    let value = || [sized.as_str()];
    // CRDs kept in Git: as their authors wrote them, and as `operetta crd` prints them.
    let mut git = Vec::new();
    for (kind, plural, flags) in
        [("Client", "clients", &[][..]), ("Server", "servers", &["--server-side", "--force-conflicts"][..])]
    {
        let text = crd(plural, kind, &schema(SIZE));
        let folder = all.add(plural, &text, true, &value());
        apply(&text, flags).await;
        git.push((kind, plural, flags, text, folder));
        let plural = format!("kept{plural}");
        let kind = format!("Kept{kind}");
        let folder = all.add(&plural, &crd(&plural, &kind, &schema(SIZE)), false, &value());
        apply(&operetta(&["crd", &folder]), flags).await;
    }
    all.add("edits", &crd("edits", "Edit", &schema(SIZE)), false, &value());
    let second = sized.replace("{{ name }}", "{{ name }}-second");
    all.add("goners", &crd("goners", "Goner", &schema(SIZE)), false, &[&sized, &second]);
    let colour = "size: {type: integer, default: 1}, colour: {type: string}";
    let shown = config("spec.colour | default('none')");
    let colours = crd("colours", "Colour", &schema(colour));
    apply(&colours, &[]).await;
    all.add("colours", &colours, true, &[&shown]);
    let late = "apiVersion: crds.example.org/v1\nkind: Late\nmetadata: {name: \"{{ name }}\"}\nspec: {size: \"{{ spec.size }}\", extra: x}\n";
    let late = late.replace("\"{{ spec.size }}\"", "{{ spec.size }}");
    all.add("parents", &crd("parents", "Parent", &schema(SIZE)), false, &[&late]);

    traits(&mut all);
    let folders: Vec<&str> = all.folders.iter().map(String::as_str).collect();
    let manager = run_as("traits", &*plane_of_tests().await, &folders);
    eventually("all active", LONG, async || {
        let count = manager.output().matches("package active package=").count();
        if count == folders.len() { Ok(()) } else { Err(format!("{count}:\n{}", manager.output())) }
    })
    .await;
    let loops = futures::future::join_all(git.iter().map(a_reverted_crd_is_restored_twice_and_then_left));
    tokio::join!(
        loops,
        crds_that_others_apply_as_printed_are_not_written(),
        an_edited_crd_is_mended(),
        a_deleted_crd_takes_its_instances_along_and_comes_back(),
        a_new_default_reaches_what_is_there(&colours),
        the_kind_of_a_child_comes_later_and_changes(),
        crds_of_all_traits_work(),
    );
    assert!(!manager.output().contains("panicked"), "{}", manager.output());
}

async fn apply(text: &str, flags: &[&str]) {
    let mut args = vec!["apply", "-f", "-"];
    args.extend(flags);
    kubectl_stdin(&args, text).await.ok();
}

async fn a_reverted_crd_is_restored_twice_and_then_left(
    git: &(&'static str, &'static str, &[&str], String, String),
) {
    let (name, plural, flags, text, folder) = git;
    let scene = Scene::unmanaged().await;
    let of = kind("crds.example.org/v1", plural);
    scene.apply(&instance(name, "one", &json!({"size": 3}))).await;
    // An instance that is decided while its CRD has no status is seen without one, so its conditions get a
    // new time; all else is as before.
    let status = |instance: &Value| {
        let mut status = instance["status"].clone();
        for condition in status["conditions"].as_array_mut().unwrap() {
            condition.as_object_mut().unwrap().remove("lastTransitionTime").unwrap();
        }
        status
    };
    let before = scene.ready(of, "one").await;
    for _ in 0..2 {
        apply(text, flags).await;
        until_crd(plural, "augmented again", has_status).await;
        let is_as_before = |now: &Value| is_ready(now) && status(now) == status(&before);
        let now = scene.until("as before", of, "one", is_as_before).await;
        assert_eq!(uid_of(&now), uid_of(&before));
    }
    // The third time it is left as it is, and no instance is written.
    apply(text, flags).await;
    let told = until_event(plural, "CRDFieldManagerConflict").await;
    assert!(told.contains("operetta crd") && told.contains("kubectl"), "{told}");
    assert!(!has_status(&live(plural).await.unwrap()));
    scene.patch(of, "one", "merge", &json!({"spec": {"size": 4}})).await;
    scene.until("the child follows nevertheless", CONFIG_MAP, "one", |o| o["data"]["value"] == "4").await;
    // The remedy that the Event names works.
    apply(&operetta(&["crd", folder]), flags).await;
    until_crd(plural, "as printed", has_status).await;
    let is_settled = |o: &Value| is_ready(o) && condition(o, "CRDFieldManagerConflict")["status"] != "True";
    scene.until("Ready without a conflict", of, "one", is_settled).await;
    until_crd(plural, "left to others", |crd| !owns_spec(crd)).await;
}

async fn crds_that_others_apply_as_printed_are_not_written() {
    let scene = Scene::unmanaged().await;
    for (name, plural) in [("KeptClient", "keptclients"), ("KeptServer", "keptservers")] {
        scene.apply(&instance(name, plural, &json!({"size": 3}))).await;
        scene.ready(kind("crds.example.org/v1", plural), plural).await;
        let crd = live(plural).await.unwrap();
        assert_eq!(crd["metadata"]["generation"], 1, "{plural}");
        assert!(!owns_spec(&crd), "{plural}");
    }
}

async fn an_edited_crd_is_mended() {
    const EDIT: Kind = kind("crds.example.org/v1", "edits");
    let scene = Scene::unmanaged().await;
    scene.apply_ready(EDIT, "one", &instance("Edit", "one", &json!({"size": 3}))).await;
    let right = live("edits").await.unwrap();
    let patch = r#"[{"op": "remove", "path": "/spec/versions/0/subresources"}]"#;
    kubectl(&["patch", "crd", "edits.crds.example.org", "--type=json", "-p", patch]).await.ok();
    let mended =
        until_crd("edits", "mended", |crd| crd["metadata"]["generation"] == 3 && has_status(crd)).await;
    assert_eq!(mended["spec"], right["spec"]);
    // Our labels and annotations are restored as well.
    kubectl(&["label", "crd", "edits.crds.example.org", "operetta.dev/operator-"]).await.ok();
    until_crd("edits", "labelled again", |crd| crd["metadata"]["labels"] == right["metadata"]["labels"])
        .await;
    scene.ready(EDIT, "one").await;
}

async fn a_deleted_crd_takes_its_instances_along_and_comes_back() {
    const GONER: Kind = kind("crds.example.org/v1", "goners");
    let scene = Scene::unmanaged().await;
    scene.apply_ready(GONER, "one", &instance("Goner", "one", &json!({"size": 3}))).await;
    scene.get(CONFIG_MAP, "one-second").await;
    let before = live("goners").await.unwrap();
    kubectl(&["delete", "crd", "goners.crds.example.org", "--wait=false"]).await.ok();
    until_crd("goners", "made anew", |crd| uid_of(crd) != uid_of(&before) && has_status(crd)).await;
    scene.gone(CONFIG_MAP, "one-second").await;
    scene.gone(CONFIG_MAP, "one").await;
    eventually("a new instance", LONG, async || {
        scene.kubectl_input(&["apply", "-f", "-"], &instance("Goner", "two", &json!({}))).await
    })
    .await;
    scene.ready(GONER, "two").await;
    assert!(scene.find(GONER, "one").await.is_none());
}

async fn a_new_default_reaches_what_is_there(crd: &str) {
    const COLOUR: Kind = kind("crds.example.org/v1", "colours");
    let scene = Scene::unmanaged().await;
    let before = scene.apply_ready(COLOUR, "one", &instance("Colour", "one", &json!({}))).await;
    assert_eq!(scene.get(CONFIG_MAP, "one").await["data"]["value"], "none");
    apply(&crd.replace("colour: {type: string}", "colour: {type: string, default: red}"), &[]).await;
    scene.until("red", CONFIG_MAP, "one", |o| o["data"]["value"] == "red").await;
    let after = scene.ready(COLOUR, "one").await;
    assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);
    // The CRD of others is the base: their additions stay.
    let crd = until_crd("colours", "augmented", has_status).await;
    let fields = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(fields["spec"]["properties"]["colour"]["default"], "red");
    assert_eq!(crd["metadata"]["labels"]["app.kubernetes.io/managed-by"], Value::Null);
}

async fn the_kind_of_a_child_comes_later_and_changes() {
    const PARENT: Kind = kind("crds.example.org/v1", "parents");
    const LATE: Kind = kind("crds.example.org/v1", "lates");
    let scene = Scene::unmanaged().await;
    scene.apply(&instance("Parent", "one", &json!({"size": 3}))).await;
    scene.until("its kind missing", PARENT, "one", |o| condition(o, "Ready")["status"] == "False").await;
    // Register a CRD that lacks a field of the child.
    apply(&crd("lates", "Late", &schema("size: {type: integer}")), &[]).await;
    let refused = |o: &Value| condition(o, "Stalled")["reason"] == "ApplyRefused";
    scene.until("refused", PARENT, "one", refused).await;
    // The CRD may have a status, but its schema has no field that shows readiness, so the child is ready at
    // once.
    let whole = schema("size: {type: integer}, extra: {type: string}") + "\nsubresources: {status: {}}";
    apply(&crd("lates", "Late", &whole), &[]).await;
    scene.ready(PARENT, "one").await;
    assert_eq!(scene.get(LATE, "one").await["spec"], json!({"size": 3, "extra": "x"}));
    // While the kind is gone the child is unknown; when it is served again, the child is created again.
    kubectl(&["delete", "crd", "lates.crds.example.org"]).await.ok();
    scene.until("not Ready", PARENT, "one", |o| !is_ready(o)).await;
    apply(&crd("lates", "Late", &whole), &[]).await;
    scene.ready(PARENT, "one").await;
}

/// A CRD with three versions, one of which is stored; the author has set columns for one of them.
const VERSIONS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: olds.crds.example.org}
spec:
  group: crds.example.org
  scope: Namespaced
  names: {kind: Old, plural: olds, listKind: OldList, shortNames: [ol], categories: [all]}
  conversion: {strategy: None}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, default: 7}}}}}}
      additionalPrinterColumns:
        - {name: Size, type: integer, jsonPath: .spec.size}
        - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    - name: v1alpha1
      served: true
      storage: false
      deprecated: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    - name: v1beta1
      served: false
      storage: false
      schema: {openAPIV3Schema: {type: object}}
";

/// A version that uses all features of a schema, with defaults everywhere, the author's own status, and
/// scale.
const RICH: &str = "
subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}}
schema:
  openAPIV3Schema:
    type: object
    required: [spec]
    properties:
      spec:
        type: object
        default: {replicas: 2}
        required: [replicas]
        x-kubernetes-validations:
          - {rule: 'self.replicas <= 9', message: at most nine}
        properties:
          replicas: {type: integer, format: int32, minimum: 0, default: 2}
          port: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}], default: http}
          anything: {x-kubernetes-preserve-unknown-fields: true}
          open: {type: object, x-kubernetes-preserve-unknown-fields: true, default: {a: {b: [1, null]}}}
          embedded: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
          maybe: {type: string, nullable: true}
          never: {type: string, default: x}
          colour: {type: string, enum: [red, '', 'no'], default: ''}
          list:
            type: array
            default: [{name: a}]
            x-kubernetes-list-type: map
            x-kubernetes-list-map-keys: [name, protocol]
            items:
              type: object
              required: [name]
              properties:
                name: {type: string}
                protocol: {type: string, default: TCP}
                weight: {type: number, default: 1.0}
          set: {type: array, x-kubernetes-list-type: set, items: {type: string}, maxItems: 3}
          atomic: {type: object, x-kubernetes-map-type: atomic, additionalProperties: {type: string}}
          map: {type: object, additionalProperties: {type: object, properties: {active: {type: boolean, default: false}}}}
      status:
        type: object
        required: [phase]
        properties:
          phase: {type: string}
          replicas: {type: integer}
          selector: {type: string}
          conditions:
            type: array
            items:
              type: object
              required: [type, severity]
              properties: {type: {type: string, enum: [Up]}, severity: {type: string}}
";

/// A schema of about a megabyte.
fn megabyte() -> String {
    let words = "what this field is about, at some length, as people write it. ".repeat(6);
    let mut fields = String::from("size: {type: integer, default: 5}");
    for number in 0..2_400 {
        let _ = write!(fields, ", field{number}: {{type: string, description: '{number}: {words}'}}");
    }
    schema(&fields)
}

fn traits(all: &mut Packages) {
    let sized = config("spec.size");
    all.add("huges", &crd("huges", "Huge", &megabyte()), false, &[&sized]);
    all.add("olds", VERSIONS.trim_start(), false, &[&sized]);
    // Cluster-scoped, as a package's kind and as the kind of its child.
    let everywhere = crd("wides", "Wide", &schema(SIZE)).replace("Namespaced", "Cluster");
    let here = sized.replace("metadata: {", "metadata: {namespace: default, ");
    all.add("wides", &everywhere, false, &[&here]);
    let child = "apiVersion: crds.example.org/v1\nkind: Rich\nmetadata: {name: \"{{ name }}\"}\nspec: {{ spec.rich | default({}) }}\n";
    let holder = schema("rich: {type: object, x-kubernetes-preserve-unknown-fields: true}");
    all.add("holders", &crd("holders", "Holder", &holder), false, &[child]);
    let shown = config("spec | to_json");
    let folder = all.add("riches", &crd("riches", "Rich", RICH), false, &[&shown]);
    let manifest = PathBuf::from(&folder).join("operator.yaml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(
        manifest,
        text + "      status: {replicas: spec.replicas, seen: {port: spec.port}, selector: \"'app=x'\", phase: \"'Fine'\"}\n",
    )
    .unwrap();
    operetta(&["lint", &folder]);
}

async fn crds_of_all_traits_work() {
    let scene = Scene::unmanaged().await;
    let of = |plural| kind("crds.example.org/v1", plural);
    scene.apply(&instance("Huge", "huge", &json!({"field7": "x"}))).await;
    scene.apply(&instance("Old", "old", &json!({}))).await;
    scene.apply(&instance("Wide", "wide", &json!({}))).await;
    scene.apply(&instance("Rich", "rich", &json!({}))).await;
    let rich = json!({
        "replicas": 3, "port": 80, "anything": [1, "a", {"b": false, "no": null}, null], "maybe": null, "colour": "no",
        "open": {"x": {"y": [true, null], "none": null}, "nothing": null}, "embedded": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "e"}},
        "list": [{"name": "a"}, {"name": "a", "protocol": "UDP", "weight": 0.5}], "set": ["a", "b"],
        "atomic": {"a": "b"}, "map": {"m": {}},
    });
    // Client-side apply omits keys with a null value, so the server would not see them.
    let held = instance("Holder", "held", &json!({"rich": rich.clone()}));
    scene.apply(&held.replace("held", "bereft")).await;
    scene.kubectl_input(&["apply", "--server-side", "-f", "-"], &held).await.unwrap();

    scene.ready(of("huges"), "huge").await;
    assert_eq!(scene.get(CONFIG_MAP, "huge").await["data"]["value"], "5");
    assert!(live("huges").await.unwrap().to_string().len() > 1_000_000);
    scene.ready(of("olds"), "old").await;
    assert_eq!(scene.get(CONFIG_MAP, "old").await["data"]["value"], "7");
    let olds = live("olds").await.unwrap();
    assert_eq!(olds["spec"]["names"]["categories"], json!(["all", "operetta"]), "beside the author's own");
    let versions = olds["spec"]["versions"].as_array().unwrap();
    for (version, columns) in
        versions.iter().zip([&["Size", "Ready", "Age"][..], &["Ready", "Age"], &["Ready", "Age"]])
    {
        let shown: Vec<&str> = version["additionalPrinterColumns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        assert_eq!(shown, columns, "{}", version["name"]);
        assert!(version["subresources"]["status"].is_object(), "{}", version["name"]);
    }
    let old = scene.get(kind("crds.example.org/v1alpha1", "olds"), "old").await;
    assert!(is_ready(&old), "{old:#}");

    // Defaults are filled in as by the server, and the whole status is kept.
    let made = scene.ready(of("riches"), "rich").await;
    let shown = scene.get(CONFIG_MAP, "rich").await;
    let value: Value = serde_json::from_str(shown["data"]["value"].as_str().unwrap()).unwrap();
    assert_eq!(value, made["spec"]);
    assert_eq!(made["spec"]["list"], json!([{"name": "a", "protocol": "TCP", "weight": 1}]));
    assert_eq!(made["status"]["seen"], json!({"port": "http"}));
    assert_eq!(made["status"]["phase"], "Fine");
    let ready = condition(&made, "Ready");
    for field in ["reason", "message", "lastTransitionTime"] {
        assert!(ready[field].is_string(), "{field} of {ready}");
    }
    assert_eq!(ready["observedGeneration"], made["metadata"]["generation"]);
    scene.kubectl(&["scale", "rich", "rich", "--replicas=4"]).await;
    scene.until("scaled", of("riches"), "rich", |o| o["status"]["replicas"] == 4).await;
    let table = scene.kubectl(&["get", "riches"]).await;
    assert!(table.contains("READY") && table.contains("AGE"), "{table}");

    // The child of one package is the instance of another.
    let held = scene.ready(of("holders"), "held").await;
    let child = scene.ready(of("riches"), "held").await;
    assert_eq!(child["spec"]["list"][0], json!({"name": "a", "protocol": "TCP", "weight": 1}));
    assert_eq!(child["spec"]["map"], json!({"m": {"active": false}}));
    for field in ["anything", "open", "maybe"] {
        assert_eq!(child["spec"].get(field), rich.get(field), "{field} of {:#}", child["spec"]);
    }
    let bereft = scene.ready(of("riches"), "bereft").await;
    assert_eq!(bereft["spec"]["open"], json!({"x": {"y": [true, null]}}), "as the instance has it");
    assert_eq!(child["metadata"]["generation"], 1, "applied once: {:#}", child["spec"]);
    assert_eq!(held["metadata"]["generation"], 1);

    let wide = eventually("the cluster-scoped one", LONG, async || {
        let wide = find_in(&*plane_of_tests().await, of("wides"), None, "wide").await;
        wide.filter(is_ready).ok_or("not Ready")
    })
    .await;
    assert_eq!(condition(&wide, "Ready")["status"], "True");
    kubectl(&["delete", "wide", "wide"]).await.ok();
    eventually("the child to be gone", LONG, async || {
        find_in(&*plane_of_tests().await, CONFIG_MAP, Some("default"), "wide").await.map_or(Ok(()), Err)
    })
    .await;
}

#[tokio::test]
async fn a_kind_belongs_to_one_package() {
    let root = tempfile::tempdir().unwrap();
    let plane = own_plane_of_tests().await;
    let text = crd("claims", "Claim", &schema(SIZE));
    let shown = config("spec.size");
    let first = package(root.path(), "first", &text, false, &[&shown]);
    let second = package(root.path(), "second", &text, false, &[&shown]);
    let mut manager = run(&plane, &[&first, &second]).watching(1).await;
    manager.wait_for("belongs to the package first", LONG).await;
    let owner = || async {
        let crd = find_in(&plane, CRD, None, "claims.crds.example.org").await.unwrap();
        crd["metadata"]["labels"]["operetta.dev/operator"].as_str().map(str::to_owned)
    };
    assert_eq!(owner().await.as_deref(), Some("first"));
    // While the first package is active, the CRD stays its own even without its label.
    let release = ["label", "crd", "claims.crds.example.org", "operetta.dev/operator-"];
    kubectl_of(&plane, &release, "").await.ok();
    eventually("the label", LONG, async || owner().await.filter(|o| o == "first").ok_or("none")).await;
    manager.kill9();

    let other = package(root.path(), "other", &crd("others", "Other", &schema(SIZE)), false, &[&shown]);
    let mut manager = run(&plane, &[&second, &other]);
    manager.wait_for("belongs to the package first", LONG).await;
    let manager = manager.watching(2).await;
    kubectl_of(&plane, &release, "").await.ok();
    eventually("the second has it", LONG, async || owner().await.filter(|o| o == "second").ok_or("none"))
        .await;
    let made = json!({"apiVersion": "crds.example.org/v1", "kind": "Claim", "metadata": {"name": "one"}, "spec": {}});
    kubectl_of(&plane, &["apply", "-f", "-"], &made.to_string()).await.ok();
    eventually("its instance", LONG, async || {
        let claim = find_in(&plane, kind("crds.example.org/v1", "claims"), Some("default"), "one").await;
        claim.filter(is_ready).ok_or_else(|| manager.output())
    })
    .await;
}

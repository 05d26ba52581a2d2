//! Tables of who has written a CRD, and what is made of it.

use std::path::Path;

use super::*;

fn package(adopt: bool) -> Package {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("crds/crd.yaml", &serde_json::to_string(&plain_crd()).unwrap());
    write(
        "templates/c.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\ndata: {a: b}\n",
    );
    write(
        "operator.yaml",
        &format!(
            "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: p}}\nspec:\n  version: 0.1.0\n  \
             resources:\n    - crd: crds/crd.yaml\n      adopt: {adopt}\n      children: [{{id: c, template: templates/c.yaml}}]\n"
        ),
    );
    crate::package::load(folder.path()).unwrap().0
}

fn plain_crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "ws.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced", "names": {"kind": "W", "plural": "ws"},
            "versions": [{"name": "v1", "served": true, "storage": true, "deprecated": false,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"size": {"type": "number", "default": 1.0, "nullable": false}}}}}}}],
        },
    })
}

const OURS: Ours<'_> = Ours { lease: "n/operetta", namespace: "n", spent: &Spent::NOTHING };
const SPEC: [&str; 4] = ["f:group", "f:names", "f:scope", "f:versions"];

fn entry(manager: &str, operation: &str, fields: &[&str]) -> Value {
    let spec: Map<String, Value> = fields.iter().map(|f| ((*f).to_owned(), json!({}))).collect();
    json!({"manager": manager, "operation": operation, "fieldsV1": {"f:spec": spec}})
}

/// A live CRD of that text, written by these.
fn live(text: &Value, labelled: bool, entries: &[Value]) -> Value {
    let mut live = text.clone();
    live["metadata"]["uid"] = "u".into();
    live["metadata"]["resourceVersion"] = "7".into();
    live["metadata"]["managedFields"] = entries.into();
    if labelled {
        live["metadata"]["labels"][names::OPERATOR] = "p".into();
        live["metadata"]["annotations"][names::CHILD_KINDS] = "v1/ConfigMap".into();
        live["metadata"]["annotations"][names::MANAGER] = OURS.lease.into();
        live["metadata"]["annotations"][names::CHILD_NAMESPACES] = "".into();
        register(&mut live);
    }
    live
}

/// With the label as the registrar applies it.
fn register(live: &mut Value) {
    let label = json!({"f:labels": {format!("f:{}", names::OPERATOR): {}}});
    let entries = live["metadata"]["managedFields"].as_array_mut().unwrap();
    let is_ours = |entry: &&mut Value| entry["manager"] == MANAGER && entry["operation"] == "Apply";
    match entries.iter_mut().find(is_ours) {
        Some(ours) => ours["fieldsV1"]["f:metadata"] = label,
        None => {
            entries
                .push(json!({"manager": MANAGER, "operation": "Apply", "fieldsV1": {"f:metadata": label}}));
        }
    }
}

fn wrong(package: &Package, live: Option<&Value>) -> Wrong {
    match stand(live, package, &package.resources[0], OURS) {
        Stand::Wrong(wrong) => *wrong,
        other => panic!("{other:?}"),
    }
}

fn refused(package: &Package, live: &Value) -> &'static str {
    match stand(Some(live), package, &package.resources[0], OURS) {
        Stand::Refused(problem) => problem.code,
        other => panic!("{other:?}"),
    }
}

/// What has been applied, as the server shows it then.
fn applied(body: &Value) -> Value {
    let mut live = body.clone();
    live["metadata"]["managedFields"] = json!([entry("operetta", "Apply", &SPEC)]);
    live["spec"]["names"]["listKind"] = "WList".into();
    live["spec"]["conversion"] = json!({"strategy": "None"});
    live["spec"]["versions"][0].as_object_mut().unwrap().remove("deprecated");
    register(&mut live);
    live
}

#[test]
fn an_absent_crd_is_made_whole_and_then_it_is_right() {
    let package = package(false);
    let body = wrong(&package, None).body("ws.example.org", None, true);
    assert_eq!(body["metadata"]["resourceVersion"], "1");
    assert_eq!(body["spec"].as_object().unwrap().len(), 4);
    assert!(has_status(&body, "v1"));
    let live = applied(&body);
    assert!(matches!(stand(Some(&live), &package, &package.resources[0], OURS), Stand::Right));
    // Somebody has taken the label off and put it back: it is theirs now, and is applied once more.
    let mut relabelled = live.clone();
    relabelled["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"].take();
    assert!(!wrong(&package, Some(&relabelled)).spec_differs);
    let mut going = live;
    going["metadata"]["deletionTimestamp"] = "x".into();
    assert!(matches!(stand(Some(&going), &package, &package.resources[0], OURS), Stand::Going));
}

#[test]
fn what_others_keep_as_printed_is_left_to_them() {
    for adopt in [false, true] {
        let package = package(adopt);
        let mut printed = package.resources[0].augmented_crd();
        printed["metadata"]["labels"][names::OPERATOR] = "p".into();
        let live = live(&printed, true, &[entry("kubectl", "Apply", &SPEC)]);
        let wrong = wrong(&package, Some(&live));
        assert!(!wrong.spec_differs, "adopt: {adopt}");
        let body = wrong.body("ws.example.org", Some(&live), wrong.spec_differs);
        assert_eq!(body.get("spec"), None, "adopt: {adopt}");
        assert_eq!(
            (&body["metadata"]["uid"], &body["metadata"]["resourceVersion"]),
            (&json!("u"), &json!("7"))
        );
    }
}

#[test]
fn anothers_text_is_the_base_if_the_package_adopts() {
    let mut theirs = plain_crd();
    theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["more"] =
        json!({"type": "string"});
    let git = [entry("kubectl-client-side-apply", "Update", &SPEC)];
    let unlabelled = live(&theirs, false, &git);
    assert_eq!(refused(&package(false), &unlabelled), "crd::foreign");

    let package = package(true);
    let wrong = wrong(&package, Some(&unlabelled));
    let body = wrong.body("ws.example.org", Some(&unlabelled), true);
    assert!(has_status(&body, "v1"));
    assert_eq!(body["spec"].as_object().unwrap().keys().collect::<Vec<_>>(), ["versions"]);
    let schema = &body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(schema["spec"]["properties"]["more"], json!({"type": "string"}));
    assert_eq!(body["metadata"]["labels"].as_object().unwrap().len(), 1, "Helm's managed-by stays");
    assert_eq!(body["metadata"]["annotations"][names::CRD_BASE], "kubectl-client-side-apply");

    // Once written by us it is still theirs; and what only we own of it is never left out.
    let mut ours = live(
        &theirs,
        true,
        &[entry("kubectl-client-side-apply", "Update", &SPEC[..3]), entry("operetta", "Apply", &SPEC[3..])],
    );
    ours["metadata"]["annotations"][names::CRD_BASE] = "kubectl-client-side-apply".into();
    ours["spec"]["versions"] = body["spec"]["versions"].clone();
    assert!(matches!(stand(Some(&ours), &package, &package.resources[0], OURS), Stand::Right));
    ours["metadata"]["labels"] = json!({});
    let unlabelled = super::stand(Some(&ours), &package, &package.resources[0], OURS);
    let Stand::Wrong(wrong) = unlabelled else { panic!("{unlabelled:?}") };
    assert!(!wrong.spec_differs);
    let body = wrong.body("ws.example.org", Some(&ours), false);
    assert_eq!(body["spec"].as_object().unwrap().keys().collect::<Vec<_>>(), ["versions"]);
}

#[test]
fn what_a_package_must_not_have() {
    let package = package(true);
    let entries = [entry("kubectl", "Apply", &SPEC)];
    let changed = |pointer: &str, value: Value| {
        let mut crd = live(&plain_crd(), false, &entries);
        *crd.pointer_mut(pointer).unwrap() = value;
        crd
    };
    assert_eq!(refused(&package, &changed("/spec/names/kind", "X".into())), "crd::mismatch");
    assert_eq!(refused(&package, &changed("/spec/scope", "Cluster".into())), "crd::mismatch");
    assert_eq!(refused(&package, &changed("/spec/versions/0/served", false.into())), "crd::mismatch");
    let mut claimed = live(&plain_crd(), true, &entries);
    claimed["metadata"]["labels"][names::OPERATOR] = "q".into();
    assert_eq!(refused(&package, &claimed), "crd::claimed");
    // A label that its package has not applied says nothing: it is anybody's CRD.
    let mut forged = live(&plain_crd(), false, &entries);
    forged["metadata"]["labels"][names::OPERATOR] = "q".into();
    assert!(matches!(stand(Some(&forged), &package, &package.resources[0], OURS), Stand::Wrong(_)));
    let not_adopting = self::package(false);
    assert_eq!(refused(&not_adopting, &forged), "crd::foreign");
    // Nor is a child of an instance anybody's to register.
    let mut child = forged.clone();
    child["metadata"]["labels"][names::INSTANCE_UID] = "u".into();
    let labels = json!({format!("f:{}", names::INSTANCE_UID): {}});
    child["metadata"]["managedFields"] = json!([{"manager": "operetta/q", "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": labels}}}]);
    for package in [&package, &not_adopting] {
        assert_eq!(refused(package, &child), "crd::child");
    }
}

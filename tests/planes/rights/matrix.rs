//! Who may do what: every actor, object and verb, as the authorizer of a real API server answers, compared
//! with a table. Decisions of admission policies are tested in `plan_runs.rs`, `protection.rs` and
//! `confined.rs`.

use std::fmt::Write as _;

use operetta::rights;
use serde_json::{Value, json};

use super::shared_plane;
use crate::support::rights::{SYSTEM, apply, binding, grant, role, user};
use crate::support::{Actor, Kind, LONG, eventually, file, fixture, kind};

/// The file with the table. `OPERETTA_UPDATE=1` writes it.
const TABLE: &str = "tests/planes/rights/matrix.txt";
const TEAM: &str = "team";
const REVIEW: Kind = kind("authorization.k8s.io/v1", "subjectaccessreviews");
const FIXTURES: &str = "fixtures.operetta.dev";

const WRITES: [&str; 7] = ["get", "list", "watch", "create", "update", "patch", "delete"];

/// Group, resource, subresource, namespace and name of an object; empty is none.
type Object = (&'static str, &'static str, &'static str, &'static str, &'static str);

static OBJECTS: [Object; 24] = [
    ("operetta.dev", "planruns", "", TEAM, ""),
    ("operetta.dev", "planruns", "status", TEAM, ""),
    ("operetta.dev", "instancestates", "", TEAM, ""),
    ("operetta.dev", "operators", "", "", ""),
    ("operetta.dev", "operators", "status", "", ""),
    ("operetta.dev", "operatorrevisions", "", "", ""),
    ("operetta.dev", "packagepolicies", "", "", ""),
    ("apps", "controllerrevisions", "", TEAM, ""),
    ("apiextensions.k8s.io", "customresourcedefinitions", "", "", "planruns.operetta.dev"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "", "", "errands.fixtures.operetta.dev"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "status", "", "errands.fixtures.operetta.dev"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "", "", "foreign.example.com"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", "", "", "planruns.operetta.dev"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", "", "", "planruns.operetta.dev"),
    (
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
        "",
        "",
        "operetta-system.manager.operetta.dev",
    ),
    ("", "secrets", "", SYSTEM, "operetta-generated-data"),
    ("", "secrets", "", SYSTEM, "operetta-pull"),
    ("", "secrets", "", SYSTEM, "other"),
    ("", "secrets", "", TEAM, ""),
    ("", "serviceaccounts", "token", SYSTEM, "operetta"),
    ("", "serviceaccounts", "", SYSTEM, "operetta-plan-commands"),
    (FIXTURES, "errands", "", TEAM, ""),
    (FIXTURES, "errands", "status", TEAM, ""),
    ("", "configmaps", "", TEAM, ""),
];

/// The verbs of Kubernetes, and those that admission policies check.
fn verbs(resource: &str) -> Vec<&'static str> {
    let more: &[&str] = match resource {
        "errands" => &["run", "approve"],
        "instancestates" => &["restore"],
        "serviceaccounts" => &["impersonate"],
        _ => &[],
    };
    WRITES.iter().chain(more).copied().collect()
}

/// What a user may do, as one line for each object.
async fn row(plane: &crate::support::ControlPlane, actor: &str, groups: &[&str]) -> String {
    let attributes = |object: &Object, verb: &str| {
        let (group, resource, subresource, namespace, name) = *object;
        let all = [
            ("group", group),
            ("resource", resource),
            ("subresource", subresource),
            ("namespace", namespace),
            ("name", name),
            ("verb", verb),
        ];
        all.into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| (key.to_owned(), Value::from(value)))
            .collect::<serde_json::Map<String, Value>>()
    };
    let questions: Vec<(&Object, &str)> = OBJECTS
        .iter()
        .flat_map(|object| verbs(object.1).into_iter().map(move |verb| (object, verb)))
        .collect();
    let admin = Actor::admin(plane);
    let mut answers = Vec::new();
    for (object, verb) in &questions {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": actor, "groups": groups, "resourceAttributes": attributes(object, verb)}});
        answers.push(admin.create(REVIEW, None, &review).await.unwrap());
    }
    let mut text = String::new();
    for object in &OBJECTS {
        let (_, resource, subresource, namespace, name) = *object;
        let may = questions
            .iter()
            .zip(&answers)
            .filter(|((of, _), answer)| *of == object && answer["status"]["allowed"] == true);
        let may: Vec<&str> = may.map(|((_, verb), _)| *verb).collect();
        let place =
            [namespace, name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
        let kind =
            if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
        writeln!(text, "{kind} {place} [{}]", may.join(" ")).unwrap();
    }
    text
}

#[tokio::test]
async fn each_actor_may_do_what_the_table_says() {
    let (plane, _) = shared_plane().await;
    grant(plane, &[&fixture("plan-commands")], |_| {}).await;
    let every = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let installs = json!([{"apiGroups": ["operetta.dev"], "resources": ["operators", "operatorrevisions"], "verbs": ["*"]}]);
    let in_team = |role: (&str, &str)| binding(Some(TEAM), role, role.1);
    let objects = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}),
        role(Some(TEAM), "owner", &every),
        role(None, "installer", &installs),
        binding(None, ("ClusterRole", "installer"), "installer"),
        in_team(("ClusterRole", "view")),
        in_team(("ClusterRole", "edit")),
        in_team(("ClusterRole", "admin")),
        in_team(("Role", "owner")),
    ];
    apply(plane, &objects).await;
    let accounts = ["system:serviceaccounts", "system:authenticated"];
    let (of_package, of_manager) = (user("operetta-plan-commands"), user(rights::MANAGER));
    let nobody = format!("system:serviceaccount:{TEAM}:default");
    let actors: [(&str, &[&str]); 8] = [
        ("view", &["system:authenticated"]),
        ("edit", &["system:authenticated"]),
        ("admin", &["system:authenticated"]),
        ("owner", &["system:authenticated"]),
        ("installer", &["system:authenticated"]),
        (&of_package, &accounts),
        (&of_manager, &accounts),
        (&nobody, &accounts),
    ];
    let update = std::env::var_os("OPERETTA_UPDATE").is_some();
    let expected = if update { String::new() } else { file(TABLE) };
    // The rules of a package are aggregated into the cluster's roles a moment later.
    let mut last = String::new();
    let settled = eventually("the rights of the table", LONG, async || {
        let mut table = String::new();
        for (actor, groups) in actors {
            write!(table, "# {actor}\n{}\n", row(plane, actor, groups).await).unwrap();
        }
        let is_settled = if update { table == last && table.contains("approve") } else { table == expected };
        last.clone_from(&table);
        if is_settled { Ok(table) } else { Err(format!("{table}\nOPERETTA_UPDATE=1 writes {TABLE}")) }
    })
    .await;
    if update {
        std::fs::write(TABLE, settled).unwrap();
    }
}

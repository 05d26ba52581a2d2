//! The marks of Operetta: labels, annotations and finalizers `operetta.dev/*`. Who may set which on what, as a real API server
//! answers, compared with a table; and what the owner of a namespace may set harms nobody else.
//!
//! The marks are those that the sources name, so that a new one is tried, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use futures::{StreamExt as _, stream};
use operetta::rights::{self, confinement, role_of_revision};
use serde_json::{Value, json};

use super::strict_plane;
use crate::support::barrier::Address;
use crate::support::ext::{
    CLUSTER_ROLE, CONFIG_MAP, CRD, ERRAND, JOB, Kind, LONG, OPERATOR, REVISION, ROLE, ROLE_BINDING, SECRET,
    SERVICE_ACCOUNT, Scene, condition, file, find_in, fixture, is_ready, kind, list, name_of, read, uid_of,
};
use crate::support::plans::{CONTROLLER_REVISION, INSTANCE_STATE, PLAN_RUN, is_over, story_of};
use crate::support::rights::{SYSTEM, apply, binding, manager, role, run_operators, user};
use crate::support::{Actor, ControlPlane, Operetta, eventually, namespace_on, operetta};

/// The file with the table. `OPERETTA_UPDATE=1` writes it.
const TABLE: &str = "tests/planes/rights/marks.txt";
const POLICY: Kind = kind("operetta.dev/v1alpha1", "packagepolicies");
/// Where an object has marks.
const SORTS: [&str; 3] = ["annotations", "labels", "finalizers"];

/// All texts of the sources that can be marks.
fn marks() -> Vec<String> {
    fn texts(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                texts(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for (start, _) in text.match_indices("\"operetta.dev/") {
                    let rest = &text[start + "\"operetta.dev/".len()..];
                    let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
                    let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
                    if !name.is_empty() && rest[name.len()..].starts_with('"') {
                        // The mark `recreating-` ends with a hash.
                        let hash = if name.ends_with('-') { "0123456789abcdef" } else { "" };
                        found.insert(format!("operetta.dev/{name}{hash}"));
                    }
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    texts(Path::new("src"), &mut found);
    for known in ["operetta.dev/state", "operetta.dev/taken", "operetta.dev/instance-uid"] {
        assert!(found.contains(known), "{found:?}");
    }
    found.into_iter().collect()
}

/// A cluster as the installation makes it, in which a package runs as its account.
struct Stage {
    plane: Arc<ControlPlane>,
    process: Operetta,
}

impl Stage {
    async fn new() -> Self {
        let plane = strict_plane().await;
        let kubeconfig = manager(&plane).await;
        apply(&plane, &confinement::objects(SYSTEM)).await;
        let process = run_operators(&plane, &kubeconfig).await;
        let install = ["install", &fixture("plan-commands"), "--accept-rights"];
        operetta(plane.kubeconfig_path(), &install).await.ok();
        Self { plane, process }
    }

    /// A namespace with an instance `a`, one run of it that asks and one that has ended. Returns it with their names.
    async fn furnished(&self) -> (Scene, String, String) {
        let scene = Scene::of(&self.plane, namespace_on(&self.plane).await);
        scene.apply_ready(ERRAND, "a", &errand("a").to_string()).await;
        let request =
            async |plan: &str, params: Value| scene.request(("Errand", ERRAND), "a", plan, &params).await;
        let ended = request("greet", json!({"to": "all"})).await;
        scene.run_is(&ended, "Succeeded").await;
        let asking = request("ask", Value::Null).await;
        let asks = |run: &Value| story_of(run).contains("One?") && story_of(run).contains("Two?");
        scene.until("the questions", PLAN_RUN, &asking, asks).await;
        (scene, asking, ended)
    }

    /// Lets a user do everything in a namespace that RBAC can let them do.
    async fn owned_by(&self, scene: &Scene, owner: &str) {
        let here = Some(scene.namespace());
        let all = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
        apply(&self.plane, &[role(here, owner, &all), binding(here, ("Role", owner), owner)]).await;
        eventually("the owner's rights", LONG, async || {
            let patch = json!({"metadata": {"annotations": {"example.com/probe": "x"}}});
            Actor::new(&self.plane, owner).patch(ERRAND, Some(scene.namespace()), "a", &patch).await
        })
        .await;
    }
}

fn errand(name: &str) -> Value {
    json!({"apiVersion": ERRAND.api_version(), "kind": "Errand", "metadata": {"name": name}, "spec": {}})
}

fn run_by(user: &str) -> Value {
    json!({"apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun", "metadata": {"name": "new"},
        "spec": {"of": {"apiVersion": ERRAND.api_version(), "kind": "Errand", "resource": "errands", "name": "a"},
            "plan": "ask", "requestedBy": user}})
}

/// An object that a user writes.
struct Target {
    what: &'static str,
    kind: Kind,
    namespace: Option<String>,
    name: String,
    /// What is created; otherwise the object exists.
    body: Option<Value>,
}

impl Target {
    /// Sends the object with this metadata, as a dry run.
    async fn send(&self, actor: &Actor<'_>, metadata: Value) -> Result<Value, String> {
        let namespace = self.namespace.as_deref();
        match &self.body {
            Some(body) => {
                let mut body = body.clone();
                body["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
                actor.create(self.kind, namespace, &body).await
            }
            None => actor.patch(self.kind, namespace, &self.name, &json!({"metadata": metadata})).await,
        }
    }

    /// Which of the marks the actor may set, and which they may take away: one line.
    async fn line(&self, actor: &Actor<'_>, marks: &[String]) -> String {
        let (word, verb) = if self.body.is_some() { ("create", "create") } else { ("change", "patch") };
        let mut line = format!("{word} {}:", self.what);
        let plain = self.send(actor, json!({"annotations": {"example.com/a": "b"}})).await;
        let is_forbidden = |told: &String| told.contains(&format!("cannot {verb} resource"));
        if plain.as_ref().is_err_and(is_forbidden) {
            return line + " no right";
        }
        let word = |may: bool| if may { "yes" } else { "no" };
        write!(line, " others {}", word(plain.is_ok())).unwrap();
        let live = match &self.body {
            Some(_) => Value::Null,
            None => {
                read(&actor.client(), &self.kind.path(self.namespace.as_deref(), &self.name)).await.unwrap()
            }
        };
        let finalizers = |change: &dyn Fn(&mut Vec<String>)| {
            let mut all: Vec<String> =
                serde_json::from_value(live["metadata"]["finalizers"].clone()).unwrap_or_default();
            change(&mut all);
            json!({"finalizers": all})
        };
        for sort in SORTS {
            let found = &live["metadata"][sort];
            let is_there = |mark: &&String| {
                let is_it = |name: &Value| name.as_str() == Some(mark);
                found.get(mark.as_str()).is_some()
                    || found.as_array().is_some_and(|all| all.iter().any(is_it))
            };
            let (there, absent): (Vec<&String>, Vec<&String>) = marks.iter().partition(|mark| is_there(mark));
            let with = |mark: &String| match sort {
                "finalizers" => finalizers(&|all| all.push(mark.clone())),
                _ => json!({sort: {mark: "x"}}),
            };
            let without = |mark: &String| match sort {
                "finalizers" => finalizers(&|all| all.retain(|name| name != mark)),
                _ => json!({sort: {mark: null}}),
            };
            write!(line, "; {sort} {}", self.may(actor, &absent, with).await).unwrap();
            if !there.is_empty() {
                write!(line, ", off {}", self.may(actor, &there, without).await).unwrap();
            }
        }
        let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}]);
        write!(line, "; owners {}", word(self.send(actor, json!({"ownerReferences": owner})).await.is_ok()))
            .unwrap();
        if self.body.is_none() && self.kind.group().ends_with("operetta.dev") {
            let name = format!("{}/status", self.name);
            let sent = actor.patch(self.kind, self.namespace.as_deref(), &name, &json!({"status": {}})).await;
            write!(line, "; status {}", word(sent.is_ok())).unwrap();
        }
        line
    }

    /// With which of the marks the actor may send the object.
    async fn may(&self, actor: &Actor<'_>, marks: &[&String], metadata: impl Fn(&String) -> Value) -> String {
        let tries = marks.iter().map(|mark| {
            let metadata = metadata(mark);
            async move { self.send(actor, metadata).await.is_ok().then_some(*mark) }
        });
        let allowed: Vec<Option<&String>> = stream::iter(tries).buffered(16).collect().await;
        summary(&allowed.into_iter().flatten().collect::<Vec<_>>(), marks)
    }
}

/// Few words for some of the marks.
fn summary(some: &[&String], all: &[&String]) -> String {
    let short = |marks: &[&String]| {
        let short = marks.iter().map(|mark| mark.trim_start_matches("operetta.dev/"));
        short.collect::<Vec<_>>().join(" ")
    };
    let others: Vec<&String> = all.iter().filter(|mark| !some.contains(mark)).copied().collect();
    match (some.len(), others.len()) {
        (0, _) => "none".to_owned(),
        (_, 0) => "all".to_owned(),
        (few, many) if few <= many => short(some),
        _ => format!("all but {}", short(&others)),
    }
}

/// The objects whose marks decide something. `user` creates what is new.
async fn targets(stage: &Stage, scene: &Scene, (asking, ended): (&str, &str), user: &str) -> Vec<Target> {
    let here = Some(scene.namespace().to_owned());
    let of = |what, kind, namespace: &Option<String>, name: &str, body| Target {
        what,
        kind,
        namespace: namespace.clone(),
        name: name.to_owned(),
        body,
    };
    let first = async |kind: Kind, namespace: Option<&str>| {
        let all = read(&scene.client(), kind.path(namespace, "").trim_end_matches('/')).await.unwrap();
        name_of(&all["items"][0]).to_owned()
    };
    let copy = async |kind: Kind, namespace: Option<&str>, name: &str| {
        let mut object = find_in(&stage.plane, kind, namespace, name).await.unwrap();
        object["metadata"] = json!({"name": "new"});
        object.as_object_mut().unwrap().remove("status");
        object
    };
    let state = first(INSTANCE_STATE, here.as_deref()).await;
    let revision = first(REVISION, None).await;
    let named = |api: &str, kind: &str| json!({"apiVersion": api, "kind": kind, "metadata": {"name": "new"}});
    vec![
        of("PlanRun", PLAN_RUN, &here, "", Some(run_by(user))),
        of("PlanRun that asks", PLAN_RUN, &here, asking, None),
        of("PlanRun that has ended", PLAN_RUN, &here, ended, None),
        of(
            "InstanceState",
            INSTANCE_STATE,
            &here,
            "",
            Some(copy(INSTANCE_STATE, here.as_deref(), &state).await),
        ),
        of("InstanceState", INSTANCE_STATE, &here, &state, None),
        of("instance", ERRAND, &here, "", Some(errand("new"))),
        of("instance", ERRAND, &here, "a", None),
        of("ConfigMap", CONFIG_MAP, &here, "", Some(named("v1", "ConfigMap"))),
        of("child", CONFIG_MAP, &here, "a", None),
        of(
            "ControllerRevision",
            CONTROLLER_REVISION,
            &here,
            "",
            Some(json!({"apiVersion": "apps/v1",
            "kind": "ControllerRevision", "metadata": {"name": "new"}, "data": {}, "revision": 1})),
        ),
        of("Operator", OPERATOR, &None, "plan-commands", None),
        of("OperatorRevision", REVISION, &None, "", Some(copy(REVISION, None, &revision).await)),
        of("OperatorRevision", REVISION, &None, &revision, None),
        of(
            "PackagePolicy",
            POLICY,
            &None,
            "",
            Some(json!({"apiVersion": POLICY.api_version(),
            "kind": "PackagePolicy", "metadata": {"name": "new"},
            "spec": {"prefix": "example.com/a", "unsigned": true}})),
        ),
        of("role of the revision", CLUSTER_ROLE, &None, &role_of_revision("plan-commands", &revision), None),
        of("CRD of the package", CRD, &None, "errands.fixtures.operetta.dev", None),
    ]
}

#[tokio::test]
async fn each_actor_may_set_the_marks_that_the_table_says() {
    let stage = Stage::new().await;
    let (scene, asking, ended) = stage.furnished().await;
    for owner in ["owner", "restorer"] {
        stage.owned_by(&scene, owner).await;
    }
    let on_own_kinds = |name: &str, resources: &[&str], verb: &str| {
        let rules = json!([{"apiGroups": ["operetta.dev"], "resources": resources, "verbs": [verb]}]);
        [role(None, name, &rules), binding(None, ("ClusterRole", name), name)]
    };
    let restorer = on_own_kinds("restorer", &["instancestates"], "restore");
    let installer = on_own_kinds("installer", &["operators", "operatorrevisions", "packagepolicies"], "*");
    let edit = binding(Some(scene.namespace()), ("ClusterRole", "edit"), "edit");
    apply(&stage.plane, &[&restorer[..], &installer, &[edit]].concat()).await;
    let accounts = ["system:serviceaccounts", "system:authenticated"];
    let (of_package, of_manager) = (user("operetta-plan-commands"), user(rights::MANAGER));
    let actors: [(&str, &[&str]); 6] = [
        ("edit", &["system:authenticated"]),
        ("owner", &["system:authenticated"]),
        ("restorer", &["system:authenticated"]),
        ("installer", &["system:authenticated"]),
        (&of_package, &accounts),
        (&of_manager, &accounts),
    ];
    let in_effect = async |what: &str, user: &str, kind: Kind, namespace: Option<&str>, name: &str| {
        let patch = json!({"metadata": {"annotations": {"example.com/a": "b"}}});
        let actor = Actor::new(&stage.plane, user).in_dry_runs();
        eventually(what, LONG, async || actor.patch(kind, namespace, name, &patch).await).await;
    };
    // What is applied is in effect a moment later.
    in_effect("the role edit", "edit", ERRAND, Some(scene.namespace()), "a").await;
    in_effect("the role installer", "installer", OPERATOR, None, "plan-commands").await;
    let state = name_of(&scene.list(INSTANCE_STATE).await[0]).to_owned();
    in_effect("the role restorer", "restorer", INSTANCE_STATE, Some(scene.namespace()), &state).await;
    let marks = marks();
    let update = std::env::var_os("OPERETTA_UPDATE").is_some();
    let expected = if update { String::new() } else { file(TABLE) };
    let mut last = String::new();
    let settled = eventually("the marks of the table", LONG, async || {
        let mut table = String::new();
        for (name, groups) in actors {
            writeln!(table, "# {name}").unwrap();
            let actor = Actor::new(&stage.plane, name).in_groups(groups).in_dry_runs();
            for target in targets(&stage, &scene, (&asking, &ended), name).await {
                writeln!(table, "{}", target.line(&actor, &marks).await).unwrap();
            }
            table.push('\n');
        }
        let is_settled = if update { table == last } else { table == expected };
        last.clone_from(&table);
        if is_settled { Ok(table) } else { Err(format!("{table}\nOPERETTA_UPDATE=1 writes {TABLE}")) }
    })
    .await;
    if update {
        std::fs::write(TABLE, settled).unwrap();
    }
}

/// The objects of a namespace, and those of the package in the cluster: their versions, by kind and name.
async fn picture(scene: &Scene) -> BTreeMap<String, String> {
    let here = Some(scene.namespace());
    let mut versions = BTreeMap::new();
    for (kind, namespace) in [
        (ERRAND, here),
        (CONFIG_MAP, here),
        (JOB, here),
        (PLAN_RUN, here),
        (INSTANCE_STATE, here),
        (CONTROLLER_REVISION, here),
        (OPERATOR, None),
        (REVISION, None),
        (CRD, None),
        (CLUSTER_ROLE, None),
        (kind(CLUSTER_ROLE.api_version(), "clusterrolebindings"), None),
        (ROLE, Some(SYSTEM)),
        (ROLE_BINDING, Some(SYSTEM)),
        (SERVICE_ACCOUNT, Some(SYSTEM)),
        (SECRET, Some(SYSTEM)),
        (CONFIG_MAP, Some(SYSTEM)),
    ] {
        let all = read(&scene.client(), kind.path(namespace, "").trim_end_matches('/')).await.unwrap();
        for object in all["items"].as_array().unwrap() {
            // The status of an Operator counts instances.
            let field = if kind.plural == OPERATOR.plural { "generation" } else { "resourceVersion" };
            versions.insert(
                format!("{} {}", kind.plural, name_of(object)),
                object["metadata"][field].to_string(),
            );
        }
    }
    versions
}

/// Values that somebody might try: uids and names of others, switches, and what can be read in no way.
fn values(victim: &Value, own: &Value) -> Vec<String> {
    let meta = |field: &str| victim["metadata"][field].as_str().unwrap().to_owned();
    let mut values = vec![meta("uid"), meta("namespace"), meta("name"), uid_of(own).to_owned()];
    values.extend(
        ["true", "false", "", "18446744073709551616", "Errand.fixtures.operetta.dev", "abc.0.retain"]
            .map(str::to_owned),
    );
    values.extend(["*", "{\"a\":", "[null]", "\u{1b}[31m\n::error::x", "../../a,,b"].map(str::to_owned));
    values
}

#[tokio::test]
async fn marks_that_an_owner_sets_harm_nobody_else() {
    let stage = Stage::new().await;
    let (own, asking, ended) = stage.furnished().await;
    let (others, question, _) = stage.furnished().await;
    stage.owned_by(&own, "mallory").await;
    own.apply_ready(ERRAND, "b", &errand("b").to_string()).await;
    let working = own.request(("Errand", ERRAND), "b", "work", &Value::Null).await;
    let job = eventually("the Job of a step", LONG, async || {
        own.list(JOB).await.first().map(|job| name_of(job).to_owned()).ok_or("none")
    })
    .await;
    let foreign = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "foreign"}});
    own.apply(&foreign.to_string()).await;
    let address = Address::of(&stage.process);
    for scene in [&own, &others] {
        scene.idle(&address).await;
    }
    let (victim, mine) = (others.get(ERRAND, "a").await, own.get(ERRAND, "b").await);
    let (before, mark) = (picture(&others).await, stage.plane.audit().mark().unwrap());

    let mallory = Actor::new(&stage.plane, "mallory");
    let here = Some(own.namespace());
    let marks = marks();
    let values = values(&victim, &mine);
    // Each object, and whether an owner of the namespace may set marks on it.
    let targets = [
        (ERRAND, "a", true),
        (ERRAND, "b", true),
        (CONFIG_MAP, "a", true),
        (CONFIG_MAP, "foreign", true),
        (JOB, &*job, true),
        (PLAN_RUN, &*asking, false),
        (PLAN_RUN, &*ended, false),
        (PLAN_RUN, &*working, false),
    ];
    let set = async |kind: Kind, name: &str, value: &dyn Fn(usize, &str) -> Value| {
        let of = |sort: &str| -> Value {
            marks.iter().enumerate().map(|(number, mark)| (mark.clone(), value(number, sort))).collect()
        };
        let patch = json!({"metadata": {"annotations": of("annotations"), "labels": of("labels")}});
        mallory.patch(kind, here, name, &patch).await
    };
    // In the end each mark has had each value.
    for round in 0..values.len() {
        for (kind, name, may) in targets {
            let value = |number: usize, sort: &str| {
                let value = &values[(number + round) % values.len()];
                let is_label = value.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c));
                json!(if sort == "labels" && !is_label { "x" } else { value })
            };
            match set(kind, name, &value).await {
                Ok(_) => assert!(may, "{name} takes marks"),
                // The manager may have deleted the Job or the child, and creates the latter again.
                Err(told) if may => assert!(told.starts_with("404"), "{name}: {told}"),
                Err(told) => assert!(told.contains("only the manager sets"), "{name}: {told}"),
            }
        }
        let stage_of = json!({"spec": {"stage": format!("round-{round}")}});
        for name in ["a", "b"] {
            mallory.patch(ERRAND, here, name, &stage_of).await.unwrap();
        }
        let marker = errand(&format!("marker-{round}"));
        own.handled(&address, &marker.to_string(), ERRAND, &[CONFIG_MAP]).await;
    }
    // Objects that say that they are the victim's.
    for (kind, name, may) in [(CONFIG_MAP, "a", true), (PLAN_RUN, &*question, false)] {
        let mut copy = others.get(kind, name).await;
        let marks = |field: &str| copy["metadata"][field].clone();
        let metadata = json!({"name": "copy", "labels": marks("labels"), "annotations": marks("annotations"),
            "ownerReferences": marks("ownerReferences")});
        copy["metadata"] = metadata;
        copy.as_object_mut().unwrap().remove("status");
        let created = mallory.create(kind, here, &copy).await;
        assert_eq!(created.is_ok(), may, "{created:?}");
    }

    own.handled(&address, &errand("last").to_string(), ERRAND, &[CONFIG_MAP]).await;
    others.idle(&address).await;
    assert_eq!(picture(&others).await, before, "{}", stage.process.output());
    let mut written = stage.plane.audit().requests_since(mark).unwrap();
    let accounts = [user(rights::MANAGER), user("operetta-plan-commands")];
    written.retain(|request| {
        let is_ours = accounts.contains(&request.user) || accounts.contains(&request.acting_as);
        let is_read = ["get", "list", "watch"].contains(&&*request.verb);
        let is_review = request.group == "authorization.k8s.io" || request.resource == "leases";
        let is_count = request.resource == OPERATOR.plural && request.subresource == "status";
        is_ours && !is_read && !is_review && !is_count && request.namespace != own.namespace()
    });
    assert!(written.is_empty(), "{}", list(&written));
    let (code, told) = address.get("/readyz").await;
    assert!(code.contains("200"), "{code} {told}");
    let operator = find_in(&stage.plane, OPERATOR, None, "plan-commands").await.unwrap();
    assert!(is_ready(&operator), "{:#}", condition(&operator, "Ready"));

    // The victim's run goes on; and the owner has an instance that works once they delete what they have spoilt.
    for (number, step) in ["both/one", "both/two"].iter().enumerate() {
        let all = ["both/one", "both/two"][..=number].iter();
        let all: Vec<Value> =
            all.map(|step| json!({"step": step, "verdict": "Approve", "by": "admin"})).collect();
        let answered = Actor::admin(&stage.plane)
            .patch(PLAN_RUN, Some(others.namespace()), &question, &json!({"spec": {"approvals": all}}))
            .await;
        answered.unwrap_or_else(|told| panic!("{step}: {told}"));
    }
    others.run_is(&question, "Succeeded").await;
    for (kind, name, may) in targets {
        if may {
            set(kind, name, &|_, _| Value::Null).await.ok();
        }
    }
    for name in ["a", "b"] {
        mallory.delete(ERRAND, here, name).await.ok();
        own.gone(ERRAND, name).await;
        // A child that was marked as retained stays, and belongs to nobody.
        mallory.delete(CONFIG_MAP, here, name).await.ok();
        own.apply_ready(ERRAND, name, &errand(name).to_string()).await;
    }
    let again = own.request(("Errand", ERRAND), "a", "greet", &json!({"to": "all"})).await;
    let run = own.until("it ends", PLAN_RUN, &again, is_over).await;
    assert_eq!(run["status"]["phase"], "Succeeded", "{}", story_of(&run));
}

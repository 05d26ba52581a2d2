//! Every way in which a child can be deleted, against every deletion policy: what is deleted, what stays,
//! what is reported. The table is `docs/guide/deleting-children.md`. Data is never deleted by accident.

mod kinds;
mod refs;

use serde_json::{Value, json};

use crate::support::rights::{self, binding, role};
use crate::support::routes::{Fate, Place, UNWANTED, all, meets, way};
use crate::support::{
    CONFIG_MAP, LIGHT, SECRET, SERVICE, SERVICE_ACCOUNT, VOLUME_CLAIM, WAY, condition, file, fixture, says,
    uid_of,
};

#[tokio::test]
async fn children_whose_when_becomes_false() {
    let place = Place::new().await;
    place.deploy("w", &json!({})).await;
    place.respec("w", &json!({"on": false})).await;
    place.fate("w", "", &UNWANTED).await;
    // A child that awaits approval does not make the instance unready.
    place.ready(WAY, "w").await;
    place.approve("w", &[""]).await;
    place.at_peace("w").await;
    place.fate("w", "-a", &all(Fate::Wanted)).await;
    // The children that stayed are adopted again.
    place.respec("w", &json!({"on": true})).await;
    place.fate("w", "", &all(Fate::Wanted)).await;
}

#[tokio::test]
async fn a_child_pending_approval_is_kept_when_desired_again() {
    let place = Place::new().await;
    place.deploy("w", &json!({})).await;
    let before = uid_of(&place.get(CONFIG_MAP, "w-ask").await).to_owned();
    place.respec("w", &json!({"on": false})).await;
    place.fate("w", "", &UNWANTED).await;
    place.respec("w", &json!({"on": true})).await;
    place.fate("w", "", &all(Fate::Wanted)).await;
    place.at_peace("w").await;
    assert_eq!(uid_of(&place.get(CONFIG_MAP, "w-ask").await), before);
}

#[tokio::test]
async fn children_whose_for_each_keys_are_removed() {
    let place = Place::new().await;
    place.deploy("w", &json!({})).await;
    place.respec("w", &json!({"keys": ["a"]})).await;
    place.fate("w", "-b", &UNWANTED).await;
    place.fate("w", "-a", &all(Fate::Wanted)).await;
    place.respec("w", &json!({"keys": []})).await;
    place.fate("w", "-a", &UNWANTED).await;
    place.fate("w", "", &all(Fate::Wanted)).await;
    place.approve("w", &["-a", "-b"]).await;
    place.at_peace("w").await;
}

#[tokio::test]
async fn children_whose_template_gives_another_name() {
    let place = Place::new().await;
    place.deploy("w", &json!({})).await;
    place.respec("w", &json!({"suffix": "-new"})).await;
    place.fate("w", "-new", &all(Fate::Wanted)).await;
    place.fate("w", "", &UNWANTED).await;
    place.approve("w", &[""]).await;
    place.at_peace("w").await;
}

#[tokio::test]
async fn children_of_a_deleted_instance() {
    let place = Place::new().await;
    for how in ["background", "foreground"] {
        place.deploy(how, &json!({})).await;
        let cascade = format!("--cascade={how}");
        place.kubectl(&["delete", "way", how, &cascade, "--wait=false"]).await;
        for suffix in ["", "-a", "-b"] {
            place.fate(how, suffix, &UNWANTED).await;
        }
        place.approve(how, &["", "-a", "-b"]).await;
        place.gone(WAY, how).await;
        for suffix in ["", "-a", "-b"] {
            place.fate(how, suffix, &[("retain", Fate::Retained), ("data", Fate::Retained)]).await;
        }
    }
}

#[tokio::test]
async fn skip_cleanup_keeps_ask_children() {
    let place = Place::new().await;
    place.deploy("w", &json!({})).await;
    let hold = json!({"metadata": {"finalizers": ["example.org/hold"]}});
    place.patch(CONFIG_MAP, "w-delete-a", "merge", &hold).await;
    place.kubectl(&["delete", "way", "w", "--wait=false"]).await;
    place.fate("w", "", &UNWANTED).await;
    assert!(place.find(WAY, "w").await.is_some());
    place.waiting("w", &[""]).await;
    place.kubectl(&["annotate", "way", "w", "operetta.dev/skip-cleanup=true"]).await;
    place.gone(WAY, "w").await;
    place.fate("w", "", &UNWANTED).await;
    // The run still asks for approval, and a new instance with that name finds it.
    place.waiting("w", &[""]).await;
    place.patch(CONFIG_MAP, "w-delete-a", "merge", &json!({"metadata": {"finalizers": null}})).await;
    let before = uid_of(&place.get(CONFIG_MAP, "w-ask").await).to_owned();
    place.deploy("w", &json!({})).await;
    assert_eq!(uid_of(&place.get(CONFIG_MAP, "w-ask").await), before);
}

#[tokio::test]
async fn orphans_are_neither_pruned_nor_adopted() {
    let place = Place::new().await;
    place.deploy("w", &json!({})).await;
    place.apply(&file(&format!("{}/instances/light.yaml", fixture("light")))).await;
    // This instance has no finalizer: it is gone before the manager can look at its children.
    place.ready(LIGHT, "light").await;
    let before = uid_of(&place.get(VOLUME_CLAIM, "w-data").await).to_owned();
    place.collector_knows(&[CONFIG_MAP, SECRET, SERVICE, SERVICE_ACCOUNT]).await;
    place.kubectl(&["delete", "way", "w", "--cascade=orphan"]).await;
    place.kubectl(&["delete", "lights.fixtures.operetta.dev", "light", "--cascade=orphan"]).await;
    place.gone(WAY, "w").await;
    for suffix in ["", "-a", "-b"] {
        place.fate("w", suffix, &all(Fate::Free)).await;
    }
    assert_eq!(uid_of(&place.get(VOLUME_CLAIM, "w-data").await), before);
    for kind in [CONFIG_MAP, SECRET, SERVICE, SERVICE_ACCOUNT] {
        place.until("free", kind, "light", |o| meets(Fate::Free, Some(o))).await;
    }
    // A new instance with that name neither prunes nor adopts them.
    place.apply(&way("w", &json!({"keys": []}))).await;
    let holds = |o: &Value| {
        condition(o, "Stalled")["message"].as_str().is_some_and(|m| m.contains("does not belong"))
    };
    place.until("to say whose it is not", WAY, "w", holds).await;
    place.fate("w", "-a", &all(Fate::Free)).await;
}

#[tokio::test]
async fn without_a_terminal_approval_must_be_explicit() {
    let place = Place::with_commands().await;
    place.deploy("w", &json!({})).await;
    let approve = async |args: &[&str]| {
        let output = place.operetta(&[&["plan", "approve"][..], args].concat()).await;
        (output.status.code(), output.stdout + &output.stderr)
    };
    // The child is still desired, so no run asks for its deletion.
    says(approve(&["way/w", "--all", "--yes"]).await, Some(1), &["no run of way/w asks"]);
    place.respec("w", &json!({"on": false, "keys": []})).await;
    place.fate("w", "", &UNWANTED).await;
    place.fate("w", "-a", &UNWANTED).await;
    place.fate("w", "-b", &UNWANTED).await;
    let asked = place.waiting("w", &["", "-a", "-b"]).await;
    says(approve(&["way/w", "--all"]).await, Some(2), &["--yes"]);
    // If several runs ask, one must be named.
    says(approve(&["way/w"]).await, Some(1), &["/w-ask-b (ask-each[b])?"]);
    for (args, words) in [
        (&["way/other", "--all"][..], "there is no Way other"),
        (&["nonsense/w", "--all"], "there is no kind nonsense"),
        (&["w-delete-0123456789"], "there is no run w-delete-0123456789"),
    ] {
        says(approve(args).await, Some(1), &[words]);
    }
    // Approve one of them and no other.
    let (_, run) = asked.iter().find(|(question, _)| question.contains("ask-each[b]")).expect("it asks");
    let approved = |told: &str| told.matches("step approve: Delete ConfigMap").count();
    let (code, told) = approve(&[run]).await;
    assert!(code == Some(0) && approved(&told) == 1, "{told}");
    place.run_is(run, "Succeeded").await;
    place.fate("w", "-b", &[("ask", Fate::Gone)]).await;
    place.fate("w", "-a", &[("ask", Fate::Asks)]).await;
    place.fate("w", "", &[("ask", Fate::Asks)]).await;
    let (code, told) = approve(&["way/w", "--all", "--yes"]).await;
    assert!(code == Some(0) && approved(&told) == 2, "{told}");
    place.fate("w", "-a", &[("ask", Fate::Gone)]).await;
    place.fate("w", "", &[("ask", Fate::Gone)]).await;
}

/// The right to edit a child or `PlanRun`s is not enough to delete the child: the API server requires the
/// verb `approve` on the instance.
#[tokio::test]
async fn approving_a_deletion_requires_the_verb_approve() {
    let place = Place::new().await;
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
    let mut items = Vec::new();
    for (user, rules) in [
        (
            "editor",
            vec![
                rule("", "configmaps", &["*"]),
                rule(WAY.group(), "ways", &["get", "patch", "update", "run"]),
            ],
        ),
        (
            "planner",
            vec![rule("operetta.dev", "planruns", &["*"]), rule(WAY.group(), "ways", &["get", "run"])],
        ),
        (
            "approver",
            vec![
                rule("operetta.dev", "planruns", &["get", "list", "patch"]),
                rule(WAY.group(), "ways", &["approve"]),
            ],
        ),
    ] {
        let here = Some(place.namespace());
        items.push(role(here, user, &json!(rules)));
        items.push(binding(here, ("Role", user), user));
    }
    rights::apply(place.plane(), &items).await;
    rights::protected(place.plane(), place.namespace()).await;
    let as_user = async |user: &str, args: &[&str]| {
        let who = format!("--as={user}");
        place.kubectl_input(&[args, &[who.as_str()]].concat(), "").await
    };
    place.deploy("w", &json!({})).await;
    place.respec("w", &json!({"on": false})).await;
    place.fate("w", "", &UNWANTED).await;
    let asked = place.waiting("w", &[""]).await;
    let run = asked.values().next().expect("a run").clone();
    let uid = uid_of(&place.get(CONFIG_MAP, "w-ask").await).to_owned();
    // Neither the annotation of earlier versions nor a change of the present ones deletes the child.
    for annotation in [
        format!("operetta.dev/delete={uid}"),
        "operetta.dev/deletion-pending=false".to_owned(),
        "operetta.dev/deletion-pending-".to_owned(),
    ] {
        let args = ["annotate", "configmap", "w-ask", "--overwrite", &annotation];
        as_user("editor", &args).await.expect("it may edit");
        place.ready(WAY, "w").await;
    }
    let answer = |by: &str| {
        json!({"spec": {"approvals": [{"step": "approve", "verdict": "Approve", "by": by}]}}).to_string()
    };
    let patch = |by: &str| {
        ["patch".to_owned(), "planrun".into(), run.clone(), "--type=merge".into(), "-p".into(), answer(by)]
    };
    for (user, by, words) in [
        ("editor", "editor", "cannot get resource \"planruns\""),
        ("planner", "planner", "it needs the verb `approve` on ways."),
        ("planner", "approver", "by must be the user who adds the approval"),
    ] {
        let args = patch(by);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let told = as_user(user, &args).await.expect_err("it is refused");
        assert!(told.contains(words), "{user}: {told}");
    }
    // A forged run does not delete it either.
    let forged = as_user("planner", &["get", "planrun", &run, "-o", "json"]).await.expect("it may read");
    let mut forged: Value = serde_json::from_str(&forged).expect("JSON");
    forged["metadata"] = json!({"name": "mine"});
    forged["spec"]["requestedBy"] = "planner".into();
    let create = ["--as=planner", "create", "-f", "-"];
    let told = place.kubectl_input(&create, &forged.to_string()).await.expect_err("it is refused");
    assert!(told.contains("only the manager creates runs of the plans operetta.dev/"), "{told}");
    place.fate("w", "", &[("ask", Fate::Asks)]).await;
    assert_eq!(uid_of(&place.get(CONFIG_MAP, "w-ask").await), uid);

    let args = patch("approver");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    as_user("approver", &args).await.expect("it may approve");
    place.fate("w", "", &[("ask", Fate::Gone)]).await;
    place.at_peace("w").await;
    let done = place.kubectl(&["get", "planrun", &run, "-o", "jsonpath={.status.phase}"]).await;
    assert_eq!(done, "Succeeded");
}

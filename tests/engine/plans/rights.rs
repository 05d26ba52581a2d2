//! Who may request, cancel and approve runs: the API server checks the verbs `run` and `approve` on the
//! instance.

use serde_json::{Value, json};

use super::{DESK, Stage};
use crate::support::kubectl_of;
use crate::support::plans::{PLAN_RUN, phase, story_of};
use crate::support::rights::{permit, permit_edits_of_runs};

const KIND: (&str, crate::support::ext::Kind) = ("Desk", DESK);

/// A namespace with a Desk, and users who may do anything to `PlanRun`s and have these verbs on all desks, or
/// on one.
async fn stage_with(users: &[(&str, &[&str], Option<&str>)]) -> Stage {
    let stage = Stage::new().await;
    let (plane, here) = (stage.plane(), stage.namespace());
    let names: Vec<&str> = users.iter().map(|(user, ..)| *user).collect();
    permit_edits_of_runs(plane, here, &names).await;
    for (user, verbs, name) in users {
        if verbs.is_empty() {
            continue;
        }
        let mut rule = json!({"apiGroups": [DESK.group()], "resources": ["desks"], "verbs": verbs});
        if let Some(name) = name {
            rule["resourceNames"] = json!([name]);
        }
        permit(plane, here, &format!("desks-{user}"), &rule, &[user]).await;
    }
    stage.ready_with(KIND, "d", json!({})).await;
    stage
}

/// Runs kubectl as a user.
async fn as_user(stage: &Stage, user: &str, args: &[&str], input: &str) -> Result<String, String> {
    let who = format!("--as={user}");
    let mut all = vec!["-n", stage.namespace(), &who];
    all.extend(args);
    kubectl_of(stage.plane(), &all, input).await.result()
}

async fn request(stage: &Stage, user: &str, instance: &str, plan: &str) -> Result<String, String> {
    let run = json!({"apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun", "metadata": {"generateName": "run-"},
        "spec": {"of": {"apiVersion": DESK.api_version(), "kind": "Desk", "resource": "desks", "name": instance}, "plan": plan, "requestedBy": user}});
    let created = as_user(stage, user, &["create", "-o", "name", "-f", "-"], &run.to_string()).await?;
    Ok(created.trim().rsplit('/').next().unwrap_or_default().to_owned())
}

async fn patch(stage: &Stage, user: &str, run: &str, spec: Value) -> Result<String, String> {
    let patch = json!({"spec": spec}).to_string();
    as_user(stage, user, &["patch", "planrun", run, "--type=merge", "-p", &patch], "").await
}

fn verdict(by: &str) -> Value {
    json!({"approvals": [{"step": "ask", "verdict": "Approve", "by": by}]})
}

#[tokio::test]
async fn without_the_verb_run_a_request_is_refused() {
    let stage =
        stage_with(&[("ann", &["run"], None), ("bob", &[], None), ("eve", &["run"], Some("e"))]).await;
    let run = request(&stage, "ann", "d", "hold").await.expect("she may");
    stage.run_is(&run, "Running").await;
    for user in ["bob", "eve"] {
        let told = request(&stage, user, "d", "hold").await.expect_err("it is refused");
        assert!(told.contains("run") && told.contains("ValidatingAdmissionPolicy"), "{user}: {told}");
        let told = patch(&stage, user, &run, json!({"cancel": true})).await.expect_err("it is refused");
        assert!(told.contains("run"), "{user}: {told}");
    }
    request(&stage, "eve", "e", "hold").await.expect("resourceNames count");
    let told = patch(&stage, "ann", &run, json!({"params": {"a": 1}})).await.expect_err("it is immutable");
    assert!(told.contains("params is immutable"), "{told}");
    patch(&stage, "ann", &run, json!({"cancel": true})).await.expect("she may");
    stage.run_is(&run, "Cancelled").await;
}

#[tokio::test]
async fn approvals_need_ones_own_name_and_cannot_be_withdrawn() {
    let users: [(&str, &[&str], Option<&str>); 4] = [
        ("ann", &["run", "approve"], None),
        ("bob", &["approve"], None),
        ("cid", &["approve"], None),
        ("dan", &["run"], None),
    ];
    let stage = stage_with(&users).await;
    let run = request(&stage, "ann", "d", "sure-two").await.expect("she may");
    stage.until("the question", PLAN_RUN, &run, |run| story_of(run).contains("Really?")).await;
    let refused = [("dan", verdict("dan"), "approve"), ("bob", verdict("cid"), "by")];
    for (user, spec, word) in refused {
        let told = patch(&stage, user, &run, spec.clone()).await.expect_err("it is refused");
        assert!(told.contains(word), "{user} {spec}: {told}");
    }
    // Because of `notRequester`, ann's own approval does not count.
    patch(&stage, "ann", &run, verdict("ann")).await.expect("she may approve");
    let both = |a: &str, b: &str| {
        let mut all = verdict(a);
        let more = verdict(b)["approvals"][0].clone();
        all["approvals"].as_array_mut().expect("a list").push(more);
        all
    };
    patch(&stage, "bob", &run, both("ann", "bob")).await.expect("he adds his own");
    let told = patch(&stage, "bob", &run, verdict("bob")).await.expect_err("ann's is not his to take back");
    assert!(told.contains("approv"), "{told}");
    let told = patch(&stage, "ann", &run, json!({"approvals": []})).await.expect_err("nor can she");
    assert!(told.contains("approv"), "{told}");
    assert_eq!(
        phase(&stage.get(PLAN_RUN, &run).await),
        "Running",
        "one who is not the requester has approved"
    );
    let mut all = both("ann", "bob");
    all["approvals"].as_array_mut().expect("a list").push(verdict("cid")["approvals"][0].clone());
    patch(&stage, "cid", &run, all).await.expect("he adds his own");
    stage.run_is(&run, "Succeeded").await;
}

/// An approval is bound to the step's question: if the question changes, it is asked again.
#[tokio::test]
async fn an_approval_is_bound_to_its_question() {
    let stage = Stage::with(KIND, "d", json!({})).await;
    // The step is approved before it is reached.
    let run = json!({"apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun", "metadata": {"name": "early"},
        "spec": {"of": {"apiVersion": DESK.api_version(), "kind": "Desk", "resource": "desks", "name": "d"}, "plan": "sure", "requestedBy": "admin",
            "approvals": [{"step": "elsewhere", "verdict": "Approve", "by": "admin"}]}});
    stage.apply(&run.to_string()).await;
    stage.until("the question", PLAN_RUN, "early", |run| story_of(run).contains("stage one?")).await;
    assert_eq!(phase(&stage.get(PLAN_RUN, "early").await), "Running");
    stage.cancel("early").await;
    stage.run_is("early", "Cancelled").await;
}

//! The admission policies of runs are missing or altered: nothing that was not checked counts, and the
//! manager restores them.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::barrier::Address;
use crate::support::ext::{
    CONFIG_MAP, ERRAND, Kind, LONG, Scene, condition, find_in, kind, name_of, run_flags,
};
use crate::support::faults::case::Case;
use crate::support::faults::{Fault, Life, Rule, Verb};
use crate::support::plans::{PLAN_RUN, TWELVE, phase, story_of};
use crate::support::rights::{permit, permit_edits_of_runs};
use crate::support::{Actor, ControlPlane, Operetta, eventually, own_plane_of_tests};

const POLICY: &str = "planruns.operetta.dev";
const POLICIES: Kind = kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies");
const BINDINGS: Kind = kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings");
/// An account of a namespace, which its admins may use.
const ROBOT: &str = "system:serviceaccount:team-a:robot";

/// All users may edit `PlanRun`s; ann and the robot may run and approve, and eve may neither.
struct Theatre {
    plane: Arc<ControlPlane>,
    scene: Scene,
    manager: Operetta,
}

impl Theatre {
    async fn new() -> Self {
        let plane = own_plane_of_tests().await;
        let manager = run_flags(&plane, &["--leader-elect=false"], &["plan-commands"]).watching(1).await;
        let scene = Scene::on(&plane).await;
        permit_edits_of_runs(&plane, scene.namespace(), &["eve", "ann", ROBOT]).await;
        let rule =
            json!({"apiGroups": [ERRAND.group()], "resources": [ERRAND.plural], "verbs": ["run", "approve"]});
        permit(&plane, scene.namespace(), "approver", &rule, &["ann", ROBOT]).await;
        let errand = json!({"apiVersion": ERRAND.api_version(), "kind": "Errand", "metadata": {"name": "a"}, "spec": {}});
        scene.apply_ready(ERRAND, "a", &errand.to_string()).await;
        Self { plane, scene, manager }
    }

    /// Waits until the policy refuses a user without the verb.
    async fn in_force(&self) {
        eventually("the policy to be in force", LONG, async || match self.request("eve", "greet").await {
            Err(told) if told.contains("needs the verb") => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }

    /// Deletes the binding, which may be missing already.
    async fn unbind(&self) {
        let _ = Actor::admin(&self.plane).delete(BINDINGS, None, POLICY).await;
    }

    async fn request(&self, user: &str, plan: &str) -> Result<String, String> {
        self.request_with(user, plan, &Value::Null).await
    }

    async fn request_with(&self, user: &str, plan: &str, params: &Value) -> Result<String, String> {
        let mut run = json!({"apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun", "metadata": {"generateName": "run-"},
            "spec": {"of": {"apiVersion": ERRAND.api_version(), "kind": "Errand", "resource": "errands", "name": "a"},
                "plan": plan, "requestedBy": user}});
        if !params.is_null() {
            run["spec"]["params"] = params.clone();
        }
        let actor = Actor::new(&self.plane, user);
        let created = actor.create(PLAN_RUN, Some(self.scene.namespace()), &run).await?;
        Ok(name_of(&created).to_owned())
    }

    /// Replaces the approvals of a run.
    async fn answer(&self, user: &str, run: &str, answers: &[(&str, &str)]) -> Result<Value, String> {
        let all: Vec<Value> =
            answers.iter().map(|(step, by)| json!({"step": step, "verdict": "Approve", "by": by})).collect();
        let patch = json!({"spec": {"approvals": all}});
        let actor = Actor::new(&self.plane, user);
        actor.patch(PLAN_RUN, Some(self.scene.namespace()), run, &patch).await
    }

    /// Requests a run that asks for two approvals. Returns its name once it asks.
    async fn asking(&self) -> String {
        let run = eventually("a request", LONG, async || self.request("ann", "ask").await).await;
        let asks = |run: &Value| story_of(run).contains("One?") && story_of(run).contains("Two?");
        self.scene.until("the questions", PLAN_RUN, &run, asks).await;
        run
    }

    /// Waits until the manager reports that requests count again.
    async fn counts_again(&self) {
        let address = Address::of(&self.manager);
        eventually("requests to count again", LONG, async || {
            let told = address.ready().await;
            if told.contains("wait") { Err(told) } else { Ok(()) }
        })
        .await;
    }
}

/// The policy as it is.
async fn spec(plane: &ControlPlane) -> Value {
    find_in(plane, POLICIES, None, POLICY).await.expect("the policy")["spec"].take()
}

async fn alter(plane: &ControlPlane, patch: &Value) {
    Actor::admin(plane).patch(POLICIES, None, POLICY, patch).await.unwrap();
}

/// Attack: while the binding is missing, a user without any verb approves in the names of others.
#[tokio::test]
async fn approvals_forged_without_a_binding_never_count() {
    let theatre = Theatre::new().await;
    let run = theatre.asking().await;
    let told = theatre.answer("eve", &run, &[("both/one", "ann")]).await.expect_err("it is refused");
    assert!(told.contains("by must be the user"), "{told}");
    // The binding is restored within moments, so repeat the attack until it succeeds.
    let forged = [("both/one", "ann"), ("both/two", "bob")];
    eventually("a forged approval", LONG, async || {
        theatre.unbind().await;
        theatre.answer("eve", &run, &forged).await
    })
    .await;
    theatre.in_force().await;
    theatre.counts_again().await;
    let is_noted = |run: &Value| run["status"]["answers"].as_array().is_some_and(|all| all.len() == 2);
    let seen = theatre.scene.until("the answers are noted", PLAN_RUN, &run, is_noted).await;
    assert!(
        seen["status"]["answers"].as_array().unwrap().iter().all(|seen| seen["ignored"].is_string()),
        "{seen:#}"
    );
    assert_eq!(phase(&seen), "Running", "{}", story_of(&seen));
    // Answers that are checked count.
    let mut all = forged.to_vec();
    for step in ["both/one", "both/two"] {
        all.push((step, "ann"));
        theatre.answer("ann", &run, &all).await.expect("she may");
    }
    theatre.scene.run_is(&run, "Succeeded").await;
}

/// Attack: the approvals are forged while no manager runs. What is in the cluster when a manager starts was not
/// checked.
#[tokio::test]
async fn approvals_forged_without_a_manager_never_count() {
    let theatre = Theatre::new().await;
    let run = theatre.asking().await;
    let Theatre { plane, scene, manager } = theatre;
    drop(manager);
    Actor::admin(&plane).delete(BINDINGS, None, POLICY).await.unwrap();
    let forged = json!({"spec": {"approvals": [{"step": "both/one", "verdict": "Approve", "by": "ann"}]}});
    eventually("a forged approval", LONG, async || {
        Actor::new(&plane, "eve").patch(PLAN_RUN, Some(scene.namespace()), &run, &forged).await
    })
    .await;
    let _manager = run_flags(&plane, &["--leader-elect=false"], &["plan-commands"]).watching(1).await;
    let is_noted = |run: &Value| run["status"]["answers"][0]["ignored"].is_string();
    let seen = scene.until("the answer is noted", PLAN_RUN, &run, is_noted).await;
    assert_eq!(phase(&seen), "Running", "{}", story_of(&seen));
    scene.cancel(&run).await;
}

/// Attack: while the policy is altered, a user without the verb `run` requests a run, and another forges the
/// cause of one.
#[tokio::test]
async fn requests_made_under_an_altered_policy_fail() {
    let theatre = Theatre::new().await;
    let before = spec(&theatre.plane).await;
    let weak = json!({"spec": {"matchConditions": [{"name": "off", "expression": "false"}],
        "validations": [{"expression": "true"}], "paramKind": null,
        "matchConstraints": {"namespaceSelector": {"matchLabels": {"no": "namespace"}}}}});
    let run = eventually("a request that is not checked", LONG, async || {
        alter(&theatre.plane, &weak).await;
        theatre.request("eve", "greet").await
    })
    .await;
    let ended = theatre.scene.run_is(&run, "Failed").await;
    assert_eq!(ended["status"]["reason"], "NotVerified", "{}", story_of(&ended));
    theatre.in_force().await;
    eventually("the policy to be whole again, with the exemption of the manager", LONG, async || {
        let now = spec(&theatre.plane).await;
        if now == before { Ok(()) } else { Err(now) }
    })
    .await;
    theatre.counts_again().await;
    let run = theatre.asking().await;
    theatre.scene.cancel(&run).await;
    theatre.scene.run_is(&run, "Cancelled").await;
}

/// Attack: while the binding is missing, the parameters of a run that waits are changed.
#[tokio::test]
async fn run_whose_parameters_were_changed_fails() {
    let theatre = Theatre::new().await;
    let namespace = Some(theatre.scene.namespace());
    let pause = async |paused: Value| {
        let patch = json!({"metadata": {"annotations": {"operetta.dev/paused": paused}}});
        Actor::admin(&theatre.plane).patch(ERRAND, namespace, "a", &patch).await.unwrap();
    };
    pause("true".into()).await;
    let is_paused = |errand: &Value| condition(errand, "Ready")["reason"] == "Paused";
    theatre.scene.until("paused", ERRAND, "a", is_paused).await;
    let params = json!({"to": "ann"});
    let request = async || theatre.request_with("ann", "greet", &params).await;
    let run = eventually("a request", LONG, request).await;
    let is_admitted = |run: &Value| run["status"]["requestDigest"].is_string();
    theatre.scene.until("it waits", PLAN_RUN, &run, is_admitted).await;
    let eve = Actor::new(&theatre.plane, "eve");
    let changed = json!({"spec": {"params": {"to": "eve"}}});
    let told = eve.patch(PLAN_RUN, namespace, &run, &changed).await.expect_err("it is refused");
    assert!(told.contains("params is immutable"), "{told}");
    eventually("changed parameters", LONG, async || {
        theatre.unbind().await;
        eve.patch(PLAN_RUN, namespace, &run, &changed).await
    })
    .await;
    theatre.in_force().await;
    theatre.counts_again().await;
    pause(Value::Null).await;
    let ended = theatre.scene.run_is(&run, "Failed").await;
    assert_eq!(ended["status"]["reason"], "SpecChanged", "{}", story_of(&ended));
}

/// Attack: the policy is altered again between the two writes that restore it.
#[tokio::test]
async fn policy_altered_while_it_is_restored_is_restored_again() {
    let plane = own_plane_of_tests().await;
    let case = Case::on(&plane, &TWELVE, 0).await;
    let process = case.start().await;
    // The bindings are the last that a manager installs.
    eventually("the bindings", LONG, async || {
        let found = case.scene.kubectl(&["get", BINDINGS.plural, "-o", "name"]).await;
        if found.lines().count() == 2 { Ok(()) } else { Err(found) }
    })
    .await;
    let weak = json!({"spec": {"validations": [{"expression": "true"}]}});
    let before = spec(&plane).await;
    let gate = Life::new();
    let held = Rule::on(&[Verb::Apply], Fault::Held(gate.clone())).plural("validatingadmissionpolicies");
    let held = case.wire.rule(held.times(1));
    alter(&plane, &weak).await;
    case.struck("the write of the exemption", &[held]).await;
    assert_eq!(spec(&plane).await, before, "the first write has restored the policy");
    alter(&plane, &weak).await;
    gate.end();
    eventually("the policy to be whole", LONG, async || {
        let now = spec(&plane).await;
        if now == before { Ok(()) } else { Err(now) }
    })
    .await;
    process.stop().await;
}

/// Until a restored policy is in effect everywhere, requests and answers wait, and the manager reports it.
#[tokio::test]
async fn answers_wait_until_a_restored_policy_is_in_force() {
    let theatre = Theatre::new().await;
    let run = theatre.asking().await;
    theatre.unbind().await;
    let address = Address::of(&theatre.manager);
    let told = eventually("/readyz to say so", LONG, async || {
        let told = address.ready().await;
        if told.contains("requests and approvals of runs wait") { Ok(told) } else { Err(told) }
    })
    .await;
    assert!(told.contains("admission policy") || told.contains("is missing"), "{told}");
    assert!(address.metrics().await.contains("operetta_unprotected 1"));
    let waits = |errand: &Value| {
        condition(errand, "Reconciling")["message"]
            .as_str()
            .is_some_and(|told| told.contains("answers do not count now"))
    };
    theatre.scene.until("the instance says so", ERRAND, "a", waits).await;
    theatre.counts_again().await;
    theatre.scene.cancel(&run).await;
}

/// Attack: an admin of a namespace approves their own request through a `ServiceAccount`.
#[tokio::test]
async fn an_approval_through_a_service_account_does_not_count() {
    let theatre = Theatre::new().await;
    let run = theatre.asking().await;
    theatre.answer(ROBOT, &run, &[("both/one", ROBOT)]).await.expect("the API server lets it answer");
    let says = |errand: &Value| {
        let told = condition(errand, "Reconciling")["message"].as_str().unwrap_or_default().to_owned();
        told.contains("One? (not counted: system:serviceaccount:team-a:robot (a ServiceAccount))")
    };
    theatre.scene.until("the instance says who has answered", ERRAND, "a", says).await;
    let run_object = theatre.scene.get(PLAN_RUN, &run).await;
    assert_eq!(phase(&run_object), "Running");
    assert!(run_object["status"]["answers"][0]["at"].is_string(), "{run_object:#}");
    let all = [("both/one", ROBOT), ("both/one", "ann"), ("both/two", "ann")];
    theatre.answer("ann", &run, &all[..2]).await.expect("she may");
    theatre.answer("ann", &run, &all).await.expect("she may");
    theatre.scene.run_is(&run, "Succeeded").await;
    assert!(theatre.scene.find(CONFIG_MAP, "a").await.is_some());
}

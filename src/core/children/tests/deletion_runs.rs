//! Deletions that wait for approval: their runs.

use super::*;
use crate::plan::{DELETE_CHILD, Phase, PlanRun};

const ASK: &str =
    "children:\n  - {id: c, template: templates/c.yaml, when: spec.size is defined, deletionPolicy: Ask}\n";

/// An instance whose child is not desired any more.
fn asking() -> World {
    let package = package(ASK, &[("c", config("{{ name }}-c"))]);
    let mut world = World::settled(package, &json!({"size": 1}));
    assert!(world.runs.runs.is_empty());
    world.edit(json!({}));
    world.settle();
    world
}

fn runs(world: &World) -> Vec<PlanRun> {
    world.runs.deletions(world.now).runs
}

fn run(world: &World) -> PlanRun {
    let mut runs = runs(world);
    assert_eq!(runs.len(), 1);
    runs.remove(0)
}

fn answer(world: &mut World, verdict: &str) {
    let answer = json!({"step": "approve", "verdict": verdict, "by": "ann"});
    world.runs.patch_deletions(&json!({"approvals": [answer]}));
}

/// The message of the condition `DeletionPending`.
fn pending(world: &World) -> String {
    let status = status_patch(&json!({}), &world.decide().status.unwrap(), "t").unwrap();
    let pending = crate::facts::condition(&json!({"status": status}), "DeletionPending").cloned();
    pending.map(|pending| pending["message"].as_str().unwrap().to_owned()).unwrap_or_default()
}

#[test]
fn deletion_run_names_its_object_and_is_created_once() {
    let world = asking();
    let run = run(&world);
    let uid = &*world.objects["ConfigMap/a-c"].uid;
    assert_eq!(
        run.spec.params,
        json!({"kind": "ConfigMap", "namespace": "n", "name": "a-c", "uid": uid, "child": "c"})
    );
    assert_eq!((run.spec.plan.as_str(), run.spec.of.resource.as_str()), (DELETE_CHILD, "things"));
    assert_eq!((run.phase(), run.spec.requested_by.as_deref()), (Phase::Running, None));
    let step = &run.status.as_ref().unwrap().steps[0];
    assert_eq!((step.message.as_str(), step.asked), ("Delete ConfigMap n/a-c (c)?", Some(0)));
    let how = format!("operetta plan approve {} -n n", run.name);
    assert!(pending(&world).ends_with(&how), "{}", pending(&world));
}

/// The `edit` role of a namespace may act as any of its accounts.
#[test]
fn an_approval_by_a_service_account_does_not_count() {
    let mut world = asking();
    let by = |by: &str| json!({"step": "approve", "verdict": "Approve", "by": by});
    let account = by("system:serviceaccount:n:default");
    world.runs.patch_deletions(&json!({"approvals": [account]}));
    world.settle();
    assert_eq!(run(&world).phase(), Phase::Running);
    world.runs.patch_deletions(&json!({"approvals": [account, by("ann")]}));
    world.settle();
    assert_eq!(run(&world).phase(), Phase::Succeeded);
}

#[test]
fn an_approval_that_the_api_server_has_not_checked_never_counts() {
    let mut world = asking();
    world.runs.protection.broken = Some("the policy is missing".into());
    answer(&mut world, "Approve");
    world.settle();
    world.runs.protection.broken = None;
    world.settle();
    assert_eq!(run(&world).phase(), Phase::Running);
    let by = |by: &str| json!({"step": "approve", "verdict": "Approve", "by": by});
    world.runs.patch_deletions(&json!({"approvals": [by("ann"), by("bob")]}));
    world.settle();
    let run = run(&world);
    assert_eq!(run.phase(), Phase::Succeeded);
    assert_eq!(run.status.unwrap().steps[1].message, "approved by bob");
}

/// Answers have no time of their own: one that is noted only after the pause would count.
#[test]
fn an_unchecked_approval_of_a_paused_instance_never_counts() {
    let mut world = asking();
    world.instance["metadata"]["annotations"][names::PAUSED] = "true".into();
    world.runs.protection.broken = Some("the policy is missing".into());
    answer(&mut world, "Approve");
    world.settle();
    world.runs.protection.broken = None;
    world.settle();
    world.instance["metadata"]["annotations"].as_object_mut().unwrap().remove(names::PAUSED);
    world.settle();
    assert_eq!((run(&world).phase(), world.objects.len()), (Phase::Running, 1));
}

/// Attack: the run of a deletion is created with its approval while nobody is checked, and seen once a policy is back.
#[test]
fn an_approval_with_which_a_deletion_run_was_forged_never_counts() {
    let mut world = asking();
    answer(&mut world, "Approve");
    let name = run(&world).name;
    let forged = world.runs.runs.get_mut(&name).unwrap();
    forged.as_object_mut().unwrap().remove("status");
    forged["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
    world.runs.protection.since = Some("2021-01-01T00:00:00Z".parse().unwrap());
    world.settle();
    assert_eq!((run(&world).phase(), world.objects.len()), (Phase::Running, 1));
    let by = |by: &str| json!({"step": "approve", "verdict": "Approve", "by": by});
    world.runs.patch_deletions(&json!({"approvals": [by("ann"), by("bob")]}));
    world.settle();
    assert_eq!((run(&world).phase(), world.objects.len()), (Phase::Succeeded, 0));
}

#[test]
fn an_approval_deletes_the_object_and_the_run_succeeds() {
    let mut world = asking();
    answer(&mut world, "Approve");
    world.settle();
    assert_eq!((world.log.last().unwrap().as_str(), world.objects.len()), ("Delete a-c", 0));
    let run = run(&world);
    assert_eq!(run.phase(), Phase::Succeeded);
    let steps: Vec<_> =
        run.status.iter().flat_map(|status| &status.steps).map(|step| step.path.as_str()).collect();
    assert_eq!(steps, ["approve", "delete"]);
    // The garbage collector deletes the run with the instance.
    assert_eq!(run.owners, ["uid-1"]);
    assert!(!prune::has_finalizer(&world.instance));
}

/// A foreground deletion of the instance deletes what it owns before the objects that wait.
#[test]
fn a_run_that_is_still_needed_has_no_owner() {
    let mut world = asking();
    assert!(run(&world).owners.is_empty() && prune::has_finalizer(&world.instance));
    answer(&mut world, "Reject");
    world.settle();
    assert_eq!((run(&world).phase(), world.objects.len()), (Phase::Failed, 1));
    assert!(run(&world).owners.is_empty() && prune::has_finalizer(&world.instance));
    world.instance["metadata"]["deletionTimestamp"] = "now".into();
    world.settle();
    assert!(run(&world).owners.is_empty());
    // Somebody deletes the object by hand.
    world.remove("ConfigMap/a-c");
    world.settle();
    assert!(runs(&world).is_empty() && !prune::has_finalizer(&world.instance));
}

#[test]
fn a_rejected_or_cancelled_deletion_is_asked_again_once_its_run_is_deleted() {
    for (spec, phase, words) in [
        (
            json!({"approvals": [{"step": "approve", "verdict": "Reject", "by": "ann"}]}),
            Phase::Failed,
            "ann has rejected",
        ),
        (json!({"cancel": true}), Phase::Cancelled, "has cancelled"),
    ] {
        let mut world = asking();
        world.runs.patch_deletions(&spec);
        world.settle();
        assert_eq!((run(&world).phase(), world.objects.len()), (phase, 1));
        let told = pending(&world);
        let again = format!("kubectl delete planrun {} -n n", run(&world).name);
        assert!(told.contains(words) && told.ends_with(&again), "{told}");
        // An approval comes too late.
        answer(&mut world, "Approve");
        world.settle();
        assert_eq!(world.objects.len(), 1);
        world.runs.runs.clear();
        world.settle();
        assert_eq!(run(&world).phase(), Phase::Running);
    }
}

#[test]
fn an_approval_lapses_when_the_object_is_desired_again() {
    let mut world = asking();
    answer(&mut world, "Approve");
    world.edit(json!({"size": 1}));
    world.settle();
    assert!(runs(&world).is_empty() && world.objects.len() == 1);
    world.edit(json!({}));
    world.settle();
    assert_eq!((run(&world).phase(), world.objects.len()), (Phase::Running, 1));
}

/// A decision that has come only to the applies asks for no deletion, and ends none that is asked for.
#[test]
fn an_approval_is_kept_while_something_else_is_applied() {
    let children = format!("{ASK}  - {{id: d, template: templates/d.yaml}}\n");
    let package = package(&children, &[("c", config("{{ name }}-c")), ("d", config("{{ name }}-d"))]);
    let mut world = World::settled(package, &json!({"size": 1}));
    world.edit(json!({}));
    world.settle();
    // The patch that marks the object was lost.
    world.write("ConfigMap/a-c", |live| {
        live["metadata"]["annotations"].as_object_mut().unwrap().remove(names::PENDING);
    });
    answer(&mut world, "Approve");
    world.edit(json!({"text": "changed"}));
    let decision = world.decide();
    // It is applied, and the approval is noted.
    assert!(decision.needs.approvals.is_empty() && decision.actions.len() == 2, "{:?}", decision.actions);
    world.settle();
    assert_eq!((world.names(), run(&world).phase()), (vec!["a-d"], Phase::Succeeded));
}

#[test]
fn a_run_of_an_object_that_somebody_else_deleted_is_superseded() {
    let mut world = asking();
    world.remove("ConfigMap/a-c");
    world.settle();
    assert_eq!(run(&world).phase(), Phase::Superseded);
}

/// Only the run of that very object counts, of that very kind of instance, and only the answer in its spec.
#[test]
fn an_approval_of_another_object_does_not_count() {
    type Forge = fn(&mut Value);
    let forgeries: [Forge; 4] = [
        |run| run["spec"]["params"]["uid"] = "another".into(),
        |run| run["spec"]["params"]["name"] = "harmless".into(),
        |run| run["spec"]["of"]["resource"] = "pods".into(),
        |run| run["spec"]["approvals"] = json!([{"step": "delete", "verdict": "Approve", "by": "ann"}]),
    ];
    for forge in forgeries {
        let mut world = asking();
        let [forged] = &mut world.runs.runs.values_mut().collect::<Vec<_>>()[..] else { panic!() };
        forged["spec"]["approvals"] = json!([{"step": "approve", "verdict": "Approve", "by": "ann"}]);
        forged["status"]["steps"] =
            json!([{"path": "approve", "phase": "Succeeded"}, {"path": "delete", "phase": "Running"}]);
        forge(forged);
        world.settle();
        assert_eq!(world.objects.len(), 1);
    }
}

/// An editor of the object changes the policy in its annotations.
#[test]
fn the_policy_of_the_package_counts_whatever_the_object_says() {
    let package = package(ASK, &[("c", config("{{ name }}-c"))]);
    let mut world = World::settled(package, &json!({"size": 1}));
    world.edit(json!({}));
    world.write("ConfigMap/a-c", |live| {
        let annotations = live["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove(names::PENDING);
        let plain = annotations[names::INTENT].as_str().unwrap().replace(".ask", "");
        annotations[names::INTENT] = plain.into();
    });
    world.settle();
    assert_eq!((world.names(), run(&world).phase()), (vec!["a-c"], Phase::Running));
    assert_eq!(world.objects["ConfigMap/a-c"].asking, Some(true));
}

#[test]
fn ask_children_stay_while_their_runs_are_unknown() {
    let mut world = asking();
    answer(&mut world, "Approve");
    let mut snapshot = world.snapshot();
    snapshot.deletions.as_mut().unwrap().unknown = Some("forbidden".into());
    let decision = decide(&snapshot, &world.state, world.now);
    assert!(decision.actions.is_empty() && decision.needs.approvals.len() == 1, "{:?}", decision.actions);
    snapshot.deletions = None;
    let decision = decide(&snapshot, &world.state, world.now);
    assert!(decision.actions.is_empty() && decision.needs.approvals.len() == 1, "{:?}", decision.actions);
    world.settle();
    assert!(world.objects.is_empty());
}

#[test]
fn skip_cleanup_leaves_the_deletion_run_for_the_next_instance() {
    let mut world = asking();
    world.instance["metadata"]["deletionTimestamp"] = "now".into();
    world.instance["metadata"]["annotations"][names::SKIP_CLEANUP] = "true".into();
    world.settle();
    assert_eq!(
        (world.instance["metadata"]["finalizers"].clone(), run(&world).phase()),
        (json!([]), Phase::Running)
    );
    let metadata = world.instance["metadata"].as_object_mut().unwrap();
    metadata.remove("deletionTimestamp");
    metadata.remove("annotations");
    metadata.insert("uid".into(), "uid-2".into());
    answer(&mut world, "Approve");
    world.settle();
    assert_eq!((world.objects.len(), run(&world).phase()), (0, Phase::Succeeded));
}

/// Attack: the run of a child that is being deleted is turned to another child that waits for its approval.
#[test]
fn an_approval_counts_only_for_the_object_that_it_was_given_for() {
    let ask = "children:
  - {id: c, template: templates/c.yaml, when: spec.size is defined, deletionPolicy: Ask}
  - {id: d, template: templates/d.yaml, when: spec.size is defined, deletionPolicy: Ask}
";
    let package = package(ask, &[("c", config("{{ name }}-c")), ("d", config("{{ name }}-d"))]);
    let mut world = World::settled(package, &json!({"size": 1}));
    world.edit(json!({}));
    world.settle();
    let mut all = runs(&world);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let [approved, other] = &all[..] else { panic!("{all:#?}") };
    let run = world.runs.runs.get_mut(&approved.name).unwrap();
    run["spec"]["approvals"] = json!([{"step": "approve", "verdict": "Approve", "by": "ann"}]);
    run["status"]["answers"] = json!([{"by": "ann", "at": "2026-01-01T00:00:00Z"}]);
    run["status"]["steps"] =
        json!([{"path": "approve", "phase": "Succeeded"}, {"path": "delete", "phase": "Running"}]);
    run["spec"]["params"] = other.spec.params.clone();
    world.settle();
    let name = other.spec.params["name"].as_str().unwrap();
    assert!(world.names().contains(&name), "{:?}", world.names());
}

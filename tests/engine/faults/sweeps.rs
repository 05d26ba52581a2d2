//! The manager is killed before or after any of its writes, also with packages that have more to lose:
//! passwords, children that are retained, recreated or wait for approval, in other namespaces or
//! cluster-scoped, and instances of another kind; and with the shipped packages. Only some writes are tried;
//! `OPERETTA_SWEEP=1` tries all.

use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};

use super::schedules::{AT_ONCE, Told, seeds};
use super::{Checkpoint, Counts};
use crate::support::ext::{
    CLUSTER_ROLE, CONFIG_MAP, DEPLOYMENT, DISRUPTION_BUDGET, INGRESS, POD, SECRET, SERVICE, SERVICE_ACCOUNT,
    VOLUME_CLAIM, condition, name_of, uid_of,
};
use crate::support::faults::case::{Case, Process, Subject};
use crate::support::faults::random::{Mix, alive};
use crate::support::faults::{Fault, Rule, Verb, WRITES, apart, story};

const MOTLEY: Subject = Subject {
    folder: "tests/fixtures/packages/motley",
    name: "motley",
    group: "fixtures.operetta.dev",
    version: "v1",
    kind: "Motley",
    plural: "motleys",
    inner: Some("parts"),
    children: &[CONFIG_MAP, SECRET, SERVICE_ACCOUNT, VOLUME_CLAIM],
    elsewhere: &[(CONFIG_MAP, Some("kube-public")), (CLUSTER_ROLE, None)],
};

const WEB_APP: Subject = Subject {
    folder: "operators/webapp",
    name: "webapp",
    group: "apps.operetta.dev",
    version: "v1alpha1",
    kind: "WebApp",
    plural: "webapps",
    inner: None,
    children: &[CONFIG_MAP, SERVICE, DEPLOYMENT, INGRESS, DISRUPTION_BUDGET],
    elsewhere: &[],
};

const ETCD: Subject = Subject {
    folder: "operators/etcd",
    name: "etcd",
    group: "etcd.database.coreos.com",
    version: "v1beta2",
    kind: "EtcdCluster",
    plural: "etcdclusters",
    inner: None,
    children: &[CONFIG_MAP, SERVICE, DISRUPTION_BUDGET, POD],
    elsewhere: &[],
};

#[tokio::test]
async fn killed_before_a_write_resumes_mixed_policies() {
    sweep(&MOTLEY, &Fault::DieBefore).await;
}

#[tokio::test]
async fn killed_after_a_write_resumes_mixed_policies() {
    sweep(&MOTLEY, &Fault::DieAfter).await;
}

#[tokio::test]
async fn killed_before_a_write_resumes_webapp() {
    sweep(&WEB_APP, &Fault::DieBefore).await;
}

#[tokio::test]
async fn killed_after_a_write_resumes_webapp() {
    sweep(&WEB_APP, &Fault::DieAfter).await;
}

#[tokio::test]
async fn killed_before_a_write_resumes_etcd() {
    sweep(&ETCD, &Fault::DieBefore).await;
}

#[tokio::test]
async fn killed_after_a_write_resumes_etcd() {
    sweep(&ETCD, &Fault::DieAfter).await;
}

/// A run that waits for approval ends only when its object is deleted, and not because a stale list lacks the
/// object: the approval would be lost.
#[tokio::test]
async fn a_pending_approval_survives_a_stale_list() {
    let case = Case::of(&MOTLEY, 0).await;
    // The first list of ConfigMaps, which a stale read returns again, is empty.
    let process = case.start().await;
    let (name, deeds) = ("i-lag", deeds(&MOTLEY));
    prepare(&case, name).await;
    perform(&case, name, &deeds[0]).await;
    answered(&case, name, &deeds[0], false).await;
    perform(&case, name, &Deed::Delete).await;
    answered(&case, name, &Deed::Delete, true).await;
    let runs = case.scene.runs(name).await;
    assert_eq!(runs.len(), 1, "{runs:#?}");
    let mark = case.wire.mark();
    let stale = case.wire.rule(Rule::on(&[Verb::List], Fault::Stale).plural("configmaps").times(1));
    case.wire.rule(Rule::on(&[Verb::Watch], Fault::Refused).plural("configmaps").times(2));
    case.wire.fail_watches(Some("configmaps"), 410);
    case.struck("a stale list", &[stale]).await;
    case.quiet().await;
    let mut writes = case.wire.writes(mark);
    writes.retain(|entry| entry.call.plural == "planruns");
    assert!(writes.is_empty(), "{}", story(&case.wire.since(mark)));
    case.wire.heal();
    perform(&case, name, &Deed::Approve).await;
    answered(&case, name, &Deed::Approve, true).await;
    sweep_up(&case, name).await;
    case.finish(process).await;
}

/// A run that waits for approval is not deleted because stale lists show an earlier state in which the object
/// was desired.
#[tokio::test]
async fn an_approval_survives_lists_from_before_its_request() {
    const LAGGING: [&str; 7] = [
        "motleys",
        "parts",
        "configmaps",
        "secrets",
        "serviceaccounts",
        "persistentvolumeclaims",
        "clusterroles",
    ];
    let case = Case::of(&MOTLEY, 0).await;
    let name = "i-past";
    let process = deployed(&case, name, &LAGGING).await;
    perform(&case, name, &Deed::Delete).await;
    answered(&case, name, &Deed::Delete, true).await;
    process.stop().await;
    perform(&case, name, &Deed::Approve).await;
    let mark = case.wire.mark();
    let process = starts_in_the_past(&case, name, &Deed::Approve, &LAGGING).await;
    let mut writes = case.wire.writes(mark);
    writes.retain(|entry| entry.call.plural == "planruns" && entry.call.verb == Verb::Create);
    assert!(writes.is_empty(), "{}", story(&case.wire.since(mark)));
    sweep_up(&case, name).await;
    case.finish(process).await;
}

/// A run that has deleted its object is deleted before its instance is gone, even by a manager whose list
/// lacks the run.
#[tokio::test]
async fn run_missing_from_a_list_is_still_deleted() {
    const LAGGING: [&str; 1] = ["planruns"];
    let case = Case::of(&MOTLEY, 0).await;
    let name = "i-left";
    // The list that a stale read returns is empty.
    let process = deployed(&case, name, &LAGGING).await;
    perform(&case, name, &Deed::Delete).await;
    answered(&case, name, &Deed::Delete, true).await;
    // The manager ends after deleting the object and before recording that in the run.
    let dies = Rule::on(&[Verb::Patch], Fault::DieBefore).plural("planruns").skip(1).times(1);
    let dies = case.wire.rule(dies);
    perform(&case, name, &Deed::Approve).await;
    process.life.over().await;
    assert_eq!(case.wire.struck(dies), 1);
    process.kill();
    assert_eq!(case.scene.runs(name).await.len(), 1);
    let process = starts_in_the_past(&case, name, &Deed::Approve, &LAGGING).await;
    let runs = case.scene.runs(name).await;
    assert!(runs.is_empty(), "{runs:#?}");
    sweep_up(&case, name).await;
    case.finish(process).await;
}

/// A rollout is not superseded because a list shows its instance before the change.
#[tokio::test]
async fn a_rollout_survives_a_list_from_before_its_change() {
    const LAGGING: [&str; 1] = ["etcdclusters"];
    let case = Case::of(&ETCD, 0).await;
    let (name, deeds) = ("i-roll", deeds(&ETCD));
    let process = deployed(&case, name, &LAGGING).await;
    // The manager ends when the run has begun.
    let dies =
        Rule::on(&[Verb::Patch], Fault::DieBefore).plural("planruns").subresource("status").skip(3).times(1);
    let dies = case.wire.rule(dies);
    perform(&case, name, &deeds[1]).await;
    process.life.over().await;
    assert_eq!(case.wire.struck(dies), 1);
    process.kill();
    let runs = case.scene.runs(name).await;
    assert!(runs.iter().any(|run| run["status"]["phase"] == "Running"), "{runs:#?}");
    let process = starts_in_the_past(&case, name, &deeds[1], &LAGGING).await;
    for run in case.scene.runs(name).await {
        assert_eq!(run["status"]["phase"], "Succeeded", "{run:#}");
    }
    case.finish(process).await;
}

/// The connection for a command is not established, or its answer is lost: the command is run again long
/// before the step's timeout.
#[tokio::test]
async fn command_with_a_hanging_connection_is_run_again() {
    let case = Case::of(&ETCD, 0).await.with_deadline(Duration::from_secs(3));
    let process = case.start().await;
    let (name, first) = ("i-hang", &deeds(&ETCD)[0]);
    perform(&case, name, first).await;
    answered(&case, name, first, false).await;
    for (size, fault) in [(3, Fault::Never), (4, Fault::Lost)] {
        let hangs = case.wire.rule(Rule::on(&[Verb::Get], fault).commands(&["promote"]).times(1));
        let grows = Deed::Spec(json!({"size": size, "version": "3.5.1"}));
        perform(&case, name, &grows).await;
        answered(&case, name, &grows, false).await;
        assert_eq!(case.wire.struck(hangs), 1, "size {size}");
    }
    case.finish(process).await;
}

/// Deploys an instance and restarts the manager, so that its lists are those that [`starts_in_the_past`]
/// returns again.
async fn deployed(case: &Case, name: &str, lagging: &[&str]) -> Process {
    let process = case.start().await;
    let first = &deeds(case.subject)[0];
    prepare(case, name).await;
    perform(case, name, first).await;
    answered(case, name, first, false).await;
    process.stop().await;
    for plural in lagging {
        case.wire.forget_answers(plural);
    }
    let process = case.start().await;
    case.decided(&[name]).await;
    process
}

/// Starts the manager with stale lists of these kinds while later changes arrive late, and waits until a deed
/// has had its effect.
async fn starts_in_the_past(case: &Case, name: &str, deed: &Deed, lagging: &[&str]) -> Process {
    let mut stale = Vec::new();
    for plural in lagging {
        stale.push(case.wire.rule(Rule::on(&[Verb::List], Fault::Stale).plural(plural).times(1)));
        case.wire.rule(Rule::on(&[Verb::Watch], Fault::Refused).plural(plural).times(2));
    }
    let process = case.start().await;
    answered(case, name, deed, true).await;
    for rule in stale {
        assert_eq!(case.wire.struck(rule), 1);
    }
    process
}

/// One of the successive changes of an instance.
#[derive(Debug, Clone)]
enum Deed {
    Spec(Value),
    /// Changes the object that a ref reads.
    Colour(&'static str),
    /// Requests the deletion, which waits for children with `Ask`.
    Delete,
    /// Approves all that waits for approval.
    Approve,
}

fn deeds(subject: &Subject) -> Vec<Deed> {
    match subject.name {
        "motley" => vec![
            Deed::Spec(json!({"stage": "one"})),
            Deed::Spec(json!({"stage": "two", "asked": false, "kept": false, "volume": false,
                "environments": [{"name": "b", "bare": true}, {"name": "c"}]})),
            Deed::Colour("blue"),
            // Children that were retained or wait for approval are desired again.
            Deed::Spec(json!({"stage": "three", "environments": [{"name": "a"}]})),
            Deed::Delete,
            Deed::Approve,
        ],
        "webapp" => vec![
            Deed::Spec(json!({"image": "example.org/web:1", "host": "example.org", "minAvailable": 1,
                "config": {"COLOUR": "red"}})),
            Deed::Spec(json!({"image": "example.org/web:2", "replicas": 2,
                "config": {"COLOUR": "blue"}})),
            Deed::Delete,
        ],
        _ => vec![
            Deed::Spec(json!({"size": 2, "version": "3.5.1"})),
            Deed::Spec(json!({"size": 3, "version": "3.5.2"})),
            Deed::Spec(json!({"size": 1, "version": "3.5.2"})),
            Deed::Delete,
        ],
    }
}

async fn colour(case: &Case, name: &str, colour: &str) {
    let settings = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("{name}-settings")},
        "data": {"colour": colour}});
    case.scene.apply(&settings.to_string()).await;
}

async fn perform(case: &Case, name: &str, deed: &Deed) {
    match deed {
        Deed::Spec(spec) => case.apply(name, spec).await,
        Deed::Colour(text) => colour(case, name, text).await,
        Deed::Delete => case.delete(name).await,
        Deed::Approve => {
            let asked = case.scene.get(CONFIG_MAP, &format!("{name}-asked")).await;
            let runs = case.scene.runs(name).await;
            let run = runs.iter().find(|run| run["spec"]["params"]["uid"] == uid_of(&asked)).expect("a run");
            case.scene.answer(name_of(run), "approve", "Approve").await;
        }
    }
}

/// Waits until a deed has had its effect, when no fault is active.
async fn answered(case: &Case, name: &str, deed: &Deed, is_held: bool) {
    match deed {
        Deed::Spec(_) => drop(case.ready(name).await),
        Deed::Colour(colour) => {
            let copy = format!("{name}-copy");
            case.scene.until("copied", CONFIG_MAP, &copy, |o| o["data"]["colour"] == *colour).await;
        }
        Deed::Delete if is_held => {
            let pending = |o: &Value| condition(o, "DeletionPending")["status"] == "True";
            case.scene.until("held up", case.kind, name, pending).await;
            case.scene.gone(SECRET, name).await;
            case.collected().await;
        }
        Deed::Delete | Deed::Approve => {
            case.gone(name).await;
            case.collected().await;
        }
    }
    case.quiet().await;
}

/// Deletes the retained objects.
async fn sweep_up(case: &Case, name: &str) {
    for (resource, suffix) in [("configmap", "-kept"), ("configmap", "-settings"), ("pvc", "")] {
        let object = format!("{name}{suffix}");
        case.scene.kubectl(&["delete", resource, &object, "--ignore-not-found", "--wait=false"]).await;
    }
    case.scene.gone(VOLUME_CLAIM, name).await;
}

/// The states of an undisturbed run after each deed.
fn reference(subject: &'static Subject) -> &'static [Checkpoint] {
    static REFERENCES: [OnceLock<Vec<Checkpoint>>; 3] = [const { OnceLock::new() }; 3];
    let number = ["motley", "webapp", "etcd"].iter().position(|name| *name == subject.name).unwrap();
    REFERENCES[number].get_or_init(|| apart(async move || undisturbed(subject).await))
}

async fn undisturbed(subject: &'static Subject) -> Vec<Checkpoint> {
    let case = Case::of(subject, 0).await;
    let process = case.start().await;
    let (name, deeds) = ("i-calm", deeds(subject));
    prepare(&case, name).await;
    let mut stages = Vec::new();
    for deed in &deeds {
        let mark = case.wire.mark();
        perform(&case, name, deed).await;
        answered(&case, name, deed, matches!(deeds.last(), Some(Deed::Approve))).await;
        stages.push(Checkpoint { state: case.state(name).await, counts: case.counts(mark, name) });
    }
    case.finish(process).await;
    stages
}

async fn prepare(case: &Case, name: &str) {
    if case.subject.name == "motley" {
        colour(case, name, "red").await;
    }
}

/// Which writes are tried: the first one, and the distance to the next.
static LANE: LazyLock<(usize, usize)> = LazyLock::new(|| {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let stride = number("OPERETTA_SWEEP").unwrap_or(9);
    let from = number("OPERETTA_SWEEP_FROM").unwrap_or(1);
    eprintln!("OPERETTA_SWEEP={stride} OPERETTA_SWEEP_FROM={from}");
    (from, stride)
});

/// For some k: performs all deeds, each with a manager that ends at its kth write.
async fn sweep(subject: &'static Subject, fault: &Fault) {
    let (stages, case) = (reference(subject), Case::of(subject, 0).await);
    let (from, stride) = *LANE;
    case.start().await.stop().await;
    let deeds = deeds(subject);
    for k in (from..).step_by(stride) {
        let name = format!("i-{k}-die");
        prepare(&case, &name).await;
        let (mut died, mut password) = (false, Value::Null);
        for (number, (deed, stage)) in deeds.iter().zip(stages).enumerate() {
            let told = format!("{} {fault:?}, k = {k}, {deed:?}", subject.name);
            let mark = case.wire.mark();
            perform(&case, &name, deed).await;
            died |= dies_at(&case, k, fault, async || case.same(&name, &stage.state).await).await;
            let process = case.start().await;
            case.same(&name, &stage.state).await;
            let counts = case.counts(mark, &name);
            assert_eq!(counts, stage.counts, "{told}:\n{}", story(&case.wire.writes(mark)));
            if let Some(secret) = case.scene.find(SECRET, &name).await {
                let now = secret["data"]["password"].clone();
                assert!(password.is_null() || password == now, "{told}: another password");
                password = now;
            }
            let process = if number == 1 { case.stays(process, &[&name]).await } else { process };
            process.stop().await;
        }
        sweep_up(&case, &name).await;
        if !died {
            assert!(k > 3, "{}: there are more than {k} writes", subject.name);
            break;
        }
    }
    let process = case.start().await;
    case.finish(process).await;
}

/// Runs a manager that ends at its `k`th write in any namespace, and waits until it has ended, or until
/// `done`. Returns whether it has ended.
async fn dies_at(case: &Case, k: usize, fault: &Fault, done: impl AsyncFnOnce()) -> bool {
    let rule = case.wire.rule(Rule::on(WRITES, fault.clone()).skip(k - 1).times(1));
    if let Ok(process) = case.try_start(case.package.clone()).await {
        let life = process.life.clone();
        tokio::select! {
            () = life.over() => process.kill(),
            () = done() => process.stop().await,
        }
    }
    let died = case.wire.struck(rule) > 0;
    case.wire.heal();
    died
}

#[tokio::test]
async fn any_mix_of_faults_ends_the_same_for_mixed_policies() {
    storms(&MOTLEY).await;
}

#[tokio::test]
async fn any_mix_of_faults_ends_the_same_for_etcd() {
    storms(&ETCD).await;
}

/// Each seed from [`crate::support::seed`] on gives a mix.
async fn storms(subject: &'static Subject) {
    let stages = reference(subject);
    let run = async |seed: u64| {
        let told = Told(seed);
        storm(subject, seed, stages).await;
        drop(told);
    };
    futures::stream::iter(seeds().into_iter().map(run)).buffer_unordered(AT_ONCE).collect::<()>().await;
}

async fn storm(subject: &'static Subject, seed: u64, stages: &[Checkpoint]) {
    let mix = Mix::of(seed);
    let case = Case::of(subject, seed).await.with_deadline(Duration::from_secs(3));
    let mut process: Process = case.start().await;
    let name = "i-any";
    prepare(&case, name).await;
    for (deed, stage) in deeds(subject).iter().zip(stages) {
        let mark = case.wire.mark();
        mix.arm(&case);
        perform(&case, name, deed).await;
        process = mix.storm(&case, process, async || case.same(name, &stage.state).await).await;
        process = alive(&case, process, async || case.same(name, &stage.state).await).await;
        let counts: Counts = case.counts(mark, name);
        assert_eq!(counts, stage.counts, "seed {seed}, {deed:?}:\n{}", story(&case.wire.writes(mark)));
    }
    case.finish(process).await;
}

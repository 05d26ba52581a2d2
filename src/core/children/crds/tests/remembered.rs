//! What is remembered of the CRDs of a package from one decision to the next.

use super::*;
use crate::api::Gvk;

/// The ready CRD after a user has replaced its spec.
fn replaced(package: &Package, generation: i64) -> Value {
    let mut live = ready(package);
    live["spec"] = plain_crd()["spec"].clone();
    live["metadata"]["resourceVersion"] = generation.to_string().into();
    live["metadata"]["generation"] = generation.into();
    let fields = entry("git", "Update", &SPEC);
    disown_spec(&mut live);
    live["metadata"]["managedFields"].as_array_mut().unwrap().push(fields);
    live
}

#[test]
fn crd_changed_repeatedly_is_left_until_the_changes_stop() {
    let package = Arc::new(package(false));
    let mut crds = crds(&package);
    let second = Duration::from_secs(1);
    assert_eq!(turn(&mut crds, Some(&ready(&package)), second), (false, Vec::new()));
    let warning = |findings: &[Finding]| match findings {
        [Finding::Warning(0, reason, text)] => (*reason, text.clone()),
        other => panic!("{other:?}"),
    };
    for generation in [2, 4] {
        let live = replaced(&package, generation);
        assert!(snapshot(&package, Some(&live)).has_lost_status(&crds.crds()[0]));
        let (is_written, findings) = turn(&mut crds, Some(&live), second * 2);
        assert!(is_written);
        assert_eq!(warning(&findings).0, "CRDRestored");
        assert!(warning(&findings).1.contains("git"));
    }
    let live = replaced(&package, 6);
    let (is_written, findings) = turn(&mut crds, Some(&live), second * 3);
    let (reason, text) = warning(&findings);
    assert_eq!((is_written, reason), (false, "CRDFieldManagerConflict"));
    for words in ["3 times within 10 minutes", "last by git", "operetta crd", "status subresource"] {
        assert!(text.contains(words), "{text}");
    }
    let until = second * 603;
    assert_eq!(crds.wait(), Wait::Until(until));
    // Another read of the same is no news; another change makes the wait longer.
    assert_eq!(turn(&mut crds, Some(&live), second * 4), (false, Vec::new()));
    assert_eq!(crds.wait(), Wait::Until(until));
    let (is_written, findings) = turn(&mut crds, Some(&replaced(&package, 7)), second * 13);
    assert_eq!((is_written, warning(&findings).0), (false, "CRDFieldManagerConflict"));
    let until = second * 613;
    assert_eq!(crds.wait(), Wait::Until(until));
    let seen = |_: &str| Some(CrdVersion::of(&replaced(&package, 7)));
    assert!(!crds.is_read_due(seen, true, second * 612) && crds.is_read_due(seen, true, until));
    // The changes have stopped: the CRD is restored once more.
    let (is_written, findings) = turn(&mut crds, Some(&replaced(&package, 7)), until);
    assert_eq!((is_written, warning(&findings).0), (true, "CRDRestored"));
    assert_eq!((crds.wait(), crds.conflict_message(0)), (Wait::Event, None));
}

#[test]
fn running_manager_does_not_take_a_crd_back() {
    let package = Arc::new(package(false));
    let mut crds = crds(&package);
    let mut live = ready(&package);
    live["metadata"]["annotations"][names::MANAGER] = "n/other".into();
    let (is_written, findings) = turn(&mut crds, Some(&live), NOW);
    assert!(is_written, "a manager that starts takes the CRD over");
    assert_eq!(findings, []);
    let (is_written, findings) = turn(&mut crds, Some(&live), NOW);
    assert_eq!((is_written, findings), (false, vec![Finding::OtherManager(0, "n/other".to_owned())]));
}

#[test]
fn unused_record_entries_are_removed_and_a_refusal_is_harmless() {
    let package = Arc::new(package(false));
    let mut crds = crds(&package);
    crds.is_active = true;
    let mut live = ready(&package);
    live["metadata"]["annotations"][names::CHILD_KINDS] = "v1/ConfigMap,v1/Secret".into();
    let body = patch(&package, Some(&live)).body("ws.example.org", Some(&live));
    live["metadata"]["annotations"] = body["metadata"]["annotations"].clone();
    assert_eq!(turn(&mut crds, Some(&live), NOW), (false, Vec::new()));
    let version = |_: &str| Some(CrdVersion::of(&live));
    let mut now = NOW;
    for (wait, has_children) in [(5, true), (5, true), (10, false)] {
        assert_eq!(crds.wait(), Wait::Until(now + Duration::from_secs(wait)));
        now += Duration::from_secs(wait);
        let kinds = [Gvk::new("v1", "Secret")];
        let listed = kinds.map(|kind| (kind, KindUsage::Listed { has_children }));
        crds.record_usage(
            OURS,
            |_, _, _| ChildScopeUsage { kinds: listed.clone().into(), ..ChildScopeUsage::default() },
            now,
        );
        assert_eq!(crds.is_read_due(version, true, now), !has_children);
    }
    // A refusal is no problem of the package.
    let refused =
        CrdSnapshot { dry_run: DryRun::Answered(Err(failed(422))), ..snapshot(&package, Some(&live)) };
    let settled = decide_crd(&refused, &crds.crds()[0], now);
    assert!(matches!(settled, CrdDecision::Settled(CrdState::Ready(_), None)), "{settled:?}");
    // No client has changed the CRD, so none is named.
    let (patch, outcome) = reconcile(&package, Some(&live), &crds.crds()[0], now);
    assert_eq!((patch.unwrap().with_spec, outcome.changed_by), (false, None));
}

#[test]
fn a_deleted_crd_is_created_again_once_it_is_gone() {
    let package = Arc::new(package(false));
    let mut crds = crds(&package);
    let live = ready(&package);
    turn(&mut crds, Some(&live), NOW);
    let mut terminating = live.clone();
    terminating["metadata"]["deletionTimestamp"] = "x".into();
    terminating["metadata"]["resourceVersion"] = "8".into();
    assert_eq!(turn(&mut crds, Some(&terminating), NOW), (false, Vec::new()));
    assert_eq!(crds.wait(), Wait::Backoff);
    assert!(!crds.record_gone("ws.example.org", "another"));
    assert!(crds.record_gone("ws.example.org", "u") && !crds.is_complete());
    assert!(crds.is_read_due(|_| None, true, NOW));
    let (is_written, findings) = turn(&mut crds, None, NOW);
    assert_eq!((is_written, findings, crds.is_complete()), (true, Vec::new(), true));
}

#[test]
fn a_crd_that_an_old_list_has_not_is_read_when_it_is_back() {
    let package = Arc::new(package(false));
    let mut crds = crds(&package);
    let live = ready(&package);
    turn(&mut crds, Some(&live), NOW);
    let seen = |_: &str| Some(CrdVersion::of(&live));
    assert!(!crds.is_read_due(seen, true, NOW));
    assert!(crds.record_gone("ws.example.org", "u"));
    assert!(
        crds.is_read_due(seen, true, NOW),
        "it is back before anything was read: its instances are lost for ever"
    );
    let (is_written, _) = turn(&mut crds, Some(&live), NOW);
    assert!(!is_written && crds.is_complete() && !crds.is_read_due(seen, true, NOW));
}

#[test]
fn changed_problems_are_reported_and_shared_kinds_refused() {
    let package = Arc::new(package(false));
    let (mut crds, other) = (crds(&package), self::crds(&package));
    assert!(crds.is_read_due(|_| None, false, NOW) && crds.acceptance().is_none());
    let foreign = live(&plain_crd(), false, &[entry("kubectl", "Apply", &SPEC)]);
    assert_eq!(turn(&mut crds, Some(&foreign), NOW), (false, Vec::new()), "the starter reports the first");
    assert_eq!(crds.acceptance().unwrap().problems[0].code, "crd::foreign");
    assert_eq!(crds.wait(), Wait::Until(NOW + Duration::from_secs(300)));
    assert_eq!(turn(&mut crds, Some(&foreign), NOW), (false, Vec::new()));
    let claims = crds.claims([&other].into_iter(), &|_, _, _| false);
    assert_eq!(claims[0].code, "crd::claimed");
    assert_eq!(crds.record_claims(claims.clone(), NOW), [Finding::Problem(claims[0].clone())]);
    assert_eq!(crds.record_claims(claims, NOW), []);
    assert_eq!(crds.record_panic("at 1").len(), 1);
    assert_eq!((crds.wait(), crds.acceptance().unwrap().is_temporary), (Wait::Backoff, true));
    // A CRD that the server does not establish is a problem after a while.
    let mut pending = ready(&package);
    pending["status"].take();
    assert_eq!(turn(&mut crds, Some(&pending), NOW).1, []);
    let (_, findings) = turn(&mut crds, Some(&pending), NOW + Duration::from_secs(120));
    assert!(matches!(&findings[..], [Finding::Problem(problem)] if problem.code == "crd::not-established"));
    turn(&mut crds, Some(&ready(&package)), NOW);
    assert_eq!((crds.obstacle(), crds.wait()), ("its CRDs are being registered", Wait::Event));
}

#[test]
fn turns_of_a_migration_follow_each_other_without_failure() {
    let package = Arc::new(package(false));
    let mut crds = crds(&package);
    let wait = Duration::from_secs(3);
    let outcome = || {
        let state = migrating(&package.resources[0], wait);
        vec![CrdOutcome { state, seen: None, changed_by: None, spec_written: false }]
    };
    assert_eq!(crds.record(outcome(), OURS, NOW), []);
    assert_eq!((crds.wait(), crds.acceptance()), (Wait::Until(NOW + wait), None));
    // A migration that takes long is reported, and its turns go on.
    let later = NOW + Duration::from_secs(120);
    crds.record(outcome(), OURS, later);
    assert_eq!(crds.wait(), Wait::Until(later + wait));
    let acceptance = crds.acceptance().unwrap();
    assert!(acceptance.is_temporary && acceptance.problems[0].code == MIGRATING, "{acceptance:?}");
}

use serde_json::json;

use super::*;
use crate::crd as crds;

const NOW: &str = "2026-01-01T00:00:00Z";

#[test]
fn the_recorded_revision_is_activated_first_after_a_start() {
    let spec = |paused: bool| OperatorSpec { revision: "a-2".into(), paused, ..OperatorSpec::default() };
    for (active, recorded, is_lost, paused, expected) in [
        (None, None, false, false, Next::Named("a-2")),
        (None, Some("a-1"), false, false, Next::Recorded("a-1")),
        (None, Some("a-1"), true, false, Next::Named("a-2")),
        (None, Some("a-2"), false, false, Next::Named("a-2")),
        (None, Some("a-2"), false, true, Next::Recorded("a-2")),
        (None, Some("a-1"), true, true, Next::Paused),
        (None, None, false, true, Next::Paused),
        (Some("a-1"), Some("a-1"), false, false, Next::Named("a-2")),
        (Some("a-1"), Some("a-1"), false, true, Next::Paused),
        (Some("a-2"), Some("a-1"), false, false, Next::Nothing),
        (Some("a-2"), Some("a-1"), false, true, Next::Nothing),
    ] {
        let spec = spec(paused);
        assert_eq!(
            next(&spec, active, recorded, is_lost),
            expected,
            "{active:?} {recorded:?} {is_lost} {paused}"
        );
    }
}

fn facts(progress: Target, active: Option<(&'static str, &'static str)>) -> Facts<'static> {
    Facts {
        generation: 3,
        target: "a-2",
        progress,
        active,
        instances: Some(&[]),
        missing_namespaces: &[],
        migration: None,
        rights: None,
    }
}

fn apply(mut current: serde_json::Value, facts: &Facts<'_>) -> serde_json::Value {
    if let Some(patch) = patch(&current, facts, NOW) {
        for (key, value) in patch.as_object().unwrap() {
            current[key] = value.clone();
        }
    }
    assert_eq!(patch(&current, facts, "2027-01-01T00:00:00Z"), None, "a second patch changes nothing");
    current
}

fn seen(status: &serde_json::Value) -> Observed {
    standing(&json!({"metadata": {"generation": 3}, "spec": {"revision": "a-2"}, "status": status}))
}

#[test]
fn missing_rights_are_named_while_they_are_missing() {
    let of =
        |rights: Option<MissingRights>| Facts { rights, ..facts(Target::Active, Some(("a-2", "1.0.0"))) };
    let (user, rights) =
        ("system:serviceaccount:o:operetta-a".to_owned(), vec!["list secrets in n".to_owned()]);
    let status = apply(
        json!({}),
        &of(Some(MissingRights { user, rights, refused: vec!["refs v1 Secret: 403".into()] })),
    );
    let condition = |status: &serde_json::Value| {
        let all = status["conditions"].as_array().unwrap();
        all.iter().find(|c| c["type"] == "RightsMissing").map(|c| c["message"].as_str().unwrap().to_owned())
    };
    assert_eq!(
        condition(&status).unwrap(),
        "apply what `operetta rbac` prints for the package a; system:serviceaccount:o:operetta-a may not: list secrets in n; \
         refused: refs v1 Secret: 403"
    );
    assert_eq!(status["missingRights"], json!(["list secrets in n"]));
    assert_eq!(seen(&status).standing, Standing::Active, "the revision is active all the same");
    let status = apply(status, &of(None));
    assert!(condition(&status).is_some(), "nobody could ask");
    let status = apply(status, &of(Some(MissingRights::default())));
    assert_eq!((condition(&status), &status["missingRights"]), (None, &json!(null)));
}

#[test]
fn the_status_says_what_is_active_and_what_the_rest_waits_for() {
    let foreign = json!({"conditions": [{"type": "Theirs", "status": "True"}]});
    let status = apply(foreign, &facts(Target::Progressing("its CRDs are being registered".into()), None));
    assert_eq!(seen(&status).standing, Standing::Progressing("a-2: its CRDs are being registered".into()));
    let status = apply(status, &facts(Target::Active, Some(("a-1", "1.0.0"))));
    assert_eq!(status["activeRevision"], "a-1");
    assert_eq!(status["previousRevision"], json!(null));
    let refused = Target::Refused { reason: "CRDRefused", message: "no".into(), is_temporary: false };
    let status = apply(status, &facts(refused, Some(("a-1", "1.0.0"))));
    let Observed { standing, active } = seen(&status);
    assert_eq!(standing, Standing::Stalled("CRDRefused".into(), "a-2: no; a-1 stays active".into()));
    assert_eq!(active.as_deref(), Some("a-1"));
    let status = apply(status, &facts(Target::Active, Some(("a-2", "2.0.0"))));
    assert_eq!((&status["activeRevision"], &status["previousRevision"]), (&json!("a-2"), &json!("a-1")));
    assert_eq!(seen(&status).standing, Standing::Active);
    assert!(status["conditions"].as_array().unwrap().iter().any(|c| c["type"] == "Theirs"));
    // Nothing is active after a start: the record stays.
    let lost = Lost { reason: "RevisionMissing", message: "gone".into(), is_temporary: false };
    let status = apply(status, &facts(Target::NotLoaded(lost), None));
    assert_eq!(status["activeRevision"], "a-2");
    assert_eq!(seen(&status).active, None);
}

#[test]
fn an_old_status_says_nothing_of_a_new_spec() {
    let status = apply(json!({}), &facts(Target::Active, Some(("a-2", "2.0.0"))));
    let newer = json!({"metadata": {"generation": 4}, "spec": {"revision": "a-2"}, "status": status});
    assert_eq!(standing(&newer).standing, Standing::Unseen);
    assert_eq!(standing(&json!({"metadata": {}, "spec": {}})).standing, Standing::Unseen);
}

#[test]
fn the_crd_is_one_that_the_api_server_accepts() {
    let crd = crd();
    assert_eq!(crds::check(&crd), Vec::new());
    assert_eq!(crds::kind(&crd), Some(kind()));
}

use serde_json::json;

use super::upgrade::Kept;
use super::*;
use crate::crd as crds;
use crate::package::{Files, compile};
use crate::test_crd::crd_to_properties;

const ACTIVE: RevisionProgress =
    RevisionProgress::Active { kept: Kept { unserved: 0, pinned: 0, paused: 0, busy: 0 } };
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

fn facts(progress: RevisionProgress, active: Option<(&'static str, &'static str)>) -> Facts<'static> {
    Facts {
        handed_over: &[],
        generation: 3,
        target: "a-2",
        author: Author { manager: Some("kubectl-edit".into()), user: None },
        progress,
        is_of_source: false,
        active,
        valid_defaults: None,
        instances: Some(&[]),
        unstored: None,
        unsupported: None,
        source: None,
        untrusted: None,
        missing_dependencies: None,
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

fn seen(status: &serde_json::Value) -> RevisionStatus {
    standing(&json!({"metadata": {"generation": 3}, "spec": {"revision": "a-2"}, "status": status}))
}

#[test]
fn unsupported_kubernetes_is_reported_and_the_revision_stays_active() {
    let of = |unsupported| Facts {
        unsupported,
        ..facts(RevisionProgress::Active { kept: Kept::default() }, Some(("a-2", "1.0.0")))
    };
    let status = apply(json!({}), &of(Some("the package a 1.0.0 requires Kubernetes <1.36")));
    let find = |status: &serde_json::Value, kind: &str| {
        status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == kind).cloned()
    };
    let told = find(&status, KUBERNETES_UNSUPPORTED).unwrap();
    assert!(
        told["message"].as_str().unwrap().contains("requires Kubernetes <1.36. It stays active"),
        "{told}"
    );
    assert!(matches!(seen(&status).standing, Standing::Active(_)));
    assert_eq!(find(&apply(status, &of(None)), KUBERNETES_UNSUPPORTED), None);
}

#[test]
fn missing_rights_are_named_while_they_are_missing() {
    let of = |rights: Option<MissingRights>| Facts { rights, ..facts(ACTIVE, Some(("a-2", "1.0.0"))) };
    let (user, rights) =
        ("system:serviceaccount:o:operetta-a".to_owned(), vec!["list secrets in n".to_owned()]);
    let status = apply(
        json!({}),
        &of(Some(MissingRights {
            user,
            rights,
            refused: vec!["refs v1 Secret: 403".into()],
            gone: vec!["ClusterRole operetta:a:edit".into()],
            manager: vec![],
            changed: vec![],
        })),
    );
    let condition = |status: &serde_json::Value| {
        let all = status["conditions"].as_array().unwrap();
        all.iter().find(|c| c["type"] == "RightsMissing").map(|c| c["message"].as_str().unwrap().to_owned())
    };
    assert_eq!(
        condition(&status).unwrap(),
        "rights are missing: system:serviceaccount:o:operetta-a may not: list secrets in n; refused: refs v1 Secret: 403; \
         there is no ClusterRole operetta:a:edit; give `operetta upgrade` with the files of a again, or apply what `operetta rbac` \
         prints for the package a"
    );
    assert_eq!(status["missingRights"], json!(["list secrets in n"]));
    assert!(
        matches!(seen(&status), RevisionStatus { standing: Standing::Stalled(reason, _), active: Some(_), .. } if reason == "RightsMissing"),
        "the revision is active all the same, and instances are in trouble"
    );
    let status = apply(status, &of(None));
    assert!(condition(&status).is_some(), "nobody could ask");
    // What is refused to the manager itself concerns all instances.
    let hindered = MissingRights { manager: vec!["instances bs.c: 403".into()], ..MissingRights::default() };
    let status = apply(status, &of(Some(hindered)));
    assert!(condition(&status).unwrap().contains("refused to the manager: instances bs.c: 403"));
    assert!(matches!(seen(&status).standing, Standing::Stalled(_, told) if told.contains("instances bs.c")));
    let changed =
        MissingRights { changed: vec!["ClusterRole operetta:a:b".into()], ..MissingRights::default() };
    let status = apply(status, &of(Some(changed)));
    let told =
        "rights are changed: other rules than those of the revision are in ClusterRole operetta:a:b; give";
    assert!(condition(&status).unwrap().starts_with(told));
    let status = apply(status, &of(Some(MissingRights::default())));
    assert_eq!((condition(&status), &status["missingRights"]), (None, &json!(null)));
    assert_eq!(seen(&status).standing, Standing::Active(String::new()));
}

#[test]
fn status_shows_the_active_revision_and_what_is_awaited() {
    let foreign = json!({"conditions": [{"type": "Theirs", "status": "True"}]});
    let status =
        apply(foreign, &facts(RevisionProgress::Progressing("its CRDs are being registered".into()), None));
    assert_eq!(seen(&status).standing, Standing::Progressing("a-2: its CRDs are being registered".into()));
    let status = apply(status, &facts(ACTIVE, Some(("a-1", "1.0.0"))));
    assert_eq!(status["activeRevision"], "a-1");
    assert_eq!(status["previousRevision"], json!(null));
    assert_eq!(status["targetSince"], NOW);
    let other = Facts { target: "a-3", ..facts(ACTIVE, Some(("a-1", "1.0.0"))) };
    assert_eq!(
        patch(&status, &other, "2027-01-01T00:00:00Z").unwrap()["targetSince"],
        "2027-01-01T00:00:00Z"
    );
    let refused =
        RevisionProgress::Refused { reason: "CRDRefused", message: "no".into(), is_temporary: false };
    let status = apply(status, &facts(refused, Some(("a-1", "1.0.0"))));
    let RevisionStatus { standing, active, .. } = seen(&status);
    assert_eq!(standing, Standing::Stalled("CRDRefused".into(), "a-2: no; a-1 stays active".into()));
    assert_eq!(active.as_deref(), Some("a-1"));
    let status = apply(status, &facts(ACTIVE, Some(("a-2", "2.0.0"))));
    assert_eq!((&status["activeRevision"], &status["previousRevision"]), (&json!("a-2"), &json!("a-1")));
    assert_eq!(seen(&status).standing, Standing::Active(String::new()));
    assert!(status["conditions"].as_array().unwrap().iter().any(|c| c["type"] == "Theirs"));
    // Nothing is active after a start: the record stays.
    let lost = Lost { reason: "RevisionMissing", message: "gone".into(), is_temporary: false };
    let status = apply(status, &facts(RevisionProgress::NotLoaded(lost), None));
    assert_eq!(status["activeRevision"], "a-2");
    assert_eq!(seen(&status).active, None);
}

#[test]
fn one_wrong_default_keeps_the_last_valid_ones() {
    let operator = "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {name: a}\nspec: {version: 0.1.0, \
                    resources: [{crd: crds/thing.yaml, children: []}], defaults: {greeting: hello, count: 2, list: null}}\n";
    let crd = crd_to_properties("example.org", "things", "Thing") + "            spec: {type: object}\n";
    let files = Files::from_texts("a", [("operator.yaml", operator), ("crds/thing.yaml", &crd)]);
    let (package, _) = compile(&files).unwrap();
    let spec = |defaults: serde_json::Value| {
        OperatorSpec::parse(&json!({"spec": {"revision": "a-2", "defaults": defaults}})).unwrap()
    };
    let effective = |defaults, status: &serde_json::Value| {
        package.defaults_with(&effective_defaults(&spec(defaults), status, Some(&package)))
    };
    let valid = json!({"greeting": "hi", "count": 3, "list": [null]});
    let status = apply(
        json!({}),
        &Facts { valid_defaults: valid.as_object(), ..facts(ACTIVE, Some(("a-2", "1.0.0"))) },
    );
    for wrong in [json!({"greeting": "ho", "count": "3"}), json!({"greeting": "ho", "other": 1})] {
        assert_eq!(effective(wrong, &status), valid);
    }
    let new = json!({"greeting": "ho"});
    assert_eq!(effective(new.clone(), &status), json!({"greeting": "ho", "count": 2, "list": null}));
    // No defaults were ever valid.
    let wrong = json!({"greeting": "ho", "count": "3"});
    assert_eq!(effective(wrong, &json!({})), json!({"greeting": "ho", "count": 2, "list": null}));
    // Before the package is known, instances keep what they have.
    assert_eq!(effective_defaults(&spec(new.clone()), &status, None), *valid.as_object().unwrap());
    assert_eq!(effective_defaults(&spec(new.clone()), &json!({}), None), *new.as_object().unwrap());
    // Fewer values replace the record.
    let status =
        apply(status, &Facts { valid_defaults: new.as_object(), ..facts(ACTIVE, Some(("a-2", "1.0.0"))) });
    assert_eq!(status["defaults"], json!([{"name": "greeting", "value": "ho"}]));
    let all = json!({"greeting": 1, "count": 3, "other": 1, "list": 1});
    let wrong = package.wrong_defaults(all.as_object().unwrap());
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(wrong[0].starts_with("greeting: ") && wrong[1].starts_with("other: "), "{wrong:?}");
}

#[test]
fn messages_contain_no_unsafe_characters() {
    let refused = RevisionProgress::Refused {
        reason: "SpecInvalid",
        message: "a\u{1b}\n\u{202e}".into(),
        is_temporary: false,
    };
    let status = apply(json!({}), &facts(refused, Some(("a-1", "1.0.0"))));
    let expected = "a-2: a\\u{1b} \\u{202e}; a-1 stays active";
    assert_eq!(seen(&status).standing, Standing::Stalled("SpecInvalid".into(), expected.into()));
}

#[test]
fn status_of_an_older_generation_counts_as_unseen() {
    let status = apply(json!({}), &facts(ACTIVE, Some(("a-2", "2.0.0"))));
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

fn note(status: &serde_json::Value) -> (String, String) {
    match seen(status) {
        RevisionStatus { standing: Standing::Active(note), reason, .. } => (reason, note),
        other => panic!("{other:?}"),
    }
}

#[test]
fn problems_beside_an_active_revision_are_reported() {
    let active = || facts(ACTIVE, Some(("a-2", "1.0.0")));
    let kept = RevisionProgress::Active { kept: Kept { pinned: 2, paused: 1, ..Kept::default() } };
    let status = apply(json!({}), &Facts { progress: kept, ..active() });
    let expected =
        "a-2 is active; 3 instances keep an earlier revision: 2 pinned by spec.upgrade.pin, 1 paused";
    assert_eq!(note(&status), ("InstancesKept".into(), expected.into()));
    let missing = ["late".to_owned()];
    let status = apply(status, &Facts { missing_namespaces: &missing, ..active() });
    let (reason, told) = note(&status);
    assert!(reason == "NamespacesMissing" && told.contains("there is no namespace late"), "{reason} {told}");
    let missing_dependencies = Some("kinds are not served that a requires: Cache");
    let status = apply(status, &Facts { missing_dependencies, ..active() });
    assert_eq!(note(&status).0, "DependenciesMissing");
    let has = |status: &serde_json::Value| {
        status["conditions"].as_array().unwrap().iter().any(|one| one["type"] == "DependenciesMissing")
    };
    assert!(has(&status));
    let migration = Some((true, "the object x cannot be written"));
    let status = apply(status, &Facts { migration, ..active() });
    assert!(!has(&status));
    assert_eq!(note(&status).0, "MigrationFailed");
    // The gravest is the reason, and all are in the message.
    let rights = Some(MissingRights { rights: vec!["list secrets".into()], ..MissingRights::default() });
    let status = apply(status, &Facts { migration, missing_namespaces: &missing, rights, ..active() });
    let Standing::Stalled(reason, told) = seen(&status).standing else { panic!("{status:#}") };
    assert_eq!(reason, "RightsMissing");
    for words in ["list secrets", "no namespace late", "cannot be written"] {
        assert!(told.contains(words), "{told}");
    }
    // The API server cannot be asked for the rights.
    let status = apply(status, &active());
    assert!(matches!(seen(&status).standing, Standing::Stalled(reason, _) if reason == "RightsMissing"));
    let status = apply(status, &Facts { rights: Some(MissingRights::default()), ..active() });
    assert_eq!(note(&status), ("Active".into(), String::new()));
}

#[test]
fn history_records_author_and_result_of_each_revision() {
    let history = |status: &serde_json::Value| -> Vec<String> {
        let entries = status["history"].as_array().unwrap().iter();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or("-").to_owned();
        entries
            .map(|e| {
                ["revision", "fromRevision", "manager", "result", "message"].map(|f| text(&e[f])).join(" ")
            })
            .collect()
    };
    let at = |target, progress, active| Facts { target, ..facts(progress, active) };
    let status = apply(json!({}), &at("a-1", RevisionProgress::Progressing("its CRDs".into()), None));
    assert_eq!(history(&status), ["a-1 - kubectl-edit InProgress -"]);
    let status = apply(status, &at("a-1", ACTIVE, Some(("a-1", "0.1.0"))));
    assert_eq!(history(&status), ["a-1 - kubectl-edit Completed -"]);
    let refused =
        || RevisionProgress::Refused { reason: "CRDRefused", message: "no".into(), is_temporary: false };
    let status = apply(status, &at("a-2", refused(), Some(("a-1", "0.1.0"))));
    assert_eq!(history(&status)[0], "a-2 a-1 kubectl-edit Stalled CRDRefused: no");
    let status = apply(status, &at("a-3", ACTIVE, Some(("a-3", "0.3.0"))));
    assert_eq!(
        history(&status),
        [
            "a-3 a-1 kubectl-edit Completed -",
            "a-2 a-1 kubectl-edit Superseded CRDRefused: no",
            "a-1 - kubectl-edit Completed -",
        ]
    );
    assert_eq!(
        (&status["history"][0]["version"], &status["history"][0]["fromVersion"]),
        (&json!("0.3.0"), &json!("0.1.0"))
    );
    // A completed entry does not change any more, and revisions from before the history began are not added.
    let later = apply(status.clone(), &at("a-3", refused(), Some(("a-3", "0.3.0"))));
    assert_eq!(later["history"], status["history"]);
    let old = apply(json!({"targetRevision": "a-1"}), &at("a-1", ACTIVE, Some(("a-1", "0.1.0"))));
    assert_eq!(old["history"], json!(null));
    let mut status = status;
    for number in 0..20 {
        let target: &'static str = format!("a-x{number}").leak();
        let long = RevisionProgress::Refused {
            reason: "CRDRefused",
            message: "é".repeat(5_000),
            is_temporary: false,
        };
        status = apply(status, &at(target, long, Some(("a-3", "0.3.0"))));
    }
    assert_eq!(status["history"].as_array().unwrap().len(), 10);
    assert!(status["history"].to_string().len() < 10_000);
}

#[test]
fn author_owns_the_revision_field_and_only_commands_name_users() {
    let entry = |manager: &str, time: &str, field: &str| json!({"manager": manager, "operation": "Update", "time": time, "fieldsV1": {"f:spec": {field: {}}}});
    let operator = |entries: serde_json::Value| {
        json!({
            "metadata": {"annotations": {NAMED_BY: "a-2 alice"}, "managedFields": entries},
            "spec": {"revision": "a-2"},
        })
    };
    let ours = operator(json!([
        entry(INSTALLER, "2026-01-01T00:00:00Z", "f:revision"),
        entry("x", "2026-01-02T00:00:00Z", "f:paused")
    ]));
    assert_eq!(Author::of(&ours), Author { manager: Some(INSTALLER.into()), user: Some("alice".into()) });
    let theirs = operator(json!([entry("kubectl-patch", "2026-01-01T00:00:00Z", "f:revision")]));
    assert_eq!(Author::of(&theirs), Author { manager: Some("kubectl-patch".into()), user: None });
    let mut other = ours;
    other["spec"]["revision"] = "a-3".into();
    assert_eq!(Author::of(&other).user, None);
    assert_eq!(Author::of(&json!({})), Author::default());
}

#[test]
fn changes_of_ready_give_events_and_manager_starts_do_not() {
    let told = |before: &serde_json::Value, after: &serde_json::Value| {
        transition(before, after).map(|event| (event.reason, event.is_warning))
    };
    let registering = || RevisionProgress::Progressing("its CRDs are being registered".into());
    let empty = json!({});
    let first = apply(empty.clone(), &facts(registering(), None));
    assert_eq!(told(&empty, &first), None);
    let active = apply(first.clone(), &facts(ACTIVE, Some(("a-2", "1.0.0"))));
    assert_eq!(told(&first, &active), Some(("Active".into(), false)));
    // A manager starts.
    let again = apply(active.clone(), &facts(registering(), Some(("a-2", "1.0.0"))));
    assert_eq!((told(&active, &again), told(&again, &active)), (None, None));
    let rights = Some(MissingRights { rights: vec!["list secrets".into()], ..MissingRights::default() });
    let missing = apply(active.clone(), &Facts { rights, ..facts(ACTIVE, Some(("a-2", "1.0.0"))) });
    assert_eq!(told(&active, &missing), Some(("RightsMissing".into(), true)));
    assert_eq!(told(&missing, &active), Some(("Active".into(), false)));
    let paused = Rollout { is_paused: true, waiting: 1, ..Rollout::default() };
    let paused = apply(active.clone(), &facts(RevisionProgress::RollingOut(paused), Some(("a-2", "1.0.0"))));
    assert_eq!(told(&active, &paused), Some(("UpgradePaused".into(), true)));
}

#[test]
fn an_operator_with_a_source_names_what_was_fetched_last() {
    let operator =
        |spec: serde_json::Value, status: serde_json::Value| json!({"spec": spec, "status": status});
    let source = json!({"source": {"package": "oci://r.io/a"}});
    let fetched = json!({"source": {"revision": "a-2"}, "activeRevision": "a-1"});
    for (spec, status, expected) in [
        (json!({"revision": "a-3"}), fetched.clone(), "a-3"),
        (source.clone(), fetched, "a-2"),
        (source.clone(), json!({"activeRevision": "a-1"}), "a-1"),
        (source, json!(null), ""),
    ] {
        let operator = operator(spec, status);
        assert_eq!(named(&operator), expected);
        let parsed = OperatorSpec::parse(&operator).unwrap();
        assert_eq!(parsed.revision, expected);
        assert!(parsed.source.is_none_or(|source| source.secret() == PULL_SECRET));
    }
    assert!(OperatorSpec::parse(&operator(json!({}), json!(null))).is_err());
}

#[test]
fn the_source_and_its_signer_are_in_the_status() {
    let signed = SourceRecord {
        package: "oci://r.io/a:1".into(),
        digest: "sha256:1".into(),
        revision: "a-2".into(),
        signer: Some("sha256:k".into()),
        policy: Some("acme".into()),
    };
    let unsigned = SourceRecord { signer: None, ..signed.clone() };
    let with =
        |source: Option<&'static SourceRecord>| Facts { source, ..facts(ACTIVE, Some(("a-2", "1.0.0"))) };
    let (signed, unsigned) = (&*Box::leak(Box::new(signed)), &*Box::leak(Box::new(unsigned)));
    let status = apply(json!({}), &with(Some(signed)));
    assert_eq!(status["source"]["signer"], "sha256:k");
    assert_eq!(patch(&status, &with(Some(signed)), NOW), None);
    let status = patch(&status, &with(Some(unsigned)), NOW).unwrap();
    assert!(status["source"].as_object().unwrap()["signer"].is_null());
    let status = apply(json!({"source": {"digest": "x"}}), &with(None));
    assert!(status["source"].is_null());
}

#[test]
fn an_active_revision_that_no_policy_permits_stays_active() {
    let facts = Facts { untrusted: Some("it is not signed"), ..facts(ACTIVE, Some(("a-2", "1.0.0"))) };
    let status = apply(json!({}), &facts);
    let condition = |kind: &str| {
        let all = status["conditions"].as_array().unwrap();
        all.iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
    };
    assert_eq!(condition("Ready")["status"], "True");
    assert!(condition("Ready")["message"].as_str().unwrap().contains("not signed"));
    assert_eq!(condition(UNTRUSTED)["status"], "True");
}

#[test]
fn nothing_is_a_target_before_the_first_fetch() {
    let progress = RevisionProgress::Progressing("oci://r.io/a is being fetched".into());
    let status = apply(json!({}), &Facts { target: "", is_of_source: true, ..facts(progress, None) });
    assert!(status["targetRevision"].is_null() && status["history"].is_null(), "{status}");
    assert_eq!(
        standing(&json!({
            "metadata": {"generation": 3}, "spec": {"source": {"package": "oci://r.io/a"}}, "status": status,
        }))
        .standing,
        Standing::Progressing("oci://r.io/a is being fetched".into())
    );
}

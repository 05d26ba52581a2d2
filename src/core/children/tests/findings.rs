//! The reason, severity and text of each finding.

use super::*;

fn object() -> ObjectRef {
    ObjectRef { gvk: Gvk::new("v1", "ConfigMap"), namespace: Some("n".into()), name: "c".into() }
}

#[test]
fn each_finding_has_a_reason_a_severity_and_a_text() {
    use Severity::{Pending, Stalled, Waiting};
    let waiting = |block| Finding::Waiting { item: "a".into(), block };
    let second = Duration::from_secs(1);
    let error = || refusal(500, "InternalError", "no");
    let removal = |what, error| Finding::RemovalRefused { object: object(), what, error };
    let cases = [
        (
            Finding::InvalidMaxUnavailable { child: "a".into() },
            "InvalidMaxUnavailable",
            Stalled,
            "maxUnavailable of a",
        ),
        (
            waiting(Block::Dependency("b (starts)".into())),
            "WaitingForDependency",
            Waiting,
            "a waits for b (starts)",
        ),
        (
            waiting(Block::Run("step x of run r".into())),
            "WaitingForDependency",
            Waiting,
            "a waits for step x of run r",
        ),
        (
            waiting(Block::Lost(Loss::Plan("failover".into()))),
            "ChildLost",
            Waiting,
            "a is lost; the plan failover restores it",
        ),
        (
            waiting(Block::Lost(Loss::Undecided { why: "refs.x is unknown".into(), is_unknown: true })),
            "ChildLost",
            Waiting,
            "a is lost, and its onLoss decides nothing: refs.x is unknown",
        ),
        (
            waiting(Block::Lost(Loss::Undecided { why: "it has no value".into(), is_unknown: false })),
            "ChildLost",
            Stalled,
            "until it has a value",
        ),
        (waiting(Block::MaxUnavailable(None)), "WaitingForDependency", Waiting, "maxUnavailable"),
        (waiting(Block::Size), "WaitingForDependency", Waiting, "are large"),
        (waiting(Block::Oscillation(second)), "Oscillating", Stalled, "10 times in five minutes"),
        (Finding::Paused { write: "create", what: "a".into() }, "Paused", Waiting, "create a"),
        (
            Finding::Terminating { item: "a".into(), state: "is being deleted".into() },
            "Terminating",
            Waiting,
            "a: is being deleted",
        ),
        (
            Finding::PruningWaits { object: object(), block: None },
            "Pruning",
            Waiting,
            "ConfigMap n/c is pruned once",
        ),
        (
            Finding::PruningWaits { object: object(), block: Some(Block::Run("the end of run r".into())) },
            "Pruning",
            Waiting,
            "the deletion of ConfigMap n/c waits for the end of run r",
        ),
        (
            removal(Removal::Deletion, error()),
            "DeletionRefused",
            Waiting,
            "ConfigMap n/c cannot be deleted: ",
        ),
        (
            removal(Removal::Deletion, refusal(403, "Forbidden", "no")),
            "DeletionRefused",
            Stalled,
            "cannot be deleted",
        ),
        (removal(Removal::Orphaning, error()), "DeletionRefused", Waiting, "cannot be orphaned"),
        (
            removal(Removal::Unmarking, error()),
            "MarksRefused",
            Waiting,
            "outdated annotations of ConfigMap n/c",
        ),
        (
            Finding::AwaitsApproval {
                object: object(),
                item: "a".into(),
                how: "operetta plan approve".into(),
            },
            "AwaitsApproval",
            Pending,
            "ConfigMap n/c (a) stays until its deletion is approved: operetta plan approve",
        ),
        (
            Finding::FinalizerStays { error: error() },
            "Deleting",
            Waiting,
            "cannot read whether all children are deleted",
        ),
        (
            Finding::KindNotListed {
                gvk: Gvk::new("v1", "Pod"),
                reason: "forbidden".into(),
                crd: "x.y".into(),
            },
            "Pruning",
            Waiting,
            "remove it from the annotation operetta.dev/child-kinds of the CRD x.y",
        ),
        (
            Finding::Deletion(Wait::Terminating { object: object(), held_by: vec!["f/g".into()] }),
            "Pruning",
            Waiting,
            "ConfigMap n/c is being deleted, held by finalizer f/g",
        ),
    ];
    for (finding, reason, severity, text) in cases {
        assert_eq!((finding.reason(), finding.severity()), (reason, severity), "{finding}");
        assert!(finding.to_string().contains(text), "{finding}");
    }
    let missing = Finding::Missing { items: (0..7).map(|i| format!("m[{i}]")).collect() };
    assert!(missing.to_string().contains("m[0], m[1], m[2], m[3], m[4] and 2 more ("), "{missing}");
}

/// The finding of a refused apply of the child of a package with those fields.
fn refused(extra: &str, error: CallError) -> Finding {
    let package = package(
        &format!("children:\n  - {{id: a, template: templates/a.yaml{extra}}}\n"),
        &[("a", config("{{ name }}-a"))],
    );
    let mut world = World::new(package, &json!({"text": "x"}));
    let apply = world.decide().actions.into_iter().find(|action| matches!(action, Action::Apply(_)));
    world.refuse(apply.unwrap(), error);
    let findings = world.decide().findings;
    findings.into_iter().find(|finding| matches!(finding, Finding::ApplyRefused(_))).unwrap()
}

#[test]
fn a_refusal_names_the_place_in_the_template_and_the_remedy() {
    let immutable = || {
        let status = json!({"code": 422, "reason": "Invalid", "message": "no",
            "details": {"causes": [{"field": "data.text", "reason": "FieldValueInvalid", "message": "field is immutable"}]}});
        CallError::from_status(&serde_json::from_value(status).unwrap())
    };
    for (extra, error, reason, text) in [
        ("", immutable(), "ImmutableField", "written in p/templates/a.yaml:4:8"),
        ("", immutable(), "ImmutableField", "or set onImmutableChange: Recreate in the package"),
        (", deletionPolicy: Retain", immutable(), "ImmutableField", "the object holds data or is retained"),
        (
            ", onImmutableChange: \"{{ spec.text }}\"",
            immutable(),
            "ImmutableField",
            "onImmutableChange of the child has no value: it is none of Fail, Recreate and Orphan",
        ),
        (
            "",
            refusal(
                403,
                "Forbidden",
                r#"configmaps "a" is forbidden: User "u" cannot patch resource "configmaps" in API group """#,
            ),
            "Forbidden",
            "a (ConfigMap n/a-a)",
        ),
        ("", refusal(422, "Invalid", "no"), "ApplyRefused", "a (ConfigMap n/a-a)"),
        ("", refusal(500, "InternalError", "no"), "ApplyRetrying", "a (ConfigMap n/a-a)"),
    ] {
        let finding = refused(extra, error);
        assert_eq!(finding.reason(), reason, "{finding}");
        assert!(finding.to_string().contains(text), "{finding}");
    }
}

#[test]
fn child_that_reads_an_unknown_ref_has_its_reason() {
    let package = package(
        "refs:\n  - {id: tls, apiVersion: v1, kind: Secret, name: x}\nchildren:\n  - {id: a, template: templates/a.yaml, when: refs.tls.type == 'x'}\n",
        &[("a", config("{{ name }}-a"))],
    );
    let findings = World::new(package, &json!({})).decide().findings;
    let told: Vec<_> = findings.iter().map(|f| (f.reason(), f.severity())).collect();
    // The ref itself is not reported once more.
    assert_eq!(told, [("RefMissing", Severity::Waiting)], "{findings:?}");
}

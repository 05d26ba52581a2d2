//! Rendering one child from one origin.

use super::*;
use crate::children::desired::render::{base_scope, render};

/// The child of a package with that template and entry, rendered.
fn rendered(template: &str, extra: &str, prepare: impl FnOnce(&mut Snapshot)) -> Result<Desired, ChildError> {
    let package = package(
        &format!("children:\n  - {{id: a, template: templates/a.yaml{extra}}}\n"),
        &[("a", template.to_owned())],
    );
    let world = World::new(package, &json!({"text": "x", "size": 3}));
    let mut snapshot = world.snapshot();
    prepare(&mut snapshot);
    let origins = Origins::one(snapshot.origin().unwrap());
    let ctx = Context::new(&snapshot, &origins, Budget::default());
    render(&ctx, &ctx.origin.resource.children[0], None, &base_scope(&ctx), &|_| None)
}

#[test]
fn a_child_is_rendered_with_labels_and_owner_or_has_a_reason() {
    let template = config("{{ name }}-a");
    let desired = rendered(&template, "", |_| {}).unwrap();
    assert_eq!(desired.object.to_string(), "ConfigMap n/a-a");
    let metadata = &desired.body["metadata"];
    assert_eq!(metadata["labels"][names::CHILD], "a");
    assert_eq!(metadata["ownerReferences"][0]["uid"], "uid-1");
    assert_eq!(metadata["annotations"][names::INTENT], desired.hash);

    let reason = |result: Result<Desired, ChildError>| result.unwrap_err().reason();
    assert_eq!(reason(rendered(&config("{{ spec.host }}"), "", |_| {})), "RenderFailed");
    assert_eq!(
        reason(rendered(&config("{{ spec.text }}"), "", |snapshot| snapshot.instance["spec"]["text"] =
            "a/b".into())),
        "InvalidChild"
    );
    assert_eq!(reason(rendered(&template, ", yields: [\"{{ spec.size }}\"]", |_| {})), "InvalidChild");
    let listing = |listing: fn(String) -> Listing| {
        let template = template.clone();
        rendered(&template, "", move |snapshot| snapshot.kinds[0].listing = listing("why".into()))
            .unwrap_err()
    };
    assert_eq!(listing(Listing::Unreadable).to_string(), "why");
    assert_eq!(listing(Listing::Unreadable).reason(), "DependencyUnknown");
    // The kind is not served: the error says what is known of it.
    let missing = |why: Option<&str>| {
        let why = why.map(str::to_owned);
        rendered(&template, "", move |snapshot| {
            snapshot.kinds[0].namespaced = None;
            snapshot.kinds[0].listing = why.map_or(Listing::Listed, Listing::NotServed);
        })
        .unwrap_err()
    };
    assert_eq!((missing(None).reason(), missing(Some("elsewhere")).reason()), ("KindMissing", "KindMissing"));
    assert_eq!(missing(Some("elsewhere")).to_string(), "elsewhere");
}

#[test]
fn hash_changes_only_with_the_origin() {
    let template = config("{{ name }}-a");
    let hash = |change: fn(&mut Snapshot)| rendered(&template, "", change).unwrap().hash;
    let first = hash(|_| {});
    assert_eq!(first, hash(|_| {}));
    assert_eq!(first, hash(|snapshot| snapshot.instance["metadata"]["resourceVersion"] = "9".into()));
    assert_ne!(first, hash(|snapshot| snapshot.instance["spec"]["text"] = "y".into()));
    assert_ne!(first, hash(|snapshot| snapshot.instance["metadata"]["uid"] = "u2".into()));
}

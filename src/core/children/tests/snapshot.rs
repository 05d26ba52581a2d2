//! The queries of a snapshot.

use super::*;

fn snapshot() -> Snapshot {
    World::new(two_ordered(), &json!({"text": "x"})).snapshot()
}

#[test]
fn listing_says_what_is_known_of_a_kind() {
    let mut snapshot = snapshot();
    let (known, other) = (Gvk::new("v1", "ConfigMap"), Gvk::new("v1", "Pod"));
    assert_eq!((snapshot.namespaced(&known), snapshot.unknown(&known)), (Some(true), None));
    assert_eq!((snapshot.namespaced(&other), snapshot.unknown(&other)), (None, None));
    let object = ObjectRef { gvk: known.clone(), namespace: None, name: "a".into() };
    for (listing, is_listed, is_unreadable) in [
        (Listing::Listed, true, false),
        (Listing::OtherVersion("why".into()), true, false),
        (Listing::NotServed("why".into()), false, false),
        (Listing::Unreadable("why".into()), false, true),
    ] {
        snapshot.kinds[0].listing = listing.clone();
        assert_eq!(snapshot.is_listed(&object), is_listed, "{listing:?}");
        assert_eq!(snapshot.unreadable().count() == 1, is_unreadable, "{listing:?}");
        assert_eq!(snapshot.unknown(&known), (listing != Listing::Listed).then_some("why"));
    }
    // A kind that neither the package nor the record names counts as listed.
    assert!(snapshot.is_listed(&ObjectRef { gvk: other, ..object }));
    assert_eq!(snapshot.kinds[0].highest_order(snapshot.resource()), Some(1));
    assert_eq!(snapshot.kinds[0].highest_order(None), None);
    assert!(!snapshot.is_deleting());
    snapshot.instance["metadata"]["deletionTimestamp"] = "now".into();
    assert!(snapshot.is_deleting());
}

#[test]
fn a_selector_is_looked_up_once() {
    let mut snapshot = snapshot();
    let keep = FieldProjection { paths: Arc::from([]), content: false };
    let gvk = Gvk::new("v1", "Secret");
    let selector = ResourceSelector { gvk, namespace: None, select: Select::Name("x".into()), keep };
    assert!(matches!(snapshot.lookup(&selector), LookupResult::Pending));
    let find = |_: &ResourceSelector| LookupResult::Known(Vec::new());
    assert!(snapshot.look_up(std::slice::from_ref(&selector), find));
    assert!(!snapshot.look_up(std::slice::from_ref(&selector), |_| unreachable!("it is known")));
    assert!(matches!(snapshot.lookup(&selector), LookupResult::Known(_)));
}

#[test]
fn evaluated_hash_changes_with_each_evaluated_part() {
    let hash = |change: fn(&mut Snapshot)| {
        let mut snapshot = snapshot();
        change(&mut snapshot);
        snapshot.evaluated()
    };
    let first = hash(|_| {});
    assert_eq!(first, hash(|snapshot| snapshot.instance["metadata"]["resourceVersion"] = "9".into()));
    let others = [
        hash(|snapshot| snapshot.instance["spec"]["text"] = "y".into()),
        hash(|snapshot| snapshot.kinds[0].listing = Listing::Unreadable("why".into())),
        hash(|snapshot| snapshot.package = Err("it is broken".into())),
    ];
    assert!(others.iter().all(|other| *other != first));
}

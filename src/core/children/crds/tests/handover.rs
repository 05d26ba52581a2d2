//! CRDs that are handed over from one package to another.

use super::*;

/// A live CRD of the package q. `former`: the packages that had it before.
fn of_another(former: Option<&str>) -> Value {
    let mut live = live(&plain_crd(), true, &[entry("operetta", "Apply", &SPEC)]);
    live["metadata"]["labels"][names::OPERATOR] = "q".into();
    if let Some(former) = former {
        live["metadata"]["annotations"][names::FORMER_PACKAGES] = former.into();
    }
    live
}

#[test]
fn crd_is_taken_over_only_from_the_named_package() {
    let package = package(false);
    for (from, former, expected) in [
        (None, None, None),
        (Some("r"), None, None),
        (Some("q"), None, Some("q")),
        (Some("q"), Some("o"), Some("o,q")),
        // The package takes the CRD back; the packages before keep their order.
        (Some("q"), Some("p"), Some("p,q")),
        (Some("q"), Some("q,p"), Some("q,p")),
    ] {
        let live = of_another(former);
        match (taken(&package, Some(&live), from), expected) {
            (Comparison::Refused(problem), None) => {
                let help = problem.help.unwrap();
                assert_eq!(problem.code, "crd::claimed");
                assert!(help.contains("--take-over-from q") && help.contains("spec.takesOver"), "{help}");
            }
            (Comparison::Differs(patch), Some(former)) => {
                let body = patch.body("ws.example.org", Some(&live));
                let meta = &body["metadata"];
                assert_eq!((&meta["uid"], &meta["resourceVersion"]), (&json!("u"), &json!("7")));
                assert_eq!(meta["labels"][names::OPERATOR], "p");
                assert_eq!(meta["annotations"][names::FORMER_PACKAGES], former);
            }
            (other, _) => panic!("{from:?} {former:?}: {other:?}"),
        }
    }
    // A CRD of another manager is refused: two managers would have the kind for a moment.
    let mut elsewhere = of_another(None);
    elsewhere["metadata"]["annotations"][names::MANAGER] = "n/another".into();
    let Comparison::Refused(problem) = taken(&package, Some(&elsewhere), Some("q")) else { panic!() };
    assert!(problem.message.contains("n/another"), "{}", problem.message);
    // The package that takes over creates the CRD if somebody has deleted it.
    let body = match taken(&package, None, Some("q")) {
        Comparison::Differs(patch) => patch.body("ws.example.org", None),
        other => panic!("{other:?}"),
    };
    assert_eq!(body["metadata"]["annotations"][names::FORMER_PACKAGES], "q");
}

#[test]
fn former_package_stays_active_after_a_handover() {
    let package = Arc::new(package(false));
    let handed_over = of_another(Some("p"));
    let mut crds = crds(&package);
    assert_eq!(turn(&mut crds, Some(&ready(&package)), NOW).1, []);
    assert!(crds.is_complete() && crds.keeps("ws.example.org") && crds.had("ws.example.org").is_some());
    assert_eq!(turn(&mut crds, Some(&handed_over), NOW), (false, Vec::new()));
    assert!(crds.is_complete() && !crds.keeps("ws.example.org") && crds.had("ws.example.org").is_none());
    assert_eq!(crds.handed_over().collect::<Vec<_>>(), [("ws.example.org", "q")]);
    assert_eq!(crds.acceptance().unwrap().problems, []);
    // A manager that starts later finds the same.
    let mut later = self::crds(&package);
    turn(&mut later, Some(&handed_over), NOW);
    assert!(later.is_complete() && !later.keeps("ws.example.org"));
    // The former package gets the CRD back.
    turn(&mut later, Some(&ready(&package)), NOW);
    assert!(later.keeps("ws.example.org") && later.handed_over().next().is_none());
}

#[test]
fn two_packages_with_one_crd_are_refused_unless_one_takes_it_over() {
    let other = {
        let mut other = package(false);
        other.name = "q".to_owned();
        Arc::new(other)
    };
    let mut holder = crds(&other);
    let package = Arc::new(package(false));
    let asking = crds(&package);
    let says = |said: &'static [(&'static str, &'static str)]| {
        move |package: &str, _: &str, from: &str| said.contains(&(package, from))
    };
    let messages = |holder: &PackageCrds, said: &'static [(&'static str, &'static str)]| -> Vec<String> {
        let claims = asking.claims([holder].into_iter(), &says(said));
        claims.into_iter().map(|claim| claim.message).collect()
    };
    assert!(messages(&holder, &[])[0].contains("belongs to the package q"));
    assert!(messages(&holder, &[("q", "p")])[0].contains("belongs to the package q"));
    assert_eq!(messages(&holder, &[("p", "q")]), [""; 0]);
    assert!(messages(&holder, &[("p", "q"), ("q", "p")])[0].contains("both say"));
    holder.hand_over("ws.example.org", "r");
    assert_eq!(messages(&holder, &[]), [""; 0], "it does not have it any more");
}

//! Checks files of cases without playing them.

use std::collections::HashSet;

use operetta_embedded::World;
use operetta_lang::schema::Kubernetes;

use super::absence::Claim;
use super::catalog::Catalog;
use super::expressions::mistyped;
use super::impossible::impossible;
use super::names::meaningless;
use super::sources::Sources;
use super::suite::Suite;
use super::vacuous::Known;
use super::worlds;
use crate::diag::Diagnostic;
use crate::package::Package;

/// All mistakes and warnings. Notes in each case what it must show to be there. `alone` is a world that no file of cases uses.
pub(super) fn check(
    suites: &mut [Suite],
    alone: Option<&World>,
    package: &Package,
    sources: &Sources,
) -> Vec<Diagnostic> {
    let kubernetes = Kubernetes::load();
    let (mut found, mut claims) = (Vec::new(), Vec::new());
    let known = Known::of(suites);
    for suite in &*suites {
        let catalog = Catalog::of(suite, &kubernetes);
        found.extend(impossible(suite, &catalog));
        found.extend(meaningless(suite, &catalog));
        found.extend(mistyped(suite, &catalog));
        claims.extend(suite.cases.iter().map(|case| known.claims(case, &catalog)));
    }
    let mistakes = claims.iter().flatten().filter(|claim| known.is_mistake(claim));
    found.extend(mistakes.map(Claim::mistake));
    found.extend(worlds::wrong(suites, alone, package, sources.files.values(), &kubernetes));
    let cases = suites.iter_mut().flat_map(|suite| &mut suite.cases);
    for (case, claims) in cases.zip(claims) {
        case.claims = claims;
    }
    found
}

/// Leaves each mistake once: several files may use what has it.
pub(super) fn once(found: &mut Vec<Diagnostic>) {
    let mut seen = HashSet::new();
    found.retain(|one| {
        let place = one.location.as_ref().map(|at| (at.source.name.clone(), at.span.start));
        seen.insert((place, one.message.clone()))
    });
}

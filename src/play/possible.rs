//! Whether a case can be played on a real control plane.

use std::time::Duration;

use super::suite::{Action, Case, Step, Suite};
use crate::diag::Diagnostic;
use crate::package::Package;
use crate::package::plan::{self, Plan, written_duration};
use crate::package::test_file::Address;

/// The longest time that passes in real time.
const REAL: Duration = Duration::from_secs(60);

/// Why a case cannot be played on a real control plane: the first step that cannot be done there.
pub(super) fn impediment(suite: &Suite, case: &Case, is_local: bool) -> Option<Box<Diagnostic>> {
    let skipped = |why: String| Diagnostic::note("test::skipped", why);
    if is_local && suite.world.is_some() && suite.packages.iter().any(|package| asks_programs(package)) {
        let why = "the package runs commands or sends requests, which only the world answers";
        return Some(Box::new(skipped(why.to_owned()).located(case.location.clone())));
    }
    if suite.packages[0].resources.iter().any(|resource| !resource.kind.namespaced) {
        let why = "an instance without a namespace has no namespace of its own";
        return Some(Box::new(skipped(why.to_owned()).located(case.location.clone())));
    }
    case.steps.iter().find_map(|step| {
        let why = why_not(step, is_local)?;
        Some(Box::new(skipped(why).located(step.location.clone())))
    })
}

fn why_not(step: &Step, is_local: bool) -> Option<String> {
    let elsewhere = |address: &Address| address.namespace != "default";
    let virtual_time = |key: &str, length: Duration| {
        (length > REAL).then(|| format!("`{key}: {}` needs virtual time", written_duration(length)))
    };
    let apart = || "it names a namespace, and the case has one of its own".to_owned();
    match &step.action {
        Action::Break(_) => Some("`break` needs the embedded API".to_owned()),
        Action::Upgrade(_) => Some("`upgrade` changes CRDs, which all cases share".to_owned()),
        Action::Exec(_) if is_local => Some("no programs run in the pods of fake nodes".to_owned()),
        Action::Exec(command) => (command.namespace != "default").then(apart),
        Action::Wait(length) => virtual_time("wait", *length),
        Action::Expect(expect) => virtual_time("for", expect.holds_for)
            .or_else(|| expect.objects.iter().any(|(_, address, _)| elsewhere(address)).then(apart)),
        Action::Apply(objects) => {
            let named = objects.iter().filter_map(|object| object.value["metadata"]["namespace"].as_str());
            { named }.any(|namespace| namespace != "default").then(apart)
        }
        Action::Patch(address, _) | Action::Delete(address) => elsewhere(address).then(apart),
        Action::Run { of, .. } | Action::Approve { of, .. } => of.as_ref().is_some_and(elsewhere).then(apart),
        Action::RestartManager => None,
    }
}

/// Whether a plan of a package runs commands or sends requests.
fn asks_programs(package: &Package) -> bool {
    let plans = package.resources.iter().flat_map(|resource| &resource.plans);
    let mut steps = plans.flat_map(Plan::all_steps);
    steps.any(|step| matches!(step.action, plan::Action::Exec(_) | plan::Action::Http(_)))
}

//! Decides which refs affect Ready: those that are read by something other than the status. See
//! `docs/design/0035-what-affects-ready.md`.

use std::collections::BTreeSet;

use super::compiler::Compiler;
use super::decode::At;
use super::expression_sites::{ExpressionSite, Parts, Role};
use super::plan::{Event, Trigger};
use super::{graph, manifest};
use crate::diag::Diagnostic;
use crate::template::{Engine, Segment};

const NO_EFFECT: &str = "package::no-effect";

impl Compiler<'_> {
    /// Sets [`super::Ref::affects_ready`] of all refs. A ref must come after the refs that it reads.
    pub(super) fn refs_affect_ready(&mut self, parts: &mut Parts, manifests: &[manifest::Ref]) {
        let read = reads(&self.engine, parts);
        for index in (0..parts.refs.len()).rev() {
            let id = &parts.refs[index].id;
            let mut readers = read.iter().filter(|(read, _)| read == id);
            let is_read = readers.any(|(_, reader)| match reader {
                Reader::Other => true,
                Reader::Ref(reader) => parts.refs[*reader].affects_ready,
            });
            // A run that reads the ref reports itself what it waits for.
            let in_runs = parts.refs[index].observation().is_some_and(|observation| observation.only_in_runs);
            let default = is_read && !in_runs;
            let manifest = manifests.iter().find(|manifest| manifest.id.value.0 == *id);
            let chosen = manifest.and_then(|manifest| manifest.affects_ready.as_ref());
            if let Some(chosen) = chosen.filter(|chosen| chosen.value == default && self.readable) {
                let why = if in_runs {
                    "it is observed only in runs"
                } else if default {
                    "children, `readyWhen`, `paused` or plans read it"
                } else {
                    "only `status`, `conditions`, or plans that do not affect Ready read it"
                };
                let message = format!("affectsReady: {default} of the ref `{id}` is the default: {why}");
                self.diagnostics.push(without_effect(chosen, message));
            }
            parts.refs[index].affects_ready = chosen.map_or(default, |chosen| chosen.value);
        }
    }

    /// Whether a run of a plan affects Ready.
    pub(super) fn plan_affects_ready(
        &mut self,
        plan: &str,
        chosen: Option<&At<bool>>,
        is_exclusive: bool,
        triggers: &[Trigger],
    ) -> bool {
        let Some(chosen) = chosen else { return is_exclusive };
        let affects_anyway =
            |trigger: &Trigger| trigger.event.is_rollout() || matches!(trigger.event, Event::Deleted);
        if chosen.value == is_exclusive {
            let message = format!(
                "affectsReady: {is_exclusive} of the plan `{plan}` is the default with exclusive: {is_exclusive}"
            );
            self.diagnostics.push(without_effect(chosen, message));
        } else if !chosen.value && !triggers.is_empty() && triggers.iter().all(affects_anyway) {
            let message = format!(
                "affectsReady: false of the plan `{plan}` counts only for requested runs: rollouts and cleanups always affect \
                 Ready, and nothing else starts it"
            );
            self.diagnostics.push(without_effect(chosen, message));
        }
        chosen.value
    }
}

fn without_effect(chosen: &At<bool>, message: String) -> Diagnostic {
    let warning = Diagnostic::warning(NO_EFFECT, message).located(chosen.at.clone());
    warning.path(chosen.path.clone()).help("remove it")
}

/// The reader of a ref.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reader {
    /// Another ref, by its index.
    Ref(usize),
    /// Anything else that affects Ready.
    Other,
}

/// The ids of the refs that are read, with their readers.
fn reads(engine: &Engine, parts: &Parts) -> BTreeSet<(String, Reader)> {
    let is_shown = |site: &ExpressionSite<'_>| {
        site.role == Role::Shown || site.plan.as_ref().is_some_and(|scope| !scope.plan.affects_ready)
    };
    let mut found = BTreeSet::new();
    for site in parts.expression_sites(engine).iter().filter(|site| !is_shown(site)) {
        let reader = site.reference.map_or(Reader::Other, Reader::Ref);
        for path in graph::expand_lets([site.reads], &parts.lets) {
            if let ("refs", Some(Segment::Key(id))) = (path.root.as_str(), path.segments.first()) {
                found.insert((id.clone(), reader));
            }
        }
    }
    found
}

//! Compiles the conversion between the versions of a CRD.

use serde_json::Value;

use super::compiler::Compiler;
use super::decode::At;
use super::manifest;
use crate::crd::{self, Rule, RuleKind};
use crate::diag::Diagnostic;

const CODE: &str = "package::conversion";

impl Compiler<'_> {
    /// The conversion of a resource. `crd` includes Operetta's additions.
    pub(super) fn conversion(
        &mut self,
        declared: &At<manifest::Conversion>,
        crd: &Value,
        adopt: bool,
    ) -> Option<crd::Conversion> {
        if adopt {
            let error =
                declared.error(CODE, "a CRD of another tool (`adopt: true`) is converted by that tool");
            self.diagnostics.push(error.help("remove `conversion` or `adopt`"));
            return None;
        }
        let versions = &declared.value.versions.0.as_ref()?.0;
        let mut rules: Vec<(&str, Vec<Rule>)> = Vec::new();
        let mut is_complete = true;
        for (version, entries) in versions {
            let compiled: Vec<Option<Rule>> =
                entries.iter().map(|entry| self.conversion_rule(entry)).collect();
            is_complete &= compiled.iter().all(Option::is_some);
            rules.push((&version.value, compiled.into_iter().flatten().collect()));
        }
        if !is_complete {
            return None;
        }
        match crd::compile(crd, &rules) {
            Ok(conversion) => Some(conversion),
            Err(problems) => {
                for problem in problems {
                    let declared_version =
                        versions.iter().find(|(version, _)| Some(&version.value) == problem.version.as_ref());
                    let rule =
                        declared_version.zip(problem.rule).and_then(|((_, entries), at)| entries.get(at));
                    let mut error = match (rule, declared_version) {
                        (Some(rule), _) => rule.error(CODE, problem.message),
                        (None, Some((version, _))) => version.error(CODE, problem.message),
                        (None, None) => declared.error(CODE, problem.message),
                    };
                    if let Some(help) = problem.help {
                        error = error.help(help);
                    }
                    self.diagnostics.push(error);
                }
                None
            }
        }
    }

    fn conversion_rule(&mut self, entry: &At<manifest::ConversionRule>) -> Option<Rule> {
        let manifest::ConversionRule { source, target, default, value, keep } = &entry.value;
        let rule = match (source, target, default, value, keep) {
            (Some(source), Some(target), None, None, None) => {
                Some((source, RuleKind::Move(target.value.clone())))
            }
            (None, None, Some(path), Some(value), None) => {
                Some((path, RuleKind::Default(value.value.0.clone())))
            }
            (None, None, None, None, Some(path)) => Some((path, RuleKind::Keep)),
            _ => None,
        };
        if rule.is_none() {
            let message = "a rule is one of `move` with `to`, `default` with `value`, and `keep`";
            let help = "for example {move: spec.replicas, to: spec.size}, {default: spec.mode, value: fast}, {keep: spec.note}";
            self.diagnostics.push(Diagnostic::clone(&entry.error(CODE, message)).help(help));
        }
        rule.map(|(path, kind)| Rule { path: path.value.clone(), kind })
    }
}

//! `permissions`: RBAC rules that cannot be derived from the templates.

use super::compiler::Compiler;
use super::decode::At;
use super::manifest::Rule;
use super::model::Permission;

impl Compiler<'_> {
    /// Compiles `permissions`. A rule without groups, resources or verbs is an error: it grants nothing, and
    /// the API server refuses it.
    pub(super) fn permissions(&mut self, rules: Vec<At<Rule>>) -> Vec<Permission> {
        let mut found = Vec::with_capacity(rules.len());
        for At { value: rule, at, path } in rules {
            let lists = [
                ("apiGroups", rule.api_groups.is_empty(), "apiGroups: [\"\"] is the core group"),
                ("resources", rule.resources.is_empty(), "name plurals, such as resources: [secrets]"),
                ("verbs", rule.verbs.is_empty(), "name verbs, such as verbs: [get]"),
            ];
            for (field, _, help) in lists.into_iter().filter(|(_, is_empty, _)| *is_empty) {
                let message = format!("`{field}` is empty");
                let error = crate::diag::Diagnostic::error("package::value", message);
                self.diagnostics.push(error.located(at.clone()).path(path.clone()).help(help));
            }
            found.push(Permission {
                api_groups: rule.api_groups,
                resources: rule.resources,
                resource_names: rule.resource_names.unwrap_or_default(),
                verbs: rule.verbs,
                location: at,
                path,
            });
        }
        found
    }
}

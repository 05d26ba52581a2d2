//! Reports volume claims whose data is deleted with their `StatefulSet`.

use super::sketch::{At, Text};
use crate::diag::Diagnostic;
use crate::template_scan::Outlines;
use crate::{DeletionPolicy, Resource};

const POLICY: [&str; 3] = ["spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted"];

/// Reports `whenDeleted: Delete` of a child whose author has not said that its data may go.
pub(super) fn check(outlines: &Outlines, resource: &Resource, found: &mut Vec<Diagnostic>) {
    for child in &resource.children {
        let says_delete = child.explicit_policy && child.deletion_policy == DeletionPolicy::Delete;
        let [gvk] = child.kinds.as_slice() else { continue };
        let Some(root) =
            outlines.root(&child.template).filter(|_| gvk.is("apps/v1", "StatefulSet") && !says_delete)
        else {
            continue;
        };
        let At::Part(policy) = root.at(&POLICY) else { continue };
        if policy.text() != Some(Text::Literal("Delete".to_owned())) {
            continue;
        }
        let message = format!(
            "the volumes of `{}` are deleted with it: also if an instance is deleted by mistake, or the child is no longer \
             desired",
            child.id
        );
        let warning = Diagnostic::warning("package::deletion-policy", message).located(policy.location());
        found.push(warning.path(POLICY.join(".")).help(format!(
            "remove whenDeleted, for the default is Retain; if the data may go, say so with deletionPolicy: Delete of `{}`",
            child.id
        )));
    }
}

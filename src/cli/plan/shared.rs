//! What the commands about plans share.

use std::time::Duration;

use crate::api::CallError;
use crate::cli::command::{Failure, Shown, duration};
use crate::cli::out;
use crate::cli::session::Common;
use crate::plan::{Of, Phase};

/// The exit code of a run that was cancelled or superseded.
const STOPPED: u8 = 3;

/// Whether to wait for the end of a run.
#[derive(Debug, clap::Args)]
pub(super) struct Waiting {
    /// Wait for the end of the run, and show its progress
    #[arg(short, long)]
    pub(super) wait: bool,

    /// How long to wait, such as 10m [default: without limit]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "wait")]
    pub(super) timeout: Option<Duration>,
}

/// What a table shows, and how.
#[derive(Debug, clap::Args)]
pub(super) struct Listing {
    /// The instance [default: all instances of the namespace]
    #[arg(value_name = "KIND/NAME")]
    pub(super) instance: Option<String>,

    /// Instances of all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "instance"])]
    pub(super) all_namespaces: bool,

    #[command(flatten)]
    pub(super) shown: Shown,

    #[command(flatten)]
    pub(super) common: Common,
}

impl Failure {
    /// The API server's refusal of a request about `PlanRun`s. `verb` is that of RBAC.
    pub(super) fn refused(what: &str, verb: &str, of: Option<&Of>, error: &CallError) -> Self {
        let words = out::printable(&error.to_string());
        let message = match (error.code, words.split_once("denied request: ")) {
            (_, Some((_, why))) => match of.filter(|_| why.contains("needs the verb")) {
                Some(of) => {
                    let group = of.api_version.split('/').next().unwrap_or_default();
                    let verb = why.split('`').nth(1).unwrap_or("run");
                    format!(
                        "{what}: {why}\n  help: a Role with the rule {{apiGroups: [{group}], resources: [{}], verbs: \
                         [{verb}]}} allows it",
                        of.resource
                    )
                }
                None => format!("{what}: {why}"),
            },
            (403, None) => format!(
                "{what}: {words}\n  help: a Role with the rule {{apiGroups: [operetta.dev], resources: [planruns], \
                 verbs: [{verb}]}} allows it"
            ),
            (404, None) => format!(
                "{what}: {words}\n  help: the API server has PlanRuns once a manager runs a package with plans; does \
                 the namespace exist?"
            ),
            _ => format!("{what}: {words}"),
        };
        message.into()
    }
}

/// The exit code of the phase in which a run ended.
pub(super) fn exit_code(phase: Phase) -> u8 {
    match phase {
        Phase::Succeeded => 0,
        Phase::Cancelled | Phase::Superseded => STOPPED,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Class;

    #[test]
    fn each_end_of_a_run_has_an_exit_code() {
        for (phase, code) in [
            (Phase::Succeeded, 0),
            (Phase::Failed, 1),
            (Phase::Cancelled, STOPPED),
            (Phase::Superseded, STOPPED),
        ] {
            assert_eq!(exit_code(phase), code, "{phase:?}");
        }
    }

    #[test]
    fn refusals_say_which_rule_is_missing() {
        let of = Of {
            api_version: "example.com/v1".into(),
            kind: "Shop".into(),
            resource: "shops".into(),
            name: "a".into(),
        };
        let refused = |words: &str| {
            let error = CallError::new(Class::Permanent, 403, "Forbidden", words);
            Failure::refused("the run cannot be created", "create", Some(&of), &error).message
        };
        let policy = "planruns.operetta.dev \"a-backup-x\" is forbidden: ValidatingAdmissionPolicy \
            'planruns.operetta.dev' with binding 'planruns.operetta.dev' denied request: ";
        let told = refused(&format!(
            "{policy}user bob may not run plans of shops/a: it needs the verb `run` on shops.example.com"
        ));
        assert!(
            told.starts_with("the run cannot be created: user bob may not run plans of shops/a"),
            "{told}"
        );
        assert!(told.contains("{apiGroups: [example.com], resources: [shops], verbs: [run]}"), "{told}");
        let told = refused(&format!("{policy}spec.requestedBy must be the user who creates the PlanRun"));
        assert_eq!(
            told,
            "the run cannot be created: spec.requestedBy must be the user who creates the PlanRun"
        );
        let told = refused("User \"bob\" cannot create resource \"planruns\"");
        assert!(told.contains("resources: [planruns], verbs: [create]"), "{told}");
    }
}

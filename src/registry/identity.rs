//! An identity that may have signed a package.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An identity that an issuer of OIDC vouches for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The issuer, such as `https://token.actions.githubusercontent.com`.
    pub issuer: String,
    /// An e-mail address, or the URI of a workflow. A URI without `@` permits the workflow at any Git ref.
    pub subject: String,
}

impl Identity {
    /// Whether what a certificate states is this identity.
    pub fn is(&self, issuer: &str, subject: &str) -> bool {
        let is_ref = |rest: &str| rest.starts_with("@refs/");
        let is_workflow = self.subject.starts_with("https://") && !self.subject.contains('@');
        self.issuer == issuer
            && subject
                .strip_prefix(self.subject.as_str())
                .is_some_and(|rest| rest.is_empty() || is_workflow && is_ref(rest))
    }

    /// Why it can match nothing, if so.
    pub fn problem(&self) -> Option<&'static str> {
        if !self.issuer.starts_with("https://") {
            return Some("the issuer is not an https URL");
        }
        self.subject.is_empty().then_some("the subject is empty")
    }

    /// It without the Git ref of a workflow: the same workflow at any ref.
    #[must_use]
    pub fn at_any_ref(&self) -> Self {
        let workflow = self.subject.split_once("@refs/").filter(|(uri, _)| uri.starts_with("https://"));
        let subject = workflow.map_or(self.subject.as_str(), |(uri, _)| uri).to_owned();
        Self { issuer: self.issuer.clone(), subject }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (of {})", self.subject, self.issuer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workflow_is_meant_at_any_ref_and_all_else_exactly() {
        let issuer = "https://issuer.example";
        let workflow = "https://github.com/acme/etcd/.github/workflows/release.yaml";
        for (given, subject, is) in [
            (workflow, format!("{workflow}@refs/tags/v1.2.0"), true),
            (workflow, workflow.to_owned(), true),
            (workflow, format!("{workflow}@v1"), false),
            (workflow, format!("{workflow}2@refs/heads/main"), false),
            (workflow, format!("{workflow}/../evil@refs/heads/main"), false),
            (&format!("{workflow}@refs/heads/main"), format!("{workflow}@refs/heads/main"), true),
            (&format!("{workflow}@refs/heads/main"), format!("{workflow}@refs/heads/main@refs/x"), false),
            ("a@example.com", "a@example.com".to_owned(), true),
            ("a", "a@refs/x".to_owned(), false),
            ("http://x.example/a", "http://x.example/a@refs/x".to_owned(), false),
        ] {
            let identity = Identity { issuer: issuer.to_owned(), subject: given.to_owned() };
            assert_eq!(identity.is(issuer, &subject), is, "{given} {subject}");
            assert!(!identity.is("https://other.example", &subject));
            assert!(!is || identity.at_any_ref().is(issuer, &subject));
        }
    }
}

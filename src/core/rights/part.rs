//! The parts of the cluster in which the roles of a revision are bound.

use std::fmt;

/// Where a role of a revision is bound. Its text is the suffix of the name of the role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// In the namespaces of instances.
    Home,
    /// In the cluster: kinds without a namespace, and what is read in all namespaces.
    Cluster,
    /// In this namespace.
    In(String),
}

impl Part {
    /// The part of a role, by the role's name; `None` if it is no role of the account. `role`: the prefix of
    /// the revision's roles.
    pub fn of(role: &str, name: &str) -> Option<Self> {
        match name.strip_prefix(role)? {
            "" => Some(Self::Home),
            ":cluster" => Some(Self::Cluster),
            suffix => suffix.strip_prefix(":in:").map(|namespace| Self::In(namespace.to_owned())),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Home => Ok(()),
            Self::Cluster => f.write_str(":cluster"),
            Self::In(namespace) => write!(f, ":in:{namespace}"),
        }
    }
}

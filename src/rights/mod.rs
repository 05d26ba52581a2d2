//! The rights of packages: which RBAC rules the account of a package needs, and the objects that grant them.
//!
//! With `--impersonate` the manager reads and writes children and refs as the account of their package, so a package can do
//! what its account may, whatever the manager itself may do. See `docs/design/0025-rights.md`.

mod check;
mod derive;
pub mod manager;
mod objects;
mod rules;

pub use check::check;
pub use derive::{Derived, derive, former};
pub use objects::{Placement, TO_MANAGER, account, is_of_package, namespaces, objects, user};
pub use rules::{Place, Right, Rights};

/// The name of the manager's service account and of its roles.
pub const MANAGER: &str = "operetta";

/// The verbs of Kubernetes and of Operetta's own policies.
const VERBS: [&str; 16] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "use",
    "bind",
    "escalate",
    "impersonate",
    "approve",
    "sign",
    "attest",
    "run",
];

#[cfg(test)]
mod tests;

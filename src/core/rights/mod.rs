//! The rights of packages: which RBAC rules the account of a package needs, and the objects that grant them.
//!
//! With `--impersonate` the manager reads and writes children and refs as the account of their package, so a package can do
//! what its account may, whatever the manager itself may do. See `docs/design/0025-rights.md`.

pub mod bindings;
mod check;
pub mod confinement;
mod demands;
mod derive;
mod difference;
mod granted;
pub mod manager;
mod objects;
mod part;
mod remarkable;
mod rules;

pub use check::check;
pub use demands::Demands;
pub use derive::{Derived, derive, find_kind, former};
pub use difference::{Review, review};
pub use granted::{Live, by_rules};
pub use objects::{
    Owner, Placement, TO_MANAGER, account, begins_with, is_changed, is_of_package, namespaces, objects,
    objects_of_revision, role, role_of_bindings, role_of_revision, roles_of_manager, selector, to_instances,
    user,
};
pub use part::Part;
pub use remarkable::note;
pub use rules::{Place, Right, Rights, flow};

/// The name of the manager's `ServiceAccount`, Deployment and Lease.
pub const MANAGER: &str = "operetta";

/// The name of the manager's own roles, and the prefix of others: roles of packages begin with `operetta:`.
pub const MANAGER_ROLE: &str = "operetta-manager";

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

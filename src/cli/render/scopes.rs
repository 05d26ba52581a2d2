//! Whether the objects of a kind are in namespaces, as far as that is known without a cluster.

use crate::api::{BuiltIn, Gvk};
use crate::package::Package;

/// Whether objects of a kind are in namespaces, as far as that is known without a cluster.
pub(super) fn is_namespaced(package: &Package, gvk: &Gvk) -> bool {
    if let Some(resource) = package.resource(gvk) {
        return resource.kind.namespaced;
    }
    BuiltIn::find(gvk.group(), &gvk.kind).is_none_or(|known| known.namespaced)
}

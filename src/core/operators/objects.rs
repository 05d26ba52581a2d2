//! The objects of a package for the cluster: the parts of its files, the `OperatorRevision`, and the `Operator`.

use serde_json::{Value, json};

use super::{OperatorSpec, crd};
use crate::api::ApiKind;
use crate::package::Package;
use crate::package::store::{self, StoreError, objects};

/// An object, and its kind.
#[derive(Debug, Clone)]
pub struct Object {
    /// Its kind.
    pub kind: ApiKind,
    /// The object.
    pub body: Value,
}

/// A package as objects, without its `Operator`.
#[derive(Debug, Clone)]
pub struct Packed {
    /// The name of its `OperatorRevision`.
    pub revision: String,
    /// What is to be applied, in this order.
    pub objects: Vec<Object>,
}

/// The revision of a package as objects. `namespace`: that of the manager.
///
/// # Errors
/// [`StoreError::TooLarge`].
pub fn pack(package: &Package, namespace: &str) -> Result<Packed, StoreError> {
    let (stored, parts) = store::pack(package)?;
    let part = |(index, data): (usize, &Vec<u8>)| Object {
        kind: ApiKind::built_in("v1", "ConfigMap"),
        body: kept(objects::part(&stored, index, data, namespace, None)),
    };
    // The parts come first: a manager that sees the revision finds them.
    let mut all: Vec<Object> = parts.iter().enumerate().map(part).collect();
    all.push(Object { kind: objects::kind(), body: kept(objects::revision(&stored, namespace)) });
    Ok(Packed { revision: stored.name(), objects: all })
}

/// The `Operator` of a package. Fields that are at their default are left out: others may own them.
pub fn operator(package: &str, spec: &OperatorSpec) -> Object {
    let kind = crd::kind();
    let mut body = json!({
        "apiVersion": kind.api_version(),
        "kind": kind.kind,
        "metadata": {"name": package, "labels": {"app.kubernetes.io/managed-by": "operetta", super::PACKAGE: package}},
        "spec": {"revision": spec.revision},
    });
    if let Some(names) = spec.namespaces.as_ref().and_then(|namespaces| namespaces.names.as_ref()) {
        body["spec"]["namespaces"] = json!({"names": names});
    }
    if !spec.system_namespaces.is_empty() {
        body["spec"]["systemNamespaces"] = json!(spec.system_namespaces);
    }
    if !spec.takes_over.is_empty() {
        body["spec"]["takesOver"] = json!(spec.takes_over);
    }
    if spec.paused {
        body["spec"]["paused"] = true.into();
    }
    Object { kind, body }
}

fn kept(mut object: Value) -> Value {
    for (name, value) in objects::KEPT {
        object["metadata"]["annotations"][name] = value.into();
    }
    object
}

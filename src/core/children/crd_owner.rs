//! Tells which package a CRD belongs to. The label [`names::OPERATOR`] alone does not show it: a CRD that is
//! a child carries the label like every child, and any editor of the object can write it. A CRD belongs to a
//! package if the registrar itself has applied the label, which managedFields show, and no package has
//! applied the labels of a child.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operetta_kube_model::fields::FieldSet;
use serde_json::Value;

use super::names;

/// The package that has registered the CRD with this metadata, if there is one. The metadata must include
/// managedFields.
pub fn package_of_crd(meta: &ObjectMeta) -> Option<&str> {
    let package = meta.labels.as_ref()?.get(names::OPERATOR)?;
    let is_registered = owners(meta, names::OPERATOR).any(|manager| manager == names::REGISTRAR);
    (is_registered && !is_child(meta)).then_some(package)
}

/// [`package_of_crd`] for a CRD as plain JSON.
pub fn package_of_crd_value(crd: &Value) -> Option<String> {
    package_of_crd(&metadata(crd)?).map(str::to_owned)
}

/// The packages that had a CRD before, oldest first.
pub fn former_packages(crd: &Value) -> Vec<String> {
    let text = crd["metadata"]["annotations"][names::FORMER_PACKAGES].as_str().unwrap_or_default();
    text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The former packages of a CRD once `package` has it. `takes_from`: the package that it takes the CRD from,
/// if an `Operator` says so.
pub(in crate::children) fn former_packages_of(
    package: &str,
    live: Option<&Value>,
    takes_from: Option<&str>,
) -> Vec<String> {
    let mut former = live.map(former_packages).unwrap_or_default();
    let before = match live {
        Some(live) => package_of_crd_value(live),
        None => takes_from.map(str::to_owned),
    };
    former.extend(before.filter(|before| before != package && !former.contains(before)));
    former
}

/// Whether a CRD is a child of an instance.
pub fn is_child_crd_value(crd: &Value) -> bool {
    metadata(crd).is_some_and(|meta| is_child(&meta))
}

fn metadata(crd: &Value) -> Option<ObjectMeta> {
    serde::Deserialize::deserialize(crd.get("metadata")?).ok()
}

fn is_child(meta: &ObjectMeta) -> bool {
    let is_labelled = meta.labels.as_ref().is_some_and(|labels| labels.contains_key(names::INSTANCE_UID));
    is_labelled && owners(meta, names::INSTANCE_UID).any(|manager| manager.starts_with("operetta/"))
}

/// The managers that have applied a label.
fn owners<'a>(meta: &'a ObjectMeta, label: &'a str) -> impl Iterator<Item = &'a str> {
    meta.managed_fields.iter().flatten().filter_map(move |entry| {
        let is_apply = entry.operation.as_deref() == Some("Apply");
        let is_whole = entry.subresource.as_deref().unwrap_or_default().is_empty();
        let set = FieldSet::parse(&entry.fields_v1.as_ref()?.0)?;
        let is_owned = is_apply && is_whole && set.get(&["metadata", "labels", label]).is_some();
        entry.manager.as_deref().filter(|_| is_owned)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(manager: &str, operation: &str, labels: &[&str]) -> Value {
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|label| (format!("f:{label}"), json!({}))).collect();
        json!({"manager": manager, "operation": operation, "apiVersion": "apiextensions.k8s.io/v1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": labels}}})
    }

    #[test]
    fn crd_belongs_to_a_package_only_if_the_registrar_labelled_it() {
        let registrar = || entry("operetta", "Apply", &[names::OPERATOR]);
        let child = || entry("operetta/p", "Apply", &[names::OPERATOR, names::INSTANCE_UID]);
        let own = json!({names::OPERATOR: "p"});
        let of_child = json!({names::OPERATOR: "p", names::INSTANCE_UID: "u"});
        for (labels, entries, package) in [
            (&own, vec![registrar()], Some("p")),
            (&own, vec![registrar(), entry("kubectl", "Apply", &[names::OPERATOR])], Some("p")),
            // Another client has put the label of a child on it.
            (
                &of_child,
                vec![registrar(), entry("kubectl-label", "Update", &[names::INSTANCE_UID])],
                Some("p"),
            ),
            (&of_child, vec![child()], None),
            // A package has the CRD as its own and as a child of an instance.
            (&of_child, vec![registrar(), child()], None),
            // Somebody has removed the label of the instance, and the registrar has not applied the label of
            // the package.
            (&own, vec![child()], None),
            (&own, vec![entry("kubectl", "Apply", &[names::OPERATOR])], None),
            (&own, vec![entry("operetta", "Update", &[names::OPERATOR])], None),
            (&own, vec![entry("operetta", "Apply", &[])], None),
            (&own, vec![], None),
            (&json!({}), vec![registrar()], None),
        ] {
            let crd = json!({"metadata": {"name": "x", "labels": labels, "managedFields": entries}});
            assert_eq!(package_of_crd_value(&crd).as_deref(), package, "{crd:#}");
            let is_child = entries.contains(&child()) && labels == &of_child;
            assert_eq!(is_child_crd_value(&crd), is_child, "{crd:#}");
        }
    }
}

//! Objects as the API server stores them, so that a diff shows only what will differ there.

use std::collections::BTreeSet;

use operetta_kube_model::schema::apply_defaults;
use serde_json::Value;

use crate::api::{ApiKind, Apis, BuiltIn, Gvk};
use crate::cluster::Cluster;
use crate::crd;
use crate::package::Package;

/// An object as the API server stores it: with the defaults of its kind. `crds`: the CRDs of custom kinds; `None` of kinds
/// whose schema is not known.
pub(super) fn stored(object: &Value, crds: &[Value]) -> Option<Value> {
    if let Some(stored) = operetta_embedded::stored(object) {
        return Some(stored);
    }
    let (group, version) = object["apiVersion"].as_str()?.split_once('/')?;
    let is_of =
        |crd: &&Value| crd["spec"]["group"] == group && crd["spec"]["names"]["kind"] == object["kind"];
    let schema = crd::schema_of(crds.iter().find(is_of)?, version)?;
    let mut stored = object.clone();
    apply_defaults(schema, &mut stored);
    Some(stored)
}

/// The CRDs of the kinds of children that are neither built in nor the package's own. Those that cannot be read are left
/// out: objects of their kinds are compared as they are applied.
pub(super) async fn crds_of_others(cluster: &Cluster, apis: &Apis, package: &Package) -> Vec<Value> {
    let children = package.resources.iter().flat_map(|resource| &resource.children);
    let kinds: BTreeSet<&Gvk> = children.flat_map(|child| &child.kinds).collect();
    let is_of_others = |gvk: &&Gvk| !BuiltIn::has_group(gvk.group()) && package.resource_of(gvk).is_none();
    let mut found = Vec::new();
    for gvk in kinds.into_iter().filter(is_of_others) {
        let Ok(Some(served)) = apis.find(gvk) else { continue };
        let name = format!("{}.{}", served.kind.plural, served.kind.group);
        found.extend(cluster.get(&ApiKind::crd(), None, &name).await.ok().flatten());
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::children::fields::applied;
    use crate::preview::differences;

    /// A `StatefulSet` as a real API server has stored it, and what was applied. Its claim templates are an atomic list.
    const STATEFUL_SET: &str = include_str!("../../core/children/fields/testdata/statefulset.json");

    fn paths(before: &Value, after: &Value) -> Vec<String> {
        differences(Some(before), after).into_iter().map(|change| change.path).collect()
    }

    #[test]
    fn defaults_in_atomic_parts_are_no_differences() {
        let data: Value = serde_json::from_str(STATEFUL_SET).unwrap();
        let live = &data["live"];
        let made = |intent: &Value| applied(live, intent, &[], "operetta/test");
        let of = |intent: &Value| paths(&stored(live, &[]).unwrap(), &stored(&made(intent), &[]).unwrap());
        assert!(!paths(live, &made(&data["intent"])).is_empty(), "the list has lost its defaults");
        assert_eq!(of(&data["intent"]), Vec::<String>::new());
        let mut changed = data["intent"].clone();
        changed["spec"]["template"]["spec"]["containers"][0]["image"] = "y".into();
        assert_eq!(of(&changed), ["spec.template.spec.containers[name=db].image"]);
    }

    #[test]
    fn custom_kinds_have_the_defaults_of_their_crd() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"ports": {"type": "array",
            "items": {"type": "object", "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}}}}}}});
        let crd = json!({"spec": {"group": "example.org", "names": {"kind": "Way"},
            "versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}});
        let way = |kind: &str| json!({"apiVersion": "example.org/v1", "kind": kind, "spec": {"ports": [{"port": 80}]}});
        let crds = [crd];
        let made = stored(&way("Way"), &crds).unwrap();
        assert_eq!(made["spec"]["ports"], json!([{"port": 80, "protocol": "TCP"}]));
        assert_eq!(stored(&way("Other"), &crds), None);
    }
}

//! Finds what a changed schema does to objects that were stored under the previous schema: values that are
//! dropped, and values that become invalid. CEL rules are not evaluated.

use operetta_kube_model::fields::{FieldSet, Fit, MANAGED};
use operetta_kube_model::schema::{apply_defaults, preserves, properties};
use serde_json::{Map, Value};

use super::{Violation, schema_of, validate, versions};

/// One version of a kind whose objects must be checked against changed schemas.
#[derive(Debug)]
pub struct Narrowed<'a> {
    /// The version in which the objects are read.
    pub version: &'a str,
    /// The previous and the new schema: of this version, of the storage version, or of both.
    pairs: Vec<(Value, Value)>,
}

/// The versions of a CRD whose objects may lose values or become invalid when it changes; empty if no schema
/// becomes narrower.
pub fn narrowed<'a>(former: &'a Value, new: &Value) -> Vec<Narrowed<'a>> {
    let stored = |crd: &Value| -> Option<Value> {
        let version = versions(crd).find(|version| version["storage"] == true)?;
        schema_of(crd, version["name"].as_str()?).map(comparable)
    };
    let converts = new["spec"]["conversion"]["strategy"] == "Webhook";
    let (stored_before, stored_now) = (stored(former), stored(new));
    versions(former)
        .filter(|version| version["served"] == true)
        .filter_map(|version| {
            let name = version["name"].as_str()?;
            let of_version = (schema_of(former, name).map(comparable), schema_of(new, name).map(comparable));
            let of_store = if converts { (None, None) } else { (stored_before.clone(), stored_now.clone()) };
            let mut pairs: Vec<(Value, Value)> = [of_version, of_store]
                .into_iter()
                .filter_map(|(former, new)| former.zip(new))
                .filter(|(former, new)| narrows(former, new))
                .collect();
            pairs.dedup();
            (!pairs.is_empty()).then_some(Narrowed { version: name, pairs })
        })
        .collect()
}

impl Narrowed<'_> {
    /// The values that an object would lose or that would become invalid. Existing violations do not count,
    /// nor do dropped values that the API server has filled in: see `remove_filled_in`. `object` must include
    /// its managedFields.
    pub fn losses(&self, object: &Value) -> Vec<Violation> {
        let mut spec = object.clone();
        if let Some(map) = spec.as_object_mut() {
            map.remove("status");
        }
        let faults = |schema: &Value, mut filled: Value| {
            apply_defaults(schema, &mut filled);
            validate(schema, &filled)
        };
        let entries = object["metadata"][MANAGED].as_array().into_iter().flatten();
        let owned: FieldSet = entries.filter_map(|entry| FieldSet::parse(&entry["fieldsV1"])).collect();
        let mut found: Vec<Violation> = Vec::new();
        for (former, new) in &self.pairs {
            let before = faults(former, spec.clone());
            let is_new = |violation: &Violation| !before.iter().any(|known| known.path == violation.path);
            let mut kept = spec.clone();
            // Without managedFields, every value may have been set by a person.
            if !owned.is_empty() {
                remove_filled_in(former, new, &mut kept, Some(&owned));
            }
            for violation in faults(new, kept).into_iter().filter(is_new) {
                if !found.contains(&violation) {
                    found.push(violation);
                }
            }
        }
        found
    }
}

/// Removes the fields that the new schema drops, whose values are the previous schema's defaults, and which
/// no manager has set. The API server stores defaults in each written object without an owner. A field that a
/// client has sent has an owner, even if the value is the default, and stays. `owned`: the fields of this value
/// that have an owner.
fn remove_filled_in(former: &Value, new: &Value, value: &mut Value, owned: Option<&FieldSet>) {
    let within = |schema: &Value, key: &str| schema.get(key).filter(|inner| inner.is_object()).cloned();
    match value {
        Value::Object(map) => {
            // The owner of an atomic map owns the whole map.
            if former["x-kubernetes-map-type"] == "atomic" && owned.is_some() {
                return;
            }
            let below = |name: &str| owned.and_then(|owned| owned.field(name));
            let empty = Map::new();
            let (old, now) = (properties(former).unwrap_or(&empty), properties(new).unwrap_or(&empty));
            let others = within(former, "additionalProperties").zip(within(new, "additionalProperties"));
            let drops = !preserves(new) && new.get("additionalProperties").is_none();
            map.retain(|name, held| {
                let is_filled_in =
                    || old.get(name).is_some_and(|field| is_default(field, held)) && below(name).is_none();
                !drops || now.contains_key(name) || !is_filled_in()
            });
            for (name, held) in map {
                let others = || others.as_ref().map(|(old, now)| (old, now));
                if let Some((old, now)) = old.get(name).zip(now.get(name)).or_else(others) {
                    remove_filled_in(old, now, held, below(name));
                }
            }
        }
        Value::Array(items) => {
            let is_keyed = former["x-kubernetes-list-type"] == "map";
            // The owner of an atomic list owns the whole list.
            if !is_keyed && owned.is_some() {
                return;
            }
            if let Some((old, now)) = within(former, "items").zip(within(new, "items")) {
                for item in items {
                    let items = owned.into_iter().flat_map(FieldSet::items);
                    let fitting = items.filter(|(key, _)| key.fits(item) == Some(Fit::Exact));
                    let below: FieldSet = fitting.map(|(_, below)| below.clone()).collect();
                    remove_filled_in(&old, &now, item, Some(&below).filter(|below| !below.is_empty()));
                }
            }
        }
        _ => {}
    }
}

/// Whether a value is the one that the API server would fill in.
fn is_default(schema: &Value, value: &Value) -> bool {
    let Some(default) = schema.get("default").filter(|default| !default.is_null()) else { return false };
    let mut filled = default.clone();
    apply_defaults(schema, &mut filled);
    filled == *value
}

/// The schema without the status, which managers rewrite.
fn comparable(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        fields.remove("status");
    }
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| name != "status");
    }
    schema
}

/// Keywords that do not restrict the allowed values. (CEL rules do, but are not evaluated.)
const SILENT: [&str; 10] = [
    "description",
    "title",
    "default",
    "example",
    "externalDocs",
    "x-kubernetes-validations",
    "x-kubernetes-map-type",
    "x-kubernetes-patch-merge-key",
    "x-kubernetes-patch-strategy",
    "x-kubernetes-list-map-keys",
];

/// Whether the new schema may drop or refuse a value that is valid under the previous one. True in case of
/// doubt.
fn narrows(former: &Value, new: &Value) -> bool {
    if former == new {
        return false;
    }
    let (Some(before), Some(now)) = (former.as_object(), new.as_object()) else { return true };
    before.keys().chain(now.keys()).any(|key| keyword_narrows(key, (former, before), (new, now)))
}

fn keyword_narrows(
    key: &str,
    (former, before): (&Value, &Map<String, Value>),
    (new, now): (&Value, &Map<String, Value>),
) -> bool {
    let (old, changed) = (before.get(key), now.get(key));
    if old == changed || SILENT.contains(&key) {
        return false;
    }
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    let is_true = |value: Option<&Value>| value == Some(&Value::Bool(true));
    match key {
        "properties" => fields_narrow(former, new),
        "additionalProperties" | "items" => match (old, changed) {
            (Some(old @ Value::Object(_)), Some(changed @ Value::Object(_))) => narrows(old, changed),
            // Without such a schema, the previous version kept no items or entries.
            (None | Some(Value::Bool(false)), Some(_)) => preserves(former),
            (Some(_), None | Some(Value::Bool(false))) => !preserves(new),
            _ => true,
        },
        "required" => {
            let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
            let (old, changed) = (list(old), list(changed));
            let has_default = |name: &Value| {
                let field = name.as_str().and_then(|name| properties(new)?.get(name));
                field.is_some_and(|field| field.get("default").is_some_and(|default| !default.is_null()))
            };
            changed.iter().any(|name| !old.contains(name) && !has_default(name))
        }
        "enum" => match (old.and_then(Value::as_array), changed.and_then(Value::as_array)) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(old), Some(changed)) => old.iter().any(|value| !changed.contains(value)),
        },
        "maximum" | "maxLength" | "maxItems" | "maxProperties" => match (number(old), number(changed)) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(old), Some(changed)) => changed < old,
        },
        "minimum" | "minLength" | "minItems" | "minProperties" => match (number(old), number(changed)) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(old), Some(changed)) => changed > old,
        },
        "exclusiveMaximum" | "exclusiveMinimum" | "uniqueItems" => is_true(changed),
        "pattern" | "format" | "multipleOf" | "allOf" | "anyOf" | "oneOf" | "not" => changed.is_some(),
        "nullable" | "x-kubernetes-preserve-unknown-fields" | "x-kubernetes-int-or-string" => is_true(old),
        "type" => {
            let is_wider = old.and_then(Value::as_str) == Some("integer")
                && changed.and_then(Value::as_str) == Some("number");
            let keeps_both = is_true(now.get("x-kubernetes-int-or-string"))
                && matches!(old.and_then(Value::as_str), Some("integer" | "string"));
            !(is_wider || keeps_both)
        }
        "x-kubernetes-list-type" => changed.is_some_and(|kind| kind != "atomic"),
        _ => true,
    }
}

fn fields_narrow(former: &Value, new: &Value) -> bool {
    let empty = Map::new();
    let (old, changed) = (properties(former).unwrap_or(&empty), properties(new).unwrap_or(&empty));
    // Objects may contain fields that the previous schema did not name.
    let was_open = preserves(former) || former.get("additionalProperties").is_some();
    old.iter().any(|(name, field)| match changed.get(name) {
        Some(changed) => narrows(field, changed),
        None => !preserves(new),
    }) || was_open && changed.keys().any(|name| !old.contains_key(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn crd(versions: &[(&str, bool, Value)]) -> Value {
        let versions: Vec<Value> = versions
            .iter()
            .map(|(name, storage, spec)| {
                json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"spec": spec, "status": {"type": "object"}}}}})
            })
            .collect();
        json!({"spec": {"versions": versions}})
    }

    /// The losses of an object with that spec when the spec's schema changes; `None` if it need not be
    /// checked.
    fn lost(former: &Value, new: &Value, spec: &Value) -> Option<Vec<String>> {
        let (former, new) = (crd(&[("v1", true, former.clone())]), crd(&[("v1", true, new.clone())]));
        let found = narrowed(&former, &new);
        let object = json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "a"}, "spec": spec, "status": {"x": 1}});
        let one = found.first()?;
        assert_eq!(found.len(), 1);
        Some(one.losses(&object).into_iter().map(|v| format!("{} {}", v.path, v.message)).collect())
    }

    fn object(fields: &Value) -> Value {
        json!({"type": "object", "properties": fields})
    }

    #[test]
    fn wider_schemas_need_no_check() {
        let a = json!({"a": {"type": "integer", "maximum": 5, "enum": [1, 2]}});
        for wider in [
            json!({"a": {"type": "integer", "maximum": 9, "enum": [1, 2, 3]}, "b": {"type": "string"}}),
            json!({"a": {"type": "number", "description": "words", "default": 1}}),
            json!({"a": {"type": "integer", "maximum": 5, "x-kubernetes-validations": [{"rule": "self > 0"}]}}),
        ] {
            assert_eq!(lost(&object(&a), &object(&wider), &json!({"a": 1})), None, "{wider}");
        }
        let mut required =
            object(&json!({"a": {"type": "integer", "maximum": 5, "enum": [1, 2], "default": 1}}));
        required["required"] = json!(["a"]);
        assert_eq!(lost(&object(&a), &required, &json!({})), None);
        // A narrower status does not count, because managers rewrite the status.
        let mut new = crd(&[("v1", true, object(&a))]);
        new["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"] =
            json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}});
        assert!(narrowed(&crd(&[("v1", true, object(&a))]), &new).is_empty());
    }

    #[test]
    fn every_kind_of_loss_is_reported_with_its_path() {
        let string = json!({"type": "string"});
        let cases = [
            (json!({"a": string}), json!({}), json!({"a": "x"}), "spec.a is not in the schema"),
            (
                json!({"a": string}),
                json!({"a": {"type": "integer"}}),
                json!({"a": "x"}),
                "spec.a must be an integer, is a string",
            ),
            (
                json!({"a": string}),
                json!({"a": {"type": "string", "enum": ["y"]}}),
                json!({"a": "x"}),
                "spec.a must be one of: y",
            ),
            (
                json!({"a": string}),
                json!({"a": {"type": "string", "maxLength": 1}}),
                json!({"a": "xx"}),
                "spec.a must have at most 1 characters, has 2",
            ),
            (
                json!({"a": string}),
                json!({"a": {"type": "string", "pattern": "^y"}}),
                json!({"a": "x"}),
                "spec.a must match the pattern ^y",
            ),
            (
                json!({"a": {"type": "array", "items": {"type": "object", "properties": {"b": string}}}}),
                json!({"a": {"type": "array", "items": {"type": "object", "properties": {}}}}),
                json!({"a": [{"b": "x"}]}),
                "spec.a[0].b is not in the schema",
            ),
            (
                json!({"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}),
                json!({"a": {"type": "object"}}),
                json!({"a": {"b": 1}}),
                "spec.a.b is not in the schema",
            ),
            (
                json!({"a": {"type": "object", "additionalProperties": string}}),
                json!({"a": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 1}}}),
                json!({"a": {"b": "xx"}}),
                "spec.a.b must have at most 1 characters, has 2",
            ),
        ];
        for (former, new, spec, expected) in cases {
            let (former, new) = (object(&former), object(&new));
            assert_eq!(lost(&former, &new, &spec), Some(vec![expected.to_owned()]), "{new}");
            // An object without that value loses nothing.
            assert_eq!(lost(&former, &new, &json!({})), Some(Vec::new()), "{new}");
        }
        let mut required = object(&json!({"a": string}));
        required["required"] = json!(["a"]);
        assert_eq!(
            lost(&object(&json!({"a": string})), &required, &json!({})),
            Some(vec!["spec.a is required".to_owned()])
        );
    }

    #[test]
    fn existing_violations_do_not_count() {
        let limited = |most: u64| object(&json!({"a": {"type": "integer", "maximum": most}}));
        assert_eq!(lost(&limited(9), &limited(5), &json!({"a": 10})), Some(Vec::new()));
        assert_eq!(lost(&limited(9), &limited(5), &json!({"a": 7})).unwrap().len(), 1);
    }

    #[test]
    fn dropped_defaults_that_nobody_has_set_do_not_count() {
        let field =
            json!({"type": "object", "default": {}, "properties": {"c": {"type": "integer", "default": 1}}});
        let fields = json!({"n": {"type": "string"}, "a": {"type": "string", "default": "x"}, "b": field});
        let list = |fields: &Value| {
            json!({"type": "array", "items": object(fields), "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["n"]})
        };
        let atomic = |fields: &Value| json!({"type": "array", "items": object(fields)});
        let map = |fields: &Value| json!({"type": "object", "additionalProperties": object(fields)});
        let all = |of: &Value| json!({"a": of["a"], "b": of["b"], "list": list(of), "atomic": atomic(of), "others": map(of)});
        let kept = json!({"n": {"type": "string"}});
        let former = object(&all(&fields));
        let thin = object(&json!({"list": list(&kept), "atomic": atomic(&kept), "others": map(&kept)}));
        let spec = |a: &str, c: i64| {
            let of = json!({"n": "i", "a": a, "b": {"c": c}});
            json!({"a": a, "b": {"c": c}, "list": [of], "others": {"k": of}})
        };
        let losses = |spec: &Value, owned: &[Value]| {
            let (former, new) = (crd(&[("v1", true, former.clone())]), crd(&[("v1", true, thin.clone())]));
            let entries: Vec<Value> =
                owned.iter().map(|owned| json!({"fieldsV1": {"f:spec": owned}})).collect();
            let object = json!({"apiVersion": "a/v1", "kind": "A", "spec": spec,
                "metadata": {"name": "a", "managedFields": entries}});
            let found = narrowed(&former, &new);
            let mut found: Vec<String> = found[0].losses(&object).into_iter().map(|v| v.path).collect();
            found.sort();
            found
        };
        let everything =
            ["spec.a", "spec.b", "spec.list[0].a", "spec.list[0].b", "spec.others.k.a", "spec.others.k.b"];
        let item = r#"k:{"n":"i"}"#;
        let others = json!({"f:list": {item: {".": {}, "f:n": {}}}, "f:others": {"f:k": {"f:n": {}}}});
        assert_eq!(losses(&spec("x", 1), std::slice::from_ref(&others)), [""; 0]);
        // A value that is not the default was set by a person, even if no manager owns it.
        assert_eq!(losses(&spec("y", 2), std::slice::from_ref(&others)), everything);
        // Without managedFields, every value may have been set by a person.
        assert_eq!(losses(&spec("x", 1), &[]), everything);
        // A client has sent the value of the default, and owns it.
        for (owned, expected) in [
            (json!({"f:a": {}}), "spec.a"),
            (json!({"f:b": {"f:c": {}}}), "spec.b"),
            (json!({"f:list": {item: {"f:a": {}}}}), "spec.list[0].a"),
            (json!({"f:others": {"f:k": {"f:b": {}}}}), "spec.others.k.b"),
        ] {
            assert_eq!(losses(&spec("x", 1), &[others.clone(), owned]), [expected]);
        }
        // The owner of an atomic list owns its whole content.
        let one = json!({"atomic": [{"n": "i", "a": "x"}]});
        assert_eq!(losses(&one, &[json!({"f:atomic": {}})]), ["spec.atomic[0].a"]);
        // A value that becomes invalid counts, even if it is the default.
        let narrower = object(&json!({"a": {"type": "string", "maxLength": 0}}));
        let former = object(&json!({"a": {"type": "string", "default": "x"}}));
        assert_eq!(lost(&former, &narrower, &json!({"a": "x"})).unwrap().len(), 1);
    }

    #[test]
    fn a_narrower_stored_version_is_reported() {
        let (wide, thin) = (object(&json!({"a": {"type": "string"}})), object(&json!({})));
        let former = crd(&[("v1", true, wide.clone()), ("v2", false, thin.clone())]);
        let new = crd(&[("v1", false, wide), ("v2", true, thin)]);
        let found = narrowed(&former, &new);
        let v1 = found.iter().find(|one| one.version == "v1").unwrap();
        let object =
            json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "a"}, "spec": {"a": "x"}});
        assert_eq!(v1.losses(&object).len(), 1);
        let mut converted = new;
        converted["spec"]["conversion"] = json!({"strategy": "Webhook"});
        assert!(narrowed(&former, &converted).is_empty());
    }
}

//! Adds Operetta's fields and columns to a CRD.

use operetta_kube_model::schema::properties;
use serde_json::{Map, Value, json};

/// The additions that depend on the package.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Additions {
    /// The names of the projected status fields; a name may be dotted (`members.ready`).
    pub status: Vec<String>,
    /// Whether the resource has plans, so that its CRD gets a column for them.
    pub has_plans: bool,
}

/// Adds to a CRD the category `operetta` and, in every version, the status subresource, a status schema that
/// keeps Operetta's and the projected fields, and the columns Ready, Plan and Age.
///
/// Everything of the author stays: schemas are only widened, columns and categories are only added, and all
/// else is unchanged. Augmenting an augmented CRD changes nothing.
pub fn augment(crd: &Value, additions: &Additions) -> Value {
    let mut crd = crd.clone();
    if let Some(names) = crd.pointer_mut("/spec/names").and_then(Value::as_object_mut) {
        add_category(names);
    }
    let versions = crd.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten().filter_map(Value::as_object_mut) {
        let subresources = object_at(version, "subresources");
        if let Some(subresources) = subresources {
            object_at(subresources, "status");
        }
        let schema = version.get_mut("schema").and_then(|schema| schema.get_mut("openAPIV3Schema"));
        if let Some(schema) = schema.and_then(Value::as_object_mut) {
            add_status(schema, additions);
        }
        add_columns(version, additions);
    }
    crd
}

/// The category of all CRDs: `kubectl get operetta` lists their objects.
pub const CATEGORY: &str = "operetta";

fn add_category(names: &mut Map<String, Value>) {
    let categories = names.entry("categories").or_insert(Value::Null);
    if categories.is_null() {
        *categories = json!([]);
    }
    if let Some(categories) = categories.as_array_mut().filter(|all| !all.iter().any(|one| one == CATEGORY)) {
        categories.push(CATEGORY.into());
    }
}

/// The optional status fields of Operetta (`revision`, `plan`, `history`) that the author's schema defines
/// with another type. They belong to the author, so Operetta must not write them.
pub fn taken(crd: &Value, version: &str) -> Vec<&'static str> {
    let status = super::schema_of(crd, version).and_then(|schema| properties(schema)?.get("status"));
    let Some(known) = status.and_then(properties) else { return Vec::new() };
    [("revision", "string"), ("plan", "object"), ("history", "array")]
        .into_iter()
        .filter(|(name, kind)| {
            let field = known.get(*name);
            field.is_some_and(|field| field.get("type").is_some_and(|own| own != kind))
        })
        .map(|(name, _)| name)
        .collect()
}

/// The object at a key, created if it is absent or null; `None` if the value has another type.
fn object_at<'a>(map: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    let value = map.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut()
}

fn anything() -> Value {
    json!({"x-kubernetes-preserve-unknown-fields": true})
}

/// The status fields of Operetta that every CRD gets.
fn own_fields() -> [(&'static str, Value); 5] {
    [
        (
            "observedGeneration",
            json!({
                "type": "integer", "format": "int64",
                "description": "The generation of the spec that this status is about.",
            }),
        ),
        (
            "conditions",
            json!({
                "type": "array",
                "description": "Ready, Reconciling, Stalled, and those of the package.",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type", "status"],
                    "properties": {
                        "type": {"type": "string"},
                        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                        "reason": {"type": "string"},
                        "message": {"type": "string"},
                        "lastTransitionTime": {"type": "string", "format": "date-time"},
                        "observedGeneration": {"type": "integer", "format": "int64"},
                    },
                },
            }),
        ),
        (
            "revision",
            json!({"type": "string", "description": "The package revision that the children come from."}),
        ),
        (
            "plan",
            json!({
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "description": "The active plan, or the last one.",
            }),
        ),
        (
            "history",
            json!({
                "type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "description": "The last runs of plans, newest first.",
            }),
        ),
    ]
}

fn add_status(root: &mut Map<String, Value>, additions: &Additions) {
    // The server refuses a schema without a type, and the root of a CRD can only be an object.
    root.entry("type").or_insert_with(|| json!("object"));
    let is_open = root.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    let Some(fields) = object_at(root, "properties") else { return };
    let status = fields.entry("status").or_insert_with(|| {
        let mut status = json!({"type": "object"});
        if is_open {
            // The server keeps unknown status fields under this schema, and must continue to keep them beside
            // the new fields.
            status["x-kubernetes-preserve-unknown-fields"] = json!(true);
        }
        status
    });
    let Some(status) = status.as_object_mut() else { return };
    status.entry("type").or_insert_with(|| json!("object"));
    for (name, schema) in own_fields() {
        add_field(status, &[name], &schema);
        if name == "conditions" {
            admit_conditions(status, &schema);
        }
    }
    for name in &additions.status {
        let path: Vec<&str> = name.split('.').collect();
        add_field(status, &path, &anything());
    }
}

/// Extends the author's schema of a condition so that Operetta's conditions are valid. Otherwise the server
/// would drop fields, which every manager would write again when it starts, or refuse the status because of
/// an unknown type.
fn admit_conditions(status: &mut Map<String, Value>, own: &Value) {
    // The keys of a list of type `map` must stay required.
    let list = status.get("properties").and_then(|fields| fields.get("conditions"));
    let keys = list.and_then(|list| list.get("x-kubernetes-list-map-keys").cloned()).unwrap_or_default();
    let is_key = |name: &str| keys.as_array().is_some_and(|keys| keys.iter().any(|key| key == name));
    let items =
        status.get_mut("properties").and_then(|fields| fields.get_mut("conditions")?.get_mut("items"));
    let (Some(items), Some(own)) = (items.and_then(Value::as_object_mut), properties(&own["items"])) else {
        return;
    };
    if items.get("type").is_some_and(|kind| kind != "object") {
        return;
    }
    if let Some(required) = items.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| name.as_str().is_some_and(|name| own.contains_key(name) || is_key(name)));
        if required.is_empty() {
            items.remove("required");
        }
    }
    if !is_open(items) {
        let Some(fields) = object_at(items, "properties") else { return };
        for (name, schema) in own {
            fields.entry(name).or_insert_with(|| schema.clone());
        }
    }
    let Some(fields) = items.get_mut("properties") else { return };
    let is_missing =
        |values: &Value, word: &str| values.as_array().is_some_and(|v| !v.iter().any(|v| v == word));
    for (name, words) in [("type", None), ("status", Some(["True", "False", "Unknown"]))] {
        let Some(field) = fields.get_mut(name).and_then(Value::as_object_mut) else { continue };
        let Some(values) = field.get("enum") else { continue };
        // The types of conditions are up to the packages, so they cannot be enumerated.
        if words.is_none_or(|words| words.iter().any(|word| is_missing(values, word))) {
            field.remove("enum");
        }
    }
}

/// Extends the schema of an object so that the server does not prune a field, at any depth.
fn add_field(object: &mut Map<String, Value>, path: &[&str], schema: &Value) {
    let Some((first, rest)) = path.split_first() else { return };
    // A status is filled step by step, and the server refuses the whole status while a required field is
    // missing.
    object.remove("required");
    let known = object.get("properties").and_then(Value::as_object);
    let is_known = known.is_some_and(|known| known.contains_key(*first));
    if !is_known && (is_open(object) || object.get("type").is_some_and(|kind| kind != "object")) {
        return;
    }
    let Some(fields) = object_at(object, "properties") else { return };
    let field = fields
        .entry(*first)
        .or_insert_with(|| if rest.is_empty() { schema.clone() } else { json!({"type": "object"}) });
    let Some(field) = field.as_object_mut() else { return };
    if !rest.is_empty() {
        add_field(field, rest, schema);
    } else if field.get("type").is_some_and(|kind| kind == "object")
        && !field.contains_key("properties")
        && !is_open(field)
    {
        // The server empties an object whose schema has no properties.
        field.insert("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true));
    }
}

/// Whether a schema keeps unknown fields completely, or has a schema for them. `additionalProperties: true`
/// does neither: the server keeps such a field, but empties the objects in it.
fn is_open(object: &Map<String, Value>) -> bool {
    let preserved = object.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    preserved || object.get("additionalProperties").is_some_and(Value::is_object)
}

const READY_PATH: &str = r#".status.conditions[?(@.type=="Ready")].status"#;

fn add_columns(version: &mut Map<String, Value>, additions: &Additions) {
    let columns = version.entry("additionalPrinterColumns").or_insert(Value::Null);
    if columns.is_null() {
        *columns = json!([]);
    }
    let Some(columns) = columns.as_array_mut() else { return };
    let named = |columns: &[Value], name: &str| {
        columns.iter().any(|column| column["name"].as_str().is_some_and(|own| own.eq_ignore_ascii_case(name)))
    };
    // Operetta's columns come after the author's, but Age stays last, as kubectl users expect.
    let add = |columns: &mut Vec<Value>, column: Value| {
        let age_is_last = columns.last().is_some_and(|last| last["jsonPath"] == AGE_PATH);
        let at = if age_is_last { columns.len() - 1 } else { columns.len() };
        columns.insert(at, column);
    };
    let shows_ready = columns.iter().any(|column| {
        let path = column["jsonPath"].as_str().unwrap_or_default().replace(char::is_whitespace, "");
        path.replace('\'', "\"").contains(r#"conditions[?(@.type=="Ready")]"#)
    });
    if !shows_ready {
        // The author's column Ready may mean something else, such as the number of ready members. The
        // condition Ready then gets a column with another name.
        let name = ["Ready", "AllReady", "OperettaReady"].into_iter().find(|name| !named(columns, name));
        if let Some(name) = name {
            add(columns, json!({"name": name, "type": "string", "jsonPath": READY_PATH}));
        }
    }
    if additions.has_plans && !named(columns, "Plan") {
        add(columns, json!({"name": "Plan", "type": "string", "jsonPath": ".status.plan.name"}));
    }
    // The server adds Age only if a CRD has no columns.
    if !named(columns, "Age") && !columns.iter().any(|column| column["jsonPath"] == AGE_PATH) {
        add(columns, json!({"name": "Age", "type": "date", "jsonPath": AGE_PATH}));
    }
}

const AGE_PATH: &str = ".metadata.creationTimestamp";

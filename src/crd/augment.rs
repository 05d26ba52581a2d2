//! Adding to a CRD what Operetta needs and the CRD lacks.

use serde_json::{Map, Value, json};

use super::properties;

/// What a package needs beside what every package needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Additions {
    /// The projected status fields by name; may be dotted (`members.ready`).
    pub status: Vec<String>,
    /// Whether the resource has plans, which then get a column.
    pub has_plans: bool,
}

/// The CRD with the status subresource, a status schema that keeps our fields and the projected ones
/// from being pruned, and the columns Ready, Plan and Age, in every version.
///
/// What the author wrote is kept: schemas are only widened, columns only added; names, scope and
/// conversion are not touched. Augmenting what is augmented changes nothing.
pub fn augment(crd: &Value, additions: &Additions) -> Value {
    let mut crd = crd.clone();
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

/// The optional status fields of ours (`revision`, `plan`, `history`) that the author's schema gives
/// another type: they are the author's, and must not be written.
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

/// The object at a key, made if it is absent or null; `None` if something else is there.
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

/// The fields of ours in every status.
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
    // A schema without type is refused by the server; at the root only one is possible.
    root.entry("type").or_insert_with(|| json!("object"));
    let is_open = root.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    let Some(fields) = object_at(root, "properties") else { return };
    let status = fields.entry("status").or_insert_with(|| {
        let mut status = json!({"type": "object"});
        if is_open {
            // Whatever the author writes there survives today, and must survive with our fields beside it.
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

/// Lets our conditions through whole where the author's schema of a condition knows less than ours. (What the
/// server drops would be written again by every manager that starts, and one unknown type has it refuse all.)
fn admit_conditions(status: &mut Map<String, Value>, own: &Value) {
    // The keys of a list have to be required.
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
        // Types are the package's to choose.
        if words.is_none_or(|words| words.iter().any(|word| is_missing(values, word))) {
            field.remove("enum");
        }
    }
}

/// Lets a field through that the schema of an object would prune, however deep.
fn add_field(object: &mut Map<String, Value>, path: &[&str], schema: &Value) {
    let Some((first, rest)) = path.split_first() else { return };
    // A status is filled in as its values become known, and refused as a whole while one is missing.
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
        // An object of which nothing is known would arrive empty.
        field.insert("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true));
    }
}

/// Whether an object's schema lets unknown fields through whole, or gives them a schema of its own.
/// (`additionalProperties: true` does neither: the server keeps such a field and empties the objects in it.)
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
    // Ours come after the author's, but Age stays last, where kubectl users look for it.
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
        // A Ready of the author's counts something: members, say. Whether all is as it should be is another column.
        let name = ["Ready", "AllReady", "OperettaReady"].into_iter().find(|name| !named(columns, name));
        if let Some(name) = name {
            add(columns, json!({"name": name, "type": "string", "jsonPath": READY_PATH}));
        }
    }
    if additions.has_plans && !named(columns, "Plan") {
        add(columns, json!({"name": "Plan", "type": "string", "jsonPath": ".status.plan.name"}));
    }
    // The server adds Age by itself only where there are no columns at all.
    if !named(columns, "Age") && !columns.iter().any(|column| column["jsonPath"] == AGE_PATH) {
        add(columns, json!({"name": "Age", "type": "date", "jsonPath": AGE_PATH}));
    }
}

const AGE_PATH: &str = ".metadata.creationTimestamp";

//! Proves from the schemas of two versions that the rules between them lose no field.

use operetta_kube_model::schema::{OBJECT_FIELDS, OtherKeys, default_of, other_keys, properties, values};
use serde_json::{Map, Value};

use super::{Pair, differ};
use crate::crd::conversion::path::{Path, Segment, show};
use crate::crd::conversion::rules::Rules;

/// The maximum number of fields without a rule that are reported for a version.
const REPORTED: usize = 20;

impl Pair<'_> {
    /// Compares the schemas. Reports the fields that would be lost, and adds to the rules the objects all of whose
    /// fields they handle.
    pub(super) fn compare(&mut self, compiled: &mut Rules) {
        let mut comparison =
            SchemaComparison { pair: self, own: Vec::new(), hub: Vec::new(), found: Vec::new() };
        let (own, hub) = (comparison.pair.own.schema, comparison.pair.hub.schema);
        comparison.both(own, hub, &mut Path::new());
        let SchemaComparison { own, hub, found, .. } = comparison;
        let count = found.len();
        for (message, help) in found.into_iter().take(REPORTED) {
            self.report(None, message, help);
        }
        if count > REPORTED {
            self.report(None, format!("and {} more fields without a rule", count - REPORTED), None);
        }
        (compiled.own.objects, compiled.hub.objects) = (own, hub);
        for only in [&mut compiled.own, &mut compiled.hub] {
            only.objects.sort_by_key(|path| std::cmp::Reverse(path.len()));
        }
    }
}

/// Compares two schemas, except for the fields that rules handle.
struct SchemaComparison<'a, 'b> {
    pair: &'b Pair<'a>,
    /// Objects that only this version has and all of whose fields rules handle.
    own: Vec<Path>,
    hub: Vec<Path>,
    found: Vec<(String, Option<String>)>,
}

impl SchemaComparison<'_, '_> {
    /// Compares two objects at a path that both versions have.
    fn both(&mut self, own: &Value, hub: &Value, path: &mut Path) {
        let empty = Map::new();
        let (own_fields, hub_fields) = (properties(own).unwrap_or(&empty), properties(hub).unwrap_or(&empty));
        let is_root = path.is_empty();
        let mut names: Vec<&String> = own_fields.keys().chain(hub_fields.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            if is_root && OBJECT_FIELDS.contains(&name.as_str()) {
                continue;
            }
            path.push(Segment::Key(name.clone()));
            let of_own = own_fields.get(name).filter(|_| !self.pair.own.is_taken(path));
            let of_hub = hub_fields.get(name).filter(|_| !self.pair.hub.is_taken(path));
            match (of_own, of_hub) {
                (Some(own_field), Some(hub_field)) => {
                    self.required((own, own_field), (hub, hub_field), name, path);
                    self.field(own_field, hub_field, path);
                }
                (Some(field), None) => self.single(field, path, true),
                (None, Some(field)) => self.single(field, path, false),
                (None, None) => {}
            }
            path.pop();
        }
        for (own, hub) in [(own.get("items"), hub.get("items")), (values(own), values(hub))] {
            if let (Some(own), Some(hub)) = (own, hub) {
                let keys = |schema: &Value| -> Vec<String> {
                    let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                    keys.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
                };
                path.push(Segment::Each { each: keys(own) });
                self.field(own, hub, path);
                path.pop();
            }
        }
    }

    /// Compares a field that both versions have.
    fn field(&mut self, own: &Value, hub: &Value, path: &mut Path) {
        let (own_keys, hub_keys) =
            (own.get("x-kubernetes-list-map-keys"), hub.get("x-kubernetes-list-map-keys"));
        if own_keys != hub_keys && self.pair.own.has_taken_below(path) {
            self.lost(format!("the list `{}` has other keys in {}", show(path), self.pair.hub.version));
            return;
        }
        if let Some(difference) = differ(own, hub) {
            let (own, hub) = (self.pair.own.version, self.pair.hub.version);
            let help =
                "a value of another type cannot be converted: choose another name in one of them".to_owned();
            self.found.push((format!("`{}` {difference} in {own} and {hub}", show(path)), Some(help)));
            return;
        }
        let path_of_items = own_keys.and_then(Value::as_array).is_some();
        if path_of_items {
            // The keys of the list become part of the path.
            let keys = own_keys.and_then(Value::as_array).into_iter().flatten();
            let each = keys.filter_map(Value::as_str).map(str::to_owned).collect();
            if let (Some(own), Some(hub)) = (own.get("items"), hub.get("items")) {
                path.push(Segment::Each { each });
                self.field(own, hub, path);
                path.pop();
            }
            return;
        }
        self.both(own, hub, path);
    }

    fn required(&mut self, own: (&Value, &Value), hub: (&Value, &Value), name: &str, path: &[Segment]) {
        let is_required = |parent: &Value| {
            let names = parent.get("required").and_then(Value::as_array);
            names.is_some_and(|names| names.iter().any(|required| required == name))
        };
        if is_required(own.0) != is_required(hub.0) && default_of(own.1).or(default_of(hub.1)).is_none() {
            let strict = if is_required(own.0) { self.pair.own.version } else { self.pair.hub.version };
            let help = "require it in both or none, or give it a default in the schema".to_owned();
            self.found.push((format!("only {strict} requires `{}`", show(path)), Some(help)));
        }
    }

    /// Checks a field that only one version has and that no rule names.
    fn single(&mut self, schema: &Value, path: &mut Path, is_own: bool) {
        let (side, other) =
            if is_own { (&self.pair.own, &self.pair.hub) } else { (&self.pair.hub, &self.pair.own) };
        let is_closed = matches!(other_keys(schema), OtherKeys::Closed);
        let fields = properties(schema).filter(|_| is_closed && side.has_taken_below(path));
        let Some(fields) = fields else {
            let text = show(path);
            let message =
                format!("{} has `{text}`, {} has not, and no rule is about it", side.version, other.version);
            let help = if is_own {
                format!(
                    "add a rule: {{move: {text}, to: ...}}, {{default: {text}, value: ...}} or {{keep: {text}}}"
                )
            } else {
                format!(
                    "add a rule: {{move: ..., to: {text}}}, {{default: {text}, value: ...}} or {{keep: {text}}}"
                )
            };
            self.found.push((message, Some(help)));
            return;
        };
        let objects = if is_own { &mut self.own } else { &mut self.hub };
        objects.push(path.clone());
        for (name, field) in fields {
            path.push(Segment::Key(name.clone()));
            let side = if is_own { &self.pair.own } else { &self.pair.hub };
            if !side.is_taken(path) {
                self.single(field, path, is_own);
            }
            path.pop();
        }
    }

    fn lost(&mut self, message: String) {
        self.found.push((message, None));
    }
}

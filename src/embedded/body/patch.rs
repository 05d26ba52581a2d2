//! JSON patches, merge patches and strategic merge patches.

use operetta_kube_model::patch::merge;
use serde_json::{Map, Value};

use crate::model::{Failure, Kind, Outcome};
use crate::schema::Typed;

/// A patch of one of the three types.
#[derive(Debug)]
pub(crate) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    pub(crate) fn parse(kind: &Kind, content_type: &str, body: &[u8]) -> Outcome<Self> {
        let accepted = match kind.custom() {
            Some(_) => {
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
            }
            None => {
                "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml"
            }
        };
        let object = || -> Outcome<Value> {
            let value: Value = serde_json::from_slice(body)
                .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))?;
            if value.is_object() { Ok(value) } else { Err(Failure::bad_request("the patch is no object")) }
        };
        match content_type {
            "application/json-patch+json" => {
                // The last value of a field that is there twice counts.
                let patch = serde_json::from_slice::<Value>(body)
                    .and_then(serde_json::from_value)
                    .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))?;
                Ok(Self::Json(patch))
            }
            "application/merge-patch+json" => Ok(Self::Merge(object()?)),
            "application/strategic-merge-patch+json" if kind.custom().is_none() => {
                Ok(Self::Strategic(object()?))
            }
            "application/json" => {
                let mut failure = Failure::media_type("415: Unsupported Media Type");
                failure.set_details(serde_json::json!({}));
                Err(failure)
            }
            _ => Err(Failure::media_type(format!(
                "the body of the request was in an unknown format - accepted media types include: {accepted}"
            ))),
        }
    }

    /// Changes an object.
    pub(crate) fn apply(&self, kind: &Kind, object: &mut Value) -> Outcome<()> {
        match self {
            Self::Json(patch) => json_patch::patch(object, patch).map_err(|_| {
                let mut failure = Failure::new(
                    422,
                    "Invalid",
                    "the server rejected our request due to an error in our request",
                );
                failure.set_details(serde_json::json!({}));
                failure
            }),
            Self::Merge(patch) => {
                merge(object, patch);
                Ok(())
            }
            Self::Strategic(patch) => {
                let patch = patch.as_object().cloned().unwrap_or_default();
                strategic(Some(kind.typed()), object, &patch)
            }
        }
    }
}

const DIRECTIVE: &str = "$patch";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";
const RETAIN: &str = "$retainKeys";

/// Merges a map by the strategies of its fields.
fn strategic(typed: Option<Typed<'_>>, target: &mut Value, patch: &Map<String, Value>) -> Outcome<()> {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("replace") => {
            let rest = patch.iter().filter(|(name, _)| *name != DIRECTIVE);
            *target = Value::Object(rest.map(|(name, value)| (name.clone(), value.clone())).collect());
            return Ok(());
        }
        Some("delete") => {
            *target = Value::Object(Map::new());
            return Ok(());
        }
        _ => {}
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(map) = target else { return Ok(()) };
    if let Some(kept) = patch.get(RETAIN).and_then(Value::as_array) {
        map.retain(|name, _| kept.iter().any(|keep| keep == name));
    }
    for (name, value) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        let below = typed.and_then(|typed| typed.field(name));
        let field = typed.and_then(|typed| typed.named(name)).map(|(field, _)| field);
        match value {
            Value::Null => {
                map.remove(name);
            }
            Value::Object(patch) => {
                strategic(below, map.entry(name.clone()).or_insert(Value::Null), patch)?;
            }
            Value::Array(items) if field.is_some_and(|field| field.patch.merges) => {
                let key = field.and_then(|field| field.patch.key.as_deref());
                let live = map.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
                let gone = patch.get(&format!("{DELETE_FROM}{name}")).and_then(Value::as_array);
                let order = patch.get(&format!("{ORDER}{name}")).and_then(Value::as_array);
                let items = list(below.and_then(Typed::items), live, items, key, (gone, order))?;
                map.insert(name.clone(), items.into());
            }
            other => {
                map.insert(name.clone(), without_directives(other));
            }
        }
    }
    // Directives of lists that the patch does not have otherwise.
    for (directive, value) in patch {
        let name = directive.strip_prefix(DELETE_FROM).or_else(|| directive.strip_prefix(ORDER));
        let Some(name) = name.filter(|name| !patch.contains_key(*name)) else { continue };
        let Some(Value::Array(live)) = map.get_mut(name) else { continue };
        let given = value.as_array().cloned().unwrap_or_default();
        if directive.starts_with(DELETE_FROM) {
            live.retain(|item| !given.contains(item));
        } else {
            let key =
                typed.and_then(|typed| typed.named(name)).and_then(|(field, _)| field.patch.key.as_deref());
            let before = live.clone();
            sort(live, &given, &before, key);
        }
    }
    Ok(())
}

fn without_directives(value: &Value) -> Value {
    match value {
        Value::Array(items) => {
            let is_directive = |item: &&Value| item.get(DIRECTIVE).is_none();
            Value::Array(items.iter().filter(is_directive).cloned().collect())
        }
        other => other.clone(),
    }
}

type Directives<'a> = (Option<&'a Vec<Value>>, Option<&'a Vec<Value>>);

/// Merges the items of a list by their key, or as a set.
fn list(
    typed: Option<Typed<'_>>,
    mut live: Vec<Value>,
    patch: &[Value],
    key: Option<&str>,
    (gone, order): Directives<'_>,
) -> Outcome<Vec<Value>> {
    let before = live.clone();
    let order: &[Value] = order.map_or(patch, Vec::as_slice);
    let Some(key) = key else {
        if let Some(gone) = gone {
            live.retain(|item| !gone.contains(item));
        }
        for item in patch {
            if !live.contains(item) {
                live.push(item.clone());
            }
        }
        sort(&mut live, order, &before, None);
        return Ok(live);
    };
    if patch.iter().any(|item| item[DIRECTIVE] == "replace") {
        return Ok(patch.iter().filter(|item| item.get(DIRECTIVE).is_none()).cloned().collect());
    }
    for item in patch {
        let Value::Object(fields) = item else { continue };
        if item[key].is_null() {
            let what = crate::fields::go_value(item);
            return Err(Failure::plain(
                500,
                format!("map: {what} does not contain declared merge key: {key}"),
            ));
        }
        if item[DIRECTIVE] == "delete" {
            live.retain(|known| known[key] != item[key]);
            continue;
        }
        if let Some(known) = live.iter_mut().find(|known| known[key] == item[key]) {
            strategic(typed, known, fields)?;
        } else {
            let mut new = Value::Object(Map::new());
            strategic(typed, &mut new, fields)?;
            live.push(new);
        }
    }
    sort(&mut live, order, &before, Some(key));
    Ok(live)
}

/// Items with their former places.
type Placed = Vec<(Option<usize>, Value)>;

/// Sorts the items that `order` names in its order; the others stay where they were before among those.
fn sort(live: &mut Vec<Value>, order: &[Value], before: &[Value], key: Option<&str>) {
    let identity = |item: &Value| key.map_or_else(|| item.clone(), |key| item[key].clone());
    let place = |item: &Value| order.iter().position(|known| identity(known) == identity(item));
    let old = |item: &Value| before.iter().position(|known| identity(known) == identity(item));
    let (mut named, others): (Placed, Placed) =
        live.drain(..).map(|item| (old(&item), item)).partition(|(_, item)| place(item).is_some());
    named.sort_by_key(|(_, item)| place(item));
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    while named.peek().is_some() || others.peek().is_some() {
        let first = match (named.peek(), others.peek()) {
            (Some((a, _)), Some((b, _))) => a < b,
            (Some(_), None) => true,
            _ => false,
        };
        live.extend(if first { named.next() } else { others.next() }.map(|(_, item)| item));
    }
}

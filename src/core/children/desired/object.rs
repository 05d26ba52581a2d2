//! From a rendered template to what is applied: checks, marks, owner, hash.

use std::sync::Arc;

use serde_json::{Map, Number, Value, json};

use super::{generated, metadata};
use crate::api::{Gvk, ObjectRef};
use crate::children::model::{ChildError, Context, Desired, Observed, is_job};
use crate::children::{jobs, names};
use crate::naming;
use crate::package::{Child, DeletionPolicy};
use crate::reach::Planned;
use crate::readiness::containers;
use crate::template::Written;

/// Builds the desired object of one rendered child.
///
/// # Errors
/// Says what is wrong with the rendered object; never shows a value of it.
pub(super) fn build<'a>(
    ctx: &Context<'_>,
    child: &Child,
    key: Option<&str>,
    (mut body, written): (Value, Written),
    observed: &dyn Fn(&ObjectRef) -> Option<&'a Observed>,
    yields: &[String],
) -> Result<Desired, ChildError> {
    let invalid = |message: String| ChildError::Invalid { message };
    let Value::Object(root) = &mut body else {
        return Err(invalid(format!("{} renders to {}, not to an object", child.template, describe(&body))));
    };
    let text =
        |root: &Map<String, Value>, key: &str| root.get(key).and_then(Value::as_str).map(str::to_owned);
    let (Some(api_version), Some(kind)) = (text(root, "apiVersion"), text(root, "kind")) else {
        return Err(invalid(format!("{} renders without apiVersion or kind", child.template)));
    };
    let gvk = Gvk::new(api_version, kind);
    if !child.has_kind(&gvk) {
        return Err(invalid(format!(
            "{} renders a kind that does not stand in it literally",
            child.template
        )));
    }
    let Some(namespaced) = ctx.snapshot.namespaced(&gvk) else {
        return Err(ChildError::KindMissing { gvk });
    };
    if root.contains_key("status") {
        return Err(invalid(format!(
            "{} renders a status, which belongs to the controller of {}",
            child.template, gvk.kind
        )));
    }
    let generates =
        ctx.origin.package.engine.template(&child.template).is_some_and(|t| !t.reads().generates.is_empty());
    let generated = if generates { generated::take(root).map_err(invalid)? } else { Vec::new() };
    fold_string_data(&gvk, root).map_err(invalid)?;
    metadata::own_keys(&child.template, root).map_err(invalid)?;
    if is_deeper(&body, DEPTH) {
        return Err(invalid(format!(
            "{} renders an object nested more than {DEPTH} levels deep",
            child.template
        )));
    }
    if let Some(mut path) = inexact(&body) {
        path.reverse();
        let path = path.concat();
        return Err(invalid(format!(
            "{} renders at {} a whole number beyond ±2^53, which the API server would round; if the field takes text, quote it",
            child.template,
            path.trim_start_matches('.')
        )));
    }
    let Value::Object(root) = &mut body else { return Err(invalid(String::new())) };

    let Value::Object(meta) = root.entry("metadata").or_insert_with(|| json!({})) else {
        return Err(invalid(format!("metadata in {} is not a map", child.template)));
    };
    metadata::check(&child.template, meta, &written).map_err(invalid)?;
    let Some(name) = text(meta, "name").filter(|name| !name.is_empty()) else {
        return Err(invalid(format!("{} renders no metadata.name", child.template)));
    };
    check_name(ctx, child, &gvk, &name)?;
    let namespace = place(ctx, child, meta, &written, (namespaced, &gvk.kind))?;
    if let Some(namespace) = &namespace {
        naming::check_namespace(namespace).map_err(|error| {
            invalid(format!(
                "metadata.namespace in {} cannot be the name of a namespace: {error}",
                child.template
            ))
        })?;
    }
    let file = &child.template;
    let planned = Planned { file, gvk: &gvk, name: &name, namespace: namespace.as_deref(), body: &body };
    if let Some(why) = ctx.reach().refuses(&planned) {
        return Err(invalid(format!("{}: {why}", child.template)));
    }
    let Value::Object(root) = &mut body else { return Err(invalid(String::new())) };
    let completion = is_job(&gvk).then(|| jobs::completion(ctx, &name, root));
    let Some(Value::Object(meta)) = root.get_mut("metadata") else { return Err(invalid(String::new())) };
    let policy = ctx.snapshot.deletion_policy(child, &gvk);
    let at_home = namespaced && namespace.as_deref() == ctx.origin.namespace();
    let object = ObjectRef { gvk, namespace: namespace.map(Into::into), name: name.into() };
    let live = observed(&object);
    // If a person has decided that the object is kept, the annotation on it is not ours.
    let kept = live.is_some_and(Observed::is_kept_by_person);
    let said = if kept { None } else { Some(policy) };
    let policy = said.unwrap_or(DeletionPolicy::Retain);
    let owned = at_home && owned_by_reference(child, policy);
    let order = (!owned).then_some(child.depth);
    let marks = Marks { key, order, said, at_home };
    mark(ctx, child, &marks, meta)?;
    if !generated.is_empty() {
        let keys: Vec<&str> = generated.iter().filter(|g| g.is_kept()).map(|g| g.key.as_str()).collect();
        meta["annotations"][names::GENERATED] = keys.join(",").into();
        // Filled in when the object is applied, like the values.
        meta["annotations"][names::GENERATED_PROOF] = "".into();
    }
    if owned {
        meta.insert("ownerReferences".into(), json!([owner_reference(ctx)]));
    }
    let (keep, yields) = live.map_or_else(Default::default, |observed| yielded(&mut body, observed, yields));
    let stamp = names::Stamp { order, policy: Some(policy) };
    let hash = stamp.seal(&generated::hash(&body, &generated));
    let spec_hash = child.max_unavailable.is_some().then(|| spec_hash(&object.gvk, &body));
    let replaced = live.and_then(|live| replaced(live, &body, &hash));
    let marks = &mut body["metadata"]["annotations"];
    marks[names::INTENT] = Value::String(hash.clone());
    if let Some(spec_hash) = spec_hash {
        marks[names::SPEC_HASH] = spec_hash.into();
    }
    if let Some(replaced) = replaced {
        marks[containers::ANNOTATION] = replaced.into();
    }
    body["metadata"]["labels"][names::OPERATOR] = ctx.snapshot.owner.package.as_ref().into();
    Ok(Desired { object, body: Arc::new(body), hash, generated, keep, yields, completion })
}

/// Hash of what makes an object unavailable when it changes: all but metadata, and of a Pod all that the API server changes
/// without a restart.
fn spec_hash(gvk: &Gvk, body: &Value) -> String {
    let mut body = body.clone();
    if let Value::Object(root) = &mut body {
        root.remove("metadata");
    }
    if gvk.is("v1", "Pod") {
        for field in ["tolerations", "activeDeadlineSeconds"] {
            remove_path(&mut body, &["spec", field]);
        }
    }
    names::value_hash(&body, 16)
}

/// The annotation about containers that the apply replaces. It stays until the next change: its removal would be a write.
fn replaced(live: &Observed, body: &Value, hash: &str) -> Option<String> {
    if live.desired.as_deref() == Some(hash) {
        return live.replaced.as_deref().map(str::to_owned);
    }
    containers::replaced_by(body, &live.running)
}

/// Refuses a name that no object of the kind can have, before anything is asked about it.
fn check_name(ctx: &Context<'_>, child: &Child, gvk: &Gvk, name: &str) -> Result<(), ChildError> {
    let checked = if ctx.snapshot.is_instance_kind(gvk) {
        naming::check_custom(name)
    } else {
        naming::check(gvk, name)
    };
    checked.map_err(|error| ChildError::Invalid {
        message: format!("metadata.name in {} cannot be the name of a {}: {error}", child.template, gvk.kind),
    })
}

/// The deepest nesting of a child. Replies of the API server contain the child, and are parsed to 128 levels.
const DEPTH: usize = 100;

/// Whether a value has more than this number of levels of lists and maps.
fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Value::Object(map) => levels == 0 || map.values().any(|item| is_deeper(item, levels - 1)),
        _ => false,
    }
}

/// Whether a double represents a number, or it is none that is whole. The API server reads numbers as doubles, and would store another
/// number without an error.
fn is_exact(number: &Number) -> bool {
    const EXACT: u64 = 1 << 53;
    match (number.as_i64(), number.as_u64()) {
        (Some(number), _) => number.unsigned_abs() <= EXACT,
        (_, Some(number)) => number <= EXACT,
        _ => true,
    }
}

/// The path of a number that is not exact, to be read from its end.
fn inexact(value: &Value) -> Option<Vec<String>> {
    let below = |at: &dyn Fn() -> String, item: &Value| {
        let mut path = inexact(item)?;
        path.push(at());
        Some(path)
    };
    match value {
        Value::Number(number) => (!is_exact(number)).then(Vec::new),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(index, item)| below(&|| format!("[{index}]"), item))
        }
        Value::Object(map) => map.iter().find_map(|(key, item)| below(&|| format!(".{key}"), item)),
        _ => None,
    }
}

/// Whether the garbage collector may delete this child by itself: the collector knows no order and no policy.
fn owned_by_reference(child: &Child, policy: DeletionPolicy) -> bool {
    !child.ordered && policy == DeletionPolicy::Delete
}

fn owner_reference(ctx: &Context<'_>) -> Value {
    let meta = &ctx.origin.instance["metadata"];
    json!({
        "apiVersion": ctx.origin.resource.kind.api_version(),
        "kind": ctx.origin.resource.kind.kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Sets the namespace, or refuses one that the instance must not reach.
fn place(
    ctx: &Context<'_>,
    child: &Child,
    meta: &mut Map<String, Value>,
    written: &Written,
    (namespaced, kind): (bool, &str),
) -> Result<Option<String>, ChildError> {
    let rendered = meta.get("namespace").and_then(Value::as_str).map(str::to_owned);
    let invalid = |message: String| Err(ChildError::Invalid { message });
    if !namespaced {
        if rendered.is_some() {
            return invalid(format!(
                "{} renders metadata.namespace, but {kind} is cluster-scoped",
                child.template
            ));
        }
        return Ok(None);
    }
    let Some(instance_namespace) = ctx.origin.namespace() else {
        return match rendered {
            Some(namespace) => Ok(Some(namespace)),
            None => invalid(format!(
                "{} renders no metadata.namespace, which the children of a cluster-scoped instance need",
                child.template
            )),
        };
    };
    let is_home = |namespace: &String| namespace == instance_namespace;
    if rendered.as_ref().is_some_and(|namespace| !is_home(namespace)) {
        let operator = ctx.snapshot.operator_namespace.as_str();
        let is_allowed = child.namespaces.allows(rendered.as_deref(), instance_namespace, operator);
        let is_operators =
            written.namespace_is("operator.namespace") && rendered.as_deref() == Some(operator);
        let is_written = meta.get("namespace").is_some_and(|namespace| written.has("namespace", namespace));
        if !is_allowed || !(is_operators || is_written) {
            return invalid(format!(
                "{} renders a namespace that is not the instance's, a literal or operator.namespace; where the text \
                 without its expressions is no YAML, only the instance's is allowed",
                child.template
            ));
        }
    }
    let namespace = rendered.unwrap_or_else(|| instance_namespace.to_owned());
    meta.insert("namespace".into(), Value::String(namespace.clone()));
    Ok(Some(namespace))
}

/// What our labels and annotations say of one object.
struct Marks<'a> {
    key: Option<&'a str>,
    /// The depth in the graph; `None` for an object with an ownerReference.
    order: Option<u32>,
    /// The deletion policy of the package; `None` if a person has said that the object is kept.
    said: Option<DeletionPolicy>,
    /// Whether the object is in the instance's namespace.
    at_home: bool,
}

/// Adds our labels and annotations.
fn mark(
    ctx: &Context<'_>,
    child: &Child,
    marks: &Marks<'_>,
    meta: &mut Map<String, Value>,
) -> Result<(), ChildError> {
    let instance = &ctx.origin.instance["metadata"];
    let name = instance["name"].as_str().unwrap_or_default();
    let mut labels = vec![
        (names::MANAGED_BY, "operetta".to_owned()),
        (names::OPERATOR, ctx.snapshot.owner.hashed_name().to_owned()),
        (names::KIND, names::kind_label(&ctx.origin.resource.kind.kind, &ctx.origin.resource.kind.group)),
        (names::INSTANCE, names::label_value(name)),
        (names::INSTANCE_UID, instance["uid"].as_str().unwrap_or_default().to_owned()),
        (names::CHILD, child.id.clone()),
    ];
    if !marks.at_home {
        labels.push((names::INSTANCE_NAMESPACE, ctx.origin.namespace().unwrap_or_default().to_owned()));
    }
    let mut annotations = Vec::new();
    if let Some(order) = marks.order {
        annotations.push((names::ORDER, order.to_string()));
    }
    if let Some(key) = marks.key {
        let label = names::label_value(key);
        if label != key {
            annotations.push((names::KEY, key.to_owned()));
        }
        labels.push((names::KEY, label));
    }
    if child.exposes_secret_data {
        annotations.push((names::EXPOSES_SECRET_DATA, "true".to_owned()));
    }
    match marks.said {
        None | Some(DeletionPolicy::Delete) => {}
        Some(DeletionPolicy::Retain) => annotations.push((names::RETAINED, "false".to_owned())),
        Some(DeletionPolicy::Ask) => annotations.push((names::PENDING, "false".to_owned())),
    }
    for (field, ours) in [("labels", labels), ("annotations", annotations)] {
        if meta.get(field).is_some_and(Value::is_null) {
            meta.remove(field);
        }
        let Value::Object(map) = meta.entry(field).or_insert_with(|| json!({})) else {
            return Err(ChildError::Invalid {
                message: format!("metadata.{field} in {} is not a map", child.template),
            });
        };
        map.extend(ours.into_iter().map(|(key, value)| (key.to_owned(), Value::String(value))));
    }
    Ok(())
}

/// A Secret's `stringData` is write-only: folded into `data`, what we apply is what can be read back.
fn fold_string_data(gvk: &Gvk, root: &mut Map<String, Value>) -> Result<(), String> {
    use base64::Engine as _;
    if !gvk.is("v1", "Secret") {
        return Ok(());
    }
    let Some(texts) = root.remove("stringData") else { return Ok(()) };
    let Value::Object(texts) = texts else {
        return if texts.is_null() { Ok(()) } else { Err("stringData of a Secret is not a map".into()) };
    };
    if root.get("data").is_some_and(Value::is_null) {
        root.remove("data");
    }
    let Value::Object(data) = root.entry("data").or_insert_with(|| json!({})) else {
        return Err("data of a Secret is not a map".into());
    };
    for (key, value) in texts {
        let Value::String(text) = value else {
            return Err(format!("stringData.{key} of a Secret is not a string; quote it"));
        };
        data.insert(key, Value::String(base64::engine::general_purpose::STANDARD.encode(text)));
    }
    Ok(())
}

/// Leaves out fields that another manager has taken over and that we do not own any more. Returns those that
/// the body does not set although no other manager owns them yet, and those that it sets.
fn yielded(body: &mut Value, observed: &Observed, yields: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut keep, mut set) = (Vec::new(), Vec::new());
    for text in yields {
        let path: Vec<&str> = text.split('.').collect();
        let foreign = observed.foreign.get(&path).is_some();
        let owned = observed.owned.as_ref().is_some_and(|owned| owned.get(&path).is_some());
        if foreign && !owned {
            remove_path(body, &path);
        } else if path.iter().try_fold(&*body, |value, name| value.get(name)).is_some() {
            set.push(text.clone());
        } else if owned && !foreign {
            keep.push(text.clone());
        }
    }
    (keep, set)
}

fn remove_path(value: &mut Value, path: &[&str]) {
    let Value::Object(map) = value else { return };
    match path {
        [] => {}
        [last] => {
            map.remove(*last);
        }
        [first, rest @ ..] => {
            if let Some(inner) = map.get_mut(*first) {
                remove_path(inner, rest);
            }
        }
    }
}

fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

//! Rendering a child: `(child, origin) -> Desired`, or the reason why it has no value.
//!
//! The `Origin` is a parameter, see `model::origins`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::object::build;
use crate::api::ObjectRef;
use crate::children::accepted;
use crate::children::model::{ChildError, Context, Desired, Observed};
use crate::package::{Child, Yields};
use crate::template::{Function, Scope, Var};

/// Renders a child from the origin of the context, or says why it has no value. `key`: the key of a member of
/// a `forEach` child; `observed`: the live object of a name, for what other managers own of it.
///
/// # Errors
/// An expression has no value, what is rendered cannot be a child, or its kind is unknown.
pub(in crate::children) fn render<'a>(
    ctx: &Context<'_>,
    child: &Child,
    key: Option<&str>,
    scope: &Scope,
    observed: &dyn Fn(&ObjectRef) -> Option<&'a Observed>,
) -> Result<Desired, ChildError> {
    let engine = &ctx.origin.package.engine;
    let Some(template) = engine.template(&child.template) else {
        return Err(ChildError::Invalid { message: format!("there is no template {}", child.template) });
    };
    let body = engine.render_object(template, scope)?;
    let yields = yields(ctx, child, scope)?;
    // By name, not by labels: an edit of our labels must not make us reclaim what we have given up.
    let desired = match build(ctx, child, key, body, observed, &yields) {
        Err(ChildError::KindMissing { gvk }) => {
            let reason = ctx.snapshot.unknown(&gvk).map(str::to_owned);
            return Err(reason.map_or_else(
                || ChildError::KindMissing { gvk },
                |reason| ChildError::KindNotServed { reason },
            ));
        }
        desired => desired?,
    };
    match ctx.snapshot.unknown(&desired.object.gvk) {
        Some(reason) => Err(ChildError::KindUnknown { reason: reason.to_owned() }),
        None => Ok(desired),
    }
}

/// The paths of the fields that a child yields.
fn yields(ctx: &Context<'_>, child: &Child, scope: &Scope) -> Result<Vec<String>, ChildError> {
    let engine = &ctx.origin.package.engine;
    let values = match &child.yields {
        None => return Ok(Vec::new()),
        Some(Yields::One(text)) => match engine.eval_text(text, scope)? {
            Some(Value::Array(values)) => values,
            Some(Value::Null) | None => Vec::new(),
            Some(other) => vec![other],
        },
        Some(Yields::List(texts)) => {
            let mut values = Vec::new();
            for text in texts {
                values.extend(engine.eval_text(text, scope)?);
            }
            values
        }
    };
    values
        .into_iter()
        .map(|value| match value {
            Value::String(path) => Ok(path),
            _ => Err(ChildError::Invalid {
                message: format!("yields of {} is not a list of field paths", child.id),
            }),
        })
        .collect()
}

/// The variables that all expressions of an instance see.
pub(in crate::children) fn base_scope(ctx: &Context<'_>) -> Scope {
    let package = ctx.origin.package;
    let mut scope = Scope::within(Arc::clone(&ctx.budget));
    let meta = &ctx.origin.instance["metadata"];
    let spec = ctx.origin.instance.get("spec").cloned().unwrap_or_else(|| json!({}));
    scope.set("instance", Var::Shared(Arc::new(accepted::shown(ctx.origin.instance))));
    scope.set("spec", Var::Json(spec));
    scope.set("name", Var::Json(meta["name"].clone()));
    scope.set("namespace", ctx.origin.namespace().map_or(Var::Undefined, |ns| Var::Json(ns.into())));
    scope.set("labels", Var::Json(meta.get("labels").cloned().unwrap_or_else(|| json!({}))));
    scope.set("defaults", Var::Json(package.defaults_with(&ctx.snapshot.defaults)));
    scope.set(
        "operator",
        Var::Json(json!({
            "name": package.name,
            "version": package.version.to_string(),
            "appVersion": package.app_version,
            "revision": package.revision(),
            "namespace": ctx.snapshot.operator_namespace,
        })),
    );
    if ctx.origin.resource.reads_cluster {
        scope.set("cluster", cluster(ctx));
    }
    scope.set("self", Var::Undefined);
    scope.set("let", Var::Lets(Arc::clone(&ctx.origin.resource.lets)));
    for (name, value) in ctx.origins.variables() {
        scope.set(name, value.clone());
    }
    scope
}

/// The variable `cluster`: what the API server serves.
fn cluster(ctx: &Context<'_>) -> Var {
    let apis = match &ctx.snapshot.apis {
        Some(Ok(apis)) => apis,
        Some(Err(why)) => return Var::Unknown(format!("the API server does not say what it serves: {why}")),
        None => return Var::Unknown("the API server is being asked what it serves".into()),
    };
    let asked = Arc::clone(apis);
    let has = Function::asking(move |args| {
        let [Value::String(api)] = args else {
            return Err("wants one string, such as 'policy/v1'".to_owned());
        };
        Ok(match asked.has(api)? {
            Some(answer) => Var::Json(answer.into()),
            None => Var::Unknown(format!("the server of {api} does not answer")),
        })
    });
    let version = Var::Json(apis.version().into());
    Var::Vars([("version".to_owned(), version), ("has".to_owned(), Var::Function(has))].into())
}

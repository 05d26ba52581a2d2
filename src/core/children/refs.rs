//! What an instance reads and does not own: which objects its refs name, and what is known of them.
//!
//! Unknown is not empty. A required object that does not exist, an object that may not be read, a kind
//! that is not served: whatever reads such a ref has no value, and keeps what it has.

mod lookup;
mod observation;
mod pods;

pub(super) use lookup::known;
pub(super) use pods::{find_pod, pod_of};

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::model::{
    Context, FieldProjection, MAX_CHILDREN, Problem, Referred, Refs, ResourceSelector, Select,
};
use super::names;
use crate::api::Gvk;
use crate::package::{ForEach, NamespaceRef, NamespaceRefs, Ref, RefSource};
use crate::plan::Phase;
use crate::selector::Selector;
use crate::template::{EvalError, Live, Scope, Var};
use crate::{naming, readiness};

impl Refs {
    /// Finds the refs of an instance. Refs that others read come first.
    pub(super) fn of(ctx: &Context<'_>, scope: &Scope) -> Self {
        let mut refs = Self::default();
        let runs = ctx.snapshot.plans.iter().flat_map(|plans| &plans.runs);
        let is_running = runs.into_iter().any(|run| run.phase() == Phase::Running);
        for reference in &ctx.origin.resource.refs {
            ctx.budget.about(&format!("refs.{}", reference.id));
            if let RefSource::Observe(observation) = &reference.target
                && observation.only_in_runs
                && !is_running
            {
                let unknown = Var::Unknown("it is observed only while a plan runs".to_owned());
                refs.vars.insert(reference.id.clone(), unknown);
                continue;
            }
            let scope = scope.with("refs", Var::Vars(refs.vars.clone()));
            let found = match &reference.for_each {
                Some(for_each) => refs.find_each(ctx, reference, for_each, &scope),
                None => refs.find(ctx, reference, &scope),
            };
            let var = refs.or_unknown(reference, reference.id.clone(), found);
            if let Some(plans) = ctx.snapshot.plans.as_ref().filter(|_| reference.gvk.is_some())
                && !refs.has_problem(&reference.id)
            {
                refs.digests.insert(reference.id.clone(), plans.digest(&content(&var)));
            }
            refs.vars.insert(reference.id.clone(), var);
        }
        refs.wants.sort();
        refs.wants.dedup();
        refs
    }

    fn or_unknown(&mut self, reference: &Ref, name: String, found: Result<Var, Problem>) -> Var {
        found.unwrap_or_else(|problem| {
            let reason = problem.message.clone();
            // A problem that does not pass by itself is a mistake: it is reported even if only the status
            // reads the ref.
            let affects_ready = reference.affects_ready || !problem.is_waiting;
            self.problems.insert(name, Problem { affects_ready, ..problem });
            Var::Unknown(reason)
        })
    }

    /// The value of a ref with `forEach`: a map by key. An unknown value of one key says nothing about the
    /// others.
    fn find_each(
        &mut self,
        ctx: &Context<'_>,
        reference: &Ref,
        for_each: &ForEach,
        scope: &Scope,
    ) -> Result<Var, Problem> {
        let engine = &ctx.origin.package.engine;
        let items =
            engine.items(&for_each.in_, scope).map_err(|error| Problem::of_field("forEach", error))?;
        if items.len() > MAX_CHILDREN {
            return Err(Problem::invalid(&format!("forEach has more than {MAX_CHILDREN} items")));
        }
        let mut seen = BTreeSet::new();
        let mut found = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            let scope = scope.with(&for_each.as_, Var::Json(item.clone()));
            let key = match &for_each.key {
                Some(key) => {
                    engine.eval_deciding(key, &scope).map_err(|error| Problem::of_field("key", error))?
                }
                None => item,
            };
            if let Some(problem) = crate::package::key_problem(&key) {
                return Err(Problem::invalid(&format!("item {index} of forEach: {problem}")));
            }
            if !seen.insert(names::key_text(&key)) {
                return Err(Problem::invalid("two items of forEach have the same key"));
            }
            let var = self.find(ctx, reference, &scope);
            match self.or_unknown(reference, format!("{}[{key}]", reference.id), var) {
                // Known to be absent, or not wanted: there is no such key.
                Var::Undefined => {}
                var => found.push((key, var)),
            }
        }
        Ok(Var::Keyed(found))
    }

    fn find(&mut self, ctx: &Context<'_>, reference: &Ref, scope: &Scope) -> Result<Var, Problem> {
        let engine = &ctx.origin.package.engine;
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: EvalError| Problem::of_field(&what, error)
        };
        if let Some(when) = &reference.when
            && !engine.truthy(when, scope).map_err(failed("when"))?
        {
            return Ok(Var::Undefined);
        }
        if let RefSource::Observe(observation) = &reference.target {
            return self.observation(ctx, reference, observation, scope);
        }
        let Some(gvk) = &reference.gvk else { return Ok(Var::Undefined) };
        // Which objects are read is decided, as by `when`: what a status does not say yet is awaited.
        let scope = &scope.deciding();
        let keep = keep(reference, gvk);
        let everywhere = ctx.snapshot.namespaced(gvk) == Some(false);
        let want = |namespace: Option<Box<str>>, select: Select| ResourceSelector {
            gvk: gvk.clone(),
            namespace: namespace.filter(|_| !everywhere),
            select,
            keep: keep.clone(),
        };
        match &reference.target {
            RefSource::Name(name, namespace_ref) => {
                let value = engine.eval_text(name, scope).map_err(failed("name"))?;
                let Some(Value::String(name)) = &value else {
                    return Err(Problem::invalid("its name is not a string"));
                };
                naming::check(gvk, name).map_err(|error| {
                    Problem::invalid(&format!("its name cannot be the name of a {}: {error}", gvk.kind))
                })?;
                let namespace = namespace(ctx, gvk, namespace_ref, scope)?;
                let want = want(namespace, Select::Name(name.as_str().into()));
                let found = self.ask(ctx.snapshot, &want)?;
                match found.into_iter().next() {
                    Some(object) => Ok(Var::Object(live(&object))),
                    None if reference.optional => Ok(Var::Undefined),
                    None => Err(Problem::absence(format!("{want} does not exist"))),
                }
            }
            RefSource::Select(tree, namespace_refs) => {
                let value = tree.eval(engine, scope).map_err(failed("selector"))?.unwrap_or(Value::Null);
                // As everywhere in Kubernetes: no selector fits nothing, an empty one everything.
                if value.is_null() {
                    return Ok(Var::List(Vec::new()));
                }
                let selector = Selector::parse(&value).map_err(|error| Problem::invalid(&error))?;
                let namespaces = match namespace_refs {
                    NamespaceRefs::All => vec![None],
                    NamespaceRefs::List(list) => {
                        let mut namespaces = list
                            .iter()
                            .map(|one| namespace(ctx, gvk, one, scope))
                            .collect::<Result<Vec<_>, _>>()?;
                        namespaces.sort();
                        namespaces.dedup();
                        namespaces
                    }
                };
                let mut objects = Vec::new();
                for namespace in namespaces {
                    let want = want(namespace, Select::Labels(selector.clone()));
                    objects.extend(self.ask(ctx.snapshot, &want)?);
                }
                Ok(Var::List(objects.iter().map(|object| Var::Object(live(object))).collect()))
            }
            RefSource::Observe(_) => Ok(Var::Undefined),
        }
    }
}

fn keep(reference: &Ref, gvk: &Gvk) -> FieldProjection {
    let metadata_only = |path: &Vec<String>| path.first().is_some_and(|first| first == "metadata");
    let content = !reference.reads.iter().all(metadata_only)
        || (reference.asks_state && readiness::needs_status(gvk.group(), &gvk.kind));
    FieldProjection { paths: Arc::clone(&reference.reads), content }
}

fn namespace(
    ctx: &Context<'_>,
    gvk: &Gvk,
    reference: &NamespaceRef,
    scope: &Scope,
) -> Result<Option<Box<str>>, Problem> {
    let engine = &ctx.origin.package.engine;
    match reference {
        NamespaceRef::Operator => Ok(Some(ctx.snapshot.operator_namespace.as_str().into())),
        NamespaceRef::Literal(namespace) => Ok(Some(namespace.as_str().into())),
        NamespaceRef::Own => match ctx.origin.namespace() {
            Some(namespace) => Ok(Some(namespace.into())),
            // A cluster-scoped instance has no namespace: that is right only for a cluster-scoped kind.
            None if ctx.snapshot.namespaced(gvk) == Some(true) => Err(Problem::invalid(
                "the instance is cluster-scoped: say `namespace`, or `namespaces` with a selector",
            )),
            None => Ok(None),
        },
        NamespaceRef::Computed(text) => {
            let value =
                engine.eval_text(text, scope).map_err(|error| Problem::of_field("namespace", error))?;
            let Some(Value::String(namespace)) = &value else {
                return Err(Problem::invalid("its namespace is not a string"));
            };
            naming::check_namespace(namespace)
                .map_err(|error| Problem::invalid(&format!("its namespace cannot be one: {error}")))?;
            Ok(Some(namespace.as_str().into()))
        }
    }
}

/// The content that a ref brings, without the metadata in which an object and a copy of it differ.
fn content(var: &Var) -> Value {
    match var {
        Var::Object(live) => {
            let mut value = (*live.value).clone();
            if let Some(metadata) = value["metadata"].as_object_mut() {
                for field in ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"] {
                    metadata.remove(field);
                }
            }
            value
        }
        Var::List(items) => items.iter().map(content).collect(),
        Var::Keyed(items) => {
            items.iter().map(|(key, var)| Value::Array(vec![key.clone(), content(var)])).collect()
        }
        _ => Value::Null,
    }
}

fn live(object: &Referred) -> Live {
    Live { value: Arc::clone(&object.value), ready: object.ready, current: true, kept: false }
}

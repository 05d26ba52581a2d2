//! What an instance reads and does not own: which objects its refs name, and what is known of them.
//!
//! Unknown is not empty. A required object that does not exist, an object that may not be read, a kind
//! that is not served: whatever reads such a ref has no value, and keeps what it has.

use crate::api::Gvk;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::{ChildError, Context, MAX_CHILDREN, Snapshot, names};
use crate::naming;
use crate::package::{ForEach, NamespaceRef, NamespaceRefs, Ref, RefTarget};
use crate::plan::Phase;
use crate::readiness;
use crate::template::{EvalError, Live, Scope, Var};

mod observe;
mod selector;

pub(super) use observe::pod_of;
pub use observe::{Poll, PollRequest, PollResult};
pub use selector::Selector;

/// Objects that an instance wants to know, as a watch can bring them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceSelector {
    /// The kind of the objects.
    pub gvk: Gvk,
    /// The namespace of the objects; `None` for all namespaces. It does not matter for a cluster-scoped kind.
    pub namespace: Option<Box<str>>,
    /// The name or the labels of the objects.
    pub select: Select,
    /// What is kept of each.
    pub keep: FieldProjection,
}

/// The name or the labels of objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Select {
    /// The object of that name.
    Name(Box<str>),
    /// The objects whose labels fit.
    Labels(Selector),
}

/// What is kept of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldProjection {
    /// The paths that expressions read; an empty path stands for the whole object.
    pub paths: Arc<[Vec<String>]>,
    /// Whether its metadata alone does not show all that is read.
    pub content: bool,
}

impl Select {
    /// The field selector for one name; a selector has characters of its own, which some names have as well.
    pub fn field_selector(name: &str) -> String {
        let escaped = name.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
        format!("metadata.name={escaped}")
    }
}

impl std::fmt::Display for ResourceSelector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.select, &self.namespace) {
            (Select::Name(name), Some(namespace)) => write!(f, "{} {namespace}/{name}", self.gvk.kind),
            (Select::Name(name), None) => write!(f, "{} {name}", self.gvk.kind),
            (Select::Labels(selector), Some(namespace)) => {
                write!(f, "each {} in {namespace} with `{selector}`", self.gvk.kind)
            }
            (Select::Labels(selector), None) => write!(f, "each {} with `{selector}`", self.gvk.kind),
        }
    }
}

/// An object that an instance reads, as far as expressions read it.
#[derive(Debug, Clone, PartialEq)]
pub struct Referred {
    /// Its namespace.
    pub namespace: Option<Box<str>>,
    /// Its name.
    pub name: Box<str>,
    /// What is read of it.
    pub value: Arc<Value>,
    /// Whether it is ready by the rules of its kind.
    pub ready: bool,
}

/// What is known of the objects of a selector.
#[derive(Debug, Clone)]
pub enum LookupResult {
    /// These exist, by namespace and name.
    Known(Vec<Arc<Referred>>),
    /// They are being listed for the first time.
    Pending,
    /// They cannot be read now.
    Unknown(ReadError),
}

/// Why objects cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadError {
    /// The server does not serve the kind, now or any more.
    KindMissing,
    /// The API server forbids it.
    Forbidden(String),
    /// Any other reason.
    Failed(String),
}

/// Why a ref is unknown.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    /// The reason, in camel case.
    pub(super) reason: &'static str,
    /// The message, for people.
    pub(super) message: String,
    /// Whether it may pass by itself.
    pub(super) is_waiting: bool,
    /// Whether the instance is not Ready because of it.
    pub(super) affects_ready: bool,
}

impl Problem {
    fn waiting(reason: &'static str, message: String) -> Self {
        Self { reason, message, is_waiting: true, affects_ready: true }
    }
}

/// All refs of an instance.
#[derive(Debug, Default)]
pub(super) struct Refs {
    pub(super) vars: BTreeMap<String, Var>,
    /// What is to be watched for them.
    pub(super) wants: Vec<ResourceSelector>,
    /// The observations to make by requests.
    pub(super) polls: Vec<Arc<Poll>>,
    /// Whether some are still being listed for the first time.
    pub(super) pending: bool,
    /// Whether the first answers of some observations are awaited for long.
    pub(super) is_delayed: bool,
    pub(super) problems: BTreeMap<String, Problem>,
    /// A keyed digest of what each object ref brings that is known; only for kinds with plans.
    pub(super) digests: BTreeMap<String, String>,
}

impl Refs {
    /// Finds the refs of an instance. Refs that others read come first.
    pub(super) fn of(ctx: &Context<'_>, scope: &Scope) -> Self {
        let mut refs = Self::default();
        let runs = ctx.snapshot.plans.iter().flat_map(|plans| &plans.runs);
        let is_running = runs.into_iter().any(|run| run.phase() == Phase::Running);
        for reference in &ctx.origin.resource.refs {
            ctx.budget.about(&format!("refs.{}", reference.id));
            if let RefTarget::Observe(observation) = &reference.target
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

    /// Adds what the refs of an earlier origin want, and what is wrong with those that the newest does not have.
    pub(super) fn add(&mut self, other: Self) {
        self.wants.extend(other.wants);
        self.wants.sort();
        self.wants.dedup();
        self.polls.extend(other.polls);
        self.pending |= other.pending;
        self.is_delayed |= other.is_delayed;
        for (name, problem) in other.problems {
            self.problems.entry(name).or_insert(problem);
        }
    }

    /// The ref of an unknown path, such as `refs.tls.data` or `refs.certs["a"].data`, and why it is unknown.
    pub(super) fn problem_of(&self, path: &str) -> Option<(&str, &Problem)> {
        let path = path.strip_prefix("refs.")?;
        self.problems.iter().find_map(|(name, problem)| {
            let rest = path.strip_prefix(name.as_str())?;
            (rest.is_empty() || rest.starts_with(['.', '['])).then_some((name.as_str(), problem))
        })
    }

    /// Whether a ref is unknown, or one of its keys.
    fn has_problem(&self, id: &str) -> bool {
        let of_key = |name: &str| name.strip_prefix(id).is_some_and(|rest| rest.starts_with('['));
        self.problems.keys().any(|name| name == id || of_key(name))
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
        let items = engine.items(&for_each.in_, scope).map_err(|error| self_problem("forEach", error))?;
        if items.len() > MAX_CHILDREN {
            return Err(invalid(&format!("forEach has more than {MAX_CHILDREN} items")));
        }
        let mut seen = BTreeSet::new();
        let mut found = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            let scope = scope.with(&for_each.as_, Var::Json(item.clone()));
            let key = match &for_each.key {
                Some(key) => engine.eval_deciding(key, &scope).map_err(|error| self_problem("key", error))?,
                None => item,
            };
            if let Some(problem) = crate::package::key_problem(&key) {
                return Err(invalid(&format!("item {index} of forEach: {problem}")));
            }
            if !seen.insert(names::key_text(&key)) {
                return Err(invalid("two items of forEach have the same key"));
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
            move |error: EvalError| self_problem(&what, error)
        };
        if let Some(when) = &reference.when
            && !engine.truthy(when, scope).map_err(failed("when"))?
        {
            return Ok(Var::Undefined);
        }
        if let RefTarget::Observe(observation) = &reference.target {
            return self.observe(ctx, reference, observation, scope);
        }
        let Some(gvk) = &reference.gvk else { return Ok(Var::Undefined) };
        let keep = keep(reference, gvk);
        let everywhere = ctx.snapshot.namespaced(gvk) == Some(false);
        let want = |namespace: Option<Box<str>>, select: Select| ResourceSelector {
            gvk: gvk.clone(),
            namespace: namespace.filter(|_| !everywhere),
            select,
            keep: keep.clone(),
        };
        match &reference.target {
            RefTarget::Name(name, namespace_ref) => {
                let value = engine.eval_text(name, scope).map_err(failed("name"))?;
                let Some(Value::String(name)) = &value else {
                    return Err(invalid("its name is not a string"));
                };
                naming::check(gvk, name).map_err(|error| {
                    invalid(&format!("its name cannot be the name of a {}: {error}", gvk.kind))
                })?;
                let namespace = namespace(ctx, gvk, namespace_ref, scope)?;
                let want = want(namespace, Select::Name(name.as_str().into()));
                let found = self.ask(ctx, &want)?;
                match found.into_iter().next() {
                    Some(object) => Ok(Var::Object(live(&object))),
                    None if reference.optional => Ok(Var::Undefined),
                    None => Err(Problem::waiting("RefMissing", format!("{want} does not exist"))),
                }
            }
            RefTarget::Select(tree, namespace_refs) => {
                let value = tree.eval(engine, scope).map_err(failed("selector"))?.unwrap_or(Value::Null);
                // As everywhere in Kubernetes: no selector fits nothing, an empty one everything.
                if value.is_null() {
                    return Ok(Var::List(Vec::new()));
                }
                let selector = Selector::parse(&value).map_err(|error| invalid(&error))?;
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
                    objects.extend(self.ask(ctx, &want)?);
                }
                Ok(Var::List(objects.iter().map(|object| Var::Object(live(object))).collect()))
            }
            RefTarget::Observe(_) => Ok(Var::Undefined),
        }
    }

    fn ask(&mut self, ctx: &Context<'_>, want: &ResourceSelector) -> Result<Vec<Arc<Referred>>, Problem> {
        self.wants.push(want.clone());
        let found = known(ctx.snapshot, want);
        self.pending |= found.as_ref().is_err_and(|problem| problem.reason == PENDING);
        found
    }
}

/// The reason of a ref that is being listed for the first time, or has no first answer yet.
pub(super) const PENDING: &str = "RefPending";

/// The objects that a selector names, or why they are unknown.
pub(super) fn known(snapshot: &Snapshot, want: &ResourceSelector) -> Result<Vec<Arc<Referred>>, Problem> {
    let problem = Problem::waiting;
    Err(match snapshot.lookup(want) {
        LookupResult::Known(objects) => return Ok(objects),
        LookupResult::Pending => problem(PENDING, format!("{want} is being read")),
        LookupResult::Unknown(ReadError::KindMissing) => problem(
            "KindMissing",
            format!("the API server does not serve {}; is its CRD installed?", want.gvk),
        ),
        LookupResult::Unknown(ReadError::Forbidden(why)) => {
            problem("RefForbidden", format!("{want} may not be read: {why}"))
        }
        LookupResult::Unknown(ReadError::Failed(why)) => {
            problem("RefUnreadable", format!("{want} cannot be read: {why}"))
        }
    })
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
            None if ctx.snapshot.namespaced(gvk) == Some(true) => Err(invalid(
                "the instance is cluster-scoped: say `namespace`, or `namespaces` with a selector",
            )),
            None => Ok(None),
        },
        NamespaceRef::Computed(text) => {
            let value = engine.eval_text(text, scope).map_err(|error| self_problem("namespace", error))?;
            let Some(Value::String(namespace)) = &value else {
                return Err(invalid("its namespace is not a string"));
            };
            naming::check_namespace(namespace)
                .map_err(|error| invalid(&format!("its namespace cannot be one: {error}")))?;
            Ok(Some(namespace.as_str().into()))
        }
    }
}

fn invalid(message: &str) -> Problem {
    Problem { is_waiting: false, ..Problem::waiting("InvalidRef", message.to_owned()) }
}

/// The problem of a ref whose own fields cannot be evaluated.
fn self_problem(what: &str, error: EvalError) -> Problem {
    let error = ChildError::Eval(error);
    let is_waiting = error.is_waiting();
    Problem { is_waiting, ..Problem::waiting(error.reason(), format!("{what}: {error}")) }
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

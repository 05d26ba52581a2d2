//! What an instance reads and does not own: which objects its refs name, and what is known of them.
//!
//! Unknown is not empty. A required object that does not exist, an object that may not be read, a kind
//! that is not served: whatever reads such a ref has no value, and keeps what it has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::{ChildError, Context, MAX_CHILDREN, names};
use crate::crd;
use crate::naming;
use crate::package::{ForEach, Place, Places, Ref, RefTarget};
use crate::readiness;
use crate::template::{EvalError, Live, Scope, Var};

mod selector;

pub use selector::Selector;

/// Objects that an instance wants to know, as a watch can bring them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Want {
    /// The apiVersion of the objects.
    pub api_version: Arc<str>,
    /// The kind of the objects.
    pub kind: Arc<str>,
    /// Where they are; `None` is everywhere. Of no account for a cluster-scoped kind.
    pub namespace: Option<Box<str>>,
    /// Which of them.
    pub select: Select,
    /// What is kept of each.
    pub keep: Keep,
}

/// Which objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Select {
    /// The one of that name.
    Name(Box<str>),
    /// Those whose labels fit.
    Labels(Selector),
}

/// What is kept of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Keep {
    /// The paths that expressions read; an empty one is all of it.
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

impl std::fmt::Display for Want {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.select, &self.namespace) {
            (Select::Name(name), Some(namespace)) => write!(f, "{} {namespace}/{name}", self.kind),
            (Select::Name(name), None) => write!(f, "{} {name}", self.kind),
            (Select::Labels(selector), Some(namespace)) => {
                write!(f, "each {} in {namespace} with `{selector}`", self.kind)
            }
            (Select::Labels(selector), None) => write!(f, "each {} with `{selector}`", self.kind),
        }
    }
}

/// An object that somebody wants to know, as far as expressions read it.
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

/// What is known of what is wanted.
#[derive(Debug, Clone)]
pub enum Found {
    /// These exist, by namespace and name.
    Known(Vec<Arc<Referred>>),
    /// They are being listed for the first time.
    Pending,
    /// They cannot be read now.
    Unknown(Blind),
}

/// Why objects cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blind {
    /// The server does not serve the kind, now or any more.
    KindMissing,
    /// The server does not let us.
    Forbidden(String),
    /// Anything else.
    Failed(String),
}

/// Why a ref is unknown.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    /// In camel case.
    pub(super) reason: &'static str,
    /// For people.
    pub(super) message: String,
    /// Whether it may pass by itself.
    pub(super) is_waiting: bool,
}

/// All refs of an instance.
#[derive(Debug, Default)]
pub(super) struct Refs {
    pub(super) vars: BTreeMap<String, Var>,
    /// What is to be watched for them.
    pub(super) wants: Vec<Want>,
    /// Whether some are still being listed for the first time.
    pub(super) pending: bool,
    pub(super) problems: BTreeMap<String, Problem>,
}

impl Refs {
    /// Finds the refs of an instance, those first that others read.
    pub(super) fn of(ctx: &Context<'_>, scope: &Scope) -> Self {
        let mut refs = Self::default();
        for reference in &ctx.resource.refs {
            ctx.budget.about(&format!("refs.{}", reference.id));
            let scope = scope.with("refs", Var::Vars(refs.vars.clone()));
            let found = match &reference.for_each {
                Some(for_each) => refs.find_each(ctx, reference, for_each, &scope),
                None => refs.find(ctx, reference, &scope),
            };
            let var = refs.or_unknown(reference.id.clone(), found);
            refs.vars.insert(reference.id.clone(), var);
        }
        refs.wants.sort();
        refs.wants.dedup();
        refs
    }

    /// The ref of an unknown path, such as `refs.tls.data` or `refs.certs["a"].data`, and why it is unknown.
    pub(super) fn problem_of(&self, path: &str) -> Option<(&str, &Problem)> {
        let path = path.strip_prefix("refs.")?;
        self.problems.iter().find_map(|(name, problem)| {
            let rest = path.strip_prefix(name.as_str())?;
            (rest.is_empty() || rest.starts_with(['.', '['])).then_some((name.as_str(), problem))
        })
    }

    fn or_unknown(&mut self, name: String, found: Result<Var, Problem>) -> Var {
        found.unwrap_or_else(|problem| {
            let reason = problem.message.clone();
            self.problems.insert(name, problem);
            Var::Unknown(reason)
        })
    }

    /// A map by key: what is unknown of one key says nothing about the others.
    fn find_each(
        &mut self,
        ctx: &Context<'_>,
        reference: &Ref,
        for_each: &ForEach,
        scope: &Scope,
    ) -> Result<Var, Problem> {
        let engine = &ctx.package.engine;
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
            match self.or_unknown(format!("{}[{key}]", reference.id), var) {
                // Known to be absent, or not wanted: there is no such key.
                Var::Undefined => {}
                var => found.push((key, var)),
            }
        }
        Ok(Var::Keyed(found))
    }

    fn find(&mut self, ctx: &Context<'_>, reference: &Ref, scope: &Scope) -> Result<Var, Problem> {
        let engine = &ctx.package.engine;
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: EvalError| self_problem(&what, error)
        };
        if let Some(when) = &reference.when
            && !engine.truthy(when, scope).map_err(failed("when"))?
        {
            return Ok(Var::Undefined);
        }
        let keep = keep(reference);
        let everywhere = (ctx.namespaced)(&reference.api_version, &reference.kind) == Some(false);
        let want = |namespace: Option<Box<str>>, select: Select| Want {
            api_version: Arc::clone(&reference.api_version),
            kind: Arc::clone(&reference.kind),
            namespace: namespace.filter(|_| !everywhere),
            select,
            keep: keep.clone(),
        };
        match &reference.target {
            RefTarget::Name(name, place) => {
                let value = engine.eval_text(name, scope).map_err(failed("name"))?;
                let Some(Value::String(name)) = &value else {
                    return Err(invalid("its name is not a string"));
                };
                naming::check(&reference.api_version, &reference.kind, name).map_err(|error| {
                    invalid(&format!("its name cannot be the name of a {}: {error}", reference.kind))
                })?;
                let namespace = namespace(ctx, reference, place, scope)?;
                let want = want(namespace, Select::Name(name.as_str().into()));
                let found = self.ask(ctx, &want)?;
                match found.into_iter().next() {
                    Some(object) => Ok(Var::Object(live(&object))),
                    None if reference.optional => Ok(Var::Undefined),
                    None => Err(Problem {
                        reason: "RefMissing",
                        message: format!("{want} does not exist"),
                        is_waiting: true,
                    }),
                }
            }
            RefTarget::Select(tree, places) => {
                let value = tree.eval(engine, scope).map_err(failed("selector"))?.unwrap_or(Value::Null);
                // As everywhere in Kubernetes: no selector fits nothing, an empty one everything.
                if value.is_null() {
                    return Ok(Var::List(Vec::new()));
                }
                let selector = Selector::parse(&value).map_err(|error| invalid(&error))?;
                let namespaces = match places {
                    Places::All => vec![None],
                    Places::List(places) => {
                        let mut namespaces = places
                            .iter()
                            .map(|place| namespace(ctx, reference, place, scope))
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
        }
    }

    fn ask(&mut self, ctx: &Context<'_>, want: &Want) -> Result<Vec<Arc<Referred>>, Problem> {
        self.wants.push(want.clone());
        let (kind, api_version) = (&want.kind, &want.api_version);
        let problem = |reason, message| Problem { reason, message, is_waiting: true };
        Err(match (ctx.refs)(want) {
            Found::Known(objects) => return Ok(objects),
            Found::Pending => {
                self.pending = true;
                problem("RefUnread", format!("{want} is being read"))
            }
            Found::Unknown(Blind::KindMissing) => problem(
                "KindMissing",
                format!("the API server does not serve {kind} of {api_version}; is its CRD installed?"),
            ),
            Found::Unknown(Blind::Forbidden(why)) => {
                problem("RefForbidden", format!("{want} may not be read: {why}"))
            }
            Found::Unknown(Blind::Failed(why)) => {
                problem("RefUnreadable", format!("{want} cannot be read: {why}"))
            }
        })
    }
}

fn keep(reference: &Ref) -> Keep {
    let group = crd::group_of(&reference.api_version);
    let metadata_only = |path: &Vec<String>| path.first().is_some_and(|first| first == "metadata");
    let content = !reference.reads.iter().all(metadata_only)
        || (reference.asks_state && readiness::needs_status(group, &reference.kind));
    Keep { paths: Arc::clone(&reference.reads), content }
}

fn namespace(
    ctx: &Context<'_>,
    reference: &Ref,
    place: &Place,
    scope: &Scope,
) -> Result<Option<Box<str>>, Problem> {
    let engine = &ctx.package.engine;
    match place {
        Place::Operator => Ok(Some(ctx.operator_namespace.into())),
        Place::Literal(namespace) => Ok(Some(namespace.as_str().into())),
        Place::Own => match ctx.namespace() {
            Some(namespace) => Ok(Some(namespace.into())),
            // Of a cluster-scoped instance: right for a cluster-scoped kind alone.
            None if (ctx.namespaced)(&reference.api_version, &reference.kind) == Some(true) => Err(invalid(
                "the instance is cluster-scoped: say `namespace`, or `namespaces` with a selector",
            )),
            None => Ok(None),
        },
        Place::Computed(text) => {
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
    Problem { reason: "InvalidRef", message: message.to_owned(), is_waiting: false }
}

/// A ref that cannot even be said.
fn self_problem(what: &str, error: EvalError) -> Problem {
    let error = ChildError::Eval(error);
    Problem { reason: error.reason(), message: format!("{what}: {error}"), is_waiting: error.is_waiting() }
}

fn live(object: &Referred) -> Live {
    Live { value: Arc::clone(&object.value), ready: object.ready, current: true }
}

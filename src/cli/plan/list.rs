//! `operetta plan list`: the plans of instances, each with its last run.

use std::collections::BTreeSet;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::draw::phase;
use super::shared::Listing;
use super::target::{Run, Target, is_of, text};
use crate::age::age;
use crate::children::crds::PublishedPlan;
use crate::cli::catalog::{UNKNOWN, unreadable};
use crate::cli::command::Failure;
use crate::cli::out;
use crate::cli::session::Session;
use crate::cli::show::{Cell, Table};
use crate::cluster::Query;
use crate::manager::raw::Raw;
use crate::plan::{Of, PlanRun, plan_run_kind};

/// Show the plans of instances, each with its last run
///
/// TRIGGER says what starts the plan: created, changed (with paths), upgraded, deleted, condition, schedule, the loss of a
/// child; `request` if only `operetta plan run` or another plan does. Any plan except `cleanup` can be requested.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta plan list keystore/orders
  operetta plan list -A
  operetta plan list keystore/orders -o json | jq '.plans[] | select(.name == \"restore\") | .params'

-o wide adds the parameters. -o json and yaml print {apiVersion, kind: PlanList, plans}; each has instance {apiVersion, \
kind, namespace, name}, name, triggers, params (the schema, null if it takes none) and lastRun {name, phase, reason, \
startedAt, finishedAt} or null.

Exit codes: 0 success, also if there are none; 1 not found or no API server; 2 wrong usage.")]
pub(super) struct Args {
    #[command(flatten)]
    listing: Listing,
}

/// A plan of an instance.
struct Line<'a> {
    of: Of,
    namespace: Option<String>,
    plan: PublishedPlan,
    /// Whether its triggers and parameters are known.
    is_described: bool,
    last: Option<&'a Run>,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let listing = &args.listing;
    let target = listing.instance.as_deref().map(Target::instance).transpose()?;
    let session = Session::open(&listing.common).await?;
    let namespace = (!listing.all_namespaces).then(|| session.namespace().to_owned());
    let mut problems: Vec<String> = Vec::new();
    let (kinds, instances, runs) = if let Some((kind, name)) = target {
        let instance = session.instance(kind, name).await?;
        let runs = session.runs(&instance).await?;
        let of = (0, instance.of(), instance.namespace.clone());
        (vec![instance.kind], vec![of], runs)
    } else {
        let catalog = session.catalog().await?;
        let has_runs = catalog.served(&plan_run_kind().gvk()).is_some();
        let mut kinds = catalog.kinds;
        kinds.retain(|kind| kind.plans.as_ref().map_or(has_runs, |plans| !plans.is_empty()));
        let mut instances = Vec::new();
        for (index, kind) in kinds.iter().enumerate() {
            let api = &kind.served.kind;
            let home = namespace.as_deref().filter(|_| api.namespaced);
            let query = Query { namespace: home, metadata_only: true, ..Query::default() };
            let keep = |raw: Raw| {
                let of = Of {
                    api_version: api.api_version(),
                    kind: api.kind.clone(),
                    resource: api.plural.clone(),
                    name: raw.metadata.name.unwrap_or_default(),
                };
                (index, of, raw.metadata.namespace)
            };
            match session.server.cluster.list_all(api, &query, keep).await {
                Ok(found) => instances.extend(found),
                // Cluster-scoped instances are shown only if the user may list them.
                Err(error) if error.code == 403 && !api.namespaced && namespace.is_some() => {
                    out::note(format!("note: {}", unreadable(api, home, &error)));
                }
                Err(error) => problems.push(unreadable(api, home, &error)),
            }
        }
        let runs = if kinds.is_empty() { Vec::new() } else { session.all_runs(namespace.as_deref()).await? };
        (kinds, instances, runs)
    };
    let has_instances = |index: usize| instances.iter().any(|(of, ..)| *of == index);
    let shown = kinds.iter().enumerate().filter(|(index, _)| has_instances(*index));
    for (_, kind) in shown.filter(|(_, kind)| !kind.is_described()) {
        let text =
            kind.undescribed("only plans that have run are listed, without their triggers and parameters");
        out::note(format!("note: {text}"));
    }
    let mut lines: Vec<Line<'_>> = Vec::new();
    for (index, of, home) in instances {
        let plans = kinds[index].plans.clone().unwrap_or_else(|| ran(&runs, &of, home.as_deref()));
        for plan in plans {
            let is_last = |run: &&Run| {
                is_run_of(run, &of, home.as_deref()) && named(run).any(|name| *name == plan.name)
            };
            let last = runs.iter().rfind(is_last);
            let is_described = kinds[index].is_described();
            lines.push(Line { of: of.clone(), namespace: home.clone(), plan, is_described, last });
        }
    }
    let value = || {
        let plans: Vec<Value> = lines.iter().map(Line::to_json).collect();
        json!({"apiVersion": "operetta.dev/v1alpha1", "kind": "PlanList", "plans": plans})
    };
    let name = |line: &Line<'_>| line.plan.name.clone();
    let text = listing.shown.text(&lines, "No plans found", &table(listing), name, value);
    for problem in &problems {
        out::note(format!("error: {problem}"));
    }
    let code = if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    Ok(out::all(&text, code))
}

/// Whether a run is of an instance. `home`: its namespace.
fn is_run_of(run: &Run, of: &Of, home: Option<&str>) -> bool {
    is_of(&run.run, of) && (home.is_none() || run.run.namespace.as_deref() == home)
}

/// The plans that a run consists of.
fn named(run: &Run) -> impl Iterator<Item = &String> {
    run.run.status.iter().flat_map(|status| &status.plans).chain([&run.run.spec.plan])
}

/// The plans of an instance that have run.
fn ran(runs: &[Run], of: &Of, home: Option<&str>) -> Vec<PublishedPlan> {
    let names: BTreeSet<&String> =
        runs.iter().filter(|run| is_run_of(run, of, home)).flat_map(named).collect();
    let plan = |name: &String| PublishedPlan { name: name.clone(), triggers: Vec::new(), params: None };
    names.into_iter().map(plan).collect()
}

fn table<'l>(listing: &Listing) -> Table<'_, Line<'l>> {
    let now = crate::clock::now();
    let last = |line: &Line<'l>, cell: &dyn Fn(&PlanRun) -> Cell| {
        line.last.map_or_else(|| Cell::plain(""), |last| cell(&last.run))
    };
    Table::new()
        .column_if(listing.all_namespaces, "NAMESPACE", |line: &Line<'l>| {
            Cell::plain(line.namespace.as_deref().unwrap_or_default())
        })
        .column_if(listing.instance.is_none(), "INSTANCE", |line| Cell::plain(text(&line.of)))
        .column("PLAN", |line| Cell::plain(&line.plan.name))
        .column("TRIGGER", |line| {
            Cell::plain(match line.plan.triggers.join(", ") {
                _ if !line.is_described => UNKNOWN.to_owned(),
                none if none.is_empty() => "request".to_owned(),
                triggers => triggers,
            })
        })
        .column("LAST-RUN", move |line| last(line, &|run| Cell::plain(&run.name)))
        .column("STATUS", move |line| last(line, &phase))
        .column("AGE", move |line| last(line, &|run| Cell::plain(age(now, Some(&run.created)))))
        .column_if(listing.shown.is_wide(), "PARAMS", |line| Cell::text(line.params()))
}

impl Line<'_> {
    /// The parameters of the plan with their types.
    fn params(&self) -> String {
        let schema = self.plan.params.as_ref().map(|schema| &schema["properties"]);
        let names = schema.and_then(Value::as_object).into_iter().flatten().map(|(name, schema)| {
            let kind = schema["type"].as_str().map(|kind| format!(" ({kind})")).unwrap_or_default();
            format!("{name}{kind}")
        });
        names.collect::<Vec<_>>().join(", ")
    }

    fn to_json(&self) -> Value {
        let last = self.last.map(|last| {
            let status = last.run.status.clone().unwrap_or_default();
            json!({
                "name": last.run.name, "phase": last.run.phase(), "reason": status.reason,
                "startedAt": status.started_at, "finishedAt": status.finished_at,
            })
        });
        json!({
            "instance": {
                "apiVersion": self.of.api_version, "kind": self.of.kind, "namespace": self.namespace,
                "name": self.of.name,
            },
            "name": self.plan.name, "triggers": self.plan.triggers, "params": self.plan.params, "lastRun": last,
        })
    }
}

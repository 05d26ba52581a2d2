//! Checks the plans of a resource as a whole: what they run, what starts them, what they record, the hosts of
//! their requests and of observations, and the permissions of their Jobs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::sites::Visit;
use super::{Action, ChangedPath, Event, Exec, Http, Plan, Store, Tree, schedule};
use crate::Call;
use crate::api::Gvk;
use crate::chosen_account::OF_USERS;
use crate::crd::{self, Lookup};
use crate::diag::{Diagnostic, Location, did_you_mean};
use crate::expression_sites::Parts;
use crate::graph;
use crate::secrecy::positions;
use crate::template::{
    Engine, Expr, Lets, ReadPath, Reads, Taint, TaintScope, TaintTree, Text, UrlPart, access,
};
use crate::template_scan::Outlines;
use crate::{Child, DeletionPolicy};

/// Variables that neither a tenant nor a live object can choose.
const TRUSTED: [&str; 3] = ["defaults", "operator", "cluster"];

/// The maximum number of nested `let`s at the beginning of a URL.
const MAX_LETS: usize = 8;

/// Reports all errors of the plans of a resource.
pub(crate) fn plans(engine: &Engine, parts: &Parts, outlines: &Outlines) -> Vec<Diagnostic> {
    let plans = &parts.plans;
    let mut found = Vec::new();
    cycle(plans, &mut found);
    triggers(plans, &mut found);
    schedules(plans, &mut found);
    recorded(plans, &mut found);
    found.extend(lost_facts(engine, parts));
    for reference in &parts.refs {
        match reference.observation().map(|observation| &observation.call) {
            Some(Call::Http(http)) => found.extend(host(engine, &parts.lets, http, &reference.location)),
            Some(Call::Exec(exec)) => found.extend(shell(engine, &parts.lets, exec)),
            None => {}
        }
    }
    for plan in plans {
        beside(plan, &mut found);
        for visit in plan.visits() {
            repeated_facts(&visit, &parts.lets, &mut found);
            parameters(&visit, plans, &mut found);
            endless(&visit, &parts.lets, &mut found);
            stored(&visit, parts, outlines, &mut found);
            match &visit.step.action {
                Action::Http(http) => found.extend(
                    host(engine, &parts.lets, http, &visit.step.location)
                        .map(|error| error.path(visit.inside.path.clone())),
                ),
                Action::Exec(exec) => {
                    found.extend(
                        shell(engine, &parts.lets, exec).map(|error| error.path(visit.inside.path.clone())),
                    );
                }
                Action::Job { template } => job(engine, parts, outlines, template, &visit, &mut found),
                _ => {}
            }
        }
    }
    found
}

/// Reports plans that run each other in a cycle.
fn cycle(plans: &[Plan], found: &mut Vec<Diagnostic>) {
    let index: HashMap<&str, usize> =
        plans.iter().enumerate().map(|(at, plan)| (plan.name.as_str(), at)).collect();
    let edges: Vec<BTreeSet<usize>> = plans
        .iter()
        .map(|plan| {
            let visits = plan.visits();
            let called = visits.iter().flat_map(|visit| visit.step.inlines());
            called.filter_map(|(name, _)| index.get(name).copied()).collect()
        })
        .collect();
    let Err(cycle) = graph::order(&edges) else { return };
    let Some(&first) = cycle.first() else { return };
    let names: Vec<&str> = cycle.iter().chain([&first]).map(|&at| plans[at].name.as_str()).collect();
    let message = format!("these plans run each other without end: {}", names.join(" -> "));
    let error = Diagnostic::error("package::cycle", message).located(plans[first].location.clone());
    found.push(
        error
            .path(format!("plans.{}", plans[first].name))
            .help("remove one of these plan steps or onFailure"),
    );
}

/// Reports two plans that the same change selects with the same precedence.
fn triggers(plans: &[Plan], found: &mut Vec<Diagnostic>) {
    let mut known: HashMap<String, &Plan> = HashMap::new();
    for plan in plans {
        for (index, trigger) in plan.triggers.iter().enumerate() {
            let events: Vec<String> = match &trigger.event {
                Event::Created => vec!["created".to_owned()],
                Event::Upgraded => vec!["upgraded".to_owned()],
                Event::Deleted => vec!["deleted".to_owned()],
                Event::Changed(paths) if paths.is_empty() => vec!["spec".to_owned()],
                Event::Changed(paths) => paths.iter().map(ToString::to_string).collect(),
                Event::Condition { .. } | Event::Expires { .. } | Event::Schedule { .. } => continue,
            };
            for event in events {
                let Some(other) = known.insert(event.clone(), plan).filter(|other| other.name != plan.name)
                else {
                    continue;
                };
                let what = match event.as_str() {
                    "created" | "upgraded" | "deleted" => event,
                    "spec" => "changed".to_owned(),
                    path => format!("changed: {path}"),
                };
                let message =
                    format!("the plans `{}` and `{}` have the same trigger: {what}", other.name, plan.name);
                let error = Diagnostic::error("package::trigger", message).located(trigger.location.clone());
                found.push(error.path(format!("plans.{}.trigger[{index}]", plan.name)).help(format!(
                    "keep it in one of them; that one can run the other: {{name: then, plan: {}}}",
                    plan.name
                )));
            }
        }
    }
}

impl std::fmt::Display for ChangedPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Spec(path) => f.write_str(&path.join(".")),
            Self::Metadata { field, key } => write!(f, "metadata.{field}.{key}"),
            Self::Ref(id) => write!(f, "refs.{id}"),
        }
    }
}

/// Reports literal schedules and time zones that are invalid.
fn schedules(plans: &[Plan], found: &mut Vec<Diagnostic>) {
    for plan in plans {
        for (index, trigger) in plan.triggers.iter().enumerate() {
            let Event::Schedule { schedule, time_zone, .. } = &trigger.event else { continue };
            let text = |text: &Text| text.as_literal().and_then(|value| value.as_str()).map(str::to_owned);
            let line = text(schedule).and_then(|line| schedule::problem(&line));
            let zone = time_zone.as_ref().and_then(text).and_then(|zone| schedule::zone_problem(&zone));
            let problems = line.map(|(message, help)| (message, help, "schedule"));
            for (message, help, key) in
                problems.into_iter().chain(zone.map(|(message, help)| (message, help, "timeZone")))
            {
                let error = Diagnostic::error("package::schedule", message).located(trigger.location.clone());
                found.push(error.path(format!("plans.{}.trigger[{index}].{key}", plan.name)).help(help));
            }
        }
    }
}

/// Reports steps that a plan which may run beside others must not have.
fn beside(plan: &Plan, found: &mut Vec<Diagnostic>) {
    if plan.exclusive {
        return;
    }
    let path = format!("plans.{}", plan.name);
    let rollout = plan.triggers.iter().find_map(|trigger| match &trigger.event {
        Event::Created => Some(("created", trigger)),
        Event::Changed(_) => Some(("changed", trigger)),
        Event::Upgraded => Some(("upgraded", trigger)),
        Event::Deleted => Some(("deleted", trigger)),
        Event::Condition { .. } | Event::Expires { .. } | Event::Schedule { .. } => None,
    });
    if let Some((event, trigger)) = rollout {
        let message = format!("the plan `{}` is not exclusive, and `{event}` starts it", plan.name);
        let error = Diagnostic::error("package::exclusive", message).located(trigger.location.clone());
        found.push(
            error.path(path).help("remove exclusive: false: a change of the instance is one run at a time"),
        );
    }
    for visit in plan.visits() {
        let what = match &visit.step.action {
            Action::Apply(_) => "an apply step",
            Action::Delete(_) => "a delete step",
            Action::Plan(_) => "a plan step",
            _ if !visit.step.inlines().is_empty() => "a plan for its failure",
            _ => continue,
        };
        let message =
            format!("the plan `{}` is not exclusive and has {what}: `{}`", plan.name, visit.step.name);
        let error = Diagnostic::error("package::exclusive", message).located(visit.step.location.clone());
        found.push(error.path(visit.inside.path.clone()).help("remove exclusive: false, or the step"));
    }
}

/// Reports facts that a plan which may run beside others records and another plan records, too.
fn recorded(plans: &[Plan], found: &mut Vec<Diagnostic>) {
    let mut setters: BTreeMap<&str, Vec<&Plan>> = BTreeMap::new();
    for plan in plans {
        for visit in plan.visits() {
            for (key, _) in &visit.step.record {
                let known = setters.entry(key).or_default();
                if known.last().is_none_or(|last| last.name != plan.name) {
                    known.push(plan);
                }
            }
        }
    }
    for plan in plans.iter().filter(|plan| !plan.exclusive) {
        for visit in plan.visits() {
            for (key, value) in &visit.step.record {
                let others = setters.get(key.as_str()).into_iter().flatten();
                let Some(other) = others.into_iter().find(|other| other.name != plan.name) else { continue };
                let message = format!(
                    "the plans `{}` and `{}` both record `{key}`, and `{}` may run beside the other",
                    plan.name, other.name, plan.name
                );
                let error = Diagnostic::error("package::record", message).located(value.location());
                found.push(error.path(visit.inside.path.clone()).help("use another name in one of them"));
            }
        }
    }
}

/// Warns of a step that records a value of `retained` each time that it runs, because `retained` becomes
/// undefined once the object is adopted.
fn repeated_facts(visit: &Visit<'_>, lets: &Lets, found: &mut Vec<Diagnostic>) {
    let reads = |expr: &Expr, roots: &[&str]| {
        graph::expand_lets([expr.reads()], lets).iter().any(|path| roots.contains(&path.root.as_str()))
    };
    let step = visit.step;
    if step.when.iter().chain(&step.unless).any(|expr| reads(expr, &["record", "retained"])) {
        return;
    }
    for (key, value) in step.record.iter().filter(|(_, value)| reads(value, &["retained"])) {
        let message = format!(
            "the step `{}` records `{key}` again each time that the plan runs, also when the instance has adopted the object and \
             `retained` does not have it any more",
            step.name
        );
        let warning = Diagnostic::warning("package::retained-read", message).located(value.location());
        found.push(
            warning
                .path(visit.inside.path.clone())
                .help(format!("add `when: record{} is undefined`", access(key))),
        );
    }
}

/// Warns of rounds that do not end: `until` reads nothing that changes while a run is active.
fn endless(visit: &Visit<'_>, lets: &Lets, found: &mut Vec<Diagnostic>) {
    let Some(repeat) = &visit.step.repeat else { return };
    let changes = |path: &&ReadPath| {
        ["children", "refs", "record", "retained", "outputs"].contains(&path.root.as_str())
    };
    if graph::expand_lets([repeat.until.reads()], lets).iter().any(changes) {
        return;
    }
    let message = format!(
        "the rounds of `{}` change nothing that `until` reads, so they end only at their limit",
        visit.step.name
    );
    let warning = Diagnostic::warning("package::endless", message).located(repeat.until.location());
    found.push(
        warning
            .path(visit.inside.path.clone())
            .help("read what a round changes: children, a ref, an observation or record"),
    );
}

/// Reports a `store` into an object that does not keep what is stored.
fn stored(visit: &Visit<'_>, parts: &Parts, outlines: &Outlines, found: &mut Vec<Diagnostic>) {
    let step = visit.step;
    let Some(Store { child: to, data }) = step.store.as_ref().filter(|_| !step.action.answers().is_empty())
    else {
        return;
    };
    let Some(child) = parts.children.iter().find(|child| child.id == to.child) else { return };
    let id = &child.id;
    let mut add = |is_error: bool, message: String, help: String| {
        let found_here = if is_error {
            Diagnostic::error("package::store", message)
        } else {
            Diagnostic::warning("package::store", message)
        };
        let found_here = found_here.located(to.location.clone());
        found.push(found_here.path(visit.inside.path.clone()).help(help));
    };
    if !child.is_secret() {
        return add(true, format!("`{id}` is not a Secret"), "name a child that is a Secret".to_owned());
    }
    if child.for_each.is_some() && to.key.is_none() {
        let help = format!("name one: \"{id}[{{{{ i }}}}]\"");
        add(true, format!("`{id}` has a forEach, so it is several Secrets"), help);
    }
    if child.may_be_recreated() {
        let message =
            format!("`{id}` may be deleted and created again, and what is stored in it is lost then");
        add(true, message, "remove onImmutableChange: Recreate from it".to_owned());
    }
    let node = outlines.get(&child.template).map(|outline| outline.last());
    for field in ["data", "stringData"] {
        for (key, _) in data {
            if node.as_ref().is_some_and(|node| node.get(field).is_some_and(|map| map.get(key).is_some())) {
                let message =
                    format!("the template of `{id}` has `{key}`, too, and overwrites what is stored");
                add(true, message, "remove it from the template, or store under another key".to_owned());
            }
        }
    }
    if step.outputs.iter().any(|output| output.secret) {
        let message = format!("the step `{}` has secret outputs beside `store`", step.name);
        let help = format!("store them, and read children.{id}.data in later steps");
        add(true, message, help);
    }
    if step.when.is_none() && step.unless.is_none() && visit.inside.whens.is_empty() {
        let message = format!("the step `{}` fails when it runs again: the keys are there then", step.name);
        let key = data.first().map_or("key", |(key, _)| key);
        add(false, message, format!("add `unless: children.{id}.data{} is defined`", access(key)));
    }
    let volumes = Gvk::new("v1", "PersistentVolumeClaim");
    let is_kept = |child: &&Child| child.deletion_policy != DeletionPolicy::Delete;
    let kept = parts.children.iter().filter(is_kept).find(|child| child.has_kind(&volumes));
    if let Some(volume) = kept.filter(|_| !is_kept(&child)) {
        let message =
            format!("`{}` outlives the instance, and `{id}`, in which this step stores, does not", volume.id);
        add(false, message, format!("give `{id}` deletionPolicy: Retain"));
    }
}

/// Warns if volumes outlive the instance but the recorded facts do not: a new instance with the same name
/// would treat the volumes as new.
fn lost_facts(engine: &Engine, parts: &Parts) -> Option<Diagnostic> {
    let volumes = Gvk::new("v1", "PersistentVolumeClaim");
    let is_kept = |child: &&Child| child.deletion_policy != DeletionPolicy::Delete;
    let data = parts.children.iter().filter(is_kept).find(|child| child.has_kind(&volumes))?;
    parts.plans.iter().flat_map(Plan::visits).find(|visit| !visit.step.record.is_empty())?;
    let sites = parts.expression_sites(engine);
    let mut paths = sites.iter().flat_map(|site| {
        let child = site.child.and_then(|child| parts.children.get(child));
        graph::expand_lets([site.reads], &parts.lets).into_iter().map(move |path| (child, path))
    });
    let carries = |(child, path): (Option<&Child>, &ReadPath)| match path.root.as_str() {
        "retained" => true,
        "self" => child.as_ref().is_some_and(is_kept),
        _ => false,
    };
    if paths.any(carries) {
        return None;
    }
    let message = format!(
        "`{}` outlives the instance, and the facts that plans record do not: a new instance of that name does not know what \
         is in it",
        data.id
    );
    let warning = Diagnostic::warning("package::lost-facts", message).located(data.location.clone());
    Some(warning.help(format!(
        "record what it needs to know in the first step of `deploy`, from `retained{}` or from a child with \
         deletionPolicy: Retain: docs/guide/deleting-children.md, What outlives an instance",
        access(&data.id)
    )))
}

/// Reports parameters of an inlined plan that its schema does not have, and missing required ones.
fn parameters(visit: &Visit<'_>, plans: &[Plan], found: &mut Vec<Diagnostic>) {
    let Action::Plan(call) = &visit.step.action else { return };
    let Some(plan) = plans.iter().find(|plan| plan.name == call.plan && call.of.is_none()) else { return };
    let Some(Tree::Map(given)) = &call.params else { return };
    let mut add = |message: String, help: String| {
        let error = Diagnostic::error("package::params", message).located(visit.step.location.clone());
        found.push(error.path(visit.inside.path.clone()).help(help));
    };
    let Some(schema) = &plan.params else {
        if !given.is_empty() {
            add(
                format!("the plan `{}` takes no parameters", plan.name),
                "remove params, or add them to the plan".to_owned(),
            );
        }
        return;
    };
    for (name, _) in given {
        if let Lookup::Unknown { candidates, .. } = crd::lookup(schema, &[name]) {
            let near = did_you_mean(name, candidates.iter().map(String::as_str));
            let help = near.map_or_else(
                || format!("there is {}", candidates.join(", ")),
                |near| format!("did you mean `{near}`?"),
            );
            add(format!("the plan `{}` has no parameter `{name}`", plan.name), help);
        }
    }
    let required = schema["required"].as_array().into_iter().flatten().filter_map(|name| name.as_str());
    for name in required.filter(|name| !given.iter().any(|(given, _)| given == name)) {
        add(
            format!("the plan `{}` requires the parameter `{name}`", plan.name),
            format!("add {name}: ... to params"),
        );
    }
}

/// Reports a URL whose host a tenant or a live object could choose.
fn host<'a>(
    engine: &'a Engine,
    lets: &'a Lets,
    http: &'a Http,
    at: &'a Location,
) -> impl Iterator<Item = Diagnostic> + use<'a> {
    let mut found = Vec::new();
    if let Some(url) = http.url.as_literal().and_then(|url| url.as_str())
        && !(url.starts_with("http://") || url.starts_with("https://"))
    {
        let error = Diagnostic::error("package::url", format!("`{url}` is not an http or https URL"));
        found.push(error.located(at.clone()).help("write the whole URL: https://api.example.com/x"));
    }
    if http.hosts.is_empty() {
        origin(engine, lets, &http.url, 0, &mut found);
    } else if let Err(error) = engine.url_values(&http.url) {
        found.push(error);
    }
    found.into_iter()
}

/// Checks the values in the host of a URL, or in the beginning of a URL in a `let`. The path in a `let` is
/// not percent-encoded, so values in it are reported, too.
fn origin(engine: &Engine, lets: &Lets, url: &Text, depth: usize, found: &mut Vec<Diagnostic>) {
    let values = match engine.url_values(url) {
        Ok(values) => values,
        Err(error) => return found.push(error),
    };
    for value in values {
        let at = &value.location;
        let written = at.source.text.get(at.span.start..at.span.end).unwrap_or_default().trim();
        let whole = written.strip_prefix("let.").and_then(|name| lets.get(name));
        if let (UrlPart::Authority, Some(text)) = (value.part, whole.filter(|_| depth < MAX_LETS)) {
            origin(engine, lets, text, depth + 1, found);
            continue;
        }
        let in_host = value.part == UrlPart::Authority;
        if !in_host && depth == 0 {
            continue;
        }
        let is_safe = |path: &&&ReadPath| {
            let root = path.root.as_str();
            let is_name = matches!(path.to_string().as_str(), "name" | "namespace" | "instance.metadata.uid");
            root == "let" || TRUSTED.contains(&root) || !in_host && is_name
        };
        let reads = graph::expand_lets([&value.reads], lets);
        let Some(path) = reads.iter().find(|path| !is_safe(path)) else { continue };
        let (message, help) = if in_host {
            let message = "is part of the host of the URL, so its author would choose where the request goes";
            let help = "use a literal or `defaults`, and begin the path with a literal slash; or list the hosts that it may \
                        be: hosts: [\"*.example.com\"]";
            (message, help)
        } else {
            ("is not percent-encoded in a `let`", "write it in the URL itself, after the `let` with the host")
        };
        let error = Diagnostic::error("package::url", format!("`{path}` {message}"));
        found.push(error.located(at.clone()).help(help));
    }
}

/// Reports a shell command that contains a value.
fn shell<'a>(engine: &Engine, lets: &Lets, exec: &'a Exec) -> Option<Diagnostic> {
    let Tree::List(items) = &exec.command else { return None };
    let literal = |item: &'a Tree| match item {
        Tree::Text(text) => text.as_literal()?.as_str(),
        _ => None,
    };
    let shells = ["sh", "bash", "dash", "ash", "ksh", "zsh"];
    let name = |word: &'a str| word.rsplit('/').next().unwrap_or_default();
    let start =
        items.iter().position(|item| literal(item).is_some_and(|word| shells.contains(&name(word))))?;
    let is_command = |word: &str| word.starts_with('-') && !word.starts_with("--") && word.contains('c');
    let flag = items[start..].iter().position(|item| literal(item).is_some_and(is_command))?;
    let Some(Tree::Text(script)) = items.get(start + flag + 1) else { return None };
    let reads = engine.unfiltered(script, "shell_quote");
    let safe = ["let", "name", "namespace", "defaults", "operator", "cluster"];
    let reads: Vec<&Reads> = reads.iter().collect();
    let reads = graph::expand_lets(reads, lets);
    let path = reads.iter().find(|path| !safe.contains(&path.root.as_str()))?;
    let message = format!("`{path}` is part of a shell script: a quote or a `;` in it would be executed");
    Some(Diagnostic::warning("package::shell", message).located(path.location.clone()).help(
        "leave out the shell and list the arguments, or pass it as an argument ([sh, -c, 'echo \"$1\"', sh, \"{{ x }}\"]), \
         or use `| shell_quote`",
    ))
}

/// The fields of a Job's pods, below `spec.template.spec`, that decide with which permissions they run.
const RIGHTS: [&[&str]; 13] = [
    &["serviceAccountName"],
    &["serviceAccount"],
    &["automountServiceAccountToken"],
    &["hostNetwork"],
    &["hostPID"],
    &["hostIPC"],
    &["hostUsers"],
    &["runtimeClassName"],
    &["nodeName"],
    &["volumes", "*", "hostPath"],
    &["containers", "*", "securityContext"],
    &["initContainers", "*", "securityContext"],
    &["ephemeralContainers", "*", "securityContext"],
];

/// Reports values in the fields of a Job that decide with which permissions it runs.
fn job(
    engine: &Engine,
    parts: &Parts,
    outlines: &Outlines,
    path: &str,
    visit: &Visit<'_>,
    found: &mut Vec<Diagnostic>,
) {
    let Some(template) = engine.template(path) else { return };
    let roots = OF_USERS.into_iter().chain(["name", "children"]).chain(visit.inside.items.iter().copied());
    let roots = roots.map(|root| (root.to_owned(), TaintTree::tainted(Taint::held(root)))).collect();
    let positions = positions(outlines);
    let scope = TaintScope { roots, lets: &parts.lets, positions: &positions };
    for inserted in engine.taint_of_template(template, &scope) {
        let place: Vec<&str> = inserted.path.iter().map(String::as_str).collect();
        let Some(field) = RIGHTS.iter().find(|field| overlaps(&place, field)) else { continue };
        if found.iter().any(|known| known.location.as_ref() == Some(&inserted.location)) {
            continue; // already reported for another step with the same template
        }
        let field = field.join(".").replace(".*", "[]");
        let message = format!(
            "`{}` may decide {field} of a Job: only the package decides with which rights it runs",
            inserted.taint.source
        );
        let error = Diagnostic::error("package::job", message).located(inserted.location);
        found.push(
            error
                .path(visit.inside.path.clone())
                .help("write a literal, or choose between literals: {{ 'a' if x else 'b' }}"),
        );
    }
}

/// Whether a path in a Job is within one of these fields, or contains it.
fn overlaps(place: &[&str], field: &[&str]) -> bool {
    let whole = ["spec", "template", "spec"].into_iter().chain(field.iter().copied());
    place.iter().zip(whole).all(|(a, b)| *a == b || *a == "*" || b == "*")
}

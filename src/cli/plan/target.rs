//! What the commands are about: an instance, or a run.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::children::names::MANAGER_NAMESPACE;
use crate::cli::catalog::{PackageKind, check_names, no_instance};
use crate::cli::command::Failure;
use crate::cli::model::complete;
use crate::cli::out::printable;
use crate::cli::session::Session;
use crate::cluster::Query;
use crate::manager::raw::Raw;
use crate::plan::{Approval, Of, Phase, PlanRun, StepState, plan_run_kind};

/// The field manager of changes by a person.
pub(super) const FIELD_MANAGER: &str = "operetta-plan";

/// RUN or KIND/NAME of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target<'a> {
    Run(&'a str),
    Instance(&'a str, &'a str),
}

impl<'a> Target<'a> {
    /// Reads the word. `planrun/NAME`, as `kubectl -o name` prints it, is a run.
    pub(super) fn parse(word: &'a str) -> Result<Self, Failure> {
        let bad =
            || Failure::usage(format!("{} is neither the name of a run nor KIND/NAME", printable(word)));
        let target = match word.split_once('/') {
            _ if word.is_empty() => return Err(bad()),
            None => Self::Run(word),
            Some((kind, name)) if kind.is_empty() || name.is_empty() || name.contains('/') => {
                return Err(bad());
            }
            Some((kind, name)) => {
                let kind_only = kind.split('.').next().unwrap_or_default();
                if ["planrun", "planruns"].iter().any(|known| known.eq_ignore_ascii_case(kind_only)) {
                    Self::Run(name)
                } else {
                    Self::Instance(kind, name)
                }
            }
        };
        let (Self::Run(name) | Self::Instance(_, name)) = target;
        check_names(None, Some(name)).map_err(Failure::usage)?;
        Ok(target)
    }

    /// Reads KIND/NAME.
    pub(super) fn instance(word: &'a str) -> Result<(&'a str, &'a str), Failure> {
        match Self::parse(word)? {
            Self::Instance(kind, name) => Ok((kind, name)),
            Self::Run(_) => Err(Failure::usage(no_instance(word))),
        }
    }
}

/// A run with its object.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub object: Value,
    pub run: PlanRun,
}

impl Run {
    pub(super) fn new(object: Value) -> Result<Self, Failure> {
        let run = PlanRun::parse(&object).map_err(Failure::from)?;
        Ok(Self { object, run })
    }

    /// The answers to a step that are not known to be ignored.
    pub(super) fn answers<'s>(&'s self, step: &'s StepState) -> impl Iterator<Item = &'s Approval> {
        let seen = self.run.status.as_ref().map_or(&[][..], |status| &status.answers);
        let is_ignored = |index: usize| seen.get(index).is_some_and(|seen| seen.ignored.is_some());
        let all = self.run.spec.approvals.iter().enumerate().skip(step.asked.unwrap_or_default());
        all.filter(move |(index, answer)| answer.step == step.path && !is_ignored(*index))
            .map(|(_, answer)| answer)
    }

    /// What a step asks, and who has answered so far.
    pub(super) fn question(&self, step: &StepState) -> String {
        let by: BTreeSet<&str> = self.answers(step).map(|answer| answer.by.as_str()).collect();
        let by: Vec<&str> = by.into_iter().collect();
        if by.is_empty() {
            step.message.clone()
        } else {
            format!("{} (answered by {})", step.message, by.join(", "))
        }
    }
}

/// An instance of a package.
pub(super) struct Instance {
    pub kind: PackageKind,
    pub namespace: Option<String>,
    pub name: String,
    object: Value,
}

impl Instance {
    /// The instance, as `PlanRun`s name it.
    pub(super) fn of(&self) -> Of {
        let kind = &self.kind.served.kind;
        Of {
            api_version: kind.api_version(),
            kind: kind.kind.clone(),
            resource: kind.plural.clone(),
            name: self.name.clone(),
        }
    }

    /// `shop/a`.
    pub(super) fn text(&self) -> String {
        text(&self.of())
    }
}

/// `shop/a`.
pub(super) fn text(of: &Of) -> String {
    printable(&format!("{}/{}", of.kind.to_lowercase(), of.name))
}

/// Whether a run is of that instance, in any version of its kind.
pub(super) fn is_of(run: &PlanRun, of: &Of) -> bool {
    let group = |of: &Of| of.api_version.split('/').next().unwrap_or_default().to_owned();
    let own = &run.spec.of;
    own.kind == of.kind && own.name == of.name && group(own) == group(of)
}

/// Which run of an instance is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// The active one, else the last one that waits, else the last one.
    Current,
    /// The only one that has not ended.
    Open,
    /// The only one that asks for approval.
    Asking,
    /// The last failed one that no other run of its plan has followed, else the last cancelled one.
    Failed,
}

impl Session {
    /// An instance that exists.
    pub(super) async fn instance(&self, kind: &str, name: &str) -> Result<Instance, Failure> {
        let catalog = self.catalog().await?;
        let kind = catalog.find(kind)?.clone();
        let namespace = kind.served.kind.namespaced.then(|| self.namespace().to_owned());
        let object = self.read(&kind, namespace.as_deref(), name).await?;
        Ok(Instance { namespace, name: name.to_owned(), kind, object })
    }

    /// The runs of one namespace or of all, from the oldest.
    pub(super) async fn all_runs(&self, namespace: Option<&str>) -> Result<Vec<Run>, Failure> {
        let query = Query { namespace, ..Query::default() };
        let objects = self.server.cluster.list_all(&plan_run_kind(), &query, |raw: Raw| raw.body).await;
        let objects = objects
            .map_err(|error| Failure::refused("the PlanRuns cannot be listed", "get, list", None, &error))?;
        let mut runs: Vec<Run> = objects
            .into_iter()
            .map(|mut object| {
                complete(&plan_run_kind(), &mut object);
                Run::new(object)
            })
            .collect::<Result<_, _>>()?;
        sort(&mut runs);
        Ok(runs)
    }

    /// The runs of an instance, from the oldest.
    pub(super) async fn runs(&self, instance: &Instance) -> Result<Vec<Run>, Failure> {
        // The runs of a cluster-scoped instance are in the namespace of its manager.
        let namespace = instance.namespace.as_deref().or(self.given.as_deref());
        let of = instance.of();
        let mut runs = self.all_runs(namespace).await?;
        runs.retain(|run| is_of(&run.run, &of));
        Ok(runs)
    }

    /// The namespace of the next run of an instance.
    pub(super) async fn namespace_of_runs(&self, instance: &Instance) -> Result<String, Failure> {
        if let Some(namespace) = instance.namespace.as_ref().or(self.given.as_ref()) {
            return Ok(namespace.clone());
        }
        let last = self.runs(instance).await?.pop().and_then(|run| run.run.namespace);
        Ok(last.unwrap_or_else(|| MANAGER_NAMESPACE.to_owned()))
    }

    /// A run that exists.
    pub(super) async fn named(&self, namespace: &str, name: &str) -> Result<Run, Failure> {
        let found = self.server.cluster.get(&plan_run_kind(), Some(namespace), name).await;
        let found = found
            .map_err(|error| Failure::refused(&format!("run {name} cannot be read"), "get", None, &error))?;
        match found {
            Some(object) => Run::new(object),
            None => Err(format!(
                "there is no run {name} in namespace {namespace}\n  help: `operetta plan history` lists the runs"
            )
            .into()),
        }
    }

    /// The run, or all runs of the instance.
    pub(super) async fn find_all(&self, target: Target<'_>) -> Result<Vec<Run>, Failure> {
        match target {
            Target::Run(name) => Ok(vec![self.named(self.namespace(), name).await?]),
            Target::Instance(kind, name) => self.runs(&self.instance(kind, name).await?).await,
        }
    }

    /// The run that the command line means.
    pub(super) async fn find(&self, target: Target<'_>, which: Which) -> Result<Run, Failure> {
        match target {
            Target::Run(name) => self.named(self.namespace(), name).await,
            Target::Instance(kind, name) => {
                let instance = self.instance(kind, name).await?;
                let mut runs = self.runs(&instance).await?;
                if which == Which::Failed {
                    let namespace = self.namespace_of_runs(&instance).await?;
                    runs.extend(deleted_rollouts(&instance.object, (&namespace, &instance.of()), &runs));
                    sort(&mut runs);
                }
                choose(runs, which, &instance.text())
            }
        }
    }
}

/// Sorts runs from the oldest.
fn sort(runs: &mut [Run]) {
    // Creation times are whole seconds, so runs of one second are ordered by their start.
    runs.sort_by_cached_key(|Run { run, .. }| {
        let started = run.status.as_ref().and_then(|status| status.started_at.clone());
        (run.created.clone(), started.is_none(), started, run.number(), run.name.clone())
    });
}

/// The rollouts in the history of an instance whose `PlanRun`s are gone: they can be retried all the same.
fn deleted_rollouts(instance: &Value, (namespace, of): (&str, &Of), runs: &[Run]) -> Vec<Run> {
    let history = instance["status"]["history"].as_array().into_iter().flatten();
    let is_gone =
        |run: &&Value| run["cause"] == "Rollout" && runs.iter().all(|known| run["name"] != *known.run.name);
    let run = |run: &Value| {
        let second = |time: &Value| time.as_str()?.parse::<Timestamp>().ok().map(|time| format!("{time:.0}"));
        Run::new(json!({
            "metadata": {
                "name": run["name"], "namespace": namespace,
                "creationTimestamp": second(&run["startedAt"]),
            },
            "spec": {"of": of, "plan": run["plans"][0]},
            "status": run,
        }))
    };
    history.filter(is_gone).filter_map(|gone| run(gone).ok()).collect()
}

/// The run of an instance that is meant. `runs`: from the oldest.
fn choose(mut runs: Vec<Run>, which: Which, instance: &str) -> Result<Run, Failure> {
    let Some(last) = runs.last().map(|run| (run.run.name.clone(), run.run.phase())) else {
        return Err(format!("there is no run of {instance}").into());
    };
    let is_current = |run: &Run| match which {
        Which::Asking => !run.run.questions().is_empty(),
        _ => !run.run.is_final(),
    };
    let mut current: Vec<usize> = (0..runs.len()).filter(|index| is_current(&runs[*index])).collect();
    let index = match which {
        Which::Current => {
            let running = current.iter().rfind(|index| runs[**index].run.phase() == Phase::Running);
            running.or(current.last()).copied().unwrap_or(runs.len() - 1)
        }
        Which::Failed => {
            // One that was not needed any more when its turn came has nothing to go on with.
            let has_started = |run: &Run| run.run.has_started();
            let is_last = |index: &usize, phase: Phase| {
                let plan = &runs[*index].run.spec.plan;
                let is_later = |later: &Run| later.run.spec.plan == *plan && has_started(later);
                let run = &runs[*index];
                run.run.phase() == phase && has_started(run) && !runs[index + 1..].iter().any(is_later)
            };
            let last_of = |phase| (0..runs.len()).rev().find(|index| is_last(index, phase));
            last_of(Phase::Failed).or_else(|| last_of(Phase::Cancelled)).ok_or_else(|| {
                format!(
                    "{instance} has no run to retry: the last one, {}, is {:?}, neither failed nor cancelled",
                    last.0, last.1
                )
            })?
        }
        Which::Open | Which::Asking => match (current.pop(), which) {
            (Some(index), _) if current.is_empty() => index,
            (Some(index), which) => {
                current.push(index);
                let names: Vec<&str> = current.iter().map(|index| runs[*index].run.name.as_str()).collect();
                let mut message =
                    format!("{instance} has several such runs: name one of {}", names.join(", "));
                if which == Which::Asking {
                    let asked = |index: &usize| {
                        let questions: Vec<_> =
                            runs[*index].run.questions().iter().map(|step| step.message.clone()).collect();
                        printable(&format!("  {}: {}", runs[*index].run.name, questions.join("; ")))
                    };
                    let lines: Vec<String> = current.iter().map(asked).collect();
                    let _ = write!(message, ", or add --all\n{}", lines.join("\n"));
                }
                return Err(message.into());
            }
            (None, Which::Asking) => return Err(format!("no run of {instance} asks for approval").into()),
            (None, _) => {
                return Err(format!(
                    "no run of {instance} is active or waits: the last one, {}, is {:?}",
                    last.0, last.1
                )
                .into());
            }
        },
    };
    Ok(runs.swap_remove(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, plan: &str, phase: &str, asks: bool) -> Run {
        let steps = if asks { json!([{"path": "sure", "phase": "Running", "asked": 0}]) } else { json!([]) };
        Run::new(json!({
            "metadata": {"name": name}, "spec": {"of": {"kind": "Shop", "name": "a"}, "plan": plan},
            "status": {"phase": phase, "steps": steps, "startedAt": "2026-01-01T00:00:00Z"},
        }))
        .unwrap()
    }

    #[test]
    fn a_word_names_a_run_or_an_instance() {
        for (word, expected) in [
            ("a-1", Some(Target::Run("a-1"))),
            ("shop/a", Some(Target::Instance("shop", "a"))),
            ("planrun.operetta.dev/a-1", Some(Target::Run("a-1"))),
            ("PlanRuns/a-1", Some(Target::Run("a-1"))),
            ("", None),
            ("/a", None),
            ("shop/", None),
            ("a/b/c", None),
            ("A_1", None),
        ] {
            assert_eq!(Target::parse(word).ok(), expected, "{word}");
        }
        assert!(Target::instance("a-1").is_err());
    }

    #[test]
    fn the_run_of_an_instance_is_chosen_by_its_state() {
        use Which::{Asking, Current, Failed, Open};
        let all = || {
            vec![
                run("a-1", "deploy", "Failed", false),
                run("a-2", "backup", "Failed", false),
                run("a-3", "deploy", "Succeeded", false),
            ]
        };
        let with = |more: &[(&str, &str, bool)]| {
            let more = more.iter().map(|(name, phase, asks)| run(name, "sure", phase, *asks));
            all().into_iter().chain(more).collect::<Vec<_>>()
        };
        let of = |runs: Vec<Run>, which| {
            choose(runs, which, "shop/a").map(|run| run.run.name).map_err(|failure| failure.message)
        };
        assert_eq!(of(all(), Current).unwrap(), "a-3");
        assert_eq!(of(all(), Failed).unwrap(), "a-2");
        let mut unstarted = run("a-9", "backup", "Cancelled", false);
        unstarted.run.status.as_mut().unwrap().started_at = None;
        assert_eq!(of(all().into_iter().chain([unstarted]).collect(), Failed).unwrap(), "a-2");
        assert!(
            of(vec![run("a-3", "deploy", "Succeeded", false)], Failed).unwrap_err().contains("is Succeeded")
        );
        assert!(of(all(), Open).unwrap_err().contains("the last one, a-3, is Succeeded"));
        let waits = [("a-4", "Running", true), ("a-5", "Pending", false)];
        assert_eq!(of(with(&waits), Current).unwrap(), "a-4");
        assert_eq!(of(with(&waits), Asking).unwrap(), "a-4");
        assert!(of(with(&waits), Open).unwrap_err().contains("name one of a-4, a-5"));
        assert_eq!(of(with(&waits[..1]), Open).unwrap(), "a-4");
        assert!(of(with(&waits[1..]), Asking).unwrap_err().contains("no run of shop/a asks"));
        assert!(of(Vec::new(), Current).unwrap_err().contains("there is no run"));
    }

    #[test]
    fn a_failed_rollout_is_chosen_when_its_plan_run_is_gone() {
        let entry = |name: &str, cause: &str, phase: &str, second: u32| {
            json!({"name": name, "plans": ["deploy"], "phase": phase, "cause": cause, "reason": "FailStep",
                "startedAt": format!("2026-01-01T00:00:{second:02}.5Z"), "finishedAt": "2026-01-01T00:01:00Z"})
        };
        let history = [
            entry("a-4", "Rollout", "Failed", 4),
            entry("a-3", "Request", "Failed", 3),
            entry("a-1", "Rollout", "Succeeded", 1),
        ];
        let instance = json!({"metadata": {"name": "a", "namespace": "n"}, "status": {"history": history}});
        let of = Of { kind: "Shop".into(), name: "a".into(), ..Of::default() };
        let gone = deleted_rollouts(&instance, ("n", &of), &[run("a-1", "deploy", "Succeeded", false)]);
        let names: Vec<&str> = gone.iter().map(|gone| gone.run.name.as_str()).collect();
        assert_eq!(names, ["a-4"]);
        let found = choose(gone, Which::Failed, "shop/a").unwrap().run;
        assert_eq!((found.name.as_str(), found.spec.plan.as_str()), ("a-4", "deploy"));
        assert_eq!((found.namespace.as_deref(), found.has_started()), (Some("n"), true));
    }
}

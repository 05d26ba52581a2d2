//! Carries out the steps of a case, each as its user, on the embedded API.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::super::commands;
use super::super::ended::{Failure, failed};
use super::super::steps::{FIELD_MANAGER, approval, asks, judge, request, unmet};
use super::super::suite::{Action, Break, Expect, Step};
use super::super::update::record;
use super::{PATIENCE, Play};
use crate::api::{ApiKind, CallError, Class, Gvk};
use crate::cluster::Propagation;
use crate::diag::Location;
use crate::manager::Config;
use crate::package::test_file::Address;
use crate::plan::plan_run_kind;

/// The user who requests and approves runs.
const USER: &str = "operetta:dev";

impl Play {
    pub(super) async fn steps(&mut self, steps: &[Step]) -> Result<(), Failure> {
        for step in steps {
            self.step(step).await.map_err(|mut failure| {
                failure.location.get_or_insert_with(|| step.location.clone());
                failure
            })?;
            self.grant_pending();
            if !self.faults.refusals().is_empty() {
                self.refused_at.get_or_insert_with(|| step.location.clone());
            }
            self.note();
            self.invariants()?;
        }
        Ok(())
    }

    fn note(&self) {
        self.server.read(|api| self.watcher().note(api));
    }

    /// Does a step as its user.
    async fn step(&mut self, step: &Step) -> Result<(), Failure> {
        let acting = match &step.user {
            Some(user) => self.cluster.acting_as(user),
            None => Ok(self.cluster.clone()),
        };
        let acting = acting.map_err(|error| failed(&step.location, error.to_string()))?;
        let itself = std::mem::replace(&mut self.cluster, acting);
        let done = self.act(step).await;
        self.cluster = itself;
        done
    }

    async fn act(&mut self, step: &Step) -> Result<(), Failure> {
        let at = &step.location;
        let user = step.user.as_deref().unwrap_or(USER);
        let done = match &step.action {
            Action::Apply(objects) => {
                let mut done = Ok(());
                for object in objects {
                    done = self.apply(&object.value, at).await?;
                    if done.is_err() {
                        break;
                    }
                }
                done
            }
            Action::Patch(address, patch) => {
                let (kind, namespace) = self.kind(address, at).await?;
                let namespace = namespace.as_deref();
                self.cluster
                    .merge_patch(&kind, namespace, &address.name, None, patch, FIELD_MANAGER)
                    .await
                    .map(drop)
            }
            Action::Delete(address) => {
                let (kind, namespace) = self.kind(address, at).await?;
                let namespace = namespace.as_deref();
                let (mut changes, deadline) = (self.server.changes(), Instant::now() + PATIENCE);
                loop {
                    changes.mark_unchanged();
                    let found = self.cluster.get(&kind, namespace, &address.name).await;
                    let Some(object) = found.map_err(|error| failed(at, error.to_string()))? else {
                        // A disturbance may have killed it, and it comes back.
                        if self.faults.is_mourning() {
                            self.turn(&mut changes, deadline, at).await?;
                            continue;
                        }
                        return Err(failed(at, format!("there is no {} {}", address.kind, address.name)));
                    };
                    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
                    let version = (text("uid"), text("resourceVersion"));
                    let deletion = self.cluster.delete(
                        &kind,
                        namespace,
                        &address.name,
                        version,
                        Propagation::Background,
                    );
                    match deletion.await {
                        // It has been written in between.
                        Err(error) if error.class == Class::Conflict && Instant::now() < deadline => {}
                        done => break done.map(drop),
                    }
                }
            }
            Action::Run { plan, params, of } => {
                self.run((plan, params.as_ref(), user), of.as_ref(), at).await?
            }
            Action::Approve { plan, of } => self.approve((plan, user), of.as_ref(), at).await?,
            Action::Exec(command) => return commands::run(&self.cluster, command, at).await,
            Action::Expect(expect) => return self.expect(expect, at).await,
            Action::Wait(length) => {
                let end = Instant::now() + *length;
                let mut changes = self.server.changes();
                while Instant::now() < end {
                    self.turn(&mut changes, end, at).await?;
                }
                return Ok(());
            }
            Action::Break(Break::Commands(fault)) => {
                self.faults.add_commands(fault.clone(), at);
                return Ok(());
            }
            Action::Break(Break::Requests(fault)) => {
                self.faults.add_requests(fault.clone(), at);
                return Ok(());
            }
            Action::RestartManager => return self.start_manager(at).await,
            Action::Upgrade(package) => {
                if let Some(manager) = self.manager.take() {
                    manager.stop().await;
                }
                self.packages[0] = Arc::clone(package);
                self.watcher().set_packages(&self.packages);
                self.grant(package, at).await?;
                return self.start_manager(at).await;
            }
        };
        judge(done, step.refused.as_deref(), at)
    }

    /// A kind. That of a package may come later, if a request of the manager has failed.
    async fn served(&mut self, gvk: &Gvk, at: &Location) -> Result<Arc<ApiKind>, Failure> {
        let (mut changes, deadline) = (self.server.changes(), Instant::now() + PATIENCE);
        loop {
            changes.mark_unchanged();
            let found = self.discovered.find(&self.cluster, gvk).await;
            if let Some(kind) = found.map_err(|error| failed(at, error.to_string()))? {
                if self.watcher().kinds().api_version(&gvk.kind).is_none() {
                    self.discover(at).await?;
                }
                return Ok(kind);
            }
            let is_ours = self.packages.iter().flat_map(|package| &package.resources);
            let is_ours = { is_ours }.any(|resource| resource.kind.kind == *gvk.kind);
            if !is_ours || Instant::now() >= deadline {
                return Err(failed(
                    at,
                    format!("the API server serves no {} of {}", gvk.kind, gvk.api_version),
                ));
            }
            self.turn(&mut changes, deadline, at).await?;
        }
    }

    /// The kind of an address, and its namespace if the kind has one.
    async fn kind(
        &mut self,
        address: &Address,
        at: &Location,
    ) -> Result<(Arc<ApiKind>, Option<String>), Failure> {
        let api_version = self.watcher().kinds().api_version(&address.kind).map(str::to_owned);
        let Some(api_version) = api_version else {
            return Err(failed(at, format!("the API server serves no kind {}", address.kind)));
        };
        let kind = self.served(&Gvk::new(api_version, address.kind.as_str()), at).await?;
        let namespace = kind.namespaced.then(|| address.namespace.clone());
        Ok((kind, namespace))
    }

    /// Applies an object, in the namespace `default` if it names none.
    async fn apply(&mut self, object: &Value, at: &Location) -> Result<Result<(), CallError>, Failure> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let gvk = Gvk::new(text(&object["apiVersion"]), text(&object["kind"]));
        let kind = self.served(&gvk, at).await?;
        let mut object = object.clone();
        if kind.namespaced && object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = "default".into();
        }
        let applied = match self.cluster.apply(&kind, &object, FIELD_MANAGER, true).await {
            Ok(applied) => applied,
            Err(error) => return Ok(Err(error)),
        };
        self.watcher().note_applied(&kind, &applied);
        Ok(Ok(()))
    }

    async fn run(
        &mut self,
        run: (&str, Option<&Value>, &str),
        of: Option<&Address>,
        at: &Location,
    ) -> Result<Result<(), CallError>, Failure> {
        let address = self.watcher().instance(of, at)?;
        let (kind, namespace) = self.kind(&address, at).await?;
        let namespace = namespace.unwrap_or_else(|| Config::default().namespace);
        let body = request(&kind, (&namespace, &address.name), run);
        let runs = plan_run_kind();
        Ok(self.cluster.create(&runs, Some(&namespace), &body, FIELD_MANAGER).await.map(drop))
    }

    /// Approves the first question of the newest run of a plan, as soon as there is one.
    async fn approve(
        &mut self,
        (plan, user): (&str, &str),
        of: Option<&Address>,
        at: &Location,
    ) -> Result<Result<(), CallError>, Failure> {
        let address = self.watcher().instance(of, at)?;
        let (mut changes, deadline) = (self.server.changes(), Instant::now() + PATIENCE);
        loop {
            changes.mark_unchanged();
            let found =
                self.server.read(|api| self.watcher().find_run(api, |run| asks(run, plan, &address.name)));
            let is_late = Instant::now() >= deadline;
            if let Some(run) = found {
                let (kind, patch) = (plan_run_kind(), approval(&run, user));
                let meta = &run["metadata"];
                let (namespace, name) =
                    (meta["namespace"].as_str(), meta["name"].as_str().unwrap_or_default());
                let patched = self.cluster.merge_patch(&kind, namespace, name, None, &patch, FIELD_MANAGER);
                match patched.await {
                    // The manager has written meanwhile.
                    Err(error) if error.class == Class::Conflict && !is_late => {}
                    done => return Ok(done.map(drop)),
                }
            } else if is_late {
                let message = format!("no run of plan {plan} has asked within {} s", PATIENCE.as_secs());
                return Err(failed(at, message));
            } else {
                self.turn(&mut changes, deadline, at).await?;
            }
        }
    }

    async fn expect(&mut self, expect: &Expect, at: &Location) -> Result<(), Failure> {
        let deadline = Instant::now() + expect.within;
        let mut changes = self.server.changes();
        let mut since: Option<Instant> = None;
        let (mut problems, mut seen) = (Vec::new(), None);
        loop {
            changes.mark_unchanged();
            self.invariants()?;
            self.server.read(|api| {
                let watcher = self.watcher();
                if seen != Some(watcher.version(api)) {
                    problems = watcher.problems(expect, api);
                    seen = Some(watcher.version(api));
                }
            });
            let now = Instant::now();
            let is_over = now >= deadline && since.is_none() && !problems.is_empty();
            if let Some(edits) = self.edits.as_mut().filter(|_| is_over) {
                problems.retain(|problem| !record(problem, edits));
                if problems.is_empty() {
                    return Ok(());
                }
            }
            let next = if problems.is_empty() {
                let since = *since.get_or_insert(now);
                if now >= since + expect.holds_for {
                    return Ok(());
                }
                since + expect.holds_for
            } else {
                if now >= deadline || since.is_some() {
                    let length = |of: Duration| crate::package::plan::written_duration(of);
                    let message = match since {
                        Some(since) => {
                            format!("it held for {} of {}", length(now - since), length(expect.holds_for))
                        }
                        None => format!("it does not hold within {}", length(expect.within)),
                    };
                    let repeating = self.repeating().map(|why| format!("; meanwhile, {why}"));
                    return Err(unmet(
                        format!(
                            "{message}, {} after the start{}",
                            self.passed(),
                            repeating.unwrap_or_default()
                        ),
                        &problems,
                        at,
                    ));
                }
                deadline
            };
            self.turn(&mut changes, next, at).await?;
        }
    }
}

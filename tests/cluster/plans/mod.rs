//! Plans as users see them: instances, `PlanRun`s and `operetta plan` against a manager in its own process,
//! with Jobs that end as their annotations say, commands that run on this machine, and a scripted HTTP API.

mod calls;
mod cleanup;
mod cluster_scoped;
mod commands;
mod harness;
mod jobs;
mod kudo;
mod leftovers;
mod own;
mod primary;
mod restore;
mod rights;
mod rollouts;
mod rules;
mod steps;
mod triggers;
mod upgrades;

use std::ops::Deref;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::barrier::Address;
use crate::support::ext::{Kind, Scene, kind, run_shared, watching};
use crate::support::plans::{Api, LOOPBACK, with_api};
use crate::support::{Operetta, plane};

pub(crate) const PROCEDURE: Kind = kind("fixtures.operetta.dev/v1", "procedures");
pub(crate) const CALLER: Kind = kind("fixtures.operetta.dev/v1", "callers");
pub(crate) const FLEET: Kind = kind("fixtures.operetta.dev/v1", "fleets");
pub(crate) const DATABASE: Kind = kind("fixtures.operetta.dev/v1", "databases");
pub(crate) const DESK: Kind = kind("fixtures.operetta.dev/v1", "desks");
pub(crate) const ROOM: Kind = kind("fixtures.operetta.dev/v1", "rooms");
pub(crate) const CONTINENT: Kind = kind("fixtures.operetta.dev/v1", "continents");
pub(crate) const HALL: Kind = kind("fixtures.operetta.dev/v1", "halls");

/// The packages of the shared manager; `plans-cleanup` has two kinds.
const PACKAGES: [&str; 6] =
    ["plans-steps", "plans-calls", "plans-rollouts", "plans-rules", "plans-primary", "plans-cleanup"];

/// The HTTP API that the packages call.
pub(crate) fn api() -> &'static Api {
    static API: OnceLock<Api> = OnceLock::new();
    API.get_or_init(Api::start)
}

static MANAGER: OnceCell<Mutex<Operetta>> = OnceCell::const_new();

/// A namespace handled by the shared manager of plans. If the test fails, the manager's output about the
/// namespace is shown.
pub(crate) struct Stage(Scene);

impl Deref for Stage {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.0
    }
}

impl Stage {
    pub(crate) async fn new() -> Self {
        MANAGER
            .get_or_init(async || {
                let copies: Vec<_> = PACKAGES
                    .iter()
                    .map(|name| with_api(Path::new(&crate::support::ext::fixture(name)), api()))
                    .collect();
                let folders: Vec<&str> =
                    copies.iter().map(|copy| copy.path().to_str().expect("UTF-8")).collect();
                let flags = ["--leader-elect=false", "--leader-elect-resource-name=plans", LOOPBACK];
                let mut manager = run_shared(plane().await, &flags, &folders).await;
                watching(&mut manager, PACKAGES.len() + 1).await;
                // The manager has loaded the packages.
                drop(copies);
                Mutex::new(manager)
            })
            .await;
        Self(Scene::unmanaged().await)
    }

    /// The address at which the manager serves its state.
    pub(crate) fn address() -> Address {
        let manager = MANAGER.get().expect("it runs").lock().unwrap_or_else(PoisonError::into_inner);
        Address::of(&manager)
    }

    /// Creates an instance.
    pub(crate) async fn create(&self, kind: (&str, Kind), name: &str, spec: Value) {
        self.apply(&instance(kind, name, spec).to_string()).await;
    }

    /// Creates an instance, and waits until it is Ready.
    pub(crate) async fn ready_with(&self, kind: (&str, Kind), name: &str, spec: Value) -> Value {
        self.create(kind, name, spec).await;
        self.ready(kind.1, name).await
    }

    /// Changes the spec of an instance.
    pub(crate) async fn edit(&self, kind: Kind, name: &str, spec: Value) {
        self.patch(kind, name, "merge", &json!({"spec": spec})).await;
    }

    /// Creates a `ConfigMap` that a plan waits for.
    pub(crate) async fn flag(&self, name: &str, data: Value) {
        let flag = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
        self.apply(&flag.to_string()).await;
    }

    /// The manager's log lines about the namespace, and its errors.
    pub(crate) fn log(&self) -> String {
        let Some(manager) = MANAGER.get() else { return String::new() };
        let output = manager.lock().unwrap_or_else(PoisonError::into_inner).output();
        let about = format!("/{}/", self.namespace());
        let says = |line: &&str| line.contains(&about) || line.contains("ERROR") || line.contains("panic");
        output.lines().filter(says).collect::<Vec<_>>().join("\n")
    }

    /// The path under which the HTTP API keeps an instance's items.
    pub(crate) fn items(&self, name: &str) -> String {
        format!("/{}/{name}/items", self.namespace())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        eprintln!(
            "the manager about {}:\n{}",
            self.namespace(),
            lines[lines.len().saturating_sub(40)..].join("\n")
        );
    }
}

pub(crate) fn instance((kind, plural): (&str, Kind), name: &str, spec: Value) -> Value {
    json!({"apiVersion": plural.api_version(), "kind": kind, "metadata": {"name": name}, "spec": spec})
}

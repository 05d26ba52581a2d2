//! Plans as users see them: instances and `PlanRun`s,
//! with Jobs that end as their annotations say, commands that run on this machine, and a scripted HTTP API.

mod calls;
mod cleanup;
mod cluster_scoped;
mod commands;
mod harness;
mod jobs;
mod kills;
mod kudo;
mod leftovers;
mod own;
mod primary;
mod restore;
mod rights;
mod rollouts;
mod rules;
mod schedules;
mod steps;
mod triggers;
mod upgrades;

use std::ops::Deref;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::support::plans::{Api, LOOPBACK, PLAN_RUN, copy_with_api};
pub(crate) use crate::support::{DESK, PROCEDURE};
use crate::support::{Kind, LONG, POD, Scene, Shared, eventually, fixture, kind, lasting_folder, name_of};

pub(crate) const CALLER: Kind = kind("fixtures.operetta.dev/v1", "callers");
pub(crate) const FLEET: Kind = kind("fixtures.operetta.dev/v1", "fleets");
pub(crate) const DATABASE: Kind = kind("fixtures.operetta.dev/v1", "databases");
pub(crate) const ROOM: Kind = kind("fixtures.operetta.dev/v1", "rooms");
pub(crate) const CONTINENT: Kind = kind("fixtures.operetta.dev/v1", "continents");
pub(crate) const HALL: Kind = kind("fixtures.operetta.dev/v1", "halls");

/// The manager of these packages; `plans-cleanup` has two kinds.
static MANAGER: Shared =
    Shared::new(None, &["--leader-elect=false", "--leader-elect-resource-name=plans", LOOPBACK], packages, 7);

fn packages() -> Vec<String> {
    static COPIES: LazyLock<Vec<String>> = LazyLock::new(|| {
        let names =
            ["plans-steps", "plans-calls", "plans-rollouts", "plans-rules", "plans-primary", "plans-cleanup"];
        let copies = names.iter().map(|name| {
            let copy = lasting_folder(name);
            copy_with_api(Path::new(&fixture(name)), &copy, api());
            copy.to_str().expect("UTF-8").to_owned()
        });
        copies.collect()
    });
    COPIES.clone()
}

/// The HTTP API that the packages call.
pub(crate) fn api() -> &'static Api {
    Api::shared()
}

/// A namespace handled by the manager of plans.
pub(crate) struct Stage(Scene);

impl Deref for Stage {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.0
    }
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self(Scene::managed(&MANAGER).await)
    }

    /// A stage with an instance that is Ready.
    pub(crate) async fn with(kind: (&str, Kind), name: &str, spec: Value) -> Self {
        let stage = Self::new().await;
        stage.ready_with(kind, name, spec).await;
        stage
    }

    /// A stage whose API processes reach.
    pub(crate) async fn with_commands() -> Self {
        Self(Scene::served(&MANAGER).await)
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

    /// Removes the status of a run. Another client may write it meanwhile.
    pub(crate) async fn wipe(&self, run: &str) {
        eventually("a wiped status", LONG, async || {
            let mut run = self.get(PLAN_RUN, run).await;
            run.as_object_mut().expect("a map").remove("status");
            self.kubectl_input(&["replace", "--subresource=status", "-f", "-"], &run.to_string()).await
        })
        .await;
    }

    /// Waits until this many pods of Jobs run. Returns their names.
    pub(crate) async fn running_pods(&self, count: usize) -> Vec<String> {
        eventually("the pods of Jobs to run", LONG, async || {
            let mut pods = self.list(POD).await;
            pods.retain(|pod| {
                pod["metadata"]["labels"]["batch.kubernetes.io/job-name"].is_string()
                    && pod["status"]["phase"] == "Running"
            });
            let names: Vec<String> = pods.iter().map(|pod| name_of(pod).to_owned()).collect();
            if names.len() == count { Ok(names) } else { Err(format!("{names:?}")) }
        })
        .await
    }

    /// The path under which the HTTP API keeps an instance's items.
    pub(crate) fn items(&self, name: &str) -> String {
        format!("/{}/{name}/items", self.namespace())
    }
}

pub(crate) fn instance((kind, plural): (&str, Kind), name: &str, spec: Value) -> Value {
    json!({"apiVersion": plural.api_version(), "kind": kind, "metadata": {"name": name}, "spec": spec})
}

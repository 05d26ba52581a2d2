//! What a manager does about the Operators of a cluster, made as from Git: packages come, change their revision, are refused and go.
//! What the commands `install`, `upgrade`, `rollback` and `uninstall` do: `tests/planes/operators`.

mod handover;
mod life;
mod migration;
mod refused;
mod removal;
mod runs;
mod settings;
mod stages;
mod stored;

use std::sync::Arc;

use operetta::manager::{Config, Manager};
use tokio::sync::OnceCell;

use crate::support::faults::{Fault, Life, Rule, WRITES, Wire};
use crate::support::operators::{Cluster, MANAGERS};
use crate::support::{ControlPlane, is_all_real, own_plane_of_tests};

impl Cluster {
    /// A cluster of one test.
    async fn start() -> Self {
        Self::on(own_plane_of_tests().await).await
    }

    /// A cluster of a test that neither stops the manager nor changes what others rely on. Real ones are shared.
    async fn shared() -> Arc<Self> {
        static SHARED: OnceCell<Arc<Cluster>> = OnceCell::const_new();
        let start = async || Arc::new(Self::start().await);
        if is_all_real() { Arc::clone(SHARED.get_or_init(start).await) } else { start().await }
    }
}

/// A manager in this process whose connection a test can cut.
struct Process {
    manager: Manager,
    life: Life,
}

async fn start(wire: &Wire, plane: &ControlPlane) -> Option<Process> {
    let (cluster, life) = wire.connect(plane).await;
    let config = Config { namespace: MANAGERS.into(), follows_operators: true, ..Config::default() };
    let manager = tokio::select! {
        () = life.over() => return None,
        manager = Manager::start(cluster, Vec::new(), config) => manager.expect("it starts"),
    };
    Some(Process { manager, life })
}

/// Runs a manager until it ends at its kth write, or until `done`. Returns whether it has ended.
async fn dies_at(k: usize, wire: &Wire, plane: &ControlPlane, done: impl AsyncFnOnce()) -> bool {
    let fault = if k % 2 == 1 { Fault::DieBefore } else { Fault::DieAfter };
    wire.rule(Rule::on(WRITES, fault).skip(k - 1).times(1));
    let mut died = true;
    if let Some(process) = start(wire, plane).await {
        died = tokio::select! {
            () = process.life.over() => true,
            () = done() => false,
        };
        process.life.end();
        drop(process.manager);
    }
    wire.heal();
    died
}

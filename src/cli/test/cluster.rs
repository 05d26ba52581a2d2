//! `operetta test --cluster local` and `current`.

use std::sync::Arc;

use clap::ValueEnum;
use tokio::runtime::Runtime;

use crate::cli::signals::Signals;
use crate::cli::{connect, dev, out};
use crate::cluster::Cluster;
use crate::local::{self, ControlPlane};
use crate::package::Package;
use crate::play::{Ended, Ground, Ours, Suite};

/// Which API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Which {
    /// A model of one in this process, in virtual time
    Embedded,
    /// A control plane on this machine, removed afterwards
    Local,
    /// The kubeconfig's current context; what the tests create is removed afterwards
    Current,
}

/// A control plane on which cases are played in real time.
pub(super) struct Place {
    runtime: Runtime,
    cluster: Cluster,
    plane: Option<ControlPlane>,
    user: String,
    /// Whether the user has asked to stop.
    pub is_interrupted: bool,
}

impl Place {
    /// Connects to a control plane, or starts one; `None` if cases are played in this process.
    pub(super) fn open(which: Which) -> Result<Option<Self>, String> {
        if which == Which::Embedded {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no threads can be started: {error}"))?;
        let (cluster, plane, user) = runtime.block_on(async {
            let (cluster, plane) = if which == Which::Local {
                let options =
                    local::Options { nodes: 1, progress: dev::progress(), ..local::Options::default() };
                let plane = ControlPlane::start(options).await.map_err(|error| error.to_string())?;
                let cluster = Cluster::of_kubeconfig(plane.kubeconfig_path()).await;
                (cluster.map_err(|error| error.to_string())?, Some(plane))
            } else {
                let server = connect::connect().await?;
                out::note(format!("context {}, {}", server.context, server.address));
                (server.cluster, None)
            };
            let user = connect::user(&cluster).await?;
            Ok::<_, String>((cluster, plane, user))
        })?;
        Ok(Some(Self { runtime, cluster, plane, user, is_interrupted: false }))
    }

    /// Plays cases one after another.
    pub(super) fn play(
        &mut self,
        package: &Arc<Package>,
        suites: &[Suite],
        selected: &[(usize, usize)],
        ended: impl Fn(&Ended),
    ) -> Result<Vec<Ended>, String> {
        let packages: Vec<Arc<Package>> =
            suites.iter().flat_map(|suite| suite.packages.iter().cloned()).collect();
        let (cluster, is_local) = (&self.cluster, self.plane.is_some());
        let mut ground = Ground::new(cluster.clone(), is_local, self.user.clone());
        let (played, is_interrupted) = self.runtime.block_on(async {
            let mut signals = Signals::new()?;
            // Nobody else uses a control plane of our own.
            let ours = if is_local { None } else { Some(Ours::of(cluster, &packages).await?) };
            let (mut all, mut is_interrupted) = (Vec::new(), false);
            for place in selected {
                let played = tokio::select! {
                    played = ground.play(suites, *place) => played,
                    () = signals.next() => {
                        is_interrupted = true;
                        break;
                    }
                };
                ended(&played);
                all.push(played);
            }
            let left = ground.end(&package.location).await;
            left.map_err(|failure| failure.to_string())?;
            if let Some(ours) = ours {
                let removed = ours.remove(cluster).await;
                removed.map_err(|error| format!("not all is removed: {error}"))?;
            }
            Ok::<_, String>((all, is_interrupted))
        })?;
        self.is_interrupted = is_interrupted;
        Ok(played)
    }

    /// Ends a control plane of our own.
    pub(super) fn close(self) {
        if let Some(plane) = self.plane {
            self.runtime.block_on(plane.stop());
        }
        self.runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    }
}

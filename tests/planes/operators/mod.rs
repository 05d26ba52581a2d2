//! Packages that are installed in the cluster by commands, which are processes: `install`, `upgrade`, `rollback`, `uninstall`; from
//! registries, which listen on loopback; and with the rights that a real server decides about. What a manager does about Operators,
//! however these were made, is in `tests/engine/operators`.

mod changes;
mod dependencies;
mod grants;
mod handover;
mod kills;
mod life;
mod refused;
mod registries;
mod releases;
mod removal;
mod review;
mod rightless;
mod sources;
mod stages;
mod tenants;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::Value;
use tokio::sync::OnceCell;

pub(crate) use crate::support::operators::{
    Cluster, GROUP, MANAGERS, Package, Part, SIZE, instance, is_active, kind_named, kind_of, scene,
};
use crate::support::{self, OPERATOR, Output, REVISION, own_embedded_plane, own_plane, rights, says};

/// A [`Cluster`] with the kubeconfig of its manager's account.
struct OfAccount {
    cluster: Cluster,
    kubeconfig: PathBuf,
}

impl Cluster {
    async fn start() -> Self {
        Self::on(own_embedded_plane().await).await
    }

    /// The cluster that tests share. Each test has packages of its own.
    async fn shared() -> &'static Self {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    /// The cluster with a real control plane that tests share.
    async fn real() -> &'static Self {
        static REAL: OnceCell<Cluster> = OnceCell::const_new();
        REAL.get_or_init(async || Self::on(own_plane().await).await).await
    }

    /// The cluster with a real control plane that tests share whose manager has no rights but those of its account.
    async fn of_account() -> &'static OfAccount {
        static OF_ACCOUNT: OnceCell<OfAccount> = OnceCell::const_new();
        let start = async || {
            let plane = own_plane().await;
            let kubeconfig = rights::manager(&plane).await;
            let manager = Mutex::new(rights::run_operators(&plane, &kubeconfig).await);
            OfAccount { cluster: Self { plane, manager }, kubeconfig }
        };
        OF_ACCOUNT.get_or_init(start).await
    }

    /// Runs `operetta`.
    async fn operetta(&self, args: &[&str]) -> Output {
        support::operetta(self.plane.kubeconfig_path(), args).await
    }

    /// The exit code and all output of a command.
    async fn told(&self, args: &[&str]) -> (i32, String) {
        let output = self.operetta(args).await;
        (output.status.code().unwrap(), format!("{}{}", output.stdout, output.stderr))
    }

    async fn install(&self, package: &Package) {
        self.operetta(&["install", package.folder()]).await.ok();
    }

    /// Does the same as [`Self::install`]. Returns the package.
    async fn installed(&self, package: Package) -> Package {
        self.install(&package).await;
        package
    }
}

impl Package {
    /// The name of its revision, from the output of `install --dry-run`.
    async fn revision(&self) -> String {
        let objects = self.printed().await;
        let operator = objects.iter().find(|object| object["kind"] == "Operator").unwrap();
        operator["spec"]["revision"].as_str().unwrap().to_owned()
    }

    /// The objects that `install --dry-run` prints for kubectl.
    async fn printed(&self) -> Vec<Value> {
        let args = ["install", self.folder(), "--dry-run", "-o", "json"];
        let text = support::operetta(Path::new("/nowhere"), &args).await.ok();
        let list: Value = serde_json::from_str(&text).unwrap();
        list["items"].as_array().unwrap().clone()
    }
}

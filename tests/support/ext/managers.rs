//! Managers that tests share, and managers of a test.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::{LONG, fixture, make_account};
use crate::support::{ControlPlane, Operetta, etcd, plane_of_tests, rights};

/// A manager that tests share. Each test in virtual time has one of its own.
#[derive(Debug)]
pub struct Shared {
    flags: &'static [&'static str],
    /// The folders of the packages: they must exist as long as the manager runs, which reads changed files again.
    packages: fn() -> Vec<String>,
    /// How many kinds the packages have.
    kinds: usize,
    /// The name of its account in `kube-system`, and what [`make_account`] allows it; without one it is the admin.
    account: Option<(&'static str, &'static str)>,
    pub(super) running: OnceCell<Mutex<Operetta>>,
}

impl Shared {
    /// A manager of these packages, which have so many kinds. Its account, if it has one, has few rights: see [`make_account`].
    pub const fn new(
        account: Option<(&'static str, &'static str)>,
        flags: &'static [&'static str],
        packages: fn() -> Vec<String>,
        kinds: usize,
    ) -> Self {
        Self { flags, packages, kinds, account, running: OnceCell::const_new() }
    }

    pub(super) async fn start(&self, plane: &Arc<ControlPlane>) -> Operetta {
        let packages = (self.packages)();
        let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
        let manager = match self.account {
            None => run_shared(plane, self.flags, &packages).await,
            Some((name, core)) => {
                make_account(plane, name, core).await;
                let args = [&["run"][..], self.flags, &packages[..]].concat();
                Operetta::run_as_account(plane, "kube-system", name, &args).await
            }
        };
        manager.watching(self.kinds).await
    }

    /// The control plane of the test, with this manager.
    pub(super) async fn plane(&'static self) -> Arc<ControlPlane> {
        let plane = plane_of_tests().await;
        if !plane.is_in_thread() {
            self.running.get_or_init(async || Mutex::new(self.start(&plane).await)).await;
        } else if plane.with_manager(Some(self), |_| ()).is_none() {
            plane.keep(self, self.start(&plane).await);
        }
        plane
    }
}

/// The packages of most tests: `places` has two kinds, `etcd` three.
pub(super) static MANAGER: Shared = Shared::new(None, &[], packages, 16 + 3);

fn packages() -> Vec<String> {
    let first = "broken-render claims echo figures frozen gates light neighbours";
    let second = "netpol ordered places routes stones trial";
    let mut folders: Vec<String> = first.split(' ').chain(second.split(' ')).map(fixture).collect();
    folders.extend([etcd::package().to_owned(), "operators/webapp".to_owned()]);
    folders
}

/// Whether shared managers and their packages have only the derived rights. A package can then neither bind a
/// role whose rights it lacks, nor try to bind a role that does not exist.
pub fn has_derived_rights() -> bool {
    std::env::var_os("OPERETTA_TEST_IMPERSONATE").is_some()
}

/// Starts a manager that tests share. See [`has_derived_rights`].
async fn run_shared(plane: &ControlPlane, flags: &[&str], packages: &[&str]) -> Operetta {
    if !has_derived_rights() {
        return run_flags(plane, flags, packages);
    }
    let folders: Vec<String> = packages.iter().map(|package| folder(package)).collect();
    let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
    let kubeconfig = rights::manager(plane).await;
    // A test creates this namespace itself; no Role can exist in it before.
    let is_possible = |object: &Value| object["metadata"]["namespace"] != "trial-elsewhere";
    rights::grant(plane, &folders, |objects| objects.retain(is_possible)).await;
    rights::run_flags(plane, &kubeconfig, flags, &folders)
}

/// The folder of a package, which may be the name of a fixture.
fn folder(package: &str) -> String {
    if package.contains('/') { package.to_owned() } else { fixture(package) }
}

/// Starts `operetta run` with these packages: folders, or names of fixtures.
pub fn run(plane: &ControlPlane, packages: &[&str]) -> Operetta {
    run_flags(plane, &[], packages)
}

/// Like [`run`], as a manager with this name. Managers of different packages on one control plane need
/// different names: each reports instances whose package was managed under its name before.
pub fn run_as(name: &str, plane: &ControlPlane, packages: &[&str]) -> Operetta {
    run_flags(plane, &["--leader-elect=false", &format!("--leader-elect-resource-name={name}")], packages)
}

/// Like [`run`], with flags.
pub fn run_flags(plane: &ControlPlane, flags: &[&str], packages: &[&str]) -> Operetta {
    let mut args = vec!["run".to_owned()];
    args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    args.extend(packages.iter().map(|package| folder(package)));
    Operetta::run(plane, &args.iter().map(String::as_str).collect::<Vec<_>>())
}

impl Operetta {
    /// Waits until it watches the instances of this many kinds. Returns it.
    pub async fn watching(mut self, kinds: usize) -> Self {
        let started = Instant::now();
        while self.output().matches("watching instances").count() < kinds {
            assert!(
                started.elapsed() < LONG,
                "it does not watch {kinds} kinds; its output:\n{}",
                self.output()
            );
            // Panics if the manager has ended.
            self.wait_for("", LONG).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self
    }
}

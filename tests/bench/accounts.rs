//! The cost of accounts for packages (`--impersonate`).

use std::fmt;
use std::sync::Arc;

use crate::support::ControlPlane;
use operetta::package::Package;
use operetta::rights::{MANAGER, role};
use serde::Serialize;
use serde_json::json;

use crate::report::median;
use crate::rounds::{Bench, ManagerRound, arguments, per_second};
use crate::support::rights::{SYSTEM, apply, grant, manager};
use crate::{Result, package_folder};

/// The account of the manager that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// An administrator, for whom the API server evaluates no rules.
    Admin,
    /// The manager's account, which also has the rights of the package.
    Own,
    /// The manager's account, which impersonates the account of the package.
    Acting,
}

/// One round with each account.
#[derive(Debug, Serialize)]
struct Round {
    admin: ManagerRound,
    own: ManagerRound,
    acting: ManagerRound,
}

/// The results of all rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Accounts {
    instances: usize,
    backlog: Vec<Round>,
    arriving: Vec<Round>,
}

/// Runs the measurement. The cost of impersonation is the difference between the manager's account with the
/// rights of the package and the same account when it impersonates the package's: in both cases the API
/// server evaluates rules.
pub(crate) async fn run(
    plane: &ControlPlane,
    package: &Arc<Package>,
    instances: usize,
    rounds: usize,
    concurrency: usize,
) -> Result<Accounts> {
    let admin = Bench::new(plane, package, concurrency)?;
    let kubeconfig = manager(plane).await;
    grant(plane, &[package_folder().to_str().unwrap_or_default()], |_| {}).await;
    let own_rights = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "own-rights"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role(&package.name)},
        "subjects": [{"kind": "ServiceAccount", "namespace": SYSTEM, "name": MANAGER}],
    });
    apply(plane, &[own_rights]).await;
    let of_account = Bench { kubeconfig, ..Bench::new(plane, package, concurrency)? };
    let [command, folder] = arguments();
    let plain = [command, folder, "--namespace", SYSTEM];
    let acting = [&plain[..], &["--impersonate"]].concat();
    // It registers the CRD, which the instances need.
    drop(admin.manager_of(&plain).await?);
    let mut result = Accounts { instances, backlog: Vec::new(), arriving: Vec::new() };
    // The first round only warms up the server.
    for round in 0..=rounds {
        for what in ["backlog", "arriving"] {
            let measure = async |way: Way| -> Result<ManagerRound> {
                let (bench, arguments) = match way {
                    Way::Admin => (&admin, &plain[..]),
                    Way::Own => (&of_account, &plain[..]),
                    Way::Acting => (&of_account, &acting[..]),
                };
                let namespace = format!("{what}-{way:?}-{round}").to_lowercase();
                bench.bare.create_namespace(&namespace).await?;
                let measured = match what {
                    "backlog" => bench.started_late(&namespace, instances, arguments).await?,
                    _ => bench.arriving(&namespace, instances, arguments).await?,
                };
                eprintln!("{namespace}: {:.1} instances/s", per_second(instances, measured.all));
                Ok(measured)
            };
            // Alternate the order, because each measurement affects the next one.
            let round_of = if round % 2 == 0 {
                let (admin, own) = (measure(Way::Admin).await?, measure(Way::Own).await?);
                Round { admin, own, acting: measure(Way::Acting).await? }
            } else {
                let (acting, own) = (measure(Way::Acting).await?, measure(Way::Own).await?);
                Round { acting, own, admin: measure(Way::Admin).await? }
            };
            if round > 0 {
                if what == "backlog" { result.backlog.push(round_of) } else { result.arriving.push(round_of) }
            }
        }
    }
    Ok(result)
}

/// CPU seconds of the manager and the API server with its etcd, until the manager is idle.
fn cpu(round: &ManagerRound) -> f64 {
    let of = |cpu: &crate::measure::Cpu| cpu.manager + cpu.apiserver + cpu.etcd;
    of(&round.cpu) + of(&round.trailing_cpu)
}

impl fmt::Display for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} instances. The manager is an administrator; an account with the rights of the package; the same, which acts as the \
             account of the package",
            self.instances
        )?;
        let rate = |round: &ManagerRound| per_second(self.instances, round.all);
        for (what, rounds) in [("backlog", &self.backlog), ("arriving", &self.arriving)] {
            for Round { admin, own, acting } in rounds {
                writeln!(
                    f,
                    "{what:<9} {:>6.1} {:>6.1} {:>6.1} instances/s, {:>5.2} {:>5.2} {:>5.2} CPU s",
                    rate(admin),
                    rate(own),
                    rate(acting),
                    cpu(admin),
                    cpu(own),
                    cpu(acting)
                )?;
            }
            let of = |value: &dyn Fn(&Round) -> f64| median(rounds.iter().map(value).collect());
            writeln!(
                f,
                "{what:<9} medians: impersonation {:.3} of the rate, {:.3} of the CPU; all of the account {:.3} and {:.3}",
                of(&|r| rate(&r.acting) / rate(&r.own)),
                of(&|r| cpu(&r.acting) / cpu(&r.own)),
                of(&|r| rate(&r.acting) / rate(&r.admin)),
                of(&|r| cpu(&r.acting) / cpu(&r.admin)),
            )?;
        }
        Ok(())
    }
}

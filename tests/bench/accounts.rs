//! What it costs that packages act as accounts of their own (`--impersonate`).

use std::fmt;
use std::sync::Arc;

use operetta::local::ControlPlane;
use operetta::package::Package;
use serde::Serialize;

use crate::bare::Bare;
use crate::report::median;
use crate::rounds::{Bench, ManagerRound, arguments, per_second};
use crate::support::rights::{SYSTEM, grant, manager};
use crate::{Result, package_folder};

/// One round of each, with accounts and without.
#[derive(Debug, Serialize)]
struct Pair {
    without: ManagerRound,
    with: ManagerRound,
}

/// All rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Accounts {
    instances: usize,
    backlog: Vec<Pair>,
    arriving: Vec<Pair>,
}

/// Measures it. The manager's own user is the same in both: an administrator, whose requests need no look into the rules. So the
/// difference is the whole price of the account, the look into its rules included.
pub(crate) async fn run(
    plane: &ControlPlane,
    package: &Arc<Package>,
    instances: usize,
    rounds: usize,
    concurrency: usize,
) -> Result<Accounts> {
    let bench = Bench { plane, package, bare: Bare::new(plane.client()?, concurrency) };
    manager(plane).await;
    grant(plane, &[package_folder().to_str().unwrap_or_default()], |_| {}).await;
    let plain = arguments();
    let [command, folder] = plain;
    let acting = [command, folder, "--impersonate", "--namespace", SYSTEM];
    // It registers the CRD, without which there are no instances.
    drop(bench.manager_of(&acting).await?);
    let mut result = Accounts { instances, backlog: Vec::new(), arriving: Vec::new() };
    // The first round warms the server up.
    for round in 0..=rounds {
        for what in ["backlog", "arriving"] {
            let measure = async |is_acting: bool| -> Result<ManagerRound> {
                let arguments = if is_acting { &acting[..] } else { &plain[..] };
                let namespace = format!("{what}-{}-{round}", if is_acting { "with" } else { "without" });
                bench.bare.create_namespace(&namespace).await?;
                let measured = match what {
                    "backlog" => bench.started_late(&namespace, instances, arguments).await?,
                    _ => bench.arriving(&namespace, instances, arguments).await?,
                };
                eprintln!("{namespace}: {:.1} instances/s", per_second(instances, measured.all));
                Ok(measured)
            };
            // In turn first and second: what one leaves behind for the next is in both.
            let pair = if round % 2 == 0 {
                let without = measure(false).await?;
                Pair { without, with: measure(true).await? }
            } else {
                let with = measure(true).await?;
                Pair { without: measure(false).await?, with }
            };
            if round > 0 {
                if what == "backlog" { result.backlog.push(pair) } else { result.arriving.push(pair) }
            }
        }
    }
    Ok(result)
}

impl fmt::Display for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} instances, without accounts of packages and with them", self.instances)?;
        for (what, pairs) in [("backlog", &self.backlog), ("arriving", &self.arriving)] {
            let rate = |round: &ManagerRound| per_second(self.instances, round.all);
            for Pair { without, with } in pairs {
                let (without, with) = (rate(without), rate(with));
                writeln!(
                    f,
                    "{what:<9} without {without:>7.1} instances/s, with {with:>7.1}: {:.3} of the rate",
                    with / without
                )?;
            }
            let ratio = median(pairs.iter().map(|pair| rate(&pair.with) / rate(&pair.without)).collect());
            writeln!(f, "{what:<9} median {ratio:.3} of the rate")?;
        }
        Ok(())
    }
}

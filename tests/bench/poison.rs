//! The cost of instances that never become Ready for other instances.

use std::fmt;
use std::sync::Arc;

use crate::support::ControlPlane;
use operetta::package::Package;
use serde::Serialize;
use serde_json::json;

use crate::bare::{instance_kind, resource};
use crate::report::median;
use crate::rounds::{Bench, arguments, per_second};
use crate::{Result, poison_folder};

/// Seconds until the good instances are Ready, for each round.
#[derive(Debug, Serialize)]
pub(crate) struct Poisoned {
    instances: usize,
    /// The number of instances that the server refuses, and the number of those that cannot be rendered.
    each: usize,
    alone: Vec<f64>,
    beside: Vec<f64>,
}

/// Runs the measurement: a manager starts when all instances exist.
pub(crate) async fn run(
    plane: &ControlPlane,
    package: &Arc<Package>,
    (instances, each): (usize, usize),
    rounds: usize,
    concurrency: usize,
) -> Result<Poisoned> {
    let bench = Bench::new(plane, package, concurrency)?;
    let [run, light] = arguments();
    let both = [run, light, poison_folder().to_str().unwrap_or_default()];
    let (poison, _) =
        operetta::package::load(poison_folder()).map_err(|e| operetta::diag::render(&e, false))?;
    let poison = instance_kind(resource(&Arc::new(poison))?);
    // It registers the CRDs, which the instances need.
    drop(bench.manager_of(&both).await?);
    let mut result = Poisoned { instances, each, alone: Vec::new(), beside: Vec::new() };
    // The first round only warms up the server.
    for round in 0..=rounds {
        // Alternate the order, because each measurement affects the next one.
        for is_poisoned in [round % 2 == 0, round % 2 == 1] {
            let namespace = format!("{}-{round}", if is_poisoned { "poisoned" } else { "alone" });
            bench.bare.create_namespace(&namespace).await?;
            for how in ["refused", "endless"].into_iter().filter(|_| is_poisoned) {
                for number in 0..each {
                    let body = json!({
                        "apiVersion": poison.api_version(), "kind": poison.kind,
                        "metadata": {"name": format!("{how}-{number}"), "namespace": namespace},
                        "spec": {"how": how},
                    });
                    bench.bare.create(&poison, &body).await?;
                }
            }
            // The manager has both packages in either case.
            let seconds = bench.started_late(&namespace, instances, &both).await?.all;
            eprintln!("{namespace}: {:.1} instances/s", per_second(instances, seconds));
            if round > 0 {
                if is_poisoned { result.beside.push(seconds) } else { result.alone.push(seconds) }
            }
        }
    }
    Ok(result)
}

impl fmt::Display for Poisoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instances, each, .. } = self;
        writeln!(
            f,
            "{instances} instances, alone and beside {each} that the server refuses and {each} that cannot be rendered"
        )?;
        for (alone, beside) in self.alone.iter().zip(&self.beside) {
            let rate = |seconds: &f64| per_second(self.instances, *seconds);
            writeln!(
                f,
                "alone {:>7.1} instances/s, beside them {:>7.1}: {:.2} of the time",
                rate(alone),
                rate(beside),
                beside / alone
            )?;
        }
        let ratios = self.alone.iter().zip(&self.beside).map(|(alone, beside)| beside / alone).collect();
        writeln!(f, "median {:.2}", median(ratios))
    }
}

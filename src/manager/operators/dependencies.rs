//! Whether the kinds are served that the active package requires of others. The manager reports those that are not; it
//! installs nothing.

use std::time::Duration;

use tracing::warn;

use crate::api::Apis;
use crate::cluster::Cluster;
use crate::package::{Package, RequiredApi};

/// How often it is asked while all of them are served. While one is missing, each reconcile asks.
const SERVED: Duration = Duration::from_secs(60);

/// What was found last about the active package of an `Operator`.
pub(super) struct Dependencies {
    /// The digest of the package.
    package: String,
    /// When it was asked, as the scheduler's clock says.
    asked: Duration,
    /// Which kinds are missing, in words.
    missing: Option<String>,
}

impl Dependencies {
    /// Which required kinds are not served, and what brings them. Sends no request if the package requires none. `last`: what
    /// was found last.
    pub(super) async fn missing(
        last: &mut Option<Self>,
        active: &Package,
        cluster: &Cluster,
        now: Duration,
    ) -> Option<String> {
        if active.required.iter().all(|api| api.optional) {
            *last = None;
            return None;
        }
        last.take_if(|last| last.package != active.digest);
        let is_known = |last: &Self| last.missing.is_none() && now.saturating_sub(last.asked) < SERVED;
        if !last.as_ref().is_some_and(is_known) {
            match cluster.discover().await {
                Ok(apis) => {
                    let (package, missing) = (active.digest.clone(), missing(active, &apis));
                    *last = Some(Self { package, asked: now, missing });
                }
                Err(error) => warn!(operator = %active.name, %error, "the served kinds cannot be read"),
            }
        }
        last.as_ref().and_then(|last| last.missing.clone())
    }
}

fn missing(package: &Package, apis: &Apis) -> Option<String> {
    // Of a group whose server does not answer, nothing is known.
    let is_missing = |api: &&RequiredApi| !api.optional && apis.find(&api.gvk).is_ok_and(|f| f.is_none());
    let told: Vec<String> =
        package.required.iter().filter(is_missing).map(|api| told(package, api)).collect();
    (!told.is_empty())
        .then(|| format!("kinds are not served that {} requires: {}", package.name, told.join("; ")))
}

/// A kind, and what to do about it.
fn told(package: &Package, api: &RequiredApi) -> String {
    match (package.locked_for(api), &api.package) {
        (Some(locked), _) => format!(
            "{api}, which the package {} {} brings: `operetta install {}`",
            locked.name,
            locked.version,
            locked.reference()
        ),
        (None, Some(place)) => format!("{api}, which {} of {place} brings: install it", api.range_text()),
        (None, None) => format!("{api}: install the package or operator that brings it"),
    }
}

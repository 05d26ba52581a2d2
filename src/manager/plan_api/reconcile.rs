//! Restores the admission policies of plans.

use std::time::Duration;

use tracing::warn;

use crate::backoff::Backoff;
use crate::manager::effects::Effects;
use crate::manager::scheduler::{Key, Outcome, Scheduler};
use crate::manager::store::Store;
use crate::plan::SETTLE;

/// How long until a policy that has been restored is restored once more: another client keeps changing it.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Restorations that are further apart than this are not in a row.
const APART: Duration = Duration::from_secs(600);

/// Checks the policies after an event, and queues what waits for them.
pub(in crate::manager) async fn reconcile(
    store: &Store,
    effects: &Effects,
    scheduler: &Scheduler,
) -> Outcome {
    let api = &effects.plan_api;
    let Some(user) = api.user.get() else { return Outcome::Done };
    let (protection, restored, losses) = {
        let state = api.state();
        (state.protection.clone(), state.restored, state.losses)
    };
    let queue_all = || scheduler.add_all(store.all_instances());
    if protection.broken.is_none() && !protection.is_unknown {
        queue_all();
        return Outcome::Done;
    }
    let now = scheduler.clock.elapsed();
    let restored = restored.filter(|(at, _)| now < *at + APART);
    if let Some((at, count)) = restored
        && let Some(wait) = (at + AGAIN.exact(count)).checked_sub(now).filter(|wait| !wait.is_zero())
    {
        scheduler.queue.add_after(Key::PlanApi, wait);
        return Outcome::Done;
    }
    api.state().is_suspect = false;
    let checked = api.check(effects.clients.own(), user).await;
    let mut state = api.state();
    match checked {
        Ok(_) => {
            state.compare();
            // Another manager, or a person, may have restored what was gone.
            if std::mem::take(&mut state.was_lost) || protection.broken.is_some() {
                // A part that was lost meanwhile is checked next.
                if state.losses == losses {
                    state.protection.broken = None;
                }
                state.restored = Some((now, restored.map_or(0, |(_, count)| count) + 1));
                state.protection.since = Some(scheduler.clock.now() + SETTLE);
                scheduler.queue.add_after(Key::PlanApi, SETTLE);
            }
            drop(state);
            queue_all();
            Outcome::Done
        }
        Err(error) => {
            warn!(%error, "the admission policies of runs cannot be checked or restored");
            let problem = format!("the admission policies of runs cannot be checked or restored: {error}");
            if state.was_lost || protection.broken.is_some() {
                state.protection.broken = Some(problem.into());
            } else {
                // Nothing may be lost: what is written meanwhile waits.
                state.is_suspect = true;
                state.compare();
            }
            drop(state);
            queue_all();
            Outcome::Failed
        }
    }
}

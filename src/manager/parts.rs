//! The parts of a manager.

use std::sync::Arc;

use super::crds::CrdReconciler;
use super::effects::Effects;
use super::operators::OperatorReconciler;
use super::reconcile::InstanceReconciler;
use super::scheduler::Scheduler;
use super::store::Store;
use super::watches::Watches;

/// The parts of a manager.
pub(super) struct Parts {
    pub(super) store: Arc<Store>,
    pub(super) effects: Arc<Effects>,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) watches: Arc<Watches>,
    pub(super) instances: Arc<InstanceReconciler>,
    pub(super) crds: Arc<CrdReconciler>,
    pub(super) operators: Arc<OperatorReconciler>,
}

//! Removing the finalizer from an instance, after live lists have shown that nothing is left that it guards.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tracing::warn;

use super::super::index::{InstanceKey, Provenance};
use super::super::operators::Settings;
use super::super::registry::Registered;
use super::Executor;
use crate::api::{ApiKind, CallError, Class, Gvk, ObjectRef};
use crate::children::{Action, ActionOutcome, guarded, names};
use crate::cluster::Cluster;
use crate::plan::{DELETE_CHILD, PlanRun, RunObject};

impl Executor {
    /// Removes the finalizer. A failure on an instance that is being deleted is an outcome, not an error.
    pub(super) async fn try_release(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
    ) -> Result<ActionOutcome, CallError> {
        if instance["metadata"]["deletionTimestamp"].is_null() {
            self.patch_instance(key, registered, &Action::RemoveFinalizer).await?;
            return Ok(ActionOutcome::Done(Action::RemoveFinalizer));
        }
        match self.release(key, registered, instance).await {
            Err(error) if matches!(error.class, Class::Retry | Class::Permanent) => {
                warn!(instance = %key, %error, "the finalizer cannot be removed");
                Ok(ActionOutcome::Refused(Action::RemoveFinalizer, error))
            }
            result => result.map(|()| ActionOutcome::Done(Action::RemoveFinalizer)),
        }
    }

    /// Removes the finalizer if live lists show no run that deletes a child, and of all recorded kinds nothing that the
    /// finalizer guards. The cache does not decide this.
    async fn release(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
    ) -> Result<(), CallError> {
        let uid = instance["metadata"]["uid"].as_str().unwrap_or_default();
        let selector = format!("{}={uid}", names::INSTANCE_UID);
        if self.learn_deletion_runs(key, registered).await? {
            return Ok(());
        }
        let cluster = self.effects.for_children(registered);
        for (gvk, namespace) in self.lists(key, registered) {
            let Some((kind, found)) = self.list_live(&cluster, gvk, namespace, &selector).await? else {
                continue;
            };
            let mut left = false;
            for object in found {
                left |= self.learn_guarded(key, registered, &kind, object, uid);
            }
            if left {
                return Ok(());
            }
        }
        self.patch_instance(key, registered, &Action::RemoveFinalizer).await
    }

    /// Takes the runs that delete children of an instance from a live list into the store, and returns
    /// whether there are any. Nothing else deletes these runs: they have no owner before their objects are
    /// gone.
    async fn learn_deletion_runs(
        &self,
        key: &InstanceKey,
        registered: &Registered,
    ) -> Result<bool, CallError> {
        let may_have = registered.has_runs
            || registered.package.is_none()
            || registered.in_use().any(|(_, resource)| resource.may_ask());
        if !may_have {
            return Ok(false);
        }
        let sort = RunObject::PlanRun;
        let cluster = self.cluster_of(registered, sort);
        let selector = format!(
            "{}={},{}={}",
            names::KIND,
            registered.kind_label(),
            names::INSTANCE,
            names::label_value(&key.name)
        );
        let home = key.namespace.as_deref().unwrap_or(&self.namespace);
        let runs = match cluster.list(&sort.kind(), Some(home), &selector).await {
            Ok(runs) => runs,
            Err(error) if error.class == Class::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let registry = self.store.registry();
        let is_left = |run: &Value| {
            run["spec"]["plan"] == DELETE_CHILD
                && run["metadata"]["deletionTimestamp"].is_null()
                && registry.instance_of_run(run).is_some_and(|of| of == *key)
                && PlanRun::parse(run).is_ok()
        };
        let mut left = false;
        for run in runs.into_iter().filter(is_left) {
            self.learn(sort, run);
            left = true;
        }
        Ok(left)
    }

    /// Whether a live list shows that an object is a child which the finalizer guards. If so, the store knows
    /// it afterwards.
    pub(super) async fn is_still_child(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
        object: &ObjectRef,
        uid: &str,
    ) -> Result<bool, CallError> {
        let instance_uid = instance["metadata"]["uid"].as_str().unwrap_or_default();
        let selector = format!("{}={instance_uid}", names::INSTANCE_UID);
        let cluster = self.effects.for_children(registered);
        let found = self.list_live(&cluster, &object.gvk, object.namespace.as_deref(), &selector).await?;
        let Some((kind, found)) = found else { return Ok(false) };
        let Some(live) = found.into_iter().find(|live| live["metadata"]["uid"] == uid) else {
            return Ok(false);
        };
        Ok(self.learn_guarded(key, registered, &kind, live, instance_uid))
    }

    /// Takes an object of a live list into the store if the finalizer guards it, and returns whether it does.
    fn learn_guarded(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        kind: &ApiKind,
        mut object: Value,
        instance_uid: &str,
    ) -> bool {
        let reference = guarded::reference(kind.gvk(), &object);
        if !guarded::is_guarded(&object, instance_uid)
            || !registered.reaches(key.namespace.as_deref(), &reference)
        {
            return false;
        }
        object["apiVersion"] = (*reference.gvk.api_version).into();
        object["kind"] = (*reference.gvk.kind).into();
        self.learn_child(&reference, object, Provenance::Read);
        true
    }

    /// What is listed to find all children of an instance: each kind in all namespaces, or, where the account of the package has
    /// rights in some namespaces only, in those that the instance can reach.
    fn lists<'a>(&self, key: &'a InstanceKey, registered: &'a Registered) -> Vec<(&'a Gvk, Option<&'a str>)> {
        let is_limited = self.served_by_name(registered).is_some();
        let mut lists = Vec::new();
        for gvk in &registered.child_kinds {
            let beyond = registered.namespaces_of(gvk, self.store.kinds.known(gvk).as_deref());
            match beyond.filter(|_| is_limited) {
                Some(beyond) => {
                    let others = beyond
                        .iter()
                        .map(String::as_str)
                        .filter(|name| key.namespace.as_deref() != Some(name));
                    lists.extend(
                        key.namespace.as_deref().into_iter().chain(others).map(|name| (gvk, Some(name))),
                    );
                }
                None => lists.push((gvk, None)),
            }
        }
        lists
    }

    /// The settings of the `Operator` of a package, if it names its namespaces and the package has an
    /// account.
    fn served_by_name(&self, registered: &Registered) -> Option<Arc<Settings>> {
        let settings = self.store.settings.get(&registered.package_name)?;
        (self.effects.clients.has_accounts() && settings.names().is_some()).then_some(settings)
    }

    /// Whether the account of a package may have children in a namespace.
    fn may_reach(&self, registered: &Registered, namespace: &str) -> bool {
        let settings = self.served_by_name(registered);
        let is_served =
            settings.is_none_or(|settings| settings.names().is_some_and(|all| all.contains(namespace)));
        is_served || registered.namespace_scope.has(namespace)
    }

    /// The live objects of a kind that a selector matches; `None` if no version of the kind is served. Any other failure
    /// is an error, because objects may exist.
    async fn list_live(
        &self,
        cluster: &Cluster,
        gvk: &Gvk,
        namespace: Option<&str>,
        selector: &str,
    ) -> Result<Option<(ApiKind, Vec<Value>)>, CallError> {
        if let Some(kind) = self.store.kinds.find(cluster, gvk).await? {
            match cluster.list(&kind, namespace, selector).await {
                Ok(found) => return Ok(Some(((*kind).clone(), found))),
                Err(error) if error.class == Class::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        // The objects may be served in another version.
        let Some(kind) = self.store.kinds.in_any_version(cluster, gvk).await? else {
            return Ok(None);
        };
        let found = cluster.list(&kind, namespace, selector).await?;
        Ok(Some(((*kind).clone(), found)))
    }

    /// An object that uses a namespace, by live lists: an instance other than `except`, or a child of any instance.
    pub(super) async fn namespace_user(
        &self,
        namespace: &str,
        except: &InstanceKey,
    ) -> Result<Option<String>, CallError> {
        let registry = self.store.registry();
        // The instances of other managers count as well.
        let all = || registry.iter().chain(registry.others());
        for registered in all().filter(|r| r.kind.namespaced) {
            let cluster = self.effects.for_instances(registered);
            let instances = match cluster.list(&registered.kind, Some(namespace), "").await {
                Ok(instances) => instances,
                Err(error) if error.class == Class::NotFound => continue,
                Err(error) => return Err(error),
            };
            for instance in instances {
                let found = InstanceKey {
                    crd: registered.crd.clone(),
                    namespace: Some(namespace.into()),
                    name: instance["metadata"]["name"].as_str().unwrap_or_default().into(),
                };
                if found != *except {
                    return Ok(Some(found.to_string()));
                }
            }
        }
        // Without accounts, all packages list as the manager.
        let account = |r: &Registered| self.effects.clients.user_of(&r.package_name);
        let reaching = all().filter(|registered| self.may_reach(registered, namespace));
        let kinds = reaching.flat_map(|r| r.child_kinds.iter().map(move |gvk| ((gvk, account(r)), r)));
        let kinds: BTreeMap<(&Gvk, Option<String>), &Arc<Registered>> = kinds.collect();
        for ((gvk, _), registered) in kinds {
            if self.store.kinds.known(gvk).is_some_and(|kind| !kind.namespaced) {
                continue;
            }
            let cluster = self.effects.for_children(registered);
            let found = self.list_live(&cluster, gvk, Some(namespace), names::INSTANCE_UID).await?;
            for object in found.into_iter().flat_map(|(_, objects)| objects) {
                if guarded::is_applied_by_us(&object) {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    return Ok(Some(format!("{} {namespace}/{name}", gvk.kind)));
                }
            }
        }
        Ok(None)
    }
}

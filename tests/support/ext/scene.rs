//! A namespace for one test.

use std::sync::{Arc, PoisonError};

use serde_json::Value;

use super::managers::{MANAGER, Shared};
use super::{Kind, LONG, is_ready, name_of, read, uid_of};
use crate::support::barrier::Address;
use crate::support::{
    ControlPlane, Lazy, Namespace, Operetta, etcd, eventually, is_all_real, kubectl, kubectl_of,
    namespace_on, plane_of_tests,
};

/// A namespace for one test, in a control plane. If the test fails, the manager's output about the namespace
/// is shown.
pub struct Scene {
    namespace: Namespace,
    client: kube::Client,
    plane: Arc<ControlPlane>,
    manager: Option<&'static Shared>,
}

impl Scene {
    /// A new namespace of the control plane of the tests, handled by their manager.
    pub async fn new() -> Self {
        Self::managed(&MANAGER).await
    }

    /// A new namespace of the control plane of the tests, handled by this manager.
    pub async fn managed(manager: &'static Shared) -> Self {
        let plane = manager.plane().await;
        etcd::watch(&plane);
        let mut scene = Self::on(&plane).await;
        scene.manager = Some(manager);
        scene
    }

    /// Like [`Self::new`], on a control plane that processes reach.
    pub async fn with_commands() -> Self {
        Self::served(&MANAGER).await
    }

    /// A new namespace handled by this manager, on a control plane that processes reach.
    pub async fn served(manager: &'static Shared) -> Self {
        if is_all_real() {
            return Self::managed(manager).await;
        }
        let plane = Arc::new(ControlPlane::embedded().await);
        plane.keep(manager, manager.start(&plane).await);
        Self::on(&plane).await
    }

    /// A new namespace of the control plane of the tests, without starting a manager.
    pub async fn unmanaged() -> Self {
        Self::on(&plane_of_tests().await).await
    }

    /// A new namespace of a control plane.
    pub async fn on(plane: &Arc<ControlPlane>) -> Self {
        Self::of(plane, namespace_on(plane).await)
    }

    /// A namespace that exists.
    pub fn existing(plane: &Arc<ControlPlane>, name: &str) -> Self {
        Self::of(plane, Namespace { name: name.to_owned() })
    }

    /// The scene of a namespace.
    pub fn of(plane: &Arc<ControlPlane>, namespace: Namespace) -> Self {
        Self { namespace, client: plane.client().expect("a client"), plane: Arc::clone(plane), manager: None }
    }

    /// Where the manager shows its state.
    pub fn address(&self) -> Address {
        self.with_manager(Address::of).expect("a managed scene")
    }

    /// The manager's log lines about the namespace, and its errors.
    pub fn log(&self) -> String {
        let output = self.with_manager(Operetta::output).unwrap_or_default();
        let about = format!("{}/", self.namespace);
        let says = |line: &&str| line.contains(&about) || line.contains("ERROR") || line.contains("panic");
        output.lines().filter(says).collect::<Vec<_>>().join("\n")
    }

    fn with_manager<T>(&self, read: impl Fn(&Operetta) -> T) -> Option<T> {
        let of_test = self.plane.with_manager(self.manager, &read);
        let shared =
            || self.manager?.running.get().map(|m| read(&m.lock().unwrap_or_else(PoisonError::into_inner)));
        of_test.or_else(shared)
    }

    /// The control plane.
    pub fn plane(&self) -> &Arc<ControlPlane> {
        &self.plane
    }

    /// The namespace's name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A client with the rights of an admin.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Reads an object; `None` if it does not exist.
    pub async fn find(&self, kind: Kind, name: &str) -> Option<Value> {
        read(&self.client, &kind.path(Some(&self.namespace), name)).await
    }

    /// Reads an object; panics if it does not exist.
    pub async fn get(&self, kind: Kind, name: &str) -> Value {
        self.find(kind, name).await.unwrap_or_else(|| panic!("there is no {} {name}", kind.plural))
    }

    /// All objects of a kind in the namespace.
    pub async fn list(&self, kind: Kind) -> Vec<Value> {
        let path = kind.path(Some(&self.namespace), "");
        let mut list = read(&self.client, path.trim_end_matches('/')).await.expect("the kind is served");
        let items: Vec<Value> = serde_json::from_value(list["items"].take()).expect("a list");
        items
    }

    /// The names of all objects of a kind that an instance has made.
    pub async fn names(&self, kind: Kind) -> Vec<String> {
        let mut names: Vec<String> = self
            .list(kind)
            .await
            .iter()
            .filter(|o| o["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "operetta")
            .map(|o| name_of(o).to_owned())
            .collect();
        names.sort();
        names
    }

    /// Runs kubectl in the namespace and returns its output.
    pub async fn kubectl(&self, args: &[&str]) -> String {
        self.kubectl_input(args, "").await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs kubectl in the namespace with an input; as a process only if the command is unknown in this one.
    pub async fn kubectl_input(&self, args: &[&str], input: &str) -> Result<String, String> {
        if let Some(result) = kubectl::run(&self.client, Some(self.namespace()), args, input).await {
            return result;
        }
        let mut all = vec!["-n", self.namespace()];
        all.extend(args);
        kubectl_of(&self.plane, &all, input).await.result()
    }

    /// Waits until an object exists and `holds` is true of it.
    pub async fn until(&self, what: &str, kind: Kind, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{} {name}: {what}", kind.plural), LONG, async || {
            match self.find(kind, name).await {
                Some(object) if holds(&object) => Ok(object),
                found => Err(Lazy(move || match found.clone() {
                    Some(mut object) => {
                        object["metadata"]["managedFields"].take();
                        format!("{object:#}")
                    }
                    None => "it does not exist".to_owned(),
                })),
            }
        })
        .await
    }

    /// Waits until an instance is Ready at its newest generation.
    pub async fn ready(&self, kind: Kind, name: &str) -> Value {
        self.until("Ready", kind, name, is_ready).await
    }

    /// Deletes objects that the manager creates again, and waits until the deleted ones are gone. `kubectl
    /// delete` would wait for the new ones if they exist when its watch begins, because it does not compare
    /// uids then.
    pub async fn delete_recreated(&self, kind: Kind, names: &[&str]) {
        let mut uids = Vec::new();
        for name in names {
            uids.push(uid_of(&self.get(kind, name).await).to_owned());
        }
        self.kubectl(&[&["delete", kind.plural, "--wait=false"], names].concat()).await;
        for (name, uid) in names.iter().zip(&uids) {
            eventually(&format!("the former {} {name} to be gone", kind.plural), LONG, async || {
                match self.find(kind, name).await {
                    Some(object) if uid_of(&object) == uid => Err(format!("{:#}", object["metadata"])),
                    _ => Ok(()),
                }
            })
            .await;
        }
    }

    /// Waits until an object is gone.
    pub async fn gone(&self, kind: Kind, name: &str) {
        eventually(&format!("{} {name} to be gone", kind.plural), LONG, async || {
            match self.find(kind, name).await {
                None => Ok(()),
                Some(object) => Err(format!("{:#} {:#}", object["metadata"]["finalizers"], object["status"])),
            }
        })
        .await;
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(40);
            eprintln!("the manager about {}:\n{}", self.namespace, lines[from..].join("\n"));
        }
    }
}

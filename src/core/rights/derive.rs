//! What the account of a package needs, derived from all branches of its templates, refs, observations and plans.
//!
//! The verbs are those of the requests that the manager makes as the account: see `manager/act`, `manager/watches` and
//! `cluster`. Whoever adds a request there adds its verb here; a test compares both by the audit log.

use std::collections::BTreeSet;

use super::rules::{Place, Right, Rights};
use crate::api::{ApiKind, BuiltIn, Gvk};
use crate::children::NamespaceScope;
use crate::package::plan::{Action, ChildPod, Patch, Step};
use crate::package::{
    Call, Child, DeletionPolicy, NamespaceRef, NamespaceRefs, Package, Permission, Ref, RefSource, Resource,
};

/// The verbs on children: the manager watches them, reads one live after a conflict, applies, marks and
/// deletes. An apply of an object that does not exist needs `create` besides `patch`.
const CHILD: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];
/// The verbs on children of kinds that no template has any more, until they are gone.
const FORMER: [&str; 5] = ["get", "list", "watch", "patch", "delete"];
/// The verbs on what refs read.
const READ: [&str; 2] = ["list", "watch"];
/// The verbs on the Jobs of steps. They are watched with those of all packages, by the manager itself.
const JOB: [&str; 4] = ["get", "create", "patch", "delete"];
/// The verbs on the Secret that holds the secret outputs of a run.
const OUTPUTS: [&str; 4] = ["list", "watch", "create", "patch"];

/// The result of a derivation.
#[derive(Debug, Default)]
pub struct Derived {
    /// The rights.
    pub rights: Rights,
    /// Kinds of which only the name is known: their plural follows the usual rule, and they are taken for namespaced.
    pub guessed: BTreeSet<Gvk>,
}

/// The rights that the account of a package needs: derived ones, and those of its `permissions`. `package` may be given with
/// earlier revisions whose objects still exist.
pub fn derive(packages: &[&Package], served: &dyn Fn(&Gvk) -> Option<ApiKind>) -> Derived {
    let mut deriver = Deriver { packages, served, derived: Derived::default() };
    for package in packages {
        for resource in &package.resources {
            deriver.resource(resource);
        }
    }
    let declared: Vec<Right> = packages
        .iter()
        .flat_map(|package| &package.permissions)
        .flat_map(|permission| deriver.declared(permission))
        .collect();
    deriver.derived.rights.extend(declared);
    deriver.derived
}

/// The rights to children that earlier revisions of a package have left: `kinds` and `namespaces` are the record on its CRD.
/// Kinds that `served` does not know have no objects.
pub fn former(
    kinds: &BTreeSet<Gvk>,
    namespaces: &NamespaceScope,
    served: &dyn Fn(&Gvk) -> Option<ApiKind>,
) -> Rights {
    let places: Vec<Place> = match namespaces {
        NamespaceScope::Anywhere => vec![Place::Everywhere],
        NamespaceScope::Beyond(all) => {
            [Place::Home].into_iter().chain(all.iter().cloned().map(Place::Namespace)).collect()
        }
    };
    let mut rights = Rights::default();
    for kind in kinds.iter().filter_map(served) {
        for place in &places {
            let place = if kind.namespaced { place } else { &Place::Cluster };
            rights.add(place, &kind.group, &kind.plural, &FORMER);
        }
    }
    rights
}

/// The first of these kinds that has the group and the name of another, in whatever version.
pub fn find_kind<'a>(kinds: impl IntoIterator<Item = &'a ApiKind>, gvk: &Gvk) -> Option<&'a ApiKind> {
    kinds.into_iter().find(|kind| kind.group == gvk.group() && kind.kind == *gvk.kind)
}

/// The rights that a package needs, without those of its `permissions`.
pub(super) fn from_templates(package: &Package) -> Rights {
    let packages = &[package];
    let mut deriver = Deriver { packages, served: &|_| None, derived: Derived::default() };
    for resource in &package.resources {
        deriver.resource(resource);
    }
    deriver.derived.rights
}

/// The rights that one entry of `permissions` names.
pub(super) fn declared(package: &Package, permission: &Permission) -> Vec<Right> {
    let packages = &[package];
    Deriver { packages, served: &|_| None, derived: Derived::default() }.declared(permission)
}

struct Deriver<'a> {
    packages: &'a [&'a Package],
    served: &'a dyn Fn(&Gvk) -> Option<ApiKind>,
    derived: Derived,
}

impl Deriver<'_> {
    fn resource(&mut self, resource: &Resource) {
        let home = if resource.kind.namespaced { Place::Home } else { Place::Manager };
        for child in &resource.children {
            for gvk in &child.kinds {
                for place in places_of(child) {
                    self.add(&place, gvk, &CHILD);
                }
            }
        }
        // Their ownerReferences say blockOwnerDeletion, which some clusters allow only to who may set finalizers of the owner.
        let is_owned = |child: &Child| !child.ordered && child.deletion_policy == DeletionPolicy::Delete;
        if resource.children.iter().any(is_owned) {
            let ApiKind { group, plural, namespaced, .. } = &resource.kind;
            let place = if *namespaced { &Place::Home } else { &Place::Cluster };
            self.derived.rights.add(place, group, &format!("{plural}/finalizers"), &["update"]);
        }
        for reference in &resource.refs {
            self.reference(resource, reference);
        }
        for plan in &resource.plans {
            self.steps(resource, &home, &plan.steps);
        }
    }

    fn reference(&mut self, resource: &Resource, reference: &Ref) {
        let places: Vec<Place> = match &reference.target {
            RefSource::Name(_, namespace) => vec![place_of(namespace)],
            RefSource::Select(_, NamespaceRefs::All) => vec![Place::Everywhere],
            RefSource::Select(_, NamespaceRefs::List(all)) => all.iter().map(place_of).collect(),
            RefSource::Observe(observation) => {
                let call = &observation.call;
                self.call(resource, call.pod(), matches!(call, Call::Exec(_)));
                return;
            }
        };
        for place in places {
            if let Some(gvk) = &reference.gvk {
                self.add(&place, gvk, &READ);
            }
        }
    }

    fn steps(&mut self, resource: &Resource, home: &Place, steps: &[Step]) {
        for step in steps {
            if step.store.is_some() || step.outputs.iter().any(|output| output.secret) {
                self.derived.rights.add(home, "", "secrets", &OUTPUTS);
            }
            match &step.action {
                Action::Steps(_, steps) => self.steps(resource, home, steps),
                action @ (Action::Exec(_) | Action::Http(_)) => {
                    self.call(resource, action.pod(), matches!(action, Action::Exec(_)));
                }
                Action::Patch(patch) => self.patch(home, patch),
                Action::Job { .. } => {
                    self.derived.rights.add(home, "batch", "jobs", &JOB);
                    // To read why a pod of the Job does not start, its termination message, or the end of its
                    // log.
                    self.derived.rights.add(home, "", "pods", &["list", "watch"]);
                    self.derived.rights.add(home, "", "pods/log", &["get"]);
                }
                // These concern children, or the runs of instances, which are the manager's own.
                Action::Apply(_)
                | Action::Delete(_)
                | Action::Wait(_)
                | Action::Pause(_)
                | Action::Plan(_)
                | Action::Approve { .. }
                | Action::Fail(_)
                | Action::Record => {}
            }
        }
    }

    /// A command in a pod, or a request to one.
    fn call(&mut self, resource: &Resource, pod: Option<&ChildPod>, is_command: bool) {
        let Some(pod) = pod else { return };
        let find = |gvk: &Gvk| self.packages.iter().find_map(|package| package.resource_of(gvk));
        let Some(owner) = pod.owner(resource, find) else { return };
        let Some(child) = owner.child(&pod.child.child) else { return };
        for place in places_of(child) {
            let rights = &mut self.derived.rights;
            rights.add(&place, "", "pods", &["get"]);
            if is_command {
                // A connection by WebSocket begins with a GET; since 1.35 the server asks for `create` as well.
                rights.add(&place, "", "pods/exec", &["get", "create"]);
            }
            // The pod of a workload is found by its labels.
            if child.kinds.iter().any(|gvk| !gvk.is("v1", "Pod")) {
                rights.add(&place, "", "pods", &READ);
            }
            if child.kinds.iter().any(|gvk| &*gvk.kind == "Deployment") {
                rights.add(&place, "apps", "replicasets", &READ);
            }
        }
    }

    fn patch(&mut self, home: &Place, patch: &Patch) {
        let place = match &patch.namespace {
            None => home.clone(),
            Some(text) => match text.as_literal() {
                Some(literal) => Place::Namespace(literal.as_str().unwrap_or_default().to_owned()),
                None if text.reads().paths.iter().all(|path| path.root == "operator") => Place::Manager,
                None if text.reads().paths.iter().all(|path| path.root != "spec" && path.root != "let") => {
                    Place::Home
                }
                None => Place::Everywhere,
            },
        };
        self.add(&place, &patch.gvk, &["patch"]);
    }

    fn add(&mut self, place: &Place, gvk: &Gvk, verbs: &[&str]) {
        let kind = self.find(gvk);
        let place = if kind.namespaced { place } else { &Place::Cluster };
        self.derived.rights.add(place, &kind.group, &kind.plural, verbs);
    }

    fn find(&mut self, gvk: &Gvk) -> ApiKind {
        let own = self.packages.iter().flat_map(|package| &package.resources);
        let own = find_kind(own.map(|resource| &resource.kind), gvk);
        if let Some(kind) = own.cloned().or_else(|| (self.served)(gvk)) {
            return kind;
        }
        let kind = ApiKind::built_in(&gvk.api_version, &gvk.kind);
        if BuiltIn::find(&kind.group, &kind.kind).is_some() {
            return kind;
        }
        self.derived.guessed.insert(gvk.clone());
        ApiKind { namespaced: true, ..kind }
    }

    /// The rights that an entry of `permissions` names.
    fn declared(&self, permission: &Permission) -> Vec<Right> {
        let mut rights = Vec::new();
        for group in &permission.api_groups {
            for resource in &permission.resources {
                for verb in &permission.verbs {
                    let place = self.place_of_declared(group, resource, verb);
                    let names: Vec<Option<String>> = match permission.resource_names.as_slice() {
                        [] => vec![None],
                        names => names.iter().cloned().map(Some).collect(),
                    };
                    rights.extend(names.into_iter().map(|name| Right {
                        place: place.clone(),
                        group: group.clone(),
                        resource: resource.clone(),
                        name,
                        verb: verb.clone(),
                    }));
                }
            }
        }
        rights
    }

    fn place_of_declared(&self, group: &str, resource: &str, verb: &str) -> Place {
        let plural = resource.split('/').next().unwrap_or_default();
        if verb == "bind" && group == RBAC {
            // A RoleBinding is decided in its own namespace.
            let children = || {
                let resources = self.packages.iter().flat_map(|package| &package.resources);
                resources.flat_map(|resource| &resource.children).flat_map(|child| &child.kinds)
            };
            let is_everywhere = children().any(|gvk| &*gvk.kind == "ClusterRoleBinding");
            return if is_everywhere { Place::Cluster } else { Place::Home };
        }
        let mut own = self.packages.iter().flat_map(|package| &package.resources);
        let own = own.find(|own| own.kind.group == group && own.kind.plural == plural);
        let namespaced = match own {
            Some(own) => own.kind.namespaced,
            None => built_in(group, plural).is_none_or(|kind| kind.namespaced),
        };
        if namespaced { Place::Home } else { Place::Cluster }
    }
}

/// The group of Roles and their bindings.
pub(super) const RBAC: &str = "rbac.authorization.k8s.io";

/// The built-in kind of that plural.
pub(super) fn built_in(group: &str, plural: &str) -> Option<ApiKind> {
    let mut all = BuiltIn::all().iter().filter(|known| known.group == group);
    all.find_map(|known| {
        let api_version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
        Some(ApiKind::built_in(&api_version, known.kind)).filter(|kind| kind.plural == plural)
    })
}

/// The places where objects of a child may be.
fn places_of(child: &Child) -> Vec<Place> {
    if child.namespaces.are_any() {
        return vec![Place::Everywhere];
    }
    let literal = child.namespaces.literals().iter().cloned().map(Place::Namespace);
    let manager = child.namespaces.has_operator().then_some(Place::Manager);
    [Place::Home].into_iter().chain(literal).chain(manager).collect()
}

fn place_of(namespace: &NamespaceRef) -> Place {
    match namespace {
        NamespaceRef::Own => Place::Home,
        NamespaceRef::Operator => Place::Manager,
        NamespaceRef::Literal(namespace) => Place::Namespace(namespace.clone()),
        NamespaceRef::Computed(_) => Place::Everywhere,
    }
}

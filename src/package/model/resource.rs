//! One kind of a package.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::child::Child;
use super::refs::{Call, Ref};
use crate::api::{ApiKind, Gvk};
use crate::crd;
use crate::diag::Location;
use crate::manifest::DeletionPolicy;
use crate::plan::{Action, ChildPod, Plan, PodPort};
use crate::template::{Expr, Lets, Search, Text};

/// One kind of a package.
#[derive(Debug)]
pub struct Resource {
    /// The `CustomResourceDefinition`, as written.
    pub crd: Value,
    /// Its location.
    pub crd_location: Location,
    /// The kind that it defines.
    pub kind: ApiKind,
    /// Whether the CRD that another manager applies is the base of this one.
    pub adopt: bool,
    /// The conversion of objects between the versions, if the author declared one.
    pub conversion: Option<crd::Conversion>,
    /// The `let`s of the package and of the resource.
    pub lets: Arc<Lets>,
    /// Nothing is written while it is true.
    pub paused: Option<Expr>,
    /// When an instance is ready, if the author set it.
    pub ready_when: Option<Expr>,
    /// The objects and observations that instances read and do not own. A ref comes after the refs that it
    /// reads.
    pub refs: Vec<Ref>,
    /// The children. A child comes after those that it depends on, otherwise they keep the order of
    /// declaration.
    pub children: Vec<Child>,
    /// Whether any expression reads `cluster`.
    pub reads_cluster: bool,
    /// Whether steps or observations of other kinds of the package reach pods of its children.
    pub is_reached: bool,
    /// The projected status.
    pub status: Vec<StatusField>,
    /// The package's own conditions.
    pub conditions: Vec<Condition>,
    /// The plans, in the order of the file.
    pub plans: Vec<Plan>,
    /// The location of the resource in `operator.yaml`.
    pub location: Location,
}

impl Resource {
    /// The plan with this name.
    pub fn plan(&self, name: &str) -> Option<&Plan> {
        self.plans.iter().find(|plan| plan.name == name)
    }

    /// The child with this id.
    pub fn child(&self, id: &str) -> Option<&Child> {
        self.children.iter().find(|child| child.id == id)
    }

    /// Whether it defines this kind, in any version.
    pub fn is_of(&self, gvk: &Gvk) -> bool {
        self.kind.group == gvk.group() && self.kind.kind == *gvk.kind
    }

    /// The pods of children that steps and observations reach.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &ChildPod> {
        let observed = self.refs.iter().filter_map(Ref::call).filter_map(Call::pod);
        let steps = self.plans.iter().flat_map(Plan::visits).filter_map(|visit| visit.step.action.pod());
        observed.chain(steps)
    }

    /// The pods that steps and observations send HTTP requests to.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &PodPort> {
        let observed = self.refs.iter().filter_map(Ref::call).filter_map(|call| match call {
            Call::Http(http) => http.to.as_ref(),
            Call::Exec(_) => None,
        });
        let steps = self.plans.iter().flat_map(Plan::visits).filter_map(|visit| match &visit.step.action {
            Action::Http(http) => http.to.as_ref(),
            _ => None,
        });
        observed.chain(steps)
    }

    /// The ref with this id.
    pub fn reference(&self, id: &str) -> Option<&Ref> {
        self.refs.iter().find(|reference| reference.id == id)
    }

    /// Whether the deletion of one of its children needs an approval.
    pub fn may_ask(&self) -> bool {
        self.children.iter().any(|child| child.deletion_policy == DeletionPolicy::Ask)
    }

    /// Whether a version of its CRD has the subresource `scale`.
    pub fn has_scale(&self) -> bool {
        let versions = self.crd.pointer("/spec/versions").and_then(Value::as_array);
        versions.into_iter().flatten().any(|version| version.pointer("/subresources/scale").is_some())
    }

    /// The facts that plans record.
    pub fn recorded(&self) -> BTreeSet<&str> {
        let visits = self.plans.iter().flat_map(Plan::visits);
        visits.flat_map(|visit| &visit.step.record).map(|(key, _)| key.as_str()).collect()
    }

    /// Whether its instances can have runs.
    pub fn has_runs(&self) -> bool {
        !self.plans.is_empty() || self.may_ask()
    }

    /// The kinds of its children and refs, each once.
    pub fn kinds(&self) -> BTreeSet<&Gvk> {
        let refs = self.refs.iter().filter_map(|reference| reference.gvk.as_ref());
        self.children.iter().flat_map(|child| &child.kinds).chain(refs).collect()
    }

    /// The name of its CRD, `plural.group`.
    pub fn crd_name(&self) -> &str {
        self.crd["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The package's additions to its CRD.
    pub fn additions(&self) -> crd::Additions {
        crd::Additions {
            status: self.status.iter().map(|field| field.name.clone()).collect(),
            has_plans: !self.plans.is_empty(),
        }
    }

    /// The CRD with Operetta's additions.
    pub fn augmented_crd(&self) -> Value {
        let mut crd = crd::augment(&self.crd, &self.additions());
        if let Some(map) = crd.as_object_mut() {
            map.remove("status");
        }
        crd
    }

    /// The kind in each version that the CRD serves.
    pub fn served_kinds(&self) -> impl Iterator<Item = Gvk> {
        let Self { kind, .. } = self;
        self.served_versions()
            .map(|version| Gvk::new(format!("{}/{version}", kind.group), kind.kind.as_str()))
    }

    /// Names of the versions that the CRD serves.
    pub fn served_versions(&self) -> impl Iterator<Item = &str> {
        let versions = self.crd.pointer("/spec/versions").and_then(Value::as_array);
        versions
            .into_iter()
            .flatten()
            .filter(|version| version.get("served") == Some(&Value::Bool(true)))
            .filter_map(|version| version.get("name").and_then(Value::as_str))
    }
}

/// One projected field of the status.
#[derive(Debug)]
pub struct StatusField {
    /// Its dotted name, for example `members.ready`.
    pub name: String,
    /// Its value.
    pub expr: Expr,
    /// The JSONPath to search in the expression's value; `None` if the value is the result.
    pub search: Option<Search>,
    /// Whether the search must find exactly one value; otherwise it yields a list.
    pub one: bool,
    /// Whether it may contain data of Secrets.
    pub exposes_secret_data: bool,
    /// The schema of the field in the CRD, if it is known and the CRD is the package's own.
    pub schema: Option<Value>,
    /// The location of its name in `operator.yaml`.
    pub location: Location,
}

/// One of the package's own conditions.
#[derive(Debug)]
pub struct Condition {
    /// Its type.
    pub type_: String,
    /// The condition is True while this is true.
    pub when: Expr,
    /// The reason, one word.
    pub reason: String,
    /// The message, a sentence.
    pub message: Text,
    /// Whether it may contain data of Secrets.
    pub exposes_secret_data: bool,
    /// The location of its type in `operator.yaml`.
    pub location: Location,
}

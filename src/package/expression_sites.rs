//! All expressions and templates of a resource, with their role.

use std::sync::Arc;

use super::plan::Plan;
use super::plan::sites::{PlanScope, PlanSite};
use super::{Child, Condition, Observation, Ref, StatusField, Yields};
use crate::template::{Engine, Expr, Lets, Reads};

/// The parts of a resource that contain expressions.
pub(super) struct Parts {
    pub(super) lets: Arc<Lets>,
    pub(super) paused: Option<Expr>,
    pub(super) ready_when: Option<Expr>,
    pub(super) refs: Vec<Ref>,
    pub(super) children: Vec<Child>,
    pub(super) status: Vec<StatusField>,
    pub(super) conditions: Vec<Condition>,
    pub(super) plans: Vec<Plan>,
}

/// One expression or template.
pub(super) struct ExpressionSite<'a> {
    /// The paths that it reads, without following `let`s.
    pub(super) reads: &'a Reads,
    /// The child that contains it.
    pub(super) child: Option<usize>,
    /// The ref that contains it, if it is evaluated for each item of the ref.
    pub(super) reference: Option<usize>,
    /// The scope of the plan that contains it.
    pub(super) plan: Option<Arc<PlanScope<'a>>>,
    /// Its role.
    pub(super) role: Role,
}

/// The role of an expression, which decides which variables are visible and whether reads create an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// An expression of the resource: `paused`, `readyWhen`, refs.
    Resource,
    /// A value that is only shown: status, conditions.
    Shown,
    /// A child's `forEach.in`.
    List,
    /// A child's `forEach.key` or `when`, evaluated for each member.
    Member,
    /// A child's `maxUnavailable`, `onImmutableChange` or `onLoss`, with one value for all members.
    Setting,
    /// A child's `yields`.
    Yields,
    /// A child's `readyWhen`.
    ReadyWhen,
    /// The key, `when`, name or selector of a ref with forEach, evaluated for each item.
    RefItem,
    /// `expect` of an observation, which sees the answer.
    Answer,
    /// A child's template.
    Template,
    /// A trigger or a step of a plan.
    Plan,
    /// A `let` that nothing reads. It may be meant for any position, so all variables are visible.
    Anywhere,
}

impl ExpressionSite<'_> {
    /// Whether it sees the child's live object.
    pub(super) fn sees_self(&self) -> bool {
        matches!(self.role, Role::ReadyWhen | Role::Template | Role::Anywhere)
    }

    /// Whether it sees the item of the forEach.
    pub(super) fn sees_item(&self) -> bool {
        matches!(
            self.role,
            Role::Member | Role::Yields | Role::ReadyWhen | Role::Template | Role::RefItem | Role::Answer
        )
    }

    /// The name of the item variable.
    pub(super) fn item<'p>(&self, parts: &'p Parts) -> Option<&'p str> {
        let of_child = || parts.children.get(self.child?)?.for_each.as_ref();
        let of_ref = || parts.refs.get(self.reference?)?.for_each.as_ref();
        of_ref().or_else(of_child).map(|for_each| for_each.as_.as_str())
    }

    /// The visible variables of an answer.
    pub(super) fn answers(&self, parts: &Parts) -> &'static [&'static str] {
        let of_ref = || Some(parts.refs.get(self.reference?)?.observation()?.fields());
        match (&self.plan, self.role) {
            (Some(scope), _) => scope.answers,
            (None, Role::Answer) => of_ref().unwrap_or_default(),
            _ => &[],
        }
    }

    /// Whether it decides which objects the child has, or their content.
    pub(super) fn renders(&self) -> bool {
        matches!(self.role, Role::List | Role::Member | Role::Template | Role::Yields)
    }

    /// Whether the child comes after the children that the expression reads.
    pub(super) fn orders(&self) -> bool {
        matches!(self.role, Role::List | Role::Member | Role::Template)
    }
}

impl Parts {
    /// All expressions and templates of the resource, except `let`s.
    pub(super) fn expression_sites<'a>(&'a self, engine: &'a Engine) -> Vec<ExpressionSite<'a>> {
        let mut uses = Vec::new();
        for (index, reference) in self.refs.iter().enumerate() {
            let role = if reference.for_each.is_some() { Role::RefItem } else { Role::Resource };
            let of = |role| {
                move |reads| ExpressionSite { reads, child: None, reference: Some(index), plan: None, role }
            };
            uses.extend(reference.list_reads().map(of(Role::Resource)));
            uses.extend(reference.item_reads().into_iter().map(of(role)));
            let expect = reference.observation().and_then(Observation::expect_site);
            uses.extend(expect.map(of(Role::Answer)));
        }
        let mut add = |child, role, reads| {
            uses.push(ExpressionSite { reads, child, reference: None, plan: None, role });
        };
        for expr in self.paused.iter().chain(&self.ready_when) {
            add(None, Role::Resource, expr.reads());
        }
        for field in &self.status {
            add(None, Role::Shown, field.expr.reads());
        }
        for condition in &self.conditions {
            add(None, Role::Shown, condition.when.reads());
            add(None, Role::Shown, condition.message.reads());
        }
        for (index, child) in self.children.iter().enumerate() {
            let index = Some(index);
            if let Some(for_each) = &child.for_each {
                add(index, Role::List, for_each.in_.reads());
            }
            let key = child.for_each.as_ref().and_then(|for_each| for_each.key.as_ref());
            for expr in key.into_iter().chain(&child.when).chain(&child.group_when) {
                add(index, Role::Member, expr.reads());
            }
            for expr in child.ready_when.iter().chain(&child.lost_when) {
                add(index, Role::ReadyWhen, expr.reads());
            }
            for (_, text) in child.settings() {
                add(index, Role::Setting, text.reads());
            }
            let yields = match &child.yields {
                Some(Yields::One(text)) => std::slice::from_ref(text),
                Some(Yields::List(texts)) => texts.as_slice(),
                None => &[],
            };
            for text in yields {
                add(index, Role::Yields, text.reads());
            }
            if let Some(template) = engine.template(&child.template) {
                add(index, Role::Template, template.reads());
            }
        }
        let sites = self.plans.iter().flat_map(|plan| plan.sites(engine));
        uses.extend(sites.map(|PlanSite { reads, scope }| ExpressionSite {
            reads,
            child: None,
            reference: None,
            plan: Some(scope),
            role: Role::Plan,
        }));
        uses
    }
}

//! All that reads something in a resource, and what it is there for.

use std::sync::Arc;

use super::{Child, Condition, MaxUnavailable, Ref, StatusField, Yields};
use crate::template::{Engine, Expr, Lets, Reads};

/// The parts of a resource that read something.
pub(super) struct Parts {
    pub(super) lets: Arc<Lets>,
    pub(super) paused: Option<Expr>,
    pub(super) ready_when: Option<Expr>,
    pub(super) refs: Vec<Ref>,
    pub(super) children: Vec<Child>,
    pub(super) status: Vec<StatusField>,
    pub(super) conditions: Vec<Condition>,
}

/// One expression or template.
pub(super) struct Use<'a> {
    /// What it reads, `let`s not followed.
    pub(super) reads: &'a Reads,
    /// The child that it belongs to.
    pub(super) child: Option<usize>,
    /// The ref for each of whose items it is asked.
    pub(super) reference: Option<usize>,
    /// What it is there.
    pub(super) role: Role,
}

/// What an expression is for: it decides what it may see and whether it orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Of the resource: status, conditions, `paused`, `readyWhen`, refs.
    Resource,
    /// A child's `forEach.in`.
    List,
    /// Of each member of a child: `forEach.key`, `when`.
    Member,
    /// A child's `maxUnavailable`.
    MaxUnavailable,
    /// A child's `yields`.
    Yields,
    /// A child's `readyWhen`.
    ReadyWhen,
    /// Of each item of a ref with forEach: key, `when`, name, selector.
    RefItem,
    /// A child's template.
    Template,
    /// A `let` that nothing reads: it may be meant for any place.
    Anywhere,
}

impl Use<'_> {
    /// Whether it sees the child's live object.
    pub(super) fn sees_self(&self) -> bool {
        matches!(self.role, Role::ReadyWhen | Role::Template | Role::Anywhere)
    }

    /// Whether it sees the item of the forEach.
    pub(super) fn sees_item(&self) -> bool {
        matches!(self.role, Role::Member | Role::Yields | Role::ReadyWhen | Role::Template | Role::RefItem)
    }

    /// The name of that item.
    pub(super) fn item<'p>(&self, parts: &'p Parts) -> Option<&'p str> {
        let of_child = || parts.children.get(self.child?)?.for_each.as_ref();
        let of_ref = || parts.refs.get(self.reference?)?.for_each.as_ref();
        of_ref().or_else(of_child).map(|for_each| for_each.as_.as_str())
    }

    /// Whether the child waits for the children that it reads.
    pub(super) fn orders(&self) -> bool {
        matches!(self.role, Role::List | Role::Member | Role::Template)
    }
}

impl Parts {
    /// All expressions and templates of the resource, but for `let`s.
    pub(super) fn uses<'a>(&'a self, engine: &'a Engine) -> Vec<Use<'a>> {
        let mut uses = Vec::new();
        for (index, reference) in self.refs.iter().enumerate() {
            let role = if reference.for_each.is_some() { Role::RefItem } else { Role::Resource };
            let of = |role| move |reads| Use { reads, child: None, reference: Some(index), role };
            uses.extend(reference.list_reads().map(of(Role::Resource)));
            uses.extend(reference.item_reads().into_iter().map(of(role)));
        }
        let mut add = |child, role, reads| uses.push(Use { reads, child, reference: None, role });
        for expr in self.paused.iter().chain(&self.ready_when) {
            add(None, Role::Resource, expr.reads());
        }
        for field in &self.status {
            add(None, Role::Resource, field.expr.reads());
        }
        for condition in &self.conditions {
            add(None, Role::Resource, condition.when.reads());
            add(None, Role::Resource, condition.message.reads());
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
            if let Some(expr) = &child.ready_when {
                add(index, Role::ReadyWhen, expr.reads());
            }
            if let Some(MaxUnavailable::Text(text)) = &child.max_unavailable {
                add(index, Role::MaxUnavailable, text.reads());
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
        uses
    }
}

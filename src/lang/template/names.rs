//! The variables that the statements of a template set. The evaluator and the analyses of values share their rules.

use std::sync::Arc;

use super::value::Name;

/// The variables of `set`, `for`, `with`, macros and partials, by block. `V` is a value, or what is known of one.
#[derive(Debug, Clone)]
pub(super) struct Names<V> {
    /// Innermost last.
    all: Vec<(Name, V)>,
    /// The start of each open block in `all`.
    blocks: Vec<usize>,
}

/// The blocks that a macro does not see.
pub(super) struct Hidden<V> {
    top: usize,
    all: Vec<(Name, V)>,
    blocks: Vec<usize>,
}

impl<V> Default for Names<V> {
    fn default() -> Self {
        Self::of(Vec::new())
    }
}

impl<V> Names<V> {
    /// Variables outside all blocks.
    pub(super) fn of(all: Vec<(Name, V)>) -> Self {
        Self { all, blocks: Vec::new() }
    }

    /// Opens a block: variables set in it end with it.
    pub(super) fn open(&mut self) {
        self.blocks.push(self.all.len());
    }

    /// Closes the innermost block.
    pub(super) fn close(&mut self) {
        if let Some(start) = self.blocks.pop() {
            self.all.truncate(start);
        }
    }

    /// The innermost variable of that name.
    pub(super) fn get(&self, name: &str) -> Option<&V> {
        self.all.iter().rev().find(|(known, _)| **known == *name).map(|(_, value)| value)
    }

    /// The names of all variables.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|(name, _)| &**name)
    }

    /// Sets a variable of the innermost block.
    pub(super) fn set(&mut self, name: &Name, value: V) {
        let start = self.blocks.last().copied().unwrap_or(0);
        match self.all[start..].iter_mut().find(|(known, _)| known == name) {
            Some(entry) => entry.1 = value,
            None => self.all.push((Arc::clone(name), value)),
        }
    }

    /// Adds a variable that hides others of its name.
    pub(super) fn push(&mut self, name: Name, value: V) {
        self.all.push((name, value));
    }

    /// Opens the block of a macro, which sees the variables of the top level, but not those of the blocks around the
    /// call.
    pub(super) fn open_macro(&mut self) -> Hidden<V> {
        let top = self.blocks.first().copied().unwrap_or(self.all.len());
        Hidden { top, all: self.all.split_off(top), blocks: std::mem::replace(&mut self.blocks, vec![top]) }
    }

    /// Closes the block of a macro.
    pub(super) fn close_macro(&mut self, hidden: Hidden<V>) {
        self.all.truncate(hidden.top);
        self.all.extend(hidden.all);
        self.blocks = hidden.blocks;
    }
}

impl<V: Clone> Names<V> {
    /// Joins the variables after two branches that began with the same `start` ones; `self` is the second. `join` receives
    /// the values that a variable may have; `None` is its value outside of all blocks.
    pub(super) fn join(
        &mut self,
        first: Self,
        start: usize,
        mut join: impl FnMut(&Name, Option<V>, Option<V>) -> V,
    ) {
        let mut first = first.all;
        let mut new = self.all.split_off(start);
        let mut joined: Vec<(Name, V)> = Vec::new();
        for (name, value) in first.split_off(start) {
            let other = new.iter().position(|(known, _)| *known == name).map(|index| new.remove(index).1);
            let other = other.or_else(|| self.get(&name).cloned());
            joined.push((Arc::clone(&name), join(&name, Some(value), other)));
        }
        for (name, value) in new {
            let other = self.get(&name).cloned();
            joined.push((Arc::clone(&name), join(&name, other, Some(value))));
        }
        for ((name, value), (_, other)) in self.all.iter_mut().zip(first) {
            *value = join(name, Some(value.clone()), Some(other));
        }
        self.all.extend(joined);
    }
}

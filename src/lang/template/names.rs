//! The variables that the statements of a template set. The evaluator and the analyses of values share their rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::value::Name;

/// The variables of `set`, `for`, `with`, macros and partials, by block. `V` is a value, or what is known of one.
#[derive(Debug, Clone)]
pub(super) struct Names<V> {
    /// The variables, those of the innermost block last.
    all: Vec<(Name, V)>,
    /// The start of each open block in `all`.
    blocks: Vec<usize>,
    /// The number of open branches, see [`Names::fork`].
    forks: usize,
    /// The values that the open branches have replaced, by index.
    replaced: Vec<(usize, V)>,
}

/// The blocks that a macro does not see.
pub(super) struct Hidden<V> {
    top: usize,
    all: Vec<(Name, V)>,
    blocks: Vec<usize>,
    replaced: usize,
}

impl<V> Default for Names<V> {
    fn default() -> Self {
        Self::of(Vec::new())
    }
}

impl<V> Names<V> {
    /// Variables outside all blocks.
    pub(super) fn of(all: Vec<(Name, V)>) -> Self {
        Self { all, blocks: Vec::new(), forks: 0, replaced: Vec::new() }
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
        match self.all[start..].iter().position(|(known, _)| known == name) {
            Some(index) => {
                let before = std::mem::replace(&mut self.all[start + index].1, value);
                if self.forks > 0 {
                    self.replaced.push((start + index, before));
                }
            }
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
        Hidden {
            top,
            all: self.all.split_off(top),
            blocks: std::mem::replace(&mut self.blocks, vec![top]),
            replaced: self.replaced.len(),
        }
    }

    /// Closes the block of a macro.
    pub(super) fn close_macro(&mut self, hidden: Hidden<V>) {
        self.all.truncate(hidden.top);
        self.all.extend(hidden.all);
        self.blocks = hidden.blocks;
        // The others belong to the block of the macro.
        self.replaced.truncate(hidden.replaced);
    }
}

/// What a branch has set: variables that were there before, by index, and new ones.
pub(super) struct Changes<V> {
    old: BTreeMap<usize, V>,
    new: Vec<(Name, V)>,
}

/// A variable that one of two branches has set.
pub(super) struct Merged<V> {
    pub(super) name: Name,
    /// The values that it may have. `None` is its value outside of all blocks.
    pub(super) values: [Option<V>; 2],
    /// Whether the second branch has set it.
    pub(super) by_second: bool,
}

/// The state before two branches: the number of variables and of replaced values.
#[derive(Clone, Copy)]
pub(super) struct Fork(usize, usize);

impl<V: Clone> Names<V> {
    /// Begins two branches that see the same variables. [`Names::undo`] follows after each of them, then [`Names::merge`].
    pub(super) fn fork(&mut self) -> Fork {
        self.forks += 1;
        Fork(self.all.len(), self.replaced.len())
    }

    /// Takes back what a branch has set.
    pub(super) fn undo(&mut self, Fork(start, replaced): Fork) -> Changes<V> {
        let new = self.all.split_off(start);
        let mut old = BTreeMap::new();
        for (index, before) in self.replaced.split_off(replaced).into_iter().rev() {
            if let Some(entry) = self.all.get_mut(index) {
                // The last value that was set is taken back first.
                let value = std::mem::replace(&mut entry.1, before);
                old.entry(index).or_insert(value);
            }
        }
        Changes { old, new }
    }

    /// Ends two branches. Returns the variables that they have set.
    pub(super) fn merge(&mut self, first: Changes<V>, mut second: Changes<V>) -> Vec<Merged<V>> {
        self.forks -= 1;
        let mut merged = Vec::new();
        for (index, value) in first.old {
            let (name, before) = self.all[index].clone();
            merged.push(match second.old.remove(&index) {
                Some(other) => Merged { name, values: [Some(value), Some(other)], by_second: true },
                None => Merged { name, values: [Some(before), Some(value)], by_second: false },
            });
        }
        for (index, value) in second.old {
            let (name, before) = self.all[index].clone();
            merged.push(Merged { name, values: [Some(before), Some(value)], by_second: true });
        }
        for (name, value) in first.new {
            let other = second.new.iter().position(|(known, _)| *known == name);
            let other = other.map(|index| second.new.remove(index).1);
            let by_second = other.is_some();
            let other = other.or_else(|| self.get(&name).cloned());
            merged.push(Merged { name, values: [Some(value), other], by_second });
        }
        for (name, value) in second.new {
            let other = self.get(&name).cloned();
            merged.push(Merged { name, values: [other, Some(value)], by_second: true });
        }
        merged
    }
}

//! The order of children: dependencies that follow from what their templates read.

use std::collections::BTreeSet;

use crate::template::{Lets, ReadPath, Reads, Segment};

/// All paths that are read, including those that are read through `let`s.
pub(super) fn expand_lets<'a>(
    reads: impl IntoIterator<Item = &'a Reads>,
    lets: &'a Lets,
) -> Vec<&'a ReadPath> {
    let mut paths: Vec<&ReadPath> = reads.into_iter().flat_map(|reads| &reads.paths).collect();
    let mut seen = BTreeSet::new();
    let mut next = 0;
    while let Some(path) = paths.get(next).copied() {
        next += 1;
        if path.root != "let" {
            continue;
        }
        match path.segments.first() {
            Some(Segment::Key(name)) => {
                if let Some(text) = lets.get(name)
                    && seen.insert(name.as_str())
                {
                    paths.extend(&text.reads().paths);
                }
            }
            // `let` as a whole or with a computed name may read any of them.
            _ => {
                for (name, text) in lets.iter() {
                    if seen.insert(name) {
                        paths.extend(&text.reads().paths);
                    }
                }
            }
        }
    }
    paths
}

/// A topological order, which keeps the order of independent entries. The error is a cycle: each entry
/// depends on the next, and the last on the first.
pub(super) fn order(depends_on: &[BTreeSet<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    let count = depends_on.len();
    let mut placed = vec![false; count];
    let mut order = Vec::with_capacity(count);
    while order.len() < count {
        let free = (0..count).find(|&child| !placed[child] && depends_on[child].iter().all(|&on| placed[on]));
        let Some(free) = free else { return Err(cycle(depends_on, &placed)) };
        placed[free] = true;
        order.push(free);
    }
    Ok(order)
}

/// A cycle among the entries that could not be placed. Each depends on another of them, so following the
/// dependencies leads back to an earlier one.
fn cycle(depends_on: &[BTreeSet<usize>], placed: &[bool]) -> Vec<usize> {
    let mut walk: Vec<usize> = Vec::new();
    let mut at = placed.iter().position(|placed| !placed);
    while let Some(child) = at {
        if let Some(first) = walk.iter().position(|&seen| seen == child) {
            return walk.split_off(first);
        }
        walk.push(child);
        at = depends_on[child].iter().copied().find(|&on| !placed[on]);
    }
    walk
}

/// Sorts the paths and removes those that begin with another of the paths.
pub(super) fn outermost(mut paths: Vec<Vec<Segment>>) -> Vec<Vec<Segment>> {
    paths.sort();
    let mut kept: Vec<Vec<Segment>> = Vec::new();
    for path in paths {
        // The paths are sorted, so a path that contains this one is the last kept one.
        if kept.last().is_none_or(|last| !path.starts_with(last)) {
            kept.push(path);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(edges: &[&[usize]]) -> Vec<BTreeSet<usize>> {
        edges.iter().map(|on| on.iter().copied().collect()).collect()
    }

    #[test]
    fn the_order_is_topological_and_stable() {
        for (graph, wanted) in [
            (edges(&[]), Ok(vec![])),
            (edges(&[&[], &[], &[]]), Ok(vec![0, 1, 2])),
            (edges(&[&[2], &[], &[]]), Ok(vec![1, 2, 0])),
            (edges(&[&[1], &[2], &[]]), Ok(vec![2, 1, 0])),
            (edges(&[&[], &[0], &[0, 1]]), Ok(vec![0, 1, 2])),
            (edges(&[&[1], &[0]]), Err(vec![0, 1])),
            (edges(&[&[], &[3], &[1], &[2], &[1]]), Err(vec![1, 3, 2])),
            (edges(&[&[1], &[2], &[1]]), Err(vec![1, 2])),
        ] {
            assert_eq!(order(&graph), wanted, "{graph:?}");
        }
    }

    #[test]
    fn nested_paths_are_removed() {
        let path = |keys: &[&str]| keys.iter().map(|key| Segment::Key((*key).to_owned())).collect::<Vec<_>>();
        let paths =
            vec![path(&["status", "phase"]), path(&["status"]), path(&["spec", "a"]), path(&["spec", "a"])];
        assert_eq!(outermost(paths), [path(&["spec", "a"]), path(&["status"])]);
        assert_eq!(outermost(vec![path(&["a"]), vec![]]), [Vec::new()]);
    }
}

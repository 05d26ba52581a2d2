//! The paths that a value may come from.

use std::sync::Arc;

use super::Tracer;
use crate::diag::Location;
use crate::template::reads::{ReadPath, Segment};
use crate::template::value::Name;

/// The maximum number of paths of a value; beyond it the paths are recorded without further steps.
const MAX_PATHS: usize = 64;

/// The maximum number of steps of a path; deeper reads count as reading the whole value.
const MAX_SEGMENTS: usize = 32;

#[derive(Clone)]
struct Path {
    root: Name,
    segments: Vec<Segment>,
    location: Location,
    guarded: bool,
}

/// The paths that a value may come from. A value without paths is computed, and the paths of its inputs are recorded.
#[derive(Clone, Default)]
pub(super) struct Paths {
    all: Vec<Path>,
    pub(super) form: Form,
}

/// What of the values at the paths it is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Form {
    /// The value at the paths.
    #[default]
    Value,
    /// A list of the values at the paths.
    Elements,
    /// A list of pairs of a key and the value at the paths.
    Pairs,
    /// One pair of a key and the value at the paths.
    Pair,
    /// Too many paths: they are recorded and not followed further.
    Recorded,
}

impl Paths {
    /// A variable of the scope.
    pub(super) fn root(name: &Name, location: Location, guarded: bool) -> Self {
        let path = Path { root: Arc::clone(name), segments: Vec::new(), location, guarded };
        Self { all: vec![path], form: Form::Value }
    }

    /// The paths of a variable that is read at `location`.
    pub(super) fn read_at(mut self, location: &Location, guarded: bool) -> Self {
        for path in &mut self.all {
            path.location = location.clone();
            path.guarded |= guarded;
        }
        self
    }

    /// The same paths, which may be missing.
    pub(super) fn guarded_if(mut self, guarded: bool) -> Self {
        self.all.iter_mut().for_each(|path| path.guarded |= guarded);
        self
    }

    pub(super) fn with_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    pub(super) fn deeper(mut self, segment: &Segment, location: &Location) -> Self {
        for path in &mut self.all {
            if path.segments.len() < MAX_SEGMENTS {
                path.segments.push(segment.clone());
            }
            path.location = location.clone();
        }
        self
    }

    /// A list as the list of the paths of its items.
    pub(super) fn elements(self, location: &Location) -> Self {
        match self.form {
            Form::Value => self.deeper(&Segment::Any, location).with_form(Form::Elements),
            _ => self,
        }
    }

    /// An item of a list of which the paths of the items are known.
    pub(super) fn element(self) -> Self {
        match self.form {
            Form::Elements | Form::Value => self.with_form(Form::Value),
            Form::Pairs => self.with_form(Form::Pair),
            Form::Pair | Form::Recorded => Self::default(),
        }
    }
}

impl Tracer<'_> {
    /// Records that the value at the paths is read; with `flag`, only its state.
    pub(super) fn add(&mut self, paths: &Paths, flag: bool) {
        for path in &paths.all {
            let Path { root, segments, location, guarded } = path.clone();
            let (root, file, at) = (root.to_string(), location.source.name.clone(), location.span.start);
            if self.seen.insert((root.clone(), segments.clone(), guarded, flag, file, at)) {
                self.reads.paths.push(ReadPath { root, segments, location, guarded, flag });
            }
        }
    }

    /// The paths of a value that is one of the two.
    pub(super) fn either(&mut self, left: Paths, right: Paths) -> Paths {
        let recorded = left.form == Form::Recorded || right.form == Form::Recorded;
        if left.all.is_empty() && !recorded {
            return right;
        }
        if right.all.is_empty() && !recorded {
            return left;
        }
        let mut all = left.all.clone();
        for found in &right.all {
            let same = |known: &Path| {
                known.root == found.root && known.segments == found.segments && known.guarded == found.guarded
            };
            if !all.iter().any(same) {
                all.push(found.clone());
            }
        }
        if recorded || left.form != right.form || all.len() > MAX_PATHS {
            self.add(&left, false);
            self.add(&right, false);
            return Paths { all: Vec::new(), form: Form::Recorded };
        }
        Paths { all, form: left.form }
    }

    /// The paths after one more step.
    pub(super) fn below(&mut self, base: Paths, segment: &Segment, location: &Location) -> Paths {
        match (base.form, segment) {
            (Form::Value, _) => base.deeper(segment, location),
            // An item of a list of values.
            (Form::Elements, Segment::Index(_) | Segment::Any) => base.with_form(Form::Value),
            _ => {
                self.add(&base, false);
                Paths::default()
            }
        }
    }
}

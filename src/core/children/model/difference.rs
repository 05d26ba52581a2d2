//! How a live object may differ from the desired one.

/// How a live object differs from the desired one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::children) enum Difference {
    /// There is nothing to apply.
    Current,
    /// There is no live object.
    Missing,
    /// The object was last applied with another desired object.
    Outdated,
    /// The object was last applied with this desired object, and has changed since.
    Drifted(Drift),
    /// The object is being deleted: nothing can be applied until it is gone.
    Terminating {
        /// Whether it was last applied with another desired object.
        is_outdated: bool,
    },
}

/// What shows that an object has drifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::children) enum Drift {
    /// Our entry of managedFields lacks fields of the desired object.
    FieldsLost,
    /// Our entry of managedFields has more than the desired object.
    ForeignFields,
    /// Another client changed the object, and metadata cannot show whether the change concerns what we apply.
    Unexplained,
    /// The object was applied for a package that has handed the kind over since.
    FormerPackage,
}

impl Difference {
    /// Whether an apply gives the child a new desired object. (All else restores the one it has.)
    pub(in crate::children) fn is_change(self) -> bool {
        matches!(self, Self::Missing | Self::Outdated)
    }
}

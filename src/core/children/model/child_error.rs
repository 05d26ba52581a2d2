//! Why a child has no desired object now, and the limits of an instance.

use std::fmt;

use crate::api::Gvk;
use crate::template::EvalError;

/// How many children an instance may have.
pub const MAX_CHILDREN: usize = 1_000;

/// How much memory one field of an object (`spec`, `status`, `data`) takes at most, in bytes. As JSON an object has at most
/// 1.5 MiB; many small maps take fifty times that in memory.
pub const MAX_FIELD_BYTES: usize = 4 << 20;

/// Why a child has no desired object now. Its last desired object is kept, and it is not pruned.
#[derive(Debug, Clone)]
pub enum ChildError {
    /// An expression or template of it has no value.
    Eval(EvalError),
    /// The rendered object cannot be a child.
    Invalid {
        /// What is wrong, and where.
        message: String,
    },
    /// The server does not serve the kind of the object, now or any more.
    KindMissing {
        /// The kind asked for.
        gvk: Gvk,
    },
    /// The server does not serve the kind of the object, or serves it in another version only, and it is known what
    /// may have been meant.
    KindNotServed {
        /// What the server serves, and what to do.
        reason: String,
    },
    /// The child reads another one whose `when` is false.
    DependencyAbsent {
        /// The child that it reads, and what to do.
        message: String,
    },
    /// Objects of the kind cannot be read.
    KindUnknown {
        /// Why the objects cannot be read.
        reason: String,
    },
    /// The instance has more children than an instance may have.
    TooMany,
}

impl ChildError {
    /// The reason in a condition, in camel case.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Eval(EvalError::Unknown { .. }) | Self::KindUnknown { .. } => "DependencyUnknown",
            Self::Eval(error @ EvalError::NotYet(_)) if !error.is_mixed() => "DependencyNotReady",
            Self::Eval(EvalError::Limit(_)) => "LimitExceeded",
            Self::Eval(_) => "RenderFailed",
            Self::Invalid { .. } => "InvalidChild",
            Self::KindMissing { .. } | Self::KindNotServed { .. } => "KindMissing",
            Self::DependencyAbsent { .. } => "DependencyAbsent",
            Self::TooMany => "TooManyChildren",
        }
    }

    /// Whether it is no mistake: what the child reads does not exist yet, or is not known.
    pub fn is_waiting(&self) -> bool {
        match self {
            Self::Eval(error @ EvalError::NotYet(_)) => !error.is_mixed(),
            Self::Eval(EvalError::Unknown { .. }) | Self::KindUnknown { .. } => true,
            _ => false,
        }
    }
}

impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eval(error) => error.fmt(f),
            Self::Invalid { message } | Self::DependencyAbsent { message } => f.write_str(message),
            Self::KindMissing { gvk } => {
                write!(f, "the API server does not serve {gvk}; is its CRD installed?")
            }
            Self::KindNotServed { reason } | Self::KindUnknown { reason } => f.write_str(reason),
            Self::TooMany => {
                write!(f, "more than {MAX_CHILDREN} children; an instance may have {MAX_CHILDREN}")
            }
        }
    }
}

impl From<EvalError> for ChildError {
    fn from(error: EvalError) -> Self {
        Self::Eval(error)
    }
}

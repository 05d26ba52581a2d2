//! What a case says is not there. That says something only if it could be there.

use std::fmt;

use crate::diag::{Diagnostic, Location, did_you_mean};

/// Something that a case says is not there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Absence {
    /// The instance that the case is about.
    Instance,
    Object {
        namespace: String,
        kind: String,
        name: String,
    },
    /// A member of a child.
    Member {
        id: String,
        key: String,
    },
    /// Objects with this name, or with names that begin so, in any namespace.
    Named {
        kind: String,
        name: String,
        is_start: bool,
    },
    /// A value of objects.
    Value(Owner, Vec<Place>),
}

/// The objects of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    Instance,
    Child(String),
    Kind(String),
}

/// A step of the path to a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Key(String),
    /// The items of a list.
    Items,
}

/// An absence of which only a play can tell whether it says something: what is absent must be there at some moment.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(super) absence: Absence,
    pub(super) location: Location,
    /// The name that is meant, if another one is like it.
    pub(super) meant: Option<String>,
}

impl Claim {
    /// A claim. `known`: the names of what is there in cases.
    pub(super) fn new<'k>(
        absence: Absence,
        location: Location,
        known: impl IntoIterator<Item = &'k str>,
    ) -> Self {
        let meant = absence.name().and_then(|name| did_you_mean(name, known)).map(str::to_owned);
        Self { absence, location, meant }
    }

    /// The mistake of a case in which it was never there. It has a help only if another name is meant.
    pub(super) fn mistake(&self) -> Diagnostic {
        let message = format!("{}: that it is absent says nothing", self.absence);
        let error = Diagnostic::error("test::vacuous", message).located(self.location.clone());
        match &self.meant {
            Some(meant) => error.help(format!("did you mean `{meant}`?")),
            None => error,
        }
    }
}

impl Absence {
    /// The name that may be misspelt.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Object { name, .. } | Self::Named { name, .. } => Some(name),
            Self::Member { key, .. } => Some(key),
            Self::Instance | Self::Value(..) => None,
        }
    }
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance => f.write_str("the instance is never there"),
            Self::Object { namespace, kind, name } if namespace == "default" => {
                write!(f, "{kind}/{name} is never there")
            }
            Self::Object { namespace, kind, name } => write!(f, "{namespace}/{kind}/{name} is never there"),
            Self::Member { id, key } => write!(f, "child {id}[{key}] is never there"),
            Self::Named { kind, name, is_start: false } => write!(f, "{kind}/{name} is never there"),
            Self::Named { kind, name, is_start: true } => {
                write!(f, "a {kind} whose name begins with `{name}` is never there")
            }
            Self::Value(owner, places) => {
                match owner {
                    Owner::Instance => f.write_str("instance: ")?,
                    Owner::Child(id) => write!(f, "child {id}: ")?,
                    Owner::Kind(kind) => write!(f, "{kind}: ")?,
                }
                for (index, place) in places.iter().enumerate() {
                    match place {
                        Place::Key(key) if index == 0 => f.write_str(key)?,
                        Place::Key(key) => write!(f, ".{key}")?,
                        Place::Items => f.write_str("[]")?,
                    }
                }
                f.write_str(" never has a value")
            }
        }
    }
}

//! The values with which expressions compute. They are converted from JSON and to JSON. In between they are
//! shared by `Arc`, so that copies are cheap.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use operetta_kube_model::quantity::Quantity;
use serde_json::{Number, Value};

use super::builtins::secrets::{is_generated, not_computable};
use super::code::Piece;
use super::errors::{Fault, Res};
use super::json::json_bytes;
use super::limits::{Run, VALUE_DEPTH};
use super::scope::{Function, Lets};

/// The field of a live object that its controller writes.
pub(super) const STATUS: &str = "status";

/// A name or a key.
pub(super) type Name = Arc<str>;

#[derive(Clone)]
pub(super) enum Val {
    Undefined,
    Null,
    Bool(bool),
    /// Within the range from `i64::MIN` to `u64::MAX`.
    Int(i128),
    /// Finite.
    Float(f64),
    Str(Arc<str>),
    List(Arc<List>),
    Map(Arc<Map>),
    /// A map whose keys keep their type.
    Keyed(Arc<Keyed>),
    /// JSON that is converted where it is read; with flags, a live object.
    Live(Arc<LiveVal>),
    /// A value that could not be read.
    Unknown(Arc<Unknown>),
    /// Omits the key or item that has this value.
    Omit,
    /// Text of the template with values in it: the result of a macro or a `set` block.
    Fragment(Arc<Vec<Piece>>),
    Version(Arc<semver::Version>),
    Quantity(Quantity),
    Lets(Arc<Lets>),
    Function(Function),
    Loop(Arc<LoopVal>),
    Namespace(Arc<Mutex<BTreeMap<Name, Val>>>),
}

/// Writes only the type, because values may be secret.
impl fmt::Debug for Val {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

#[derive(Clone)]
pub(super) struct List {
    pub(super) items: Vec<Val>,
    /// Whether it is part of the status of a live object: see [`Val::absent`].
    pub(super) of_status: bool,
    depth: u16,
}

#[derive(Clone)]
pub(super) struct Map {
    pub(super) entries: BTreeMap<Name, Val>,
    /// Whether it is part of the status of a live object: see [`Val::absent`].
    pub(super) of_status: bool,
    depth: u16,
}

pub(super) struct Keyed {
    pub(super) entries: Vec<(Val, Val)>,
    depth: u16,
}

/// The state of a live object beside its content: see [`super::Live`].
#[derive(Clone, Copy)]
pub(super) struct Flags {
    pub(super) ready: bool,
    pub(super) current: bool,
    pub(super) kept: bool,
}

pub(super) struct LiveVal {
    pub(super) json: Arc<Value>,
    /// The state of the object, if it is a live object.
    pub(super) flags: Option<Flags>,
    whole: OnceLock<Val>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unknown {
    pub(super) path: String,
    pub(super) reason: String,
    /// Whether it is a field that is absent from the status of a live object: see [`Val::absent`].
    pub(super) absent: bool,
}

/// The variable `loop` of a `for`.
pub(super) struct LoopVal {
    pub(super) index0: usize,
    pub(super) length: usize,
    pub(super) depth0: usize,
    pub(super) previous: Val,
    pub(super) next: Val,
}

impl LiveVal {
    pub(super) fn new(json: Arc<Value>, flags: Option<Flags>) -> Self {
        Self { json, flags, whole: OnceLock::new() }
    }

    /// The whole object, converted once.
    pub(super) fn whole(&self) -> &Val {
        self.whole.get_or_init(|| Val::from_json(&self.json))
    }

    /// A field of the object.
    pub(super) fn field(&self, run: &Run<'_>, name: &str) -> Res<Val> {
        let of_status = name == STATUS;
        match self.json.get(name) {
            Some(found) if of_status => Val::of_status(run, found),
            Some(found) => Val::converted(run, found),
            None if of_status => Ok(Val::absent(run, name)),
            None => Ok(Val::Undefined),
        }
    }
}

fn depth_of(val: &Val) -> u16 {
    match val {
        Val::List(list) => list.depth,
        Val::Map(map) => map.depth,
        Val::Keyed(keyed) => keyed.depth,
        // The parser bounds the JSON of a live object to 128 levels. It can be an item of a list of live
        // objects, but not be nested deeper.
        Val::Live(_) => 1,
        _ => 0,
    }
}

fn depth<'a>(items: impl Iterator<Item = &'a Val>) -> Res<u16> {
    let mut deepest = 0;
    for item in items {
        if matches!(item, Val::Namespace(_)) {
            // Otherwise a value could contain itself.
            return Err(Fault::failed("a namespace cannot be put into a list, a map or a namespace"));
        }
        deepest = deepest.max(depth_of(item));
    }
    if deepest >= VALUE_DEPTH {
        return Err(Fault::limit(
            format!("a value is nested more than {VALUE_DEPTH} levels deep"),
            "nest less",
        ));
    }
    Ok(deepest + 1)
}

impl Val {
    pub(super) fn str(text: impl Into<Arc<str>>) -> Self {
        Self::Str(text.into())
    }

    /// A list. The caller has charged its items.
    pub(super) fn list(items: Vec<Val>) -> Res<Self> {
        let depth = depth(items.iter())?;
        Ok(Self::List(Arc::new(List { items, of_status: false, depth })))
    }

    /// A map. The caller has charged its items.
    pub(super) fn map(entries: BTreeMap<Name, Val>) -> Res<Self> {
        let depth = depth(entries.values())?;
        Ok(Self::Map(Arc::new(Map { entries, of_status: false, depth })))
    }

    /// A map with keys of any scalar type. The caller has charged its items.
    pub(super) fn keyed(entries: Vec<(Val, Val)>) -> Res<Self> {
        let depth = depth(entries.iter().map(|(_, value)| value))?;
        Ok(Self::Keyed(Arc::new(Keyed { entries, depth })))
    }

    pub(super) fn int(int: i128) -> Res<Self> {
        if (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&int) {
            Ok(Self::Int(int))
        } else {
            Err(Fault::failed("the result does not fit 64 bits"))
        }
    }

    pub(super) fn float(float: f64) -> Res<Self> {
        if float.is_finite() {
            Ok(Self::Float(float))
        } else {
            Err(Fault::failed("the result is not a finite number"))
        }
    }

    pub(super) fn usize(count: usize) -> Self {
        Self::Int(count as i128)
    }

    /// Converts from JSON. A value that is nested too deep becomes unknown, so that reading it is an error.
    pub(super) fn from_json(value: &Value) -> Self {
        Self::from_json_within(value, VALUE_DEPTH)
    }

    fn from_json_within(value: &Value, levels: u16) -> Self {
        let too_deep = || {
            Self::Unknown(Arc::new(Unknown {
                path: "a value".into(),
                reason: format!("it is nested more than {VALUE_DEPTH} levels deep"),
                absent: false,
            }))
        };
        match value {
            Value::Null => Self::Null,
            Value::Bool(bool) => Self::Bool(*bool),
            Value::Number(number) => Self::from_number(number),
            Value::String(text) => Self::str(text.as_str()),
            Value::Array(_) | Value::Object(_) if levels == 0 => too_deep(),
            Value::Array(items) => {
                Self::list(items.iter().map(|item| Self::from_json_within(item, levels - 1)).collect())
                    .unwrap_or_else(|_| too_deep())
            }
            Value::Object(entries) => Self::map(
                entries
                    .iter()
                    .map(|(key, item)| (key.as_str().into(), Self::from_json_within(item, levels - 1)))
                    .collect(),
            )
            .unwrap_or_else(|_| too_deep()),
        }
    }

    /// Converts JSON and charges it: a part of a live object, or the input of a filter.
    pub(super) fn converted(run: &Run<'_>, value: &Value) -> Res<Self> {
        run.memory(json_bytes(value))?;
        Ok(Self::from_json(value))
    }

    /// Converts and charges the JSON of the status of a live object or of a part of it.
    pub(super) fn of_status(run: &Run<'_>, value: &Value) -> Res<Self> {
        Ok(Self::converted(run, value)?.marked())
    }

    /// Marks the value and everything in it as part of a status.
    fn marked(self) -> Self {
        match self {
            Self::List(list) => {
                let mut list = Arc::unwrap_or_clone(list);
                list.of_status = true;
                list.items = list.items.into_iter().map(Self::marked).collect();
                Self::List(Arc::new(list))
            }
            Self::Map(map) => {
                let mut map = Arc::unwrap_or_clone(map);
                map.of_status = true;
                map.entries = map.entries.into_iter().map(|(key, value)| (key, value.marked())).collect();
                Self::Map(Arc::new(map))
            }
            other => other,
        }
    }

    /// The result of a filter or method. It is part of a status if the input was.
    pub(super) fn drawn_from(self, run: &Run<'_>, source: &Self, name: &str) -> Self {
        let of_status = match source {
            Self::List(list) => list.of_status,
            Self::Map(map) => map.of_status,
            _ => false,
        };
        match self {
            Self::Undefined if of_status => Self::absent(run, name),
            Self::List(list) if of_status && !list.of_status => {
                let mut list = Arc::unwrap_or_clone(list);
                list.of_status = true;
                Self::List(Arc::new(list))
            }
            Self::Map(map) if of_status && !map.of_status => {
                let mut map = Arc::unwrap_or_clone(map);
                map.of_status = true;
                Self::Map(Arc::new(map))
            }
            other => other,
        }
    }

    /// The value of a field that is absent from the status of a live object. Controllers omit zeros and write
    /// late, so in a decision it is unknown, and only `is defined` and `default(...)` treat it as absent.
    /// Outside decisions it is undefined.
    pub(super) fn absent(run: &Run<'_>, path: &str) -> Self {
        if !run.decides {
            return Self::Undefined;
        }
        let reason = "the status of the object does not have it; if that has a meaning, say it: `| default(...)`, \
                      or ask `is defined`";
        Self::Unknown(Arc::new(Unknown { path: path.to_owned(), reason: reason.to_owned(), absent: true }))
    }

    /// Whether it is undefined or a field that is absent from the status of a live object.
    pub(super) fn is_absent(&self) -> bool {
        match self {
            Self::Undefined => true,
            Self::Unknown(unknown) => unknown.absent,
            _ => false,
        }
    }

    fn from_number(number: &Number) -> Self {
        if let Some(int) = number.as_i64() {
            Self::Int(int.into())
        } else if let Some(int) = number.as_u64() {
            Self::Int(int.into())
        } else {
            number.as_f64().map_or(Self::Null, Self::Float)
        }
    }

    /// The name of its type, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Undefined => "undefined",
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Str(_) | Self::Fragment(_) => "a string",
            Self::List(_) => "a list",
            Self::Live(live) if live.flags.is_none() => live.whole().kind(),
            Self::Live(_) => "an object",
            Self::Map(_) | Self::Keyed(_) => "a map",
            Self::Unknown(_) => "unknown",
            Self::Omit => "`omit`",
            Self::Version(_) => "a version",
            Self::Quantity(_) => "a quantity",
            Self::Lets(_) => "the set of all lets",
            Self::Function(_) => "a function",
            Self::Loop(_) => "the loop",
            Self::Namespace(_) => "a namespace",
        }
    }

    /// Fails if it is unknown.
    pub(super) fn known(&self) -> Res<&Self> {
        match self {
            Self::Unknown(unknown) => Err(Fault::Unknown(Arc::clone(unknown))),
            other => Ok(other),
        }
    }

    /// Fails if it is unknown or undefined.
    pub(super) fn defined(&self) -> Res<&Self> {
        match self.known()? {
            Self::Undefined => Err(Fault::undefined("a value is undefined")),
            other => Ok(other),
        }
    }

    pub(super) fn truthy(&self) -> Res<bool> {
        Ok(match self {
            Self::Undefined | Self::Null => false,
            Self::Bool(bool) => *bool,
            Self::Int(int) => *int != 0,
            Self::Float(float) => *float != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Map(map) => !map.entries.is_empty(),
            Self::Keyed(keyed) => !keyed.entries.is_empty(),
            Self::Live(live) => match &*live.json {
                Value::Null => false,
                Value::Bool(bool) => *bool,
                Value::Number(number) => number.as_f64() != Some(0.0),
                Value::String(text) => !text.is_empty(),
                Value::Array(items) => !items.is_empty(),
                Value::Object(entries) => !entries.is_empty(),
            },
            Self::Fragment(pieces) => !pieces.is_empty(),
            Self::Unknown(unknown) => return Err(Fault::Unknown(Arc::clone(unknown))),
            Self::Omit => return Err(Fault::failed("`omit` is not a value and cannot be tested")),
            Self::Quantity(quantity) => !quantity.is_zero(),
            Self::Version(_) | Self::Lets(_) | Self::Function(_) | Self::Loop(_) | Self::Namespace(_) => true,
        })
    }

    /// The value itself: JSON is converted, and a fragment becomes a string.
    pub(super) fn resolved(&self, run: &Run<'_>) -> Res<Cow<'_, Self>> {
        match self {
            Self::Live(live) => Ok(Cow::Borrowed(live.whole())),
            Self::Fragment(_) => Ok(Cow::Owned(Self::Str(self.text(run)?))),
            other => Ok(Cow::Borrowed(other)),
        }
    }

    /// The text form: the text that it becomes in a string beside other text.
    pub(super) fn text(&self, run: &Run<'_>) -> Res<Arc<str>> {
        let wrong = |what: &str, help: &str| {
            Err(Fault::failed(format!("{what} cannot be part of a text")).help(help.to_owned()))
        };
        Ok(match self {
            Self::Str(text) => Arc::clone(text),
            Self::Bool(bool) => Arc::from(if *bool { "true" } else { "false" }),
            Self::Int(int) => int.to_string().into(),
            Self::Float(float) => float.to_string().into(),
            Self::Version(version) => version.to_string().into(),
            Self::Quantity(quantity) => quantity.to_string().into(),
            Self::Fragment(pieces) => {
                let mut out = String::new();
                for piece in pieces.iter() {
                    let part = match piece {
                        Piece::Raw(raw, _) => Arc::clone(raw),
                        Piece::Slot(slot) => slot.val.clone()?.text(run)?,
                    };
                    run.fuel(1)?;
                    run.memory(part.len())?;
                    out.push_str(&part);
                }
                out.into()
            }
            Self::Live(live) if live.flags.is_none() => return live.whole().text(run),
            Self::Undefined | Self::Unknown(_) => return self.defined().map(|_| Arc::from("")),
            Self::Null => return wrong("null", "add a default: `| default('')`"),
            Self::Omit => return wrong("`omit`", "it must be the whole value"),
            Self::List(_) => return wrong("a list", "use `| join(',')` or `| to_json`"),
            Self::Map(_) if is_generated(self) => return Err(not_computable()),
            Self::Map(_) | Self::Keyed(_) | Self::Live(_) => {
                return wrong(self.kind(), "name one of its fields, or use `| to_json`");
            }
            Self::Lets(_) | Self::Function(_) | Self::Loop(_) | Self::Namespace(_) => {
                return wrong(self.kind(), "name one of its fields");
            }
        })
    }

    /// The items of a list, or the keys of a map.
    pub(super) fn iterate(&self, run: &Run<'_>) -> Res<Vec<Val>> {
        if is_generated(self) {
            return Err(not_computable());
        }
        let resolved = self.defined()?.resolved(run)?;
        let items: Vec<Val> = match &*resolved {
            Self::List(list) => {
                run.items(list.items.len())?;
                list.items.clone()
            }
            Self::Map(map) => {
                run.items(map.entries.len())?;
                map.entries.keys().map(|key| Self::Str(Arc::clone(key))).collect()
            }
            Self::Keyed(keyed) => {
                run.items(keyed.entries.len())?;
                keyed.entries.iter().map(|(key, _)| key.clone()).collect()
            }
            Self::Null => {
                return Err(Fault::failed("null is not a list").help("use `| default([])`"));
            }
            other => return Err(Fault::failed(format!("{} is not a list", other.kind()))),
        };
        Ok(items)
    }

    /// Keys and values of a map.
    pub(super) fn entries(&self, run: &Run<'_>) -> Res<Vec<(Val, Val)>> {
        let resolved = self.defined()?.resolved(run)?;
        match &*resolved {
            Self::Map(map) => {
                run.items(map.entries.len() * 2)?;
                Ok(map.entries.iter().map(|(k, v)| (Self::Str(Arc::clone(k)), v.clone())).collect())
            }
            Self::Keyed(keyed) => {
                run.items(keyed.entries.len() * 2)?;
                Ok(keyed.entries.clone())
            }
            other => Err(Fault::failed(format!("{} is not a map", other.kind()))),
        }
    }
}

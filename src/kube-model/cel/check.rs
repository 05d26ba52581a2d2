//! What can be known about the types of an expression before it is evaluated. It finds misspelt names and fields, operands
//! that do not fit, and results of the wrong type; a type that is not known fits everywhere.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kube_cel::cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use serde_json::Value;

use super::names::{PLAIN, TYPES, escaped, variable};

/// The type of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// Not known before the evaluation.
    Dyn,
    /// A boolean.
    Bool,
    /// A whole number.
    Int,
    /// Another number.
    Double,
    /// A text.
    String,
    /// A list of such values.
    List(Box<Type>),
    /// A map of such values.
    Map(Box<Type>),
    /// An object with these fields, as expressions name them. They are shared: an expression selects many.
    Object(Arc<BTreeMap<String, Type>>),
    /// A type that fits nothing else by its operators: times, bytes, quantities.
    Other,
}

impl Type {
    /// The type that a schema describes. `is_root` is whether it is that of a whole custom resource.
    pub fn of(schema: &Value, is_root: bool) -> Self {
        if schema["x-kubernetes-int-or-string"] == true {
            return Self::Dyn;
        }
        match schema["type"].as_str().unwrap_or_default() {
            "boolean" => Self::Bool,
            "integer" => Self::Int,
            "number" => Self::Double,
            "string" => match schema["format"].as_str() {
                Some("date-time" | "date" | "duration" | "byte") => Self::Other,
                _ => Self::String,
            },
            "array" => Self::List(Self::of(&schema["items"], false).into()),
            "object" if schema["additionalProperties"].is_object() => {
                Self::Map(Self::of(&schema["additionalProperties"], false).into())
            }
            "object" if schema["properties"].is_object() || is_root => {
                let is_plain = schema[PLAIN] == true;
                let name = |name: &str| if is_plain { name.to_owned() } else { escaped(name) };
                let known = schema["properties"].as_object().into_iter().flatten();
                let known = known.map(|(known, below)| (name(known), Self::of(below, false)));
                let mut fields: BTreeMap<String, Self> = known.collect();
                if is_root || schema["x-kubernetes-embedded-resource"] == true {
                    let texts = |names: [&str; 2]| names.map(|name| (name.to_owned(), Self::String));
                    let metadata = BTreeMap::from(texts(["name", "generateName"]));
                    fields.extend(texts(["apiVersion", "kind"]));
                    fields.insert("metadata".to_owned(), Self::Object(metadata.into()));
                }
                Self::Object(fields.into())
            }
            _ => Self::Dyn,
        }
    }

    /// The name of the type in CEL.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Dyn => "dyn",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Double => "double",
            Self::String => "string",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Object(_) => "object",
            Self::Other => "value",
        }
    }

    fn is_scalar(&self) -> bool {
        matches!(self, Self::Bool | Self::Int | Self::Double | Self::String)
    }

    fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Double)
    }

    /// Whether an operator may get both types.
    fn fits(&self, other: &Self) -> bool {
        !(self.is_scalar()
            && (other.is_scalar() && self != other
                || matches!(other, Self::List(_) | Self::Map(_) | Self::Object(_))))
    }

    /// A type for values of both.
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::List(a), Self::List(b)) => Self::List(match (*a, *b) {
                (Self::Dyn, other) | (other, Self::Dyn) => other.into(),
                (a, b) => a.join(b).into(),
            }),
            (a, b) if a == b => a,
            _ => Self::Dyn,
        }
    }
}

/// Why an expression is not compiled.
#[derive(Debug, Clone, PartialEq)]
pub enum Problem {
    /// It is no CEL: why, and what to do.
    Syntax(String, String),
    /// There is no variable of this name.
    NoVariable(String),
    /// There is no function of this name.
    NoFunction(String),
    /// An object, as the expression names it, has no field of this name, but these.
    NoField(String, String, Vec<String>),
    /// A value, as the expression names it, has no field of this name: its type has none.
    NoFields(String, String, Type),
    /// A function or operator does not take values of these types.
    NoOverload(String, Vec<Type>),
    /// Something that another server may accept.
    Other(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(why, _) => write!(f, "Syntax error: {why}"),
            Self::NoVariable(name) | Self::NoFunction(name) => {
                write!(f, "undeclared reference to '{name}' (in container '')")
            }
            Self::NoField(_, name, _) => write!(f, "undefined field '{name}'"),
            Self::NoFields(_, _, of) => write!(f, "type '{}' does not support field selection", of.name()),
            Self::NoOverload(name, args) => {
                let args: Vec<&str> = args.iter().map(Type::name).collect();
                write!(f, "found no matching overload for '{name}' applied to '({})'", args.join(", "))
            }
            Self::Other(why) => f.write_str(why),
        }
    }
}

/// The variables that an expression may read.
#[derive(Debug, Clone, Default)]
pub struct Environment<'a> {
    names: Vec<(Cow<'a, str>, Type)>,
}

type Found = Result<Type, Problem>;

impl<'a> Environment<'a> {
    /// Declares a variable.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, found: Type) -> Self {
        self.names.push((name.into(), found));
        self
    }

    fn get(&self, name: &str) -> Option<&Type> {
        self.names.iter().rev().find(|(known, _)| known == name).map(|(_, found)| found)
    }

    /// The type of an expression, or why it has none.
    pub(super) fn infer(&self, expr: &IdedExpr) -> Found {
        match &expr.expr {
            Expr::Literal(literal) => Ok(match literal {
                LiteralValue::Boolean(_) => Type::Bool,
                LiteralValue::Int(_) => Type::Int,
                LiteralValue::Double(_) => Type::Double,
                LiteralValue::String(_) => Type::String,
                LiteralValue::Null => Type::Dyn,
                _ => Type::Other,
            }),
            Expr::Ident(name) if TYPES.contains(&&**name) && self.get(name).is_none() => Ok(Type::Dyn),
            Expr::Ident(name) => self.get(name).cloned().ok_or_else(|| Problem::NoVariable(name.clone())),
            Expr::Select(select) if matches!(&select.operand.expr, Expr::Ident(name) if name == "variables") =>
            {
                let found = self.get(&variable(&select.field)).cloned();
                found
                    .ok_or_else(|| Problem::NoField("variables".to_owned(), select.field.clone(), Vec::new()))
            }
            Expr::Select(select) => {
                let found = self.field(&select.operand, &select.field)?;
                Ok(if select.test { Type::Bool } else { found })
            }
            Expr::List(list) => {
                let mut items = Vec::new();
                for item in &list.elements {
                    items.push(self.infer(item)?);
                }
                Ok(Type::List(items.into_iter().reduce(Type::join).unwrap_or(Type::Dyn).into()))
            }
            Expr::Map(map) => {
                let mut values = Vec::new();
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.infer(&entry.key)?;
                        values.push(self.infer(&entry.value)?);
                    }
                }
                Ok(Type::Map(values.into_iter().reduce(Type::join).unwrap_or(Type::Dyn).into()))
            }
            Expr::Comprehension(found) => self.loops(found),
            Expr::Call(call) if call.func_name == "_?._" => {
                if let [of, IdedExpr { expr: Expr::Literal(LiteralValue::String(name)), .. }] = &call.args[..]
                {
                    self.field(of, name.inner())?;
                }
                Ok(Type::Dyn)
            }
            Expr::Call(call) => {
                let mut name = call.func_name.clone();
                let mut args = Vec::new();
                match call.target.as_deref() {
                    Some(IdedExpr { expr: Expr::Ident(space), .. }) if self.get(space).is_none() => {
                        name = format!("{space}.{name}");
                    }
                    Some(target) => args.push(self.infer(target)?),
                    None => {}
                }
                for arg in &call.args {
                    args.push(self.infer(arg)?);
                }
                result(&name, args)
            }
            Expr::Struct(found) => {
                Err(Problem::Other(format!("undeclared reference to '{}'", found.type_name)))
            }
            Expr::Unspecified => Err(Problem::Other("the expression is empty".to_owned())),
        }
    }

    /// The type of a field of what `of` gives.
    fn field(&self, of: &IdedExpr, name: &str) -> Found {
        match self.infer(of)? {
            Type::Object(fields) => fields.get(name).cloned().ok_or_else(|| {
                let known = fields.keys().cloned().collect();
                Problem::NoField(written(of), name.to_owned(), known)
            }),
            Type::Map(value) => Ok(*value),
            Type::Dyn | Type::Other => Ok(Type::Dyn),
            other => Err(Problem::NoFields(written(of), name.to_owned(), other)),
        }
    }

    fn loops(&self, found: &ComprehensionExpr) -> Found {
        if found.iter_var2.is_some() {
            return Err(Problem::Other("macros with two variables are not supported".to_owned()));
        }
        let item = match self.infer(&found.iter_range)? {
            Type::List(item) => *item,
            Type::Map(_) => Type::String,
            Type::Dyn => Type::Dyn,
            other => {
                let why = format!("expression of type '{}' cannot be range of a comprehension", other.name());
                return Err(Problem::Other(why));
            }
        };
        let start = self.infer(&found.accu_init)?;
        let inner = self.clone().with(&*found.accu_var, start.clone()).with(&*found.iter_var, item);
        inner.infer(&found.loop_cond)?;
        let next = inner.infer(&found.loop_step)?;
        self.clone().with(&*found.accu_var, start.join(next)).infer(&found.result)
    }
}

/// An expression as it is written, as far as that names a value: without what is computed.
fn written(expr: &IdedExpr) -> String {
    match &expr.expr {
        Expr::Ident(name) => name.clone(),
        Expr::Select(select) => format!("{}.{}", written(&select.operand), select.field),
        Expr::Call(call) if matches!(&*call.func_name, "_[_]" | "_[?_]") => {
            format!("{}[]", call.args.first().map(written).unwrap_or_default())
        }
        _ => "(...)".to_owned(),
    }
}

/// The type that a function or operator returns.
fn result(name: &str, mut args: Vec<Type>) -> Found {
    let mismatch = |args: &[Type]| Err(Problem::NoOverload(name.to_owned(), args.to_vec()));
    match name {
        "_&&_" | "_||_" | "!_" | "@not_strictly_false" => {
            let fits = args.iter().all(|arg| matches!(arg, Type::Bool | Type::Dyn));
            if fits { Ok(Type::Bool) } else { mismatch(&args) }
        }
        "_<_" | "_<=_" | "_>_" | "_>=_" if args.iter().all(Type::is_number) => Ok(Type::Bool),
        "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" => match &args[..] {
            [a, b] if !(a.fits(b) && b.fits(a)) => mismatch(&args),
            _ => Ok(Type::Bool),
        },
        "_+_" | "_-_" | "_*_" | "_/_" | "_%_" => match &args[..] {
            [a, b]
                if !(a.fits(b) && b.fits(a))
                    || matches!((a, name), (Type::Bool, _) | (Type::String, "_-_" | "_*_")) =>
            {
                mismatch(&args)
            }
            _ => Ok(args.into_iter().reduce(Type::join).unwrap_or(Type::Dyn)),
        },
        "_?_:_" if args.len() == 3 => {
            let rest = args.split_off(1);
            match args[..] {
                [Type::Bool | Type::Dyn] => Ok(rest.into_iter().reduce(Type::join).unwrap_or(Type::Dyn)),
                _ => mismatch(&[args, rest].concat()),
            }
        }
        "_[_]" => match &args[..] {
            [Type::List(item) | Type::Map(item), _] => Ok((**item).clone()),
            _ => Ok(Type::Dyn),
        },
        "size" => match &args[..] {
            [Type::Int | Type::Bool | Type::Double | Type::Object(_)] => mismatch(&args),
            _ => Ok(Type::Int),
        },
        name if has(BOOLS, name) => Ok(Type::Bool),
        name if has(TEXTS, name) => Ok(Type::String),
        "split" | "findAll" => Ok(Type::List(Type::String.into())),
        "int" | "indexOf" | "lastIndexOf" | "compareTo" => Ok(Type::Int),
        "double" => Ok(Type::Double),
        name if has(OTHERS, name) => Ok(Type::Dyn),
        name => Err(Problem::NoFunction(name.to_owned())),
    }
}

fn has(names: &str, name: &str) -> bool {
    names.split(' ').any(|known| known == name)
}

/// The functions that return a boolean, a text, or something else.
const BOOLS: &str = "\
    @in startsWith endsWith matches contains isSorted isQuantity isInteger isGreaterThan isLessThan \
    sets.contains sets.equivalent sets.intersects isSemver isIP isCIDR ip.isCanonical isLoopback \
    isUnspecified isLinkLocalMulticast isLinkLocalUnicast isGlobalUnicast containsIP containsCIDR \
    hasValue allowed errored isURL bool exists all exists_one isIPv4 isIPv6 isCIDRv4 isCIDRv6 has";

const TEXTS: &str = "\
    string charAt lowerAscii upperAscii replace substring trim join strings.quote format base64.encode \
    find jsonpatch.escapeKey reason error getScheme getHost";

const OTHERS: &str = "\
    type _[?_] _?._ -_ uint bytes timestamp duration dyn min max sum slice sort flatten distinct first \
    last lists.range reverse quantity asInteger asApproximateFloat sign add sub semver major minor patch \
    ip cidr family prefixLength masked base64.decode optional.none optional.of optional.ofNonZeroValue \
    value or orValue optMap optFlatMap validate getFullYear getMonth getDayOfYear getDayOfMonth getDate \
    getDayOfWeek getHours getMinutes getSeconds getMilliseconds format.named format.dns1123Label \
    format.dns1123Subdomain format.dns1035Label format.dns1035LabelPrefix format.dns1123LabelPrefix \
    format.dns1123SubdomainPrefix format.qualifiedName format.labelValue format.uri format.uuid \
    format.byte format.date format.datetime group resource subresource namespace name check path \
    serviceAccount fieldSelector labelSelector map filter @list @accu unwrap unwrapOpt";

//! Filters, tests and functions: those of MiniJinja with the same names and meanings but with limits, and
//! others that operator authors need. Each declares its parameters, so that a wrong call is an error when the
//! package is loaded.

mod checks;
mod data;
mod lists;
mod net;
mod numbers;
pub(super) mod secrets;
mod text;

use std::fmt;
use std::sync::Arc;

use super::errors::{Fault, Res};
use super::limits::Run;
use super::ops;
use super::value::{Name, STATUS, Val};

/// A filter: `value | name(...)`.
pub(super) struct Filter {
    pub(super) name: &'static str,
    pub(super) sig: Sig,
    /// Whether the input may be undefined.
    pub(super) lenient: bool,
    run: fn(&Run<'_>, &Val, &Args<'_>) -> Res<Val>,
}

/// A test: `value is name(...)`.
pub(super) struct Test {
    pub(super) name: &'static str,
    pub(super) sig: Sig,
    /// Whether it tests the state of the value without reading it.
    pub(super) flag: bool,
    run: fn(&Run<'_>, &Val, &Args<'_>) -> Res<bool>,
}

/// A function: `name(...)`.
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) sig: Sig,
    /// Whether it takes any keywords.
    pub(super) keywords: bool,
    pub(super) run: Call,
}

/// Receives the arguments, and the keywords that are not parameters.
type Call = fn(&Run<'_>, &Args<'_>, &[(Name, Val)]) -> Res<Val>;

/// The parameters of a filter, test or function.
pub(super) struct Sig {
    pub(super) params: &'static [&'static str],
    pub(super) required: usize,
    /// Whether positional arguments form a list, and `params` are keywords only.
    pub(super) rest: bool,
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Function {
    /// Whether its value is generated once and kept in the object.
    pub(super) fn generates(&self) -> bool {
        matches!(self.name, "password" | "tls_ca" | "tls_self_signed" | "tls_signed")
    }
}

impl Filter {
    pub(super) fn call(&self, run: &Run<'_>, input: &Val, args: &[Option<Val>]) -> Res<Val> {
        run.fuel(1)?;
        if !self.lenient {
            if secrets::is_generated(input) {
                return Err(secrets::not_computable());
            }
            input.defined()?;
        } else if !input.is_absent() {
            input.known()?;
        }
        let value = (self.run)(run, input, &Args { values: args, sig: &self.sig })?;
        Ok(if self.lenient { value } else { value.drawn_from(run, input, self.name) })
    }
}

impl Test {
    pub(super) fn call(&self, run: &Run<'_>, input: &Val, args: &[Option<Val>]) -> Res<bool> {
        run.fuel(1)?;
        if !self.flag && secrets::is_generated(input) {
            return Err(secrets::not_computable());
        }
        let asks_for_it = matches!(self.name, "defined" | "undefined") && input.is_absent();
        if self.name != "known" && !asks_for_it {
            input.known()?;
        }
        (self.run)(run, input, &Args { values: args, sig: &self.sig })
    }
}

/// The arguments of a call, in the order of the parameters, followed by the remaining positional arguments.
pub(super) struct Args<'a> {
    values: &'a [Option<Val>],
    sig: &'a Sig,
}

impl Args<'_> {
    /// The arguments of a function.
    pub(super) fn of_function<'a>(values: &'a [Option<Val>], function: &'static Function) -> Args<'a> {
        Args { values, sig: &function.sig }
    }

    /// The argument, if present.
    fn get(&self, index: usize) -> Option<&Val> {
        self.values.get(index)?.as_ref()
    }

    /// The argument, which must be present and defined.
    fn need(&self, index: usize) -> Res<&Val> {
        match self.get(index) {
            Some(value) => value.defined(),
            None => Err(Fault::failed(format!("the argument `{}` is missing", self.name(index)))),
        }
    }

    fn name(&self, index: usize) -> &'static str {
        self.sig.params.get(index).copied().unwrap_or("argument")
    }

    /// The positional arguments, if they form a list.
    fn rest(&self) -> &[Option<Val>] {
        self.values.get(self.sig.params.len()..).unwrap_or_default()
    }

    fn text(&self, run: &Run<'_>, index: usize) -> Res<Option<Arc<str>>> {
        self.get(index).map(|value| value.defined()?.text(run)).transpose()
    }

    fn need_text(&self, run: &Run<'_>, index: usize) -> Res<Arc<str>> {
        self.need(index)?.text(run)
    }

    fn int(&self, index: usize) -> Res<Option<i128>> {
        match self.get(index) {
            None | Some(Val::Null) => Ok(None),
            Some(Val::Int(int)) => Ok(Some(*int)),
            Some(other) => {
                other.defined()?;
                Err(Fault::failed(format!(
                    "the argument `{}` takes a whole number, not {}",
                    self.name(index),
                    other.kind()
                )))
            }
        }
    }

    /// A count that determines a size: at most `max`.
    fn count(&self, index: usize, default: usize, max: usize) -> Res<usize> {
        match self.int(index)? {
            None => Ok(default),
            Some(int) => match usize::try_from(int) {
                Ok(count) if count <= max => Ok(count),
                Ok(_) => Err(too_much(self.name(index), max)),
                Err(_) if int > 0 => Err(too_much(self.name(index), max)),
                Err(_) => {
                    Err(Fault::failed(format!("the argument `{}` cannot be negative", self.name(index))))
                }
            },
        }
    }

    fn flag(&self, index: usize, default: bool) -> Res<bool> {
        self.get(index).map_or(Ok(default), Val::truthy)
    }
}

fn too_much(name: &str, max: usize) -> Fault {
    Fault::limit(format!("the argument `{name}` exceeds the limit of {max}"), "use a smaller number")
}

/// Reads `value.a.b.0` for a path in a string, as in `map(attribute='a.b')`. It converts only that part of a
/// live object, because a filter may read one field of a thousand objects.
fn dotted(run: &Run<'_>, value: &Val, path: &str) -> Res<Val> {
    let mut steps = path.split('.');
    let mut found = match value {
        Val::Live(live) => {
            let json = steps.try_fold(&*live.json, |json, step| match json.as_array() {
                Some(items) => items.get(step.parse::<usize>().ok()?),
                None => json.get(step),
            });
            return match (json, path.split('.').next() == Some(STATUS)) {
                (Some(found), true) => Val::of_status(run, found),
                (Some(found), false) => Val::converted(run, found),
                (None, true) => Ok(Val::absent(run, path)),
                (None, false) => Ok(Val::Undefined),
            };
        }
        other => other.clone(),
    };
    for step in steps {
        found = match step.parse::<u32>() {
            Ok(index) if !matches!(found, Val::Map(_)) => ops::item(run, &found, &Val::Int(index.into()))?,
            _ => ops::attribute(run, &found, step)?,
        };
    }
    Ok(found)
}

macro_rules! sig {
    ($required:literal, $($param:literal),*) => {
        Sig { params: &[$($param),*], required: $required, rest: false }
    };
    (rest $required:literal, $($param:literal),*) => {
        Sig { params: &[$($param),*], required: $required, rest: true }
    };
}

macro_rules! filter {
    ($name:literal, $run:path, $($sig:tt)*) => {
        Filter { name: $name, sig: sig!($($sig)*), lenient: false, run: $run }
    };
}

macro_rules! test {
    ($name:literal, $run:path, $($sig:tt)*) => {
        Test { name: $name, sig: sig!($($sig)*), flag: false, run: $run }
    };
}

/// All filters, sorted by name.
static FILTERS: &[Filter] = &[
    filter!("abs", numbers::abs, 0,),
    filter!("attr", lists::attr, 1, "key"),
    filter!("b64decode", data::b64decode, 0,),
    filter!("b64encode", data::b64encode, 0,),
    filter!("batch", lists::batch, 1, "count", "fill"),
    filter!("bool", data::bool, 0,),
    filter!("capitalize", text::capitalize, 0,),
    filter!("chain", lists::chain, rest 0,),
    filter!("cidr_host", net::cidr_host, 1, "index"),
    filter!("cidr_network", net::cidr_network, 0,),
    filter!("cidr_prefix", net::cidr_prefix, 0,),
    filter!("cidr_subnet", net::cidr_subnet, 2, "bits", "index"),
    filter!("combine", lists::combine, 1, "other"),
    filter!("count", lists::length, 0,),
    Filter { name: "d", sig: sig!(0, "value", "boolean"), lenient: true, run: lists::default },
    Filter { name: "default", sig: sig!(0, "value", "boolean"), lenient: true, run: lists::default },
    filter!("dictsort", lists::dictsort, 0, "case_sensitive", "by", "reverse"),
    filter!("dns_label", text::dns_label, 0, "length"),
    filter!("first", lists::first, 0,),
    filter!("float", numbers::float, 0, "default"),
    filter!("format", text::format, rest 0,),
    filter!("from_json", data::from_json, 0,),
    filter!("from_yaml", data::from_yaml, 0,),
    filter!("groupby", lists::groupby, 1, "attribute", "default"),
    filter!("indent", text::indent, 0, "width", "first", "blank"),
    filter!("int", numbers::int, 0, "default", "base"),
    filter!("ip_version", net::ip_version, 0,),
    filter!("items", lists::items, 0,),
    filter!("join", lists::join, 0, "d", "attribute"),
    filter!("keys", lists::keys, 0,),
    filter!("known", lists::known, 0,),
    filter!("last", lists::last, 0,),
    filter!("length", lists::length, 0,),
    filter!("lines", text::lines, 0,),
    filter!("list", lists::list, 0,),
    filter!("lower", text::lower, 0,),
    filter!("map", lists::map, rest 0, "attribute", "default"),
    filter!("max", lists::max, 0, "attribute", "case_sensitive"),
    filter!("merge", lists::merge, 1, "other"),
    filter!("min", lists::min, 0, "attribute", "case_sensitive"),
    filter!("pprint", data::to_json_pretty, 0,),
    filter!("quantity", numbers::quantity, 0,),
    filter!("quantity_in", numbers::quantity_in, 1, "unit"),
    filter!("reject", lists::reject, rest 0,),
    filter!("rejectattr", lists::rejectattr, rest 0,),
    filter!("replace", text::replace, 2, "old", "new", "count"),
    filter!("reverse", lists::reverse, 0,),
    filter!("round", numbers::round, 0, "precision", "method"),
    filter!("select", lists::select, rest 0,),
    filter!("selectattr", lists::selectattr, rest 0,),
    filter!("semver", numbers::semver, 0,),
    filter!("sha256", data::sha256, 0,),
    filter!("shell_quote", text::shell_quote, 0,),
    filter!("slice", lists::slice, 1, "count", "fill"),
    filter!("sort", lists::sort, 0, "reverse", "case_sensitive", "attribute"),
    filter!("split", text::split, 0, "sep", "maxsplits"),
    filter!("sql_literal", text::sql_literal, 0,),
    filter!("string", text::string, 0,),
    filter!("sum", lists::sum, 0, "attribute", "start"),
    filter!("title", text::title, 0,),
    filter!("to_json", data::to_json, 0, "indent"),
    filter!("to_yaml", data::to_yaml, 0,),
    filter!("tojson", data::to_json, 0, "indent"),
    filter!("trim", text::trim, 0, "chars"),
    filter!("unique", lists::unique, 0, "case_sensitive", "attribute"),
    filter!("upper", text::upper, 0,),
    filter!("urlencode", text::urlencode, 0,),
    filter!("values", lists::values, 0,),
    filter!("zip", lists::zip, rest 0,),
];

static TESTS: &[Test] = &[
    test!("!=", checks::ne, 1, "other"),
    test!("<", checks::lt, 1, "other"),
    test!("<=", checks::le, 1, "other"),
    test!("==", checks::eq, 1, "other"),
    test!(">", checks::gt, 1, "other"),
    test!(">=", checks::ge, 1, "other"),
    test!("boolean", checks::boolean, 0,),
    test!("cidr", net::is_cidr, 0,),
    Test { name: "current", sig: sig!(0,), flag: true, run: checks::current },
    Test { name: "defined", sig: sig!(0,), flag: true, run: checks::defined },
    test!("divisibleby", checks::divisibleby, 1, "num"),
    test!("empty", checks::empty, 0,),
    test!("endingwith", checks::endingwith, 1, "other"),
    test!("eq", checks::eq, 1, "other"),
    test!("equalto", checks::eq, 1, "other"),
    test!("even", checks::even, 0,),
    test!("false", checks::is_false, 0,),
    test!("filter", checks::is_filter, 0,),
    test!("float", checks::float, 0,),
    test!("ge", checks::ge, 1, "other"),
    test!("greaterthan", checks::gt, 1, "other"),
    test!("gt", checks::gt, 1, "other"),
    test!("in", checks::is_in, 1, "seq"),
    test!("in_cidr", net::in_cidr, 1, "cidr"),
    test!("int", checks::integer, 0,),
    test!("integer", checks::integer, 0,),
    test!("ip", net::is_ip, 0,),
    test!("ipv4", net::is_ipv4, 0,),
    test!("ipv6", net::is_ipv6, 0,),
    test!("iterable", checks::iterable, 0,),
    Test { name: "known", sig: sig!(0,), flag: true, run: checks::known },
    test!("le", checks::le, 1, "other"),
    test!("lessthan", checks::lt, 1, "other"),
    test!("lower", checks::lower, 0,),
    test!("lt", checks::lt, 1, "other"),
    test!("mapping", checks::mapping, 0,),
    test!("ne", checks::ne, 1, "other"),
    test!("none", checks::none, 0,),
    test!("null", checks::none, 0,),
    test!("number", checks::number, 0,),
    test!("odd", checks::odd, 0,),
    Test { name: "ready", sig: sig!(0,), flag: true, run: checks::ready },
    test!("sameas", checks::eq, 1, "other"),
    test!("semver", checks::semver, 0, "requirement"),
    test!("sequence", checks::sequence, 0,),
    test!("startingwith", checks::startingwith, 1, "other"),
    test!("string", checks::string, 0,),
    test!("test", checks::is_test, 0,),
    test!("true", checks::is_true, 0,),
    Test { name: "undefined", sig: sig!(0,), flag: true, run: checks::undefined },
    test!("upper", checks::upper, 0,),
];

static FUNCTIONS: &[Function] = &[
    Function { name: "dict", sig: sig!(0, "value"), keywords: true, run: lists::dict },
    Function { name: "namespace", sig: sig!(0,), keywords: true, run: lists::namespace },
    Function { name: "password", sig: sig!(0, "length"), keywords: false, run: secrets::password },
    Function { name: "range", sig: sig!(1, "lower", "upper", "step"), keywords: false, run: numbers::range },
    Function { name: "tls_ca", sig: sig!(1, "name", "days"), keywords: false, run: secrets::tls_ca },
    Function {
        name: "tls_self_signed",
        sig: sig!(1, "names", "days"),
        keywords: false,
        run: secrets::tls_self_signed,
    },
    Function {
        name: "tls_signed",
        sig: sig!(2, "names", "ca", "days", "cn"),
        keywords: false,
        run: secrets::tls_signed,
    },
];

pub(super) fn filter(name: &str) -> Option<&'static Filter> {
    FILTERS.iter().find(|filter| filter.name == name)
}

pub(super) fn test(name: &str) -> Option<&'static Test> {
    TESTS.iter().find(|test| test.name == name)
}

pub(super) fn function(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.name == name)
}

pub(super) fn filter_names() -> impl Iterator<Item = &'static str> {
    FILTERS.iter().map(|filter| filter.name)
}

/// The names of the tests, without the comparison operators.
pub(super) fn test_names() -> impl Iterator<Item = &'static str> {
    TESTS.iter().map(|test| test.name).filter(|name| !name.contains(['=', '<', '>']))
}

pub(super) fn function_names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|function| function.name).chain(["partial"])
}

/// The filter of that name, for `map('name')`. Messages omit a computed name, which may be secret.
fn filter_by_value(run: &Run<'_>, name: &Val) -> Res<&'static Filter> {
    let name = name.defined()?.text(run)?;
    filter(&name).ok_or_else(|| Fault::failed("there is no filter of that name"))
}

/// The test of that name, for `select('name')`.
fn test_by_value(run: &Run<'_>, name: &Val) -> Res<&'static Test> {
    let name = name.defined()?.text(run)?;
    test(&name).ok_or_else(|| Fault::failed("there is no test of that name"))
}

/// Binds positional arguments to the parameters of a filter or test that is called by name.
fn bind(sig: &Sig, name: &str, positional: &[Option<Val>]) -> Res<Vec<Option<Val>>> {
    let given = positional.len();
    let most = if sig.rest { usize::MAX } else { sig.params.len() };
    if given > most || given < sig.required {
        return Err(Fault::failed(format!("`{name}` does not take {given} arguments")));
    }
    let mut bound = if sig.rest { vec![None; sig.params.len()] } else { Vec::new() };
    bound.extend_from_slice(positional);
    if !sig.rest {
        bound.resize(sig.params.len(), None);
    }
    Ok(bound)
}

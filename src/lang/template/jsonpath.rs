//! JSONPath (RFC 9535) in the form that Kubernetes users know.
//!
//! The leading names of a path are evaluated as an expression, which determines their value, whether it is
//! unknown or missing, and which part of a live object is kept. The rest (a filter, a wildcard, a slice) is a
//! search in that value.

use jsonpath_rust::parser::model::{
    Comparable, Filter, FilterAtom, FnArg, JpQuery, Literal, Segment, Selector, SingularQuery, Test,
    TestFunction,
};
use jsonpath_rust::parser::parse_json_path;
use jsonpath_rust::query::js_path_process;
use regex::RegexBuilder;
use serde_json::Value;

use super::Engine;
use super::parse::TextSource;
use super::text::Expr;
use crate::diag::{Diagnostic, Location};

/// The maximum length of a path.
const MAX_LENGTH: usize = 1_000;
/// The maximum nesting of brackets.
const MAX_BRACKETS: usize = 16;
/// The maximum number of values in a search; a filter may look at each.
const MAX_VALUES: usize = 50_000;
/// The maximum bytes of a compiled pattern: it is compiled for each value.
const MAX_PATTERN: usize = 32 << 10;

/// A JSONPath that searches a value.
#[derive(Debug, Clone)]
pub struct Search {
    query: JpQuery,
    singular: bool,
}

impl Search {
    /// Whether it matches at most one value.
    pub fn is_singular(&self) -> bool {
        self.singular
    }

    /// The result. If `one` is set: the single match, or null without a match. Otherwise: a list of all
    /// matches.
    ///
    /// # Errors
    /// There are several matches although `one` is set, or the value is too large.
    pub fn of(&self, value: &Value, one: bool) -> Result<Value, String> {
        if count(value, MAX_VALUES) == 0 {
            return Err(format!("the JSONPath would search more than {MAX_VALUES} values"));
        }
        let found = js_path_process(&self.query, value)
            .map_err(|_| "the JSONPath matches something outside the value".to_owned())?;
        if !one {
            return Ok(Value::Array(found.into_iter().map(|found| found.val.clone()).collect()));
        }
        match found.as_slice() {
            [] => Ok(Value::Null),
            [only] => Ok(only.val.clone()),
            several => Err(format!(
                "the JSONPath matches {} values, but the CRD's schema of the field is not a list",
                several.len()
            )),
        }
    }
}

/// The budget of values that remains after visiting a value.
fn count(value: &Value, budget: usize) -> usize {
    let each = |budget: usize, value: &Value| if budget == 0 { 0 } else { count(value, budget) };
    let budget = budget.saturating_sub(1);
    match value {
        Value::Array(items) => items.iter().fold(budget, each),
        Value::Object(map) => map.values().fold(budget, each),
        _ => budget,
    }
}

impl Engine {
    /// Compiles a JSONPath at `at` in kubectl's notation: `.children.web.status`, also with a leading `$` or
    /// in braces. The first name is a variable.
    ///
    /// # Errors
    /// It is not a JSONPath, or does not start with the name of a variable.
    pub fn json_path(&self, text: &str, at: &Location) -> Result<(Expr, Option<Search>), Diagnostic> {
        let place = TextSource::within(&at.source, at.span, text);
        let trimmed = text.trim();
        let inner = trimmed.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(trimmed);
        let inner = inner.trim();
        let start = text.find(inner).unwrap_or_default();
        let error = |message: String, from: usize| {
            let from = (start + from).min(text.len());
            let mut error = place.error(message, from, (from + 1).min(text.len()).max(from));
            error.code = "template::jsonpath";
            error
        };
        if inner.is_empty() {
            return Err(
                error("the JSONPath is empty".into(), 0).help("write for example .children.web.status")
            );
        }
        if inner.len() > MAX_LENGTH {
            return Err(error(format!("the JSONPath has more than {MAX_LENGTH} bytes"), 0));
        }
        if brackets(inner) > MAX_BRACKETS {
            return Err(error(format!("more than {MAX_BRACKETS} nested brackets"), 0));
        }
        let (path, added) = match inner.chars().next() {
            Some('$') => (inner.to_owned(), 0),
            Some('.' | '[') => (format!("${inner}"), 1),
            _ => (format!("$.{inner}"), 2),
        };
        let query = parse_json_path(&path).map_err(|wrong| refused(&wrong, inner, added, &error))?;
        if let Some(wrong) = query.segments.iter().find_map(|segment| odd_segment(segment, false)) {
            return Err(error(wrong.0.into(), 0).help(wrong.1));
        }
        let names = query.segments.iter().take_while(|segment| step(segment).is_some()).count();
        let mut read: Vec<String> = Vec::with_capacity(names);
        for segment in &query.segments[..names] {
            read.push(match (step(segment), read.is_empty()) {
                (Some(PlainSegment::Key(key)), true) if is_word(&key) => key,
                (Some(PlainSegment::Key(key)), false) if is_word(&key) => format!(".{key}"),
                (Some(PlainSegment::Key(key)), false) => format!("[{}]", Value::from(key)),
                (Some(PlainSegment::Index(index)), false) => format!("[{index}]"),
                _ => break,
            });
        }
        let read = read.concat();
        if read.is_empty() {
            let message = "a JSONPath starts with the name of a variable".to_owned();
            return Err(error(message, 0).help("write for example .children.web.status"));
        }
        if let Some(PlainSegment::Key(first)) = query.segments.first().and_then(step)
            && matches!(first.as_str(), "status" | "metadata")
        {
            let message = format!("a JSONPath starts with a variable, and `{first}` is not one");
            let help = format!("name the object: .children.<id>.{}", path.trim_start_matches(['$', '.']));
            return Err(error(message, 0).help(help));
        }
        let expr = self.expression(&read, at)?;
        let rest = query.segments[names..].to_vec();
        if rest.is_empty() {
            return Ok((expr, None));
        }
        let singular = rest
            .iter()
            .all(|segment| matches!(segment, Segment::Selector(Selector::Index(_) | Selector::Name(_))));
        Ok((expr, Some(Search { query: JpQuery::new(rest), singular })))
    }
}

/// A step that expressions support as well.
enum PlainSegment {
    Key(String),
    Index(i64),
}

fn step(segment: &Segment) -> Option<PlainSegment> {
    match segment {
        Segment::Selector(Selector::Name(name)) => Some(PlainSegment::Key(name.clone())),
        Segment::Selector(Selector::Index(index)) if *index >= 0 => Some(PlainSegment::Index(*index)),
        _ => None,
    }
}

fn is_word(key: &str) -> bool {
    let mut chars = key.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !["true", "false", "none", "True", "False", "None", "not", "in", "is", "and", "or", "if", "else"]
            .contains(&key)
}

/// The nesting depth of brackets; brackets in quotes do not count.
fn brackets(text: &str) -> usize {
    let (mut depth, mut most) = (0usize, 0);
    for c in text.chars() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

fn refused(
    wrong: &jsonpath_rust::parser::errors::JsonPathError,
    inner: &str,
    added: usize,
    error: &dyn Fn(String, usize) -> Diagnostic,
) -> Diagnostic {
    use jsonpath_rust::parser::errors::JsonPathError;
    let JsonPathError::PestError(wrong) = wrong else {
        return error(format!("this is not a JSONPath: {wrong}"), 0).help(FORM);
    };
    let offset = match wrong.location {
        pest::error::InputLocation::Pos(at) | pest::error::InputLocation::Span((at, _)) => at,
    };
    let offset = offset.saturating_sub(added).min(inner.len());
    let help = match inner.get(offset..).and_then(|rest| rest.chars().next()) {
        Some('-' | '\\' | '/') => "write a name that has more than letters, digits and _ as ['the-name']",
        _ => FORM,
    };
    error("the JSONPath is invalid from here on".into(), offset).help(help)
}

const FORM: &str = "write for example .children.web.status.conditions[?(@.type=='Available')].status";

/// The description of an unsupported feature, and the alternative.
type Odd = (&'static str, &'static str);

const ABSOLUTE: Odd = (
    "a filter cannot use `$`: it sees only the value before it",
    "write an expression: children.web.status.conditions | selectattr('type', 'eq', let.x)",
);
const NESTED: Odd = ("a filter with `..` in it", "name the fields: [?(@.status.ready==true)]");
const PATTERN: Odd = (
    "the pattern of match() or search() is not a short literal",
    "write for example match(@.name, 'web-.*')",
);

fn odd_segment(segment: &Segment, in_filter: bool) -> Option<Odd> {
    match segment {
        Segment::Descendant(_) if in_filter => Some(NESTED),
        Segment::Descendant(inner) => odd_segment(inner, in_filter),
        Segment::Selector(selector) => odd_selector(selector),
        Segment::Selectors(selectors) => selectors.iter().find_map(odd_selector),
    }
}

fn odd_selector(selector: &Selector) -> Option<Odd> {
    match selector {
        Selector::Filter(filter) => odd_filter(filter),
        _ => None,
    }
}

fn odd_filter(filter: &Filter) -> Option<Odd> {
    match filter {
        Filter::Or(all) | Filter::And(all) => all.iter().find_map(odd_filter),
        Filter::Atom(FilterAtom::Filter { expr, .. }) => odd_filter(expr),
        Filter::Atom(FilterAtom::Test { expr, .. }) => odd_test(expr),
        Filter::Atom(FilterAtom::Comparison(comparison)) => {
            let (left, right) = comparison.vals();
            [left, right].into_iter().find_map(|side| match side {
                Comparable::Literal(_) | Comparable::SingularQuery(SingularQuery::Current(_)) => None,
                Comparable::SingularQuery(SingularQuery::Root(_)) => Some(ABSOLUTE),
                Comparable::Function(function) => odd_function(function),
            })
        }
    }
}

fn odd_test(test: &Test) -> Option<Odd> {
    match test {
        Test::RelQuery(segments) => segments.iter().find_map(|segment| odd_segment(segment, true)),
        Test::AbsQuery(_) => Some(ABSOLUTE),
        Test::Function(function) => odd_function(function),
    }
}

fn odd_function(function: &TestFunction) -> Option<Odd> {
    let arg = |arg: &FnArg| match arg {
        FnArg::Literal(_) => None,
        FnArg::Test(test) => odd_test(test),
        FnArg::Filter(filter) => odd_filter(filter),
    };
    match function {
        TestFunction::Length(one) => arg(one),
        TestFunction::Value(one) | TestFunction::Count(one) => arg(one),
        TestFunction::Custom(..) => Some((
            "only the functions of RFC 9535 are supported: length, count, value, match and search",
            "compare with == and ||",
        )),
        TestFunction::Match(text, pattern) | TestFunction::Search(text, pattern) => {
            let FnArg::Literal(Literal::String(literal)) = pattern else { return Some(PATTERN) };
            let small = RegexBuilder::new(literal).size_limit(MAX_PATTERN).build().is_ok();
            if small { arg(text) } else { Some(PATTERN) }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::diag::{Source, Span};
    use crate::template::{EvalError, Scope, Var};

    fn compile(text: &str) -> Result<(Expr, Option<Search>), Diagnostic> {
        let source = Source::new("operator.yaml", text);
        Engine::empty().json_path(text, &Location::new(&source, Span::new(0, text.len())))
    }

    fn found(text: &str, one: bool) -> Result<Value, String> {
        let mut scope = Scope::new();
        let web = json!({"status": {
            "readyReplicas": 3,
            "odd-name": {"a/b": 1},
            "conditions": [
                {"type": "Available", "status": "True", "n": 1},
                {"type": "Progressing", "status": "False", "n": 2},
            ],
        }});
        scope.set(
            "children",
            Var::Vars(
                [
                    ("web".to_owned(), Var::Json(web)),
                    ("lost".to_owned(), Var::Unknown("it cannot be read".into())),
                ]
                .into(),
            ),
        );
        let (expr, search) = compile(text).map_err(|error| error.message)?;
        let value = match Engine::empty().eval(&expr, &scope) {
            Ok(value) => value,
            Err(EvalError::Unknown { .. }) => return Err("unknown".into()),
            Err(EvalError::Undefined(_)) => return Err("undefined".into()),
            Err(error) => return Err(error.to_string()),
        };
        match search {
            Some(search) => search.of(&value, one || search.is_singular()),
            None => Ok(value),
        }
    }

    #[test]
    fn jsonpaths_find_the_same_as_kubectl() {
        for (path, one, wanted) in [
            (".children.web.status.readyReplicas", false, json!(3)),
            ("$.children.web.status.readyReplicas", false, json!(3)),
            ("{.children.web.status.readyReplicas}", false, json!(3)),
            ("children.web.status.readyReplicas", false, json!(3)),
            ("$['children']['web'].status['odd-name']['a/b']", false, json!(1)),
            (".children.web.status.conditions[1].type", false, json!("Progressing")),
            (".children.web.status.conditions[-1].type", false, json!("Progressing")),
            (".children.web.status.conditions[?(@.type==\"Available\")].status", true, json!("True")),
            (".children.web.status.conditions[?(@.type=='Available')].status", false, json!(["True"])),
            (".children.web.status.conditions[?@.type=='None'].status", true, json!(null)),
            (".children.web.status.conditions[?@.type=='None'].status", false, json!([])),
            (".children.web.status.conditions[*].type", false, json!(["Available", "Progressing"])),
            (".children.web.status.conditions[0:1].n", false, json!([1])),
            (".children.web.status..n", false, json!([1, 2])),
            (".children.web.status.conditions[?(@.n > 1 && @.status != 'True')].n", false, json!([2])),
            (".children.web.status.conditions[?match(@.type, 'Avail.*')].n", false, json!([1])),
            (".children.web.status.conditions[?length(@.type) > 9].n", false, json!([2])),
        ] {
            assert_eq!(found(path, one), Ok(wanted), "{path}");
        }
        assert_eq!(found(".children.web.status.nothing.there", false), Err("undefined".into()));
        assert_eq!(found(".children.lost.status.x", false), Err("unknown".into()));
        assert_eq!(found(".children.lost.status.conditions[*].type", false), Err("unknown".into()));
        let several = found(".children.web.status.conditions[*].type", true).unwrap_err();
        assert!(several.contains("2 values"), "{several}");
    }

    #[test]
    fn invalid_jsonpaths_are_reported_with_position_and_solution() {
        for (path, offset, message, help) in [
            ("", 0, "empty", "children.web"),
            (".children.web[?(@.a", 0, "the JSONPath is invalid", ".children.web.status.conditions[?"),
            (".children.web.status.odd-name", 24, "from here on", "['the-name']"),
            ("$..x", 0, "starts with the name of a variable", ".children.web.status"),
            ("$", 0, "starts with the name of a variable", ".children.web.status"),
            (".status.readyReplicas", 0, "`status` is not one", ".children.<id>.status.readyReplicas"),
            (".children.web.c[?(@.a==$.spec.b)]", 0, "cannot use `$`", "an expression"),
            (".children.web.c[?(@..a)]", 0, "with `..` in it", "name the fields"),
            (".children.web.c[?match(@.a, @.b)]", 0, "not a short literal", "web-.*"),
            (".children.web.c[?match(@.a, '.{999}{999}')]", 0, "not a short literal", "web-.*"),
        ] {
            let error = compile(path).unwrap_err();
            assert!(error.message.contains(message), "{path}: {}", error.message);
            assert!(error.help.as_ref().is_some_and(|text| text.contains(help)), "{path}: {:?}", error.help);
            let at = error.location.as_ref().unwrap().span.start;
            if offset > 0 {
                assert_eq!(at, offset, "{path}");
            }
        }
        let deep = format!(".children.web[?{}@.a{}]", "(".repeat(100), ")".repeat(100));
        assert!(compile(&deep).unwrap_err().message.contains("brackets"));
        assert!(compile(&format!(".a{}", ".b".repeat(600))).unwrap_err().message.contains("1000 bytes"));
    }

    #[test]
    fn jsonpath_searches_are_limited() {
        let (_, search) = compile(".children.web..n").unwrap();
        let large = Value::Array(vec![json!(1); MAX_VALUES + 1]);
        assert!(search.unwrap().of(&large, false).unwrap_err().contains("more than"));
    }
}

//! Expressions in CEL: compiled once, and evaluated with a bound on the steps.

mod authorizer;
mod check;
mod growth;
mod names;
mod syntax;
mod tokens;
mod value;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue};
use kube_cel::cel::context::{Context, VariableResolver};
use kube_cel::cel::parser::Parser;
use kube_cel::cel::{ExecutionError, Value as Cel};

pub use authorizer::{Authority, Question};
pub use check::{Environment, Problem, Type};
use growth::{call, expression};
pub use names::{PLAIN, variable};
pub use value::{plain, typed};

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    expr: IdedExpr,
    /// The names of the variables that are read.
    names: Vec<String>,
}

thread_local! {
    // Registering the functions takes longer than most evaluations.
    static ROOT: Context<'static> = root();
}

/// All functions.
fn root() -> Context<'static> {
    let mut context = Context::default().with_all();
    authorizer::register(&mut context);
    growth::register(&mut context);
    context.add_function("type", |value: Cel| -> String { value.type_of().to_string() });
    context
}

/// Why an expression cannot be evaluated.
#[derive(Debug, Clone, PartialEq)]
pub struct CompileError {
    /// What is wrong.
    pub problem: Problem,
    text: String,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { problem, text } = self;
        write!(f, "compilation failed: ERROR: <input>:1:1: {problem}\n | {text}\n | ^")
    }
}

impl From<CompileError> for String {
    fn from(error: CompileError) -> Self {
        error.to_string()
    }
}

impl Program {
    /// Compiles an expression whose variables are known. Returns the type of its value, too.
    pub fn compile(text: &str, environment: &Environment<'_>) -> Result<(Self, Type), CompileError> {
        parse(text)
            .and_then(|mut expr| {
                let mut names = Vec::new();
                let found = environment.infer(&expr)?;
                prepare(&mut expr, &mut names);
                Ok((Self { expr, names }, found))
            })
            .map_err(|problem| CompileError { problem, text: text.to_owned() })
    }

    /// Whether the expression reads a variable.
    pub fn reads(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// Evaluates with values of the variables.
    pub fn evaluate(&self, scope: &Scope<'_>) -> Result<Cel, String> {
        growth::begin();
        scope.run(&self.expr)
    }
}

fn parse(text: &str) -> Result<IdedExpr, Problem> {
    let no_cel = |(why, help): tokens::Wrong| Problem::Syntax(why, help);
    let tokens = tokens::tokens(text).map_err(no_cel)?;
    syntax::check(text, &tokens).map_err(no_cel)?;
    Parser::default()
        .enable_optional_syntax(true)
        // Its own limit counts less, and underflows where it is exceeded.
        .max_recursion_depth(u16::MAX)
        .parse(&tokens::readable(text, &tokens))
        .map_err(|errors| Problem::Other(format!("Syntax error: {errors}")))
}

/// A function of one text, such as `timestamp`. It is compiled once.
struct Conversion(LazyLock<Option<Program>>);

static TIMESTAMP: Conversion = Conversion(LazyLock::new(|| converting("timestamp(text)")));
static DURATION: Conversion = Conversion(LazyLock::new(|| converting("duration(text)")));

fn converting(call: &str) -> Option<Program> {
    let environment = Environment::default().with("text", Type::String);
    Program::compile(call, &environment).ok().map(|(program, _)| program)
}

impl Conversion {
    /// The value of a text, if it is one.
    fn of(&self, text: &str) -> Option<Cel> {
        let mut scope = Scope::default();
        scope.set("text", Cel::String(Arc::new(text.to_owned())));
        self.0.as_ref()?.evaluate(&scope).ok()
    }
}

/// The values of variables: given ones, and expressions that are evaluated when they are first read.
#[derive(Default)]
pub struct Scope<'a> {
    given: BTreeMap<&'static str, Cel>,
    lazy: Option<&'a BTreeMap<String, Program>>,
    known: Mutex<HashMap<String, Result<Cel, String>>>,
}

impl<'a> Scope<'a> {
    /// A scope with expressions for further variables.
    pub fn new(lazy: Option<&'a BTreeMap<String, Program>>) -> Self {
        Self { lazy, ..Self::default() }
    }

    /// Gives a variable a value.
    pub fn set(&mut self, name: &'static str, value: Cel) {
        self.given.insert(name, value);
    }

    fn run(&self, expr: &IdedExpr) -> Result<Cel, String> {
        ROOT.with(|root| {
            let context = Context::Child { parent: root, variables: BTreeMap::new(), resolver: Some(self) };
            Cel::resolve(expr, &context).map_err(|error| self.shown(&error))
        })
    }

    /// An error with the words of the API server.
    fn shown(&self, error: &ExecutionError) -> String {
        match error {
            ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
            ExecutionError::NoSuchOverload
            | ExecutionError::ValuesNotComparable(..)
            | ExecutionError::UnsupportedBinaryOperator(..)
            | ExecutionError::UnsupportedUnaryOperator(..) => "no such overload".to_owned(),
            ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
            ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
            ExecutionError::Overflow(..) => "integer overflow".to_owned(),
            ExecutionError::IndexOutOfBounds(at) => format!("index out of bounds: {}", text(at)),
            ExecutionError::UndeclaredReference(name) => {
                let known = self.known.lock().ok();
                let why = known.and_then(|known| known.get(name.as_str())?.clone().err());
                why.unwrap_or_else(|| format!("no such attribute(s): {name}"))
            }
            ExecutionError::FunctionError { function, message } => match &**function {
                "int" | "uint" | "double" if message.starts_with("string parse") => {
                    format!("type conversion error from 'string' to '{function}'")
                }
                "quantity" => {
                    let pattern = "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
                    format!("quantities must match the regular expression {pattern}")
                }
                _ => message.clone(),
            },
            other => other.to_string(),
        }
    }
}

impl VariableResolver for Scope<'_> {
    fn resolve(&self, name: &str) -> Option<Cel> {
        if let Some(value) = self.given.get(name) {
            return Some(value.clone());
        }
        if names::TYPES.contains(&name) {
            return Some(Cel::String(name.to_owned().into()));
        }
        let program = self.lazy?.get(name)?;
        if let Some(known) = self.known.lock().ok()?.get(name) {
            return known.clone().ok();
        }
        let value = growth::deeper(|| self.run(&program.expr));
        self.known.lock().ok()?.insert(name.to_owned(), value.clone());
        value.ok()
    }
}

/// A value as a text in messages.
pub fn text(value: &Cel) -> String {
    match value {
        Cel::String(text) => text.to_string(),
        Cel::Int(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}

/// Prepares an expression that was checked: loops count their steps, what grows is looked at, and variables of policies become names of
/// their own.
fn prepare(expr: &mut IdedExpr, names: &mut Vec<String>) {
    match &mut expr.expr {
        Expr::Unspecified | Expr::Struct(_) | Expr::Literal(_) => {}
        Expr::Ident(name) => names.push(name.clone()),
        Expr::Select(select) => {
            if matches!(&select.operand.expr, Expr::Ident(name) if name == "variables") && !select.test {
                let name = variable(&select.field);
                names.push(name.clone());
                expr.expr = Expr::Ident(name);
                return;
            }
            if matches!(&select.operand.expr, Expr::Ident(name) if name == "authorizer")
                && select.field == "requestResource"
            {
                expr.expr = Expr::Ident("authorizer.requestResource".to_owned());
                return;
            }
            prepare(&mut select.operand, names);
            // Selecting a field of what is no map is an error, and so is indexing it.
            if !select.test {
                let field = expression(Expr::Literal(LiteralValue::String(select.field.as_str().into())));
                *expr = call("_[_]", vec![std::mem::take(&mut *select.operand), field]);
            }
        }
        Expr::List(list) => list.elements.iter_mut().for_each(|item| prepare(item, names)),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    prepare(&mut entry.key, names);
                    prepare(&mut entry.value, names);
                }
            }
        }
        Expr::Call(found) => {
            // The operator for fields fails where the one for keys finds nothing.
            if found.func_name == "_?._" {
                "_[?_]".clone_into(&mut found.func_name);
            }
            for part in found.target.as_deref_mut().into_iter().chain(&mut found.args) {
                prepare(part, names);
            }
        }
        Expr::Comprehension(found) => {
            for part in [
                &mut found.iter_range,
                &mut found.accu_init,
                &mut found.loop_cond,
                &mut found.loop_step,
                &mut found.result,
            ] {
                prepare(part, names);
            }
        }
    }
    growth::bound(expr);
}

#[cfg(test)]
mod tests;

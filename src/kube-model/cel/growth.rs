//! How long an evaluation may take, and how much it may hold. The API server counts the cost of each step; here the rounds of loops are
//! counted, and what grows is looked at as it is made.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue};
use kube_cel::cel::context::Context;
use kube_cel::cel::extractors::{Arguments, This};
use kube_cel::cel::objects::{Key, OptionalValue};
use kube_cel::cel::{ExecutionError, ResolveResult, Value as Cel};

pub(super) const OUT_OF_STEPS: &str = "operation cancelled: actual cost limit exceeded";

/// The steps of loops that one evaluation may take.
const STEPS: usize = 200_000;
/// A loop that gathers a list copies it each round, so a round costs a step more for each so many values.
const COPIED: usize = 500;
/// How many bytes all values together may take that one evaluation makes, about.
const MOST: usize = 16 << 20;
/// How many bytes a value takes besides its content, about.
const EACH: usize = 24;
/// How many variables may read one another.
const NESTED: usize = 16;
/// How many digits the precision of a formatted number may have.
const PRECISION: usize = 3;

/// The functions that are called before each round of a loop, and before the first round of one that gathers.
const TICK: &str = "@tick";
const START: &str = "@start";
/// The function through which a value goes that may have grown.
const HELD: &str = "@held";
/// The function through which the text goes that says how values are formatted.
const PRECISE: &str = "@precise";

/// The number of the next loop that gathers.
static NEXT: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// The steps that are left to the evaluation.
    static LEFT: Cell<usize> = const { Cell::new(0) };
    /// The bytes that are left to it.
    static BYTES: Cell<usize> = const { Cell::new(0) };
    /// How many variables are being evaluated, each because the one before reads it.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// How many rounds the loops that gather have made, by number.
    static ROUNDS: RefCell<HashMap<i64, usize>> = RefCell::default();
}

/// Begins an evaluation.
pub(super) fn begin() {
    LEFT.set(STEPS);
    BYTES.set(MOST);
    ROUNDS.with_borrow_mut(HashMap::clear);
}

/// Evaluates a variable that another expression reads.
pub(super) fn deeper<T>(evaluate: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    if DEPTH.get() >= NESTED {
        return Err(OUT_OF_STEPS.to_owned());
    }
    DEPTH.set(DEPTH.get() + 1);
    let value = evaluate();
    DEPTH.set(DEPTH.get() - 1);
    value
}

/// Has a loop counted, or a value looked at, if the expression is or makes one. Those inside of it come first.
pub(super) fn bound(expr: &mut IdedExpr) {
    match &mut expr.expr {
        Expr::Comprehension(found) => count(found),
        Expr::Call(found) if found.func_name == "format" => {
            if let Some(text) = found.target.as_deref_mut().or(found.args.first_mut()) {
                *text = call(PRECISE, vec![std::mem::take(text)]);
            }
        }
        _ => {}
    }
    if grows(&expr.expr) {
        *expr = call(HELD, vec![std::mem::take(expr)]);
    }
}

fn count(found: &mut ComprehensionExpr) {
    let mut args = Vec::new();
    if matches!(found.accu_init.expr, Expr::List(_)) {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let number = || expression(Expr::Literal(LiteralValue::Int(number.into())));
        args.push(number());
        found.accu_init = call(START, vec![number(), std::mem::take(&mut found.accu_init)]);
    }
    let condition = std::mem::take(&mut found.loop_cond);
    found.loop_cond = call("_&&_", vec![call(TICK, args), condition]);
}

/// Registers what bounds loops and values, and the functions whose results may be many times as large as what they are given.
pub(super) fn register(context: &mut Context<'_>) {
    context.add_function(TICK, |Arguments(args): Arguments| -> Result<bool, ExecutionError> {
        let rounds = match args.first() {
            Some(Cel::Int(number)) => ROUNDS.with_borrow_mut(|rounds| {
                let rounds = rounds.entry(*number).or_default();
                *rounds += 1;
                *rounds
            }),
            _ => 0,
        };
        let rest = LEFT.get().checked_sub(1 + rounds / COPIED).ok_or_else(|| too_much(TICK))?;
        LEFT.set(rest);
        Ok(true)
    });
    context.add_function(START, |number: i64, first: Cel| -> ResolveResult {
        ROUNDS.with_borrow_mut(|rounds| rounds.insert(number, 0));
        Ok(first)
    });
    context.add_function(HELD, |value: Cel| -> ResolveResult {
        let mut left = BYTES.get();
        let fits = fits(&value, &mut left);
        BYTES.set(left);
        if fits { Ok(value) } else { Err(too_much(HELD)) }
    });
    context.add_function(PRECISE, |text: Arc<String>| -> ResolveResult {
        let digits = |part: &str| part.bytes().take_while(u8::is_ascii_digit).count();
        let is_wide = text.split("%.").skip(1).any(|part| digits(part) > PRECISION);
        if is_wide { Err(too_much("format")) } else { Ok(Cel::String(text)) }
    });
    context.add_function("replace", replace);
    context.add_function("join", join);
    context.add_function("lists.range", range);
}

fn too_much(function: &str) -> ExecutionError {
    ExecutionError::function_error(function, OUT_OF_STEPS)
}

/// Whether a value takes no more than what is left, which it then takes.
fn fits(value: &Cel, left: &mut usize) -> bool {
    let mut takes = |bytes: usize| left.checked_sub(EACH + bytes).map(|rest| *left = rest).is_some();
    match value {
        Cel::String(text) => takes(text.len()),
        Cel::Bytes(bytes) => takes(bytes.len()),
        Cel::List(items) => takes(0) && items.iter().all(|item| fits(item, left)),
        Cel::Map(map) => {
            let keys =
                map.map.keys().map(|key| if let Key::String(text) = key { EACH + text.len() } else { EACH });
            takes(keys.sum()) && map.map.values().all(|value| fits(value, left))
        }
        Cel::Opaque(value) => {
            let optional = value.downcast_ref::<OptionalValue>().and_then(OptionalValue::value);
            takes(0) && optional.is_none_or(|value| fits(value, left))
        }
        _ => takes(0),
    }
}

fn text(args: &[Cel], index: usize, function: &str) -> Result<Arc<String>, ExecutionError> {
    match args.get(index) {
        Some(Cel::String(text)) => Ok(Arc::clone(text)),
        _ => Err(ExecutionError::function_error(function, "expected string argument")),
    }
}

fn replace(This(whole): This<Arc<String>>, Arguments(args): Arguments) -> ResolveResult {
    let (from, to) = (text(&args, 0, "replace")?, text(&args, 1, "replace")?);
    let most = match args.get(2) {
        None => usize::MAX,
        // A negative number is no limit.
        Some(Cel::Int(most)) => usize::try_from(*most).unwrap_or(usize::MAX),
        Some(_) => return Err(ExecutionError::function_error("replace", "expected integer argument")),
    };
    let times = whole.matches(from.as_str()).take(most).count();
    if times.saturating_mul(to.len()).saturating_add(whole.len()) > MOST {
        return Err(too_much("replace"));
    }
    Ok(Cel::String(whole.replacen(from.as_str(), &to, most).into()))
}

fn join(This(parts): This<Arc<Vec<Cel>>>, Arguments(args): Arguments) -> ResolveResult {
    let between = if args.is_empty() { Arc::default() } else { text(&args, 0, "join")? };
    let texts: Result<Vec<_>, _> = (0..parts.len()).map(|at| text(&parts, at, "join")).collect();
    let texts = texts?;
    let length: usize = texts.iter().map(|text| text.len().saturating_add(between.len())).sum();
    if length > MOST {
        return Err(too_much("join"));
    }
    let texts: Vec<&str> = texts.iter().map(|text| text.as_str()).collect();
    Ok(Cel::String(texts.join(&between).into()))
}

fn range(count: i64) -> ResolveResult {
    let count = usize::try_from(count)
        .map_err(|_| ExecutionError::function_error("lists.range", "range argument must be non-negative"))?;
    if count > MOST / EACH {
        return Err(too_much("lists.range"));
    }
    Ok(Cel::List(Arc::new((0..).take(count).map(Cel::Int).collect())))
}

/// The functions whose results may be larger than what they are given, without the names before a dot.
const GROW: [&str; 9] = ["_+_", "replace", "join", "format", "split", "findAll", "quote", "encode", "range"];
/// How many bytes of literals a list may have that is not looked at.
const LITERAL: usize = 1 << 10;

/// Whether the value of an expression may be larger than those that it is made of. What a loop gathers is made of lists that are looked at.
fn grows(expr: &Expr) -> bool {
    let is_gathered = |arg: &IdedExpr| matches!(&arg.expr, Expr::Ident(name) if name.starts_with('@'));
    match expr {
        Expr::List(list) => {
            let literal = |item: &IdedExpr| match &item.expr {
                Expr::Literal(LiteralValue::String(text)) => Some(EACH + text.inner().len()),
                Expr::Literal(_) => Some(EACH),
                _ => None,
            };
            list.elements.iter().map(literal).sum::<Option<usize>>().is_none_or(|bytes| bytes > LITERAL)
        }
        Expr::Map(map) => !map.entries.is_empty(),
        Expr::Call(call) => GROW.contains(&&*call.func_name) && !call.args.iter().any(is_gathered),
        _ => false,
    }
}

pub(super) fn expression(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

pub(super) fn call(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    expression(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}

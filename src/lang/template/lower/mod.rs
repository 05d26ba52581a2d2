//! Converts MiniJinja's syntax tree: resolves names of filters, tests, functions, macros and parameters, refuses
//! unsupported syntax, and reports every error.

mod calls;

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::machinery::ast;
use minijinja::value::ValueKind;

use super::builtins;
use super::code::{Assignee, Binary, Comparison, For, Kind, MacroDef, Node, Stmt};
use super::parse::TextSource;
use super::value::{Name, Val};
use crate::diag::{Diagnostic, Span};

/// The result of lowering a template.
pub(super) struct Lowered {
    pub(super) body: Vec<Stmt>,
    pub(super) macros: Vec<MacroDef>,
}

pub(super) fn template(root: &ast::Stmt<'_>, place: &TextSource) -> Result<Lowered, Vec<Diagnostic>> {
    let children = match root {
        ast::Stmt::Template(template) => template.children.as_slice(),
        other => std::slice::from_ref(other),
    };
    let mut lower = Lower::new(place);
    for stmt in children {
        if let ast::Stmt::Macro(def) = stmt {
            lower.declare(def);
        }
    }
    let mut body = Vec::new();
    let mut macros = Vec::new();
    for stmt in children {
        if let ast::Stmt::Macro(def) = stmt {
            macros.push(lower.macro_def(def));
        } else {
            lower.stmt(stmt, &mut body);
        }
    }
    if lower.errors.is_empty() { Ok(Lowered { body, macros }) } else { Err(lower.errors) }
}

pub(super) fn expression(expr: &ast::Expr<'_>, place: &TextSource) -> Result<Node, Vec<Diagnostic>> {
    let mut lower = Lower::new(place);
    let node = lower.expr(expr);
    if lower.errors.is_empty() { Ok(node) } else { Err(lower.errors) }
}

struct Lower<'p> {
    place: &'p TextSource,
    errors: Vec<Diagnostic>,
    /// Each macro's index and parameters.
    macros: BTreeMap<String, (usize, Vec<Name>)>,
    /// Whether the body of each enclosing `for` reads `loop`.
    loops: Vec<bool>,
}

type MjSpan = minijinja::machinery::Span;

impl<'p> Lower<'p> {
    fn new(place: &'p TextSource) -> Self {
        Self { place, errors: Vec::new(), macros: BTreeMap::new(), loops: Vec::new() }
    }

    fn span(&self, span: MjSpan) -> Span {
        self.place.span(span.start_offset as usize, span.end_offset as usize)
    }

    fn error(&mut self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        let diagnostic = Diagnostic::error("template::syntax", message).at(&self.place.source, span);
        let help = help.into();
        self.errors.push(if help.is_empty() { diagnostic } else { diagnostic.help(help) });
    }

    /// The replacement of an expression that has an error.
    fn nothing(span: Span) -> Node {
        Node { kind: Kind::Const(Val::Undefined), span }
    }

    /// Reports an error and returns a replacement expression.
    fn refused(&mut self, span: Span, message: &str, help: &str) -> Node {
        self.error(span, message, help);
        Self::nothing(span)
    }

    fn declare(&mut self, def: &ast::Spanned<ast::Macro<'_>>) {
        let span = self.span(def.span());
        let mut params: Vec<Name> = Vec::new();
        for arg in &def.args {
            if let ast::Expr::Var(var) = arg {
                params.push(var.id.into());
            }
        }
        if builtins::function(def.name).is_some() || def.name == "partial" {
            self.error(
                span,
                format!("`{}` is the name of a function", def.name),
                "give the macro another name",
            );
        }
        let index = self.macros.len();
        if self.macros.insert(def.name.to_owned(), (index, params)).is_some() {
            self.error(span, format!("there are two macros `{}`", def.name), "rename one of them");
        }
    }

    fn macro_def(&mut self, def: &ast::Spanned<ast::Macro<'_>>) -> MacroDef {
        let loops = std::mem::take(&mut self.loops);
        let first_default = def.args.len().saturating_sub(def.defaults.len());
        let mut params = Vec::new();
        for (index, arg) in def.args.iter().enumerate() {
            if let ast::Expr::Var(var) = arg {
                let default = index.checked_sub(first_default).and_then(|index| def.defaults.get(index));
                params.push((var.id.into(), default.map(|default| self.expr(default))));
            }
        }
        let mut body = Vec::new();
        self.stmts(&def.body, &mut body);
        self.loops = loops;
        MacroDef { name: def.name.into(), params, body }
    }

    fn stmts(&mut self, stmts: &[ast::Stmt<'_>], out: &mut Vec<Stmt>) {
        for stmt in stmts {
            self.stmt(stmt, out);
        }
    }

    fn block(&mut self, stmts: &[ast::Stmt<'_>]) -> Vec<Stmt> {
        let mut out = Vec::new();
        self.stmts(stmts, &mut out);
        out
    }

    fn stmt(&mut self, stmt: &ast::Stmt<'_>, out: &mut Vec<Stmt>) {
        match stmt {
            ast::Stmt::Template(template) => self.stmts(&template.children, out),
            ast::Stmt::EmitRaw(raw) => {
                let offset = self.place.offset(raw.span().start_offset as usize);
                out.push(Stmt::Raw(raw.raw.into(), offset));
            }
            ast::Stmt::EmitExpr(emit) => out.push(Stmt::Emit(self.expr(&emit.expr))),
            ast::Stmt::ForLoop(def) => {
                let span = self.span(def.span());
                if def.recursive {
                    self.error(span, "recursive loops are not supported", "use a macro that calls itself");
                }
                let iter = self.expr(&def.iter);
                let target = self.target(&def.target, false);
                let filter = def.filter_expr.as_ref().map(|filter| self.expr(filter));
                self.loops.push(false);
                let body = self.block(&def.body);
                let uses_loop = self.loops.pop().unwrap_or(false);
                let otherwise = self.block(&def.else_body);
                out.push(Stmt::For(Box::new(For { target, iter, filter, body, otherwise, uses_loop })));
            }
            ast::Stmt::IfCond(cond) => {
                let test = self.expr(&cond.expr);
                let (then, otherwise) = (self.block(&cond.true_body), self.block(&cond.false_body));
                out.push(Stmt::If { test, then, otherwise });
            }
            ast::Stmt::WithBlock(with) => {
                let mut assignments = Vec::new();
                for (target, value) in &with.assignments {
                    let value = self.expr(value);
                    assignments.push((self.target(target, false), value));
                }
                out.push(Stmt::With { assignments, body: self.block(&with.body) });
            }
            ast::Stmt::Set(set) => {
                let value = self.expr(&set.expr);
                out.push(Stmt::Set { target: self.target(&set.target, true), value });
            }
            ast::Stmt::SetBlock(set) => {
                let body = self.block(&set.body);
                let filter = set.filter.as_ref().map(|filter| self.expr(filter));
                out.push(Stmt::SetBlock { target: self.target(&set.target, true), filter, body });
            }
            ast::Stmt::FilterBlock(block) => {
                let body = self.block(&block.body);
                out.push(Stmt::Filter { filter: self.expr(&block.filter), body });
            }
            ast::Stmt::Do(call) => {
                let node = self.call(&call.call, self.span(call.span()));
                out.push(Stmt::Do(node));
            }
            ast::Stmt::Macro(def) => {
                let span = self.span(def.span());
                self.error(span, "a macro is inside a block", "put it at the top level of the file");
            }
            ast::Stmt::CallBlock(block) => {
                let span = self.span(block.span());
                self.error(
                    span,
                    "`{% call %}` is not supported",
                    "pass the text to the macro as an argument",
                );
            }
            ast::Stmt::Include(def) => self.by_value(def.span(), "include"),
            ast::Stmt::Import(def) => self.by_value(def.span(), "import"),
            ast::Stmt::FromImport(def) => self.by_value(def.span(), "from ... import"),
            ast::Stmt::Extends(def) => self.by_value(def.span(), "extends"),
            ast::Stmt::Block(def) => self.by_value(def.span(), "block"),
            ast::Stmt::AutoEscape(block) => {
                let span = self.span(block.span());
                let help = "values never pass through text, so escaping is not needed";
                self.error(span, "`{% autoescape %}` is not supported", help);
            }
        }
    }

    fn by_value(&mut self, span: MjSpan, statement: &str) {
        let span = self.span(span);
        let help = "templates are reused by value: `{{ partial(\"x.yaml\") }}` inserts the result of another template of the package";
        self.error(span, format!("`{{% {statement} %}}` is not supported"), help);
    }

    fn target(&mut self, target: &ast::Expr<'_>, fields: bool) -> Assignee {
        let span = self.span(target.span());
        match target {
            ast::Expr::Var(var) => {
                if matches!(var.id, "omit" | "null") {
                    self.error(span, format!("`{}` cannot be set", var.id), "choose another name");
                }
                Assignee::Name(var.id.into())
            }
            #[allow(clippy::single_match_else)] // In the style of the other arms.
            ast::Expr::GetAttr(attr) if fields => match &attr.expr {
                ast::Expr::Var(var) => Assignee::Field(var.id.into(), attr.name.into(), span),
                _ => {
                    self.error(
                        span,
                        "only fields of a namespace can be set",
                        "`{% set ns = namespace(x=1) %}`",
                    );
                    Assignee::Name("".into())
                }
            },
            ast::Expr::List(list) => {
                Assignee::List(list.items.iter().map(|item| self.target(item, fields)).collect(), span)
            }
            _ => {
                self.error(span, "this cannot be assigned to", "");
                Assignee::Name("".into())
            }
        }
    }

    fn boxed(&mut self, expr: &ast::Expr<'_>) -> Box<Node> {
        Box::new(self.expr(expr))
    }

    /// Only dispatches. The called functions have their own local variables, so that a long chain needs
    /// little stack.
    fn expr(&mut self, expr: &ast::Expr<'_>) -> Node {
        match expr {
            ast::Expr::Var(var) => self.variable(var.id, self.span(var.span())),
            ast::Expr::Const(value) => self.constant(value),
            ast::Expr::GetAttr(attr) => self.attribute(attr),
            ast::Expr::GetItem(item) => self.item(item),
            ast::Expr::Slice(slice) => self.slice(slice),
            ast::Expr::UnaryOp(op) => self.unary(op),
            ast::Expr::BinOp(op) => self.binary(op),
            ast::Expr::Compare(compare) => self.compare(compare),
            ast::Expr::IfExpr(cond) => self.if_expr(cond),
            ast::Expr::Filter(filter) => self.filter(filter),
            ast::Expr::Test(test) => self.test(test),
            ast::Expr::Call(call) => self.call(call, self.span(call.span())),
            ast::Expr::List(list) => self.list(&list.items, list.span()),
            ast::Expr::Tuple(tuple) => self.list(&tuple.items, tuple.span()),
            ast::Expr::Map(map) => self.map(map),
        }
    }

    fn constant(&mut self, value: &ast::Spanned<ast::Const>) -> Node {
        let span = self.span(value.span());
        match constant(&value.value) {
            Some(val) => Node { kind: Kind::Const(val), span },
            None => self.refused(span, "the number does not fit 64 bits", ""),
        }
    }

    /// The span of an operation, from its first operand. In MiniJinja the start differs between operators.
    fn from(&self, first: &Node, own: MjSpan) -> Span {
        Span::new(first.span.start, self.span(own).end.max(first.span.end))
    }

    fn attribute(&mut self, attr: &ast::Spanned<ast::GetAttr<'_>>) -> Node {
        let base = self.boxed(&attr.expr);
        let span = self.from(&base, attr.span());
        Node { kind: Kind::Attr(base, attr.name.into()), span }
    }

    fn item(&mut self, item: &ast::Spanned<ast::GetItem<'_>>) -> Node {
        let base = self.boxed(&item.expr);
        let span = self.from(&base, item.span());
        Node { kind: Kind::Item(base, self.boxed(&item.subscript_expr)), span }
    }

    fn slice(&mut self, slice: &ast::Spanned<ast::Slice<'_>>) -> Node {
        let base = self.expr(&slice.expr);
        let span = self.from(&base, slice.span());
        let bounds = [&slice.start, &slice.stop, &slice.step];
        let bounds = bounds.map(|bound| bound.as_ref().map(|bound| self.expr(bound)));
        Node { kind: Kind::Slice(Box::new((base, bounds))), span }
    }

    fn compare(&mut self, compare: &ast::Spanned<ast::Compare<'_>>) -> Node {
        let first = self.boxed(&compare.expr);
        let mut ops = Vec::new();
        for op in &compare.ops {
            let comparison = match op.op {
                ast::CompareOpKind::Eq => Comparison::Eq,
                ast::CompareOpKind::Ne => Comparison::Ne,
                ast::CompareOpKind::Lt => Comparison::Lt,
                ast::CompareOpKind::Lte => Comparison::Le,
                ast::CompareOpKind::Gt => Comparison::Gt,
                ast::CompareOpKind::Gte => Comparison::Ge,
                ast::CompareOpKind::In => Comparison::In,
                ast::CompareOpKind::NotIn => Comparison::NotIn,
            };
            ops.push((comparison, self.expr(&op.expr)));
        }
        let end = ops.last().map_or(first.span.end, |(_, node)| node.span.end);
        let span = Span::new(first.span.start, end);
        Node { kind: Kind::Compare(first, ops), span }
    }

    fn if_expr(&mut self, cond: &ast::Spanned<ast::IfExpr<'_>>) -> Node {
        let then = self.expr(&cond.true_expr);
        let test = self.expr(&cond.test_expr);
        let otherwise = cond.false_expr.as_ref().map(|otherwise| self.expr(otherwise));
        let end = otherwise.as_ref().unwrap_or(&test).span.end;
        let span = Span::new(then.span.start, end);
        Node { kind: Kind::If(Box::new((test, then, otherwise))), span }
    }

    fn test(&mut self, test: &ast::Spanned<ast::Test<'_>>) -> Node {
        let value = self.boxed(&test.expr);
        let span = self.from(&value, test.span());
        let Some(found) = builtins::test(test.name) else {
            self.unknown("test", test.name, builtins::test_names(), self.span(test.span()));
            return Self::nothing(span);
        };
        let args = self.bind(&found.sig, test.name, &test.args, span);
        Node { kind: Kind::Test(found, value, args), span }
    }

    fn list(&mut self, items: &[ast::Expr<'_>], own: MjSpan) -> Node {
        let items = items.iter().map(|item| self.expr(item)).collect();
        Node { kind: Kind::List(items), span: self.span(own) }
    }

    fn map(&mut self, map: &ast::Spanned<ast::Map<'_>>) -> Node {
        let entries = map.keys.iter().zip(&map.values);
        let entries = entries.map(|(key, value)| (self.expr(key), self.expr(value))).collect();
        Node { kind: Kind::Map(entries), span: self.span(map.span()) }
    }

    fn variable(&mut self, name: &str, span: Span) -> Node {
        match name {
            "omit" => return Node { kind: Kind::Const(Val::Omit), span },
            "null" => return Node { kind: Kind::Const(Val::Null), span },
            "loop" => match self.loops.last_mut() {
                Some(used) => *used = true,
                None => self.error(span, "`loop` is outside a loop", ""),
            },
            "if" | "else" | "in" | "not" | "is" | "and" | "or" => {
                self.error(
                    span,
                    format!("`{name}` is not allowed here"),
                    "put the expression before it in parentheses",
                );
            }
            _ if self.macros.contains_key(name) => {
                self.error(span, format!("the macro `{name}` can only be called"), format!("`{name}(...)`"));
            }
            _ => {}
        }
        Node { kind: Kind::Var(name.into()), span }
    }

    fn unary(&mut self, op: &ast::Spanned<ast::UnaryOp<'_>>) -> Node {
        let own = self.span(op.span());
        let operand = self.boxed(&op.expr);
        match op.op {
            ast::UnaryOpKind::Not => {
                // `a not in b` starts at `a`; `not a` starts before it.
                let span = Span::new(own.start.min(operand.span.start), operand.span.end.max(own.start));
                Node { kind: Kind::Not(operand), span }
            }
            ast::UnaryOpKind::Neg => {
                let span = Span::new(own.start.min(operand.span.start), operand.span.end);
                if let Kind::Const(Val::Int(int)) = operand.kind
                    && let Ok(negative) = Val::int(-int)
                {
                    return Node { kind: Kind::Const(negative), span };
                }
                Node { kind: Kind::Neg(operand), span }
            }
        }
    }

    /// `a + b + c` is left-recursive, so it is converted in a loop.
    fn binary(&mut self, op: &ast::Spanned<ast::BinOp<'_>>) -> Node {
        let mut chain = vec![op];
        let mut first = &op.left;
        while let ast::Expr::BinOp(inner) = first {
            chain.push(inner);
            first = &inner.left;
        }
        let mut left = self.expr(first);
        while let Some(op) = chain.pop() {
            let right = self.expr(&op.right);
            left = operation(op.op, left, right);
        }
        left
    }
}

fn operation(op: ast::BinOpKind, left: Node, right: Node) -> Node {
    use ast::BinOpKind as Op;
    let span = Span::new(left.span.start, right.span.end.max(left.span.end));
    let compare = |op, left, right| Kind::Compare(Box::new(left), vec![(op, right)]);
    let arithmetic = |op, left, right| Kind::Binary(op, Box::new((left, right)));
    let kind = match op {
        Op::ScAnd => Kind::And(Box::new((left, right))),
        Op::ScOr => Kind::Or(Box::new((left, right))),
        Op::Eq => compare(Comparison::Eq, left, right),
        Op::Ne => compare(Comparison::Ne, left, right),
        Op::Lt => compare(Comparison::Lt, left, right),
        Op::Lte => compare(Comparison::Le, left, right),
        Op::Gt => compare(Comparison::Gt, left, right),
        Op::Gte => compare(Comparison::Ge, left, right),
        Op::In => compare(Comparison::In, left, right),
        Op::Add => arithmetic(Binary::Add, left, right),
        Op::Sub => arithmetic(Binary::Sub, left, right),
        Op::Mul => arithmetic(Binary::Mul, left, right),
        Op::Div => arithmetic(Binary::Div, left, right),
        Op::FloorDiv => arithmetic(Binary::FloorDiv, left, right),
        Op::Rem => arithmetic(Binary::Rem, left, right),
        Op::Pow => arithmetic(Binary::Pow, left, right),
        Op::Concat => arithmetic(Binary::Concat, left, right),
    };
    Node { kind, span }
}

fn constant(value: &minijinja::Value) -> Option<Val> {
    Some(match value.kind() {
        ValueKind::None => Val::Null,
        ValueKind::Bool => Val::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => Val::int(i128::try_from(value.clone()).ok()?).ok()?,
        ValueKind::Number => Val::float(f64::try_from(value.clone()).ok()?).ok()?,
        _ => Val::Str(Arc::from(value.as_str()?)),
    })
}

//! Calls: filters, functions, macros, partials, methods, and the binding of their arguments.

use minijinja::machinery::ast;

use super::Lower;
use crate::diag::Span;
use crate::template::builtins::{self, Sig};
use crate::template::code::{CAPTURED, Kind, Node};
use crate::template::errors::near;
use crate::template::foreign_syntax;
use crate::template::value::{Name, Val};

impl Lower<'_> {
    pub(super) fn filter(&mut self, filter: &ast::Spanned<ast::Filter<'_>>) -> Node {
        let own = self.span(filter.span());
        let input = match &filter.expr {
            Some(expr) => self.expr(expr),
            None => Node { kind: Kind::Var(CAPTURED.into()), span: own },
        };
        let span = Span::new(input.span.start.min(own.start), own.end);
        let Some(found) = builtins::filter(filter.name) else {
            match filter.name {
                "safe" | "escape" | "e" => {
                    let message = format!("`{}` is not supported", filter.name);
                    self.error(own, message, "values never pass through text, so escaping is not needed");
                }
                "random" | "shuffle" => {
                    let help = "two renders of the same input must have the same result";
                    self.error(own, format!("`{}` is not supported", filter.name), help);
                }
                name if foreign_syntax::of_filter(name).is_some() => {
                    let help = foreign_syntax::of_filter(name).unwrap_or_default();
                    self.error(own, format!("there is no filter `{name}`"), help);
                }
                name => self.unknown("filter", name, builtins::filter_names(), own),
            }
            return Self::nothing(span);
        };
        let mut args = self.bind(&found.sig, filter.name, &filter.args, own);
        self.check_by_name(found.name, &args, own);
        if matches!(found.name, "default" | "d") {
            let boolean = args.pop().flatten();
            let value = args.pop().flatten();
            return Node { kind: Kind::Default(Box::new((input, value, boolean))), span };
        }
        Node { kind: Kind::Filter(found, Box::new(input), args), span }
    }

    /// Checks the filter or test that a filter applies to each item, if its name is a literal.
    fn check_by_name(&mut self, filter: &str, args: &[Option<Node>], span: Span) {
        let index = match filter {
            "map" => 2,
            "select" | "reject" => 0,
            "selectattr" | "rejectattr" => 1,
            _ => return,
        };
        let Some(Some(Node { kind: Kind::Const(Val::Str(name)), .. })) = args.get(index) else { return };
        if filter == "map" {
            if builtins::filter(name).is_none() {
                self.unknown("filter", name, builtins::filter_names(), span);
            }
        } else if builtins::test(name).is_none() {
            self.unknown("test", name, builtins::test_names(), span);
        }
    }

    pub(super) fn call(&mut self, call: &ast::Spanned<ast::Call<'_>>, own: Span) -> Node {
        match call.identify_call() {
            ast::CallType::Function("partial") => self.partial(&call.args, own),
            ast::CallType::Function(name) => {
                if let Some((index, params)) = self.macros.get(name).cloned() {
                    let params: Vec<&str> = params.iter().map(|param| &**param).collect();
                    let args = self.bind_names(&params, 0, false, name, &call.args, own);
                    return Node { kind: Kind::Macro(index, args), span: own };
                }
                let Some(function) = builtins::function(name) else {
                    self.unknown_function(name, own);
                    return Self::nothing(own);
                };
                let (named, plain): (Vec<_>, Vec<_>) = call.args.iter().partition(|arg| {
                    function.keywords
                        && matches!(arg, ast::CallArg::Kwarg(name, _) if !function.sig.params.contains(name))
                });
                let args = self.bind(&function.sig, name, plain, own);
                let mut keywords = Vec::new();
                for arg in named {
                    if let ast::CallArg::Kwarg(name, value) = arg {
                        keywords.push((Name::from(*name), self.expr(value)));
                    }
                }
                Node { kind: Kind::Function(function, args, keywords), span: own }
            }
            // MiniJinja reads `self.x()` as a block; here `self` is a variable.
            ast::CallType::Block(name) => {
                let base = Box::new(Node { kind: Kind::Var("self".into()), span: own });
                self.method(base, name, call, own)
            }
            ast::CallType::Method(base, name) => {
                let base = self.boxed(base);
                self.method(base, name, call, own)
            }
            ast::CallType::Object(_) => {
                self.error(own, "this cannot be called", "functions and macros are called by their name");
                Self::nothing(own)
            }
        }
    }

    fn method(&mut self, base: Box<Node>, name: &str, call: &ast::Call<'_>, own: Span) -> Node {
        let span = Span::new(base.span.start, own.end.max(base.span.end));
        let mut args = Vec::new();
        for arg in &call.args {
            match arg {
                ast::CallArg::Pos(value) => args.push(self.expr(value)),
                _ => self.error(own, "a method takes positional arguments only", ""),
            }
        }
        Node { kind: Kind::Method(base, name.into(), args), span }
    }

    fn partial(&mut self, args: &[ast::CallArg<'_>], own: Span) -> Node {
        let mut name = None;
        let mut vars = Vec::new();
        for (index, arg) in args.iter().enumerate() {
            match arg {
                ast::CallArg::Pos(ast::Expr::Const(value)) if index == 0 => {
                    name = value.value.as_str().map(Name::from);
                }
                ast::CallArg::Kwarg(key, value) => vars.push((Name::from(*key), self.expr(value))),
                ast::CallArg::KwargSplat(_) | ast::CallArg::PosSplat(_) => {
                    self.error(
                        own,
                        "`partial` takes its variables by name",
                        "`partial(\"x.yaml\", port=80)`",
                    );
                }
                ast::CallArg::Pos(_) => {}
            }
        }
        let positional = args.iter().filter(|arg| matches!(arg, ast::CallArg::Pos(_))).count();
        match name {
            Some(name) if positional == 1 => Node { kind: Kind::Partial(name, vars), span: own },
            _ => {
                let help = "`partial(\"labels.yaml\")`: the name must be a literal, because it determines what is read";
                self.error(own, "`partial` takes the name of a template as a string", help);
                Self::nothing(own)
            }
        }
    }

    fn unknown_function(&mut self, name: &str, span: Span) {
        match name {
            "caller" | "super" | "loop" | "block" => {
                self.error(
                    span,
                    format!("`{name}()` is not supported"),
                    "use a macro or `partial(\"x.yaml\")`",
                );
            }
            "now" | "random" | "uuid" | "lipsum" => {
                let help = "two renders of the same input must have the same result";
                self.error(span, format!("there is no function `{name}`"), help);
            }
            "debug" => {
                let help = "it would show secrets; use `operetta render`";
                self.error(span, "`debug()` is not supported", help);
            }
            _ if foreign_syntax::of_function(name).is_some() => {
                let help = foreign_syntax::of_function(name).unwrap_or_default();
                self.error(span, format!("there is no function `{name}`"), help);
            }
            _ if builtins::filter(name).is_some() => {
                let help = format!("it is a filter: `value | {name}`");
                self.error(span, format!("there is no function `{name}`"), help);
            }
            _ => {
                let names = builtins::function_names().map(str::to_owned);
                let names: Vec<String> = names.chain(self.macros.keys().cloned()).collect();
                self.unknown("function", name, names.iter().map(String::as_str), span);
            }
        }
    }

    pub(super) fn unknown<'n>(
        &mut self,
        what: &str,
        name: &str,
        names: impl Iterator<Item = &'n str>,
        span: Span,
    ) {
        let help = near(name, names).map_or(String::new(), |near| format!("did you mean `{near}`?"));
        self.error(span, format!("there is no {what} `{name}`"), help);
    }

    pub(super) fn bind<'a, 's: 'a>(
        &mut self,
        sig: &Sig,
        name: &str,
        args: impl IntoIterator<Item = &'a ast::CallArg<'s>>,
        span: Span,
    ) -> Vec<Option<Node>> {
        self.bind_names(sig.params, sig.required, sig.rest, name, args, span)
    }

    /// Puts the arguments in the order of the parameters, followed by the remaining positional ones.
    fn bind_names<'a, 's: 'a>(
        &mut self,
        params: &[&str],
        required: usize,
        rest: bool,
        name: &str,
        args: impl IntoIterator<Item = &'a ast::CallArg<'s>>,
        span: Span,
    ) -> Vec<Option<Node>> {
        let mut bound: Vec<Option<Node>> = params.iter().map(|_| None).collect();
        let mut position = 0;
        for arg in args {
            let (slot, value) = match arg {
                ast::CallArg::Pos(value) if rest => {
                    let node = self.expr(value);
                    bound.push(Some(node));
                    continue;
                }
                ast::CallArg::Pos(value) => {
                    position += 1;
                    (position - 1, value)
                }
                ast::CallArg::Kwarg(key, value) => {
                    let Some(slot) = params.iter().position(|param| param == key) else {
                        let help = match near(key, params.iter().copied()) {
                            Some(near) => format!("did you mean `{near}`?"),
                            None if params.is_empty() => "it takes no arguments by name".to_owned(),
                            None => format!("it takes {}", params.join(", ")),
                        };
                        self.error(span, format!("`{name}` has no argument `{key}`"), help);
                        continue;
                    };
                    (slot, value)
                }
                ast::CallArg::PosSplat(_) | ast::CallArg::KwargSplat(_) => {
                    self.error(
                        span,
                        "`*` and `**` before arguments are not supported",
                        "write each argument",
                    );
                    continue;
                }
            };
            let node = self.expr(value);
            match bound.get_mut(slot) {
                Some(place) if place.is_none() => *place = Some(node),
                Some(_) => self.error(span, format!("`{name}` gets an argument twice"), ""),
                None => {
                    let most = params.len();
                    let help =
                        if most == 0 { String::new() } else { format!("it takes {}", params.join(", ")) };
                    self.error(span, format!("`{name}` takes at most {most} arguments"), help);
                    break;
                }
            }
        }
        let missing = params.iter().zip(&bound).take(required).find(|(_, arg)| arg.is_none());
        if let Some((param, _)) = missing
            && !rest
        {
            self.error(span, format!("`{name}` needs the argument `{param}`"), "");
        }
        bound
    }
}

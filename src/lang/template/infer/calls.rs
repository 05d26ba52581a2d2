//! Types of filters, functions and methods: inputs and results.

use super::Infer;
use super::operators::TEXT;
use crate::diag::Span;
use crate::schema::{Basic, Type};
use crate::template::code::{Kind, Node};
use crate::template::value::Val;

const NUMBER: Basic = Basic::NUMBER;
const ITERABLE: Basic = Basic::LIST.or(Basic::MAP).or(Basic::OTHER);

/// The types that a filter accepts.
fn takes(name: &str) -> Basic {
    match name {
        "abs" | "round" => NUMBER,
        "length" | "count" | "list" | "first" | "last" | "reverse" => ITERABLE.or(Basic::STRING),
        "join" | "map" | "select" | "reject" | "selectattr" | "rejectattr" | "sort" | "unique"
        | "groupby" | "batch" | "slice" | "sum" | "zip" | "chain" | "min" | "max" => ITERABLE,
        "keys" | "values" | "items" | "dictsort" | "combine" | "merge" => Basic::MAP.or(Basic::OTHER),
        "upper" | "lower" | "title" | "capitalize" | "trim" | "replace" | "split" | "lines" | "indent"
        | "dns_label" | "b64encode" | "b64decode" | "string" | "shell_quote" | "sql_literal"
        | "from_json" | "from_yaml" | "urlencode" | "cidr_host" | "cidr_network" | "cidr_prefix"
        | "cidr_subnet" | "ip_version" => TEXT,
        "int" | "float" => Basic::ANY.without(Basic::LIST.or(Basic::MAP)),
        "quantity" | "quantity_in" => NUMBER.or(Basic::STRING).or(Basic::QUANTITY).or(Basic::OTHER),
        "semver" => Basic::STRING.or(Basic::VERSION).or(NUMBER).or(Basic::OTHER),
        _ => Basic::ANY,
    }
}

/// The place of the argument of a filter that names an attribute of the items.
fn attribute_place(name: &str) -> Option<usize> {
    match name {
        "selectattr" | "rejectattr" | "groupby" | "min" | "max" | "sum" => Some(0),
        "join" | "unique" => Some(1),
        "sort" => Some(2),
        _ => None,
    }
}

impl<'a> Infer<'a> {
    pub(super) fn filter(
        &mut self,
        name: &str,
        input: &Type<'a>,
        args: &'a [Option<Node>],
        span: Span,
    ) -> Type<'a> {
        for arg in args.iter().flatten() {
            self.infer(arg);
        }
        // `urlencode` and `string` have special forms for lists and maps.
        let is_lenient = matches!(name, "urlencode" | "string");
        let takes = takes(name);
        if input.basic.misses(takes) && !is_lenient {
            let message = format!("`{name}` does not take {}", input.basic.value().shown());
            let help = match takes {
                ITERABLE => Some("it takes a list".to_owned()),
                _ if takes == Basic::MAP.or(Basic::OTHER) => Some("it takes a map".to_owned()),
                NUMBER if input.basic.value() == Basic::STRING => Some("use `| int` before".to_owned()),
                _ => None,
            };
            self.error("type::filter", span, message, help);
            return Type::any();
        }
        let arg = |index: usize| args.get(index).and_then(Option::as_ref);
        let text_arg = |index: usize| match arg(index).map(|node| &node.kind) {
            Some(Kind::Const(Val::Str(text))) => Some(text.to_string()),
            _ => None,
        };
        let is_list = input.basic.value() == Basic::LIST;
        let is_map = input.basic.value() == Basic::MAP;
        if is_list && let Some(path) = attribute_place(name).and_then(text_arg) {
            self.by_attribute(input, &path, args, span);
        }
        match name {
            "length" | "count" | "int" | "ip_version" | "cidr_prefix" => Type::of(Basic::INT),
            "float" => Type::of(Basic::FLOAT),
            "abs" | "round" => Type::of(NUMBER),
            "upper" | "lower" | "title" | "capitalize" | "trim" | "replace" | "indent" | "dns_label"
            | "b64encode" | "b64decode" | "sha256" | "shell_quote" | "sql_literal" | "to_json" | "tojson"
            | "to_yaml" | "pprint" | "urlencode" | "cidr_host" | "cidr_network" | "cidr_subnet" | "join"
            | "format" | "quantity_in" | "string" => Type::string(),
            "bool" => Type::of(Basic::BOOL),
            "quantity" => Type::of(Basic::QUANTITY),
            "semver" => Type::of(Basic::VERSION),
            "split" | "lines" => Type::each(Basic::LIST, Type::string()),
            "keys" => Type::each(Basic::LIST, Type::any()),
            "values" if is_map => {
                let item = Self::item_of(input);
                Type::each(Basic::LIST, item)
            }
            "items" | "dictsort" if is_map => {
                let item = Self::item_of(input);
                Type::each(Basic::LIST, Type::list(vec![Type::any(), item]))
            }
            "list" | "reverse" | "select" | "reject" | "selectattr" | "rejectattr" | "sort" | "unique"
                if is_list =>
            {
                let item = Self::item_of(input);
                Type::each(Basic::LIST, item)
            }
            "first" | "last" | "min" | "max" if is_list => {
                let mut item = Self::item_of(input);
                // The list may be empty.
                item.basic = item.basic | Basic::NULL;
                item
            }
            "map" => self.mapped(input, text_arg(0), span),
            "list" | "select" | "reject" | "sort" | "unique" | "zip" | "chain" | "batch" | "slice"
            | "groupby" | "values" | "items" | "dictsort" => Type::of(Basic::LIST),
            "combine" | "merge" => Type::of(Basic::MAP),
            _ => Type::any(),
        }
    }

    /// The type of `map(attribute='a.b')`.
    fn mapped(&mut self, input: &Type<'a>, attribute: Option<String>, span: Span) -> Type<'a> {
        let (Some(path), true) = (attribute, input.basic.value() == Basic::LIST) else {
            return Type::of(Basic::LIST);
        };
        let item = self.attribute(input, &path, span);
        // An item without the attribute has no entry in the result.
        Type::each(Basic::LIST, item.without(Basic::ABSENT))
    }

    /// The type of an attribute such as `a.b.0` of the items of a list.
    fn attribute(&mut self, list: &Type<'a>, path: &str, span: Span) -> Type<'a> {
        let mut item = Self::item_of(list);
        for step in path.split('.') {
            // A label such as `a.org/b`.
            if step.contains('/') && item.basic.value() == Basic::STRING {
                let message = format!("`{path}` is read field by field: a key with a dot is not found");
                let help = "use `map('attr', 'a.org/b')` for such a key";
                self.error("type::path", span, message, Some(help.to_owned()));
                return Type::any();
            }
            item = match step.parse::<usize>() {
                Ok(_) => Self::item_of(&item),
                Err(_) => self.member(&item, step, span),
            };
        }
        item
    }

    /// Checks the attributes by which a filter chooses or orders the items of a list, and the value that one must equal.
    fn by_attribute(&mut self, list: &Type<'a>, paths: &str, args: &'a [Option<Node>], span: Span) {
        for path in paths.split(',') {
            let ty = self.attribute(list, path.trim(), span);
            let [Some(attribute), Some(test), Some(value)] = args else { continue };
            if matches!(&test.kind, Kind::Const(Val::Str(test)) if matches!(&**test, "eq" | "equalto" | "=="))
            {
                let value_type = self.infer(value);
                self.equality(&(ty, attribute), &(value_type, value));
            }
        }
    }

    pub(super) fn function(&mut self, name: &str, args: &[Type<'a>], span: Span) -> Type<'a> {
        match name {
            "range" => {
                if let Some(wrong) = args.iter().find(|arg| arg.basic.misses(NUMBER)) {
                    let got = wrong.basic.value();
                    let message = format!("`range` takes whole numbers, not {}", got.shown());
                    let help = match got {
                        Basic::STRING => Some("use `| int`"),
                        Basic::LIST => Some("loop over the list itself, or over `range(x | length)`"),
                        _ => None,
                    };
                    self.error("type::operand", span, message, help.map(str::to_owned));
                }
                Type::each(Basic::LIST, Type::of(Basic::INT))
            }
            "password" => Type::string(),
            "dict" => Type::of(Basic::MAP),
            _ => Type::any(),
        }
    }

    pub(super) fn method(&mut self, base: &'a Node, name: &str, args: &'a [Node], span: Span) -> Type<'a> {
        for arg in args {
            self.infer(arg);
        }
        let base_type = self.need(base);
        let is_map = base_type.basic.value() == Basic::MAP;
        match (name, args) {
            ("values" | "items" | "keys", []) => self.filter(name, &base_type, &[], span),
            ("get", [key, default @ ..]) if is_map => {
                let found = match &key.kind {
                    Kind::Const(Val::Str(key)) => self.member(&base_type, key, span),
                    _ => Self::item_of(&base_type),
                };
                let found = found.without(Basic::ABSENT);
                match default.first() {
                    Some(default) => found.or(self.infer(default)),
                    None => found.with(Basic::NULL),
                }
            }
            _ => Type::any(),
        }
    }
}

//! Types of operators and comparisons.

use super::Infer;
use crate::diag::{Diagnostic, Span, did_you_mean};
use crate::schema::{Basic, Shape, Type};
use crate::template::code::{Binary, Comparison, Node};

/// Types with a text form.
pub(super) const TEXT: Basic = Basic::ANY.without(Basic::LIST.or(Basic::MAP)).without(Basic::NULL);

/// Groups of basic types within which values are equal or ordered.
const GROUPS: [Basic; 6] =
    [Basic::NUMBER.or(Basic::QUANTITY), Basic::STRING, Basic::BOOL, Basic::VERSION, Basic::LIST, Basic::MAP];

/// The possible groups of a value.
fn groups(basic: Basic) -> Vec<Basic> {
    GROUPS.into_iter().filter(|group| basic.overlaps(*group)).collect()
}

/// Whether two values can never be in one group.
fn are_apart(left: Basic, right: Basic) -> bool {
    let (left, right) = (left.value(), right.value());
    if left.is_none() || right.is_none() || left.overlaps(Basic::OTHER) || right.overlaps(Basic::OTHER) {
        return false;
    }
    let right = groups(right);
    !groups(left).iter().any(|group| right.contains(group))
}

impl<'a> Infer<'a> {
    /// Checks a value inside text.
    pub(super) fn in_text(&mut self, ty: &Type<'a>, span: Span) {
        if ty.basic.misses(TEXT) {
            let got = ty.basic.value();
            let help = match got {
                Basic::LIST => "use `| join(',')` or `| to_json`",
                _ => "name one of its fields, or use `| to_json`",
            };
            let message = format!("{} cannot be part of a text", got.shown());
            self.error("type::text", span, message, Some(help.to_owned()));
        } else if ty.basic == Basic::NULL {
            let help = "add a default: `| default('')`".to_owned();
            self.error("type::text", span, "null cannot be part of a text".to_owned(), Some(help));
        }
    }

    pub(super) fn binary(&mut self, op: Binary, left: &'a Node, right: &'a Node, span: Span) -> Type<'a> {
        let left_type = self.need(left);
        let right_type = self.need(right);
        if op == Binary::Concat {
            self.in_text(&left_type, left.span);
            self.in_text(&right_type, right.span);
            return Type::string();
        }
        let (a, b) = (left_type.basic.value(), right_type.basic.value());
        if a.is_none() || b.is_none() || a.overlaps(Basic::OTHER) || b.overlaps(Basic::OTHER) {
            return Type::any();
        }
        let number = Basic::NUMBER;
        let mut result = Basic::NONE;
        if a.overlaps(number) && b.overlaps(number) {
            let whole = a & number == Basic::INT && b & number == Basic::INT;
            let keeps =
                matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::FloorDiv | Binary::Rem);
            result = result | if whole && keeps { Basic::INT } else { number };
        }
        let quantity = Basic::QUANTITY;
        let takes = number | quantity;
        let of_quantities =
            (a.overlaps(quantity) && b.overlaps(takes)) || (b.overlaps(quantity) && a.overlaps(takes));
        if of_quantities && matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div) {
            result = result | quantity | if op == Binary::Div { number } else { Basic::NONE };
        }
        for same in [Basic::STRING, Basic::LIST] {
            let added = op == Binary::Add && a.overlaps(same) && b.overlaps(same);
            let times =
                (a.overlaps(same) && b.overlaps(Basic::INT)) || (b.overlaps(same) && a.overlaps(Basic::INT));
            if added || (op == Binary::Mul && times) {
                result = result | same;
            }
        }
        if result.is_none() {
            let (symbol, a, b) = (op.symbol(), a.shown(), b.shown());
            let message = format!("`{symbol}` does not take {a} and {b}");
            let one_string =
                left_type.basic.value() == Basic::STRING || right_type.basic.value() == Basic::STRING;
            let help = match op {
                Binary::Add if one_string => Some("texts are joined with `~`; to count, use `| int`"),
                _ if one_string => Some("use `| int`, or `| quantity` for 512Mi and its like"),
                _ => None,
            };
            self.error("type::operand", span, message, help.map(str::to_owned));
            return Type::any();
        }
        if result == Basic::LIST && op == Binary::Add {
            let item = Self::item_of(&left_type).or(Self::item_of(&right_type));
            return Type::each(Basic::LIST, item);
        }
        Type::of(result)
    }

    pub(super) fn comparison(&mut self, first: &'a Node, rest: &'a [(Comparison, Node)]) -> Type<'a> {
        let mut left = (self.infer(first), first);
        for (op, node) in rest {
            let right = (self.infer(node), node);
            match op {
                Comparison::In | Comparison::NotIn => self.contains(&left.0, &right.0, left.1, right.1),
                Comparison::Eq | Comparison::Ne => self.equality(&left, &right),
                _ => self.order(&left, &right),
            }
            left = right;
        }
        Type::of(Basic::BOOL)
    }

    fn span_of(left: &Node, right: &Node) -> Span {
        Span::new(left.span.start.min(right.span.start), left.span.end.max(right.span.end))
    }

    fn order(&mut self, left: &(Type<'a>, &'a Node), right: &(Type<'a>, &'a Node)) {
        let a = self.defined(left.0.clone(), left.1.span);
        let b = self.defined(right.0.clone(), right.1.span);
        let span = Self::span_of(left.1, right.1);
        if are_apart(a.basic, b.basic) {
            let (a, b) = (a.basic.value(), b.basic.value());
            let message = format!("{} and {} have no order", a.shown(), b.shown());
            self.error("type::compare", span, message, text_help(a, b));
        } else if [a.basic, b.basic].iter().any(|basic| basic.misses(Basic::ANY.without(Basic::MAP))) {
            self.error("type::compare", span, "maps have no order".to_owned(), None);
        }
    }

    pub(super) fn equality(&mut self, left: &(Type<'a>, &'a Node), right: &(Type<'a>, &'a Node)) {
        let span = Self::span_of(left.1, right.1);
        let (a, b) = (left.0.basic, right.0.basic);
        if are_apart(a, b) {
            let message = format!("{} and {} are never equal", a.value().shown(), b.value().shown());
            self.error("type::compare", span, message, text_help(a.value(), b.value()));
            return;
        }
        for (literal, other) in [(&left.0, &right.0), (&right.0, &left.0)] {
            let (Some(text), Shape::Schema(schema)) = (literal.as_text(), &other.shape) else { continue };
            let Some(choices) = schema.choices() else { continue };
            let texts: Vec<&str> = choices.iter().filter_map(serde_json::Value::as_str).collect();
            if !texts.contains(&text) && !text.is_empty() {
                let path = other.origin.as_deref().unwrap_or("the value");
                let message = format!("`{path}` is never `{text}`");
                let help = match did_you_mean(text, texts.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("it is one of {}", texts.join(", ")),
                };
                self.push(Diagnostic::error("type::compare", message).help(help), span);
            }
        }
    }

    fn contains(&mut self, needle: &Type<'a>, hay: &Type<'a>, at: &'a Node, hay_at: &'a Node) {
        let hay = self.defined(hay.clone(), hay_at.span);
        if hay.basic.misses(Basic::ANY.without(Basic::NUMBER | Basic::BOOL)) {
            let message = format!("`in` does not accept {}", hay.basic.value().shown());
            self.error("type::compare", hay_at.span, message, None);
            return;
        }
        let hay_basic = hay.basic.value();
        let inner = match hay_basic {
            Basic::LIST => hay.item().basic,
            Basic::MAP | Basic::STRING => Basic::STRING,
            _ => return,
        };
        // The keys of a map of children may be numbers.
        if hay_basic == Basic::MAP && matches!(hay.shape, Shape::Each(_)) {
            return;
        }
        if are_apart(needle.basic, inner) {
            let what = match hay_basic {
                Basic::LIST => format!(
                    "{} is never in a list whose items are {}",
                    needle.basic.value().shown(),
                    inner.value().shown()
                ),
                Basic::MAP => format!("the keys of a map are strings, not {}", needle.basic.value().shown()),
                _ => format!("a string contains strings, not {}", needle.basic.value().shown()),
            };
            self.error("type::compare", Self::span_of(at, hay_at), what, None);
        }
    }
}

fn text_help(a: Basic, b: Basic) -> Option<String> {
    let number = Basic::NUMBER;
    if (a == Basic::STRING && b.overlaps(number)) || (b == Basic::STRING && a.overlaps(number)) {
        return Some("remove the quotes of the number, or use `| int` on the string".to_owned());
    }
    (a == Basic::BOOL || b == Basic::BOOL)
        .then(|| "test a boolean directly: `spec.x`, `not spec.x`".to_owned())
}

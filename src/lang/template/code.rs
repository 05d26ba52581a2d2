//! The compiled form of a template or an expression: MiniJinja's syntax tree, checked, with resolved names and with
//! source positions.

use std::sync::Arc;

use super::builtins::{Filter, Function, Test};
use super::errors::Fault;
use super::reads::Reads;
use super::value::{Name, Val};
use crate::diag::{Source, Span};

/// One compiled template, text or expression.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) source: Arc<Source>,
    pub(super) body: Vec<Stmt>,
    pub(super) macros: Vec<MacroDef>,
    pub(super) reads: Reads,
}

#[derive(Debug)]
pub(super) struct MacroDef {
    pub(super) name: Name,
    /// The parameters with their defaults.
    pub(super) params: Vec<(Name, Option<Node>)>,
    pub(super) body: Vec<Stmt>,
}

#[derive(Debug)]
pub(super) enum Stmt {
    /// Text, and its offset in the source.
    Raw(Arc<str>, usize),
    Emit(Node),
    For(Box<For>),
    If {
        test: Node,
        then: Vec<Stmt>,
        otherwise: Vec<Stmt>,
    },
    With {
        assignments: Vec<(Assignee, Node)>,
        body: Vec<Stmt>,
    },
    Set {
        target: Assignee,
        value: Node,
    },
    /// `{% set x %}...{% endset %}`; the filter reads [`CAPTURED`].
    SetBlock {
        target: Assignee,
        filter: Option<Node>,
        body: Vec<Stmt>,
    },
    /// `{% filter f %}...{% endfilter %}`; the filter reads [`CAPTURED`].
    Filter {
        filter: Node,
        body: Vec<Stmt>,
    },
    Do(Node),
}

/// The variable that contains the text of a filter block. It is not a valid name in a template.
pub(super) const CAPTURED: &str = "\u{0}captured";

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Assignee,
    pub(super) iter: Node,
    pub(super) filter: Option<Node>,
    pub(super) body: Vec<Stmt>,
    pub(super) otherwise: Vec<Stmt>,
    /// Whether `loop` is read.
    pub(super) uses_loop: bool,
}

#[derive(Debug)]
pub(super) enum Assignee {
    Name(Name),
    /// A field of a namespace.
    Field(Name, Name, Span),
    List(Vec<Assignee>, Span),
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) span: Span,
}

#[derive(Debug)]
pub(super) enum Kind {
    Const(Val),
    Var(Name),
    Attr(Box<Node>, Name),
    Item(Box<Node>, Box<Node>),
    /// The value; start, stop and step.
    Slice(Box<(Node, [Option<Node>; 3])>),
    Not(Box<Node>),
    Neg(Box<Node>),
    And(Box<(Node, Node)>),
    Or(Box<(Node, Node)>),
    Binary(Binary, Box<(Node, Node)>),
    /// `a < b <= c`: at least one comparison.
    Compare(Box<Node>, Vec<(Comparison, Node)>),
    /// The condition, the value, and the value otherwise.
    If(Box<(Node, Node, Option<Node>)>),
    /// The value, its replacement, and whether the replacement applies to false values too.
    Default(Box<(Node, Option<Node>, Option<Node>)>),
    Filter(&'static Filter, Box<Node>, Vec<Option<Node>>),
    Test(&'static Test, Box<Node>, Vec<Option<Node>>),
    Function(&'static Function, Vec<Option<Node>>, Vec<(Name, Node)>),
    Macro(usize, Vec<Option<Node>>),
    Partial(Name, Vec<(Name, Node)>),
    Method(Box<Node>, Name, Vec<Node>),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
    Concat,
}

impl Binary {
    /// The operator as written.
    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::FloorDiv => "//",
            Self::Rem => "%",
            Self::Pow => "**",
            Self::Concat => "~",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// A piece of the output of a template: literal text, or a value that text cannot change.
#[derive(Clone)]
pub(super) enum Piece {
    /// Text, and its offset in the source.
    Raw(Arc<str>, usize),
    Slot(Slot),
}

/// A value, or its error. The error counts only if the value is used, for example not in a comment.
#[derive(Clone)]
pub(super) struct Slot {
    pub(super) val: Result<Val, Fault>,
    pub(super) span: Span,
}

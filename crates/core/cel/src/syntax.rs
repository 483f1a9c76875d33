//! Expressions as they are evaluated.
//!
//! Owns their shape. Names are resolved: variables are positions, functions are code.

use std::sync::Arc;

use regex::Regex;

use super::library::Function;
use super::value::Value;

/// An expression.
#[derive(Clone, Debug)]
pub(super) enum Expr {
    Constant(Value),
    /// What is asked about.
    Subject,
    /// The variable at this position, counted from the outermost.
    Variable(usize),
    Select(Box<Expr>, Arc<str>),
    /// `has(a.b)`.
    Has(Box<Expr>, Arc<str>),
    /// `a.?b`.
    SelectIfThere(Box<Expr>, Arc<str>),
    Index(Box<Expr>, Box<Expr>),
    /// `a[?b]`.
    IndexIfThere(Box<Expr>, Box<Expr>),
    Call(&'static Function, Vec<Expr>),
    /// A call whose pattern does not depend on anything.
    Matches(Box<Expr>, Box<Regex>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    Choice(Box<[Expr; 3]>),
    List(Vec<(Expr, IfThere)>),
    Map(Vec<(Expr, Expr, IfThere)>),
    /// `cel.bind(name, what, then)`.
    Bind(Box<[Expr; 2]>),
    /// `optional.optMap(name, then)`; whether `then` is itself optional.
    MapOptional(Box<[Expr; 2]>, bool),
    Walk(Box<Walk>),
}

/// Whether an element is left out if it is an empty optional (`[?a]`).
pub(super) type IfThere = bool;

/// Going through the elements of a list or the keys of a map.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    pub(super) kind: WalkKind,
    pub(super) over: Expr,
    /// Two variables, position or key and value, rather than one.
    pub(super) two: bool,
    /// Those for which it does not hold are passed over.
    pub(super) filter: Option<Expr>,
    pub(super) body: Expr,
}

/// What is made of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkKind {
    All,
    Exists,
    ExistsOne,
    Filter,
    /// A list of what the body gives.
    List,
    /// A map from the keys to what the body gives.
    Map,
    /// A map of the entries that the body gives.
    Entries,
    /// The elements, sorted by what the body gives.
    Sort,
}

//! The syntax tree. Names are resolved: variables are positions, functions are code.

use std::sync::Arc;

use regex::Regex;

use super::library::Function;
use super::value::Value;

#[derive(Clone, Debug)]
pub(super) enum Expr {
    Constant(Value),
    /// `device` or `self`.
    Subject,
    /// By position, counted from the outermost.
    Variable(usize),
    Select(Box<Expr>, Arc<str>),
    /// `has(a.b)`.
    Has(Box<Expr>, Arc<str>),
    /// `a.?b`.
    SelectOptional(Box<Expr>, Arc<str>),
    Index(Box<Expr>, Box<Expr>),
    /// `a[?b]`.
    IndexOptional(Box<Expr>, Box<Expr>),
    Call(&'static Function, Vec<Expr>),
    /// `matches` with a constant pattern.
    Matches(Box<Expr>, Box<Regex>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    Choice(Box<[Expr; 3]>),
    List(Vec<(Expr, IsOptional)>),
    Map(Vec<(Expr, Expr, IsOptional)>),
    /// `cel.bind(name, value, body)`.
    Bind(Box<[Expr; 2]>),
    /// `optional.optMap(name, body)`; whether `body` is itself optional.
    MapOptional(Box<[Expr; 2]>, bool),
    Comprehension(Box<Comprehension>),
}

/// `[?a]`: the element is left out if it is an empty optional.
pub(super) type IsOptional = bool;

/// A comprehension over the elements of a list or the keys of a map.
#[derive(Clone, Debug)]
pub(super) struct Comprehension {
    pub(super) kind: ComprehensionKind,
    pub(super) over: Expr,
    /// Two variables (position or key, and value) rather than one.
    pub(super) two: bool,
    /// Elements for which it is false are skipped.
    pub(super) filter: Option<Expr>,
    pub(super) body: Expr,
}

/// The result of a comprehension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComprehensionKind {
    All,
    Exists,
    ExistsOne,
    Filter,
    /// A list of the body's values.
    List,
    /// A map from the keys to the body's values.
    Map,
    /// A map of the entries that the body returns.
    Entries,
    /// The elements, sorted by the body's values.
    Sort,
}

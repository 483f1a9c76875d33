//! CEL as Kubernetes 1.36 evaluates it, to select devices and to validate custom resources.
//!
//! The general CEL libraries for Rust evaluate without a budget and parse without a depth limit, and
//! lack the maps of Kubernetes that return an empty map for any domain and the comparison of its
//! quantities and versions. This evaluator is small and total: it never panics and ends within
//! [`COST_MAX`] for every input. Recorded answers of cel-go are the reference.
//!
//! Types are not checked before evaluation, because the API server does that before it stores an
//! expression. An expression that it would have rejected fails here when evaluation reaches the error.
//!
//! Missing, although Kubernetes declares them: URLs, IP addresses, CIDRs, named formats, `%e` in
//! `format`, time zones and authorization. Calling them is an error.

mod eval;
mod library;
mod parse;
mod syntax;
mod token;
mod value;
mod version;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::dra::slice::{Attribute, Device};
use thiserror::Error;

use eval::Evaluator;
pub use parse::field_name;
use syntax::Expr;
use value::{Amount, Key, Map, Value};
use version::Version;

/// Cost limit of an evaluation: a step costs one, work on long texts and lists more.
pub const COST_MAX: u64 = 1_000_000;

pub const EXPRESSION_BYTES_MAX: usize = 10 * 1024;

/// Limit of nesting.
const DEPTH_MAX: usize = 250;

/// Why an expression cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("CEL compile error at byte {at}: {problem}")]
pub struct CompileError {
    /// Byte offset.
    pub at: usize,
    pub problem: String,
}

/// Why an evaluation has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("CEL runtime error: {message}")]
pub struct EvalError {
    pub message: String,
    /// It ends the evaluation: `&&` and `||` do not absorb it.
    is_final: bool,
}

impl EvalError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_final: false }
    }

    fn no_overload(function: &str, values: &[Value]) -> Self {
        let types: Vec<&str> = values.iter().map(Value::type_name).collect();
        Self::new(format!("no such overload: {function}({})", types.join(", ")))
    }
}

/// The remaining budget.
struct Meter {
    left: u64,
}

impl Meter {
    fn charge(&mut self, cost: u64) -> Result<(), EvalError> {
        match self.left.checked_sub(cost) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                let message = format!("cost limit of {COST_MAX} exceeded");
                Err(EvalError { message, is_final: true })
            }
        }
    }

    /// Charges work on a text or list of this size.
    fn charge_size(&mut self, size: usize) -> Result<(), EvalError> {
        self.charge(u64::try_from(size / 10).unwrap_or(u64::MAX))
    }

    /// Charges the creation of values.
    fn charge_values(&mut self, count: usize) -> Result<(), EvalError> {
        self.charge(u64::try_from(count).unwrap_or(u64::MAX))
    }
}

/// A compiled expression about a `device`.
#[derive(Clone, Debug)]
pub struct Program {
    expr: Expr,
}

impl Program {
    /// Fails if the text is not CEL or calls an unknown function.
    pub fn compile(text: &str) -> Result<Self, CompileError> {
        Ok(Self { expr: parse::parse(text, "device")? })
    }

    /// Whether the expression is true for a device of this driver. It fails if there is no result,
    /// or a result that is not a boolean. In Kubernetes that ends the attempt to place the pod.
    pub fn matches(&self, driver: &str, device: &Device) -> Result<bool, EvalError> {
        holds(&self.expr, &device_value(driver, device)?)
    }
}

/// JSON data, with integers apart from other numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
    List(Vec<Data>),
    Map(BTreeMap<String, Data>),
}

impl Data {
    fn value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::Int(*value),
            Self::Double(value) => Value::Double(*value),
            Self::Text(text) => Value::text(text.as_str()),
            Self::List(items) => Value::list(items.iter().map(Self::value).collect()),
            Self::Map(entries) => {
                let key = |name: &String| Key::Text(name.as_str().into());
                let entries = entries.iter().map(|(name, value)| (key(name), value.value()));
                Value::Map(Arc::new(Map { entries: entries.collect(), otherwise: None }))
            }
        }
    }
}

/// A compiled rule about data, called `self` in its text.
#[derive(Clone, Debug)]
pub struct Rule {
    expr: Expr,
}

impl Rule {
    /// Fails if the text is not CEL or calls an unknown function.
    pub fn compile(text: &str) -> Result<Self, CompileError> {
        Ok(Self { expr: parse::parse(text, "self")? })
    }

    /// Fails if there is no result, or a result that is not a boolean.
    pub fn holds(&self, data: &Data) -> Result<bool, EvalError> {
        holds(&self.expr, &data.value())
    }
}

fn holds(expr: &Expr, subject: &Value) -> Result<bool, EvalError> {
    let mut run = Evaluator { subject, variables: Vec::new(), meter: Meter { left: COST_MAX } };
    match run.eval(expr)? {
        Value::Bool(value) => Ok(value),
        other => {
            let found = other.type_name();
            Err(EvalError::new(format!("expression must be true or false (got {found})")))
        }
    }
}

/// The variable `device`.
fn device_value(driver: &str, device: &Device) -> Result<Value, EvalError> {
    let mut attributes: BTreeMap<Key, BTreeMap<Key, Value>> = BTreeMap::new();
    for (name, attribute) in &device.attributes {
        let problem = |what: &str| EvalError::new(format!("attribute {name}: {what}"));
        let value = match attribute {
            Attribute::Int(value) => Value::Int(*value),
            Attribute::Bool(value) => Value::Bool(*value),
            Attribute::Text(value) => Value::Text(value.clone()),
            Attribute::Version(text) => {
                let version = Version::parse(text).map_err(|error| problem(&error.to_string()))?;
                Value::Version(Arc::new(version))
            }
            Attribute::Unsupported => return Err(problem("unsupported attribute value")),
        };
        let (domain, id) = qualified(name, driver);
        attributes.entry(domain).or_default().insert(id, value);
    }
    let mut capacity: BTreeMap<Key, BTreeMap<Key, Value>> = BTreeMap::new();
    for (name, amount) in &device.capacity {
        let (domain, id) = qualified(name, driver);
        let amount = Amount { quantity: amount.value, computed: false };
        capacity.entry(domain).or_default().insert(id, Value::Quantity(amount));
    }
    let fields = [
        ("driver", Value::text(driver)),
        ("allowMultipleAllocations", Value::Bool(device.shareable)),
        ("attributes", by_domain(attributes)),
        ("capacity", by_domain(capacity)),
    ];
    let entries = fields.into_iter().map(|(name, value)| (Key::Text(name.into()), value));
    Ok(Value::Map(Arc::new(Map { entries: entries.collect(), otherwise: None })))
}

/// The domain and the name in it; a name without a domain belongs to the driver's domain.
fn qualified(name: &str, driver: &str) -> (Key, Key) {
    let (domain, id) = name.split_once('/').unwrap_or((driver, name));
    (Key::Text(domain.into()), Key::Text(id.into()))
}

/// A map that returns an empty map for every unknown domain.
fn by_domain(domains: BTreeMap<Key, BTreeMap<Key, Value>>) -> Value {
    let map = |entries| Value::Map(Arc::new(Map { entries, otherwise: None }));
    let entries = domains.into_iter().map(|(domain, values)| (domain, map(values))).collect();
    Value::Map(Arc::new(Map { entries, otherwise: Some(map(BTreeMap::new())) }))
}

//! The function library: CEL's own functions and the extensions that Kubernetes 1.36 adds for
//! device selectors.

pub(super) mod list;
mod number;
mod quantity;
pub(super) mod text;
mod time;

use std::sync::Arc;

use super::value::Value;
use super::{EvalError, Meter};

pub(super) type Evaluated = Result<Value, EvalError>;

type Code = fn(&mut Meter, &[Value]) -> Evaluated;

pub(super) struct Function {
    pub(super) name: &'static str,
    /// Whether it is called as `receiver.name(…)`; the receiver is the first argument.
    member: bool,
    /// Number of arguments, the receiver included.
    least: usize,
    most: usize,
    pub(super) code: Code,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// `name(…)`.
const fn plain(name: &'static str, least: usize, most: usize, code: Code) -> Function {
    Function { name, member: false, least, most, code }
}

/// `receiver.name(…)`.
const fn member(name: &'static str, least: usize, most: usize, code: Code) -> Function {
    Function { name, member: true, least, most, code }
}

/// By name and number of arguments.
pub(super) fn function(name: &str, member: bool, arguments: usize) -> Option<&'static Function> {
    let tables = [OWN, text::FUNCTIONS, list::FUNCTIONS, quantity::FUNCTIONS, time::FUNCTIONS];
    tables.into_iter().flatten().find(|one| {
        one.name == name && one.member == member && (one.least..=one.most).contains(&arguments)
    })
}

/// The function of a binary operator, or of `-_`.
pub(super) fn operator(sign: &str) -> Option<&'static Function> {
    number::OPERATORS.iter().find(|one| one.name == sign)
}

const OWN: &[Function] = &[
    plain("size", 1, 1, size),
    member("size", 1, 1, size),
    plain("dyn", 1, 1, |_, values| Ok(values[0].clone())),
    plain("type", 1, 1, |_, values| Ok(Value::Type(values[0].type_name()))),
    plain("int", 1, 1, number::int),
    plain("uint", 1, 1, number::uint),
    plain("double", 1, 1, number::double),
    plain("bool", 1, 1, number::bool),
    plain("string", 1, 1, number::string),
    plain("bytes", 1, 1, |_, values| match &values[0] {
        Value::Text(one) => Ok(Value::Bytes(one.as_bytes().into())),
        one @ Value::Bytes(_) => Ok(one.clone()),
        _ => Err(EvalError::no_overload("bytes", values)),
    }),
    plain("optional.none", 0, 0, |_, _| Ok(Value::none())),
    plain("optional.of", 1, 1, |_, values| Ok(Value::some(values[0].clone()))),
    plain("optional.ofNonZeroValue", 1, 1, |_, values| match &values[0] {
        zero if zero.is_zero() => Ok(Value::none()),
        other => Ok(Value::some(other.clone())),
    }),
    plain("optional.unwrap", 1, 1, unwrap),
    member("unwrapOpt", 1, 1, unwrap),
    member("hasValue", 1, 1, |_, values| match &values[0] {
        Value::Optional(one) => Ok(Value::Bool(one.is_some())),
        _ => Err(EvalError::no_overload("hasValue", values)),
    }),
    member("value", 1, 1, |_, values| match &values[0] {
        Value::Optional(Some(one)) => Ok(one.as_ref().clone()),
        Value::Optional(None) => Err(EvalError::new("optional.none() dereference")),
        _ => Err(EvalError::no_overload("value", values)),
    }),
    member("or", 2, 2, |_, values| match values {
        [one @ Value::Optional(Some(_)), _] => Ok(one.clone()),
        [Value::Optional(None), other @ Value::Optional(_)] => Ok(other.clone()),
        _ => Err(EvalError::no_overload("or", values)),
    }),
    member("orValue", 2, 2, |_, values| match values {
        [Value::Optional(Some(one)), _] => Ok(one.as_ref().clone()),
        [Value::Optional(None), other] => Ok(other.clone()),
        _ => Err(EvalError::no_overload("orValue", values)),
    }),
];

fn size(_: &mut Meter, values: &[Value]) -> Evaluated {
    let size = match &values[0] {
        Value::Text(one) => one.chars().count(),
        Value::Bytes(one) => one.len(),
        Value::List(one) => one.len(),
        Value::Map(one) => one.entries.len(),
        _ => return Err(EvalError::no_overload("size", values)),
    };
    Ok(count(size))
}

/// The values of a list of optionals that have one.
fn unwrap(meter: &mut Meter, values: &[Value]) -> Evaluated {
    let Value::List(list) = &values[0] else {
        return Err(EvalError::no_overload("optional.unwrap", values));
    };
    meter.charge_values(list.len())?;
    let mut kept = Vec::new();
    for one in list.iter() {
        match one {
            Value::Optional(Some(one)) => kept.push(one.as_ref().clone()),
            Value::Optional(None) => {}
            other => {
                return Err(EvalError::no_overload("optional.unwrap", std::slice::from_ref(other)));
            }
        }
    }
    Ok(Value::list(kept))
}

fn count(count: usize) -> Value {
    Value::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

fn text_of<'a>(function: &str, values: &'a [Value], at: usize) -> Result<&'a Arc<str>, EvalError> {
    match values.get(at) {
        Some(Value::Text(text)) => Ok(text),
        _ => Err(EvalError::no_overload(function, values)),
    }
}

fn int_of(function: &str, values: &[Value], at: usize) -> Result<i64, EvalError> {
    match values.get(at) {
        Some(Value::Int(one)) => Ok(*one),
        _ => Err(EvalError::no_overload(function, values)),
    }
}

fn list_of<'a>(
    function: &str,
    values: &'a [Value],
    at: usize,
) -> Result<&'a Arc<[Value]>, EvalError> {
    match values.get(at) {
        Some(Value::List(list)) => Ok(list),
        _ => Err(EvalError::no_overload(function, values)),
    }
}

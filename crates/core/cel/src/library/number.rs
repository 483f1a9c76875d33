//! Operators and type conversions. Overflow is an error, never a wrapped number.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{EvalError, Evaluated, Function, Meter, Value, plain, time};

pub(super) const OPERATORS: &[Function] = &[
    plain("==", 2, 2, |_, values| Ok(Value::Bool(values[0].equals(&values[1])?))),
    // Values that cannot be compared are not equal, although comparing them fails.
    plain("!=", 2, 2, |_, values| Ok(Value::Bool(!values[0].equals(&values[1]).unwrap_or(false)))),
    plain("<", 2, 2, |_, values| ordered("_<_", values, Ordering::is_lt)),
    plain("<=", 2, 2, |_, values| ordered("_<=_", values, Ordering::is_le)),
    plain(">", 2, 2, |_, values| ordered("_>_", values, Ordering::is_gt)),
    plain(">=", 2, 2, |_, values| ordered("_>=_", values, Ordering::is_ge)),
    plain("in", 2, 2, contains),
    plain("+", 2, 2, add),
    plain("-", 2, 2, subtract),
    plain("*", 2, 2, |_, values| match values {
        [Value::Int(one), Value::Int(two)] => whole(one.checked_mul(*two)),
        [Value::Uint(one), Value::Uint(two)] => natural(one.checked_mul(*two)),
        [Value::Double(one), Value::Double(two)] => Ok(Value::Double(one * two)),
        _ => Err(EvalError::no_overload("_*_", values)),
    }),
    plain("/", 2, 2, |_, values| match values {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            Err(EvalError::new("division by zero"))
        }
        [Value::Int(one), Value::Int(two)] => whole(one.checked_div(*two)),
        [Value::Uint(one), Value::Uint(two)] => natural(one.checked_div(*two)),
        [Value::Double(one), Value::Double(two)] => Ok(Value::Double(one / two)),
        _ => Err(EvalError::no_overload("_/_", values)),
    }),
    plain("%", 2, 2, |_, values| match values {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            Err(EvalError::new("modulus by zero"))
        }
        [Value::Int(one), Value::Int(two)] => whole(one.checked_rem(*two)),
        [Value::Uint(one), Value::Uint(two)] => natural(one.checked_rem(*two)),
        _ => Err(EvalError::no_overload("_%_", values)),
    }),
    plain("-_", 1, 1, |_, values| match &values[0] {
        Value::Int(one) => whole(one.checked_neg()),
        Value::Double(one) => Ok(Value::Double(-one)),
        Value::Duration(one) => time::duration(one.checked_neg()),
        _ => Err(EvalError::no_overload("-_", values)),
    }),
];

fn whole(value: Option<i64>) -> Evaluated {
    value.map(Value::Int).ok_or_else(|| EvalError::new("integer overflow"))
}

fn natural(value: Option<u64>) -> Evaluated {
    value.map(Value::Uint).ok_or_else(|| EvalError::new("unsigned integer overflow"))
}

fn ordered(function: &str, values: &[Value], holds: fn(Ordering) -> bool) -> Evaluated {
    let [one, two] = values else { return Err(EvalError::no_overload(function, values)) };
    if let Some(order) = one.order(two) {
        return Ok(Value::Bool(holds(order)));
    }
    match (one, two) {
        // Nothing is less than NaN.
        (Value::Double(nan), Value::Double(_) | Value::Int(_) | Value::Uint(_))
        | (Value::Int(_) | Value::Uint(_), Value::Double(nan))
            if nan.is_nan() =>
        {
            Err(EvalError::new("NaN values cannot be ordered"))
        }
        (Value::Double(_), Value::Double(_)) => Err(EvalError::new("NaN values cannot be ordered")),
        _ => Err(EvalError::no_overload(function, values)),
    }
}

fn contains(meter: &mut Meter, values: &[Value]) -> Evaluated {
    match values {
        [one, Value::List(list)] => {
            meter.charge_values(list.len())?;
            // An element that cannot be compared is a different one.
            let found = list.iter().any(|other| one.equals(other).unwrap_or(false));
            Ok(Value::Bool(found))
        }
        [one, Value::Map(map)] => Ok(Value::Bool(map.stored(one).is_some())),
        _ => Err(EvalError::no_overload("@in", values)),
    }
}

fn add(meter: &mut Meter, values: &[Value]) -> Evaluated {
    match values {
        [Value::Int(one), Value::Int(two)] => whole(one.checked_add(*two)),
        [Value::Uint(one), Value::Uint(two)] => natural(one.checked_add(*two)),
        [Value::Double(one), Value::Double(two)] => Ok(Value::Double(one + two)),
        [Value::Text(one), Value::Text(two)] => {
            meter.charge_size(one.len() + two.len())?;
            Ok(Value::text([one.as_ref(), two.as_ref()].concat()))
        }
        [Value::Bytes(one), Value::Bytes(two)] => {
            meter.charge_size(one.len() + two.len())?;
            Ok(Value::Bytes([one.as_ref(), two.as_ref()].concat().into()))
        }
        [Value::List(one), Value::List(two)] => {
            meter.charge_values(one.len() + two.len())?;
            let joined: Arc<[Value]> = one.iter().chain(two.iter()).cloned().collect();
            Ok(Value::List(joined))
        }
        [Value::Duration(one), Value::Duration(two)] => time::duration(one.checked_add(*two)),
        [Value::Timestamp(at), Value::Duration(length)]
        | [Value::Duration(length), Value::Timestamp(at)] => {
            time::timestamp(at.checked_add(i128::from(*length)))
        }
        _ => Err(EvalError::no_overload("_+_", values)),
    }
}

fn subtract(_: &mut Meter, values: &[Value]) -> Evaluated {
    match values {
        [Value::Int(one), Value::Int(two)] => whole(one.checked_sub(*two)),
        [Value::Uint(one), Value::Uint(two)] => natural(one.checked_sub(*two)),
        [Value::Double(one), Value::Double(two)] => Ok(Value::Double(one - two)),
        [Value::Duration(one), Value::Duration(two)] => time::duration(one.checked_sub(*two)),
        [Value::Timestamp(at), Value::Duration(length)] => {
            time::timestamp(at.checked_sub(i128::from(*length)))
        }
        [Value::Timestamp(one), Value::Timestamp(two)] => {
            time::duration(i64::try_from(one - two).ok())
        }
        _ => Err(EvalError::no_overload("_-_", values)),
    }
}

pub(super) fn int(_: &mut Meter, values: &[Value]) -> Evaluated {
    match &values[0] {
        one @ Value::Int(_) => Ok(one.clone()),
        Value::Uint(one) => whole(i64::try_from(*one).ok()),
        // The bounds themselves are excluded: near them a double is not exact.
        Value::Double(one) if *one > i64::MIN as f64 && *one < i64::MAX as f64 => {
            Ok(Value::Int(*one as i64))
        }
        Value::Double(_) => Err(EvalError::new("integer overflow")),
        Value::Text(one) => match one.parse() {
            Ok(value) => Ok(Value::Int(value)),
            Err(_) => Err(EvalError::new(format!("{one:?} is not an integer"))),
        },
        Value::Timestamp(at) => whole(i64::try_from(at.div_euclid(time::NANOS_PER_SECOND)).ok()),
        Value::Duration(length) => Ok(Value::Int(*length)),
        _ => Err(EvalError::no_overload("int", values)),
    }
}

pub(super) fn uint(_: &mut Meter, values: &[Value]) -> Evaluated {
    match &values[0] {
        one @ Value::Uint(_) => Ok(one.clone()),
        Value::Int(one) => natural(u64::try_from(*one).ok()),
        Value::Double(one) if *one >= 0.0 && *one < u64::MAX as f64 => Ok(Value::Uint(*one as u64)),
        Value::Double(_) => Err(EvalError::new("unsigned integer overflow")),
        Value::Text(one) if !one.starts_with('+') => match one.parse() {
            Ok(value) => Ok(Value::Uint(value)),
            Err(_) => Err(EvalError::new(format!("{one:?} is not an unsigned integer"))),
        },
        _ => Err(EvalError::no_overload("uint", values)),
    }
}

pub(super) fn double(_: &mut Meter, values: &[Value]) -> Evaluated {
    match &values[0] {
        one @ Value::Double(_) => Ok(one.clone()),
        Value::Int(one) => Ok(Value::Double(*one as f64)),
        Value::Uint(one) => Ok(Value::Double(*one as f64)),
        Value::Text(one) => match one.parse() {
            Ok(value) => Ok(Value::Double(value)),
            Err(_) => Err(EvalError::new(format!("{one:?} is not a number"))),
        },
        _ => Err(EvalError::no_overload("double", values)),
    }
}

pub(super) fn bool(_: &mut Meter, values: &[Value]) -> Evaluated {
    match &values[0] {
        one @ Value::Bool(_) => Ok(one.clone()),
        Value::Text(one) => match one.as_ref() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            other => Err(EvalError::new(format!("{other:?} is neither true nor false"))),
        },
        _ => Err(EvalError::no_overload("bool", values)),
    }
}

pub(super) fn string(meter: &mut Meter, values: &[Value]) -> Evaluated {
    match &values[0] {
        one @ Value::Text(_) => Ok(one.clone()),
        Value::Bool(one) => Ok(Value::text(one.to_string())),
        Value::Int(one) => Ok(Value::text(one.to_string())),
        Value::Uint(one) => Ok(Value::text(one.to_string())),
        Value::Double(one) => Ok(Value::text(shortest(*one))),
        Value::Bytes(one) => {
            meter.charge_size(one.len())?;
            match std::str::from_utf8(one) {
                Ok(text) => Ok(Value::text(text)),
                Err(_) => Err(EvalError::new("invalid UTF-8 in bytes, cannot convert to string")),
            }
        }
        Value::Timestamp(at) => Ok(Value::text(time::written(*at))),
        Value::Duration(length) => Ok(Value::text(time::seconds(*length))),
        _ => Err(EvalError::no_overload("string", values)),
    }
}

/// The shortest text that parses as this number, in Go's format.
pub(super) fn shortest(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 || (-4..6).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

//! Functions on quantities and versions.

use std::cmp::Ordering;
use std::sync::Arc;

use berth_model::quantity::{Format, Quantity};

use super::super::value::Amount;
use super::super::version::{Version, VersionError};
use super::{EvalError, Evaluated, Function, Value, member, plain, text_of};

pub(super) const FUNCTIONS: &[Function] = &[
    plain("quantity", 1, 1, |_, values| {
        let text = text_of("quantity", values, 0)?;
        match Quantity::parse(text) {
            Ok(quantity) => Ok(Value::Quantity(Amount { quantity, computed: false })),
            Err(error) => Err(EvalError::new(error.to_string())),
        }
    }),
    plain("isQuantity", 1, 1, |_, values| {
        Ok(Value::Bool(Quantity::parse(text_of("isQuantity", values, 0)?).is_ok()))
    }),
    plain("sign", 1, 1, |_, values| Ok(Value::Int(i64::from(amount("sign", values, 0)?.sign())))),
    member("isInteger", 1, 1, |_, values| {
        Ok(Value::Bool(amount("isInteger", values, 0)?.as_stored_i64().is_some()))
    }),
    member("asInteger", 1, 1, |_, values| match amount("asInteger", values, 0)?.as_stored_i64() {
        Some(value) => Ok(Value::Int(value)),
        None => Err(EvalError::new("cannot convert value to integer")),
    }),
    member("asApproximateFloat", 1, 1, |_, values| {
        let nanos = amount("asApproximateFloat", values, 0)?.nanos();
        let value = match nanos % 1_000_000_000 {
            0 => (nanos / 1_000_000_000) as f64,
            _ => nanos as f64 / 1e9,
        };
        Ok(Value::Double(value))
    }),
    member("add", 2, 2, |_, values| combined("add", values, Quantity::saturating_add)),
    member("sub", 2, 2, |_, values| combined("sub", values, Quantity::saturating_sub)),
    member("isGreaterThan", 2, 2, |_, values| {
        Ok(Value::Bool(compared("isGreaterThan", values)?.is_gt()))
    }),
    member("isLessThan", 2, 2, |_, values| {
        Ok(Value::Bool(compared("isLessThan", values)?.is_lt()))
    }),
    member("compareTo", 2, 2, |_, values| Ok(Value::Int(compared("compareTo", values)? as i64))),
    plain("semver", 1, 2, |_, values| {
        let version =
            version("semver", values)?.map_err(|error| EvalError::new(error.to_string()))?;
        Ok(Value::Version(Arc::new(version)))
    }),
    plain("isSemver", 1, 2, |_, values| Ok(Value::Bool(version("isSemver", values)?.is_ok()))),
    member("major", 1, 1, |_, values| part("major", values, |version| version.major)),
    member("minor", 1, 1, |_, values| part("minor", values, |version| version.minor)),
    member("patch", 1, 1, |_, values| part("patch", values, |version| version.patch)),
];

fn amount(function: &str, values: &[Value], at: usize) -> Result<Quantity, EvalError> {
    match values.get(at) {
        Some(Value::Quantity(amount)) => Ok(amount.quantity),
        _ => Err(EvalError::no_overload(function, values)),
    }
}

fn combined(
    function: &str,
    values: &[Value],
    combine: fn(Quantity, Quantity) -> Quantity,
) -> Evaluated {
    let one = amount(function, values, 0)?;
    let other = match values.get(1) {
        Some(Value::Int(other)) => Quantity::from_units(*other, Format::DecimalExponent),
        _ => amount(function, values, 1)?,
    };
    Ok(Value::Quantity(Amount { quantity: combine(one, other), computed: true }))
}

fn compared(function: &str, values: &[Value]) -> Result<Ordering, EvalError> {
    match values {
        [Value::Quantity(one), Value::Quantity(two)] => Ok(one.quantity.cmp(&two.quantity)),
        [Value::Version(one), Value::Version(two)] => Ok(one.compare(two)),
        _ => Err(EvalError::no_overload(function, values)),
    }
}

fn version(function: &str, values: &[Value]) -> Result<Result<Version, VersionError>, EvalError> {
    let text = text_of(function, values, 0)?;
    match values.get(1) {
        None | Some(Value::Bool(false)) => Ok(Version::parse(text)),
        Some(Value::Bool(true)) => Ok(Version::parse_loosely(text)),
        Some(_) => Err(EvalError::no_overload(function, values)),
    }
}

fn part(function: &str, values: &[Value], of: fn(&Version) -> u64) -> Evaluated {
    match values {
        // Kubernetes casts without a check.
        [Value::Version(version)] => Ok(Value::Int(of(version) as i64)),
        _ => Err(EvalError::no_overload(function, values)),
    }
}

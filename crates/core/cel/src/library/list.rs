//! Functions on lists and sets.

use std::cmp::Ordering;

use super::{EvalError, Evaluated, Function, Meter, Value, int_of, list_of, member, plain};

pub(super) const FUNCTIONS: &[Function] = &[
    member("isSorted", 1, 1, |meter, values| {
        let list = list_argument("isSorted", meter, values)?;
        if let Some(other) = list.iter().find(|one| !one.is_ordered()) {
            return Err(EvalError::no_overload("isSorted", std::slice::from_ref(other)));
        }
        let sorted = list.windows(2).all(|pair| pair[0].order(&pair[1]) != Some(Ordering::Greater));
        Ok(Value::Bool(sorted))
    }),
    member("sum", 1, 1, |meter, values| {
        let list = list_argument("sum", meter, values)?;
        let Some(add) = super::operator("+") else {
            return Err(EvalError::no_overload("sum", values));
        };
        let mut sum = match list.first() {
            Some(Value::Uint(_)) => Value::Uint(0),
            Some(Value::Double(_)) => Value::Double(0.0),
            Some(Value::Duration(_)) => Value::Duration(0),
            Some(Value::Int(_)) | None => Value::Int(0),
            Some(_) => return Err(EvalError::no_overload("sum", values)),
        };
        for one in list.iter() {
            sum = (add.code)(meter, &[sum, one.clone()])?;
        }
        Ok(sum)
    }),
    member("min", 1, 1, |meter, values| extreme("min", Ordering::Greater, meter, values)),
    member("max", 1, 1, |meter, values| extreme("max", Ordering::Less, meter, values)),
    member("slice", 3, 3, |meter, values| {
        let list = list_argument("slice", meter, values)?;
        let (start, end) = (int_of("slice", values, 1)?, int_of("slice", values, 2)?);
        let part = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        match part.and_then(|(start, end)| list.get(start..end)) {
            Some(part) => Ok(Value::list(part.to_vec())),
            None => Err(EvalError::new(format!("cannot slice({start}, {end})"))),
        }
    }),
    member("flatten", 1, 2, |meter, values| {
        let list = list_argument("flatten", meter, values)?;
        let depth = if values.len() > 1 { int_of("flatten", values, 1)? } else { 1 };
        if depth < 0 {
            return Err(EvalError::new("level must be non-negative"));
        }
        let mut flat = Vec::new();
        flatten(list, depth, meter, &mut flat)?;
        Ok(Value::list(flat))
    }),
    plain("lists.range", 1, 1, |meter, values| {
        let end = int_of("lists.range", values, 0)?.max(0);
        meter.charge(end.unsigned_abs())?;
        Ok(Value::list((0..end).map(Value::Int).collect()))
    }),
    member("reverse", 1, 1, |meter, values| {
        let list = list_argument("reverse", meter, values)?;
        Ok(Value::list(list.iter().rev().cloned().collect()))
    }),
    member("distinct", 1, 1, |meter, values| {
        let list = list_argument("distinct", meter, values)?;
        let mut kept: Vec<Value> = Vec::new();
        for one in list {
            meter.charge_values(kept.len())?;
            if !kept.iter().any(|other| one.equals(other).unwrap_or(false)) {
                kept.push(one.clone());
            }
        }
        Ok(Value::list(kept))
    }),
    member("sort", 1, 1, |meter, values| {
        let list = list_argument("sort", meter, values)?;
        sorted_by(list.to_vec(), list)
    }),
    member("first", 1, 1, |_, values| {
        let first = list_of("first", values, 0)?.first();
        Ok(first.map_or(Value::none(), |one| Value::some(one.clone())))
    }),
    member("last", 1, 1, |_, values| {
        let last = list_of("last", values, 0)?.last();
        Ok(last.map_or(Value::none(), |one| Value::some(one.clone())))
    }),
    plain("sets.contains", 2, 2, |meter, values| {
        let (one, two) = sets("sets.contains", meter, values)?;
        Ok(Value::Bool(has_all(one, two)))
    }),
    plain("sets.equivalent", 2, 2, |meter, values| {
        let (one, two) = sets("sets.equivalent", meter, values)?;
        Ok(Value::Bool(has_all(one, two) && has_all(two, one)))
    }),
    plain("sets.intersects", 2, 2, |meter, values| {
        let (one, two) = sets("sets.intersects", meter, values)?;
        Ok(Value::Bool(one.iter().any(|value| has(two, value))))
    }),
];

/// The list argument; charges its size.
fn list_argument<'a>(
    function: &str,
    meter: &mut Meter,
    values: &'a [Value],
) -> Result<&'a [Value], EvalError> {
    let list = list_of(function, values, 0)?;
    meter.charge_values(list.len())?;
    Ok(list)
}

fn extreme(
    function: &str,
    replaced_if: Ordering,
    meter: &mut Meter,
    values: &[Value],
) -> Evaluated {
    let list = list_argument(function, meter, values)?;
    if let Some(other) = list.iter().find(|one| !one.is_ordered()) {
        return Err(EvalError::no_overload(function, std::slice::from_ref(other)));
    }
    let best = list.iter().reduce(
        |best, next| {
            if best.order(next) == Some(replaced_if) { next } else { best }
        },
    );
    best.cloned().ok_or_else(|| EvalError::new(format!("{function} called on empty list")))
}

fn flatten(
    list: &[Value],
    depth: i64,
    meter: &mut Meter,
    flat: &mut Vec<Value>,
) -> Result<(), EvalError> {
    for one in list {
        meter.charge(1)?;
        match one {
            Value::List(inner) if depth > 0 => flatten(inner, depth - 1, meter, flat)?,
            other => flat.push(other.clone()),
        }
    }
    Ok(())
}

/// `values` in the order of their `keys`, which must be of one ordered type.
pub(crate) fn sorted_by(values: Vec<Value>, keys: &[Value]) -> Evaluated {
    let Some(first) = keys.first() else { return Ok(Value::list(values)) };
    if !first.is_ordered() {
        return Err(EvalError::new("list elements must be comparable"));
    }
    if keys.iter().any(|key| key.type_name() != first.type_name()) {
        return Err(EvalError::new("list elements must have the same type"));
    }
    let mut pairs: Vec<(&Value, Value)> = keys.iter().zip(values).collect();
    pairs.sort_by(|(one, _), (two, _)| one.order(two).unwrap_or(Ordering::Equal));
    Ok(Value::list(pairs.into_iter().map(|(_, value)| value).collect()))
}

fn sets<'a>(
    function: &str,
    meter: &mut Meter,
    values: &'a [Value],
) -> Result<(&'a [Value], &'a [Value]), EvalError> {
    let (one, two) = (list_of(function, values, 0)?, list_of(function, values, 1)?);
    meter.charge_values(one.len().saturating_mul(two.len()))?;
    Ok((one, two))
}

fn has(set: &[Value], value: &Value) -> bool {
    set.iter().any(|one| value.equals(one).unwrap_or(false))
}

fn has_all(set: &[Value], wanted: &[Value]) -> bool {
    wanted.iter().all(|value| has(set, value))
}

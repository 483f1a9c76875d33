//! Evaluation, with cel-go's error absorption (`false && error` is false) and a cost budget.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::library::list::sorted_by;
use super::syntax::{Comprehension, ComprehensionKind, Expr, IsOptional};
use super::value::{Key, Map, Value};
use super::{EvalError, Meter};

pub(super) struct Evaluator<'a> {
    /// The value of `device` or `self`.
    pub(super) subject: &'a Value,
    pub(super) variables: Vec<Value>,
    pub(super) meter: Meter,
}

type Evaluated = Result<Value, EvalError>;

impl Evaluator<'_> {
    pub(super) fn eval(&mut self, expr: &Expr) -> Evaluated {
        self.meter.charge(1)?;
        match expr {
            Expr::Constant(value) => Ok(value.clone()),
            Expr::Subject => Ok(self.subject.clone()),
            Expr::Variable(at) => match self.variables.get(*at) {
                Some(value) => Ok(value.clone()),
                None => Err(EvalError::new("variable has no value")),
            },
            Expr::Select(of, field) => {
                let of = self.eval(of)?;
                select(&of, &Value::Text(field.clone()), "select")
            }
            Expr::Has(of, field) => {
                let of = self.eval(of)?;
                has(&of, &Value::Text(field.clone()))
            }
            Expr::SelectOptional(of, field) => {
                let of = self.eval(of)?;
                select_optional(&of, &Value::Text(field.clone()))
            }
            Expr::Index(of, key) => {
                let (of, key) = (self.eval(of)?, self.eval(key)?);
                select(&of, &key, "_[_]")
            }
            Expr::IndexOptional(of, key) => {
                let (of, key) = (self.eval(of)?, self.eval(key)?);
                select_optional(&of, &key)
            }
            Expr::Call(function, arguments) => {
                let mut values = smallvec::SmallVec::<[Value; 3]>::new();
                for argument in arguments {
                    values.push(self.eval(argument)?);
                }
                (function.code)(&mut self.meter, &values)
            }
            Expr::Matches(of, regex) => {
                let of = self.eval(of)?;
                let Value::Text(text) = &of else {
                    return Err(EvalError::no_overload("matches", &[of]));
                };
                self.meter.charge_size(text.len().saturating_mul(regex.as_str().len()))?;
                Ok(Value::Bool(regex.is_match(text)))
            }
            Expr::And(terms) => self.junction(terms, false),
            Expr::Or(terms) => self.junction(terms, true),
            Expr::Not(term) => match self.eval(term)? {
                Value::Bool(value) => Ok(Value::Bool(!value)),
                other => Err(EvalError::no_overload("!_", &[other])),
            },
            Expr::Choice(parts) => {
                let [condition, then, otherwise] = parts.as_ref();
                match self.eval(condition)? {
                    Value::Bool(true) => self.eval(then),
                    Value::Bool(false) => self.eval(otherwise),
                    other => Err(EvalError::no_overload("_?_:_", &[other])),
                }
            }
            Expr::List(elements) => self.list(elements),
            Expr::Map(entries) => self.map(entries),
            Expr::Bind(parts) => {
                let [what, then] = parts.as_ref();
                let what = self.eval(what)?;
                self.with(&[what], then)
            }
            Expr::MapOptional(parts, flat) => self.map_optional(parts, *flat),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    /// Evaluates with additional variables.
    fn with(&mut self, values: &[Value], expr: &Expr) -> Evaluated {
        let outside = self.variables.len();
        self.variables.extend_from_slice(values);
        let evaluated = self.eval(expr);
        self.variables.truncate(outside);
        evaluated
    }

    /// `&&` and `||`.
    fn junction(&mut self, terms: &[Expr], decides: bool) -> Evaluated {
        combine(terms.iter().map(|term| self.eval(term)), decides)
    }

    fn list(&mut self, elements: &[(Expr, IsOptional)]) -> Evaluated {
        let mut values = Vec::with_capacity(elements.len());
        for (element, if_there) in elements {
            match (self.eval(element)?, if_there) {
                (value, false) => values.push(value),
                (Value::Optional(Some(value)), true) => values.push(value.as_ref().clone()),
                (Value::Optional(None), true) => {}
                (other, true) => return Err(EvalError::no_overload("[?_]", &[other])),
            }
        }
        Ok(Value::list(values))
    }

    fn map(&mut self, entries: &[(Expr, Expr, IsOptional)]) -> Evaluated {
        let mut map = BTreeMap::new();
        for (key, value, if_there) in entries {
            let key = Key::of(&self.eval(key)?)?;
            match (self.eval(value)?, if_there) {
                (value, false) => {
                    map.insert(key, value);
                }
                (Value::Optional(Some(value)), true) => {
                    map.insert(key, value.as_ref().clone());
                }
                (Value::Optional(None), true) => {}
                (other, true) => return Err(EvalError::no_overload("{?_}", &[other])),
            }
        }
        Ok(Value::Map(Arc::new(Map { entries: map, otherwise: None })))
    }

    fn map_optional(&mut self, parts: &[Expr; 2], flat: bool) -> Evaluated {
        let [of, then] = parts;
        match self.eval(of)? {
            Value::Optional(None) => Ok(Value::none()),
            Value::Optional(Some(value)) => {
                let result = self.with(&[value.as_ref().clone()], then)?;
                match (flat, result) {
                    (false, result) => Ok(Value::some(result)),
                    (true, result @ Value::Optional(_)) => Ok(result),
                    (true, other) => Err(EvalError::no_overload("optFlatMap", &[other])),
                }
            }
            other => Err(EvalError::no_overload("optMap", &[other])),
        }
    }

    fn comprehension(&mut self, comprehension: &Comprehension) -> Evaluated {
        let over = self.eval(&comprehension.over)?;
        let items = items(&over, comprehension.two)?;
        match comprehension.kind {
            ComprehensionKind::All => self.quantify(comprehension, &items, false),
            ComprehensionKind::Exists => self.quantify(comprehension, &items, true),
            ComprehensionKind::ExistsOne => {
                let mut found = 0;
                for item in &items {
                    found += usize::from(self.holds(item, &comprehension.body)?);
                }
                Ok(Value::Bool(found == 1))
            }
            ComprehensionKind::Filter => {
                let mut kept = Vec::new();
                for item in &items {
                    if self.holds(item, &comprehension.body)? {
                        kept.extend(item.first().cloned());
                    }
                }
                Ok(Value::list(kept))
            }
            ComprehensionKind::List => {
                let mut result = Vec::new();
                for item in &items {
                    if self.passes(comprehension, item)? {
                        result.push(self.with(item, &comprehension.body)?);
                    }
                }
                Ok(Value::list(result))
            }
            ComprehensionKind::Map | ComprehensionKind::Entries => {
                self.entries(comprehension, &items)
            }
            ComprehensionKind::Sort => {
                let mut keys = Vec::with_capacity(items.len());
                for item in &items {
                    keys.push(self.with(item, &comprehension.body)?);
                }
                sorted_by(items.iter().filter_map(|item| item.first().cloned()).collect(), &keys)
            }
        }
    }

    fn entries(&mut self, comprehension: &Comprehension, items: &[Item]) -> Evaluated {
        let mut map = BTreeMap::new();
        for item in items {
            if !self.passes(comprehension, item)? {
                continue;
            }
            let result = self.with(item, &comprehension.body)?;
            let new = match (comprehension.kind, &result, item.first()) {
                (ComprehensionKind::Map, _, Some(key)) => vec![(Key::of(key)?, result)],
                (_, Value::Map(entries), _) => entries
                    .entries
                    .iter()
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect(),
                _ => return Err(EvalError::no_overload("transformMapEntry", &[result])),
            };
            for (key, value) in new {
                if map.insert(key, value).is_some() {
                    return Err(EvalError::new("insert failed: key already exists"));
                }
            }
        }
        Ok(Value::Map(Arc::new(Map { entries: map, otherwise: None })))
    }

    fn passes(&mut self, comprehension: &Comprehension, item: &Item) -> Result<bool, EvalError> {
        match &comprehension.filter {
            Some(filter) => self.holds(item, filter),
            None => Ok(true),
        }
    }

    fn holds(&mut self, item: &Item, expr: &Expr) -> Result<bool, EvalError> {
        match self.with(item, expr)? {
            Value::Bool(value) => Ok(value),
            other => Err(EvalError::no_overload("_?_:_", &[other])),
        }
    }

    /// `all` and `exists`.
    fn quantify(
        &mut self,
        comprehension: &Comprehension,
        items: &[Item],
        decides: bool,
    ) -> Evaluated {
        combine(items.iter().map(|item| self.with(item, &comprehension.body)), decides)
    }
}

/// Combines booleans: one that decides outweighs errors in others.
fn combine(truths: impl Iterator<Item = Evaluated>, decides: bool) -> Evaluated {
    let mut failure = None;
    for truth in truths {
        match truth {
            Ok(Value::Bool(value)) if value == decides => return Ok(Value::Bool(decides)),
            Ok(Value::Bool(_)) => {}
            Ok(other) => {
                failure.get_or_insert(EvalError::no_overload("logic", &[other]));
            }
            Err(fatal) if fatal.is_final => return Err(fatal),
            Err(one) => {
                failure.get_or_insert(one);
            }
        }
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok(Value::Bool(!decides)),
    }
}

/// The variables of a comprehension for one element.
type Item = smallvec::SmallVec<[Value; 2]>;

fn items(over: &Value, two: bool) -> Result<Vec<Item>, EvalError> {
    match over {
        Value::List(list) => {
            let item = |(at, value): (usize, &Value)| -> Item {
                if two {
                    let at = Value::Int(i64::try_from(at).unwrap_or(i64::MAX));
                    [at, value.clone()].into_iter().collect()
                } else {
                    [value.clone()].into_iter().collect()
                }
            };
            Ok(list.iter().enumerate().map(item).collect())
        }
        Value::Map(map) => {
            let item = |(key, value): (&Key, &Value)| -> Item {
                let value = two.then(|| value.clone());
                [key.value()].into_iter().chain(value).collect()
            };
            Ok(map.entries.iter().map(item).collect())
        }
        other => {
            let problem = format!("cannot iterate over a {}", other.type_name());
            Err(EvalError::new(problem))
        }
    }
}

fn missing(key: &Value) -> EvalError {
    EvalError::new(match key {
        Value::Text(text) => format!("no such key: {text}"),
        other => format!("no such key: {other:?}"),
    })
}

fn position(key: &Value) -> Option<i128> {
    match key {
        Value::Int(one) => Some(i128::from(*one)),
        Value::Uint(one) => Some(i128::from(*one)),
        Value::Double(one) if *one == one.trunc() && one.abs() < 9e18 => Some(*one as i128),
        _ => None,
    }
}

/// `a.b` and `a[b]`. A selection from an optional value is optional too.
fn select(of: &Value, key: &Value, function: &str) -> Evaluated {
    match of {
        Value::Map(map) => map.find(key).cloned().ok_or_else(|| missing(key)),
        Value::List(list) => {
            let Some(at) = position(key) else {
                return Err(EvalError::no_overload(function, &[of.clone(), key.clone()]));
            };
            let found = usize::try_from(at).ok().and_then(|at| list.get(at));
            found.cloned().ok_or_else(|| {
                EvalError::new(format!("index {at} out of range in a list of {}", list.len()))
            })
        }
        Value::Optional(_) => select_optional(of, key),
        other => Err(EvalError::no_overload(function, &[other.clone(), key.clone()])),
    }
}

/// `None` if the position is out of range; fails if the key is not a position.
fn element<'a>(list: &'a [Value], key: &Value) -> Result<Option<&'a Value>, EvalError> {
    match position(key) {
        Some(at) => Ok(usize::try_from(at).ok().and_then(|at| list.get(at))),
        None => Err(EvalError::new(format!("unsupported index type {} in list", key.type_name()))),
    }
}

/// `a.?b` and `a[?b]`. A value without fields does not have this one.
fn select_optional(of: &Value, key: &Value) -> Evaluated {
    let found = match of {
        Value::Map(map) => map.find(key),
        Value::List(list) => element(list, key)?,
        Value::Optional(Some(inner)) => return select_optional(inner, key),
        _ => None,
    };
    Ok(found.map_or(Value::none(), |one| Value::some(one.clone())))
}

fn has(of: &Value, key: &Value) -> Evaluated {
    Ok(Value::Bool(match of {
        Value::Map(map) => map.find(key).is_some(),
        Value::List(list) => element(list, key)?.is_some(),
        Value::Optional(Some(inner)) => return has(inner, key),
        _ => false,
    }))
}

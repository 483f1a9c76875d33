//! Edits of trees, and their division into steps that leave the rest of the text alone.

use berth_api::{FieldPath, Step};
use serde_json::{Map, Value};

use super::Edit;

/// Carries out an edit.
pub(super) fn change(root: &mut Value, edit: &Edit) -> Result<(), String> {
    let (last, parents) = edit.path().steps().split_last().ok_or("the object itself stays")?;
    let mut at = root;
    for step in parents {
        at = enter(at, step, matches!(edit, Edit::Set { .. }))?;
    }
    match (edit, last, at) {
        (Edit::Set { value, .. }, step, at) => *enter(at, step, true)? = value.clone(),
        (Edit::Remove { .. }, Step::Key(key), Value::Object(fields)) => {
            fields.remove(&**key).ok_or("there is no such field")?;
        }
        (Edit::Remove { .. }, Step::At(index), Value::Array(items)) if *index < items.len() => {
            items.remove(*index);
        }
        (Edit::Insert { value, .. }, Step::At(index), Value::Array(items))
            if *index <= items.len() =>
        {
            items.insert(*index, value.clone());
        }
        (Edit::Insert { value, .. }, Step::At(0), list @ Value::Null) => {
            *list = Value::Array(vec![value.clone()]);
        }
        _ => return Err("there is nothing of this kind".to_owned()),
    }
    Ok(())
}

/// One step down. Where something may be `made`, it is.
fn enter<'a>(value: &'a mut Value, step: &Step, made: bool) -> Result<&'a mut Value, String> {
    match step {
        Step::Key(key) => {
            if made && value.is_null() {
                *value = Value::Object(Map::new());
            }
            let what = "the field is inside of something that is no map";
            let fields = value.as_object_mut().ok_or(what)?;
            if made {
                return Ok(fields.entry(&**key).or_insert(Value::Null));
            }
            fields.get_mut(&**key).ok_or_else(|| format!("there is no {key}"))
        }
        Step::At(index) => {
            if made && value.is_null() {
                *value = Value::Array(Vec::new());
            }
            let what = "the item is inside of something that is no list";
            let items = value.as_array_mut().ok_or(what)?;
            if made && *index == items.len() {
                items.push(Value::Null);
            }
            items.get_mut(*index).ok_or_else(|| format!("there is no item {index}"))
        }
    }
}

/// An edit as steps, each of which changes one thing of the text.
pub(super) fn steps(root: &Value, edit: &Edit) -> Result<Vec<Edit>, String> {
    let mut checked = root.clone();
    change(&mut checked, edit)?;
    let Edit::Set { path, value } = edit else { return Ok(vec![edit.clone()]) };
    let mut steps = Vec::new();
    // The first thing on the way that is missing is made with all that is to be in it.
    let mut at = root;
    let mut way = FieldPath::root();
    for (position, step) in path.steps().iter().enumerate() {
        let inside = match (step, at) {
            (Step::Key(key), Value::Object(fields)) => fields.get(&**key),
            (Step::At(index), Value::Array(items)) => items.get(*index),
            _ => None,
        };
        let appended = matches!((step, at), (Step::At(_), Value::Array(_)));
        way = extended(way, step);
        let rest = path.steps().get(position + 1..).unwrap_or_default();
        match inside {
            // What is null or an empty map is written anew, as a block if there is room.
            Some(found) if !rest.is_empty() && !is_void(found) => at = found,
            Some(found) if rest.is_empty() => {
                differences(&way, found, value, &mut steps);
                return Ok(steps);
            }
            None if appended => {
                steps.push(Edit::Insert { path: way, value: nested(rest, value) });
                return Ok(steps);
            }
            _ => {
                steps.push(Edit::Set { path: way, value: nested(rest, value) });
                return Ok(steps);
            }
        }
    }
    Ok(steps)
}

fn is_void(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The value inside of what leads to it.
fn nested(steps: &[Step], value: &Value) -> Value {
    steps.iter().rev().fold(value.clone(), |inner, step| match step {
        Step::Key(key) => Value::Object(Map::from_iter([(key.to_string(), inner)])),
        Step::At(_) => Value::Array(vec![inner]),
    })
}

/// What leads from one value to another, in steps.
fn differences(at: &FieldPath, old: &Value, new: &Value, steps: &mut Vec<Edit>) {
    if same(old, new) {
        return;
    }
    match (old, new) {
        (Value::Object(was), Value::Object(is)) if !was.is_empty() && !is.is_empty() => {
            // Fields are added before others are removed, so that no map is empty in between.
            for (key, value) in is {
                let path = at.clone().key(key.as_str());
                match was.get(key) {
                    Some(old) => differences(&path, old, value, steps),
                    None => steps.push(Edit::Set { path, value: value.clone() }),
                }
            }
            let gone = was.keys().filter(|key| !is.contains_key(*key));
            steps.extend(gone.map(|key| Edit::Remove { path: at.clone().key(key.as_str()) }));
        }
        (Value::Array(was), Value::Array(is)) if !was.is_empty() && !is.is_empty() => {
            for (index, value) in is.iter().enumerate() {
                let path = at.clone().at(index);
                match was.get(index) {
                    Some(old) => differences(&path, old, value, steps),
                    None => steps.push(Edit::Insert { path, value: value.clone() }),
                }
            }
            for index in (is.len()..was.len()).rev() {
                steps.push(Edit::Remove { path: at.clone().at(index) });
            }
        }
        _ => steps.push(Edit::Set { path: at.clone(), value: new.clone() }),
    }
}

fn extended(path: FieldPath, step: &Step) -> FieldPath {
    match step {
        Step::Key(key) => path.key(key.clone()),
        Step::At(index) => path.at(*index),
    }
}

/// Whether two values are the same to Kubernetes, which does not tell 1.0 from 1.
pub(super) fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (one.is_f64() || other.is_f64()) && one.as_f64() == other.as_f64()
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(key, value)| other.get(key).is_some_and(|other| same(value, other)))
        }
        _ => one == other,
    }
}

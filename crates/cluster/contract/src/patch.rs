//! Fixes applied to JSON objects, and as JSON patches. `berth_manifest::edit` applies the same fixes to text, with
//! the same result.

use berth_api::{FieldPath, Step};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::finding::Fix;

/// A change that an object has no place for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: {problem}")]
pub struct PatchError {
    /// The field that was to be changed.
    pub path: FieldPath,
    /// Why it cannot be.
    pub problem: &'static str,
}

/// Applies changes to an object, one after the other.
pub fn apply(object: &mut Value, fixes: &[Fix]) -> Result<(), PatchError> {
    json_patch(object, fixes).map(|_| ())
}

/// Applies changes to an object, and gives them as operations of a JSON patch (RFC 6902), as
/// admission webhooks answer.
pub fn json_patch(object: &mut Value, fixes: &[Fix]) -> Result<Vec<Value>, PatchError> {
    let mut operations = Vec::new();
    for fix in fixes {
        match fix {
            Fix::Set { path, value } => set(object, path, value.clone(), &mut operations)?,
            Fix::Append { path, value } => append(object, path, value.clone(), &mut operations)?,
            Fix::Remove { path } => remove(object, path, &mut operations)?,
        }
    }
    Ok(operations)
}

fn set(
    object: &mut Value,
    path: &FieldPath,
    value: Value,
    operations: &mut Vec<Value>,
) -> Result<(), PatchError> {
    let error = |problem| PatchError { path: path.clone(), problem };
    let Some((last, parents)) = path.steps().split_last() else {
        return Err(error("cannot replace the object itself"));
    };
    let mut at = object;
    let mut way = String::new();
    for step in parents {
        push(&mut way, step);
        at = match step {
            Step::At(index) => at.get_mut(*index).ok_or_else(|| error("index out of range"))?,
            Step::Key(key) => {
                let map = at.as_object_mut().ok_or_else(|| error("parent is not a map"))?;
                let inside = map.entry(&**key).or_insert(Value::Null);
                if inside.is_null() {
                    *inside = Value::Object(Map::new());
                    operations.push(json!({ "op": "add", "path": way, "value": {} }));
                }
                inside
            }
        };
    }
    push(&mut way, last);
    let before = match last {
        Step::At(index) => {
            let item = at.get_mut(*index).ok_or_else(|| error("index out of range"))?;
            Some(std::mem::replace(item, value.clone()))
        }
        Step::Key(key) => {
            let map = at.as_object_mut().ok_or_else(|| error("parent is not a map"))?;
            map.insert(key.to_string(), value.clone())
        }
    };
    let operation = if before.is_some() { "replace" } else { "add" };
    operations.push(json!({ "op": operation, "path": way, "value": value }));
    Ok(())
}

fn append(
    object: &mut Value,
    path: &FieldPath,
    value: Value,
    operations: &mut Vec<Value>,
) -> Result<(), PatchError> {
    match find(object, path.steps()) {
        None | Some(Value::Null) => set(object, path, json!([value]), operations),
        Some(Value::Array(list)) => {
            operations.push(json!({ "op": "add", "path": pointer(path) + "/-", "value": value }));
            list.push(value);
            Ok(())
        }
        Some(_) => Err(PatchError { path: path.clone(), problem: "is not a list" }),
    }
}

fn remove(
    object: &mut Value,
    path: &FieldPath,
    operations: &mut Vec<Value>,
) -> Result<(), PatchError> {
    let error = || PatchError { path: path.clone(), problem: "not found" };
    let (last, parents) = path.steps().split_last().ok_or_else(error)?;
    let parent = find(object, parents).ok_or_else(error)?;
    match (last, parent) {
        (Step::Key(key), Value::Object(map)) => map.remove(&**key).map(|_| ()),
        (Step::At(index), Value::Array(list)) if *index < list.len() => {
            list.remove(*index);
            Some(())
        }
        _ => None,
    }
    .ok_or_else(error)?;
    operations.push(json!({ "op": "remove", "path": pointer(path) }));
    Ok(())
}

fn find<'a>(object: &'a mut Value, steps: &[Step]) -> Option<&'a mut Value> {
    steps.iter().try_fold(object, |at, step| match step {
        Step::Key(key) => at.get_mut(&**key),
        Step::At(index) => at.get_mut(*index),
    })
}

/// A path as a JSON pointer (RFC 6901).
fn pointer(path: &FieldPath) -> String {
    let mut text = String::new();
    path.steps().iter().for_each(|step| push(&mut text, step));
    text
}

fn push(pointer: &mut String, step: &Step) {
    pointer.push('/');
    match step {
        Step::At(index) => pointer.push_str(&index.to_string()),
        Step::Key(key) => pointer.push_str(&key.replace('~', "~0").replace('/', "~1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FieldPath {
        FieldPath::parse(text)
    }

    #[test]
    fn what_is_missing_on_the_way_is_made_and_keys_are_escaped() {
        let mut object = json!({ "spec": { "containers": [{ "name": "a" }] } });
        let limit = "spec.containers[0].resources.limits[nvidia.com/gpu]";
        let operations = json_patch(
            &mut object,
            &[
                Fix::Set { path: path(limit), value: json!("1") },
                Fix::Append { path: path("spec.tolerations"), value: json!({ "key": "k" }) },
                Fix::Append { path: path("spec.tolerations"), value: json!({ "key": "l" }) },
                Fix::Remove { path: path("spec.containers[0].name") },
            ],
        )
        .unwrap();
        let expected = json!({ "spec": {
            "containers": [{ "resources": { "limits": { "nvidia.com/gpu": "1" } } }],
            "tolerations": [{ "key": "k" }, { "key": "l" }],
        } });
        assert_eq!(object, expected);
        let paths: Vec<_> = operations.iter().map(|one| one["path"].as_str().unwrap()).collect();
        assert_eq!(
            paths,
            [
                "/spec/containers/0/resources",
                "/spec/containers/0/resources/limits",
                "/spec/containers/0/resources/limits/nvidia.com~1gpu",
                "/spec/tolerations",
                "/spec/tolerations/-",
                "/spec/containers/0/name",
            ]
        );
    }

    #[test]
    fn what_has_no_place_is_an_error_with_the_field() {
        let fixes = [
            Fix::Remove { path: path("spec.gone") },
            Fix::Set { path: path("spec.list[7].a"), value: json!(1) },
            Fix::Set { path: path("name.first"), value: json!(1) },
            Fix::Append { path: path("name"), value: json!(1) },
            Fix::Remove { path: FieldPath::root() },
        ];
        for fix in fixes {
            let mut object = json!({ "name": "n", "spec": { "list": [] } });
            assert!(apply(&mut object, std::slice::from_ref(&fix)).is_err(), "{fix:?}");
        }
    }
}

//! Fixes applied to the text of files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::{Fix, patch};
use berth_api::{FieldPath, Step};
use berth_manifest::edit::{self, Edit};
use berth_manifest::{Problem, Source};
use serde_json::{Value, json};
use similar::TextDiff;
use thiserror::Error;

use super::input::Input;
use super::report::Report;

const CONTEXT_LINES: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub path: PathBuf,
    pub before: String,
    pub after: String,
    /// Number of fixed findings.
    pub fixed: usize,
}

#[derive(Debug, Error)]
pub enum FixError {
    #[error("standard input cannot be fixed in place; write it to a file first")]
    Stdin,
    #[error("{0}")]
    Text(Box<Problem>),
}

/// Fixes all findings that can be fixed, or nothing on an error.
pub fn plan(report: &Report, input: &Input) -> Result<Vec<Change>, FixError> {
    let mut by_document: BTreeMap<usize, (Vec<&Fix>, usize)> = BTreeMap::new();
    for located in report.findings.iter().filter(|one| one.finding.is_fixable()) {
        let (fixes, count) = by_document.entry(located.document).or_default();
        fixes.extend(&located.finding.fix);
        *count += 1;
    }
    let mut texts: BTreeMap<usize, (Vec<(usize, Edit)>, usize)> = BTreeMap::new();
    let mut first_of_source = 0;
    for (index, document) in input.documents.iter().enumerate() {
        if index > 0 && input.documents[index - 1].source() != document.source() {
            first_of_source = index;
        }
        let Some((fixes, count)) = by_document.get(&index) else { continue };
        let edits = edits(document.value(), fixes);
        let (of_text, fixed) = texts.entry(first_of_source).or_default();
        of_text.extend(edits.into_iter().map(|edit| (index - first_of_source, edit)));
        *fixed += count;
    }
    let changes = texts.into_iter().map(|(first, (edits, fixed))| {
        let source = input.documents[first].source();
        change(source, &edits, fixed)
    });
    changes.collect()
}

fn change(source: &Source, edits: &[(usize, Edit)], fixed: usize) -> Result<Change, FixError> {
    if &*source.name == "<stdin>" {
        return Err(FixError::Stdin);
    }
    let after = edit::apply_all(source, edits).map_err(|problem| FixError::Text(problem.into()))?;
    Ok(Change { path: PathBuf::from(&*source.name), before: source.text.to_string(), after, fixed })
}

/// Fixes as edits of the text. Several findings may ask for the same, and removing an item moves
/// those after it: so what is set comes first, and what goes goes from the end.
fn edits(mut value: Value, fixes: &[&Fix]) -> Vec<Edit> {
    let mut removed: Vec<&FieldPath> = Vec::new();
    let mut edits = Vec::new();
    for fix in fixes {
        let edit = match fix {
            Fix::Remove { path } => {
                removed.push(path);
                continue;
            }
            Fix::Set { path, value } => Edit::Set { path: path.clone(), value: value.clone() },
            Fix::Append { path, value: item } => match find(&value, path) {
                Some(Value::Array(list)) if list.contains(item) => continue,
                Some(Value::Array(list)) => {
                    Edit::Insert { path: path.clone().at(list.len()), value: item.clone() }
                }
                _ => Edit::Set { path: path.clone(), value: json!([item]) },
            },
        };
        if patch::apply(&mut value, std::slice::from_ref(*fix)).is_ok() {
            edits.push(edit);
        }
    }
    removed.sort();
    removed.dedup();
    edits.extend(removed.into_iter().rev().map(|path| Edit::Remove { path: path.clone() }));
    edits
}

fn find<'a>(value: &'a Value, path: &FieldPath) -> Option<&'a Value> {
    path.steps().iter().try_fold(value, |at, step| match step {
        Step::Key(key) => at.get(&**key),
        Step::At(index) => at.get(*index),
    })
}

/// What changes, as `diff -u` shows it.
pub fn diff(changes: &[Change]) -> String {
    let show = |change: &Change| {
        let name = change.path.display().to_string();
        let name = name.trim_start_matches("./").trim_start_matches('/');
        TextDiff::from_lines(&change.before, &change.after)
            .unified_diff()
            .context_radius(CONTEXT_LINES)
            .header(&format!("a/{name}"), &format!("b/{name}"))
            .to_string()
    };
    changes.iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_goes_last_and_from_the_end() {
        let path = |text: &str| FieldPath::parse(text);
        let fixes = [
            Fix::Remove { path: path("env[0]") },
            Fix::Append { path: path("list"), value: json!(1) },
            Fix::Remove { path: path("env[1]") },
            Fix::Append { path: path("list"), value: json!(2) },
            Fix::Append { path: path("list"), value: json!(2) },
        ];
        let edits = edits(json!({ "env": [1, 2] }), &fixes.iter().collect::<Vec<_>>());
        assert_eq!(
            edits,
            [
                Edit::Set { path: path("list"), value: json!([1]) },
                Edit::Insert { path: path("list[1]"), value: json!(2) },
                Edit::Remove { path: path("env[1]") },
                Edit::Remove { path: path("env[0]") },
            ]
        );
    }
}

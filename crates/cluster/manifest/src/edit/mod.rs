//! Edits YAML and JSON in place: comments, order, indentation and quotes stay.
//!
//! Every result is read again and must be the intended object. Otherwise there is an error and no result, so a style
//! that is not supported is rejected and never damaged.

mod render;
mod splice;
mod tree;

use std::collections::BTreeMap;

use berth_api::FieldPath;
use serde_json::Value;

use crate::document::Document;
use crate::problem::Problem;
use crate::source::Source;

/// A change of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// The field has this value, and is added if it is missing, with the maps that lead to it. What
    /// stays the same inside of it keeps its text.
    Set { path: FieldPath, value: Value },
    /// The field, or the item of a list, is gone. It must be there.
    Remove { path: FieldPath },
    /// A list has one more item.
    Insert {
        /// The item: ends in its position. Those from there on come after it.
        path: FieldPath,
        value: Value,
    },
}

impl Edit {
    pub fn path(&self) -> &FieldPath {
        match self {
            Self::Set { path, .. } | Self::Remove { path } | Self::Insert { path, .. } => path,
        }
    }
}

/// A value as a YAML document of its own, in blocks.
pub fn to_yaml(value: &serde_json::Value) -> String {
    let style = render::Style { json: false, indent: 2, list_indent: 0, newline: "\n" };
    format!("{}\n", render::block(value, 0, style))
}

/// The text with these edits, one after the other, made to one of its objects.
pub fn apply(document: &Document, edits: &[Edit]) -> Result<String, Problem> {
    let documents = crate::read_as(document.source(), document.strictness())?;
    let whole = (document.whole(), document.base());
    let index = documents.iter().position(|other| (other.whole(), other.base()) == whole);
    let edits: Vec<(usize, Edit)> =
        edits.iter().map(|edit| (index.unwrap_or(0), edit.clone())).collect();
    apply_all(document.source(), &edits)
}

/// The text with edits made to its objects, which are numbered as [`read`](crate::read) gives them.
pub fn apply_all(source: &Source, edits: &[(usize, Edit)]) -> Result<String, Problem> {
    let mut source = source.clone();
    let mut documents = crate::read(&source)?;
    let mut queues: BTreeMap<usize, Vec<Edit>> = BTreeMap::new();
    for (index, edit) in edits {
        queues.entry(*index).or_default().push(edit.clone());
    }
    for queue in queues.values_mut() {
        queue.reverse();
    }
    let form = splice::Form::of(&source);
    // Objects do not overlap, so each round makes one small change to every object at once.
    loop {
        let mut wanted: Vec<Option<(Value, Edit)>> = vec![None; documents.len()];
        let mut splices = Vec::new();
        for (index, queue) in &mut queues {
            let Some((document, slot)) = documents.get(*index).zip(wanted.get_mut(*index)) else {
                let message = format!("no object {index}");
                return Err(Problem::of_text(&source, crate::Span::default(), message));
            };
            let Some((step, value)) = next_step(document, queue)? else { continue };
            splices.append(&mut splice::splices(document, &step, form)?);
            *slot = Some((value, step));
        }
        if wanted.iter().all(Option::is_none) {
            return Ok(source.text.to_string());
        }
        let text = splice::carry_out(&source.text, splices);
        let changed = Source::new(source.name.clone(), text);
        let after = crate::read(&changed);
        check(&documents, &wanted, after.as_deref().unwrap_or_default())?;
        (source, documents) = (changed, after?);
    }
}

/// The next primitive change of an object, and what the object is then.
fn next_step(document: &Document, queue: &mut Vec<Edit>) -> Result<Option<(Edit, Value)>, Problem> {
    if queue.is_empty() {
        return Ok(None);
    }
    let value = document.value();
    while let Some(edit) = queue.pop() {
        let mut steps = tree::steps(&value, &edit)
            .map_err(|message| document.problem(edit.path().clone(), message))?;
        steps.reverse();
        queue.append(&mut steps);
        let Some(step) = queue.pop() else { continue };
        let mut wanted = value.clone();
        tree::change(&mut wanted, &step)
            .map_err(|message| document.problem(step.path().clone(), message))?;
        if !tree::same(&wanted, &value) {
            return Ok(Some((step, wanted)));
        }
    }
    Ok(None)
}

/// Whether the text now says what was wanted, and nothing else has changed.
fn check(
    before: &[Document],
    wanted: &[Option<(Value, Edit)>],
    after: &[Document],
) -> Result<(), Problem> {
    for (index, (document, wanted)) in before.iter().zip(wanted).enumerate() {
        let found = after.get(index).filter(|_| after.len() == before.len());
        let right = found.is_some_and(|found| match wanted {
            Some((wanted, _)) => tree::same(&found.value(), wanted),
            None => tree::same(&found.value(), &document.value()),
        });
        if right {
            continue;
        }
        let field = wanted.as_ref().map(|(_, edit)| edit.path().clone()).unwrap_or_default();
        let message =
            "cannot be changed in place: it is shared by an alias, or written in an unusual form";
        return Err(document.problem(field, message).with_remedy("change it by hand"));
    }
    Ok(())
}

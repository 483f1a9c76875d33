//! Values with their positions in the source. Strings that need no unescaping are not copied.

use std::collections::BTreeMap;

use berth_api::{FieldPath, Step};
use serde_json::{Number, Value};

use crate::source::Span;

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// From its first character to after its last, with anchor and tag.
    pub(crate) span: Span,
    pub(crate) data: Data,
}

/// What a value is to JSON.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Null,
    Bool(bool),
    Number(Number),
    String(Text),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One field of a map.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Text,
    pub(crate) key_span: Span,
    pub(crate) value: Node,
}

/// Characters, in the source or, where it escapes or folds them, here.
#[derive(Clone, Debug)]
pub(crate) enum Text {
    At(Span),
    Own(Box<str>),
}

impl Text {
    /// The characters. `source` is the text that was read.
    pub(crate) fn of<'a>(&'a self, source: &'a str) -> &'a str {
        match self {
            Self::At(span) => source.get(span.range()).unwrap_or_default(),
            Self::Own(text) => text,
        }
    }
}

impl Node {
    pub(crate) fn get<'a>(&'a self, key: &str, source: &str) -> Option<&'a Node> {
        Some(&self.entry(key, source)?.value)
    }

    pub(crate) fn entry<'a>(&'a self, key: &str, source: &str) -> Option<&'a Entry> {
        let Data::Map(entries) = &self.data else { return None };
        entries.iter().find(|entry| entry.key.of(source) == key)
    }

    pub(crate) fn text<'a>(&'a self, source: &'a str) -> Option<&'a str> {
        match &self.data {
            Data::String(text) => Some(text.of(source)),
            _ => None,
        }
    }

    fn step<'a>(&'a self, step: &Step, source: &str) -> Option<(&'a Node, Option<Span>)> {
        match (step, &self.data) {
            (Step::Key(key), _) => {
                let entry = self.entry(key, source)?;
                Some((&entry.value, Some(entry.key_span)))
            }
            (Step::At(index), Data::List(items)) => Some((items.get(*index)?, None)),
            // Brackets with digits can also be read as a key.
            (Step::At(index), _) => {
                let entry = self.entry(&index.to_string(), source)?;
                Some((&entry.value, Some(entry.key_span)))
            }
        }
    }

    pub(crate) fn find(&self, path: &FieldPath, source: &str) -> Option<&Node> {
        let mut at = self;
        for step in path.steps() {
            (at, _) = at.step(step, source)?;
        }
        Some(at)
    }

    /// The last value on the path that exists, with the place of its key, and how many steps lead
    /// there.
    pub(crate) fn nearest(&self, path: &FieldPath, source: &str) -> (&Node, Option<Span>, usize) {
        let mut found = (self, None, 0);
        for step in path.steps() {
            let Some((next, key)) = found.0.step(step, source) else { break };
            found = (next, key, found.2 + 1);
        }
        found
    }

    pub(crate) fn value(&self, source: &str) -> Value {
        match &self.data {
            Data::Null => Value::Null,
            Data::Bool(value) => Value::Bool(*value),
            Data::Number(number) => Value::Number(number.clone()),
            Data::String(text) => Value::String(text.of(source).to_owned()),
            Data::List(items) => items.iter().map(|item| item.value(source)).collect(),
            Data::Map(entries) => {
                let field =
                    |entry: &Entry| (entry.key.of(source).to_owned(), entry.value.value(source));
                Value::Object(entries.iter().map(field).collect())
            }
        }
    }

    /// How many values it is, itself included.
    pub(crate) fn size(&self) -> usize {
        match &self.data {
            Data::List(items) => 1 + items.iter().map(Node::size).sum::<usize>(),
            Data::Map(entries) => 1 + entries.iter().map(|one| one.value.size()).sum::<usize>(),
            _ => 1,
        }
    }

    /// How deep values are inside of it: 1 when there are none.
    pub(crate) fn depth(&self) -> usize {
        let inside = match &self.data {
            Data::List(items) => items.iter().map(Node::depth).max(),
            Data::Map(entries) => entries.iter().map(|one| one.value.depth()).max(),
            _ => None,
        };
        1 + inside.unwrap_or(0)
    }

    /// In words, as in "is a number".
    pub(crate) fn what(&self) -> &'static str {
        match &self.data {
            Data::Null => "null",
            Data::Bool(_) => "a boolean",
            Data::Number(_) => "a number",
            Data::String(_) => "text",
            Data::List(_) => "a list",
            Data::Map(_) => "a map",
        }
    }
}

/// The first key that is there a second time, and where it was first.
pub(crate) fn duplicate<'a>(entries: &'a [Entry], source: &str) -> Option<(&'a Entry, Span)> {
    // Most maps are short; comparing all with all beats building an index.
    if entries.len() <= 8 {
        return entries.iter().enumerate().find_map(|(position, entry)| {
            let key = entry.key.of(source);
            let before = entries.get(..position)?;
            let first = before.iter().find(|other| other.key.of(source) == key)?;
            Some((entry, first.key_span))
        });
    }
    let mut seen = BTreeMap::new();
    entries.iter().find_map(|entry| {
        let first = seen.insert(entry.key.of(source), entry.key_span)?;
        Some((entry, first))
    })
}

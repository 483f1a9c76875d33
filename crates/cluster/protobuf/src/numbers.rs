//! Which field of a message is which.
//!
//! Owns the numbers that Kubernetes 1.36's types give their fields (`numbers.txt`). A line is a type's name
//! (with its group, where two groups have one of that name) and its fields as `number=name`. `2.1=name` is
//! field 1 of a message in field 2 whose fields JSON shows as those of the whole. A letter after `|`
//! tells of a value whose message is not like its JSON: see [`Form`].

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

/// The fields of a message by their numbers.
#[derive(Debug, Default)]
pub struct Message {
    /// What each number is.
    pub fields: BTreeMap<u32, Field>,
}

/// What a number is.
#[derive(Debug)]
pub enum Field {
    /// A field of the JSON object.
    Named {
        /// Its name there.
        name: String,
        /// What its message is like.
        form: Form,
    },
    /// A message whose fields are those of the JSON object itself.
    Inline(Message),
}

/// What a value's message is like, where the schema does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As the schema says; JSON as bytes in field 1 where it says nothing.
    Plain,
    /// `a`: a schema in field 1, or schemas in field 2.
    SchemaOrSchemas,
    /// `b`: true or false in field 1, or a schema in field 2.
    SchemaOrBool,
    /// `s`: a schema in field 1, or texts in field 2.
    SchemaOrTexts,
    /// `l`: a list that is a message of its own, with its items in field 1.
    ListMessage,
}

static MESSAGES: LazyLock<HashMap<&str, Message>> =
    LazyLock::new(|| read(include_str!("numbers.txt")));

/// The message of a type.
pub fn message(name: &str) -> Option<&'static Message> {
    MESSAGES.get(name)
}

/// The messages of all types.
pub fn messages() -> impl Iterator<Item = (&'static str, &'static Message)> {
    MESSAGES.iter().map(|(name, message)| (*name, message))
}

fn read(text: &'static str) -> HashMap<&'static str, Message> {
    let line = |line: &'static str| {
        let mut words = line.split(' ');
        let of = words.next()?;
        let mut message = Message::default();
        for word in words {
            let (numbers, name) = word.split_once('=')?;
            let numbers: Option<Vec<u32>> = numbers.split('.').map(|n| n.parse().ok()).collect();
            add(&mut message, &numbers?, name);
        }
        Some((of, message))
    };
    text.lines().filter_map(line).collect()
}

fn add(message: &mut Message, numbers: &[u32], name: &str) {
    match numbers {
        [] => {}
        [number] => {
            let (name, form) = name.split_once('|').unwrap_or((name, ""));
            let form = match form {
                "a" => Form::SchemaOrSchemas,
                "b" => Form::SchemaOrBool,
                "s" => Form::SchemaOrTexts,
                "l" => Form::ListMessage,
                _ => Form::Plain,
            };
            message.fields.insert(*number, Field::Named { name: name.to_owned(), form });
        }
        [number, rest @ ..] => {
            let field = message.fields.entry(*number);
            let field = field.or_insert_with(|| Field::Inline(Message::default()));
            if let Field::Inline(inner) = field {
                add(inner, rest, name);
            }
        }
    }
}

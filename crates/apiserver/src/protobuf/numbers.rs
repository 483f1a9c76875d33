//! Which field of a message is which.
//!
//! Owns the numbers that Kubernetes 1.36's types give their fields (`numbers.txt`), for the types of
//! the schema's table. A line is a type's name there and its fields as `number=name`. `2.1=name` is
//! field 1 of a message in field 2 whose fields JSON shows as those of the whole. A letter after `|`
//! tells of a value whose message is not like its JSON: see [`Form`].

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::schema;

/// The fields of a message by their numbers.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) fields: BTreeMap<u32, Field>,
}

#[derive(Debug)]
pub(super) enum Field {
    /// A field of the JSON object.
    Named { name: String, form: Form },
    /// A message whose fields are those of the JSON object itself.
    Inline(Message),
}

/// What a value's message is like, where the schema does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
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

static MESSAGES: LazyLock<BTreeMap<usize, Message>> =
    LazyLock::new(|| read(include_str!("numbers.txt")));

/// The message of a structure of the schema's table.
pub(super) fn message(structure: usize) -> Option<&'static Message> {
    MESSAGES.get(&structure)
}

fn read(text: &str) -> BTreeMap<usize, Message> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let at = schema::place_of(words.next()?)?;
        let mut message = Message::default();
        for word in words {
            let (numbers, name) = word.split_once('=')?;
            let numbers: Option<Vec<u32>> = numbers.split('.').map(|n| n.parse().ok()).collect();
            add(&mut message, &numbers?, name);
        }
        Some((at, message))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names<'a>(message: &'a Message, out: &mut Vec<&'a str>) {
        for field in message.fields.values() {
            match field {
                Field::Named { name, .. } => out.push(name),
                Field::Inline(inner) => names(inner, out),
            }
        }
    }

    #[test]
    fn every_field_of_the_schema_has_a_number_and_no_other_has() {
        let mut seen = 0;
        for (at, structure) in schema::built_in_structs() {
            let message = message(at).unwrap_or_else(|| panic!("{} has none", structure.name));
            let mut given = Vec::new();
            names(message, &mut given);
            given.sort_unstable();
            // The kind of an object stands outside of its message.
            let whole =
                structure.fields.contains_key("metadata") || structure.name == "DeleteOptions";
            let kept = |name: &&str| !(whole && matches!(*name, "apiVersion" | "kind"));
            let wanted: Vec<&str> = structure.fields.keys().map(String::as_str).collect();
            let wanted: Vec<&str> = wanted.into_iter().filter(kept).collect();
            assert_eq!(given, wanted, "{}", structure.name);
            seen += 1;
        }
        assert!(seen > 490, "{seen}");
    }
}

//! Which protobuf message belongs to which structure of the schema's table.

use std::collections::HashMap;
use std::sync::LazyLock;

pub(super) use berth_protobuf::numbers::{Field, Form, Message};

use crate::schema;

static BY_PLACE: LazyLock<HashMap<usize, &'static Message>> = LazyLock::new(|| {
    let all = berth_protobuf::numbers::messages();
    all.filter_map(|(name, message)| Some((schema::place_of(name)?, message))).collect()
});

/// The message of a structure of the schema's table.
pub(super) fn message(structure: usize) -> Option<&'static Message> {
    BY_PLACE.get(&structure).copied()
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

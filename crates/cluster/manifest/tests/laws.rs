//! What holds for any value.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use berth_api::FieldPath;
use berth_manifest::edit::{Edit, apply};
use berth_manifest::{Document, Source, read};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[a-z]{1,8}",
        "[a-z ]{1,12}",
        "[ -~]{0,12}",
        "(yes|no|on|off|y|n|null|~|010|1e3|0x1f|1_000|\\.5|-|<<|2026-01-01|12:30)",
        "[a-zé漢😀\\n\\t:#'\"\\\\-]{0,10}",
        any::<String>().prop_map(|text| text.replace('\u{0}', "")),
    ]
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1_000_000_i32..1_000_000).prop_map(|number| Value::from(f64::from(number) / 64.0)),
        text().prop_map(Value::from),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map("[a-z]{1,3}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

fn map() -> impl Strategy<Value = Value> {
    btree_map("[a-d]{1,2}", value(), 1..5).prop_map(|map: BTreeMap<String, Value>| json!(map))
}

/// Whole floats are integers once they were read.
fn normal(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap();
            if float.fract() == 0.0 { Value::from(float as i64) } else { value.clone() }
        }
        Value::Array(items) => items.iter().map(normal).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.clone(), normal(value))).collect()
        }
        _ => value.clone(),
    }
}

fn document(text: &str) -> Document {
    read(&Source::new("f", text)).unwrap().remove(0)
}

/// Block style with comments everywhere, by a renderer that shares nothing with the crate's.
fn written(value: &Value, indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                out.push_str(&format!("{pad}# about {key}\n{pad}{key:?}:"));
                if nests(value) {
                    out.push_str(" # below\n");
                    written(value, indent + 2, out);
                } else {
                    out.push_str(&format!(" {value} # same line\n"));
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                if nests(item) {
                    let mut inner = String::new();
                    written(item, indent + 2, &mut inner);
                    out.push_str(&format!("{pad}-\n{inner}"));
                } else {
                    out.push_str(&format!("{pad}- {item} # item\n"));
                }
            }
        }
        other => out.push_str(&format!("{pad}{other}\n")),
    }
}

fn nests(value: &Value) -> bool {
    value.as_array().is_some_and(|items| !items.is_empty())
        || value.as_object().is_some_and(|fields| !fields.is_empty())
}

/// Every path of a value.
fn paths(value: &Value, at: &FieldPath, all: &mut Vec<FieldPath>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = at.clone().key(key.as_str());
                all.push(path.clone());
                paths(value, &path, all);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                let path = at.clone().at(index);
                all.push(path.clone());
                paths(value, &path, all);
            }
        }
        _ => {}
    }
}

/// Texts of one value, in block style, in flow style, and as JSON.
fn texts(value: &Value) -> [String; 3] {
    let mut block = String::new();
    written(value, 0, &mut block);
    [block, format!("# flow\n{value} # end\n"), serde_json::to_string_pretty(value).unwrap()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(value in map()) {
        for text in texts(&value) {
            prop_assert_eq!(normal(&document(&text).value()), normal(&value), "{}", text);
        }
    }

    #[test]
    fn every_path_has_its_own_text(value in map()) {
        for text in texts(&value) {
            let document = document(&text);
            let mut all = Vec::new();
            paths(&value, &FieldPath::root(), &mut all);
            for path in all {
                let part = document.source().slice(document.span(&path));
                let wanted = document.value_at(&path).unwrap();
                if nests(&wanted) {
                    continue;
                }
                let alone = format!("k: {part}\n");
                let alone = read(&Source::new("f", alone)).unwrap().remove(0).value();
                prop_assert_eq!(normal(&alone["k"]), normal(&wanted), "{} of {}", path, text);
            }
        }
    }

    #[test]
    fn edits_give_the_edited_tree_and_keep_comments(
        value in map(), new in value(), pick in any::<prop::sample::Index>(), kind in 0..3,
    ) {
        for (form, text) in texts(&value).into_iter().enumerate() {
            let before = document(&text);
            let mut all = Vec::new();
            paths(&value, &FieldPath::root(), &mut all);
            let path = pick.get(&all).clone();
            let item = matches!(path.steps().last(), Some(berth_api::Step::At(_)));
            let edit = match kind {
                0 => Edit::Set { path, value: new.clone() },
                1 if item => Edit::Insert { path, value: new.clone() },
                1 => Edit::Set { path: FieldPath::root().key("zz").key("y"), value: new.clone() },
                _ => Edit::Remove { path },
            };
            // Removing the only field of an object leaves no object.
            if kind == 2 && value.as_object().unwrap().len() == 1 && edit.path().steps().len() == 1 {
                continue;
            }
            let after = match apply(&before, std::slice::from_ref(&edit)) {
                Ok(after) => after,
                Err(problem) => return Err(TestCaseError::fail(format!("{problem}\n{edit:?}\n{text}"))),
            };
            // The crate has checked the tree; here it is what was not meant that counts.
            let found = document(&after).value();
            let field = edit.path().steps()[0].clone();
            let berth_api::Step::Key(field) = field else { unreachable!() };
            for (key, value) in value.as_object().unwrap() {
                if **key != *field {
                    prop_assert_eq!(&normal(&found[key.as_str()]), &normal(value));
                    if form == 0 {
                        let comment = format!("# about {key}\n");
                        prop_assert!(after.contains(&comment), "{}", after);
                    }
                }
            }
            if let Edit::Set { path, value } = &edit {
                let found = document(&after).value_at(path).unwrap();
                prop_assert_eq!(normal(&found), normal(value));
            }
        }
    }

    #[test]
    fn nothing_panics(text in "[a-c:\\-\\[\\]{}&*#|>'\"\\\\\t\n !%@,?~<0-9é]{0,60}") {
        if let Ok(documents) = read(&Source::new("f", text)) {
            for document in documents {
                let _ = (document.value(), berth_manifest::object(&document).is_ok());
            }
        }
    }
}

//! Text → objects with places.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

use berth_api::FieldPath;
use berth_manifest::{Document, Problem, Source, Strictness, read, read_as};
use serde_json::{Value, json};

fn source(text: &str) -> Source {
    Source::new("file.yaml", text)
}

fn documents(text: &str) -> Vec<Document> {
    read(&source(text)).unwrap()
}

fn values(text: &str) -> Vec<Value> {
    documents(text).iter().map(Document::value).collect()
}

fn problem(text: &str) -> Problem {
    read(&source(text)).expect_err(text)
}

#[test]
fn the_same_object_is_read_from_yaml_and_json() {
    let wanted = json!({"a": {"b": [1, "x", null, true, 1.5]}, "c": {}, "d": []});
    for text in [
        "a:\n  b:\n  - 1\n  - x\n  -\n  - true\n  - 1.5\nc: {}\nd: []\n",
        "a: {b: [1, x, ~, yes, 15e-1]}\nc: {}\nd: []",
        "{\"a\":{\"b\":[1,\"x\",null,true,1.5]},\"c\":{},\"d\":[]}",
        "{\n\t\"a\": {\"b\": [1, \"x\", null, true, 1.5]}, \"c\": { }, \"d\": [ ]\r\n}\n",
        "{a: {b: [1, x, ~, true, 1.5]}, c: {}, d: []}",
        "\u{feff}a:\r\n  b: [1, \"x\", null, true, 1.5]\r\nc: {}\r\nd: []\r\n",
    ] {
        assert_eq!(values(text), std::slice::from_ref(&wanted), "{text}");
    }
}

#[test]
fn empty_documents_are_none() {
    for (text, count) in [
        ("", 0),
        ("# nothing\n", 0),
        ("---\n---\n", 0),
        ("---\n# a\n---\na: 1\n---\n\n---\nb: 2\n...\n", 2),
        ("null\n---\n~\n", 0),
        ("a: 1\n---", 1),
        ("{\"a\":1}\n{\"b\":2} {\"c\":3}", 3),
        ("\u{feff}", 0),
    ] {
        assert_eq!(documents(text).len(), count, "{text:?}");
    }
}

#[test]
fn items_of_lists_are_objects_with_places_of_their_own() {
    let text = "\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: a, namespace: ns}
- apiVersion: v1
  kind: PodList
  items:
  - metadata:
      name: b
";
    let found = documents(text);
    let labels: Vec<String> = found.iter().map(Document::label).collect();
    assert_eq!(labels, ["Pod ns/a", "Pod b"]);
    assert_eq!(found[1].api_version(), "v1");
    assert_eq!(found[1].base().to_string(), "items[1].items[0]");
    let name = found[1].span(&FieldPath::parse("metadata.name"));
    assert_eq!(found[1].source().start(name).to_string(), "11:13");
    assert_eq!(found[1].source().slice(name), "b");
    assert_eq!(found[1].value()["kind"], "Pod");
}

#[test]
fn a_list_without_items_is_empty_and_a_kind_that_only_ends_in_list_is_kept() {
    assert!(documents("{apiVersion: v1, kind: List, items: []}").is_empty());
    assert!(documents("{apiVersion: v1, kind: List, items: }").is_empty());
    assert_eq!(documents("{apiVersion: x.io/v1, kind: AllowList, spec: {}}").len(), 1);
}

#[test]
fn spans_cover_values_of_every_style() {
    let text = "\
plain: some text # comment
single: 'it''s'   # comment
double: \"a \\\" b\" # comment
folded: >-
  one
  two

literal: |
  three
    four
# comment
anchored: &x 7
tagged: !!str 8
flow: {a: [1, 2], b: c}
map:
  inner: é
list:
- first
- k: v
  l: w
empty:
after: end
";
    let document = &documents(text)[0];
    for (path, wanted) in [
        ("plain", "some text"),
        ("single", "'it''s'"),
        ("double", "\"a \\\" b\""),
        ("folded", ">-\n  one\n  two"),
        ("literal", "|\n  three\n    four"),
        ("anchored", "&x 7"),
        ("tagged", "!!str 8"),
        ("flow", "{a: [1, 2], b: c}"),
        ("flow.a", "[1, 2]"),
        ("flow.a[1]", "2"),
        ("map", "inner: é"),
        ("map.inner", "é"),
        ("list", "- first\n- k: v\n  l: w"),
        ("list[0]", "first"),
        ("list[1]", "k: v\n  l: w"),
        ("empty", ""),
        ("after", "end"),
        ("map.missing.deep", "map"),
        ("list[7]", "list"),
    ] {
        let span = document.span(&FieldPath::parse(path));
        assert_eq!(document.source().slice(span), wanted, "{path}");
    }
    let key = document.key_span(&FieldPath::parse("map.inner"));
    assert_eq!(document.source().slice(key), "inner");
    assert_eq!(document.source().start(key).to_string(), "16:3");
}

#[test]
fn spans_cover_json_values() {
    let text = "{\"a\": {\"b\\u0020\": [10, \"é\", {\"c\":null}]}}";
    let document = &documents(text)[0];
    let b = FieldPath::root().key("a").key("b ");
    for (path, wanted) in [
        (b.clone().at(0), "10"),
        (b.clone().at(1), "\"é\""),
        (b.clone().at(2).key("c"), "null"),
        (b.clone().at(3), "\"b\\u0020\""),
    ] {
        assert_eq!(document.source().slice(document.span(&path)), wanted, "{path}");
    }
}

#[test]
fn aliases_and_merge_keys_stand_for_what_they_name() {
    let text = "\
base: &base {a: 1, b: 2}
more: &more {b: 3, c: 4}
one: {<<: *base, b: 9}
two: {b: 9, <<: *base}
both: {<<: [*base, *more], d: 5}
copy: *base
quoted: {'<<': 7}
";
    assert_eq!(
        values(text),
        [json!({
            "base": {"a": 1, "b": 2}, "more": {"b": 3, "c": 4},
            "one": {"a": 1, "b": 9}, "two": {"a": 1, "b": 2},
            "both": {"a": 1, "b": 2, "c": 4, "d": 5},
            "copy": {"a": 1, "b": 2}, "quoted": {"<<": 7},
        })]
    );
    // What came by an alias stands where its anchor is.
    let document = &documents(text)[0];
    let span = document.span(&FieldPath::parse("copy.a"));
    assert_eq!(document.source().start(span).line, 1);
}

#[test]
fn what_cannot_be_read_has_a_place_and_a_reason() {
    for (text, place, says) in [
        ("a: [1, 2", "1:9", "expected ',' or ']'"),
        ("a: 'x", "1:4", "quoted scalar"),
        ("a:\n\t- b", "2:2", "indent with spaces"),
        ("a: b: c", "1:5", "mapping values"),
        ("a: 1\nb: 2\na: 3\n", "3:1", "duplicate key \"a\", first on line 1"),
        ("{\"a\": 1, \"a\": 2}", "1:10", "duplicate key \"a\", first on line 1"),
        ("{\"a\": [1,\n2", "2:2", "expected ',' or ']', found the end of the file"),
        ("{\"a\": \"x", "1:7", "unclosed quote"),
        ("{\"a\": 1e999}", "1:7", "too large"),
        ("a: *x\n", "1:4", "unknown anchor"),
        ("a: &x [*x]\n", "1:8", "recursive alias"),
        ("a: {<<: 3}\n", "1:5", "<< requires a map"),
        ("a: .inf\n", "1:4", "has no JSON form"),
        ("{a: 1}: b\n", "1:1", "cannot be a key"),
        (": b\n", "1:1", "missing key"),
        ("just text\n", "1:1", "expected an object, found text"),
        ("- a\n", "1:1", "expected an object, found a list"),
        ("kind: List\nitems:\n- 3\n", "3:3", "items[0]: expected an object"),
        ("a: !!int x\n", "1:4", "\"x\" is not of type int"),
    ] {
        let problem = problem(text);
        let rendered = problem.to_string();
        assert!(rendered.starts_with(&format!("file.yaml:{place}: ")), "{text:?}: {rendered}");
        assert!(rendered.contains(says), "{text:?}: {rendered}");
    }
}

#[test]
fn strictness_travels_with_documents() {
    let read = read_as(&source("a: 1"), Strictness::Dump).unwrap();
    assert_eq!(read[0].strictness(), Strictness::Dump);
    assert_eq!(documents("a: 1")[0].strictness(), Strictness::Manifest);
}

#[test]
fn an_object_that_names_no_namespace_is_put_into_one() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\n\
                metadata: {name: b, namespace: own}\n";
    let source = Source::new("text.yaml", text);
    let documents = read_as(&source, Strictness::Manifest).unwrap();
    let put: Vec<_> = documents.into_iter().map(|one| one.in_namespace("research")).collect();
    assert_eq!((put[0].namespace(), put[1].namespace()), (Some("research"), Some("own")));
    let pod: k8s_openapi::api::core::v1::Pod = put[0].decode().unwrap();
    assert_eq!(pod.metadata.namespace.as_deref(), Some("research"));
    assert_eq!(put[0].label(), "Pod research/a");
}

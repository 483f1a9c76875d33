//! Input that is broken, enormous or malicious.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use berth_manifest::limits::{ALIASED_VALUES_MAX, DEPTH_MAX, DOCUMENTS_MAX};
use berth_manifest::{Source, object, read};

const YAML: &str = "\
# comment
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {a: 'b', \"c\": \"d\\u00e9\"}}
spec:
  nodeSelector: &sel
    zone: é
  containers:
  - name: c
    image: \"web:1\"
    args: [a, 'b', {c: d}]
    command:
    - |
      one
       two
    - >-
      three
  affinity: {<<: *sel}
---
kind: List
items:
- {apiVersion: v1, kind: Node}
";

fn rendered(text: &str) -> Option<String> {
    let problem = match read(&Source::new("f", text)) {
        Ok(documents) => documents.iter().find_map(|document| object(document).err())?,
        Err(problem) => problem,
    };
    let _ = problem.snippet();
    Some(problem.to_string())
}

fn assert_has_a_place(text: &str) {
    let Some(rendered) = rendered(text) else { return };
    let mut parts = rendered.split(':');
    assert_eq!(parts.next(), Some("f"), "{rendered}");
    let line: usize = parts.next().unwrap().parse().unwrap();
    let column: usize = parts.next().unwrap().trim().parse().unwrap();
    assert!(line >= 1 && line <= text.lines().count() + 1, "{rendered} in {text:?}");
    let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    assert!(column >= 1 && column <= longest + 1, "{rendered} in {text:?}");
}

#[test]
fn a_text_cut_off_anywhere_gives_a_place_or_fewer_objects() {
    let json = serde_json::to_string_pretty(&read(&Source::new("f", YAML)).unwrap()[0].value());
    let json = json.unwrap();
    for text in [YAML, json.as_str()] {
        for (end, _) in text.char_indices() {
            assert_has_a_place(&text[..end]);
        }
    }
    // All but the end of a JSON object is no object at all.
    for (end, _) in json.char_indices().skip(1) {
        assert!(read(&Source::new("f", &json[..end])).is_err(), "{end}");
    }
}

#[test]
fn a_text_with_any_byte_changed_never_panics() {
    for (at, old) in YAML.char_indices() {
        for new in ["", "\t", ":", "\"", "'", "{", "]", "&", "*", "-", "\u{0}", "\n", "é", "|", "#"]
        {
            let text = format!("{}{new}{}", &YAML[..at], &YAML[at + old.len_utf8()..]);
            assert_has_a_place(&text);
        }
    }
}

#[test]
fn ten_lines_do_not_become_a_billion_values() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let inside = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(text, "a{level}: &a{level} [{inside}]").unwrap();
    }
    let problem = rendered(&text).unwrap();
    let wanted = format!("aliases expand to more than {ALIASED_VALUES_MAX} values");
    assert!(problem.contains(&wanted), "{problem}");
    // The same by merging maps.
    let mut text = "a0: &a0 {x: 1}\n".to_owned();
    for level in 1..200_000 {
        writeln!(text, "a{level}: &a{level} {{<<: *a{}, k{level}: 1}}", level - 1).unwrap();
    }
    assert!(rendered(&text).unwrap().contains(&wanted));
}

#[test]
fn depth_has_a_bound() {
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("{\"a\":", "}")] {
        let nested = |depth: usize| {
            let inside = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            format!("{{\"a\":{inside}}}")
        };
        assert!(read(&Source::new("f", nested(DEPTH_MAX - 2))).is_ok(), "{open}");
        let problem = read(&Source::new("f", nested(100_000))).unwrap_err().to_string();
        assert!(problem.contains("deep"), "{open}: {problem}");
    }
    let mut blocks = String::new();
    for depth in 0..1_000 {
        writeln!(blocks, "{}a:", " ".repeat(depth)).unwrap();
    }
    assert!(rendered(&blocks).unwrap().contains("deep"));
    assert!(rendered(&format!("a:\n{}", "- ".repeat(10_000))).unwrap().contains("deep"));
}

#[test]
fn objects_have_a_bound() {
    let text = "{\"a\":1}".repeat(DOCUMENTS_MAX + 1);
    let problem = rendered(&text).unwrap();
    assert!(problem.contains(&format!("more than {DOCUMENTS_MAX} objects")), "{problem}");
}

#[test]
fn ten_thousand_documents_are_nothing() {
    let text = format!("---\n{YAML}").repeat(5_000);
    assert_eq!(read(&Source::new("f", text)).unwrap().len(), 10_000);
}

#[test]
fn long_lines_make_short_snippets() {
    let text = format!(
        "{{\"a\": \"{}\", \"kind\": 3, \"b\": \"{}\"}}",
        "x".repeat(10_000),
        "y".repeat(10_000)
    );
    let document = &read(&Source::new("f", text)).unwrap()[0];
    let problem = document.problem(berth_api::FieldPath::parse("kind"), "is no text");
    let snippet = problem.snippet();
    assert!(snippet.len() < 400, "{snippet}");
    let lines: Vec<&str> = snippet.lines().collect();
    let mark = lines[3].find('^').unwrap();
    assert_eq!(&lines[2][mark..=mark], "3", "{snippet}");
}

//! Every rule on fixtures: what breaks it, what nearly does, and whether its fix mends it.
//!
//! A fixture is YAML in sections. `#@ rules` at the top says which rules the file is about; findings
//! of others are not looked at. `#@ case` starts a case, `#@ finds CODE FIELD :: PART OF MESSAGE` is
//! one finding that it must have, and there must be no other.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::collections::{BTreeMap, BTreeSet};

use berth_contract::{Context, Finding, Object, RULES, Rule, Settings, Severity, check, patch};
use berth_manifest::{Source, read};
use serde_json::Value;

const FIXTURES: [(&str, &str); 10] = [
    ("requests", include_str!("fixtures/requests.yaml")),
    ("pinning", include_str!("fixtures/pinning.yaml")),
    ("devices", include_str!("fixtures/devices.yaml")),
    ("fit", include_str!("fixtures/fit.yaml")),
    ("placement", include_str!("fixtures/placement.yaml")),
    ("serving", include_str!("fixtures/serving.yaml")),
    ("batch", include_str!("fixtures/batch.yaml")),
    ("tenancy", include_str!("fixtures/tenancy.yaml")),
    ("platform", include_str!("fixtures/platform.yaml")),
    ("metrics", include_str!("fixtures/metrics.yaml")),
];
const OWN: (&str, &str) = ("own", include_str!("fixtures/own.yaml"));

struct Case {
    title: String,
    expected: Vec<(String, String, String)>,
    objects: Vec<Value>,
}

fn documents(text: &str) -> Vec<Value> {
    let source = Source::new("fixture.yaml", text);
    let documents = read(&source).unwrap_or_else(|problem| panic!("{problem}"));
    documents.iter().map(berth_manifest::Document::value).collect()
}

fn read_text(text: &str) -> Option<Value> {
    let source = Source::new("text", text);
    read(&source).ok()?.first().map(berth_manifest::Document::value)
}

fn cases(name: &str, text: &str) -> (BTreeSet<String>, Vec<Case>) {
    let mut sections = text.split("#@ case ");
    let header = sections.next().unwrap();
    let rules = header.trim().strip_prefix("#@ rules ").unwrap();
    let rules = rules.split_whitespace().map(str::to_owned).collect();
    let cases = sections.map(|section| {
        let (title, body) = section.split_once('\n').unwrap();
        let expected = body.lines().filter_map(|line| line.strip_prefix("#@ finds "));
        let expected = expected.map(|line| {
            let (place, message) = line.split_once(" :: ").unwrap();
            let (code, field) = place.split_once(' ').unwrap();
            (code.to_owned(), field.to_owned(), message.to_owned())
        });
        Case {
            title: format!("{name}: {title}"),
            expected: expected.collect(),
            objects: documents(body),
        }
    });
    (rules, cases.collect())
}

fn all_cases() -> Vec<(BTreeSet<String>, Vec<Case>)> {
    FIXTURES.iter().chain([&OWN]).map(|(name, text)| cases(name, text)).collect()
}

fn findings(objects: &[Value]) -> Vec<(usize, Finding)> {
    let objects: Vec<Object> =
        objects.iter().map(|json| Object::new(json.clone()).unwrap()).collect();
    let context = Context::new(&objects, read_text);
    let settings = Settings::default();
    let each = objects.iter().enumerate();
    each.flat_map(|(index, object)| {
        check(object, &context, &settings).into_iter().map(move |finding| (index, finding))
    })
    .collect()
}

#[test]
fn rules_find_what_they_say_and_nothing_else() {
    for (rules, cases) in all_cases() {
        for case in cases {
            let mut left = case.expected.clone();
            let mut surplus = Vec::new();
            for (_, finding) in findings(&case.objects) {
                if !rules.contains(finding.rule.code) {
                    continue;
                }
                let field = finding.field.to_string();
                let at = left.iter().position(|(code, place, message)| {
                    code == finding.rule.code
                        && *place == field
                        && finding.message.contains(message.as_str())
                });
                match at {
                    Some(at) => drop(left.remove(at)),
                    None => surplus
                        .push(format!("{} {field} :: {}", finding.rule.code, finding.message)),
                }
            }
            assert!(
                left.is_empty() && surplus.is_empty(),
                "{}: missing {left:#?}, surplus {surplus:#?}",
                case.title
            );
        }
    }
}

#[test]
fn every_rule_is_broken_by_a_case_and_kept_by_another() {
    let mut broken = BTreeSet::new();
    let mut kept = BTreeSet::new();
    for (rules, cases) in all_cases() {
        for case in cases {
            let found: BTreeSet<&str> =
                case.expected.iter().map(|(code, ..)| code.as_str()).collect();
            broken.extend(found.iter().map(|code| (*code).to_owned()));
            kept.extend(rules.iter().filter(|code| !found.contains(code.as_str())).cloned());
        }
    }
    let all: BTreeSet<String> = RULES.iter().map(|rule| rule.code.to_owned()).collect();
    assert_eq!(broken, all, "a rule without a case that breaks it");
    assert_eq!(kept, all, "a rule without a case that keeps it");
}

/// Fixes are tried one by one: after one, its finding is gone, and no new one has come.
#[test]
fn every_fix_mends_what_it_is_for_and_breaks_nothing() {
    let mut mended: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, cases) in all_cases() {
        for case in cases {
            let before = findings(&case.objects);
            for (index, finding) in before.iter().filter(|(_, finding)| finding.is_fixable()) {
                let mut objects = case.objects.clone();
                patch::apply(&mut objects[*index], &finding.fix).unwrap();
                let place = |(at, one): &(usize, Finding)| {
                    (*at, one.rule.code, one.field.clone(), one.message.clone())
                };
                let after: BTreeSet<_> = findings(&objects).iter().map(place).collect();
                let known: BTreeSet<_> = before.iter().map(place).collect();
                let gone = place(&(*index, finding.clone()));
                assert!(!after.contains(&gone), "{}: {gone:?} is still there", case.title);
                let new: Vec<_> = after.difference(&known).collect();
                assert!(new.is_empty(), "{}: fixing {gone:?} brought {new:?}", case.title);
                *mended.entry(finding.rule.code).or_default() += 1;
            }
        }
    }
    let promised: BTreeSet<&str> =
        RULES.iter().filter(|rule| rule.safe_fix.is_some()).map(|rule| rule.code).collect();
    let seen: BTreeSet<&str> = mended.into_keys().collect();
    assert_eq!(seen, promised, "rules that say what they mend, and rules that were seen to");
}

/// Every value of every fixture is replaced by something odd, one at a time. What is still an object of
/// its kind is checked, and its fixes are tried: nothing panics, whatever comes out.
#[test]
fn odd_values_break_nothing() {
    let odd = [
        Value::Null,
        serde_json::json!([]),
        serde_json::json!({}),
        serde_json::json!(""),
        serde_json::json!("é".repeat(70)),
        serde_json::json!(-1),
        serde_json::json!(9_223_372_036_854_775_807_i64),
        serde_json::json!("99999999999999999999"),
        serde_json::json!([{ "": null }]),
    ];
    let mut checked = 0;
    for (_, cases) in all_cases() {
        for case in cases {
            for (index, object) in case.objects.iter().enumerate() {
                for pointer in pointers(object) {
                    let with = &odd[checked % odd.len()];
                    let mut objects = case.objects.clone();
                    *objects[index].pointer_mut(&pointer).unwrap() = with.clone();
                    checked += 1;
                    survive(&objects);
                }
            }
        }
    }
    assert!(checked > 2_000, "{checked}");
}

fn survive(objects: &[Value]) {
    let objects: Vec<Object> =
        objects.iter().filter_map(|json| Object::new(json.clone()).ok()).collect();
    let context = Context::new(&objects, read_text);
    for object in &objects {
        for finding in check(object, &context, &Settings::default()) {
            drop(patch::apply(&mut object.json.clone(), &finding.fix));
        }
    }
}

/// Ways to all values inside of one.
fn pointers(value: &Value) -> Vec<String> {
    let inner: Vec<(String, &Value)> = match value {
        Value::Array(list) => {
            list.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
        }
        Value::Object(map) => map
            .iter()
            .map(|(key, item)| (key.replace('~', "~0").replace('/', "~1"), item))
            .collect(),
        _ => Vec::new(),
    };
    let deeper = |(key, item): &(String, &Value)| {
        let below = pointers(item).into_iter().map(|rest| format!("/{key}{rest}"));
        std::iter::once(format!("/{key}")).chain(below).collect::<Vec<_>>()
    };
    inner.iter().flat_map(deeper).collect()
}

#[test]
fn codes_and_names_are_unique_in_order_and_found() {
    let codes: Vec<&str> = RULES.iter().map(|rule| rule.code).collect();
    assert!(codes.is_sorted_by(|one, other| one < other), "{codes:?}");
    let names: BTreeSet<&str> = RULES.iter().map(|rule| rule.name).collect();
    assert_eq!(names.len(), RULES.len());
    for rule in RULES {
        assert_eq!(Rule::find(rule.code), Some(*rule));
        assert_eq!(Rule::find(rule.name), Some(*rule));
        for text in [rule.summary, rule.why, rule.remedy] {
            assert!(text.ends_with('.') && !text.contains("  "), "{}: {text:?}", rule.code);
        }
    }
}

#[test]
fn settings_weigh_and_switch_off() {
    let pod = Object::new(serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" },
        "spec": { "containers": [{ "name": "c", "image": "llm" }] },
    }))
    .unwrap();
    let context = Context::new([&pod], |_| None);
    let with = |text: &str| {
        let settings: Settings = serde_json::from_str(text).unwrap();
        check(&pod, &context, &settings)
            .iter()
            .map(|finding| format!("{} {}", finding.rule.code, finding.severity))
            .collect::<Vec<_>>()
    };
    assert_eq!(with("{}"), ["BERTH-601 warning"]);
    assert_eq!(with(r#"{ "severity": { "BERTH-601": "error" } }"#), ["BERTH-601 error"]);
    assert_eq!(with(r#"{ "disabled": ["moving-image"] }"#), Vec::<String>::new());
}

/// A node group of the Cluster Autoscaler that has no nodes has no object either.
#[test]
fn a_label_that_no_node_has_is_an_error_only_where_all_groups_are_known() {
    let node = |labels: Value| {
        serde_json::json!({ "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "n1", "labels": labels } })
    };
    let pool = serde_json::json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
        "metadata": { "name": "gpu" },
        "spec": { "template": { "metadata": {}, "spec": { "requirements": [] } } } });
    let pod = serde_json::json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" },
        "spec": { "nodeSelector": { "accelerator": "h100" },
                  "containers": [{ "name": "c", "image": "i:1" }] } });
    let severity = |node: Value| {
        let found = findings(&[node, pool.clone(), pod.clone()]);
        let found = found.into_iter().find(|(_, finding)| finding.rule.code == "BERTH-204");
        found.unwrap().1.severity
    };
    let of_pool = severity(node(serde_json::json!({ "karpenter.sh/nodepool": "gpu" })));
    assert_eq!(of_pool, Severity::Error);
    let of_group = severity(node(serde_json::json!({ "eks.amazonaws.com/nodegroup": "gpu" })));
    assert_eq!(of_group, Severity::Warning);
}

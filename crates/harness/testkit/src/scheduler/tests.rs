//! The comparison itself: what it counts, and what it lets pass.

use berth_engine::verdict::{
    Candidate, Diagnosis, NodeVerdict, Plugin, Preemption, Reason, Rejection,
};
use serde_json::{Value, json};

use super::*;

fn case(nodes: &[&str], expect: Value) -> Case {
    let nodes: Vec<Value> =
        nodes.iter().map(|name| json!({ "metadata": { "name": name } })).collect();
    let pod = |name: &str, node: Option<&str>| {
        let spec = json!({ "containers": [{ "name": "c" }], "nodeName": node });
        json!({ "metadata": { "name": name, "namespace": "ns", "uid": name }, "spec": spec })
    };
    let pods = [pod("p1", Some("n1")), pod("p2", Some("n1"))];
    let case = json!({ "id": "t", "stratum": "s", "nodes": nodes, "pods": pods,
                       "pod": pod("in", None), "expect": expect });
    Case::parse(&case.to_string()).unwrap()
}

fn differences(case: &Case, diagnosis: &Diagnosis) -> (usize, Vec<String>) {
    let Comparison { verdicts, mismatches } = compare(case, diagnosis);
    (verdicts, mismatches.into_iter().map(|mismatch| mismatch.what).collect())
}

#[test]
fn verdicts_scores_and_choices_are_counted_one_by_one() {
    let scores = json!({ "ImageLocality": { "n1": 0, "n2": 7 } });
    let narrowed = json!({ "feasible": false, "plugin": "NodeAffinity",
        "code": "UnschedulableAndUnresolvable", "reasons": ["b", "a"], "at": "PreFilter",
        "filter": { "feasible": true } });
    let case = case(
        &["n1", "n2", "n3"],
        json!({
            "nodes": { "n1": { "feasible": true }, "n2": { "feasible": true }, "n3": narrowed },
            "scores": scores, "totals": { "n1": 0, "n2": 7 }, "selected_one_of": ["n2"],
        }),
    );
    let mut rejection = Rejection::unresolvable(Plugin::NodeAffinity, Reason::Text("a"));
    rejection.reasons.push(Reason::Text("b"));
    let mut diagnosis = Diagnosis {
        nodes: vec![
            ("n1".into(), NodeVerdict::Feasible),
            ("n2".into(), NodeVerdict::Feasible),
            ("n3".into(), NodeVerdict::Excluded { rejection, filter: Some(Ok(())) }),
        ],
        scores: vec![(Plugin::ImageLocality, vec![("n1".into(), 0), ("n2".into(), 7)])],
        totals: vec![("n1".into(), 0), ("n2".into(), 7)],
        best: vec!["n2".into()],
        preemption: None,
    };
    assert_eq!(differences(&case, &diagnosis), (9, vec![]));
    diagnosis.nodes.pop();
    diagnosis.scores.push((Plugin::NodeAffinity, vec![("n1".into(), 3)]));
    diagnosis.totals[0].1 = 6;
    diagnosis.best.push("n1".into());
    diagnosis.preemption = Some(Preemption::default());
    let expected = [
        "node n3",
        "node n3, filters",
        "totals n1",
        "NodeAffinity n1",
        "selected_one_of",
        "preemption",
    ];
    assert_eq!(differences(&case, &diagnosis), (9, expected.map(String::from).into()));
}

#[test]
fn of_interchangeable_victims_any_may_come_out() {
    let eviction = |victim: &str| json!({ "victims": [victim], "pdb_violations": 0 });
    let expect = |candidate: Value| {
        json!({
            "nodes": {},
            "preemption": { "eligible": true, "candidates": { "n1": candidate },
                            "chosen_one_of": ["n1", "n2"] },
        })
    };
    let any = json!({ "any_of": [eviction("ns/p1"), eviction("ns/p2")], "pdb_violations": -1 });
    let diagnosis = |victim: &str, chosen: &[&str]| {
        let victims = vec![victim.into()];
        let candidate = Candidate { node: "n1".into(), victims, budget_violations: 0 };
        let chosen = chosen.iter().map(|node| (*node).into()).collect();
        let preemption = Preemption { barred: None, candidates: vec![candidate], chosen };
        Diagnosis { preemption: Some(preemption), ..Diagnosis::default() }
    };
    for (candidate, victim, chosen, expected) in [
        (any.clone(), "p2", &["n1"][..], &[][..]),
        (any.clone(), "p1", &["n1", "n3"], &["chosen_one_of"]),
        (any.clone(), "p1", &[], &["chosen_one_of"]),
        (any, "p9", &["n1"], &["candidate n1"]),
        (eviction("ns/p1"), "p1", &["n2", "n1"], &[]),
        (eviction("ns/p1"), "p2", &["n1"], &["candidate n1", "chosen_one_of"]),
    ] {
        let case = case(&[], expect(candidate));
        let (verdicts, got) = differences(&case, &diagnosis(victim, chosen));
        assert_eq!((verdicts, got), (3, expected.iter().map(ToString::to_string).collect()));
    }
    let case = case(&[], expect(eviction("ns/p1")));
    assert_eq!(differences(&case, &Diagnosis::default()).0, 3);
}

#[test]
fn errors_name_the_case_the_object_and_the_field() {
    let case = |line: Value| Case::parse(&line.to_string()).unwrap_err().to_string();
    let pod = json!({ "metadata": { "name": "in" }, "spec": { "containers": [{ "name": "c" }] } });
    let bad = json!({ "metadata": { "name": "n" }, "status": { "allocatable": { "cpu": "x" } } });
    let expect = json!({ "nodes": {} });
    let error = case(json!({ "id": "t", "nodes": [bad], "pod": pod, "expect": expect }));
    assert!(
        error.starts_with("case \"t\": nodes[0]: Node n: status.allocatable[cpu]: "),
        "{error}"
    );
    let error = case(json!({ "id": "t", "nodes": [], "pod": pod, "expect": { "nodes": 1 } }));
    assert!(error.starts_with("case \"t\": expect.nodes: "), "{error}");
}

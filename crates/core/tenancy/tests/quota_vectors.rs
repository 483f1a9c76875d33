//! Pods and quotas decided by the API server's own quota admission (Kubernetes 1.36.4), replayed.
//!
//! Each recorded case is a namespace with one to three quotas to which pods come one after the
//! other: what each uses, which quotas count it, what is said if it is refused, and what is used of
//! every quota afterwards.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};

use berth_api::Lower as _;
use berth_model::policy::Quota;
use berth_model::quantity::Quantity;
use berth_model::resource::{ResourceList, ResourceName};
use berth_tenancy::quota::{Life, add, check, counts, usage};
use k8s_openapi::api::core::v1 as core;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    id: String,
    now_ms: i64,
    quotas: Vec<core::ResourceQuota>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    pod: core::Pod,
    usage: BTreeMap<String, String>,
    matches: Vec<bool>,
    error: String,
    used: Vec<BTreeMap<String, String>>,
}

fn text(list: &ResourceList) -> BTreeMap<String, String> {
    list.iter().map(|(name, amount)| (name.to_string(), amount.to_string())).collect()
}

fn differences(case: &Case) -> Vec<String> {
    let quotas: Vec<Quota> = case.quotas.iter().map(|quota| quota.lower().unwrap()).collect();
    let nothing = |quota: &Quota| -> ResourceList {
        quota.hard.keys().map(|name| (name.clone(), Quantity::ZERO)).collect()
    };
    let mut used: Vec<ResourceList> = quotas.iter().map(nothing).collect();
    let mut wrong = Vec::new();
    for (at, step) in case.steps.iter().enumerate() {
        let mut differs = |what: &str, ours: String, theirs: String| {
            if ours != theirs {
                let (id, name) = (&case.id, step.pod.metadata.name.as_deref().unwrap());
                wrong.push(format!("{id} {at} {name} {what}: {ours} != {theirs}"));
            }
        };
        let pod = step.pod.lower().unwrap();
        let asked = usage(&pod.spec.pod, Life::of(&pod, case.now_ms));
        differs("usage", format!("{:?}", text(&asked)), format!("{:?}", step.usage));
        let matches: Vec<bool> = quotas.iter().map(|quota| counts(quota, &pod.spec)).collect();
        differs("matches", format!("{matches:?}"), format!("{:?}", step.matches));
        let verdict = check(quotas.iter().zip(&used), &pod.spec, &asked);
        let words = verdict.as_ref().err().map_or(String::new(), ToString::to_string);
        differs("verdict", words, step.error.clone());
        if verdict.is_ok() {
            for (quota, used) in quotas.iter().zip(&mut used) {
                if counts(quota, &pod.spec) {
                    add(quota, used, &asked);
                }
            }
        }
        let sums: Vec<_> = used.iter().map(text).collect();
        differs("used", format!("{sums:?}"), format!("{:?}", step.used));
    }
    wrong
}

fn cases() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/quota-1.36.4.jsonl.gz");
    let path = std::env::var("BERTH_QUOTA_VECTORS").unwrap_or_else(|_| path.to_owned());
    let file = std::fs::File::open(&path).unwrap();
    let lines = BufReader::new(flate2::read::GzDecoder::new(file)).lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

#[test]
fn quotas_count_and_refuse_pods_as_the_api_server_does() {
    let cases = cases();
    assert!(cases.len() >= 300, "only {} cases", cases.len());
    let steps: usize = cases.iter().map(|case| case.steps.len()).sum();
    let wrong: Vec<String> = cases.iter().flat_map(differences).collect();
    let first = wrong.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {steps} steps differ:\n{first}", wrong.len());
}

#[test]
fn a_changed_record_is_noticed() {
    let mut case = cases().into_iter().find(|case| !case.steps[0].error.is_empty()).unwrap();
    case.steps[0].error.push('!');
    assert_eq!(differences(&case).len(), 1);
}

#[test]
fn negative_requests_are_refused_in_the_api_servers_words() {
    let mut spec = berth_model::spec::PodSpec::default();
    spec.pod.overhead.insert(ResourceName::cpu(), Quantity::parse("-1").unwrap());
    let asked = usage(&spec.pod, Life::Live);
    let hard = ResourceList::from([("pods".into(), Quantity::parse("1").unwrap())]);
    let quota = Quota { hard, ..Quota::default() };
    let used = ResourceList::new();
    let refusal = check([(&quota, &used)].into_iter(), &spec, &asked).unwrap_err();
    let words = "quota usage is negative for resource(s): cpu,requests.cpu";
    assert_eq!(refusal.to_string(), words);
}

//! Has the engine decide a case and compares everything the vectors assert.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use berth_engine::verdict::{Candidate, Diagnosis, NodeVerdict, Preemption, Rejection};
use berth_engine::{Engine, Profile};

use super::case::{Case, full_name};
use super::schema::{CandidateJson, EvictionJson, NodeJson, PreemptionJson};

/// One difference between what was recorded and what the engine says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What differs.
    pub what: String,
    /// As recorded.
    pub expected: String,
    /// As the engine has it.
    pub got: String,
}

/// What came of comparing a case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// How many recorded verdicts, scores, sums, choices and candidates were looked at.
    pub verdicts: usize,
    /// Those that differ, and what the engine says beyond them.
    pub mismatches: Vec<Mismatch>,
}

/// What kube-scheduler's profile of the engine says about the case.
pub fn decide(case: &Case) -> Diagnosis {
    let mut engine = Engine::new(Profile::KubeScheduler);
    for event in &case.events {
        engine.apply(event.clone());
    }
    engine.diagnose(&case.pod)
}

/// Compares what the engine says about `case` with what was recorded.
pub fn compare(case: &Case, diagnosis: &Diagnosis) -> Comparison {
    let mut comparison = Comparison::default();
    comparison.nodes(case, diagnosis);
    comparison.scores(case, diagnosis);
    let expect = &case.expect;
    let best: Vec<_> = diagnosis.best.iter().map(AsRef::as_ref).collect();
    if !expect.selected_one_of.is_empty() {
        comparison.one("selected_one_of", set(&expect.selected_one_of), set(&best));
    } else if !best.is_empty() {
        comparison.extra("selected_one_of", set(&best));
    }
    let feasible = expect.nodes.values().any(|node| node.feasible);
    match (&expect.preemption, &diagnosis.preemption) {
        (Some(expected), Some(got)) => comparison.preemption(case, expected, got),
        (Some(expected), None) => {
            let none =
                Preemption { barred: Some("not considered".into()), ..Preemption::default() };
            comparison.preemption(case, expected, &none);
        }
        // Without a feasible node, its absence from the recording asserts nothing.
        (None, Some(_)) if feasible => comparison.extra("preemption", "considered"),
        (None, _) => {}
    }
    comparison
}

impl Comparison {
    /// Compares something recorded by how it reads.
    fn one(&mut self, what: impl Display, expected: impl Display, got: impl Display) {
        self.verdicts += 1;
        let (expected, got) = (expected.to_string(), got.to_string());
        if expected != got {
            self.mismatches.push(Mismatch { what: what.to_string(), expected, got });
        }
    }

    /// Notes something that was not recorded.
    fn extra(&mut self, what: impl Display, got: impl Display) {
        let (what, got) = (what.to_string(), got.to_string());
        self.mismatches.push(Mismatch { what, expected: "nothing".to_owned(), got });
    }

    fn nodes(&mut self, case: &Case, diagnosis: &Diagnosis) {
        let got: BTreeMap<&str, _> =
            diagnosis.nodes.iter().map(|(node, verdict)| (node.as_ref(), verdict)).collect();
        for (node, expected) in &case.expect.nodes {
            let verdict = got.get(node.as_str());
            let said = verdict.map_or("nothing".to_owned(), |verdict| verdict_in_words(verdict));
            self.one(format_args!("node {node}"), recorded_in_words(expected), said);
            if let Some(filter) = &expected.filter {
                let alone =
                    verdict.map_or("nothing".to_owned(), |verdict| filter_in_words(verdict));
                self.one(format_args!("node {node}, filters"), recorded_in_words(filter), alone);
            }
        }
        for node in got.keys().filter(|node| !case.expect.nodes.contains_key(**node)) {
            self.extra(format_args!("node {node}"), "a verdict");
        }
    }

    fn scores(&mut self, case: &Case, diagnosis: &Diagnosis) {
        let by_plugin = diagnosis.scores.iter().flat_map(|(plugin, scores)| {
            scores.iter().map(|(node, score)| ((plugin.as_str(), node.as_ref()), *score))
        });
        let mut got: BTreeMap<(&str, &str), i64> = by_plugin.collect();
        got.extend(diagnosis.totals.iter().map(|(node, sum)| (("totals", node.as_ref()), *sum)));
        let recorded = case.expect.scores.iter().map(|(plugin, scores)| (plugin.as_str(), scores));
        for (plugin, scores) in recorded.chain([("totals", &case.expect.totals)]) {
            for (node, expected) in scores {
                let score = got.remove(&(plugin, node.as_str()));
                let score = score.map_or("none".to_owned(), |score| score.to_string());
                self.one(format_args!("{plugin} {node}"), expected, score);
            }
        }
        for ((plugin, node), score) in got {
            self.extra(format_args!("{plugin} {node}"), score);
        }
    }

    fn preemption(&mut self, case: &Case, expected: &PreemptionJson, got: &Preemption) {
        let eligible = |reason: Option<&str>| reason.unwrap_or("eligible").to_owned();
        let reason = expected.reason.as_deref().unwrap_or("not eligible");
        let barred = (!expected.eligible).then_some(reason);
        self.one("preemption", eligible(barred), eligible(got.barred.as_deref()));
        let mut candidates: BTreeMap<&str, &Candidate> =
            got.candidates.iter().map(|candidate| (candidate.node.as_ref(), candidate)).collect();
        for (node, expected) in &expected.candidates {
            let said = match candidates.remove(node.as_str()) {
                Some(candidate) => eviction_in_words(case, candidate),
                None => "no candidate".to_owned(),
            };
            let possible = possible_in_words(expected);
            // Of several possible results, the one that came out stands for all.
            let expected =
                if possible.contains(&said) { said.clone() } else { possible.join(" or ") };
            self.one(format_args!("candidate {node}"), expected, said);
        }
        for (node, candidate) in candidates {
            self.extra(format_args!("candidate {node}"), eviction_in_words(case, candidate));
        }
        let chosen: Vec<_> = got.chosen.iter().map(AsRef::as_ref).collect();
        if expected.chosen_one_of.is_empty() {
            if !chosen.is_empty() {
                self.extra("chosen_one_of", set(&chosen));
            }
            return;
        }
        // Which victims came out decides which node is best, so the engine may know better.
        let undecided = |candidate| matches!(candidate, &CandidateJson::AnyOf { .. });
        let may_be_fewer = expected.candidates.values().any(undecided) && !chosen.is_empty();
        let listed = |node: &&str| expected.chosen_one_of.iter().any(|one| one == node);
        let said = set(&chosen);
        let expected = if may_be_fewer && chosen.iter().all(listed) {
            said.clone()
        } else {
            set(&expected.chosen_one_of)
        };
        self.one("chosen_one_of", expected, said);
    }
}

/// Sorted and without repetition.
fn set<T: AsRef<str>>(names: &[T]) -> String {
    let names: BTreeSet<&str> = names.iter().map(AsRef::as_ref).collect();
    Vec::from_iter(names).join(" ")
}

/// A recorded verdict in words that can be compared.
pub(super) fn recorded_in_words(node: &NodeJson) -> String {
    let when = node.at.as_ref().map_or(String::new(), |at| format!("at {at}: "));
    if node.feasible {
        return format!("{when}feasible");
    }
    let mut reasons = node.reasons.clone();
    reasons.sort_unstable();
    format!("{when}{} {}: {}", node.plugin, node.code, reasons.join("; "))
}

/// The engine's verdict in the same words.
pub(super) fn verdict_in_words(verdict: &NodeVerdict) -> String {
    match verdict {
        NodeVerdict::Feasible => "feasible".to_owned(),
        NodeVerdict::Rejected(rejection) => rejection_in_words(rejection),
        NodeVerdict::Excluded { rejection, .. } => {
            format!("at PreFilter: {}", rejection_in_words(rejection))
        }
    }
}

/// What the engine says of the filters alone, in the same words.
fn filter_in_words(verdict: &NodeVerdict) -> String {
    match verdict {
        NodeVerdict::Excluded { filter: Some(Err(rejection)), .. } => rejection_in_words(rejection),
        NodeVerdict::Excluded { filter: Some(Ok(())), .. } => "feasible".to_owned(),
        _ => "not asked".to_owned(),
    }
}

fn rejection_in_words(rejection: &Rejection) -> String {
    let mut reasons: Vec<String> = rejection.reasons.iter().map(ToString::to_string).collect();
    reasons.sort_unstable();
    let (plugin, code) = (rejection.plugin.as_str(), rejection.code.as_str());
    format!("{plugin} {code}: {}", reasons.join("; "))
}

pub(super) fn possible_in_words(candidate: &CandidateJson) -> Vec<String> {
    let evictions = match candidate {
        CandidateJson::AnyOf { any_of } => any_of.as_slice(),
        CandidateJson::One(eviction) => std::slice::from_ref(eviction),
    };
    let in_words = |eviction: &EvictionJson| victims(&eviction.victims, eviction.pdb_violations);
    evictions.iter().map(in_words).collect()
}

pub(super) fn eviction_in_words(case: &Case, candidate: &Candidate) -> String {
    let name = |uid: &str| {
        let pod = case.pods().find(|pod| *pod.uid == *uid);
        pod.map_or_else(|| format!("unknown UID {uid}"), full_name)
    };
    let names: Vec<String> = candidate.victims.iter().map(|uid| name(uid)).collect();
    victims(&names, candidate.budget_violations)
}

fn victims(names: &[String], violations: usize) -> String {
    let mut names = names.to_vec();
    names.sort_unstable();
    format!("evict {} ({violations} budget violations)", names.join(" "))
}

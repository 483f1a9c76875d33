//! A case told in text: the cluster, the pod, and what was recorded beside what the engine says.

use std::fmt::Write;

use berth_engine::event::Event;
use berth_engine::verdict::Diagnosis;

use super::case::Case;
use super::describe;
use super::replay::{
    compare, decide, eviction_in_words, possible_in_words, recorded_in_words, verdict_in_words,
};

/// Tells the whole case.
pub fn explain(case: &Case) -> String {
    let diagnosis = decide(case);
    let mut out = format!("case {}  ({})\n", case.id, case.stratum);
    if let Some((twin, difference)) = &case.twin {
        let _ = writeln!(out, "as {twin}, except: {difference}");
    }
    out += &cluster(case);
    out += "\nnodes for it\n";
    out += &verdicts(case, &diagnosis);
    out += &scores(case, &diagnosis);
    out += &preemption(case, &diagnosis);
    for mismatch in compare(case, &diagnosis).mismatches {
        let (expected, got) = (mismatch.expected, mismatch.got);
        let _ = writeln!(out, "MISMATCH {}: recorded {expected}, got {got}", mismatch.what);
    }
    out
}

fn cluster(case: &Case) -> String {
    let since_ms = case.pods().filter_map(|pod| pod.started_at_ms).min().unwrap_or(0);
    let mut out = "\ncluster\n".to_owned();
    for event in &case.events {
        if let Event::Node(node) = event {
            let here = |place: &Option<_>| place.as_ref() == Some(&node.name);
            let pods: Vec<_> = case.pods().filter(|pod| here(&pod.node)).collect();
            out += &describe::node(node, &pods, since_ms);
        }
    }
    for pod in case.pods().filter(|pod| pod.node.is_none()) {
        out += &describe::pod(pod, since_ms);
    }
    out += &describe::others(&case.events);
    let _ = write!(out, "\nasked about: {}", describe::pod(&case.pod, since_ms));
    out += &describe::containers(&case.pod.spec.pod);
    let _ = writeln!(out, "    images        {}", case.pod.spec.images.join(" "));
    out
}

fn verdicts(case: &Case, diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    for (node, expected) in &case.expect.nodes {
        let got = diagnosis.nodes.iter().find(|(name, _)| **name == **node);
        let got = got.map_or("nothing".to_owned(), |(_, verdict)| verdict_in_words(verdict));
        let recorded = recorded_in_words(expected);
        let _ = if recorded == got {
            writeln!(out, "  {node:<4} {recorded}")
        } else {
            writeln!(out, "  {node:<4} recorded {recorded}\n       got      {got}")
        };
    }
    out
}

/// Plugins in rows, nodes in columns; what differs as `recorded!got`.
fn scores(case: &Case, diagnosis: &Diagnosis) -> String {
    let expect = &case.expect;
    let (Some(_), nodes) = (expect.totals.first_key_value(), expect.totals.keys()) else {
        return format!("best: recorded {:?}, got {:?}\n", expect.selected_one_of, diagnosis.best);
    };
    let nodes: Vec<&str> = nodes.map(String::as_str).collect();
    let got = |plugin: &str, node: &str| -> Option<i64> {
        let scores = diagnosis.scores.iter().find(|(one, _)| one.as_str() == plugin);
        let list =
            if plugin == "totals" { Some(&diagnosis.totals) } else { scores.map(|(_, s)| s) };
        list?.iter().find(|(name, _)| **name == *node).map(|(_, score)| *score)
    };
    let text = |score: Option<i64>| score.map_or("-".to_owned(), |score| score.to_string());
    let mut table = vec![row("", nodes.iter().map(ToString::to_string))];
    let recorded = expect.scores.iter().map(|(plugin, scores)| (plugin.as_str(), scores));
    for (plugin, scores) in recorded.chain([("totals", &expect.totals)]) {
        let cells = nodes.iter().map(|node| {
            let (recorded, got) = (scores.get(*node).copied(), got(plugin, node));
            if recorded == got { text(got) } else { format!("{}!{}", text(recorded), text(got)) }
        });
        table.push(row(plugin, cells));
    }
    let mut out = "\nscores\n".to_owned();
    out += &table.concat();
    let _ = writeln!(out, "best: recorded {:?}, got {:?}", expect.selected_one_of, diagnosis.best);
    out
}

fn row(first: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String = cells.map(|cell| format!("{cell:>9}")).collect();
    format!("  {first:<32}{cells}\n")
}

fn preemption(case: &Case, diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    if let Some(recorded) = &case.expect.preemption {
        let reason = recorded.reason.as_deref().unwrap_or("eligible");
        let _ = writeln!(out, "\npreemption recorded: {reason}");
        for (node, candidate) in &recorded.candidates {
            let _ = writeln!(out, "  {node:<4} {}", possible_in_words(candidate).join("\n    or "));
        }
        let _ = writeln!(out, "  chosen {}", recorded.chosen_one_of.join(" or "));
    }
    if let Some(got) = &diagnosis.preemption {
        let reason = got.barred.as_deref().unwrap_or("eligible");
        let _ = writeln!(out, "preemption got: {reason}");
        for candidate in &got.candidates {
            let node = &candidate.node;
            let _ = writeln!(out, "  {node:<4} {}", eviction_in_words(case, candidate));
        }
        let _ = writeln!(out, "  chosen {}", got.chosen.join(" or "));
    }
    out
}

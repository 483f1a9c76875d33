//! A case told in text: what the pod needs, what each node says, and what was recorded.

use std::fmt::Write;

use super::case::Case;
use super::replay::{Verdict, compare, decide, options};

/// The case in text.
pub fn explain(case: &Case) -> String {
    let decision = decide(case);
    let comparison = compare(case, &decision);
    let mut text = format!("{} ({})\n", case.id, case.stratum);
    let claims = case.needs.claims.iter();
    let claims: Vec<String> = claims.map(|claim| format!("{:?}", claim.source)).collect();
    let _ = writeln!(
        text,
        "pod {}/{}: claims {}",
        case.needs.namespace,
        case.needs.name,
        claims.join(", ")
    );
    if let Err(rejection) = case.inventory.prepare(&case.needs) {
        let _ = writeln!(text, "before any node: {}: {rejection}", rejection.code.as_str());
    }
    for (name, verdict) in &decision.nodes {
        match verdict {
            Verdict::Feasible(given) => {
                let score =
                    decision.scores.get(name).map_or(String::new(), |s| format!(", score {s}"));
                let _ = writeln!(text, "node {name}: feasible{score}");
                for one in given {
                    let _ = writeln!(text, "  claim {} [{}]", one.claim, one.nodes);
                    for device in &one.devices {
                        let _ = writeln!(text, "    {device}");
                    }
                }
            }
            Verdict::Infeasible { plugin, code, reasons, .. } => {
                let _ = writeln!(text, "node {name}: {plugin}: {code}: {}", reasons.join("; "));
                let node = case.nodes.iter().find(|node| *node.name == **name);
                let demand = case.inventory.prepare(&case.needs).ok().flatten();
                if let (Some(node), Some(demand)) = (node, demand)
                    && let Err(rejection) = case.inventory.place(&demand, node, &options())
                {
                    let _ = writeln!(text, "  {rejection}");
                }
            }
        }
    }
    for mismatch in &comparison.mismatches {
        let _ = writeln!(
            text,
            "DIFFERS {}:\n  recorded {}\n  decided  {}",
            mismatch.what, mismatch.expected, mismatch.got
        );
    }
    if comparison.mismatches.is_empty() {
        text.push_str("as recorded\n");
    }
    text
}

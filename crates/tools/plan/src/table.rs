//! A plan as tables. Identical replicas share a row.

use std::fmt::Write as _;

use berth_inspect::PodRef;
use berth_inspect::text::{
    NAMED_MAX, Style, Table, alignment, gap, gpus, milli, numbers, pod_name, prose,
};
use berth_inspect::usage::GpuUse;

use crate::report::{Change, Difference, Eviction, Plan, Unplaced, WorkloadPlan};

pub fn render(plan: &Plan, style: Style) -> String {
    let mut text = String::new();
    let all: Vec<&WorkloadPlan> = plan.workloads.iter().chain([&plan.others]).collect();
    places(&all, style, &mut text);
    unplaced(&all, style, &mut text);
    evictions(plan, style, &mut text);
    pools(plan, style, &mut text);
    cost(plan, &mut text);
    if let Some(difference) = &plan.difference {
        changes(&plan.what_if, difference, style, &mut text);
    }
    for note in &plan.notes {
        prose(&mut text, "note: ", note, style);
    }
    text
}

fn places(workloads: &[&WorkloadPlan], style: Style, text: &mut String) {
    let head = ["NAME", "PODS", "NODE", "NUMA", "GPU", "ALIGNMENT", "$/MONTH"];
    let mut rows: Vec<Vec<String>> = Vec::new();
    for workload in workloads {
        let mut groups: Vec<(Vec<String>, usize, Option<i64>)> = Vec::new();
        for placed in &workload.placed {
            let cells = vec![
                name_of(workload, &placed.pod),
                placed.node.clone(),
                numbers(placed.numa.iter().map(|id| *id as usize)),
                gpus(placed),
                alignment(placed).to_owned(),
            ];
            let cost = placed.microusd_per_month;
            match groups.iter_mut().find(|(known, ..)| *known == cells) {
                Some((_, count, sum)) => {
                    *count += 1;
                    *sum = sum.zip(cost).map(|(sum, cost)| sum + cost);
                }
                None => groups.push((cells, 1, cost)),
            }
        }
        for (cells, count, cost) in groups {
            let mut row = cells;
            row.insert(1, count.to_string());
            row.push(cost.map_or_else(|| "unknown".to_owned(), money));
            rows.push(row);
        }
        let waiting: usize = workload.unplaced.iter().map(|one| one.pods.len()).sum();
        if waiting > 0 && !workload.kind.is_empty() {
            let name = format!("{}/{}", workload.namespace, workload.name);
            let dash = || "-".to_owned();
            let row = vec![
                name,
                waiting.to_string(),
                "<none>".to_owned(),
                dash(),
                dash(),
                dash(),
                dash(),
            ];
            rows.push(row);
        }
    }
    if !rows.is_empty() {
        let optional = &["$/MONTH", "NUMA"];
        *text += &Table { optional, ..Table::new(&head, rows) }.render(style);
    }
}

/// Pods of the cluster go by their own names.
fn name_of(workload: &WorkloadPlan, pod: &PodRef) -> String {
    match workload.kind.as_str() {
        "" => pod_name(pod),
        _ => format!("{}/{}", workload.namespace, workload.name),
    }
}

fn unplaced(workloads: &[&WorkloadPlan], style: Style, text: &mut String) {
    let groups: Vec<&Unplaced> = workloads.iter().flat_map(|one| &one.unplaced).collect();
    if groups.is_empty() {
        return;
    }
    gap(text);
    *text += &style.paint.with("1;31", "NOT PLACED");
    text.push('\n');
    for group in groups {
        let names: Vec<String> = group.pods.iter().take(NAMED_MAX).map(pod_name).collect();
        let more = group.pods.len() - names.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ = writeln!(text, "{}{more}", names.join(", "));
        // The remedies have lines of their own.
        let why = group.why.split(" Would fit: ").next().unwrap_or_default();
        prose(text, "  ", why, style);
        for remedy in &group.remedies {
            prose(text, "  would fit: ", &remedy.text, style);
        }
    }
}

fn evictions(plan: &Plan, style: Style, text: &mut String) {
    if !plan.evictions.is_empty() {
        let head = ["EVICTED", "PRIORITY", "FROM", "FOR", "THEN"];
        let rows = plan.evictions.iter().map(|one| {
            let Eviction { pod, node, priority, by, .. } = one;
            vec![pod_name(pod), priority.to_string(), node.clone(), pod_name(by), then(one)]
        });
        gap(text);
        *text += &Table::new(&head, rows).render(style);
    }
    if !plan.lost.is_empty() {
        gap(text);
        let names: Vec<String> = plan.lost.iter().map(pod_name).collect();
        prose(text, "Lost, since no controller replaces them: ", &names.join(", "), style);
    }
}

fn then(eviction: &Eviction) -> String {
    let fate = match (&eviction.goes_to, eviction.is_replaced) {
        (Some(node), _) => format!("goes to {node}"),
        (None, true) => "is pending".to_owned(),
        (None, false) => "is gone".to_owned(),
    };
    if eviction.against_budget { format!("{fate}, violates a budget") } else { fate }
}

fn pools(plan: &Plan, style: Style, text: &mut String) {
    if plan.pools.is_empty() {
        return;
    }
    let mut head = vec!["POOL", "NODES", "GPUS", "ALLOCATED", "FREE", "STRANDED"];
    let is_cordoned =
        plan.pools.iter().any(|pool| pool.before.cordoned_milli + pool.after.cordoned_milli > 0);
    head.extend(is_cordoned.then_some("CORDONED"));
    let mut rows = Vec::new();
    for pool in &plan.pools {
        let name = if pool.pool.is_empty() { "<none>" } else { &pool.pool };
        let change = |of: fn(&GpuUse) -> u64| {
            let (before, after) = (of(&pool.before), of(&pool.after));
            if before == after {
                milli(after)
            } else {
                format!("{} → {}", milli(before), milli(after))
            }
        };
        let mut row = vec![
            name.to_owned(),
            pool.nodes.to_string(),
            pool.gpus.to_string(),
            change(|one| one.allocated_milli),
            change(|one| one.free_milli),
            change(|one| one.stranded_milli),
        ];
        row.extend(is_cordoned.then(|| change(|one| one.cordoned_milli)));
        rows.push(row);
    }
    gap(text);
    *text += &Table::new(&head, rows).render(style);
}

/// Whole dollars, with thousands separators.
fn money(microusd: i64) -> String {
    let dollars = (microusd.unsigned_abs() + 500_000) / 1_000_000;
    let digits = dollars.to_string();
    let mut shown = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    if microusd < 0 && dollars > 0 { format!("-{shown}") } else { shown }
}

fn cost(plan: &Plan, text: &mut String) {
    let (pods, placed) = plan.counts();
    gap(text);
    if pods > 0 {
        let _ = writeln!(text, "{placed} of {pods} pods placed by {}.", plan.profile);
        let _ = write!(text, "${} a month", money(plan.cost.microusd_per_month));
        let teams: Vec<String> = plan
            .cost
            .by_team
            .iter()
            .filter(|(_, amount)| **amount > 0)
            .map(|(team, amount)| {
                let team = if team.is_empty() { "no team" } else { team };
                format!("{team} ${}", money(*amount))
            })
            .collect();
        if !teams.is_empty() {
            let _ = write!(text, " ({})", teams.join(", "));
        }
        let _ = write!(text, ", of ");
    }
    let all = money(plan.cost.cluster_microusd_per_month);
    let _ = write!(text, "${all} a month for all nodes");
    match plan.cost.nodes_without_price {
        0 => {}
        1 => *text += " but 1 of unknown price",
        count => {
            let _ = write!(text, " but {count} of unknown price");
        }
    }
    *text += ".\n";
}

fn changes(what_if: &[String], difference: &Difference, style: Style, text: &mut String) {
    gap(text);
    *text += &style.paint.heading(&format!("WHAT IF {}", what_if.join(", ")));
    text.push('\n');
    let mut is_same = true;
    let mut list = |lead: &str, changes: Vec<String>| {
        if !changes.is_empty() {
            is_same = false;
            prose(text, &format!("  {lead}: "), &changes.join(", "), style);
        }
    };
    let arrow = |change: &Change| {
        let place = |node: &Option<String>| node.clone().unwrap_or_else(|| "elsewhere".to_owned());
        format!("{} ({} → {})", pod_name(&change.pod), place(&change.from), place(&change.to))
    };
    let to = |change: &Change| {
        format!("{} (on {})", pod_name(&change.pod), change.to.clone().unwrap_or_default())
    };
    list("placed now", difference.placed.iter().map(to).collect());
    list("no longer placed", difference.unplaced.iter().map(|one| pod_name(&one.pod)).collect());
    list("moved", difference.moved.iter().map(arrow).collect());
    list("also evicted", difference.evicted.iter().map(pod_name).collect());
    list("no longer evicted", difference.spared.iter().map(pod_name).collect());
    let signed = |amount: i64| {
        let sign = if amount < 0 { "-" } else { "+" };
        format!("{sign}${}", money(amount.saturating_abs()))
    };
    let mut costs = Vec::new();
    if difference.microusd_per_month != 0 {
        costs.push(format!("{} a month for these pods", signed(difference.microusd_per_month)));
    }
    if difference.cluster_microusd_per_month != 0 {
        let amount = signed(difference.cluster_microusd_per_month);
        costs.push(format!("{amount} a month for all nodes"));
    }
    list("cost", costs);
    if is_same {
        *text += "  no difference\n";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_rounded_to_dollars() {
        assert_eq!(money(1_234_567_499_999), "1,234,567");
        assert_eq!(money(500_000), "1");
        assert_eq!(money(-2_000_000_000), "-2,000");
        assert_eq!((milli(1500), milli(2000), milli(464)).0, "1.5");
    }
}

//! A plan as a table for people.
//!
//! Owns columns, words and colours; identical replicas are one row. Must not find anything out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::report::{
    Change, DeviceName, Difference, Eviction, Given, GpuUse, Lie, Placed, Plan, PodRef, Unplaced,
    WorkloadPlan,
};

/// Where lines of prose end.
const WIDTH: usize = 100;

/// So many pods are named where many share a fate.
const NAMED_MAX: usize = 3;

/// How a table is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Without colours.
    Plain,
    /// With those of terminals.
    Coloured,
}

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Coloured => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        }
    }

    fn heading(self, text: &str) -> String {
        self.with("1", text)
    }
}

/// The whole plan.
pub fn render(plan: &Plan, paint: Paint) -> String {
    let mut text = String::new();
    let all: Vec<&WorkloadPlan> = plan.workloads.iter().chain([&plan.others]).collect();
    places(&all, paint, &mut text);
    unplaced(&all, paint, &mut text);
    evictions(plan, paint, &mut text);
    pools(plan, paint, &mut text);
    cost(plan, &mut text);
    if let Some(difference) = &plan.difference {
        changes(&plan.what_if, difference, paint, &mut text);
    }
    for note in &plan.notes {
        prose(&mut text, "note: ", note);
    }
    text
}

/// Rows of cells as columns, two blanks apart.
fn columns(rows: &[Vec<String>], paint: Paint) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let blanks = width.saturating_sub(cell.chars().count()) + 2;
            line += cell;
            line += &" ".repeat(blanks);
        }
        let line = line.trim_end();
        let line = if number == 0 { paint.heading(line) } else { coloured(line, paint) };
        text += &line;
        text.push('\n');
    }
    text
}

fn coloured(line: &str, paint: Paint) -> String {
    let marks = [("misaligned", "33"), ("<none>", "31")];
    let mut line = line.to_owned();
    for (word, code) in marks {
        line = line.replace(word, &paint.with(code, word));
    }
    line
}

fn places(workloads: &[&WorkloadPlan], paint: Paint, text: &mut String) {
    let head = ["NAME", "PODS", "NODE", "NUMA", "GPU", "ALIGNMENT", "$/MONTH"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for workload in workloads {
        let mut groups: Vec<(Vec<String>, usize, Option<i64>)> = Vec::new();
        for placed in &workload.placed {
            let cells = vec![
                name_of(workload, &placed.pod),
                placed.node.clone(),
                numbers(placed.numa.iter().map(|id| *id as usize)),
                gpus(placed),
                alignment(placed.alignment).to_owned(),
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
    if rows.len() > 1 {
        *text += &columns(&rows, paint);
    }
}

/// Pods of the cluster go by their own names.
fn name_of(workload: &WorkloadPlan, pod: &PodRef) -> String {
    match workload.kind.as_str() {
        "" => pod_name(pod),
        _ => format!("{}/{}", workload.namespace, workload.name),
    }
}

fn pod_name(pod: &PodRef) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

const fn alignment(lie: Lie) -> &'static str {
    match lie {
        Lie::Aligned => "aligned",
        Lie::Misaligned => "misaligned",
        Lie::Unmanaged => "-",
        Lie::Unknown => "unknown",
    }
}

/// `0-3,6`; a dash for none.
fn numbers(all: impl Iterator<Item = usize>) -> String {
    let mut all: Vec<usize> = all.collect();
    all.sort_unstable();
    all.dedup();
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in all {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    if ranges.is_empty() {
        return "-".to_owned();
    }
    let shown = ranges.iter().map(|(first, last)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    });
    shown.collect::<Vec<_>>().join(",")
}

fn gpus(placed: &Placed) -> String {
    let mut all: Vec<String> = placed.devices.iter().map(given).collect();
    if let Some(share) = &placed.share {
        all.push(format!("{}% of {}", placed.gpu_milli.div_ceil(10), share.gpu));
    }
    all.extend(placed.claimed.iter().cloned());
    if all.is_empty() && placed.gpu_milli > 0 {
        // Nothing is known of the node's inside.
        return format!("{} of any", milli(placed.gpu_milli));
    }
    if all.is_empty() { "-".to_owned() } else { all.join(" + ") }
}

fn given(given: &Given) -> String {
    let certain = devices(&given.certain);
    let drawn = given.count - given.certain.len().min(given.count);
    match (certain.is_empty(), drawn) {
        (_, 0) => certain,
        (true, _) => format!("{drawn} of {}", devices(&given.one_of)),
        (false, _) => format!("{certain} + {drawn} of {}", devices(&given.one_of)),
    }
}

/// `0-3`; slices as `0/1g.10gb@0-6`.
fn devices(names: &[DeviceName]) -> String {
    if names.is_empty() {
        return String::new();
    }
    if names.iter().all(|name| name.gpu.is_some() && name.slice.is_none()) {
        return numbers(names.iter().filter_map(|name| name.gpu));
    }
    let mut shown: Vec<String> = Vec::new();
    let mut slices: BTreeMap<(usize, &str), Vec<usize>> = BTreeMap::new();
    for name in names {
        let slice = name.slice.as_deref().and_then(|slice| slice.split_once('@'));
        match (name.gpu, slice.and_then(|(profile, start)| Some((profile, start.parse().ok()?)))) {
            (Some(gpu), Some((profile, start))) => {
                slices.entry((gpu, profile)).or_default().push(start);
            }
            _ => shown.push(name.id.clone()),
        }
    }
    let slices = slices
        .into_iter()
        .map(|((gpu, profile), starts)| format!("{gpu}/{profile}@{}", numbers(starts.into_iter())));
    shown.extend(slices);
    let some = shown.iter().take(NAMED_MAX + 1).cloned().collect::<Vec<_>>().join(" ");
    if shown.len() > NAMED_MAX + 1 { format!("{some} …") } else { some }
}

fn unplaced(workloads: &[&WorkloadPlan], paint: Paint, text: &mut String) {
    let groups: Vec<&Unplaced> = workloads.iter().flat_map(|one| &one.unplaced).collect();
    if groups.is_empty() {
        return;
    }
    gap(text);
    *text += &paint.with("1;31", "NOT PLACED");
    text.push('\n');
    for group in groups {
        let names: Vec<String> = group.pods.iter().take(NAMED_MAX).map(pod_name).collect();
        let more = group.pods.len() - names.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ = writeln!(text, "{}{more}", names.join(", "));
        // What would help has lines of its own.
        let why = group.why.split(" Would fit: ").next().unwrap_or_default();
        prose(text, "  ", why);
        for remedy in &group.remedies {
            prose(text, "  would fit: ", &remedy.text);
        }
    }
}

/// Words behind a lead, broken at the width; further lines hang below the first.
fn prose(text: &mut String, lead: &str, words: &str) {
    let indent = lead.chars().count();
    let mut line = lead.to_owned();
    let mut width = indent;
    let mut is_first = true;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if !is_first && width + 1 + length > WIDTH {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(indent);
            width = indent;
            is_first = true;
        }
        if !is_first {
            line.push(' ');
            width += 1;
        }
        line.push_str(word);
        width += length;
        is_first = false;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

fn gap(text: &mut String) {
    if !text.is_empty() {
        text.push('\n');
    }
}

fn evictions(plan: &Plan, paint: Paint, text: &mut String) {
    if !plan.evictions.is_empty() {
        let head = ["EVICTED", "PRIORITY", "FROM", "FOR", "THEN"].map(str::to_owned);
        let mut rows = vec![head.to_vec()];
        rows.extend(plan.evictions.iter().map(|one| {
            let Eviction { pod, node, priority, by, .. } = one;
            vec![pod_name(pod), priority.to_string(), node.clone(), pod_name(by), then(one)]
        }));
        gap(text);
        *text += &columns(&rows, paint);
    }
    if !plan.lost.is_empty() {
        gap(text);
        let names: Vec<String> = plan.lost.iter().map(pod_name).collect();
        prose(text, "Gone for good, since nothing makes them anew: ", &names.join(", "));
    }
}

fn then(eviction: &Eviction) -> String {
    let fate = match (&eviction.goes_to, eviction.is_made_anew) {
        (Some(node), _) => format!("goes to {node}"),
        (None, true) => "waits".to_owned(),
        (None, false) => "is gone".to_owned(),
    };
    if eviction.against_budget { format!("{fate}, against a budget") } else { fate }
}

fn pools(plan: &Plan, paint: Paint, text: &mut String) {
    if plan.pools.is_empty() {
        return;
    }
    let head = ["POOL", "NODES", "GPUS", "ALLOCATED", "FREE", "STRANDED"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
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
        rows.push(vec![
            name.to_owned(),
            pool.nodes.to_string(),
            pool.gpus.to_string(),
            change(|one| one.allocated_milli),
            change(|one| one.free_milli),
            change(|one| one.stranded_milli),
        ]);
    }
    gap(text);
    *text += &columns(&rows, paint);
}

/// Thousandths as a decimal number.
fn milli(amount: u64) -> String {
    let (whole, rest) = (amount / 1000, amount % 1000);
    let rest = format!("{rest:03}");
    match rest.trim_end_matches('0') {
        "" => whole.to_string(),
        rest => format!("{whole}.{rest}"),
    }
}

/// Whole dollars, by thousands.
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

fn changes(what_if: &[String], difference: &Difference, paint: Paint, text: &mut String) {
    gap(text);
    *text += &paint.heading(&format!("WHAT IF {}", what_if.join(", ")));
    text.push('\n');
    let mut said = false;
    let mut list = |lead: &str, changes: Vec<String>| {
        if !changes.is_empty() {
            said = true;
            prose(text, &format!("  {lead}: "), &changes.join(", "));
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
    list("evicted besides", difference.evicted.iter().map(pod_name).collect());
    list("not evicted any more", difference.spared.iter().map(pod_name).collect());
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
    if !said {
        *text += "  nothing is different\n";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_ranges() {
        assert_eq!(numbers([3, 0, 1, 2, 6].into_iter()), "0-3,6");
        assert_eq!(numbers([5].into_iter()), "5");
        assert_eq!(numbers([].into_iter()), "-");
    }

    #[test]
    fn money_is_rounded_to_dollars() {
        assert_eq!(money(1_234_567_499_999), "1,234,567");
        assert_eq!(money(500_000), "1");
        assert_eq!(money(-2_000_000_000), "-2,000");
        assert_eq!((milli(1500), milli(2000), milli(464)).0, "1.5");
    }

    #[test]
    fn what_is_uncertain_is_shown_as_such() {
        let gpu = |gpu| DeviceName { gpu: Some(gpu), slice: None, id: format!("gpu-{gpu}") };
        let mut some = Given {
            resource: "nvidia.com/gpu".to_owned(),
            count: 2,
            certain: Vec::new(),
            one_of: (0..4).map(gpu).collect(),
        };
        assert_eq!(given(&some), "2 of 0-3");
        some.certain = vec![gpu(5)];
        assert_eq!(given(&some), "5 + 1 of 0-3");
        some.certain = vec![gpu(5), gpu(6)];
        assert_eq!(given(&some), "5-6");
        let slice = |gpu, slice: &str| DeviceName {
            gpu: Some(gpu),
            slice: Some(slice.to_owned()),
            id: String::new(),
        };
        let slices = ["1g.10gb@0", "1g.10gb@1", "1g.10gb@2", "3g.40gb@4"].map(|one| slice(0, one));
        assert_eq!(devices(&slices), "0/1g.10gb@0-2 0/3g.40gb@4");
    }

    #[test]
    fn prose_is_broken_and_hangs() {
        let mut text = String::new();
        prose(&mut text, "  would fit: ", &"word ".repeat(40));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
        assert!(text.lines().skip(1).all(|line| line.starts_with("             word")));
    }
}

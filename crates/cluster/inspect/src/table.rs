//! Reports as tables and text for terminals, by kubectl's habits: names first, `<none>` for nothing.

use std::fmt::Write as _;

use serde_json::Value;

use berth_model::alignment::Alignment;
use jiff::Timestamp;

use crate::node::{GpuReport, Insight, NodeReport, Nodes, NumaReport, PartReport};
use crate::place::Placed;
use crate::pod::{Fate, PodReport};
use crate::queue::{Queue, QueueState, QueuedPod};
use crate::record::Evidence;
use crate::text::{
    NAMED_MAX, Paint, Style, Table, alignment, gap, gpus, milli, numbers, pod_name, prose,
    shortened,
};
use crate::{PodRef, SCHEDULER};

/// Reasons are cut after this many characters unless the table is wide.
const REASON_MAX: usize = 60;

/// Marks what is inferred.
const INFERRED: &str = "~";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// More columns.
    pub wide: bool,
    /// With the column NAMESPACE.
    pub namespaces: bool,
    pub no_headers: bool,
    pub style: Style,
}

impl Form {
    pub const PLAIN: Self =
        Self { wide: false, namespaces: false, no_headers: false, style: Style::PLAIN };
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text.to_owned() }
}

/// A time span as kubectl writes it: `45s`, `12m`, `3h20m`, `5d`.
pub fn age(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let rest = |amount: i64, unit: &str| match amount {
        0 => String::new(),
        amount => format!("{amount}{unit}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => format!("{minutes}m{}", rest(seconds % 60, "s")),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => format!("{hours}h{}", rest(minutes % 60, "m")),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => format!("{days}d{}", rest(hours % 24, "h")),
        691_200..63_072_000 => format!("{days}d"),
        _ => format!("{}y{}", days / 365, rest(days % 365, "d")),
    }
}

pub fn queue(queue: &Queue, form: Form) -> String {
    let mut head = vec!["POS"];
    if form.namespaces {
        head.push("NAMESPACE");
    }
    head.extend(["NAME", "TEAM", "CLASS", "PRIORITY", "GPUS", "STATE"]);
    if form.wide {
        head.extend(["SCHEDULER", "NODE"]);
    }
    head.extend(["AGE", "REASON"]);
    let rows = queue.pods.iter().map(|pod| queue_row(pod, form));
    let table = Table {
        optional: &["AGE", "TEAM", "PRIORITY", "CLASS", "SCHEDULER"],
        ends_in_prose: true,
        no_headers: form.no_headers,
        ..Table::new(&head, rows)
    };
    table.render(form.style)
}

fn queue_row(pod: &QueuedPod, form: Form) -> Vec<String> {
    let position = pod.position.map_or_else(|| "-".to_owned(), |at| at.to_string());
    let mut row = vec![position];
    if form.namespaces {
        row.push(pod.pod.namespace.clone());
    }
    row.extend([
        pod.pod.name.clone(),
        or_none(&pod.team),
        pod.class.clone(),
        pod.priority.to_string(),
        pod.gpus.clone(),
        state(pod),
    ]);
    if form.wide {
        row.push(pod.scheduler.clone());
        row.push(or_none(pod.nominated_node.as_deref().unwrap_or_default()));
    }
    row.push(age(pod.age_seconds));
    row.push(if form.wide { pod.reason.clone() } else { shortened(&pod.reason, REASON_MAX) });
    row
}

fn state(pod: &QueuedPod) -> String {
    let by = pod.held_by.as_deref().unwrap_or_default();
    match pod.state {
        QueueState::Waiting => "waiting".to_owned(),
        QueueState::Fits => "fits".to_owned(),
        QueueState::Nominated => {
            format!("nominated to {}", pod.nominated_node.as_deref().unwrap_or_default())
        }
        QueueState::Held if by.is_empty() => "held".to_owned(),
        QueueState::Held => format!("held by {by}"),
        QueueState::Gang => "in gang".to_owned(),
        QueueState::Gated => format!("gated by {by}"),
    }
}

fn notes(notes: &[String], style: Style, text: &mut String) {
    for note in notes {
        prose(text, "note: ", note, style);
    }
}

pub fn pod(report: &PodReport, style: Style) -> String {
    let mut text = String::new();
    let name = pod_name(&report.pod);
    let _ = writeln!(text, "{} {}", style.paint.heading(&name), fate(report));
    let _ = writeln!(text);
    facts(report, style, &mut text);
    if let Some(place) = &report.place {
        placed(place, style, &mut text);
    }
    if let Some(recorded) = &report.recorded {
        prose(&mut text, "  recorded:   ", &on_one_line(recorded), style);
    }
    gap(&mut text);
    prose(&mut text, "", &report.why, style);
    if let Some(certainty) = &report.certainty {
        prose(&mut text, "", certainty, style);
    }
    for remedy in &report.remedies {
        prose(&mut text, "  would fit: ", &remedy.text, style);
    }
    if let Some(place) = &report.would_go {
        gap(&mut text);
        prose(&mut text, "", &would_go(report, place), style);
    }
    if let Some(forecast) = &report.forecast {
        gap(&mut text);
        prose(&mut text, "", forecast, style);
    }
    if !report.notes.is_empty() {
        gap(&mut text);
        notes(&report.notes, style, &mut text);
    }
    text
}

fn fate(report: &PodReport) -> String {
    let node = report.place.as_ref().map(|place| place.node.as_str()).unwrap_or_default();
    match report.fate {
        Fate::Placed => format!("is on {node}"),
        Fate::Leaving if node.is_empty() => "is being deleted".to_owned(),
        Fate::Leaving => format!("is leaving {node}"),
        Fate::Finished => "has finished".to_owned(),
        Fate::Pending => match &report.nominated_node {
            Some(node) => format!("is pending, nominated to {node}"),
            None => "is pending".to_owned(),
        },
    }
}

fn scheduler(report: &PodReport) -> String {
    match (report.scheduler.as_str(), report.scheduled_by_berth) {
        (SCHEDULER, true) => SCHEDULER.to_owned(),
        (name, true) => format!("{name} (Berth)"),
        (name, false) => format!("{name} (not Berth)"),
    }
}

/// A point in time, as RFC 3339.
fn moment(at_ms: i64) -> String {
    let seconds = Timestamp::from_second(at_ms.div_euclid(1000));
    seconds.map_or_else(|_| "unknown".to_owned(), |time| time.to_string())
}

fn facts(report: &PodReport, style: Style, text: &mut String) {
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            prose(text, &format!("  {name:<12}"), &value, style);
        }
    };
    fact("phase:", report.phase.clone());
    fact(
        "requests:",
        match report.gpus.as_str() {
            "-" => "no GPU".to_owned(),
            "1" => "1 GPU".to_owned(),
            whole if whole.parse::<u64>().is_ok() => format!("{whole} GPUs"),
            part => format!("GPU {part}"),
        },
    );
    let mut work = Vec::new();
    if !report.class.is_empty() {
        work.push(format!("{}, priority {}", report.class, report.priority));
    }
    if !report.team.is_empty() {
        work.push(format!("team {}", report.team));
    }
    fact("class:", work.join(", "));
    fact("scheduler:", scheduler(report));
    fact("age:", age(report.age_seconds));
    if let Some((position, waiting)) = report.position {
        fact("queue:", format!("{position} of {waiting}"));
    }
    if let Some(condition) = &report.scheduled {
        let since =
            condition.since_ms.map(|at| format!(" since {}", moment(at))).unwrap_or_default();
        let reason = match condition.reason.as_str() {
            "" => String::new(),
            reason => format!(" ({reason})"),
        };
        let message = match condition.message.as_str() {
            "" => String::new(),
            message => format!(": {message}"),
        };
        fact("scheduled:", format!("{}{reason}{since}{message}", condition.status));
    }
}

fn placed(place: &Placed, style: Style, text: &mut String) {
    let mut fact = |name: &str, value: String| prose(text, &format!("  {name:<12}"), &value, style);
    let pool = match place.pool.as_str() {
        "" => String::new(),
        pool => format!(" (pool {pool})"),
    };
    fact("node:", format!("{}{pool}", place.node));
    if !place.numa.is_empty() {
        fact("NUMA nodes:", numbers(place.numa.iter().map(|id| *id as usize)));
    }
    if place.cpus > 0 {
        fact("CPUs:", format!("{} exclusive", place.cpus));
    }
    let held = gpus(place);
    if held != "-" {
        fact("GPUs:", held);
    }
    fact("alignment:", alignment(place).to_owned());
}

fn on_one_line(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| format!("{key} {}", on_one_line(value)));
            fields.collect::<Vec<_>>().join("; ")
        }
        Value::Array(items) => items.iter().map(on_one_line).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn would_go(report: &PodReport, place: &Placed) -> String {
    let mut words = format!("Berth would bind it to {}", place.node);
    if !place.numa.is_empty() {
        let numa = numbers(place.numa.iter().map(|id| *id as usize));
        let _ = write!(words, ", NUMA node {numa}");
    }
    let held = gpus(place);
    if held != "-" {
        let _ = write!(words, ", GPU {held}");
    }
    if matches!(place.alignment, Alignment::Aligned | Alignment::Misaligned) {
        let _ = write!(words, " ({})", place.alignment.as_str());
    }
    match report.position {
        Some((1, _)) | None => words + " now.",
        Some(_) => words + " once the pods before it in the queue have been served.",
    }
}

/// A line per node.
pub fn nodes(nodes: &Nodes, form: Form) -> String {
    let head = [
        "NAME",
        "STATUS",
        "POOL",
        "ZONE",
        "GPU",
        "GPUS",
        "USED",
        "FREE",
        "FREE BY NUMA",
        "STRANDED",
        "AGE",
    ];
    let table = Table {
        optional: &["AGE", "ZONE", "POOL", "GPU"],
        no_headers: form.no_headers,
        ..Table::new(&head, nodes.nodes.iter().map(node_row))
    };
    table.render(form.style)
}

fn status(node: &NodeReport) -> String {
    let ready = if node.is_ready { "Ready" } else { "NotReady" };
    if node.is_cordoned { format!("{ready},SchedulingDisabled") } else { ready.to_owned() }
}

fn node_row(node: &NodeReport) -> Vec<String> {
    let has = node.gpus > 0;
    let amount = |milli_gpus: u64| if has { milli(milli_gpus) } else { "-".to_owned() };
    vec![
        node.name.clone(),
        status(node),
        or_none(&node.pool),
        or_none(&node.zone),
        or_none(product(&node.product)),
        if has { node.gpus.to_string() } else { "-".to_owned() },
        amount(node.gpu_use.allocated_milli),
        amount(node.gpu_use.free_milli + node.gpu_use.cordoned_milli),
        if has { free_by_numa(node) } else { "-".to_owned() },
        amount(node.gpu_use.stranded_milli),
        node.age_seconds.map_or_else(|| "<unknown>".to_owned(), age),
    ]
}

/// Without the vendor.
fn product(product: &str) -> &str {
    product.strip_prefix("NVIDIA-").unwrap_or(product)
}

/// `2+2`, of slices `1g.10gb 3+0`; with a question mark where it is unknown or doubted.
fn free_by_numa(node: &NodeReport) -> String {
    let mut all = Vec::new();
    for room in node.devices.iter().filter(|room| room.is_gpu) {
        let parts: Vec<String> = room.free.iter().map(|here| here.free.to_string()).collect();
        let name = room.resource.strip_prefix("nvidia.com/").unwrap_or(&room.resource);
        let name = name.strip_prefix("mig-").unwrap_or(name);
        all.push(match name {
            "gpu" => parts.join("+"),
            name => format!("{name} {}", parts.join("+")),
        });
    }
    match (node.inside, all.is_empty()) {
        (Insight::Unknown, _) | (_, true) => "?".to_owned(),
        (Insight::Doubted, _) => format!("{}?", all.join(", ")),
        _ => all.join(", "),
    }
}

/// A paragraph per node: its inside, and which pod holds what.
pub fn pictures(nodes: &Nodes, style: Style) -> String {
    let mut text = String::new();
    for node in &nodes.nodes {
        gap(&mut text);
        picture(node, style, &mut text);
    }
    text
}

/// The notes, for standard error.
pub fn remarks(all: &[String], style: Style) -> String {
    let mut text = String::new();
    notes(all, style, &mut text);
    text
}

fn picture(node: &NodeReport, style: Style, text: &mut String) {
    let paint = style.paint;
    let mut head = vec![status(node)];
    if !node.pool.is_empty() {
        head.push(format!("pool {}", node.pool));
    }
    if !node.zone.is_empty() {
        head.push(format!("zone {}", node.zone));
    }
    if node.gpus > 0 {
        let memory = node.gpu_memory_bytes >> 30;
        head.push(format!("{} × {} {memory} GiB", node.gpus, product(&node.product)));
    }
    let _ = writeln!(text, "{}  {}", paint.heading(&node.name), head.join(", "));
    if let Some(one) = &node.policies {
        let scope = if one.scope == "container" { "" } else { " by pod" };
        let (topology, cpu, memory) = (&one.topology, &one.cpu, &one.memory);
        let kubelet = format!("{} {}", "kubelet", node.kubelet_version);
        let kubelet = kubelet.trim_end();
        let words = format!("topology {topology}{scope}, CPUs {cpu}, memory {memory}");
        let _ = writeln!(text, "{kubelet}: {words}");
    }
    if node.gpus > 0 {
        let one = &node.gpu_use;
        let (used, stranded) = (milli(one.allocated_milli), milli(one.stranded_milli));
        let free = match one.cordoned_milli {
            0 => format!("{} free", milli(one.free_milli)),
            cordoned => format!("{} free but cordoned", milli(cordoned)),
        };
        let _ = writeln!(text, "GPUs: {used} used, {free}, {stranded} stranded");
    }
    for socket in &node.sockets {
        let _ = writeln!(text, "{}", paint.heading(&format!("socket {}", socket.id)));
        socket.numa.iter().for_each(|numa| numa_lines(numa, paint, text));
    }
    if !node.elsewhere.is_empty() && node.inside == Insight::Unknown {
        let _ = writeln!(text, "GPUs, holders unknown:");
        let count = node.elsewhere.len();
        let _ = writeln!(text, "    GPU {}", numbers(0..count));
    } else if !node.elsewhere.is_empty() {
        let _ = writeln!(text, "GPUs without a single NUMA node");
        gpu_lines(&node.elsewhere, paint, text);
    }
    for room in node.devices.iter().filter(|room| !room.is_gpu) {
        let free: usize = room.free.iter().map(|here| here.free).sum();
        let _ = writeln!(text, "{}: {free} free of {}", room.resource, room.all);
    }
    residents(node, style, text);
    certainty(node, style, text);
}

/// Marks a list of CPUs or GPUs that nothing but inference tells.
fn marked(list: String, is_inferred: bool) -> String {
    if is_inferred && list != "-" { format!("{INFERRED}{list}") } else { list }
}

fn numa_lines(numa: &NumaReport, paint: Paint, text: &mut String) {
    let mut facts = Vec::new();
    if !numa.cpus.is_empty() {
        let all = numa.cpus.len();
        facts.push(match numa.cpus_free {
            None => format!("{all} CPUs, none pinned"),
            Some(free) => {
                let reserved = match numa.cpus_reserved {
                    0 => String::new(),
                    count => format!(", {count} reserved"),
                };
                format!("{free} of {all} CPUs free{reserved}")
            }
        });
    }
    let gib = |bytes: u64| bytes >> 30;
    facts.push(match numa.memory_free_bytes {
        None => format!("memory {} GiB, none pinned", gib(numa.memory_bytes)),
        Some(free) => format!("memory {} of {} GiB free", gib(free), gib(numa.memory_bytes)),
    });
    let _ = writeln!(text, "  NUMA node {}: {}", numa.id, facts.join("; "));
    for holder in &numa.cpu_holders {
        let is_inferred = holder.evidence != Evidence::Kubelet;
        let cpus = marked(numbers(holder.cpus.iter().copied()), is_inferred);
        let lead = format!("    CPUs {cpus}  ");
        let _ = writeln!(text, "{lead}{}", pod_name(&holder.pod));
    }
    gpu_lines(&numa.gpus, paint, text);
}

/// Adjacent GPUs that are alike share a line.
fn gpu_lines(gpus: &[GpuReport], paint: Paint, text: &mut String) {
    let mut runs: Vec<(Vec<usize>, Vec<String>)> = Vec::new();
    for gpu in gpus {
        let lines = gpu_body(gpu, paint);
        match runs.last_mut() {
            Some((numbers, known)) if *known == lines => numbers.push(gpu.gpu),
            _ => runs.push((vec![gpu.gpu], lines)),
        }
    }
    for (all, lines) in runs {
        let _ = write!(text, "    GPU {}", numbers(all.into_iter()));
        match lines.as_slice() {
            [one] => {
                let _ = writeln!(text, "  {one}");
            }
            slices => {
                text.push('\n');
                slices.iter().filter(|slice| !slice.is_empty()).for_each(|slice| {
                    let _ = writeln!(text, "      {slice}");
                });
            }
        }
    }
}

/// One line, or one for each slice; adjacent slices that are alike share a line.
fn gpu_body(gpu: &GpuReport, paint: Paint) -> Vec<String> {
    if !gpu.is_healthy {
        return vec![paint.with("31", "not healthy")];
    }
    if !gpu.shares.is_empty() {
        return vec![format!("shared by {}", some_pods(&gpu.shares))];
    }
    match gpu.parts.as_slice() {
        [] => vec!["offers nothing".to_owned()],
        [whole] if whole.slice.is_none() => vec![holders(whole, paint)],
        slices => {
            let mut runs: Vec<(&str, Vec<usize>, String)> = Vec::new();
            for slice in slices {
                let name = slice.slice.as_deref().unwrap_or("whole@0");
                let (profile, start) = name.split_once('@').unwrap_or((name, "0"));
                let (start, held) = (start.parse().unwrap_or(0), holders(slice, paint));
                match runs.last_mut() {
                    Some((known, starts, by)) if *known == profile && *by == held => {
                        starts.push(start);
                    }
                    _ => runs.push((profile, vec![start], held)),
                }
            }
            let line = |(profile, starts, held): (&str, Vec<usize>, String)| {
                let name = format!("{profile}@{}", numbers(starts.into_iter()));
                format!("{name:<14}  {held}")
            };
            let mut lines: Vec<String> = runs.into_iter().map(line).collect();
            // A single line would be printed beside the GPU's number, as for a whole GPU.
            lines.insert(0, String::new());
            lines
        }
    }
}

fn holders(part: &PartReport, paint: Paint) -> String {
    let shared = match part.replicas {
        0 | 1 => String::new(),
        count => format!(" (shared among {count})"),
    };
    let held = match (part.held_by.as_slice(), part.perhaps_by.as_slice()) {
        ([], []) => paint.with("32", "free"),
        ([], perhaps) => format!("perhaps {}", some_pods(perhaps)),
        (held, []) => some_pods(held),
        (held, perhaps) => format!("{}, perhaps {}", some_pods(held), some_pods(perhaps)),
    };
    format!("{held}{shared}")
}

fn some_pods(pods: &[PodRef]) -> String {
    let names: Vec<String> = pods.iter().take(NAMED_MAX).map(pod_name).collect();
    match pods.len() - names.len() {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

fn residents(node: &NodeReport, style: Style, text: &mut String) {
    if !node.pods.is_empty() {
        let head = ["POD", "NUMA", "CPUS", "GPU", "ALIGNMENT", "EVIDENCE"];
        let rows = node.pods.iter().map(|one| {
            let is_inferred = one.place.evidence == Evidence::Inferred;
            let held = match gpus(&one.place).as_str() {
                "-" => one.gpus.clone(),
                held => marked(held.to_owned(), is_inferred && !one.place.devices.is_empty()),
            };
            let numa = numbers(one.place.numa.iter().map(|id| *id as usize));
            let evidence = match node.inside {
                Insight::Unknown => "-",
                _ => one.place.evidence.as_str(),
            };
            vec![
                pod_name(&one.place.pod),
                marked(numa, is_inferred),
                if one.place.cpus > 0 { one.place.cpus.to_string() } else { "-".to_owned() },
                held,
                alignment(&one.place).to_owned(),
                evidence.to_owned(),
            ]
        });
        *text += &Table::new(&head, rows).render(style);
    }
    match node.other_pods {
        0 => {}
        1 => *text += "1 other pod without GPUs or exclusive CPUs\n",
        count => {
            let _ = writeln!(text, "{count} other pods without GPUs or exclusive CPUs");
        }
    }
}

fn certainty(node: &NodeReport, style: Style, text: &mut String) {
    let mut note = |words: &str| prose(text, "note: ", words, style);
    let holders =
        node.sockets.iter().flat_map(|socket| &socket.numa).flat_map(|numa| &numa.cpu_holders);
    let mut evidence =
        holders.map(|holder| holder.evidence).chain(node.pods.iter().map(|one| one.place.evidence));
    match node.inside {
        Insight::Unknown => note(
            "the topology is unknown: run the node agent, export a NodeResourceTopology, or set the label \
             berth.dev/numa-nodes",
        ),
        Insight::Doubted => note(
            "a pod runs here that the kubelet, as the node describes it, would have rejected: which pod \
             holds what is a guess",
        ),
        Insight::Drawn => note(
            "the kubelet chose at random between devices: this is one of several possible outcomes",
        ),
        Insight::Known => {}
    }
    if node.inside != Insight::Unknown && evidence.any(|one| one != Evidence::Kubelet) {
        note(&format!(
            "{INFERRED} inferred from the kubelet's rules and the order in which pods started"
        ));
    }
    notes(&node.doubts, style, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_written_as_kubectl_writes_them() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (135, "2m15s"),
            (600, "10m"),
            (10_800, "3h"),
            (11_100, "3h5m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (-5, "0s"),
        ] {
            assert_eq!(age(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn annotations_are_shown_on_one_line() {
        let value = serde_json::json!({"numa": [0, 1], "gpu": "3", "why": {"aligned": true}});
        assert_eq!(on_one_line(&value), "gpu 3; numa 0, 1; why aligned true");
        assert_eq!(on_one_line(&Value::String("plain".to_owned())), "plain");
    }
}

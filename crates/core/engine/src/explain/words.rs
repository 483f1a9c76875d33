//! Words for names, amounts, conditions and lists, each of bounded length.

use std::sync::Arc;

use berth_model::gpu::WHOLE_GPU;
use berth_model::label::{Operator, Requirement, Selector};
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceName;
use berth_model::spec::{GpuNeed, HostPort, Protocol};
use berth_model::taint::Taint;

use super::data::{Part, PartKind, PodName};

/// Longer names are cut in the middle, because both ends distinguish them.
const NAME_MAX: usize = 48;

const QUOTE_MAX: usize = 160;

const LISTED_MAX: usize = 3;

const PARTS_MAX: usize = 8;

pub(super) fn name(text: &str) -> String {
    let count = text.chars().count();
    if count <= NAME_MAX {
        return text.to_owned();
    }
    let end = NAME_MAX / 3;
    let head = text.chars().take(NAME_MAX - end - 1);
    head.chain(std::iter::once('…')).chain(text.chars().skip(count - end)).collect()
}

pub(super) fn quote(text: &str) -> String {
    let text = text.trim_end_matches('.');
    if text.chars().count() <= QUOTE_MAX {
        return text.to_owned();
    }
    text.chars().take(QUOTE_MAX - 1).chain(std::iter::once('…')).collect()
}

pub(super) fn pod(pod: &PodName) -> String {
    if pod.is_withheld() {
        return "a pod in another namespace".to_owned();
    }
    format!("{}/{}", name(&pod.namespace), name(&pod.name))
}

/// "a/x (priority 3), a/y (priority 3) and 4 pods in other namespaces".
pub(super) fn pods(all: &[PodName]) -> String {
    let named = all.iter().take_while(|pod| !pod.is_withheld()).count();
    let (named, withheld) = all.split_at(named);
    let count = match withheld.len() {
        1 => "1 pod in another namespace".to_owned(),
        count => format!("{count} pods in other namespaces"),
    };
    match (named, withheld.is_empty()) {
        (named, true) => list(named, pod_with_priority),
        ([], false) => count,
        (named, false) => format!("{} and {count}", list(named, pod_with_priority)),
    }
}

fn pod_with_priority(one: &PodName) -> String {
    format!("{} (priority {})", pod(one), one.priority)
}

/// "a, b and c", or "a, b, c and 4 more".
pub(super) fn list<T>(all: &[T], word: impl Fn(&T) -> String) -> String {
    let mut words: Vec<String> = all.iter().take(LISTED_MAX).map(word).collect();
    let rest = all.len() - words.len();
    let last = if rest > 0 { Some(format!("{rest} more")) } else { words.pop() };
    match (words.is_empty(), last) {
        (_, None) => String::new(),
        (true, Some(last)) => last,
        (false, Some(last)) => format!("{} and {last}", words.join(", ")),
    }
}

/// "1 pod", "2 pods".
pub(super) fn count(number: usize, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// "45s", "10m", "1h30m", "7d".
pub(super) fn span(span_ms: i64) -> String {
    let seconds = span_ms.max(0) / 1_000;
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let mut left = seconds;
    let mut parts = Vec::new();
    for (size, unit) in units {
        if left >= size {
            parts.push(format!("{}{unit}", left / size));
            left %= size;
        }
    }
    parts.truncate(2);
    if parts.is_empty() { "0s".to_owned() } else { parts.concat() }
}

/// "4 GPUs", "500m CPU", "64Gi memory", "2 nvidia.com/mig-1g.10gb".
pub(super) fn amount(resource: &ResourceName, amount: Quantity) -> String {
    let whole = amount.as_i64();
    match (resource.as_str(), whole) {
        (WHOLE_GPU, Some(1)) => "1 GPU".to_owned(),
        (WHOLE_GPU, _) => format!("{amount} GPUs"),
        ("cpu", Some(number)) if number != 1 => format!("{amount} CPUs"),
        ("cpu", _) => format!("{amount} CPU"),
        (other, _) => format!("{amount} {}", name(other)),
    }
}

/// "GPUs", "nvidia.com/mig-1g.10gb".
pub(super) fn devices(resource: &ResourceName) -> String {
    if resource.as_str() == WHOLE_GPU { "GPUs".to_owned() } else { name(resource.as_str()) }
}

/// "2+2"; "4+4+4+…" where there are many.
pub(super) fn sum(parts: &[u64]) -> String {
    let mut words: Vec<String> = parts.iter().take(PARTS_MAX).map(u64::to_string).collect();
    if parts.len() > PARTS_MAX {
        words.push("…".to_owned());
    }
    words.join("+")
}

pub(super) fn part_kind(kind: PartKind) -> &'static str {
    match kind {
        PartKind::Socket => "socket",
        PartKind::NumaNode => "NUMA node",
    }
}

/// "socket 1", "NUMA nodes 0, 1 and 2".
pub(super) fn part(part: &Part) -> String {
    let kind = part_kind(part.kind);
    let plural = if part.ids.len() == 1 { "" } else { "s" };
    format!("{kind}{plural} {}", list(&part.ids, u32::to_string))
}

pub(super) fn taint(taint: &Taint) -> String {
    label(&taint.key, &taint.value)
}

/// "pool=h100"; the key alone if the value is empty.
pub(super) fn label(key: &str, value: &str) -> String {
    if value.is_empty() { name(key) } else { format!("{}={}", name(key), name(value)) }
}

pub(super) fn requirement(one: &Requirement) -> String {
    let key = name(&one.key);
    let among = |values: &[Arc<str>]| list(values, |value| name(value));
    match &one.operator {
        Operator::In(values) => match values.as_slice() {
            [value] => label(&one.key, value),
            values => format!("{key} in ({})", among(values)),
        },
        Operator::NotIn(values) => format!("{key} not in ({})", among(values)),
        Operator::Exists => format!("label {key}"),
        Operator::DoesNotExist => format!("no label {key}"),
        Operator::Gt(bound) => format!("{key} > {bound}"),
        Operator::Lt(bound) => format!("{key} < {bound}"),
        Operator::Never => format!("a condition on {key} that nothing satisfies"),
    }
}

/// Names the pods that a selector selects.
pub(super) fn selector(selector: Option<&Selector>) -> String {
    match selector {
        None => "matching nothing".to_owned(),
        Some(selector) if selector.is_empty() => "with any labels".to_owned(),
        Some(selector) => format!("with {}", list(&selector.0, requirement)),
    }
}

pub(super) fn port(port: &HostPort) -> String {
    let protocol = match port.protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    };
    let ip = port.ip.as_ref().map_or(String::new(), |ip| format!("{}:", name(ip)));
    format!("host port {ip}{}/{protocol}", port.port)
}

/// "16Gi and 30%", of a GPU.
pub(super) fn need(need: &GpuNeed) -> String {
    let memory = (need.memory_bytes > 0).then(|| bytes(need.memory_bytes));
    let compute = (need.compute_milli > 0).then(|| share(need.compute_milli));
    match (memory, compute) {
        (Some(memory), Some(compute)) => format!("{memory} and {compute}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "any part".to_owned(),
    }
}

/// In whole MiB from 1 MiB on.
pub(super) fn bytes(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    let rounded = if bytes < MIB { bytes } else { bytes / MIB * MIB };
    Quantity::from_bytes(i64::try_from(rounded).unwrap_or(i64::MAX)).to_string()
}

/// "30%", "12.5%".
pub(super) fn share(milli: u16) -> String {
    let (whole, rest) = (milli / 10, milli % 10);
    if rest == 0 { format!("{whole}%") } else { format!("{whole}.{rest}%") }
}

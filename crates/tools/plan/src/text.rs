//! How things are written for people: prose, numbers, which words are painted.
//!
//! Owns the forms that all tables of this crate share. Must not find anything out.

use berth_model::alignment::Alignment;
use std::collections::BTreeMap;

pub use berth_text::Paint;

use crate::report::{DeviceName, Given, Placed, PodRef};

/// Where lines of prose end.
const WIDTH: usize = 100;

/// So many things are named where many are meant.
pub(crate) const NAMED_MAX: usize = 3;

/// Rows of cells as columns, painted: the first row is their head.
pub(crate) fn columns(rows: &[Vec<String>], paint: Paint) -> String {
    let plain = berth_text::columns(rows);
    let painted = plain.lines().enumerate().map(|(number, line)| {
        let line = if number == 0 { paint.heading(line) } else { coloured(line, paint) };
        format!("{line}\n")
    });
    painted.collect()
}

fn coloured(line: &str, paint: Paint) -> String {
    let marks = [("misaligned", "33"), ("<none>", "31")];
    let mut line = line.to_owned();
    for (word, code) in marks {
        line = line.replace(word, &paint.with(code, word));
    }
    line
}

pub(crate) fn pod_name(pod: &PodRef) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// Alignment is a property of GPU pods: others have a dash unless something of theirs is pinned.
pub(crate) fn alignment(placed: &Placed) -> &'static str {
    let has_devices =
        !placed.devices.is_empty() || placed.share.is_some() || !placed.claimed.is_empty();
    match placed.alignment {
        Alignment::Floating if !has_devices => "-",
        known => known.as_str(),
    }
}

/// `0-3,6`; a dash for none.
pub(crate) fn numbers(all: impl Iterator<Item = usize>) -> String {
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

pub(crate) fn gpus(placed: &Placed) -> String {
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

pub(crate) fn given(given: &Given) -> String {
    let certain = devices(&given.certain);
    let drawn = given.count - given.certain.len().min(given.count);
    match (certain.is_empty(), drawn) {
        (_, 0) => certain,
        (true, _) => format!("{drawn} of {}", devices(&given.one_of)),
        (false, _) => format!("{certain} + {drawn} of {}", devices(&given.one_of)),
    }
}

/// `0-3`; slices as `0/1g.10gb@0-6`.
pub(crate) fn devices(names: &[DeviceName]) -> String {
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

/// Words behind a lead, broken at the width; further lines hang below the first.
pub(crate) fn prose(text: &mut String, lead: &str, words: &str) {
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

pub(crate) fn gap(text: &mut String) {
    if !text.is_empty() {
        text.push('\n');
    }
}

/// Thousandths as a decimal number.
pub(crate) fn milli(amount: u64) -> String {
    let (whole, rest) = (amount / 1000, amount % 1000);
    let rest = format!("{rest:03}");
    match rest.trim_end_matches('0') {
        "" => whole.to_string(),
        rest => format!("{whole}.{rest}"),
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

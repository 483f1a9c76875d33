//! How tables and prose are written: columns, ranges of numbers, line width.

use std::collections::BTreeMap;

use berth_model::alignment::Alignment;
pub use berth_text::Paint;

use crate::PodRef;
use crate::place::{AllocatedDevices, DeviceName, Placed};

/// Longest line of prose on a wide terminal, or where there is none.
const PROSE_WIDTH: usize = 100;

/// Where a list is only meant to give an impression.
pub const NAMED_MAX: usize = 3;

/// To this many characters a column of prose shrinks before other columns are omitted.
const PROSE_COLUMN_MIN: usize = 20;

/// How text is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    pub paint: Paint,
    /// Of the terminal, in characters; `None`: lines may be as long as they need.
    pub width: Option<usize>,
}

impl Style {
    pub const PLAIN: Self = Self { paint: Paint::Plain, width: None };

    fn prose_width(self) -> usize {
        self.width.map_or(PROSE_WIDTH, |width| width.clamp(PROSE_COLUMN_MIN, PROSE_WIDTH))
    }
}

/// A table. The first row is the header.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub rows: Vec<Vec<String>>,
    /// Columns, by header, that are omitted if lines do not fit otherwise, the first one first.
    pub optional: &'static [&'static str],
    /// Whether the last column is prose, which is cut to fit.
    pub ends_in_prose: bool,
    pub no_headers: bool,
}

impl Table {
    pub fn new(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        let head = head.iter().map(|one| (*one).to_owned()).collect();
        Self { rows: std::iter::once(head).chain(rows).collect(), ..Self::default() }
    }

    pub fn render(mut self, style: Style) -> String {
        if let Some(width) = style.width {
            self.fit(width);
        }
        if self.no_headers
            && let Some(head) = self.rows.first_mut()
        {
            head.clear();
        }
        let plain = berth_text::columns(&self.rows);
        let painted = plain.lines().enumerate().map(|(number, line)| {
            let line =
                if number == 0 { style.paint.heading(line) } else { coloured(line, style.paint) };
            format!("{line}\n")
        });
        painted.skip(usize::from(self.no_headers)).collect()
    }

    fn fit(&mut self, width: usize) {
        for column in self.optional {
            if self.excess(width) <= self.slack() {
                break;
            }
            self.omit(column);
        }
        let excess = self.excess(width).min(self.slack());
        if excess > 0 {
            let longest = self.longest_last() - excess;
            self.rows.iter_mut().filter_map(|row| row.last_mut()).for_each(|cell| {
                *cell = shortened(cell, longest);
            });
        }
    }

    /// By how many characters lines are too long.
    fn excess(&self, width: usize) -> usize {
        let lines = berth_text::columns(&self.rows);
        let longest = lines.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        longest.saturating_sub(width)
    }

    /// How many characters the last column can lose.
    fn slack(&self) -> usize {
        if !self.ends_in_prose {
            return 0;
        }
        self.longest_last().saturating_sub(PROSE_COLUMN_MIN)
    }

    fn longest_last(&self) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.last());
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    fn omit(&mut self, column: &str) {
        let at = self.rows.first().and_then(|head| head.iter().position(|one| one == column));
        let Some(at) = at else { return };
        for row in self.rows.iter_mut().filter(|row| at < row.len()) {
            row.remove(at);
        }
    }
}

/// The text, cut to at most this many characters.
pub fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let cut: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", cut.trim_end())
}

fn coloured(line: &str, paint: Paint) -> String {
    let marks = [("misaligned", "33"), ("<none>", "31")];
    let mut line = line.to_owned();
    for (word, code) in marks {
        line = line.replace(word, &paint.with(code, word));
    }
    line
}

pub fn pod_name(pod: &PodRef) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// Alignment is a property of GPU pods: others have a dash unless something of theirs is pinned.
pub fn alignment(placed: &Placed) -> &'static str {
    let has_devices =
        !placed.devices.is_empty() || placed.share.is_some() || !placed.claimed.is_empty();
    match placed.alignment {
        Alignment::Floating if !has_devices => "-",
        known => known.as_str(),
    }
}

/// `0-3,6`; a dash for none.
pub fn numbers(all: impl Iterator<Item = usize>) -> String {
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

pub fn gpus(placed: &Placed) -> String {
    let mut all: Vec<String> = placed.devices.iter().map(allocated).collect();
    if let Some(share) = &placed.share {
        all.push(format!("{}% of {}", placed.gpu_milli.div_ceil(10), share.gpu));
    }
    all.extend(placed.claimed.iter().cloned());
    if all.is_empty() && placed.gpu_milli > 0 {
        // The node's topology is unknown.
        return format!("{} of any", milli(placed.gpu_milli));
    }
    if all.is_empty() { "-".to_owned() } else { all.join(" + ") }
}

pub fn allocated(all: &AllocatedDevices) -> String {
    let certain = devices(&all.certain);
    let drawn = all.count - all.certain.len().min(all.count);
    match (certain.is_empty(), drawn) {
        (_, 0) => certain,
        (true, _) => format!("{drawn} of {}", devices(&all.one_of)),
        (false, _) => format!("{certain} + {drawn} of {}", devices(&all.one_of)),
    }
}

/// `0-3`; slices as `0/1g.10gb@0-6`.
pub fn devices(names: &[DeviceName]) -> String {
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

/// Words behind a lead, wrapped; further lines are indented by the width of the lead.
pub fn prose(text: &mut String, lead: &str, words: &str, style: Style) {
    let indent = lead.chars().count();
    let mut line = lead.to_owned();
    let mut width = indent;
    let mut is_first = true;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if !is_first && width + 1 + length > style.prose_width() {
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

pub fn gap(text: &mut String) {
    if !text.is_empty() {
        text.push('\n');
    }
}

/// Thousandths as a decimal number.
pub fn milli(amount: u64) -> String {
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
    fn uncertain_devices_are_shown_as_such() {
        let gpu = |gpu| DeviceName { gpu: Some(gpu), slice: None, id: format!("gpu-{gpu}") };
        let mut some = AllocatedDevices {
            resource: "nvidia.com/gpu".to_owned(),
            count: 2,
            certain: Vec::new(),
            one_of: (0..4).map(gpu).collect(),
        };
        assert_eq!(allocated(&some), "2 of 0-3");
        some.certain = vec![gpu(5)];
        assert_eq!(allocated(&some), "5 + 1 of 0-3");
        some.certain = vec![gpu(5), gpu(6)];
        assert_eq!(allocated(&some), "5-6");
        let slice = |gpu, slice: &str| DeviceName {
            gpu: Some(gpu),
            slice: Some(slice.to_owned()),
            id: String::new(),
        };
        let slices = ["1g.10gb@0", "1g.10gb@1", "1g.10gb@2", "3g.40gb@4"].map(|one| slice(0, one));
        assert_eq!(devices(&slices), "0/1g.10gb@0-2 0/3g.40gb@4");
    }

    #[test]
    fn prose_is_wrapped_and_indented() {
        let mut text = String::new();
        prose(&mut text, "  would fit: ", &"word ".repeat(40), Style::PLAIN);
        assert!(text.lines().all(|line| line.chars().count() <= PROSE_WIDTH));
        assert!(text.lines().skip(1).all(|line| line.starts_with("             word")));
    }

    fn example() -> Table {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let rows = [
            row(&["train-0", "research", "3d", "0 of 6 nodes fit: none has 8 free GPUs"]),
            row(&["chat", "serving", "5m", "fits"]),
        ];
        Table {
            optional: &["AGE", "TEAM"],
            ends_in_prose: true,
            ..Table::new(&["NAME", "TEAM", "AGE", "REASON"], rows)
        }
    }

    #[test]
    fn tables_fit_the_terminal() {
        let width = |table: &str| table.lines().map(|line| line.chars().count()).max().unwrap();
        let shown = |width| example().render(Style { paint: Paint::Plain, width });
        assert_eq!(width(&shown(None)), 62);
        for most in [62, 60, 50, 45, 41, 35, 29] {
            assert!(width(&shown(Some(most))) <= most, "{most}: {}", shown(Some(most)));
        }
        // Prose is cut first, then columns are omitted.
        assert!(shown(Some(50)).contains("AGE") && shown(Some(50)).contains('…'));
        assert!(!shown(Some(41)).contains("AGE") && shown(Some(41)).contains("TEAM"));
        assert!(!shown(Some(29)).contains("TEAM"));
    }

    #[test]
    fn prose_fits_the_terminal() {
        let mut text = String::new();
        let style = Style { paint: Paint::Plain, width: Some(40) };
        prose(&mut text, "note: ", &"word ".repeat(40), style);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    }
}

//! A report as text for the terminal: the setups side by side, the goals, then each setup.

use std::fmt::Write as _;

use crate::report::{ClassReport, Report, Run, ServiceReport};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Microseconds.
    Latency,
    /// Milliseconds.
    Time,
    Count,
    /// A number of GPUs, perhaps infinite.
    Needed,
    /// From 0 to 1.
    Share,
    Hours,
    /// Micro-dollars, in whole dollars.
    Money,
    /// Micro-dollars, in cents.
    Price,
}

struct Row {
    name: &'static str,
    unit: Unit,
    read: fn(&Run) -> f64,
    shown: Shown,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Always,
    /// If there are requests.
    Serving,
    /// If a value is not zero.
    NotZero,
}

const fn row(name: &'static str, unit: Unit, shown: Shown, read: fn(&Run) -> f64) -> Row {
    Row { name, unit, read, shown }
}

const ROWS: [Row; 26] = [
    row("p50 latency", Unit::Latency, Shown::Serving, |run| run.summary.p50_us as f64),
    row("p99 latency", Unit::Latency, Shown::Serving, |run| run.summary.p99_us as f64),
    row("objective breaches", Unit::Count, Shown::Serving, |run| run.summary.breaches as f64),
    row("service time in breach", Unit::Time, Shown::Serving, |run| run.summary.above_ms as f64),
    row("requests served", Unit::Count, Shown::Serving, |run| run.summary.requests as f64),
    row("requests lost", Unit::Count, Shown::Serving, |run| run.summary.requests_lost as f64),
    row("GPUs allocated", Unit::Share, Shown::Always, |run| run.summary.allocated),
    row("GPUs busy", Unit::Share, Shown::Always, |run| run.summary.utilised),
    row("stranded GPUs", Unit::Share, Shown::Always, |run| run.summary.fragmented),
    row("GPU pods aligned", Unit::Share, Shown::Always, |run| run.summary.aligned),
    row("batch GPU hours", Unit::Hours, Shown::Always, |run| run.summary.batch_gpu_hours),
    row("batch GPU hours lost", Unit::Hours, Shown::NotZero, |run| run.summary.wasted_gpu_hours),
    row("batch wait p50", Unit::Time, Shown::NotZero, |run| batch(run).wait_p50_ms as f64),
    row("batch wait p90", Unit::Time, Shown::NotZero, |run| batch(run).wait_p90_ms as f64),
    row("batch wait p99", Unit::Time, Shown::NotZero, |run| batch(run).wait_p99_ms as f64),
    row("jobs done", Unit::Count, Shown::Always, |run| run.summary.jobs as f64),
    row("pods started", Unit::Count, Shown::Always, |run| run.summary.started as f64),
    row("pods pending at the end", Unit::Count, Shown::NotZero, |run| run.summary.waiting as f64),
    row("kubelet rejections", Unit::Count, Shown::Always, |run| run.summary.rejections as f64),
    row("preemptions", Unit::Count, Shown::NotZero, |run| run.summary.preemptions as f64),
    row("replicas moved", Unit::Count, Shown::NotZero, |run| run.summary.moves as f64),
    row("out of GPU memory", Unit::Count, Shown::NotZero, |run| run.summary.out_of_memory as f64),
    row("cost", Unit::Money, Shown::Always, |run| run.summary.cost_microusd as f64),
    row("free GPU cost", Unit::Money, Shown::Always, |run| run.summary.idle_microusd as f64),
    row("cost per busy GPU hour", Unit::Price, Shown::NotZero, |run| {
        run.summary.microusd_per_busy_gpu_hour as f64
    }),
    row("GPUs for the same work", Unit::Needed, Shown::NotZero, |run| {
        needed_gpus(run).unwrap_or(0.0)
    }),
];

/// Infinite if the whole cluster is not sufficient; `None` if nothing was searched.
fn needed_gpus(run: &Run) -> Option<f64> {
    run.fewest.as_ref().map(|fewest| fewest.gpus.map_or(f64::INFINITY, |gpus| gpus as f64))
}

fn batch(run: &Run) -> ClassReport {
    run.classes.iter().find(|class| class.class == "batch").cloned().unwrap_or_default()
}

impl Unit {
    fn write(self, value: f64) -> String {
        match self {
            Self::Latency => ms(value as u64),
            Self::Time => time(value as i64),
            Self::Needed if value.is_infinite() => "more".to_owned(),
            Self::Count | Self::Needed => count(value.round() as u64),
            Self::Share => percent(value),
            Self::Hours => format!("{value:.0}"),
            Self::Money => dollars(value as i64),
            Self::Price => format!("${:.2}", value / 1e6),
        }
    }
}

fn ms(us: u64) -> String {
    match us {
        0 => "–".to_owned(),
        us if us < 100_000 => format!("{:.1} ms", us as f64 / 1000.0),
        us => format!("{:.2} s", us as f64 / 1e6),
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// With thousands separators.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn several(number: usize, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {what}{ending}", count(number as u64))
}

fn dollars(microusd: i64) -> String {
    format!("${}", count((microusd.max(0) as u64 + 500_000) / 1_000_000))
}

fn time(ms: i64) -> String {
    match ms {
        ms if ms >= 172_800_000 => format!("{:.1} d", ms as f64 / 86_400_000.0),
        ms if ms >= 7_200_000 => format!("{:.1} h", ms as f64 / 3_600_000.0),
        ms if ms >= 120_000 => format!("{:.1} min", ms as f64 / 60_000.0),
        ms => format!("{:.1} s", ms as f64 / 1000.0),
    }
}

/// The first column is aligned left, the others right.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            line.push_str(&if at == 0 { format!("{cell}{pad}") } else { format!("  {pad}{cell}") });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

pub fn render(report: &Report) -> String {
    let mut rows = vec![headings(report)];
    for row in rows_of(std::slice::from_ref(report)) {
        let cells = report.runs.iter().map(|run| row.unit.write((row.read)(run)));
        rows.push(std::iter::once(row.name.to_owned()).chain(cells).collect());
    }
    let mut text = format!("{}, seed {}\n\n{}", about(report), report.seed, table(&rows));
    text.push_str(&goals_table(std::slice::from_ref(report)));
    for run in &report.runs {
        text.push_str(&of_run(report, run));
    }
    text
}

/// Reports of one experiment with several seeds: the median and the range of each figure, and how
/// the last setup compares with the one before it.
pub fn render_seeds(reports: &[Report]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let pair = first.runs.len().checked_sub(2);
    let mut head = headings(first);
    head.extend(pair.map(|at| format!("{} vs {}", first.runs[at + 1].name, first.runs[at].name)));
    let mut rows = vec![head];
    for row in rows_of(reports) {
        let of_setup = |setup: usize| -> Vec<f64> {
            reports.iter().filter_map(|one| one.runs.get(setup)).map(row.read).collect()
        };
        let mut cells = vec![row.name.to_owned()];
        cells.extend((0..first.runs.len()).map(|setup| with_range(row.unit, of_setup(setup))));
        cells.extend(pair.map(|at| compared(row.unit, &of_setup(at), &of_setup(at + 1))));
        rows.push(cells);
    }
    let seeds: Vec<String> = reports.iter().map(|one| one.seed.to_string()).collect();
    format!(
        "{}, seeds {}\n\n{}{}\nMedian (lowest–highest) over {} seeds. The last column is the median \
         difference seed by seed;\n\"within noise\": a sign test does not tell the two apart \
         (p > 0.05).\n",
        about(first),
        seeds.join(", "),
        table(&rows),
        goals_table(reports),
        reports.len()
    )
}

/// What the goals demand, and what each setup reaches; of several reports the median.
fn goals_table(reports: &[Report]) -> String {
    let Some((first, goals)) = reports.first().and_then(|one| Some((one, one.goals.as_ref()?)))
    else {
        return String::new();
    };
    let of_reports = |setup: usize, read: &dyn Fn(&Run, &Run) -> f64| {
        let pair = |one: &Report| Some(read(one.runs.get(setup)?, one.runs.get(goals.against)?));
        let mut values: Vec<f64> = reports.iter().filter_map(pair).collect();
        values.sort_by(f64::total_cmp);
        median(&values)
    };
    let setups: Vec<usize> = (0..first.runs.len()).filter(|at| *at != goals.against).collect();
    let name = |setup: usize| first.runs.get(setup).map_or("", |run| run.name.as_str());
    let mut rows = vec![vec![format!("compared with {}", name(goals.against)), "goal".to_owned()]];
    rows[0].extend(setups.iter().map(|setup| name(*setup).to_owned()));
    let mut add = |title: &str, goal: String, cell: &dyn Fn(usize) -> String| {
        let cells = setups.iter().map(|setup| cell(*setup));
        rows.push([title.to_owned(), goal].into_iter().chain(cells).collect());
    };
    if let Some(reduction) = goals.p99_reduction {
        add("p99 latency", change(-reduction), &|setup| {
            change(of_reports(setup, &|run, other| {
                ratio(run.summary.p99_us as f64, other.summary.p99_us as f64)
            }))
        });
    }
    if let Some(gain) = goals.utilisation_gain {
        add("GPUs busy", change(gain), &|setup| {
            change(of_reports(setup, &|run, other| {
                ratio(run.summary.utilised, other.summary.utilised)
            }))
        });
    }
    if let Some(breaches) = goals.breaches {
        add("objective breaches", count(breaches), &|setup| {
            count(of_reports(setup, &|run, _| run.summary.breaches as f64) as u64)
        });
    }
    if goals.fewest_nodes {
        add("GPUs for the same work", String::new(), &|setup| {
            let here = of_reports(setup, &|run, _| needed_gpus(run).unwrap_or(0.0));
            let whole = of_reports(setup, &|_, other| needed_gpus(other).unwrap_or(0.0));
            if here.is_infinite() {
                return format!("more than {whole:.0}");
            }
            format!("{here:.0} of {whole:.0}")
        });
    }
    format!("\n{}", table(&rows))
}

/// The relative change from `before` to `after`.
fn ratio(after: f64, before: f64) -> f64 {
    if before == 0.0 { 0.0 } else { after / before - 1.0 }
}

fn change(part: f64) -> String {
    let sign = if part < 0.0 { '−' } else { '+' };
    format!("{sign}{:.1} %", part.abs() * 100.0)
}

fn about(report: &Report) -> String {
    let gpus: usize = report.nodes.iter().map(|node| node.gpus.len()).sum();
    format!(
        "{}: {}, {}, {}",
        report.title,
        several(report.nodes.len(), "node"),
        several(gpus, "GPU"),
        time(report.duration_ms),
    )
}

fn headings(report: &Report) -> Vec<String> {
    std::iter::once(String::new()).chain(report.runs.iter().map(|run| run.name.clone())).collect()
}

/// The rows that apply to any of the runs.
fn rows_of(reports: &[Report]) -> impl Iterator<Item = &'static Row> {
    let runs = || reports.iter().flat_map(|report| &report.runs);
    let serves = runs().any(|run| run.summary.requests > 0 || run.summary.requests_lost > 0);
    ROWS.iter().filter(move |row| match row.shown {
        Shown::Always => true,
        Shown::Serving => serves,
        Shown::NotZero => runs().any(|run| (row.read)(run) != 0.0),
    })
}

fn with_range(unit: Unit, mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let written = |value: Option<&f64>| unit.write(value.copied().unwrap_or(0.0));
    let (lowest, highest) = (written(values.first()), written(values.last()));
    if lowest == highest {
        return lowest;
    }
    format!("{} ({lowest}–{highest})", unit.write(median(&values)))
}

/// Of sorted values.
fn median(sorted: &[f64]) -> f64 {
    let at = |place: usize| sorted.get(place).copied().unwrap_or(0.0);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(at(middle.wrapping_sub(1)), at(middle))
    } else {
        at(middle)
    }
}

/// The median difference seed by seed.
fn compared(unit: Unit, before: &[f64], after: &[f64]) -> String {
    if before.iter().chain(after).any(|value| value.is_infinite()) {
        return String::new();
    }
    let mut differences: Vec<f64> = before.iter().zip(after).map(|(one, two)| two - one).collect();
    differences.sort_by(f64::total_cmp);
    let more = differences.iter().filter(|one| **one > 0.0).count();
    let less = differences.iter().filter(|one| **one < 0.0).count();
    if more + less == 0 {
        return "same".to_owned();
    }
    if !signs_differ(more, less) {
        return "within noise".to_owned();
    }
    let difference = median(&differences);
    let mut before = before.to_vec();
    before.sort_by(f64::total_cmp);
    match unit {
        Unit::Share => format!("{:+.1} points", difference * 100.0),
        _ if median(&before) == 0.0 => format!("+{}", unit.write(difference)),
        _ => format!("{:+.1} %", difference / median(&before) * 100.0),
    }
}

/// The two-sided sign test: whether so many positive and negative differences are unlikely
/// (p ≤ 0.05) when both signs are equally likely.
fn signs_differ(more: usize, less: usize) -> bool {
    let count = more + less;
    let (mut ways, mut tail) = (1.0, 0.0);
    for chosen in 0..=more.min(less) {
        tail += ways;
        ways *= (count - chosen) as f64 / (chosen + 1) as f64;
    }
    2.0 * tail / 2_f64.powi(count as i32) <= 0.05
}

fn of_run(report: &Report, run: &Run) -> String {
    let setup: Vec<String> = run.setup.iter().map(|(what, how)| format!("{what} {how}")).collect();
    let mut text = format!("\n{}: {}\n", run.name, setup.join("; "));
    let name = |workload: usize| {
        let of = report.workloads.get(workload);
        of.map_or_else(String::new, |of| format!("{}/{}", of.namespace, of.name))
    };
    let promises = |one: &&ServiceReport| one.objective_us > 0 || one.requests > 0;
    let services: Vec<&ServiceReport> = run.services.iter().filter(promises).collect();
    if !services.is_empty() {
        let mut rows = vec![
            ["service", "p50", "p99", "objective", "breaches", "replicas", "aligned"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for service in services {
            rows.push(vec![
                name(service.workload),
                ms(service.p50_us),
                ms(service.p99_us),
                ms(service.objective_us),
                count(service.breaches),
                format!("{:.1}", service.replicas),
                percent(service.aligned),
            ]);
        }
        text.push_str(&indent(&table(&rows)));
    }
    let mut rows = vec![
        ["class", "pods", "wait p50", "wait p99", "longest", "preempted"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for class in &run.classes {
        rows.push(vec![
            class.class.clone(),
            count(class.pods),
            time(class.wait_p50_ms),
            time(class.wait_p99_ms),
            time(class.wait_max_ms),
            count(class.preempted),
        ]);
    }
    text.push_str(&indent(&table(&rows)));
    for (reason, times) in &run.rejections {
        let _infallible = writeln!(text, "  {reason}: {} pods", count(*times));
    }
    for waiting in &run.waiting {
        let why = waiting.why.replace('\n', "\n    ");
        let _infallible =
            writeln!(text, "  {} of {} pending: {why}", waiting.pods, name(waiting.workload));
    }
    text
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Fewest, Goals, Summary};

    #[test]
    fn numbers_are_grouped_and_times_have_units() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(12), "12");
        assert_eq!(dollars(1_499_999), "$1");
        assert_eq!(time(90_000), "90.0 s");
        assert_eq!(time(90 * 86_400_000), "90.0 d");
        assert_eq!(ms(14_100), "14.1 ms");
    }

    #[test]
    fn a_sign_test_tells_noise_from_a_difference() {
        assert!(signs_differ(6, 0) && signs_differ(0, 6) && signs_differ(15, 1));
        assert!(!signs_differ(5, 0) && !signs_differ(8, 8) && !signs_differ(12, 5));
        let steady = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let more = steady.map(|one| one * 1.1);
        assert_eq!(compared(Unit::Count, &steady, &more), "+10.0 %");
        assert_eq!(compared(Unit::Count, &steady, &steady), "same");
        let mixed = [2.0, 1.0, 4.0, 3.0, 6.0, 5.0];
        assert_eq!(compared(Unit::Count, &steady, &mixed), "within noise");
        assert_eq!(
            compared(Unit::Count, &[0.0; 6], &[0.0, 2.0, 2.0, 2.0, 2.0, 2.0]),
            "within noise"
        );
        assert_eq!(compared(Unit::Count, &[0.0; 6], &[2.0; 6]), "+2");
        assert_eq!(compared(Unit::Share, &[0.5; 6], &[0.52; 6]), "+2.0 points");
    }

    #[test]
    fn a_figure_is_shown_with_its_range() {
        assert_eq!(with_range(Unit::Count, vec![3.0, 1.0, 2.0]), "2 (1–3)");
        assert_eq!(with_range(Unit::Share, vec![0.5, 0.5]), "50.0 %");
        assert_eq!(with_range(Unit::Price, vec![7_900_000.0, 8_100_000.0]), "$8.00 ($7.90–$8.10)");
    }

    #[test]
    fn goals_are_compared_with_what_setups_reach() {
        let run = |name: &str, p99_us: u64, utilised: f64, gpus: Option<usize>| Run {
            name: name.to_owned(),
            summary: Summary { p99_us, utilised, breaches: 3, ..Summary::default() },
            fewest: Some(Fewest { gpus, ..Fewest::default() }),
            ..Run::default()
        };
        let report = Report {
            goals: Some(Goals {
                against: 0,
                p99_reduction: Some(0.4),
                utilisation_gain: Some(0.22),
                breaches: Some(0),
                fewest_nodes: true,
            }),
            runs: vec![
                run("default", 20_000, 0.4, Some(48)),
                run("tuned", 20_000, 0.4, None),
                run("berth", 10_000, 0.5, Some(40)),
            ],
            ..Report::default()
        };
        let expected = "\ncompared with default      goal         tuned     berth\n\
                        p99 latency             −40.0 %        +0.0 %   −50.0 %\n\
                        GPUs busy               +22.0 %        +0.0 %   +25.0 %\n\
                        objective breaches            0             3         3\n\
                        GPUs for the same work           more than 48  40 of 48\n";
        assert_eq!(goals_table(&[report.clone(), report.clone()]), expected);
        let text = render(&report);
        let row = text.lines().find(|line| line.starts_with("GPUs for the same work")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().skip(5).collect();
        assert_eq!(cells, ["48", "more", "40"]);
        assert!(text.find(row) < text.find("compared with"), "the comparison comes first");
    }

    #[test]
    fn an_empty_report_is_a_line() {
        assert!(render(&Report::default()).contains("0 nodes, 0 GPUs"));
    }
}

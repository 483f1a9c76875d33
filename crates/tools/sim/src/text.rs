//! A report in a few lines of text.
//!
//! Owns what the terminal shows: the setups side by side, what is particular about each service, and
//! why pods still wait. Must not know how anything was worked out.

use std::fmt::Write as _;

use crate::report::{Report, Run, ServiceReport, Summary};

/// A row of the comparison: what it is, and how it reads for one run.
type Row = (&'static str, fn(&Summary) -> String);

/// What is compared.
const ROWS: [Row; 21] = [
    ("p50 latency", |one| ms(one.p50_us)),
    ("p99 latency", |one| ms(one.p99_us)),
    ("objective breaches", |one| count(one.breaches)),
    ("service time in breach", |one| time(one.above_ms)),
    ("requests served", |one| count(one.requests)),
    ("requests lost", |one| count(one.requests_lost)),
    ("GPUs allocated", |one| percent(one.allocated)),
    ("GPUs busy", |one| percent(one.utilised)),
    ("GPUs free but useless", |one| percent(one.fragmented)),
    ("GPU pods aligned", |one| percent(one.aligned)),
    ("batch GPU hours", |one| format!("{:.0}", one.batch_gpu_hours)),
    ("batch GPU hours lost", |one| format!("{:.0}", one.wasted_gpu_hours)),
    ("jobs done", |one| count(one.jobs)),
    ("pods started", |one| count(one.started)),
    ("pods waiting at the end", |one| count(one.waiting)),
    ("kubelet rejections", |one| count(one.rejections)),
    ("preemptions", |one| count(one.preemptions)),
    ("replicas moved", |one| count(one.moves)),
    ("out of GPU memory", |one| count(one.out_of_memory)),
    ("cost", |one| dollars(one.cost_microusd)),
    ("of that idle GPUs", |one| dollars(one.idle_microusd)),
];

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

/// With a comma after every three digits.
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

/// How long, in the largest unit that is not less than one.
fn time(ms: i64) -> String {
    match ms {
        ms if ms >= 172_800_000 => format!("{:.1} d", ms as f64 / 86_400_000.0),
        ms if ms >= 7_200_000 => format!("{:.1} h", ms as f64 / 3_600_000.0),
        ms if ms >= 120_000 => format!("{:.1} min", ms as f64 / 60_000.0),
        ms => format!("{:.1} s", ms as f64 / 1000.0),
    }
}

/// A table with a first column on the left and the others on the right.
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

/// The report as text.
pub fn render(report: &Report) -> String {
    let gpus: usize = report.nodes.iter().map(|node| node.gpus.len()).sum();
    let mut text = String::new();
    let _infallible = writeln!(
        text,
        "{}: {}, {}, {}, seed {}\n",
        report.title,
        several(report.nodes.len(), "node"),
        several(gpus, "GPU"),
        time(report.duration_ms),
        report.seed
    );
    let mut rows = vec![
        std::iter::once(String::new())
            .chain(report.runs.iter().map(|run| run.name.clone()))
            .collect::<Vec<_>>(),
    ];
    let serves =
        report.runs.iter().any(|run| run.summary.requests > 0 || run.summary.requests_lost > 0);
    for (name, read) in ROWS {
        let of_requests = ["latency", "requests", "breach"].iter().any(|word| name.contains(word));
        if of_requests && !serves {
            continue;
        }
        let cells: Vec<String> = report.runs.iter().map(|run| read(&run.summary)).collect();
        let seldom = ["moved", "memory", "preemptions", "lost", "waiting"];
        if cells.iter().all(|cell| cell == "0") && seldom.iter().any(|word| name.contains(word)) {
            continue;
        }
        rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    }
    text.push_str(&table(&rows));
    for run in &report.runs {
        text.push_str(&of_run(report, run));
    }
    text
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
        let _infallible = writeln!(text, "  {reason}: {} times", count(*times));
    }
    for waiting in &run.waiting {
        let why = waiting.why.replace('\n', "\n    ");
        let _infallible =
            writeln!(text, "  {} of {} wait: {why}", waiting.pods, name(waiting.workload));
    }
    text
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn an_empty_report_is_a_line() {
        assert!(render(&Report::default()).contains("0 nodes, 0 GPUs"));
    }
}

//! The page of metrics, from what the scheduler and the agent register.

use std::fmt::Write as _;

use berth_control::metrics::MetricInfo;

use crate::markdown::{code, table};

const HEAD: &str = "\
# Metrics

In the text format of Prometheus. A histogram has the series `NAME_bucket`, `NAME_sum` and `NAME_count`.
`berth manifests --service-monitor` adds ServiceMonitors for the Prometheus operator.
";

pub(crate) fn page() -> String {
    let mut text = HEAD.to_owned();
    let scheduler = berth_control::metrics::Metrics::new();
    section("Scheduler", "`berth serve`, port 9440", scheduler.infos(), &mut text);
    let agent = berth_agent::run::Metrics::new();
    section("Agent", "`berth agent`, port 9441", agent.infos(), &mut text);
    text
}

fn section(title: &str, place: &str, metrics: &[MetricInfo], text: &mut String) {
    let rows: Vec<Vec<String>> = metrics
        .iter()
        .map(|metric| {
            let labels: Vec<String> = metric.labels.iter().map(|label| code(label)).collect();
            vec![
                code(&metric.name),
                metric.kind.to_owned(),
                labels.join(", "),
                metric.help.to_owned(),
            ]
        })
        .collect();
    let head = ["metric", "type", "labels", "meaning"];
    let _ = write!(text, "\n## {title}\n\n{place}.\n\n{}", table(&head, &rows));
}

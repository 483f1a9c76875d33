//! What the replicas' metrics say, held against what happened.
//!
//! Owns asking for metrics, and the rules by which they can be wrong. Must not know how anything failed.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What the end of a run shows of each replica.
const SHOWN: &[&str] = &[
    "berth_leader ",
    "berth_leader_transitions_total",
    "berth_bindings_total",
    "berth_fenced_pods_total",
    "berth_watch_relists_total",
    "berth_watch_errors_total",
    "berth_watch_skipped_objects_total",
];

/// A process that is killed takes with it what it has counted since it was asked, and what it was about to
/// count. So much of all bindings have to be counted nevertheless, in percent.
const COUNTED_MIN: u64 = 80;

/// The metrics of one replica.
pub(crate) struct ReplicaMetrics(String);

impl ReplicaMetrics {
    /// Asks for them.
    pub(crate) async fn scrape(port: u16) -> anyhow::Result<Self> {
        let asked = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            anyhow::Ok(Self(answer))
        };
        tokio::time::timeout(Duration::from_secs(5), asked).await?
    }

    fn value(&self, series: &str) -> u64 {
        let values = self.0.lines().filter_map(|line| line.strip_prefix(series));
        values.filter_map(|value| value.trim().parse::<u64>().ok()).sum()
    }

    /// How many bindings the API has confirmed to it.
    pub(crate) fn bound(&self) -> u64 {
        self.value("berth_bindings_total{result=\"bound\"}")
    }

    /// Whether it leads, as it thinks.
    pub(crate) fn leads(&self) -> bool {
        self.value("berth_leader ") == 1
    }

    /// What is worth showing.
    pub(crate) fn shown(&self) -> impl Iterator<Item = &str> {
        let shown = |line: &&str| SHOWN.iter().any(|name| line.starts_with(name));
        self.0.lines().filter(shown).filter(|line| !line.ends_with(" 0"))
    }
}

/// What is wrong with metrics that count so many bindings and leaders, if so many bindings were made.
pub(crate) fn inconsistencies(counted: u64, leaders: usize, made: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    if leaders != 1 {
        wrong.push(format!("{leaders} replicas say that they lead"));
    }
    if counted > made {
        wrong.push(format!("the metrics count {counted} bindings, and there were only {made}"));
    }
    if counted * 100 < made * COUNTED_MIN {
        wrong.push(format!("the metrics count only {counted} of {made} bindings"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_may_miss_what_a_kill_took_with_it_and_nothing_else() {
        assert!(inconsistencies(95, 1, 100).is_empty());
        assert_eq!(inconsistencies(101, 1, 100).len(), 1);
        assert_eq!(inconsistencies(70, 2, 100).len(), 2);
    }

    #[test]
    fn the_value_of_a_series_is_read_and_of_no_other() {
        let metrics = ReplicaMetrics(
            "berth_leader 1\nberth_bindings_total{result=\"bound\"} 7\n\
             berth_bindings_total{result=\"gone\"} 9\nberth_leader_transitions_total 0\n"
                .to_owned(),
        );
        assert!(metrics.leads());
        assert_eq!(metrics.bound(), 7);
        assert_eq!(metrics.shown().count(), 3);
    }
}

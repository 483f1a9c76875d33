//! The agent's Prometheus metrics. Pods have series of their own, which are removed with the pod; a node has few.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_metrics::{Counter, FloatGauge, Gauge, MetricInfo, Registered, Registrar, Series};

use super::alignment::AlignmentAnnotation;

pub(super) use berth_metrics::OPEN_CONTENT_TYPE as CONTENT_TYPE;

/// Clones share their values.
#[derive(Clone)]
pub struct Metrics {
    registered: Registered,
    alignment: Series<3, Gauge>,
    distance: Series<2, Gauge>,
    /// Pods with series, and their values.
    shown: Arc<Mutex<BTreeMap<(String, String), AlignmentAnnotation>>>,
    writes: Series<1, Counter>,
    failures: Series<1, Counter>,
    watch_failures: Series<1, Counter>,
    inspections: Series<1, Counter>,
    inspection_duration: Series<1, FloatGauge>,
    foreign: Gauge,
    diagnoses: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    pub fn new() -> Self {
        let mut to = Registrar::new(env!("CARGO_PKG_VERSION"));
        Self {
            alignment: to.series(
                "alignment",
                ["namespace", "pod", "verdict"],
                "1 for the current alignment of a GPU pod",
            ),
            distance: to.series(
                "alignment_distance",
                ["namespace", "pod"],
                "NUMA distance between a misaligned pod's GPUs and its CPUs or memory; 10 is local",
            ),
            shown: Arc::default(),
            writes: to.series("agent_writes", ["what"], "Writes to the API server"),
            failures: to.series(
                "agent_write_failures",
                ["what"],
                "Writes to the API server that failed",
            ),
            watch_failures: to.series("agent_watch_failures", ["kind"], "Watches that failed"),
            inspections: to.series("agent_inspections", ["scope"], "Inspections of the node, by extent"),
            inspection_duration: to.series(
                "agent_inspection_duration_seconds",
                ["scope"],
                "Duration of the last inspection of the node",
            ),
            foreign: to.single(
                "agent_topology_foreign",
                "1 while another exporter publishes the NodeResourceTopology, which is then left alone",
            ),
            diagnoses: to.single(
                "agent_diagnoses",
                "Facts about the node that could not be read or that contradict each other",
            ),
            registered: to.finish(),
        }
    }

    /// Every metric of `berth agent`.
    pub fn infos(&self) -> &[MetricInfo] {
        self.registered.infos()
    }

    /// In the OpenMetrics format.
    pub fn encode(&self) -> String {
        self.registered.encode_open()
    }

    pub(super) fn wrote(&self, what: &'static str, done: bool) {
        let family = if done { &self.writes } else { &self.failures };
        family.with([what]).inc();
    }

    pub fn writes(&self, what: &'static str) -> u64 {
        self.writes.with([what]).get()
    }

    pub(super) fn watch_failed(&self, kind: &'static str) {
        self.watch_failures.with([kind]).inc();
    }

    pub(super) fn inspected(&self, scope: &'static str, time: Duration) {
        self.inspections.with([scope]).inc();
        self.inspection_duration.with([scope]).set(time.as_secs_f64());
    }

    pub(super) fn diagnosed(&self, count: usize) {
        self.diagnoses.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn foreign(&self, foreign: bool) {
        self.foreign.set(i64::from(foreign));
    }

    /// Replaces the alignment of all pods, by namespace and name.
    pub(super) fn aligned(&self, now: BTreeMap<(String, String), AlignmentAnnotation>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for (pod, before) in shown.iter() {
            let after = now.get(pod);
            if after.map(|after| after.alignment) != Some(before.alignment) {
                self.alignment.remove(verdict_of(pod, before));
            }
            if before.distance.is_some() && after.is_none_or(|after| after.distance.is_none()) {
                self.distance.remove(labels_of(pod));
            }
        }
        for (pod, alignment) in &now {
            self.alignment.with(verdict_of(pod, alignment)).set(1);
            if let Some(distance) = alignment.distance {
                self.distance.with(labels_of(pod)).set(i64::from(distance));
            }
        }
        *shown = now;
    }
}

fn labels_of((namespace, pod): &(String, String)) -> [String; 2] {
    [namespace.clone(), pod.clone()]
}

fn verdict_of((namespace, pod): &(String, String), alignment: &AlignmentAnnotation) -> [String; 3] {
    [namespace.clone(), pod.clone(), alignment.alignment.as_str().to_owned()]
}

#[cfg(test)]
mod tests {
    use berth_model::alignment::Alignment;

    use super::*;

    #[test]
    fn a_pod_has_one_series_and_none_after_deletion() {
        let metrics = Metrics::new();
        let of = |alignment: Alignment, distance: Option<u32>| {
            let annotation =
                AlignmentAnnotation { alignment, distance, ..AlignmentAnnotation::default() };
            BTreeMap::from([(("team".to_owned(), "a".to_owned()), annotation)])
        };
        metrics.aligned(of(Alignment::Misaligned, Some(32)));
        let text = metrics.encode();
        let series = r#"berth_alignment{namespace="team",pod="a",verdict="misaligned"} 1"#;
        assert!(text.contains(series), "{text}");
        assert!(
            text.contains(r#"berth_alignment_distance{namespace="team",pod="a"} 32"#),
            "{text}"
        );
        metrics.aligned(of(Alignment::Aligned, None));
        let text = metrics.encode();
        assert!(
            text.contains(r#"verdict="aligned"} 1"#) && !text.contains("misaligned\""),
            "{text}"
        );
        assert!(!text.contains("distance{"), "{text}");
        metrics.aligned(BTreeMap::new());
        assert!(!metrics.encode().contains("pod=\"a\""));
    }
}

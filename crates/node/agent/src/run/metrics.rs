//! What Prometheus is told of a node.
//!
//! Owns names and labels. Pods have series of their own, which go when they go: a node has few. Must not know
//! where any figure comes from.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::telling::AlignmentAnnotation;

/// The content type of [`Metrics::encode`].
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels<const N: usize> = [(&'static str, &'static str); N];
type OfPod<const N: usize> = [(&'static str, String); N];
type Seconds = Gauge<f64, std::sync::atomic::AtomicU64>;

/// Everything that is counted. Cloning gives another handle on the same figures.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    alignment: Family<OfPod<3>, Gauge>,
    distance: Family<OfPod<2>, Gauge>,
    /// Pods that have series, and what these say.
    shown: Arc<Mutex<BTreeMap<(String, String), AlignmentAnnotation>>>,
    writes: Family<Labels<1>, Counter>,
    failures: Family<Labels<1>, Counter>,
    watch_failures: Family<Labels<1>, Counter>,
    looks: Family<Labels<1>, Counter>,
    look_duration: Family<Labels<1>, Seconds>,
    foreign: Gauge,
    diagnoses: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Arc::default(),
            alignment: Family::default(),
            distance: Family::default(),
            shown: Arc::default(),
            writes: Family::default(),
            failures: Family::default(),
            watch_failures: Family::default(),
            looks: Family::default(),
            look_duration: Family::default(),
            foreign: Gauge::default(),
            diagnoses: Gauge::default(),
        };
        metrics.registry = Arc::new(metrics.registered());
        metrics
    }

    fn registered(&self) -> Registry {
        let mut to = Registry::with_prefix("berth");
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        to.register("build", "The version that runs", version);
        let help = "How a pod with a GPU lies: 1 for its verdict";
        to.register("alignment", help, self.alignment.clone());
        let help =
            "How far a misaligned pod's CPUs or memory are from its GPUs, 10 being no distance";
        to.register("alignment_distance", help, self.distance.clone());
        let help = "Writes to the API server, by what was written";
        to.register("agent_writes", help, self.writes.clone());
        let help = "Writes that failed, by what was to be written";
        to.register("agent_write_failures", help, self.failures.clone());
        let help = "Watches that failed, by kind";
        to.register("agent_watch_failures", help, self.watch_failures.clone());
        to.register("agent_looks", "Looks at the node, by how much was read", self.looks.clone());
        to.register_with_unit(
            "agent_look_duration",
            "How long the last look took, by how much was read",
            Unit::Seconds,
            self.look_duration.clone(),
        );
        let help =
            "1 while somebody else publishes the NodeResourceTopology, which is left alone, else 0";
        to.register("agent_topology_foreign", help, self.foreign.clone());
        let help = "What could not be read or believed on the node";
        to.register("agent_diagnoses", help, self.diagnoses.clone());
        to
    }

    /// All figures.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text,
            Err(_) => String::new(),
        }
    }

    /// Something was written, or could not be.
    pub(super) fn wrote(&self, what: &'static str, done: bool) {
        let family = if done { &self.writes } else { &self.failures };
        family.get_or_create(&[("what", what)]).inc();
    }

    /// How often something was written.
    pub fn writes(&self, what: &'static str) -> u64 {
        self.writes.get_or_create(&[("what", what)]).get()
    }

    pub(super) fn watch_failed(&self, kind: &'static str) {
        self.watch_failures.get_or_create(&[("kind", kind)]).inc();
    }

    pub(super) fn looked(&self, scope: &'static str, time: Duration) {
        self.looks.get_or_create(&[("scope", scope)]).inc();
        self.look_duration.get_or_create(&[("scope", scope)]).set(time.as_secs_f64());
    }

    pub(super) fn diagnosed(&self, count: usize) {
        self.diagnoses.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn foreign(&self, foreign: bool) {
        self.foreign.set(i64::from(foreign));
    }

    /// Pods by namespace and name, and how they lie; others are not shown any more.
    pub(super) fn aligned(&self, now: BTreeMap<(String, String), AlignmentAnnotation>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for (pod, before) in shown.iter() {
            let after = now.get(pod);
            if after.map(|after| after.alignment) != Some(before.alignment) {
                self.alignment.remove(&verdict_of(pod, before));
            }
            if before.distance.is_some() && after.is_none_or(|after| after.distance.is_none()) {
                self.distance.remove(&labels_of(pod));
            }
        }
        for (pod, alignment) in &now {
            self.alignment.get_or_create(&verdict_of(pod, alignment)).set(1);
            if let Some(distance) = alignment.distance {
                self.distance.get_or_create(&labels_of(pod)).set(i64::from(distance));
            }
        }
        *shown = now;
    }
}

fn labels_of((namespace, pod): &(String, String)) -> OfPod<2> {
    [("namespace", namespace.clone()), ("pod", pod.clone())]
}

fn verdict_of((namespace, pod): &(String, String), annotation: &AlignmentAnnotation) -> OfPod<3> {
    let verdict = annotation.alignment.as_str().to_owned();
    [("namespace", namespace.clone()), ("pod", pod.clone()), ("verdict", verdict)]
}

#[cfg(test)]
mod tests {
    use berth_model::alignment::Alignment;

    use super::*;

    #[test]
    fn a_pod_has_one_verdict_and_none_when_it_is_gone() {
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

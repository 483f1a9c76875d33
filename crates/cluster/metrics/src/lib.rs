//! Prometheus metrics of `berth serve` and `berth agent`.
//!
//! A metric states its name, help and labels once, where it is registered, so the list of all metrics and
//! the scraped text cannot differ. Label values come from short fixed lists, or are removed with their object.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeMetric;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::exponential_buckets;
use prometheus_client::metrics::info::Info;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::Histogram;

/// The content type of [`Registered::encode_open`].
pub const OPEN_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The content type of [`Registered::encode_classic`].
pub const CLASSIC_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const PREFIX: &str = "berth";

/// A gauge with fractions.
pub type FloatGauge = Gauge<f64, AtomicU64>;

type LabelSet<const N: usize> = [(&'static str, Cow<'static, str>); N];

/// What the reference page says about a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricInfo {
    /// As Prometheus stores it; a histogram without `_bucket`, `_sum` and `_count`.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    pub labels: Vec<&'static str>,
    /// Without a full stop.
    pub help: &'static str,
}

/// A metric with labels.
#[derive(Clone, Debug)]
pub struct Series<const N: usize, M> {
    labels: [&'static str; N],
    family: Family<LabelSet<N>, M, fn() -> M>,
}

impl<const N: usize, M: Clone> Series<N, M> {
    /// The metric with these label values, in the order of the labels.
    pub fn with<V: Into<Cow<'static, str>>>(&self, values: [V; N]) -> M {
        self.family.get_or_create_owned(&self.label_set(values))
    }

    pub fn remove<V: Into<Cow<'static, str>>>(&self, values: [V; N]) {
        self.family.remove(&self.label_set(values));
    }

    fn label_set<V: Into<Cow<'static, str>>>(&self, values: [V; N]) -> LabelSet<N> {
        let mut labels = self.labels.into_iter();
        values.map(|value| (labels.next().unwrap_or_default(), value.into()))
    }
}

/// Registers metrics and remembers what they are.
#[derive(Debug)]
pub struct Registrar {
    registry: Registry,
    infos: Vec<MetricInfo>,
}

impl Registrar {
    /// With the metric that every program has: its version.
    pub fn new(version: &'static str) -> Self {
        let mut registrar = Self { registry: Registry::with_prefix(PREFIX), infos: Vec::new() };
        let help = "Version of the program; always 1";
        registrar.registry.register("build", help, Info::new([("version", version)]));
        registrar.infos.push(MetricInfo {
            name: format!("{PREFIX}_build_info"),
            kind: "gauge",
            labels: vec!["version"],
            help,
        });
        registrar
    }

    /// A metric without labels. Names of counters have no `_total`; it is added when they are encoded.
    pub fn single<M>(&mut self, name: &'static str, help: &'static str) -> M
    where
        M: EncodeMetric + TypedMetric + Default + Clone + Send + Sync + std::fmt::Debug + 'static,
    {
        self.add::<0, M>(name, help, [], M::default())
    }

    /// A metric with labels.
    pub fn series<const N: usize, M>(
        &mut self,
        name: &'static str,
        labels: [&'static str; N],
        help: &'static str,
    ) -> Series<N, M>
    where
        M: EncodeMetric + TypedMetric + Default + Clone + Send + Sync + std::fmt::Debug + 'static,
    {
        self.series_of(name, labels, help, M::default)
    }

    /// A histogram of durations. Its name ends in `_seconds`.
    pub fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        buckets: fn() -> Histogram,
    ) -> Histogram {
        self.add::<0, _>(name, help, [], buckets())
    }

    /// Histograms of durations, with labels.
    pub fn histograms<const N: usize>(
        &mut self,
        name: &'static str,
        labels: [&'static str; N],
        help: &'static str,
        buckets: fn() -> Histogram,
    ) -> Series<N, Histogram> {
        self.series_of(name, labels, help, buckets)
    }

    fn series_of<const N: usize, M>(
        &mut self,
        name: &'static str,
        labels: [&'static str; N],
        help: &'static str,
        create: fn() -> M,
    ) -> Series<N, M>
    where
        M: EncodeMetric + TypedMetric + Clone + Send + Sync + std::fmt::Debug + 'static,
    {
        let family = Family::new_with_constructor(create);
        Series { labels, family: self.add(name, help, labels, family) }
    }

    fn add<const N: usize, M>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
        metric: M,
    ) -> M
    where
        M: EncodeMetric + TypedMetric + Clone + Send + Sync + std::fmt::Debug + 'static,
    {
        let (kind, suffix) = match M::TYPE {
            MetricType::Counter => ("counter", "_total"),
            MetricType::Histogram => ("histogram", ""),
            _ => ("gauge", ""),
        };
        let info = MetricInfo {
            name: format!("{PREFIX}_{name}{suffix}"),
            kind,
            labels: labels.to_vec(),
            help,
        };
        self.infos.push(info);
        self.registry.register(name, help, metric.clone());
        metric
    }

    pub fn finish(self) -> Registered {
        Registered { registry: Arc::new(self.registry), infos: self.infos.into() }
    }
}

/// All metrics of a program. Clones share them.
#[derive(Clone, Debug)]
pub struct Registered {
    registry: Arc<Registry>,
    infos: Arc<[MetricInfo]>,
}

impl Registered {
    /// In the order in which they were registered.
    pub fn infos(&self) -> &[MetricInfo] {
        &self.infos
    }

    /// In the OpenMetrics format.
    pub fn encode_open(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text,
            Err(_) => String::new(),
        }
    }

    /// In the older text format, which every scraper reads. OpenMetrics names a family without the suffix of
    /// its samples; this format names it with the suffix, and knows neither `info` nor `# EOF`.
    pub fn encode_classic(&self) -> String {
        let open = self.encode_open();
        let mut text = String::with_capacity(open.len());
        let mut lines = open.lines().peekable();
        while let Some(line) = lines.next() {
            let Some(help) = line.strip_prefix("# HELP ") else {
                if line != "# EOF" {
                    text.extend([line, "\n"]);
                }
                continue;
            };
            let kind = lines.next_if(|next| next.starts_with("# TYPE ")).unwrap_or_default();
            let (suffix, kind) = match kind.rsplit(' ').next() {
                Some("counter") => ("_total", "counter"),
                Some("info") => ("_info", "gauge"),
                Some(kind) => ("", kind),
                None => ("", "untyped"),
            };
            let (name, words) = help.split_once(' ').unwrap_or((help, ""));
            text.extend(["# HELP ", name, suffix, " ", words, "\n"]);
            text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        }
        text
    }
}

/// Buckets from 0.25 ms to 8 s.
pub fn millisecond_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 2.0, 16))
}

/// Buckets from 1 µs to 4 s.
pub fn microsecond_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.000_001, 4.0, 12))
}

/// Buckets from 5 ms to 2 hours.
pub fn wait_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 3.0, 14))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_listed_as_it_is_scraped() {
        let mut to = Registrar::new("1.2.3");
        let bindings: Series<1, Counter> = to.series("bindings", ["result"], "Bindings posted");
        let leader: Gauge = to.single("leader", "1 while leading");
        let waits = to.histograms("wait_seconds", ["queue"], "Time waited", wait_buckets);
        bindings.with(["bound"]).inc();
        bindings.with(["gone".to_owned()]).inc();
        bindings.remove(["gone"]);
        leader.set(1);
        waits.with(["active"]).observe(1.0);
        let all = to.finish();
        let text = all.encode_classic();
        for info in all.infos() {
            let head =
                format!("# HELP {0} {2}.\n# TYPE {0} {1}\n", info.name, info.kind, info.help);
            assert!(text.contains(&head), "{head} in {text}");
            for label in &info.labels {
                assert!(text.contains(&format!("{{{label}=\"")), "{label} in {text}");
            }
        }
        assert!(text.contains("berth_bindings_total{result=\"bound\"} 1\n"), "{text}");
        assert!(!text.contains("gone") && !text.contains("EOF"), "{text}");
        assert!(all.encode_open().ends_with("# EOF\n"));
    }
}

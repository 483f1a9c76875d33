//! What Prometheus is told.
//!
//! Owns names, units, labels and buckets. Must not know where any figure comes from: whoever does
//! something says so by a method here. Labels have few values, whatever the cluster holds.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

type Labels<const N: usize> = [(&'static str, &'static str); N];
type Counters<const N: usize> = Family<Labels<N>, Counter>;
type Gauges<const N: usize> = Family<Labels<N>, Gauge>;
type Histograms<const N: usize> = Family<Labels<N>, Histogram>;

/// Reasons for which kubelets reject pods. Any other is told as `Other`.
const REJECTIONS: &[&str] = &[
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "OutOfcpu",
    "OutOfmemory",
    "OutOfpods",
    "OutOfephemeral-storage",
    "OutOfnvidia.com/gpu",
    "NodeAffinity",
    "NodeShutdown",
    "Evicted",
    "Preempting",
    "AdmissionError",
];

/// Everything that is counted. Cloning gives another handle on the same figures.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    decisions: Counters<1>,
    bindings: Counters<1>,
    binding_duration: Histogram,
    scheduling_duration: Histogram,
    queue_pods: Gauges<1>,
    kubelet_rejections: Counters<2>,
    evictions: Counters<2>,
    watch_events: Counters<2>,
    watch_errors: Counters<1>,
    watch_skipped: Counters<1>,
    watch_relists: Counters<1>,
    leader: Gauge,
    leader_transitions: Counters<1>,
    fenced_pods: Counter,
    unfenced_pods: Gauge,
    webhook_requests: Counters<2>,
    webhook_findings: Counters<2>,
    webhook_duration: Histograms<1>,
    api_requests: Family<ApiLabels, Counter>,
    engine_duration: Histograms<1>,
    http_connections: Gauges<1>,
    http_inflight_bytes: Gauges<1>,
    http_shed: Counters<2>,
}

/// Codes have more values than are worth a list.
type ApiLabels = (Labels<2>, [(&'static str, u16); 1]);

fn milliseconds() -> Histogram {
    // 0.25 ms to 8 s.
    Histogram::new(exponential_buckets(0.000_25, 2.0, 16))
}

fn microseconds() -> Histogram {
    // 1 µs to 4 s.
    Histogram::new(exponential_buckets(0.000_001, 4.0, 12))
}

fn waits() -> Histogram {
    // 5 ms to 3 hours.
    Histogram::new(exponential_buckets(0.005, 3.0, 14))
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("berth");
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version that runs", version);
        let mut metrics = Self {
            registry: Arc::default(),
            decisions: Family::default(),
            bindings: Family::default(),
            binding_duration: milliseconds(),
            scheduling_duration: waits(),
            queue_pods: Family::default(),
            kubelet_rejections: Family::default(),
            evictions: Family::default(),
            watch_events: Family::default(),
            watch_errors: Family::default(),
            watch_skipped: Family::default(),
            watch_relists: Family::default(),
            leader: Gauge::default(),
            leader_transitions: Family::default(),
            fenced_pods: Counter::default(),
            unfenced_pods: Gauge::default(),
            webhook_requests: Family::default(),
            webhook_findings: Family::default(),
            webhook_duration: Family::new_with_constructor(milliseconds),
            api_requests: Family::default(),
            engine_duration: Family::new_with_constructor(microseconds),
            http_connections: Family::default(),
            http_inflight_bytes: Family::default(),
            http_shed: Family::default(),
        };
        metrics.register_placing(&mut registry);
        metrics.register_around(&mut registry);
        metrics.register_ports(&mut registry);
        metrics.registry = Arc::new(registry);
        metrics
    }

    fn register_placing(&self, to: &mut Registry) {
        to.register("decisions", "Decisions of the engine, by verdict", self.decisions.clone());
        to.register("bindings", "Bindings posted, by what became of them", self.bindings.clone());
        to.register_with_unit(
            "binding_duration",
            "From posting a binding to the answer",
            Unit::Seconds,
            self.binding_duration.clone(),
        );
        to.register_with_unit(
            "scheduling_duration",
            "From the creation of a pod to its binding",
            Unit::Seconds,
            self.scheduling_duration.clone(),
        );
        to.register("queue_pods", "Pods that are not bound, by state", self.queue_pods.clone());
        to.register(
            "kubelet_rejections",
            "Pods bound by us that a kubelet did not take, by reason and by whether we had predicted that it would",
            self.kubelet_rejections.clone(),
        );
        to.register(
            "evictions",
            "Pods evicted to make room, by way and by what became of it",
            self.evictions.clone(),
        );
        to.register_with_unit(
            "engine_duration",
            "Time in the engine, by what it did",
            Unit::Seconds,
            self.engine_duration.clone(),
        );
    }

    fn register_around(&self, to: &mut Registry) {
        to.register("watch_events", "News from the API server, by kind", self.watch_events.clone());
        to.register("watch_errors", "Watches that failed, by kind", self.watch_errors.clone());
        to.register(
            "watch_skipped_objects",
            "Objects that could not be understood and are left out, by kind",
            self.watch_skipped.clone(),
        );
        to.register("watch_relists", "Lists read anew, by kind", self.watch_relists.clone());
        to.register("leader", "1 while this replica leads, else 0", self.leader.clone());
        to.register(
            "leader_transitions",
            "Times that this replica began or ceased to lead",
            self.leader_transitions.clone(),
        );
        to.register(
            "fenced_pods",
            "Pods touched so that bindings of an earlier leader cannot land",
            self.fenced_pods.clone(),
        );
        to.register(
            "unfenced_pods",
            "Pods excluded from scheduling until they can be fenced",
            self.unfenced_pods.clone(),
        );
        to.register(
            "webhook_requests",
            "Admission requests, by webhook and verdict",
            self.webhook_requests.clone(),
        );
        to.register(
            "webhook_findings",
            "Breaches of the contract seen by the webhook, by rule and severity",
            self.webhook_findings.clone(),
        );
        to.register_with_unit(
            "webhook_duration",
            "From an admission request read to its answer, by webhook",
            Unit::Seconds,
            self.webhook_duration.clone(),
        );
        to.register(
            "api_requests",
            "Requests to the API server, by verb, resource and status code; 0: no answer",
            self.api_requests.clone(),
        );
    }

    fn register_ports(&self, to: &mut Registry) {
        to.register("http_connections", "Open connections, by port", self.http_connections.clone());
        to.register(
            "http_inflight_bytes",
            "Bytes reserved for requests in flight, by port",
            self.http_inflight_bytes.clone(),
        );
        to.register(
            "http_shed",
            "Connections and requests shed to protect the process, by port and reason",
            self.http_shed.clone(),
        );
    }

    /// All figures, as the text that every scraper reads.
    pub fn encode(&self) -> String {
        let mut open = String::new();
        if encode(&mut open, &self.registry).is_err() {
            return String::new();
        }
        classic(&open)
    }

    /// The engine decided.
    pub fn decided(&self, verdict: &'static str) {
        self.decisions.get_or_create(&[("verdict", verdict)]).inc();
    }

    /// The engine worked for so long: `step` is what it did.
    pub fn engine_worked(&self, step: &'static str, time: Duration) {
        self.engine_duration.get_or_create(&[("step", step)]).observe(time.as_secs_f64());
    }

    /// A binding was answered after so long; `result` is `bound`, `conflict`, `gone`, `failed` or the
    /// like.
    pub fn bound(&self, result: &'static str, time: Duration) {
        self.bindings.get_or_create(&[("result", result)]).inc();
        self.binding_duration.observe(time.as_secs_f64());
    }

    /// A pod was bound so long after it was created.
    pub fn scheduled(&self, wait: Duration) {
        self.scheduling_duration.observe(wait.as_secs_f64());
    }

    /// So many pods are in this state of the queue.
    pub fn queue(&self, state: &'static str, pods: usize) {
        let pods = i64::try_from(pods).unwrap_or(i64::MAX);
        self.queue_pods.get_or_create(&[("state", state)]).set(pods);
    }

    /// A kubelet did not take a pod.
    pub fn rejected(&self, reason: &str, predicted: bool) {
        let reason = REJECTIONS.iter().find(|known| **known == reason).unwrap_or(&"Other");
        let predicted = if predicted { "true" } else { "false" };
        let labels = [("reason", *reason), ("predicted", predicted)];
        self.kubelet_rejections.get_or_create(&labels).inc();
    }

    /// A pod was evicted or deleted to make room; `via` is `eviction` or `delete`.
    pub fn evicted(&self, via: &'static str, result: &'static str) {
        self.evictions.get_or_create(&[("via", via), ("result", result)]).inc();
    }

    /// Something came from a watch: `event` is `applied`, `deleted` and so on.
    pub fn watched(&self, kind: &'static str, event: &'static str) {
        self.watch_events.get_or_create(&[("kind", kind), ("event", event)]).inc();
    }

    /// A watch failed.
    pub fn watch_failed(&self, kind: &'static str) {
        self.watch_errors.get_or_create(&[("kind", kind)]).inc();
    }

    /// An object could not be understood.
    pub fn skipped(&self, kind: &'static str) {
        self.watch_skipped.get_or_create(&[("kind", kind)]).inc();
    }

    /// A list was read anew.
    pub fn relisted(&self, kind: &'static str) {
        self.watch_relists.get_or_create(&[("kind", kind)]).inc();
    }

    /// We began to lead, or ceased to.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
        let to = if leads { "leader" } else { "follower" };
        self.leader_transitions.get_or_create(&[("to", to)]).inc();
    }

    /// A pod was touched so that an earlier leader's binding cannot land.
    pub fn fenced(&self) {
        self.fenced_pods.inc();
    }

    /// How many pods could not be fenced yet.
    pub fn unfenced(&self, pods: usize) {
        self.unfenced_pods.set(i64::try_from(pods).unwrap_or(i64::MAX));
    }

    /// The webhook answered a request after so long.
    pub fn admitted(&self, webhook: &'static str, verdict: &'static str, time: Duration) {
        self.webhook_requests.get_or_create(&[("webhook", webhook), ("verdict", verdict)]).inc();
        self.webhook_duration.get_or_create(&[("webhook", webhook)]).observe(time.as_secs_f64());
    }

    /// The webhook saw a rule broken.
    pub fn found(&self, rule: &'static str, severity: &'static str) {
        self.webhook_findings.get_or_create(&[("rule", rule), ("severity", severity)]).inc();
    }

    /// A port has open connections and bytes of requests in flight.
    pub fn holds(&self, port: &'static str, connections: usize, bytes: u64) {
        let connections = i64::try_from(connections).unwrap_or(i64::MAX);
        self.http_connections.get_or_create(&[("port", port)]).set(connections);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.http_inflight_bytes.get_or_create(&[("port", port)]).set(bytes);
    }

    /// A port shed a connection or a request; `reason` is `connections`, `bytes`, `body_timeout` or `idle`.
    pub fn shed(&self, port: &'static str, reason: &'static str) {
        self.http_shed.get_or_create(&[("port", port), ("reason", reason)]).inc();
    }

    /// The API server answered; 0: it did not.
    pub fn called(&self, verb: &'static str, resource: &'static str, code: u16) {
        let labels = ([("verb", verb), ("resource", resource)], [("code", code)]);
        self.api_requests.get_or_create(&labels).inc();
    }
}

/// OpenMetrics names a family without the ending of its samples; the older format, which everybody
/// reads, with it. It knows no units and no `info`.
fn classic(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    let mut lines = open.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(help) = line.strip_prefix("# HELP ") else {
            if !line.starts_with("# UNIT ") && line != "# EOF" {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Everything counted once.
    fn all() -> Metrics {
        let metrics = Metrics::new();
        metrics.decided("bind");
        metrics.engine_worked("decide", Duration::from_micros(12));
        metrics.bound("bound", Duration::from_millis(3));
        metrics.scheduled(Duration::from_secs(1));
        metrics.queue("active", 7);
        metrics.rejected("TopologyAffinityError", true);
        metrics.rejected("x\"\n{}", false);
        metrics.evicted("eviction", "accepted");
        metrics.watched("Pod", "applied");
        metrics.watch_failed("Pod");
        metrics.skipped("Pod");
        metrics.relisted("Pod");
        metrics.leads(true);
        metrics.fenced();
        metrics.admitted("validate", "allowed", Duration::from_micros(300));
        metrics.found("BERTH-101", "error");
        metrics.called("post", "pods/binding", 201);
        metrics.holds("https", 2, 4_096);
        metrics.shed("https", "bytes");
        metrics
    }

    #[test]
    fn names_follow_prometheus_conventions() {
        let text = all().encode();
        let mut types = BTreeMap::new();
        let mut helps = BTreeMap::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(types.insert(name, kind).is_none(), "{name} twice");
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(help.ends_with('.') && help.len() > 10, "{name}: {help}");
                helps.insert(name, help);
            }
        }
        assert_eq!(types.len(), 24);
        assert!(types.keys().eq(helps.keys()));
        for (name, kind) in &types {
            let legal = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.starts_with("berth_") && name.chars().all(legal), "{name}");
            assert!(!name.contains("_ms") && !name.contains(kind), "{name} is a {kind}");
            assert!(*kind != "histogram" || name.ends_with("_seconds"), "{name}");
            assert_eq!(*kind == "counter", name.ends_with("_total"), "{name}");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let base = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
            let is_typed = types.contains_key(name)
                || base.is_some_and(|base| types.get(base) == Some(&"histogram"));
            assert!(is_typed, "{name}");
        }
    }

    #[test]
    fn promtool_has_no_complaint_where_it_is_installed() {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let promtool = std::env::var_os("PROMTOOL").unwrap_or_else(|| "promtool".into());
        let started = Command::new(promtool)
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = started else { return };
        child.stdin.take().unwrap().write_all(all().encode().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.trim().is_empty(), "{said}");
    }

    #[test]
    fn labels_stay_few_whatever_kubelets_say() {
        let metrics = all();
        for reason in ["a", "b", "c"] {
            metrics.rejected(reason, false);
        }
        let text = metrics.encode();
        let line = "berth_kubelet_rejections_total{reason=\"Other\",predicted=\"false\"} 4";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("berth_leader 1\n"), "{text}");
        assert!(text.contains("resource=\"pods/binding\",code=\"201\"} 1\n"), "{text}");
    }
}

//! The scheduler's Prometheus metrics: names, labels, help and buckets. Label values come from short fixed
//! lists, whatever the cluster holds.

use std::borrow::Cow;
use std::time::Duration;

pub use berth_metrics::{CLASSIC_CONTENT_TYPE as CONTENT_TYPE, MetricInfo};
use berth_metrics::{
    Counter, Gauge, Histogram, Registered, Registrar, Series, microsecond_buckets,
    millisecond_buckets, wait_buckets,
};

/// Reasons for which kubelets reject pods. All others are counted as `Other`.
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

/// Clones share their values.
#[derive(Clone)]
pub struct Metrics {
    registered: Registered,
    decisions: Series<1, Counter>,
    bindings: Series<1, Counter>,
    binding_duration: Histogram,
    scheduling_duration: Histogram,
    queue_pods: Series<1, Gauge>,
    kubelet_rejections: Series<2, Counter>,
    evictions: Series<2, Counter>,
    engine_duration: Series<1, Histogram>,
    watch_events: Series<2, Counter>,
    watch_errors: Series<1, Counter>,
    watch_skipped: Series<1, Counter>,
    watch_relists: Series<1, Counter>,
    leader: Gauge,
    leader_transitions: Series<1, Counter>,
    lease_errors: Series<1, Counter>,
    fenced_pods: Counter,
    unfenced_pods: Gauge,
    webhook_requests: Series<2, Counter>,
    webhook_findings: Series<2, Counter>,
    webhook_duration: Series<1, Histogram>,
    api_requests: Series<3, Counter>,
    http_connections: Series<1, Gauge>,
    http_inflight_bytes: Series<1, Gauge>,
    http_shed: Series<2, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    #[allow(clippy::too_many_lines, reason = "one list")]
    pub fn new() -> Self {
        let mut to = Registrar::new(env!("CARGO_PKG_VERSION"));
        Self {
            decisions: to.series("decisions", ["verdict"], "Scheduling decisions"),
            bindings: to.series("bindings", ["result"], "Bindings posted, by result"),
            binding_duration: to.histogram(
                "binding_duration_seconds",
                "Time from posting a binding to the answer",
                millisecond_buckets,
            ),
            scheduling_duration: to.histogram(
                "scheduling_duration_seconds",
                "Time from the creation of a pod to its binding",
                wait_buckets,
            ),
            queue_pods: to.series("queue_pods", ["state"], "Pods that are not bound, by state"),
            kubelet_rejections: to.series(
                "kubelet_rejections",
                ["reason", "predicted"],
                "Pods bound by Berth that a kubelet rejected, and whether Berth had predicted admission",
            ),
            evictions: to.series(
                "evictions",
                ["via", "result"],
                "Pods evicted to make room for others",
            ),
            engine_duration: to.histograms(
                "engine_duration_seconds",
                ["step"],
                "Time spent in the scheduling engine",
                microsecond_buckets,
            ),
            watch_events: to.series("watch_events", ["kind", "event"], "Watch events received"),
            watch_errors: to.series("watch_errors", ["kind"], "Watches that failed"),
            watch_skipped: to.series(
                "watch_skipped_objects",
                ["kind"],
                "Objects that could not be read and are ignored",
            ),
            watch_relists: to.series("watch_relists", ["kind"], "Lists read again from the start"),
            leader: to.single("leader", "1 while this replica leads, else 0"),
            leader_transitions: to.series(
                "leader_transitions",
                ["to"],
                "Times this replica started or stopped leading",
            ),
            lease_errors: to.series(
                "lease_errors",
                ["reason"],
                "Requests for the leader election Lease that failed",
            ),
            fenced_pods: to.single(
                "fenced_pods",
                "Pods fenced, so that in-flight bindings of a previous leader fail",
            ),
            unfenced_pods: to.single(
                "unfenced_pods",
                "Pods excluded from scheduling until they can be fenced",
            ),
            webhook_requests: to.series(
                "webhook_requests",
                ["webhook", "verdict"],
                "Admission requests answered",
            ),
            webhook_findings: to.series(
                "webhook_findings",
                ["rule", "severity"],
                "Violations of the contract found by the webhook",
            ),
            webhook_duration: to.histograms(
                "webhook_duration_seconds",
                ["webhook"],
                "Time from receiving an admission request to answering it",
                millisecond_buckets,
            ),
            api_requests: to.series(
                "api_requests",
                ["verb", "resource", "code"],
                "Requests to the API server, by status code; 0 if there was no answer",
            ),
            http_connections: to.series("http_connections", ["port"], "Open connections"),
            http_inflight_bytes: to.series(
                "http_inflight_bytes",
                ["port"],
                "Bytes reserved for requests in flight",
            ),
            http_shed: to.series(
                "http_shed",
                ["port", "reason"],
                "Connections and requests shed to protect the process",
            ),
            registered: to.finish(),
        }
    }

    /// Every metric of `berth serve`.
    pub fn infos(&self) -> &[MetricInfo] {
        self.registered.infos()
    }

    /// In the text format of [`CONTENT_TYPE`].
    pub fn encode(&self) -> String {
        self.registered.encode_classic()
    }

    pub fn decided(&self, verdict: &'static str) {
        self.decisions.with([verdict]).inc();
    }

    pub fn engine_worked(&self, step: &'static str, time: Duration) {
        self.engine_duration.with([step]).observe(time.as_secs_f64());
    }

    /// A binding was answered after `time`; `result` is `bound`, `conflict`, `gone`, `failed` or similar.
    pub fn bound(&self, result: &'static str, time: Duration) {
        self.bindings.with([result]).inc();
        self.binding_duration.observe(time.as_secs_f64());
    }

    /// A pod was bound this long after its creation.
    pub fn scheduled(&self, wait: Duration) {
        self.scheduling_duration.observe(wait.as_secs_f64());
    }

    pub fn queue(&self, state: &'static str, pods: usize) {
        self.queue_pods.with([state]).set(gauge(pods));
    }

    pub fn rejected(&self, reason: &str, predicted: bool) {
        let reason = REJECTIONS.iter().find(|known| **known == reason).unwrap_or(&"Other");
        let predicted = if predicted { "true" } else { "false" };
        self.kubelet_rejections.with([*reason, predicted]).inc();
    }

    pub fn evicted(&self, via: &'static str, result: &'static str) {
        self.evictions.with([via, result]).inc();
    }

    /// `event` is `applied` or `deleted`.
    pub fn watched(&self, kind: &'static str, event: &'static str) {
        self.watch_events.with([kind, event]).inc();
    }

    pub fn watch_failed(&self, kind: &'static str) {
        self.watch_errors.with([kind]).inc();
    }

    pub fn skipped(&self, kind: &'static str) {
        self.watch_skipped.with([kind]).inc();
    }

    pub fn relisted(&self, kind: &'static str) {
        self.watch_relists.with([kind]).inc();
    }

    /// This replica started or stopped leading.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
        let to = if leads { "leader" } else { "follower" };
        self.leader_transitions.with([to]).inc();
    }

    pub fn lease_failed(&self, reason: &'static str) {
        self.lease_errors.with([reason]).inc();
    }

    pub fn fenced(&self) {
        self.fenced_pods.inc();
    }

    pub fn unfenced(&self, pods: usize) {
        self.unfenced_pods.set(gauge(pods));
    }

    pub fn admitted(&self, webhook: &'static str, verdict: &'static str, time: Duration) {
        self.webhook_requests.with([webhook, verdict]).inc();
        self.webhook_duration.with([webhook]).observe(time.as_secs_f64());
    }

    pub fn found(&self, rule: &'static str, severity: &'static str) {
        self.webhook_findings.with([rule, severity]).inc();
    }

    /// A port has this many open connections, and this many bytes reserved for requests in flight.
    pub fn holds(&self, port: &'static str, connections: usize, bytes: u64) {
        self.http_connections.with([port]).set(gauge(connections));
        self.http_inflight_bytes.with([port]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// `reason` is `connections`, `bytes`, `body_timeout` or `idle`.
    pub fn shed(&self, port: &'static str, reason: &'static str) {
        self.http_shed.with([port, reason]).inc();
    }

    /// `code` is the HTTP status; 0 if there was no answer.
    pub fn called(&self, verb: &'static str, resource: &'static str, code: u16) {
        let labels: [Cow<'static, str>; 3] =
            [verb.into(), resource.into(), code.to_string().into()];
        self.api_requests.with(labels).inc();
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
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
        metrics.lease_failed("timeout");
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
        assert_eq!(types.len(), 25);
        assert!(types.keys().eq(helps.keys()));
        let metrics = all();
        let listed: BTreeMap<&str, &str> =
            metrics.infos().iter().map(|info| (info.name.as_str(), info.kind)).collect();
        assert_eq!(listed, types);
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

//! Every number that is assumed, not computed, with its source.

use crate::latency::Speed;
use crate::report::Assumption;

/// Factors for the service time of requests, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowdown {
    pub mean_milli: u32,
    pub p99_milli: u32,
}

impl Slowdown {
    pub const NONE: Self = Self { mean_milli: 1000, p99_milli: 1000 };

    /// From measured latencies in microseconds: mean and p99 without and with the effect.
    const fn measured(without: (u32, u32), with: (u32, u32)) -> Self {
        Self {
            mean_milli: (with.0 * 1000).div_ceil(without.0),
            p99_milli: (with.1 * 1000).div_ceil(without.1),
        }
    }

    pub fn of(self, speed: Speed) -> Speed {
        let scale = |us: u64, milli: u32| us.saturating_mul(u64::from(milli)) / 1000;
        let mean_us = scale(speed.mean_us, self.mean_milli);
        Speed { mean_us, p99_us: scale(speed.p99_us, self.p99_milli).max(mean_us), ..speed }
    }
}

/// Measured mean and p99 of one replica alone on an H200.
const ALONE: (u32, u32) = (2_344, 2_420);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumptions {
    /// CPUs or memory on another NUMA node than the GPU.
    pub misaligned: Slowdown,
    /// A GPU shared by time-slicing with one busy neighbour, and with two or more.
    pub time_sliced: [Slowdown; 2],
    /// MPS without busy neighbours.
    pub mps_alone: Slowdown,
    /// MPS with a busy neighbour, threads capped.
    pub mps_capped: Slowdown,
    /// MPS with a busy neighbour, threads not capped.
    pub mps_uncapped: Slowdown,
    /// Of a replica without a latency in the scenario.
    pub speed: Speed,
    /// From a binding to a running container; its image is present.
    pub start_ms: i64,
    /// Termination grace period.
    pub grace_ms: i64,
    /// Delay until a controller replaces a failed pod; doubles with each failure in a row.
    pub replace_ms: i64,
    pub replace_max_ms: i64,
    /// Time until a lost node is marked unreachable.
    pub unreachable_ms: i64,
    /// Time from then until its pods are replaced.
    pub evict_ms: i64,
    /// Time without device plugin after a kubelet restart.
    pub plugin_gap_ms: i64,
    pub timeout_ms: i64,
    /// Interval at which load is evaluated.
    pub window_ms: i64,
    /// Time above the objective that counts as a breach.
    pub breach_ms: i64,
    /// Time for which surplus replicas are kept.
    pub scale_down_ms: i64,
    /// Time after which requests to a service without ready replicas are lost.
    pub launch_ms: i64,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            misaligned: Slowdown::measured((8_200, 14_100), (10_700, 23_800)),
            time_sliced: [
                Slowdown::measured(ALONE, (2_935, 4_520)),
                Slowdown::measured(ALONE, (3_122, 6_789)),
            ],
            mps_alone: Slowdown::measured(ALONE, (2_538, 2_616)),
            mps_capped: Slowdown::measured(ALONE, (3_105, 3_788)),
            mps_uncapped: Slowdown::measured(ALONE, (3_790, 51_392)),
            speed: Speed { mean_us: 8_200, p99_us: 14_100, slots: 10 },
            start_ms: 3_000,
            grace_ms: 30_000,
            replace_ms: 1_000,
            replace_max_ms: 300_000,
            unreachable_ms: 50_000,
            evict_ms: 300_000,
            plugin_gap_ms: 15_000,
            timeout_ms: 30_000,
            window_ms: 60_000,
            breach_ms: 300_000,
            scale_down_ms: 300_000,
            launch_ms: 600_000,
        }
    }
}

impl Assumptions {
    /// All assumptions for the report. The source of changed ones is the scenario.
    pub fn list(&self) -> Vec<Assumption> {
        let mut own = self.rows();
        for (one, usual) in own.iter_mut().zip(Self::default().rows()) {
            if one.value != usual.value {
                "the scenario".clone_into(&mut one.source);
            }
        }
        own
    }

    fn rows(&self) -> Vec<Assumption> {
        let rows = self.of_placement().into_iter().chain(self.of_requests()).chain(self.of_pods());
        rows.map(|(name, value, source)| Assumption {
            name: name.to_owned(),
            value,
            source: source.to_owned(),
        })
        .collect()
    }

    fn of_placement(&self) -> Vec<Row> {
        let [one, more] = self.time_sliced;
        let pinned = "misaligned for the share of CPUs on other NUMA nodes";
        let busy = "a batch pod, or a replica with more than 50 % utilisation";
        vec![
            ("CPUs or memory on another NUMA node than the GPU", slower(self.misaligned), TABLE),
            ("a pod without pinned CPUs", pinned.into(), CHOSEN),
            ("time-sliced GPU, one busy neighbour", slower(one), MEASURED),
            ("time-sliced GPU, two or more busy neighbours", slower(more), MEASURED),
            ("MPS, no busy neighbour", slower(self.mps_alone), MEASURED),
            ("MPS with thread limits, a busy neighbour", slower(self.mps_capped), MEASURED),
            ("MPS without thread limits, a busy neighbour", slower(self.mps_uncapped), MEASURED),
            ("MIG slices", "no interference".into(), "hardware partitions; not measured here"),
            ("a busy neighbour", busy.into(), CHOSEN),
            ("batch pods", "run time does not depend on alignment or sharing".into(), CHOSEN),
        ]
    }

    fn of_requests(&self) -> Vec<Row> {
        let Speed { mean_us, p99_us, slots } = self.speed;
        let (mean_ms, p99_ms) = (mean_us as f64 / 1000.0, p99_us as f64 / 1000.0);
        let model = "log-normal service time by mean and p99; M/G/c queue over its slots (Erlang C, \
                     exponential tail); a backlog above 97 % load";
        vec![
            ("latency of a replica", model.into(), CHOSEN),
            (
                "a replica without a latency in the scenario",
                format!("mean {mean_ms} ms, p99 {p99_ms} ms, {slots} concurrent requests"),
                TABLE,
            ),
            ("interval at which load is evaluated", seconds(self.window_ms), CHOSEN),
            ("client timeout", seconds(self.timeout_ms), CHOSEN),
            ("requests to a lost node", "are lost until the control plane notices".into(), CHOSEN),
            (
                "a breach",
                format!("p99 above the objective for {}", seconds(self.breach_ms)),
                CHOSEN,
            ),
            (
                "requests to a service without ready replicas are lost after",
                seconds(self.launch_ms),
                CHOSEN,
            ),
            ("surplus replicas are kept for", seconds(self.scale_down_ms), KUBERNETES),
        ]
    }

    fn of_pods(&self) -> Vec<Row> {
        let (first, last) = (seconds(self.replace_ms), seconds(self.replace_max_ms));
        let (noticed, replaced) = (seconds(self.unreachable_ms), seconds(self.evict_ms));
        vec![
            ("container start, image present", seconds(self.start_ms), CHOSEN),
            ("grace period", seconds(self.grace_ms), KUBERNETES),
            ("failed pods are replaced after", format!("{first}, doubling up to {last}"), CHOSEN),
            (
                "a lost node is noticed, and its pods are replaced",
                format!("after {noticed}, and {replaced} later"),
                KUBERNETES,
            ),
            ("device plugin is back after a kubelet restart", seconds(self.plugin_gap_ms), CHOSEN),
            (
                "pods beyond a ResourceQuota",
                "are rejected at creation, or held by Berth, until others are gone".into(),
                "Kubernetes; here controllers retry at once",
            ),
        ]
    }
}

/// Name, value and source.
type Row = (&'static str, String, &'static str);

const TABLE: &str = "published table: BERT-large, batch 1, A100 80GB, Kubernetes 1.36";
const MEASURED: &str =
    "measured on one H200: BERT-large-sized forward beside 8192×8192 matmuls, closed loop";
const KUBERNETES: &str = "Kubernetes' default";
const CHOSEN: &str = "chosen";

fn slower(one: Slowdown) -> String {
    let times = |milli: u32| f64::from(milli) / 1000.0;
    format!("mean ×{:.2}, p99 ×{:.2}", times(one.mean_milli), times(one.p99_milli))
}

fn seconds(ms: i64) -> String {
    format!("{} s", ms as f64 / 1000.0)
}

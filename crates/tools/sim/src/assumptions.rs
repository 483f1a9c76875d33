//! What the figures of a simulation rest on: every number that is not computed, in one place, with
//! its source.
//!
//! Owns the numbers. Must not know what is done with them.

use crate::latency::Speed;
use crate::report::Assumption;

/// How much slower something makes requests, in thousandths of what they take otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowdown {
    /// Of the mean.
    pub mean_milli: u32,
    /// Of the p99.
    pub p99_milli: u32,
}

impl Slowdown {
    /// Nothing is slower.
    pub const NONE: Self = Self { mean_milli: 1000, p99_milli: 1000 };

    /// From measured latencies in microseconds: without it and with it, mean and p99 each.
    const fn measured(without: (u32, u32), with: (u32, u32)) -> Self {
        Self {
            mean_milli: (with.0 * 1000).div_ceil(without.0),
            p99_milli: (with.1 * 1000).div_ceil(without.1),
        }
    }

    /// A service that is slowed down so.
    pub fn of(self, speed: Speed) -> Speed {
        let scale = |us: u64, milli: u32| us.saturating_mul(u64::from(milli)) / 1000;
        let mean_us = scale(speed.mean_us, self.mean_milli);
        Speed { mean_us, p99_us: scale(speed.p99_us, self.p99_milli).max(mean_us), ..speed }
    }
}

/// Latencies of one replica alone on an H200: mean and p99.
const ALONE: (u32, u32) = (2_344, 2_420);

/// Everything that is assumed.
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
    /// How fast a replica is of which nothing is said.
    pub speed: Speed,
    /// From a binding to a running container whose image is there.
    pub start_ms: i64,
    /// How long a container has to end.
    pub grace_ms: i64,
    /// A controller replaces a failed pod after this, doubled each time in a row.
    pub replace_ms: i64,
    /// But not after more than this.
    pub replace_max_ms: i64,
    /// A node that does not answer is marked after this.
    pub unreachable_ms: i64,
    /// Its pods are given up so much later.
    pub evict_ms: i64,
    /// After a kubelet's restart the device plugin is back after this.
    pub plugin_gap_ms: i64,
    /// A client waits no longer than this.
    pub timeout_ms: i64,
    /// How often load is looked at.
    pub window_ms: i64,
    /// A service's p99 counts as breached when it is above the objective for so long.
    pub breach_ms: i64,
    /// How long replicas that are too many are kept.
    pub scale_down_ms: i64,
    /// A service is counted on so long after it was first wanted, even if no replica is ready.
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
    /// All of them in words. Those that differ from what Berth assumes come from the scenario.
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

    /// What placement does to requests.
    fn of_placement(&self) -> Vec<Row> {
        let [one, more] = self.time_sliced;
        let pinned = "misaligned for the part of CPUs that are elsewhere";
        let busy = "a pod with an end, or a replica busy for more than half its time";
        vec![
            ("CPUs or memory on another NUMA node than the GPU", slower(self.misaligned), TABLE),
            ("a pod that is pinned nowhere", pinned.into(), CHOSEN),
            ("GPU shared by time-slicing, one busy neighbour", slower(one), MEASURED),
            ("GPU shared by time-slicing, two or more", slower(more), MEASURED),
            ("GPU shared by MPS, no busy neighbour", slower(self.mps_alone), MEASURED),
            (
                "GPU shared by MPS with thread caps, a busy neighbour",
                slower(self.mps_capped),
                MEASURED,
            ),
            (
                "GPU shared by MPS without caps, a busy neighbour",
                slower(self.mps_uncapped),
                MEASURED,
            ),
            ("MIG slices", "no interference".into(), "hardware partitions; not measured here"),
            ("a busy neighbour", busy.into(), CHOSEN),
            (
                "pods with an end",
                "take as long wherever they are: neither misalignment nor sharing slows them"
                    .into(),
                CHOSEN,
            ),
        ]
    }

    /// What requests go through.
    fn of_requests(&self) -> Vec<Row> {
        let Speed { mean_us, p99_us, slots } = self.speed;
        let (mean_ms, p99_ms) = (mean_us as f64 / 1000.0, p99_us as f64 / 1000.0);
        let model = "log-normal service time by mean and p99; as many at a time as it has slots; \
                     others wait (M/G/c, Erlang C, exponential tail); beyond 97 % load a backlog \
                     builds up";
        vec![
            ("latency of a replica", model.into(), CHOSEN),
            (
                "a replica of which nothing is said",
                format!("mean {mean_ms} ms, p99 {p99_ms} ms, {slots} requests at a time"),
                TABLE,
            ),
            ("load is looked at every", seconds(self.window_ms), CHOSEN),
            ("clients give up after", seconds(self.timeout_ms), CHOSEN),
            ("requests to a lost node", "are lost until it is noticed".into(), CHOSEN),
            (
                "a breach",
                format!("p99 above the objective for {}", seconds(self.breach_ms)),
                CHOSEN,
            ),
            ("a service is counted on, ready or not, after", seconds(self.launch_ms), CHOSEN),
            ("replicas that are too many are kept for", seconds(self.scale_down_ms), KUBERNETES),
        ]
    }

    /// What pods and nodes go through.
    fn of_pods(&self) -> Vec<Row> {
        let (first, last) = (seconds(self.replace_ms), seconds(self.replace_max_ms));
        let (noticed, given_up) = (seconds(self.unreachable_ms), seconds(self.evict_ms));
        vec![
            ("container start, image present", seconds(self.start_ms), CHOSEN),
            ("grace period", seconds(self.grace_ms), KUBERNETES),
            ("failed pods are replaced after", format!("{first}, doubling up to {last}"), CHOSEN),
            (
                "a lost node is noticed, and its pods given up",
                format!("after {noticed}, and {given_up} later"),
                KUBERNETES,
            ),
            ("device plugin back after a kubelet's restart", seconds(self.plugin_gap_ms), CHOSEN),
            (
                "pods beyond a ResourceQuota",
                "are refused at creation, or held by Berth, and let in when others have left"
                    .into(),
                "Kubernetes; controllers try again at once here",
            ),
        ]
    }
}

/// What is assumed, how much, and from where.
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

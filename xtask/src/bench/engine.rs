//! Measures the engine: decisions per second on a ladder of cluster sizes, at 95 % full.

mod flood;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::{Engine, Profile};
use berth_kubelet::TopologyPolicy;
use berth_model::spec::PodSpec;
use berth_testkit::cluster::{
    BuildError, Dice, NodeKind, ZONE, gpu_template, pending, spread, template,
};

const MIG_SMALL: &str = "nvidia.com/mig-1g.10gb";
const MIG_LARGE: &str = "nvidia.com/mig-3g.40gb";

/// Decisions that are timed on each rung.
const CHURN: usize = 50_000;

/// Evictions that are timed.
const PREEMPTIONS: usize = 10_000;

/// Nodes, decisions per second and microseconds at p99 that are aimed at.
const AIMS: [(usize, f64, Option<f64>); 2] =
    [(5_000, 50_000.0, Some(200.0)), (100_000, 20_000.0, None)];
const PREEMPTION_AIM: f64 = 5_000.0;

/// A cluster and who runs there.
pub(crate) struct World {
    pub(crate) engine: Engine,
    templates: Vec<Template>,
    running: Vec<(Arc<str>, i64)>,
    /// GPUs in all, and taken.
    gpus: (i64, i64),
    dice: Dice,
    pods: u64,
    now_ms: i64,
}

/// A kind of pod, how often it is drawn, and how many whole GPUs it takes.
#[derive(Clone)]
struct Template {
    spec: Arc<PodSpec>,
    weight: usize,
    gpus: i64,
}

/// The sizes of the ladder.
const LADDER: [usize; 5] = [100, 1_000, 5_000, 20_000, 100_000];

/// Every rung in a process of its own, so that memory is counted from nothing.
pub(crate) fn run(nodes_max: usize) -> Result<()> {
    println!(
        "{:>7} {:>8} {:>6} {:>11} {:>8} {:>8} {:>8} {:>7} {:>9} {:>9}",
        "nodes",
        "pods",
        "full",
        "decisions/s",
        "p50 us",
        "p99 us",
        "max us",
        "waits",
        "B/node",
        "B/pod"
    );
    let program = std::env::current_exe().context("finding this program")?;
    for nodes in LADDER.into_iter().filter(|nodes| *nodes <= nodes_max) {
        let rung = ["bench", "rung", &nodes.to_string()];
        let status = Command::new(&program).args(rung).status().context("starting a rung")?;
        ensure!(status.success(), "the rung of {nodes} nodes failed");
    }
    preemption(5_000.min(nodes_max))?;
    flood::run(1_000.min(nodes_max))
}

pub(crate) fn rung(nodes: usize) -> Result<()> {
    let start_bytes = resident_bytes()?;
    let mut world = World::new(nodes, 7).map_err(|error| anyhow!("{error}"))?;
    let node_bytes = resident_bytes()?.saturating_sub(start_bytes) / nodes as u64;
    let before_bytes = resident_bytes()?;
    let full = world.fill(0.95);
    let pods = world.running.len();
    let pod_bytes = resident_bytes()?.saturating_sub(before_bytes) / pods.max(1) as u64;
    let mut times = Vec::with_capacity(CHURN);
    let mut waits = 0;
    // The first of each kind makes its ranking; that is not what a decision costs.
    for _ in 0..1_000 {
        world.step();
    }
    let start = Instant::now();
    let mut decisions = 0;
    while decisions < CHURN {
        let before = Instant::now();
        let (made, waited) = world.step();
        times.push(before.elapsed());
        decisions += made;
        waits += waited;
    }
    let per_second = decisions as f64 / start.elapsed().as_secs_f64();
    let [p50, p99, max] = percentiles(times);
    println!(
        "{nodes:>7} {pods:>8} {:>5.1}% {per_second:>11.0} {p50:>8.1} {p99:>8.1} {max:>8.1} {waits:>7} {node_bytes:>9} {pod_bytes:>9}",
        full * 100.0
    );
    for (of, rate, p99_us) in AIMS.iter().filter(|(of, _, _)| *of == nodes) {
        let met = per_second >= *rate && p99_us.is_none_or(|limit| p99 <= limit);
        let p99_aim = p99_us.map_or(String::new(), |limit| format!(", p99 <= {limit} us"));
        let word = if met { "met" } else { "missed" };
        println!("        aim at {of} nodes: >= {rate} decisions/s{p99_aim}: {word}");
    }
    Ok(())
}

/// Serving pods that find every GPU taken by batch evict it.
fn preemption(nodes: usize) -> Result<()> {
    let mut world = World::new(nodes, 11).map_err(|error| anyhow!("{error}"))?;
    world.only_batch();
    let full = world.fill(1.0);
    let serving: Vec<Arc<PodSpec>> = [1, 2, 4]
        .into_iter()
        .map(|gpus| gpu_template(&format!("urgent-{gpus}"), 1_000, gpus).map(Arc::new))
        .collect::<Result<_, BuildError>>()
        .map_err(|error| anyhow!("{error}"))?;
    let mut times = Vec::new();
    let (mut made, mut evicted) = (0, 0);
    let start = Instant::now();
    while made < PREEMPTIONS {
        let spec = serving[made % serving.len()].clone();
        let before = Instant::now();
        let Some(victims) = world.preempt(&spec) else { break };
        times.push(before.elapsed());
        made += 1;
        evicted += victims;
    }
    let per_second = made as f64 / start.elapsed().as_secs_f64();
    let [p50, p99, max] = percentiles(times);
    let word = if per_second >= PREEMPTION_AIM { "met" } else { "missed" };
    println!(
        "preemption at {nodes} nodes, {:.1}% full: {made} preemptions, {evicted} evicted, {per_second:.0}/s, p50 {p50:.1} us, p99 {p99:.1} us, max {max:.1} us; aim >= {PREEMPTION_AIM}/s: {word}",
        full * 100.0
    );
    Ok(())
}

impl World {
    /// Nodes in pools of A100, H100 and H200, and one of every eight divided by MIG.
    pub(crate) fn new(nodes: usize, seed: u64) -> Result<Self, BuildError> {
        let strict = TopologyPolicy::SingleNumaNode;
        let kinds = [
            NodeKind::whole("a100", "NVIDIA-A100-SXM4-80GB", strict),
            NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", strict),
            NodeKind::whole("h200", "NVIDIA-H200", TopologyPolicy::Restricted),
            NodeKind {
                pool: "mig",
                product: "NVIDIA-H100-80GB-HBM3",
                policy: strict,
                devices: vec![(MIG_SMALL, 24), (MIG_LARGE, 8)],
            },
        ];
        let mut engine = Engine::new(Profile::Berth);
        let shares = [nodes / 4, nodes / 4, nodes - nodes / 4 * 2 - nodes / 8, nodes / 8];
        for (kind, count) in kinds.iter().zip(shares) {
            for event in kind.nodes(0, count)? {
                engine.apply(event);
            }
        }
        let gpus = (8 * (nodes - nodes / 8) as i64, 0);
        let (templates, running, dice) = (templates()?, Vec::new(), Dice::new(seed));
        Ok(Self { engine, templates, running, gpus, dice, pods: 0, now_ms: 0 })
    }

    /// Pods of low priority only, of one to four GPUs.
    pub(crate) fn only_batch(&mut self) {
        let batch = [1, 1, 2, 4].into_iter().enumerate().filter_map(|(at, gpus)| {
            let spec = gpu_template(&format!("batch-{at}"), 0, gpus).ok()?;
            Some(Template { spec: Arc::new(spec), weight: 1, gpus: i64::from(gpus) })
        });
        self.templates = batch.collect();
    }

    /// A kind of pod, by the weights of the mix.
    fn draw(&mut self) -> Template {
        let all: usize = self.templates.iter().map(|template| template.weight).sum();
        let mut at = self.dice.below(all);
        for template in &self.templates {
            if at < template.weight {
                return template.clone();
            }
            at -= template.weight;
        }
        self.templates[0].clone()
    }

    /// A pod looks for its place.
    fn arrive(&mut self, spec: &Arc<PodSpec>) -> Arc<str> {
        self.pods += 1;
        self.now_ms += 1;
        let pod = pending(spec, self.pods);
        let uid = pod.uid.clone();
        self.engine.apply(Event::Pod(pod));
        uid
    }

    fn leave(&mut self, uid: &Arc<str>) {
        self.engine.apply(Event::PodGone(uid.clone()));
    }

    /// Takes all decisions there are; how many, and how many of them were to wait.
    fn decide(&mut self, gpus: i64) -> (usize, usize) {
        let (mut made, mut waits) = (0, 0);
        while let Some(decision) = self.engine.decide(self.now_ms) {
            made += 1;
            match decision {
                Decision::Bind(binding) => {
                    self.gpus.1 += gpus;
                    self.running.push((binding.pod, gpus));
                }
                Decision::Hold { pod, .. } | Decision::Wait { pod } => {
                    waits += 1;
                    self.leave(&pod);
                }
                Decision::Preempt(preempting) => self.leave(&preempting.pod),
                // There are no gangs here.
                Decision::BindAll(_) | Decision::Reserve(_) | Decision::Disband(_) => {}
            }
        }
        (made, waits)
    }

    /// Fills the cluster until so much of its GPUs is taken or nothing fits any more.
    pub(crate) fn fill(&mut self, share: f64) -> f64 {
        let mut misses = 0;
        let wanted = (self.gpus.0 as f64 * share) as i64;
        while misses < 200 && self.gpus.1 < wanted {
            let template = self.draw();
            self.arrive(&template.spec);
            let (_, waits) = self.decide(template.gpus);
            misses = if waits > 0 { misses + 1 } else { 0 };
        }
        self.gpus.1 as f64 / self.gpus.0 as f64
    }

    /// One pod leaves and another comes.
    pub(crate) fn step(&mut self) -> (usize, usize) {
        if !self.running.is_empty() {
            let at = self.dice.below(self.running.len());
            let (uid, gpus) = self.running.swap_remove(at);
            self.gpus.1 -= gpus;
            self.leave(&uid);
        }
        let template = self.draw();
        self.arrive(&template.spec);
        self.decide(template.gpus)
    }

    /// A pod comes that has others evicted; they leave, it is bound. How many left.
    pub(crate) fn preempt(&mut self, spec: &Arc<PodSpec>) -> Option<usize> {
        self.arrive(spec);
        let Some(Decision::Preempt(preempting)) = self.engine.decide(self.now_ms) else {
            return None;
        };
        for victim in &preempting.victims {
            self.leave(victim);
        }
        match self.engine.decide(self.now_ms)? {
            Decision::Bind(_) => Some(preempting.victims.len()),
            _ => None,
        }
    }
}

/// A serving mix: GPUs, slices, pods spread by zone, and some that are not.
fn templates() -> Result<Vec<Template>, BuildError> {
    let mut templates = Vec::new();
    for (gpus, weight, services) in [(1, 8, 8), (2, 5, 6), (4, 4, 4), (8, 1, 2)] {
        for service in 0..services {
            let spec = gpu_template(&format!("serve-{gpus}-{service}"), 100, gpus)?;
            let spec = if service % 2 == 0 { spread(spec, ZONE, 5, true) } else { spec };
            templates.push(Template { spec: Arc::new(spec), weight, gpus: i64::from(gpus) });
        }
    }
    for (resource, weight) in [(MIG_SMALL, 12), (MIG_LARGE, 4)] {
        for service in 0..3 {
            let limits = [("cpu", "2"), ("memory", "16Gi"), (resource, "1")];
            let spec = template(&format!("{resource}-{service}"), 100, &limits)?;
            templates.push(Template { spec: Arc::new(spec), weight, gpus: 0 });
        }
    }
    Ok(templates)
}

fn percentiles(mut times: Vec<Duration>) -> [f64; 3] {
    times.sort_unstable();
    let at = |share: f64| {
        let place = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times.get(place).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    [at(0.5), at(0.99), at(1.0)]
}

/// Memory of this process that is in use.
fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").context("reading /proc/self/statm")?;
    let pages = text.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    Ok(pages.context("/proc/self/statm has no second number")? * 4096)
}

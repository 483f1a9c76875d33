//! Alibaba's openb cluster (`cluster-trace-gpu-v2023`): machines and lists of pods.
//!
//! What the trace does not say is assumed here: machines have one NUMA node, GPUs are divided on demand.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_kubelet::KubeletConfig;
use berth_model::affinity::{NodeAffinity, NodeTerm};
use berth_model::device::PreferredAllocation;
use berth_model::dice::Dice;
use berth_model::gpu::{Gpu, Health, Naming, WHOLE_GPU};
use berth_model::label::{Labels, Operator, Requirement};
use berth_model::machine::{Machine, RegularMachine};
use berth_model::node::Node;
use berth_model::numa::NumaMask;
use berth_model::pod::{Container, ContainerKind, Pod, Resources};
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::{ResourceList, ResourceName};
use berth_model::spec::{GpuNeed, PodSpec};
use berth_sim::experiment::{Experiment, Isolation, Job, NodeSetup, Setup, Workload, WorkloadKind};
use berth_sim::report::WorkloadOutline;

use super::{Row, Table, TraceError};

const MIB: i64 = 1 << 20;
const DAY_MS: i64 = 86_400_000;
const MODEL_LABEL: &str = "nvidia.com/gpu.product";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenbNode {
    pub name: String,
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    pub gpus: usize,
    /// Empty without GPUs.
    pub model: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenbPod {
    pub name: String,
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    pub gpus: usize,
    /// Thousandths of each GPU; less than 1000 only of a single GPU.
    pub gpu_milli: u16,
    /// GPU models that it can run on; none: any.
    pub models: Vec<String>,
    /// Creation and deletion, if the list has them.
    pub life_ms: Option<(i64, i64)>,
}

pub fn read_nodes(file: &str, text: &str) -> Result<Vec<OpenbNode>, TraceError> {
    let table = Table::new(file, text)?;
    table
        .rows()
        .map(|row| {
            Ok(OpenbNode {
                name: row.text("sn")?.to_owned(),
                cpu_milli: row.count("cpu_milli", 1_024_000)? as i64,
                memory_bytes: row.count("memory_mib", 1 << 30)? as i64 * MIB,
                gpus: row.count("gpu", 64)? as usize,
                model: row.text("model")?.to_owned(),
            })
        })
        .collect()
}

pub fn read_pods(file: &str, text: &str) -> Result<Vec<OpenbPod>, TraceError> {
    let table = Table::new(file, text)?;
    let has_times = table.has("creation_time") && table.has("deletion_time");
    // Pods that were still there when the trace ended have no time of deletion.
    let is_over = |row: &Row<'_>| {
        Ok(has_times
            && !row.text("creation_time")?.is_empty()
            && !row.text("deletion_time")?.is_empty())
    };
    table
        .rows()
        .map(|row| {
            let seconds = |column| row.number(column, 1e12).map(|at| (at * 1000.0) as i64);
            let gpus = row.count("num_gpu", 64)? as usize;
            let gpu_milli = row.count("gpu_milli", 1000)? as u16;
            if gpus > 0 && gpu_milli < 1000 && (gpus > 1 || gpu_milli == 0) {
                let what = format!("gpu_milli {gpu_milli} of {gpus} GPUs");
                return Err(row.error(format!("{what}: only a single GPU can be shared")));
            }
            let models = if table.has("gpu_spec") { row.text("gpu_spec")? } else { "" };
            Ok(OpenbPod {
                name: row.text("name")?.to_owned(),
                cpu_milli: row.count("cpu_milli", 1_024_000)? as i64,
                memory_bytes: row.count("memory_mib", 1 << 30)? as i64 * MIB,
                gpus,
                gpu_milli,
                models: models
                    .split('|')
                    .filter(|one| !one.is_empty())
                    .map(str::to_owned)
                    .collect(),
                life_ms: if is_over(&row)? {
                    Some((seconds("creation_time")?, seconds("deletion_time")?))
                } else {
                    None
                },
            })
        })
        .collect()
}

/// How pods arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Play {
    /// One per second in random order, cloned or dropped at random until they request `demand` of all
    /// GPUs; they never leave. This is the experiment of FGD (ATC'23).
    Fill {
        /// 1.3: 130 % of the GPUs.
        demand: f64,
        pods_max: usize,
    },
    /// With their own arrival times and lifetimes. Copies raise the load, which is low in the trace.
    Live {
        /// Copies of each pod, at different times of the first day.
        copies: u32,
    },
}

pub fn experiment(
    nodes: &[OpenbNode],
    pods: &[OpenbPod],
    play: Play,
    seed: u64,
    setups: Vec<Setup>,
) -> Experiment {
    let mut machines: BTreeMap<(i64, i64), Arc<Machine>> = BTreeMap::new();
    let setups_of_nodes: Vec<NodeSetup> =
        nodes.iter().filter_map(|node| setup_of(node, &mut machines)).collect();
    let mut templates = Templates::default();
    let mut jobs = Vec::new();
    let dice = Dice::new(seed);
    let duration_ms = match play {
        Play::Fill { demand, pods_max } => {
            let gpus: usize = nodes.iter().map(|node| node.gpus).sum();
            let wanted_milli = (gpus as f64 * 1000.0 * demand) as i64;
            let order = filled(pods, wanted_milli, dice);
            for (at, pod) in order.iter().take(pods_max).enumerate() {
                jobs.push(job(at as i64 * 1000, templates.of(pod), None));
            }
            (jobs.len() as i64 + 60) * 1000
        }
        Play::Live { copies } => {
            jobs = lived(pods, copies, dice, &mut templates);
            jobs.last().map_or(1, |job| job.at_ms) + DAY_MS
        }
    };
    Experiment {
        title: "openb replay".to_owned(),
        description:
            "Alibaba's openb GPU cluster (cluster-trace-gpu-v2023): machines taken for one \
                      NUMA node, GPUs divided on demand."
                .to_owned(),
        seed,
        duration_ms,
        nodes: setups_of_nodes,
        workloads: vec![arriving("pods", jobs)],
        setups,
        ..Experiment::default()
    }
}

/// Pods with the arrival times and lifetimes of the trace, each several times.
pub fn workload(name: &str, pods: &[OpenbPod], copies: u32, seed: u64) -> Workload {
    arriving(name, lived(pods, copies, Dice::new(seed), &mut Templates::default()))
}

fn arriving(name: &str, jobs: Vec<Job>) -> Workload {
    Workload {
        outline: WorkloadOutline {
            kind: "arrivals".to_owned(),
            namespace: "openb".to_owned(),
            name: name.to_owned(),
            team: "openb".to_owned(),
            class: "batch".to_owned(),
        },
        gpu_memory_bytes: 0,
        busy_milli: 1000,
        load_ms: 0,
        kind: WorkloadKind::Jobs(jobs),
    }
}

/// Copies beyond the first arrive at other times of the following day.
fn lived(pods: &[OpenbPod], copies: u32, dice: Dice, templates: &mut Templates) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (number, pod) in pods.iter().enumerate() {
        let Some((from_ms, to_ms)) = pod.life_ms else { continue };
        for copy in 0..copies.max(1) {
            let draw = dice.of(u64::from(copy)).below(number as u64, DAY_MS as usize) as i64;
            let at_ms = from_ms + if copy == 0 { 0 } else { draw };
            let lasts_ms = (to_ms - from_ms).max(1000);
            jobs.push(job(at_ms, templates.of(pod), Some(lasts_ms)));
        }
    }
    jobs.sort_by_key(|job| job.at_ms);
    jobs
}

/// Pods in random order, cloned or dropped until they request `demand`.
fn filled(pods: &[OpenbPod], wanted_milli: i64, dice: Dice) -> Vec<&OpenbPod> {
    let asked = |pod: &OpenbPod| pod.gpus as i64 * i64::from(pod.gpu_milli);
    let mut order: Vec<&OpenbPod> = pods.iter().collect();
    shuffle(&mut order, dice.of(1));
    let mut have: i64 = order.iter().map(|pod| asked(pod)).sum();
    while have > wanted_milli {
        let Some(pod) = order.pop() else { break };
        have -= asked(pod);
    }
    // Nothing to clone asks for nothing.
    let clones = if have > 0 { pods.len() } else { 0 };
    for draw in 0.. {
        if have >= wanted_milli || clones == 0 {
            break;
        }
        let Some(pod) = pods.get(dice.of(2).below(draw, clones)) else { break };
        have += asked(pod);
        order.push(pod);
    }
    shuffle(&mut order, dice.of(3));
    order
}

fn shuffle<T>(list: &mut [T], dice: Dice) {
    for at in (1..list.len()).rev() {
        list.swap(at, dice.below(at as u64, at + 1));
    }
}

fn job(at_ms: i64, template: Arc<PodSpec>, duration_ms: Option<i64>) -> Job {
    Job {
        at_ms,
        template,
        completions: 1,
        parallelism: 1,
        duration_ms,
        retries: 0,
        deadline_ms: None,
        checkpoint_ms: 0,
    }
}

fn setup_of(
    node: &OpenbNode,
    machines: &mut BTreeMap<(i64, i64), Arc<Machine>>,
) -> Option<NodeSetup> {
    let cpus = (node.cpu_milli / 1000).max(1);
    let machine = match machines.get(&(cpus, node.memory_bytes)) {
        Some(machine) => machine.clone(),
        None => {
            let regular = RegularMachine {
                sockets: 1,
                numa_per_socket: 1,
                cores_per_numa: cpus as usize,
                threads: 1,
                memory_bytes: node.memory_bytes as u64,
            };
            let machine = Arc::new(regular.build().ok()?);
            machines.insert((cpus, node.memory_bytes), machine.clone());
            machine
        }
    };
    let memory_bytes: u64 = match node.model.as_str() {
        "V100M32" => 32 << 30,
        "A10" | "G2" => 24 << 30,
        "G3" => 80 << 30,
        _ => 16 << 30,
    };
    let mut labels: Labels = [("kubernetes.io/hostname", node.name.as_str())].into_iter().collect();
    if node.gpus > 0 {
        labels.insert(MODEL_LABEL, node.model.as_str());
        labels.insert("nvidia.com/gpu.memory", (memory_bytes >> 20).to_string());
        labels.insert("berth.dev/gpu-division", "shares");
        labels.insert("berth.dev/pool", node.model.as_str());
    }
    let gpus = (0..node.gpus)
        .map(|at| Gpu {
            id: format!("gpu-{at:02}"),
            product: node.model.clone(),
            memory_bytes,
            numa: NumaMask::single(0),
            health: Health::Healthy,
            mig: None,
            replicas: None,
        })
        .collect();
    let mut allocatable = amounts(node.cpu_milli, node.memory_bytes);
    allocatable.insert(ResourceName::new("pods"), Quantity::from_units(1_000, Format::DecimalSi));
    Some(NodeSetup {
        node: Node { name: node.name.as_str().into(), labels, allocatable, ..Node::default() },
        machine,
        kubelet: KubeletConfig::default(),
        gpus,
        naming: Naming::default(),
        preferred: PreferredAllocation::LowestId,
        sharing: Isolation::MpsCapped,
        microusd_per_hour: 0,
    })
}

fn amounts(cpu_milli: i64, memory_bytes: i64) -> ResourceList {
    [
        (ResourceName::cpu(), Quantity::from_milli(cpu_milli)),
        (ResourceName::memory(), Quantity::from_units(memory_bytes, Format::BinarySi)),
    ]
    .into_iter()
    .collect()
}

/// CPU, memory, number of GPUs, thousandths of each, and models.
type Requests = (i64, i64, usize, u16, Vec<String>);

/// Templates by request; pods with the same requests share one.
#[derive(Default)]
struct Templates {
    by_requests: BTreeMap<Requests, Arc<PodSpec>>,
}

impl Templates {
    fn of(&mut self, pod: &OpenbPod) -> Arc<PodSpec> {
        let key = (pod.cpu_milli, pod.memory_bytes, pod.gpus, pod.gpu_milli, pod.models.clone());
        self.by_requests.entry(key).or_insert_with(|| Arc::new(template(pod))).clone()
    }
}

fn template(pod: &OpenbPod) -> PodSpec {
    let mut limits = amounts(pod.cpu_milli, pod.memory_bytes);
    let is_part = pod.gpus == 1 && pod.gpu_milli < 1000;
    if pod.gpus > 0 && !is_part {
        let count = Quantity::from_units(pod.gpus as i64, Format::DecimalSi);
        limits.insert(ResourceName::new(WHOLE_GPU), count);
    }
    let resources = Resources { requests: limits.clone(), limits };
    let container = Container { name: "main".to_owned(), kind: ContainerKind::App, resources };
    let mut node_affinity = NodeAffinity::default();
    if !pod.models.is_empty() && pod.gpus > 0 {
        let models = pod.models.iter().map(|model| model.as_str().into()).collect();
        let requirement = Requirement { key: MODEL_LABEL.into(), operator: Operator::In(models) };
        node_affinity.required =
            Some(vec![NodeTerm { labels: vec![requirement], ..NodeTerm::default() }]);
    }
    PodSpec {
        namespace: "openb".into(),
        pod: Pod { containers: vec![container], ..Pod::default() },
        node_affinity,
        gpu: is_part.then_some(GpuNeed { memory_bytes: 0, compute_milli: pod.gpu_milli.max(1) }),
        ..PodSpec::default()
    }
}

//! What is left over: the same arrivals under three profiles.
//!
//! 1,000 nodes of 8 GPUs on two sockets under `single-numa-node`; pods of 1, 1, 1, 1, 2, 2 and 4 GPUs
//! drawn at random, with 8 CPUs and 64 GiB per GPU; 4,000 pods ask for some 86 % of the GPUs. Pods
//! whose kubelet turns them down come back as new pods, as a controller would make them, up to a
//! limit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow};
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::{Engine, Profile};
use berth_kubelet::{Kubelet, PodDemand, TopologyPolicy};
use berth_model::spec::PodSpec;
use berth_testkit::cluster::{BuildError, Dice, NodeKind, gpu_template, pending};

const NODES: usize = 1_000;
const PODS: usize = 4_000;
const SIZES: [u32; 7] = [1, 1, 1, 1, 2, 2, 4];

/// How often a pod that its kubelet turned down comes back.
const RETRIES_MAX: usize = 3;

/// After the arrivals, so many times one pod ends and another comes.
const CHURN: usize = 8_000;

/// What came of pods that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// Pods that found no node.
    stranded: usize,
    /// Times a kubelet turned a bound pod down.
    rejections: usize,
    /// Pods that were turned down every time.
    given_up: usize,
}

pub(crate) fn run() -> Result<()> {
    println!(
        "{:<26} {:^33} {:^33} {:>8}",
        "", "4,000 pods arrive", "then 8,000 end, as many arrive", ""
    );
    let columns = format!("{:>10} {:>11} {:>10}", "stranded", "rejections", "given up");
    println!("{:<26} {columns} {columns} {:>8}", "profile", "seconds");
    for (name, profile) in [
        ("kube-scheduler", Profile::KubeScheduler),
        ("kube-scheduler, packing", Profile::KubeSchedulerPacking),
        ("berth", Profile::Berth),
    ] {
        let start = Instant::now();
        let mut cluster = Cluster::new(profile, 86).map_err(|error| anyhow!("{error}"))?;
        let arrived = cluster.arrivals(PODS, false).map_err(|error| anyhow!("{error}"))?;
        let churned = cluster.arrivals(CHURN, true).map_err(|error| anyhow!("{error}"))?;
        let columns = [arrived, churned].map(|Outcome { stranded, rejections, given_up }| {
            format!("{stranded:>10} {rejections:>11} {given_up:>10}")
        });
        let seconds = start.elapsed().as_secs_f64();
        println!("{name:<26} {} {} {seconds:>8.2}", columns[0], columns[1]);
    }
    Ok(())
}

/// The kubelets themselves, which no scheduler sees into.
struct Kubelets {
    by_node: BTreeMap<Arc<str>, Kubelet>,
}

impl Kubelets {
    fn new(events: &[Event]) -> Self {
        let mut by_node = BTreeMap::new();
        for event in events {
            if let Event::Topology { node, topology: Some(topology) } = event {
                by_node.insert(node.clone(), topology.empty_kubelet().clone());
            }
        }
        Self { by_node }
    }

    fn remove(&mut self, node: &Arc<str>, uid: &str) {
        if let Some(kubelet) = self.by_node.get_mut(node) {
            kubelet.remove(uid);
        }
    }

    /// Whether the node's kubelet takes the pod.
    fn admit(&mut self, node: &Arc<str>, uid: &str, spec: &PodSpec) -> Result<bool, BuildError> {
        let Some(kubelet) = self.by_node.get_mut(node) else { return Ok(false) };
        let demand = PodDemand::new(&spec.pod, kubelet.config().version)?;
        Ok(kubelet.admit(uid, &demand).is_ok())
    }
}

/// A scheduler, the nodes' kubelets, and who runs.
struct Cluster {
    engine: Engine,
    kubelets: Kubelets,
    specs: Vec<Arc<PodSpec>>,
    running: Vec<(Arc<str>, Arc<str>)>,
    dice: Dice,
    pods: u64,
}

impl Cluster {
    fn new(profile: Profile, seed: u64) -> Result<Self, BuildError> {
        let kind = NodeKind::whole("gpu", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::SingleNumaNode);
        let events = kind.nodes(0, NODES)?;
        let kubelets = Kubelets::new(&events);
        let mut engine = Engine::new(profile);
        events.into_iter().for_each(|event| engine.apply(event));
        let spec = |gpus: &u32| gpu_template(&format!("size-{gpus}"), 0, *gpus).map(Arc::new);
        let specs = SIZES.iter().map(spec).collect::<Result<_, _>>()?;
        let (running, dice) = (Vec::new(), Dice::new(seed));
        Ok(Self { engine, kubelets, specs, running, dice, pods: 0 })
    }

    /// So many pods come, each after another has ended if `churn` is set.
    fn arrivals(&mut self, count: usize, churn: bool) -> Result<Outcome, BuildError> {
        let mut outcome = Outcome::default();
        for _ in 0..count {
            if churn {
                let (uid, node) = self.running.swap_remove(self.dice.below(self.running.len()));
                self.kubelets.remove(&node, &uid);
                self.engine.apply(Event::PodGone(uid));
            }
            let spec = self.specs[self.dice.below(self.specs.len())].clone();
            self.arrive(&spec, &mut outcome)?;
        }
        Ok(outcome)
    }

    /// A pod comes, and comes back if its kubelet turns it down.
    fn arrive(&mut self, spec: &Arc<PodSpec>, outcome: &mut Outcome) -> Result<(), BuildError> {
        for _ in 0..=RETRIES_MAX {
            self.pods += 1;
            let pod = pending(spec, self.pods);
            let uid = pod.uid.clone();
            self.engine.apply(Event::Pod(pod));
            let Some(Decision::Bind(binding)) = self.engine.decide(self.pods as i64) else {
                outcome.stranded += 1;
                self.engine.apply(Event::PodGone(uid));
                return Ok(());
            };
            if self.kubelets.admit(&binding.node, &binding.pod, spec)? {
                self.running.push((binding.pod, binding.node));
                return Ok(());
            }
            outcome.rejections += 1;
            self.engine.apply(Event::PodGone(binding.pod));
        }
        outcome.given_up += 1;
        Ok(())
    }
}

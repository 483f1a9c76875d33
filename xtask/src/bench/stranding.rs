//! What is left over: the same arrivals under three profiles.
//!
//! 1,000 nodes of 8 GPUs on two sockets under `single-numa-node`; pods of 1, 1, 1, 1, 2, 2 and 4 GPUs
//! drawn at random, with 8 CPUs and 64 GiB per GPU; 4,000 pods ask for some 86 % of the GPUs. Pods
//! whose kubelet turns them down come back as new pods, as a controller would make them, up to a
//! limit.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow};
use berth_engine::decision::Decision;
use berth_engine::event::{Event, NodeTopology};
use berth_engine::{Engine, Profile};
use berth_kubelet::{Kubelet, PodDemand, TopologyPolicy};
use berth_model::spec::PodSpec;
use berth_testkit::cluster::{BuildError, Dice, NodeKind, gpu_template, pending};

const NODES: usize = 1_000;
const PODS: usize = 4_000;
const SIZES: [u32; 7] = [1, 1, 1, 1, 2, 2, 4];

/// How often a pod that its kubelet turned down comes back.
const RETRIES_MAX: usize = 3;

/// What came of the arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Pods that run.
    pub(crate) running: usize,
    /// Pods that found no node.
    pub(crate) stranded: usize,
    /// Times a kubelet turned a bound pod down.
    pub(crate) rejections: usize,
    /// Pods that were turned down every time.
    pub(crate) given_up: usize,
}

pub(crate) fn run() -> Result<()> {
    println!(
        "{:<26} {:>8} {:>9} {:>11} {:>9} {:>8}",
        "profile", "running", "stranded", "rejections", "given up", "seconds"
    );
    for (name, profile) in [
        ("kube-scheduler", Profile::KubeScheduler),
        ("kube-scheduler, packing", Profile::KubeSchedulerPacking),
        ("berth", Profile::Berth),
    ] {
        let start = Instant::now();
        let outcome = arrivals(profile, 86).map_err(|error| anyhow!("{error}"))?;
        let Outcome { running, stranded, rejections, given_up } = outcome;
        println!(
            "{name:<26} {running:>8} {stranded:>9} {rejections:>11} {given_up:>9} {:>8.2}",
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// The kubelets themselves, which no scheduler sees into.
struct Kubelets {
    by_node: std::collections::BTreeMap<Arc<str>, Kubelet>,
}

impl Kubelets {
    fn new(events: &[Event]) -> Result<Self, BuildError> {
        let mut by_node = std::collections::BTreeMap::new();
        for event in events {
            if let Event::Topology { node, topology: Some(topology) } = event {
                let NodeTopology { machine, config, devices } = topology.as_ref();
                let kubelet = Kubelet::new(machine.clone(), config.clone(), devices.clone())?;
                by_node.insert(node.clone(), kubelet);
            }
        }
        Ok(Self { by_node })
    }

    /// Whether the node's kubelet takes the pod.
    fn admit(&mut self, node: &Arc<str>, uid: &str, spec: &PodSpec) -> Result<bool, BuildError> {
        let Some(kubelet) = self.by_node.get_mut(node) else { return Ok(false) };
        let demand = PodDemand::new(&spec.pod, kubelet.config().version)?;
        Ok(kubelet.admit(uid, &demand).is_ok())
    }
}

fn arrivals(profile: Profile, seed: u64) -> Result<Outcome, BuildError> {
    let kind = NodeKind::whole("gpu", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::SingleNumaNode);
    let events = kind.nodes(0, NODES)?;
    let mut kubelets = Kubelets::new(&events)?;
    let mut engine = Engine::new(profile);
    events.into_iter().for_each(|event| engine.apply(event));
    let specs: Vec<Arc<PodSpec>> = SIZES
        .iter()
        .map(|gpus| gpu_template(&format!("size-{gpus}"), 0, *gpus).map(Arc::new))
        .collect::<Result<_, _>>()?;
    let mut dice = Dice::new(seed);
    let mut outcome = Outcome::default();
    let mut number = 0;
    for _ in 0..PODS {
        let spec = &specs[dice.below(specs.len())];
        let mut tries = 0;
        loop {
            number += 1;
            tries += 1;
            engine.apply(Event::Pod(pending(spec, number)));
            let Some(Decision::Bind(binding)) = engine.decide(number as i64) else {
                outcome.stranded += 1;
                break;
            };
            if kubelets.admit(&binding.node, &binding.pod, spec)? {
                outcome.running += 1;
                break;
            }
            outcome.rejections += 1;
            engine.apply(Event::PodGone(binding.pod));
            if tries > RETRIES_MAX {
                outcome.given_up += 1;
                break;
            }
        }
    }
    Ok(outcome)
}

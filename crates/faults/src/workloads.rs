//! What a world consists of: nodes, their kubelets and what they hide, and workloads with their templates.
//!
//! Owns making them from a seed. Must not know the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_control::core::SeenPod;
use berth_engine::event::NodeTopology;
use berth_kubelet::{Kubelet, TopologyPolicy};
use berth_model::node::Node;
use berth_model::resource::ResourceName;
use berth_model::spec::{PodObject, PodSpec};
use berth_testkit::cluster::{BuildError, Dice, GPU, NodeKind, gpu_template, template};

use crate::server::Stored;

/// A node as it really is.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) node: Node,
    /// What is told of its inside.
    pub(crate) told: Option<Arc<NodeTopology>>,
    pub(crate) kubelet: Kubelet,
}

/// A workload: so many pods like this.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) spec: Arc<PodSpec>,
    pub(crate) wanted: usize,
}

/// A node of some kind, with something that nobody is told of in some of them.
pub(crate) fn machine(dice: &mut Dice, index: usize) -> Result<Machine, BuildError> {
    let policies = [
        TopologyPolicy::None,
        TopologyPolicy::BestEffort,
        TopologyPolicy::Restricted,
        TopologyPolicy::SingleNumaNode,
    ];
    let policy = policies[dice.below(policies.len())];
    let mut kind = NodeKind::whole("gpu", "NVIDIA-H100-80GB-HBM3", policy);
    let count = [2, 4, 8][dice.below(3)];
    kind.devices = vec![(GPU, count)];
    let node = kind.node(index)?;
    let inside = kind.topology()?;
    let mut kubelet = inside.empty_kubelet().clone();
    let told = match dice.below(8) {
        // Nobody tells.
        0 => None,
        // Somebody tells what is not so.
        1 => {
            let other = NodeKind { policy: TopologyPolicy::None, ..kind };
            Some(other.topology()?)
        }
        // Something is held that nobody knows of.
        2 => {
            let ghost = gpu_template("ghost", 0, 1)?;
            let demand = kubelet.demand(&ghost.pod)?;
            kubelet.admit("ghost", &demand).ok();
            Some(inside)
        }
        _ => Some(inside),
    };
    Ok(Machine { node, told, kubelet })
}

/// The workloads of a world.
pub(crate) fn workloads(dice: &mut Dice) -> Result<Vec<Workload>, BuildError> {
    let count = 3 + dice.below(5);
    let mut all = Vec::new();
    for number in 0..count {
        let app = format!("app-{number}");
        let priority = [0, 0, 0, 100, 1_000][dice.below(5)];
        let spec = match dice.below(6) {
            0 => template(&app, priority, &[("cpu", "20"), ("memory", "100Gi")])?,
            1 => template(&app, priority, &[("cpu", "2500m"), ("memory", "3Gi")])?,
            kind => gpu_template(&app, priority, [1, 1, 2, 4][kind - 2])?,
        };
        all.push(Workload { spec: Arc::new(spec), wanted: dice.below(7) });
    }
    Ok(all)
}

/// A new pod of a workload.
pub(crate) fn pod(number: u64, workload: usize, spec: &Arc<PodSpec>, now_ms: u64) -> Stored {
    let object = PodObject {
        uid: format!("uid-{number:05}").into(),
        name: format!("pod-{number:05}").into(),
        spec: spec.clone(),
        created_at_ms: 1_800_000_000_000 + now_ms as i64,
        started_at_ms: None,
        node: None,
        nominated: None,
        phase: berth_model::spec::Phase::Alive,
        uncounted_at_ms: None,
        gpu_grant: None,
        claims: Arc::default(),
    };
    let seen = SeenPod {
        object,
        version: 0,
        ours: true,
        refused: None,
        condition: None,
        invalid: None,
        outline: None,
    };
    Stored { seen, workload, by_others: false }
}

/// What a pod asks for in all, in billionths.
pub(crate) fn requests(spec: &PodSpec) -> BTreeMap<ResourceName, i128> {
    let mut sums = BTreeMap::new();
    for container in &spec.pod.containers {
        for (name, amount) in &container.resources.requests {
            *sums.entry(name.clone()).or_insert(0) += amount.nanos();
        }
    }
    *sums.entry(ResourceName::new("pods")).or_insert(0) += 1_000_000_000;
    sums
}

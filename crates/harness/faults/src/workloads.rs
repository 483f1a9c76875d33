//! What a world consists of: nodes, their kubelets and what they hide, and workloads with their templates.
//!
//! Owns making them from a seed. Must not know the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_control::core::SeenPod;
use berth_kubelet::NodeTopology;
use berth_kubelet::{Kubelet, TopologyPolicy};
use berth_model::gang::{Disruption, GangMembership, GangTerms};
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
    /// Each of its pods has a shape of its own.
    pub(crate) varied: bool,
    /// It belongs to a tenant that does what it can to be in the way of others.
    pub(crate) hostile: bool,
}

/// The namespace of the hostile tenant.
pub(crate) const HOSTILE: &str = "hostile";

/// The namespace of pods that ask for so little that they always have to be scheduled soon.
pub(crate) const MODEST: &str = "modest";

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
        let wanted = dice.below(7);
        all.push(Workload { spec: Arc::new(spec), wanted, varied: false, hostile: false });
    }
    Ok(all)
}

/// What a hostile tenant runs: a gang that can never start and would wait for a week, a flood of pods of
/// distinct shapes that fit nowhere, and pods like everybody's that its other deeds are about.
pub(crate) fn hostile_workloads(dice: &mut Dice) -> Result<Vec<Workload>, BuildError> {
    let size = 2 + dice.below(24);
    let terms = GangTerms {
        min: size as u32,
        topology: None,
        timeout_ms: 7 * 24 * 3_600_000,
        disruption: Disruption::Whole,
    };
    let mut gang = gpu_template("crowd", 0, [1, 2, 8][dice.below(3)])?;
    gang.gang = Some(GangMembership { name: "crowd".into(), terms: Some(terms) });
    let flood = gpu_template("flood", 0, 9)?;
    let plain = gpu_template("plain", 0, 1)?;
    let counts = [size, 30 + dice.below(60), 1 + dice.below(6)];
    let all = [(gang, false), (flood, true), (plain, false)].into_iter().zip(counts);
    let workload = |((mut spec, varied), wanted): ((PodSpec, bool), usize)| {
        spec.namespace = HOSTILE.into();
        Workload { spec: Arc::new(spec), wanted, varied, hostile: true }
    };
    Ok(all.map(workload).collect())
}

/// A pod that asks for next to nothing.
pub(crate) fn modest() -> Result<PodSpec, BuildError> {
    let mut spec = template("modest", 0, &[("cpu", "1m"), ("memory", "1Mi")])?;
    spec.namespace = MODEST.into();
    Ok(spec)
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
        deletion: None,
        gpu_grant: None,
        claims: Arc::default(),
    };
    let seen = SeenPod {
        object,
        version: 0,
        ours: true,
        scheduler: Some("berth".into()),
        record: None,
        rejected: None,
        condition: None,
        invalid: None,
        outline: None,
    };
    Stored { seen, workload, by_others: false, rigid: false }
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

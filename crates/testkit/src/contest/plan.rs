//! What a contest is about: nodes, gangs, and when pods come.
//!
//! Owns the draw. Must not know what is decided.

use std::sync::Arc;

use berth_model::gang::{Disruption, GangTerms, GangTopology, Membership};
use berth_model::label::Labels;
use berth_model::node::Node;
use berth_model::spec::PodSpec;

use crate::cluster::{BuildError, Dice, GPU, ZONE, resources, template};

/// A second topology key, finer than zones.
pub(super) const RACK: &str = "rack";

/// Pods live at most so long, which is less than what gangs wait for those that are in the way.
pub(super) const LIFE_MS_MAX: i64 = 60_000;

/// What gangs say about how long nodes may be kept for them.
const TIMEOUT_MS: i64 = 2 * LIFE_MS_MAX;

/// A gang as it was drawn.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) name: Arc<str>,
    pub(super) min: usize,
    /// The key of which all members need one value.
    pub(super) key: Option<&'static str>,
    /// GPUs of each member.
    pub(super) gpus: Vec<i64>,
    pub(super) priority: i32,
    pub(super) at_ms: i64,
}

/// Everything that is drawn beforehand.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) nodes: Vec<Node>,
    pub(super) gangs: Vec<Drawn>,
    /// When single pods come, their GPUs and their priority.
    pub(super) singles: Vec<(i64, i64, i32)>,
    /// Whether all are equally important and everything that is decided succeeds: then it is known
    /// how long a gang waits at most.
    pub(super) is_calm: bool,
}

impl Plan {
    pub(super) fn new(dice: &mut Dice) -> Result<Self, BuildError> {
        let is_calm = dice.below(2) == 0;
        let mut nodes = Vec::new();
        for number in 0..3 + dice.below(8) {
            nodes.push(node(dice, number)?);
        }
        let priority = |dice: &mut Dice| if is_calm { 0 } else { [0, 0, 10][dice.below(3)] };
        let all: i64 = nodes.iter().map(gpus_of).sum();
        let horizon_ms = 200_000 + 100_000 * dice.below(3) as i64;
        let mut gangs = Vec::new();
        for number in 0..2 + dice.below(9) {
            let size = 2 + dice.below(7);
            let each = [1, 1, 2, 4, 8][dice.below(5)];
            let mut gpus = vec![each; size];
            if dice.below(4) == 0 {
                // A leader that is smaller or larger than the others.
                gpus[0] = [1, 2, 8][dice.below(3)];
            }
            gangs.push(Drawn {
                name: format!("gang-{number}").into(),
                min: size - usize::from(dice.below(4) == 0).min(size - 2),
                key: [None, None, Some(ZONE), Some(RACK)][dice.below(4)],
                gpus,
                priority: priority(dice),
                at_ms: dice.below(horizon_ms as usize / 2) as i64,
            });
        }
        // Single pods alone ask for about as much as there is, and often for more.
        let mean_gpus_ms = 2 * LIFE_MS_MAX / 2;
        let load_percent = [60, 100, 150][dice.below(3)];
        let pods = horizon_ms * all * load_percent / (100 * mean_gpus_ms);
        let mut singles = Vec::new();
        for _ in 0..pods {
            let gpus = [1, 1, 2, 2, 4][dice.below(5)];
            singles.push((dice.below(horizon_ms as usize) as i64, gpus, priority(dice)));
        }
        singles.sort_unstable();
        Ok(Self { nodes, gangs, singles, is_calm })
    }
}

/// The GPUs of a node.
pub(super) fn gpus_of(node: &Node) -> i64 {
    node.allocatable.get(GPU).map_or(0, |gpus| gpus.value())
}

fn node(dice: &mut Dice, number: usize) -> Result<Node, BuildError> {
    let name: Arc<str> = format!("node-{number}").into();
    let mut labels = Labels::default();
    labels.insert("kubernetes.io/hostname", name.clone());
    labels.insert(ZONE, format!("zone-{}", dice.below(2)));
    labels.insert(RACK, format!("rack-{}", dice.below(4)));
    let gpus = ["4", "8", "8"][dice.below(3)];
    let allocatable =
        resources(&[("cpu", "64"), ("memory", "512Gi"), ("pods", "110"), (GPU, gpus)])?;
    Ok(Node { name, labels, allocatable, ..Node::default() })
}

/// The template of pods that ask for some GPUs.
pub(super) fn single(gpus: i64, priority: i32) -> Result<Arc<PodSpec>, BuildError> {
    Ok(Arc::new(template("single", priority, &[(GPU, &gpus.to_string())])?))
}

/// The template of a member of a gang.
pub(super) fn member(gang: &Drawn, gpus: i64) -> Result<Arc<PodSpec>, BuildError> {
    let mut spec = template(&gang.name, gang.priority, &[(GPU, &gpus.to_string())])?;
    let terms = GangTerms {
        min: gang.min as u32,
        topology: gang.key.map(|key| GangTopology { key: key.into(), required: true }),
        timeout_ms: TIMEOUT_MS,
        disruption: Disruption::Whole,
    };
    spec.gang = Some(Membership { name: gang.name.clone(), terms: Some(terms) });
    Ok(Arc::new(spec))
}

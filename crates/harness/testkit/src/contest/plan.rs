//! What a contest is about: nodes, gangs, and when pods come.
//!
//! Owns the draw. Must not know what is decided.

use std::sync::Arc;

use berth_engine::config::ReservationBudget;
use berth_model::gang::{Disruption, GangMembership, GangTerms, GangTopology};
use berth_model::label::Labels;
use berth_model::node::Node;
use berth_model::spec::{Controller, PodSpec};

use crate::cluster::{BuildError, Dice, GPU, ZONE, resources, template};

/// A second topology key, finer than zones.
pub(super) const RACK: &str = "rack";

/// Pods live at most so long, which is less than what gangs wait for those that are in the way.
pub(super) const LIFE_MS_MAX: i64 = 60_000;

/// What gangs say about how long nodes may be kept for them.
const TIMEOUT_MS: i64 = 2 * LIFE_MS_MAX;

/// What gangs say that want nodes for themselves for as long as they can.
const GREEDY_TIMEOUT_MS: i64 = 7 * 24 * 3_600_000;

/// Pods of services live this many times longer than others.
const SERVICE_LIVES: i64 = 5;

/// A gang as it was drawn.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) name: Arc<str>,
    pub(super) namespace: Arc<str>,
    pub(super) min: usize,
    /// The key of which all members need one value.
    pub(super) key: Option<&'static str>,
    /// GPUs of each member.
    pub(super) gpus: Vec<i64>,
    pub(super) priority: i32,
    pub(super) timeout_ms: i64,
    pub(super) at_ms: i64,
}

/// A pod that is in no gang, as it was drawn.
#[derive(Clone, Debug)]
pub(super) struct Single {
    pub(super) at_ms: i64,
    /// Its GPUs; without any it asks for some CPU.
    pub(super) gpus: i64,
    pub(super) priority: i32,
    /// `activeDeadlineSeconds`, if it has any. It has always ended before that.
    pub(super) deadline_ms: Option<i64>,
    /// It belongs to a Deployment, and does not say when it ends.
    pub(super) serves: bool,
}

impl Single {
    /// The longest that it lives.
    pub(super) fn life_ms_max(&self) -> i64 {
        if self.serves { SERVICE_LIVES * LIFE_MS_MAX } else { LIFE_MS_MAX }
    }

    /// Its template.
    pub(super) fn spec(&self) -> Result<Arc<PodSpec>, BuildError> {
        let gpus = self.gpus.to_string();
        let limits = if self.gpus > 0 { [(GPU, gpus.as_str())] } else { [("cpu", "100m")] };
        let mut spec = template("single", self.priority, &limits)?;
        spec.deadline_ms = self.deadline_ms;
        spec.controller =
            self.serves.then(|| Controller { kind: "ReplicaSet".into(), name: "single".into() });
        Ok(Arc::new(spec))
    }
}

/// Everything that is drawn beforehand.
#[derive(Clone, Debug)]
pub(super) struct ContestPlan {
    pub(super) nodes: Vec<Node>,
    pub(super) gangs: Vec<Drawn>,
    pub(super) singles: Vec<Single>,
    /// What reservations may cost. Without limits it is known how long gangs wait; with limits, how
    /// long others do, whatever gangs ask for.
    pub(super) budget: ReservationBudget,
    /// Whether all are equally important and everything that is decided succeeds: then it is known
    /// how long a gang waits at most.
    pub(super) is_calm: bool,
}

impl ContestPlan {
    pub(super) fn new(dice: &mut Dice) -> Result<Self, BuildError> {
        let is_calm = dice.below(2) == 0;
        let is_limited = dice.below(2) == 0;
        let budget = if is_limited { budget(dice) } else { ReservationBudget::UNLIMITED };
        let mut nodes = Vec::new();
        for number in 0..3 + dice.below(8) {
            nodes.push(node(dice, number)?);
        }
        let priority = |dice: &mut Dice| if is_calm { 0 } else { [0, 0, 10][dice.below(3)] };
        let all: i64 = nodes.iter().map(gpus_of).sum();
        let horizon_ms = 200_000 + 100_000 * dice.below(3) as i64;
        let mut gangs = Vec::new();
        for number in 0..2 + dice.below(9) {
            let is_greedy = is_limited && dice.below(2) == 0;
            let size = 2 + dice.below(if is_greedy { all as usize } else { 7 });
            let each = [1, 1, 2, 4, 8][dice.below(5)];
            let mut gpus = vec![each; size];
            if dice.below(4) == 0 {
                // A leader that is smaller or larger than the others.
                gpus[0] = [1, 2, 8][dice.below(3)];
            }
            gangs.push(Drawn {
                name: format!("gang-{number}").into(),
                namespace: format!("team-{}", if is_limited { dice.below(3) } else { 0 }).into(),
                min: size - usize::from(dice.below(4) == 0).min(size - 2),
                key: [None, None, Some(ZONE), Some(RACK)][dice.below(4)],
                gpus,
                priority: priority(dice),
                timeout_ms: if is_greedy { GREEDY_TIMEOUT_MS } else { TIMEOUT_MS },
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
            let at_ms = dice.below(horizon_ms as usize) as i64;
            let plain =
                Single { at_ms, gpus, priority: priority(dice), deadline_ms: None, serves: false };
            singles.push(if is_limited { varied(plain, dice) } else { plain });
        }
        singles.sort_by_key(|single| single.at_ms);
        Ok(Self { nodes, gangs, singles, budget, is_calm })
    }
}

fn budget(dice: &mut Dice) -> ReservationBudget {
    ReservationBudget {
        max_ms: [LIFE_MS_MAX / 2, LIFE_MS_MAX, 3 * LIFE_MS_MAX][dice.below(3)],
        share_percent: [25, 50, 100][dice.below(3)],
        time_percent: [25, 50, 100][dice.below(3)],
    }
}

/// A pod that may be of a service, may have a deadline, or may ask for no GPUs.
fn varied(single: Single, dice: &mut Dice) -> Single {
    match dice.below(8) {
        0 => Single { serves: true, ..single },
        1 | 2 => Single { deadline_ms: Some(LIFE_MS_MAX), ..single },
        3 | 4 => Single { deadline_ms: Some(5 * LIFE_MS_MAX), ..single },
        5 => Single { gpus: 0, ..single },
        _ => single,
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

/// The template of a member of a gang.
pub(super) fn member(gang: &Drawn, gpus: i64) -> Result<Arc<PodSpec>, BuildError> {
    let mut spec = template(&gang.name, gang.priority, &[(GPU, &gpus.to_string())])?;
    spec.namespace = gang.namespace.clone();
    let terms = GangTerms {
        min: gang.min as u32,
        topology: gang.key.map(|key| GangTopology { key: key.into(), required: true }),
        timeout_ms: gang.timeout_ms,
        disruption: Disruption::Whole,
    };
    spec.gang = Some(GangMembership { name: gang.name.clone(), terms: Some(terms) });
    Ok(Arc::new(spec))
}

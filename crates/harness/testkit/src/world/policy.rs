//! What operators of arbitrary worlds say about classes of work: pools, rules, and what is kept warm.
//!
//! Owns dice of its own, so that worlds without such policies stay as they are. Must not know what
//! follows from any of it.

use std::sync::Arc;

use berth_engine::event::Event;
use berth_model::policy::Pool;
use berth_model::spec::{GpuNeed, PodSpec};
use berth_model::workload::{
    CapacityType, ClassRules, ClassSet, Headroom, PoolClasses, WorkloadClass,
};

use super::hardware::SLICES;
use crate::cluster::{BuildError, Dice, GPU, template};

/// The label that says to which pool a node belongs.
const POOL: &str = "berth.dev/pool";

/// Who decides about classes, in worlds where somebody does.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    dice: Dice,
    cares: bool,
}

impl Policy {
    /// Every other world has one.
    pub(super) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0x00C1_A55E_5000_0000);
        let cares = dice.below(2) == 0;
        Self { dice, cares }
    }

    /// Where something else is going to be said.
    pub(super) fn fork(&self, seed: u64) -> Self {
        Self { dice: Dice::new(seed), ..self.clone() }
    }

    /// The label of a new node, or of one that changes its pool.
    pub(super) fn pool_label(&mut self) -> Option<(&'static str, String)> {
        self.cares.then(|| (POOL, format!("pool-{}", self.dice.below(3))))
    }

    /// Workloads say what they are, or do not.
    pub(super) fn classify(&mut self, spec: &mut PodSpec) {
        if self.cares && self.dice.below(3) > 0 {
            spec.class = Some(self.class());
        }
    }

    /// Whether something is said now.
    pub(super) fn speaks(&mut self) -> bool {
        self.cares && self.dice.below(3) == 0
    }

    /// Whether a node is to change its pool.
    pub(super) fn moves_a_node(&mut self) -> bool {
        self.cares && self.dice.below(12) == 0
    }

    /// Something arbitrary.
    pub(super) fn say(&mut self) -> Result<Event, BuildError> {
        let name: Arc<str> = format!("pool-{}", self.dice.below(3)).into();
        Ok(match self.dice.below(8) {
            0 | 1 => {
                let classes = self.classes();
                let capacity = [None, Some(CapacityType::Spot), Some(CapacityType::OnDemand)];
                let capacity = capacity[self.dice.below(3)];
                Event::Pool(Pool { name, classes, capacity, ..Pool::default() })
            }
            2 => Event::PoolGone(name),
            3 => {
                let low = self.dice.below(10) as i32;
                Event::Classes(ClassRules {
                    interactive_priority_min: [50, 10][self.dice.below(2)],
                    embedding_priority_min: 10,
                    batch_priority_min: low,
                    ..ClassRules::default()
                })
            }
            4 => Event::HeadroomGone(self.headroom_name()),
            _ => Event::Headroom(self.headroom()?),
        })
    }

    fn class(&mut self) -> WorkloadClass {
        WorkloadClass::ALL[self.dice.below(4)]
    }

    fn classes(&mut self) -> PoolClasses {
        let some: ClassSet = [self.class(), self.class()].into_iter().collect();
        [PoolClasses::Any, PoolClasses::Preferred(some), PoolClasses::Only(some)]
            [self.dice.below(3)]
    }

    fn headroom_name(&mut self) -> Arc<str> {
        format!("warm-{}", self.dice.below(3)).into()
    }

    pub(super) fn headroom(&mut self) -> Result<Headroom, BuildError> {
        let count = ["1", "2", "4"][self.dice.below(3)];
        let limits: Vec<(&str, &str)> = match self.dice.below(5) {
            0 | 1 => vec![("cpu", count), ("memory", "2Gi"), (GPU, count)],
            2 => vec![("cpu", "1"), ("memory", "1Gi"), (SLICES[self.dice.below(2)], "1")],
            _ => vec![("cpu", count), ("memory", "3Gi")],
        };
        let mut spec = template("warm", 0, &limits)?;
        if self.dice.below(5) == 0 {
            spec = template("warm", 0, &limits[..2])?;
            spec.gpu = Some(GpuNeed { memory_bytes: 16 << 30, compute_milli: 0 });
        }
        if self.dice.below(4) == 0 {
            spec.node_selector.insert(POOL, format!("pool-{}", self.dice.below(3)));
        }
        Ok(Headroom {
            name: self.headroom_name(),
            template: Arc::new(spec),
            count: self.dice.below(4) as u32,
            class: self.class(),
        })
    }
}

//! Classes of work: the fit of nodes for a class, and the class of a pod.
//!
//! Classes matter only where a Pool or a Headroom names them or a node is a spot instance;
//! otherwise pods are not distinguished by class, which keeps rankings few.

use berth_model::label::Labels;
use berth_model::node::Node;
use berth_model::policy::Pool;
use berth_model::spec::PodSpec;
use berth_model::workload::{
    CapacityType, ClassRules, PoolClasses, WorkloadClass, capacity_of, pool_of,
};

use super::State;
use crate::changes::Change;
use crate::event::Event;
use crate::table::NodeIx;

/// Parts of a node's fit for a class: the pool's classes, and spot or on-demand. Unknown counts as
/// medium.
const WANTED: i64 = 60;
const WANTED_UNKNOWN: i64 = 30;
const TERMS: i64 = 40;
const TERMS_UNKNOWN: i64 = 20;

impl State {
    /// The class of work of a pod; `None` if nothing depends on it.
    pub(crate) fn claim_of(&self, spec: &PodSpec) -> Option<WorkloadClass> {
        self.classes_matter.then(|| self.class_rules.class_of(spec))
    }

    /// How well a node suits pods of a class, 0 to 100; `None` if its pool excludes them.
    pub(crate) fn pool_fit(&self, claim: Option<WorkloadClass>, node: &Node) -> Option<i64> {
        let Some(class) = claim.filter(|_| self.pools_have_rules || self.spot_nodes > 0) else {
            return Some(0);
        };
        let pool = self.pool_of(node);
        let wanted = match pool.map_or(PoolClasses::Any, |pool| pool.classes) {
            PoolClasses::Any => WANTED_UNKNOWN,
            PoolClasses::Preferred(of) | PoolClasses::Only(of) if of.contains(class) => WANTED,
            PoolClasses::Preferred(_) => 0,
            PoolClasses::Only(_) => return None,
        };
        let capacity = pool.and_then(|pool| pool.capacity).or_else(|| capacity_of(&node.labels));
        let terms = match capacity {
            None => TERMS_UNKNOWN,
            Some(CapacityType::OnDemand) if class.is_serving() => TERMS,
            Some(CapacityType::Spot) if !class.is_serving() => TERMS,
            Some(_) => 0,
        };
        Some(wanted + terms)
    }

    pub(crate) fn pool_of(&self, node: &Node) -> Option<&Pool> {
        self.pools.get(pool_of(&node.labels)?)
    }

    /// Applies pools, class rules and headroom; returns the event that undoes a change.
    pub(super) fn apply_class_policy(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Pool(pool) => Some(self.set_pool(pool)),
            Event::PoolGone(name) => self.remove_pool(&name),
            Event::Classes(rules) => self.set_class_rules(rules),
            Event::Headroom(headroom) => self.set_headroom(headroom),
            Event::HeadroomGone(name) => self.remove_headroom(&name),
            _ => None,
        }
    }

    fn set_pool(&mut self, pool: Pool) -> Event {
        let name = pool.name.clone();
        let before = self.pools.insert(name.clone(), pool);
        self.pool_changed(&name, before.as_ref());
        before.map_or(Event::PoolGone(name), Event::Pool)
    }

    fn remove_pool(&mut self, name: &str) -> Option<Event> {
        let before = self.pools.remove(name)?;
        self.pool_changed(name, Some(&before));
        Some(Event::Pool(before))
    }

    fn pool_changed(&mut self, name: &str, before: Option<&Pool>) {
        let after = self.pools.get(name);
        let of = |pool: Option<&Pool>| pool.map(|pool| (pool.classes, pool.capacity));
        if of(before).unwrap_or_default() == of(after).unwrap_or_default() {
            return;
        }
        self.pools_have_rules = self.pools.values().any(has_rules);
        self.update_classes_matter();
        let of_pool = |at: &NodeIx| {
            let labels = &self.nodes[*at].object.labels;
            pool_of(labels).is_some_and(|one| one.as_ref() == name)
        };
        let nodes: Vec<NodeIx> = self.nodes.indexes().filter(of_pool).collect();
        nodes.into_iter().for_each(|at| self.touch(at, Change::Node));
        self.changes.everything();
    }

    /// Counts a node with these labels as added (`change` 1) or removed (-1).
    pub(super) fn count_spot(&mut self, labels: &Labels, change: i32) {
        if capacity_of(labels) == Some(CapacityType::Spot) {
            self.spot_nodes = self.spot_nodes.saturating_add_signed(change);
            self.update_classes_matter();
        }
    }

    fn set_class_rules(&mut self, rules: ClassRules) -> Option<Event> {
        if rules == self.class_rules {
            return None;
        }
        let before = std::mem::replace(&mut self.class_rules, rules);
        if self.classes_matter {
            self.forget_shapes();
            self.changes.everything();
        }
        Some(Event::Classes(before))
    }

    /// Starts or stops distinguishing pods by class.
    pub(super) fn update_classes_matter(&mut self) {
        let matter = self.pools_have_rules || self.spot_nodes > 0 || !self.headrooms.is_empty();
        if matter != self.classes_matter {
            self.classes_matter = matter;
            self.forget_shapes();
            self.changes.everything();
        }
    }
}

fn has_rules(pool: &Pool) -> bool {
    pool.classes != PoolClasses::Any || pool.capacity.is_some()
}

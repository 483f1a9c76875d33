//! What is left when everything has come to rest.
//!
//! Owns the last questions: whether anybody waits in vain, whether anything is left open, and whether
//! those who wait were told why. A fresh engine that is told the final state says who could have a place.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_control::core::{INVALID, Settings};
use berth_control::lease::{LeaseView, PodRef};
use berth_engine::Engine;
use berth_engine::decision::{Binding, Decision};
use berth_engine::event::Event;
use berth_kubelet::Verdict;
use berth_model::affinity::NodeTerm;
use berth_model::label::Operator;
use berth_model::spec::{Phase, PodObject};

use crate::calls::Caller;
use crate::server::Stored;
use crate::workloads::{HOSTILE, MODEST};
use crate::world::World;

/// More decisions than this are no rest.
const DECISIONS_MAX: usize = 10_000;

impl World {
    /// What is not as it should be at rest. Something that is so at this moment only is none.
    pub(crate) fn unrest(&mut self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let Some(leader) = self.leader() else {
            return BTreeSet::from(["nobody leads".to_owned()]);
        };
        let unsettled = self.replicas[leader.replica].leading.as_ref();
        if unsettled.is_some_and(|term| term.core.unsettled() > 0) {
            found.insert("bindings are not settled".to_owned());
        }
        let lease = self.server.lease.clone().map(LeaseView::new);
        let listed = lease.and_then(|lease| lease.binding().ok());
        // Those that could not be fenced yet stay on the list, for the next leader; and a gang with a
        // member that cannot be bound starts over and over.
        let may_be = |pod: &PodRef| &*pod.namespace == HOSTILE;
        if listed.is_none_or(|pods| !pods.iter().all(may_be)) {
            found.insert("the Lease still lists pods".to_owned());
        }
        let waits = |object: &PodObject| object.node.is_none() && object.phase == Phase::Alive;
        let pods = self.server.pods.values().map(|pod| &pod.seen);
        let waiting = pods.filter(|pod| waits(&pod.object));
        self.tally.waiting = 0;
        for pod in waiting {
            self.tally.waiting += 1;
            if self.server.is_rigid(&pod.reference()) {
                continue;
            }
            let reason = pod.condition.as_ref().map(|condition| &*condition.reason);
            if reason.is_none() || pod.invalid.is_some() && reason != Some(INVALID) {
                found.insert(format!("{} waits and is told {reason:?}", pod.object.uid));
            }
        }
        for binding in self.could_be_placed(leader) {
            if self.has_room(leader, &binding) {
                found.insert(format!("{} waits though it has room", binding.pod));
            }
        }
        found
    }

    /// A modest pod that is pending although it has room.
    pub(crate) fn modest_pending(&mut self) -> Option<Arc<str>> {
        let leader = self.leader()?;
        let is_modest = |uid: &Arc<str>, world: &Self| {
            let mut pods = world.server.pods.values().map(|pod| &pod.seen.object);
            pods.any(|pod| pod.uid == *uid && &*pod.spec.namespace == MODEST)
        };
        let bindings = self.could_be_placed(leader);
        let modest = bindings.into_iter().filter(|binding| is_modest(&binding.pod, self));
        let modest: Vec<Binding> = modest.collect();
        let pending = modest.into_iter().find(|binding| self.has_room(leader, binding))?;
        Some(pending.pod)
    }

    /// Whether a pod could have this place by what the leader knows of the node's inside. That depends on
    /// who came and went there, of which a fresh engine knows nothing; but the leader must not take
    /// anybody to be there who is not.
    fn has_room(&mut self, leader: Caller, binding: &Binding) -> bool {
        let objects = self.server.pods.values().map(|pod| &pod.seen.object);
        let there: BTreeSet<&str> = objects
            .clone()
            .filter(|pod| pod.node.as_ref() == Some(&binding.node))
            .map(|pod| &*pod.uid)
            .collect();
        let spec = objects.filter(|pod| pod.uid == binding.pod).map(|pod| pod.spec.clone()).next();
        let term = self.replicas[leader.replica].leading.as_mut();
        let engine = term.map(|term| term.core.engine());
        let Some((spec, engine)) = spec.zip(engine) else { return false };
        let Some((mirror, _)) = engine.kubelet(&binding.node) else { return true };
        let has_strangers = mirror.pods().any(|uid| !there.contains(uid));
        let admitted = mirror.demand(&spec.pod).map(|demand| mirror.would_admit(&demand));
        has_strangers || admitted.is_ok_and(|verdict| matches!(verdict, Verdict::Admit { .. }))
    }

    /// The pods for which a fresh engine has a place at once.
    fn could_be_placed(&self, leader: Caller) -> Vec<Binding> {
        let mut engine = Engine::new(Settings::default().engine);
        let distrusted = self.checker.distrusted_by(leader);
        for (name, (node, inside)) in &self.server.nodes {
            engine.apply(Event::Node(node.clone()));
            let topology = inside.clone().filter(|_| !distrusted.contains(name));
            engine.apply(Event::Topology { node: name.clone(), topology });
        }
        for budget in self.server.budgets.values() {
            engine.apply(Event::Budget(budget.clone()));
        }
        // What cannot be read or changed is not scheduled, but it counts on its node.
        let counts = |pod: &&Stored| {
            pod.seen.object.node.is_some() || pod.seen.invalid.is_none() && !pod.rigid
        };
        for pod in self.server.pods.values().filter(counts) {
            let refusing = self.checker.refused_by(leader, &pod.seen.object.spec);
            engine.apply(Event::Pod(kept_away(&pod.seen.object, refusing)));
        }
        let mut found = Vec::new();
        for _ in 0..DECISIONS_MAX {
            match engine.decide(1_800_000_000_000 + self.now_ms as i64) {
                Some(Decision::Bind(binding)) => found.push(binding),
                Some(_) => {}
                None => break,
            }
        }
        found
    }
}

/// The pod, which must not go to these nodes.
fn kept_away(pod: &PodObject, nodes: Vec<Arc<str>>) -> PodObject {
    let mut pod = pod.clone();
    if pod.node.is_none() && !nodes.is_empty() {
        let elsewhere = NodeTerm { labels: Vec::new(), name: vec![Operator::NotIn(nodes)] };
        Arc::make_mut(&mut pod.spec).node_affinity.required = Some(vec![elsewhere]);
    }
    pod
}

//! A node as it would be without some of its pods, or with others.
//!
//! Owns the difference to the node as it is, so that preemption and nominations can be tried without
//! changing anything. Must not know what is tried.

use berth_model::spec::{GpuNeed, HostPort};
use smallvec::SmallVec;

use crate::amounts::{self, Amounts};
use crate::shares::{self, Grant, Shares};
use crate::state::{NodeState, State};
use crate::table::PodIx;

/// A node with some pods taken away and others added.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    /// What would be used, once that differs from what is.
    used: Option<Vec<i64>>,
    /// How GPUs would be divided, once that may differ from how they are.
    shares: Option<Box<Shares>>,
    pod_change: i64,
    /// Host ports that would be taken, once they differ: each once, so that a port that two pods
    /// have is free when one of them goes. That is how kube-scheduler counts them.
    ports: Option<Vec<HostPort>>,
    pub(crate) gone: SmallVec<[PodIx; 8]>,
    pub(crate) come: SmallVec<[PodIx; 2]>,
    /// Those of the gone that spreading did not count while they were there: they are being deleted.
    uncounted: SmallVec<[PodIx; 2]>,
}

impl Overlay {
    /// What would be used of the node, by resource.
    pub(crate) fn used<'a>(&'a self, node: &'a NodeState) -> &'a [i64] {
        self.used.as_deref().unwrap_or(&node.used)
    }

    /// How the node's GPUs would be divided.
    pub(crate) fn shares<'a>(&'a self, node: &'a NodeState) -> Option<&'a Shares> {
        self.shares.as_deref().or(node.shares.as_deref())
    }

    /// Whether none of these host ports would be taken.
    pub(crate) fn ports_free(&self, node: &NodeState, wanted: &[HostPort]) -> bool {
        let free = |port: &HostPort| !wanted.iter().any(|one| one.conflicts(port));
        match &self.ports {
            Some(ports) => ports.iter().all(free),
            None => node.ports.iter().all(|(port, _)| free(port)),
        }
    }

    /// How many pods there would be.
    pub(crate) fn pod_count(&self, node: &NodeState) -> i64 {
        node.pods.len() as i64 + self.pod_change
    }

    /// Without a pod that is there.
    pub(crate) fn remove(&mut self, state: &State, node: &NodeState, pod: PodIx) {
        self.gone.push(pod);
        self.count(state, node, pod, -1);
    }

    /// Without a pod that may be being deleted, so that it is taken away from no count it is not in.
    /// kube-scheduler makes no such difference.
    pub(crate) fn remove_exactly(&mut self, state: &State, node: &NodeState, pod: PodIx) {
        self.remove(state, node, pod);
        if state.pods[pod].is_terminating() {
            self.uncounted.push(pod);
        }
    }

    /// With a pod that was taken away.
    pub(crate) fn restore(&mut self, state: &State, node: &NodeState, pod: PodIx) {
        if let Some(at) = self.gone.iter().rposition(|one| *one == pod) {
            self.gone.remove(at);
            self.count(state, node, pod, 1);
        }
    }

    /// With a pod that is not there.
    pub(crate) fn add(&mut self, state: &State, node: &NodeState, pod: PodIx) {
        self.come.push(pod);
        self.count(state, node, pod, 1);
    }

    /// With a pod that has no number, for no more than what it requests.
    pub(crate) fn add_requests(&mut self, node: &NodeState, requests: &Amounts) {
        let used = self.used.get_or_insert_with(|| node.used.clone());
        amounts::add(used, requests, 1);
        self.pod_change += 1;
    }

    /// With what a pod would be given for the part of a GPU it needs.
    pub(crate) fn give(&mut self, node: &NodeState, grant: Grant, need: Option<&GpuNeed>) {
        let used = self.used.get_or_insert_with(|| node.used.clone());
        let shares = shares_of(&mut self.shares, node);
        shares::count(grant, need, used, shares, 1);
    }

    fn count(&mut self, state: &State, node: &NodeState, pod: PodIx, sign: i64) {
        let used = self.used.get_or_insert_with(|| node.used.clone());
        state.count_requests(pod, used, shares_of(&mut self.shares, node), sign);
        self.pod_change += sign;
        let changed = &state.class_of(pod).spec.host_ports;
        if changed.is_empty() {
            return;
        }
        let ports = self
            .ports
            .get_or_insert_with(|| node.ports.iter().map(|(port, _)| port.clone()).collect());
        ports.retain(|port| !changed.contains(port));
        if sign > 0 {
            ports.extend_from_slice(changed);
        }
    }

    /// The pods of the node, as it would be.
    pub(crate) fn pods<'a>(&'a self, node: &'a NodeState) -> impl Iterator<Item = PodIx> + 'a {
        let stay = node.pods.iter().filter(|pod| !self.gone.contains(pod));
        stay.chain(&self.come).copied()
    }

    /// As `differences`, of those whom spreading counts.
    pub(crate) fn spread_differences(&self) -> impl Iterator<Item = (PodIx, i32)> {
        self.differences().filter(|(pod, _)| !self.uncounted.contains(pod))
    }

    /// Pods that differ, each with 1 if it is added and -1 if it is taken away.
    pub(crate) fn differences(&self) -> impl Iterator<Item = (PodIx, i32)> {
        let gone = self.gone.iter().map(|pod| (*pod, -1));
        gone.chain(self.come.iter().map(|pod| (*pod, 1)))
    }
}

fn shares_of<'a>(changed: &'a mut Option<Box<Shares>>, node: &NodeState) -> Option<&'a mut Shares> {
    if changed.is_none() {
        changed.clone_from(&node.shares);
    }
    changed.as_deref_mut()
}

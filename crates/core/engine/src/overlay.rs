//! A node with some pods removed or added, as a difference to its state, so that preemption and
//! nominations can be tried without changing anything.

use berth_model::spec::{GpuNeed, HostPort};
use smallvec::SmallVec;

use crate::amounts::{self, Amounts};
use crate::shares::{self, Grant, Shares};
use crate::state::{NodeState, State};
use crate::table::PodIx;

#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    /// Set once it differs.
    used: Option<Vec<i64>>,
    /// Set once it may differ.
    shares: Option<Box<Shares>>,
    pod_change: i64,
    /// Set once they differ. Each port is listed once, so a port that two pods have is free when
    /// one of them goes, as in kube-scheduler.
    ports: Option<Vec<HostPort>>,
    pub(crate) removed: SmallVec<[PodIx; 8]>,
    pub(crate) added: SmallVec<[PodIx; 2]>,
    /// Removed pods that spreading did not count because they are terminating.
    uncounted: SmallVec<[PodIx; 2]>,
}

impl Overlay {
    pub(crate) fn used<'a>(&'a self, node: &'a NodeState) -> &'a [i64] {
        self.used.as_deref().unwrap_or(&node.used)
    }

    pub(crate) fn shares<'a>(&'a self, node: &'a NodeState) -> Option<&'a Shares> {
        self.shares.as_deref().or(node.shares.as_deref())
    }

    pub(crate) fn ports_free(&self, node: &NodeState, wanted: &[HostPort]) -> bool {
        let free = |port: &HostPort| !wanted.iter().any(|one| one.conflicts(port));
        match &self.ports {
            Some(ports) => ports.iter().all(free),
            None => node.ports.iter().all(|(port, _)| free(port)),
        }
    }

    pub(crate) fn pod_count(&self, node: &NodeState) -> i64 {
        node.pods.len() as i64 + self.pod_change
    }

    pub(crate) fn remove(&mut self, state: &State, node: &NodeState, pod: PodIx) {
        self.removed.push(pod);
        self.count(state, node, pod, -1);
    }

    /// Removes a pod without changing spread counts if it is terminating. kube-scheduler makes no
    /// such difference.
    pub(crate) fn remove_exactly(&mut self, state: &State, node: &NodeState, pod: PodIx) {
        self.remove(state, node, pod);
        if state.pods[pod].is_terminating() {
            self.uncounted.push(pod);
        }
    }

    pub(crate) fn restore(&mut self, state: &State, node: &NodeState, pod: PodIx) {
        if let Some(at) = self.removed.iter().rposition(|one| *one == pod) {
            self.removed.remove(at);
            self.count(state, node, pod, 1);
        }
    }

    pub(crate) fn add(&mut self, state: &State, node: &NodeState, pod: PodIx) {
        self.added.push(pod);
        self.count(state, node, pod, 1);
    }

    /// Adds the requests of a placeholder.
    pub(crate) fn add_requests(&mut self, node: &NodeState, requests: &Amounts) {
        let used = self.used.get_or_insert_with(|| node.used.clone());
        amounts::add(used, requests, 1);
        self.pod_change += 1;
    }

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

    pub(crate) fn pods<'a>(&'a self, node: &'a NodeState) -> impl Iterator<Item = PodIx> + 'a {
        let stay = node.pods.iter().filter(|pod| !self.removed.contains(pod));
        stay.chain(&self.added).copied()
    }

    /// Differences that spreading counts.
    pub(crate) fn spread_differences(&self) -> impl Iterator<Item = (PodIx, i32)> {
        self.differences().filter(|(pod, _)| !self.uncounted.contains(pod))
    }

    /// Pods that differ: 1 if added, -1 if removed.
    pub(crate) fn differences(&self) -> impl Iterator<Item = (PodIx, i32)> {
        let gone = self.removed.iter().map(|pod| (*pod, -1));
        gone.chain(self.added.iter().map(|pod| (*pod, 1)))
    }
}

fn shares_of<'a>(changed: &'a mut Option<Box<Shares>>, node: &NodeState) -> Option<&'a mut Shares> {
    if changed.is_none() {
        changed.clone_from(&node.shares);
    }
    changed.as_deref_mut()
}

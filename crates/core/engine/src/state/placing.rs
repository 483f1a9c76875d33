//! Moves pods onto nodes and off them, keeping all sums and mirrors consistent.

use std::cmp::Ordering;
use std::sync::Arc;

use berth_model::policy::DisruptionBudget;
use berth_model::spec::Volume;
use smallvec::SmallVec;

use super::{FullName, NodeState, Place, State, workload};
use crate::changes::Change;
use crate::kube::preempt::protects;
use crate::mirror::Mirror;
use crate::shares::Grant;
use crate::table::{Bits, ClassIx, NodeIx, PodIx};
use berth_kubelet::NodeTopology;

/// Time beyond its grace period for the kubelet to stop and delete a victim.
const STOPPING_MS: i64 = 60_000;

impl State {
    /// Applies a pod's `place`. With `from_event` it comes from an event, whose order may differ
    /// from the kubelet's; otherwise from a decision, which makes the pod the next.
    pub(super) fn attach(&mut self, at: PodIx, from_event: bool) {
        match self.pods[at].place.clone() {
            Place::Pending => {}
            Place::Nominated(name, _) => match self.node_by_name(&name) {
                Some(node) => {
                    self.nodes[node].nominated.push(at);
                    self.pods[at].place = Place::Nominated(name, Some(node));
                    self.update_charge(at);
                    self.touch(node, Change::Taken);
                }
                None => self.on_unknown_nodes.entry(name).or_default().push(at),
            },
            Place::Bound(name, _) => match self.node_by_name(&name) {
                Some(node) => {
                    self.pods[at].place = Place::Bound(name, Some(node));
                    self.grant_if_needed(at, node);
                    self.count(at, node);
                    self.mirror_in(at, node, from_event);
                    self.touch(node, Change::Taken);
                }
                None => self.on_unknown_nodes.entry(name).or_default().push(at),
            },
        }
    }

    pub(super) fn detach(&mut self, at: PodIx) {
        match self.pods[at].place.clone() {
            Place::Pending => {}
            Place::Nominated(_, Some(node)) => {
                self.nodes[node].nominated.retain(|one| *one != at);
                self.remove_charge(at);
                self.touch(node, Change::Freed);
            }
            Place::Bound(_, Some(node)) => {
                self.uncount(at, node);
                let uid = &self.pods[at].uid;
                if let Some(mirror) = &mut self.nodes[node].mirror {
                    mirror.remove(at, uid);
                }
                self.touch(node, Change::Freed);
            }
            Place::Nominated(name, None) | Place::Bound(name, None) => {
                if let Some(on_unknown_nodes) = self.on_unknown_nodes.get_mut(&name) {
                    on_unknown_nodes.retain(|one| *one != at);
                    if on_unknown_nodes.is_empty() {
                        self.on_unknown_nodes.remove(&name);
                    }
                }
            }
        }
    }

    /// Assumes the smallest sufficient offer for a pod bound without a recorded grant.
    fn grant_if_needed(&mut self, at: PodIx, node: NodeIx) {
        let pod = &self.pods[at];
        if let (None, Some(need)) = (pod.grant, &self.class_rows[pod.class].spec.gpu) {
            let row = &self.nodes[node];
            let offer = row.offers.iter().find(|offer| offer.satisfies(need));
            let grant = offer.map(|offer| {
                let resource = offer.resource;
                let shares = row.shares.as_ref().filter(|shares| shares.resource == resource);
                Grant { resource, gpu: shares.and_then(|shares| shares.likely_gpu(need)) }
            });
            self.pods[at].grant = grant;
        }
    }

    pub(crate) fn touch(&mut self, node: NodeIx, change: Change) {
        self.changes.push(node, change, self.nodes.len());
    }

    /// Evictions of protected pods may cost more or less now.
    pub(super) fn touch_protected(&mut self, budget: &DisruptionBudget) {
        let protected = |at: ClassIx| protects(budget, &self.class_rows[at].spec);
        let mut classes = Bits::default();
        self.class_rows.indexes().for_each(|at| classes.set(at, protected(at)));
        let pods = self.pods.iter().filter(|(_, pod)| classes.contains(pod.class));
        let mut nodes: Vec<NodeIx> = pods.filter_map(|(_, pod)| pod.place.node()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.into_iter().for_each(|node| self.touch(node, Change::Taken));
    }

    pub(super) fn count(&mut self, at: PodIx, node: NodeIx) {
        let pod = &self.pods[at];
        let class = &self.class_rows[pod.class];
        *self.priorities.entry(class.spec.priority).or_insert(0) += 1;
        self.nodes[node].count(at, class, pod.grant, 1);
        self.census.move_pod(node, pod.resident(), 1);
        self.mirror_shares(node);
        self.use_claims(at, true);
        self.update_charge(at);
    }

    pub(super) fn uncount(&mut self, at: PodIx, node: NodeIx) {
        let pod = &self.pods[at];
        let class = &self.class_rows[pod.class];
        let priority = class.spec.priority;
        self.nodes[node].count(at, class, pod.grant, -1);
        if let Some(pods) = self.priorities.get_mut(&priority) {
            *pods -= 1;
            if *pods == 0 {
                self.priorities.remove(&priority);
            }
        }
        self.census.move_pod(node, pod.resident(), -1);
        self.mirror_shares(node);
        self.use_claims(at, false);
        self.remove_charge(at);
    }

    pub(super) fn mirror_shares(&mut self, node: NodeIx) {
        let NodeState { shares, mirror, .. } = &mut self.nodes[node];
        if let (Some(shares), Some(mirror)) = (shares, mirror) {
            let resource = self.resources.name(shares.resource);
            mirror.divide(resource.as_str(), |gpu| shares.is_divided(gpu));
        }
    }

    fn use_claims(&mut self, at: PodIx, comes: bool) {
        let spec = self.class_rows[self.pods[at].class].spec.clone();
        for volume in &spec.volumes {
            let Volume::Claim { name, .. } = volume else { continue };
            let claim = (spec.namespace.clone(), name.clone());
            let users = self.claim_users.entry(claim.clone()).or_insert(0);
            *users = if comes { *users + 1 } else { users.saturating_sub(1) };
            if *users == 0 {
                self.claim_users.remove(&claim);
            }
        }
    }

    fn mirror_in(&mut self, at: PodIx, node: NodeIx, from_event: bool) {
        let Some(mirror) = &self.nodes[node].mirror else { return };
        let arrival = self.pods[at].arrival();
        let late = |other: &PodIx| *other != at && self.pods[*other].arrival() > arrival;
        if from_event && mirror.untouched && self.nodes[node].pods.iter().any(late) {
            self.rebuild_mirror(node);
        } else {
            self.admit(at, node, from_event);
        }
    }

    fn admit(&mut self, at: PodIx, node: NodeIx, from_event: bool) {
        let pod = &self.pods[at];
        let class = &mut self.class_rows[pod.class];
        let Some(mirror) = &mut self.nodes[node].mirror else { return };
        let version = mirror.kubelet().config().version;
        let device = pod.grant.and_then(Grant::device);
        let device = device.map(|device| (device, self.resources.name(device)));
        let demand = class.demands.get(&class.spec.pod, version, device).cloned();
        if from_event {
            mirror.admit_from_event(at, &pod.uid, demand);
        } else {
            mirror.admit(at, &pod.uid, demand);
        }
    }

    pub(super) fn rebuild_mirror(&mut self, node: NodeIx) {
        let name = self.nodes[node].object.name.clone();
        let mut pods = self.nodes[node].pods.clone();
        let is_here = |uid: &str| pods.iter().any(|pod| *self.pods[*pod].uid == *uid);
        let topology = self.topologies.get(&name);
        let mirror = topology.map(|topology| Box::new(Mirror::new(topology, is_here)));
        self.nodes[node].mirror = mirror;
        self.mirror_shares(node);
        pods.sort_by(|one, other| self.pods[*one].arrival().cmp(&self.pods[*other].arrival()));
        for pod in pods {
            self.admit(pod, node, true);
        }
    }

    /// Carries the mirror over a change of MIG layouts; false if it must be rebuilt.
    pub(super) fn repartition_mirror(&mut self, node: NodeIx, topology: &NodeTopology) -> bool {
        let before = self.nodes[node].mirror.as_ref();
        let Some(mirror) = before.and_then(|mirror| mirror.repartitioned(topology)) else {
            return false;
        };
        self.nodes[node].mirror = Some(Box::new(mirror));
        self.mirror_shares(node);
        true
    }

    pub(crate) fn bind(&mut self, at: PodIx, node: NodeIx, grant: Option<Grant>) {
        let name = self.nodes[node].object.name.clone();
        self.journal_mirror(&name);
        self.journal_pod(at);
        self.detach(at);
        let pod = &mut self.pods[at];
        (pod.grant, pod.place, pod.decided) = (grant, Place::Bound(name, None), true);
        pod.bound_serial = Some(self.bindings);
        self.bindings += 1;
        self.attach(at, false);
        self.count_in_quotas(at);
    }

    /// Undoes a decision: a bound pod never reaches its kubelet, and victims stay.
    pub(crate) fn undo(&mut self, at: PodIx) {
        match self.pods[at].place {
            Place::Bound(_, Some(_)) => {
                self.journal_pod(at);
                self.unmirror(at);
            }
            Place::Nominated(_, Some(node)) => {
                for pod in self.nodes[node].pods.clone() {
                    self.cancel_gang_eviction(pod);
                }
            }
            _ => {}
        }
        self.release_devices(at);
        self.nominate(at, None);
        self.pods[at].grant = None;
        self.count_in_quotas(at);
    }

    pub(super) fn unmirror(&mut self, at: PodIx) {
        let pod = &self.pods[at];
        if let Some(node) = pod.place.node().filter(|_| pod.decided)
            && let Some(mirror) = &mut self.nodes[node].mirror
        {
            mirror.undo(at, &pod.uid);
        }
    }

    pub(crate) fn cancel_eviction(&mut self, at: PodIx) {
        if self.pods[at].evicted_at_ms.is_some() {
            self.journal_pod(at);
            self.pods[at].evicted_at_ms = None;
            self.leaving.remove(&at);
            self.set_awaited(at);
            let spec = &self.class_rows[self.pods[at].class].spec;
            let budgets = self.budgets.values().filter(|budget| protects(budget, spec));
            let budgets: Vec<DisruptionBudget> = budgets.cloned().collect();
            budgets.iter().for_each(|budget| self.touch_protected(budget));
            self.update_charge(at);
            if let Some(node) = self.pods[at].place.node() {
                self.touch(node, Change::Taken);
            }
        }
    }

    pub(crate) fn cancel_gang_eviction(&mut self, at: PodIx) {
        if let Some(gang) = self.gang_of(at).filter(|_| self.pods[at].evicted_at_ms.is_some()) {
            let mates: Vec<PodIx> = self.gangs.members(&gang).filter(|pod| *pod != at).collect();
            mates.into_iter().for_each(|pod| self.cancel_eviction(pod));
        }
        self.cancel_eviction(at);
    }

    pub(super) fn confirm(&mut self, at: PodIx) {
        self.pods[at].decided = false;
        if let Some(node) = self.pods[at].place.node()
            && let Some(mirror) = &mut self.nodes[node].mirror
        {
            mirror.confirm(at);
        }
    }

    /// Changes a pod's class without changing its requests.
    pub(super) fn reclass(&mut self, at: PodIx, class: ClassIx) {
        let node = self.pods[at].place.node();
        if let Some(node) = node {
            self.uncount(at, node);
        }
        let before = std::mem::replace(&mut self.pods[at].class, class);
        self.gangs.leave(at, &self.class_rows[before].spec);
        self.gangs.join(at, &self.class_rows[class].spec);
        if let Some(node) = node {
            self.count(at, node);
            self.touch(node, Change::Freed);
        } else {
            self.update_charge(at);
        }
        self.release_class(before);
    }

    pub(crate) fn nominate(&mut self, at: PodIx, node: Option<Arc<str>>) {
        self.journal_pod(at);
        self.detach(at);
        let pod = &mut self.pods[at];
        pod.decided = node.is_some();
        pod.place = node.map_or(Place::Pending, |name| Place::Nominated(name, None));
        self.attach(at, false);
    }

    pub(crate) fn making_room(&self, at: PodIx) -> impl Iterator<Item = PodIx> {
        let node = match self.pods[at].place {
            Place::Nominated(_, node) => node,
            _ => None,
        };
        let priority = self.class_of(at).spec.priority;
        node.into_iter().flat_map(move |node| self.leaving_for(node, priority))
    }

    /// Preempted pods leaving a node that rank below `priority`, without overdue ones.
    pub(crate) fn leaving_for(&self, node: NodeIx, priority: i32) -> impl Iterator<Item = PodIx> {
        self.nodes[node]
            .pods
            .iter()
            .copied()
            .filter(move |pod| self.leaves_for(*pod, priority) && !self.is_overdue(*pod))
    }

    /// Preempted pods below a priority that hold their room beyond the limit.
    pub(crate) fn overdue_for(&self, priority: i32) -> impl Iterator<Item = PodIx> {
        let overdue = self.awaited.range(..(self.now_ms.saturating_add(1), PodIx(0)));
        overdue.map(|(_, pod)| *pod).filter(move |pod| self.leaves_for(*pod, priority))
    }

    fn leaves_for(&self, pod: PodIx, priority: i32) -> bool {
        let row = &self.pods[pod];
        // Pods reclaimed for a team need not have lower priority.
        let reclaimed = self.tenancy.has_teams();
        row.is_victim() && (reclaimed || self.class(row.class).spec.priority < priority)
    }

    fn is_overdue(&self, pod: PodIx) -> bool {
        self.pods[pod].awaited_until_ms.is_some_and(|until_ms| until_ms <= self.now_ms)
    }

    /// Sets until when a victim's room is counted on: its grace period and a little longer, up to
    /// the limit.
    pub(super) fn set_awaited(&mut self, at: PodIx) {
        let row = &self.pods[at];
        let deletion = row.deletion.filter(|_| row.is_victim());
        // The API server's clock counts only for evictions by an earlier leader: with a wrong clock
        // every victim would be overdue at once, and the next ones, too.
        let since_ms = row.evicted_at_ms.or(deletion.map(|deletion| deletion.requested_at_ms));
        let needed_ms =
            deletion.map_or(i64::MAX, |deletion| deletion.grace_ms.saturating_add(STOPPING_MS));
        let until_ms = since_ms
            .zip(self.eviction_max_wait_ms)
            .map(|(since_ms, max_wait_ms)| since_ms.saturating_add(needed_ms.min(max_wait_ms)));
        let before = std::mem::replace(&mut self.pods[at].awaited_until_ms, until_ms);
        if before != until_ms {
            if let Some(before_ms) = before {
                self.awaited.remove(&(before_ms, at));
            }
            self.awaited.extend(until_ms.map(|until_ms| (until_ms, at)));
        }
    }

    /// Marks nodes whose overdue state changed between two times.
    pub(crate) fn touch_overdue(&mut self, one_ms: i64, other_ms: i64) {
        let (from_ms, to_ms) = (one_ms.min(other_ms), one_ms.max(other_ms));
        let after = |at_ms: i64| (at_ms.saturating_add(1), PodIx(0));
        let pods = self.awaited.range(after(from_ms)..after(to_ms));
        let nodes: SmallVec<[NodeIx; 2]> =
            pods.filter_map(|(_, pod)| self.pods[*pod].place.node()).collect();
        nodes.into_iter().for_each(|node| self.touch(node, Change::Taken));
    }

    /// Pods nominated to a node that come first, in order.
    pub(crate) fn waiting_for(
        &self,
        node: NodeIx,
        comes_first: impl Fn(PodIx) -> bool,
    ) -> SmallVec<[PodIx; 2]> {
        let nominated = self.nodes[node].nominated.iter().copied();
        let waits = |pod: &PodIx| !self.pods[*pod].is_terminating() && comes_first(*pod);
        let mut waiting: SmallVec<[PodIx; 2]> = nominated.filter(waits).collect();
        let before =
            |one: PodIx, other: PodIx| self.goes_before(one, self.pods[other].class, Some(other));
        let turn = |pod: PodIx| (self.pods[pod].created_at_ms, &self.pods[pod].uid);
        waiting.sort_by(|one, other| match (before(*one, *other), before(*other, *one)) {
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            _ => turn(*one).cmp(&turn(*other)),
        });
        waiting
    }

    pub(crate) fn count_arrival(&mut self, at: PodIx) {
        self.journal_arrival(at);
        self.pods[at].counted = true;
    }

    /// Marks a pod as evicted; it stays until an event says that it is gone.
    pub(crate) fn evict(&mut self, at: PodIx, now_ms: i64) {
        self.journal_pod(at);
        let pod = &self.pods[at];
        let workload = workload(&self.class_rows[pod.class].spec, &pod.name);
        self.journal_eviction(&workload);
        self.set_eviction(workload, Some(now_ms));
        self.pods[at].evicted_at_ms = Some(now_ms);
        self.leaving.insert(at);
        self.set_awaited(at);
        self.update_charge(at);
        if let Some(node) = self.pods[at].place.node() {
            self.touch(node, Change::Taken);
        }
    }

    pub(super) fn set_eviction(&mut self, workload: FullName, evicted_at_ms: Option<i64>) {
        match evicted_at_ms {
            Some(now_ms) => {
                // Earlier times stay: cooldowns may depend on them.
                if self.eviction_times.insert((now_ms, workload.clone())) {
                    self.journal_eviction_time(now_ms, &workload, false);
                }
                self.evictions.insert(workload, now_ms);
            }
            None => {
                self.evictions.remove(&workload);
            }
        }
    }

    /// Forgets evictions whose cooldown has ended; whether there were any.
    pub(crate) fn end_cooldowns(&mut self, now_ms: i64, cooldown_ms: i64) -> bool {
        let mut ended = false;
        while let Some((evicted_at, workload)) = self.eviction_times.first().cloned()
            && evicted_at.saturating_add(cooldown_ms) <= now_ms
        {
            self.eviction_times.pop_first();
            self.journal_eviction_time(evicted_at, &workload, true);
            if self.evictions.get(&workload) == Some(&evicted_at) {
                self.journal_eviction(&workload);
                self.set_eviction(workload, None);
            }
            ended = true;
        }
        ended
    }
}

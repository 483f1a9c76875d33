//! What happens around the schedulers: kubelets, controllers, users, and faults.
//!
//! Owns what everybody else in a cluster does, by chance. Must not know how schedulers work.

use std::sync::Arc;

use super::*;

/// Kubelets, controllers, users and faults.
impl World {
    pub(super) fn find(&self, uid: &Arc<str>) -> Option<PodRef> {
        let mut pods = self.server.pods.values();
        pods.find(|pod| pod.seen.object.uid == *uid).map(|pod| pod.seen.reference())
    }

    /// A kubelet sees a pod.
    pub(super) fn admit(&mut self, node: &Arc<str>, uid: &Arc<str>) {
        let Some(pod) = self.find(uid) else { return };
        let Some(stored) = self.server.pods.get(&pod.name) else { return };
        if stored.seen.object.phase != Phase::Alive {
            return;
        }
        let spec = stored.seen.object.spec.clone();
        let short = self.short_of(node, uid);
        let now_ms = self.now_ms as i64;
        let Some(machine) = self.machines.get_mut(node) else { return };
        let rejected = match (short, machine.kubelet.demand(&spec.pod)) {
            (Some(resource), _) => Some(format!("OutOf{resource}")),
            (None, Ok(demand)) => {
                let admitted = machine.kubelet.admit(uid, &demand);
                admitted.err().map(|rejection| format!("{:?}", rejection.reason))
            }
            (None, Err(_)) => Some("UnexpectedAdmissionError".to_owned()),
        };
        self.tally.rejections += u64::from(rejected.is_some());
        self.server.change(&pod, |stored| match rejected {
            None => stored.seen.object.started_at_ms = Some(1_800_000_000_000 + now_ms),
            Some(reason) => {
                stored.seen.rejected = Some(reason.into());
                stored.seen.object.phase = Phase::Finished;
            }
        });
    }

    /// What a node has not enough of for a pod, given those that run there.
    pub(super) fn short_of(&self, node: &Arc<str>, uid: &Arc<str>) -> Option<ResourceName> {
        let allocatable = &self.server.nodes.get(node)?.0.allocatable;
        let mut sums: BTreeMap<ResourceName, i128> = BTreeMap::new();
        for stored in self.server.pods.values() {
            let object = &stored.seen.object;
            let runs = object.started_at_ms.is_some() && object.phase != Phase::Finished;
            if object.node.as_ref() == Some(node) && (runs || object.uid == *uid) {
                for (resource, amount) in requests(&object.spec) {
                    *sums.entry(resource).or_insert(0) += amount;
                }
            }
        }
        let there = |name: &ResourceName| allocatable.get(name).map_or(0, |amount| amount.nanos());
        sums.into_iter().find(|(name, sum)| *sum > there(name)).map(|(name, _)| name)
    }

    /// A pod that was going is gone.
    pub(super) fn remove(&mut self, uid: &Arc<str>) {
        self.leaving.remove(uid);
        let Some(pod) = self.find(uid) else { return };
        if let Some(machine) = self.server.pods.get(&pod.name).and_then(|stored| {
            let node = stored.seen.object.node.as_ref()?;
            self.machines.get_mut(node)
        }) {
            machine.kubelet.remove(uid);
        }
        self.server.remove(&pod.name);
    }

    /// Controllers keep as many pods as are wanted.
    pub(super) fn reconcile(&mut self) {
        for at in 0..self.workloads.len() {
            let alive: Vec<PodRef> = self
                .server
                .pods
                .values()
                .filter(|pod| pod.workload == at && pod.seen.object.phase == Phase::Alive)
                .map(|pod| pod.seen.reference())
                .collect();
            let wanted = self.workloads[at].wanted;
            for _ in alive.len()..wanted {
                self.numbered += 1;
                let mut spec = self.workloads[at].spec.clone();
                if self.workloads[at].varied {
                    Arc::make_mut(&mut spec).labels.insert("shape", self.numbered.to_string());
                }
                self.server.put(pod(self.numbered, at, &spec, self.now_ms));
            }
            for pod in alive.iter().skip(wanted) {
                self.delete(pod);
            }
        }
        let stranded: Vec<Arc<str>> = self
            .server
            .pods
            .values()
            .filter(|pod| {
                let node = pod.seen.object.node.as_ref();
                node.is_some_and(|node| !self.server.nodes.contains_key(node))
            })
            .map(|pod| pod.seen.object.uid.clone())
            .collect();
        for uid in stranded {
            if self.dice.below(3) == 0 {
                self.remove(&uid);
            }
        }
        let after_ms = 500 + self.dice.below(2_500) as u64;
        self.at(after_ms, Happening::Reconcile);
    }

    pub(super) fn delete(&mut self, pod: &PodRef) {
        let bound =
            self.server.pods.get(&pod.name).is_some_and(|pod| pod.seen.object.node.is_some());
        if bound {
            self.server.change(pod, |stored| {
                stored.seen.object.phase = Phase::Terminating { by_preemption: false };
            });
        } else {
            self.server.remove(&pod.name);
        }
    }

    pub(super) fn any_pod(
        &mut self,
        which: impl Fn(&crate::server::Stored) -> bool,
    ) -> Option<PodRef> {
        let pods: Vec<PodRef> = self
            .server
            .pods
            .values()
            .filter(|pod| which(pod))
            .map(|pod| pod.seen.reference())
            .collect();
        (!pods.is_empty()).then(|| pods[self.dice.below(pods.len())].clone())
    }

    pub(super) fn disturb(&mut self) {
        if self.is_calm() {
            return;
        }
        match self.dice.below(3) {
            0 => self.fault(),
            1 if self.plan.hostile => self.be_hostile(),
            _ => self.user(),
        }
        let after_ms = 1 + self.dice.below(2 * self.plan.every_ms) as u64;
        self.at(after_ms, Happening::Disturb);
    }

    /// A pod for which there is room in every cluster that has any.
    pub(super) fn create_modest(&mut self) {
        if let Some(at) = self.workloads.iter().position(|one| &*one.spec.namespace == MODEST) {
            self.workloads[at].wanted += 1;
            self.numbered += 1;
            let spec = self.workloads[at].spec.clone();
            self.server.put(pod(self.numbered, at, &spec, self.now_ms));
            self.at(MODEST_MAX_MS, Happening::ModestBound);
        }
    }

    /// What a hostile tenant can do to its pods: make them so that the API refuses to change them, and
    /// write requests into them that cannot be read; and take either back.
    fn be_hostile(&mut self) {
        let hostile: Vec<bool> = self.workloads.iter().map(|workload| workload.hostile).collect();
        let is_theirs = |pod: &crate::server::Stored| hostile[pod.workload];
        let Some(pod) = self.any_pod(is_theirs) else { return };
        let is_rigid = self.dice.below(2) == 0;
        let invalid = (self.dice.below(2) == 0).then(|| Arc::from("cannot be read"));
        self.server.change(&pod, |stored| {
            stored.rigid = is_rigid;
            stored.seen.invalid = invalid;
        });
    }

    pub(super) fn fault(&mut self) {
        self.tally.faults += 1;
        let at = self.dice.below(self.replicas.len());
        match self.dice.below(8) {
            0 => self.kill(at, 20_000),
            1 | 2 => {
                let for_ms = [500, 5_000, 20_000, 60_000][self.dice.below(4)];
                self.replicas[at].paused_until_ms =
                    self.now_ms + 1 + self.dice.below(for_ms) as u64;
            }
            3 => {
                let for_ms = [300, 3_000, 12_000, 30_000][self.dice.below(4)];
                self.outage_until_ms = self.now_ms + 1 + self.dice.below(for_ms) as u64;
            }
            4 => {
                let rate_milli = 500 + self.dice.below(1_200) as u64;
                let offset_ms = self.dice.below(86_400_000) as i64 - 43_200_000;
                self.replicas[at].clock.set(self.now_ms, rate_milli, offset_ms);
            }
            5 => self.send(at, None, 0, Message::Stop),
            _ => {
                let leader = self.replicas.iter().position(|replica| replica.leading.is_some());
                if let Some(at) = leader {
                    match self.dice.below(2) {
                        0 => self.kill(at, 20_000),
                        _ => {
                            let for_ms = 18_000 + self.dice.below(20_000) as u64;
                            self.replicas[at].paused_until_ms = self.now_ms + for_ms;
                        }
                    }
                }
            }
        }
    }

    pub(super) fn user(&mut self) {
        match self.dice.below(10) {
            0 | 1 => {
                let at = self.dice.below(self.workloads.len());
                self.workloads[at].wanted = self.dice.below(9);
            }
            2 => {
                if let Some(pod) = self.any_pod(|pod| pod.seen.object.phase == Phase::Alive) {
                    self.delete(&pod);
                }
            }
            3 | 4 => {
                let number = self.dice.roll().to_string();
                if let Some(pod) = self.any_pod(|pod| pod.seen.object.node.is_none()) {
                    self.server.change(&pod, |stored| {
                        let spec = Arc::make_mut(&mut stored.seen.object.spec);
                        spec.labels.insert("user", number);
                    });
                }
            }
            5 => self.finish_one(),
            6 => self.bind_by_others(),
            7 => {
                let index = self.numbered as usize + 100;
                self.numbered += 1;
                if self.server.nodes.len() < 8 && self.add_node(index).is_err() {
                    self.finding = Some("a node cannot be built".to_owned());
                }
            }
            8 => self.change_node(),
            _ => {
                let at = self.dice.below(self.workloads.len());
                let name: Arc<str> = format!("budget-{at}").into();
                if let Some(mut budget) = self.server.budgets.get(&name).cloned() {
                    budget.disruptions_allowed = self.dice.below(3) as i32;
                    self.server.put_budget(budget);
                }
            }
        }
    }

    pub(super) fn finish_one(&mut self) {
        let runs = |pod: &crate::server::Stored| {
            pod.seen.object.started_at_ms.is_some() && pod.seen.object.phase == Phase::Alive
        };
        let Some(pod) = self.any_pod(runs) else { return };
        if let Some(stored) = self.server.pods.get(&pod.name) {
            let workload = &mut self.workloads[stored.workload];
            workload.wanted = workload.wanted.saturating_sub(1);
            let node = stored.seen.object.node.clone();
            if let Some(machine) = node.and_then(|node| self.machines.get_mut(&node)) {
                machine.kubelet.remove(&pod.uid);
            }
        }
        self.server.change(&pod, |stored| stored.seen.object.phase = Phase::Finished);
    }

    /// Another scheduler is faster with one of ours.
    pub(super) fn bind_by_others(&mut self) {
        let waits = |pod: &crate::server::Stored| {
            pod.seen.object.node.is_none() && pod.seen.object.phase == Phase::Alive
        };
        let Some(pod) = self.any_pod(waits) else { return };
        let names: Vec<Arc<str>> = self.server.nodes.keys().cloned().collect();
        if !names.is_empty() {
            let node = names[self.dice.below(names.len())].clone();
            self.server.bind(&pod, None, (node, None), None);
        }
    }

    pub(super) fn change_node(&mut self) {
        let names: Vec<Arc<str>> = self.server.nodes.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let name = names[self.dice.below(names.len())].clone();
        let Some((mut node, inside)) = self.server.nodes.get(&name).cloned() else { return };
        match self.dice.below(4) {
            0 if names.len() > 2 => {
                self.server.remove_node(&name);
                self.machines.remove(&name);
            }
            1 => {
                node.unschedulable = !node.unschedulable;
                self.server.put_node(node, inside, false);
            }
            // Somebody exports what the node looks like, having seen its pods.
            2 => {
                self.checker.node_changed(&name, self.now_ms);
                self.server.put_node(node, inside, true);
            }
            _ => {
                node.labels.insert("user", self.dice.roll().to_string());
                self.server.put_node(node, inside, false);
            }
        }
    }

    /// Who leads and decides.
    pub(crate) fn leader(&self) -> Option<Caller> {
        let leads = |replica: &Replica| replica.leading.as_ref().is_some_and(|term| term.deciding);
        self.replicas.iter().position(leads).map(|at| self.caller(at))
    }
}

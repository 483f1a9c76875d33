//! Gangs, kept in the plainest possible way, and the laws of decisions about them.
//!
//! Owns what a gang is by its members' own words, and a search for room by first fit that is exact
//! for gangs of equal pods. Must share nothing with the engine but its vocabulary.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_engine::Config;
use berth_engine::decision::{Binding, GangBinding, GangDisbandment, GangName, GangReservation};
use berth_model::alignment::Alignment;
use berth_model::gang::{Disruption, GangTerms};
use berth_model::spec::Phase;

use super::books::{Books, Entry, FullName, Spot};
use super::checker::{Checker, Law};
use super::rules::Scene;

/// The gang a pod says it is in.
pub(super) fn gang_of(pod: &Entry) -> Option<FullName> {
    let spec = pod.spec();
    spec.gang.as_ref().map(|gang| (spec.namespace.clone(), gang.name.clone()))
}

fn full_name(gang: &GangName) -> FullName {
    (gang.namespace.clone(), gang.name.clone())
}

/// Whether a pod has a place and is to keep it.
fn stays(pod: &Entry) -> bool {
    pod.node().is_some() && pod.object.phase == Phase::Alive && !pod.is_leaving()
}

impl Books {
    pub(super) fn members(&self, gang: &FullName) -> impl Iterator<Item = &Entry> {
        let gang = gang.clone();
        self.pods.values().filter(move |pod| gang_of(pod).as_ref() == Some(&gang))
    }

    /// What a gang asks for: as its object says, or else its oldest member.
    pub(super) fn terms(&self, gang: &FullName) -> Option<GangTerms> {
        if let Some(terms) = self.gangs.get(gang) {
            return Some(terms.clone());
        }
        let says = |pod: &Entry| {
            Some((pod.object.created_at_ms, pod.object.uid.clone()))
                .zip(pod.spec().gang.as_ref().and_then(|gang| gang.terms.clone()))
        };
        self.members(gang).filter_map(says).min_by_key(|(age, _)| age.clone()).map(|one| one.1)
    }

    /// Members that have a place or have finished.
    fn served(&self, gang: &FullName) -> usize {
        let finished = self.finished.values().filter(|one| *one == gang).count();
        finished + self.members(gang).filter(|pod| stays(pod)).count()
    }

    /// Whether a pod cannot be decided about by itself: its gang has not started.
    pub(super) fn is_held_back(&self, pod: &Entry) -> bool {
        let Some(gang) = gang_of(pod) else { return false };
        let enough = |terms: GangTerms| self.served(&gang) >= terms.min as usize;
        let starts = |terms| self.started.contains(&gang) || enough(terms);
        !self.terms(&gang).is_some_and(starts)
    }

    /// So many of a gang's members must get a place together; `None` if members are missing.
    fn need(&self, gang: &FullName) -> Option<usize> {
        let need = (self.terms(gang)?.min as usize).saturating_sub(self.served(gang));
        (self.members(gang).filter(|pod| pod.waits()).count() >= need).then_some(need)
    }

    /// The waiting members of a gang that may start together as far as quotas and teams go, those
    /// first whose turn it is.
    fn startable(&self, gang: &FullName) -> Vec<Entry> {
        let mut waiting: Vec<Entry> =
            self.members(gang).filter(|pod| pod.waits()).cloned().collect();
        waiting.sort_by_key(|pod| {
            let object = &pod.object;
            (Reverse(pod.spec().priority), object.created_at_ms, object.uid.clone())
        });
        let Some(node) = self.nodes.keys().next().filter(|_| self.may_hold()) else {
            return waiting;
        };
        let mut books = self.clone();
        books.stop_waiting(gang);
        waiting.retain(|pod| {
            let free = !books.is_held(&books.pods[&pod.object.uid]);
            if let Some(entry) = books.pods.get_mut(&pod.object.uid).filter(|_| free) {
                entry.spot = Spot::Awaits(node.clone());
            }
            free
        });
        waiting
    }

    /// Whether quotas or teams keep a gang from starting.
    pub(super) fn is_gang_held(&self, gang: &FullName) -> bool {
        self.need(gang).is_some_and(|need| self.startable(gang).len() < need)
    }

    /// What the engine concludes from the news before it decides: which gangs have started, and that
    /// nothing is kept for gangs whose members are missing.
    pub(super) fn look_at_gangs(&mut self) {
        let gangs: BTreeSet<FullName> = self.pods.values().filter_map(gang_of).collect();
        self.started.retain(|gang| gangs.contains(gang));
        for gang in gangs {
            if self.served(&gang) == 0 {
                self.started.remove(&gang);
            }
            let confirmed = self.members(&gang).filter(|pod| stays(pod) && !pod.decided).count();
            let finished = self.finished.values().filter(|one| **one == gang).count();
            let min = self.terms(&gang).map(|terms| terms.min as usize);
            if min.is_some_and(|min| confirmed + finished >= min) {
                self.started.insert(gang.clone());
            }
            let held = self.members(&gang).any(|pod| self.is_held_back(pod));
            if held && self.need(&gang).is_none() {
                self.stop_waiting(&gang);
            }
        }
    }

    /// Whether a pod is a member of the gang for which nodes are reserved.
    pub(super) fn is_reserved_for(&self, pod: &Entry) -> bool {
        self.reserved_for.is_some() && gang_of(pod) == self.reserved_for
    }

    /// No member waits for a node any more.
    pub(super) fn stop_waiting(&mut self, gang: &FullName) {
        for pod in self.pods.values_mut() {
            if gang_of(pod).as_ref() == Some(gang) && matches!(pod.spot, Spot::Awaits(_)) {
                (pod.spot, pod.decided) = (Spot::Nowhere, false);
            }
        }
    }

    /// A decision that a gang waits.
    pub(super) fn gang_waits(&mut self, gang: &FullName) {
        let waits = |pod: &Entry| pod.waits() && self.awaits_room(pod);
        if !self.members(gang).any(waits) {
            self.stop_waiting(gang);
        }
    }

    /// The value of a required label that a pod's mates have, and the label; `Some(None)`: any value.
    pub(super) fn near(&self, pod: &Entry) -> Option<(Arc<str>, Option<Arc<str>>)> {
        let gang = gang_of(pod)?;
        let topology = self.terms(&gang)?.topology.filter(|topology| topology.required)?;
        let mut counts: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for mate in self.members(&gang).filter(|mate| stays(mate)) {
            let node = mate.node().and_then(|name| self.nodes.get(name));
            if let Some(value) = node.and_then(|node| node.labels.get(&topology.key)) {
                *counts.entry(value.clone()).or_insert(0) += 1;
            }
        }
        let most = counts.into_iter().max_by_key(|(value, count)| (*count, Reverse(value.clone())));
        Some((topology.key, most.map(|(value, _)| value)))
    }

    /// The pods that have to go when some do, because their gang would be too small.
    pub(super) fn go_too(&self, gone: &[Arc<str>]) -> Vec<Arc<str>> {
        let gangs: BTreeSet<FullName> =
            gone.iter().filter_map(|uid| self.pods.get(uid)).filter_map(gang_of).collect();
        let mut too = Vec::new();
        for gang in gangs {
            let Some(terms) = self.terms(&gang) else { continue };
            let left: Vec<Arc<str>> = self
                .members(&gang)
                .filter(|pod| stays(pod) && !gone.contains(&pod.object.uid))
                .map(|pod| pod.object.uid.clone())
                .collect();
            if left.len() < terms.min as usize && terms.disruption == Disruption::Whole {
                too.extend(left);
            }
        }
        too
    }

    /// Binds a pod in thought.
    fn suppose(&mut self, pod: &Arc<str>, node: &Arc<str>) {
        let (pod, node) = (pod.clone(), node.clone());
        let (gpu_grant, devices, alignment) = (None, None, Alignment::Unknown);
        self.bind(&Binding { pod, node, gpu_grant, devices, alignment, numa: None });
    }
}

impl Checker {
    /// Members of a gang are bound together.
    pub(super) fn bound_all(&mut self, all: &GangBinding, now_ms: i64) {
        let gang = full_name(&all.gang);
        let Some(need) = self.books.need(&gang) else {
            return self.broken(Law::GangsStartWhole, format!("{gang:?} lacks members"));
        };
        let waiting: Vec<Entry> =
            self.books.members(&gang).filter(|pod| pod.waits()).cloned().collect();
        let is_member = |one: &Binding| waiting.iter().any(|pod| pod.object.uid == one.pod);
        if all.bindings.len() < need || !all.bindings.iter().all(is_member) {
            let bound = all.bindings.len();
            self.broken(Law::GangsStartWhole, format!("{bound} of {need} of {gang:?}"));
        }
        if waiting.iter().any(|pod| !self.books.is_held_back(pod)) {
            self.broken(Law::GangsStartWhole, format!("{gang:?} has started before"));
        }
        let head = waiting.iter().min_by_key(|pod| {
            let object = &pod.object;
            (Reverse(pod.spec().priority), object.created_at_ms, object.uid.clone())
        });
        if let Some(head) = head {
            self.first_comes_first(head);
        }
        self.books.stop_waiting(&gang);
        for binding in &all.bindings {
            if self.books.pods.get(&binding.pod).is_some_and(|pod| self.books.is_held(pod)) {
                let text = format!("{} of {gang:?} is bound though it is held", binding.pod);
                self.broken(Law::HeldForAReason, text);
            }
            self.bound_one(binding, now_ms);
        }
    }

    /// Nodes are kept for a gang.
    pub(super) fn reserved(&mut self, reserving: &GangReservation, now_ms: i64) {
        let gang = full_name(&reserving.gang);
        let held = |pod: &Entry| pod.waits() && self.books.is_held_back(pod);
        let need = self.books.need(&gang).filter(|_| self.books.members(&gang).any(held));
        if need.is_none_or(|need| reserving.places.len() < need) {
            self.broken(Law::GangsStartWhole, format!("{reserving:?}, needed {need:?}"));
        }
        if let Some((other, until_ms)) = self.kept_for.clone()
            && reserving.until_ms.is_some()
            && now_ms < until_ms
            && other != gang
            && self.books.members(&other).any(|pod| matches!(pod.spot, Spot::Awaits(_)))
        {
            self.broken(Law::OneGangAtATime, format!("{gang:?} while {other:?} has nodes"));
        }
        let max_ms = self.config.reservations.max_ms;
        if reserving.until_ms.is_some_and(|until_ms| until_ms - now_ms > max_ms) {
            self.broken(Law::OneGangAtATime, format!("{reserving:?} at {now_ms}"));
        }
        let reserved = reserving.until_ms.map(|_| gang.clone());
        let other = |one: &FullName| *one != gang;
        self.books.reserved_for = reserved.or(self.books.reserved_for.take().filter(other));
        self.kept_for =
            reserving.until_ms.map(|until| (gang.clone(), until)).or(self.kept_for.take());
        self.gang_victims(&gang, reserving, now_ms);
        self.books.stop_waiting(&gang);
        self.books.reserve(reserving, now_ms);
        let nodes: Vec<&Arc<str>> = reserving.places.iter().map(|(_, node)| node).collect();
        self.promises.retain(|promise| {
            !nodes.contains(&&promise.node) && !reserving.displaced.contains(&promise.pod)
        });
    }

    fn gang_victims(&mut self, gang: &FullName, reserving: &GangReservation, now_ms: i64) {
        let victims = &reserving.victims;
        let top = self.books.members(gang).filter(|pod| pod.waits());
        let top = top.map(|pod| pod.spec().priority).max().unwrap_or(i32::MIN);
        for uid in victims {
            let may = self.books.pods.get(uid).is_some_and(|pod| self.may_go(pod, top, now_ms));
            if !may {
                self.broken(Law::VictimsMayBeEvicted, format!("{uid} for {gang:?} at {now_ms}"));
            }
        }
        self.whole_gangs(victims);
        if reserving.until_ms.is_some() {
            return;
        }
        let places = reserving.places.iter();
        let entries = places.filter_map(|(uid, node)| Some((self.books.pods.get(uid)?, node)));
        let leaving: Vec<Arc<str>> =
            entries.flat_map(|(entry, node)| self.leaving(entry, node)).collect();
        if victims.is_empty() && leaving.is_empty() {
            self.broken(Law::VictimsAreNeeded, format!("{gang:?} waits for nobody"));
        }
        let violations = self.budget_violations(victims);
        if violations != reserving.budget_violations {
            let text = format!("{gang:?}: {} said, {violations}", reserving.budget_violations);
            self.broken(Law::BudgetsAreCounted, text);
        }
        let mut books = self.books.clone();
        books.stop_waiting(gang);
        victims.iter().chain(&leaving).for_each(|uid| books.remove_pod(uid));
        for (pod, node) in &reserving.places {
            let entry = books.pods[pod].clone();
            let scene = Scene::new(&books, self.config).without_reservation();
            if let Err(why) = scene.takes(&entry, node) {
                // What kubelets hand out depends on who leaves and comes first, which nobody knows of
                // several victims and members; whoever is rejected then is planned for anew.
                if why.starts_with("the kubelet") {
                    return;
                }
                let text = format!("{pod} on {node} without {victims:?}: {why}");
                return self.broken(Law::VictimsAreNeeded, text);
            }
            books.suppose(pod, node);
        }
    }

    /// Nobody is evicted who leaves a gang behind that is too small.
    pub(super) fn whole_gangs(&mut self, victims: &[Arc<str>]) {
        let left = self.books.go_too(victims);
        if !left.is_empty() {
            let text = format!("{left:?} stay without {victims:?}");
            self.broken(Law::GangsAreEvictedWhole, text);
        }
    }

    /// A gang gives its places back.
    pub(super) fn disbanded(&mut self, disbanding: &GangDisbandment, now_ms: i64) {
        let gang = full_name(&disbanding.gang);
        let holding: BTreeSet<Arc<str>> = self
            .books
            .members(&gang)
            .filter(|pod| stays(pod))
            .map(|pod| pod.object.uid.clone())
            .collect();
        let short =
            self.books.members(&gang).any(|pod| pod.waits() && self.books.is_held_back(pod));
        if !short || !disbanding.pods.iter().cloned().eq(holding) {
            self.broken(Law::GangsStartWhole, format!("{disbanding:?} though it may stay"));
        }
        self.books.evict(&disbanding.pods, now_ms);
    }

    /// Whether nothing can be done for a gang that has not started, as far as that can be told: for
    /// gangs of equal pods that only need room, first fit finds a place if there is one.
    pub(super) fn gang_waits_rightly(&mut self, gang: &FullName) {
        let Some(need) = self.books.need(gang) else { return };
        let mut books = self.books.clone();
        books.stop_waiting(gang);
        let waiting = books.startable(gang);
        let Some(first) = waiting.first() else { return };
        let topology = books.terms(gang).and_then(|terms| terms.topology);
        let equal = waiting.iter().all(|pod| {
            is_plain(pod) && pod.spec().pod == first.spec().pod && same_nodes(pod, first)
        });
        if !equal {
            return;
        }
        let value = |books: &Books, node: &Arc<str>| {
            let key = &topology.as_ref().filter(|topology| topology.required)?.key;
            Some(books.nodes.get(node)?.labels.get(key).cloned())
        };
        let mut domains: Vec<Option<Option<Arc<str>>>> =
            books.nodes.keys().map(|node| value(&books, node)).collect();
        domains.sort();
        domains.dedup();
        for domain in domains {
            let nodes: Vec<Arc<str>> =
                books.nodes.keys().filter(|node| value(&books, node) == domain).cloned().collect();
            if first_fit(&books, self.config, &waiting, &nodes) >= need {
                let text = format!("gang {gang:?} waits though {nodes:?} take {need}");
                return self.broken(Law::NobodyWaitsInVain, text);
            }
        }
    }
}

/// Whether where a pod can go depends on nothing but room.
fn is_plain(pod: &Entry) -> bool {
    let spec = pod.spec();
    spec.spread.is_empty()
        && spec.pod_affinity.is_empty()
        && spec.host_ports.is_empty()
        && spec.gpu.is_none()
}

fn same_nodes(one: &Entry, other: &Entry) -> bool {
    let (one, other) = (one.spec(), other.spec());
    one.node_selector == other.node_selector
        && one.node_affinity == other.node_affinity
        && one.tolerations == other.tolerations
        && one.labels == other.labels
        && one.priority == other.priority
}

/// How many pods find a place on these nodes, each on the first that takes it.
fn first_fit(books: &Books, config: Config, pods: &[Entry], nodes: &[Arc<str>]) -> usize {
    let mut books = books.clone();
    let mut placed = 0;
    for pod in pods {
        let scene = Scene::new(&books, config);
        let taker =
            nodes.iter().find(|node| scene.is_known(node) && scene.takes(pod, node).is_ok());
        let Some(node) = taker.cloned() else { break };
        books.suppose(&pod.object.uid, &node);
        placed += 1;
    }
    placed
}

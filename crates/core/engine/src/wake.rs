//! Which parked pods are evaluated again after a change.
//!
//! A class is rechecked when its trigger fires, on the nodes that changed, and one step does a
//! bounded number of rechecks. The rest stays due, and namespaces take turns.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use berth_model::spec::PreemptionPolicy;
use smallvec::SmallVec;

use crate::amounts::{self, CPU};
use crate::changes::Change;
use crate::config::Profile;
use crate::engine::{Engine, is_open};
use crate::filter::{IncomingPod, Inquiry, fit};
use crate::placement::precheck::{self, scarcest, used_without_lower};
use crate::placement::select::select;
use crate::placement::victims::Preemptor;
use crate::rechecks::{Since, Trigger};
use crate::state::State;
use crate::table::{ClassIx, Index, NodeIx, PodIx, ResourceIx, TallyIx};

/// Limit of one step's rechecks, in nodes evaluated.
const LOOKS_MAX: u64 = 16_384;

/// Cost of a recheck besides the nodes evaluated.
const RECHECK_LOOKS: u64 = 8;

/// Additional cost of trying evictions on a node.
const TRIAL_LOOKS: u64 = 64;

/// Changed nodes, each once, and whether each may have more room than before.
type Changed = Vec<(NodeIx, bool)>;

impl Engine {
    /// Processes changes: pods nominated to changed nodes, and classes whose trigger fires.
    pub(crate) fn wake(&mut self, now_ms: i64) {
        let epoch = self.state.changes.epoch;
        let cooled_down = self.state.end_cooldowns(now_ms, self.config.eviction_cooldown_ms);
        let woken_at_ms = std::mem::replace(&mut self.woken_at_ms, now_ms);
        self.state.touch_overdue(woken_at_ms, now_ms);
        let changes = self.state.changes.since_but(self.woken, &self.undone);
        let changes = changes.filter(|_| self.woken_epoch == epoch);
        let unchanged = changes.as_ref().is_some_and(Vec::is_empty) && !cooled_down;
        let freed = changes
            .as_ref()
            .is_none_or(|changes| changes.iter().any(|(_, change)| *change != Change::Taken));
        // Which pods a nominated node is open to depends on what teams have anywhere.
        let has_teams = self.state.tenancy.has_teams();
        let since = std::mem::replace(&mut self.woken, self.state.changes.now());
        self.woken_epoch = epoch;
        for head in self.gangs.take_due(now_ms) {
            self.queue.wake(head);
        }
        if unchanged {
            return;
        }
        let appeared = self.state.census.take_appeared();
        if self.config.profile != Profile::Berth {
            return self.wake_as_kube_scheduler(freed || has_teams);
        }
        let Some(changes) = changes else {
            let all: Vec<NodeIx> = self.state.nodes.indexes().collect();
            self.wake_nominated(&all);
            return self.recheck_all();
        };
        let mut changed: Vec<NodeIx> = changes.iter().map(|(at, _)| *at).collect();
        changed.sort_unstable();
        changed.dedup();
        self.wake_nominated(&changed);
        if cooled_down {
            self.recheck_all();
        } else if !self.queue.rechecks.is_empty() {
            self.queue.rechecks.mark_anything_due(since);
            let mut classes = self.triggered(&distinct(changes), &appeared);
            if has_teams {
                // What can be reclaimed depends on what teams have anywhere.
                classes.extend(self.queue.rechecks.of_any_room());
            }
            for class in classes {
                self.queue.recheck(class, Some(since));
            }
        }
    }

    fn recheck_all(&mut self) {
        let classes: Vec<ClassIx> = self.queue.parked_classes().collect();
        classes.into_iter().for_each(|class| self.queue.recheck(class, None));
    }

    /// The classes whose trigger fires, beside those triggered by anything.
    fn triggered(
        &self,
        changed: &[(NodeIx, Change)],
        appeared: &BTreeSet<TallyIx>,
    ) -> Vec<ClassIx> {
        let rechecks = &self.queue.rechecks;
        let mut classes: Vec<ClassIx> =
            appeared.iter().flat_map(|tally| rechecks.of_neighbour(*tally)).collect();
        if changed.iter().any(|(_, change)| *change == Change::Node) {
            classes.extend(rechecks.of_node_object());
        }
        for (at, change) in changed {
            let Some(node) = self.state.nodes.get(*at) else { continue };
            for priority in rechecks.priorities() {
                let used = used_without_lower(&self.state, node, priority);
                if used.is_none() && *change == Change::Taken {
                    continue;
                }
                let used = used.as_ref().unwrap_or(&node.used);
                let resources = (0..node.capacity.len().max(1)).map(ResourceIx::new);
                for resource in resources {
                    let capacity = amounts::at(&node.capacity, resource);
                    if capacity == 0 && resource != CPU {
                        continue;
                    }
                    let room = capacity.saturating_sub(amounts::at(used, resource));
                    classes.extend(rechecks.of_room(priority, resource, room));
                }
            }
        }
        classes
    }

    /// Rechecks due classes, as many as one step may.
    pub(crate) fn recheck_some(&mut self, now_ms: i64) {
        let mut looks = 0;
        while looks < LOOKS_MAX
            && let Some((class, since)) = self.queue.rechecks.next()
        {
            self.effort.rechecks += 1;
            let before = self.effort().looks;
            self.recheck(class, since, now_ms);
            looks += RECHECK_LOOKS + self.effort().looks - before;
        }
        self.queue.rechecks.end_sweeps();
        if self.queue.rechecks.is_settled() {
            self.undone.clear();
        }
    }

    /// Wakes the first pod of a class if it fits now, or if preemption could help it.
    fn recheck(&mut self, class: ClassIx, since: Since, now_ms: i64) {
        let Some(first) = self.queue.parked_of(class).next() else { return };
        if self.held_by(first).is_some() {
            return self.queue.hold(class);
        }
        if self.queue.is_held(class) {
            return self.queue.release(class);
        }
        let changes = since.and_then(|since| self.state.changes.since_but(since, &self.undone));
        let changes = changes.map(distinct);
        let rules = self.state.rules(class);
        let trigger = self.trigger_of(first);
        if matches!(trigger, Trigger::Neighbour(_)) {
            // Evictions do not help either.
            return self.set_trigger(first, trigger);
        }
        if let Some(Trigger::Neighbour(_)) = self.queue.rechecks.trigger(class) {
            // The pod it required exists: more than that matters from now on.
            self.set_trigger(first, Trigger::Anything);
        }
        let is_local =
            |trigger: Trigger| matches!(trigger, Trigger::Room(..) | Trigger::NodeObject);
        if let Some(changes) = &changes
            && is_local(trigger)
            && self.queue.rechecks.trigger(class).is_some_and(is_local)
        {
            let changes = self.with_awaited(changes);
            return self.recheck_on(first, trigger, &changes, now_ms);
        }
        if self.rankings.keeps(&self.state, class) {
            self.effort.looks += self.state.nodes.len() as u64;
        }
        let freed = changes
            .as_ref()
            .is_none_or(|changes| changes.iter().any(|(_, change)| *change != Change::Taken));
        let freed = freed || self.state.tenancy.has_teams();
        let changed: Vec<NodeIx> = match &changes {
            Some(changes) => changes.iter().map(|(at, _)| *at).collect(),
            None => self.state.nodes.indexes().collect(),
        };
        // Taken resources can help only pods with affinity or spread constraints.
        let may_fit = freed || rules.affinity.is_some() || !rules.hard_spread.is_empty();
        if !self.state.pods[first].claims.is_empty() {
            // Pods of one class have different claims.
            let pods: Vec<PodIx> = self.queue.parked_of(class).collect();
            for pod in pods {
                if self.fits_now(pod, &changed) {
                    self.queue.wake(pod);
                }
            }
            return;
        }
        if self.led_by(first).is_some() {
            // Time matters, too: cooldowns may have ended.
            if may_fit || since.is_none() {
                self.queue.wake(first);
            }
            return;
        }
        if may_fit && self.fits_now(first, &changed) {
            return self.queue.wake(first);
        }
        match self.first_not_nominated(class) {
            Some(next) if self.could_preempt(next, now_ms) => self.queue.wake(next),
            Some(next) if next == first && may_fit && !self.preemption.cut_short => {
                self.set_trigger(first, trigger);
            }
            _ => {}
        }
    }

    /// Rechecks the first pod of a class that can fit only on a changed node.
    fn recheck_on(&mut self, first: PodIx, trigger: Trigger, changed: &Changed, now_ms: i64) {
        let class = self.state.pods[first].class;
        let requests = self.state.class(class).requests.clone();
        let preemptor =
            Preemptor::new(&self.state, first, now_ms, self.config.eviction_cooldown_ms);
        let State { nodes, served, .. } = &self.state;
        self.effort.looks += changed.len() as u64;
        let mut open: SmallVec<[NodeIx; 8]> = SmallVec::new();
        let mut clearable: SmallVec<[NodeIx; 8]> = SmallVec::new();
        let mut short = None;
        for (at, freed) in changed {
            let Some(node) = nodes.get(*at) else { continue };
            let fits = || fit(&requests, node, &node.used, node.pods.len() as i64, served).is_ok();
            if *freed && fits() {
                open.push(*at);
            }
            let used = used_without_lower(&self.state, node, preemptor.priority);
            match scarcest(&requests, node, used.as_ref().unwrap_or(&node.used), served) {
                Some(request) => short = Some(request),
                None => {
                    clearable.extend(used.map(|_| *at));
                }
            }
        }
        self.effort.looks += TRIAL_LOOKS * clearable.len() as u64;
        let is_short = open.is_empty() && clearable.is_empty();
        let short = short.filter(|_| is_short);
        self.set_trigger(first, short.map_or(trigger, |(of, amount)| Trigger::Room(of, amount)));
        if !open.is_empty() && self.fits_on(first, &open) {
            return self.queue.wake(first);
        }
        let Some(next) = self.first_not_nominated(class) else { return };
        let could_preempt = if self.state.tenancy.has_teams() {
            self.could_preempt(next, now_ms)
        } else {
            !clearable.is_empty() && self.could_preempt_on(next, &clearable, now_ms)
        };
        if could_preempt {
            self.queue.wake(next);
        }
    }

    fn fits_now(&mut self, at: PodIx, changed: &[NodeIx]) -> bool {
        let class = self.state.pods[at].class;
        self.state.rules(class);
        if !self.may_have_room(at) {
            return false;
        }
        let near = self.gang_nodes(at).filter(|(_, required)| *required);
        let within = near.as_ref().map(|(nodes, _)| nodes);
        self.rankings.with(&mut self.state, class, |state, ranking, coarse| {
            if ranking.feasible == 0 {
                return false;
            }
            let Ok((inquiry, _)) = Inquiry::new(state, IncomingPod::of(state, at)) else {
                return false;
            };
            // Volumes are evaluated node by node, which is expensive if they rule out most.
            if inquiry.has_volumes() && !inquiry.has_neighbour_rules() {
                let near = |node: NodeIx| within.is_none_or(|nodes| nodes.contains(node));
                let mut changed = changed.iter().filter(|node| near(**node));
                return changed.any(|node| is_open(&inquiry, ranking, *node));
            }
            select(&inquiry, ranking, coarse, within).is_some()
        })
    }

    /// Evaluates held pods again where quotas or teams changed: the first of every class, since the
    /// next follows when it is placed.
    pub(crate) fn recheck_held(&mut self, now_ms: i64) {
        let tenancy = &mut self.state.tenancy;
        if !tenancy.books.is_empty() {
            tenancy.books.expire(now_ms);
        }
        if tenancy.books.changed().is_empty() && !tenancy.ledger.has_changed() {
            return;
        }
        let teams = tenancy.ledger.take_changed();
        let by_quota = tenancy.books.take_changed();
        if self.config.profile != Profile::Berth {
            return;
        }
        teams.iter().for_each(|team| self.queue.invalidate(*team));
        for uid in &by_quota {
            let Some(at) = self.state.pod_by_uid(uid) else { continue };
            let at = self.head_for(at).unwrap_or(at);
            if self.held_by(at).is_none() {
                self.queue.wake(at);
            }
        }
        let held: Vec<ClassIx> = self.queue.held_classes().collect();
        held.into_iter().for_each(|class| self.queue.recheck(class, None));
    }

    fn could_preempt(&mut self, at: PodIx, now_ms: i64) -> bool {
        let near = self.gang_nodes(at).filter(|(_, required)| *required);
        self.evictions(at, now_ms, near.as_ref().map(|(nodes, _)| nodes)).is_some()
    }

    /// The first parked pod of a class without a nomination that may succeed.
    fn first_not_nominated(&self, class: ClassIx) -> Option<PodIx> {
        self.queue.parked_of(class).find(|pod| !self.awaits_room(*pod))
    }

    /// Wakes nominated pods that fit now, or that have nothing to wait for any more.
    fn wake_nominated(&mut self, changed: &[NodeIx]) {
        let waiting: Vec<PodIx> = changed
            .iter()
            .filter_map(|at| self.state.nodes.get(*at))
            .flat_map(|node| node.nominated.iter().copied())
            .collect();
        for pod in waiting {
            if let Some(head) = self.head_for(pod) {
                self.queue.wake(head);
                continue;
            }
            if !self.awaits_room(pod) || self.fits_now(pod, changed) {
                self.queue.wake(pod);
            }
        }
    }

    fn fits_on(&mut self, at: PodIx, nodes: &[NodeIx]) -> bool {
        let class = self.state.pods[at].class;
        self.state.rules(class);
        self.rankings.with_nodes(&mut self.state, class, nodes, |state, ranking, _| {
            let Ok((inquiry, _)) = Inquiry::new(state, IncomingPod::of(state, at)) else {
                return false;
            };
            nodes.iter().any(|node| is_open(&inquiry, ranking, *node))
        })
    }

    fn could_preempt_on(&mut self, at: PodIx, nodes: &[NodeIx], now_ms: i64) -> bool {
        let class = self.state.pods[at].class;
        let never = self.state.class(class).spec.preemption != PreemptionPolicy::LowerPriority;
        if never || self.awaits_room(at) {
            return false;
        }
        let preemptor = Preemptor::new(&self.state, at, now_ms, self.config.eviction_cooldown_ms);
        let preemption = &mut self.preemption;
        let plan = self.rankings.with_nodes(&mut self.state, class, nodes, |state, ranking, _| {
            let inquiry = Inquiry::new(state, IncomingPod::of(state, at)).ok()?.0;
            preemption.find(&inquiry, ranking, &preemptor, None)
        });
        plan.is_some()
    }

    /// Whether a ranking should be consulted for a pod. The rules of its class must exist.
    pub(crate) fn may_have_room(&mut self, at: PodIx) -> bool {
        if self.rankings.keeps(&self.state, self.state.pods[at].class) {
            return true;
        }
        let Ok((inquiry, _)) = Inquiry::new(&self.state, IncomingPod::of(&self.state, at)) else {
            return false;
        };
        if !inquiry.lacks_required_pods() {
            self.effort.looks += self.state.nodes.len() as u64;
        }
        precheck::some_node_has_room(&inquiry)
    }

    pub(crate) fn may_make_room(&mut self, class: ClassIx, preemptor: &Preemptor) -> bool {
        if self.rankings.keeps(&self.state, class) {
            return true;
        }
        self.effort.looks += self.state.nodes.len() as u64;
        precheck::some_node_could_be_cleared(&self.state, class, preemptor)
    }

    /// With teams, nodes with nominations count as changed: whom they are open to depends on what
    /// teams have anywhere.
    fn with_awaited(&self, changes: &[(NodeIx, Change)]) -> Changed {
        let has_teams = self.state.tenancy.has_teams();
        let freed = |change: Change| change != Change::Taken || has_teams;
        let mut changed: Changed = changes.iter().map(|(at, one)| (*at, freed(*one))).collect();
        if has_teams {
            let awaited = self.state.nodes.iter().filter(|(_, node)| !node.nominated.is_empty());
            changed.extend(awaited.map(|(at, _)| (at, true)));
            changed.sort_unstable();
            changed.dedup_by_key(|(at, _)| *at);
        }
        changed
    }

    /// The trigger for a parked pod. The rules of its class must exist.
    pub(crate) fn trigger_of(&self, at: PodIx) -> Trigger {
        let state = &self.state;
        let pod = &state.pods[at];
        let class = state.class(pod.class);
        let is_alone = self.config.profile == Profile::Berth
            && pod.claims.is_empty()
            && class.spec.gang.is_none();
        let inquiry = is_alone.then(|| Inquiry::new(state, IncomingPod::of(state, at)));
        let Some(Ok((inquiry, _))) = inquiry else { return Trigger::Anything };
        if let Some(tally) = inquiry.missing_required_pods() {
            return Trigger::Neighbour(tally);
        }
        if inquiry.depends_on_others() {
            return Trigger::Anything;
        }
        match self.queue.rechecks.trigger(pod.class) {
            Some(Trigger::Room(of, amount)) if !state.served.contains(&of) => {
                Trigger::Room(of, amount)
            }
            _ => self.first_trigger(pod.class),
        }
    }

    /// The trigger of a class without one yet: preferably a device.
    fn first_trigger(&self, class: ClassIx) -> Trigger {
        if !precheck::some_object_allows(&self.state, class) {
            return Trigger::NodeObject;
        }
        let State { resources, served, .. } = &self.state;
        let requests = self.state.class(class).requests.iter();
        let counted = requests.filter(|(resource, _)| !served.contains(resource));
        let scarcest = counted.max_by_key(|(resource, amount)| {
            let name = resources.name(*resource);
            (name.is_extended(), *amount, Reverse(name.clone()))
        });
        let (resource, amount) = scarcest.copied().unwrap_or((CPU, i64::MIN));
        Trigger::Room(resource, amount)
    }

    pub(crate) fn set_trigger(&mut self, at: PodIx, trigger: Trigger) {
        let class = self.state.pods[at].class;
        let is_known = self.queue.rechecks.trigger(class) == Some(trigger);
        if !is_known && !self.queue.is_held(class) {
            self.queue.set_trigger(class, trigger);
        }
    }
}

/// Changed nodes, each once, with the most significant change.
fn distinct(mut changes: Vec<(NodeIx, Change)>) -> Vec<(NodeIx, Change)> {
    changes.sort_unstable();
    changes.dedup_by_key(|(at, _)| *at);
    changes
}

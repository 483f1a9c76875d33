//! The laws that every decision keeps, checked against books of our own.
//!
//! Owns what is asked of a decision: what it says must be possible by every rule, and who comes
//! first must have come first. Must share nothing with the engine but its vocabulary.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use berth_engine::Config;
use berth_engine::config::Profile;
use berth_engine::decision::{Binding, Decision, PodPreemption};
use berth_engine::event::Event;
use berth_engine::headroom::ReservedHeadroom;
use berth_kubelet::Verdict;
use berth_model::alignment::Alignment;
use berth_model::spec::{Phase, PreemptionPolicy};

use super::books::{Books, Entry, FullName, Spot, device};
use super::gangs::gang_of;
use super::rules::Scene;

/// What decisions must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Law {
    /// Only pods that look for their place are decided about.
    OnlyWaitingPodsAreDecided,
    /// A node takes a pod by every rule at the moment of binding.
    BoundWhereItFits,
    /// The kubelet admits what is bound.
    KubeletAdmits,
    /// What is said about alignment is so.
    AlignmentIsTrue,
    /// No CPU, device or memory is handed out twice.
    NothingTwice,
    /// Nobody is served while one that comes before could be.
    FirstComesFirst,
    /// Nobody waits, or has others evicted, who could be bound.
    NobodyWaitsInVain,
    /// Nobody waits who could have others evicted.
    PreemptionIsNotMissed,
    /// Victims are less important, on the node, alive, and not left alone for a while.
    VictimsMayBeEvicted,
    /// With the victims gone the pod fits; with any one of them left it does not.
    VictimsAreNeeded,
    /// Violations of disruption budgets are counted right.
    BudgetsAreCounted,
    /// When the victims have left, the pod gets the node.
    PreemptorGetsTheNode,
    /// Who is beyond a quota or a share is held, and nobody else.
    HeldForAReason,
    /// What is said to be kept warm could be used where it is kept.
    HeadroomIsUsable,
    /// No headroom is lacking for which there is room.
    HeadroomIsKept,
    /// Members of a gang are bound together with as many as it needs, or after it has started.
    GangsStartWhole,
    /// Nobody is evicted who leaves a gang behind that is too small.
    GangsAreEvictedWhole,
    /// Nodes are kept for one gang at a time until others have ended, and for no longer than the
    /// budget says.
    OneGangAtATime,
    /// Without news, there is an end of decisions.
    DecisionsEnd,
}

/// A law that was broken, and how.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub law: Law,
    /// How.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.law, self.text)
    }
}

/// A node promised to a pod.
#[derive(Clone, Debug)]
pub(super) struct Promise {
    pub(super) pod: Arc<str>,
    pub(super) node: Arc<str>,
    victims: Vec<Arc<str>>,
}

/// Follows events and decisions, and says which laws were broken.
#[derive(Clone, Debug)]
pub struct Checker {
    pub(super) books: Books,
    pub(super) config: Config,
    pub(super) promises: Vec<Promise>,
    /// The gang for which nodes are kept, and until when.
    pub(super) kept_for: Option<(FullName, i64)>,
    violations: Vec<Violation>,
    /// Decisions since the last news.
    decisions: usize,
}

impl Checker {
    /// For an engine with these settings that knows of nothing yet.
    pub fn new(config: Config) -> Self {
        // kube-scheduler waits as long as it takes.
        let is_berth = config.profile == Profile::Berth;
        let max_wait_ms = is_berth.then_some(config.eviction_max_wait_ms);
        Self {
            books: Books { max_wait_ms, ..Books::default() },
            config,
            promises: Vec::new(),
            kept_for: None,
            violations: Vec::new(),
            decisions: 0,
        }
    }

    /// The engine was told this.
    pub fn apply(&mut self, event: &Event) {
        self.decisions = 0;
        self.promises.retain(|promise| match event {
            Event::PodGone(uid) => promise.victims.contains(uid),
            Event::Pod(pod) => promise.victims.contains(&pod.uid),
            _ => false,
        });
        // kube-scheduler knows no teams.
        if self.asks_kubelets() || !matches!(event, Event::Team(_) | Event::TeamGone(_)) {
            self.books.apply(event);
        }
    }

    /// The engine was told that a decision could not be carried out.
    pub fn undo(&mut self, uid: &Arc<str>) {
        self.decisions = 0;
        self.promises.clear();
        self.books.undo(uid);
    }

    /// What was broken so far.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Where the engine keeps room warm while it makes the next decision.
    pub fn kept(&mut self, rooms: Vec<ReservedHeadroom>) {
        self.books.warm = rooms;
        if !self.asks_kubelets() || self.books.warm.is_empty() {
            return;
        }
        let scene = Scene::new(&self.books, self.config);
        let nodes = self.books.nodes.keys().filter(|node| self.is_known(node));
        let useless: Vec<String> = nodes.filter_map(|node| scene.useless(node)).collect();
        let lacking = self.books.warm.iter().filter(|room| room.lacking > 0);
        let missed = lacking.filter_map(|room| {
            let node = scene.keeper(&room.name)?;
            Some(format!("{} lacks {} though {node} takes one", room.name, room.lacking))
        });
        let missed: Vec<String> = missed.collect();
        useless.into_iter().for_each(|text| self.broken(Law::HeadroomIsUsable, text));
        missed.into_iter().for_each(|text| self.broken(Law::HeadroomIsKept, text));
    }

    /// The engine decided this, or that there is nothing to decide.
    pub fn decided(&mut self, decision: Option<&Decision>, now_ms: i64) {
        self.decisions += 1;
        self.books.now_ms = now_ms;
        // Room that is no longer counted on is no longer promised.
        let books = &self.books;
        self.promises.retain(|promise| {
            let here = promise.victims.iter().filter_map(|uid| books.pods.get(uid));
            here.into_iter().all(|victim| victim.makes_room(now_ms, books.max_wait_ms))
        });
        if self.decisions > 100 + 20 * self.books.pods.len() {
            self.broken(Law::DecisionsEnd, format!("{} since the last news", self.decisions));
            self.decisions = 0;
        }
        if self.asks_kubelets() {
            self.books.look_at_gangs();
        }
        match decision {
            Some(Decision::BindAll(all)) => self.bound_all(all, now_ms),
            Some(Decision::Reserve(reserving)) => self.reserved(reserving, now_ms),
            Some(Decision::Disband(disbanding)) => self.disbanded(disbanding, now_ms),
            Some(Decision::Bind(binding)) => self.bound(binding, now_ms),
            Some(Decision::Preempt(preempting)) => self.preempted(preempting, now_ms),
            Some(Decision::Hold { pod, by }) => {
                if let Some(entry) = self.deciding(pod) {
                    if !self.is_held(&entry) {
                        self.broken(Law::HeldForAReason, format!("{pod} is held by {by:?}"));
                    }
                    match gang_of(&entry).filter(|_| self.is_held_back(&entry)) {
                        Some(gang) => self.books.stop_waiting(&gang),
                        None => self.books.hold(pod),
                    }
                }
            }
            Some(Decision::Wait { pod }) => {
                if let Some(entry) = self.deciding(pod) {
                    match gang_of(&entry).filter(|_| self.is_held_back(&entry)) {
                        Some(gang) => {
                            self.gang_waits_rightly(&gang);
                            self.books.gang_waits(&gang);
                        }
                        None => {
                            self.waits_rightly(&entry, now_ms);
                            self.books.wait(pod);
                        }
                    }
                }
            }
            None => self.settled(now_ms),
        }
    }

    /// Whether a pod can only be decided about together with its gang.
    fn is_held_back(&self, pod: &Entry) -> bool {
        self.asks_kubelets() && self.books.is_held_back(pod)
    }

    pub(super) fn broken(&mut self, law: Law, text: impl Into<String>) {
        self.violations.push(Violation { law, text: text.into() });
    }

    fn asks_kubelets(&self) -> bool {
        self.config.profile == Profile::Berth
    }

    /// The pod a decision is about, if one may be made about it.
    fn deciding(&mut self, uid: &Arc<str>) -> Option<Entry> {
        let entry = self.books.pods.get(uid).filter(|pod| pod.waits()).cloned();
        if entry.is_none() {
            let is = match self.books.pods.get(uid) {
                None => "does not exist".to_owned(),
                Some(pod) => format!("is {:?}, {:?}", pod.spot, pod.object.phase),
            };
            self.broken(Law::OnlyWaitingPodsAreDecided, format!("{uid} {is}"));
        }
        entry
    }

    /// Nothing is left to decide.
    fn settled(&mut self, now_ms: i64) {
        let waiting: Vec<Entry> =
            self.books.pods.values().filter(|pod| pod.waits()).cloned().collect();
        let (held_back, single): (Vec<Entry>, Vec<Entry>) =
            waiting.into_iter().partition(|pod| self.is_held_back(pod));
        for entry in single {
            self.waits_rightly(&entry, now_ms);
        }
        let gangs: BTreeSet<FullName> = held_back.iter().filter_map(gang_of).collect();
        for gang in gangs {
            self.gang_waits_rightly(&gang);
        }
        let kept = |promise: &Promise| {
            let left = promise.victims.iter().all(|uid| !self.books.pods.contains_key(uid));
            let waits = self.books.pods.get(&promise.pod).is_some_and(Entry::waits);
            (left && waits).then(|| format!("{} does not get {}", promise.pod, promise.node))
        };
        let broken: Vec<String> = self.promises.iter().filter_map(kept).collect();
        for text in broken {
            self.broken(Law::PreemptorGetsTheNode, text);
        }
    }

    /// Whether a quota or its team's share keeps a pod waiting, or its gang where that starts as a
    /// whole. kube-scheduler knows none of these.
    fn is_held(&self, entry: &Entry) -> bool {
        let gang = gang_of(entry).filter(|_| self.is_held_back(entry));
        self.asks_kubelets()
            && match gang {
                Some(gang) => self.books.is_gang_held(&gang),
                None => self.books.is_held(entry),
            }
    }

    /// Whether nothing can be done for a pod.
    fn waits_rightly(&mut self, entry: &Entry, now_ms: i64) {
        if self.is_held(entry) {
            return;
        }
        let scene = Scene::new(&self.books, self.config);
        let uid = &entry.object.uid;
        if let Some(node) = scene.taker(entry) {
            let text = format!("{uid} ({:?}) waits though {node} takes it", entry.spot);
            return self.broken(Law::NobodyWaitsInVain, text);
        }
        let preempts = entry.spec().preemption == PreemptionPolicy::LowerPriority
            && self.asks_kubelets()
            && !self.books.awaits_room(entry);
        let nodes = self.books.nodes.keys().filter(|_| preempts);
        let missed = nodes.into_iter().find_map(|node| {
            let victims = self.evictable(entry, node, now_ms);
            let hopeful =
                !victims.is_empty() && !self.is_awaited(node, entry) && self.is_known(node);
            let gone = [victims.as_slice(), &self.leaving(entry, node)].concat();
            let fits = hopeful && scene.without(&gone).takes(entry, node).is_ok();
            fits.then(|| format!("{uid} waits though {victims:?} on {node} could be evicted"))
        });
        if let Some(text) = missed {
            self.broken(Law::PreemptionIsNotMissed, text);
        }
    }

    /// Whether a pod that is as important waits for the node: then evictions there are its own.
    fn is_awaited(&self, node: &Arc<str>, entry: &Entry) -> bool {
        let mut pods = self.books.pods.values();
        pods.any(|pod| pod.awaits(node) && self.books.goes_before(pod, entry))
    }

    /// Whether the node's kubelet can be known, or need not be.
    fn is_known(&self, node: &Arc<str>) -> bool {
        self.books.twins.get(node).is_none_or(|twin| twin.is_known())
    }

    /// Pods on a node that may be evicted for another.
    fn evictable(&self, entry: &Entry, node: &Arc<str>, now_ms: i64) -> Vec<Arc<str>> {
        let priority = entry.spec().priority;
        let may = |pod: &&Entry| pod.node() == Some(node) && self.may_go(pod, priority, now_ms);
        let mut here: Vec<&Entry> = self.books.pods.values().filter(may).collect();
        loop {
            let mates = self.go_too(&uids(&here)).into_iter();
            let mates = mates.filter_map(|uid| self.books.pods.get(&uid));
            let mates = mates.filter(|pod| self.may_go(pod, priority, now_ms));
            let all = here.iter().copied().chain(mates).collect();
            let may_go = uids(&self.books.evictable(entry, all));
            let left: Vec<Arc<str>> =
                uids(&here).into_iter().filter(|uid| may_go.contains(uid)).collect();
            // Of a gang that cannot go as a whole nobody goes.
            let stuck = self.go_too(&left).into_iter().filter(|uid| !may_go.contains(uid));
            let stuck: Vec<FullName> =
                stuck.filter_map(|uid| gang_of(&self.books.pods[&uid])).collect();
            if stuck.is_empty() {
                return left;
            }
            here.retain(|pod| gang_of(pod).is_none_or(|gang| !stuck.contains(&gang)));
        }
    }

    /// The pods that have to go with others because their gang would be too small; other profiles know
    /// no gangs.
    fn go_too(&self, gone: &[Arc<str>]) -> Vec<Arc<str>> {
        if self.asks_kubelets() { self.books.go_too(gone) } else { Vec::new() }
    }

    /// Whether a pod may be evicted for another of some priority, as far as its team does not matter.
    pub(super) fn may_go(&self, pod: &Entry, priority: i32, now_ms: i64) -> bool {
        self.books.may_matter_less(pod, priority)
            && pod.object.phase == Phase::Alive
            && !pod.is_leaving()
            && !self.rests(pod, now_ms)
    }

    /// Whether a pod replaces one that was evicted, and is left alone for that.
    fn rests(&self, pod: &Entry, now_ms: i64) -> bool {
        pod.replaces_evicted_at_ms.is_some_and(|evicted_at| {
            now_ms < evicted_at.saturating_add(self.config.eviction_cooldown_ms)
        })
    }

    /// Whether somebody who comes before a pod could have been bound.
    pub(super) fn first_comes_first(&mut self, entry: &Entry) {
        if self.is_held(entry) {
            let text = format!("{} is served though it is held", entry.object.uid);
            return self.broken(Law::HeldForAReason, text);
        }
        let own = self.books.turn(entry);
        let scene = Scene::new(&self.books, self.config);
        let waiting = self.books.pods.values().filter(|pod| pod.waits() && !self.is_held_back(pod));
        let before = waiting.filter(|pod| self.books.turn(pod) < own && !self.is_held(pod));
        let could = before.into_iter().find_map(|pod| {
            let uid = &pod.object.uid;
            let node = scene.taker(pod)?;
            Some(format!(
                "{} (priority {}) is served though {node} takes {uid} (priority {})",
                entry.object.uid,
                entry.spec().priority,
                pod.spec().priority
            ))
        });
        if let Some(text) = could {
            self.broken(Law::FirstComesFirst, text);
        }
    }

    fn bound(&mut self, binding: &Binding, now_ms: i64) {
        let Some(entry) = self.deciding(&binding.pod) else { return };
        self.first_comes_first(&entry);
        if self.is_held_back(&entry) {
            self.broken(Law::GangsStartWhole, format!("{} alone", binding.pod));
        }
        self.bound_one(binding, now_ms);
    }

    /// A pod is bound, by itself or with its gang.
    pub(super) fn bound_one(&mut self, binding: &Binding, now_ms: i64) {
        let Some(entry) = self.deciding(&binding.pod) else { return };
        let (uid, node) = (&binding.pod, &binding.node);
        let scene = Scene::new(&self.books, self.config);
        if let Err(why) = scene.without_reservation().takes(&entry, node) {
            self.broken(Law::BoundWhereItFits, format!("{uid} on {node} at {now_ms}: {why}"));
        }
        self.kubelet_admits(&entry, binding);
        self.books.bind(binding);
        let twin = self.books.twins.get(node);
        let twice = twin.and_then(|twin| twin.held_twice(uid).or_else(|| twin.memory_overdrawn()));
        if let Some(text) = twice.filter(|_| self.asks_kubelets()) {
            self.broken(Law::NothingTwice, format!("{node}: {text}"));
        }
        self.promises.retain(|promise| {
            let to_other = promise.pod == *uid && promise.node == *node;
            let to_more_important = promise.node == *node
                && self
                    .books
                    .pods
                    .get(&promise.pod)
                    .is_none_or(|promised| self.books.goes_before(&entry, promised));
            // What others require of their neighbours may have changed.
            let rules = &entry.spec().pod_affinity;
            !to_other && !to_more_important && rules.is_empty() && entry.spec().spread.is_empty()
        });
    }

    /// Whether the node's kubelet takes the pod, and as the decision says.
    fn kubelet_admits(&mut self, entry: &Entry, binding: &Binding) {
        let twin = self.books.twins.get(&binding.node).filter(|twin| twin.is_known());
        let Some(twin) = twin.filter(|_| self.asks_kubelets()) else { return };
        let (uid, node) = (&binding.pod, &binding.node);
        let Some(demand) =
            twin.demand(&entry.spec().pod, device(binding.gpu_grant.as_ref()).as_ref())
        else {
            return self.broken(Law::KubeletAdmits, format!("{uid} on {node} cannot be counted"));
        };
        if let Err(rejection) = twin.answer(uid, &demand) {
            let (reason, message) = (rejection.reason.as_str(), rejection.message);
            let text = format!("{uid} on {node}: {reason}: {message}");
            return self.broken(Law::KubeletAdmits, text);
        }
        let verdict = twin.kubelet().would_admit(&demand);
        let true_claim = match (binding.alignment, binding.numa, verdict) {
            (Alignment::Aligned, claimed, Verdict::Admit { numa, preferred, .. }) => {
                preferred && numa == claimed && numa.is_some()
            }
            (Alignment::Misaligned, claimed, Verdict::Admit { numa, preferred, .. }) => {
                !preferred && numa == claimed && numa.is_some()
            }
            (Alignment::Unknown, ..) => false,
            _ => true,
        };
        if !true_claim {
            let text = format!("{uid} on {node}: {:?}, but {verdict:?}", binding.alignment);
            self.broken(Law::AlignmentIsTrue, text);
        }
    }

    fn preempted(&mut self, preempting: &PodPreemption, now_ms: i64) {
        let Some(entry) = self.deciding(&preempting.pod) else { return };
        self.first_comes_first(&entry);
        let PodPreemption { pod: uid, node, victims, .. } = preempting;
        if self.asks_kubelets() {
            self.whole_gangs(victims);
        }
        let scene = Scene::new(&self.books, self.config);
        let taker = scene.taker(&entry);
        let on_node = here(&self.books, victims, node);
        let mut evictable = self.evictable(&entry, node, now_ms);
        let priority = entry.spec().priority;
        let too = self.go_too(&on_node).into_iter();
        evictable.extend(too.filter(|uid| self.may_go(&self.books.pods[uid], priority, now_ms)));
        let leaving = self.leaving(&entry, node);
        let without = |gone: &[Arc<str>]| {
            let gone: Vec<Arc<str>> = gone.iter().chain(&leaving).cloned().collect();
            scene.without(&gone)
        };
        let fits = |gone: &[Arc<str>]| without(gone).takes(&entry, node);
        // kube-scheduler counts pods that are being deleted as gone twice, and a host port that two
        // pods have as free when one of them is gone.
        let twice = |uid: &Arc<str>| self.books.pods.get(uid).is_some_and(Entry::is_terminating);
        let certain = self.asks_kubelets()
            || entry.spec().host_ports.is_empty() && !victims.iter().any(twice);
        let with_all = without(victims).without_reservation().takes(&entry, node);
        let with_all = with_all.err().filter(|_| certain);
        let superfluous = on_node.iter().find(|spared| {
            let others: Vec<Arc<str>> =
                victims.iter().filter(|one| one != spared).cloned().collect();
            // Who would have to go with its gang anyway is not spared.
            let stays = !self.go_too(&others).contains(*spared);
            stays && fits(&others).is_ok()
        });
        let superfluous = superfluous.filter(|_| self.is_known(node)).cloned();
        if let Some(other) = taker {
            let text = format!("{uid} has pods evicted though {other} takes it");
            self.broken(Law::NobodyWaitsInVain, text);
        }
        if self.asks_kubelets() {
            if let Some(victim) = victims.iter().find(|victim| !evictable.contains(victim)) {
                let text = format!("{victim} for {uid} on {node} at {now_ms}");
                self.broken(Law::VictimsMayBeEvicted, text);
            }
            if let Some(victim) = superfluous {
                let text = format!("{uid} fits on {node} though {victim} of {victims:?} stays");
                self.broken(Law::VictimsAreNeeded, text);
            }
            let violations = self.budget_violations(victims);
            if violations != preempting.budget_violations {
                let said = preempting.budget_violations;
                let text = format!("{uid} on {node}: {said} violations, but {violations}");
                self.broken(Law::BudgetsAreCounted, text);
            }
        }
        if victims.is_empty() && leaving.is_empty() {
            self.broken(Law::VictimsAreNeeded, format!("{uid} waits for {node} and for nobody"));
        }
        if let Some(why) = with_all {
            let text = format!("{uid} on {node} without {victims:?}: {why}");
            self.broken(Law::VictimsAreNeeded, text);
        }
        self.books.preempt(preempting, now_ms);
        let victims = victims.iter().chain(&leaving).cloned().collect();
        self.promises.push(Promise { pod: uid.clone(), node: node.clone(), victims });
    }

    /// Who is leaving a node, evicted for others and less important than a pod: Berth counts them as
    /// gone, kube-scheduler does not.
    pub(super) fn leaving(&self, entry: &Entry, node: &Arc<str>) -> Vec<Arc<str>> {
        let leaves = |pod: &&Entry| {
            self.asks_kubelets()
                && pod.spot == Spot::On(node.clone())
                && pod.makes_room(self.books.now_ms, self.books.max_wait_ms)
                && self.books.may_leave_for(pod, entry)
        };
        self.books.pods.values().filter(leaves).map(|pod| pod.object.uid.clone()).collect()
    }

    /// How many of the evictions violate a budget, the most important pods going first, after those
    /// that are under way.
    pub(super) fn budget_violations(&self, victims: &[Arc<str>]) -> usize {
        let under_way = self.books.pods.values().filter(|pod| pod.is_leaving());
        let mut pods: Vec<&Entry> =
            victims.iter().filter_map(|uid| self.books.pods.get(uid)).collect();
        pods.sort_by_key(|pod| {
            let started = pod.object.started_at_ms.unwrap_or(i64::MAX);
            (Reverse(pod.spec().priority), started, pod.object.uid.clone())
        });
        let mut left: Vec<i64> = self
            .books
            .budgets
            .values()
            .map(|budget| i64::from(budget.disruptions_allowed))
            .collect();
        let mut violations = 0;
        let counted =
            under_way.map(|pod| (pod, false)).chain(pods.into_iter().map(|pod| (pod, true)));
        for (pod, is_victim) in counted {
            let spec = pod.spec();
            let mut violates = false;
            for (budget, left) in self.books.budgets.values().zip(&mut left) {
                let selector = budget.selector.as_ref().filter(|one| !one.is_empty());
                let protects = budget.namespace == spec.namespace
                    && !spec.labels.is_empty()
                    && selector.is_some_and(|selector| selector.matches(&spec.labels))
                    && !budget.disrupted_pods.contains(&pod.object.name);
                if protects {
                    *left -= 1;
                    violates |= *left < 0;
                }
            }
            violations += usize::from(violates && is_victim);
        }
        violations
    }
}

fn uids(pods: &[&Entry]) -> Vec<Arc<str>> {
    pods.iter().map(|pod| pod.object.uid.clone()).collect()
}

/// Those of some pods that are on a node.
fn here(books: &Books, pods: &[Arc<str>], node: &Arc<str>) -> Vec<Arc<str>> {
    let on = |uid: &&Arc<str>| books.pods.get(*uid).is_some_and(|pod| pod.node() == Some(node));
    pods.iter().filter(on).cloned().collect()
}

//! The queue of pending pods: by priority and age, and between teams by their ledger; parked and
//! held pods by class.
//!
//! Namespaces take turns: at most [`CLASSES_MAX`] classes of a namespace and priority are in line
//! at a time, so that one namespace with many classes cannot block others. Pods of further classes
//! follow, in order, when the line has no more pods of their priority.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_tenancy::share::{self, TeamIx, TeamQueue};

use crate::rechecks::{Rechecks, Since, Trigger};
use crate::table::{ClassIx, Lookup, PodIx};

/// Highest priority first, then oldest, then by UID.
pub(crate) type Turn = (Reverse<i32>, i64, Arc<str>);

/// Limit of classes in line per namespace and priority.
pub(crate) const CLASSES_MAX: u32 = 64;

type ByClass = BTreeMap<ClassIx, BTreeMap<Turn, PodIx>>;

/// Pods that are not in line yet, by namespace.
type Followers = BTreeMap<Arc<str>, BTreeMap<Turn, PodIx>>;

/// Namespace and priority that share a limit.
type LimitGroup = (Arc<str>, i32);

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    takes_turns: bool,
    active: TeamQueue<ClassIx, Turn, PodIx>,
    /// Number of pods in line per class, and of classes in line per group.
    in_line: Lookup<ClassIx, u32>,
    limit_groups: Lookup<LimitGroup, u32>,
    /// Pods that follow when the line has no more of their priority.
    following: BTreeMap<Reverse<i32>, Followers>,
    followers: usize,
    parked: ByClass,
    /// Classes with held pods, which are not evaluated.
    held: BTreeSet<ClassIx>,
    pub(crate) held_pods: usize,
    /// When to evaluate parked classes that are not held.
    pub(crate) rechecks: Rechecks,
    entries: Lookup<PodIx, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    turn: Turn,
    class: ClassIx,
    team: TeamIx,
    namespace: Arc<str>,
    stand: QueueState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    InLine,
    /// Enters the line after other namespaces.
    Following,
    Parked,
}

impl Entry {
    fn limit_group(&self) -> LimitGroup {
        (self.namespace.clone(), self.turn.0.0)
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self::new(true)
    }
}

impl Queue {
    pub(crate) fn new(takes_turns: bool) -> Self {
        Self {
            takes_turns,
            active: TeamQueue::new(false),
            in_line: Lookup::default(),
            limit_groups: Lookup::default(),
            following: BTreeMap::new(),
            followers: 0,
            parked: ByClass::new(),
            held: BTreeSet::new(),
            held_pods: 0,
            rechecks: Rechecks::default(),
            entries: Lookup::default(),
        }
    }

    /// Adds a pod. A known pod keeps its position unless its class, team or turn changed.
    pub(crate) fn add(
        &mut self,
        pod: PodIx,
        class: ClassIx,
        team: TeamIx,
        namespace: &Arc<str>,
        turn: Turn,
    ) {
        let same = |entry: &Entry| (entry.class, entry.team) == (class, team) && entry.turn == turn;
        if self.entries.get(&pod).is_some_and(same) {
            return;
        }
        self.remove(pod);
        let namespace = namespace.clone();
        self.line_up(pod, Entry { turn, class, team, namespace, stand: QueueState::InLine });
    }

    fn line_up(&mut self, pod: PodIx, mut entry: Entry) {
        if self.has_place(&entry) {
            entry.stand = QueueState::InLine;
            self.enter(pod, &entry);
        } else {
            entry.stand = QueueState::Following;
            self.follow(pod, &entry);
        }
        self.entries.insert(pod, entry);
    }

    /// Whether the line has room for a class.
    fn has_place(&self, entry: &Entry) -> bool {
        !self.takes_turns
            || self.in_line.contains_key(&entry.class)
            || self
                .limit_groups
                .get(&entry.limit_group())
                .is_none_or(|classes| *classes < CLASSES_MAX)
    }

    fn enter(&mut self, pod: PodIx, entry: &Entry) {
        self.active.insert(entry.team, entry.class, entry.turn.clone(), pod);
        let pods = self.in_line.entry(entry.class).or_insert(0);
        *pods += 1;
        if *pods == 1 {
            *self.limit_groups.entry(entry.limit_group()).or_insert(0) += 1;
        }
    }

    fn leave(&mut self, entry: &Entry) {
        self.active.remove(entry.team, entry.class, &entry.turn);
        let Some(pods) = self.in_line.get_mut(&entry.class) else { return };
        *pods -= 1;
        if *pods > 0 {
            return;
        }
        self.in_line.remove(&entry.class);
        let limit_group = entry.limit_group();
        if let Some(classes) = self.limit_groups.get_mut(&limit_group) {
            *classes -= 1;
            if *classes == 0 {
                self.limit_groups.remove(&limit_group);
            }
        }
    }

    fn follow(&mut self, pod: PodIx, entry: &Entry) {
        let of_priority = self.following.entry(entry.turn.0).or_default();
        let of_namespace = of_priority.entry(entry.namespace.clone()).or_default();
        of_namespace.insert(entry.turn.clone(), pod);
        self.followers += 1;
    }

    fn unfollow(&mut self, entry: &Entry) {
        let Some(of_priority) = self.following.get_mut(&entry.turn.0) else { return };
        if let Some(pods) = of_priority.get_mut(&entry.namespace) {
            self.followers -= usize::from(pods.remove(&entry.turn).is_some());
            if pods.is_empty() {
                of_priority.remove(&entry.namespace);
            }
        }
        if of_priority.is_empty() {
            self.following.remove(&entry.turn.0);
        }
    }

    /// Moves followers of the highest priority into the line, as many classes of each namespace as
    /// have room.
    fn admit(&mut self) {
        let Some((_, of_priority)) = self.following.first_key_value() else { return };
        let namespaces: Vec<Arc<str>> = of_priority.keys().cloned().collect();
        for namespace in namespaces {
            while let Some((_, of_priority)) = self.following.first_key_value()
                && let Some(pods) = of_priority.get(&namespace)
                && let Some((_, pod)) = pods.first_key_value()
            {
                let pod = *pod;
                let Some(entry) = self.entries.get(&pod).cloned() else { break };
                if !self.has_place(&entry) {
                    break;
                }
                self.unfollow(&entry);
                self.line_up(pod, entry);
            }
        }
    }

    /// Removes a pod. If it represented its class in the line, the next one takes over.
    pub(crate) fn remove(&mut self, pod: PodIx) {
        let Some(entry) = self.entries.remove(&pod) else { return };
        match entry.stand {
            QueueState::Parked => self.unpark(&entry),
            QueueState::Following => self.unfollow(&entry),
            QueueState::InLine => {
                self.leave(&entry);
                let next = self.parked_of(entry.class).next();
                next.into_iter().for_each(|next| self.wake(next));
            }
        }
    }

    fn unpark(&mut self, entry: &Entry) {
        if let Some(of_class) = self.parked.get_mut(&entry.class) {
            of_class.remove(&entry.turn);
            self.held_pods -= usize::from(self.held.contains(&entry.class));
            match of_class.first_key_value() {
                None => {
                    self.parked.remove(&entry.class);
                    self.held.remove(&entry.class);
                    self.rechecks.forget(entry.class);
                }
                Some((first, _)) if *first > entry.turn => {
                    self.rechecks.move_to(entry.class, first.clone());
                }
                Some(_) => {}
            }
        }
    }

    /// Applies changed classes and teams of pods.
    pub(crate) fn renumber(
        &mut self,
        has_teams: bool,
        class_of: impl Fn(PodIx) -> (ClassIx, TeamIx),
    ) {
        let held = std::mem::take(&mut self.held);
        let mut numbers: BTreeMap<ClassIx, ClassIx> = BTreeMap::new();
        for (class, pods) in std::mem::take(&mut self.parked) {
            for (turn, pod) in pods {
                let now = class_of(pod).0;
                numbers.insert(class, now);
                self.parked.entry(now).or_default().insert(turn, pod);
                if held.contains(&class) {
                    self.held.insert(now);
                }
            }
        }
        let of = |class: &ClassIx| self.parked.get(class).map_or(0, BTreeMap::len);
        self.held_pods = self.held.iter().map(of).sum();
        if numbers.iter().any(|(before, now)| before != now) {
            self.rechecks.renumber(|before| numbers.get(&before).copied());
        }
        self.active = TeamQueue::new(has_teams);
        (self.in_line, self.limit_groups) = (Lookup::default(), Lookup::default());
        let mut entries = std::mem::take(&mut self.entries);
        for (pod, entry) in &mut entries {
            (entry.class, entry.team) = class_of(*pod);
            if entry.stand == QueueState::InLine {
                self.enter(*pod, entry);
            }
        }
        self.entries = entries;
    }

    pub(crate) fn contains(&self, pod: PodIx) -> bool {
        self.entries.contains_key(&pod)
    }

    pub(crate) fn contains_as(&self, pod: PodIx, class: ClassIx) -> bool {
        self.entries.get(&pod).is_some_and(|entry| entry.class == class)
    }

    /// The next pod, between teams by `turn_of`.
    pub(crate) fn next(&mut self, turn_of: impl Fn(PodIx) -> share::Turn) -> Option<PodIx> {
        let mut first = self.active.first(&turn_of);
        if let Some((Reverse(following), _)) = self.following.first_key_value() {
            let priority = |pod: &PodIx| self.entries.get(pod).map(|entry| entry.turn.0.0);
            if first.as_ref().and_then(priority).is_none_or(|priority| priority < *following) {
                self.admit();
                first = self.active.first(turn_of);
            }
        }
        first
    }

    pub(crate) fn invalidate(&mut self, team: TeamIx) {
        self.active.invalidate(team);
    }

    /// Parks a pod until something changes; by default any change counts.
    pub(crate) fn park(&mut self, pod: PodIx) {
        let Some(entry) = self.entries.get_mut(&pod) else { return };
        let stand = std::mem::replace(&mut entry.stand, QueueState::Parked);
        let entry = entry.clone();
        match stand {
            QueueState::Parked => return,
            QueueState::InLine => self.leave(&entry),
            QueueState::Following => self.unfollow(&entry),
        }
        let of_class = self.parked.entry(entry.class).or_default();
        let is_first = of_class.first_key_value().is_none_or(|(first, _)| entry.turn < *first);
        of_class.insert(entry.turn.clone(), pod);
        if self.held.contains(&entry.class) {
            self.held_pods += 1;
        } else if self.rechecks.trigger(entry.class).is_none() {
            self.set_trigger(entry.class, Trigger::Anything);
        } else if is_first {
            self.rechecks.move_to(entry.class, entry.turn);
        }
    }

    pub(crate) fn hold(&mut self, class: ClassIx) {
        if self.held.insert(class) {
            self.held_pods += self.parked.get(&class).map_or(0, BTreeMap::len);
        }
        self.rechecks.forget(class);
    }

    /// Releases a held class; its first pod is evaluated again.
    pub(crate) fn release(&mut self, class: ClassIx) {
        if self.held.remove(&class) {
            self.held_pods -= self.parked.get(&class).map_or(0, BTreeMap::len);
        }
        self.set_trigger(class, Trigger::Anything);
        if let Some((_, first)) = self.first_parked(class) {
            self.wake(first);
        }
    }

    /// Sets what has to change before a parked class is evaluated again.
    pub(crate) fn set_trigger(&mut self, class: ClassIx, trigger: Trigger) {
        let Some((turn, first)) = self.first_parked(class) else { return };
        let Some(entry) = self.entries.get(&first) else { return };
        let priority = turn.0.0;
        self.rechecks.set(class, priority, (entry.namespace.clone(), turn), trigger);
    }

    /// Marks a class as due because something changed since `since`.
    pub(crate) fn recheck(&mut self, class: ClassIx, since: Since) {
        let Some((turn, first)) = self.first_parked(class) else { return };
        let Some(entry) = self.entries.get(&first) else { return };
        self.rechecks.mark_due(class, (entry.namespace.clone(), turn), since);
    }

    fn first_parked(&self, class: ClassIx) -> Option<(Turn, PodIx)> {
        let (turn, pod) = self.parked.get(&class)?.first_key_value()?;
        Some((turn.clone(), *pod))
    }

    pub(crate) fn wake(&mut self, pod: PodIx) {
        let parked = |entry: &&Entry| entry.stand == QueueState::Parked;
        let Some(entry) = self.entries.get(&pod).filter(parked).cloned() else { return };
        self.unpark(&entry);
        self.line_up(pod, entry);
    }

    pub(crate) fn parked_classes(&self) -> impl Iterator<Item = ClassIx> {
        self.parked.keys().copied()
    }

    /// In queue order.
    pub(crate) fn parked_of(&self, class: ClassIx) -> impl Iterator<Item = PodIx> {
        self.parked.get(&class).into_iter().flat_map(|pods| pods.values().copied())
    }

    pub(crate) fn is_held(&self, class: ClassIx) -> bool {
        self.held.contains(&class)
    }

    pub(crate) fn held_classes(&self) -> impl Iterator<Item = ClassIx> {
        self.held.iter().copied()
    }

    /// Number of pods, and of those parked.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.entries.len(), self.entries.len() - self.active.len() - self.followers)
    }
}

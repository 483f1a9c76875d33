//! Quotas and teams: what pods are charged for, and what holds them.
//!
//! Charges follow from a pod's requests and its node; the rules are in the tenancy crate. Without
//! quotas and teams this costs nothing.

mod charge;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::spec::Deletion;
use berth_tenancy::quota::{Arrival, PodPlacement, QuotaLedger};
use berth_tenancy::share::{
    Account, Charge, ChargeState, Claim, Ledger, TEAM_LABEL, Team, TeamError, TeamIx, Turn,
    problems,
};

use crate::decision::HeldBy;
use crate::state::{Place, State};
use crate::table::{ClassIx, Lookup, NodeIx, PodIx};

/// Pods of at least this priority keep clusters running: they belong to no team and are never held.
const SYSTEM_PRIORITY: i32 = 2_000_000_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct ClassCharge {
    pub(crate) team: TeamIx,
    /// Its charge as far as the spec shows.
    ask: Charge,
}

#[derive(Clone, Debug)]
struct ChargeEntry {
    team: TeamIx,
    charge: Charge,
    held: ChargeState,
    leaving: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tenancy {
    teams: BTreeMap<Arc<str>, Team>,
    pub(crate) ledger: Ledger,
    pub(crate) books: QuotaLedger,
    charges: Lookup<PodIx, ChargeEntry>,
    nodes: Lookup<NodeIx, Charge>,
}

impl Tenancy {
    pub(crate) fn has_teams(&self) -> bool {
        self.ledger.is_active()
    }

    fn add_charge(&mut self, at: PodIx, entry: ChargeEntry) {
        self.ledger.add(entry.team, &entry.charge, entry.held, 1);
        if entry.leaving {
            self.ledger.add(entry.team, &entry.charge, ChargeState::Leaving, 1);
        }
        self.charges.insert(at, entry);
    }

    fn remove_charge(&mut self, at: PodIx) {
        let Some(entry) = self.charges.remove(&at) else { return };
        self.ledger.add(entry.team, &entry.charge, entry.held, -1);
        if entry.leaving {
            self.ledger.add(entry.team, &entry.charge, ChargeState::Leaving, -1);
        }
    }

    fn count_node(&mut self, at: NodeIx, charge: Option<Charge>) {
        for (dimension, amount) in self.nodes.remove(&at).unwrap_or_default() {
            self.ledger.add_capacity(dimension, -amount);
        }
        if let Some(charge) = charge {
            charge.iter().for_each(|(dimension, amount)| {
                self.ledger.add_capacity(*dimension, *amount);
            });
            self.nodes.insert(at, charge);
        }
    }

    fn arriving(&self, at: PodIx) -> Option<&Charge> {
        let entry = self.charges.get(&at).filter(|entry| entry.held == ChargeState::Arriving);
        entry.map(|entry| &entry.charge)
    }
}

/// A pod's team and charge when it competes for room.
#[derive(Clone, Debug)]
pub(crate) struct TeamClaim {
    pub(crate) team: TeamIx,
    priority: i32,
    ask: Charge,
    own: Option<Charge>,
}

impl TeamClaim {
    pub(crate) fn claim(&self) -> Claim<'_> {
        let Self { team, priority, ask, own } = self;
        Claim { team: *team, priority: *priority, ask, own: own.as_ref() }
    }

    pub(crate) fn with_priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    pub(crate) fn has_arriving_charge(&self) -> bool {
        self.own.is_some()
    }
}

impl State {
    /// Sets or removes a team; returns the previous one.
    pub(crate) fn set_team(&mut self, name: &Arc<str>, team: Option<Team>) -> Option<Team> {
        let before = match team {
            Some(team) => self.tenancy.teams.insert(name.clone(), team),
            None => self.tenancy.teams.remove(name),
        };
        let had_teams = self.tenancy.has_teams();
        self.tenancy.ledger.configure(&self.tenancy.teams);
        self.tenancy.charges.clear();
        if self.tenancy.has_teams() != had_teams {
            let nodes: Vec<NodeIx> = self.nodes.indexes().collect();
            nodes.into_iter().for_each(|node| self.count_capacity(node));
        }
        self.reclass_tenants();
        let pods: Vec<PodIx> = self.pods.indexes().collect();
        pods.into_iter().for_each(|pod| self.update_charge(pod));
        self.changes.everything();
        before
    }

    pub(crate) fn teams(&self) -> &BTreeMap<Arc<str>, Team> {
        &self.tenancy.teams
    }

    pub(crate) fn team_of(&self, spec: &berth_model::spec::PodSpec) -> TeamIx {
        let label = spec.labels.get(TEAM_LABEL).map(AsRef::as_ref);
        self.tenancy.ledger.team_of(&spec.namespace, label)
    }

    pub(crate) fn team_problems(&self) -> Vec<TeamError> {
        problems(&self.tenancy.teams, |dimension| self.tenancy.ledger.capacity(dimension))
    }

    pub(crate) fn accounts(&self) -> Vec<Account> {
        if self.tenancy.has_teams() { self.tenancy.ledger.accounts() } else { Vec::new() }
    }

    /// Counts the capacity of a node, or removes it if the node is gone.
    pub(crate) fn count_capacity(&mut self, at: NodeIx) {
        if !self.tenancy.has_teams() && self.tenancy.nodes.is_empty() {
            return;
        }
        let counted = self.nodes.get(at).filter(|_| self.tenancy.has_teams());
        let charge = counted.map(|node| charge::of_node(&mut self.tenancy.ledger, &node.object));
        self.tenancy.count_node(at, charge);
    }

    pub(crate) fn team_charge(&mut self, spec: &berth_model::spec::PodSpec) -> ClassCharge {
        if !self.tenancy.has_teams() {
            return ClassCharge::default();
        }
        let team = self.team_of(spec);
        ClassCharge { team, ask: charge::of_spec(&mut self.tenancy.ledger, spec) }
    }

    pub(crate) fn update_charge(&mut self, at: PodIx) {
        if !self.tenancy.has_teams() {
            return;
        }
        self.tenancy.remove_charge(at);
        let Some(pod) = self.pods.get(at) else { return };
        let leaving = pod.evicted_at_ms.is_some() || pod.is_terminating();
        let team_charge = &self.class(pod.class).team_charge;
        let team = team_charge.team;
        let (charge, held) = match pod.place {
            Place::Bound(_, Some(node)) => {
                let spec = self.class(pod.class).spec.clone();
                let grant = pod.grant.map(|grant| self.named_grant(grant));
                let node = &self.nodes[node].object;
                let charge = charge::of_pod(&mut self.tenancy.ledger, &spec, grant.as_ref(), node);
                (charge, ChargeState::InUse)
            }
            Place::Nominated(_, Some(_)) => (team_charge.ask.clone(), ChargeState::Arriving),
            _ => return,
        };
        let leaving = leaving && held == ChargeState::InUse;
        self.tenancy.add_charge(at, ChargeEntry { team, charge, held, leaving });
    }

    pub(crate) fn remove_charge(&mut self, at: PodIx) {
        if self.tenancy.has_teams() {
            self.tenancy.remove_charge(at);
        }
    }

    fn arrival(&self, at: PodIx) -> Arrival {
        let pod = &self.pods[at];
        Arrival { created_at_ms: pod.created_at_ms, uid: pod.uid.clone() }
    }

    /// Updates a pod's entry in its namespace's quotas.
    pub(crate) fn count_in_quotas(&mut self, at: PodIx) {
        if self.tenancy.books.is_empty() {
            return;
        }
        let pod = &self.pods[at];
        let spec = self.class(pod.class).spec.clone();
        if !self.tenancy.books.covers(&spec.namespace) {
            return;
        }
        let placement = match pod.place {
            Place::Bound(..) => PodPlacement::Placed,
            _ => PodPlacement::Pending,
        };
        let uncounted_at_ms = pod.deletion.map(Deletion::uncounted_at_ms);
        let arrival = self.arrival(at);
        self.tenancy.books.set_pod(arrival, &spec, placement, uncounted_at_ms);
    }

    /// Removes a pod's entry in its namespace's quotas.
    pub(crate) fn remove_from_quotas(&mut self, at: PodIx) {
        if !self.tenancy.books.is_empty() {
            let arrival = self.arrival(at);
            let namespace = self.class_of(at).spec.namespace.clone();
            self.tenancy.books.remove_pod(&namespace, &arrival);
        }
    }

    /// Sets a quota and counts its namespace's pods.
    pub(crate) fn add_quota(&mut self, quota: berth_model::policy::Quota) {
        let namespace = quota.namespace.clone();
        let covered = self.tenancy.books.covers(&namespace);
        self.tenancy.books.set_quota(quota);
        if !covered {
            let of = |(at, pod): (PodIx, &crate::state::PodState)| {
                (self.class(pod.class).spec.namespace == namespace).then_some(at)
            };
            let pods: Vec<PodIx> = self.pods.iter().filter_map(of).collect();
            pods.into_iter().for_each(|pod| self.count_in_quotas(pod));
        }
    }

    pub(crate) fn held_by(&self, at: PodIx) -> Option<HeldBy> {
        self.held_together(&[at], 1)
    }

    /// What holds a gang: why fewer than `need` of `pods` may start together, in order.
    pub(crate) fn held_together(&self, pods: &[PodIx], need: usize) -> Option<HeldBy> {
        if self.tenancy.books.is_empty() && !self.tenancy.has_teams() {
            return None;
        }
        // Pods that start count for those after them in all shared groups; their existing charges
        // must not count twice.
        let mut ledger = Cow::Borrowed(&self.tenancy.ledger);
        if pods.len() > 1 && self.tenancy.has_teams() {
            for (pod, own) in
                pods.iter().filter_map(|pod| Some((pod, self.tenancy.arriving(*pod)?)))
            {
                let team = self.class_of(*pod).team_charge.team;
                ledger.to_mut().add(team, own, ChargeState::Arriving, -1);
            }
        }
        let mut first: Option<HeldBy> = None;
        let mut free = 0;
        for pod in pods {
            let own = self.tenancy.arriving(*pod).filter(|_| pods.len() == 1);
            match self.held_beside(*pod, &ledger, own) {
                Some(held) => first = first.or(Some(held)),
                None => {
                    free += 1;
                    if pods.len() > 1 && self.tenancy.has_teams() {
                        let ClassCharge { team, ask } = &self.class_of(*pod).team_charge;
                        ledger.to_mut().add(*team, ask, ChargeState::Arriving, 1);
                    }
                }
            }
        }
        first.filter(|_| free < need)
    }

    /// What holds a pod under a ledger in which `own` is already charged for it.
    fn held_beside(&self, at: PodIx, ledger: &Ledger, own: Option<&Charge>) -> Option<HeldBy> {
        let pod = &self.pods[at];
        let class = self.class(pod.class);
        if !self.tenancy.books.is_empty() {
            let refusal = self.tenancy.books.refusal(&class.spec.namespace, &self.arrival(at));
            if let Some(refusal) = refusal {
                return Some(HeldBy::Quota(refusal.clone()));
            }
        }
        if !self.tenancy.has_teams() || class.spec.priority >= SYSTEM_PRIORITY {
            return None;
        }
        let ClassCharge { team, ask } = &class.team_charge;
        ledger.may_start(*team, ask, own).err().map(HeldBy::Share)
    }

    /// A pod's turn among teams; the same for its whole class.
    pub(crate) fn turn(&self, at: PodIx) -> Turn {
        let class = self.class_of(at);
        let ClassCharge { team, ask } = &class.team_charge;
        let priority = class.spec.priority;
        let mut turn = self.tenancy.ledger.turn(*team, priority, ask);
        if priority >= SYSTEM_PRIORITY {
            turn.borrows = false;
        }
        turn
    }

    /// The pod as a competitor for room; `None` if priorities alone decide.
    pub(crate) fn team_claim(&self, class: ClassIx, pod: Option<PodIx>) -> Option<TeamClaim> {
        let class = self.class(class);
        if !self.tenancy.has_teams() || class.spec.priority >= SYSTEM_PRIORITY {
            return None;
        }
        let ClassCharge { team, ask } = class.team_charge.clone();
        let own = pod.and_then(|pod| self.tenancy.arriving(pod)).cloned();
        Some(TeamClaim { team, priority: class.spec.priority, ask, own })
    }

    /// The team and charge of a pod on a node.
    pub(crate) fn holding(&self, at: PodIx) -> Option<(TeamIx, &Charge)> {
        self.tenancy.charges.get(&at).map(|entry| (entry.team, &entry.charge))
    }

    /// Whether a nominated pod comes before another: first by guarantee, then by priority.
    pub(crate) fn goes_before(&self, waiting: PodIx, class: ClassIx, pod: Option<PodIx>) -> bool {
        let priority = self.class(class).spec.priority;
        let of_waiting = self.class_of(waiting).spec.priority;
        if !self.tenancy.has_teams() {
            return of_waiting >= priority;
        }
        let rank = |borrows: bool, priority: i32| (!borrows, priority);
        rank(self.borrows(self.pods[waiting].class, Some(waiting)), of_waiting)
            >= rank(self.borrows(class, pod), priority)
    }

    /// Whether a pod would use more than its team is guaranteed.
    pub(crate) fn borrows(&self, class: ClassIx, pod: Option<PodIx>) -> bool {
        let ClassCharge { team, ask } = &self.class(class).team_charge;
        let own = pod.and_then(|pod| self.tenancy.arriving(pod));
        self.class(class).spec.priority < SYSTEM_PRIORITY
            && self.tenancy.ledger.borrows(*team, ask, own)
    }
}

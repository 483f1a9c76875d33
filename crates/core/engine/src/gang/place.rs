//! Places the members of a gang under a checkpoint: all that are needed get a place, or none.

use super::domain::nominated;
use super::queueing::GangStatus;
use crate::decision::Binding;
use crate::engine::{Engine, FoundPlace};
use crate::table::{Bits, ClassIx, Lookup, NodeIx, PodIx};

/// Classes retained during a trial, so that they keep their numbers.
pub(super) type KeptClasses = Vec<ClassIx>;

impl Engine {
    pub(super) fn place_gang(&mut self, status: &GangStatus) -> Option<Vec<Binding>> {
        let wanted: Lookup<PodIx, NodeIx> = status
            .waiting
            .iter()
            .filter_map(|pod| Some((*pod, nominated(&self.state.pods[*pod].place)?)))
            .collect();
        let large_first = self.large_first(status);
        let mut orders = vec![&large_first];
        if large_first != status.waiting {
            orders.push(&status.waiting);
        }
        for domain in self.domains_to_place(status) {
            for order in &orders {
                let within = domain.nodes.as_ref();
                let placed = self.attempt(status, |engine, _| {
                    let placed = engine.try_members(status, order, within, &wanted);
                    (placed.len() >= status.need).then_some(placed)
                });
                if let Some(placed) = placed {
                    let binding = |(pod, found): &(PodIx, FoundPlace)| self.binding(*pod, found);
                    return Some(placed.iter().map(binding).collect());
                }
            }
        }
        None
    }

    /// How many members fit on some nodes now, by trial.
    pub(super) fn room_for(&mut self, status: &GangStatus, within: Option<&Bits>) -> usize {
        let order = self.large_first(status);
        let mut room = 0;
        let everybody = GangStatus { need: 0, ..status.clone() };
        self.attempt(status, |engine, _| {
            room = engine.try_members(&everybody, &order, within, &Lookup::default()).len();
            None::<()>
        });
        room
    }

    /// Runs a trial with a gang's members and rolls it back unless it returns something.
    pub(super) fn attempt<T>(
        &mut self,
        status: &GangStatus,
        try_out: impl FnOnce(&mut Self, &mut KeptClasses) -> Option<T>,
    ) -> Option<T> {
        let from = self.state.changes.now();
        let mut kept: KeptClasses = Vec::with_capacity(status.waiting.len());
        for pod in &status.waiting {
            self.keep_class(*pod, &mut kept);
        }
        let by_quota = self.state.tenancy.books.changed().clone();
        let of_teams = self.state.tenancy.ledger.changes().clone();
        let devices = self.state.devices.clone();
        let checkpoint = self.state.checkpoint();
        for pod in &status.waiting {
            // Nominations of mates would block other places.
            if nominated(&self.state.pods[*pod].place).is_some() {
                self.state.nominate(*pod, None);
            }
        }
        let outcome = try_out(self, &mut kept);
        if outcome.is_some() {
            self.state.commit(checkpoint);
        } else {
            self.state.rollback(checkpoint);
            self.state.tenancy.books.set_changed(by_quota);
            self.state.tenancy.ledger.restore_changes(of_teams);
            self.state.restore_devices(devices);
            self.forget_changes(from);
        }
        kept.into_iter().for_each(|class| self.state.release_class(class));
        outcome
    }

    pub(super) fn keep_class(&mut self, pod: PodIx, kept: &mut KeptClasses) {
        let spec = self.state.class_of(pod).spec.clone();
        kept.push(self.state.acquire_class(&spec));
    }

    /// Places members one after the other while enough can still be placed.
    pub(super) fn try_members(
        &mut self,
        status: &GangStatus,
        order: &[PodIx],
        within: Option<&Bits>,
        wanted: &Lookup<PodIx, NodeIx>,
    ) -> Vec<(PodIx, FoundPlace)> {
        let mut placed = Vec::new();
        let mut failed: Vec<ClassIx> = Vec::new();
        for (at, pod) in order.iter().enumerate() {
            if placed.len() + (order.len() - at) < status.need {
                break;
            }
            let class = self.state.pods[*pod].class;
            // If one member did not fit, others of its class do not, unless they need others nearby
            // or have claims.
            if failed.contains(&class) || self.state.held_by(*pod).is_some() {
                continue;
            }
            match self.place_ranked(*pod, class, within, wanted.get(pod).copied()) {
                Some(found) => {
                    self.state.bind(*pod, found.node, found.grant);
                    if let Some(placement) = &found.devices {
                        self.state.take_devices(*pod, placement);
                    }
                    placed.push((*pod, found));
                }
                None => {
                    let rules = self.state.rules(class);
                    let alone = rules.affinity.is_none() && rules.hard_spread.is_empty();
                    if alone && self.state.pods[*pod].claims.is_empty() {
                        failed.push(class);
                    }
                }
            }
        }
        placed
    }

    /// Members by size, largest first, because large ones find less room.
    pub(super) fn large_first(&self, status: &GangStatus) -> Vec<PodIx> {
        let state = &self.state;
        let size = |pod: &PodIx| {
            let class = state.class_of(*pod);
            let devices: i64 = class
                .requests
                .iter()
                .filter(|(resource, _)| state.resources.name(*resource).is_extended())
                .map(|(_, amount)| *amount)
                .fold(i64::from(class.spec.gpu.is_some()), i64::saturating_add);
            (devices, class.scored.millicpu, class.scored.memory_bytes)
        };
        let mut order = status.waiting.clone();
        order.sort_by_key(|pod| std::cmp::Reverse(size(pod)));
        order
    }
}

//! Members tried out together: all that are needed have their place, or nobody has.
//!
//! Owns the trial: under a checkpoint of the state, so that what did not work out leaves no trace.
//! Must not know why a gang is tried.

use super::domain::nominated;
use super::muster::Roll;
use crate::decision::Binding;
use crate::engine::{Engine, Found};
use crate::table::{Bits, ClassIx, Lookup, NodeIx, PodIx};

/// Kinds of pods that are kept while something is tried, so that they keep their numbers.
pub(super) type Kept = Vec<ClassIx>;

impl Engine {
    /// Places a gang at once, if it has room somewhere.
    pub(super) fn place_gang(&mut self, roll: &Roll) -> Option<Vec<Binding>> {
        let wanted: Lookup<PodIx, NodeIx> = roll
            .waiting
            .iter()
            .filter_map(|pod| Some((*pod, nominated(&self.state.pods[*pod].place)?)))
            .collect();
        let large_first = self.large_first(roll);
        let mut orders = vec![&large_first];
        if large_first != roll.waiting {
            orders.push(&roll.waiting);
        }
        for spot in self.spots_to_place(roll) {
            for order in &orders {
                let within = spot.nodes.as_ref();
                let placed = self.attempt(roll, |engine, _| {
                    let placed = engine.try_members(roll, order, within, &wanted);
                    (placed.len() >= roll.need).then_some(placed)
                });
                if let Some(placed) = placed {
                    let binding = |(pod, found): &(PodIx, Found)| self.binding(*pod, found);
                    return Some(placed.iter().map(binding).collect());
                }
            }
        }
        None
    }

    /// How many members fit on some nodes now, found out by trying.
    pub(super) fn room_for(&mut self, roll: &Roll, within: Option<&Bits>) -> usize {
        let order = self.large_first(roll);
        let mut room = 0;
        let everybody = Roll { need: 0, ..roll.clone() };
        self.attempt(roll, |engine, _| {
            room = engine.try_members(&everybody, &order, within, &Lookup::default()).len();
            None::<()>
        });
        room
    }

    /// Tries something out with a gang's members. It stays if something comes of it.
    pub(super) fn attempt<T>(
        &mut self,
        roll: &Roll,
        try_out: impl FnOnce(&mut Self, &mut Kept) -> Option<T>,
    ) -> Option<T> {
        let from = self.state.changes.now();
        let mut kept: Kept = Vec::with_capacity(roll.waiting.len());
        for pod in &roll.waiting {
            self.keep_class(*pod, &mut kept);
        }
        let by_quota = self.state.tenancy.books.changed().clone();
        let of_teams = self.state.tenancy.ledger.news().clone();
        let devices = self.state.devices.clone();
        let checkpoint = self.state.checkpoint();
        for pod in &roll.waiting {
            // Mates that are kept nodes for would be in each other's way elsewhere.
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
            self.state.tenancy.ledger.set_news(of_teams);
            self.state.restore_devices(devices);
            self.forget_changes(from);
        }
        kept.into_iter().for_each(|class| self.state.release_class(class));
        outcome
    }

    pub(super) fn keep_class(&mut self, pod: PodIx, kept: &mut Kept) {
        let spec = self.state.class_of(pod).spec.clone();
        kept.push(self.state.acquire_class(&spec));
    }

    /// Places members one after the other, as long as enough of them may still find a place.
    pub(super) fn try_members(
        &mut self,
        roll: &Roll,
        order: &[PodIx],
        within: Option<&Bits>,
        wanted: &Lookup<PodIx, NodeIx>,
    ) -> Vec<(PodIx, Found)> {
        let mut placed = Vec::new();
        let mut failed: Vec<ClassIx> = Vec::new();
        for (at, pod) in order.iter().enumerate() {
            if placed.len() + (order.len() - at) < roll.need {
                break;
            }
            let class = self.state.pods[*pod].class;
            // Where one did not fit the next of its kind does not, unless it wants others near or has
            // claims of its own.
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

    /// The members by what they ask for, largest first, then by turn: what is large finds less room.
    pub(super) fn large_first(&self, roll: &Roll) -> Vec<PodIx> {
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
        let mut order = roll.waiting.clone();
        order.sort_by_key(|pod| std::cmp::Reverse(size(pod)));
        order
    }
}

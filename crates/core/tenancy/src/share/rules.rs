//! Rules of team shares, computed from the ledger.
//!
//! # Order of the queue
//!
//! 1. Work within its team's guarantee comes before work that borrows. Work that takes nothing that
//!    teams have shares of borrows nothing.
//! 2. Then the higher priority.
//! 3. Then the worse-off team. Among teams within their guarantee, that is the one with the smaller
//!    part of it. Among borrowers, it is the one with the smaller weighted dominant share: of
//!    everything it has beyond its guarantee, the largest part of what the cluster has, divided by
//!    its weight. Groups are compared before the teams in them.
//! 4. Then age.
//!
//! # Eviction for a higher priority
//!
//! Pods of the same team, and pods of others that are neither within their team's guarantee nor
//! within that of a group without the evicting team.
//!
//! # Reclaiming
//!
//! A pod within its team's guarantee may have a borrower's pod of no higher priority evicted if
//! that pod uses something of which the team has a guarantee. Two teams meet at the group above
//! both (or at the cluster): everything on the one path up to there must be within its guarantee
//! with the pod, and everything on the other beyond it with the victim, so that no team or group
//! within its guarantee loses anything. The victim's replacement would borrow, so it cannot
//! reclaim: nothing is reclaimed back and forth. Borrowers reclaim nothing from each other.

use std::sync::Arc;

use smallvec::SmallVec;

use berth_model::table::Index as _;

use super::ledger::{Cell, Charge, DimensionIx, Ledger, Supply, TeamIx};
use super::team::Dimension;

/// Shares are expressed in parts of this whole.
pub const WHOLE: u64 = 1_000_000_000;

/// A pod's position in the order, before its age.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    pub borrows: bool,
    pub priority: std::cmp::Reverse<i32>,
    /// How well off its groups are, the outermost first, and then its team.
    pub shares: SmallVec<[u64; 2]>,
}

/// Why a pod must not start, however much room there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Its team, or a group above it, would exceed what it may borrow.
    BorrowingLimit {
        team: Arc<str>,
        dimension: Dimension,
        /// What the pod takes.
        asked: i64,
        /// What the team has, expects, and keeps for others of the group.
        has: i64,
        guaranteed: i64,
        /// What it may have beyond that.
        borrow_max: i64,
    },
    /// What is idle is guaranteed to teams that do not lend it.
    Withheld {
        dimension: Dimension,
        /// What the pod takes.
        asked: i64,
        capacity: i64,
        /// What all teams have, expect, or do not lend.
        kept: i64,
        by: Vec<(Arc<str>, i64)>,
    },
}

/// A pod for which others may be evicted.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub team: TeamIx,
    pub priority: i32,
    pub ask: &'a Charge,
    /// Already counted for it, because room is being made.
    pub own: Option<&'a Charge>,
}

#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a, P> {
    pub pod: P,
    pub team: TeamIx,
    pub priority: i32,
    pub charge: &'a Charge,
    pub started_at_ms: i64,
}

#[derive(Clone, Debug, Default)]
struct Taken(SmallVec<[(TeamIx, DimensionIx, i64); 8]>);

impl Taken {
    fn of(&self, team: TeamIx, dimension: DimensionIx) -> i64 {
        let same = self.0.iter().filter(|one| (one.0, one.1) == (team, dimension));
        same.fold(0, |sum: i64, one| sum.saturating_add(one.2))
    }
}

impl Ledger {
    pub fn turn(&self, team: TeamIx, priority: i32, ask: &Charge) -> Turn {
        let borrows = self.borrows(team, ask, None);
        let mut shares: SmallVec<[u64; 2]> = self
            .path(team)
            .map(|at| if borrows { self.dominant_share(at) } else { self.fulfilment(at) })
            .collect();
        shares.reverse();
        Turn { borrows, priority: std::cmp::Reverse(priority), shares }
    }

    /// Whether a pod would take its team, or a group above it, beyond its guarantee in anything it
    /// takes; also if none of it is guaranteed to any of them.
    pub fn borrows(&self, team: TeamIx, ask: &Charge, own: Option<&Charge>) -> bool {
        let shared = ask.iter().filter(|(dimension, _)| self.is_shared(*dimension));
        let (mut asks_for_shares, mut entitled) = (false, false);
        for (dimension, amount) in shared {
            asks_for_shares = true;
            let expected = own_part(own, *dimension);
            for at in self.path(team) {
                let cell = self.cell(at, *dimension);
                let Some(one) = cell.entitled else { continue };
                entitled |= one.guaranteed > 0;
                if with(&cell, expected, *amount) > one.guaranteed {
                    return true;
                }
            }
        }
        asks_for_shares && !entitled
    }

    /// The largest part of the cluster that a team has beyond its guarantee, by weight.
    pub fn dominant_share(&self, team: TeamIx) -> u64 {
        let shares = self.cells(team).map(|(supply, cell)| {
            let beyond = cell.expected().saturating_sub(cell.guaranteed());
            part(beyond, supply.capacity)
        });
        let weight = u128::from(self.nodes[team.at()].weight_milli);
        let share = u128::from(shares.max().unwrap_or(0)) * 1000 / weight.max(1);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// The largest part of its guarantee that a team has.
    fn fulfilment(&self, team: TeamIx) -> u64 {
        let guaranteed = self.cells(team).filter(|(_, cell)| cell.guaranteed() > 0);
        guaranteed.map(|(_, cell)| part(cell.expected(), cell.guaranteed())).max().unwrap_or(0)
    }

    fn cells(&self, team: TeamIx) -> impl Iterator<Item = (&Supply, &Cell)> {
        let all = self.supplies.iter().zip(&self.nodes[team.at()].cells);
        all.filter(|(supply, _)| supply.is_shared)
    }

    /// Whether a pod may start at all, if there is room. `own` is already counted for it.
    pub fn may_start(&self, team: TeamIx, ask: &Charge, own: Option<&Charge>) -> Result<(), Hold> {
        let borrows = self.borrows(team, ask, own);
        let mut ask: SmallVec<[&(DimensionIx, i64); 4]> =
            ask.iter().filter(|(dimension, _)| self.is_shared(*dimension)).collect();
        ask.sort_by_key(|(dimension, _)| self.dimension_name(*dimension));
        for (dimension, amount) in ask {
            let more = amount - own_part(own, *dimension);
            let grown = self.check_limits(team, *dimension, *amount, more)?;
            let supply = &self.supplies[dimension.at()];
            if borrows && supply.is_withheld && supply.kept.saturating_add(grown) > supply.capacity
            {
                return Err(Hold::Withheld {
                    dimension: supply.dimension.clone(),
                    asked: *amount,
                    capacity: supply.capacity,
                    kept: supply.kept,
                    by: self.withholders(*dimension),
                });
            }
        }
        Ok(())
    }

    /// Checks the limits on the path up; returns by how much more all teams would keep.
    fn check_limits(
        &self,
        team: TeamIx,
        dimension: DimensionIx,
        asked: i64,
        more: i64,
    ) -> Result<i64, Hold> {
        let mut grown = more;
        let mut is_own = true;
        for at in self.path(team) {
            let mut cell = self.cell(at, dimension);
            if is_own {
                cell.own = cell.own.saturating_add(grown);
            } else {
                cell.kept_below = cell.kept_below.saturating_add(grown);
            }
            is_own = false;
            let uses = cell.own.saturating_add(cell.kept_below);
            if let Some(one) = cell.entitled
                && let Some(borrow_max) = one.borrow_max
                && uses > one.guaranteed.saturating_add(borrow_max)
            {
                return Err(Hold::BorrowingLimit {
                    team: self.name(at).clone(),
                    dimension: self.dimension_name(dimension).clone(),
                    asked,
                    has: uses.saturating_sub(grown),
                    guaranteed: one.guaranteed,
                    borrow_max,
                });
            }
            grown = cell.keeps_now().saturating_sub(cell.kept);
        }
        Ok(grown)
    }

    /// Teams that keep more than they use.
    fn withholders(&self, dimension: DimensionIx) -> Vec<(Arc<str>, i64)> {
        let idle = self.nodes.iter().filter_map(|node| {
            let cell = node.cells.get(dimension.at())?;
            let idle = cell.kept.saturating_sub(cell.own).saturating_sub(cell.kept_below);
            (idle > 0).then(|| (node.name.clone(), idle))
        });
        idle.collect()
    }

    /// Pods that may be evicted, best first: lowest priority, then most beyond their team's
    /// guarantee, then youngest; ties keep their order. Evicting any of them leaves every team its
    /// guarantee.
    pub fn evictable<'a, P: Copy>(
        &self,
        claim: &Claim<'_>,
        candidates: impl IntoIterator<Item = Candidate<'a, P>>,
    ) -> Vec<P> {
        let mut ranked: Vec<_> = candidates
            .into_iter()
            .filter(|one| one.priority <= claim.priority)
            .map(|one| {
                let share = std::cmp::Reverse(self.dominant_share(one.team));
                ((one.priority, share, std::cmp::Reverse(one.started_at_ms)), one)
            })
            .collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        let mut taken = Taken::default();
        let may = |one: &Candidate<'_, P>| {
            let evictable = self.may_evict(claim, one, &taken);
            if evictable {
                self.take(one.team, one.charge, &mut taken);
            }
            evictable
        };
        ranked.into_iter().map(|(_, one)| one).filter(may).map(|one| one.pod).collect()
    }

    fn may_evict<P>(&self, claim: &Claim<'_>, one: &Candidate<'_, P>, taken: &Taken) -> bool {
        let lower = one.priority < claim.priority;
        lower && !self.protects(claim.team, one.team, one.charge, taken)
            || self.reclaims(claim, one.team, one.charge, taken)
    }

    /// Whether anything may be reclaimed from a team's pod.
    fn reclaims(&self, claim: &Claim<'_>, from: TeamIx, charge: &Charge, taken: &Taken) -> bool {
        charge.iter().any(|(dimension, _)| {
            self.is_shared(*dimension) && self.may_reclaim(claim, from, *dimension, taken)
        })
    }

    fn take(&self, from: TeamIx, charge: &Charge, taken: &mut Taken) {
        for at in self.path(from) {
            taken.0.extend(charge.iter().map(|(dimension, amount)| (at, *dimension, *amount)));
        }
    }

    fn may_reclaim(
        &self,
        claim: &Claim<'_>,
        from: TeamIx,
        dimension: DimensionIx,
        taken: &Taken,
    ) -> bool {
        let Claim { team, ask, own, .. } = *claim;
        if team == from {
            return false;
        }
        let both = |at: &TeamIx| self.path(from).any(|other| other == *at);
        let ours: SmallVec<[TeamIx; 4]> = self.path(team).take_while(|at| !both(at)).collect();
        let shared = |at: &TeamIx| self.path(team).any(|other| other == *at);
        let mut theirs = self.path(from).take_while(|at| !shared(at));
        // If one team is above the other, one of the paths is empty.
        let guaranteed = ours.iter().any(|at| self.cell(*at, dimension).guaranteed() > 0);
        let within = ask.iter().filter(|(one, _)| self.is_shared(*one)).all(|(one, amount)| {
            let expected = own_part(own, *one);
            ours.iter().all(|at| {
                let cell = self.cell(*at, *one);
                cell.entitled
                    .is_none_or(|entitled| with(&cell, expected, *amount) <= entitled.guaranteed)
            })
        });
        guaranteed
            && within
            && theirs.all(|at| {
                let cell = self.cell(at, dimension);
                let left = cell.staying().saturating_sub(taken.of(at, dimension));
                left > cell.guaranteed()
            })
    }

    /// Whether a pod is within its team's guarantee, or that of a group, after what was taken
    /// already, so that team `by` must not have it evicted, whatever its priority.
    fn protects(&self, by: TeamIx, team: TeamIx, charge: &Charge, taken: &Taken) -> bool {
        let shared = |at: &TeamIx| self.path(by).any(|other| other == *at);
        self.path(team).take_while(|at| !shared(at)).any(|at| {
            let mut guaranteed = false;
            let mut beyond = false;
            for (dimension, _) in charge.iter().filter(|(one, _)| self.is_shared(*one)) {
                let cell = self.cell(at, *dimension);
                guaranteed |= cell.guaranteed() > 0;
                beyond |= cell.guaranteed() > 0
                    && cell.staying().saturating_sub(taken.of(at, *dimension)) > cell.guaranteed();
            }
            guaranteed && !beyond
        })
    }
}

/// Usage with a pod for which `expected` is already counted.
fn with(cell: &Cell, expected: i64, amount: i64) -> i64 {
    cell.expected().saturating_sub(expected).saturating_add(amount)
}

fn own_part(own: Option<&Charge>, dimension: DimensionIx) -> i64 {
    let found = own.and_then(|own| own.iter().find(|(one, _)| *one == dimension));
    found.map_or(0, |(_, amount)| *amount)
}

fn part(amount: i64, all: i64) -> u64 {
    let Ok(amount) = u128::try_from(amount) else { return 0 };
    match u128::try_from(all) {
        Ok(all) if all > 0 => u64::try_from(amount * u128::from(WHOLE) / all).unwrap_or(u64::MAX),
        _ if amount > 0 => u64::MAX,
        _ => 0,
    }
}

//! The ledger of teams: usage, guarantees and limits.
//!
//! Sums are kept up to date in the tree of teams, at a cost of its depth times the resources of a
//! pod. A group's amounts are those of its teams together. A team is *within its guarantee* if what
//! it has and expects, without what it is about to lose, is at most its guarantee.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::table::Index as _;
use smallvec::SmallVec;

use super::team::{AMOUNT_MAX, Dimension, Entitlement, Team, is_below_itself};

berth_model::row_numbers! {
    /// Numbered by name.
    pub TeamIx;
    pub DimensionIx;
}

impl TeamIx {
    /// Pods without a team: no guarantee and no limit.
    pub const NONE: Self = Self(0);
}

/// What a pod takes, each dimension once and above 0.
pub type Charge = SmallVec<[(DimensionIx, i64); 4]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeState {
    InUse,
    /// In use, and about to be lost.
    Leaving,
    /// Room is being made for it.
    Arriving,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub(super) entitled: Option<Entitlement>,
    pub(super) has: i64,
    pub(super) leaving: i64,
    pub(super) arriving: i64,
    /// What it keeps from others: what it has and expects, or at least what it does not lend.
    pub(super) kept: i64,
    /// The same for the teams of a group together.
    pub(super) kept_below: i64,
    /// Usage of pods that belong to the group itself.
    pub(super) own: i64,
}

impl Cell {
    pub(super) fn guaranteed(&self) -> i64 {
        self.entitled.map_or(0, |one| one.guaranteed)
    }

    /// Usage if nothing else happens.
    pub(super) fn expected(&self) -> i64 {
        self.staying().saturating_add(self.arriving)
    }

    pub(super) fn is_used(&self) -> bool {
        self.entitled.is_some() || self.has != 0 || self.arriving != 0
    }

    pub(super) fn staying(&self) -> i64 {
        self.has.saturating_sub(self.leaving)
    }

    /// `kept`, computed from its pods and the teams below it.
    pub(super) fn keeps_now(&self) -> i64 {
        let unlent = self.entitled.map_or(0, |one| match one.lend_max {
            Some(lent) => (one.guaranteed - lent).max(0),
            None => 0,
        });
        self.own.saturating_add(self.kept_below).max(unlent)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) name: Arc<str>,
    pub(super) parent: Option<TeamIx>,
    pub(super) children: Vec<TeamIx>,
    pub(super) weight_milli: u32,
    pub(super) cells: Vec<Cell>,
}

#[derive(Clone, Debug)]
pub(super) struct Supply {
    pub(super) dimension: Dimension,
    pub(super) capacity: i64,
    /// Whether some team has an entitlement to it.
    pub(super) is_shared: bool,
    /// Whether some team does not lend all of it.
    pub(super) is_withheld: bool,
    /// What all teams without a group keep from others.
    pub(super) kept: i64,
}

#[derive(Clone, Debug)]
pub struct Ledger {
    pub(super) nodes: Vec<Node>,
    pub(super) supplies: Vec<Supply>,
    by_namespace: BTreeMap<Arc<str>, Vec<TeamIx>>,
    /// Teams without namespaces, joined by label.
    by_label: BTreeMap<Arc<str>, TeamIx>,
    version: u64,
    changes: LedgerChanges,
}

/// Changes since [`Ledger::take_changed`].
#[derive(Clone, Debug, Default)]
pub struct LedgerChanges {
    teams: Vec<TeamIx>,
    everything: bool,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            nodes: vec![Node { weight_milli: 1000, ..Node::default() }],
            supplies: Vec::new(),
            by_namespace: BTreeMap::new(),
            by_label: BTreeMap::new(),
            version: 0,
            changes: LedgerChanges::default(),
        }
    }
}

impl Ledger {
    pub fn is_active(&self) -> bool {
        self.nodes.len() > 1
    }

    /// Sets the teams. Usage is dropped and must be added again; capacities stay.
    pub fn configure(&mut self, teams: &BTreeMap<Arc<str>, Team>) {
        let number: BTreeMap<&Arc<str>, TeamIx> =
            teams.keys().zip(1..).map(|(name, at)| (name, TeamIx(at))).collect();
        let mut nodes = vec![Node { weight_milli: 1000, ..Node::default() }];
        for team in teams.values() {
            let parent = team.parent.as_ref().and_then(|parent| number.get(parent)).copied();
            nodes.push(Node {
                name: team.name.clone(),
                parent: parent.filter(|_| !is_below_itself(teams, team)),
                weight_milli: team.weight_milli.max(1),
                ..Node::default()
            });
        }
        for at in 1..nodes.len() {
            if let Some(parent) = nodes[at].parent {
                nodes[parent.at()].children.push(TeamIx(at as u32));
            }
        }
        self.nodes = nodes;
        self.by_namespace.clear();
        self.by_label.clear();
        for (team, at) in teams.values().zip((1..).map(TeamIx)) {
            if team.namespaces.is_empty() && self.nodes[at.at()].children.is_empty() {
                self.by_label.insert(team.name.clone(), at);
            }
            for namespace in &team.namespaces {
                self.by_namespace.entry(namespace.clone()).or_default().push(at);
            }
        }
        for supply in &mut self.supplies {
            (supply.is_shared, supply.is_withheld, supply.kept) = (false, false, 0);
        }
        for (team, at) in teams.values().zip((1..).map(TeamIx)) {
            for (dimension, one) in &team.entitlements {
                let amount = |amount: i64| amount.clamp(0, AMOUNT_MAX);
                let one = Entitlement {
                    guaranteed: amount(one.guaranteed),
                    borrow_max: one.borrow_max.map(amount),
                    lend_max: one.lend_max.map(amount),
                };
                let dimension = self.dimension(dimension);
                let supply = &mut self.supplies[dimension.at()];
                supply.is_shared = true;
                supply.is_withheld |= one.lend_max.is_some_and(|lent| lent < one.guaranteed);
                cell_mut(&mut self.nodes[at.at()], dimension).entitled = Some(one);
            }
        }
        // Unlent guarantees are kept without any usage; from the leaves up, whatever the order of
        // names.
        for at in (1..self.nodes.len()).map(|at| TeamIx(at as u32)) {
            for dimension in (0..self.supplies.len() as u32).map(DimensionIx) {
                self.keep(at, dimension, 0);
            }
        }
        self.changes.everything = true;
        self.version += 1;
    }

    pub fn dimension(&mut self, dimension: &Dimension) -> DimensionIx {
        let found = self.supplies.iter().position(|one| one.dimension == *dimension);
        let at = found.unwrap_or_else(|| {
            self.supplies.push(Supply {
                dimension: dimension.clone(),
                capacity: 0,
                is_shared: false,
                is_withheld: false,
                kept: 0,
            });
            self.supplies.len() - 1
        });
        DimensionIx(at as u32)
    }

    pub fn dimension_name(&self, dimension: DimensionIx) -> &Dimension {
        &self.supplies[dimension.at()].dimension
    }

    /// The GPUs of any model in a charge, in parts.
    pub fn gpus(&self, charge: &Charge) -> i64 {
        let of = |(dimension, _): &&(DimensionIx, i64)| {
            *self.dimension_name(*dimension) == Dimension::Gpus
        };
        charge.iter().find(of).map_or(0, |(_, amount)| *amount)
    }

    /// Whether some team has an entitlement to it.
    pub fn is_shared(&self, dimension: DimensionIx) -> bool {
        self.supplies[dimension.at()].is_shared
    }

    pub fn capacity(&self, dimension: &Dimension) -> i64 {
        let supply = self.supplies.iter().find(|one| one.dimension == *dimension);
        supply.map_or(0, |supply| supply.capacity)
    }

    /// Adds to the cluster's capacity, or subtracts.
    pub fn add_capacity(&mut self, dimension: DimensionIx, more: i64) {
        let supply = &mut self.supplies[dimension.at()];
        supply.capacity = supply.capacity.saturating_add(more);
        self.changes.everything = true;
        self.version += 1;
    }

    /// The team of a pod: the one of its namespace's teams that its label names, else the first. In
    /// a namespace without teams the label may name a team without namespaces, never one of other
    /// namespaces.
    pub fn team_of(&self, namespace: &str, label: Option<&str>) -> TeamIx {
        let Some(teams) = self.by_namespace.get(namespace) else {
            return label
                .and_then(|label| self.by_label.get(label).copied())
                .unwrap_or(TeamIx::NONE);
        };
        let named = teams.iter().find(|team| Some(&*self.nodes[team.at()].name) == label);
        named.or(teams.first()).copied().unwrap_or(TeamIx::NONE)
    }

    pub fn name(&self, team: TeamIx) -> &Arc<str> {
        &self.nodes[team.at()].name
    }

    /// Adds a charge to a team, or subtracts it with a `sign` of -1.
    pub fn add(&mut self, team: TeamIx, charge: &Charge, held: ChargeState, sign: i64) {
        for (dimension, amount) in charge {
            let amount = amount.saturating_mul(sign);
            let mut at = Some(team);
            while let Some(one) = at {
                let node = &mut self.nodes[one.at()];
                at = node.parent;
                let cell = cell_mut(node, *dimension);
                match held {
                    ChargeState::InUse => cell.has = cell.has.saturating_add(amount),
                    ChargeState::Leaving => cell.leaving = cell.leaving.saturating_add(amount),
                    ChargeState::Arriving => cell.arriving = cell.arriving.saturating_add(amount),
                }
            }
            if held != ChargeState::Leaving {
                self.keep(team, *dimension, amount);
            }
        }
        self.version += 1;
        self.touch(team);
    }

    /// Adds to what a team keeps itself, and updates its groups.
    fn keep(&mut self, team: TeamIx, dimension: DimensionIx, more: i64) {
        let cell = cell_mut(&mut self.nodes[team.at()], dimension);
        cell.own = cell.own.saturating_add(more);
        let mut at = team;
        loop {
            let node = &mut self.nodes[at.at()];
            let parent = node.parent;
            let cell = cell_mut(node, dimension);
            let kept = cell.keeps_now();
            let change = kept.saturating_sub(std::mem::replace(&mut cell.kept, kept));
            match parent {
                Some(parent) => {
                    let above = cell_mut(&mut self.nodes[parent.at()], dimension);
                    above.kept_below = above.kept_below.saturating_add(change);
                    at = parent;
                }
                None => {
                    let supply = &mut self.supplies[dimension.at()];
                    supply.kept = supply.kept.saturating_add(change);
                    return;
                }
            }
        }
    }

    fn touch(&mut self, team: TeamIx) {
        if self.changes.teams.len() < self.nodes.len() * 2 {
            self.changes.teams.push(team);
        } else {
            self.changes.everything = true;
        }
    }

    /// Changes with every update.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Teams whose turns may have changed since the last call: those with updates, and all that
    /// share a group with them.
    pub fn take_changed(&mut self) -> Vec<TeamIx> {
        let LedgerChanges { teams: changed, everything } = std::mem::take(&mut self.changes);
        if everything {
            return (0..self.nodes.len() as u32).map(TeamIx).collect();
        }
        let mut affected: Vec<TeamIx> = Vec::new();
        let mut groups: Vec<TeamIx> = Vec::new();
        for team in changed {
            let top = self.top(team);
            if !groups.contains(&top) {
                groups.push(top);
                self.below(top, &mut affected);
            }
        }
        affected
    }

    pub fn has_changed(&self) -> bool {
        self.changes.everything || !self.changes.teams.is_empty()
    }

    pub fn changes(&self) -> &LedgerChanges {
        &self.changes
    }

    /// Restores the changes of a checkpoint; the teams must be the same.
    pub fn restore_changes(&mut self, changes: LedgerChanges) {
        self.changes = changes;
    }

    fn top(&self, team: TeamIx) -> TeamIx {
        self.path(team).last().unwrap_or(team)
    }

    fn below(&self, team: TeamIx, into: &mut Vec<TeamIx>) {
        let mut next = into.len();
        into.push(team);
        while let Some(team) = into.get(next) {
            next += 1;
            into.extend_from_slice(&self.nodes[team.at()].children);
        }
    }

    /// A team and the groups above it.
    pub(super) fn path(&self, team: TeamIx) -> impl Iterator<Item = TeamIx> {
        std::iter::successors(Some(team), |at| self.nodes[at.at()].parent)
    }

    pub(super) fn cell(&self, team: TeamIx, dimension: DimensionIx) -> Cell {
        self.nodes[team.at()].cells.get(dimension.at()).copied().unwrap_or_default()
    }
}

fn cell_mut(node: &mut Node, dimension: DimensionIx) -> &mut Cell {
    if dimension.at() >= node.cells.len() {
        node.cells.resize(dimension.at() + 1, Cell::default());
    }
    &mut node.cells[dimension.at()]
}

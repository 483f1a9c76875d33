//! Attribution: what each team has borrowed, and from whom, for display.
//!
//! Teams of one group settle among themselves first. A team with more than its guarantee borrows
//! the difference: first from what is guaranteed to no team, then from teams that lend idle
//! guarantees, the most idle first and then by name, and within a group from what the group has
//! borrowed. Borrowers are served by name. The rest is owed to the next team that asks for its
//! guarantee. For every borrower the parts add up to what it borrowed.

use std::cmp::Reverse;
use std::sync::Arc;

use berth_model::table::Index as _;

use super::ledger::{Cell, DimensionIx, Ledger, TeamIx};
use super::team::Dimension;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lender {
    /// Guaranteed to no team of the group, or of the cluster.
    Common,
    /// The idle part of a team's guarantee.
    Team(Arc<str>),
    /// What the group has borrowed itself.
    Group(Arc<str>),
    /// No longer lent: to be given back.
    Owed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Empty for pods without a team.
    pub team: Arc<str>,
    pub dimension: Dimension,
    pub has: i64,
    /// The part of `has` that is about to be lost.
    pub leaving: i64,
    /// What room is being made for.
    pub arriving: i64,
    pub guaranteed: i64,
    /// What it has beyond its guarantee, by lender.
    pub borrowed: Vec<(Lender, i64)>,
    /// The part of its guarantee that others have.
    pub lent: i64,
}

impl Account {
    /// What it has beyond its guarantee.
    pub fn borrowed_total(&self) -> i64 {
        self.borrowed.iter().map(|(_, amount)| amount).sum()
    }
}

impl Ledger {
    pub fn accounts(&self) -> Vec<Account> {
        let mut accounts = Vec::new();
        for (at, supply) in self.supplies.iter().enumerate().filter(|(_, one)| one.is_shared) {
            let dimension = DimensionIx::new(at);
            let roots: Vec<TeamIx> = self.numbers().filter(|one| self.is_root(*one)).collect();
            self.settle(None, &roots, supply.capacity, dimension, &mut accounts);
            for group in self.numbers() {
                let cell = self.cell(group, dimension);
                let children = &self.nodes[group.at()].children;
                let pool = cell.guaranteed();
                self.settle(Some(group), children, pool, dimension, &mut accounts);
            }
        }
        accounts.sort_by(|one, other| {
            (&one.team, &one.dimension).cmp(&(&other.team, &other.dimension))
        });
        accounts
    }

    fn numbers(&self) -> impl Iterator<Item = TeamIx> + use<> {
        (0..self.nodes.len()).map(TeamIx::new)
    }

    fn is_root(&self, team: TeamIx) -> bool {
        self.nodes[team.at()].parent.is_none()
    }

    fn settle(
        &self,
        group: Option<TeamIx>,
        teams: &[TeamIx],
        pool: i64,
        dimension: DimensionIx,
        accounts: &mut Vec<Account>,
    ) {
        let cells: Vec<(TeamIx, Cell)> =
            teams.iter().map(|team| (*team, self.cell(*team, dimension))).collect();
        let sum = |sum: i64, (_, cell): &(TeamIx, Cell)| sum.saturating_add(cell.guaranteed());
        let guaranteed = cells.iter().fold(0, sum);
        let mut sources: Vec<(Lender, i64)> =
            vec![(Lender::Common, (pool.saturating_sub(guaranteed)).max(0))];
        let mut idle: Vec<(i64, &Arc<str>)> = cells
            .iter()
            .map(|(team, cell)| (lendable(cell), self.name(*team)))
            .filter(|(amount, _)| *amount > 0)
            .collect();
        idle.sort_by_key(|(amount, name)| (Reverse(*amount), *name));
        sources.extend(idle.into_iter().map(|(amount, name)| (Lender::Team(name.clone()), amount)));
        if let Some(group) = group {
            let own = self.cell(group, dimension);
            let borrowed = (own.has.saturating_sub(own.guaranteed())).max(0);
            sources.push((Lender::Group(self.name(group).clone()), borrowed));
        }
        let first = accounts.len();
        for (team, cell) in cells.iter().filter(|(_, cell)| cell.is_used()) {
            let borrowed = draw(&mut sources, (cell.has.saturating_sub(cell.guaranteed())).max(0));
            accounts.push(Account {
                team: self.name(*team).clone(),
                dimension: self.dimension_name(dimension).clone(),
                has: cell.has,
                leaving: cell.leaving,
                arriving: cell.arriving,
                guaranteed: cell.guaranteed(),
                borrowed,
                lent: 0,
            });
        }
        let of_group = &accounts[first..];
        let lent: Vec<i64> = of_group
            .iter()
            .map(|account| {
                let lender = Lender::Team(account.team.clone());
                let borrowed = of_group.iter().flat_map(|other| &other.borrowed);
                borrowed.filter(|(from, _)| *from == lender).map(|(_, amount)| amount).sum()
            })
            .collect();
        accounts[first..].iter_mut().zip(lent).for_each(|(account, lent)| account.lent = lent);
    }
}

/// The part of its guarantee that others may have.
fn lendable(cell: &Cell) -> i64 {
    let idle = cell.guaranteed().saturating_sub(cell.has);
    let limit = cell.entitled.and_then(|one| one.lend_max).unwrap_or(i64::MAX);
    idle.min(limit).max(0)
}

fn draw(sources: &mut [(Lender, i64)], amount: i64) -> Vec<(Lender, i64)> {
    let mut missing = amount;
    let mut parts = Vec::new();
    for (lender, left) in sources {
        let part = missing.min(*left);
        if part > 0 {
            (*left, missing) = (*left - part, missing - part);
            parts.push((lender.clone(), part));
        }
    }
    if missing > 0 {
        parts.push((Lender::Owed, missing));
    }
    parts
}

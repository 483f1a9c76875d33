//! Teams and their entitlements.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use berth_model::quantity::Quantity;
use thiserror::Error;

/// The label of pods that names their team. What it means depends on [`Team::namespaces`].
pub const TEAM_LABEL: &str = "berth.dev/team";

/// Parts of a GPU: every MIG slice of known boards (parts of 112 and of 32), every thousandth and
/// every share of up to 16 is a whole number of them. Finer shares are rounded down.
pub const GPU_PARTS: i64 = 36_036_000;

/// Upper limit of one amount, so that sums over all pods of a cluster stay exact.
pub const AMOUNT_MAX: i64 = 1 << 52;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// GPUs of any model, in parts ([`GPU_PARTS`]): whole GPUs, slices and shares.
    Gpus,
    /// GPUs of one model (`nvidia.com/gpu.product`), in parts.
    GpusOf(Arc<str>),
    /// In bytes.
    GpuMemory,
    /// In thousandths.
    Cpu,
    /// In bytes.
    Memory,
}

impl Dimension {
    /// An amount for display: `4.125 GPUs`, `96Gi of memory`.
    pub fn show(&self, amount: i64) -> String {
        match self {
            Self::Gpus | Self::GpusOf(_) => {
                let milli = i128::from(amount) * 1000 / i128::from(GPU_PARTS);
                let sign = if amount < 0 { "-" } else { "" };
                let (whole, rest) = (milli.unsigned_abs() / 1000, milli.unsigned_abs() % 1000);
                let rest = format!("{rest:03}");
                let rest = rest.trim_end_matches('0');
                let dot = if rest.is_empty() { "" } else { "." };
                format!("{sign}{whole}{dot}{rest} {self}")
            }
            Self::Cpu => format!("{} of {self}", Quantity::from_milli(amount)),
            Self::GpuMemory | Self::Memory => {
                format!("{} of {self}", Quantity::from_bytes(amount))
            }
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpus => f.write_str("GPUs"),
            Self::GpusOf(model) => write!(f, "GPUs of model {model}"),
            Self::GpuMemory => f.write_str("GPU memory"),
            Self::Cpu => f.write_str("CPU"),
            Self::Memory => f.write_str("memory"),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entitlement {
    /// What it gets whenever it has work for it, reclaimed from borrowers if necessary.
    pub guaranteed: i64,
    /// How much more it may have while others leave it idle; `None`: no limit.
    pub borrow_max: Option<i64>,
    /// How much of its guarantee others may have while it is idle; `None`: all of it.
    pub lend_max: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Team {
    pub name: Arc<str>,
    /// The group it belongs to. A group has what its teams have.
    pub parent: Option<Arc<str>>,
    /// Namespaces whose pods are its own. If several teams list one, the pod's label chooses, else
    /// the first by name. A team without namespaces and without teams below it has the pods of all
    /// unlisted namespaces that carry its name as a label.
    pub namespaces: BTreeSet<Arc<str>>,
    /// Its part of idle resources relative to others, in thousandths.
    pub weight_milli: u32,
    /// Unlisted dimensions are neither guaranteed nor limited.
    pub entitlements: BTreeMap<Dimension, Entitlement>,
}

impl Default for Team {
    fn default() -> Self {
        Self {
            name: "".into(),
            parent: None,
            namespaces: BTreeSet::new(),
            weight_milli: 1000,
            entitlements: BTreeMap::new(),
        }
    }
}

/// A problem with a team. Such teams are used as far as possible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("team {team}: {field}: {problem}")]
pub struct TeamError {
    pub team: Arc<str>,
    /// One word, for conditions.
    pub reason: &'static str,
    pub field: String,
    pub problem: String,
}

/// Problems with teams, in order. `capacity` is the cluster's.
pub fn problems(
    teams: &BTreeMap<Arc<str>, Team>,
    capacity: impl Fn(&Dimension) -> i64,
) -> Vec<TeamError> {
    let short = beyond_capacity(teams, capacity);
    let mut found = Vec::new();
    for team in teams.values() {
        let mut say = |reason, field: &str, problem: String| {
            let (team, field) = (team.name.clone(), field.to_owned());
            found.push(TeamError { team, reason, field, problem });
        };
        if team.weight_milli == 0 {
            say("InvalidWeight", "weight", "must be greater than 0; 1 is usual".to_owned());
        }
        if let Some(parent) = &team.parent {
            if !teams.contains_key(parent) {
                say(
                    "ParentNotFound",
                    "parent",
                    format!("Team {parent:?} does not exist; create it or remove the field"),
                );
            } else if is_below_itself(teams, team) {
                say(
                    "ParentCycle",
                    "parent",
                    "is a cycle back to this team; remove one of the parents".to_owned(),
                );
            }
        }
        for (dimension, one) in &team.entitlements {
            let negative = [Some(one.guaranteed), one.borrow_max, one.lend_max];
            if negative.into_iter().flatten().any(|amount| amount < 0) {
                let problem = format!("an amount of {dimension} is negative; set 0 or more");
                say("InvalidShares", "shares", problem);
            }
            if one.lend_max.is_some_and(|lend| lend > one.guaranteed) {
                let problem = format!(
                    "lendLimit of {dimension} exceeds the guarantee; all of the guarantee is lent"
                );
                say("LendLimitExceedsGuarantee", "shares", problem);
            }
        }
        for (dimension, parent, children) in overdrawn(teams, team) {
            let [own, theirs] = [parent, children].map(|amount| dimension.show(amount));
            let problem = format!(
                "its child teams are guaranteed {theirs}, but it has {own}; raise its guarantee or lower theirs"
            );
            say("GuaranteesExceedParent", "shares", problem);
        }
        for (dimension, guaranteed, capacity) in &short {
            if team.entitlements.get(dimension).is_some_and(|one| one.guaranteed > 0) {
                let [all, has] = [guaranteed, capacity].map(|amount| dimension.show(*amount));
                let problem = format!(
                    "the guarantees of all teams add up to {all}, but the cluster has {has}; lower \
                     them or add nodes"
                );
                say("GuaranteesExceedCapacity", "shares", problem);
            }
        }
    }
    found
}

/// Guarantees beyond the cluster's capacity: dimension, guaranteed and capacity.
fn beyond_capacity(
    teams: &BTreeMap<Arc<str>, Team>,
    capacity: impl Fn(&Dimension) -> i64,
) -> Vec<(Dimension, i64, i64)> {
    let is_root = |team: &&Team| {
        let parent = team.parent.as_ref();
        parent.is_none_or(|parent| !teams.contains_key(parent)) || is_below_itself(teams, team)
    };
    let dimensions: BTreeSet<&Dimension> =
        teams.values().flat_map(|team| team.entitlements.keys()).collect();
    let short = dimensions.into_iter().filter_map(|dimension| {
        let sum = |sum: i64, team: &Team| sum.saturating_add(needed(teams, team, dimension));
        let guaranteed = teams.values().filter(is_root).fold(0, sum);
        let capacity = capacity(dimension);
        (guaranteed > capacity).then(|| (dimension.clone(), guaranteed, capacity))
    });
    short.collect()
}

/// What the guarantees of a team and of the teams below it need.
fn needed(teams: &BTreeMap<Arc<str>, Team>, team: &Team, dimension: &Dimension) -> i64 {
    let own = team.entitlements.get(dimension).map_or(0, |one| one.guaranteed);
    let children = teams
        .values()
        .filter(|one| one.parent.as_ref() == Some(&team.name) && !is_below_itself(teams, one));
    let below = children.fold(0, |sum: i64, one| sum.saturating_add(needed(teams, one, dimension)));
    own.max(below)
}

/// Whether the path up from a team comes back to it.
pub(super) fn is_below_itself(teams: &BTreeMap<Arc<str>, Team>, team: &Team) -> bool {
    let mut seen = BTreeSet::new();
    let mut at = team;
    while let Some(parent) = at.parent.as_ref().and_then(|parent| teams.get(parent)) {
        if parent.name == team.name {
            return true;
        }
        if !seen.insert(&parent.name) {
            return false;
        }
        at = parent;
    }
    false
}

fn overdrawn(teams: &BTreeMap<Arc<str>, Team>, group: &Team) -> Vec<(Dimension, i64, i64)> {
    let children = || teams.values().filter(|one| one.parent.as_ref() == Some(&group.name));
    let of = |team: &Team, dimension: &Dimension| {
        team.entitlements.get(dimension).map_or(0, |one| one.guaranteed)
    };
    let sum = |dimension: &Dimension| {
        children().fold(0_i64, |sum, child| sum.saturating_add(of(child, dimension)))
    };
    let listed = group.entitlements.iter();
    let all = listed.map(|(dimension, one)| (dimension.clone(), one.guaranteed, sum(dimension)));
    all.filter(|(_, own, theirs)| *theirs > (*own).max(0)).collect()
}

//! Teams and quotas of arbitrary worlds.
//!
//! Owns what they look like. Must not know who has what.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::TEAM_LABEL;
use berth_engine::event::Event;
use berth_model::policy::{Quota, QuotaScope};
use berth_model::spec::PodSpec;
use berth_tenancy::share::{Dimension, Entitlement, GPU_PARTS, Team};

use super::workload::NAMESPACES;
use crate::cluster::{BuildError, Dice, resources};

/// Two teams of one group, one by itself, and the group.
const TEAMS: [(&str, Option<&str>, &[usize]); 4] = [
    ("group", None, &[]),
    ("one", Some("group"), &[0]),
    ("other", None, &[1, 0]),
    ("two", Some("group"), &[1]),
];

/// Lets the pods of a template say whose they are.
pub(super) fn claim(dice: &mut Dice, spec: &mut PodSpec) {
    if dice.below(3) == 0 {
        spec.labels.insert(TEAM_LABEL, TEAMS[dice.below(4)].0);
    }
    if dice.below(3) == 0 {
        spec.deadline_ms = Some(60_000);
    }
}

/// A team or a quota comes, changes or goes.
pub(super) fn arbitrary(dice: &mut Dice) -> Result<Event, BuildError> {
    if dice.below(3) == 0 { quota(dice) } else { Ok(team(dice)) }
}

fn team(dice: &mut Dice) -> Event {
    let (name, parent, namespaces) = TEAMS[dice.below(TEAMS.len())];
    if dice.below(8) == 0 {
        return Event::TeamGone(name.into());
    }
    let mut entitlements = BTreeMap::new();
    if dice.below(5) > 0 {
        entitlements.insert(Dimension::Gpus, entitlement(dice, GPU_PARTS));
    }
    if dice.below(3) == 0 {
        entitlements.insert(Dimension::Cpu, entitlement(dice, 1_000));
    }
    if dice.below(5) == 0 {
        entitlements.insert(Dimension::Memory, entitlement(dice, 1 << 30));
    }
    Event::Team(Team {
        name: name.into(),
        parent: parent.map(Arc::from),
        namespaces: namespaces.iter().map(|at| NAMESPACES[*at].into()).collect(),
        weight_milli: [500, 1_000, 1_000, 3_000][dice.below(4)],
        entitlements,
    })
}

fn entitlement(dice: &mut Dice, unit: i64) -> Entitlement {
    let amount = |dice: &mut Dice, most: usize| dice.below(most + 1) as i64 * unit;
    Entitlement {
        guaranteed: amount(dice, 8),
        borrow_max: (dice.below(3) == 0).then(|| amount(dice, 4)),
        lend_max: (dice.below(4) == 0).then(|| amount(dice, 4)),
    }
}

fn quota(dice: &mut Dice) -> Result<Event, BuildError> {
    let at = dice.below(3);
    let (namespace, name) = (NAMESPACES[at].into(), Arc::from(format!("quota-{at}")));
    if dice.below(3) == 0 {
        return Ok(Event::QuotaGone(namespace, name));
    }
    let amount = (2 + dice.below(8)).to_string();
    let resource = ["pods", "requests.nvidia.com/gpu", "requests.cpu", "limits.memory"];
    let resource = resource[dice.below(4)];
    let amount = if resource == "limits.memory" { format!("{amount}Gi") } else { amount };
    let scopes = match dice.below(4) {
        0 => vec![QuotaScope::Deadline(dice.below(2) == 0)],
        1 => vec![QuotaScope::BestEffort(false)],
        _ => Vec::new(),
    };
    let hard = resources(&[(resource, &amount)])?;
    Ok(Event::Quota(Quota { namespace, name, hard, scopes }))
}

//! Statuses of Teams and Headrooms. They are written when they have changed, at most every five seconds.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::crd::{HeadroomStatus, Loan, Resource, StatusCondition, TeamStatus, Usage};
use berth_engine::Engine;
use berth_tenancy::share::{Account, Dimension, GPU_PARTS, Lender, TeamError};
use serde_json::{Value, json};

const EVERY_MS: i64 = 5_000;

/// Plural of the kind, and name.
type Key = (&'static str, Arc<str>);

/// The statuses last written.
#[derive(Default)]
pub(crate) struct ObjectStatuses {
    written: BTreeMap<Key, Value>,
    next_ms: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObjectStatus {
    /// The kind.
    pub(crate) plural: &'static str,
    pub(crate) name: Arc<str>,
    pub(crate) status: Value,
}

impl ObjectStatuses {
    /// Statuses to write now.
    pub(crate) fn due(&mut self, engine: &Engine, now_ms: i64) -> Vec<ObjectStatus> {
        if now_ms < self.next_ms {
            return Vec::new();
        }
        self.next_ms = now_ms + EVERY_MS;
        let mut teams: BTreeMap<Arc<str>, TeamStatus> =
            engine.teams().map(|name| (name.clone(), TeamStatus::default())).collect();
        for account in engine.accounts() {
            if !account.team.is_empty() {
                teams.entry(account.team.clone()).or_default().usage.push(usage(&account));
            }
        }
        let mut problems: BTreeMap<Arc<str>, Vec<TeamError>> = BTreeMap::new();
        for problem in engine.team_problems() {
            problems.entry(problem.team.clone()).or_default().push(problem);
        }
        let teams = teams.into_iter().map(|(name, mut status)| {
            status.conditions = vec![validity(problems.get(&name).map_or(&[], Vec::as_slice))];
            (("teams", name), json!(status))
        });
        let rooms = engine.headroom().into_iter().map(|room| {
            let message = match room.lacking {
                0 => String::new(),
                lacking => format!("no capacity for {lacking} more"),
            };
            let status = HeadroomStatus {
                kept: u32::try_from(room.nodes.len()).unwrap_or(u32::MAX),
                nodes: room.nodes.iter().map(ToString::to_string).collect(),
                message,
            };
            (("headrooms", room.name), json!(status))
        });
        let now: BTreeMap<Key, Value> = teams.chain(rooms).collect();
        let changed = now.iter().filter(|(key, status)| self.written.get(*key) != Some(status));
        let changed = changed
            .map(|((plural, name), status)| ObjectStatus {
                plural,
                name: name.clone(),
                status: status.clone(),
            })
            .collect();
        self.written = now;
        changed
    }

    /// A write failed.
    pub(crate) fn failed(&mut self, plural: &'static str, name: &Arc<str>) {
        self.written.remove(&(plural, name.clone()));
    }
}

/// The condition `Valid` of a team with these problems. The first gives the reason, all are in the message.
fn validity(problems: &[TeamError]) -> StatusCondition {
    let texts: Vec<String> =
        problems.iter().map(|one| format!("spec.{}: {}", one.field, one.problem)).collect();
    StatusCondition {
        condition_type: "Valid".to_owned(),
        status: if problems.is_empty() { "True" } else { "False" }.to_owned(),
        reason: problems.first().map_or("Valid", |one| one.reason).to_owned(),
        message: texts.join("; "),
    }
}

fn usage(account: &Account) -> Usage {
    let (resource, model) = match &account.dimension {
        Dimension::Gpus => (Resource::Gpus, ""),
        Dimension::GpusOf(model) => (Resource::Gpus, &**model),
        Dimension::GpuMemory => (Resource::GpuMemory, ""),
        Dimension::Cpu => (Resource::Cpu, ""),
        Dimension::Memory => (Resource::Memory, ""),
    };
    let amount = |amount: i64| written(resource, amount);
    let loans = account.borrowed.iter().map(|(lender, lent)| Loan {
        team: match lender {
            Lender::Team(name) | Lender::Group(name) => name.to_string(),
            Lender::Common | Lender::Owed => String::new(),
        },
        amount: amount(*lent),
        owed: *lender == Lender::Owed,
    });
    Usage {
        resource,
        model: model.to_owned(),
        used: amount(account.has),
        guaranteed: amount(account.guaranteed),
        borrowed: amount(account.borrowed_total()),
        lent: amount(account.lent),
        borrowed_from: loans.collect(),
    }
}

/// An amount as a quantity.
fn written(resource: Resource, amount: i64) -> String {
    let milli = |milli: i128| match milli % 1000 {
        0 => (milli / 1000).to_string(),
        _ => format!("{milli}m"),
    };
    match resource {
        Resource::Gpus => milli(i128::from(amount) * 1000 / i128::from(GPU_PARTS)),
        Resource::Cpu => milli(i128::from(amount)),
        Resource::GpuMemory | Resource::Memory => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_says_what_is_wrong_with_a_team() {
        let problem = |reason, field: &str, problem: &str| TeamError {
            team: "t".into(),
            reason,
            field: field.to_owned(),
            problem: problem.to_owned(),
        };
        let valid = validity(&[]);
        assert_eq!((&*valid.status, &*valid.reason, &*valid.message), ("True", "Valid", ""));
        let invalid = validity(&[
            problem("ParentNotFound", "parent", "Team \"x\" does not exist"),
            problem("GuaranteesExceedCapacity", "shares", "too much"),
        ]);
        assert_eq!((&*invalid.status, &*invalid.reason), ("False", "ParentNotFound"));
        let message = "spec.parent: Team \"x\" does not exist; spec.shares: too much";
        assert_eq!(invalid.message, message);
    }

    #[test]
    fn parts_of_gpus_are_written_as_quantities() {
        assert_eq!(written(Resource::Gpus, 2 * GPU_PARTS), "2");
        assert_eq!(written(Resource::Gpus, GPU_PARTS / 8), "125m");
        assert_eq!(written(Resource::Cpu, 1_500), "1500m");
        assert_eq!(written(Resource::Memory, 1 << 30), "1073741824");
    }
}

//! Withholds names of pods and gangs in other namespaces from explanations. A tenant learns how
//! many pods block it, not whose they are.

use super::data::{Cause, Explanation, Group, PodName, Remedy};
use crate::decision::GangName;

impl Explanation {
    pub fn for_namespace(mut self, namespace: &str) -> Self {
        self.withhold(namespace);
        self
    }

    fn withhold(&mut self, namespace: &str) {
        match self {
            Self::AwaitsRoom { leaving, overdue, .. } => {
                withhold_all(leaving, namespace);
                withhold_all(overdue, namespace);
            }
            Self::Waiting { groups, remedies, overdue, .. } => {
                withhold_all(overdue, namespace);
                for remedy in remedies {
                    if let Remedy::Evict { victims, leaving, .. } = remedy {
                        withhold_all(victims, namespace);
                        withhold_all(leaving, namespace);
                    }
                }
                *groups = std::mem::take(groups).into_iter().fold(Vec::new(), |merged, group| {
                    merge(merged, without_names(group, namespace))
                });
            }
            Self::InGang { next: Some(next), .. } => next.withhold(namespace),
            _ => {}
        }
    }
}

fn without_names(mut group: Group, namespace: &str) -> Group {
    match &mut group.cause {
        Cause::Reserved { by } | Cause::Refused { by: Some(by), .. }
            if *by.namespace != *namespace =>
        {
            *by = PodName::default();
        }
        Cause::ReservedForGang { gang, .. } if *gang.namespace != *namespace => {
            *gang = GangName::default();
        }
        _ => {}
    }
    group
}

/// Merges groups that differed by a name only.
fn merge(mut groups: Vec<Group>, group: Group) -> Vec<Group> {
    match groups.iter_mut().find(|known| known.cause == group.cause) {
        Some(known) => known.nodes += group.nodes,
        None => groups.push(group),
    }
    groups
}

/// Withheld ones go last, because lists name the first ones.
fn withhold_all(pods: &mut [PodName], namespace: &str) {
    pods.sort_by_key(|pod| *pod.namespace != *namespace);
    for pod in pods.iter_mut().filter(|pod| *pod.namespace != *namespace) {
        *pod = PodName::default();
    }
}

//! What a reader who may see one namespace is shown of an explanation.
//!
//! Owns which names are withheld: those of pods in other namespaces. A tenant learns how many pods are in
//! the way, and not whose they are.

use super::data::{Cause, Explanation, Group, PodName, Remedy};
use crate::decision::GangName;

impl Explanation {
    /// The same explanation with the names of pods outside of `namespace` withheld.
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
            *gang = GangName { namespace: "".into(), name: "".into() };
        }
        _ => {}
    }
    group
}

/// Groups that differed by a name alone are one.
fn merge(mut groups: Vec<Group>, group: Group) -> Vec<Group> {
    match groups.iter_mut().find(|known| known.cause == group.cause) {
        Some(known) => known.nodes += group.nodes,
        None => groups.push(group),
    }
    groups
}

/// Those that are withheld come last, since lists name the first.
fn withhold_all(pods: &mut [PodName], namespace: &str) {
    pods.sort_by_key(|pod| *pod.namespace != *namespace);
    for pod in pods.iter_mut().filter(|pod| *pod.namespace != *namespace) {
        *pod = PodName::default();
    }
}

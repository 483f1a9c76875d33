//! Allocations as stored in claims: their node selectors and driver configurations.

use std::sync::Arc;

use berth_model::affinity::NodeTerm;
use berth_model::dra::DeviceId;
use berth_model::dra::claim::{AllocatedConfig, AllocatedDevice, Allocation, ConfigSource, Share};
use berth_model::dra::slice::NodeScope;
use berth_model::label::{Operator, Requirement};

use super::requests::PreparedRequest;
use super::{AllocatedCandidate, PendingClaim, Search};

impl Search<'_> {
    pub(super) fn results(&self, claims: &[PendingClaim<'_>]) -> Vec<Allocation> {
        let result = |(claim, pending): (usize, &PendingClaim<'_>)| Allocation {
            devices: self.allocated[claim]
                .iter()
                .map(|allocated| self.device(claim, allocated))
                .collect(),
            configs: self.configs(claim, pending),
            nodes: self.nodes(&self.allocated[claim]).map(|term| vec![term]),
            allocated_at_ms: None,
        };
        claims.iter().enumerate().map(result).collect()
    }

    fn device(&self, claim: usize, allocated: &AllocatedCandidate) -> AllocatedDevice {
        let ask = &self.requests[claim][allocated.request][allocated.alternative];
        let one = &self.candidates[allocated.candidate];
        let slice = &one.slice.slice;
        AllocatedDevice {
            request: ask.full_name(),
            id: DeviceId {
                driver: slice.driver.clone(),
                pool: slice.pool.name.clone(),
                device: one.device.name.clone(),
            },
            admin_access: ask.ask.admin_access,
            share: match &allocated.shared {
                Some(consumed) => Share::Part { share_id: None, consumed: consumed.clone() },
                None => Share::Whole,
            },
            tolerations: ask.ask.tolerations.clone(),
            binding_conditions: one.device.binding_conditions.clone(),
            binding_failure_conditions: one.device.binding_failure_conditions.clone(),
        }
    }

    /// The nodes from which all devices can be used; `None`: all nodes.
    fn nodes(&self, allocated: &[AllocatedCandidate]) -> Option<NodeTerm> {
        let mut term = NodeTerm::default();
        for allocated in allocated {
            let one = &self.candidates[allocated.candidate];
            let scope = match &one.slice.slice.scope {
                NodeScope::PerDevice => &one.device.scope,
                scope => scope,
            };
            if one.device.binds_to_node || matches!(scope, NodeScope::Node(_)) {
                let name = vec![Operator::In(vec![self.node.name.clone()])];
                return Some(NodeTerm { labels: Vec::new(), name });
            }
            let NodeScope::Nodes(terms) = scope else { continue };
            // The API server accepts one term only.
            for other in terms.iter().take(1) {
                for operator in &other.name {
                    if !term.name.iter().any(|one| says_the_same(one, operator)) {
                        term.name.push(operator.clone());
                    }
                }
                for requirement in &other.labels {
                    let same = |one: &Requirement| {
                        one.key == requirement.key
                            && says_the_same(&one.operator, &requirement.operator)
                    };
                    if !term.labels.iter().any(same) {
                        term.labels.push(requirement.clone());
                    }
                }
            }
        }
        (term != NodeTerm::default()).then_some(term)
    }

    fn chosen_ask(&self, claim: usize, request: usize) -> Option<&PreparedRequest<'_>> {
        let chosen = *self.chosen.get(claim)?.get(request)?;
        self.requests.get(claim)?.get(request)?.get(chosen)
    }

    /// First the configurations of classes, each once, then those of the claim.
    fn configs(&self, claim: usize, pending: &PendingClaim<'_>) -> Vec<AllocatedConfig> {
        let mut configs: Vec<AllocatedConfig> = Vec::new();
        let mut classes: Vec<(&Arc<str>, std::ops::Range<usize>)> = Vec::new();
        for request in 0..pending.spec.requests.len() {
            let Some(ask) = self.chosen_ask(claim, request) else { continue };
            let class = &ask.class.class;
            if let Some((_, range)) = classes.iter().find(|(name, _)| **name == class.name) {
                for config in configs.iter_mut().take(range.end).skip(range.start) {
                    config.requests.push(ask.full_name());
                }
                continue;
            }
            let start = configs.len();
            configs.extend(class.configs.iter().map(|config| AllocatedConfig {
                source: ConfigSource::Class,
                requests: vec![ask.full_name()],
                config: config.clone(),
            }));
            classes.push((&class.name, start..configs.len()));
        }
        for configured in &pending.spec.configs {
            let named = |request: usize| {
                let Some(ask) = self.chosen_ask(claim, request) else { return false };
                configured.requests.contains(&ask.request)
                    || ask.alternative.is_some() && configured.requests.contains(&ask.full_name())
            };
            let times = if configured.requests.is_empty() {
                1
            } else {
                (0..pending.spec.requests.len()).filter(|request| named(*request)).count()
            };
            let config = AllocatedConfig {
                source: ConfigSource::Claim,
                requests: configured.requests.clone(),
                config: configured.config.clone(),
            };
            configs.extend(std::iter::repeat_n(config, times));
        }
        configs
    }
}

/// Whether two conditions have the same values, in any order.
fn says_the_same(one: &Operator, two: &Operator) -> bool {
    let same = |one: &[Arc<str>], two: &[Arc<str>]| {
        one.iter().all(|value| two.contains(value)) && two.iter().all(|value| one.contains(value))
    };
    match (one, two) {
        (Operator::In(one), Operator::In(two)) | (Operator::NotIn(one), Operator::NotIn(two)) => {
            same(one, two)
        }
        (one, two) => one == two,
    }
}

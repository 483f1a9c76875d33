//! A published slice, with cached results of selectors: each selector is evaluated once per device.

use std::sync::{Arc, PoisonError, RwLock};

use berth_model::affinity::NodeTerm;
use berth_model::dra::slice::{NodeScope, ResourceSlice};
use berth_model::label::Operator;
use berth_model::node::Node;
use thiserror::Error;

use crate::Lookup;
use crate::selectors::{Selector, SelectorError};

/// A node selector that kube-scheduler refuses to evaluate; ends the attempt to place the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a node selector has a value that no label can have")]
pub(crate) struct InvalidNodeSelector;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("slice {slice}: {cause}")]
pub(crate) struct SliceError {
    slice: Arc<str>,
    cause: InvalidNodeSelector,
}

#[derive(Debug)]
pub(crate) struct PublishedSlice {
    pub(crate) slice: ResourceSlice,
    /// By selector, a result for each device.
    answers: RwLock<Lookup<u64, Box<[Answer]>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Unknown,
    No,
    Yes,
}

impl PublishedSlice {
    pub(crate) fn new(slice: ResourceSlice) -> Self {
        Self { slice, answers: RwLock::default() }
    }

    /// Whether `selector` matches the device at `at`.
    pub(crate) fn matches(&self, selector: &Selector, at: usize) -> Result<bool, SelectorError> {
        let known = self.answers.read().unwrap_or_else(PoisonError::into_inner);
        let answer = known.get(&selector.number).and_then(|answers| answers.get(at)).copied();
        drop(known);
        match answer {
            Some(Answer::Yes) => return Ok(true),
            Some(Answer::No) => return Ok(false),
            Some(Answer::Unknown) | None => {}
        }
        let program = selector.program.as_ref().map_err(Clone::clone)?;
        let Some(device) = self.slice.devices.get(at) else { return Ok(false) };
        // Failures are not cached: a failure ends the attempt, and its message is needed.
        let matches = program.matches(&self.slice.driver, device)?;
        let mut known = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        let answers = known
            .entry(selector.number)
            .or_insert_with(|| vec![Answer::Unknown; self.slice.devices.len()].into());
        if let Some(answer) = answers.get_mut(at) {
            *answer = if matches { Answer::Yes } else { Answer::No };
        }
        Ok(matches)
    }

    /// Drops the results of selectors for which `keep` is false.
    pub(crate) fn forget(&self, keep: impl Fn(u64) -> bool) {
        let mut known = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|number, _| keep(*number));
    }

    /// A slice has either shared counters or devices.
    pub(crate) fn has_counters(&self) -> bool {
        !self.slice.shared_counters.is_empty()
    }

    /// Whether the slice matters for `node`.
    pub(crate) fn concerns(&self, node: &Node) -> Result<bool, SliceError> {
        if self.has_counters() {
            return Ok(true);
        }
        let error = |cause| SliceError { slice: self.slice.name.clone(), cause };
        if self.slice.scope != NodeScope::PerDevice {
            return is_in_scope(&self.slice.scope, node).map_err(error);
        }
        for device in &self.slice.devices {
            if is_in_scope(&device.scope, node).map_err(error)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether devices of this scope can be used from `node`.
pub(crate) fn is_in_scope(scope: &NodeScope, node: &Node) -> Result<bool, InvalidNodeSelector> {
    match scope {
        NodeScope::Node(name) => Ok(*name == node.name),
        NodeScope::AllNodes => Ok(true),
        NodeScope::Nodes(terms) => any_matches(terms, node),
        NodeScope::PerDevice | NodeScope::Nowhere => Ok(false),
    }
}

pub(crate) fn any_matches(terms: &[NodeTerm], node: &Node) -> Result<bool, InvalidNodeSelector> {
    let operators = terms.iter().flat_map(|term| {
        term.labels.iter().map(|requirement| &requirement.operator).chain(&term.name)
    });
    for operator in operators {
        if *operator == Operator::Never {
            return Err(InvalidNodeSelector);
        }
    }
    Ok(terms.iter().any(|term| term.matches(node)))
}

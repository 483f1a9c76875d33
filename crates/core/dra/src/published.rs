//! A slice as it was published, with what selectors said about its devices.
//!
//! Owns the answers: each selector is evaluated once for each device. Must not know other slices.

use std::sync::{PoisonError, RwLock};

use berth_model::affinity::NodeTerm;
use berth_model::dra::slice::{Reach, ResourceSlice};
use berth_model::label::Operator;
use berth_model::node::Node;

use crate::Lookup;
use crate::selectors::Selector;
use berth_cel::Failure;

/// A slice.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) slice: ResourceSlice,
    /// By selector, an answer for each device.
    answers: RwLock<Lookup<u64, Box<[Answer]>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Unknown,
    No,
    Yes,
}

impl Published {
    pub(crate) fn new(slice: ResourceSlice) -> Self {
        Self { slice, answers: RwLock::default() }
    }

    /// Whether `selector` holds for the device at `at`.
    pub(crate) fn matches(&self, selector: &Selector, at: usize) -> Result<bool, String> {
        let known = self.answers.read().unwrap_or_else(PoisonError::into_inner);
        let answer = known.get(&selector.number).and_then(|answers| answers.get(at)).copied();
        drop(known);
        match answer {
            Some(Answer::Yes) => return Ok(true),
            Some(Answer::No) => return Ok(false),
            Some(Answer::Unknown) | None => {}
        }
        let program = selector.program.as_ref().map_err(ToString::to_string)?;
        let Some(device) = self.slice.devices.get(at) else { return Ok(false) };
        // What fails is asked again: it ends the attempt, and its text is wanted.
        let matches = program
            .matches(&self.slice.driver, device)
            .map_err(|failure: Failure| failure.to_string())?;
        let mut known = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        let answers = known
            .entry(selector.number)
            .or_insert_with(|| vec![Answer::Unknown; self.slice.devices.len()].into());
        if let Some(answer) = answers.get_mut(at) {
            *answer = if matches { Answer::Yes } else { Answer::No };
        }
        Ok(matches)
    }

    /// Forgets answers about selectors for which `keep` does not hold.
    pub(crate) fn forget(&self, keep: impl Fn(u64) -> bool) {
        let mut known = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|number, _| keep(*number));
    }

    /// Whether it says what the devices of its pool share, rather than what devices there are.
    pub(crate) fn has_counters(&self) -> bool {
        !self.slice.shared_counters.is_empty()
    }

    /// Whether it matters for `node`.
    pub(crate) fn concerns(&self, node: &Node) -> Result<bool, String> {
        if self.has_counters() {
            return Ok(true);
        }
        let problem = |problem: String| format!("slice {}: {problem}", self.slice.name);
        if self.slice.reach != Reach::PerDevice {
            return reaches(&self.slice.reach, node).map_err(problem);
        }
        for device in &self.slice.devices {
            if reaches(&device.reach, node).map_err(problem)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether what reaches so far can be used from `node`.
///
/// # Errors
///
/// When a node selector cannot be understood, which ends the attempt.
pub(crate) fn reaches(reach: &Reach, node: &Node) -> Result<bool, String> {
    match reach {
        Reach::Node(name) => Ok(*name == node.name),
        Reach::AllNodes => Ok(true),
        Reach::Nodes(terms) => any_matches(terms, node),
        Reach::PerDevice | Reach::Nowhere => Ok(false),
    }
}

/// Whether one of the terms matches `node`.
pub(crate) fn any_matches(terms: &[NodeTerm], node: &Node) -> Result<bool, String> {
    let operators = terms.iter().flat_map(|term| {
        term.labels.iter().map(|requirement| &requirement.operator).chain(&term.name)
    });
    for operator in operators {
        if *operator == Operator::Never {
            return Err("a node selector has a value that no label can have".to_owned());
        }
    }
    Ok(terms.iter().any(|term| term.matches(node)))
}

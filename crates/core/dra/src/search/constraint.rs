//! Constraints of a claim in the current attempt, as kube-scheduler tracks them.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::dra::claim::{Constraint, ConstraintRule};
use berth_model::dra::slice::{Attribute, Device};

use super::{Search, Undo};

/// A constraint in the current attempt.
pub(super) struct Rule<'a> {
    requests: &'a [Arc<str>],
    attribute: &'a Arc<str>,
    seen: SeenValues<'a>,
    /// How many devices it covers so far.
    devices: usize,
}

/// Values so far.
enum SeenValues<'a> {
    /// The value that all must have.
    Match(Option<&'a Attribute>),
    /// Values by request, which others must not have. kube-scheduler remembers one value for each
    /// request: two devices of one request need only differ from the last one, and removing one
    /// removes the value of the request.
    Distinct(BTreeMap<Arc<str>, &'a Attribute>),
}

impl<'a> Rule<'a> {
    /// `None` if the constraint has a form that Berth does not know.
    pub(super) fn of(constraint: &'a Constraint) -> Option<Self> {
        let (attribute, seen) = match &constraint.rule {
            ConstraintRule::Match(attribute) => (attribute, SeenValues::Match(None)),
            ConstraintRule::Distinct(attribute) => {
                (attribute, SeenValues::Distinct(BTreeMap::new()))
            }
            ConstraintRule::Unknown => return None,
        };
        Some(Self { requests: &constraint.requests, attribute, seen, devices: 0 })
    }

    fn is_about(&self, request: &str, alternative: Option<&Arc<str>>) -> bool {
        let names = |one: &Arc<str>| {
            one.as_ref() == request
                || alternative.is_some_and(|alternative| {
                    one.split_once('/') == Some((request, alternative.as_ref()))
                })
        };
        self.requests.is_empty() || self.requests.iter().any(names)
    }

    fn add(&mut self, request: &Arc<str>, value: Option<&'a Attribute>) -> bool {
        let Some(value) = value else { return false };
        let first = self.devices == 0;
        match &mut self.seen {
            SeenValues::Match(all) if first => *all = Some(value),
            SeenValues::Match(all) => {
                if *value == Attribute::Unsupported || *all != Some(value) {
                    return false;
                }
            }
            SeenValues::Distinct(others) => {
                let clashes =
                    |other: &&Attribute| *value == Attribute::Unsupported || **other == *value;
                if !first && others.values().any(clashes) {
                    return false;
                }
                others.insert(request.clone(), value);
            }
        }
        self.devices += 1;
        true
    }

    fn remove(&mut self, request: &str) {
        if let SeenValues::Distinct(others) = &mut self.seen {
            others.remove(request);
        }
        self.devices = self.devices.saturating_sub(1);
    }
}

/// The value of an attribute with its domain. The driver's own domain may be left out.
pub(super) fn attribute<'a>(device: &'a Device, driver: &str, name: &str) -> Option<&'a Attribute> {
    device.attributes.get(name).or_else(|| {
        let (domain, id) = name.split_once('/')?;
        (domain == driver).then(|| device.attributes.get(id)).flatten()
    })
}

impl Search<'_> {
    /// Adds a device to all constraints of its claim. Returns whether all hold.
    pub(super) fn add_to_constraints(&mut self, undo: &mut Undo) -> bool {
        let one = &self.candidates[undo.candidate];
        let ask = &self.requests[undo.claim][undo.request][undo.alternative];
        for rule in &mut self.rules[undo.claim] {
            if rule.is_about(&ask.request, ask.alternative.as_ref()) {
                let value = attribute(one.device, &one.slice.slice.driver, rule.attribute);
                if !rule.add(&ask.request, value) {
                    return false;
                }
            }
            undo.rules_added += 1;
        }
        true
    }

    /// Removes a device from the first `count` constraints.
    pub(super) fn remove_from_constraints(
        &mut self,
        claim: usize,
        request: usize,
        alternative: usize,
        added: usize,
    ) {
        let ask = &self.requests[claim][request][alternative];
        for rule in self.rules[claim].iter_mut().take(added) {
            if rule.is_about(&ask.request, ask.alternative.as_ref()) {
                rule.remove(&ask.request);
            }
        }
    }
}

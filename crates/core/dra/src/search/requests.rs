//! The requests of a search: candidates per request, and what "all" devices are.

use std::sync::Arc;

use berth_model::dra::RESULTS_MAX;
use berth_model::dra::claim::{Count, DeviceRequest, RequestKind};
use berth_model::dra::slice::NodeScope;

use super::capacity::Consumption;
use super::constraint::Rule;
use super::{PendingClaim, Search, SearchPosition};
use crate::Lookup;
use crate::inventory::Class;
use crate::pools::PoolState;
use crate::published::is_in_scope;
use crate::selectors::Selector;
use crate::verdict::RejectionReason;

/// An exact request, or one alternative.
pub(super) struct PreparedRequest<'a> {
    pub(super) name: Arc<str>,
    /// Its name if it is an alternative.
    pub(super) alternative: Option<Arc<str>>,
    pub(super) request: Arc<str>,
    pub(super) ask: &'a DeviceRequest,
    pub(super) class: &'a Class,
    selectors: &'a [Arc<Selector>],
    pub(super) count: usize,
    /// The devices, if all are requested.
    pub(super) all: Vec<usize>,
    /// By candidate; `None`: not evaluated yet.
    selected: Vec<Option<bool>>,
    /// By candidate with capacities: what would be consumed, once known.
    pub(super) consumptions: Lookup<usize, Consumption>,
}

impl PreparedRequest<'_> {
    /// As in allocation results.
    pub(super) fn full_name(&self) -> Arc<str> {
        match &self.alternative {
            Some(alternative) => format!("{}/{alternative}", self.request).into(),
            None => self.request.clone(),
        }
    }
}

impl<'a> Search<'a> {
    /// Validates the claims and prepares their requests.
    pub(super) fn read<'w: 'a>(
        &mut self,
        claims: &[PendingClaim<'w>],
    ) -> Result<(), RejectionReason> {
        for (claim, pending) in claims.iter().enumerate() {
            self.requests.push(Vec::new());
            self.chosen.push(vec![0; pending.spec.requests.len()]);
            let mut least = 0_usize;
            for request in 0..pending.spec.requests.len() {
                let counts = self.read_request(claims, claim, request)?;
                least = least.saturating_add(counts);
            }
            if least > RESULTS_MAX {
                return Err(RejectionReason::Failed(format!(
                    "claim {}: number of requested devices {least} exceeds the claim limit of \
                     {RESULTS_MAX}",
                    pending.name
                )));
            }
            let mut rules = Vec::new();
            for (at, constraint) in pending.spec.constraints.iter().enumerate() {
                let problem = || {
                    let name = &pending.name;
                    RejectionReason::Failed(format!(
                        "claim {name}, constraint #{at}: empty constraint"
                    ))
                };
                rules.push(Rule::of(constraint).ok_or_else(problem)?);
            }
            self.rules.push(rules);
        }
        Ok(())
    }

    /// Prepares one request; returns the minimum of devices it needs.
    fn read_request<'w: 'a>(
        &mut self,
        claims: &[PendingClaim<'w>],
        claim: usize,
        request: usize,
    ) -> Result<usize, RejectionReason> {
        let pending = &claims[claim];
        let (spec, selectors): (&'w _, &'w [_]) = (pending.spec, pending.selectors);
        let asked = &spec.requests[request];
        let alternatives: Vec<(Option<&Arc<str>>, &'w DeviceRequest)> = match &asked.kind {
            RequestKind::Exactly(ask) => vec![(None, ask)],
            RequestKind::FirstOf(list) => {
                list.iter().map(|(name, ask)| (Some(name), ask)).collect()
            }
            RequestKind::Unknown => {
                let (claim, request) = (&pending.name, &asked.name);
                return Err(RejectionReason::Failed(format!(
                    "claim {claim}, request {request}: unknown request type"
                )));
            }
        };
        self.requests[claim].push(Vec::new());
        let mut least = usize::MAX;
        for (at, (alternative, ask)) in alternatives.into_iter().enumerate() {
            let compiled = selectors.get(request).and_then(|list| list.get(at));
            let name = alternative.unwrap_or(&asked.name).clone();
            let problem = |what: String| {
                RejectionReason::Failed(format!("claim {}, request {name}: {what}", pending.name))
            };
            let Some(class) = Self::class(self.inventory, &ask.class) else {
                return Err(problem(format!("could not retrieve device class {}", ask.class)));
            };
            let count = match &ask.count {
                Count::Exactly(count) => usize::try_from(*count).unwrap_or(0),
                Count::All => 0,
                Count::Unknown(mode) => {
                    return Err(problem(format!("unsupported count mode {mode}")));
                }
            };
            self.requests[claim][request].push(PreparedRequest {
                alternative: alternative.cloned(),
                name: name.clone(),
                request: asked.name.clone(),
                ask,
                class,
                selectors: compiled.map_or(&[], Vec::as_slice),
                count,
                all: Vec::new(),
                selected: vec![None; self.candidates.len()],
                consumptions: Lookup::default(),
            });
            let spot = SearchPosition {
                request,
                alternative: at,
                settled: true,
                ..SearchPosition::claim(claim)
            };
            if ask.count == Count::All {
                let all = self.all_devices(spot, claims, &problem)?;
                let ask = &mut self.requests[claim][request][at];
                ask.count = all.len();
                ask.all = all;
            }
            least = least.min(self.requests[claim][request][at].count);
        }
        Ok(least)
    }

    /// The devices of a request for all. Fails while a pool is incomplete or invalid.
    fn all_devices(
        &mut self,
        spot: SearchPosition,
        claims: &[PendingClaim<'_>],
        problem: &dyn Fn(String) -> RejectionReason,
    ) -> Result<Vec<usize>, RejectionReason> {
        let mut all = Vec::new();
        let mut candidate = 0;
        for at in 0..self.pools.len() {
            let pool = &self.pools[at];
            let state = match pool.state {
                PoolState::Usable => "",
                PoolState::Incomplete => "being updated",
                PoolState::Invalid => "invalid",
            };
            if !state.is_empty() {
                return Err(problem(format!(
                    "asks for all devices, but resource pool {}/{} is currently {state}",
                    pool.key.driver, pool.key.pool
                )));
            }
            while self.candidates.get(candidate).is_some_and(|one| one.pool == at) {
                self.step()?;
                if self.is_selected(spot, candidate, claims)? && self.has_room(spot, candidate) {
                    all.push(candidate);
                }
                candidate += 1;
            }
        }
        Ok(all)
    }

    /// Whether the selectors of the class and the request match, and the device can be used from
    /// the node.
    pub(super) fn is_selected(
        &mut self,
        spot: SearchPosition,
        candidate: usize,
        claims: &[PendingClaim<'_>],
    ) -> Result<bool, RejectionReason> {
        let ask = &self.requests[spot.claim][spot.request][spot.alternative];
        if let Some(known) = ask.selected[candidate] {
            return Ok(known);
        }
        let one = &self.candidates[candidate];
        let selected = (|| {
            for (at, selector) in ask.class.selectors.iter().enumerate() {
                let matches = one.slice.matches(selector, one.position).map_err(|error| {
                    RejectionReason::Failed(format!(
                        "class {}: selector #{at}: {error}",
                        ask.class.class.name
                    ))
                })?;
                if !matches {
                    return Ok(false);
                }
            }
            for (at, selector) in ask.selectors.iter().enumerate() {
                let matches = one.slice.matches(selector, one.position).map_err(|error| {
                    RejectionReason::Failed(format!(
                        "claim {}: selector #{at}: {error}",
                        claims[spot.claim].name
                    ))
                })?;
                if !matches {
                    return Ok(false);
                }
            }
            match one.slice.slice.scope {
                NodeScope::PerDevice => is_in_scope(&one.device.scope, self.node)
                    .map_err(|error| RejectionReason::Failed(error.to_string())),
                _ => Ok(true),
            }
        })()?;
        self.requests[spot.claim][spot.request][spot.alternative].selected[candidate] =
            Some(selected);
        Ok(selected)
    }
}

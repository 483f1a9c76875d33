//! The search for devices: first fit with backtracking.
//!
//! The order decides what is allocated: claims, requests and alternatives in their order, pools by
//! name, slices by name, devices as listed. kube-scheduler recurses; here the path is a list, so
//! that no input can exhaust the stack.

mod capacity;
mod constraint;
mod requests;
mod result;

use std::sync::Arc;

use berth_model::dra::claim::{Allocation, ClaimSpec, Count};
use berth_model::dra::slice::Device;
use berth_model::dra::{Amounts, RESULTS_MAX};
use berth_model::node::Node;
use berth_model::quantity::Quantity;

use crate::in_use::{Hold, PoolHolds};
use crate::inventory::{Class, Inventory};
use crate::numa::{self, NumaNodes};
use crate::plugin::Options;
use crate::pools::{PoolState, PoolView};
use crate::preference::{PoolDevice, Preference};
use crate::published::PublishedSlice;
use crate::selectors::Selector;
use crate::verdict::RejectionReason;

use constraint::Rule;
use requests::PreparedRequest;

/// A claim to allocate.
pub(crate) struct PendingClaim<'a> {
    /// `namespace/name`, for messages.
    pub(crate) name: String,
    pub(crate) spec: &'a ClaimSpec,
    /// The compiled selectors of each request and each of its alternatives.
    pub(crate) selectors: &'a [Vec<Vec<Arc<Selector>>>],
}

/// Allocates `claims` on `node`: one allocation for each.
pub(crate) fn allocate(
    inventory: &Inventory,
    node: &Node,
    claims: &[PendingClaim<'_>],
    options: &Options<'_>,
) -> Result<Vec<Allocation>, RejectionReason> {
    let pools =
        inventory.pools.gather(node).map_err(|error| RejectionReason::Failed(error.to_string()))?;
    let mut candidates = Vec::new();
    for (at, pool) in pools.iter().enumerate() {
        let holds = inventory.in_use.of(&pool.key);
        candidates.extend(candidates_of(pool, at, holds));
    }
    if let Some(preference) = options.preference {
        candidates = prefer(candidates, &pools, preference);
    }
    let states = candidates.iter().map(|_| AttemptState::default()).collect();
    let mut search = Search {
        inventory,
        node,
        pools: &pools,
        candidates: &candidates,
        states,
        counters: pools.iter().map(|_| None).collect(),
        requests: Vec::new(),
        rules: Vec::new(),
        allocated: claims.iter().map(|_| Vec::new()).collect(),
        chosen: Vec::new(),
        numa: options.numa.as_ref(),
        steps_left: options.steps_max,
    };
    search.read(claims)?;
    match search.run(claims) {
        Outcome::Done => Ok(search.results(claims)),
        Outcome::Failed(reason) => Err(reason),
        // Only the search itself tells this from other failures.
        Outcome::TooMany => Err(RejectionReason::Failed("allocation max size exceeded".to_owned())),
        Outcome::No if pools.iter().any(|pool| pool.state == PoolState::Invalid) => {
            Err(RejectionReason::InvalidPools)
        }
        Outcome::No => Err(RejectionReason::NotEnough),
    }
}

/// Sorts candidates by preference. Devices with binding conditions stay last.
fn prefer<'a>(
    candidates: Vec<Candidate<'a>>,
    pools: &[Arc<PoolView>],
    preference: &dyn Preference,
) -> Vec<Candidate<'a>> {
    let offers = candidates.iter().map(|one| PoolDevice {
        driver: &pools[one.pool].key.driver,
        pool: &pools[one.pool].key.pool,
        device: one.device,
        held: one.hold.is_some(),
    });
    let ranks = preference.ranks(&offers.collect::<Vec<_>>());
    let ranks = ranks.into_iter().chain(std::iter::repeat(u64::MAX));
    let mut ranked: Vec<(u64, Candidate<'a>)> = ranks.zip(candidates).collect();
    ranked.sort_by_key(|(rank, one)| (pools[one.pool].has_binding_conditions(), *rank));
    ranked.into_iter().map(|(_, one)| one).collect()
}

fn candidates_of<'a>(
    pool: &'a PoolView,
    at: usize,
    holds: Option<&'a PoolHolds>,
) -> impl Iterator<Item = Candidate<'a>> {
    pool.here.iter().flat_map(move |slice| {
        slice.slice.devices.iter().enumerate().map(move |(position, device)| Candidate {
            pool: at,
            slice,
            position,
            device,
            hold: holds.and_then(|holds| holds.get(&device.name)),
        })
    })
}

struct Candidate<'a> {
    pool: usize,
    slice: &'a Arc<PublishedSlice>,
    position: usize,
    device: &'a Device,
    hold: Option<&'a Hold>,
}

/// A device's state in the current attempt.
#[derive(Default)]
struct AttemptState {
    /// The claims that have it.
    claims: smallvec::SmallVec<[usize; 2]>,
    /// Allocated parts; `Some` as soon as one part is allocated.
    shared: Option<Amounts>,
}

/// The counters of a pool in the current attempt.
struct Counters {
    available: Vec<Quantity>,
    consumed: Vec<Quantity>,
}

/// The position of the search.
#[derive(Clone, Copy)]
struct SearchPosition {
    claim: usize,
    request: usize,
    alternative: usize,
    /// Whether the alternative has been chosen.
    settled: bool,
    /// How many devices the request has got.
    device: usize,
    /// The first candidate to try.
    from: usize,
}

impl SearchPosition {
    const fn claim(claim: usize) -> Self {
        Self { claim, request: 0, alternative: 0, settled: false, device: 0, from: 0 }
    }

    const fn next_request(self) -> Self {
        Self { request: self.request + 1, ..Self::claim(self.claim) }
    }

    const fn next_device(self, from: usize) -> Self {
        Self { device: self.device + 1, from, ..self }
    }
}

/// A choice that may have to be revised.
enum Choice {
    /// The next claim was begun.
    Claim,
    /// An alternative is tried. `all_too_many`: all earlier ones needed too many devices.
    Alternative { spot: SearchPosition, all_too_many: bool },
    /// A device was allocated because all are requested.
    OneOfAll { undo: Undo },
    /// A device was allocated; if that fails, the search continues after it.
    Device { spot: SearchPosition, undo: Undo },
}

/// How to undo the allocation of a device.
struct Undo {
    claim: usize,
    request: usize,
    alternative: usize,
    candidate: usize,
    counted: bool,
    rules_added: usize,
    marked: bool,
    /// The amounts added to the allocated parts, and whether there were parts before.
    shared: Option<(Amounts, bool)>,
    recorded: bool,
}

/// Outcome of a part of the search.
enum Outcome {
    Done,
    No,
    /// A claim would get more devices than the limit.
    TooMany,
    Failed(RejectionReason),
}

/// A device allocated in the current attempt.
struct AllocatedCandidate {
    request: usize,
    alternative: usize,
    candidate: usize,
    /// The consumed amounts, if it is shared.
    shared: Option<Amounts>,
}

struct Search<'a> {
    inventory: &'a Inventory,
    node: &'a Node,
    pools: &'a [Arc<PoolView>],
    candidates: &'a [Candidate<'a>],
    states: Vec<AttemptState>,
    /// By pool, filled on demand.
    counters: Vec<Option<Counters>>,
    /// By claim, request and alternative.
    requests: Vec<Vec<Vec<PreparedRequest<'a>>>>,
    /// By claim.
    rules: Vec<Vec<Rule<'a>>>,
    /// By claim.
    allocated: Vec<Vec<AllocatedCandidate>>,
    /// By claim and request: the chosen alternative.
    chosen: Vec<Vec<usize>>,
    numa: Option<&'a NumaNodes>,
    steps_left: u64,
}

enum Next {
    Enter(SearchPosition),
    Leave(Outcome),
}

impl<'a> Search<'a> {
    fn run(&mut self, claims: &[PendingClaim<'_>]) -> Outcome {
        let mut choices: Vec<Choice> = Vec::new();
        let mut next = Next::Enter(SearchPosition::claim(0));
        loop {
            next = match next {
                Next::Enter(spot) => self.enter(spot, claims, &mut choices),
                Next::Leave(outcome) => match choices.pop() {
                    Some(choice) => self.revise(choice, outcome, claims, &mut choices),
                    None => return outcome,
                },
            };
        }
    }

    fn step(&mut self) -> Result<(), RejectionReason> {
        match self.steps_left.checked_sub(1) {
            Some(left) => {
                self.steps_left = left;
                Ok(())
            }
            None => Err(RejectionReason::TooLong),
        }
    }

    fn enter(
        &mut self,
        spot: SearchPosition,
        claims: &[PendingClaim<'_>],
        choices: &mut Vec<Choice>,
    ) -> Next {
        if let Err(reason) = self.step() {
            return Next::Leave(Outcome::Failed(reason));
        }
        let Some(requests) = self.requests.get(spot.claim) else {
            return Next::Leave(Outcome::Done);
        };
        let Some(alternatives) = requests.get(spot.request) else {
            choices.push(Choice::Claim);
            return Next::Enter(SearchPosition::claim(spot.claim + 1));
        };
        let Some(ask) = alternatives.get(spot.alternative) else {
            return Next::Leave(Outcome::No);
        };
        if !spot.settled && ask.alternative.is_some() {
            choices.push(Choice::Alternative { spot, all_too_many: true });
            return Next::Enter(SearchPosition { settled: true, ..spot });
        }
        let of_all = ask.ask.count == Count::All;
        if of_all && ask.all.is_empty() {
            return Next::Leave(Outcome::No);
        }
        if spot.device >= ask.count {
            return Next::Enter(spot.next_request());
        }
        if self.allocated[spot.claim].len() + (ask.count - spot.device) > RESULTS_MAX {
            return Next::Leave(Outcome::TooMany);
        }
        if !of_all {
            return self.try_from(spot, claims, choices);
        }
        let candidate = ask.all[spot.device];
        match self.allocate(spot, candidate, claims, true) {
            Err(reason) => Next::Leave(Outcome::Failed(reason)),
            Ok(None) => Next::Leave(Outcome::No),
            Ok(Some(undo)) => {
                choices.push(Choice::OneOfAll { undo });
                Next::Enter(spot.next_device(0))
            }
        }
    }

    /// Allocates the next suitable device, from `spot.from` on.
    fn try_from(
        &mut self,
        spot: SearchPosition,
        claims: &[PendingClaim<'_>],
        choices: &mut Vec<Choice>,
    ) -> Next {
        for candidate in spot.from..self.candidates.len() {
            let allocated = self.step().and_then(|()| {
                if !self.is_suitable(spot, candidate, claims)? {
                    return Ok(None);
                }
                self.allocate(spot, candidate, claims, false)
            });
            match allocated {
                Err(reason) => return Next::Leave(Outcome::Failed(reason)),
                Ok(None) => {}
                Ok(Some(undo)) => {
                    let after = candidate + 1;
                    choices.push(Choice::Device {
                        spot: SearchPosition { from: after, ..spot },
                        undo,
                    });
                    return Next::Enter(spot.next_device(after));
                }
            }
        }
        Next::Leave(Outcome::No)
    }

    fn revise(
        &mut self,
        choice: Choice,
        outcome: Outcome,
        claims: &[PendingClaim<'_>],
        choices: &mut Vec<Choice>,
    ) -> Next {
        match choice {
            // Another alternative in an earlier claim may leave devices for one that needs fewer.
            Choice::Claim => Next::Leave(match outcome {
                Outcome::TooMany => Outcome::No,
                other => other,
            }),
            Choice::Alternative { mut spot, mut all_too_many } => {
                match outcome {
                    Outcome::Done => {
                        self.chosen[spot.claim][spot.request] = spot.alternative;
                        return Next::Leave(Outcome::Done);
                    }
                    Outcome::Failed(reason) => return Next::Leave(Outcome::Failed(reason)),
                    Outcome::TooMany => {}
                    Outcome::No => all_too_many = false,
                }
                spot.alternative += 1;
                if spot.alternative >= self.requests[spot.claim][spot.request].len() {
                    let outcome = if all_too_many { Outcome::TooMany } else { Outcome::No };
                    return Next::Leave(outcome);
                }
                choices.push(Choice::Alternative { spot, all_too_many });
                Next::Enter(SearchPosition { settled: true, ..spot })
            }
            Choice::OneOfAll { undo } => {
                if !matches!(outcome, Outcome::Done) {
                    self.undo(undo);
                }
                Next::Leave(outcome)
            }
            Choice::Device { spot, undo } => match outcome {
                Outcome::Done => Next::Leave(Outcome::Done),
                Outcome::No => {
                    self.undo(undo);
                    self.try_from(spot, claims, choices)
                }
                other => {
                    self.undo(undo);
                    Next::Leave(other)
                }
            },
        }
    }

    fn in_use(&self, candidate: usize) -> bool {
        self.candidates[candidate].hold.is_some_and(Hold::is_whole)
            || !self.states[candidate].claims.is_empty()
    }

    /// Whether a device is free for the request, selected by it, and has enough left.
    fn is_suitable(
        &mut self,
        spot: SearchPosition,
        candidate: usize,
        claims: &[PendingClaim<'_>],
    ) -> Result<bool, RejectionReason> {
        let admin = self.requests[spot.claim][spot.request][spot.alternative].ask.admin_access;
        if admin && self.states[candidate].claims.contains(&spot.claim)
            || !admin && self.in_use(candidate)
        {
            return Ok(false);
        }
        Ok(self.is_selected(spot, candidate, claims)? && self.has_room(spot, candidate))
    }

    /// Allocates a suitable device to the claim, if constraints and counters allow.
    fn allocate(
        &mut self,
        spot: SearchPosition,
        candidate: usize,
        claims: &[PendingClaim<'_>],
        must: bool,
    ) -> Result<Option<Undo>, RejectionReason> {
        let one = &self.candidates[candidate];
        let ask = &self.requests[spot.claim][spot.request][spot.alternative];
        let (admin, shareable) = (ask.ask.admin_access, one.device.shareable);
        let ours = self.states[candidate].claims.contains(&spot.claim);
        if !shareable && admin && ours || !admin && self.in_use(candidate) {
            return Ok(None);
        }
        if self.numa.is_some_and(|allowed| !numa::allows(allowed, &one.slice.slice, one.device)) {
            return Ok(None);
        }
        let tolerated = |taint| ask.ask.tolerations.iter().any(|one| one.tolerates(taint));
        if !one.device.taints.iter().all(tolerated) {
            return Ok(None);
        }
        let mut undo = Undo {
            claim: spot.claim,
            request: spot.request,
            alternative: spot.alternative,
            candidate,
            counted: false,
            rules_added: 0,
            marked: false,
            shared: None,
            recorded: false,
        };
        // The parts of a shared device consume its counters once.
        let shared_already = one.hold.is_some_and(|hold| hold.consumed().is_some())
            || self.states[candidate].shared.is_some();
        if !(shareable && shared_already || one.device.consumes.is_empty()) {
            if !self.count_up(candidate) {
                return Ok(None);
            }
            undo.counted = true;
        }
        if !self.add_to_constraints(&mut undo) {
            self.undo(undo);
            if !must {
                return Ok(None);
            }
            let (claim, request) = (&claims[spot.claim].name, self.request_name(spot));
            return Err(RejectionReason::Failed(format!(
                "claim {claim}, request {request}: cannot add device {} because a claim constraint \
                 would not be satisfied",
                self.candidates[candidate].device.name
            )));
        }
        if !shareable {
            self.states[candidate].claims.push(spot.claim);
            undo.marked = true;
        }
        if !self.has_room(spot, candidate) {
            self.undo(undo);
            return Ok(None);
        }
        let shared = shareable.then(|| self.share(spot, candidate, &mut undo));
        let (request, alternative) = (spot.request, spot.alternative);
        self.allocated[spot.claim].push(AllocatedCandidate {
            request,
            alternative,
            candidate,
            shared,
        });
        undo.recorded = true;
        Ok(Some(undo))
    }

    fn request_name(&self, spot: SearchPosition) -> &str {
        &self.requests[spot.claim][spot.request][spot.alternative].name
    }

    fn undo(&mut self, undo: Undo) {
        let Undo { claim, candidate, .. } = undo;
        if undo.recorded {
            self.allocated[claim].pop();
        }
        if let Some((consumed, shared_before)) = undo.shared {
            self.unshare(candidate, &consumed, shared_before);
        }
        if undo.marked {
            self.states[candidate].claims.retain(|one| *one != claim);
        }
        self.remove_from_constraints(claim, undo.request, undo.alternative, undo.rules_added);
        if undo.counted {
            self.count_down(candidate);
        }
    }

    fn class(inventory: &'a Inventory, name: &str) -> Option<&'a Class> {
        inventory.classes.get(name)
    }
}

//! The search for devices: first fit, with every way tried if need be.
//!
//! Owns the order in which devices are tried, which decides what is given: claims, requests and
//! alternatives in their order, pools by name, slices by name, devices as listed. Must not know how
//! a pod comes to its claims.
//!
//! kube-scheduler recurses; here the way so far is a list, so that no input can exhaust the stack.

mod asks;
mod capacity;
mod constraint;
mod result;

use std::sync::Arc;

use berth_model::dra::claim::{Allocation, ClaimSpec, Count};
use berth_model::dra::slice::Device;
use berth_model::dra::{Amounts, RESULTS_MAX};
use berth_model::node::Node;
use berth_model::quantity::Quantity;

use crate::inventory::{Class, Inventory};
use crate::numa::{self, NumaNodes};
use crate::plugin::Options;
use crate::pools::{PoolState, PoolView};
use crate::preference::{Offered, Preference};
use crate::published::Published;
use crate::selectors::Selector;
use crate::taken::{Hold, PoolHolds};
use crate::verdict::Why;

use asks::Ask;
use constraint::Rule;

/// A claim that is to be given devices.
pub(crate) struct Wish<'a> {
    /// `namespace/name`, for messages.
    pub(crate) name: String,
    pub(crate) spec: &'a ClaimSpec,
    /// The compiled selectors of each request and each of its alternatives.
    pub(crate) selectors: &'a [Vec<Vec<Arc<Selector>>>],
}

/// Gives devices to `wishes` on `node`: one allocation for each, or why not.
pub(crate) fn allocate(
    inventory: &Inventory,
    node: &Node,
    wishes: &[Wish<'_>],
    options: &Options<'_>,
) -> Result<Vec<Allocation>, Why> {
    let pools = inventory.pools.gather(node).map_err(Why::Failed)?;
    let mut candidates = Vec::new();
    for (at, pool) in pools.iter().enumerate() {
        let holds = inventory.taken.of(&pool.key);
        candidates.extend(candidates_of(pool, at, holds));
    }
    if let Some(preference) = options.preference {
        candidates = prefer(candidates, &pools, preference);
    }
    let trying = candidates.iter().map(|_| Trying::default()).collect();
    let mut search = Search {
        inventory,
        node,
        pools: &pools,
        candidates: &candidates,
        trying,
        counters: pools.iter().map(|_| None).collect(),
        asks: Vec::new(),
        rules: Vec::new(),
        given: wishes.iter().map(|_| Vec::new()).collect(),
        chosen: Vec::new(),
        numa: options.numa.as_ref(),
        steps_left: options.steps_max,
    };
    search.read(wishes)?;
    match search.run(wishes) {
        Outcome::Done => Ok(search.results(wishes)),
        Outcome::Failed(why) => Err(why),
        // That too many devices would be needed is only told apart inside of the search, or here.
        Outcome::TooMany => Err(Why::Failed("allocation max size exceeded".to_owned())),
        Outcome::No if pools.iter().any(|pool| pool.state == PoolState::Invalid) => {
            Err(Why::InvalidPools)
        }
        Outcome::No => Err(Why::NotEnough),
    }
}

/// Puts devices into another order. Those that need preparation stay behind all others.
fn prefer<'a>(
    candidates: Vec<Candidate<'a>>,
    pools: &[Arc<PoolView>],
    preference: &dyn Preference,
) -> Vec<Candidate<'a>> {
    let offers = candidates.iter().map(|one| Offered {
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

/// A device that could be given.
struct Candidate<'a> {
    pool: usize,
    slice: &'a Arc<Published>,
    position: usize,
    device: &'a Device,
    hold: Option<&'a Hold>,
}

/// What the present attempt does with a device.
#[derive(Default)]
struct Trying {
    /// The claims it is given to.
    claims: smallvec::SmallVec<[usize; 2]>,
    /// How much of it is given in parts; there is an entry as soon as one part is given.
    shared: Option<Amounts>,
}

/// The counters of a pool in the present attempt.
struct Counters {
    available: Vec<Quantity>,
    consumed: Vec<Quantity>,
}

/// Where the search is.
#[derive(Clone, Copy)]
struct Spot {
    claim: usize,
    request: usize,
    alternative: usize,
    /// Whether the alternative has been chosen.
    settled: bool,
    /// How many devices the request has got.
    device: usize,
    /// From which candidate on devices are tried.
    from: usize,
}

impl Spot {
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

/// A choice that was made and may have to be revised.
enum Choice {
    /// The next claim was begun.
    Claim,
    /// An alternative is tried. Whether all so far needed too many devices.
    Alternative { spot: Spot, all_too_many: bool },
    /// A device was given because all are asked for.
    OneOfAll { undo: Undo },
    /// A device was given; the search goes on after it if that leads nowhere.
    Device { spot: Spot, undo: Undo },
}

/// How to take a device back.
struct Undo {
    claim: usize,
    request: usize,
    alternative: usize,
    candidate: usize,
    counted: bool,
    rules_added: usize,
    marked: bool,
    /// What was added to the parts given, and whether others were given before.
    shared: Option<(Amounts, bool)>,
    recorded: bool,
}

/// What came of a part of the search.
enum Outcome {
    Done,
    No,
    /// A claim would be given more devices than it can have.
    TooMany,
    Failed(Why),
}

/// A device that the present attempt gives.
struct Given {
    request: usize,
    alternative: usize,
    candidate: usize,
    /// How much of it, if it is shared.
    shared: Option<Amounts>,
}

struct Search<'a> {
    inventory: &'a Inventory,
    node: &'a Node,
    pools: &'a [Arc<PoolView>],
    candidates: &'a [Candidate<'a>],
    trying: Vec<Trying>,
    /// By pool, once needed.
    counters: Vec<Option<Counters>>,
    /// By claim, request and alternative.
    asks: Vec<Vec<Vec<Ask<'a>>>>,
    /// By claim.
    rules: Vec<Vec<Rule<'a>>>,
    /// By claim.
    given: Vec<Vec<Given>>,
    /// By claim and request, the alternative that was chosen.
    chosen: Vec<Vec<usize>>,
    numa: Option<&'a NumaNodes>,
    steps_left: u64,
}

/// What to do next.
enum Next {
    Enter(Spot),
    Leave(Outcome),
}

impl<'a> Search<'a> {
    fn run(&mut self, wishes: &[Wish<'_>]) -> Outcome {
        let mut choices: Vec<Choice> = Vec::new();
        let mut next = Next::Enter(Spot::claim(0));
        loop {
            next = match next {
                Next::Enter(spot) => self.enter(spot, wishes, &mut choices),
                Next::Leave(outcome) => match choices.pop() {
                    Some(choice) => self.revise(choice, outcome, wishes, &mut choices),
                    None => return outcome,
                },
            };
        }
    }

    fn step(&mut self) -> Result<(), Why> {
        match self.steps_left.checked_sub(1) {
            Some(left) => {
                self.steps_left = left;
                Ok(())
            }
            None => Err(Why::TooLong),
        }
    }

    fn enter(&mut self, spot: Spot, wishes: &[Wish<'_>], choices: &mut Vec<Choice>) -> Next {
        if let Err(why) = self.step() {
            return Next::Leave(Outcome::Failed(why));
        }
        let Some(requests) = self.asks.get(spot.claim) else { return Next::Leave(Outcome::Done) };
        let Some(alternatives) = requests.get(spot.request) else {
            choices.push(Choice::Claim);
            return Next::Enter(Spot::claim(spot.claim + 1));
        };
        let Some(ask) = alternatives.get(spot.alternative) else {
            return Next::Leave(Outcome::No);
        };
        if !spot.settled && ask.alternative.is_some() {
            choices.push(Choice::Alternative { spot, all_too_many: true });
            return Next::Enter(Spot { settled: true, ..spot });
        }
        let of_all = ask.ask.count == Count::All;
        if of_all && ask.all.is_empty() {
            return Next::Leave(Outcome::No);
        }
        if spot.device >= ask.count {
            return Next::Enter(spot.next_request());
        }
        if self.given[spot.claim].len() + (ask.count - spot.device) > RESULTS_MAX {
            return Next::Leave(Outcome::TooMany);
        }
        if !of_all {
            return self.try_from(spot, wishes, choices);
        }
        let candidate = ask.all[spot.device];
        match self.give(spot, candidate, wishes, true) {
            Err(why) => Next::Leave(Outcome::Failed(why)),
            Ok(None) => Next::Leave(Outcome::No),
            Ok(Some(undo)) => {
                choices.push(Choice::OneOfAll { undo });
                Next::Enter(spot.next_device(0))
            }
        }
    }

    /// Gives the next device that will do, from `spot.from` on.
    fn try_from(&mut self, spot: Spot, wishes: &[Wish<'_>], choices: &mut Vec<Choice>) -> Next {
        for candidate in spot.from..self.candidates.len() {
            let given = self.step().and_then(|()| {
                if !self.could_serve(spot, candidate, wishes)? {
                    return Ok(None);
                }
                self.give(spot, candidate, wishes, false)
            });
            match given {
                Err(why) => return Next::Leave(Outcome::Failed(why)),
                Ok(None) => {}
                Ok(Some(undo)) => {
                    let after = candidate + 1;
                    choices.push(Choice::Device { spot: Spot { from: after, ..spot }, undo });
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
        wishes: &[Wish<'_>],
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
                    Outcome::Failed(why) => return Next::Leave(Outcome::Failed(why)),
                    Outcome::TooMany => {}
                    Outcome::No => all_too_many = false,
                }
                spot.alternative += 1;
                if spot.alternative >= self.asks[spot.claim][spot.request].len() {
                    let outcome = if all_too_many { Outcome::TooMany } else { Outcome::No };
                    return Next::Leave(outcome);
                }
                choices.push(Choice::Alternative { spot, all_too_many });
                Next::Enter(Spot { settled: true, ..spot })
            }
            Choice::OneOfAll { undo } => {
                if !matches!(outcome, Outcome::Done) {
                    self.take_back(undo);
                }
                Next::Leave(outcome)
            }
            Choice::Device { spot, undo } => match outcome {
                Outcome::Done => Next::Leave(Outcome::Done),
                Outcome::No => {
                    self.take_back(undo);
                    self.try_from(spot, wishes, choices)
                }
                other => {
                    self.take_back(undo);
                    Next::Leave(other)
                }
            },
        }
    }

    fn in_use(&self, candidate: usize) -> bool {
        self.candidates[candidate].hold.is_some_and(Hold::is_whole)
            || !self.trying[candidate].claims.is_empty()
    }

    /// Whether a device is free for the request, selected by it, and large enough.
    fn could_serve(
        &mut self,
        spot: Spot,
        candidate: usize,
        wishes: &[Wish<'_>],
    ) -> Result<bool, Why> {
        let admin = self.asks[spot.claim][spot.request][spot.alternative].ask.admin_access;
        if admin && self.trying[candidate].claims.contains(&spot.claim)
            || !admin && self.in_use(candidate)
        {
            return Ok(false);
        }
        Ok(self.is_selected(spot, candidate, wishes)? && self.has_room(spot, candidate))
    }

    /// Gives a device that could serve to the claim, if nothing else is against it.
    fn give(
        &mut self,
        spot: Spot,
        candidate: usize,
        wishes: &[Wish<'_>],
        must: bool,
    ) -> Result<Option<Undo>, Why> {
        let one = &self.candidates[candidate];
        let ask = &self.asks[spot.claim][spot.request][spot.alternative];
        let (admin, shareable) = (ask.ask.admin_access, one.device.shareable);
        let ours = self.trying[candidate].claims.contains(&spot.claim);
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
        // The parts of a shared device use up its counters once.
        let shared_already = one.hold.is_some_and(|hold| hold.consumed().is_some())
            || self.trying[candidate].shared.is_some();
        if !(shareable && shared_already || one.device.consumes.is_empty()) {
            if !self.count_up(candidate) {
                return Ok(None);
            }
            undo.counted = true;
        }
        if !self.follow_rules(&mut undo) {
            self.take_back(undo);
            if !must {
                return Ok(None);
            }
            let (claim, request) = (&wishes[spot.claim].name, self.ask_name(spot));
            return Err(Why::Failed(format!(
                "claim {claim}, request {request}: cannot add device {} because a claim constraint \
                 would not be satisfied",
                self.candidates[candidate].device.name
            )));
        }
        if !shareable {
            self.trying[candidate].claims.push(spot.claim);
            undo.marked = true;
        }
        if !self.has_room(spot, candidate) {
            self.take_back(undo);
            return Ok(None);
        }
        let shared = shareable.then(|| self.share(spot, candidate, &mut undo));
        let (request, alternative) = (spot.request, spot.alternative);
        self.given[spot.claim].push(Given { request, alternative, candidate, shared });
        undo.recorded = true;
        Ok(Some(undo))
    }

    fn ask_name(&self, spot: Spot) -> &str {
        &self.asks[spot.claim][spot.request][spot.alternative].name
    }

    fn take_back(&mut self, undo: Undo) {
        let Undo { claim, candidate, .. } = undo;
        if undo.recorded {
            self.given[claim].pop();
        }
        if let Some((consumed, shared_before)) = undo.shared {
            self.unshare(candidate, &consumed, shared_before);
        }
        if undo.marked {
            self.trying[candidate].claims.retain(|one| *one != claim);
        }
        self.unfollow_rules(claim, undo.request, undo.alternative, undo.rules_added);
        if undo.counted {
            self.count_down(candidate);
        }
    }

    /// The class of an ask.
    fn class(inventory: &'a Inventory, name: &str) -> Option<&'a Class> {
        inventory.classes.get(name)
    }
}

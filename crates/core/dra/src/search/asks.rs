//! What is asked for, made ready for the search.
//!
//! Owns which devices an ask could have at all, and what "all" devices are.

use std::sync::Arc;

use berth_model::dra::RESULTS_MAX;
use berth_model::dra::claim::{Count, DeviceAsk, Wanted};
use berth_model::dra::slice::Reach;

use super::capacity::Take;
use super::constraint::Rule;
use super::{Search, Spot, Wish};
use crate::Lookup;
use crate::inventory::Class;
use crate::pools::PoolState;
use crate::published::reaches;
use crate::selectors::Selector;
use crate::verdict::Why;

/// An exact request, or one alternative.
pub(super) struct Ask<'a> {
    /// Its own name.
    pub(super) name: Arc<str>,
    /// Its name if it is an alternative.
    pub(super) alternative: Option<Arc<str>>,
    /// The name of the request.
    pub(super) request: Arc<str>,
    pub(super) ask: &'a DeviceAsk,
    pub(super) class: &'a Class,
    selectors: &'a [Arc<Selector>],
    /// How many devices.
    pub(super) count: usize,
    /// Which, if all are asked for.
    pub(super) all: Vec<usize>,
    /// By candidate, whether it is selected, once known.
    selected: Vec<Option<bool>>,
    /// By candidate with capacities, what would be taken of it, once known.
    pub(super) takes: Lookup<usize, Take>,
}

impl Ask<'_> {
    /// The name that results have.
    pub(super) fn full_name(&self) -> Arc<str> {
        match &self.alternative {
            Some(alternative) => format!("{}/{alternative}", self.request).into(),
            None => self.request.clone(),
        }
    }
}

impl<'a> Search<'a> {
    /// Reads what is wished for, and fails where that makes no sense.
    pub(super) fn read<'w: 'a>(&mut self, wishes: &[Wish<'w>]) -> Result<(), Why> {
        for (claim, wish) in wishes.iter().enumerate() {
            self.asks.push(Vec::new());
            self.chosen.push(vec![0; wish.spec.requests.len()]);
            let mut least = 0_usize;
            for request in 0..wish.spec.requests.len() {
                let counts = self.read_request(wishes, claim, request)?;
                least = least.saturating_add(counts);
            }
            if least > RESULTS_MAX {
                return Err(Why::Failed(format!(
                    "claim {}: number of requested devices {least} exceeds the claim limit of \
                     {RESULTS_MAX}",
                    wish.name
                )));
            }
            let mut rules = Vec::new();
            for (at, constraint) in wish.spec.constraints.iter().enumerate() {
                let problem = || {
                    let name = &wish.name;
                    Why::Failed(format!("claim {name}, constraint #{at}: empty constraint"))
                };
                rules.push(Rule::of(constraint).ok_or_else(problem)?);
            }
            self.rules.push(rules);
        }
        Ok(())
    }

    /// Reads one request; the least number of devices it needs.
    fn read_request<'w: 'a>(
        &mut self,
        wishes: &[Wish<'w>],
        claim: usize,
        request: usize,
    ) -> Result<usize, Why> {
        let wish = &wishes[claim];
        let (spec, selectors): (&'w _, &'w [_]) = (wish.spec, wish.selectors);
        let asked = &spec.requests[request];
        let alternatives: Vec<(Option<&Arc<str>>, &'w DeviceAsk)> = match &asked.wanted {
            Wanted::Exactly(ask) => vec![(None, ask)],
            Wanted::FirstOf(list) => list.iter().map(|(name, ask)| (Some(name), ask)).collect(),
            Wanted::Unknown => {
                let (claim, request) = (&wish.name, &asked.name);
                return Err(Why::Failed(format!(
                    "claim {claim}, request {request}: unknown request type"
                )));
            }
        };
        self.asks[claim].push(Vec::new());
        let mut least = usize::MAX;
        for (at, (alternative, ask)) in alternatives.into_iter().enumerate() {
            let compiled = selectors.get(request).and_then(|list| list.get(at));
            let name = alternative.unwrap_or(&asked.name).clone();
            let problem =
                |what: String| Why::Failed(format!("claim {}, request {name}: {what}", wish.name));
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
            self.asks[claim][request].push(Ask {
                alternative: alternative.cloned(),
                name: name.clone(),
                request: asked.name.clone(),
                ask,
                class,
                selectors: compiled.map_or(&[], Vec::as_slice),
                count,
                all: Vec::new(),
                selected: vec![None; self.candidates.len()],
                takes: Lookup::default(),
            });
            let spot = Spot { request, alternative: at, settled: true, ..Spot::claim(claim) };
            if ask.count == Count::All {
                let all = self.all_devices(spot, wishes, &problem)?;
                let ask = &mut self.asks[claim][request][at];
                ask.count = all.len();
                ask.all = all;
            }
            least = least.min(self.asks[claim][request][at].count);
        }
        Ok(least)
    }

    /// Which devices "all" are. Cannot be told while a pool is not whole.
    fn all_devices(
        &mut self,
        spot: Spot,
        wishes: &[Wish<'_>],
        problem: &dyn Fn(String) -> Why,
    ) -> Result<Vec<usize>, Why> {
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
                if self.is_selected(spot, candidate, wishes)? && self.has_room(spot, candidate) {
                    all.push(candidate);
                }
                candidate += 1;
            }
        }
        Ok(all)
    }

    /// Whether the selectors of the class and the ask hold, and the device can be used from here.
    pub(super) fn is_selected(
        &mut self,
        spot: Spot,
        candidate: usize,
        wishes: &[Wish<'_>],
    ) -> Result<bool, Why> {
        let ask = &self.asks[spot.claim][spot.request][spot.alternative];
        if let Some(known) = ask.selected[candidate] {
            return Ok(known);
        }
        let one = &self.candidates[candidate];
        let selected = (|| {
            for (at, selector) in ask.class.selectors.iter().enumerate() {
                let matches = one.slice.matches(selector, one.position).map_err(|failure| {
                    format!("class {}: selector #{at}: {failure}", ask.class.class.name)
                })?;
                if !matches {
                    return Ok(false);
                }
            }
            for (at, selector) in ask.selectors.iter().enumerate() {
                let matches = one.slice.matches(selector, one.position).map_err(|failure| {
                    format!("claim {}: selector #{at}: {failure}", wishes[spot.claim].name)
                })?;
                if !matches {
                    return Ok(false);
                }
            }
            match one.slice.slice.reach {
                Reach::PerDevice => reaches(&one.device.reach, self.node),
                _ => Ok(true),
            }
        })();
        let selected = selected.map_err(Why::Failed)?;
        self.asks[spot.claim][spot.request][spot.alternative].selected[candidate] = Some(selected);
        Ok(selected)
    }
}

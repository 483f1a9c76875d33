//! The trace replayed in virtual time through the engine, with departures, on a cluster that is too
//! small at times; whoever has to wait is told when it will start.
//!
//! Owns the replay and the baselines. Nothing that tells looks ahead.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::node_rules::accepts;
use berth_engine::{Engine, Profile};
use berth_forecast::forecast::{LEVELS, LEVELS_MILLI, Outlook};
use berth_forecast::{Effort, Forecaster};
use berth_model::spec::PodSpec;
use berth_testkit::cluster::{Dice, pending};

use super::trace::{Arrival, Trace};

/// One way to say how long a pod waits: for each level a bound.
pub(crate) type Bounds = [Option<u64>; LEVELS];

/// What was told about one pod when it began to wait.
pub(crate) struct Record {
    pub(crate) at_ms: i64,
    /// By forecaster, simulation alone, all past waits, past waits of the class.
    pub(crate) bounds: [Bounds; METHODS],
    pub(crate) wait_ms: Option<i64>,
}

/// Who tells.
pub(crate) const METHODS: usize = 4;
pub(crate) const METHOD_NAMES: [&str; METHODS] =
    ["berth", "futures uncorrected", "past waits", "past waits, class"];

/// A replay of the trace.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    /// The trace is laid over itself so many times, each copy shifted by a random time.
    pub(crate) copies: usize,
    /// GPUs asked for at a time, on average, in hundredths of those there are.
    pub(crate) load_percent: i64,
    /// Whether latency-sensitive pods go first.
    pub(crate) classes: bool,
    pub(crate) seed: u64,
}

/// What came of it.
pub(crate) struct Replayed {
    pub(crate) records: Vec<Record>,
    pub(crate) end_ms: i64,
    pub(crate) nodes: usize,
    pub(crate) gpus: i64,
    pub(crate) pods: usize,
    pub(crate) impossible: usize,
    pub(crate) waiting_max: usize,
    /// That forecasts took on a processor.
    pub(crate) time: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Ends(usize),
    Comes(usize),
}

/// The last waits, to tell the next by.
#[derive(Default)]
struct PastWaits {
    recent: VecDeque<i64>,
}

const PAST_MAX: usize = 300;
const PAST_MIN: usize = 20;

impl PastWaits {
    fn add(&mut self, wait_ms: i64) {
        self.recent.push_back(wait_ms);
        if self.recent.len() > PAST_MAX {
            self.recent.pop_front();
        }
    }

    fn bounds(&self) -> Option<Bounds> {
        let mut sorted: Vec<i64> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        let at = |level: u16| sorted[(sorted.len() - 1) * usize::from(level) / 1000] as u64;
        (sorted.len() >= PAST_MIN).then(|| LEVELS_MILLI.map(|level| Some(at(level))))
    }
}

struct World {
    engine: Engine,
    forecaster: Forecaster,
    arrivals: Vec<Arrival>,
    happenings: BinaryHeap<Reverse<(i64, Happening)>>,
    /// By UID: its number, and its record once it waits.
    records: Vec<Record>,
    record_of: BTreeMap<usize, usize>,
    past: PastWaits,
    past_of_class: BTreeMap<usize, PastWaits>,
    time: Duration,
    waiting_max: usize,
}

impl Scenario {
    /// The nodes, as many as give the load, and the arrivals that fit on one of them at all.
    fn lay_out(self, trace: &Trace) -> (Vec<Event>, i64, Vec<Arrival>, usize) {
        let mut dice = Dice::new(self.seed.wrapping_mul(0x1_0001));
        let mut arrivals = Vec::new();
        for _ in 0..self.copies {
            let shift_ms = (dice.roll() % trace.span_ms as u64) as i64;
            arrivals.extend(trace.arrivals.iter().map(|one| Arrival {
                at_ms: (one.at_ms + shift_ms) % trace.span_ms,
                ..one.clone()
            }));
        }
        let busy: i128 = arrivals
            .iter()
            .map(|one| i128::from(one.gpu_milli * one.life_ms.min(trace.span_ms - one.at_ms)))
            .sum();
        let offered_milli = (busy / i128::from(trace.span_ms)) as i64;
        let mut nodes: Vec<_> = trace.nodes.iter().collect();
        dice.shuffle(&mut nodes);
        let mut gpus = 0;
        let wanted = offered_milli / 10 / self.load_percent.max(1);
        nodes.retain(|(_, count)| {
            let takes = gpus < wanted.max(8);
            gpus += if takes { *count } else { 0 };
            takes
        });
        let before = arrivals.len();
        let asked = |spec: &PodSpec| {
            spec.pod.total_requests(berth_model::pod::PodLevelResources::HonouredIfEmptyToo)
        };
        arrivals.retain(|one| {
            nodes.iter().any(|(node, _)| {
                accepts(&one.spec, node)
                    && asked(&one.spec).iter().all(|(name, amount)| {
                        node.allocatable.get(name).is_some_and(|has| has.value() >= amount.value())
                    })
            })
        });
        let impossible = before - arrivals.len();
        arrivals.sort_by_key(|one| one.at_ms);
        let events = nodes.iter().map(|(node, _)| Event::Node(node.clone())).collect();
        (events, gpus, arrivals, impossible)
    }

    pub(crate) fn replay(self, trace: &Trace, effort: Effort) -> Result<Replayed> {
        let (events, gpus, arrivals, impossible) = self.lay_out(trace);
        let nodes = events.len();
        let mut world = World {
            engine: Engine::new(Profile::Berth),
            forecaster: Forecaster::new(effort),
            happenings: BinaryHeap::new(),
            records: Vec::new(),
            record_of: BTreeMap::new(),
            past: PastWaits::default(),
            past_of_class: BTreeMap::new(),
            time: Duration::ZERO,
            waiting_max: 0,
            arrivals,
        };
        events.into_iter().for_each(|event| world.happen(event, 0));
        for (number, one) in world.arrivals.iter().enumerate() {
            world.happenings.push(Reverse((one.at_ms, Happening::Comes(number))));
        }
        let pods = world.arrivals.len();
        while let Some(Reverse((at_ms, _))) = world.happenings.peek().copied()
            && at_ms < trace.span_ms
        {
            world.moment(at_ms);
        }
        let World { records, time, waiting_max, .. } = world;
        let end_ms = trace.span_ms;
        Ok(Replayed { records, end_ms, nodes, gpus, pods, impossible, waiting_max, time })
    }
}

impl World {
    fn happen(&mut self, event: Event, now_ms: i64) {
        self.forecaster.observe(&event, now_ms);
        self.engine.apply(event);
    }

    /// Everything that happens at one time, then what is decided, then what is told.
    fn moment(&mut self, now_ms: i64) {
        while let Some(Reverse((at_ms, happening))) = self.happenings.peek().copied()
            && at_ms == now_ms
        {
            self.happenings.pop();
            match happening {
                Happening::Ends(number) => self.happen(Event::PodGone(uid(number)), now_ms),
                Happening::Comes(number) => {
                    let mut pod = pending(&self.arrivals[number].spec, number as u64);
                    pod.created_at_ms = now_ms;
                    self.happen(Event::Pod(pod), now_ms);
                }
            }
        }
        let mut waits = Vec::new();
        while let Some(decision) = self.engine.decide(now_ms) {
            self.forecaster.observe_decision(&decision, now_ms);
            match decision {
                Decision::Bind(binding) => self.start(number(&binding.pod), now_ms),
                Decision::Wait { pod } => waits.push(number(&pod)),
                // Nobody has a lower priority, a team or a gang here.
                _ => {}
            }
        }
        self.waiting_max = self.waiting_max.max(self.engine.queued().0);
        for number in waits {
            if !self.record_of.contains_key(&number) && self.engine.node_of(&uid(number)).is_none()
            {
                self.tell(number, now_ms);
            }
        }
    }

    fn class(&self, number: usize) -> usize {
        Arc::as_ptr(&self.arrivals[number].spec).addr()
    }

    fn start(&mut self, number: usize, now_ms: i64) {
        let one = &self.arrivals[number];
        self.happenings.push(Reverse((now_ms + one.life_ms, Happening::Ends(number))));
        let class = self.class(number);
        if let Some(record) = self.record_of.get(&number) {
            let record = &mut self.records[*record];
            let wait_ms = now_ms - record.at_ms;
            record.wait_ms = Some(wait_ms);
            self.past.add(wait_ms);
            self.past_of_class.entry(class).or_default().add(wait_ms);
        }
    }

    fn tell(&mut self, number: usize, now_ms: i64) {
        let before = on_processor();
        let forecast = self.forecaster.issue(&uid(number), now_ms);
        if let (Ok(before), Ok(after)) = (before, on_processor()) {
            self.time += after.saturating_sub(before);
        }
        let Some(Outlook::Starts(eta)) = forecast.map(|forecast| forecast.outlook) else { return };
        let all = self.past.bounds().unwrap_or([None; LEVELS]);
        let of_class = self.past_of_class.get(&self.class(number)).and_then(PastWaits::bounds);
        let bounds = [eta.within_ms, eta.simulated_ms, all, of_class.unwrap_or(all)];
        self.record_of.insert(number, self.records.len());
        self.records.push(Record { at_ms: now_ms, bounds, wait_ms: None });
    }
}

/// Fills so many nodes of the trace until pods wait, and times forecasts for those: how many pods there
/// are, and the time on a processor that all forecasts took.
pub(crate) fn speed(trace: &Trace, nodes: usize, waiting: usize) -> Result<(u64, Duration)> {
    let mut dice = Dice::new(7);
    let mut engine = Engine::new(Profile::Berth);
    let mut forecaster = Forecaster::new(Effort::default());
    for (number, one) in trace.arrivals.iter().enumerate() {
        let mut ended = pending(&one.spec, number as u64);
        ended.node = Some("elsewhere".into());
        let uid = ended.uid.clone();
        forecaster.observe(&Event::Pod(ended), 0);
        forecaster.observe(&Event::PodGone(uid), one.life_ms);
    }
    let mut order: Vec<_> = trace.nodes.iter().collect();
    dice.shuffle(&mut order);
    for (node, _) in order.into_iter().take(nodes) {
        let event = Event::Node(node.clone());
        forecaster.observe(&event, 0);
        engine.apply(event);
    }
    let (mut now_ms, mut number, mut waits) = (0, 0, Vec::new());
    while waits.len() < waiting {
        let one = &trace.arrivals[dice.below(trace.arrivals.len())];
        (number, now_ms) = (number + 1, now_ms + 1_000);
        let mut pod = pending(&one.spec, number);
        pod.created_at_ms = now_ms;
        let event = Event::Pod(pod);
        forecaster.observe(&event, now_ms);
        engine.apply(event);
        while let Some(decision) = engine.decide(now_ms) {
            forecaster.observe_decision(&decision, now_ms);
            if let Decision::Wait { pod } = decision {
                waits.push(pod);
            }
        }
    }
    let before = on_processor()?;
    for uid in &waits {
        forecaster.issue(uid, now_ms);
    }
    Ok((number, on_processor()? - before))
}

/// How long this process has run on a processor, however busy the machine is.
fn on_processor() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/self/schedstat").context("reading schedstat")?;
    let nanos = text.split_whitespace().next().and_then(|text| text.parse().ok());
    Ok(Duration::from_nanos(nanos.context("schedstat begins with a number")?))
}

fn uid(number: usize) -> Arc<str> {
    format!("uid-{number:08}").into()
}

fn number(uid: &str) -> usize {
    uid.trim_start_matches("uid-").parse().unwrap_or(usize::MAX)
}

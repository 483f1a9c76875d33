//! One future: pods end, others arrive, pending pods take their turns, until the target starts.
//!
//! The queue is the engine's: the first pod that fits takes the room. Arriving pods go to the
//! fullest node that fits, which is what packing does on average. Evictions are left out, so
//! important pods start later here than in reality, and unimportant ones earlier.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::arrivals::Replay;
use crate::cluster::{KindIx, NodeIx};
use crate::initial::{InitialState, KindQueue};
use crate::room::{Allocation, Room};
use berth_model::dice::Dice;
use berth_model::table::Index as _;

const PROBES_MAX: usize = 48;

const ARRIVALS_MAX: u64 = 20_000;

/// Pods that arrive later stand behind all pods pending now.
const LATER: u64 = 1 << 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FutureEvent {
    NodeJoins(u32),
    Ends(u32),
    StartedPodEnds(u32),
    Arrives(KindIx),
}

#[derive(Clone, Copy, Debug)]
struct Head {
    priority: Reverse<i32>,
    place: u64,
}

/// Position of a queue without pending pods.
const NOBODY: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It starts after this time, on this node.
    Starts(u64, NodeIx),
    /// It does not start within the horizon.
    NotAtAll,
    /// It has not started after this time, and the limit of work is reached.
    NotYet(u64),
}

/// The state of a future, reused for the next.
#[derive(Default)]
pub(crate) struct Future {
    now_ms: u64,
    events: BinaryHeap<Reverse<(u64, u32, FutureEvent)>>,
    counted: u32,
    /// Changed nodes, and the position of each node among them.
    changed: Vec<(NodeIx, Room)>,
    slots: Vec<u32>,
    /// By queue: how many of its pods have started, and later arrivals.
    started: Vec<usize>,
    heads: Vec<Head>,
    later: Vec<VecDeque<u64>>,
    started_pods: Vec<(NodeIx, KindIx, Allocation)>,
    pub(crate) gone: Vec<u32>,
    pub(crate) steps: u64,
    arrived: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) queue: usize,
    pub(crate) place: u64,
}

impl Future {
    fn reset(&mut self, initial: &InitialState<'_>) {
        for (node, _) in self.changed.drain(..) {
            self.slots[node.at()] = 0;
        }
        self.slots.resize(initial.nodes_end(), 0);
        self.events.clear();
        self.started.clear();
        self.heads.clear();
        self.later.iter_mut().for_each(VecDeque::clear);
        self.add_queues(initial);
        self.started_pods.clear();
        self.gone.clear();
        (self.now_ms, self.counted, self.steps, self.arrived) = (0, 0, 0, 0);
    }

    /// Adds queues that were created since the start.
    fn add_queues(&mut self, initial: &InitialState<'_>) {
        for queue in &initial.queues[self.heads.len()..] {
            let place = queue.places.first().copied().unwrap_or(NOBODY);
            self.heads.push(Head { priority: queue.priority, place });
            self.started.push(0);
            if self.later.len() < self.heads.len() {
                self.later.push(VecDeque::new());
            }
        }
    }

    fn expect(&mut self, at_ms: u64, event: FutureEvent) {
        self.counted += 1;
        self.events.push(Reverse((at_ms, self.counted, event)));
    }

    /// Runs one future until the target starts.
    pub(crate) fn run(
        &mut self,
        initial: &mut InitialState<'_>,
        target: Target,
        dice: Dice,
        steps_max: u64,
    ) -> Ending {
        self.reset(initial);
        let mut replay = initial.cluster.arrivals.replay(dice.of(1));
        self.next_arrival(&mut replay);
        for planned in 0..initial.planned.len() {
            if let Some(at_ms) = initial.comes_ms(planned, dice.of(2)) {
                self.expect(at_ms, FutureEvent::NodeJoins(planned as u32));
            }
        }
        let mut window = 0;
        while let Some(end_ms) = initial.window_end_ms(window) {
            initial.leaving(window, dice.of(3), |at_ms, resident| {
                self.expect(at_ms, FutureEvent::Ends(resident as u32));
            });
            while let Some(Reverse((at_ms, _, event))) = self.events.peek().copied()
                && at_ms <= end_ms
            {
                self.events.pop();
                self.now_ms = at_ms;
                if let Some(node) = self.process(initial, target, event, &mut replay, dice) {
                    return Ending::Starts(at_ms, node);
                }
                if self.steps > steps_max || self.arrived > ARRIVALS_MAX {
                    return Ending::NotYet(at_ms);
                }
            }
            window += 1;
        }
        Ending::NotAtAll
    }

    fn next_arrival(&mut self, replay: &mut Replay<'_>) {
        if let Some((gap_ms, kind)) = replay.next() {
            self.expect(self.now_ms.saturating_add(gap_ms), FutureEvent::Arrives(kind));
        }
    }

    /// The node on which the target starts, if it does.
    fn process(
        &mut self,
        initial: &mut InitialState<'_>,
        target: Target,
        event: FutureEvent,
        replay: &mut Replay<'_>,
        dice: Dice,
    ) -> Option<NodeIx> {
        let node = match event {
            FutureEvent::NodeJoins(planned) => {
                NodeIx::new(initial.cluster.nodes.bound() + planned as usize)
            }
            FutureEvent::Ends(number) => {
                let resident = *initial.residents.get(number as usize)?;
                self.gone.push(number);
                self.vacate(initial, resident.node, resident.kind, resident.allocation)?;
                resident.node
            }
            FutureEvent::StartedPodEnds(number) => {
                let (node, kind, allocation) = *self.started_pods.get(number as usize)?;
                self.vacate(initial, node, kind, allocation)?;
                node
            }
            FutureEvent::Arrives(kind) => {
                self.next_arrival(replay);
                self.arrive(initial, kind, dice);
                return None;
            }
        };
        self.settle(initial, target, node, dice)
    }

    /// The room of a node in this future, to be changed.
    fn room(&mut self, initial: &InitialState<'_>, node: NodeIx) -> Option<&mut Room> {
        let slot = self.slots.get_mut(node.at())?;
        if *slot == 0 {
            self.changed.push((node, initial.room(node)?.clone()));
            *slot = self.changed.len() as u32;
        }
        self.changed.get_mut(*slot as usize - 1).map(|(_, room)| room)
    }

    fn vacate(
        &mut self,
        initial: &InitialState<'_>,
        node: NodeIx,
        kind: KindIx,
        allocation: Allocation,
    ) -> Option<()> {
        let ask = initial.ask(kind)?;
        self.room(initial, node)?.take(ask, allocation, -1);
        Some(())
    }

    /// Updates the first pod of a queue.
    fn update_head(&mut self, initial: &InitialState<'_>, queue: usize) {
        let waited = initial.queues[queue].places.get(self.started[queue]).copied();
        let first = waited.or_else(|| self.later[queue].front().copied());
        self.heads[queue].place = first.unwrap_or(NOBODY);
    }

    /// Pending pods take the room of a changed node in order.
    fn settle(
        &mut self,
        initial: &mut InitialState<'_>,
        target: Target,
        node: NodeIx,
        dice: Dice,
    ) -> Option<NodeIx> {
        loop {
            self.room(initial, node)?;
            let room = &self.changed[self.slots[node.at()] as usize - 1].1;
            let mut first: Option<(Reverse<i32>, u64, usize, Allocation)> = None;
            for (queue, Head { priority, place }) in self.heads.iter().copied().enumerate() {
                if place == NOBODY
                    || first.is_some_and(|first| (first.0, first.1) < (priority, place))
                {
                    continue;
                }
                self.steps += 1;
                let KindQueue { kind, ask, .. } = initial.queues[queue];
                if let Some(allocation) = room.fits(ask)
                    && initial.accepts(kind, node)
                {
                    first = Some((priority, place, queue, allocation));
                }
            }
            let (_, place, queue, allocation) = first?;
            if (queue, place) == (target.queue, target.place) {
                return Some(node);
            }
            if place >= LATER {
                self.later[queue].pop_front();
            } else {
                self.started[queue] += 1;
            }
            self.update_head(initial, queue);
            self.start(initial, queue, node, allocation, dice);
        }
    }

    fn start(
        &mut self,
        initial: &InitialState<'_>,
        queue: usize,
        node: NodeIx,
        allocation: Allocation,
        dice: Dice,
    ) {
        let KindQueue { kind, ask, .. } = initial.queues[queue];
        let Some(room) = self.room(initial, node) else { return };
        room.take(ask, allocation, 1);
        let number = self.started_pods.len() as u32;
        self.started_pods.push((node, kind, allocation));
        let luck = dice.of(4).share(u64::from(number));
        if let Some(life_ms) = initial.life_ms(queue, luck) {
            self.expect(self.now_ms.saturating_add(life_ms), FutureEvent::StartedPodEnds(number));
        }
    }

    /// A pod of a kind arrives: it is placed, or waits.
    fn arrive(&mut self, initial: &mut InitialState<'_>, kind: KindIx, dice: Dice) {
        let Some(queue) = initial.queue(kind) else { return };
        self.add_queues(initial);
        self.arrived += 1;
        // If one of its kind is pending, it does not fit either.
        if self.heads[queue].place == NOBODY
            && let Some((node, allocation)) = self.place(initial, queue, dice)
        {
            return self.start(initial, queue, node, allocation, dice);
        }
        self.later[queue].push_back(LATER + self.arrived);
        self.update_head(initial, queue);
    }

    /// The fullest node that fits: among some changed ones, and the others.
    fn place(
        &mut self,
        initial: &mut InitialState<'_>,
        queue: usize,
        dice: Dice,
    ) -> Option<(NodeIx, Allocation)> {
        let KindQueue { kind, ask, .. } = initial.queues[queue];
        let count = self.changed.len();
        let from = dice.of(5).below(self.arrived, count);
        let mut best: Option<(i64, NodeIx, Allocation)> = None;
        for probe in 0..count.min(PROBES_MAX) {
            let (node, room) = &self.changed[(from + probe) % count];
            self.steps += 1;
            let Some(allocation) = room.fits(ask) else { continue };
            let spare = room.spare();
            if best.is_none_or(|best| (spare, *node) < (best.0, best.1))
                && initial.accepts(kind, *node)
            {
                best = Some((spare, *node, allocation));
            }
        }
        let slots = &self.slots;
        let untouched = initial.open(queue).iter().copied().find(|node| slots[node.at()] == 0);
        if let Some(node) = untouched
            && let Some(room) = initial.room(node)
            && let Some(allocation) = room.fits(ask)
            && best.is_none_or(|best| room.spare() < best.0)
        {
            return Some((node, allocation));
        }
        best.map(|(_, node, allocation)| (node, allocation))
    }
}

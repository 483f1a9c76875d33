//! One future: pods end, others arrive, pending pods take their turns, until the target starts.
//!
//! The queue is the engine's: the first pod that fits takes the room. Arriving pods go to the
//! fullest node that fits, which is what packing does on average. Evictions are left out, so
//! important pods start later here than in reality, and unimportant ones earlier.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::arrivals::Replay;
use crate::room::{Got, Room};
use crate::scene::{KindIx, NodeIx};
use crate::stage::{Crowd, Stage};
use crate::table::Index as _;
use berth_model::dice::Dice;

/// Limit of changed nodes tried for an arriving pod.
const PROBES_MAX: usize = 48;

/// Limit of arrivals per future.
const ARRIVALS_MAX: u64 = 20_000;

/// Pods that arrive later stand behind all pods pending now.
const LATER: u64 = 1 << 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A planned node joins.
    NodeComes(u32),
    /// A running pod ends.
    Leaves(u32),
    /// A pod that started in this future ends.
    LeavesAgain(u32),
    /// A pod of a kind arrives.
    Comes(KindIx),
}

/// The first pod of a crowd.
#[derive(Clone, Copy, Debug)]
struct Head {
    priority: Reverse<i32>,
    place: u64,
}

/// Position of a crowd without pending pods.
const NOBODY: u64 = u64::MAX;

/// How a future ended for the target.
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
    happenings: BinaryHeap<Reverse<(u64, u32, Happening)>>,
    counted: u32,
    /// Changed nodes, and the position of each node among them.
    changed: Vec<(NodeIx, Room)>,
    slots: Vec<u32>,
    /// By crowd: how many of its pods have started, and later arrivals.
    started: Vec<usize>,
    heads: Vec<Head>,
    later: Vec<VecDeque<u64>>,
    newcomers: Vec<(NodeIx, KindIx, Got)>,
    pub(crate) gone: Vec<u32>,
    /// Number of comparisons.
    pub(crate) steps: u64,
    arrived: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) crowd: usize,
    pub(crate) place: u64,
}

impl Future {
    fn reset(&mut self, stage: &Stage<'_>) {
        for (node, _) in self.changed.drain(..) {
            self.slots[node.at()] = 0;
        }
        self.slots.resize(stage.nodes_end(), 0);
        self.happenings.clear();
        self.started.clear();
        self.heads.clear();
        self.later.iter_mut().for_each(VecDeque::clear);
        self.add_crowds(stage);
        self.newcomers.clear();
        self.gone.clear();
        (self.now_ms, self.counted, self.steps, self.arrived) = (0, 0, 0, 0);
    }

    /// Adds crowds that are new on the stage.
    fn add_crowds(&mut self, stage: &Stage<'_>) {
        for crowd in &stage.crowds[self.heads.len()..] {
            let place = crowd.places.first().copied().unwrap_or(NOBODY);
            self.heads.push(Head { priority: crowd.priority, place });
            self.started.push(0);
            if self.later.len() < self.heads.len() {
                self.later.push(VecDeque::new());
            }
        }
    }

    fn expect(&mut self, at_ms: u64, happening: Happening) {
        self.counted += 1;
        self.happenings.push(Reverse((at_ms, self.counted, happening)));
    }

    /// Runs one future until the target starts.
    pub(crate) fn run(
        &mut self,
        stage: &mut Stage<'_>,
        target: Target,
        dice: Dice,
        steps_max: u64,
    ) -> Ending {
        self.reset(stage);
        let mut replay = stage.scene.arrivals.replay(dice.of(1));
        self.next_arrival(&mut replay);
        for planned in 0..stage.planned.len() {
            if let Some(at_ms) = stage.comes_ms(planned, dice.of(2)) {
                self.expect(at_ms, Happening::NodeComes(planned as u32));
            }
        }
        let mut window = 0;
        while let Some(end_ms) = stage.window_end_ms(window) {
            stage.leaving(window, dice.of(3), |at_ms, resident| {
                self.expect(at_ms, Happening::Leaves(resident as u32));
            });
            while let Some(Reverse((at_ms, _, happening))) = self.happenings.peek().copied()
                && at_ms <= end_ms
            {
                self.happenings.pop();
                self.now_ms = at_ms;
                if let Some(node) = self.happen(stage, target, happening, &mut replay, dice) {
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
            self.expect(self.now_ms.saturating_add(gap_ms), Happening::Comes(kind));
        }
    }

    /// The node on which the target starts, if it does.
    fn happen(
        &mut self,
        stage: &mut Stage<'_>,
        target: Target,
        happening: Happening,
        replay: &mut Replay<'_>,
        dice: Dice,
    ) -> Option<NodeIx> {
        let node = match happening {
            Happening::NodeComes(planned) => {
                NodeIx::new(stage.scene.nodes.end() + planned as usize)
            }
            Happening::Leaves(number) => {
                let resident = *stage.residents.get(number as usize)?;
                self.gone.push(number);
                self.vacate(stage, resident.node, resident.kind, resident.got)?;
                resident.node
            }
            Happening::LeavesAgain(number) => {
                let (node, kind, got) = *self.newcomers.get(number as usize)?;
                self.vacate(stage, node, kind, got)?;
                node
            }
            Happening::Comes(kind) => {
                self.next_arrival(replay);
                self.come(stage, kind, dice);
                return None;
            }
        };
        self.settle(stage, target, node, dice)
    }

    /// The room of a node in this future, to be changed.
    fn room(&mut self, stage: &Stage<'_>, node: NodeIx) -> Option<&mut Room> {
        let slot = self.slots.get_mut(node.at())?;
        if *slot == 0 {
            self.changed.push((node, stage.room(node)?.clone()));
            *slot = self.changed.len() as u32;
        }
        self.changed.get_mut(*slot as usize - 1).map(|(_, room)| room)
    }

    fn vacate(&mut self, stage: &Stage<'_>, node: NodeIx, kind: KindIx, got: Got) -> Option<()> {
        let ask = stage.ask(kind)?;
        self.room(stage, node)?.take(ask, got, -1);
        Some(())
    }

    /// Updates the first pod of a crowd.
    fn update_head(&mut self, stage: &Stage<'_>, crowd: usize) {
        let waited = stage.crowds[crowd].places.get(self.started[crowd]).copied();
        let first = waited.or_else(|| self.later[crowd].front().copied());
        self.heads[crowd].place = first.unwrap_or(NOBODY);
    }

    /// Pending pods take the room of a changed node in order.
    fn settle(
        &mut self,
        stage: &mut Stage<'_>,
        target: Target,
        node: NodeIx,
        dice: Dice,
    ) -> Option<NodeIx> {
        loop {
            self.room(stage, node)?;
            let room = &self.changed[self.slots[node.at()] as usize - 1].1;
            let mut first: Option<(Reverse<i32>, u64, usize, Got)> = None;
            for (crowd, Head { priority, place }) in self.heads.iter().copied().enumerate() {
                if place == NOBODY
                    || first.is_some_and(|first| (first.0, first.1) < (priority, place))
                {
                    continue;
                }
                self.steps += 1;
                let Crowd { kind, ask, .. } = stage.crowds[crowd];
                if let Some(got) = room.fits(ask)
                    && stage.accepts(kind, node)
                {
                    first = Some((priority, place, crowd, got));
                }
            }
            let (_, place, crowd, got) = first?;
            if (crowd, place) == (target.crowd, target.place) {
                return Some(node);
            }
            if place >= LATER {
                self.later[crowd].pop_front();
            } else {
                self.started[crowd] += 1;
            }
            self.update_head(stage, crowd);
            self.start(stage, crowd, node, got, dice);
        }
    }

    fn start(&mut self, stage: &Stage<'_>, crowd: usize, node: NodeIx, got: Got, dice: Dice) {
        let Crowd { kind, ask, .. } = stage.crowds[crowd];
        let Some(room) = self.room(stage, node) else { return };
        room.take(ask, got, 1);
        let number = self.newcomers.len() as u32;
        self.newcomers.push((node, kind, got));
        let luck = dice.of(4).share(u64::from(number));
        if let Some(life_ms) = stage.life_ms(crowd, luck) {
            self.expect(self.now_ms.saturating_add(life_ms), Happening::LeavesAgain(number));
        }
    }

    /// A pod of a kind arrives: it is placed, or waits.
    fn come(&mut self, stage: &mut Stage<'_>, kind: KindIx, dice: Dice) {
        let Some(crowd) = stage.crowd(kind) else { return };
        self.add_crowds(stage);
        self.arrived += 1;
        // If one of its kind is pending, it does not fit either.
        if self.heads[crowd].place == NOBODY
            && let Some((node, got)) = self.place(stage, crowd, dice)
        {
            return self.start(stage, crowd, node, got, dice);
        }
        self.later[crowd].push_back(LATER + self.arrived);
        self.update_head(stage, crowd);
    }

    /// The fullest node that fits: among some changed ones, and the others.
    fn place(&mut self, stage: &mut Stage<'_>, crowd: usize, dice: Dice) -> Option<(NodeIx, Got)> {
        let Crowd { kind, ask, .. } = stage.crowds[crowd];
        let count = self.changed.len();
        let from = dice.of(5).below(self.arrived, count);
        let mut best: Option<(i64, NodeIx, Got)> = None;
        for probe in 0..count.min(PROBES_MAX) {
            let (node, room) = &self.changed[(from + probe) % count];
            self.steps += 1;
            let Some(got) = room.fits(ask) else { continue };
            let spare = room.spare();
            if best.is_none_or(|best| (spare, *node) < (best.0, best.1))
                && stage.accepts(kind, *node)
            {
                best = Some((spare, *node, got));
            }
        }
        let slots = &self.slots;
        let untouched = stage.open(crowd).iter().copied().find(|node| slots[node.at()] == 0);
        if let Some(node) = untouched
            && let Some(room) = stage.room(node)
            && let Some(got) = room.fits(ask)
            && best.is_none_or(|best| room.spare() < best.0)
        {
            return Some((node, got));
        }
        best.map(|(_, node, got)| (node, got))
    }
}

//! One future: pods leave, others come, those who wait take their turns, until a pod has started.
//!
//! Owns what happens in a future. The queue is the engine's: whoever comes first in its order and fits
//! takes the room; those who do not fit are passed over. Where a newcomer goes is the fullest node that
//! will do, which is what packing comes to on average. Evictions are left out: who matters more finds
//! its place later here than it will, and who matters less earlier.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::arrivals::Replay;
use crate::room::{Got, Room};
use crate::scene::{KindIx, NodeIx};
use crate::stage::{Crowd, Stage};
use crate::table::Index as _;
use berth_model::dice::Dice;

/// So many of the changed nodes are looked at for a newcomer.
const PROBES_MAX: usize = 48;

/// No more come in one future: whatever floods the queue must not hold up the answer.
const ARRIVALS_MAX: u64 = 20_000;

/// Pods that come later stand behind all who wait now.
const LATER: u64 = 1 << 32;

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A node that was planned is there.
    NodeComes(u32),
    /// One who runs now leaves.
    Leaves(u32),
    /// One who started in this future leaves.
    LeavesAgain(u32),
    /// One of a kind comes.
    Comes(KindIx),
}

/// The first of a crowd: whose turn it is before, and where it stands in the queue.
#[derive(Clone, Copy, Debug)]
struct Head {
    priority: Reverse<i32>,
    place: u64,
}

/// Nobody of a crowd waits.
const NOBODY: u64 = u64::MAX;

/// How a future ended for the pod in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It starts after so long, on this node.
    Starts(u64, NodeIx),
    /// It has not started by the time after which nothing is looked at.
    NotAtAll,
    /// It has not started after so long, when looking further became too dear.
    NotYet(u64),
}

/// What a future changes, used again for the next.
#[derive(Default)]
pub(crate) struct Future {
    now_ms: u64,
    happenings: BinaryHeap<Reverse<(u64, u32, Happening)>>,
    counted: u32,
    /// Nodes that have changed, and where each is among them.
    changed: Vec<(NodeIx, Room)>,
    slots: Vec<u32>,
    /// By crowd: how many of those who waited have started, and who came later.
    started: Vec<usize>,
    heads: Vec<Head>,
    later: Vec<VecDeque<u64>>,
    newcomers: Vec<(NodeIx, KindIx, Got)>,
    pub(crate) gone: Vec<u32>,
    /// How often something was compared.
    pub(crate) steps: u64,
    arrived: u64,
}

/// Whose future it is.
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

    /// Crowds may have been added to the stage.
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

    /// Gives the node on which the target starts, if it does.
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

    /// The room of a node as it is in this future, to be changed.
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

    /// Somebody of a crowd has come or started: who is its first now?
    fn update_head(&mut self, stage: &Stage<'_>, crowd: usize) {
        let waited = stage.crowds[crowd].places.get(self.started[crowd]).copied();
        let first = waited.or_else(|| self.later[crowd].front().copied());
        self.heads[crowd].place = first.unwrap_or(NOBODY);
    }

    /// Those who wait take what a changed node has, in the order of their turns.
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

    /// One of a kind comes: it goes where it fits, or waits.
    fn come(&mut self, stage: &mut Stage<'_>, kind: KindIx, dice: Dice) {
        let Some(crowd) = stage.crowd(kind) else { return };
        self.add_crowds(stage);
        self.arrived += 1;
        // Who finds its like waiting will not fit either.
        if self.heads[crowd].place == NOBODY
            && let Some((node, got)) = self.place(stage, crowd, dice)
        {
            return self.start(stage, crowd, node, got, dice);
        }
        self.later[crowd].push_back(LATER + self.arrived);
        self.update_head(stage, crowd);
    }

    /// The fullest node that will do: of some that have changed, and of those that have not.
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

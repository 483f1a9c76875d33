//! Repartitioning: the difference between two layouts of a GPU.

use super::board::Board;
use super::layout::{Instance, Layout, Slots};

/// Destroy first, then create.
///
/// An instance is kept when both layouts have the same profile at the same start; instances cannot
/// be moved or changed in place. Because the target is legal, every creation is legal once all
/// destructions are done, in any order.
#[derive(Debug, Clone, Copy)]
pub struct Repartition {
    board: &'static Board,
    kept: Slots,
    destroyed: Slots,
    created: Slots,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a layout of board {from} cannot become one of board {to}")]
pub struct BoardMismatch {
    pub from: &'static str,
    pub to: &'static str,
}

impl Repartition {
    /// Fails if the layouts are of different boards.
    pub fn between(from: &Layout, to: &Layout) -> Result<Self, BoardMismatch> {
        if from.board() != to.board() {
            return Err(BoardMismatch { from: from.board().id(), to: to.board().id() });
        }
        let [mut kept, mut destroyed, mut created] = [Slots::default(); 3];
        for slot in from.slots().as_slice() {
            let list = if to.slots().contains(*slot) { &mut kept } else { &mut destroyed };
            list.insert(*slot);
        }
        for slot in to.slots().as_slice().iter().filter(|s| !from.slots().contains(**s)) {
            created.insert(*slot);
        }
        Ok(Self { board: from.board(), kept, destroyed, created })
    }

    /// Ascending by start.
    pub fn kept(&self) -> impl Iterator<Item = Instance> + use<> {
        self.kept.instances(self.board)
    }

    /// Ascending by start.
    pub fn destroyed(&self) -> impl Iterator<Item = Instance> + use<> {
        self.destroyed.instances(self.board)
    }

    /// Ascending by start.
    pub fn created(&self) -> impl Iterator<Item = Instance> + use<> {
        self.created.instances(self.board)
    }

    pub fn is_nothing(&self) -> bool {
        self.destroyed.as_slice().is_empty() && self.created.as_slice().is_empty()
    }
}

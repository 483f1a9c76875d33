//! What a layout leaves room for, and which start leaves the most.
//!
//! The measure is [`Future`]: for each shape of the board, from the largest to the smallest, how
//! many instances could still be created if nothing else were; compared lexicographically. Demand
//! plays no role, so a large shape is never given up for a small one. The large shapes come first
//! because they have the fewest starts and are lost first: any hole holds a `1g`, only one place
//! holds a `4g`. Counting the combinations of instances that remain would instead put the first
//! `1g` of an empty GPU at 4, because 45 combinations remain against 40 with the `1g` at 6, and so
//! give up the third `2g`.
//!
//! On every grid in the table the measure has a stronger property, which a test checks for all
//! occupancies: whenever one start keeps every combination of instances that any other start keeps,
//! the measure chooses such a start.
//!
//! Variants of one size share a shape, and the limits on media engines never close a whole shape (a
//! test checks this too), so counting shapes counts what can really be created.

use super::board::{Board, Profile};
use super::geometry::{Future, Starts};
use super::layout::{Layout, LayoutError, MAX_INSTANCES};

impl Layout {
    /// How many instances of `profile` could still be created, if nothing else were. 0 for a
    /// profile of another board.
    pub fn remaining(&self, profile: &'static Profile) -> u8 {
        if !self.board().owns(profile) {
            return 0;
        }
        self.future().count(profile.shape).min(self.cap(profile))
    }

    /// Starts at which an instance of `profile` is legal now; none for a profile of another board.
    pub fn open_starts(&self, profile: &'static Profile) -> Starts {
        match self.board().shape(profile) {
            Some((_, shape)) if self.cap(profile) > 0 => Starts::new(shape.open(self.occupied())),
            _ => Starts::NONE,
        }
    }

    pub fn future(&self) -> Future {
        self.geometry().future(self.occupied())
    }

    /// The start that leaves the greatest [`Future`]; the lowest of equals. `None` if there is no
    /// room.
    pub fn best_start(&self, profile: &'static Profile) -> Option<u8> {
        let (geometry, shape) = self.board().shape(profile)?;
        let mut best: Option<(Future, u8)> = None;
        for start in self.open_starts(profile).iter() {
            let future = geometry.future(self.occupied() | shape.bits(start));
            if best.is_none_or(|(most, _)| future > most) {
                best = Some((future, start));
            }
        }
        best.map(|(_, start)| start)
    }

    /// Whether no instance of any profile can be added.
    pub fn is_full(&self) -> bool {
        self.board().profiles().iter().all(|p| self.open_starts(p).is_empty())
    }

    /// This layout with an instance of each profile in `wanted` added: of all ways to place them
    /// the one with the greatest [`Future`], the first of equals. `None` if they do not fit.
    pub fn with_all(&self, wanted: &[&'static Profile]) -> Option<Layout> {
        if self.len() + wanted.len() > MAX_INSTANCES {
            return None;
        }
        let mut order = wanted.to_vec();
        order.sort_by_key(|p| (p.shape, p.index));
        let mut best = None;
        place(*self, &order, 0, &mut best);
        best
    }
}

/// Places the first of `wanted` at every open start from `from` on, and the rest after it. Equal
/// profiles are adjacent and take ascending starts, so no layout is reached twice.
fn place(layout: Layout, wanted: &[&'static Profile], from: u8, best: &mut Option<Layout>) {
    let Some((first, rest)) = wanted.split_first() else {
        let better = |b: &Layout| match layout.future().cmp(&b.future()) {
            std::cmp::Ordering::Equal => layout < *b,
            order => order.is_gt(),
        };
        if best.as_ref().is_none_or(better) {
            *best = Some(layout);
        }
        return;
    };
    for start in layout.open_starts(first).iter().filter(|s| *s >= from) {
        if let Ok(next) = layout.with(first, start) {
            let same = rest.first().is_some_and(|p| p == first);
            place(next, rest, if same { start + 1 } else { 0 }, best);
        }
    }
}

impl Board {
    /// All layouts of profiles that `allow` admits to which no admitted profile can be added, in
    /// order. Fails if the board's placements are unknown.
    pub fn full_layouts(
        &'static self,
        allow: impl Fn(&Profile) -> bool,
    ) -> Result<Vec<Layout>, LayoutError> {
        let admitted: Vec<&'static Profile> = self.profiles().iter().filter(|p| allow(p)).collect();
        let mut found = Vec::new();
        Layout::empty(self)?.each_full(&admitted, &mut |layout| found.push(layout));
        found.sort_unstable();
        Ok(found)
    }
}

impl Layout {
    /// Calls `found` with every layout that extends this one and to which nothing admitted can be
    /// added. New instances are added at ascending starts, so each is reached once.
    pub fn each_full(self, admitted: &[&'static Profile], found: &mut impl FnMut(Self)) {
        extend(self, admitted, 0, found);
    }
}

fn extend(layout: Layout, admitted: &[&'static Profile], from: u8, found: &mut impl FnMut(Layout)) {
    let mut full = true;
    for profile in admitted {
        for start in layout.open_starts(profile).iter() {
            full = false;
            if start >= from
                && let Ok(next) = layout.with(profile, start)
            {
                extend(next, admitted, start + 1, found);
            }
        }
    }
    if full {
        found(layout);
    }
}

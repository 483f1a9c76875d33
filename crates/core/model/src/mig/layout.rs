//! Layouts: the instances on a GPU, and whether another one is legal.
//!
//! A layout is legal if
//! - every instance starts where its profile may start,
//! - no two instances share a memory unit,
//! - no profile has more instances than its own limit, nor the GPU more than its limit,
//! - the compute slices add up to no more than the GPU has, and
//! - the media engines suffice (below).
//!
//! Media engines: a plain or `+gfx` instance gets the engines of its slices, so those never run out
//! before the slices do. `+me` takes in addition the GPU's media extensions (its one OFA, and on
//! A30 and A100 its one JPEG engine), and `+me.all` takes every engine there is. Hence at most one
//! instance of `+me` or `+me.all`, of any size, is on a GPU; and beside `+me.all` only `-me`
//! instances, which have no engine, are possible. This is what adding up the DEC, ENC, JPEG and OFA
//! columns of `nvidia-smi mig -lgip` gives on every board whose columns are known; a test does that
//! addition.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::board::{Board, Profile};
use super::geometry::{Geometry, Starts};
use super::name::{Attribute, ProfileName};

/// No board allows more instances.
pub(super) const MAX_INSTANCES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    pub profile: &'static Profile,
    /// The first memory unit it covers.
    pub start: u8,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.profile, self.start)
    }
}

/// An instance by its index in the board's table, ordered by start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Slot {
    start: u8,
    index: u8,
}

/// Ascending by start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slots {
    items: [Slot; MAX_INSTANCES],
    len: u8,
}

impl Slots {
    pub(super) fn as_slice(&self) -> &[Slot] {
        &self.items[..usize::from(self.len)]
    }

    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.as_slice().contains(&slot)
    }

    /// Inserts in order; has no effect if the array is full, which legality rules out.
    pub(super) fn insert(&mut self, slot: Slot) {
        let len = usize::from(self.len);
        if len == MAX_INSTANCES {
            return;
        }
        let at = self.as_slice().iter().position(|s| *s > slot).unwrap_or(len);
        self.items.copy_within(at..len, at + 1);
        self.items[at] = slot;
        self.len += 1;
    }

    fn remove(&mut self, at: usize) {
        self.items.copy_within(at + 1..usize::from(self.len), at);
        self.len -= 1;
    }

    pub(super) fn instances(self, board: &'static Board) -> impl Iterator<Item = Instance> {
        self.items.into_iter().take(usize::from(self.len)).filter_map(move |slot| {
            let profile = board.profiles.get(usize::from(slot.index))?;
            Some(Instance { profile, start: slot.start })
        })
    }
}

/// The instances of one GPU: always legal, always in order of their starts.
///
/// A small `Copy` value: add to a copy to ask "what if".
#[derive(Clone, Copy)]
pub struct Layout {
    board: &'static Board,
    geometry: &'static Geometry,
    slots: Slots,
    occupied: u16,
    /// Compute slices in use.
    pub(super) compute: u8,
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.board.id())
    }
}

/// Why an instance is illegal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("MIG placements of board {board} are unknown")]
    PlacementsUnknown { board: &'static str },
    /// The profile belongs to another board.
    #[error("{profile} is not a profile of this GPU's board, {board}")]
    ForeignProfile { profile: ProfileName, board: &'static str },
    /// The profile may not start there.
    #[error("{profile} cannot start at {start}: its legal starts are {legal}")]
    IllegalStart { profile: ProfileName, start: u8, legal: Starts },
    /// Memory units are taken.
    #[error("{profile} cannot start at {start}: it would overlap {with}")]
    Overlap { profile: ProfileName, start: u8, with: Instance },
    /// Too many instances of this profile.
    #[error("{profile} cannot start at {start}: a GPU holds at most {limit} of it")]
    ProfileLimit { profile: ProfileName, start: u8, limit: u8 },
    /// Too many instances on the GPU.
    #[error("{profile} cannot start at {start}: the GPU holds at most {limit} instances")]
    InstanceLimit { profile: ProfileName, start: u8, limit: u8 },
    /// Too few compute slices are left.
    #[error("{profile} cannot start at {start}: {left} compute slices are left")]
    ComputeExhausted { profile: ProfileName, start: u8, left: u8 },
    #[error("{profile} cannot start at {start}: {with} holds media engines it needs")]
    MediaTaken { profile: ProfileName, start: u8, with: Instance },
    #[error("no {profile} at {start}")]
    NotThere { profile: ProfileName, start: u8 },
}

impl Layout {
    /// Fails if the board's placements are unknown.
    pub fn empty(board: &'static Board) -> Result<Self, LayoutError> {
        let geometry = board.geometry.ok_or(LayoutError::PlacementsUnknown { board: board.id })?;
        Ok(Self { board, geometry, slots: Slots::default(), occupied: 0, compute: 0 })
    }

    /// In any order. Fails if the board's placements are unknown or the instances are not a legal
    /// layout.
    pub fn from_instances(
        board: &'static Board,
        instances: impl IntoIterator<Item = (&'static Profile, u8)>,
    ) -> Result<Self, LayoutError> {
        let mut layout = Self::empty(board)?;
        for (profile, start) in instances {
            layout.add(profile, start)?;
        }
        Ok(layout)
    }

    pub const fn board(&self) -> &'static Board {
        self.board
    }

    pub(super) const fn geometry(&self) -> &'static Geometry {
        self.geometry
    }

    pub(super) const fn slots(&self) -> Slots {
        self.slots
    }

    /// Ascending by start.
    pub fn instances(&self) -> impl Iterator<Item = Instance> + use<> {
        self.slots.instances(self.board)
    }

    pub const fn len(&self) -> usize {
        self.slots.len as usize
    }

    pub const fn is_empty(&self) -> bool {
        self.slots.len == 0
    }

    /// The memory units covered; bit `i` is unit `i`.
    pub const fn occupied(&self) -> u16 {
        self.occupied
    }

    pub fn count(&self, profile: &Profile) -> u8 {
        if !self.board.owns(profile) {
            return 0;
        }
        self.slots.as_slice().iter().filter(|s| s.index == profile.index).count() as u8
    }

    pub fn contains(&self, profile: &Profile, start: u8) -> bool {
        self.board.owns(profile) && self.slots.contains(Slot { start, index: profile.index })
    }

    pub fn fits(&self, profile: &'static Profile, start: u8) -> bool {
        self.check(profile, start).is_ok()
    }

    /// The first rule of this module that an instance of `profile` at `start` would break.
    pub fn check(&self, profile: &'static Profile, start: u8) -> Result<(), LayoutError> {
        let Some((_, shape)) = self.board.shape(profile) else {
            let board = self.board.id;
            return Err(LayoutError::ForeignProfile { profile: profile.name, board });
        };
        let name = profile.name;
        let legal = Starts::new(shape.starts);
        if !legal.contains(start) {
            return Err(LayoutError::IllegalStart { profile: name, start, legal });
        }
        let wanted = shape.bits(start);
        if wanted & self.occupied != 0
            && let Some(with) = self.instances().find(|i| self.bits(*i) & wanted != 0)
        {
            return Err(LayoutError::Overlap { profile: name, start, with });
        }
        if self.count(profile) >= profile.max_instances {
            let limit = profile.max_instances;
            return Err(LayoutError::ProfileLimit { profile: name, start, limit });
        }
        if self.slots.len >= self.board.max_instances {
            let limit = self.board.max_instances;
            return Err(LayoutError::InstanceLimit { profile: name, start, limit });
        }
        let left = self.board.compute_slices.saturating_sub(self.compute);
        if shape.compute > left {
            return Err(LayoutError::ComputeExhausted { profile: name, start, left });
        }
        match self.media_holder(profile.attribute()) {
            Some(with) => Err(LayoutError::MediaTaken { profile: name, start, with }),
            None => Ok(()),
        }
    }

    /// On an error the layout is unchanged; see [`Layout::check`].
    pub fn add(&mut self, profile: &'static Profile, start: u8) -> Result<(), LayoutError> {
        self.check(profile, start)?;
        self.occupied |= self.bits(Instance { profile, start });
        self.compute += profile.compute_slices();
        self.slots.insert(Slot { start, index: profile.index });
        Ok(())
    }

    pub fn with(mut self, profile: &'static Profile, start: u8) -> Result<Self, LayoutError> {
        self.add(profile, start)?;
        Ok(self)
    }

    /// Fails if there is no such instance; the layout is then unchanged.
    pub fn remove(&mut self, profile: &'static Profile, start: u8) -> Result<(), LayoutError> {
        let slot = Slot { start, index: profile.index };
        let at = self.slots.as_slice().iter().position(|s| *s == slot);
        match at.filter(|_| self.board.owns(profile)) {
            None => Err(LayoutError::NotThere { profile: profile.name, start }),
            Some(at) => {
                self.slots.remove(at);
                self.occupied &= !self.bits(Instance { profile, start });
                self.compute -= profile.compute_slices();
                Ok(())
            }
        }
    }

    /// How many more instances of `profile` are allowed by every rule but the memory grid.
    pub(super) fn cap(&self, profile: &Profile) -> u8 {
        let own = profile.max_instances.saturating_sub(self.count(profile));
        let all = self.board.max_instances.saturating_sub(self.slots.len);
        let left = self.board.compute_slices.saturating_sub(self.compute);
        let compute = left.checked_div(profile.compute_slices()).unwrap_or(0);
        let media = match profile.attribute() {
            a if self.media_holder(a).is_some() => 0,
            Attribute::Media | Attribute::MediaAll => 1,
            Attribute::Plain | Attribute::NoMedia | Attribute::Graphics => u8::MAX,
        };
        own.min(all).min(compute).min(media)
    }

    /// The instance that holds media engines which this attribute needs.
    fn media_holder(&self, wanted: Attribute) -> Option<Instance> {
        use Attribute::{Graphics, Media, MediaAll, NoMedia, Plain};
        let clashes = |held: Attribute| match (wanted, held) {
            (NoMedia, _) | (_, NoMedia) => false,
            (MediaAll, _) | (_, MediaAll) | (Media, Media) => true,
            (Plain | Graphics, _) | (Media, Plain | Graphics) => false,
        };
        self.instances().find(|i| clashes(i.profile.attribute()))
    }

    fn bits(&self, instance: Instance) -> u16 {
        self.board.shape(instance.profile).map_or(0, |(_, s)| s.bits(instance.start))
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        self.board == other.board && self.slots.as_slice() == other.slots.as_slice()
    }
}

impl Eq for Layout {}

impl Hash for Layout {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.board.id.hash(state);
        self.slots.as_slice().hash(state);
    }
}

impl PartialOrd for Layout {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Layout {
    /// By board, then by the instances from the lowest start on.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |l: &Self| l.board.id;
        key(self).cmp(key(other)).then_with(|| self.slots.as_slice().cmp(other.slots.as_slice()))
    }
}

//! From the slices that are there to those that are wanted.
//!
//! Owns the choice of places: of all ways to have what is wanted the one that destroys the fewest slices,
//! and of those the one that keeps the most possible afterwards. Slices with work stay where they are.
//! Where something does not fit, it says why. Must not change anything.

use std::fmt::Write as _;

use berth_model::mig::{Board, Layout, Profile, ProfileName};

use super::busy::Busy;
use super::driver::MigGpu;
use super::layout::{GpuLayout, Place, Slice};
use super::wish::{Wanted, WantedSlice, Wish};

/// Which GPUs may be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Those without work.
    #[default]
    IdleGpus,
    /// Also those with work, around the slices that have it.
    AroundWork,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigChanges {
    /// GPUs that something is wanted of, in the driver's order; those that have it already too.
    pub gpus: Vec<GpuPlan>,
}

/// What is to be done on one GPU: what goes first, then what comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPlan {
    /// Its number.
    pub index: u32,
    /// What it is called.
    pub product: String,
    /// What it is divided into.
    pub from: GpuLayout,
    /// What it will be divided into.
    pub to: GpuLayout,
}

impl GpuPlan {
    /// Whether there is anything to do.
    pub fn is_nothing(&self) -> bool {
        self.from == self.to
    }

    /// Slices that stay.
    pub fn kept(&self) -> impl Iterator<Item = Place> {
        self.from.slices.iter().filter(|one| self.stays(one)).map(|one| one.place)
    }

    /// Slices that go.
    pub fn destroyed(&self) -> impl Iterator<Item = Place> {
        self.from.slices.iter().filter(|one| !self.stays(one)).map(|one| one.place)
    }

    /// Slices that come.
    pub fn created(&self) -> impl Iterator<Item = Place> {
        let is_new = |place: &Place| self.kept().all(|kept| kept != *place);
        self.to.slices.iter().map(|one| one.place).filter(is_new)
    }

    fn stays(&self, slice: &Slice) -> bool {
        self.to.slices.iter().any(|one| slice.can_become(one))
    }
}

impl MigChanges {
    /// Whether there is anything to do.
    pub fn is_nothing(&self) -> bool {
        self.gpus.iter().all(GpuPlan::is_nothing)
    }
}

/// Why something cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// GPUs that are not there.
    #[error("there is no GPU {}; nvidia-smi -L lists those that are", .0.join(", "))]
    NoSuchGpu(Vec<String>),
    /// Nothing is wanted of any GPU that could have it.
    #[error("no GPU of this machine is meant, or none that is can be divided")]
    NothingMeant,
    /// A GPU without MIG.
    #[error("GPU {gpu} ({product}) cannot be divided; name other GPUs")]
    NotDivisible {
        /// Its number.
        gpu: u32,
        /// What it is called.
        product: String,
    },
    /// A GPU of which it is not known where slices may lie.
    #[error(
        "GPU {gpu} ({product}) is of no board whose slices are known; divide it with nvidia-smi mig"
    )]
    UnknownBoard {
        /// Its number.
        gpu: u32,
        /// What it is called.
        product: String,
    },
    /// A change of mode that waits for a reset.
    #[error(
        "GPU {gpu} waits for a reset to change its MIG mode; drain the node and run nvidia-smi \
         --gpu-reset -i {gpu}, or reboot"
    )]
    ResetPending {
        /// Its number.
        gpu: u32,
    },
    /// A profile that a GPU does not have.
    #[error("GPU {gpu} has no slices {profile}; it has {has}")]
    NoSuchProfile {
        /// Its number.
        gpu: u32,
        /// What is wanted.
        profile: ProfileName,
        /// What it has.
        has: String,
    },
    /// Slices that cannot be together.
    #[error("GPU {gpu} cannot have {wanted} together: {why}")]
    DoesNotFit {
        /// Its number.
        gpu: u32,
        /// What is wanted.
        wanted: String,
        /// Why not.
        why: String,
    },
    /// A GPU with work, which was not to be touched.
    #[error("GPU {gpu} is in use by {who}; wait until it is idle{}", .remedy)]
    Busy {
        /// Its number.
        gpu: u32,
        /// Who uses it.
        who: String,
        /// What else can be done, if anything.
        remedy: &'static str,
    },
    /// A slice with work that is in the way.
    #[error(
        "GPU {gpu} cannot have {wanted}: {slice} is in use by {who}, and {why}; wait until it is idle, \
         or want what leaves it where it is"
    )]
    BusyInTheWay {
        /// Its number.
        gpu: u32,
        /// What is wanted.
        wanted: String,
        /// The slice.
        slice: Place,
        /// Who uses it.
        who: String,
        /// Why it is in the way.
        why: &'static str,
    },
    /// The driver has other places than the board's table.
    #[error(
        "GPU {gpu}: the driver has no place for {place}, unlike the table of boards; name a place that \
         nvidia-smi mig -lgipp lists"
    )]
    PlacedDifferently {
        /// Its number.
        gpu: u32,
        /// What was to be created.
        place: Place,
    },
    /// Slices that the table of boards does not know.
    #[error(
        "GPU {gpu} has {slices}, which its board cannot have by its table; divide it with nvidia-smi mig"
    )]
    OddSlices {
        /// Its number.
        gpu: u32,
        /// What it has.
        slices: String,
    },
}

/// What to do so that GPUs have what is wished for.
///
/// # Errors
/// When some GPU cannot have it: then nothing should be done to any.
pub fn plan(
    gpus: &[MigGpu],
    wish: &Wish,
    busy: &Busy,
    reach: Reach,
) -> Result<MigChanges, Refusal> {
    let strangers = wish.strangers(gpus);
    if !strangers.is_empty() {
        return Err(Refusal::NoSuchGpu(strangers));
    }
    let mut plan = MigChanges::default();
    for gpu in gpus {
        let Some(wanted) = wish.of(gpu) else { continue };
        if gpu.enabled.is_none() {
            if !wish.names(gpu) || *wanted == Wanted::Off {
                continue;
            }
            return Err(Refusal::NotDivisible { gpu: gpu.index, product: gpu.product.clone() });
        }
        let to = GpuLayout {
            gpu: gpu.uuid.clone(),
            enabled: *wanted != Wanted::Off,
            slices: Search::new(gpu, wanted, busy)?.slices()?,
        };
        let from = gpu.layout();
        let one = GpuPlan { index: gpu.index, product: gpu.product.clone(), from, to };
        permit(gpu, &one, busy, reach)?;
        plan.gpus.push(one);
    }
    if plan.gpus.is_empty() {
        return Err(Refusal::NothingMeant);
    }
    Ok(plan)
}

/// Whether a GPU may be changed at all.
fn permit(gpu: &MigGpu, plan: &GpuPlan, busy: &Busy, reach: Reach) -> Result<(), Refusal> {
    if plan.is_nothing() {
        return Ok(());
    }
    let refused =
        |who: &str, remedy| Err(Refusal::Busy { gpu: gpu.index, who: who.to_owned(), remedy });
    if let Some(who) = busy.of_gpu(&gpu.uuid) {
        return refused(who, "");
    }
    let mut at_work = gpu.slices.iter().filter_map(|one| busy.of_slice(&gpu.uuid, one.place));
    match at_work.next() {
        Some(who) if reach == Reach::IdleGpus => refused(who, ", or divide around work"),
        _ => Ok(()),
    }
}

/// The search for places on one GPU.
struct Search<'a> {
    gpu: &'a MigGpu,
    busy: &'a Busy,
    board: &'static Board,
    /// Kinds that both the driver and the board know, by the driver's name.
    kinds: Vec<(ProfileName, &'static Profile)>,
    wanted: Vec<(&'static Profile, Option<u8>)>,
    /// What was written, for people.
    text: String,
}

impl<'a> Search<'a> {
    fn new(gpu: &'a MigGpu, wanted: &Wanted, busy: &'a Busy) -> Result<Self, Refusal> {
        let unknown = || Refusal::UnknownBoard { gpu: gpu.index, product: gpu.product.clone() };
        if gpu.enabled != Some(gpu.pending) {
            return Err(Refusal::ResetPending { gpu: gpu.index });
        }
        let board = gpu.board.ok_or_else(unknown)?;
        let kinds: Vec<(ProfileName, &'static Profile)> = gpu
            .offers
            .iter()
            .filter_map(|offer| Some((offer.profile, board.find(offer.profile)?.0)))
            .collect();
        let mut search = Self { gpu, busy, board, kinds, wanted: Vec::new(), text: String::new() };
        let slices = wanted.slices(board).ok_or_else(unknown)?;
        for one in slices {
            let profile = search.kind(one)?;
            search.wanted.push((profile, one.start));
        }
        search.text = search.words();
        Ok(search)
    }

    /// What is wanted: `2x1g.18gb + 3g.71gb@4`.
    fn words(&self) -> String {
        let mut counted: Vec<(String, usize)> = Vec::new();
        for (profile, start) in &self.wanted {
            let mut name = self.name(profile).to_string();
            if let Some(start) = start {
                let _ = write!(name, "@{start}");
            }
            match counted.iter_mut().find(|(known, _)| *known == name) {
                Some((_, count)) => *count += 1,
                None => counted.push((name, 1)),
            }
        }
        let words = counted.into_iter().map(|(name, count)| match count {
            1 => name,
            _ => format!("{count}x{name}"),
        });
        let words: Vec<String> = words.collect();
        if words.is_empty() { "no slices".to_owned() } else { words.join(" + ") }
    }

    /// The driver's name is meant first; then what the board's table knows by another.
    fn kind(&self, one: WantedSlice) -> Result<&'static Profile, Refusal> {
        let by_driver = self.kinds.iter().find(|(name, _)| *name == one.profile);
        let by_table = || {
            let (profile, _) = self.board.find(one.profile)?;
            self.kinds.iter().find(|(_, known)| *known == profile)
        };
        let found = by_driver.or_else(by_table).map(|(_, profile)| *profile);
        found.ok_or_else(|| {
            let has: Vec<String> =
                self.gpu.offers.iter().map(|one| one.profile.to_string()).collect();
            Refusal::NoSuchProfile {
                gpu: self.gpu.index,
                profile: one.profile,
                has: if has.is_empty() { "none that are known".to_owned() } else { has.join(", ") },
            }
        })
    }

    fn name(&self, profile: &Profile) -> ProfileName {
        let known = self.kinds.iter().find(|(_, known)| *known == profile);
        known.map_or_else(|| profile.name(), |(name, _)| *name)
    }

    /// The slices that the GPU should have.
    fn slices(&self) -> Result<Vec<Slice>, Refusal> {
        let layout = self.layout()?;
        let mut slices = Vec::new();
        for instance in layout.instances() {
            let place = Place { profile: self.name(instance.profile), start: instance.start };
            let there = self.gpu.slices.iter().find(|one| one.place == place);
            if there.is_none() && !self.driver_has(place) {
                return Err(Refusal::PlacedDifferently { gpu: self.gpu.index, place });
            }
            // Work stays, however its compute is divided.
            let kept = there.filter(|one| self.is_busy(one));
            slices.push(kept.cloned().unwrap_or_else(|| Slice::whole(place)));
        }
        slices.sort();
        Ok(slices)
    }

    fn driver_has(&self, place: Place) -> bool {
        let offer = self.gpu.offers.iter().find(|one| one.profile == place.profile);
        offer.is_some_and(|offer| offer.starts.is_empty() || offer.starts.contains(&place.start))
    }

    fn is_busy(&self, slice: &Slice) -> bool {
        self.busy.of_slice(&self.gpu.uuid, slice.place).is_some()
    }

    /// Slices that are there, as the board knows them.
    fn there(&self) -> Result<Vec<(&'a Slice, &'static Profile)>, Refusal> {
        let odd = || {
            let slices: Vec<String> = self.gpu.slices.iter().map(Slice::to_string).collect();
            Refusal::OddSlices { gpu: self.gpu.index, slices: slices.join(" + ") }
        };
        let known = self.gpu.slices.iter().map(|one| {
            let kind = self.kinds.iter().find(|(name, _)| *name == one.place.profile);
            Ok((one, kind.ok_or_else(odd)?.1))
        });
        let known: Vec<_> = known.collect::<Result<_, _>>()?;
        let all = known.iter().map(|(one, profile)| (*profile, one.place.start));
        Layout::from_instances(self.board, all).map_err(|_| odd())?;
        Ok(known)
    }

    /// What has to be where it is said to be, and the rest where it disturbs least.
    fn layout(&self) -> Result<Layout, Refusal> {
        let there = self.there()?;
        let pinned = self.wanted.iter().filter_map(|(profile, start)| Some((*profile, (*start)?)));
        let pinned: Vec<(&'static Profile, u8)> = pinned.collect();
        let base = Layout::from_instances(self.board, pinned.iter().copied())
            .map_err(|error| self.does_not_fit(error.to_string()))?;
        let free: Vec<&'static Profile> =
            self.wanted.iter().filter(|(_, start)| start.is_none()).map(|(one, _)| *one).collect();
        if base.with_all(&free).is_none() {
            return Err(self.does_not_fit(self.why_not(&base, &free)));
        }
        // Slices that could stay, those with work first.
        let mut could: Vec<(&Slice, &'static Profile, bool)> = Vec::new();
        for (slice, profile) in there {
            let at_work = self.is_busy(slice);
            if pinned.contains(&(profile, slice.place.start)) {
                continue;
            }
            let wanted = free.contains(&profile) && base.fits(profile, slice.place.start);
            if at_work && !wanted {
                return Err(self.in_the_way(slice, "that is not among it or not there"));
            }
            // What has its compute divided is not what is wanted.
            if wanted && (at_work || slice.is_whole() || slice.compute.is_empty()) {
                could.push((slice, profile, at_work));
            }
        }
        could.sort_by_key(|(slice, _, at_work)| (!at_work, slice.place));
        self.best(&base, &free, &could)
    }

    /// Tries all sets of slices that could stay, the largest first.
    fn best(
        &self,
        base: &Layout,
        free: &[&'static Profile],
        could: &[(&Slice, &'static Profile, bool)],
    ) -> Result<Layout, Refusal> {
        let at_work = could.iter().filter(|(_, _, at_work)| *at_work).count();
        // A GPU has at most 8 slices.
        let must: u32 = (1 << at_work.min(31)) - 1;
        let mut sets: Vec<u32> = (0..1u32 << could.len().min(16)).collect();
        sets.retain(|set| set & must == must);
        sets.sort_by_key(|set| (std::cmp::Reverse(set.count_ones()), *set));
        let mut best: Option<(u32, Layout)> = None;
        for set in sets {
            if best.is_some_and(|(kept, _)| kept > set.count_ones()) {
                break;
            }
            let Some(found) = keeping(base, free, could, set) else { continue };
            let better = best.is_none_or(|(_, layout)| found.future() > layout.future());
            if better {
                best = Some((set.count_ones(), found));
            }
        }
        match (best, could.first()) {
            (Some((_, layout)), _) => Ok(layout),
            (None, Some((slice, ..))) => {
                Err(self.in_the_way(slice, "the rest does not fit beside it"))
            }
            // Without anything to keep it fits, as was seen before.
            (None, None) => Err(self.does_not_fit("there is no room".to_owned())),
        }
    }

    fn in_the_way(&self, slice: &Slice, why: &'static str) -> Refusal {
        let who = self.busy.of_slice(&self.gpu.uuid, slice.place).unwrap_or("somebody").to_owned();
        let (gpu, wanted) = (self.gpu.index, self.text.clone());
        Refusal::BusyInTheWay { gpu, wanted, slice: slice.place, who, why }
    }

    fn does_not_fit(&self, why: String) -> Refusal {
        Refusal::DoesNotFit { gpu: self.gpu.index, wanted: self.text.clone(), why }
    }

    /// Which limit is reached first, for people.
    fn why_not(&self, base: &Layout, free: &[&'static Profile]) -> String {
        let all = || base.instances().map(|one| one.profile).chain(free.iter().copied());
        let compute: u32 = all().map(|one| u32::from(one.compute_slices())).sum();
        if compute > u32::from(self.board.compute_slices()) {
            let most = self.board.compute_slices();
            return format!("they take {compute} compute slices, and it has {most}");
        }
        let units: u32 = all().filter_map(|one| one.memory_units()).map(u32::from).sum();
        let grid = self.board.memory_units().unwrap_or(0);
        if units > u32::from(grid) {
            return format!("they take {units} units of memory, and it has {grid}");
        }
        for (name, profile) in &self.kinds {
            let count = all().filter(|one| one == profile).count();
            if count > usize::from(profile.max_instances()) {
                return format!("it can have {} of {name}", profile.max_instances());
            }
        }
        "there are no places for all of them at once, as nvidia-smi mig -lgipp shows".to_owned()
    }
}

/// The layout with these slices kept, if there is one.
fn keeping(
    base: &Layout,
    free: &[&'static Profile],
    could: &[(&Slice, &'static Profile, bool)],
    set: u32,
) -> Option<Layout> {
    let mut layout = *base;
    let mut rest = free.to_vec();
    let kept = could.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
    for (_, (slice, profile, _)) in kept {
        let at = rest.iter().position(|one| one == profile)?;
        rest.remove(at);
        layout.add(profile, slice.place.start).ok()?;
    }
    layout.with_all(&rest)
}

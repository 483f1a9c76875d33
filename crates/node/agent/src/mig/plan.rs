//! Plans the changes from the present slices to the requested ones: of all possible placements, those that destroy
//! the fewest slices, and of these the ones that leave the most room for later requests. Slices in use stay where
//! they are.

use std::fmt::Write as _;

use berth_model::mig::{Board, Layout, Profile, ProfileName};

use super::driver::MigGpu;
use super::layout::{GpuLayout, Placement, Slice};
use super::request::{LayoutRequest, RequestedLayout, RequestedSlice};
use super::workloads::Workloads;

/// GPUs that may be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// GPUs without slices in use.
    #[default]
    IdleGpus,
    /// Also GPUs with slices in use, around these slices.
    AroundWork,
}

/// Changes of all GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigChanges {
    /// In the driver's order, including GPUs without changes.
    pub gpus: Vec<GpuChanges>,
}

/// Changes of one GPU. Slices are destroyed first, then created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuChanges {
    pub index: u32,
    pub product: String,
    pub from: GpuLayout,
    pub to: GpuLayout,
}

impl GpuChanges {
    pub fn is_nothing(&self) -> bool {
        self.from == self.to
    }

    pub fn kept(&self) -> impl Iterator<Item = Placement> {
        self.from.slices.iter().filter(|one| self.stays(one)).map(|one| one.place)
    }

    pub fn destroyed(&self) -> impl Iterator<Item = Placement> {
        self.from.slices.iter().filter(|one| !self.stays(one)).map(|one| one.place)
    }

    pub fn created(&self) -> impl Iterator<Item = Placement> {
        let is_new = |place: &Placement| self.kept().all(|kept| kept != *place);
        self.to.slices.iter().map(|one| one.place).filter(is_new)
    }

    fn stays(&self, slice: &Slice) -> bool {
        self.to.slices.iter().any(|one| slice.can_become(one))
    }
}

impl MigChanges {
    pub fn is_nothing(&self) -> bool {
        self.gpus.iter().all(GpuChanges::is_nothing)
    }
}

/// Why a request cannot be fulfilled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no such GPU: {}; list GPUs with nvidia-smi -L", .0.join(", "))]
    NoSuchGpu(Vec<String>),
    #[error("the request applies to no GPU of this machine that supports MIG")]
    NothingMeant,
    #[error("GPU {gpu} ({product}) does not support MIG; select other GPUs")]
    NotDivisible { gpu: u32, product: String },
    #[error("GPU {gpu} ({product}) is an unknown board; use nvidia-smi mig")]
    UnknownBoard { gpu: u32, product: String },
    #[error(
        "GPU {gpu} needs a reset to change its MIG mode; drain the node and run nvidia-smi --gpu-reset -i {gpu}, \
         or reboot"
    )]
    ResetPending { gpu: u32 },
    #[error("GPU {gpu} does not support profile {profile}; it supports {has}")]
    NoSuchProfile { gpu: u32, profile: ProfileName, has: String },
    #[error("{wanted} does not fit on GPU {gpu}: {why}")]
    DoesNotFit { gpu: u32, wanted: String, why: String },
    #[error("GPU {gpu} is in use by {who}; wait until it is idle{}", .remedy)]
    Busy {
        gpu: u32,
        who: String,
        /// Another remedy, if there is one.
        remedy: &'static str,
    },
    #[error(
        "GPU {gpu} cannot have {wanted}: {slice} is in use by {who}, and {why}; wait until it is idle, or request a \
         layout that keeps it"
    )]
    BusyInTheWay { gpu: u32, wanted: String, slice: Placement, who: String, why: &'static str },
    /// The driver and the table of boards disagree.
    #[error(
        "GPU {gpu}: the driver does not support placement {place}; request one that nvidia-smi mig -lgipp lists"
    )]
    PlacedDifferently { gpu: u32, place: Placement },
    /// The present slices contradict the table of boards.
    #[error("GPU {gpu} has {slices}, which is not possible on its known board; use nvidia-smi mig")]
    OddSlices { gpu: u32, slices: String },
}

/// Plans the changes for a request.
///
/// # Errors
/// If any GPU cannot have the requested layout; then no GPU should be changed.
pub fn plan(
    gpus: &[MigGpu],
    request: &LayoutRequest,
    workloads: &Workloads,
    reach: Reach,
) -> Result<MigChanges, Refusal> {
    let missing = request.missing_gpus(gpus);
    if !missing.is_empty() {
        return Err(Refusal::NoSuchGpu(missing));
    }
    let mut plan = MigChanges::default();
    for gpu in gpus {
        let Some(wanted) = request.of(gpu) else { continue };
        if gpu.enabled.is_none() {
            if !request.names(gpu) || *wanted == RequestedLayout::Off {
                continue;
            }
            return Err(Refusal::NotDivisible { gpu: gpu.index, product: gpu.product.clone() });
        }
        let to = GpuLayout {
            gpu: gpu.uuid.clone(),
            enabled: *wanted != RequestedLayout::Off,
            slices: Search::new(gpu, wanted, workloads)?.slices()?,
        };
        let from = gpu.layout();
        let one = GpuChanges { index: gpu.index, product: gpu.product.clone(), from, to };
        permit(gpu, &one, workloads, reach)?;
        plan.gpus.push(one);
    }
    if plan.gpus.is_empty() {
        return Err(Refusal::NothingMeant);
    }
    Ok(plan)
}

/// Whether a GPU may be changed at all.
fn permit(
    gpu: &MigGpu,
    plan: &GpuChanges,
    workloads: &Workloads,
    reach: Reach,
) -> Result<(), Refusal> {
    if plan.is_nothing() {
        return Ok(());
    }
    let refused =
        |who: &str, remedy| Err(Refusal::Busy { gpu: gpu.index, who: who.to_owned(), remedy });
    if let Some(who) = workloads.gpu_user(&gpu.uuid) {
        return refused(who, "");
    }
    let mut at_work =
        gpu.slices.iter().filter_map(|one| workloads.slice_user(&gpu.uuid, one.place));
    match at_work.next() {
        Some(who) if reach == Reach::IdleGpus => refused(who, ", or repartition around it"),
        _ => Ok(()),
    }
}

/// Search for placements on one GPU.
struct Search<'a> {
    gpu: &'a MigGpu,
    workloads: &'a Workloads,
    board: &'static Board,
    /// Profiles that both the driver and the board know, by the driver's name.
    kinds: Vec<(ProfileName, &'static Profile)>,
    wanted: Vec<(&'static Profile, Option<u8>)>,
    /// The request, for errors.
    text: String,
}

impl<'a> Search<'a> {
    fn new(
        gpu: &'a MigGpu,
        wanted: &RequestedLayout,
        workloads: &'a Workloads,
    ) -> Result<Self, Refusal> {
        let unknown = || Refusal::UnknownBoard { gpu: gpu.index, product: gpu.product.clone() };
        if gpu.enabled != Some(gpu.pending) {
            return Err(Refusal::ResetPending { gpu: gpu.index });
        }
        let board = gpu.board.ok_or_else(unknown)?;
        let kinds: Vec<(ProfileName, &'static Profile)> = gpu
            .profiles
            .iter()
            .filter_map(|offer| Some((offer.profile, board.find(offer.profile)?.0)))
            .collect();
        let mut search =
            Self { gpu, workloads, board, kinds, wanted: Vec::new(), text: String::new() };
        let slices = wanted.slices(board).ok_or_else(unknown)?;
        for one in slices {
            let profile = search.kind(one)?;
            search.wanted.push((profile, one.start));
        }
        search.text = search.describe();
        Ok(search)
    }

    /// The request: `2x1g.18gb + 3g.71gb@4`.
    fn describe(&self) -> String {
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

    /// Prefers the driver's names, then those of the board's table.
    fn kind(&self, one: RequestedSlice) -> Result<&'static Profile, Refusal> {
        let by_driver = self.kinds.iter().find(|(name, _)| *name == one.profile);
        let by_table = || {
            let (profile, _) = self.board.find(one.profile)?;
            self.kinds.iter().find(|(_, known)| *known == profile)
        };
        let found = by_driver.or_else(by_table).map(|(_, profile)| *profile);
        found.ok_or_else(|| {
            let has: Vec<String> =
                self.gpu.profiles.iter().map(|one| one.profile.to_string()).collect();
            Refusal::NoSuchProfile {
                gpu: self.gpu.index,
                profile: one.profile,
                has: if has.is_empty() { "none".to_owned() } else { has.join(", ") },
            }
        })
    }

    fn name(&self, profile: &Profile) -> ProfileName {
        let known = self.kinds.iter().find(|(_, known)| *known == profile);
        known.map_or_else(|| profile.name(), |(name, _)| *name)
    }

    /// The slices of the new layout.
    fn slices(&self) -> Result<Vec<Slice>, Refusal> {
        let layout = self.layout()?;
        let mut slices = Vec::new();
        for instance in layout.instances() {
            let place = Placement { profile: self.name(instance.profile), start: instance.start };
            let there = self.gpu.slices.iter().find(|one| one.place == place);
            if there.is_none() && !self.driver_has(place) {
                return Err(Refusal::PlacedDifferently { gpu: self.gpu.index, place });
            }
            // A slice in use stays, whatever its compute instances.
            let kept = there.filter(|one| self.is_busy(one));
            slices.push(kept.cloned().unwrap_or_else(|| Slice::whole(place)));
        }
        slices.sort();
        Ok(slices)
    }

    fn driver_has(&self, place: Placement) -> bool {
        let offer = self.gpu.profiles.iter().find(|one| one.profile == place.profile);
        offer.is_some_and(|offer| offer.starts.is_empty() || offer.starts.contains(&place.start))
    }

    fn is_busy(&self, slice: &Slice) -> bool {
        self.workloads.slice_user(&self.gpu.uuid, slice.place).is_some()
    }

    /// Present slices with their profiles.
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

    /// Slices with a requested position go there, the others where they disturb least.
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
        // Slices that could stay, those in use first.
        let mut could: Vec<(&Slice, &'static Profile, bool)> = Vec::new();
        for (slice, profile) in there {
            let at_work = self.is_busy(slice);
            if pinned.contains(&(profile, slice.place.start)) {
                continue;
            }
            let wanted = free.contains(&profile) && base.fits(profile, slice.place.start);
            if at_work && !wanted {
                return Err(
                    self.in_the_way(slice, "the request does not include it at this position")
                );
            }
            // A slice with split compute is not what was requested.
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
            // Without slices to keep, the request fits, as was checked above.
            (None, None) => Err(self.does_not_fit("no room".to_owned())),
        }
    }

    fn in_the_way(&self, slice: &Slice, why: &'static str) -> Refusal {
        let who =
            self.workloads.slice_user(&self.gpu.uuid, slice.place).unwrap_or("somebody").to_owned();
        let (gpu, wanted) = (self.gpu.index, self.text.clone());
        Refusal::BusyInTheWay { gpu, wanted, slice: slice.place, who, why }
    }

    fn does_not_fit(&self, why: String) -> Refusal {
        Refusal::DoesNotFit { gpu: self.gpu.index, wanted: self.text.clone(), why }
    }

    /// The limit that is exceeded, for errors.
    fn why_not(&self, base: &Layout, free: &[&'static Profile]) -> String {
        let all = || base.instances().map(|one| one.profile).chain(free.iter().copied());
        let compute: u32 = all().map(|one| u32::from(one.compute_slices())).sum();
        if compute > u32::from(self.board.compute_slices()) {
            let most = self.board.compute_slices();
            return format!("needs {compute} compute slices of {most}");
        }
        let units: u32 = all().filter_map(|one| one.memory_units()).map(u32::from).sum();
        let grid = self.board.memory_units().unwrap_or(0);
        if units > u32::from(grid) {
            return format!("needs {units} memory units of {grid}");
        }
        for (name, profile) in &self.kinds {
            let count = all().filter(|one| one == profile).count();
            if count > usize::from(profile.max_instances()) {
                return format!("the maximum of {name} is {}", profile.max_instances());
            }
        }
        "no combination of placements works; see nvidia-smi mig -lgipp".to_owned()
    }
}

/// The layout with a set of slices kept, if there is one.
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

//! The search for a repartition plan: which instances are promised to which requests and moved
//! pods, one request after the other.

use std::collections::BTreeSet;

use berth_model::mig::{Instance, Layout, Profile};

use super::{GpuState, Touch};
use crate::slice::SliceRequest;

/// Limit of GPUs whose pods are considered for moving, per request.
const MOVED_FROM_MAX: usize = 64;

/// The user of a promised instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promise {
    /// A request, by position.
    Request(usize),
    /// MovedPods pods, as a position in [`Books::moved`].
    Moved(usize),
}

/// Pods that leave an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MovedPods {
    pub(super) gpu: usize,
    pub(super) instance: Instance,
    pub(super) pods: u32,
}

/// One GPU of the books.
#[derive(Debug, Clone)]
struct Row {
    allowed: bool,
    /// Instances with work that stays, and promised existing ones.
    base: Layout,
    works: bool,
    /// Existing instances that are neither in use nor promised nor in the way.
    idle: Vec<Instance>,
    existing: Vec<(Promise, Instance)>,
    created: Vec<(Promise, &'static Profile)>,
}

/// The layout of a GPU after the plan.
pub(super) struct PlannedLayout {
    pub(super) layout: Layout,
    pub(super) promised: Vec<(Promise, Instance)>,
}

/// All promises.
#[derive(Debug, Clone)]
pub(super) struct Books {
    rows: Vec<Row>,
    pub(super) moved: Vec<MovedPods>,
    served: Vec<bool>,
}

/// The largest share of a GPU that a request can take, in millionths.
pub(super) fn size(want: &SliceRequest) -> u64 {
    let shares = want.options().iter().filter_map(|(board, profile)| board.share(profile));
    shares.map(|s| 1_000_000 * u64::from(s.parts) / u64::from(s.of.max(1))).max().unwrap_or(0)
}

/// Serves the requests in this order, creating instances on allowed GPUs only.
pub(super) fn serve(
    gpus: &[GpuState],
    requests: &[SliceRequest],
    order: &[usize],
    allowed: &[bool],
    touch: Touch,
) -> Books {
    let rows = gpus.iter().zip(allowed).map(|(gpu, allowed)| Row::new(gpu, *allowed)).collect();
    let mut books = Books { rows, moved: Vec::new(), served: vec![false; requests.len()] };
    for at in order {
        books.served[*at] = books.promise(&requests[*at], Promise::Request(*at));
    }
    if touch < Touch::MovablePods {
        return books;
    }
    for at in order.iter().filter(|at| !books.served[**at]).copied().collect::<Vec<_>>() {
        if let Some(better) = books.with_moves(gpus, &requests[at], at) {
            books = better;
        }
    }
    books
}

impl Row {
    fn new(gpu: &GpuState, allowed: bool) -> Self {
        let mut base = gpu.layout;
        let is_held =
            |i: &Instance| gpu.held.iter().any(|h| (h.profile, h.start) == (i.profile, i.start));
        let idle: Vec<Instance> = gpu.layout.instances().filter(|i| !is_held(i)).collect();
        for i in &idle {
            // It exists, so it can be removed.
            let _ = base.remove(i.profile, i.start);
        }
        let works = !gpu.held.is_empty();
        Self { allowed, base, works, idle, existing: Vec::new(), created: Vec::new() }
    }

    fn profiles(&self) -> Vec<&'static Profile> {
        self.created.iter().map(|(_, profile)| *profile).collect()
    }

    /// The idle instances that can stay when an instance of `profile` is created; `None` if there
    /// is no room even without any.
    fn keeping(&self, profile: &'static Profile) -> Option<Vec<Instance>> {
        let mut wanted = self.profiles();
        wanted.push(profile);
        self.base.with_all(&wanted)?;
        let mut kept: Vec<Instance> = Vec::new();
        let mut base = self.base;
        for i in &self.idle {
            if let Ok(more) = base.with(i.profile, i.start)
                && more.with_all(&wanted).is_some()
            {
                base = more;
                kept.push(*i);
            }
        }
        Some(kept)
    }

    /// What stays, and what is created where it leaves the greatest future.
    fn planned(&self) -> PlannedLayout {
        let stays = |mut layout: Layout, i: &Instance| {
            let _ = layout.add(i.profile, i.start);
            layout
        };
        let stay = self.idle.iter().fold(self.base, stays);
        let layout = stay.with_all(&self.profiles()).unwrap_or(stay);
        let mut promised = self.existing.clone();
        let mut fresh: Vec<Instance> =
            layout.instances().filter(|i| !stay.contains(i.profile, i.start)).collect();
        for (promise, profile) in &self.created {
            if let Some(at) = fresh.iter().position(|i| i.profile == *profile) {
                promised.push((*promise, fresh.remove(at)));
            }
        }
        PlannedLayout { layout, promised }
    }
}

impl Books {
    pub(super) fn served(&self) -> usize {
        self.served.iter().filter(|served| **served).count()
    }

    /// Whether every request that the other books serve is served, without more moves.
    pub(super) fn serves_as_much(&self, other: &Books) -> bool {
        self.served.iter().zip(&other.served).all(|(ours, theirs)| *ours || !theirs)
            && self.pods_moved() <= other.pods_moved()
    }

    pub(super) fn touched_at(&self, gpu: usize) -> bool {
        self.rows.get(gpu).is_some_and(|row| !row.created.is_empty())
    }

    pub(super) fn touched(&self) -> impl Iterator<Item = bool> {
        self.rows.iter().map(|row| !row.created.is_empty())
    }

    pub(super) fn works_at(&self, gpu: usize) -> bool {
        self.rows.get(gpu).is_some_and(|row| row.works)
    }

    pub(super) fn planned(&self, gpu: usize) -> PlannedLayout {
        self.rows[gpu].planned()
    }

    /// The idle instances of all other GPUs.
    pub(super) fn idle_elsewhere(&self, gpus: &[GpuState], except: usize) -> Vec<Layout> {
        let rows =
            self.rows.iter().enumerate().filter(|(at, r)| *at != except && !r.idle.is_empty());
        let idle = rows.filter_map(|(at, row)| {
            let instances = row.idle.iter().map(|i| (i.profile, i.start));
            Layout::from_instances(gpus[at].layout.board(), instances).ok()
        });
        idle.collect()
    }

    fn pods_moved(&self) -> u64 {
        self.moved.iter().map(|moved| u64::from(moved.pods)).sum()
    }

    /// Promises an existing idle instance, or one to be created. Returns whether there is one.
    fn promise(&mut self, want: &SliceRequest, promise: Promise) -> bool {
        self.promise_existing(want, promise) || self.promise_new(want, promise)
    }

    /// An existing idle instance: on a GPU that may not be touched rather than on one that may,
    /// beside work rather than on an idle GPU.
    fn promise_existing(&mut self, want: &SliceRequest, promise: Promise) -> bool {
        let mut best: Option<((bool, bool), usize, usize)> = None;
        for (gpu, row) in self.rows.iter().enumerate() {
            let Some(profile) = want.on(row.base.board()) else { continue };
            let Some(at) = row.idle.iter().position(|i| i.profile == profile) else { continue };
            let busy = row.works || !row.existing.is_empty() || !row.created.is_empty();
            let rank = (row.allowed, !busy);
            if best.as_ref().is_none_or(|(least, _, _)| rank < *least) {
                best = Some((rank, gpu, at));
            }
        }
        let Some((_, gpu, at)) = best else { return false };
        let row = &mut self.rows[gpu];
        let instance = row.idle.remove(at);
        let _ = row.base.add(instance.profile, instance.start);
        row.existing.push((promise, instance));
        true
    }

    /// An instance to be created: on a touched GPU rather than on another, then where the fewest
    /// idle instances are in the way, then on the fullest.
    fn promise_new(&mut self, want: &SliceRequest, promise: Promise) -> bool {
        type Rank = (bool, usize, std::cmp::Reverse<u32>);
        let mut best: Option<(Rank, usize, Vec<Instance>)> = None;
        let mut seen: BTreeSet<(Layout, Layout)> = BTreeSet::new();
        for (gpu, row) in self.rows.iter().enumerate().filter(|(_, row)| row.allowed) {
            let Some(profile) = want.on(row.base.board()) else { continue };
            // Equal untouched GPUs are evaluated once.
            if row.created.is_empty() && !seen.insert((row.base, row.planned().layout)) {
                continue;
            }
            let Some(kept) = row.keeping(profile) else { continue };
            let destroyed = row.idle.len() - kept.len();
            let filled = std::cmp::Reverse(row.base.occupied().count_ones());
            let rank = (row.created.is_empty(), destroyed, filled);
            if best.as_ref().is_none_or(|(least, _, _)| rank < *least) {
                best = Some((rank, gpu, kept));
            }
        }
        let Some((_, gpu, kept)) = best else { return false };
        let row = &mut self.rows[gpu];
        let Some(profile) = want.on(row.base.board()) else { return false };
        row.idle = kept;
        row.created.push((promise, profile));
        true
    }

    /// The books with this request served after some pods have moved; the fewest pods moved, then
    /// the fewest GPUs touched. `None` if no moves help.
    fn with_moves(&self, gpus: &[GpuState], want: &SliceRequest, request: usize) -> Option<Books> {
        let pods = |at: &usize| gpus[*at].held.iter().map(|h| u64::from(h.pods)).sum::<u64>();
        let mut candidates: Vec<usize> = (0..gpus.len())
            .filter(|at| self.rows[*at].allowed && gpus[*at].held.iter().any(|h| h.movable))
            .filter(|at| want.on(self.rows[*at].base.board()).is_some())
            .collect();
        candidates.sort_by_key(|at| (pods(at), *at));
        let mut best: Option<((u64, usize), Books)> = None;
        for gpu in candidates.into_iter().take(MOVED_FROM_MAX) {
            let Some(profile) = want.on(self.rows[gpu].base.board()) else { continue };
            for start in profile.starts().iter().flat_map(|starts| starts.iter()) {
                let Some(books) = self.with_moves_from(gpus, gpu, profile, start, request) else {
                    continue;
                };
                let rank = (books.pods_moved(), books.touched().filter(|t| *t).count());
                if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                    best = Some((rank, books));
                }
            }
        }
        best.map(|(_, books)| books)
    }

    /// The books after moving the pods that are where `profile` would start on this GPU.
    fn with_moves_from(
        &self,
        gpus: &[GpuState],
        gpu: usize,
        profile: &'static Profile,
        start: u8,
        request: usize,
    ) -> Option<Books> {
        let overlaps = |i: &Instance| {
            let end = |at: u8, p: &Profile| at.saturating_add(p.memory_units().unwrap_or(0));
            i.start < end(start, profile) && start < end(i.start, i.profile)
        };
        let mut books = self.clone();
        let first = books.moved.len();
        for held in &gpus[gpu].held {
            let instance = Instance { profile: held.profile, start: held.start };
            let row = &mut books.rows[gpu];
            if !overlaps(&instance) || !row.base.contains(instance.profile, instance.start) {
                continue;
            }
            if !held.movable {
                return None;
            }
            row.base.remove(instance.profile, instance.start).ok()?;
            books.moved.push(MovedPods { gpu, instance, pods: held.pods });
        }
        if books.moved.len() == first {
            return None;
        }
        let row = &mut books.rows[gpu];
        row.works = gpus[gpu].held.iter().any(|h| row.base.contains(h.profile, h.start));
        row.idle = row.keeping(profile)?;
        row.created.push((Promise::Request(request), profile));
        books.served[request] = true;
        for at in first..books.moved.len() {
            let MovedPods { gpu, instance, .. } = books.moved[at];
            let want = SliceRequest::profile(gpus[gpu].layout.board(), instance.profile).ok()?;
            if !books.promise(&want, Promise::Moved(at)) {
                return None;
            }
        }
        // Moving to the same place is no move.
        let stays = books.rows[gpu].planned().promised.iter().any(|(promise, to)| match promise {
            Promise::Moved(at) => books.moved[*at].instance == *to && books.moved[*at].gpu == gpu,
            Promise::Request(_) => false,
        });
        (!stays).then_some(books)
    }
}

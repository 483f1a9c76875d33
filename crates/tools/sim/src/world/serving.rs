//! Services: replicas, and how they serve their load, window by window.

use std::collections::{BTreeMap, BTreeSet};

use berth_engine::Profile;
use berth_model::alignment::Alignment;

use super::pods::{History, PodState};
use super::{SimEvent, World};
use crate::assumptions::Slowdown;
use crate::experiment::{Consolidation, Isolation, Service, WorkloadKind};
use crate::latency::{Cell, Mix, RHO_MAX, Speed};

/// Rounds the work per request to steps of 1/20, so that few distributions are needed.
const WEIGHT_STEPS: f64 = 20.0;

/// Utilisation above which a replica counts as a busy neighbour.
const BUSY: f64 = 0.5;

/// A ready replica.
#[derive(Clone, Copy, Debug, Default)]
struct Replica {
    /// Queued requests.
    backlog: f64,
    /// Utilisation in the last window.
    rho: f64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceState {
    pub(crate) desired: u32,
    /// When replicas were first wanted.
    wanted_ms: Option<i64>,
    /// Its pods, except terminating ones.
    pub(crate) pods: BTreeSet<u64>,
    ready: BTreeMap<u64, Replica>,
    pub(crate) all: Mix,
    pub(crate) step: Mix,
    pub(crate) served: f64,
    pub(crate) lost: f64,
    pub(crate) breaches: u64,
    /// Time with p99 above the objective.
    pub(crate) above_ms: i64,
    /// When p99 last crossed the objective, until that counts as a breach or as its end.
    crossed_ms: Option<i64>,
    is_breached: bool,
    /// Replicas times milliseconds: ready ones, and those of them that are aligned.
    pub(crate) ready_ms: f64,
    pub(crate) aligned_ms: f64,
    pub(crate) p99_us_series: Vec<u32>,
    /// Since when fewer replicas suffice, and the most that were needed since.
    fewer: Option<(i64, u32)>,
}

impl ServiceState {
    pub(crate) fn ready_count(&self) -> u32 {
        u32::try_from(self.ready.len()).unwrap_or(u32::MAX)
    }
}

/// One window of a service.
#[derive(Default)]
struct Window {
    requests: Vec<(Cell, f64)>,
    lost: f64,
    /// Busy GPUs.
    busy: f64,
}

impl World<'_> {
    fn service(&self, workload: usize) -> Option<&Service> {
        match &self.experiment.workloads.get(workload)?.kind {
            WorkloadKind::Service(service) => Some(service),
            _ => None,
        }
    }

    pub(super) fn scale(&mut self, workload: usize, replicas: u32) {
        let Some(state) = self.services.get_mut(&workload) else { return };
        state.desired = replicas;
        self.budgets_changed = true;
        state.wanted_ms = state.wanted_ms.or((replicas > 0).then_some(self.now_ms));
        // Pending replicas are removed first, then those that are not ready, then the youngest.
        let mut surplus = state.pods.len().saturating_sub(replicas as usize);
        let use_of = |id: &u64| match self.pods.get(id).map(|pod| pod.state) {
            Some(PodState::Pending) | None => 0,
            Some(PodState::Running) => 2,
            Some(_) => 1,
        };
        let mut order: Vec<u64> = state.pods.iter().rev().copied().collect();
        order.sort_by_key(use_of);
        for id in order {
            if surplus == 0 {
                break;
            }
            surplus -= 1;
            if self.is(id, &[PodState::Pending]) {
                self.withdraw(id);
            } else {
                self.evict(id, false);
            }
        }
        self.fill(workload, History { since_ms: self.now_ms, ..History::default() });
    }

    /// Creates missing replicas.
    pub(super) fn fill(&mut self, workload: usize, history: History) {
        let Some(template) = self.service(workload).map(|service| service.template.clone()) else {
            return;
        };
        let lacks = |world: &Self| {
            world
                .services
                .get(&workload)
                .is_some_and(|state| state.pods.len() < state.desired as usize)
        };
        while lacks(self) {
            let id = self.create(workload, None, &template, history);
            if let Some(state) = self.services.get_mut(&workload) {
                state.pods.insert(id);
            }
        }
    }

    pub(super) fn consolidation(&self) -> Option<Consolidation> {
        self.setup.consolidation.filter(|_| self.setup.profile == Profile::Berth)
    }

    /// Carries out the engine's proposals for replicas.
    pub(super) fn consolidate(&mut self) {
        let Some(consolidation) = self.consolidation() else { return };
        // More proposals than moves, because batch pods, which would lose work, are skipped.
        let asked = 4 * consolidation.moves_max;
        let proposed = self.engine.consolidate(asked, consolidation.gain_min_micro, self.now_ms);
        let replicas = proposed.into_iter().filter_map(|one| {
            let id = one.step.pod.parse::<u64>().ok()?;
            let of = self.pods.get(&id).map(|pod| pod.workload)?;
            self.services.contains_key(&of).then_some(id)
        });
        let moved: Vec<u64> = replicas.take(consolidation.moves_max).collect();
        for id in moved {
            self.moves += 1;
            self.evict(id, false);
        }
        self.schedule(self.now_ms + consolidation.every_ms, SimEvent::Consolidate);
    }

    pub(super) fn join_service(&mut self, id: u64) {
        let Some(workload) = self.pods.get(&id).map(|pod| pod.workload) else { return };
        if let Some(state) = self.services.get_mut(&workload) {
            state.ready.insert(id, Replica::default());
        }
    }

    /// A replica is no longer ready. Its queued requests are lost.
    pub(super) fn leave_service(&mut self, id: u64) {
        let Some(workload) = self.pods.get(&id).map(|pod| pod.workload) else { return };
        if let Some(state) = self.services.get_mut(&workload)
            && let Some(replica) = state.ready.remove(&id)
        {
            state.lost += replica.backlog;
        }
    }

    /// Evaluates the load of one window.
    pub(super) fn window(&mut self) {
        let whole_ms = self.experiment.assumptions.window_ms;
        let window_ms = whole_ms.min(self.experiment.duration_ms - self.now_ms);
        let workloads: Vec<usize> = self.services.keys().copied().collect();
        let mut serving = 0.0;
        for workload in workloads {
            self.autoscale(workload);
            let window = self.serve(workload, window_ms);
            serving += window.busy;
            if let Some(usage) = self.usage.get_mut(workload) {
                usage.busy_gpu_ms += window.busy * window_ms as f64;
            }
            self.check_objective(workload, &window);
            let Some(state) = self.services.get_mut(&workload) else { continue };
            state.lost += window.lost;
            for (cell, count) in window.requests {
                *state.all.entry(cell).or_default() += count;
                *state.step.entry(cell).or_default() += count;
                state.served += count;
            }
            self.count_replicas(workload, window_ms);
        }
        self.meter.levels.serving = serving;
        self.schedule(self.now_ms + whole_ms, SimEvent::LoadWindow);
    }

    fn count_replicas(&mut self, workload: usize, window_ms: i64) {
        let Some(state) = self.services.get_mut(&workload) else { return };
        let near = |id: &&u64| {
            self.pods.get(id).is_some_and(|pod| pod.placed.alignment == Some(Alignment::Aligned))
        };
        state.ready_ms += state.ready.len() as f64 * window_ms as f64;
        state.aligned_ms += state.ready.keys().filter(near).count() as f64 * window_ms as f64;
    }

    /// Scales up at once, and down after a delay.
    fn autoscale(&mut self, workload: usize) {
        let now_ms = self.now_ms;
        let Some(service) = self.service(workload) else { return };
        let (Some(autoscale), Some(load)) = (service.autoscale, &service.load) else { return };
        let (per_s, weight) = load.at(now_ms);
        let target = f64::from(autoscale.target_milli.max(1)) / 1000.0;
        let wanted = per_s * weight / (service.speed.capacity_per_s() * target);
        let wanted = (wanted.ceil() as u32).clamp(autoscale.min, autoscale.max.max(autoscale.min));
        let patience_ms = self.experiment.assumptions.scale_down_ms;
        let Some(state) = self.services.get_mut(&workload) else { return };
        if wanted >= state.desired {
            state.fewer = None;
            if wanted > state.desired {
                self.scale(workload, wanted);
            }
            return;
        }
        let (since_ms, most) = state.fewer.unwrap_or((now_ms, wanted));
        let most = most.max(wanted);
        state.fewer = Some((since_ms, most));
        if now_ms - since_ms >= patience_ms {
            state.fewer = None;
            self.scale(workload, most);
        }
    }

    /// Service times of a replica on its node, with the share of requests that each applies to.
    fn speeds(&self, id: u64, base: Speed) -> Vec<(Speed, f64)> {
        let Some(pod) = self.pods.get(&id) else { return Vec::new() };
        let here = self.interference(id).of(base);
        let crossing = pod.placed.crossing;
        let across = self.experiment.assumptions.misaligned.of(here);
        [(here, 1.0 - crossing), (across, crossing)]
            .into_iter()
            .filter(|(_, part)| *part > 0.0)
            .collect()
    }

    /// Slowdown by neighbours on the same GPU.
    fn interference(&self, id: u64) -> Slowdown {
        let assumed = &self.experiment.assumptions;
        let Some(pod) = self.pods.get(&id) else { return Slowdown::NONE };
        let Some(mine) = pod.placed.parts.iter().find(|part| part.replica) else {
            return Slowdown::NONE;
        };
        let Some(node) = pod.node.and_then(|node| self.nodes.get(node)) else {
            return Slowdown::NONE;
        };
        let shares = |other: &u64| {
            let parts = self.pods.get(other).map(|other| &other.placed.parts);
            parts.is_some_and(|parts| {
                parts
                    .iter()
                    .any(|part| (part.gpu.gpu, part.gpu.first) == (mine.gpu.gpu, mine.gpu.first))
            })
        };
        let busy = |other: &&u64| **other != id && shares(other) && self.is_busy(**other);
        let neighbours = node.pods.iter().filter(busy).count();
        match (node.sharing, neighbours) {
            (Isolation::TimeSliced, 0) => Slowdown::NONE,
            (Isolation::TimeSliced, 1) => assumed.time_sliced[0],
            (Isolation::TimeSliced, _) => assumed.time_sliced[1],
            (_, 0) => assumed.mps_alone,
            (Isolation::MpsCapped, _) => assumed.mps_capped,
            (Isolation::MpsUncapped, _) => assumed.mps_uncapped,
        }
    }

    fn is_busy(&self, id: u64) -> bool {
        let Some(pod) = self.pods.get(&id) else { return false };
        match self.services.get(&pod.workload) {
            Some(state) => state.ready.get(&id).is_some_and(|replica| replica.rho > BUSY),
            None => pod.state == PodState::Running,
        }
    }

    /// Divides a window of a service's load evenly among its replicas.
    fn serve(&mut self, workload: usize, window_ms: i64) -> Window {
        let mut window = Window::default();
        let Some(service) = self.service(workload) else { return window };
        let Some(load) = &service.load else { return window };
        let now_ms = self.now_ms;
        let (per_s, weight) = load.at(now_ms);
        let weight = (weight * WEIGHT_STEPS).round().max(1.0) / WEIGHT_STEPS;
        let scale = |us: u64| (us as f64 * weight) as u64;
        let base = Speed {
            mean_us: scale(service.speed.mean_us),
            p99_us: scale(service.speed.p99_us),
            ..service.speed
        };
        let timeout_s = self.experiment.assumptions.timeout_ms as f64 / 1000.0;
        let seconds = window_ms as f64 / 1000.0;
        let busy_milli = self.experiment.workloads.get(workload).map_or(0, |one| one.busy_milli);
        let replicas: Vec<(u64, Replica)> = self
            .services
            .get(&workload)
            .map(|state| state.ready.iter().map(|(id, replica)| (*id, *replica)).collect())
            .unwrap_or_default();
        if replicas.is_empty() {
            // Requests are lost only if replicas are wanted, and not while the first ones start.
            let launched_ms = now_ms - self.experiment.assumptions.launch_ms;
            let is_counted_on = |state: &ServiceState| {
                let is_late = state.wanted_ms.is_some_and(|wanted_ms| wanted_ms <= launched_ms);
                state.desired > 0 && (state.served > 0.0 || is_late)
            };
            let lost = self.services.get(&workload).is_some_and(is_counted_on);
            window.lost = if lost { per_s * seconds } else { 0.0 };
            return window;
        }
        let each_per_s = per_s / replicas.len() as f64;
        for (id, mut replica) in replicas {
            if self.is(id, &[PodState::OnLostNode]) {
                window.lost += each_per_s * seconds;
                continue;
            }
            let speeds = self.speeds(id, base);
            let slowness: f64 =
                speeds.iter().map(|(speed, part)| part / speed.capacity_per_s()).sum();
            let capacity_per_s = 1.0 / slowness.max(1e-9);
            replica.rho = each_per_s / capacity_per_s;
            let before = replica.backlog;
            let mut served = each_per_s * seconds;
            if replica.rho > RHO_MAX || before > 0.0 {
                let behind = before + (each_per_s - capacity_per_s) * seconds;
                replica.backlog = behind.clamp(0.0, capacity_per_s * timeout_s);
                window.lost += (behind - replica.backlog).max(0.0);
                served = (served + before - replica.backlog - (behind - replica.backlog).max(0.0))
                    .max(0.0);
                let wait_us = f64::midpoint(before, replica.backlog) / capacity_per_s * 1e6;
                let cells =
                    speeds.iter().map(|(speed, part)| (Cell::behind(*speed, wait_us), part));
                window.requests.extend(cells.map(|(cell, part)| (cell, served * part)));
            } else {
                let cells =
                    speeds.iter().map(|(speed, part)| (Cell::busy(*speed, replica.rho), part));
                window.requests.extend(cells.map(|(cell, part)| (cell, served * part)));
            }
            let parts = self.pods.get(&id).map_or(0.0, |pod| {
                let part = |part: &crate::node::Part| u32::from(part.gpu.milli).min(busy_milli);
                f64::from(pod.placed.parts.iter().map(part).sum::<u32>()) / 1000.0
            });
            window.busy += replica.rho.min(1.0) * parts;
            if let Some(known) =
                self.services.get_mut(&workload).and_then(|state| state.ready.get_mut(&id))
            {
                *known = replica;
            }
        }
        window
    }

    /// Compares a window with the service's objective.
    fn check_objective(&mut self, workload: usize, window: &Window) {
        let Some(service) = self.service(workload) else { return };
        let objective_us = service.objective_us;
        if objective_us == 0 || window.requests.is_empty() && window.lost <= 0.0 {
            return;
        }
        let requests = window.requests.iter().map(|(cell, count)| (cell, count));
        let is_above =
            window.lost > 0.0 || self.curves.exceeds(requests, 0.99, objective_us as f64);
        let patience_ms = self.experiment.assumptions.breach_ms;
        let window_ms = self.experiment.assumptions.window_ms;
        let now_ms = self.now_ms;
        let name = self.experiment.workloads.get(workload).map(|one| one.outline.name.clone());
        let Some(state) = self.services.get_mut(&workload) else { return };
        state.above_ms += if is_above { window_ms } else { 0 };
        if is_above == state.is_breached {
            state.crossed_ms = None;
            return;
        }
        let since_ms = *state.crossed_ms.get_or_insert(now_ms);
        if now_ms - since_ms >= patience_ms {
            (state.is_breached, state.crossed_ms) = (is_above, None);
            if is_above {
                state.breaches += 1;
                self.meter.log("breach", || {
                    let name = name.unwrap_or_default();
                    format!("{name}: p99 above {:.1} ms", objective_us as f64 / 1000.0)
                });
            }
        }
    }
}

//! The result of a run: steps of the series, sums, and why pods are still pending.

use std::collections::BTreeMap;

use berth_engine::explain::render;

use super::pods::PodState;
use super::{SimEvent, World};
use crate::latency::Mix;
use crate::report::{
    ClassReport, LayoutChange, NodeOutline, Run, ServiceReport, Summary, TeamReport, Waiting,
};

const HOUR_MS: f64 = 3_600_000.0;

/// The strongest claim first.
const CLASSES: [&str; 4] = ["interactive", "embedding", "batch", "experimentation"];

impl World<'_> {
    pub(super) fn close_step(&mut self) {
        let step_ms = self.meter.series.step_ms;
        self.end_step(step_ms);
        self.schedule(self.now_ms + step_ms, SimEvent::Step);
    }

    fn end_step(&mut self, lasted_ms: i64) {
        let mut together = Mix::new();
        for state in self.services.values_mut() {
            let step = std::mem::take(&mut state.step);
            let p99_us = self.curves.quantile_us(step.iter(), 0.99);
            state.p99_us_series.push(p99_us as u32);
            for (cell, count) in step {
                *together.entry(cell).or_default() += count;
            }
        }
        let p99_us = self.curves.quantile_us(together.iter(), 0.99);
        let fragmented = self.fragmented();
        self.meter.close_step(fragmented, p99_us, lasted_ms);
    }

    /// Stranded GPUs: the free part of every node times the share of requests that do not fit there.
    fn fragmented(&self) -> f64 {
        let of_node = |node: &crate::node::VirtualNode| {
            let free = node.free_milli();
            if free <= 0 || !node.is_up() {
                return 0.0;
            }
            let useless: f64 = self
                .typical
                .iter()
                .filter(|(request, _)| !node.has_room(request))
                .map(|(_, part)| part)
                .sum();
            free as f64 / 1000.0 * useless
        };
        self.nodes.iter().map(of_node).sum()
    }

    pub(super) fn finish(mut self) -> (Run, Vec<NodeOutline>) {
        let duration_ms = self.experiment.duration_ms.max(1);
        let closed_ms = self.meter.series.gpus.len() as i64 * self.meter.series.step_ms;
        if duration_ms > closed_ms {
            self.end_step(duration_ms - closed_ms);
        }
        let waiting = self.explain_waiting();
        self.end_stays();
        for number in 0..self.nodes.len() {
            if self.nodes.get(number).is_some_and(|node| !node.gone) {
                let node = &self.nodes[number];
                let hours = (self.now_ms - node.from_ms) as f64 / HOUR_MS;
                self.node_cost += node.microusd_per_hour as f64 * hours;
            }
        }
        let services = self.service_reports();
        let summary = self.summary(&services);
        let teams = self.teams();
        let classes = self.classes();
        let layouts = self.layouts();
        self.thin_stays();
        self.stays.sort_by_key(|stay| (stay.from_ms, stay.node, stay.workload, stay.pod));
        let nodes = self.outlines();
        let run = Run {
            name: self.setup.name.clone(),
            setup: self.setup.words(),
            summary,
            fewest: None,
            series: std::mem::take(&mut self.meter.series),
            services,
            classes,
            teams,
            rejections: std::mem::take(&mut self.meter.rejections),
            stays: std::mem::take(&mut self.stays),
            stays_left_out: self.stays_left_out,
            layouts,
            happenings: std::mem::take(&mut self.meter.happenings),
            waiting,
        };
        (run, nodes)
    }

    /// Counts stays, work and waits of the pods that exist at the end.
    fn end_stays(&mut self) {
        let pods: Vec<u64> = self.pods.keys().copied().collect();
        for id in pods {
            self.settle_work(id);
            let Some(pod) = self.pods.get(&id).cloned() else { continue };
            self.record(&pod);
            if pod.state == PodState::Pending
                && let Some(of) = self.experiment.workloads.get(pod.workload)
            {
                let waited_ms = self.now_ms - pod.since_ms();
                let tally = self.meter.class(&of.outline.class);
                tally.still_ms.push(waited_ms);
            }
        }
    }

    /// Explains one pending pod of every workload.
    fn explain_waiting(&mut self) -> Vec<Waiting> {
        let mut groups: BTreeMap<usize, (u64, std::sync::Arc<str>)> = BTreeMap::new();
        for (id, pod) in self.pods.iter().filter(|(_, pod)| pod.state == PodState::Pending) {
            let group = groups.entry(pod.workload).or_insert((0, pod.object.uid.clone()));
            group.0 += 1;
            // The scheduler can explain only pods that were admitted.
            if !self.admission.rejects(*id) {
                group.1 = pod.object.uid.clone();
            }
        }
        let mut waiting = Vec::new();
        for (workload, (pods, uid)) in groups {
            let why = self.engine.explain(&uid, self.now_ms).map(|why| render(&why));
            let refused = || "rejected by the API server: exceeds a ResourceQuota".to_owned();
            waiting.push(Waiting { workload, pods, why: why.unwrap_or_else(refused) });
        }
        waiting
    }

    fn service_reports(&mut self) -> Vec<ServiceReport> {
        let duration_ms = self.experiment.duration_ms.max(1) as f64;
        let mut reports = Vec::new();
        for (workload, state) in &self.services {
            let of = self.experiment.workloads.get(*workload).map(|one| &one.kind);
            let Some(crate::experiment::WorkloadKind::Service(service)) = of else { continue };
            reports.push(ServiceReport {
                workload: *workload,
                requests: state.served as u64,
                requests_lost: state.lost as u64,
                p50_us: self.curves.quantile_us(state.all.iter(), 0.5) as u64,
                p99_us: self.curves.quantile_us(state.all.iter(), 0.99) as u64,
                objective_us: service.objective_us,
                breaches: state.breaches,
                above_ms: state.above_ms,
                replicas: state.ready_ms / duration_ms,
                aligned: state.aligned_ms / state.ready_ms.max(1.0),
                p99_us_series: state.p99_us_series.clone(),
            });
        }
        reports
    }

    fn summary(&mut self, services: &[ServiceReport]) -> Summary {
        let duration_ms = self.experiment.duration_ms.max(1) as f64;
        let mut together = Mix::new();
        for state in self.services.values() {
            for (cell, count) in &state.all {
                *together.entry(*cell).or_default() += count;
            }
        }
        let sums = self.meter.all;
        let gpus = sums.gpus.max(1.0);
        let allocated: f64 = self.usage.iter().map(|usage| usage.microusd).sum();
        let of_services: f64 = services
            .iter()
            .filter_map(|one| self.usage.get(one.workload))
            .map(|usage| usage.microusd)
            .sum();
        let requests: u64 = services.iter().map(|service| service.requests).sum();
        let gpu_cost: f64 = self
            .nodes
            .iter()
            .filter(|node| !node.gpus.is_empty())
            .map(|node| node.microusd_per_hour as f64)
            .sum::<f64>()
            / self.nodes.iter().map(|node| node.microusd_per_hour as f64).sum::<f64>().max(1.0)
            * self.node_cost;
        Summary {
            gpus: sums.gpus / duration_ms,
            allocated: sums.allocated / gpus,
            utilised: sums.utilised / gpus,
            fragmented: sums.fragmented / gpus,
            requests,
            requests_lost: services.iter().map(|service| service.requests_lost).sum(),
            p50_us: self.curves.quantile_us(together.iter(), 0.5) as u64,
            p99_us: self.curves.quantile_us(together.iter(), 0.99) as u64,
            breaches: services.iter().map(|service| service.breaches).sum(),
            above_ms: services.iter().map(|service| service.above_ms).sum(),
            aligned: if sums.gpu_pods > 0.0 { sums.aligned / sums.gpu_pods } else { 1.0 },
            pods: self.meter.classes.values().map(|tally| tally.pods).sum(),
            started: self.started,
            waiting: self.pods.values().filter(|pod| pod.state == PodState::Pending).count() as u64,
            rejections: self.meter.rejections.values().sum(),
            preemptions: self.meter.preemptions,
            lost: self.lost,
            moves: self.moves,
            out_of_memory: self.out_of_memory,
            batch_gpu_hours: (sums.batch - self.wasted_gpu_ms) / HOUR_MS,
            wasted_gpu_hours: self.wasted_gpu_ms / HOUR_MS,
            jobs: self.jobs_done,
            cost_microusd: self.node_cost as i64,
            idle_microusd: (gpu_cost - allocated).max(0.0) as i64,
            microusd_per_million_requests: match requests {
                0 => 0,
                requests => (of_services / (requests as f64 / 1e6)) as i64,
            },
            microusd_per_busy_gpu_hour: match sums.utilised / HOUR_MS {
                hours if hours > 0.0 => (self.node_cost / hours) as i64,
                _ => 0,
            },
            decisions: self.decisions,
        }
    }

    fn teams(&self) -> Vec<TeamReport> {
        let mut teams: BTreeMap<&str, TeamReport> = BTreeMap::new();
        for (workload, usage) in self.experiment.workloads.iter().zip(&self.usage) {
            let team = teams.entry(&workload.outline.team).or_default();
            team.team.clone_from(&workload.outline.team);
            team.gpu_hours += usage.gpu_ms / HOUR_MS;
            team.busy_gpu_hours += usage.busy_gpu_ms / HOUR_MS;
            team.cost_microusd += usage.microusd as i64;
        }
        teams.into_values().collect()
    }

    fn classes(&mut self) -> Vec<ClassReport> {
        let mut tallies = std::mem::take(&mut self.meter.classes);
        let known = CLASSES.iter().filter_map(|class| Some((*class, tallies.remove(*class)?)));
        let mut reports: Vec<ClassReport> =
            known.map(|(class, tally)| tally.report(class)).collect();
        reports.extend(tallies.into_iter().map(|(class, tally)| tally.report(&class)));
        reports
    }

    fn layouts(&self) -> Vec<LayoutChange> {
        let mut layouts = Vec::new();
        for (node, one) in self.nodes.iter().enumerate() {
            for (gpu, of) in one.gpus.iter().enumerate() {
                let Some(layout) = &of.mig else { continue };
                let slices = layout.instances().map(|slice| {
                    let units = slice.profile.memory_units().unwrap_or(1);
                    (slice.profile.to_string(), slice.start, units)
                });
                let slices = slices.collect();
                layouts.push(LayoutChange { at_ms: one.from_ms, node, gpu, slices });
            }
        }
        layouts
    }

    fn outlines(&self) -> Vec<NodeOutline> {
        let outline = |node: &crate::node::VirtualNode| {
            let labels = &node.object.labels;
            let pool = berth_model::workload::pool_of(labels).map_or("", |pool| pool.as_ref());
            let zone = labels.get("topology.kubernetes.io/zone").map_or("", |zone| zone.as_ref());
            node.outline(pool, zone)
        };
        self.nodes.iter().map(outline).collect()
    }
}

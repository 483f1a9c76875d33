//! Remedies for a pending pod, each tried with the code that decides.
//!
//! Trials run on the current state, or with a node that is added and rolled back.

use std::sync::Arc;

use berth_kubelet::{Kubelet, KubeletConfig, TopologyPolicy};
use berth_model::alignment::Alignment;
use berth_model::label::Labels;
use berth_model::node::Node;
use berth_model::policy::Pool;
use berth_model::resource::ResourceList;
use berth_model::spec::{PodSpec, PreemptionPolicy};
use berth_model::taint::{Effect, Taint};
use berth_model::workload::{POOL_LABELS, pool_of};
use berth_packing::repartition::Touch;

use super::cause::{self, pod_name};
use super::data::{Cause, Remedy};
use super::group::Row;
use super::probe::Probe;
use super::relax::{self, Relaxation};
use crate::class::HOSTNAME;
use crate::config::{Config, Profile};
use crate::event::Event;
use crate::filter::{CORDON, IncomingPod, Inquiry};
use crate::kube::{self, preempt::Evictions};
use crate::placement::preemption::PreemptionSearch;
use crate::placement::victims::Preemptor;
use crate::slices::{self, GpuLayoutChange};
use crate::state::State;
use crate::table::{ClassIx, NodeIx, PodIx};
use berth_kubelet::NodeTopology;

const NODES_MAX: usize = 256;

const CHANGES_MAX: usize = 24;

const POOLS_MAX: usize = 32;

const LOOSENED_MAX: usize = 8;

const REPARTITIONED_MAX: usize = 32;

const WHERE: &str = "topology.kubernetes.io/";

pub(super) struct Search<'a> {
    pub(super) state: &'a mut State,
    pub(super) config: &'a Config,
    pub(super) pod: PodIx,
    pub(super) rows: &'a [Row],
    pub(super) now_ms: i64,
}

impl Search<'_> {
    /// All remedies found, the most useful first.
    pub(super) fn run(mut self) -> Vec<Remedy> {
        let spec = self.state.class_of(self.pod).spec.clone();
        let mut remedies = Vec::new();
        remedies.extend(self.evict(&spec));
        remedies.extend(self.repartition());
        remedies.extend(self.grow());
        remedies.extend(self.relax(&spec));
        remedies.extend(self.reduce_request(&spec));
        remedies.extend(self.uncordon(&spec));
        remedies.extend(self.loosen());
        remedies
    }

    fn fits(&mut self, class: ClassIx, nodes: &[NodeIx]) -> Option<(NodeIx, Alignment)> {
        self.state.rules(class);
        let mut probe = Probe::new(
            self.state,
            IncomingPod { class, ..IncomingPod::of(self.state, self.pod) },
            self.config,
        );
        let probe = probe.as_mut().ok()?;
        nodes.iter().find_map(|at| probe.verdict(*at).ok().map(|alignment| (*at, alignment)))
    }

    fn fits_as(&mut self, spec: PodSpec, nodes: &[NodeIx]) -> Option<Arc<str>> {
        let class = self.state.acquire_class(&Arc::new(spec));
        let found = self.fits(class, nodes);
        self.state.release_class(class);
        found.map(|(at, _)| self.state.nodes[at].object.name.clone())
    }

    fn most_free(&self, mut nodes: Vec<NodeIx>) -> Vec<NodeIx> {
        let requests = &self.state.class_of(self.pod).requests;
        let device = requests.iter().find(|(one, _)| self.state.resources.name(*one).is_extended());
        if let Some((one, _)) = device.or(requests.first()) {
            let by = |at: &NodeIx| {
                let node = &self.state.nodes[*at];
                (std::cmp::Reverse(node.free(*one)), node.object.name.clone())
            };
            nodes.sort_by_cached_key(by);
        }
        nodes.truncate(NODES_MAX);
        nodes
    }

    fn relax(&mut self, spec: &PodSpec) -> Vec<Remedy> {
        let candidates = relax::candidates(spec, self.rows);
        let mut remedies = Vec::new();
        for candidate in candidates.into_iter().take(CHANGES_MAX) {
            let Some(relaxed) = candidate.change.applied_to(spec) else { continue };
            let nodes = self.most_free(candidate.nodes);
            if let Some(node) = self.fits_as(relaxed, &nodes) {
                remedies.push(Remedy::Relax { change: candidate.change, node });
            }
        }
        remedies
    }

    fn reduce_request(&mut self, spec: &PodSpec) -> Vec<Remedy> {
        let requests = self.state.class_of(self.pod).requests.clone();
        let mut smaller = relax::smaller(self.state, &requests, self.rows);
        let need = spec.gpu.and_then(|need| relax::smaller_need(self.state, need, self.rows));
        smaller.extend(need.map(|(change, nodes)| (vec![change], nodes)));
        let mut remedies = Vec::new();
        for (changes, nodes) in smaller {
            let nodes = self.most_free(nodes);
            remedies.extend(changes.into_iter().find_map(|change| {
                let node = self.fits_as(change.applied_to(spec)?, &nodes)?;
                Some(Remedy::Relax { change, node })
            }));
        }
        remedies
    }

    fn uncordon(&mut self, spec: &PodSpec) -> Option<Remedy> {
        let row = self.rows.iter().find(|row| row.cause == Cause::Cordoned)?;
        let taint = Taint { key: CORDON.into(), value: "".into(), effect: Effect::NoSchedule };
        let spec = Relaxation::Tolerate(taint).applied_to(spec)?;
        let nodes = self.most_free(row.nodes.clone());
        self.fits_as(spec, &nodes).map(|node| Remedy::Uncordon { node })
    }

    /// Evictions by preemption, else of pods up to the pod's own priority.
    fn evict(&mut self, spec: &PodSpec) -> Option<Remedy> {
        let cooldown_ms = self.config.eviction_cooldown_ms;
        let preemptor = Preemptor::new(self.state, self.pod, self.now_ms, cooldown_ms);
        let equals = preemptor.with_priority(spec.priority.saturating_add(1));
        let own = (spec.preemption == PreemptionPolicy::LowerPriority).then_some(preemptor);
        let found = own.and_then(|preemptor| Some((true, self.victims(spec, &preemptor)?)));
        let found = found.or_else(|| Some((false, self.victims(spec, &equals)?)));
        let (by_preemption, found) = found?;
        let Evictions { node: at, victims, budget_violations } = found;
        let node = self.state.nodes[at].object.name.clone();
        let named = |pod: PodIx| pod_name(self.state, pod);
        let above = if by_preemption { spec.priority } else { equals.priority };
        let leaving = match self.config.profile {
            Profile::Berth => self.state.leaving_for(at, above).map(named).collect(),
            _ => Vec::new(),
        };
        let victims = victims.into_iter().map(named).collect();
        Some(Remedy::Evict { node, victims, leaving, budget_violations, by_preemption })
    }

    fn victims(&mut self, spec: &PodSpec, preemptor: &Preemptor) -> Option<Evictions> {
        if !preemptor.has_victims(self.state) {
            return None;
        }
        if self.config.profile != Profile::Berth {
            return self.victims_scored(spec, preemptor.priority);
        }
        let pod = IncomingPod::of(self.state, self.pod);
        let Probe { inquiry, mut ranking, .. } = Probe::new(self.state, pod, self.config).ok()?;
        ranking.evaluate_all(self.state);
        // A fresh one, because searches correct the engine's.
        let plan = PreemptionSearch::default().find(&inquiry, &mut ranking, preemptor, None);
        plan.map(Evictions::from)
    }

    /// kube-scheduler derives whom it may evict from the pod.
    fn victims_scored(&mut self, spec: &PodSpec, priority: i32) -> Option<Evictions> {
        let preemption = PreemptionPolicy::LowerPriority;
        let class =
            self.state.acquire_class(&Arc::new(PodSpec { priority, preemption, ..spec.clone() }));
        self.state.rules(class);
        let pod = IncomingPod { class, ..IncomingPod::of(self.state, self.pod) };
        let found = kube::preempt::select(self.state, self.pod, pod);
        self.state.release_class(class);
        found
    }

    fn grow(&mut self) -> Vec<Remedy> {
        let grows = |pool: &&Pool| pool.growth != Some(0);
        let pools: Vec<Pool> =
            self.state.pools.values().filter(grows).take(POOLS_MAX).cloned().collect();
        let mut remedies = Vec::new();
        for Pool { name, mut template, .. } in pools {
            let topology = self.topology_of_pool(&template);
            if pool_of(&template.labels).is_none() {
                template.labels.insert(POOL_LABELS[0], name.clone());
            }
            let class = self.state.pods[self.pod].class;
            let found = self.with_node(template, topology, |search, at| search.fits(class, &[at]));
            if let Some((_, alignment)) = found {
                remedies.push(Remedy::Grow { pool: name, alignment });
            }
        }
        remedies
    }

    /// A new node of a pool is assumed to have the topology of an existing one: with all labels of
    /// the template except its location, and the same devices.
    fn topology_of_pool(&self, template: &Node) -> Option<Arc<NodeTopology>> {
        let wanted: Labels = template
            .labels
            .iter()
            .filter(|(key, _)| key.as_ref() != HOSTNAME && !key.starts_with(WHERE))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let of_pool = |at: &NodeIx| {
            let node = &self.state.nodes[*at].object;
            !wanted.is_empty()
                && node.labels.contains_all(&wanted)
                && devices(&node.allocatable).eq(devices(&template.allocatable))
        };
        let nodes = self.state.nodes_by_name().into_iter().filter(of_pool);
        let mut known =
            nodes.filter_map(|at| self.state.topology(&self.state.nodes[at].object.name));
        known.next().cloned()
    }

    fn with_node<T>(
        &mut self,
        template: Node,
        topology: Option<Arc<NodeTopology>>,
        ask: impl FnOnce(&mut Self, NodeIx) -> Option<T>,
    ) -> Option<T> {
        // An impossible node name, so no pod can refer to it.
        let name: Arc<str> = format!("{}/new", template.name).into();
        let mut node = Node { name: name.clone(), ..template };
        node.labels.insert(HOSTNAME, name.clone());
        let events = [Event::Node(node), Event::Topology { node: name.clone(), topology }];
        self.after(events, |search| {
            let at = search.state.node_by_name(&name)?;
            ask(search, at)
        })
    }

    /// Calls `ask` with events applied, then rolls them back.
    fn after<T>(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        ask: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        // Readers of the log must not see these changes.
        let changes = std::mem::take(&mut self.state.changes);
        let resources = self.state.resources.clone();
        let checkpoint = self.state.checkpoint();
        events.into_iter().for_each(|event| self.state.apply(event));
        let answer = ask(self);
        self.state.rollback(checkpoint);
        self.state.resources = resources;
        self.state.changes = changes;
        answer
    }

    /// Another MIG layout for idle GPUs of a node, else for idle slices of GPUs in use.
    fn repartition(&mut self) -> Option<Remedy> {
        if self.config.profile != Profile::Berth {
            return None;
        }
        let pod = IncomingPod::of(self.state, self.pod);
        let nodes = slices::nodes_for(&Inquiry::new(self.state, pod).ok()?.0);
        [Touch::IdleGpus, Touch::AroundWork].into_iter().find_map(|touch| {
            nodes.iter().take(REPARTITIONED_MAX).find_map(|at| {
                let steps = self.repartitioned(*at, touch)?;
                let node = self.state.nodes[*at].object.name.clone();
                Some(Remedy::Repartition { node, steps })
            })
        })
    }

    /// The repartitioning of a node's GPUs after which the pod fits.
    fn repartitioned(&mut self, at: NodeIx, touch: Touch) -> Option<Vec<GpuLayoutChange>> {
        let class = self.state.pods[self.pod].class;
        let gpus = slices::on_node(self.state, at, &|_, _| false);
        let boards = slices::boards(gpus.iter().map(|sliced| &sliced.gpu.layout));
        let wants = slices::wants(self.state, self.state.class(class), &boards);
        let mix = slices::mix(self.state, &boards);
        let steps = slices::plan(gpus, &wants, &mix, touch)?.layout_changes(self.state);
        let events = slices::repartition_events(self.state, &steps);
        self.after(events, |search| search.fits(class, &[at]))?;
        Some(steps)
    }

    /// A node whose kubelet would admit the pod if it did not require alignment.
    fn loosen(&mut self) -> Option<Remedy> {
        let strict = |row: &&Row| {
            matches!(
                row.cause,
                Cause::Split { .. }
                    | Cause::Crowded { .. }
                    | Cause::Apart { .. }
                    | Cause::Kubelet { .. }
                    | Cause::Uncertain
            )
        };
        let rows = self.rows.iter().filter(strict);
        let nodes = self.most_free(rows.flat_map(|row| row.nodes.iter().copied()).collect());
        let pod = IncomingPod::of(self.state, self.pod);
        let mut probe = Probe::new(self.state, pod, self.config).ok()?;
        let mut nodes = nodes.into_iter().take(LOOSENED_MAX);
        let at = nodes.find(|at| admits_loosely(&mut probe, *at) == Some(true))?;
        Some(Remedy::Loosen { node: self.state.nodes[at].object.name.clone() })
    }
}

/// Whether the kubelet would admit the pod under `best-effort`, with the same pods.
fn admits_loosely(probe: &mut Probe<'_>, at: NodeIx) -> Option<bool> {
    let (kubelet, demand) = cause::demand(probe, at)?;
    let topology_policy = TopologyPolicy::BestEffort;
    let config = KubeletConfig { topology_policy, ..kubelet.config().clone() };
    let pools = kubelet.pools().cloned().collect();
    let mut loose = Kubelet::new(kubelet.machine().clone(), config, pools).ok()?;
    for pod in kubelet.pods() {
        loose.adopt(pod, &kubelet.assignment(pod)?).ok()?;
    }
    // The rebuilt kubelet lacks nominated pods and headroom, so there must be none.
    let headrooms = &probe.state.headrooms;
    let unclaimed = probe.inquiry.ahead(at).is_empty()
        && headrooms.stronger_than(probe.ranking.claim, at).next().is_none();
    Some(unclaimed && loose.would_admit(&demand).admits())
}

fn devices(list: &ResourceList) -> impl Iterator<Item = (&str, i64)> {
    let extended = list.iter().filter(|(name, _)| name.is_extended());
    extended.map(|(name, amount)| (name.as_str(), amount.value()))
}

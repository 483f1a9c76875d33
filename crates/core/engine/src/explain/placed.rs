//! Why a pod is on its node, compared with the other nodes as of now; the state at placement time
//! is not kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_kubelet::{Admission, Certainty, Kubelet, TopologyPolicy};
use berth_model::alignment::Alignment;
use berth_model::idset::{CpuSet, DeviceSet};
use berth_model::numa::NumaMask;
use berth_model::spec::PodSpec;

use super::cause::pod_name;
use super::data::{
    Explanation, FreeDevices, HeldDevices, Holding, Others, PartUse, Preference, Why,
};
use super::parts::{devices, part_of};
use super::probe::Probe;
use crate::config::Config;
use crate::filter::{IncomingPod, untolerated_soft_taints};
use crate::kube::score::preferred_weight;
use crate::state::State;
use crate::table::{NodeIx, PodIx, ResourceIx};

/// `node` is `None` if no node of this name is known.
pub(super) fn explain(
    state: &State,
    config: &Config,
    pod: PodIx,
    name: Arc<str>,
    node: Option<NodeIx>,
) -> Explanation {
    let row = &state.pods[pod];
    let mut why = Why::default();
    let mut alignment = Alignment::Unknown;
    if let Some(at) = node {
        let mirror = state.nodes[at].mirror.as_deref().filter(|mirror| mirror.is_trusted());
        let kubelet = mirror.map(|mirror| mirror.kubelet());
        let held = kubelet.and_then(|kubelet| Some((kubelet, kubelet.assignment(&row.uid)?)));
        match &held {
            Some((kubelet, held)) => {
                alignment = alignment_of(kubelet, held);
                why.holds = Some(holding(kubelet, held));
                why.parts = part_uses(kubelet, held);
            }
            None if device(state, pod).is_none() => alignment = Alignment::Floating,
            None => {}
        }
        compare(state, config, pod, at, &mut why);
    }
    let grant = row.grant.map(|grant| state.named_grant(grant));
    Explanation::Placed {
        pod: pod_name(state, pod),
        node: name,
        alignment,
        grant,
        why: Box::new(why),
    }
}

fn alignment_of(kubelet: &Kubelet, held: &Admission) -> Alignment {
    let pinned = held.containers.iter().any(|one| one.cpus.is_some() || !one.devices.is_empty());
    if kubelet.config().topology_policy == TopologyPolicy::None || !pinned {
        return Alignment::Floating;
    }
    let hints = || held.containers.iter().filter_map(|one| one.affinity);
    match chosen(held) {
        None => Alignment::Floating,
        Some(_) if hints().all(|hint| hint.preferred) => Alignment::Aligned,
        Some(_) => Alignment::Misaligned,
    }
}

fn chosen(held: &Admission) -> Option<NumaMask> {
    let hints = held.containers.iter().filter_map(|one| one.affinity);
    hints.filter_map(|hint| hint.numa).reduce(|one, other| one | other)
}

fn holding(kubelet: &Kubelet, held: &Admission) -> Holding {
    let cpus = held.containers.iter().filter_map(|one| one.cpus);
    let cpus = cpus.fold(CpuSet::EMPTY, |all, one| all | one).len();
    let devices = by_pool(held).into_iter().filter_map(|(pool, (set, exact))| {
        let inventory = kubelet.pools().nth(pool)?;
        let ids = if exact { inventory.ids(set) } else { Vec::new() };
        Some(HeldDevices {
            resource: inventory.resource.clone(),
            count: set.len(),
            ids: ids.into_iter().map(str::to_owned).collect(),
        })
    });
    let on = chosen(held).map(|numa| part_of(kubelet.machine(), numa));
    Holding { on, cpus, devices: devices.collect() }
}

/// Devices by pool, and whether their ids are certain. Init containers may have held the same ones.
fn by_pool(held: &Admission) -> BTreeMap<usize, (DeviceSet, bool)> {
    let mut pools: BTreeMap<usize, (DeviceSet, bool)> = BTreeMap::new();
    for given in held.containers.iter().flat_map(|one| &one.devices) {
        let (set, exact) = pools.entry(given.pool).or_insert((DeviceSet::EMPTY, true));
        *set |= given.devices;
        *exact &= given.certainty == Certainty::Exact;
    }
    pools
}

fn part_uses(kubelet: &Kubelet, held: &Admission) -> Vec<PartUse> {
    let of_pool = |pool: usize| {
        let resource = kubelet.pools().nth(pool).map(|pool| pool.resource.clone());
        let (free, all) = devices(kubelet, pool);
        let parts = free.into_iter().zip(all).map(move |((numa, free), (_, all))| PartUse {
            part: (!numa.is_empty()).then(|| part_of(kubelet.machine(), numa)),
            resource: resource.clone().unwrap_or_else(|| "".into()),
            free: free as usize,
            all: all as usize,
        });
        parts.collect::<Vec<_>>()
    };
    by_pool(held).into_keys().flat_map(of_pool).collect()
}

fn device(state: &State, pod: PodIx) -> Option<ResourceIx> {
    let requests = state.class_of(pod).requests.iter().map(|(one, _)| *one);
    let mut extended = requests.filter(|one| state.resources.name(*one).is_extended());
    let granted = state.pods[pod].grant.map(|grant| grant.resource);
    granted.or_else(|| extended.next())
}

fn compare(state: &State, config: &Config, pod: PodIx, at: NodeIx, why: &mut Why) {
    let Ok(mut probe) = Probe::new(state, IncomingPod::of(state, pod), config) else { return };
    let (mut open, mut aligned) = (Vec::new(), None);
    for other in state.nodes.indexes().filter(|other| *other != at) {
        let Ok(alignment) = probe.verdict(other) else { continue };
        open.push(other);
        match alignment {
            Alignment::Aligned => *aligned.get_or_insert(0) += 1,
            Alignment::Misaligned => aligned = aligned.or(Some(0)),
            Alignment::Floating | Alignment::Unknown => {}
        }
    }
    let free = device(state, pod).and_then(|device| {
        let free = |node: &NodeIx| state.nodes[*node].free(device);
        let elsewhere = (open.iter().map(free).min()?, open.iter().map(free).max()?);
        let resource = state.resources.name(device).clone();
        Some(FreeDevices { resource, here: free(&at), elsewhere })
    });
    let nodes = state.nodes.len().saturating_sub(1);
    why.others = Some(Others { nodes, open: open.len(), aligned, free });
    why.preferences = preferences(&probe, at, &open);
}

fn preferences(probe: &Probe<'_>, at: NodeIx, open: &[NodeIx]) -> Vec<Preference> {
    let state = probe.state;
    let spec: &PodSpec = probe.inquiry.spec();
    let mut all = Vec::new();
    let object = |at: &NodeIx| &*state.nodes[*at].object;
    let weight = |at: &NodeIx| preferred_weight(spec, object(at));
    if let Some(elsewhere) = open.iter().map(weight).max()
        && !spec.node_affinity.preferred.is_empty()
    {
        all.push(Preference::NodeAffinity { here: weight(&at), elsewhere });
    }
    let taints = |at: &NodeIx| untolerated_soft_taints(spec, object(at));
    if let Some(elsewhere) = open.iter().map(taints).min()
        && open.iter().any(|other| taints(other) != taints(&at))
    {
        all.push(Preference::Taints { here: taints(&at), elsewhere });
    }
    let census = &state.census;
    for rule in &probe.inquiry.rules.soft_spread {
        let near = |at: &NodeIx| {
            let domain = census.domain(rule.key, *at);
            domain.exists().then(|| i64::from(census.tally(rule.tally).at(domain)))
        };
        let domain = census.domain_name(rule.key, census.domain(rule.key, at));
        let elsewhere = open.iter().filter_map(near).min();
        if let (Some(domain), Some(here), Some(elsewhere)) = (domain, near(&at), elsewhere) {
            let (key, domain) = (census.key_name(rule.key).clone(), domain.clone());
            all.push(Preference::Spread { key, domain, here, elsewhere });
        }
    }
    all
}

//! kube-scheduler's scores, normalised to 0 to 100, and their weighted sum, including its rounding.

use berth_model::node::Node;
use berth_model::spec::PodSpec;

use crate::amounts::{self, CPU, MEMORY};
use crate::census::TermKind;
use crate::class::SpreadRule;
use crate::filter::{Inquiry, untolerated_soft_taints};
use crate::state::{NodeState, State};
use crate::table::{NodeIx, ResourceIx};
use crate::verdict::Plugin;

const MAX: i64 = 100;

const NEEDED_WEIGHT: i64 = 1;

const MIB: i64 = 1 << 20;
const IMAGE_MIN_BYTES: i64 = 23 * MIB;
const IMAGE_MAX_BYTES: i64 = 1000 * MIB;

/// Granularity of image scores in Berth.
const IMAGE_STEP: i64 = 10;

/// Weight of a pool for the pod's class: more than any single preference of the pod.
const POOL_WEIGHT: i64 = 4;

/// Weight of a node that holds the model: loading a model takes longer than pulling an image.
const MODEL_WEIGHT: i64 = 2;

pub(super) fn all(
    inquiry: &Inquiry<'_>,
    nodes: &[NodeIx],
    default_spread: &[SpreadRule],
) -> Vec<(Plugin, Vec<i64>)> {
    let spec = &inquiry.class.spec;
    let row = |at: &NodeIx| &inquiry.state.nodes[*at];
    let each = |score: &dyn Fn(&NodeState) -> i64| -> Vec<i64> {
        nodes.iter().map(|at| score(row(at))).collect()
    };
    let taints = each(&|node| untolerated_soft_taints(spec, &node.object));
    let mut scores = vec![(Plugin::TaintToleration, normalise(taints, true))];
    if !spec.node_affinity.preferred.is_empty() {
        let weights = each(&|node| preferred_weight(spec, &node.object));
        scores.push((Plugin::NodeAffinity, normalise(weights, false)));
    }
    scores.push((Plugin::NodeResourcesFit, each(&|node| least_allocated(inquiry, node))));
    if let Some(spread) = spread(inquiry, nodes, default_spread) {
        scores.push((Plugin::PodTopologySpread, spread));
    }
    if let Some(affinity) = pod_affinity(inquiry, nodes) {
        scores.push((Plugin::InterPodAffinity, affinity));
    }
    let requested = |resource| inquiry.class.requests.iter().any(|(one, _)| *one == resource);
    if requested(CPU) || requested(MEMORY) {
        let balance = each(&|node| balanced(inquiry, node));
        scores.push((Plugin::NodeResourcesBalancedAllocation, balance));
    }
    scores.push((Plugin::ImageLocality, images(inquiry.state, spec, nodes)));
    scores
}

const PACKING_WEIGHT: i64 = 10;

/// Replaces the score for utilisation by `MostAllocated` over the devices that the pod requests.
pub(super) fn pack(inquiry: &Inquiry<'_>, nodes: &[NodeIx], scores: &mut Vec<(Plugin, Vec<i64>)>) {
    let state = inquiry.state;
    let is_device =
        |(resource, _): &&(ResourceIx, i64)| state.resources.name(*resource).is_extended();
    let devices: Vec<(ResourceIx, i64)> =
        inquiry.class.requests.iter().filter(is_device).copied().collect();
    if devices.is_empty() {
        return;
    }
    let most_allocated = |at: &NodeIx| {
        let node = &state.nodes[*at];
        let of_device = |(resource, amount): &(ResourceIx, i64)| {
            let capacity = amounts::at(&node.capacity, *resource).max(1);
            let used = amounts::at(&node.used, *resource).saturating_add(*amount);
            (i128::from(MAX) * i128::from(used.min(capacity)) / i128::from(capacity)) as i64
        };
        devices.iter().map(of_device).sum::<i64>() / devices.len() as i64 * PACKING_WEIGHT
    };
    scores.retain(|(plugin, _)| *plugin != Plugin::NodeResourcesFit);
    scores.push((Plugin::NodeResourcesFit, nodes.iter().map(most_allocated).collect()));
}

/// Weighted sums of soft preferences, without utilisation.
pub(crate) fn soft_totals(inquiry: &Inquiry<'_>, nodes: &[NodeIx]) -> Vec<i64> {
    let spec = &inquiry.class.spec;
    let object = |at: &NodeIx| &*inquiry.state.nodes[*at].object;
    let taints = nodes.iter().map(|at| untolerated_soft_taints(spec, object(at))).collect();
    let mut scores = vec![(Plugin::TaintToleration, normalise(taints, true))];
    if !spec.node_affinity.preferred.is_empty() {
        let weights = nodes.iter().map(|at| preferred_weight(spec, object(at))).collect();
        scores.push((Plugin::NodeAffinity, normalise(weights, false)));
    }
    scores.extend(spread(inquiry, nodes, &[]).map(|of| (Plugin::PodTopologySpread, of)));
    scores.extend(pod_affinity(inquiry, nodes).map(|of| (Plugin::InterPodAffinity, of)));
    let images = nodes.iter().map(|at| image_bytes_score(spec, object(at))).collect();
    scores.push((Plugin::ImageLocality, images));
    let mut totals = totals(&scores, nodes.len());
    let claim = inquiry.state.claim_of(spec);
    if claim.is_some() || spec.model.is_some() {
        for (total, at) in totals.iter_mut().zip(nodes) {
            let fit = inquiry.state.pool_fit(claim, object(at)).unwrap_or(0);
            let model = if holds_model(spec, object(at)) { MAX } else { 0 };
            *total = total.saturating_add(POOL_WEIGHT * fit + MODEL_WEIGHT * model);
        }
    }
    totals
}

pub(crate) fn holds_model(spec: &PodSpec, node: &Node) -> bool {
    spec.model.as_ref().is_some_and(|model| node.models.contains(model))
}

/// The share of the pod's images that the node has, in steps of 10.
pub(crate) fn image_bytes_score(spec: &PodSpec, node: &Node) -> i64 {
    if node.images.is_empty() {
        return 0;
    }
    let sizes = spec.images.iter().filter_map(|name| image_bytes(node, &normalised_image(name)));
    let score = threshold_score(sizes.sum(), spec.pod.containers.len());
    score / IMAGE_STEP * IMAGE_STEP
}

fn image_bytes(node: &Node, wanted: &str) -> Option<i64> {
    let held = node.images.iter().rev();
    let mut held = held.filter(|image| image.names.iter().any(|name| name.as_ref() == wanted));
    held.next().map(|image| image.size_bytes)
}

fn threshold_score(bytes: i64, containers: usize) -> i64 {
    let most = IMAGE_MAX_BYTES.saturating_mul(containers.max(1) as i64);
    MAX * (bytes.clamp(IMAGE_MIN_BYTES, most) - IMAGE_MIN_BYTES) / (most - IMAGE_MIN_BYTES)
}

pub(crate) const fn weight(plugin: Plugin) -> i64 {
    match plugin {
        Plugin::TaintToleration => 3,
        Plugin::NodeAffinity | Plugin::PodTopologySpread | Plugin::InterPodAffinity => 2,
        _ => 1,
    }
}

pub(super) fn totals(scores: &[(Plugin, Vec<i64>)], count: usize) -> Vec<i64> {
    let mut totals = vec![0_i64; count];
    for (plugin, of) in scores {
        for (total, score) in totals.iter_mut().zip(of) {
            *total = total.saturating_add(weight(*plugin).saturating_mul(*score));
        }
    }
    totals
}

/// Scales to 0 to 100 by the maximum; reversed if less is better.
pub(crate) fn normalise(mut scores: Vec<i64>, reverse: bool) -> Vec<i64> {
    let most = scores.iter().copied().max().unwrap_or(0).max(0);
    for score in &mut scores {
        let part = if most == 0 {
            0
        } else {
            (i128::from(MAX) * i128::from(*score) / i128::from(most)) as i64
        };
        *score = if reverse { MAX - part } else { part };
    }
    scores
}

pub(crate) fn preferred_weight(spec: &PodSpec, node: &Node) -> i64 {
    let terms = &spec.node_affinity.preferred;
    let matching = terms.iter().filter(|(_, term)| term.matches(node));
    matching.map(|(weight, _)| i64::from(*weight)).fold(0, i64::saturating_add)
}

fn least_allocated(inquiry: &Inquiry<'_>, node: &NodeState) -> i64 {
    let asked = inquiry.class.scored;
    let resources = [
        (CPU, node.scored.millicpu.saturating_add(asked.millicpu)),
        (MEMORY, node.scored.memory_bytes.saturating_add(asked.memory_bytes)),
    ];
    let (mut sum, mut count) = (0, 0);
    for (resource, requested) in resources {
        let capacity = amounts::at(&node.capacity, resource);
        if capacity == 0 {
            continue;
        }
        count += 1;
        if requested <= capacity {
            sum += (((i128::from(capacity) - i128::from(requested)) * i128::from(MAX))
                / i128::from(capacity)) as i64;
        }
    }
    if count == 0 { 0 } else { sum / count }
}

fn balanced(inquiry: &Inquiry<'_>, node: &NodeState) -> i64 {
    let of_pod = |resource| {
        let requests = inquiry.class.requests.iter();
        requests.filter(|(one, _)| *one == resource).map(|(_, amount)| *amount).sum::<i64>()
    };
    let fractions = |with: bool| {
        [CPU, MEMORY]
            .into_iter()
            .filter(|resource| amounts::at(&node.capacity, *resource) != 0)
            .map(|resource| {
                let more = if with { of_pod(resource) } else { 0 };
                let requested = amounts::at(&node.used, resource).saturating_add(more);
                (requested as f64 / amounts::at(&node.capacity, resource) as f64).min(1.0)
            })
            .collect::<Vec<f64>>()
    };
    let evenness = |fractions: &[f64]| {
        let deviation = match fractions {
            [one, other] => ((one - other) / 2.0).abs(),
            _ => 0.0,
        };
        ((1.0 - deviation) * MAX as f64) as i64
    };
    let (with, without) = (evenness(&fractions(true)), evenness(&fractions(false)));
    MAX / 2 + (MAX / 2 + with - without) / 2
}

/// kube-scheduler's ImageLocality, weighted by how many nodes have each image.
fn images(state: &State, spec: &PodSpec, nodes: &[NodeIx]) -> Vec<i64> {
    let wanted: Vec<(String, i64)> = spec
        .images
        .iter()
        .map(|name| {
            let name = normalised_image(name);
            let (nodes, size_bytes) = state.image(&name).unwrap_or((0, 0));
            let common = f64::from(nodes) / state.nodes.len() as f64;
            (name, (size_bytes as f64 * common) as i64)
        })
        .collect();
    let score = |at: &NodeIx| {
        let object = &state.nodes[*at].object;
        let held = wanted.iter().filter(|(name, _)| image_bytes(object, name).is_some());
        threshold_score(held.map(|(_, bytes)| bytes).sum(), spec.pod.containers.len())
    };
    nodes.iter().map(score).collect()
}

fn normalised_image(name: &str) -> String {
    let tag = name.rfind(':').map_or(-1, |at| at as i64);
    let path = name.rfind('/').map_or(-1, |at| at as i64);
    if tag <= path { format!("{name}:latest") } else { name.to_owned() }
}

fn spread(
    inquiry: &Inquiry<'_>,
    nodes: &[NodeIx],
    default_spread: &[SpreadRule],
) -> Option<Vec<i64>> {
    let census = &inquiry.state.census;
    let own = !inquiry.class.spec.spread.is_empty();
    let rules = if own { &inquiry.rules.soft_spread } else { default_spread };
    if rules.is_empty() {
        return None;
    }
    let domain = |rule: &SpreadRule, at: NodeIx| census.domain(rule.key, at);
    // Nodes without all keys score 0, except for kube-scheduler's default constraints.
    let ignored = |at: NodeIx| own && rules.iter().any(|rule| !domain(rule, at).exists());
    let counted: Vec<NodeIx> = nodes.iter().copied().filter(|at| !ignored(*at)).collect();
    let weights: Vec<f64> = rules
        .iter()
        .map(|rule| {
            let domains = if rule.by_host {
                counted.len()
            } else {
                let mut seen: Vec<_> = counted.iter().map(|at| domain(rule, *at)).collect();
                seen.sort_unstable();
                seen.dedup();
                seen.len()
            };
            ((domains + 2) as f64).ln()
        })
        .collect();
    let raw = |at: NodeIx| {
        let of_rule = |(rule, weight): (&SpreadRule, &f64)| {
            let domain = domain(rule, at);
            if !domain.exists() {
                return 0.0;
            }
            let count = if rule.by_host {
                i64::from(inquiry.matching_on_node(rule, at))
            } else {
                i64::from(census.tally(rule.tally).at(domain))
            };
            count as f64 * weight + (f64::from(rule.max_skew) - 1.0)
        };
        rules.iter().zip(&weights).map(of_rule).sum::<f64>().round() as i64
    };
    let raws: Vec<Option<i64>> = nodes.iter().map(|at| (!ignored(*at)).then(|| raw(*at))).collect();
    let known = || raws.iter().flatten().copied();
    let (least, most) = (known().min().unwrap_or(0), known().max().unwrap_or(0));
    let normal = |raw: &Option<i64>| match raw {
        None => 0,
        Some(_) if most == 0 => MAX,
        Some(raw) => {
            let part = i128::from(MAX) * (i128::from(most) + i128::from(least) - i128::from(*raw));
            (part / i128::from(most)) as i64
        }
    };
    Some(raws.iter().map(normal).collect())
}

/// Sums of affinity weights of nearby pods; `None` if there are none.
fn pod_affinity(inquiry: &Inquiry<'_>, nodes: &[NodeIx]) -> Option<Vec<i64>> {
    let census = &inquiry.state.census;
    let own = inquiry.rules.preferred.iter().map(|(weight, tally)| (i64::from(*weight), *tally));
    let residents = census.terms_about(inquiry.class_at).filter_map(|(tally, claim)| match claim {
        TermKind::AntiAffinity => None,
        TermKind::Affinity => Some((NEEDED_WEIGHT, tally)),
        TermKind::Prefer(weight) => Some((i64::from(weight), tally)),
    });
    let terms: Vec<(i64, _)> =
        own.chain(residents).filter(|(_, tally)| census.tally(*tally).total > 0).collect();
    if terms.is_empty() {
        return None;
    }
    let raw = |at: &NodeIx| {
        let of_term = |(weight, tally): &(i64, _)| {
            let domain = census.domain(census.count(*tally).key, *at);
            weight.saturating_mul(i64::from(census.tally(*tally).at(domain)))
        };
        terms.iter().map(of_term).fold(0, i64::saturating_add)
    };
    let raws: Vec<i64> = nodes.iter().map(raw).collect();
    let least = raws.iter().copied().min().unwrap_or(0);
    let span = raws.iter().copied().max().unwrap_or(0).saturating_sub(least);
    let normal = |raw: &i64| {
        if span > 0 {
            (MAX as f64 * (raw.saturating_sub(least) as f64 / span as f64)) as i64
        } else {
            0
        }
    };
    Some(raws.iter().map(normal).collect())
}

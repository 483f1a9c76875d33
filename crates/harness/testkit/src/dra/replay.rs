//! Deciding a case and comparing what comes of it with what was recorded.
//!
//! Owns what counts as the same: the verdict with its plugin, code and reasons, the devices in their
//! order, the nodes they tie the claim to, and the scores.

use std::collections::BTreeMap;
use std::fmt;

use berth_dra::{Options, Placement, Rejection, normalize_scores};
use berth_model::affinity::NodeTerm;
use berth_model::dra::claim::{Allocation, Share};
use berth_model::label::Operator;
use berth_model::node::Node;
use berth_model::pod::PodLevelResources;
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement};

use super::case::Case;
use super::schema::{AllocationJson, NodeJson, ResultJson};

const PLUGIN: &str = "DynamicResources";
const RESOURCES_PLUGIN: &str = "NodeResourcesFit";
/// Since the claim for extended resources is made up by the scheduler.
const MADE_UP: &str = "<extended-resources>";

/// What is decided about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pod can go there, and its claims are given this.
    Feasible(Vec<AllocatedDevices>),
    /// It cannot.
    Infeasible {
        /// Whether no node was looked at.
        before_nodes: bool,
        /// Who says so.
        plugin: String,
        /// The code.
        code: String,
        /// The reasons; none for errors, whose wording is not compared.
        reasons: Vec<String>,
    },
}

/// What a claim is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedDevices {
    /// The claim's namespace and name.
    pub claim: String,
    /// The devices, each in one line.
    pub devices: Vec<String>,
    /// The nodes they tie it to, in one line; empty for all.
    pub nodes: String,
}

/// What is decided in a case.
#[derive(Clone, Debug)]
pub struct Decision {
    /// By node.
    pub nodes: BTreeMap<String, Verdict>,
    /// By node, if at least two will do.
    pub scores: BTreeMap<String, i64>,
}

/// What differs.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// What.
    pub what: String,
    /// As recorded.
    pub expected: String,
    /// As decided.
    pub got: String,
}

/// How decision and recording compare.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Verdicts compared.
    pub verdicts: usize,
    /// Allocations of claims compared.
    pub allocations: usize,
    /// What differs.
    pub mismatches: Vec<Mismatch>,
}

/// Decides a case.
pub fn decide(case: &Case) -> Decision {
    let demand = match case.inventory.prepare(&case.needs) {
        Ok(demand) => demand,
        Err(rejection) => {
            let verdict = infeasible(&rejection, true);
            let nodes = case.nodes.iter().map(|node| (node.name.to_string(), verdict.clone()));
            return Decision { nodes: nodes.collect(), scores: BTreeMap::new() };
        }
    };
    let (mut nodes, mut scores) = (BTreeMap::new(), Vec::new());
    for node in &case.nodes {
        let lacking = lacking(case, node);
        let verdict = if lacking.is_empty() {
            let placed = match &demand {
                Some(demand) => case.inventory.place(demand, node, &options()),
                None => Ok(Placement::default()),
            };
            match placed {
                Ok(placement) => {
                    scores.push((node.name.to_string(), placement.score));
                    Verdict::Feasible(given(&placement))
                }
                Err(rejection) => infeasible(&rejection, false),
            }
        } else {
            Verdict::Infeasible {
                before_nodes: false,
                plugin: RESOURCES_PLUGIN.to_owned(),
                code: "UnschedulableAndUnresolvable".to_owned(),
                reasons: lacking,
            }
        };
        nodes.insert(node.name.to_string(), verdict);
    }
    let mut values: Vec<i64> = scores.iter().map(|(_, score)| *score).collect();
    normalize_scores(&mut values);
    let names = scores.into_iter().map(|(name, _)| name);
    let scores = if values.len() > 1 { names.zip(values).collect() } else { BTreeMap::new() };
    Decision { nodes, scores }
}

/// As recorded: after every timeout that a recording can speak of.
pub(super) fn options() -> Options<'static> {
    Options { now_ms: i64::MAX, ..Options::default() }
}

/// What NodeResourcesFit lacks on a node without pods: what the pod requests beyond what is there,
/// unless devices serve it.
fn lacking(case: &Case, node: &Node) -> Vec<String> {
    let requested = case.needs.pod.total_requests(PodLevelResources::HonouredIfEmptyToo);
    let lacks = requested.into_iter().filter(|(name, amount)| {
        let there = node.allocatable.get(name).map_or(0, |amount| amount.value());
        amount.value() > there && !case.inventory.serves(name, node)
    });
    lacks.map(|(name, _)| format!("Insufficient {name}")).collect()
}

fn infeasible(rejection: &Rejection, before_nodes: bool) -> Verdict {
    let code = rejection.code.as_str().to_owned();
    let is_error = rejection.code == berth_dra::Code::Error;
    let reasons = if is_error { Vec::new() } else { vec![rejection.to_string()] };
    Verdict::Infeasible { before_nodes, plugin: PLUGIN.to_owned(), code, reasons }
}

fn given(placement: &Placement) -> Vec<AllocatedDevices> {
    let of = |(claim, allocation): &(berth_dra::ClaimRef, Allocation)| AllocatedDevices {
        claim: format!("{}/{}", claim.namespace, claim.name),
        devices: devices(allocation),
        nodes: allocation.nodes.iter().flatten().map(term_text).collect::<Vec<_>>().join(" or "),
    };
    placement.allocations.iter().map(of).collect()
}

fn devices(allocation: &Allocation) -> Vec<String> {
    let of = |one: &berth_model::dra::claim::AllocatedDevice| {
        let mut line = format!("{} {}", one.request, one.id);
        if one.admin_access {
            line.push_str(" admin");
        }
        if let Share::Part { consumed, .. } = &one.share {
            line.push_str(" shared");
            for (name, amount) in consumed {
                line.push_str(&format!(" {name}={amount}"));
            }
        }
        for condition in &one.binding_conditions {
            line.push_str(&format!(" awaits:{condition}"));
        }
        line
    };
    allocation.devices.iter().map(of).collect()
}

fn recorded_device(one: &ResultJson) -> String {
    let mut line = format!("{} {}/{}/{}", one.request, one.driver, one.pool, one.device);
    if one.admin_access {
        line.push_str(" admin");
    }
    if one.shared {
        line.push_str(" shared");
    }
    for (name, amount) in &one.consumed_capacity {
        line.push_str(&format!(" {name}={amount}"));
    }
    for condition in &one.binding_conditions {
        line.push_str(&format!(" awaits:{condition}"));
    }
    line
}

fn condition_text(key: &str, operator: &str, values: &[impl fmt::Display]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("{key} {operator} [{}]", values.join(" "))
}

fn operator_text(key: &str, operator: &Operator) -> String {
    match operator {
        Operator::In(values) => condition_text(key, "In", values),
        Operator::NotIn(values) => condition_text(key, "NotIn", values),
        Operator::Exists => condition_text(key, "Exists", &[""; 0]),
        Operator::DoesNotExist => condition_text(key, "DoesNotExist", &[""; 0]),
        Operator::Gt(bound) => condition_text(key, "Gt", &[bound]),
        Operator::Lt(bound) => condition_text(key, "Lt", &[bound]),
        Operator::Never => condition_text(key, "Never", &[""; 0]),
    }
}

fn term_text(term: &NodeTerm) -> String {
    let fields = term.name.iter().map(|operator| operator_text("metadata.name", operator));
    let labels = term.labels.iter().map(|one| operator_text(&one.key, &one.operator));
    fields.chain(labels).collect::<Vec<_>>().join(" and ")
}

fn recorded_nodes(selector: Option<&NodeSelector>) -> String {
    let of = |one: &NodeSelectorRequirement| {
        condition_text(&one.key, &one.operator, one.values.as_deref().unwrap_or_default())
    };
    let terms = selector.into_iter().flat_map(|selector| &selector.node_selector_terms);
    let terms = terms.map(|term| {
        let fields = term.match_fields.iter().flatten();
        let all = fields.chain(term.match_expressions.iter().flatten()).map(of);
        all.collect::<Vec<_>>().join(" and ")
    });
    terms.collect::<Vec<_>>().join(" or ")
}

fn recorded(node: &NodeJson) -> Verdict {
    if node.feasible {
        let of = |one: &AllocationJson| AllocatedDevices {
            claim: one.claim.clone(),
            devices: one.results.iter().map(recorded_device).collect(),
            nodes: recorded_nodes(one.node_selector.as_ref()),
        };
        return Verdict::Feasible(node.allocations.iter().flatten().map(of).collect());
    }
    Verdict::Infeasible {
        before_nodes: node.at.as_deref() == Some("PreFilter"),
        plugin: node.plugin.clone(),
        code: node.code.clone(),
        reasons: node.reasons.clone(),
    }
}

/// Compares a decision with what was recorded.
pub fn compare(case: &Case, decision: &Decision) -> Comparison {
    let mut comparison = Comparison::default();
    for (name, node) in &case.expect.nodes {
        comparison.verdicts += 1;
        let expected = recorded(node);
        let got = decision.nodes.get(name);
        comparison.allocations += node.allocations.as_ref().map_or(0, Vec::len);
        // Where devices were not recorded, that there are some is all there is to compare.
        let same = match (&expected, got) {
            (Verdict::Feasible(_), Some(Verdict::Feasible(_))) if node.allocations.is_none() => {
                true
            }
            (Verdict::Feasible(expected), Some(Verdict::Feasible(got))) => {
                let kept = |one: &&AllocatedDevices| {
                    !(one.claim.ends_with(MADE_UP) && one.devices.is_empty())
                };
                expected.iter().filter(kept).eq(got.iter().filter(kept))
            }
            (expected, got) => Some(expected) == got,
        };
        if !same {
            comparison.mismatches.push(Mismatch {
                what: format!("node {name}"),
                expected: format!("{expected:?}"),
                got: format!("{got:?}"),
            });
        }
    }
    if case.expect.scores != decision.scores {
        comparison.mismatches.push(Mismatch {
            what: "scores".to_owned(),
            expected: format!("{:?}", case.expect.scores),
            got: format!("{:?}", decision.scores),
        });
    }
    comparison
}

//! Affinity and topology spread constraints.

use berth_model::affinity::{
    NodeAffinity, NodeInclusionPolicy, NodeTerm, PodAffinity, PodTerm, SpreadConstraint,
    WhenUnsatisfiable,
};
use k8s_openapi::api::core::v1 as core;

use crate::error::{Problem, each};
use crate::meta;
use crate::selector::{NodeNames, node_term, optional_selector};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn node_affinity(affinity: Option<&core::Affinity>) -> Result<NodeAffinity, Problem> {
    let Some(affinity) = affinity.and_then(|affinity| affinity.node_affinity.as_ref()) else {
        return Ok(NodeAffinity::default());
    };
    let term = |term: &core::NodeSelectorTerm| node_term(term, NodeNames::Matched);
    let required = |selector: &core::NodeSelector| {
        each("nodeSelectorTerms", Some(&selector.node_selector_terms), term)
            .map_err(|problem| problem.under(REQUIRED))
    };
    let preferred =
        |preferred: &core::PreferredSchedulingTerm| -> Result<(i32, NodeTerm), Problem> {
            let term =
                term(&preferred.preference).map_err(|problem| problem.under("preference"))?;
            Ok((preferred.weight, term))
        };
    let lower = || -> Result<NodeAffinity, Problem> {
        let needed = affinity.required_during_scheduling_ignored_during_execution.as_ref();
        let welcome = affinity.preferred_during_scheduling_ignored_during_execution.as_ref();
        Ok(NodeAffinity {
            required: needed.map(required).transpose()?,
            preferred: each(PREFERRED, welcome, preferred)?,
        })
    };
    lower().map_err(|problem| problem.under("affinity.nodeAffinity"))
}

pub(super) fn pod_affinity(affinity: Option<&core::Affinity>) -> Result<PodAffinity, Problem> {
    let Some(affinity) = affinity else { return Ok(PodAffinity::default()) };
    let near = affinity.pod_affinity.as_ref();
    let apart = affinity.pod_anti_affinity.as_ref();
    let (required, preferred) = pod_terms(
        near.and_then(|near| near.required_during_scheduling_ignored_during_execution.as_ref()),
        near.and_then(|near| near.preferred_during_scheduling_ignored_during_execution.as_ref()),
    )
    .map_err(|problem| problem.under("affinity.podAffinity"))?;
    let (anti_required, anti_preferred) = pod_terms(
        apart.and_then(|apart| apart.required_during_scheduling_ignored_during_execution.as_ref()),
        apart.and_then(|apart| apart.preferred_during_scheduling_ignored_during_execution.as_ref()),
    )
    .map_err(|problem| problem.under("affinity.podAntiAffinity"))?;
    Ok(PodAffinity { required, preferred, anti_required, anti_preferred })
}

type PodTerms = (Vec<PodTerm>, Vec<(i32, PodTerm)>);

fn pod_terms(
    required: Option<&Vec<core::PodAffinityTerm>>,
    preferred: Option<&Vec<core::WeightedPodAffinityTerm>>,
) -> Result<PodTerms, Problem> {
    let weighted = |weighted: &core::WeightedPodAffinityTerm| {
        let term = pod_term(&weighted.pod_affinity_term);
        Ok((weighted.weight, term.map_err(|problem| problem.under("podAffinityTerm"))?))
    };
    Ok((each(REQUIRED, required, pod_term)?, each(PREFERRED, preferred, weighted)?))
}

/// The API server has already merged `matchLabelKeys` and `mismatchLabelKeys` into the selector.
fn pod_term(term: &core::PodAffinityTerm) -> Result<PodTerm, Problem> {
    let namespace_selector = term.namespace_selector.as_ref();
    Ok(PodTerm {
        selector: optional_selector("labelSelector", term.label_selector.as_ref())?,
        namespaces: meta::shared(term.namespaces.as_ref()),
        namespace_selector: optional_selector("namespaceSelector", namespace_selector)?,
        topology_key: term.topology_key.as_str().into(),
    })
}

pub(super) fn spread_constraint(
    constraint: &core::TopologySpreadConstraint,
) -> Result<SpreadConstraint, Problem> {
    let unsatisfiable = match constraint.when_unsatisfiable.as_str() {
        "DoNotSchedule" => WhenUnsatisfiable::DoNotSchedule,
        "ScheduleAnyway" => WhenUnsatisfiable::ScheduleAnyway,
        other => {
            let known = "DoNotSchedule or ScheduleAnyway";
            return Err(Problem::unknown("whenUnsatisfiable", other, known));
        }
    };
    let affinity_policy = constraint.node_affinity_policy.as_deref();
    let taints_policy = constraint.node_taints_policy.as_deref();
    Ok(SpreadConstraint {
        max_skew: constraint.max_skew,
        topology_key: constraint.topology_key.as_str().into(),
        unsatisfiable,
        selector: optional_selector("labelSelector", constraint.label_selector.as_ref())?,
        min_domains: constraint.min_domains.unwrap_or(1),
        node_affinity: inclusion(
            "nodeAffinityPolicy",
            affinity_policy,
            NodeInclusionPolicy::Honor,
        )?,
        node_taints: inclusion("nodeTaintsPolicy", taints_policy, NodeInclusionPolicy::Ignore)?,
        match_label_keys: meta::shared(constraint.match_label_keys.as_ref()),
    })
}

fn inclusion(
    field: &str,
    policy: Option<&str>,
    default: NodeInclusionPolicy,
) -> Result<NodeInclusionPolicy, Problem> {
    match policy {
        None => Ok(default),
        Some("Honor") => Ok(NodeInclusionPolicy::Honor),
        Some("Ignore") => Ok(NodeInclusionPolicy::Ignore),
        Some(other) => Err(Problem::unknown(field, other, "Honor or Ignore")),
    }
}

//! Namespaces, PriorityClasses, PodDisruptionBudgets, ResourceQuotas, controllers and Services.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::label::{Labels, Operator, Selector};
use berth_model::policy::{
    DisruptionBudget, Grouping, Namespace, PriorityClass, Quota, QuotaScope,
};
use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1 as scheduling;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::{Metadata, Resource};

use crate::Lower;
use crate::error::{self, LowerError, Problem, each};
use crate::meta;
use crate::pod::preemption_policy;
use crate::resource::resource_list;
use crate::selector::optional_selector;

impl Lower for core::Namespace {
    type Model = Namespace;

    fn lower(&self) -> Result<Namespace, LowerError> {
        let labels = meta::labels(&self.metadata);
        error::of(self, meta::name(&self.metadata).map(|name| Namespace { name, labels }))
    }
}

impl Lower for scheduling::PriorityClass {
    type Model = PriorityClass;

    fn lower(&self) -> Result<PriorityClass, LowerError> {
        let lower = || -> Result<PriorityClass, Problem> {
            Ok(PriorityClass {
                name: meta::name(&self.metadata)?,
                value: self.value.unwrap_or(0),
                preemption: preemption_policy(self.preemption_policy.as_deref())?,
                is_default: self.global_default.unwrap_or(false),
            })
        };
        error::of(self, lower())
    }
}

impl Lower for PodDisruptionBudget {
    type Model = DisruptionBudget;

    fn lower(&self) -> Result<DisruptionBudget, LowerError> {
        let lower = || -> Result<DisruptionBudget, Problem> {
            let selector = self.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let allowed = self.status.as_ref().and_then(|status| status.disruptions_allowed);
            let disrupted = self.status.iter().flat_map(|status| &status.disrupted_pods).flatten();
            Ok(DisruptionBudget {
                namespace: meta::namespace(&self.metadata),
                name: meta::name(&self.metadata)?,
                selector: optional_selector("spec.selector", selector)?,
                disruptions_allowed: allowed.unwrap_or(0),
                disrupted_pods: disrupted.map(|(pod, _)| Arc::from(pod.as_str())).collect(),
            })
        };
        error::of(self, lower())
    }
}

impl Lower for core::ResourceQuota {
    type Model = Quota;

    fn lower(&self) -> Result<Quota, LowerError> {
        let lower = || -> Result<Quota, Problem> {
            let spec = self.spec.as_ref();
            let hard = spec.and_then(|spec| spec.hard.as_ref());
            let scopes = spec.map(quota_scopes).transpose();
            Ok(Quota {
                namespace: meta::namespace(&self.metadata),
                name: meta::name(&self.metadata)?,
                hard: resource_list("spec.hard", hard)?,
                scopes: scopes.map_err(|problem| problem.under("spec"))?.unwrap_or_default(),
            })
        };
        error::of(self, lower())
    }
}

/// Scopes of a quota. `scopes` is short for a `scopeSelector` with `Exists`.
fn quota_scopes(spec: &core::ResourceQuotaSpec) -> Result<Vec<QuotaScope>, Problem> {
    let exists = |scope: &String| quota_scope(scope, Operator::Exists);
    let listed = each("scopes", spec.scopes.as_ref(), exists)?;
    let selector = spec.scope_selector.as_ref();
    let expressions = selector.and_then(|selector| selector.match_expressions.as_ref());
    let selected = each("scopeSelector.matchExpressions", expressions, |one| {
        let values = || meta::shared(one.values.as_ref());
        let operator = match one.operator.as_str() {
            "In" => Operator::In(values()),
            "NotIn" => Operator::NotIn(values()),
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            other => {
                let known = "In, NotIn, Exists or DoesNotExist";
                return Err(Problem::unknown("operator", other, known));
            }
        };
        quota_scope(&one.scope_name, operator).map_err(|problem| problem.under("scopeName"))
    })?;
    Ok(listed.into_iter().chain(selected).collect())
}

/// Only the scope PriorityClass has values.
fn quota_scope(name: &str, operator: Operator) -> Result<QuotaScope, Problem> {
    match name {
        "Terminating" => Ok(QuotaScope::Deadline(true)),
        "NotTerminating" => Ok(QuotaScope::Deadline(false)),
        "BestEffort" => Ok(QuotaScope::BestEffort(true)),
        "NotBestEffort" => Ok(QuotaScope::BestEffort(false)),
        "PriorityClass" => Ok(QuotaScope::PriorityClass(operator)),
        "CrossNamespacePodAffinity" => Ok(QuotaScope::CrossNamespaceAffinity),
        "VolumeAttributesClass" => Ok(QuotaScope::NoPod),
        other => {
            let known = "Terminating, NotTerminating, BestEffort, NotBestEffort, PriorityClass, \
                         CrossNamespacePodAffinity or VolumeAttributesClass";
            Err(Problem::unknown("", other, known))
        }
    }
}

impl Lower for core::Service {
    type Model = Grouping;

    fn lower(&self) -> Result<Grouping, LowerError> {
        let spec = self.spec.as_ref();
        grouping(self, Ok(by_labels(spec.and_then(|spec| spec.selector.as_ref()))))
    }
}

impl Lower for core::ReplicationController {
    type Model = Grouping;

    fn lower(&self) -> Result<Grouping, LowerError> {
        let spec = self.spec.as_ref();
        grouping(self, Ok(by_labels(spec.and_then(|spec| spec.selector.as_ref()))))
    }
}

impl Lower for apps::ReplicaSet {
    type Model = Grouping;

    fn lower(&self) -> Result<Grouping, LowerError> {
        grouping(self, by_selector(self.spec.as_ref().map(|spec| &spec.selector)))
    }
}

impl Lower for apps::StatefulSet {
    type Model = Grouping;

    fn lower(&self) -> Result<Grouping, LowerError> {
        grouping(self, by_selector(self.spec.as_ref().map(|spec| &spec.selector)))
    }
}

fn by_labels(labels: Option<&BTreeMap<String, String>>) -> Option<Selector> {
    let labels = labels?.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    Some(Selector::of_labels(&labels.collect::<Labels>()))
}

fn by_selector(selector: Option<&LabelSelector>) -> Result<Option<Selector>, Problem> {
    optional_selector("spec.selector", selector)
}

fn grouping<K>(
    object: &K,
    selector: Result<Option<Selector>, Problem>,
) -> Result<Grouping, LowerError>
where
    K: Resource + Metadata<Ty = ObjectMeta>,
{
    let lower = || -> Result<Grouping, Problem> {
        Ok(Grouping {
            kind: K::KIND.into(),
            namespace: meta::namespace(object.metadata()),
            name: meta::name(object.metadata())?,
            selector: selector?,
        })
    };
    error::of(object, lower())
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::spec::PreemptionPolicy;
    use serde_json::{Value, from_value, json};

    #[test]
    fn budgets_tell_an_absent_selector_from_an_empty_one() {
        let budget = |spec: Value| -> DisruptionBudget {
            let budget: PodDisruptionBudget = from_value(json!({
                "metadata": { "name": "b", "namespace": "team" },
                "spec": spec,
                "status": { "disruptionsAllowed": 2,
                            "disruptedPods": { "p1": "2026-03-01T23:59:00Z" } },
            }))
            .unwrap();
            budget.lower().unwrap()
        };
        assert_eq!(budget(json!({})).selector, None);
        let empty = budget(json!({ "selector": {} }));
        assert!(empty.selector.is_some_and(|selector| selector.is_empty()));
        assert_eq!((empty.disruptions_allowed, empty.disrupted_pods.len()), (2, 1));
    }

    #[test]
    fn services_without_a_selector_group_nothing() {
        let service = |spec: Value| -> Grouping {
            let service: core::Service =
                from_value(json!({ "metadata": { "name": "s" }, "spec": spec })).unwrap();
            service.lower().unwrap()
        };
        assert_eq!(service(json!({})).selector, None);
        let web = service(json!({ "selector": { "app": "web" } }));
        assert!(web.selector.unwrap().matches(&[("app", "web")].into_iter().collect()));
        assert_eq!((&*web.kind, &*web.namespace), ("Service", "default"));
    }

    #[test]
    fn classes_and_quotas_keep_what_matters() {
        let class: scheduling::PriorityClass = from_value(json!({
            "metadata": { "name": "batch" }, "value": -5, "preemptionPolicy": "Never",
            "globalDefault": true,
        }))
        .unwrap();
        let class = class.lower().unwrap();
        assert_eq!((class.value, class.preemption), (-5, PreemptionPolicy::Never));
        assert!(class.is_default);
        let quota: core::ResourceQuota = from_value(json!({
            "metadata": { "name": "q", "namespace": "team" },
            "spec": { "hard": { "requests.nvidia.com/gpu": "4" }, "scopes": ["Terminating"] },
        }))
        .unwrap();
        let quota = quota.lower().unwrap();
        assert_eq!(quota.hard["requests.nvidia.com/gpu"].value(), 4);
        assert_eq!(quota.scopes, [QuotaScope::Deadline(true)]);
    }
}

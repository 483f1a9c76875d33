//! The rules, by topic. A rule's texts and its check are in the same file.

pub(crate) mod batch;
pub(crate) mod budget;
pub(crate) mod devices;
pub(crate) mod fit;
pub(crate) mod karpenter;
pub(crate) mod limits;
pub(crate) mod metrics;
pub(crate) mod own;
pub(crate) mod pinning;
pub(crate) mod placement;
pub(crate) mod platform;
pub(crate) mod probes;
pub(crate) mod quota;
pub(crate) mod requests;
pub(crate) mod serving;
pub(crate) mod taints;
pub(crate) mod tenancy;
pub(crate) mod valid;

use berth_api::FieldPath;
use berth_api::workload::Workload;

use crate::context::Context;
use crate::finding::Fix;
use crate::object::{Object, What};
use crate::rule::{Rule, Severity};
use crate::settings::Settings;
use crate::view::PodView;

/// All rules, in the order of their codes.
pub static RULES: &[&Rule] = &[
    &valid::INVALID,
    &requests::GPU_REQUEST_LIMIT,
    &requests::GPU_FRACTION,
    &pinning::NOT_GUARANTEED,
    &pinning::CPU_NOT_WHOLE,
    &requests::GPU_MIXED,
    &devices::VISIBLE_DEVICES,
    &devices::SMALL_SHM,
    &devices::HOST_SHM,
    &fit::GPU_MEMORY_TOO_SMALL,
    &fit::GPU_LARGER_THAN_NEED,
    &requests::UNKNOWN_PROFILE,
    &taints::NO_TOLERATION,
    &taints::IDLE_TOLERATION,
    &taints::SYSTEM_ON_GPU_NODES,
    &placement::NO_POOL,
    &fit::NO_NUMA_NODE,
    &placement::PINNED_TO_NODE,
    &placement::UNKNOWN_SCHEDULER,
    &placement::SPREAD_SKIPS_SELF,
    &placement::SPREAD_KEY_UNKNOWN,
    &fit::TOO_LARGE,
    &serving::NO_SPREAD,
    &serving::SHARED_GPU,
    &budget::NO_BUDGET,
    &serving::SINGLE_REPLICA,
    &budget::BLOCKS_EVICTION,
    &probes::KILLED_WHILE_LOADING,
    &probes::NOT_READY_WHEN_READY,
    &probes::SHORT_GRACE,
    &batch::NO_DEADLINE,
    &batch::MAY_PREEMPT,
    &batch::UNKNOWN_PRIORITY,
    &tenancy::NO_TEAM,
    &tenancy::NO_COST_CENTER,
    &quota::REQUESTS_ONLY,
    &quota::NOT_COUNTED,
    &limits::OUTSIDE_RANGE,
    &quota::EXCEEDED,
    &platform::MOVING_IMAGE,
    &karpenter::OLD_API,
    &karpenter::MOVED_FIELD,
    &platform::UNTAINTED_POOL,
    &platform::SILENT_SLICES,
    &metrics::RATE_OF_GAUGE,
    &metrics::USED_OVER_FREE,
    &metrics::RESOURCE_SPELLING,
    &own::MALFORMED,
    &own::UNKNOWN_KEY,
    &own::BROKEN_GANG,
    &own::BAD_IGNORE,
];

/// What a rule found, before it is known how grave it is.
pub(crate) struct Breach {
    pub(crate) rule: &'static Rule,
    pub(crate) field: FieldPath,
    pub(crate) excerpt: Option<String>,
    pub(crate) message: String,
    pub(crate) remedy: Option<String>,
    /// Caps the rule's severity where not all that matters is known.
    pub(crate) severity_max: Option<Severity>,
    pub(crate) fix: Vec<Fix>,
}

impl Breach {
    pub(crate) fn new(rule: &'static Rule, field: FieldPath, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            rule,
            field,
            excerpt: None,
            message,
            remedy: None,
            severity_max: None,
            fix: Vec::new(),
        }
    }

    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    pub(crate) fn at_most(self, severity: Severity) -> Self {
        Self { severity_max: Some(severity), ..self }
    }

    pub(crate) fn fix(self, fix: impl IntoIterator<Item = Fix>) -> Self {
        Self { fix: fix.into_iter().collect(), ..self }
    }

    pub(crate) fn about(self, excerpt: impl Into<String>) -> Self {
        Self { excerpt: Some(excerpt.into()), ..self }
    }
}

/// What rules look at besides the object itself.
pub(crate) struct Scope<'c> {
    pub(crate) object: &'c Object,
    pub(crate) context: &'c Context,
    pub(crate) settings: &'c Settings,
    pub(crate) found: Vec<Breach>,
}

impl Scope<'_> {
    pub(crate) fn add(&mut self, breach: Breach) {
        self.found.push(breach);
    }
}

const OF_PODS: &[fn(&PodView<'_>, &mut Scope<'_>)] = &[
    valid::check_pod,
    requests::check,
    pinning::check,
    devices::check,
    fit::check,
    taints::check,
    placement::check,
    serving::check,
    budget::check_pod,
    probes::check,
    batch::check_pod,
    tenancy::check,
    limits::check,
    quota::check_pod,
    platform::check_pod,
    own::check_pod,
];

/// What names no image anywhere is no workload, but a patch for one (as Kustomize has them); what it
/// lacks may be in the other.
fn is_patch(workload: &Workload) -> bool {
    let mut containers = workload.templates.iter().flat_map(|template| &template.spec.containers);
    containers.all(|container| container.image.as_deref().is_none_or(str::is_empty))
}

/// Checks all rules on one object.
pub(crate) fn check(scope: &mut Scope<'_>) {
    let object = scope.object;
    match &object.what {
        What::Workload(workload) if is_patch(workload) => {}
        What::Workload(workload) => {
            valid::check_workload(workload, scope);
            for template in &workload.templates {
                let namespace = object.namespace();
                let view =
                    PodView::new(workload, template, namespace, scope.context, scope.settings);
                OF_PODS.iter().for_each(|check| check(&view, scope));
            }
        }
        What::PriorityClass(class) => batch::check_class(class, scope),
        What::Quota(quota) => quota::check(quota, scope),
        What::Budget(budget) => budget::check(budget, scope),
        What::Node(_) | What::Other => {
            valid::check_document(scope);
            platform::check(scope);
        }
        What::LimitRange(_) | What::Namespace(_) | What::Service(_) => {}
    }
    karpenter::check(scope);
    metrics::check(scope);
    own::check(scope);
}

//! Kubernetes 1.36's quota rules for pods: which quotas apply, usage, what must be specified, and
//! the API server's messages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use berth_model::affinity::PodTerm;
use berth_model::pod::{Pod, PodLevelResources, QosClass, Resources};
use berth_model::policy::{Quota, QuotaScope};
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::{ResourceList, ResourceName};
use berth_model::spec::{Phase, PodObject, PodSpec};

/// How the API server of Kubernetes 1.36 treats pod-level resources.
const LEVEL: PodLevelResources = PodLevelResources::HonouredIfEmptyToo;

const ALL_PODS: &str = "count/pods";
const LIVE_PODS: &str = "pods";
const REQUESTS: &str = "requests.";
const HUGEPAGES: &str = "hugepages-";
const HUGEPAGE_REQUESTS: &str = "requests.hugepages-";
const DEVICE_CLASS: &str = "deviceclass.resource.kubernetes.io/";
const KUBERNETES: &str = "kubernetes.io/";

/// Resources that a quota counts as `cpu` and `requests.cpu`, and their limits as `limits.cpu`.
const PLAIN: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// A quota on one of these requires every container to specify it.
const MUST_SPECIFY: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// Whether a pod uses resources, or is only still listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It counts in full.
    Live,
    /// Finished or overdue to be deleted: counts for `count/pods` only.
    Ended,
}

impl Life {
    pub fn of(pod: &PodObject, now_ms: i64) -> Self {
        let overdue = pod.deletion.is_some_and(|deletion| now_ms > deletion.uncounted_at_ms());
        if pod.phase == Phase::Finished || overdue { Self::Ended } else { Self::Live }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Unspecified {
        quota: Arc<str>,
        /// By quota resource, the containers that do not specify it.
        missing: BTreeMap<ResourceName, BTreeSet<String>>,
    },
    Exceeded {
        quota: Arc<str>,
        /// The pod's usage of the exceeded resources.
        requested: ResourceList,
        used: ResourceList,
        /// Their hard limits.
        hard: ResourceList,
    },
    Negative {
        resources: Vec<ResourceName>,
    },
}

impl Refusal {
    /// The refusing quota; `None` if no quota would accept the pod.
    pub fn quota(&self) -> Option<&Arc<str>> {
        match self {
            Self::Unspecified { quota, .. } | Self::Exceeded { quota, .. } => Some(quota),
            Self::Negative { .. } => None,
        }
    }
}

impl fmt::Display for Refusal {
    /// In the API server's words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unspecified { quota, missing } => {
                let of = |(resource, containers): (&ResourceName, &BTreeSet<String>)| {
                    let containers: Vec<&str> = containers.iter().map(String::as_str).collect();
                    format!("{resource} for: {}", containers.join(","))
                };
                let all: Vec<String> = missing.iter().map(of).collect();
                write!(f, "failed quota: {quota}: must specify {}", all.join("; "))
            }
            Self::Exceeded { quota, requested, used, hard } => {
                let [requested, used, hard] = [requested, used, hard].map(listed);
                write!(
                    f,
                    "exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {hard}"
                )
            }
            Self::Negative { resources } => {
                let names: Vec<&str> = resources.iter().map(ResourceName::as_str).collect();
                write!(f, "quota usage is negative for resource(s): {}", names.join(","))
            }
        }
    }
}

fn listed(list: &ResourceList) -> String {
    let pairs: Vec<String> = list.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    pairs.join(",")
}

/// A pod's usage by quota resource.
pub fn usage(pod: &Pod, life: Life) -> ResourceList {
    let mut usage = ResourceList::new();
    if life == Life::Live {
        let (requests, limits) = (pod.total_requests(LEVEL), pod.total_limits(LEVEL));
        usage = compute(&requests, &limits);
    }
    usage.insert(ALL_PODS.into(), one());
    usage
}

fn one() -> Quantity {
    Quantity::from_units(1, Format::DecimalSi)
}

/// Requests and limits as quota resources.
fn compute(requests: &ResourceList, limits: &ResourceList) -> ResourceList {
    let mut usage = ResourceList::from([(LIVE_PODS.into(), one())]);
    let requested = |name: &ResourceName| ResourceName::new(format!("{REQUESTS}{name}"));
    for (name, amount) in requests {
        let plain = PLAIN.contains(&name.as_str());
        if plain || name.is_hugepages() {
            usage.insert(name.clone(), *amount);
        }
        if plain || name.is_hugepages() || is_extended(name.as_str()) {
            usage.insert(requested(name), *amount);
        }
    }
    for (name, amount) in limits.iter().filter(|(name, _)| PLAIN.contains(&name.as_str())) {
        usage.insert(ResourceName::new(format!("limits.{name}")), *amount);
    }
    usage
}

/// Whether requests of this resource are counted like devices.
fn is_extended(name: &str) -> bool {
    let native = !name.contains('/') || name.contains(KUBERNETES);
    !native && !name.starts_with(REQUESTS) || name.starts_with(DEVICE_CLASS)
}

fn is_about_pods(name: &ResourceName) -> bool {
    let name = name.as_str();
    let plain = |name: &str| PLAIN.contains(&name);
    let requested = name.strip_prefix(REQUESTS);
    let of_devices = requested.is_some_and(|of| {
        of.starts_with(DEVICE_CLASS) || name.contains('/') && !name.contains(KUBERNETES)
    });
    matches!(name, ALL_PODS | LIVE_PODS)
        || plain(name)
        || requested.is_some_and(plain)
        || name.strip_prefix("limits.").is_some_and(plain)
        || name.starts_with(HUGEPAGES)
        || name.starts_with(HUGEPAGE_REQUESTS)
        || of_devices
}

/// Whether a quota applies to a pod.
pub fn counts(quota: &Quota, spec: &PodSpec) -> bool {
    quota.hard.keys().any(is_about_pods) && quota.scopes.iter().all(|scope| applies_to(scope, spec))
}

fn applies_to(scope: &QuotaScope, spec: &PodSpec) -> bool {
    match scope {
        QuotaScope::Deadline(wanted) => {
            spec.deadline_ms.is_some_and(|deadline| deadline >= 0) == *wanted
        }
        QuotaScope::BestEffort(wanted) => (spec.pod.qos(LEVEL) == QosClass::BestEffort) == *wanted,
        QuotaScope::PriorityClass(operator) => operator.accepts(spec.priority_class.as_deref()),
        QuotaScope::CrossNamespaceAffinity => looks_at_other_namespaces(spec),
        QuotaScope::NoPod => false,
    }
}

fn looks_at_other_namespaces(spec: &PodSpec) -> bool {
    let affinity = &spec.pod_affinity;
    let hard = affinity.required.iter().chain(&affinity.anti_required);
    let soft = affinity.preferred.iter().chain(&affinity.anti_preferred).map(|(_, term)| term);
    let other = |term: &PodTerm| !term.namespaces.is_empty() || term.namespace_selector.is_some();
    hard.chain(soft).any(other)
}

/// What containers must specify and do not, by quota resource.
fn unspecified(quota: &Quota, pod: &Pod) -> BTreeMap<ResourceName, BTreeSet<String>> {
    let mut missing: BTreeMap<ResourceName, BTreeSet<String>> = BTreeMap::new();
    if pod.has_pod_level_resources() {
        return missing;
    }
    for wanted in quota.hard.keys().filter(|name| MUST_SPECIFY.contains(&name.as_str())) {
        let silent = |resources: &Resources| {
            !compute(&resources.requests, &resources.limits).contains_key(wanted)
        };
        let names = pod.containers.iter().filter(|one| silent(&one.resources));
        let names: BTreeSet<String> = names.map(|one| one.name.clone()).collect();
        if !names.is_empty() {
            missing.insert(wanted.clone(), names);
        }
    }
    missing
}

/// The part of a usage that a quota limits.
pub fn limited(quota: &Quota, usage: &ResourceList) -> ResourceList {
    let of_interest =
        usage.iter().filter(|(name, amount)| quota.hard.contains_key(*name) && !amount.is_zero());
    of_interest.map(|(name, amount)| (name.clone(), *amount)).collect()
}

/// Checks a pod's usage against the quotas of its namespace. Quotas that do not apply are ignored.
/// What must be specified is checked for all quotas first; the first refusal is returned.
pub fn check<'a>(
    quotas: impl Iterator<Item = (&'a Quota, &'a ResourceList)> + Clone,
    spec: &PodSpec,
    usage: &ResourceList,
) -> Result<(), Refusal> {
    let concerned = quotas.filter(|(quota, _)| counts(quota, spec));
    for (quota, _) in concerned.clone() {
        let missing = unspecified(quota, &spec.pod);
        if !missing.is_empty() {
            return Err(Refusal::Unspecified { quota: quota.name.clone(), missing });
        }
    }
    let negative = usage.iter().filter(|(_, amount)| amount.sign() < 0);
    let resources: Vec<ResourceName> = negative.map(|(name, _)| name.clone()).collect();
    if !resources.is_empty() {
        return Err(Refusal::Negative { resources });
    }
    for (quota, used) in concerned {
        fits(quota, used, usage)?;
    }
    Ok(())
}

fn fits(quota: &Quota, used: &ResourceList, usage: &ResourceList) -> Result<(), Refusal> {
    let asked = limited(quota, usage);
    let of = |list: &ResourceList, name: &ResourceName| list.get(name).copied();
    let too_much = |(name, amount): &(&ResourceName, &Quantity)| {
        let before = of(used, name).unwrap_or(Quantity::ZERO);
        of(&quota.hard, name).is_some_and(|hard| before.saturating_add(**amount) > hard)
    };
    let requested: ResourceList =
        asked.iter().filter(too_much).map(|(name, amount)| (name.clone(), *amount)).collect();
    if requested.is_empty() {
        return Ok(());
    }
    let only = |list: &ResourceList| -> ResourceList {
        requested.keys().filter_map(|name| Some((name.clone(), of(list, name)?))).collect()
    };
    let (used, hard) = (only(used), only(&quota.hard));
    Err(Refusal::Exceeded { quota: quota.name.clone(), requested, used, hard })
}

pub fn add(quota: &Quota, used: &mut ResourceList, usage: &ResourceList) {
    for (name, amount) in limited(quota, usage) {
        let before = used.get(&name).copied().unwrap_or(Quantity::ZERO);
        used.insert(name, before.saturating_add(amount));
    }
}

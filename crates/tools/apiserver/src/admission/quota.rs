//! ResourceQuota: what an object counts for, and `status.used`. `berth_tenancy` knows what pods count for.
//!
//! Quotas are not written here: the caller writes the returned ones in the same transaction as the object, or asks
//! again.

use std::collections::BTreeSet;

use berth_api::Lower;
use berth_model::policy::Quota;
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::{ResourceList, ResourceName};
use berth_model::spec::PodObject;
use berth_tenancy::quota::{Life, Refusal, check, counts, limited, usage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Operation, Request, View};
use crate::kinds::{Kind, Resource};
use crate::status::Status;

const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
const CLAIMS: &str = "persistentvolumeclaims";
const STORAGE: &str = "requests.storage";

/// Resources that quotas ignore.
const IGNORED: [(&str, &str); 4] =
    [("", "bindings"), ("", "componentstatuses"), ("", "events"), ("events.k8s.io", "events")];

/// Resources that quotas also count under their plain name.
const ALIASES: [&str; 4] = ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];

fn quotas() -> Resource {
    Resource::new("", "resourcequotas")
}

fn one() -> Quantity {
    Quantity::from_units(1, Format::DecimalSi)
}

enum Counted {
    Pod(Box<PodObject>),
    /// Usage by the names under which such objects count.
    Other(ResourceList),
}

fn lowered<T: for<'de> Deserialize<'de> + Lower>(object: &Value) -> Option<T::Model> {
    T::deserialize(object).ok()?.lower().ok()
}

fn pod(object: &Value) -> Option<PodObject> {
    let mut object = object.clone();
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    for (name, value) in [("name", "unnamed"), ("uid", "unknown"), ("namespace", "unknown")] {
        metadata.entry(name).or_insert_with(|| Value::from(value));
    }
    metadata
        .entry("creationTimestamp")
        .or_insert_with(|| Value::from(Timestamp::UNIX_EPOCH.to_string()));
    lowered::<core::Pod>(&object)
}

fn counted(resource: &Resource, object: &Value) -> Counted {
    let (group, plural) = (&*resource.group, &*resource.plural);
    match (group, plural) {
        ("", "pods") => match pod(object) {
            Some(pod) => Counted::Pod(Box::new(pod)),
            None => Counted::Other(count_of(&["count/pods", "pods"])),
        },
        ("", "services") => Counted::Other(service(object)),
        ("", CLAIMS) => Counted::Other(claim(object)),
        _ => {
            let by_count = format!("count/{resource}");
            let mut names = vec![by_count.as_str()];
            if group.is_empty() && ALIASES.contains(&plural) {
                names.push(plural);
            }
            Counted::Other(count_of(&names))
        }
    }
}

fn count_of(names: &[&str]) -> ResourceList {
    names.iter().map(|name| (ResourceName::from(*name), one())).collect()
}

fn service(object: &Value) -> ResourceList {
    let mut usage = count_of(&["count/services", "services"]);
    let ports = object.pointer("/spec/ports").and_then(Value::as_array);
    let with_node_port = |port: &&Value| {
        port.get("nodePort").and_then(Value::as_i64).is_some_and(|number| number != 0)
    };
    let own_ports = object.pointer("/spec/allocateLoadBalancerNodePorts");
    let kind = object.pointer("/spec/type").and_then(Value::as_str);
    let node_ports = match (kind, own_ports) {
        (Some("LoadBalancer"), Some(Value::Bool(false))) => {
            ports.into_iter().flatten().filter(with_node_port).count()
        }
        (Some("NodePort" | "LoadBalancer"), _) => ports.map_or(0, Vec::len),
        _ => 0,
    };
    let balancers = i64::from(kind == Some("LoadBalancer"));
    let number = |units: i64| Quantity::from_units(units, Format::DecimalSi);
    let node_ports = i64::try_from(node_ports).unwrap_or(i64::MAX);
    usage.insert("services.nodeports".into(), number(node_ports));
    usage.insert("services.loadbalancers".into(), number(balancers));
    usage
}

fn claim(object: &Value) -> ResourceList {
    let mut usage = count_of(&[CLAIMS, "count/persistentvolumeclaims"]);
    let annotation = object
        .pointer("/metadata/annotations")
        .and_then(|all| all.get("volume.beta.kubernetes.io/storage-class"));
    let class = annotation.or_else(|| object.pointer("/spec/storageClassName"));
    let class = class.and_then(Value::as_str).unwrap_or_default();
    let storage = |path: &str| {
        let text = object.pointer(path).and_then(Value::as_str)?;
        let amount = Quantity::parse(text).ok()?;
        Some(Quantity::from_units(amount.value(), amount.format()))
    };
    let allocated = storage("/status/allocatedResources/storage");
    let asked = storage("/spec/resources/requests/storage");
    let asked = asked.map(|asked| allocated.filter(|more| *more > asked).unwrap_or(asked));
    if !class.is_empty() {
        usage.insert(ResourceName::new(format!("{class}{STORAGE_CLASS}{CLAIMS}")), one());
    }
    if let Some(asked) = asked {
        usage.insert(STORAGE.into(), asked);
        if !class.is_empty() {
            usage.insert(ResourceName::new(format!("{class}{STORAGE_CLASS}{STORAGE}")), asked);
        }
    }
    usage
}

struct QuotaUsage {
    object: Value,
    quota: Quota,
    used: ResourceList,
}

impl QuotaUsage {
    fn read(object: &Value, view: &(impl View + ?Sized), now: Timestamp) -> Option<Self> {
        let quota = lowered::<core::ResourceQuota>(object)?;
        let status = |name: &str| resources(object.pointer(&format!("/status/{name}")));
        let known = status("hard") == quota.hard
            && quota.hard.keys().all(|name| status("used").contains_key(name));
        let used = if known { status("used") } else { recounted(&quota, view, now) };
        Some(Self { object: object.clone(), quota, used })
    }

    fn concerns(&self, counted: &Counted) -> bool {
        concerns(&self.quota, counted)
    }

    fn with_used(&self, used: &ResourceList) -> Value {
        let mut object = self.object.clone();
        if let Some(object) = object.as_object_mut() {
            let mut status = Map::new();
            status.insert("hard".to_owned(), listed(&self.quota.hard));
            status.insert("used".to_owned(), listed(used));
            object.insert("status".to_owned(), Value::Object(status));
        }
        object
    }
}

fn concerns(quota: &Quota, counted: &Counted) -> bool {
    match counted {
        Counted::Pod(pod) => counts(quota, &pod.spec),
        Counted::Other(usage) => {
            let named = usage.keys().any(|name| quota.hard.contains_key(name));
            named && quota.scopes.is_empty()
        }
    }
}

fn resources(list: Option<&Value>) -> ResourceList {
    let list = list.and_then(Value::as_object).into_iter().flatten();
    let read = list.filter_map(|(name, amount)| {
        Some((ResourceName::from(name.as_str()), Quantity::parse(amount.as_str()?).ok()?))
    });
    read.collect()
}

fn listed(list: &ResourceList) -> Value {
    let entries = list.iter().map(|(name, amount)| (name.to_string(), amount.to_string().into()));
    Value::Object(entries.collect())
}

fn used_by(counted: &Counted, now: Timestamp) -> ResourceList {
    match counted {
        Counted::Pod(pod) => usage(&pod.spec.pod, Life::of(pod, now.as_millisecond())),
        Counted::Other(usage) => usage.clone(),
    }
}

/// Saturating difference.
fn beyond(more: &ResourceList, less: &ResourceList) -> ResourceList {
    let left = more.iter().map(|(name, amount)| {
        let before = less.get(name).copied().unwrap_or(Quantity::ZERO);
        let rest = amount.saturating_sub(before);
        (name.clone(), if rest.sign() < 0 { Quantity::ZERO } else { rest })
    });
    left.collect()
}

/// Whether quotas apply to a request.
fn is_counted(request: &Request<'_>, object: &Value) -> bool {
    let resource = &request.kind.resource;
    let ignored = IGNORED.contains(&(&*resource.group, &*resource.plural));
    if request.namespace.is_empty() || ignored || request.kind.is("", "namespaces") {
        return false;
    }
    let created = request.operation == Operation::Create;
    let updated = request.operation == Operation::Update;
    match (&*resource.group, &*resource.plural, request.subresource) {
        ("", "pods", "") => {
            let deadline = |pod: &Value| {
                pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64).is_some()
            };
            let differs = request.old.is_some_and(|old| deadline(old) != deadline(object));
            created || updated && differs
        }
        ("", "pods", "resize") => updated,
        ("", "services" | CLAIMS, "") => created || updated,
        (_, _, "") => created,
        _ => false,
    }
}

/// Charges an object to the quotas of its namespace. Returns quotas with a new `status.used`, to be written with
/// the object.
///
/// # Errors
///
/// 403 with the real server's words if there would be more than a quota allows.
pub fn charge(
    request: &Request<'_>,
    object: &Value,
    view: &(impl View + ?Sized),
    now: Timestamp,
) -> Result<Vec<Value>, Status> {
    if !is_counted(request, object) {
        return Ok(Vec::new());
    }
    let all = view.list(&quotas(), request.namespace);
    let mut books: Vec<QuotaUsage> =
        all.iter().filter_map(|object| QuotaUsage::read(object, view, now)).collect();
    if books.is_empty() {
        return Ok(Vec::new());
    }
    books.sort_by(|a, b| a.quota.name.cmp(&b.quota.name));
    let new = counted(&request.kind.resource, object);
    let old = request
        .old
        .filter(|_| request.operation == Operation::Update)
        .map(|old| counted(&request.kind.resource, old));
    let refuse = |refusal: Refusal| request.forbidden(object, refusal);
    let whole = used_by(&new, now);
    if let Counted::Pod(pod) = &new {
        let none = ResourceList::new();
        let open = books.iter().map(|book| (&book.quota, &none));
        // All quotas check required fields before anything is charged.
        match check(open, &pod.spec, &ResourceList::new()) {
            Err(refusal @ Refusal::Unspecified { .. }) => return Err(refuse(refusal)),
            _ => check_sign(&whole).map_err(refuse)?,
        }
    }
    let mut changed = Vec::new();
    for book in books.iter().filter(|book| book.concerns(&new)) {
        let delta = match &old {
            Some(old) if book.concerns(old) => beyond(&whole, &used_by(old, now)),
            _ => whole.clone(),
        };
        let delta = limited(&book.quota, &delta);
        if delta.is_empty() {
            continue;
        }
        fits(book, &delta).map_err(refuse)?;
        let mut used = book.used.clone();
        for (name, amount) in delta {
            let before = used.get(&name).copied().unwrap_or(Quantity::ZERO);
            used.insert(name, before.saturating_add(amount));
        }
        changed.push(book.with_used(&used));
    }
    Ok(changed)
}

fn check_sign(usage: &ResourceList) -> Result<(), Refusal> {
    let negative = usage.iter().filter(|(_, amount)| amount.sign() < 0);
    let resources: Vec<ResourceName> = negative.map(|(name, _)| name.clone()).collect();
    if resources.is_empty() { Ok(()) } else { Err(Refusal::Negative { resources }) }
}

fn fits(book: &QuotaUsage, delta: &ResourceList) -> Result<(), Refusal> {
    let of = |list: &ResourceList, name: &ResourceName| {
        list.get(name).copied().unwrap_or(Quantity::ZERO)
    };
    let exceeded: BTreeSet<&ResourceName> = delta
        .iter()
        .filter(|(name, amount)| {
            of(&book.used, name).saturating_add(**amount) > of(&book.quota.hard, name)
        })
        .map(|(name, _)| name)
        .collect();
    if exceeded.is_empty() {
        return Ok(());
    }
    let only = |list: &ResourceList| -> ResourceList {
        exceeded.iter().map(|name| ((*name).clone(), of(list, name))).collect()
    };
    Err(Refusal::Exceeded {
        quota: book.quota.name.clone(),
        requested: only(delta),
        used: only(&book.used),
        hard: only(&book.quota.hard),
    })
}

/// Releases what an object no longer uses: everything if it is deleted (`new` is `None`), compute resources if a
/// pod has finished. Returns quotas with a new `status.used`.
pub fn release(
    kind: &Kind,
    namespace: &str,
    old: &Value,
    new: Option<&Value>,
    view: &(impl View + ?Sized),
    now: Timestamp,
) -> Vec<Value> {
    if namespace.is_empty() {
        return Vec::new();
    }
    let all = view.list(&quotas(), namespace);
    let books = all.iter().filter_map(|object| QuotaUsage::read(object, view, now));
    let before = counted(&kind.resource, old);
    let after = new.map(|new| counted(&kind.resource, new));
    let left = |book: &QuotaUsage| match &after {
        Some(after) if book.concerns(after) => used_by(after, now),
        _ => ResourceList::new(),
    };
    let freed = books.filter(|book| book.concerns(&before)).filter_map(|book| {
        let freed = limited(&book.quota, &beyond(&used_by(&before, now), &left(&book)));
        if freed.is_empty() {
            return None;
        }
        let mut used = book.used.clone();
        for (name, amount) in freed {
            let rest = used.get(&name).copied().unwrap_or(Quantity::ZERO).saturating_sub(amount);
            used.insert(name, if rest.sign() < 0 { Quantity::ZERO } else { rest });
        }
        Some(book.with_used(&used))
    });
    freed.collect()
}

/// Recounts a quota; `None` if nothing changes.
pub fn recount(quota: &Value, view: &(impl View + ?Sized), now: Timestamp) -> Option<Value> {
    let read = lowered::<core::ResourceQuota>(quota)?;
    let used = recounted(&read, view, now);
    let book = QuotaUsage { object: quota.clone(), quota: read, used: ResourceList::new() };
    Some(book.with_used(&used))
}

fn recounted(quota: &Quota, view: &(impl View + ?Sized), now: Timestamp) -> ResourceList {
    let mut used: ResourceList =
        quota.hard.keys().map(|name| (name.clone(), Quantity::ZERO)).collect();
    let mut kinds: BTreeSet<Resource> = BTreeSet::from([Resource::new("", "pods")]);
    for name in quota.hard.keys().map(ResourceName::as_str) {
        if let Some(resource) = name.strip_prefix("count/") {
            let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
            kinds.insert(Resource::new(group, plural));
        } else if name.contains(CLAIMS) || name.ends_with(STORAGE) {
            kinds.insert(Resource::new("", CLAIMS));
        } else if name.starts_with("services") {
            kinds.insert(Resource::new("", "services"));
        } else if ALIASES.contains(&name) {
            kinds.insert(Resource::new("", name));
        }
    }
    for resource in kinds {
        for object in view.list(&resource, &quota.namespace) {
            let counted = counted(&resource, &object);
            if !concerns(quota, &counted) {
                continue;
            }
            for (name, amount) in limited(quota, &used_by(&counted, now)) {
                let before = used.get(&name).copied().unwrap_or(Quantity::ZERO);
                used.insert(name, before.saturating_add(amount));
            }
        }
    }
    used
}

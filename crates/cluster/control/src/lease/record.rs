//! What a Lease says, and what is written into one.
//!
//! Owns the fields and the annotation. Must not decide anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::keys::BINDING;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use thiserror::Error;

use super::Settings;

/// Nobody waits longer than this for a holder, whatever its Lease says.
const DURATION_MS_MAX: u64 = 300_000;

/// The longest namespace, name and UID that the API server accepts for a pod.
const NAMESPACE_MAX_BYTES: usize = 63;
const NAME_MAX_BYTES: usize = 253;
const UID_MAX_BYTES: usize = 128;

/// A pod, once and for all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its uid: another pod of the same name has another.
    pub uid: Arc<str>,
}

impl PodRef {
    /// Whether the API server lets a pod have this namespace, name and UID. They go into request paths,
    /// and a list in a Lease can hold anything.
    fn is_possible(&self) -> bool {
        let is_label = |text: &str| {
            let edge = |at: Option<char>| at.is_some_and(|one| one.is_ascii_alphanumeric());
            edge(text.chars().next())
                && edge(text.chars().last())
                && text
                    .chars()
                    .all(|one| one == '-' || one.is_ascii_digit() || one.is_ascii_lowercase())
        };
        let fits = |text: &str, max: usize| !text.is_empty() && text.len() <= max;
        let is_uid =
            |text: &str| text.bytes().all(|one| one == b'-' || one.is_ascii_alphanumeric());
        fits(&self.namespace, NAMESPACE_MAX_BYTES)
            && is_label(&self.namespace)
            && fits(&self.name, NAME_MAX_BYTES)
            && self.name.split('.').all(is_label)
            && fits(&self.uid, UID_MAX_BYTES)
            && is_uid(&self.uid)
    }
}

/// An annotation that is not what a holder writes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("annotation {BINDING} of the lease cannot be read: {0}")]
pub struct Unreadable(String);

/// A Lease as the API server has it.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseView(Lease);

impl LeaseView {
    /// What this Lease says.
    pub fn new(lease: Lease) -> Self {
        Self(lease)
    }

    /// Its version: what changes with every write.
    pub fn resource_version(&self) -> &str {
        self.0.metadata.resource_version.as_deref().unwrap_or("")
    }

    /// Who holds it; empty: nobody.
    pub fn holder(&self) -> &str {
        let spec = self.0.spec.as_ref();
        spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or("")
    }

    /// How long its holder is to be waited for, by its own word.
    pub fn duration_ms(&self) -> u64 {
        let seconds = self.0.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0);
        seconds.saturating_mul(1_000).min(DURATION_MS_MAX)
    }

    /// The pods whose bindings may be under way.
    pub fn binding(&self) -> Result<BTreeSet<PodRef>, Unreadable> {
        let annotations = self.0.metadata.annotations.as_ref();
        let Some(text) = annotations.and_then(|all| all.get(BINDING)) else {
            return Ok(BTreeSet::new());
        };
        let by_namespace: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Arc<str>>> =
            read_names(text).map_err(|error| Unreadable(error.to_string()))?;
        let all = by_namespace.into_iter().flat_map(|(namespace, pods)| {
            let pods = pods.into_iter();
            pods.map(move |(uid, name)| PodRef { namespace: namespace.clone(), name, uid })
        });
        let all: BTreeSet<PodRef> = all.collect();
        match all.iter().find(|pod| !pod.is_possible()) {
            // No holder writes such a name, so another client wrote the list.
            Some(PodRef { namespace, name, uid }) => {
                let problem = format!("invalid pod reference {namespace:?}/{name:?} (UID {uid:?})");
                Err(Unreadable(problem))
            }
            None => Ok(all),
        }
    }

    /// A first Lease, held by `me`.
    pub fn first(me: &str, settings: &Settings, now: Timestamp) -> Lease {
        let metadata = ObjectMeta {
            name: Some(settings.name.clone()),
            namespace: Some(settings.namespace.clone()),
            ..ObjectMeta::default()
        };
        let empty = Lease { metadata, spec: Some(LeaseSpec::default()) };
        Self(empty).taken(me, settings, now)
    }

    /// The same with `me` as its holder. The list stays: the new holder answers for it now.
    pub fn taken(&self, me: &str, settings: &Settings, now: Timestamp) -> Lease {
        let mut lease = self.0.clone();
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(me) {
            let before = spec.lease_transitions.unwrap_or(0);
            let is_first = spec.acquire_time.is_none();
            spec.lease_transitions = Some(before.saturating_add(i32::from(!is_first)));
            spec.acquire_time = Some(MicroTime(now));
        }
        spec.holder_identity = Some(me.to_owned());
        spec.lease_duration_seconds = Some(seconds_of(settings.duration_ms));
        spec.renew_time = Some(MicroTime(now));
        lease
    }

    /// The same, renewed, with this list.
    pub(super) fn renewed(&self, binding: &BTreeSet<PodRef>, now: Timestamp) -> Lease {
        let mut lease = self.0.clone();
        lease.spec.get_or_insert_default().renew_time = Some(MicroTime(now));
        let annotations = lease.metadata.annotations.get_or_insert_default();
        if binding.is_empty() {
            annotations.remove(BINDING)
        } else {
            annotations.insert(BINDING.to_owned(), write_names(binding))
        };
        lease
    }

    /// The same, given back: whoever looks next may have it.
    pub(super) fn released(&self, binding: &BTreeSet<PodRef>, now: Timestamp) -> Lease {
        let mut lease = self.renewed(binding, now);
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        lease
    }
}

fn seconds_of(ms: u64) -> i32 {
    i32::try_from(ms.div_ceil(1_000)).unwrap_or(i32::MAX)
}

/// By namespace and uid, names.
type ByUid = BTreeMap<Arc<str>, BTreeMap<Arc<str>, Arc<str>>>;

fn read_names(text: &str) -> Result<ByUid, serde_json::Error> {
    type Names = BTreeMap<String, BTreeMap<String, String>>;
    let names: Names = serde_json::from_str(text)?;
    let shared = |(uid, name): (String, String)| (Arc::from(uid), Arc::from(name));
    let all = names.into_iter();
    Ok(all.map(|(space, pods)| (space.into(), pods.into_iter().map(shared).collect())).collect())
}

fn write_names(pods: &BTreeSet<PodRef>) -> String {
    let mut by_namespace: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for pod in pods {
        by_namespace.entry(&pod.namespace).or_default().insert(&pod.uid, &pod.name);
    }
    serde_json::json!(by_namespace).to_string()
}

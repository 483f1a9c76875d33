//! The fields and the annotation of a Lease.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::keys::BINDING;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use thiserror::Error;

use super::Settings;

/// The longest lease duration that is honoured.
const DURATION_MS_MAX: u64 = 300_000;

/// The longest namespace, name and UID that the API server accepts for a pod.
const NAMESPACE_MAX_BYTES: usize = 63;
const NAME_MAX_BYTES: usize = 253;
const UID_MAX_BYTES: usize = 128;

/// A pod, distinct from others of the same name before or after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
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

/// The annotation was not written by a holder.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot read annotation {BINDING} of the Lease: {0}")]
pub struct Unreadable(String);

/// A Lease as the API server has it.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseView(Lease);

impl LeaseView {
    pub fn new(lease: Lease) -> Self {
        Self(lease)
    }

    pub fn resource_version(&self) -> &str {
        self.0.metadata.resource_version.as_deref().unwrap_or("")
    }

    /// Empty if the Lease is released.
    pub fn holder(&self) -> &str {
        let spec = self.0.spec.as_ref();
        spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or("")
    }

    /// How long to wait for the holder, according to the Lease.
    pub fn duration_ms(&self) -> u64 {
        let seconds = self.0.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0);
        seconds.saturating_mul(1_000).min(DURATION_MS_MAX)
    }

    /// Pods whose bindings may be in flight.
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

    pub fn first(me: &str, settings: &Settings, now: Timestamp) -> Lease {
        let metadata = ObjectMeta {
            name: Some(settings.name.clone()),
            namespace: Some(settings.namespace.clone()),
            ..ObjectMeta::default()
        };
        let empty = Lease { metadata, spec: Some(LeaseSpec::default()) };
        Self(empty).taken(me, settings, now)
    }

    /// With `me` as the holder. The list stays: the new holder has to fence those pods.
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

    /// Without a holder, so that any replica can take it.
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

/// Pod names by namespace and UID.
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

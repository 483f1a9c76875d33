//! A Lease that anyone with the right to write it may have written.
//!
//! Owns reading one whatever its times and numbers are. Times in a Lease are for people, and nothing is
//! decided by them, so a time that cannot be read is dropped: otherwise a single write with a `renewTime`
//! at the end of the year 9999 would keep every replica from reading the Lease, and so from leading.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// A Lease, read tolerantly.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(super) struct TolerantLease(pub(super) Lease);

impl<'de> Deserialize<'de> for TolerantLease {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut lease = Value::deserialize(deserializer)?;
        drop_unreadable(&mut lease);
        serde_json::from_value(lease).map(Self).map_err(D::Error::custom)
    }
}

/// Drops what no decision depends on and another client may have filled with anything.
fn drop_unreadable(lease: &mut Value) {
    if let Some(metadata) = lease.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        metadata.retain(|field, value| !field.ends_with("Timestamp") || is_time(value));
    }
    if let Some(spec) = lease.get_mut("spec").and_then(Value::as_object_mut) {
        spec.retain(|field, value| !field.ends_with("Time") || is_time(value));
    }
}

fn is_time(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.parse::<Timestamp>().is_ok())
}

impl Resource for TolerantLease {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Lease::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Lease::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Lease::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Lease::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use serde_json::json;

    use super::*;

    #[test]
    fn times_that_cannot_be_read_are_dropped_and_the_rest_is_kept() {
        let end = "9999-12-31T23:59:59.999999Z";
        let lease = json!({
            "metadata": { "name": "berth", "resourceVersion": "7", "creationTimestamp": end,
                          "annotations": { "a": "b" },
                          "managedFields": [{ "manager": "x", "time": end }] },
            "spec": { "holderIdentity": "a", "leaseDurationSeconds": 15,
                      "renewTime": end, "acquireTime": "2026-11-18T10:00:00.000000Z" },
        });
        assert!(serde_json::from_value::<Lease>(lease.clone()).is_err(), "a plain read fails");
        let TolerantLease(read) = serde_json::from_value(lease).unwrap();
        let spec = read.spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("a"));
        assert_eq!((spec.renew_time, spec.acquire_time.is_some()), (None, true));
        assert_eq!(read.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(read.metadata.annotations.unwrap()["a"], "b");
    }
}

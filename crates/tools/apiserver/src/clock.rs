//! Times in the format of Kubernetes.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// Now, in whole seconds: `metav1.Time`.
pub(crate) fn now() -> String {
    in_seconds(0)
}

pub(crate) fn in_seconds(seconds: i64) -> String {
    let now = Timestamp::now();
    format(now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(now))
}

/// An instant in whole seconds.
pub(crate) fn format(timestamp: Timestamp) -> String {
    let whole = Timestamp::from_second(timestamp.as_second()).unwrap_or(timestamp);
    whole.to_string()
}

/// Reads what [`format`] wrote, or any other RFC 3339 instant.
pub(crate) fn parse(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

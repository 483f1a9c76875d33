//! Rules: their codes, how grave a breach is, and what they are for.
//!
//! Owns the shape of a rule and how rules are found by code. Must not know how any is checked; what
//! a rule says stands beside the code that checks it.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Severity of a finding.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing, often intended.
    Info,
    /// It works, but probably not as intended.
    Warning,
    /// It cannot work, or it harms other workloads.
    Error,
}

impl Severity {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Info, "info"), (Self::Warning, "warning"), (Self::Error, "error")];

    /// As settings and output spell it.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(one, _)| *one == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// A text that is no severity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown severity {0:?} (expected info, warning or error)")]
pub struct SeverityError(String);

impl FromStr for Severity {
    type Err = SeverityError;

    fn from_str(text: &str) -> Result<Self, SeverityError> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(one, _)| *one).ok_or_else(|| SeverityError(text.to_owned()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// Resources of pods.
    Requests,
    Placement,
    Serving,
    /// Includes priorities.
    Batch,
    /// Teams, quotas and limits of namespaces.
    Tenancy,
    /// Images, node pools and the device plugin.
    Platform,
    /// PromQL.
    Metrics,
    Berth,
}

impl Topic {
    pub const fn title(self) -> &'static str {
        match self {
            Self::Requests => "Resources",
            Self::Placement => "Placement",
            Self::Serving => "Serving",
            Self::Batch => "Batch and priorities",
            Self::Tenancy => "Teams, quotas and limits",
            Self::Platform => "Platform",
            Self::Metrics => "Metrics",
            Self::Berth => "Labels and annotations of Berth",
        }
    }
}

/// A rule of the contract. The meaning of its code and name never changes.
#[derive(Debug)]
pub struct Rule {
    /// Such as `BERTH-101`.
    pub code: &'static str,
    /// Such as `gpu-request-limit`.
    pub name: &'static str,
    pub topic: Topic,
    /// The default; settings may change it.
    pub severity: Severity,
    /// The requirement, in one sentence.
    pub summary: &'static str,
    /// The consequences of a violation.
    pub why: &'static str,
    pub remedy: &'static str,
    /// What `--fix` changes; `None` if it changes nothing.
    pub safe_fix: Option<&'static str>,
}

impl Rule {
    /// By code or name.
    pub fn find(text: &str) -> Option<&'static Self> {
        let text = text.trim();
        let meant = |rule: &&&Self| rule.code.eq_ignore_ascii_case(text) || rule.name == text;
        crate::RULES.iter().find(meant).copied()
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code
    }
}

impl Eq for Rule {}

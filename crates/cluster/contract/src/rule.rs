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
#[error("{0:?} is no severity; write info, warning or error")]
pub struct SeverityError(String);

impl FromStr for Severity {
    type Err = SeverityError;

    fn from_str(text: &str) -> Result<Self, SeverityError> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(one, _)| *one).ok_or_else(|| SeverityError(text.to_owned()))
    }
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// What pods ask for.
    Requests,
    /// Where pods may go.
    Placement,
    /// Pods that somebody waits for.
    Serving,
    /// Pods that run to an end, and priorities.
    Batch,
    /// Teams, quotas and limits of namespaces.
    Tenancy,
    /// Images, node pools and what runs on every node.
    Platform,
    /// Queries of metrics.
    Metrics,
    /// Berth's own labels and annotations.
    Berth,
}

impl Topic {
    /// As a heading.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Requests => "What pods ask for",
            Self::Placement => "Where pods may go",
            Self::Serving => "Serving",
            Self::Batch => "Batch and priorities",
            Self::Tenancy => "Teams, quotas, limits",
            Self::Platform => "Images and node pools",
            Self::Metrics => "Metrics",
            Self::Berth => "Berth's own labels and annotations",
        }
    }
}

/// One rule of the contract. Its code and name never change their meaning.
#[derive(Debug)]
pub struct Rule {
    /// Such as `BERTH-101`.
    pub code: &'static str,
    /// The same in words, such as `gpu-request-limit`.
    pub name: &'static str,
    /// What it is about.
    pub topic: Topic,
    /// How grave a breach is unless the settings say otherwise.
    pub severity: Severity,
    /// What is demanded, in one sentence.
    pub summary: &'static str,
    /// What happens otherwise.
    pub why: &'static str,
    /// What to do about a breach.
    pub remedy: &'static str,
    /// What is changed where a breach can be mended without risk, and why that is safe.
    pub safe_fix: Option<&'static str>,
}

impl Rule {
    /// The rule of this code or name.
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

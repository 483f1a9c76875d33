//! Rejections, with kube-scheduler's messages and status codes.

use std::fmt;
use std::sync::Arc;

/// RejectionReason a pod's claims cannot be allocated, on one node or at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub code: Code,
    pub reason: RejectionReason,
}

/// Evicting other pods never helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// `UnschedulableAndUnresolvable`: not on this node in the current state.
    Unresolvable,
    /// `Error`: scheduling of the pod fails for all nodes.
    Error,
}

impl Code {
    /// As kube-scheduler spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unresolvable => "UnschedulableAndUnresolvable",
            Self::Error => "Error",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectionReason {
    /// A claim of the pod is missing, being deleted, or another pod's.
    Claim(String),
    /// A class named by a request does not exist.
    ClassMissing {
        request: String,
        class: Arc<str>,
    },
    /// A claim is being allocated for another pod.
    InFlight(String),
    /// A request has a form that is not supported.
    UnknownRequest(String),
    /// A claim for extended resources is left from an earlier attempt.
    StaleExtendedClaim,
    /// An extended resource is neither on the node nor served by a class.
    NoExtendedResource,
    NotEnough,
    /// There are not enough devices, and some pools are invalid.
    InvalidPools,
    /// An allocated claim cannot be used from the node.
    UnavailableClaim,
    /// A selector failed, a pool was incomplete for a request for all devices, or similar.
    Failed(String),
    /// The search reached its limit of steps.
    TooLong,
}

impl RejectionReason {
    pub(crate) fn into_rejection(self) -> Rejection {
        let code = match self {
            Self::Failed(_) | Self::TooLong => Code::Error,
            _ => Code::Unresolvable,
        };
        Rejection { code, reason: self }
    }
}

impl fmt::Display for RejectionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(problem) | Self::UnknownRequest(problem) | Self::Failed(problem) => {
                f.write_str(problem)
            }
            Self::ClassMissing { request, class } => {
                write!(f, "request {request}: device class {class} does not exist")
            }
            Self::InFlight(claim) => {
                write!(f, "resource claim {claim} is in the process of being allocated")
            }
            Self::StaleExtendedClaim => f.write_str("cannot schedule extended resource claim"),
            Self::NoExtendedResource => f.write_str("cannot fit resource"),
            Self::NotEnough => f.write_str("cannot allocate all claims"),
            Self::InvalidPools => f.write_str("invalid resource pools were encountered"),
            Self::UnavailableClaim => f.write_str("resourceclaim not available on the node"),
            Self::TooLong => f.write_str("timed out attempt to allocate devices"),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for Rejection {}

//! Why a pod cannot have its devices.
//!
//! Owns the reasons as data, and kube-scheduler's words and codes for them.

use std::fmt;
use std::sync::Arc;

/// Why a pod cannot have its devices, on one node or at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// What it means for the pod.
    pub code: Code,
    /// Why.
    pub why: Why,
}

/// What a rejection means for the pod. Evicting other pods never helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// `UnschedulableAndUnresolvable`: not here, as things are.
    Unresolvable,
    /// `Error`: the attempt to place the pod ends, whatever other nodes say.
    Error,
}

impl Code {
    /// The code as kube-scheduler spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unresolvable => "UnschedulableAndUnresolvable",
            Self::Error => "Error",
        }
    }
}

/// A reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// A claim of the pod is not there, is being deleted, or is not the pod's.
    Claim(String),
    /// A class that a request names is not there.
    ClassMissing {
        /// The request.
        request: String,
        /// The class.
        class: Arc<str>,
    },
    /// A claim is being given devices for another pod.
    InFlight(String),
    /// A claim asks for something in a way that is not understood.
    UnknownRequest(String),
    /// A claim for extended resources is left from before.
    StaleExtendedClaim,
    /// An extended resource is neither on the node nor served by a class.
    NoExtendedResource,
    /// There are not enough devices.
    NotEnough,
    /// There are not enough devices, and there are pools that contradict themselves.
    InvalidPools,
    /// A claim that has been given devices cannot be used from the node.
    UnavailableClaim,
    /// A selector failed, a pool was incomplete where all is asked for, or the like.
    Failed(String),
    /// The search took too long.
    TooLong,
}

impl Why {
    pub(crate) fn rejects(self) -> Rejection {
        let code = match self {
            Self::Failed(_) | Self::TooLong => Code::Error,
            _ => Code::Unresolvable,
        };
        Rejection { code, why: self }
    }
}

impl fmt::Display for Why {
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
            Self::TooLong => f.write_str("timed out trying to allocate devices"),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl std::error::Error for Rejection {}

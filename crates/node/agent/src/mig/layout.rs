//! What a GPU is divided into.
//!
//! Owns slices by profile and place, and their one form in files and texts (`3g.71gb@4`). Must not know
//! which of them are legal.

use std::fmt;

use berth_model::mig::ProfileName;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A kind of slice at a place. As text `3g.71gb@4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The first unit of memory.
    pub start: u8,
    /// What it is.
    pub profile: ProfileName,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.profile, self.start)
    }
}

impl Place {
    /// Reads what printing gives.
    pub fn parse(text: &str) -> Option<Self> {
        let (profile, start) = text.split_once('@')?;
        Some(Self { profile: profile.parse().ok()?, start: start.parse().ok()? })
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || D::Error::custom(format!("{text:?} is no slice, such as 3g.71gb@4"));
        Self::parse(&text).ok_or_else(wrong)
    }
}

/// A GPU instance, and how its compute is divided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Slice {
    /// What it is, and where.
    pub place: Place,
    /// Compute slices of each of its compute instances, ascending. One that has all is usual; none is what
    /// a crash leaves.
    pub compute: Vec<u8>,
}

impl Slice {
    /// With one compute instance that has all.
    pub fn whole(place: Place) -> Self {
        Self { place, compute: vec![place.profile.compute] }
    }

    /// Whether all of it is one compute instance.
    pub fn is_whole(&self) -> bool {
        self.compute == [self.place.profile.compute]
    }

    /// Whether it is the other one, but for compute instances that can be added.
    pub(super) fn can_become(&self, wanted: &Self) -> bool {
        self.place == wanted.place && self.missing(wanted).is_some()
    }

    /// The compute instances that `wanted` has more; `None` if some of these would have to go.
    pub(super) fn missing(&self, wanted: &Self) -> Option<Vec<u8>> {
        let mut missing = wanted.compute.clone();
        for slices in &self.compute {
            let at = missing.iter().position(|one| one == slices)?;
            missing.remove(at);
        }
        Some(missing)
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place)?;
        if self.is_whole() {
            return Ok(());
        }
        let parts: Vec<String> = self.compute.iter().map(|slices| format!("{slices}c")).collect();
        write!(f, " ({})", if parts.is_empty() { "no compute".to_owned() } else { parts.join("+") })
    }
}

/// What a GPU is divided into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuLayout {
    /// UUID of the GPU.
    pub gpu: String,
    /// Whether it can be divided now.
    pub enabled: bool,
    /// Its slices, ascending by place.
    pub slices: Vec<Slice>,
}

impl fmt::Display for GpuLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.enabled {
            return f.write_str("off");
        }
        if self.slices.is_empty() {
            return f.write_str("empty");
        }
        let slices: Vec<String> = self.slices.iter().map(Slice::to_string).collect();
        f.write_str(&slices.join(" + "))
    }
}

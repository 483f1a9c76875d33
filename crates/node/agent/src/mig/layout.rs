//! Layouts of GPUs: slices by profile and placement, with their text form (`3g.71gb@4`).

use std::fmt;

use berth_model::mig::ProfileName;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A profile at a position: `3g.71gb@4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// First memory unit.
    pub start: u8,
    pub profile: ProfileName,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.profile, self.start)
    }
}

impl Placement {
    /// Inverse of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let (profile, start) = text.split_once('@')?;
        Some(Self { profile: profile.parse().ok()?, start: start.parse().ok()? })
    }
}

impl Serialize for Placement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Placement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let invalid = || D::Error::custom(format!("{text:?} is not a slice such as 3g.71gb@4"));
        Self::parse(&text).ok_or_else(invalid)
    }
}

/// A GPU instance and its compute instances.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Slice {
    pub place: Placement,
    /// Size of each compute instance in compute slices, ascending. Usually one has all; none is left by a crash.
    pub compute: Vec<u8>,
}

impl Slice {
    /// With one compute instance of full size.
    pub fn whole(place: Placement) -> Self {
        Self { place, compute: vec![place.profile.compute] }
    }

    /// Whether it has one compute instance of full size.
    pub fn is_whole(&self) -> bool {
        self.compute == [self.place.profile.compute]
    }

    /// Whether it becomes `wanted` by adding compute instances.
    pub(super) fn can_become(&self, wanted: &Self) -> bool {
        self.place == wanted.place && self.missing(wanted).is_some()
    }

    /// Compute instances to add for `wanted`; `None` if some would have to be removed.
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuLayout {
    pub gpu: String,
    /// Whether MIG is on.
    pub enabled: bool,
    /// Sorted by placement.
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

//! Profile names: `3g.40gb`, `1g.10gb+me`, and their Kubernetes resources.
//!
//! Only the text form: `9g.999gb` is a well-formed name, and no board has it.

use std::fmt;
use std::str::FromStr;

/// NVIDIA's resource prefix under the `mixed` MIG strategy.
pub const RESOURCE_PREFIX: &str = "nvidia.com/mig-";

/// A profile's suffix, in the order in which a request without a suffix prefers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attribute {
    /// The media engines of the slices.
    Plain,
    /// `-me`: no media engine.
    NoMedia,
    /// `+me`: adds the GPU's media extensions, which exist once.
    Media,
    /// `+gfx`: adds the graphics APIs.
    Graphics,
    /// `+me.all`: every media engine of the GPU.
    MediaAll,
}

impl Attribute {
    /// In order of preference.
    pub const ALL: [Self; 5] =
        [Self::Plain, Self::NoMedia, Self::Media, Self::Graphics, Self::MediaAll];

    /// As `nvidia-smi` prints it.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::NoMedia => "-me",
            Self::Media => "+me",
            Self::Graphics => "+gfx",
            Self::MediaAll => "+me.all",
        }
    }

    /// The suffix in a Kubernetes resource name, where `+` is not allowed.
    ///
    /// NVIDIA's device plugin replaces every `+` by `.` and leaves `-me` as it is
    /// (k8s-device-plugin, `internal/rm/rm.go`: `strings.ReplaceAll("mig-"+p.String(), "+", ".")`).
    pub const fn resource_suffix(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::NoMedia => "-me",
            Self::Media => ".me",
            Self::Graphics => ".gfx",
            Self::MediaAll => ".me.all",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileName {
    /// Compute slices: the `3` of `3g.40gb`.
    pub compute: u8,
    /// Gigabytes as printed: the `40` of `3g.40gb`. A label, not a size: see
    /// [`Profile::memory_mib`](super::Profile::memory_mib).
    pub gb: u16,
    pub attribute: Attribute,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("{text:?} is not a MIG profile name, such as 3g.40gb or 1g.10gb+me")]
    Malformed { text: String },
    /// A compute instance inside a GPU instance, which has no resource of its own.
    #[error("{text:?} names a compute instance; only whole GPU instances are scheduled")]
    ComputeInstance { text: String },
    /// A resource name without [`RESOURCE_PREFIX`].
    #[error("{text:?} is not a MIG resource: it does not begin with nvidia.com/mig-")]
    NotAMigResource { text: String },
}

impl ProfileName {
    /// Parses a Kubernetes resource name: `nvidia.com/mig-1g.10gb.me`.
    pub fn from_resource(text: &str) -> Result<Self, NameError> {
        let Some(rest) = text.strip_prefix(RESOURCE_PREFIX) else {
            return Err(NameError::NotAMigResource { text: text.to_owned() });
        };
        Self::read(rest, Attribute::resource_suffix)
    }

    /// Parses the profile part of a resource name or label: `1g.10gb.me`.
    pub fn from_resource_part(text: &str) -> Result<Self, NameError> {
        Self::read(text, Attribute::resource_suffix)
    }

    pub const fn resource(self) -> MigResource {
        MigResource(self)
    }

    fn read(text: &str, suffix: fn(Attribute) -> &'static str) -> Result<Self, NameError> {
        let malformed = || NameError::Malformed { text: text.to_owned() };
        let (compute, rest) = number(text).ok_or_else(malformed)?;
        if rest.starts_with("c.") {
            return Err(NameError::ComputeInstance { text: text.to_owned() });
        }
        let (gb, rest) = rest.strip_prefix("g.").and_then(number).ok_or_else(malformed)?;
        let rest = rest.strip_prefix("gb").ok_or_else(malformed)?;
        if compute == 0 || gb == 0 {
            return Err(malformed());
        }
        let attribute =
            Attribute::ALL.into_iter().find(|a| suffix(*a) == rest).ok_or_else(malformed)?;
        Ok(Self { compute: u8::try_from(compute).map_err(|_| malformed())?, gb, attribute })
    }
}

/// Parses a decimal number without sign or leading zero; returns the rest.
fn number(text: &str) -> Option<(u16, &str)> {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if digits.len() > 1 && digits.starts_with('0') {
        return None;
    }
    Some((digits.parse().ok()?, rest))
}

impl FromStr for ProfileName {
    type Err = NameError;

    /// Parses the name as `nvidia-smi` prints it: `1g.10gb+me`.
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::read(text, Attribute::suffix)
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}g.{}gb{}", self.compute, self.gb, self.attribute.suffix())
    }
}

/// Printed as `nvidia.com/mig-1g.10gb.me`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MigResource(ProfileName);

impl fmt::Display for MigResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0;
        let suffix = name.attribute.resource_suffix();
        write!(f, "{RESOURCE_PREFIX}{}g.{}gb{suffix}", name.compute, name.gb)
    }
}

//! Boards and their profiles, with their provenance, and finding a profile on a board.

use std::fmt;

use super::geometry::{Geometry, Shape, Starts};
use super::name::{Attribute, NameError, ProfileName};
use super::table::BOARDS;

/// How a profile's memory is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemorySource {
    /// What a driver printed for this product.
    Driver,
    /// NVIDIA's go-nvml mock table.
    Mock,
    /// The number in the name times 1024: the real size is up to a sixth smaller.
    Nominal,
}

/// A kind of GPU instance of one board.
///
/// Profiles exist only in their board's table; two are equal when they are the same entry.
pub struct Profile {
    pub(super) index: u8,
    pub(super) name: ProfileName,
    /// Gigabytes in the names that other drivers print for the same profile.
    pub(super) also_gb: &'static [u16],
    pub(super) driver_id: Option<u8>,
    /// Index into the grid's shapes; meaningless if the board has no grid.
    pub(super) shape: u8,
    pub(super) units: Option<u8>,
    pub(super) starts: Option<Starts>,
    pub(super) max_instances: u8,
    pub(super) memory_mib: u32,
    pub(super) memory_source: MemorySource,
}

impl Profile {
    /// As in `3g.40gb+me`.
    pub const fn name(&self) -> ProfileName {
        self.name
    }

    pub const fn attribute(&self) -> Attribute {
        self.name.attribute
    }

    /// The id `nvidia-smi mig -lgip` prints, if seen.
    pub const fn driver_id(&self) -> Option<u8> {
        self.driver_id
    }

    pub const fn compute_slices(&self) -> u8 {
        self.name.compute
    }

    /// Units of the memory grid; `None` if placements are unknown.
    pub const fn memory_units(&self) -> Option<u8> {
        self.units
    }

    /// Legal starts; `None` if placements are unknown.
    pub const fn starts(&self) -> Option<Starts> {
        self.starts
    }

    /// Limit of instances of this very profile on one GPU.
    pub const fn max_instances(&self) -> u8 {
        self.max_instances
    }

    /// Prefer a node's label `nvidia.com/mig-<profile>.memory`: drivers differ.
    pub const fn memory_mib(&self) -> u32 {
        self.memory_mib
    }

    pub const fn memory_bytes(&self) -> u64 {
        (self.memory_mib as u64) << 20
    }

    pub const fn memory_source(&self) -> MemorySource {
        self.memory_source
    }

    /// A lower bound: a nominal size can be up to a sixth too large.
    pub const fn certain_memory_bytes(&self) -> u64 {
        if self.memory_is_nominal() { self.memory_bytes() / 6 * 5 } else { self.memory_bytes() }
    }

    /// Whether the memory is only the number in the name.
    pub const fn memory_is_nominal(&self) -> bool {
        matches!(self.memory_source, MemorySource::Nominal)
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id)
    }
}

impl PartialEq for Profile {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Profile {}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// A GPU product that supports MIG.
pub struct Board {
    pub(super) id: &'static str,
    pub(super) product: &'static str,
    /// Words of a product name that identify this board: see `product.rs`.
    pub(super) words: &'static [&'static [&'static str]],
    /// Memory as sold.
    pub(super) gb: u16,
    pub(super) geometry: Option<&'static Geometry>,
    pub(super) compute_slices: u8,
    pub(super) max_instances: u8,
    pub(super) profiles: &'static [Profile],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NameMatch {
    /// The name in the table.
    Exact,
    /// A name another driver prints for the same profile.
    Alias,
    /// The only profile with these slices and suffix whose gigabytes are within a tenth.
    Near,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    #[error(transparent)]
    Name(#[from] NameError),
    /// A well-formed name that the board does not have.
    #[error("board {board} has no MIG profile {name}")]
    NotOnBoard { name: ProfileName, board: &'static str },
}

impl Board {
    pub fn all() -> &'static [Board] {
        &BOARDS
    }

    /// Such as `h100-80gb`.
    pub fn by_id(id: &str) -> Option<&'static Board> {
        BOARDS.iter().find(|b| b.id == id)
    }

    /// Such as `h100-80gb`.
    pub const fn id(&self) -> &'static str {
        self.id
    }

    pub const fn product(&self) -> &'static str {
        self.product
    }

    /// Memory as sold, in GB: a label, not a size.
    pub const fn gb(&self) -> u16 {
        self.gb
    }

    /// Units of the memory grid; `None` if placements are unknown.
    pub fn memory_units(&self) -> Option<u8> {
        self.geometry.map(|g| g.units)
    }

    pub const fn compute_slices(&self) -> u8 {
        self.compute_slices
    }

    /// Limit of GPU instances of all kinds.
    pub const fn max_instances(&self) -> u8 {
        self.max_instances
    }

    /// In table order.
    pub const fn profiles(&self) -> &'static [Profile] {
        self.profiles
    }

    /// The profile with this name, and how the name matched.
    ///
    /// Drivers print different gigabytes for one profile (the same GB200 has shown both `1g.23gb`
    /// and `1g.24gb`), so a name that is neither in the table nor a known alias matches the only
    /// profile with the same slices and suffix whose gigabytes are within a tenth.
    pub fn find(&self, name: ProfileName) -> Option<(&'static Profile, NameMatch)> {
        let alike = |p: &&'static Profile| {
            p.name.compute == name.compute && p.name.attribute == name.attribute
        };
        if let Some(p) = self.profiles.iter().find(|p| p.name == name) {
            return Some((p, NameMatch::Exact));
        }
        let mut same = self.profiles.iter().filter(alike);
        if let Some(p) = same.clone().find(|p| p.also_gb.contains(&name.gb)) {
            return Some((p, NameMatch::Alias));
        }
        let near = |gb: u16| u32::from(gb.abs_diff(name.gb)) * 10 <= u32::from(gb);
        let first = same.find(|p| near(p.name.gb))?;
        if same.any(|p| near(p.name.gb)) {
            return None;
        }
        Some((first, NameMatch::Near))
    }

    /// By the name that `nvidia-smi` prints, such as `3g.40gb` or `1g.10gb+me`, or a known alias.
    /// [`Board::find`] also matches near names.
    pub fn profile(&self, text: &str) -> Result<&'static Profile, ProfileError> {
        self.require(text.parse()?)
    }

    /// By Kubernetes resource, such as `nvidia.com/mig-1g.10gb.me`, or a known alias. A kubelet
    /// compares resource names exactly, so near names are not matched.
    pub fn profile_by_resource(&self, text: &str) -> Result<&'static Profile, ProfileError> {
        self.require(ProfileName::from_resource(text)?)
    }

    fn require(&self, name: ProfileName) -> Result<&'static Profile, ProfileError> {
        match self.find(name) {
            Some((profile, NameMatch::Exact | NameMatch::Alias)) => Ok(profile),
            _ => Err(ProfileError::NotOnBoard { name, board: self.id }),
        }
    }

    pub(super) fn owns(&self, profile: &Profile) -> bool {
        self.profiles.get(usize::from(profile.index)).is_some_and(|p| p == profile)
    }

    /// The grid and the profile's shape in it; `None` for a profile of another board, and if
    /// placements are unknown.
    pub(super) fn shape(&self, profile: &Profile) -> Option<(&'static Geometry, &'static Shape)> {
        let geometry = self.geometry.filter(|_| self.owns(profile))?;
        geometry.shapes.get(usize::from(profile.shape)).map(|s| (geometry, s))
    }
}

impl PartialEq for Board {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Board {}

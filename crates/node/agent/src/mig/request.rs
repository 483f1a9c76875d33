//! Requested layouts, in three forms: a text (`0=4g.71gb@0,3g.71gb; 1-7=7x1g.18gb`) from an argument or annotation;
//! the name of a configuration (`all-1g.18gb`) from a label, as in NVIDIA's default configurations; or mig-parted's
//! file of named configurations.
//!
//! The text consists of groups separated by `;`, each `GPUS=SLICES`, or `SLICES` for all GPUs. The last group that
//! applies to a GPU wins. `GPUS` is `all`, a number, a range of numbers or a UUID. `SLICES` is `off`, `empty`, the
//! name of a configuration, or slices separated by `,` or ` + `: an optional count, a profile, and an optional
//! position.

use std::collections::BTreeMap;

use berth_manifest::{Document, Problem, Source};
use berth_model::mig::{Attribute, Board, Profile, ProfileName};
use serde::Deserialize;

use super::driver::MigGpu;

/// Limits: bytes of a text, slices of a GPU, groups.
const TEXT_BYTES_MAX: usize = 16 << 10;
const SLICES_MAX: usize = 64;
const GROUPS_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutRequest {
    groups: Vec<Group>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    gpus: GpuSelector,
    /// PCI ids that it applies to, as mig-parted writes them; empty: any.
    devices: Vec<String>,
    wanted: RequestedLayout,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum GpuSelector {
    All,
    Numbers(Vec<u32>),
    Range(u32, u32),
    Uuid(String),
}

/// The requested layout of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestedLayout {
    /// MIG off.
    Off,
    /// Exactly these slices.
    Slices(Vec<RequestedSlice>),
    /// As many slices of a profile as fit.
    Full(ProfileName),
    /// NVIDIA's `all-balanced`: two slices 1g, one 2g and, if there is room, one 3g.
    Balanced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedSlice {
    pub profile: ProfileName,
    /// First memory unit; `None`: any.
    pub start: Option<u8>,
}

/// An invalid layout text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} {what}; {remedy}")]
pub struct RequestError {
    /// The invalid part.
    pub part: String,
    pub what: &'static str,
    pub remedy: &'static str,
}

fn invalid(part: &str, what: &'static str, remedy: &'static str) -> RequestError {
    RequestError { part: part.chars().take(64).collect(), what, remedy }
}

impl LayoutRequest {
    /// Parses a text or the name of a configuration.
    pub fn parse(text: &str) -> Result<Self, RequestError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(invalid(text, "is too long", "use a file"));
        }
        let parts: Vec<&str> =
            text.split(';').map(str::trim).filter(|one| !one.is_empty()).collect();
        if parts.is_empty() || parts.len() > GROUPS_MAX {
            return Err(invalid(
                text,
                "contains no slices",
                "use for example 7x1g.18gb, off or all-balanced",
            ));
        }
        let groups = parts.into_iter().map(group).collect::<Result<_, _>>()?;
        Ok(Self { groups })
    }

    /// Restricts the request to some GPUs, given as in the text.
    pub fn only(mut self, gpus: &str) -> Result<Self, RequestError> {
        let which = selector(gpus)?;
        for group in &mut self.groups {
            if group.gpus != GpuSelector::All {
                let what = "conflicts with the GPUs that the layout selects";
                return Err(invalid(gpus, what, "select GPUs in one place only"));
            }
            group.gpus = which.clone();
        }
        Ok(self)
    }

    /// Reads a configuration from mig-parted's file: the one with this name, or the only one.
    pub fn from_file(source: &Source, name: Option<&str>) -> Result<Self, Problem> {
        let documents = berth_manifest::read(source)?;
        let Some(document) = documents.first() else {
            let span = berth_manifest::Span::empty_at(0);
            let problem = Problem::of_text(source, span, "contains no configuration");
            return Err(problem.with_remedy("write mig-configs in mig-parted's format"));
        };
        let file: File = document.decode()?;
        if file.version != "v1" {
            let message = format!("unsupported version {:?}", file.version);
            return Err(problem(document, None, message).with_remedy("use version: v1"));
        }
        let names: Vec<&str> = file.configs.keys().map(String::as_str).collect();
        let chosen = match (name, names.as_slice()) {
            (Some(name), _) => name,
            (None, [only]) => *only,
            (None, _) => {
                let message = format!("contains {} configurations", names.len());
                let remedy = format!("select one with its name: {}", names.join(", "));
                return Err(problem(document, None, message).with_remedy(remedy));
            }
        };
        let Some(entries) = file.configs.get(chosen) else {
            let message = format!("contains no configuration {chosen:?}");
            let close = berth_manifest::closest(chosen, &names).unwrap_or("another");
            return Err(
                problem(document, None, message).with_remedy(format!("did you mean {close}?"))
            );
        };
        let groups = entries.iter().map(Entry::group).collect::<Result<_, _>>();
        let groups: Vec<Group> = groups.map_err(|error: RequestError| {
            let message = format!("{:?} {}", error.part, error.what);
            problem(document, Some(chosen), message).with_remedy(error.remedy)
        })?;
        Ok(Self { groups })
    }

    /// The layout for a GPU; `None` if no group applies to it.
    pub fn of(&self, gpu: &MigGpu) -> Option<&RequestedLayout> {
        let meant = self.groups.iter().rev().find(|group| group.is_for(gpu))?;
        Some(&meant.wanted)
    }

    /// Selected GPUs that do not exist.
    pub(super) fn missing_gpus(&self, gpus: &[MigGpu]) -> Vec<String> {
        let there = |number: &u32| gpus.iter().any(|gpu| gpu.index == *number);
        let missing = |group: &Group| match &group.gpus {
            GpuSelector::All => Vec::new(),
            GpuSelector::Numbers(numbers) => {
                numbers.iter().filter(|one| !there(one)).map(u32::to_string).collect()
            }
            GpuSelector::Range(first, last) => {
                [first, last].into_iter().filter(|one| !there(one)).map(u32::to_string).collect()
            }
            GpuSelector::Uuid(uuid) if gpus.iter().any(|gpu| gpu.uuid == *uuid) => Vec::new(),
            GpuSelector::Uuid(uuid) => vec![uuid.clone()],
        };
        self.groups.iter().flat_map(missing).collect()
    }

    /// Whether a GPU is selected explicitly.
    pub(super) fn names(&self, gpu: &MigGpu) -> bool {
        self.groups.iter().any(|group| group.gpus != GpuSelector::All && group.is_for(gpu))
    }

    /// The name of the equivalent configuration of mig-manager, if there is one.
    pub fn configuration(&self) -> Option<String> {
        let [group] = &self.groups[..] else { return None };
        if group.gpus != GpuSelector::All || !group.devices.is_empty() {
            return None;
        }
        match &group.wanted {
            RequestedLayout::Off => Some("all-disabled".to_owned()),
            RequestedLayout::Slices(slices) if slices.is_empty() => Some("all-enabled".to_owned()),
            RequestedLayout::Slices(_) => None,
            RequestedLayout::Full(profile) => Some(format!("all-{}", in_label(*profile))),
            RequestedLayout::Balanced => Some("all-balanced".to_owned()),
        }
    }
}

fn problem(document: &Document, name: Option<&str>, message: String) -> Problem {
    let field = document.base().clone().key("mig-configs");
    document.problem(name.map_or(field.clone(), |name| field.key(name)), message)
}

/// Labels cannot contain `+`; NVIDIA writes a dot.
fn in_label(profile: ProfileName) -> String {
    profile.to_string().replace('+', ".")
}

impl Group {
    fn is_for(&self, gpu: &MigGpu) -> bool {
        let named = match &self.gpus {
            GpuSelector::All => true,
            GpuSelector::Numbers(numbers) => numbers.contains(&gpu.index),
            GpuSelector::Range(first, last) => (*first..=*last).contains(&gpu.index),
            GpuSelector::Uuid(uuid) => *uuid == gpu.uuid,
        };
        let fits = |id: &String| self.devices.iter().any(|one| one.eq_ignore_ascii_case(id));
        named && (self.devices.is_empty() || gpu.pci_id.as_ref().is_some_and(fits))
    }
}

fn group(text: &str) -> Result<Group, RequestError> {
    let (gpus, slices) = match text.split_once('=') {
        Some((gpus, slices)) => (selector(gpus.trim())?, slices.trim()),
        None => (GpuSelector::All, text),
    };
    Ok(Group { gpus, devices: Vec::new(), wanted: layout(slices)? })
}

fn selector(text: &str) -> Result<GpuSelector, RequestError> {
    if text == "all" {
        return Ok(GpuSelector::All);
    }
    if text.starts_with("GPU-") {
        return Ok(GpuSelector::Uuid(text.to_owned()));
    }
    let range = text
        .split_once('-')
        .and_then(|(first, last)| Some((first.trim().parse().ok()?, last.trim().parse().ok()?)));
    match (text.parse(), range) {
        (Ok(number), _) => Ok(GpuSelector::Numbers(vec![number])),
        (_, Some((first, last))) if first <= last => Ok(GpuSelector::Range(first, last)),
        _ => Err(invalid(
            text,
            "is not a GPU selection",
            "use all, a number, a range such as 0-3, or a UUID",
        )),
    }
}

fn layout(text: &str) -> Result<RequestedLayout, RequestError> {
    match text {
        "off" | "all-disabled" => return Ok(RequestedLayout::Off),
        "empty" | "all-enabled" => return Ok(RequestedLayout::Slices(Vec::new())),
        "all-balanced" => return Ok(RequestedLayout::Balanced),
        _ => {}
    }
    if let Some(name) = text.strip_prefix("all-") {
        let profile = ProfileName::from_resource_part(name).or_else(|_| name.parse());
        let remedy = "use for example all-1g.18gb, all-balanced, all-enabled or all-disabled";
        return match profile {
            Ok(profile) => Ok(RequestedLayout::Full(profile)),
            Err(_) => Err(invalid(text, "is not a known configuration", remedy)),
        };
    }
    let mut slices = Vec::new();
    for part in text.split(',').flat_map(|part| part.split(" + ")) {
        let (one, count) = slice(part.trim())?;
        add(&mut slices, one, count)?;
    }
    Ok(RequestedLayout::Slices(slices))
}

/// Adds a slice `count` times.
fn add(
    slices: &mut Vec<RequestedSlice>,
    one: RequestedSlice,
    count: u32,
) -> Result<(), RequestError> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > SLICES_MAX.saturating_sub(slices.len()) {
        let name = one.profile.to_string();
        return Err(invalid(&name, "is requested too many times", "no GPU has more than 8 slices"));
    }
    slices.extend((0..count).map(|_| one));
    Ok(())
}

/// `2x1g.18gb`, `3g.71gb@4`.
fn slice(text: &str) -> Result<(RequestedSlice, u32), RequestError> {
    let counted = text
        .split_once('x')
        .and_then(|(count, rest)| Some((count.trim().parse::<u32>().ok()?, rest.trim())));
    let (count, rest) = counted.unwrap_or((1, text));
    let (name, start) = match rest.split_once('@') {
        Some((name, start)) => {
            let remedy = "append the first memory unit, as in 3g.71gb@4";
            let start =
                start.trim().parse().map_err(|_| invalid(text, "has no valid position", remedy))?;
            (name.trim(), Some(start))
        }
        None => (rest, None),
    };
    let remedy =
        "use a profile such as 3g.71gb, 2x1g.18gb or 3g.71gb@4; or off, empty, all-1g.18gb";
    let profile = name.parse().map_err(|_| invalid(text, "is not a slice", remedy))?;
    if count == 0 || (count > 1 && start.is_some()) {
        let remedy = "use a count of at least 1, and no count with a position";
        return Err(invalid(text, "has an invalid count", remedy));
    }
    Ok((RequestedSlice { profile, start }, count))
}

impl RequestedLayout {
    /// The slices for a board; `None` if the board lacks a slice of the balanced layout.
    pub(super) fn slices(&self, board: &'static Board) -> Option<Vec<RequestedSlice>> {
        let some = |profile: &Profile, count: u8| {
            let one = RequestedSlice { profile: profile.name(), start: None };
            vec![one; usize::from(count)]
        };
        match self {
            Self::Off => Some(Vec::new()),
            Self::Slices(slices) => Some(slices.clone()),
            Self::Full(name) => match board.find(*name) {
                Some((profile, _)) => Some(some(profile, profile.max_instances())),
                // Planning reports the missing profile.
                None => Some(vec![RequestedSlice { profile: *name, start: None }]),
            },
            Self::Balanced => {
                let smallest = |compute: u8| {
                    let alike = board.profiles().iter().filter(|one| {
                        one.compute_slices() == compute && one.attribute() == Attribute::Plain
                    });
                    alike.min_by_key(|one| one.memory_mib())
                };
                let mut slices = some(smallest(1)?, 2);
                slices.extend(some(smallest(2)?, 1));
                if let Some(three) = smallest(3) {
                    slices.extend(some(three, 1));
                }
                Some(slices)
            }
        }
    }
}

#[derive(Deserialize)]
struct File {
    version: String,
    #[serde(rename = "mig-configs", default)]
    configs: BTreeMap<String, Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    #[serde(default)]
    device_filter: Option<OneOrMany>,
    devices: Devices,
    mig_enabled: bool,
    #[serde(default)]
    mig_devices: BTreeMap<String, u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Devices {
    Word(String),
    Numbers(Vec<u32>),
}

impl Entry {
    fn group(&self) -> Result<Group, RequestError> {
        let gpus = match &self.devices {
            Devices::Word(word) => selector(word)?,
            Devices::Numbers(numbers) => GpuSelector::Numbers(numbers.clone()),
        };
        let devices = match &self.device_filter {
            None => Vec::new(),
            Some(OneOrMany::One(one)) => vec![one.clone()],
            Some(OneOrMany::Many(many)) => many.clone(),
        };
        if !self.mig_enabled {
            if let Some(name) = self.mig_devices.keys().next() {
                let what = "is requested, but mig-enabled is false";
                return Err(invalid(name, what, "set mig-enabled: true, or remove mig-devices"));
            }
            return Ok(Group { gpus, devices, wanted: RequestedLayout::Off });
        }
        let mut slices = Vec::new();
        for (name, count) in &self.mig_devices {
            let (one, _) = slice(name)?;
            add(&mut slices, one, *count)?;
        }
        Ok(Group { gpus, devices, wanted: RequestedLayout::Slices(slices) })
    }
}

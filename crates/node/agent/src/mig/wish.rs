//! What GPUs should be divided into, as people write it.
//!
//! Owns three forms: a text (`0=4g.71gb@0,3g.71gb; 1-7=7x1g.18gb`), as an argument or an annotation has it;
//! the name of a configuration (`all-1g.18gb`), as a label has it, with the meaning that NVIDIA's default
//! configurations give it; and mig-parted's file of named configurations. Must not know which GPUs there
//! are, nor what fits.
//!
//! The text: groups between `;`, each `GPUS=SLICES`, or `SLICES` alone for all GPUs; of several groups for
//! a GPU the last is meant. `GPUS` is `all`, a number, a range of numbers or a UUID. `SLICES` is `off`,
//! `empty`, the name of a configuration, or slices between `,` or ` + `: a profile, how often before it,
//! where it starts after it.

use std::collections::BTreeMap;

use berth_manifest::{Document, Problem, Source};
use berth_model::mig::{Attribute, Board, Profile, ProfileName};
use serde::Deserialize;

use super::driver::MigGpu;

/// Bytes of a text, slices of a GPU and groups that are read.
const TEXT_BYTES_MAX: usize = 16 << 10;
const SLICES_MAX: usize = 64;
const GROUPS_MAX: usize = 256;

/// Slices that are wanted of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    groups: Vec<Group>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    gpus: Which,
    /// PCI ids that it is for, as mig-parted writes them; any if empty.
    devices: Vec<String>,
    wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    All,
    Numbers(Vec<u32>),
    Range(u32, u32),
    Uuid(String),
}

/// What is wanted of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Not divided.
    Off,
    /// These slices and no others.
    Slices(Vec<WantedSlice>),
    /// As many of a profile as fit.
    Full(ProfileName),
    /// Two small slices, one of two and, where there is room, one of three.
    Balanced,
}

/// A slice that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedSlice {
    /// Its kind.
    pub profile: ProfileName,
    /// Where it starts; anywhere if not said.
    pub start: Option<u8>,
}

/// A text that is no wish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} {what}; {remedy}")]
pub struct WishError {
    /// The part of the text.
    pub part: String,
    /// What is wrong with it.
    pub what: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

fn wrong(part: &str, what: &'static str, remedy: &'static str) -> WishError {
    WishError { part: part.chars().take(64).collect(), what, remedy }
}

impl Wish {
    /// Reads a text, or the name of a configuration.
    ///
    /// # Errors
    /// When some part of it is none.
    pub fn parse(text: &str) -> Result<Self, WishError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(wrong(text, "is too long for a layout", "write a file"));
        }
        let parts: Vec<&str> =
            text.split(';').map(str::trim).filter(|one| !one.is_empty()).collect();
        if parts.is_empty() || parts.len() > GROUPS_MAX {
            return Err(wrong(text, "names no slices", "write 7x1g.18gb, off or all-balanced"));
        }
        let groups = parts.into_iter().map(group).collect::<Result<_, _>>()?;
        Ok(Self { groups })
    }

    /// The same for some GPUs only, given as in the text.
    ///
    /// # Errors
    /// When that names no GPUs.
    pub fn only(mut self, gpus: &str) -> Result<Self, WishError> {
        let which = which(gpus)?;
        for group in &mut self.groups {
            if group.gpus != Which::All {
                let what = "would choose among GPUs that the layout chooses already";
                return Err(wrong(gpus, what, "leave one of the two out"));
            }
            group.gpus = which.clone();
        }
        Ok(self)
    }

    /// Reads a configuration out of mig-parted's file: the one of that name, or the only one.
    ///
    /// # Errors
    /// When the file is none, or has no such configuration.
    pub fn from_file(source: &Source, name: Option<&str>) -> Result<Self, Problem> {
        let documents = berth_manifest::read(source)?;
        let Some(document) = documents.first() else {
            let span = berth_manifest::Span::empty_at(0);
            let problem = Problem::of_text(source, span, "holds no configuration");
            return Err(problem.with_remedy("write mig-configs as mig-parted has them"));
        };
        let file: File = document.decode()?;
        if file.version != "v1" {
            let message = format!("is written for version {:?}", file.version);
            return Err(told(document, None, message).with_remedy("write version: v1"));
        }
        let names: Vec<&str> = file.configs.keys().map(String::as_str).collect();
        let chosen = match (name, names.as_slice()) {
            (Some(name), _) => name,
            (None, [only]) => *only,
            (None, _) => {
                let message = format!("has {} configurations", names.len());
                let remedy = format!("name one: {}", names.join(", "));
                return Err(told(document, None, message).with_remedy(remedy));
            }
        };
        let Some(entries) = file.configs.get(chosen) else {
            let message = format!("has no configuration {chosen:?}");
            let close = berth_manifest::closest(chosen, &names).unwrap_or("another");
            return Err(told(document, None, message).with_remedy(format!("did you mean {close}?")));
        };
        let groups = entries.iter().map(Entry::group).collect::<Result<_, _>>();
        let groups: Vec<Group> = groups.map_err(|error: WishError| {
            let message = format!("{:?} {}", error.part, error.what);
            told(document, Some(chosen), message).with_remedy(error.remedy)
        })?;
        Ok(Self { groups })
    }

    /// What is wanted of a GPU; nothing is said of one that no group is for.
    pub fn of(&self, gpu: &MigGpu) -> Option<&Wanted> {
        let meant = self.groups.iter().rev().find(|group| group.is_for(gpu))?;
        Some(&meant.wanted)
    }

    /// GPUs that are named and not there.
    pub(super) fn strangers(&self, gpus: &[MigGpu]) -> Vec<String> {
        let there = |number: &u32| gpus.iter().any(|gpu| gpu.index == *number);
        let missing = |group: &Group| match &group.gpus {
            Which::All => Vec::new(),
            Which::Numbers(numbers) => {
                numbers.iter().filter(|one| !there(one)).map(u32::to_string).collect()
            }
            Which::Range(first, last) => {
                [first, last].into_iter().filter(|one| !there(one)).map(u32::to_string).collect()
            }
            Which::Uuid(uuid) if gpus.iter().any(|gpu| gpu.uuid == *uuid) => Vec::new(),
            Which::Uuid(uuid) => vec![uuid.clone()],
        };
        self.groups.iter().flat_map(missing).collect()
    }

    /// Whether a GPU is named, and not only meant with all.
    pub(super) fn names(&self, gpu: &MigGpu) -> bool {
        self.groups.iter().any(|group| group.gpus != Which::All && group.is_for(gpu))
    }

    /// The name of the configuration by which mig-manager knows this, if there is a usual one.
    pub fn configuration(&self) -> Option<String> {
        let [group] = &self.groups[..] else { return None };
        if group.gpus != Which::All || !group.devices.is_empty() {
            return None;
        }
        match &group.wanted {
            Wanted::Off => Some("all-disabled".to_owned()),
            Wanted::Slices(slices) if slices.is_empty() => Some("all-enabled".to_owned()),
            Wanted::Slices(_) => None,
            Wanted::Full(profile) => Some(format!("all-{}", in_label(*profile))),
            Wanted::Balanced => Some("all-balanced".to_owned()),
        }
    }
}

fn told(document: &Document, name: Option<&str>, message: String) -> Problem {
    let field = document.base().clone().key("mig-configs");
    document.problem(name.map_or(field.clone(), |name| field.key(name)), message)
}

/// Labels cannot hold `+`; NVIDIA writes a dot.
fn in_label(profile: ProfileName) -> String {
    profile.to_string().replace('+', ".")
}

impl Group {
    fn is_for(&self, gpu: &MigGpu) -> bool {
        let named = match &self.gpus {
            Which::All => true,
            Which::Numbers(numbers) => numbers.contains(&gpu.index),
            Which::Range(first, last) => (*first..=*last).contains(&gpu.index),
            Which::Uuid(uuid) => *uuid == gpu.uuid,
        };
        let fits = |id: &String| self.devices.iter().any(|one| one.eq_ignore_ascii_case(id));
        named && (self.devices.is_empty() || gpu.pci_id.as_ref().is_some_and(fits))
    }
}

fn group(text: &str) -> Result<Group, WishError> {
    let (gpus, slices) = match text.split_once('=') {
        Some((gpus, slices)) => (which(gpus.trim())?, slices.trim()),
        None => (Which::All, text),
    };
    Ok(Group { gpus, devices: Vec::new(), wanted: wanted(slices)? })
}

fn which(text: &str) -> Result<Which, WishError> {
    if text == "all" {
        return Ok(Which::All);
    }
    if text.starts_with("GPU-") {
        return Ok(Which::Uuid(text.to_owned()));
    }
    let range = text
        .split_once('-')
        .and_then(|(first, last)| Some((first.trim().parse().ok()?, last.trim().parse().ok()?)));
    match (text.parse(), range) {
        (Ok(number), _) => Ok(Which::Numbers(vec![number])),
        (_, Some((first, last))) if first <= last => Ok(Which::Range(first, last)),
        _ => Err(wrong(text, "names no GPU", "write all, a number, 0-3 or a UUID")),
    }
}

fn wanted(text: &str) -> Result<Wanted, WishError> {
    match text {
        "off" | "all-disabled" => return Ok(Wanted::Off),
        "empty" | "all-enabled" => return Ok(Wanted::Slices(Vec::new())),
        "all-balanced" => return Ok(Wanted::Balanced),
        _ => {}
    }
    if let Some(name) = text.strip_prefix("all-") {
        let profile = ProfileName::from_resource_part(name).or_else(|_| name.parse());
        let remedy = "write all-1g.18gb, all-balanced, all-enabled or all-disabled";
        return match profile {
            Ok(profile) => Ok(Wanted::Full(profile)),
            Err(_) => Err(wrong(text, "is no configuration that is known by name", remedy)),
        };
    }
    let mut slices = Vec::new();
    for part in text.split(',').flat_map(|part| part.split(" + ")) {
        let (one, count) = slice(part.trim())?;
        add(&mut slices, one, count)?;
    }
    Ok(Wanted::Slices(slices))
}

/// Adds a slice so many times, as long as that makes any sense.
fn add(slices: &mut Vec<WantedSlice>, one: WantedSlice, count: u32) -> Result<(), WishError> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > SLICES_MAX.saturating_sub(slices.len()) {
        let name = one.profile.to_string();
        return Err(wrong(&name, "is wanted too many times", "no GPU has more than 8 slices"));
    }
    slices.extend((0..count).map(|_| one));
    Ok(())
}

/// `2x1g.18gb`, `3g.71gb@4`.
fn slice(text: &str) -> Result<(WantedSlice, u32), WishError> {
    let counted = text
        .split_once('x')
        .and_then(|(count, rest)| Some((count.trim().parse::<u32>().ok()?, rest.trim())));
    let (count, rest) = counted.unwrap_or((1, text));
    let (name, start) = match rest.split_once('@') {
        Some((name, start)) => {
            let remedy = "write the first unit of memory behind it, as in 3g.71gb@4";
            let start = start.trim().parse().map_err(|_| wrong(text, "starts nowhere", remedy))?;
            (name.trim(), Some(start))
        }
        None => (rest, None),
    };
    let remedy =
        "write a profile such as 3g.71gb, 2x1g.18gb or 3g.71gb@4; or off, empty, all-1g.18gb";
    let profile = name.parse().map_err(|_| wrong(text, "is no slice", remedy))?;
    if count == 0 || (count > 1 && start.is_some()) {
        let remedy =
            "a slice that starts somewhere is there once; leave out one that is not wanted";
        return Err(wrong(text, "is not there so often", remedy));
    }
    Ok((WantedSlice { profile, start }, count))
}

impl Wanted {
    /// The slices, for GPUs of a board; `None` for those of a balanced division that a board lacks.
    pub(super) fn slices(&self, board: &'static Board) -> Option<Vec<WantedSlice>> {
        let some = |profile: &Profile, count: u8| {
            let one = WantedSlice { profile: profile.name(), start: None };
            vec![one; usize::from(count)]
        };
        match self {
            Self::Off => Some(Vec::new()),
            Self::Slices(slices) => Some(slices.clone()),
            Self::Full(name) => match board.find(*name) {
                Some((profile, _)) => Some(some(profile, profile.max_instances())),
                // Planning says that there is no such profile.
                None => Some(vec![WantedSlice { profile: *name, start: None }]),
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

/// mig-parted's file.
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
    fn group(&self) -> Result<Group, WishError> {
        let gpus = match &self.devices {
            Devices::Word(word) => which(word)?,
            Devices::Numbers(numbers) => Which::Numbers(numbers.clone()),
        };
        let devices = match &self.device_filter {
            None => Vec::new(),
            Some(OneOrMany::One(one)) => vec![one.clone()],
            Some(OneOrMany::Many(many)) => many.clone(),
        };
        if !self.mig_enabled {
            if let Some(name) = self.mig_devices.keys().next() {
                let what = "is wanted of GPUs that are not to be divided";
                return Err(wrong(name, what, "set mig-enabled, or leave out mig-devices"));
            }
            return Ok(Group { gpus, devices, wanted: Wanted::Off });
        }
        let mut slices = Vec::new();
        for (name, count) in &self.mig_devices {
            let (one, _) = slice(name)?;
            add(&mut slices, one, *count)?;
        }
        Ok(Group { gpus, devices, wanted: Wanted::Slices(slices) })
    }
}

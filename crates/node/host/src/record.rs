//! Recording a machine: the files that are read here, and nothing private.
//!
//! Owns which files go into a recording and what is left of each. What is not known to be harmless does
//! not go in: there are no names of hosts, pods, containers, images or interfaces that people chose, no
//! serial numbers, addresses, command lines or environments. UIDs and ids are replaced, each always by
//! the same. A recording read as a root gives what the machine gave, but for those.

mod names;
mod states;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value};

use crate::cgroup::{Cgroups, Owner, Process};
use crate::kubelet::{
    CPU_STATE, DEVICE_STATE, FIELDS, KubeletPlaces, MEMORY_STATE, configured, parsed,
};
use crate::machine::Machine;
use crate::pci::Pci;
use crate::root::{Diagnosis, Notes, Root, below, locked};
use crate::tape::{Tape, Taped};
use names::Names;

/// Bytes of a recording.
const BYTES_MAX: usize = 64 << 20;
/// Processes of a recording.
const PROCESSES_MAX: usize = 4096;
/// Bytes of each process's `numa_maps`.
const MAPS_BYTES_MAX: usize = 256 << 10;
/// Bytes of a kubelet's state file.
const STATE_BYTES_MAX: usize = 16 << 20;
/// Where a recording has the kubelet's files, wherever they were.
const KUBELET: &str = "var/lib/kubelet";

/// What became of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Files, links and empty directories written.
    pub entries: usize,
    /// Bytes in files.
    pub bytes: usize,
    /// What stands for the ids of devices, for what else is recorded of them: the id without the number
    /// of a share, and the UUID in its place.
    pub devices: BTreeMap<String, String>,
    /// What is missing in it, or was not still.
    pub diagnoses: Vec<Diagnosis>,
}

/// Why nothing was recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// There is something already.
    #[error("{0}: is not an empty directory; record into one that is empty or not there yet")]
    NotEmpty(PathBuf),
    /// It cannot be written to.
    #[error("{path}: {cause}; choose a directory that can be written to")]
    Unwritable {
        /// What cannot be written.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
}

/// Records the machine below `root`, and its kubelet's files in `places`, into a directory.
///
/// # Errors
/// When the directory is not empty or cannot be written to.
pub fn record(root: &Root, places: &KubeletPlaces, to: &Path) -> Result<Recording, RecordError> {
    let unwritable = |path: &Path, cause| RecordError::Unwritable { path: path.to_owned(), cause };
    fs::create_dir_all(to).map_err(|cause| unwritable(to, cause))?;
    let mut inside = fs::read_dir(to).map_err(|cause| unwritable(to, cause))?;
    if inside.next().is_some() {
        return Err(RecordError::NotEmpty(to.to_owned()));
    }
    let mut notes = Notes::default();
    let first = taped(root, &mut notes);
    let states = states::read(root, places, &mut notes);
    let mut names = Names::of(&first.cgroups, states.values());
    let mut entries = scrubbed(&first.tape, &mut names, &mut notes);
    // What differs when it is read again was not still: the first reading stands.
    let again = taped(root, &mut Notes::default());
    let second = scrubbed(&again.tape, &mut names, &mut Notes::default());
    for (path, entry) in &entries {
        let moves = path.ends_with("/numa_maps");
        if !moves && second.get(path).is_some_and(|other| other != entry) {
            notes.add(path, "changed while it was recorded", "record again when less is going on");
        }
    }
    for (name, state) in states {
        let text = states::scrubbed(name, state, &mut names).to_string();
        entries.insert(format!("{KUBELET}/{name}"), Entry::File(text));
    }
    if let Some(text) = configuration(root, places, &mut notes) {
        entries.insert(format!("{KUBELET}/config.yaml"), Entry::File(text));
    }
    let recording = write(&entries, to, notes)?;
    Ok(Recording { devices: names.into_devices(), ..recording })
}

/// What goes into a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    File(String),
    Link(String),
    Directory,
}

/// One reading of all there is.
struct Reading {
    tape: BTreeMap<String, Taped>,
    cgroups: Cgroups,
}

fn taped(root: &Root, notes: &mut Notes) -> Reading {
    let tape = Arc::new(Mutex::new(Tape::default()));
    let root = root.taped(tape.clone());
    let (machine, _) = Machine::read(&root);
    let _ = Pci::read(&root, &machine);
    let (cgroups, _) = Cgroups::read(&root);
    let containers = cgroups.pods.iter().flat_map(|pod| &pod.containers);
    let pids: Vec<u32> = containers.flat_map(|container| container.pids.iter().copied()).collect();
    if pids.len() > PROCESSES_MAX {
        let what = format!("only {PROCESSES_MAX} of {} processes are recorded", pids.len());
        notes.add("proc", what, "record on a machine with less on it, if the others matter");
    }
    for pid in pids.into_iter().take(PROCESSES_MAX) {
        let _ = Process::read(&root, pid, MAPS_BYTES_MAX);
        let _ = Owner::read(&root, pid);
    }
    let tape = std::mem::take(&mut locked(&tape).all);
    Reading { tape, cgroups }
}

/// The kubelet's configuration as it is put together, with the fields that are read and no others.
fn configuration(root: &Root, places: &KubeletPlaces, notes: &mut Notes) -> Option<String> {
    let (whole, _) = configured(root, places, notes)?;
    let mut kept = Map::new();
    for (key, text) in
        [("apiVersion", "kubelet.config.k8s.io/v1beta1"), ("kind", "KubeletConfiguration")]
    {
        kept.insert(key.to_owned(), Value::String(text.to_owned()));
    }
    for field in FIELDS {
        if let Some(value) = whole.get(field) {
            kept.insert(field.to_owned(), value.clone());
        }
    }
    Some(format!("{}\n", Value::Object(kept)))
}

fn scrubbed(
    tape: &BTreeMap<String, Taped>,
    names: &mut Names,
    notes: &mut Notes,
) -> BTreeMap<String, Entry> {
    let mut entries = BTreeMap::new();
    for (path, taped) in tape {
        let entry = match taped {
            Taped::Directory => Entry::Directory,
            Taped::Link(target) => Entry::Link(names.path(target)),
            Taped::Fault(fault) => {
                notes.fault(path, fault, "the recording lacks it");
                continue;
            }
            Taped::File(text) => match kept(path, text, names) {
                Some(text) => Entry::File(text),
                None => {
                    let what =
                        "holds something else than was expected, so a question mark is recorded";
                    notes.add(path, what, "look at the file, if that matters");
                    Entry::File("?\n".to_owned())
                }
            },
        };
        entries.insert(names.path(path), entry);
    }
    entries
}

/// What of a file goes into a recording; `None` if it is not what such a file holds.
fn kept(path: &str, text: &str, names: &mut Names) -> Option<String> {
    let last = path.rsplit('/').next().unwrap_or(path);
    let lines = |wanted: &dyn Fn(&&str) -> bool| -> String {
        text.lines().filter(wanted).map(|line| format!("{line}\n")).collect()
    };
    match last {
        "meminfo" => Some(lines(&|line| line.contains("MemTotal:") && line.len() < 80)),
        "cpuinfo" => {
            let named = lines(&|line| line.starts_with("model name") && line.len() < 160);
            Some(named.lines().next().map(|line| format!("{line}\n")).unwrap_or_default())
        }
        "status" => Some(lines(&|line| {
            let allowed = ["Cpus_allowed_list:", "Mems_allowed_list:"];
            allowed.iter().any(|name| line.strip_prefix(name).is_some_and(is_numbers))
        })),
        "numa_maps" => Some(text.lines().map(maps_line).collect()),
        "cgroup" => Some(text.lines().filter_map(|line| cgroup_line(line, names)).collect()),
        "cgroup.controllers" => {
            let plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_whitespace() || byte == b'_';
            text.bytes().all(plain).then(|| text.to_owned())
        }
        _ => is_numbers(text).then(|| text.to_owned()),
    }
}

/// Numbers, lists, masks and what stands between them.
fn is_numbers(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit() || b",-x \t\n".contains(&byte))
}

/// A line of `numa_maps` without the address and the file.
fn maps_line(line: &str) -> String {
    let pages = line.split_ascii_whitespace().filter(|word| {
        let Some((key, value)) = word.split_once('=') else { return false };
        let node =
            key.strip_prefix('N').unwrap_or(if key == "kernelpagesize_kB" { "0" } else { "" });
        let digits =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits(node) && digits(value)
    });
    let pages: Vec<&str> = pages.collect();
    format!("0 default {}\n", pages.join(" "))
}

/// A line of `/proc/<pid>/cgroup`: `hierarchy:controllers:path`.
fn cgroup_line(line: &str, names: &mut Names) -> Option<String> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let plain = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b",=_".contains(&byte))
    };
    (plain(number) && plain(controllers))
        .then(|| format!("{number}:{controllers}:{}\n", names.cgroup(path)))
}

fn write(
    entries: &BTreeMap<String, Entry>,
    to: &Path,
    mut notes: Notes,
) -> Result<Recording, RecordError> {
    let mut recording = Recording::default();
    for (path, entry) in entries {
        // Paths are made of names; this keeps them below whatever these are.
        let at = to.join(below(Path::new(""), Path::new(path)));
        let unwritable = |cause| RecordError::Unwritable { path: at.clone(), cause };
        if let Some(parent) = at.parent() {
            fs::create_dir_all(parent).map_err(unwritable)?;
        }
        match entry {
            Entry::File(text) if recording.bytes + text.len() > BYTES_MAX => {
                let what = format!("a recording has at most {BYTES_MAX} bytes, so it is left out");
                notes.add(path, what, "record on a machine with less on it");
                continue;
            }
            Entry::File(text) => {
                fs::write(&at, text).map_err(unwritable)?;
                recording.bytes += text.len();
            }
            Entry::Link(target) => std::os::unix::fs::symlink(target, &at).map_err(unwritable)?,
            Entry::Directory => fs::create_dir_all(&at).map_err(unwritable)?,
        }
        recording.entries += 1;
    }
    recording.diagnoses = notes.done();
    Ok(recording)
}

//! Recording of a machine: the files that are read here, without anything private.
//!
//! Only content known to be harmless is recorded: no names of hosts, pods, containers or images, no
//! interface names that people chose, no serial numbers, addresses, command lines or environments. UIDs and
//! ids are replaced consistently. Apart from these, a recording used as a root reads like the machine.

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
    CPU_STATE, DEVICE_STATE, FIELDS, KubeletPaths, MEMORY_STATE, configured, parsed,
};
use crate::machine::Machine;
use crate::pci::Pci;
use crate::read_log::{LoggedRead, ReadLog};
use crate::root::{Diagnosis, Notes, Root, below, locked};
use names::Names;

const BYTES_MAX: usize = 64 << 20;
const PROCESSES_MAX: usize = 4096;
/// Bytes per `numa_maps`.
const MAPS_BYTES_MAX: usize = 256 << 10;
/// Bytes of a state file.
const STATE_BYTES_MAX: usize = 16 << 20;
/// Path of the kubelet's files in a recording, wherever they were on the machine.
const KUBELET: &str = "var/lib/kubelet";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Number of files, links and empty directories written.
    pub entries: usize,
    /// Total size of the files.
    pub bytes: usize,
    /// Replacements of device ids, to apply to other data about them: by the id without the number of a
    /// share, the UUID in its place.
    pub devices: BTreeMap<String, String>,
    /// What is missing, or changed during the recording.
    pub diagnoses: Vec<Diagnosis>,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{0}: is not an empty directory; record into one that is empty or not there yet")]
    NotEmpty(PathBuf),
    #[error("{path}: {cause}; choose a directory that can be written to")]
    Unwritable { path: PathBuf, cause: io::Error },
}

/// Records the machine below `root`, with the kubelet's files in `paths`, into a directory.
pub fn record(root: &Root, paths: &KubeletPaths, to: &Path) -> Result<Recording, RecordError> {
    let unwritable = |path: &Path, cause| RecordError::Unwritable { path: path.to_owned(), cause };
    fs::create_dir_all(to).map_err(|cause| unwritable(to, cause))?;
    let mut inside = fs::read_dir(to).map_err(|cause| unwritable(to, cause))?;
    if inside.next().is_some() {
        return Err(RecordError::NotEmpty(to.to_owned()));
    }
    let mut notes = Notes::default();
    let first = read_all(root, &mut notes);
    let states = states::read(root, paths, &mut notes);
    let mut names = Names::of(&first.cgroups, states.values());
    let mut entries = scrubbed(&first.log, &mut names, &mut notes);
    // The first reading is recorded; what differs in a second one changed meanwhile.
    let again = read_all(root, &mut Notes::default());
    let second = scrubbed(&again.log, &mut names, &mut Notes::default());
    for (path, entry) in &entries {
        let moves = path.ends_with("/numa_maps");
        if !moves && second.get(path).is_some_and(|other| other != entry) {
            notes.add(
                path,
                "changed while it was recorded",
                "record again when the machine is idle",
            );
        }
    }
    for (name, state) in states {
        let text = states::scrubbed(name, state, &mut names).to_string();
        entries.insert(format!("{KUBELET}/{name}"), Entry::File(text));
    }
    if let Some(text) = configuration(root, paths, &mut notes) {
        entries.insert(format!("{KUBELET}/config.yaml"), Entry::File(text));
    }
    let recording = write(&entries, to, notes)?;
    Ok(Recording { devices: names.into_devices(), ..recording })
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    File(String),
    Link(String),
    Directory,
}

struct Reading {
    log: BTreeMap<String, LoggedRead>,
    cgroups: Cgroups,
}

fn read_all(root: &Root, notes: &mut Notes) -> Reading {
    let log = Arc::new(Mutex::new(ReadLog::default()));
    let root = root.logging(log.clone());
    let (machine, _) = Machine::read(&root);
    let _ = Pci::read(&root, &machine);
    let (cgroups, _) = Cgroups::read(&root);
    let containers = cgroups.pods.iter().flat_map(|pod| &pod.containers);
    let pids: Vec<u32> = containers.flat_map(|container| container.pids.iter().copied()).collect();
    if pids.len() > PROCESSES_MAX {
        let what = format!("only {PROCESSES_MAX} of {} processes are recorded", pids.len());
        notes.add("proc", what, "record a machine with fewer pods, if the others matter");
    }
    for pid in pids.into_iter().take(PROCESSES_MAX) {
        let _ = Process::read(&root, pid, MAPS_BYTES_MAX);
        let _ = Owner::read(&root, pid);
    }
    let log = std::mem::take(&mut locked(&log).all);
    Reading { log, cgroups }
}

/// The kubelet's merged configuration, reduced to the fields that are read.
fn configuration(root: &Root, paths: &KubeletPaths, notes: &mut Notes) -> Option<String> {
    let (whole, _) = configured(root, paths, notes)?;
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
    log: &BTreeMap<String, LoggedRead>,
    names: &mut Names,
    notes: &mut Notes,
) -> BTreeMap<String, Entry> {
    let mut entries = BTreeMap::new();
    for (path, logged) in log {
        let entry = match logged {
            LoggedRead::Directory => Entry::Directory,
            LoggedRead::Link(target) => Entry::Link(names.path(target)),
            LoggedRead::Fault(fault) => {
                notes.fault(path, fault, "it is not in the recording");
                continue;
            }
            LoggedRead::File(text) => match kept(path, text, names) {
                Some(text) => Entry::File(text),
                None => {
                    let what = "has unexpected content, so a question mark is recorded";
                    notes.add(path, what, "look at the file, if that matters");
                    Entry::File("?\n".to_owned())
                }
            },
        };
        entries.insert(names.path(path), entry);
    }
    entries
}

/// What to record of a file; `None` if it has unexpected content.
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

/// Numbers, lists, masks and separators.
fn is_numbers(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit() || b",-x \t\n".contains(&byte))
}

/// A line of `numa_maps` without address and file name.
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
        // Removes any `..`, so nothing is written outside of the directory.
        let at = to.join(below(Path::new(""), Path::new(path)));
        let unwritable = |cause| RecordError::Unwritable { path: at.clone(), cause };
        if let Some(parent) = at.parent() {
            fs::create_dir_all(parent).map_err(unwritable)?;
        }
        match entry {
            Entry::File(text) if recording.bytes + text.len() > BYTES_MAX => {
                let what =
                    format!("the recording is limited to {BYTES_MAX} bytes, so it is left out");
                notes.add(path, what, "record a machine with fewer pods");
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

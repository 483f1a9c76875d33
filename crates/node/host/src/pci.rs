//! PCI devices: GPUs, NICs and NVMe drives, where each is attached, and how far apart they are.

mod tree;

use serde::{Deserialize, Serialize};

use berth_model::idset::CpuSet;

use crate::list::{ParseError, as_list_if_known, list, number};
use crate::machine::Machine;
use crate::root::{Diagnosis, Fault, Notes, Root};
pub use tree::Location;

const DEVICES: &str = "sys/bus/pci/devices";

const NOT_SYSFS: &str = "check that sysfs is mounted";

pub const NVIDIA: u16 = 0x10de;
/// GPUs only; CPUs have another.
pub const AMD: u16 = 0x1002;
pub const INTEL: u16 = 0x8086;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pci {
    /// By address.
    pub devices: Vec<Device>,
    /// Root complexes with such devices, by id.
    pub roots: Vec<RootComplex>,
}

/// The top of a tree of bridges and devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RootComplex {
    /// Domain and first bus, such as `0000:40`.
    pub id: String,
    pub numa: Vec<u32>,
    pub devices: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// By NVIDIA, AMD or Intel. The display adapter of a BMC is not one.
    Gpu,
    NvSwitch,
    Nic,
    Nvme,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Domain, bus, device and function, such as `0000:41:00.0`.
    pub address: String,
    pub kind: Kind,
    pub vendor: u16,
    pub device: u16,
    pub class: u32,
    /// `None` if no driver is bound.
    pub driver: Option<String>,
    pub numa: DeviceNuma,
    /// CPUs near it, as reported by the kernel.
    #[serde(with = "as_list_if_known")]
    pub local_cpus: Option<CpuSet>,
    pub location: Location,
    /// Address of its physical function, if it is a virtual function.
    pub virtual_of: Option<String>,
    /// Number of virtual functions currently enabled.
    pub virtual_functions: u32,
    /// Names of network interfaces.
    pub interfaces: Vec<String>,
    /// Names of RDMA devices, such as `mlx5_0`.
    pub rdma: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "how")]
pub enum DeviceNuma {
    Reported {
        node: u32,
    },
    /// The kernel does not report it, but it follows from something else.
    Derived {
        node: u32,
        from: DerivedFrom,
    },
    Unknown {
        reason: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "what")]
pub enum DerivedFrom {
    /// The nearest bridge above it that has one.
    Bridge { address: String },
    /// All CPUs near it are in this node.
    LocalCpus,
    /// The machine has one NUMA node.
    OnlyNode,
}

impl DeviceNuma {
    pub fn node(&self) -> Option<u32> {
        match self {
            Self::Reported { node } | Self::Derived { node, .. } => Some(*node),
            Self::Unknown { .. } => None,
        }
    }
}

/// Distance between two devices, in the terms of `nvidia-smi topo`; less is nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Distance {
    #[serde(rename = "X")]
    Same,
    /// At most one PCIe switch between them.
    Pix,
    /// Several switches, but not a root complex.
    Pxb,
    /// A root complex.
    Phb,
    /// Several root complexes of one NUMA node.
    Node,
    /// Different NUMA nodes.
    Sys,
    /// The NUMA node of one of them is unknown.
    Unknown,
}

impl std::fmt::Display for Distance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Same => "X",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
            Self::Unknown => "unknown",
        })
    }
}

impl Device {
    pub fn is_virtual(&self) -> bool {
        self.virtual_of.is_some()
    }

    pub fn distance(&self, other: &Self) -> Distance {
        if self.address == other.address {
            return Distance::Same;
        }
        if let Some(shared) = self.location.shared_with(&other.location) {
            return shared;
        }
        match (self.numa.node(), other.numa.node()) {
            (Some(one), Some(another)) if one == another => Distance::Node,
            (Some(_), Some(_)) => Distance::Sys,
            _ => Distance::Unknown,
        }
    }
}

impl Pci {
    /// Reads the devices of `machine`.
    pub fn read(root: &Root, machine: &Machine) -> (Self, Vec<Diagnosis>) {
        root.begin_reading();
        let mut notes = Notes::default();
        let names = match root.names(DEVICES) {
            Ok(names) => names,
            Err(fault) => {
                notes.fault(DEVICES, &fault, "PCI devices are unknown");
                Vec::new()
            }
        };
        let mut devices = Vec::new();
        for address in names.into_iter().filter(|name| tree::is_address(name)) {
            devices.extend(device(root, machine, address, &mut notes));
        }
        let roots = roots(&devices);
        (Self { devices, roots }, notes.done())
    }

    pub fn gpus(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| device.kind == Kind::Gpu)
    }

    pub fn nics(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| device.kind == Kind::Nic)
    }

    /// Also accepts upper case and longer domains, as drivers write them.
    pub fn at(&self, address: &str) -> Option<&Device> {
        let address = address.to_ascii_lowercase();
        let (domain, rest) = address.split_once(':')?;
        let domain = u32::from_str_radix(domain, 16).ok()?;
        let address = format!("{domain:04x}:{rest}");
        self.devices.iter().find(|device| device.address == address)
    }
}

fn roots(devices: &[Device]) -> Vec<RootComplex> {
    let mut roots: Vec<RootComplex> = Vec::new();
    for device in devices {
        let Some(id) = &device.location.root else { continue };
        let at = roots.iter().position(|root| root.id == *id).unwrap_or_else(|| {
            roots.push(RootComplex { id: id.clone(), numa: Vec::new(), devices: Vec::new() });
            roots.len() - 1
        });
        if let Some(root) = roots.get_mut(at) {
            root.devices.push(device.address.clone());
            root.numa.extend(device.numa.node());
        }
    }
    for root in &mut roots {
        root.numa.sort_unstable();
        root.numa.dedup();
    }
    roots.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    roots
}

/// `None` if its kind does not matter.
fn device(root: &Root, machine: &Machine, address: String, notes: &mut Notes) -> Option<Device> {
    let link = format!("{DEVICES}/{address}");
    let (directory, location) = match root.link(&link) {
        Ok(target) => tree::locate(DEVICES, &target),
        // Copies of sysfs have directories in place of links.
        Err(Fault::Odd(_)) => (link.clone(), Location::default()),
        Err(fault) => {
            notes.fault(&link, &fault, "the device is left out");
            return None;
        }
    };
    let class = hexadecimal(root, &format!("{directory}/class"), "the device is left out", notes)?;
    // Displays are GPUs only of certain vendors; other kinds follow from the class alone.
    if !matches!(class >> 16, 0x01..=0x03 | 0x06 | 0x12) {
        return None;
    }
    let unknown = "the vendor id counts as 0";
    let vendor = hexadecimal(root, &format!("{directory}/vendor"), unknown, notes).unwrap_or(0);
    let vendor = u16::try_from(vendor).unwrap_or(0);
    let kind = kind(class, vendor)?;
    if location.root.is_none() {
        let what = "its path names no root complex, so its distance to other devices is unknown";
        notes.add(&link, what, "preserve links when copying sysfs");
    }
    let unknown = "the device id counts as 0";
    let model = hexadecimal(root, &format!("{directory}/device"), unknown, notes).unwrap_or(0);
    let path = format!("{directory}/sriov_numvfs");
    let virtual_functions = optional(root, &path, notes, number);
    let last = |target: String| target.rsplit('/').next().map(str::to_owned);
    let local_cpus = optional(root, &format!("{directory}/local_cpulist"), notes, list);
    Some(Device {
        numa: numa(
            root,
            machine,
            &DevicePath { directory: &directory, location: &location },
            local_cpus.as_ref(),
            notes,
        ),
        kind,
        vendor,
        device: u16::try_from(model).unwrap_or(0),
        class,
        driver: root.link(&format!("{directory}/driver")).ok().and_then(last),
        local_cpus,
        location,
        virtual_of: root.link(&format!("{directory}/physfn")).ok().and_then(last),
        virtual_functions: virtual_functions.and_then(|count| count.try_into().ok()).unwrap_or(0),
        interfaces: names_if_nic(root, kind, &format!("{directory}/net")),
        rdma: names_if_nic(root, kind, &format!("{directory}/infiniband")),
        address,
    })
}

/// Reads a file that not every device has.
fn optional<T>(
    root: &Root,
    path: &str,
    notes: &mut Notes,
    parse: impl Fn(&str) -> Result<T, ParseError>,
) -> Option<T> {
    match root.line(path).map(|line| parse(&line)) {
        Ok(Ok(found)) => Some(found),
        Ok(Err(why)) => {
            notes.add(path, format!("{why}, so it is ignored"), NOT_SYSFS);
            None
        }
        Err(Fault::Missing) => None,
        Err(fault) => {
            notes.fault(path, &fault, "it is ignored");
            None
        }
    }
}

fn names_if_nic(root: &Root, kind: Kind, directory: &str) -> Vec<String> {
    if kind != Kind::Nic {
        return Vec::new();
    }
    let mut directory = directory.to_owned();
    if root.names(&directory).is_err()
        && let Some((device, last)) = directory.clone().rsplit_once('/')
    {
        // A virtio device is below a bus of its own, inside the PCI function.
        let names = root.names(device).unwrap_or_default();
        if let Some(inner) = names.iter().find(|name| name.starts_with("virtio")) {
            directory = format!("{device}/{inner}/{last}");
        }
    }
    let names = root.names(&directory).unwrap_or_default();
    // `has_directory` puts each into the recording.
    names.into_iter().filter(|name| root.has_directory(&format!("{directory}/{name}"))).collect()
}

fn kind(class: u32, vendor: u16) -> Option<Kind> {
    let makes_gpus = matches!(vendor, NVIDIA | AMD | INTEL);
    match class >> 8 {
        0x0300 | 0x0302 | 0x0380 if makes_gpus => Some(Kind::Gpu),
        // AMD's accelerators have no display at all.
        0x1200 if vendor == AMD => Some(Kind::Gpu),
        0x0680 if vendor == NVIDIA => Some(Kind::NvSwitch),
        0x0200..=0x02ff => Some(Kind::Nic),
        0x0108 => Some(Kind::Nvme),
        _ => None,
    }
}

fn hexadecimal(root: &Root, path: &str, unknown: &str, notes: &mut Notes) -> Option<u32> {
    let line = match root.line(path) {
        Ok(line) => line,
        Err(fault) => {
            notes.fault(path, &fault, unknown);
            return None;
        }
    };
    let number = line.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    if number.is_none() {
        notes.add(path, format!("is not a number such as 0x10de, so {unknown}"), NOT_SYSFS);
    }
    number
}

/// Content of `numa_node`.
enum NumaFile {
    Node(u32),
    /// −1: the firmware does not report a node.
    Unset,
    Invalid(String),
}

fn numa_file(root: &Root, directory: &str) -> NumaFile {
    match root.line(&format!("{directory}/numa_node")) {
        Ok(line) if line == "-1" => NumaFile::Unset,
        Ok(line) => match line.parse() {
            Ok(node) => NumaFile::Node(node),
            Err(_) => NumaFile::Invalid("is not a NUMA node id".to_owned()),
        },
        Err(fault) => NumaFile::Invalid(fault.to_string()),
    }
}

/// Where a device is in sysfs, and what that says of the bridges above it.
struct DevicePath<'a> {
    directory: &'a str,
    location: &'a Location,
}

/// The NUMA node: as reported, or that of the nearest bridge that has one, or that of nearby CPUs.
fn numa(
    root: &Root,
    machine: &Machine,
    path: &DevicePath<'_>,
    local_cpus: Option<&CpuSet>,
    notes: &mut Notes,
) -> DeviceNuma {
    let file = format!("{}/numa_node", path.directory);
    let (problem, odd) = match numa_file(root, path.directory) {
        NumaFile::Node(node) if machine.node(node).is_some() => {
            return DeviceNuma::Reported { node };
        }
        NumaFile::Node(node) => {
            (format!("the machine does not have the reported NUMA node {node}"), true)
        }
        NumaFile::Unset => {
            ("the firmware reports no NUMA node (numa_node is -1)".to_owned(), false)
        }
        NumaFile::Invalid(why) => (format!("numa_node {why}"), true),
    };
    let near = local_cpus.map(|cpus| machine.numa_of(cpus)).unwrap_or_default();
    if let Some((node, from)) = derived(root, machine, path, &near) {
        // An unset node is common and not worth a diagnosis; an invalid one is.
        if odd {
            let what = format!("{problem}, so NUMA node {node} is derived from its surroundings");
            notes.add(&file, what, NOT_SYSFS);
        }
        return DeviceNuma::Derived { node, from };
    }
    let why = match near.len() {
        0 => "no CPUs are near it",
        _ => "CPUs of several NUMA nodes are near it",
    };
    let reason = format!("{problem}, no bridge above it reports one, and {why}");
    let remedy = "set the NUMA node in the firmware or in the definition of the virtual machine";
    notes.add(&file, format!("{reason}, so its NUMA node is unknown"), remedy);
    DeviceNuma::Unknown { reason }
}

fn derived(
    root: &Root,
    machine: &Machine,
    path: &DevicePath<'_>,
    near: &[u32],
) -> Option<(u32, DerivedFrom)> {
    let mut above = path.directory;
    for bridge in path.location.bridges.iter().rev() {
        // A root complex behind a device has a directory of its own between bridges.
        while let Some((parent, _)) = above.rsplit_once('/') {
            above = parent;
            if above.ends_with(bridge.as_str()) {
                break;
            }
        }
        if let NumaFile::Node(node) = numa_file(root, above)
            && machine.node(node).is_some()
        {
            return Some((node, DerivedFrom::Bridge { address: bridge.clone() }));
        }
    }
    match (machine.numa.as_slice(), near) {
        ([only], _) => Some((only.id, DerivedFrom::OnlyNode)),
        (_, [node]) => Some((*node, DerivedFrom::LocalCpus)),
        _ => None,
    }
}

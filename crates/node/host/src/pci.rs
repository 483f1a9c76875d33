//! Devices on PCI: GPUs, network cards, NVMe drives, and where each is attached.
//!
//! Owns the tree from the CPUs' root complexes through bridges to devices, the NUMA node of each device
//! (told, or derived, or unknown with the reason), and how far two devices are from each other. Must not
//! know drivers: what a GPU is called, and what is linked by NVLink, is told by NVML and not here.

mod tree;

use serde::{Deserialize, Serialize};

use berth_model::idset::CpuSet;

use crate::list::{as_list_if_known, list};
use crate::machine::Machine;
use crate::root::{Diagnosis, Fault, Notes, Root};
pub use tree::Place;

const DEVICES: &str = "sys/bus/pci/devices";

const NOT_SYSFS: &str = "look whether sysfs is mounted there";

/// NVIDIA's vendor id.
pub const NVIDIA: u16 = 0x10de;
/// AMD's vendor id for GPUs.
pub const AMD: u16 = 0x1002;
/// Intel's vendor id.
pub const INTEL: u16 = 0x8086;

/// What is on PCI, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pci {
    /// GPUs, network cards, NVMe drives and NVSwitches, by address.
    pub devices: Vec<Device>,
    /// Root complexes that have such devices, by name.
    pub roots: Vec<RootComplex>,
}

/// Where a tree of bridges and devices starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RootComplex {
    /// Domain and first bus, such as `0000:40`.
    pub id: String,
    /// NUMA nodes of the devices below it.
    pub numa: Vec<u32>,
    /// Addresses of the devices below it.
    pub devices: Vec<String>,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// A GPU of NVIDIA, AMD or Intel. The display of a board's controller is none.
    Gpu,
    /// A switch between GPUs.
    NvSwitch,
    /// A network card: Ethernet, InfiniBand.
    Nic,
    /// A drive.
    Nvme,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Domain, bus, device and function, such as `0000:41:00.0`.
    pub address: String,
    /// What it is.
    pub kind: Kind,
    /// Id of its vendor.
    pub vendor: u16,
    /// The vendor's id of it.
    pub device: u16,
    /// Class, subclass and interface.
    pub class: u32,
    /// Name of its driver, if one has it.
    pub driver: Option<String>,
    /// Its NUMA node.
    pub numa: DeviceNuma,
    /// CPUs near to it, as the kernel tells.
    #[serde(with = "as_list_if_known")]
    pub local_cpus: Option<CpuSet>,
    /// Where it is in the tree.
    pub place: Place,
    /// Address of the device that it is a virtual function of.
    pub virtual_of: Option<String>,
    /// How many virtual functions it has now.
    pub virtual_functions: u32,
    /// Names of its network interfaces.
    pub interfaces: Vec<String>,
    /// Names of its RDMA devices, such as `mlx5_0`.
    pub rdma: Vec<String>,
}

/// The NUMA node of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "how")]
pub enum DeviceNuma {
    /// The kernel tells it.
    Told {
        /// Id of the node.
        node: u32,
    },
    /// The kernel does not tell it, and it follows from something else.
    Derived {
        /// Id of the node.
        node: u32,
        /// From what.
        from: DerivedFrom,
    },
    /// It is not known.
    Unknown {
        /// Why not.
        reason: String,
    },
}

/// What a NUMA node follows from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "what")]
pub enum DerivedFrom {
    /// The nearest bridge above it that tells one.
    Bridge {
        /// Its address.
        address: String,
    },
    /// CPUs near to it are all in this node.
    LocalCpus,
    /// The machine has one NUMA node.
    OnlyNode,
}

impl DeviceNuma {
    /// The node, if it is known.
    pub fn node(&self) -> Option<u32> {
        match self {
            Self::Told { node } | Self::Derived { node, .. } => Some(*node),
            Self::Unknown { .. } => None,
        }
    }
}

/// How far two devices are from each other, in the words of `nvidia-smi topo`; nearer is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Distance {
    /// They are the same.
    #[serde(rename = "X")]
    Same,
    /// At most one PCIe switch.
    Pix,
    /// Several switches, but not the root complex.
    Pxb,
    /// The root complex.
    Phb,
    /// Several root complexes of a NUMA node.
    Node,
    /// From one NUMA node to another.
    Sys,
    /// Not known: the NUMA node of one of them is not.
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
    /// Whether it is a virtual function.
    pub fn is_virtual(&self) -> bool {
        self.virtual_of.is_some()
    }

    /// How far it is to another device.
    pub fn distance(&self, other: &Self) -> Distance {
        if self.address == other.address {
            return Distance::Same;
        }
        if let Some(shared) = self.place.shared_with(&other.place) {
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
    /// Reads the devices below `root`, on the machine that was read there.
    pub fn read(root: &Root, machine: &Machine) -> (Self, Vec<Diagnosis>) {
        root.begin();
        let mut notes = Notes::default();
        let names = match root.names(DEVICES) {
            Ok(names) => names,
            Err(fault) => {
                notes.fault(DEVICES, &fault, "no device is known");
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

    /// The GPUs, by address.
    pub fn gpus(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| device.kind == Kind::Gpu)
    }

    /// The network cards, by address.
    pub fn nics(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| device.kind == Kind::Nic)
    }

    /// The device at an address. Drivers write addresses in capitals and with longer domains; both are
    /// understood.
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
        let Some(id) = &device.place.root else { continue };
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

/// A device, if it is of a kind that matters.
fn device(root: &Root, machine: &Machine, address: String, notes: &mut Notes) -> Option<Device> {
    let link = format!("{DEVICES}/{address}");
    let (directory, place) = match root.link(&link) {
        Ok(target) => tree::place(DEVICES, &target),
        // Copies of sysfs have directories in place of links.
        Err(Fault::Odd(_)) => (link.clone(), Place::default()),
        Err(fault) => {
            notes.fault(&link, &fault, "the device is left out");
            return None;
        }
    };
    let class = hexadecimal(root, &format!("{directory}/class"), "the device is left out", notes)?;
    // Without a vendor nothing can be said of displays; other kinds go by the class alone.
    if !matches!(class >> 16, 0x01..=0x03 | 0x06 | 0x12) {
        return None;
    }
    let unknown = "the vendor counts as 0";
    let vendor = hexadecimal(root, &format!("{directory}/vendor"), unknown, notes).unwrap_or(0);
    let vendor = u16::try_from(vendor).unwrap_or(0);
    let kind = kind(class, vendor)?;
    if place.root.is_none() {
        let what = "does not say below which root complex it is, so how far it is to other devices is \
                    not known";
        notes.add(&link, what, "keep the links when copying sysfs");
    }
    let unknown = "the model counts as 0";
    let model = hexadecimal(root, &format!("{directory}/device"), unknown, notes).unwrap_or(0);
    let path = format!("{directory}/sriov_numvfs");
    let virtual_functions = optional(root, &path, notes, |line| {
        line.parse::<u32>().map_err(|_| "is no number".to_owned())
    });
    let last = |target: String| target.rsplit('/').next().map(str::to_owned);
    let local_cpus = optional(root, &format!("{directory}/local_cpulist"), notes, list);
    Some(Device {
        numa: numa(root, machine, &directory, &place, local_cpus.as_ref(), notes),
        kind,
        vendor,
        device: u16::try_from(model).unwrap_or(0),
        class,
        driver: root.link(&format!("{directory}/driver")).ok().and_then(last),
        local_cpus,
        place,
        virtual_of: root.link(&format!("{directory}/physfn")).ok().and_then(last),
        virtual_functions: virtual_functions.unwrap_or(0),
        interfaces: names_if_nic(root, kind, &format!("{directory}/net")),
        rdma: names_if_nic(root, kind, &format!("{directory}/infiniband")),
        address,
    })
}

/// A file that not every device has.
fn optional<T>(
    root: &Root,
    path: &str,
    notes: &mut Notes,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Option<T> {
    match root.line(path).map(|line| parse(&line)) {
        Ok(Ok(found)) => Some(found),
        Ok(Err(why)) => {
            notes.add(path, format!("{why}, so it is passed over"), NOT_SYSFS);
            None
        }
        Err(Fault::Missing) => None,
        Err(fault) => {
            notes.fault(path, &fault, "it is passed over");
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
        // Virtual devices have a bus of their own below the function.
        let names = root.names(device).unwrap_or_default();
        if let Some(inner) = names.iter().find(|name| name.starts_with("virtio")) {
            directory = format!("{device}/{inner}/{last}");
        }
    }
    let names = root.names(&directory).unwrap_or_default();
    // Asking for each records it.
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
        notes.add(path, format!("is no number such as 0x10de, so {unknown}"), NOT_SYSFS);
    }
    number
}

/// What `numa_node` says.
enum Said {
    Node(u32),
    /// −1: the firmware did not say.
    Nothing,
    Fault(String),
}

fn said(root: &Root, directory: &str) -> Said {
    match root.line(&format!("{directory}/numa_node")) {
        Ok(line) if line == "-1" => Said::Nothing,
        Ok(line) => match line.parse() {
            Ok(node) => Said::Node(node),
            Err(_) => Said::Fault("is no id of a NUMA node".to_owned()),
        },
        Err(fault) => Said::Fault(fault.to_string()),
    }
}

/// The NUMA node: as told, or that of the nearest bridge that tells, or that of the CPUs nearby.
fn numa(
    root: &Root,
    machine: &Machine,
    directory: &str,
    place: &Place,
    local_cpus: Option<&CpuSet>,
    notes: &mut Notes,
) -> DeviceNuma {
    let path = format!("{directory}/numa_node");
    let (not_told, odd) = match said(root, directory) {
        Said::Node(node) if machine.node(node).is_some() => return DeviceNuma::Told { node },
        Said::Node(node) => {
            (format!("NUMA node {node} is told, which the machine does not have"), true)
        }
        Said::Nothing => ("the firmware tells no NUMA node (numa_node is -1)".to_owned(), false),
        Said::Fault(why) => (format!("numa_node {why}"), true),
    };
    let near = local_cpus.map(|cpus| machine.numa_of(cpus)).unwrap_or_default();
    if let Some((node, from)) = derived(root, machine, directory, place, &near) {
        // That nothing is told is common; that something odd is, is not.
        if odd {
            let what = format!("{not_told}, so NUMA node {node} is derived from what is around it");
            notes.add(&path, what, NOT_SYSFS);
        }
        return DeviceNuma::Derived { node, from };
    }
    let why = match near.len() {
        0 => "no CPUs are told to be near",
        _ => "CPUs of several NUMA nodes are told to be near",
    };
    let reason = format!("{not_told}, no bridge above tells one, and {why}");
    let remedy = "set the NUMA node in the firmware (or in the virtual machine's definition)";
    notes.add(&path, format!("{reason}, so its NUMA node is unknown"), remedy);
    DeviceNuma::Unknown { reason }
}

fn derived(
    root: &Root,
    machine: &Machine,
    directory: &str,
    place: &Place,
    near: &[u32],
) -> Option<(u32, DerivedFrom)> {
    let mut above = directory;
    for bridge in place.bridges.iter().rev() {
        // Root complexes behind devices have a directory of their own between bridges.
        while let Some((parent, _)) = above.rsplit_once('/') {
            above = parent;
            if above.ends_with(bridge.as_str()) {
                break;
            }
        }
        if let Said::Node(node) = said(root, above)
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

//! Devices on PCI, as sysfs shows them.
//!
//! Owns directories, links and virtual functions of PCI. Must not know which machines have them.

use berth_model::idset::IdSet;

use super::{MadeMachine, Tree};

/// A device, and the bridges above it.
#[derive(Clone, Debug)]
pub struct MadeDevice {
    /// Its root complex, the bridges below that, and its own address:
    /// `pci0000:60/0000:60:01.1/0000:65:00.0`.
    pub path: String,
    /// Vendor, device and class.
    pub ids: (u16, u16, u32),
    /// What its `numa_node` says.
    pub numa: i32,
    /// What the `numa_node` of the bridges above it says.
    pub bridge_numa: i32,
    /// Name of its driver.
    pub driver: Option<&'static str>,
    /// Network interfaces.
    pub interfaces: Vec<String>,
    /// RDMA devices.
    pub rdma: Vec<String>,
    /// How many virtual functions it has; they follow its address.
    pub virtual_functions: u8,
}

impl MadeDevice {
    /// An H100 with 80 GB.
    pub fn h100(path: impl Into<String>, numa: i32) -> Self {
        Self::new(path, (0x10de, 0x2330, 0x03_0200), numa, "nvidia")
    }

    /// An A100 with 80 GB.
    pub fn a100(path: impl Into<String>, numa: i32) -> Self {
        Self::new(path, (0x10de, 0x20b2, 0x03_0200), numa, "nvidia")
    }

    /// A ConnectX-7.
    pub fn connectx7(path: impl Into<String>, numa: i32, number: u32) -> Self {
        let nic = Self::new(path, (0x15b3, 0x1021, 0x02_0700), numa, "mlx5_core");
        let (interfaces, rdma) = (vec![format!("ibs{number}")], vec![format!("mlx5_{number}")]);
        Self { interfaces, rdma, ..nic }
    }

    /// A drive.
    pub fn nvme(path: impl Into<String>, numa: i32) -> Self {
        Self::new(path, (0x144d, 0xa80a, 0x01_0802), numa, "nvme")
    }

    /// The display of a board's controller.
    pub fn aspeed(path: impl Into<String>, numa: i32) -> Self {
        Self::new(path, (0x1a03, 0x2000, 0x03_0000), numa, "ast")
    }

    /// Any device.
    pub fn new(
        path: impl Into<String>,
        ids: (u16, u16, u32),
        numa: i32,
        driver: &'static str,
    ) -> Self {
        Self {
            path: path.into(),
            ids,
            numa,
            bridge_numa: numa,
            driver: Some(driver),
            interfaces: Vec::new(),
            rdma: Vec::new(),
            virtual_functions: 0,
        }
    }

    /// Its address.
    pub fn address(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    pub(super) fn add(&self, tree: &mut Tree, machine: &MadeMachine) {
        let mut path = String::from("sys/devices");
        for name in self.path.split('/') {
            path = format!("{path}/{name}");
            if name.starts_with("pci") {
                continue;
            }
            if name == self.address() {
                self.function(tree, machine, &path, name, self.ids, self.driver);
            } else {
                // A root port is the processor's, what is below is a switch.
                let port = path.matches('/').count() == 3;
                let ids =
                    if port { (0x1022, 0x14ab, 0x06_0400) } else { (0x1000, 0xc030, 0x06_0400) };
                let bridge = Self { numa: self.bridge_numa, ..Self::new("", ids, 0, "pcieport") };
                bridge.function(tree, machine, &path, name, ids, Some("pcieport"));
            }
        }
        for name in &self.interfaces {
            tree.line(format!("{path}/net/{name}/address"), "02:00:5e:10:00:01");
        }
        for name in &self.rdma {
            tree.line(format!("{path}/infiniband/{name}/node_guid"), "0200:5e10:0000:0001");
        }
        self.add_virtual_functions(tree, machine, &path);
    }

    fn add_virtual_functions(&self, tree: &mut Tree, machine: &MadeMachine, path: &str) {
        if self.virtual_functions == 0 {
            return;
        }
        tree.line(format!("{path}/sriov_numvfs"), self.virtual_functions)
            .line(format!("{path}/sriov_totalvfs"), 16);
        let (above, address) = path.rsplit_once('/').unwrap_or(("", path));
        let (slot, _) = address.rsplit_once('.').unwrap_or((address, "0"));
        for number in 1..=self.virtual_functions {
            let name = format!("{slot}.{number:x}");
            let at = format!("{above}/{name}");
            let (vendor, device, class) = self.ids;
            let ids = (vendor, device.wrapping_add(1), class);
            self.function(tree, machine, &at, &name, ids, None);
            tree.link(format!("{at}/physfn"), format!("../{address}"));
            tree.link(format!("{path}/virtfn{}", number - 1), format!("../{name}"));
        }
    }

    fn function(
        &self,
        tree: &mut Tree,
        machine: &MadeMachine,
        path: &str,
        address: &str,
        (vendor, device, class): (u16, u16, u32),
        driver: Option<&str>,
    ) {
        let position =
            machine.numa_ids.iter().position(|id| i64::from(*id) == i64::from(self.numa));
        let near = match position {
            Some(position) => machine.cpus_of_node(position),
            None => (0..machine.sockets * machine.numa_per_socket)
                .fold(IdSet::EMPTY, |all, position| all | machine.cpus_of_node(position)),
        };
        tree.line(format!("{path}/vendor"), format_args!("0x{vendor:04x}"))
            .line(format!("{path}/device"), format_args!("0x{device:04x}"))
            .line(format!("{path}/class"), format_args!("0x{class:06x}"))
            .line(format!("{path}/numa_node"), self.numa)
            .line(format!("{path}/local_cpulist"), near);
        // From the device's directory up to /sys.
        let up = "../".repeat(path.matches('/').count());
        if let Some(driver) = driver {
            tree.link(format!("{path}/driver"), format!("{up}bus/pci/drivers/{driver}"));
        }
        tree.link(format!("{path}/subsystem"), format!("{up}bus/pci"));
        let target = path.strip_prefix("sys/").unwrap_or(path);
        tree.link(format!("sys/bus/pci/devices/{address}"), format!("../../../{target}"));
    }
}

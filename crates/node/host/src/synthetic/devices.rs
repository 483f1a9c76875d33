//! PCI devices, as sysfs shows them.

use berth_model::idset::IdSet;

use super::{SyntheticMachine, Tree};

/// A device, and the bridges above it.
#[derive(Clone, Debug)]
pub struct SyntheticDevice {
    /// Root complex, bridges and own address: `pci0000:60/0000:60:01.1/0000:65:00.0`.
    pub path: String,
    /// Vendor, device and class.
    pub ids: (u16, u16, u32),
    pub numa: i32,
    pub bridge_numa: i32,
    pub driver: Option<&'static str>,
    pub interfaces: Vec<String>,
    pub rdma: Vec<String>,
    /// Number of virtual functions; their addresses follow its own.
    pub virtual_functions: u8,
}

impl SyntheticDevice {
    pub fn h100(path: impl Into<String>, numa: i32) -> Self {
        Self::new(path, (0x10de, 0x2330, 0x03_0200), numa, "nvidia")
    }

    pub fn a100(path: impl Into<String>, numa: i32) -> Self {
        Self::new(path, (0x10de, 0x20b2, 0x03_0200), numa, "nvidia")
    }

    pub fn connectx7(path: impl Into<String>, numa: i32, number: u32) -> Self {
        let nic = Self::new(path, (0x15b3, 0x1021, 0x02_0700), numa, "mlx5_core");
        let (interfaces, rdma) = (vec![format!("ibs{number}")], vec![format!("mlx5_{number}")]);
        Self { interfaces, rdma, ..nic }
    }

    pub fn nvme(path: impl Into<String>, numa: i32) -> Self {
        Self::new(path, (0x144d, 0xa80a, 0x01_0802), numa, "nvme")
    }

    /// The display adapter of a BMC.
    pub fn aspeed(path: impl Into<String>, numa: i32) -> Self {
        Self::new(path, (0x1a03, 0x2000, 0x03_0000), numa, "ast")
    }

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

    pub fn address(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    pub(super) fn add(&self, tree: &mut Tree, machine: &SyntheticMachine) {
        let mut path = String::from("sys/devices");
        for name in self.path.split('/') {
            path = format!("{path}/{name}");
            if name.starts_with("pci") {
                continue;
            }
            if name == self.address() {
                self.function(tree, machine, &path, name, self.ids, self.driver);
            } else {
                // A root port belongs to the processor; bridges below it belong to switches.
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

    fn add_virtual_functions(&self, tree: &mut Tree, machine: &SyntheticMachine, path: &str) {
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
        machine: &SyntheticMachine,
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

//! Shapes of well-known machines.

use berth_model::idset::IdSet;

use super::{SyntheticDevice, SyntheticMachine, SyntheticNode};

const GIB: u64 = 1 << 30;

/// Two EPYC 9654 (192 cores in 24 core complexes) with 8 H100, as 1, 2 or 4 NUMA nodes per socket.
///
/// Each pair of GPUs is at a switch, with a network card each.
pub fn epyc_9654(numa_per_socket: usize) -> SyntheticMachine {
    let mut machine = SyntheticMachine {
        processor: "AMD EPYC 9654 96-Core Processor",
        sockets: 2,
        numa_per_socket,
        cores_per_numa: 96 / numa_per_socket,
        threads: 2,
        cores_per_l3: 8,
        // Ids follow from APIC ids, which have room for 16 complexes.
        l3_ids_per_socket: 16,
        numa_ids: (0..2 * numa_per_socket as u32).collect(),
        memory_bytes: 1536 * GIB / (2 * numa_per_socket as u64),
        without_memory: Vec::new(),
        hugepages: vec![(2 << 20, 1024)],
        nodes_without_cpus: Vec::new(),
        distances: (12, 32),
        offline: IdSet::EMPTY,
        devices: Vec::new(),
    };
    // Root complexes in the order of quadrants: which is in which NUMA node.
    let node = |quadrant: usize| (quadrant * numa_per_socket / 4) as i32;
    let roots = [(0x00, 0), (0x60, 3), (0x80, 4), (0xe0, 7)];
    let gpus = [(0x05, 0x06), (0x65, 0x68), (0x85, 0x88), (0xe5, 0xe8)];
    for (at, ((root, quadrant), pair)) in roots.into_iter().zip(gpus).enumerate() {
        let switch = format!("pci0000:{root:02x}/0000:{root:02x}:01.1/0000:{:02x}:00.0", root + 1);
        let port = |number: u32, bus: u32| {
            format!("{switch}/0000:{:02x}:{number:02x}.0/0000:{bus:02x}:00.0", root + 2)
        };
        let numa = node(quadrant);
        let first = 2 * at as u32;
        machine.devices.extend([
            SyntheticDevice::h100(port(0, pair.0), numa),
            SyntheticDevice::h100(port(1, pair.1), numa),
            SyntheticDevice::connectx7(port(2, root + 0xb), numa, first),
            SyntheticDevice::connectx7(port(3, root + 0xc), numa, first + 1),
        ]);
    }
    machine.devices.push(SyntheticDevice::nvme("pci0000:40/0000:40:03.1/0000:41:00.0", node(2)));
    machine.devices.push(SyntheticDevice::aspeed("pci0000:c0/0000:c0:05.1/0000:c1:00.0", node(6)));
    machine
}

/// Two EPYC 7763 (128 cores in 16 core complexes) with 8 A100, as 1, 2 or 4 NUMA nodes per socket.
///
/// GPUs and network cards are at switches below switches.
pub fn epyc_7763(numa_per_socket: usize) -> SyntheticMachine {
    let mut machine = epyc_9654(numa_per_socket);
    machine.processor = "AMD EPYC 7763 64-Core Processor";
    machine.cores_per_numa = 64 / numa_per_socket;
    machine.l3_ids_per_socket = 8;
    machine.memory_bytes = 2048 * GIB / (2 * numa_per_socket as u64);
    machine.devices.clear();
    let node = |quadrant: usize| (quadrant * numa_per_socket / 4) as i32;
    // The first GPUs are on the third quadrant, as on real machines.
    let roots = [(0x00, 3), (0x40, 1), (0x80, 7), (0xb0, 5)];
    for (at, (root, quadrant)) in roots.into_iter().enumerate() {
        let port = format!("pci0000:{root:02x}/0000:{root:02x}:01.1/0000:{:02x}:00.0", root + 1);
        let below = |number: u32, bus: u32| {
            let inner = root + 3 + number;
            format!(
                "{port}/0000:{:02x}:{number:02x}.0/0000:{inner:02x}:00.0/0000:{:02x}:00.0/0000:{bus:02x}:00.0",
                root + 2,
                inner + 0x20,
            )
        };
        let numa = node(quadrant);
        machine.devices.extend([
            SyntheticDevice::a100(below(0, root + 0x7), numa),
            SyntheticDevice::a100(below(1, root + 0xf), numa),
            SyntheticDevice::connectx7(below(2, root + 0xc), numa, at as u32),
        ]);
    }
    machine
}

/// Two Xeon 8480+ (112 cores), each divided into two NUMA nodes (SNC2), with 4 H100.
pub fn xeon_8480_snc2() -> SyntheticMachine {
    let roots = [(0x48, 0x4a, 0), (0x5f, 0x61, 1), (0xc8, 0xca, 2), (0xdf, 0xe1, 3)];
    let gpu = |(root, bus, numa): (u32, u32, i32)| {
        let path = format!("pci0000:{root:02x}/0000:{root:02x}:01.0/0000:{bus:02x}:00.0");
        SyntheticDevice::new(path, (0x10de, 0x2331, 0x03_0200), numa, "nvidia")
    };
    let mut devices: Vec<SyntheticDevice> = roots.into_iter().map(gpu).collect();
    let nic = SyntheticDevice::connectx7("pci0000:15/0000:15:01.0/0000:16:00.0", 0, 0);
    devices.push(SyntheticDevice {
        ids: (0x15b3, 0x1021, 0x02_0000),
        interfaces: vec!["ens1f0np0".to_owned()],
        virtual_functions: 2,
        ..nic
    });
    SyntheticMachine {
        processor: "Intel(R) Xeon(R) Platinum 8480+",
        sockets: 2,
        numa_per_socket: 2,
        cores_per_numa: 28,
        threads: 2,
        // Splitting a socket does not split its cache.
        cores_per_l3: 56,
        l3_ids_per_socket: 1,
        numa_ids: vec![0, 1, 2, 3],
        memory_bytes: 256 * GIB,
        without_memory: Vec::new(),
        hugepages: vec![(1 << 30, 32)],
        nodes_without_cpus: Vec::new(),
        distances: (12, 21),
        offline: IdSet::EMPTY,
        devices,
    }
}

/// The machine with firmware that reports no NUMA node for devices and bridges.
pub fn without_numa_of_devices(mut machine: SyntheticMachine) -> SyntheticMachine {
    for device in &mut machine.devices {
        (device.numa, device.bridge_numa) = (-1, -1);
    }
    machine
}

/// A machine after memory was removed at run time: NUMA nodes 1 and 3 are gone, node 4 has CPUs but no
/// memory, and three CPUs of two cores are offline.
pub fn with_holes() -> SyntheticMachine {
    let mut machine = epyc_7763(2);
    machine.numa_ids = vec![0, 2, 4, 5];
    for device in &mut machine.devices {
        let position = usize::try_from(device.numa).unwrap_or(0);
        device.numa = machine.numa_ids.get(position).map_or(-1, |id| *id as i32);
        device.bridge_numa = device.numa;
    }
    machine.without_memory = vec![4];
    machine.offline = [3, 131, 64].into_iter().collect();
    machine
}

/// A Xeon with HBM, which forms NUMA nodes without CPUs.
pub fn hbm_xeon() -> SyntheticMachine {
    let mut machine = xeon_8480_snc2();
    machine.processor = "Intel(R) Xeon(R) CPU Max 9480";
    let node = |id| SyntheticNode { id, memory_bytes: 32 * GIB, distance: 23 };
    machine.nodes_without_cpus = (4..8).map(node).collect();
    machine
}

/// One socket, one NUMA node, no GPU.
pub fn no_gpu() -> SyntheticMachine {
    let mut machine = epyc_7763(1);
    machine.sockets = 1;
    machine.numa_ids = vec![0];
    machine.memory_bytes = 256 * GIB;
    machine.devices = vec![
        SyntheticDevice::aspeed("pci0000:c0/0000:c0:05.1/0000:c1:00.0", 0),
        SyntheticDevice::nvme("pci0000:40/0000:40:03.1/0000:41:00.0", 0),
    ];
    machine
}

/// A virtual machine with a GPU passed through, and no NUMA node reported for it.
pub fn bare_gpu_vm() -> SyntheticMachine {
    SyntheticMachine {
        processor: "INTEL(R) XEON(R) PLATINUM 8568Y+",
        sockets: 1,
        numa_per_socket: 1,
        cores_per_numa: 16,
        threads: 1,
        cores_per_l3: 16,
        l3_ids_per_socket: 1,
        numa_ids: vec![0],
        memory_bytes: 128 * GIB,
        without_memory: Vec::new(),
        hugepages: Vec::new(),
        nodes_without_cpus: Vec::new(),
        distances: (12, 20),
        offline: IdSet::EMPTY,
        devices: vec![
            SyntheticDevice::new(
                "pci0000:00/0000:00:06.0",
                (0x10de, 0x2335, 0x03_0200),
                -1,
                "nvidia",
            ),
            SyntheticDevice::new(
                "pci0000:00/0000:00:03.0",
                (0x1af4, 0x1041, 0x02_0000),
                -1,
                "virtio-pci",
            ),
        ],
    }
}

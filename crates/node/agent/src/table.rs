//! The report on a node as text.

use std::fmt::Write as _;

use berth_host::pci::Distance;
use berth_model::alignment::Alignment;
use berth_text::columns;

use crate::audit::{ContainerAudit, DeviceKind, Finding};
use crate::gpus::{DriverGpu, PlacementSource, Profile};
use crate::report::{GpuReport, NodeReport, PairReport, PodReport};

pub fn render(report: &NodeReport) -> String {
    let mut text = String::new();
    machine(report, &mut text);
    numa(report, &mut text);
    gpus(report, &mut text);
    profiles(report, &mut text);
    distances(report, &mut text);
    pods(report, &mut text);
    diagnoses(report, &mut text);
    text
}

fn machine(report: &NodeReport, text: &mut String) {
    let machine = &report.machine;
    let count = |number: usize, one: &str| match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {one}s"),
    };
    let cpus: usize = report.numa.iter().map(|node| node.cpu_count).sum();
    let mut rows = vec![
        vec!["Processor:".into(), machine.processor.clone().unwrap_or_else(unknown)],
        vec![
            "Topology:".into(),
            format!(
                "{}, {}, {}, {}, {}",
                count(machine.sockets, "socket"),
                count(report.numa.len(), "NUMA node"),
                count(machine.l3_groups, "L3 group"),
                count(machine.cores, "core"),
                count(cpus, "CPU")
            ),
        ],
        vec!["Memory:".into(), gib(machine.memory_bytes)],
    ];
    let driver = &report.driver;
    rows.push(vec![
        "Driver:".into(),
        match (&driver.version, &driver.cuda) {
            (Some(version), Some(cuda)) => format!("NVIDIA {version}, CUDA {cuda}"),
            (Some(version), None) => format!("NVIDIA {version}"),
            _ => "<none>".to_owned(),
        },
    ]);
    rows.push(vec![
        "Kubelet:".into(),
        report.kubelet.as_ref().map_or_else(unknown, |kubelet| {
            format!(
                "topology manager {} ({}), CPU manager {}, memory manager {}",
                kubelet.topology_manager_policy,
                kubelet.topology_manager_scope,
                kubelet.cpu_manager_policy,
                kubelet.memory_manager_policy
            )
        }),
    ]);
    *text += &columns(&rows);
}

fn numa(report: &NodeReport, text: &mut String) {
    let mut rows =
        vec![heads(&["NUMA", "SOCKET", "CPUS", "CPU LIST", "MEMORY", "GPUS", "NICS", "DISTANCES"])];
    for node in &report.numa {
        let names = |nics: &[String]| -> Vec<String> {
            nics.iter().map(|address| nic_name(report, address)).collect()
        };
        let gpus = node.gpus.iter().filter_map(|address| gpu_number(report, address));
        let distances = node.distances.iter().map(|one| one.distance.to_string());
        rows.push(vec![
            node.id.to_string(),
            or_dash(node.sockets.iter().map(u32::to_string).collect()),
            node.cpu_count.to_string(),
            if node.cpus.is_empty() { "-".to_owned() } else { node.cpus.clone() },
            gib(node.memory_bytes),
            or_dash(gpus.map(|number| number.to_string()).collect()),
            or_dash(names(&node.nics)),
            distances.collect::<Vec<_>>().join(" "),
        ]);
    }
    section(text, &rows);
}

fn gpus(report: &NodeReport, text: &mut String) {
    if report.gpus.is_empty() {
        *text += "\nNo GPUs found.\n";
        return;
    }
    let head = [
        "GPU", "ADDRESS", "NUMA", "PRODUCT", "MEMORY", "USED", "MIG", "BUSY", "TEMP", "POWER",
        "HEALTH", "PODS",
    ];
    let mut rows = vec![heads(&head)];
    for (number, gpu) in report.gpus.iter().enumerate() {
        rows.push(gpu_row(number, gpu));
    }
    section(text, &rows);
}

fn gpu_row(number: usize, gpu: &GpuReport) -> Vec<String> {
    let driver = gpu.driver.as_ref();
    let product = driver.and_then(|driver| driver.product.clone());
    let shown = |value: Option<u32>, unit: &str| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value}{unit}"))
    };
    let memory = driver.and_then(|driver| driver.memory);
    let watts = driver.and_then(|driver| driver.power_milliwatts).map(|power| power / 1000);
    vec![
        number.to_string(),
        gpu.address.clone(),
        gpu.numa.map_or_else(unknown, |node| node.to_string()),
        product.or_else(|| gpu.pci_id.clone()).unwrap_or_else(unknown),
        memory.map_or_else(|| "-".to_owned(), |memory| gib(memory.total_bytes)),
        memory.map_or_else(|| "-".to_owned(), |memory| gib(memory.used_bytes)),
        driver.map_or_else(|| "-".to_owned(), mig),
        shown(driver.and_then(|driver| driver.busy_percent), "%"),
        shown(driver.and_then(|driver| driver.temperature_celsius), "C"),
        shown(watts, "W"),
        match driver {
            Some(driver) => driver.health.fault().unwrap_or("ok").to_owned(),
            None => unknown(),
        },
        gpu.pods.len().to_string(),
    ]
}

fn mig(gpu: &DriverGpu) -> String {
    let Some(mode) = gpu.mig else { return "-".to_owned() };
    let change = if mode.enabled == mode.pending { "" } else { " (reset pending)" };
    if !mode.enabled {
        return format!("off{change}");
    }
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for instance in &gpu.instances {
        let profile = instance.profile.as_deref().unwrap_or("?");
        match kinds.iter_mut().find(|(known, _)| *known == profile) {
            Some((_, count)) => *count += 1,
            None => kinds.push((profile, 1)),
        }
    }
    let kinds: Vec<String> = kinds.iter().map(|(name, count)| format!("{count}x{name}")).collect();
    if kinds.is_empty() { format!("empty{change}") } else { format!("{}{change}", kinds.join("+")) }
}

/// MIG profiles of each product once, as `nvidia-smi mig -lgip` and `-lgipp` print them.
fn profiles(report: &NodeReport, text: &mut String) {
    let head = ["MIG PROFILE", "ID", "MAX", "MEMORY", "SMS", "PLACEMENTS", "PRODUCT"];
    let mut rows = vec![heads(&head)];
    let mut seen: Vec<&DriverGpu> = Vec::new();
    for gpu in report.gpus.iter().filter_map(|gpu| gpu.driver.as_ref()) {
        if seen.iter().any(|one| one.product == gpu.product && one.profiles == gpu.profiles) {
            continue;
        }
        seen.push(gpu);
        for profile in &gpu.profiles {
            rows.push(vec![
                profile.name.clone(),
                profile.id.to_string(),
                profile.instances.to_string(),
                format!(
                    "{}.{:02} GiB",
                    profile.memory_mib / 1024,
                    profile.memory_mib % 1024 * 100 / 1024
                ),
                profile.multiprocessors.to_string(),
                placements(profile),
                gpu.product.clone().unwrap_or_else(unknown),
            ]);
        }
    }
    if rows.len() > 1 {
        section(text, &rows);
    }
}

/// Marks placements that the driver did not report.
fn placements(profile: &Profile) -> String {
    if profile.units == 0 {
        return unknown();
    }
    match profile.placements {
        PlacementSource::Driver => profile.placements(),
        PlacementSource::Table => format!("{} (from table)", profile.placements()),
        PlacementSource::Unknown => format!("{} (unverified)", profile.placements()),
    }
}

fn distances(report: &NodeReport, text: &mut String) {
    if report.distances.is_empty() {
        return;
    }
    let others: Vec<&str> = report
        .gpus
        .iter()
        .map(|gpu| gpu.address.as_str())
        .chain(report.nics.iter().map(|nic| nic.address.as_str()))
        .collect();
    let name = |address: &str| match gpu_number(report, address) {
        Some(number) => format!("GPU{number}"),
        None => nic_name(report, address),
    };
    let mut rows = vec![vec!["DISTANCE".to_owned()]];
    if let Some(head) = rows.first_mut() {
        head.extend(others.iter().map(|address| name(address)));
    }
    for gpu in &report.gpus {
        let mut row = vec![name(&gpu.address)];
        row.extend(others.iter().map(|other| cell(report, &gpu.address, other)));
        rows.push(row);
    }
    section(text, &rows);
}

fn cell(report: &NodeReport, one: &str, other: &str) -> String {
    if one == other {
        return Distance::Same.to_string();
    }
    let is_pair = |pair: &&PairReport| {
        (pair.gpu == one && pair.other == other) || (pair.gpu == other && pair.other == one)
    };
    match report.distances.iter().find(is_pair) {
        Some(pair) if pair.nvlinks > 0 => format!("NV{}", pair.nvlinks),
        Some(pair) => pair.driver.unwrap_or(pair.pci).to_string(),
        None => "-".to_owned(),
    }
}

fn pods(report: &NodeReport, text: &mut String) {
    let head = [
        "POD",
        "QOS",
        "CONTAINER",
        "CPUS",
        "EXCLUSIVE",
        "CPU NUMA",
        "MEMORY NUMA",
        "DEVICES",
        "GPU NUMA",
        "ALIGNMENT",
    ];
    let mut rows = vec![heads(&head)];
    let with_gpu = || report.pods.iter().filter_map(|pod| Some((pod, pod.audit.as_ref()?)));
    for (pod, audit) in with_gpu() {
        rows.extend(audit.containers.iter().map(|one| pod_row(report, pod, one)));
    }
    let others = report.pods.len() - with_gpu().count();
    if rows.len() > 1 {
        section(text, &rows);
    }
    if others > 0 {
        let _ = writeln!(text, "\n{others} pods without GPUs");
    }
    for (pod, audit) in with_gpu() {
        let Finding { alignment, why, .. } = &audit.finding;
        if *alignment == Alignment::Aligned {
            continue;
        }
        let _ = writeln!(text, "\nPod {} is {}: {why}", pod.uid, alignment.as_str());
        for advice in &audit.advice {
            let _ = writeln!(text, "  {}: {} ({})", advice.of, advice.set, advice.why);
        }
    }
}

fn pod_row(report: &NodeReport, pod: &PodReport, one: &ContainerAudit) -> Vec<String> {
    let own = pod.devices.iter().filter(|held| held.container == one.container);
    let devices = own.map(|held| {
        let base = held.id.split_once("::").map_or(held.id.as_str(), |(base, _)| base);
        let number = report.gpus.iter().position(|gpu| {
            gpu.address == base || gpu.driver.as_ref().is_some_and(|driver| has(driver, base))
        });
        match (held.kind, number) {
            (DeviceKind::Gpu, Some(number)) => format!("GPU{number}"),
            (DeviceKind::Slice, Some(number)) => format!("slice of GPU{number}"),
            (DeviceKind::Share, Some(number)) => format!("share of GPU{number}"),
            _ => held.resource.clone(),
        }
    });
    let numbers = |all: &[u32]| or_dash(all.iter().map(u32::to_string).collect());
    let word = one.finding.alignment.as_str();
    let alignment = match one.finding.distance {
        Some(distance) => format!("{word} ({distance})"),
        None => word.to_owned(),
    };
    vec![
        pod.uid.clone(),
        format!("{:?}", pod.qos),
        one.container.clone(),
        one.cpus.clone().unwrap_or_else(unknown),
        one.exclusive.map_or_else(unknown, |own| if own { "yes" } else { "no" }.to_owned()),
        numbers(&one.cpu_numa),
        one.mems.clone().unwrap_or_else(unknown),
        or_dash(devices.collect()),
        numbers(&one.gpu_numa),
        alignment,
    ]
}

fn has(gpu: &DriverGpu, uuid: &str) -> bool {
    gpu.uuid.as_deref() == Some(uuid)
        || gpu.instances.iter().any(|one| one.uuid.as_deref() == Some(uuid))
}

fn diagnoses(report: &NodeReport, text: &mut String) {
    if report.diagnoses.is_empty() {
        return;
    }
    *text += "\nPROBLEMS\n";
    for diagnosis in &report.diagnoses {
        let _ = writeln!(
            text,
            "{}: {}\n  Remedy: {}",
            diagnosis.path, diagnosis.what, diagnosis.remedy
        );
    }
}

fn gpu_number(report: &NodeReport, address: &str) -> Option<usize> {
    report.gpus.iter().position(|gpu| gpu.address == address)
}

fn nic_name(report: &NodeReport, address: &str) -> String {
    let nic = report.nics.iter().find(|nic| nic.address == address);
    // RDMA devices come last, and are the names that people use for NICs.
    nic.and_then(|nic| nic.names.last().cloned()).unwrap_or_else(|| address.to_owned())
}

fn unknown() -> String {
    "<unknown>".to_owned()
}

fn or_dash(all: Vec<String>) -> String {
    if all.is_empty() { "-".to_owned() } else { all.join(",") }
}

/// Whole gibibytes, or tenths of small amounts.
fn gib(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10) >> 30;
    if tenths >= 100 || tenths.is_multiple_of(10) {
        return format!("{} GiB", tenths / 10);
    }
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

fn heads(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn section(text: &mut String, rows: &[Vec<String>]) {
    text.push('\n');
    *text += &columns(rows);
}

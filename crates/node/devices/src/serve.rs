//! Serves the offered devices until stopped, and follows changes of devices, health and decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::cdi;
use crate::config::DeviceConfig;
use crate::decision::Decision;
use crate::device::{Device, GpuIndex, Inventory, Kind, OfferedGpu};
use crate::plugin::Plugins;
use crate::running_pods::RunningPods;

/// The devices on offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    pub inventory: Inventory,
    /// UUIDs of GPUs and MIG instances that must not be allocated, with the reason.
    pub unhealthy: BTreeMap<String, String>,
}

/// Serves the devices through the kubelet until `stopped`. The kubelet and GPUs may come and go. If a sender is
/// dropped, its last value remains in effect.
pub async fn serve(
    config: DeviceConfig,
    mut supply: watch::Receiver<Supply>,
    mut decisions: watch::Receiver<Vec<Decision>>,
    running_pods: impl RunningPods,
    stopped: impl Future<Output = ()>,
) {
    let first = supply.borrow_and_update().clone();
    let plugins =
        Plugins::start(config.plugin.clone(), first.inventory.clone(), running_pods).await;
    let mut server =
        Server { config, plugins, offered: first.inventory.clone(), unhealthy: BTreeMap::new() };
    server.write_cdi();
    server.follow(first).await;
    let now = decisions.borrow_and_update().clone();
    server.plugins.decide(now).await;
    tokio::pin!(stopped);
    let poll_interval = server.config.plugin.poll_interval;
    let (mut supply_open, mut decisions_open) = (true, true);
    loop {
        tokio::select! {
            () = &mut stopped => break,
            changed = supply.changed(), if supply_open => {
                supply_open = changed.is_ok();
                let now = supply.borrow_and_update().clone();
                server.follow(now).await;
            }
            changed = decisions.changed(), if decisions_open => {
                decisions_open = changed.is_ok();
                let now = decisions.borrow_and_update().clone();
                server.plugins.decide(now).await;
            }
            () = tokio::time::sleep(poll_interval), if !server.unhealthy.is_empty() => {
                server.report_health().await;
            }
        }
    }
    server.plugins.stop().await;
}

struct Server {
    config: DeviceConfig,
    plugins: Arc<Plugins>,
    offered: Inventory,
    /// Unhealthy devices with the reason; `None` for those that recover.
    unhealthy: BTreeMap<String, Option<String>>,
}

impl Server {
    async fn follow(&mut self, now: Supply) {
        let (inventory, removed) = with_removed(&self.offered, now.inventory);
        if inventory != self.offered {
            info!(devices = inventory.devices().len(), "offered devices changed");
            self.offered = inventory.clone();
            self.write_cdi();
            self.plugins.replace(inventory).await;
        }
        let mut unhealthy = now.unhealthy;
        for uuid in removed {
            unhealthy.entry(uuid).or_insert_with(|| "the driver no longer reports it".to_owned());
        }
        for (uuid, reason) in &mut self.unhealthy {
            if !unhealthy.contains_key(uuid) && reason.take().is_some() {
                info!(uuid, "healthy again; offered after a waiting time");
            }
        }
        for (uuid, reason) in unhealthy {
            if self.unhealthy.get(&uuid) != Some(&Some(reason.clone())) {
                warn!(uuid, reason, "unhealthy; no longer allocated");
            }
            self.unhealthy.insert(uuid, Some(reason));
        }
        self.report_health().await;
    }

    async fn report_health(&mut self) {
        let mut recovered = Vec::new();
        for (uuid, reason) in &self.unhealthy {
            if self.plugins.report_health(uuid, reason.as_deref()).await {
                recovered.push(uuid.clone());
            }
        }
        for uuid in recovered {
            self.unhealthy.remove(&uuid);
        }
    }

    /// Writes the CDI specification, if one is configured.
    fn write_cdi(&self) {
        let Some(specification) = &self.config.specification else { return };
        let Some(kind) = &self.config.plugin.responses.cdi_kind else { return };
        let text = cdi::specification(kind, &self.offered, &specification.common);
        if let Err(error) = cdi::write(&specification.directory, &text) {
            warn!(directory = %specification.directory.display(), %error,
                  "cannot write the CDI specification (spec.cdi.directory), so containers with devices will not \
                   start; mount that directory of the host writable");
        }
    }
}

/// Adds GPUs that disappeared to the new inventory: a GPU that falls off its bus is unhealthy, but its holders
/// still hold it. Also returns the UUIDs of these GPUs and their instances.
fn with_removed(old: &Inventory, new: Inventory) -> (Inventory, Vec<String>) {
    let there: BTreeSet<&str> = new.gpus().iter().map(|gpu| gpu.uuid.as_str()).collect();
    let removed: Vec<&OfferedGpu> =
        old.gpus().iter().filter(|gpu| !there.contains(gpu.uuid.as_str())).collect();
    if removed.is_empty() {
        return (new, Vec::new());
    }
    let mut gpus: Vec<OfferedGpu> = new.gpus().to_vec();
    let mut devices: Vec<Device> = new.devices().to_vec();
    let mut uuids = Vec::new();
    for gpu in removed {
        // The driver may have given its number to another GPU.
        let taken = |number: u16| gpus.iter().any(|one| one.index.0 == number);
        let mut numbers = std::iter::once(gpu.index.0).chain(0..u16::MAX - 1);
        let Some(number) = numbers.find(|number| !taken(*number)) else { continue };
        let mut own: Vec<Device> = old.devices().to_vec();
        own.retain(|device| device.gpu == gpu.index);
        for device in &mut own {
            device.gpu = GpuIndex(number);
        }
        let instances = own.iter().filter_map(|device| match &device.kind {
            Kind::Mig { uuid, .. } => Some(uuid.clone()),
            Kind::Whole => None,
        });
        uuids.extend(instances);
        uuids.push(gpu.uuid.clone());
        // Distances refer to positions that have changed.
        gpus.push(OfferedGpu { index: GpuIndex(number), distances: Vec::new(), ..gpu.clone() });
        devices.extend(own);
    }
    gpus.sort_by_key(|gpu| gpu.index);
    for gpu in &mut gpus {
        gpu.distances.clear();
    }
    match Inventory::new(gpus, devices) {
        Ok(inventory) => (inventory, uuids),
        Err(error) => {
            warn!(%error, "cannot keep removed GPUs in the inventory");
            (new, Vec::new())
        }
    }
}

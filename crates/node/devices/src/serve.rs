//! Handing out whatever is on offer, until told to stop.
//!
//! Owns what becomes of news: other devices, GPUs that fall ill, are well again or are lost, and decisions of the
//! scheduler. Must not know where any of it comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::cdi;
use crate::config::DeviceConfig;
use crate::decision::Decision;
use crate::device::{Device, GpuIndex, Inventory, Kind, OfferedGpu};
use crate::plugin::Plugins;
use crate::witness::Witness;

/// What is on offer at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stock {
    /// The devices.
    pub inventory: Inventory,
    /// UUIDs of GPUs and MIG instances that are not to be given to anybody, and why.
    pub ill: BTreeMap<String, String>,
}

/// Hands out what is in stock through the kubelet until `stopped`, and follows what changes. Neither a kubelet nor
/// a GPU need be there: both may come and go. When the stock's or the decisions' sender is gone, the last that was
/// told stays so.
pub async fn serve(
    config: DeviceConfig,
    mut stock: watch::Receiver<Stock>,
    mut decisions: watch::Receiver<Vec<Decision>>,
    witness: impl Witness,
    stopped: impl Future<Output = ()>,
) {
    let first = stock.borrow_and_update().clone();
    let plugins = Plugins::start(config.plugin.clone(), first.inventory.clone(), witness).await;
    let mut serving =
        Serving { config, plugins, told: first.inventory.clone(), ill: BTreeMap::new() };
    serving.specify();
    serving.follow(first).await;
    let now = decisions.borrow_and_update().clone();
    serving.plugins.decide(now).await;
    tokio::pin!(stopped);
    let look = serving.config.plugin.look;
    let (mut stock_known, mut decisions_known) = (true, true);
    loop {
        tokio::select! {
            () = &mut stopped => break,
            changed = stock.changed(), if stock_known => {
                stock_known = changed.is_ok();
                let now = stock.borrow_and_update().clone();
                serving.follow(now).await;
            }
            changed = decisions.changed(), if decisions_known => {
                decisions_known = changed.is_ok();
                let now = decisions.borrow_and_update().clone();
                serving.plugins.decide(now).await;
            }
            () = tokio::time::sleep(look), if !serving.ill.is_empty() => {
                serving.report_health().await;
            }
        }
    }
    serving.plugins.stop().await;
}

struct Serving {
    config: DeviceConfig,
    plugins: Arc<Plugins>,
    told: Inventory,
    /// Who is ill, and who was and is not trusted yet (`None`).
    ill: BTreeMap<String, Option<String>>,
}

impl Serving {
    async fn follow(&mut self, now: Stock) {
        let (inventory, lost) = with_lost(&self.told, now.inventory);
        if inventory != self.told {
            info!(devices = inventory.devices().len(), "other devices are on offer");
            self.told = inventory.clone();
            self.specify();
            self.plugins.replace(inventory).await;
        }
        let mut ill = now.ill;
        for uuid in lost {
            ill.entry(uuid).or_insert_with(|| "the driver does not know it any more".to_owned());
        }
        for (uuid, reason) in &mut self.ill {
            if !ill.contains_key(uuid) && reason.take().is_some() {
                info!(uuid, "is well again, and on offer if it stays so");
            }
        }
        for (uuid, reason) in ill {
            if self.ill.get(&uuid) != Some(&Some(reason.clone())) {
                warn!(uuid, reason, "is not handed out any more");
            }
            self.ill.insert(uuid, Some(reason));
        }
        self.report_health().await;
    }

    async fn report_health(&mut self) {
        let mut trusted = Vec::new();
        for (uuid, reason) in &self.ill {
            if self.plugins.report_health(uuid, reason.as_deref()).await {
                trusted.push(uuid.clone());
            }
        }
        for uuid in trusted {
            self.ill.remove(&uuid);
        }
    }

    /// Writes what container runtimes read about devices, where that is ours to write.
    fn specify(&self) {
        let Some(specification) = &self.config.specification else { return };
        let Some(kind) = &self.config.plugin.answers.cdi_kind else { return };
        let text = cdi::specification(kind, &self.told, &specification.common);
        if let Err(error) = cdi::write(&specification.directory, &text) {
            warn!(directory = %specification.directory.display(), %error,
                  "cannot write what container runtimes read (spec.cdi.directory): containers with devices will \
                   not start; mount that directory of the host, writable");
        }
    }
}

/// Other devices, with GPUs that were there and are no longer: a GPU that falls off its bus is ill, and whoever
/// holds it still does. Their UUIDs come with it.
fn with_lost(old: &Inventory, new: Inventory) -> (Inventory, Vec<String>) {
    let there: BTreeSet<&str> = new.gpus().iter().map(|gpu| gpu.uuid.as_str()).collect();
    let lost: Vec<&OfferedGpu> =
        old.gpus().iter().filter(|gpu| !there.contains(gpu.uuid.as_str())).collect();
    if lost.is_empty() {
        return (new, Vec::new());
    }
    let mut gpus: Vec<OfferedGpu> = new.gpus().to_vec();
    let mut devices: Vec<Device> = new.devices().to_vec();
    let mut uuids = Vec::new();
    for gpu in lost {
        // Drivers may have given its number to another.
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
        // What is left of the distances would be told of others.
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
            warn!(%error, "GPUs that are gone cannot be kept on the list");
            (new, Vec::new())
        }
    }
}

//! MIG slices that are claimed (Dynamic Resource Allocation): the engine places pods whose claims name a
//! profile, on nodes of eight GPUs whose slices are made when they are given.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::{Engine, Profile as SchedulerProfile};
use berth_model::dra::pod::{ClaimSource, PodClaim};
use berth_model::mig::{Board, Profile};
use berth_model::node::Node;
use berth_model::spec::{PodObject, PodSpec};
use berth_testkit::claims::{of_profile, published_slices, slice_claim, slice_class, slice_of};
use berth_testkit::cluster::{pending, resources, template};

const GPUS_PER_NODE: usize = 8;

/// A cluster whose slices are claimed.
pub(super) struct Claims {
    engine: Engine,
    spec: Arc<PodSpec>,
    profiles: Vec<&'static Profile>,
    /// By the number of the request that holds it.
    live: BTreeMap<(usize, u8), u64>,
    next: u64,
}

impl Claims {
    pub(super) fn new(
        profile: SchedulerProfile,
        board: &'static Board,
        gpus: usize,
        profiles: &[&'static Profile],
    ) -> Result<Self> {
        let mut engine = Engine::new(profile);
        engine.apply(Event::DeviceClass(slice_class()));
        for first in (0..gpus).step_by(GPUS_PER_NODE) {
            let name: Arc<str> = format!("node-{first:04}").into();
            let allocatable = resources(&[("cpu", "256"), ("memory", "2Ti"), ("pods", "250")]);
            let allocatable =
                allocatable.map_err(|error| anyhow::anyhow!("cannot build a node: {error}"))?;
            engine.apply(Event::Node(Node { name: name.clone(), allocatable, ..Node::default() }));
            let last = gpus.min(first + GPUS_PER_NODE);
            for slice in published_slices(&name, board, first..last, profiles) {
                engine.apply(Event::DeviceSlice(slice));
            }
        }
        let spec = template("claiming", 0, &[("cpu", "1"), ("memory", "1Gi")]);
        let spec = spec.map_err(|error| anyhow::anyhow!("cannot build a pod: {error}"))?;
        let profiles = profiles.to_vec();
        Ok(Self { engine, spec: Arc::new(spec), profiles, live: BTreeMap::new(), next: 0 })
    }

    /// The GPU and start that a request gets.
    pub(super) fn place(&mut self, profile: usize) -> Result<Option<(usize, u8)>> {
        let number = self.next;
        self.next += 1;
        let selector = of_profile(&self.profiles[profile].to_string());
        let claim = slice_claim(&self.spec.namespace, &claim_name(number), &selector);
        let source = ClaimSource::Named(claim.name.clone());
        let claims = [PodClaim { name: "slice".into(), source }].into();
        let pod = PodObject { claims, ..pending(&self.spec, number) };
        self.engine.apply(Event::DeviceClaim(claim));
        self.engine.apply(Event::Pod(pod));
        let Some(Decision::Bind(binding)) = self.engine.decide(0) else {
            self.forget(number);
            return Ok(None);
        };
        let devices = binding.devices.context("a binding without devices")?;
        let device = devices.allocations.iter().flat_map(|(_, one)| &one.devices).next();
        let device = &device.context("an allocation without a device")?.id.device;
        let (gpu, _, start) = slice_of(device).context("a device that is no slice")?;
        let place = (gpu, start);
        self.live.insert(place, number);
        Ok(Some(place))
    }

    pub(super) fn release(&mut self, gpu: usize, start: u8) -> Result<()> {
        let number = self.live.remove(&(gpu, start)).context("nothing to release")?;
        self.forget(number);
        Ok(())
    }

    fn forget(&mut self, number: u64) {
        let (pod, claim) = (pending(&self.spec, number).uid, claim_name(number));
        self.engine.apply(Event::PodGone(pod));
        self.engine.apply(Event::DeviceClaimGone(self.spec.namespace.clone(), claim));
    }
}

fn claim_name(number: u64) -> Arc<str> {
    format!("claim-{number:08}").into()
}

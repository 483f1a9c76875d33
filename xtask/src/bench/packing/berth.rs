//! Berth itself: the engine, told of nodes and pods as any cluster would tell it.
//!
//! Owns the way there and back: machines become nodes whose GPUs are divided on demand, pods ask for
//! whole GPUs or for a part of one, and decisions become places. The engine numbers the GPUs that it
//! divides; which of a node's GPUs that is, is settled here, as a node agent would.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use berth_engine::decision::{Binding, Decision};
use berth_engine::event::Event;
use berth_engine::{Engine, Profile};
use berth_model::affinity::NodeTerm;
use berth_model::label::{Operator, Requirement};
use berth_model::node::Node;
use berth_model::spec::{GpuNeed, PodSpec};
use berth_packing::node::GpuPositions;
use berth_packing::request::{GpuRequest, Models, Request};
use berth_testkit::cluster::{GPU, pending, resources, template};

use super::scheduler::{Placement, PodIx, Scheduler};
use super::trace::Cluster;

const PRODUCT: &str = "nvidia.com/gpu.product";

/// What nodes say of the memory of each GPU, in MiB. The traces do not say; pods ask for compute.
const GPU_MEMORY: (&str, &str) = ("nvidia.com/gpu.memory", "16384");

/// The engine and what it must not be asked.
pub(crate) struct Berth {
    engine: Engine,
    names: BTreeMap<Arc<str>, usize>,
    /// What each GPU of each node is used for.
    uses: Vec<Vec<Use>>,
    held: BTreeMap<PodIx, (Request, Placement)>,
    specs: BTreeMap<Request, Arc<PodSpec>>,
    models: usize,
}

/// What a GPU is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Nothing,
    Whole,
    /// Divided, under the engine's number, into so many shares.
    Divided(u16, u32),
}

impl Berth {
    pub(crate) fn new(cluster: &Cluster) -> Result<Self> {
        let mut engine = Engine::new(Profile::Berth);
        let mut names = BTreeMap::new();
        let mut models = 0;
        for (at, machine) in cluster.machines.iter().enumerate() {
            let cpu = format!("{}m", machine.cpu_milli);
            let (memory, gpus) = (machine.memory_bytes.to_string(), machine.gpus.to_string());
            let listed = [("cpu", &*cpu), ("memory", &memory), ("pods", "100000"), (GPU, &gpus)];
            let allocatable = resources(&listed).map_err(|error| anyhow!("{error}"))?;
            let name: Arc<str> = format!("node-{at:05}").into();
            let mut node = Node { name: name.clone(), allocatable, ..Node::default() };
            node.labels.insert(PRODUCT, model_name(machine.model.into()));
            node.labels.insert(GPU_MEMORY.0, GPU_MEMORY.1);
            node.labels.insert("berth.dev/gpu-division", "shares");
            engine.apply(Event::Node(node));
            names.insert(name, at);
            models = models.max(usize::from(machine.model) + 1);
        }
        let uses = cluster.machines.iter().map(|one| vec![Use::Nothing; one.gpus.into()]).collect();
        let (held, specs) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { engine, names, uses, held, specs, models })
    }

    /// The template of pods that ask for this.
    fn spec(&mut self, request: &Request) -> Result<Arc<PodSpec>> {
        if let Some(spec) = self.specs.get(request) {
            return Ok(spec.clone());
        }
        let cpu = format!("{}m", request.cpu_milli);
        let memory = request.memory_bytes.to_string();
        let gpus = request.gpus.count().to_string();
        let mut limits = vec![("cpu", &*cpu), ("memory", &*memory)];
        if let GpuRequest::Whole(_) = request.gpus {
            limits.push((GPU, &gpus));
        }
        let mut spec = template("openb", 0, &limits).map_err(|error| anyhow!("{error}"))?;
        if let GpuRequest::Share(part) = request.gpus {
            spec.gpu = Some(GpuNeed { memory_bytes: 0, compute_milli: part.compute_milli });
        }
        if request.models != Models::ANY && request.gpus != GpuRequest::None {
            let allowed = (0..self.models)
                .filter(|model| u8::try_from(*model).is_ok_and(|one| request.models.contains(one)));
            let values = allowed.map(|model| model_name(model).into()).collect();
            let labels = vec![Requirement { key: PRODUCT.into(), operator: Operator::In(values) }];
            let term = NodeTerm { labels, name: Vec::new() };
            spec.node_affinity.required = Some(vec![term]);
        }
        let spec = Arc::new(spec);
        self.specs.insert(*request, spec.clone());
        Ok(spec)
    }

    /// Which GPUs of its node a pod gets.
    fn settle(&mut self, request: &Request, binding: &Binding) -> Result<Placement> {
        let node = *self.names.get(&binding.node).context("bound to an unknown node")?;
        let uses = self.uses.get_mut(node).context("bound to an unknown node")?;
        let mut gpus = GpuPositions::new();
        match request.gpus {
            GpuRequest::None => {}
            GpuRequest::Whole(count) => {
                let free = (0..).zip(uses.iter_mut()).filter(|(_, one)| **one == Use::Nothing);
                for (at, one) in free.take(count.into()) {
                    *one = Use::Whole;
                    gpus.push(at);
                }
            }
            GpuRequest::Share(_) => {
                let number = binding.gpu_grant.as_ref().and_then(|grant| grant.gpu);
                let number = number.context("a share of no GPU")?;
                let is = |one: &Use| matches!(one, Use::Divided(other, _) if *other == number);
                let at = uses.iter().position(is);
                let at = at.or_else(|| uses.iter().position(|one| *one == Use::Nothing));
                let at = at.context("a share of a GPU that is not there")?;
                let shares = match uses.get(at) {
                    Some(Use::Divided(_, shares)) => shares + 1,
                    _ => 1,
                };
                uses[at] = Use::Divided(number, shares);
                gpus.push(u16::try_from(at)?);
            }
        }
        Ok(Placement { node, gpus })
    }
}

impl Scheduler for Berth {
    fn arrive(&mut self, pod: PodIx, request: &Request) -> Result<Option<Placement>> {
        let object = pending(&self.spec(request)?, pod.0);
        let uid = object.uid.clone();
        self.engine.apply(Event::Pod(object));
        match self.engine.decide(0) {
            Some(Decision::Bind(binding)) if binding.pod == uid => {
                let placement = self.settle(request, &binding)?;
                self.held.insert(pod, (*request, placement.clone()));
                Ok(Some(placement))
            }
            Some(Decision::Wait { pod }) if pod == uid => {
                self.engine.apply(Event::PodGone(uid));
                Ok(None)
            }
            other => bail!("{uid}: decided {other:?}"),
        }
    }

    fn depart(&mut self, pod: PodIx) -> Result<()> {
        let (request, placement) = self.held.remove(&pod).context("departs without a place")?;
        let uses = self.uses.get_mut(placement.node).context("no such node")?;
        for at in placement.gpus {
            let one = uses.get_mut(usize::from(at)).context("no such GPU")?;
            *one = match (*one, request.gpus) {
                (Use::Divided(number, shares @ 2..), GpuRequest::Share(_)) => {
                    Use::Divided(number, shares - 1)
                }
                _ => Use::Nothing,
            };
        }
        let object = pending(&self.spec(&request)?, pod.0);
        self.engine.apply(Event::PodGone(object.uid));
        Ok(())
    }
}

fn model_name(model: usize) -> String {
    format!("model-{model:02}")
}

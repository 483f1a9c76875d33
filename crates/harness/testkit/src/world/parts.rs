//! Parts of GPUs that are made when they are given: shares of GPUs that are divided on demand, and MIG
//! slices that pods claim as devices.
//!
//! Owns small worlds of nothing else, and books that count thousandths, bytes and memory units. A
//! part is never given twice, nobody waits who could have one, and trying things out leaves no trace.
//! Must share nothing with the engine but its vocabulary.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::decision::{Binding, Decision};
use berth_engine::event::Event;
use berth_engine::{Config, Engine};
use berth_model::dra::claim::Claim;
use berth_model::dra::pod::{ClaimSource, PodClaim};
use berth_model::mig::Board;
use berth_model::node::Node;
use berth_model::spec::{GpuNeed, PodObject};

use super::happening::Size;
use crate::claims::{of_profile, published_slices, slice_claim, slice_class, slice_of};
use crate::cluster::{BuildError, Dice, GPU, pending, resources, template};

const NAMESPACE: &str = "serving";

/// The memory of a GPU that is divided into shares.
const GPU_BYTES: u64 = 80 << 30;

/// Profiles that are claimed: how many memory units each has, and where it may start.
const PROFILES: [(&str, u32, &[u32]); 5] = [
    ("1g.10gb", 1, &[0, 1, 2, 3, 4, 5, 6]),
    ("2g.20gb", 2, &[0, 2, 4]),
    ("3g.40gb", 4, &[0, 4]),
    ("4g.40gb", 4, &[0]),
    ("7g.80gb", 8, &[0]),
];

/// What a node's GPUs are given as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offered {
    /// Shares, or whole.
    Shares,
    /// Claimed slices.
    Slices,
}

/// What a pod asks for.
#[derive(Clone, Copy, Debug)]
enum Ask {
    /// Thousandths of the compute and bytes of the memory of one GPU.
    Share(u64, u64),
    Wholes(usize),
    /// Which of [`PROFILES`].
    Slice(usize),
}

/// What a pod has of its node's GPUs.
#[derive(Clone, Debug)]
enum Held {
    Share(usize, u64, u64),
    Wholes(usize),
    /// Units of a GPU, as bits.
    Slice(usize, u32),
}

/// A pod of such a world.
#[derive(Clone, Debug)]
struct Pod {
    object: PodObject,
    ask: Ask,
    /// Its node and what it has there, and whether the engine knows that it came to be.
    held: Option<(Arc<str>, Held)>,
    binding: Option<Binding>,
}

/// How the engine gives parts of GPUs wrongly in the world of a seed, if it does.
pub fn gives_parts_wrongly(
    seed: u64,
    size: Size,
    config: Config,
) -> Result<Option<String>, BuildError> {
    let mut world = World::new(seed, size)?;
    let (mut engine, mut plain) = (Engine::new(config), Engine::new(config));
    for number in 0..size.rounds {
        let wrong = |what: String| Ok(Some(format!("seed {seed}, round {number}: {what}")));
        let acts = world.round()?;
        // What would happen otherwise is tried out first.
        let checkpoint = engine.checkpoint();
        let mut other = world.clone();
        other.dice = Dice::new(seed ^ number as u64);
        for events in [other.round()?, other.round()?] {
            events.into_iter().for_each(|act| act.tell(&mut engine));
            while engine.decide(0).is_some() {}
        }
        engine.rollback(checkpoint);
        for act in acts {
            act.clone().tell(&mut plain);
            act.tell(&mut engine);
        }
        loop {
            let (decision, expected) = (engine.decide(0), plain.decide(0));
            if decision != expected {
                return wrong(format!("{decision:?} after a trial, {expected:?} without"));
            }
            let broken = match &decision {
                Some(Decision::Bind(binding)) => world.bound(binding).err(),
                Some(Decision::Wait { .. }) => None,
                Some(other) => Some(format!("{other:?}")),
                None => break,
            };
            if let Some(what) = broken {
                return wrong(what);
            }
        }
        if let Some(what) = world.waits_in_vain() {
            return wrong(what);
        }
    }
    Ok(None)
}

/// What an engine is told.
#[derive(Clone, Debug)]
enum Act {
    Tell(Box<Event>),
    Undo(Arc<str>),
}

impl Act {
    fn tell(self, engine: &mut Engine) {
        match self {
            Self::Tell(event) => engine.apply(*event),
            Self::Undo(uid) => engine.undo(&uid),
        }
    }
}

/// Nodes with GPUs, and pods.
#[derive(Clone, Debug)]
struct World {
    dice: Dice,
    nodes: BTreeMap<Arc<str>, (Offered, usize)>,
    pods: BTreeMap<Arc<str>, Pod>,
    acts: Vec<Act>,
    numbered: u64,
}

impl World {
    fn new(seed: u64, size: Size) -> Result<Self, BuildError> {
        let (dice, acts) = (Dice::new(seed), Vec::new());
        let (nodes, pods) = (BTreeMap::new(), BTreeMap::new());
        let mut world = Self { dice, nodes, pods, acts, numbered: 0 };
        world.tell(Event::DeviceClass(slice_class()));
        for number in 0..2 + world.dice.below(size.nodes) {
            let name: Arc<str> = format!("node-{number:02}").into();
            let given = [Offered::Shares, Offered::Slices][world.dice.below(2)];
            let gpus = 1 + world.dice.below(3);
            world.add_node(&name, given, gpus)?;
            world.nodes.insert(name, (given, gpus));
        }
        Ok(world)
    }

    fn tell(&mut self, event: Event) {
        self.acts.push(Act::Tell(Box::new(event)));
    }

    fn add_node(&mut self, name: &Arc<str>, given: Offered, gpus: usize) -> Result<(), BuildError> {
        let mut listed = vec![("cpu", "500"), ("memory", "900Gi"), ("pods", "500")];
        let count = gpus.to_string();
        if given == Offered::Shares {
            listed.push((GPU, &count));
        }
        let allocatable = resources(&listed)?;
        let mut node = Node { name: name.clone(), allocatable, ..Node::default() };
        if given == Offered::Shares {
            node.labels.insert("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB");
            node.labels.insert("nvidia.com/gpu.memory", (GPU_BYTES >> 20).to_string());
            node.labels.insert("berth.dev/gpu-division", "shares");
        } else {
            let board = Board::by_product("NVIDIA-A100-SXM4-80GB", None)?;
            let profiles = PROFILES.iter().map(|(name, ..)| board.profile(name));
            let profiles = profiles.collect::<Result<Vec<_>, _>>()?;
            let published = published_slices(name, board, 0..gpus, &profiles);
            published.into_iter().for_each(|one| self.tell(Event::DeviceSlice(one)));
        }
        self.tell(Event::Node(node));
        Ok(())
    }

    /// What happens next.
    fn round(&mut self) -> Result<Vec<Act>, BuildError> {
        let uids: Vec<Arc<str>> = self.pods.keys().cloned().collect();
        for uid in uids {
            match self.dice.below(12) {
                0 | 1 => self.leave(&uid),
                2 => self.fail(&uid),
                3..=6 => self.confirm(&uid),
                _ => {}
            }
        }
        for _ in 0..self.dice.below(5) {
            self.arrive()?;
        }
        Ok(std::mem::take(&mut self.acts))
    }

    fn arrive(&mut self) -> Result<(), BuildError> {
        self.numbered += 1;
        let mut spec = template("part", 0, &[("cpu", "1"), ("memory", "1Gi")])?;
        let mut claims: Arc<[PodClaim]> = Arc::default();
        let ask = match self.dice.below(5) {
            0 => {
                let gpus = 1 + self.dice.below(2);
                let limits = [("cpu", "1"), ("memory", "1Gi"), (GPU, &*gpus.to_string())];
                spec = template("whole", 0, &limits)?;
                Ask::Wholes(gpus)
            }
            1 | 2 => {
                let compute_milli = [0, 100, 250, 500, 900][self.dice.below(5)];
                let gib = [0, 5, 20, 40, 75][self.dice.below(5)].max(u64::from(compute_milli == 0));
                let memory_bytes = gib << 30;
                spec.gpu = Some(GpuNeed { memory_bytes, compute_milli });
                share(memory_bytes, compute_milli.into())
            }
            _ => {
                let profile = self.dice.below(PROFILES.len());
                let claim = claim(self.numbered, profile);
                let source = ClaimSource::Named(claim.name.clone());
                claims = [PodClaim { name: "slice".into(), source }].into();
                self.tell(Event::DeviceClaim(claim));
                Ask::Slice(profile)
            }
        };
        let object = PodObject { claims, ..pending(&Arc::new(spec), self.numbered) };
        self.tell(Event::Pod(object.clone()));
        self.pods.insert(object.uid.clone(), Pod { object, ask, held: None, binding: None });
        Ok(())
    }

    fn leave(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.pods.remove(uid) else { return };
        self.tell(Event::PodGone(uid.clone()));
        if let Some(PodClaim { source: ClaimSource::Named(name), .. }) = pod.object.claims.first() {
            self.tell(Event::DeviceClaimGone(NAMESPACE.into(), name.clone()));
        }
    }

    /// A binding could not be carried out.
    fn fail(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        if pod.binding.take().is_some() {
            pod.held = None;
            self.acts.push(Act::Undo(uid.clone()));
        }
    }

    /// A binding was carried out, and its claim tells of the devices.
    fn confirm(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        let Some(binding) = pod.binding.take() else { return };
        pod.object.node = Some(binding.node.clone());
        pod.object.gpu_grant = binding.gpu_grant.clone();
        let (object, ask) = (pod.object.clone(), pod.ask);
        let number = object.created_at_ms as u64;
        let placement = binding.devices.into_iter().flat_map(|devices| devices.allocations);
        for (_, allocation) in placement {
            if let Ask::Slice(profile) = ask {
                let claim = claim(number, profile);
                self.tell(Event::DeviceClaim(Claim { allocation: Some(allocation), ..claim }));
            }
        }
        self.tell(Event::Pod(object));
    }

    /// Writes a decision down, unless it cannot be.
    fn bound(&mut self, binding: &Binding) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}: {binding:?}"));
        let Some((given, gpus)) = self.nodes.get(&binding.node).copied() else {
            return wrong("no such node");
        };
        let Some(pod) = self.pods.get(&binding.pod).filter(|pod| pod.held.is_none()) else {
            return wrong("no such pod waits");
        };
        let held = match (pod.ask, given) {
            (Ask::Wholes(count), Offered::Shares) => Held::Wholes(count),
            (Ask::Share(compute, bytes), Offered::Shares) => {
                match binding.gpu_grant.as_ref().and_then(|grant| grant.gpu) {
                    Some(gpu) if usize::from(gpu) < gpus => Held::Share(gpu.into(), compute, bytes),
                    _ => return wrong("no share of a GPU that there is"),
                }
            }
            (Ask::Slice(profile), Offered::Slices) => match given_slice(binding, profile) {
                Some((gpu, units)) => Held::Slice(gpu, units),
                None => return wrong("no such slice"),
            },
            _ => return wrong("the node has nothing of the kind"),
        };
        let books = self.on(&binding.node);
        if !books.holds(&held) {
            return wrong("it is given already");
        }
        if let Some(pod) = self.pods.get_mut(&binding.pod) {
            pod.held = Some((binding.node.clone(), held));
            pod.binding = Some(binding.clone());
        }
        Ok(())
    }

    fn on(&self, node: &Arc<str>) -> GpuBooks {
        let (_, gpus) = self.nodes[node];
        let mut books = GpuBooks { gpus: vec![(0, 0, 0); gpus], wholes: 0 };
        let held = self.pods.values().filter_map(|pod| pod.held.as_ref());
        held.filter(|(on, _)| on == node).for_each(|(_, held)| books.add(held));
        books
    }

    /// A pod that waits though there is what it asks for.
    fn waits_in_vain(&self) -> Option<String> {
        let waiting = self.pods.iter().filter(|(_, pod)| pod.held.is_none());
        let mut pairs = waiting.flat_map(|pod| self.nodes.iter().map(move |node| (pod, node)));
        let found = pairs.find(|((_, pod), (node, (given, gpus)))| {
            let books = self.on(node);
            let mut all = 0..*gpus;
            match (pod.ask, given) {
                (Ask::Wholes(count), Offered::Shares) => books.holds(&Held::Wholes(count)),
                (Ask::Share(compute, bytes), Offered::Shares) => {
                    all.any(|gpu| books.holds(&Held::Share(gpu, compute, bytes)))
                }
                (Ask::Slice(profile), Offered::Slices) => {
                    let (_, size, starts) = PROFILES[profile];
                    let units = |start: &u32| ((1 << size) - 1) << start;
                    let mut starts = starts.iter();
                    starts.any(|start| {
                        (0..*gpus).any(|gpu| books.holds(&Held::Slice(gpu, units(start))))
                    })
                }
                _ => false,
            }
        });
        found.map(|((uid, pod), (node, _))| format!("{uid} ({:?}) waits, not on {node}", pod.ask))
    }
}

/// What is given of a node's GPUs.
struct GpuBooks {
    /// By number: thousandths, bytes, and units as bits.
    gpus: Vec<(u64, u64, u32)>,
    wholes: usize,
}

impl GpuBooks {
    fn add(&mut self, held: &Held) {
        match held {
            Held::Wholes(count) => self.wholes += count,
            Held::Share(gpu, compute, bytes) => {
                self.gpus[*gpu].0 += compute;
                self.gpus[*gpu].1 += bytes;
            }
            Held::Slice(gpu, units) => self.gpus[*gpu].2 |= units,
        }
    }

    /// Whether there is still so much.
    fn holds(&self, held: &Held) -> bool {
        let divided = self.gpus.iter().filter(|(compute, bytes, _)| compute + bytes > 0).count();
        let free = self.gpus.len().checked_sub(self.wholes + divided);
        match held {
            Held::Wholes(count) => free.is_some_and(|free| free >= *count),
            Held::Share(gpu, compute, bytes) => {
                let (given, given_bytes, _) = self.gpus[*gpu];
                let open = given + given_bytes > 0 || free.is_some_and(|free| free > 0);
                open && given + compute <= 1_000 && given_bytes + bytes <= GPU_BYTES
            }
            Held::Slice(gpu, units) => self.gpus[*gpu].2 & units == 0,
        }
    }
}

/// A share: whoever does not say how much compute gets as much as of the memory, and the other way.
fn share(memory_bytes: u64, compute_milli: u64) -> Ask {
    let compute = match compute_milli {
        0 => (memory_bytes * 1_000).div_ceil(GPU_BYTES),
        said => said,
    };
    let bytes = match memory_bytes {
        0 => GPU_BYTES / 1_000 * compute_milli + GPU_BYTES % 1_000 * compute_milli / 1_000,
        said => said,
    };
    Ask::Share(compute, bytes)
}

fn claim(number: u64, profile: usize) -> Claim {
    let selector = of_profile(PROFILES[profile].0);
    slice_claim(&NAMESPACE.into(), &format!("claim-{number}"), &selector)
}

/// The GPU of the device that a claim is given, and the units it covers.
fn given_slice(binding: &Binding, profile: usize) -> Option<(usize, u32)> {
    let (_, allocation) = binding.devices.as_ref()?.allocations.first()?;
    let [given] = allocation.devices.as_slice() else { return None };
    let (name, size, starts) = PROFILES[profile];
    let (gpu, kind, start) = slice_of(&given.id.device)?;
    let start = u32::from(start);
    let right = kind == name.replace('.', "") && starts.contains(&start);
    (right && given.id.pool == binding.node).then_some((gpu, ((1 << size) - 1) << start))
}

//! Arbitrary worlds: what happens to a small cluster, round by round.
//!
//! Owns the truth that an engine is told about: objects come, change and go, decisions are carried
//! out or fail, news arrives late. The same seed and the same decisions give the same events. Must
//! not judge decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::decision::{Binding, Decision};
use berth_engine::event::Event;
use berth_model::gang::Gang;
use berth_model::label::{Labels, Selector};
use berth_model::policy::{DisruptionBudget, Namespace};
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::ResourceName;
use berth_model::spec::{Deletion, Phase, PodObject, PodSpec};

use super::hardware::{self, Hardware, RACK};
use super::policy::Policy;
use super::tenancy;
use super::workload::{self, NAMESPACES};
use crate::cluster::{BuildError, Dice, GPU, ZONE, pending};

/// What an engine is told.
#[derive(Clone, Debug)]
pub enum Act {
    /// Something is so.
    Tell(Box<Event>),
    /// The last decision about this pod could not be carried out.
    Undo(Arc<str>),
}

/// What happens before decisions are asked for, and how many of them.
#[derive(Clone, Debug)]
pub struct Round {
    /// The time.
    pub now_ms: i64,
    /// What happens.
    pub acts: Vec<Act>,
    /// How many decisions at most are asked for.
    pub decisions_max: usize,
}

/// A pod as it truly is.
#[derive(Clone, Debug)]
struct Life {
    object: PodObject,
    /// Whether the engine has not been told yet that its binding was carried out.
    unconfirmed: bool,
    evicted: bool,
}

/// How large a world is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// At most so many nodes at the start.
    pub nodes: usize,
    /// So many rounds.
    pub rounds: usize,
}

/// Worlds of this seed and of all above it have teams and quotas.
pub const TENANTS_FROM: u64 = 1 << 40;

/// A cluster and what happens to it.
#[derive(Clone, Debug)]
pub struct World {
    dice: Dice,
    now_ms: i64,
    nodes: BTreeMap<Arc<str>, Hardware>,
    /// Nodes that went and may come back.
    away: Vec<Hardware>,
    templates: Vec<Arc<PodSpec>>,
    pods: BTreeMap<Arc<str>, Life>,
    budgets: BTreeMap<Arc<str>, DisruptionBudget>,
    /// Whether there are teams and quotas.
    tenants: bool,
    numbered: u64,
    acts: Vec<Act>,
    policy: Policy,
}

impl World {
    /// The world of a seed, and what is the case at its beginning.
    pub fn new(seed: u64, size: Size) -> Result<(Self, Round), BuildError> {
        let mut world = Self {
            dice: Dice::new(seed),
            now_ms: 1_000_000,
            nodes: BTreeMap::new(),
            away: Vec::new(),
            templates: Vec::new(),
            pods: BTreeMap::new(),
            budgets: BTreeMap::new(),
            tenants: seed >= TENANTS_FROM,
            numbered: 0,
            acts: Vec::new(),
            policy: Policy::new(seed),
        };
        for name in &NAMESPACES[..2] {
            world.label_namespace(name);
        }
        for _ in 0..2 + world.dice.below(size.nodes.saturating_sub(1)) {
            world.add_node()?;
        }
        for number in 0..4 + world.dice.below(5) {
            world.add_template(number)?;
        }
        for _ in 0..if world.tenants { 4 } else { 0 } {
            world.change_tenancy()?;
        }
        for _ in 0..4 {
            world.say()?;
        }
        for _ in 0..world.dice.below(6) {
            world.bind_elsewhere(None);
        }
        world.arrive();
        let decisions_max = world.decisions_max();
        let round =
            Round { now_ms: world.now_ms, acts: std::mem::take(&mut world.acts), decisions_max };
        Ok((world, round))
    }

    /// The same world, in which other things will happen.
    pub fn fork(&self, seed: u64) -> Self {
        Self { dice: Dice::new(seed), policy: self.policy.fork(seed), ..self.clone() }
    }

    /// What happens next.
    pub fn round(&mut self) -> Result<Round, BuildError> {
        self.now_ms += [1, 1_000, 60_000, 700_000][self.dice.below(4)];
        self.follow_up();
        for _ in 0..=self.dice.below(3) {
            self.happen()?;
        }
        self.say()?;
        let acts = std::mem::take(&mut self.acts);
        Ok(Round { now_ms: self.now_ms, acts, decisions_max: self.decisions_max() })
    }

    fn decisions_max(&mut self) -> usize {
        if self.dice.below(4) == 0 { 1 + self.dice.below(3) } else { usize::MAX }
    }

    /// A decision is carried out.
    pub fn decided(&mut self, decision: &Decision) {
        match decision {
            Decision::Bind(binding) => self.bound(binding),
            Decision::BindAll(all) => all.bindings.iter().for_each(|one| self.bound(one)),
            Decision::Reserve(reserving) => {
                self.evicted(&reserving.victims);
                for (pod, node) in &reserving.places {
                    if let Some(life) = self.pods.get_mut(pod) {
                        life.object.nominated = Some(node.clone());
                    }
                }
            }
            Decision::Disband(disbanding) => self.evicted(&disbanding.pods),
            Decision::Preempt(preempting) => {
                self.evicted(&preempting.victims);
                if let Some(life) = self.pods.get_mut(&preempting.pod) {
                    life.object.nominated = Some(preempting.node.clone());
                }
            }
            Decision::Hold { .. } | Decision::Wait { .. } => {}
        }
    }

    fn bound(&mut self, binding: &Binding) {
        let now_ms = self.tick();
        if let Some(life) = self.pods.get_mut(&binding.pod) {
            life.object.node = Some(binding.node.clone());
            life.object.gpu_grant = binding.gpu_grant.clone();
            // Its kubelet sees it before anybody tells.
            life.object.started_at_ms = Some(now_ms);
            life.unconfirmed = true;
        }
    }

    fn evicted(&mut self, pods: &[Arc<str>]) {
        for uid in pods {
            if let Some(life) = self.pods.get_mut(uid) {
                life.evicted = true;
            }
        }
    }

    fn tell(&mut self, event: Event) {
        self.acts.push(Act::Tell(Box::new(event)));
    }

    fn tell_pod(&mut self, uid: &Arc<str>) {
        if let Some(life) = self.pods.get_mut(uid) {
            life.unconfirmed &= life.object.node.is_none();
            let object = life.object.clone();
            self.tell(Event::Pod(object));
        }
    }

    /// One of the pods for which something holds.
    fn some_pod(&mut self, wanted: impl Fn(&Life) -> bool) -> Option<Arc<str>> {
        let of: Vec<&Arc<str>> =
            self.pods.iter().filter(|(_, life)| wanted(life)).map(|(uid, _)| uid).collect();
        of.get(self.dice.below(of.len())).map(|uid| Arc::clone(uid))
    }

    fn some_node(&mut self) -> Option<Arc<str>> {
        let at = self.dice.below(self.nodes.len());
        self.nodes.keys().nth(at).cloned()
    }

    /// What decisions of earlier rounds lead to: news of them, late news, failures, evictions.
    fn follow_up(&mut self) {
        let unconfirmed: Vec<Arc<str>> = self.uids(|life| life.unconfirmed);
        for uid in unconfirmed {
            match self.dice.below(10) {
                0 => self.tell_late(&uid),
                1 => self.fail(&uid),
                2..=6 => self.tell_pod(&uid),
                _ => {}
            }
        }
        let evicted: Vec<Arc<str>> = self.uids(|life| life.evicted);
        for uid in evicted {
            match self.dice.below(4) {
                0 => {}
                1 => {
                    if let Some(life) = self.pods.get_mut(&uid) {
                        life.object.phase = Phase::Terminating { by_preemption: true };
                        // Without dice of its own, so that worlds stay as they were.
                        let grace_ms = [30_000, 1_000, 3_600_000][(self.now_ms % 3) as usize];
                        let requested_at_ms = self.now_ms;
                        life.object.deletion = Some(Deletion { requested_at_ms, grace_ms });
                    }
                    self.tell_pod(&uid);
                }
                _ => {
                    let spec = self.pods.get(&uid).map(|life| life.object.spec.clone());
                    self.leave(&uid);
                    if let Some(spec) = spec.filter(|spec| spec.controller.is_some()) {
                        self.create(spec);
                    }
                }
            }
        }
    }

    fn uids(&self, wanted: impl Fn(&Life) -> bool) -> Vec<Arc<str>> {
        self.pods.iter().filter(|(_, life)| wanted(life)).map(|(uid, _)| uid.clone()).collect()
    }

    /// A moment later, so that what starts one after the other has different times.
    fn tick(&mut self) -> i64 {
        self.now_ms += 1;
        self.now_ms
    }

    /// The pod as it was before it was bound.
    fn tell_late(&mut self, uid: &Arc<str>) {
        let Some(life) = self.pods.get(uid) else { return };
        let before =
            PodObject { node: None, gpu_grant: None, started_at_ms: None, ..life.object.clone() };
        self.tell(Event::Pod(before));
    }

    fn fail(&mut self, uid: &Arc<str>) {
        let Some(life) = self.pods.get_mut(uid) else { return };
        life.unconfirmed = false;
        (life.object.node, life.object.gpu_grant) = (None, None);
        life.object.started_at_ms = None;
        self.acts.push(Act::Undo(uid.clone()));
    }

    /// Something arbitrary.
    fn happen(&mut self) -> Result<(), BuildError> {
        if self.tenants && self.dice.below(8) == 0 {
            return self.change_tenancy();
        }
        match self.dice.below(43) {
            0..=13 => self.arrive(),
            14..=18 => {
                let uid = self.some_pod(|life| life.object.node.is_some());
                uid.into_iter().for_each(|uid| self.end(&uid));
            }
            19 => {
                let uid = self.some_pod(|life| life.object.node.is_none());
                uid.into_iter().for_each(|uid| self.end(&uid));
            }
            20 => self.add_node()?,
            21 => self.remove_node(),
            22 => self.return_node(),
            23 | 24 => self.resize_node(),
            25 | 26 => self.relabel_node(),
            27 => self.change_node(|dice, node| node.unschedulable = dice.below(2) == 0),
            28 => self.change_node(|dice, node| node.taints = hardware::taints(dice)),
            29 | 30 => self.tell_topology(),
            31 | 32 => self.change_budget(),
            33 => self.bind_elsewhere(None),
            34 => {
                let uid = self.some_pod(|life| life.object.node.is_none());
                self.bind_elsewhere(uid);
            }
            35 => self.relabel_pod(),
            36 => self.open_gate(),
            37 => {
                let name = NAMESPACES[self.dice.below(3)];
                self.label_namespace(name);
            }
            38 => {
                self.add_template(self.templates.len())?;
            }
            39 | 40 => self.change_gang(),
            41 => self.regang_pod(),
            _ => self.repeat(),
        }
        Ok(())
    }

    fn add_template(&mut self, number: usize) -> Result<(), BuildError> {
        let mut spec = workload::arbitrary(&mut self.dice, number)?;
        if self.tenants {
            tenancy::claim(&mut self.dice, &mut spec);
        }
        self.policy.classify(&mut spec);
        self.templates.push(Arc::new(spec));
        Ok(())
    }

    fn change_tenancy(&mut self) -> Result<(), BuildError> {
        let event = tenancy::arbitrary(&mut self.dice)?;
        self.tell(event);
        Ok(())
    }

    /// Operators say something about classes of work, now and then.
    fn say(&mut self) -> Result<(), BuildError> {
        if self.policy.speaks() {
            let event = self.policy.say()?;
            self.tell(event);
        }
        if self.policy.moves_a_node()
            && let Some((key, value)) = self.policy.pool_label()
            && let Some(hardware) = self.nodes.values_mut().next()
        {
            hardware.node.labels.insert(key, value);
            let node = hardware.node.clone();
            self.tell(Event::Node(node));
        }
        Ok(())
    }

    fn arrive(&mut self) {
        let at = self.dice.below(self.templates.len());
        for _ in 0..1 + self.dice.below(5) {
            self.create(self.templates[at].clone());
        }
    }

    /// A new pod that looks for its place.
    fn create(&mut self, spec: Arc<PodSpec>) -> Arc<str> {
        self.numbered += 1;
        // UIDs do not follow the order of creation.
        let scattered = self.numbered.wrapping_mul(0x9E37_79B9) % 10_000;
        let mut object = pending(&spec, self.numbered);
        object.uid = format!("uid-{scattered:04}-{}", self.numbered).into();
        object.created_at_ms = self.now_ms;
        let uid = object.uid.clone();
        self.tell(Event::Pod(object.clone()));
        self.pods.insert(uid.clone(), Life { object, unconfirmed: false, evicted: false });
        uid
    }

    fn leave(&mut self, uid: &Arc<str>) {
        self.pods.remove(uid);
        self.tell(Event::PodGone(uid.clone()));
    }

    /// A pod ends in one of the ways in which pods do.
    fn end(&mut self, uid: &Arc<str>) {
        let way = self.dice.below(4);
        let Some(life) = self.pods.get_mut(uid) else { return };
        match way {
            0 if life.object.phase == Phase::Alive => {
                life.object.phase = Phase::Terminating { by_preemption: false };
                self.tell_pod(uid);
            }
            1 => {
                life.object.phase = Phase::Finished;
                self.tell_pod(uid);
                self.pods.remove(uid);
            }
            _ => self.leave(uid),
        }
    }

    /// Somebody else binds a pod, wherever that is.
    fn bind_elsewhere(&mut self, uid: Option<Arc<str>>) {
        let Some(node) = self.some_node() else { return };
        let uid = match uid {
            Some(uid) => uid,
            None => {
                let at = self.dice.below(self.templates.len());
                let spec = PodSpec { gates: Vec::new(), ..(*self.templates[at]).clone() };
                self.create(Arc::new(spec))
            }
        };
        let now_ms = self.tick();
        let Some(life) = self.pods.get_mut(&uid) else { return };
        life.object.node = Some(node);
        life.object.started_at_ms = Some(now_ms);
        self.tell_pod(&uid);
    }

    fn relabel_pod(&mut self) {
        let Some(uid) = self.some_pod(|_| true) else { return };
        let tier = ["front", "back"][self.dice.below(2)];
        if let Some(life) = self.pods.get_mut(&uid) {
            let mut spec = (*life.object.spec).clone();
            spec.labels.insert("tier", tier);
            life.object.spec = Arc::new(spec);
        }
        self.tell_pod(&uid);
    }

    /// What a gang asks for is told anew by an object of its own, or there is none any more.
    fn change_gang(&mut self) {
        let at = self.dice.below(self.templates.len());
        let spec = self.templates[at].clone();
        let Some(gang) = &spec.gang else { return };
        let (namespace, name) = (spec.namespace.clone(), gang.name.clone());
        if self.dice.below(4) == 0 {
            return self.tell(Event::GangGone(namespace, name));
        }
        let terms = workload::gang_terms(&mut self.dice);
        self.tell(Event::Gang(Gang { namespace, name, terms }));
    }

    /// A pod says something else about its gang, or leaves it.
    fn regang_pod(&mut self) {
        let Some(uid) = self.some_pod(|life| life.object.spec.gang.is_some()) else { return };
        let terms = workload::gang_terms(&mut self.dice);
        let leaves = self.dice.below(3) == 0;
        if let Some(life) = self.pods.get_mut(&uid) {
            let mut spec = (*life.object.spec).clone();
            match &mut spec.gang {
                Some(gang) if !leaves => gang.terms = Some(terms),
                gang => *gang = None,
            }
            life.object.spec = Arc::new(spec);
        }
        self.tell_pod(&uid);
    }

    fn open_gate(&mut self) {
        let Some(uid) = self.some_pod(|life| !life.object.spec.gates.is_empty()) else { return };
        if let Some(life) = self.pods.get_mut(&uid) {
            let spec = PodSpec { gates: Vec::new(), ..(*life.object.spec).clone() };
            life.object.spec = Arc::new(spec);
        }
        self.tell_pod(&uid);
    }

    /// Something that is known already is told again.
    fn repeat(&mut self) {
        if self.dice.below(2) == 0 {
            let pod = self.some_pod(|life| !life.unconfirmed);
            pod.into_iter().for_each(|uid| self.tell_pod(&uid));
        } else if let Some(name) = self.some_node() {
            let Hardware { node, topology } = self.nodes[&name].clone();
            self.tell(Event::Node(node));
            self.tell(Event::Topology { node: name, topology });
        }
    }

    fn add_node(&mut self) -> Result<(), BuildError> {
        self.numbered += 1;
        let mut hardware = hardware::arbitrary(&mut self.dice, self.numbered as usize)?;
        if let Some((key, value)) = self.policy.pool_label() {
            hardware.node.labels.insert(key, value);
        }
        self.come(hardware);
        Ok(())
    }

    fn come(&mut self, hardware: Hardware) {
        let Hardware { node, topology } = hardware.clone();
        let name = node.name.clone();
        self.tell(Event::Node(node));
        if topology.is_some() {
            self.tell(Event::Topology { node: name.clone(), topology });
        }
        self.nodes.insert(name, hardware);
    }

    fn remove_node(&mut self) {
        let Some(name) = self.some_node().filter(|_| self.nodes.len() > 1) else { return };
        self.away.extend(self.nodes.remove(&name));
        self.tell(Event::NodeGone(name.clone()));
        if self.dice.below(2) == 0 {
            let pods = self.uids(|life| life.object.node.as_ref() == Some(&name));
            pods.into_iter().for_each(|uid| self.leave(&uid));
        }
    }

    fn return_node(&mut self) {
        if !self.away.is_empty() {
            let at = self.dice.below(self.away.len());
            let hardware = self.away.swap_remove(at);
            self.come(hardware);
        }
    }

    fn change_node(&mut self, change: impl FnOnce(&mut Dice, &mut berth_model::node::Node)) {
        let Some(name) = self.some_node() else { return };
        let mut dice = self.dice.clone();
        let Some(hardware) = self.nodes.get_mut(&name) else { return };
        change(&mut dice, &mut hardware.node);
        self.dice = dice;
        let node = hardware.node.clone();
        self.tell(Event::Node(node));
    }

    /// A node has less, or more, than before.
    fn resize_node(&mut self) {
        self.change_node(|dice, node| {
            let resource = ResourceName::new(["cpu", GPU, "memory", "pods"][dice.below(4)]);
            let amount = match resource.as_str() {
                "memory" => Quantity::from_bytes((1 + dice.below(40) as i64) << 30),
                _ => Quantity::from_units(dice.below(16) as i64, Format::DecimalSi),
            };
            if let Some(has) = node.allocatable.get_mut(&resource) {
                *has = amount;
            }
        });
    }

    fn relabel_node(&mut self) {
        self.change_node(|dice, node| match dice.below(3) {
            0 => node.labels.insert(ZONE, format!("zone-{}", dice.below(3))),
            1 => node.labels.insert(RACK, format!("rack-{}", dice.below(4))),
            _ => node.labels.insert("pool", ["red", "blue"][dice.below(2)]),
        });
    }

    /// What a node is like inside becomes known, is forgotten, or is told again.
    fn tell_topology(&mut self) {
        let Some(name) = self.some_node() else { return };
        let topology = match self.dice.below(2) {
            0 => None,
            _ => self.nodes.get(&name).and_then(|hardware| hardware.topology.clone()),
        };
        self.tell(Event::Topology { node: name, topology });
    }

    fn change_budget(&mut self) {
        let name: Arc<str> = format!("budget-{}", self.dice.below(4)).into();
        let namespace: Arc<str> = NAMESPACES[self.dice.below(2)].into();
        if self.budgets.contains_key(&name) && self.dice.below(3) == 0 {
            if let Some(budget) = self.budgets.remove(&name) {
                self.tell(Event::BudgetGone(budget.namespace, name));
            }
            return;
        }
        let labels: Labels = [("app", format!("app-{}", self.dice.below(6)))].into_iter().collect();
        let budget = DisruptionBudget {
            namespace: self.budgets.get(&name).map_or(namespace, |known| known.namespace.clone()),
            name: name.clone(),
            selector: Some(Selector::of_labels(&labels)),
            disruptions_allowed: self.dice.below(3) as i32,
            disrupted_pods: std::collections::BTreeSet::new(),
        };
        self.budgets.insert(name, budget.clone());
        self.tell(Event::Budget(budget));
    }

    fn label_namespace(&mut self, name: &str) {
        let team = (self.dice.below(2) == 0).then_some(("team", "a"));
        let labels: Labels = team.into_iter().collect();
        self.tell(Event::Namespace(Namespace { name: name.into(), labels }));
    }
}

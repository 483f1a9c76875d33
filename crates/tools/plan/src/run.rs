//! The engine, run until nothing more is decided.
//!
//! Owns the books of who was placed, evicted and turned down on the way. Must not know what was changed
//! before.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::decision::{Binding, Decision};
use berth_engine::event::Event;
use berth_engine::explain::{Explanation, Remedy, render, render_remedy};
use berth_engine::outline::accepts;
use berth_engine::{Engine, Profile};
use berth_kubelet::PodDemand;
use berth_model::spec::{Phase, PodObject};
use berth_scenario::cluster::Cluster;
use berth_scenario::workloads::{NewPod, WorkloadOutline};

use crate::account::{Ledgers, basis, ledgers, uses};
use crate::doubt;
use crate::place;
use crate::report::{
    Cost, Eviction, GpuUse, Placed, Plan, PodRef, PoolUse, Reason, RemedyPlan, Unplaced,
    WorkloadPlan,
};
use crate::{PlanError, Question};

/// Decisions for each pod, and for good measure, before a run is taken to have no end.
const DECISIONS_PER_POD: usize = 20;
const DECISIONS_MIN: usize = 1000;

/// So many pods of a kind are asked about one by one; those beyond share the answer of the last.
const EXPLAINED_MAX: usize = 4;

/// A pod that looks for its place.
struct Seeker {
    pod: PodObject,
    /// The workload it is of; `None`: it is of the cluster.
    workload: Option<usize>,
    fate: Fate,
}

enum Fate {
    Waiting,
    Placed(Box<Placed>),
    /// The kubelet turned it down.
    Rejected(String),
    /// Another took its place, and nothing makes it anew.
    Evicted,
}

pub(crate) struct Run<'a> {
    engine: &'a mut Engine,
    question: &'a Question<'a>,
    cluster: &'a Cluster,
    /// By UID.
    seekers: BTreeMap<Arc<str>, Seeker>,
    /// UIDs in the order in which pods came.
    order: Vec<Arc<str>>,
    /// Pods of the cluster that have their place.
    residents: BTreeMap<Arc<str>, PodObject>,
    evictions: Vec<(Eviction, Option<Arc<str>>)>,
    refused: Vec<(usize, Unplaced)>,
    notes: Vec<String>,
    before: BTreeMap<String, (PoolUse, GpuUse)>,
    /// Does not pass once everybody is there.
    now_ms: i64,
}

pub(crate) fn named(pod: &PodObject) -> PodRef {
    PodRef { namespace: pod.spec.namespace.to_string(), name: pod.name.to_string() }
}

/// Whether something would make another such pod elsewhere.
pub(crate) fn is_made_anew(pod: &PodObject) -> bool {
    pod.spec.controller.as_ref().is_some_and(|owner| !matches!(&*owner.kind, "DaemonSet" | "Node"))
}

/// What a controller makes in place of a pod that has gone.
pub(crate) fn made_anew(pod: &PodObject, now_ms: i64) -> PodObject {
    PodObject {
        uid: format!("again/{}", pod.uid).into(),
        created_at_ms: now_ms,
        started_at_ms: None,
        node: None,
        nominated: None,
        phase: Phase::Alive,
        deletion: None,
        gpu_grant: None,
        ..pod.clone()
    }
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        engine: &'a mut Engine,
        question: &'a Question<'a>,
        cluster: &'a Cluster,
    ) -> Result<Self, PlanError> {
        let notes = doubt::notes(engine, cluster);
        let mut run = Self {
            engine,
            question,
            cluster,
            seekers: BTreeMap::new(),
            order: Vec::new(),
            residents: BTreeMap::new(),
            evictions: Vec::new(),
            refused: Vec::new(),
            notes,
            before: BTreeMap::new(),
            now_ms: cluster.now_ms.saturating_add(1),
        };
        for pod in &cluster.pods {
            match &pod.node {
                Some(_) => drop(run.residents.insert(pod.uid.clone(), pod.clone())),
                None => run.seek(pod.clone(), None),
            }
        }
        run.replace_running();
        run.before = uses(&run.ledgers());
        run.add_workloads()?;
        Ok(run)
    }

    /// Pods of workloads that the manifests change make way for the new ones.
    fn replace_running(&mut self) {
        let replaced: Vec<Arc<str>> = self
            .cluster
            .pods
            .iter()
            .filter(|pod| self.question.workloads.iter().any(|one| self.is_of(pod, &one.outline)))
            .map(|pod| pod.uid.clone())
            .collect();
        if !replaced.is_empty() {
            self.notes.push(format!(
                "{} of the cluster are of workloads that the manifests change, and make way for \
                 the new ones",
                match replaced.len() {
                    1 => "1 pod".to_owned(),
                    count => format!("{count} pods"),
                }
            ));
        }
        for uid in replaced {
            self.residents.remove(&uid);
            self.seekers.remove(&uid);
            self.order.retain(|one| *one != uid);
            self.engine.apply(Event::PodGone(uid));
        }
    }

    /// Whether a pod of the cluster is one of such a workload.
    fn is_of(&self, pod: &PodObject, workload: &WorkloadOutline) -> bool {
        if *pod.spec.namespace != *workload.namespace {
            return false;
        }
        let Some(owner) = &pod.spec.controller else {
            return workload.kind == "Pod" && *pod.name == *workload.name;
        };
        let key = (pod.spec.namespace.clone(), owner.name.clone());
        match (&*owner.kind, workload.kind.as_str()) {
            ("ReplicaSet", "Deployment") => {
                // The hash at the end tells where the ReplicaSet itself is not dumped.
                let hash = pod.spec.labels.get("pod-template-hash");
                let by_hash = hash.and_then(|hash| owner.name.strip_suffix(hash.as_ref()));
                let by_hash = by_hash.and_then(|name| name.strip_suffix('-'));
                let known = self.cluster.deployments.get(&key).map(AsRef::as_ref);
                known.or(by_hash) == Some(workload.name.as_str())
            }
            (kind, of) => kind == of && *owner.name == *workload.name,
        }
    }

    fn seek(&mut self, pod: PodObject, workload: Option<usize>) {
        self.order.push(pod.uid.clone());
        self.seekers.insert(pod.uid.clone(), Seeker { pod, workload, fate: Fate::Waiting });
    }

    fn add_workloads(&mut self) -> Result<(), PlanError> {
        let question = self.question;
        for (number, workload) in question.workloads.iter().enumerate() {
            for grouping in &workload.groupings {
                self.engine.apply(Event::Grouping(grouping.clone()));
            }
            let mut pods = workload.new_pods(self.cluster)?;
            for template in workload.templates.iter().filter(|one| one.copies.is_none()) {
                for node in &self.cluster.nodes {
                    if accepts(&template.spec, &node.node) {
                        pods.push(workload.daemon(template, &node.node.name, self.cluster)?);
                    }
                }
            }
            let refused = workload.templates.iter().find_map(|one| one.refused.clone());
            if let Some(why) = refused {
                let pods = pods.iter().map(|new| named(&new.pod)).collect();
                let why = format!("The API server would refuse it: {why}.");
                let reason = Reason::Refused;
                self.refused.push((number, Unplaced { pods, reason, why, remedies: Vec::new() }));
                continue;
            }
            for NewPod { mut pod, made } in pods {
                made.into_iter().for_each(|event| self.engine.apply(event));
                // In the order in which they are written.
                pod.created_at_ms = self.now_ms;
                self.now_ms += 1;
                self.engine.apply(Event::Pod(pod.clone()));
                self.seek(pod, Some(number));
            }
        }
        Ok(())
    }

    /// Runs until nothing more is decided.
    pub(crate) fn settle(mut self) -> Result<Plan, PlanError> {
        let most = self.order.len() * DECISIONS_PER_POD + DECISIONS_MIN;
        let mut decisions = 0;
        while let Some(decision) = self.engine.decide(self.now_ms) {
            decisions += 1;
            if decisions > most {
                self.notes.push(format!("stopped after {most} decisions; some are left"));
                break;
            }
            self.carry_out(decision);
        }
        Ok(self.report())
    }

    fn carry_out(&mut self, decision: Decision) {
        match decision {
            Decision::Bind(binding) => self.bind(&binding),
            Decision::BindAll(gang) => gang.bindings.iter().for_each(|binding| self.bind(binding)),
            Decision::Preempt(preempting) => {
                let by = self.name_of(&preempting.pod);
                let against = preempting.budget_violations > 0;
                self.evict_all(&preempting.victims, &by, against);
            }
            Decision::Reserve(reserving) => {
                let by = PodRef {
                    namespace: reserving.gang.namespace.to_string(),
                    name: reserving.gang.name.to_string(),
                };
                self.evict_all(&reserving.victims, &by, reserving.budget_violations > 0);
            }
            Decision::Disband(disbanding) => {
                for uid in &disbanding.pods {
                    self.engine.apply(Event::PodGone(uid.clone()));
                    if let Some(seeker) = self.seekers.get_mut(uid) {
                        seeker.fate = Fate::Evicted;
                    }
                }
            }
            Decision::Hold { .. } | Decision::Wait { .. } => {}
        }
    }

    fn name_of(&self, uid: &Arc<str>) -> PodRef {
        let pod = self.seekers.get(uid).map(|seeker| &seeker.pod);
        pod.or_else(|| self.residents.get(uid)).map(named).unwrap_or_default()
    }

    fn bind(&mut self, binding: &Binding) {
        let Some(node) = self.cluster.node(&binding.node) else { return };
        let Some(seeker) = self.seekers.get_mut(&binding.pod) else { return };
        let kubelet = self.engine.kubelet(&binding.node);
        let turned_down = kubelet.and_then(|(kubelet, _)| {
            if kubelet.assignment(&binding.pod).is_some() {
                return None;
            }
            // Whoever chose the node did not ask its kubelet.
            let demand = PodDemand::new(&seeker.pod.spec.pod, kubelet.config().version).ok()?;
            let rejection = kubelet.clone().admit(&binding.pod, &demand).err()?;
            Some(format!(
                "{} would turn it down: {}: {}",
                binding.node,
                rejection.reason.as_str(),
                rejection.message
            ))
        });
        if let Some(why) = turned_down.filter(|_| self.question.profile != Profile::Berth) {
            seeker.fate = Fate::Rejected(why);
            self.engine.apply(Event::PodGone(binding.pod.clone()));
            return;
        }
        let mut placed = Placed {
            pod: named(&seeker.pod),
            node: binding.node.to_string(),
            pool: node.pool().to_owned(),
            ..Placed::default()
        };
        place::inside(self.engine, node, binding, &mut placed);
        seeker.pod.node = Some(binding.node.clone());
        seeker.pod.gpu_grant.clone_from(&binding.gpu_grant);
        seeker.fate = Fate::Placed(Box::new(placed));
        self.engine.apply(Event::Pod(seeker.pod.clone()));
    }

    /// Evictions take no time here.
    fn evict_all(&mut self, victims: &[Arc<str>], by: &PodRef, against_budget: bool) {
        for uid in victims {
            self.engine.apply(Event::PodGone(uid.clone()));
            let (pod, workload) = match self.seekers.get_mut(uid) {
                Some(seeker) => {
                    seeker.fate = Fate::Evicted;
                    (Some(seeker.pod.clone()), seeker.workload)
                }
                None => (self.residents.remove(uid), None),
            };
            let Some(pod) = pod else { continue };
            let is_made_anew = is_made_anew(&pod);
            let eviction = Eviction {
                pod: named(&pod),
                node: pod.node.as_deref().unwrap_or_default().to_owned(),
                priority: pod.spec.priority,
                by: by.clone(),
                against_budget,
                goes_to: None,
                is_made_anew,
            };
            let mut again = None;
            if is_made_anew {
                let new = made_anew(&pod, self.now_ms);
                again = Some(new.uid.clone());
                self.seekers.remove(uid);
                self.order.retain(|one| one != uid);
                self.engine.apply(Event::Pod(new.clone()));
                self.seek(new, workload);
            }
            self.evictions.push((eviction, again));
        }
    }

    /// Ledgers with everybody who has a place now.
    fn ledgers(&self) -> Ledgers {
        let mut ledgers = ledgers(self.cluster, self.question.prices);
        let seekers = self.seekers.values().map(|seeker| &seeker.pod);
        for pod in self.residents.values().chain(seekers) {
            let node = pod.node.as_deref().unwrap_or_default();
            if let Some(ledger) = ledgers.get_mut(node) {
                ledger.take(&pod.spec, pod.gpu_grant.as_ref());
            }
        }
        ledgers
    }

    fn report(mut self) -> Plan {
        let ledgers = self.ledgers();
        self.price(&ledgers);
        let mut plan = Plan {
            version: 1,
            profile: profile_name(self.question.profile).to_owned(),
            notes: std::mem::take(&mut self.notes),
            ..Plan::default()
        };
        let mut by_workload: BTreeMap<Option<usize>, Vec<Arc<str>>> = BTreeMap::new();
        for uid in &self.order {
            let workload = self.seekers.get(uid).map(|seeker| seeker.workload);
            by_workload.entry(workload.flatten()).or_default().push(uid.clone());
        }
        let mut pods_of = |number| by_workload.remove(&number).unwrap_or_default();
        for (number, workload) in self.question.workloads.iter().enumerate() {
            let outline = &workload.outline;
            let mut of = WorkloadPlan {
                kind: outline.kind.clone(),
                namespace: outline.namespace.clone(),
                name: outline.name.clone(),
                team: outline.team.clone(),
                class: outline.class.clone(),
                ..WorkloadPlan::default()
            };
            self.tell(Some(number), &pods_of(Some(number)), &mut of);
            plan.workloads.push(of);
        }
        self.tell(None, &pods_of(None), &mut plan.others);
        let node_of = |uid: &Arc<str>| match &self.seekers.get(uid)?.fate {
            Fate::Placed(placed) => Some(placed.node.clone()),
            _ => None,
        };
        plan.evictions = self
            .evictions
            .iter()
            .map(|(eviction, again)| {
                let goes_to = again.as_ref().and_then(node_of);
                Eviction { goes_to, ..eviction.clone() }
            })
            .collect();
        plan.pools = self.pools(&ledgers);
        plan.cost = self.cost(&plan, &ledgers);
        plan
    }

    fn price(&mut self, ledgers: &Ledgers) {
        let prices = self.question.prices;
        for seeker in self.seekers.values_mut() {
            let Fate::Placed(placed) = &mut seeker.fate else { continue };
            let Some(ledger) = ledgers.get(&placed.node) else { continue };
            let spec = &seeker.pod.spec;
            placed.gpu_milli = ledger.gpu_milli(spec, seeker.pod.gpu_grant.as_ref());
            placed.microusd_per_month = ledger.monthly(spec, placed.gpu_milli, prices);
        }
    }

    fn pools(&self, ledgers: &Ledgers) -> Vec<PoolUse> {
        let after = uses(ledgers);
        let before = |name: &str| self.before.get(name).map(|(_, sum)| *sum).unwrap_or_default();
        after
            .into_iter()
            .map(|(name, (pool, sum))| PoolUse { before: before(&name), after: sum, ..pool })
            .collect()
    }

    fn cost(&self, plan: &Plan, ledgers: &Ledgers) -> Cost {
        let mut cost = Cost { basis: basis(self.question.prices), ..Cost::default() };
        for workload in &plan.workloads {
            let sum: i64 = workload.placed.iter().filter_map(|one| one.microusd_per_month).sum();
            cost.microusd_per_month += sum;
            *cost.by_team.entry(workload.team.clone()).or_default() += sum;
        }
        let hours = self.question.prices.hours_per_month;
        for ledger in ledgers.values() {
            match ledger.price {
                Some(price) => {
                    cost.cluster_microusd_per_month += price.saturating_mul(hours);
                }
                None => cost.nodes_without_price += 1,
            }
        }
        cost
    }

    /// What became of the pods of a workload, or of the cluster.
    fn tell(&mut self, number: Option<usize>, uids: &[Arc<str>], of: &mut WorkloadPlan) {
        let mut asked = 0;
        for uid in uids {
            let Some(seeker) = self.seekers.get(uid) else { continue };
            let pod = named(&seeker.pod);
            let unplaced = match &seeker.fate {
                Fate::Placed(placed) => {
                    of.placed.push((**placed).clone());
                    continue;
                }
                Fate::Rejected(why) => Unplaced {
                    reason: Reason::RejectedByKubelet,
                    why: why.clone(),
                    ..Unplaced::default()
                },
                Fate::Evicted => Unplaced {
                    reason: Reason::Leaving,
                    why: "It would be evicted for another, and nothing makes it anew.".to_owned(),
                    ..Unplaced::default()
                },
                Fate::Waiting if number.is_some() && asked >= EXPLAINED_MAX => {
                    of.unplaced.last().cloned().unwrap_or_default()
                }
                Fate::Waiting => {
                    asked += 1;
                    explained(self.engine.explain(uid, self.now_ms).as_ref())
                }
            };
            let same = |one: &&mut Unplaced| {
                one.reason == unplaced.reason
                    && one.why == unplaced.why
                    && one.remedies == unplaced.remedies
            };
            match of.unplaced.iter_mut().find(same) {
                Some(known) => known.pods.push(pod),
                None => of.unplaced.push(Unplaced { pods: vec![pod], ..unplaced }),
            }
        }
        let refused = self.refused.iter().filter(|(of, _)| Some(*of) == number);
        of.unplaced.extend(refused.map(|(_, unplaced)| unplaced.clone()));
        of.microusd_per_month = of.placed.iter().map(|one| one.microusd_per_month).sum();
    }
}

fn profile_name(profile: Profile) -> &'static str {
    match profile {
        Profile::Berth => "berth",
        Profile::KubeScheduler => "kube-scheduler",
        Profile::KubeSchedulerPacking => "kube-scheduler-packing",
    }
}

/// Why a pod waits, as data and in words.
pub(crate) fn explained(explanation: Option<&Explanation>) -> Unplaced {
    let Some(explanation) = explanation else { return Unplaced::default() };
    let (reason, remedies): (Reason, &[Remedy]) = match explanation {
        Explanation::Gated { .. } => (Reason::Gated, &[]),
        Explanation::Leaving { .. } => (Reason::Leaving, &[]),
        Explanation::Held { .. } => (Reason::Quota, &[]),
        Explanation::InGang { .. } => (Reason::Gang, &[]),
        Explanation::Waiting { remedies, .. } => (Reason::NoRoom, remedies),
        Explanation::AwaitsRoom { .. } | Explanation::Placed { .. } => (Reason::NoRoom, &[]),
    };
    Unplaced {
        pods: Vec::new(),
        reason,
        why: render(explanation),
        remedies: remedies.iter().map(remedy_plan).collect(),
    }
}

fn remedy_plan(remedy: &Remedy) -> RemedyPlan {
    let (kind, node, pool, victims) = match remedy {
        Remedy::Evict { node, victims, .. } => ("evict", Some(node), None, victims.as_slice()),
        Remedy::Grow { pool, .. } => ("grow", None, Some(pool), [].as_slice()),
        Remedy::Relax { node, .. } => ("relax", Some(node), None, [].as_slice()),
        Remedy::Uncordon { node } => ("uncordon", Some(node), None, [].as_slice()),
        Remedy::Repartition { node, .. } => ("repartition", Some(node), None, [].as_slice()),
        Remedy::Loosen { node } => ("loosen", Some(node), None, [].as_slice()),
    };
    RemedyPlan {
        kind: kind.to_owned(),
        node: node.map(ToString::to_string),
        pool: pool.map(ToString::to_string),
        victims: victims
            .iter()
            .map(|one| PodRef { namespace: one.namespace.to_string(), name: one.name.to_string() })
            .collect(),
        text: render_remedy(remedy),
    }
}

//! The engine, run until it decides nothing more.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::decision::{Binding, Decision};
use berth_engine::event::Event;
use berth_engine::node_rules::accepts;
use berth_engine::{Engine, Profile};
use berth_inspect::place::Placed;
use berth_inspect::remedy::{Diagnosis, Reason};
use berth_inspect::usage::GpuUse;
use berth_inspect::{PodRef, doubts};
use berth_kubelet::PodDemand;
use berth_model::spec::{Phase, PodObject};
use berth_scenario::cluster::Cluster;
use berth_scenario::workloads::{NewPod, WorkloadOutline};

use crate::account::{Accounts, accounts, basis, uses};
use crate::report::{Cost, Eviction, Plan, PoolUse, Unplaced, WorkloadPlan};
use crate::{PlanError, Question};

/// A run with more decisions than these per pod, and some more, is taken to be endless.
const DECISIONS_PER_POD: usize = 20;
const DECISIONS_MIN: usize = 1000;

/// How many pods of a workload are explained one by one; the others share the last explanation.
const EXPLAINED_MAX: usize = 4;

/// A pod that was pending at some time of the run.
struct Candidate {
    pod: PodObject,
    /// `None` if it is of the cluster, not of the manifests.
    workload: Option<usize>,
    fate: Fate,
}

enum Fate {
    Pending,
    Placed(Box<Placed>),
    /// By the kubelet, for this reason.
    Rejected(String),
    /// No controller replaces it.
    Evicted,
}

pub(crate) struct Run<'a> {
    engine: &'a mut Engine,
    question: &'a Question<'a>,
    cluster: &'a Cluster,
    /// By UID.
    candidates: BTreeMap<Arc<str>, Candidate>,
    /// UIDs in the order of creation.
    order: Vec<Arc<str>>,
    /// Running pods of the cluster.
    residents: BTreeMap<Arc<str>, PodObject>,
    evictions: Vec<(Eviction, Option<Arc<str>>)>,
    refused: Vec<(usize, Unplaced)>,
    notes: Vec<String>,
    before: BTreeMap<String, (PoolUse, GpuUse)>,
    /// Stands still once all pods have been created.
    now_ms: i64,
}

/// Whether a controller would replace the pod on another node.
pub(crate) fn is_replaced(pod: &PodObject) -> bool {
    pod.spec.controller.as_ref().is_some_and(|owner| !matches!(&*owner.kind, "DaemonSet" | "Node"))
}

/// What a controller creates in place of a pod that is gone.
pub(crate) fn replacement(pod: &PodObject, now_ms: i64) -> PodObject {
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
        let exported = cluster.nodes.iter().map(|one| (&*one.node.name, &one.inside.free));
        let notes = doubts(engine, exported);
        let mut run = Self {
            engine,
            question,
            cluster,
            candidates: BTreeMap::new(),
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
                None => run.add(pod.clone(), None),
            }
        }
        run.replace_running();
        run.before = uses(&run.accounts());
        run.add_workloads()?;
        Ok(run)
    }

    /// Removes the running pods of workloads that the manifests change.
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
                "{} of the cluster belong to workloads that the manifests change, and are replaced by the \
                 new ones",
                match replaced.len() {
                    1 => "1 pod".to_owned(),
                    count => format!("{count} pods"),
                }
            ));
        }
        for uid in replaced {
            self.residents.remove(&uid);
            self.candidates.remove(&uid);
            self.order.retain(|one| *one != uid);
            self.engine.apply(Event::PodGone(uid));
        }
    }

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
                // Without the ReplicaSet itself, the hash at the end of its name has to do.
                let hash = pod.spec.labels.get("pod-template-hash");
                let by_hash = hash.and_then(|hash| owner.name.strip_suffix(hash.as_ref()));
                let by_hash = by_hash.and_then(|name| name.strip_suffix('-'));
                let known = self.cluster.deployments.get(&key).map(AsRef::as_ref);
                known.or(by_hash) == Some(workload.name.as_str())
            }
            (kind, of) => kind == of && *owner.name == *workload.name,
        }
    }

    fn add(&mut self, pod: PodObject, workload: Option<usize>) {
        self.order.push(pod.uid.clone());
        self.candidates.insert(pod.uid.clone(), Candidate { pod, workload, fate: Fate::Pending });
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
                let pods = pods.iter().map(|new| PodRef::from(&new.pod)).collect();
                let why = format!("The API server would refuse it: {why}.");
                let reason = Reason::Refused;
                self.refused.push((number, Unplaced { pods, reason, why, remedies: Vec::new() }));
                continue;
            }
            for NewPod { mut pod, claims } in pods {
                claims.into_iter().for_each(|event| self.engine.apply(event));
                // So that pods are scheduled in the order of the manifests.
                pod.created_at_ms = self.now_ms;
                self.now_ms += 1;
                self.engine.apply(Event::Pod(pod.clone()));
                self.add(pod, Some(number));
            }
        }
        Ok(())
    }

    pub(crate) fn settle(mut self) -> Result<Plan, PlanError> {
        let most = self.order.len() * DECISIONS_PER_POD + DECISIONS_MIN;
        let mut decisions = 0;
        while let Some(decision) = self.engine.decide(self.now_ms) {
            decisions += 1;
            if decisions > most {
                self.notes.push(format!("stopped after {most} decisions; the plan is incomplete"));
                break;
            }
            self.apply(decision);
        }
        Ok(self.report())
    }

    fn apply(&mut self, decision: Decision) {
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
                    if let Some(candidate) = self.candidates.get_mut(uid) {
                        candidate.fate = Fate::Evicted;
                    }
                }
            }
            Decision::Hold { .. } | Decision::Wait { .. } => {}
        }
    }

    fn name_of(&self, uid: &Arc<str>) -> PodRef {
        let pod = self.candidates.get(uid).map(|candidate| &candidate.pod);
        pod.or_else(|| self.residents.get(uid)).map(PodRef::from).unwrap_or_default()
    }

    fn bind(&mut self, binding: &Binding) {
        let Some(node) = self.cluster.node(&binding.node) else { return };
        let Some(candidate) = self.candidates.get_mut(&binding.pod) else { return };
        let kubelet = self.engine.kubelet(&binding.node);
        let rejection = kubelet.and_then(|(kubelet, _)| {
            if kubelet.assignment(&binding.pod).is_some() {
                return None;
            }
            // A scheduler that does not look at NUMA nodes has chosen the node.
            let demand = PodDemand::new(&candidate.pod.spec.pod, kubelet.config().version).ok()?;
            let rejection = kubelet.clone().admit(&binding.pod, &demand).err()?;
            Some(format!(
                "The kubelet of {} would reject it: {}: {}.",
                binding.node,
                rejection.reason.as_str(),
                rejection.message
            ))
        });
        if let Some(why) = rejection.filter(|_| self.question.profile != Profile::Berth) {
            candidate.fate = Fate::Rejected(why);
            self.engine.apply(Event::PodGone(binding.pod.clone()));
            return;
        }
        let placed = Placed::new(&candidate.pod, &binding.node, node.pool());
        let placed = placed.bound(self.engine, &node.inside, binding);
        candidate.pod.node = Some(binding.node.clone());
        candidate.pod.gpu_grant.clone_from(&binding.gpu_grant);
        candidate.fate = Fate::Placed(Box::new(placed));
        self.engine.apply(Event::Pod(candidate.pod.clone()));
    }

    fn evict_all(&mut self, victims: &[Arc<str>], by: &PodRef, against_budget: bool) {
        for uid in victims {
            self.engine.apply(Event::PodGone(uid.clone()));
            let (pod, workload) = match self.candidates.get_mut(uid) {
                Some(candidate) => {
                    candidate.fate = Fate::Evicted;
                    (Some(candidate.pod.clone()), candidate.workload)
                }
                None => (self.residents.remove(uid), None),
            };
            let Some(pod) = pod else { continue };
            let is_replaced = is_replaced(&pod);
            let eviction = Eviction {
                pod: PodRef::from(&pod),
                node: pod.node.as_deref().unwrap_or_default().to_owned(),
                priority: pod.spec.priority,
                by: by.clone(),
                against_budget,
                goes_to: None,
                is_replaced,
            };
            let mut replaced_by = None;
            if is_replaced {
                let new = replacement(&pod, self.now_ms);
                replaced_by = Some(new.uid.clone());
                self.candidates.remove(uid);
                self.order.retain(|one| one != uid);
                self.engine.apply(Event::Pod(new.clone()));
                self.add(new, workload);
            }
            self.evictions.push((eviction, replaced_by));
        }
    }

    /// Accounts with everybody who has a place now.
    fn accounts(&self) -> Accounts {
        let mut accounts = accounts(self.cluster, self.question.prices);
        let candidates = self.candidates.values().map(|candidate| &candidate.pod);
        for pod in self.residents.values().chain(candidates) {
            let node = pod.node.as_deref().unwrap_or_default();
            if let Some(account) = accounts.get_mut(node) {
                account.usage.add(&pod.spec, pod.gpu_grant.as_ref());
            }
        }
        accounts
    }

    fn report(mut self) -> Plan {
        let accounts = self.accounts();
        self.price(&accounts);
        let mut plan = Plan {
            version: 1,
            profile: profile_name(self.question.profile).to_owned(),
            notes: std::mem::take(&mut self.notes),
            ..Plan::default()
        };
        let mut by_workload: BTreeMap<Option<usize>, Vec<Arc<str>>> = BTreeMap::new();
        for uid in &self.order {
            let workload = self.candidates.get(uid).map(|candidate| candidate.workload);
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
            self.report_pods(Some(number), &pods_of(Some(number)), &mut of);
            plan.workloads.push(of);
        }
        self.report_pods(None, &pods_of(None), &mut plan.others);
        let node_of = |uid: &Arc<str>| match &self.candidates.get(uid)?.fate {
            Fate::Placed(placed) => Some(placed.node.clone()),
            _ => None,
        };
        plan.evictions = self
            .evictions
            .iter()
            .map(|(eviction, replaced_by)| {
                let goes_to = replaced_by.as_ref().and_then(node_of);
                Eviction { goes_to, ..eviction.clone() }
            })
            .collect();
        plan.pools = self.pools(&accounts);
        plan.cost = self.cost(&plan, &accounts);
        plan
    }

    fn price(&mut self, accounts: &Accounts) {
        let prices = self.question.prices;
        for candidate in self.candidates.values_mut() {
            let Fate::Placed(placed) = &mut candidate.fate else { continue };
            let Some(account) = accounts.get(&placed.node) else { continue };
            let spec = &candidate.pod.spec;
            placed.gpu_milli = account.usage.gpu_milli(spec, candidate.pod.gpu_grant.as_ref());
            placed.microusd_per_month = account.monthly(spec, placed.gpu_milli, prices);
        }
    }

    fn pools(&self, accounts: &Accounts) -> Vec<PoolUse> {
        let after = uses(accounts);
        let before = |name: &str| self.before.get(name).map(|(_, sum)| *sum).unwrap_or_default();
        after
            .into_iter()
            .map(|(name, (pool, sum))| PoolUse { before: before(&name), after: sum, ..pool })
            .collect()
    }

    fn cost(&self, plan: &Plan, accounts: &Accounts) -> Cost {
        let mut cost = Cost { basis: basis(self.question.prices), ..Cost::default() };
        for workload in &plan.workloads {
            let sum: i64 = workload.placed.iter().filter_map(|one| one.microusd_per_month).sum();
            cost.microusd_per_month += sum;
            *cost.by_team.entry(workload.team.clone()).or_default() += sum;
        }
        let hours = self.question.prices.hours_per_month;
        for account in accounts.values() {
            match account.price {
                Some(price) => {
                    cost.cluster_microusd_per_month += price.saturating_mul(hours);
                }
                None => cost.nodes_without_price += 1,
            }
        }
        cost
    }

    /// `number` is `None` for pods of the cluster.
    fn report_pods(&mut self, number: Option<usize>, uids: &[Arc<str>], of: &mut WorkloadPlan) {
        let mut explained = 0;
        for uid in uids {
            let Some(candidate) = self.candidates.get(uid) else { continue };
            let pod = PodRef::from(&candidate.pod);
            let unplaced = match &candidate.fate {
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
                    why: "It would be evicted for another pod, and no controller replaces it."
                        .to_owned(),
                    ..Unplaced::default()
                },
                Fate::Pending if number.is_some() && explained >= EXPLAINED_MAX => {
                    of.unplaced.last().cloned().unwrap_or_default()
                }
                Fate::Pending => {
                    explained += 1;
                    let explanation = self.engine.explain(uid, self.now_ms);
                    Unplaced::from(Diagnosis::of(explanation.as_ref()))
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

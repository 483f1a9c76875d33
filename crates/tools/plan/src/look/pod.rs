//! One pod: why it is where it is, or why it is nowhere.
//!
//! Owns what is put together for that: what its scheduler said, what was written when it was bound, what
//! the engine says, where it stands in the line, and what would help. Must not know how it is shown.

use berth_engine::decision::{Binding, Decision};
use berth_engine::event::Event;
use berth_engine::explain::render;
use berth_model::dra::pod::ClaimSource;
use berth_model::spec::{Phase, PodObject};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use super::{Condition, SCHEDULER, Scene, class_of, named, wants};
use crate::doubt;
use crate::place;
use crate::report::{Placed, PodRef, Reason, RemedyPlan};
use crate::run::explained;

/// So many decisions are tried out to see what would become of a pod.
const DECISIONS_MAX: usize = 5000;

/// So many namespaces are named that have a pod of a name.
const NAMED_MAX: usize = 3;

/// No such pod.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("no pod {name:?} in namespace {namespace:?}")]
pub struct NoSuchPod {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// Namespaces in which there is one.
    pub elsewhere: Vec<String>,
}

/// What there is to say about a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PodReport {
    /// Of this shape of the data; 1.
    pub version: u32,
    /// The pod.
    pub pod: PodRef,
    /// How it fares.
    pub fate: Fate,
    /// `Pending`, `Running` and so on, with the reason its kubelet gave.
    pub phase: String,
    /// Who decides about it.
    pub scheduler: String,
    /// Whose it is; empty if it does not say.
    pub team: String,
    /// What kind of work it does.
    pub class: String,
    /// Its priority.
    pub priority: i32,
    /// What it wants of GPUs, in a few words.
    pub gpus: String,
    /// How old it is.
    pub age_seconds: i64,
    /// What its scheduler said last.
    pub scheduled: Option<Condition>,
    /// Its place among all who wait, from 1, and how many wait.
    pub position: Option<(usize, usize)>,
    /// The node that is being freed for it.
    pub nominated_node: Option<String>,
    /// Where it is, by the model of its kubelet.
    pub place: Option<Placed>,
    /// How certain that is.
    pub certainty: Option<String>,
    /// What Berth wrote on it when it bound it.
    pub recorded: Option<Value>,
    /// Why it is there, or nowhere, in words.
    pub why: String,
    /// What would make it fit, each by itself.
    pub remedies: Vec<RemedyPlan>,
    /// Where Berth would place it now, with everybody before it in the line served.
    pub would_go: Option<Placed>,
    /// When it may start, in words.
    pub forecast: Option<String>,
    /// What is to be known besides.
    pub notes: Vec<String>,
}

/// How a pod fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It has its place.
    Placed,
    /// It waits.
    #[default]
    Waiting,
    /// It is being deleted.
    Leaving,
    /// It has ended.
    Finished,
}

impl Scene {
    /// What there is to say about a pod.
    ///
    /// # Errors
    /// When there is no such pod.
    pub fn pod_report(&mut self, namespace: &str, name: &str) -> Result<PodReport, NoSuchPod> {
        let key = (namespace.into(), name.into());
        let Some(own) = self.pods.get(&key).cloned() else {
            return Err(self.no_such_pod(namespace, name));
        };
        let mut report = PodReport {
            version: 1,
            pod: PodRef { namespace: namespace.to_owned(), name: name.to_owned() },
            phase: own.phase.clone(),
            scheduler: own.scheduler.clone(),
            age_seconds: own.created_at_ms.map_or(0, |created| self.since_s(created)),
            scheduled: own.scheduled.clone(),
            recorded: own.placement.as_deref().map(recorded),
            ..PodReport::default()
        };
        if let Some(reason) = &own.phase_reason {
            report.phase = format!("{}: {reason}", report.phase);
        }
        match self.pod(&own.uid).cloned() {
            Some(pod) => self.tell_of(&pod, &mut report),
            None => self.tell_of_finished(&own.uid, &mut report),
        }
        Ok(report)
    }

    fn no_such_pod(&self, namespace: &str, name: &str) -> NoSuchPod {
        let others = self.pods.keys().filter(|(_, one)| &**one == name);
        let elsewhere =
            others.map(|(namespace, _)| namespace.to_string()).take(NAMED_MAX).collect();
        NoSuchPod { namespace: namespace.to_owned(), name: name.to_owned(), elsewhere }
    }

    fn tell_of_finished(&self, uid: &str, report: &mut PodReport) {
        report.fate = Fate::Finished;
        report.gpus = "-".to_owned();
        if let Some(ended) = self.ended.iter().find(|one| *one.pod.uid == *uid) {
            let pod = &ended.pod;
            report.team = self.team_of(&pod.spec);
            report.class = class_of(&pod.spec);
            report.priority = pod.spec.priority;
            report.gpus = wants::gpus(pod);
            let node = pod.node.as_deref().unwrap_or("no node");
            report.why = format!("It was on {node} and has ended; it holds nothing any more.");
            let rejected =
                ["TopologyAffinityError", "SMTAlignmentError", "UnexpectedAdmissionError"];
            if rejected.iter().any(|reason| report.phase.contains(reason)) {
                report.why = format!(
                    "{node} turned it down when it came: whoever placed it did not ask whether the \
                     kubelet would take it. It holds nothing there."
                );
            }
        }
    }

    fn tell_of(&mut self, pod: &PodObject, report: &mut PodReport) {
        report.team = self.team_of(&pod.spec);
        report.class = class_of(&pod.spec);
        report.priority = pod.spec.priority;
        report.gpus = wants::gpus(pod);
        let explanation = self.engine.explain(&pod.uid, self.now_ms);
        if let Some(node) = &pod.node {
            report.fate = if pod.phase == Phase::Alive { Fate::Placed } else { Fate::Leaving };
            report.why = explanation.as_ref().map(render).unwrap_or_default();
            self.tell_place(pod, node, report);
            return;
        }
        report.notes.clone_from(&self.notes);
        let told = explained(explanation.as_ref());
        report.fate = if told.reason == Reason::Leaving { Fate::Leaving } else { Fate::Waiting };
        report.position = self.position(&pod.uid);
        report.nominated_node = pod.nominated.as_ref().map(ToString::to_string);
        // What would help is listed by itself.
        report.why = told.why.split(" Would fit: ").next().unwrap_or_default().to_owned();
        report.remedies = told.remedies;
        report.would_go = self.would_go(pod);
        if matches!(told.reason, Reason::NoRoom | Reason::Gang) && report.would_go.is_none() {
            report.forecast = self.eta(&pod.uid);
        }
        if report.scheduler != SCHEDULER {
            report.notes.push(format!(
                "{} decides about this pod, not Berth: what is said here is what Berth would do",
                report.scheduler
            ));
        }
    }

    fn tell_place(&self, pod: &PodObject, node: &str, report: &mut PodReport) {
        let mut placed = Placed { pod: named(pod), node: node.to_owned(), ..Placed::default() };
        let Some(at) = self.cluster.node(node) else {
            report.certainty = Some(format!("There is no node {node} any more."));
            report.place = Some(placed);
            return;
        };
        placed.pool = at.pool().to_owned();
        report.notes.extend(doubt::seen_otherwise(&self.engine, at).iter().map(|resource| {
            format!("the exporter of {node} saw other {resource} free than follow from the pods")
        }));
        place::held(&self.engine, at, &pod.uid, &mut placed);
        placed.gpu_milli = self.ledger_of(at).gpu_milli(&pod.spec, pod.gpu_grant.as_ref());
        placed.share = pod.gpu_grant.as_ref().and_then(place::share_of);
        placed.claimed = self.claimed(pod);
        report.certainty = Some(match self.engine.kubelet(node) {
            None => format!(
                "Nothing tells how {node} is built (no NodeResourceTopology, no labels), so NUMA nodes \
                 and devices cannot be told."
            ),
            Some((_, false)) => format!(
                "What {node} says of itself cannot be true, since a pod runs there that its kubelet \
                 would not have taken: NUMA nodes and devices are a guess."
            ),
            Some((kubelet, true)) if kubelet.assignment(&pod.uid).is_none() => {
                format!("The kubelet of {node} would not have taken it as described.")
            }
            Some((kubelet, true)) => {
                let drawn = placed.devices.iter().any(|given| !given.one_of.is_empty());
                match (drawn, kubelet.is_certain()) {
                    (_, false) => "Worked out by the kubelet's rules from the order in which pods \
                                   started, with a draw in between: one of several possible outcomes."
                        .to_owned(),
                    (true, true) => "Worked out by the kubelet's rules from the order in which pods \
                                     started; where \"of\" is written, its plugin picks."
                        .to_owned(),
                    (false, true) => {
                        "Worked out by the kubelet's rules from the order in which pods started."
                            .to_owned()
                    }
                }
            }
        });
        report.place = Some(placed);
    }

    /// Devices that its claims were given.
    fn claimed(&self, pod: &PodObject) -> Vec<String> {
        let names: Vec<&str> = pod
            .claims
            .iter()
            .filter_map(|claim| match &claim.source {
                ClaimSource::Named(name) | ClaimSource::Generated(name) => Some(&**name),
                _ => None,
            })
            .collect();
        let claims = self.cluster.others.iter().filter_map(|event| match event {
            Event::DeviceClaim(claim) => Some(claim),
            _ => None,
        });
        claims
            .filter(|claim| claim.namespace == pod.spec.namespace && names.contains(&&*claim.name))
            .filter_map(|claim| claim.allocation.as_ref())
            .flat_map(|allocation| &allocation.devices)
            .map(|device| device.id.to_string())
            .collect()
    }

    /// Where it would be bound now, after everybody before it in the line. Nothing of it stays.
    fn would_go(&mut self, pod: &PodObject) -> Option<Placed> {
        if !pod.spec.gates.is_empty() || pod.phase != Phase::Alive {
            return None;
        }
        let checkpoint = self.engine.checkpoint();
        let mut found = None;
        for _ in 0..DECISIONS_MAX {
            let Some(decision) = self.engine.decide(self.now_ms) else { break };
            let bindings: &[Binding] = match &decision {
                Decision::Bind(binding) => std::slice::from_ref(binding),
                Decision::BindAll(gang) => &gang.bindings,
                _ => &[],
            };
            let own = bindings.iter().find(|binding| binding.pod == pod.uid);
            if let Some(binding) = own {
                found = self.cluster.node(&binding.node).map(|node| {
                    let mut placed = Placed {
                        pod: named(pod),
                        node: binding.node.to_string(),
                        pool: node.pool().to_owned(),
                        ..Placed::default()
                    };
                    place::inside(&self.engine, node, binding, &mut placed);
                    placed.gpu_milli =
                        self.ledger_of(node).gpu_milli(&pod.spec, binding.gpu_grant.as_ref());
                    placed
                });
            }
            if own.is_some() || is_turned_away(&decision, &pod.uid) {
                break;
            }
        }
        self.engine.rollback(checkpoint);
        found
    }
}

/// Whether a decision says that there is no place for a pod.
fn is_turned_away(decision: &Decision, uid: &str) -> bool {
    match decision {
        Decision::Wait { pod } | Decision::Hold { pod, .. } => **pod == *uid,
        Decision::Preempt(preempting) => *preempting.pod == *uid,
        _ => false,
    }
}

/// What was written, as data if it is that.
fn recorded(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

//! One pod: why it is where it is, or why it is pending and what would help.

use berth_api::Lower as _;
use berth_api::keys::PLACEMENT;
use berth_engine::decision::{Binding, Decision};
use berth_engine::explain::{Explanation, render};
use berth_kubelet::Reason as KubeletReason;
use berth_model::dra::pod::ClaimSource;
use berth_model::spec::{Phase, PodObject};
use k8s_openapi::api::core::v1 as core;
use serde::Serialize;
use serde_json::Value;

use crate::holdings::Holdings;
use crate::place::Placed;
use crate::record::Evidence;
use crate::remedy::{Diagnosis, Reason, RemedyReport};
use crate::{Audience, Inspection, NodeFacts, PodRef, Source, VERSION, doubt, request, unix_ms};

/// How many decisions are tried to find where a pending pod would go.
const DECISIONS_MAX: usize = 5000;

const DEFAULT_SCHEDULER: &str = "default-scheduler";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PodReport {
    /// Of this JSON form; 1.
    pub version: u32,
    pub pod: PodRef,
    pub fate: Fate,
    /// `Pending`, `Running` and so on, with the reason that the kubelet gave.
    pub phase: String,
    pub scheduler: String,
    /// Whether Berth serves that schedulerName.
    pub scheduled_by_berth: bool,
    /// Empty if it is of no team.
    pub team: String,
    pub class: String,
    pub priority: i32,
    /// What it requests of GPUs, such as `2×1g.10gb`.
    pub gpus: String,
    pub age_seconds: i64,
    /// Its condition `PodScheduled`.
    pub scheduled: Option<Condition>,
    /// Its position in the queue, from 1, and the queue's length.
    pub position: Option<(usize, usize)>,
    pub nominated_node: Option<String>,
    pub place: Option<Placed>,
    /// How certain the place is.
    pub certainty: Option<String>,
    /// The annotation `berth.dev/placement`.
    pub recorded: Option<Value>,
    pub why: String,
    /// Each helps by itself. All have been tried out.
    pub remedies: Vec<RemedyReport>,
    /// Where Berth would bind it once the pods before it in the queue have been served.
    pub would_go: Option<Placed>,
    /// When it may start, in words.
    pub forecast: Option<String>,
    pub notes: Vec<String>,
}

/// A pod's condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// `True` or `False`.
    pub status: String,
    pub reason: String,
    pub message: String,
    /// In milliseconds since 1970.
    pub since_ms: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    Placed,
    #[default]
    Pending,
    /// It is being deleted.
    Leaving,
    Finished,
}

/// What the pod's object says, whatever the engine knows.
fn report_of(pod: &core::Pod) -> PodReport {
    let status = pod.status.as_ref();
    let conditions = status.iter().flat_map(|status| &status.conditions).flatten();
    let scheduled = conditions.into_iter().find(|one| one.type_ == "PodScheduled");
    let of_status = |field: fn(&core::PodStatus) -> &Option<String>| {
        status.and_then(|status| field(status).as_deref()).filter(|text| !text.is_empty())
    };
    let (reason, message) = (of_status(|one| &one.reason), of_status(|one| &one.message));
    let phase = [of_status(|one| &one.phase), reason, message];
    let annotations = pod.metadata.annotations.as_ref();
    PodReport {
        version: VERSION,
        pod: PodRef {
            namespace: pod.metadata.namespace.as_deref().unwrap_or("default").to_owned(),
            name: pod.metadata.name.clone().unwrap_or_default(),
        },
        phase: phase.into_iter().flatten().collect::<Vec<_>>().join(": "),
        scheduler: scheduler_of(pod).to_owned(),
        scheduled: scheduled.map(|one| Condition {
            status: one.status.clone(),
            reason: one.reason.clone().unwrap_or_default(),
            message: one.message.clone().unwrap_or_default(),
            since_ms: unix_ms(one.last_transition_time.as_ref()),
        }),
        recorded: annotations.and_then(|all| all.get(PLACEMENT)).map(|text| recorded(text)),
        ..PodReport::default()
    }
}

/// The annotation as data, or as text if it is no JSON.
fn recorded(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

pub fn scheduler_of(pod: &core::Pod) -> &str {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or(DEFAULT_SCHEDULER)
}

/// When the pod's last container ended, in milliseconds since 1970.
pub fn finished_at_ms(pod: &core::Pod) -> Option<i64> {
    let containers = pod.status.iter().flat_map(|status| &status.container_statuses).flatten();
    let ended = containers.filter_map(|one| one.state.as_ref()?.terminated.as_ref());
    ended.filter_map(|one| unix_ms(one.finished_at.as_ref())).max()
}

impl<S: Source> Inspection<'_, S> {
    pub fn pod(&mut self, pod: &core::Pod, audience: Audience) -> PodReport {
        let mut report = report_of(pod);
        report.scheduled_by_berth = self.source.serves(&report.scheduler);
        let created = unix_ms(pod.metadata.creation_timestamp.as_ref());
        report.age_seconds = created.map_or(0, |created| self.seconds_since(created));
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let known = self.source.pod(uid).map(|facts| facts.object.clone());
        match known.filter(|object| object.phase != Phase::Finished) {
            Some(object) => self.describe(&object, audience, &mut report),
            None => match pod.lower() {
                Ok(object) if object.phase == Phase::Finished => {
                    self.describe_finished(&object, &mut report);
                }
                Ok(object) => {
                    self.describe_spec(&object, &mut report);
                    report.why = "Its scheduler is not Berth, and it has no node yet.".to_owned();
                }
                Err(error) => {
                    report.gpus = request::NONE.to_owned();
                    report.why = format!("It cannot be read: {error}.");
                }
            },
        }
        report
    }

    fn describe_spec(&self, pod: &PodObject, report: &mut PodReport) {
        report.team = self.team_of(&pod.spec);
        report.class = self.class_of(&pod.spec);
        report.priority = pod.spec.priority;
        report.gpus = request::gpus(pod);
    }

    fn describe_finished(&self, pod: &PodObject, report: &mut PodReport) {
        self.describe_spec(pod, report);
        report.fate = Fate::Finished;
        let node = pod.node.as_deref().unwrap_or("no node");
        let rejections = [
            KubeletReason::TopologyAffinityError,
            KubeletReason::SmtAlignmentError,
            KubeletReason::UnexpectedAdmissionError,
        ];
        report.why = if rejections.iter().any(|reason| report.phase.contains(reason.as_str())) {
            format!(
                "The kubelet of {node} rejected it on arrival: its scheduler did not check whether the kubelet \
                 can align it. It holds no resources."
            )
        } else {
            format!("It ran on {node} and has finished; it holds no resources.")
        };
    }

    fn describe(&mut self, pod: &PodObject, audience: Audience, report: &mut PodReport) {
        self.describe_spec(pod, report);
        let explanation = self.engine.explain(&pod.uid, self.now_ms);
        let explanation = explanation.map(|explanation| match audience {
            Audience::Cluster => explanation,
            Audience::Namespace => explanation.for_namespace(&pod.spec.namespace),
        });
        match &pod.node {
            Some(node) => {
                report.fate = if pod.phase == Phase::Alive { Fate::Placed } else { Fate::Leaving };
                report.why = explanation.as_ref().map(render).unwrap_or_default();
                self.describe_place(pod, node, report);
            }
            None => self.describe_pending(pod, explanation.as_ref(), report),
        }
    }

    fn describe_pending(
        &mut self,
        pod: &PodObject,
        explanation: Option<&Explanation>,
        report: &mut PodReport,
    ) {
        report.notes = self.doubts();
        let Diagnosis { reason, why, remedies } = Diagnosis::of(explanation);
        report.fate = if reason == Reason::Leaving { Fate::Leaving } else { Fate::Pending };
        report.position = self.position(&pod.uid);
        report.nominated_node = pod.nominated.as_ref().map(ToString::to_string);
        // The remedies are a list of their own.
        report.why = why.split(" Would fit: ").next().unwrap_or_default().to_owned();
        report.remedies = remedies;
        report.would_go = self.would_go(pod);
        if matches!(reason, Reason::NoRoom | Reason::Gang) && report.would_go.is_none() {
            report.forecast = self.eta(&pod.uid);
        }
        if !report.scheduled_by_berth {
            report.notes.push(format!(
                "scheduled by {}, not by Berth: this is what Berth would do",
                report.scheduler
            ));
        }
    }

    fn describe_place(&self, pod: &PodObject, node: &str, report: &mut PodReport) {
        let Some(facts) = self.source.node(node) else {
            report.certainty = Some(format!("Node {node} does not exist any more."));
            report.place = Some(Placed::new(pod, node, ""));
            return;
        };
        let NodeFacts { inside, exported_free, .. } = facts;
        let pods = self.source.pods_on(node);
        let kubelet = self.engine.kubelet(node);
        let holdings = kubelet.map(|(mirror, _)| Holdings::new(mirror, &pods));
        let mut place =
            Placed::new(pod, node, &self.pool_of(node)).held(holdings.as_ref(), inside, pod);
        place.gpu_milli = self.usage(&facts).gpu_milli(&pod.spec, pod.gpu_grant.as_ref());
        place.claimed = self.claimed(pod);
        if let (Some(holdings), Some((_, true))) = (&holdings, kubelet) {
            let contradicted = doubt::contradicted(&holdings.kubelet, exported_free);
            report.notes.extend(contradicted.iter().map(|resource| {
                format!(
                    "the exporter of {node} reports other free {resource} by NUMA node than the pods there \
                     account for"
                )
            }));
        }
        let believed = kubelet.map(|(_, believed)| believed);
        report.certainty = Some(certainty(&place, believed, holdings.as_ref(), &pod.uid));
        report.place = Some(place);
    }

    /// Devices that its claims have been allocated.
    fn claimed(&self, pod: &PodObject) -> Vec<String> {
        let names = pod.claims.iter().filter_map(|claim| match &claim.source {
            ClaimSource::Named(name) | ClaimSource::Generated(name) => Some(&**name),
            _ => None,
        });
        names
            .filter_map(|name| self.engine.claim(&pod.spec.namespace, name)?.allocation.as_ref())
            .flat_map(|allocation| &allocation.devices)
            .map(|device| device.id.to_string())
            .collect()
    }

    /// Where it would be bound after the pods before it in the queue. Decisions are rolled back.
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
                found = self.source.node(&binding.node).map(|facts| {
                    let place = Placed::new(pod, &binding.node, &self.pool_of(&binding.node));
                    let mut place = place.bound(self.engine, facts.inside, binding);
                    place.gpu_milli =
                        self.usage(&facts).gpu_milli(&pod.spec, binding.gpu_grant.as_ref());
                    place
                });
            }
            if own.is_some() || finds_no_place(&decision, &pod.uid) {
                break;
            }
        }
        self.engine.rollback(checkpoint);
        found
    }
}

/// How certain it is where on its node a pod is. `believed` is `None` if the node's topology is unknown.
fn certainty(
    place: &Placed,
    believed: Option<bool>,
    holdings: Option<&Holdings<'_>>,
    uid: &str,
) -> String {
    let node = &place.node;
    let (Some(believed), Some(holdings)) = (believed, holdings) else {
        return format!(
            "The topology of {node} is unknown (no NodeResourceTopology, no labels), so its NUMA nodes and \
             devices are, too."
        );
    };
    match place.evidence {
        Evidence::Kubelet => return format!("The kubelet of {node} reports what it holds."),
        Evidence::Placement => {
            return "NUMA nodes and devices are as the scheduler recorded; CPUs are inferred from the kubelet's \
                    rules."
                .to_owned();
        }
        Evidence::Inferred => {}
    }
    if !believed {
        return format!(
            "A pod runs on {node} that its kubelet, as the node describes it, would have rejected: NUMA nodes \
             and devices are a guess."
        );
    }
    if holdings.kubelet.assignment(uid).is_none() {
        return format!("The kubelet of {node}, as the node describes it, would have rejected it.");
    }
    let inferred = "Inferred from the kubelet's rules and the order in which pods started";
    if !holdings.kubelet.is_certain() {
        return format!(
            "{inferred}; the kubelet chose at random in between, so this is one possible outcome."
        );
    }
    if place.devices.iter().any(|devices| !devices.one_of.is_empty()) {
        return format!("{inferred}; where it says \"of\", the device plugin picks.");
    }
    format!("{inferred}.")
}

/// Whether a decision says that there is no place for the pod.
fn finds_no_place(decision: &Decision, uid: &str) -> bool {
    match decision {
        Decision::Wait { pod } | Decision::Hold { pod, .. } => **pod == *uid,
        Decision::Preempt(preempting) => *preempting.pod == *uid,
        _ => false,
    }
}

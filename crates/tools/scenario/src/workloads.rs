//! The pods of workload objects, as controllers and the API server would create them: with owners,
//! names, priorities, LimitRange defaults, tolerations of DaemonSets, and claims from templates.
//!
//! A CronJob stands for one of its runs. Objects whose controller is among the objects are skipped.

mod individual;
mod limits;

use std::sync::Arc;

use berth_api::pod::resolve_priority;
use berth_api::workload::{self, Copies, PodTemplate, WorkloadKind};
use berth_api::{FieldPath, Lower};
use berth_engine::TEAM_LABEL;
use berth_engine::event::Event;
use berth_manifest::{Document, Problem};
use berth_model::affinity::NodeTerm;
use berth_model::label::Operator;
use berth_model::policy::Grouping;
use berth_model::spec::{PodObject, PodSpec};
use berth_model::workload::ClassRules;
pub use berth_sim::report::WorkloadOutline;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};

use crate::cluster::{Cluster, Objects, Read};

/// Maximum number of pods of one object.
pub const COPIES_MAX: u32 = 100_000;

/// Kubernetes' default of `spec.backoffLimit`.
const BACKOFF_LIMIT: u32 = 6;

/// A workload and the templates of its pods.
#[derive(Clone, Debug)]
pub struct WorkloadPods {
    pub document: Document,
    pub outline: WorkloadOutline,
    pub kind: WorkloadKind,
    /// Most have one.
    pub templates: Vec<Template>,
    pub groupings: Vec<Grouping>,
}

/// A pod template after defaulting and admission.
#[derive(Clone, Debug)]
pub struct Template {
    /// Pods with claims of their own differ from it in these claims.
    pub spec: Arc<PodSpec>,
    /// Concurrent pods; `None`: one on every matching node.
    pub copies: Option<u32>,
    pub job: Option<JobBounds>,
    /// Why the API server would reject the pods.
    pub refused: Option<String>,
    /// Prefix of the pods' names.
    prefix: String,
    /// Where the template is in the object.
    path: FieldPath,
    pod: core::Pod,
    claims: Vec<core::PersistentVolumeClaim>,
    individual: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobBounds {
    /// Pods that have to succeed.
    pub completions: u32,
    pub parallelism: u32,
    /// Pods that may fail before the job fails.
    pub backoff_limit: u32,
    pub deadline_ms: Option<i64>,
}

impl JobBounds {
    /// A pod without a Job: it is not retried.
    pub const ONE_POD: Self =
        Self { completions: 1, parallelism: 1, backoff_limit: 0, deadline_ms: None };
}

/// A new pod with the claims that are created for it.
#[derive(Clone, Debug)]
pub struct NewPod {
    pub pod: PodObject,
    pub claims: Vec<Event>,
}

/// The workloads among the objects, in their order. Priorities, limits and claim templates are the
/// cluster's.
pub fn pods_of(objects: &Objects, cluster: &Cluster) -> Result<Vec<WorkloadPods>, Problem> {
    let mut all = Vec::new();
    for read in &objects.0 {
        let document = &read.document;
        let Some(kind) = WorkloadKind::of(document.api_version(), document.kind()) else {
            continue;
        };
        if !is_controlled(read, objects)? {
            all.push(workload_of(document, kind, cluster)?);
        }
    }
    Ok(all)
}

/// Whether another of the objects is its controller.
fn is_controlled(read: &Read, objects: &Objects) -> Result<bool, Problem> {
    let field = FieldPath::root().key("metadata").key("ownerReferences");
    let owners: Vec<OwnerReference> = read.document.decode_at(&field)?.unwrap_or_default();
    let controller = owners.iter().find(|owner| owner.controller == Some(true));
    Ok(controller.is_some_and(|owner| {
        objects.0.iter().map(|other| &other.document).any(|other| {
            other.kind() == owner.kind
                && other.name() == Some(owner.name.as_str())
                && other.namespace() == read.document.namespace()
        })
    }))
}

fn workload_of(
    document: &Document,
    kind: WorkloadKind,
    cluster: &Cluster,
) -> Result<WorkloadPods, Problem> {
    // Kinds that Kubernetes itself has were read before, with the place of every mistake.
    let workload = workload::Workload::read(kind, document.value())
        .map_err(|error| document.problem(FieldPath::root(), format!("cannot be read: {error}")))?;
    let name = workload.metadata.name.clone().or_else(|| workload.metadata.generate_name.clone());
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        let field = FieldPath::root().key("metadata").key("name");
        return Err(document.problem(field, "is required").with_remedy("write a name"));
    };
    check_namespace(document, cluster)?;
    let several = workload.templates.len() > 1;
    let mut templates = Vec::new();
    let mut groupings = Vec::new();
    for (index, template) in workload.templates.iter().enumerate() {
        check_selector(document, template)?;
        let prefix = if several { format!("{name}-{index}") } else { name.clone() };
        let lowered = read_template(document, &workload, template, prefix, cluster)?;
        groupings.extend(grouping(document, kind, &name, template, &lowered.spec)?);
        templates.push(lowered);
    }
    let outline = outline(document, kind, &name, templates.first().map(|one| &*one.spec));
    Ok(WorkloadPods { document: document.clone(), outline, kind, templates, groupings })
}

fn outline(
    document: &Document,
    kind: WorkloadKind,
    name: &str,
    spec: Option<&PodSpec>,
) -> WorkloadOutline {
    let team = spec.and_then(|spec| spec.labels.get(TEAM_LABEL)).map(ToString::to_string);
    let on_object = FieldPath::root().key("metadata").key("labels").key(TEAM_LABEL);
    let team_of_object = || {
        let value = document.value_at(&on_object)?;
        value.as_str().map(str::to_owned)
    };
    let class = spec.map(|spec| ClassRules::default().class_of(spec).to_string());
    WorkloadOutline {
        kind: kind.as_str().to_owned(),
        namespace: spec.map_or("default", |spec| &spec.namespace).to_owned(),
        name: name.to_owned(),
        team: team.or_else(team_of_object).unwrap_or_default(),
        class: class.unwrap_or_default(),
    }
}

/// A missing namespace is an error, unless the dump contains no namespaces at all.
fn check_namespace(document: &Document, cluster: &Cluster) -> Result<(), Problem> {
    let namespace = document.namespace().unwrap_or("default");
    if cluster.namespaces.is_empty() || cluster.namespaces.iter().any(|one| **one == *namespace) {
        return Ok(());
    }
    let field = FieldPath::root().key("metadata").key("namespace");
    let message = format!("namespace {namespace:?} not found");
    Err(document.problem(field, message).with_remedy("create it, or correct the name"))
}

/// The API server rejects a workload whose selector does not match its template.
fn check_selector(document: &Document, template: &PodTemplate) -> Result<(), Problem> {
    let Some((field, selector)) = &template.selector else { return Ok(()) };
    let labels = template.metadata.labels.clone().unwrap_or_default();
    let unmatched = selector
        .match_labels
        .iter()
        .flatten()
        .find(|(key, value)| labels.get(*key) != Some(*value));
    let Some((key, value)) = unmatched else { return Ok(()) };
    let field = field.clone().key("matchLabels").key(key.as_str());
    let message = format!("the pod template has no label {key}={value}");
    Err(document
        .problem(field, message)
        .with_remedy("use the same labels in the selector and the template"))
}

fn read_template(
    document: &Document,
    workload: &workload::Workload,
    template: &PodTemplate,
    prefix: String,
    cluster: &Cluster,
) -> Result<Template, Problem> {
    let mut pod = workload.pod(template);
    pod.metadata.name = Some(prefix.clone());
    let namespace = document.namespace().unwrap_or("default").to_owned();
    pod.metadata.namespace = Some(namespace.clone());
    if let Some(owner) = owner(workload.kind, &prefix, workload.metadata.name.as_deref()) {
        pod.metadata.owner_references = Some(vec![owner]);
    }
    if workload.kind == WorkloadKind::DaemonSet {
        add_daemon_tolerations(&mut pod);
    }
    let ranges: Vec<&core::LimitRange> = cluster
        .limit_ranges
        .iter()
        .filter(|range| range.metadata.namespace.as_deref().unwrap_or("default") == namespace)
        .collect();
    limits::apply(&mut pod, &ranges);
    let refused = limits::refusal(&pod, &ranges);
    let problem = |error| document.lower_problem(&template.path, &error);
    resolve_priority(&mut pod, &cluster.priority_classes).map_err(problem)?;
    let claims = claims_of(document, workload.kind)?;
    let individual = !claims.is_empty() || individual::has_own_claims(&pod);
    let lowered = pod.lower().map_err(problem)?;
    let mut copies = None;
    if let Copies::Count { at_once, field } = &template.copies {
        if *at_once > COPIES_MAX {
            let message = format!("must be at most {COPIES_MAX} (got {at_once})");
            return Err(document.problem(field.clone(), message).with_remedy("reduce it"));
        }
        copies = Some(*at_once);
    }
    Ok(Template {
        spec: lowered.spec,
        copies,
        job: job(document, template),
        refused,
        prefix,
        path: template.path.clone(),
        pod,
        claims,
        individual,
    })
}

/// The pods' controller: of a Deployment its ReplicaSet, of a CronJob a Job.
fn owner(kind: WorkloadKind, prefix: &str, name: Option<&str>) -> Option<OwnerReference> {
    let own = name.unwrap_or(prefix);
    let (kind, api_version, name) = match kind {
        WorkloadKind::Pod => return None,
        WorkloadKind::Deployment | WorkloadKind::ReplicaSet => ("ReplicaSet", "apps/v1", own),
        WorkloadKind::ReplicationController => ("ReplicationController", "v1", own),
        WorkloadKind::StatefulSet => ("StatefulSet", "apps/v1", own),
        WorkloadKind::LeaderWorkerSet => ("StatefulSet", "apps/v1", prefix),
        WorkloadKind::DaemonSet => ("DaemonSet", "apps/v1", own),
        WorkloadKind::Job | WorkloadKind::CronJob => ("Job", "batch/v1", own),
        WorkloadKind::JobSet => ("Job", "batch/v1", prefix),
    };
    Some(OwnerReference {
        api_version: api_version.to_owned(),
        block_owner_deletion: None,
        controller: Some(true),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: String::new(),
    })
}

/// The tolerations that the DaemonSet controller adds.
fn add_daemon_tolerations(pod: &mut core::Pod) {
    let Some(spec) = pod.spec.as_mut() else { return };
    let mut kinds = vec![
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ];
    if spec.host_network == Some(true) {
        kinds.push(("network-unavailable", "NoSchedule"));
    }
    let added = kinds.into_iter().map(|(name, effect)| core::Toleration {
        key: Some(format!("node.kubernetes.io/{name}")),
        operator: Some("Exists".to_owned()),
        effect: Some(effect.to_owned()),
        ..core::Toleration::default()
    });
    spec.tolerations.get_or_insert_default().extend(added);
}

/// The claim templates of a StatefulSet.
fn claims_of(
    document: &Document,
    kind: WorkloadKind,
) -> Result<Vec<core::PersistentVolumeClaim>, Problem> {
    if kind != WorkloadKind::StatefulSet {
        return Ok(Vec::new());
    }
    let field = FieldPath::root().key("spec").key("volumeClaimTemplates");
    Ok(document.decode_at(&field)?.unwrap_or_default())
}

fn job(document: &Document, template: &PodTemplate) -> Option<JobBounds> {
    let job = template.job.as_ref()?;
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let parallelism = count(job.parallelism.unwrap_or(1));
    let backoff = document.value_at(&job.path.clone().key("backoffLimit"));
    let backoff = backoff.and_then(|value| value.as_u64());
    Some(JobBounds {
        completions: job.completions.map_or(parallelism.max(1), count),
        parallelism,
        backoff_limit: backoff.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(BACKOFF_LIMIT),
        deadline_ms: job.active_deadline_seconds.map(|seconds| seconds.saturating_mul(1000)),
    })
}

/// Controllers whose pods kube-scheduler spreads by default.
fn grouping(
    document: &Document,
    kind: WorkloadKind,
    name: &str,
    template: &PodTemplate,
    spec: &PodSpec,
) -> Result<Option<Grouping>, Problem> {
    let kind = match kind {
        WorkloadKind::Deployment | WorkloadKind::ReplicaSet => "ReplicaSet",
        WorkloadKind::StatefulSet => "StatefulSet",
        WorkloadKind::ReplicationController => "ReplicationController",
        _ => return Ok(None),
    };
    let Some((path, selector)) = &template.selector else { return Ok(None) };
    Ok(Some(Grouping {
        kind: kind.into(),
        namespace: spec.namespace.clone(),
        name: name.into(),
        selector: lower_selector(document, path, name, selector)?,
    }))
}

/// Lowers a selector through an object that has one.
fn lower_selector(
    document: &Document,
    path: &FieldPath,
    name: &str,
    selector: &LabelSelector,
) -> Result<Option<berth_model::label::Selector>, Problem> {
    let mut set = k8s_openapi::api::apps::v1::ReplicaSet::default();
    set.metadata.name = Some(name.to_owned());
    set.spec.get_or_insert_default().selector = selector.clone();
    let grouping = set.lower().map_err(|error| {
        document.problem(path.clone(), error.problem.clone()).with_remedy("correct the selector")
    })?;
    Ok(grouping.selector)
}

impl WorkloadPods {
    /// All pods except those of DaemonSets, which depend on the nodes.
    pub fn new_pods(&self, cluster: &Cluster) -> Result<Vec<NewPod>, Problem> {
        let mut pods = Vec::new();
        for template in &self.templates {
            for index in 0..template.copies.unwrap_or(0) {
                pods.push(template.new_pod(self, &index.to_string(), cluster)?);
            }
        }
        Ok(pods)
    }

    /// A DaemonSet's pod for a node.
    pub fn daemon(
        &self,
        template: &Template,
        node: &Arc<str>,
        cluster: &Cluster,
    ) -> Result<NewPod, Problem> {
        let mut new = template.new_pod(self, node, cluster)?;
        let mut spec = PodSpec::clone(&new.pod.spec);
        // Like the DaemonSet controller: every alternative requires the node by name.
        let alternatives =
            spec.node_affinity.required.get_or_insert_with(|| vec![NodeTerm::default()]);
        for term in alternatives {
            term.name = vec![Operator::In(vec![node.clone()])];
        }
        new.pod.spec = Arc::new(spec);
        Ok(new)
    }
}

impl Template {
    fn new_pod(
        &self,
        workload: &WorkloadPods,
        ending: &str,
        cluster: &Cluster,
    ) -> Result<NewPod, Problem> {
        let name = match workload.kind {
            WorkloadKind::Pod => self.prefix.clone(),
            _ => format!("{}-{ending}", self.prefix),
        };
        let uid = format!("new/{}/{name}", self.spec.namespace);
        if self.individual {
            return individual::pod(self, workload, &name, &uid, cluster);
        }
        let pod = PodObject {
            uid: uid.into(),
            name: name.into(),
            spec: self.spec.clone(),
            created_at_ms: cluster.now_ms,
            started_at_ms: None,
            node: None,
            nominated: None,
            phase: berth_model::spec::Phase::Alive,
            deletion: None,
            gpu_grant: None,
            claims: Arc::default(),
        };
        Ok(NewPod { pod, claims: Vec::new() })
    }
}

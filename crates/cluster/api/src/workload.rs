//! Workloads: objects that create pods, and pods themselves. Where each kind keeps its pod templates, how many pods it
//! creates, and how jobs limit their time.

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::{Deserialize, Deserializer};

use crate::FieldPath;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadKind {
    Pod,
    ReplicationController,
    ReplicaSet,
    Deployment,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    /// `jobset.x-k8s.io/v1alpha2`: several jobs as one.
    JobSet,
    /// `leaderworkerset.x-k8s.io/v1`: groups of pods, each with a leader.
    LeaderWorkerSet,
}

impl WorkloadKind {
    const ALL: [(Self, &'static str, &'static str); 10] = [
        (Self::Pod, "v1", "Pod"),
        (Self::ReplicationController, "v1", "ReplicationController"),
        (Self::ReplicaSet, "apps/v1", "ReplicaSet"),
        (Self::Deployment, "apps/v1", "Deployment"),
        (Self::StatefulSet, "apps/v1", "StatefulSet"),
        (Self::DaemonSet, "apps/v1", "DaemonSet"),
        (Self::Job, "batch/v1", "Job"),
        (Self::CronJob, "batch/v1", "CronJob"),
        (Self::JobSet, "jobset.x-k8s.io/v1alpha2", "JobSet"),
        (Self::LeaderWorkerSet, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    ];

    /// `None` for kinds that create no pods.
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        let found =
            Self::ALL.iter().find(|(_, version, name)| *version == api_version && *name == kind);
        found.map(|(kind, ..)| *kind)
    }

    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(kind, ..)| *kind == self).map_or("", |(.., name)| name)
    }

    /// Whether its pods run to completion.
    pub const fn is_batch(self) -> bool {
        matches!(self, Self::Job | Self::CronJob | Self::JobSet)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    pub kind: WorkloadKind,
    pub metadata: ObjectMeta,
    /// Templates of the pods; of a pod, the pod itself.
    pub templates: Vec<PodTemplate>,
}

/// A pod template of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct PodTemplate {
    /// Path to the object with `metadata` and `spec` of the pods.
    pub path: FieldPath,
    pub metadata: ObjectMeta,
    pub spec: core::PodSpec,
    pub copies: Copies,
    /// Path and value of the label selector, if there is one.
    pub selector: Option<(FieldPath, LabelSelector)>,
    pub job: Option<JobTerms>,
}

/// How many pods are created from a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copies {
    Count {
        at_once: u32,
        field: FieldPath,
    },
    /// One on every eligible node.
    PerNode,
}

impl Copies {
    /// `None` if that depends on the nodes.
    pub const fn at_once(&self) -> Option<u32> {
        match self {
            Self::Count { at_once, .. } => Some(*at_once),
            Self::PerNode => None,
        }
    }
}

/// Limits of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobTerms {
    /// Path to the job's spec.
    pub path: FieldPath,
    /// `activeDeadlineSeconds`.
    pub active_deadline_seconds: Option<i64>,
    /// Pods that must succeed; `None` for one, or as the work queue decides.
    pub completions: Option<i32>,
    /// Pods that run concurrently.
    pub parallelism: Option<i32>,
}

impl Workload {
    pub fn read<'de, D>(kind: WorkloadKind, object: D) -> Result<Self, D::Error>
    where
        D: Deserializer<'de>,
    {
        Ok(match kind {
            WorkloadKind::Pod => core::Pod::deserialize(object)?.into(),
            WorkloadKind::ReplicationController => {
                core::ReplicationController::deserialize(object)?.into()
            }
            WorkloadKind::ReplicaSet => apps::ReplicaSet::deserialize(object)?.into(),
            WorkloadKind::Deployment => apps::Deployment::deserialize(object)?.into(),
            WorkloadKind::StatefulSet => apps::StatefulSet::deserialize(object)?.into(),
            WorkloadKind::DaemonSet => apps::DaemonSet::deserialize(object)?.into(),
            WorkloadKind::Job => batch::Job::deserialize(object)?.into(),
            WorkloadKind::CronJob => batch::CronJob::deserialize(object)?.into(),
            WorkloadKind::JobSet => JobSet::deserialize(object)?.into(),
            WorkloadKind::LeaderWorkerSet => LeaderWorkerSet::deserialize(object)?.into(),
        })
    }

    /// A pod as the workload creates it, with the name and namespace of the workload.
    pub fn pod(&self, template: &PodTemplate) -> core::Pod {
        let metadata = ObjectMeta {
            name: template.metadata.name.clone().or_else(|| self.metadata.name.clone()),
            namespace: self.metadata.namespace.clone(),
            ..template.metadata.clone()
        };
        core::Pod { metadata, spec: Some(template.spec.clone()), status: None }
    }

    fn with(kind: WorkloadKind, metadata: ObjectMeta, templates: Vec<PodTemplate>) -> Self {
        Self { kind, metadata, templates }
    }
}

fn spec() -> FieldPath {
    FieldPath::root().key("spec")
}

fn template(path: FieldPath, template: core::PodTemplateSpec, copies: Copies) -> PodTemplate {
    PodTemplate {
        path,
        metadata: template.metadata.unwrap_or_default(),
        spec: template.spec.unwrap_or_default(),
        copies,
        selector: None,
        job: None,
    }
}

/// `replicas`; default 1.
fn replicas(count: Option<i32>, field: FieldPath) -> Copies {
    Copies::Count { at_once: u32::try_from(count.unwrap_or(1)).unwrap_or(0), field }
}

fn controlled(
    kind: WorkloadKind,
    metadata: ObjectMeta,
    pods: core::PodTemplateSpec,
    selector: LabelSelector,
    copies: Copies,
) -> Workload {
    let mut template = template(spec().key("template"), pods, copies);
    template.selector = Some((spec().key("selector"), selector));
    Workload::with(kind, metadata, vec![template])
}

impl From<core::Pod> for Workload {
    fn from(pod: core::Pod) -> Self {
        let one = Copies::Count { at_once: 1, field: FieldPath::root() };
        let template = PodTemplate {
            path: FieldPath::root(),
            metadata: pod.metadata.clone(),
            spec: pod.spec.unwrap_or_default(),
            copies: one,
            selector: None,
            job: None,
        };
        Self::with(WorkloadKind::Pod, pod.metadata, vec![template])
    }
}

impl From<core::ReplicationController> for Workload {
    fn from(object: core::ReplicationController) -> Self {
        let of = object.spec.unwrap_or_default();
        let pods = of.template.unwrap_or_default();
        // It selects the labels of its template unless it says otherwise.
        let labels = pods.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
        let selector =
            LabelSelector { match_labels: of.selector.or(labels), match_expressions: None };
        let copies = replicas(of.replicas, spec().key("replicas"));
        let kind = WorkloadKind::ReplicationController;
        controlled(kind, object.metadata, pods, selector, copies)
    }
}

impl From<apps::ReplicaSet> for Workload {
    fn from(object: apps::ReplicaSet) -> Self {
        let of = object.spec.unwrap_or_default();
        let copies = replicas(of.replicas, spec().key("replicas"));
        let pods = of.template.unwrap_or_default();
        controlled(WorkloadKind::ReplicaSet, object.metadata, pods, of.selector, copies)
    }
}

impl From<apps::Deployment> for Workload {
    fn from(object: apps::Deployment) -> Self {
        let of = object.spec.unwrap_or_default();
        let copies = replicas(of.replicas, spec().key("replicas"));
        controlled(WorkloadKind::Deployment, object.metadata, of.template, of.selector, copies)
    }
}

impl From<apps::StatefulSet> for Workload {
    fn from(object: apps::StatefulSet) -> Self {
        let of = object.spec.unwrap_or_default();
        let copies = replicas(of.replicas, spec().key("replicas"));
        controlled(WorkloadKind::StatefulSet, object.metadata, of.template, of.selector, copies)
    }
}

impl From<apps::DaemonSet> for Workload {
    fn from(object: apps::DaemonSet) -> Self {
        let of = object.spec.unwrap_or_default();
        let kind = WorkloadKind::DaemonSet;
        controlled(kind, object.metadata, of.template, of.selector, Copies::PerNode)
    }
}

/// The pods of `times` jobs whose spec is at `path`.
fn of_job(path: FieldPath, job: batch::JobSpec, times: u32) -> PodTemplate {
    // Never more at once than must succeed.
    let wanted = job.parallelism.unwrap_or(1).min(job.completions.unwrap_or(i32::MAX));
    let at_once = u32::try_from(wanted).unwrap_or(0).saturating_mul(times);
    let field = path.clone().key("parallelism");
    let mut template =
        template(path.clone().key("template"), job.template, Copies::Count { at_once, field });
    template.job = Some(JobTerms {
        path,
        active_deadline_seconds: job.active_deadline_seconds,
        completions: job.completions,
        parallelism: job.parallelism,
    });
    template
}

impl From<batch::Job> for Workload {
    fn from(object: batch::Job) -> Self {
        let template = of_job(spec(), object.spec.unwrap_or_default(), 1);
        Self::with(WorkloadKind::Job, object.metadata, vec![template])
    }
}

impl From<batch::CronJob> for Workload {
    fn from(object: batch::CronJob) -> Self {
        let job = object.spec.job_template.spec.unwrap_or_default();
        let template = of_job(spec().key("jobTemplate").key("spec"), job, 1);
        Self::with(WorkloadKind::CronJob, object.metadata, vec![template])
    }
}

/// The fields of a JobSet that matter here.
#[derive(Deserialize)]
struct JobSet {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: JobSetSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct JobSetSpec {
    #[serde(default)]
    replicated_jobs: Vec<ReplicatedJob>,
}

#[derive(Deserialize)]
struct ReplicatedJob {
    replicas: Option<i32>,
    #[serde(default)]
    template: batch::JobTemplateSpec,
}

impl From<JobSet> for Workload {
    fn from(object: JobSet) -> Self {
        let jobs = object.spec.replicated_jobs.into_iter().enumerate();
        let templates = jobs.map(|(index, one)| {
            let path = spec().key("replicatedJobs").at(index).key("template").key("spec");
            let times = u32::try_from(one.replicas.unwrap_or(1)).unwrap_or(0);
            of_job(path, one.template.spec.unwrap_or_default(), times)
        });
        Self::with(WorkloadKind::JobSet, object.metadata, templates.collect())
    }
}

/// The fields of a LeaderWorkerSet that matter here.
#[derive(Deserialize)]
struct LeaderWorkerSet {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: LeaderWorkerSetSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeaderWorkerSetSpec {
    replicas: Option<i32>,
    #[serde(default)]
    leader_worker_template: LeaderWorkerTemplate,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeaderWorkerTemplate {
    leader_template: Option<core::PodTemplateSpec>,
    #[serde(default)]
    worker_template: core::PodTemplateSpec,
    size: Option<i32>,
}

impl From<LeaderWorkerSet> for Workload {
    fn from(object: LeaderWorkerSet) -> Self {
        let of = object.spec.leader_worker_template;
        let groups = u32::try_from(object.spec.replicas.unwrap_or(1)).unwrap_or(0);
        let size = u32::try_from(of.size.unwrap_or(1)).unwrap_or(0);
        let path = spec().key("leaderWorkerTemplate");
        let each = |of_group: u32, field: FieldPath| Copies::Count {
            at_once: groups.saturating_mul(of_group),
            field,
        };
        let mut templates = Vec::new();
        let mut of_workers = size;
        if let Some(leader) = of.leader_template {
            let copies = each(1, spec().key("replicas"));
            templates.push(template(path.clone().key("leaderTemplate"), leader, copies));
            of_workers = size.saturating_sub(1);
        }
        if of_workers > 0 {
            let copies = each(of_workers, path.clone().key("size"));
            templates.push(template(path.key("workerTemplate"), of.worker_template, copies));
        }
        Self::with(WorkloadKind::LeaderWorkerSet, object.metadata, templates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(object: Value) -> Workload {
        let text = |key: &str| object[key].as_str().unwrap().to_owned();
        let kind = WorkloadKind::of(&text("apiVersion"), &text("kind")).unwrap();
        assert_eq!(kind.as_str(), text("kind"));
        Workload::read(kind, object).unwrap()
    }

    fn pod() -> Value {
        json!({ "metadata": { "labels": { "app": "a" } },
                "spec": { "containers": [{ "name": "one" }] } })
    }

    fn seen(workload: &Workload) -> Vec<(String, Option<u32>)> {
        let templates = workload.templates.iter();
        templates.map(|one| (one.path.to_string(), one.copies.at_once())).collect()
    }

    #[test]
    fn every_kind_says_where_its_pods_are_and_how_many() {
        let job = json!({ "parallelism": 4, "completions": 3, "template": pod() });
        let set = json!({ "replicas": 3, "selector": {}, "template": pod() });
        let cases = [
            (
                json!({ "apiVersion": "v1", "kind": "Pod", "spec": pod()["spec"] }),
                vec![("", Some(1))],
            ),
            (
                json!({ "apiVersion": "apps/v1", "kind": "Deployment", "spec": set }),
                vec![("spec.template", Some(3))],
            ),
            (
                json!({ "apiVersion": "apps/v1", "kind": "StatefulSet",
                     "spec": { "selector": {}, "template": pod() } }),
                vec![("spec.template", Some(1))],
            ),
            (
                json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "spec": set }),
                vec![("spec.template", None)],
            ),
            (
                json!({ "apiVersion": "batch/v1", "kind": "Job", "spec": job }),
                vec![("spec.template", Some(3))],
            ),
            (
                json!({ "apiVersion": "batch/v1", "kind": "CronJob",
                     "spec": { "schedule": "@daily", "jobTemplate": { "spec": job } } }),
                vec![("spec.jobTemplate.spec.template", Some(3))],
            ),
            (
                json!({ "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
                     "spec": { "replicatedJobs": [
                         { "name": "driver", "template": { "spec": { "template": pod() } } },
                         { "name": "worker", "replicas": 2, "template": { "spec": job } },
                     ] } }),
                vec![
                    ("spec.replicatedJobs[0].template.spec.template", Some(1)),
                    ("spec.replicatedJobs[1].template.spec.template", Some(6)),
                ],
            ),
            (
                json!({ "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
                     "spec": { "replicas": 2, "leaderWorkerTemplate": {
                         "size": 4, "leaderTemplate": pod(), "workerTemplate": pod() } } }),
                vec![
                    ("spec.leaderWorkerTemplate.leaderTemplate", Some(2)),
                    ("spec.leaderWorkerTemplate.workerTemplate", Some(6)),
                ],
            ),
        ];
        for (object, expected) in cases {
            let workload = read(object);
            let expected: Vec<_> =
                expected.into_iter().map(|(path, count)| (path.to_owned(), count)).collect();
            assert_eq!(seen(&workload), expected, "{:?}", workload.kind);
            assert!(workload.templates.iter().all(|one| one.spec.containers.len() == 1));
        }
        assert_eq!(WorkloadKind::of("v1", "Service"), None);
        assert_eq!(WorkloadKind::of("apps/v1beta1", "Deployment"), None);
    }

    #[test]
    fn pods_take_the_name_and_namespace_of_what_makes_them() {
        let workload = read(json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": { "name": "web", "namespace": "team" },
            "spec": { "selector": { "matchLabels": { "app": "a" } }, "template": pod() },
        }));
        let pod = workload.pod(&workload.templates[0]);
        assert_eq!(pod.metadata.name.as_deref(), Some("web"));
        assert_eq!(pod.metadata.namespace.as_deref(), Some("team"));
        assert_eq!(pod.metadata.labels.unwrap()["app"], "a");
    }
}

//! A pod template for rules: its GPU requests, its kind of work, and the defaults of its namespace.

use berth_api::workload::{PodTemplate, Workload, WorkloadKind};
use berth_api::{FieldPath, Lower, LowerError};
use berth_model::pod::{ContainerKind, Pod};
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceName;
use berth_model::spec::PodSpec;
use berth_model::workload::WorkloadClass;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::context::Context;
use crate::settings::Settings;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Serving,
    Batch,
    /// DaemonSets.
    System,
    Unknown,
}

/// A container's request for GPUs or parts of them.
#[derive(Clone, Debug)]
pub(crate) struct GpuAsk<'a> {
    pub(crate) container: ContainerView<'a>,
    pub(crate) resource: &'a str,
    /// `None` if it is not an integer.
    pub(crate) count: Option<u64>,
}

/// A container and its field.
#[derive(Clone, Debug)]
pub(crate) struct ContainerView<'a> {
    pub(crate) path: FieldPath,
    pub(crate) kind: ContainerKind,
    pub(crate) spec: &'a core::Container,
}

impl<'a> ContainerView<'a> {
    pub(crate) fn limit(&self, resource: &str) -> Option<&'a Text> {
        self.spec.resources.as_ref()?.limits.as_ref()?.get(resource)
    }

    pub(crate) fn request(&self, resource: &str) -> Option<&'a Text> {
        self.spec.resources.as_ref()?.requests.as_ref()?.get(resource)
    }

    /// With a request or a limit.
    pub(crate) fn resources(&self) -> std::collections::BTreeSet<&'a str> {
        let given = self.spec.resources.as_ref();
        let limits = given.and_then(|given| given.limits.as_ref()).into_iter().flatten();
        let requests = given.and_then(|given| given.requests.as_ref()).into_iter().flatten();
        limits.chain(requests).map(|(name, _)| name.as_str()).collect()
    }

    pub(crate) fn field(&self, list: &'static str, resource: &str) -> FieldPath {
        self.path.clone().key("resources").key(list).key(resource)
    }

    /// The field and value of an environment variable.
    pub(crate) fn env(&self, name: &str) -> Option<(FieldPath, &'a str)> {
        let mut all = self.spec.env.iter().flatten().enumerate();
        let (index, found) = all.find(|(_, one)| one.name == name)?;
        let path = self.path.clone().key("env").at(index);
        Some((path, found.value.as_deref().unwrap_or("")))
    }
}

pub(crate) struct PodView<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) template: &'a PodTemplate,
    pub(crate) namespace: &'a str,
    /// With the defaults of the namespace's LimitRanges.
    pub(crate) lowered: Result<PodSpec, LowerError>,
    pub(crate) containers: Vec<ContainerView<'a>>,
    pub(crate) gpus: Vec<GpuAsk<'a>>,
    pub(crate) work: Work,
}

impl<'a> PodView<'a> {
    pub(crate) fn new(
        workload: &'a Workload,
        template: &'a PodTemplate,
        namespace: &'a str,
        context: &Context,
        settings: &Settings,
    ) -> Self {
        let containers = containers(template);
        let gpus = containers.iter().flat_map(|one| asks(one, settings)).collect();
        let mut pod = workload.pod(template);
        // A template needs no name.
        pod.metadata.name.get_or_insert_with(|| workload.kind.as_str().to_lowercase());
        let lowered = pod.lower().map(|object| {
            let mut spec = (*object.spec).clone();
            let ranges = Context::in_namespace(&context.limit_ranges, namespace);
            ranges.iter().for_each(|range| add_defaults(&mut spec.pod, range));
            spec
        });
        Self {
            workload,
            template,
            namespace,
            lowered,
            containers,
            gpus,
            work: work(workload.kind, template, settings),
        }
    }

    /// The field of the pods' spec.
    pub(crate) fn spec_field(&self, field: &str) -> FieldPath {
        self.template.path.clone().key("spec").join(&FieldPath::parse(field))
    }

    /// The field of one of the pods' labels.
    pub(crate) fn label_field(&self, key: &str) -> FieldPath {
        self.template.path.clone().key("metadata").key("labels").key(key)
    }

    /// The field of one of the pods' annotations.
    pub(crate) fn annotation_field(&self, key: &str) -> FieldPath {
        self.template.path.clone().key("metadata").key("annotations").key(key)
    }

    /// Whether it asks for GPUs or a part of one.
    pub(crate) fn uses_gpus(&self) -> bool {
        !self.gpus.is_empty() || self.lowered.as_ref().is_ok_and(|spec| spec.gpu.is_some())
    }

    /// Whether it may use devices that only a resource claim tells of.
    pub(crate) fn claims_devices(&self) -> bool {
        self.template.spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty())
    }

    /// Whether it serves, on GPUs.
    pub(crate) fn serves_on_gpus(&self) -> bool {
        self.work == Work::Serving && self.uses_gpus()
    }

    /// Most GPUs that one container asks for.
    pub(crate) fn gpus_max(&self) -> u64 {
        self.gpus.iter().filter_map(|ask| ask.count).max().unwrap_or(0)
    }

    /// How many pods there are at a time, if that is known.
    pub(crate) fn copies(&self) -> Option<u32> {
        self.template.copies.at_once()
    }
}

fn containers(template: &PodTemplate) -> Vec<ContainerView<'_>> {
    let at =
        |list: &'static str, index: usize| template.path.clone().key("spec").key(list).at(index);
    let init = template.spec.init_containers.iter().flatten().enumerate();
    let init = init.map(|(index, spec)| ContainerView {
        path: at("initContainers", index),
        kind: match spec.restart_policy.as_deref() {
            Some("Always") => ContainerKind::Sidecar,
            _ => ContainerKind::Init,
        },
        spec,
    });
    let apps = template.spec.containers.iter().enumerate().map(|(index, spec)| ContainerView {
        path: at("containers", index),
        kind: ContainerKind::App,
        spec,
    });
    init.chain(apps).collect()
}

fn asks<'a>(container: &ContainerView<'a>, settings: &Settings) -> Vec<GpuAsk<'a>> {
    let gpus = container.resources().into_iter().filter(|name| settings.is_gpu(name));
    gpus.filter_map(|resource| {
        let Text(text) = container.limit(resource).or_else(|| container.request(resource))?;
        let count = Quantity::parse(text).ok().and_then(Quantity::as_i64);
        let count = count.and_then(|count| u64::try_from(count).ok());
        // Whoever asks for none asks for none.
        (count != Some(0)).then(|| GpuAsk { container: container.clone(), resource, count })
    })
    .collect()
}

fn work(kind: WorkloadKind, template: &PodTemplate, settings: &Settings) -> Work {
    let label = crate::context::label_of(&template.metadata, berth_api::keys::CLASS);
    let spec = &template.spec;
    let by_name = || settings.class_rules().by_name(spec.priority_class_name.as_deref()?);
    if let Some(class) = label.and_then(WorkloadClass::parse).or_else(by_name) {
        return if class.is_serving() { Work::Serving } else { Work::Batch };
    }
    match kind {
        WorkloadKind::DaemonSet => Work::System,
        kind if kind.is_batch() => Work::Batch,
        WorkloadKind::Pod => match spec.restart_policy.as_deref() {
            Some("Never" | "OnFailure") => Work::Batch,
            _ if spec.containers.iter().any(listens) => Work::Serving,
            _ => Work::Unknown,
        },
        _ => Work::Serving,
    }
}

fn listens(container: &core::Container) -> bool {
    container.readiness_probe.is_some()
        || container.ports.as_ref().is_some_and(|ports| !ports.is_empty())
}

/// What a LimitRange gives to containers that do not say it themselves, as the API server does it
/// before a pod is stored.
fn add_defaults(pod: &mut Pod, range: &core::LimitRange) {
    let items = range.spec.iter().flat_map(|spec| &spec.limits);
    for item in items.filter(|item| item.type_ == "Container") {
        let lists = [(&item.default, false), (&item.default_request, true), (&item.default, true)];
        for (list, is_request) in lists {
            for (name, Text(text)) in list.iter().flatten() {
                let Ok(quantity) = Quantity::parse(text) else { continue };
                for container in &mut pod.containers {
                    let resources = &mut container.resources;
                    let into =
                        if is_request { &mut resources.requests } else { &mut resources.limits };
                    into.entry(ResourceName::new(name.as_str())).or_insert(quantity);
                }
            }
        }
    }
}

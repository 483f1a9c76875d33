//! Containers: requests, ports and images.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::pod::{Container, ContainerKind, Pod};
use berth_model::resize::{ReportedPodResources, ReportedResources};
use berth_model::spec::{HostPort, Protocol};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::error::{Problem, each};
use crate::meta;
use crate::resource::{resource_list, resources};

/// The address that stands for all of them.
const ALL_ADDRESSES: &str = "0.0.0.0";

/// What the pod counts with: its requests defaulted, and as large as what the node still reports.
pub(super) fn pod(spec: &core::PodSpec, status: Option<&core::PodStatus>) -> Result<Pod, Problem> {
    let in_spec = |problem: Problem| problem.under("spec");
    if spec.containers.is_empty() {
        let problem = "is empty; a pod has at least one container";
        return Err(Problem::new("spec.containers", problem));
    }
    let mut containers =
        each("initContainers", spec.init_containers.as_ref(), |one| container(one, init_kind(one)))
            .map_err(in_spec)?;
    let app = |one: &core::Container| container(one, ContainerKind::App);
    containers.extend(each("containers", Some(&spec.containers), app).map_err(in_spec)?);
    let of_pod = spec.resources.as_ref().map(resources).transpose();
    let mut pod = Pod {
        name: String::new(),
        containers,
        resources: of_pod.map_err(|problem| problem.under("spec.resources"))?,
        overhead: resource_list("spec.overhead", spec.overhead.as_ref())?,
    };
    pod.default_requests();
    if let Some(status) = status {
        pod.count_resize(&report(status).map_err(|problem| problem.under("status"))?);
    }
    Ok(pod)
}

fn container(container: &core::Container, kind: ContainerKind) -> Result<Container, Problem> {
    let resources = container.resources.as_ref().map(resources).transpose();
    Ok(Container {
        name: container.name.clone(),
        kind,
        resources: resources.map_err(|problem| problem.under("resources"))?.unwrap_or_default(),
    })
}

fn init_kind(container: &core::Container) -> ContainerKind {
    match container.restart_policy.as_deref() {
        Some("Always") => ContainerKind::Sidecar,
        _ => ContainerKind::Init,
    }
}

/// What the node reports. A container for which it reports nothing in force counts as desired, even
/// if something is allocated.
fn report(status: &core::PodStatus) -> Result<ReportedPodResources, Problem> {
    let pending = status.conditions.iter().flatten().find(|one| one.type_ == "PodResizePending");
    let mut report = ReportedPodResources {
        infeasible: pending.is_some_and(|one| one.reason.as_deref() == Some("Infeasible")),
        pod: reported(status.resources.as_ref(), status.allocated_resources.as_ref())?,
        ..ReportedPodResources::default()
    };
    let lists = [
        ("containerStatuses", &status.container_statuses),
        ("initContainerStatuses", &status.init_container_statuses),
    ];
    for (field, statuses) in lists {
        let of_containers = each(field, statuses.as_ref(), |one| {
            let reported = reported(one.resources.as_ref(), one.allocated_resources.as_ref())?;
            Ok(reported.map(|reported| (one.name.clone(), reported)))
        })?;
        report.containers.extend(of_containers.into_iter().flatten());
    }
    Ok(report)
}

fn reported(
    in_use: Option<&core::ResourceRequirements>,
    allocated: Option<&BTreeMap<String, Quantity>>,
) -> Result<Option<ReportedResources>, Problem> {
    let Some(in_use) = in_use else { return Ok(None) };
    Ok(Some(ReportedResources {
        allocated: resource_list("allocatedResources", allocated)?,
        in_use: resources(in_use).map_err(|problem| problem.under("resources"))?,
    }))
}

/// Ports of the node that are taken for as long as the pod runs: not those of init containers that
/// end.
pub(super) fn host_ports(spec: &core::PodSpec) -> Result<Vec<HostPort>, Problem> {
    let ports = |container: &core::Container| each("ports", container.ports.as_ref(), host_port);
    let of_init = each("initContainers", spec.init_containers.as_ref(), |one| {
        if init_kind(one) == ContainerKind::Sidecar { ports(one) } else { Ok(Vec::new()) }
    })?;
    let of_apps = each("containers", Some(&spec.containers), ports)?;
    Ok(of_init.into_iter().chain(of_apps).flatten().flatten().collect())
}

fn host_port(port: &core::ContainerPort) -> Result<Option<HostPort>, Problem> {
    let Some(number) = port.host_port.filter(|number| *number > 0) else { return Ok(None) };
    let protocol = match port.protocol.as_deref() {
        None | Some("" | "TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(other) => return Err(Problem::unknown("protocol", other, "TCP, UDP or SCTP")),
    };
    let ip = meta::filled(port.host_ip.as_ref()).filter(|ip| **ip != *ALL_ADDRESSES);
    Ok(Some(HostPort { ip, protocol, port: number }))
}

/// Images as written: of init containers, of containers, of image volumes.
pub(super) fn images(spec: &core::PodSpec) -> Vec<Arc<str>> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let of_containers = containers.map(|container| meta::text(container.image.as_ref()));
    let volumes = spec.volumes.iter().flatten().filter_map(|volume| volume.image.as_ref());
    of_containers.chain(volumes.map(|image| meta::text(image.reference.as_ref()))).collect()
}

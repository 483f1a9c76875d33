//! Rules on the QoS class and on whole CPUs: whether the kubelet pins a GPU pod's CPUs and memory.

use berth_api::FieldPath;
use berth_kubelet::{KubeletVersion, PodDemand};
use berth_model::pod::{ContainerKind, Pod, QosClass};

use super::{Breach, Scope};
use crate::rule::{Rule, Severity, Topic};
use crate::view::PodView;

pub(crate) static NOT_GUARANTEED: Rule = Rule {
    code: "BERTH-103",
    name: "not-guaranteed",
    topic: Topic::Requests,
    severity: Severity::Warning,
    summary: "Pods with GPUs have the QoS class Guaranteed.",
    why: "The kubelet gives exclusive CPUs and memory of one NUMA node only to pods in which every \
          container, init containers and sidecars included, has CPU and memory limits and equal \
          requests. In other pods the threads that feed the GPU float between sockets, which adds 30 \
          to 70 % to p99 latency.",
    remedy: "Set CPU and memory limits on every container, and equal requests or none.",
    safe_fix: None,
};

pub(crate) static CPU_NOT_WHOLE: Rule = Rule {
    code: "BERTH-104",
    name: "cpu-not-whole",
    topic: Topic::Requests,
    severity: Severity::Warning,
    summary: "Containers with GPUs in Guaranteed pods request whole CPUs.",
    why: "The kubelet's static CPU manager pins whole CPUs only. A container that requests 3500m runs \
          in the shared pool, on any socket, although the pod is Guaranteed.",
    remedy: "Request a whole number of CPUs.",
    safe_fix: None,
};

pub(crate) fn check(view: &PodView<'_>, scope: &mut Scope<'_>) {
    // DaemonSets monitor GPUs and do not compute on them.
    if view.gpus.is_empty() || view.work == crate::view::Work::System {
        return;
    }
    let Ok(spec) = &view.lowered else { return };
    let version = KubeletVersion::default();
    if spec.pod.resources.is_some() && spec.pod.has_pod_level_resources() {
        let message = "pod-level resources prevent the kubelet from pinning CPUs and memory";
        let breach = Breach::new(&NOT_GUARANTEED, view.spec_field("resources"), message);
        let remedy = "Set resources on each container instead, unless the cluster has the feature \
                      gate PodLevelResourceManagers.";
        scope.add(breach.remedy(remedy));
        return;
    }
    if spec.pod.qos(version.pod_level_resources()) != QosClass::Guaranteed {
        let (field, message) = first_gap(view, &spec.pod);
        scope.add(Breach::new(&NOT_GUARANTEED, field, message));
        return;
    }
    let Ok(demand) = PodDemand::new(&spec.pod, version) else { return };
    for (seen, written) in demand.containers().iter().zip(&view.containers) {
        // An init container is gone by the time requests are served.
        let asks = view.gpus.iter().any(|ask| ask.container.path == written.path);
        if seen.cpus == 0 && asks && seen.kind != ContainerKind::Init {
            let list = if written.request("cpu").is_some() { "requests" } else { "limits" };
            let field = written.field(list, "cpu");
            let asked = written.request("cpu").or_else(|| written.limit("cpu"));
            let message = match asked {
                Some(asked) => format!("CPU request must be an integer (got {})", asked.0),
                None => "CPU request must be an integer (got none)".to_owned(),
            };
            scope.add(Breach::new(&CPU_NOT_WHOLE, field, message));
        }
    }
}

fn first_gap(view: &PodView<'_>, pod: &Pod) -> (FieldPath, String) {
    for (counted, written) in pod.containers.iter().zip(&view.containers) {
        let name = &written.spec.name;
        for resource in ["cpu", "memory"] {
            let limit = counted.resources.limits.get(resource);
            let request = counted.resources.requests.get(resource);
            let message = match (request, limit) {
                (_, None) => format!("container {name:?} has no {resource} limit"),
                (Some(request), Some(limit)) if request != limit => {
                    format!(
                        "container {name:?} has a {resource} request of {request} and a limit of {limit}"
                    )
                }
                _ => continue,
            };
            let list = if limit.is_none() { "limits" } else { "requests" };
            return (
                written.field(list, resource),
                format!("the pod is not Guaranteed: {message}"),
            );
        }
    }
    (view.spec_field("containers"), "the pod is not Guaranteed".to_owned())
}

//! In-place resize: which of desired, allocated and used resources count until the node has caught
//! up.

use std::collections::BTreeMap;

use crate::pod::{ContainerKind, Pod, Resources, raise};
use crate::quantity::Quantity;
use crate::resource::ResourceList;

/// ReportedResources resources of a container, or of a pod as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedResources {
    /// Allocated requests.
    pub allocated: ResourceList,
    /// Resources in force.
    pub in_use: Resources,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedPodResources {
    /// Whether the node will never be able to provide the desired resources.
    pub infeasible: bool,
    pub containers: BTreeMap<String, ReportedResources>,
    pub pod: Option<ReportedResources>,
}

impl Pod {
    /// Replaces requests by what counts: the largest of desired, allocated and in use, without the
    /// desired ones while they are infeasible. Init containers that end count as desired. Limits
    /// follow those in force and stay at or above the requests, so that the QoS class does not
    /// change.
    pub fn count_resize(&mut self, report: &ReportedPodResources) {
        for container in &mut self.containers {
            let reported = report.containers.get(&container.name);
            if let Some(reported) = reported.filter(|_| container.kind != ContainerKind::Init) {
                let requests = counted(&container.resources.requests, reported, report.infeasible);
                container.resources.replace(requests, reported, report.infeasible);
            }
        }
        if let (Some(of_pod), Some(reported)) = (&mut self.resources, &report.pod) {
            // Resources that are not requested for the pod as a whole belong to its containers;
            // those not reported count as 0.
            let counted = counted(&of_pod.requests, reported, report.infeasible);
            let requests = of_pod
                .requests
                .keys()
                .map(|name| (name.clone(), counted.get(name).copied().unwrap_or(Quantity::ZERO)))
                .collect();
            of_pod.replace(requests, reported, report.infeasible);
        }
    }
}

impl Resources {
    fn replace(&mut self, requests: ResourceList, reported: &ReportedResources, infeasible: bool) {
        if infeasible {
            self.limits.extend(reported.in_use.limits.clone());
        } else {
            raise(&mut self.limits, &reported.in_use.limits);
        }
        for (name, limit) in &mut self.limits {
            if let Some(request) = requests.get(name) {
                *limit = request.max(limit).to_owned();
            }
        }
        self.requests = requests;
    }
}

fn counted(desired: &ResourceList, reported: &ReportedResources, infeasible: bool) -> ResourceList {
    let mut counted = reported.in_use.requests.clone();
    raise(&mut counted, &reported.allocated);
    if !infeasible {
        raise(&mut counted, desired);
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{Container, PodLevelResources, QosClass};

    fn list(pairs: &[(&str, &str)]) -> ResourceList {
        pairs.iter().map(|(name, text)| ((*name).into(), Quantity::parse(text).unwrap())).collect()
    }

    fn both(pairs: &[(&str, &str)]) -> Resources {
        Resources { requests: list(pairs), limits: list(pairs) }
    }

    fn guaranteed(cpu: &str) -> Pod {
        let resources = both(&[("cpu", cpu), ("memory", "1Gi")]);
        let container = |name: &str, kind| Container {
            name: name.to_owned(),
            kind,
            resources: resources.clone(),
        };
        let containers =
            vec![container("i", ContainerKind::Init), container("c", ContainerKind::App)];
        Pod { containers, ..Pod::default() }
    }

    fn report(
        container: &str,
        infeasible: bool,
        allocated: &str,
        in_use: &str,
    ) -> ReportedPodResources {
        let reported = ReportedResources {
            allocated: list(&[("cpu", allocated), ("memory", "1Gi")]),
            in_use: both(&[("cpu", in_use), ("memory", "1Gi")]),
        };
        let containers = [(container.to_owned(), reported)].into();
        ReportedPodResources { infeasible, containers, pod: None }
    }

    #[test]
    fn the_largest_of_desired_allocated_and_in_use_counts() {
        for (desired, allocated, in_use, infeasible, counts) in [
            ("1", "2", "3", false, "3"),
            ("1", "3", "2", false, "3"),
            ("3", "1", "2", false, "3"),
            ("3", "1", "2", true, "2"),
            ("1", "2", "1", true, "2"),
        ] {
            let mut pod = guaranteed(desired);
            pod.count_resize(&report("c", infeasible, allocated, in_use));
            let got = pod.containers[1].resources.requests["cpu"];
            assert_eq!(got.to_string(), counts, "{desired} {allocated} {in_use} {infeasible}");
            let class = pod.qos(PodLevelResources::Honoured);
            // Desired but infeasible limits are not in force.
            assert_eq!(class, QosClass::Guaranteed, "{desired} {allocated} {in_use} {infeasible}");
        }
    }

    #[test]
    fn containers_that_end_or_are_not_reported_count_as_desired() {
        for container in ["i", "elsewhere"] {
            let mut pod = guaranteed("1");
            pod.count_resize(&report(container, false, "8", "8"));
            assert_eq!(pod, guaranteed("1"), "{container}");
        }
    }

    #[test]
    fn the_pod_as_a_whole_counts_only_what_is_desired_for_it() {
        let mut pod = guaranteed("1");
        pod.resources = Some(Resources {
            requests: list(&[("cpu", "2"), ("hugepages-2Mi", "4Mi")]),
            limits: list(&[("cpu", "4")]),
        });
        let reported = ReportedResources {
            allocated: list(&[("cpu", "3")]),
            in_use: Resources { requests: list(&[("memory", "9Gi")]), ..Resources::default() },
        };
        pod.count_resize(&ReportedPodResources {
            infeasible: true,
            pod: Some(reported),
            ..ReportedPodResources::default()
        });
        let of_pod = pod.resources.unwrap();
        assert_eq!(of_pod.requests, list(&[("cpu", "3"), ("hugepages-2Mi", "0")]));
        assert_eq!(of_pod.limits, list(&[("cpu", "4")]));
    }
}

//! Pods and Kubernetes' arithmetic over their fields: defaulting of requests, QoS class, totals
//! with init containers, sidecars, overhead and pod-level resources.

use thiserror::Error;

use crate::quantity::{Format, Quantity};
use crate::resource::{MemoryKind, ResourceList, ResourceName};

/// As written under `resources`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    pub requests: ResourceList,
    pub limits: ResourceList,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerKind {
    /// Runs to its end before the containers listed after it start.
    Init,
    /// Runs from its turn among the init containers until the pod ends (`restartPolicy: Always`).
    Sidecar,
    /// Runs for the life of the pod.
    App,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Container {
    /// Unique in the pod.
    pub name: String,
    pub kind: ContainerKind,
    pub resources: Resources,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QosClass {
    /// Every container has limits for CPU and memory, and requests equal to them.
    Guaranteed,
    /// Something is requested, but not everything is guaranteed.
    Burstable,
    /// Neither CPU nor memory is requested or limited.
    BestEffort,
}

impl QosClass {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// The treatment of `spec.resources` of a pod (feature gate `PodLevelResources`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodLevelResources {
    /// The default since Kubernetes 1.37.
    Honoured,
    /// Honoured; if it is written but empty, the pod counts as one without any requests. The
    /// default of Kubernetes 1.34 to 1.36.
    HonouredIfEmptyToo,
    /// As if it were not written.
    Ignored,
}

impl PodLevelResources {
    /// `has_values`: whether the pod-level resources name any counted resource.
    pub fn counts(self, has_values: bool) -> bool {
        match self {
            Self::Honoured => has_values,
            Self::HonouredIfEmptyToo => true,
            Self::Ignored => false,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pod {
    /// For messages.
    pub name: String,
    /// Init containers and sidecars in order, then app containers in order.
    pub containers: Vec<Container>,
    /// `spec.resources`, if written.
    pub resources: Option<Resources>,
    /// `spec.overhead`.
    pub overhead: ResourceList,
}

/// An invalid pod, or one whose quantities cannot be added up.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("pod {pod:?}: {field}: {problem}")]
pub struct PodError {
    pub pod: String,
    pub field: String,
    pub problem: String,
}

impl Resources {
    /// Absent requests default to the limit, as in the API server.
    pub fn default_requests(&mut self) {
        for (name, limit) in &self.limits {
            self.requests.entry(name.clone()).or_insert(*limit);
        }
    }
}

impl Pod {
    /// Defaults requests, and checks what the API server checks before it accepts a pod.
    pub fn checked(mut self) -> Result<Self, PodError> {
        if !self.containers.iter().any(|container| container.kind == ContainerKind::App) {
            return Err(self.error("containers", "is empty; a pod has at least one container"));
        }
        for (index, container) in self.containers.iter().enumerate() {
            let before = &self.containers[..index];
            let field = || format!("containers[{}]", container.name);
            if before.iter().any(|other| other.name == container.name) {
                return Err(self.error(field(), "is listed twice; names are unique in a pod"));
            }
            let init = container.kind != ContainerKind::App;
            if init && before.iter().any(|other| other.kind == ContainerKind::App) {
                let problem = "is an init container after an app container; list it first";
                return Err(self.error(field(), problem));
            }
        }
        self.default_requests();
        self.check_quantities()?;
        for (field, resources) in self.all_resources() {
            self.check_limits(&field, resources)?;
        }
        self.check_pod_level()?;
        Ok(self)
    }

    /// Defaults requests as the API server does, in the containers and for the pod as a whole.
    /// Idempotent.
    pub fn default_requests(&mut self) {
        for container in &mut self.containers {
            container.resources.default_requests();
        }
        self.default_pod_level_requests();
    }

    /// Absent pod-level requests default to what the containers request together, else to the
    /// pod-level limit; only if there are pod-level limits at all.
    fn default_pod_level_requests(&mut self) {
        let of_containers = self.peak(|resources| &resources.requests);
        let Some(of_pod) = self.resources.as_mut().filter(|of_pod| !of_pod.limits.is_empty())
        else {
            return;
        };
        let together = of_containers.into_iter().filter(|(name, _)| is_qos_resource(name));
        let limits = of_pod.limits.clone().into_iter().filter(|(name, _)| is_pod_level(name));
        for (name, quantity) in together.chain(limits) {
            of_pod.requests.entry(name).or_insert(quantity);
        }
    }

    fn check_pod_level(&self) -> Result<(), PodError> {
        let Some(of_pod) = &self.resources else { return Ok(()) };
        for (list, of_list) in [("requests", &of_pod.requests), ("limits", &of_pod.limits)] {
            if let Some(name) = of_list.keys().find(|name| !is_pod_level(name)) {
                let problem = "is not counted for a pod as a whole; write it under a container";
                return Err(self.error(format!("resources.{list}[{name}]"), problem));
            }
        }
        let of_containers = self.peak(|resources| &resources.requests);
        for (name, request) in &of_pod.requests {
            if let Some(together) = of_containers.get(name).filter(|together| *together > request) {
                let problem = format!("{request} is less than the {together} of the containers");
                return Err(self.error(format!("resources.requests[{name}]"), problem));
            }
        }
        Ok(())
    }

    /// Checks that every quantity is in the range that can be added up.
    pub fn check_quantities(&self) -> Result<(), PodError> {
        for (field, Resources { requests, limits }) in self.all_resources() {
            self.check_list(&format!("{field}.limits"), limits)?;
            self.check_list(&format!("{field}.requests"), requests)?;
        }
        self.check_list("overhead", &self.overhead)
    }

    /// The resources of every container and of the pod as a whole, with their field paths.
    fn all_resources(&self) -> impl Iterator<Item = (String, &Resources)> {
        let of_containers = self.containers.iter().map(|container| {
            (format!("containers[{}].resources", container.name), &container.resources)
        });
        of_containers.chain(self.resources.iter().map(|of_pod| ("resources".to_owned(), of_pod)))
    }

    fn check_limits(&self, field: &str, resources: &Resources) -> Result<(), PodError> {
        for (name, request) in &resources.requests {
            let overcommits = !name.is_extended() && !name.is_hugepages();
            let problem = match resources.limits.get(name) {
                Some(limit) if request > limit => {
                    format!("{request} is above the limit {limit}; lower it")
                }
                Some(limit) if !overcommits && request != limit => {
                    format!(
                        "{request} differs from the limit {limit}; this resource needs both equal"
                    )
                }
                None if !overcommits => {
                    format!("{request} has no limit; this resource needs both equal")
                }
                _ => continue,
            };
            return Err(self.error(format!("{field}.requests[{name}]"), problem));
        }
        Ok(())
    }

    fn check_list(&self, field: &str, list: &ResourceList) -> Result<(), PodError> {
        for (name, value) in list {
            let problem = match MemoryKind::of(name) {
                _ if !name.is_known() => "is no resource; extended ones are domain/name".to_owned(),
                _ if value.sign() < 0 => format!("{value} is negative; write 0 or more"),
                _ if name.is_extended() && value.as_i64().is_none() => {
                    format!(
                        "{value} is not a whole number below 2^63; extended resources are counted"
                    )
                }
                Err(cause) => cause.to_string(),
                Ok(_) => continue,
            };
            return Err(self.error(format!("{field}[{name}]"), problem));
        }
        Ok(())
    }

    fn error(&self, field: impl Into<String>, problem: impl Into<String>) -> PodError {
        PodError { pod: self.name.clone(), field: field.into(), problem: problem.into() }
    }

    /// Whether `spec.resources` names a resource that counts for the pod as a whole.
    pub fn has_pod_level_resources(&self) -> bool {
        self.resources.as_ref().is_some_and(|resources| {
            resources.requests.keys().chain(resources.limits.keys()).any(is_pod_level)
        })
    }

    pub fn qos(&self, pod_level: PodLevelResources) -> QosClass {
        let empty = Resources::default();
        match &self.resources {
            Some(resources) if pod_level.counts(*resources != empty) => {
                let limited =
                    resources.limits.is_empty() || limits_cpu_and_memory(&resources.limits);
                qos_class(std::iter::once(resources), limited)
            }
            _ => {
                let all = || self.containers.iter().map(|container| &container.resources);
                qos_class(all(), all().all(|resources| limits_cpu_and_memory(&resources.limits)))
            }
        }
    }

    /// What the scheduler counts: the most the containers need at any time, replaced by pod-level
    /// requests where written, plus overhead.
    pub fn total_requests(&self, pod_level: PodLevelResources) -> ResourceList {
        let mut total = self.peak(|resources| &resources.requests);
        if let Some(resources) = self.resources.as_ref().filter(|_| pod_level.counts(true)) {
            for (name, quantity) in &resources.requests {
                if is_pod_level(name) {
                    total.insert(name.clone(), *quantity);
                }
            }
        }
        add(&mut total, &self.overhead);
        total
    }

    /// The pod with absent requests of its containers taken from `defaults`.
    pub fn with_default_requests(&self, defaults: &ResourceList) -> Self {
        let mut pod = self.clone();
        for container in &mut pod.containers {
            for (name, quantity) in defaults {
                container.resources.requests.entry(name.clone()).or_insert(*quantity);
            }
        }
        pod
    }

    /// The pod with one more device, requested by its first app container.
    pub fn with_device(&self, resource: &ResourceName) -> Self {
        let mut pod = self.clone();
        let app = |one: &&mut Container| one.kind == ContainerKind::App;
        if let Some(container) = pod.containers.iter_mut().find(app) {
            let one = Quantity::from_units(1, Format::DecimalSi);
            container.resources.requests.insert(resource.clone(), one);
            container.resources.limits.insert(resource.clone(), one);
        }
        pod
    }

    /// The peak of the containers' limits over time, without overhead.
    pub fn peak_limits(&self) -> ResourceList {
        self.peak(|resources| &resources.limits)
    }

    /// The peak of the containers' limits over time, replaced by pod-level limits where written,
    /// plus overhead of resources with a non-zero limit.
    pub fn total_limits(&self, pod_level: PodLevelResources) -> ResourceList {
        let mut total = self.peak_limits();
        let of_pod = self.resources.as_ref().filter(|_| pod_level.counts(true));
        for (name, quantity) in of_pod.iter().flat_map(|of_pod| &of_pod.limits) {
            if is_pod_level(name) {
                total.insert(name.clone(), *quantity);
            }
        }
        for (name, more) in &self.overhead {
            if let Some(limit) = total.get_mut(name).filter(|limit| !limit.is_zero()) {
                *limit = limit.saturating_add(*more);
            }
        }
        total
    }

    /// In Kubernetes' order, apps before sidecars, so that sums print alike.
    fn peak(&self, list: impl Fn(&Resources) -> &ResourceList) -> ResourceList {
        let mut running = ResourceList::new();
        for app in self.containers.iter().filter(|one| one.kind == ContainerKind::App) {
            add(&mut running, list(&app.resources));
        }
        let (mut sidecars, mut starting) = (ResourceList::new(), ResourceList::new());
        for container in &self.containers {
            let asked = list(&container.resources);
            let mut at_start = ResourceList::new();
            match container.kind {
                ContainerKind::App => continue,
                ContainerKind::Init => add(&mut at_start, asked),
                ContainerKind::Sidecar => {
                    add(&mut running, asked);
                    add(&mut sidecars, asked);
                }
            }
            add(&mut at_start, &sidecars);
            raise(&mut starting, &at_start);
        }
        raise(&mut running, &starting);
        running
    }
}

/// The larger of apps and sidecars together, and any init container with the sidecars before it;
/// containers in the order of the pod.
pub fn peak_over_time<T: Copy + Ord>(
    asked: impl IntoIterator<Item = (ContainerKind, T)>,
    zero: T,
    add: impl Fn(T, T) -> T,
) -> T {
    let (running, peak) =
        asked.into_iter().fold((zero, zero), |(running, peak), (kind, amount)| {
            let together = add(running, amount);
            match kind {
                ContainerKind::Init => (running, peak.max(together)),
                ContainerKind::Sidecar | ContainerKind::App => (together, peak),
            }
        });
    peak.max(running)
}

fn add(total: &mut ResourceList, more: &ResourceList) {
    for (name, quantity) in more {
        let sum = total.get(name).map_or(*quantity, |have| have.saturating_add(*quantity));
        total.insert(name.clone(), sum);
    }
}

/// The larger of both, resource by resource.
pub(crate) fn raise(list: &mut ResourceList, other: &ResourceList) {
    for (name, quantity) in other {
        let have = list.entry(name.clone()).or_insert(*quantity);
        *have = if *quantity > *have { *quantity } else { *have };
    }
}

fn is_qos_resource(name: &ResourceName) -> bool {
    matches!(name.as_str(), "cpu" | "memory")
}

fn is_pod_level(name: &ResourceName) -> bool {
    is_qos_resource(name) || name.is_hugepages()
}

fn limits_cpu_and_memory(limits: &ResourceList) -> bool {
    ["cpu", "memory"].iter().all(|name| limits.get(*name).is_some_and(|limit| limit.sign() > 0))
}

fn qos_class<'a>(resources: impl Iterator<Item = &'a Resources>, limited: bool) -> QosClass {
    let mut requests = ResourceList::new();
    let mut limits = ResourceList::new();
    let positive = |list: &ResourceList| -> ResourceList {
        list.iter()
            .filter(|(name, quantity)| is_qos_resource(name) && quantity.sign() > 0)
            .map(|(name, quantity)| (name.clone(), *quantity))
            .collect()
    };
    for one in resources {
        add(&mut requests, &positive(&one.requests));
        add(&mut limits, &positive(&one.limits));
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Quantity;
    use ContainerKind::{App, Init, Sidecar};

    fn list(pairs: &[(&str, &str)]) -> ResourceList {
        pairs.iter().map(|(name, text)| ((*name).into(), Quantity::parse(text).unwrap())).collect()
    }

    fn container(name: &str, kind: ContainerKind, limits: &[(&str, &str)]) -> Container {
        let resources = Resources { limits: list(limits), ..Resources::default() };
        Container { name: name.into(), kind, resources }
    }

    fn pod(containers: Vec<Container>) -> Pod {
        Pod { name: "p".into(), containers, ..Pod::default() }
    }

    #[test]
    fn limits_alone_make_a_guaranteed_pod() {
        let pod = pod(vec![container("c", App, &[("cpu", "2"), ("memory", "1Gi")])]);
        let pod = pod.checked().unwrap();
        assert_eq!(pod.qos(PodLevelResources::Honoured), QosClass::Guaranteed);
    }

    #[test]
    fn totals_are_the_peak_over_time() {
        let pod = pod(vec![
            container("side", Sidecar, &[("cpu", "1")]),
            container("init", Init, &[("cpu", "6"), ("nvidia.com/gpu", "1")]),
            container("app", App, &[("cpu", "4")]),
        ]);
        let mut pod = pod.checked().unwrap();
        pod.overhead = list(&[("cpu", "250m")]);
        let total = pod.total_requests(PodLevelResources::Honoured);
        assert_eq!(total, list(&[("cpu", "7250m"), ("nvidia.com/gpu", "1")]));
        assert_eq!(pod.peak_limits()["cpu"], Quantity::parse("7").unwrap());
    }

    #[test]
    fn pod_level_resources_decide_the_class_and_the_total_where_honoured() {
        let mut pod = pod(vec![container("c", App, &[("nvidia.com/gpu", "1")])]);
        let both = list(&[("cpu", "4"), ("memory", "8Gi")]);
        pod.resources = Some(Resources { requests: both.clone(), limits: both });
        let pod = pod.checked().unwrap();
        assert_eq!(pod.qos(PodLevelResources::Honoured), QosClass::Guaranteed);
        assert_eq!(pod.qos(PodLevelResources::Ignored), QosClass::BestEffort);
        let total = pod.total_requests(PodLevelResources::Honoured);
        assert_eq!(total, list(&[("cpu", "4"), ("memory", "8Gi"), ("nvidia.com/gpu", "1")]));
    }

    #[test]
    fn pod_level_requests_default_to_the_containers_or_the_limit() {
        let mut pod = pod(vec![container("c", App, &[("cpu", "1")])]);
        let limits = list(&[("cpu", "2"), ("memory", "1Gi")]);
        pod.resources = Some(Resources { limits, ..Resources::default() });
        let requests = pod.clone().checked().unwrap().resources.unwrap().requests;
        assert_eq!(requests, list(&[("cpu", "1"), ("memory", "1Gi")]));
        pod.containers[0].resources.limits.clear();
        let pod = pod.checked().unwrap();
        assert_eq!(pod.qos(PodLevelResources::Honoured), QosClass::Guaranteed);
        let mut greedy = pod.clone();
        greedy.containers[0].resources.requests = list(&[("cpu", "8")]);
        let error = greedy.checked().unwrap_err();
        assert_eq!(error.field, "resources.requests[cpu]");
    }

    #[test]
    fn errors_name_the_pod_and_the_field() {
        let cases = [
            (vec![], "pod \"p\": containers: is empty"),
            (
                vec![container("a", App, &[]), container("a", App, &[])],
                "pod \"p\": containers[a]: is listed twice",
            ),
            (
                vec![container("a", App, &[]), container("i", Init, &[])],
                "pod \"p\": containers[i]: is an init container after an app container",
            ),
            (
                vec![container("a", App, &[("cpu", "-1")])],
                "pod \"p\": containers[a].resources.limits[cpu]: -1 is negative",
            ),
            (
                vec![container("a", App, &[("nvidia.com/gpu", "500m")])],
                "pod \"p\": containers[a].resources.limits[nvidia.com/gpu]: 500m is not a whole",
            ),
            (
                vec![container("a", App, &[("cpus", "2")])],
                "pod \"p\": containers[a].resources.limits[cpus]: is no resource",
            ),
            (
                vec![container("a", App, &[("hugepages-2048Ki", "2Mi")])],
                "pod \"p\": containers[a].resources.limits[hugepages-2048Ki]: resource",
            ),
        ];
        for (containers, want) in cases {
            let got = pod(containers).checked().unwrap_err().to_string();
            assert!(got.starts_with(want), "{got:?} should start with {want:?}");
        }
    }
}

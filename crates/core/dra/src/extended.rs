//! Extended resources that are served by devices: a claim made from the containers' requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::dra::CLASS_RESOURCE_PREFIX;
use berth_model::dra::claim::{ClaimSpec, Count, DeviceRequest, Request, RequestKind};
use berth_model::pod::{Container, ContainerKind, Pod, PodLevelResources};
use berth_model::resource::ResourceName;

use crate::inventory::Inventory;

/// The claim that a scheduler creates for a pod's extended resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedClaim {
    pub spec: ClaimSpec,
    pub mappings: Vec<RequestMapping>,
}

/// The request of the claim that serves a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestMapping {
    pub container: String,
    pub resource: ResourceName,
    pub request: Arc<str>,
}

/// What a pod requests of resources that devices or device plugins can serve, in units.
pub(crate) fn requested(pod: &Pod) -> BTreeMap<ResourceName, i64> {
    let all = pod.total_requests(PodLevelResources::HonouredIfEmptyToo);
    let known = all.into_iter().filter(|(name, amount)| is_extended(name) && !amount.is_zero());
    known.map(|(name, amount)| (name, amount.value())).collect()
}

fn is_extended(name: &ResourceName) -> bool {
    let requests = name.as_str().starts_with("requests.");
    name.as_str().starts_with(CLASS_RESOURCE_PREFIX) || name.is_extended() && !requests
}

impl ExtendedClaim {
    pub(crate) fn of(pod: &Pod, resources: &[ResourceName], inventory: &Inventory) -> Self {
        let mut requests: Vec<(Arc<str>, DeviceRequest)> = Vec::new();
        let mut mappings = Vec::new();
        for resource in resources {
            let Some(class) = inventory.class_for(resource) else { continue };
            let needs = Needs { resource, class: &class.name };
            needs.add(&pod.containers, &mut requests, &mut mappings);
        }
        requests.sort_by(|(one, _), (two, _)| one.cmp(two));
        let requests = requests
            .into_iter()
            .map(|(name, ask)| Request { name, kind: RequestKind::Exactly(ask) })
            .collect();
        Self { spec: ClaimSpec { requests, ..ClaimSpec::default() }, mappings }
    }
}

/// One resource, and the class that serves it.
struct Needs<'a> {
    resource: &'a ResourceName,
    class: &'a Arc<str>,
}

struct OwnRequest {
    name: Arc<str>,
    count: i64,
}

impl Needs<'_> {
    fn add(
        &self,
        containers: &[Container],
        requests: &mut Vec<(Arc<str>, DeviceRequest)>,
        mappings: &mut Vec<RequestMapping>,
    ) {
        let of_kind = |init: bool| {
            let all = containers.iter().enumerate();
            all.filter(move |(_, container)| (container.kind == ContainerKind::Init) == init)
        };
        let mut lasting: Vec<Option<OwnRequest>> = containers.iter().map(|_| None).collect();
        for (at, container) in of_kind(false) {
            let (own, mapped) = self.of_container(at, container, &[]);
            lasting[at] = own;
            mappings.extend(mapped);
        }
        // Init containers run one after the other: one request serves all of them, for what the
        // most demanding one needs beyond the devices of later containers.
        let mut most: Option<OwnRequest> = None;
        let mut passing = Vec::new();
        let mut names = Vec::new();
        for (at, container) in of_kind(true) {
            let (own, mapped) = self.of_container(at, container, &lasting[at..]);
            passing.extend(mapped);
            let Some(own) = own else { continue };
            names.push(own.name.clone());
            if most.as_ref().is_none_or(|most| most.count < own.count) {
                most = Some(own);
            }
        }
        if let Some(most) = &most {
            for mapping in passing.iter_mut().filter(|mapping| names.contains(&mapping.request)) {
                mapping.request = most.name.clone();
            }
        }
        mappings.extend(passing);
        for OwnRequest { name, count } in most.into_iter().chain(lasting.into_iter().flatten()) {
            let class = self.class.clone();
            let count = Count::Exactly(count);
            requests.push((name, DeviceRequest { class, count, ..DeviceRequest::default() }));
        }
    }

    /// What a container needs beyond what it can share with others, and all that it uses.
    fn of_container(
        &self,
        at: usize,
        container: &Container,
        reusable: &[Option<OwnRequest>],
    ) -> (Option<OwnRequest>, Vec<RequestMapping>) {
        let requests = &container.resources.requests;
        let asked = requests.get(self.resource).and_then(|amount| amount.as_stored_i64());
        let Some(asked) = asked.filter(|asked| *asked != 0) else { return (None, Vec::new()) };
        let mapping = |request: &Arc<str>| RequestMapping {
            container: container.name.clone(),
            resource: self.resource.clone(),
            request: request.clone(),
        };
        let (mut had, mut mappings) = (0_i64, Vec::new());
        for other in reusable.iter().flatten() {
            had = had.saturating_add(other.count);
            mappings.push(mapping(&other.name));
            if had >= asked {
                return (None, mappings);
            }
        }
        let position = requests.keys().position(|name| name == self.resource).unwrap_or(0);
        let name: Arc<str> = format!("container-{at}-request-{position}").into();
        mappings.push(mapping(&name));
        (Some(OwnRequest { name, count: asked - had }), mappings)
    }
}

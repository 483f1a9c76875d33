//! EndpointSlices and Endpoints of Services with a selector: the addresses of the pods behind them.
//!
//! Pods whose containers resolve the Service's ports to the same numbers share a slice, at most 100 to one. There
//! is no cluster network behind the addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort as SubsetPort, EndpointSubset, Endpoints, ObjectReference, Pod,
    Service, ServicePort,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::key::{Key, controller_reference, label, labels, name, namespace, unless_gone};
use crate::queue::{Queue, Requeue};

use super::context::{Context, each};
use super::pods::{self, is_finished, is_ready, is_terminating, node_of};

const OF_SERVICE: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpointslice-controller.k8s.io";
const ENDPOINTS_MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const HEADLESS: &str = "service.kubernetes.io/headless";
const ENDPOINTS_PER_SLICE_MAX: usize = 100;

/// A Service's ports with the numbers they have in some of its pods.
type Ports = Vec<EndpointPort>;

fn selector(service: &Service) -> Option<LabelSelector> {
    let spec = service.spec.as_ref()?;
    let is_external = spec.type_.as_deref() == Some("ExternalName");
    let pairs = spec.selector.as_ref().filter(|pairs| !pairs.is_empty() && !is_external)?;
    Some(LabelSelector { match_labels: Some(pairs.clone()), match_expressions: None })
}

/// The number of a Service's port in a pod; `None` if no container has a port of that name.
fn resolve(port: &ServicePort, pod: &Pod) -> Option<i32> {
    let name = match &port.target_port {
        None => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let protocol = |protocol: &Option<String>| protocol.as_deref().unwrap_or("TCP").to_owned();
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let found = ports.find(|one| {
        one.name.as_ref() == Some(name) && protocol(&one.protocol) == protocol(&port.protocol)
    });
    found.map(|one| one.container_port)
}

fn ports(service: &Service, pod: &Pod) -> Ports {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let resolved = ports.filter_map(|port| {
        Some(EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(resolve(port, pod)?),
            protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
            app_protocol: port.app_protocol.clone(),
        })
    });
    resolved.collect()
}

fn endpoint(service: &Service, pod: &Pod) -> Option<Endpoint> {
    let address = pod.status.as_ref()?.pod_ip.clone().filter(|address| !address.is_empty())?;
    let spec = service.spec.as_ref()?;
    let serving = is_ready(pod);
    let terminating = is_terminating(pod);
    let ready = serving && !terminating || spec.publish_not_ready_addresses == Some(true);
    let pod_spec = pod.spec.as_ref()?;
    let named = pod_spec.subdomain.is_some() && pod_spec.subdomain == service.metadata.name;
    Some(Endpoint {
        addresses: vec![address],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: pod_spec.hostname.clone().filter(|_| named),
        node_name: node_of(pod).map(str::to_owned),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    })
}

/// Name, number and protocol of each port.
type PortsKey = Vec<(String, i32, String)>;

/// What the slices of a Service should hold: chunks of endpoints with the same ports.
fn slices(service: &Service, pods: &[Arc<Pod>]) -> Vec<(Ports, Vec<Endpoint>)> {
    let mut by_ports: BTreeMap<PortsKey, (Ports, Vec<Endpoint>)> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !is_finished(pod)) {
        let Some(endpoint) = endpoint(service, pod) else { continue };
        let ports = ports(service, pod);
        let key = ports.iter().map(|port| {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            (text(&port.name), port.port.unwrap_or(0), text(&port.protocol))
        });
        let (_, endpoints) =
            by_ports.entry(key.collect()).or_insert_with(|| (ports.clone(), Vec::new()));
        endpoints.push(endpoint);
    }
    let groups = by_ports.into_values().flat_map(|(ports, mut endpoints)| {
        let name = |one: &Endpoint| one.target_ref.as_ref().and_then(|target| target.name.clone());
        endpoints.sort_by_key(name);
        let chunks = endpoints.chunks(ENDPOINTS_PER_SLICE_MAX).map(<[_]>::to_vec);
        chunks.map(move |chunk| (ports.clone(), chunk)).collect::<Vec<_>>()
    });
    let groups: Vec<_> = groups.collect();
    // A Service without pods has one empty slice.
    if groups.is_empty() { vec![(Vec::new(), Vec::new())] } else { groups }
}

/// The same as subsets of Endpoints.
fn subsets(slices: &[(Ports, Vec<Endpoint>)]) -> Vec<EndpointSubset> {
    let address = |one: &Endpoint| EndpointAddress {
        ip: one.addresses.first().cloned().unwrap_or_default(),
        hostname: one.hostname.clone(),
        node_name: one.node_name.clone(),
        target_ref: one.target_ref.clone(),
    };
    let some = |list: Vec<EndpointAddress>| Some(list).filter(|list| !list.is_empty());
    let filled = slices.iter().filter(|(_, endpoints)| !endpoints.is_empty());
    let subset = filled.map(|(ports, endpoints)| {
        let conditions = |one: &&Endpoint| one.conditions.clone().unwrap_or_default();
        let alive = endpoints.iter().filter(|one| conditions(one).terminating != Some(true));
        let (ready, not_ready): (Vec<_>, Vec<_>) =
            alive.partition(|one| conditions(one).ready == Some(true));
        EndpointSubset {
            addresses: some(ready.into_iter().map(address).collect()),
            not_ready_addresses: some(not_ready.into_iter().map(address).collect()),
            ports: Some(
                ports
                    .iter()
                    .map(|port| SubsetPort {
                        name: port.name.clone().filter(|name| !name.is_empty()),
                        port: port.port.unwrap_or(0),
                        protocol: port.protocol.clone(),
                        app_protocol: port.app_protocol.clone(),
                    })
                    .collect::<Vec<_>>(),
            )
            .filter(|list| !list.is_empty()),
        }
    });
    subset.filter(|one| one.addresses.is_some() || one.not_ready_addresses.is_some()).collect()
}

fn is_ours(slice: &EndpointSlice, service: &str) -> bool {
    label(&slice.metadata, OF_SERVICE) == Some(service)
        && label(&slice.metadata, MANAGED_BY) == Some(CONTROLLER)
}

pub(super) fn wire(context: &Context, queue: &Queue) {
    let views = &context.views;
    let to = queue.clone();
    views.services.on_change(move |change| to.add(change.key.clone()));
    let (to, services) = (queue.clone(), Arc::clone(&views.services));
    views.pods.on_change(move |change| {
        let matters = |pod: &Arc<Pod>| {
            let ip = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
            (
                ip,
                is_ready(pod),
                is_terminating(pod),
                is_finished(pod),
                labels(&pod.metadata).clone(),
            )
        };
        if change.old.as_ref().map(matters) == change.new.as_ref().map(matters) {
            return;
        }
        for service in services.in_namespace(&change.key.namespace) {
            let found = selector(&service).as_ref().and_then(pods::selector);
            let selected = |pod: &Arc<Pod>| {
                found.as_ref().is_some_and(|found| pods::selects(found, &pod.metadata))
            };
            if change.both().any(selected) {
                to.add(Key::of(&service.metadata));
            }
        }
    });
    let to = queue.clone();
    views.endpoint_slices.on_change(move |change| {
        for slice in change.both() {
            if let Some(service) = label(&slice.metadata, OF_SERVICE) {
                to.add(Key::new(namespace(&slice.metadata), service));
            }
        }
    });
}

/// Brings the slices and Endpoints of one Service up to date.
pub(super) async fn reconcile(context: &Context, key: Key) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let existing = views.endpoint_slices.in_namespace(&key.namespace);
    let existing: Vec<_> = existing.into_iter().filter(|one| is_ours(one, &key.name)).collect();
    let Some(service) = views.services.get(&key) else {
        // Slices are owned by the Service and collected as garbage; Endpoints only share its name.
        return delete_endpoints(context, &key).await.map(|()| None);
    };
    let Some(found) = selector(&service).as_ref().and_then(pods::selector) else { return Ok(None) };
    if service.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let mut selected = views.pods.in_namespace(&key.namespace);
    selected.retain(|pod| pods::selects(&found, &pod.metadata));
    let wanted = slices(&service, &selected);
    write_endpoints(context, &service, subsets(&wanted)).await?;
    let mut left = existing.into_iter();
    for (ports, endpoints) in wanted {
        let content = EndpointSlice {
            metadata: meta(&service),
            address_type: "IPv4".to_owned(),
            ports: Some(ports).filter(|list| !list.is_empty()),
            endpoints: Some(endpoints).filter(|list| !list.is_empty()),
        };
        match left.next() {
            None => drop(context.create(&views.endpoint_slices, &content).await?),
            Some(before) => {
                let empty = |endpoints: &Option<Vec<Endpoint>>| {
                    endpoints.as_ref().is_none_or(Vec::is_empty)
                };
                let same = (before.endpoints == content.endpoints
                    || empty(&before.endpoints) && empty(&content.endpoints))
                    && before.ports.clone().unwrap_or_default()
                        == content.ports.clone().unwrap_or_default()
                    && before.metadata.labels == content.metadata.labels;
                if !same {
                    let metadata =
                        ObjectMeta { labels: content.metadata.labels, ..before.metadata.clone() };
                    let changed = EndpointSlice { metadata, ..content };
                    context.replace(&views.endpoint_slices, &changed).await?;
                }
            }
        }
    }
    let left: Vec<_> = left.collect();
    each(&left, |slice| context.delete(&views.endpoint_slices, slice.as_ref())).await?;
    Ok(None)
}

fn meta(service: &Service) -> ObjectMeta {
    let mut labels = labels(&service.metadata).clone();
    labels.insert(OF_SERVICE.to_owned(), name(&service.metadata).to_owned());
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
    if address == Some("None") {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    ObjectMeta {
        generate_name: Some(format!("{}-", name(&service.metadata))),
        namespace: service.metadata.namespace.clone(),
        labels: Some(labels),
        owner_references: Some(vec![controller_reference::<Service>(&service.metadata)]),
        ..ObjectMeta::default()
    }
}

async fn write_endpoints(
    context: &Context,
    service: &Service,
    subsets: Vec<EndpointSubset>,
) -> Result<(), kube::Error> {
    let views = &context.views;
    let mut labels = labels(&service.metadata).clone();
    labels.insert(ENDPOINTS_MANAGED_BY.to_owned(), "endpoint-controller".to_owned());
    let subsets = Some(subsets).filter(|list| !list.is_empty());
    let Some(before) = views.endpoints.get(&Key::of(&service.metadata)) else {
        let endpoints = Endpoints {
            metadata: ObjectMeta {
                name: service.metadata.name.clone(),
                namespace: service.metadata.namespace.clone(),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            subsets,
        };
        return context.create(&views.endpoints, &endpoints).await.map(drop);
    };
    if before.subsets.clone().filter(|list| !list.is_empty()) == subsets
        && before.metadata.labels.as_ref() == Some(&labels)
    {
        return Ok(());
    }
    let mut changed = (*before).clone();
    changed.subsets = subsets;
    changed.metadata.labels = Some(labels);
    context.replace(&views.endpoints, &changed).await.map(drop)
}

async fn delete_endpoints(context: &Context, key: &Key) -> Result<(), kube::Error> {
    let endpoints = &context.views.endpoints;
    let Some(left) = endpoints.get(key) else { return Ok(()) };
    // Others may keep Endpoints without a Service, as leader election did.
    if label(&left.metadata, ENDPOINTS_MANAGED_BY).is_none() {
        return Ok(());
    }
    unless_gone(context.delete(endpoints, left.as_ref()).await).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::fixtures::pod;
    use serde_json::{from_value, json};

    fn service() -> Service {
        from_value(json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "web-uid" },
            "spec": {
                "selector": { "app": "web" },
                "ports": [{ "name": "http", "port": 80, "targetPort": "main" }],
            },
        }))
        .unwrap()
    }

    fn backend(name: &str, port: i32) -> Pod {
        let mut pod = pod(name).on("n").ready_at(1).plain();
        pod.status.as_mut().unwrap().pod_ip = Some(format!("100.64.0.{port}"));
        let ports = json!([{ "name": "main", "containerPort": port }]);
        pod.spec.as_mut().unwrap().containers[0].ports = from_value(ports).unwrap();
        pod
    }

    #[test]
    fn pods_share_a_slice_if_their_ports_are_the_same() {
        let mut unready = backend("c", 9);
        unready.status.as_mut().unwrap().conditions = None;
        let mut leaving = backend("d", 9);
        leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
        let pods = [backend("b", 9), backend("a", 8), unready, leaving].map(Arc::new);
        let made = slices(&service(), &pods);
        let shown: Vec<_> = made.iter().map(|(ports, ends)| (ports[0].port, ends.len())).collect();
        assert_eq!(shown, [(Some(8), 1), (Some(9), 3)]);
        let ready = |at: usize| made[1].1[at].conditions.clone().unwrap().ready;
        assert_eq!([ready(0), ready(1), ready(2)], [Some(true), Some(false), Some(false)]);
        let subsets = subsets(&made);
        assert_eq!(subsets[1].addresses.as_ref().map(Vec::len), Some(1));
        assert_eq!(subsets[1].not_ready_addresses.as_ref().map(Vec::len), Some(1));
    }

    #[test]
    fn slices_are_of_limited_size_and_a_service_without_pods_has_an_empty_one() {
        let many: Vec<_> = (0..250).map(|at| Arc::new(backend(&format!("p{at:03}"), 1))).collect();
        let sizes: Vec<_> = slices(&service(), &many).iter().map(|(_, ends)| ends.len()).collect();
        assert_eq!(sizes, [100, 100, 50]);
        assert_eq!(slices(&service(), &[]), [(vec![], vec![])]);
    }
}

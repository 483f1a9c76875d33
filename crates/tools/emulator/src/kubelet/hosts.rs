//! All virtual nodes, run by one task: dispatches changes of pods, nodes and claims, and timers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::Arc;

use berth_api::topology::NodeResourceTopology;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::clock::{later, until};
use crate::controllers::pods::node_of;
use crate::events::Recorder;
use crate::key::{Key, annotation, namespace, uid};
use crate::mirror::Mirror;
use crate::views::{Views, on_node};

use super::faults::Fault;
use super::host::{Effects, Environment, Host};
use super::write::WriteQueue;
use super::{Options, is_virtual, topology};
use berth_api::keys::VIRTUAL_DEVICES;

/// Pods get addresses from 100.64.0.0/10, nodes from 10.0.0.0/8.
const POD_ADDRESSES: (u32, u32) = (0x6440_0000, 1 << 22);
const NODE_ADDRESSES: (u32, u32) = (0x0a00_0000, 1 << 24);

pub(super) enum HostEvent {
    Node(String),
    Pod { node: String, key: Key, uid: String },
    Joined { node: String, topology: Option<Box<NodeResourceTopology>> },
}

/// Subscribes to changes of virtual nodes, pods on nodes, and claims of pods.
pub(super) fn subscribe(
    views: &Arc<Views>,
) -> (mpsc::UnboundedSender<HostEvent>, mpsc::UnboundedReceiver<HostEvent>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    // Sending fails only at shutdown.
    let to = sender.clone();
    views.nodes.on_change(move |change| {
        if change.both().any(|node| is_virtual(node)) {
            let _ = to.send(HostEvent::Node(change.key.name.clone()));
        }
    });
    let to = sender.clone();
    let of_pod = |pod: &Pod| {
        let node = node_of(pod)?.to_owned();
        let uid = uid(&pod.metadata).to_owned();
        Some(HostEvent::Pod { node, key: Key::of(&pod.metadata), uid })
    };
    views.pods.on_change(move |change| {
        let same = |old: &Arc<Pod>| {
            change.new.as_ref().is_some_and(|new| {
                new.metadata.uid == old.metadata.uid && node_of(new) == node_of(old)
            })
        };
        let gone = change.old.iter().filter(|old| !same(old));
        for event in gone.chain(&change.new).filter_map(|pod| of_pod(pod)) {
            let _ = to.send(event);
        }
    });
    let (to, pods) = (sender.clone(), Arc::clone(&views.pods));
    views.claims.on_change(move |change| {
        let users = change.both().filter_map(|claim| claim.status.as_ref());
        for user in users.flat_map(|status| status.reserved_for.iter().flatten()) {
            let pod = pods.get(&Key::new(&*change.key.namespace, &*user.name));
            if let Some(event) = pod.and_then(|pod| of_pod(&pod)) {
                let _ = to.send(event);
            }
        }
    });
    (sender, receiver)
}

/// Whether all claims of a pod are allocated and reserved for it.
fn has_claims(claims: &Mirror<ResourceClaim>, pod: &Pod) -> bool {
    let here = namespace(&pod.metadata);
    let made = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    let asked = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_ref());
    let own = |claim: &str| {
        claims.get(&Key::new(here, claim)).is_some_and(|claim| {
            let status = claim.status.as_ref();
            let users = status.and_then(|status| status.reserved_for.as_ref());
            status.is_some_and(|status| status.allocation.is_some())
                && users.into_iter().flatten().any(|user| user.uid == uid(&pod.metadata))
        })
    };
    asked.into_iter().flatten().all(|reference| match &reference.resource_claim_name {
        Some(claim) => own(claim),
        None => {
            let made = made.into_iter().flatten().find(|made| made.name == reference.name);
            // A claim that is not needed has no name.
            made.is_some_and(|made| made.resource_claim_name.as_deref().is_none_or(own))
        }
    })
}

/// Assigns addresses in sequence.
#[derive(Debug, Default)]
struct Addresses {
    next: u32,
}

impl Addresses {
    fn next(&mut self, (first, count): (u32, u32)) -> String {
        self.next = self.next % (count - 2) + 1;
        Ipv4Addr::from(first + self.next).to_string()
    }

    fn skip(&mut self, text: Option<&str>, (first, count): (u32, u32)) {
        let address = text.and_then(|text| text.parse::<Ipv4Addr>().ok()).map(u32::from);
        let place = address.and_then(|address| address.checked_sub(first));
        self.next = self.next.max(place.filter(|place| *place < count).unwrap_or(0));
    }
}

struct Hosts<'a> {
    views: &'a Views,
    options: Options,
    write_queue: WriteQueue,
    events: Recorder,
    hosts: HashMap<String, Host>,
    stopped: HashSet<String>,
    joining: HashSet<String>,
    alarms: BinaryHeap<Reverse<(Timestamp, String, String)>>,
    /// Nodes with unpublished changes of their topology, and when to publish them.
    dirty: BTreeMap<String, Timestamp>,
    published: HashMap<String, Timestamp>,
    pod_addresses: Addresses,
    node_addresses: Addresses,
}

pub(super) async fn run(
    views: &Views,
    options: Options,
    write_queue: WriteQueue,
    events: Recorder,
    mut host_events: mpsc::UnboundedReceiver<HostEvent>,
) {
    let mut faults = options.faults.take();
    let mut hosts = Hosts {
        views,
        options,
        write_queue,
        events,
        hosts: HashMap::new(),
        stopped: HashSet::new(),
        joining: HashSet::new(),
        alarms: BinaryHeap::new(),
        dirty: BTreeMap::new(),
        published: HashMap::new(),
        pod_addresses: Addresses::default(),
        node_addresses: Addresses::default(),
    };
    for pod in views.pods.all() {
        let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref());
        hosts.pod_addresses.skip(ip, POD_ADDRESSES);
    }
    loop {
        let wait = hosts.wake();
        let fault = async {
            match &mut faults {
                Some(faults) => match faults.recv().await {
                    Some(fault) => fault,
                    None => pending().await,
                },
                None => pending().await,
            }
        };
        let alarm = async {
            match wait {
                Some(wait) => sleep(wait).await,
                None => pending().await,
            }
        };
        tokio::select! {
            event = host_events.recv() => match event {
                Some(event) => hosts.handle(event),
                None => return,
            },
            fault = fault => hosts.fail(fault),
            () = alarm => {}
        }
    }
}

impl Hosts<'_> {
    fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

    fn handle(&mut self, event: HostEvent) {
        match event {
            HostEvent::Node(name) => self.node(name),
            HostEvent::Joined { node, topology } => self.joined(node, topology.as_deref()),
            HostEvent::Pod { node, key, uid } => {
                if self.stopped.contains(&node) {
                    return;
                }
                let pod = self.views.pods.get(&key).filter(|pod| {
                    crate::key::uid(&pod.metadata) == uid && node_of(pod) == Some(&node)
                });
                match pod {
                    Some(pod) => self.with(&node, |host, environment| host.see(pod, environment)),
                    None => self.with(&node, |host, _| host.gone(&uid)),
                }
            }
        }
    }

    fn node(&mut self, name: String) {
        let node = self.views.nodes.get(&Key::new("", &*name)).filter(|node| is_virtual(node));
        match (node, self.hosts.get_mut(&name)) {
            (None, _) => {
                self.hosts.remove(&name);
                self.published.remove(&name);
            }
            (Some(node), Some(host)) => {
                let same = host.node().metadata.uid == node.metadata.uid;
                host.update(node);
                if !same {
                    // The node was deleted and created again.
                    self.hosts.remove(&name);
                    self.node(name);
                }
            }
            (Some(_), None) => {
                if self.joining.insert(name.clone()) {
                    self.write_queue.join(&name);
                }
            }
        }
    }

    fn joined(&mut self, name: String, topology: Option<&NodeResourceTopology>) {
        self.joining.remove(&name);
        let node = self.views.nodes.get(&Key::new("", &*name)).filter(|node| is_virtual(node));
        let Some(node) = node else { return };
        let address = self.address(&node);
        let host = Host::new(Arc::clone(&node), topology, address.clone()).or_else(|error| {
            tracing::warn!(node = name, %error, "invalid topology; running the node as if it were unknown");
            Host::unknown(node, address)
        });
        match host {
            Ok(host) => {
                self.hosts.insert(name.clone(), host);
                self.sync_pods(&name);
                self.dirty.insert(name.clone(), self.now());
                if !self.stopped.contains(&name) {
                    self.write_queue.start_heartbeat(&name);
                }
            }
            Err(error) => tracing::error!(node = name, %error, "invalid node; it gets no kubelet"),
        }
    }

    fn address(&mut self, node: &Node) -> String {
        let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
        let internal = addresses.into_iter().flatten().find(|one| one.type_ == "InternalIP");
        match internal {
            Some(address) => address.address.clone(),
            None => self.node_addresses.next(NODE_ADDRESSES),
        }
    }

    /// Processes all pods of a node, those with an assignment first.
    fn sync_pods(&mut self, name: &str) {
        if self.stopped.contains(name) {
            return;
        }
        let mut pods = self.views.pods.by(&on_node(name));
        pods.sort_by_key(|pod| {
            let new = annotation(&pod.metadata, VIRTUAL_DEVICES).is_none();
            (new, pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
        });
        let there: HashSet<String> = pods.iter().map(|pod| uid(&pod.metadata).to_owned()).collect();
        let known = self.hosts.get(name).map(Host::uids).unwrap_or_default();
        for uid in known.into_iter().filter(|uid| !there.contains(uid)) {
            self.with(name, |host, _| host.gone(&uid));
        }
        for pod in pods {
            self.with(name, |host, environment| host.see(pod, environment));
        }
    }

    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::Stop(node) => {
                self.write_queue.stop_heartbeat(&node);
                self.stopped.insert(node);
            }
            Fault::Start(node) => {
                self.stopped.remove(&node);
                self.write_queue.start_heartbeat(&node);
                self.sync_pods(&node);
            }
            Fault::Restart(node) => {
                if let Some(Err(error)) = self.hosts.get_mut(&node).map(Host::restart) {
                    tracing::error!(node, %error, "kubelet cannot restart");
                }
                self.sync_pods(&node);
            }
            Fault::RejectNext(node) => {
                if let Some(host) = self.hosts.get_mut(&node) {
                    host.reject_next();
                }
            }
        }
    }

    /// Applies an event to a node and carries out its effects.
    fn with(&mut self, name: &str, apply: impl FnOnce(&mut Host, &mut Environment<'_>) -> Effects) {
        let now = self.options.clock.now();
        let Some(host) = self.hosts.get_mut(name) else { return };
        let claims = &self.views.claims;
        let addresses = &mut self.pod_addresses;
        let mut environment = Environment {
            now,
            options: &self.options,
            has_claims: &|pod| has_claims(claims, pod),
            next_ip: &mut || addresses.next(POD_ADDRESSES),
        };
        let Effects { writes, alarms, notes, usage_changed } = apply(host, &mut environment);
        for (pod, note) in notes {
            self.events.kubelet(name, &pod, note);
        }
        for (key, write) in writes {
            self.write_queue.pod(key, write);
        }
        for (at, uid) in alarms {
            self.alarms.push(Reverse((at, name.to_owned(), uid)));
        }
        if usage_changed && self.options.publish_topology {
            let last = self.published.get(name).copied();
            let at = last.map_or(now, |last| later(last, self.options.topology_every).max(now));
            self.dirty.entry(name.to_owned()).or_insert(at);
        }
    }

    /// Processes timers that are due. Returns the time until the next one.
    fn wake(&mut self) -> Option<std::time::Duration> {
        let now = self.now();
        while self.alarms.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, node, uid))) = self.alarms.pop() else { break };
            if !self.stopped.contains(&node) {
                self.with(&node, |host, environment| host.tick(&uid, environment));
            }
        }
        self.publish(now);
        let alarm = self.alarms.peek().map(|Reverse((at, ..))| *at);
        let next = alarm.into_iter().chain(self.dirty.values().min().copied()).min();
        next.map(|at| until(now, at))
    }

    fn publish(&mut self, now: Timestamp) {
        let due: Vec<String> =
            self.dirty.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.dirty.remove(&name);
            let Some(host) = self.hosts.get(&name) else { continue };
            if host.is_inside_known() && self.options.publish_topology {
                self.write_queue.inside(&name, topology::content(host.kubelet(), host.holders()));
                self.published.insert(name, now);
            }
        }
    }
}

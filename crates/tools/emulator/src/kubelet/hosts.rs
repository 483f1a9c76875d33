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
use super::host::{Around, Host, Orders};
use super::write::Desk;
use super::{Options, is_virtual, topology};
use berth_api::keys::VIRTUAL_DEVICES;

/// Pods get addresses from 100.64.0.0/10, nodes from 10.0.0.0/8.
const POD_ADDRESSES: (u32, u32) = (0x6440_0000, 1 << 22);
const NODE_ADDRESSES: (u32, u32) = (0x0a00_0000, 1 << 24);

pub(super) enum News {
    Node(String),
    Pod { node: String, key: Key, uid: String },
    Joined { node: String, topology: Option<Box<NodeResourceTopology>> },
}

/// Hears of everything that happens to nodes, to pods on nodes and to their claims.
pub(super) fn listen(
    views: &Arc<Views>,
) -> (mpsc::UnboundedSender<News>, mpsc::UnboundedReceiver<News>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    // Nobody listens any more when everything ends.
    let to = sender.clone();
    views.nodes.on_change(move |change| {
        if change.both().any(|node| is_virtual(node)) {
            let _ = to.send(News::Node(change.key.name.clone()));
        }
    });
    let to = sender.clone();
    let of_pod = |pod: &Pod| {
        let node = node_of(pod)?.to_owned();
        let uid = uid(&pod.metadata).to_owned();
        Some(News::Pod { node, key: Key::of(&pod.metadata), uid })
    };
    views.pods.on_change(move |change| {
        let same = |old: &Arc<Pod>| {
            change.new.as_ref().is_some_and(|new| {
                new.metadata.uid == old.metadata.uid && node_of(new) == node_of(old)
            })
        };
        let gone = change.old.iter().filter(|old| !same(old));
        for news in gone.chain(&change.new).filter_map(|pod| of_pod(pod)) {
            let _ = to.send(news);
        }
    });
    let (to, pods) = (sender.clone(), Arc::clone(&views.pods));
    views.claims.on_change(move |change| {
        let users = change.both().filter_map(|claim| claim.status.as_ref());
        for user in users.flat_map(|status| status.reserved_for.iter().flatten()) {
            let pod = pods.get(&Key::new(&*change.key.namespace, &*user.name));
            if let Some(news) = pod.and_then(|pod| of_pod(&pod)) {
                let _ = to.send(news);
            }
        }
    });
    (sender, receiver)
}

/// Whether all devices that a pod claims are there and set aside for it.
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
            // A claim that was found not to be needed has no name.
            made.is_some_and(|made| made.resource_claim_name.as_deref().is_none_or(own))
        }
    })
}

/// Addresses that are given out one after the other.
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
    desk: Desk,
    events: Recorder,
    hosts: HashMap<String, Host>,
    stopped: HashSet<String>,
    joining: HashSet<String>,
    alarms: BinaryHeap<Reverse<(Timestamp, String, String)>>,
    /// Nodes whose inside has changed, and when that is to be published.
    dirty: BTreeMap<String, Timestamp>,
    published: HashMap<String, Timestamp>,
    pod_addresses: Addresses,
    node_addresses: Addresses,
}

/// Runs all virtual nodes for ever.
pub(super) async fn run(
    views: &Views,
    options: Options,
    desk: Desk,
    events: Recorder,
    mut heard: mpsc::UnboundedReceiver<News>,
) {
    let mut faults = options.faults.take();
    let mut hosts = Hosts {
        views,
        options,
        desk,
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
            news = heard.recv() => match news {
                Some(news) => hosts.hear(news),
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

    fn hear(&mut self, news: News) {
        match news {
            News::Node(name) => self.node(name),
            News::Joined { node, topology } => self.joined(node, topology.as_deref()),
            News::Pod { node, key, uid } => {
                if self.stopped.contains(&node) {
                    return;
                }
                let pod = self.views.pods.get(&key).filter(|pod| {
                    crate::key::uid(&pod.metadata) == uid && node_of(pod) == Some(&node)
                });
                match pod {
                    Some(pod) => self.with(&node, |host, around| host.see(pod, around)),
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
                    // Another node has taken the name.
                    self.hosts.remove(&name);
                    self.node(name);
                }
            }
            (Some(_), None) => {
                if self.joining.insert(name.clone()) {
                    self.desk.join(&name);
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
            tracing::warn!(node = name, error, "is run as if nothing was known of its inside");
            Host::unknown(node, address)
        });
        match host {
            Ok(host) => {
                self.hosts.insert(name.clone(), host);
                self.look_around(&name);
                self.dirty.insert(name.clone(), self.now());
                if !self.stopped.contains(&name) {
                    self.desk.beat(&name);
                }
            }
            Err(error) => tracing::error!(node = name, error, "no kubelet runs on this node"),
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

    /// Looks at all pods of a node: those first that have been there before.
    fn look_around(&mut self, name: &str) {
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
            self.with(name, |host, around| host.see(pod, around));
        }
    }

    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::Stop(node) => {
                self.desk.silence(&node);
                self.stopped.insert(node);
            }
            Fault::Start(node) => {
                self.stopped.remove(&node);
                self.desk.beat(&node);
                self.look_around(&node);
            }
            Fault::Restart(node) => {
                if let Some(Err(error)) = self.hosts.get_mut(&node).map(Host::restart) {
                    tracing::error!(node, error, "the kubelet does not start again");
                }
                self.look_around(&node);
            }
            Fault::RejectNext(node) => {
                if let Some(host) = self.hosts.get_mut(&node) {
                    host.reject_next();
                }
            }
        }
    }

    /// Lets something happen on a node, and passes on what comes of it.
    fn with(&mut self, name: &str, happen: impl FnOnce(&mut Host, &mut Around<'_>) -> Orders) {
        let now = self.options.clock.now();
        let Some(host) = self.hosts.get_mut(name) else { return };
        let claims = &self.views.claims;
        let addresses = &mut self.pod_addresses;
        let mut around = Around {
            now,
            options: &self.options,
            has_claims: &|pod| has_claims(claims, pod),
            next_ip: &mut || addresses.next(POD_ADDRESSES),
        };
        let Orders { writes, alarms, notes, books_changed } = happen(host, &mut around);
        for (pod, note) in notes {
            self.events.kubelet(name, &pod, note);
        }
        for (key, write) in writes {
            self.desk.pod(key, write);
        }
        for (at, uid) in alarms {
            self.alarms.push(Reverse((at, name.to_owned(), uid)));
        }
        if books_changed && self.options.publish_topology {
            let last = self.published.get(name).copied();
            let at = last.map_or(now, |last| later(last, self.options.topology_every).max(now));
            self.dirty.entry(name.to_owned()).or_insert(at);
        }
    }

    /// Does what is due; how long until the next is.
    fn wake(&mut self) -> Option<std::time::Duration> {
        let now = self.now();
        while self.alarms.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, node, uid))) = self.alarms.pop() else { break };
            if !self.stopped.contains(&node) {
                self.with(&node, |host, around| host.tick(&uid, around));
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
                self.desk.inside(&name, topology::content(host.books(), host.holders()));
                self.published.insert(name, now);
            }
        }
    }
}

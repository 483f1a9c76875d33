//! Whether a node can take a pod, asked the long way round.
//!
//! Owns every rule once more, naively: pods are gone through one by one for each question. A scene
//! is the cluster as it is, or as it would be without some pods and with others. Must share nothing
//! with the engine.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_engine::config::{Config, Profile, UnknownTopology};
use berth_kubelet::{Kubelet, KubeletVersion, PodDemand, TopologyPolicy, Verdict};
use berth_model::affinity::{NodeInclusionPolicy, PodTerm, SpreadConstraint, WhenUnsatisfiable};
use berth_model::label::{Labels, Selector};
use berth_model::node::Node;
use berth_model::pod::PodLevelResources;
use berth_model::resource::ResourceName;
use berth_model::spec::{HostPort, PodSpec};
use berth_model::taint::{Effect, Taint};

use super::books::{Books, Entry};
use super::offer::offers;

/// Why not.
pub(super) type Why = &'static str;

/// A pod on a node.
#[derive(Clone, Copy)]
struct Resident<'a> {
    uid: &'a Arc<str>,
    spec: &'a PodSpec,
    node: &'a Node,
    terminating: bool,
    grant: Option<&'a ResourceName>,
}

/// A cluster as it is or would be.
#[derive(Clone)]
pub(super) struct Scene<'a> {
    pub(super) books: &'a Books,
    residents: Vec<Resident<'a>>,
    /// Pods that are taken to be gone.
    gone: Vec<Arc<str>>,
    pub(super) kubelets: bool,
    unknown: UnknownTopology,
    /// Whether what is reserved for a gang is closed to all that do not go before it. Some pods may use
    /// it all the same: this says of less than there is that a pod must take it, and without it, of
    /// more that it may.
    closes_reserved: bool,
}

impl<'a> Scene<'a> {
    /// As it is. Only Berth's own rules ask kubelets, and what nodes offer for parts of GPUs.
    pub(super) fn new(books: &'a Books, config: Config) -> Self {
        let resident = |entry: &'a Entry| {
            let node = books.nodes.get(entry.node()?)?;
            Some(Resident {
                uid: &entry.object.uid,
                spec: entry.spec(),
                node,
                terminating: entry.is_terminating(),
                grant: entry.grant.as_ref(),
            })
        };
        let residents = books.pods.values().filter_map(resident).collect();
        let (kubelets, unknown) = (config.profile == Profile::Berth, config.unknown_topology);
        Self { books, residents, gone: Vec::new(), kubelets, unknown, closes_reserved: true }
    }

    /// The same if nothing were reserved for a gang.
    pub(super) fn without_reservation(&self) -> Self {
        Self { closes_reserved: false, ..self.clone() }
    }

    /// As it would be without some pods.
    pub(super) fn without(&self, gone: &[Arc<str>]) -> Self {
        let mut scene = self.clone();
        scene.residents.retain(|resident| !gone.contains(resident.uid));
        scene.gone.extend(gone.iter().cloned());
        scene
    }

    /// A node that would certainly take the pod.
    pub(super) fn taker(&self, pod: &Entry) -> Option<&'a Arc<str>> {
        let books = self.books;
        let mut nodes = books.nodes.keys().filter(|node| self.is_known(node));
        nodes.find(|node| self.takes(pod, node).is_ok())
    }

    /// Whether what the node's kubelet has handed out is known, or need not be.
    pub(super) fn is_known(&self, node: &Arc<str>) -> bool {
        !self.kubelets || self.books.twins.get(node).is_none_or(|twin| twin.is_known())
    }

    /// Whether the node would take the pod beside those that wait for it. They come first if they
    /// are at least as important: while the kubelet would not take them, the node is closed.
    pub(super) fn takes(&self, pod: &Entry, node: &Arc<str>) -> Result<(), Why> {
        let plain = self.kubelet_of(node);
        self.fits(pod, node, plain.as_ref())?;
        self.spares(pod, node, plain.as_ref())?;
        let mut ahead: Vec<&Entry> = self.ahead(pod, node).collect();
        ahead.sort_by_key(|other| {
            let object = &other.object;
            (Reverse(other.spec().priority), object.created_at_ms, object.uid.clone())
        });
        if ahead.is_empty() {
            return Ok(());
        }
        let mut with = self.clone();
        let mut kubelet = plain;
        for other in ahead {
            with.add(other, node, kubelet.as_mut())?;
        }
        let fits = with.fits(pod, node, kubelet.as_ref());
        fits.map_err(|_| "it is kept for a pod that waits")?;
        with.spares(pod, node, kubelet.as_ref())
    }

    /// Pods that wait for the node and are at least as important. For Berth, of two equals that wait
    /// for the node the older goes first.
    fn ahead(&self, pod: &Entry, node: &Arc<str>) -> impl Iterator<Item = &'a Entry> {
        let turn = |one: &Entry| (one.object.created_at_ms, one.object.uid.clone());
        let (pod, node, books) = (pod.clone(), node.clone(), self.books);
        let by_turn = self.kubelets && pod.awaits(&node);
        let closes_reserved = self.closes_reserved;
        let closes = move |other: &&Entry| closes_reserved || !books.is_reserved_for(other);
        books.pods.values().filter(closes).filter(move |other| {
            let equal = books.goes_before(&pod, other);
            other.awaits(&node)
                && other.object.uid != pod.object.uid
                && books.goes_before(other, &pod)
                && (!by_turn || !equal || turn(other) < turn(&pod))
        })
    }

    /// Adds a pod that waits for the node as if it had come.
    pub(super) fn add(
        &mut self,
        pod: &'a Entry,
        name: &Arc<str>,
        kubelet: Option<&mut Kubelet>,
    ) -> Result<(), Why> {
        const CLOSED: Why = "a pod that waits for it does not fit yet";
        let node = &self.books.nodes[name];
        let here: Vec<&Resident<'_>> =
            self.residents.iter().filter(|one| one.node.name == *name).collect();
        let fits = room(pod.spec(), node, &here)
            .and_then(|()| ports(&pod.spec().host_ports, &here))
            .and_then(|()| self.kubelet_takes(pod, node, &here, kubelet.as_deref()));
        let grant = match fits {
            Ok(grant) => node.allocatable.keys().find(|one| Some(*one) == grant.as_ref()),
            Err(_) if self.kubelets => return Err(CLOSED),
            Err(_) => None,
        };
        if let (Some(kubelet), Some(twin)) = (kubelet, self.books.twins.get(name)) {
            let demand = twin.demand(&pod.spec().pod, grant).ok_or(CLOSED)?;
            kubelet.admit(&pod.object.uid, &demand).map_err(|_| CLOSED)?;
        }
        self.residents.push(Resident {
            uid: &pod.object.uid,
            spec: pod.spec(),
            node,
            terminating: pod.is_terminating(),
            grant,
        });
        Ok(())
    }

    /// The node's kubelet, if that is known and believed, without the pods that are gone.
    pub(super) fn kubelet_of(&self, node: &Arc<str>) -> Option<Kubelet> {
        let twin = self.books.twins.get(node).filter(|twin| twin.is_known() && self.kubelets)?;
        let mut kubelet = twin.kubelet().clone();
        self.gone.iter().for_each(|uid| {
            kubelet.remove(uid);
        });
        Some(kubelet)
    }

    /// Whether the pod fits on the node, whoever waits for it; and what it gets for its part of a
    /// GPU.
    fn fits(
        &self,
        pod: &Entry,
        name: &Arc<str>,
        kubelet: Option<&Kubelet>,
    ) -> Result<Option<ResourceName>, Why> {
        let node = self.books.nodes.get(name).ok_or("there is no such node")?;
        let spec = pod.spec();
        object(spec, node)?;
        if self.kubelets && !self.books.pool_admits(self.books.class_of(spec), node) {
            return Err("its pool is for other classes of work");
        }
        self.near_mates(pod, node)?;
        let here: Vec<&Resident<'_>> =
            self.residents.iter().filter(|one| one.node.name == *name).collect();
        room(spec, node, &here)?;
        ports(&spec.host_ports, &here)?;
        self.spread(spec, node)?;
        self.affinity(spec, node)?;
        self.kubelet_takes(pod, node, &here, kubelet)
    }

    /// Whether the node is near the members of the pod's gang that have a place.
    fn near_mates(&self, pod: &Entry, node: &Node) -> Result<(), Why> {
        let Some((key, value)) = self.books.near(pod).filter(|_| self.kubelets) else {
            return Ok(());
        };
        match (node.labels.get(&key), value) {
            (None, _) => Err("it lacks the label by which its gang is to be near"),
            (Some(own), Some(value)) if *own != value => Err("its gang is elsewhere"),
            _ => Ok(()),
        }
    }

    /// Whether the kubelet takes the pod, with any of what the node offers for a part of a GPU.
    fn kubelet_takes(
        &self,
        pod: &Entry,
        node: &Node,
        here: &[&Resident<'_>],
        kubelet: Option<&Kubelet>,
    ) -> Result<Option<ResourceName>, Why> {
        let spec = pod.spec();
        let (Some(need), true) = (&spec.gpu, self.kubelets) else {
            return self.admits(pod, node, None, kubelet).map(|()| None);
        };
        let mut why = "it offers no such part of a GPU";
        for offer in offers(node).into_iter().filter(|offer| offer.is_enough(need)) {
            let used = used(here, &offer.resource);
            let has = units(&offer.resource, node.allocatable.get(&offer.resource));
            if used + 1 > has {
                why = "all such parts of GPUs are taken";
                continue;
            }
            match self.admits(pod, node, Some(&offer.resource), kubelet) {
                Ok(()) => return Ok(Some(offer.resource)),
                Err(reason) => why = reason,
            }
        }
        Err(why)
    }

    fn admits(
        &self,
        pod: &Entry,
        node: &Node,
        grant: Option<&ResourceName>,
        kubelet: Option<&Kubelet>,
    ) -> Result<(), Why> {
        let Some(twin) = self.books.twins.get(&node.name) else {
            let refuses = self.kubelets && self.unknown == UnknownTopology::Refuse;
            let of_pod = pod.spec().pod.peak_limits();
            let devices = grant.is_some() || of_pod.keys().any(ResourceName::is_extended);
            let demand = PodDemand::new(&pod.spec().pod, KubeletVersion::default());
            let pinned = devices || demand.is_ok_and(|demand| demand.total().cpus > 0);
            return if refuses && pinned { Err("nothing is known of its inside") } else { Ok(()) };
        };
        let Some(kubelet) = kubelet else { return Ok(()) };
        let demand = twin.demand(&pod.spec().pod, grant).ok_or("the pod cannot be counted")?;
        let strict = matches!(
            kubelet.config().topology_policy,
            TopologyPolicy::Restricted | TopologyPolicy::SingleNumaNode
        );
        match kubelet.would_admit(&demand) {
            Verdict::Admit { certain: false, .. } if strict => Err("the kubelet may reject it"),
            Verdict::Admit { .. } => Ok(()),
            Verdict::Reject { .. } => Err("the kubelet would reject it"),
        }
    }

    /// Hard topology spread.
    fn spread(&self, spec: &PodSpec, node: &Node) -> Result<(), Why> {
        let hard: Vec<&SpreadConstraint> = spec
            .spread
            .iter()
            .filter(|one| one.unsatisfiable == WhenUnsatisfiable::DoNotSchedule)
            .collect();
        for rule in &hard {
            let Some(value) = node.labels.get(&rule.topology_key) else {
                return Err("it lacks the label to spread over");
            };
            let counts = |one: &Node| {
                hard.iter().all(|rule| one.labels.get(&rule.topology_key).is_some())
                    && (rule.node_affinity == NodeInclusionPolicy::Ignore || selected(spec, one))
                    && (rule.node_taints == NodeInclusionPolicy::Ignore || tolerated(spec, one))
            };
            let mut domains: BTreeMap<&Arc<str>, i64> = BTreeMap::new();
            for one in self.books.nodes.values().filter(|one| counts(one)) {
                domains.extend(one.labels.get(&rule.topology_key).map(|value| (value, 0)));
            }
            let selector = rule.merged_selector(&spec.labels);
            let means = |other: &PodSpec| {
                let matches = |selector: &Selector| selector.matches(&other.labels);
                other.namespace == spec.namespace && selector.as_ref().is_some_and(matches)
            };
            // Kubernetes counts nobody if the selector asks for nothing.
            let nobody = selector.as_ref().is_none_or(Selector::is_empty);
            for one in self.residents.iter().filter(|one| !one.terminating && counts(one.node)) {
                let domain = one.node.labels.get(&rule.topology_key);
                if let Some(count) = domain.and_then(|value| domains.get_mut(value))
                    && !nobody
                    && means(one.spec)
                {
                    *count += 1;
                }
            }
            let few = (domains.len() as i64) < i64::from(rule.min_domains);
            let least = if few { 0 } else { domains.values().copied().min().unwrap_or(0) };
            let here = domains.get(value).copied().unwrap_or(0) + i64::from(means(spec));
            if here - least > i64::from(rule.max_skew) {
                return Err("pods would not be spread as wanted");
            }
        }
        Ok(())
    }

    /// Required affinity and anti-affinity, of the pod and of those that are there.
    fn affinity(&self, spec: &PodSpec, node: &Node) -> Result<(), Why> {
        let near = |one: &Resident<'_>, key: &str| {
            let value = node.labels.get(key);
            value.is_some() && one.node.labels.get(key) == value
        };
        for term in &spec.pod_affinity.anti_required {
            let refused = |one: &&Resident<'_>| {
                near(one, &term.topology_key) && self.newcomer_means(spec, term, one.spec)
            };
            if self.residents.iter().any(|one| refused(&one)) {
                return Err("it refuses a pod near");
            }
        }
        for one in &self.residents {
            for term in &one.spec.pod_affinity.anti_required {
                if near(one, &term.topology_key) && self.resident_means(one.spec, term, spec) {
                    return Err("a pod near refuses it");
                }
            }
        }
        let terms = &spec.pod_affinity.required;
        if terms.is_empty() {
            return Ok(());
        }
        let keys: BTreeSet<&Arc<str>> = terms.iter().map(|term| &term.topology_key).collect();
        if keys.iter().any(|key| node.labels.get(key).is_none()) {
            return Err("it lacks a label for being near");
        }
        let all = |other: &PodSpec| terms.iter().all(|term| self.newcomer_means(spec, term, other));
        let meant: Vec<&Resident<'_>> = self.residents.iter().filter(|one| all(one.spec)).collect();
        if keys.iter().all(|key| meant.iter().any(|one| near(one, key))) {
            return Ok(());
        }
        let none = |key: &&Arc<str>| !meant.iter().any(|one| one.node.labels.get(key).is_some());
        if all(spec) && keys.iter().all(none) {
            return Ok(());
        }
        Err("no pod that it needs is near")
    }

    /// Whether a term of a pod that looks for its place means another pod. A namespace selector also
    /// means namespaces about which nothing is known, if it matches no labels at all.
    fn newcomer_means(&self, own: &PodSpec, term: &PodTerm, other: &PodSpec) -> bool {
        let none = Labels::default();
        let by_label = |selector: &Selector| {
            let labels = self.books.namespaces.get(&other.namespace);
            labels.is_some_and(|labels| selector.matches(labels)) || selector.matches(&none)
        };
        matches_labels(term, other)
            && (names(own, term).contains(&other.namespace)
                || term.namespace_selector.as_ref().is_some_and(by_label))
    }

    /// Whether a term of a pod that has its place means a newcomer.
    fn resident_means(&self, own: &PodSpec, term: &PodTerm, other: &PodSpec) -> bool {
        let none = Labels::default();
        let labels = self.books.namespaces.get(&other.namespace).unwrap_or(&none);
        matches_labels(term, other)
            && (names(own, term).contains(&other.namespace)
                || term.namespace_selector.as_ref().is_some_and(|one| one.matches(labels)))
    }
}

fn matches_labels(term: &PodTerm, other: &PodSpec) -> bool {
    term.selector.as_ref().is_some_and(|selector| selector.matches(&other.labels))
}

/// The namespaces that a term names.
fn names(own: &PodSpec, term: &PodTerm) -> Vec<Arc<str>> {
    if term.namespaces.is_empty() && term.namespace_selector.is_none() {
        vec![own.namespace.clone()]
    } else {
        term.namespaces.clone()
    }
}

/// What the node's object says.
pub(super) fn object(spec: &PodSpec, node: &Node) -> Result<(), Why> {
    if spec.node_name.as_ref().is_some_and(|name| *name != node.name) {
        return Err("it is not the node that the pod names");
    }
    let key = "node.kubernetes.io/unschedulable".into();
    let cordon = Taint { key, value: "".into(), effect: Effect::NoSchedule };
    if node.unschedulable && !spec.tolerations.iter().any(|one| one.tolerates(&cordon)) {
        return Err("it is cordoned");
    }
    if !tolerated(spec, node) {
        return Err("it has a taint that the pod does not tolerate");
    }
    if !selected(spec, node) {
        return Err("it does not match the node selector or affinity");
    }
    Ok(())
}

fn tolerated(spec: &PodSpec, node: &Node) -> bool {
    let hard = |taint: &&Taint| taint.effect != Effect::PreferNoSchedule;
    let answered = |taint: &Taint| spec.tolerations.iter().any(|one| one.tolerates(taint));
    node.taints.iter().filter(hard).all(answered)
}

fn selected(spec: &PodSpec, node: &Node) -> bool {
    let wanted = spec.node_selector.iter();
    let mut wanted = wanted.map(|(key, value)| node.labels.get(key) == Some(value));
    let required = spec.node_affinity.required.as_ref();
    wanted.all(|there| there)
        && required.is_none_or(|terms| terms.iter().any(|term| term.matches(node)))
}

fn ports(wanted: &[HostPort], here: &[&Resident<'_>]) -> Result<(), Why> {
    let mut held = here.iter().flat_map(|one| &one.spec.host_ports);
    if held.any(|port| wanted.iter().any(|one| one.conflicts(port))) {
        return Err("a host port is in use");
    }
    Ok(())
}

/// Whether the node has what the pod requests.
fn room(spec: &PodSpec, node: &Node, here: &[&Resident<'_>]) -> Result<(), Why> {
    let pods = node.allocatable.get("pods").map_or(0, |pods| pods.value());
    if here.len() as i64 + 1 > pods {
        return Err("it has too many pods");
    }
    for (resource, amount) in spec.pod.total_requests(PodLevelResources::HonouredIfEmptyToo) {
        let wanted = units(&resource, Some(&amount));
        let has = units(&resource, node.allocatable.get(&resource));
        if wanted > 0 && used(here, &resource) + wanted > has {
            return Err("it has too little of a resource");
        }
    }
    Ok(())
}

/// How much of a resource pods have, in the units that Kubernetes counts it in.
fn used(here: &[&Resident<'_>], resource: &ResourceName) -> i128 {
    let of_pod = |one: &&Resident<'_>| {
        let requests = one.spec.pod.total_requests(PodLevelResources::HonouredIfEmptyToo);
        units(resource, requests.get(resource)) + i128::from(one.grant == Some(resource))
    };
    here.iter().map(of_pod).sum()
}

fn units(resource: &ResourceName, amount: Option<&berth_model::quantity::Quantity>) -> i128 {
    let milli = resource.as_str() == "cpu";
    amount.map_or(0, |amount| i128::from(if milli { amount.milli_value() } else { amount.value() }))
}

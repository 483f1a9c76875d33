//! Applies events: the object itself, and everything derived from it.

use std::sync::Arc;

use berth_model::gang::{Gang, GangTerms};
use berth_model::label::Labels;
use berth_model::node::Node;
use berth_model::policy::{DisruptionBudget, Grouping, Namespace, Quota};
use berth_model::spec::{Phase, PodObject};
use smallvec::SmallVec;

use super::{FullName, GroupingName, NodeState, Place, PodState, State};
use crate::amounts;
use crate::changes::Change;
use crate::class::Scored;
use crate::event::{Event, set};
use crate::offer;
use crate::placement::gpu_values::Kind;
use crate::shares::{self, Grant, Shares};
use crate::table::{NodeIx, PodIx, fingerprint};
use berth_kubelet::NodeTopology;

impl State {
    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::Pod(pod) => self.set_pod(&pod),
            Event::PodGone(uid) => self.remove_pod(&uid),
            other => self.apply_object(other),
        }
    }

    pub(super) fn apply_object(&mut self, event: Event) {
        match event {
            Event::Pod(_) | Event::PodGone(_) => {}
            Event::Node(node) => self.set_node(node),
            Event::NodeGone(name) => self.remove_node(&name),
            Event::Topology { node, topology } => self.set_topology(node, topology),
            Event::Namespace(one) => self.set_namespace(one.name, Some(one.labels)),
            Event::NamespaceGone(name) => self.set_namespace(name, None),
            event @ (Event::DeviceSlice(_)
            | Event::DeviceSliceGone(_)
            | Event::DeviceClass(_)
            | Event::DeviceClassGone(_)
            | Event::DeviceClaim(_)
            | Event::DeviceClaimGone(..)) => self.apply_devices(event),
            Event::Gang(gang) => self.apply_gang((gang.namespace, gang.name), Some(gang.terms)),
            Event::GangGone(namespace, name) => self.apply_gang((namespace, name), None),
            other => {
                let undo = self.apply_settings(other);
                undo.into_iter().for_each(|undo| self.journal_object(undo));
            }
        }
    }

    fn apply_gang(&mut self, name: FullName, terms: Option<GangTerms>) {
        let is_gone = terms.is_none();
        let before = self.gangs.set_object(name.clone(), terms);
        if before.is_some() || !is_gone {
            self.journal_object(gang_event(name, before));
        }
    }

    /// Objects from which little is derived; returns the event that undoes a change.
    fn apply_settings(&mut self, event: Event) -> Option<Event> {
        use Event::{AcceleratorGone, PriorityClassGone};
        match event {
            Event::Budget(budget) => {
                let name = (budget.namespace.clone(), budget.name.clone());
                self.set_budget(name, Some(budget))
            }
            Event::BudgetGone(namespace, name) => self.set_budget((namespace, name), None),
            Event::Accelerator(one) => {
                let (name, one) = (one.resource.clone(), Some(one));
                let undo =
                    set(&mut self.accelerators, name, one, Event::Accelerator, AcceleratorGone)?;
                self.update_offers();
                Some(undo)
            }
            AcceleratorGone(name) => {
                let undo =
                    set(&mut self.accelerators, name, None, Event::Accelerator, AcceleratorGone)?;
                self.update_offers();
                Some(undo)
            }
            Event::PriorityClass(class) => {
                let (name, class) = (class.name.clone(), Some(class));
                let classes = &mut self.priority_classes;
                set(classes, name, class, Event::PriorityClass, PriorityClassGone)
            }
            PriorityClassGone(name) => {
                let classes = &mut self.priority_classes;
                set(classes, name, None, Event::PriorityClass, PriorityClassGone)
            }
            Event::Quota(quota) => {
                let name = (quota.namespace.clone(), quota.name.clone());
                let undo = self.set_quota(name, Some(quota.clone()))?;
                self.add_quota(quota);
                Some(undo)
            }
            Event::QuotaGone(namespace, name) => {
                let undo = self.set_quota((namespace.clone(), name.clone()), None)?;
                self.tenancy.books.remove_quota(&namespace, &name);
                Some(undo)
            }
            Event::Team(team) if self.teams().get(&team.name) == Some(&team) => None,
            Event::Team(team) => {
                let name = team.name.clone();
                let before = self.set_team(&name, Some(team));
                Some(before.map_or(Event::TeamGone(name), Event::Team))
            }
            Event::TeamGone(name) => {
                self.teams().get(&name)?;
                self.set_team(&name, None).map(Event::Team)
            }
            Event::Grouping(one) => {
                let name = (one.kind.clone(), one.namespace.clone(), one.name.clone());
                self.set_grouping(name, Some(one))
            }
            Event::GroupingGone(kind, namespace, name) => {
                self.set_grouping((kind, namespace, name), None)
            }
            of_classes @ (Event::Pool(_)
            | Event::PoolGone(_)
            | Event::Classes(_)
            | Event::Headroom(_)
            | Event::HeadroomGone(_)) => self.apply_class_policy(of_classes),
            storage => {
                let undo = self.storage.apply(storage)?;
                self.changes.everything();
                Some(undo)
            }
        }
    }

    fn set_namespace(&mut self, name: Arc<str>, labels: Option<Labels>) {
        if self.namespaces.get(&name) == labels.as_ref() {
            return;
        }
        let before = match labels {
            Some(labels) => self.namespaces.insert(name.clone(), labels),
            None => self.namespaces.remove(&name),
        };
        self.journal_object(match before {
            Some(labels) => Event::Namespace(Namespace { name, labels }),
            None => Event::NamespaceGone(name),
        });
        self.namespaces_changed();
        self.changes.everything();
    }

    fn set_budget(&mut self, name: FullName, budget: Option<DisruptionBudget>) -> Option<Event> {
        let gone = |(namespace, name)| Event::BudgetGone(namespace, name);
        let undo = set(&mut self.budgets, name, budget.clone(), Event::Budget, gone)?;
        budget.iter().for_each(|budget| self.touch_protected(budget));
        if let Event::Budget(before) = &undo {
            self.touch_protected(before);
        }
        Some(undo)
    }

    fn set_quota(&mut self, name: FullName, quota: Option<Quota>) -> Option<Event> {
        let gone = |(namespace, name)| Event::QuotaGone(namespace, name);
        set(&mut self.quotas, name, quota, Event::Quota, gone)
    }

    fn set_grouping(&mut self, name: GroupingName, one: Option<Grouping>) -> Option<Event> {
        let gone = |(kind, namespace, name)| Event::GroupingGone(kind, namespace, name);
        set(&mut self.groupings, name, one, Event::Grouping, gone)
    }

    fn set_node(&mut self, node: Node) {
        let node = Arc::new(node);
        match self.node_by_name(&node.name) {
            Some(at) => self.change_node(at, node),
            None => self.add_node(node),
        }
    }

    fn add_node(&mut self, node: Arc<Node>) {
        let name = node.name.clone();
        self.journal_object(Event::NodeGone(name.clone()));
        let (capacity, pods_max) = self.resources.capacity(&node.allocatable);
        let offers = offer::of_node(&node, &self.accelerators, &mut self.resources);
        let at = self.nodes.insert(NodeState {
            object: node.clone(),
            tie: fingerprint(name.as_ref()),
            capacity,
            pods_max,
            used: Vec::new(),
            scored: Scored::default(),
            pods: Vec::new(),
            ports: SmallVec::new(),
            nominated: SmallVec::new(),
            has_devices: has_devices(&node),
            gpus: None,
            kind: Kind::default(),
            shares: None,
            offers,
            mirror: None,
        });
        self.node_names.insert(name.clone(), at);
        self.update_node_gpus(at);
        self.count_capacity(at);
        self.census.add_node(at, &node);
        self.count_spot(&node.labels, 1);
        self.count_images(&node, 1);
        for pod in self.on_unknown_nodes.remove(&name).unwrap_or_default() {
            self.attach(pod, true);
        }
        self.rebuild_mirror(at);
        self.touch(at, Change::Node);
    }

    fn change_node(&mut self, at: NodeIx, node: Arc<Node>) {
        let before = self.nodes[at].object.clone();
        if before == node {
            return;
        }
        self.journal_object(Event::Node((*before).clone()));
        let (capacity, pods_max) = self.resources.capacity(&node.allocatable);
        let offers = offer::of_node(&node, &self.accelerators, &mut self.resources);
        if (&before.labels, &before.taints) != (&node.labels, &node.taints) {
            let pods = self.nodes[at].pods.clone();
            for pod in &pods {
                self.census.move_pod(at, self.pods[*pod].resident(), -1);
            }
            self.census.remove_node(at);
            self.census.add_node(at, &node);
            self.count_spot(&before.labels, -1);
            self.count_spot(&node.labels, 1);
            for pod in &pods {
                self.census.move_pod(at, self.pods[*pod].resident(), 1);
            }
        }
        if before.images != node.images {
            self.count_images(&before, -1);
            self.count_images(&node, 1);
        }
        self.gpu_values.count(&self.nodes[at].machine(), -1);
        let row = &mut self.nodes[at];
        row.has_devices = has_devices(&node);
        (row.object, row.capacity, row.pods_max, row.offers) = (node, capacity, pods_max, offers);
        self.update_node_gpus(at);
        self.count_capacity(at);
        if self.tenancy.has_teams() {
            // Its labels give the model of its GPUs.
            self.nodes[at].pods.clone().into_iter().for_each(|pod| self.update_charge(pod));
        }
        self.touch(at, Change::Node);
    }

    fn update_node_gpus(&mut self, at: NodeIx) {
        let node = &mut self.nodes[at];
        node.gpus = offer::gpus_of(&node.object, &node.offers, &mut self.resources);
        let machine = node.machine();
        node.kind = self.gpu_values.kind(&machine);
        self.gpu_values.count(&machine, 1);
        self.rebuild_shares(at);
    }

    fn rebuild_shares(&mut self, at: NodeIx) {
        let node = &mut self.nodes[at];
        let offer = node.offers.iter().find(|offer| offer.divisible);
        let mut shares = offer.map(|offer| {
            let count = amounts::at(&node.capacity, offer.resource);
            Box::new(Shares::new(offer, count))
        });
        if shares.is_none() && node.shares.is_none() {
            return;
        }
        for pod in node.pods.clone() {
            let pod = &self.pods[pod];
            let need = self.class_rows[pod.class].spec.gpu.as_ref();
            let Some(grant) = pod.grant.filter(|grant| grant.gpu.is_some()) else { continue };
            shares::count(grant, need, &mut node.used, node.shares.as_deref_mut(), -1);
            shares::count(grant, need, &mut node.used, shares.as_deref_mut(), 1);
        }
        node.shares = shares;
        self.mirror_shares(at);
    }

    fn update_offers(&mut self) {
        for at in self.nodes.indexes().collect::<Vec<NodeIx>>() {
            let node = self.nodes[at].object.clone();
            let offers = offer::of_node(&node, &self.accelerators, &mut self.resources);
            if offers != self.nodes[at].offers {
                self.gpu_values.count(&self.nodes[at].machine(), -1);
                self.nodes[at].offers = offers;
                self.update_node_gpus(at);
                self.touch(at, Change::Node);
            }
        }
    }

    fn remove_node(&mut self, name: &Arc<str>) {
        let Some(at) = self.node_by_name(name) else { return };
        self.journal_mirror(name);
        self.journal_object(Event::Node((*self.nodes[at].object).clone()));
        self.gpu_values.count(&self.nodes[at].machine(), -1);
        for pod in self.nodes[at].pods.clone() {
            self.uncount(pod, at);
            self.pods[pod].place = Place::Bound(name.clone(), None);
            self.on_unknown_nodes.entry(name.clone()).or_default().push(pod);
        }
        for pod in std::mem::take(&mut self.nodes[at].nominated) {
            self.remove_charge(pod);
            if self.pods[pod].decided {
                // Nothing makes room for it there any more.
                self.journal_pod(pod);
                (self.pods[pod].place, self.pods[pod].decided) = (Place::Pending, false);
            } else {
                self.pods[pod].place = Place::Nominated(name.clone(), None);
                self.on_unknown_nodes.entry(name.clone()).or_default().push(pod);
            }
        }
        self.headrooms.forget_node(at);
        self.census.remove_node(at);
        let object = self.nodes[at].object.clone();
        self.count_spot(&object.labels, -1);
        self.count_images(&object, -1);
        self.nodes.remove(at);
        self.count_capacity(at);
        self.node_names.remove(name);
        self.touch(at, Change::Node);
    }

    fn count_images(&mut self, node: &Node, change: i32) {
        for name in node.images.iter().flat_map(|image| &image.names) {
            let nodes = self.images.entry(name.clone()).or_insert(0);
            *nodes = nodes.saturating_add_signed(change);
            if *nodes == 0 {
                self.images.remove(name);
            }
        }
    }

    fn set_topology(&mut self, node: Arc<str>, topology: Option<Arc<NodeTopology>>) {
        let same = match (&topology, self.topologies.get(&node)) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        // A mirror that is not trusted is rebuilt when its topology arrives again.
        let believed = self.node_by_name(&node).is_none_or(|at| {
            self.nodes[at].mirror.as_ref().is_none_or(|mirror| mirror.is_trusted())
        });
        if same && believed {
            return;
        }
        self.journal_mirror(&node);
        let before = match topology.clone() {
            Some(topology) => self.topologies.insert(node.clone(), topology),
            None => self.topologies.remove(&node),
        };
        let repartitioned = topology
            .filter(|now| before.as_ref().is_some_and(|before| now.differs_in_layout_only(before)));
        self.journal_object(Event::Topology { node: node.clone(), topology: before });
        if let Some(at) = self.node_by_name(&node) {
            if !repartitioned.is_some_and(|topology| self.repartition_mirror(at, &topology)) {
                self.rebuild_mirror(at);
            }
            self.touch(at, Change::Freed);
        }
    }

    /// Applies a pod. An event from before our decision does not undo it.
    pub(super) fn set_pod(&mut self, object: &PodObject) {
        if object.phase == Phase::Finished {
            return self.remove_pod(&object.uid);
        }
        let Some(at) = self.pod_by_uid(&object.uid) else { return self.add_pod(object) };
        let grant = self.grant(object.gpu_grant.as_ref());
        let pod = &self.pods[at];
        let place = Place::of(object);
        let stale = pod.decided && object.node.is_none();
        let moved = !stale && !pod.place.is_same(&place);
        let spec = &self.class_rows[pod.class].spec;
        let respecified = *spec != object.spec;
        let resized = (&spec.pod, &spec.gpu) != (&object.spec.pod, &object.spec.gpu);
        let regranted = grant.is_some() && grant != pod.grant;
        if spec.namespace != object.spec.namespace {
            self.remove_from_quotas(at);
        }
        if moved || resized || regranted {
            self.replace_pod(at, object, place, grant, moved);
        } else if respecified {
            self.journal_pod(at);
            let class = self.acquire_class(&object.spec);
            self.reclass(at, class);
        }
        self.set_claims(at, &object.claims);
        self.update_pod(at, object, stale);
        self.count_in_quotas(at);
    }

    fn replace_pod(
        &mut self,
        at: PodIx,
        object: &PodObject,
        place: Place,
        grant: Option<Grant>,
        moved: bool,
    ) {
        object.node.iter().for_each(|name| self.journal_mirror(name));
        self.journal_pod(at);
        if moved {
            // Another component decided: the kubelet of our decision never sees the pod.
            self.unmirror(at);
        }
        self.detach(at);
        let class = self.acquire_class(&object.spec);
        self.gangs.leave(at, &self.class_rows[self.pods[at].class].spec);
        self.gangs.join(at, &object.spec);
        self.release_class(self.pods[at].class);
        let pod = &mut self.pods[at];
        pod.class = class;
        if moved {
            (pod.place, pod.decided) = (place, false);
        }
        pod.grant = grant.or(pod.grant);
        (pod.started_at_ms, pod.phase) = (object.started_at_ms, object.phase);
        pod.deletion = object.deletion;
        self.set_awaited(at);
        self.attach(at, true);
    }

    fn update_pod(&mut self, at: PodIx, object: &PodObject, stale: bool) {
        let pod = &self.pods[at];
        let same = (pod.phase, pod.started_at_ms, pod.deletion)
            == (object.phase, object.started_at_ms, object.deletion);
        if same && (stale || !pod.decided) {
            return;
        }
        self.journal_pod(at);
        let before = self.pods[at].resident();
        if !stale {
            self.confirm(at);
        }
        let pod = &mut self.pods[at];
        (pod.started_at_ms, pod.phase) = (object.started_at_ms, object.phase);
        pod.deletion = object.deletion;
        let after = pod.resident();
        self.set_awaited(at);
        let pod = &self.pods[at];
        if let Place::Nominated(_, Some(node)) = pod.place {
            self.touch(node, Change::Freed);
        }
        let Some(node) = self.pods[at].place.node() else { return };
        if before.terminating != after.terminating {
            self.census.move_pod(node, before, -1);
            self.census.move_pod(node, after, 1);
        }
        self.update_charge(at);
        // A confirmed decision frees nothing; a pod that terminates may stop counting.
        let is_phase = before.terminating != after.terminating;
        self.touch(node, if is_phase { Change::Freed } else { Change::Taken });
    }

    pub(super) fn add_pod(&mut self, object: &PodObject) {
        object.node.iter().for_each(|name| self.journal_mirror(name));
        self.journal_no_pod(&object.uid);
        let class = self.acquire_class(&object.spec);
        let grant = self.grant(object.gpu_grant.as_ref());
        let at = self.pods.insert(PodState {
            uid: object.uid.clone(),
            name: object.name.clone(),
            class,
            created_at_ms: object.created_at_ms,
            started_at_ms: object.started_at_ms,
            phase: object.phase,
            deletion: object.deletion,
            place: Place::of(object),
            decided: false,
            bound_serial: None,
            evicted_at_ms: None,
            awaited_until_ms: None,
            replaces_evicted_at_ms: self.replaces_evicted_at_ms(object),
            counted: false,
            grant,
            claims: object.claims.clone(),
            devices: Vec::new(),
        });
        self.pod_uids.insert(object.uid.clone(), at);
        self.gangs.join(at, &object.spec);
        self.set_awaited(at);
        self.attach(at, true);
        self.count_in_quotas(at);
    }

    pub(crate) fn remove_pod(&mut self, uid: &Arc<str>) {
        let Some(at) = self.pod_by_uid(uid) else { return };
        self.journal_pod(at);
        self.remove_from_quotas(at);
        self.release_devices(at);
        self.detach(at);
        self.pod_uids.remove(uid);
        self.leaving.remove(&at);
        if let Some(until_ms) = self.pods[at].awaited_until_ms {
            self.awaited.remove(&(until_ms, at));
        }
        self.gangs.leave(at, &self.class_rows[self.pods[at].class].spec);
        if let Some(pod) = self.pods.remove(at) {
            self.release_class(pod.class);
        }
    }
}

fn gang_event((namespace, name): FullName, terms: Option<GangTerms>) -> Event {
    match terms {
        Some(terms) => Event::Gang(Gang { namespace, name, terms }),
        None => Event::GangGone(namespace, name),
    }
}

fn has_devices(node: &Node) -> bool {
    node.allocatable.iter().any(|(name, amount)| name.is_extended() && amount.sign() > 0)
}

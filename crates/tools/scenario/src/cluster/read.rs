//! Lowers objects to a cluster, rejecting duplicates and ownership cycles.

use std::collections::BTreeMap;

use berth_api::crd::PoolTopology;
use berth_api::topology::NodeResourceTopology;
use berth_api::{FieldPath, Lower, LowerError};
use berth_engine::event::Event;
use berth_manifest::karpenter::NodePool;
use berth_manifest::{Document, Object, Problem, object};
use berth_model::policy::Pool;
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceName;
use berth_model::spec::{Phase, PodObject};
use berth_model::taint::{Effect, Taint};
use berth_model::workload::pool_of;
use berth_sim::experiment::Isolation;
use berth_topology::{Inside, Origin, field_of, marked};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{Cluster, ClusterNode, FullName, prices};

const DEFAULT_NAMESPACE: &str = "default";

/// A decoded object with its document.
#[derive(Clone, Debug)]
pub struct Read {
    pub document: Document,
    pub object: Object,
}

/// Objects without duplicates and ownership cycles.
#[derive(Clone, Debug, Default)]
pub struct Objects(pub Vec<Read>);

/// Kind with its group, namespace and name.
type Identity = (String, String, String);

/// Decides whether to continue after a problem.
type OnProblem<'a> = &'a mut dyn FnMut(Problem) -> Result<(), Problem>;

impl Objects {
    /// Rejects duplicate objects and ownership cycles.
    pub fn new(documents: Vec<Document>) -> Result<Self, Problem> {
        Self::decode(documents, &mut Err)
    }

    /// Omits invalid objects of a running cluster and returns their problems.
    pub fn sound(documents: Vec<Document>) -> (Self, Vec<Problem>) {
        let mut wrong = Vec::new();
        let note = &mut |problem| {
            wrong.push(problem);
            Ok(())
        };
        let objects = Self::decode(documents, note).unwrap_or_default();
        (objects, wrong)
    }

    fn decode(documents: Vec<Document>, on_problem: OnProblem<'_>) -> Result<Self, Problem> {
        let mut known: BTreeMap<Identity, usize> = BTreeMap::new();
        let mut read = Vec::with_capacity(documents.len());
        for document in documents {
            let identity = identity(&document);
            if let Some(first) = identity.as_ref().and_then(|identity| known.get(identity)) {
                on_problem(duplicate(&document, read.get(*first)))?;
                continue;
            }
            match object(&document) {
                Ok(object) => {
                    known.extend(identity.map(|identity| (identity, read.len())));
                    read.push(Read { document, object });
                }
                Err(problem) => on_problem(problem)?,
            }
        }
        if let Err(problem) = check_owners(&read, &known) {
            on_problem(problem)?;
        }
        Ok(Self(read))
    }
}

fn identity(document: &Document) -> Option<Identity> {
    let namespace = document.namespace().unwrap_or(DEFAULT_NAMESPACE);
    let kind = format!("{}.{}", document.kind(), document.group());
    Some((kind, namespace.to_owned(), document.name()?.to_owned()))
}

fn duplicate(document: &Document, first: Option<&Read>) -> Problem {
    let place = first.map_or_else(String::new, |first| {
        let source = first.document.source();
        format!(", first at {}:{}", source.name, source.start(first.document.whole()))
    });
    let name = FieldPath::root().key("metadata").key("name");
    document.problem(name, format!("duplicate object{place}")).with_remedy("remove one of them")
}

fn owners(document: &Document) -> Result<Vec<OwnerReference>, Problem> {
    let field = FieldPath::root().key("metadata").key("ownerReferences");
    Ok(document.decode_at(&field)?.unwrap_or_default())
}

/// Rejects ownership cycles of any length.
fn check_owners(read: &[Read], known: &BTreeMap<Identity, usize>) -> Result<(), Problem> {
    let mut edges: Vec<Vec<usize>> = Vec::with_capacity(read.len());
    for one in read {
        let namespace = one.document.namespace().unwrap_or(DEFAULT_NAMESPACE);
        let owners = owners(&one.document)?;
        let of = owners.iter().filter_map(|owner| {
            let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
            let kind = format!("{}.{group}", owner.kind);
            // Cluster-scoped owners are filed under the default namespace.
            [namespace, DEFAULT_NAMESPACE].into_iter().find_map(|namespace| {
                known.get(&(kind.clone(), namespace.to_owned(), owner.name.clone()))
            })
        });
        edges.push(of.copied().collect());
    }
    // 0: not seen, 1: on the way, 2: done.
    let mut state = vec![0_u8; read.len()];
    for start in 0..read.len() {
        let mut way: Vec<(usize, usize)> = vec![(start, 0)];
        while let Some((at, next)) = way.last_mut() {
            let at = *at;
            if *next == 0 && state[at] == 2 {
                way.pop();
                continue;
            }
            state[at] = 1;
            let Some(owner) = edges[at].get(*next).copied() else {
                state[at] = 2;
                way.pop();
                continue;
            };
            *next += 1;
            match state[owner] {
                1 => return Err(cycle(read, &way, owner)),
                0 => way.push((owner, 0)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn cycle(read: &[Read], way: &[(usize, usize)], owner: usize) -> Problem {
    let from = way.iter().position(|(at, _)| *at == owner).unwrap_or(0);
    let names: Vec<String> = way
        .iter()
        .skip(from)
        .map(|(at, _)| *at)
        .chain([owner])
        .filter_map(|at| Some(read.get(at)?.document.label()))
        .collect();
    let field = FieldPath::root().key("metadata").key("ownerReferences");
    let at = way.last().and_then(|(at, _)| read.get(*at));
    let message = format!("ownership cycle: {}", names.join(" → "));
    match at {
        Some(read) => {
            read.document.problem(field, message).with_remedy("remove one of the references")
        }
        None => {
            Problem::of_text(read[owner].document.source(), read[owner].document.whole(), message)
        }
    }
}

pub fn read(objects: &Objects) -> Result<Cluster, Problem> {
    let mut cluster = Cluster::default();
    cluster.add(objects, true)?;
    Ok(cluster)
}

/// Omits invalid objects and returns their problems. A node with an invalid topology becomes a node of
/// unknown topology.
pub fn read_sound(objects: &Objects) -> (Cluster, Vec<Problem>) {
    let mut cluster = Cluster::default();
    let mut wrong = Vec::new();
    let note = &mut |problem| {
        wrong.push(problem);
        Ok(())
    };
    // Cannot fail, because all problems are collected.
    let _ = cluster.add_each(objects, true, note);
    (cluster, wrong)
}

fn lowered<T: Lower>(document: &Document, object: &T) -> Result<T::Model, Problem> {
    object.lower().map_err(|error| problem_of(document, &error))
}

pub(crate) fn problem_of(document: &Document, error: &LowerError) -> Problem {
    document.lower_problem(&FieldPath::root(), error)
}

fn full_name(meta: &ObjectMeta) -> FullName {
    let namespace = meta.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    (namespace.into(), meta.name.as_deref().unwrap_or_default().into())
}

/// Replaces the item that `is_same`, or adds one.
fn put<T>(list: &mut Vec<T>, new: T, is_same: impl Fn(&T) -> bool) {
    match list.iter_mut().find(|one| is_same(one)) {
        Some(one) => *one = new,
        None => list.push(new),
    }
}

impl Cluster {
    /// Adds objects and replaces those of the same name. Pods are added only if `with_pods`, because pods
    /// of manifests do not exist yet.
    pub fn add(&mut self, objects: &Objects, with_pods: bool) -> Result<(), Problem> {
        self.add_each(objects, with_pods, &mut Err)
    }

    fn add_each(
        &mut self,
        objects: &Objects,
        with_pods: bool,
        on_problem: OnProblem<'_>,
    ) -> Result<(), Problem> {
        let mut topologies: BTreeMap<&str, (&Document, &NodeResourceTopology)> = BTreeMap::new();
        for Read { document, object } in &objects.0 {
            if let Object::NodeResourceTopology(topology) = object {
                let name = topology.metadata.name.as_deref().unwrap_or_default();
                topologies.insert(name, (document, topology));
            }
        }
        let mut of_pools: BTreeMap<&str, &PoolTopology> = BTreeMap::new();
        for Read { object, .. } in &objects.0 {
            if let Object::Pool(pool) = object {
                let name = pool.metadata.name.as_deref().unwrap_or_default();
                of_pools.extend(pool.spec.topology.as_ref().map(|topology| (name, topology)));
            }
        }
        let mut pools = Vec::new();
        for Read { document, object } in &objects.0 {
            match object {
                Object::Node(node) => {
                    let name = node.metadata.name.as_deref().unwrap_or_default();
                    let topology = topologies.get(name).copied();
                    match cluster_node(document, node, (topology, &of_pools), on_problem) {
                        Ok(node) => {
                            let name = node.node.name.clone();
                            put(&mut self.nodes, node, |one| one.node.name == name);
                        }
                        Err(problem) => on_problem(problem)?,
                    }
                }
                Object::Pod(pod) if with_pods => match lowered(document, pod.as_ref()) {
                    Ok(pod) => self.add_pod(pod),
                    Err(problem) => on_problem(problem)?,
                },
                Object::NodePool(pool) => pools.push(pool.as_ref()),
                _ => self.add_other(document, object).or_else(&mut *on_problem)?,
            }
        }
        self.nodes.sort_by(|one, other| one.node.name.cmp(&other.node.name));
        // Pool objects take precedence over NodePools.
        let own = |pool: &Pool| {
            objects.0.iter().any(|read| {
                matches!(read.object, Object::Pool(_)) && read.document.name() == Some(&*pool.name)
            })
        };
        for pool in pools {
            if let Some(pool) = grown(pool, &self.nodes).filter(|pool| !own(pool)) {
                self.put_pool(pool);
            }
        }
        Ok(())
    }

    /// Adds a pool, or replaces the one of the same name.
    pub(crate) fn put_pool(&mut self, pool: Pool) {
        let name = pool.name.clone();
        put(&mut self.pools, pool, |one| one.name == name);
    }

    fn add_pod(&mut self, pod: PodObject) {
        if pod.phase != Phase::Finished {
            let seen_ms = pod.created_at_ms.max(pod.started_at_ms.unwrap_or(0));
            self.now_ms = self.now_ms.max(seen_ms);
            self.pods.push(pod);
        }
    }

    fn add_other(&mut self, document: &Document, object: &Object) -> Result<(), Problem> {
        let event = match object {
            Object::PriorityClass(class) => {
                let class = lowered(document, class.as_ref())?;
                let name = class.name.clone();
                put(&mut self.priority_classes, class, |one| one.name == name);
                return Ok(());
            }
            Object::ResourceQuota(quota) => {
                let quota = lowered(document, quota.as_ref())?;
                let key = (quota.namespace.clone(), quota.name.clone());
                put(&mut self.quotas, quota, |one| (&one.namespace, &one.name) == (&key.0, &key.1));
                return Ok(());
            }
            Object::LimitRange(range) => {
                let key = full_name(&range.metadata);
                let same = |one: &core::LimitRange| full_name(&one.metadata) == key;
                put(&mut self.limit_ranges, range.as_ref().clone(), same);
                return Ok(());
            }
            Object::ResourceClaimTemplate(template) => {
                let spec = template.spec.clone();
                self.claim_templates.insert(full_name(&template.metadata), spec);
                return Ok(());
            }
            Object::Namespace(namespace) => {
                let namespace = lowered(document, namespace.as_ref())?;
                if !self.namespaces.contains(&namespace.name) {
                    self.namespaces.push(namespace.name.clone());
                }
                Event::Namespace(namespace)
            }
            Object::ReplicaSet(set) => {
                let owners = set.metadata.owner_references.iter().flatten();
                let mut owners = owners.filter(|owner| owner.kind == "Deployment");
                if let Some(owner) = owners.next() {
                    let name = owner.name.as_str().into();
                    self.deployments.insert(full_name(&set.metadata), name);
                }
                Event::Grouping(lowered(document, set.as_ref())?)
            }
            Object::StatefulSet(set) => Event::Grouping(lowered(document, set.as_ref())?),
            Object::ReplicationController(one) => Event::Grouping(lowered(document, one.as_ref())?),
            Object::Service(service) => Event::Grouping(lowered(document, service.as_ref())?),
            Object::Pool(pool) => {
                self.put_pool(lowered(document, pool.as_ref())?);
                return Ok(());
            }
            _ => match plain(document, object)? {
                Some(event) => event,
                None => return Ok(()),
            },
        };
        self.others.push(event);
        Ok(())
    }
}

/// The event of kinds without a list of their own; `None` for irrelevant kinds.
fn plain(document: &Document, object: &Object) -> Result<Option<Event>, Problem> {
    Ok(Some(match object {
        Object::PodDisruptionBudget(budget) => Event::Budget(lowered(document, budget.as_ref())?),
        Object::PersistentVolume(volume) => Event::Volume(lowered(document, volume.as_ref())?),
        Object::PersistentVolumeClaim(claim) => Event::Claim(lowered(document, claim.as_ref())?),
        Object::StorageClass(class) => Event::StorageClass(lowered(document, class.as_ref())?),
        Object::CSINode(node) => Event::CsiNode(lowered(document, node.as_ref())?),
        Object::CSIDriver(driver) => Event::CsiDriver(lowered(document, driver.as_ref())?),
        Object::CSIStorageCapacity(capacity) => {
            Event::StorageCapacity(lowered(document, capacity.as_ref())?)
        }
        Object::VolumeAttachment(one) => Event::Attachment(lowered(document, one.as_ref())?),
        Object::ResourceSlice(slice) => Event::DeviceSlice(lowered(document, slice.as_ref())?),
        Object::DeviceClass(class) => Event::DeviceClass(lowered(document, class.as_ref())?),
        Object::ResourceClaim(claim) => Event::DeviceClaim(lowered(document, claim.as_ref())?),
        Object::Team(team) => Event::Team(lowered(document, team.as_ref())?),
        Object::Headroom(headroom) => Event::Headroom(lowered(document, headroom.as_ref())?),
        Object::Accelerator(one) => Event::Accelerator(lowered(document, one.as_ref())?),
        Object::PodGroup(group) => Event::Gang(lowered(document, group.as_ref())?),
        Object::PodGroupAlpha(group) => Event::Gang(lowered(document, group.as_ref())?),
        _ => return Ok(None),
    }))
}

fn cluster_node(
    document: &Document,
    node: &core::Node,
    (topology, pools): (Option<(&Document, &NodeResourceTopology)>, &BTreeMap<&str, &PoolTopology>),
    on_problem: OnProblem<'_>,
) -> Result<ClusterNode, Problem> {
    let object = lowered(document, node)?;
    let exported = topology.map(|(_, topology)| topology);
    let pool = pool_of(&object.labels).and_then(|name| pools.get(&**name).copied());
    let inside = berth_topology::read(node, &object, exported, pool);
    let inside = match inside {
        Ok(inside) => inside,
        Err(wrong) => {
            let by = match (wrong.origin, topology) {
                (Origin::Topology, Some((by, _))) => by,
                _ => document,
            };
            on_problem(by.problem(wrong.field, wrong.message).with_remedy(wrong.remedy))?;
            Inside::of_unknown_machine(&object)
        }
    };
    let text = marked(node, prices::PRICE);
    let stated = text.and_then(prices::stated);
    if let (Some(text), None) = (text, stated) {
        let message = format!("invalid price {text:?}");
        let problem = document.problem(field_of(node, prices::PRICE), message);
        on_problem(problem.with_remedy("write dollars per hour, such as 32.77"))?;
    }
    // The device plugin limits threads and memory.
    let sharing = if inside.mps { Isolation::MpsCapped } else { Isolation::default() };
    Ok(ClusterNode { node: object, inside, sharing, stated_microusd_per_hour: stated })
}

/// A NodePool whose new nodes are like its existing ones; `None` if it has none.
fn grown(pool: &NodePool, nodes: &[ClusterNode]) -> Option<Pool> {
    let name = pool.metadata.name.as_deref()?;
    let of_pool =
        |node: &&ClusterNode| pool_of(&node.node.labels).is_some_and(|own| own.as_ref() == name);
    let own: Vec<&ClusterNode> = nodes.iter().filter(of_pool).collect();
    let mut template = own.first()?.node.clone();
    template.name = "".into();
    template.unschedulable = false;
    template.images.clear();
    template.models.clear();
    template.labels = template
        .labels
        .iter()
        .filter(|(key, _)| key.as_ref() != "kubernetes.io/hostname")
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let taints = pool.spec.template.spec.taints.iter().filter_map(|taint| {
        let effect = match taint.effect.as_str() {
            "NoSchedule" => Effect::NoSchedule,
            "PreferNoSchedule" => Effect::PreferNoSchedule,
            "NoExecute" => Effect::NoExecute,
            _ => return None,
        };
        let value = taint.value.as_deref().unwrap_or_default().into();
        Some(Taint { key: taint.key.as_str().into(), value, effect })
    });
    template.taints = taints.collect();
    let room = pool.spec.limits.iter().filter_map(|(resource, limit)| {
        let resource = ResourceName::new(resource.as_str());
        let limit = Quantity::parse(&limit.0).ok()?.milli_value();
        let amount = |node: &berth_model::node::Node| {
            node.allocatable.get(&resource).map_or(0, |amount| amount.milli_value())
        };
        let used = own.iter().map(|node| amount(&node.node)).fold(0, i64::saturating_add);
        let each = Some(amount(&template)).filter(|each| *each > 0)?;
        u32::try_from(limit.saturating_sub(used).max(0) / each).ok()
    });
    let growth = room.min();
    Some(Pool { name: name.into(), template, growth, ..Pool::default() })
}

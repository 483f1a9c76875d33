//! Everything that is known of a cluster, by what rules ask for.
//!
//! Owns the indexes over all objects, those that are checked and those that are only given to check
//! against. Must not know any rule.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::Lower;
use berth_api::gang::{GANG, GANG_SIZE};
use berth_api::workload::Workload;
use berth_model::label::{Labels, Selector};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::object::{Object, What};
use crate::pool::Pool;
use crate::sharing::{self, Sharing};
use crate::topology;

/// Reads a document that stands inside of a text, such as a dashboard in a ConfigMap.
pub type ReadText = fn(&str) -> Option<Value>;

/// What is known of a cluster.
pub struct Context<'a> {
    /// Reads what stands inside of texts.
    pub(crate) read: ReadText,
    pub(crate) pools: Vec<Pool>,
    pub(crate) namespaces: BTreeMap<&'a str, &'a core::Namespace>,
    pub(crate) priority_classes: BTreeMap<&'a str, &'a PriorityClass>,
    pub(crate) limit_ranges: ByNamespace<'a, &'a core::LimitRange>,
    pub(crate) quotas: ByNamespace<'a, &'a core::ResourceQuota>,
    pub(crate) budgets: ByNamespace<'a, (Selector, &'a PodDisruptionBudget)>,
    /// What services select.
    pub(crate) services: ByNamespace<'a, Selector>,
    pub(crate) workloads: ByNamespace<'a, &'a Workload>,
    pub(crate) gangs: BTreeMap<(&'a str, &'a str), Gang<'a>>,
    /// How GPUs are shared, by the ConfigMaps of NVIDIA's device plugin.
    pub(crate) sharing: Vec<Sharing>,
    /// Kinds of Karpenter's node classes, by name.
    pub(crate) node_classes: BTreeMap<&'a str, &'a str>,
    /// Workloads whose replicas an autoscaler sets: namespace, kind, name.
    scaled: BTreeSet<(&'a str, &'a str, &'a str)>,
}

type ByNamespace<'a, T> = BTreeMap<&'a str, Vec<T>>;

/// The pods that say they are of one gang.
#[derive(Default)]
pub(crate) struct Gang<'a> {
    /// How many there are; `None` if that depends on the nodes.
    pub(crate) pods: Option<u32>,
    /// Sizes that they state.
    pub(crate) sizes: BTreeSet<&'a str>,
}

impl<'a> Context<'a> {
    /// What these objects say together. `read` reads documents inside of texts.
    pub fn new(objects: impl IntoIterator<Item = &'a Object>, read: ReadText) -> Self {
        let mut context = Self {
            read,
            pools: Vec::new(),
            namespaces: BTreeMap::new(),
            priority_classes: BTreeMap::new(),
            limit_ranges: BTreeMap::new(),
            quotas: BTreeMap::new(),
            budgets: BTreeMap::new(),
            services: BTreeMap::new(),
            workloads: BTreeMap::new(),
            gangs: BTreeMap::new(),
            sharing: Vec::new(),
            node_classes: BTreeMap::new(),
            scaled: BTreeSet::new(),
        };
        let mut kubelets = BTreeMap::new();
        for object in objects {
            context.add(object);
            kubelets.extend(topology::read(object));
        }
        for pool in context.pools.iter_mut().filter(|pool| !pool.grows) {
            pool.kubelet = kubelets.remove(&*pool.node.name);
        }
        context
    }

    fn add(&mut self, object: &'a Object) {
        let namespace = object.namespace();
        let name = object.reference.name.as_str();
        self.pools.extend(Pool::of(object));
        match &object.what {
            What::Workload(workload) => self.add_workload(namespace, workload),
            What::PriorityClass(class) => {
                self.priority_classes.insert(name, class);
            }
            What::LimitRange(range) => {
                self.limit_ranges.entry(namespace).or_default().push(range);
            }
            What::Quota(quota) => self.quotas.entry(namespace).or_default().push(quota),
            What::Budget(budget) => {
                if let Some(selector) = budget.lower().ok().and_then(|budget| budget.selector) {
                    self.budgets.entry(namespace).or_default().push((selector, budget));
                }
            }
            What::Namespace(one) => {
                self.namespaces.insert(name, one);
            }
            What::Service(service) => {
                let selector = service.lower().ok().and_then(|service| service.selector);
                self.services.entry(namespace).or_default().extend(selector);
            }
            What::Node(_) => {}
            What::Other if object.is("", "ConfigMap") => {
                self.sharing.extend(sharing::of_config_map(object, self.read));
            }
            What::Other => {
                if object.reference.kind.ends_with("NodeClass") {
                    self.node_classes.insert(name, &object.reference.kind);
                }
                let target = object.json.pointer("/spec/scaleTargetRef");
                let text = |field: &str| target?.get(field)?.as_str();
                if let Some(name) = text("name") {
                    // KEDA's objects mean a Deployment where they do not say a kind.
                    let kind = text("kind").unwrap_or("Deployment");
                    self.scaled.insert((namespace, kind, name));
                }
            }
        }
    }

    fn add_workload(&mut self, namespace: &'a str, workload: &'a Workload) {
        self.workloads.entry(namespace).or_default().push(workload);
        for template in &workload.templates {
            let label = |key: &str| label_of(&template.metadata, key);
            let Some(name) = label(GANG) else { continue };
            let fresh = Gang { pods: Some(0), sizes: BTreeSet::new() };
            let gang = self.gangs.entry((namespace, name)).or_insert(fresh);
            let more = template.copies.at_once();
            gang.pods = gang.pods.zip(more).map(|(pods, more)| pods.saturating_add(more));
            gang.sizes.extend(label(GANG_SIZE));
        }
    }

    /// Whether an autoscaler sets how many pods a workload makes.
    pub(crate) fn is_scaled(&self, namespace: &str, workload: &Workload) -> bool {
        let name = workload.metadata.name.as_deref().unwrap_or_default();
        self.scaled.contains(&(namespace, workload.kind.as_str(), name))
    }

    /// What `of` holds for the namespace.
    pub(crate) fn in_namespace<'c, T>(of: &'c ByNamespace<'a, T>, namespace: &str) -> &'c [T] {
        of.get(namespace).map_or(&[], Vec::as_slice)
    }
}

pub(crate) fn label_of<'m>(metadata: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn labels_of(metadata: &ObjectMeta) -> Labels {
    metadata.labels.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

//! Indexes over all known objects, checked or not, for rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::Lower;
use berth_api::keys::{GANG, GANG_SIZE};
use berth_api::workload::Workload;
use berth_model::label::{Labels, Selector};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::object::{Object, What};
use crate::pool::{NodeGroup, merge_alike};
use crate::sharing::{self, SharedResource};
use crate::topology;

/// Parses a document in a string, such as a dashboard in a ConfigMap.
pub type ReadText = fn(&str) -> Option<Value>;

pub struct Context {
    pub(crate) read: ReadText,
    pub(crate) pools: Vec<NodeGroup>,
    pub(crate) namespaces: BTreeMap<String, Arc<core::Namespace>>,
    pub(crate) priority_classes: BTreeMap<String, Arc<PriorityClass>>,
    pub(crate) limit_ranges: ByNamespace<Arc<core::LimitRange>>,
    pub(crate) quotas: ByNamespace<Arc<core::ResourceQuota>>,
    pub(crate) budgets: ByNamespace<Selector>,
    pub(crate) services: ByNamespace<Selector>,
    pub(crate) workloads: ByNamespace<Arc<Workload>>,
    gangs: BTreeMap<String, BTreeMap<String, Gang>>,
    /// From the ConfigMaps of NVIDIA's device plugin.
    pub(crate) sharing: Vec<SharedResource>,
    /// Kinds of Karpenter's node classes, by name.
    pub(crate) node_classes: BTreeMap<String, String>,
    /// Workloads with an autoscaler: namespace, kind, name.
    scaled: BTreeSet<[String; 3]>,
}

type ByNamespace<T> = BTreeMap<String, Vec<T>>;

#[derive(Default)]
pub(crate) struct Gang {
    /// `None` if it depends on the nodes.
    pub(crate) pods: Option<u32>,
    /// All values of `berth.dev/gang-size`.
    pub(crate) sizes: BTreeSet<String>,
}

impl Context {
    pub fn new<'a>(objects: impl IntoIterator<Item = &'a Object>, read: ReadText) -> Self {
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
        let objects: Vec<&Object> = objects.into_iter().collect();
        objects.iter().for_each(|object| context.add(object));
        let mut kubelets = topology::kubelets(objects);
        for pool in context.pools.iter_mut().filter(|pool| !pool.grows) {
            pool.kubelet = kubelets.remove(&*pool.node.name);
        }
        context.pools = merge_alike(context.pools);
        context
    }

    fn add(&mut self, object: &Object) {
        let namespace = || object.namespace().to_owned();
        let name = || object.reference.name.clone();
        self.pools.extend(NodeGroup::of(object));
        match &object.what {
            What::Workload(workload) => self.add_workload(namespace(), workload),
            What::PriorityClass(class) => {
                self.priority_classes.insert(name(), class.clone());
            }
            What::LimitRange(range) => {
                self.limit_ranges.entry(namespace()).or_default().push(range.clone());
            }
            What::Quota(quota) => self.quotas.entry(namespace()).or_default().push(quota.clone()),
            What::Budget(budget) => {
                let selector = budget.lower().ok().and_then(|budget| budget.selector);
                self.budgets.entry(namespace()).or_default().extend(selector);
            }
            What::Namespace(one) => {
                self.namespaces.insert(name(), one.clone());
            }
            What::Service(service) => {
                let selector = service.lower().ok().and_then(|service| service.selector);
                self.services.entry(namespace()).or_default().extend(selector);
            }
            What::Node(_) => {}
            What::Other if object.is("", "ConfigMap") => {
                self.sharing.extend(sharing::of_config_map(object, self.read));
            }
            What::Other => {
                if object.reference.kind.ends_with("NodeClass") {
                    self.node_classes.insert(name(), object.reference.kind.clone());
                }
                let target = object.json.pointer("/spec/scaleTargetRef");
                let text = |field: &str| target?.get(field)?.as_str();
                if let Some(name) = text("name") {
                    // The default in KEDA is Deployment.
                    let kind = text("kind").unwrap_or("Deployment");
                    self.scaled.insert([namespace(), kind.to_owned(), name.to_owned()]);
                }
            }
        }
    }

    fn add_workload(&mut self, namespace: String, workload: &Arc<Workload>) {
        for template in &workload.templates {
            let label = |key: &str| label_of(&template.metadata, key);
            let Some(name) = label(GANG) else { continue };
            let gangs = self.gangs.entry(namespace.clone()).or_default().entry(name.to_owned());
            let gang = gangs.or_insert(Gang { pods: Some(0), sizes: BTreeSet::new() });
            let more = template.copies.at_once();
            gang.pods = gang.pods.zip(more).map(|(pods, more)| pods.saturating_add(more));
            gang.sizes.extend(label(GANG_SIZE).map(str::to_owned));
        }
        self.workloads.entry(namespace).or_default().push(workload.clone());
    }

    pub(crate) fn gang(&self, namespace: &str, name: &str) -> Option<&Gang> {
        self.gangs.get(namespace)?.get(name)
    }

    /// Whether an autoscaler sets the replicas.
    pub(crate) fn is_scaled(&self, namespace: &str, workload: &Workload) -> bool {
        let name = workload.metadata.name.as_deref().unwrap_or_default();
        let key = [namespace, workload.kind.as_str(), name].map(str::to_owned);
        self.scaled.contains(&key)
    }

    pub(crate) fn in_namespace<'c, T>(of: &'c ByNamespace<T>, namespace: &str) -> &'c [T] {
        of.get(namespace).map_or(&[], Vec::as_slice)
    }
}

pub(crate) fn label_of<'m>(metadata: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn labels_of(metadata: &ObjectMeta) -> Labels {
    metadata.labels.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

//! Writes of virtual kubelets: pod statuses, leases, node conditions, NodeResourceTopologies.
//!
//! Per object only the latest state is sent, and one request at a time.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::topology::NodeResourceTopology;
use k8s_openapi::Resource;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::key::{Key, delete_this, is_conflict, is_not_found, unless_gone};
use crate::queue::{Queue, Requeue, drive, queue};
use crate::views::Views;

use super::host::Write;
use super::hosts::HostEvent;
use super::{Options, heartbeat, is_virtual};
use berth_api::keys::VIRTUAL_DEVICES;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes the writes of kubelets.
#[derive(Clone)]
pub(super) struct WriteQueue {
    shared: Arc<Shared>,
    pods: Queue,
    beats: Queue,
    joins: Queue,
    insides: Queue,
}

struct Shared {
    pods: Mutex<HashMap<Key, Write>>,
    insides: Mutex<HashMap<String, Value>>,
    stopped: Mutex<HashSet<String>>,
}

/// The queue, and the tasks that send what is in it.
pub(super) struct Writers {
    pub(super) write_queue: WriteQueue,
    pub(super) work: Vec<Work>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WriteQueue {
    /// Queues a write of a pod, merged with an earlier one that is not sent yet.
    pub(super) fn pod(&self, key: Key, write: Write) {
        let mut pods = lock(&self.shared.pods);
        let newest = match pods.remove(&key) {
            Some(before) if before.uid == write.uid => Write {
                status: write.status.or(before.status),
                assignment: write.assignment.or(before.assignment),
                remove: write.remove || before.remove,
                uid: write.uid,
            },
            _ => write,
        };
        pods.insert(key.clone(), newest);
        self.pods.add(key);
    }

    pub(super) fn join(&self, node: &str) {
        self.joins.add(Key::new("", node));
    }

    pub(super) fn start_heartbeat(&self, node: &str) {
        lock(&self.shared.stopped).remove(node);
        self.beats.add(Key::new("", node));
    }

    pub(super) fn stop_heartbeat(&self, node: &str) {
        lock(&self.shared.stopped).insert(node.to_owned());
    }

    pub(super) fn inside(&self, node: &str, content: Value) {
        lock(&self.shared.insides).insert(node.to_owned(), content);
        self.insides.add(Key::new("", node));
    }
}

pub(super) fn writers(
    client: &Client,
    options: &Options,
    views: &Arc<Views>,
    host_events: mpsc::UnboundedSender<HostEvent>,
) -> Writers {
    let shared = Arc::new(Shared {
        pods: Mutex::default(),
        insides: Mutex::default(),
        stopped: Mutex::default(),
    });
    let (pods, pods_waiting) = queue();
    let (beats, beats_waiting) = queue();
    let (joins, joins_waiting) = queue();
    let (insides, insides_waiting) = queue();
    let write_queue = WriteQueue { shared: Arc::clone(&shared), pods, beats, joins, insides };
    let writer = Writer { client: client.clone(), views: Arc::clone(views), shared };
    let width = options.requests_at_once.max(1);
    let of_pods = writer.clone();
    let of_insides = writer.clone();
    let of_joins = writer.clone();
    let options = options.clone();
    let work: Vec<Work> = vec![
        Box::pin(async move {
            drive("pod status", pods_waiting, width, |key| of_pods.pod(key)).await;
        }),
        Box::pin(async move {
            drive("node heartbeat", beats_waiting, width, |key| writer.beat(key, &options)).await;
        }),
        Box::pin(async move {
            drive("node", joins_waiting, width, |key| of_joins.join(key, &host_events)).await;
        }),
        Box::pin(async move {
            let work = |key| of_insides.inside(key);
            drive("NodeResourceTopology", insides_waiting, width.div_ceil(4), work).await;
        }),
    ];
    Writers { write_queue, work }
}

#[derive(Clone)]
struct Writer {
    client: Client,
    views: Arc<Views>,
    shared: Arc<Shared>,
}

/// The period, up to a quarter shorter by the node's name, so that heartbeats of many nodes spread out.
fn spread(period: Duration, node: &str) -> Duration {
    let sum = node.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    period - period.mul_f64(f64::from(sum % 256) / 1024.0)
}

fn topologies(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("topology.node.k8s.io", "v1alpha2", "NodeResourceTopology");
    let resource = ApiResource::from_gvk_with_plural(&kind, "noderesourcetopologies");
    Api::all_with(client.clone(), &resource)
}

/// Conditions are merged by type: a reason or message that a condition no longer has must be null in the
/// patch, or the old one stays.
fn clear_absent_reasons(change: &mut Value) {
    let conditions = change.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        for field in ["reason", "message"] {
            condition.entry(field).or_insert(Value::Null);
        }
    }
}

impl Writer {
    async fn pod(&self, key: Key) -> Result<Requeue, kube::Error> {
        let Some(write) = lock(&self.shared.pods).remove(&key) else { return Ok(None) };
        let result = self.write_pod(&key, &write).await;
        match result {
            Ok(()) => Ok(None),
            // The pod is gone, or another one has its name.
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(None),
            Err(error) => {
                // A newer write has all of it.
                lock(&self.shared.pods).entry(key).or_insert(write);
                Err(error)
            }
        }
    }

    async fn write_pod(&self, key: &Key, write: &Write) -> Result<(), kube::Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let as_kubelet = PatchParams::default();
        if let Some(status) = &write.status {
            let mut change = json!({ "metadata": { "uid": write.uid }, "status": status });
            clear_absent_reasons(&mut change);
            let annotations =
                write.assignment.as_ref().map(|text| json!({ VIRTUAL_DEVICES: text }));
            if let Some(annotations) = &annotations {
                change["metadata"]["annotations"] = annotations.clone();
            }
            let patch = Patch::Strategic(&change);
            let mut written = pods.patch_status(&key.name, &as_kubelet, &patch).await?;
            // kube-apiserver ignores annotations in writes of the status.
            let missing = written.metadata.annotations.as_ref();
            if let Some(annotations) = annotations
                && missing.is_none_or(|list| !list.contains_key(VIRTUAL_DEVICES))
            {
                let change =
                    json!({ "metadata": { "uid": write.uid, "annotations": annotations } });
                written = pods.patch(&key.name, &as_kubelet, &Patch::Merge(&change)).await?;
            }
            self.views.pods.observe(written);
        }
        if write.remove {
            let mut this = Pod::default();
            this.metadata.uid = Some(write.uid.clone());
            let mut how = delete_this(&this.metadata).grace_period(0);
            how.propagation_policy = None;
            unless_gone(pods.delete(&key.name, &how).await)?;
        }
        Ok(())
    }

    async fn beat(&self, key: Key, options: &Options) -> Result<Requeue, kube::Error> {
        if lock(&self.shared.stopped).contains(&key.name) {
            return Ok(None);
        }
        let Some(node) = self.views.nodes.get(&key) else { return Ok(None) };
        if !is_virtual(&node) {
            return Ok(None);
        }
        heartbeat::renew(&self.client, &node, options.clock).await?;
        if let Some(conditions) = heartbeat::conditions(&node, options.clock.now()) {
            let written = heartbeat::report(&self.client, &node, &conditions).await;
            if let Some(written) = unless_gone(written)? {
                self.views.nodes.observe(written);
            }
        }
        Ok(Some(spread(options.lease_every, &key.name)))
    }

    /// Reads the published topology of a new node.
    async fn join(
        &self,
        key: Key,
        host_events: &mpsc::UnboundedSender<HostEvent>,
    ) -> Result<Requeue, kube::Error> {
        // Also 404 if the kind is not defined.
        let published = unless_gone(topologies(&self.client).get(&key.name).await)?;
        let topology = published.and_then(|object| serde_json::to_value(object).ok());
        let topology: Option<NodeResourceTopology> =
            topology.and_then(|object| serde_json::from_value(object).ok());
        // Sending fails only at shutdown.
        let _ = host_events
            .send(HostEvent::Joined { node: key.name, topology: topology.map(Box::new) });
        Ok(None)
    }

    async fn inside(&self, key: Key) -> Result<Requeue, kube::Error> {
        let Some(content) = lock(&self.shared.insides).remove(&key.name) else { return Ok(None) };
        let result = self.write_inside(&key.name, &content).await;
        if let Err(error) = result {
            if is_not_found(&error) {
                // The kind is not defined. If it is later, the next change is published.
                return Ok(None);
            }
            lock(&self.shared.insides).entry(key.name).or_insert(content);
            return Err(error);
        }
        Ok(None)
    }

    async fn write_inside(&self, node: &str, content: &Value) -> Result<(), kube::Error> {
        let api = topologies(&self.client);
        match api.patch(node, &PatchParams::default(), &Patch::Merge(content)).await {
            Err(error) if is_not_found(&error) => {}
            answer => return answer.map(|_| ()),
        }
        let mut object = content.clone();
        object["apiVersion"] = json!(<NodeResourceTopology as Resource>::API_VERSION);
        object["kind"] = json!(<NodeResourceTopology as Resource>::KIND);
        object["metadata"] = json!({ "name": node });
        match serde_json::from_value::<DynamicObject>(object) {
            Ok(object) => api.create(&PostParams::default(), &object).await.map(|_| ()),
            Err(error) => Err(kube::Error::SerdeError(error)),
        }
    }
}

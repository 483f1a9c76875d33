//! What the engine's task answers to those who ask.
//!
//! Owns the form of the answers. Must not change anything.

use berth_engine::explain::render;
use berth_kubelet::Kubelet;
use serde_json::{Value, json};

use crate::core::Core;
use crate::http::{Question, ViewError};
use crate::insides::Insides;
use crate::placement::devices;

/// So many pods of the queue are told at most.
const QUEUE_MAX: usize = 10_000;

pub(crate) fn answer(
    core: &mut Core,
    insides: &Insides,
    question: &Question,
    now_ms: i64,
) -> Result<Value, ViewError> {
    match question {
        Question::State => Ok(state(core, insides)),
        Question::Queue => Ok(queue(core, now_ms)),
        Question::Nodes => Ok(nodes(core, insides)),
        Question::Explanation { namespace, name, whole_cluster } => {
            let unknown = || ViewError::NotFound(format!("no pod {namespace}/{name} is known"));
            let uid = core.uid_of(namespace, name).ok_or_else(unknown)?;
            let explanation = core.explain(&uid, now_ms).ok_or_else(|| {
                ViewError::NotFound(format!("pod {namespace}/{name} is not Berth's to place"))
            })?;
            let shown =
                if *whole_cluster { explanation } else { explanation.for_namespace(namespace) };
            Ok(json!({ "namespace": namespace, "name": name, "text": render(&shown) }))
        }
    }
}

fn state(core: &Core, insides: &Insides) -> Value {
    let unsettled = core.unsettled();
    let engine = core.engine();
    let (queued, parked) = engine.queued();
    json!({
        "leads": true,
        "nodes": insides.names().count(),
        "queued": queued,
        "parked": parked,
        "held": engine.held(),
        "binding": unsettled,
    })
}

fn queue(core: &Core, now_ms: i64) -> Value {
    let line = core.engine().pending_pods();
    let waiting: Vec<_> = line.iter().filter_map(|one| Some((one, core.pod(&one.pod)?))).collect();
    let told = waiting.iter().take(QUEUE_MAX).enumerate().map(|(at, (one, pod))| {
        json!({
            "position": at + 1,
            "held": one.held_by.is_some(),
            "namespace": pod.object.spec.namespace,
            "name": pod.object.name,
            "uid": pod.object.uid,
            "priority": pod.object.spec.priority,
            "waitingSeconds": now_ms.saturating_sub(pod.object.created_at_ms).max(0) / 1000,
            "nominatedNode": pod.object.nominated,
            "reason": pod.condition.as_ref().map(|condition| &condition.reason),
            "message": pod.condition.as_ref().map(|condition| &condition.message),
        })
    });
    json!({ "waiting": waiting.len(), "pods": told.collect::<Vec<_>>() })
}

fn nodes(core: &Core, insides: &Insides) -> Value {
    let engine = core.engine();
    let told = insides.names().map(|name| {
        let Some((kubelet, believed)) = engine.kubelet(name) else {
            let pods = residents(core, None, name);
            return json!({ "name": name, "topology": "unknown", "pods": pods });
        };
        let pools = kubelet.pools().enumerate().map(|(position, pool)| {
            let free: Vec<Value> = kubelet
                .free_by_numa(position)
                .map(|(numa, free)| {
                    json!({ "numaNodes": kubelet.machine().numa_ids(numa), "free": free })
                })
                .collect();
            json!({ "resource": pool.resource.as_str(), "devices": pool.devices.len(), "free": free })
        });
        let topology = if believed { "known" } else { "doubted" };
        json!({
            "name": name,
            "topology": topology,
            "devices": pools.collect::<Vec<_>>(),
            "pods": residents(core, Some(kubelet), name),
        })
    });
    json!({ "nodes": told.collect::<Vec<_>>() })
}

/// Who is on a node, and with which devices as far as that can be known.
fn residents(core: &Core, kubelet: Option<&Kubelet>, node: &str) -> Vec<Value> {
    let told = core.pods_on(node).map(|pod| {
        let object = &pod.object;
        let devices = kubelet.map_or_else(Vec::new, |kubelet| devices(kubelet, &object.uid));
        let namespace = &object.spec.namespace;
        json!({ "namespace": namespace, "name": object.name, "uid": object.uid, "devices": devices })
    });
    told.collect()
}

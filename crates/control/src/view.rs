//! What the engine's task answers to those who ask.
//!
//! Owns the form of the answers. Must not change anything.

use berth_engine::explain::render;
use serde_json::{Value, json};

use crate::core::Core;
use crate::http::{Question, ViewError};
use crate::insides::Insides;

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
        Question::Explanation { namespace, name } => {
            let unknown = || ViewError::NotFound(format!("no pod {namespace}/{name} is known"));
            let uid = core.uid_of(namespace, name).ok_or_else(unknown)?;
            let explanation = core.explain(&uid, now_ms).ok_or_else(|| {
                ViewError::NotFound(format!("pod {namespace}/{name} is not Berth's to place"))
            })?;
            Ok(json!({ "namespace": namespace, "name": name, "text": render(&explanation) }))
        }
    }
}

fn state(core: &mut Core, insides: &Insides) -> Value {
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

fn queue(core: &mut Core, now_ms: i64) -> Value {
    let mut waiting: Vec<_> = core.waiting().collect();
    waiting.sort_by_key(|pod| {
        let object = &pod.object;
        (std::cmp::Reverse(object.spec.priority), object.created_at_ms, object.uid.clone())
    });
    let told = waiting.iter().take(QUEUE_MAX).map(|pod| {
        json!({
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

fn nodes(core: &mut Core, insides: &Insides) -> Value {
    let engine = core.engine();
    let told = insides.names().map(|name| {
        let Some((kubelet, believed)) = engine.kubelet(name) else {
            return json!({ "name": name, "topology": "unknown" });
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
        json!({ "name": name, "topology": topology, "devices": pools.collect::<Vec<_>>() })
    });
    json!({ "nodes": told.collect::<Vec<_>>() })
}

//! Node lifecycle: conditions and taints of nodes without heartbeats, eviction of their pods, and pods whose node
//! is gone.
//!
//! A heartbeat counts from the moment it is seen to change, never by the time it carries, because clocks differ.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_api::Lower as _;
use berth_model::taint::{Effect, Taint as Model, Toleration};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, PodCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::clock::{later, seconds, until, whole_seconds};
use crate::key::{Key, delete_this, name, namespace, unless_gone};
use crate::queue::{Queue, Requeue};
use crate::views::{LEASES_OF_NODES, on_node};

use super::context::{Context, each};
use super::pods::{condition, is_finished, is_ready, is_terminating, node_of};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Taints that follow from conditions other than Ready.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];

/// When the last new heartbeat of each node was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Heartbeats(Arc<Mutex<HashMap<String, Timestamp>>>);

impl Heartbeats {
    fn with<T>(&self, look: impl FnOnce(&mut HashMap<String, Timestamp>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn beat(&self, node: &str, now: Timestamp) {
        self.with(|heartbeats| heartbeats.insert(node.to_owned(), now));
    }

    /// When a node's last heartbeat was seen; at the earliest, when this process first looked.
    fn silent_since(&self, node: &str, now: Timestamp) -> Timestamp {
        self.with(|heartbeats| *heartbeats.entry(node.to_owned()).or_insert(now))
    }

    fn forget(&self, node: &str) {
        self.with(|heartbeats| heartbeats.remove(node));
    }
}

fn find<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// The conditions to set on a node without heartbeats; empty if they are set.
fn silenced(node: &Node, now: Timestamp) -> Vec<NodeCondition> {
    let now = Time(whole_seconds(now));
    let kinds = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
    let known = kinds
        .into_iter()
        .filter(|kind| find(node, kind).is_none_or(|condition| condition.status != "Unknown"));
    known
        .map(|kind| {
            let before = find(node, kind);
            let (reason, message) = match before {
                Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
                None => ("NodeStatusNeverUpdated", "Kubelet never posted node status."),
            };
            NodeCondition {
                type_: kind.to_owned(),
                status: "Unknown".to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message.to_owned()),
                last_heartbeat_time: before.and_then(|before| before.last_heartbeat_time.clone()),
                last_transition_time: Some(now.clone()),
            }
        })
        .collect()
}

/// The taints a node should have; `None` if it has exactly those.
fn taints(node: &Node, now: Timestamp) -> Option<Vec<Taint>> {
    let ready = find(node, "Ready").map(|condition| condition.status.as_str());
    let unready = match ready {
        Some("True") => None,
        Some("Unknown") => Some(UNREACHABLE),
        // A node without a Ready condition is not ready.
        _ => Some(NOT_READY),
    };
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    wanted.extend(unready.map(|key| (key, "NoSchedule")));
    wanted.extend(unready.filter(|_| ready.is_some()).map(|key| (key, "NoExecute")));
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    for (kind, key) in PRESSURES {
        if find(node, kind).is_some_and(|condition| condition.status == "True") {
            wanted.push((key, "NoSchedule"));
        }
    }
    let ours = |key: &str| {
        [NOT_READY, UNREACHABLE, UNSCHEDULABLE].contains(&key)
            || PRESSURES.iter().any(|(_, own)| *own == key)
    };
    let before = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let mut after: Vec<Taint> = before
        .iter()
        .filter(|taint| {
            !ours(&taint.key)
                || wanted.iter().any(|(key, effect)| taint.key == *key && taint.effect == *effect)
        })
        .cloned()
        .collect();
    for (key, effect) in wanted {
        if !after.iter().any(|taint| taint.key == key && taint.effect == effect) {
            after.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                value: None,
                time_added: Some(Time(whole_seconds(now))),
            });
        }
    }
    (after != before).then_some(after)
}

/// When the taints evict a pod; `None`: never.
fn leaves_at(pod: &Pod, taints: &[Taint], now: Timestamp) -> Option<Timestamp> {
    let spec = pod.spec.as_ref()?;
    let written = spec.tolerations.as_deref().unwrap_or_default();
    let lowered = pod.lower().ok();
    let lowered: &[Toleration] = lowered.as_ref().map_or(&[], |pod| &pod.spec.tolerations);
    let mut soonest: Option<Timestamp> = None;
    for taint in taints.iter().filter(|taint| taint.effect == "NoExecute") {
        let model = Model {
            key: taint.key.as_str().into(),
            value: taint.value.as_deref().unwrap_or_default().into(),
            effect: Effect::NoExecute,
        };
        let answers: Vec<_> =
            written.iter().zip(lowered).filter(|(_, one)| one.tolerates(&model)).collect();
        if answers.is_empty() {
            return Some(now);
        }
        let limits = answers.iter().filter_map(|(written, _)| written.toleration_seconds);
        if let Some(limit) = limits.min() {
            let since = taint.time_added.as_ref().map_or(now, |time| time.0);
            let at = later(since, seconds(limit));
            soonest = Some(soonest.map_or(at, |soonest| soonest.min(at)));
        }
    }
    soonest
}

pub(super) fn wire(context: &Context, heartbeats: &Heartbeats, nodes: &Queue, pods: &Queue) {
    let views = &context.views;
    let (to, all) = (nodes.clone(), Arc::clone(&views.pods));
    let (evict, clock, heard) = (pods.clone(), context.clock, heartbeats.clone());
    views.nodes.on_change(move |change| {
        to.add(change.key.clone());
        let said = |node: &Arc<Node>| {
            find(node, "Ready").and_then(|ready| ready.last_heartbeat_time.clone())
        };
        if change.new.as_ref().and_then(said) != change.old.as_ref().and_then(said) {
            heard.beat(&change.key.name, clock.now());
        }
        let taints = |node: &Arc<Node>| node.spec.as_ref().and_then(|spec| spec.taints.clone());
        let before = change.old.as_ref().and_then(taints).unwrap_or_default();
        let after = change.new.as_ref().and_then(taints).unwrap_or_default();
        if before != after || change.new.is_none() {
            for pod in all.by(&on_node(&change.key.name)) {
                evict.add(Key::of(&pod.metadata));
            }
        }
    });
    let (clock, heard) = (context.clock, heartbeats.clone());
    views.leases.on_change(move |change| {
        if change.key.namespace == LEASES_OF_NODES && change.new.is_some() {
            heard.beat(&change.key.name, clock.now());
        }
    });
    let to = pods.clone();
    views.pods.on_change(move |change| {
        let now = change.new.as_ref().and_then(|pod| node_of(pod));
        let before = change.old.as_ref().and_then(|pod| node_of(pod));
        if now.is_some() && now != before {
            to.add(change.key.clone());
        }
    });
}

pub(super) async fn reconcile_node(
    context: &Context,
    heartbeats: &Heartbeats,
    grace: Duration,
    key: Key,
) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(node) = views.nodes.get(&key) else {
        heartbeats.forget(&key.name);
        return Ok(None);
    };
    let now = context.clock.now();
    let silent = later(heartbeats.silent_since(&key.name, now), grace);
    let nodes: Api<Node> = Api::all(context.client.clone());
    let mut node = (*node).clone();
    if silent <= now {
        let said = silenced(&node, now);
        if !said.is_empty() {
            let change = json!({
                "metadata": { "uid": node.metadata.uid },
                "status": { "conditions": said },
            });
            let patch = Patch::Strategic(&change);
            let written = nodes.patch_status(&key.name, &PatchParams::default(), &patch).await;
            let Some(written) = unless_gone(written)? else { return Ok(None) };
            views.nodes.observe(written.clone());
            node = written;
        }
    }
    if let Some(taints) = taints(&node, now) {
        node.spec.get_or_insert_default().taints = Some(taints);
        let written = nodes.replace(&key.name, &PostParams::default(), &node).await?;
        views.nodes.observe(written.clone());
        node = written;
    }
    if find(&node, "Ready").is_some_and(|ready| ready.status != "True") {
        let pods = views.pods.by(&on_node(&key.name));
        let ready: Vec<Arc<Pod>> = pods.into_iter().filter(|pod| is_ready(pod)).collect();
        each(&ready, |pod| mark_unready(context, pod, now)).await?;
    }
    // An unreachable node is reconciled when its heartbeat returns.
    let left = until(now, silent);
    Ok(Some(if left.is_zero() { grace } else { left }))
}

/// Marks a pod on an unreachable node as not ready.
async fn mark_unready(
    context: &Context,
    pod: &Arc<Pod>,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let change = json!({
        "metadata": { "uid": pod.metadata.uid },
        "status": { "conditions": [{
            "type": "Ready", "status": "False", "reason": "NodeNotReady", "message": null,
            "lastTransitionTime": Time(whole_seconds(now)),
        }] },
    });
    let pods = context.api::<Pod>(namespace(&pod.metadata));
    let patch = Patch::Strategic(&change);
    let done = pods.patch_status(name(&pod.metadata), &PatchParams::default(), &patch).await;
    if let Some(written) = unless_gone(done)? {
        context.views.pods.observe(written);
    }
    Ok(())
}

/// Evicts a pod whose node is gone or has taints it does not tolerate.
pub(super) async fn reconcile_pod(context: &Context, key: Key) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(pod) = views.pods.get(&key) else { return Ok(None) };
    let Some(on) = node_of(&pod) else { return Ok(None) };
    let now = context.clock.now();
    let Some(node) = views.nodes.get(&Key::new("", on)) else {
        return remove_lost(context, &pod, on, now).await.map(|()| None);
    };
    if is_terminating(&pod) || is_finished(&pod) {
        return Ok(None);
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    match leaves_at(&pod, taints, now) {
        None => Ok(None),
        Some(at) if at > now => Ok(Some(until(now, at))),
        Some(_) => {
            let message = "Taint manager: deleting due to NoExecute taint";
            disrupt(context, &pod, "DeletionByTaintManager", message, false, now).await?;
            context.delete(&views.pods, pod.as_ref()).await.map(|()| None)
        }
    }
}

/// Sets the condition `DisruptionTarget`.
async fn disrupt(
    context: &Context,
    pod: &Pod,
    reason: &str,
    message: &str,
    failed: bool,
    now: Timestamp,
) -> Result<(), kube::Error> {
    if condition(pod, "DisruptionTarget").is_some_and(|one| one.status == "True") && !failed {
        return Ok(());
    }
    let said = PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(whole_seconds(now))),
        observed_generation: pod.metadata.generation,
        ..PodCondition::default()
    };
    let mut status = json!({ "conditions": [said] });
    if failed {
        status["phase"] = json!("Failed");
    }
    let change = json!({ "metadata": { "uid": pod.metadata.uid }, "status": status });
    let pods = context.api::<Pod>(namespace(&pod.metadata));
    let patch = Patch::Strategic(&change);
    let done = pods.patch_status(name(&pod.metadata), &PatchParams::default(), &patch).await;
    if let Some(written) = unless_gone(done)? {
        context.views.pods.observe(written);
    }
    Ok(())
}

/// Deletes a pod whose node is gone, because no kubelet will.
async fn remove_lost(
    context: &Context,
    pod: &Arc<Pod>,
    node: &str,
    now: Timestamp,
) -> Result<(), kube::Error> {
    // The watch of nodes may lag behind that of pods.
    let nodes: Api<Node> = Api::all(context.client.clone());
    if nodes.get_metadata_opt(node).await?.is_some() {
        return Ok(());
    }
    let message = "PodGC: node no longer exists";
    disrupt(context, pod, "DeletionByPodGC", message, !is_finished(pod), now).await?;
    let how = delete_this(&pod.metadata).grace_period(0);
    context.delete_with(&context.views.pods, pod.as_ref(), &how).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::fixtures::{pod, time};
    use serde_json::{Value, from_value};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn node(ready: Option<&str>, more: Value) -> Node {
        let conditions: Vec<Value> =
            ready.map(|status| json!({ "type": "Ready", "status": status })).into_iter().collect();
        from_value(json!({
            "metadata": { "name": "n" }, "spec": more, "status": { "conditions": conditions },
        }))
        .unwrap()
    }

    fn shown(taints: Option<Vec<Taint>>) -> Vec<String> {
        let show = |taint: Taint| format!("{}:{}", taint.key, taint.effect);
        taints.unwrap_or_default().into_iter().map(show).collect()
    }

    #[test]
    fn taints_follow_conditions_and_leave_others_alone() {
        let own = json!({ "taints": [{ "key": "gpu", "effect": "NoSchedule" }] });
        assert_eq!(taints(&node(Some("True"), own.clone()), at(9)), None);
        let silent = taints(&node(Some("Unknown"), own.clone()), at(9));
        let expected = [
            "gpu:NoSchedule",
            "node.kubernetes.io/unreachable:NoSchedule",
            "node.kubernetes.io/unreachable:NoExecute",
        ];
        assert_eq!(shown(silent.clone()), expected);
        let mut back = node(Some("True"), own);
        back.spec.as_mut().unwrap().taints = silent;
        assert_eq!(shown(taints(&back, at(9))), ["gpu:NoSchedule"]);
        let new = taints(&node(None, json!({})), at(9));
        assert_eq!(shown(new), ["node.kubernetes.io/not-ready:NoSchedule"]);
        let cordoned = taints(&node(Some("True"), json!({ "unschedulable": true })), at(9));
        assert_eq!(shown(cordoned), ["node.kubernetes.io/unschedulable:NoSchedule"]);
    }

    #[test]
    fn pods_leave_when_their_patience_ends() {
        let taint: Vec<Taint> = from_value(json!([
            { "key": UNREACHABLE, "effect": "NoExecute", "timeAdded": time(100) },
        ]))
        .unwrap();
        let tolerant = |tolerations: Value| {
            let mut pod = pod("p").on("n").plain();
            pod.spec.as_mut().unwrap().tolerations = Some(from_value(tolerations).unwrap());
            leaves_at(&pod, &taint, at(150))
        };
        assert_eq!(tolerant(json!([])), Some(at(150)));
        assert_eq!(tolerant(json!([{ "operator": "Exists" }])), None);
        let five_minutes = json!([
            { "key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute",
              "tolerationSeconds": 300 },
        ]);
        assert_eq!(tolerant(five_minutes), Some(at(400)));
        let no_patience = json!([{ "operator": "Exists", "tolerationSeconds": -1 }]);
        assert_eq!(tolerant(no_patience), Some(at(100)));
    }

    #[test]
    fn silence_is_judged_by_when_a_beat_was_seen() {
        let heartbeats = Heartbeats::default();
        assert_eq!(heartbeats.silent_since("n", at(1000)), at(1000));
        assert_eq!(heartbeats.silent_since("n", at(1030)), at(1000));
        heartbeats.beat("n", at(1040));
        assert_eq!(heartbeats.silent_since("n", at(1050)), at(1040));
        let said = silenced(&node(Some("True"), json!({})), at(1100));
        assert_eq!(said[0].reason.as_deref(), Some("NodeStatusUnknown"));
        let mut silent = node(None, json!({}));
        silent.status.as_mut().unwrap().conditions = Some(silenced(&silent, at(1)));
        assert!(silenced(&silent, at(2)).is_empty());
    }
}

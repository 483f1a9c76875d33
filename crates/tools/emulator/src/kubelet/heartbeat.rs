//! Heartbeats of virtual nodes: leases and node conditions.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Namespace, Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::clock::{Clock, later, whole_seconds};
use crate::key::{is_already_exists, is_not_found, name, uid};
use crate::views::LEASES_OF_NODES;

const LEASE_S: i32 = 40;

/// Interval in which unchanged conditions are reported.
const REPORT_EVERY: Duration = Duration::from_secs(300);

/// Conditions of a healthy node: type, status, reason, message.
const CONDITIONS: [(&str, &str, &str, &str); 4] = [
    (
        "MemoryPressure",
        "False",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
];

pub(super) async fn renew(client: &Client, node: &Node, clock: Clock) -> Result<(), kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES_OF_NODES);
    let own = name(&node.metadata);
    let renewed = json!({ "spec": {
        "holderIdentity": own,
        "leaseDurationSeconds": LEASE_S,
        "renewTime": clock.micro_time(),
    }});
    match leases.patch(own, &PatchParams::default(), &Patch::Merge(&renewed)).await {
        Err(error) if is_not_found(&error) => {}
        answer => return answer.map(|_| ()),
    }
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(own.to_owned()),
            namespace: Some(LEASES_OF_NODES.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: own.to_owned(),
                uid: uid(&node.metadata).to_owned(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(own.to_owned()),
            lease_duration_seconds: Some(LEASE_S),
            renew_time: Some(clock.micro_time()),
            ..LeaseSpec::default()
        }),
    };
    match leases.create(&PostParams::default(), &lease).await {
        Err(error) if is_not_found(&error) => {
            make_namespace(client).await?;
            leases.create(&PostParams::default(), &lease).await.map(|_| ())
        }
        answer => answer.map(|_| ()),
    }
}

async fn make_namespace(client: &Client) -> Result<(), kube::Error> {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(LEASES_OF_NODES.to_owned());
    match Api::all(client.clone()).create(&PostParams::default(), &namespace).await {
        Err(error) if !is_already_exists(&error) => Err(error),
        _ => Ok(()),
    }
}

/// The conditions to report, if they changed or the last report is old.
pub(super) fn conditions(node: &Node, now: Timestamp) -> Option<Vec<NodeCondition>> {
    let said = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let find = |kind: &str| said.into_iter().flatten().find(|one| one.type_ == kind);
    let fresh = |(kind, status, reason, _): &(&str, &str, &str, &str)| {
        find(kind).is_some_and(|one| {
            let events_of_hosts =
                one.last_heartbeat_time.as_ref().map(|time| later(time.0, REPORT_EVERY));
            one.status == *status
                && one.reason.as_deref() == Some(reason)
                && events_of_hosts.is_some_and(|until| until > now)
        })
    };
    if CONDITIONS.iter().all(fresh) {
        return None;
    }
    let now = Time(whole_seconds(now));
    let said = |(kind, status, reason, message): &(&str, &str, &str, &str)| {
        let same = find(kind).filter(|one| one.status == *status);
        let since = same.and_then(|one| one.last_transition_time.clone());
        NodeCondition {
            type_: (*kind).to_owned(),
            status: (*status).to_owned(),
            reason: Some((*reason).to_owned()),
            message: Some((*message).to_owned()),
            last_heartbeat_time: Some(now.clone()),
            last_transition_time: since.or_else(|| Some(now.clone())),
        }
    };
    Some(CONDITIONS.iter().map(said).collect())
}

pub(super) async fn report(
    client: &Client,
    node: &Node,
    conditions: &[NodeCondition],
) -> Result<Node, kube::Error> {
    let change = json!({
        "metadata": { "uid": node.metadata.uid },
        "status": { "conditions": conditions },
    });
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Strategic(&change);
    nodes.patch_status(name(&node.metadata), &PatchParams::default(), &patch).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_that_it_is_well_when_it_does_not_or_has_not_for_long() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut node = Node::default();
        let first = conditions(&node, at(100)).unwrap();
        assert_eq!(first.len(), 4);
        node.status.get_or_insert_default().conditions = Some(first);
        assert_eq!(conditions(&node, at(399)), None);
        let again = conditions(&node, at(400)).unwrap();
        assert_eq!(again[3].last_transition_time, Some(Time(at(100))));
        assert_eq!(again[3].last_heartbeat_time, Some(Time(at(400))));
        // Somebody has given it up.
        node.status.as_mut().unwrap().conditions.as_mut().unwrap()[3].status = "Unknown".to_owned();
        let back = conditions(&node, at(200)).unwrap();
        assert_eq!(back[3].last_transition_time, Some(Time(at(200))));
    }
}

//! Several replicas, of which one leads.

use std::time::{Duration, Instant};

use berth_control::core;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use serde_json::json;

use crate::replica::{Replica, hasty, patient};
use crate::world::{Shape, World};

fn leads(replica: &Replica) -> bool {
    replica.metric("berth_leader", "") > 0.0
}

async fn holder(world: &World) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "berth-system");
    let lease = leases.get_opt("berth").await.unwrap()?;
    lease.spec?.holder_identity.filter(|holder| !holder.is_empty())
}

pub(crate) async fn who_ends_cleanly_hands_over_at_once(world: World) {
    world.node("n1", 4, json!({})).await;
    let first = Replica::start_with(&world, patient(), core::Settings::default()).await;
    world.eventually("the first leads", async || leads(&first).then_some(())).await;
    let second = Replica::start_with(&world, patient(), core::Settings::default()).await;
    world.pod(&Shape::new("a").gpus(1)).await;
    world.bound("a").await;
    assert!(!leads(&second), "two lead");
    first.stop().await;
    let began = Instant::now();
    world.eventually("the second leads", async || leads(&second).then_some(())).await;
    let waited = began.elapsed();
    // It looks every two seconds; without the release it would have waited for fifteen.
    assert!(waited < Duration::from_secs(8), "after {waited:?}");
    world.pod(&Shape::new("b").gpus(1)).await;
    world.bound("b").await;
    second.stop().await;
    assert_eq!(holder(&world).await, None, "the lease was not given back");
}

pub(crate) async fn who_is_killed_is_replaced_within_seconds(world: World) {
    world.node("n1", 8, json!({})).await;
    let first = Replica::start_with(&world, hasty(), core::Settings::default()).await;
    world.eventually("the first leads", async || leads(&first).then_some(())).await;
    let second = Replica::start_with(&world, hasty(), core::Settings::default()).await;
    for number in 0..8 {
        world.pod(&Shape::new(&format!("p{number}")).gpus(1)).await;
    }
    // In the middle of its work.
    first.kill();
    let began = Instant::now();
    world.eventually("the second leads", async || leads(&second).then_some(())).await;
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(10), "after {waited:?}");
    for number in 0..8 {
        world.bound(&format!("p{number}")).await;
    }
    second.stop().await;
}

pub(crate) async fn what_is_under_way_is_finished_before_we_end(world: World) {
    world.node("n1", 8, json!({})).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("warm")).await;
    world.bound("warm").await;
    for number in 0..100 {
        world.pod(&Shape::new(&format!("p{number}"))).await;
    }
    let metrics = replica.metrics();
    replica.stop().await;
    assert!(metrics.contains("berth_bindings"));
    // Nothing is decided without being done: the list of what may be under way is empty.
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "berth-system");
    let lease = leases.get("berth").await.unwrap();
    let announced = lease.metadata.annotations.unwrap_or_default();
    let announced = announced.get("berth.dev/binding").cloned().unwrap_or_default();
    let pods = world.api::<Pod>().list(&ListParams::default()).await.unwrap();
    for pod in pods {
        let has_node = pod.spec.is_some_and(|spec| spec.node_name.is_some());
        let uid = pod.metadata.uid.unwrap();
        assert!(has_node || !announced.contains(&uid), "{announced}");
    }
    assert_eq!(holder(&world).await, None);
}

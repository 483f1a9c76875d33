//! Who makes room for whom.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::replica::Replica;
use crate::world::{Shape, World, condition};

async fn priority_classes(world: &World) {
    let classes: Api<PriorityClass> = Api::all(world.client.clone());
    for (name, value) in [("live-low", 10), ("live-high", 1_000)] {
        if classes.get_opt(name).await.unwrap().is_none() {
            let class = json!({ "metadata": { "name": name }, "value": value });
            let class = serde_json::from_value(class).unwrap();
            classes.create(&PostParams::default(), &class).await.unwrap();
        }
    }
}

fn low(name: &str) -> Shape {
    Shape::new(name).gpus(2).label("app", "low").spec("priorityClassName", json!("live-low"))
}

fn high(name: &str) -> Shape {
    Shape::new(name).gpus(2).spec("priorityClassName", json!("live-high"))
}

pub(crate) async fn a_pod_that_goes_first_gets_its_place(world: World) {
    priority_classes(&world).await;
    world.node("n1", 4, json!({})).await;
    let replica = Replica::start(&world).await;
    for name in ["low1", "low2"] {
        // It is not gone at once: somebody has to say that it has ended.
        world.pod(&low(name).spec("terminationGracePeriodSeconds", json!(30))).await;
        world.bound(name).await;
        world.run(name).await;
    }
    world.pod(&high("high")).await;
    let victim = world
        .eventually("one of both is asked to go", async || {
            for name in ["low1", "low2"] {
                let pod = world.find(name).await?;
                if pod.metadata.deletion_timestamp.is_some() {
                    return Some(pod);
                }
            }
            None
        })
        .await;
    let victim = victim.metadata.name.unwrap();
    world
        .eventually("its condition says why", async || {
            let (status, reason, _) = condition(&world.find(&victim).await?, "DisruptionTarget")?;
            (status == "True" && reason == "PreemptionByScheduler").then_some(())
        })
        .await;
    world
        .eventually("its node is kept for the pod", async || {
            let pod = world.find("high").await?;
            (pod.status?.nominated_node_name.as_deref() == Some("n1")).then_some(())
        })
        .await;
    assert_eq!(world.node_of("high").await, None, "the victim has not ended yet");
    world.delete(&victim).await;
    assert_eq!(world.bound("high").await, "n1");
    let left = [world.find("low1").await, world.find("low2").await];
    assert_eq!(left.iter().flatten().count(), 1, "one was enough");
    replica.stop().await;
}

pub(crate) async fn a_disruption_budget_blocks_and_nothing_is_lost(world: World) {
    priority_classes(&world).await;
    world.node("n1", 2, json!({})).await;
    let budget = json!({
        "metadata": { "name": "low" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "low" } } },
    });
    let budget: PodDisruptionBudget = world.create(budget).await;
    // What the controller of budgets would write.
    let status = json!({ "status": {
        "observedGeneration": budget.metadata.generation, "disruptionsAllowed": 0,
        "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1,
    }});
    let budgets = world.api::<PodDisruptionBudget>();
    let patch = PatchParams::default();
    budgets.patch_status("low", &patch, &Patch::Merge(&status)).await.unwrap();
    let replica = Replica::start(&world).await;
    world.pod(&low("low")).await;
    world.bound("low").await;
    world.run("low").await;
    world.pod(&high("high")).await;
    world
        .eventually("the eviction was refused, or not even tried", async || {
            let blocked = replica.metric("berth_evictions_total", "blocked") > 0.0;
            let told = world.find("high").await.and_then(|pod| condition(&pod, "PodScheduled"));
            (blocked || told.is_some_and(|(status, ..)| status == "False")).then_some(())
        })
        .await;
    let there = world.find("low").await.expect("the budget was broken");
    assert!(there.metadata.deletion_timestamp.is_none(), "the budget was broken");
    assert_eq!(condition(&there, "DisruptionTarget"), None, "it does not go");
    assert_eq!(world.node_of("high").await, None);
    // The budget has room again: it goes on without being asked.
    let status = json!({ "status": { "disruptionsAllowed": 1, "currentHealthy": 2 }});
    budgets.patch_status("low", &patch, &Patch::Merge(&status)).await.unwrap();
    assert_eq!(world.bound("high").await, "n1");
    replica.stop().await;
}

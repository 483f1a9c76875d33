//! Rollouts, played through without an API server.

use super::super::status;
use super::*;
use crate::controllers::fixtures::time;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSetStatus;
use serde_json::{Value, from_value, json};

/// A Deployment, its sets, and how many pods of each are available.
struct World {
    deployment: Deployment,
    sets: Vec<ReplicaSet>,
    created: i64,
}

impl World {
    fn new(replicas: i32, strategy: Value) -> Self {
        let deployment = from_value(json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "web-uid", "generation": 1 },
            "spec": {
                "replicas": replicas, "strategy": strategy, "revisionHistoryLimit": 1,
                "progressDeadlineSeconds": 600,
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "main", "image": "v1" }] },
                },
            },
        }));
        Self { deployment: deployment.unwrap(), sets: Vec::new(), created: 0 }
    }

    fn spec(&mut self) -> &mut DeploymentSpec {
        self.deployment.spec.as_mut().unwrap()
    }

    fn image(&mut self, image: &str) {
        let pod = self.spec().template.spec.as_mut().unwrap();
        pod.containers[0].image = Some(image.to_owned());
    }

    fn sets(&self) -> Sets {
        let all = self.sets.iter().cloned().map(Arc::new).collect();
        Sets::of(self.deployment.spec.as_ref().unwrap(), all)
    }

    /// Takes the next steps; whether there were any.
    fn step(&mut self, pods: &[Arc<Pod>]) -> bool {
        let spec = self.deployment.spec.clone().unwrap();
        let steps = steps(&self.deployment, &spec, &self.sets(), pods);
        let any = !steps.is_empty();
        for step in steps {
            match step {
                Step::Create(mut set) => {
                    self.created += 1;
                    set.metadata.creation_timestamp = Some(time(self.created));
                    set.metadata.uid = set.metadata.name.clone();
                    self.sets.push(*set);
                }
                Step::Replace(set) => {
                    let old = self.sets.iter_mut().find(|old| old.metadata.uid == set.metadata.uid);
                    *old.unwrap() = *set;
                }
                Step::Delete(set) => self.sets.retain(|old| old.metadata.uid != set.metadata.uid),
                Step::Annotate(all) => self.deployment.metadata.annotations = Some(all),
            }
        }
        any
    }

    /// Sets do what they are told; `ready` says how many of theirs become available at once.
    fn settle(&mut self, ready: i32) {
        for set in &mut self.sets {
            let wanted = replicas(set);
            let status = set.status.get_or_insert_with(ReplicaSetStatus::default);
            let before = status.available_replicas.unwrap_or(0);
            status.replicas = wanted;
            status.available_replicas = Some((before + ready).min(wanted));
        }
        let spec = self.deployment.spec.clone().unwrap();
        let now = Timestamp::from_second(1000).unwrap();
        let (status, _) = status::status(&self.deployment, &spec, &self.sets(), now);
        self.deployment.status = Some(status);
    }

    fn sizes(&self) -> Vec<i32> {
        self.sets.iter().map(replicas).collect()
    }

    /// Goes on until nothing changes, and holds the rules on the way.
    fn run(&mut self, most: i32, least: i32) {
        for _ in 0..200 {
            let changed = self.step(&[]);
            let total: i32 = self.sizes().iter().sum();
            assert!(total <= most, "{:?} are more than {most}", self.sizes());
            self.settle(0);
            let there: i32 = self.sets.iter().map(available).sum();
            assert!(there >= least, "{there} available are less than {least}");
            self.settle(1);
            let all_there = self.sets.iter().all(|set| available(set) == replicas(set));
            if !changed && all_there {
                return;
            }
        }
        panic!("never done: {:?}", self.sizes());
    }
}

fn rolling(surge: Value, unavailable: Value) -> Value {
    json!({ "type": "RollingUpdate",
            "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } })
}

#[test]
fn a_rolling_update_keeps_its_bounds_whatever_they_are() {
    for (surge, unavailable, most, least) in [
        (json!("25%"), json!("25%"), 13, 8),
        (json!(1), json!(0), 11, 10),
        (json!(0), json!(1), 10, 9),
        (json!("100%"), json!(0), 20, 10),
        (json!(0), json!("100%"), 10, 0),
        (json!(0), json!(0), 10, 9),
    ] {
        let mut world = World::new(10, rolling(surge, unavailable));
        world.run(most, 0);
        assert_eq!(world.sizes(), [10]);
        world.image("v2");
        world.run(most, least);
        assert_eq!(world.sizes(), [0, 10]);
        let revision = |meta: &ObjectMeta| annotation(meta, REVISION).unwrap().to_owned();
        assert_eq!(revision(&world.sets[1].metadata), "2");
        assert_eq!(revision(&world.deployment.metadata), "2");
    }
}

#[test]
fn going_back_takes_the_old_set_again_with_a_new_revision() {
    let mut world = World::new(4, rolling(json!(1), json!(0)));
    world.run(5, 0);
    world.image("v2");
    world.run(5, 4);
    world.image("v1");
    world.run(5, 4);
    assert_eq!(world.sizes(), [4, 0]);
    assert_eq!(annotation(&world.sets[0].metadata, REVISION), Some("3"));
    world.image("v3");
    world.run(5, 4);
    assert_eq!(world.sizes(), [0, 4], "only one old set is kept");
}

#[test]
fn recreation_waits_until_the_last_old_pod_is_gone() {
    let mut world = World::new(3, json!({ "type": "Recreate" }));
    world.run(3, 0);
    world.image("v2");
    let old = crate::controllers::fixtures::pod("old").owned_by(&world.sets[0].metadata).arc();
    assert!(world.step(std::slice::from_ref(&old)));
    assert_eq!(world.sizes(), [0]);
    world.settle(9);
    assert!(!world.step(std::slice::from_ref(&old)), "it is still there");
    assert!(world.step(&[]));
    assert_eq!(world.sizes(), [0, 3]);
}

#[test]
fn a_new_size_in_the_middle_of_a_rollout_is_shared_in_proportion() {
    let mut world = World::new(10, rolling(json!(3), json!(2)));
    world.run(13, 0);
    world.image("v2");
    world.step(&[]);
    assert_eq!(world.sizes(), [10, 3]);
    world.settle(0);
    world.step(&[]);
    assert_eq!(world.sizes(), [8, 3], "two may be missing");
    world.settle(0);
    world.spec().replicas = Some(20);
    world.step(&[]);
    let sizes = world.sizes();
    assert_eq!(sizes.iter().sum::<i32>(), 23, "{sizes:?}");
    assert!(sizes[0] > sizes[1] && sizes[1] > 3, "{sizes:?}");
    world.run(23, 0);
    assert_eq!(world.sizes(), [0, 20]);
}

#[test]
fn a_paused_deployment_is_scaled_but_not_renewed() {
    let mut world = World::new(4, rolling(json!(1), json!(0)));
    world.run(5, 0);
    world.spec().paused = Some(true);
    world.image("v2");
    world.spec().replicas = Some(6);
    world.run(7, 4);
    assert_eq!(world.sizes(), [6]);
}

#[test]
fn conditions_say_whether_it_is_available_and_gets_on() {
    let mut world = World::new(4, rolling(json!(1), json!(1)));
    world.step(&[]);
    let spec = world.deployment.spec.clone().unwrap();
    let at = |second| Timestamp::from_second(second).unwrap();
    let said = |world: &World, second| {
        let (status, again) = status::status(&world.deployment, &spec, &world.sets(), at(second));
        let conditions = status.conditions.clone().unwrap();
        let find = |kind: &str| {
            let found = conditions.iter().find(|one| one.type_ == kind).unwrap();
            (found.status.clone(), found.reason.clone().unwrap())
        };
        (find("Available"), find("Progressing"), status, again)
    };
    let text = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    let (available, progressing, first, _) = said(&world, 0);
    assert_eq!(available, text("False", "MinimumReplicasUnavailable"));
    assert_eq!(progressing, text("True", "NewReplicaSetCreated"));
    world.deployment.status = Some(first);
    let (_, progressing, _, again) = said(&world, 500);
    assert_eq!(progressing.1, "NewReplicaSetCreated");
    assert_eq!(again.unwrap().as_secs(), 101);
    let (_, progressing, late, _) = said(&world, 601);
    assert_eq!(progressing, text("False", "ProgressDeadlineExceeded"));
    world.deployment.status = Some(late);
    world.settle(9);
    let (available, progressing, ..) = said(&world, 700);
    assert_eq!(available, text("True", "MinimumReplicasAvailable"));
    assert_eq!(progressing, text("True", "NewReplicaSetAvailable"));
}

//! Turns of the core beside a flood of pods of distinct shapes: each is bounded, and namespaces are
//! served fairly.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use berth_control::core::{Completion, Core, Effect, SeenPod, Settings, Update};
use berth_engine::event::Event;
use berth_kubelet::TopologyPolicy;
use berth_model::spec::PodSpec;
use berth_testkit::cluster::{NodeKind, gpu_template, pending, template};

/// How many pods the flood has.
const FLOOD: u64 = 2_000;

fn cluster() -> Core {
    let mut core = Core::new(Settings::default());
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::None);
    for event in kind.nodes(0, 10).unwrap() {
        if matches!(event, Event::Node(_)) {
            core.apply(Update::Other(event), 0);
        }
    }
    core
}

fn tell(core: &mut Core, mut spec: PodSpec, namespace: &str, number: u64) -> Arc<str> {
    spec.namespace = namespace.into();
    let object = pending(&Arc::new(spec), number);
    let uid = object.uid.clone();
    let seen = SeenPod {
        object,
        version: number + 1,
        ours: true,
        scheduler: Some("berth".into()),
        record: None,
        rejected: None,
        condition: None,
        invalid: None,
        outline: None,
    };
    core.apply(Update::Pod(Box::new(seen)), 0);
    uid
}

/// Pods of distinct shapes that no node can take.
fn flood(core: &mut Core) {
    for number in 0..FLOOD {
        let memory = format!("{}Mi", number + 1);
        let limits = [("cpu", "1"), ("memory", &memory), ("nvidia.com/gpu", "9")];
        tell(core, template("flood", 0, &limits).unwrap(), "flood", number);
    }
}

/// A turn at a time in milliseconds; whom it announces for binding, and whom it explains.
fn turn(core: &mut Core, now_ms: i64) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
    let (mut announced, mut explained) = (Vec::new(), Vec::new());
    let mut effects = core.turn(now_ms);
    if core.can_explain(now_ms) {
        effects.extend(core.explain_some(now_ms));
    }
    for effect in effects {
        match effect {
            Effect::Announce(pods) => announced.extend(pods.into_iter().map(|pod| pod.uid)),
            Effect::WriteStatus(told) => {
                explained.push(told.pod.uid.clone());
                core.settle(Completion::StatusWritten(told.pod.uid, true), now_ms);
            }
            _ => {}
        }
    }
    (announced, explained)
}

#[test]
fn a_turn_beside_a_flood_is_bounded_and_a_normal_pod_is_bound_in_the_first() {
    let mut core = cluster();
    flood(&mut core);
    let normal = tell(&mut core, gpu_template("normal", 0, 1).unwrap(), "normal", FLOOD);
    let (announced, _) = turn(&mut core, 1);
    assert_eq!(announced, [normal]);
    // The turn ended before all of the flood were decided; the next is due at once.
    let waits = core.take_tally().waits;
    assert!((64..=512).contains(&waits), "{waits}");
    assert_eq!(core.next_turn_ms(1), Some(1));
    let mut waits = waits;
    for _ in 0..10 {
        turn(&mut core, 1);
        waits += core.take_tally().waits;
    }
    assert_eq!(waits, FLOOD);
}

#[test]
fn pods_are_explained_a_few_per_turn_and_namespaces_take_turns() {
    let mut core = cluster();
    flood(&mut core);
    // Bounded turns decide first.
    while core.engine().queued().1 < FLOOD as usize {
        turn(&mut core, 1);
    }
    let held_up = tell(&mut core, gpu_template("normal", 0, 16).unwrap(), "normal", FLOOD);
    let mut turns = 0;
    loop {
        turns += 1;
        let (_, explained) = turn(&mut core, 1);
        assert!(explained.len() <= Settings::default().surveys_max, "{explained:?}");
        if explained.contains(&held_up) {
            break;
        }
        assert!(turns < 3, "the pod is not explained in {turns} turns");
    }
}

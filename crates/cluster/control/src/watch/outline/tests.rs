//! Whether a glance at a pod says what reading it says.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_protobuf::{Envelope, MAGIC, from_message};

use super::super::pod::UnreadPod;
use super::super::{SchedulerNames, seen_pod};
use super::*;

/// A pod from its creation to its end, as kube-apiserver 1.36.4 gave it each time.
fn life() -> BTreeMap<&'static str, Vec<u8>> {
    let lines = include_str!("../../../tests/vectors/a-pods-life.txt").lines();
    let read = |line: &'static str| {
        let (when, object) = line.split_once(' ').unwrap();
        let object = STANDARD.decode(object).unwrap();
        let envelope = Envelope::open(object.strip_prefix(MAGIC).unwrap()).unwrap();
        (when, envelope.raw.to_vec())
    };
    lines.map(read).collect()
}

fn names() -> SchedulerNames {
    Arc::new(["berth".into()])
}

/// A pod that is read whole, or why it cannot be.
fn whole(message: &[u8]) -> Result<SeenPod, String> {
    let pod = from_message(message).map_err(|error| error.to_string())?;
    let outline = Outline::of(message).map_err(|error| error.to_string())?.rest;
    Ok(SeenPod { outline, ..seen_pod(&pod, &names())? })
}

/// A pod, if it is known again at a glance.
fn at_a_glance(message: &[u8], known: &SeenPod) -> Option<SeenPod> {
    Outline::of(message).ok()?.onto(known)
}

#[test]
fn what_happens_to_a_pod_without_concerning_a_scheduler_is_seen_at_a_glance() {
    let life = life();
    let seen = |when: &str| whole(&life[when]).unwrap();
    for (before, after) in [("created", "bound"), ("running", "restarted")] {
        let glance = at_a_glance(&life[after], &seen(before));
        assert_eq!(glance.as_ref(), Some(&seen(after)), "{after}");
    }
    let bound = seen("bound").object;
    assert_eq!(bound.node.as_deref(), Some("node-1"));
    assert_eq!(bound.gpu_grant.unwrap().gpu, Some(3));
    assert_eq!(bound.spec.labels.get("topology.kubernetes.io/zone").unwrap(), &"a".into());
}

#[test]
fn what_concerns_a_scheduler_is_read() {
    let life = life();
    let changes = [
        ("bound", "claimed"),
        ("claimed", "started"),
        ("restarted", "going"),
        ("going", "preempted"),
        ("preempted", "failed"),
    ];
    for (before, after) in changes {
        let known = whole(&life[before]).unwrap();
        assert_eq!(at_a_glance(&life[after], &known), None, "{after}");
        let read = UnreadPod::Message(life[after].clone()).read(|_| Some(&known), &names());
        assert_eq!(read, whole(&life[after]), "{after}");
        assert_ne!(read.unwrap().object, known.object, "{after}");
    }
}

#[test]
fn a_pod_without_a_node_has_been_given_nothing_whatever_is_written_on_it() {
    let bound = whole(&life()["bound"]).unwrap();
    let placement = r#"{"grant":{"resource":"nvidia.com/gpu"}}"#;
    let unbound = Outline { placement: Some(placement), rest: bound.outline, ..Outline::default() };
    let seen = unbound.onto(&bound).unwrap().object;
    assert_eq!((seen.node, seen.gpu_grant), (None, None));
    assert_eq!(seen.spec.labels.get("topology.kubernetes.io/zone"), None);
}

#[test]
fn whichever_byte_of_a_pod_changes_a_glance_says_what_reading_it_says() {
    let message = &life()["running"];
    let known = whole(message).unwrap();
    let (mut glances, mut reads, mut problems) = (0, 0, Vec::new());
    for at in 0..message.len() {
        let mut changed = message.clone();
        changed[at] ^= 1;
        match whole(&changed) {
            Ok(read) => match at_a_glance(&changed, &known) {
                Some(glance) => {
                    assert_eq!(glance, read, "byte {at}");
                    glances += 1;
                }
                None => reads += 1,
            },
            // Damage in what nobody reads is not seen, and does no harm.
            Err(_) => match UnreadPod::Message(changed).read(|_| Some(&known), &names()) {
                Ok(glance) => assert_eq!(glance, known, "byte {at}"),
                Err(problem) => problems.push(problem),
            },
        }
    }
    assert!(glances > 1_000 && reads > 500, "{glances} glances, {reads} reads");
    for field in ["metadata: ", "spec.containers", "status: "] {
        let named = format!("Pod default/model: {field}");
        assert!(problems.iter().any(|problem| problem.starts_with(&named)), "{named}");
    }
}

#[test]
fn a_message_that_is_cut_off_is_never_taken_for_the_whole() {
    let message = &life()["running"];
    let known = whole(message).unwrap();
    for end in 0..message.len() {
        assert_eq!(at_a_glance(&message[..end], &known), None, "cut at {end}");
    }
    assert_eq!(at_a_glance(&[&message[..], message].concat(), &known), None);
}

//! Gangs: starting together, topology, reservations and preemption.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use berth_engine::config::{Profile, ReservationBudget};
use berth_engine::decision::{Binding, Decision, GangBinding, GangReservation};
use berth_engine::event::Event;
use berth_engine::explain::{Explanation, render};
use berth_engine::{Config, Engine};
use berth_kubelet::TopologyPolicy;
use berth_model::gang::{Disruption, Gang, GangMembership, GangTerms, GangTopology};
use berth_model::spec::{Controller, PodObject, PodSpec};
use berth_tenancy::share::Team;
use berth_testkit::cluster::{NodeKind, ZONE, gpu_template, pending, template};
use berth_testkit::contest;
use berth_testkit::world::{Size, breaks_a_law};

const PATIENCE_MS: i64 = 60_000;
const TIMEOUT_MS: i64 = 600_000;

/// An engine with nodes of 8 GPUs; number 0, 3, … are in one zone, 1, 4, … in the next. Gangs may
/// have everything reserved, for as long as they say.
fn engine(nodes: usize) -> Engine {
    with_budget(nodes, ReservationBudget::UNLIMITED)
}

fn with_budget(nodes: usize, reservations: ReservationBudget) -> Engine {
    let mut engine = Engine::new(Config { reservations, ..Config::default() });
    add_nodes(&mut engine, 0, nodes);
    engine
}

fn add_nodes(engine: &mut Engine, first: usize, count: usize) {
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::None);
    kind.nodes(first, count).unwrap().into_iter().for_each(|event| engine.apply(event));
}

fn terms(min: u32, zone: Option<bool>) -> GangTerms {
    GangTerms {
        min,
        topology: zone.map(|required| GangTopology { key: ZONE.into(), required }),
        timeout_ms: TIMEOUT_MS,
        disruption: Disruption::Whole,
    }
}

fn member(gang: &str, gpus: u32, priority: i32, terms: Option<GangTerms>) -> Arc<PodSpec> {
    let mut spec = gpu_template(gang, priority, gpus).unwrap();
    spec.gang = Some(GangMembership { name: gang.into(), terms });
    Arc::new(spec)
}

fn single(gpus: u32, priority: i32) -> Arc<PodSpec> {
    Arc::new(gpu_template("single", priority, gpus).unwrap())
}

fn come(engine: &mut Engine, spec: &Arc<PodSpec>, numbers: std::ops::Range<u64>) {
    numbers.for_each(|number| engine.apply(Event::Pod(pending(spec, number))));
}

fn uid(number: u64) -> Arc<str> {
    format!("uid-{number:08}").into()
}

fn settle(engine: &mut Engine, now_ms: i64) -> Vec<Decision> {
    let decisions: Vec<Decision> =
        std::iter::from_fn(|| engine.decide(now_ms)).take(1_000).collect();
    assert!(decisions.len() < 1_000, "decisions do not end");
    decisions
}

/// The only decision, which is to bind a gang.
fn bound_together(engine: &mut Engine, now_ms: i64) -> GangBinding {
    let mut decisions = settle(engine, now_ms);
    match (decisions.pop(), decisions.is_empty()) {
        (Some(Decision::BindAll(all)), true) => all,
        (other, _) => panic!("{other:?} after {decisions:?}"),
    }
}

fn reserved(decisions: &[Decision]) -> Option<&GangReservation> {
    decisions.iter().find_map(|decision| match decision {
        Decision::Reserve(reserving) => Some(reserving),
        _ => None,
    })
}

fn confirm(engine: &mut Engine, spec: &Arc<PodSpec>, bindings: &[Binding]) {
    for binding in bindings {
        let number = binding.pod.trim_start_matches("uid-").parse().unwrap();
        let node = Some(binding.node.clone());
        engine.apply(Event::Pod(PodObject { node, ..pending(spec, number) }));
    }
}

fn zone(node: &str) -> usize {
    node.rsplit('-').next().unwrap().parse::<usize>().unwrap() % 3
}

fn told(engine: &mut Engine, number: u64, now_ms: i64) -> String {
    render(&engine.explain(&uid(number), now_ms).unwrap())
}

#[test]
fn nobody_is_bound_until_all_can_be() {
    let mut engine = engine(2);
    come(&mut engine, &member("train", 8, 0, Some(terms(3, None))), 1..4);
    assert!(matches!(settle(&mut engine, 0)[..], [Decision::Wait { .. }]));
    assert_eq!(engine.queued(), (3, 3));
    let text = told(&mut engine, 2, 0);
    assert!(text.contains("all nodes together for 2 of 3"), "{text}");
    add_nodes(&mut engine, 2, 1);
    let all = bound_together(&mut engine, 1);
    assert_eq!((&*all.gang.name, all.bindings.len()), ("train", 3));
    assert_eq!(engine.queued(), (0, 0));
}

#[test]
fn a_gang_without_enough_members_stays_pending() {
    let mut engine = engine(4);
    let spec = member("train", 8, 0, Some(terms(3, None)));
    come(&mut engine, &spec, 1..3);
    assert_eq!(settle(&mut engine, 0), []);
    assert_eq!(told(&mut engine, 1, 0), "Gang train is pending: 2 of 3 members exist.");
    // Others are not held up by it.
    come(&mut engine, &single(8, 0), 10..12);
    assert_eq!(settle(&mut engine, 0).len(), 2);
    come(&mut engine, &spec, 3..4);
    assert!(matches!(settle(&mut engine, 0)[..], [Decision::Wait { .. }]));
    engine.apply(Event::PodGone(uid(10)));
    assert_eq!(bound_together(&mut engine, 1).bindings.len(), 3);
}

#[test]
fn a_pod_group_gives_the_gangs_terms() {
    let mut engine = engine(2);
    come(&mut engine, &member("train", 8, 0, None), 1..3);
    assert_eq!(settle(&mut engine, 0), []);
    assert!(told(&mut engine, 1, 0).contains("no PodGroup of this name"));
    let gang = Gang { namespace: "serving".into(), name: "train".into(), terms: terms(2, None) };
    engine.apply(Event::Gang(gang));
    assert_eq!(bound_together(&mut engine, 0).bindings.len(), 2);
}

#[test]
fn the_oldest_members_terms_apply() {
    let mut engine = engine(2);
    come(&mut engine, &member("train", 8, 0, Some(terms(9, None))), 2..3);
    come(&mut engine, &member("train", 8, 0, Some(terms(2, None))), 1..2);
    let text = told(&mut engine, 1, 0);
    assert!(text.contains("have different gang settings: set the same on all"), "{text}");
    assert_eq!(bound_together(&mut engine, 0).bindings.len(), 2);
}

#[test]
fn members_share_a_zone_where_that_is_required() {
    // Zone 0 has three nodes, the others two.
    let mut engine = engine(7);
    let near = Some(terms(2, Some(true)));
    let all = {
        come(&mut engine, &member("one", 8, 0, near.clone()), 1..3);
        bound_together(&mut engine, 0).bindings
    };
    // The tightest zone that will do, so that three together still fit.
    assert_eq!(zone(&all[0].node), zone(&all[1].node));
    assert_ne!(zone(&all[0].node), 0);
    come(&mut engine, &member("two", 8, 0, Some(terms(3, Some(true)))), 10..13);
    let all = bound_together(&mut engine, 0).bindings;
    assert!(all.iter().all(|binding| zone(&binding.node) == 0), "{all:?}");
    come(&mut engine, &member("three", 8, 0, Some(terms(3, Some(true)))), 20..23);
    assert!(matches!(settle(&mut engine, 0)[..], [Decision::Wait { .. }]));
    let text = told(&mut engine, 20, 0);
    assert!(text.contains("3 values of topology.kubernetes.io/zone"), "{text}");
    assert!(text.contains("for 2 of 3"), "{text}");
}

#[test]
fn members_share_a_zone_if_they_can_where_that_is_preferred() {
    let mut engine = engine(5);
    come(&mut engine, &member("one", 8, 0, Some(terms(2, Some(false)))), 1..3);
    let all = bound_together(&mut engine, 0).bindings;
    assert_eq!(zone(&all[0].node), zone(&all[1].node));
    come(&mut engine, &member("two", 8, 0, Some(terms(3, Some(false)))), 10..13);
    assert_eq!(bound_together(&mut engine, 0).bindings.len(), 3);
}

#[test]
fn members_beyond_the_minimum_join_the_others() {
    let mut engine = engine(6);
    let spec = member("train", 8, 0, Some(terms(1, Some(true))));
    come(&mut engine, &spec, 1..2);
    let all = bound_together(&mut engine, 0).bindings;
    confirm(&mut engine, &spec, &all);
    come(&mut engine, &spec, 2..4);
    let later = settle(&mut engine, 1);
    // Their zone has two nodes.
    let [Decision::Bind(second), Decision::Wait { .. }] = &later[..] else { panic!("{later:?}") };
    assert_eq!(zone(&second.node), zone(&all[0].node));
}

#[test]
fn two_gangs_do_not_wait_for_what_the_other_holds() {
    let mut engine = engine(3);
    come(&mut engine, &member("one", 8, 0, Some(terms(2, None))), 1..3);
    come(&mut engine, &member("two", 8, 0, Some(terms(2, None))), 11..13);
    let decisions = settle(&mut engine, 0);
    let [Decision::BindAll(all), Decision::Wait { .. }] = &decisions[..] else {
        panic!("{decisions:?}")
    };
    assert_eq!(&*all.gang.name, "one");
    all.bindings.iter().for_each(|one| engine.apply(Event::PodGone(one.pod.clone())));
    assert_eq!(&*bound_together(&mut engine, 1).gang.name, "two");
}

#[test]
fn a_gang_does_not_starve() {
    let mut engine = engine(2);
    come(&mut engine, &single(8, 0), 1..3);
    settle(&mut engine, 0);
    come(&mut engine, &member("train", 8, 0, Some(terms(2, None))), 11..13);
    assert_eq!(settle(&mut engine, 1).len(), 1);
    // Small pods take what becomes free.
    engine.apply(Event::PodGone(uid(1)));
    come(&mut engine, &single(8, 0), 21..22);
    assert!(matches!(settle(&mut engine, 2)[..], [Decision::Bind(_)]));
    // After a while nodes are kept.
    let decisions = settle(&mut engine, 1 + PATIENCE_MS);
    let kept = reserved(&decisions).unwrap();
    assert_eq!((kept.places.len(), kept.victims.len()), (2, 0));
    engine.apply(Event::PodGone(uid(2)));
    come(&mut engine, &single(1, 0), 22..23);
    let waits = settle(&mut engine, 2 + PATIENCE_MS);
    assert!(matches!(waits[..], [Decision::Wait { .. }]), "{waits:?}");
    let text = told(&mut engine, 11, 2 + PATIENCE_MS);
    assert!(text.contains("Nodes are reserved for it"), "{text}");
    engine.apply(Event::PodGone(uid(21)));
    assert_eq!(bound_together(&mut engine, 3 + PATIENCE_MS).bindings.len(), 2);
}

#[test]
fn nodes_are_reserved_for_one_gang_at_a_time() {
    let mut engine = engine(2);
    come(&mut engine, &single(8, 0), 1..3);
    settle(&mut engine, 0);
    come(&mut engine, &member("one", 8, 0, Some(terms(2, None))), 11..13);
    come(&mut engine, &member("two", 8, 0, Some(terms(2, None))), 21..23);
    settle(&mut engine, 0);
    let first = settle(&mut engine, PATIENCE_MS);
    assert_eq!(&*reserved(&first).unwrap().gang.name, "one");
    assert_eq!(first.len(), 1);
    let second = settle(&mut engine, PATIENCE_MS + TIMEOUT_MS);
    let [Decision::Wait { pod }, Decision::Reserve(kept)] = &second[..] else {
        panic!("{second:?}")
    };
    assert_eq!((pod, &*kept.gang.name), (&uid(11), "two"));
    assert!(told(&mut engine, 11, PATIENCE_MS + TIMEOUT_MS).contains("has expired 1 time"));
    let third = settle(&mut engine, PATIENCE_MS + 2 * TIMEOUT_MS);
    assert_eq!(&*reserved(&third).unwrap().gang.name, "one");
}

#[test]
fn a_gang_that_fits_nowhere_gets_no_reservation() {
    let mut engine = engine(2);
    come(&mut engine, &member("huge", 8, 0, Some(terms(3, None))), 1..4);
    assert_eq!(settle(&mut engine, 0).len(), 1);
    // It is reported once.
    assert!(matches!(settle(&mut engine, PATIENCE_MS)[..], [Decision::Wait { .. }]));
    assert_eq!(settle(&mut engine, 10 * PATIENCE_MS), []);
}

#[test]
fn others_are_evicted_for_a_whole_gang_or_not_at_all() {
    let mut engine = engine(3);
    come(&mut engine, &single(8, 0), 1..3);
    come(&mut engine, &single(8, 100), 3..4);
    settle(&mut engine, 0);
    // Three cannot be had: the third node is taken by somebody as important.
    come(&mut engine, &member("three", 8, 50, Some(terms(3, None))), 11..14);
    assert!(matches!(settle(&mut engine, 1)[..], [Decision::Wait { .. }]));
    come(&mut engine, &member("two", 8, 50, Some(terms(2, None))), 21..23);
    let decisions = settle(&mut engine, 2);
    let [Decision::Reserve(reserving)] = &decisions[..] else { panic!("{decisions:?}") };
    assert_eq!(reserving.victims.len(), 2);
    assert!(told(&mut engine, 21, 2).contains("Pods are terminating"));
    engine.apply(Event::PodGone(uid(1)));
    assert_eq!(settle(&mut engine, 3), []);
    engine.apply(Event::PodGone(uid(2)));
    assert_eq!(&*bound_together(&mut engine, 4).gang.name, "two");
}

#[test]
fn a_gang_is_evicted_as_a_whole_or_other_pods_are() {
    let mut engine = engine(3);
    let spec = member("train", 8, 0, Some(terms(2, None)));
    come(&mut engine, &spec, 1..3);
    let all = bound_together(&mut engine, 0).bindings;
    confirm(&mut engine, &spec, &all);
    come(&mut engine, &single(8, 0), 3..4);
    settle(&mut engine, 1);
    // One pod is cheaper than two.
    come(&mut engine, &single(8, 50), 11..12);
    let decisions = settle(&mut engine, 2);
    let [Decision::Preempt(preempting)] = &decisions[..] else { panic!("{decisions:?}") };
    assert_eq!(preempting.victims, [uid(3)]);
    come(&mut engine, &single(8, 50), 12..13);
    let decisions = settle(&mut engine, 3);
    let [Decision::Preempt(preempting)] = &decisions[..] else { panic!("{decisions:?}") };
    let mut victims = preempting.victims.clone();
    victims.sort();
    assert_eq!(victims, [uid(1), uid(2)]);
    // If that cannot be done, all of them stay.
    engine.undo(&uid(12));
    engine.apply(Event::PodGone(uid(12)));
    let decisions = settle(&mut engine, 4);
    let waits = |decision: &Decision| matches!(decision, Decision::Wait { .. });
    assert!(decisions.iter().all(waits), "{decisions:?}");
    assert!(matches!(engine.explain(&uid(1), 4), Some(Explanation::Placed { .. })));
}

#[test]
fn a_gang_waits_for_no_node_when_one_of_its_victims_stays() {
    let mut engine = engine(2);
    for (number, node) in [(1, "h100-000000"), (2, "h100-000001")] {
        let pod = pending(&single(8, 0), number);
        engine.apply(Event::Pod(PodObject { node: Some(node.into()), ..pod }));
    }
    come(&mut engine, &member("train", 8, 50, Some(terms(2, None))), 11..13);
    let decisions = settle(&mut engine, 0);
    let [Decision::Reserve(reserving)] = &decisions[..] else { panic!("{decisions:?}") };
    assert_eq!(reserving.victims.len(), 2);
    let spared = engine.cancel_eviction(&uid(2));
    assert_eq!((spared.pending, spared.staying), (vec![uid(11), uid(12)], vec![uid(1), uid(2)]));
}

#[test]
fn members_beyond_the_minimum_are_evicted_alone() {
    let mut engine = engine(2);
    let spec = member("train", 8, 0, Some(terms(1, None)));
    come(&mut engine, &spec, 1..3);
    let all = bound_together(&mut engine, 0).bindings;
    confirm(&mut engine, &spec, &all);
    come(&mut engine, &single(8, 50), 11..12);
    let decisions = settle(&mut engine, 2);
    let [Decision::Preempt(preempting)] = &decisions[..] else { panic!("{decisions:?}") };
    assert_eq!(preempting.victims.len(), 1);
}

/// A member whose labels change is a pod of another kind; classes are renumbered when teams change.
#[test]
fn a_changed_member_does_not_block_other_members() {
    let team = Team { name: "team".into(), ..Team::default() };
    let spec = member("train", 8, 0, Some(terms(2, None)));
    let mut labelled = (*spec).clone();
    labelled.labels.insert("touched", "yes");
    let changed = Event::Pod(pending(&Arc::new(labelled), 4));
    let gone = Event::TeamGone("team".into());
    let outcomes = [[&changed, &gone], [&gone, &changed]].map(|news| {
        let mut engine = engine(2);
        engine.apply(Event::Team(team.clone()));
        come(&mut engine, &spec, 1..3);
        let all = bound_together(&mut engine, 0).bindings;
        confirm(&mut engine, &spec, &all);
        come(&mut engine, &spec, 3..5);
        assert_eq!(settle(&mut engine, 0).len(), 2);
        news.into_iter().for_each(|event| engine.apply(event.clone()));
        let mut decisions = settle(&mut engine, 1);
        for (number, now_ms) in [(1, 2), (2, 3)] {
            engine.apply(Event::PodGone(uid(number)));
            decisions.extend(settle(&mut engine, now_ms));
        }
        decisions
    });
    assert_eq!(outcomes[0], outcomes[1]);
    let is_bound = |decision: &&Decision| matches!(decision, Decision::Bind(_));
    assert_eq!(outcomes[0].iter().filter(is_bound).count(), 2, "{:?}", outcomes[0]);
}

#[test]
fn a_failed_binding_is_replaced() {
    let mut engine = engine(3);
    let spec = member("train", 8, 0, Some(terms(2, None)));
    come(&mut engine, &spec, 1..3);
    let all = bound_together(&mut engine, 0).bindings;
    confirm(&mut engine, &spec, &all[..1]);
    engine.undo(&all[1].pod);
    let again = bound_together(&mut engine, 1).bindings;
    assert_eq!((again.len(), &again[0].pod), (1, &all[1].pod));
}

#[test]
fn a_gang_incomplete_after_its_timeout_is_disbanded() {
    let mut engine = engine(2);
    let spec = member("train", 8, 0, Some(terms(2, None)));
    come(&mut engine, &spec, 1..3);
    let all = bound_together(&mut engine, 0).bindings;
    confirm(&mut engine, &spec, &all[..1]);
    engine.apply(Event::NodeGone(all[1].node.clone()));
    engine.undo(&all[1].pod);
    assert!(matches!(settle(&mut engine, 1)[..], [Decision::Wait { .. }]));
    let decisions = settle(&mut engine, 1 + TIMEOUT_MS);
    let disbanded = decisions.iter().find_map(|decision| match decision {
        Decision::Disband(disbanding) => Some(&disbanding.pods),
        _ => None,
    });
    assert_eq!(disbanded, Some(&vec![all[0].pod.clone()]));
    engine.apply(Event::PodGone(all[0].pod.clone()));
    come(&mut engine, &single(8, 0), 11..12);
    assert!(matches!(settle(&mut engine, 2 + TIMEOUT_MS)[..], [Decision::Bind(_)]));
}

#[test]
fn kube_scheduler_sees_single_pods() {
    let mut engine = Engine::new(Config::from(Profile::KubeScheduler));
    add_nodes(&mut engine, 0, 1);
    come(&mut engine, &member("train", 8, 0, Some(terms(2, None))), 1..3);
    assert!(matches!(settle(&mut engine, 0)[..], [Decision::Bind(_), Decision::Wait { .. }]));
}

/// What a gang says that wants nodes for as long as it can have them.
fn greedy(min: u32) -> Option<GangTerms> {
    Some(GangTerms { timeout_ms: 168 * 3_600_000, ..terms(min, None) })
}

fn bound(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|decision| matches!(decision, Decision::Bind(_))).count()
}

/// Pods of 8 GPUs, one on each node, which end by themselves.
fn fill(engine: &mut Engine, nodes: u64) {
    come(engine, &single(8, 0), 1..nodes + 1);
    assert_eq!(bound(&settle(engine, 0)), nodes as usize);
}

#[test]
fn a_gang_does_not_reserve_the_cluster() {
    let mut engine = with_budget(100, ReservationBudget::default());
    come(&mut engine, &single(1, 0), 1..2);
    settle(&mut engine, 0);
    come(&mut engine, &member("all", 8, 0, greedy(100)), 101..201);
    settle(&mut engine, 1);
    let at_ms = 1 + PATIENCE_MS;
    assert_eq!(reserved(&settle(&mut engine, at_ms)), None);
    let text = told(&mut engine, 101, at_ms);
    let why = "it needs 800 GPUs (NVIDIA-H100-80GB-HBM3), and at most 200 (25%) may be reserved";
    assert!(text.contains(why), "{text}");
    come(&mut engine, &single(8, 0), 1_000..1_099);
    assert_eq!(bound(&settle(&mut engine, at_ms)), 99);
}

#[test]
fn a_reservation_lasts_as_long_as_the_operator_allows() {
    let budget = ReservationBudget::default();
    let mut engine = with_budget(8, budget);
    fill(&mut engine, 8);
    come(&mut engine, &member("train", 8, 0, greedy(2)), 101..103);
    settle(&mut engine, 0);
    let decisions = settle(&mut engine, PATIENCE_MS);
    let kept = reserved(&decisions).unwrap();
    let until_ms = PATIENCE_MS + budget.max_ms;
    assert_eq!((kept.places.len(), kept.until_ms), (2, Some(until_ms)));
    // One of the two nodes is free all the while, and others want it.
    let node = kept.places[0].1.clone();
    let there = (1..9).find(|number| engine.node_of(&uid(*number)) == Some(&node)).unwrap();
    engine.apply(Event::PodGone(uid(there)));
    come(&mut engine, &single(8, 0), 201..202);
    assert_eq!(bound(&settle(&mut engine, until_ms - 1)), 0);
    let text = told(&mut engine, 201, until_ms - 1);
    assert!(text.contains("reserved for gang serving/train (for 10m at most in total)"), "{text}");
    // Then they get it, before anything is reserved again.
    assert_eq!(bound(&settle(&mut engine, until_ms)), 1);
    // The gang's namespace has to rest, three times as long as it had its way.
    let rests_until_ms = until_ms + 3 * budget.max_ms;
    for at_ms in (until_ms..rests_until_ms).step_by(10_000) {
        assert_eq!(reserved(&settle(&mut engine, at_ms)), None, "at {at_ms}");
    }
    let text = told(&mut engine, 101, rests_until_ms - 1);
    assert!(text.contains("namespace serving has used up its reservation time"), "{text}");
    assert!(reserved(&settle(&mut engine, rests_until_ms)).is_some());
}

#[test]
fn many_gangs_of_one_namespace_have_no_more_time_than_one() {
    let budget = ReservationBudget { max_ms: 600_000, share_percent: 50, time_percent: 10 };
    let mut engine = with_budget(4, budget);
    fill(&mut engine, 4);
    for gang in 0..50 {
        let first = 1_000 + 10 * gang;
        come(&mut engine, &member(&format!("gang-{gang}"), 8, 0, greedy(2)), first..first + 2);
    }
    const DAY_MS: i64 = 24 * 3_600_000;
    let mut kept_ms = 0;
    for at_ms in (0..DAY_MS).step_by(30_000) {
        let decisions = settle(&mut engine, at_ms);
        kept_ms += reserved(&decisions).map_or(0, |kept| kept.until_ms.unwrap() - at_ms);
    }
    // Each is given up after a while, and it is some other gang's turn.
    assert!(kept_ms > DAY_MS / 20 && kept_ms <= DAY_MS / 10 + budget.max_ms, "{kept_ms}");
}

#[test]
fn a_gang_that_comes_again_has_no_more_time() {
    let budget = ReservationBudget { share_percent: 100, ..ReservationBudget::default() };
    let mut engine = with_budget(2, budget);
    fill(&mut engine, 2);
    let spec = member("train", 8, 0, greedy(2));
    come(&mut engine, &spec, 11..13);
    settle(&mut engine, 0);
    assert!(reserved(&settle(&mut engine, PATIENCE_MS)).is_some());
    let gone_ms = PATIENCE_MS + 300_000;
    (11..13).for_each(|number| engine.apply(Event::PodGone(uid(number))));
    settle(&mut engine, gone_ms);
    come(&mut engine, &spec, 21..23);
    settle(&mut engine, gone_ms);
    assert_eq!(reserved(&settle(&mut engine, gone_ms + 899_999)), None);
    assert!(reserved(&settle(&mut engine, gone_ms + 900_000)).is_some());
}

#[test]
fn nothing_is_reserved_where_pods_do_not_end_by_themselves() {
    let mut engine = engine(3);
    let mut service = PodSpec::clone(&single(8, 0));
    service.controller = Some(Controller { kind: "ReplicaSet".into(), name: "api".into() });
    come(&mut engine, &Arc::new(service.clone()), 1..3);
    settle(&mut engine, 0);
    come(&mut engine, &member("train", 8, 0, greedy(2)), 11..13);
    settle(&mut engine, 1);
    assert_eq!(reserved(&settle(&mut engine, 1 + PATIENCE_MS)), None);
    let text = told(&mut engine, 11, 1 + PATIENCE_MS);
    assert!(text.contains("even after every pod that runs to completion has ended"), "{text}");
    come(&mut engine, &single(8, 0), 21..22);
    assert_eq!(bound(&settle(&mut engine, 2 + PATIENCE_MS)), 1);
    // A pod that ends is worth waiting for, and so is one with a deadline, whatever controls it.
    let later_ms = 2 + 2 * PATIENCE_MS;
    let decisions = settle(&mut engine, later_ms);
    assert_eq!(reserved(&decisions), None, "only one node of the two");
    engine.apply(Event::PodGone(uid(1)));
    service.deadline_ms = Some(3_600_000);
    come(&mut engine, &Arc::new(service), 31..32);
    assert_eq!(bound(&settle(&mut engine, later_ms)), 1);
    assert!(reserved(&settle(&mut engine, later_ms + PATIENCE_MS)).is_some());
}

#[test]
fn a_pod_that_takes_nothing_a_gang_lacks_is_bound_beside_it() {
    let mut engine = engine(1);
    come(&mut engine, &single(1, 0), 1..2);
    settle(&mut engine, 0);
    come(&mut engine, &member("train", 4, 0, greedy(2)), 11..13);
    settle(&mut engine, 1);
    assert!(reserved(&settle(&mut engine, 1 + PATIENCE_MS)).is_some());
    come(&mut engine, &single(1, 0), 21..22);
    let cpu = template("cpu", 0, &[("cpu", "2"), ("memory", "4Gi")]).unwrap();
    come(&mut engine, &Arc::new(cpu), 22..23);
    let decisions = settle(&mut engine, 2 + PATIENCE_MS);
    let [Decision::Wait { pod }, Decision::Bind(binding)] = &decisions[..] else {
        panic!("{decisions:?}")
    };
    assert_eq!((pod, &binding.pod), (&uid(21), &uid(22)));
    engine.apply(Event::PodGone(uid(1)));
    assert_eq!(bound_together(&mut engine, 3 + PATIENCE_MS).bindings.len(), 2);
}

#[test]
fn a_pod_that_has_ended_before_the_gang_can_start_goes_first() {
    let ends = |deadline_ms: i64, gpus: u32| {
        let mut spec = PodSpec::clone(&single(gpus, 0));
        spec.deadline_ms = Some(deadline_ms);
        Arc::new(spec)
    };
    let mut engine = engine(2);
    let long = ends(3_600_000, 8);
    come(&mut engine, &long, 1..2);
    let decisions = settle(&mut engine, 0);
    let [Decision::Bind(binding)] = &decisions[..] else { panic!("{decisions:?}") };
    let node = Some(binding.node.clone());
    let running = PodObject { node, started_at_ms: Some(0), ..pending(&long, 1) };
    engine.apply(Event::Pod(running));
    come(&mut engine, &member("train", 8, 0, greedy(2)), 11..13);
    settle(&mut engine, 1);
    let at_ms = 1 + PATIENCE_MS;
    assert!(reserved(&settle(&mut engine, at_ms)).is_some());
    // One node is free for the better part of an hour, and the pod that blocks the other says so.
    come(&mut engine, &single(4, 0), 21..22);
    come(&mut engine, &ends(3_600_000, 4), 22..23);
    come(&mut engine, &ends(1_800_000, 4), 23..24);
    let decisions = settle(&mut engine, at_ms + 1);
    let bound = decisions.iter().filter_map(|decision| match decision {
        Decision::Bind(binding) => Some(binding.pod.clone()),
        _ => None,
    });
    assert_eq!(bound.collect::<Vec<_>>(), [uid(23)]);
    engine.apply(Event::PodGone(uid(23)));
    engine.apply(Event::PodGone(uid(1)));
    assert_eq!(bound_together(&mut engine, at_ms + 2).bindings.len(), 2);
}

#[test]
fn a_member_with_all_cpus_counts_for_all_gpus() {
    let mut engine = with_budget(4, ReservationBudget::default());
    fill(&mut engine, 4);
    let mut spec = template("cpu", 0, &[("cpu", "100"), ("memory", "4Gi")]).unwrap();
    spec.gang = Some(GangMembership { name: "cpu".into(), terms: greedy(3) });
    come(&mut engine, &Arc::new(spec), 11..14);
    settle(&mut engine, 0);
    assert_eq!(reserved(&settle(&mut engine, PATIENCE_MS)), None);
    let text = told(&mut engine, 11, PATIENCE_MS);
    assert!(text.contains("at most 8 (25%) may be reserved"), "{text}");
}

#[test]
fn gangs_that_compete_neither_get_stuck_nor_starve_others() {
    for seed in 0..120 {
        let outcome = contest::run(seed).unwrap();
        assert_eq!(outcome.broken, None, "seed {seed}");
    }
}

#[test]
fn the_laws_hold_where_everything_may_be_reserved() {
    let config = Config { reservations: ReservationBudget::UNLIMITED, ..Config::default() };
    let size = Size { nodes: 6, rounds: 30 };
    let broken = (0..150).filter_map(|seed| breaks_a_law(seed, size, config).unwrap());
    let broken: Vec<String> = broken.collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

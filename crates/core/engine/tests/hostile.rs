//! Input that nobody sends in good faith, or only by accident: absurd numbers, endless lists, pods
//! that contradict themselves. Every one has a stated outcome, within bounded time and without a
//! panic. Overflow checks are on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::{Config, Engine, Profile};
use berth_kubelet::TopologyPolicy;
use berth_model::affinity::{
    NodeInclusionPolicy, NodeTerm, PodTerm, SpreadConstraint, WhenUnsatisfiable,
};
use berth_model::label::{Labels, Operator, Requirement, Selector};
use berth_model::node::{Image, Node};
use berth_model::policy::{DisruptionBudget, Namespace};
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceName;
use berth_model::spec::{GpuNeed, Phase, PodObject, PodSpec};
use berth_testkit::cluster::{
    GPU, NodeKind, ZONE, gpu_template, pending, resources, spread, template,
};

const PROFILES: [Profile; 3] =
    [Profile::Berth, Profile::KubeScheduler, Profile::KubeSchedulerPacking];

const BOUND: Duration = Duration::from_secs(2);

fn within_bound<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    assert!(took < BOUND, "{what} took {took:?}");
    result
}

fn kind() -> NodeKind {
    NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::BestEffort)
}

fn engine(profile: Profile, nodes: usize) -> Engine {
    let mut engine = Engine::new(profile);
    kind().nodes(0, nodes).unwrap().into_iter().for_each(|event| engine.apply(event));
    engine
}

fn settle(engine: &mut Engine, now_ms: i64) -> Vec<Decision> {
    let decisions: Vec<Decision> = (0..10_000).map_while(|_| engine.decide(now_ms)).collect();
    assert!(decisions.len() < 10_000, "decisions never end: {:?}", decisions.last());
    decisions
}

fn bound(decisions: &[Decision]) -> Vec<&str> {
    fn of(decision: &Decision) -> Option<&str> {
        match decision {
            Decision::Bind(binding) => Some(binding.pod.as_ref()),
            _ => None,
        }
    }
    decisions.iter().filter_map(of).collect()
}

fn pod(created_at_ms: u64, priority: i32, gpus: u32) -> PodObject {
    pending(&Arc::new(gpu_template("app", priority, gpus).unwrap()), created_at_ms)
}

fn small(app: &str) -> PodSpec {
    template(app, 0, &[("cpu", "1"), ("memory", "1Gi")]).unwrap()
}

fn anything() -> Option<Selector> {
    Some(Selector::default())
}

fn term(selector: Option<Selector>, key: &str) -> PodTerm {
    PodTerm { selector, namespaces: Vec::new(), namespace_selector: None, topology_key: key.into() }
}

fn app(name: &str) -> Option<Selector> {
    Some(Selector::of_labels(&[("app", name)].into_iter().collect::<Labels>()))
}

#[test]
fn ten_thousand_affinity_terms_are_one_slow_pod_at_worst() {
    for profile in PROFILES {
        let mut engine = engine(profile, 20);
        let mut spec = small("many");
        for number in 0..2_500 {
            let other = app(&format!("other-{number}"));
            spec.pod_affinity.preferred.push((1, term(other.clone(), ZONE)));
            spec.pod_affinity.anti_preferred.push((1, term(other.clone(), ZONE)));
            spec.pod_affinity.anti_required.push(term(other.clone(), ZONE));
            spec.pod_affinity.required.push(term(app("many"), ZONE));
        }
        let spec = Arc::new(spec);
        within_bound("10,000 affinity terms", || {
            for number in 0..3 {
                engine.apply(Event::Pod(pending(&spec, number)));
                assert_eq!(bound(&settle(&mut engine, 0)).len(), 1, "{profile:?}");
            }
            for number in 0..3 {
                engine.apply(Event::PodGone(pending(&spec, number).uid));
            }
        });
    }
}

#[test]
fn ten_thousand_terms_about_everybody_keep_later_pods_fast() {
    let mut engine = engine(Profile::Berth, 20);
    let mut spec = small("many");
    for number in 0..10_000 {
        let weight = (number % 100) + 1;
        spec.pod_affinity.preferred.push((weight, term(anything(), &format!("key-{number}"))));
    }
    within_bound("10,000 terms that mean everybody", || {
        engine.apply(Event::Pod(pending(&Arc::new(spec), 0)));
        assert_eq!(bound(&settle(&mut engine, 0)).len(), 1);
        let others = Arc::new(small("others"));
        for number in 1..20 {
            engine.apply(Event::Pod(pending(&others, number)));
        }
        assert_eq!(bound(&settle(&mut engine, 0)).len(), 19);
    });
}

#[test]
fn pods_with_anti_affinity_to_all_get_a_domain_each() {
    for profile in PROFILES {
        let mut engine = engine(profile, 30);
        let mut spec = small("alone");
        spec.pod_affinity.anti_required.push(term(anything(), ZONE));
        spec.pod_affinity.anti_required.push(term(anything(), "kubernetes.io/hostname"));
        spec.pod_affinity.anti_preferred.push((100, term(anything(), ZONE)));
        let mut spec = spread(spec, ZONE, 1, false);
        spec.spread[0].selector = anything();
        let spec = Arc::new(spec);
        within_bound("a selector that means everybody", || {
            for number in 0..300 {
                engine.apply(Event::Pod(pending(&spec, number)));
            }
            // Three zones, one pod each.
            assert_eq!(bound(&settle(&mut engine, 0)).len(), 3, "{profile:?}");
        });
    }
}

#[test]
fn pods_nominated_to_each_others_nodes_and_to_none_are_all_placed() {
    for profile in PROFILES {
        let mut engine = engine(profile, 2);
        let nodes = ["h100-000000", "h100-000001", "nowhere"];
        for number in 0..6 {
            let nominated = Some(nodes[(number as usize + 1) % 3].into());
            let pod = PodObject { nominated, ..pod(number, (number % 2) as i32, 2) };
            engine.apply(Event::Pod(pod));
        }
        let decisions = within_bound("cyclic nominations", || settle(&mut engine, 0));
        assert_eq!(bound(&decisions).len(), 6, "{profile:?}: {decisions:?}");
    }
}

#[test]
fn more_pods_nominated_to_a_node_than_fit_end_up_elsewhere_or_waiting() {
    for profile in PROFILES {
        let mut engine = engine(profile, 2);
        for number in 0..10 {
            let nominated = Some("h100-000000".into());
            engine.apply(Event::Pod(PodObject { nominated, ..pod(number, 0, 4) }));
        }
        let decisions = within_bound("ten nominations", || settle(&mut engine, 0));
        assert_eq!(bound(&decisions).len(), 4, "{profile:?}: {decisions:?}");
    }
}

#[test]
fn a_node_shrunk_below_its_usage_takes_no_pods() {
    for profile in PROFILES {
        let mut engine = engine(profile, 1);
        for number in 0..8 {
            engine.apply(Event::Pod(pod(number, 10, 1)));
        }
        assert_eq!(bound(&settle(&mut engine, 0)).len(), 8);
        let mut node = kind().node(0).unwrap();
        for shrunk in [&[(GPU, "4")][..], &[("cpu", "1"), ("pods", "0")], &[("memory", "0")]] {
            node.allocatable.extend(resources(shrunk).unwrap());
            engine.apply(Event::Node(node.clone()));
            engine.apply(Event::Pod(pod(100, 10, 1)));
            assert_eq!(bound(&settle(&mut engine, 0)), [""; 0], "{profile:?}: {shrunk:?}");
        }
        for number in 0..5 {
            engine.apply(Event::PodGone(pod(number, 10, 1).uid));
        }
        let back = [("cpu", "126"), ("pods", "110"), ("memory", "2047Gi")];
        node.allocatable.extend(resources(&back).unwrap());
        engine.apply(Event::Node(node));
        assert_eq!(bound(&settle(&mut engine, 0)).len(), 1, "{profile:?}");
    }
}

#[test]
fn a_foreign_binding_onto_nominated_room_is_counted() {
    for profile in PROFILES {
        let mut engine = engine(profile, 1);
        let holder = pod(1, 0, 8);
        engine.apply(Event::Pod(holder.clone()));
        settle(&mut engine, 0);
        let preemptor = pod(2, 10, 8);
        engine.apply(Event::Pod(preemptor.clone()));
        let decisions = settle(&mut engine, 1);
        assert!(matches!(decisions[..], [Decision::Preempt(_), ..]), "{profile:?}: {decisions:?}");
        engine.apply(Event::PodGone(holder.uid));
        let node = Some("h100-000000".into());
        let intruder = PodObject { node, started_at_ms: Some(2), ..pod(3, 20, 4) };
        engine.apply(Event::Pod(intruder.clone()));
        assert_eq!(bound(&settle(&mut engine, 2)), [""; 0], "{profile:?}");
        engine.apply(Event::PodGone(intruder.uid));
        assert_eq!(bound(&settle(&mut engine, 3)), [preemptor.uid.as_ref()], "{profile:?}");
    }
}

fn absurd() -> Vec<Quantity> {
    let texts = ["9223372036854775807", "-9223372036854775808", "1e40", "-1e40", "-1", "1n", "0"];
    texts.map(|text| Quantity::parse(text).unwrap()).to_vec()
}

#[test]
fn absurd_amounts_saturate() {
    for profile in PROFILES {
        for name in ["cpu", "memory", GPU, "pods", "ephemeral-storage"] {
            for has in absurd() {
                let mut engine = engine(profile, 2);
                let mut node = kind().node(0).unwrap();
                node.allocatable.insert(ResourceName::new(name), has);
                engine.apply(Event::Node(node));
                let mut number = 0;
                for wants in absurd() {
                    for priority in [0, 1] {
                        let mut spec = template("absurd", priority, &[("cpu", "1")]).unwrap();
                        let resources = &mut spec.pod.containers[0].resources;
                        resources.requests.insert(ResourceName::new(name), wants);
                        resources.limits.insert(ResourceName::new(name), wants);
                        let spec = Arc::new(spec);
                        number += 1;
                        engine.apply(Event::Pod(pending(&spec, number)));
                        number += 1;
                        let node = Some("h100-000000".into());
                        engine.apply(Event::Pod(PodObject { node, ..pending(&spec, number) }));
                    }
                }
                settle(&mut engine, 0);
                for number in 0..=number {
                    engine.apply(Event::PodGone(pod(number, 0, 1).uid));
                }
                // Nothing is left of them: two nodes take 16 GPUs' worth of pods, no more.
                engine.apply(Event::Node(kind().node(0).unwrap()));
                for number in 1_000..1_020 {
                    engine.apply(Event::Pod(pod(number, 0, 1)));
                }
                let decisions = settle(&mut engine, 0);
                assert_eq!(bound(&decisions).len(), 16, "{profile:?} {name} {has}");
            }
        }
    }
}

#[test]
fn a_hundred_thousand_labels_are_only_labels() {
    let mut engine = engine(Profile::Berth, 3);
    let many = |prefix: &str| -> Labels {
        (0..100_000).map(|number| (format!("{prefix}-{number:06}"), "x")).collect()
    };
    let mut node = kind().node(3).unwrap();
    let mut spec = spread(small("labels"), ZONE, 1, true);
    spec.labels = many("pod");
    node.labels = many("node");
    within_bound("100,000 labels", || {
        engine.apply(Event::Node(node));
        let labels = many("namespace");
        engine.apply(Event::Namespace(Namespace { name: "serving".into(), labels }));
        let spec = Arc::new(spec);
        for number in 0..5 {
            engine.apply(Event::Pod(pending(&spec, number)));
        }
        assert_eq!(bound(&settle(&mut engine, 0)).len(), 5);
    });
}

#[test]
fn the_last_event_of_a_uid_counts() {
    for profile in PROFILES {
        let mut engine = engine(profile, 1);
        let first = pod(1, 0, 8);
        engine.apply(Event::Pod(first.clone()));
        // Another pod altogether, under the same UID.
        let second = PodObject { name: "other".into(), ..pod(1, 5, 2) };
        engine.apply(Event::Pod(second.clone()));
        engine.apply(Event::Pod(second));
        let decisions = settle(&mut engine, 0);
        assert_eq!(bound(&decisions), [first.uid.as_ref()], "{profile:?}");
        engine.apply(Event::Pod(pod(2, 0, 4)));
        assert_eq!(bound(&settle(&mut engine, 0)).len(), 1, "{profile:?}");
    }
}

#[test]
fn events_about_unknown_objects_change_nothing() {
    let mut engine = engine(Profile::Berth, 1);
    engine.apply(Event::PodGone("unknown".into()));
    engine.apply(Event::NodeGone("unknown".into()));
    engine.apply(Event::Topology { node: "unknown".into(), topology: None });
    engine.apply(Event::NamespaceGone("unknown".into()));
    engine.apply(Event::BudgetGone("unknown".into(), "unknown".into()));
    engine.undo(&"unknown".into());
    let finished = PodObject { phase: Phase::Finished, ..pod(1, 0, 1) };
    engine.apply(Event::Pod(finished));
    assert_eq!(settle(&mut engine, 0), []);
}

#[test]
fn a_pending_pod_that_ends_is_forgotten() {
    for phase in [Phase::Finished, Phase::Terminating { by_preemption: false }] {
        let mut engine = engine(Profile::Berth, 1);
        engine.apply(Event::Pod(pod(1, 0, 1)));
        engine.apply(Event::Pod(PodObject { phase, ..pod(1, 0, 1) }));
        assert_eq!(settle(&mut engine, 0), [], "{phase:?}");
        assert_eq!(engine.queued(), (0, 0), "{phase:?}");
    }
}

#[test]
fn a_pod_whose_node_appears_later_counts_there() {
    for profile in PROFILES {
        let mut engine = Engine::new(profile);
        let node = Some("h100-000000".into());
        engine.apply(Event::Pod(PodObject { node, started_at_ms: Some(1), ..pod(1, 0, 8) }));
        engine.apply(Event::Pod(pod(2, 0, 8)));
        assert_eq!(bound(&settle(&mut engine, 0)), [""; 0]);
        kind().nodes(0, 1).unwrap().into_iter().for_each(|event| engine.apply(event));
        assert_eq!(bound(&settle(&mut engine, 0)), [""; 0], "{profile:?}");
        engine.apply(Event::PodGone(pod(1, 0, 8).uid));
        assert_eq!(bound(&settle(&mut engine, 0)).len(), 1, "{profile:?}");
    }
}

#[test]
fn namespaces_that_appear_later_are_matched_then() {
    for profile in PROFILES {
        let mut engine = engine(profile, 3);
        let running = Arc::new(PodSpec { namespace: "late".into(), ..small("running") });
        engine.apply(Event::Pod(pending(&running, 1)));
        settle(&mut engine, 0);
        let mut spec = small("newcomer");
        let team = Requirement { key: "team".into(), operator: Operator::Exists };
        let namespace_selector = Some(Selector(vec![team]));
        let needs = PodTerm { namespace_selector, ..term(app("running"), ZONE) };
        spec.pod_affinity.required.push(needs);
        engine.apply(Event::Pod(pending(&Arc::new(spec), 2)));
        assert_eq!(bound(&settle(&mut engine, 0)), [""; 0], "{profile:?}");
        let labels: Labels = [("team", "a")].into_iter().collect();
        engine.apply(Event::Namespace(Namespace { name: "late".into(), labels }));
        assert_eq!(bound(&settle(&mut engine, 0)).len(), 1, "{profile:?}");
    }
}

#[test]
fn absurd_spread_constraints_are_kept_to_the_letter() {
    for profile in PROFILES {
        for unsatisfiable in [WhenUnsatisfiable::DoNotSchedule, WhenUnsatisfiable::ScheduleAnyway] {
            for max_skew in [i32::MIN, -1, 0, 1, i32::MAX] {
                for min_domains in [i32::MIN, 0, 1, i32::MAX] {
                    let mut engine = engine(profile, 3);
                    let mut spec = small("spread");
                    spec.spread.push(SpreadConstraint {
                        max_skew,
                        topology_key: ZONE.into(),
                        unsatisfiable,
                        selector: app("spread"),
                        min_domains,
                        node_affinity: NodeInclusionPolicy::Honor,
                        node_taints: NodeInclusionPolicy::Honor,
                        match_label_keys: Vec::new(),
                    });
                    let spec = Arc::new(spec);
                    for number in 0..6 {
                        engine.apply(Event::Pod(pending(&spec, number)));
                    }
                    let hard = unsatisfiable == WhenUnsatisfiable::DoNotSchedule;
                    let expected = match (hard, max_skew) {
                        (true, ..=0) => 0,
                        // Too few domains: the least is taken to be 0, so one pod each.
                        (true, 1) if min_domains == i32::MAX => 3,
                        _ => 6,
                    };
                    let decisions = settle(&mut engine, 0);
                    let what = format!("{profile:?} {unsatisfiable:?} {max_skew} {min_domains}");
                    assert_eq!(bound(&decisions).len(), expected, "{what}");
                }
            }
        }
    }
}

#[test]
fn absurd_weights_are_only_preferences() {
    let weights = [i32::MIN, -1, 0, i32::MAX];
    for profile in PROFILES {
        let mut engine = engine(profile, 4);
        let mut spec = small("weights");
        for weight in weights {
            let there = Requirement { key: ZONE.into(), operator: Operator::Exists };
            let node = NodeTerm { labels: vec![there], name: Vec::new() };
            for _ in 0..3 {
                spec.node_affinity.preferred.push((weight, node.clone()));
                spec.pod_affinity.preferred.push((weight, term(anything(), ZONE)));
                spec.pod_affinity.anti_preferred.push((weight, term(anything(), ZONE)));
            }
        }
        for image in ["huge", "negative"] {
            spec.images.push(format!("{image}:latest").into());
        }
        let spec = Arc::new(spec);
        let mut node: Node = kind().node(4).unwrap();
        for (name, size_bytes) in [("huge", i64::MAX), ("huge", i64::MAX), ("negative", i64::MIN)] {
            let names = vec![format!("{name}:latest").into()];
            node.images.push(Image { names, size_bytes });
        }
        engine.apply(Event::Node(node));
        for number in 0..20 {
            engine.apply(Event::Pod(pending(&spec, number)));
        }
        assert_eq!(bound(&settle(&mut engine, 0)).len(), 20, "{profile:?}");
    }
}

#[test]
fn a_thousand_budgets_are_all_respected() {
    for profile in PROFILES {
        let mut engine = engine(profile, 20);
        for number in 0..1_000 {
            engine.apply(Event::Budget(DisruptionBudget {
                namespace: "serving".into(),
                name: format!("budget-{number}").into(),
                selector: app("app"),
                disruptions_allowed: [0, -1, i32::MIN, i32::MAX][number % 4],
                disrupted_pods: std::collections::BTreeSet::new(),
            }));
        }
        within_bound("1,000 budgets", || {
            for number in 0..20 {
                engine.apply(Event::Pod(pod(number, 0, 8)));
            }
            assert_eq!(bound(&settle(&mut engine, 0)).len(), 20);
            engine.apply(Event::Pod(pod(100, 10, 8)));
            let decisions = settle(&mut engine, 1);
            let [Decision::Preempt(preempting), ..] = &decisions[..] else {
                unreachable!("{profile:?}: {decisions:?}");
            };
            assert_eq!(preempting.budget_violations, 1, "{profile:?}");
        });
    }
}

#[test]
fn the_extremes_of_priority_are_in_order() {
    for profile in PROFILES {
        let mut engine = engine(profile, 1);
        let lowest = pod(1, i32::MIN, 8);
        engine.apply(Event::Pod(lowest.clone()));
        assert_eq!(bound(&settle(&mut engine, 0)).len(), 1);
        let highest = pod(2, i32::MAX, 8);
        engine.apply(Event::Pod(highest.clone()));
        engine.apply(Event::Pod(pod(3, i32::MAX - 1, 8)));
        let decisions = settle(&mut engine, 1);
        let [Decision::Preempt(preempting), ..] = &decisions[..] else {
            unreachable!("{profile:?}: {decisions:?}");
        };
        assert_eq!((&preempting.pod, &preempting.victims), (&highest.uid, &vec![lowest.uid]));
    }
}

#[test]
fn absurd_times_change_no_decision() {
    for now_ms in [i64::MIN, -1, i64::MAX] {
        let rest = Config { eviction_cooldown_ms: i64::MAX, ..Config::default() };
        for config in [Config::default(), rest] {
            let mut engine = Engine::new(config);
            kind().nodes(0, 1).unwrap().into_iter().for_each(|event| engine.apply(event));
            let times = |pod: PodObject| PodObject { created_at_ms: now_ms, ..pod };
            engine.apply(Event::Pod(times(pod(1, 0, 8))));
            assert_eq!(bound(&settle(&mut engine, now_ms)).len(), 1);
            engine.apply(Event::Pod(times(pod(2, 1, 8))));
            let decisions = settle(&mut engine, now_ms);
            assert!(matches!(decisions[..], [Decision::Preempt(_), ..]), "{now_ms}: {decisions:?}");
        }
    }
}

#[test]
fn absurd_labels_of_gpus_offer_nothing_impossible() {
    let values = ["18446744073709551615", "-1", "0", "", "1e9", "99999999999999999999999"];
    for memory in values {
        for replicas in values {
            let mut engine = Engine::new(Profile::Berth);
            let mut node = kind().node(0).unwrap();
            node.labels.insert("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3-SHARED");
            node.labels.insert("nvidia.com/gpu.memory", memory);
            node.labels.insert("nvidia.com/gpu.replicas", replicas);
            node.labels.insert("nvidia.com/gpu.sharing-strategy", "mps");
            engine.apply(Event::Node(node));
            let mut spec = small("need");
            spec.gpu = Some(GpuNeed { memory_bytes: u64::MAX, compute_milli: u16::MAX });
            engine.apply(Event::Pod(pending(&Arc::new(spec), 1)));
            assert_eq!(bound(&settle(&mut engine, 0)), [""; 0], "{memory} {replicas}");
        }
    }
}

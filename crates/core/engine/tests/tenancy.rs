//! Quotas and teams: holds, order of the queue, reclaiming.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use berth_engine::config::ReservationBudget;
use berth_engine::decision::{Decision, HeldBy};
use berth_engine::event::Event;
use berth_engine::explain::render;
use berth_engine::{Config, Engine, Profile, TEAM_LABEL};
use berth_kubelet::TopologyPolicy;
use berth_model::gang::{Disruption, GangMembership, GangTerms};
use berth_model::policy::{PriorityClass, Quota};
use berth_model::spec::{Phase, PodObject, PodSpec};
use berth_tenancy::share::{Dimension, Entitlement, GPU_PARTS, Lender, Team};
use berth_testkit::cluster::{NodeKind, gpu_template, pending, resources};
use berth_testkit::month::{GRACE_MS, Month};
use berth_testkit::world::{
    Size, TENANTS_FROM, Watched, breaks_a_law, depends_on_order, remembers_trials,
};

const SMALL: Size = Size { nodes: 6, rounds: 12 };

fn nodes(count: usize) -> Vec<Event> {
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::None);
    kind.nodes(0, count).unwrap()
}

fn share(gpus: i64) -> Entitlement {
    Entitlement { guaranteed: gpus * GPU_PARTS, ..Entitlement::default() }
}

fn team(name: &str, entitlement: Entitlement) -> Team {
    Team {
        name: name.into(),
        namespaces: [name.into()].into(),
        entitlements: [(Dimension::Gpus, entitlement)].into(),
        ..Team::default()
    }
}

fn spec(namespace: &str, priority: i32, gpus: u32) -> Arc<PodSpec> {
    let template = gpu_template(namespace, priority, gpus).unwrap();
    Arc::new(PodSpec { namespace: namespace.into(), ..template })
}

struct Cluster {
    watched: Watched,
    pods: u64,
    now_ms: i64,
}

impl Cluster {
    fn new(count: usize, teams: Vec<Team>) -> Self {
        let reservations = ReservationBudget::UNLIMITED;
        let mut watched = Watched::new(Config { reservations, ..Config::default() });
        nodes(count).into_iter().for_each(|event| watched.tell(event));
        teams.into_iter().for_each(|team| watched.tell(Event::Team(team)));
        Self { watched, pods: 0, now_ms: 0 }
    }

    fn create(&mut self, spec: &Arc<PodSpec>) -> PodObject {
        self.pods += 1;
        let pod = pending(spec, self.pods);
        self.watched.tell(Event::Pod(pod.clone()));
        pod
    }

    fn create_many(&mut self, spec: &Arc<PodSpec>, count: usize) -> Vec<PodObject> {
        (0..count).map(|_| self.create(spec)).collect()
    }

    fn settle(&mut self) -> Vec<String> {
        let decisions = self.watched.settle(self.now_ms);
        let broken = self.watched.violations();
        assert!(broken.is_empty(), "{broken:?}");
        decisions.iter().map(tell).collect()
    }

    fn leaves(&mut self, uid: &str) {
        self.watched.tell(Event::PodGone(uid.into()));
    }

    fn is_bound(&self, pod: &PodObject) -> bool {
        self.watched.engine.node_of(&pod.uid).is_some()
    }
}

fn short(uid: &str) -> String {
    uid.trim_start_matches("uid-").trim_start_matches('0').to_owned()
}

fn tell(decision: &Decision) -> String {
    match decision {
        Decision::Bind(binding) => format!("bind {}", short(&binding.pod)),
        Decision::Preempt(preempting) => {
            let victims: Vec<String> = preempting.victims.iter().map(|uid| short(uid)).collect();
            format!("evict {} for {}", victims.join(" "), short(&preempting.pod))
        }
        Decision::BindAll(all) => {
            let pods: Vec<String> = all.bindings.iter().map(|one| short(&one.pod)).collect();
            format!("bind {}", pods.join(" "))
        }
        Decision::Reserve(reserving) => {
            let victims: Vec<String> = reserving.victims.iter().map(|uid| short(uid)).collect();
            format!("evict {} for {}", victims.join(" "), reserving.gang.name)
        }
        Decision::Disband(disbanding) => format!("disband {}", disbanding.gang.name),
        Decision::Hold { pod, .. } => format!("hold {}", short(pod)),
        Decision::Wait { pod } => format!("wait {}", short(pod)),
    }
}

#[test]
fn a_team_below_its_guarantee_reclaims() {
    let mut cluster = Cluster::new(1, vec![team("a", share(4)), team("b", share(4))]);
    let borrowers = cluster.create_many(&spec("a", 0, 1), 8);
    cluster.settle();
    assert!(borrowers.iter().all(|pod| cluster.is_bound(pod)), "idle GPUs are lent");
    let accounts = cluster.watched.engine.accounts();
    assert_eq!(accounts[0].borrowed, [(Lender::Team("b".into()), 4 * GPU_PARTS)]);
    assert_eq!((accounts[1].lent, accounts[1].has), (4 * GPU_PARTS, 0));
    let own = cluster.create(&spec("b", 0, 2));
    // The youngest of those that borrow, at the same priority.
    let decisions = cluster.settle();
    assert_eq!(decisions, ["evict 8 7 for 9"]);
    cluster.leaves("uid-00000008");
    cluster.leaves("uid-00000007");
    assert_eq!(cluster.settle(), ["bind 9"]);
    assert!(cluster.is_bound(&own));
    // What was lost is asked for again: it borrows, and so takes nothing back.
    cluster.create_many(&spec("a", 0, 1), 2);
    assert!(cluster.settle().iter().all(|decision| decision.starts_with("wait")));
}

#[test]
fn the_team_that_borrowed_most_gives_back_first() {
    const HOUR_MS: i64 = 3_600_000;
    let mut engine = Engine::new(Config::default());
    let mut names = Vec::new();
    for event in nodes(3) {
        if let Event::Node(node) = &event {
            names.push(node.name.clone());
        }
        engine.apply(event);
    }
    let teams = [("a", 0), ("b", 0), ("c", 24)];
    teams.into_iter().for_each(|(name, gpus)| engine.apply(Event::Team(team(name, share(gpus)))));
    let running = [("a", 8, 0, 0), ("a", 4, 1, 9), ("a", 4, 1, 9), ("b", 8, 2, 10)];
    for ((team, gpus, node, started), number) in running.into_iter().zip(1..) {
        engine.apply(Event::Pod(PodObject {
            node: Some(Arc::clone(&names[node])),
            started_at_ms: Some(started * HOUR_MS),
            ..pending(&spec(team, 0, gpus), number)
        }));
    }
    engine.apply(Event::Pod(pending(&spec("c", 0, 8), 5)));
    // Not the one that has run for long, though it is one; nor the youngest, of who borrowed less.
    let decision = engine.decide(11 * HOUR_MS).unwrap();
    assert_eq!(tell(&decision), "evict 3 2 for 5");
}

#[test]
fn no_more_is_reclaimed_than_guaranteed() {
    let mut cluster = Cluster::new(1, vec![team("a", share(4)), team("b", share(4))]);
    cluster.create_many(&spec("a", 0, 1), 8);
    cluster.settle();
    let wanted = cluster.create_many(&spec("b", 0, 1), 6);
    let mut evicted = Vec::new();
    for _ in 0..8 {
        // One after the other: room on a node is made for one pod at a time.
        for decision in cluster.settle() {
            let Some(rest) = decision.strip_prefix("evict ") else { continue };
            let (victim, _) = rest.split_once(" for ").unwrap();
            evicted.push(victim.to_owned());
            cluster.leaves(&format!("uid-{victim:0>8}"));
        }
    }
    assert_eq!(evicted, ["8", "7", "6", "5"]);
    assert_eq!(wanted.iter().filter(|pod| cluster.is_bound(pod)).count(), 4);
}

#[test]
fn guaranteed_work_goes_first_and_then_the_smaller_share() {
    let mut cluster =
        Cluster::new(1, vec![team("a", share(2)), team("b", share(2)), team("c", share(0))]);
    cluster.create_many(&spec("a", 50, 1), 3);
    cluster.create_many(&spec("b", 0, 1), 3);
    cluster.create_many(&spec("c", 50, 1), 4);
    // 1 and 2 are a's own by priority, 4 and 5 b's own; then 3, 7, 8 borrow at the same priority,
    // each team in turn.
    let decisions = cluster.settle();
    let bound: Vec<&str> =
        decisions.iter().filter_map(|decision| decision.strip_prefix("bind ")).collect();
    assert_eq!(bound, ["1", "2", "4", "5", "3", "7", "8", "9"], "{decisions:?}");
}

#[test]
fn priority_does_not_override_guarantees() {
    let mut cluster = Cluster::new(1, vec![team("a", share(4)), team("b", share(4))]);
    cluster.create_many(&spec("a", 0, 1), 4);
    cluster.create_many(&spec("b", 0, 1), 4);
    cluster.settle();
    cluster.create(&spec("a", 100, 1));
    // Within the team priorities decide; between teams guarantees.
    assert_eq!(cluster.settle(), ["evict 4 for 9"]);
    cluster.create(&spec("c", 100, 1));
    assert_eq!(cluster.settle(), ["wait 10"]);
}

#[test]
fn pods_beyond_a_borrowing_limit_are_held_and_rechecked() {
    let limited = Entitlement { borrow_max: Some(GPU_PARTS), ..share(2) };
    let mut cluster = Cluster::new(1, vec![team("a", limited)]);
    let pods = cluster.create_many(&spec("a", 0, 2), 2);
    assert_eq!(cluster.settle(), ["bind 1", "hold 2"]);
    assert_eq!(cluster.watched.engine.held(), 1);
    let text = render(&cluster.watched.engine.explain(&pods[1].uid, 0).unwrap());
    let want = "Held by its team's share; more nodes would not help: it requests 2 GPUs. Its team a uses \
                2 GPUs, is guaranteed 2 GPUs and may borrow 1 GPUs. Raise what it may borrow or \
                delete some of its pods.";
    assert_eq!(text, want);
    cluster.create(&spec("a", 0, 1));
    assert_eq!(cluster.settle(), ["bind 3"], "a smaller one may");
    cluster.leaves(&pods[0].uid);
    assert_eq!(cluster.settle(), ["bind 2"]);
    let more = cluster.create_many(&spec("a", 0, 2), 1);
    assert_eq!(cluster.settle(), ["hold 4"]);
    cluster.watched.tell(Event::Team(team("a", share(2))));
    assert_eq!(cluster.settle(), ["bind 4"]);
    assert!(cluster.is_bound(&more[0]));
}

#[test]
fn what_a_team_does_not_lend_stays_idle() {
    let closed = Entitlement { lend_max: Some(GPU_PARTS), ..share(4) };
    let mut cluster = Cluster::new(1, vec![team("a", share(0)), team("b", closed)]);
    let pods = cluster.create_many(&spec("a", 0, 1), 8);
    let decisions = cluster.settle();
    assert_eq!(decisions[5..], ["hold 6", "hold 7", "hold 8"], "{decisions:?}");
    let text = render(&cluster.watched.engine.explain(&pods[7].uid, 0).unwrap());
    let want = "it requests 1 GPUs beyond its guarantee. Of 8 GPUs, 8 GPUs are in use, or \
                idle and not lent by b 3 GPUs. Raise the lend limit of one of them.";
    assert!(text.ends_with(want), "{text}");
    let own = cluster.create_many(&spec("b", 0, 1), 3);
    cluster.settle();
    assert!(own.iter().all(|pod| cluster.is_bound(pod)), "at once, without evictions");
}

#[test]
fn pods_beyond_a_quota_are_held_in_the_order_of_creation() {
    let mut cluster = Cluster::new(1, Vec::new());
    let hard = resources(&[("requests.nvidia.com/gpu", "3")]).unwrap();
    let quota = Quota { namespace: "a".into(), name: "gpus".into(), hard, scopes: Vec::new() };
    cluster.watched.tell(Event::Quota(quota.clone()));
    // A higher priority does not help against a quota.
    cluster.create(&spec("a", 0, 2));
    cluster.create(&spec("a", 0, 2));
    let late = cluster.create(&spec("a", 9, 2));
    assert_eq!(cluster.settle(), ["hold 3", "bind 1", "hold 2"]);
    let explanation = cluster.watched.engine.explain(&late.uid, 0).unwrap();
    let gpu = "requests.nvidia.com/gpu";
    let want = format!(
        "Held by a quota; more nodes would not help: exceeded quota: gpus, requested: {gpu}=2, used: \
         {gpu}=2, limited: {gpu}=3. Raise quota gpus or delete pods that it counts."
    );
    assert_eq!(render(&explanation), want);
    cluster.leaves("uid-00000001");
    assert_eq!(cluster.settle(), ["bind 2"]);
    let hard = resources(&[("requests.nvidia.com/gpu", "4")]).unwrap();
    cluster.watched.tell(Event::Quota(Quota { hard, ..quota }));
    assert_eq!(cluster.settle(), ["bind 3"]);
}

#[test]
fn slices_and_pods_of_other_schedulers_count() {
    let mut engine = Engine::new(Config::default());
    nodes(1).into_iter().for_each(|event| engine.apply(event));
    engine.apply(Event::Team(team("a", share(1))));
    let mut one = (*spec("a", 0, 1)).clone();
    let slice = "nvidia.com/mig-1g.10gb".into();
    for container in &mut one.pod.containers {
        for list in [&mut container.resources.requests, &mut container.resources.limits] {
            let amount = list.remove("nvidia.com/gpu").unwrap();
            list.insert(berth_model::resource::ResourceName::clone(&slice), amount);
        }
    }
    let (node, started_at_ms) = (Some("h100-000000".into()), Some(1));
    let pod = PodObject { node, started_at_ms, ..pending(&Arc::new(one), 1) };
    engine.apply(Event::Pod(pod.clone()));
    let gpus = |engine: &Engine| {
        let accounts = engine.accounts();
        accounts.iter().find(|one| *one.team == *"a").map(|one| one.has)
    };
    assert_eq!(gpus(&engine), Some(GPU_PARTS / 112 * 15));
    engine.apply(Event::Pod(PodObject { phase: Phase::Finished, ..pod }));
    assert_eq!(gpus(&engine), Some(0));
}

#[test]
fn a_label_says_which_team_of_the_namespace_it_is() {
    let both =
        |name: &str, gpus| Team { namespaces: ["ns".into()].into(), ..team(name, share(gpus)) };
    let mut cluster = Cluster::new(1, vec![both("a", 0), both("b", 8)]);
    let mut labelled = (*spec("ns", 0, 2)).clone();
    labelled.labels.insert(TEAM_LABEL, "b");
    cluster.create(&Arc::new(labelled));
    cluster.settle();
    let accounts = cluster.watched.engine.accounts();
    assert_eq!(accounts.iter().map(|one| one.has / GPU_PARTS).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn kube_schedulers_profiles_ignore_teams_and_quotas() {
    let mut engine = Engine::new(Profile::KubeScheduler);
    nodes(1).into_iter().for_each(|event| engine.apply(event));
    let none = Entitlement { borrow_max: Some(0), ..share(0) };
    engine.apply(Event::Team(team("a", none)));
    engine.apply(Event::PriorityClass(PriorityClass::default()));
    let hard = resources(&[("pods", "0")]).unwrap();
    let quota = Quota { namespace: "a".into(), name: "q".into(), hard, scopes: Vec::new() };
    engine.apply(Event::Quota(quota));
    engine.apply(Event::Pod(pending(&spec("a", 0, 1), 1)));
    assert!(matches!(engine.decide(0), Some(Decision::Bind(_))));
    assert!(engine.accounts().is_empty());
}

/// A member of a gang of so many that start together.
fn member(namespace: &str, gang: &str, priority: i32, gpus: u32, min: u32) -> Arc<PodSpec> {
    let terms =
        GangTerms { min, topology: None, timeout_ms: 600_000, disruption: Disruption::Whole };
    let mut spec = PodSpec::clone(&spec(namespace, priority, gpus));
    spec.gang = Some(GangMembership { name: gang.into(), terms: Some(terms) });
    Arc::new(spec)
}

#[test]
fn a_gang_beyond_what_its_team_may_borrow_is_held_as_a_whole() {
    let limited = Entitlement { borrow_max: Some(0), ..share(8) };
    let mut cluster = Cluster::new(2, vec![team("a", limited), team("b", share(8))]);
    let small = cluster.create(&spec("a", 0, 1));
    assert_eq!(cluster.settle(), ["bind 1"]);
    // Each of them may start by itself; both together are beyond the limit.
    let gang = cluster.create_many(&member("a", "pair", 0, 4, 2), 2);
    assert_eq!(cluster.settle(), ["hold 2"]);
    assert_eq!(cluster.watched.engine.held(), 2);
    let why = render(&cluster.watched.engine.explain(&gang[1].uid, 0).unwrap());
    assert!(why.starts_with("Held by its team's share"), "{why}");
    cluster.leaves(&small.uid);
    assert_eq!(cluster.settle(), ["bind 2 3"]);
    assert_eq!(cluster.watched.engine.held(), 0);
}

#[test]
fn a_gang_of_several_teams_beyond_what_their_group_may_borrow_is_held() {
    let limited = Entitlement { borrow_max: Some(0), ..share(6) };
    let below = |name: &str| Team {
        parent: Some("group".into()),
        namespaces: ["ns".into()].into(),
        ..team(name, share(0))
    };
    let mut cluster = Cluster::new(1, vec![team("group", limited), below("a"), below("b")]);
    for name in ["a", "b"] {
        let mut spec = PodSpec::clone(&member("ns", "pair", 0, 4, 2));
        spec.labels.insert(TEAM_LABEL, name);
        cluster.create(&Arc::new(spec));
    }
    assert_eq!(cluster.settle(), ["hold 1"]);
    assert_eq!(cluster.watched.engine.held(), 2);
    let limited = Entitlement { borrow_max: Some(2 * GPU_PARTS), ..share(6) };
    cluster.watched.tell(Event::Team(team("group", limited)));
    assert_eq!(cluster.settle(), ["bind 1 2"]);
}

#[test]
fn only_members_within_a_quota_start() {
    let mut cluster = Cluster::new(2, Vec::new());
    let quota = |pods: &str| {
        let hard = resources(&[("pods", pods)]).unwrap();
        Event::Quota(Quota { namespace: "a".into(), name: "q".into(), hard, scopes: Vec::new() })
    };
    cluster.watched.tell(quota("1"));
    cluster.create_many(&member("a", "trio", 0, 4, 2), 3);
    assert_eq!(cluster.settle(), ["hold 1"]);
    cluster.watched.tell(quota("2"));
    assert_eq!(cluster.settle(), ["bind 1 2", "hold 3"]);
    cluster.watched.tell(quota("3"));
    assert_eq!(cluster.settle(), ["bind 3"]);
}

#[test]
fn a_held_gang_does_not_block_reservations() {
    let limited = Entitlement { borrow_max: Some(0), ..share(0) };
    let mut cluster = Cluster::new(1, vec![team("a", limited), team("b", share(8))]);
    cluster.create_many(&spec("b", 0, 1), 4);
    cluster.create_many(&member("a", "held", 5, 4, 2), 2);
    cluster.create_many(&member("b", "patient", 0, 4, 2), 2);
    assert_eq!(cluster.settle(), ["bind 1", "bind 2", "bind 3", "bind 4", "wait 7", "hold 5"]);
    cluster.now_ms = Config::default().gang_patience_ms;
    assert_eq!(cluster.settle(), ["evict  for patient"]);
}

#[test]
fn a_reservation_does_not_keep_out_what_another_team_is_guaranteed() {
    let mut cluster = Cluster::new(2, vec![team("a", share(10)), team("b", share(6))]);
    let guaranteed = cluster.create(&spec("b", 0, 5));
    cluster.create(&spec("other", 10, 5));
    assert_eq!(cluster.settle(), ["bind 1", "bind 2"]);
    cluster.create_many(&member("a", "pair", 0, 5, 2), 2);
    assert_eq!(cluster.settle(), ["wait 3"]);
    cluster.now_ms = Config::default().gang_patience_ms;
    assert_eq!(cluster.settle(), ["evict  for pair"]);
    // One node is free now, and reserved.
    cluster.leaves(&guaranteed.uid);
    cluster.create(&spec("other", 0, 5));
    assert_eq!(cluster.settle(), ["wait 5"]);
    cluster.create(&spec("b", 0, 5));
    assert_eq!(cluster.settle(), ["bind 6"]);
}

#[test]
fn a_gang_reclaims() {
    let mut cluster = Cluster::new(1, vec![team("a", share(4)), team("b", share(4))]);
    cluster.create_many(&spec("a", 0, 1), 8);
    cluster.settle();
    cluster.create_many(&member("b", "pair", 0, 2, 2), 2);
    let said = cluster.settle();
    assert_eq!(said, ["evict 8 7 6 5 for pair"]);
    (5..=8).for_each(|number| cluster.leaves(&format!("uid-{number:08}")));
    assert_eq!(cluster.settle(), ["bind 9 10"]);
}

#[test]
fn gangs_within_their_guarantee_are_not_preempted() {
    let mut cluster = Cluster::new(2, vec![team("a", share(8)), team("b", share(8))]);
    cluster.create_many(&member("a", "wide", 0, 4, 4), 4);
    assert_eq!(cluster.settle(), ["bind 1 2 3 4"]);
    // Half of the gang is beyond its team's guarantee, but it would have to go as a whole.
    cluster.create(&spec("b", 10, 8));
    assert_eq!(cluster.settle(), ["wait 5"]);
}

#[test]
fn a_hold_names_its_cause() {
    let mut engine = Engine::new(Config::default());
    nodes(1).into_iter().for_each(|event| engine.apply(event));
    let hard = resources(&[("pods", "0")]).unwrap();
    let quota = Quota { namespace: "a".into(), name: "q".into(), hard, scopes: Vec::new() };
    engine.apply(Event::Quota(quota));
    engine.apply(Event::Pod(pending(&spec("a", 0, 1), 1)));
    let Some(Decision::Hold { by: HeldBy::Quota(refusal), .. }) = engine.decide(0) else {
        panic!("not held");
    };
    assert_eq!(
        refusal.to_string(),
        "exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0"
    );
}

#[test]
fn in_a_week_of_four_teams_nobody_waits_long_for_its_guarantee() {
    let month = Month { nodes: 16, days: 7, seed: 7, shares: true };
    let with = month.run().unwrap();
    let without = Month { shares: false, ..month }.run().unwrap();
    let reclaim_ms = Config::default().eviction_cooldown_ms + GRACE_MS;
    for team in &with.teams {
        assert!(team.longest_below_ms <= reclaim_ms, "{team:?}");
    }
    let lost_milli = without.utilisation_milli - with.utilisation_milli;
    assert!(lost_milli <= 20, "{} and {}", with.utilisation_milli, without.utilisation_milli);
    assert_eq!(with.idle_milli, 0, "GPUs are idle though somebody would fit");
    assert!(with.lost_milli <= 130, "{} of 1,000 GPUs worked in vain", with.lost_milli);
    let [.., greedy] = &with.teams[..] else { panic!("no teams") };
    assert!(greedy.borrowed_milli > 0 && greedy.evicted > 0, "{greedy:?}");
    let starved = without.teams.iter().any(|team| team.longest_below_ms > 10 * reclaim_ms);
    assert!(starved, "the greedy one is too modest to show anything: {:?}", without.teams);
}

fn assert_none(what: impl Fn(u64) -> Option<String>, seeds: u64) {
    let found: Vec<String> = (0..seeds).filter_map(|seed| what(TENANTS_FROM + seed)).collect();
    assert!(found.is_empty(), "{} of {seeds}:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_laws_hold_in_worlds_with_teams_and_quotas() {
    assert_none(|seed| breaks_a_law(seed, SMALL, Config::default()).unwrap(), 300);
}

#[test]
fn event_order_does_not_matter_to_teams_and_quotas() {
    assert_none(|seed| depends_on_order(seed, SMALL, Config::default()).unwrap(), 300);
}

#[test]
fn rollbacks_leave_no_trace_with_teams_and_quotas() {
    assert_none(|seed| remembers_trials(seed, SMALL, Config::default()).unwrap(), 200);
}

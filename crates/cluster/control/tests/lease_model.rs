//! The election in arbitrary worlds: requests that are delayed, doubled, reordered and lost, processes
//! that pause and crash, clocks that run fast, slow and jump.
//!
//! Three replicas run the rules of `lease` against an API server that knows a Lease and some pods. Whoever
//! leads announces pods, posts their bindings, and fences what it inherits before it places anything. What
//! must hold in every world:
//!
//! - the versions of the Lease are one line: a holder writes only on top of its own version, or takes over;
//! - whoever is told that its announcement was written held the Lease at that moment;
//! - from the moment that a leader starts to place, no binding of an earlier leader lands.
//!
//! `BERTH_SEEDS` says in how many worlds; each is a number.
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use berth_control::lease::{
    Answer, LeaseView, Observed, PodRef, Settings, Step, Tenure, Turn, evaluate,
};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

const REPLICAS: usize = 3;
const PODS: usize = 40;
/// Faults end here.
const CALM_MS: u64 = 180_000;
const END_MS: u64 = 420_000;

/// Repeatable draws (SplitMix64).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

#[derive(Clone, Debug)]
enum Request {
    Get,
    Create(Box<Lease>),
    Replace(Box<Lease>),
    ReadPods,
    Touch(usize),
    /// The version of the pod that was known when it was announced.
    Bind {
        pod: usize,
        version: u64,
    },
}

#[derive(Clone, Debug)]
enum Reply {
    Lease(Option<Box<Lease>>),
    Conflict,
    Missing,
    /// Version, and whether it is bound.
    Pods(Vec<(u64, bool)>),
    Touched,
    Bound,
}

#[derive(Clone, Debug)]
enum Event {
    Wake(usize),
    Arrive { from: usize, life: u64, call: u64, request: Request, tenure: u64 },
    Reply { to: usize, life: u64, call: u64, reply: Option<Reply> },
    Chaos,
}

/// What an unanswered call was for.
#[derive(Clone, Debug)]
enum Purpose {
    Look,
    Acquire { inherited: BTreeSet<PodRef>, began_ms: u64 },
    Write { began_ms: u64, announced: Vec<(usize, u64)> },
    Clarify { announced: Vec<(usize, u64)> },
    Fence(usize),
    Snapshot,
    Bind(usize),
}

struct Leader {
    tenure: Tenure,
    /// The version of the Lease by which it began: the order of leaders.
    number: u64,
    unfenced: BTreeSet<usize>,
    /// What it knows of pods; nothing until all is fenced.
    pods: Option<Vec<(u64, bool)>>,
    listed: BTreeSet<usize>,
    is_writing: bool,
}

struct Replica {
    life: u64,
    paused_until_ms: u64,
    rate_milli: u64,
    offset_ms: u64,
    observed: Observed,
    leader: Option<Leader>,
    is_looking: bool,
    calls: BTreeMap<u64, Purpose>,
}

#[derive(Default)]
struct Tally {
    takeovers: u64,
    announcements: u64,
    bound: u64,
    stale_bindings: u64,
    deposed_writes: u64,
}

struct World {
    draws: Draws,
    now_ms: u64,
    order: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Option<Event>>,
    settings: Settings,
    replicas: Vec<Replica>,
    next_call: u64,
    lease: Option<Lease>,
    version: u64,
    pods: Vec<(u64, bool)>,
    /// The latest leader that has started to place.
    placing: u64,
    /// Whether inherited pods are touched.
    fences: bool,
    tally: Tally,
    problem: Option<String>,
}

fn pod_ref(pod: usize) -> PodRef {
    let name: Arc<str> = format!("p{pod}").into();
    PodRef { namespace: "n".into(), name: name.clone(), uid: name }
}

fn pod_of(pod: &PodRef) -> usize {
    pod.uid[1..].parse().unwrap()
}

impl World {
    fn new(seed: u64, fences: bool) -> Self {
        let mut draws = Draws(seed);
        let replica = |draws: &mut Draws| Replica {
            life: 0,
            paused_until_ms: 0,
            // From half to twice as fast.
            rate_milli: 500 + draws.below(1_500),
            offset_ms: draws.below(1 << 40),
            observed: Observed::default(),
            leader: None,
            is_looking: false,
            calls: BTreeMap::new(),
        };
        let replicas = (0..REPLICAS).map(|_| replica(&mut draws)).collect();
        let mut world = Self {
            draws,
            now_ms: 0,
            order: 0,
            events: BinaryHeap::new(),
            slots: Vec::new(),
            settings: Settings::default(),
            replicas,
            next_call: 0,
            lease: None,
            version: 0,
            pods: vec![(1, false); PODS],
            placing: 0,
            fences,
            tally: Tally::default(),
            problem: None,
        };
        (0..REPLICAS).for_each(|replica| world.after(replica as u64, Event::Wake(replica)));
        world.after(3_000, Event::Chaos);
        world
    }

    fn after(&mut self, ms: u64, event: Event) {
        self.order += 1;
        self.slots.push(Some(event));
        self.events.push(Reverse((self.now_ms + ms, self.order, self.slots.len() - 1)));
    }

    fn run(&mut self) {
        while let Some(Reverse((at_ms, _, slot))) = self.events.pop() {
            if at_ms > END_MS || self.problem.is_some() {
                return;
            }
            self.now_ms = at_ms;
            match self.slots[slot].take().unwrap() {
                Event::Wake(replica) => self.at_replica(replica, Event::Wake(replica)),
                event @ Event::Reply { to, .. } => self.at_replica(to, event),
                Event::Arrive { from, life, call, request, tenure } => {
                    let reply = self.serve(from, life, request, tenure);
                    if !(self.is_rough() && self.draws.one_in(15)) {
                        let ms = self.delay_ms();
                        self.after(ms, Event::Reply { to: from, life, call, reply: Some(reply) });
                    }
                }
                Event::Chaos => self.chaos(),
            }
        }
    }

    fn is_rough(&self) -> bool {
        self.now_ms < CALM_MS
    }

    fn delay_ms(&mut self) -> u64 {
        match self.draws.below(40) {
            0 if self.is_rough() => self.draws.below(60_000),
            1..4 if self.is_rough() => self.draws.below(6_000),
            _ => 1 + self.draws.below(30),
        }
    }

    fn chaos(&mut self) {
        if !self.is_rough() {
            return;
        }
        let replica = self.draws.below(REPLICAS as u64) as usize;
        let pause_ms = self.draws.below(45_000);
        let jump_ms = self.draws.below(100_000);
        let rate_milli = 500 + self.draws.below(1_500);
        let what = self.draws.below(4);
        let now_ms = self.now_ms;
        let one = &mut self.replicas[replica];
        match what {
            0 => one.paused_until_ms = now_ms + pause_ms,
            1 => one.offset_ms += jump_ms,
            2 => {
                // The local clock goes on from where it is.
                one.offset_ms += now_ms * one.rate_milli / 1_000;
                one.rate_milli = rate_milli;
                one.offset_ms = one.offset_ms.saturating_sub(now_ms * rate_milli / 1_000);
            }
            _ => {
                one.life += 1;
                one.leader = None;
                one.is_looking = false;
                one.calls.clear();
                one.observed = Observed::default();
            }
        }
        let ms = 500 + self.draws.below(6_000);
        self.after(ms, Event::Chaos);
    }

    fn local_ms(&self, replica: usize) -> u64 {
        let one = &self.replicas[replica];
        one.offset_ms + self.now_ms * one.rate_milli / 1_000
    }

    fn name(&self, replica: usize) -> String {
        format!("r{replica}-{}", self.replicas[replica].life)
    }

    /// A wall clock that cannot be trusted at all.
    fn wall(&mut self) -> Timestamp {
        Timestamp::from_second(self.draws.below(4_000_000_000) as i64).unwrap()
    }

    fn send(&mut self, from: usize, request: Request, purpose: Purpose) {
        self.next_call += 1;
        let call = self.next_call;
        let life = self.replicas[from].life;
        let tenure = self.replicas[from].leader.as_ref().map_or(0, |leader| leader.number);
        self.replicas[from].calls.insert(call, purpose);
        let copies = match self.is_rough() {
            true if self.draws.one_in(15) => 0,
            true if self.draws.one_in(15) => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let ms = self.delay_ms();
            let request = request.clone();
            self.after(ms, Event::Arrive { from, life, call, request, tenure });
        }
        let limit_ms = self.settings.request_ms * 1_000 / self.replicas[from].rate_milli;
        self.after(limit_ms, Event::Reply { to: from, life, call, reply: None });
    }

    // The server.

    fn serve(&mut self, from: usize, life: u64, request: Request, tenure: u64) -> Reply {
        match request {
            Request::Get => Reply::Lease(self.lease.clone().map(Box::new)),
            Request::Create(_) if self.lease.is_some() => Reply::Conflict,
            Request::Create(lease) => self.store(*lease),
            Request::Replace(lease) => {
                let Some(now) = self.lease.clone() else { return Reply::Missing };
                if now.metadata.resource_version != lease.metadata.resource_version {
                    self.tally.deposed_writes += 1;
                    return Reply::Conflict;
                }
                let (before, after) = (LeaseView::new(now), LeaseView::new((*lease).clone()));
                let me = format!("r{from}-{life}");
                if after.holder() != me {
                    self.problem = Some(format!("{me} writes for {}", after.holder()));
                }
                if before.holder() == me {
                    return self.store(*lease);
                }
                self.tally.takeovers += 1;
                if before.binding() != after.binding() {
                    self.problem = Some(format!("{me} took over and lost the list"));
                }
                self.store(*lease)
            }
            Request::ReadPods => Reply::Pods(self.pods.clone()),
            Request::Touch(pod) => {
                if !self.pods[pod].1 {
                    self.pods[pod].0 += 1;
                }
                Reply::Touched
            }
            Request::Bind { pod, version } => {
                if self.pods[pod] != (version, false) {
                    self.tally.stale_bindings += 1;
                    return Reply::Conflict;
                }
                if tenure < self.placing {
                    let now = self.placing;
                    self.problem = Some(format!(
                        "at {} ms p{pod} is bound by leader {tenure} while leader {now} places",
                        self.now_ms
                    ));
                }
                self.pods[pod] = (version + 1, true);
                self.tally.bound += 1;
                Reply::Bound
            }
        }
    }

    fn store(&mut self, mut lease: Lease) -> Reply {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        Reply::Lease(Some(Box::new(lease)))
    }

    // A replica.

    fn at_replica(&mut self, replica: usize, event: Event) {
        let until_ms = self.replicas[replica].paused_until_ms;
        if until_ms > self.now_ms {
            return self.after(until_ms - self.now_ms, event);
        }
        match event {
            Event::Wake(_) => {
                self.act(replica);
                let ms = 50 + self.draws.below(400);
                self.after(ms, Event::Wake(replica));
            }
            Event::Reply { life, call, reply, .. } if life == self.replicas[replica].life => {
                if let Some(purpose) = self.replicas[replica].calls.remove(&call) {
                    self.hear(replica, purpose, reply);
                }
            }
            _ => {}
        }
    }

    fn act(&mut self, replica: usize) {
        let now_ms = self.local_ms(replica);
        let Some(leader) = &mut self.replicas[replica].leader else {
            if !self.replicas[replica].is_looking {
                self.replicas[replica].is_looking = true;
                self.send(replica, Request::Get, Purpose::Look);
            }
            return;
        };
        if leader.is_writing {
            return;
        }
        if leader.tenure.expired(now_ms).is_some() {
            return self.lose(replica);
        }
        let room = 4_usize.saturating_sub(leader.listed.len());
        let known = leader.pods.iter().flatten().enumerate();
        let free = known.filter(|(pod, (_, bound))| !bound && !leader.listed.contains(pod));
        let fresh: Vec<(usize, u64)> =
            free.take(room).map(|(pod, (version, _))| (pod, *version)).collect();
        if fresh.is_empty() && now_ms < leader.tenure.renew_at_ms() {
            return;
        }
        leader.listed.extend(fresh.iter().map(|(pod, _)| *pod));
        leader.tenure.add(fresh.iter().map(|(pod, _)| pod_ref(*pod)));
        self.write(replica, fresh);
    }

    fn write(&mut self, replica: usize, announced: Vec<(usize, u64)>) {
        let began_ms = self.local_ms(replica);
        let wall = self.wall();
        let Some(leader) = &mut self.replicas[replica].leader else { return };
        if leader.tenure.expired(began_ms).is_some() {
            return self.lose(replica);
        }
        leader.is_writing = true;
        let lease = leader.tenure.renewal(wall);
        let purpose = Purpose::Write { began_ms, announced };
        self.send(replica, Request::Replace(Box::new(lease)), purpose);
    }

    fn lose(&mut self, replica: usize) {
        // Whoever lost begins as a new process does: its bindings under way are its heir's now.
        let one = &mut self.replicas[replica];
        one.leader = None;
        one.is_looking = false;
        one.observed = Observed::default();
        one.calls.clear();
        one.life += 1;
    }

    fn hear(&mut self, replica: usize, purpose: Purpose, reply: Option<Reply>) {
        match purpose {
            Purpose::Look => self.looked(replica, reply),
            Purpose::Acquire { inherited, began_ms } => {
                self.replicas[replica].is_looking = false;
                if let Some(Reply::Lease(Some(lease))) = reply {
                    self.begin(replica, *lease, inherited, began_ms);
                }
            }
            Purpose::Write { began_ms, announced } => {
                let answer = match reply {
                    Some(Reply::Lease(Some(lease))) => Answer::Done(lease),
                    Some(Reply::Conflict) => Answer::Conflict,
                    Some(Reply::Missing) => Answer::Missing,
                    _ => Answer::Unknown,
                };
                if let Answer::Done(lease) = &answer {
                    self.judge(replica, lease, &announced);
                }
                let Some(leader) = &mut self.replicas[replica].leader else { return };
                let turn = leader.tenure.answered(answer, began_ms);
                self.turn(replica, turn, announced);
            }
            Purpose::Clarify { announced } => {
                let read = match reply {
                    Some(Reply::Lease(lease)) => Ok(lease.map(|lease| *lease)),
                    _ => Err(()),
                };
                let Some(leader) = &mut self.replicas[replica].leader else { return };
                let turn = leader.tenure.read(read);
                self.turn(replica, turn, announced);
            }
            Purpose::Fence(pod) => self.fenced(replica, pod, reply.is_some()),
            Purpose::Snapshot => self.start_placing(replica, reply),
            Purpose::Bind(pod) => self.binding_answered(replica, pod, reply),
        }
    }

    /// Whoever is told that it announced was the holder, and its pods are on the list.
    fn judge(&mut self, replica: usize, lease: &Lease, announced: &[(usize, u64)]) {
        let view = LeaseView::new(lease.clone());
        let list = view.binding().unwrap();
        let all_listed = announced.iter().all(|(pod, _)| list.contains(&pod_ref(*pod)));
        if view.holder() != self.name(replica) || !all_listed {
            self.problem = Some(format!("{} announced in vain", self.name(replica)));
        }
    }

    fn looked(&mut self, replica: usize, reply: Option<Reply>) {
        let Some(Reply::Lease(lease)) = reply else {
            self.replicas[replica].is_looking = false;
            return;
        };
        let view = lease.map(|lease| LeaseView::new(*lease));
        let (now_ms, me, wall) = (self.local_ms(replica), self.name(replica), self.wall());
        let one = &mut self.replicas[replica];
        one.observed.see(view.as_ref(), now_ms);
        let step = evaluate(view.as_ref(), &one.observed, &me, now_ms, &self.settings);
        let (request, inherited) = match (step, view) {
            (Step::Wait { .. }, _) => return one.is_looking = false,
            (Step::TakeOver, Some(view)) => {
                let lease = view.taken(&me, &self.settings, wall);
                (Request::Replace(Box::new(lease)), view.binding().unwrap())
            }
            _ => {
                let lease = LeaseView::first(&me, &self.settings, wall);
                (Request::Create(Box::new(lease)), BTreeSet::new())
            }
        };
        self.send(replica, request, Purpose::Acquire { inherited, began_ms: now_ms });
    }

    fn begin(&mut self, replica: usize, lease: Lease, inherited: BTreeSet<PodRef>, began_ms: u64) {
        let view = LeaseView::new(lease);
        let me = self.name(replica).into();
        let number = view.resource_version().parse().unwrap();
        let pods: BTreeSet<usize> = inherited.iter().map(pod_of).collect();
        let tenure = Tenure::new(view, inherited, me, &self.settings, began_ms);
        self.replicas[replica].leader = Some(Leader {
            tenure,
            number,
            unfenced: pods.clone(),
            pods: None,
            listed: pods.clone(),
            is_writing: false,
        });
        if pods.is_empty() || !self.fences {
            self.send(replica, Request::ReadPods, Purpose::Snapshot)
        } else {
            for pod in pods {
                self.send(replica, Request::Touch(pod), Purpose::Fence(pod));
            }
        }
    }

    fn turn(&mut self, replica: usize, turn: Turn, announced: Vec<(usize, u64)>) {
        match turn {
            Turn::Written => {
                let Some(leader) = &mut self.replicas[replica].leader else { return };
                leader.is_writing = false;
                self.tally.announcements += announced.len() as u64;
                for (pod, version) in announced {
                    self.send(replica, Request::Bind { pod, version }, Purpose::Bind(pod));
                }
            }
            Turn::Read => self.send(replica, Request::Get, Purpose::Clarify { announced }),
            Turn::Write => self.write(replica, announced),
            Turn::Lost(_) => self.lose(replica),
        }
    }

    fn fenced(&mut self, replica: usize, pod: usize, is_done: bool) {
        if !is_done {
            return self.send(replica, Request::Touch(pod), Purpose::Fence(pod));
        }
        let Some(leader) = &mut self.replicas[replica].leader else { return };
        leader.unfenced.remove(&pod);
        leader.listed.remove(&pod);
        leader.tenure.settle([pod_ref(pod)]);
        if leader.unfenced.is_empty() {
            self.send(replica, Request::ReadPods, Purpose::Snapshot);
        }
    }

    fn start_placing(&mut self, replica: usize, reply: Option<Reply>) {
        let Some(Reply::Pods(pods)) = reply else {
            return self.send(replica, Request::ReadPods, Purpose::Snapshot);
        };
        let Some(leader) = &mut self.replicas[replica].leader else { return };
        self.placing = self.placing.max(leader.number);
        leader.pods = Some(pods);
    }

    fn binding_answered(&mut self, replica: usize, pod: usize, reply: Option<Reply>) {
        let Some(leader) = &mut self.replicas[replica].leader else { return };
        match reply {
            Some(Reply::Bound) => {
                if let Some(pods) = &mut leader.pods {
                    pods[pod].1 = true;
                }
                leader.listed.remove(&pod);
                leader.tenure.settle([pod_ref(pod)]);
            }
            // It can land still, or what is known of the pod is old: no more of it before it is known.
            _ => {
                leader.unfenced.insert(pod);
                self.send(replica, Request::Touch(pod), Purpose::Fence(pod));
            }
        }
    }
}

fn worlds() -> u64 {
    let asked = std::env::var("BERTH_SEEDS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(1_000)
}

#[test]
fn two_leaders_never_place_at_once_in_any_world() {
    let mut total = Tally::default();
    for seed in 0..worlds() {
        let mut world = World::new(seed, true);
        world.run();
        assert_eq!(world.problem, None, "seed {seed}");
        // When all is calm somebody leads, and nothing is left.
        let leaders = world.replicas.iter().filter(|one| one.leader.is_some()).count();
        assert_eq!(leaders, 1, "seed {seed}");
        assert!(world.pods.iter().all(|(_, bound)| *bound), "seed {seed}: {:?}", world.pods);
        total.takeovers += world.tally.takeovers;
        total.announcements += world.tally.announcements;
        total.bound += world.tally.bound;
        total.stale_bindings += world.tally.stale_bindings;
        total.deposed_writes += world.tally.deposed_writes;
    }
    // The worlds are not so tame that nothing could have gone wrong.
    assert!(total.takeovers > worlds() * 2, "{} takeovers", total.takeovers);
    assert!(total.stale_bindings > worlds(), "{} stale bindings", total.stale_bindings);
    assert!(total.deposed_writes > worlds(), "{} late writes", total.deposed_writes);
    assert_eq!(total.bound, worlds() * PODS as u64);
}

#[test]
fn without_fencing_the_same_worlds_show_two() {
    let found = (0..worlds().min(300)).filter(|seed| {
        let mut world = World::new(*seed, false);
        world.run();
        world.problem.as_ref().is_some_and(|problem| problem.contains("while leader"))
    });
    assert!(found.count() > 0, "the model does not see what fencing is for");
}

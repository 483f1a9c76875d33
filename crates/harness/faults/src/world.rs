//! A world: time, the network, faults, users, kubelets and controllers, and the replicas in it.
//!
//! Owns what happens when. Everything follows from the seed. Must not know how anything is decided.

mod around;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use berth_control::core::Settings as CoreSettings;
use berth_control::lease::{PodRef, Settings as LeaseSettings};
use berth_model::label::Selector;
use berth_model::policy::DisruptionBudget;
use berth_model::resource::ResourceName;
use berth_model::spec::Phase;
use berth_testkit::cluster::{BuildError, Dice};

use crate::calls::{Answer, CallId, Caller, Request};
use crate::checker::Checker;
use crate::election::{Deed as Written, Next};
use crate::replica::{Clock, Message, Replica};
use crate::server::{Change, Fact, Server, Shown};
use crate::term::{Deed, Later, Purpose, Term, UNREADY};
use crate::verdict::{Finding, Tally};
use crate::workloads::{
    MODEST, Machine, Workload, hostile_workloads, machine, modest, pod, requests, workloads,
};

/// What one binding in so many needs is not ready yet.
const UNREADY_ONE_IN: usize = 10;

/// What is found at rest has to be found again after so long, and so many times more. Longer than
/// the longest rest of a pod by the slowest clock.
const CHECK_MS: u64 = 610_000;
const CHECKS_MORE: u64 = 2;

/// When the modest pod is created, after faults have ended, and how long it may be pending.
const MODEST_AFTER_MS: u64 = 300_000;
const MODEST_MAX_MS: u64 = 30_000;

/// How a world goes.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// How many replicas there are.
    pub replicas: usize,
    /// When faults end.
    pub calm_ms: u64,
    /// How long the world then has to come to rest.
    pub backoff_ms: u64,
    /// One call in so many is lost, and one answer; 0: none.
    pub loses_one_in: usize,
    /// One call in so many takes very long; 0: none.
    pub delays_one_in: usize,
    /// Between two faults or deeds of users, on average.
    pub every_ms: usize,
    /// Whether leaders fence what they inherit: without, laws must be seen to break.
    pub fences: bool,
    /// Whether a tenant does what it can to be in the way of others.
    pub hostile: bool,
}

impl FaultPlan {
    /// What the seed says.
    fn of(dice: &mut Dice) -> Self {
        Self {
            replicas: 1 + dice.below(3),
            calm_ms: 60_000 + dice.below(180_000) as u64,
            backoff_ms: 900_000,
            loses_one_in: [0, 200, 50, 20][dice.below(4)],
            delays_one_in: [0, 100, 30, 10][dice.below(4)],
            every_ms: [400, 1_000, 3_000, 8_000][dice.below(4)],
            fences: true,
            hostile: dice.below(2) == 0,
        }
    }
}

/// What came of a world.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What must not be, if anything.
    pub finding: Option<Finding>,
    /// How much happened.
    pub tally: Tally,
    /// The same for the same history.
    pub digest: u64,
}

/// What happens at some time.
enum Happening {
    Arrive {
        from: Caller,
        call: CallId,
        request: Request,
    },
    Message {
        to: usize,
        life: u64,
        term: Option<u64>,
        message: Message,
    },
    Pump {
        to: usize,
        term: u64,
        pods: bool,
    },
    Admit(Arc<str>, Arc<str>),
    Remove(Arc<str>),
    Disturb,
    Reconcile,
    Start(usize),
    /// A modest pod is created.
    Modest,
    /// It is bound by now.
    ModestBound,
}

pub(crate) struct World {
    dice: Dice,
    plan: FaultPlan,
    pub(crate) now_ms: u64,
    order: u64,
    calendar: BTreeMap<(u64, u64), Happening>,
    pub(crate) server: Server,
    pub(crate) replicas: Vec<Replica>,
    machines: BTreeMap<Arc<str>, Machine>,
    workloads: Vec<Workload>,
    pub(crate) checker: Checker,
    pub(crate) tally: Tally,
    calls: u64,
    numbered: u64,
    outage_until_ms: u64,
    lease: LeaseSettings,
    core: CoreSettings,
    /// Kubelets see what is bound to their node in order.
    admits_ms: BTreeMap<Arc<str>, u64>,
    leaving: BTreeSet<Arc<str>>,
    pumping: BTreeSet<(usize, u64, bool)>,
    finding: Option<String>,
}

/// Runs the world of a seed.
///
/// # Errors
/// When a builder was asked for something impossible, which is a defect of the world.
pub fn run(seed: u64, change: impl FnOnce(&mut FaultPlan)) -> Result<Outcome, BuildError> {
    let mut world = World::new(seed, change)?;
    world.play();
    let digest = world.digest();
    let at_ms = world.now_ms;
    let finding = world.finding.take().map(|what| Finding { seed, at_ms, what });
    Ok(Outcome { finding, tally: world.tally, digest })
}

impl World {
    fn new(seed: u64, change: impl FnOnce(&mut FaultPlan)) -> Result<Self, BuildError> {
        let mut dice = Dice::new(seed ^ 0xFA17);
        let mut plan = FaultPlan::of(&mut dice);
        change(&mut plan);
        let clock = |dice: &mut Dice| {
            let base_ms = dice.below(1_000_000) as u64;
            Clock::new(base_ms, 800 + dice.below(400) as u64, dice.below(7_200_000) as i64)
        };
        let replicas = (0..plan.replicas).map(|at| Replica::new(at, clock(&mut dice))).collect();
        let mut world = Self {
            workloads: workloads(&mut dice)?,
            dice,
            plan,
            now_ms: 0,
            order: 0,
            calendar: BTreeMap::new(),
            server: Server { version: 100, ..Server::default() },
            replicas,
            machines: BTreeMap::new(),
            checker: Checker::default(),
            tally: Tally::default(),
            calls: 0,
            numbered: 0,
            outage_until_ms: 0,
            lease: LeaseSettings::default(),
            core: CoreSettings::default(),
            admits_ms: BTreeMap::new(),
            leaving: BTreeSet::new(),
            pumping: BTreeSet::new(),
            finding: None,
        };
        if world.plan.hostile {
            let hostile = hostile_workloads(&mut world.dice)?;
            world.workloads.extend(hostile);
        }
        let spec = Arc::new(modest()?);
        world.workloads.push(Workload { spec, wanted: 0, varied: false, hostile: false });
        world.at(world.plan.calm_ms + MODEST_AFTER_MS, Happening::Modest);
        for index in 0..2 + world.dice.below(4) {
            world.add_node(index)?;
        }
        for at in 0..world.workloads.len() {
            if world.dice.below(3) == 0 {
                world.add_budget(at);
            }
        }
        for at in 0..world.replicas.len() {
            let after_ms = world.dice.below(2_000) as u64;
            world.at(after_ms, Happening::Start(at));
        }
        world.at(0, Happening::Reconcile);
        world.at(1_000, Happening::Disturb);
        Ok(world)
    }

    fn add_node(&mut self, index: usize) -> Result<(), BuildError> {
        let machine = machine(&mut self.dice, index)?;
        let name = machine.node.name.clone();
        self.server.put_node(machine.node.clone(), machine.told.clone(), false);
        self.machines.insert(name, machine);
        Ok(())
    }

    fn add_budget(&mut self, workload: usize) {
        let spec = &self.workloads[workload].spec;
        let budget = DisruptionBudget {
            namespace: spec.namespace.clone(),
            name: format!("budget-{workload}").into(),
            selector: Some(Selector::of_labels(&spec.labels)),
            disruptions_allowed: self.dice.below(2) as i32,
            disrupted_pods: BTreeSet::new(),
        };
        self.server.put_budget(budget);
    }

    fn at(&mut self, after_ms: u64, happening: Happening) {
        self.order += 1;
        self.calendar.insert((self.now_ms + after_ms, self.order), happening);
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (version, change) in &self.server.history {
            let line = match change {
                Change::Pod(seen) => format!("{seen:?}"),
                Change::PodGone(pod) => format!("{pod:?}"),
                Change::Other(Shown::Node(node, ..)) => format!("{node:?}"),
                Change::Other(Shown::NodeGone(name)) => format!("{name:?}"),
                Change::Other(Shown::Budget(budget)) => format!("{budget:?}"),
            };
            (version, line).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Whether faults are over.
    fn is_calm(&self) -> bool {
        self.now_ms >= self.plan.calm_ms
    }

    fn one_in(&mut self, count: usize) -> bool {
        count > 0 && !self.is_calm() && self.dice.below(count) == 0
    }

    fn play(&mut self) {
        let end_ms = self.plan.calm_ms + self.plan.backoff_ms;
        let mut checks_ms = end_ms;
        let mut suspects: Option<BTreeSet<String>> = None;
        while let Some(((at_ms, _), happening)) = self.calendar.pop_first() {
            if at_ms > checks_ms {
                self.now_ms = checks_ms;
                let found = self.unrest();
                // What is so for a moment only is no fault: what is found every time is.
                let lasting = match suspects.take() {
                    Some(before) => before.intersection(&found).cloned().collect(),
                    None => found,
                };
                if lasting.is_empty() {
                    return;
                }
                if checks_ms >= end_ms + CHECKS_MORE * CHECK_MS {
                    self.finding = Some(format!("at rest: {lasting:?}"));
                }
                suspects = Some(lasting);
                checks_ms += CHECK_MS;
            }
            if self.finding.is_some() {
                return;
            }
            self.now_ms = at_ms;
            self.happen(happening);
            self.note_facts();
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrive { from, call, request } => self.arrive(from, call, request),
            Happening::Message { to, life, term, message } => {
                self.deliver(to, (life, term), message);
            }
            Happening::Pump { to, term, pods } => self.pump(to, term, pods),
            Happening::Admit(node, uid) => self.admit(&node, &uid),
            Happening::Remove(uid) => self.remove(&uid),
            Happening::Disturb => self.disturb(),
            Happening::Reconcile => self.reconcile(),
            Happening::Modest => self.create_modest(),
            Happening::ModestBound => {
                if let Some(uid) = self.modest_pending() {
                    let what = format!("{uid} has room, and is pending after {MODEST_MAX_MS} ms");
                    self.finding.get_or_insert(what);
                }
            }
            Happening::Start(at) => {
                if !self.replicas[at].alive || self.replicas[at].wakes_at_ms == u64::MAX {
                    self.replicas[at].start(at);
                    self.wake(at, 0);
                }
            }
        }
    }

    /// Tells the checker what the server did, and lets the cluster follow it.
    fn note_facts(&mut self) {
        if self.server.facts.is_empty() {
            return;
        }
        for fact in std::mem::take(&mut self.server.facts) {
            match &fact {
                Fact::Bound { by, uid, node } => {
                    self.tally.bound += u64::from(by.is_some());
                    let delay_ms = self.delay_ms(2_000);
                    let last = self.admits_ms.entry(node.clone()).or_insert(0);
                    *last = (*last).max(self.now_ms + delay_ms) + 1;
                    let after_ms = *last - self.now_ms;
                    self.at(after_ms, Happening::Admit(node.clone(), uid.clone()));
                }
                Fact::Pod(stored) => {
                    let object = &stored.seen.object;
                    // What has ended holds nothing, though it is still shown.
                    if let (Phase::Finished, Some(node)) = (&object.phase, &object.node)
                        && let Some(machine) = self.machines.get_mut(node)
                    {
                        machine.kubelet.remove(&object.uid);
                    }
                    let ends = matches!(object.phase, Phase::Terminating { .. } | Phase::Finished);
                    if ends && self.leaving.insert(object.uid.clone()) {
                        self.tally.evictions +=
                            u64::from(object.phase == (Phase::Terminating { by_preemption: true }));
                        let after_ms = self.dice.below(30_000) as u64;
                        self.at(after_ms, Happening::Remove(object.uid.clone()));
                    }
                }
                _ => {}
            }
            if let Some(what) = self.checker.note(fact, self.now_ms) {
                self.finding.get_or_insert(what);
            }
        }
        for at in 0..self.replicas.len() {
            for pods in [true, false] {
                self.pump_soon(at, pods);
            }
        }
    }

    fn pump_soon(&mut self, to: usize, pods: bool) {
        let replica = &self.replicas[to];
        let watch = replica.watches[usize::from(!pods)];
        let behind = watch.next.is_some_and(|next| next < self.server.history.len());
        let term = replica.term;
        if behind && self.pumping.insert((to, term, pods)) {
            let delay_ms = self.delay_ms(100);
            self.at(delay_ms, Happening::Pump { to, term, pods });
        }
    }

    /// A delay in the network: short, but now and then long.
    fn delay_ms(&mut self, usual_ms: usize) -> u64 {
        let slow = self.one_in(self.plan.delays_one_in);
        let most_ms =
            if slow { [1_500, 8_000, 40_000, 90_000][self.dice.below(4)] } else { usual_ms };
        1 + self.dice.below(most_ms) as u64
    }

    /// A watch tells what has happened, sometimes once more, sometimes not any more.
    fn pump(&mut self, to: usize, term: u64, pods: bool) {
        self.pumping.remove(&(to, term, pods));
        let which = usize::from(!pods);
        if self.replicas[to].term != term {
            return;
        }
        let mut watch = self.replicas[to].watches[which];
        let Some(mut next) = watch.next else { return };
        let number = watch.number;
        if self.one_in(60) {
            watch.next = None;
            self.tally.faults += 1;
            self.replicas[to].watches[which] = watch;
            return self.send(to, Some(term), 0, Message::WatchLost { pods, watch: number });
        }
        if self.one_in(20) {
            next = next.saturating_sub(1 + self.dice.below(6));
        }
        let of_kind = |(_, change): &&(u64, Change)| pods != matches!(change, Change::Other(_));
        let lines = self.server.history[next..].iter().filter(of_kind);
        let changes: Vec<Change> = lines.map(|(_, change)| change.clone()).collect();
        watch.next = Some(self.server.history.len());
        let delay_ms = self.delay_ms(30);
        watch.arrives_ms = watch.arrives_ms.max(self.now_ms + delay_ms);
        let after_ms = watch.arrives_ms - self.now_ms;
        self.replicas[to].watches[which] = watch;
        if !changes.is_empty() {
            self.send(
                to,
                Some(term),
                after_ms,
                Message::StatusUpdate { pods, watch: number, changes },
            );
        }
    }

    fn send(&mut self, to: usize, term: Option<u64>, after_ms: u64, message: Message) {
        let life = self.replicas[to].life;
        self.at(after_ms, Happening::Message { to, life, term, message });
    }

    fn caller(&self, at: usize) -> Caller {
        let replica = &self.replicas[at];
        Caller { replica: at, life: replica.life, term: replica.term }
    }

    /// Sends a call into the network.
    fn call(&mut self, at: usize, request: Request, limit_ms: u64) -> CallId {
        self.calls += 1;
        self.tally.calls += 1;
        let (call, from) = (self.calls, self.caller(at));
        let limit_ms = self.replicas[at].clock.true_delay(limit_ms);
        self.send(at, None, limit_ms, Message::Answer(call, None));
        if !self.one_in(self.plan.loses_one_in) {
            let delay_ms = self.delay_ms(20);
            self.at(delay_ms, Happening::Arrive { from, call, request });
        }
        call
    }

    fn arrive(&mut self, from: Caller, call: CallId, request: Request) {
        if self.caller(from.replica) != from {
            self.tally.late += 1;
        }
        let is_binding = matches!(request, Request::Bind { .. });
        let is_out = self.now_ms < self.outage_until_ms && !self.is_calm();
        // In an outage a call may be done although the answer says that it failed.
        let (done, code) = if is_out {
            [(false, None), (false, Some(503)), (true, None), (true, Some(500)), (false, Some(429))]
                [self.dice.below(5)]
        } else {
            (true, None)
        };
        // Devices and volumes may take their time.
        let is_unready = is_binding && self.one_in(UNREADY_ONE_IN);
        let answer = done.then(|| {
            if is_unready { Answer::Failed(UNREADY) } else { self.server.handle(request, from) }
        });
        if is_binding && matches!(answer, Some(Answer::Failed(_))) {
            self.tally.refused_bindings += 1;
        }
        let answer = match code {
            Some(code) => Answer::Failed(code),
            None if is_out => return,
            None => match answer {
                Some(answer) => answer,
                None => return,
            },
        };
        if self.one_in(self.plan.loses_one_in) {
            return;
        }
        let delay_ms = self.delay_ms(20);
        let message = Message::Answer(call, Some(answer));
        let Caller { replica: to, life, .. } = from;
        self.at(delay_ms, Happening::Message { to, life, term: None, message });
    }

    fn deliver(&mut self, to: usize, (life, term): (u64, Option<u64>), message: Message) {
        let replica = &self.replicas[to];
        if !replica.alive || replica.life != life || term.is_some_and(|term| term != replica.term) {
            return;
        }
        if self.now_ms < replica.paused_until_ms {
            let left_ms = replica.paused_until_ms - self.now_ms;
            let is_watch = matches!(message, Message::StatusUpdate { .. });
            let jitter_ms = if is_watch { 10 } else { self.dice.below(20) as u64 };
            return self.at(left_ms + jitter_ms, Happening::Message { to, life, term, message });
        }
        match message {
            Message::Wake => {
                // Superseded by a later one. One that a pause kept back comes after its time, and counts.
                if self.replicas[to].wakes_at_ms > self.now_ms {
                    return;
                }
            }
            Message::Answer(call, answer) => self.answered(to, call, answer),
            Message::Later(later) => self.do_later(to, later),
            Message::StatusUpdate { pods, watch, changes } => {
                if self.replicas[to].watches[usize::from(!pods)].number == watch {
                    self.tell(to, changes);
                }
            }
            Message::WatchLost { pods, watch } => {
                if self.replicas[to].watches[usize::from(!pods)].number == watch {
                    let deed = if pods {
                        Deed::Call(Purpose::ListPods, Request::ListPods)
                    } else {
                        Deed::Call(Purpose::ListOthers, Request::ListOthers)
                    };
                    self.carry_out(to, vec![deed]);
                }
            }
            Message::TermOver => self.end_term(to),
            Message::Stop => {
                let own_ms = self.own_ms(to);
                self.replicas[to].is_stopping = true;
                match &mut self.replicas[to].leading {
                    Some(term) => term.drain(own_ms),
                    None => self.kill(to, 5_000),
                }
            }
        }
        self.step(to);
    }

    fn own_ms(&self, at: usize) -> u64 {
        self.replicas[at].clock.at(self.now_ms)
    }

    fn tell(&mut self, to: usize, changes: Vec<Change>) {
        let (own_ms, by) = (self.own_ms(to), self.caller(to));
        for change in changes {
            if let Change::Pod(seen) = &change
                && seen.rejected.is_some()
            {
                self.checker.told_of_refusal(by, &seen.object, self.now_ms);
            }
            if let Change::Other(Shown::Node(node, ..)) = &change {
                self.checker.told_of_node(by, &node.name);
            }
            if let Change::PodGone(pod) = &change {
                self.checker.told_of_departure(by, &pod.uid);
            }
            if let Some(term) = &mut self.replicas[to].leading {
                term.see(change, own_ms);
            }
        }
    }

    fn answered(&mut self, to: usize, call: CallId, answer: Option<Answer>) {
        let own_ms = self.own_ms(to);
        let by = self.caller(to);
        let leading = self.replicas[to].leading.as_ref();
        let purpose = leading.and_then(|term| term.calls.get(&call));
        let shown = match (purpose, &answer) {
            (Some(_), Some(Answer::Pods(pods, _))) => &pods[..],
            (Some(Purpose::Look(_)), Some(Answer::Pod(pod))) => std::slice::from_ref(&**pod),
            _ => &[],
        };
        for pod in shown.iter().filter(|pod| pod.rejected.is_some()) {
            self.checker.told_of_refusal(by, &pod.object, self.now_ms);
        }
        let replica = &mut self.replicas[to];
        let wall = replica.clock.wall(self.now_ms);
        if replica.follower.awaits(call) {
            let me = replica.me.clone();
            let next = replica.follower.answered(answer, &me, (own_ms, wall), &self.lease);
            return self.follow(to, next);
        }
        let Some(term) = &mut replica.leading else { return };
        if term.writer.awaits(call) {
            let deed = term.writer.answered(answer, own_ms, wall);
            return self.written(to, deed);
        }
        let deeds = term.answered(call, answer, own_ms);
        self.carry_out(to, deeds);
    }

    fn follow(&mut self, to: usize, next: Next) {
        match next {
            Next::Call(request) => {
                let call = self.call(to, request, self.lease.request_ms);
                self.replicas[to].follower.began(call);
            }
            Next::Rest(ms) => {
                let after_ms = self.replicas[to].clock.true_delay(ms);
                self.wake(to, after_ms);
            }
            Next::Lead(tenure, inherited) => {
                self.tally.terms += 1;
                let own_ms = self.own_ms(to);
                let day_ms = self.replicas[to].clock.day_ms(self.now_ms);
                let inherited = if self.plan.fences { inherited } else { BTreeSet::new() };
                let core = self.core.clone();
                let mut term = Term::new(*tenure, inherited, core, (day_ms, own_ms));
                let deeds = term.begin();
                self.replicas[to].leading = Some(Box::new(term));
                self.carry_out(to, deeds);
            }
        }
    }

    fn written(&mut self, to: usize, deed: Written) {
        match deed {
            Written::Nothing => {}
            Written::Call(request) => {
                let call = self.call(to, request, self.lease.request_ms);
                if let Some(term) = &mut self.replicas[to].leading {
                    term.writer.began(call);
                }
            }
            Written::Announced(count) => {
                let own_ms = self.own_ms(to);
                if let Some(term) = &mut self.replicas[to].leading {
                    term.announced(count, own_ms);
                }
            }
            Written::Lost => {
                // The rest of the process notices a little later.
                let (after_ms, term) = (self.dice.below(60) as u64, self.replicas[to].term);
                self.send(to, Some(term), after_ms, Message::TermOver);
            }
        }
    }

    fn end_term(&mut self, at: usize) {
        self.replicas[at].end_term();
        if self.replicas[at].is_stopping {
            return self.kill(at, 5_000);
        }
        self.wake(at, 1);
    }

    fn do_later(&mut self, to: usize, later: Later) {
        match later {
            Later::Call(purpose, request) => self.carry_out(to, vec![Deed::Call(purpose, request)]),
            Later::Announce(pods) => {
                let deed = self.replicas[to].leading.as_mut().and_then(|term| term.announce(pods));
                self.carry_out(to, deed.into_iter().collect());
            }
        }
    }

    fn carry_out(&mut self, at: usize, deeds: Vec<Deed>) {
        let by = self.caller(at);
        for deed in deeds {
            match deed {
                Deed::Call(purpose, request) => {
                    let call = self.call(at, request, purpose.limit_ms());
                    if let Some(term) = &mut self.replicas[at].leading {
                        term.calls.insert(call, purpose);
                    }
                }
                Deed::After(own_ms, later) => {
                    let after_ms = self.replicas[at].clock.true_delay(own_ms);
                    self.send(at, Some(by.term), after_ms, Message::Later(later));
                }
                Deed::Follow { pods, from } => {
                    let next = self.server.history.partition_point(|(version, _)| *version <= from);
                    let watch = &mut self.replicas[at].watches[usize::from(!pods)];
                    watch.number += 1;
                    (watch.next, watch.arrives_ms) = (Some(next), self.now_ms);
                    self.pump_soon(at, pods);
                }
                Deed::Begins => self.checker.begins(by),
                Deed::Drained => {
                    if let Some(term) = &mut self.replicas[at].leading {
                        term.writer.release();
                    }
                }
            }
        }
    }

    /// Lets a process do what is due, and go to sleep.
    fn step(&mut self, at: usize) {
        let own_ms = self.own_ms(at);
        let wall = self.replicas[at].clock.wall(self.now_ms);
        if !self.replicas[at].alive {
            return;
        }
        let Some(term) = &mut self.replicas[at].leading else {
            if !self.replicas[at].follower.is_busy() && self.replicas[at].wakes_at_ms <= self.now_ms
            {
                self.follow(at, Next::Call(Request::ReadLease));
            }
            return;
        };
        let deeds = term.turn(own_ms);
        self.note_announcements(at);
        self.carry_out(at, deeds);
        if let Some(term) = &mut self.replicas[at].leading
            && term.writer.due_ms().is_some_and(|due| due <= own_ms)
        {
            let deed = term.writer.wake(own_ms, wall);
            self.written(at, deed);
        }
        if let Some(term) = &self.replicas[at].leading {
            let due_ms = term.writer.due_ms().unwrap_or(u64::MAX).max(own_ms + 1);
            let next_ms = term.next_ms(own_ms).min(due_ms);
            let after_ms = self.replicas[at].clock.true_delay(next_ms - own_ms);
            self.wake(at, after_ms.max(1));
        }
    }

    fn note_announcements(&mut self, at: usize) {
        let by = self.caller(at);
        let now_ms = self.now_ms;
        if let Some(term) = &self.replicas[at].leading {
            let listed = term.writer.listed.iter().map(|pod| pod.uid.clone()).collect();
            self.checker.announces(by, &listed, now_ms);
        }
    }

    fn wake(&mut self, at: usize, after_ms: u64) {
        self.replicas[at].wakes_at_ms = self.now_ms + after_ms;
        self.send(at, None, after_ms, Message::Wake);
    }

    fn kill(&mut self, at: usize, down_ms: usize) {
        self.replicas[at].kill();
        let after_ms = 100 + self.dice.below(down_ms) as u64;
        self.at(after_ms, Happening::Start(at));
    }
}

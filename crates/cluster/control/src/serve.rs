//! The scheduler at work: leads, watches, decides, acts.
//!
//! Owns the task that owns the core; everybody else talks to it by message. A term begins when the Lease
//! is ours: what the previous leader may have under way is fenced, then everything is listed anew, by
//! reads that see all that was written before, and only then anything is decided. So a new leader knows of every
//! binding that can ever land. Must not know how decisions are made.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::sync::{mpsc, oneshot, watch as signal};
use tracing::{info, warn};

use crate::act::fence::{self, Unfenced};
use crate::act::{Actor, Back};
use crate::core::{Core, Effect, Settings, UNFENCED_LISTED_MAX, Update};
use crate::http::{Health, Question, View, ViewError};
use crate::lease::{self, Elector, Inherited, Leadership, PodRef};
use crate::metrics::Metrics;
use crate::node_topologies::NodeTopologies;
use crate::object_statuses::ObjectStatuses;
use crate::placement;
use crate::view;
use crate::watch::{SchedulerNames, Seen, follow_all};

/// So much may be seen and not looked at yet.
const SEEN_MAX: usize = 8_192;

/// How much of it is taken in before the next turn.
const SEEN_AT_ONCE: usize = 1_024;

/// So many pods are fenced at a time.
const FENCING_MAX: usize = 32;

/// What is waited for at the end, so that nothing is left under way.
const DRAIN: Duration = Duration::from_secs(10);

/// Readiness waits for this: a leader that cannot schedule yet is not ready.
const FENCING: &str = "fencing of in-flight bindings of previous leaders";

/// Unfenced pods that readiness names.
const UNFENCED_NAMED_MAX: usize = 3;

/// The shortest sleep between two turns.
const MOMENT: Duration = Duration::from_millis(1);

/// The task shows that it lives this often, whatever happens.
const BEAT: Duration = Duration::from_secs(1);

/// How the scheduler runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which pods are ours.
    pub scheduler_names: SchedulerNames,
    /// Who we are: a name that no other process has or had ([`lease::incarnation`]).
    pub identity: Arc<str>,
    /// The Lease.
    pub lease: lease::Settings,
    /// How the core goes about it.
    pub core: Settings,
}

/// A question to the engine.
pub struct Asked {
    question: Question,
    /// The pod that is to be explained.
    pod: Option<Box<Pod>>,
    answer: oneshot::Sender<Result<serde_json::Value, ViewError>>,
}

/// Asks the engine's task.
#[derive(Clone)]
pub struct Asking {
    questions: mpsc::Sender<Asked>,
    client: Client,
}

impl Asking {
    /// The client reads the objects of pods that are to be explained.
    pub fn new(questions: mpsc::Sender<Asked>, client: Client) -> Self {
        Self { questions, client }
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Box<Pod>, ViewError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match pods.get_opt(name).await {
            Ok(Some(pod)) => Ok(Box::new(pod)),
            Ok(None) => Err(ViewError::NotFound(format!(
                "pod {name:?} not found in namespace {namespace:?}"
            ))),
            Err(error) => {
                Err(ViewError::NotReady(format!("cannot read pod {namespace}/{name}: {error}")))
            }
        }
    }
}

impl View for Asking {
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<serde_json::Value, ViewError>> {
        let stopping = || ViewError::NotReady("the scheduler is stopping".to_owned());
        Box::pin(async move {
            let pod = match &question {
                Question::Explanation { namespace, name, .. } => {
                    Some(self.pod(namespace, name).await?)
                }
                _ => None,
            };
            let (answer, answered) = oneshot::channel();
            let asked = Asked { question, pod, answer };
            self.questions.send(asked).await.map_err(|_| stopping())?;
            answered.await.map_err(|_| stopping())?
        })
    }
}

/// The scheduler.
pub struct Scheduler {
    client: Client,
    options: Options,
    metrics: Metrics,
    health: Health,
    questions: mpsc::Receiver<Asked>,
    shutdown: signal::Receiver<bool>,
}

/// How a term ended.
enum End {
    Lost,
    Shutdown,
}

impl Scheduler {
    /// A scheduler that does nothing before [`run`](Self::run).
    pub fn new(
        client: Client,
        options: Options,
        (metrics, health): (Metrics, Health),
        questions: mpsc::Receiver<Asked>,
        shutdown: signal::Receiver<bool>,
    ) -> Self {
        Self { client, options, metrics, health, questions, shutdown }
    }

    /// Leads whenever it can, until it is to stop.
    ///
    /// # Errors
    /// When the settings of the Lease contradict each other.
    pub async fn run(mut self) -> Result<(), lease::SettingsError> {
        let elector = Elector::new(
            self.client.clone(),
            self.options.lease.clone(),
            self.options.identity.clone(),
        )?;
        loop {
            let Some(leadership) = self.wait_for_lead(&elector).await else { return Ok(()) };
            self.metrics.leads(true);
            let leadership = Arc::new(leadership);
            let end = self.term(&leadership).await;
            self.metrics.leads(false);
            if matches!(end, End::Shutdown) {
                leadership.release().await;
                return Ok(());
            }
        }
    }

    /// Waits for the Lease; `None` at shutdown. A replica that cannot take part in the election is not ready,
    /// because nobody may be scheduling.
    async fn wait_for_lead(&mut self, elector: &Elector) -> Option<Leadership> {
        let mut problems = elector.problems();
        let mut acquiring = Box::pin(elector.acquire());
        let mut beat = tokio::time::interval(BEAT);
        loop {
            tokio::select! {
                leadership = &mut acquiring => {
                    self.health.set_failure(None);
                    return Some(leadership);
                }
                Ok(()) = problems.changed() => {
                    let problem = problems.borrow_and_update().clone();
                    if let Some(error) = &problem {
                        self.metrics.lease_failed(error.reason());
                    }
                    self.health.set_failure(
                        problem.map(|error| format!("leader election failed: {error}")),
                    );
                }
                () = stopped(&mut self.shutdown) => return None,
                _ = beat.tick() => self.health.beat(),
                Some(asked) = self.questions.recv() => {
                    drop(asked.answer.send(Err(ViewError::NotReady(follows(elector)))));
                }
            }
        }
    }

    async fn term(&mut self, leadership: &Arc<Leadership>) -> End {
        let began = Instant::now();
        let mut shutdown = self.shutdown.clone();
        let mut fencing =
            Box::pin(fence_all(&self.client, leadership, &self.options, &self.metrics));
        let mut beat = tokio::time::interval(BEAT);
        self.health.await_part(FENCING);
        let end = loop {
            tokio::select! {
                unfenced = &mut fencing => break Ok(unfenced),
                _ = leadership.lost() => break Err(End::Lost),
                () = stopped(&mut shutdown) => break Err(End::Shutdown),
                _ = beat.tick() => self.health.beat(),
            }
        };
        drop(fencing);
        self.health.has_part(FENCING);
        let unfenced = match end {
            Ok(unfenced) => unfenced,
            Err(end) => return end,
        };
        info!(
            unfenced = unfenced.len(),
            after_ms = began.elapsed().as_millis(),
            "finished fencing in-flight bindings of previous leaders"
        );
        let (sink, seen) = mpsc::channel(SEEN_MAX);
        let names = self.options.scheduler_names.clone();
        let (watches, kinds) = follow_all(&self.client, &sink, &self.metrics);
        drop(sink);
        let (back, backs) = mpsc::unbounded_channel();
        let identity = self.options.identity.clone();
        let actor = Actor::new(
            self.client.clone(),
            leadership.clone(),
            (names.clone(), identity),
            self.metrics.clone(),
            back,
        );
        let actor = Arc::new(actor);
        let mut term = Term {
            names,
            core: Core::new(self.options.core.clone()),
            node_topologies: NodeTopologies::new(self.metrics.clone()),
            object_statuses: ObjectStatuses::default(),
            actor,
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            unlisted: kinds.into_iter().collect(),
            clock: Clock::start(),
            began,
            draining: false,
            explain_from: began,
        };
        let now_ms = term.clock.now_ms();
        for (pod, why) in unfenced {
            term.core.isolate(pod, &why.to_string(), now_ms);
        }
        let end =
            term.run(seen, backs, (&mut self.questions, &mut self.shutdown), leadership).await;
        drop(watches);
        self.health.set_notice(None);
        self.metrics.unfenced(0);
        end
    }
}

/// The answer of a replica that does not lead.
fn follows(elector: &Elector) -> String {
    match elector.holder() {
        Some(holder) => format!("this replica does not lead; ask {holder}, which does"),
        None => "nobody leads at the moment; try again in a few seconds".to_owned(),
    }
}

/// Makes sure that what earlier leaders announced has landed or never will. Gives the pods for which that
/// could not be done, and why.
async fn fence_all(
    client: &Client,
    leadership: &Leadership,
    options: &Options,
    metrics: &Metrics,
) -> Vec<(PodRef, Unfenced)> {
    let pods = match &leadership.inherited {
        Inherited::Pods(pods) => pods.clone(),
        // Nobody has led yet, or the Lease was deleted under a leader that may still be running.
        Inherited::NoLease => fence::pending(client, &options.scheduler_names).await,
        Inherited::Unreadable(problem) => {
            warn!(
                problem,
                "in-flight bindings in the Lease are unreadable; fencing every pending pod"
            );
            fence::pending(client, &options.scheduler_names).await
        }
    };
    let attempts = futures::stream::iter(pods).map(async |pod| {
        let fenced = fence::fence(client, &pod, &options.identity).await;
        if let Err(error) = &fenced {
            warn!(namespace = %pod.namespace, pod = %pod.name, %error, "fencing failed; the pod is not scheduled until it succeeds");
        } else {
            metrics.fenced();
        }
        (pod, fenced)
    });
    let (mut settled, mut unfenced) = (Vec::new(), Vec::new());
    let mut attempts = attempts.buffer_unordered(FENCING_MAX);
    while let Some((pod, fenced)) = attempts.next().await {
        match fenced {
            Ok(()) => settled.push(pod),
            Err(error) => unfenced.push((pod, error)),
        }
    }
    unfenced.sort_by(|(one, _), (other, _)| one.cmp(other));
    let (listed, unlisted) = unfenced.split_at(unfenced.len().min(UNFENCED_LISTED_MAX));
    if !unlisted.is_empty() {
        let count = unlisted.len();
        warn!(count, "too many unfenced pods for the Lease; the next leader will not fence these");
    }
    settled.extend(unlisted.iter().map(|(pod, _)| pod.clone()));
    leadership.settle(settled);
    let listed: Vec<PodRef> = listed.iter().map(|(pod, _)| pod.clone()).collect();
    if !listed.is_empty()
        && let Err(error) = leadership.announce(listed).await
    {
        warn!(%error, "could not record unfenced pods in the Lease");
    }
    unfenced
}

async fn stopped(shutdown: &mut signal::Receiver<bool>) {
    if shutdown.wait_for(|stop| *stop).await.is_err() {
        // The sender is gone: nobody can request shutdown any more.
        std::future::pending::<()>().await;
    }
}

/// The wall clock at the start of the term plus monotonic time, so that it never jumps.
struct Clock {
    started: Instant,
    started_ms: i64,
}

impl Clock {
    fn start() -> Self {
        Self { started: Instant::now(), started_ms: jiff::Timestamp::now().as_millisecond() }
    }

    fn now_ms(&self) -> i64 {
        let passed = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.started_ms.saturating_add(passed)
    }
}

/// What a term does next if nothing happens.
#[derive(Clone, Copy, Debug)]
struct Next {
    /// When it is time for a turn; none: at once.
    turn_in: Duration,
    /// Whether pods are explained at once.
    explain_now: bool,
}

impl Next {
    async fn due(self) {
        if !self.explain_now {
            return tokio::time::sleep(self.turn_in.max(MOMENT)).await;
        }
        // Sockets are read after the first time, and whoever that woke has run after the second: what
        // has arrived is known before an explanation begins.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
}

/// One time of leading.
struct Term {
    /// Which pods are ours.
    names: SchedulerNames,
    core: Core,
    node_topologies: NodeTopologies,
    object_statuses: ObjectStatuses,
    actor: Arc<Actor>,
    metrics: Metrics,
    health: Health,
    /// Kinds that have not been listed yet.
    unlisted: HashSet<&'static str>,
    clock: Clock,
    began: Instant,
    draining: bool,
    /// Pods are not explained before.
    explain_from: Instant,
}

impl Term {
    async fn run(
        &mut self,
        mut seen: mpsc::Receiver<Seen>,
        mut backs: mpsc::UnboundedReceiver<Back>,
        (questions, shutdown): (&mut mpsc::Receiver<Asked>, &mut signal::Receiver<bool>),
        leadership: &Leadership,
    ) -> End {
        let mut batch = Vec::new();
        let mut drained_at: Option<tokio::time::Instant> = None;
        let mut lost = Box::pin(leadership.lost());
        loop {
            self.health.beat();
            let next = self.next();
            let mut is_quiet = false;
            tokio::select! {
                biased;
                why = &mut lost => {
                    info!(%why, "no longer the leader");
                    return End::Lost;
                }
                Some(back) = backs.recv() => {
                    if self.take_back(back) {
                        return End::Lost;
                    }
                }
                read = seen.recv_many(&mut batch, SEEN_AT_ONCE) => {
                    if read == 0 {
                        return End::Lost;
                    }
                    batch.drain(..).for_each(|seen| self.see(seen));
                }
                Some(Asked { question, pod, answer }) = questions.recv() => {
                    let now_ms = self.clock.now_ms();
                    let (core, node_topologies) = (&mut self.core, &self.node_topologies);
                    let pod = pod.as_deref();
                    drop(answer.send(view::answer(core, node_topologies, &self.names, &question, pod, now_ms)));
                }
                () = stopped(shutdown), if !self.draining => {
                    self.draining = true;
                    drained_at = Some(tokio::time::Instant::now() + DRAIN);
                }
                () = next.due() => is_quiet = true,
            }
            // A turn knows what is known: neither answers nor news hold up the other.
            while let Ok(back) = backs.try_recv() {
                if self.take_back(back) {
                    return End::Lost;
                }
            }
            for _ in 0..SEEN_AT_ONCE {
                let Ok(seen) = seen.try_recv() else { break };
                self.see(seen);
            }
            if self.draining {
                let over = drained_at.is_some_and(|at| tokio::time::Instant::now() >= at);
                if self.core.unsettled() == 0 || over {
                    return End::Shutdown;
                }
            }
            let explain_now = is_quiet && next.explain_now;
            if explain_now {
                self.explain();
            }
            if !explain_now || next.turn_in.is_zero() {
                self.turn();
            }
        }
    }

    /// What to do if nothing happens.
    fn next(&self) -> Next {
        if !self.unlisted.is_empty() {
            return Next { turn_in: BEAT, explain_now: false };
        }
        let now_ms = self.clock.now_ms();
        let next_ms = self.core.next_turn_ms(now_ms).map_or(i64::MAX, |next| next - now_ms);
        let turn_in = Duration::from_millis(u64::try_from(next_ms).unwrap_or(0)).min(BEAT);
        if self.draining || !self.core.can_explain(now_ms) {
            return Next { turn_in, explain_now: false };
        }
        let rest = self.explain_from.saturating_duration_since(Instant::now());
        Next { turn_in: turn_in.min(rest.max(MOMENT)), explain_now: rest.is_zero() }
    }

    fn see(&mut self, seen: Seen) {
        let now_ms = self.clock.now_ms();
        let kind = match &seen {
            Seen::Exported(_) | Seen::ExportedGone(_) => "NodeResourceTopology",
            Seen::Pool(_) | Seen::PoolGone(_) => "Pool",
            Seen::Pod(_) => "Pod",
            _ => "Node",
        };
        let news = match seen {
            Seen::Update(news) => Ok(vec![news]),
            Seen::Pod(pod) => {
                let seen = pod.read(|uid| self.core.pod(uid), &self.names);
                seen.map(|seen| vec![Update::Pod(Box::new(seen))])
            }
            Seen::Node(node) => self.node_topologies.node(*node),
            Seen::NodeGone(name) => Ok(self.node_topologies.node_gone(&name)),
            Seen::Exported(exported) => {
                let core = &self.core;
                self.node_topologies.exported(*exported, |node| core.residents(node))
            }
            Seen::ExportedGone(name) => self.node_topologies.exported_gone(&name),
            Seen::Pool(pool) => self.node_topologies.pool(&pool),
            Seen::PoolGone(name) => self.node_topologies.pool_gone(name),
            Seen::Listed(kind) => {
                if self.unlisted.remove(kind) && self.unlisted.is_empty() {
                    info!(after_ms = self.began.elapsed().as_millis(), "everything is listed");
                }
                Ok(Vec::new())
            }
        };
        match news {
            Ok(news) => news.into_iter().for_each(|news| self.core.apply(news, now_ms)),
            Err(problem) => {
                self.metrics.skipped(kind);
                warn!(problem, "an object is skipped");
            }
        }
    }

    /// Whether the term is over.
    fn take_back(&mut self, back: Back) -> bool {
        let now_ms = self.clock.now_ms();
        match back {
            Back::Done(done) => self.core.settle(done, now_ms),
            Back::Update(news) => self.core.apply(news, now_ms),
            Back::Unwritten(plural, name) => self.object_statuses.failed(plural, &name),
            Back::Lost => return true,
        }
        false
    }

    /// Explains a few pods, and leaves as much time again to everything else.
    fn explain(&mut self) {
        let started = Instant::now();
        for effect in self.core.explain_some(self.clock.now_ms()) {
            self.actor.carry_out(effect, None);
        }
        let took = started.elapsed();
        self.metrics.engine_worked("explain", took);
        self.explain_from = started + 2 * took;
    }

    fn turn(&mut self) {
        if !self.unlisted.is_empty() {
            return;
        }
        let started = Instant::now();
        let now_ms = self.clock.now_ms();
        let effects = if self.draining { self.core.drain(now_ms) } else { self.core.turn(now_ms) };
        self.metrics.engine_worked("turn", started.elapsed());
        for effect in effects {
            let annotation = match &effect {
                Effect::Bind(order) => {
                    let placed = placement::describe(self.core.engine(), &order.binding);
                    Some(Arc::from(placed.text()))
                }
                _ => None,
            };
            self.actor.carry_out(effect, annotation);
        }
        for standing in self.object_statuses.due(self.core.engine(), now_ms) {
            self.actor.show(standing);
        }
        self.count();
    }

    fn count(&mut self) {
        let tally = self.core.take_tally();
        let verdicts = [
            ("bind", tally.binds),
            ("preempt", tally.preemptions),
            ("wait", tally.waits),
            ("hold", tally.holds),
        ];
        for (verdict, count) in verdicts {
            (0..count).for_each(|_| self.metrics.decided(verdict));
        }
        for wait_ms in tally.bound_after_ms {
            self.metrics.scheduled(Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0)));
        }
        for (reason, predicted) in tally.rejections {
            self.metrics.rejected(&reason, predicted);
        }
        let (all, parked) = self.core.engine().queued();
        let held = self.core.engine().held();
        self.metrics.queue("active", all.saturating_sub(parked));
        self.metrics.queue("parked", parked.saturating_sub(held));
        self.metrics.queue("held", held);
        self.metrics.queue("binding", self.core.unsettled());
        self.metrics.unfenced(self.core.unfenced().len());
        self.health.set_notice(unfenced_notice(&self.core));
    }
}

/// What readiness says of pods that could not be fenced.
fn unfenced_notice(core: &Core) -> Option<String> {
    let pods = core.unfenced();
    let count = pods.len();
    let named: Vec<String> = pods
        .take(UNFENCED_NAMED_MAX)
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    let more = match count.saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (count > 0).then(|| {
        let named = named.join(", ");
        format!("{count} pods excluded from scheduling, fencing failed: {named}{more} (see Events)")
    })
}

#[cfg(test)]
mod tests;

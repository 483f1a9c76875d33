//! Requests for the Lease, and the one task that writes it during a term. The rules of the election are in
//! `decide`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::decide::{Answer, Observed, Step, Tenure, Turn, evaluate};
use super::record::{LeaseView, PodRef};
use super::{IN_FLIGHT_MAX, Lost, Settings, SettingsError};

/// Delay before a holder repeats a write without an answer.
const REWRITE_DELAY: Duration = Duration::from_millis(250);

/// Pods whose bindings by a previous leader may be in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inherited {
    /// Announced by the previous leader; empty after a clean shutdown.
    Pods(Vec<PodRef>),
    /// There was no Lease: either nobody has led yet, or it was deleted under a leader.
    NoLease,
    /// Another client has overwritten the list. Any pending pod can have a binding in flight.
    Unreadable(String),
}

/// Why pods could not be announced. None of them may be bound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AnnounceError {
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error(
        "cannot announce {asked} more pods: the Lease lists at most {IN_FLIGHT_MAX} and has room for {room}"
    )]
    Full { asked: usize, room: usize },
}

/// Why the Lease could not be read or written. Election goes on trying.
#[derive(Debug, Error)]
pub enum LeaseError {
    #[error("the API server did not answer within {0} ms")]
    Timeout(u64),
    /// The scheduler must not create namespaces, so somebody else has to.
    #[error(
        "namespace {0:?} of the Lease does not exist; create it and apply Berth's manifests again"
    )]
    NoNamespace(String),
    #[error("{0}")]
    Rejected(Box<kube::Error>),
    #[error("the answer does not say whether the Lease was written")]
    Unknown,
}

impl LeaseError {
    /// The value of a metric's label.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "timeout",
            Self::NoNamespace(_) => "namespace_not_found",
            Self::Rejected(_) => "rejected",
            Self::Unknown => "unknown",
        }
    }
}

/// What election last came to; `None` if it works.
pub type ElectionProblem = Option<Arc<LeaseError>>;

/// An identity that no other process has or had: `host` and a random number.
pub fn incarnation(host: &str) -> Result<String, std::io::Error> {
    let mut bytes = [0_u8; 8];
    let provider = rustls::crypto::ring::default_provider();
    let filled = provider.secure_random.fill(&mut bytes);
    filled.map_err(|_| std::io::Error::other("the system has no random numbers"))?;
    Ok(format!("{host}_{:016x}", u64::from_be_bytes(bytes)))
}

/// Takes part in leader election.
#[derive(Clone)]
pub struct Elector {
    api: Api<Lease>,
    settings: Settings,
    me: Arc<str>,
    started: Instant,
    /// The holder of the Lease when it was last read.
    holder: Arc<Mutex<Option<Arc<str>>>>,
    problem: Arc<watch::Sender<ElectionProblem>>,
}

enum Attempt {
    Won { lease: Box<Lease>, inherited: Inherited, written_ms: u64 },
    Wait { ms: u64, version: Option<String> },
}

impl Elector {
    /// `me` must be unique among processes: see [`incarnation`].
    pub fn new(
        client: kube::Client,
        settings: Settings,
        me: impl Into<Arc<str>>,
    ) -> Result<Self, SettingsError> {
        settings.check()?;
        let api = Api::namespaced(client, &settings.namespace);
        let started = Instant::now();
        let problem = Arc::new(watch::channel(None).0);
        Ok(Self { api, settings, me: me.into(), started, holder: Arc::default(), problem })
    }

    /// Changes with every attempt that fails, and when one succeeds again.
    pub fn problems(&self) -> watch::Receiver<ElectionProblem> {
        self.problem.subscribe()
    }

    /// The leader, when the Lease was last read.
    pub fn holder(&self) -> Option<Arc<str>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until this process leads. Errors are logged, published in [`problems`](Self::problems) and
    /// retried.
    pub async fn acquire(&self) -> Leadership {
        let mut observed = Observed::default();
        loop {
            let attempt = self.attempt(&mut observed).await;
            if attempt.is_ok() {
                self.problem.send_if_modified(|problem| problem.take().is_some());
            }
            match attempt {
                Ok(Attempt::Won { lease, inherited, written_ms }) => {
                    tracing::info!(me = %self.me, ?inherited, "started leading");
                    return self.lead(*lease, inherited, written_ms);
                }
                Ok(Attempt::Wait { ms, version }) => self.wait(ms, version).await,
                Err(error) => {
                    let lease = format!("{}/{}", self.settings.namespace, self.settings.name);
                    tracing::warn!(lease, %error, "leader election failed; trying again");
                    self.problem.send_replace(Some(Arc::new(error)));
                    sleep(Duration::from_millis(self.settings.retry_ms)).await;
                }
            }
        }
    }

    async fn attempt(&self, observed: &mut Observed) -> Result<Attempt, LeaseError> {
        let read = self.within(self.api.get_opt(&self.settings.name)).await?.map(LeaseView::new);
        let now_ms = self.now_ms();
        let holder = read.as_ref().map(LeaseView::holder).filter(|holder| !holder.is_empty());
        *self.holder.lock().unwrap_or_else(PoisonError::into_inner) = holder.map(Arc::from);
        observed.see(read.as_ref(), now_ms);
        let step = evaluate(read.as_ref(), observed, &self.me, now_ms, &self.settings);
        let wall = Timestamp::now();
        let again = Attempt::Wait { ms: 0, version: None };
        let (answer, inherited) = match (step, &read) {
            (Step::Wait { ms }, _) => {
                let version = read.map(|lease| lease.resource_version().to_owned());
                return Ok(Attempt::Wait { ms, version });
            }
            (Step::TakeOver, Some(lease)) => {
                let inherited = match lease.binding() {
                    Ok(pods) => Inherited::Pods(pods.into_iter().collect()),
                    Err(unreadable) => Inherited::Unreadable(unreadable.to_string()),
                };
                let lease = lease.taken(&self.me, &self.settings, wall);
                (self.replace(&lease).await, inherited)
            }
            (Step::Create | Step::TakeOver, _) => {
                let lease = LeaseView::first(&self.me, &self.settings, wall);
                let created = self.within(self.api.create(&PostParams::default(), &lease)).await;
                match answer_of(created) {
                    // Objects can be created anywhere but in a namespace that does not exist.
                    Answer::Missing => {
                        return Err(LeaseError::NoNamespace(self.settings.namespace.clone()));
                    }
                    answer => (answer, Inherited::NoLease),
                }
            }
        };
        match answer {
            Answer::Done(lease) => Ok(Attempt::Won { lease, inherited, written_ms: now_ms }),
            // Another process was faster. Read what it wrote.
            Answer::Conflict | Answer::Missing => Ok(again),
            Answer::Unknown => Err(LeaseError::Unknown),
        }
    }

    /// Waits for `ms`, or until the Lease is released or deleted.
    async fn wait(&self, ms: u64, version: Option<String>) {
        let freed = async {
            if let Some(version) = version
                && self.watch_until_free(&version).await.is_err()
            {
                std::future::pending::<()>().await;
            }
        };
        // If the watch fails, the next attempt finds out.
        drop(timeout(Duration::from_millis(ms.max(10)), freed).await);
    }

    async fn watch_until_free(&self, version: &str) -> Result<(), kube::Error> {
        let selector = format!("metadata.name={}", self.settings.name);
        let parameters = WatchParams::default().fields(&selector);
        let mut changes = self.api.watch(&parameters, version).await?.boxed();
        while let Some(change) = changes.next().await {
            match change? {
                WatchEvent::Deleted(_) => return Ok(()),
                WatchEvent::Added(lease) | WatchEvent::Modified(lease) => {
                    if LeaseView::new(lease).holder().is_empty() {
                        return Ok(());
                    }
                }
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            }
        }
        std::future::pending().await
    }

    fn lead(&self, lease: Lease, inherited: Inherited, written_ms: u64) -> Leadership {
        let listed: BTreeSet<PodRef> = match &inherited {
            Inherited::Pods(pods) => pods.iter().cloned().collect(),
            Inherited::NoLease | Inherited::Unreadable(_) => BTreeSet::new(),
        };
        let lease = LeaseView::new(lease);
        let tenure =
            Tenure::new(lease, listed.clone(), self.me.clone(), &self.settings, written_ms);
        let (commands, receiver) = mpsc::unbounded_channel();
        let (lost, is_lost) = watch::channel(None);
        let writer = Writer { elector: self.clone(), tenure, commands: receiver };
        tokio::spawn(async move {
            let why = writer.run().await;
            tracing::info!(%why, "stopped leading");
            lost.send_replace(Some(why));
        });
        Leadership { inherited, commands, is_lost, listed: Mutex::new(listed) }
    }

    async fn replace(&self, lease: &Lease) -> Answer {
        let name = &self.settings.name;
        answer_of(self.within(self.api.replace(name, &PostParams::default(), lease)).await)
    }

    async fn within<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, LeaseError> {
        let limit = Duration::from_millis(self.settings.request_ms);
        match timeout(limit, request).await {
            Err(_) => Err(LeaseError::Timeout(self.settings.request_ms)),
            Ok(answer) => answer.map_err(|error| LeaseError::Rejected(Box::new(error))),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

fn answer_of(result: Result<Lease, LeaseError>) -> Answer {
    match result {
        Ok(lease) => Answer::Done(Box::new(lease)),
        Err(LeaseError::Rejected(error)) => match *error {
            kube::Error::Api(status) if status.code == 409 => Answer::Conflict,
            kube::Error::Api(status) if status.code == 404 => Answer::Missing,
            error => {
                tracing::warn!(%error, "could not write the Lease");
                Answer::Unknown
            }
        },
        Err(error) => {
            tracing::warn!(%error, "could not write the Lease");
            Answer::Unknown
        }
    }
}

/// A term of this process, until [`lost`](Self::lost). Dropping it stops renewal.
pub struct Leadership {
    /// To be fenced before anything is scheduled. They stay announced until they are
    /// [settled](Self::settle).
    pub inherited: Inherited,
    commands: mpsc::UnboundedSender<Command>,
    is_lost: watch::Receiver<Option<Lost>>,
    /// Pods on the list, or to be with the next write.
    listed: Mutex<BTreeSet<PodRef>>,
}

enum Command {
    Announce(Vec<PodRef>, oneshot::Sender<Result<(), Lost>>),
    Settle(Vec<PodRef>),
    Release,
}

impl Leadership {
    /// Writes pods into the Lease. They may be bound only after this has succeeded. Concurrent calls share a
    /// write.
    pub async fn announce(&self, pods: Vec<PodRef>) -> Result<(), AnnounceError> {
        {
            let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
            let asked = pods.iter().filter(|pod| !listed.contains(pod)).count();
            let room = IN_FLIGHT_MAX.saturating_sub(listed.len());
            if asked > room {
                return Err(AnnounceError::Full { asked, room });
            }
            listed.extend(pods.iter().cloned());
        }
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Announce(pods, reply)).is_err() {
            return Err(self.lost().await.into());
        }
        match answer.await {
            Ok(written) => Ok(written?),
            // The writer ended before it received the command.
            Err(_) => Err(self.lost().await.into()),
        }
    }

    /// How many more pods can be announced now.
    pub fn room(&self) -> usize {
        let listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        IN_FLIGHT_MAX.saturating_sub(listed.len())
    }

    /// Removes announced or inherited pods from the list, with the next write. Only for pods whose binding
    /// is certainly not in flight: the API server answered, or the pod's resource version has changed and the
    /// binding requires the old one.
    pub fn settle(&self, pods: Vec<PodRef>) {
        {
            let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
            for pod in &pods {
                listed.remove(pod);
            }
        }
        drop(self.commands.send(Command::Settle(pods)));
    }

    /// Waits for the end of the term.
    pub async fn lost(&self) -> Lost {
        let mut is_lost = self.is_lost.clone();
        match is_lost.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(Lost::Released),
            Err(_) => Lost::Released,
        }
    }

    pub fn is_held(&self) -> bool {
        self.is_lost.borrow().is_none()
    }

    /// Releases the Lease, so that another replica can take it at once. Unsettled pods stay on its list.
    pub async fn release(&self) -> Lost {
        drop(self.commands.send(Command::Release));
        self.lost().await
    }
}

/// Does all writes of a term, one after the other.
struct Writer {
    elector: Elector,
    tenure: Tenure,
    commands: mpsc::UnboundedReceiver<Command>,
}

impl Writer {
    async fn run(mut self) -> Lost {
        loop {
            let due_ms = self.tenure.renew_at_ms();
            let due = self.elector.started + Duration::from_millis(due_ms);
            let mut asking = Vec::new();
            let mut is_over = false;
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    None => return Lost::Released,
                    Some(command) => is_over |= self.take(command, &mut asking),
                },
                () = sleep_until(due) => {}
            }
            while let Ok(command) = self.commands.try_recv() {
                is_over |= self.take(command, &mut asking);
            }
            if asking.is_empty() && !is_over && self.elector.now_ms() < due_ms {
                continue;
            }
            let written = if is_over { self.release().await } else { self.write().await };
            for reply in asking {
                drop(reply.send(written.clone()));
            }
            if let Err(lost) = written {
                return lost;
            }
        }
    }

    /// Whether to release the Lease.
    fn take(
        &mut self,
        command: Command,
        asking: &mut Vec<oneshot::Sender<Result<(), Lost>>>,
    ) -> bool {
        match command {
            Command::Announce(pods, reply) => {
                self.tenure.add(pods);
                asking.push(reply);
                false
            }
            Command::Settle(pods) => {
                self.tenure.settle(pods);
                false
            }
            Command::Release => true,
        }
    }

    /// Writes the list and repeats until the outcome is known.
    async fn write(&mut self) -> Result<(), Lost> {
        loop {
            let written_ms = self.elector.now_ms();
            if let Some(lost) = self.tenure.expired(written_ms) {
                return Err(lost);
            }
            let lease = self.tenure.renewal(Timestamp::now());
            let answer = self.elector.replace(&lease).await;
            let is_unclear = answer == Answer::Unknown;
            let mut turn = self.tenure.answered(answer, written_ms);
            if turn == Turn::Read {
                if is_unclear {
                    sleep(REWRITE_DELAY).await;
                }
                let api = &self.elector.api;
                let read = self.elector.within(api.get_opt(&self.elector.settings.name)).await;
                turn = self.tenure.read(read.map_err(|_| ()));
            }
            match turn {
                Turn::Written => return Ok(()),
                Turn::Read | Turn::Write => {}
                Turn::Lost(lost) => return Err(lost),
            }
        }
    }

    /// Tries once: if it fails, other replicas wait until the Lease expires.
    async fn release(&mut self) -> Result<(), Lost> {
        let lease = self.tenure.release(Timestamp::now());
        match self.elector.replace(&lease).await {
            Answer::Done(_) => {}
            answer => tracing::warn!(?answer, "could not release the Lease; it will expire"),
        }
        Err(Lost::Released)
    }
}

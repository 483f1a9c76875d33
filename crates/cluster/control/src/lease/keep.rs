//! The election at work: requests to the API server, and the one task that writes while we lead.
//!
//! Owns requests, their time limits and the order of writes. Must not decide who leads; `decide` does.

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

/// Between two attempts of a holder whose write came to nothing.
const HASTE: Duration = Duration::from_millis(250);

/// Pods whose bindings may still be under way when somebody takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inherited {
    /// Those that the previous holder announced; none after a clean end.
    Pods(Vec<PodRef>),
    /// There was no Lease. Nobody led before, unless somebody deleted it.
    NoLease,
    /// The list cannot be read: somebody else wrote it. Any pod that is not bound can be on it.
    Unreadable(String),
}

/// Why pods were not announced. None of them may be bound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AnnounceError {
    /// We do not lead any more.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// There are too many on the list; wait until some are settled.
    #[error(
        "{asked} more pods do not fit on the list of {IN_FLIGHT_MAX} that are being bound; {room} do"
    )]
    Full {
        /// How many were to be announced.
        asked: usize,
        /// How many can be.
        room: usize,
    },
}

/// A name for this process that no other has, not even after a restart: `host`, and a random number.
pub fn incarnation(host: &str) -> Result<String, std::io::Error> {
    let mut bytes = [0_u8; 8];
    let provider = rustls::crypto::ring::default_provider();
    let filled = provider.secure_random.fill(&mut bytes);
    filled.map_err(|_| std::io::Error::other("the system gives no random numbers"))?;
    Ok(format!("{host}_{:016x}", u64::from_be_bytes(bytes)))
}

/// Somebody who wants to lead.
#[derive(Clone)]
pub struct Elector {
    api: Api<Lease>,
    settings: Settings,
    me: Arc<str>,
    started: Instant,
    /// Who was seen to hold it last.
    holder: Arc<Mutex<Option<Arc<str>>>>,
}

enum Attempt {
    Won { lease: Box<Lease>, inherited: Inherited, written_ms: u64 },
    Wait { ms: u64, version: Option<String> },
}

impl Elector {
    /// `me` must be a name that no other process has or had: see [`incarnation`].
    pub fn new(
        client: kube::Client,
        settings: Settings,
        me: impl Into<Arc<str>>,
    ) -> Result<Self, SettingsError> {
        settings.check()?;
        let api = Api::namespaced(client, &settings.namespace);
        let started = Instant::now();
        Ok(Self { api, settings, me: me.into(), started, holder: Arc::default() })
    }

    /// Who leads, as far as was seen.
    pub fn holder(&self) -> Option<Arc<str>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until we lead. Whatever fails is tried again.
    pub async fn acquire(&self) -> Leadership {
        let mut observed = Observed::default();
        loop {
            match self.attempt(&mut observed).await {
                Ok(Attempt::Won { lease, inherited, written_ms }) => {
                    tracing::info!(me = %self.me, ?inherited, "leading");
                    return self.lead(*lease, inherited, written_ms);
                }
                Ok(Attempt::Wait { ms, version }) => self.rest(ms, version).await,
                Err(error) => {
                    tracing::warn!(%error, "the lease cannot be had; trying again");
                    sleep(Duration::from_millis(self.settings.retry_ms)).await;
                }
            }
        }
    }

    async fn attempt(&self, observed: &mut Observed) -> Result<Attempt, RequestError> {
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
                let made = self.within(self.api.create(&PostParams::default(), &lease)).await;
                (answer_of(made), Inherited::NoLease)
            }
        };
        match answer {
            Answer::Done(lease) => Ok(Attempt::Won { lease, inherited, written_ms: now_ms }),
            // Somebody was faster. What they wrote is read next.
            Answer::Conflict | Answer::Missing => Ok(again),
            Answer::Unknown => Err(RequestError::Unclear),
        }
    }

    /// Waits, but not on when the Lease is released or deleted.
    async fn rest(&self, ms: u64, version: Option<String>) {
        let freed = async {
            if let Some(version) = version
                && self.watch_until_free(&version).await.is_err()
            {
                std::future::pending::<()>().await;
            }
        };
        // Should the watch fail, the next look is what helps.
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
            tracing::info!(%why, "not leading any more");
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
    ) -> Result<T, RequestError> {
        let limit = Duration::from_millis(self.settings.request_ms);
        match timeout(limit, request).await {
            Err(_) => Err(RequestError::Late(self.settings.request_ms)),
            Ok(answer) => answer.map_err(|error| RequestError::Refused(Box::new(error))),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[derive(Debug, Error)]
enum RequestError {
    #[error("no answer within {0} ms")]
    Late(u64),
    #[error("{0}")]
    Refused(Box<kube::Error>),
    #[error("the answer does not say whether it was written")]
    Unclear,
}

fn answer_of(result: Result<Lease, RequestError>) -> Answer {
    match result {
        Ok(lease) => Answer::Done(Box::new(lease)),
        Err(RequestError::Refused(error)) => match *error {
            kube::Error::Api(status) if status.code == 409 => Answer::Conflict,
            kube::Error::Api(status) if status.code == 404 => Answer::Missing,
            error => {
                tracing::warn!(%error, "the lease was not written");
                Answer::Unknown
            }
        },
        Err(error) => {
            tracing::warn!(%error, "the lease was not written");
            Answer::Unknown
        }
    }
}

/// That we lead, until [`lost`](Self::lost). When this is dropped nobody renews any more.
pub struct Leadership {
    /// Whom to look after before anything is placed. They are on the list until they are
    /// [settled](Self::settle).
    pub inherited: Inherited,
    commands: mpsc::UnboundedSender<Command>,
    is_lost: watch::Receiver<Option<Lost>>,
    /// Who is on the list, or will be with the next write.
    listed: Mutex<BTreeSet<PodRef>>,
}

enum Command {
    Announce(Vec<PodRef>, oneshot::Sender<Result<(), Lost>>),
    Settle(Vec<PodRef>),
    Release,
}

impl Leadership {
    /// Writes pods into the Lease. Only when this has succeeded may they be bound; several calls at once
    /// share a write.
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
            // The writer has ended without having seen the question.
            Err(_) => Err(self.lost().await.into()),
        }
    }

    /// How many more pods can be announced now.
    pub fn room(&self) -> usize {
        let listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        IN_FLIGHT_MAX.saturating_sub(listed.len())
    }

    /// Takes announced or inherited pods off the list, with the next write. Only for pods of whose
    /// binding it is certain that it has landed or never will: the API server said so, or the pod has
    /// been changed since and the binding insists on its old version.
    pub fn settle(&self, pods: Vec<PodRef>) {
        {
            let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
            for pod in &pods {
                listed.remove(pod);
            }
        }
        drop(self.commands.send(Command::Settle(pods)));
    }

    /// Waits until we do not lead any more, and says why.
    pub async fn lost(&self) -> Lost {
        let mut is_lost = self.is_lost.clone();
        match is_lost.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(Lost::Released),
            Err(_) => Lost::Released,
        }
    }

    /// Whether we lead, as far as we know.
    pub fn is_held(&self) -> bool {
        self.is_lost.borrow().is_none()
    }

    /// Gives the Lease back, so that another can have it at once. Bindings that are not settled stay on
    /// its list. Comes back when that is done, or could not be in time.
    pub async fn release(&self) -> Lost {
        drop(self.commands.send(Command::Release));
        self.lost().await
    }
}

/// Does all writes, one after the other.
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
            let written = if is_over { self.give_back().await } else { self.write().await };
            for reply in asking {
                drop(reply.send(written.clone()));
            }
            if let Err(lost) = written {
                return lost;
            }
        }
    }

    /// Whether the Lease is to be given back.
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

    /// Writes the list, as often as it takes.
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
                    sleep(HASTE).await;
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

    /// Tries once: if it fails, the others wait a little longer.
    async fn give_back(&mut self) -> Result<(), Lost> {
        let lease = self.tenure.release(Timestamp::now());
        match self.elector.replace(&lease).await {
            Answer::Done(_) => {}
            answer => tracing::warn!(?answer, "the lease was not given back; it will run out"),
        }
        Err(Lost::Released)
    }
}

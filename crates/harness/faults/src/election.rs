//! A replica's part in the election: looking at the Lease, taking it, and the one who writes while it leads.
//!
//! Owns the order of calls, as `lease` makes them; what follows from answers is decided by its own rules.

use std::collections::{BTreeSet, VecDeque};

use berth_control::lease::{
    Answer as Written, IN_FLIGHT_MAX, LeaseView, Observed, PodRef, Settings, Step, Tenure, Turn,
    evaluate,
};
use jiff::Timestamp;

use crate::calls::{Answer, CallId, Request};

/// Between two attempts of a holder whose write came to nothing.
const HASTE_MS: u64 = 250;

/// Somebody who does not lead.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    observed: Observed,
    call: Option<(CallId, Asked)>,
}

#[derive(Debug)]
enum Asked {
    Read,
    Take { inherited: BTreeSet<PodRef>, written_ms: u64 },
}

/// What a follower does next.
pub(crate) enum Next {
    /// Make this call.
    Call(Request),
    /// Look again after so long by its own clock.
    Rest(u64),
    /// It leads.
    Lead(Box<Tenure>, BTreeSet<PodRef>),
}

impl Follower {
    /// Whether an answer is waited for.
    pub(crate) fn is_busy(&self) -> bool {
        self.call.is_some()
    }

    pub(crate) fn began(&mut self, call: CallId) {
        self.call.get_or_insert((call, Asked::Read)).0 = call;
    }

    /// Whether an answer to this call is waited for.
    pub(crate) fn awaits(&self, call: CallId) -> bool {
        self.call.as_ref().is_some_and(|(asked, _)| *asked == call)
    }

    pub(crate) fn answered(
        &mut self,
        answer: Option<Answer>,
        me: &str,
        (now_ms, wall): (u64, Timestamp),
        settings: &Settings,
    ) -> Next {
        let Some((_, asked)) = self.call.take() else { return Next::Rest(settings.retry_ms) };
        let lease = match (asked, answer) {
            (Asked::Read, Some(Answer::Lease(lease))) => Some(LeaseView::new(*lease)),
            (Asked::Read, Some(Answer::NoLease)) => None,
            (Asked::Take { inherited, written_ms }, Some(Answer::Lease(lease))) => {
                let view = LeaseView::new(*lease);
                let me = me.into();
                let tenure = Tenure::new(view, inherited.clone(), me, settings, written_ms);
                return Next::Lead(Box::new(tenure), inherited);
            }
            // Somebody was faster. What they wrote is read next.
            (Asked::Take { .. }, Some(Answer::Failed(404 | 409))) => return Next::Rest(10),
            _ => return Next::Rest(settings.retry_ms),
        };
        self.observed.see(lease.as_ref(), now_ms);
        let step = evaluate(lease.as_ref(), &self.observed, me, now_ms, settings);
        let (request, inherited) = match (step, &lease) {
            (Step::Wait { ms }, _) => return Next::Rest(ms.max(10)),
            (Step::TakeOver, Some(lease)) => {
                let taken = Box::new(lease.taken(me, settings, wall));
                (Request::ReplaceLease(taken), lease.binding().unwrap_or_default())
            }
            (Step::Create | Step::TakeOver, _) => {
                let first = Box::new(LeaseView::first(me, settings, wall));
                (Request::CreateLease(first), BTreeSet::new())
            }
        };
        self.call = Some((0, Asked::Take { inherited, written_ms: now_ms }));
        Next::Call(request)
    }
}

/// What is to be written.
#[derive(Debug)]
pub(crate) enum Command {
    /// These, before anything else is done about them; the number is for whoever asked.
    Announce(Vec<PodRef>),
    Settle(Vec<PodRef>),
    Release,
}

#[derive(Debug)]
enum Stage {
    Idle,
    Writing {
        call: CallId,
        written_ms: u64,
    },
    /// Waits before it reads, after an answer that was not clear.
    Hasting {
        until_ms: u64,
    },
    Reading {
        call: CallId,
    },
    /// Gives the Lease back.
    Releasing {
        call: CallId,
    },
}

/// Does all writes while somebody leads, one after the other.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) tenure: Tenure,
    /// Who is on the list, or will be with the next write.
    pub(crate) listed: BTreeSet<PodRef>,
    commands: VecDeque<Command>,
    stage: Stage,
    /// How many announcements the write under way is for.
    asking: usize,
    releases: bool,
}

/// What a writer does next.
pub(crate) enum Deed {
    Nothing,
    Call(Request),
    /// So many announcements are written.
    Announced(usize),
    /// It holds no more.
    Lost,
}

impl Writer {
    pub(crate) fn new(tenure: Tenure, listed: BTreeSet<PodRef>) -> Self {
        Self {
            tenure,
            listed,
            commands: VecDeque::new(),
            stage: Stage::Idle,
            asking: 0,
            releases: false,
        }
    }

    /// Puts pods on the list with the next write; `false`: there is no room.
    pub(crate) fn announce(&mut self, pods: Vec<PodRef>) -> bool {
        let asked = pods.iter().filter(|pod| !self.listed.contains(pod)).count();
        if asked > IN_FLIGHT_MAX.saturating_sub(self.listed.len()) {
            return false;
        }
        self.listed.extend(pods.iter().cloned());
        self.commands.push_back(Command::Announce(pods));
        true
    }

    pub(crate) fn settle(&mut self, pods: Vec<PodRef>) {
        for pod in &pods {
            self.listed.remove(pod);
        }
        self.commands.push_back(Command::Settle(pods));
    }

    pub(crate) fn release(&mut self) {
        self.commands.push_back(Command::Release);
    }

    pub(crate) fn began(&mut self, begun: CallId) {
        match &mut self.stage {
            Stage::Writing { call, .. } | Stage::Reading { call } | Stage::Releasing { call } => {
                *call = begun;
            }
            Stage::Idle | Stage::Hasting { .. } => {}
        }
    }

    pub(crate) fn awaits(&self, asked: CallId) -> bool {
        match self.stage {
            Stage::Writing { call, .. } | Stage::Reading { call } | Stage::Releasing { call } => {
                call == asked
            }
            Stage::Idle | Stage::Hasting { .. } => false,
        }
    }

    /// When it has something to do of its own accord.
    pub(crate) fn due_ms(&self) -> Option<u64> {
        match self.stage {
            Stage::Idle if !self.commands.is_empty() => Some(0),
            Stage::Idle => Some(self.tenure.renew_at_ms()),
            Stage::Hasting { until_ms } => Some(until_ms),
            _ => None,
        }
    }

    /// Does what is due.
    pub(crate) fn wake(&mut self, now_ms: u64, wall: Timestamp) -> Deed {
        match self.stage {
            Stage::Idle => self.idle(now_ms, wall),
            Stage::Hasting { until_ms } if until_ms <= now_ms => {
                self.stage = Stage::Reading { call: 0 };
                Deed::Call(Request::ReadLease)
            }
            _ => Deed::Nothing,
        }
    }

    fn idle(&mut self, now_ms: u64, wall: Timestamp) -> Deed {
        for command in std::mem::take(&mut self.commands) {
            match command {
                Command::Announce(pods) => {
                    self.tenure.add(pods);
                    self.asking += 1;
                }
                Command::Settle(pods) => self.tenure.settle(pods),
                Command::Release => self.releases = true,
            }
        }
        if self.releases {
            self.stage = Stage::Releasing { call: 0 };
            return Deed::Call(Request::ReplaceLease(Box::new(self.tenure.release(wall))));
        }
        if self.asking == 0 && now_ms < self.tenure.renew_at_ms() {
            return Deed::Nothing;
        }
        self.write(now_ms, wall)
    }

    fn write(&mut self, now_ms: u64, wall: Timestamp) -> Deed {
        if self.tenure.expired(now_ms).is_some() {
            return Deed::Lost;
        }
        self.stage = Stage::Writing { call: 0, written_ms: now_ms };
        Deed::Call(Request::ReplaceLease(Box::new(self.tenure.renewal(wall))))
    }

    pub(crate) fn answered(
        &mut self,
        answer: Option<Answer>,
        now_ms: u64,
        wall: Timestamp,
    ) -> Deed {
        let turn = match self.stage {
            Stage::Releasing { .. } => return Deed::Lost,
            Stage::Writing { written_ms, .. } => {
                let written = match answer {
                    Some(Answer::Lease(lease)) => Written::Done(lease),
                    Some(Answer::Failed(409)) => Written::Conflict,
                    Some(Answer::Failed(404)) => Written::Missing,
                    _ => Written::Unknown,
                };
                let is_unclear = written == Written::Unknown;
                match self.tenure.answered(written, written_ms) {
                    Turn::Read if is_unclear => {
                        self.stage = Stage::Hasting { until_ms: now_ms + HASTE_MS };
                        return Deed::Nothing;
                    }
                    Turn::Read => {
                        self.stage = Stage::Reading { call: 0 };
                        return Deed::Call(Request::ReadLease);
                    }
                    turn => turn,
                }
            }
            Stage::Reading { .. } => {
                let read = match answer {
                    Some(Answer::Lease(lease)) => Ok(Some(*lease)),
                    Some(Answer::NoLease) => Ok(None),
                    _ => Err(()),
                };
                self.tenure.read(read)
            }
            Stage::Idle | Stage::Hasting { .. } => return Deed::Nothing,
        };
        match turn {
            Turn::Written => {
                self.stage = Stage::Idle;
                Deed::Announced(std::mem::take(&mut self.asking))
            }
            Turn::Read | Turn::Write => self.write(now_ms, wall),
            Turn::Lost(_) => Deed::Lost,
        }
    }
}

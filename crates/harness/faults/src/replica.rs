//! A replica of the scheduler: a process that dies and comes back, pauses, and has a clock of its own.
//!
//! Owns its life. Must not know what the cluster is like.

use std::sync::Arc;

use jiff::Timestamp;

use crate::calls::{Answer, CallId};
use crate::election::Follower;
use crate::server::Change;
use crate::term::{Later, Term};

/// A clock that runs at its own speed, and a time of day that may be anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// What it showed at `since_ms` of true time.
    base_ms: u64,
    since_ms: u64,
    rate_milli: u64,
    day_offset_ms: i64,
}

impl Clock {
    pub(crate) fn new(base_ms: u64, rate_milli: u64, day_offset_ms: i64) -> Self {
        Self { base_ms, since_ms: 0, rate_milli, day_offset_ms }
    }

    /// What it shows at a true time.
    pub(crate) fn at(&self, true_ms: u64) -> u64 {
        self.base_ms + (true_ms - self.since_ms) * self.rate_milli / 1_000
    }

    /// How much true time passes until it shows so much more.
    pub(crate) fn true_delay(&self, own_ms: u64) -> u64 {
        (own_ms * 1_000).div_ceil(self.rate_milli)
    }

    /// From now on it runs at this speed, and the time of day is off by so much.
    pub(crate) fn set(&mut self, true_ms: u64, rate_milli: u64, day_offset_ms: i64) {
        let base_ms = self.at(true_ms);
        *self = Self { base_ms, since_ms: true_ms, rate_milli, day_offset_ms };
    }

    pub(crate) fn day_ms(&self, true_ms: u64) -> i64 {
        1_800_000_000_000 + true_ms as i64 + self.day_offset_ms
    }

    pub(crate) fn wall(&self, true_ms: u64) -> Timestamp {
        Timestamp::from_millisecond(self.day_ms(true_ms)).unwrap_or_default()
    }
}

/// What reaches a process.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// An answer to a call, or that there was none in time.
    Answer(CallId, Option<Answer>),
    /// It is time for something.
    Wake,
    Later(Later),
    /// Changes that a watch tells of: whether of pods, and of which watch.
    StatusUpdate {
        pods: bool,
        watch: u64,
        changes: Vec<Change>,
    },
    /// A watch was lost.
    WatchLost {
        pods: bool,
        watch: u64,
    },
    /// The Lease was lost a moment ago, and now the rest of the process notices.
    TermOver,
    /// It is to stop in good order.
    Stop,
}

/// A replica.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) me: Arc<str>,
    /// Counts processes: answers to a former one reach nobody.
    pub(crate) life: u64,
    /// Counts times of leading.
    pub(crate) term: u64,
    pub(crate) alive: bool,
    pub(crate) paused_until_ms: u64,
    pub(crate) clock: Clock,
    pub(crate) follower: Follower,
    pub(crate) leading: Option<Box<Term>>,
    /// The watches of this term: of pods, and of everything else.
    pub(crate) watches: [Watch; 2],
    /// When it wakes up next, in true time; earlier wake-ups are superseded.
    pub(crate) wakes_at_ms: u64,
    pub(crate) is_stopping: bool,
}

/// A watch: how far it has told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watch {
    /// Tells watches apart.
    pub(crate) number: u64,
    /// Where in the history it goes on; `None`: there is none.
    pub(crate) next: Option<usize>,
    /// Nothing arrives before this: messages of one watch do not overtake each other.
    pub(crate) arrives_ms: u64,
}

impl Replica {
    pub(crate) fn new(index: usize, clock: Clock) -> Self {
        let mut replica = Self {
            me: "".into(),
            life: 0,
            term: 0,
            alive: false,
            paused_until_ms: 0,
            clock,
            follower: Follower::default(),
            leading: None,
            watches: [Watch::default(); 2],
            wakes_at_ms: u64::MAX,
            is_stopping: false,
        };
        replica.start(index);
        replica
    }

    /// A new process.
    pub(crate) fn start(&mut self, index: usize) {
        self.life += 1;
        self.me = format!("replica-{index}_{}", self.life).into();
        self.alive = true;
        self.is_stopping = false;
        self.follower = Follower::default();
        self.end_term();
    }

    pub(crate) fn kill(&mut self) {
        self.alive = false;
        self.life += 1;
        self.end_term();
    }

    pub(crate) fn end_term(&mut self) {
        self.leading = None;
        self.term += 1;
        self.watches = [Watch::default(); 2];
    }
}

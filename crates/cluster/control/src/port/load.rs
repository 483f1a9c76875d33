//! What the connections of a port hold, and which of them is closed when it is too much.
//!
//! A connection is useful when a request of it was answered successfully. Connections that never were go
//! first, then those that were not for the longest time, always of the address that holds the most: so an API
//! server gets in while others hold everything.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};

use crate::metrics::Metrics;

/// A connection that was accepted or answered within this time is not closed to make room for another of
/// its own address, nor one that was answered for anybody.
const GRACE: Duration = Duration::from_secs(1);
/// How long a request waits for room.
const WAIT: Duration = Duration::from_secs(2);
/// How often it tries again, whether something was released or not.
const RETRY: Duration = Duration::from_millis(50);
/// How many requests wait for room at a time.
const WAITING_MAX: usize = 256;
/// How long a connection may stay without its first successful answer.
const UNANSWERED: Duration = Duration::from_secs(30);
/// How long a connection may stay without another one. API servers close idle connections after 90 s.
const IDLE: Duration = Duration::from_secs(150);
/// What a request counts for beside its body: its head, its task and its answer.
const REQUEST_BYTES: u64 = 32 << 10;

/// What a port may hold. One address gets at most half of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of requests at a time; half as many again while shed requests are being freed.
    pub bytes: u64,
    /// Bytes of one body.
    pub body_bytes: u64,
}

impl Limits {
    /// For the TLS port: eight of the largest reviews.
    pub const TLS: Self = Self {
        connections: 256,
        bytes: 64 << 20,
        body_bytes: crate::webhook::BODY_BYTES_MAX as u64,
    };
    /// For the port of health and metrics, whose requests have no bodies.
    pub const PLAIN: Self = Self { connections: 128, bytes: 8 << 20, body_bytes: 4 << 10 };
}

/// A connection of a port; closed connections are not in the list any more.
struct Open {
    address: IpAddr,
    /// When it was accepted, or answered successfully for the last time.
    since: Instant,
    answered: bool,
    bytes: u64,
    close: oneshot::Sender<()>,
}

#[derive(Default)]
struct State {
    next: u64,
    open: BTreeMap<u64, Open>,
    /// Of requests whose connections were closed, until they are gone.
    closing_bytes: u64,
    waiting: usize,
}

pub(super) struct Load {
    name: &'static str,
    limits: Limits,
    metrics: Metrics,
    state: Mutex<State>,
    released: Notify,
}

/// How much a connection counts when room is short.
type Weight = fn(&Open) -> u64;

/// A connection or request that needs room.
struct RoomRequest {
    address: IpAddr,
    /// Its own connection, which must not be closed.
    id: Option<u64>,
    needs: u64,
    /// Whether the share of its own address is used up.
    own_share_full: bool,
}

enum Reserved {
    Yes,
    Full,
    Closed,
}

impl State {
    fn held_by(&self, address: IpAddr, weight: Weight) -> u64 {
        self.open.values().filter(|open| open.address == address).map(weight).sum()
    }

    /// The connection to close for a request, if there is one.
    fn victim(&self, request: &RoomRequest, weight: Weight) -> Option<u64> {
        let mut by_address: BTreeMap<IpAddr, u64> = BTreeMap::new();
        for open in self.open.values() {
            *by_address.entry(open.address).or_default() += weight(open);
        }
        let own = by_address.get(&request.address).copied().unwrap_or(0) + request.needs;
        let most = by_address.iter().max_by_key(|(_, held)| **held);
        let address = match most {
            Some((address, held)) if !request.own_share_full && *held > own => *address,
            _ => request.address,
        };
        let spared = |open: &Open| {
            (open.answered || address == request.address) && open.since.elapsed() < GRACE
        };
        let candidates = self.open.iter().filter(|(id, open)| {
            open.address == address && Some(**id) != request.id && weight(open) > 0 && !spared(open)
        });
        candidates.min_by_key(|(_, open)| (open.answered, open.since)).map(|(id, _)| *id)
    }

    fn bytes(&self) -> u64 {
        self.open.values().map(|open| open.bytes).sum()
    }

    fn close(&mut self, id: u64) {
        if let Some(open) = self.open.remove(&id) {
            self.closing_bytes += open.bytes;
            // An error means that the connection has ended by itself.
            let _ = open.close.send(());
        }
    }
}

impl Load {
    pub(super) fn new(name: &'static str, limits: Limits, metrics: Metrics) -> Self {
        Self { name, limits, metrics, state: Mutex::default(), released: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, state: &State) {
        self.metrics.holds(self.name, state.open.len(), state.bytes() + state.closing_bytes);
    }

    /// Accepts a connection; the receiver is notified when it must be closed. `None` if there is no room.
    pub(super) fn accept(
        self: &Arc<Self>,
        address: IpAddr,
    ) -> Option<(Connection, oneshot::Receiver<()>)> {
        let mut state = self.state();
        let own = state.held_by(address, |_| 1);
        let own_share_full = own >= (self.limits.connections / 2) as u64;
        if own_share_full || state.open.len() >= self.limits.connections {
            self.metrics.shed(self.name, "connections");
            let request = RoomRequest { address, id: None, needs: 1, own_share_full };
            let victim = state.victim(&request, |_| 1)?;
            state.close(victim);
        }
        let id = state.next;
        state.next += 1;
        let (close, closed) = oneshot::channel();
        let open = Open { address, since: Instant::now(), answered: false, bytes: 0, close };
        state.open.insert(id, open);
        self.show(&state);
        Some((Connection { load: self.clone(), id }, closed))
    }

    fn try_reserve(&self, id: u64, bytes: u64) -> Reserved {
        let mut state = self.state();
        let Some(address) = state.open.get(&id).map(|open| open.address) else {
            return Reserved::Closed;
        };
        loop {
            let own_share_full =
                state.held_by(address, |open| open.bytes) + bytes > self.limits.bytes / 2;
            if !own_share_full && state.bytes() + bytes <= self.limits.bytes {
                break;
            }
            let request = RoomRequest { address, id: Some(id), needs: bytes, own_share_full };
            let victim = state.victim(&request, |open| open.bytes);
            // What was closed before is still being freed.
            let Some(victim) = victim.filter(|_| state.closing_bytes < self.limits.bytes / 4)
            else {
                return Reserved::Full;
            };
            self.metrics.shed(self.name, "bytes");
            state.close(victim);
        }
        if let Some(open) = state.open.get_mut(&id) {
            open.bytes += bytes;
        }
        self.show(&state);
        Reserved::Yes
    }

    /// Closes connections that have not been useful for long.
    pub(super) fn close_stale(&self) {
        let mut state = self.state();
        let is_stale =
            |open: &Open| open.since.elapsed() > if open.answered { IDLE } else { UNANSWERED };
        let stale: Vec<u64> =
            state.open.iter().filter(|(_, open)| is_stale(open)).map(|(id, _)| *id).collect();
        for id in stale {
            self.metrics.shed(self.name, "idle");
            state.close(id);
        }
        self.show(&state);
    }
}

/// A connection of a port. It counts until this is dropped or it is closed.
pub(super) struct Connection {
    load: Arc<Load>,
    id: u64,
}

impl Connection {
    pub(super) fn limits(&self) -> Limits {
        self.load.limits
    }

    /// Reserves room for a request with a body of this size; `None` if there is none.
    pub(super) async fn reserve(self: &Arc<Self>, body_bytes: u64) -> Option<Reservation> {
        let bytes = REQUEST_BYTES + body_bytes;
        let reserved = self.wait_for(bytes).await;
        if !reserved {
            self.shed("bytes");
        }
        reserved.then(|| Reservation { connection: self.clone(), bytes })
    }

    async fn wait_for(&self, bytes: u64) -> bool {
        let deadline = Instant::now() + WAIT;
        let mut waiting = None;
        loop {
            let released = self.load.released.notified();
            match self.load.try_reserve(self.id, bytes) {
                Reserved::Yes => return true,
                Reserved::Closed => return false,
                Reserved::Full => {}
            }
            if waiting.is_none() {
                waiting = Waiting::begin(&self.load);
            }
            if waiting.is_none() || Instant::now() >= deadline {
                return false;
            }
            // What was spared at first may be closed later.
            let _ = timeout(RETRY, released).await;
        }
    }

    pub(super) fn answered(&self) {
        if let Some(open) = self.load.state().open.get_mut(&self.id) {
            (open.since, open.answered) = (Instant::now(), true);
        }
    }

    pub(super) fn shed(&self, reason: &'static str) {
        self.load.metrics.shed(self.load.name, reason);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.load.state();
        state.open.remove(&self.id);
        self.load.show(&state);
    }
}

struct Waiting<'a>(&'a Load);

impl<'a> Waiting<'a> {
    fn begin(load: &'a Load) -> Option<Self> {
        let mut state = load.state();
        let fits = state.waiting < WAITING_MAX;
        state.waiting += usize::from(fits);
        fits.then_some(Self(load))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

/// Room for a request, until this is dropped.
pub(super) struct Reservation {
    connection: Arc<Connection>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let load = &self.connection.load;
        let mut state = load.state();
        match state.open.get_mut(&self.connection.id) {
            Some(open) => open.bytes -= self.bytes,
            None => state.closing_bytes -= self.bytes,
        }
        load.show(&state);
        drop(state);
        load.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn load() -> Arc<Load> {
        let limits = Limits { connections: 8, bytes: 64 * REQUEST_BYTES, body_bytes: u64::MAX };
        Arc::new(Load::new("test", limits, Metrics::new()))
    }

    type Opened = (Arc<Connection>, oneshot::Receiver<()>);

    fn open(load: &Arc<Load>, last: u8) -> Option<Opened> {
        let (connection, closed) = load.accept([10, 0, 0, last].into())?;
        Some((Arc::new(connection), closed))
    }

    fn is_open((_, closed): &mut Opened) -> bool {
        matches!(closed.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    /// A body so large that a request with it counts as so many requests.
    const fn body(requests: u64) -> u64 {
        (requests - 1) * REQUEST_BYTES
    }

    #[tokio::test(start_paused = true)]
    async fn the_busiest_address_gives_way_and_an_answered_connection_goes_last() {
        let load = load();
        let mut hogs: Vec<Opened> = (0..4).filter_map(|_| open(&load, 1)).collect();
        let mut others: Vec<Opened> = (0..4).filter_map(|_| open(&load, 2)).collect();
        others[0].0.answered();
        let mut first = open(&load, 3).unwrap();
        let mut second = open(&load, 3).unwrap();
        let closed =
            hogs.iter_mut().chain(&mut others).filter_map(|one| (!is_open(one)).then_some(()));
        assert_eq!(closed.count(), 2);
        assert!(is_open(&mut others[0]) && is_open(&mut first) && is_open(&mut second));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_half_and_replaces_its_own_oldest_after_a_while() {
        let load = load();
        let mut held: Vec<Opened> = (0..4).filter_map(|_| open(&load, 1)).collect();
        assert!(open(&load, 1).is_none(), "none is old enough");
        advance(GRACE).await;
        held[0].0.answered();
        let _newer = open(&load, 1).unwrap();
        let open_now: Vec<bool> = held.iter_mut().map(is_open).collect();
        assert_eq!(open_now, [true, false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_taken_from_whoever_holds_most_and_given_back() {
        let load = load();
        let mut hogs: Vec<Opened> =
            [1, 1, 2, 2].into_iter().filter_map(|last| open(&load, last)).collect();
        let mut held = Vec::new();
        for (hog, _) in &hogs {
            held.push(hog.reserve(body(16)).await.unwrap());
        }
        let small = open(&load, 3).unwrap();
        let reserved = small.0.reserve(0).await.unwrap();
        assert_eq!(hogs.iter_mut().map(is_open).filter(|open| !open).count(), 1);
        assert_eq!(load.state().closing_bytes, 16 * REQUEST_BYTES);
        drop((held, reserved));
        let state = load.state();
        assert_eq!((state.bytes(), state.closing_bytes, state.waiting), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_finds_no_room_waits_and_is_then_refused() {
        let load = load();
        let (connection, _closed) = open(&load, 1).unwrap();
        let first = connection.reserve(body(32)).await.unwrap();
        let began = Instant::now();
        assert!(connection.reserve(0).await.is_none(), "it does not close itself");
        assert!(began.elapsed() >= WAIT);
        let freed = tokio::spawn(async move {
            tokio::time::sleep(WAIT / 2).await;
            drop(first);
        });
        assert!(connection.reserve(body(32)).await.is_some());
        freed.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn stale_connections_are_closed() {
        let load = load();
        let mut opened: Vec<Opened> = (1..3).filter_map(|last| open(&load, last)).collect();
        opened[0].0.answered();
        advance(UNANSWERED + SECOND).await;
        load.close_stale();
        assert_eq!(opened.iter_mut().map(is_open).collect::<Vec<_>>(), [true, false]);
        advance(IDLE).await;
        load.close_stale();
        assert!(!is_open(&mut opened[0]));
    }

    const SECOND: Duration = Duration::from_secs(1);
}

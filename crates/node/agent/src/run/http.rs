//! HTTP endpoints for health and metrics. Limits connections, in all and per address, and serves one short request on
//! each.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::Status;
use super::metrics::{CONTENT_TYPE, Metrics};

/// Connections at once, in all and from one address. The kubelet and a few scrapers need one each, and an attacker
/// needs eight addresses to keep them out.
const CONNECTIONS_MAX: usize = 64;
const CONNECTIONS_PER_ADDRESS: usize = 8;
/// Timeout for the head of a request.
const HEAD: Duration = Duration::from_secs(3);
/// Timeout for a connection, which serves one request.
const CONNECTION: Duration = Duration::from_secs(10);
const BUFFER_BYTES: usize = 16 << 10;
/// Pause after a connection could not be accepted, as when all file descriptors are in use.
const PAUSE: Duration = Duration::from_millis(100);

/// Liveness and readiness of the agent. Clones share their state.
#[derive(Clone, Debug)]
pub struct Health {
    silence_max: Duration,
    state: Arc<Mutex<HealthState>>,
}

#[derive(Debug)]
struct HealthState {
    last: Instant,
    ready: Result<(), NotReady>,
}

/// Why the agent is not ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotReady(pub(super) String);

#[derive(Debug, thiserror::Error)]
#[error("no progress for {0} s")]
struct Stalled(u64);

impl Health {
    /// Not ready yet. The agent counts as stalled if it does not report for `silence_max`.
    pub fn new(silence_max: Duration) -> Self {
        let ready = Err(NotReady("the node has not been read yet".to_owned()));
        Self {
            silence_max,
            state: Arc::new(Mutex::new(HealthState { last: Instant::now(), ready })),
        }
    }

    /// Reports progress, and whether everything is published.
    pub(super) fn report(&self, ready: Result<(), NotReady>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = HealthState { last: Instant::now(), ready };
    }

    fn alive(&self) -> Result<(), Stalled> {
        let silence = self.state.lock().unwrap_or_else(PoisonError::into_inner).last.elapsed();
        if silence <= self.silence_max {
            return Ok(());
        }
        Err(Stalled(silence.as_secs()))
    }

    pub fn ready(&self) -> Result<(), NotReady> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ready.clone()
    }
}

/// Serves `/healthz`, `/readyz` and `/metrics`.
pub fn router(Status { metrics, health }: Status) -> Router {
    Router::new()
        .route(
            "/healthz",
            get(|State(health): State<Health>| async move { answer(health.alive()) }),
        )
        .route("/readyz", get(|State(health): State<Health>| async move { answer(health.ready()) }))
        .with_state(health)
        .route("/metrics", get(move || async move { shown(&metrics) }))
}

/// Serves until dropped. Connections beyond the limits are closed at once.
pub async fn serve(listener: TcpListener, router: Router) {
    let open = Open::default();
    loop {
        let (stream, address) = match listener.accept().await {
            Ok((stream, address)) => (stream, address.ip().to_canonical()),
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
                continue;
            }
        };
        if let Some(guard) = open.admit(address) {
            tokio::spawn(serve_one(stream, router.clone(), guard));
        }
    }
}

async fn serve_one(stream: TcpStream, router: Router, _guard: ConnectionGuard) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if !matches!(timeout(CONNECTION, connection).await, Ok(Ok(()))) {
        tracing::debug!("connection ended early");
    }
}

/// Open connections by address. Clones share their state.
#[derive(Clone, Debug, Default)]
struct Open(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl Open {
    fn admit(&self, address: IpAddr) -> Option<ConnectionGuard> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let own = open.get(&address).copied().unwrap_or(0);
        if all >= CONNECTIONS_MAX || own >= CONNECTIONS_PER_ADDRESS {
            return None;
        }
        open.insert(address, own + 1);
        Some(ConnectionGuard { open: self.clone(), address })
    }
}

/// Counts an open connection while it lives.
struct ConnectionGuard {
    open: Open,
    address: IpAddr,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut open = self.open.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = open.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.address);
            }
        }
    }
}

fn answer(checked: Result<(), impl std::fmt::Display>) -> Response {
    match checked {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

fn shown(metrics: &Metrics) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.encode()).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;

    use super::*;

    async fn served() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let health = Health::new(Duration::from_secs(60));
        let status = Status { metrics: Metrics::new(), health };
        tokio::spawn(serve(listener, router(status)));
        address
    }

    async fn connect(from: [u8; 4], to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// Reads until the connection is closed.
    async fn answer(stream: &mut TcpStream, within: Duration) -> String {
        let mut answer = Vec::new();
        let read = timeout(within, stream.read_to_end(&mut answer)).await;
        // A connection that is closed with unread bytes ends in an error.
        drop(read.unwrap());
        String::from_utf8(answer).unwrap()
    }

    const SOON: Duration = Duration::from_secs(2);
    const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n";

    #[tokio::test]
    async fn idle_connections_do_not_keep_the_kubelet_out() {
        let to = served().await;
        let mut silent = Vec::new();
        for _ in 0..4 * CONNECTIONS_MAX {
            silent.push(connect([127, 0, 0, 2], to).await);
        }
        let mut kubelet = connect([127, 0, 0, 3], to).await;
        kubelet.write_all(HEALTH).await.unwrap();
        assert!(answer(&mut kubelet, SOON).await.starts_with("HTTP/1.1 200"));
        // Connections beyond the limit were closed at once, the others time out.
        assert_eq!(answer(silent.last_mut().unwrap(), SOON).await, "");
        assert_eq!(answer(&mut silent[0], HEAD + SOON).await, "");
        let mut late = connect([127, 0, 0, 2], to).await;
        late.write_all(HEALTH).await.unwrap();
        assert!(answer(&mut late, SOON).await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn slow_and_oversized_heads_are_rejected() {
        let to = served().await;
        let mut slow = connect([127, 0, 0, 2], to).await;
        slow.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
        let mut large = connect([127, 0, 0, 2], to).await;
        large.write_all(b"GET /metrics HTTP/1.1\r\nX: ").await.unwrap();
        drop(large.write_all(&[b'x'; 4 * BUFFER_BYTES]).await);
        assert!(!answer(&mut large, SOON).await.contains("200"));
        assert!(!answer(&mut slow, HEAD + SOON).await.contains("200"));
    }
}

//! HTTP ports that stay up under attack: bounded connections, bytes and time.
//!
//! Every port keeps its own `Load`, so an attack on one port does not use up another. A request is read
//! whole before a handler sees it. What one connection and all connections together may hold is in
//! [`Limits`]; what exceeds it is shed, from the address that holds the most.

mod gate;
mod load;

pub use load::Limits;

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Router};
use axum_server::accept::Accept;
use axum_server::service::SendService;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use axum_server::{Handle, Server};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper_util::rt::TokioTimer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::http::status;
use crate::metrics::Metrics;
use gate::Gate;
use load::{Connection, Load};

/// How long requests in progress may take after shutdown began.
const DRAIN: Duration = Duration::from_secs(10);
/// Timeout for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Timeout for the head of a request, and for an idle HTTP/1 connection.
const HEAD: Duration = Duration::from_secs(10);
/// Timeout for the body of a request.
const BODY: Duration = Duration::from_secs(5);
/// How often an HTTP/2 connection is pinged, and how long the answer may take.
const PING: Duration = Duration::from_secs(20);
/// How often stale connections are closed.
const SWEEP: Duration = Duration::from_secs(1);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 4_096;
/// What a client that was shed should wait before it tries again, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Per-connection buffers. With [`Limits::connections`] they bound what is read ahead of a reservation, and
/// what the kernel holds for this process.
const RECEIVE_BUFFER_BYTES: u32 = 256 << 10;
const HTTP1_BUFFER_BYTES: usize = 64 << 10;
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// Tokens have at most 16 KiB.
const HEAD_BYTES_MAX: u32 = 24 << 10;
const STREAMS_MAX: u32 = 64;
const RESET_STREAMS_MAX: usize = 20;

/// Listens on an address, with a queue that a burst of connections does not overflow at once.
///
/// # Errors
/// When the address cannot be listened on.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)?.into_std()
}

/// An HTTP port.
pub struct Port {
    /// Its name in metrics.
    pub name: &'static str,
    /// What it may hold.
    pub limits: Limits,
    /// Where it counts.
    pub metrics: Metrics,
}

impl Port {
    /// Serves with TLS until `shutdown`, then finishes the requests in progress. The certificate can be
    /// replaced through `tls` meanwhile.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub async fn serve_tls(
        self,
        listener: TcpListener,
        tls: RustlsConfig,
        router: Router,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let load = self.load();
        let tls = RustlsAcceptor::new(tls).handshake_timeout(HANDSHAKE);
        let server = server(listener)?.acceptor(tls.acceptor(Gate(load.clone())));
        run(server, load, router, shutdown).await
    }

    /// Serves in the clear, HTTP/1 only.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub async fn serve(
        self,
        listener: TcpListener,
        router: Router,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let load = self.load();
        let server = server(listener)?.acceptor(Gate(load.clone())).http1_only();
        run(server, load, router, shutdown).await
    }

    fn load(self) -> Arc<Load> {
        Arc::new(Load::new(self.name, self.limits, self.metrics))
    }
}

fn server(listener: TcpListener) -> io::Result<Server<SocketAddr>> {
    listener.set_nonblocking(true)?;
    let mut server = axum_server::from_tcp(listener)?;
    let http = server.http_builder();
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HTTP1_BUFFER_BYTES);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEAD_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
        .max_local_error_reset_streams(RESET_STREAMS_MAX);
    Ok(server)
}

async fn run<A>(
    server: Server<SocketAddr, A>,
    load: Arc<Load>,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()>
where
    A: Accept<TcpStream, Router> + Clone + Send + Sync + 'static,
    A::Stream: AsyncRead + AsyncWrite + Unpin + Send,
    A::Service: SendService<hyper::Request<Incoming>> + Send,
    A::Future: Send,
{
    let handle = Handle::new();
    let served = server.handle(handle.clone());
    let served = served.serve(router.layer(from_fn(admit)).into_make_service());
    let mut served = std::pin::pin!(served);
    let mut shutdown = std::pin::pin!(shutdown);
    let mut sweep = tokio::time::interval(SWEEP);
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = &mut served => return ended,
            () = &mut shutdown, if !stopping => {
                stopping = true;
                handle.graceful_shutdown(Some(DRAIN));
            }
            _ = sweep.tick() => load.close_stale(),
        }
    }
}

/// Reserves what a request needs, reads it whole, and passes it on.
async fn admit(
    Extension(connection): Extension<Arc<Connection>>,
    request: Request,
    next: Next,
) -> Response {
    let limits = connection.limits();
    let body_bytes = request.body().size_hint().upper();
    if body_bytes.is_some_and(|bytes| bytes > limits.body_bytes) {
        return too_large(limits);
    }
    // A body of unknown length may have as many bytes as any.
    let body_bytes = body_bytes.unwrap_or(limits.body_bytes);
    let Some(reservation) = connection.reserve(body_bytes).await else {
        let why = "too many requests in flight; try again later";
        let mut response = status(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", why);
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        return response;
    };
    let (head, body) = request.into_parts();
    let bytes_max = usize::try_from(limits.body_bytes).unwrap_or(usize::MAX);
    let body = match timeout(BODY, to_bytes(body, bytes_max)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) if is_length(&error) => return too_large(limits),
        Ok(Err(error)) => {
            let why = format!("the body cannot be read: {error}");
            return status(StatusCode::BAD_REQUEST, "BadRequest", &why);
        }
        Err(_) => {
            connection.shed("body_timeout");
            let why = format!("the body did not arrive within {} s", BODY.as_secs());
            return status(StatusCode::REQUEST_TIMEOUT, "Timeout", &why);
        }
    };
    let response = next.run(Request::from_parts(head, Body::from(body))).await;
    if response.status().is_success() {
        connection.answered();
    }
    // The response counts until it is written.
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _reserved = &reservation;
            frame
        }))
    })
}

fn is_length(error: &axum::Error) -> bool {
    let source = std::error::Error::source(error);
    source.is_some_and(|source| source.is::<http_body_util::LengthLimitError>())
}

fn too_large(limits: Limits) -> Response {
    let why = format!("a request has at most {} bytes", limits.body_bytes);
    status(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", &why).into_response()
}

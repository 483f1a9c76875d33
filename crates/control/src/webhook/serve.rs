//! A listener with TLS whose certificate can be changed while it runs.
//!
//! Owns the listener. Must not know where certificates come from.

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;

/// What is under way may take so long to end.
const DRAIN: Duration = Duration::from_secs(10);
/// Whoever connects must have shaken hands by then.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Serves until `shutdown`, then finishes what is under way.
pub async fn serve(
    listener: TcpListener,
    tls: RustlsConfig,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let handle = Handle::new();
    let stop = handle.clone();
    let waiting = tokio::spawn(async move {
        shutdown.await;
        stop.graceful_shutdown(Some(DRAIN));
    });
    let server = axum_server::from_tcp_rustls(listener, tls)?;
    let server = server.map(|acceptor| acceptor.handshake_timeout(HANDSHAKE));
    let served = server.handle(handle).serve(router.into_make_service()).await;
    waiting.abort();
    served
}

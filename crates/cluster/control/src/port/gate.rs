//! Accepts or drops connections before TLS. Accepted ones can be closed from outside.

use std::future::{Future as _, Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Extension;
use axum::middleware::AddExtension;
use axum_server::accept::Accept;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tower::Layer as _;

use super::load::{Connection, Load};

/// Accepts connections while there is room.
#[derive(Clone)]
pub(super) struct Gate(pub(super) Arc<Load>);

impl<S> Accept<TcpStream, S> for Gate {
    type Stream = Stream;
    type Service = AddExtension<S, Arc<Connection>>;
    type Future = Ready<io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        ready(
            self.take(stream)
                .map(|(stream, connection)| (stream, Extension(connection).layer(service))),
        )
    }
}

impl Gate {
    fn take(&self, stream: TcpStream) -> io::Result<(Stream, Arc<Connection>)> {
        stream.set_nodelay(true)?;
        // An IPv4 address and its form in IPv6 are the same client.
        let address = stream.peer_addr()?.ip().to_canonical();
        let full = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let (connection, closed) = self.0.accept(address).ok_or_else(full)?;
        Ok((Stream { stream, closed: Some(closed) }, Arc::new(connection)))
    }
}

/// A stream that fails when it is closed from outside.
pub(super) struct Stream {
    stream: TcpStream,
    /// `None`: it was closed.
    closed: Option<oneshot::Receiver<()>>,
}

impl Stream {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let closed = self.closed.as_mut().map(|closed| Pin::new(closed).poll(context));
        if matches!(closed, Some(Poll::Pending)) {
            return Ok(());
        }
        self.closed = None;
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

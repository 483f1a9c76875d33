//! The server: options, parts, and connections.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Body as HttpBody;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::admission::webhook::{ResolveService, Webhooks};
use crate::crd;
use crate::identity::{Token, Tokens};
use crate::kinds::Kinds;
use crate::patch::ParseYaml;
use crate::rest;
use crate::seed;
use crate::store::{HistoryLimits, Store};

#[derive(Clone)]
pub struct Options {
    /// Directory of the objects; `None`: in memory only.
    pub data: Option<PathBuf>,
    /// Changes kept per resource. A watch that falls further behind must list again.
    pub history: usize,
    pub bookmark_interval: Duration,
    /// Tokens besides those issued for service accounts.
    pub tokens: Vec<Token>,
    pub authorization: Authorization,
    /// Empty deleted namespaces in the server, if no controller does.
    pub empty_namespaces: bool,
    /// Addresses of Services of admission webhooks.
    pub resolve_service: Option<ResolveService>,
    /// Parser of YAML patches; `None`: JSON only.
    pub parse_yaml: Option<ParseYaml>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authorization {
    /// No authorization. A token must be valid nevertheless.
    #[default]
    AlwaysAllow,
    /// Roles and bindings in the server decide. Clients without a token are
    /// `system:anonymous`, except those in the same process, which may do everything.
    Rbac,
    /// As `Rbac`, but without a token only health and version are answered.
    RbacWithToken,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            data: None,
            history: 8192,
            bookmark_interval: Duration::from_secs(60),
            tokens: Vec::new(),
            authorization: Authorization::default(),
            empty_namespaces: true,
            resolve_service: None,
            parse_yaml: None,
        }
    }
}

/// Bytes of history per resource.
const HISTORY_BYTES: usize = 64 << 20;

/// Why a server could not be made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// What is kept on disk cannot be used.
    #[error("the data of the cluster cannot be opened: {0}")]
    Data(#[from] crate::store::JournalError),
    /// What a new cluster starts with could not be written.
    #[error("the first objects could not be stored: {0}")]
    Seed(crate::status::Status),
}

pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) kinds: Kinds,
    pub(crate) tokens: Tokens,
    pub(crate) webhooks: Webhooks,
    pub(crate) options: Options,
    /// Whether interrupted deletions have been resumed, which needs a runtime and so waits for the first request.
    pub(crate) resumed: AtomicBool,
}

/// A Kubernetes API in this process. Cheap to clone; all clones are the same server.
#[derive(Clone)]
pub struct ApiServer {
    server: Arc<Server>,
}

impl ApiServer {
    /// Opens or creates the store.
    ///
    /// # Errors
    ///
    /// If what is kept in `options.data` cannot be read.
    pub fn new(options: Options) -> Result<Self, OpenError> {
        let limits = HistoryLimits { changes: options.history.max(1), bytes: HISTORY_BYTES };
        let store = match &options.data {
            Some(directory) => Store::open(directory, limits).map_err(OpenError::Data)?,
            None => Store::in_memory(limits),
        };
        seed::plant(&store).map_err(OpenError::Seed)?;
        let kinds = Kinds::default();
        crd::settle(&store, &kinds);
        let tokens = Tokens::new(&options.tokens);
        let webhooks = Webhooks::new(options.resolve_service.clone());
        let server =
            Server { store, kinds, tokens, webhooks, options, resumed: AtomicBool::new(false) };
        Ok(Self { server: Arc::new(server) })
    }

    /// The API as a service, for clients in the same process: no socket is needed.
    pub fn service(&self) -> Service {
        Service { server: self.server.clone(), outside: None }
    }

    /// Serves the API on a socket until `shutdown`. Watches end then; requests in progress are answered.
    ///
    /// # Errors
    ///
    /// If connections can no longer be accepted.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        self.serve_with(listener, None, shutdown).await
    }

    /// The same with TLS. Clients such as kubectl show their token only there.
    ///
    /// # Errors
    ///
    /// If connections can no longer be accepted.
    pub async fn serve_tls(
        &self,
        listener: TcpListener,
        config: Arc<ServerConfig>,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        self.serve_with(listener, Some(config.into()), shutdown).await
    }

    async fn serve_with(
        &self,
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let (stop, stopped) = watch::channel(());
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let Ok(local) = stream.local_addr() else { continue };
                        let outside = Some(local.ip().to_canonical());
                        let service = Service { server: self.server.clone(), outside };
                        connections.spawn(begin(service, stream, tls.clone(), stopped.clone()));
                    }
                    // A client that gave up is no reason to stop; when file descriptors run out, wait.
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                () = &mut shutdown => break,
            }
        }
        drop(stop);
        let drained = async { while connections.join_next().await.is_some() {} };
        // Watches do not end by themselves, so remaining connections are closed.
        let _ = tokio::time::timeout(DRAIN, drained).await;
        Ok(())
    }
}

/// Shakes hands where there is TLS, and answers.
async fn begin(
    service: Service,
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    stopped: watch::Receiver<()>,
) {
    // Send small answers at once.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else { return converse(service, stream, stopped).await };
    match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => converse(service, stream, stopped).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

/// Answers the requests of one connection until it ends or `stopped` closes.
async fn converse<S>(service: Service, stream: S, mut stopped: watch::Receiver<()>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let http = auto::Builder::new(TokioExecutor::new());
    let service = hyper_util::service::TowerToHyperService::new(service);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

/// Timeout for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Grace for requests in progress at shutdown.
const DRAIN: Duration = Duration::from_secs(2);

/// The API as a [`tower::Service`].
#[derive(Clone)]
pub struct Service {
    server: Arc<Server>,
    /// The address at which requests come in, if they come through a socket.
    outside: Option<IpAddr>,
}

impl<B> tower::Service<Request<B>> for Service
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<rest::Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (server, outside) = (self.server.clone(), self.outside);
        Box::pin(async move { Ok(rest::handle(server, request, outside).await) })
    }
}

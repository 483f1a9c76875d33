//! HTTPS calls to webhooks, with the CA of their configuration. Connections are kept alive.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::rt::ReadBufCursor;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const MAX_ANSWER_BYTES: usize = 3 * 1024 * 1024;

/// Endpoints with kept connections.
const MAX_KEPT: usize = 256;

/// Address of a Service by namespace, name and port, because there is no cluster network.
pub type ResolveService = Arc<dyn Fn(&str, &str, u16) -> Option<SocketAddr> + Send + Sync>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Endpoint {
    pub(super) url: String,
    pub(super) server_name: String,
    /// `None`: resolve the name.
    pub(super) address: Option<SocketAddr>,
    /// The certificates that are trusted, in PEM.
    pub(super) ca_bundle: Vec<u8>,
}

type HttpsClient = Client<Connector, Full<Bytes>>;

#[derive(Default)]
pub(super) struct Caller {
    clients: Mutex<HashMap<Endpoint, HttpsClient>>,
}

impl Caller {
    fn client(&self, endpoint: &Endpoint) -> Result<HttpsClient, String> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(endpoint) {
            return Ok(client.clone());
        }
        if clients.len() >= MAX_KEPT {
            clients.clear();
        }
        let connector = Connector::new(endpoint)?;
        let client = Client::builder(TokioExecutor::new()).build(connector);
        clients.insert(endpoint.clone(), client.clone());
        Ok(client)
    }

    pub(super) async fn post(
        &self,
        endpoint: &Endpoint,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>, String> {
        let client = self.client(endpoint)?;
        let url = format!("{}?timeout={}s", endpoint.url, limit.as_secs());
        let failed = |why: String| format!("Post {url:?}: {why}");
        let uri: Uri = url.parse().map_err(|error| failed(format!("{error}")))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(uri)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| failed(error.to_string()))?;
        let answer = async {
            let response = client.request(request).await.map_err(|error| causes(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES);
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            if !status.is_success() {
                return Err(format!("the server answered with status {status}"));
            }
            Ok(body.to_vec())
        };
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer.map_err(failed),
            Err(_) => Err(failed("context deadline exceeded".to_owned())),
        }
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[derive(Clone)]
struct Connector {
    tls: TlsConnector,
    server_name: ServerName<'static>,
    address: Option<SocketAddr>,
}

impl Connector {
    fn new(endpoint: &Endpoint) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&endpoint.ca_bundle) {
            let certificate = certificate.map_err(|error| format!("caBundle: {error}"))?;
            roots.add(certificate).map_err(|error| format!("caBundle: {error}"))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server_name = ServerName::try_from(endpoint.server_name.clone())
            .map_err(|error| format!("{}: {error}", endpoint.server_name))?;
        let tls = TlsConnector::from(Arc::new(config));
        Ok(Self { tls, server_name, address: endpoint.address })
    }
}

impl tower::Service<Uri> for Connector {
    type Response = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { tls, server_name, address } = self.clone();
        Box::pin(async move {
            let socket = match address {
                Some(address) => TcpStream::connect(address).await?,
                None => {
                    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
                    TcpStream::connect((host, uri.port_u16().unwrap_or(443))).await?
                }
            };
            socket.set_nodelay(true)?;
            Ok(Stream(TokioIo::new(tls.connect(server_name, socket).await?)))
        })
    }
}

struct Stream(TokioIo<TlsStream<TcpStream>>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(context)
    }
}

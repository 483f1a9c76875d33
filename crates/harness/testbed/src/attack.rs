//! Clients that hold the connections and the memory of a server with TLS, as an attacker does.
//!
//! Addresses of 127.0.0.0/8 tell attackers and others apart.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What is written at a time.
const CHUNK_BYTES: usize = 16 << 10;
/// What is held back of every body.
const HELD_BACK_BYTES: usize = 1 << 10;
/// All clients have started after this long.
const RAMP: Duration = Duration::from_secs(1);
/// A client that was shed comes back after this long.
const PAUSE: Duration = Duration::from_millis(500);

/// A server with TLS.
#[derive(Clone)]
pub struct Target {
    address: SocketAddr,
    roots: Arc<rustls::RootCertStore>,
}

impl Target {
    /// The server at an address, whose certificate this authority (PEM) has signed for `localhost`.
    ///
    /// # Errors
    /// When the authority cannot be read.
    pub fn new(address: SocketAddr, authority: &str) -> anyhow::Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes())?)?;
        Ok(Self { address, roots: Arc::new(roots) })
    }

    /// Connects from an address, for one protocol (ALPN).
    ///
    /// # Errors
    /// When the server does not take the connection.
    pub async fn connect(
        &self,
        from: IpAddr,
        protocol: &str,
    ) -> anyhow::Result<TlsStream<TcpStream>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(from, 0))?;
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost")?;
        Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
    }

    /// Sends a request as it is written, which must ask for the end of the connection. Returns the answer.
    ///
    /// # Errors
    /// When there is none.
    pub async fn send(&self, from: IpAddr, request: &str) -> anyhow::Result<String> {
        let mut stream = self.connect(from, "http/1.1").await?;
        stream.write_all(request.as_bytes()).await?;
        answer(&mut stream).await
    }

    /// Posts a body over a connection of its own. Returns the status code.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn post(&self, from: IpAddr, path: &str, body: &[u8]) -> anyhow::Result<u16> {
        let mut stream = self.connect(from, "http/1.1").await?;
        stream.write_all(&head(path, body.len())).await?;
        stream.write_all(body).await?;
        status(&mut stream).await
    }

    /// Starts clients that post bodies to `/validate` and never end them, again and again.
    pub fn slow_bodies(&self, from: &[IpAddr], clients: usize, body_bytes: usize) -> Attack {
        self.attack(from, clients, move |target, from, sent| async move {
            let mut stream = target.connect(from, "http/1.1").await?;
            stream.write_all(&head("/validate", body_bytes)).await?;
            let chunk = [b' '; CHUNK_BYTES];
            let mut left = body_bytes.saturating_sub(HELD_BACK_BYTES);
            while left > 0 {
                let now = left.min(CHUNK_BYTES);
                stream.write_all(chunk.get(..now).unwrap_or_default()).await?;
                sent.fetch_add(now as u64, Ordering::Relaxed);
                left -= now;
            }
            status(&mut stream).await.map(drop)
        })
    }

    /// Starts clients that connect and say nothing, again and again.
    pub fn idle(&self, from: &[IpAddr], clients: usize) -> Attack {
        self.attack(from, clients, |target, from, _| async move {
            let mut stream = target.connect(from, "http/1.1").await?;
            stream.read_u8().await?;
            Ok(())
        })
    }

    fn attack<F>(
        &self,
        from: &[IpAddr],
        clients: usize,
        once: impl Fn(Self, IpAddr, Arc<AtomicU64>) -> F + Clone + Send + 'static,
    ) -> Attack
    where
        F: Future<Output = anyhow::Result<()>> + Send,
    {
        let (sent, rounds) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let mut tasks = JoinSet::new();
        for (at, from) in (0..).zip(from.iter().cycle().take(clients).copied()) {
            let (target, once) = (self.clone(), once.clone());
            let (sent, rounds) = (sent.clone(), rounds.clone());
            // Handshakes cost the attacker as much as the server; both are in one machine here.
            let delay = RAMP * at / u32::try_from(clients).unwrap_or(u32::MAX);
            tasks.spawn(async move {
                tokio::time::sleep(delay).await;
                loop {
                    // However it ends, the next one may get further.
                    let _ = once(target.clone(), from, sent.clone()).await;
                    rounds.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        Attack { sent, rounds, _tasks: tasks }
    }
}

/// Clients that attack until this is dropped.
pub struct Attack {
    sent: Arc<AtomicU64>,
    rounds: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Attack {
    /// Bytes of bodies that were written.
    pub fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// How many times the server has ended a request or a connection.
    pub fn ended(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }
}

fn head(path: &str, body_bytes: usize) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {body_bytes}\r\nconnection: close\r\n\r\n"
    )
    .into_bytes()
}

/// Reads an answer to its end.
async fn answer(stream: &mut TlsStream<TcpStream>) -> anyhow::Result<String> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer).await {
        // Some servers do not say goodbye.
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error.into()),
        _ => {}
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The code of an answer.
async fn status(stream: &mut TlsStream<TcpStream>) -> anyhow::Result<u16> {
    let answer = answer(stream).await?;
    let code = answer.split(' ').nth(1).context("no answer")?;
    Ok(code.parse()?)
}

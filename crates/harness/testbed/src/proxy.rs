//! A TCP proxy that can be told to misbehave.
//!
//! Owns connections between a client and a server, and what happens to them. Must not know what is said
//! over them: TLS goes through untouched.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// So much is taken up at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// What becomes of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    /// It arrives, so much later.
    Late(Duration),
    /// It does not arrive for now.
    Stalled,
}

#[derive(Clone, Copy, Debug)]
struct State {
    mood: Mood,
    /// Connections made under an earlier number are cut.
    cuts: u64,
}

/// The proxy. Connections are cut when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of this machine, for a server.
    ///
    /// # Errors
    /// When there is no free port.
    pub async fn start(server: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (state, _) = watch::channel(State { mood: Mood::Late(Duration::ZERO), cuts: 0 });
        let state = Arc::new(state);
        let accepting = tokio::spawn(accept(listener, server, state.clone()));
        Ok(Self { address, state, accepting })
    }

    /// Where to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every connection there is.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// From now on everything arrives so much later.
    pub fn delay(&self, by: Duration) {
        self.state.send_modify(|state| state.mood = Mood::Late(by));
    }

    /// Nothing arrives from now on, and no connection ends.
    pub fn stall(&self) {
        self.state.send_modify(|state| state.mood = Mood::Stalled);
    }

    /// All is well again, and what was held arrives.
    pub fn heal(&self) {
        self.delay(Duration::ZERO);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, state: Arc<watch::Sender<State>>) {
    loop {
        // A client that gave up, or no descriptors left: the next one may do better.
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        tokio::spawn(converse(client, server, state.subscribe()));
    }
}

async fn converse(client: TcpStream, server: SocketAddr, mut state: watch::Receiver<State>) {
    let began = state.borrow_and_update().cuts;
    let Ok(server) = TcpStream::connect(server).await else { return };
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let there = pass(from_client, to_server, state.clone());
    let back = pass(from_server, to_client, state.clone());
    tokio::select! {
        // Either end has closed, or the connection is cut: both ends see it at once.
        () = there => {}
        () = back => {}
        _ = state.wait_for(|state| state.cuts != began) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(read @ 1..) = from.read(&mut chunk).await {
        let mood = match state.wait_for(|state| state.mood != Mood::Stalled).await {
            Ok(state) => state.mood,
            Err(_) => return,
        };
        if let Mood::Late(by) = mood
            && !by.is_zero()
        {
            tokio::time::sleep(by).await;
        }
        if to.write_all(chunk.get(..read).unwrap_or_default()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends back whatever it is sent.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (mut from, mut to) = stream.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut from, &mut to).await });
            }
        });
        address
    }

    async fn say(stream: &mut TcpStream) -> std::io::Result<u8> {
        stream.write_all(&[7]).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn what_is_cut_ends_and_what_comes_later_does_not() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut first = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(say(&mut first).await.unwrap(), 7);
        proxy.cut();
        assert!(say(&mut first).await.is_err());
        let mut second = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(say(&mut second).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn what_is_stalled_arrives_when_all_is_well_again() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.stall();
        let said = tokio::time::timeout(Duration::from_millis(50), say(&mut stream)).await;
        assert!(said.is_err(), "it was stalled");
        proxy.heal();
        assert_eq!(stream.read_u8().await.unwrap(), 7);
    }
}

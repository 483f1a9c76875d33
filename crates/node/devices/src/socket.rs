//! gRPC over Unix sockets.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use futures::Stream;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::{Channel, Endpoint, Error, Uri};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Identifies the file at a path; a recreated file differs, even with the same inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, i64, i64);

impl std::fmt::Display for Identity {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}@{}.{:09}", self.0, self.1, self.2)
    }
}

/// `None` if there is no file.
pub fn identity(path: &Path) -> Option<Identity> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some(Identity(found.ino(), found.ctime(), found.ctime_nsec()))
}

/// Listens; replaces the socket of an earlier process.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(path)
}

pub fn incoming(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> + Send {
    futures::stream::unfold(listener, |listener| async move {
        let caller = listener.accept().await.map(|(stream, _)| stream);
        Some((caller, listener))
    })
}

pub async fn connect(path: &Path) -> Result<Channel, Error> {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The address is not used, but its host becomes the authority, which Go servers check.
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(CONNECT_TIMEOUT);
    endpoint.connect_with_connector(connector).await
}

/// An error with its sources: "transport error" alone does not help anybody.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(source) = inner {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        inner = source.source();
    }
    text
}

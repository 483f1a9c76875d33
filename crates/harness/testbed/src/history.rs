//! Everything that was ever written under a prefix of etcd, in order, without a gap.
//!
//! Owns reading etcd's own history as it grows, beside the API server and whatever becomes of that. For
//! those who check what happened: nothing that was tested has a hand in it. Must not know kinds: values
//! are JSON, which kube-apiserver has to be told to store ([`AS_JSON`]).

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// The argument of kube-apiserver with which what it stores can be read here.
pub const AS_JSON: &str = "--storage-media-type=application/json";

/// Between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(200);

/// A write.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Which one it was: larger is later, and those of one transaction have the same.
    pub revision: u64,
    /// What was written, as `/registry/pods/default/one`.
    pub key: String,
    /// The object; `None`: it was deleted.
    pub value: Option<Value>,
}

/// Follows a prefix from the beginning until nobody listens. An error is the last thing that is told.
pub(crate) fn follow(
    etcd_port: u16,
    prefix: &str,
    wanted: &'static [&'static str],
) -> mpsc::UnboundedReceiver<anyhow::Result<Change>> {
    let (told, heard) = mpsc::unbounded_channel();
    let prefix = prefix.to_owned();
    tokio::spawn(async move {
        let mut next = 1;
        while !told.is_closed() {
            match follow_once(etcd_port, (&prefix, wanted), &mut next, &told).await {
                // The connection has ended, or there was none: etcd remembers where we were.
                Ok(()) => tokio::time::sleep(AGAIN).await,
                Err(error) => {
                    drop(told.send(Err(error)));
                    return;
                }
            }
        }
    });
    heard
}

/// The first key after all that begin with a prefix.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

async fn follow_once(
    etcd_port: u16,
    (prefix, wanted): (&str, &[&str]),
    next: &mut u64,
    told: &mpsc::UnboundedSender<anyhow::Result<Change>>,
) -> anyhow::Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, etcd_port));
    let Ok(mut stream) = TcpStream::connect(address).await else { return Ok(()) };
    let body = json!({ "create_request": {
        "key": STANDARD.encode(prefix),
        "range_end": STANDARD.encode(end_of(prefix)),
        "start_revision": next.to_string(),
    }})
    .to_string();
    let head = format!("POST /v3/watch HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
    if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
        return Ok(());
    }
    let mut lines = BufReader::new(stream).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if !line.starts_with('{') {
            continue;
        }
        let said: Value = serde_json::from_str(&line).context("etcd told no JSON")?;
        let result = &said["result"];
        if result["canceled"] == true || said.get("error").is_some() {
            bail!("the history of {prefix} is not whole any more: {line}");
        }
        for event in result["events"].as_array().into_iter().flatten() {
            let (revision, key) = read_key(event)?;
            *next = revision + 1;
            if !wanted.iter().any(|wanted| key.starts_with(wanted)) {
                continue;
            }
            let value = read_value(event, &key)?;
            if told.send(Ok(Change { revision, key, value })).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn bytes(event: &Value, field: &str) -> anyhow::Result<Vec<u8>> {
    Ok(STANDARD.decode(event["kv"][field].as_str().unwrap_or_default())?)
}

fn read_key(event: &Value) -> anyhow::Result<(u64, String)> {
    let revision = event["kv"]["mod_revision"].as_str().and_then(|text| text.parse().ok());
    let revision = revision.context("a change without a revision")?;
    Ok((revision, String::from_utf8(bytes(event, "key")?)?))
}

fn read_value(event: &Value, key: &str) -> anyhow::Result<Option<Value>> {
    if event["type"] == "DELETE" {
        return Ok(None);
    }
    let read = serde_json::from_slice(&bytes(event, "value")?);
    read.with_context(|| format!("{key} is not stored as JSON; start with {AS_JSON}")).map(Some)
}

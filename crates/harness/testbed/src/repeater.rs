//! A server in front of the API that tells watches more than there is to tell.
//!
//! Owns what becomes of the events of a watch on their way: some come twice, some late, and whatever follows
//! a late one comes late, too, since events of one watch do not overtake each other. All else goes through as
//! it is. Talks in the clear, as it has no certificate that clients would believe. Must not know any kind.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Of so many events one comes twice.
const TWICE: u64 = 3;

/// Of so many events one comes late.
const LATE: u64 = 41;

/// By so much.
const LATE_BY: Duration = Duration::from_millis(60);

/// No request to the API is larger.
const REQUEST_MAX_BYTES: usize = 8 << 20;

/// The server. Ends when it is dropped.
#[derive(Debug)]
pub struct Repeater {
    address: SocketAddr,
    told: Arc<AtomicU64>,
    serving: JoinHandle<()>,
}

#[derive(Clone)]
struct Behind {
    client: Client,
    told: Arc<AtomicU64>,
}

impl Repeater {
    /// Listens on a free port of this machine. What comes is sent on with a client that adds nothing about
    /// who asks.
    pub(crate) async fn start(client: Client) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("no port is free")?;
        let address = listener.local_addr()?;
        let told = Arc::new(AtomicU64::new(0));
        let behind = Behind { client, told: told.clone() };
        let router = Router::new().fallback(pass).with_state(behind);
        let serving = tokio::spawn(async move { drop(axum::serve(listener, router).await) });
        Ok(Self { address, told, serving })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many events were told twice.
    pub fn repeated(&self) -> u64 {
        self.told.load(Ordering::Relaxed) / TWICE
    }
}

impl Drop for Repeater {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn pass(State(behind): State<Behind>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let mut parameters = parts.uri.query().unwrap_or_default().split('&');
    let watches = parameters.any(|parameter| matches!(parameter, "watch=true" | "watch=1"));
    let Ok(body) = axum::body::to_bytes(body, REQUEST_MAX_BYTES).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let request = http::Request::from_parts(parts, kube::client::Body::from(body));
    match behind.client.send(request).await {
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
        Ok(answer) if watches && answer.status().is_success() => {
            let kind = answer.headers().get(header::CONTENT_TYPE);
            let has_lengths = kind.is_some_and(|kind| {
                kind.as_bytes().starts_with(b"application/vnd.kubernetes.protobuf")
            });
            answer.map(|body| repeat(body, has_lengths, behind.told)).into_response()
        }
        Ok(answer) => answer.map(Body::new).into_response(),
    }
}

/// The events of a body, some of them twice or late.
fn repeat(mut body: kube::client::Body, has_lengths: bool, told: Arc<AtomicU64>) -> Body {
    let (sender, receiver) = mpsc::channel::<Bytes>(16);
    tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                // Nobody listens any more; the API is to know.
                () = sender.closed() => return,
            };
            let Some(Ok(frame)) = frame else { return };
            let Ok(came) = frame.into_data() else { continue };
            held.extend_from_slice(&came);
            while let Some(length) = first_event(&held, has_lengths) {
                let event: Bytes = held.drain(..length).collect::<Vec<u8>>().into();
                let number = told.fetch_add(1, Ordering::Relaxed);
                if number.is_multiple_of(LATE) {
                    tokio::time::sleep(LATE_BY).await;
                }
                let times = if number.is_multiple_of(TWICE) { 2 } else { 1 };
                for _ in 0..times {
                    if sender.send(event.clone()).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
    Body::from_stream(futures::stream::unfold(receiver, async |mut receiver| {
        let event = receiver.recv().await?;
        Some((Ok::<_, Infallible>(event), receiver))
    }))
}

/// How long the first event is, with what separates it from the next, if it is complete.
fn first_event(held: &[u8], has_lengths: bool) -> Option<usize> {
    if !has_lengths {
        return held.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
    }
    let length = u32::from_be_bytes(*held.first_chunk()?);
    let whole = usize::try_from(length).ok()?.checked_add(4)?;
    (held.len() >= whole).then_some(whole)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Api, PostParams, WatchEvent, WatchParams};

    use super::*;
    use crate::{Testbed, Which};

    #[test]
    fn events_are_found_by_their_lines_or_their_lengths() {
        assert_eq!(first_event(b"{}\n{}\n", false), Some(3));
        assert_eq!(first_event(b"{}", false), None);
        assert_eq!(first_event(b"\0\0\0\x02abc", true), Some(6));
        assert_eq!(first_event(b"\0\0\0\x02a", true), None);
        assert_eq!(first_event(b"\0\0", true), None);
    }

    #[tokio::test]
    async fn a_watch_is_told_some_things_twice_and_everything_else_as_it_is() {
        let testbed = Testbed::start(Which::Embedded).await.unwrap();
        let repeater = testbed.repeater().await.unwrap();
        let kubeconfig = testbed.in_the_clear(testbed.admin_token(), repeater.address()).unwrap();
        let config: kube::config::Kubeconfig =
            kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
        let config =
            kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
        let maps: Api<ConfigMap> = Api::default_namespaced(Client::try_from(config).unwrap());
        let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
        for number in 0..6 {
            let mut map = ConfigMap::default();
            map.metadata.name = Some(format!("map-{number}"));
            maps.create(&PostParams::default(), &map).await.unwrap();
        }
        let mut seen = Vec::new();
        while seen.len() < 8 {
            let event = tokio::time::timeout(Duration::from_secs(5), events.next()).await;
            if let WatchEvent::Added(map) = event.unwrap().unwrap().unwrap() {
                seen.push(map.metadata.name.unwrap());
            }
        }
        seen.dedup();
        assert_eq!(seen.len(), 6, "each is told, in order, and two of them twice: {seen:?}");
        assert_eq!(repeater.repeated(), 2);
    }
}

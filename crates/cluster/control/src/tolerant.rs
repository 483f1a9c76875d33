//! Repairs timestamps that the API server accepts and this client cannot parse: the last two days of the year 9999.
//!
//! One such time in the `managedFields` of an object, which its owner writes, would otherwise end every watch and list
//! with that object, and one in the Lease would keep every replica from leading. Other answers pass unchanged.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{Response, header};
use hyper::body::{Body, Frame};
use jiff::Timestamp;
use memchr::{memchr, memmem, memrchr};
use serde_json::Value;

/// Every such timestamp contains this.
const BEYOND: &[u8] = b"9999-12-3";

pub(crate) fn tolerant<B>(response: Response<B>) -> Response<TolerantBody<B>> {
    let came = response.headers().get(header::CONTENT_TYPE);
    let is_json = came.is_some_and(|came| came.as_bytes().starts_with(b"application/json"));
    response.map(|inner| TolerantBody { inner, held: is_json.then(BytesMut::new) })
}

/// A body whose lines (watch events, or a whole answer) are repaired if necessary.
pub(crate) struct TolerantBody<B> {
    inner: B,
    /// The start of a line; `None` if the answer is not JSON or has ended.
    held: Option<BytesMut>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for TolerantBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { inner, held } = self.get_mut();
        loop {
            let frame = ready!(Pin::new(&mut *inner).poll_frame(context));
            let Some(line) = held else { return Poll::Ready(frame) };
            let data = match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    let rest = held.take().unwrap_or_default().freeze();
                    let rest = (!rest.is_empty()).then(|| Ok(Frame::data(repaired(rest))));
                    return Poll::Ready(rest);
                }
            };
            let end = memrchr(b'\n', &data).map(|end| line.len() + end + 1);
            line.extend_from_slice(&data);
            let Some(end) = end else { continue };
            let mut lines = line.split_to(end).freeze();
            if memmem::find(&lines, BEYOND).is_none() {
                return Poll::Ready(Some(Ok(Frame::data(lines))));
            }
            let mut whole = BytesMut::new();
            while let Some(end) = memchr(b'\n', &lines) {
                whole.extend_from_slice(&repaired(lines.split_to(end + 1)));
            }
            return Poll::Ready(Some(Ok(Frame::data(whole.freeze()))));
        }
    }
}

/// A line with timestamps that can be parsed. Lines that are not JSON pass unchanged.
fn repaired(line: Bytes) -> Bytes {
    if memmem::find(&line, BEYOND).is_none() {
        return line;
    }
    let Ok(mut answer) = serde_json::from_slice::<Value>(&line) else { return line };
    let object = match answer.get_mut("object") {
        Some(object) => object,
        None => &mut answer,
    };
    repair(object);
    Bytes::from(format!("{answer}\n"))
}

/// Repairs an object, or each object of a list.
fn repair(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        // What is being deleted must not seem to stay.
        if let Some(time) = metadata.get_mut("deletionTimestamp").filter(|time| !is_time(time)) {
            *time = Value::String(Timestamp::MAX.to_string());
        }
        metadata.retain(|field, value| !field.ends_with("Timestamp") || is_time(value));
    }
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.retain(|field, value| !field.ends_with("Time") || is_time(value));
    }
    object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(repair);
}

fn is_time(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.parse::<Timestamp>().is_ok())
}

/// For tests: a client of a service, as [`connect`](crate::kubeconfig::connect) makes one.
#[cfg(test)]
pub(crate) fn tolerant_client<S, B>(service: S) -> kube::Client
where
    S: tower::Service<http::Request<kube::client::Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<tower::BoxError>,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<tower::BoxError>,
{
    use tower::ServiceExt as _;
    kube::Client::new(service.map_response(tolerant), "default")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use std::convert::Infallible;

    use futures::stream;
    use http::Request;
    use http_body_util::combinators::UnsyncBoxBody;
    use http_body_util::{BodyExt as _, StreamBody};
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::Pod;
    use kube::Client;
    use kube::api::{Api, ListParams};
    use serde_json::json;

    use super::*;

    const END: &str = "9999-12-31T23:59:59Z";

    /// A response that comes in pieces of so many bytes.
    fn response(text: &str, piece: usize) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        let frames: Vec<_> = text
            .as_bytes()
            .chunks(piece)
            .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
        Response::builder().header("content-type", "application/json").body(body).unwrap()
    }

    fn client(answer: &Value) -> Client {
        let text = answer.to_string();
        tolerant_client(tower::service_fn(move |_: Request<kube::client::Body>| {
            let response = response(&text, 7);
            std::future::ready(Ok::<_, Infallible>(response))
        }))
    }

    #[tokio::test]
    async fn an_object_is_read_whatever_its_times_are() {
        let lease = json!({
            "metadata": { "name": "berth", "resourceVersion": "7", "creationTimestamp": END,
                          "managedFields": [{ "manager": "x", "time": END }] },
            "spec": { "holderIdentity": "a", "renewTime": END,
                      "acquireTime": "2026-11-18T10:00:00.000000Z" },
        });
        assert!(serde_json::from_value::<Lease>(lease.clone()).is_err(), "a plain read fails");
        let api: Api<Lease> = Api::default_namespaced(client(&lease));
        let read = api.get("berth").await.unwrap();
        let spec = read.spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("a"));
        assert_eq!((spec.renew_time, spec.acquire_time.is_some()), (None, true));
        assert_eq!(read.metadata.resource_version.as_deref(), Some("7"));
    }

    #[tokio::test]
    async fn one_object_of_a_list_does_not_spoil_it_and_a_deletion_is_kept() {
        let leaving = json!({ "metadata": { "name": "p", "deletionTimestamp": END } });
        let other = json!({ "metadata": { "name": "q" } });
        let list = json!({ "kind": "PodList", "metadata": {}, "items": [leaving, other] });
        let api: Api<Pod> = Api::default_namespaced(client(&list));
        let pods = api.list(&ListParams::default()).await.unwrap().items;
        assert_eq!(pods.len(), 2);
        assert!(pods[0].metadata.deletion_timestamp.is_some());
        assert!(pods[1].metadata.deletion_timestamp.is_none());
    }

    #[tokio::test]
    async fn events_of_a_watch_are_repaired_one_by_one_and_others_pass_as_they_came() {
        let event = |name: &str, time: &str| {
            let written = json!([{ "manager": "x", "time": time }]);
            let note = json!({ "ends": END });
            let object = json!({ "metadata": { "name": name, "managedFields": written,
                                               "annotations": note } });
            format!("{}\n", json!({ "type": "ADDED", "object": object }))
        };
        let plain = event("plain", "2026-11-18T10:00:00Z").replace(END, "never");
        let text = [plain.clone(), event("odd", END), plain.clone()].concat();
        for piece in [1, 50, text.len()] {
            let body = tolerant(response(&text, piece)).into_body();
            let came = body.collect().await.unwrap().to_bytes();
            let lines: Vec<&str> = std::str::from_utf8(&came).unwrap().lines().collect();
            assert_eq!((lines[0], lines[2], lines.len()), (plain.trim(), plain.trim(), 3));
            let odd: Value = serde_json::from_str(lines[1]).unwrap();
            let metadata = &odd["object"]["metadata"];
            assert!(metadata.get("managedFields").is_none());
            // What is not a time of the API's is left as its owner wrote it.
            assert_eq!(metadata["annotations"]["ends"], END);
        }
    }
}

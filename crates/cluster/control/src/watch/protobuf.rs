//! Watches that come in protobuf.
//!
//! Owns asking for it, and handing on what comes. To write a pod in protobuf costs the API server a fraction
//! of what JSON costs it, and with every pod that is bound it writes one for each watch. kube's watcher reads lines of
//! JSON; each event becomes one, in which the object stands as it came (see [`message`]). What has no object to read,
//! bookmarks and errors, becomes the JSON it would have been. A server that answers in JSON all the same is
//! understood as ever. Must not know any kind.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_protobuf::wire::Fields;
use berth_protobuf::{ACCEPT, Envelope, Failure, MEDIA_TYPE, Malformed, WatchEvent, from_message};
use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt as _;
use hyper::body::Body as HttpBody;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::client::Body;
use serde_json::json;

/// What an object in protobuf is wrapped in, for its way through JSON. No object begins like this: all of
/// them say first what they are.
const BEGIN: &str = r#"{"protobuf":""#;
const END: &str = r#""}"#;

/// A client that is as the given one, but for its watches.
pub(super) fn client(client: &Client) -> Client {
    let inner = client.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let inner = inner.clone();
        async move { send(&inner, request).await }
    });
    Client::new(service, client.default_namespace())
}

async fn send(
    client: &Client,
    mut request: Request<Body>,
) -> Result<Response<impl HttpBody<Data = Bytes, Error = kube::Error> + use<>>, kube::Error> {
    let mut parameters = request.uri().query().unwrap_or_default().split('&');
    if parameters.any(|parameter| parameter == "watch=true") {
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(ACCEPT));
    }
    let response = client.send(request).await?;
    let came = response.headers().get(header::CONTENT_TYPE);
    let is_protobuf = response.status().is_success()
        && came.is_some_and(|came| came.as_bytes().starts_with(MEDIA_TYPE.as_bytes()));
    let mut held = BytesMut::new();
    Ok(response.map(move |body| {
        body.map_frame(move |frame| {
            if is_protobuf { frame.map_data(|data| lines(&mut held, &data)) } else { frame }
        })
    }))
}

/// The events that are complete with what has come now, a line each.
fn lines(held: &mut BytesMut, came: &[u8]) -> Bytes {
    held.extend_from_slice(came);
    let mut lines = String::new();
    loop {
        match WatchEvent::first(held) {
            Ok(Some((event, end))) => {
                let line = line(event);
                lines.push_str(&line.unwrap_or_else(|error| failure(500, "", &error.to_string())));
                held.advance(end);
            }
            Ok(None) => break,
            Err(error) => {
                held.clear();
                lines.push_str(&failure(500, "", &error.to_string()));
                break;
            }
        }
    }
    Bytes::from(lines)
}

/// An event as a line.
fn line(event: &[u8]) -> Result<String, Malformed> {
    let WatchEvent { what, object } = WatchEvent::read(event)?;
    match what {
        "BOOKMARK" => {
            let meta: ObjectMeta = from_message(metadata(&object)?)?;
            let Envelope { api_version, kind, .. } = object;
            let metadata = json!({
                "resourceVersion": meta.resource_version,
                "annotations": meta.annotations.unwrap_or_default(),
            });
            let object = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata });
            Ok(format!("{}\n", json!({ "type": what, "object": object })))
        }
        "ERROR" => {
            let Failure { code, reason, message } = Failure::read(object.raw)?;
            Ok(failure(if code == 0 { 500 } else { code }, reason, message))
        }
        _ => {
            let mut line = String::with_capacity(object.raw.len() * 4 / 3 + 64);
            line.extend([r#"{"type":""#, what, r#"","object":"#, BEGIN]);
            STANDARD.encode_string(object.raw, &mut line);
            line.extend([END, "}\n"]);
            Ok(line)
        }
    }
}

/// The metadata is the first field of whatever is an object.
fn metadata<'a>(object: &Envelope<'a>) -> Result<&'a [u8], Malformed> {
    let mut fields = Fields::of(object.raw);
    while let Some((number, wire)) = fields.next()? {
        if number == 1 {
            return wire.bytes();
        }
    }
    Ok(&[])
}

fn failure(code: u64, reason: &str, message: &str) -> String {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    format!("{}\n", json!({ "type": "ERROR", "object": status }))
}

/// The message of an object that came in protobuf; none of one that is JSON.
pub(super) fn message(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text.strip_prefix(BEGIN)?.strip_suffix(END)?).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use kube::ResourceExt as _;
    use kube::api::WatchEvent as Event;

    use super::super::pod::RawPod;
    use super::*;

    fn varint(mut number: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while number > 0x7f {
            out.push(0x80 | u8::try_from(number & 0x7f).unwrap());
            number >>= 7;
        }
        out.push(u8::try_from(number).unwrap());
        out
    }

    /// A field with a length.
    fn field(number: usize, bytes: &[u8]) -> Vec<u8> {
        [varint(number << 3 | 2), varint(bytes.len()), bytes.to_vec()].concat()
    }

    fn event(what: &str, kind: &str, object: &[u8]) -> Vec<u8> {
        let types = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        let object = [b"k8s\0".to_vec(), field(1, &types), field(2, object)].concat();
        let event = [field(1, what.as_bytes()), field(2, &field(1, &object))].concat();
        let length = u32::try_from(event.len()).unwrap();
        [length.to_be_bytes().to_vec(), event].concat()
    }

    fn pod(name: &str) -> Vec<u8> {
        let meta = [field(1, name.as_bytes()), field(6, b"7"), field(17, b"who wrote what")];
        let container = [field(1, b"c"), field(2, "i".repeat(200).as_bytes())].concat();
        [field(1, &meta.concat()), field(2, &field(2, &container))].concat()
    }

    fn read(text: &[u8]) -> Vec<Event<RawPod>> {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    #[test]
    fn events_are_told_whole_however_they_are_cut_up_on_their_way() {
        let came = [event("ADDED", "Pod", &pod("a")), event("DELETED", "Pod", &pod("b"))].concat();
        for piece in [1, 3, 100, came.len()] {
            let mut held = BytesMut::new();
            let told: Vec<u8> =
                came.chunks(piece).flat_map(|piece| lines(&mut held, piece)).collect();
            let [Event::Added(a), Event::Deleted(b)] = &read(&told)[..] else { panic!("{told:?}") };
            assert_eq!((a.name_any(), b.name_any()), ("a".to_owned(), "b".to_owned()));
            assert_eq!(b.resource_version().as_deref(), Some("7"));
            let RawPod::Protobuf { message, .. } = a else { panic!("{a:?}") };
            assert_eq!(*message, pod("a"));
            assert!(held.is_empty());
        }
    }

    #[test]
    fn bookmarks_and_errors_are_told_as_in_json() {
        let end = [field(1, b"k8s.io/initial-events-end"), field(2, b"true")].concat();
        let meta = [field(6, b"12"), field(12, &end)].concat();
        let gone = [field(3, b"too old"), field(4, b"Expired"), vec![6 << 3, 0x9a, 0x03]].concat();
        let came =
            [event("BOOKMARK", "Pod", &field(1, &meta)), event("ERROR", "Status", &gone)].concat();
        let told = lines(&mut BytesMut::new(), &came);
        let [Event::Bookmark(mark), Event::Error(status)] = &read(&told)[..] else {
            panic!("{told:?}")
        };
        assert_eq!(mark.metadata.resource_version, "12");
        assert_eq!(mark.metadata.annotations["k8s.io/initial-events-end"], "true");
        assert_eq!((status.code, &*status.reason, &*status.message), (410, "Expired", "too old"));
    }

    #[test]
    fn what_is_no_event_is_an_error_of_the_watch() {
        for nonsense in [&[0, 0, 0, 1, 0xff][..], &[0xff; 8], &[0, 0, 0, 0]] {
            let told = lines(&mut BytesMut::new(), nonsense);
            let [Event::Error(status)] = &read(&told)[..] else { panic!("{told:?}") };
            assert_eq!(status.code, 500);
        }
    }
}

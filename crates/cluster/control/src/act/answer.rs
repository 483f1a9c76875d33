//! Answers of which only the status matters. They are requested in protobuf, which costs the API server less than
//! JSON: after a status update the whole pod comes back.

use berth_protobuf::{ACCEPT, Envelope, Failure, MAGIC};
use http::{HeaderValue, Request, header};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::core::Status;

/// HTTP status code and message of a rejection.
pub(super) type Rejection = (u16, String);

/// Whether a repeated request would be rejected again, and nothing was written. Conflicts (409) and missing
/// objects (404) are read again; 401, 408 and 429 are temporary.
pub(super) fn is_final(code: u16, message: &str) -> bool {
    // etcd's limit for the size of an object.
    let is_too_large = code == 500 && message.ends_with("request is too large");
    is_too_large || matches!(code, 400..=499) && !matches!(code, 401 | 404 | 408 | 409 | 429)
}

pub(super) async fn ask(
    client: &Client,
    mut request: Request<Vec<u8>>,
) -> Result<Result<(), Rejection>, kube::Error> {
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(ACCEPT));
    let (head, body) = client.send(request.map(Body::from)).await?.into_parts();
    // Read to the end, so that the connection can be reused.
    let body = body.collect().await?.to_bytes();
    Ok(if head.status.is_client_error() || head.status.is_server_error() {
        Err((head.status.as_u16(), why(&body)))
    } else {
        Ok(())
    })
}

/// The message of a rejection: of a Status in protobuf or JSON, or the text of a proxy.
fn why(body: &[u8]) -> String {
    let envelope = body.strip_prefix(MAGIC).and_then(|object| Envelope::open(object).ok());
    if let Some(failure) = envelope.and_then(|envelope| Failure::read(envelope.raw).ok()) {
        return failure.message.to_owned();
    }
    match serde_json::from_slice::<Status>(body) {
        Ok(status) => status.message,
        Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use berth_protobuf::{MEDIA_TYPE, Written};
    use http::Response;

    use super::*;

    /// A client whose server always answers this.
    fn client(code: u16, body: Vec<u8>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let accept = request.headers()[header::ACCEPT].to_str().unwrap();
            assert!(accept.starts_with(MEDIA_TYPE) && accept.ends_with("application/json"));
            let answer = Response::builder().status(code).body(Body::from(body.clone())).unwrap();
            async move { Ok::<_, kube::Error>(answer) }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn a_refusal_says_why_in_whichever_form_it_comes() {
        let status = Written::new().text(2, "Failure").text(3, "no such pod \u{e9}");
        let forms = [
            status.into_object("v1", "Status"),
            r#"{"kind":"Status","message":"no such pod é","code":404}"#.into(),
            " no such pod é\n".into(),
        ];
        for body in forms {
            let answer = ask(&client(404, body), Request::new(Vec::new())).await.unwrap();
            assert_eq!(answer, Err((404, "no such pod é".to_owned())));
        }
        for body in [b"k8s\0\xff".to_vec(), vec![0xff, 0xfe], Vec::new()] {
            let answer = ask(&client(500, body), Request::new(Vec::new())).await.unwrap();
            assert_eq!(answer.unwrap_err().0, 500);
        }
        let answer = ask(&client(201, b"anything".to_vec()), Request::new(Vec::new())).await;
        assert_eq!(answer.unwrap(), Ok(()));
    }
}

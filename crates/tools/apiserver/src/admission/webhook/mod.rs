//! Admission webhooks: their order, and what becomes of their answers.
//!
//! `matchConditions` are not evaluated: such a webhook is called for every request that matches its rules, and the
//! client is warned.

mod call;
mod matching;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use call::{Caller, Endpoint};
use serde_json::{Value, json};

pub use call::ResolveService;

use super::{Request, View};
use crate::kinds::Resource;
use crate::status::{Cause, Details, Status, quoted};

const GROUP: &str = "admissionregistration.k8s.io";
const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Webhooks {
    caller: Arc<Caller>,
    resolve: Option<ResolveService>,
}

struct Answer {
    patch: Option<json_patch::Patch>,
    warnings: Vec<String>,
}

struct Webhook {
    configuration: String,
    value: Value,
}

impl Webhook {
    fn text(&self, name: &str) -> &str {
        self.value.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.text("name")
    }
}

impl Webhooks {
    pub fn new(resolve: Option<ResolveService>) -> Self {
        Self { caller: Arc::default(), resolve }
    }

    /// The webhooks that match a request, ordered by configuration name.
    fn of<V: View + Sync>(
        plural: &str,
        request: &Request<'_>,
        object: Option<&Value>,
        view: &V,
    ) -> Vec<Webhook> {
        // Webhooks are not called for webhook configurations, so that broken ones can be repaired.
        if &*request.kind.resource.group == GROUP {
            return Vec::new();
        }
        let mut all = view.list(&Resource::new(GROUP, plural), "");
        let name = |one: &Value| one.pointer("/metadata/name").map(Value::to_string);
        all.sort_by_key(|one| name(one));
        let mut found = Vec::new();
        for configuration in all {
            let webhooks = configuration.get("webhooks").and_then(Value::as_array);
            for webhook in webhooks.into_iter().flatten() {
                if matching::concerns(webhook, request, object, view) {
                    found.push(Webhook {
                        configuration: name(&configuration).unwrap_or_default(),
                        value: webhook.clone(),
                    });
                }
            }
        }
        found
    }

    /// Calls mutating webhooks one after the other. Returns warnings.
    ///
    /// # Errors
    ///
    /// If one of them denies the request, or cannot be reached and must be.
    pub async fn mutate<V: View + Sync>(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        view: &V,
    ) -> Result<Vec<String>, Status> {
        let mut warnings = Vec::new();
        let mut again = Vec::new();
        for webhook in Self::of(MUTATING, request, Some(object), view) {
            let before = object.clone();
            self.change(&webhook, request, object, &mut warnings).await?;
            let changed = before != *object;
            if changed {
                for (_, seen) in &mut again {
                    *seen = true;
                }
            }
            if webhook.text("reinvocationPolicy") == "IfNeeded" {
                again.push((webhook, false));
            }
        }
        for (webhook, changed_since) in again {
            let concerned = || matching::concerns(&webhook.value, request, Some(object), view);
            if changed_since && concerned() {
                self.change(&webhook, request, object, &mut warnings).await?;
            }
        }
        Ok(warnings)
    }

    async fn change(
        &self,
        webhook: &Webhook,
        request: &Request<'_>,
        object: &mut Value,
        warnings: &mut Vec<String>,
    ) -> Result<(), Status> {
        let Some(answer) = self.ask(webhook, request, Some(object)).await? else { return Ok(()) };
        warnings.extend(answer.warnings);
        let Some(patch) = answer.patch else { return Ok(()) };
        json_patch::patch(object, &patch).map_err(|error| {
            Status::internal(format!("failed to apply the patch of {}: {error}", webhook.name()))
        })?;
        crate::schema::normalize(&crate::schema::of(request.kind), object);
        crate::defaults::apply(request.kind, object);
        Ok(())
    }

    /// Calls validating webhooks concurrently. `object` is `None` for deletions. Returns warnings.
    ///
    /// # Errors
    ///
    /// If one of them denies the request, or cannot be reached and must be.
    pub async fn validate<V: View + Sync>(
        &self,
        request: &Request<'_>,
        object: Option<&Value>,
        view: &V,
    ) -> Result<Vec<String>, Status> {
        let webhooks = Self::of(VALIDATING, request, object, view);
        let asked = webhooks.iter().map(|webhook| self.ask(webhook, request, object));
        let mut warnings = Vec::new();
        for answer in futures::future::join_all(asked).await {
            if let Some(answer) = answer? {
                warnings.extend(answer.warnings);
            }
        }
        Ok(warnings)
    }

    /// Calls one webhook. `None` if it failed and its failurePolicy is `Ignore`.
    async fn ask(
        &self,
        webhook: &Webhook,
        request: &Request<'_>,
        object: Option<&Value>,
    ) -> Result<Option<Answer>, Status> {
        let no_effects = matches!(webhook.text("sideEffects"), "None" | "NoneOnDryRun");
        if request.dry_run && !no_effects {
            return Err(Status::bad_request(format!(
                "admission webhook {} does not support dry run",
                quoted(webhook.name())
            )));
        }
        let failed = |why: String| {
            tracing::warn!(webhook = webhook.name(), configuration = webhook.configuration, why);
            match webhook.text("failurePolicy") {
                "Ignore" => Ok(None),
                _ => Err(Status::internal(format!(
                    "failed calling webhook {}: {why}",
                    quoted(webhook.name())
                ))),
            }
        };
        let uid = crate::random::uid()?;
        let review = review(&uid, request, object);
        let seconds = webhook.value.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(10);
        let limit = Duration::from_secs(seconds.clamp(1, 30));
        let answer = async {
            let endpoint = self.endpoint(webhook)?;
            let body = review.to_string().into_bytes();
            let called = self.caller.post(&endpoint, body, limit).await;
            let body = called.map_err(|why| format!("failed to call webhook: {why}"))?;
            read_answer(&uid, &body)
        };
        let response = match answer.await {
            Ok(response) => response,
            Err(why) => return failed(why),
        };
        if response.get("allowed") != Some(&Value::Bool(true)) {
            return Err(denial(webhook.name(), response.get("status")));
        }
        match read_patch(&response) {
            Ok(patch) => {
                let mut warnings = strings(response.get("warnings"));
                if webhook.value.get("matchConditions").is_some() {
                    warnings.push(format!(
                        "webhook {}: matchConditions are not evaluated here; it was asked anyway",
                        quoted(webhook.name())
                    ));
                }
                Ok(Some(Answer { patch, warnings }))
            }
            Err(why) => failed(why),
        }
    }

    fn endpoint(&self, webhook: &Webhook) -> Result<Endpoint, String> {
        let config = webhook.value.get("clientConfig").unwrap_or(&Value::Null);
        let text = |value: &Value, name: &str| {
            value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let engine = base64::engine::general_purpose::STANDARD;
        let ca_bundle = engine
            .decode(text(config, "caBundle"))
            .map_err(|error| format!("caBundle is not base64: {error}"))?;
        if let Some(service) = config.get("service") {
            let (namespace, name) = (text(service, "namespace"), text(service, "name"));
            let port = service.get("port").and_then(Value::as_u64).unwrap_or(443);
            let port = u16::try_from(port).map_err(|error| error.to_string())?;
            let server_name = format!("{name}.{namespace}.svc");
            let address = self.resolve.as_ref().and_then(|find| find(&namespace, &name, port));
            let path = text(service, "path");
            let url = format!("https://{server_name}:{port}/{}", path.trim_start_matches('/'));
            return match address {
                Some(address) => {
                    Ok(Endpoint { url, server_name, address: Some(address), ca_bundle })
                }
                None => Err(format!("failed to call webhook: service {name:?} not found")),
            };
        }
        let url = text(config, "url");
        let uri: http::Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        let server_name = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        Ok(Endpoint { url, server_name, address: None, ca_bundle })
    }
}

fn strings(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn review(uid: &str, request: &Request<'_>, object: Option<&Value>) -> Value {
    let kind = request.kind;
    let group = &*kind.resource.group;
    let kind_name = json!({"group": group, "version": &*kind.version, "kind": &*kind.kind});
    let resource =
        json!({"group": group, "version": &*kind.version, "resource": &*kind.resource.plural});
    let user = request.user;
    let mut asked = json!({
        "uid": uid,
        "kind": kind_name,
        "resource": resource,
        "requestKind": kind_name,
        "requestResource": resource,
        "operation": request.operation.as_str(),
        "userInfo": {"username": user.name, "groups": user.groups},
        "object": object,
        "oldObject": request.old,
        "dryRun": request.dry_run,
        "options": request.options,
    });
    let optional = [
        ("subResource", request.subresource),
        ("requestSubResource", request.subresource),
        ("name", request.name),
        ("namespace", request.namespace),
    ];
    for (name, value) in optional {
        if !value.is_empty() {
            asked[name] = Value::from(value);
        }
    }
    if !user.uid.is_empty() {
        asked["userInfo"]["uid"] = Value::from(user.uid.as_str());
    }
    if user.extra.is_object() {
        asked["userInfo"]["extra"] = user.extra.clone();
    }
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": asked})
}

fn read_answer(uid: &str, body: &[u8]) -> Result<Value, String> {
    let mut review: Value =
        serde_json::from_slice(body).map_err(|error| format!("the answer is not JSON: {error}"))?;
    let text = |name: &str| review.get(name).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if kind != "AdmissionReview" || version != "admission.k8s.io/v1" {
        return Err(format!(
            "received invalid webhook response: expected webhook response of \
             admission.k8s.io/v1, Kind=AdmissionReview, got {version}, Kind={kind}"
        ));
    }
    let response = review.get_mut("response").map(Value::take).filter(Value::is_object);
    let Some(response) = response else {
        return Err("received invalid webhook response: webhook response was absent".to_owned());
    };
    match response.get("uid").and_then(Value::as_str) {
        Some(answered) if answered == uid => Ok(response),
        answered => Err(format!(
            "received invalid webhook response: expected response.uid={uid:?}, got {:?}",
            answered.unwrap_or_default()
        )),
    }
}

fn read_patch(response: &Value) -> Result<Option<json_patch::Patch>, String> {
    let Some(patch) = response.get("patch").and_then(Value::as_str) else { return Ok(None) };
    match response.get("patchType").and_then(Value::as_str) {
        Some("JSONPatch") => {}
        other => {
            let shown = other.unwrap_or_default();
            return Err(format!(
                "received invalid webhook response: unsupported patchType {shown:?}"
            ));
        }
    }
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(patch)
        .map_err(|error| format!("the patch is not base64: {error}"))?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let patch = serde_json::from_slice(&bytes)
        .map_err(|error| format!("the patch is not a JSON patch: {error}"))?;
    Ok(Some(patch))
}

/// Reasons of denials that clients know.
const REASONS: [&str; 12] = [
    "Unauthorized",
    "Forbidden",
    "NotFound",
    "AlreadyExists",
    "Conflict",
    "Gone",
    "Invalid",
    "Timeout",
    "TooManyRequests",
    "BadRequest",
    "InternalError",
    "ServiceUnavailable",
];

fn denial(webhook: &str, status: Option<&Value>) -> Status {
    let denied = format!("admission webhook {} denied the request", quoted(webhook));
    let text = |name: &str| {
        status.and_then(|status| status.get(name)).and_then(Value::as_str).unwrap_or_default()
    };
    let message = match (text("message"), text("reason")) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    let code = status.and_then(|status| status.get("code")).and_then(Value::as_u64);
    let code = code.and_then(|code| u16::try_from(code).ok()).filter(|code| *code >= 400);
    let reason = REASONS.into_iter().find(|known| *known == text("reason")).unwrap_or_default();
    Status { code: code.unwrap_or(400), reason, message, details: status.and_then(details) }
}

fn details(status: &Value) -> Option<Box<Details>> {
    let given = status.get("details")?.as_object()?;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let causes = given.get("causes").and_then(Value::as_array).into_iter().flatten();
    let causes = causes.map(|cause| Cause {
        reason: text(cause.get("reason")).into(),
        message: text(cause.get("message")),
        field: text(cause.get("field")),
    });
    Some(Box::new(Details {
        name: text(given.get("name")),
        group: text(given.get("group")),
        kind: text(given.get("kind")),
        uid: text(given.get("uid")),
        causes: causes.collect(),
        retry_after_seconds: 0,
    }))
}

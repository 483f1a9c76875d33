//! The admission webhook: checks the contract when objects are created or changed.
//!
//! No request waits for another server: everything that is known of the cluster is in a [`ContextFeed`].

mod feed;
mod follow;
mod mutate;
mod review;
mod settings;
#[cfg(test)]
mod tests;

pub use feed::{ContextFeed, Known};
pub use follow::follow;
pub use settings::{Mode, Mutations, Settings, SettingsError};

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use berth_contract::{Finding, Severity, check, patch};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::metrics::Metrics;
use review::{Answer, Request, Review};

/// Reviews may be this large: an object and what it was before, 3 MiB each at most, and some more.
pub(crate) const BODY_BYTES_MAX: usize = 8 << 20;
/// Reviews larger than this are looked at beside the others, few at a time.
const LARGE_BYTES: usize = 256 << 10;
const LARGE_AT_ONCE: usize = 2;
/// Warnings are shown by kubectl; more than this nobody reads, and the API server cuts off.
const WARNINGS_MAX: usize = 12;
const WARNING_CHARS_MAX: usize = 256;
/// Findings that a denial tells of; the rest is counted.
const REASONS_MAX: usize = 8;

/// The webhook. Cloning gives another handle on the same.
#[derive(Clone)]
pub struct Webhook(Arc<Parts>);

struct Parts {
    settings: Settings,
    feed: ContextFeed,
    metrics: Metrics,
    large: Semaphore,
}

impl Webhook {
    /// A webhook with what is known of the cluster.
    pub fn new(
        settings: Settings,
        feed: ContextFeed,
        metrics: Metrics,
    ) -> Result<Self, SettingsError> {
        settings.check()?;
        let large = Semaphore::new(LARGE_AT_ONCE);
        Ok(Self(Arc::new(Parts { settings, feed, metrics, large })))
    }

    /// `POST /validate` and `POST /mutate`.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/validate", post(validate))
            .route("/mutate", post(mutate))
            .layer(axum::extract::DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(self.clone())
    }

    /// Answers a review, as JSON.
    pub fn validate(&self, body: &[u8]) -> Result<Value, String> {
        self.answer("validate", body, Parts::judge)
    }

    /// Answers a review with changes, as JSON.
    pub fn mutate(&self, body: &[u8]) -> Result<Value, String> {
        self.answer("mutate", body, Parts::change)
    }

    fn answer(
        &self,
        webhook: &'static str,
        body: &[u8],
        decide: fn(&Parts, Request) -> Answer,
    ) -> Result<Value, String> {
        let started = Instant::now();
        let parts = &self.0;
        let answered = Review::read(body).map(|request| {
            let uid = request.uid.clone();
            let answer = if parts.is_spared(&request) {
                Answer::allowed("exempt")
            } else {
                decide(parts, request)
            };
            let verdict = answer.verdict;
            (answer.json(&uid), verdict)
        });
        let verdict = answered.as_ref().map_or("malformed", |(_, verdict)| verdict);
        parts.metrics.admitted(webhook, verdict, started.elapsed());
        answered.map(|(json, _)| json)
    }
}

impl Parts {
    /// Whether nothing is to be said about it: its namespace is exempt, it is on its way out, or the
    /// request makes nothing.
    fn is_spared(&self, request: &Request) -> bool {
        let makes = matches!(request.operation.as_str(), "CREATE" | "UPDATE");
        let is_leaving = request.object.pointer("/metadata/deletionTimestamp").is_some();
        !makes
            || is_leaving
            || !request.sub_resource.is_empty()
            || self.settings.is_exempt(&request.namespace)
    }

    fn judge(&self, mut request: Request) -> Answer {
        // What a pod asks for does not change any more once it is there.
        if request.operation == "UPDATE" && request.kind == "Pod" {
            return Answer::allowed("allowed");
        }
        let object = match request.object() {
            Ok(object) => object,
            Err(error) => return Answer::unreadable(&error.to_string()),
        };
        let known = self.feed.current();
        let settings = &self.settings;
        let findings = check(&object, &known.context, &settings.contract);
        let before = if settings.mode == Mode::Enforce && !findings.is_empty() {
            request.old_object()
        } else {
            None
        };
        let before: Vec<Finding> = before
            .map(|before| check(&before, &known.context, &settings.contract))
            .unwrap_or_default();
        let (mut reasons, mut warnings) = (Vec::new(), Vec::new());
        for finding in &findings {
            self.metrics.found(finding.rule.code, finding.severity.as_str());
            // What was wrong before must not keep anybody from changing something else.
            let is_old =
                before.iter().any(|old| (old.rule, &old.field) == (finding.rule, &finding.field));
            match settings.mode {
                Mode::Enforce if finding.severity >= settings.deny && !is_old => {
                    reasons.push(finding)
                }
                Mode::Enforce | Mode::Warn if finding.severity >= settings.warn => {
                    warnings.push(finding);
                }
                _ => {}
            }
        }
        if settings.mode == Mode::DryRun {
            log_findings(&request, &findings, settings.deny);
            let denied = findings.iter().any(|finding| finding.severity >= settings.deny);
            return Answer::allowed(if denied { "would-deny" } else { "allowed" });
        }
        let warnings = warnings.iter().take(WARNINGS_MAX).map(|finding| warning(finding)).collect();
        if reasons.is_empty() {
            Answer::allowed("allowed").warn(warnings)
        } else {
            Answer::denied(reason(&reasons)).warn(warnings)
        }
    }

    fn change(&self, mut request: Request) -> Answer {
        let mut object = match request.object() {
            Ok(object) => object,
            Err(error) => return Answer::unreadable(&error.to_string()),
        };
        let known = self.feed.current();
        let fixes = mutate::changes(&object, &request.namespace, &known, &self.settings);
        if fixes.is_empty() {
            return Answer::allowed("unchanged");
        }
        if self.settings.mode == Mode::DryRun {
            tracing::info!(object = %object.reference, changes = fixes.len(), "would be changed");
            return Answer::allowed("would-change");
        }
        // The patch is for what was sent, which may lack the namespace that was filled in here.
        let sent = &mut object.json;
        match patch::json_patch(sent, &fixes) {
            Ok(operations) => Answer::allowed("changed").patch(&Value::Array(operations)),
            Err(error) => {
                tracing::warn!(%error, object = %object.reference, "could not build the patch; the object is admitted unchanged");
                Answer::allowed("unchanged")
            }
        }
    }
}

fn log_findings(request: &Request, findings: &[Finding], deny: Severity) {
    for finding in findings {
        let would_deny = finding.severity >= deny;
        tracing::info!(
            rule = finding.rule.code,
            object = %finding.object,
            namespace = request.namespace,
            field = %finding.field,
            would_deny,
            "{}", finding.message
        );
    }
}

/// A finding in one line: rule, field, what, and what to do.
fn line(finding: &Finding) -> String {
    let Finding { rule, field, message, remedy, .. } = finding;
    format!("[{}] {field}: {message}. Fix: {remedy}", rule.code)
}

fn warning(finding: &Finding) -> String {
    let text = line(finding);
    match text.char_indices().nth(WARNING_CHARS_MAX) {
        Some((end, _)) => format!("{}…", text[..end].trim_end()),
        None => text,
    }
}

fn reason(findings: &[&Finding]) -> String {
    let mut lines: Vec<String> = findings.iter().take(REASONS_MAX).map(|one| line(one)).collect();
    if findings.len() > REASONS_MAX {
        lines.push(format!("and {} more", findings.len() - REASONS_MAX));
    }
    lines.join("; ")
}

async fn validate(State(webhook): State<Webhook>, body: Result<Bytes, BytesRejection>) -> Response {
    respond(webhook, body, Webhook::validate).await
}

async fn mutate(State(webhook): State<Webhook>, body: Result<Bytes, BytesRejection>) -> Response {
    respond(webhook, body, Webhook::mutate).await
}

async fn respond(
    webhook: Webhook,
    body: Result<Bytes, BytesRejection>,
    answer: fn(&Webhook, &[u8]) -> Result<Value, String>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return rejected(rejection.status(), &rejection.body_text()),
    };
    let answered = if body.len() > LARGE_BYTES {
        let parts = webhook.0.clone();
        let _turn = parts.large.acquire().await;
        let task = tokio::task::spawn_blocking(move || answer(&webhook, &body));
        task.await.unwrap_or_else(|_| Err("internal error while reviewing the object".to_owned()))
    } else {
        answer(&webhook, &body)
    };
    match answered {
        Ok(json) => axum::Json(json).into_response(),
        Err(problem) => rejected(StatusCode::BAD_REQUEST, &problem),
    }
}

/// Whoever sent something else than a review gets an error that says so.
fn rejected(code: StatusCode, problem: &str) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "BadRequest",
        "code": code.as_u16(), "message": problem,
    });
    (code, axum::Json(body)).into_response()
}

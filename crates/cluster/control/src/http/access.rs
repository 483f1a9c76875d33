//! Authentication and authorization of requests, by TokenReview and SubjectAccessReview. Answers are cached for a
//! short time.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// How long an answer is cached, whether positive or negative.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Cached answers.
const REMEMBERED_MAX: usize = 1_024;
/// Longer tokens are rejected.
const TOKEN_BYTES_MAX: usize = 16 * 1_024;
/// Concurrent reviews; further requests wait.
const REVIEWS_MAX: usize = 8;
/// Timeout of both reviews together.
const REVIEW_MAX: Duration = Duration::from_secs(8);

/// What a request accesses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attributes(What);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum What {
    Path(String),
    Resource { resource: &'static str, namespace: Option<String>, name: Option<String> },
}

impl Attributes {
    pub fn path(path: &str) -> Self {
        Self(What::Path(path.to_owned()))
    }

    /// A resource of the group `berth.dev`.
    pub fn resource(resource: &'static str, namespace: Option<&str>, name: Option<&str>) -> Self {
        let [namespace, name] = [namespace, name].map(|one| one.map(str::to_owned));
        Self(What::Resource { resource, namespace, name })
    }

    fn review(&self, user: UserInfo) -> SubjectAccessReview {
        let mut spec = SubjectAccessReviewSpec {
            user: user.username,
            groups: user.groups,
            uid: user.uid,
            extra: user.extra,
            ..SubjectAccessReviewSpec::default()
        };
        let verb = Some("get".to_owned());
        match &self.0 {
            What::Path(path) => {
                let path = Some(path.clone());
                spec.non_resource_attributes = Some(NonResourceAttributes { path, verb });
            }
            What::Resource { resource, namespace, name } => {
                spec.resource_attributes = Some(ResourceAttributes {
                    group: Some("berth.dev".to_owned()),
                    resource: Some((*resource).to_owned()),
                    namespace: namespace.clone(),
                    name: name.clone(),
                    verb,
                    ..ResourceAttributes::default()
                });
            }
        }
        SubjectAccessReview { spec, ..SubjectAccessReview::default() }
    }
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            What::Path(path) => f.write_str(path),
            What::Resource { resource, namespace: Some(namespace), .. } => {
                write!(f, "{resource}.berth.dev in namespace {namespace:?}")
            }
            What::Resource { resource, .. } => write!(f, "{resource}.berth.dev"),
        }
    }
}

/// Why access is denied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Denial {
    /// The user is unknown.
    #[error("{0}; send a Kubernetes token as `Authorization: Bearer TOKEN`")]
    Unauthorized(String),
    /// The user lacks the permission.
    #[error("{0}")]
    Forbidden(String),
    /// The API server did not answer.
    #[error("{0}; try again")]
    Unavailable(String),
}

/// Asks the API server, and caches its answers.
#[derive(Clone)]
pub struct Access(Arc<Reviews>);

/// Answers by token and attributes, with their time.
type Remembered = HashMap<(String, Attributes), (Instant, Result<(), Denial>)>;

struct Reviews {
    client: kube::Client,
    remembered: Mutex<Remembered>,
    turns: Semaphore,
}

impl Access {
    pub fn new(client: kube::Client) -> Self {
        let remembered = Mutex::default();
        Self(Arc::new(Reviews { client, remembered, turns: Semaphore::new(REVIEWS_MAX) }))
    }

    /// Whether a request with these headers has access.
    pub async fn check(&self, headers: &HeaderMap, what: Attributes) -> Result<(), Denial> {
        let key = (token_of(headers)?.to_owned(), what);
        if let Some(known) = self.recall(&key) {
            return known;
        }
        let reviews = &self.0;
        let asked = timeout(REVIEW_MAX, async {
            let _turn = reviews.turns.acquire().await;
            // Somebody may have asked the same meanwhile.
            match self.recall(&key) {
                Some(known) => known,
                None => reviews.ask(&key.0, &key.1).await,
            }
        });
        let late = |_| Denial::Unavailable("the API server did not review the token".to_owned());
        let verdict = asked.await.map_err(late)?;
        // Not to know is nothing to remember.
        if !matches!(verdict, Err(Denial::Unavailable(_))) {
            self.remember(key, verdict.clone());
        }
        verdict
    }

    /// How many answers are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.0.remembered.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn recall(&self, key: &(String, Attributes)) -> Option<Result<(), Denial>> {
        let remembered = self.0.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, verdict) = remembered.get(key)?;
        (since.elapsed() < REMEMBERED).then(|| verdict.clone())
    }

    fn remember(&self, key: (String, Attributes), verdict: Result<(), Denial>) {
        let mut remembered = self.0.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= REMEMBERED_MAX {
            remembered.retain(|_, (since, _)| since.elapsed() < REMEMBERED);
        }
        if remembered.len() >= REMEMBERED_MAX {
            // So many at once are not people. Whoever is meant asks again.
            remembered.clear();
        }
        remembered.insert(key, (Instant::now(), verdict));
    }
}

impl Reviews {
    async fn ask(&self, token: &str, what: &Attributes) -> Result<(), Denial> {
        let silent = |error: kube::Error| {
            tracing::warn!(%error, "a token could not be reviewed");
            Denial::Unavailable("the API server did not review the token".to_owned())
        };
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await.map_err(silent)?;
        let answer = answer.status.unwrap_or_default();
        let Some(user) = answer.user.filter(|_| answer.authenticated == Some(true)) else {
            return Err(Denial::Unauthorized("the token is not valid".to_owned()));
        };
        let name = user.username.clone().unwrap_or_default();
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = api.create(&PostParams::default(), &what.review(user)).await;
        match review.map_err(silent)?.status {
            Some(status) if status.allowed && status.denied != Some(true) => Ok(()),
            _ => Err(Denial::Forbidden(format!("{name:?} may not get {what}"))),
        }
    }
}

fn token_of(headers: &HeaderMap) -> Result<&str, Denial> {
    let denied = |why: &str| Denial::Unauthorized(why.to_owned());
    let header = headers.get(header::AUTHORIZATION).ok_or_else(|| denied("there is no token"))?;
    let text = header.to_str().map_err(|_| denied("the token is not ASCII"))?;
    let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(denied("the header is not of the form `Bearer TOKEN`"));
    }
    if token.len() > TOKEN_BYTES_MAX {
        return Err(denied("the token is too long"));
    }
    Ok(token)
}

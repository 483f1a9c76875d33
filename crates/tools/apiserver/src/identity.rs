//! Users and bearer tokens: those given at start, and those issued for service accounts. The latter are random and
//! valid only until the server stops.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::kinds::Resource;
use crate::random;
use crate::status::Status;
use crate::store::{Store, key_of};

#[derive(Clone, Debug, Default)]
pub struct User {
    pub name: String,
    /// The uid, where there is one.
    pub uid: String,
    pub groups: Vec<String>,
    /// An object of lists of strings.
    pub extra: Value,
}

pub const AUTHENTICATED: &str = "system:authenticated";
/// The group that may do everything.
pub const MASTERS: &str = "system:masters";
/// Default audience of tokens.
pub const AUDIENCE: &str = "https://kubernetes.default.svc";

/// Limit of issued tokens; the oldest are dropped.
const TOKENS_MAX: usize = 65_536;

/// A bearer token.
#[derive(Clone, Debug)]
pub struct Token {
    pub token: String,
    pub user: String,
    pub groups: Vec<String>,
}

impl Token {
    /// A random token for an administrator.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub fn random(user: &str) -> Result<Self, Status> {
        let groups = vec![MASTERS.to_owned()];
        Ok(Self { token: random::secret()?, user: user.to_owned(), groups })
    }
}

#[derive(Clone, Debug)]
struct Issued {
    namespace: String,
    name: String,
    uid: String,
    audiences: Vec<String>,
    expires: Timestamp,
    order: u64,
}

/// All tokens the server knows.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    given: HashMap<String, User>,
    issued: Mutex<HashMap<String, Issued>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Recognised {
    pub(crate) user: User,
    pub(crate) audiences: Vec<String>,
}

impl Tokens {
    pub(crate) fn new(tokens: &[Token]) -> Self {
        let given = tokens
            .iter()
            .map(|token| {
                let mut groups = token.groups.clone();
                groups.push(AUTHENTICATED.to_owned());
                let user = User {
                    name: token.user.clone(),
                    uid: token.user.clone(),
                    groups,
                    ..User::default()
                };
                (token.token.clone(), user)
            })
            .collect();
        Self { given, issued: Mutex::default() }
    }

    pub(crate) fn issue(
        &self,
        account: &Value,
        audiences: Vec<String>,
        seconds: i64,
    ) -> Result<(String, Timestamp), Status> {
        let token = format!("berth-{}", random::secret()?);
        let now = Timestamp::now();
        let expires = now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
        let text = |field: &str| account["metadata"][field].as_str().unwrap_or_default().to_owned();
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        let order = issued.values().map(|token| token.order).max().unwrap_or(0) + 1;
        if issued.len() >= TOKENS_MAX {
            issued.retain(|_, token| token.expires > now && token.order + 1024 > order);
        }
        issued.insert(
            token.clone(),
            Issued {
                namespace: text("namespace"),
                name: text("name"),
                uid: text("uid"),
                audiences,
                expires,
                order,
            },
        );
        Ok((token, expires))
    }

    /// Looks up a token. A service account's token is invalid once the account is deleted.
    pub(crate) fn recognise(&self, store: &Store, token: &str) -> Option<Recognised> {
        if let Some(user) = self.given.get(token) {
            return Some(Recognised { user: user.clone(), audiences: vec![AUDIENCE.to_owned()] });
        }
        let issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        let issued = issued.get(token)?.clone();
        if issued.expires <= Timestamp::now() {
            return None;
        }
        let key = key_of(&issued.namespace, &issued.name);
        let account = store.get(&Resource::new("", "serviceaccounts"), &key)?;
        if account.uid() != issued.uid {
            return None;
        }
        let user = User {
            name: format!("system:serviceaccount:{}:{}", issued.namespace, issued.name),
            uid: issued.uid,
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{}", issued.namespace),
                AUTHENTICATED.to_owned(),
            ],
            ..User::default()
        };
        Some(Recognised { user, audiences: issued.audiences })
    }
}

/// The user of requests without a token from this process, or without authorization.
pub(crate) fn trusted() -> User {
    User {
        name: "system:unsecured".to_owned(),
        groups: vec![MASTERS.to_owned(), AUTHENTICATED.to_owned()],
        ..User::default()
    }
}

/// The user that an administrator impersonates, with the groups of an authenticated one.
pub(crate) fn impersonated(name: String, mut groups: Vec<String>) -> User {
    if groups.is_empty()
        && let Some((namespace, _)) =
            name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
    {
        groups.push("system:serviceaccounts".to_owned());
        groups.push(format!("system:serviceaccounts:{namespace}"));
    }
    groups.push(AUTHENTICATED.to_owned());
    User { name, groups, ..User::default() }
}

/// The user of requests without a token from outside.
pub(crate) fn anonymous() -> User {
    User {
        name: "system:anonymous".to_owned(),
        groups: vec!["system:unauthenticated".to_owned()],
        ..User::default()
    }
}

pub(crate) fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = Value::from(user.uid.as_str());
    }
    if user.extra.as_object().is_some_and(|extra| !extra.is_empty()) {
        info["extra"] = user.extra.clone();
    }
    info
}

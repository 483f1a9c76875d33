//! A cluster at a moment, as its API tells: everything that placement depends on, as JSON.
//!
//! Owns which kinds are asked for, page by page, and what it means for answers when one may not be
//! listed or is not served. Must not know what objects mean, nor what is done with them.

use std::time::Duration;

use berth_api::crd;
use futures::StreamExt as _;
use http::Request;
use kube::{Client, Error};
use serde::Deserialize;
use thiserror::Error;

use crate::kubeconfig::causes;

/// Objects of a page. Servers keep what the next page needs for some minutes.
const PAGE_OBJECTS: usize = 500;

/// Pages of a kind that are believed in: two million objects.
const PAGES_MAX: usize = 4000;

/// Kinds that are asked for at the same time.
const AT_ONCE: usize = 6;

/// How often a list is started over when the server has forgotten what the next page is.
const STARTS_MAX: usize = 3;

/// A kind of object, and what is not known without it.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// The group; empty for the core.
    group: &'static str,
    /// Versions that can be read, the best first.
    versions: &'static [&'static str],
    /// As in the path.
    plural: &'static str,
    /// What follows if it may not be listed.
    unseen: &'static str,
    /// What follows if the server does not know it; empty: nothing.
    missing: &'static str,
}

impl Kind {
    const fn new(group: &'static str, plural: &'static str, unseen: &'static str) -> Self {
        Self { group, versions: &["v1"], plural, unseen, missing: "" }
    }

    /// Where a version of it is listed.
    fn path(&self, version: &str) -> String {
        match self.group {
            "" => format!("/api/{version}/{}", self.plural),
            group => format!("/apis/{group}/{version}/{}", self.plural),
        }
    }

    /// As kubectl names it: `poddisruptionbudgets.policy`.
    fn full_name(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// Without these nothing can be said at all.
    fn is_needed(&self) -> bool {
        self.group.is_empty() && matches!(self.plural, "pods" | "nodes")
    }
}

const OWN_VOLUMES: &str = "node restrictions of volumes are unknown";
const SPREADING: &str = "default spreading of a workload's pods is not modelled";
const SHARES: &str = "queue positions and held pods do not take team shares into account";
const OWN: &str = "Headroom, Pool and Accelerator objects are ignored";
const CLAIMS: &str = "devices of resource claims are unknown";

/// Everything that placement depends on.
const KINDS: &[Kind] = &[
    Kind::new("", "nodes", ""),
    Kind::new("", "pods", ""),
    Kind::new("", "namespaces", "affinity that selects namespaces by label is ignored"),
    Kind::new("", "resourcequotas", "pods that a quota holds count as waiting for room"),
    Kind::new("", "limitranges", "default requests and limits of containers are unknown"),
    Kind::new("", "services", SPREADING),
    Kind::new("", "replicationcontrollers", SPREADING),
    Kind::new("", "persistentvolumes", OWN_VOLUMES),
    Kind::new("", "persistentvolumeclaims", OWN_VOLUMES),
    Kind::new("apps", "replicasets", SPREADING),
    Kind::new("apps", "statefulsets", SPREADING),
    Kind::new(
        "policy",
        "poddisruptionbudgets",
        "suggested evictions may violate PodDisruptionBudgets",
    ),
    Kind::new("scheduling.k8s.io", "priorityclasses", "priorities of new pods are unknown"),
    Kind {
        versions: &["v1beta1", "v1alpha2"],
        ..Kind::new("scheduling.k8s.io", "podgroups", "gangs of PodGroups are ignored")
    },
    Kind::new("storage.k8s.io", "storageclasses", OWN_VOLUMES),
    Kind::new("storage.k8s.io", "csinodes", "volume limits of nodes are unknown"),
    Kind::new("storage.k8s.io", "csidrivers", OWN_VOLUMES),
    Kind::new("storage.k8s.io", "csistoragecapacities", OWN_VOLUMES),
    Kind::new("storage.k8s.io", "volumeattachments", "volumes still attached are not counted"),
    Kind::new("resource.k8s.io", "resourceclaims", CLAIMS),
    Kind::new("resource.k8s.io", "resourceclaimtemplates", CLAIMS),
    Kind::new("resource.k8s.io", "deviceclasses", CLAIMS),
    Kind::new("resource.k8s.io", "resourceslices", CLAIMS),
    Kind {
        versions: &["v1alpha2"],
        missing: "the NUMA layout of nodes is known only from their labels",
        ..Kind::new(
            "topology.node.k8s.io",
            "noderesourcetopologies",
            "the NUMA layout of nodes is known only from their labels",
        )
    },
    Kind::new("karpenter.sh", "nodepools", "pools that can grow are unknown"),
    Kind { versions: &[crd::VERSION], ..Kind::new(crd::GROUP, "teams", SHARES) },
    Kind { versions: &[crd::VERSION], ..Kind::new(crd::GROUP, "headrooms", OWN) },
    Kind { versions: &[crd::VERSION], ..Kind::new(crd::GROUP, "pools", OWN) },
    Kind { versions: &[crd::VERSION], ..Kind::new(crd::GROUP, "accelerators", OWN) },
];

/// A text that the API gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where it came from.
    pub path: String,
    /// A list of objects of one kind, as JSON.
    pub text: String,
}

/// A cluster at a moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// All objects, kind by kind.
    pub pages: Vec<Page>,
    /// What could not be had, and what is uncertain for that.
    pub gaps: Vec<String>,
}

/// Why there is no snapshot.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The server is not to be reached.
    #[error("{origin} does not answer: {cause}; {remedy}")]
    Unreachable {
        /// Context and address.
        origin: String,
        /// What happened.
        cause: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The server does not know who asks.
    #[error(
        "{origin} authentication failed (401): {said}; log in again, or choose another user with \
         --user or --context"
    )]
    Unauthorized {
        /// Context and address.
        origin: String,
        /// In the server's words.
        said: String,
    },
    /// Something may not be listed without which nothing can be said.
    #[error("{origin} does not let {who} list {kind} in the whole cluster (403); {remedy}")]
    Forbidden {
        /// Context and address.
        origin: String,
        /// Who asked.
        who: String,
        /// What.
        kind: String,
        /// What would help.
        remedy: String,
    },
    /// The server answered something else.
    #[error("{origin} did not list {kind}: {cause}; is it a Kubernetes API?")]
    Refused {
        /// Context and address.
        origin: String,
        /// What.
        kind: String,
        /// What it said.
        cause: String,
    },
}

/// Lists everything, with the rights of whom the client speaks for. `origin` is for errors only.
///
/// # Errors
/// When the server cannot be asked, or does not tell of nodes and pods.
pub async fn take(
    client: &Client,
    origin: &str,
    timeout: Option<Duration>,
) -> Result<Snapshot, SnapshotError> {
    let lists = futures::stream::iter(KINDS.iter().copied())
        .map(|kind| async move { (kind, list(client, kind, timeout).await) });
    let mut lists = lists.buffered(AT_ONCE);
    let mut snapshot = Snapshot::default();
    let mut gaps = Gaps::default();
    while let Some((kind, listed)) = lists.next().await {
        match listed {
            Ok(Some(pages)) => snapshot.pages.extend(pages),
            Ok(None) if kind.is_needed() => {
                let cause = "it does not know them (404)".to_owned();
                let (origin, kind) = (origin.to_owned(), kind.full_name());
                return Err(SnapshotError::Refused { origin, kind, cause });
            }
            Ok(None) if kind.missing.is_empty() => {}
            Ok(None) => {
                gaps.add("the cluster has no".to_owned(), &kind, kind.missing);
            }
            Err(failure) => gaps.add(gap(&kind, origin, failure)?, &kind, kind.unseen),
        }
    }
    snapshot.gaps = gaps.told();
    Ok(snapshot)
}

/// What could not be had: those for one reason and with one consequence together.
#[derive(Default)]
struct Gaps(Vec<(String, &'static str, Vec<String>)>);

impl Gaps {
    fn add(&mut self, why: String, kind: &Kind, makes: &'static str) {
        let name = kind.full_name();
        match self.0.iter_mut().find(|(known, of, _)| *known == why && *of == makes) {
            Some((_, _, names)) => names.push(name),
            None => self.0.push((why, makes, vec![name])),
        }
    }

    fn told(self) -> Vec<String> {
        let gaps = self.0.into_iter();
        gaps.map(|(why, makes, names)| format!("{why} {}: {makes}", names.join(", "))).collect()
    }
}

/// Why a list was not had.
enum Failure {
    Client(Box<Error>),
    /// No answer in time.
    Late(Duration),
    /// There is no end to it.
    Endless,
}

/// Why something could not be had, if something can still be said.
fn gap(kind: &Kind, origin: &str, failure: Failure) -> Result<String, SnapshotError> {
    let origin = origin.to_owned();
    let name = kind.full_name();
    let error = match failure {
        Failure::Client(error) => error,
        Failure::Late(after) => {
            let cause = format!("no list of {name} within {} s", after.as_secs());
            let remedy = "wait longer with --request-timeout";
            return Err(SnapshotError::Unreachable { origin, cause, remedy });
        }
        Failure::Endless => {
            let cause = format!("more than {PAGES_MAX} pages");
            return Err(SnapshotError::Refused { origin, kind: name, cause });
        }
    };
    let Error::Api(status) = *error else {
        let remedy = remedy_of(&error);
        return Err(SnapshotError::Unreachable { origin, cause: causes(&error), remedy });
    };
    match status.code {
        401 => Err(SnapshotError::Unauthorized { origin, said: status.message.clone() }),
        403 if kind.is_needed() => {
            let who = user_of(&status.message);
            Err(SnapshotError::Forbidden { origin, remedy: role_for(&who), who, kind: name })
        }
        _ if kind.is_needed() => {
            let cause = format!("{} ({})", status.message, status.code);
            Err(SnapshotError::Refused { origin, kind: name, cause })
        }
        403 => Ok("you may not list".to_owned()),
        code => Ok(format!("the server did not list (error {code})")),
    }
}

/// The user that a rejection names: `User "jane" cannot list …`.
fn user_of(message: &str) -> String {
    let named = message.split_once("User \"").and_then(|(_, rest)| rest.split_once('"'));
    named.map_or_else(|| "you".to_owned(), |(user, _)| format!("user {user:?}"))
}

/// What gives the rights that are needed.
fn role_for(who: &str) -> String {
    let user = who.strip_prefix("user ").unwrap_or("NAME");
    let mut rules = String::new();
    let mut groups: Vec<&str> = Vec::new();
    for kind in KINDS {
        if groups.contains(&kind.group) {
            continue;
        }
        groups.push(kind.group);
        let of_group = KINDS.iter().filter(|one| one.group == kind.group);
        let plurals: Vec<&str> = of_group.map(|one| one.plural).collect();
        let (group, plurals) = (kind.group, plurals.join(", "));
        rules += &format!("- {{apiGroups: [{group:?}], resources: [{plurals}], verbs: [list]}}\n");
    }
    format!(
        "an administrator can let you read what placement depends on:

kubectl apply -f - <<EOF
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: berth-reader}}
rules:
{rules}EOF
kubectl create clusterrolebinding berth-reader --clusterrole=berth-reader --user={user}"
    )
}

fn remedy_of(error: &Error) -> &'static str {
    let words = causes(error).to_lowercase();
    let has = |some: &str| words.contains(some);
    if matches!(error, Error::Auth(_)) || has("exec") {
        "log in again: the kubeconfig's command for credentials failed"
    } else if has("certificate") || has("tls") {
        "check the address and certificate-authority of the cluster in the kubeconfig"
    } else if has("dns") || has("lookup") {
        "check the name of the server in the kubeconfig, and your network"
    } else {
        "check that the cluster is up and that this is its address, or choose another with --context"
    }
}

/// All pages of a kind; `None` if the server does not know it in any version.
async fn list(
    client: &Client,
    kind: Kind,
    timeout: Option<Duration>,
) -> Result<Option<Vec<Page>>, Failure> {
    for version in kind.versions {
        match pages(client, &kind.path(version), timeout).await {
            Err(Failure::Client(error)) if code_of(&error) == Some(404) => {}
            other => return other.map(Some),
        }
    }
    Ok(None)
}

fn code_of(error: &Error) -> Option<u16> {
    match error {
        Error::Api(status) => Some(status.code),
        _ => None,
    }
}

async fn pages(
    client: &Client,
    path: &str,
    timeout: Option<Duration>,
) -> Result<Vec<Page>, Failure> {
    let mut starts = 1;
    let mut pages = Vec::new();
    let mut next = String::new();
    loop {
        // The last start asks for all at once: nothing can be forgotten then.
        let uri = match starts {
            STARTS_MAX => path.to_owned(),
            _ if next.is_empty() => format!("{path}?limit={PAGE_OBJECTS}"),
            _ => format!("{path}?limit={PAGE_OBJECTS}&continue={}", escaped(&next)),
        };
        match page(client, &uri, timeout).await {
            Ok((page, more)) => {
                pages.push(page);
                next = more.unwrap_or_default();
                if next.is_empty() || starts == STARTS_MAX {
                    return Ok(pages);
                }
                if pages.len() >= PAGES_MAX {
                    return Err(Failure::Endless);
                }
            }
            Err(Failure::Client(error))
                if code_of(&error) == Some(410) && !next.is_empty() && starts < STARTS_MAX =>
            {
                starts += 1;
                pages.clear();
                next.clear();
            }
            Err(failure) => return Err(failure),
        }
    }
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    metadata: ListMetadata,
}

#[derive(Default, Deserialize)]
struct ListMetadata {
    r#continue: Option<String>,
}

async fn page(
    client: &Client,
    uri: &str,
    timeout: Option<Duration>,
) -> Result<(Page, Option<String>), Failure> {
    let failed = |error: Error| Failure::Client(Box::new(error));
    let request = Request::get(uri).header(http::header::ACCEPT, "application/json");
    let request = request.body(Vec::new()).map_err(|error| failed(Error::HttpError(error)))?;
    let asked = client.request_text(request);
    let text = match timeout {
        None => asked.await,
        Some(after) => {
            tokio::time::timeout(after, asked).await.map_err(|_| Failure::Late(after))?
        }
    };
    let text = text.map_err(failed)?;
    let head: Head =
        serde_json::from_str(&text).map_err(|error| failed(Error::SerdeError(error)))?;
    let path = uri.split_once('?').map_or(uri, |(path, _)| path).to_owned();
    Ok((Page { path, text }, head.metadata.r#continue.filter(|token| !token.is_empty())))
}

/// A token as a part of an address.
fn escaped(token: &str) -> String {
    let mut text = String::with_capacity(token.len());
    for byte in token.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

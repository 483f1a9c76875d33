//! The way to a cluster, as kubectl finds it.
//!
//! Owns which kubeconfig counts, what of it is chosen, and what to say when there is no way. Files are
//! those of `--kubeconfig`, else of `KUBECONFIG` (several, of which those that do not exist are passed
//! over and the first to say something wins), else `~/.kube/config`; in a pod without any, its service
//! account. Must not know what the cluster is asked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;
use tower::timeout::TimeoutLayer;
use tower::util::MapResponseLayer;
use tower_http::timeout::ResponseBodyTimeoutLayer;

use crate::tolerant::tolerant;

/// What somebody says about the way, if anything.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// This file instead of the usual ones.
    pub kubeconfig: Option<PathBuf>,
    /// This context instead of the current one.
    pub context: Option<String>,
    /// This cluster instead of the context's, by its name in the kubeconfig.
    pub cluster: Option<String>,
    /// This user instead of the context's, by its name in the kubeconfig.
    pub user: Option<String>,
    /// This address instead of the cluster's.
    pub server: Option<String>,
    /// The user to act as.
    pub impersonate: Option<String>,
    /// Whether the client is for a scheduler, which itself decides what to do about a rejection.
    pub schedules: bool,
}

/// An answer of which nothing has come for so long never comes: on a watch there is a bookmark a minute.
const SILENCE: Duration = Duration::from_secs(100);

/// A way that was found. Nothing has been asked yet.
#[derive(Clone)]
pub struct Connection {
    /// Who asks.
    pub client: Client,
    /// The namespace of the context, or `default`.
    pub namespace: String,
    /// Context and address, for people.
    pub origin: String,
}

/// Why there is no way.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// Nobody says where a cluster is.
    #[error(
        "no kubeconfig: {tried}; name one with --kubeconfig or KUBECONFIG, or give a dump of a cluster \
         with --cluster"
    )]
    Nothing {
        /// What was looked for.
        tried: String,
    },
    /// A file that cannot be read.
    #[error("kubeconfig {file}: {cause}; check the file, or name another with --kubeconfig")]
    File {
        /// The file.
        file: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The kubeconfig does not say what is needed.
    #[error("kubeconfig {files}: {cause}; {remedy}")]
    Choice {
        /// Where was looked.
        files: String,
        /// What is wrong.
        cause: String,
        /// What to do.
        remedy: String,
    },
    #[error("{origin}: invalid server address {address:?}: {cause} (e.g. https://10.0.0.1:6443)")]
    Server {
        /// The context, or the flag.
        origin: String,
        address: String,
        cause: String,
    },
    /// A client that cannot be made.
    #[error("{origin}: {cause}; check the user's credentials and the cluster's certificate there")]
    Client {
        /// Context and address.
        origin: String,
        /// What is wrong.
        cause: String,
    },
}

/// The way to a cluster.
///
/// # Errors
/// When there is none, or more than one can tell.
pub async fn connect(access: &Access) -> Result<Connection, ConnectError> {
    let (mut config, context) = match files(access)? {
        Found::Files(kubeconfig, names) => from_files(access, kubeconfig, &names).await?,
        Found::Nothing(tried) => match Config::incluster() {
            Ok(config) => (config, "in the cluster".to_owned()),
            Err(_) => return Err(ConnectError::Nothing { tried }),
        },
    };
    if let Some(server) = &access.server {
        config.cluster_url = server.parse().map_err(|error| ConnectError::Server {
            origin: "--server".to_owned(),
            address: server.clone(),
            cause: format!("{error}"),
        })?;
    }
    // Without a scheme it parses as an authority, of which the client can make no request.
    if !matches!(config.cluster_url.scheme_str(), Some("http" | "https")) {
        return Err(ConnectError::Server {
            origin: access.server.as_ref().map_or(context, |_| "--server".to_owned()),
            address: config.cluster_url.to_string(),
            cause: "must start with http:// or https://".to_owned(),
        });
    }
    if let Some(user) = &access.impersonate {
        config.auth_info.impersonate = Some(user.clone());
    }
    if access.schedules {
        // An eviction that a disruption budget refuses would be tried again for minutes, and nobody told.
        config.default_retry = false;
    }
    let origin = format!("{context} ({})", config.cluster_url.to_string().trim_end_matches('/'));
    let namespace = config.default_namespace.clone();
    let silence = access.schedules.then_some(SILENCE);
    let client = client(config, silence)
        .map_err(|error| ConnectError::Client { origin: origin.clone(), cause: causes(&error) })?;
    Ok(Connection { client, namespace, origin })
}

/// A client that can read every answer, and gives up one of which nothing has come for so long.
///
/// It waits for answers, not, as the `read_timeout` of a configuration would, for what comes on a
/// connection: that timer is set anew for every read, and wakes its own thread each time.
fn client(config: Config, silence: Option<Duration>) -> kube::Result<Client> {
    let builder = ClientBuilder::try_from(config)?.with_layer(&MapResponseLayer::new(tolerant));
    Ok(match silence {
        Some(silence) => builder
            .with_layer(&ResponseBodyTimeoutLayer::new(silence))
            .with_layer(&TimeoutLayer::new(silence))
            .build(),
        None => builder.build(),
    })
}

enum Found {
    /// All files as one, and their names.
    Files(Box<Kubeconfig>, String),
    /// What was looked for in vain.
    Nothing(String),
}

fn files(access: &Access) -> Result<Found, ConnectError> {
    if let Some(path) = &access.kubeconfig {
        let file = read(path)?.ok_or_else(|| ConnectError::File {
            file: path.display().to_string(),
            cause: "there is no such file".to_owned(),
        })?;
        return Ok(Found::Files(Box::new(file), path.display().to_string()));
    }
    let named = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let mut paths: Vec<PathBuf> =
        std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    let of = if paths.is_empty() {
        let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("~"));
        paths.push(home.join(".kube").join("config"));
        "nothing at"
    } else {
        "no file of KUBECONFIG exists:"
    };
    merged(&paths, of)
}

/// The files that exist as one.
fn merged(paths: &[PathBuf], of: &str) -> Result<Found, ConnectError> {
    let mut all: Option<Kubeconfig> = None;
    let mut names = Vec::new();
    for path in paths {
        let Some(file) = read(path)? else { continue };
        names.push(path.display().to_string());
        let so_far = all.take().unwrap_or_default();
        all = Some(so_far.merge(file).map_err(|error| ConnectError::File {
            file: path.display().to_string(),
            cause: error.to_string(),
        })?);
    }
    Ok(match all {
        Some(kubeconfig) => Found::Files(Box::new(kubeconfig), names.join(", ")),
        None => {
            let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            Found::Nothing(format!("{of} {}", paths.join(", ")))
        }
    })
}

/// `None`: there is no such file.
fn read(path: &Path) -> Result<Option<Kubeconfig>, ConnectError> {
    match Kubeconfig::read_from(path) {
        Ok(kubeconfig) => Ok(Some(kubeconfig)),
        Err(KubeconfigError::ReadConfig(error, _))
            if error.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(None)
        }
        Err(KubeconfigError::ReadConfig(error, _)) => {
            let file = path.display().to_string();
            Err(ConnectError::File { file, cause: error.to_string() })
        }
        Err(error) => {
            let (file, words) = (path.display().to_string(), error.to_string());
            // What the reader of YAML draws is more than a line.
            let cause = words.lines().next().unwrap_or_default().to_owned();
            Err(ConnectError::File { file, cause })
        }
    }
}

async fn from_files(
    access: &Access,
    kubeconfig: Box<Kubeconfig>,
    files: &str,
) -> Result<(Config, String), ConnectError> {
    let known = |names: Vec<&str>| match names.as_slice() {
        [] => "there is none".to_owned(),
        [one] => format!("there is {one}"),
        some => format!("there are {}", some.join(", ")),
    };
    let contexts = known(kubeconfig.contexts.iter().map(|one| one.name.as_str()).collect());
    let clusters = known(kubeconfig.clusters.iter().map(|one| one.name.as_str()).collect());
    let users: Vec<String> = kubeconfig.auth_infos.iter().map(|one| one.name.clone()).collect();
    let current = kubeconfig.current_context.clone().filter(|name| !name.is_empty());
    let context = access.context.clone().or(current);
    let choice = |cause: String, remedy: String| ConnectError::Choice {
        files: files.to_owned(),
        cause,
        remedy,
    };
    let Some(name) = context else {
        let cause = "no current context is set".to_owned();
        return Err(choice(cause, format!("name one with --context: {contexts}")));
    };
    if let Some(user) = access.user.as_ref().filter(|user| !users.contains(user)) {
        let names = known(users.iter().map(String::as_str).collect());
        return Err(choice(format!("no user {user:?}"), format!("name one of its users: {names}")));
    }
    let options = KubeConfigOptions {
        context: Some(name.clone()),
        cluster: access.cluster.clone(),
        user: access.user.clone(),
    };
    let config = Config::from_custom_kubeconfig(*kubeconfig, &options).await;
    let config = config.map_err(|error| match error {
        KubeconfigError::LoadContext(name) => {
            choice(format!("no context {name:?}"), format!("name one with --context: {contexts}"))
        }
        KubeconfigError::LoadClusterOfContext(cluster) => choice(
            match access.cluster {
                Some(_) => format!("no cluster {cluster:?}"),
                None => {
                    format!("context {name:?} refers to cluster {cluster:?}, which does not exist")
                }
            },
            format!("name one with --cluster-name: {clusters}"),
        ),
        other => choice(causes(&other), format!("correct context {name:?} there")),
    })?;
    Ok((config, format!("context {name}")))
}

/// An error with everything that led to it, each thing said once. What the client's own wrappings say
/// besides is for its programmers.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let words = error.to_string();
    let words =
        ["ServiceError: ", "HyperError: "].into_iter().find_map(|name| words.strip_prefix(name));
    let mut said: Vec<String> = vec![words.map_or_else(|| error.to_string(), str::to_owned)];
    let mut source = error.source();
    while let Some(error) = source {
        let words = error.to_string();
        if !said.iter().any(|known| known.contains(&words)) {
            said.push(words);
        }
        source = error.source();
    }
    said.join(": ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const ONE: &str = "apiVersion: v1
kind: Config
current-context: dev
clusters: [{name: lab, cluster: {server: 'http://127.0.0.1:17999'}}]
users: [{name: me, user: {}}]
contexts:
- {name: dev, context: {cluster: lab, user: me, namespace: research}}
- {name: stale, context: {cluster: gone, user: me}}
";

    const TWO: &str = "apiVersion: v1
kind: Config
current-context: prod
clusters: [{name: fleet, cluster: {server: 'http://127.0.0.1:17998'}}]
contexts: [{name: prod, context: {cluster: fleet, user: ''}}]
";

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(&path, text).unwrap();
        (directory, path)
    }

    async fn rejected(access: Access) -> String {
        match connect(&access).await {
            Ok(connection) => connection.origin,
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn a_context_says_where_and_in_which_namespace() {
        let (_directory, path) = written(ONE);
        let access = Access { kubeconfig: Some(path), ..Access::default() };
        let connection = connect(&access).await.unwrap();
        assert_eq!(connection.namespace, "research");
        assert_eq!(connection.origin, "context dev (http://127.0.0.1:17999)");
        let server = Some("http://10.0.0.1:6443".to_owned());
        let connection = connect(&Access { server, ..access }).await.unwrap();
        assert_eq!(connection.origin, "context dev (http://10.0.0.1:6443)");
    }

    #[tokio::test]
    async fn what_is_not_there_is_named_with_what_is() {
        let (_directory, path) = written(ONE);
        let access = Access { kubeconfig: Some(path.clone()), ..Access::default() };
        let context = Some("prod".to_owned());
        let said = rejected(Access { context, ..access.clone() }).await;
        assert!(
            said.contains("no context \"prod\"; name one with --context: there are dev, stale")
        );
        assert!(said.contains(&path.display().to_string()), "{said}");
        let context = Some("stale".to_owned());
        let said = rejected(Access { context, ..access.clone() }).await;
        let expected = "context \"stale\" refers to cluster \"gone\", which does not exist";
        assert!(said.contains(expected), "{said}");
        let user = Some("root".to_owned());
        let said = rejected(Access { user, ..access.clone() }).await;
        assert!(said.contains("no user \"root\""), "{said}");
        for server in ["https://[", "localhost:34443", "10.0.0.1", "ftp://10.0.0.1"] {
            let server = Some(server.to_owned());
            let message = rejected(Access { server, ..access.clone() }).await;
            assert!(message.starts_with("--server: invalid server address"), "{message}");
            assert!(message.contains("https://10.0.0.1:6443"), "{message}");
        }
    }

    #[tokio::test]
    async fn a_file_that_is_none_is_named() {
        let kubeconfig = Some(PathBuf::from("/nowhere/config"));
        let said = rejected(Access { kubeconfig, ..Access::default() }).await;
        assert!(said.starts_with("kubeconfig /nowhere/config: there is no such file"), "{said}");
        let (_directory, path) = written("contexts: {{{");
        let said = rejected(Access { kubeconfig: Some(path), ..Access::default() }).await;
        assert!(said.starts_with("kubeconfig ") && said.lines().count() == 1, "{said}");
    }

    /// What a client says of a server that says `words` and then nothing more.
    async fn given_up(words: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_exact(&mut [0; 16]).await.unwrap();
            stream.write_all(words).await.unwrap();
            std::future::pending::<()>().await;
        });
        let silence = Duration::from_millis(50);
        let client = client(Config::new(address.parse().unwrap()), Some(silence)).unwrap();
        let asked = client.request_text(http::Request::get("/version").body(vec![]).unwrap());
        let answer = tokio::time::timeout(Duration::from_secs(10), asked).await;
        causes(&answer.expect("nobody gave up").expect_err("nobody answered"))
    }

    #[tokio::test]
    async fn a_scheduler_gives_up_an_answer_that_does_not_come() {
        assert_eq!(given_up(b"").await, "request timed out");
        let begun = given_up(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await;
        assert!(begun.contains("data was not received"), "{begun}");
    }

    #[test]
    fn of_several_files_the_first_to_say_something_wins() {
        let ((_one, one), (_two, two)) = (written(ONE), written(TWO));
        let paths = [PathBuf::from("/nowhere/config"), one, two];
        let Ok(Found::Files(all, names)) = merged(&paths, "") else { panic!("not found") };
        assert_eq!(all.current_context.as_deref(), Some("dev"));
        assert_eq!(all.contexts.len(), 3);
        assert!(!names.contains("nowhere"));
        let none = merged(&paths[..1], "nothing at");
        assert!(matches!(none, Ok(Found::Nothing(tried)) if tried == "nothing at /nowhere/config"));
    }
}

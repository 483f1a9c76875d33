//! Reads the cluster that a command is about: a live one, as kubectl finds it, or a dump.
//!
//! An invalid object in a dump is an error. An invalid object in a live cluster is left out, with a note.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use berth_control::kubeconfig::{Access, connect};
use berth_control::snapshot;
use berth_manifest::{Document, Object, Problem, Source, Strictness, load, read_as};
use berth_scenario::cluster::{Cluster, Objects, read, read_sound};
use berth_scenario::scenario::{add_pools, is_scenario};
use clap::Args;

/// Objects that a note names at most.
const NAMED_MAX: usize = 3;

#[derive(Args)]
pub(crate) struct ClusterArgs {
    /// Read a dump instead of a live cluster: nodes, pods and other objects from
    /// `kubectl get -o yaml`, or the pools of a scenario; repeat for more
    #[arg(long, value_name = "FILE|DIR", help_heading = "Cluster")]
    cluster: Vec<PathBuf>,

    /// Kubeconfig file (default: KUBECONFIG, then ~/.kube/config)
    #[arg(long, value_name = "FILE", help_heading = "Cluster", conflicts_with = "cluster")]
    kubeconfig: Option<PathBuf>,

    /// Kubeconfig context (default: the current context)
    #[arg(long, value_name = "NAME", help_heading = "Cluster", conflicts_with = "cluster")]
    context: Option<String>,

    /// Kubeconfig cluster (default: the context's)
    #[arg(long, value_name = "NAME", help_heading = "Cluster", conflicts_with = "cluster")]
    cluster_name: Option<String>,

    /// Kubeconfig user (default: the context's)
    #[arg(long, value_name = "NAME", help_heading = "Cluster", conflicts_with = "cluster")]
    user: Option<String>,

    /// Address of the API server (default: the cluster's)
    #[arg(short, long, value_name = "URL", help_heading = "Cluster", conflicts_with = "cluster")]
    server: Option<String>,

    /// User to impersonate
    #[arg(long = "as", value_name = "USER", help_heading = "Cluster", conflicts_with = "cluster")]
    impersonate: Option<String>,

    /// Timeout of a single request to the API server, such as 30s or 2m; 0 disables it
    #[arg(
        long,
        value_name = "DURATION",
        help_heading = "Cluster",
        default_value = "60s",
        value_parser = timeout
    )]
    request_timeout: Timeout,
}

/// `None`: no timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Timeout(Option<Duration>);

fn timeout(text: &str) -> anyhow::Result<Timeout> {
    let invalid = || anyhow!("invalid duration {text:?} (e.g. 30s, 2m or 1h; 0 for no timeout)");
    let span = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let span: jiff::SignedDuration = text.parse().map_err(|_| invalid())?;
            Duration::try_from(span).map_err(|_| invalid())?
        }
    };
    Ok(Timeout(Some(span).filter(|span| !span.is_zero())))
}

/// A cluster at one moment.
pub(crate) struct Snapshot {
    /// What `cluster` was read from.
    pub(crate) objects: Objects,
    pub(crate) cluster: Cluster,
    /// What could not be read, and what that leaves uncertain.
    pub(crate) notes: Vec<String>,
    /// The context's namespace; `None` for a dump.
    pub(crate) namespace: Option<String>,
    /// `None` for a dump, whose age is unknown.
    pub(crate) now_ms: Option<i64>,
}

impl ClusterArgs {
    pub(crate) fn read(&self, stdin: &mut dyn Read) -> anyhow::Result<Snapshot> {
        if self.cluster.is_empty() { self.read_live() } else { self.read_dump(stdin) }
    }

    fn read_dump(&self, stdin: &mut dyn Read) -> anyhow::Result<Snapshot> {
        let (objects, cluster) = cluster_of(load(&self.cluster, stdin, Strictness::Dump)?)?;
        Ok(Snapshot { objects, cluster, notes: Vec::new(), namespace: None, now_ms: None })
    }

    fn read_live(&self) -> anyhow::Result<Snapshot> {
        let access = Access {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            cluster: self.cluster_name.clone(),
            user: self.user.clone(),
            server: self.server.clone(),
            impersonate: self.impersonate.clone(),
            schedules: false,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the async runtime")?;
        let (connection, snapshot) = runtime.block_on(async {
            let connection = connect(&access).await?;
            let timeout = self.request_timeout.0;
            let taken = snapshot::take(&connection.client, &connection.origin, timeout).await?;
            anyhow::Ok((connection, taken))
        })?;
        let mut documents = Vec::new();
        for page in snapshot.pages {
            let source = Source::new(page.path, page.text);
            documents.append(&mut read_as(&source, Strictness::Dump)?);
        }
        let (objects, mut problems) = Objects::sound(documents);
        let (cluster, more) = read_sound(&objects);
        problems.extend(more);
        let mut notes = snapshot.gaps;
        notes.extend(ignored(&problems));
        let now_ms = Some(jiff::Timestamp::now().as_millisecond());
        Ok(Snapshot { objects, cluster, notes, namespace: Some(connection.namespace), now_ms })
    }
}

/// The cluster that documents describe: nodes, or the pools of scenarios.
pub(crate) fn cluster_of(documents: Vec<Document>) -> anyhow::Result<(Objects, Cluster)> {
    let (scenarios, dump): (Vec<_>, Vec<_>) = documents.into_iter().partition(is_scenario);
    let objects = Objects::new(dump)?;
    let has_nodes = objects.0.iter().any(|read| matches!(read.object, Object::Node(_)));
    if !has_nodes && scenarios.is_empty() {
        bail!("--cluster contains no Node; dump nodes with `kubectl get nodes -o yaml`");
    }
    let mut cluster = read(&objects)?;
    scenarios.iter().try_for_each(|scenario| add_pools(scenario, &mut cluster))?;
    Ok((objects, cluster))
}

/// A note on objects that could not be read.
fn ignored(problems: &[Problem]) -> Option<String> {
    let named: Vec<String> = problems
        .iter()
        .take(NAMED_MAX)
        .map(|one| format!("{}, {}: {}", one.object, one.field, one.message))
        .collect();
    let more = match problems.len() - named.len() {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    (!named.is_empty()).then(|| format!("ignored invalid objects: {}{more}", named.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_kubectls_form() {
        let of = |text: &str| timeout(text).ok().map(|one| one.0.map(|span| span.as_millis()));
        assert_eq!(of("0"), Some(None));
        assert_eq!(of("0s"), Some(None));
        assert_eq!(of("30"), Some(Some(30_000)));
        assert_eq!(of("1m30s"), Some(Some(90_000)));
        assert_eq!(of("500ms"), Some(Some(500)));
        assert!(of("soon").is_none() && of("-3s").is_none() && of("").is_none());
    }
}

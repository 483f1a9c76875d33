//! Where a cluster comes from: a live one, as kubectl finds it, or a dump.
//!
//! Owns the arguments for that, which all commands that look at clusters share, and the way from either
//! to objects. A dump that cannot be is refused; what a live cluster holds that cannot be is left out and
//! told of. Must not know what is done with the cluster.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_control::kubeconfig::{Access, connect};
use berth_control::snapshot;
use berth_manifest::{Document, Object, Problem, Source, Strictness, load, read_as};
use berth_scenario::cluster::{Cluster, Objects, read, read_sound};
use berth_scenario::scenario::{add_pools, is_scenario};
use clap::Args;

/// So many objects that were left out are named.
const NAMED_MAX: usize = 3;

/// Which cluster is meant.
#[derive(Args)]
pub(crate) struct ClusterArgs {
    /// A dump instead of a live cluster: nodes, pods, NodeResourceTopologies and so on, from
    /// `kubectl get -o yaml|json`, or the pools of a scenario.
    #[arg(long, value_name = "FILE|DIR", help_heading = "Cluster")]
    cluster: Vec<PathBuf>,

    /// The kubeconfig file; otherwise those of KUBECONFIG, or ~/.kube/config.
    #[arg(long, value_name = "FILE", help_heading = "Cluster", conflicts_with = "cluster")]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context; otherwise the current one.
    #[arg(long, value_name = "NAME", help_heading = "Cluster", conflicts_with = "cluster")]
    context: Option<String>,

    /// The kubeconfig's cluster, instead of the context's.
    #[arg(long, value_name = "NAME", help_heading = "Cluster", conflicts_with = "cluster")]
    cluster_name: Option<String>,

    /// The kubeconfig's user, instead of the context's.
    #[arg(long, value_name = "NAME", help_heading = "Cluster", conflicts_with = "cluster")]
    user: Option<String>,

    /// The address of the API server, instead of the cluster's.
    #[arg(short, long, value_name = "URL", help_heading = "Cluster", conflicts_with = "cluster")]
    server: Option<String>,

    /// The user to act as.
    #[arg(long = "as", value_name = "USER", help_heading = "Cluster", conflicts_with = "cluster")]
    impersonate: Option<String>,

    /// How long to wait for each answer, such as 30s or 2m; 0: without end.
    #[arg(
        long,
        value_name = "TIME",
        help_heading = "Cluster",
        default_value = "60s",
        value_parser = patience
    )]
    request_timeout: Patience,
}

/// How long somebody waits; `None`: without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Patience(Option<Duration>);

fn patience(text: &str) -> Result<Patience, String> {
    let wrong = || format!("{text:?} is no time; write such as 30s, 2m or 1h, or 0 for no end");
    let span = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let span: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
            Duration::try_from(span).map_err(|_| wrong())?
        }
    };
    Ok(Patience(Some(span).filter(|span| !span.is_zero())))
}

/// A cluster that was read.
pub(crate) struct Seen {
    /// What it was read from.
    pub(crate) objects: Objects,
    /// The cluster.
    pub(crate) cluster: Cluster,
    /// What could not be had, and what follows.
    pub(crate) notes: Vec<String>,
    /// The namespace of the context; `None` for a dump.
    pub(crate) namespace: Option<String>,
    /// The time; `None` for a dump, which is as old as what it tells of.
    pub(crate) now_ms: Option<i64>,
}

impl ClusterArgs {
    /// Reads the cluster.
    pub(crate) fn read(&self, stdin: &mut dyn Read) -> anyhow::Result<Seen> {
        if self.cluster.is_empty() { self.ask() } else { self.load(stdin) }
    }

    fn load(&self, stdin: &mut dyn Read) -> anyhow::Result<Seen> {
        let (objects, cluster) = written(load(&self.cluster, stdin, Strictness::Dump)?)?;
        Ok(Seen { objects, cluster, notes: Vec::new(), namespace: None, now_ms: None })
    }

    fn ask(&self) -> anyhow::Result<Seen> {
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
            .context("no runtime for the network")?;
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
        let (objects, mut wrong) = Objects::sound(documents);
        let (cluster, unfit) = read_sound(&objects);
        wrong.extend(unfit);
        let mut notes = snapshot.gaps;
        notes.extend(left_out(&wrong));
        let now_ms = Some(jiff::Timestamp::now().as_millisecond());
        Ok(Seen { objects, cluster, notes, namespace: Some(connection.namespace), now_ms })
    }
}

/// A cluster as it is written down: nodes, or the pools of scenarios.
pub(crate) fn written(documents: Vec<Document>) -> anyhow::Result<(Objects, Cluster)> {
    let (scenarios, dump): (Vec<_>, Vec<_>) = documents.into_iter().partition(is_scenario);
    let objects = Objects::new(dump)?;
    let has_nodes = objects.0.iter().any(|read| matches!(read.object, Object::Node(_)));
    if !has_nodes && scenarios.is_empty() {
        bail!("--cluster names no Node; dump them with `kubectl get nodes -o yaml`");
    }
    let mut cluster = read(&objects)?;
    scenarios.iter().try_for_each(|scenario| add_pools(scenario, &mut cluster))?;
    Ok((objects, cluster))
}

/// What could not be used, in a note.
fn left_out(wrong: &[Problem]) -> Option<String> {
    let some: Vec<String> = wrong
        .iter()
        .take(NAMED_MAX)
        .map(|one| format!("{}, {}: {}", one.object, one.field, one.message))
        .collect();
    let more = match wrong.len() - some.len() {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    (!some.is_empty()).then(|| format!("could not be used: {}{more}", some.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_kubectl() {
        let of = |text: &str| patience(text).map(|one| one.0.map(|span| span.as_millis()));
        assert_eq!(of("0"), Ok(None));
        assert_eq!(of("0s"), Ok(None));
        assert_eq!(of("30"), Ok(Some(30_000)));
        assert_eq!(of("1m30s"), Ok(Some(90_000)));
        assert_eq!(of("500ms"), Ok(Some(500)));
        assert!(of("soon").is_err() && of("-3s").is_err() && of("").is_err());
    }
}

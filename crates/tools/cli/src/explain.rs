//! The subcommand `berth explain`.

use std::io;
use std::process::ExitCode;

use anyhow::bail;
use berth_inspect::pod::PodReport;
use berth_inspect::table;
use berth_plan::Snapshot;
use clap::Args;

use crate::output::{self, Colour, Format};
use crate::source::ClusterArgs;

/// Explain why a pod is pending and what would help, or why it runs where it does
///
/// Reads the cluster with your own rights; Berth need not be installed. Works for pods of any scheduler.
/// Exit codes: 0, or 1 if the pod does not exist or the cluster cannot be read.
#[derive(Args)]
pub(crate) struct Explain {
    /// Pods, as `pod NAME...` or `pod/NAME...`
    #[arg(required = true, value_name = "pod NAME")]
    pods: Vec<String>,

    /// Namespace (default: current context; dumps: default)
    #[arg(short, long)]
    namespace: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// When to use colours
    #[arg(long, value_enum, default_value_t)]
    color: Colour,

    #[command(flatten)]
    source: ClusterArgs,
}

pub(crate) const EXAMPLES: &[(&str, &str)] = &[
    ("Explain why a pod is pending, with remedies", "explain pod train-0 -n research"),
    (
        "Print a pod's GPUs, CPUs and NUMA nodes as JSON",
        "explain pod/chat-7d4b-x2k -n serving -o json",
    ),
    ("Read a dump instead of a live cluster", "explain pod train-0 -n research --cluster dump/"),
];

impl Explain {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let names = pod_names(&self.pods)?;
        let snapshot = self.source.read(&mut io::stdin().lock())?;
        let namespace =
            self.namespace.or(snapshot.namespace).unwrap_or_else(|| "default".to_owned());
        let mut cluster = Snapshot::new(snapshot.objects, snapshot.cluster, snapshot.now_ms)?;
        let mut reports = Vec::new();
        for name in &names {
            let report = cluster.pod(&namespace, name);
            let mut report = report.map_err(|missing| {
                let hint = match missing.elsewhere.as_slice() {
                    [] => format!("list pending pods with `{} queue -A`", output::program()),
                    some => format!("found in namespace {}: add -n", some.join(", ")),
                };
                anyhow::anyhow!("{missing}; {hint}")
            })?;
            report.notes.extend(snapshot.notes.iter().cloned());
            reports.push(report);
        }
        output::print(&render(&reports, self.output, self.color)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn render(reports: &[PodReport], format: Format, colour: Colour) -> anyhow::Result<String> {
    let style = colour.style();
    match format {
        Format::Table | Format::Wide => {
            let texts: Vec<String> = reports.iter().map(|one| table::pod(one, style)).collect();
            Ok(texts.join("\n"))
        }
        Format::Name => Ok(reports.iter().map(|one| format!("pod/{}\n", one.pod.name)).collect()),
        Format::Json | Format::Yaml => match reports {
            [one] => output::data(one, format),
            many => output::data(&many, format),
        },
    }
}

/// Reads `pod a b` and `pod/a pod/b`.
fn pod_names(arguments: &[String]) -> anyhow::Result<Vec<String>> {
    let is_pod = |kind: &str| matches!(kind, "pod" | "pods" | "po");
    let names: Vec<String> = match arguments {
        [kind, names @ ..] if is_pod(kind) && !names.is_empty() => names.to_vec(),
        [kind] if is_pod(kind) => bail!("pod name is required, as in `pod NAME`"),
        words => {
            let mut names = Vec::new();
            for word in words {
                match word.split_once('/') {
                    Some((kind, name)) if is_pod(kind) && !name.is_empty() => {
                        names.push(name.to_owned());
                    }
                    Some((kind, _)) if is_pod(kind) => bail!("invalid pod name {word:?}"),
                    Some((kind, _)) => bail!("cannot explain kind {kind:?}; only pods: pod/NAME"),
                    None => bail!("unknown kind {word:?}; for a pod, use `pod {word}`"),
                }
            }
            names
        }
    };
    match names.iter().find(|name| name.contains('/')) {
        Some(name) => bail!("invalid pod name {name:?}; use `pod NAME -n NAMESPACE`"),
        None => Ok(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(words: &[&str]) -> Result<Vec<String>, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        pod_names(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn pods_are_named_as_kubectl_names_them() {
        assert_eq!(named(&["pod", "a"]).unwrap(), ["a"]);
        assert_eq!(named(&["pods", "a", "b"]).unwrap(), ["a", "b"]);
        assert_eq!(named(&["po/a", "pod/b"]).unwrap(), ["a", "b"]);
    }

    #[test]
    fn errors_name_the_argument_and_the_remedy() {
        assert!(named(&["pod"]).unwrap_err().contains("pod name is required"));
        assert!(named(&["pod/"]).unwrap_err().contains("invalid pod name"));
        assert!(named(&["train-0"]).unwrap_err().contains("`pod train-0`"));
        assert!(named(&["deploy/web"]).unwrap_err().contains("cannot explain kind \"deploy\""));
        assert!(named(&["pod", "ns/web"]).unwrap_err().contains("-n NAMESPACE"));
    }
}

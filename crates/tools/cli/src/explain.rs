//! The subcommand `berth explain`.
//!
//! Owns its arguments and exit codes. Must not know what there is to say.

use std::io;
use std::process::ExitCode;

use anyhow::bail;
use berth_plan::look::Scene;
use berth_plan::look::pod::PodReport;
use berth_plan::look::table;
use clap::Args;

use crate::output::{self, Colour, Format};
use crate::source::ClusterArgs;

/// Say why a pod is where it is, or why it is nowhere and what would help.
///
/// Reads the cluster with your own rights; nothing has to be installed there. Works for pods of any
/// scheduler. Exit codes: 0, or 1 if there is no such pod or the cluster cannot be read.
#[derive(Args)]
pub(crate) struct Explain {
    /// `pod NAME…` or `pod/NAME`.
    #[arg(required = true, value_name = "pod NAME")]
    what: Vec<String>,

    /// The namespace; otherwise the context's.
    #[arg(short, long)]
    namespace: Option<String>,

    /// How it is shown.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// When output is in colour.
    #[arg(long, value_enum, default_value_t)]
    color: Colour,

    #[command(flatten)]
    source: ClusterArgs,
}

/// What the help shows.
pub(crate) const EXAMPLES: &[(&str, &str)] = &[
    ("Why does it wait, and what would help?", "explain pod train-0 -n research"),
    ("Where is it inside of its node, as data", "explain pod/chat-7d4b-x2k -n serving -o json"),
    ("From a dump instead of a live cluster", "explain pod train-0 -n research --cluster dump/"),
];

impl Explain {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let names = pods(&self.what)?;
        let seen = self.source.read(&mut io::stdin().lock())?;
        let namespace = self.namespace.or(seen.namespace).unwrap_or_else(|| "default".to_owned());
        let mut scene = Scene::new(&seen.objects, seen.cluster, seen.now_ms)?;
        let mut reports = Vec::new();
        for name in &names {
            let report = scene.pod_report(&namespace, name);
            let mut report = report.map_err(|missing| {
                let hint = match missing.elsewhere.as_slice() {
                    [] => format!("list those that wait with `{} queue -A`", output::program()),
                    some => format!("there is one in {}: name it with -n", some.join(", ")),
                };
                anyhow::anyhow!("{missing}; {hint}")
            })?;
            report.notes.extend(seen.notes.iter().cloned());
            reports.push(report);
        }
        output::say(&shown(&reports, self.output, self.color)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn shown(reports: &[PodReport], format: Format, colour: Colour) -> anyhow::Result<String> {
    let paint = colour.paint();
    match format {
        Format::Table | Format::Wide => {
            let texts: Vec<String> = reports.iter().map(|one| table::pod(one, paint)).collect();
            Ok(texts.join("\n"))
        }
        Format::Name => Ok(reports.iter().map(|one| format!("pod/{}\n", one.pod.name)).collect()),
        Format::Json | Format::Yaml => match reports {
            [one] => output::data(one, format),
            many => output::data(&many, format),
        },
    }
}

/// The pods that are meant: `pod a b`, `pod/a pod/b`.
fn pods(what: &[String]) -> anyhow::Result<Vec<String>> {
    let is_pod = |kind: &str| matches!(kind, "pod" | "pods" | "po");
    let names: Vec<String> = match what {
        [kind, names @ ..] if is_pod(kind) && !names.is_empty() => names.to_vec(),
        [kind] if is_pod(kind) => bail!("which pod? Write such as `pod NAME`"),
        words => {
            let mut names = Vec::new();
            for word in words {
                match word.split_once('/') {
                    Some((kind, name)) if is_pod(kind) && !name.is_empty() => {
                        names.push(name.to_owned());
                    }
                    Some((kind, _)) => bail!("{kind:?} cannot be explained; name a pod: pod/NAME"),
                    None => bail!("{word:?} is no kind; write `pod {word}` or `pod/{word}`"),
                }
            }
            names
        }
    };
    match names.iter().find(|name| name.contains('/')) {
        Some(name) => bail!("{name:?} is no name; write `pod NAME` with -n NAMESPACE"),
        None => Ok(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(words: &[&str]) -> Result<Vec<String>, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        pods(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn pods_are_named_as_kubectl_names_them() {
        assert_eq!(named(&["pod", "a"]).unwrap(), ["a"]);
        assert_eq!(named(&["pods", "a", "b"]).unwrap(), ["a", "b"]);
        assert_eq!(named(&["po/a", "pod/b"]).unwrap(), ["a", "b"]);
    }

    #[test]
    fn what_is_no_pod_is_refused_with_what_to_write() {
        assert!(named(&["pod"]).unwrap_err().contains("which pod"));
        assert!(named(&["train-0"]).unwrap_err().contains("`pod train-0`"));
        assert!(named(&["deploy/web"]).unwrap_err().contains("cannot be explained"));
        assert!(named(&["pod", "ns/web"]).unwrap_err().contains("-n NAMESPACE"));
    }
}

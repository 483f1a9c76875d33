//! The subcommand `berth manifests`.
//!
//! Owns its arguments. Must not know what is installed.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use berth_control::install::{self, InstallOptions};
use berth_devices::DeviceConfig;
use berth_devices::offer::Form;
use clap::{Args, ValueEnum};

use crate::output;

/// Print everything that a cluster needs to run Berth.
///
/// `berth manifests | kubectl apply --server-side -f -` installs it.
#[derive(Args)]
pub(crate) struct Manifests {
    /// The namespace that it runs in.
    #[arg(long, value_name = "NAME", default_value = "berth-system")]
    namespace: String,

    /// The container image; by default the one of this version.
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// How many replicas run; one of them leads.
    #[arg(long, value_name = "N", default_value_t = 2)]
    replicas: u32,

    /// What the admission webhook does.
    #[arg(long, value_enum, default_value_t)]
    webhook: Webhook,

    /// What becomes of objects while the webhook cannot be reached.
    #[arg(long, value_enum, default_value_t)]
    fail: Fail,

    /// More settings of the webhook: a YAML file with deny, warn, contract and mutations.
    #[arg(long, value_name = "FILE")]
    webhook_settings: Option<PathBuf>,

    /// Namespaces that the webhook leaves alone. Can be given several times.
    #[arg(long, value_name = "NAME")]
    exempt: Vec<String>,

    /// Let cert-manager make the webhook's certificate.
    #[arg(long)]
    cert_manager: bool,

    /// Add a ServiceMonitor for the Prometheus operator.
    #[arg(long)]
    service_monitor: bool,

    /// Add priority classes for the classes of work.
    #[arg(long)]
    priority_classes: bool,

    /// Add the node agent, which tells what is on each node and whether its pods are aligned.
    #[arg(long)]
    agent: bool,

    /// The runtime class that gives the agent NVIDIA's driver, where that is not the default.
    #[arg(long, value_name = "NAME", requires = "agent")]
    agent_runtime_class: Option<String>,

    /// Let the agent see where the memory of other users' processes is, which needs SYS_PTRACE.
    #[arg(long, requires = "agent")]
    agent_memory: bool,

    /// Let the agent hand out GPUs as this file says (kind DeviceOffers), as a device plugin of the kubelet; for
    /// shares MPS daemons come along.
    #[arg(long, value_name = "FILE", requires = "agent")]
    agent_devices: Option<PathBuf>,

    /// Let the agent divide GPUs (MIG) as their Nodes say, for which it is privileged.
    #[arg(long, requires = "agent")]
    agent_mig: bool,

    /// Add the definition of NodeResourceTopology, where nobody else (such as NFD) brings it.
    #[arg(long)]
    topology_definition: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Webhook {
    /// Is not installed.
    Off,
    /// Counts and logs.
    DryRun,
    /// Warns.
    #[default]
    Warn,
    /// Denies.
    Enforce,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Fail {
    /// They are let through.
    #[default]
    Open,
    /// They are denied.
    Closed,
}

impl Manifests {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.replicas == 0 {
            bail!("--replicas is 0; write 1 or more");
        }
        let offers = self.agent_devices.as_deref().map(offers).transpose()?;
        let mut options = InstallOptions {
            namespace: self.namespace,
            replicas: self.replicas,
            webhook: match self.webhook {
                Webhook::Off => install::WebhookMode::Off,
                Webhook::DryRun => install::WebhookMode::DryRun,
                Webhook::Warn => install::WebhookMode::Warn,
                Webhook::Enforce => install::WebhookMode::Enforce,
            },
            fail: match self.fail {
                Fail::Open => install::FailurePolicy::Open,
                Fail::Closed => install::FailurePolicy::Closed,
            },
            exempt_namespaces: self.exempt.into_iter().collect(),
            cert_manager: self.cert_manager,
            service_monitor: self.service_monitor,
            priority_classes: self.priority_classes,
            agent: self.agent.then_some(install::AgentOptions {
                runtime_class: self.agent_runtime_class,
                memory: self.agent_memory,
                shares: offers.as_ref().is_some_and(|(_, shares)| *shares),
                offers: offers.map(|(text, _)| text),
                mig: self.agent_mig,
            }),
            topology_definition: self.topology_definition,
            ..InstallOptions::default()
        };
        if let Some(image) = self.image {
            options.image = image;
        }
        if let Some(path) = &self.webhook_settings {
            let text = std::fs::read_to_string(path);
            options.webhook_settings =
                text.with_context(|| format!("{} cannot be read", path.display()))?;
        }
        let documents = install::manifests(&options);
        let documents: Vec<String> = documents.iter().map(berth_manifest::to_yaml).collect();
        output::say(&documents.join("---\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What is to be handed out, and whether there are shares among it. The agent's pods have the usual directories of
/// the node, and no others.
fn offers(path: &Path) -> anyhow::Result<(String, bool)> {
    let source = berth_manifest::read_file(path)?;
    let config = DeviceConfig::read(&source)?;
    let usual = DeviceConfig::default();
    let written = config.specification.as_ref().map(|written| written.directory.as_path());
    let places = [
        ("kubeletDirectory", config.plugin.kubelet_directory == usual.plugin.kubelet_directory),
        ("journal", config.plugin.journal == usual.plugin.journal),
        ("mpsDirectory", config.plugin.answers.mps_directory == usual.plugin.answers.mps_directory),
        ("cdi.directory", written.is_none_or(|path| path == Path::new("/var/run/cdi"))),
    ];
    if let Some((field, _)) = places.iter().find(|(_, is_usual)| !is_usual) {
        bail!(
            "{}: spec.{field} is not the usual directory, and no other is mounted into the agent's pods; leave it \
             out (cdi.directory: write /var/run/cdi), or change the printed DaemonSet",
            path.display()
        );
    }
    let shares = config.offers.iter().any(|offer| matches!(offer.form, Form::Shares { .. }));
    Ok((source.text.to_string(), shares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_pods_have_the_directories_that_the_plugin_uses() {
        let agent = install::AgentOptions {
            offers: Some(String::new()),
            shares: true,
            ..install::AgentOptions::default()
        };
        let options = InstallOptions { agent: Some(agent), ..InstallOptions::default() };
        let all = install::manifests(&options);
        let sets: Vec<String> = (all.iter())
            .filter(|one| one["kind"] == "DaemonSet")
            .map(|one| one["spec"]["template"]["spec"]["containers"][0]["volumeMounts"].to_string())
            .collect();
        let usual = DeviceConfig::default().plugin;
        let journals = usual.journal.parent().map(Path::to_path_buf).unwrap_or_default();
        let sockets = usual.kubelet_directory.join("device-plugins");
        for (directory, pods) in [(sockets, 1), (journals, 1), (usual.answers.mps_directory, 2)] {
            let mounted = format!("\"mountPath\":\"{}\"", directory.display());
            let found = sets.iter().filter(|set| set.contains(&mounted)).count();
            assert_eq!(found, pods, "{mounted}");
        }
    }
}

//! The subcommand `berth manifests`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use berth_control::install::{self, InstallOptions};
use berth_devices::DeviceConfig;
use berth_devices::offer::Form;
use clap::{Args, ValueEnum};

use crate::output;

/// Print the Kubernetes manifests that install Berth
///
/// Install with `berth manifests | kubectl apply --server-side -f -`.
#[derive(Args)]
pub(crate) struct Manifests {
    /// Namespace to install into
    #[arg(long, value_name = "NAME", default_value = "berth-system")]
    namespace: String,

    /// Container image (default: the image of this version)
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// Number of replicas; one of them leads
    #[arg(long, value_name = "N", default_value_t = 2)]
    replicas: u32,

    /// Mode of the admission webhook
    #[arg(long, value_enum, default_value_t)]
    webhook: Webhook,

    /// Whether to admit or deny objects while the webhook is unreachable
    #[arg(long, value_enum, default_value_t)]
    fail: Fail,

    /// Webhook settings: a YAML file with deny, warn, contract and mutations
    #[arg(long, value_name = "FILE")]
    webhook_settings: Option<PathBuf>,

    /// Namespace that the webhook skips; repeat for more
    #[arg(long, value_name = "NAME")]
    exempt: Vec<String>,

    /// Let cert-manager issue the webhook's certificate
    #[arg(long)]
    cert_manager: bool,

    /// Add ServiceMonitors for the Prometheus operator
    #[arg(long)]
    service_monitor: bool,

    /// Add a PriorityClass for each workload class
    #[arg(long)]
    priority_classes: bool,

    /// Add the node agent, which publishes each node's topology and the alignment of its GPU pods
    #[arg(long)]
    agent: bool,

    /// RuntimeClass that gives the agent NVIDIA's driver, if the default one does not
    #[arg(long, value_name = "NAME", requires = "agent")]
    agent_runtime_class: Option<String>,

    /// Let the agent see on which NUMA nodes processes have their memory (adds SYS_PTRACE)
    #[arg(long, requires = "agent")]
    agent_memory: bool,

    /// Let the agent serve GPUs as a device plugin, as this file (kind DeviceOffers) lists them; adds
    /// MPS daemons if it offers shares
    #[arg(long, value_name = "FILE", requires = "agent")]
    agent_devices: Option<PathBuf>,

    /// Let the agent repartition GPUs (MIG) as their Nodes ask (makes it privileged)
    #[arg(long, requires = "agent")]
    agent_mig: bool,

    /// Add the CRD of NodeResourceTopology, if nothing else (such as NFD) installs it
    #[arg(long)]
    topology_definition: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Webhook {
    /// Do not install it
    Off,
    /// Count and log findings
    DryRun,
    /// Warn about findings, and apply the mutations that are turned on
    #[default]
    Warn,
    /// Also deny objects with errors
    Enforce,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Fail {
    /// Admit
    #[default]
    Open,
    /// Deny
    Closed,
}

impl Manifests {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.replicas == 0 {
            bail!("--replicas must be at least 1");
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
                text.with_context(|| format!("cannot read {}", path.display()))?;
        }
        let documents = install::manifests(&options);
        let documents: Vec<String> = documents.iter().map(berth_manifest::to_yaml).collect();
        output::print(&documents.join("---\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The text of a DeviceOffers file, and whether it offers shares. Only the default directories are mounted
/// into the agent's pods, so other directories are an error.
fn offers(path: &Path) -> anyhow::Result<(String, bool)> {
    let source = berth_manifest::read_file(path)?;
    let config = DeviceConfig::read(&source)?;
    let default = DeviceConfig::default();
    let cdi = config.specification.as_ref().map(|one| one.directory.as_path());
    let directories = [
        ("kubeletDirectory", config.plugin.kubelet_directory == default.plugin.kubelet_directory),
        ("journal", config.plugin.journal == default.plugin.journal),
        (
            "mpsDirectory",
            config.plugin.responses.mps_directory == default.plugin.responses.mps_directory,
        ),
        ("cdi.directory", cdi.is_none_or(|path| path == Path::new("/var/run/cdi"))),
    ];
    if let Some((field, _)) = directories.iter().find(|(_, is_default)| !is_default) {
        bail!(
            "{}: spec.{field} must be the default directory, because no other is mounted into the agent's pods; \
             remove it (cdi.directory: set /var/run/cdi)",
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
    fn the_agents_pods_mount_the_default_directories_of_the_plugin() {
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
        for (directory, pods) in [(sockets, 1), (journals, 1), (usual.responses.mps_directory, 2)] {
            let mounted = format!("\"mountPath\":\"{}\"", directory.display());
            let found = sets.iter().filter(|set| set.contains(&mounted)).count();
            assert_eq!(found, pods, "{mounted}");
        }
    }
}

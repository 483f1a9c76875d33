//! Options of an installation and their defaults.

use std::collections::BTreeSet;

/// Mode of the webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WebhookMode {
    /// Not installed.
    Off,
    /// Counts and logs findings.
    DryRun,
    /// Warns about findings.
    #[default]
    Warn,
    /// Denies objects with errors.
    Enforce,
}

impl WebhookMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::DryRun => "dry-run",
            Self::Warn => "warn",
            Self::Enforce => "enforce",
        }
    }
}

/// What happens to objects while the webhook cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// They are admitted.
    #[default]
    Open,
    /// They are denied.
    Closed,
}

impl FailurePolicy {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "Ignore",
            Self::Closed => "Fail",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentOptions {
    /// RuntimeClass that gives containers NVIDIA's driver, if that is not the default.
    pub runtime_class: Option<String>,
    /// Inspect the memory placement of other users' processes (SYS_PTRACE).
    pub memory: bool,
    /// Devices to offer as a device plugin, as YAML of kind `DeviceOffers`; `None` for none.
    pub offers: Option<String>,
    /// Run MPS daemons, for offers of shares.
    pub shares: bool,
    /// Apply MIG layouts.
    pub mig: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallOptions {
    pub namespace: String,
    /// Container image. Default: [`release_image`].
    pub image: String,
    /// Replicas of the scheduler, of which one leads.
    pub replicas: u32,
    pub webhook: WebhookMode,
    pub fail: FailurePolicy,
    /// Namespaces that the webhook skips, besides those of the cluster and Berth's own.
    pub exempt_namespaces: BTreeSet<String>,
    /// Further settings of the webhook ([`webhook::Settings`](crate::webhook::Settings)), as YAML.
    pub webhook_settings: String,
    /// Use a certificate of cert-manager instead of Berth's own.
    pub cert_manager: bool,
    /// Add ServiceMonitors for the Prometheus operator.
    pub service_monitor: bool,
    /// Add PriorityClasses for the classes of work.
    pub priority_classes: bool,
    /// Run the node agent on every node.
    pub agent: Option<AgentOptions>,
    /// Add the definition of NodeResourceTopology, unless something else in the cluster installs it.
    pub topology_definition: bool,
}

/// The image that a release of this version publishes.
pub fn release_image() -> String {
    format!("ghcr.io/berth-dev/berth:{}", env!("CARGO_PKG_VERSION"))
}

impl InstallOptions {
    pub(super) const fn makes_certificates(&self) -> bool {
        !self.cert_manager
    }

    /// Whether the scheduler writes `caBundle` of the webhook configurations.
    pub(super) const fn publishes_authorities(&self) -> bool {
        self.makes_certificates() && !matches!(self.webhook, WebhookMode::Off)
    }
}

impl Default for InstallOptions {
    fn default() -> Self {
        Self {
            namespace: "berth-system".to_owned(),
            image: release_image(),
            replicas: 2,
            webhook: WebhookMode::default(),
            fail: FailurePolicy::default(),
            exempt_namespaces: BTreeSet::new(),
            webhook_settings: "{}".to_owned(),
            cert_manager: false,
            service_monitor: false,
            priority_classes: false,
            agent: None,
            topology_definition: false,
        }
    }
}

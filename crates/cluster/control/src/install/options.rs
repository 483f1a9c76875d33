//! What can be chosen about an installation.
//!
//! Owns the defaults. Must not know any object.

use std::collections::BTreeSet;

/// What the webhook does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WebhookMode {
    /// It is not installed.
    Off,
    /// It counts and logs.
    DryRun,
    /// It warns.
    #[default]
    Warn,
    /// It denies.
    Enforce,
}

impl WebhookMode {
    /// As settings spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::DryRun => "dry-run",
            Self::Warn => "warn",
            Self::Enforce => "enforce",
        }
    }
}

/// What becomes of objects while the webhook cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// They are let through.
    #[default]
    Open,
    /// They are denied.
    Closed,
}

impl FailurePolicy {
    /// As webhook configurations spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "Ignore",
            Self::Closed => "Fail",
        }
    }
}

/// How the node agent is installed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentOptions {
    /// The runtime class that gives containers NVIDIA's driver, where that is not the default.
    pub runtime_class: Option<String>,
    /// Whether it may see where the memory of other users' processes is.
    pub memory: bool,
    /// What it hands out as a device plugin: a text of kind `DeviceOffers`. `None`: nothing.
    pub offers: Option<String>,
    /// Whether MPS daemons run beside it, for offers of shares.
    pub shares: bool,
    /// Whether it divides GPUs.
    pub mig: bool,
}

/// How Berth is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallOptions {
    /// The namespace that it runs in.
    pub namespace: String,
    /// The container image. None is published yet: it is built with the Dockerfile.
    pub image: String,
    /// How many replicas run; one of them leads.
    pub replicas: u32,
    /// What the webhook does.
    pub webhook: WebhookMode,
    /// What becomes of objects while the webhook cannot be reached.
    pub fail: FailurePolicy,
    /// Namespaces that the webhook leaves alone, besides those of the cluster and our own.
    pub exempt_namespaces: BTreeSet<String>,
    /// More settings of the webhook ([`webhook::Settings`](crate::webhook::Settings)), as YAML.
    pub webhook_settings: String,
    /// The certificate is made by cert-manager rather than by ourselves.
    pub cert_manager: bool,
    /// A ServiceMonitor for the Prometheus operator comes along.
    pub service_monitor: bool,
    /// Priority classes for the classes of work come along.
    pub priority_classes: bool,
    /// The node agent comes along, on every node.
    pub agent: Option<AgentOptions>,
    /// The definition of NodeResourceTopology comes along, for clusters to which nobody else brings it.
    pub topology_definition: bool,
}

impl InstallOptions {
    /// Whether the scheduler makes the certificate of its TLS port itself.
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
            image: format!("berth:{}", env!("CARGO_PKG_VERSION")),
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

//! The device plugins: one per resource, each on a socket of its own, with one shared allocator.
//!
//! A plugin listens and registers again when its socket is deleted, when the kubelet's socket is replaced (a
//! starting kubelet deletes all sockets), or when the kubelet has stopped listening to it.

mod allocator;
mod service;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::decision::Decision;
use crate::device::Inventory;
use crate::proto::deviceplugin::device_plugin_server::DevicePluginServer;
use crate::proto::deviceplugin::registration_client::RegistrationClient;
use crate::proto::deviceplugin::{DevicePluginOptions, RegisterRequest};
use crate::response::ResponseConfig;
use crate::running_pods::RunningPods;
use crate::socket::{connect, error_chain, identity, incoming, listen};
use allocator::Allocator;
use service::{IN_FLIGHT_POLL, Service};

/// Version of the device plugin API.
const VERSION: &str = "v1beta1";

/// Default poll interval: a restarted kubelet finds its plugins within it.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Timeout of a registration. The kubelet calls back before it answers.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(15);

/// How long open calls may take to end when a plugin closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Poll interval while no kubelet listens: a starting one admits pods soon after it accepts registrations.
const UNWATCHED_POLL: Duration = Duration::from_millis(100);

/// Polls without a listening kubelet before the plugin registers again.
const UNWATCHED_POLLS_MAX: u32 = 100;

#[derive(Clone, Debug)]
pub struct PluginConfig {
    /// The kubelet's root directory, usually `/var/lib/kubelet`.
    pub kubelet_directory: PathBuf,
    /// File that records the holders of devices.
    pub journal: PathBuf,
    pub responses: ResponseConfig,
    /// How often to check sockets and the checkpoint.
    pub poll_interval: Duration,
}

impl PluginConfig {
    /// The default paths.
    pub fn defaults() -> Self {
        Self {
            kubelet_directory: "/var/lib/kubelet".into(),
            journal: "/var/lib/berth/devices.json".into(),
            responses: ResponseConfig::default(),
            poll_interval: POLL_INTERVAL,
        }
    }

    fn sockets(&self) -> PathBuf {
        self.kubelet_directory.join("device-plugins")
    }
}

pub struct Plugins {
    allocator: Arc<Allocator>,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    served: Mutex<BTreeSet<String>>,
}

impl Plugins {
    /// Starts a plugin for each resource. The kubelet need not run yet.
    pub async fn start(
        config: PluginConfig,
        inventory: Inventory,
        running_pods: impl RunningPods,
    ) -> Arc<Self> {
        let allocator = Arc::new(Allocator::open(config, inventory, Box::new(running_pods)).await);
        let (stop, _) = watch::channel(false);
        let plugins = Arc::new(Self {
            allocator: Arc::clone(&allocator),
            stop,
            tasks: Mutex::default(),
            served: Mutex::default(),
        });
        plugins.serve_all().await;
        let mut stopped = plugins.stop.subscribe();
        let polling = tokio::spawn(async move {
            loop {
                let interval = allocator.config.poll_interval;
                let pause = if allocator.in_flight().await {
                    interval.min(IN_FLIGHT_POLL)
                } else {
                    interval
                };
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = allocator.answered() => {}
                    _ = stopped.wait_for(|stopped| *stopped) => return,
                }
                allocator.poll().await;
            }
        });
        plugins.tasks.lock().await.push(polling);
        plugins
    }

    /// Replaces the devices after a repartition; holds remain.
    pub async fn replace(&self, inventory: Inventory) {
        self.allocator.replace(inventory).await;
        self.serve_all().await;
    }

    /// Sets the scheduler's decisions for all pods bound to this machine.
    pub async fn decide(&self, decisions: Vec<Decision>) {
        self.allocator.decide(decisions).await;
    }

    /// Reports the health of a GPU or MIG instance; `None` is healthy. Call repeatedly until it returns true.
    pub async fn report_health(&self, uuid: &str, fault: Option<&str>) -> bool {
        self.allocator.report_health(uuid, fault).await
    }

    /// Stops all plugins; pods keep their devices.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        for task in self.tasks.lock().await.drain(..) {
            let _ = task.await;
        }
    }

    async fn serve_all(&self) {
        let mut served = self.served.lock().await;
        for resource in self.allocator.resources().await {
            if served.insert(resource.clone()) {
                let (allocator, stop) = (Arc::clone(&self.allocator), self.stop.subscribe());
                let plugin = Plugin { allocator, stop, resource, error_logged: None };
                self.tasks.lock().await.push(tokio::spawn(plugin.run()));
            }
        }
    }
}

struct Plugin {
    allocator: Arc<Allocator>,
    stop: watch::Receiver<bool>,
    resource: String,
    /// The last error, so that it is logged once.
    error_logged: Option<String>,
}

/// Why a plugin stopped listening.
#[derive(PartialEq, Eq)]
enum End {
    Stopped,
    SocketGone,
}

impl Plugin {
    async fn run(mut self) {
        loop {
            match self.serve().await {
                Ok(End::Stopped) => return,
                Ok(End::SocketGone) => {
                    info!(resource = self.resource, "plugin socket was deleted; listening again");
                }
                Err(error) => {
                    let directory = self.allocator.config.sockets();
                    let error_logged = Some(error.to_string());
                    if self.error_logged != error_logged {
                        warn!(resource = self.resource, directory = %directory.display(), %error,
                              "cannot listen in the kubelet's plugin directory; retrying");
                    }
                    self.error_logged = error_logged;
                    tokio::select! {
                        () = tokio::time::sleep(self.allocator.config.poll_interval.min(UNWATCHED_POLL)) => {}
                        _ = self.stop.wait_for(|stopped| *stopped) => return,
                    }
                }
            }
        }
    }

    fn endpoint(&self) -> String {
        format!("berth-{}.sock", self.resource.replace('/', "_"))
    }

    /// Listens until the socket is deleted, and registers when necessary.
    async fn serve(&mut self) -> std::io::Result<End> {
        let path = self.allocator.config.sockets().join(self.endpoint());
        let listener = listen(&path)?;
        let own = identity(&path);
        let (close, closed) = watch::channel(false);
        let service =
            Service::new(Arc::clone(&self.allocator), self.resource.clone(), closed.clone());
        let watchers = service.watchers();
        let mut closing = closed;
        let server = tonic::transport::Server::builder().serve_with_incoming_shutdown(
            DevicePluginServer::new(service),
            incoming(listener),
            async move {
                let _ = closing.wait_for(|closed| *closed).await;
            },
        );
        let server = tokio::spawn(server);
        let mut registered_with = None;
        let mut unwatched_polls = 0;
        let end = loop {
            if identity(&path) != own {
                break End::SocketGone;
            }
            let kubelet = identity(&self.allocator.config.sockets().join("kubelet.sock"));
            unwatched_polls = if watchers.now() { 0 } else { unwatched_polls + 1 };
            let again = kubelet != registered_with || unwatched_polls > UNWATCHED_POLLS_MAX;
            if kubelet.is_some() && again && self.register().await {
                (registered_with, unwatched_polls) = (kubelet, 0);
            }
            let interval = self.allocator.config.poll_interval;
            let pause = if watchers.now() { interval } else { interval.min(UNWATCHED_POLL) };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.stop.wait_for(|stopped| *stopped) => break End::Stopped,
            }
        };
        close.send_replace(true);
        let closing = server.abort_handle();
        if tokio::time::timeout(CLOSE_TIMEOUT, server).await.is_err() {
            closing.abort();
        }
        if end == End::Stopped && identity(&path) == own {
            let _ = std::fs::remove_file(&path);
        }
        Ok(end)
    }

    async fn register(&mut self) -> bool {
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: self.endpoint(),
            resource_name: self.resource.clone(),
            options: Some(options(self.allocator.has_shares(&self.resource).await)),
        };
        let socket = self.allocator.config.sockets().join("kubelet.sock");
        let registered = tokio::time::timeout(REGISTRATION_TIMEOUT, async {
            let channel = connect(&socket).await.map_err(|error| error_chain(&error))?;
            let mut client = RegistrationClient::new(channel);
            client.register(request).await.map_err(|status| status.message().to_owned())
        });
        let error_logged = match registered.await {
            Ok(Ok(_)) => {
                info!(resource = self.resource, "registered with the kubelet");
                None
            }
            Ok(Err(error)) => Some(error),
            Err(_) => Some("no answer".to_owned()),
        };
        if let Some(error) = &error_logged
            && self.error_logged != error_logged
        {
            warn!(
                resource = self.resource,
                error, "the kubelet did not register the plugin; retrying"
            );
        }
        self.error_logged = error_logged;
        self.error_logged.is_none()
    }
}

/// Shares need PreStartContainer: a restarted container gets no new Allocate, and its MPS daemon may be gone.
/// Other resources do not use it, or their containers could not start while the plugin is down.
fn options(shares: bool) -> DevicePluginOptions {
    DevicePluginOptions { pre_start_required: shares, get_preferred_allocation_available: true }
}

//! The plugins that the kubelet asks for devices: one for each resource, on a socket of its own.
//!
//! Owns their lives: a plugin listens, registers, and does both again when its socket is deleted, the kubelet's
//! is made anew (a kubelet that starts deletes all sockets), or the kubelet has stopped listening to it. All
//! share one set of books (`desk`). Must not know where devices and their health come from.

mod desk;
mod service;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::answer::Answers;
use crate::decision::Decision;
use crate::device::Inventory;
use crate::proto::deviceplugin::device_plugin_server::DevicePluginServer;
use crate::proto::deviceplugin::registration_client::RegistrationClient;
use crate::proto::deviceplugin::{DevicePluginOptions, RegisterRequest};
use crate::socket::{callers, connect, identity, listen, told};
use crate::witness::Witness;
use desk::Desk;
use service::{IN_FLIGHT_LOOK, Service};

/// The version of the protocol.
const VERSION: &str = "v1beta1";

/// How often is usual: a kubelet that starts finds its plugins within it, and looking costs nothing.
const LOOK: Duration = Duration::from_secs(1);

/// How long a registration may take: the kubelet calls back before it answers.
const REGISTRATION: Duration = Duration::from_secs(15);

/// How long calls that have begun may take to end when a plugin closes.
const CLOSING: Duration = Duration::from_secs(2);

/// How often while no kubelet listens: one that starts admits pods soon after it takes registrations.
const UNHEARD_LOOK: Duration = Duration::from_millis(100);

/// Looks without a kubelet that listens, after which to register again.
const UNHEARD_LOOKS_MAX: u32 = 100;

/// Where everything is.
#[derive(Clone, Debug)]
pub struct PluginConfig {
    /// The kubelet's own directory: `/var/lib/kubelet`.
    pub kubelet_directory: PathBuf,
    /// Where to write down who holds what.
    pub journal: PathBuf,
    /// How devices are handed over.
    pub answers: Answers,
    /// How often sockets and the checkpoint are looked at.
    pub look: Duration,
}

impl PluginConfig {
    /// The usual places.
    pub fn usual() -> Self {
        Self {
            kubelet_directory: "/var/lib/kubelet".into(),
            journal: "/var/lib/berth/devices.json".into(),
            answers: Answers::default(),
            look: LOOK,
        }
    }

    fn sockets(&self) -> PathBuf {
        self.kubelet_directory.join("device-plugins")
    }
}

/// Plugins that run.
pub struct Plugins {
    desk: Arc<Desk>,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    served: Mutex<BTreeSet<String>>,
}

impl Plugins {
    /// Starts a plugin for each resource there is. A kubelet need not be there yet.
    pub async fn start(
        config: PluginConfig,
        inventory: Inventory,
        witness: impl Witness,
    ) -> Arc<Self> {
        let desk = Arc::new(Desk::open(config, inventory, Box::new(witness)).await);
        let (stop, _) = watch::channel(false);
        let plugins = Arc::new(Self {
            desk: Arc::clone(&desk),
            stop,
            tasks: Mutex::default(),
            served: Mutex::default(),
        });
        plugins.serve_all().await;
        let mut stopped = plugins.stop.subscribe();
        let looking = tokio::spawn(async move {
            loop {
                let look = desk.config.look;
                let pause = if desk.in_flight().await { look.min(IN_FLIGHT_LOOK) } else { look };
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = desk.answered() => {}
                    _ = stopped.wait_for(|stopped| *stopped) => return,
                }
                desk.look().await;
            }
        });
        plugins.tasks.lock().await.push(looking);
        plugins
    }

    /// Other devices, after a GPU was divided anew; what is held stays held.
    pub async fn replace(&self, inventory: Inventory) {
        self.desk.replace(inventory).await;
        self.serve_all().await;
    }

    /// What the scheduler decided for all pods that are bound to this machine.
    pub async fn decide(&self, decisions: Vec<Decision>) {
        self.desk.decide(decisions).await;
    }

    /// How a GPU or MIG instance is, by UUID; `None` is well. To be told again and again, until the answer is that
    /// it counts as well.
    pub async fn report_health(&self, uuid: &str, illness: Option<&str>) -> bool {
        self.desk.report_health(uuid, illness).await
    }

    /// Stops all plugins; pods keep what they hold.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        for task in self.tasks.lock().await.drain(..) {
            let _ = task.await;
        }
    }

    async fn serve_all(&self) {
        let mut served = self.served.lock().await;
        for resource in self.desk.resources().await {
            if served.insert(resource.clone()) {
                let (desk, stop) = (Arc::clone(&self.desk), self.stop.subscribe());
                let plugin = Plugin { desk, stop, resource, refused: None };
                self.tasks.lock().await.push(tokio::spawn(plugin.run()));
            }
        }
    }
}

/// The plugin of a resource.
struct Plugin {
    desk: Arc<Desk>,
    stop: watch::Receiver<bool>,
    resource: String,
    /// Why it could not listen or was not registered the last time, so that it is said once.
    refused: Option<String>,
}

/// Why a plugin has to listen anew.
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
                    info!(resource = self.resource, "the plugin's socket is gone: listening anew");
                }
                Err(error) => {
                    let directory = self.desk.config.sockets();
                    let refused = Some(error.to_string());
                    if self.refused != refused {
                        warn!(resource = self.resource, directory = %directory.display(), %error,
                              "cannot listen in the kubelet's directory of plugins; trying again");
                    }
                    self.refused = refused;
                    tokio::select! {
                        () = tokio::time::sleep(self.desk.config.look.min(UNHEARD_LOOK)) => {}
                        _ = self.stop.wait_for(|stopped| *stopped) => return,
                    }
                }
            }
        }
    }

    fn endpoint(&self) -> String {
        format!("berth-{}.sock", self.resource.replace('/', "_"))
    }

    /// Listens until the socket has gone, and sees to it that the kubelet knows.
    async fn serve(&mut self) -> std::io::Result<End> {
        let path = self.desk.config.sockets().join(self.endpoint());
        let listener = listen(&path)?;
        let own = identity(&path);
        let (close, closed) = watch::channel(false);
        let service = Service::new(Arc::clone(&self.desk), self.resource.clone(), closed.clone());
        let heard = service.heard();
        let mut closing = closed;
        let server = tonic::transport::Server::builder().serve_with_incoming_shutdown(
            DevicePluginServer::new(service),
            callers(listener),
            async move {
                let _ = closing.wait_for(|closed| *closed).await;
            },
        );
        let server = tokio::spawn(server);
        let mut known_to = None;
        let mut unheard_looks = 0;
        let end = loop {
            if identity(&path) != own {
                break End::SocketGone;
            }
            let kubelet = identity(&self.desk.config.sockets().join("kubelet.sock"));
            unheard_looks = if heard.now() { 0 } else { unheard_looks + 1 };
            let anew = kubelet != known_to || unheard_looks > UNHEARD_LOOKS_MAX;
            if kubelet.is_some() && anew && self.register().await {
                (known_to, unheard_looks) = (kubelet, 0);
            }
            let look = self.desk.config.look;
            let pause = if heard.now() { look } else { look.min(UNHEARD_LOOK) };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.stop.wait_for(|stopped| *stopped) => break End::Stopped,
            }
        };
        close.send_replace(true);
        let closing = server.abort_handle();
        if tokio::time::timeout(CLOSING, server).await.is_err() {
            closing.abort();
        }
        if end == End::Stopped && identity(&path) == own {
            let _ = std::fs::remove_file(&path);
        }
        Ok(end)
    }

    /// Tells the kubelet of this plugin.
    async fn register(&mut self) -> bool {
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: self.endpoint(),
            resource_name: self.resource.clone(),
            options: Some(options(self.desk.has_shares(&self.resource).await)),
        };
        let socket = self.desk.config.sockets().join("kubelet.sock");
        let registered = tokio::time::timeout(REGISTRATION, async {
            let channel = connect(&socket).await.map_err(|error| told(&error))?;
            let mut client = RegistrationClient::new(channel);
            client.register(request).await.map_err(|status| status.message().to_owned())
        });
        let refused = match registered.await {
            Ok(Ok(_)) => {
                info!(resource = self.resource, "the kubelet knows the plugin");
                None
            }
            Ok(Err(error)) => Some(error),
            Err(_) => Some("no answer".to_owned()),
        };
        if let Some(error) = &refused
            && self.refused != refused
        {
            warn!(
                resource = self.resource,
                error, "the kubelet did not register the plugin; trying again"
            );
        }
        self.refused = refused;
        self.refused.is_none()
    }
}

/// What plugins here can do. Those of shares are asked before each start of a container: one that starts again is not
/// given its share again, and its daemon may be gone. Others are not, or nothing would start while they are away.
fn options(shares: bool) -> DevicePluginOptions {
    DevicePluginOptions { pre_start_required: shares, get_preferred_allocation_available: true }
}

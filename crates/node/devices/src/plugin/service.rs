//! The kubelet's calls to a plugin.
//!
//! Owns the translation from messages to questions for the desk. Must not know how these are answered.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::Stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::warn;

use super::desk::Desk;
use super::options;
use crate::ledger::{Listed, Refusal};
use crate::proto::deviceplugin::device_plugin_server::DevicePlugin;
use crate::proto::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device,
    DevicePluginOptions, Empty, ListAndWatchResponse, NumaNode, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
    TopologyInfo,
};

/// How often to see whether the kubelet has written down what it was answered.
pub(super) const IN_FLIGHT_LOOK: Duration = Duration::from_millis(50);

/// How many kubelets listen: one, or for a moment two.
#[derive(Clone, Default)]
pub(super) struct Heard(Arc<AtomicUsize>);

impl Heard {
    /// Whether any does.
    pub(super) fn now(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// One that listens, for as long as this lives.
struct Listening(Heard);

impl Listening {
    fn begin(heard: &Heard) -> Self {
        heard.0.fetch_add(1, Ordering::Relaxed);
        Self(heard.clone())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) struct Service {
    desk: Arc<Desk>,
    resource: String,
    closed: watch::Receiver<bool>,
    heard: Heard,
}

impl Service {
    pub(super) fn new(desk: Arc<Desk>, resource: String, closed: watch::Receiver<bool>) -> Self {
        Self { desk, resource, closed, heard: Heard::default() }
    }

    pub(super) fn heard(&self) -> Heard {
        self.heard.clone()
    }
}

/// A list as it is sent. Without NUMA nodes there is no topology: an empty one would count as one.
fn message(listed: &[Listed]) -> ListAndWatchResponse {
    let device = |one: &Listed| Device {
        id: one.id.clone(),
        health: if one.healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
        topology: (!one.numa.is_empty()).then(|| TopologyInfo {
            nodes: one.numa.iter().map(|node| NumaNode { id: i64::from(*node) }).collect(),
        }),
    };
    ListAndWatchResponse { devices: listed.iter().map(device).collect() }
}

/// What a listening kubelet was told last.
struct Watching {
    desk: Arc<Desk>,
    resource: String,
    changes: watch::Receiver<u64>,
    closed: watch::Receiver<bool>,
    told: Option<Vec<Listed>>,
    _listening: Listening,
}

impl Watching {
    /// The next list that differs from what was told; `None` when the plugin closes.
    async fn next(mut self) -> Option<(Result<ListAndWatchResponse, Status>, Self)> {
        loop {
            self.changes.mark_unchanged();
            // A kubelet that writes down an answer and a list at once may keep the older of the two, and one
            // whose list no longer has what it was just given ends.
            while self.told.is_some() && self.desk.in_flight().await {
                tokio::select! {
                    () = tokio::time::sleep(IN_FLIGHT_LOOK) => {}
                    _ = self.closed.wait_for(|closed| *closed) => return None,
                }
            }
            let listed = self.desk.listing(&self.resource).await;
            if self.told.as_ref() != Some(&listed) {
                let message = message(&listed);
                self.told = Some(listed);
                return Some((Ok(message), self));
            }
            tokio::select! {
                changed = self.changes.changed() => changed.ok()?,
                _ = self.closed.wait_for(|closed| *closed) => return None,
            }
        }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(options(self.desk.has_shares(&self.resource).await)))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let watching = Watching {
            desk: Arc::clone(&self.desk),
            resource: self.resource.clone(),
            changes: self.desk.changes(),
            closed: self.closed.clone(),
            told: None,
            _listening: Listening::begin(&self.heard),
        };
        Ok(Response::new(Box::pin(futures::stream::unfold(watching, Watching::next))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let mut container_responses = Vec::new();
        for one in request.into_inner().container_requests {
            let size = usize::try_from(one.allocation_size).unwrap_or(0);
            let (available, must) = (&one.available_device_i_ds, &one.must_include_device_i_ds);
            let ids = self.desk.prefer(&self.resource, available, must, size).await;
            container_responses.push(ContainerPreferredAllocationResponse { device_i_ds: ids });
        }
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let containers = request.into_inner().container_requests.into_iter();
        let containers: Vec<Vec<String>> = containers.map(|one| one.devices_ids).collect();
        match self.desk.allocate(&self.resource, &containers).await {
            Ok(container_responses) => Ok(Response::new(AllocateResponse { container_responses })),
            Err(refusal) => {
                warn!(resource = self.resource, %refusal, "a device is not handed out");
                let text = refusal.to_string();
                Err(match refusal {
                    Refusal::Unknown { .. } => Status::not_found(text),
                    Refusal::Twice { .. } | Refusal::TooMany { .. } => {
                        Status::invalid_argument(text)
                    }
                    Refusal::Unhealthy { .. } | Refusal::Apart { .. } | Refusal::Held { .. } => {
                        Status::failed_precondition(text)
                    }
                })
            }
        }
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        match self.desk.may_start(&self.resource, &request.into_inner().devices_ids).await {
            Ok(()) => Ok(Response::new(PreStartContainerResponse {})),
            Err(refusal) => {
                warn!(resource = self.resource, %refusal, "a container is not started");
                Err(Status::failed_precondition(refusal.to_string()))
            }
        }
    }
}

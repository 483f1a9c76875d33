//! The gRPC service that the kubelet calls.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::Stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::warn;

use super::allocator::Allocator;
use super::options;
use crate::ledger::{Listed, Refusal};
use crate::proto::deviceplugin::device_plugin_server::DevicePlugin;
use crate::proto::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device,
    DevicePluginOptions, Empty, ListAndWatchResponse, NumaNode, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
    TopologyInfo,
};

/// How often to check whether the kubelet's checkpoint shows the last answer.
pub(super) const IN_FLIGHT_POLL: Duration = Duration::from_millis(50);

/// Number of kubelets that listen: one, or two for a moment.
#[derive(Clone, Default)]
pub(super) struct Watchers(Arc<AtomicUsize>);

impl Watchers {
    pub(super) fn now(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// Counts a kubelet as listening while it lives.
struct WatcherGuard(Watchers);

impl WatcherGuard {
    fn begin(watchers: &Watchers) -> Self {
        watchers.0.fetch_add(1, Ordering::Relaxed);
        Self(watchers.clone())
    }
}

impl Drop for WatcherGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) struct Service {
    allocator: Arc<Allocator>,
    resource: String,
    closed: watch::Receiver<bool>,
    watchers: Watchers,
}

impl Service {
    pub(super) fn new(
        allocator: Arc<Allocator>,
        resource: String,
        closed: watch::Receiver<bool>,
    ) -> Self {
        Self { allocator, resource, closed, watchers: Watchers::default() }
    }

    pub(super) fn watchers(&self) -> Watchers {
        self.watchers.clone()
    }
}

/// Without NUMA nodes there is no topology: the kubelet would take an empty one for a hint.
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

/// State of a ListAndWatch stream.
struct ListStream {
    allocator: Arc<Allocator>,
    resource: String,
    changes: watch::Receiver<u64>,
    closed: watch::Receiver<bool>,
    last_sent: Option<Vec<Listed>>,
    _guard: WatcherGuard,
}

impl ListStream {
    /// The next list that differs from the last; `None` when the plugin closes.
    async fn next(mut self) -> Option<(Result<ListAndWatchResponse, Status>, Self)> {
        loop {
            self.changes.mark_unchanged();
            // A kubelet that stores an answer and a list at once may keep the older of the two, and crashes if the
            // list then lacks an allocated device.
            while self.last_sent.is_some() && self.allocator.in_flight().await {
                tokio::select! {
                    () = tokio::time::sleep(IN_FLIGHT_POLL) => {}
                    _ = self.closed.wait_for(|closed| *closed) => return None,
                }
            }
            let listed = self.allocator.listing(&self.resource).await;
            if self.last_sent.as_ref() != Some(&listed) {
                let message = message(&listed);
                self.last_sent = Some(listed);
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
        Ok(Response::new(options(self.allocator.has_shares(&self.resource).await)))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let watching = ListStream {
            allocator: Arc::clone(&self.allocator),
            resource: self.resource.clone(),
            changes: self.allocator.changes(),
            closed: self.closed.clone(),
            last_sent: None,
            _guard: WatcherGuard::begin(&self.watchers),
        };
        Ok(Response::new(Box::pin(futures::stream::unfold(watching, ListStream::next))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let mut container_responses = Vec::new();
        for one in request.into_inner().container_requests {
            let size = usize::try_from(one.allocation_size).unwrap_or(0);
            let (available, must) = (&one.available_device_i_ds, &one.must_include_device_i_ds);
            let ids = self.allocator.prefer(&self.resource, available, must, size).await;
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
        match self.allocator.allocate(&self.resource, &containers).await {
            Ok(container_responses) => Ok(Response::new(AllocateResponse { container_responses })),
            Err(refusal) => {
                warn!(resource = self.resource, %refusal, "allocation refused");
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
        match self.allocator.check_start(&self.resource, &request.into_inner().devices_ids).await {
            Ok(()) => Ok(Response::new(PreStartContainerResponse {})),
            Err(refusal) => {
                warn!(resource = self.resource, %refusal, "container start refused");
                Err(Status::failed_precondition(refusal.to_string()))
            }
        }
    }
}

//! Client of the kubelet's podresources API (v1). A kubelet that does not run is not an error: then nothing is
//! known.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tonic::transport::Channel;

use crate::proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use crate::proto::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ListPodResourcesRequest,
    PodResources,
};
use crate::socket::{connect, error_chain, identity};

/// Timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Enough for thousands of pods.
const ANSWER_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Error)]
#[error("the kubelet did not answer {call} at {}: {why}", socket.display())]
pub struct PodResourcesError {
    pub socket: PathBuf,
    pub call: &'static str,
    pub why: String,
}

/// Connects for each call, since kubelets restart.
#[derive(Clone, Debug)]
pub struct PodResourcesClient {
    socket: PathBuf,
}

impl PodResourcesClient {
    /// The socket is usually `/var/lib/kubelet/pod-resources/kubelet.sock`.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Differs after the socket was replaced.
    pub(crate) fn identity(&self) -> Option<String> {
        identity(&self.socket).map(|identity| identity.to_string())
    }

    /// Devices, exclusive CPUs and memory of each pod. `None`: there is no socket.
    pub async fn list(&self) -> Result<Option<Vec<PodResources>>, PodResourcesError> {
        let Some(mut client) = self.client("List").await? else { return Ok(None) };
        let asked = client.list(ListPodResourcesRequest {});
        let answer = self.with_timeout("List", asked).await?;
        Ok(Some(answer.pod_resources))
    }

    /// All allocatable resources. `None`: there is no socket.
    pub async fn allocatable(
        &self,
    ) -> Result<Option<AllocatableResourcesResponse>, PodResourcesError> {
        const CALL: &str = "GetAllocatableResources";
        let Some(mut client) = self.client(CALL).await? else { return Ok(None) };
        let asked = client.get_allocatable_resources(AllocatableResourcesRequest {});
        self.with_timeout(CALL, asked).await.map(Some)
    }

    async fn client(
        &self,
        call: &'static str,
    ) -> Result<Option<PodResourcesListerClient<Channel>>, PodResourcesError> {
        if identity(&self.socket).is_none() {
            return Ok(None);
        }
        let channel = connect(&self.socket).await.map_err(|why| self.failed(call, &why))?;
        let client = PodResourcesListerClient::new(channel);
        Ok(Some(client.max_decoding_message_size(ANSWER_BYTES_MAX)))
    }

    async fn with_timeout<T>(
        &self,
        call: &'static str,
        asked: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, PodResourcesError> {
        match tokio::time::timeout(TIMEOUT, asked).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(self.failed(call, &status)),
            Err(late) => Err(self.failed(call, &late)),
        }
    }

    fn failed(&self, call: &'static str, why: &dyn std::error::Error) -> PodResourcesError {
        PodResourcesError { socket: self.socket.clone(), call, why: error_chain(why) }
    }
}

/// Resource and id of all listed devices.
pub fn devices(pods: &[PodResources]) -> BTreeSet<(String, String)> {
    let given = pods.iter().flat_map(|pod| &pod.containers).flat_map(|one| &one.devices);
    given
        .flat_map(|given| {
            given.device_ids.iter().map(|id| (given.resource_name.clone(), id.clone()))
        })
        .collect()
}

//! A kubelet's device manager over real sockets, for tests.
//!
//! Does what the kubelet of 1.36 does between a plugin and a pod: deletes sockets when it starts, dials back
//! when a plugin registers, believes the last list, prefers what the plugin prefers, lets entries of finished
//! pods stand until it needs the room, and writes its checkpoint, with the real checksum, after an allocation
//! and after a list. Podresources is served too. Must not know the plugin's books.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use berth_host::KubeletFiles;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::sync::watch;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

use berth_devices::file::write_atomically;
use berth_devices::proto::deviceplugin::device_plugin_client::DevicePluginClient;
use berth_devices::proto::deviceplugin::registration_server::{Registration, RegistrationServer};
use berth_devices::proto::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Empty, PreStartContainerRequest,
    PreferredAllocationRequest, RegisterRequest,
};
use berth_devices::proto::podresources as pods;
use berth_devices::proto::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use berth_devices::socket::{connect, incoming, listen};

/// What a container was given of a resource.
#[derive(Clone)]
struct Allocated {
    ids: BTreeMap<i64, Vec<String>>,
    answer: ContainerAllocateResponse,
}

type Key = (String, String, String);

#[derive(Default)]
struct State {
    clients: BTreeMap<String, DevicePluginClient<Channel>>,
    /// Health and NUMA nodes by resource and id.
    devices: BTreeMap<String, BTreeMap<String, (bool, Vec<i64>)>>,
    given: BTreeMap<Key, Allocated>,
    active: BTreeSet<String>,
    registrations: usize,
    /// Which registration of a resource counts: the last.
    current: BTreeMap<String, usize>,
    /// Whether the next admission's write is overtaken by an older one.
    late_write: bool,
}

impl State {
    fn held(&self, resource: &str) -> BTreeSet<String> {
        let of = self.given.iter().filter(|((_, _, of), _)| of == resource);
        of.flat_map(|(_, given)| given.ids.values().flatten().cloned()).collect()
    }

    fn checkpoint(&self) -> Value {
        use base64::Engine as _;
        let entries: Vec<Value> = self
            .given
            .iter()
            .map(|((pod, container, resource), given)| {
                let answer = given.answer.encode_to_vec();
                json!({
                    "PodUID": pod, "ContainerName": container, "ResourceName": resource,
                    "DeviceIDs": given.ids,
                    "AllocResp": base64::engine::general_purpose::STANDARD.encode(answer),
                })
            })
            .collect();
        let healthy = |all: &BTreeMap<String, (bool, Vec<i64>)>| -> Vec<String> {
            all.iter().filter(|(_, (healthy, _))| *healthy).map(|(id, _)| id.clone()).collect()
        };
        let registered: BTreeMap<&String, Vec<String>> =
            self.devices.iter().map(|(resource, all)| (resource, healthy(all))).collect();
        let entries = if entries.is_empty() { Value::Null } else { Value::Array(entries) };
        let data = json!({ "PodDeviceEntries": entries, "RegisteredDevices": registered });
        let checksum = KubeletFiles::checksum_of_devices(&data);
        json!({ "Data": data, "Checksum": checksum })
    }
}

/// A kubelet that runs.
pub struct FakeKubelet {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    servers: Vec<tokio::task::JoinHandle<()>>,
}

struct Shared {
    directory: PathBuf,
    state: Mutex<State>,
    /// Whether the process lives: a dead one writes nothing. Held while the checkpoint is written.
    alive: Mutex<bool>,
}

impl Shared {
    fn with<T>(&self, of: impl FnOnce(&mut State) -> T) -> T {
        of(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn sockets(&self) -> PathBuf {
        self.directory.join("device-plugins")
    }

    /// Writes the checkpoint. As in the real kubelet what is written is taken under a lock and written after
    /// it, so of two that write at once the older may win.
    fn write(&self) {
        self.write_text(&self.with(|state| state.checkpoint().to_string()));
    }

    fn write_text(&self, text: &str) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if !*alive {
            return;
        }
        let _ = write_atomically(&self.sockets().join("kubelet_internal_checkpoint"), text);
    }
}

impl FakeKubelet {
    /// Starts in a directory, with what its checkpoint says, and with pods that are active.
    pub fn start(directory: &Path, active: BTreeSet<String>) -> std::io::Result<Self> {
        let state = State { active, given: restored(directory), ..State::default() };
        let shared = Shared {
            directory: directory.to_owned(),
            state: Mutex::new(state),
            alive: Mutex::new(true),
        };
        let shared = Arc::new(shared);
        let sockets = shared.sockets();
        std::fs::create_dir_all(&sockets)?;
        std::fs::create_dir_all(directory.join("pod-resources"))?;
        for found in std::fs::read_dir(&sockets)?.flatten() {
            use std::os::unix::fs::FileTypeExt as _;
            if found.file_type().is_ok_and(|kind| kind.is_socket()) {
                std::fs::remove_file(found.path())?;
            }
        }
        let (stop, stopped) = watch::channel(false);
        let registry = listen(&sockets.join("kubelet.sock"))?;
        let lister = listen(&directory.join("pod-resources/kubelet.sock"))?;
        let ended = |mut stopped: watch::Receiver<bool>| async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let registry = Server::builder().serve_with_incoming_shutdown(
            RegistrationServer::new(Registry {
                shared: Arc::clone(&shared),
                stopped: stopped.clone(),
            }),
            incoming(registry),
            ended(stopped.clone()),
        );
        let lister = Server::builder().serve_with_incoming_shutdown(
            PodResourcesListerServer::new(Lister(Arc::clone(&shared))),
            incoming(lister),
            ended(stopped),
        );
        let servers = vec![
            tokio::spawn(async move { drop(registry.await) }),
            tokio::spawn(async move { drop(lister.await) }),
        ];
        Ok(Self { shared, stop, servers })
    }

    /// Dies: only its files are left, its sockets among them.
    pub fn die(self) {
        *self.shared.alive.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.stop.send_replace(true);
        self.shared.with(|state| state.clients.clear());
        for server in &self.servers {
            server.abort();
        }
    }

    /// How often plugins have registered.
    pub fn registrations(&self) -> usize {
        self.shared.with(|state| state.registrations)
    }

    /// Ids of the healthy devices of a resource.
    pub fn healthy(&self, resource: &str) -> BTreeSet<String> {
        self.shared.with(|state| {
            let all = state.devices.get(resource).into_iter().flatten();
            all.filter(|(_, (healthy, _))| *healthy).map(|(id, _)| id.clone()).collect()
        })
    }

    /// A pod has ended. What it held is forgotten when room is needed.
    pub fn end(&self, pod: &str) {
        self.shared.with(|state| state.active.remove(pod));
    }

    /// The write after the next admission is overtaken by one that began before it.
    pub fn write_late(&self) {
        self.shared.with(|state| state.late_write = true);
    }

    /// Admits a pod of one container, and says what it was given.
    pub async fn admit(
        &self,
        pod: &str,
        resource: &str,
        count: usize,
    ) -> Result<(Vec<String>, ContainerAllocateResponse), String> {
        let (ids, answer) = self.allocate(pod, resource, count).await?;
        let before = self.shared.with(|state| {
            let before = std::mem::take(&mut state.late_write).then(|| state.checkpoint());
            let mut by_numa: BTreeMap<i64, Vec<String>> = BTreeMap::new();
            for id in &ids {
                let known = state.devices.get(resource).and_then(|all| all.get(id));
                let nodes = known.map_or_else(Vec::new, |(_, nodes)| nodes.clone());
                for node in if nodes.is_empty() { vec![-1] } else { nodes } {
                    by_numa.entry(node).or_default().push(id.clone());
                }
            }
            let key = (pod.to_owned(), "main".to_owned(), resource.to_owned());
            state.given.insert(key, Allocated { ids: by_numa, answer: answer.clone() });
            before
        });
        match before {
            Some(before) => self.shared.write_text(&before.to_string()),
            None => self.shared.write(),
        }
        Ok((ids, answer))
    }

    /// Starts the container of a pod that was admitted, for the first time or again: devices are not given again,
    /// and the plugin is only asked whether it can start.
    pub async fn start_container(&self, pod: &str, resource: &str) -> Result<(), String> {
        let key = (pod.to_owned(), "main".to_owned(), resource.to_owned());
        let (client, ids) = self.shared.with(|state| {
            let given = state.given.get(&key);
            let ids: Vec<String> =
                given.iter().flat_map(|given| given.ids.values().flatten().cloned()).collect();
            (state.clients.get(resource).cloned(), ids)
        });
        let mut client = client.ok_or_else(|| format!("unknown Device Plugin {resource}"))?;
        let asked = client.pre_start_container(PreStartContainerRequest { devices_ids: ids }).await;
        asked.map(drop).map_err(|status| status.message().to_owned())
    }

    /// Asks for devices as if it admitted a pod, and does no more with the answer: what is left to do then is
    /// to die.
    pub async fn allocate(
        &self,
        pod: &str,
        resource: &str,
        count: usize,
    ) -> Result<(Vec<String>, ContainerAllocateResponse), String> {
        let (client, free) = self.shared.with(|state| {
            state.active.insert(pod.to_owned());
            let active = state.active.clone();
            state.given.retain(|(pod, _, _), _| active.contains(pod));
            let held = state.held(resource);
            let all = state.devices.get(resource).into_iter().flatten();
            let free = all.filter(|(id, (healthy, _))| *healthy && !held.contains(*id));
            let free: Vec<String> = free.map(|(id, _)| id.clone()).collect();
            (state.clients.get(resource).cloned(), free)
        });
        let given = match client {
            Some(client) => self.ask(client, resource, &free, count).await,
            None => Err(format!("unknown Device Plugin {resource}")),
        };
        given.inspect_err(|_| self.end(pod))
    }

    async fn ask(
        &self,
        mut client: DevicePluginClient<Channel>,
        resource: &str,
        free: &[String],
        count: usize,
    ) -> Result<(Vec<String>, ContainerAllocateResponse), String> {
        if free.len() < count {
            return Err(format!("requested number of devices unavailable for {resource}"));
        }
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: free.to_vec(),
            must_include_device_i_ds: Vec::new(),
            allocation_size: i32::try_from(count).unwrap_or(i32::MAX),
        };
        let request = PreferredAllocationRequest { container_requests: vec![request] };
        let preferred = client.get_preferred_allocation(request).await;
        let preferred = preferred.map_err(|status| status.message().to_owned())?.into_inner();
        let preferred = preferred.container_responses.into_iter().next().unwrap_or_default();
        let mut ids: Vec<String> = preferred.device_i_ds;
        ids.retain(|id| free.contains(id));
        let rest: Vec<String> = free.iter().filter(|id| !ids.contains(id)).cloned().collect();
        ids.extend(rest);
        ids.truncate(count);
        let container_requests = vec![ContainerAllocateRequest { devices_ids: ids.clone() }];
        let answer = client.allocate(AllocateRequest { container_requests }).await;
        let answer = answer.map_err(|status| status.message().to_owned())?.into_inner();
        let answer = answer.container_responses.into_iter().next();
        Ok((ids, answer.ok_or("no containers return in allocation response")?))
    }
}

/// What a checkpoint says was given. One with a wrong checksum says nothing, as for the real kubelet.
fn restored(directory: &Path) -> BTreeMap<Key, Allocated> {
    use base64::Engine as _;
    let path = directory.join("device-plugins/kubelet_internal_checkpoint");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    if value["Checksum"] != json!(KubeletFiles::checksum_of_devices(&value["Data"])) {
        return BTreeMap::new();
    }
    let entries = value["Data"]["PodDeviceEntries"].as_array().cloned().unwrap_or_default();
    let entry = |one: &Value| {
        let text = |name: &str| Some(one[name].as_str()?.to_owned());
        let bytes =
            base64::engine::general_purpose::STANDARD.decode(one["AllocResp"].as_str()?).ok()?;
        let answer = ContainerAllocateResponse::decode(&bytes[..]).ok()?;
        let ids = serde_json::from_value(one["DeviceIDs"].clone()).ok()?;
        let key = (text("PodUID")?, text("ContainerName")?, text("ResourceName")?);
        Some((key, Allocated { ids, answer }))
    };
    entries.iter().filter_map(entry).collect()
}

struct Registry {
    shared: Arc<Shared>,
    stopped: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl Registration for Registry {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        if request.version != "v1beta1" {
            return Err(Status::unknown("unsupported version"));
        }
        let failed = |error: &dyn std::fmt::Display| Status::unknown(error.to_string());
        let channel = connect(&self.shared.sockets().join(&request.endpoint)).await;
        let mut client = DevicePluginClient::new(channel.map_err(|error| failed(&error))?);
        client.get_device_plugin_options(Empty {}).await?;
        let mut lists = client.list_and_watch(Empty {}).await?.into_inner();
        let resource = request.resource_name;
        let nth = self.shared.with(|state| {
            state.registrations += 1;
            state.clients.insert(resource.clone(), client);
            state.current.insert(resource.clone(), state.registrations);
            state.registrations
        });
        let shared = Arc::downgrade(&self.shared);
        let mut stopped = self.stopped.clone();
        tokio::spawn(async move {
            loop {
                let list = tokio::select! {
                    list = lists.message() => list,
                    _ = stopped.wait_for(|stopped| *stopped) => return,
                };
                let (Ok(Some(list)), Some(shared)) = (list, shared.upgrade()) else { break };
                let device = |one: berth_devices::proto::deviceplugin::Device| {
                    let nodes = one.topology.unwrap_or_default().nodes;
                    let nodes = nodes.into_iter().map(|node| node.id).collect();
                    (one.id, (one.health == "Healthy", nodes))
                };
                let devices = list.devices.into_iter().map(device).collect();
                let counts = shared.with(|state| {
                    let counts = state.current.get(&resource) == Some(&nth);
                    if counts {
                        state.devices.insert(resource.clone(), devices);
                    }
                    counts
                });
                if counts {
                    shared.write();
                }
            }
            let Some(shared) = shared.upgrade() else { return };
            shared.with(|state| {
                if state.current.get(&resource) != Some(&nth) {
                    return;
                }
                for (healthy, _) in state.devices.entry(resource).or_default().values_mut() {
                    *healthy = false;
                }
            });
        });
        Ok(Response::new(Empty {}))
    }
}

struct Lister(Arc<Shared>);

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<pods::ListPodResourcesRequest>,
    ) -> Result<Response<pods::ListPodResourcesResponse>, Status> {
        let pod_resources = self.0.with(|state| {
            let active = state.active.clone();
            state.given.retain(|(pod, _, _), _| active.contains(pod));
            let of = |pod: &String| pods::PodResources {
                name: pod.clone(),
                namespace: "default".to_owned(),
                containers: vec![pods::ContainerResources {
                    name: "main".to_owned(),
                    devices: state
                        .given
                        .iter()
                        .filter(|((holder, _, _), _)| holder == pod)
                        .map(|((_, _, resource), given)| pods::ContainerDevices {
                            resource_name: resource.clone(),
                            device_ids: given.ids.values().flatten().cloned().collect(),
                            topology: None,
                        })
                        .collect(),
                    ..pods::ContainerResources::default()
                }],
            };
            active.iter().map(of).collect()
        });
        Ok(Response::new(pods::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<pods::AllocatableResourcesRequest>,
    ) -> Result<Response<pods::AllocatableResourcesResponse>, Status> {
        let devices = self.0.with(|state| {
            let of = |(resource, all): (&String, &BTreeMap<String, _>)| pods::ContainerDevices {
                resource_name: resource.clone(),
                device_ids: all.keys().cloned().collect(),
                topology: None,
            };
            state.devices.iter().map(of).collect()
        });
        let answer = pods::AllocatableResourcesResponse { devices, ..Default::default() };
        Ok(Response::new(answer))
    }

    async fn get(
        &self,
        request: Request<pods::GetPodResourcesRequest>,
    ) -> Result<Response<pods::GetPodResourcesResponse>, Status> {
        let name = request.into_inner().pod_name;
        let all = self.list(Request::new(pods::ListPodResourcesRequest {})).await?.into_inner();
        let found = all.pod_resources.into_iter().find(|pod| pod.name == name);
        match found {
            None => Err(Status::unknown(format!("pod {name} not found"))),
            found => Ok(Response::new(pods::GetPodResourcesResponse { pod_resources: found })),
        }
    }
}

//! The kinds that are watched.
//!
//! Owns which kinds there are, and what an object of each is told as. Must not know how watches work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use berth_api::crd;
use berth_api::gang;
use berth_api::pod::observe;
use berth_api::topology::NodeResourceTopology;
use berth_api::{Lower, LowerError};
use berth_engine::event::Event;
use berth_inspect::Record;
use berth_model::resource::ResourceName;
use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::api::scheduling::{v1 as scheduling, v1alpha2};
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::Api;

use crate::core::{Condition, SeenPod, Update};
use crate::metrics::Metrics;

use super::SchedulerNames;
use super::guard::Guarded;
use super::pod::RawPod;
use super::protobuf;
use super::{Seen, Sink, Telling, Watched, Watches, follow, other};

/// What a kubelet's message begins with when it does not let a pod start.
const REJECTED: &str = "Pod was rejected";

fn text(text: Option<&String>) -> Arc<str> {
    Arc::from(text.map_or("", String::as_str))
}

fn name(meta: &ObjectMeta) -> Arc<str> {
    text(meta.name.as_ref())
}

fn full(meta: &ObjectMeta) -> (Arc<str>, Arc<str>) {
    (text(meta.namespace.as_ref()), name(meta))
}

/// Its resource version; 0 if it has none.
fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A pod as the core wants it.
pub(super) fn seen_pod(pod: &core::Pod, names: &SchedulerNames) -> Result<SeenPod, String> {
    let observed = observe(pod).map_err(|error| error.to_string())?;
    let invalid = observed
        .invalid
        .map(|LowerError { field, problem, .. }| Arc::from(format!("{field}: {problem}")));
    let object = observed.pod;
    let status = pod.status.as_ref();
    let failed = status.is_some_and(|status| status.phase.as_deref() == Some("Failed"));
    let message = status.and_then(|status| status.message.as_deref()).unwrap_or_default();
    let reason = status.and_then(|status| status.reason.as_deref());
    let rejected = reason.filter(|_| failed && message.starts_with(REJECTED)).map(Arc::from);
    let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let condition = conditions
        .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .map(|condition| Condition {
            reason: text(condition.reason.as_ref()),
            message: text(condition.message.as_ref()),
        })
        .next();
    let version = version(&pod.metadata);
    let spec = pod.spec.as_ref();
    let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref());
    let scheduler = scheduler.and_then(|scheduler| names.iter().find(|name| ***name == *scheduler));
    let annotations = object.node.as_ref().and(pod.metadata.annotations.as_ref());
    Ok(SeenPod {
        object,
        version,
        ours: scheduler.is_some(),
        scheduler: scheduler.cloned(),
        record: annotations.and_then(Record::read).map(Arc::new),
        rejected,
        condition,
        invalid,
        outline: None,
    })
}

/// Starts one watch per kind, and says of which kinds everything has to be known before anything is
/// decided.
pub fn follow_all(client: &Client, sink: &Sink, metrics: &Metrics) -> (Watches, Vec<&'static str>) {
    let mut all = Following {
        client: client.clone(),
        sink: sink.clone(),
        metrics: metrics.clone(),
        watches: Watches::new(),
        kinds: Vec::new(),
    };
    // No other kind changes as often.
    all.follow::<RawPod>(
        protobuf::client(client),
        "Pod",
        |pod| Ok(Some(Seen::Pod(pod))),
        |meta| Seen::Update(Update::PodGone(text(meta.uid.as_ref()))),
    );
    all.add::<core::Node>(
        "Node",
        |node| Ok(Some(Seen::Node(Box::new(node)))),
        |meta| Seen::NodeGone(name(meta)),
    );
    all.add::<NodeResourceTopology>(
        "NodeResourceTopology",
        |exported| Ok(Some(Seen::Exported(Box::new(exported)))),
        |meta| Seen::ExportedGone(name(meta)),
    );
    all.policies();
    all.storage();
    all.devices();
    all.own();
    (all.watches, all.kinds)
}

struct Following {
    client: Client,
    sink: Sink,
    metrics: Metrics,
    watches: Watches,
    kinds: Vec<&'static str>,
}

impl Following {
    fn add<K>(
        &mut self,
        kind: &'static str,
        here: impl Fn(K) -> Result<Option<Seen>, String> + Send + Sync + 'static,
        gone: impl Fn(&ObjectMeta) -> Seen + Send + Sync + 'static,
    ) where
        K: Send + 'static,
        Guarded<K>: Watched<Object = K>,
    {
        self.follow::<Guarded<K>>(self.client.clone(), kind, here, gone);
    }

    fn follow<W>(
        &mut self,
        client: Client,
        kind: &'static str,
        here: impl Fn(W::Object) -> Result<Option<Seen>, String> + Send + Sync + 'static,
        gone: impl Fn(&ObjectMeta) -> Seen + Send + Sync + 'static,
    ) where
        W: Watched,
        W::Object: Send + 'static,
    {
        let api: Api<W> = Api::all(client);
        let telling = Telling { kind, here: Box::new(here), gone: Box::new(gone) };
        self.kinds.push(kind);
        self.watches.spawn(follow(api, telling, self.sink.clone(), self.metrics.clone()));
    }

    /// Objects that are told as one event each.
    fn simple<K>(
        &mut self,
        kind: &'static str,
        here: fn(K::Model) -> Event,
        gone: impl Fn(&ObjectMeta) -> Seen + Send + Sync + 'static,
    ) where
        K: Lower + Send + 'static,
        Guarded<K>: Watched<Object = K>,
    {
        let tell = move |object: K| {
            let lowered = object.lower().map_err(|error: LowerError| error.to_string())?;
            Ok(Some(other(here(lowered))))
        };
        self.add::<K>(kind, tell, gone);
    }

    fn policies(&mut self) {
        self.simple::<core::Namespace>("Namespace", Event::Namespace, |meta| {
            other(Event::NamespaceGone(name(meta)))
        });
        self.simple::<policy::PodDisruptionBudget>("PodDisruptionBudget", Event::Budget, |meta| {
            let (namespace, name) = full(meta);
            other(Event::BudgetGone(namespace, name))
        });
        self.simple::<scheduling::PriorityClass>("PriorityClass", Event::PriorityClass, |meta| {
            other(Event::PriorityClassGone(name(meta)))
        });
        self.simple::<core::ResourceQuota>("ResourceQuota", Event::Quota, |meta| {
            let (namespace, name) = full(meta);
            other(Event::QuotaGone(namespace, name))
        });
        self.simple::<core::Service>("Service", Event::Grouping, |meta| {
            let (namespace, name) = full(meta);
            other(Event::GroupingGone("Service".into(), namespace, name))
        });
        self.simple::<core::ReplicationController>(
            "ReplicationController",
            Event::Grouping,
            |meta| {
                let (namespace, name) = full(meta);
                other(Event::GroupingGone("ReplicationController".into(), namespace, name))
            },
        );
        self.simple::<apps::ReplicaSet>("ReplicaSet", Event::Grouping, |meta| {
            let (namespace, name) = full(meta);
            other(Event::GroupingGone("ReplicaSet".into(), namespace, name))
        });
        self.simple::<apps::StatefulSet>("StatefulSet", Event::Grouping, |meta| {
            let (namespace, name) = full(meta);
            other(Event::GroupingGone("StatefulSet".into(), namespace, name))
        });
        let gang_gone = |meta: &ObjectMeta| {
            let (namespace, name) = full(meta);
            other(Event::GangGone(namespace, name))
        };
        // Kubernetes 1.37 has the one, 1.36 the other.
        self.simple::<gang::PodGroup>("PodGroup.v1beta1", Event::Gang, gang_gone);
        self.simple::<v1alpha2::PodGroup>("PodGroup.v1alpha2", Event::Gang, gang_gone);
    }

    fn storage(&mut self) {
        self.simple::<core::PersistentVolume>("PersistentVolume", Event::Volume, |meta| {
            other(Event::VolumeGone(name(meta)))
        });
        self.simple::<core::PersistentVolumeClaim>("PersistentVolumeClaim", Event::Claim, |meta| {
            let (namespace, name) = full(meta);
            other(Event::ClaimGone(namespace, name))
        });
        self.simple::<storage::StorageClass>("StorageClass", Event::StorageClass, |meta| {
            other(Event::StorageClassGone(name(meta)))
        });
        self.simple::<storage::CSINode>("CSINode", Event::CsiNode, |meta| {
            other(Event::CsiNodeGone(name(meta)))
        });
        self.simple::<storage::CSIDriver>("CSIDriver", Event::CsiDriver, |meta| {
            other(Event::CsiDriverGone(name(meta)))
        });
        self.simple::<storage::CSIStorageCapacity>(
            "CSIStorageCapacity",
            Event::StorageCapacity,
            |meta| {
                let (namespace, name) = full(meta);
                other(Event::StorageCapacityGone(namespace, name))
            },
        );
        self.simple::<storage::VolumeAttachment>("VolumeAttachment", Event::Attachment, |meta| {
            other(Event::AttachmentGone(name(meta)))
        });
    }

    fn devices(&mut self) {
        self.simple::<resource::ResourceSlice>("ResourceSlice", Event::DeviceSlice, |meta| {
            other(Event::DeviceSliceGone(name(meta)))
        });
        self.simple::<resource::DeviceClass>("DeviceClass", Event::DeviceClass, |meta| {
            other(Event::DeviceClassGone(name(meta)))
        });
        let claim = |claim: resource::ResourceClaim| {
            let version = version(&claim.metadata);
            let claim = Box::new(claim.lower().map_err(|error| error.to_string())?);
            Ok(Some(Seen::Update(Update::Claim { claim, version })))
        };
        self.add::<resource::ResourceClaim>("ResourceClaim", claim, |meta| {
            let (namespace, name) = full(meta);
            other(Event::DeviceClaimGone(namespace, name))
        });
    }

    /// Berth's own kinds.
    fn own(&mut self) {
        self.simple::<crd::Team>("Team", Event::Team, |meta| other(Event::TeamGone(name(meta))));
        self.simple::<crd::Headroom>("Headroom", Event::Headroom, |meta| {
            other(Event::HeadroomGone(name(meta)))
        });
        self.add::<crd::Pool>(
            "Pool",
            |pool| Ok(Some(Seen::Pool(Box::new(pool)))),
            |meta| Seen::PoolGone(name(meta)),
        );
        // Which resource an object is about is not in its name.
        let about: Arc<Mutex<HashMap<Arc<str>, ResourceName>>> = Arc::default();
        let known = about.clone();
        self.add::<crd::Accelerator>(
            "Accelerator",
            move |accelerator| {
                let lowered = accelerator.lower().map_err(|error| error.to_string())?;
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                known.insert(name(&accelerator.metadata), lowered.resource.clone());
                Ok(Some(other(Event::Accelerator(lowered))))
            },
            move |meta| {
                let mut about = about.lock().unwrap_or_else(PoisonError::into_inner);
                let resource = about.remove(&name(meta));
                let resource = resource.unwrap_or_else(|| ResourceName::new(""));
                other(Event::AcceleratorGone(resource))
            },
        );
    }
}

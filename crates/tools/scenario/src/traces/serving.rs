//! The default cluster and services for request traces: nodes with two sockets and eight H100s, one
//! autoscaled replica per GPU.

use std::sync::Arc;

use berth_model::gpu::WHOLE_GPU;
use berth_model::pod::{Container, ContainerKind, Pod, Resources};
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::{ResourceList, ResourceName};
use berth_model::spec::{Controller, PodSpec};
use berth_sim::experiment::{Autoscale, Experiment, Service, Setup, Workload, WorkloadKind};
use berth_sim::latency::Speed;
use berth_sim::report::WorkloadOutline;

use super::requests::Trace;
use crate::scenario::{PoolError, serving_pool};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Serving {
    /// GPUs of the cluster, rounded up to whole nodes of eight.
    pub gpus: usize,
    /// Service time if the trace has no tokens.
    pub speed: Speed,
    /// Target utilisation of replicas, in thousandths.
    pub target_milli: u32,
    /// Time to load the model.
    pub load_ms: i64,
    /// Latency objective in thousandths of a replica's own p99.
    pub objective_milli: u64,
    pub seed: u64,
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            gpus: 64,
            speed: Speed { mean_us: 4_000_000, p99_us: 15_000_000, slots: 64 },
            target_milli: 600,
            load_ms: 45_000,
            objective_milli: 1_500,
            seed: 1,
        }
    }
}

/// One service per trace, for the duration of the longest trace; shorter ones repeat.
pub fn experiment(
    traces: &[(String, Trace)],
    serving: Serving,
    setups: Vec<Setup>,
) -> Result<Experiment, PoolError> {
    let nodes = serving_pool(serving.gpus.div_ceil(8))?;
    let most = u32::try_from(serving.gpus / traces.len().max(1)).unwrap_or(u32::MAX).max(1);
    let workloads =
        traces.iter().map(|(name, trace)| workload(name, trace, serving, most)).collect();
    Ok(Experiment {
        title: "request replay".to_owned(),
        description: "Request traces, served by one replica per GPU, autoscaled.".to_owned(),
        seed: serving.seed,
        duration_ms: traces.iter().map(|(_, trace)| trace.duration_ms).max().unwrap_or(0),
        nodes,
        workloads,
        setups,
        ..Experiment::default()
    })
}

fn workload(name: &str, trace: &Trace, serving: Serving, most: u32) -> Workload {
    let speed = trace.speed.unwrap_or(serving.speed);
    Workload {
        outline: WorkloadOutline {
            kind: "Deployment".to_owned(),
            namespace: "serving".to_owned(),
            name: name.to_owned(),
            team: name.to_owned(),
            class: "interactive".to_owned(),
        },
        gpu_memory_bytes: 0,
        busy_milli: 1000,
        load_ms: serving.load_ms,
        kind: WorkloadKind::Service(Service {
            template: Arc::new(template(name)),
            replicas: Vec::new(),
            autoscale: Some(Autoscale { min: 1, max: most, target_milli: serving.target_milli }),
            load: Some(trace.load.clone()),
            speed,
            objective_us: speed.p99_us * serving.objective_milli / 1000,
        }),
    }
}

fn template(name: &str) -> PodSpec {
    let limits: ResourceList = [
        (ResourceName::cpu(), Quantity::from_units(8, Format::DecimalSi)),
        (ResourceName::memory(), Quantity::from_bytes(64 << 30)),
        (ResourceName::new(WHOLE_GPU), Quantity::from_units(1, Format::DecimalSi)),
    ]
    .into_iter()
    .collect();
    let resources = Resources { requests: limits.clone(), limits };
    let container = Container { name: "server".to_owned(), kind: ContainerKind::App, resources };
    PodSpec {
        namespace: "serving".into(),
        labels: [("app", name)].into_iter().collect(),
        pod: Pod { containers: vec![container], ..Pod::default() },
        priority: 1_000_000,
        controller: Some(Controller { kind: "ReplicaSet".into(), name: name.into() }),
        ..PodSpec::default()
    }
}

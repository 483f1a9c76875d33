//! Dynamic Resource Allocation: where devices are allocated, and when they are released.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use berth_engine::decision::{Binding, Decision};
use berth_engine::event::Event;
use berth_engine::{Engine, Profile};
use berth_kubelet::TopologyPolicy;
use berth_model::alignment::Alignment;
use berth_model::dra::DeviceClass;
use berth_model::dra::claim::{Claim, ClaimSpec, Count, DeviceRequest, Request, RequestKind};
use berth_model::dra::pod::{ClaimSource, PodClaim};
use berth_model::dra::slice::{Attribute, Device, NodeScope, ResourceSlice, SlicePool};
use berth_model::mig::Board;
use berth_model::node::Node;
use berth_model::resource::ResourceName;
use berth_model::spec::PodObject;
use berth_testkit::claims::{of_profile, published_slices, slice_claim, slice_class, slice_of};
use berth_testkit::cluster::{NodeKind, gpu_template, pending, resources, template};

/// All devices of a node, each on a NUMA node.
fn slice(node: &str, numa: &[i64]) -> Event {
    let device = |(at, numa): (usize, &i64)| Device {
        name: format!("gpu-{at}").into(),
        attributes: [(Arc::from("numaNode"), Attribute::Int(*numa))].into(),
        ..Device::default()
    };
    Event::DeviceSlice(ResourceSlice {
        name: format!("{node}-gpus").into(),
        driver: "gpu.example.com".into(),
        pool: SlicePool { name: node.into(), generation: 1, slice_count: 1 },
        scope: NodeScope::Node(node.into()),
        devices: numa.iter().enumerate().map(device).collect(),
        shared_counters: Vec::new(),
    })
}

fn class() -> Event {
    Event::DeviceClass(DeviceClass { name: "gpu".into(), ..DeviceClass::default() })
}

fn claim(name: &str, count: i64) -> Claim {
    let ask = DeviceRequest {
        class: "gpu".into(),
        count: Count::Exactly(count),
        ..DeviceRequest::default()
    };
    let requests = vec![Request { name: "gpus".into(), kind: RequestKind::Exactly(ask) }];
    Claim {
        namespace: "serving".into(),
        name: name.into(),
        uid: format!("claim-{name}").into(),
        spec: ClaimSpec { requests, ..ClaimSpec::default() },
        ..Claim::default()
    }
}

fn node(name: &str) -> Event {
    let allocatable = [("cpu", "64"), ("memory", "256Gi"), ("pods", "110")];
    let allocatable = resources(&allocatable).unwrap();
    Event::Node(Node { name: name.into(), allocatable, ..Node::default() })
}

fn claiming(name: &str, number: u64) -> PodObject {
    let mut spec = template("claiming", 0, &[("cpu", "2"), ("memory", "4Gi")]).unwrap();
    spec.namespace = "serving".into();
    let source = ClaimSource::Named(name.into());
    let claims = [PodClaim { name: "gpus".into(), source }].into();
    PodObject { claims, ..pending(&Arc::new(spec), number) }
}

fn engine(events: impl IntoIterator<Item = Event>) -> Engine {
    let mut engine = Engine::new(Profile::Berth);
    events.into_iter().for_each(|event| engine.apply(event));
    engine
}

fn bind(engine: &mut Engine, pod: PodObject) -> Option<Binding> {
    engine.apply(Event::Pod(pod));
    match engine.decide(0) {
        Some(Decision::Bind(binding)) => Some(binding),
        _ => None,
    }
}

fn devices(binding: &Binding) -> Vec<String> {
    let placement = binding.devices.as_ref().unwrap();
    let given = placement.allocations.iter().flat_map(|(_, allocation)| &allocation.devices);
    given.map(|device| device.id.device.to_string()).collect()
}

#[test]
fn a_pod_goes_where_its_claim_can_be_allocated_and_no_device_is_allocated_twice() {
    let mut engine = engine([
        class(),
        node("plain"),
        node("small"),
        node("large"),
        slice("small", &[0]),
        slice("large", &[0, 0]),
    ]);
    for (name, count) in [("a", 2), ("b", 1), ("c", 1)] {
        engine.apply(Event::DeviceClaim(claim(name, count)));
    }
    let first = bind(&mut engine, claiming("a", 1)).unwrap();
    assert_eq!((&*first.node, devices(&first).len()), ("large", 2));
    let second = bind(&mut engine, claiming("b", 2)).unwrap();
    assert_eq!((&*second.node, devices(&second)), ("small", vec!["gpu-0".to_owned()]));
    assert!(bind(&mut engine, claiming("c", 3)).is_none(), "all devices are taken");
    // The pod ends before its claim ever told of the devices.
    engine.apply(Event::PodGone(second.pod));
    let Some(Decision::Bind(third)) = engine.decide(1) else { panic!("not bound") };
    assert_eq!((&*third.pod, &*third.node), ("uid-00000003", "small"));
}

#[test]
fn a_pod_waits_for_its_claim_for_the_class_and_for_devices() {
    let mut engine = engine([node("one")]);
    engine.apply(Event::Pod(claiming("a", 1)));
    assert!(matches!(engine.decide(0), Some(Decision::Wait { .. })), "there is no such claim");
    for event in [Event::DeviceClaim(claim("a", 1)), class()] {
        engine.apply(event);
        assert!(!matches!(engine.decide(1), Some(Decision::Bind(_))));
    }
    engine.apply(slice("one", &[0]));
    assert!(matches!(engine.decide(2), Some(Decision::Bind(_))));
}

#[test]
fn a_pod_waits_for_its_generated_claim() {
    let mut engine = engine([class(), node("one"), slice("one", &[0])]);
    let mut pod = claiming("made", 1);
    let source = |source| Arc::from([PodClaim { name: "gpus".into(), source }]);
    pod.claims = source(ClaimSource::ToBeGenerated);
    assert!(bind(&mut engine, pod.clone()).is_none());
    let mut made = claim("made", 1);
    made.controller_uid = Some(pod.uid.clone());
    engine.apply(Event::DeviceClaim(made));
    pod.claims = source(ClaimSource::Generated("made".into()));
    assert!(bind(&mut engine, pod).is_some());
}

#[test]
fn devices_are_allocated_near_the_pods_cpus() {
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::SingleNumaNode);
    let mut engine = engine(kind.nodes(0, 1).unwrap());
    // The first device by order is on the other socket.
    engine.apply(class());
    engine.apply(slice("h100-000000", &[1, 1, 0, 0]));
    for name in ["a", "b", "c"] {
        engine.apply(Event::DeviceClaim(claim(name, 2)));
    }
    let first = bind(&mut engine, claiming("a", 1)).unwrap();
    assert_eq!(devices(&first), ["gpu-2", "gpu-3"], "those of the first socket");
    assert_eq!(first.alignment, Alignment::Aligned, "{first:?}");
    // The CPUs of the next are on the first socket as well; its devices cannot be.
    let second = bind(&mut engine, claiming("b", 2)).unwrap();
    assert_eq!(devices(&second), ["gpu-0", "gpu-1"]);
    assert_eq!(second.alignment, Alignment::Misaligned, "{second:?}");
}

#[test]
fn extended_resources_are_served_by_devices_where_no_plugin_offers_them() {
    let resource = ResourceName::new("example.com/gpu");
    let served = DeviceClass {
        name: "gpu".into(),
        extended_resource: Some(resource.clone()),
        ..DeviceClass::default()
    };
    let mut engine = engine([node("plain"), node("devices"), slice("devices", &[0])]);
    engine.apply(Event::DeviceClass(served));
    let limits = [("cpu", "2"), ("memory", "4Gi"), ("example.com/gpu", "1")];
    let spec = Arc::new(template("extended", 0, &limits).unwrap());
    let binding = bind(&mut engine, pending(&spec, 1)).unwrap();
    assert_eq!(&*binding.node, "devices");
    assert!(binding.devices.is_some_and(|placement| placement.extended.is_some()));
    assert!(bind(&mut engine, pending(&spec, 2)).is_none(), "there is one device");
}

#[test]
fn failed_and_rolled_back_bindings_release_devices() {
    let mut engine = engine([class(), node("one"), slice("one", &[0])]);
    engine.apply(Event::DeviceClaim(claim("a", 1)));
    engine.apply(Event::DeviceClaim(claim("b", 1)));
    let checkpoint = engine.checkpoint();
    assert!(bind(&mut engine, claiming("a", 1)).is_some());
    engine.rollback(checkpoint);
    let binding = bind(&mut engine, claiming("b", 2)).unwrap();
    engine.undo(&binding.pod);
    engine.apply(Event::PodGone(binding.pod));
    assert!(bind(&mut engine, claiming("a", 3)).is_some());
}

#[test]
fn pods_without_claims_are_unaffected() {
    let mut engine = engine([class(), slice("one", &[0])]);
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::SingleNumaNode);
    kind.nodes(0, 1).unwrap().into_iter().for_each(|event| engine.apply(event));
    let binding = bind(&mut engine, pending(&Arc::new(gpu_template("one", 0, 1).unwrap()), 1));
    assert_eq!(binding.unwrap().devices, None);
}

/// A node with so many GPUs whose slices are made when they are given.
fn partitioned(engine: &mut Engine, gpus: usize) {
    engine.apply(Event::DeviceClass(slice_class()));
    engine.apply(node("one"));
    let board = Board::by_id("a100-80gb").unwrap();
    let profiles = ["1g.10gb", "3g.40gb", "4g.40gb"].map(|name| board.profile(name).unwrap());
    let published = published_slices(&"one".into(), board, 0..gpus, &profiles);
    published.into_iter().for_each(|slice| engine.apply(Event::DeviceSlice(slice)));
}

/// The GPU, profile and start of a slice that a pod is given which this expression selects.
fn claimed(engine: &mut Engine, expression: &str, number: u64) -> Option<(usize, String, u8)> {
    let name = format!("slice-{number}");
    engine.apply(Event::DeviceClaim(slice_claim(&"serving".into(), &name, expression)));
    let binding = bind(engine, claiming(&name, number))?;
    let given = devices(&binding);
    let (gpu, profile, start) = slice_of(&given[0])?;
    Some((gpu, profile.to_owned(), start))
}

#[test]
fn slices_are_created_where_larger_ones_still_fit() {
    let given = |scheduler: Profile| {
        let mut engine = Engine::new(scheduler);
        partitioned(&mut engine, 1);
        let third = claimed(&mut engine, &of_profile("3g.40gb"), 1);
        (third.unwrap().2, claimed(&mut engine, &of_profile("4g.40gb"), 2).is_some())
    };
    // The first that fits is at 0, where alone 4g.40gb can be.
    assert_eq!(given(Profile::KubeScheduler), (0, false));
    assert_eq!(given(Profile::Berth), (4, true));
}

#[test]
fn the_smallest_sufficient_slice_is_claimed_where_least_is_lost() {
    let mut engine = Engine::new(Profile::Berth);
    partitioned(&mut engine, 2);
    let (used, ..) = claimed(&mut engine, &of_profile("4g.40gb"), 1).unwrap();
    // Anything will do: one unit beside it, and nothing of the GPU that is whole.
    let (gpu, profile, _) = claimed(&mut engine, "true", 2).unwrap();
    assert_eq!((gpu, profile.as_str()), (used, "1g10gb"));
    assert_eq!(claimed(&mut engine, &of_profile("1g.10gb"), 3).unwrap().0, used);
}

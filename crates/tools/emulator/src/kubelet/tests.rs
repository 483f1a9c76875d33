//! What virtual kubelets do with pods.

use super::*;
use crate::controllers::fixtures::{PodBuilder, pod};
use berth_api::keys::{EXIT_CODE, READY_AFTER, RUN_FOR, START_AFTER, STOP_AFTER};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, from_value, json};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Two NUMA nodes with 8 CPUs and 2 GPUs each, and topology manager policy `single-numa-node`.
fn node() -> Arc<core::Node> {
    let node = json!({
        "metadata": { "name": "n", "labels": {
            "berth.dev/numa-nodes": "2",
            "berth.dev/topology-manager-policy": "single-numa-node",
            "berth.dev/cpu-manager-policy": "static",
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        } },
        "status": {
            "capacity": { "cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "4", "pods": "20" },
            "allocatable": { "cpu": "14", "memory": "60Gi", "nvidia.com/gpu": "4", "pods": "20" },
        },
    });
    Arc::new(from_value(node).unwrap())
}

fn host() -> Host {
    Host::new(node(), None, "10.0.0.1".to_owned()).unwrap()
}

fn asking(name: &str, limits: Value) -> PodBuilder {
    let mut pod = pod(name).on("n").plain();
    let resources = from_value(json!({ "limits": limits })).unwrap();
    pod.spec.as_mut().unwrap().containers[0].resources = Some(resources);
    PodBuilder::from(pod)
}

struct Simulation {
    host: Host,
    options: Options,
    claims: bool,
    pods: BTreeMap<String, Pod>,
    due: BTreeMap<String, Timestamp>,
    removed: Vec<String>,
}

impl Simulation {
    fn new() -> Self {
        Self {
            host: host(),
            options: Options { start_after: Duration::from_secs(2), ..Options::default() },
            claims: true,
            pods: BTreeMap::new(),
            due: BTreeMap::new(),
            removed: Vec::new(),
        }
    }

    fn happen(
        &mut self,
        second: i64,
        happen: impl FnOnce(&mut Host, &mut Environment<'_>) -> Effects,
    ) {
        let claims = self.claims;
        let mut next_ip = || "100.64.0.1".to_owned();
        let mut environment = Environment {
            now: at(second),
            options: &self.options,
            has_claims: &|_| claims,
            next_ip: &mut next_ip,
        };
        let effects = happen(&mut self.host, &mut environment);
        for (key, write) in effects.writes {
            let pod = self.pods.get_mut(&key.name).unwrap();
            pod.status = write.status.or(pod.status.take());
            if let Some(text) = write.assignment {
                let annotations = pod.metadata.annotations.get_or_insert_default();
                annotations.insert(VIRTUAL_DEVICES.to_owned(), text);
            }
            if write.remove {
                self.removed.push(key.name);
            }
        }
        for (due, uid) in effects.alarms {
            self.due.insert(uid, due);
        }
    }

    fn see(&mut self, second: i64, pod: Pod) {
        self.pods.insert(pod.metadata.name.clone().unwrap(), pod.clone());
        self.happen(second, |host, environment| host.see(Arc::new(pod), environment));
    }

    fn tick(&mut self, second: i64, name: &str) {
        self.happen(second, |host, environment| host.tick(&format!("{name}-uid"), environment));
    }

    fn delete(&mut self, second: i64, name: &str) {
        let mut pod = self.pods[name].clone();
        pod.metadata.deletion_timestamp = Some(Time(at(second + 30)));
        pod.metadata.deletion_grace_period_seconds = Some(30);
        self.see(second, pod);
    }

    /// Phase, reason, and what the first container does.
    fn shown(&self, name: &str) -> String {
        let status = self.pods[name].status.clone().unwrap();
        let container = status.container_statuses.unwrap_or_default().into_iter().next();
        let state = container.as_ref().and_then(|one| one.state.clone()).unwrap_or_default();
        let activity = match (state.waiting, state.running, state.terminated) {
            (Some(waiting), ..) => waiting.reason.unwrap(),
            (_, Some(_), _) if container.unwrap().ready => "ready".to_owned(),
            (_, Some(_), _) => "running".to_owned(),
            (.., Some(ended)) => format!("exit {}", ended.exit_code),
            _ => "-".to_owned(),
        };
        let reason = status.reason.unwrap_or_else(|| "-".to_owned());
        format!("{} {reason} {activity}", status.phase.unwrap())
    }

    fn due(&self, name: &str) -> i64 {
        self.due[&format!("{name}-uid")].as_second()
    }

    fn given(&self, name: &str) -> Assignment {
        let annotations = self.pods[name].metadata.annotations.as_ref().unwrap();
        serde_json::from_str(&annotations[VIRTUAL_DEVICES]).unwrap()
    }
}

fn gpus(count: u32) -> Value {
    json!({ "cpu": "2", "memory": "2Gi", "nvidia.com/gpu": count.to_string() })
}

#[test]
fn a_pod_starts_is_ready_and_ends() {
    let mut played = Simulation::new();
    let pod = asking("p", gpus(1))
        .annotated(START_AFTER, "5s")
        .annotated(READY_AFTER, "3s")
        .annotated(RUN_FOR, "20s")
        .never_restarted();
    played.see(100, pod.plain());
    assert_eq!((played.shown("p").as_str(), played.due("p")), ("Pending - ContainerCreating", 105));
    let given = played.given("p").containers.remove(0);
    assert_eq!(given.devices["nvidia.com/gpu"].len(), 1);
    assert_eq!((given.cpus.unwrap().is_empty(), given.numa.len()), (false, 1));
    played.tick(105, "p");
    assert_eq!((played.shown("p").as_str(), played.due("p")), ("Running - running", 108));
    played.tick(108, "p");
    assert_eq!((played.shown("p").as_str(), played.due("p")), ("Running - ready", 125));
    assert_eq!(played.pods["p"].status.as_ref().unwrap().pod_ip.as_deref(), Some("100.64.0.1"));
    played.tick(125, "p");
    assert_eq!(played.shown("p"), "Succeeded - exit 0");
    assert_eq!(played.host.kubelet.pods().count(), 0, "what it held is free");
}

#[test]
fn what_the_managers_refuse_fails_in_their_words() {
    let mut played = Simulation::new();
    played.see(100, asking("wide", gpus(3)).plain());
    assert_eq!(played.shown("wide"), "Failed TopologyAffinityError -");
    let message = played.pods["wide"].status.as_ref().unwrap().message.clone().unwrap();
    let words = "Pod was rejected: Resources cannot be allocated with Topology locality";
    assert_eq!(message, words);
    played.see(101, asking("a", gpus(2)).plain());
    played.see(101, asking("b", gpus(2)).plain());
    played.see(102, asking("c", gpus(1)).plain());
    assert_eq!(played.shown("c"), "Failed TopologyAffinityError -", "no NUMA node has one left");
    let large = asking("large", json!({ "cpu": "13500m", "memory": "1Gi" }));
    played.see(103, large.plain());
    assert_eq!(played.shown("large"), "Failed OutOfcpu -");
    assert_eq!(played.host.kubelet.pods().count(), 2, "the refused hold nothing");
}

#[test]
fn a_pod_that_is_deleted_is_told_to_end_and_then_removed() {
    let mut played = Simulation::new();
    played.see(100, asking("p", gpus(1)).annotated(STOP_AFTER, "4s").plain());
    played.tick(102, "p");
    played.delete(110, "p");
    assert_eq!((played.shown("p").as_str(), played.due("p")), ("Running - running", 114));
    assert!(played.removed.is_empty());
    played.tick(114, "p");
    assert_eq!((played.shown("p").as_str(), played.removed.len()), ("Failed - exit 143", 1));
    // Somebody's finalizer keeps it for a while: it is not removed twice.
    let pod = played.pods["p"].clone();
    played.see(115, pod);
    assert_eq!(played.removed.len(), 1);
    played.happen(116, |host, _| host.gone("p-uid"));
    assert_eq!(played.host.uids().len(), 0);
}

#[test]
fn containers_that_end_start_again_later_and_later() {
    let mut played = Simulation::new();
    let pod = asking("p", json!({})).annotated(RUN_FOR, "5s").annotated(EXIT_CODE, "1");
    played.see(100, pod.plain());
    played.tick(102, "p");
    played.tick(107, "p");
    assert_eq!((played.shown("p").as_str(), played.due("p")), ("Running - CrashLoopBackOff", 108));
    played.tick(108, "p");
    assert_eq!(played.shown("p"), "Running - ready");
    played.tick(113, "p");
    assert_eq!((played.shown("p").as_str(), played.due("p")), ("Running - CrashLoopBackOff", 123));
    played.tick(123, "p");
    played.tick(128, "p");
    assert_eq!(played.due("p"), 148);
    let status = played.pods["p"].status.as_ref().unwrap();
    assert_eq!(status.container_statuses.as_ref().unwrap()[0].restart_count, 2);
}

#[test]
fn a_deadline_ends_a_pod() {
    let mut played = Simulation::new();
    let mut pod = asking("p", json!({})).plain();
    pod.spec.as_mut().unwrap().active_deadline_seconds = Some(30);
    played.see(100, pod);
    played.tick(102, "p");
    assert_eq!(played.due("p"), 130);
    played.tick(130, "p");
    assert_eq!(played.shown("p"), "Failed DeadlineExceeded exit 137");
}

#[test]
fn a_restarted_kubelet_finds_its_books_in_its_pods() {
    let mut played = Simulation::new();
    played.see(100, asking("a", gpus(2)).plain());
    played.tick(102, "a");
    played.see(103, asking("b", gpus(1)).annotated(RUN_FOR, "60s").never_restarted().plain());
    played.tick(105, "b");
    let before = (played.given("a"), played.given("b"));
    played.host.restart().unwrap();
    assert_eq!(played.host.kubelet.pods().count(), 0);
    for name in ["a", "b"] {
        let pod = played.pods[name].clone();
        played.see(110, pod);
    }
    assert_eq!((played.given("a"), played.given("b")), before);
    assert_eq!(played.host.kubelet.pods().count(), 2);
    let free: usize = played.host.kubelet.free_by_numa(0).map(|(_, count)| count).sum();
    assert_eq!(free, 1);
    assert_eq!(played.due("b"), 165, "it runs on from where it was");
    assert_eq!(played.shown("b"), "Running - ready");
}

#[test]
fn faults_and_missing_claims_hold_pods_up() {
    let mut played = Simulation::new();
    played.host.reject_next();
    played.see(100, asking("a", json!({})).plain());
    assert_eq!(played.shown("a"), "Failed UnexpectedAdmissionError -");
    played.claims = false;
    played.see(100, asking("b", json!({})).plain());
    played.tick(105, "b");
    assert_eq!(played.shown("b"), "Pending - ContainerCreating");
    played.claims = true;
    let pod = played.pods["b"].clone();
    played.see(106, pod);
    assert_eq!(played.shown("b"), "Running - ready");
}

#[test]
fn what_is_published_is_what_the_kubelet_was_built_from() {
    let mut played = Simulation::new();
    played.see(100, asking("a", gpus(2)).plain());
    let content = super::super::topology::content(played.host.kubelet(), played.host.holders());
    let published: NodeResourceTopology = from_value(content).unwrap();
    let fingerprint = published.attribute(berth_topology::fingerprint::ATTRIBUTE).unwrap();
    assert_eq!(fingerprint, berth_topology::fingerprint::of([("default", "a")]));
    let zone = |at: usize, name: &str| {
        let resource = published.zones[at].resources.iter().find(|one| one.name == name).unwrap();
        (resource.allocatable.0.clone(), resource.available.0.clone())
    };
    let gpus = [zone(0, "nvidia.com/gpu"), zone(1, "nvidia.com/gpu")];
    let texts = |all: &str, free: &str| (all.to_owned(), free.to_owned());
    assert_eq!(gpus, [texts("2", "0"), texts("2", "2")]);
    let again = Host::new(node(), Some(&published), String::new()).unwrap();
    let first = host();
    assert_eq!(again.kubelet.machine(), first.kubelet.machine());
    assert_eq!(again.kubelet.config().topology_policy, first.kubelet.config().topology_policy);
    assert_eq!(again.kubelet.reserved_cpus(), first.kubelet.reserved_cpus());
    assert!(again.kubelet.pools().eq(first.kubelet.pools()));
}

#[test]
fn a_node_that_says_nothing_of_its_inside_still_counts_devices() {
    let bare = json!({
        "metadata": { "name": "n" },
        "status": { "capacity": { "cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1" } },
    });
    let mut played = Simulation::new();
    let node = Arc::new(from_value(bare).unwrap());
    played.host = Host::new(node, None, "10.0.0.1".to_owned()).unwrap();
    assert!(!played.host.is_inside_known());
    let one = json!({ "nvidia.com/gpu": "1" });
    played.see(100, asking("a", one.clone()).plain());
    played.see(100, asking("b", one).plain());
    assert_eq!(played.shown("a"), "Pending - ContainerCreating");
    assert_eq!(played.shown("b"), "Failed UnexpectedAdmissionError -");
}

//! Runs a case and compares everything the vectors assert.
//!
//! Beyond that it holds the model to its own word: `would_admit` must agree with `admit`, and what
//! the model calls certain must be what the recording found to be the same in every run.

use std::collections::{BTreeMap, BTreeSet};

use berth_kubelet::{Admission, Certainty, DeviceAssignment, Kubelet, Rejection, Verdict};
use berth_model::device::DevicePool;
use berth_model::idset::DeviceSet;

use super::case::{Case, Operation};
use super::schema::{AffinityJson, AllocationJson, BlockJson, DevicesJson, OutcomeJson, StateJson};

/// One difference between what was recorded and what the model does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The operation, or `None` for the state before the first.
    pub operation: Option<usize>,
    /// What differs.
    pub what: String,
    /// As recorded.
    pub expected: String,
    /// As modelled.
    pub got: String,
}

/// Collects differences.
struct Comparison {
    operation: Option<usize>,
    mismatches: Vec<Mismatch>,
}

impl Comparison {
    fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, expected: &T, got: &T) {
        if expected != got {
            self.mismatches.push(Mismatch {
                operation: self.operation,
                what: what.to_owned(),
                expected: format!("{expected:?}"),
                got: format!("{got:?}"),
            });
        }
    }
}

/// Runs `case` and gives all differences; `observe` sees the node after each operation.
pub fn replay(case: &Case, mut observe: impl FnMut(usize, &Kubelet, &str)) -> Vec<Mismatch> {
    let mut kubelet = case.kubelet.clone();
    let mut comparison = Comparison { operation: None, mismatches: Vec::new() };
    if let Some(expected) = case.expected_reserved {
        comparison.same("reserved_cpus", &Some(expected), &kubelet.reserved_cpus());
    }
    compare_state(&mut comparison, case, &case.initial, &kubelet);
    let mut before = case.initial.clone();
    let mut unstable_resources = BTreeSet::new();
    for (index, operation) in case.operations.iter().enumerate() {
        comparison.operation = Some(index);
        let text = match &operation.admit {
            Some(_) => {
                admit(&mut comparison, case, &mut kubelet, operation, &mut unstable_resources)
            }
            None => {
                comparison.same("pod is there", &true, &kubelet.remove(&operation.pod));
                format!("{} removed", operation.pod)
            }
        };
        let after = operation.after.as_ref().unwrap_or(&before);
        compare_state(&mut comparison, case, after, &kubelet);
        before = after.clone();
        observe(index, &kubelet, &text);
    }
    comparison.mismatches
}

fn admit(
    comparison: &mut Comparison,
    case: &Case,
    kubelet: &mut Kubelet,
    operation: &Operation,
    unstable_resources: &mut BTreeSet<String>,
) -> String {
    let (Some((pod, demand)), Some(outcome)) = (&operation.admit, &operation.outcome) else {
        return String::new();
    };
    if let Some(expected) = &operation.expected_qos {
        let qos = pod.qos(kubelet.config().version.pod_level_resources());
        comparison.same("qos", &expected.as_str(), &qos.as_str());
    }
    let verdict = kubelet.would_admit(demand);
    let is_new = kubelet.assignment(&operation.pod).is_none();
    comparison.same("pod is new", &true, &is_new);
    let admitted = kubelet.admit(&operation.pod, demand);
    let text = describe(kubelet, &operation.pod, &admitted);
    comparison.same("admitted", &outcome.admitted, &admitted.is_ok());
    match &admitted {
        Ok(admission) => {
            comparison.same("would_admit", &true, &verdict.admits());
            if outcome.admitted {
                compare_verdict(comparison, verdict, admission);
                compare_admission(comparison, case, outcome, admission);
                compare_claims(comparison, outcome, admission, unstable_resources);
            }
        }
        Err(rejection) => {
            let (reason, certain) = (rejection.reason, rejection.certain);
            comparison.same("would_admit", &Verdict::Reject { reason, certain }, &verdict);
            if !outcome.admitted {
                compare_rejection(comparison, outcome, rejection, &operation.unstable);
            }
        }
    }
    text
}

fn compare_verdict(comparison: &mut Comparison, verdict: Verdict, admission: &Admission) {
    let hints = || admission.containers.iter().filter_map(|container| container.affinity);
    let numa = hints().filter_map(|hint| hint.numa).reduce(|one, other| one | other);
    let preferred = hints().count() > 0 && hints().all(|hint| hint.preferred);
    let certain = admission.containers.iter().all(|container| container.certain);
    comparison.same("would_admit", &Verdict::Admit { numa, preferred, certain }, &verdict);
}

fn compare_rejection(
    comparison: &mut Comparison,
    outcome: &OutcomeJson,
    rejection: &Rejection,
    unstable: &[String],
) {
    let reason = rejection.reason.as_str().to_owned();
    comparison.same("reason", &outcome.reason, &Some(reason));
    if !unstable.iter().any(|what| what == "message") {
        comparison.same("message", &outcome.message, &Some(rejection.message.clone()));
        comparison.same("other messages", &Vec::new(), &rejection.other_messages);
    }
}

fn compare_admission(
    comparison: &mut Comparison,
    case: &Case,
    outcome: &OutcomeJson,
    admission: &Admission,
) {
    let machine = case.kubelet.machine();
    let names: BTreeSet<&str> =
        admission.containers.iter().map(|container| container.name.as_str()).collect();
    let expected: BTreeSet<&str> = outcome.containers.keys().map(String::as_str).collect();
    comparison.same("containers", &expected, &names);
    for container in &admission.containers {
        let Some(given) = outcome.containers.get(&container.name) else { continue };
        let what = |field: &str| format!("{}.{field}", container.name);
        let AllocationJson { affinity, cpus, memory, devices } = given;
        let expected_affinity =
            affinity.as_ref().map(|AffinityJson { numa, preferred }| (numa.clone(), *preferred));
        let affinity = container
            .affinity
            .map(|hint| (hint.numa.map(|mask| machine.numa_ids(mask)), hint.preferred));
        comparison.same(&what("affinity"), &expected_affinity, &affinity);
        comparison.same(&what("cpus"), cpus, &container.cpus.map(|cpus| cpus.to_string()));
        let mut expected_memory = memory.clone();
        expected_memory.sort();
        let mut blocks: Vec<BlockJson> = container
            .memory
            .iter()
            .map(|block| BlockJson {
                kind: block.kind.to_string(),
                numa: machine.numa_ids(block.numa),
                bytes: block.bytes,
            })
            .collect();
        blocks.sort();
        comparison.same(&what("memory"), &expected_memory, &blocks);
        let got: BTreeMap<&str, &DeviceAssignment> =
            container.devices.iter().map(|given| (given.resource.as_str(), given)).collect();
        let resources: BTreeSet<&str> = devices.keys().map(String::as_str).collect();
        comparison.same(&what("devices"), &resources, &got.keys().copied().collect());
        for (resource, expected) in devices {
            if let Some(given) = got.get(resource.as_str()) {
                compare_devices(comparison, &what(resource), case, expected, given);
            }
        }
    }
}

/// Ids that differed between recordings must not be called certain. The recording leaves them out
/// for the whole pod, and for that resource ever after.
fn compare_claims(
    comparison: &mut Comparison,
    outcome: &OutcomeJson,
    admission: &Admission,
    unstable_resources: &mut BTreeSet<String>,
) {
    let without_ids = outcome.containers.values().flat_map(|given| &given.devices);
    for (resource, expected) in without_ids.filter(|(_, given)| given.ids.is_none()) {
        let given = admission.containers.iter().flat_map(|container| &container.devices);
        let given = given.filter(|given| given.resource.as_str() == resource);
        let certainty = given.map(|given| given.certainty).max();
        let overclaimed =
            unstable_resources.insert(resource.clone()) && certainty == Some(Certainty::Exact);
        comparison.same(&format!("{resource} ids claimed to be certain"), &false, &overclaimed);
        if expected.by_numa.is_none() {
            let what = format!("{resource} certainty");
            comparison.same(&what, &Some(Certainty::CountOnly), &certainty);
        }
    }
}

fn compare_devices(
    comparison: &mut Comparison,
    what: &str,
    case: &Case,
    expected: &DevicesJson,
    given: &DeviceAssignment,
) {
    let Some(pool) = case.kubelet.pools().nth(given.pool) else { return };
    if let Some(ids) = &expected.ids {
        let got: Vec<String> = pool.ids(given.devices).into_iter().map(str::to_owned).collect();
        comparison.same(&format!("{what}.ids"), ids, &got);
        comparison.same(&format!("{what}.certainty"), &Certainty::Exact, &given.certainty);
    }
    if let Some(count) = expected.count {
        comparison.same(&format!("{what}.count"), &count, &given.devices.len());
    }
    if let Some(expected) = &expected.by_numa {
        let mut got = by_numa(case, pool, given.devices);
        got.retain(|place, count| *count > 0 || expected.contains_key(place));
        comparison.same(&format!("{what}.by_numa"), expected, &got);
    }
}

fn compare_state(
    comparison: &mut Comparison,
    case: &Case,
    expected: &StateJson,
    kubelet: &Kubelet,
) {
    let shared = kubelet.shared_cpus().map(|cpus| cpus.to_string());
    comparison.same("shared_cpus", &expected.shared_cpus, &shared);
    let free: BTreeMap<String, Vec<u64>> = kubelet
        .free_memory()
        .into_iter()
        .map(|free| {
            let bytes = free.bytes.into_iter().map(Option::unwrap_or_default).collect();
            (free.kind.to_string(), bytes)
        })
        .collect();
    comparison.same("free_memory", &expected.free_memory, &free);
    for (at, pool) in kubelet.pools().enumerate() {
        if let Some(expected) = expected.free_devices.get(pool.resource.as_str()) {
            let free = by_numa(case, pool, kubelet.free_devices(at));
            comparison.same(&format!("free_devices[{}]", pool.resource), expected, &free);
        }
    }
}

/// How many of `devices` are attached where, for every place of the pool.
fn by_numa(case: &Case, pool: &DevicePool, devices: DeviceSet) -> BTreeMap<String, usize> {
    let places = case.places.get(pool.resource.as_str());
    let mut counts: BTreeMap<String, usize> =
        places.into_iter().flat_map(BTreeMap::values).map(|place| (place.clone(), 0)).collect();
    for id in pool.ids(devices) {
        if let Some(place) = places.and_then(|places| places.get(id)) {
            *counts.entry(place.clone()).or_default() += 1;
        }
    }
    counts
}

/// What the model did with a pod, in one line per container.
fn describe(kubelet: &Kubelet, pod: &str, admitted: &Result<Admission, Rejection>) -> String {
    let admission = match admitted {
        Ok(admission) => admission,
        Err(rejection) => {
            let place = rejection.container.as_ref().map_or("the pod as a whole", String::as_str);
            let reason = rejection.reason.as_str();
            return format!("{pod} rejected at {place}: {reason}: {}", rejection.message);
        }
    };
    let mut text = format!("{pod} admitted");
    for container in &admission.containers {
        text += &format!("\n  {}:", container.name);
        if let Some(hint) = container.affinity {
            let numa = hint
                .numa
                .map_or("any".to_owned(), |mask| format!("{:?}", kubelet.machine().numa_ids(mask)));
            let preferred = if hint.preferred { "preferred" } else { "not preferred" };
            text += &format!(" numa {numa} {preferred}");
        }
        if let Some(cpus) = container.cpus {
            text += &format!(", cpus {cpus}");
        }
        for block in &container.memory {
            let numa = kubelet.machine().numa_ids(block.numa);
            text += &format!(", {} {} on {numa:?}", block.kind, block.bytes);
        }
        for given in &container.devices {
            let ids = kubelet.pools().nth(given.pool).map(|pool| pool.ids(given.devices));
            let certainty = match given.certainty {
                Certainty::Exact => "",
                Certainty::PerNuma => " (ids uncertain)",
                Certainty::CountOnly => " (only the count is certain)",
            };
            text += &format!(", {} {:?}{certainty}", given.resource, ids.unwrap_or_default());
        }
    }
    text
}

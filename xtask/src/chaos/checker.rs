//! What happened, by etcd's own history.
//!
//! Owns the laws, each checked at every revision: a pod gets a node at most once and keeps it; no node
//! ever has more than it can hold, in any resource; whatever is bound was announced in the Lease as it
//! stood at that moment; and at the end nobody is lost or left waiting. Must not know the scheduler, and
//! shares no code with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_testbed::{Change, Real};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::load::LoadSummary;

const NODES: &str = "/registry/minions/";
const PODS: &str = "/registry/pods/";
const LEASE: &str = "/registry/leases/berth-system/berth";

/// So many broken laws are told in full.
const TOLD_MAX: usize = 20;

/// Amounts by resource: CPUs in milli, bytes, and counts.
type Amounts = BTreeMap<String, u64>;

struct Pod {
    name: String,
    node: Option<String>,
    asks: Amounts,
}

#[derive(Default)]
struct History {
    /// By UID.
    pods: HashMap<String, Pod>,
    nodes: HashMap<String, Amounts>,
    used: HashMap<String, Amounts>,
    /// UIDs in the Lease.
    announced: BTreeSet<String>,
    holder: String,
    terms: usize,
    revisions: u64,
    last_revision: u64,
    bound: usize,
    bindings: usize,
    broken: Vec<String>,
    broken_count: usize,
    ended: Option<String>,
}

/// Whoever reads the history as it is written.
pub(crate) struct Checker {
    history: Arc<Mutex<History>>,
    reading: JoinHandle<()>,
}

/// What was found.
pub(crate) struct ChaosReport {
    broken: Vec<String>,
    broken_count: usize,
    facts: String,
    /// How often a pod was given a node.
    pub(crate) bindings: u64,
}

impl ChaosReport {
    pub(crate) fn is_clean(&self) -> bool {
        self.broken_count == 0
    }

    /// More that was found elsewhere.
    pub(crate) fn add(&mut self, broken: Vec<String>) {
        self.broken_count += broken.len();
        self.broken.extend(broken);
    }
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.facts)?;
        writeln!(f, "laws broken: {}", self.broken_count)?;
        self.broken.iter().try_for_each(|one| writeln!(f, "  {one}"))
    }
}

impl Checker {
    /// Begins at the first revision there is.
    pub(crate) fn start(real: &Real) -> Self {
        let mut changes = real.history("/registry/", &[NODES, PODS, LEASE]);
        let history = Arc::new(Mutex::new(History::default()));
        let writes = history.clone();
        let reading = tokio::spawn(async move {
            while let Some(change) = changes.recv().await {
                let mut history = writes.lock().unwrap_or_else(PoisonError::into_inner);
                match change {
                    Ok(change) => history.see(&change),
                    Err(error) => history.ended = Some(format!("{error:#}")),
                }
            }
        });
        Self { history, reading }
    }

    fn with<T>(&self, look: impl FnOnce(&mut History) -> T) -> T {
        look(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Pods that have a node now.
    pub(crate) fn bound(&self) -> usize {
        self.with(|history| history.bound)
    }

    /// How far it is, for people.
    pub(crate) fn progress(&self) -> String {
        self.with(|history| {
            let pods = history.pods.len();
            let (bound, terms, broken) = (history.bound, history.terms, history.broken_count);
            format!("{bound} of {pods} pods are bound, {terms} terms, {broken} laws broken")
        })
    }

    /// What is to be said in the end.
    pub(crate) async fn judge(self, made: &LoadSummary) -> ChaosReport {
        // What was written last has to arrive.
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.reading.abort();
        self.with(|history| history.judge(made))
    }
}

impl History {
    fn broke(&mut self, law: String) {
        self.broken_count += 1;
        if self.broken.len() < TOLD_MAX {
            self.broken.push(law);
        }
    }

    fn see(&mut self, change: &Change) {
        self.revisions += 1;
        self.last_revision = change.revision;
        if let Some(name) = change.key.strip_prefix(NODES) {
            let node = change.value.as_ref().map(|node| amounts(&node["status"]["allocatable"]));
            match node {
                Some(holds) => self.nodes.insert(name.to_owned(), holds),
                None => self.nodes.remove(name),
            };
        } else if change.key == LEASE {
            self.see_lease(change.value.as_ref().unwrap_or(&Value::Null));
        } else if change.key.starts_with(PODS) {
            self.see_pod(change);
        }
    }

    fn see_lease(&mut self, lease: &Value) {
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        if holder != self.holder && !holder.is_empty() {
            self.terms += 1;
        }
        self.holder = holder.to_owned();
        let text = lease["metadata"]["annotations"]["berth.dev/binding"].as_str().unwrap_or("{}");
        let by_namespace: Value = serde_json::from_str(text).unwrap_or_default();
        let namespaces = by_namespace.as_object().into_iter().flat_map(|all| all.values());
        let uids = namespaces.filter_map(Value::as_object).flat_map(|pods| pods.keys().cloned());
        self.announced = uids.collect();
    }

    fn see_pod(&mut self, change: &Change) {
        let Some(pod) = &change.value else {
            let gone = change.key.rsplit('/').next().unwrap_or_default();
            let uid =
                self.pods.iter().find(|(_, pod)| pod.name == gone).map(|(uid, _)| uid.clone());
            if let Some(pod) = uid.and_then(|uid| self.pods.remove(&uid)) {
                self.leave(&pod);
            }
            return;
        };
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let node = pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty());
        let node = node.map(str::to_owned);
        let before = self.pods.get(&uid).and_then(|pod| pod.node.clone());
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let revision = change.revision;
        if before.is_some() && before != node {
            self.broke(format!("revision {revision}: {name} moved from {before:?} to {node:?}"));
        }
        let known = Pod { name: name.clone(), node: node.clone(), asks: asks(pod) };
        if let (None, Some(node)) = (&before, &node) {
            self.bindings += 1;
            if !self.announced.contains(&uid) {
                let holder = self.holder.clone();
                self.broke(format!(
                    "revision {revision}: {name} was bound without being announced by {holder}"
                ));
            }
            self.enter(&known, node, revision);
        }
        self.pods.insert(uid, known);
    }

    fn enter(&mut self, pod: &Pod, node: &str, revision: u64) {
        self.bound += 1;
        let Some(holds) = self.nodes.get(node) else {
            return self.broke(format!("revision {revision}: {} is on no node {node}", pod.name));
        };
        let used = self.used.entry(node.to_owned()).or_default();
        let mut over = Vec::new();
        for (resource, amount) in &pod.asks {
            let sum = used.entry(resource.clone()).or_default();
            *sum += amount;
            let most = holds.get(resource).copied().unwrap_or(0);
            if *sum > most {
                over.push(format!("{resource}: {sum} of {most}"));
            }
        }
        if !over.is_empty() {
            let over = over.join(", ");
            self.broke(format!("revision {revision}: with {} {node} has {over}", pod.name));
        }
    }

    fn leave(&mut self, pod: &Pod) {
        let Some(node) = &pod.node else { return };
        self.bound = self.bound.saturating_sub(1);
        let Some(used) = self.used.get_mut(node) else { return };
        for (resource, amount) in &pod.asks {
            if let Some(sum) = used.get_mut(resource) {
                *sum = sum.saturating_sub(*amount);
            }
        }
    }

    fn judge(&mut self, made: &LoadSummary) -> ChaosReport {
        if let Some(end) = self.ended.take() {
            self.broke(format!("the history cannot be judged: {end}"));
        }
        let there: HashMap<String, Option<String>> =
            self.pods.values().map(|pod| (pod.name.clone(), pod.node.clone())).collect();
        for name in made.left.keys() {
            match there.get(name) {
                None => self.broke(format!("{name} is lost")),
                Some(None) => self.broke(format!("{name} has no node in the end")),
                Some(Some(_)) => {}
            }
        }
        for name in there.keys().filter(|name| !made.left.contains_key(*name)) {
            self.broke(format!("nobody made {name}, or it was deleted"));
        }
        let facts = format!(
            "{} changes up to revision {}; {} terms of leaders; {} bindings; {} pods made, \
             {} deleted, {} bound in the end",
            self.revisions,
            self.last_revision,
            self.terms,
            self.bindings,
            made.left.len() + made.deleted.len(),
            made.deleted.len(),
            self.bound,
        );
        ChaosReport {
            broken: self.broken.clone(),
            broken_count: self.broken_count,
            facts,
            bindings: self.bindings as u64,
        }
    }
}

/// What a pod asks for, and one place.
fn asks(pod: &Value) -> Amounts {
    let mut sum = Amounts::from([("pods".to_owned(), 1)]);
    for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
        for (resource, amount) in amounts(&container["resources"]["requests"]) {
            *sum.entry(resource).or_default() += amount;
        }
    }
    sum
}

fn amounts(list: &Value) -> Amounts {
    let all = list.as_object().into_iter().flatten();
    all.map(|(name, text)| (name.clone(), amount(name, text.as_str().unwrap_or_default())))
        .collect()
}

/// A quantity in the few forms that are used here. One that cannot be read is more than any node has.
fn amount(resource: &str, text: &str) -> u64 {
    let scale = if resource == "cpu" { 1_000 } else { 1 };
    let (digits, factor) = match text {
        _ if text.ends_with("Gi") => (text.trim_end_matches("Gi"), 1 << 30),
        _ if text.ends_with('m') => (text.trim_end_matches('m'), 1),
        _ => (text, scale),
    };
    digits.parse::<u64>().map_or(u64::MAX / 1_000_000, |number| number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(history: &mut History) {
        let shown = json!({ "status": { "allocatable": { "nvidia.com/gpu": "1", "pods": "9" } } });
        let key = format!("{NODES}n");
        history.see(&Change { revision: 1, key, value: Some(shown) });
    }

    fn announce(history: &mut History, uid: &str) {
        let list = format!(r#"{{"load":{{"{uid}":"x"}}}}"#);
        let lease = json!({ "metadata": { "annotations": { "berth.dev/binding": list } } });
        history.see(&Change { revision: 2, key: LEASE.to_owned(), value: Some(lease) });
    }

    fn pod(history: &mut History, name: &str, on: Option<&str>) {
        let requests = json!({ "nvidia.com/gpu": "1" });
        let value = json!({
            "metadata": { "name": name, "uid": name },
            "spec": { "nodeName": on, "containers": [{ "resources": { "requests": requests } }] },
        });
        let key = format!("{PODS}load/{name}");
        history.see(&Change { revision: 3, key, value: Some(value) });
    }

    fn broken(act: impl FnOnce(&mut History)) -> Vec<String> {
        let mut history = History::default();
        node(&mut history);
        act(&mut history);
        history.broken
    }

    #[test]
    fn what_is_in_order_breaks_no_law() {
        let found = broken(|history| {
            pod(history, "a", None);
            announce(history, "a");
            pod(history, "a", Some("n"));
            pod(history, "a", Some("n"));
            let key = format!("{PODS}load/a");
            history.see(&Change { revision: 4, key, value: None });
            announce(history, "b");
            pod(history, "b", Some("n"));
        });
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn each_law_can_be_broken() {
        let twice = broken(|history| {
            announce(history, "a");
            pod(history, "a", Some("n"));
            announce(history, "b");
            pod(history, "b", Some("n"));
        });
        assert!(twice[0].contains("nvidia.com/gpu: 2 of 1"), "{twice:?}");
        let moved = broken(|history| {
            announce(history, "a");
            pod(history, "a", Some("n"));
            pod(history, "a", Some("m"));
        });
        assert!(moved[0].contains("moved"), "{moved:?}");
        let unannounced = broken(|history| pod(history, "a", Some("n")));
        assert!(unannounced[0].contains("without being announced"), "{unannounced:?}");
        let mut history = History::default();
        let made = LoadSummary { left: [("a".to_owned(), 1)].into(), ..LoadSummary::default() };
        assert!(history.judge(&made).broken[0].contains("lost"));
        pod(&mut history, "a", None);
        let mut history = History { pods: history.pods, ..History::default() };
        assert!(history.judge(&made).broken[0].contains("no node"));
    }
}

//! Which pods count against the quotas of a namespace, and which are refused.
//!
//! The answer does not depend on the order of events: placed pods always count, as in a cluster
//! whose quota was lowered; pending pods count in the order of creation if every quota that applies
//! has room, as if they had been created one after the other. Others are refused until something
//! changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::policy::Quota;
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceList;
use berth_model::spec::PodSpec;

use super::rules::{Life, Refusal, add, check, counts, limited, usage};

/// A pod's position in the order of creation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival {
    pub created_at_ms: i64,
    pub uid: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPlacement {
    Placed,
    Pending,
}

#[derive(Clone, Debug)]
struct Entry {
    spec: Arc<PodSpec>,
    usage: ResourceList,
    placement: PodPlacement,
    uncounted_at_ms: Option<i64>,
    refusal: Option<Refusal>,
}

#[derive(Clone, Debug)]
struct Account {
    quota: Quota,
    /// By pods that are not refused.
    used: ResourceList,
}

#[derive(Clone, Debug, Default)]
struct NamespaceUsage {
    accounts: BTreeMap<Arc<str>, Account>,
    pods: BTreeMap<Arrival, Entry>,
    refused: usize,
}

/// When a pod stops counting, its namespace, and the pod.
pub type Expiry = (i64, Arc<str>, Arrival);

#[derive(Clone, Debug, Default)]
pub struct QuotaLedger {
    books: BTreeMap<Arc<str>, NamespaceUsage>,
    /// Pods that have yet to stop counting, in order of time.
    expiring: BTreeSet<Expiry>,
    /// UIDs of pods whose refusal began or ended.
    changed: BTreeSet<Arc<str>>,
}

impl QuotaLedger {
    /// Whether a namespace has quotas, so that its pods must be set.
    pub fn covers(&self, namespace: &str) -> bool {
        self.books.contains_key(namespace)
    }

    pub fn is_empty(&self) -> bool {
        self.books.is_empty()
    }

    /// Sets a quota. After the first one of a namespace, its pods must be set.
    pub fn set_quota(&mut self, quota: Quota) {
        let book = self.books.entry(quota.namespace.clone()).or_default();
        let account = Account { used: ResourceList::new(), quota };
        book.accounts.insert(account.quota.name.clone(), account);
        book.recount(&mut self.changed);
    }

    pub fn remove_quota(&mut self, namespace: &Arc<str>, name: &str) {
        let Some(book) = self.books.get_mut(namespace) else { return };
        book.accounts.remove(name);
        book.recount(&mut self.changed);
        if book.accounts.is_empty() {
            self.books.remove(namespace);
            self.expiring.retain(|(_, of, _)| of != namespace);
        }
    }

    /// Sets a pod. It stops counting after `uncounted_at_ms`, if given.
    pub fn set_pod(
        &mut self,
        arrival: Arrival,
        spec: &Arc<PodSpec>,
        placement: PodPlacement,
        uncounted_at_ms: Option<i64>,
    ) {
        let namespace = &spec.namespace;
        let Some(book) = self.books.get_mut(namespace) else { return };
        if let Some(at) = uncounted_at_ms {
            self.expiring.insert((at, namespace.clone(), arrival.clone()));
        }
        let usage = usage(&spec.pod, Life::Live);
        let entry = Entry { spec: spec.clone(), usage, placement, uncounted_at_ms, refusal: None };
        book.set(arrival, entry, &mut self.changed);
    }

    pub fn remove_pod(&mut self, namespace: &str, arrival: &Arrival) {
        let Some(book) = self.books.get_mut(namespace) else { return };
        let Some(entry) = book.pods.remove(arrival) else { return };
        if entry.refusal.is_some() {
            book.refused -= 1;
            flip(&mut self.changed, &arrival.uid);
        } else if book.refused > 0 {
            book.recount(&mut self.changed);
        } else {
            book.uncount(&entry);
        }
    }

    /// Stops counting pods that should be gone by now.
    pub fn expire(&mut self, now_ms: i64) {
        while let Some((at, namespace, arrival)) = self.expiring.first().cloned()
            && at < now_ms
        {
            self.expiring.pop_first();
            let Some(book) = self.books.get_mut(&namespace) else { continue };
            if let Some(entry) = book.pods.get_mut(&arrival)
                && entry.uncounted_at_ms == Some(at)
            {
                entry.usage = usage(&entry.spec.pod, Life::Ended);
                book.recount(&mut self.changed);
            }
        }
    }

    /// Pods that have yet to stop counting; all others have stopped.
    pub fn expiring(&self) -> &BTreeSet<Expiry> {
        &self.expiring
    }

    /// Restores `expiring` of a checkpoint, and with it the usage of pods.
    pub fn set_expiring(&mut self, expiring: BTreeSet<Expiry>) {
        if self.expiring == expiring {
            return;
        }
        self.expiring = expiring;
        for (namespace, book) in &mut self.books {
            for (arrival, entry) in &mut book.pods {
                let Some(at) = entry.uncounted_at_ms else { continue };
                let counts = self.expiring.contains(&(at, namespace.clone(), arrival.clone()));
                let life = if counts { Life::Live } else { Life::Ended };
                entry.usage = usage(&entry.spec.pod, life);
            }
            book.recount(&mut self.changed);
        }
    }

    /// Why a pod is refused; `None` if it is not, or is unknown.
    pub fn refusal(&self, namespace: &str, arrival: &Arrival) -> Option<&Refusal> {
        self.books.get(namespace)?.pods.get(arrival)?.refusal.as_ref()
    }

    /// Usage of a quota by pods that are not refused.
    pub fn used(&self, namespace: &str, name: &str) -> Option<&ResourceList> {
        Some(&self.books.get(namespace)?.accounts.get(name)?.used)
    }

    /// UIDs of pods whose refusal began or ended since `take_changed`.
    pub fn changed(&self) -> &BTreeSet<Arc<str>> {
        &self.changed
    }

    pub fn set_changed(&mut self, changed: BTreeSet<Arc<str>>) {
        self.changed = changed;
    }

    pub fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }
}

/// A second change restores the original state.
fn flip(changed: &mut BTreeSet<Arc<str>>, uid: &Arc<str>) {
    if !changed.remove(uid) {
        changed.insert(uid.clone());
    }
}

impl NamespaceUsage {
    fn check(&self, entry: &Entry) -> Result<(), Refusal> {
        let quotas = self.accounts.values().map(|account| (&account.quota, &account.used));
        check(quotas, &entry.spec, &entry.usage)
    }

    fn count(&mut self, entry: &Entry) {
        for account in self.accounts.values_mut() {
            if counts(&account.quota, &entry.spec) {
                add(&account.quota, &mut account.used, &entry.usage);
            }
        }
    }

    fn uncount(&mut self, entry: &Entry) {
        for account in self.accounts.values_mut() {
            if !counts(&account.quota, &entry.spec) {
                continue;
            }
            for (name, amount) in limited(&account.quota, &entry.usage) {
                let used = account.used.get(&name).copied().unwrap_or(Quantity::ZERO);
                account.used.insert(name, used.saturating_sub(amount));
            }
        }
    }

    fn set(&mut self, arrival: Arrival, mut entry: Entry, changed: &mut BTreeSet<Arc<str>>) {
        let before = self.pods.remove(&arrival);
        if let Some(before) = &before {
            let same = before.spec == entry.spec && before.uncounted_at_ms == entry.uncounted_at_ms;
            let kept = before.refusal.is_none() && same;
            if kept && before.placement != entry.placement {
                // A pending pod that counted goes on counting. A placed one may have been beyond
                // the cap.
                let settled = entry.placement == PodPlacement::Placed;
                self.pods.insert(arrival, entry);
                if !settled {
                    self.recount(changed);
                }
                return;
            }
            if same && before.placement == entry.placement {
                self.pods.insert(arrival, Entry { usage: before.usage.clone(), ..before.clone() });
                return;
            }
            self.pods.insert(arrival, Entry { refusal: before.refusal.clone(), ..entry });
            return self.recount(changed);
        }
        let last = self.pods.last_key_value().is_none_or(|(last, _)| *last < arrival);
        let fits = self.check(&entry);
        if entry.placement == PodPlacement::Pending && (last || self.refused == 0 && fits.is_ok()) {
            match fits {
                Ok(()) => self.count(&entry),
                Err(refusal) => {
                    self.refused += 1;
                    flip(changed, &arrival.uid);
                    entry.refusal = Some(refusal);
                }
            }
            self.pods.insert(arrival, entry);
            return;
        }
        let harmless = self.refused == 0 && fits.is_ok();
        if harmless {
            self.count(&entry);
        }
        self.pods.insert(arrival, entry);
        if !harmless {
            self.recount(changed);
        }
    }

    /// Counts all pods again: placed ones, then in the order of creation.
    fn recount(&mut self, changed: &mut BTreeSet<Arc<str>>) {
        for account in self.accounts.values_mut() {
            let names = account.quota.hard.keys();
            account.used = names.map(|name| (name.clone(), Quantity::ZERO)).collect();
        }
        self.refused = 0;
        let mut pods = std::mem::take(&mut self.pods);
        for entry in pods.values().filter(|entry| entry.placement == PodPlacement::Placed) {
            self.count(entry);
        }
        for (arrival, entry) in &mut pods {
            let refusal = match entry.placement {
                PodPlacement::Placed => None,
                PodPlacement::Pending => self.check(entry).err(),
            };
            match (&refusal, entry.placement) {
                (None, PodPlacement::Pending) => self.count(entry),
                (Some(_), _) => self.refused += 1,
                _ => {}
            }
            if refusal.is_some() != entry.refusal.is_some() {
                flip(changed, &arrival.uid);
            }
            entry.refusal = refusal;
        }
        self.pods = pods;
    }
}

//! The books of namespaces with quotas: who counts, and who is beyond the cap.
//!
//! Owns the rule that makes the answer the same whatever the order of events: pods that have their
//! place count always, as they do in a cluster whose quota was lowered; of those that wait, each
//! counts in the order of creation if all quotas that count it have room for it, as if they had been
//! created one after the other. Who has no room is refused until something changes. Must not know
//! nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::policy::Quota;
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceList;
use berth_model::spec::PodSpec;

use super::rules::{Life, Refusal, add, check, counts, limited, usage};

/// A pod's place in the order of creation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival {
    /// When it was created.
    pub created_at_ms: i64,
    /// Its UID.
    pub uid: Arc<str>,
}

/// Whether a pod has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// On a node, whoever put it there.
    Placed,
    /// Waiting for one.
    Waiting,
}

#[derive(Clone, Debug)]
struct Entry {
    spec: Arc<PodSpec>,
    usage: ResourceList,
    standing: Standing,
    uncounted_at_ms: Option<i64>,
    refusal: Option<Refusal>,
}

#[derive(Clone, Debug)]
struct Account {
    quota: Quota,
    /// What those use who are not refused.
    used: ResourceList,
}

/// One namespace.
#[derive(Clone, Debug, Default)]
struct Book {
    accounts: BTreeMap<Arc<str>, Account>,
    pods: BTreeMap<Arrival, Entry>,
    refused: usize,
}

/// When a pod stops to count, its namespace, and which it is.
pub type Expiry = (i64, Arc<str>, Arrival);

/// All namespaces that have quotas.
#[derive(Clone, Debug, Default)]
pub struct Books {
    books: BTreeMap<Arc<str>, Book>,
    /// Pods that have yet to stop to count, those first that do first.
    expiring: BTreeSet<Expiry>,
    /// UIDs of pods for which it changed whether they are refused, and not back again.
    changed: BTreeSet<Arc<str>>,
}

impl Books {
    /// Whether a namespace has quotas, so that its pods are to be told.
    pub fn covers(&self, namespace: &str) -> bool {
        self.books.contains_key(namespace)
    }

    /// Whether no namespace has any.
    pub fn is_empty(&self) -> bool {
        self.books.is_empty()
    }

    /// A quota is as given. If it is the first of its namespace, the pods there are to be told next.
    pub fn set_quota(&mut self, quota: Quota) {
        let book = self.books.entry(quota.namespace.clone()).or_default();
        let account = Account { used: ResourceList::new(), quota };
        book.accounts.insert(account.quota.name.clone(), account);
        book.count_anew(&mut self.changed);
    }

    /// There is no such quota.
    pub fn remove_quota(&mut self, namespace: &Arc<str>, name: &str) {
        let Some(book) = self.books.get_mut(namespace) else { return };
        book.accounts.remove(name);
        book.count_anew(&mut self.changed);
        if book.accounts.is_empty() {
            self.books.remove(namespace);
            self.expiring.retain(|(_, of, _)| of != namespace);
        }
    }

    /// A pod is as given. It stops to count after `uncounted_at_ms`, if that is known.
    pub fn set_pod(
        &mut self,
        arrival: Arrival,
        spec: &Arc<PodSpec>,
        standing: Standing,
        uncounted_at_ms: Option<i64>,
    ) {
        let namespace = &spec.namespace;
        let Some(book) = self.books.get_mut(namespace) else { return };
        if let Some(at) = uncounted_at_ms {
            self.expiring.insert((at, namespace.clone(), arrival.clone()));
        }
        let usage = usage(&spec.pod, Life::Live);
        let entry = Entry { spec: spec.clone(), usage, standing, uncounted_at_ms, refusal: None };
        book.set(arrival, entry, &mut self.changed);
    }

    /// There is no such pod any more.
    pub fn remove_pod(&mut self, namespace: &str, arrival: &Arrival) {
        let Some(book) = self.books.get_mut(namespace) else { return };
        let Some(entry) = book.pods.remove(arrival) else { return };
        if entry.refusal.is_some() {
            book.refused -= 1;
            flip(&mut self.changed, &arrival.uid);
        } else if book.refused > 0 {
            book.count_anew(&mut self.changed);
        } else {
            book.uncount(&entry);
        }
    }

    /// Pods that should have gone by now stop to count.
    pub fn tell_time(&mut self, now_ms: i64) {
        while let Some((at, namespace, arrival)) = self.expiring.first().cloned()
            && at < now_ms
        {
            self.expiring.pop_first();
            let Some(book) = self.books.get_mut(&namespace) else { continue };
            if let Some(entry) = book.pods.get_mut(&arrival)
                && entry.uncounted_at_ms == Some(at)
            {
                entry.usage = usage(&entry.spec.pod, Life::Ended);
                book.count_anew(&mut self.changed);
            }
        }
    }

    /// Pods that have yet to stop to count; whoever else was to has done so.
    pub fn expiring(&self) -> &BTreeSet<Expiry> {
        &self.expiring
    }

    /// Lets these be the pods that have yet to stop to count: time is told as far as it was then.
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
            book.count_anew(&mut self.changed);
        }
    }

    /// Why a pod may not be had; `None` if it may, or is not known.
    pub fn refusal(&self, namespace: &str, arrival: &Arrival) -> Option<&Refusal> {
        self.books.get(namespace)?.pods.get(arrival)?.refusal.as_ref()
    }

    /// What is used of a quota, by those who are not refused.
    pub fn used(&self, namespace: &str, name: &str) -> Option<&ResourceList> {
        Some(&self.books.get(namespace)?.accounts.get(name)?.used)
    }

    /// UIDs of pods that are refused now and were not, or the other way round, since this was asked
    /// last.
    pub fn changed(&self) -> &BTreeSet<Arc<str>> {
        &self.changed
    }

    /// Lets these be the pods for which something changed: whatever else did was undone.
    pub fn set_changed(&mut self, changed: BTreeSet<Arc<str>>) {
        self.changed = changed;
    }

    /// The same, which are then not told again.
    pub fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }
}

/// It changed whether a pod is refused; if for the second time, it is as it was.
fn flip(changed: &mut BTreeSet<Arc<str>>, uid: &Arc<str>) {
    if !changed.remove(uid) {
        changed.insert(uid.clone());
    }
}

impl Book {
    /// Whether a pod may be had beside those who count.
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
            if kept && before.standing != entry.standing {
                // Who waited and counted goes on counting. Who had a place may have been beyond the
                // cap, and others before who are not any more.
                let settled = entry.standing == Standing::Placed;
                self.pods.insert(arrival, entry);
                if !settled {
                    self.count_anew(changed);
                }
                return;
            }
            if same && before.standing == entry.standing {
                self.pods.insert(arrival, Entry { usage: before.usage.clone(), ..before.clone() });
                return;
            }
            self.pods.insert(arrival, Entry { refusal: before.refusal.clone(), ..entry });
            return self.count_anew(changed);
        }
        let last = self.pods.last_key_value().is_none_or(|(last, _)| *last < arrival);
        let fits = self.check(&entry);
        if entry.standing == Standing::Waiting && (last || self.refused == 0 && fits.is_ok()) {
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
            self.count_anew(changed);
        }
    }

    /// Counts everybody again: who has a place, and then in the order of creation.
    fn count_anew(&mut self, changed: &mut BTreeSet<Arc<str>>) {
        for account in self.accounts.values_mut() {
            let names = account.quota.hard.keys();
            account.used = names.map(|name| (name.clone(), Quantity::ZERO)).collect();
        }
        self.refused = 0;
        let mut pods = std::mem::take(&mut self.pods);
        for entry in pods.values().filter(|entry| entry.standing == Standing::Placed) {
            self.count(entry);
        }
        for (arrival, entry) in &mut pods {
            let refusal = match entry.standing {
                Standing::Placed => None,
                Standing::Waiting => self.check(entry).err(),
            };
            match (&refusal, entry.standing) {
                (None, Standing::Waiting) => self.count(entry),
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

//! Counts of pods by topology domain, updated as pods come and go.
//!
//! Filters and scores read these counts instead of iterating over pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::affinity::NodeTerm;
use berth_model::label::Labels;
use berth_model::node::Node;
use berth_model::taint::Toleration;
use smallvec::SmallVec;

use crate::class::Class;
use crate::label_index::LabelIndex;
use crate::query::{Namespaces, Query, QuerySide};
use crate::table::{
    Bits, ClassIx, DomainIx, Index, Interner, KeyIx, Lookup, NodeIx, QueryIx, ScopeIx, Slab,
    TallyIx,
};

/// What a term of an existing pod says about incoming pods it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TermKind {
    /// Anti-affinity, required.
    AntiAffinity,
    Affinity,
    /// Preferred, or avoided if the weight is negative.
    Prefer(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Counted {
    /// Pods that the query matches.
    Matching,
    Spread(ScopeIx),
    /// Existing pods with this term.
    WithTerm(TermKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Count {
    pub(crate) query: QueryIx,
    pub(crate) key: KeyIx,
    pub(crate) counted: Counted,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct ScopeRule {
    pub(crate) affinity: Option<(Labels, Option<Vec<NodeTerm>>)>,
    pub(crate) tolerations: Option<Vec<Toleration>>,
    /// Keys that the node must have.
    pub(crate) keys: Vec<KeyIx>,
}

/// Counts by domain. Unlisted domains count 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    by_domain: Lookup<DomainIx, i32>,
    /// Number of domains per nonzero count.
    levels: BTreeMap<i32, u32>,
    pub(crate) total: i64,
}

#[derive(Clone, Debug, Default)]
struct Key {
    /// By node.
    domains: Vec<DomainIx>,
    by_value: Lookup<Arc<str>, DomainIx>,
    members: Slab<DomainIx, Domain>,
}

#[derive(Clone, Debug)]
struct Domain {
    value: Arc<str>,
    nodes: u32,
    some: NodeIx,
}

#[derive(Clone, Debug, Default)]
struct Scope {
    nodes: Bits,
    /// For each key, the number of scope nodes per domain.
    spans: SmallVec<[(KeyIx, Lookup<DomainIx, u32>); 2]>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ClassEntry {
    /// Queries that match it, sorted.
    matched_by: Vec<QueryIx>,
    /// Counts of existing pods with the same terms.
    own_terms: Vec<TallyIx>,
    /// Number of such pods on nodes.
    residents: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    pub(crate) class: ClassIx,
    pub(crate) terminating: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Census {
    keys: Interner<KeyIx, Arc<str>>,
    key_rows: Vec<Key>,
    queries: Interner<QueryIx, Query>,
    /// By query.
    counts_of: Vec<SmallVec<[TallyIx; 2]>>,
    tallies: Interner<TallyIx, Count>,
    tally_rows: Vec<Tally>,
    scopes: Interner<ScopeIx, ScopeRule>,
    scope_rows: Vec<Scope>,
    entry: Vec<ClassEntry>,
    labelled: LabelIndex,
    /// Counts of matching pods that rose from 0 since `take_appeared`.
    appeared: BTreeSet<TallyIx>,
}

impl Tally {
    pub(crate) fn at(&self, domain: DomainIx) -> i32 {
        self.by_domain.get(&domain).copied().unwrap_or(0)
    }

    pub(crate) fn domains(&self) -> impl Iterator<Item = (DomainIx, i32)> {
        self.by_domain.iter().map(|(domain, count)| (*domain, *count))
    }

    fn add(&mut self, domain: DomainIx, change: i32) {
        let before = self.at(domain);
        let after = before + change;
        self.total += i64::from(change);
        if let Some(domains) = self.levels.get_mut(&before) {
            *domains -= 1;
            if *domains == 0 {
                self.levels.remove(&before);
            }
        }
        if after == 0 {
            self.by_domain.remove(&domain);
        } else {
            self.by_domain.insert(domain, after);
            *self.levels.entry(after).or_insert(0) += 1;
        }
    }

    /// The least count over `domains` domains, leaving out one with the count `without`; `None` if
    /// none is left.
    pub(crate) fn least(&self, domains: usize, without: Option<i32>) -> Option<i32> {
        let left = domains - usize::from(without.is_some());
        let of = |level: i32| {
            let all = self.levels.get(&level).copied().unwrap_or(0);
            all - u32::from(level != 0 && without == Some(level))
        };
        let counted: u32 = self.levels.keys().map(|level| of(*level)).sum();
        let zero = (left > counted as usize).then_some(0);
        let lowest = self.levels.keys().copied().find(|level| of(*level) > 0);
        match (zero, lowest) {
            (Some(zero), Some(lowest)) => Some(zero.min(lowest)),
            (zero, lowest) => zero.or(lowest),
        }
    }
}

impl Census {
    /// The tally for `count`, computed from `residents` (all pods on nodes) if it is new.
    pub(crate) fn acquire_tally(
        &mut self,
        count: Count,
        residents: impl Iterator<Item = (NodeIx, Resident)>,
    ) -> TallyIx {
        let (at, new) = self.tallies.acquire(count);
        if !new {
            return at;
        }
        self.queries.retain(count.query);
        self.keys.retain(count.key);
        if let Counted::Spread(scope) = count.counted {
            self.scopes.retain(scope);
            self.span(scope, count.key);
        }
        set_row(&mut self.tally_rows, at, Tally::default());
        self.counts_of[count.query.at()].push(at);
        let matching = |entry: &ClassEntry| {
            entry.residents > 0 && entry.matched_by.binary_search(&count.query).is_ok()
        };
        let mut classes = self.classes_for(count.query);
        if !matches!(count.counted, Counted::WithTerm(_))
            && classes.any(|class| self.entry.get(class.at()).is_some_and(matching))
        {
            drop(classes);
            for (node, resident) in residents {
                if self.matches(count.query, resident.class) {
                    self.add_to(at, node, resident, 1);
                }
            }
        }
        at
    }

    pub(crate) fn release_tally(&mut self, at: TallyIx) {
        let count = self.tallies[at];
        if !self.tallies.release(at) {
            return;
        }
        self.counts_of[count.query.at()].retain(|one| *one != at);
        self.tally_rows[at.at()] = Tally::default();
        self.release_query(count.query);
        self.release_key(count.key);
        if let Counted::Spread(scope) = count.counted {
            self.release_scope(scope);
        }
    }

    fn classes_for(&self, query: QueryIx) -> Box<dyn Iterator<Item = ClassIx> + '_> {
        match self.labelled.classes_for(query) {
            Some(classes) => Box::new(classes),
            None => Box::new((0..self.entry.len()).map(ClassIx::new)),
        }
    }

    pub(crate) fn acquire_query(
        &mut self,
        query: Query,
        namespaces: &Namespaces,
        classes: &Slab<ClassIx, Class>,
    ) -> QueryIx {
        let (at, new) = self.queries.acquire(query);
        if new {
            set_row(&mut self.counts_of, at, SmallVec::new());
            self.labelled.add_query(at, &self.queries[at]);
            let query = &self.queries[at];
            let matching = |class: &ClassIx| {
                classes.get(*class).is_some_and(|row| {
                    query.matches(&row.spec.namespace, &row.spec.labels, namespaces)
                })
            };
            let matching: Vec<ClassIx> = self.classes_for(at).filter(matching).collect();
            for class in matching {
                let matched_by = &mut self.entry[class.at()].matched_by;
                if let Err(place) = matched_by.binary_search(&at) {
                    matched_by.insert(place, at);
                }
            }
        }
        at
    }

    pub(crate) fn retain_query(&mut self, at: QueryIx) {
        self.queries.retain(at);
    }

    pub(crate) fn uses_namespace_labels(&self) -> bool {
        self.queries.iter().any(|(_, query)| query.uses_namespace_labels())
    }

    /// Matches every query with every class again; no pod may be counted meanwhile.
    pub(crate) fn rematch<'a>(
        &mut self,
        namespaces: &Namespaces,
        classes: impl Iterator<Item = (ClassIx, &'a str, &'a Labels)>,
    ) {
        for (class, namespace, labels) in classes {
            self.entry[class.at()].matched_by =
                self.matching_queries(namespace, labels, namespaces);
        }
    }

    pub(crate) fn release_query(&mut self, at: QueryIx) {
        if self.queries.release(at) {
            let classes: Vec<ClassIx> = self.classes_for(at).collect();
            for class in classes {
                let matched_by = &mut self.entry[class.at()].matched_by;
                if let Ok(place) = matched_by.binary_search(&at) {
                    matched_by.remove(place);
                }
            }
            self.labelled.remove_query(at);
        }
    }

    pub(crate) fn acquire_key<'a>(
        &mut self,
        name: &Arc<str>,
        nodes: impl Iterator<Item = (NodeIx, &'a Node)>,
    ) -> KeyIx {
        let (at, new) = self.keys.acquire(name.clone());
        if new {
            set_row(&mut self.key_rows, at, Key::default());
            for (node, object) in nodes {
                self.key_rows[at.at()].set(node, object.labels.get(name));
            }
        }
        at
    }

    pub(crate) fn retain_key(&mut self, at: KeyIx) {
        self.keys.retain(at);
    }

    pub(crate) fn release_key(&mut self, at: KeyIx) {
        if self.keys.release(at) {
            self.key_rows[at.at()] = Key::default();
        }
    }

    pub(crate) fn acquire_scope<'a>(
        &mut self,
        rule: ScopeRule,
        nodes: impl Iterator<Item = (NodeIx, &'a Node)>,
    ) -> ScopeIx {
        let keys = rule.keys.clone();
        let (at, new) = self.scopes.acquire(rule);
        if new {
            keys.iter().for_each(|key| self.keys.retain(*key));
            set_row(&mut self.scope_rows, at, Scope::default());
            for (node, object) in nodes {
                let member = self.in_scope(at, node, object);
                self.scope_rows[at.at()].nodes.set(node, member);
            }
        }
        at
    }

    pub(crate) fn release_scope(&mut self, at: ScopeIx) {
        let keys = self.scopes[at].keys.clone();
        if self.scopes.release(at) {
            self.scope_rows[at.at()] = Scope::default();
            keys.into_iter().for_each(|key| self.release_key(key));
        }
    }

    fn in_scope(&self, at: ScopeIx, node: NodeIx, object: &Node) -> bool {
        let rule = &self.scopes[at];
        rule.keys.iter().all(|key| self.domain(*key, node).exists())
            && rule.affinity.as_ref().is_none_or(|(selector, required)| {
                object.labels.contains_all(selector)
                    && required
                        .as_ref()
                        .is_none_or(|terms| terms.iter().any(|term| term.matches(object)))
            })
            && rule.tolerations.as_ref().is_none_or(|tolerations| {
                object
                    .taints
                    .iter()
                    .filter(|taint| taint.effect.is_hard())
                    .all(|taint| tolerations.iter().any(|toleration| toleration.tolerates(taint)))
            })
    }

    /// Starts counting the scope's nodes by the domains of `key`.
    fn span(&mut self, scope: ScopeIx, key: KeyIx) {
        let row = &self.scope_rows[scope.at()];
        if row.spans.iter().any(|(one, _)| *one == key) {
            return;
        }
        let mut span: Lookup<DomainIx, u32> = Lookup::default();
        for (at, domain) in self.key_rows[key.at()].domains.iter().enumerate() {
            if domain.exists() && row.nodes.contains(NodeIx::new(at)) {
                *span.entry(*domain).or_insert(0) += 1;
            }
        }
        self.scope_rows[scope.at()].spans.push((key, span));
    }

    /// Number of domains with a node in the tally's scope.
    pub(crate) fn spread_domains(&self, tally: TallyIx) -> usize {
        let count = self.tallies[tally];
        let Counted::Spread(scope) = count.counted else { return 0 };
        let spans = &self.scope_rows[scope.at()].spans;
        spans.iter().find(|(key, _)| *key == count.key).map_or(0, |(_, span)| span.len())
    }

    pub(crate) fn counts_node(&self, tally: TallyIx, node: NodeIx) -> bool {
        match self.tallies[tally].counted {
            Counted::Spread(scope) => self.scope_rows[scope.at()].nodes.contains(node),
            _ => true,
        }
    }

    pub(crate) fn tally(&self, at: TallyIx) -> &Tally {
        &self.tally_rows[at.at()]
    }

    pub(crate) fn count(&self, at: TallyIx) -> Count {
        self.tallies[at]
    }

    pub(crate) fn query(&self, at: QueryIx) -> &Query {
        &self.queries[at]
    }

    pub(crate) fn domain(&self, key: KeyIx, node: NodeIx) -> DomainIx {
        self.key_rows[key.at()].domains.get(node.at()).copied().unwrap_or(DomainIx::NONE)
    }

    pub(crate) fn domain_count(&self, key: KeyIx) -> usize {
        self.key_rows[key.at()].members.len()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = (KeyIx, &Arc<str>)> {
        self.keys.iter()
    }

    pub(crate) fn key_references(&self, key: KeyIx) -> u32 {
        self.keys.references(key)
    }

    pub(crate) fn key_name(&self, key: KeyIx) -> &Arc<str> {
        &self.keys[key]
    }

    pub(crate) fn domain_name(&self, key: KeyIx, domain: DomainIx) -> Option<&Arc<str>> {
        self.key_rows[key.at()].members.get(domain).map(|domain| &domain.value)
    }

    /// The node of a domain that has only one.
    pub(crate) fn some_node(&self, key: KeyIx, domain: DomainIx) -> Option<NodeIx> {
        let domain = self.key_rows[key.at()].members.get(domain)?;
        (domain.nodes == 1).then_some(domain.some)
    }

    pub(crate) fn matches(&self, query: QueryIx, class: ClassIx) -> bool {
        self.entry
            .get(class.at())
            .is_some_and(|entry| entry.matched_by.binary_search(&query).is_ok())
    }

    pub(crate) fn terms_about(&self, class: ClassIx) -> impl Iterator<Item = (TallyIx, TermKind)> {
        let matched_by = self.entry.get(class.at()).map_or(&[][..], |entry| &entry.matched_by);
        let resident =
            matched_by.iter().filter(|at| self.queries[**at].side == QuerySide::Existing);
        resident.flat_map(|at| &self.counts_of[at.at()]).filter_map(|tally| {
            match self.tallies[*tally].counted {
                Counted::WithTerm(claim) => Some((*tally, claim)),
                _ => None,
            }
        })
    }

    pub(crate) fn term_count(&self, class: ClassIx, tally: TallyIx) -> i32 {
        let own_terms = self.entry.get(class.at()).map_or(&[][..], |entry| &entry.own_terms);
        own_terms.iter().filter(|one| **one == tally).count() as i32
    }

    pub(crate) fn anti_affinity_terms(&self, class: ClassIx) -> impl Iterator<Item = TallyIx> {
        let own_terms = self.entry.get(class.at()).map_or(&[][..], |entry| &entry.own_terms);
        let refuses = |tally: &&TallyIx| {
            self.tallies[**tally].counted == Counted::WithTerm(TermKind::AntiAffinity)
        };
        own_terms.iter().filter(refuses).copied()
    }

    pub(crate) fn add_class(
        &mut self,
        class: ClassIx,
        namespace: &str,
        labels: &Labels,
        namespaces: &Namespaces,
    ) {
        let matched_by = self.matching_queries(namespace, labels, namespaces);
        set_row(
            &mut self.entry,
            class,
            ClassEntry { matched_by, own_terms: Vec::new(), residents: 0 },
        );
        self.labelled.add_class(class, labels);
    }

    /// The queries that match such pods, sorted.
    fn matching_queries(
        &self,
        namespace: &str,
        labels: &Labels,
        namespaces: &Namespaces,
    ) -> Vec<QueryIx> {
        let mut queries = self.labelled.queries_for(labels);
        queries.retain(|at| self.queries[*at].matches(namespace, labels, namespaces));
        queries
    }

    pub(crate) fn set_own_terms(&mut self, class: ClassIx, own_terms: Vec<TallyIx>) {
        self.entry[class.at()].own_terms = own_terms;
    }

    pub(crate) fn remove_class(&mut self, class: ClassIx, labels: &Labels) -> Vec<TallyIx> {
        self.labelled.remove_class(class, labels);
        std::mem::take(&mut self.entry[class.at()]).own_terms
    }

    /// Counts a pod as added to a node (`change` 1) or removed (-1).
    pub(crate) fn move_pod(&mut self, node: NodeIx, resident: Resident, change: i32) {
        let Some(entry) = self.entry.get_mut(resident.class.at()) else { return };
        let mut entry = std::mem::take(entry);
        entry.residents = entry.residents.saturating_add_signed(change);
        for query in &entry.matched_by {
            for place in 0..self.counts_of[query.at()].len() {
                let tally = self.counts_of[query.at()][place];
                if !matches!(self.tallies[tally].counted, Counted::WithTerm(_)) {
                    self.add_to(tally, node, resident, change);
                }
            }
        }
        for tally in &entry.own_terms {
            self.add_to(*tally, node, resident, change);
        }
        self.entry[resident.class.at()] = entry;
    }

    fn add_to(&mut self, tally: TallyIx, node: NodeIx, resident: Resident, change: i32) {
        let count = self.tallies[tally];
        let domain = self.domain(count.key, node);
        let counts = match count.counted {
            Counted::Matching | Counted::WithTerm(_) => true,
            Counted::Spread(scope) => {
                !resident.terminating
                    && self.scope_rows[scope.at()].nodes.contains(node)
                    && !self.queries[count.query].selects_all()
            }
        };
        if domain.exists() && counts {
            let row = &mut self.tally_rows[tally.at()];
            let was_empty = row.total == 0;
            row.add(domain, change);
            if was_empty && count.counted == Counted::Matching {
                self.appeared.insert(tally);
            }
        }
    }

    /// Counts of matching pods that rose from 0 since the last call.
    pub(crate) fn take_appeared(&mut self) -> BTreeSet<TallyIx> {
        std::mem::take(&mut self.appeared)
    }

    pub(crate) fn add_node(&mut self, node: NodeIx, object: &Node) {
        for (key, name) in self.keys.iter() {
            self.key_rows[key.at()].set(node, object.labels.get(name));
        }
        let members: Vec<ScopeIx> = self
            .scopes
            .iter()
            .map(|(scope, _)| scope)
            .filter(|scope| self.in_scope(*scope, node, object))
            .collect();
        for scope in members {
            self.move_in_scope(scope, node, true);
        }
    }

    /// The node must have no pods.
    pub(crate) fn remove_node(&mut self, node: NodeIx) {
        let scopes: Vec<ScopeIx> = self.scopes.iter().map(|(scope, _)| scope).collect();
        for scope in scopes {
            if self.scope_rows[scope.at()].nodes.contains(node) {
                self.move_in_scope(scope, node, false);
            }
        }
        for (key, _) in self.keys.iter() {
            self.key_rows[key.at()].set(node, None);
        }
    }

    fn move_in_scope(&mut self, scope: ScopeIx, node: NodeIx, member: bool) {
        let row = &mut self.scope_rows[scope.at()];
        row.nodes.set(node, member);
        for (key, span) in &mut row.spans {
            let domain = self.key_rows[key.at()].domains.get(node.at()).copied();
            let Some(domain) = domain.filter(|domain| domain.exists()) else { continue };
            let nodes = span.entry(domain).or_insert(0);
            *nodes = if member { *nodes + 1 } else { *nodes - 1 };
            if *nodes == 0 {
                span.remove(&domain);
            }
        }
    }
}

impl Key {
    fn set(&mut self, node: NodeIx, value: Option<&Arc<str>>) {
        if node.at() >= self.domains.len() {
            self.domains.resize(node.at() + 1, DomainIx::NONE);
        }
        let before = std::mem::replace(&mut self.domains[node.at()], DomainIx::NONE);
        if let Some(domain) = self.members.get_mut(before) {
            domain.nodes -= 1;
            if domain.nodes == 0 {
                self.by_value.remove(&domain.value);
                self.members.remove(before);
            } else if domain.some == node {
                let other = self.domains.iter().position(|one| *one == before);
                domain.some = other.map_or(node, NodeIx::new);
            }
        }
        let Some(value) = value else { return };
        let domain = match self.by_value.get(value) {
            Some(domain) => *domain,
            None => {
                let new = Domain { value: value.clone(), nodes: 0, some: node };
                let domain = self.members.insert(new);
                self.by_value.insert(value.clone(), domain);
                domain
            }
        };
        self.members[domain].nodes += 1;
        self.domains[node.at()] = domain;
    }
}

/// Sets a row, filling up with empty ones before it.
fn set_row<T: Default>(rows: &mut Vec<T>, at: impl Index, row: T) {
    if at.at() >= rows.len() {
        rows.resize_with(at.at() + 1, T::default);
    }
    rows[at.at()] = row;
}

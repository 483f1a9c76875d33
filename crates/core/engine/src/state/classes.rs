//! Classes of pods: references from pods to classes, and from classes to tallies.

use std::sync::Arc;

use berth_model::affinity::{NodeInclusionPolicy, PodTerm, SpreadConstraint, WhenUnsatisfiable};
use berth_model::label::Selector;
use berth_model::spec::PodSpec;

use super::State;
use crate::census::{Count, Counted, TermKind};
use crate::class::{AffinityRule, Class, HOSTNAME, Rules, SpreadRule};
use crate::query::{Query, QuerySide};
use crate::shape::ShapeRef;
use crate::table::{ClassIx, KeyIx, QueryIx, TallyIx};

const ZONE: &str = "topology.kubernetes.io/zone";
const SERVICE: &str = "Service";

impl State {
    /// The class of a spec, with one more reference.
    pub(crate) fn acquire_class(&mut self, spec: &Arc<PodSpec>) -> ClassIx {
        let pointer = Arc::as_ptr(spec) as usize;
        if let Some(at) = self.class_pointers.get(&pointer) {
            self.class_specs.retain(*at);
            return *at;
        }
        let (at, new) = self.class_specs.acquire(spec.clone());
        if !new {
            return at;
        }
        self.class_pointers.insert(pointer, at);
        let mut class = Class::new(spec.clone(), &mut self.resources);
        class.team_charge = self.team_charge(spec);
        let row = self.class_rows.insert(class);
        debug_assert_eq!(row, at, "both tables give the same numbers");
        self.census.add_class(at, &spec.namespace, &spec.labels, &self.namespaces);
        if !spec.pod_affinity.is_empty() {
            let own_terms = self.existing_tallies(at);
            self.census.set_own_terms(at, own_terms);
        }
        at
    }

    pub(crate) fn reclass_tenants(&mut self) {
        let classes: Vec<ClassIx> = self.class_rows.indexes().collect();
        for at in classes {
            let spec = self.class_rows[at].spec.clone();
            self.class_rows[at].team_charge = self.team_charge(&spec);
        }
    }

    pub(crate) fn release_class(&mut self, at: ClassIx) {
        let pointer = Arc::as_ptr(&self.class_specs[at]) as usize;
        if !self.class_specs.release(at) {
            return;
        }
        self.class_pointers.remove(&pointer);
        let own_terms = self.census.remove_class(at, &self.class_rows[at].spec.labels);
        self.drop_rules(at);
        self.class_rows.remove(at);
        for tally in own_terms {
            self.census.release_tally(tally);
        }
    }

    pub(crate) fn drop_rules(&mut self, at: ClassIx) {
        let rules = self.class_rows[at].rules.take();
        for tally in rules.iter().flat_map(|rules| rules.tallies()) {
            self.census.release_tally(tally);
        }
    }

    pub(crate) fn set_shape(&mut self, at: ClassIx, shape: ShapeRef) {
        self.class_rows[at].shape = Some(shape);
    }

    pub(super) fn forget_shapes(&mut self) {
        for at in self.class_rows.indexes().collect::<Vec<ClassIx>>() {
            self.class_rows[at].shape = None;
        }
    }

    /// The tallies for incoming pods of this class, created if necessary.
    pub(crate) fn rules(&mut self, at: ClassIx) -> Arc<Rules> {
        if let Some(rules) = &self.class_rows[at].rules {
            return rules.clone();
        }
        let spec = self.class_rows[at].spec.clone();
        let rules = if spec.spread.is_empty() && spec.pod_affinity.is_empty() {
            Rules::default()
        } else {
            Rules {
                hard_spread: self.spread_rules(at, true),
                soft_spread: self.spread_rules(at, false),
                affinity: self.affinity_rule(at, &spec),
                anti: self.incoming_tallies(&spec, spec.pod_affinity.anti_required.iter()),
                preferred: self.preferred_tallies(&spec),
            }
        };
        let rules = Arc::new(rules);
        self.class_rows[at].rules = Some(rules.clone());
        rules
    }

    /// kube-scheduler's default soft constraints for pods without any that a Service or controller
    /// selects. Return them with `release_spread`.
    pub(crate) fn default_spread(&mut self, at: ClassIx) -> Vec<SpreadRule> {
        let spec = self.class_rows[at].spec.clone();
        if !spec.spread.is_empty() {
            return Vec::new();
        }
        let selector = self.grouping_selector(&spec);
        if selector.is_empty() {
            return Vec::new();
        }
        let constraint = |key: &str, max_skew: i32| SpreadConstraint {
            max_skew,
            topology_key: key.into(),
            unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
            selector: Some(selector.clone()),
            min_domains: 1,
            node_affinity: NodeInclusionPolicy::Honor,
            node_taints: NodeInclusionPolicy::Ignore,
            match_label_keys: Vec::new(),
        };
        let constraints = [constraint(HOSTNAME, 3), constraint(ZONE, 5)];
        let constraints: Vec<&SpreadConstraint> = constraints.iter().collect();
        self.make_spread_rules(at, &constraints, false)
    }

    pub(crate) fn release_spread(&mut self, rules: Vec<SpreadRule>) {
        rules.into_iter().for_each(|rule| self.census.release_tally(rule.tally));
    }

    /// The selectors of a pod's Services and controller, merged.
    fn grouping_selector(&self, spec: &PodSpec) -> Selector {
        let mut all = Selector::default();
        let services = self.groupings.values().filter(|one| {
            one.kind.as_ref() == SERVICE
                && one.namespace == spec.namespace
                && one.selector.as_ref().is_some_and(|selector| selector.matches(&spec.labels))
        });
        all.0.extend(services.flat_map(|one| &one.selector).flat_map(|one| one.0.clone()));
        if let Some(controller) = &spec.controller {
            let key = (controller.kind.clone(), spec.namespace.clone(), controller.name.clone());
            let grouping = self.groupings.get(&key).and_then(|one| one.selector.as_ref());
            all.0.extend(grouping.into_iter().flat_map(|one| one.0.clone()));
        }
        all.0.sort_unstable();
        all.0.dedup();
        all
    }

    fn spread_rules(&mut self, at: ClassIx, hard: bool) -> Vec<SpreadRule> {
        let class = self.class_rows[at].clone();
        let constraints: Vec<&SpreadConstraint> = class.spread(hard).collect();
        self.make_spread_rules(at, &constraints, true)
    }

    /// With `all_keys`, only nodes with the keys of all constraints count.
    fn make_spread_rules(
        &mut self,
        at: ClassIx,
        constraints: &[&SpreadConstraint],
        all_keys: bool,
    ) -> Vec<SpreadRule> {
        let class = self.class_rows[at].clone();
        let mut keys: Vec<KeyIx> =
            constraints.iter().map(|constraint| self.key(&constraint.topology_key)).collect();
        let by_constraint = keys.clone();
        keys.sort_unstable();
        keys.dedup();
        let rule = |(constraint, key): (&&SpreadConstraint, &KeyIx)| {
            let selector = constraint.merged_selector(&class.spec.labels);
            let query = self.query(Query::in_namespace(&class.spec.namespace, selector));
            let rule = class.scope(constraint, if all_keys { keys.clone() } else { Vec::new() });
            let nodes = self.nodes.iter().map(|(at, node)| (at, node.object.as_ref()));
            let scope = self.census.acquire_scope(rule, nodes);
            let tally = self.tally(query, *key, Counted::Spread(scope));
            self.census.release_scope(scope);
            SpreadRule {
                tally,
                query,
                key: *key,
                by_host: constraint.topology_key.as_ref() == HOSTNAME,
                max_skew: constraint.max_skew,
                min_domains: constraint.min_domains,
                counts_self: self.census.matches(query, at),
            }
        };
        let rules: Vec<SpreadRule> = constraints.iter().zip(&by_constraint).map(rule).collect();
        by_constraint.into_iter().for_each(|key| self.census.release_key(key));
        rules
    }

    fn affinity_rule(&mut self, at: ClassIx, spec: &PodSpec) -> Option<AffinityRule> {
        let terms = &spec.pod_affinity.required;
        if terms.is_empty() {
            return None;
        }
        let query = self.query(Query::of_terms(QuerySide::Incoming, &spec.namespace, terms));
        let matches_self = self.census.matches(query, at);
        let mut keys: Vec<KeyIx> = terms.iter().map(|term| self.key(&term.topology_key)).collect();
        let all = keys.clone();
        keys.sort_unstable();
        keys.dedup();
        let mut tallies = Vec::new();
        for key in keys {
            self.census.retain_query(query);
            tallies.push(self.tally(query, key, Counted::Matching));
        }
        all.into_iter().for_each(|key| self.census.release_key(key));
        self.census.release_query(query);
        Some(AffinityRule { query, tallies, matches_self })
    }

    fn incoming_tallies<'a>(
        &mut self,
        spec: &PodSpec,
        terms: impl Iterator<Item = &'a PodTerm>,
    ) -> Vec<TallyIx> {
        terms
            .map(|term| {
                let one = std::iter::once(term);
                let query = self.query(Query::of_terms(QuerySide::Incoming, &spec.namespace, one));
                let key = self.key(&term.topology_key);
                let tally = self.tally(query, key, Counted::Matching);
                self.census.release_key(key);
                tally
            })
            .collect()
    }

    fn preferred_tallies(&mut self, spec: &PodSpec) -> Vec<(i32, TallyIx)> {
        let affinity = &spec.pod_affinity;
        let welcome = affinity.preferred.iter().map(|(weight, term)| (*weight, term));
        let avoid =
            affinity.anti_preferred.iter().map(|(weight, term)| (weight.saturating_neg(), term));
        let (weights, terms): (Vec<i32>, Vec<&PodTerm>) = welcome.chain(avoid).unzip();
        let tallies = self.incoming_tallies(spec, terms.into_iter());
        weights.into_iter().zip(tallies).collect()
    }

    fn existing_tallies(&mut self, at: ClassIx) -> Vec<TallyIx> {
        let class = self.class_rows[at].clone();
        let terms: Vec<(TermKind, &PodTerm)> = class.resident_terms().collect();
        let mut tallies = Vec::new();
        for (claim, term) in terms {
            let one = std::iter::once(term);
            let query = Query::of_terms(QuerySide::Existing, &class.spec.namespace, one);
            let query = self.query(query);
            let key = self.key(&term.topology_key);
            tallies.push(self.tally(query, key, Counted::WithTerm(claim)));
            self.census.release_key(key);
        }
        tallies
    }

    fn key(&mut self, name: &Arc<str>) -> KeyIx {
        let nodes = self.nodes.iter().map(|(at, node)| (at, node.object.as_ref()));
        self.census.acquire_key(name, nodes)
    }

    fn query(&mut self, query: Query) -> QueryIx {
        self.census.acquire_query(query, &self.namespaces, &self.class_rows)
    }

    /// Takes over the caller's reference to the query.
    fn tally(&mut self, query: QueryIx, key: KeyIx, counted: Counted) -> TallyIx {
        let count = Count { query, key, counted };
        let mut census = std::mem::take(&mut self.census);
        let tally = census.acquire_tally(count, self.residents());
        census.release_query(query);
        self.census = census;
        tally
    }

    /// Matches everything again that depends on labels of namespaces.
    pub(crate) fn namespaces_changed(&mut self) {
        if !self.census.uses_namespace_labels() {
            return;
        }
        let residents: Vec<_> = self.residents().collect();
        for (node, resident) in &residents {
            self.census.move_pod(*node, *resident, -1);
        }
        let classes = self.class_rows.iter();
        let classes =
            classes.map(|(at, class)| (at, class.spec.namespace.as_ref(), &class.spec.labels));
        self.census.rematch(&self.namespaces, classes);
        for (node, resident) in &residents {
            self.census.move_pod(*node, *resident, 1);
        }
        let with_rules: Vec<ClassIx> = self
            .class_rows
            .iter()
            .filter(|(_, class)| class.rules.as_ref().is_some_and(|rules| !rules.is_empty()))
            .map(|(at, _)| at)
            .collect();
        for at in with_rules {
            let old = self.class_rows[at].rules.take();
            self.rules(at);
            for tally in old.iter().flat_map(|rules| rules.tallies()) {
                self.census.release_tally(tally);
            }
        }
    }
}

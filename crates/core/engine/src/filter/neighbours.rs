//! Filters that depend on other pods: spreading, affinity and anti-affinity.
//!
//! A dry run changes counts in the domains of one node only, so the difference is derived from the
//! overlay instead of updating the census.

use super::Inquiry;
use crate::census::{Counted, TermKind};
use crate::class::SpreadRule;
use crate::overlay::Overlay;
use crate::table::{KeyIx, NodeIx, PodIx, QueryIx, TallyIx};
use crate::verdict::{Plugin, Reason, Rejection};

impl Inquiry<'_> {
    /// Whether other pods can rule out nodes.
    pub(crate) fn has_neighbour_rules(&self) -> bool {
        let rules = &self.rules;
        !rules.hard_spread.is_empty()
            || rules.affinity.is_some()
            || !rules.anti.is_empty()
            || !self.excluded_by.is_empty()
    }

    pub(crate) fn has_soft_rules(&self) -> bool {
        !self.rules.soft_spread.is_empty()
            || !self.rules.preferred.is_empty()
            || self.preference_terms().next().is_some()
    }

    /// Tallies of existing pods that prefer or avoid this one.
    fn preference_terms(&self) -> impl Iterator<Item = TallyIx> {
        let asked = self.state.census.terms_about(self.class_at);
        asked.filter(|(_, claim)| *claim != TermKind::AntiAffinity).map(|(tally, _)| tally)
    }

    /// Whether preferences differ within a locality.
    pub(crate) fn weighs_hosts(&self, coarse: &[KeyIx]) -> bool {
        let census = &self.state.census;
        let fine = |tally: TallyIx| !coarse.contains(&census.count(tally).key);
        self.rules.soft_spread.iter().any(|rule| rule.by_host || fine(rule.tally))
            || self.rules.preferred.iter().any(|(_, tally)| fine(*tally))
            || self.preference_terms().any(fine)
    }

    /// Number of pods to keep apart from in the node's own domains, of keys that are not coarse.
    pub(crate) fn crowding(&self, at: NodeIx, coarse: &[KeyIx]) -> i64 {
        let census = &self.state.census;
        let spread = self.rules.soft_spread.iter().map(|rule| (rule.key, rule.tally));
        let avoided = self.rules.preferred.iter().filter(|(weight, _)| *weight < 0);
        let avoided = avoided.map(|(_, tally)| *tally);
        let asked = census.terms_about(self.class_at);
        let avoiding = asked.filter_map(|(tally, claim)| match claim {
            TermKind::Prefer(weight) if weight < 0 => Some(tally),
            _ => None,
        });
        let others = avoided.chain(avoiding).map(|tally| (census.count(tally).key, tally));
        spread
            .chain(others)
            .filter(|(key, _)| !coarse.contains(key))
            .map(|(key, tally)| i64::from(census.tally(tally).at(census.domain(key, at)).max(0)))
            .sum()
    }

    /// At most `most` nodes with pods that prefer this one or that it prefers.
    pub(crate) fn preferring_nodes(&self, most: usize) -> Vec<NodeIx> {
        let census = &self.state.census;
        let liked = self.rules.preferred.iter().filter(|(weight, _)| *weight > 0);
        let tallies = liked.map(|(_, tally)| *tally).chain(self.preference_terms());
        let mut nodes: Vec<(u64, NodeIx)> = tallies
            .flat_map(|tally| {
                let key = census.count(tally).key;
                census
                    .tally(tally)
                    .domains()
                    .filter_map(move |(domain, _)| census.some_node(key, domain))
            })
            .map(|node| (self.state.nodes[node].tie, node))
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.into_iter().take(most).map(|(_, node)| node).collect()
    }

    /// The nodes of the pods required nearby, if nearby means on the same host: no other node is
    /// possible.
    pub(crate) fn nodes_of_required_pods(&self, coarse: &[KeyIx]) -> Option<Vec<NodeIx>> {
        let census = &self.state.census;
        let tallies = &self.rules.affinity.as_ref()?.tallies;
        let fine = tallies.iter().find(|tally| !coarse.contains(&census.count(**tally).key))?;
        let key = census.count(*fine).key;
        let domains = census.tally(*fine).domains();
        let nodes: Option<Vec<NodeIx>> =
            domains.map(|(domain, _)| census.some_node(key, domain)).collect();
        nodes.filter(|nodes| !nodes.is_empty())
    }

    /// Whether the rules about coarse keys allow the node's locality.
    pub(crate) fn coarse_neighbours_allow(&self, at: NodeIx, coarse: &[KeyIx]) -> bool {
        let census = &self.state.census;
        let plain = Overlay::default();
        let is_coarse = |tally: &TallyIx| coarse.contains(&census.count(*tally).key);
        let spread = self.rules.hard_spread.iter().filter(|rule| coarse.contains(&rule.key));
        let refusing = self.rules.anti.iter().chain(&self.excluded_by).filter(|at| is_coarse(at));
        let needs = self.rules.affinity.as_ref();
        if needs.is_some_and(|rule| rule.tallies.iter().all(is_coarse))
            && !self.has_required_pods(at, &plain)
        {
            return false;
        }
        spread.into_iter().all(|rule| {
            census.domain(rule.key, at).exists()
                && self.skew(rule, at, &plain) <= i64::from(rule.max_skew)
        }) && refusing.into_iter().all(|tally| self.near(*tally, at, &plain) <= 0)
    }

    pub(super) fn spread(&self, at: NodeIx, overlay: &Overlay) -> Result<(), Rejection> {
        for rule in &self.rules.hard_spread {
            let domain = self.state.census.domain(rule.key, at);
            if !domain.exists() {
                let reason = "node(s) didn't match pod topology spread constraints (missing \
                              required label)";
                let reason = Reason::Text(reason);
                return Err(Rejection::unresolvable(Plugin::PodTopologySpread, reason));
            }
            if self.skew(rule, at, overlay) > i64::from(rule.max_skew) {
                let reason = "node(s) didn't match pod topology spread constraints";
                let reason = Reason::Text(reason);
                return Err(Rejection::resolvable(Plugin::PodTopologySpread, reason));
            }
        }
        Ok(())
    }

    pub(crate) fn skew(&self, rule: &SpreadRule, at: NodeIx, overlay: &Overlay) -> i64 {
        let census = &self.state.census;
        let tally = census.tally(rule.tally);
        let domain = census.domain(rule.key, at);
        let domains = census.spread_domains(rule.tally);
        let before = tally.at(domain);
        // kube-scheduler also counts terminating pods in dry runs, so counts can go below zero.
        // This does the same.
        let change = if census.counts_node(rule.tally, at) {
            self.changed(rule.query, overlay.spread_differences())
        } else {
            0
        };
        let here = before + change;
        let least = if (domains as i64) < i64::from(rule.min_domains) {
            0
        } else if change == 0 {
            tally.least(domains, None).unwrap_or(0)
        } else {
            tally.least(domains, Some(before)).map_or(here, |others| others.min(here))
        };
        i64::from(here) + i64::from(rule.counts_self) - i64::from(least)
    }

    fn difference(&self, query: QueryIx, overlay: &Overlay) -> i32 {
        self.changed(query, overlay.differences())
    }

    fn changed(&self, query: QueryIx, differences: impl Iterator<Item = (PodIx, i32)>) -> i32 {
        let matching = |pod| self.state.census.matches(query, self.state.pods[pod].class);
        differences.filter(|(pod, _)| matching(*pod)).map(|(_, change)| change).sum()
    }

    pub(super) fn pod_affinity(&self, at: NodeIx, overlay: &Overlay) -> Result<(), Rejection> {
        let rules = &self.rules;
        if rules.affinity.is_none() && rules.anti.is_empty() && self.excluded_by.is_empty() {
            return Ok(());
        }
        if !self.has_required_pods(at, overlay) {
            let reason = Reason::Text("node(s) didn't match pod affinity rules");
            return Err(Rejection::unresolvable(Plugin::InterPodAffinity, reason));
        }
        if rules.anti.iter().any(|tally| self.near(*tally, at, overlay) > 0) {
            let reason = Reason::Text("node(s) didn't match pod anti-affinity rules");
            return Err(Rejection::resolvable(Plugin::InterPodAffinity, reason));
        }
        if self.is_refused(at, overlay) {
            let reason = Reason::Text("node(s) didn't satisfy existing pods anti-affinity rules");
            return Err(Rejection::resolvable(Plugin::InterPodAffinity, reason));
        }
        Ok(())
    }

    /// The count in the node's domain; 0 if it has none.
    fn near(&self, tally: TallyIx, at: NodeIx, overlay: &Overlay) -> i32 {
        let census = &self.state.census;
        let count = census.count(tally);
        let domain = census.domain(count.key, at);
        if !domain.exists() {
            return 0;
        }
        let change = match count.counted {
            Counted::WithTerm(_) => self.term_holders(tally, overlay),
            _ => self.difference(count.query, overlay),
        };
        census.tally(tally).at(domain) + change
    }

    pub(crate) fn lacks_required_pods(&self) -> bool {
        self.missing_required_pods().is_some()
    }

    /// The tally of required pods that exist nowhere.
    pub(crate) fn missing_required_pods(&self) -> Option<TallyIx> {
        let total = |tally: &TallyIx| self.state.census.tally(*tally).total;
        let affinity = self.rules.affinity.as_ref().filter(|rule| !rule.matches_self)?;
        affinity.tallies.iter().copied().find(|tally| total(tally) == 0)
    }

    fn has_required_pods(&self, at: NodeIx, overlay: &Overlay) -> bool {
        let Some(rule) = &self.rules.affinity else { return true };
        let census = &self.state.census;
        let lacks = |tally: &TallyIx| !census.domain(census.count(*tally).key, at).exists();
        if rule.tallies.iter().any(lacks) {
            return false;
        }
        if rule.tallies.iter().all(|tally| self.near(*tally, at, overlay) > 0) {
            return true;
        }
        // The first of pods that require each other may go anywhere.
        let change = i64::from(self.difference(rule.query, overlay));
        let none = |tally: &TallyIx| census.tally(*tally).total + change == 0;
        rule.matches_self && rule.tallies.iter().all(none)
    }

    /// Whether a pod near the node, under the overlay, excludes this one by anti-affinity.
    pub(crate) fn is_refused(&self, at: NodeIx, overlay: &Overlay) -> bool {
        let refuses = |tally: TallyIx| self.near(tally, at, overlay) > 0;
        if self.excluded_by.iter().any(|tally| refuses(*tally)) {
            return true;
        }
        // Pods added by the overlay may exclude this one though no existing pod does.
        let census = &self.state.census;
        overlay.added.iter().any(|pod| {
            let term_count = census.anti_affinity_terms(self.state.pods[*pod].class);
            term_count.into_iter().any(|tally| {
                let count = census.count(tally);
                census.matches(count.query, self.class_at) && census.domain(count.key, at).exists()
            })
        })
    }

    /// Change in the number of pods on the node with the terms that the tally counts.
    fn term_holders(&self, tally: TallyIx, overlay: &Overlay) -> i32 {
        let term_count = |pod| self.state.census.term_count(self.state.pods[pod].class, tally);
        overlay.differences().map(|(pod, change)| change * term_count(pod)).sum()
    }
}

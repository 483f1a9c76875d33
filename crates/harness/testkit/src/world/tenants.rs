//! Quotas and teams, asked the long way round.
//!
//! Owns the books of teams once more, naively: every sum is added up when it is asked for. What a pod
//! counts for under a quota is Kubernetes' rule, which recordings vouch for; who is beyond one is
//! worked out anew from all pods. Must share nothing else with the engine.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::label::Labels;
use berth_model::pod::PodLevelResources;
use berth_model::resource::{ResourceList, ResourceName};
use berth_model::spec::PodSpec;
use berth_tenancy::quota::{Life, add, check, counts, usage};
use berth_tenancy::share::{Dimension, Entitlement, GPU_PARTS, Team, WHOLE};

use super::books::{Books, Entry, Spot};

/// Amounts by what there is to share.
type Amounts = BTreeMap<Dimension, i128>;

/// Where a pod stands: whether it borrows, its priority, how well off its groups and its team are, its
/// age.
pub(super) type Turn = (bool, Reverse<i32>, Vec<u128>, i64, Arc<str>);

const GPU: i128 = GPU_PARTS as i128;

impl Books {
    fn has_teams(&self) -> bool {
        !self.teams.is_empty()
    }

    /// A pod's team and the groups above it.
    fn chain(&self, spec: &PodSpec) -> Vec<&Team> {
        let mut of = self.teams.values().filter(|team| team.namespaces.contains(&spec.namespace));
        let label = spec.labels.get("berth.dev/team");
        let named = of.clone().find(|team| Some(&team.name) == label);
        let is_group =
            |name: &Arc<str>| self.teams.values().any(|one| one.parent.as_ref() == Some(name));
        let open = label
            .and_then(|label| self.teams.get(label))
            .filter(|team| team.namespaces.is_empty() && !is_group(&team.name));
        let mut chain: Vec<&Team> = named.or_else(|| of.next()).or(open).into_iter().collect();
        while let Some(parent) = chain.last().and_then(|team| team.parent.as_ref())
            && let Some(parent) = self.teams.get(parent)
        {
            chain.push(parent);
        }
        chain
    }

    fn is_shared(&self, dimension: &Dimension) -> bool {
        self.teams.values().any(|team| team.entitlements.contains_key(dimension))
    }

    fn capacity(&self, dimension: &Dimension) -> i128 {
        let of = |node: &berth_model::node::Node| {
            amounts(&node.allocatable, &node.labels).get(dimension).copied().unwrap_or(0)
        };
        self.nodes.values().map(of).sum()
    }

    /// What a pod has on its node, which must exist.
    fn holding(&self, pod: &Entry) -> Option<Amounts> {
        let node = self.nodes.get(pod.node()?)?;
        let mut has = amounts(&requests(pod.spec()), &node.labels);
        if let Some((parts, memory)) = pod.grant.as_ref().and_then(|one| unit(one, &node.labels)) {
            *has.entry(Dimension::Gpus).or_default() += parts;
            *has.entry(Dimension::GpuMemory).or_default() += memory;
        }
        has.retain(|_, amount| *amount > 0);
        Some(has)
    }

    /// What room is being made for.
    fn coming(&self, pod: &Entry) -> Option<Amounts> {
        let Spot::Awaits(node) = &pod.spot else { return None };
        self.nodes.contains_key(node).then(|| ask(pod.spec()))
    }

    /// What the pods of a team and of those below it have, are about to lose, and expect.
    fn sums(&self, team: Option<&Team>, dimension: &Dimension) -> (i128, i128, i128) {
        let (mut has, mut leaving, mut coming) = (0, 0, 0);
        let member = |pod: &&Entry| {
            let chain = self.chain(pod.spec());
            match team {
                None => chain.is_empty(),
                Some(team) => chain.iter().any(|one| one.name == team.name),
            }
        };
        for pod in self.pods.values().filter(member) {
            let of = |amounts: Option<Amounts>| {
                amounts.and_then(|amounts| amounts.get(dimension).copied()).unwrap_or(0)
            };
            let held = of(self.holding(pod));
            has += held;
            leaving += if pod.is_leaving() || pod.is_terminating() { held } else { 0 };
            coming += of(self.coming(pod));
        }
        (has, leaving, coming)
    }

    fn expected(&self, team: Option<&Team>, dimension: &Dimension) -> i128 {
        let (has, leaving, coming) = self.sums(team, dimension);
        has - leaving + coming
    }

    fn own(&self, pod: &Entry, dimension: &Dimension) -> i128 {
        self.coming(pod).and_then(|own| own.get(dimension).copied()).unwrap_or(0)
    }

    /// Whether a pod would borrow; `settled` if what is expected of itself does not count twice.
    fn borrows(&self, pod: &Entry, settled: bool) -> bool {
        let ask = ask(pod.spec());
        let shared: Vec<_> = ask.iter().filter(|(one, _)| self.is_shared(one)).collect();
        let chain = self.chain(pod.spec());
        let beyond = shared.iter().any(|(dimension, amount)| {
            let own = if settled { self.own(pod, dimension) } else { 0 };
            chain.iter().any(|team| {
                team.entitlements.get(*dimension).is_some_and(|one| {
                    let expected = self.expected(Some(team), dimension) - own;
                    expected + **amount > i128::from(one.guaranteed)
                })
            })
        });
        let entitled = shared
            .iter()
            .any(|(dimension, _)| chain.iter().any(|team| guaranteed(team, dimension) > 0));
        beyond || !shared.is_empty() && !entitled
    }

    fn dominant_share(&self, team: Option<&Team>) -> u128 {
        let dimensions = self.teams.values().flat_map(|team| team.entitlements.keys());
        let shares = dimensions.map(|dimension| {
            let guaranteed = team.map_or(0, |team| guaranteed(team, dimension));
            let beyond = self.expected(team, dimension) - guaranteed;
            part(beyond, self.capacity(dimension))
        });
        let weight = team.map_or(1000, |team| u128::from(team.weight_milli.max(1)));
        (shares.max().unwrap_or(0) * 1000 / weight).min(u128::from(u64::MAX))
    }

    /// Where a pod stands in the order.
    pub(super) fn turn(&self, pod: &Entry) -> Turn {
        let object = &pod.object;
        let rest = (Reverse(pod.spec().priority), object.created_at_ms, object.uid.clone());
        if !self.has_teams() {
            return (false, rest.0, Vec::new(), rest.1, rest.2);
        }
        let borrows = self.borrows(pod, false);
        let well_off = |team: Option<&Team>| {
            if borrows {
                return self.dominant_share(team);
            }
            let listed = team.into_iter().flat_map(|team| team.entitlements.iter());
            let listed = listed.filter(|(_, one)| one.guaranteed > 0);
            let parts = listed.map(|(dimension, one)| {
                part(self.expected(team, dimension), i128::from(one.guaranteed))
            });
            parts.max().unwrap_or(0)
        };
        let chain = self.chain(pod.spec());
        let shares = if chain.is_empty() {
            vec![well_off(None)]
        } else {
            chain.iter().rev().map(|team| well_off(Some(team))).collect()
        };
        (borrows, rest.0, shares, rest.1, rest.2)
    }

    /// Whether a pod that waits for a node goes before another that wants it.
    pub(super) fn goes_before(&self, waiting: &Entry, other: &Entry) -> bool {
        let rank = |pod: &Entry| {
            let borrows = self.has_teams() && self.borrows(pod, true);
            (!borrows, pod.spec().priority)
        };
        rank(waiting) >= rank(other)
    }

    /// Whether victims of a priority can be leaving for a pod.
    pub(super) fn may_leave_for(&self, victim: &Entry, pod: &Entry) -> bool {
        self.has_teams() || victim.spec().priority < pod.spec().priority
    }

    /// Whether a pod may have to go for one of some priority, if teams do not forbid it.
    pub(super) fn may_matter_less(&self, pod: &Entry, priority: i32) -> bool {
        pod.spec().priority < priority || self.has_teams() && pod.spec().priority == priority
    }

    /// Of some pods, those that may be evicted for another, as teams and priorities say.
    pub(super) fn evictable<'a>(&'a self, pod: &Entry, of: Vec<&'a Entry>) -> Vec<&'a Entry> {
        let priority = pod.spec().priority;
        if !self.has_teams() {
            return of.into_iter().filter(|one| one.spec().priority < priority).collect();
        }
        let mut ranked: Vec<&Entry> =
            of.into_iter().filter(|one| one.spec().priority <= priority).collect();
        ranked.sort_by_cached_key(|one| {
            let started = one.object.started_at_ms.unwrap_or(i64::MAX);
            let team = self.chain(one.spec()).first().copied();
            let share = Reverse(self.dominant_share(team));
            let uid = Reverse(one.object.uid.clone());
            (one.spec().priority, share, Reverse(started), uid)
        });
        let mut chosen: Vec<&Entry> = Vec::new();
        for one in ranked {
            let lower = one.spec().priority < priority;
            if lower && !self.is_protected(one, pod, &chosen) || self.reclaims(pod, one, &chosen) {
                chosen.push(one);
            }
        }
        chosen
    }

    /// The teams of one pod that another does not belong to.
    fn apart(&self, one: &PodSpec, other: &PodSpec) -> Vec<&Team> {
        let both = self.chain(other);
        let chain = self.chain(one).into_iter();
        chain.take_while(|team| !both.iter().any(|same| same.name == team.name)).collect()
    }

    /// What a team has left when it has lost what it is about to lose, and these pods.
    fn left(&self, team: Option<&Team>, dimension: &Dimension, without: &[&Entry]) -> i128 {
        let (has, leaving, _) = self.sums(team, dimension);
        let of_team = without.iter().filter(|pod| {
            let chain = self.chain(pod.spec());
            match team {
                None => chain.is_empty(),
                Some(team) => chain.iter().any(|one| one.name == team.name),
            }
        });
        let taken = of_team.filter_map(|pod| self.holding(pod)?.get(dimension).copied());
        has - leaving - taken.sum::<i128>()
    }

    fn is_protected(&self, victim: &Entry, by: &Entry, chosen: &[&Entry]) -> bool {
        let holding = self.holding(victim).unwrap_or_default();
        let teams = self.apart(victim.spec(), by.spec());
        teams.into_iter().any(|team| {
            let of_interest = holding
                .keys()
                .filter(|one| self.is_shared(one) && guaranteed(team, one) > 0)
                .collect::<Vec<_>>();
            let beyond =
                |one: &&&Dimension| self.left(Some(team), one, chosen) > guaranteed(team, one);
            !of_interest.is_empty() && !of_interest.iter().any(|one| beyond(&one))
        })
    }

    fn reclaims(&self, pod: &Entry, victim: &Entry, chosen: &[&Entry]) -> bool {
        let names = |spec: &PodSpec| self.chain(spec).first().map(|team| team.name.clone());
        if names(pod.spec()) == names(victim.spec()) {
            return false;
        }
        let (ours, theirs) =
            (self.apart(pod.spec(), victim.spec()), self.apart(victim.spec(), pod.spec()));
        let ask = ask(pod.spec());
        let within = ask.iter().filter(|(one, _)| self.is_shared(one)).all(|(one, amount)| {
            ours.iter().all(|team| {
                team.entitlements.get(one).is_none_or(|entitled| {
                    let expected = self.expected(Some(team), one) - self.own(pod, one);
                    expected + amount <= i128::from(entitled.guaranteed)
                })
            })
        });
        let holding = self.holding(victim).unwrap_or_default();
        let ownerless = self.chain(victim.spec()).is_empty();
        within
            && holding.keys().filter(|one| self.is_shared(one)).any(|one| {
                let beyond =
                    |team: &&Team| self.left(Some(team), one, chosen) > guaranteed(team, one);
                ours.iter().any(|team| guaranteed(team, one) > 0)
                    && theirs.iter().all(beyond)
                    && (!ownerless || self.left(None, one, chosen) > 0)
            })
    }

    /// What a team keeps others from, if one of it took more.
    fn kept(
        &self,
        team: Option<&Team>,
        dimension: &Dimension,
        more: (Option<&Arc<str>>, i128),
    ) -> i128 {
        let direct = self.pods.values().filter(|pod| {
            self.chain(pod.spec()).first().map(|one| &one.name) == team.map(|team| &team.name)
        });
        let of = |amounts: Option<Amounts>| {
            amounts.and_then(|amounts| amounts.get(dimension).copied()).unwrap_or(0)
        };
        let mut uses: i128 = direct.map(|pod| of(self.holding(pod)) + of(self.coming(pod))).sum();
        if more.0 == team.map(|team| &team.name) {
            uses += more.1;
        }
        let Some(team) = team else { return uses };
        let children = self.teams.values().filter(|one| one.parent.as_ref() == Some(&team.name));
        uses += children.map(|child| self.kept(Some(child), dimension, more)).sum::<i128>();
        let unlent = team
            .entitlements
            .get(dimension)
            .and_then(|one| Some(i128::from(one.guaranteed) - i128::from(one.lend_max?)));
        uses.max(unlent.unwrap_or(0))
    }

    /// Whether teams or quotas hold a pod.
    pub(super) fn is_held(&self, pod: &Entry) -> bool {
        self.beyond_quota().contains(&&pod.object.uid)
            || self.has_teams() && self.is_held_by_share(pod)
    }

    /// Whether teams or quotas can hold anybody.
    pub(super) fn may_hold(&self) -> bool {
        self.has_teams() || !self.quotas.is_empty()
    }

    fn is_held_by_share(&self, pod: &Entry) -> bool {
        let chain = self.chain(pod.spec());
        let borrows = self.borrows(pod, true);
        let team = chain.first().map(|team| &team.name);
        ask(pod.spec()).iter().filter(|(one, _)| self.is_shared(one)).any(|(dimension, amount)| {
            let more = (team, amount - self.own(pod, dimension));
            let limited = chain.iter().any(|team| {
                let Some(one) = team.entitlements.get(dimension) else { return false };
                let Some(borrow_max) = one.borrow_max else { return false };
                // What is not lent does not count as used.
                let open = Entitlement { lend_max: None, ..*one };
                let mut bare = (*team).clone();
                bare.entitlements.insert(dimension.clone(), open);
                self.kept(Some(&bare), dimension, more) > i128::from(one.guaranteed + borrow_max)
            });
            let withheld = self.teams.values().any(|team| {
                let one = team.entitlements.get(dimension);
                one.is_some_and(|one| one.lend_max.is_some_and(|lent| lent < one.guaranteed))
            });
            let is_root = |team: &&Team| {
                team.parent.as_ref().is_none_or(|parent| !self.teams.contains_key(parent))
            };
            let roots = self.teams.values().filter(is_root).map(Some);
            let kept = || roots.chain([None]).map(|one| self.kept(one, dimension, more));
            limited || borrows && withheld && kept().sum::<i128>() > self.capacity(dimension)
        })
    }

    /// UIDs of pods that are beyond a quota.
    fn beyond_quota(&self) -> Vec<&Arc<str>> {
        let mut refused = Vec::new();
        let mut used: BTreeMap<_, ResourceList> =
            self.quotas.keys().map(|name| (name, ResourceList::new())).collect();
        let placed = |pod: &&Entry| matches!(pod.spot, Spot::On(_));
        let mut waiting: Vec<&Entry> = self.pods.values().filter(|pod| !placed(pod)).collect();
        waiting.sort_by_key(|pod| (pod.object.created_at_ms, &pod.object.uid));
        for pod in self.pods.values().filter(placed).chain(waiting) {
            let asked = usage(&pod.spec().pod, Life::Live);
            let of_namespace =
                || self.quotas.iter().filter(|(_, one)| one.namespace == pod.spec().namespace);
            let pairs: Vec<_> = of_namespace().map(|(name, one)| (one, &used[name])).collect();
            if !placed(&pod) && check(pairs.into_iter(), pod.spec(), &asked).is_err() {
                refused.push(&pod.object.uid);
                continue;
            }
            for (name, quota) in of_namespace().filter(|(_, one)| counts(one, pod.spec())) {
                if let Some(used) = used.get_mut(name) {
                    add(quota, used, &asked);
                }
            }
        }
        refused
    }
}

fn guaranteed(team: &Team, dimension: &Dimension) -> i128 {
    team.entitlements.get(dimension).map_or(0, |one| i128::from(one.guaranteed))
}

fn part(amount: i128, all: i128) -> u128 {
    match (u128::try_from(amount), u128::try_from(all)) {
        (Err(_) | Ok(0), _) => 0,
        (Ok(amount), Ok(all)) if all > 0 => amount * u128::from(WHOLE) / all,
        _ => u128::from(u64::MAX),
    }
}

fn requests(spec: &PodSpec) -> ResourceList {
    spec.pod.total_requests(PodLevelResources::HonouredIfEmptyToo)
}

/// What a spec asks for, as far as it tells.
fn ask(spec: &PodSpec) -> Amounts {
    let mut ask = amounts(&requests(spec), &spec.node_selector);
    if let Some(need) = &spec.gpu {
        let memory = i128::from(need.memory_bytes).min(80_000_000_000);
        let (by_memory, by_compute) =
            (GPU * memory / 80_000_000_000, GPU / 1000 * i128::from(need.compute_milli));
        let parts = if by_memory == 0 || by_compute == 0 {
            by_memory + by_compute
        } else {
            (by_memory + by_compute) / 2
        };
        *ask.entry(Dimension::Gpus).or_default() += parts;
        *ask.entry(Dimension::GpuMemory).or_default() += memory;
    }
    ask.retain(|_, amount| *amount > 0);
    ask
}

fn amounts(list: &ResourceList, labels: &Labels) -> Amounts {
    let mut amounts = Amounts::new();
    for (name, amount) in list {
        match name.as_str() {
            "cpu" => *amounts.entry(Dimension::Cpu).or_default() = amount.milli_value().into(),
            "memory" => *amounts.entry(Dimension::Memory).or_default() = amount.value().into(),
            _ => {
                let Some((parts, memory)) = unit(name, labels) else { continue };
                let count = i128::from(amount.value());
                *amounts.entry(Dimension::Gpus).or_default() += parts * count;
                *amounts.entry(Dimension::GpuMemory).or_default() += memory * count;
            }
        }
    }
    amounts.retain(|_, amount| *amount > 0);
    amounts
}

/// Parts of a GPU and memory of one of a resource of the worlds' hardware.
fn unit(resource: &ResourceName, labels: &Labels) -> Option<(i128, i128)> {
    let product = labels.get("nvidia.com/gpu.product");
    let memory = labels.get("nvidia.com/gpu.memory").and_then(|mib| mib.parse::<i128>().ok());
    match resource.as_str() {
        "nvidia.com/gpu" => {
            let shared = product.is_some_and(|product| product.ends_with("-SHARED"));
            let parts = if shared { 4 } else { 1 };
            Some((GPU / parts, memory.unwrap_or(0) * (1 << 20) / parts))
        }
        // One of seven slices with one of eight parts of the memory; three with four.
        "nvidia.com/mig-1g.10gb" => Some((GPU * 15 / 112, 0)),
        "nvidia.com/mig-3g.40gb" => Some((GPU * 52 / 112, 0)),
        "nvidia.com/mig-7g.80gb" => Some((GPU, 0)),
        _ => None,
    }
}

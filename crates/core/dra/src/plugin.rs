//! The plugin DynamicResources: `PreFilter`, `Filter` and `Score`.

use std::sync::Arc;

use berth_model::dra::ALTERNATIVES_MAX;
use berth_model::dra::claim::{Allocation, Claim, ClaimSpec, DeviceRequest, RequestKind};
use berth_model::dra::pod::{ClaimSource, DeviceNeeds, PodClaim};
use berth_model::node::Node;
use berth_model::pod::Pod;
use berth_model::resource::ResourceName;

use crate::SEARCH_STEPS_MAX;
use crate::extended::{self, ExtendedClaim};
use crate::inventory::{Inventory, KnownClaim};
use crate::numa::NumaNodes;
use crate::preference::Preference;
use crate::published::any_matches;
use crate::search::{self, PendingClaim};
use crate::verdict::{Rejection, RejectionReason};

/// How long drivers may take to prepare a device before another is tried.
const BINDING_TIMEOUT_MS: i64 = 600_000;

const SCORE_MAX: i64 = 100;

/// The name of the claim for extended resources before it exists.
const EXTENDED_CLAIM_NAME: &str = "<extended-resources>";

/// A pod's claims, looked up and checked once for all nodes.
#[derive(Clone, Debug)]
pub struct Demand {
    claims: Vec<Arc<KnownClaim>>,
    extended: Option<ExtendedDemand>,
}

#[derive(Clone, Debug)]
struct ExtendedDemand {
    claim: ClaimRef,
    pod: Pod,
    /// Amounts in units.
    requested: Vec<(ResourceName, i64)>,
    /// A claim created for the pod earlier.
    earlier: Option<Arc<KnownClaim>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    pub namespace: Arc<str>,
    /// `<extended-resources>` for a claim that does not exist yet.
    pub name: Arc<str>,
    /// Synthetic for a claim that does not exist yet.
    pub uid: Arc<str>,
}

impl ClaimRef {
    fn of(claim: &Claim) -> Self {
        let Claim { namespace, name, uid, .. } = claim;
        Self { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
    }
}

#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// Only devices on these NUMA nodes, or without the attribute. `None`, as in Kubernetes:
    /// devices anywhere.
    pub numa: Option<NumaNodes>,
    /// To decide whether preparation of devices has timed out.
    pub now_ms: i64,
    /// Limit of examined devices.
    pub steps_max: u64,
    /// Which devices are tried first. `None`, as in Kubernetes: those that are listed first.
    pub preference: Option<&'a dyn Preference>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { numa: None, now_ms: 0, steps_max: SEARCH_STEPS_MAX, preference: None }
    }
}

/// The allocations of a pod's claims on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// For each unallocated claim, in the order of the pod.
    pub allocations: Vec<(ClaimRef, Allocation)>,
    /// The claim to create for extended resources; its allocation is the last.
    pub extended: Option<ExtendedClaim>,
    /// Before [`normalize_scores`].
    pub score: i64,
}

impl Inventory {
    /// `PreFilter`. `None`: the pod needs no devices. Fails if the pod cannot be placed on any node
    /// now.
    pub fn prepare(&self, needs: &DeviceNeeds) -> Result<Option<Demand>, Rejection> {
        let mut claims = Vec::new();
        for claim in &needs.claims {
            claims.extend(self.claim_of(needs, claim)?);
        }
        let extended = self.extended_demand(needs);
        if claims.is_empty() && extended.is_none() {
            return Ok(None);
        }
        for known in &claims {
            self.check(known)?;
        }
        Ok(Some(Demand { claims, extended }))
    }

    fn claim_of(
        &self,
        needs: &DeviceNeeds,
        claim: &PodClaim,
    ) -> Result<Option<Arc<KnownClaim>>, Rejection> {
        let DeviceNeeds { namespace, name: pod, .. } = needs;
        let problem = |text: String| RejectionReason::Claim(text).into_rejection();
        let (name, for_pod) = match &claim.source {
            ClaimSource::Named(name) => (name, false),
            ClaimSource::Generated(name) => (name, true),
            ClaimSource::NotNeeded => return Ok(None),
            ClaimSource::ToBeGenerated => {
                let text = format!("pod \"{namespace}/{pod}\": ResourceClaim not created yet");
                return Err(problem(text));
            }
            ClaimSource::Unknown => {
                return Err(problem(format!(
                    "pod \"{namespace}/{pod}\", spec.resourceClaim {:?}: none of the supported \
                     fields are set",
                    claim.name
                )));
            }
        };
        let Some(known) = self.known(namespace, name) else {
            let text = format!("could not find ResourceClaim \"{namespace}/{name}\"");
            return Err(problem(text));
        };
        if known.claim.deleting {
            return Err(problem(format!("resourceclaim {:?} is being deleted", known.claim.name)));
        }
        if for_pod && known.claim.controller_uid.as_ref() != Some(&needs.uid) {
            return Err(problem(format!(
                "ResourceClaim {namespace}/{name} was not created for Pod {namespace}/{pod} (Pod \
                 is not owner)"
            )));
        }
        Ok(Some(known.clone()))
    }

    fn extended_demand(&self, needs: &DeviceNeeds) -> Option<ExtendedDemand> {
        let requested = extended::requested(&needs.pod);
        if !requested.keys().any(|resource| self.class_for(resource).is_some()) {
            return None;
        }
        let ours = |known: &&Arc<KnownClaim>| {
            known.claim.for_extended_resources
                && known.claim.controller_uid.as_ref() == Some(&needs.uid)
        };
        let earlier = self.all_claims().find(ours).cloned();
        let placeholder = ClaimRef {
            namespace: needs.namespace.clone(),
            name: EXTENDED_CLAIM_NAME.into(),
            uid: format!("{EXTENDED_CLAIM_NAME}/{}", needs.uid).into(),
        };
        Some(ExtendedDemand {
            claim: earlier.as_ref().map_or(placeholder, |known| ClaimRef::of(&known.claim)),
            pod: needs.pod.clone(),
            requested: requested.into_iter().collect(),
            earlier,
        })
    }

    /// Whether an unallocated claim can be allocated at all.
    fn check(&self, known: &KnownClaim) -> Result<(), Rejection> {
        let claim = &known.claim;
        if claim.allocation.is_some() {
            return Ok(());
        }
        let name = format!("{}/{}", claim.namespace, claim.name);
        if self.is_in_flight(&ClaimRef::of(claim)) {
            return Err(RejectionReason::InFlight(name).into_rejection());
        }
        for request in &claim.spec.requests {
            match &request.kind {
                RequestKind::Exactly(ask) => self.check_class(ask, request.name.to_string())?,
                RequestKind::FirstOf(list) => {
                    for (alternative, ask) in list {
                        self.check_class(ask, format!("{}/{alternative}", request.name))?;
                    }
                }
                RequestKind::Unknown => {
                    let text = format!(
                        "resource claim {name}, request {}: unknown request type",
                        request.name
                    );
                    return Err(RejectionReason::UnknownRequest(text).into_rejection());
                }
            }
        }
        Ok(())
    }

    fn check_class(&self, ask: &DeviceRequest, request: String) -> Result<(), Rejection> {
        if ask.class.is_empty() {
            let text = format!("request {request}: unsupported request type");
            return Err(RejectionReason::Failed(text).into_rejection());
        }
        if !self.classes.contains_key(&ask.class) {
            let class = ask.class.clone();
            return Err(RejectionReason::ClassMissing { request, class }.into_rejection());
        }
        Ok(())
    }

    /// `Filter` for one node: the allocations the pod's claims would get there. Changes nothing. If
    /// it fails with [`Code::Error`](crate::Code::Error), every node fails.
    pub fn place(
        &self,
        demand: &Demand,
        node: &Node,
        options: &Options<'_>,
    ) -> Result<Placement, Rejection> {
        let extended = match &demand.extended {
            Some(extended) => self.extended_on(extended, node)?,
            None => None,
        };
        if demand.claims.is_empty() && extended.is_none() {
            return Ok(Placement::default());
        }
        let mut unavailable = false;
        for known in &demand.claims {
            unavailable |= !is_available(&known.claim, node, options.now_ms)?;
        }
        let wanting = demand.claims.iter().filter(|known| known.claim.allocation.is_none());
        let mut claims: Vec<PendingClaim<'_>> =
            wanting.clone().map(|known| pending_claim(known)).collect();
        let mut names: Vec<ClaimRef> = wanting.map(|known| ClaimRef::of(&known.claim)).collect();
        if let (Some(extended_claim), Some(demanded)) = (&extended, &demand.extended) {
            let name = format!("{}/{}", demanded.claim.namespace, demanded.claim.name);
            claims.push(PendingClaim { name, spec: &extended_claim.spec, selectors: &[] });
            names.push(demanded.claim.clone());
        }
        let mut allocations = Vec::new();
        if !claims.is_empty() {
            allocations = search::allocate(self, node, &claims, options)
                .map_err(RejectionReason::into_rejection)?;
        }
        if unavailable {
            return Err(RejectionReason::UnavailableClaim.into_rejection());
        }
        let score = if allocations.is_empty() { 0 } else { score(demand, &allocations) };
        Ok(Placement { allocations: names.into_iter().zip(allocations).collect(), extended, score })
    }

    /// The claim for the extended resources that the node has no device plugin for.
    fn extended_on(
        &self,
        extended: &ExtendedDemand,
        node: &Node,
    ) -> Result<Option<ExtendedClaim>, Rejection> {
        if let Some(earlier) = &extended.earlier
            && !earlier.claim.spec.requests.is_empty()
        {
            return Err(RejectionReason::StaleExtendedClaim.into_rejection());
        }
        let mut by_devices = Vec::new();
        for (resource, _) in extended.requested.iter().filter(|(_, amount)| *amount != 0) {
            let allocatable = node.allocatable.get(resource);
            let none = allocatable.is_none_or(|amount| amount.value() == 0);
            if none && self.class_for(resource).is_some() {
                by_devices.push(resource.clone());
            } else if allocatable.is_none() {
                return Err(RejectionReason::NoExtendedResource.into_rejection());
            }
        }
        if by_devices.is_empty() {
            return Ok(None);
        }
        Ok(Some(ExtendedClaim::of(&extended.pod, &by_devices, self)))
    }

    /// Whether devices, not a device plugin, serve an extended resource on a node. kube-scheduler's
    /// NodeResourcesFit does not count it there.
    pub fn serves(&self, resource: &ResourceName, node: &Node) -> bool {
        let offered = node.allocatable.get(resource).is_some_and(|amount| amount.value() > 0);
        !offered && self.class_for(resource).is_some()
    }
}

fn pending_claim(known: &KnownClaim) -> PendingClaim<'_> {
    PendingClaim {
        name: format!("{}/{}", known.claim.namespace, known.claim.name),
        spec: &known.claim.spec,
        selectors: &known.selectors,
    }
}

/// Whether an allocated claim can be used from `node`.
fn is_available(claim: &Claim, node: &Node, now_ms: i64) -> Result<bool, Rejection> {
    let Some(allocation) = &claim.allocation else { return Ok(true) };
    if let Some(terms) = &allocation.nodes {
        let matches = any_matches(terms, node)
            .map_err(|error| RejectionReason::Failed(error.to_string()).into_rejection())?;
        if !matches {
            return Ok(false);
        }
    }
    Ok(match readiness(claim, allocation) {
        Readiness::Ready => true,
        Readiness::Failed => false,
        Readiness::Waiting => {
            let awaited = allocation.devices.iter().any(|one| !one.binding_conditions.is_empty());
            let since = allocation.allocated_at_ms;
            !awaited || since.is_none_or(|since| since.saturating_add(BINDING_TIMEOUT_MS) >= now_ms)
        }
    })
}

/// Progress of drivers in preparing devices.
enum Readiness {
    Ready,
    Waiting,
    Failed,
}

fn readiness(claim: &Claim, allocation: &Allocation) -> Readiness {
    for device in allocation.devices.iter().filter(|one| !one.binding_conditions.is_empty()) {
        let Some(reported) =
            claim.device_conditions.iter().find(|reported| reported.id == device.id)
        else {
            return Readiness::Waiting;
        };
        let holds = |condition: &Arc<str>| reported.true_conditions.contains(condition);
        if device.binding_failure_conditions.iter().any(holds) {
            return Readiness::Failed;
        }
        if !device.binding_conditions.iter().all(holds) {
            return Readiness::Waiting;
        }
    }
    Readiness::Ready
}

/// Claims that got earlier alternatives of their lists score higher.
fn score(demand: &Demand, allocations: &[Allocation]) -> i64 {
    let mut allocations = allocations.iter();
    let mut score = 0;
    for known in &demand.claims {
        let allocation = known.claim.allocation.as_ref().or_else(|| allocations.next());
        score += allocation.map_or(0, |allocation| score_of(&known.claim.spec, allocation));
    }
    score
}

fn score_of(spec: &ClaimSpec, allocation: &Allocation) -> i64 {
    let is_given = |request: &str, alternative: &str| {
        let name = |one: &str| one.split_once('/') == Some((request, alternative));
        allocation.devices.iter().any(|device| name(&device.request))
    };
    let mut score = 0;
    for request in &spec.requests {
        let RequestKind::FirstOf(list) = &request.kind else { continue };
        for (at, (alternative, _)) in list.iter().enumerate() {
            if is_given(&request.name, alternative) {
                score += i64::try_from(ALTERNATIVES_MAX.saturating_sub(at)).unwrap_or(0);
            }
        }
    }
    score
}

/// `NormalizeScore`: scores from 0 to 100.
pub fn normalize_scores(scores: &mut [i64]) {
    let most = scores.iter().copied().max().unwrap_or(0);
    if most > 0 {
        for score in scores {
            *score = score.saturating_mul(SCORE_MAX) / most;
        }
    }
}

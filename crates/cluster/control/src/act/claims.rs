//! Allocates and reserves ResourceClaims before their pod is bound.
//!
//! A device must not be allocated twice, not even by a deposed leader that does not know it. So a claim is
//! written by compare-and-swap on a version that was read *before* this replica last renewed the Lease. A later
//! leader changes the claims of announced pods before it decides anything ([`fence`](super::fence)), so writes in
//! flight fail. For the same reason a conflict is never resolved by only reading and writing again, as
//! kube-scheduler does.

pub(super) mod extended;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use berth_api::{Lower as _, raise};
use berth_model::dra::claim::{Allocation, Share};
use berth_model::dra::pod::ClaimSource;
use jiff::Timestamp;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tracing::{debug, warn};

use super::answer::is_final;
use super::attempts::Attempts;
use super::{Actor, CALL};
use crate::core::{BindOrder, BindOutcome, Update};

/// Protects an allocated claim from deletion until it is deallocated.
pub(crate) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Delay between attempts whose outcome is unclear.
const AGAIN: Duration = Duration::from_millis(500);

/// How long to repeat a call whose outcome is unclear. Then the pod is fenced, so that it no longer counts as in
/// flight.
const TRYING_MAX: Duration = Duration::from_secs(30);

/// Conflicts before the pod backs off.
const CONFLICTS_MAX: usize = 5;

/// A claim of the pod, and its allocation if it has none yet.
struct Needed<'a> {
    name: Arc<str>,
    /// Known if there is something to allocate.
    uid: Option<Arc<str>>,
    given: Option<&'a Allocation>,
}

/// The outcome of a write.
enum Written<T> {
    Done(Box<T>),
    Conflict,
    Missing,
    Busy,
    Refused,
    Unclear,
}

/// Whether the pod has claims.
pub(super) fn concern(order: &BindOrder) -> bool {
    order.binding.devices.is_some() || names(order).next().is_some()
}

/// Allocates the pod's claims and reserves them. Returns the version of the pod to bind, once drivers have
/// prepared the devices.
pub(super) async fn prepare(actor: &Actor, order: &BindOrder) -> Result<u64, BindOutcome> {
    if !concern(order) {
        return Ok(order.version);
    }
    let placed = order.binding.devices.as_deref();
    let mut claims = Vec::new();
    for name in names(order) {
        let given = placed.into_iter().flat_map(|placed| &placed.allocations);
        let given =
            given.filter(|(claim, _)| claim.name == name).map(|(claim, given)| (claim, given));
        let (uid, given) = given.map(|(claim, given)| (claim.uid.clone(), given)).next().unzip();
        claims.push(write(actor, order, &Needed { name, uid, given }).await?);
    }
    let mut version = order.version;
    if let Some(placed) = placed.filter(|placed| placed.extended.is_some()) {
        let (claim, seen) = extended::prepare(actor, order, placed).await?;
        claims.push(claim);
        version = seen;
    }
    for claim in claims {
        ready(actor, order, claim).await?;
    }
    Ok(version)
}

/// Removes reservations after a binding that has certainly failed. Allocations stay: the next user of the claim
/// keeps them, or Kubernetes deallocates the claim when it is unused.
pub(super) async fn unreserve(actor: &Actor, order: &BindOrder) {
    for name in names(order) {
        let api = api(actor, order);
        let Ok(Some(claim)) = read(actor, &api, &name).await else { continue };
        if !is_reserved(&claim, order) {
            continue;
        }
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let gone = json!({ "$patch": "delete", "uid": order.pod.uid });
        let body = json!({ "metadata": { "uid": uid }, "status": { "reservedFor": [gone] } });
        let (patch, parameters) = (Patch::Strategic(body), PatchParams::default());
        let mut attempts = attempts();
        loop {
            let patched = api.patch_status(&name, &parameters, &patch);
            match answer(tokio::time::timeout(CALL, patched).await) {
                Written::Done(claim) => tell(actor, &claim),
                Written::Missing => {}
                Written::Busy | Written::Unclear if retry(actor, &mut attempts).await => continue,
                // The next attempt to bind the pod finds it.
                _ => {
                    warn!(claim = %name, pod = %order.pod.name, "could not remove the reservation")
                }
            }
            break;
        }
    }
    if order.binding.devices.as_deref().is_some_and(|placed| placed.extended.is_some()) {
        extended::discard_all(actor, order).await;
    }
}

/// The claims that the pod refers to, each once.
fn names(order: &BindOrder) -> impl Iterator<Item = Arc<str>> {
    let mut told = std::collections::BTreeSet::new();
    let named = order.claims.iter().filter_map(|claim| match &claim.source {
        ClaimSource::Named(name) | ClaimSource::Generated(name) => Some(name.clone()),
        ClaimSource::ToBeGenerated | ClaimSource::NotNeeded | ClaimSource::Unknown => None,
    });
    named.filter(move |name| told.insert(name.clone()))
}

fn api(actor: &Actor, order: &BindOrder) -> Api<resource::ResourceClaim> {
    Api::namespaced(actor.client.clone(), &order.pod.namespace)
}

/// Reports a claim to the core before the watch does.
fn tell(actor: &Actor, claim: &resource::ResourceClaim) {
    let version = claim.metadata.resource_version.as_deref().and_then(|text| text.parse().ok());
    match claim.lower() {
        Ok(lowered) => {
            actor.report(Update::Claim { claim: Box::new(lowered), version: version.unwrap_or(0) });
        }
        Err(problem) => warn!(%problem, "cannot read claim"),
    }
}

fn attempts() -> Attempts {
    Attempts::until(tokio::time::Instant::now() + TRYING_MAX, AGAIN)
}

/// After a failed attempt: whether to try again. Not after the end of the term.
async fn retry(actor: &Actor, attempts: &mut Attempts) -> bool {
    !actor.back.is_closed() && attempts.again().await
}

/// Reads a claim, and repeats until there is an answer.
async fn read(
    actor: &Actor,
    api: &Api<resource::ResourceClaim>,
    name: &str,
) -> Result<Option<resource::ResourceClaim>, BindOutcome> {
    let mut attempts = attempts();
    loop {
        match tokio::time::timeout(CALL, api.get_opt(name)).await {
            Ok(Ok(found)) => {
                found.iter().for_each(|claim| tell(actor, claim));
                return Ok(found);
            }
            Ok(Err(_)) | Err(_) if retry(actor, &mut attempts).await => {}
            Ok(Err(_)) | Err(_) => return Err(BindOutcome::Unprepared),
        }
    }
}

fn answer<T>(answered: Result<Result<T, kube::Error>, tokio::time::error::Elapsed>) -> Written<T> {
    match answered {
        Ok(Ok(object)) => Written::Done(Box::new(object)),
        Ok(Err(kube::Error::Api(status))) => match status.code {
            409 => Written::Conflict,
            404 => Written::Missing,
            429 => Written::Busy,
            code if is_final(code, &status.message) => {
                warn!(code, message = status.message, "could not write claim");
                Written::Refused
            }
            _ => Written::Unclear,
        },
        Ok(Err(_)) | Err(_) => Written::Unclear,
    }
}

fn is_reserved(claim: &resource::ResourceClaim, order: &BindOrder) -> bool {
    let users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    users.into_iter().any(|user| user.uid == *order.pod.uid)
}

/// Whether a claim has this allocation, whatever the ids of its shares.
fn is_given(claim: &resource::ResourceClaim, given: &Allocation) -> bool {
    let plain = |allocation: &Allocation| {
        let mut plain = allocation.clone();
        plain.allocated_at_ms = None;
        for device in &mut plain.devices {
            // These are copied from the claim.
            device.tolerations.clear();
            if let Share::Part { share_id, .. } = &mut device.share {
                *share_id = None;
            }
        }
        plain
    };
    let lowered = claim.lower().ok().and_then(|claim| claim.allocation);
    lowered.is_some_and(|allocation| plain(&allocation) == plain(given))
}

/// Writes one claim and repeats until the outcome is known or it takes too long.
async fn write(
    actor: &Actor,
    order: &BindOrder,
    needed: &Needed<'_>,
) -> Result<resource::ResourceClaim, BindOutcome> {
    let api = api(actor, order);
    let mut conflicts = 0;
    let mut attempts = attempts();
    loop {
        // It was deleted and may have been created again: the decision was about the previous one.
        let Some(claim) = read(actor, &api, &needed.name).await? else {
            return Err(BindOutcome::Stale);
        };
        let is_other = needed.uid.as_deref() != claim.metadata.uid.as_deref();
        if claim.metadata.deletion_timestamp.is_some() || needed.uid.is_some() && is_other {
            return Err(BindOutcome::Stale);
        }
        let has_any = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
        let to_give = match needed.given {
            Some(given) if has_any && !is_given(&claim, given) => return Err(BindOutcome::Stale),
            None if !has_any => return Err(BindOutcome::Stale),
            Some(given) if !has_any => Some(given),
            _ => None,
        };
        if to_give.is_none() && is_reserved(&claim, order) {
            return Ok(claim);
        }
        if !actor.still_leads().await {
            return Err(BindOutcome::Unknown);
        }
        match put(&api, order, claim, to_give).await {
            Written::Done(claim) => {
                tell(actor, &claim);
                return Ok(*claim);
            }
            Written::Conflict if conflicts < CONFLICTS_MAX => conflicts += 1,
            Written::Conflict => return Err(BindOutcome::Stale),
            Written::Missing => return Err(BindOutcome::Stale),
            Written::Refused => return Err(BindOutcome::Refused),
            Written::Busy | Written::Unclear if retry(actor, &mut attempts).await => {}
            Written::Busy | Written::Unclear => return Err(BindOutcome::Unprepared),
        }
    }
}

/// Writes a claim as it was read, with its allocation and reservation.
async fn put(
    api: &Api<resource::ResourceClaim>,
    order: &BindOrder,
    mut claim: resource::ResourceClaim,
    given: Option<&Allocation>,
) -> Written<resource::ResourceClaim> {
    let name = claim.metadata.name.clone().unwrap_or_default();
    let parameters = PostParams::default();
    if let Some(given) = given {
        let finalizers = claim.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|one| one == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
            let put = api.replace(&name, &parameters, &claim);
            match answer(tokio::time::timeout(CALL, put).await) {
                Written::Done(protected) => claim = *protected,
                other => return other,
            }
        }
        let raised = match raise::allocation(given, share_id) {
            Ok(raised) => own_tolerations(raised, &claim),
            Err(problem) => {
                warn!(claim = name, %problem, "cannot write allocation");
                return Written::Refused;
            }
        };
        // Only for new allocations: the API server denies any change of one, even of its time.
        let raised = resource::AllocationResult {
            allocation_timestamp: Some(Time(Timestamp::now())),
            ..raised
        };
        claim.status.get_or_insert_default().allocation = Some(raised);
    }
    let status = claim.status.get_or_insert_default();
    let users = status.reserved_for.get_or_insert_default();
    if !users.iter().any(|user| user.uid == *order.pod.uid) {
        users.push(resource::ResourceClaimConsumerReference {
            api_group: None,
            name: order.pod.name.to_string(),
            resource: "pods".to_owned(),
            uid: order.pod.uid.to_string(),
        });
    }
    answer(tokio::time::timeout(CALL, api.replace_status(&name, &parameters, &claim)).await)
}

/// Tolerations of the claim itself: the model omits their duration.
fn own_tolerations(
    mut raised: resource::AllocationResult,
    claim: &resource::ResourceClaim,
) -> resource::AllocationResult {
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let of = |full: &str| {
        let (name, alternative) = full.split_once('/').unwrap_or((full, ""));
        let request = requests.clone().find(|request| request.name == name)?;
        let exact = request.exactly.as_ref().map(|exactly| &exactly.tolerations);
        let mut subs = request.first_available.iter().flatten();
        let sub = subs.find(|sub| sub.name == alternative).map(|sub| &sub.tolerations);
        exact.or(sub)?.clone()
    };
    let devices =
        raised.devices.iter_mut().flat_map(|devices| devices.results.iter_mut().flatten());
    devices.for_each(|device| device.tolerations = of(&device.request));
    raised
}

/// A unique id for a share of a device.
fn share_id() -> String {
    let mut bytes = [0_u8; 16];
    let provider = rustls::crypto::ring::default_provider();
    if provider.secure_random.fill(&mut bytes).is_err() {
        debug!("the system has no random numbers; using the clock for a share id");
        bytes = Timestamp::now().as_nanosecond().to_be_bytes();
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [hex.get(..8), hex.get(8..12), hex.get(12..16), hex.get(16..20), hex.get(20..)];
    parts.map(Option::unwrap_or_default).join("-")
}

/// Whether drivers have prepared the allocated devices.
async fn ready(
    actor: &Actor,
    order: &BindOrder,
    claim: resource::ResourceClaim,
) -> Result<(), BindOutcome> {
    match readiness(&claim) {
        Readiness::Ready => Ok(()),
        Readiness::Waiting if !order.is_last_attempt => Err(BindOutcome::NotReady),
        Readiness::Waiting | Readiness::Failed => {
            debug!(claim = ?claim.metadata.name, pod = %order.pod.name, "device preparation failed");
            give_up(actor, order, &api(actor, order), claim).await;
            Err(BindOutcome::Stale)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Ready,
    Waiting,
    Failed,
}

fn readiness(claim: &resource::ResourceClaim) -> Readiness {
    let Some(status) = &claim.status else { return Readiness::Waiting };
    let devices = status.allocation.iter().filter_map(|allocation| allocation.devices.as_ref());
    let mut readiness = Readiness::Ready;
    for given in devices.flat_map(|devices| devices.results.iter().flatten()) {
        let Some(awaited) = given.binding_conditions.as_ref().filter(|list| !list.is_empty())
        else {
            continue;
        };
        let said = status.devices.iter().flatten().find(|said| {
            (&said.driver, &said.pool, &said.device) == (&given.driver, &given.pool, &given.device)
                && said.share_id == given.share_id
        });
        let holds = |name: &String| {
            let all = said.iter().flat_map(|said| said.conditions.iter().flatten());
            all.into_iter().any(|one| one.type_ == *name && one.status == "True")
        };
        if given.binding_failure_conditions.iter().flatten().any(holds) {
            return Readiness::Failed;
        }
        if !awaited.iter().all(holds) {
            readiness = Readiness::Waiting;
        }
    }
    readiness
}

/// Deallocates devices that could not be prepared and that no other pod uses, so that others are tried.
async fn give_up(
    actor: &Actor,
    order: &BindOrder,
    api: &Api<resource::ResourceClaim>,
    mut claim: resource::ResourceClaim,
) {
    let name = claim.metadata.name.clone().unwrap_or_default();
    let Some(status) = &mut claim.status else { return };
    let users = status.reserved_for.get_or_insert_default();
    users.retain(|user| user.uid != *order.pod.uid);
    if users.is_empty() {
        status.allocation = None;
        status.devices = None;
    }
    let parameters = PostParams::default();
    let put = api.replace_status(&name, &parameters, &claim);
    if let Written::Done(claim) = answer(tokio::time::timeout(CALL, put).await) {
        tell(actor, &claim);
    }
}

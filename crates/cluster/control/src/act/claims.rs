//! Claims of devices, written before a pod is bound.
//!
//! Owns what stands in a claim's status: what was allocated, and for whom it is reserved. Must not know
//! how devices were chosen.
//!
//! A device must not be given twice, not even by somebody who was deposed without knowing it. So claims
//! are written by compare-and-swap on a version that was read *before* the Lease was written once more in
//! our name: whoever takes the Lease later touches the claims of announced pods before deciding anything
//! ([`fence`](super::fence)), and what we have under way fails. That is also why a conflict is never
//! answered by reading and writing alone, as kube-scheduler does.

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

/// Keeps a claim that has devices from going before they are given back.
pub(crate) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Between two attempts whose outcome was not clear.
const AGAIN: Duration = Duration::from_millis(500);

/// How long a call is repeated whose outcome is unclear. After that the pod is fenced, so that it waits for
/// its turn without a place among those that are in flight.
const TRYING_MAX: Duration = Duration::from_secs(30);

/// So often a claim may change under our hands before the pod has to wait a little.
const CONFLICTS_MAX: usize = 5;

/// A claim of the pod, and what it is to be given if it has nothing yet.
struct Needed<'a> {
    name: Arc<str>,
    /// Known if it is to be given something.
    uid: Option<Arc<str>>,
    given: Option<&'a Allocation>,
}

/// What became of a call that writes.
enum Written<T> {
    Done(Box<T>),
    Conflict,
    Missing,
    Busy,
    Refused,
    Unclear,
}

/// Whether a pod needs anything of this.
pub(super) fn concern(order: &BindOrder) -> bool {
    order.binding.devices.is_some() || names(order).next().is_some()
}

/// Writes what the pod's claims were given, and reserves them for it. Gives the version of the pod to be
/// bound, once they can be used.
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

/// Takes reservations back after a binding that has certainly failed and is not tried again. What was
/// allocated stays so: whoever uses the claim next has it, or Kubernetes takes it back when nobody does.
pub(super) async fn take_back(actor: &Actor, order: &BindOrder) {
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
                Written::Busy | Written::Unclear if go_on(actor, &mut attempts).await => continue,
                // The next attempt to bind the pod finds it.
                _ => {
                    warn!(claim = %name, pod = %order.pod.name, "a reservation was not taken back")
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

/// Tells the core what a claim is like, before the watch does.
fn tell(actor: &Actor, claim: &resource::ResourceClaim) {
    let version = claim.metadata.resource_version.as_deref().and_then(|text| text.parse().ok());
    match claim.lower() {
        Ok(lowered) => {
            actor.learn(Update::Claim { claim: Box::new(lowered), version: version.unwrap_or(0) });
        }
        Err(problem) => warn!(%problem, "a claim cannot be read"),
    }
}

fn attempts() -> Attempts {
    Attempts::until(tokio::time::Instant::now() + TRYING_MAX, AGAIN)
}

/// After an attempt that failed: whether to try again. Not after the term has ended.
async fn go_on(actor: &Actor, attempts: &mut Attempts) -> bool {
    !actor.back.is_closed() && attempts.again().await
}

/// Looks at a claim until it was seen or is gone.
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
            Ok(Err(_)) | Err(_) if go_on(actor, &mut attempts).await => {}
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
                warn!(code, message = status.message, "a claim was not written");
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

/// Whether a claim has what it was to be given, be it under other names of shares.
fn is_given(claim: &resource::ResourceClaim, given: &Allocation) -> bool {
    let plain = |allocation: &Allocation| {
        let mut plain = allocation.clone();
        plain.allocated_at_ms = None;
        for device in &mut plain.devices {
            // These are written as the claim has them.
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

/// Writes one claim, until it is certain what became of it, or it takes too long.
async fn write(
    actor: &Actor,
    order: &BindOrder,
    needed: &Needed<'_>,
) -> Result<resource::ResourceClaim, BindOutcome> {
    let api = api(actor, order);
    let mut conflicts = 0;
    let mut attempts = attempts();
    loop {
        // Somebody deleted it, and it may be another one by now: the decision was about this one.
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
            Written::Busy | Written::Unclear if go_on(actor, &mut attempts).await => {}
            Written::Busy | Written::Unclear => return Err(BindOutcome::Unprepared),
        }
    }
}

/// Writes a claim as it was read, with what is given and for whom.
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
                warn!(claim = name, %problem, "what was decided cannot be written");
                return Written::Refused;
            }
        };
        // Only now: the API server denies any change of an allocation, even of its time.
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

/// Tolerations as the claim has them: the model leaves out for how long they hold.
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

/// A name for a part of a device that nobody else has.
fn share_id() -> String {
    let mut bytes = [0_u8; 16];
    let provider = rustls::crypto::ring::default_provider();
    if provider.secure_random.fill(&mut bytes).is_err() {
        debug!("the system gives no random numbers; the clock names a share");
        bytes = Timestamp::now().as_nanosecond().to_be_bytes();
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [hex.get(..8), hex.get(8..12), hex.get(12..16), hex.get(16..20), hex.get(20..)];
    parts.map(Option::unwrap_or_default).join("-")
}

/// Whether drivers have prepared what a claim was given.
async fn ready(
    actor: &Actor,
    order: &BindOrder,
    claim: resource::ResourceClaim,
) -> Result<(), BindOutcome> {
    match readiness(&claim) {
        Readiness::Ready => Ok(()),
        Readiness::Waiting if !order.is_last_attempt => Err(BindOutcome::NotReady),
        Readiness::Waiting | Readiness::Failed => {
            debug!(claim = ?claim.metadata.name, pod = %order.pod.name, "devices cannot be used");
            give_up(actor, order, &api(actor, order), claim).await;
            Err(BindOutcome::Stale)
        }
    }
}

/// How far drivers are with preparing what a claim was given.
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

/// Gives devices back that could not be prepared, if nobody else uses them, so that others are tried.
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

//! ValidatingAdmissionPolicies that restrict what the scheduler may change of the objects that its role lets it write.
//!
//! There is one policy for each kind of request, as the code makes it. Roles cannot restrict fields: without these
//! policies the scheduler's token could, for example, point a webhook at every Secret. One further policy applies to all
//! users and protects what bound pods hold.

use berth_api::keys::{
    BINDING, FENCED_CLAIM, FENCED_CONDITION, GPU_COMPUTE, GPU_MEMORY, PLACEMENT,
};
use serde_json::{Value, json};

use super::policy::{Policy, keys, same, user_of};
use super::{InstallOptions, NAME};
use crate::act::{BOUND_BY_CONTROLLER, EXTENDED_RESOURCE_CLAIM, FINALIZER, SELECTED_NODE};

pub(super) fn objects(options: &InstallOptions) -> Vec<Value> {
    let mut all = vec![
        statuses(),
        bindings(),
        evictions(),
        events(),
        claims(),
        allocations(),
        extended_claims(),
        volume_claims(),
        volumes(),
        leases(),
        first_leases(),
    ];
    if options.makes_certificates() {
        all.push(certificates());
    }
    if options.publishes_authorities() {
        all.push(authorities());
    }
    let user = user_of(&options.namespace, NAME);
    let bound = "oldObject.spec.?nodeName.orValue(\"\") != \"\"";
    let mut objects: Vec<Value> = bound_pods().objects_for_all("bound", bound).into();
    objects.extend(all.into_iter().flat_map(|policy| policy.objects(&user)));
    objects
}

/// Which part of a GPU a bound pod holds. Annotations state it, and a scheduler that starts later trusts them: an owner
/// who lowers them would overcommit the GPU. Only a Binding writes them, which is not an update.
fn bound_pods() -> Policy {
    let others = format!("!({})", keys(&[PLACEMENT, GPU_MEMORY, GPU_COMPUTE]));
    Policy::new("berth-bound-pods", "", &["pods", "pods/status"], &["UPDATE"])
        .maps("annotations", "metadata.?annotations")
        .check(
            same("variables.annotations", "variables.oldAnnotations", &others),
            "the annotations berth.dev/placement, berth.dev/gpu-memory and berth.dev/gpu-compute of a \
             pod cannot be changed after it is bound: delete the pod and create it again",
        )
}

/// The statuses of pods: conditions of scheduling, the nominated node, the claim for extended resources.
fn statuses() -> Policy {
    const FIELDS: [&str; 3] = ["conditions", "extendedResourceClaimStatus", "nominatedNodeName"];
    let ours = json!(["PodScheduled", "DisruptionTarget", FENCED_CONDITION]);
    let conditions = |one: &str, other: &str| {
        format!("variables.{one}.all(c, c.type in {ours} || c in variables.{other})")
    };
    Policy::new("berth-pod-statuses", "", &["pods/status"], &["UPDATE"])
        .keep_metadata(&[], "berth may not change metadata of pods")
        .maps("status", "?status")
        .variable("conditions", "object.?status.?conditions.orValue([])")
        .variable("oldConditions", "oldObject.?status.?conditions.orValue([])")
        .check(
            same("variables.status", "variables.oldStatus", &keys(&FIELDS)),
            "berth may only change conditions, extendedResourceClaimStatus and nominatedNodeName of a \
             pod's status",
        )
        .check(
            format!(
                "{} && {}",
                conditions("conditions", "oldConditions"),
                conditions("oldConditions", "conditions")
            ),
            "berth may only write the conditions PodScheduled, DisruptionTarget and berth.dev/Fenced of \
             a pod",
        )
}

/// Bindings write their annotations and labels on the pod. The API server adds labels of the node's topology.
fn bindings() -> Policy {
    Policy::new("berth-bindings", "", &["pods/binding"], &["CREATE"])
        .check("object.target.?kind.orValue(\"\") == \"Node\"", "berth may only bind pods to nodes")
        .check(
            format!(
                "dyn(object.metadata.?annotations.orValue({{}})).all(k, k == \"{PLACEMENT}\") && \
                 dyn(object.metadata.?labels.orValue({{}})).all(k, \
                 k.startsWith(\"topology.kubernetes.io/\") || k.startsWith(\"topology.k8s.io/\"))"
            ),
            "berth may only set the annotation berth.dev/placement in a Binding",
        )
}

/// Evictions, which PodDisruptionBudgets may deny.
fn evictions() -> Policy {
    let options = "object.?deleteOptions";
    Policy::new("berth-evictions", "", &["pods/eviction"], &["CREATE"]).check(
        format!(
            "{options}.?preconditions.?uid.hasValue() && !{options}.?gracePeriodSeconds.hasValue()"
        ),
        "berth may only evict with preconditions.uid and without gracePeriodSeconds",
    )
}

/// Events about pods.
fn events() -> Policy {
    event_policy("berth-events").check(
        format!("object.?reportingController.orValue(\"\") == \"{NAME}\""),
        "berth may only write events with reportingController berth",
    )
}

/// Events about a pod of the event's own namespace.
pub(super) fn event_policy(name: &str) -> Policy {
    Policy::new(name, "events.k8s.io", &["events"], &["CREATE"]).check(
        "object.?regarding.?kind.orValue(\"\") == \"Pod\" && \
         object.regarding.?namespace.orValue(\"\") == object.metadata.namespace",
        "events may only be about pods of their own namespace",
    )
}

/// Whether a claim was made for the extended resources of a pod.
fn is_extended(claim: &str) -> String {
    format!(
        "{claim}.metadata.?annotations[?\"{EXTENDED_RESOURCE_CLAIM}\"].orValue(\"\") == \"true\" && \
         {claim}.metadata.?ownerReferences.orValue([]).exists_one(o, o.kind == \"Pod\" && \
         o.?controller.orValue(false))"
    )
}

/// ResourceClaims of pods: the finalizer that protects an allocation, the label that fences them.
fn claims() -> Policy {
    let extended = is_extended("oldObject");
    Policy::new("berth-claims", "resource.k8s.io", &["resourceclaims"], &["UPDATE"])
        .keep_metadata(
            &["finalizers", "labels"],
            "berth may only change finalizers and labels of a ResourceClaim's metadata",
        )
        .maps("labels", "metadata.?labels")
        .variable("finalizers", "object.metadata.?finalizers.orValue([])")
        .variable("oldFinalizers", "oldObject.metadata.?finalizers.orValue([])")
        .check("object.spec == oldObject.spec", "berth may not change the spec of a ResourceClaim")
        .check(
            same("variables.labels", "variables.oldLabels", &keys(&[FENCED_CLAIM])),
            "berth may only write the label berth.dev/fenced of a ResourceClaim",
        )
        .check(
            format!(
                "variables.finalizers.all(f, f == \"{FINALIZER}\" || f in \
                 variables.oldFinalizers) && variables.oldFinalizers.all(f, f in \
                 variables.finalizers || f == \"{FINALIZER}\" && {extended})"
            ),
            "berth may only add the finalizer resource.kubernetes.io/delete-protection to a \
             ResourceClaim, and remove it from claims for extended resources",
        )
}

/// The statuses of ResourceClaims: allocations, which the API server lets no one replace, and reservations, one pod at a
/// time.
fn allocations() -> Policy {
    const FIELDS: [&str; 3] = ["allocation", "devices", "reservedFor"];
    let path = "?status.?allocation";
    Policy::new("berth-allocations", "resource.k8s.io", &["resourceclaims/status"], &["UPDATE"])
        .keep_metadata(&[], "berth may not change a ResourceClaim's metadata in a status update")
        .maps("status", "?status")
        .variable("is", format!("object.{path}.hasValue()"))
        .variable("was", format!("oldObject.{path}.hasValue()"))
        .variable("users", "object.?status.?reservedFor.orValue([])")
        .variable("oldUsers", "oldObject.?status.?reservedFor.orValue([])")
        .check(
            same("variables.status", "variables.oldStatus", &keys(&FIELDS)),
            "berth may only change allocation, devices and reservedFor of a ResourceClaim's status",
        )
        .check(
            "!variables.was || variables.is || size(variables.users) == 0 && \
             size(variables.oldUsers) <= 1",
            "berth may not remove an allocation that other pods have reserved",
        )
        .check(
            "!variables.is && !object.?status.?devices.hasValue() || \
             object.?status.?devices == oldObject.?status.?devices",
            "berth may only remove a ResourceClaim's status.devices together with its allocation",
        )
        .check(
            "variables.users.filter(u, !(u in variables.oldUsers)).size() <= 1 && \
             variables.oldUsers.filter(u, !(u in variables.users)).size() <= 1 && \
             variables.users.all(u, u in variables.oldUsers || u.resource == \"pods\" && \
             u.?apiGroup.orValue(\"\") == \"\")",
            "berth may only reserve a ResourceClaim for pods, one at a time",
        )
}

/// Claims for the extended resources of a pod: the scheduler creates and deletes them.
fn extended_claims() -> Policy {
    Policy::new(
        "berth-extended-claims",
        "resource.k8s.io",
        &["resourceclaims"],
        &["CREATE", "DELETE"],
    )
    .variable("claim", "request.operation == \"DELETE\" ? oldObject : object")
    .check(
        is_extended("variables.claim"),
        "berth may only create and delete ResourceClaims for extended resources of a pod",
    )
    .check(
        "request.operation == \"DELETE\" || size(object.metadata.?annotations.orValue({})) == 1 && \
             size(object.metadata.?ownerReferences.orValue([])) == 1 && \
             size(object.metadata.?labels.orValue({})) == 0 && \
             size(object.metadata.?finalizers.orValue([])) == 0",
        "berth may only create ResourceClaims with one owner, one annotation, no label and no \
             finalizer",
    )
}

/// PersistentVolumeClaims: the node where their volume is provisioned.
fn volume_claims() -> Policy {
    Policy::new("berth-volume-claims", "", &["persistentvolumeclaims"], &["UPDATE"])
        .keep_metadata(
            &["annotations"],
            "berth may only change annotations of a PersistentVolumeClaim's metadata",
        )
        .maps("annotations", "metadata.?annotations")
        .check(
            "object.spec == oldObject.spec",
            "berth may not change the spec of a PersistentVolumeClaim",
        )
        .check(
            same(
                "variables.annotations",
                "variables.oldAnnotations",
                &format!("k == \"{SELECTED_NODE}\" && !(k in variables.oldAnnotations)"),
            ),
            "berth may only add the annotation volume.kubernetes.io/selected-node to a \
             PersistentVolumeClaim",
        )
}

/// PersistentVolumes: the claim that an available volume is for.
fn volumes() -> Policy {
    let old = "oldObject.spec.?claimRef";
    Policy::new("berth-volumes", "", &["persistentvolumes"], &["UPDATE"])
        .keep_metadata(
            &["annotations"],
            "berth may only change annotations of a PersistentVolume's metadata",
        )
        .maps("annotations", "metadata.?annotations")
        .maps("spec", "spec")
        .check(
            same("variables.spec", "variables.oldSpec", &keys(&["claimRef"])),
            "berth may only change claimRef of a PersistentVolume's spec",
        )
        .check(
            format!(
                "object.spec.?claimRef == {old} || object.spec.?claimRef.?kind.orValue(\"\") == \
                 \"PersistentVolumeClaim\" && object.spec.claimRef.?uid.orValue(\"\") != \"\" && \
                 (!{old}.hasValue() || {old}.?uid.orValue(\"\") == \"\" && \
                 oldObject.spec.claimRef.?namespace == object.spec.claimRef.?namespace && \
                 oldObject.spec.claimRef.?name == object.spec.claimRef.?name)"
            ),
            "berth may not rebind a PersistentVolume that is reserved for another claim",
        )
        .check(
            same(
                "variables.annotations",
                "variables.oldAnnotations",
                &format!(
                    "k == \"{BOUND_BY_CONTROLLER}\" && \
                     variables.annotations[?k].orValue(\"\") == \"yes\""
                ),
            ),
            "berth may only add the annotation pv.kubernetes.io/bound-by-controller to a \
             PersistentVolume",
        )
}

/// The Lease: replicas agree by it, and by its annotation on which bindings are in flight.
fn leases() -> Policy {
    Policy::new("berth-leases", "coordination.k8s.io", &["leases"], &["UPDATE"])
        .keep_metadata(
            &["annotations"],
            "berth may only change annotations of its Lease's metadata",
        )
        .maps("annotations", "metadata.?annotations")
        .check(
            same("variables.annotations", "variables.oldAnnotations", &keys(&[BINDING])),
            "berth may only write the annotation berth.dev/binding of its Lease",
        )
}

/// The first Lease, or one to replace a deleted one.
fn first_leases() -> Policy {
    Policy::new("berth-first-leases", "coordination.k8s.io", &["leases"], &["CREATE"])
        .check(
            format!("object.metadata.name == \"{NAME}\""),
            "berth may only create the Lease berth",
        )
        .check(
            "[\"annotations\", \"finalizers\", \"labels\", \"ownerReferences\"].all(k, !(k in \
             dyn(object.metadata)))",
            "berth may only create its Lease without annotations, finalizers, labels and owners",
        )
}

/// The Secret with the certificates.
fn certificates() -> Policy {
    Policy::new("berth-certificates", "", &["secrets"], &["UPDATE"])
        .keep_metadata(&[], "berth may not change metadata of its Secret")
        .variable("secret", "dyn(object)")
        .variable("oldSecret", "dyn(oldObject)")
        .check(
            same("variables.secret", "variables.oldSecret", &keys(&["data", "metadata"])),
            "berth may only change data of its Secret",
        )
}

/// The webhook configurations: the authorities that the API server trusts.
fn authorities() -> Policy {
    let same_webhook = same("dyn(w)", "dyn(o)", &keys(&["clientConfig"]));
    let same_client = same("dyn(w.clientConfig)", "dyn(o.clientConfig)", &keys(&["caBundle"]));
    Policy::new(
        "berth-authorities",
        "admissionregistration.k8s.io",
        &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
        &["UPDATE"],
    )
    .keep_metadata(&[], "berth may not change metadata of a webhook configuration")
    .variable("webhooks", "object.?webhooks.orValue([])")
    .variable("oldWebhooks", "oldObject.?webhooks.orValue([])")
    .check(
        format!(
            "size(variables.webhooks) == size(variables.oldWebhooks) && \
             variables.webhooks.all(w, variables.oldWebhooks.exists(o, o.name == w.name && \
             {same_webhook} && {same_client}))"
        ),
        "berth may only change caBundle of a webhook configuration",
    )
}

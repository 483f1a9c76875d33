//! Every right that is printed, with the code that needs it.
//!
//! A right without an entry fails the test, and so does an entry without a right, or one whose code is gone. The table of
//! docs/operations/security.md has the same rows.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use berth_control::install::{AGENT_NAME, AgentOptions, InstallOptions, NAME, manifests};

/// Some verbs on a resource, the file that makes these requests, and a piece of code in it.
struct Use {
    role: &'static str,
    verbs: &'static str,
    resources: &'static str,
    file: &'static str,
    code: &'static str,
    /// The policy that limits fields, or what else limits the right.
    limit: &'static str,
}

const fn berth(
    verbs: &'static str,
    resources: &'static str,
    file: &'static str,
    code: &'static str,
    limit: &'static str,
) -> Use {
    Use { role: NAME, verbs, resources, file, code, limit }
}

const fn agent(
    verbs: &'static str,
    resources: &'static str,
    file: &'static str,
    code: &'static str,
    limit: &'static str,
) -> Use {
    Use { role: AGENT_NAME, verbs, resources, file, code, limit }
}

const READS: &str = "nothing: all of them can be read";
const REVIEWS: &str = "nothing: a review changes nothing";
const STATUS: &str = "the status alone is written";
const ONE: &str = "`resourceNames`";

const KINDS: &str = "crates/cluster/control/src/watch/kinds.rs";
const FOLLOW: &str = "crates/cluster/control/src/webhook/follow.rs";
const ACT: &str = "crates/cluster/control/src/act.rs";
const REQUESTS: &str = "crates/cluster/control/src/act/requests.rs";
const CLAIMS: &str = "crates/cluster/control/src/act/claims.rs";
const EXTENDED: &str = "crates/cluster/control/src/act/claims/extended.rs";
const VOLUMES: &str = "crates/cluster/control/src/act/volumes.rs";
const ACCESS: &str = "crates/cluster/control/src/http/access.rs";
const KEEPER: &str = "crates/cluster/control/src/certificates/keeper.rs";
const LEASE: &str = "crates/cluster/control/src/lease/elector.rs";
const RUN: &str = "crates/node/agent/src/run.rs";
const DESK: &str = "crates/node/agent/src/run/writer.rs";
const DIVIDING: &str = "crates/node/agent/src/mig_reconciler.rs";

const USES: &[Use] = &[
    berth("list watch", "namespaces", KINDS, "simple::<core::Namespace>", READS),
    berth("list watch", "nodes", KINDS, "add::<core::Node>", READS),
    berth("list watch", "pods", KINDS, "follow::<RawPod>", READS),
    berth("list watch", "persistentvolumes", KINDS, "simple::<core::PersistentVolume>", READS),
    berth(
        "list watch",
        "persistentvolumeclaims",
        KINDS,
        "simple::<core::PersistentVolumeClaim>",
        READS,
    ),
    berth(
        "list watch",
        "replicationcontrollers",
        KINDS,
        "simple::<core::ReplicationController>",
        READS,
    ),
    berth("list watch", "replicasets", KINDS, "simple::<apps::ReplicaSet>", READS),
    berth("list watch", "statefulsets", KINDS, "simple::<apps::StatefulSet>", READS),
    berth("list watch", "services", KINDS, "simple::<core::Service>", READS),
    berth("list watch", "resourcequotas", KINDS, "simple::<core::ResourceQuota>", READS),
    berth(
        "list watch",
        "poddisruptionbudgets",
        KINDS,
        "simple::<policy::PodDisruptionBudget>",
        READS,
    ),
    berth("list watch", "podgroups", KINDS, "simple::<gang::PodGroup>", READS),
    berth("list watch", "priorityclasses", KINDS, "simple::<scheduling::PriorityClass>", READS),
    berth("list watch", "csidrivers", KINDS, "simple::<storage::CSIDriver>", READS),
    berth("list watch", "csinodes", KINDS, "simple::<storage::CSINode>", READS),
    berth(
        "list watch",
        "csistoragecapacities",
        KINDS,
        "simple::<storage::CSIStorageCapacity>",
        READS,
    ),
    berth("list watch", "storageclasses", KINDS, "simple::<storage::StorageClass>", READS),
    berth("list watch", "volumeattachments", KINDS, "simple::<storage::VolumeAttachment>", READS),
    berth("list watch", "deviceclasses", KINDS, "simple::<resource::DeviceClass>", READS),
    berth("list watch", "resourceslices", KINDS, "simple::<resource::ResourceSlice>", READS),
    berth("list watch", "resourceclaims", KINDS, "add::<resource::ResourceClaim>", READS),
    berth("list watch", "noderesourcetopologies", KINDS, "add::<NodeResourceTopology>", READS),
    berth("list watch", "accelerators", KINDS, "add::<crd::Accelerator>", READS),
    berth("list watch", "headrooms", KINDS, "simple::<crd::Headroom>", READS),
    berth("list watch", "pools", KINDS, "add::<crd::Pool>", READS),
    berth("list watch", "teams", KINDS, "simple::<crd::Team>", READS),
    berth("list watch", "limitranges", FOLLOW, "\"limitranges\"", READS),
    berth("list watch", "nodepools", FOLLOW, "\"nodepools\"", READS),
    berth("get", "pods", ACT, "api.get_opt(&pod.name)", READS),
    berth("create", "pods/binding", REQUESTS, "\"binding\")", "`berth-bindings`"),
    berth("create", "pods/eviction", REQUESTS, "pod_path(pod, \"eviction\")", "`berth-evictions`"),
    berth(
        "patch",
        "pods/status",
        REQUESTS,
        "pod_path(&update.pod, \"status\")",
        "`berth-pod-statuses`",
    ),
    berth("create", "events", REQUESTS, "/apis/events.k8s.io/v1/", "`berth-events`"),
    berth("patch", "headrooms/status", REQUESTS, "{plural}/{name}/status", STATUS),
    berth("patch", "teams/status", REQUESTS, "{plural}/{name}/status", STATUS),
    berth("get", "resourceclaims", CLAIMS, "api.get_opt(name)", READS),
    berth("patch", "resourceclaims", REQUESTS, "fn fence_claim(", "`berth-claims`"),
    berth("update", "resourceclaims", CLAIMS, "api.replace(&name", "`berth-claims`"),
    berth("create", "resourceclaims", EXTENDED, "api.create(", "`berth-extended-claims`"),
    berth("delete", "resourceclaims", EXTENDED, "api.delete(", "`berth-extended-claims`"),
    berth("patch", "resourceclaims/status", CLAIMS, "api.patch_status(", "`berth-allocations`"),
    berth("update", "resourceclaims/status", CLAIMS, "api.replace_status(", "`berth-allocations`"),
    berth("patch", "resourceclaims/binding", CLAIMS, "api.patch_status(", "`berth-allocations`"),
    berth("update", "resourceclaims/binding", CLAIMS, "api.replace_status(", "`berth-allocations`"),
    berth("get", "persistentvolumeclaims", VOLUMES, "claims.get(&late.claim)", READS),
    berth("get", "persistentvolumes", VOLUMES, "volumes.get(name)", READS),
    berth("patch", "persistentvolumeclaims", VOLUMES, "patched(&claims", "`berth-volume-claims`"),
    berth("patch", "persistentvolumes", VOLUMES, "patched(&volumes", "`berth-volumes`"),
    berth("create", "tokenreviews", ACCESS, "Api<TokenReview>", REVIEWS),
    berth("create", "subjectaccessreviews", ACCESS, "Api<SubjectAccessReview>", REVIEWS),
    berth(
        "get",
        "validatingwebhookconfigurations",
        KEEPER,
        "publish::<ValidatingWebhookConfiguration>",
        ONE,
    ),
    berth(
        "get",
        "mutatingwebhookconfigurations",
        KEEPER,
        "publish::<MutatingWebhookConfiguration>",
        ONE,
    ),
    berth(
        "patch",
        "validatingwebhookconfigurations",
        KEEPER,
        "publish::<ValidatingWebhookConfiguration>",
        "`resourceNames`, `berth-authorities`",
    ),
    berth(
        "patch",
        "mutatingwebhookconfigurations",
        KEEPER,
        "publish::<MutatingWebhookConfiguration>",
        "`resourceNames`, `berth-authorities`",
    ),
    berth("get", "secrets", KEEPER, "api.get_opt(&self.secret)", ONE),
    berth(
        "update",
        "secrets",
        KEEPER,
        "api.replace(&self.secret",
        "`resourceNames`, `berth-certificates`",
    ),
    berth("create", "leases", LEASE, "self.api.create(", "its namespace, `berth-first-leases`"),
    berth("get", "leases", LEASE, "self.api.get_opt(", ONE),
    berth("update", "leases", LEASE, "self.api.replace(", "`resourceNames`, `berth-leases`"),
    berth("watch", "leases", LEASE, "self.api.watch(", ONE),
    agent("get", "nodes", DESK, "nodes.get_metadata(", READS),
    agent("patch", "nodes", DESK, "nodes.patch_metadata(", "`berth-agent-nodes`"),
    agent("list watch", "nodes", DIVIDING, "watcher(nodes.clone()", READS),
    agent("list watch", "noderesourcetopologies", RUN, "followed::<NodeResourceTopology>", READS),
    agent(
        "create patch",
        "noderesourcetopologies",
        DESK,
        "&Patch::Apply(object)",
        "`berth-agent-topologies`",
    ),
    agent("list watch", "pods", RUN, "followed::<Pod>", READS),
    agent("patch", "pods", DESK, "pods.patch_metadata(", "`berth-agent-pods`"),
    agent("create", "events", DESK, "events.create(", "`berth-agent-events`"),
];

/// Policies that limit no right of Berth's, but what all users may do.
const FOR_ALL: &[&str] = &["berth-bound-pods"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn everything() -> InstallOptions {
    InstallOptions {
        agent: Some(AgentOptions { mig: true, ..AgentOptions::default() }),
        ..InstallOptions::default()
    }
}

/// Role, verb and resource of each right.
type Right = (String, String, String);

fn printed() -> BTreeSet<Right> {
    let mut found = BTreeSet::new();
    for object in manifests(&everything()) {
        let name = object["metadata"]["name"].as_str().unwrap();
        if ![NAME, AGENT_NAME].contains(&name) {
            continue;
        }
        for rule in object["rules"].as_array().into_iter().flatten() {
            for resource in rule["resources"].as_array().unwrap() {
                for verb in rule["verbs"].as_array().unwrap() {
                    let [verb, resource] = [verb, resource].map(|one| one.as_str().unwrap());
                    found.insert((name.to_owned(), verb.to_owned(), resource.to_owned()));
                }
            }
        }
    }
    found
}

#[test]
fn every_right_has_code_that_needs_it_and_the_other_way_around() {
    let mut needed = BTreeSet::new();
    for one in USES {
        for verb in one.verbs.split(' ') {
            let right = (one.role.to_owned(), verb.to_owned(), one.resources.to_owned());
            assert!(needed.insert(right), "{verb} {} is listed twice", one.resources);
        }
        let code = std::fs::read_to_string(root().join(one.file)).unwrap();
        let (shipped, _) = code.split_once("#[cfg(test)]\nmod tests {").unwrap_or((&code, ""));
        let right = format!("{} may {} {}", one.role, one.verbs, one.resources);
        assert!(shipped.contains(one.code), "{right}: {} has no {:?}", one.file, one.code);
    }
    let printed = printed();
    let unneeded: Vec<_> = printed.difference(&needed).collect();
    assert!(unneeded.is_empty(), "printed, and no code needs it: {unneeded:?}");
    let missing: Vec<_> = needed.difference(&printed).collect();
    assert!(missing.is_empty(), "needed, and not printed: {missing:?}");
}

#[test]
fn policies_that_limit_rights_exist_and_are_listed() {
    let all = manifests(&everything());
    let policies: BTreeSet<&str> = all
        .iter()
        .filter(|one| one["kind"] == "ValidatingAdmissionPolicy")
        .map(|one| one["metadata"]["name"].as_str().unwrap())
        .collect();
    let listed: BTreeSet<&str> = USES
        .iter()
        .flat_map(|one| one.limit.split('`'))
        .filter(|word| word.starts_with("berth-"))
        .chain(FOR_ALL.iter().copied())
        .collect();
    assert_eq!(listed, policies);
    let document = std::fs::read_to_string(root().join("docs/operations/security.md")).unwrap();
    for policy in FOR_ALL {
        assert!(document.contains(&format!("`{policy}`")), "security.md does not name {policy}");
    }
}

#[test]
fn the_document_has_the_same_rows() {
    let document = std::fs::read_to_string(root().join("docs/operations/security.md")).unwrap();
    let is_row =
        |line: &&str| ["| berth |", "| berth-agent |"].iter().any(|at| line.starts_with(at));
    let written: Vec<&str> = document.lines().filter(is_row).collect();
    let expected: Vec<String> = USES
        .iter()
        .map(|one| {
            let verbs = one.verbs.replace(' ', ", ");
            let file = one.file.strip_prefix("crates/").unwrap();
            format!(
                "| {} | {verbs} | {} | [{file}](../../{}) | {} |",
                one.role, one.resources, one.file, one.limit
            )
        })
        .collect();
    assert_eq!(written, expected, "docs/operations/security.md has other rows");
}

/// The agent is another crate: its policy has a copy of the names.
#[test]
fn the_policy_has_every_annotation_that_the_agent_publishes() {
    let code =
        std::fs::read_to_string(root().join("crates/node/agent/src/publish/facts.rs")).unwrap();
    let (shipped, _) = code.split_once("#[cfg(test)]\nmod tests {").unwrap_or((&code, ""));
    let fields: BTreeSet<&str> =
        shipped.split("add(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(!fields.is_empty());
    let all = manifests(&everything());
    let policy = all.iter().find(|one| {
        one["kind"] == "ValidatingAdmissionPolicy" && one["metadata"]["name"] == "berth-agent-nodes"
    });
    let checks = policy.unwrap()["spec"]["validations"].as_array().unwrap();
    let has = |key: &str| {
        let quoted = format!("\"{key}\"");
        checks.iter().any(|check| check["expression"].as_str().unwrap().contains(&quoted))
    };
    for field in fields {
        let key = berth_topology::key_of(field);
        assert!(has(&key), "the policy denies the annotation {key}");
    }
    for key in [
        berth_api::keys::MIG_STATE_LABEL,
        berth_api::keys::MIG_STATE,
        berth_agent::mig::manager::CONFIG,
        berth_agent::mig::manager::STATE,
    ] {
        assert!(has(key), "the policy denies {key}");
    }
}

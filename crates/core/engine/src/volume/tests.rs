//! The four volume plugins, rule by rule. Recorded vectors compare them as a whole with
//! kube-scheduler's.

use std::sync::Arc;

use berth_model::affinity::NodeTerm;
use berth_model::label::{Labels, Operator, Requirement, Selector};
use berth_model::node::Node;
use berth_model::spec::{Disk, PodSpec, Volume};
use berth_model::storage::{
    AccessMode, Claim, ClaimRef, CsiDriver, CsiNode, CsiSource, InTreeDisk, InTreePlugin,
    PersistentVolume, StorageCapacity, StorageClass, VolumeAttachment, VolumeMode, VolumeSource,
};

use super::{Owner, PodVolumes, Storage};
use crate::event::Event;
use crate::verdict::{Code, Plugin, Rejection};

impl Storage {
    fn put<T>(&mut self, event: impl Fn(T) -> Event, object: T) {
        self.apply(event(object));
    }
}

const GIB: i64 = 1 << 30;
const ZONE: &str = "topology.kubernetes.io/zone";
const OWNER: Owner<'static> = Owner { name: "pod", uid: "uid-pod" };

fn pod(volumes: impl IntoIterator<Item = Volume>) -> PodSpec {
    PodSpec { namespace: "ns".into(), volumes: volumes.into_iter().collect(), ..PodSpec::default() }
}

fn uses(name: &str) -> Volume {
    Volume::Claim { name: name.into(), ephemeral: false }
}

fn ephemeral(name: &str) -> Volume {
    Volume::Claim { name: name.into(), ephemeral: true }
}

fn claim(name: &str) -> Claim {
    Claim {
        namespace: "ns".into(),
        name: name.into(),
        uid: format!("uid-{name}").into(),
        access: vec![AccessMode::ReadWriteOnce],
        request_bytes: GIB,
        class: Some("late".into()),
        ..Claim::default()
    }
}

fn bound(name: &str, volume: &str) -> Claim {
    Claim { volume: Some(volume.into()), bind_completed: true, ..claim(name) }
}

fn exclusive(name: &str) -> Claim {
    Claim { access: vec![AccessMode::ReadWriteOncePod], ..bound(name, "v") }
}

fn volume(name: &str, gib: i64) -> PersistentVolume {
    PersistentVolume {
        name: name.into(),
        access: vec![AccessMode::ReadWriteOnce],
        capacity_bytes: gib * GIB,
        class: "late".into(),
        available: true,
        ..PersistentVolume::default()
    }
}

fn csi(name: &str, driver: &str) -> PersistentVolume {
    let source = VolumeSource::Csi(CsiSource { driver: driver.into(), handle: name.into() });
    PersistentVolume { source, ..volume(name, 1) }
}

fn in_tree(plugin: InTreePlugin, id: &str) -> VolumeSource {
    VolumeSource::InTree(InTreeDisk { plugin, id: id.into() })
}

fn class(provisioner: &str) -> StorageClass {
    StorageClass {
        name: "late".into(),
        provisioner: provisioner.into(),
        waits_for_consumer: Some(true),
        ..StorageClass::default()
    }
}

fn node(labels: &[(&str, &str)]) -> Node {
    Node { name: "n".into(), labels: labels.iter().copied().collect(), ..Node::default() }
}

fn wants(key: &str, value: &str) -> NodeTerm {
    let operator = Operator::In(vec![value.into()]);
    NodeTerm { labels: vec![Requirement { key: key.into(), operator }], name: vec![] }
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().copied().collect()
}

fn storage(claims: impl IntoIterator<Item = Claim>) -> Storage {
    let mut storage = Storage::default();
    claims.into_iter().for_each(|claim| storage.put(Event::Claim, claim));
    storage.put(Event::StorageClass, class("kubernetes.io/no-provisioner"));
    storage
}

fn with_volumes(
    mut storage: Storage,
    volumes: impl IntoIterator<Item = PersistentVolume>,
) -> Storage {
    volumes.into_iter().for_each(|volume| storage.put(Event::Volume, volume));
    storage
}

fn prepare<'a>(storage: &'a Storage, pod: &'a PodSpec) -> PodVolumes<'a> {
    PodVolumes::new(storage, pod, OWNER, &|_, _| false).unwrap().unwrap()
}

fn refusal(storage: &Storage, pod: &PodSpec) -> (Plugin, String) {
    let rejection = PodVolumes::new(storage, pod, OWNER, &|_, _| false).unwrap_err();
    assert_eq!(rejection.code, Code::UnschedulableAndUnresolvable);
    (rejection.plugin, rejection.reasons[0].to_string())
}

fn words(verdict: Result<(), Rejection>) -> Vec<String> {
    verdict.err().into_iter().flat_map(|no| no.reasons).map(|reason| reason.to_string()).collect()
}

const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
const OUT_OF_REACH: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_SPACE: &str = "node(s) did not have enough free storage";

/// Reasons why a pod's claims cannot be bound on a node with these labels.
fn binds(storage: &Storage, names: &[&str], on: &[(&str, &str)]) -> Vec<String> {
    let pod = pod(names.iter().map(|name| uses(name)));
    words(prepare(storage, &pod).binding(&node(on)))
}

#[test]
fn a_pod_without_volumes_is_not_looked_at() {
    let storage = Storage::default();
    assert!(PodVolumes::new(&storage, &pod([]), OWNER, &|_, _| true).unwrap().is_none());
}

#[test]
fn unusable_claims_turn_the_pod_down_everywhere() {
    let foreign = Claim { controller_uid: Some("uid-other".into()), ..claim("pod-tmp") };
    let lost = Claim { lost: true, ..bound("lost", "v") };
    let leaving = Claim { deleting: true, ..claim("leaving") };
    let half = Claim { bind_completed: false, ..bound("half", "v") };
    let classless = Claim { class: None, ..claim("classless") };
    let unknown = Claim { class: Some("nope".into()), ..claim("unknown") };
    let storage = storage([foreign, lost, leaving, half, classless, unknown, bound("gone", "v")]);
    let immediate = "pod has unbound immediate PersistentVolumeClaims";
    let binding = Plugin::VolumeBinding;
    for (volume, plugin, text) in [
        (uses("none"), Plugin::VolumeRestrictions, "persistentvolumeclaim \"none\" not found"),
        (
            ephemeral("pod-x"),
            binding,
            "waiting for ephemeral volume controller to create the persistentvolumeclaim \"pod-x\"",
        ),
        (
            ephemeral("pod-tmp"),
            binding,
            "PVC ns/pod-tmp was not created for pod ns/pod (pod is not owner)",
        ),
        (
            uses("lost"),
            binding,
            "persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"v\"",
        ),
        (uses("leaving"), binding, "persistentvolumeclaim \"leaving\" is being deleted"),
        (uses("half"), binding, immediate),
        (uses("classless"), binding, immediate),
        (uses("unknown"), binding, immediate),
        (uses("gone"), Plugin::VolumeZone, "persistentvolume \"v\" not found"),
    ] {
        assert_eq!(refusal(&storage, &pod([volume])), (plugin, text.into()));
    }
}

#[test]
fn plugins_are_asked_in_their_order() {
    let storage = storage([Claim { deleting: true, ..claim("leaving") }]);
    let both = pod([uses("leaving"), uses("none")]);
    assert_eq!(refusal(&storage, &both).0, Plugin::VolumeRestrictions);
}

#[test]
fn a_missing_volume_is_reported_per_node_only_if_ephemeral() {
    let own = Claim { controller_uid: Some("uid-pod".into()), ..bound("pod-tmp", "v") };
    let storage = storage([own]);
    let pod = pod([ephemeral("pod-tmp")]);
    let text = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
    assert_eq!(words(prepare(&storage, &pod).binding(&node(&[]))), [text]);
}

#[test]
fn disks_are_shared_by_readers_at_most() {
    let gce = |name: &str, read_only| Disk::Gce { name: name.into(), read_only };
    let ebs = |id: &str| Disk::Ebs { id: id.into() };
    let iscsi = |iqn: &str, read_only| Disk::Iscsi { iqn: iqn.into(), read_only };
    let rbd = |monitors: &[&str], image: &str, read_only| Disk::Rbd {
        monitors: monitors.iter().map(|name| Arc::from(*name)).collect(),
        pool: "rbd".into(),
        image: image.into(),
        read_only,
    };
    let azure = || Disk::Counted(InTreeDisk { plugin: InTreePlugin::AzureDisk, id: "a".into() });
    for (one, other, conflict) in [
        (gce("a", true), gce("a", true), false),
        (gce("a", true), gce("a", false), true),
        (gce("a", false), gce("b", false), false),
        (ebs("a"), ebs("a"), true),
        (ebs("a"), gce("a", false), false),
        (iscsi("a", true), iscsi("a", true), false),
        (iscsi("a", false), iscsi("a", true), true),
        (rbd(&["x", "y"], "i", false), rbd(&["y", "z"], "i", true), true),
        (rbd(&["x"], "i", false), rbd(&["y"], "i", false), false),
        (rbd(&["x"], "i", false), rbd(&["x"], "j", false), false),
        (rbd(&["x"], "i", true), rbd(&["x"], "i", true), false),
        (azure(), azure(), false),
    ] {
        let (storage, resident) = (Storage::default(), pod([Volume::Disk(other.clone())]));
        let incoming = pod([Volume::Disk(one.clone())]);
        let verdict = prepare(&storage, &incoming).restrictions([&resident].into_iter(), 0);
        let expected: &[&str] = if conflict { &["node(s) had no available disk"] } else { &[] };
        assert_eq!(words(verdict), expected, "{one:?} {other:?}");
    }
}

#[test]
fn an_exclusive_claim_is_free_once_its_users_are_gone() {
    let storage = with_volumes(storage([exclusive("c")]), [volume("v", 1)]);
    let incoming = pod([uses("c")]);
    let in_use = |namespace: &str, name: &str| (namespace, name) == ("ns", "c");
    let volumes = PodVolumes::new(&storage, &incoming, OWNER, &in_use).unwrap().unwrap();
    let refused = volumes.restrictions([].into_iter(), 0).unwrap_err();
    assert_eq!((refused.plugin, refused.code), (Plugin::VolumeRestrictions, Code::Unschedulable));
    assert!(volumes.restrictions([].into_iter(), -1).is_ok());
    assert!(volumes.restrictions([].into_iter(), 0).is_err());
}

#[test]
fn references_are_counted_by_name_alone() {
    let storage = with_volumes(storage([exclusive("c")]), [volume("v", 1)]);
    let incoming = pod([uses("c"), uses("c")]);
    let volumes = prepare(&storage, &incoming);
    let elsewhere = PodSpec { namespace: "other".into(), ..pod([uses("c")]) };
    assert_eq!(volumes.exclusive_references(&elsewhere), 1);
    assert_eq!(volumes.exclusive_references(&incoming), 2);
    assert_eq!(volumes.exclusive_references(&pod([uses("d"), ephemeral("c")])), 0);
}

#[test]
fn later_users_count_only_for_a_pod_that_is_checked_anyway() {
    let storage = with_volumes(storage([exclusive("c")]), [volume("v", 1)]);
    let plain = pod([uses("c")]);
    assert!(prepare(&storage, &plain).restrictions([].into_iter(), 1).is_ok());
    let disk = pod([uses("c"), Volume::Disk(Disk::Ebs { id: "a".into() })]);
    assert!(prepare(&storage, &disk).restrictions([].into_iter(), 1).is_err());
}

/// A node that attaches up to `limit` volumes of driver `d`, two claims bound to such volumes, and
/// one to be provisioned.
fn attaching(limit: i32) -> Storage {
    let unbound = claim("late");
    let mut storage = with_volumes(
        storage([bound("a", "va"), bound("b", "vb"), unbound]),
        [csi("va", "d"), csi("vb", "d"), csi("vc", "d")],
    );
    storage.put(Event::StorageClass, class("d"));
    storage.put(
        Event::CsiNode,
        CsiNode {
            node: "n".into(),
            drivers: vec![("d".into(), Some(limit)), ("free".into(), None)],
            migrated_plugins: vec![],
        },
    );
    storage
}

fn attaches(storage: &Storage, incoming: &[&str], residents: &[&str]) -> bool {
    let incoming = pod(incoming.iter().map(|name| uses(name)));
    let residents: Vec<PodSpec> = residents.iter().map(|name| pod([uses(name)])).collect();
    let verdict = prepare(storage, &incoming).limits("n", residents.iter());
    assert!(verdict.clone().err().is_none_or(|no| no.code == Code::Unschedulable));
    verdict.is_ok()
}

#[test]
fn each_volume_is_counted_once_per_node() {
    assert!(attaches(&attaching(1), &["a"], &[]));
    assert!(attaches(&attaching(1), &["a", "a"], &[]));
    assert!(!attaches(&attaching(1), &["a"], &["b"]));
    assert!(attaches(&attaching(1), &["a"], &["a", "a"]));
    assert!(attaches(&attaching(2), &["a", "b"], &["a"]));
    assert!(!attaches(&attaching(1), &["a", "b"], &["a"]));
    // A pod that adds nothing may run where the limit is exceeded.
    assert!(attaches(&attaching(0), &["a"], &["a", "b"]));
    assert!(!attaches(&attaching(0), &["a"], &[]));
}

#[test]
fn volumes_to_be_provisioned_count_by_their_claim() {
    assert!(!attaches(&attaching(1), &["late"], &["a"]));
    assert!(attaches(&attaching(1), &["late"], &["late"]));
    assert!(attaches(&attaching(1), &["late"], &["unknown"]));
}

#[test]
fn nodes_without_limits_attach_everything() {
    let mut storage = attaching(0);
    storage.apply(Event::CsiNodeGone("n".into()));
    assert!(attaches(&storage, &["a", "b"], &[]));
    let free =
        CsiNode { node: "n".into(), drivers: vec![("d".into(), None)], ..CsiNode::default() };
    storage.put(Event::CsiNode, free);
    assert!(attaches(&storage, &["a", "b"], &[]));
}

#[test]
fn lingering_attachments_count_even_if_they_are_the_pods_own() {
    let attach = |name: &str, volume: &str| VolumeAttachment {
        name: name.into(),
        driver: "d".into(),
        node: "n".into(),
        volume: Some(volume.into()),
    };
    let mut storage = attaching(2);
    storage.put(Event::Attachment, attach("x", "vc"));
    assert!(attaches(&storage, &["a"], &["a", "b"]));
    assert!(!attaches(&storage, &["a"], &["b"]));
    storage.put(Event::Attachment, attach("x", "vb"));
    assert!(attaches(&storage, &["a"], &["b"]));
    storage.put(Event::Attachment, attach("x", "va"));
    assert!(attaches(&storage, &["a"], &[]));
    storage.put(Event::Attachment, attach("y", "vb"));
    assert!(!attaches(&storage, &["a"], &[]));
    storage.apply(Event::AttachmentGone("y".into()));
    assert!(attaches(&storage, &["a"], &[]));
}

#[test]
fn in_tree_disks_count_against_the_driver_that_serves_them() {
    let ebs = |name: &str, id: &str| PersistentVolume {
        source: in_tree(InTreePlugin::AwsEbs, id),
        ..volume(name, 1)
    };
    let mut storage = with_volumes(
        storage([bound("a", "va"), bound("b", "vb")]),
        [ebs("va", "aws://zone/vol-1"), ebs("vb", "vol-2")],
    );
    let drivers = vec![("ebs.csi.aws.com".into(), Some(1))];
    storage.put(Event::CsiNode, CsiNode { node: "n".into(), drivers, ..CsiNode::default() });
    assert!(!attaches(&storage, &["a"], &["b"]));
    let inline = |id: &str| pod([Volume::Disk(Disk::Ebs { id: id.into() })]);
    let incoming = pod([uses("a")]);
    let volumes = prepare(&storage, &incoming);
    assert!(volumes.limits("n", [&inline("vol-1")].into_iter()).is_ok());
    assert!(volumes.limits("n", [&inline("aws:///vol-3")].into_iter()).is_err());
    assert!(volumes.limits("n", [&inline("aws://nonsense")].into_iter()).is_ok());
}

#[test]
fn gce_disks_are_distinguished_by_zone() {
    let gce = |name: &str, zone: &str| PersistentVolume {
        labels: labels(&[(ZONE, zone)]),
        source: in_tree(InTreePlugin::GcePd, "disk"),
        ..volume(name, 1)
    };
    let fits_beside = |zone: &str| {
        let mut storage = with_volumes(
            storage([bound("a", "va"), bound("b", "vb")]),
            [gce("va", "us-central1-a__us-central1-b"), gce("vb", zone)],
        );
        let drivers = vec![("pd.csi.storage.gke.io".into(), Some(1))];
        storage.put(Event::CsiNode, CsiNode { node: "n".into(), drivers, ..CsiNode::default() });
        attaches(&storage, &["a"], &["b"])
    };
    assert!(fits_beside("us-central1-c__us-central1-f"));
    assert!(!fits_beside("us-central1-a"));
    assert!(!fits_beside(""));
    // Disks in two regions cannot be translated, and are not counted.
    assert!(fits_beside("us-central1-a__us-east1-b"));
}

#[test]
fn bound_volumes_are_used_where_they_can_be_reached() {
    let local = |terms| PersistentVolume { node_affinity: terms, ..volume("v", 1) };
    let judge = |terms| {
        let storage = with_volumes(storage([bound("c", "v")]), [local(terms)]);
        binds(&storage, &["c"], &[(ZONE, "a")]).is_empty()
    };
    assert!(judge(None));
    assert!(judge(Some(vec![wants(ZONE, "a")])));
    assert!(judge(Some(vec![wants(ZONE, "b"), wants(ZONE, "a")])));
    assert!(!judge(Some(vec![wants(ZONE, "b")])));
    assert!(!judge(Some(vec![NodeTerm::default()])));
    assert!(!judge(Some(vec![])));
}

#[test]
fn volumes_do_not_see_names_of_nodes() {
    let named = |operator| NodeTerm { labels: vec![], name: vec![operator] };
    for (operator, reached) in [(Operator::In(vec!["x".into()]), true), (Operator::Never, false)] {
        let node_affinity = Some(vec![named(operator)]);
        let away = PersistentVolume { node_affinity, ..volume("v", 1) };
        let storage = with_volumes(storage([bound("c", "v")]), [away]);
        assert_eq!(binds(&storage, &["c"], &[]).is_empty(), reached);
    }
}

#[test]
fn in_tree_zones_become_the_drivers_where_the_plugin_has_moved() {
    let key = "topology.ebs.csi.aws.com/zone";
    let beta = "failure-domain.beta.kubernetes.io/region";
    let affine = PersistentVolume {
        node_affinity: Some(vec![wants(ZONE, "a")]),
        source: in_tree(InTreePlugin::AwsEbs, "vol-1"),
        ..volume("v", 1)
    };
    let labelled = PersistentVolume {
        node_affinity: None,
        labels: labels(&[(ZONE, "a__b")]),
        ..affine.clone()
    };
    let mut old = wants("failure-domain.beta.kubernetes.io/zone", "a");
    old.labels.extend(wants(beta, "r").labels);
    let old = PersistentVolume { node_affinity: Some(vec![old]), ..affine.clone() };
    let azure =
        PersistentVolume { source: in_tree(InTreePlugin::AzureDisk, "uri"), ..affine.clone() };
    let (today, csi) = ([(ZONE, "a")], [(key, "a"), ("topology.kubernetes.io/region", "r")]);
    for (volume, moved, reached) in [
        (&affine, false, [true, false]),
        (&affine, true, [false, true]),
        (&labelled, false, [true, true]),
        (&labelled, true, [false, true]),
        (&old, true, [false, true]),
        (&old, false, [false, false]),
        (&azure, true, [true, false]),
    ] {
        let mut storage = with_volumes(storage([bound("c", "v")]), [volume.clone()]);
        if moved {
            let names = [InTreePlugin::AwsEbs, InTreePlugin::AzureDisk].map(InTreePlugin::name);
            let migrated_plugins = names.map(Arc::from).to_vec();
            storage.put(
                Event::CsiNode,
                CsiNode { node: "n".into(), drivers: vec![], migrated_plugins },
            );
        }
        let verdicts = [&today[..], &csi[..]].map(|on| binds(&storage, &["c"], on).is_empty());
        assert_eq!(verdicts, reached, "{volume:?} {moved}");
    }
}

#[test]
fn a_waiting_claim_needs_a_volume_that_suits_it() {
    let fine = || volume("v", 1);
    let label = Requirement { key: "tier".into(), operator: Operator::Exists };
    let picky = Claim { selector: Some(Selector(vec![label])), ..claim("c") };
    let kept = |uid: &str, name: &str| {
        let kept_for = ClaimRef { namespace: "ns".into(), name: name.into(), uid: uid.into() };
        PersistentVolume { claim: Some(kept_for), available: false, ..fine() }
    };
    let gold = |volume| PersistentVolume { attributes_class: "gold".into(), ..volume };
    for (claim, volume, found) in [
        (claim("c"), fine(), true),
        (claim("c"), volume("v", 0), false),
        (claim("c"), PersistentVolume { mode: VolumeMode::Block, ..fine() }, false),
        (claim("c"), PersistentVolume { available: false, ..fine() }, false),
        (claim("c"), PersistentVolume { deleting: true, ..fine() }, false),
        (claim("c"), PersistentVolume { class: "other".into(), ..fine() }, false),
        (claim("c"), PersistentVolume { access: vec![AccessMode::ReadOnlyMany], ..fine() }, false),
        (claim("c"), gold(fine()), false),
        (Claim { attributes_class: "gold".into(), ..claim("c") }, gold(fine()), true),
        (picky.clone(), fine(), false),
        (picky.clone(), PersistentVolume { labels: labels(&[("tier", "x")]), ..fine() }, true),
        // A pre-bound volume need not be available or have the labels the claim selects.
        (picky, kept("", "c"), true),
        (claim("c"), kept("uid-c", "c"), true),
        (claim("c"), kept("uid-before", "c"), false),
        (claim("c"), kept("", "d"), false),
    ] {
        let storage = with_volumes(storage([claim.clone()]), [volume.clone()]);
        assert_eq!(binds(&storage, &["c"], &[]).is_empty(), found, "{claim:?} {volume:?}");
    }
}

#[test]
fn the_smallest_claim_takes_the_smallest_volume() {
    let large = Claim { request_bytes: 2 * GIB, ..claim("large") };
    let storage = with_volumes(
        storage([large, claim("small")]),
        [volume("a", 3), volume("b", 1), volume("c", 2)],
    );
    assert!(binds(&storage, &["large", "small"], &[]).is_empty());
    // Each volume is used once, also if two volumes of the pod name the same claim.
    assert!(binds(&storage, &["large", "large"], &[]).is_empty());
    assert_eq!(binds(&storage, &["large", "large", "large"], &[]), [NO_VOLUME]);
}

#[test]
fn delayed_volumes_are_listed_by_claim() {
    let provisioning = Claim { selected_node: Some("n".into()), ..claim("promised") };
    let huge = Claim { request_bytes: 9 * GIB, ..claim("huge") };
    let mut storage = with_volumes(
        storage([provisioning, huge, claim("small"), bound("done", "d")]),
        [volume("a", 3), volume("b", 1), volume("d", 1)],
    );
    storage.put(Event::StorageClass, class("driver"));
    let pod = pod(["huge", "small", "promised", "done"].map(uses));
    let delayed = PodVolumes::delayed(&storage, &pod, OWNER, &node(&[]));
    let delayed: Vec<_> = delayed.iter().map(|one| (&*one.claim, one.volume.as_deref())).collect();
    assert_eq!(delayed, [("promised", None), ("small", Some("b")), ("huge", None)]);
}

#[test]
fn a_volume_kept_for_the_claim_shuts_out_others_where_it_cannot_be_reached() {
    let kept_for = ClaimRef { namespace: "ns".into(), name: "c".into(), uid: "".into() };
    let kept = PersistentVolume {
        claim: Some(kept_for),
        node_affinity: Some(vec![wants(ZONE, "a")]),
        ..volume("kept", 1)
    };
    let storage = with_volumes(storage([claim("c")]), [kept, volume("free", 1)]);
    assert!(binds(&storage, &["c"], &[(ZONE, "a")]).is_empty());
    assert_eq!(binds(&storage, &["c"], &[(ZONE, "b")]), [NO_VOLUME]);
}

#[test]
fn missing_volumes_are_provisioned_where_the_class_allows() {
    let mut storage = storage([claim("c")]);
    assert_eq!(binds(&storage, &["c"], &[]), [NO_VOLUME]);
    storage.put(Event::StorageClass, class("d"));
    assert!(binds(&storage, &["c"], &[]).is_empty());
    let allowed_topologies = vec![NodeTerm::default(), wants(ZONE, "a")];
    storage.put(Event::StorageClass, StorageClass { allowed_topologies, ..class("d") });
    assert!(binds(&storage, &["c"], &[(ZONE, "a")]).is_empty());
    assert_eq!(binds(&storage, &["c"], &[(ZONE, "b")]), [NO_VOLUME]);
}

#[test]
fn provisioning_stays_on_the_node_it_was_begun_for() {
    let chosen = |node: &str| Claim { selected_node: Some(node.into()), ..claim("c") };
    for (name, fits) in [("n", true), ("m", false)] {
        let mut storage = with_volumes(storage([chosen(name)]), [volume("v", 1)]);
        // A matching volume is ignored.
        assert_eq!(binds(&storage, &["c"], &[]), [NO_VOLUME]);
        storage.put(Event::StorageClass, class("d"));
        assert_eq!(binds(&storage, &["c"], &[]).is_empty(), fits);
    }
}

#[test]
fn published_storage_capacity_is_respected() {
    let mut storage = storage([claim("c")]);
    storage.put(Event::StorageClass, class("d"));
    let told = |largest_bytes, nodes| StorageCapacity {
        namespace: "sys".into(),
        name: "x".into(),
        class: "late".into(),
        nodes,
        largest_bytes,
    };
    storage.put(Event::CsiDriver, CsiDriver { name: "d".into(), tracks_capacity: false });
    assert!(binds(&storage, &["c"], &[]).is_empty());
    storage.put(Event::CsiDriver, CsiDriver { name: "d".into(), tracks_capacity: true });
    assert_eq!(binds(&storage, &["c"], &[]), [NO_SPACE]);
    let zone = Selector::of_labels(&labels(&[(ZONE, "a")]));
    for (capacity, fits) in [
        (told(Some(GIB), Some(zone.clone())), true),
        (told(Some(GIB - 1), Some(zone.clone())), false),
        (told(None, Some(zone)), false),
        (told(Some(GIB), None), false),
        (told(Some(GIB), Some(Selector::default())), true),
        (
            StorageCapacity { class: "x".into(), ..told(Some(GIB), Some(Selector::default())) },
            false,
        ),
    ] {
        storage.put(Event::StorageCapacity, capacity.clone());
        assert_eq!(binds(&storage, &["c"], &[(ZONE, "a")]).is_empty(), fits, "{capacity:?}");
    }
    storage.apply(Event::CsiDriverGone("d".into()));
    assert!(binds(&storage, &["c"], &[]).is_empty());
}

#[test]
fn all_problems_of_claims_are_reported_together() {
    let away = PersistentVolume { node_affinity: Some(vec![]), ..volume("v", 1) };
    let storage = with_volumes(storage([bound("b", "v"), claim("c")]), [away]);
    assert_eq!(binds(&storage, &["c", "b"], &[]), [OUT_OF_REACH, NO_VOLUME]);
}

#[test]
fn bound_volumes_stay_in_their_zones() {
    let beta = "failure-domain.beta.kubernetes.io/zone";
    let judge = |volume_label: (&str, &str), on: &[(&str, &str)]| {
        let labels = labels(&[volume_label]);
        let zoned = PersistentVolume { labels, ..volume("v", 1) };
        let storage = with_volumes(storage([bound("c", "v")]), [zoned]);
        let pod = pod([uses("c")]);
        prepare(&storage, &pod).zone(&node(on)).is_ok()
    };
    assert!(judge((ZONE, "a"), &[(ZONE, "a")]));
    assert!(!judge((ZONE, "a"), &[(ZONE, "b")]));
    assert!(judge((ZONE, "a__b"), &[(ZONE, "b")]));
    // A node without zone labels is in all zones; one with a region label is not.
    assert!(judge((ZONE, "a"), &[("x", "y")]));
    assert!(!judge((ZONE, "a"), &[("topology.kubernetes.io/region", "r")]));
    // The beta label is also looked up under its new name, but not vice versa.
    assert!(judge((beta, "a"), &[(ZONE, "a")]));
    assert!(!judge((beta, "a"), &[(ZONE, "a"), (beta, "b")]));
    assert!(!judge((ZONE, "a"), &[(beta, "a")]));
    // An invalid label is ignored.
    assert!(judge((ZONE, "a__"), &[(ZONE, "b")]));
}

#[test]
fn zones_of_ephemeral_volumes_do_not_count() {
    let own = Claim { controller_uid: Some("uid-pod".into()), ..bound("pod-tmp", "v") };
    let zoned = PersistentVolume { labels: labels(&[(ZONE, "a")]), ..volume("v", 1) };
    let storage = with_volumes(storage([own]), [zoned]);
    let pod = pod([ephemeral("pod-tmp")]);
    assert!(prepare(&storage, &pod).zone(&node(&[(ZONE, "b")])).is_ok());
}

#[test]
fn tables_forget_what_is_gone() {
    let mut storage = with_volumes(storage([claim("c")]), [volume("v", 1)]);
    assert!(binds(&storage, &["c"], &[]).is_empty());
    storage.put(Event::Volume, PersistentVolume { class: "other".into(), ..volume("v", 1) });
    assert_eq!(binds(&storage, &["c"], &[]), [NO_VOLUME]);
    storage.put(Event::Volume, volume("v", 1));
    assert!(binds(&storage, &["c"], &[]).is_empty());
    storage.apply(Event::VolumeGone("v".into()));
    assert_eq!(binds(&storage, &["c"], &[]), [NO_VOLUME]);
    storage.apply(Event::ClaimGone("ns".into(), "c".into()));
    assert_eq!(refusal(&storage, &pod([uses("c")])).0, Plugin::VolumeRestrictions);
}

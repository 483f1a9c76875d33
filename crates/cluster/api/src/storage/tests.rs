//! Storage objects as the API server stores them, and what becomes of them.

use serde_json::{Value, from_value, json};

use super::*;

fn claim_of(metadata: Value, spec: Value) -> Claim {
    let claim: core::PersistentVolumeClaim =
        from_value(json!({ "metadata": metadata, "spec": spec })).unwrap();
    claim.lower().unwrap()
}

fn volume_of(spec: Value) -> PersistentVolume {
    let volume: core::PersistentVolume = from_value(json!({
        "metadata": { "name": "v" }, "spec": spec, "status": { "phase": "Available" } }))
    .unwrap();
    volume.lower().unwrap()
}

#[test]
fn a_claim_keeps_how_far_its_binding_is() {
    let claim = claim_of(
        json!({
            "name": "c", "namespace": "team", "uid": "u",
            "annotations": {
                "pv.kubernetes.io/bind-completed": "yes",
                "volume.kubernetes.io/selected-node": "n1",
                "volume.beta.kubernetes.io/storage-class": "old",
            },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pu",
                                  "controller": true }],
        }),
        json!({
            "accessModes": ["ReadWriteOncePod"], "storageClassName": "new", "volumeName": "",
            "resources": { "requests": { "storage": "10Gi" } }, "volumeMode": "Block",
        }),
    );
    assert_eq!((claim.class.as_deref(), claim.volume), (Some("old"), None));
    assert_eq!(claim.controller_uid.as_deref(), Some("pu"));
    assert_eq!((claim.access, claim.mode), (vec![AccessMode::ReadWriteOncePod], VolumeMode::Block));
    assert_eq!(claim.request_bytes, 10 << 30);
    assert!(claim.bind_completed && claim.selected_node.is_some() && !claim.lost);
    let plain = claim_of(json!({ "name": "c" }), json!({}));
    assert_eq!((plain.class, plain.selector, &*plain.namespace), (None, None, "default"));
}

#[test]
fn a_volume_says_what_it_is_stored_on() {
    let in_tree = |plugin, id: &str| VolumeSource::InTree(InTreeDisk { plugin, id: id.into() });
    let csi = CsiSource { driver: "d".into(), handle: "h".into() };
    for (spec, expected) in [
        (json!({ "csi": { "driver": "d", "volumeHandle": "h" } }), VolumeSource::Csi(csi)),
        (json!({ "awsElasticBlockStore": { "volumeID": "vol-1" } }), in_tree(AwsEbs, "vol-1")),
        (json!({ "gcePersistentDisk": { "pdName": "pd" } }), in_tree(GcePd, "pd")),
        (json!({ "azureDisk": { "diskName": "d", "diskURI": "u" } }), in_tree(AzureDisk, "u")),
        (
            json!({ "azureDisk": { "diskName": "d", "diskURI": "u", "kind": "Dedicated" } }),
            VolumeSource::Other,
        ),
        (json!({ "nfs": { "path": "/", "server": "s" } }), VolumeSource::Other),
    ] {
        assert_eq!(volume_of(spec.clone()).source, expected, "{spec}");
    }
    let volume = volume_of(json!({
        "capacity": { "storage": "5Gi" }, "storageClassName": "fast",
        "claimRef": { "namespace": "team", "name": "c" },
        "nodeAffinity": { "required": { "nodeSelectorTerms": [] } },
    }));
    assert_eq!((volume.capacity_bytes, &*volume.class, volume.available), (5 << 30, "fast", true));
    assert_eq!(volume.claim.map(|claim| claim.uid), Some("".into()));
    assert_eq!(volume.node_affinity, Some(vec![]));
}

#[test]
fn classes_say_when_and_where_they_bind() {
    let class = |more: Value| -> StorageClass {
        let mut class = json!({ "metadata": { "name": "c", "annotations": {
            "storageclass.beta.kubernetes.io/is-default-class": "true" } }, "provisioner": "p" });
        class.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        from_value::<storage::StorageClass>(class).unwrap().lower().unwrap()
    };
    let plain = class(json!({}));
    assert_eq!((plain.waits_for_consumer, plain.is_default), (None, true));
    let zoned = class(json!({
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{ "matchLabelExpressions": [{ "key": "zone", "values": ["a"] }] }, {}],
    }));
    assert_eq!(zoned.waits_for_consumer, Some(true));
    let node = |zone: &str| berth_model::node::Node {
        labels: [("zone", zone)].into_iter().collect(),
        ..Default::default()
    };
    let matching =
        |zone: &str| zoned.allowed_topologies.iter().any(|term| term.matches(&node(zone)));
    assert!(matching("a") && !matching("b"));
}

#[test]
fn what_drivers_can_attach_and_provision_is_kept() {
    let node: storage::CSINode = from_value(json!({
        "metadata": { "name": "n", "annotations": {
            "storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,x" } },
        "spec": { "drivers": [
            { "name": "a", "nodeID": "n", "allocatable": { "count": 0 } },
            { "name": "b", "nodeID": "n" }] },
    }))
    .unwrap();
    let node = node.lower().unwrap();
    assert_eq!(node.drivers, [("a".into(), Some(0)), ("b".into(), None)]);
    assert_eq!(node.migrated_plugins.len(), 2);
    let capacity: storage::CSIStorageCapacity = from_value(json!({
        "metadata": { "name": "s", "namespace": "csi" }, "storageClassName": "fast",
        "nodeTopology": {}, "capacity": "10Gi", "maximumVolumeSize": "1Gi",
    }))
    .unwrap();
    let capacity = capacity.lower().unwrap();
    assert_eq!((capacity.largest_bytes, capacity.nodes.is_some()), (Some(1 << 30), true));
    let attachment: storage::VolumeAttachment = from_value(json!({
        "metadata": { "name": "a" },
        "spec": { "attacher": "d", "nodeName": "n", "source": { "persistentVolumeName": "v" } },
    }))
    .unwrap();
    assert_eq!(attachment.lower().unwrap().volume.as_deref(), Some("v"));
}

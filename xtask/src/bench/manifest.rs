//! Measures reading: how long many documents and a large dump take.
//!
//! Owns the texts, which look like what people and kubectl write. Must not know how they are read.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Result, anyhow};
use berth_manifest::{Source, Strictness, object, read_as};

/// What each is to stay under, in milliseconds, read and decoded.
const AIMS_MS: [(&str, u128); 2] = [("10,000 YAML documents", 2_000), ("50 MB JSON dump", 5_000)];

/// Prints both; whether they were fast enough.
pub(crate) fn run() -> Result<bool> {
    println!(
        "{:<24}{:>8}{:>10}{:>10}{:>12}{:>9}",
        "", "MB", "objects", "read ms", "decoded ms", "aim ms"
    );
    let texts = [documents(10_000)?, dump(50_000_000)?];
    let mut fast = true;
    for ((name, aim_ms), text) in AIMS_MS.into_iter().zip(texts) {
        let source = Source::new(name, text);
        let start = Instant::now();
        let documents =
            read_as(&source, Strictness::Dump).map_err(|problem| anyhow!("{problem}"))?;
        let read_ms = start.elapsed().as_millis();
        for document in &documents {
            object(document).map_err(|problem| anyhow!("{problem}"))?;
        }
        let both_ms = start.elapsed().as_millis();
        let megabytes = source.text.len() / 1_000_000;
        let objects = documents.len();
        println!("{name:<24}{megabytes:>8}{objects:>10}{read_ms:>10}{both_ms:>12}{aim_ms:>9}");
        fast &= both_ms <= aim_ms;
    }
    Ok(fast)
}

/// Deployments as people write them.
fn documents(count: usize) -> Result<String> {
    let mut text = String::new();
    for number in 0..count {
        write!(
            text,
            "\
---
# Service {number}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: service-{number}
  namespace: team-{team}
  labels: {{app: service-{number}, team: team-{team}}}
spec:
  replicas: {replicas}
  selector:
    matchLabels:
      app: service-{number}
  template:
    metadata:
      labels:
        app: service-{number}
    spec:
      nodeSelector:
        nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB
      tolerations:
      - key: nvidia.com/gpu
        operator: Exists
        effect: NoSchedule
      containers:
      - name: server
        image: \"registry.example/server:1.{number}\"
        args: [--model, \"m-{number}\", --port, '8080']
        resources:
          requests: {{cpu: 8, memory: 64Gi}}
          limits:
            cpu: 8   # whole
            memory: 64Gi
            nvidia.com/gpu: 1
",
            team = number % 20,
            replicas = number % 7,
        )?;
    }
    Ok(text)
}

/// Pods as `kubectl get pods -o json` prints them, with fields that nobody asked for.
fn dump(bytes: usize) -> Result<String> {
    let mut text = "{\n    \"apiVersion\": \"v1\",\n    \"items\": [\n".to_owned();
    let mut number = 0;
    while text.len() < bytes {
        let comma = if number == 0 { "" } else { ",\n" };
        write!(text, "{comma}{}", pod(number))?;
        number += 1;
    }
    text.push_str(
        "\n    ],\n    \"kind\": \"List\",\n    \"metadata\": {\"resourceVersion\": \"\"}\n}\n",
    );
    Ok(text)
}

fn pod(number: usize) -> String {
    let condition = |kind: &str| {
        serde_json::json!({
            "type": kind, "status": "True", "lastProbeTime": null,
            "lastTransitionTime": "2026-01-02T03:04:05Z", "observedGeneration": 1,
        })
    };
    let conditions = ["Ready", "Initialized", "ContainersReady", "PodScheduled"].map(condition);
    let fields: serde_json::Map<String, serde_json::Value> = (0..24)
        .map(|field| (format!("f:field-{field}"), serde_json::json!({"f:a": {}, "f:b": {}})))
        .collect();
    let pod = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("pod-{number}"), "namespace": "default",
            "uid": format!("{number:08x}-0000-4000-8000-000000000000"),
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"app": "x", "pod-template-hash": "7c9f8"},
            "managedFields": [{
                "apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "kubelet",
                "operation": "Update", "time": "2026-01-02T03:04:05Z", "fieldsV1": fields,
            }],
        },
        "spec": {
            "nodeName": format!("node-{}", number % 500),
            "aFieldOfTomorrow": {"a": [1, 2, 3]},
            "containers": [{
                "name": "c", "image": "registry.example/c:1", "terminationMessagePath": "/dev/log",
                "resources": {"limits": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}},
                "volumeMounts": [{"mountPath": "/var/run/secrets", "name": "t", "readOnly": true}],
            }],
            "volumes": [{"name": "t", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            ]}}],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "qosClass": "Guaranteed",
            "conditions": conditions,
        },
    });
    format!("{pod:#}")
}

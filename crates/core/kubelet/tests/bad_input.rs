//! Invalid input gives an error that names the field, never a panic.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use berth_testkit::kubelet::Case;
use serde_json::{Value, json};

fn case() -> Value {
    json!({
        "id": "bad", "stratum": "",
        "machine": {
            "shape": "2s2n", "sockets": 2,
            "numa": [
                {"id": 0, "cpus": "0-3", "memory_bytes": 8589934592u64, "distances": [10, 21]},
                {"id": 1, "cpus": "4-7", "memory_bytes": 8589934592u64, "distances": [21, 10]}
            ],
            "core_groups": [
                {"numa": 0, "socket": 0, "uncore": null, "threads": ["0-1", "2-3"]},
                {"numa": 1, "socket": 1, "uncore": null, "threads": ["4-5", "6-7"]}
            ]
        },
        "kubelet": {
            "topology_manager": {"policy": "restricted", "scope": "pod"},
            "cpu_manager": {
                "policy": "static", "options": ["full-pcpus-only"],
                "reserved_from": "explicit", "reserved_cpus": "0"
            },
            "memory_manager": {"policy": "Static", "reserved": {"0": {"memory": 1073741824}}}
        },
        "devices": {
            "nvidia.com/gpu": {
                "preferred_allocation": "none",
                "devices": [{"id": "gpu-0", "numa": [0]}, {"id": "gpu-1", "numa": [1]}]
            }
        },
        "initial": {
            "shared_cpus": "0-7",
            "free_memory": {"memory": [7516192768u64, 8589934592u64]},
            "free_devices": {"nvidia.com/gpu": {"0": 1, "1": 1}}
        },
        "ops": [{
            "admit": {"name": "p", "containers": [
                {"name": "c", "limits": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}}
            ]},
            "outcome": {"admitted": true}
        }]
    })
}

fn error_after(pointer: &str, value: Value) -> String {
    let mut case = case();
    *case.pointer_mut(pointer).unwrap() = value;
    match Case::parse(&case.to_string()) {
        Ok(_) => panic!("{pointer} must be refused"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_case_itself_is_valid() {
    Case::parse(&case().to_string()).unwrap();
}

#[test]
fn errors_name_the_field() {
    let limits = "/ops/0/admit/containers/0/limits";
    let overlapping = json!([
        {"numa": 0, "socket": 0, "uncore": null, "threads": ["0-1", "2-3"]},
        {"numa": 1, "socket": 1, "uncore": null, "threads": ["3-4", "6-7"]}
    ]);
    let cases = [
        ("/kubelet/topology_manager/policy", json!("strict"), "kubelet.topology_manager.policy"),
        ("/kubelet/topology_manager/scope", json!("node"), "kubelet.topology_manager.scope"),
        ("/kubelet/cpu_manager/policy", json!("dynamic"), "kubelet.cpu_manager.policy"),
        ("/kubelet/cpu_manager/options/0", json!("half-pcpus"), "kubelet.cpu_manager.options"),
        ("/kubelet/cpu_manager/reserved_cpus", json!("9"), "kubelet.cpu_manager.reserved_cpus"),
        ("/kubelet/cpu_manager/reserved_cpus", json!("3-1"), "kubelet.cpu_manager.reserved_cpus"),
        ("/kubelet/memory_manager/policy", json!("static"), "kubelet.memory_manager.policy"),
        ("/kubelet/memory_manager/reserved", json!({}), "kubelet.memory_manager.reserved"),
        (
            "/kubelet/memory_manager/reserved",
            json!({"0": {"memory": 9589934592u64}}),
            "kubelet.memory_manager.reserved[0][memory]",
        ),
        ("/machine/core_groups", overlapping, "machine.cores[2].threads: CPU 3 already"),
        ("/machine/numa/1/cpus", json!("4-8"), "machine.numa[1].cpus"),
        ("/machine/numa/1/memory_bytes", json!(-1), "machine.numa[1].memory_bytes"),
        ("/machine/sockets", json!("two"), "machine.sockets"),
        ("/devices/nvidia.com~1gpu/devices/1/numa", json!([-1]), "numa[0]"),
        ("/devices/nvidia.com~1gpu/devices/1/id", json!("gpu-0"), "devices[nvidia.com/gpu]"),
        (limits, json!({"cpu": "-2"}), "ops[0].admit.containers[c].limits[cpu]"),
        (limits, json!({"cpu": "2 cores"}), "ops[0].admit.containers[c].limits[cpu]"),
        (
            limits,
            json!({"nvidia.com/gpu": "500m"}),
            "containers[c].resources.limits[nvidia.com/gpu]",
        ),
        (
            limits,
            json!({"hugepages-2048Ki": "2Mi"}),
            "containers[c].resources.limits[hugepages-2048Ki]",
        ),
        ("/ops/0", json!({"remove": "p", "admit": {"name": "p"}}), "ops[0]"),
    ];
    for (pointer, value, field) in cases {
        let error = error_after(pointer, value);
        assert!(error.starts_with("case \"bad\": "), "{error}");
        assert!(error.contains(field), "{pointer}: {error:?} should name {field}");
    }
}

#[test]
fn invalid_json_is_located() {
    let error = Case::parse("{\"id\": \"broken\", \"machine\": [").unwrap_err().to_string();
    assert!(error.starts_with("case \"?\": machine"), "{error}");
    assert!(error.contains("line 1 column 29"), "{error}");
}

//! The inventory's state between queries, and what Kubernetes does not have: NUMA nodes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use berth_dra::{
    Code, Inventory, Options, PoolDevice, Preference, RejectionReason, normalize_scores,
};
use berth_model::dra::claim::{Allocation, Claim, RequestKind};

use common::{DRIVER, ask, claim, class, demand, device, devices, node, place, pod, slice};

/// Two devices on each of two NUMA nodes of one node.
fn inventory() -> Inventory {
    let mut inventory = Inventory::new();
    inventory.apply_class(class(&["device.driver == \"gpu.example.com\""]));
    let all = (0..4).map(|at| device(at, i64::from(at >= 2))).collect();
    inventory.apply_slice(slice("n0", all));
    inventory
}

fn given(inventory: &Inventory, name: &str, claim: &Claim) -> Claim {
    let placement = place(inventory, &[name], "n0").unwrap();
    let (_, allocation) = placement.allocations.into_iter().next().unwrap();
    Claim { allocation: Some(allocation), ..claim.clone() }
}

#[test]
fn allocated_devices_are_unavailable_until_released() {
    let mut inventory = inventory();
    for name in ["a", "b"] {
        inventory.apply_claim(claim(name, vec![ask(3, &[])]));
    }
    let placement = place(&inventory, &["a"], "n0").unwrap();
    assert_eq!(devices(&placement), ["gpu-0", "gpu-1", "gpu-2"]);
    inventory.take(&placement);
    assert_eq!(place(&inventory, &["b"], "n0").unwrap_err().reason, RejectionReason::NotEnough);
    let waiting = inventory.prepare(&pod("other", &["a"])).unwrap_err();
    assert_eq!(
        waiting.to_string(),
        "resource claim default/a is in the process of being allocated"
    );
    inventory.release("a");
    assert_eq!(devices(&place(&inventory, &["b"], "n0").unwrap()), ["gpu-0", "gpu-1", "gpu-2"]);
}

#[test]
fn devices_in_use_count_once() {
    let mut inventory = inventory();
    let a = claim("a", vec![ask(2, &[])]);
    inventory.apply_claim(a.clone());
    inventory.apply_claim(claim("b", vec![ask(2, &[])]));
    let told = given(&inventory, "a", &a);
    inventory.take(&place(&inventory, &["a"], "n0").unwrap());
    inventory.apply_claim(told.clone());
    inventory.apply_claim(told);
    assert_eq!(devices(&place(&inventory, &["b"], "n0").unwrap()), ["gpu-2", "gpu-3"]);
    inventory.remove_claim("default", "a");
    assert_eq!(devices(&place(&inventory, &["b"], "n0").unwrap()), ["gpu-0", "gpu-1"]);
}

#[test]
fn a_stale_event_does_not_undo_a_decision() {
    let mut inventory = inventory();
    let a = claim("a", vec![ask(4, &[])]);
    inventory.apply_claim(a.clone());
    inventory.apply_claim(claim("b", vec![ask(1, &[])]));
    inventory.take(&place(&inventory, &["a"], "n0").unwrap());
    inventory.apply_claim(a);
    assert_eq!(place(&inventory, &["b"], "n0").unwrap_err().reason, RejectionReason::NotEnough);
}

#[test]
fn admin_access_does_not_use_devices() {
    let mut inventory = inventory();
    let mut watching = claim("watch", vec![ask(4, &[])]);
    if let RequestKind::Exactly(ask) = &mut watching.spec.requests[0].kind {
        ask.admin_access = true;
    }
    inventory.apply_claim(watching);
    inventory.apply_claim(claim("b", vec![ask(4, &[])]));
    let placement = place(&inventory, &["watch"], "n0").unwrap();
    assert!(placement.allocations[0].1.devices.iter().all(|device| device.admin_access));
    inventory.take(&placement);
    assert_eq!(devices(&place(&inventory, &["b"], "n0").unwrap()).len(), 4);
}

#[test]
fn placing_changes_nothing() {
    let mut inventory = inventory();
    inventory.apply_claim(claim(
        "a",
        vec![ask(2, &["device.attributes[\"gpu.example.com\"].index > 0"])],
    ));
    let first = place(&inventory, &["a"], "n0").unwrap();
    assert_eq!(place(&inventory, &["a"], "n0").unwrap(), first);
    assert_eq!(devices(&first), ["gpu-1", "gpu-2"]);
}

#[test]
fn a_restriction_to_numa_nodes_is_optional() {
    let mut inventory = inventory();
    inventory.apply_claim(claim("a", vec![ask(2, &[])]));
    let demand = demand(&inventory, &["a"]);
    let on = |numa: &[u32]| {
        let numa = Some(numa.iter().copied().collect());
        inventory.place(&demand, &node("n0"), &Options { numa, ..Options::default() })
    };
    assert_eq!(devices(&on(&[1]).unwrap()), ["gpu-2", "gpu-3"]);
    assert_eq!(devices(&on(&[0, 1]).unwrap()), ["gpu-0", "gpu-1"]);
    assert_eq!(on(&[2]).unwrap_err().reason, RejectionReason::NotEnough);
    let placement = on(&[1]).unwrap();
    let ids = placement.allocations[0].1.devices.iter().map(|device| &device.id);
    assert_eq!(inventory.numa_nodes(ids), [1].into());
}

#[test]
fn devices_without_a_numa_attribute_may_be_anywhere() {
    let mut inventory = inventory();
    let mut silent = device(9, 0);
    silent.attributes.remove("numa");
    inventory.apply_slice(slice("n0", vec![device(0, 0), silent]));
    inventory.apply_claim(claim("a", vec![ask(1, &[])]));
    let options = Options { numa: Some([1].into()), ..Options::default() };
    let placement = inventory.place(&demand(&inventory, &["a"]), &node("n0"), &options).unwrap();
    assert_eq!(devices(&placement), ["gpu-9"]);
}

#[test]
fn a_newer_generation_replaces_the_older_one_on_all_nodes() {
    let mut inventory = inventory();
    inventory.apply_claim(claim("a", vec![ask(1, &[])]));
    let mut newer = slice("n0", vec![device(7, 0)]);
    newer.name = "another-name".into();
    newer.pool.generation = 2;
    inventory.apply_slice(newer);
    assert_eq!(devices(&place(&inventory, &["a"], "n0").unwrap()), ["gpu-7"]);
    inventory.remove_slice("another-name");
    assert_eq!(devices(&place(&inventory, &["a"], "n0").unwrap()), ["gpu-0"]);
    inventory.remove_slice("n0-gpus");
    assert_eq!(place(&inventory, &["a"], "n0").unwrap_err().reason, RejectionReason::NotEnough);
}

#[test]
fn incomplete_pools_have_no_devices_and_fail_requests_for_all() {
    let mut inventory = inventory();
    let mut half = slice("n0", vec![device(0, 0)]);
    half.pool.slice_count = 2;
    inventory.apply_slice(half);
    inventory.apply_claim(claim("one", vec![ask(1, &[])]));
    let mut all = ask(1, &[]);
    all.count = berth_model::dra::claim::Count::All;
    inventory.apply_claim(claim("all", vec![all]));
    assert_eq!(place(&inventory, &["one"], "n0").unwrap_err().code, Code::Unresolvable);
    let failed = place(&inventory, &["all"], "n0").unwrap_err();
    assert_eq!(failed.code, Code::Error);
    assert!(failed.to_string().contains("is currently being updated"), "{failed}");
}

#[test]
fn a_failing_expression_ends_the_attempt_and_names_its_place() {
    let mut inventory = inventory();
    inventory.apply_claim(claim(
        "a",
        vec![ask(1, &["device.attributes[\"gpu.example.com\"].nope == 1"])],
    ));
    let failed = place(&inventory, &["a"], "n0").unwrap_err();
    assert_eq!(failed.code, Code::Error);
    let text = failed.to_string();
    assert_eq!(text, "claim default/a: selector #0: CEL runtime error: no such key: nope");
}

#[test]
fn events_of_different_objects_may_come_in_any_order() {
    let a = claim("a", vec![ask(2, &[])]);
    let mut forwards = inventory();
    forwards.apply_claim(a.clone());
    let mut backwards = Inventory::new();
    backwards.apply_claim(a);
    backwards.apply_slice(slice("n0", (0..4).map(|at| device(at, i64::from(at >= 2))).collect()));
    backwards.apply_class(class(&["device.driver == \"gpu.example.com\""]));
    assert_eq!(place(&forwards, &["a"], "n0").unwrap(), place(&backwards, &["a"], "n0").unwrap());
}

#[test]
fn an_allocated_claim_ties_the_pod_to_its_node() {
    let mut inventory = inventory();
    let a = claim("a", vec![ask(2, &[])]);
    inventory.apply_claim(a.clone());
    let told = given(&inventory, "a", &a);
    assert!(
        matches!(&told.allocation, Some(Allocation { nodes: Some(terms), .. }) if terms.len() == 1)
    );
    inventory.apply_claim(told);
    assert!(place(&inventory, &["a"], "n0").unwrap().allocations.is_empty());
    assert_eq!(
        place(&inventory, &["a"], "n1").unwrap_err().reason,
        RejectionReason::UnavailableClaim
    );
}

#[test]
fn scores_are_stretched_to_a_hundred() {
    let mut scores = [8, 4, 0];
    normalize_scores(&mut scores);
    assert_eq!(scores, [100, 50, 0]);
    let mut none = [0, 0];
    normalize_scores(&mut none);
    assert_eq!(none, [0, 0]);
}

/// Prefers devices that are listed last, and checks its input.
#[derive(Debug)]
struct LastFirst;

impl Preference for LastFirst {
    fn ranks(&self, devices: &[PoolDevice<'_>]) -> Vec<u64> {
        assert!(devices.iter().all(|one| one.driver == DRIVER && one.pool == "n0"));
        // No rank for the last.
        (1..devices.len() as u64).rev().collect()
    }
}

#[test]
fn a_preference_decides_which_devices_are_allocated_not_whether() {
    let mut inventory = inventory();
    let options = Options { preference: Some(&LastFirst), ..Options::default() };
    for (name, count, expected) in [("a", 1, &["gpu-2"][..]), ("b", 4, &[]), ("c", 5, &[])] {
        inventory.apply_claim(claim(name, vec![ask(count, &[])]));
        let demand = demand(&inventory, &[name]);
        let preferred = inventory.place(&demand, &node("n0"), &options);
        let plain = place(&inventory, &[name], "n0");
        assert_eq!(preferred.is_ok(), plain.is_ok(), "{name}");
        if let (Ok(preferred), false) = (preferred, expected.is_empty()) {
            assert_eq!(devices(&preferred), expected);
            assert_eq!(devices(&plain.unwrap()), ["gpu-0"]);
        }
    }
}

#[test]
fn clones_of_an_inventory_do_not_mix_up_selectors() {
    let first = inventory();
    let mut claims = Vec::new();
    for (name, index) in [("a", "0"), ("b", "3")] {
        let selector = format!("device.attributes['{DRIVER}'].index == {index}");
        let mut one = first.clone();
        one.apply_claim(claim(name, vec![ask(1, &[&selector])]));
        claims.push(devices(&place(&one, &[name], "n0").unwrap()));
    }
    assert_eq!(claims, [["gpu-0"], ["gpu-3"]]);
}

#[test]
fn a_rule_reaches_every_field_by_its_escaped_name() {
    let names = ["plain", "home-port", "a.b/c", "snake__case", "namespace", "while", "in"];
    let entries = names.map(|name| (berth_cel::field_name(name), berth_cel::Data::Int(1)));
    let data = berth_cel::Data::Map(entries.into_iter().collect());
    for name in names {
        let name = berth_cel::field_name(name);
        let rule = berth_cel::Rule::compile(&format!("has(self.{name}) && self.{name} == 1"));
        assert_eq!(rule.unwrap().holds(&data), Ok(true), "{name}");
    }
    assert_eq!(berth_cel::field_name("home-port"), "home__dash__port");
    assert!(berth_cel::Rule::compile("device.x == 1").is_err());
}

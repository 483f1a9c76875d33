//! Input made to hang, overflow or panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use berth_cel::Program;
use berth_dra::{Code, Inventory, Options, RejectionReason};
use berth_model::dra::claim::{Constraint, ConstraintRule};

use common::{DRIVER, ask, claim, class, demand, device, devices, node, place, slice};

fn inventory(count: usize) -> Inventory {
    let mut inventory = Inventory::new();
    inventory.apply_class(class(&[]));
    let all = (0..count).map(|at| device(at, i64::try_from(at % 8).unwrap())).collect();
    inventory.apply_slice(slice("n0", all));
    inventory
}

#[test]
fn ten_thousand_devices_are_searched_to_the_last() {
    let mut inventory = inventory(10_000);
    let last = "device.attributes[\"gpu.example.com\"].index >= 9999";
    inventory.apply_claim(claim("a", vec![ask(1, &[last])]));
    assert_eq!(devices(&place(&inventory, &["a"], "n0").unwrap()), ["gpu-9999"]);
}

#[test]
fn an_endless_search_is_stopped() {
    let mut inventory = inventory(64);
    let mut hopeless = claim("a", vec![ask(15, &[]), ask(15, &[])]);
    // Each way of choosing fifteen has to be tried before this is known to be impossible.
    let rule = ConstraintRule::Match("gpu.example.com/index".into());
    hopeless.spec.constraints.push(Constraint { requests: vec!["r1".into()], rule });
    inventory.apply_claim(hopeless);
    let options = Options { steps_max: 200_000, ..Options::default() };
    let ended = inventory.place(&demand(&inventory, &["a"]), &node("n0"), &options).unwrap_err();
    assert_eq!((ended.code, ended.reason), (Code::Error, RejectionReason::TooLong));
}

#[test]
fn thousands_of_claims_do_not_exhaust_the_stack() {
    let mut inventory = inventory(2_000);
    let names: Vec<String> = (0..2_000).map(|at| format!("c{at}")).collect();
    for name in &names {
        inventory.apply_claim(claim(name, vec![ask(1, &[])]));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let options = Options { steps_max: u64::MAX, ..Options::default() };
    let demand = demand(&inventory, &names);
    let placement = inventory.place(&demand, &node("n0"), &options).unwrap();
    assert_eq!(placement.allocations.len(), 2_000);
}

#[test]
fn more_devices_than_a_claim_can_have_are_refused() {
    let mut inventory = inventory(64);
    inventory.apply_claim(claim("a", vec![ask(20, &[]), ask(13, &[])]));
    inventory.apply_claim(claim("b", vec![ask(i64::MAX, &[]), ask(i64::MAX, &[])]));
    for name in ["a", "b"] {
        let refused = place(&inventory, &[name], "n0").unwrap_err();
        assert_eq!(refused.code, Code::Error, "{refused}");
        assert!(refused.to_string().contains("exceeds the claim limit of 32"), "{refused}");
    }
}

#[test]
fn expressions_that_cost_too_much_are_ended() {
    let double = |times: usize| {
        let open = (0..times).map(|at| format!("cel.bind(x{}, x{at} + x{at}, ", at + 1));
        let open: String = open.collect();
        format!("cel.bind(x0, \"aaaaaaaaaa\", {open}size(x{times}) > 0{}", ")".repeat(times + 1))
    };
    let walk =
        "lists.range(1000).all(a, lists.range(1000).all(b, lists.range(1000).all(c, a < 9999)))";
    let expressions = [
        double(60),
        walk.to_owned(),
        "lists.range(9223372036854775807).size() > 0".to_owned(),
        "lists.range(100000).map(x, lists.range(100000)).size() > 0".to_owned(),
        "\"a\".matches(lists.range(1000).map(x, \"(a*)*\").join(\"\"))".to_owned(),
        "\"aaaaaaaa\".replace(\"\", \"aaaaaaaa\".replace(\"\", \"aaaaaaaa\")).size() > 100"
            .to_owned(),
    ];
    for expression in expressions {
        let program = Program::compile(&expression).unwrap();
        // Stopped or not, it returns.
        let _ = program.matches(DRIVER, &device(0, 0));
    }
    let failure = Program::compile(walk).unwrap().matches(DRIVER, &device(0, 0)).unwrap_err();
    assert!(failure.to_string().contains("cost limit of"), "{failure}");
}

#[test]
fn expressions_that_are_too_deep_or_too_long_are_refused() {
    let nested = format!("{}true{}", "(".repeat(5_000), ")".repeat(5_000));
    let sum = format!("{}1 == 1", "1 + ".repeat(2_000));
    let negated = format!("{}true", "!(".repeat(4_000));
    let long = format!("\"{}\" == \"\"", "a".repeat(20_000));
    let choice = format!("{}true", "true ? true : ".repeat(700));
    let pattern = "\"a\".matches(\"(((a{1000}){1000}){1000})\")";
    for expression in [nested.as_str(), &sum, &negated, &long, &choice, pattern] {
        let shown: String = expression.chars().take(40).collect();
        assert!(Program::compile(expression).is_err(), "{shown}");
    }
    let wide = format!("{}false", "true || ".repeat(1_000));
    assert_eq!(Program::compile(&wide).unwrap().matches(DRIVER, &device(0, 0)), Ok(true));
}

#[test]
fn arbitrary_text_is_read_without_panicking() {
    const PARTS: [&str; 40] = [
        "device",
        ".",
        "attributes",
        "[",
        "]",
        "(",
        ")",
        "\"",
        "'",
        "?",
        ":",
        "&&",
        "||",
        "!",
        "-",
        "1",
        "0x",
        "1e",
        "u",
        "in",
        "has",
        "all",
        "map",
        ",",
        "x",
        "{",
        "}",
        "\\",
        "\\u12",
        "r\"",
        "b'",
        "é",
        "==",
        "<",
        "+",
        "%",
        "//",
        "\n",
        "cel.bind",
        "optional",
    ];
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..12 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            text.push_str(PARTS[usize::try_from(state % 40).unwrap()]);
        }
        if let Ok(program) = Program::compile(&text) {
            let _ = program.matches(DRIVER, &device(0, 0));
        }
    }
}

//! On any node, whatever pods come and go, the laws of admission hold.
#![no_main]

use arbitrary::Unstructured;
use berth_testkit::{invariants, scenario};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(scenario)) = scenario::scenario(&mut Unstructured::new(bytes)) {
        invariants::check(&scenario);
    }
});

//! Any text is a case or an error; any case can be replayed and told.
#![no_main]

use berth_testkit::kubelet::{Case, explain};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(case) = Case::parse(text) {
        explain(&case);
    }
});

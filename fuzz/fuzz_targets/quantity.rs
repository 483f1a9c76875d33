//! Any text is a quantity or an error; what is read prints as what is read again.
#![no_main]

use berth_model::quantity::Quantity;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(quantity) = Quantity::parse(text) else { return };
    let printed = quantity.to_string();
    let again = Quantity::parse(&printed).expect("what is printed can be read");
    assert_eq!(again, quantity, "{text:?} printed as {printed:?}");
    assert_eq!(again.value(), quantity.value());
    assert_eq!(again.milli_value(), quantity.milli_value());
    if let Some(whole) = quantity.as_i64() {
        assert_eq!(whole, quantity.value());
        assert!(quantity.as_stored_i64().is_none_or(|stored| stored == whole));
    }
    if let Some(sum) = quantity.checked_add(again) {
        assert_eq!(sum.checked_sub(again), Some(quantity));
    }
});

//! Laws that hold on arbitrary nodes.

use arbitrary::Unstructured;
use berth_testkit::{invariants, scenario};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_nodes_keep_the_laws(bytes in proptest::collection::vec(any::<u8>(), 0..1_500)) {
        if let Ok(Some(scenario)) = scenario::scenario(&mut Unstructured::new(&bytes)) {
            invariants::check(&scenario);
        }
    }
}

//! Invariants on arbitrary nodes.

use arbitrary::Unstructured;
use berth_testkit::{invariants, scenario};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3_000,
        // Some bytes describe no node; if most did not, this would fail.
        max_global_rejects: 2_000,
        // The same scenarios every time; the fuzz target searches for others.
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_nodes_keep_the_laws(bytes in proptest::collection::vec(any::<u8>(), 100..1_500)) {
        let scenario = scenario::scenario(&mut Unstructured::new(&bytes));
        prop_assume!(matches!(scenario, Ok(Some(_))));
        if let Ok(Some(scenario)) = scenario {
            invariants::check(&scenario);
        }
    }
}

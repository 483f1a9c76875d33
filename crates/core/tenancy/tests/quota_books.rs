//! Quota usage does not depend on the order of events.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use berth_model::pod::{Container, ContainerKind, Resources};
use berth_model::policy::Quota;
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceList;
use berth_model::spec::PodSpec;
use berth_tenancy::quota::{Arrival, PodPlacement, QuotaLedger};
use proptest::prelude::*;

fn list(pairs: &[(&str, &str)]) -> ResourceList {
    pairs.iter().map(|(name, text)| ((*name).into(), Quantity::parse(text).unwrap())).collect()
}

fn quota(name: &str, hard: &[(&str, &str)]) -> Quota {
    Quota { namespace: "ns".into(), name: name.into(), hard: list(hard), scopes: Vec::new() }
}

fn spec(gpus: u32) -> Arc<PodSpec> {
    let both = list(&[("nvidia.com/gpu", &gpus.to_string())]);
    let resources = Resources { requests: both.clone(), limits: both };
    let container = Container { name: "c".into(), kind: ContainerKind::App, resources };
    let mut spec = PodSpec { namespace: "ns".into(), ..PodSpec::default() };
    spec.pod.containers.push(container);
    Arc::new(spec)
}

fn arrival(number: i64) -> Arrival {
    Arrival { created_at_ms: number, uid: format!("uid-{number}").into() }
}

fn books(hard: &str) -> QuotaLedger {
    let mut books = QuotaLedger::default();
    books.set_quota(quota("gpus", &[("requests.nvidia.com/gpu", hard)]));
    books
}

fn wait(books: &mut QuotaLedger, number: i64, gpus: u32) {
    books.set_pod(arrival(number), &spec(gpus), PodPlacement::Pending, None);
}

fn is_refused(books: &QuotaLedger, number: i64) -> bool {
    books.refusal("ns", &arrival(number)).is_some()
}

#[test]
fn pods_beyond_the_cap_are_refused_in_the_order_of_creation() {
    let mut books = books("8");
    wait(&mut books, 3, 4);
    wait(&mut books, 2, 4);
    assert!(!is_refused(&books, 2) && !is_refused(&books, 3));
    wait(&mut books, 1, 4);
    assert!(!is_refused(&books, 1) && !is_refused(&books, 2) && is_refused(&books, 3));
    let words = books.refusal("ns", &arrival(3)).unwrap().to_string();
    let gpu = "requests.nvidia.com/gpu";
    let want = format!("exceeded quota: gpus, requested: {gpu}=4, used: {gpu}=8, limited: {gpu}=8");
    assert_eq!(words, want);
    assert_eq!(books.take_changed().into_iter().collect::<Vec<_>>(), ["uid-3".into()]);
}

#[test]
fn freed_quota_goes_to_the_oldest_pod_that_fits() {
    let mut books = books("8");
    [(1, 6), (2, 4), (3, 2), (4, 2)].into_iter().for_each(|(at, gpus)| wait(&mut books, at, gpus));
    assert_eq!([1, 2, 3, 4].map(|at| is_refused(&books, at)), [false, true, false, true]);
    books.remove_pod("ns", &arrival(1));
    assert_eq!([2, 3, 4].map(|at| is_refused(&books, at)), [false, false, false]);
}

#[test]
fn placed_pods_count_even_beyond_the_cap() {
    let mut books = books("4");
    wait(&mut books, 1, 4);
    books.set_pod(arrival(2), &spec(8), PodPlacement::Placed, None);
    assert!(is_refused(&books, 1) && !is_refused(&books, 2));
    books.set_quota(quota("gpus", &[("requests.nvidia.com/gpu", "12")]));
    assert!(!is_refused(&books, 1));
}

#[test]
fn pods_that_are_long_overdue_stop_to_count() {
    let mut books = books("4");
    books.set_pod(arrival(1), &spec(4), PodPlacement::Placed, Some(1_000));
    wait(&mut books, 2, 4);
    books.expire(1_000);
    assert!(is_refused(&books, 2));
    books.expire(1_001);
    assert!(!is_refused(&books, 2));
}

#[test]
fn expiry_can_be_rolled_back() {
    let mut books = books("6");
    books.set_pod(arrival(1), &spec(4), PodPlacement::Placed, Some(1_000));
    books.set_pod(arrival(2), &spec(2), PodPlacement::Placed, Some(2_000));
    wait(&mut books, 3, 4);
    wait(&mut books, 4, 2);
    books.expire(1_500);
    let expiring = books.expiring().clone();
    assert_eq!([3, 4].map(|at| is_refused(&books, at)), [false, true]);
    books.expire(2_500);
    assert_eq!([3, 4].map(|at| is_refused(&books, at)), [false, false]);
    // Set again, as after a rollback.
    books.remove_pod("ns", &arrival(1));
    books.set_pod(arrival(1), &spec(4), PodPlacement::Placed, Some(1_000));
    books.set_expiring(expiring.clone());
    assert_eq!([3, 4].map(|at| is_refused(&books, at)), [false, true], "not as of the start");
    assert_eq!(*books.expiring(), expiring);
}

type Happening = (i64, u32, u8);

fn play(happenings: &[Happening]) -> QuotaLedger {
    let mut books = books("10");
    for (number, gpus, what) in happenings {
        match what {
            0 | 1 => wait(&mut books, *number, *gpus),
            2 => books.set_pod(arrival(*number), &spec(*gpus), PodPlacement::Placed, None),
            _ => books.remove_pod("ns", &arrival(*number)),
        }
    }
    books
}

proptest! {
    #[test]
    fn the_last_word_on_every_pod_decides(
        happenings in proptest::collection::vec((0_i64..12, 1_u32..5, 0_u8..4), 1..60),
    ) {
        let live = play(&happenings);
        let mut last: Vec<Happening> = Vec::new();
        for happening in &happenings {
            last.retain(|one| one.0 != happening.0);
            last.push(*happening);
        }
        last.sort_unstable();
        let anew = play(&last);
        for number in 0..12 {
            prop_assert_eq!(is_refused(&live, number), is_refused(&anew, number), "{}", number);
        }
        prop_assert_eq!(live.used("ns", "gpus"), anew.used("ns", "gpus"));
    }
}

//! Team shares: guarantees, borrowing, order of the queue, reclaiming.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_tenancy::share::{
    Candidate, Charge, ChargeState, Claim, Dimension, Entitlement, GPU_PARTS, Hold, Ledger, Lender,
    Team, TeamIx, TeamQueue, problems,
};
use proptest::prelude::*;

const GPUS: Dimension = Dimension::Gpus;

fn share(guaranteed: i64) -> Entitlement {
    Entitlement { guaranteed, ..Entitlement::default() }
}

fn team(name: &str, parent: Option<&str>, shares: &[(Dimension, Entitlement)]) -> Team {
    Team {
        name: name.into(),
        parent: parent.map(Into::into),
        namespaces: [name.into()].into(),
        entitlements: shares.iter().cloned().collect(),
        ..Team::default()
    }
}

fn ledger(teams: Vec<Team>, capacity: i64) -> Ledger {
    let teams: BTreeMap<Arc<str>, Team> =
        teams.into_iter().map(|team| (team.name.clone(), team)).collect();
    let mut ledger = Ledger::default();
    ledger.configure(&teams);
    for dimension in [GPUS, Dimension::Memory] {
        let at = ledger.dimension(&dimension);
        ledger.add_capacity(at, capacity);
    }
    ledger
}

fn ask(ledger: &mut Ledger, gpus: i64) -> Charge {
    [(ledger.dimension(&GPUS), gpus)].into_iter().collect()
}

fn of(ledger: &Ledger, name: &str) -> TeamIx {
    ledger.team_of(name, None)
}

fn has(ledger: &mut Ledger, name: &str, gpus: i64) {
    let (team, charge) = (of(ledger, name), ask(ledger, gpus));
    ledger.add(team, &charge, ChargeState::InUse, 1);
}

/// How many of such pods may be evicted for one of another team.
fn evictable(
    ledger: &Ledger,
    (by, priority, ask): (&str, i32, &Charge),
    own: Option<&Charge>,
    pods: &[(&str, i32, &Charge)],
) -> Vec<usize> {
    let claim = Claim { team: of(ledger, by), priority, ask, own };
    let candidates = pods.iter().enumerate().map(|(pod, (from, priority, charge))| Candidate {
        pod,
        team: of(ledger, from),
        priority: *priority,
        charge,
        started_at_ms: pod as i64,
    });
    ledger.evictable(&claim, candidates)
}

fn reclaims(ledger: &mut Ledger, by: &str, gpus: i64, from: &str, victim: i64) -> bool {
    let (wanted, charge) = (ask(ledger, gpus), ask(ledger, victim));
    !evictable(ledger, (by, 0, &wanted), None, &[(from, 0, &charge)]).is_empty()
}

fn two_teams() -> Ledger {
    ledger(vec![team("a", None, &[(GPUS, share(8))]), team("b", None, &[(GPUS, share(8))])], 16)
}

#[test]
fn work_within_a_guarantee_goes_before_work_that_borrows() {
    let mut ledger = two_teams();
    has(&mut ledger, "a", 8);
    has(&mut ledger, "b", 4);
    let one = ask(&mut ledger, 1);
    let turn = |name: &str, priority| ledger.turn(of(&ledger, name), priority, &one);
    assert!(turn("a", 100).borrows && !turn("b", 0).borrows);
    assert!(turn("b", 0) < turn("a", 100));
    assert!(turn("b", 5) < turn("b", 0));
    assert!(turn("nobody", 0).borrows, "pods of no team have no guarantee");
}

#[test]
fn the_borrower_with_the_smaller_dominant_share_goes_first() {
    let heavy = Team { weight_milli: 4000, ..team("a", None, &[(GPUS, share(0))]) };
    let mut ledger = ledger(vec![heavy, team("b", None, &[(Dimension::Memory, share(0))])], 100);
    let memory = ledger.dimension(&Dimension::Memory);
    has(&mut ledger, "a", 30);
    has(&mut ledger, "b", 5);
    // Not what it has of GPUs, but what it has most of, counts.
    let (b, charge) = (of(&ledger, "b"), [(memory, 7)].into_iter().collect());
    ledger.add(b, &charge, ChargeState::InUse, 1);
    let one = ask(&mut ledger, 1);
    let turn = |name: &str| ledger.turn(of(&ledger, name), 0, &one);
    assert_eq!((turn("a").shares[0], turn("b").shares[0]), (75_000_000, 70_000_000));
    assert!(turn("b") < turn("a"));
}

#[test]
fn limits_on_borrowing_and_lending_hold_pods() {
    let limited = Entitlement { guaranteed: 8, borrow_max: Some(2), lend_max: None };
    let closed = Entitlement { guaranteed: 8, borrow_max: None, lend_max: Some(3) };
    let teams = vec![
        team("a", None, &[(GPUS, limited)]),
        team("b", None, &[(GPUS, closed)]),
        team("c", None, &[(GPUS, share(0))]),
    ];
    let mut ledger = ledger(teams, 20);
    has(&mut ledger, "a", 8);
    let [two, three, seven] = [2, 3, 7].map(|gpus| ask(&mut ledger, gpus));
    let a = of(&ledger, "a");
    assert_eq!(ledger.may_start(a, &two, None), Ok(()));
    let held = ledger.may_start(a, &three, None).unwrap_err();
    let limit = Hold::BorrowingLimit {
        team: "a".into(),
        dimension: GPUS,
        asked: 3,
        has: 8,
        guaranteed: 8,
        borrow_max: 2,
    };
    assert_eq!(held, limit);
    // 20 - 8 - 5 that b does not lend.
    let c = of(&ledger, "c");
    assert_eq!(ledger.may_start(c, &seven, None), Ok(()));
    has(&mut ledger, "c", 5);
    let held = ledger.may_start(c, &three, None).unwrap_err();
    assert!(matches!(&held, Hold::Withheld { kept: 18, by, .. } if by == &[("b".into(), 5)]));
    // What is its own it may have.
    let b = of(&ledger, "b");
    assert_eq!(ledger.may_start(b, &seven, None), Ok(()));
}

#[test]
fn only_teams_beyond_their_guarantee_lose_pods() {
    let mut ledger = two_teams();
    has(&mut ledger, "a", 4);
    has(&mut ledger, "b", 12);
    assert!(reclaims(&mut ledger, "a", 4, "b", 4));
    assert!(!reclaims(&mut ledger, "a", 5, "b", 4), "more than it was guaranteed");
    assert!(!reclaims(&mut ledger, "b", 1, "a", 1), "borrowers take nothing back");
    has(&mut ledger, "a", 4);
    assert!(!reclaims(&mut ledger, "a", 1, "b", 1));
    has(&mut ledger, "a", -4);
    has(&mut ledger, "b", -4);
    assert!(!reclaims(&mut ledger, "a", 1, "b", 1), "within its guarantee");
}

#[test]
fn no_more_is_taken_than_exceeds_a_guarantee() {
    let mut ledger = two_teams();
    has(&mut ledger, "b", 10);
    let (a, b) = (of(&ledger, "a"), of(&ledger, "b"));
    let [eight, one] = [8, 1].map(|gpus| ask(&mut ledger, gpus));
    let pods: Vec<_> = (0..8).map(|_| ("b", 0, &one)).collect();
    assert_eq!(evictable(&ledger, ("a", 0, &eight), None, &pods), [7, 6], "the youngest");
    let mut higher = pods.clone();
    (higher[6].1, higher[7].1) = (1, -1);
    assert_eq!(evictable(&ledger, ("a", 0, &eight), None, &higher), [7, 5]);
    // What is leaving already is not taken again, and what is arriving counts.
    ledger.add(b, &one, ChargeState::Leaving, 1);
    ledger.add(b, &one, ChargeState::Leaving, 1);
    assert!(!reclaims(&mut ledger, "a", 8, "b", 1));
    ledger.add(b, &one, ChargeState::Leaving, -1);
    ledger.add(a, &one, ChargeState::Arriving, 1);
    assert!(!reclaims(&mut ledger, "a", 8, "b", 1));
    assert_eq!(evictable(&ledger, ("a", 0, &eight), Some(&one), &pods), [7]);
}

#[test]
fn groups_settle_among_themselves_first() {
    let teams = vec![
        team("ml", None, &[(GPUS, share(16))]),
        team("ml-x", Some("ml"), &[(GPUS, share(8))]),
        team("ml-y", Some("ml"), &[(GPUS, share(8))]),
        team("web", None, &[(GPUS, share(8))]),
    ];
    let mut ledger = ledger(teams, 24);
    has(&mut ledger, "ml-x", 12);
    has(&mut ledger, "ml-y", 2);
    // x has borrowed from y, and the group as a whole is within its guarantee.
    assert!(!reclaims(&mut ledger, "web", 4, "ml-x", 4));
    assert!(reclaims(&mut ledger, "ml-y", 4, "ml-x", 4));
    // Nor does a higher priority help against a guarantee.
    let charge = ask(&mut ledger, 4);
    let by = |name| evictable(&ledger, (name, 9, &charge), None, &[("ml-x", 0, &charge)]).len();
    assert_eq!(["web", "ml-y", "ml-x"].map(by), [0, 1, 1]);
    let accounts = ledger.accounts();
    let x = accounts.iter().find(|account| *account.team == *"ml-x").unwrap();
    assert_eq!(x.borrowed, [(Lender::Team("ml-y".into()), 4)]);
    // Beyond the group's guarantee it is web's.
    has(&mut ledger, "ml-x", 8);
    assert!(reclaims(&mut ledger, "web", 4, "ml-x", 4));
    let accounts = ledger.accounts();
    let of_team = |name: &str| accounts.iter().find(|account| *account.team == *name).unwrap();
    let web = Lender::Team("web".into());
    assert_eq!(of_team("ml").borrowed, [(web, 6)]);
    let loans = [(Lender::Team("ml-y".into()), 6), (Lender::Group("ml".into()), 6)];
    assert_eq!(of_team("ml-x").borrowed, loans);
    assert_eq!((of_team("web").lent, of_team("ml-y").lent), (6, 6));
}

#[test]
fn amounts_without_a_lender_are_owed() {
    let mut ledger = two_teams();
    has(&mut ledger, "b", 14);
    has(&mut ledger, "a", 6);
    let accounts = ledger.accounts();
    let loans = [(Lender::Team("a".into()), 2), (Lender::Owed, 4)];
    assert_eq!(accounts[1].borrowed, loans);
}

#[test]
fn a_label_chooses_among_the_teams_of_the_namespace_only() {
    let mut teams = vec![team("a", None, &[]), team("b", None, &[]), team("c", None, &[])];
    teams[1].namespaces.insert("a".into());
    let ledger = ledger(teams, 1);
    let name = |label| ledger.name(ledger.team_of("a", label)).to_string();
    assert_eq!([None, Some("b"), Some("c")].map(name), ["a", "b", "a"]);
    assert_eq!(ledger.team_of("elsewhere", Some("a")), TeamIx::NONE);
}

#[test]
fn a_team_without_namespaces_has_the_pods_that_carry_its_label() {
    let open = |name: &str, parent| Team { namespaces: [].into(), ..team(name, parent, &[]) };
    let teams = vec![
        team("a", None, &[]),
        open("open", None),
        open("group", None),
        open("x", Some("group")),
    ];
    let ledger = ledger(teams, 1);
    let name = |namespace, label| ledger.name(ledger.team_of(namespace, Some(label))).to_string();
    assert_eq!(name("elsewhere", "open"), "open");
    assert_eq!(name("elsewhere", "x"), "x");
    assert_eq!(name("elsewhere", "group"), "", "a group has no pods of its own");
    assert_eq!(name("a", "open"), "a", "the namespace goes before the label");
}

#[test]
fn problems_name_the_team_the_field_and_the_remedy() {
    let teams = vec![
        Team { weight_milli: 0, ..team("a", Some("b"), &[(GPUS, share(-1))]) },
        team("b", Some("a"), &[]),
        team("c", Some("x"), &[(GPUS, share(GPU_PARTS))]),
        team("d", Some("c"), &[(GPUS, share(GPU_PARTS / 8 * 9))]),
    ];
    let teams: BTreeMap<Arc<str>, Team> =
        teams.into_iter().map(|team| (team.name.clone(), team)).collect();
    let said: Vec<String> =
        problems(&teams, |_| GPU_PARTS).iter().map(ToString::to_string).collect();
    let starts = [
        "team a: weight: must be greater than 0",
        "team a: parent: is a cycle back",
        "team a: shares: an amount of GPUs is negative",
        "team b: parent: is a cycle back",
        "team c: parent: Team \"x\" does not exist",
        "team c: shares: its child teams are guaranteed 1.125 GPUs, but it has 1 GPUs; raise",
        "team c: shares: the guarantees of all teams add up to 1.125 GPUs, but the cluster has 1 GPUs",
        "team d: shares: the guarantees of all teams add up to 1.125 GPUs, but the cluster has 1 GPUs",
    ];
    assert_eq!(said.len(), starts.len(), "{said:#?}");
    for (one, start) in said.iter().zip(starts) {
        assert!(one.starts_with(start), "{one:?} should start with {start:?}");
    }
    let mut ledger = Ledger::default();
    ledger.configure(&teams);
    assert!(ledger.take_changed().len() == 5, "and none of it is followed for ever");
}

#[test]
fn absurd_amounts_are_survived() {
    let most =
        Entitlement { guaranteed: i64::MAX, borrow_max: Some(i64::MAX), lend_max: Some(i64::MIN) };
    let mut ledger = ledger(vec![team("a", None, &[(GPUS, most)]), team("b", Some("a"), &[])], 1);
    for _ in 0..3 {
        let (b, charge) = (of(&ledger, "b"), ask(&mut ledger, i64::MAX));
        ledger.add(b, &charge, ChargeState::InUse, 1);
        ledger.add(b, &charge, ChargeState::Arriving, 1);
        let _ = ledger.may_start(b, &charge, None);
        let _ = ledger.turn(b, 0, &charge);
        let _ = ledger.accounts();
    }
}

proptest! {
    /// Sums follow from what everybody has, whatever happened before; loans add up; and the line
    /// gives pods in the order of their turns.
    #[test]
    fn books_balance(moves in proptest::collection::vec((0_usize..5, 1_i64..9, 0_u8..3), 1..80)) {
        let names = ["a", "b", "g", "g1", "g2"];
        let withheld = Entitlement { guaranteed: 10, borrow_max: None, lend_max: Some(4) };
        let teams = || vec![
            team("a", None, &[(GPUS, share(20))]),
            team("b", None, &[(GPUS, withheld)]),
            team("g", None, &[(GPUS, share(30))]),
            team("g1", Some("g"), &[(GPUS, share(10))]),
            team("g2", Some("g"), &[(GPUS, share(15))]),
        ];
        let mut live = ledger(teams(), 60);
        let mut held: Vec<(usize, i64)> = Vec::new();
        for (who, gpus, what) in moves {
            if what == 0 && !held.is_empty() {
                let (who, gpus) = held.remove(gpus as usize % held.len());
                has(&mut live, names[who], -gpus);
            } else {
                held.push((who, gpus));
                has(&mut live, names[who], gpus);
            }
        }
        let mut anew = ledger(teams(), 60);
        held.iter().for_each(|(who, gpus)| has(&mut anew, names[*who], *gpus));
        prop_assert_eq!(live.accounts(), anew.accounts());
        for account in live.accounts() {
            let borrowed = (account.has - account.guaranteed).max(0);
            prop_assert_eq!(account.borrowed_total(), borrowed);
            prop_assert!(account.lent <= (account.guaranteed - account.has).max(0));
        }
        let gpus = live.dimension(&GPUS);
        let turn = |(team, amount): (TeamIx, i64)| {
            live.turn(team, 0, &[(gpus, amount)].into_iter().collect())
        };
        let mut left: Vec<(usize, (TeamIx, i64))> = held.iter().enumerate()
            .map(|(at, (who, gpus))| (at, (of(&live, names[*who]), *gpus)))
            .collect();
        let mut line: TeamQueue<i64, usize, (TeamIx, i64)> = TeamQueue::new(true);
        left.iter().for_each(|(at, pod)| line.insert(pod.0, pod.1, *at, *pod));
        while let Some(first) = line.first(turn) {
            let want = *left.iter().min_by_key(|(at, pod)| (turn(*pod), *at)).unwrap();
            prop_assert_eq!(first, want.1);
            line.remove(first.0, first.1, &want.0);
            left.retain(|(at, _)| *at != want.0);
        }
        prop_assert!(left.is_empty() && line.is_empty());
    }
}

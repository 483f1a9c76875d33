//! The value of the rest of a partly used GPU.
//!
//! A rest of 190 thousandths looks like a fifth of a GPU, but in a mix where next to nothing
//! requests less than 200 it is waste. Its value is what will come to fill it: each rest sees a
//! number of arrivals of shares, and takes one or waits for a better one, whichever is worth more.
//! That is a small dynamic program over the size of the rest. Halves then wait for halves, and
//! small pods go to the small rests that only they can fill.

use std::collections::BTreeMap;

use crate::request::{GpuRequest, WHOLE_MILLI};

/// In millionths.
pub(crate) const GPU_MICRO: i64 = 1_000_000;

/// How many arrivals a rest waits for. Fewer would take the first that fits and pair badly; with
/// many more every rest would wait for its perfect partner and new GPUs would be opened meanwhile.
/// From 16 to 50 the outcome hardly differs (shorter is better by a little if pods come and go,
/// longer if they only come); beyond 70 it falls.
const ARRIVALS: usize = 24;

/// Limit of sizes of shares; the most frequent ones are kept.
const SIZES_MAX: usize = 64;

const SIZES: usize = WHOLE_MILLI as usize + 1;

/// The value of a rest by its size.
#[derive(Clone, Debug)]
pub(crate) struct Remnants {
    worth_micro: Vec<i64>,
}

impl Remnants {
    /// From GPU requests with their frequencies.
    pub(crate) fn new(asked: impl Iterator<Item = (GpuRequest, u64)>) -> Self {
        let mut by_size: BTreeMap<usize, i64> = BTreeMap::new();
        for (ask, count) in asked {
            if let GpuRequest::Share(part) = ask
                && part.size_milli() > 0
            {
                *by_size.entry(usize::from(part.size_milli())).or_default() +=
                    i64::try_from(count).unwrap_or(i64::MAX >> 32);
            }
        }
        let mut shares: Vec<(usize, i64)> = by_size.into_iter().collect();
        shares.sort_by_key(|(size, count)| (-count, *size));
        shares.truncate(SIZES_MAX);
        let total: i64 = shares.iter().map(|(_, count)| count).sum();
        let mut worth_micro = vec![0; SIZES];
        if total > 0 {
            for _ in 0..ARRIVALS {
                worth_micro =
                    (0..SIZES).map(|rest| wait(&worth_micro, rest, &shares, total)).collect();
            }
        }
        if let Some(whole) = worth_micro.last_mut() {
            *whole = GPU_MICRO;
        }
        Self { worth_micro }
    }

    pub(crate) fn worth_micro(&self, rest_milli: u16) -> i64 {
        self.worth_micro.get(usize::from(rest_milli)).copied().unwrap_or(GPU_MICRO)
    }
}

/// Value of a rest before one more arrival than `worth` is for.
fn wait(worth: &[i64], rest: usize, shares: &[(usize, i64)], total: i64) -> i64 {
    let now = worth.get(rest).copied().unwrap_or_default();
    let gain: i64 = shares
        .iter()
        .filter_map(|(size, count)| {
            let left = worth.get(rest.checked_sub(*size)?)?;
            Some(count * (i64::try_from(*size).ok()? * 1_000 + left - now).max(0))
        })
        .sum();
    now + gain / total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Part;

    fn of(shares: &[(u16, u64)]) -> Remnants {
        Remnants::new(
            shares.iter().map(|(milli, count)| (GpuRequest::Share(Part::even(*milli)), *count)),
        )
    }

    #[test]
    fn a_rest_that_nothing_requests_is_worth_nothing() {
        let remnants = of(&[(500, 10), (700, 10)]);
        assert_eq!(remnants.worth_micro(300), 0);
        assert_eq!(remnants.worth_micro(499), 0);
        assert!(remnants.worth_micro(500) > 490_000);
    }

    #[test]
    fn a_rest_for_rare_pods_is_worth_less() {
        let remnants = of(&[(160, 1), (470, 100)]);
        assert!(remnants.worth_micro(190) < 80_000);
        assert!(remnants.worth_micro(530) > 460_000);
    }

    #[test]
    fn more_room_is_never_worth_less_and_never_more_than_its_size() {
        let remnants = of(&[(160, 70), (320, 300), (470, 750), (650, 250), (810, 1_000)]);
        for rest in 1..=WHOLE_MILLI {
            let worth = remnants.worth_micro(rest);
            assert!(worth >= remnants.worth_micro(rest - 1), "{rest}");
            assert!(worth <= i64::from(rest) * 1_000, "{rest}");
        }
    }

    #[test]
    fn without_shares_only_whole_gpus_are_worth_anything() {
        let remnants = of(&[]);
        assert_eq!(remnants.worth_micro(999), 0);
        assert_eq!(remnants.worth_micro(1_000), GPU_MICRO);
    }
}

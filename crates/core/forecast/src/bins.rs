//! Bins of durations: four per doubling, from a second to decades. Integers only, so that every
//! machine puts a duration into the same bin.

/// Number of bins; the last has no end.
pub(crate) const BINS: usize = 120;

/// A quarter of the shortest duration distinguished from 0.
const UNIT_MS: u64 = 250;

pub(crate) fn bin_of(duration_ms: u64) -> usize {
    let units = duration_ms / UNIT_MS;
    if units < 4 {
        return 0;
    }
    let doublings = units.ilog2() - 2;
    let quarter = (units >> doublings) & 3;
    (1 + doublings as usize * 4 + quarter as usize).min(BINS - 1)
}

/// The start of a bin, or the end of the last.
pub(crate) fn start_ms(bin: usize) -> u64 {
    if bin == 0 {
        return 0;
    }
    let (doublings, quarter) = ((bin - 1) / 4, (bin - 1) % 4);
    ((4 + quarter as u64) << doublings) * UNIT_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bin_begins_where_the_one_before_ends() {
        for bin in 1..BINS {
            assert_eq!(bin_of(start_ms(bin)), bin);
            assert_eq!(bin_of(start_ms(bin) - 1), bin - 1);
        }
        assert_eq!(bin_of(u64::MAX), BINS - 1);
        assert!(start_ms(BINS) > 20 * 365 * 86_400_000);
    }
}

//! How far CPU or memory of a node suffices for its free GPUs.
//!
//! The mix needs an average of CPU for each GPU. With less, a part of the GPUs cannot be used; but
//! pods that need the least can still run, so the first shortage costs little and the last core
//! costs most. The curve gives the usable part of the free GPUs for a part of the average need.

/// Number of even steps of the curve.
const STEPS: usize = 256;

/// The need of one resource for GPUs, and the curve.
#[derive(Clone, Debug)]
pub(crate) struct Supply {
    /// Average of the mix per GPU. Zero if nothing is needed.
    per_gpu: f64,
    /// The unusable part, by step.
    unusable: Vec<f64>,
}

impl Supply {
    /// From pods as (resource requested, thousandths of a GPU requested, frequency).
    pub(crate) fn new(pods: impl Iterator<Item = (u64, u64, u64)>) -> Self {
        // For each: need of one GPU, and GPUs.
        let mut needs: Vec<(f64, f64)> = pods
            .filter(|(_, gpu_milli, _)| *gpu_milli > 0)
            .map(|(amount, gpu_milli, count)| {
                let gpus = gpu_milli as f64 / 1_000.0;
                (amount as f64 / gpus, gpus * count as f64)
            })
            .collect();
        needs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let gpus: f64 = needs.iter().map(|(_, gpus)| gpus).sum();
        let amount: f64 = needs.iter().map(|(need, gpus)| need * gpus).sum();
        if amount <= 0.0 {
            return Self { per_gpu: 0.0, unusable: Vec::new() };
        }
        let unusable = (0..=STEPS)
            .map(|step| 1.0 - served(&needs, amount * step as f64 / STEPS as f64) / gpus)
            .collect();
        Self { per_gpu: amount / gpus, unusable }
    }

    /// How much of `gpus` cannot be used with this much of the resource, in the unit of `gpus`.
    pub(crate) fn unusable(&self, gpus: f64, have: f64) -> f64 {
        let need = gpus * self.per_gpu;
        if have >= need {
            return 0.0;
        }
        let at = have / need * STEPS as f64;
        let step = at as usize;
        match (self.unusable.get(step), self.unusable.get(step + 1)) {
            (Some(low), Some(high)) => gpus * (low + (high - low) * (at - step as f64)),
            _ => 0.0,
        }
    }
}

/// How many GPUs can be used with this amount if pods that need least come first.
fn served(needs: &[(f64, f64)], amount: f64) -> f64 {
    let (mut left, mut served) = (amount, 0.0);
    for (need, gpus) in needs {
        if need * gpus > left {
            return served + left / need;
        }
        left -= need * gpus;
        served += gpus;
    }
    served
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the GPUs need 4, half 12; 8 on average.
    fn supply() -> Supply {
        Supply::new([(4, 1_000, 10), (12, 1_000, 10)].into_iter())
    }

    #[test]
    fn enough_for_the_average_is_enough() {
        assert_eq!(supply().unusable(8.0, 64.0), 0.0);
        assert_eq!(supply().unusable(8.0, 1_000.0), 0.0);
    }

    #[test]
    fn a_shortage_falls_on_those_that_need_most() {
        // Sixteen are enough for the four that need little.
        assert!((supply().unusable(8.0, 16.0) - 4.0).abs() < 1e-9);
        assert!((supply().unusable(8.0, 8.0) - 6.0).abs() < 1e-9);
        assert!((supply().unusable(8.0, 0.0) - 8.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_unusable_where_nothing_is_needed() {
        let none = Supply::new([(0, 1_000, 5)].into_iter());
        assert_eq!(none.unusable(8.0, 0.0), 0.0);
        assert_eq!(Supply::new(std::iter::empty()).unusable(8.0, 0.0), 0.0);
    }
}

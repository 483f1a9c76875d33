//! Requests for a part of a GPU, from Berth's annotations.

use berth_model::spec::{GpuGrant, GpuNeed};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::error::Problem;
use crate::keys::{GPU_COMPUTE, GPU_MEMORY, PLACEMENT};
use crate::meta::annotation;
use crate::placement;
use crate::resource::quantity;

/// A share of unknown size counts as the whole GPU, so that no other share is placed on memory it may hold.
pub(super) const WHOLE: GpuNeed = GpuNeed { memory_bytes: 0, compute_milli: 1000 };

/// The grant recorded in the placement annotation.
pub(super) fn granted(meta: &ObjectMeta) -> Option<GpuGrant> {
    placement::grant(annotation(meta, PLACEMENT)?)
}

/// Valid requests, in thousandths of a GPU.
const COMPUTE_MILLI: std::ops::RangeInclusive<u16> = 10..=1000;

pub(super) fn need(meta: &ObjectMeta) -> Result<Option<GpuNeed>, Problem> {
    let memory = annotation(meta, GPU_MEMORY).map(memory_bytes).transpose();
    let memory = memory.map_err(|problem| at(GPU_MEMORY, problem))?;
    let compute = annotation(meta, GPU_COMPUTE).map(compute_milli).transpose();
    let compute = compute.map_err(|problem| at(GPU_COMPUTE, problem))?;
    Ok((memory.is_some() || compute.is_some()).then_some(GpuNeed {
        memory_bytes: memory.unwrap_or(0),
        compute_milli: compute.unwrap_or(0),
    }))
}

fn at(annotation: &str, problem: Problem) -> Problem {
    problem.under(format!("metadata.annotations[{annotation}]"))
}

fn memory_bytes(text: &str) -> Result<u64, Problem> {
    let bytes = quantity(text)?.value();
    match u64::try_from(bytes) {
        Ok(bytes) if bytes > 0 => Ok(bytes),
        _ => {
            let problem = format!("invalid GPU memory {text:?}; use a quantity such as 16Gi");
            Err(Problem::new("", problem))
        }
    }
}

/// `30%` is 300, `12.5%` is 125.
pub(crate) fn compute_milli(text: &str) -> Result<u16, Problem> {
    let parse = || {
        let percent = text.strip_suffix('%')?;
        let (whole, tenths) = percent.split_once('.').unwrap_or((percent, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|one| one.is_ascii_digit());
        let well_formed = digits(whole) && digits(tenths) && tenths.len() == 1;
        let number = |text: &str| text.parse::<u16>().ok();
        let milli = number(whole)?.checked_mul(10)?.checked_add(number(tenths)?)?;
        (well_formed && COMPUTE_MILLI.contains(&milli)).then_some(milli)
    };
    parse().ok_or_else(|| {
        let problem = format!("{text:?} is no share; write 1% to 100%, such as 30% or 12.5%");
        Problem::new("", problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &[(&str, &str)]) -> Result<Option<GpuNeed>, String> {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let meta = ObjectMeta { annotations: Some(pairs.collect()), ..ObjectMeta::default() };
        need(&meta).map_err(|problem| format!("{problem:?}"))
    }

    #[test]
    fn memory_and_compute_are_asked_for_apart_or_together() {
        let need = |memory_bytes, compute_milli| Some(GpuNeed { memory_bytes, compute_milli });
        let gib = 1 << 30;
        assert_eq!(asked(&[("team", "a")]), Ok(None));
        assert_eq!(asked(&[(GPU_MEMORY, "16Gi")]), Ok(need(16 * gib, 0)));
        assert_eq!(asked(&[(GPU_COMPUTE, "12.5%"), (GPU_MEMORY, "1Gi")]), Ok(need(gib, 125)));
        assert_eq!(asked(&[(GPU_COMPUTE, "1%")]), Ok(need(0, 10)));
        assert_eq!(asked(&[(GPU_COMPUTE, "100.0%")]), Ok(need(0, 1000)));
    }

    #[test]
    fn what_is_no_part_of_a_gpu_is_an_error_with_the_remedy() {
        for text in ["", "30", "%", "0%", "0.9%", "100.1%", "12.34%", "+5%", "1.%", "99999%"] {
            let error = asked(&[(GPU_COMPUTE, text)]).unwrap_err();
            assert!(error.contains(GPU_COMPUTE) && error.contains("such as 30%"), "{error}");
        }
        for text in ["", "0", "-1Gi", "much"] {
            let error = asked(&[(GPU_MEMORY, text)]).unwrap_err();
            let has_remedy = error.contains("write") || error.contains("such as 16Gi");
            assert!(error.contains(GPU_MEMORY) && has_remedy, "{error}");
        }
    }
}

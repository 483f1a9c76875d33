//! Independent simulations on all cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The results in the order of the items. `work` gets the position of the item, too.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: &(dyn Fn(usize, &T) -> R + Sync)) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<Mutex<Option<R>>> = Vec::new();
    results.resize_with(items.len(), Mutex::default);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(item), Some(slot)) = (items.get(at), results.get(at)) else { return };
                    let result = work(at, item);
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                }
            });
        }
    });
    let result = |slot: Mutex<Option<R>>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().filter_map(result).collect()
}

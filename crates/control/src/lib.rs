//! Live loops: watch, decide, bind, evict; lease; webhook.

pub mod kubeconfig;
pub mod snapshot;

//! The webhook's certificate: made and rotated by itself, or taken from files.
//!
//! Owns generations of certificates, the Secret they are kept in, and the bundle of authorities in our
//! webhook configurations. Must not know what is served.
//!
//! A generation is an authority and a serving certificate signed by it. The authority's key is thrown
//! away at once: the next generation has another. Replicas share a Secret and change it by
//! compare-and-swap. A new generation is published, its authority goes into the bundle, and only when that
//! has had time to reach every API server is it served. The old authority stays in the bundle for a while.

mod generation;
mod keeper;
#[cfg(test)]
mod tests;

pub use generation::{Generation, MakeError, Stored};
pub use keeper::{Files, Keeper, Managed, Source, TlsError, Wall, server_config};

//! What several tests share.

pub mod compare;
pub mod real;

//! What several tests share.
#![allow(unreachable_pub, reason = "a module of tests has no other crate to export to")]
#![allow(dead_code, reason = "not every test uses all of it")]

pub mod compare;
pub mod real;

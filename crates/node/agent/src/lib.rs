//! `berth agent`: what is on a GPU node, and whether each pod with a GPU is aligned.
//!
//! Joins the driver's report ([`GpuReading`]), the machine's files and the kubelet's state into a
//! report; audits running pods; publishes the result; and runs the loops that serve devices, apply
//! MIG layouts and keep MPS daemons. All but these loops (`run`, `handing`, `dividing`, `mps`) is
//! synchronous and knows no API. What a driver refuses becomes a diagnosis beside the rest; nothing
//! panics.
//!
//! - A device is where its plugin told the kubelet it is, because the kubelet aligns by that. Where
//!   that differs from the machine, it is a diagnosis.
//! - An object or a label that another client has written stays that client's.
//! - A MIG change is not logged step by step. The journal holds the old and the wanted layouts;
//!   after a failure or crash the way is computed again from what is there, forward or back.
//! - Serial numbers and process names are never read.

pub mod audit;
pub mod dividing;
pub mod gpus;
pub mod handing;
pub mod mig;
pub mod mps;
pub mod offers;
pub mod publish;
pub mod record;
pub mod report;
pub mod run;
pub mod table;

pub use gpus::{GpuReading, GpuSource};
pub use report::{NodeReport, Reading};

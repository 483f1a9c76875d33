//! `berth agent`: a GPU node's hardware, and the alignment of its GPU pods.
//!
//! Joins the driver's report ([`GpuReading`]), the machine's files and the kubelet's state into a report;
//! audits running pods; publishes the result; and runs the services that serve devices, apply MIG layouts and
//! supervise MPS daemons. All but these services is synchronous and does not call the Kubernetes API.
//!
//! - A device is where its plugin reported it to the kubelet, because the kubelet aligns by that. If the
//!   machine disagrees, that is a diagnosis.
//! - Objects, labels and annotations that another client has written are left alone.
//! - MIG changes are not logged step by step. The journal holds the old and the new layouts; after a failure
//!   or crash, the steps forward or back are computed from the actual state.
//! - Serial numbers and process names are never read.

pub mod audit;
pub mod device_service;
pub mod gpus;
pub mod mig;
pub mod mig_reconciler;
pub mod mps;
pub mod offers;
pub mod publish;
pub mod record;
pub mod report;
pub mod run;
pub mod table;

pub use gpus::{GpuReading, GpuSource};
pub use report::{NodeReport, Reading};

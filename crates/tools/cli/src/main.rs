//! The program `berth`; everything is in the library, so that tests can read its arguments.

use std::process::ExitCode;

/// API objects are many small allocations, made on one thread and freed on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    berth_cli::run()
}

//! Compiles the kubelet's protocols. In Rust alone: there is no `protoc` where this is built.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    for directory in ["proto/deviceplugin", "proto/podresources"] {
        println!("cargo:rerun-if-changed={directory}/api.proto");
        let compiled = protox::compile(["api.proto"], [directory])?;
        tonic_prost_build::configure().compile_fds(compiled)?;
    }
    Ok(())
}

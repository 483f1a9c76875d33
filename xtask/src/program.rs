//! The program `berth` as clusters have it: built as the image builds it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The one that is named, or else one of this workspace, built now as the image builds it.
pub(crate) fn berth(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = std::process::Command::new(cargo)
        .args(["build", "--profile", "dist", "--quiet", "--package", "berth-cli"])
        .current_dir(&root)
        .status()
        .context("cargo cannot be started")?;
    if !built.success() {
        bail!("berth cannot be built");
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    Ok(target.join("dist/berth"))
}

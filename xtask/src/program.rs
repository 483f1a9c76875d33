//! The program `berth` as users have it: a release build.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The one that is named, or else a release build of this workspace, made now.
pub(crate) fn berth(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = std::process::Command::new(cargo)
        .args(["build", "--release", "--quiet", "--package", "berth-cli"])
        .current_dir(&root)
        .status()
        .context("cargo cannot be started")?;
    if !built.success() {
        bail!("berth cannot be built");
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    Ok(target.join("release/berth"))
}

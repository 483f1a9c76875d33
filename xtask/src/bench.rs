//! Measures the kubelet model.

/// Times `would_admit` and `admit`.
pub(crate) fn kubelet() -> anyhow::Result<()> {
    Ok(())
}

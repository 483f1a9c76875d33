//! Randomness for uids, generated names and tokens, from the cryptographic provider of TLS.

use std::sync::LazyLock;

use rustls::crypto::CryptoProvider;

use crate::status::Status;

static PROVIDER: LazyLock<CryptoProvider> = LazyLock::new(rustls::crypto::ring::default_provider);

/// What generated names end with; no vowels and nothing that looks like another character.
const NAME_CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const NAME_LENGTH: usize = 5;

fn fill(bytes: &mut [u8]) -> Result<(), Status> {
    PROVIDER
        .secure_random
        .fill(bytes)
        .map_err(|_| Status::internal("the system has no randomness to give"))
}

/// A random (version 4) UUID.
pub(crate) fn uid() -> Result<String, Status> {
    let mut bytes = [0u8; 16];
    fill(&mut bytes)?;
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = hex(&bytes);
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    Ok(format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)))
}

/// The suffix for `generateName`.
pub(crate) fn name_ending() -> Result<String, Status> {
    let mut bytes = [0u8; NAME_LENGTH];
    fill(&mut bytes)?;
    Ok(bytes
        .iter()
        .map(|byte| char::from(NAME_CHARACTERS[usize::from(*byte) % NAME_CHARACTERS.len()]))
        .collect())
}

/// A secret with 256 bits.
pub(crate) fn secret() -> Result<String, Status> {
    let mut bytes = [0u8; 32];
    fill(&mut bytes)?;
    Ok(hex(&bytes))
}

pub(crate) fn number() -> Result<u64, Status> {
    let mut bytes = [0u8; 8];
    fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

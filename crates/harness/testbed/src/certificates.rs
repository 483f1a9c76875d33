//! Certificates and keys of a control plane that lives for a test.
//!
//! Owns who signs whom, and for which names. Must not know who uses them.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// Files in PEM.
#[derive(Debug)]
pub(crate) struct Certificates {
    /// Who signed the API server's certificate.
    pub(crate) authority: PathBuf,
    /// The API server's certificate, for this machine's loopback addresses.
    pub(crate) server: PathBuf,
    /// Its key.
    pub(crate) server_key: PathBuf,
    /// The key that signs tokens of service accounts.
    pub(crate) accounts_key: PathBuf,
    /// The key by which such tokens are known.
    pub(crate) accounts_public: PathBuf,
}

impl Certificates {
    /// Makes all, in a directory.
    pub(crate) fn make(dir: &Path) -> anyhow::Result<Self> {
        let write = |name: &str, text: String| {
            let path = dir.join(name);
            std::fs::write(&path, text)
                .with_context(|| format!("{} cannot be written", path.display()))?;
            anyhow::Ok(path)
        };
        let authority_key = KeyPair::generate()?;
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.distinguished_name.push(DnType::CommonName, "testbed");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let signed = authority.self_signed(&authority_key)?;
        let issuer = Issuer::new(authority, authority_key);

        let server_key = KeyPair::generate()?;
        let names = ["localhost", "127.0.0.1", "::1", "kubernetes.default.svc"];
        let mut server = CertificateParams::new(names.map(str::to_owned))?;
        server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        let server = server.signed_by(&server_key, &issuer)?;
        let accounts = KeyPair::generate()?;
        Ok(Self {
            authority: write("ca.crt", signed.pem())?,
            server: write("server.crt", server.pem())?,
            server_key: write("server.key", server_key.serialize_pem())?,
            accounts_key: write("accounts.key", accounts.serialize_pem())?,
            accounts_public: write("accounts.pub", accounts.public_key_pem())?,
        })
    }
}

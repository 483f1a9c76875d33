//! Generations of certificates: when to create, serve and drop one. Time is an argument.

use jiff::{Timestamp, ToSpan as _};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Validity of a generation.
const LIFE_HOURS: i64 = 90 * 24;
/// Remaining validity at which the next generation is created.
const LEFT_HOURS_MIN: i64 = 30 * 24;
/// How far validity starts in the past, for clocks that are behind.
const SKEW_HOURS: i64 = 24;
/// How long to wait before serving a new generation, so that its authority is known everywhere.
const SETTLE_MINUTES: i64 = 10;
/// How long an old generation is kept after the next one is served.
const KEPT_HOURS: i64 = 24;
/// The maximum number of generations.
const GENERATIONS_MAX: usize = 4;

/// An authority and a certificate signed by it, as PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Generation {
    pub ca: String,
    pub certificate: String,
    pub key: String,
    pub names: Vec<String>,
    pub made: Timestamp,
    pub expires: Timestamp,
}

#[derive(Debug, Error)]
#[error("a certificate for {names} cannot be made: {problem}")]
pub struct MakeError {
    names: String,
    problem: String,
}

impl Generation {
    pub fn make(names: &[String], now: Timestamp) -> Result<Self, MakeError> {
        let failed = |problem: String| MakeError { names: names.join(", "), problem };
        let begins = now.saturating_sub(SKEW_HOURS.hours());
        let expires = now.saturating_add(LIFE_HOURS.hours());
        let (begins, expires) = match (begins, expires) {
            (Ok(begins), Ok(expires)) => (begins, expires),
            _ => return Err(failed("the system clock is out of range".to_owned())),
        };
        let made = sign(names, begins, expires).map_err(|error| failed(error.to_string()))?;
        let (ca, certificate, key) = made;
        Ok(Self { ca, certificate, key, names: names.to_vec(), made: now, expires })
    }

    fn has_settled(&self, now: Timestamp) -> bool {
        self.made.saturating_add(SETTLE_MINUTES.minutes()).is_ok_and(|settled| settled <= now)
    }

    fn is_old(&self, now: Timestamp) -> bool {
        now.saturating_add(LEFT_HOURS_MIN.hours()).is_ok_and(|later| later >= self.expires)
    }
}

fn sign(
    names: &[String],
    begins: Timestamp,
    expires: Timestamp,
) -> Result<(String, String, String), rcgen::Error> {
    let at = |time: Timestamp| {
        let seconds = std::time::Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0));
        (std::time::UNIX_EPOCH + seconds).into()
    };
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.distinguished_name.push(DnType::CommonName, "berth webhook authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    (authority.not_before, authority.not_after) = (at(begins), at(expires));
    let authority_key = KeyPair::generate()?;
    let ca = authority.self_signed(&authority_key)?;
    let issuer = Issuer::new(authority, authority_key);

    let mut serving = CertificateParams::new(names)?;
    let name = names.first().map_or("berth", String::as_str);
    serving.distinguished_name.push(DnType::CommonName, name);
    serving.use_authority_key_identifier_extension = true;
    serving.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    (serving.not_before, serving.not_after) = (at(begins), at(expires));
    let key = KeyPair::generate()?;
    let certificate = serving.signed_by(&key, &issuer)?;
    Ok((ca.pem(), certificate.pem(), key.serialize_pem()))
}

/// The generations that replicas share, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Not empty once the first has been created.
    pub generations: Vec<Generation>,
}

impl Stored {
    /// The generations to store instead; `None` if nothing is to change.
    pub fn next(&self, names: &[String], now: Timestamp) -> Result<Option<Self>, MakeError> {
        let mut next = self.clone();
        next.generations.retain(|one| one.expires > now);
        let newest = next.generations.last();
        if newest.is_none_or(|newest| newest.is_old(now) || newest.names != names) {
            next.generations.push(Generation::make(names, now)?);
        }
        // Whoever came before one that has been served for long enough is not needed any more.
        let long_served = next.generations.iter().rposition(|one| {
            let served = one.made.saturating_add((KEPT_HOURS * 60 + SETTLE_MINUTES).minutes());
            served.is_ok_and(|served| served <= now)
        });
        next.generations.drain(..long_served.unwrap_or(0));
        let surplus = next.generations.len().saturating_sub(GENERATIONS_MAX);
        next.generations.drain(..surplus);
        Ok((next != *self).then_some(next))
    }

    /// The generation to serve: the newest whose authority is known everywhere, else the oldest.
    pub fn served(&self, now: Timestamp) -> Option<&Generation> {
        let mut valid = self.generations.iter().filter(|one| one.expires > now);
        let settled = valid.clone().rfind(|one| one.has_settled(now));
        settled.or_else(|| valid.next())
    }

    /// All authorities, as PEM.
    pub fn bundle(&self) -> String {
        self.generations.iter().map(|one| one.ca.as_str()).collect()
    }
}

//! Rejects cross-site requests of browsers.
//!
//! A web page can send requests to this machine, under its own host name that resolves to a loopback address (DNS
//! rebinding) or across sites. Both show in headers that the page cannot set.

use std::net::IpAddr;

use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::uri::Authority;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// It is for a host that is not this server.
    #[error("host {0:?} is not this server; use localhost or a loopback address")]
    Host(String),
    /// A page of another site has sent it.
    #[error("cross-site requests are refused (origin {0:?})")]
    Origin(String),
}

/// Checks that a request is for this server and not cross-site. `local` is the address it came in at; only
/// loopback addresses restrict the host name.
///
/// # Errors
/// When it is not.
pub fn check(request: &Parts, local: IpAddr) -> Result<(), Foreign> {
    let text = |name: &str| {
        let value = request.headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let named = text(HOST.as_str());
    let named = named.or_else(|| request.uri.authority().map(ToString::to_string));
    let host = named.unwrap_or_default();
    let authority = host.parse::<Authority>().ok();
    if local.is_loopback() && !authority.as_ref().is_some_and(|host| is_own(host.host(), local)) {
        return Err(Foreign::Host(host));
    }
    let site = text("sec-fetch-site");
    if let Some(site) = site.filter(|site| !matches!(site.as_str(), "same-origin" | "none")) {
        return Err(Foreign::Origin(site));
    }
    let Some(origin) = text(ORIGIN.as_str()) else { return Ok(()) };
    let from = origin.split_once("://").and_then(|(_, from)| from.parse::<Authority>().ok());
    if from.is_some() && from == authority { Ok(()) } else { Err(Foreign::Origin(origin)) }
}

fn is_own(host: &str, local: IpAddr) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.is_loopback() || address == local)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(headers: &[(&str, &str)], local: &str) -> Result<(), Foreign> {
        let mut request = http::Request::get("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap().into_parts().0, local.parse().unwrap())
    }

    #[test]
    fn only_names_of_this_machine_are_its_own() {
        for host in ["localhost", "LocalHost:7443", "127.0.0.1:7443", "127.1.2.3", "[::1]:7443"] {
            assert_eq!(checked(&[("host", host)], "127.0.0.1"), Ok(()), "{host}");
        }
        let hosts =
            ["evil.example", "evil.example:7443", "localhost.evil.example", "10.0.0.1", "", "@"];
        for host in hosts {
            let foreign = Foreign::Host(host.to_owned());
            assert_eq!(checked(&[("host", host)], "127.0.0.1"), Err(foreign), "{host}");
        }
        assert!(checked(&[], "127.0.0.1").is_err());
        // On other addresses the server's names are unknown.
        assert_eq!(checked(&[("host", "berth-metrics.berth-system:9440")], "10.0.0.1"), Ok(()));
    }

    #[test]
    fn a_page_of_another_site_is_refused() {
        let host = ("host", "localhost:7443");
        for own in [("origin", "http://localhost:7443"), ("sec-fetch-site", "none")] {
            assert_eq!(checked(&[host, own], "127.0.0.1"), Ok(()), "{own:?}");
        }
        for foreign in [
            ("origin", "https://evil.example"),
            ("origin", "http://localhost:3000"),
            ("origin", "null"),
            ("origin", ""),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            let refused = checked(&[host, foreign], "127.0.0.1");
            assert_eq!(refused, Err(Foreign::Origin(foreign.1.to_owned())), "{foreign:?}");
        }
    }
}

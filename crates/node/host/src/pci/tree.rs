//! Locations in the PCI tree: a root complex and the bridges below it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Distance;
use crate::root::below;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Location {
    /// Such as `0000:40`; `None` if unknown.
    pub root: Option<String>,
    /// Addresses of the bridges above the device, from the root complex down.
    pub bridges: Vec<String>,
}

/// The directory that a link in `links` leads to, and its location.
///
/// Root complexes may be anywhere below `/sys/devices`: in virtual machines below the VM bus, on ARM
/// boards below the platform, behind Intel VMD below a device.
pub(super) fn locate(links: &str, target: &str) -> (String, Location) {
    let directory = below(Path::new(links), Path::new(target));
    let mut location = Location::default();
    let names: Vec<&str> = directory.iter().filter_map(|name| name.to_str()).collect();
    let above = names.split_last().map_or(&[][..], |(_, above)| above);
    for name in above {
        if let Some(root) = name.strip_prefix("pci").filter(|rest| is_root(rest)) {
            location.root.get_or_insert_with(|| root.to_owned());
        } else if is_address(name) {
            location.bridges.push((*name).to_owned());
        }
    }
    (directory.to_string_lossy().into_owned(), location)
}

/// `0000:41:00.0`; domains may be longer.
pub(super) fn is_address(name: &str) -> bool {
    let Some((root, rest)) = name.rsplit_once(':') else { return false };
    let Some((device, function)) = rest.split_once('.') else { return false };
    is_root(root) && is_hexadecimal(device, 2..=2) && is_hexadecimal(function, 1..=1)
}

fn is_root(name: &str) -> bool {
    let parts = name.split_once(':');
    parts.is_some_and(|(domain, bus)| is_hexadecimal(domain, 4..=8) && is_hexadecimal(bus, 2..=2))
}

fn is_hexadecimal(text: &str, digits: std::ops::RangeInclusive<usize>) -> bool {
    digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Location {
    /// Distance to another location below the same root complex; `None` if the root complexes differ or
    /// are unknown.
    ///
    /// A switch is one upstream bridge and one downstream bridge per device. So two devices are at the same
    /// switch if each is at most one bridge below the last bridge they share.
    pub(super) fn shared_with(&self, other: &Self) -> Option<Distance> {
        if self.root.is_none() || self.root != other.root {
            return None;
        }
        let pairs = self.bridges.iter().zip(&other.bridges);
        let common = pairs.take_while(|(mine, theirs)| mine == theirs).count();
        let below = |location: &Self| location.bridges.len() - common;
        Some(match common {
            0 => Distance::Phb,
            _ if below(self).max(below(other)) <= 1 => Distance::Pix,
            _ => Distance::Pxb,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(target: &str) -> Location {
        locate("sys/bus/pci/devices", target).1
    }

    #[test]
    fn places_are_found_wherever_root_complexes_are() {
        let plain = at("../../../devices/pci0000:40/0000:40:01.1/0000:41:00.0");
        assert_eq!(plain.root.as_deref(), Some("0000:40"));
        assert_eq!(plain.bridges, ["0000:40:01.1"]);
        let azure = "../../../devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/\
                     47505500-0001-0000-3130-444531303244/pci0001:00/0001:00:00.0";
        assert_eq!(at(azure).root.as_deref(), Some("0001:00"));
        assert!(at(azure).bridges.is_empty());
        let vmd =
            at("../../../devices/pci0000:64/0000:64:00.5/pci10000:00/10000:00:02.0/10000:01:00.0");
        assert_eq!(vmd.root.as_deref(), Some("0000:64"));
        assert_eq!(vmd.bridges, ["0000:64:00.5", "10000:00:02.0"]);
        assert_eq!(at("../../../../../../../../etc").root, None);
    }

    #[test]
    fn what_is_no_address_is_none() {
        for (name, is) in [
            ("0000:41:00.0", true),
            ("10000:01:00.0", true),
            ("0000:41:00", false),
            ("41:00.0", false),
            ("0000:41:00.00", false),
            ("0000:4g:00.0", false),
            ("", false),
            ("..", false),
        ] {
            assert_eq!(is_address(name), is, "{name}");
        }
    }
}

//! Hashes of pod templates, for names of ReplicaSets and revisions of StatefulSets and DaemonSets.
//!
//! Kubernetes hashes a printout of its Go structures, so its hashes differ. Controllers therefore recognise sets by
//! their template, never by their name.

use serde::Serialize;

pub(crate) const HASH: &str = "pod-template-hash";

/// Kubernetes' alphabet without vowels, so that names contain no words.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

pub(crate) fn of<T: Serialize>(template: &T, collisions: i32) -> String {
    // API objects always serialize.
    let mut text = serde_json::to_vec(template).unwrap_or_default();
    if collisions > 0 {
        text.extend(collisions.to_be_bytes());
    }
    let sum = text
        .iter()
        .fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    let letter = |digit: u8| LETTERS.get(usize::from(digit) % LETTERS.len()).copied();
    sum.to_string().bytes().filter_map(letter).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_template_has_the_same_name_and_another_another() {
        assert_eq!(of(&"a", 0), of(&"a", 0));
        assert_ne!(of(&"a", 0), of(&"b", 0));
        assert_ne!(of(&"a", 0), of(&"a", 1));
        assert!(of(&"a", 0).bytes().all(|one| LETTERS.contains(&one)));
    }
}

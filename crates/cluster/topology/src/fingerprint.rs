//! Fingerprints of the pods on a node, as exporters of NodeResourceTopology write them: the format v001 of
//! k8stopologyawareschedwg/podfingerprint. The order of pods does not matter.

/// The attribute with the fingerprint.
pub const ATTRIBUTE: &str = "nodeTopologyPodsFingerprint";
/// The attribute that says of which pods it is.
pub const METHOD_ATTRIBUTE: &str = "nodeTopologyPodsFingerprintMethod";
pub const METHOD_ALL: &str = "all";
/// Only pods with exclusive CPUs, memory or devices count.
pub const METHOD_EXCLUSIVE: &str = "with-exclusive-resources";

const PREFIX: &str = "pfp0v001";

/// Pods are given by namespace and name.
pub fn of<'a>(pods: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let hash =
        |(namespace, name): (&str, &str)| xxh64(name.as_bytes(), xxh64(namespace.as_bytes(), 0));
    let mut hashes: Vec<u64> = pods.into_iter().map(hash).collect();
    hashes.sort_unstable();
    let bytes: Vec<u8> = hashes.into_iter().flat_map(u64::to_le_bytes).collect();
    format!("{PREFIX}{:016x}", xxh64(&bytes, 0))
}

const PRIMES: [u64; 5] = [
    0x9e37_79b1_85eb_ca87,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0x85eb_ca77_c2b2_ae63,
    0x27d4_eb2f_1656_67c5,
];

fn round(sum: u64, word: u64) -> u64 {
    let sum = sum.wrapping_add(word.wrapping_mul(PRIMES[1]));
    sum.rotate_left(31).wrapping_mul(PRIMES[0])
}

fn merge(sum: u64, lane: u64) -> u64 {
    (sum ^ round(0, lane)).wrapping_mul(PRIMES[0]).wrapping_add(PRIMES[3])
}

/// The 64-bit xxHash.
fn xxh64(bytes: &[u8], seed: u64) -> u64 {
    let (stripes, rest) = bytes.as_chunks::<32>();
    let mut sum = match stripes {
        [] => seed.wrapping_add(PRIMES[4]),
        _ => {
            let mut lanes = [
                seed.wrapping_add(PRIMES[0]).wrapping_add(PRIMES[1]),
                seed.wrapping_add(PRIMES[1]),
                seed,
                seed.wrapping_sub(PRIMES[0]),
            ];
            for stripe in stripes {
                let (words, _) = stripe.as_chunks::<8>();
                for (lane, word) in lanes.iter_mut().zip(words) {
                    *lane = round(*lane, u64::from_le_bytes(*word));
                }
            }
            let turned = lanes.iter().zip([1, 7, 12, 18]);
            let all = turned.fold(0_u64, |sum, (lane, by)| sum.wrapping_add(lane.rotate_left(by)));
            lanes.iter().fold(all, |sum, lane| merge(sum, *lane))
        }
    };
    sum = sum.wrapping_add(bytes.len() as u64);
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        sum ^= round(0, u64::from_le_bytes(*word));
        sum = sum.rotate_left(27).wrapping_mul(PRIMES[0]).wrapping_add(PRIMES[3]);
    }
    let (halves, rest) = rest.as_chunks::<4>();
    for half in halves {
        sum ^= u64::from(u32::from_le_bytes(*half)).wrapping_mul(PRIMES[0]);
        sum = sum.rotate_left(23).wrapping_mul(PRIMES[1]).wrapping_add(PRIMES[2]);
    }
    for byte in rest {
        sum ^= u64::from(*byte).wrapping_mul(PRIMES[4]);
        sum = sum.rotate_left(11).wrapping_mul(PRIMES[0]);
    }
    sum = (sum ^ (sum >> 33)).wrapping_mul(PRIMES[1]);
    sum = (sum ^ (sum >> 29)).wrapping_mul(PRIMES[2]);
    sum ^ (sum >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are from podfingerprint itself.
    #[test]
    fn fingerprints_are_those_of_podfingerprint() {
        let dns = ("kube-system", "coredns-0123456789-abcde");
        let long = (
            "a-namespace-that-is-longer-than-one-stripe-of-bytes",
            "a-pod-with-a-name-that-is-also-longer-than-one-stripe-7d4f9c-xyz",
        );
        let many = [long, ("n", "p-0"), ("n", "p-1"), ("n", "p-2"), ("n", "p-3")];
        for (pods, expected) in [
            (&[][..], "pfp0v001ef46db3751d8e999"),
            (&[("default", "a")], "pfp0v00173ac1f6debaedf3d"),
            (&[("default", "a"), dns], "pfp0v001dc5a1df09045ecbb"),
            (&[dns, ("default", "a")], "pfp0v001dc5a1df09045ecbb"),
            (&many, "pfp0v001ad294bdfc728e7ba"),
        ] {
            assert_eq!(of(pods.iter().copied()), expected, "{pods:?}");
        }
    }
}

//! Suggestions for misspelt names.

/// Characters of names that are looked at.
const NAME_CHARACTERS_MAX: usize = 64;

/// The known name closest to what was written, if it is close.
pub fn closest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let allowed = (written.chars().count() / 3).clamp(1, 3);
    let close = known.iter().filter_map(|name| {
        let edits = edits(&written.to_lowercase(), &name.to_lowercase());
        (edits <= allowed).then_some((edits, *name))
    });
    close.min().map(|(_, name)| name)
}

/// Insertions, removals, replacements and swaps of neighbours that lead from one to the other.
fn edits(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().take(NAME_CHARACTERS_MAX).collect();
    let to: Vec<char> = to.chars().take(NAME_CHARACTERS_MAX).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, one) in from.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, other) in to.iter().enumerate() {
            let replaced = row[j] + usize::from(one != other);
            let mut least = replaced.min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && from[i - 1] == *other && *one == to[j - 1] {
                least = least.min(before[j - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_what_was_meant_and_a_stranger_nothing() {
        let known = ["image", "imagePullPolicy", "resources", "name", "env", "envFrom"];
        for (written, meant) in [
            ("imagePullpolicy", Some("imagePullPolicy")),
            ("resource", Some("resources")),
            ("nmae", Some("name")),
            ("Image", Some("image")),
            ("command", None),
            ("gpu", None),
            ("", None),
        ] {
            assert_eq!(closest(written, &known), meant, "{written}");
        }
    }
}

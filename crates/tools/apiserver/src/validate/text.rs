//! Formats of names, with the real server's messages.

/// What a text must look like, what to call it, and examples of it.
fn shape(words: &str, examples: &[&str], pattern: &str) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{words} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| is_lower(*byte));
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| is_lower(*byte) || *byte == b'-')
}

fn too_long(text: &str, max: usize, unit: &str) -> Option<String> {
    (text.len() > max).then(|| format!("must be no more than {max} {unit}"))
}

/// Names such as `my-name`.
pub(super) fn label(text: &str) -> Vec<String> {
    let wrong = (!is_label(text)).then(|| {
        shape(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
             and must start and end with an alphanumeric character",
            &["my-name", "123-abc"],
            "[a-z0-9]([-a-z0-9]*[a-z0-9])?",
        )
    });
    too_long(text, 63, "characters").into_iter().chain(wrong).collect()
}

/// Names such as `my-name` that start with a letter.
pub(super) fn letter_label(text: &str) -> Vec<String> {
    let good = is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase());
    let wrong = (!good).then(|| {
        shape(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with \
             an alphabetic character, and end with an alphanumeric character",
            &["my-name", "abc-123"],
            "[a-z]([-a-z0-9]*[a-z0-9])?",
        )
    });
    too_long(text, 63, "characters").into_iter().chain(wrong).collect()
}

fn subdomain_of(text: &str, unit: &str) -> Vec<String> {
    let wrong = (!text.split('.').all(is_label)).then(|| {
        shape(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', and must start and end with an alphanumeric character",
            &["example.com"],
            "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
        )
    });
    too_long(text, 253, unit).into_iter().chain(wrong).collect()
}

/// Names such as `example.com`.
pub(super) fn subdomain(text: &str) -> Vec<String> {
    subdomain_of(text, "characters")
}

/// Names that only have to fit into a path.
pub(super) fn path_segment(text: &str) -> Vec<String> {
    let whole = [".", ".."].into_iter().filter(|name| *name == text);
    let whole = whole.map(|name| format!("may not be '{name}'"));
    let parts = ["/", "%"].into_iter().filter(|part| text.contains(part));
    whole.chain(parts.map(|part| format!("may not contain '{part}'"))).collect()
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn name_shape() -> String {
    shape(
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
         alphanumeric character",
        &["MyName", "my.name", "123-abc"],
        "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]",
    )
}

/// Names such as `example.com/MyName`, the first part of which may be left out.
fn qualified(text: &str, called: &str, unit: &str) -> Vec<String> {
    let mut parts = text.split('/');
    let (first, second, third) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let mut wrong = Vec::new();
    let name = match (second, third) {
        (None, _) => first,
        (Some(name), None) => {
            if first.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                let prefix = subdomain_of(first, unit);
                wrong.extend(prefix.into_iter().map(|what| format!("prefix part {what}")));
            }
            name
        }
        (Some(_), Some(_)) => {
            return vec![format!(
                "{called} {} with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')",
                name_shape()
            )];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else {
        wrong.extend(too_long(name, 63, unit).map(|what| format!("name part {what}")));
    }
    if !is_name(name) {
        wrong.push(format!("name part {}", name_shape()));
    }
    wrong
}

pub(super) fn label_key(text: &str) -> Vec<String> {
    qualified(text, "a valid label key", "bytes")
}

pub(super) fn qualified_name(text: &str) -> Vec<String> {
    qualified(text, "a qualified name", "characters")
}

pub(super) fn label_value(text: &str) -> Vec<String> {
    let wrong = (!text.is_empty() && !is_name(text)).then(|| {
        shape(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' \
             or '.', and must start and end with an alphanumeric character",
            &["MyValue", "my_value", "12345"],
            "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
        )
    });
    too_long(text, 63, "bytes").into_iter().chain(wrong).collect()
}

pub(super) fn config_key(text: &str) -> Vec<String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let mut wrong: Vec<String> = too_long(text, 253, "characters").into_iter().collect();
    if text.is_empty() || !text.bytes().all(good) {
        wrong.push(shape(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            &["key.name", "KEY_NAME", "key-name"],
            "[-._a-zA-Z0-9]+",
        ));
    }
    match text {
        "." | ".." => wrong.push(format!("must not be '{text}'")),
        _ if text.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

pub(super) fn port_name(text: &str) -> Vec<String> {
    let mut wrong: Vec<String> = too_long(text, 15, "characters").into_iter().collect();
    let known = |byte: u8| is_lower(byte) || byte == b'-';
    if text.is_empty() || !text.bytes().all(known) {
        wrong.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

pub(super) fn variable_name(text: &str) -> Vec<String> {
    let good = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    if text.bytes().all(good) {
        return Vec::new();
    }
    vec![
        "a valid environment variable name must consist only of printable ASCII characters other \
         than '='"
            .to_owned(),
    ]
}

/// What a percentage must look like.
pub(super) fn percent(text: &str) -> Vec<String> {
    let digits = text.strip_suffix('%').unwrap_or_default();
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Vec::new();
    }
    vec![shape(
        "a valid percent string must be a numeric string followed by an ending '%'",
        &["1%", "93%"],
        "[0-9]+%",
    )]
}

/// What a network address must look like.
pub(super) fn address(text: &str) -> Vec<String> {
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Vec::new();
    }
    vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
}

//! Parses query parameters.

use crate::status::{FieldError, Status};

/// Decoded parameters in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    pub(crate) fn parse(text: Option<&str>) -> Self {
        let pairs = text
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode(key, true), decode(value, true))
            })
            .collect();
        Self { pairs }
    }

    /// The first value of a parameter; empty if there is none.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.pairs.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.pairs.iter().any(|(key, _)| key == name)
    }

    /// All values of a parameter.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A flag: there and not false.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.has(name) && !matches!(self.text(name), "false" | "0")
    }

    /// A number, if one is there.
    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, Status> {
        match self.text(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                Status::bad_request(format!(
                    "strconv.ParseInt: parsing {}: invalid syntax",
                    crate::status::quoted(text)
                ))
            }),
        }
    }

    /// Whether nothing may be written.
    pub(crate) fn dry_run(&self) -> Result<bool, Status> {
        let mut all = false;
        for value in self.all("dryRun") {
            if value != "All" {
                let given: Vec<&str> = self.all("dryRun").collect();
                let error = FieldError::not_supported("dryRun", &given.into(), &["All"]);
                return Err(Status::invalid("meta.k8s.io", "CreateOptions", "", &[error]));
            }
            all = true;
        }
        Ok(all)
    }
}

/// Percent-decodes, and in queries `+`. Invalid escapes stay; invalid UTF-8 gets replacement characters.
pub(crate) fn decode(text: &str, plus_is_space: bool) -> String {
    if !text.contains(['%', '+']) {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = bytes
            .get(at + 1..at + 3)
            .filter(|_| byte == b'%')
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match escaped {
            Some(escaped) => {
                out.push(escaped);
                at += 3;
            }
            None => {
                out.push(if byte == b'+' && plus_is_space { b' ' } else { byte });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query = Query::parse(Some("a=b%20c&d=x+y&watch=true&e=%zz&f=%ff"));
        assert_eq!(query.text("a"), "b c");
        assert_eq!(query.text("d"), "x y");
        assert!(query.flag("watch"));
        assert!(!query.flag("follow"));
        assert_eq!(query.text("e"), "%zz");
        assert_eq!(query.text("f"), "\u{fffd}");
    }
}

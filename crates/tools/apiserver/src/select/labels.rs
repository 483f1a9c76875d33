//! Label selectors, as query text and as objects in specs.

use serde_json::Value;

use crate::status::{Status, quoted};

/// A label selector: every requirement must hold.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    requirements: Vec<Requirement>,
    /// A selector that can never match, such as none at all in a spec.
    nothing: bool,
}

#[derive(Clone, Debug)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    GreaterThan(i64),
    LessThan(i64),
}

const TERMS_MAX: usize = 4096;

impl Labels {
    /// From a query parameter.
    pub fn parse(text: &str) -> Result<Self, Status> {
        let mut parser = Parser { tokens: tokens(text), at: 0 };
        let requirements = parser
            .selector()
            .map_err(|why| Status::bad_request(format!("unable to parse requirement: {why}")))?;
        Ok(Self { requirements, nothing: false })
    }

    /// From a `LabelSelector` object. None matches nothing, an empty one everything.
    pub fn from_spec(selector: &Value) -> Self {
        let Some(selector) = selector.as_object() else {
            return Self { requirements: Vec::new(), nothing: true };
        };
        let mut requirements = Vec::new();
        if let Some(labels) = selector.get("matchLabels").and_then(Value::as_object) {
            for (key, value) in labels {
                let value = value.as_str().unwrap_or_default().to_owned();
                requirements.push(Requirement { key: key.clone(), test: Test::In(vec![value]) });
            }
        }
        let mut nothing = false;
        let expressions = selector.get("matchExpressions").and_then(Value::as_array);
        for expression in expressions.into_iter().flatten() {
            let values = || {
                let values = expression["values"].as_array().into_iter().flatten();
                values.filter_map(Value::as_str).map(str::to_owned).collect()
            };
            let test = match expression["operator"].as_str() {
                Some("In") => Test::In(values()),
                Some("NotIn") => Test::NotIn(values()),
                Some("Exists") => Test::Exists,
                Some("DoesNotExist") => Test::Absent,
                _ => {
                    nothing = true;
                    continue;
                }
            };
            let key = expression["key"].as_str().unwrap_or_default().to_owned();
            requirements.push(Requirement { key, test });
        }
        Self { requirements, nothing }
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// Whether a map of labels matches; `null` is a map without any.
    pub fn matches(&self, labels: &Value) -> bool {
        !self.nothing
            && self
                .requirements
                .iter()
                .all(|requirement| requirement.holds(labels[&*requirement.key].as_str()))
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let compare = |holds: &dyn Fn(i64) -> bool| {
            value.and_then(|value| value.parse().ok()).is_some_and(holds)
        };
        match &self.test {
            Test::In(values) => value.is_some_and(|value| values.iter().any(|v| v == value)),
            Test::NotIn(values) => value.is_none_or(|value| values.iter().all(|v| v != value)),
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::GreaterThan(bound) => compare(&|value| value > *bound),
            Test::LessThan(bound) => compare(&|value| value < *bound),
        }
    }
}

/// Words and symbols of the query language; an empty one is the end.
fn tokens(text: &str) -> Vec<&str> {
    let is_symbol = |c: char| matches!(c, '=' | '!' | '(' | ')' | ',' | '<' | '>');
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("==") || rest.starts_with("!=") {
            2
        } else if is_symbol(first) {
            1
        } else {
            rest.find(|c: char| c.is_whitespace() || is_symbol(c)).unwrap_or(rest.len())
        };
        let (token, after) = rest.split_at(length);
        out.push(token);
        rest = after.trim_start();
    }
    out
}

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or_default()
    }

    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut out = Vec::new();
        if self.peek().is_empty() {
            return Ok(out);
        }
        loop {
            out.push(self.requirement()?);
            if out.len() > TERMS_MAX {
                return Err("the selector has too many terms".to_owned());
            }
            match self.next() {
                "" => return Ok(out),
                "," if is_word(self.peek()) || self.peek() == "!" => {}
                "," => {
                    return Err(format!("found '{}', expected: identifier after ','", self.peek()));
                }
                other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek() == "!";
        if absent {
            self.at += 1;
        }
        let key = self.next();
        if !is_word(key) {
            return Err(format!("found '{key}', expected: !, identifier, or 'end of string'"));
        }
        check_key(key)?;
        let key = key.to_owned();
        if absent {
            return Ok(Requirement { key, test: Test::Absent });
        }
        if matches!(self.peek(), "" | ",") {
            return Ok(Requirement { key, test: Test::Exists });
        }
        let test = match self.next() {
            "=" | "==" => Test::In(vec![self.value(&key)?]),
            "!=" => Test::NotIn(vec![self.value(&key)?]),
            "in" => Test::In(self.values(&key)?),
            "notin" => Test::NotIn(self.values(&key)?),
            operator @ (">" | "<" | "gt" | "lt") => {
                let value = self.value(&key)?;
                let bound = value.parse().map_err(|_| {
                    format!(
                        "values[0][{key}]: Invalid value: {}: for 'Gt', 'Lt' operators, the value must be an integer",
                        quoted(&value)
                    )
                })?;
                if matches!(operator, ">" | "gt") {
                    Test::GreaterThan(bound)
                } else {
                    Test::LessThan(bound)
                }
            }
            other => {
                return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt"));
            }
        };
        Ok(Requirement { key, test })
    }

    /// One value; `a=` selects the empty one.
    fn value(&mut self, key: &str) -> Result<String, String> {
        match self.peek() {
            "" | "," => Ok(String::new()),
            word if is_word(word) => {
                self.at += 1;
                check_value(key, 0, word)?;
                Ok(word.to_owned())
            }
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }

    fn values(&mut self, key: &str) -> Result<Vec<String>, String> {
        let open = self.next();
        if open != "(" {
            return Err(format!("found '{open}' expected: '('"));
        }
        let mut values = Vec::new();
        loop {
            match self.peek() {
                word if is_word(word) => {
                    self.at += 1;
                    check_value(key, values.len(), word)?;
                    values.push(word.to_owned());
                    match self.next() {
                        "," => {}
                        ")" => return Ok(values),
                        other => return Err(format!("found '{other}', expected: ',' or ')'")),
                    }
                }
                ")" => {
                    self.at += 1;
                    values.push(String::new());
                    return Ok(values);
                }
                "," => {
                    self.at += 1;
                    values.push(String::new());
                }
                other => {
                    return Err(format!("found '{other}', expected: ',', ')' or identifier"));
                }
            }
            if values.len() > TERMS_MAX {
                return Err("the selector has too many values".to_owned());
            }
        }
    }
}

fn is_word(token: &str) -> bool {
    !matches!(token, "" | "=" | "==" | "!=" | "!" | "(" | ")" | "," | "<" | ">")
}

const NAME_RULE: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn check_key(key: &str) -> Result<(), String> {
    let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
    if is_label_text(name) && !name.is_empty() {
        return Ok(());
    }
    Err(format!("<nil>: Invalid value: {}: {NAME_RULE}", quoted(key)))
}

fn check_value(key: &str, at: usize, value: &str) -> Result<(), String> {
    if is_label_text(value) {
        return Ok(());
    }
    Err(format!("values[{at}][{key}]: Invalid value: {}: {VALUE_RULE}", quoted(value)))
}

fn is_label_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    bytes.len() <= 63
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn queries_select_as_documented() {
        let labels = json!({"app": "web", "tier": "1", "empty": ""});
        let cases = [
            ("", true),
            ("app=web", true),
            ("app==web,tier=1", true),
            ("app!=web", false),
            ("missing!=web", true),
            ("app in (db, web)", true),
            ("app notin (db,web)", false),
            ("missing notin (x)", true),
            ("app", true),
            ("!app", false),
            ("! missing", true),
            ("tier>0", true),
            ("tier < 1", false),
            ("app>0", false),
            ("empty=", true),
            ("empty in ()", true),
        ];
        for (text, expected) in cases {
            assert_eq!(Labels::parse(text).unwrap().matches(&labels), expected, "{text}");
        }
        assert!(Labels::parse("app").unwrap().matches(&json!({"app": ""})));
        assert!(!Labels::parse("app").unwrap().matches(&Value::Null));
    }

    #[test]
    fn what_cannot_be_parsed_is_refused_in_the_real_words() {
        let cases = [
            ("a b", "found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("a=!!", "found '!', expected: identifier"),
            ("a in (x", "found '', expected: ',' or ')'"),
        ];
        for (text, message) in cases {
            let status = Labels::parse(text).unwrap_err();
            assert_eq!(status.message, format!("unable to parse requirement: {message}"));
        }
    }

    #[test]
    fn selectors_of_specs_match_nothing_when_absent() {
        assert!(!Labels::from_spec(&Value::Null).matches(&json!({})));
        assert!(Labels::from_spec(&json!({})).matches(&Value::Null));
        let selector = json!({
            "matchLabels": {"a": "1"},
            "matchExpressions": [{"key": "b", "operator": "Exists"}],
        });
        assert!(Labels::from_spec(&selector).matches(&json!({"a": "1", "b": "x"})));
        assert!(!Labels::from_spec(&selector).matches(&json!({"a": "1"})));
    }
}

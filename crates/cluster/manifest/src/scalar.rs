//! The meaning of a YAML scalar to Kubernetes.
//!
//! kubectl reads YAML with sigs.k8s.io/yaml, which is go-yaml 2: mostly YAML 1.1. So `yes`, `on` and `y` are true, `010`
//! is eight, `1_000` is a thousand, `0x10` is sixteen, and dates are strings. A file must mean the same to Berth as to
//! the cluster. The one deviation: `.inf` and `.nan` are rejected here, not when JSON is written.

use serde_json::Number;

/// The meaning of a plain scalar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar {
    Null,
    Bool(bool),
    Number(Number),
    Text,
    /// A number that JSON does not have.
    NotFinite,
}

/// The meaning of a scalar without quotes and without a tag.
pub(crate) fn resolve(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Scalar::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Scalar::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF"
        | "-.inf" | "-.Inf" | "-.INF" => return Scalar::NotFinite,
        _ => {}
    }
    match text.as_bytes().first() {
        Some(b'.') if is_float(text) => float(text),
        Some(b'+' | b'-' | b'0'..=b'9') if !is_date(text) => number(text),
        _ => Scalar::Text,
    }
}

fn number(text: &str) -> Scalar {
    let plain;
    let text = if text.contains('_') {
        plain = text.replace('_', "");
        plain.as_str()
    } else {
        text
    };
    if let Some(number) = integer(text) {
        return Scalar::Number(number);
    }
    if is_float(text) { float(text) } else { Scalar::Text }
}

/// As Go's `ParseInt` reads it with base 0.
fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let prefixed = |low: &str, high: &str| {
        digits.strip_prefix(low).or_else(|| digits.strip_prefix(high)).map(str::to_owned)
    };
    let (radix, digits) = if let Some(rest) = prefixed("0x", "0X") {
        (16, rest)
    } else if let Some(rest) = prefixed("0b", "0B") {
        (2, rest)
    } else if let Some(rest) = prefixed("0o", "0O") {
        (8, rest)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (8, digits.get(1..)?.to_owned())
    } else {
        (10, digits.to_owned())
    };
    if !digits.bytes().all(|one| one.is_ascii_alphanumeric()) {
        return None;
    }
    let size = u64::from_str_radix(&digits, radix).ok()?;
    match (negative, text.starts_with('+')) {
        (true, _) => Some(Number::from(0_i64.checked_sub_unsigned(size)?)),
        // Go's unsigned numbers take no sign.
        (false, true) => Some(Number::from(i64::try_from(size).ok()?)),
        (false, false) => Some(Number::from(size)),
    }
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let whole = digits(unsigned);
    let mut rest = unsigned.get(whole..).unwrap_or_default();
    if let Some(after) = rest.strip_prefix('.') {
        let fraction = digits(after);
        if whole == 0 && fraction == 0 {
            return false;
        }
        rest = after.get(fraction..).unwrap_or_default();
    } else if whole == 0 {
        return false;
    }
    match rest.strip_prefix(['e', 'E']) {
        None => rest.is_empty(),
        Some(exponent) => {
            let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            !exponent.is_empty() && digits(exponent) == exponent.len()
        }
    }
}

fn float(text: &str) -> Scalar {
    match text.parse::<f64>() {
        // Out of range is no number to Go, and so it is text.
        Ok(value) if !value.is_finite() => Scalar::Text,
        Ok(value) => Number::from_f64(value).map_or(Scalar::Text, go_number),
        Err(_) => Scalar::Text,
    }
}

/// A float as Go writes it into JSON: without a fraction when it has none, so that it can be read
/// as an integer again.
fn go_number(number: Number) -> Scalar {
    let value = number.as_f64().unwrap_or_default();
    // Up to here every whole float is an exact integer.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.trunc() == value && value.abs() <= EXACT && !(value == 0.0 && value.is_sign_negative())
    {
        #[allow(clippy::cast_possible_truncation, reason = "whole, and within 53 bits")]
        let whole = value as i64;
        return Scalar::Number(Number::from(whole));
    }
    Scalar::Number(number)
}

/// `2026-1-2`, with or without a time. Only the shape is looked at: `2026-13-1` is no number either.
fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() > 4 && bytes.iter().take(4).all(u8::is_ascii_digit) && bytes.get(4) == Some(&b'-')
}

/// A key as Kubernetes sees it: keys of JSON are text, and not every number can be made one.
pub(crate) fn key(text: &str) -> Option<String> {
    match resolve(text) {
        Scalar::Text => Some(text.to_owned()),
        Scalar::Bool(value) => Some(value.to_string()),
        Scalar::Number(_) => {
            let plain = text.replace('_', "");
            match integer(&plain) {
                Some(number) => number.as_i64().map(|number| number.to_string()),
                None => plain.parse().ok().filter(|value: &f32| value.is_finite()).map(float_key),
            }
        }
        Scalar::Null | Scalar::NotFinite => None,
    }
}

/// As Go's `FormatFloat` does with `'g', -1, 32`: shortest, with an exponent from a million on.
fn float_key(value: f32) -> String {
    let scientific = format!("{value:e}");
    let exponent = scientific
        .split_once('e')
        .and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?)));
    match exponent {
        Some((digits, exponent)) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => value.to_string(),
    }
}

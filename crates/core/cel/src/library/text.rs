//! Functions on strings, and regular expressions in Go's syntax.

use regex::{Regex, RegexBuilder};

use super::{
    EvalError, Evaluated, Function, Meter, Value, count, int_of, list_of, member, plain, text_of,
};

/// Memory limit of a compiled pattern.
const PATTERN_BYTES_MAX: usize = 1 << 20;

pub(super) const FUNCTIONS: &[Function] = &[
    member("contains", 2, 2, |meter, values| {
        let (text, part) = both("contains", meter, values)?;
        Ok(Value::Bool(text.contains(part)))
    }),
    member("startsWith", 2, 2, |meter, values| {
        let (text, part) = both("startsWith", meter, values)?;
        Ok(Value::Bool(text.starts_with(part)))
    }),
    member("endsWith", 2, 2, |meter, values| {
        let (text, part) = both("endsWith", meter, values)?;
        Ok(Value::Bool(text.ends_with(part)))
    }),
    plain("matches", 2, 2, matches),
    member("matches", 2, 2, matches),
    member("find", 2, 2, |meter, values| {
        let regex = pattern("find", meter, values)?;
        let found = regex.find(text_of("find", values, 0)?);
        Ok(Value::text(found.map_or("", |found| found.as_str())))
    }),
    member("findAll", 2, 3, |meter, values| {
        let regex = pattern("findAll", meter, values)?;
        let most = if values.len() > 2 { int_of("findAll", values, 2)? } else { -1 };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let found = regex.find_iter(text_of("findAll", values, 0)?).take(most);
        Ok(Value::list(found.map(|found| Value::text(found.as_str())).collect()))
    }),
    member("charAt", 2, 2, |meter, values| {
        let text = whole("charAt", meter, values)?;
        let at = int_of("charAt", values, 1)?;
        let end = text.chars().count();
        match usize::try_from(at) {
            Ok(at) if at <= end => {
                Ok(Value::text(text.chars().skip(at).take(1).collect::<String>()))
            }
            _ => Err(out_of_range(at)),
        }
    }),
    member("indexOf", 2, 3, index_of),
    member("lastIndexOf", 2, 3, last_index_of),
    member("lowerAscii", 1, 1, |meter, values| {
        Ok(Value::text(whole("lowerAscii", meter, values)?.to_ascii_lowercase()))
    }),
    member("upperAscii", 1, 1, |meter, values| {
        Ok(Value::text(whole("upperAscii", meter, values)?.to_ascii_uppercase()))
    }),
    member("trim", 1, 1, |meter, values| Ok(Value::text(whole("trim", meter, values)?.trim()))),
    member("replace", 3, 4, |meter, values| {
        let text = whole("replace", meter, values)?;
        let (from, to) = (text_of("replace", values, 1)?, text_of("replace", values, 2)?);
        let times = if values.len() > 3 { int_of("replace", values, 3)? } else { -1 };
        let times = usize::try_from(times).unwrap_or(usize::MAX);
        let most = times.min(text.len() + 1);
        meter.charge_size(text.len().saturating_add(most.saturating_mul(to.len())))?;
        Ok(Value::text(text.replacen(from.as_ref(), to, times)))
    }),
    member("split", 2, 3, split),
    member("substring", 2, 3, |meter, values| {
        let text = whole("substring", meter, values)?;
        let length = count(text.chars().count());
        let start = int_of("substring", values, 1)?;
        let Value::Int(length) = length else { return Err(out_of_range(start)) };
        let end = if values.len() > 2 { int_of("substring", values, 2)? } else { length };
        if start < 0 || start > end || end > length {
            return Err(EvalError::new(format!("invalid substring range: {start} to {end}")));
        }
        let (Ok(start), Ok(end)) = (usize::try_from(start), usize::try_from(end)) else {
            return Err(out_of_range(start));
        };
        Ok(Value::text(text.chars().skip(start).take(end - start).collect::<String>()))
    }),
    member("join", 1, 2, |meter, values| {
        let list = list_of("join", values, 0)?;
        let separator = if values.len() > 1 { text_of("join", values, 1)?.as_ref() } else { "" };
        let mut joined = String::new();
        for (at, one) in list.iter().enumerate() {
            let Value::Text(one) = one else {
                return Err(EvalError::new("join: invalid input"));
            };
            meter.charge(1)?;
            meter.charge_size(separator.len() + one.len())?;
            joined.push_str(if at > 0 { separator } else { "" });
            joined.push_str(one);
        }
        Ok(Value::text(joined))
    }),
    member("format", 2, 2, format_text),
    plain("strings.quote", 1, 1, |meter, values| {
        let text = whole("strings.quote", meter, values)?;
        Ok(Value::text(quoted(text)))
    }),
];

fn out_of_range(at: i64) -> EvalError {
    EvalError::new(format!("index out of range: {at}"))
}

/// The string argument; charges its size.
fn whole<'a>(function: &str, meter: &mut Meter, values: &'a [Value]) -> Result<&'a str, EvalError> {
    let text = text_of(function, values, 0)?;
    meter.charge_size(text.len())?;
    Ok(text)
}

fn both<'a>(
    function: &str,
    meter: &mut Meter,
    values: &'a [Value],
) -> Result<(&'a str, &'a str), EvalError> {
    let (text, part) = (text_of(function, values, 0)?, text_of(function, values, 1)?);
    meter.charge_size(text.len().saturating_mul(part.len() / 4 + 1))?;
    Ok((text, part))
}

fn index_of(meter: &mut Meter, values: &[Value]) -> Evaluated {
    if let Value::List(list) = &values[0] {
        meter.charge_values(list.len())?;
        let found = list.iter().position(|one| one.equals(&values[1]).unwrap_or(false));
        return Ok(found.filter(|_| values.len() == 2).map_or(Value::Int(-1), count));
    }
    let (text, part) = both("indexOf", meter, values)?;
    let offset = if values.len() > 2 { int_of("indexOf", values, 2)? } else { 0 };
    if part.is_empty() {
        return Ok(Value::Int(offset));
    }
    let Ok(from) = usize::try_from(offset) else { return Err(out_of_range(offset)) };
    let Some((start, _)) = text.char_indices().nth(from) else { return Ok(Value::Int(-1)) };
    let found = text[start..].find(part).map(|at| text[..start + at].chars().count());
    Ok(found.map_or(Value::Int(-1), count))
}

fn last_index_of(meter: &mut Meter, values: &[Value]) -> Evaluated {
    if let Value::List(list) = &values[0] {
        meter.charge_values(list.len())?;
        let found = list.iter().rposition(|one| one.equals(&values[1]).unwrap_or(false));
        return Ok(found.filter(|_| values.len() == 2).map_or(Value::Int(-1), count));
    }
    let (text, part) = both("lastIndexOf", meter, values)?;
    let length = text.chars().count();
    if values.len() < 3 {
        if part.is_empty() {
            return Ok(count(length));
        }
        let found = text.rfind(part).map(|at| text[..at].chars().count());
        return Ok(found.map_or(Value::Int(-1), count));
    }
    let offset = int_of("lastIndexOf", values, 2)?;
    if part.is_empty() {
        return Ok(Value::Int(offset));
    }
    let Ok(last) = usize::try_from(offset) else { return Err(out_of_range(offset)) };
    if last >= length {
        return Ok(Value::Int(-1));
    }
    // Matches start no later than at the offset.
    let starts = text.char_indices().take(last + 1).enumerate();
    let found = starts.filter(|(_, (at, _))| text[*at..].starts_with(part)).last();
    Ok(found.map_or(Value::Int(-1), |(nth, _)| count(nth)))
}

fn split(meter: &mut Meter, values: &[Value]) -> Evaluated {
    let text = whole("split", meter, values)?;
    let separator = text_of("split", values, 1)?.as_ref();
    let most = if values.len() > 2 { int_of("split", values, 2)? } else { -1 };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    meter.charge_values(most.min(text.len() + 1))?;
    let parts: Vec<Value> = if most == 0 {
        Vec::new()
    } else if separator.is_empty() {
        let mut rest = text;
        let mut parts = Vec::new();
        while let Some(one) = rest.chars().next() {
            let length = if parts.len() + 1 == most { rest.len() } else { one.len_utf8() };
            let (part, after) = rest.split_at(length);
            parts.push(Value::text(part));
            rest = after;
        }
        parts
    } else {
        text.splitn(most, separator).map(Value::text).collect()
    };
    Ok(Value::list(parts))
}

fn matches(meter: &mut Meter, values: &[Value]) -> Evaluated {
    let regex = pattern("matches", meter, values)?;
    Ok(Value::Bool(regex.is_match(text_of("matches", values, 0)?)))
}

/// Compiles the pattern of a call; charges it and the text.
fn pattern(function: &str, meter: &mut Meter, values: &[Value]) -> Result<Regex, EvalError> {
    let (text, pattern) = (text_of(function, values, 0)?, text_of(function, values, 1)?);
    // Compiling is by far the most expensive operation of an expression.
    meter.charge(u64::try_from(pattern.len()).unwrap_or(u64::MAX).saturating_mul(100))?;
    meter.charge_size(text.len().saturating_mul(pattern.len()))?;
    compile(pattern)
}

/// Compiles a pattern of Go's syntax.
pub(crate) fn compile(pattern: &str) -> Result<Regex, EvalError> {
    let built = RegexBuilder::new(&translated(pattern)).size_limit(PATTERN_BYTES_MAX).build();
    built.map_err(|error| EvalError::new(format!("pattern {pattern:?}: {error}")))
}

/// Translates Go's syntax to Rust's: classes such as `\d` mean ASCII characters in Go, and more in
/// Rust.
fn translated(pattern: &str) -> String {
    let mut result = String::with_capacity(pattern.len());
    let mut rest = pattern.chars();
    let mut in_class = false;
    while let Some(one) = rest.next() {
        if one != '\\' {
            match one {
                '[' if in_class && !rest.as_str().starts_with(':') => result.push('\\'),
                '[' => {
                    if in_class {
                        // A named class such as [:alpha:], up to its end.
                        result.push(one);
                        for inner in rest.by_ref() {
                            result.push(inner);
                            if inner == ']' {
                                break;
                            }
                        }
                        continue;
                    }
                    in_class = true;
                    result.push(one);
                    for start in ['^', ']'] {
                        if rest.as_str().starts_with(start) {
                            rest.next();
                            result.push_str(if start == ']' { "\\]" } else { "^" });
                        }
                    }
                    continue;
                }
                ']' => in_class = false,
                '&' | '~' if in_class => result.push('\\'),
                _ => {}
            }
            result.push(one);
            continue;
        }
        let Some(escaped) = rest.next() else {
            result.push('\\');
            break;
        };
        let ascii = match (escaped, in_class) {
            ('d', true) => "0-9",
            ('w', true) => "0-9A-Za-z_",
            ('s', true) => r"\t\n\f\r ",
            ('d', false) => "[0-9]",
            ('w', false) => "[0-9A-Za-z_]",
            ('s', false) => r"[\t\n\f\r ]",
            ('D', false) => "[^0-9]",
            ('W', false) => "[^0-9A-Za-z_]",
            ('S', false) => r"[^\t\n\f\r ]",
            ('b', false) => r"(?-u:\b)",
            ('B', false) => r"(?-u:\B)",
            _ => "",
        };
        if ascii.is_empty() {
            result.push('\\');
            result.push(escaped);
        } else {
            result.push_str(ascii);
        }
    }
    result
}

/// `"%s has %d".format([…])`.
fn format_text(meter: &mut Meter, values: &[Value]) -> Evaluated {
    let (text, list) = (whole("format", meter, values)?, list_of("format", values, 1)?);
    let mut arguments = list.iter();
    let mut result = String::new();
    let mut rest = text.chars();
    while let Some(one) = rest.next() {
        if one != '%' {
            result.push(one);
            continue;
        }
        let mut verb = rest.next();
        if verb == Some('%') {
            result.push('%');
            continue;
        }
        let mut places = None;
        if verb == Some('.') {
            let digits: String =
                rest.as_str().chars().take_while(char::is_ascii_digit).take(4).collect();
            rest = rest.as_str()[digits.len()..].chars();
            places = digits.parse::<usize>().ok();
            verb = rest.next();
        }
        let Some(argument) = arguments.next() else {
            return Err(EvalError::new("format: more places than values"));
        };
        let written = formatted(verb, places, argument)?;
        meter.charge_size(written.len())?;
        result.push_str(&written);
    }
    Ok(Value::text(result))
}

fn formatted(
    verb: Option<char>,
    places: Option<usize>,
    value: &Value,
) -> Result<String, EvalError> {
    let places = places.unwrap_or(6).min(1000);
    Ok(match (verb, value) {
        (Some('s'), value) => shown(value)?,
        (Some('d'), Value::Int(one)) => one.to_string(),
        (Some('d'), Value::Uint(one)) => one.to_string(),
        (Some('f'), Value::Double(one)) => format!("{one:.places$}"),
        (Some('b'), Value::Int(one)) => signed(*one, |one| format!("{one:b}")),
        (Some('b'), Value::Uint(one)) => format!("{one:b}"),
        (Some('b'), Value::Bool(one)) => u8::from(*one).to_string(),
        (Some('o'), Value::Int(one)) => signed(*one, |one| format!("{one:o}")),
        (Some('o'), Value::Uint(one)) => format!("{one:o}"),
        (Some('x'), Value::Int(one)) => signed(*one, |one| format!("{one:x}")),
        (Some('x'), Value::Uint(one)) => format!("{one:x}"),
        (Some('x'), Value::Text(one)) => one.bytes().map(|one| format!("{one:02x}")).collect(),
        (Some('X'), Value::Int(one)) => signed(*one, |one| format!("{one:X}")),
        (Some('X'), Value::Uint(one)) => format!("{one:X}"),
        (Some('X'), Value::Text(one)) => one.bytes().map(|one| format!("{one:02X}")).collect(),
        (verb, value) => {
            let verb = verb.map_or_else(String::new, |verb| verb.to_string());
            return Err(EvalError::new(format!("format: %{verb} of a {}", value.type_name())));
        }
    })
}

fn signed(value: i64, write: fn(u64) -> String) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", write(value.unsigned_abs()))
}

fn shown(value: &Value) -> Result<String, EvalError> {
    // Strings inside of other values are quoted.
    let inside = |value: &Value| match value {
        Value::Text(one) => Ok(quoted(one)),
        other => shown(other),
    };
    Ok(match value {
        Value::Text(one) => one.to_string(),
        Value::Bool(one) => one.to_string(),
        Value::Int(one) => one.to_string(),
        Value::Uint(one) => one.to_string(),
        Value::Double(one) => super::number::shortest(*one),
        Value::Null => "null".to_owned(),
        Value::Type(one) => (*one).to_owned(),
        Value::Duration(length) => super::time::seconds(*length),
        Value::Timestamp(at) => super::time::written(*at),
        Value::List(list) => {
            let shown: Result<Vec<String>, EvalError> = list.iter().map(inside).collect();
            format!("[{}]", shown?.join(", "))
        }
        Value::Map(map) => {
            let shown: Result<Vec<String>, EvalError> = map
                .entries
                .iter()
                .map(|(key, value)| Ok(format!("{}:{}", inside(&key.value())?, inside(value)?)))
                .collect();
            format!("{{{}}}", shown?.join(", "))
        }
        other => {
            return Err(EvalError::new(format!("format: %s of a {}", other.type_name())));
        }
    })
}

fn quoted(text: &str) -> String {
    let mut result = String::from("\"");
    for one in text.chars() {
        match one {
            '\u{7}' => result.push_str("\\a"),
            '\u{8}' => result.push_str("\\b"),
            '\u{c}' => result.push_str("\\f"),
            '\n' => result.push_str("\\n"),
            '\r' => result.push_str("\\r"),
            '\t' => result.push_str("\\t"),
            '\u{b}' => result.push_str("\\v"),
            '\\' => result.push_str("\\\\"),
            '"' => result.push_str("\\\""),
            other => result.push(other),
        }
    }
    result.push('"');
    result
}

//! Timestamps and durations, in UTC. There is no function for the current time.

use super::{EvalError, Evaluated, Function, Value, member, plain, text_of};

pub(super) const NANOS_PER_SECOND: i128 = 1_000_000_000;
const SECONDS_PER_DAY: i128 = 86_400;
/// The first moment of the year 1 and the last of the year 9999, in seconds since 1970.
const SECONDS_MIN: i128 = -62_135_596_800;
const SECONDS_MAX: i128 = 253_402_300_799;

pub(super) const FUNCTIONS: &[Function] = &[
    plain("timestamp", 1, 1, |_, values| match &values[0] {
        one @ Value::Timestamp(_) => Ok(one.clone()),
        Value::Int(seconds) => timestamp(i128::from(*seconds).checked_mul(NANOS_PER_SECOND)),
        Value::Text(text) => match parse_timestamp(text) {
            Some(nanos) => timestamp(Some(nanos)),
            None => {
                Err(EvalError::new(format!("{text:?} is not a time such as 2006-01-02T15:04:05Z")))
            }
        },
        _ => Err(EvalError::no_overload("timestamp", values)),
    }),
    plain("duration", 1, 1, |_, values| {
        if let one @ Value::Duration(_) = &values[0] {
            return Ok(one.clone());
        }
        let text = text_of("duration", values, 0)?;
        match parse_duration(text) {
            Some(nanos) => Ok(Value::Duration(nanos)),
            None => Err(EvalError::new(format!("{text:?} is not a duration such as 1h30m"))),
        }
    }),
    member("getFullYear", 1, 1, |_, values| calendar("getFullYear", values, |date| date.year)),
    member("getMonth", 1, 1, |_, values| calendar("getMonth", values, |date| date.month - 1)),
    member("getDate", 1, 1, |_, values| calendar("getDate", values, |date| date.day)),
    member("getDayOfMonth", 1, 1, |_, values| {
        calendar("getDayOfMonth", values, |date| date.day - 1)
    }),
    member("getDayOfWeek", 1, 1, |_, values| {
        calendar("getDayOfWeek", values, |date| (date.days + 4).rem_euclid(7))
    }),
    member("getDayOfYear", 1, 1, |_, values| {
        calendar("getDayOfYear", values, |date| date.days - days_of(date.year, 1, 1))
    }),
    member("getHours", 1, 1, |_, values| clock("getHours", values, 3600, 24)),
    member("getMinutes", 1, 1, |_, values| clock("getMinutes", values, 60, 60)),
    member("getSeconds", 1, 1, |_, values| clock("getSeconds", values, 1, 60)),
    member("getMilliseconds", 1, 1, |_, values| {
        let nanos = match &values[0] {
            Value::Timestamp(at) => at.rem_euclid(NANOS_PER_SECOND),
            Value::Duration(length) => i128::from(*length),
            _ => return Err(EvalError::no_overload("getMilliseconds", values)),
        };
        number(nanos / 1_000_000)
    }),
];

fn number(value: i128) -> Evaluated {
    i64::try_from(value).map(Value::Int).map_err(|_| EvalError::new("integer overflow"))
}

/// Fails outside of the years 1 to 9999.
pub(super) fn timestamp(nanos: Option<i128>) -> Evaluated {
    let within =
        |nanos: &i128| (SECONDS_MIN..=SECONDS_MAX).contains(&nanos.div_euclid(NANOS_PER_SECOND));
    nanos.filter(within).map(Value::Timestamp).ok_or_else(|| EvalError::new("timestamp overflow"))
}

pub(super) fn duration(nanos: Option<i64>) -> Evaluated {
    nanos.map(Value::Duration).ok_or_else(|| EvalError::new("duration overflow"))
}

struct Date {
    days: i128,
    year: i128,
    month: i128,
    day: i128,
}

fn date_of(nanos: i128) -> Date {
    let days = nanos.div_euclid(NANOS_PER_SECOND * SECONDS_PER_DAY);
    // Years here start in March, so that a leap day is the last day of a year.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i128::from(month <= 2);
    Date { days, year, month, day }
}

/// Days since 1970.
fn days_of(year: i128, month: i128, day: i128) -> i128 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month_from_march = (month + 9) % 12;
    let of_year = (153 * month_from_march + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn calendar(function: &str, values: &[Value], part: fn(&Date) -> i128) -> Evaluated {
    match &values[0] {
        Value::Timestamp(at) => number(part(&date_of(*at))),
        _ => Err(EvalError::no_overload(function, values)),
    }
}

/// Hours, minutes or seconds: of the day for a timestamp, in total for a duration.
fn clock(function: &str, values: &[Value], seconds: i128, cycle: i128) -> Evaluated {
    match &values[0] {
        Value::Timestamp(at) => number(at.div_euclid(NANOS_PER_SECOND * seconds).rem_euclid(cycle)),
        Value::Duration(length) => number(i128::from(*length) / (NANOS_PER_SECOND * seconds)),
        _ => Err(EvalError::no_overload(function, values)),
    }
}

/// `2006-01-02T15:04:05.999Z` or with an offset.
fn parse_timestamp(text: &str) -> Option<i128> {
    let field = |range: std::ops::Range<usize>| -> Option<i128> {
        let digits = text.get(range)?;
        digits.bytes().all(|one| one.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
    };
    let sign = |at: usize| text.as_bytes().get(at).copied();
    let signs = [sign(4), sign(7), sign(10), sign(13), sign(16)];
    if signs != [b'-', b'-', b'T', b':', b':'].map(Some) {
        return None;
    }
    let (year, month, day) = (field(0..4)?, field(5..7)?, field(8..10)?);
    let (hour, minute, second) = (field(11..13)?, field(14..16)?, field(17..19)?);
    let days = days_of(year, month, day);
    let canonical = date_of(days * SECONDS_PER_DAY * NANOS_PER_SECOND);
    if (canonical.year, canonical.month, canonical.day) != (year, month, day)
        || hour > 23
        || minute > 59
        || second > 59
    {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanos = 0;
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let places = fraction.find(|one: char| !one.is_ascii_digit()).unwrap_or(fraction.len());
        let digits: String = fraction.chars().take(places.min(9)).collect();
        nanos = format!("{digits:0<9}").parse::<i128>().ok().filter(|_| places > 0)?;
        rest = &fraction[places..];
    }
    let offset = if rest == "Z" {
        0
    } else {
        let (hours, minutes) = rest.get(1..)?.split_once(':')?;
        let two = |text: &str| (text.len() == 2).then(|| text.parse::<i128>().ok()).flatten();
        let (hours, minutes) = (two(hours)?, two(minutes)?);
        let seconds = hours * 3600 + minutes * 60;
        match rest.as_bytes().first()? {
            _ if hours > 23 || minutes > 59 => return None,
            b'+' => seconds,
            b'-' => -seconds,
            _ => return None,
        }
    };
    let seconds = days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second - offset;
    Some(seconds * NANOS_PER_SECOND + nanos)
}

/// `1h30m`, `-1.5s`, `250ms`.
fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let length = rest.find(|one: char| !one.is_ascii_digit() && one != '.')?;
        let (written, after) = rest.split_at(length);
        let units = [
            ("ns", 1),
            ("us", 1_000),
            ("µs", 1_000),
            ("μs", 1_000),
            ("ms", 1_000_000),
            ("s", NANOS_PER_SECOND),
            ("m", 60 * NANOS_PER_SECOND),
            ("h", 3600 * NANOS_PER_SECOND),
        ];
        let (unit, nanos) = units.into_iter().find(|(unit, _)| after.starts_with(unit))?;
        let (whole, fraction) = written.split_once('.').unwrap_or((written, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || written.len() > 30 {
            return None;
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let digits = &fraction[..fraction.len().min(18)];
        let scale = 10_i128.checked_pow(u32::try_from(digits.len()).ok()?)?;
        let part: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
        total = total.checked_add(whole.checked_mul(nanos)?)?.checked_add(part * nanos / scale)?;
        rest = &after[unit.len()..];
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// In RFC 3339 format.
pub(super) fn written(nanos: i128) -> String {
    let date = date_of(nanos);
    let (seconds, fraction) =
        (nanos.div_euclid(NANOS_PER_SECOND), nanos.rem_euclid(NANOS_PER_SECOND));
    let of_day = seconds.rem_euclid(SECONDS_PER_DAY);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let fraction = match fraction {
        0 => String::new(),
        some => format!(".{some:09}").trim_end_matches('0').to_owned(),
    };
    let Date { year, month, day, .. } = date;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// In seconds, as `1.5s`.
pub(super) fn seconds(nanos: i64) -> String {
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let (whole, fraction) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let fraction = match fraction {
        0 => String::new(),
        some => format!(".{some:09}").trim_end_matches('0').to_owned(),
    };
    format!("{sign}{whole}{fraction}s")
}

//! Quantities against recorded answers of Kubernetes' code, and their own rules.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};

use berth_model::quantity::{Format, Quantity, QuantityError};
use proptest::prelude::*;

const RECORDED: &str = include_str!("data/quantities.tsv");

fn quantity(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn message(text: &str) -> String {
    Quantity::parse(text).unwrap_err().to_string()
}

/// One line of the recording, for an input that Kubernetes accepts.
struct Accepted<'a> {
    canonical: &'a str,
    string: String,
    /// `None` when over 60 characters.
    exact_nanos: Option<i128>,
    round_up_units: Option<i128>,
    round_up_millis: Option<i128>,
    value: i64,
    milli_value: i64,
    format: Format,
    sign: i32,
    as_int64: Option<i64>,
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        out.push(match character {
            '\\' => match rest.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('\\') => '\\',
                other => panic!("{text}: escape {other:?}"),
            },
            other => other,
        });
    }
    out
}

impl<'a> Accepted<'a> {
    fn read(fields: &[&'a str]) -> Self {
        // More than 39 digits do not fit i128 either: both are beyond what a quantity holds.
        let integer = |text: &str| text.parse::<i128>().ok();
        Self {
            canonical: fields[2],
            string: unescape(fields[3]),
            exact_nanos: integer(fields[4]).filter(|nanos| *nanos != i128::MIN),
            round_up_units: integer(fields[5]),
            round_up_millis: integer(fields[6]),
            value: fields[7].parse().unwrap(),
            milli_value: fields[8].parse().unwrap(),
            format: match fields[9] {
                "DecimalSI" => Format::DecimalSi,
                "BinarySI" => Format::BinarySi,
                "DecimalExponent" => Format::DecimalExponent,
                other => panic!("format {other}"),
            },
            sign: fields[10].parse().unwrap(),
            as_int64: fields[11].parse().ok(),
        }
    }

    /// Whether the amount is 10^21 or more in a format whose largest suffix is 10^18, so that
    /// Kubernetes prints it without any.
    fn loses_its_suffix(&self) -> bool {
        let limit = 10_i128.pow(30);
        self.format == Format::DecimalSi
            && self.exact_nanos.is_none_or(|nanos| nanos % limit == 0 && nanos != 0)
    }
}

/// Whether Kubernetes' rounding is known to be off: when the result overflows, and for negative
/// amounts that are not whole or do not fit 64 bits in nano-units.
fn kubernetes_misrounds(nanos: Option<i128>, rounded: Option<i128>, nanos_each: i128) -> bool {
    let (Some(nanos), Some(rounded)) = (nanos, rounded) else { return true };
    i64::try_from(rounded).is_err()
        || (nanos < 0 && (nanos % nanos_each != 0 || nanos < i128::from(i64::MIN)))
}

fn saturate(number: Option<i128>, sign: i32) -> i64 {
    let limit = if sign < 0 { i64::MIN } else { i64::MAX };
    number.map_or(limit, |number| i64::try_from(number).unwrap_or(limit))
}

fn check_accepted(input: &str, expected: &Accepted<'_>) {
    let found = Quantity::parse(input).unwrap_or_else(|error| panic!("{input:?}: {error}"));
    assert_eq!(found.format(), expected.format, "format of {input:?}");
    assert_eq!(found.sign(), expected.sign, "sign of {input:?}");
    assert_eq!(found.is_zero(), expected.sign == 0, "zero {input:?}");

    let limit = if expected.sign < 0 { Quantity::MIN } else { Quantity::MAX };
    let nanos = expected.exact_nanos.unwrap_or(limit.nanos());
    assert_eq!(found.nanos(), nanos, "amount of {input:?}");

    let units = saturate(expected.round_up_units, expected.sign);
    assert_eq!(found.value(), units, "value of {input:?}");
    let millis = saturate(expected.round_up_millis, expected.sign);
    assert_eq!(found.milli_value(), millis, "milli value of {input:?}");
    if !kubernetes_misrounds(expected.exact_nanos, expected.round_up_units, 1_000_000_000) {
        assert_eq!(units, expected.value, "Value() of {input:?}");
    }
    if !kubernetes_misrounds(expected.exact_nanos, expected.round_up_millis, 1_000_000) {
        assert_eq!(millis, expected.milli_value, "MilliValue() of {input:?}");
    }

    let printed = found.to_string();
    assert_eq!(quantity(&printed), found, "{input:?} printed as {printed:?} and read again");
    if expected.exact_nanos.is_none() {
        assert_eq!(found.as_i64(), None, "integer {input:?}");
        return;
    }
    if expected.loses_its_suffix() {
        let mantissa = printed.strip_suffix('E').unwrap_or_else(|| panic!("{input:?}: {printed}"));
        assert_eq!(mantissa.trim_end_matches("000"), expected.canonical, "print of {input:?}");
        assert_eq!(found.as_i64(), None, "integer {input:?}");
        return;
    }
    assert_eq!(printed, expected.canonical, "print of {input:?}");
    assert_eq!(quantity(&expected.string), found, "{input:?} as stored");
    assert_eq!(found.as_stored_i64(), expected.as_int64, "integer {input:?}");
}

fn check_rejected(input: &str, outcome: &str) {
    let error = match Quantity::parse(input) {
        Err(error) => error,
        Ok(found) => panic!("{input:?} must not parse ({outcome}), but is {found}"),
    };
    let matching = match error {
        QuantityError::Empty | QuantityError::UnexpectedCharacter { .. } => "format",
        QuantityError::UnknownSuffix { .. } | QuantityError::ExponentOutOfRange { .. } => "suffix",
        QuantityError::NoDigits { .. } => "numeric",
        QuantityError::Negative { .. } => "never from parsing",
    };
    assert_eq!(matching, outcome, "{error}");
}

/// Checks every line of a recording and returns how many there were.
fn check_recording(recording: &str) -> usize {
    let lines = recording.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let input = unescape(fields[0]);
            match fields[1] {
                "ok" => check_accepted(&input, &Accepted::read(&fields)),
                outcome => check_rejected(&input, outcome),
            }
        })
        .count()
}

#[test]
fn agrees_with_recorded_kubernetes() {
    assert_eq!(check_recording(RECORDED), 1500);
}

#[test]
fn errors_name_text_place_and_remedy() {
    let remedy = "write a number with an optional suffix such as 500m, 2, 1.5Gi";
    assert_eq!(message(""), format!("quantity \"\": no text at byte 0; {remedy}"));
    assert_eq!(message("1..5"), format!("quantity \"1..5\": unexpected '.' at byte 2; {remedy}"));
    assert_eq!(message("1é"), format!("quantity \"1é\": unexpected 'é' at byte 1; {remedy}"));
    assert_eq!(message("2\n"), format!("quantity \"2\\n\": unexpected '\\n' at byte 1; {remedy}"));
    assert_eq!(
        message("1.5K"),
        "quantity \"1.5K\": unknown suffix \"K\" at byte 3; use none, one of n u m k M G T P E, \
         one of Ki Mi Gi Ti Pi Ei, or an exponent such as e3"
    );
    assert_eq!(
        message("1e9223372036854775808"),
        "quantity \"1e9223372036854775808\": exponent \"e9223372036854775808\" at byte 1 does not \
         fit 64 bits; write an exponent between e-9 and e18"
    );
    assert_eq!(
        message("-Pi"),
        "quantity \"-Pi\": no digits before byte 1; write a number first, such as 1 or 1.5"
    );
    assert_eq!(
        quantity("-1.5Gi").non_negative().unwrap_err().to_string(),
        "quantity \"-1536Mi\": unexpected '-' at byte 0; write zero or a positive quantity"
    );
    assert_eq!(quantity("0").non_negative(), Ok(Quantity::ZERO));
}

#[test]
fn errors_stay_short_and_name_the_place_in_the_whole_text() {
    let text = "é".repeat(500);
    assert!(message(&format!("{}é", "1".repeat(500))).contains("at byte 500;"));
    assert!(message(&text).contains("unexpected 'é' at byte 0;"));
    assert!(message(&text).chars().count() < 200);
    assert!(message(&format!("1{}", "eE".repeat(500))).chars().count() < 350);
    assert!(message(&format!("1e{}", "9".repeat(500))).chars().count() < 350);
}

#[test]
fn endless_numbers_are_read_in_one_pass() {
    let digits = 1_000_000;
    let (zeros, nines) = ("0".repeat(digits), "9".repeat(digits));
    assert_eq!(quantity(&nines), Quantity::MAX);
    assert_eq!(quantity(&format!("-{nines}")), Quantity::MIN);
    assert_eq!(quantity(&format!("{zeros}7")), quantity("7"));
    assert_eq!(quantity(&format!("0.{zeros}7")), quantity("1n"));
    assert_eq!(quantity(&format!("0.{nines}")), quantity("1"));
    assert_eq!(quantity(&format!("-1.{nines}")), quantity("-2"));
    assert_eq!(quantity(&format!("0.{zeros}7e1000001")), quantity("7"));
    assert_eq!(quantity(&format!("7{zeros}e-1000000")), quantity("7"));
    assert_eq!(quantity(&format!("7{zeros}1e-1000001")), quantity("7000000001n"));
    assert_eq!(quantity(&format!("{nines}Ei")).value(), i64::MAX);
    assert_eq!(quantity(&format!("1.{zeros}7Gi")).nanos(), (1_i128 << 30) * 1_000_000_000 + 1);
    assert_eq!(quantity(&format!("1.{nines}Ki")), quantity("2Ki"));
    assert_eq!(quantity(&format!("1e{zeros}3")), quantity("1k"));
    assert!(Quantity::parse(&format!("1e{nines}")).is_err());
}

#[test]
fn the_largest_exponents_are_bounded() {
    for digits in ["1", "1.5", "12345678901234567890", "0.00000000000000000000000000001"] {
        assert_eq!(quantity(&format!("{digits}e2147483647")), Quantity::MAX);
        assert_eq!(quantity(&format!("-{digits}e2147483647")), Quantity::MIN);
        assert_eq!(quantity(&format!("{digits}e-2147483648")), quantity("1n"));
        assert_eq!(quantity(&format!("-{digits}e-2147483648")), quantity("-1n"));
    }
    assert!(quantity("0e2147483647").is_zero());
    assert!(quantity("0.0e-2147483648").is_zero());
}

#[test]
fn constructors_agree_with_text() {
    for (built, text) in [
        (Quantity::from_milli(1500), "1500m"),
        (Quantity::from_milli(2000), "2"),
        (Quantity::from_milli(i64::MIN), "-9223372036854775808m"),
        (Quantity::from_bytes(2 << 30), "2Gi"),
        (Quantity::from_bytes(-1536 << 20), "-1536Mi"),
        (Quantity::from_bytes(1000), "1k"),
        (Quantity::from_bytes(i64::MAX), "9223372036854775807"),
        (Quantity::from_units(16, Format::DecimalSi), "16"),
        (Quantity::from_units(12_000, Format::DecimalExponent), "12e3"),
        (Quantity::from_units(i64::MIN, Format::BinarySi), "-8Ei"),
        (Quantity::default(), "0"),
    ] {
        assert_eq!(built.to_string(), text);
    }
}

#[test]
fn equality_order_and_hash_ignore_the_format() {
    let hash = |quantity: Quantity| {
        let mut hasher = DefaultHasher::new();
        quantity.hash(&mut hasher);
        hasher.finish()
    };
    assert_eq!(quantity("1Ki"), quantity("1024"));
    assert_eq!(quantity("1024"), quantity("1.024e3"));
    assert_eq!(hash(quantity("1Ki")), hash(quantity("1024")));
    assert!(quantity("1023") < quantity("1Ki"));
    assert!(quantity("-1Ki") < quantity("-1023"));
    assert_eq!(quantity("1Ki").max(quantity("1k")).to_string(), "1Ki");
}

#[test]
fn sums_print_like_the_first_that_is_not_zero() {
    let sum = |a: &str, b: &str| quantity(a).checked_add(quantity(b)).unwrap().to_string();
    let difference = |a: &str, b: &str| quantity(a).checked_sub(quantity(b)).unwrap().to_string();
    // Each as Kubernetes answers.
    assert_eq!(sum("0", "2Gi"), "2Gi");
    assert_eq!(sum("0Gi", "2048"), "2048");
    assert_eq!(sum("1Gi", "1G"), "2073741824");
    assert_eq!(sum("1Gi", "1024M"), "2048576Ki");
    assert_eq!(sum("1Ki", "1k"), "2024");
    assert_eq!(sum("1k", "1Ki"), "2024");
    assert_eq!(sum("512Mi", "524288k"), "1012Mi");
    assert_eq!(sum("1500m", "500m"), "2");
    assert_eq!(sum("1e3", "1500m"), "1001500e-3");
    assert_eq!(sum("7Ei", "2Ei"), "9Ei");
    assert_eq!(difference("0", "2Gi"), "-2Gi");
    assert_eq!(difference("2Gi", "1Gi"), "1Gi");
    assert_eq!(difference("1Gi", "1m"), "1073741823999m");
    assert_eq!(difference("1Gi", "1Gi"), "0");
}

#[test]
fn sums_stop_at_the_limits() {
    let one = quantity("1n");
    assert_eq!(Quantity::MAX.checked_add(one), None);
    assert_eq!(Quantity::MIN.checked_sub(one), None);
    assert_eq!(Quantity::MIN.checked_add(Quantity::MIN), None);
    assert_eq!(Quantity::MAX.saturating_add(one), Quantity::MAX);
    assert_eq!(Quantity::MIN.saturating_sub(one), Quantity::MIN);
    assert_eq!(Quantity::MIN.saturating_sub(Quantity::MAX), Quantity::MIN);
    assert_eq!(Quantity::MAX.saturating_sub(Quantity::MIN), Quantity::MAX);
    assert_eq!(Quantity::MAX.checked_add(Quantity::MIN), Some(Quantity::ZERO));
    assert_eq!(Quantity::MIN.value(), i64::MIN);
    assert_eq!(Quantity::MAX.milli_value(), i64::MAX);
    // Kubernetes has no suffix for the sum and prints 1.
    let exbi = (0..10).fold(quantity("1Ei"), |sum, _| sum.saturating_add(sum));
    assert_eq!(exbi.to_string(), "1024Ei");
}

/// Text that Kubernetes accepts.
fn accepted_text() -> impl Strategy<Value = String> {
    let suffix = "(n|u|m||k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,2})";
    let number = "([0-9]{1,22}(\\.[0-9]{0,14})?|\\.[0-9]{1,22})";
    (prop::sample::select(vec!["", "+", "-"]), number, suffix)
        .prop_map(|(sign, number, suffix)| format!("{sign}{number}{suffix}"))
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,12}|[-+.0-9eEinumkKMGTP]{0,12}") {
        if let Err(error) = Quantity::parse(&text) {
            let error = error.to_string();
            prop_assert!(error.contains(" byte ") && error.contains("; "), "{}", error);
        }
    }

    #[test]
    fn printing_keeps_the_amount(text in accepted_text()) {
        let first = quantity(&text);
        let second = quantity(&first.to_string());
        prop_assert_eq!(first, second);
        // A binary amount that 1024 does not divide prints bare and comes back decimal, which may
        // print otherwise; after that the text is settled.
        let third = quantity(&second.to_string());
        prop_assert_eq!(first, third);
        prop_assert_eq!(second.to_string(), third.to_string());
    }

    #[test]
    fn spelling_does_not_change_the_amount(units in any::<i64>(), zeros in "0{0,9}") {
        let text = units.unsigned_abs().to_string();
        let sign = if units < 0 { "-" } else { "+" };
        let expected = Quantity::from_units(units, Format::DecimalSi);
        prop_assert_eq!(quantity(&format!("{sign}{zeros}{text}.{zeros}")), expected);
        prop_assert_eq!(quantity(&format!("{sign}{text}000m")), expected);
        prop_assert_eq!(quantity(&format!("{sign}{text}000000000e-9")), expected);
        prop_assert_eq!(quantity(&format!("{sign}.{text}e{}", text.len())), expected);
        prop_assert_eq!(quantity(&format!("{sign}{text}m")), Quantity::from_milli(units));
        prop_assert_eq!(expected.as_i64(), Some(units));
        prop_assert_eq!(expected.value(), units);
    }

    #[test]
    fn binary_suffixes_multiply(units in 0..1_i64 << 23, power in 1_usize..5) {
        let suffix = ["", "Ki", "Mi", "Gi", "Ti"][power];
        let expected = Quantity::from_bytes(units << (10 * power));
        prop_assert_eq!(quantity(&format!("{units}{suffix}")), expected);
        prop_assert_eq!(quantity(&format!("{units}.5{suffix}")).value() - expected.value(),
            1 << (10 * power - 1));
    }

    #[test]
    fn rounding_goes_away_from_zero(nanos in any::<i64>()) {
        let found = quantity(&format!("{nanos}n"));
        prop_assert_eq!(found.nanos(), i128::from(nanos));
        for (rounded, each) in [(found.value(), 1_000_000_000), (found.milli_value(), 1_000_000)] {
            let reached = i128::from(rounded) * each;
            prop_assert!(reached.abs() >= i128::from(nanos).abs());
            prop_assert!((reached - i128::from(nanos)).abs() < each);
            prop_assert!(nanos == 0 || rounded.signum() == nanos.signum());
        }
    }

    #[test]
    fn arithmetic_is_exact(a in accepted_text(), b in accepted_text()) {
        let (a, b) = (quantity(&a), quantity(&b));
        prop_assert_eq!(a.cmp(&b), a.nanos().cmp(&b.nanos()));
        prop_assert_eq!(a == b, a.checked_sub(b).is_some_and(Quantity::is_zero));
        match a.checked_add(b) {
            Some(sum) => {
                prop_assert_eq!(sum.nanos(), a.nanos() + b.nanos());
                prop_assert_eq!(sum, a.saturating_add(b));
                prop_assert_eq!(sum.checked_sub(b), Some(a));
                prop_assert_eq!(sum, b.saturating_add(a));
            }
            None => prop_assert_eq!(a.saturating_add(b).nanos().abs(), i128::MAX),
        }
    }
}

//! Resource quantities: `500m`, `2`, `1.5Gi`, `1e3`, as exact integers, parsed and printed as
//! Kubernetes 1.36 does.
//!
//! White space around a quantity, JSON numbers and `null` are the caller's to resolve.
//!
//! # Value
//!
//! A quantity is a number of nano-units in an `i128`, so every sum and comparison is exact. Text
//! finer than a nano-unit rounds away from zero. Text with a binary suffix is capped at
//! [`i64::MAX`] units in magnitude, as in Kubernetes.
//!
//! # Deliberate differences from Kubernetes
//!
//! Kubernetes computes each of these as an accident of its internal representation. None of them
//! affects an amount that a cluster could serve.
//!
//! * Decimal text beyond about 1.7e29 units saturates at [`Quantity::MAX`] or [`Quantity::MIN`].
//!   Kubernetes keeps any magnitude, at a cost that grows with the exponent, and wraps around when
//!   the exponent less the digits after the dot goes below -2^31.
//! * [`Quantity::value`] and [`Quantity::milli_value`] saturate. The Kubernetes functions wrap
//!   around or return 0 when the result does not fit (`Value()` of `10E` is 0).
//! * The same two always round away from zero. Kubernetes promises that too, but rounds some
//!   negative values the other way (`Value()` of `-1.1Ki` is -1125) and garbles others.
//! * A decimal quantity too large for the suffix `E` keeps it, `1000E`. Kubernetes drops the suffix
//!   and prints `1`. Binary sums beyond `1023Ei` are treated alike.
//! * Printing is always canonical. Kubernetes repeats the text it parsed when that looks canonical
//!   to it (`+5`, `0001` and `1.500` do); the value is the same.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::IntErrorKind;
use std::str::FromStr;

const NANOS_PER_UNIT: i128 = 1_000_000_000;
const NANOS_PER_MILLI: i128 = 1_000_000;
/// Decimal digits below one unit.
const NANO_DIGITS: i64 = 9;
/// In nano-units. Symmetric, so that negation is total.
const MAX_MAGNITUDE: u128 = i128::MAX.unsigned_abs();
const MAX_MAGNITUDE_DIGITS: i64 = 39;
/// The cap of text with a binary suffix, in nano-units.
const BINARY_CAP: u128 = i64::MAX.unsigned_abs() as u128 * NANOS_PER_UNIT.unsigned_abs();
/// Smaller binary quantities print without a binary suffix.
const SMALLEST_BINARY_UNIT: u128 = 1024;
/// Limit of characters that an error quotes.
const QUOTED_CHARACTERS: usize = 64;

/// Every power of ten that divides some quantity in nano-units.
const POWERS_OF_TEN: [u128; MAX_MAGNITUDE_DIGITS as usize] = {
    let mut powers = [1; MAX_MAGNITUDE_DIGITS as usize];
    let mut index = 1;
    while index < powers.len() {
        powers[index] = powers[index - 1] * 10;
        index += 1;
    }
    powers
};

/// Decimal suffixes from 10^-9 upwards in steps of 10^3.
const DECIMAL_SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// Binary suffixes from 2^0 upwards in steps of 2^10.
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The family of suffixes a quantity prints with. It does not affect the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// `500m`, `2`, `16G`: powers of a thousand. Kubernetes' format of CPU and counts.
    #[default]
    DecimalSi,
    /// `64Mi`, `2Gi`: powers of 1024. Kubernetes' format of memory. Amounts that are not whole, or
    /// are under 1024 in magnitude, print as [`Format::DecimalSi`].
    BinarySi,
    /// `1e3`, `1500e-3`: a power of ten whose exponent is a multiple of three.
    DecimalExponent,
}

/// An exact amount of some resource, and the family of suffixes it prints with.
///
/// Equality, ordering and hashing use the amount alone, so `1Ki` equals `1024`. Of two equal
/// quantities `max` and `min` may therefore return either format.
///
/// Printing then parsing yields the same amount, unless arithmetic took a binary quantity past
/// [`i64::MAX`] units, where parsing caps it. The format may change: bytes that 1024 does not
/// divide print as a plain number, which parses as decimal, so that 2000 bytes print as `2000` at
/// first and as `2k` the second time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    /// Within `-i128::MAX..=i128::MAX`.
    nanos: i128,
    format: Format,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error(
        "quantity \"\": no text at byte 0; write a number with an optional suffix such as 500m, \
         2, 1.5Gi"
    )]
    Empty,
    #[error(
        "quantity {text:?}: unexpected {found:?} at byte {at}; write a number with an optional \
         suffix such as 500m, 2, 1.5Gi"
    )]
    UnexpectedCharacter { text: String, found: char, at: usize },
    #[error(
        "quantity {text:?}: unknown suffix {suffix:?} at byte {at}; use none, one of n u m k M G \
         T P E, one of Ki Mi Gi Ti Pi Ei, or an exponent such as e3"
    )]
    UnknownSuffix { text: String, suffix: String, at: usize },
    #[error(
        "quantity {text:?}: exponent {exponent:?} at byte {at} does not fit 64 bits; write an \
         exponent between e-9 and e18"
    )]
    ExponentOutOfRange { text: String, exponent: String, at: usize },
    #[error(
        "quantity {text:?}: no digits before byte {at}; write a number first, such as 1 or 1.5"
    )]
    NoDigits { text: String, at: usize },
    #[error("quantity {text:?}: unexpected '-' at byte 0; write zero or a positive quantity")]
    Negative { text: String },
}

impl Quantity {
    pub const ZERO: Self = Self { nanos: 0, format: Format::DecimalSi };
    /// Larger text saturates to this amount.
    pub const MAX: Self = Self { nanos: i128::MAX, format: Format::DecimalSi };
    /// [`Quantity::MAX`] with the sign changed.
    pub const MIN: Self = Self { nanos: -i128::MAX, format: Format::DecimalSi };

    pub const fn from_units(units: i64, format: Format) -> Self {
        Self { nanos: units as i128 * NANOS_PER_UNIT, format }
    }

    /// Thousandths, such as millicores.
    pub const fn from_milli(thousandths: i64) -> Self {
        Self { nanos: thousandths as i128 * NANOS_PER_MILLI, format: Format::DecimalSi }
    }

    /// Prints with a binary suffix.
    pub const fn from_bytes(bytes: i64) -> Self {
        Self::from_units(bytes, Format::BinarySi)
    }

    /// Parses text as Kubernetes does, in time linear in its length.
    ///
    /// Some oddities are kept because the API server stores such text and the kubelet reads it: a
    /// bare sign, dot or suffix may count as zero, and an exponent keeps only its low 32 bits.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let parts = Parts::split(text)?;
        let unit = parts.unit()?;
        if !parts.has_digits && !unit.stands_alone() {
            return Err(QuantityError::NoDigits { text: quote(text), at: parts.suffix_at });
        }
        let (magnitude, format) = match unit {
            Unit::DecimalSi(exponent) => (parts.times_ten_to(exponent), Format::DecimalSi),
            Unit::DecimalExponent(exponent) => {
                (parts.times_ten_to(exponent), Format::DecimalExponent)
            }
            Unit::BinarySi(exponent) => {
                let magnitude = parts.times_two_to(exponent);
                let below_one = 0 < magnitude && magnitude < NANOS_PER_UNIT.unsigned_abs();
                (magnitude, if below_one { Format::DecimalSi } else { Format::BinarySi })
            }
        };
        // The magnitude is at most i128::MAX, so the cast keeps it.
        let nanos = magnitude as i128;
        Ok(Self { nanos: if parts.negative { -nanos } else { nanos }, format })
    }

    pub const fn format(self) -> Format {
        self.format
    }

    pub const fn nanos(self) -> i128 {
        self.nanos
    }

    /// In units, rounded away from zero, saturating.
    pub fn value(self) -> i64 {
        divide_away_from_zero(self.nanos, NANOS_PER_UNIT)
    }

    /// In thousandths of a unit, rounded away from zero, saturating.
    pub fn milli_value(self) -> i64 {
        divide_away_from_zero(self.nanos, NANOS_PER_MILLI)
    }

    /// In units if that is an integer that fits, however it was written: `1000m` is 1.
    pub fn as_i64(self) -> Option<i64> {
        if self.nanos % NANOS_PER_UNIT != 0 {
            return None;
        }
        i64::try_from(self.nanos / NANOS_PER_UNIT).ok()
    }

    /// Kubernetes' `AsInt64` for the text the API server stores: as [`Self::as_i64`], except that
    /// it fails for some amounts from 1e14 upwards, such as `100Ti` and `1Pi`.
    pub fn as_stored_i64(self) -> Option<i64> {
        let step: u64 = if self.format == Format::BinarySi { 1024 } else { 1000 };
        let whole = self.as_i64()?;
        let mut mantissa = whole.unsigned_abs();
        let mut steps = 0;
        while mantissa != 0 && mantissa.is_multiple_of(step) {
            mantissa /= step;
            steps += 1;
        }
        let digits = mantissa.checked_ilog10().unwrap_or(0) + 1;
        let most_digits = match self.format {
            Format::BinarySi if steps > 0 => 14_u32.saturating_sub(3 * steps),
            _ => 18,
        };
        (digits <= most_digits).then_some(whole)
    }

    /// -1, 0 or 1.
    pub const fn sign(self) -> i32 {
        self.nanos.signum() as i32
    }

    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Fails if the amount is negative.
    pub fn non_negative(self) -> Result<Self, QuantityError> {
        if self.nanos < 0 {
            return Err(QuantityError::Negative { text: self.to_string() });
        }
        Ok(self)
    }

    /// `None` beyond [`Quantity::MAX`] or [`Quantity::MIN`].
    ///
    /// As in Kubernetes the sum prints like `self`, or like `other` if `self` is zero.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let nanos = self.nanos.checked_add(other.nanos)?;
        // i128::MIN is not a valid quantity.
        (nanos != i128::MIN).then_some(Self { nanos, format: self.format_with(other) })
    }

    /// `None` beyond [`Quantity::MAX`] or [`Quantity::MIN`].
    ///
    /// As in Kubernetes the difference prints like `self`, or like `other` if `self` is zero.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.checked_add(Self { nanos: -other.nanos, format: other.format })
    }

    /// Prints as with [`Quantity::checked_add`].
    pub fn saturating_add(self, other: Self) -> Self {
        let nanos = self.nanos.saturating_add(other.nanos).max(Self::MIN.nanos);
        Self { nanos, format: self.format_with(other) }
    }

    /// Prints as with [`Quantity::checked_sub`].
    pub fn saturating_sub(self, other: Self) -> Self {
        self.saturating_add(Self { nanos: -other.nanos, format: other.format })
    }

    fn format_with(self, other: Self) -> Format {
        if self.is_zero() { other.format } else { self.format }
    }

    /// The amount in units if it prints with a binary suffix.
    fn binary_units(self) -> Option<u128> {
        let magnitude = self.nanos.unsigned_abs();
        let nanos_per_unit = NANOS_PER_UNIT.unsigned_abs();
        let binary = self.format == Format::BinarySi
            && magnitude >= SMALLEST_BINARY_UNIT * nanos_per_unit
            && magnitude.is_multiple_of(nanos_per_unit);
        binary.then(|| magnitude / nanos_per_unit)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Self::parse(text)
    }
}

/// The canonical form: no sign unless negative, no fraction, the largest suffix that allows that.
impl fmt::Display for Quantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return out.write_str("0");
        }
        let sign = if self.nanos < 0 { "-" } else { "" };
        if let Some(units) = self.binary_units() {
            let (mantissa, step) = take_factors(units, 1024, BINARY_SUFFIXES.len() - 1);
            return write!(out, "{sign}{mantissa}{}", BINARY_SUFFIXES[step]);
        }
        let magnitude = self.nanos.unsigned_abs();
        if self.format == Format::DecimalExponent {
            let (mantissa, step) = take_factors(magnitude, 1000, usize::MAX);
            return match 3 * step as i64 - NANO_DIGITS {
                0 => write!(out, "{sign}{mantissa}"),
                exponent => write!(out, "{sign}{mantissa}e{exponent}"),
            };
        }
        let (mantissa, step) = take_factors(magnitude, 1000, DECIMAL_SUFFIXES.len() - 1);
        write!(out, "{sign}{mantissa}{}", DECIMAL_SUFFIXES[step])
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

#[derive(Clone, Copy)]
enum Unit {
    /// Ten to this power, from a suffix.
    DecimalSi(i32),
    /// Two to this power, from a suffix.
    BinarySi(u32),
    /// Ten to this power, from an exponent.
    DecimalExponent(i32),
}

impl Unit {
    /// Whether Kubernetes accepts this unit without any digit before it, as zero. That depends on
    /// which units its parser handles without arbitrary precision.
    fn stands_alone(self) -> bool {
        match self {
            Self::DecimalSi(exponent) | Self::DecimalExponent(exponent) => exponent >= -9,
            Self::BinarySi(exponent) => exponent <= 40,
        }
    }
}

struct Parts<'a> {
    text: &'a str,
    negative: bool,
    /// Digits before the dot, without leading zeros.
    whole: &'a [u8],
    /// Digits after the dot.
    fraction: &'a [u8],
    /// True if there is any digit, even only a leading zero.
    has_digits: bool,
    /// Letters, then an optional sign, then optional digits; not validated yet.
    suffix: &'a str,
    suffix_at: usize,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Result<Self, QuantityError> {
        let bytes = text.as_bytes();
        let Some(first) = bytes.first() else {
            return Err(QuantityError::Empty);
        };
        let number_at = usize::from(is_sign(first));
        let whole_at = end_of_run(bytes, number_at, |byte| *byte == b'0');
        let whole_end = end_of_run(bytes, whole_at, u8::is_ascii_digit);
        let (fraction_at, suffix_at) = match bytes.get(whole_end) {
            Some(b'.') => (whole_end + 1, end_of_run(bytes, whole_end + 1, u8::is_ascii_digit)),
            _ => (whole_end, whole_end),
        };
        let letters_end = end_of_run(bytes, suffix_at, is_suffix_letter);
        let exponent_at = letters_end + usize::from(bytes.get(letters_end).is_some_and(is_sign));
        let end = end_of_run(bytes, exponent_at, u8::is_ascii_digit);
        // All before `end` is ASCII, so it is a character boundary.
        if let Some(found) = text.get(end..).and_then(|rest| rest.chars().next()) {
            return Err(QuantityError::UnexpectedCharacter { text: quote(text), found, at: end });
        }
        Ok(Self {
            text,
            negative: *first == b'-',
            whole: &bytes[whole_at..whole_end],
            fraction: &bytes[fraction_at..suffix_at],
            has_digits: whole_end > number_at || suffix_at > fraction_at,
            suffix: &text[suffix_at..],
            suffix_at,
        })
    }

    fn unit(&self) -> Result<Unit, QuantityError> {
        Ok(match self.suffix {
            "" => Unit::DecimalSi(0),
            "n" => Unit::DecimalSi(-9),
            "u" => Unit::DecimalSi(-6),
            "m" => Unit::DecimalSi(-3),
            "k" => Unit::DecimalSi(3),
            "M" => Unit::DecimalSi(6),
            "G" => Unit::DecimalSi(9),
            "T" => Unit::DecimalSi(12),
            "P" => Unit::DecimalSi(15),
            "E" => Unit::DecimalSi(18),
            "Ki" => Unit::BinarySi(10),
            "Mi" => Unit::BinarySi(20),
            "Gi" => Unit::BinarySi(30),
            "Ti" => Unit::BinarySi(40),
            "Pi" => Unit::BinarySi(50),
            "Ei" => Unit::BinarySi(60),
            _ => Unit::DecimalExponent(self.exponent()?),
        })
    }

    fn exponent(&self) -> Result<i32, QuantityError> {
        let (text, suffix, at) = (self.text, self.suffix, self.suffix_at);
        let unknown =
            || QuantityError::UnknownSuffix { text: quote(text), suffix: quote(suffix), at };
        let digits = suffix.strip_prefix(['e', 'E']).ok_or_else(unknown)?;
        match digits.parse::<i64>() {
            // Kubernetes parses 64 bits and keeps the lower half.
            Ok(exponent) => Ok(exponent as i32),
            Err(error) => Err(match error.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => {
                    QuantityError::ExponentOutOfRange {
                        text: quote(text),
                        exponent: quote(suffix),
                        at,
                    }
                }
                _ => unknown(),
            }),
        }
    }

    /// The magnitude times 10^exponent in nano-units, rounded up, at most [`MAX_MAGNITUDE`].
    fn times_ten_to(&self, exponent: i32) -> u128 {
        let fraction = match self.whole {
            [] => &self.fraction[end_of_run(self.fraction, 0, |byte| *byte == b'0')..],
            _ => self.fraction,
        };
        let digits = (self.whole.len() + fraction.len()) as i64;
        let shift = i64::from(exponent) + NANO_DIGITS - self.fraction.len() as i64;
        // The digits left of the nano-unit's decimal point; the first of them is not zero.
        let kept = digits + shift;
        if digits == 0 {
            return 0;
        }
        if kept <= 0 {
            return 1;
        }
        if kept > MAX_MAGNITUDE_DIGITS {
            return MAX_MAGNITUDE;
        }
        // There is a digit, so the zeros that `shift` appends are fewer than `kept`.
        let from_whole = self.whole.len().min(kept as usize);
        let from_fraction = fraction.len().min(kept as usize - from_whole);
        let (whole, whole_rest) = self.whole.split_at(from_whole);
        let (fraction, fraction_rest) = fraction.split_at(from_fraction);
        let number = append_digits(append_digits(0, whole), fraction);
        let inexact = whole_rest.iter().chain(fraction_rest).any(|digit| *digit != b'0');
        let scaled = match usize::try_from(shift) {
            Ok(zeros) => number.saturating_mul(POWERS_OF_TEN[zeros]),
            Err(_) => number,
        };
        scaled.saturating_add(u128::from(inexact)).min(MAX_MAGNITUDE)
    }

    /// The magnitude times 2^exponent in nano-units, rounded up, at most [`BINARY_CAP`].
    fn times_two_to(&self, exponent: u32) -> u128 {
        // Under 2^90, so ten times it fits.
        let unit = NANOS_PER_UNIT.unsigned_abs() << exponent;
        // Long multiplication from the last digit of the fraction. The carry is rounded down, and
        // any lost remainder rounds the total up.
        let mut carry = 0;
        let mut inexact = false;
        for digit in self.fraction.iter().rev() {
            let place = u128::from(digit - b'0') * unit + carry;
            carry = place / 10;
            inexact |= !place.is_multiple_of(10);
        }
        append_digits(0, self.whole)
            .saturating_mul(unit)
            .saturating_add(carry + u128::from(inexact))
            .min(BINARY_CAP)
    }
}

/// The number whose digits are those of `number` followed by `digits`, saturating.
fn append_digits(number: u128, digits: &[u8]) -> u128 {
    // Nineteen digits fit 64 bits, where multiplying is cheap.
    digits.chunks(19).fold(number, |number, chunk| {
        let tail = chunk.iter().fold(0, |tail, digit| tail * 10 + u64::from(digit - b'0'));
        number.saturating_mul(POWERS_OF_TEN[chunk.len()]).saturating_add(u128::from(tail))
    })
}

/// Divides by `factor` while that is exact, at most `limit` times. Returns the quotient and the
/// count. `number` is not zero.
fn take_factors(mut number: u128, factor: u128, limit: usize) -> (u128, usize) {
    let mut times = 0;
    while times < limit && number.is_multiple_of(factor) {
        number /= factor;
        times += 1;
    }
    (number, times)
}

fn divide_away_from_zero(nanos: i128, divisor: i128) -> i64 {
    let quotient = nanos / divisor;
    let rounded = if nanos % divisor == 0 { quotient } else { quotient + nanos.signum() };
    let limit = if nanos < 0 { i64::MIN } else { i64::MAX };
    i64::try_from(rounded).unwrap_or(limit)
}

/// The first position from `start` on whose byte is not accepted.
fn end_of_run(bytes: &[u8], start: usize, accept: impl Fn(&u8) -> bool) -> usize {
    let length = bytes[start..].iter().position(|byte| !accept(byte));
    length.map_or(bytes.len(), |length| start + length)
}

fn is_sign(byte: &u8) -> bool {
    matches!(byte, b'+' | b'-')
}

fn is_suffix_letter(byte: &u8) -> bool {
    matches!(
        byte,
        b'n' | b'u' | b'm' | b'k' | b'K' | b'M' | b'G' | b'T' | b'P' | b'E' | b'e' | b'i'
    )
}

/// Shortens text for an error.
fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

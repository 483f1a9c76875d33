//! Durations as kubectl prints them.

use jiff::Timestamp;
use serde_json::Value;

use super::UNKNOWN;
use crate::clock;

pub(super) fn since(time: &Value, now: Timestamp) -> String {
    clock::parse(time).map_or_else(|| UNKNOWN.to_owned(), |time| between(time, now))
}

/// How long it was from one instant to another.
pub(super) fn between(from: Timestamp, to: Timestamp) -> String {
    human(to.duration_since(from).as_secs())
}

pub(super) fn of(object: &Value, now: Timestamp) -> Value {
    Value::from(since(&object["metadata"]["creationTimestamp"], now))
}

fn human(seconds: i64) -> String {
    // Tolerate clocks that are slightly behind.
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    let two = |first: i64, first_unit: &str, second: i64, second_unit: &str| {
        if second == 0 {
            format!("{first}{first_unit}")
        } else {
            format!("{first}{first_unit}{second}{second_unit}")
        }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 192 {
        two(days, "d", hours % 24, "h")
    } else if days < 365 * 2 {
        format!("{days}d")
    } else if days < 365 * 8 {
        two(days / 365, "y", days % 365, "d")
    } else {
        format!("{}y", days / 365)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_parts_at_most() {
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (135, "2m15s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (86_400, "24h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (-5, "<invalid>"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(human(seconds), expected, "{seconds}");
        }
    }
}

//! Crontab schedules: five fields with lists, ranges, steps and names, and shorthands such as `@hourly`.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{ToSpan as _, Zoned};

/// Steps of the search for the next time before it gives up.
const STEPS_MAX: usize = 4_000;

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Minutes, hours, days and so on, each as a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Day of month and day of week are both restricted: either may match.
    any_day: bool,
    any_weekday: bool,
}

impl Schedule {
    pub(super) fn read(text: &str) -> Option<Self> {
        let text = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else { return None };
        let mut on_weekdays = field(weekdays, 0, 7, &DAYS)?;
        if on_weekdays & (1 << 7) != 0 {
            // Seven is Sunday too.
            on_weekdays = on_weekdays & !(1 << 7) | 1;
        }
        let free = |text: &str| text.starts_with('*') || text.starts_with('?');
        Some(Self {
            minutes: field(minutes, 0, 59, &[])?,
            hours: field(hours, 0, 23, &[])?,
            days: field(days, 1, 31, &[])?,
            months: field(months, 1, 12, &MONTHS)?,
            weekdays: on_weekdays,
            any_day: free(days),
            any_weekday: free(weekdays),
        })
    }

    fn is_on_day(&self, at: &DateTime) -> bool {
        let day = has(self.days, at.day());
        let weekday = has(self.weekdays, at.weekday().to_sunday_zero_offset());
        if self.any_day || self.any_weekday { day && weekday } else { day || weekday }
    }

    /// The first time after `after`; `None` if there is none within years.
    fn after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let start: Zoned = after.to_zoned(zone.clone());
        let mut at = start.datetime().with().second(0).subsec_nanosecond(0).build().ok()?;
        at = at.checked_add(1.minute()).ok()?;
        for _ in 0..STEPS_MAX {
            let next = if !has(self.months, at.month()) {
                at.first_of_month().with().hour(0).minute(0).build().ok()?.checked_add(1.month())
            } else if !self.is_on_day(&at) {
                at.with().hour(0).minute(0).build().ok()?.checked_add(1.day())
            } else if !has(self.hours, at.hour()) {
                at.with().minute(0).build().ok()?.checked_add(1.hour())
            } else if !has(self.minutes, at.minute()) {
                at.checked_add(1.minute())
            } else {
                // A time skipped by daylight saving moves to the next hour.
                let found = zone.to_timestamp(at).ok()?;
                if found > after {
                    return Some(found);
                }
                at.checked_add(1.minute())
            };
            at = next.ok()?;
        }
        None
    }

    /// The last time in (`from`, `now`], and the first after `now`.
    pub(super) fn last_and_next(
        &self,
        from: Timestamp,
        now: Timestamp,
        zone: &TimeZone,
    ) -> (Option<Timestamp>, Option<Timestamp>) {
        let next = self.after(now, zone);
        let mut last = None;
        // Of many missed times only the newest matter.
        let day = now.checked_sub(std::time::Duration::from_secs(86_400)).unwrap_or(from);
        let mut at = match self.after(from, zone) {
            Some(first) if first < day && self.after(day, zone) <= Some(now) => day,
            _ => from,
        };
        while let Some(time) = self.after(at, zone).filter(|time| *time <= now) {
            (last, at) = (Some(time), time);
        }
        (last, next)
    }
}

fn has(bits: u64, at: i8) -> bool {
    u32::try_from(at).is_ok_and(|at| bits & 1_u64.checked_shl(at).unwrap_or(0) != 0)
}

/// A list of ranges with steps, such as `1-5,10,*/15`.
fn field(text: &str, first: u32, last: u32, names: &[&str]) -> Option<u64> {
    let number = |text: &str| {
        let lower = text.to_ascii_lowercase();
        let named = names.iter().position(|name| *name == lower);
        let named = named.and_then(|at| u32::try_from(at).ok());
        // Months are counted from one, days of the week from zero.
        let named = named.map(|at| at + first);
        named.or_else(|| text.parse::<u32>().ok()).filter(|at| (first..=last).contains(at))
    };
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse::<u32>().ok().filter(|step| *step > 0)?),
            None => (part, 1),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" || range == "?" => (first, last),
            Some((from, to)) => (number(from)?, number(to)?),
            None if part.contains('/') => (number(range)?, last),
            None => (number(range)?, number(range)?),
        };
        if from > to {
            return None;
        }
        for at in (from..=to).step_by(usize::try_from(step).ok()?) {
            bits |= 1_u64 << at;
        }
    }
    Some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(schedule: &str, from: &str, zone: &str) -> Vec<String> {
        let schedule = Schedule::read(schedule).unwrap();
        let zone = TimeZone::get(zone).unwrap();
        let mut at: Timestamp = from.parse().unwrap();
        let mut found = Vec::new();
        while let Some(next) = schedule.after(at, &zone).filter(|_| found.len() < 3) {
            found.push(next.to_string());
            at = next;
        }
        found
    }

    #[test]
    fn fields_are_read_as_cron_reads_them() {
        for (schedule, expected) in [
            (
                "*/20 * * * *",
                ["2026-01-01T00:20:00Z", "2026-01-01T00:40:00Z", "2026-01-01T01:00:00Z"],
            ),
            (
                "5 4 * * sun",
                ["2026-01-04T04:05:00Z", "2026-01-11T04:05:00Z", "2026-01-18T04:05:00Z"],
            ),
            (
                "0 0 1 feb-mar *",
                ["2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z", "2027-02-01T00:00:00Z"],
            ),
            (
                "0 12 13 * 5",
                ["2026-01-02T12:00:00Z", "2026-01-09T12:00:00Z", "2026-01-13T12:00:00Z"],
            ),
            ("@hourly", ["2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z", "2026-01-01T03:00:00Z"]),
        ] {
            assert_eq!(times(schedule, "2026-01-01T00:00:00Z", "UTC"), expected, "{schedule}");
        }
        let berlin = times("30 8 * * *", "2026-06-01T00:00:00Z", "Europe/Berlin");
        assert_eq!(berlin[0], "2026-06-01T06:30:00Z");
    }

    #[test]
    fn nonsense_is_no_schedule_and_impossible_times_never_come() {
        for text in ["", "* * * *", "61 * * * *", "*/0 * * * *", "5-1 * * * *", "x * * * *"] {
            assert_eq!(Schedule::read(text), None, "{text:?}");
        }
        assert!(times("0 0 31 2 *", "2026-01-01T00:00:00Z", "UTC").is_empty());
    }
}

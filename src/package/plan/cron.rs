//! Cron lines as CronJobs read them (robfig/cron, with its messages): five fields, `@daily` and its like, or `@every 6h`.

use std::num::IntErrorKind;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};

/// A line that matches nothing in so many years is never due.
const YEARS: i16 = 5;

/// When something is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cron {
    /// At the minutes that a line matches.
    At(Line),
    /// A number of seconds after the last time.
    Every(i64),
}

/// The values that the fields of a line match, as bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both fields of days are restricted: a day has to match one of them.
    is_either_day: bool,
}

/// The values of a field, and the names of some.
struct Field {
    least: u64,
    most: u64,
    names: &'static [&'static str],
}

const MINUTES: Field = Field { least: 0, most: 59, names: &[] };
const HOURS: Field = Field { least: 0, most: 23, names: &[] };
const DAYS: Field = Field { least: 1, most: 31, names: &[] };
const MONTHS: Field = Field {
    least: 1,
    most: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: Field =
    Field { least: 0, most: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

impl Cron {
    /// Parses a line.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it, as Kubernetes does.
    pub fn parse(line: &str) -> Result<Self, String> {
        if let Some(interval) = line.strip_prefix("@every ") {
            let seconds = go_seconds(interval);
            return Ok(Self::Every(
                seconds.map_err(|why| format!("failed to parse duration {line}: {why}"))?.max(1),
            ));
        }
        let line = match line {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other if other.starts_with('@') => return Err(format!("unrecognized descriptor: {other}")),
            other => other,
        };
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
        };
        let (minutes, _) = MINUTES.parse(minutes)?;
        let (hours, _) = HOURS.parse(hours)?;
        let (days, is_any_day) = DAYS.parse(days)?;
        let (months, _) = MONTHS.parse(months)?;
        let (weekdays, is_any_weekday) = WEEKDAYS.parse(weekdays)?;
        let is_either_day = !is_any_day && !is_any_weekday;
        Ok(Self::At(Line { minutes, hours, days, months, weekdays, is_either_day }))
    }

    /// The first time after `time`, for lines in the local time of a zone.
    pub fn after(&self, time: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Self::At(line) => line.after(time, zone),
            Self::Every(seconds) => Timestamp::from_second(time.as_second().checked_add(*seconds)?).ok(),
        }
    }
}

impl Line {
    /// The next minute that matches. A local time that a change of the clock skips is never due, and one that it repeats
    /// is due twice.
    fn after(&self, time: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        // Such as that of `, * * * *`: going through all minutes would take long.
        if self.minutes == 0 || self.hours == 0 {
            return None;
        }
        let minute = time.as_second().div_euclid(60).checked_add(1)?;
        let mut at = Timestamp::from_second(minute.checked_mul(60)?).ok()?.to_zoned(zone.clone());
        let last = at.year().checked_add(YEARS)?;
        while at.year() <= last {
            let next = if !has(self.months, at.month()) {
                at.last_of_month().and_then(|at| at.tomorrow()).and_then(|at| at.start_of_day())
            } else if !self.is_day(&at) {
                at.tomorrow().and_then(|at| at.start_of_day())
            } else if !has(self.hours, at.hour()) {
                at.checked_add(SignedDuration::from_mins(60 - i64::from(at.minute())))
            } else if !has(self.minutes, at.minute()) {
                at.checked_add(SignedDuration::from_mins(1))
            } else {
                return Some(at.timestamp());
            };
            at = next.ok()?;
        }
        None
    }

    fn is_day(&self, at: &Zoned) -> bool {
        let day = has(self.days, at.day());
        let weekday = has(self.weekdays, at.weekday().to_sunday_zero_offset());
        if self.is_either_day { day || weekday } else { day && weekday }
    }
}

fn has(bits: u64, value: i8) -> bool {
    (bits >> value) & 1 == 1
}

impl Field {
    /// The values of a list of ranges, and whether one of them is `*`.
    fn parse(&self, text: &str) -> Result<(u64, bool), String> {
        let (mut bits, mut has_star) = (0, false);
        for range in text.split(',').filter(|range| !range.is_empty()) {
            let (of_range, is_star) = self.range(range)?;
            bits |= of_range;
            has_star |= is_star;
        }
        Ok((bits, has_star))
    }

    /// The values of `*`, `3`, `1-5`, `*/2`, `10/5` or `1-5/2`.
    fn range(&self, text: &str) -> Result<(u64, bool), String> {
        let mut parts = text.split('/');
        let mut ends = parts.next().unwrap_or_default().split('-');
        let (first, second) = (ends.next().unwrap_or_default(), ends.next());
        let mut is_star = first == "*" || first == "?";
        let (low, mut high) = if is_star {
            (self.least, self.most)
        } else {
            let low = self.value(first)?;
            match second {
                Some(_) if ends.next().is_some() => return Err(format!("too many hyphens: {text}")),
                Some(second) => (low, self.value(second)?),
                None => (low, low),
            }
        };
        let mut step = 1;
        if let Some(given) = parts.next() {
            if parts.next().is_some() {
                return Err(format!("too many slashes: {text}"));
            }
            step = integer(given)?;
            // `10/5` is `10-59/5`.
            if second.is_none() {
                high = self.most;
            }
            is_star &= step <= 1;
        }
        let Self { least, most, .. } = self;
        if low < *least {
            return Err(format!("beginning of range ({low}) below minimum ({least}): {text}"));
        }
        if high > *most {
            return Err(format!("end of range ({high}) above maximum ({most}): {text}"));
        }
        if low > high {
            return Err(format!("beginning of range ({low}) beyond end of range ({high}): {text}"));
        }
        if step == 0 {
            return Err(format!("step of range should be a positive number: {text}"));
        }
        let (mut bits, mut at) = (0, low);
        while at <= high {
            bits |= 1 << at;
            at = at.saturating_add(step);
        }
        Ok((bits, is_star))
    }

    fn value(&self, text: &str) -> Result<u64, String> {
        let named = self.names.iter().zip(self.least..).find(|(name, _)| name.eq_ignore_ascii_case(text));
        named.map_or_else(|| integer(text), |(_, value)| Ok(value))
    }
}

fn integer(text: &str) -> Result<u64, String> {
    match text.parse::<i64>() {
        Ok(number) => {
            u64::try_from(number).map_err(|_| format!("negative number ({number}) not allowed: {text}"))
        }
        Err(error) => {
            let why = match error.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
                _ => "invalid syntax",
            };
            Err(format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {why}"))
        }
    }
}

/// The whole seconds of a duration as Go reads it: `1h30m`, `1.5h`, `-2m`.
fn go_seconds(text: &str) -> Result<i64, String> {
    const UNITS: [(&str, i128); 8] = [
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("μs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    let bad = || format!("time: invalid duration {text:?}");
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if unsigned == "0" {
        return Ok(0);
    }
    let mut nanos: i128 = 0;
    let mut rest = unsigned;
    while !rest.is_empty() || rest.len() == unsigned.len() {
        let (whole, after) = digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), digits);
        if whole.is_empty() && fraction.is_empty() {
            return Err(bad());
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {text:?}"));
        }
        let (_, factor) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| format!("time: unknown unit {unit:?} in duration {text:?}"))?;
        // 18 digits of a fraction of an hour are more than its nanoseconds have.
        let fraction = format!("{fraction:0<18.18}");
        let number = |digits: &str| digits.parse::<i64>().map(i128::from).map_err(|_| bad());
        let whole = if whole.is_empty() { 0 } else { number(whole)? };
        nanos += whole * factor + number(&fraction)? * factor / 1_000_000_000_000_000_000;
        rest = after;
    }
    let nanos = i64::try_from(nanos).map_err(|_| bad())?;
    Ok(if text.starts_with('-') { -nanos } else { nanos } / 1_000_000_000)
}

/// The digits that a text begins with, and what follows.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_refused_with_the_messages_of_kubernetes() {
        for (line, expected) in [
            ("", "expected exactly 5 fields, found 0: []"),
            ("0 3 * *", "expected exactly 5 fields, found 4: [0 3 * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* 24 * * *", "end of range (24) above maximum (23): 24"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("* * * * 5-3", "beginning of range (5) beyond end of range (3): 5-3"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("*/-1 * * * *", "negative number (-1) not allowed: -1"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("a * * * *", "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax"),
            ("* * L * *", "failed to parse int from L: strconv.Atoi: parsing \"L\": invalid syntax"),
            (
                "99999999999999999999 * * * *",
                "failed to parse int from 99999999999999999999: strconv.Atoi: parsing \"99999999999999999999\": value out of range",
            ),
            ("@reboot", "unrecognized descriptor: @reboot"),
            ("@every", "unrecognized descriptor: @every"),
            ("@every x", "failed to parse duration @every x: time: invalid duration \"x\""),
            ("@every ", "failed to parse duration @every : time: invalid duration \"\""),
            ("@every 5", "failed to parse duration @every 5: time: missing unit in duration \"5\""),
            ("@every 1d", "failed to parse duration @every 1d: time: unknown unit \"d\" in duration \"1d\""),
        ] {
            assert_eq!(Cron::parse(line).unwrap_err(), expected, "{line}");
        }
    }

    #[test]
    fn lines_match_minutes_of_local_time() {
        for (line, zone, time, expected) in [
            ("0 * * * *", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
            ("? * * * ?", "UTC", "2026-01-01T00:00:30.5Z", "2026-01-01T00:01:00Z"),
            ("10/20 * * * *", "UTC", "2026-01-01T00:30:00Z", "2026-01-01T00:50:00Z"),
            ("1,3-4,8-59/70 * * * *", "UTC", "2026-01-01T00:04:00Z", "2026-01-01T00:08:00Z"),
            ("0 0 1 FEB *", "UTC", "2026-02-01T00:00:00Z", "2027-02-01T00:00:00Z"),
            ("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            // One of two restricted fields of days has to match, and both if one is `*`.
            ("0 0 13 * Fri", "UTC", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
            ("0 0 13 * *", "UTC", "2026-01-01T00:00:00Z", "2026-01-13T00:00:00Z"),
            ("0 0 */2 * mon", "UTC", "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"),
            ("0 3 * * *", "Europe/Rome", "2026-07-01T00:00:00Z", "2026-07-01T01:00:00Z"),
            // 02:30 does not exist on 2026-03-29, and is twice on 2026-10-25.
            ("30 2 * * *", "Europe/Rome", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z"),
            ("30 2 * * *", "Europe/Rome", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
            // Midnight does not exist on 2026-04-24.
            ("0 * * * *", "Africa/Cairo", "2026-04-23T21:30:00Z", "2026-04-23T22:00:00Z"),
            ("5 1 24 4 *", "Africa/Cairo", "2026-04-20T00:00:00Z", "2026-04-23T22:05:00Z"),
            ("@weekly", "UTC", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
            ("@every 1h30m", "UTC", "2026-01-01T00:00:07Z", "2026-01-01T01:30:07Z"),
            ("@every 1.5s", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
            ("@every -5m", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
        ] {
            let zone = TimeZone::get(zone).unwrap();
            let found = Cron::parse(line).unwrap().after(time.parse().unwrap(), &zone);
            assert_eq!(found.map(|at| at.to_string()).as_deref(), Some(expected), "{line} after {time}");
        }
        for line in ["0 0 31 2 *", ", * * * *"] {
            let found = Cron::parse(line).unwrap().after(Timestamp::UNIX_EPOCH, &TimeZone::UTC);
            assert_eq!(found, None, "{line}");
        }
    }
}

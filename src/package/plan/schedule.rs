//! Schedules: a cron line with five fields, or `@every 6h`.

use std::time::Duration;

use jiff::tz::TimeZone;

use super::cron::Cron;
use super::duration::{self, parse_duration};

/// The shortest interval, because the name of a scheduled run contains its minute.
const SHORTEST: Duration = Duration::from_secs(60);

/// The problem of a schedule, and what to do.
pub fn problem(schedule: &str) -> Option<(String, &'static str)> {
    const HELP: &str =
        "write five fields (minute, hour, day of month, month, day of week) such as 0 3 * * *, or @every 6h";
    if let Some(interval) = schedule.strip_prefix("@every ") {
        return match parse_duration(interval.trim()) {
            Err(message) => Some((message, duration::HELP)),
            Ok(interval) if interval < SHORTEST => {
                Some((format!("`{schedule}` is more often than once a minute"), "write at least @every 1m"))
            }
            Ok(_) => None,
        };
    }
    let wrong = |why: &str| Some((format!("`{schedule}` is not a schedule: {why}"), HELP));
    match schedule.split_whitespace().count() {
        5 => Cron::parse(schedule).err().and_then(|why| wrong(&why)),
        count => wrong(&format!("it has {count} fields")),
    }
}

/// The problem of a time zone, and what to do.
pub fn zone_problem(zone: &str) -> Option<(String, &'static str)> {
    if TimeZone::get(zone).is_ok() {
        return None;
    }
    Some((format!("`{zone}` is not a time zone"), "write a name of the IANA database such as Europe/Rome"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_cron_lines_or_intervals() {
        for schedule in ["0 3 * * *", "*/5 * * * 1-5", "0 0 1,15 JAN SUN", "@every 6h", "@every 1h30m"] {
            assert_eq!(problem(schedule), None, "{schedule}");
        }
        for schedule in [
            "",
            "0 3 * *",
            "0 3 * * * *",
            "61 3 * * *",
            "0 3 * * 7",
            "@daily",
            "@every 30s",
            "@every x",
            "a b c d e",
        ] {
            assert!(problem(schedule).is_some(), "{schedule}");
        }
        for zone in ["UTC", "Europe/Rome", "America/New_York"] {
            assert_eq!(zone_problem(zone), None, "{zone}");
        }
        for zone in ["", "Europe/Roma", "Rome Italy"] {
            assert!(zone_problem(zone).is_some(), "{zone}");
        }
    }
}

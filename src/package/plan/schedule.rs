//! Schedules: a cron line with five fields, or `@every 6h`.

use std::time::Duration;

use super::duration::{self, parse_duration};

/// The shortest interval, because the name of a scheduled run contains its minute.
const SHORTEST: Duration = Duration::from_secs(60);

/// The five fields of a line that may be a word such as `@daily`.
pub fn cron_fields(line: &str) -> &str {
    match line {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        other => other,
    }
}

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
        5 => match cronexpr::parse_crontab(&format!("{schedule} UTC")) {
            Ok(_) => None,
            Err(error) => {
                let text = error.to_string();
                wrong(text.lines().next_back().unwrap_or_default().trim_start_matches([' ', '^', '\t']))
            }
        },
        count => wrong(&format!("it has {count} fields")),
    }
}

/// The problem of a time zone, and what to do.
pub fn zone_problem(zone: &str) -> Option<(String, &'static str)> {
    let is_name = !zone.is_empty() && !zone.contains(char::is_whitespace);
    if is_name && cronexpr::parse_crontab(&format!("* * * * * {zone}")).is_ok() {
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
        for schedule in
            ["", "0 3 * *", "0 3 * * * *", "61 3 * * *", "@daily", "@every 30s", "@every x", "a b c d e"]
        {
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

//! When a schedule is due.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::package::plan::cron::Cron;

/// The most by which the runs of instances whose schedules fall on one minute are spread.
const SPREAD: Duration = Duration::from_secs(30);
/// A clock that is set while we sleep is noticed within this time.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(60 * 60);
/// How far back a missed run is looked for: the first window with one counts.
const WINDOWS: [i64; 4] = [60 * 60, 24 * 60 * 60, 32 * 24 * 60 * 60, 4 * 366 * 24 * 60 * 60];

/// A cron line, or an interval.
#[derive(Debug, Clone)]
pub enum Schedule {
    /// At the minutes that a cron line matches, in the local time of a zone.
    Cron(Cron, TimeZone),
    /// At intervals of this number of seconds since the instance was created.
    Every(i64),
}

/// A point in time that a schedule has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The newest point in time that was not used yet, if its run may start now.
    pub at: Option<Timestamp>,
    /// When to look again; `None` if it is never due.
    pub wake: Option<Duration>,
}

impl Schedule {
    /// Parses a cron line with five fields, `@daily` and its like, or `@every 6h`.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the line or the time zone.
    pub fn parse(line: &str, time_zone: Option<&str>) -> Result<Self, String> {
        let line = line.trim();
        if let Some(interval) = line.strip_prefix("@every ") {
            let interval = crate::package::plan::parse_duration(interval.trim())?;
            return match i64::try_from(interval.as_secs()) {
                Ok(seconds) if seconds > 0 => Ok(Self::Every(seconds)),
                _ => Err("`@every` needs at least one second".into()),
            };
        }
        let zone = time_zone.unwrap_or("UTC");
        let zone = TimeZone::get(zone)
            .map_err(|_| format!("there is no time zone `{zone}`: write for example Europe/Rome"))?;
        let cron = Cron::parse(line).map_err(|why| {
            format!("`{line}` is not a cron line: {why}; write five fields such as 0 3 * * *, or @every 6h")
        })?;
        Ok(Self::Cron(cron, zone))
    }

    /// The first point in time after `time`.
    fn after(&self, time: Timestamp, anchor: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron(cron, zone) => cron.after(time, zone),
            Self::Every(seconds) => {
                let passed = (time.as_second() - anchor.as_second()).div_euclid(*seconds);
                Timestamp::from_second(anchor.as_second() + (passed + 1) * seconds).ok()
            }
        }
    }

    /// The newest point in time up to `time`.
    fn before(&self, time: Timestamp, anchor: Timestamp) -> Option<Timestamp> {
        if let Self::Every(seconds) = self {
            let passed = (time.as_second() - anchor.as_second()).div_euclid(*seconds);
            let found = Timestamp::from_second(anchor.as_second() + passed * seconds).ok();
            return found.filter(|_| passed > 0);
        }
        for window in WINDOWS {
            let mut from = time.checked_sub(SignedDuration::from_secs(window)).ok()?;
            let mut found = None;
            while let Some(next) = self.after(from, anchor).filter(|next| *next <= time) {
                (from, found) = (next, Some(next));
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Whether a run is due. `last` is the time of its newest run, `created` that of the instance: earlier points in time
    /// are not missed. Of several missed ones, the newest counts, up to its deadline. `share` spreads the instances, 0 to 1.
    pub fn due(
        &self,
        last: Option<Timestamp>,
        created: Timestamp,
        now: Timestamp,
        deadline: Option<Duration>,
        share: f64,
    ) -> Due {
        let spread = match self {
            Self::Cron(..) => deadline.map_or(SPREAD, |deadline| SPREAD.min(deadline / 2)).mul_f64(share),
            Self::Every(_) => Duration::ZERO,
        };
        let spread = SignedDuration::try_from(spread).unwrap_or_default();
        let now_spread = now.checked_sub(spread).unwrap_or(now);
        let since = last.map_or(created, |last| last.max(created));
        let missed = self.before(now_spread, created).filter(|at| *at > since);
        let at = missed.filter(|at| {
            deadline.is_none_or(|deadline| {
                let late = now.duration_since(*at);
                late <= SignedDuration::try_from(deadline).unwrap_or(SignedDuration::MAX)
            })
        });
        let next = self.after(now_spread, created).and_then(|next| next.checked_add(spread).ok());
        let wake = next.map(|next| Duration::try_from(next.duration_since(now)).unwrap_or_default());
        Due { at, wake: wake.map(|wake| wake.min(LOOK_AGAIN)) }
    }
}

/// The time after which the next run of a schedule is due: that of the newest run that is not in the future.
/// Runs in the future were created while a clock was ahead, and are no reason to wait. If the clock is
/// behind, so that all runs are in the future, earlier runs may have been pruned, and nothing is due.
pub fn last_scheduled(runs: impl IntoIterator<Item = Timestamp>, now: Timestamp) -> Option<Timestamp> {
    let (past, future): (Vec<_>, Vec<_>) = runs.into_iter().partition(|at| *at <= now);
    past.into_iter().max().or_else(|| future.into_iter().min())
}

/// The name of the `PlanRun` of a schedule: by its minute, or its second.
pub fn scheduled_name(instance: &str, plan: &str, at: Timestamp) -> String {
    let seconds = at.as_second();
    let time = if seconds % 60 == 0 { format!("{}", seconds / 60) } else { format!("{seconds}s") };
    scheduled_prefix(instance, plan) + &time
}

/// How the names of the scheduled runs of a plan begin.
pub fn scheduled_prefix(instance: &str, plan: &str) -> String {
    let start = format!("{instance}-{plan}");
    let start = start.get(..220).unwrap_or(&start).trim_end_matches(['-', '.']);
    format!("{start}-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn due(
        line: &str,
        zone: Option<&str>,
        last: Option<&str>,
        now: &str,
        deadline: Option<u64>,
    ) -> Option<String> {
        let schedule = Schedule::parse(line, zone).unwrap();
        let created = at("2026-01-01T00:00:30Z");
        let due = schedule.due(last.map(at), created, at(now), deadline.map(Duration::from_secs), 0.0);
        due.at.map(|at| at.to_string())
    }

    #[test]
    fn newest_missed_run_is_due_once_within_its_deadline() {
        let three = "2026-01-10T03:00:00Z";
        for (line, zone, last, now, deadline, expected) in [
            ("0 3 * * *", None, None, "2026-01-10T03:00:00Z", None, Some(three)),
            ("0 3 * * *", None, None, "2026-01-10T12:00:00Z", None, Some(three)),
            ("0 3 * * *", None, None, "2026-01-10T12:00:00Z", Some(3600), None),
            ("0 3 * * *", None, None, "2026-01-10T03:59:00Z", Some(3600), Some(three)),
            ("0 3 * * *", None, Some(three), "2026-01-10T12:00:00Z", None, None),
            ("0 3 * * *", None, Some("2026-01-02T03:00:00Z"), "2026-01-10T12:00:00Z", None, Some(three)),
            // The clock was set back by a day.
            ("0 3 * * *", None, Some(three), "2026-01-09T12:00:00Z", None, None),
            // Nothing is due before the instance was created.
            ("0 0 * * *", None, None, "2026-01-01T10:00:00Z", None, None),
            ("@every 6h", None, None, "2026-01-01T06:00:29Z", None, None),
            ("@every 6h", None, None, "2026-01-01T13:00:00Z", None, Some("2026-01-01T12:00:30Z")),
            (
                "0 3 * * *",
                Some("Europe/Rome"),
                None,
                "2026-07-10T02:00:00Z",
                None,
                Some("2026-07-10T01:00:00Z"),
            ),
            (
                "0 3 * * *",
                Some("Europe/Rome"),
                None,
                "2026-01-10T02:00:00Z",
                None,
                Some("2026-01-10T02:00:00Z"),
            ),
            ("*/5 * * * *", None, None, "2026-01-10T02:04:00Z", None, Some("2026-01-10T02:00:00Z")),
            ("@yearly", None, None, "2026-12-10T02:04:00Z", None, None),
            ("0 0 1 6 *", None, None, "2026-12-10T02:04:00Z", None, Some("2026-06-01T00:00:00Z")),
        ] {
            let found = due(line, zone, last, now, deadline);
            assert_eq!(found.as_deref(), expected, "{line} {zone:?} {last:?} {now}");
        }
    }

    #[test]
    fn runs_of_a_clock_that_was_ahead_are_not_awaited() {
        let [one, two, day] =
            ["2026-01-10T01:00:00Z", "2026-01-10T02:00:00Z", "2026-01-11T02:00:00Z"].map(at);
        for (runs, now, expected) in [
            (vec![one, two], day, Some(two)),
            (vec![one, day], two, Some(one)),
            (vec![two, day], one, Some(two)),
            (vec![], day, None),
        ] {
            assert_eq!(last_scheduled(runs.clone(), now), expected, "{runs:?} {now}");
        }
    }

    #[test]
    fn scheduled_runs_of_instances_are_spread_over_time() {
        let schedule = Schedule::parse("0 3 * * *", None).unwrap();
        let created = at("2026-01-01T00:00:00Z");
        let due = |share, now| schedule.due(None, created, at(now), None, share);
        assert_eq!(due(0.5, "2026-01-01T03:00:00Z").at, None);
        assert_eq!(due(0.5, "2026-01-01T03:00:00Z").wake, Some(Duration::from_secs(15)));
        assert!(due(0.5, "2026-01-01T03:00:15Z").at.is_some());
    }

    #[test]
    fn invalid_schedules_are_explained() {
        for (line, zone, part) in [
            ("0 3 * *", None, "expected exactly 5 fields, found 4"),
            ("61 3 * * *", None, "is not a cron line: end of range (61) above maximum (59)"),
            ("0 3 * * *", Some("Rome"), "there is no time zone `Rome`"),
            ("@every", None, "unrecognized descriptor: @every"),
            ("@every 0s", None, "at least one second"),
            ("@every x", None, "x"),
        ] {
            let error = Schedule::parse(line, zone).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn names_contain_the_minute_or_the_second() {
        assert_eq!(scheduled_name("x", "backup", at("1970-01-01T01:00:00Z")), "x-backup-60");
        assert_eq!(scheduled_name("x", "backup", at("1970-01-01T01:00:01Z")), "x-backup-3601s");
    }
}

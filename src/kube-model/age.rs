//! Ages in the notation of kubectl.

use jiff::Timestamp;

/// The time since an RFC 3339 time, in kubectl's notation: `45s`, `3m20s`, `5h12m`, `4d`.
pub fn age(now: Timestamp, since: Option<&str>) -> String {
    let Some(since) = since.and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "<unknown>".to_owned();
    };
    duration(now.as_second() - since.as_second())
}

/// A number of seconds in kubectl's notation.
pub fn duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: i64, unit: char, small: i64, rest: char| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{rest}"),
    };
    match seconds {
        // The clocks of two machines may differ by a second.
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_formatted_as_in_kubectl() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let before = |seconds: i64| {
            let then = Timestamp::from_second(now.as_second() - seconds).unwrap();
            age(now, Some(&then.to_string()))
        };
        let (hour, day) = (3600, 86_400);
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (600, "10m"),
            (3 * hour - 1, "179m"),
            (3 * hour, "3h"),
            (5 * hour + 720, "5h12m"),
            (8 * hour, "8h"),
            (47 * hour, "47h"),
            (2 * day, "2d"),
            (3 * day + 5 * hour, "3d5h"),
            (8 * day, "8d"),
            (729 * day, "729d"),
            (730 * day, "2y"),
            (735 * day, "2y5d"),
            (9 * 365 * day, "9y"),
        ] {
            assert_eq!(before(seconds), expected, "{seconds}");
        }
        assert_eq!(age(now, None), "<unknown>");
        assert_eq!(age(now, Some("yesterday")), "<unknown>");
    }
}

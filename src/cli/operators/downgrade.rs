//! Downgrades: a revision of a lower version than the active one.

use semver::Version;
use serde_json::Value;

use crate::cli::out;

/// The message for people if a version is lower than the active one of an `Operator`.
pub(super) fn of(live: &Value, version: &str) -> Option<String> {
    let active = live["status"]["version"].as_str()?;
    let is_lower = Version::parse(version).ok()? < Version::parse(active).ok()?;
    is_lower.then(|| {
        format!(
            "this is a downgrade from {active} to {version}: what the lower version does not know in specs, statuses and facts it \
             ignores, or the CRD refuses it"
        )
    })
}

/// Prints a warning about a downgrade.
pub(super) fn announce(live: &Value, version: &str) {
    if let Some(words) = of(live, version) {
        out::note(format!("warning: {}", out::printable(&words)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_lower_version_is_a_downgrade() {
        let live = json!({"status": {"version": "0.10.0"}});
        for (version, is_lower) in
            [("0.9.0", true), ("0.10.0", false), ("0.10.1", false), ("0.10.0-rc.1", true), ("x", false)]
        {
            assert_eq!(of(&live, version).is_some(), is_lower, "{version}");
        }
        assert_eq!(of(&json!({}), "0.1.0"), None);
    }
}

//! The versions of Kubernetes that a package supports. The server's version has no patch number
//! (`Cluster::version`), so a range includes a minor version if it includes any patch of it.

use semver::{Version, VersionReq};

use super::Package;

/// The minor versions of Kubernetes 1 that are considered: from the oldest that Operetta supports to far
/// beyond the newest.
const MINORS: std::ops::Range<u64> = 30..1_000;

impl Package {
    /// The reason why the package does not support a server of this version, such as `1.36`. A version that
    /// is not a number is never refused.
    pub fn refuses_kubernetes(&self, server: &str) -> Option<String> {
        let range = self.kubernetes.as_ref()?;
        let (major, minor) = server.split_once('.')?;
        let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
        (!includes(range, major, minor)).then(|| {
            format!(
                "the package {} {} requires Kubernetes {range}, and this cluster has {server}: use a version of the package for \
                 it, or another cluster",
                self.name, self.version
            )
        })
    }
}

/// Whether a range includes any version of Kubernetes that Operetta supports.
pub(super) fn is_possible(range: &VersionReq) -> bool {
    MINORS.into_iter().any(|minor| includes(range, 1, minor))
}

fn includes(range: &VersionReq, major: u64, minor: u64) -> bool {
    let named = range.comparators.iter().filter_map(|comparator| comparator.patch);
    // The result can change only at patches that the range names.
    let around = named.flat_map(|patch| [patch, patch.saturating_add(1)]);
    [0, u64::MAX].into_iter().chain(around).any(|patch| range.matches(&Version::new(major, minor, patch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_includes_minor_version_if_any_patch_matches() {
        for (range, minor, expected) in [
            (">=1.30", 36, true),
            (">=1.37", 36, false),
            ("<1.36", 36, false),
            ("<=1.36", 36, true),
            (">=1.36.4", 36, true),
            ("<1.36.4", 36, true),
            ("=1.36.4", 36, true),
            (">1.36.2, <1.36.5", 36, true),
            (">1.36.2, <1.36.3", 36, false),
            ("~1.35.2", 36, false),
            ("^1.30", 36, true),
            ("*", 36, true),
            ("<1.29.9", 36, false),
        ] {
            assert_eq!(includes(&range.parse().unwrap(), 1, minor), expected, "{range}");
        }
        assert!(is_possible(&">=1.99".parse().unwrap()));
        assert!(!is_possible(&"<1.30".parse().unwrap()) && !is_possible(&">=2".parse().unwrap()));
    }
}

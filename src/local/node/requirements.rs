//! The requirements of a real node, which are checked before anything is started.

use std::path::PathBuf;

use crate::error::Error;
use crate::tools::Environment;

/// The folders of system programs, which may not be in the PATH of a user.
pub(crate) const SYSTEM_PATHS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// The required programs, each with the Debian package that contains it.
const PROGRAMS: [(&str, &str); 7] = [
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("iptables-restore", "iptables"),
    ("ip", "iproute2"),
    ("mount", "mount"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
];

/// Checks this machine, and returns the path of runc.
pub(crate) fn check(environment: &Environment) -> Result<PathBuf, Error> {
    let found = |program: &str| {
        let system = || {
            SYSTEM_PATHS.iter().map(|folder| PathBuf::from(folder).join(program)).find(|path| path.is_file())
        };
        environment.which(program).or_else(system)
    };
    let missing = missing(
        cfg!(target_os = "linux"),
        rustix::process::geteuid().is_root(),
        &std::fs::read_to_string("/proc/filesystems").unwrap_or_default(),
        |program| found(program).is_some(),
    );
    match (found(PROGRAMS[0].0), missing.is_empty()) {
        (Some(runc), true) => Ok(runc),
        _ => Err(Error::NodeRequirements { missing }),
    }
}

/// The missing requirements, each with a solution.
fn missing(is_linux: bool, is_root: bool, filesystems: &str, has: impl Fn(&str) -> bool) -> Vec<String> {
    if !is_linux {
        return vec!["Linux: only Linux runs containers".into()];
    }
    let mut missing = Vec::new();
    if !is_root {
        missing.push("root: run it as root, for namespaces, mounts and interfaces".to_owned());
    }
    if !filesystems.split_whitespace().any(|word| word == "overlay") {
        missing.push("the overlay file system in the kernel: modprobe overlay".into());
    }
    for (program, package) in PROGRAMS {
        if !has(program) {
            missing.push(format!("{program}: apt-get install {package}"));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_parts_are_named_with_their_packages() {
        let overlay = "nodev\toverlay\n\text4\n";
        assert!(missing(true, true, overlay, |_| true).is_empty());
        let all = missing(true, false, "\text4\n", |program| program != "runc");
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all[0].starts_with("root:") && all[1].contains("modprobe overlay"));
        assert_eq!(all[2], "runc: apt-get install runc");
        assert_eq!(missing(false, true, overlay, |_| true).len(), 1);
    }
}

//! How much memory this process takes and may take.

use std::fs::read_to_string;

/// Resident memory in bytes. `None` where the system does not tell it.
pub(crate) fn resident() -> Option<usize> {
    let statm = read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size()))
}

/// The memory of the machine, or of the container, in bytes. `None` where the system does not tell it.
pub(crate) fn limit() -> Option<usize> {
    let machine = || {
        let text = read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1 << 10)
    };
    let container = || read_to_string("/sys/fs/cgroup/memory.max").ok()?.trim().parse().ok();
    machine().into_iter().chain(container()).min()
}

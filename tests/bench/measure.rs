//! Measurements of processes and of the machine, as Linux reports them.

use std::fs;
use std::time::Duration;

use crate::support::ControlPlane;
use operetta::local::Component;
use serde::Serialize;

use crate::Result;

/// Ticks a second in `/proc/*/stat`: `USER_HZ`, the same on every machine that Linux supports today.
const TICKS: f64 = 100.0;

/// CPU seconds by process.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Cpu {
    /// `operetta run`; 0 if none runs.
    pub(crate) manager: f64,
    /// kube-apiserver.
    pub(crate) apiserver: f64,
    /// etcd.
    pub(crate) etcd: f64,
    /// kube-controller-manager, which collects garbage and creates endpoints for the Services.
    pub(crate) controllers: f64,
    /// This process: the bare client, or the watch for instances that become Ready.
    pub(crate) client: f64,
    /// All other processes of the machine, and time that the hypervisor gave to others. This disturbs the
    /// measurement.
    pub(crate) others: f64,
}

impl Cpu {
    /// CPU seconds up to now. `others` is that of the whole machine until [`Self::since`] is called.
    pub(crate) fn now(plane: &ControlPlane, manager: Option<u32>) -> Result<Self> {
        let of = |component| plane.pid(component).map_or(Ok(0.0), cpu_seconds);
        Ok(Self {
            manager: manager.map_or(Ok(0.0), cpu_seconds)?,
            apiserver: of(Component::ApiServer)?,
            etcd: of(Component::Etcd)?,
            controllers: of(Component::ControllerManager)?,
            client: cpu_seconds(std::process::id())?,
            others: machine_seconds()?,
        })
    }

    /// CPU seconds between two moments.
    pub(crate) fn since(self, before: Self) -> Self {
        let mut used = Self {
            manager: self.manager - before.manager,
            apiserver: self.apiserver - before.apiserver,
            etcd: self.etcd - before.etcd,
            controllers: self.controllers - before.controllers,
            client: self.client - before.client,
            others: 0.0,
        };
        let known = used.manager + used.apiserver + used.etcd + used.controllers + used.client;
        used.others = (self.others - before.others - known).max(0.0);
        used
    }
}

/// CPU seconds of a process, including its threads.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    // utime and stime are the 14th and 15th field; `rest` begins with the state, which is the 3rd.
    let ticks: Vec<f64> = rest.split(' ').skip(11).take(2).filter_map(|n| n.parse().ok()).collect();
    if ticks.len() != 2 {
        return Err(format!("{path} is not understood").into());
    }
    Ok(ticks.iter().sum::<f64>() / TICKS)
}

/// CPU seconds of the whole machine, without idle time.
fn machine_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat").map_err(|e| format!("/proc/stat: {e}"))?;
    let line = stat.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guest time is part of user.
    let ticks: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    if ticks.len() != 8 {
        return Err("/proc/stat is not understood".into());
    }
    Ok((ticks.iter().sum::<f64>() - ticks[3] - ticks[4]) / TICKS)
}

/// Resident memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Memory {
    /// The present resident memory.
    pub(crate) resident: u64,
    /// The highest resident memory so far.
    pub(crate) peak: u64,
}

impl Memory {
    /// Reads the memory of a process.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let status = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        Ok(Self { resident: field(&status, "VmRSS:") * 1024, peak: field(&status, "VmHWM:") * 1024 })
    }
}

/// The number in a line such as `VmRSS:    1234 kB`.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The machine on which the benchmark runs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// The model name of the processor.
    pub(crate) processor: String,
    /// The number of cores that this process may use.
    pub(crate) cores: usize,
    /// The memory in bytes.
    pub(crate) memory: u64,
    /// The kernel's version.
    pub(crate) kernel: String,
}

impl Machine {
    /// Describes this machine.
    pub(crate) fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let processor = cpuinfo
            .lines()
            .find(|line| line.starts_with("model name"))
            .and_then(|line| line.split(':').nth(1));
        Self {
            processor: processor.map_or("unknown", str::trim).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: field(&read("/proc/meminfo"), "MemTotal:") * 1024,
            kernel: format!("{} {}", std::env::consts::OS, read("/proc/sys/kernel/osrelease").trim()),
        }
    }
}

/// Waits until the control plane is idle: garbage of the last round is collected, and endpoints are created.
/// Gives up after a minute, because then the load is not the benchmark's.
pub(crate) async fn until_quiet(plane: &ControlPlane) -> Result<()> {
    const WINDOW: Duration = Duration::from_secs(1);
    for _ in 0..60 {
        let before = Cpu::now(plane, None)?;
        tokio::time::sleep(WINDOW).await;
        let used = Cpu::now(plane, None)?.since(before);
        if used.apiserver + used.etcd + used.controllers < 0.15 {
            break;
        }
    }
    Ok(())
}

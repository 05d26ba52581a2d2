//! The resources of a node on this machine, and their removal: namespaces, a network interface with routes,
//! and cgroups.
//!
//! All components of the control plane and of the node run in separate namespaces. When the first process in
//! them ends, the kernel kills all other processes and removes mounts, interfaces and iptables rules. This
//! includes containerd's shims, which could not be reached through a parent or a process group. So none of
//! these outlives even a SIGKILL of every process. Only cgroups and the folder can. The guard removes them;
//! if it is killed as well, the next node removes them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

use super::network::{Network, Place};
use super::requirements::SYSTEM_PATHS;
use crate::guard;
use crate::protocol::Event;
use crate::volumes;

/// The script that the first process executes.
const SETUP: &str = include_str!("namespaces.sh");

/// The file in a node's folder that is locked while its guard runs.
const LOCK: &str = "guard.lock";

/// The prefix of the names of cgroups. The process id of the guard follows.
const CGROUP: &str = "operetta-";

/// The timeout for the creation of the namespaces and for the end of their processes.
const PATIENCE: Duration = Duration::from_secs(10);

/// The polling interval.
const POLL: Duration = Duration::from_millis(2);

/// Runs the part of the guard outside the namespaces: creates them, waits until their first process ends, and
/// removes the remains. The first process inherits standard input and output, and serves the parent.
pub(crate) fn run(folder: &Path) -> io::Result<()> {
    let hierarchies = cgroup_mounts(&fs::read_to_string("/proc/mounts")?);
    remove_stale(folder.parent().unwrap_or(folder), &hierarchies);
    let _lock = lock(folder)?;
    let name = format!("{CGROUP}{}", std::process::id());
    let cgroups: Vec<PathBuf> = hierarchies.iter().map(|hierarchy| hierarchy.join(&name)).collect();
    for (hierarchy, cgroup) in hierarchies.iter().zip(&cgroups) {
        // Version 2 does not enable the controllers everywhere. Version 1 has no such file, so errors are
        // ignored.
        let _ = fs::write(hierarchy.join("cgroup.subtree_control"), "+cpu +cpuset +memory +pids");
        fs::create_dir(cgroup).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot create {}: {error}", cgroup.display()))
        })?;
    }
    let result = serve(folder, name);
    for cgroup in &cgroups {
        remove_cgroup(cgroup);
    }
    result
}

/// Starts the first process, connects its network, and waits until it ends.
fn serve(folder: &Path, cgroup: String) -> io::Result<()> {
    let own_exe = format!("/proc/{}/exe", std::process::id());
    let unshare =
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private"];
    let mut child = guard::command(Path::new("/usr/bin/env"), folder)?
        .args(unshare)
        .args(["sh", "-c", SETUP, "sh"])
        .arg(folder)
        .arg(own_exe)
        .stdin(Stdio::inherit())
        .spawn()?;
    let result = until_unshared(&mut child).and_then(|processes| {
        let network = connect(child.id())?;
        guard::tell(&Event::Ready { folder: folder.into(), node: Some(Place { network, cgroup }) });
        let status = wait(&mut child)?;
        until_empty(&processes);
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("the node ended ({status})"))) }
    });
    let _ = child.kill();
    let _ = child.wait();
    result
}

fn namespace(pid: &str, kind: &str) -> PathBuf {
    Path::new("/proc").join(pid).join("ns").join(kind)
}

/// Waits until the namespaces exist, and returns the process namespace.
fn until_unshared(child: &mut Child) -> io::Result<PathBuf> {
    let own = fs::read_link(namespace("self", "pid"))?;
    let pid = child.id().to_string();
    let started = Instant::now();
    loop {
        // The link cannot be read until the first process exists.
        match fs::read_link(namespace(&pid, "pid_for_children")) {
            Ok(found) if found != own => return Ok(found),
            _ => {}
        }
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("cannot create namespaces ({status})")));
        }
        if started.elapsed() > PATIENCE {
            return Err(io::Error::other("cannot create namespaces: unshare hangs"));
        }
        std::thread::sleep(POLL);
    }
}

/// Connects the network namespace of a process to this machine, with the first free network.
fn connect(pid: u32) -> io::Result<Network> {
    let pid = pid.to_string();
    for network in Network::all() {
        let interface = network.interface();
        let pair = ["link", "add", &interface, "type", "veth", "peer", "name", "eth0", "netns", &pid];
        match run_ip(Command::new("ip").args(pair), "") {
            Ok(()) => {}
            Err(error) if error.to_string().contains("File exists") => continue,
            Err(error) => return Err(error),
        }
        let batch = ["-batch", "-"];
        run_ip(
            Command::new("nsenter").args(["--net", "--target", &pid, "ip"]).args(batch),
            &network.node_commands(),
        )?;
        run_ip(Command::new("ip").args(batch), &network.host_commands())?;
        return Ok(network);
    }
    Err(io::Error::other("all addresses of nodes are in use"))
}

/// Runs `ip` with text on its standard input.
fn run_ip(command: &mut Command, input: &str) -> io::Result<()> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut child = command
        .env("PATH", [&path, SYSTEM_PATHS[0], SYSTEM_PATHS[1]].join(":"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("cannot run ip: {error}")))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Waits until the process ends, which it does when the parent ends. On SIGTERM, kills it.
fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
        let mut ended = signal(SignalKind::child())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let _interrupt = signal(SignalKind::interrupt())?;
        let _hangup = signal(SignalKind::hangup())?;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            tokio::select! {
                _ = ended.recv() => {}
                _ = terminate.recv() => child.kill()?,
            }
        }
    })
}

/// Waits until a process namespace contains no processes.
fn until_empty(pids: &Path) {
    let started = Instant::now();
    let is_in = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| fs::read_link(entry.path().join("ns/pid")).is_ok_and(|found| found == pids))
    };
    while started.elapsed() < PATIENCE && fs::read_dir("/proc").is_ok_and(|mut all| all.any(is_in)) {
        std::thread::sleep(POLL);
    }
}

/// The mount points of cgroup hierarchies in `/proc/mounts`.
fn cgroup_mounts(mounts: &str) -> Vec<PathBuf> {
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (folder, kind) = (words.next()?, words.next()?);
            matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(folder))
        })
        .collect()
}

/// Removes a cgroup and its descendants. A cgroup that contains processes stays.
fn remove_cgroup(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(cgroup);
}

/// Locks a folder while this process runs. The lock file is created under another name, so that under its
/// final name it is always locked.
fn lock(folder: &Path) -> io::Result<File> {
    let unnamed = folder.join(".lock");
    let file = File::create(&unnamed)?;
    file.try_lock()?;
    fs::rename(&unnamed, folder.join(LOCK))?;
    Ok(file)
}

/// Removes the cgroups and folders of nodes whose guard was killed.
fn remove_stale(parent_folder: &Path, hierarchies: &[PathBuf]) {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    for cgroup in hierarchies.iter().flat_map(|hierarchy| entries(hierarchy)) {
        let guard =
            cgroup.file_name().to_str().and_then(|name| name.strip_prefix(CGROUP)?.parse::<u32>().ok());
        if guard.is_some_and(|pid| !is_guard(pid)) {
            remove_cgroup(&cgroup.path());
        }
    }
    for entry in entries(parent_folder) {
        let folder = entry.path();
        if File::open(folder.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            volumes::remove(&folder, true);
            let _ = fs::remove_dir_all(&folder);
        }
    }
}

/// Whether a process is a guard.
fn is_guard(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == guard::COMMAND.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let mounts = "proc /proc proc rw 0 0\n\
                      tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let expected = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        assert_eq!(cgroup_mounts(mounts), expected);
    }

    #[test]
    fn folders_without_a_living_guard_are_stale() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (locked, unlocked, other) = (folder("a"), folder("b"), folder("c"));
        let _lock = lock(&locked).unwrap();
        // Dropping the file would not do: a process that another test starts can hold the lock for a moment, too.
        lock(&unlocked).unwrap().unlock().unwrap();
        remove_stale(parent.path(), &[]);
        assert!(locked.exists() && !unlocked.exists() && other.exists());
    }

    #[test]
    fn cgroups_without_a_living_guard_are_removed_recursively() {
        let hierarchy = tempfile::tempdir().unwrap();
        // The process id cannot exist, because it is above the limit of Linux.
        let stale = hierarchy.path().join("operetta-4194305/kubepods/pod-a");
        let other = hierarchy.path().join("operetta-x");
        fs::create_dir_all(&stale).unwrap();
        fs::create_dir(&other).unwrap();
        let parent = tempfile::tempdir().unwrap();
        remove_stale(parent.path(), &[hierarchy.path().into()]);
        assert!(!hierarchy.path().join("operetta-4194305").exists() && other.exists());
    }
}

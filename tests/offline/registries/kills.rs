//! Commands that are killed: at each request, before the registry carries it out and after; within a file; while they wait for
//! another process. The next one ends as if nothing had been, and finds no half of anything.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;

use operetta_registry::Digest;
use serde_json::Value;

use super::faults::{each, published, succeeds};
use super::{User, WEB, snapshot, text};
use crate::registry::{Access, Content, Fault, Registry};

/// SIGKILL.
const KILLED: i32 = 9;

fn start(mut command: Command, stderr: Stdio) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(KILLED));
    assert!(output.stdout.is_empty());
}

/// Runs a command until the registry holds a request of it, and kills it there.
fn kill_at(command: Command, registry: &Registry, fault: Fault) {
    registry.fault(fault);
    let child = start(command, Stdio::null());
    registry.until_held();
    kill(child);
}

/// Kills a command that writes to a registry at each request.
fn writing(
    start: impl Fn() -> Registry + Sync,
    repository: &str,
    command: impl Fn(&Registry) -> Command + Sync,
) {
    let registry = start();
    succeeds(&command(&registry).output().unwrap(), 0);
    let (expected, requests) = (registry.content(), registry.seen().len());
    assert!(requests > 10 && expected.tag(repository, "0.1.0").is_some(), "{requests}");
    each(requests, |at| {
        for fault in [Fault::HoldsRequest(at), Fault::HoldsAnswer(at)] {
            let registry = start();
            kill_at(command(&registry), &registry, fault);
            // The tag comes last: what it names is complete.
            let is_complete = fault == Fault::HoldsAnswer(requests - 1);
            assert_eq!(registry.content().tag(repository, "0.1.0").is_some(), is_complete, "{fault:?}");
            succeeds(&command(&registry).output().unwrap(), at);
            assert!(registry.content() == expected, "{fault:?}");
        }
    });
}

/// Kills a command that reads a package, and writes to a file or a layout, at each request.
fn reading(content: &Content, args: impl Fn(&str) -> Vec<String> + Sync, result: &str) {
    let command = |user: &User, registry: &Registry| {
        let args = args(&registry.place("acme/web:0.1.0"));
        user.command(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (user, registry) = (User::new(), Registry::with(content));
    succeeds(&command(&user, &registry).output().unwrap(), 0);
    assert_eq!(user.results(), [result]);
    let at_result = |user: &User| snapshot(&user.at("work").join(result));
    let (expected, requests) = (at_result(&user), registry.seen().len());
    each(requests, |at| {
        // Nothing changes in the registry, so it does not matter whether the request is carried out.
        let (user, registry) = (User::new(), Registry::with(content));
        kill_at(command(&user, &registry), &registry, Fault::HoldsRequest(at));
        assert!(user.has_nothing(), "request {at}: {:?}", user.results());
        succeeds(&command(&user, &registry).output().unwrap(), at);
        assert_eq!(user.results(), [result], "request {at}");
        assert!(at_result(&user) == expected, "request {at}");
    });
}

#[test]
fn push_that_was_killed_is_completed_by_the_next_one() {
    let user = User::new();
    // Without the API for referrers, a push writes the list of them, too.
    let start = || Registry::new(Access::Open, false);
    writing(start, "acme/web", |registry| user.command(&["push", WEB, &registry.place("acme/web")]));
}

#[test]
fn copy_that_was_killed_is_completed_by_the_next_one() {
    let user = User::with_keys();
    let source = Registry::with(&published(&user));
    let from = source.place("acme/web:0.1.0");
    let start = || Registry::new(Access::Open, false);
    writing(start, "mirror/web", |registry| user.command(&["copy", &from, &registry.place("mirror/web")]));
}

#[test]
fn pull_that_was_killed_leaves_no_package() {
    let content = published(&User::with_keys());
    for result in ["web.tgz", "layout"] {
        reading(&content, |from| ["pull", from, "-o", result].map(str::to_owned).to_vec(), result);
    }
}

#[test]
fn copy_to_a_layout_that_was_killed_lists_nothing() {
    let content = published(&User::with_keys());
    reading(&content, |from| ["copy", from, "layout"].map(str::to_owned).to_vec(), "layout");
}

/// The partial files in a folder and below it.
fn partial(user: &User) -> usize {
    let files = snapshot(&user.at("work"));
    files.iter().filter(|(path, _)| path.to_string_lossy().contains(".operetta-partial-")).count()
}

/// The kernel kills a process that writes more to a file than it may.
#[test]
fn a_command_that_is_killed_within_a_file_leaves_one_partial_file() {
    let publisher = User::with_keys();
    // Files that do not compress.
    let manifest = publisher.at("input/web/operator.yaml");
    let mut text = fs::read_to_string(&manifest).unwrap();
    text.extend((0..64_u8).map(|number| format!("# {}\n", Digest::of(&[number]).hex())));
    fs::write(&manifest, text).unwrap();
    let registry = Registry::with(&published(&publisher));
    let from = registry.place("acme/web:0.1.0");
    let cases: [(&[&str], &str); 3] = [
        (&["pull", &from, "-o", "web.tgz"], "web.tgz"),
        (&["pull", &from, "-o", "layout"], "layout"),
        (&["copy", &from, "layout"], "layout"),
    ];
    for (args, result) in cases {
        let undisturbed = User::new();
        undisturbed.ok(args);
        let expected = snapshot(&undisturbed.at("work"));
        let user = User::new();
        // In blocks of 512 bytes. The second attempt removes what the first one has left.
        for blocks in [1, 1, 2] {
            let killed = user.limited(&format!("ulimit -c 0; ulimit -f {blocks}"), args).output().unwrap();
            assert!(killed.status.signal().is_some(), "{args:?}: {:?}", killed.status);
            assert_eq!(partial(&user), 1, "{args:?}: {:?}", user.results());
            assert!(result == "layout" || user.results().len() == 1, "{:?}", user.results());
        }
        user.ok(args);
        assert!(snapshot(&user.at("work")) == expected, "{args:?}");
    }
}

/// A registry with six versions of the package, and their names.
fn versions(user: &User) -> (Registry, Vec<String>) {
    let registry = Registry::start();
    let push = |number: usize| {
        let folder = format!("web-{number}");
        user.package(&folder, &format!("0.1.{number}"));
        user.ok(&["push", &format!("../input/{folder}"), &registry.place("acme/web")])
    };
    let names = (0..6).map(push).collect();
    (registry, names)
}

/// The entries of the index of a layout, in any order.
fn listed(user: &User, layout: &str) -> Vec<String> {
    let index: Value = serde_json::from_slice(&user.read(&format!("{layout}/index.json"))).unwrap();
    let mut entries: Vec<String> =
        index["manifests"].as_array().unwrap().iter().map(ToString::to_string).collect();
    entries.sort_unstable();
    entries
}

#[test]
fn copies_into_one_layout_at_the_same_time_lose_nothing() {
    let user = User::new();
    let (_registry, names) = versions(&user);
    for name in &names {
        user.ok(&["copy", name, "expected"]);
    }
    thread::scope(|scope| {
        for name in &names {
            let user = &user;
            scope.spawn(move || user.ok(&["copy", name, "layout"]));
        }
    });
    assert_eq!(listed(&user, "layout"), listed(&user, "expected"));
    let blobs = |layout: &str| snapshot(&user.at("work").join(layout).join("blobs"));
    assert!(blobs("layout") == blobs("expected"));
    assert_eq!(partial(&user), 0);
}

/// Waits until a command says that it waits for another process.
fn until_it_waits(child: &mut Child) {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let waits = lines.any(|line| line.unwrap() == "waiting for another process that writes to layout");
    assert!(waits, "it ends without a wait");
}

#[test]
fn copy_that_is_killed_before_it_changes_the_index_is_completed_by_the_next_one() {
    let user = User::new();
    let (_registry, names) = versions(&user);
    let copy = ["copy", &names[1], "layout"];
    for layout in ["layout", "expected"] {
        user.ok(&["copy", &names[0], layout]);
    }
    user.ok(&["copy", &names[1], "expected"]);
    let before = user.read("layout/index.json");
    let lock = File::open(user.at("work/layout")).unwrap();
    lock.lock().unwrap();
    let mut child = start(user.command(&copy), Stdio::piped());
    until_it_waits(&mut child);
    kill(child);
    // Without requests, only the lock can be waited for.
    let late = user.run(&["copy", "expected:0.1.1", "layout", "--timeout", "0s"]);
    let told = text(&late.stderr);
    assert!(
        late.status.code() == Some(4) && told.contains("another process has locked the layout"),
        "{told}"
    );
    drop(lock);
    assert!(user.read("layout/index.json") == before);
    user.ok(&copy);
    assert!(snapshot(&user.at("work/layout")) == snapshot(&user.at("work/expected")));
}

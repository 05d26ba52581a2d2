//! Registries that break off: at each request of a command the registry dies, or the answer is lost. A lost answer is asked for
//! again; a command that fails leaves nothing half done, and the next one completes it.

use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{OURS, User, WEB, snapshot, text};
use crate::registry::{Access, Content, Fault, Registry};

/// How many faults are tried at once: the commands mostly wait.
const AT_ONCE: usize = 8;
/// How long a command may wait for a registry that has died. The waits between its attempts are longer together.
const IMPATIENT: [&str; 2] = ["--timeout", "1s"];

/// Runs a check for each of the numbers below `count`.
pub(super) fn each(count: usize, check: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    check(at);
                }
            });
        }
    });
}

#[track_caller]
pub(super) fn succeeds(output: &Output, at: usize) {
    assert!(output.status.success(), "request {at}: {}", text(&output.stderr));
}

/// A registry that has died is left after the time limit.
#[track_caller]
fn gives_up(output: &Output, at: usize) {
    assert_eq!(output.status.code(), Some(4), "request {at}: {}", text(&output.stderr));
    assert!(output.stdout.is_empty(), "request {at}");
}

/// A registry with a signed package.
pub(super) fn published(user: &User) -> Content {
    let registry = Registry::start();
    let name = user.ok(&["push", WEB, &registry.place("acme/web")]);
    user.ok(&["sign", &name, "--key", OURS[0]]);
    registry.content()
}

/// Breaks off at each request of a command that writes to a registry.
fn writing(
    start: impl Fn() -> Registry + Sync,
    repository: &str,
    run: impl Fn(&Registry, &[&str]) -> Output + Sync,
) {
    let registry = start();
    succeeds(&run(&registry, &[]), 0);
    let (expected, requests) = (registry.content(), registry.seen().len());
    assert!(requests > 10 && expected.tag(repository, "0.1.0").is_some(), "{requests}");
    each(requests, |at| {
        let registry = start();
        registry.fault(Fault::DiesAfter(at));
        gives_up(&run(&registry, &IMPATIENT), at);
        // The tag comes last: what it names is complete.
        assert_eq!(registry.content().tag(repository, "0.1.0"), None, "request {at}");
        registry.repair();
        succeeds(&run(&registry, &[]), at);
        assert!(registry.content() == expected, "request {at}");

        let registry = start();
        registry.fault(Fault::LosesAnswer(at));
        succeeds(&run(&registry, &[]), at);
        assert!(registry.content() == expected, "request {at}");
    });
}

/// Breaks off at each request of a command that reads a package, and writes to a file or a layout.
fn reading(content: &Content, args: impl Fn(&str) -> Vec<String> + Sync, result: &str) {
    let run = |user: &User, registry: &Registry, more: &[&str]| {
        let args = args(&registry.place("acme/web:0.1.0"));
        let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        user.run(&args)
    };
    let (user, registry) = (User::new(), Registry::with(content));
    succeeds(&run(&user, &registry, &[]), 0);
    assert_eq!(user.results(), [result]);
    let at_result = |user: &User| snapshot(&user.at("work").join(result));
    let (expected, requests) = (at_result(&user), registry.seen().len());
    each(requests, |at| {
        let (user, registry) = (User::new(), Registry::with(content));
        registry.fault(Fault::DiesAfter(at));
        gives_up(&run(&user, &registry, &IMPATIENT), at);
        assert!(user.has_nothing(), "request {at}: {:?}", user.results());
        registry.repair();
        succeeds(&run(&user, &registry, &[]), at);
        assert_eq!(user.results(), [result], "request {at}");
        assert!(at_result(&user) == expected, "request {at}");

        let (user, registry) = (User::new(), Registry::with(content));
        registry.fault(Fault::LosesAnswer(at));
        succeeds(&run(&user, &registry, &[]), at);
        assert!(at_result(&user) == expected, "request {at}");
    });
}

#[test]
fn retries_are_reported() {
    let (user, registry) = (User::new(), Registry::start());
    registry.fault(Fault::LosesAnswer(0));
    let pushed = user.run(&["push", WEB, &registry.place("acme/web")]);
    succeeds(&pushed, 0);
    let told = text(&pushed.stderr);
    assert!(told.contains(&format!("warning: {} cannot be reached for", registry.address)), "{told}");
    assert!(told.contains("; trying again in "), "{told}");
    // Where nobody listens, that is said at once.
    let failed = user.run(&["push", WEB, "oci://127.0.0.1:1/acme/web"]);
    let told = text(&failed.stderr);
    assert!(failed.status.code() == Some(1) && !told.contains("trying again"), "{told}");
}

#[test]
fn push_that_was_broken_off_is_completed_by_the_next_one() {
    let user = User::new();
    // Without the API for referrers, a push writes the list of them, too.
    let start = || Registry::new(Access::Open, false);
    writing(start, "acme/web", |registry, more| {
        let place = registry.place("acme/web");
        user.run(&[&["push", WEB, &place][..], more].concat())
    });
}

#[test]
fn copy_that_was_broken_off_is_completed_by_the_next_one() {
    let user = User::with_keys();
    let source = Registry::with(&published(&user));
    let from = source.place("acme/web:0.1.0");
    let start = || Registry::new(Access::Open, false);
    writing(start, "mirror/web", |registry, more| {
        let place = registry.place("mirror/web");
        user.run(&[&["copy", &from, &place][..], more].concat())
    });
}

#[test]
fn pull_that_is_broken_off_leaves_no_package() {
    let content = published(&User::with_keys());
    for result in ["web.tgz", "layout"] {
        let args = |from: &str| ["pull", from, "-o", result].map(str::to_owned).to_vec();
        reading(&content, args, result);
    }
}

#[test]
fn copy_to_a_layout_that_is_broken_off_lists_nothing() {
    let content = published(&User::with_keys());
    reading(&content, |from| ["copy", from, "layout"].map(str::to_owned).to_vec(), "layout");
}

/// What was copied before is neither removed nor replaced by a part of something else.
#[test]
fn layout_with_a_package_survives_a_copy_that_is_broken_off() {
    let user = User::with_keys();
    let registry = Registry::with(&published(&user));
    for layout in ["layout", "twin"] {
        user.ok(&["copy", &registry.place("acme/web"), layout]);
    }
    user.package("next", "0.2.0");
    let next = user.ok(&["push", "../input/next", &registry.place("acme/web")]);
    user.ok(&["sign", &next, "--key", OURS[0]]);
    let before = user.read("layout/index.json");
    let earlier = registry.seen().len();
    user.ok(&["copy", &next, "twin"]);
    let requests = registry.seen().len() - earlier;
    registry.fault(Fault::DiesAfter(requests - 1));
    gives_up(&user.run(&[&["copy", &next, "layout"][..], &IMPATIENT].concat()), requests - 1);
    assert!(user.read("layout/index.json") == before);
    registry.repair();
    user.ok(&["verify", "layout:0.1.0", "--key", OURS[1]]);
    user.ok(&["copy", &next, "layout"]);
    user.ok(&["verify", "layout:0.2.0", "--key", OURS[1]]);
    user.ok(&["verify", "layout:0.1.0", "--key", OURS[1]]);
}

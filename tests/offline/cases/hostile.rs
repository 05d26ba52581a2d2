//! Packages of others: they read nothing but themselves and the repository that they are in, and take a bounded part of the machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::{HEAD, case, package, says, test};
use crate::hostile::{TOKEN, bounded, commands_nothing, tells_nothing};

/// Runs a command on a package. What it prints has nothing of this machine.
fn run(command: &str, folder: &Path, flags: &[&str]) -> (i32, String) {
    let output = bounded(command, folder).args(flags).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    tells_nothing(&text);
    // A long line is wrapped.
    (output.status.code().unwrap(), text.replace("\n  │ ", " "))
}

/// A pipe at whose other end nobody is.
fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn files_that_cases_name_are_in_the_package() {
    let steps = |step: &str| case(&format!("  - {step}\n"));
    for (file, what) in [
        (steps("apply: /etc/passwd"), "it is outside of"),
        (steps("apply: /proc/self/environ"), "it is outside of"),
        (steps("apply: /dev/zero"), "it is outside of"),
        (steps("apply: ../../../../../../../../etc/passwd"), "it is outside of"),
        (steps("upgrade: /etc"), "it is outside of"),
        (steps("upgrade: ../.."), "it is outside of"),
        (case("").replace("cases:", "world: /proc/self/environ\ncases:"), "it is outside of"),
        (case("").replace("cases:", "packages: [/etc]\ncases:"), "it is outside of"),
        (steps("apply: ../more/link.yaml"), "it is outside of"),
        (steps("apply: ../more/up/etc/passwd"), "it is outside of"),
        (steps("apply: ../more/pipe.yaml"), "it is no regular file"),
        (steps("apply: ../more/large.yaml"), "it is larger than 8 MiB"),
    ] {
        let folder = package(&[("a.yaml", &file)]);
        let more = folder.path().join("more");
        fs::create_dir(&more).unwrap();
        symlink("/etc/passwd", more.join("link.yaml")).unwrap();
        symlink("/", more.join("up")).unwrap();
        pipe(&more.join("pipe.yaml"));
        fs::File::create(more.join("large.yaml")).unwrap().set_len(9 << 20).unwrap();
        let (code, text) = run("test", folder.path(), &[]);
        assert!(code == 1 && text.contains(what), "{what}: {text}");
    }
}

#[test]
fn files_of_cases_and_worlds_are_no_links_out_and_no_pipes() {
    for (name, target) in
        [("b.yaml", "/etc/passwd"), ("world.yaml", "/proc/self/environ"), ("c.yaml", "/dev/zero")]
    {
        let folder = package(&[("a.yaml", &case(""))]);
        symlink(target, folder.path().join("tests").join(name)).unwrap();
        let (code, text) = run("test", folder.path(), &[]);
        assert!(code == 1 && text.contains("it is outside of"), "{name}: {text}");
    }
    let folder = package(&[("a.yaml", &case(""))]);
    pipe(&folder.path().join("tests/b.yaml"));
    says(run("test", folder.path(), &[]), 1, &["it is no regular file"]);
    // The folder itself.
    let folder = package(&[]);
    fs::remove_dir(folder.path().join("tests")).unwrap();
    symlink("/etc", folder.path().join("tests")).unwrap();
    says(run("test", folder.path(), &[]), 1, &["it is outside of"]);
}

#[test]
fn files_beside_the_package_are_read_if_they_are_in_its_repository() {
    let folder = tempfile::tempdir().unwrap();
    let inner = package(&[(
        "a.yaml",
        &case("  - apply: ../../more.yaml\n  - expect: {objects: {ConfigMap/more: {}}}\n"),
    )]);
    let at = folder.path().join("webapp");
    fs::rename(inner.keep(), &at).unwrap();
    let object = "{apiVersion: v1, kind: ConfigMap, metadata: {name: more}}\n";
    fs::write(folder.path().join("more.yaml"), object).unwrap();
    says(run("test", &at, &[]), 1, &["it is outside of"]);
    fs::create_dir(folder.path().join(".git")).unwrap();
    let (code, text) = run("test", &at, &[]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn credentials_of_the_checkout_are_not_read() {
    let steps = |step: &str| case(&format!("  - {step}\n"));
    for file in [
        steps("apply: ../../.git/config"),
        steps("apply: ../link.yaml"),
        steps("upgrade: ../../.git"),
        case("").replace("cases:", "world: ../../.git/config\ncases:"),
        case("").replace("cases:", "packages: [../../.git]\ncases:"),
    ] {
        let (repository, inner) = (tempfile::tempdir().unwrap(), package(&[("a.yaml", &file)]));
        let (git, at) = (repository.path().join(".git"), repository.path().join("webapp"));
        fs::rename(inner.keep(), &at).unwrap();
        fs::create_dir(&git).unwrap();
        fs::write(git.join("config"), format!("[http]\n\textraheader = {TOKEN}\n")).unwrap();
        symlink("../.git/config", at.join("link.yaml")).unwrap();
        let (code, text) = run("test", &at, &[]);
        assert!(code == 1 && text.contains(".git is hidden"), "{file}: {text}");
        let link = at.join("link.yaml");
        says(run("render", &at, &["-f", link.to_str().unwrap()]), 2, &[".git is hidden"]);
    }
    // A package that is the repository.
    let folder = package(&[("a.yaml", &case(""))]);
    fs::create_dir(folder.path().join(".git")).unwrap();
    fs::write(folder.path().join(".git/config"), TOKEN).unwrap();
    symlink("../.git/config", folder.path().join("templates/more.yaml")).unwrap();
    says(run("lint", folder.path(), &[]), 1, &["is a link to a hidden place"]);
}

#[test]
fn all_files_of_cases_together_are_bounded() {
    let large = |count: usize| {
        let folder = package(&[]);
        fs::File::create(folder.path().join("large.yaml")).unwrap().set_len(8 << 20).unwrap();
        for number in 0..count {
            symlink("../large.yaml", folder.path().join(format!("tests/{number:03}.yaml"))).unwrap();
        }
        folder
    };
    let bound = "larger than 64 MiB together";
    let (code, text) = run("test", large(200).path(), &[]);
    assert!(code == 1 && text.matches(bound).count() == 1, "{text}");
    // Those of several packages count together.
    let (one, other) = (large(5), large(5));
    let (code, text) = run("test", one.path(), &[]);
    assert!(code == 1 && !text.contains(bound), "{text}");
    let (code, text) = run("test", one.path(), &[other.path().to_str().unwrap()]);
    assert!(code == 1 && text.matches(bound).count() == 1, "{text}");
}

#[test]
fn a_first_file_is_made_by_the_same_rules() {
    let folder = package(&[]);
    let (tests, examples) = (folder.path().join("tests"), folder.path().join("examples"));
    fs::create_dir(&examples).unwrap();
    pipe(&examples.join("a.yaml"));
    symlink("/etc/passwd", examples.join("b.yaml")).unwrap();
    symlink("/dev/zero", examples.join("c.yaml")).unwrap();
    fs::copy("examples/webapp/minimal.yaml", examples.join("d.yaml")).unwrap();
    // Files that are named may be of the package, too.
    for (name, what) in
        [("a.yaml", "it is no regular file"), ("b.yaml", "it is outside of"), ("c.yaml", "it is outside of")]
    {
        let file = examples.join(name);
        says(run("test", folder.path(), &["--init", "--from", file.to_str().unwrap()]), 1, &[what]);
    }
    symlink("/proc/self/environ", tests.join("world.yaml")).unwrap();
    says(run("test", folder.path(), &["--init"]), 1, &["it is outside of"]);
    // Nothing is written elsewhere.
    let elsewhere = tempfile::tempdir().unwrap();
    fs::remove_dir_all(&tests).unwrap();
    symlink(elsewhere.path(), &tests).unwrap();
    says(run("test", folder.path(), &["--init"]), 1, &["is a link, and nothing is written through links"]);
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    fs::remove_file(&tests).unwrap();
    says(run("test", folder.path(), &["--init"]), 0, &["examples/d.yaml; its cases pass"]);
}

#[test]
fn an_update_replaces_a_link_and_leaves_its_target() {
    let file = case("  - expect: {children: {deployment: {spec: {replicas: 2}}}}\n    within: 1m\n");
    let folder = package(&[]);
    let (precious, link) = (folder.path().join("precious.yaml"), folder.path().join("tests/a.yaml"));
    fs::write(&precious, &file).unwrap();
    symlink("../precious.yaml", &link).unwrap();
    let (code, text) = run("test", folder.path(), &["--update"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(fs::read_to_string(&precious).unwrap(), file);
    assert!(!link.is_symlink(), "{text}");
    assert_eq!(fs::read_to_string(&link).unwrap(), file.replace("replicas: 2", "replicas: 1"));
}

#[test]
fn a_schedule_is_not_saved_through_a_link() {
    let folder =
        package(&[("a.yaml", &case("  - expect: {that: [\"pods | length == 7\"]}\n    within: 1s\n"))]);
    let (precious, save) = (folder.path().join("precious"), folder.path().join("schedule.json"));
    fs::write(&precious, "mine").unwrap();
    symlink(&precious, &save).unwrap();
    let flags = ["--explore", "--schedules", "1", "--save", save.to_str().unwrap()];
    let (code, text) = run("test", folder.path(), &flags);
    assert_eq!(code, 1, "{text}");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "mine", "{text}");
}

#[test]
fn a_case_with_millions_of_pods_is_ended() {
    let container = "containers: [{name: c, image: x}]";
    let pod = format!(
        "metadata: {{labels: {{a: b}}, annotations: {{note: {}}}}}, spec: {{{container}}}",
        "x".repeat(200 << 10)
    );
    let spec = format!("replicas: 2000000, selector: {{matchLabels: {{a: b}}}}, template: {{{pod}}}");
    let deployment =
        format!("{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: d}}, spec: {{{spec}}}}}");
    let file = format!("{HEAD}cases:\n- name: one\n  steps:\n  - apply: {deployment}\n  - wait: 1h\n");
    says(test(&[("a.yaml", &file)], &[]), 1, &["the objects of the case take more than 256 MiB"]);
}

#[test]
fn names_are_shown_on_one_line() {
    let name = "\"a\\n::error::forged ##vso[a]##[b]\\e[31m\\u202Eb\\uFFFF\"";
    let file = case("").replace("- name: one", &format!("- name: {name}"));
    for flags in [&[][..], &["-o", "junit"], &["-o", "json"]] {
        let (code, text) = test(&[("a.yaml", &file)], flags);
        assert_eq!(code, 0, "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text:?}");
        commands_nothing(&text);
        assert!(!flags.contains(&"junit") || !text.contains('\u{ffff}'), "{text:?}");
    }
    // What is said about a failure.
    let that = "pods | length == 7 and '\\u202E\\u200B ##vso[a] ##[b]' != 'c'";
    let file = case(&format!("  - {{expect: {{that: [\"{that}\"]}}, within: 1s}}\n"));
    for flags in [&[][..], &["-o", "junit"], &["-o", "json"]] {
        let (code, text) = test(&[("a.yaml", &file)], flags);
        assert!(code == 1 && !text.contains(['\u{202e}', '\u{200b}']), "{text:?}");
        commands_nothing(&text);
    }
}

//! Packages in OCI layouts, by the commands: what is packaged, signed, copied and read again. The same with registries is in
//! `registries`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use serde_json::Value;

use crate::says::says;

const WEBAPP: &str = "operators/webapp";

fn run(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_operetta"));
    let package = fs::canonicalize(WEBAPP).unwrap();
    let args = args.iter().map(|arg| arg.replace(WEBAPP, &package.to_string_lossy()));
    command.current_dir(folder).args(args).output().unwrap()
}

/// The standard output of a command that succeeds, in one line.
fn ok(folder: &Path, args: &[&str]) -> String {
    let output = run(folder, args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {err}");
    out.trim_end().to_owned()
}

/// The exit code and the message of a command that fails.
fn fails(folder: &Path, args: &[&str]) -> (i32, String) {
    let output = run(folder, args);
    assert!(output.stdout.is_empty(), "{args:?}");
    // Messages are broken to the width of a terminal.
    let text = String::from_utf8_lossy(&output.stderr).replace('│', " ");
    (output.status.code().unwrap(), text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Writes `NAME.pem` and `NAME.pub`.
pub(crate) fn key(folder: &Path, name: &str) {
    let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let text = data_encoding::BASE64.encode(der.as_ref());
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n");
    let private = operetta_registry::PrivateKey::parse(name, pem.as_bytes()).unwrap();
    fs::write(folder.join(format!("{name}.pem")), pem).unwrap();
    fs::write(folder.join(format!("{name}.pub")), private.public().pem()).unwrap();
}

/// Writes the manifest of a changed config over the same files, with all digests right. Returns its digest.
fn with_config(layout: &Path, digest: &str, change: impl Fn(&mut Value)) -> String {
    let blobs = layout.join("blobs/sha256");
    let read = |digest: &str| -> Value {
        serde_json::from_slice(&fs::read(blobs.join(digest.trim_start_matches("sha256:"))).unwrap()).unwrap()
    };
    let mut manifest = read(digest);
    let mut config = read(manifest["config"]["digest"].as_str().unwrap());
    change(&mut config);
    let store = |value: &Value| {
        let text = value.to_string();
        let digest = operetta_registry::Digest::of(text.as_bytes());
        fs::write(blobs.join(digest.hex()), &text).unwrap();
        (digest.to_string(), text.len())
    };
    let (digest, size) = store(&config);
    (manifest["config"]["digest"], manifest["config"]["size"]) = (digest.into(), size.into());
    store(&manifest).0
}

#[test]
fn a_package_travels_in_layouts() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let digest = ok(folder, &["package", WEBAPP, "-o", "first"]);
    assert!(digest.starts_with("sha256:"), "{digest}");
    // Equal packages have equal digests; the archive of one is a package, too.
    assert_eq!(ok(folder, &["package", WEBAPP, "-o", "first"]), digest);
    ok(folder, &["package", WEBAPP, "-o", "webapp.tgz"]);
    let of_archive: Value = {
        ok(folder, &["package", "webapp.tgz", "-o", "third"]);
        serde_json::from_str(&ok(folder, &["inspect", "third", "-o", "json"])).unwrap()
    };
    key(folder, "ours");
    key(folder, "theirs");
    let name = ok(folder, &["sign", "first", "--key", "ours.pem"]);
    assert_eq!(name, format!("first@{digest}"));
    ok(folder, &["copy", "first", "second"]);
    fs::remove_dir_all(folder.join("first")).unwrap();
    assert!(ok(folder, &["verify", "second", "--key", "theirs.pub", "--key", "ours.pub"]).ends_with(&digest));
    says(fails(folder, &["verify", "second", "--key", "theirs.pub"]), 1, &["another key"]);
    says(fails(folder, &["verify", "third", "--key", "ours.pub"]), 1, &["operetta sign"]);
    let shown: Value = serde_json::from_str(&ok(folder, &["inspect", "second", "-o", "json"])).unwrap();
    assert_eq!(shown["digest"], *digest);
    assert_eq!(shown["signatures"].as_array().map(Vec::len), Some(1));
    assert_eq!(shown["files"], of_archive["files"]);
    assert_eq!(shown["config"]["revision"], of_archive["config"]["revision"]);
    let text = ok(folder, &["inspect", "second"]);
    assert!(text.contains("Signatures:  Sigstore bundle v0.3"), "{text}");
    // What is installed from a layout is what is installed from the folder.
    let install = |args: &[&str]| {
        let printed = ok(folder, &[&["install", "--dry-run", "-o", "json"], args].concat());
        let mut list: Value = serde_json::from_str(&printed).unwrap();
        let revision = list["items"].as_array_mut().unwrap();
        let revision = revision.iter_mut().find(|object| object["kind"] == "OperatorRevision").unwrap();
        let annotations = revision["metadata"]["annotations"].as_object_mut().unwrap();
        // Only this says where it is from, and who has signed it.
        let provenance = annotations.remove("operetta.dev/provenance");
        (list, provenance.map(|text| serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap()))
    };
    let (of_folder, none) = install(&[WEBAPP]);
    assert!(none.is_none());
    for args in [&["second"][..], &["second", "--key", "ours.pub"]] {
        let (printed, provenance) = install(args);
        assert_eq!(printed, of_folder);
        let provenance = provenance.unwrap();
        assert_eq!(provenance["reference"], format!("second@{digest}"));
        assert_eq!(provenance["signatures"].as_array().map(Vec::len), Some(1));
    }
    let (code, message) = fails(folder, &["install", "second", "--dry-run", "--key", "theirs.pub"]);
    assert!(code == 1 && message.contains("no valid signature"), "{message}");
    let (code, _) = fails(folder, &["install", WEBAPP, "--dry-run", "--key", "ours.pub"]);
    assert_eq!(code, 2);
    ok(folder, &["pull", "second", "-o", "pulled.tgz"]);
    assert_eq!(fs::read(folder.join("pulled.tgz")).unwrap(), fs::read(folder.join("webapp.tgz")).unwrap());
}

#[test]
fn the_readme_travels_with_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let copied = Command::new("cp").arg("-r").arg(WEBAPP).arg(folder.join("web")).status().unwrap();
    assert!(copied.success());
    fs::write(folder.join("web/README.md"), "# web\n\nFirst.\n\n## Fields\n\nLast \u{1b}[2J\u{202e}\n")
        .unwrap();
    ok(folder, &["package", "web", "-o", "first"]);
    ok(folder, &["copy", "first", "second"]);
    fs::remove_dir_all(folder.join("first")).unwrap();
    for of in ["web", "second"] {
        let text = ok(folder, &["show", of]);
        assert!(text.contains("# web\n\nFirst.\n\n## Fields\n\nLast "), "{of}: {text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{of}: {text}");
    }
    // Another one than the config has is not shown, and a lost one is no reason to show nothing.
    let config: Value = serde_json::from_str(&ok(folder, &["inspect", "second", "-o", "json"])).unwrap();
    let digest = config["config"]["readmeFile"]["digest"].as_str().unwrap();
    let file = folder.join("second/blobs/sha256").join(digest.trim_start_matches("sha256:"));
    for alter in [true, false] {
        if alter {
            let text = fs::read_to_string(&file).unwrap();
            fs::write(&file, text.replace("Last", "Loss")).unwrap();
        } else {
            fs::remove_file(&file).unwrap();
        }
        let output = run(folder, &["show", "second"]);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("\nFirst.\n"), "{out}{err}");
        assert!(!out.contains("Loss") && err.contains("only the first paragraph"), "{out}{err}");
    }
    // One that states a large README is not read.
    let digest = config["digest"].as_str().unwrap();
    let large = with_config(&folder.join("second"), digest, |config| {
        config["readmeFile"]["size"] = (1_u64 << 30).into();
    });
    let output = run(folder, &["show", &format!("second@{large}")]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && err.contains("larger than"), "{err}");
}

#[test]
fn a_config_that_is_not_of_the_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let digest = ok(folder, &["package", WEBAPP, "-o", "good"]);
    let digest = with_config(&folder.join("good"), &digest, |config| {
        config["rights"] = Value::Array(Vec::new());
        config["version"] = "9.9.9".into();
    });
    for command in ["install", "inspect", "pull"] {
        let (code, message) = fails(folder, &[command, &format!("good@{digest}")]);
        assert!(code != 0 && message.contains("its files are webapp"), "{command}: {message}");
    }
}

#[test]
fn wrong_references_are_usage_errors() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["inspect", "oci://HOST"][..],
        &["push", WEBAPP, "ghcr.io/acme/webapp"],
        &["push", WEBAPP, "oci://localhost:1/a@sha256:00"],
        &["login", "a/b", "-u", "x", "--password-stdin"],
        &["login", "localhost:1", "-u", "x"],
    ] {
        let (code, message) = fails(folder.path(), args);
        assert_eq!(code, 2, "{args:?}: {message}");
    }
    says(fails(folder.path(), &["inspect", "nowhere"]), 1, &["nowhere as an OCI layout does not exist"]);
}

#[test]
fn check_compares_the_config_with_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Its cases read files outside of its folder.
    let package = fs::canonicalize("operators/flight-ticket").unwrap();
    let make = |layout: &str| {
        let package = package.to_str().unwrap();
        ok(folder, &["package", package, "-o", layout, "--test", "--explore", "3", "--sbom", "sbom.json"])
    };
    let digest = make("first");
    assert_eq!(make("second"), digest);
    ok(folder, &["copy", "first", "copied"]);
    let inspect = |reference: &str, more: &[&str]| {
        let output = run(folder, &[&["inspect", reference, "-o", "json"], more].concat());
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code().unwrap(), shown, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, shown, _) = inspect("copied", &["--check"]);
    assert_eq!(code, 0, "{shown:#}");
    let tests = &shown["config"]["evidence"]["tests"];
    let cases = tests["cases"].as_array().unwrap();
    assert!(cases.len() > 5 && cases.iter().all(|case| case["outcome"] == "passed"), "{tests:#}");
    assert_eq!(cases[0]["file"], "tests/flight-ticket.yaml");
    assert_eq!(tests["folder"], "operators/flight-ticket");
    assert_eq!(tests["explored"], serde_json::json!({"schedules": 3, "seed": 1}));
    let checked: Vec<&str> =
        shown["checked"].as_array().unwrap().iter().filter_map(|one| one["what"].as_str()).collect();
    assert_eq!(checked, ["config", "lint", "tests", "SBOM"]);
    let sbom = fs::read_to_string(folder.join("sbom.json")).unwrap();
    assert_eq!(ok(folder, &["inspect", "copied", "--sbom"]), sbom.trim_end());

    // Statements that do not hold are found, and the others are still right.
    let differs = |change: &dyn Fn(&mut Value), expected: &str| {
        let digest = with_config(&folder.join("first"), &digest, change);
        let (code, shown, err) = inspect(&format!("first@{digest}"), &["--check"]);
        let wrong: Vec<&Value> =
            shown["checked"].as_array().unwrap().iter().filter(|one| one["ok"] == false).collect();
        let all = format!("{wrong:?} {err}");
        assert!(code == 1 && all.contains(expected), "{expected}: {code} {all}");
    };
    differs(&|config| config["level"] = 5.into(), "level: stated 5, found 2");
    differs(
        &|config| config["level"] = 5.into(),
        "the config states the level 5, and the level of the files is 2",
    );
    differs(&|config| config["rights"] = Value::Array(Vec::new()), "rights: stated []");
    differs(
        &|config| config["evidence"]["lint"]["warnings"]["package::x"] = 1.into(),
        "package::x: stated 1, found none",
    );
    // What is attached belongs to another manifest.
    differs(&|config| config["description"] = "x".into(), "are not attached");
}

#[test]
fn cases_that_are_stated_must_pass() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Its cases read examples beside it.
    let package = folder.join("packages/webapp");
    fs::create_dir_all(folder.join("packages")).unwrap();
    fs::create_dir(folder.join(".git")).unwrap();
    for (from, to) in [(WEBAPP, &package), ("examples", &folder.join("examples"))] {
        assert!(Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap().success());
    }
    let tests = package.join("tests");
    let webapp = package.to_str().unwrap();
    let case = "apiVersion: operetta.dev/v1alpha1\nkind: PackageTest\ncases:\n- name: wrong\n  steps:\n  - expect:\n      \
                objects: {ConfigMap/none: {data: {a: b}}}\n    within: 1s\n";
    fs::write(tests.join("wrong.yaml"), case).unwrap();
    let (code, message) = fails(folder, &["package", webapp, "-o", "layout", "--test"]);
    assert!(code == 1 && message.contains("the case \"wrong\" fails"), "{code} {message}");
    assert!(!folder.join("layout").exists(), "nothing is written");
    fs::remove_file(tests.join("wrong.yaml")).unwrap();
    let digest = ok(folder, &["package", webapp, "-o", "layout", "--test"]);

    // A case that is stated and not there; and tests that were replaced by others.
    let claimed = with_config(&folder.join("layout"), &digest, |config| {
        let cases = config["evidence"]["tests"]["cases"].as_array_mut().unwrap();
        let mut more = cases[0].clone();
        more["name"] = "it survives everything".into();
        cases.push(more);
    });
    // The tests of the original, attached to the manifest with the claim.
    let index = folder.join("layout/index.json");
    let mut listed: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    let blobs = folder.join("layout/blobs/sha256");
    let referrer = listed["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["artifactType"].as_str().is_some_and(|kind| kind.contains("package.tests")));
    let mut referrer = referrer.unwrap().clone();
    let path = |digest: &str| blobs.join(digest.trim_start_matches("sha256:"));
    let mut manifest: Value =
        serde_json::from_slice(&fs::read(path(referrer["digest"].as_str().unwrap())).unwrap()).unwrap();
    manifest["subject"]["digest"] = claimed.clone().into();
    manifest["subject"]["size"] = fs::metadata(path(&claimed)).unwrap().len().into();
    let text = manifest.to_string();
    let written = operetta_registry::Digest::of(text.as_bytes());
    fs::write(blobs.join(written.hex()), &text).unwrap();
    (referrer["digest"], referrer["size"]) = (written.to_string().into(), text.len().into());
    listed["manifests"].as_array_mut().unwrap().push(referrer);
    fs::write(&index, listed.to_string()).unwrap();
    let output = run(folder, &["inspect", &format!("layout@{claimed}"), "--check"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("it survives everything") && text.contains("stated passed, found none"), "{text}");
}

//! Indexes of packages, by the commands: built from a registry on loopback, signed, searched, shown; and deprecated versions.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::Value;

use crate::publishing::key;
use crate::says::says;

/// Runs a command that succeeds, in a folder; its output and its messages.
fn ok(folder: &Path, args: &[&str]) -> (String, String) {
    let output = run(folder, args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {err}");
    (out.trim_end().to_owned(), err.into_owned())
}

/// The exit code and the message of a command that fails.
fn fails(folder: &Path, args: &[&str]) -> (i32, String) {
    let output = run(folder, args);
    assert!(output.stdout.is_empty(), "{args:?}");
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn run(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_operetta"));
    command.current_dir(folder).args(args).env("OPERETTA_CACHE", folder.join("cache"));
    command.env_remove("OPERETTA_CATALOG").env_remove("OPERETTA_CATALOG_KEY").output().unwrap()
}

/// A copy of `operators/webapp` with another version; the path.
fn webapp(folder: &Path, version: &str) -> String {
    let to = folder.join(format!("webapp-{version}"));
    let copied = Command::new("cp").arg("-r").arg("operators/webapp").arg(&to).status().unwrap();
    assert!(copied.success());
    let path = to.join("operator.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("  version: ").unwrap();
    let (_, after) = rest.split_once('\n').unwrap();
    fs::write(path, format!("{before}  version: {version}\n{after}")).unwrap();
    to.display().to_string()
}

/// Serves layouts as a registry that is only read: the paths of repositories, and their folders. Returns the address.
fn serve(repositories: BTreeMap<String, String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let repositories = Arc::new(repositories);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let repositories = Arc::clone(&repositories);
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let mut request = String::new();
                    if lines.read_line(&mut request).unwrap_or_default() == 0 {
                        return;
                    }
                    let mut header = String::new();
                    while lines.read_line(&mut header).is_ok_and(|read| read > 2) {
                        header.clear();
                    }
                    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                    let body = answer(&repositories, &path);
                    let (status, body) = body.map_or((404, Vec::new()), |body| (200, body));
                    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n", body.len());
                    let mut stream = &stream;
                    if stream.write_all(&[head.as_bytes(), &body].concat()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn answer(repositories: &BTreeMap<String, String>, path: &str) -> Option<Vec<u8>> {
    let path = path.strip_prefix("/v2/")?.split('?').next()?;
    if path == "_catalog" {
        let names: Vec<&String> = repositories.keys().collect();
        return Some(serde_json::json!({"repositories": names}).to_string().into_bytes());
    }
    let (name, folder) = repositories.iter().find(|(name, _)| path.starts_with(&format!("{name}/")))?;
    let rest = &path[name.len() + 1..];
    let index: Value = serde_json::from_slice(&fs::read(format!("{folder}/index.json")).ok()?).ok()?;
    let blob =
        |digest: &str| fs::read(format!("{folder}/blobs/sha256/{}", digest.strip_prefix("sha256:")?)).ok();
    let manifests = index["manifests"].as_array()?;
    let tag =
        |one: &Value| one["annotations"]["org.opencontainers.image.ref.name"].as_str().map(str::to_owned);
    if rest == "tags/list" {
        let tags: Vec<String> = manifests.iter().filter_map(tag).collect();
        return Some(serde_json::json!({"tags": tags}).to_string().into_bytes());
    }
    if let Some(subject) = rest.strip_prefix("referrers/") {
        let refers = |one: &&Value| {
            let manifest: Value =
                serde_json::from_slice(&blob(one["digest"].as_str().unwrap()).unwrap()).unwrap();
            manifest["subject"]["digest"] == subject
        };
        let found: Vec<&Value> = manifests.iter().filter(refers).collect();
        return Some(serde_json::json!({"schemaVersion": 2, "manifests": found}).to_string().into_bytes());
    }
    let reference = rest.strip_prefix("manifests/").or_else(|| rest.strip_prefix("blobs/"))?;
    let tagged = manifests.iter().find(|one| tag(one).as_deref() == Some(reference));
    blob(tagged.and_then(|one| one["digest"].as_str()).unwrap_or(reference))
}

#[test]
fn an_index_is_built_signed_searched_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for version in ["1.0.0", "1.1.0"] {
        ok(folder, &["package", &webapp(folder, version), "-o", "web"]);
    }
    let (digest, _) = ok(folder, &["inspect", "web:1.0.0", "-o", "json"]);
    let digest: Value = serde_json::from_str(&digest).unwrap();
    let old = digest["digest"].as_str().unwrap();
    ok(folder, &["copy", &format!("web@{old}"), "web:stable"]);
    key(folder, "ours");
    key(folder, "theirs");
    ok(folder, &["sign", "web:1.1.0", "--key", "ours.pem"]);
    let said = ["--message", "loses data", "--replaced-by", "oci://ghcr.io/acme/webapp:1.1.0"];
    let (printed, _) = ok(folder, &[&["deprecate", "web:1.0.0", "--key", "ours.pem"][..], &said].concat());
    assert_eq!(printed, format!("web:1.0.0@{old}"));

    let layout = folder.join("web").display().to_string();
    let address =
        serve([("acme/webapp".to_owned(), layout.clone()), ("other/webapp".to_owned(), layout)].into());
    let place = format!("{address}/acme");
    let build = ["catalog", "build", &place, "-o", "index.json", "--key", "ours.pem"];
    let (_, messages) = ok(folder, &build);
    assert!(messages.contains("1 package in"), "{messages}");
    let first = fs::read(folder.join("index.json")).unwrap();
    ok(folder, &build);
    assert_eq!(fs::read(folder.join("index.json")).unwrap(), first);

    let catalog = ["--catalog", "index.json", "--catalog-key", "ours.pub"];
    let with = |args: &[&'static str]| [args, &catalog].concat();
    let (found, _) = ok(folder, &with(&["search", "WEBAPP", "-o", "json"]));
    let found: Value = serde_json::from_str(&found).unwrap();
    let versions = found[0]["versions"].as_array().unwrap();
    assert_eq!((versions.len(), &versions[0]["version"]), (2, &Value::from("1.1.0")));
    assert_eq!(versions[0]["signers"].as_array().map(Vec::len), Some(1));
    assert_eq!(versions[1]["deprecated"]["message"], "loses data");
    assert_eq!(found[0]["channels"][0]["version"], "1.0.0");
    let (table, _) = ok(folder, &with(&["search", "-o", "wide"]));
    assert!(
        table.contains("stable=1.0.0") && table.contains(&format!("oci://{address}/acme/webapp")),
        "{table}"
    );
    let (name, _) = ok(folder, &with(&["search", "webapp", "-o", "name"]));
    assert!(name.starts_with(&format!("oci://{address}/acme/webapp:1.1.0@sha256:")), "{name}");
    let (nothing, message) = ok(folder, &with(&["search", "webap p"]));
    assert!(nothing.is_empty() && message.contains("No packages found"), "{message}");
    let (_, message) = ok(folder, &with(&["search", "wbeapp"]));
    assert!(message.contains("did you mean webapp?"), "{message}");

    let (shown, _) = ok(folder, &with(&["show", "webapp:stable", "-o", "json"]));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["version"], "1.0.0");
    assert_eq!(shown["deprecated"]["replacedBy"], "oci://ghcr.io/acme/webapp:1.1.0");
    let fields = shown["kinds"][0]["fields"].as_array().unwrap();
    assert!(fields.iter().any(|field| field["path"] == "spec.replicas"), "{fields:?}");
    let (text, _) = ok(folder, &with(&["show", "webapp:1.0.0"]));
    assert!(text.contains("Deprecated:  loses data") && text.contains("Channels:    stable=1.0.0"), "{text}");
    says(fails(folder, &with(&["show", "wbeapp"])), 1, &["did you mean webapp?"]);

    // An index of another key, an altered one, and one without a signature are not read.
    let (code, message) =
        fails(folder, &["search", "--catalog", "index.json", "--catalog-key", "theirs.pub"]);
    assert!(code == 1 && message.contains("no valid signature"), "{message}");
    fs::write(folder.join("index.json"), [&first[..], b"\n"].concat()).unwrap();
    says(fails(folder, &with(&["search"])), 1, &["no valid signature"]);
    fs::remove_file(folder.join("index.json.sigstore.json")).unwrap();
    says(fails(folder, &with(&["search"])), 1, &["no signature beside it"]);
    let (code, message) = fails(folder, &["search", "x"]);
    assert!(code == 2 && message.contains("OPERETTA_CATALOG"), "{message}");
    // One index that cannot be read does not hide another one, and is not forgotten.
    let output = run(folder, &["search", "--catalog", "index.json,none.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("webapp"));

    // What is no package is left out with its name, or nothing is written.
    fs::create_dir_all(folder.join("broken")).unwrap();
    fs::write(folder.join("broken/index.json"), r#"{"manifests": []}"#).unwrap();
    let layout = folder.join("web").display().to_string();
    let broken = folder.join("broken").display().to_string();
    let address = serve([("acme/webapp".to_owned(), layout), ("acme/broken".to_owned(), broken)].into());
    let (_, messages) = ok(folder, &["catalog", "build", &address, "-o", "all.json"]);
    assert!(
        messages.contains("acme/broken is left out: ") && messages.contains("1 package in"),
        "{messages}"
    );
    let (code, _) = fails(folder, &["catalog", "build", &address, "-o", "strict.json", "--strict"]);
    assert!(code == 1 && !folder.join("strict.json").exists());
}

#[test]
fn a_folder_is_shown_without_an_index() {
    let (text, _) = ok(Path::new("."), &["show", "operators/etcd"]);
    for expected in [
        "Package:     etcd ",
        "EtcdCluster (etcd.database.coreos.com/v1beta2), namespaced",
        "spec.size",
        "STARTED BY",
        "# etcd",
        "Rights: ",
        "--depth 2 shows more",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let (code, message) = fails(Path::new("."), &["show", "operators/none"]);
    assert!(code != 0 && message.contains("operators/none"), "{message}");
}

#[test]
fn a_deprecated_version_is_installed_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for version in ["1.0.0", "1.1.0"] {
        ok(folder, &["package", &webapp(folder, version), "-o", "web"]);
    }
    key(folder, "ours");
    ok(folder, &["sign", "web:1.0.0", "--key", "ours.pem"]);
    ok(
        folder,
        &["deprecate", "web:1.0.0", "-m", "unsigned words \u{202e}", "--replaced-by", "oci://r/web:1.1.0"],
    );
    let warned = |args: &[&str]| {
        let (_, messages) = ok(folder, args);
        messages.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let install = ["install", "web:1.0.0", "--dry-run"];
    let message = warned(&install);
    assert!(
        message.contains("is deprecated: unsigned words")
            && message.contains("use oci://r/web:1.1.0 instead"),
        "{message}"
    );
    assert!(message.contains("unsigned: who may push") && !message.contains('\u{202e}'), "{message}");
    let message = warned(&[&install[..], &["--key", "ours.pub"]].concat());
    assert!(message.contains("not signed by a given key"), "{message}");
    ok(folder, &["deprecate", "web", "--all-versions", "-m", "no longer maintained", "--key", "ours.pem"]);
    let message = warned(&[&install[..], &["--key", "ours.pub"]].concat());
    let (signed, unsigned) = (message.find("no longer maintained"), message.find("unsigned words"));
    assert!(signed.is_some() && signed < unsigned, "{message}");
    assert!(message.contains("(signed by the key sha256:"), "{message}");
    // The same again changes nothing.
    let index = fs::read(folder.join("web/index.json")).unwrap();
    ok(folder, &["deprecate", "web", "--all-versions", "-m", "no longer maintained", "--key", "ours.pem"]);
    assert_eq!(fs::read(folder.join("web/index.json")).unwrap(), index);
    // It travels with the package.
    ok(folder, &["copy", "web:1.1.0", "copied"]);
    let (text, _) = ok(folder, &["inspect", "copied"]);
    assert!(text.contains("Deprecated:  no longer maintained"), "{text}");
    let (table, _) = ok(folder, &["versions", "web"]);
    assert!(table.contains("DEPRECATED") && table.contains("no longer maintained"), "{table}");
    for args in [
        &["deprecate", "web", "-m", "x"][..],
        &["deprecate", "web:1.0.0", "--all-versions", "-m", "x"],
        &["deprecate", "web:1.0.0", "-m", " "],
        &["deprecate", "web:1.0.0", "-m", "x", "--replaced-by", "elsewhere"],
    ] {
        assert_eq!(fails(folder, args).0, 2, "{args:?}");
    }
}

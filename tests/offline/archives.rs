//! Packages in archives, as `operetta install` reads them. An archive may come from anybody.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tar::{Builder, EntryType, Header};

use crate::crd::crd_to_properties;

const OPERATOR: &str = "
apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: web}
spec:
  version: 0.1.0
  resources:
    - crd: crds/web.yaml
      children: [{id: config, template: templates/config.yaml}]
";
const CONFIG: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\ndata: {size: \"{{ spec.size }}\"}\n";

fn crd() -> String {
    let spec = "            spec: {type: object, properties: {size: {type: integer, default: 1}}}\n";
    crd_to_properties("example.com", "webs", "Web") + spec
}

/// The files of a small package with the name `web` and the version 0.1.0.
pub(crate) fn files() -> Vec<(&'static str, String)> {
    vec![
        ("operator.yaml", OPERATOR.to_owned()),
        ("crds/web.yaml", crd()),
        ("templates/config.yaml", CONFIG.to_owned()),
    ]
}

/// Adds an entry as it is, even with a name that the builder would refuse.
fn entry(builder: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_entry_type(kind);
    header.set_mode(0o644);
    let bytes = header.as_old_mut();
    bytes.name[..name.len()].copy_from_slice(name.as_bytes());
    bytes.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

/// An archive of the package below a prefix, with more entries.
fn archive(prefix: &str, more: impl FnOnce(&mut Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (path, text) in files() {
        entry(&mut builder, EntryType::Regular, &format!("{prefix}{path}"), "", text.as_bytes());
    }
    more(&mut builder);
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// `operetta install - --dry-run -o json` within 1 GiB of memory.
fn install(archive: &[u8]) -> Output {
    let command = format!("ulimit -v {}; exec \"$0\" \"$@\"", 1 << 20);
    let mut child = Command::new("sh")
        .args(["-c", &command, env!("CARGO_BIN_EXE_operetta"), "install", "-", "--dry-run", "-o", "json"])
        // Each thread takes address space.
        .env("TOKIO_WORKER_THREADS", "2")
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(archive);
    child.wait_with_output().unwrap()
}

fn revision(output: &Output) -> String {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let items = list["items"].as_array().unwrap();
    items.last().unwrap()["spec"]["revision"].as_str().unwrap().to_owned()
}

#[track_caller]
fn refused(archive: &[u8], words: &str, code: i32) {
    let output = install(archive);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains(words), "{words}: {told}");
    assert_eq!(output.status.code(), Some(code), "{told}");
    assert!(output.stdout.is_empty());
}

#[test]
fn an_archive_has_the_revision_of_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files() {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let install_folder = |folder: &Path| {
        Command::new(env!("CARGO_BIN_EXE_operetta"))
            .args(["install", folder.to_str().unwrap(), "--dry-run", "-o", "json"])
            .output()
            .unwrap()
    };
    let expected = revision(&install_folder(folder.path()));
    let plain = archive("", |_| {});
    let extras = |prefix: &'static str| {
        archive(prefix, move |builder| {
            entry(builder, EntryType::Directory, &format!("{prefix}tests/"), "", b"");
            entry(builder, EntryType::Regular, &format!("{prefix}tests/a.yaml"), "", b"a: b");
            entry(builder, EntryType::Regular, &format!("{prefix}README.md"), "", b"\xff");
            entry(builder, EntryType::Regular, &format!("{prefix}templates/.hidden"), "", b"x");
            entry(builder, EntryType::Regular, &format!("{prefix}templates/a.yaml~"), "", b"x");
            entry(builder, EntryType::XGlobalHeader, "pax_global_header", "", b"");
        })
    };
    for bytes in
        [plain.clone(), gzip(&plain), gzip(&extras("")), gzip(&extras("./")), gzip(&extras("web-0.1.0/"))]
    {
        assert_eq!(revision(&install(&bytes)), expected);
    }
    // An archive made by tar itself.
    for (from, what) in [
        (folder.path(), "."),
        (folder.path().parent().unwrap(), folder.path().file_name().unwrap().to_str().unwrap()),
    ] {
        let made = Command::new("tar").arg("-czf").arg("-").arg("-C").arg(from).arg(what).output().unwrap();
        assert_eq!(revision(&install(&made.stdout)), expected);
    }
}

#[test]
fn entries_that_are_no_files_of_a_package_are_refused() {
    for (kind, name, link, words) in [
        (EntryType::Regular, "templates/../../evil", "", "leaves its folder"),
        (EntryType::Regular, "../evil", "", "leaves its folder"),
        (EntryType::Regular, "/etc/passwd", "", "has an absolute path"),
        (EntryType::Regular, ".", "", "is a file without a name"),
        (EntryType::Regular, "templates/./a.yaml", "", "has an empty part in its path"),
        (EntryType::Regular, "templates//a.yaml", "", "has an empty part in its path"),
        (EntryType::Regular, "templates/a\\b", "", "a backslash or a control character"),
        (EntryType::Regular, "templates/a\x1bb", "", "a backslash or a control character"),
        (EntryType::Regular, "operator.yaml", "", "is there twice"),
        (EntryType::Regular, "./operator.yaml", "", "is there twice"),
        (EntryType::Symlink, "templates/a.yaml", "/etc/passwd", "is a link"),
        (EntryType::Link, "templates/a.yaml", "operator.yaml", "is a link"),
        (EntryType::Char, "templates/null", "", "is neither a file nor a folder"),
        (EntryType::Block, "templates/disk", "", "is neither a file nor a folder"),
        (EntryType::Fifo, "templates/pipe", "", "is neither a file nor a folder"),
    ] {
        refused(&archive("", |builder| entry(builder, kind, name, link, b"")), words, 1);
    }
}

#[test]
fn archives_without_a_package_are_refused() {
    refused(b"", "has no operator.yaml", 2);
    refused(b"hello", "cannot be read as a tar archive", 2);
    refused(&[0x1f, 0x8b, 1, 2, 3], "cannot be read as a tar archive", 2);
    let whole = gzip(&archive("", |_| {}));
    refused(&whole[..whole.len() / 2], "cannot be read as a tar archive", 2);
    refused(&archive("a/b/", |_| {}), "has no operator.yaml", 2);
    // An archive with two packages.
    let two = archive("a/", |builder| {
        entry(builder, EntryType::Regular, "b/operator.yaml", "", OPERATOR.as_bytes());
    });
    refused(&two, "has no operator.yaml", 2);
    refused(
        &archive("", |builder| entry(builder, EntryType::Regular, "templates/b.yaml", "", b"\xff")),
        "is not UTF-8",
        1,
    );
}

/// Two gibibytes of zeros, compressed to two megabytes.
#[test]
fn compressed_bomb_is_refused_within_the_memory_limit() {
    let zeros = gzip(&vec![0; 16 << 20]);
    let bomb = |name: &str, size: u64| {
        let mut header = Header::new_gnu();
        header.set_path(name).unwrap();
        header.set_size(size);
        header.set_entry_type(EntryType::Regular);
        header.set_cksum();
        let mut bytes = gzip(header.as_bytes());
        for _ in 0..128 {
            bytes.extend_from_slice(&zeros);
        }
        bytes
    };
    let two = 2_u64 << 30;
    refused(&bomb("operator.yaml", two), "is larger than 4 MiB", 1);
    // A long-name entry, which holds the full name of the next entry.
    let mut long = Header::new_gnu();
    long.set_path("././@LongLink").unwrap();
    long.set_size(two);
    long.set_entry_type(EntryType::GNULongName);
    long.set_cksum();
    let mut bytes = gzip(long.as_bytes());
    for _ in 0..128 {
        bytes.extend_from_slice(&zeros);
    }
    refused(&bytes, "is larger than 64 MiB when decompressed", 1);
    // Many files, each of an allowed size.
    let block = vec![b'a'; 4 << 20];
    let many = archive("", |builder| {
        for index in 0..20 {
            entry(builder, EntryType::Regular, &format!("docs/{index}"), "", &block);
        }
    });
    refused(&gzip(&many), "is larger than 64 MiB when decompressed", 1);
    let large = archive("", |builder| {
        for index in 0..5 {
            entry(builder, EntryType::Regular, &format!("templates/{index}"), "", &block);
        }
    });
    refused(&gzip(&large), "larger than 16 MiB together", 1);
    let countless = archive("", |builder| {
        for index in 0..2_100 {
            entry(builder, EntryType::Regular, &format!("docs/{index}"), "", b"");
        }
    });
    refused(&countless, "more than 2000 files", 1);
}

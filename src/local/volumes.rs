//! Removes the folders of volumes that the controller manager creates outside the control plane's own folder.
//!
//! Kubernetes' provisioner for `kubernetes.io/host-path` creates `/tmp/hostpath_pv/<uuid>` for each volume,
//! and no flag changes this path. It removes the folder when the volume is deleted. If volumes still exist
//! when the control plane is killed, their folders are found in etcd's files, which contain the paths as
//! plain text. So the cleanup needs no running process.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The folder in which the provisioner creates its folders.
const BASE: &str = "/tmp/hostpath_pv";

/// The length of a UUID as text.
const UUID: usize = 36;

/// The number of bytes of a file that are searched at once.
const PIECE: usize = 1 << 16;

/// The folder of etcd's data, below the control plane's folder.
pub(super) const ETCD_DATA: &str = "etcd";

/// Removes the folders of volumes that etcd's data below `folder` names. With a real node, they contain data
/// that pods have written. Fake nodes write nothing, so without a real node only empty folders are removed.
pub(super) fn remove(folder: &Path, with_data: bool) {
    let mut names = BTreeSet::new();
    if !Path::new(BASE).is_dir() {
        return;
    }
    let _ = collect(&folder.join(ETCD_DATA), &mut names);
    for name in names {
        let volume = Path::new(BASE).join(name);
        let _ = if with_data { fs::remove_dir_all(volume) } else { fs::remove_dir(volume) };
    }
    let _ = fs::remove_dir(BASE);
}

/// Collects the names of volume folders in all files below `path`.
fn collect(path: &Path, names: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), names)?;
        } else {
            scan(File::open(entry.path())?, names)?;
        }
    }
    Ok(())
}

/// Collects the names of volume folders in a stream of bytes.
fn scan(mut input: impl Read, names: &mut BTreeSet<String>) -> io::Result<()> {
    let needle = format!("{BASE}/");
    let longest = needle.len() + UUID;
    let mut buffer = vec![0; PIECE];
    let zeros = vec![0; PIECE];
    let mut filled = 0;
    loop {
        let read = input.read(&mut buffer[filled..])?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let window = &buffer[..filled];
        // Most of etcd's log is preallocated zeros, which are skipped quickly.
        if *window == zeros[..filled] {
            filled = 0;
            continue;
        }
        let mut from = 0;
        while let Some(found) = window[from..].iter().position(|byte| *byte == b'/') {
            let start = from + found;
            let Some(candidate) = window.get(start..start + longest) else { break };
            if candidate.starts_with(needle.as_bytes()) {
                names.extend(uuid(&candidate[needle.len()..]));
            }
            from = start + 1;
        }
        // The end of the piece may be the beginning of a path that continues in the next piece.
        let keep = filled.min(longest - 1);
        buffer.copy_within(filled - keep..filled, 0);
        filled = keep;
    }
}

/// Returns the bytes as text if they are a UUID. Nothing else may become part of a path that is removed.
fn uuid(bytes: &[u8]) -> Option<String> {
    let valid = bytes.iter().enumerate().all(|(i, byte)| match i {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    });
    valid.then(|| String::from_utf8(bytes.to_vec()).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
    const B: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

    fn found(bytes: impl AsRef<[u8]>) -> Vec<String> {
        let mut names = BTreeSet::new();
        scan(bytes.as_ref(), &mut names).unwrap();
        names.into_iter().collect()
    }

    #[test]
    fn finds_folders_in_binary_files() {
        let cases: [(String, &[&str]); 7] = [
            (String::new(), &[]),
            (format!("\0\u{12}/tmp/hostpath_pv/{A}\u{1a}\0"), &[A]),
            (format!("/tmp/hostpath_pv/{A}"), &[A]),
            (format!("/tmp/hostpath_pv/{A}/tmp/hostpath_pv/{B}/tmp/hostpath_pv/{A}"), &[A, B]),
            (format!("/tmp//tmp/hostpath_pv/{A}"), &[A]),
            (format!("/tmp/hostpath_pv/{}", "../".repeat(12)), &[]),
            (format!("/tmp/hostpath_pv/{}", &A[1..]), &[]),
        ];
        for (text, names) in cases {
            assert_eq!(found(&text), names, "{text:?}");
        }
    }

    #[test]
    fn finds_folders_across_pieces() {
        for before in [PIECE - 60, PIECE - 20, PIECE - 1, PIECE, 3 * PIECE] {
            for byte in ["\0", "x", "/"] {
                let text = format!("{}/tmp/hostpath_pv/{A}", byte.repeat(before));
                assert_eq!(found(text), [A], "{before} times {byte:?}");
            }
        }
    }
}

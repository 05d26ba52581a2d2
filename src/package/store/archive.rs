//! The archive of the files of a package. For each file, sorted by path: the length of the path as 8 bytes
//! (little endian), the path, the length of the content, and the content. There are no links, modes or times,
//! so equal files have equal archives.

use super::super::files::{DEPTH, ENTRIES, FILE_BYTES, FOLDERS, Files, LOCK, OPERATOR_YAML};

/// The maximum size of an archive: the 16 MiB that the loader reads, and 1 MiB for paths and lengths.
pub(super) const MOST_BYTES: usize = 17 << 20;

/// Writes the archive of the files.
pub(super) fn write(files: &Files) -> Vec<u8> {
    let mut bytes = Vec::new();
    files.archive(|part| bytes.extend_from_slice(part));
    bytes
}

/// Reads the files of an archive; `root` is the folder that messages name.
pub(super) fn read(root: &str, mut bytes: &[u8]) -> Result<Files, String> {
    let mut files: Vec<(&str, &str)> = Vec::new();
    while !bytes.is_empty() {
        if files.len() == ENTRIES {
            return Err(format!("there are more than {ENTRIES} files"));
        }
        let path = text(&mut bytes)?;
        check(path)?;
        if files.last().is_some_and(|(last, _)| *last >= path) {
            return Err(format!("{path:?} is not in order"));
        }
        let content = text(&mut bytes)?;
        if content.len() as u64 > FILE_BYTES {
            return Err(format!("{path} is larger than {} MiB", FILE_BYTES >> 20));
        }
        files.push((path, content));
    }
    Ok(Files::from_texts(root, files))
}

/// Reads the next text.
fn text<'a>(bytes: &mut &'a [u8]) -> Result<&'a str, String> {
    let ends = || "the archive ends within a file".to_owned();
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(ends)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| ends())?;
    let (text, rest) = rest.split_at_checked(length).ok_or_else(ends)?;
    *bytes = rest;
    std::str::from_utf8(text).map_err(|_| "a path or content is not UTF-8".to_owned())
}

/// Checks that a package may have a file with this path.
fn check(path: &str) -> Result<(), String> {
    let mut parts = path.split('/');
    let is_in_folder = parts.next().is_some_and(|first| FOLDERS.contains(&first)) && path.contains('/');
    let is_name = |part: &str| {
        !part.is_empty() && !part.starts_with('.') && !part.contains(|c: char| c == '\\' || c.is_control())
    };
    if [OPERATOR_YAML, LOCK].contains(&path)
        || is_in_folder && parts.clone().count() <= DEPTH && parts.all(is_name)
    {
        return Ok(());
    }
    let shown: String = path.chars().take(100).collect();
    Err(format!("{shown:?} is no path of a package"))
}

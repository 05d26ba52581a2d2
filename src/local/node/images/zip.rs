//! Reads zip archives, such as wheels: their files and links.

use std::io::{Cursor, Read as _};

use ::zip::ZipArchive;
use ::zip::read::ZipFile;

use super::layer::Content;

/// The largest file of an archive.
const FILE_BYTES: u64 = 2 << 30;

/// A file or link of an archive.
pub(super) struct Zipped {
    pub path: String,
    pub content: Content,
    pub mode: u32,
}

/// The files and links of an archive. The reason is returned if it is none.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<Zipped>, String> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    for number in 0..archive.len() {
        let entry = archive.by_index(number).map_err(|error| error.to_string())?;
        if !entry.is_dir() {
            found.push(file(entry)?);
        }
    }
    Ok(found)
}

fn file(mut entry: ZipFile<'_, Cursor<&[u8]>>) -> Result<Zipped, String> {
    let path = entry.name().map_err(|error| error.to_string())?.into_owned();
    let mut content = Vec::new();
    entry
        .by_ref()
        .take(FILE_BYTES)
        .read_to_end(&mut content)
        .map_err(|error| format!("{path} is damaged: {error}"))?;
    if content.len() as u64 != entry.size() {
        return Err(format!("{path} is damaged, or larger than {} GiB", FILE_BYTES >> 30));
    }
    let content = if entry.is_symlink() {
        Content::Link(String::from_utf8_lossy(&content).into_owned())
    } else {
        Content::File(content)
    };
    // Archives of other systems say nothing of permissions.
    let mode = entry.unix_mode().map(|mode| mode & 0o777).filter(|mode| *mode != 0).unwrap_or(0o644);
    Ok(Zipped { path, content, mode })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use ::zip::ZipWriter;
    use ::zip::write::SimpleFileOptions;

    use super::*;

    /// An archive of one file.
    fn archive(path: &str, text: &str) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        writer.start_file(path, SimpleFileOptions::default().unix_permissions(0o755)).unwrap();
        writer.write_all(text.as_bytes()).unwrap();
        writer.finish().unwrap().into_inner()
    }

    #[test]
    fn files_are_read_with_their_modes() {
        let found = read(&archive("bin/a", "text")).unwrap();
        assert_eq!((found[0].path.as_str(), found[0].mode), ("bin/a", 0o755));
        assert_eq!(found[0].content, Content::File(b"text".to_vec()));
    }

    #[test]
    fn damaged_archives_are_errors() {
        let whole = archive("a", "text");
        for end in 0..whole.len() {
            assert!(read(&whole[..end]).is_err(), "{end}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let _ = read(&damaged);
        }
    }
}

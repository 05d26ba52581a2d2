//! The archive of a package's files: equal files have equal bytes. Entries are sorted by path, and have no
//! times, owners or modes of the machine.

use std::io::{self, Write as _};

use flate2::{Compression, GzBuilder};

use crate::digest::Digest;

/// How well it is compressed: written once and read often.
const LEVEL: u32 = 9;
/// The byte of a gzip header that says that the system is unknown; the default is of the machine.
const UNKNOWN_SYSTEM: u8 = 255;

/// A compressed archive.
#[derive(Debug, Clone)]
pub struct Archive {
    /// The compressed bytes.
    pub bytes: Vec<u8>,
    /// The digest of the archive before compression.
    pub tar: Digest,
}

/// Archives files: their paths, which must be unique, and contents.
///
/// # Errors
/// A path is too long for a tar archive.
pub fn archive<'f>(files: impl IntoIterator<Item = (&'f str, &'f [u8])>) -> io::Result<Archive> {
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_unstable();
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, path, content)?;
    }
    let tar = builder.into_inner()?;
    let gzip = GzBuilder::new().mtime(0).operating_system(UNKNOWN_SYSTEM);
    let mut gzip = gzip.write(Vec::new(), Compression::new(LEVEL));
    gzip.write_all(&tar)?;
    Ok(Archive { bytes: gzip.finish()?, tar: Digest::of(&tar) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_files_have_equal_bytes() {
        let long = format!("templates/{}/{}.yaml", "a".repeat(90), "b".repeat(90));
        let files: [(&str, &[u8]); 3] =
            [("operator.yaml", b"a: b\n"), ("crds/x.yaml", b"c: d\n"), (&long, b"e: f\n")];
        let first = archive(files).unwrap();
        let second = archive(files.into_iter().rev()).unwrap();
        assert_eq!(first.bytes, second.bytes);
        assert_eq!(first.bytes[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, UNKNOWN_SYSTEM]);
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(&first.bytes[..]));
        let entries = tar.entries().unwrap().map(Result::unwrap);
        let paths: Vec<String> =
            entries.map(|entry| String::from_utf8(entry.path_bytes().into_owned()).unwrap()).collect();
        assert_eq!(paths, ["crds/x.yaml", "operator.yaml", &long]);
        assert_ne!(archive([("operator.yaml", &b"a: c\n"[..])]).unwrap().tar, first.tar);
    }
}

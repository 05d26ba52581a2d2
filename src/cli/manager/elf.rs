//! What an executable needs to run in an image: its architecture, and whether it is linked statically.

/// The header of an ELF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Elf {
    /// `amd64` or `arm64`.
    pub architecture: &'static str,
    /// Whether another program must load it, and libraries with it.
    pub needs_loader: bool,
}

/// The type of the entry that names the loader.
const INTERPRETER: u64 = 3;

/// Reads the header of a 64-bit ELF file for Linux.
///
/// # Errors
/// What is wrong with the file.
pub(super) fn read(file: &[u8]) -> Result<Elf, &'static str> {
    let number = |at: usize, size: usize| -> Option<u64> {
        let bytes = file.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return Err("it is no 64-bit executable of Linux");
    }
    let architecture = match number(18, 2) {
        Some(62) => "amd64",
        Some(183) => "arm64",
        _ => return Err("it is for another processor than amd64 and arm64"),
    };
    let entries = || -> Option<Vec<u64>> {
        let start = usize::try_from(number(32, 8)?).ok()?;
        let (size, count) = (usize::try_from(number(54, 2)?).ok()?, usize::try_from(number(56, 2)?).ok()?);
        (0..count).map(|entry| number(start.checked_add(entry.checked_mul(size)?)?, 4)).collect()
    };
    let entries = entries().ok_or("it is cut off")?;
    Ok(Elf { architecture, needs_loader: entries.contains(&INTERPRETER) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_and_damaged_ones_refused() {
        let mut file = vec![0; 64 + 2 * 56];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (file[18], file[32], file[54], file[56]) = (62, 64, 56, 2);
        assert_eq!(read(&file), Ok(Elf { architecture: "amd64", needs_loader: false }));
        file[64 + 56] = 3;
        file[18] = 183;
        assert_eq!(read(&file), Ok(Elf { architecture: "arm64", needs_loader: true }));
        assert_eq!(read(&file[..100]), Err("it is cut off"));
        file[39] = 255;
        assert_eq!(read(&file), Err("it is cut off"));
        file[18] = 3;
        assert!(read(&file).is_err());
        assert!(read(b"#!/bin/sh").is_err());
        // The executable of this test.
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(read(&own).is_ok());
    }
}

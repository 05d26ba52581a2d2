//! `operetta dev` on the embedded API, as a process.

use std::path::Path;

use super::Operetta;

/// Starts `operetta dev` with its own folder for temporary files.
pub fn dev(args: &[&str], temporary: &Path) -> Operetta {
    let mut all = vec!["dev"];
    all.extend(args);
    Operetta::run_with(&all, &[("TMPDIR", temporary)])
}

/// Ends `operetta dev` as Ctrl-C does. Nothing is left.
pub async fn end(mut dev: Operetta, temporary: &Path) {
    let status = dev.end().await;
    assert!(status.success(), "{status}: {}", dev.output());
    nothing_left(temporary);
}

/// Panics unless the folder is empty.
pub fn nothing_left(temporary: &Path) {
    let files = std::fs::read_dir(temporary).expect("a folder");
    let files: Vec<_> = files.map(|entry| entry.expect("an entry").path()).collect();
    assert!(files.is_empty(), "{files:?}");
}

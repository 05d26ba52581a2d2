//! Scripts for the commands of exec steps, which run on this machine.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use operetta_embedded::ExecResult;

/// A folder in which commands of exec steps are scripted: `sh FOLDER/do NAME ARGUMENTS...` notes the call in `calls`,
/// waits for `NAME.sleep` seconds, prints `NAME.out`, and fails if there is a `NAME.fail`.
pub struct Commands {
    folder: tempfile::TempDir,
}

const SCRIPT: &str = r#"cd "$(dirname "$0")" || exit 9
name=$1
echo "$@" >> calls
[ -f "$name.sleep" ] && sleep "$(cat "$name.sleep")"
[ -f "$name.fail" ] && { cat "$name.fail" >&2; exit 3; }
[ -f "$name.out" ] && cat "$name.out"
exit 0
"#;

/// What the script does, without a process and in no time. `None` for other commands.
pub(super) fn scripted(command: &[String]) -> Option<ExecResult> {
    let [shell, script, name, arguments @ ..] = command else { return None };
    let folder = Path::new(script).parent().filter(|_| shell == "sh" && script.ends_with("/do"))?;
    let content = |end: &str| std::fs::read_to_string(folder.join(format!("{name}.{end}"))).ok();
    let mut calls = File::options().append(true).create(true).open(folder.join("calls")).expect("a file");
    writeln!(calls, "{}", [std::slice::from_ref(name), arguments].concat().join(" ")).expect("a file");
    let seconds = content("sleep").map(|text| text.trim().parse().expect("seconds"));
    let takes = Duration::from_secs_f64(seconds.unwrap_or_default());
    Some(match content("fail") {
        Some(stderr) => ExecResult { stderr, exit_code: 3, takes, ..ExecResult::default() },
        None => ExecResult { stdout: content("out").unwrap_or_default(), takes, ..ExecResult::default() },
    })
}

impl Commands {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("do"), SCRIPT).expect("a script");
        Self { folder }
    }

    /// The path of the script, which a command names after `sh`.
    pub fn script(&self) -> String {
        self.folder.path().join("do").to_str().expect("UTF-8").to_owned()
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// Sets what a command prints.
    pub fn prints(&self, name: &str, text: &str) {
        // Replace the file by a rename: a command may be reading it now.
        let fresh = self.path(".fresh");
        std::fs::write(&fresh, text).expect("a file");
        std::fs::rename(fresh, self.path(&format!("{name}.out"))).expect("a file");
    }

    /// Makes a command fail with this message; with `None` it succeeds again.
    pub fn fails(&self, name: &str, message: Option<&str>) {
        let path = self.path(&format!("{name}.fail"));
        match message {
            Some(message) => std::fs::write(path, message).expect("a file"),
            None => std::fs::remove_file(path).expect("it failed"),
        }
    }

    /// Makes a command take this many seconds.
    pub fn takes(&self, name: &str, seconds: &str) {
        std::fs::write(self.path(&format!("{name}.sleep")), seconds).expect("a file");
    }

    /// The calls so far of commands with this name, one a line.
    pub fn calls(&self, name: &str) -> Vec<String> {
        let all = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        all.lines().filter(|line| line.split(' ').next() == Some(name)).map(ToOwned::to_owned).collect()
    }
}

impl Default for Commands {
    fn default() -> Self {
        Self::new()
    }
}

//! Fields and objects that change hands, in the package's own tests. Beside people and a manager: `tests/engine/takeover.rs`.

use std::process::Command;

#[test]
fn fields_and_objects_change_hands() {
    let folder = "tests/fixtures/packages/takeover";
    let output = Command::new(env!("CARGO_BIN_EXE_operetta")).args(["test", folder]).output().unwrap();
    let told =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{}\n{told}", output.status);
}

//! Fields and objects that change hands, on the embedded API. On a real server: `tests/planes/takeover.rs`.

use std::process::Command;

#[test]
fn fields_and_objects_change_hands() {
    let folder = "tests/fixtures/packages/takeover";
    let output = Command::new(env!("CARGO_BIN_EXE_operetta")).args(["test", folder]).output().unwrap();
    let told =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{}\n{told}", output.status);
}

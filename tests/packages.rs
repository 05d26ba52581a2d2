//! The cases of the packages of this repository: `operetta test` of each.

// Tests may panic.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Plays the cases of a package.
fn play(folder: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_operetta")).args(["test", folder]).output().unwrap();
    let told =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "operetta test {folder}: {}\n{told}", output.status);
}

/// A test for each package.
macro_rules! packages {
    ($($name:ident: $folder:literal,)*) => {
        const PLAYED: &[&str] = &[$($folder),*];
        $(
            #[test]
            fn $name() {
                play($folder);
            }
        )*
    };
}

packages! {
    certificates: "examples/packages/certificates",
    cookbook: "examples/packages/cookbook",
    etcd: "operators/etcd",
    flight_ticket: "operators/flight-ticket",
    hello: "examples/packages/hello",
    other_flight_ticket: "examples/packages/flight-ticket",
    postgresql: "operators/postgresql",
    site: "examples/packages/site",
    sql: "examples/packages/sql",
    team: "examples/packages/team",
    valkey: "operators/valkey",
    webapp: "operators/webapp",
}

#[test]
fn every_package_with_tests_is_played() {
    let mut found = BTreeSet::new();
    for parent in ["operators", "examples/packages"] {
        for entry in fs::read_dir(parent).unwrap() {
            let folder = entry.unwrap().path();
            if folder.join("tests").is_dir() {
                found.insert(folder);
            }
        }
    }
    assert_eq!(found, PLAYED.iter().map(|folder| Path::new(folder).to_owned()).collect());
}

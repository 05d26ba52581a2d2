//! What must hold when the network, the API server, other people and the manager itself misbehave, with
//! faults injected between a manager in this process and a real API server. Comments of tests give the
//! numbers of the faults in the tables of `docs/testing.md`.

mod hands;
mod kills;
mod reads;
mod replies;
mod schedules;
mod sweeps;

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::faults::case::Case;
use crate::support::oracles::State;

/// The source of a topic, a file or a folder of one of the test binaries.
fn topic(name: &str) -> String {
    for binary in ["cluster", "planes", "offline"] {
        let path = format!("tests/{binary}/{name}");
        if let Ok(text) = std::fs::read_to_string(format!("{path}.rs")) {
            return text;
        }
        if let Ok(folder) = std::fs::read_dir(path) {
            let read = |path| std::fs::read_to_string(path).unwrap_or_default();
            return folder.map(|entry| read(entry.expect("an entry").path())).collect();
        }
    }
    panic!("no test binary has {name}.rs, nor a folder {name}")
}

/// `docs/testing.md` must name existing tests for each fault, and for each long form a variable that the file
/// reads.
#[test]
fn fault_tables_name_existing_tests() {
    let doc = crate::support::ext::file("docs/testing.md");
    let mut numbers = std::collections::BTreeSet::new();
    let mut found = 0;
    for row in doc.lines().filter(|line| line.starts_with("| ")) {
        let first = row.trim_start_matches("| ").split(' ').next().unwrap_or_default();
        numbers.extend(first.parse::<u32>());
        let mut source = String::new();
        for word in row.split('`').skip(1).step_by(2) {
            if let Some(stem) = word.strip_suffix(".rs") {
                source = if word.starts_with("src/") || word.starts_with("tests/") {
                    crate::support::ext::file(word)
                } else {
                    topic(stem)
                };
            } else if word.starts_with("OPERETTA_") {
                let name = word.split('=').next().unwrap_or_default();
                assert!(source.contains(&format!("\"{name}\"")), "{name}, of {row}");
            } else if word.contains('_') {
                assert!(source.contains(&format!("fn {word}(")), "{word}, of {row}");
                found += 1;
            }
        }
    }
    let missing: Vec<u32> = (1..=53).filter(|number| !numbers.contains(number)).collect();
    assert!(missing.is_empty(), "no test is named for {missing:?}");
    assert!(found > 60, "{found}");
}

/// The first spec.
fn first() -> Value {
    json!({"stage": "one"})
}

/// The second spec, in which something of every kind changes.
fn second() -> Value {
    json!({"stage": "two", "members": ["b", "c"], "keep": false, "port": 81})
}

/// The states of an undisturbed run after each step, with the creations and deletions of the step.
struct Reference {
    deployed: Checkpoint,
    edited: Checkpoint,
    deleted: Checkpoint,
}

struct Checkpoint {
    state: State,
    counts: Counts,
}

/// Creations and deletions by object.
type Counts = std::collections::BTreeMap<String, (usize, usize)>;

async fn reference() -> &'static Reference {
    static REFERENCE: OnceCell<Reference> = OnceCell::const_new();
    REFERENCE
        .get_or_init(async || {
            let case = Case::new().await;
            let process = case.start().await;
            let mut steps = Vec::new();
            for spec in [Some(first()), Some(second()), None] {
                let mark = case.wire.mark();
                if let Some(spec) = spec {
                    case.apply("i-calm", &spec).await;
                    case.ready("i-calm").await;
                } else {
                    case.delete("i-calm").await;
                    case.gone("i-calm").await;
                }
                case.quiet().await;
                steps.push(Checkpoint {
                    state: case.state("i-calm").await,
                    counts: case.counts(mark, "i-calm"),
                });
            }
            case.finish(process).await;
            let [deployed, edited, deleted] = <[Checkpoint; 3]>::try_from(steps).ok().expect("three steps");
            assert_eq!(deployed.state.len(), 8, "{:?}", deployed.state.keys());
            assert_eq!(deleted.state.keys().collect::<Vec<_>>(), ["configmaps <name>-kept"]);
            Reference { deployed, edited, deleted }
        })
        .await
}

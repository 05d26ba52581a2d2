//! The examples of the guide, tried.

use serde_json::json;

use super::*;

/// The examples of `docs/guide/worlds.md` that are whole worlds.
fn examples() -> Vec<Play> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/worlds.md");
    let text = std::fs::read_to_string(page).unwrap();
    let blocks = text.split("```yaml\n").skip(1).filter_map(|block| block.split("```").next());
    blocks
        .filter(|block| block.starts_with("apiVersion: "))
        .map(|block| Play::read("worlds.md", block))
        .collect()
}

#[test]
fn examples_of_the_guide_play() {
    let [mut store, mut api] = <[Play; 2]>::try_from(examples()).unwrap();
    store.start(&pod("a"));
    let missing = store.exec("a", "store get a");
    assert_eq!((missing.exit_code, &*missing.stderr), (1, "a does not exist\n"));
    store.prints("a", "store put a 1");
    store.prints("a", "store put a 2");
    assert_eq!(store.prints("a", "store get a"), "2\n");
    assert_eq!(store.answer("GET", "http://store.example.com/entries", &Value::Null), (200, json!([])));
    let statuses: Vec<u16> =
        (0..3).map(|_| api.answer("GET", "https://api.example.com/x", &Value::Null).0).collect();
    assert_eq!(statuses, [503, 503, 200]);
    assert!(store.world.faults().is_empty() && api.world.faults().is_empty());
}

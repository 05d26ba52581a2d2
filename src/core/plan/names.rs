//! Names and keys that derive from a run, so that a repeated effect meets the first one.

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The longest name of a Job: it is the value of a label of its pods.
const LONGEST: usize = 63;
/// How many characters of the digest are in a name.
const DIGEST: usize = 10;

/// The name of the object of an attempt of a step: of its Job, or of the `PlanRun` of another instance. Who does not know the
/// key cannot tell it before it is stored.
pub(super) fn attempt_name(key: &[u8], instance: &str, run_id: &str, step: &str, attempt: u32) -> String {
    let digest = keyed_digest(key, &json!(["attempt", run_id, step, attempt]));
    let last = step.rsplit('/').next().unwrap_or(step);
    let words: String = format!("{instance}-{last}").to_lowercase();
    let words: String = words.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let words = words.get(..LONGEST - DIGEST - 1).unwrap_or(&words).trim_matches('-');
    format!("{words}-{}", &digest[..DIGEST])
}

/// The `Idempotency-Key` of a step: the same for all of its attempts, and for retries by a person.
pub fn idempotency_key(instance_uid: &str, run_id: &str, step: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(format!("{instance_uid}\n{run_id}\n{step}")))[..32].to_owned()
}

/// A hash of a value that may hold secret data.
pub(crate) fn keyed_digest(key: &[u8], value: &Value) -> String {
    let inner =
        Sha256::new().chain_update(key).chain_update(b"\n").chain_update(value.to_string()).finalize();
    let outer = Sha256::new().chain_update(key).chain_update(b"\n").chain_update(inner).finalize();
    HEXLOWER.encode(&outer)[..16].to_owned()
}

/// The keys of the items of a loop in paths: short texts as they are; of maps a `key` or `name`; else the index.
pub(super) fn item_keys(items: &[Value]) -> Vec<String> {
    let keys: Option<Vec<String>> = items.iter().map(own_key).collect();
    let distinct =
        |keys: &Vec<String>| keys.iter().collect::<std::collections::BTreeSet<_>>().len() == keys.len();
    keys.filter(distinct).unwrap_or_else(|| (0..items.len()).map(|index| index.to_string()).collect())
}

/// The key of a round in paths: its number, and the item that was picked for it. So another run that repeats this one, and picks
/// another item for the round, has other idempotency keys.
pub(super) fn round_key(number: usize, item: &Value) -> String {
    let digest = || HEXLOWER.encode(&Sha256::digest(item.to_string()))[..DIGEST].to_owned();
    format!("{number}-{}", own_key(item).unwrap_or_else(digest))
}

/// The text of an item that can be part of a path.
fn own_key(item: &Value) -> Option<String> {
    let text = match item {
        Value::Object(map) => {
            ["key", "name"].iter().find_map(|field| map.get(*field)).and_then(super::eval::as_string)
        }
        other => super::eval::as_string(other),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.filter(|text| !text.is_empty() && text.len() <= LONGEST && text.chars().all(is_plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels_and_depend_on_the_attempt() {
        let name = attempt_name(b"key", "a.b", "uid", "grow[0]/add", 1);
        assert!(name.starts_with("a-b-add-"), "{name}");
        assert_ne!(name, attempt_name(b"key", "a.b", "uid", "grow[0]/add", 2));
        assert_ne!(name, attempt_name(b"key", "a.b", "uid", "grow[1]/add", 1));
        assert_ne!(name, attempt_name(b"other", "a.b", "uid", "grow[0]/add", 1));
        let long = attempt_name(b"key", &"x".repeat(200), "uid", "s", 1);
        assert!(long.len() <= 63, "{long}");
    }

    #[test]
    fn loop_keys_come_from_items_or_indices() {
        assert_eq!(item_keys(&[json!(3), json!("a")]), ["3", "a"]);
        assert_eq!(item_keys(&[json!({"name": "prod"}), json!({"name": "dev"})]), ["prod", "dev"]);
        assert_eq!(item_keys(&[json!("a"), json!("a")]), ["0", "1"]);
        assert_eq!(item_keys(&[json!("a/b"), json!("c")]), ["0", "1"]);
        assert_eq!(item_keys(&[json!([1]), json!({})]), ["0", "1"]);
        assert_eq!(round_key(3, &json!({"name": "m0"})), "3-m0");
        assert_ne!(round_key(3, &json!("a/b")), round_key(3, &json!("a/c")));
    }
}

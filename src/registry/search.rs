//! Which packages of an index are meant by words. All words must be found; where they are found gives the order.

use std::cell::LazyCell;
use std::cmp::Reverse;

use crate::index::Entry;

/// What a word counts that is the name, begins it, or is in it; that is a kind, or is in one; that begins a word of a text, or is in it.
const NAME: [u32; 3] = [100, 60, 40];
const KIND: [u32; 2] = [50, 30];
const DESCRIPTION: [u32; 2] = [20, 10];
const README: [u32; 2] = [6, 3];

/// The packages in which all words are found, the best first. Without words, all of them by name.
pub fn search<'e>(entries: impl IntoIterator<Item = &'e Entry>, words: &[String]) -> Vec<&'e Entry> {
    let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let found = entries.into_iter().filter_map(|entry| {
        let score = score(entry, &words)?;
        // What should not be used any more comes after what may be.
        Some(((is_deprecated(entry), Reverse(score), &*entry.name, &*entry.repository), entry))
    });
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(|(a, _)| *a);
    found.into_iter().map(|(_, entry)| entry).collect()
}

fn is_deprecated(entry: &Entry) -> bool {
    entry.newest().is_some_and(|newest| newest.deprecated.is_some())
}

/// The sum over all words of the best place of each; none if one is not found.
fn score(entry: &Entry, words: &[String]) -> Option<u32> {
    if words.is_empty() {
        return Some(0);
    }
    let kinds: Vec<String> = entry.kinds.iter().map(|kind| kind.kind.to_lowercase()).collect();
    let lower = |text: &Option<String>| text.as_deref().map(str::to_lowercase).unwrap_or_default();
    let (name, description) = (entry.name.to_lowercase(), lower(&entry.description));
    // Most of the text, which counts only if the word is nowhere else.
    let readme = LazyCell::new(|| lower(&entry.readme));
    let mut sum = 0;
    for word in words {
        let of_name = match name.find(word.as_str()) {
            Some(0) if name.len() == word.len() => NAME[0],
            Some(0) => NAME[1],
            Some(_) => NAME[2],
            None => 0,
        };
        let of_kind = kinds.iter().map(|kind| match kind.find(word.as_str()) {
            Some(_) if kind == word => KIND[0],
            Some(_) => KIND[1],
            None => 0,
        });
        let of_description = of_text(&description, word, DESCRIPTION);
        let best = of_kind.max().unwrap_or_default().max(of_name).max(of_description);
        let best = if best == 0 { of_text(&readme, word, README) } else { best };
        if best == 0 {
            return None;
        }
        sum += best;
    }
    Some(sum)
}

fn of_text(text: &str, word: &str, [begins, within]: [u32; 2]) -> u32 {
    let mut found = text.match_indices(word).peekable();
    if found.peek().is_none() {
        return 0;
    }
    let begins_word = |at: usize| !text[..at].ends_with(char::is_alphanumeric);
    if found.any(|(at, _)| begins_word(at)) { begins } else { within }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Digest;
    use crate::artifact::Kind;
    use crate::index::{Deprecated, Release};

    fn entry(name: &str, kind: &str, description: &str, readme: &str) -> Entry {
        let release = Release {
            version: "1.0.0".into(),
            digest: Digest::of(b""),
            level: None,
            signers: Vec::new(),
            deprecated: None,
        };
        Entry {
            name: name.into(),
            repository: format!("oci://r/{name}"),
            app_version: None,
            description: Some(description.into()),
            readme: Some(readme.into()),
            kinds: vec![Kind { group: "x.io".into(), kind: kind.into(), versions: vec!["v1".into()] }],
            kubernetes: None,
            channels: Vec::new(),
            versions: vec![release],
            more: 0,
        }
    }

    #[test]
    fn names_count_more_than_kinds_and_kinds_more_than_texts() {
        let all = [
            entry("zoo", "ZooKeeper", "Coordination, as etcd does", ""),
            entry("etcd-backup", "Backup", "Backups", ""),
            entry("store", "EtcdCluster", "A store", ""),
            entry("etcd", "Cluster", "A key-value store", "Runs ETCD."),
            entry("other", "Other", "", "Stores data in netcd."),
            entry("none", "Other", "Nothing", ""),
        ];
        let names = |words: &[&str]| -> Vec<&str> {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            search(&all, &words).iter().map(|entry| &*entry.name).collect()
        };
        assert_eq!(names(&["etcd"]), ["etcd", "etcd-backup", "store", "zoo", "other"]);
        assert_eq!(names(&["ETCD", "key-value"]), ["etcd"]);
        assert_eq!(names(&["zookeeper"]), ["zoo"]);
        assert_eq!(names(&["absent"]), [""; 0]);
        assert_eq!(names(&[]).len(), all.len());
    }

    #[test]
    fn deprecated_packages_come_last() {
        let mut old = entry("etcd", "Cluster", "", "");
        old.versions[0].deprecated =
            Some(Deprecated { message: "old".into(), replaced_by: None, signers: Vec::new() });
        let all = [old, entry("etcd-next", "Cluster", "", "")];
        let found = search(&all, &["etcd".to_owned()]);
        assert_eq!(found[0].name, "etcd-next");
        assert_eq!(found.len(), 2);
    }
}

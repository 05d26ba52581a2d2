//! What the API chooses for new objects: uids and suffixes of names. They depend on the place of an object and on how often
//! one was created there, or a name made, and on nothing else, so that requests about other objects and dry runs change none. What
//! a dry run chooses also depends on the number of dry runs before it, so no two choose the same.

use std::collections::HashMap;

#[derive(Debug, Clone, Default)]
pub(super) struct Created {
    /// How often an object was created, by the hash of its place.
    places: HashMap<u64, u64>,
    dry_runs: u64,
}

impl Created {
    pub(super) fn count(&self, resource: &str, key: &str) -> u64 {
        self.places.get(&place(resource, key)).copied().unwrap_or_default()
    }

    pub(super) fn note(&mut self, resource: &str, key: &str) {
        *self.places.entry(place(resource, key)).or_default() += 1;
    }

    pub(super) fn note_dry_run(&mut self) {
        self.dry_runs += 1;
    }

    pub(super) fn uid(&self, resource: &str, key: &str, is_dry: bool) -> String {
        let [a, b] = ["uid", "the rest of the uid"].map(|what| self.value(what, resource, key, is_dry));
        format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            (a >> 4) & 0xfff,
            b & 0xfff,
            b >> 16
        )
    }

    pub(super) fn suffix(&self, what: &str, resource: &str, key: &str, is_dry: bool) -> String {
        const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut number = self.value(what, resource, key, is_dry);
        (0..5)
            .map(|_| {
                let letter = LETTERS[usize::try_from(number % 27).unwrap_or(0)];
                number /= 27;
                char::from(letter)
            })
            .collect()
    }

    /// A number that the next object at this place has for itself.
    fn value(&self, what: &str, resource: &str, key: &str, is_dry: bool) -> u64 {
        let value = mixed(mixed(place(resource, key), self.count(resource, key)), place(what, ""));
        if is_dry { mixed(value, self.dry_runs) } else { value }
    }
}

pub(super) fn place(resource: &str, key: &str) -> u64 {
    // FNV-1a, which is the same in each version of Rust.
    let bytes = resource.bytes().chain([b' ']).chain(key.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// One step of splitmix64, so that neighbours look different.
pub(super) fn mixed(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_add(b.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn uids_and_suffixes_depend_on_the_place_and_its_creations() {
        let mut created = Created::default();
        let of = |created: &Created| {
            (created.uid("pods", "a/b", false), created.suffix("name", "pods", "a/b", false))
        };
        let first = of(&created);
        created.note("pods", "a/c");
        created.note("secrets", "a/b");
        let dry = [(); 2].map(|()| {
            created.note_dry_run();
            created.uid("pods", "a/b", true)
        });
        assert!(dry[0] != dry[1] && !dry.contains(&first.0));
        assert_eq!(of(&created), first);
        let mut all = BTreeSet::from([first.0]);
        for number in 1..100 {
            created.note("pods", "a/b");
            assert_eq!(created.count("pods", "a/b"), number);
            all.insert(of(&created).0);
        }
        all.extend(["pods", "secrets"].map(|resource| created.uid(resource, "a/c", false)));
        assert_eq!(all.len(), 102);
        let suffixes = ["name", "volume"].map(|what| created.suffix(what, "pods", "a/b", false));
        assert!(suffixes[0] != suffixes[1] && suffixes.iter().all(|suffix| suffix.len() == 5));
    }
}

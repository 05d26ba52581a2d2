//! What a person agrees to who installs or upgrades a package: the rights that its account gains and loses, in words, and
//! what is remarkable in them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::demands::{Demands, places_text};
use super::remarkable;
use super::rules::{Place, Rights, in_order};

/// The difference between two revisions for a person.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Review {
    /// Whether no other revision is active.
    pub is_first: bool,
    /// What the account may do now, one sentence each.
    pub gained: Vec<String>,
    /// What the account may no longer do, one sentence each.
    pub lost: Vec<String>,
    /// What deserves attention in what is gained.
    pub remarkable: Vec<String>,
    /// Whether a person must agree: to more rights than before, and at first to remarkable ones.
    pub needs_consent: bool,
}

/// What changes from one revision to another. `before`: the active one; without it there is none.
pub fn review(before: Option<&Demands>, after: &Demands) -> Review {
    let none = Demands::default();
    let old = before.unwrap_or(&none);
    let beyond = |all: &Demands, others: &Demands| -> Rights {
        all.rights.iter().filter(|right| !others.rights.grants(right)).cloned().collect()
    };
    let (gained, lost) = (beyond(after, old), beyond(old, after));
    let known = remarkable::remarks(old);
    let remarkable: Vec<String> = remarkable::remarks(after).difference(&known).cloned().collect();
    let is_more = gained.iter().any(|right| !after.is_own(right)) || !remarkable.is_empty();
    Review {
        is_first: before.is_none(),
        gained: sentences(&gained),
        lost: sentences(&lost),
        needs_consent: if before.is_none() { !remarkable.is_empty() } else { is_more },
        remarkable,
    }
}

/// The rights, one sentence for all that have verbs and places in common: `list, watch secrets in all namespaces`.
fn sentences(rights: &Rights) -> Vec<String> {
    let mut verbs: BTreeMap<(String, &Place), BTreeSet<&str>> = BTreeMap::new();
    for right in rights.iter() {
        let name = right.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        let of = (format!("{}{name}", right.full_resource()), &right.place);
        verbs.entry(of).or_default().insert(&right.verb);
    }
    let mut places: BTreeMap<(String, BTreeSet<&str>), BTreeSet<&Place>> = BTreeMap::new();
    for ((resource, place), verbs) in verbs {
        places.entry((resource, verbs)).or_default().insert(place);
    }
    let mut resources: BTreeMap<(BTreeSet<&Place>, BTreeSet<&str>), Vec<String>> = BTreeMap::new();
    for ((resource, verbs), places) in places {
        resources.entry((places, verbs)).or_default().push(resource);
    }
    let sentence = |((places, verbs), resources): ((BTreeSet<&Place>, BTreeSet<&str>), Vec<String>)| {
        let places = places_text(&places);
        format!("{} {}{places}", in_order(&verbs).join(", "), resources.join(", "))
    };
    resources.into_iter().map(sentence).collect()
}

impl Review {
    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.gained.is_empty() && self.lost.is_empty() && self.remarkable.is_empty()
    }

    /// The lines for a person.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut part = |title: &str, all: &[String]| {
            if !all.is_empty() {
                lines.push(title.to_owned());
                lines.extend(all.iter().map(|line| format!("  {line}")));
            }
        };
        let title = if self.is_first { "rights: the package may" } else { "rights: the package may now" };
        part(title, &self.gained);
        part("rights: the package may no longer", &self.lost);
        part("remarkable: the package", &self.remarkable);
        lines
    }

    /// The review as JSON.
    pub fn to_json(&self) -> Value {
        json!({"gained": self.gained, "lost": self.lost, "remarkable": self.remarkable,
            "needsConsent": self.needs_consent})
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::Placement;
    use super::super::tests::package;
    use super::*;

    const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
    const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n";

    fn demands(children: &[&str], spec: &str, namespaces: &[&str]) -> Demands {
        let all: Vec<(String, &str)> =
            children.iter().enumerate().map(|(i, text)| (format!("templates/c{i}.yaml"), *text)).collect();
        let ids: Vec<String> =
            (0..all.len()).map(|i| format!("{{id: c{i}, template: templates/c{i}.yaml}}")).collect();
        let templates: Vec<(&str, &str)> = all.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let package = package(spec, &format!("      children: [{}]\n", ids.join(", ")), &templates);
        let names =
            (!namespaces.is_empty()).then(|| namespaces.iter().map(|name| (*name).to_owned()).collect());
        let at = Placement { namespaces: names, ..Placement::everywhere("managers") };
        Demands::of(&package, &super::super::derive(&[&package], &|_| None).rights, &at)
    }

    #[test]
    fn more_rights_than_before_need_consent() {
        let (few, more) = (demands(&[CONFIG], "", &[]), demands(&[CONFIG, SECRET], "", &[]));
        let verbs = "get, list, watch, create, patch, delete";
        let upgrade = review(Some(&few), &more);
        assert_eq!(upgrade.gained, [format!("{verbs} secrets in all namespaces")]);
        let remark = format!("reads or writes Secrets of all namespaces: {verbs} secrets in all namespaces");
        assert_eq!(upgrade.remarkable, [remark]);
        assert!(upgrade.needs_consent && !upgrade.is_first && upgrade.lost.is_empty());
        assert_eq!(upgrade.lines()[0], "rights: the package may now");

        let back = review(Some(&more), &few);
        assert_eq!((back.lost.len(), back.gained.len(), back.needs_consent), (1, 0, false));
        assert!(review(Some(&more), &more).is_empty());

        // At the first installation only remarkable rights need consent.
        assert!(!review(None, &few).needs_consent);
        assert!(review(None, &more).needs_consent);
        assert_eq!(review(None, &few).lines()[0], "rights: the package may");
        // The kinds of the package itself are no gain.
        assert!(!review(Some(&demands(&[], "", &[])), &demands(&[], "", &[])).needs_consent);
    }

    #[test]
    fn another_namespace_is_a_gain() {
        let (one, two) = (demands(&[SECRET], "", &["a"]), demands(&[SECRET], "", &["a", "b"]));
        let gained = review(Some(&one), &two);
        assert_eq!(
            gained.gained,
            [
                "get, list, watch, create, patch, delete secrets in b",
                "update webs.example.com/finalizers in b",
            ]
        );
        assert!(gained.needs_consent && gained.remarkable.is_empty());
        assert!(!review(None, &two).needs_consent);
        let all = review(Some(&two), &demands(&[SECRET], "", &[]));
        assert!(all.gained[0].ends_with("in all namespaces") && !all.remarkable.is_empty(), "{all:?}");
        assert_eq!(places_text(&BTreeSet::from([&Place::Cluster])), "");
    }
}

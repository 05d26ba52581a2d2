//! Checks the table of reasons (docs/guide/reasons.md) against the source. Links nothing of the crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The folders whose code defines reasons of conditions, runs, steps, children and Events.
const FOLDERS: [&str; 5] = ["core/children", "core/operators", "core/plan", "manager", "package/readiness"];

/// Words in these folders that look like reasons but are not. Kinds are left out as well.
const OTHERS: &str = "
    Phases and verdicts: Pending Running Interrupted Succeeded Error Known Listing Watching Degraded Leading StandingBy Stopping Delayed
    Causes of runs: Cleanup Condition Deletion Loss Request Rollout Schedule
    Conditions of Kubernetes: AbleToScale Accepted Available Bound Complete Established Lost NamesAccepted PodScheduled Programmed
        ResolvedRefs Suspended ContainerCreating PodInitializing NewReplicaSetAvailable
    Values of Kubernetes' APIs: Always Parallel Apply Update Cluster Namespaced Deny DoesNotExist Equivalent Exists Fail False True In Never None
        Normal NotIn OnDelete Opaque Reconcile Recreate Orphan Warning Webhook Status Gateway LoadBalancer Route Invalid Authorization
        ConversionReview Failure Success
    Columns: Age Instances Kind Message Of Phase Plan Prefix Reason Step Target Unsigned Version
    Values of our APIs: Approve Reject
    Kinds: InstanceState Operator PackagePolicy PlanRun SelfSubjectAccessReview SelfSubjectReview
    Published as Adopted: Inherited
    Names of types: ExecRequest HttpRequest SecretOutputs
    Reasons of errors that no status shows: CertificateFailed Conflict GeneratedDataKeyInvalid NamespaceOccupied NotPacked
        OtherManager RevisionTooLarge UnusableCertificateAuthority
";

#[test]
fn every_reason_is_in_the_table() {
    let table = fs::read_to_string("docs/guide/reasons.md").unwrap();
    let rows: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(reason, _)| reason))
        .collect();
    assert!(rows.is_sorted(), "the rows are in alphabetical order");
    let listed: BTreeSet<&str> = rows.iter().copied().collect();
    assert_eq!(listed.len(), rows.len(), "each reason has one row");
    let others: BTreeSet<&str> = OTHERS.split_whitespace().collect();
    let kinds = fs::read_to_string("src/lang/api/built_in.rs").unwrap();
    let kinds: BTreeSet<String> = words(&kinds).map(|(_, word)| word).collect();
    let mut found = BTreeMap::new();
    for folder in FOLDERS {
        visit(&Path::new("src").join(folder), &mut found);
    }
    // Events about changes of children use the names of these variants as reasons.
    let state = fs::read_to_string("src/core/children/model/state.rs").unwrap();
    let effects = state.split_once("pub enum Effect {").unwrap().1.split_once("\n}").unwrap().0;
    let effects = effects.lines().filter_map(|line| line.trim().strip_suffix(','));
    found.extend(effects.map(|effect| (effect.to_owned(), "src/core/children/model/state.rs".to_owned())));
    let is_reason = |word: &&String| !kinds.contains(*word) && !others.contains(word.as_str());
    let missing: Vec<String> = found
        .keys()
        .filter(is_reason)
        .filter(|word| !listed.contains(word.as_str()))
        .map(|word| format!("{word} ({})", found[word]))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/guide/reasons.md has no row for these; what is no reason belongs into OTHERS of this test:\n{}",
        missing.join("\n")
    );
    let gone: Vec<&&str> = listed.iter().filter(|reason| !found.contains_key(**reason)).collect();
    assert!(gone.is_empty(), "nothing in the source gives these reasons of docs/guide/reasons.md: {gone:?}");
}

/// Collects the words of all files below a folder, with the file where each was found first.
fn visit(folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            visit(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests.rs" {
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            for (line, word) in words(text) {
                found.entry(word).or_insert_with(|| format!("{}:{line}", path.display()));
            }
        }
    }
}

/// The string literals of a text that are one word in camel case, with their lines.
fn words(text: &str) -> impl Iterator<Item = (usize, String)> {
    let is_word = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_uppercase())
            && text.chars().all(|c| c.is_ascii_alphabetic())
            && text.contains(|c: char| c.is_ascii_lowercase())
            && text.len() < 40
    };
    let of_line = move |(number, line): (usize, &str)| {
        let words = line.split('"').skip(1).step_by(2).filter(|text| is_word(text)).map(str::to_owned);
        words.map(|word| (number + 1, word)).collect::<Vec<_>>()
    };
    text.lines().enumerate().flat_map(of_line).collect::<Vec<_>>().into_iter()
}

//! Packages are played as they run in a cluster: as their accounts, with their derived rights and `permissions`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::{HEAD, OPERETTA, copy};

const LIGHT: &str = "tests/fixtures/packages/light";

/// An instance of the package light, and that it is ready.
const APPLIED: &str =
    "  - apply: {apiVersion: fixtures.operetta.dev/v1, kind: Light, metadata: {name: a}, spec: {}}\n";
const READY: &str = "  - {expect: {instance: {conditions: {Ready: \"True\"}}}, within: 10m}\n";

/// A file of a package, and a part of it that another one replaces.
type Change<'a> = (&'a str, &'a str, &'a str);

/// The Role of the package light gives what its account may not do.
const GREEDY: Change<'static> = (
    "templates/role.yaml",
    "resources: [configmaps], resourceNames: [\"{{ name }}\"], verbs: [get]",
    "resources: [pods], verbs: [get, list]",
);

fn change(folder: &Path, changes: &[Change<'_>]) {
    for (file, right, wrong) in changes {
        let path = folder.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches(*right).count(), 1, "{file}: {right}");
        fs::write(path, text.replace(*right, wrong)).unwrap();
    }
}

/// A copy of a package with these changes and one case.
fn package(folder: &str, changes: &[Change<'_>], steps: &str) -> TempDir {
    let copied = tempfile::tempdir().unwrap();
    copy(Path::new(folder), copied.path());
    change(copied.path(), changes);
    let tests = copied.path().join("tests");
    fs::create_dir(&tests).unwrap();
    fs::write(tests.join("a.yaml"), format!("{HEAD}cases:\n- name: one\n  steps:\n{steps}")).unwrap();
    copied
}

/// Why the case of a package fails; `None` if it passes.
fn failure(package: &TempDir) -> Option<String> {
    let output =
        Command::new(OPERETTA).arg("test").arg(package.path()).args(["-o", "json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failure = report["packages"][0]["cases"][0]["failure"].as_str().map(str::to_owned);
    assert_eq!(output.status.success(), failure.is_none(), "{report:#}");
    failure
}

fn passes(package: &TempDir) {
    assert_eq!(failure(package), None);
}

fn fails_with(package: &TempDir, parts: &[&str]) {
    let failure = failure(package).unwrap_or_default();
    for part in parts {
        assert!(failure.contains(part), "{part:?} is not in:\n{failure}");
    }
}

#[test]
fn role_that_gives_more_than_the_account_has_fails_the_case() {
    let said = [
        "a right is missing: Light a: role (Role default/a): ",
        "system:serviceaccount:operetta-system:operetta-light",
        "attempting to grant RBAC permissions not currently held",
        "add to permissions in operator.yaml: [{apiGroups: [\"\"], resources: [pods], verbs: [get, list]}]",
    ];
    let steps = format!("{APPLIED}{READY}");
    fails_with(
        &package(LIGHT, &[GREEDY], &steps),
        &[&said[..], &["a.yaml:7", "it does not hold within 10m"]].concat(),
    );
    // Nothing is expected of the instance.
    fails_with(&package(LIGHT, &[GREEDY], &format!("{APPLIED}  - wait: 1m\n")), &said);
}

#[test]
fn permissions_of_the_package_are_those_of_its_account() {
    let permissions =
        "  version: 0.1.0\n  permissions: [{apiGroups: [\"\"], resources: [pods], verbs: [get, list]}]\n";
    let granted = ("operator.yaml", "  version: 0.1.0\n", permissions);
    passes(&package(LIGHT, &[GREEDY, granted], &format!("{APPLIED}{READY}")));
    passes(&package(LIGHT, &[], &format!("{APPLIED}{READY}")));
}

#[test]
fn binding_needs_the_right_to_bind_its_role() {
    let permissions = "  permissions:\n    - apiGroups: [rbac.authorization.k8s.io]\n      resources: [clusterroles]\n      \
                       resourceNames: [view, edit, admin]\n      verbs: [bind]\n";
    let steps = format!("  - apply: ../instances/platform.yaml\n{READY}");
    let team = package("examples/packages/team", &[("operator.yaml", permissions, "")], &steps);
    let said = [
        "Team platform: access[",
        "system:serviceaccount:operetta-system:operetta-team",
        "add to permissions in operator.yaml: [{apiGroups: [rbac.authorization.k8s.io], resourceNames: [",
        "resources: [clusterroles], verbs: [bind]}",
    ];
    fails_with(&team, &said);
}

#[test]
fn case_may_expect_that_a_right_is_missing() {
    let expected = "  - expect: {instance: {conditions: {Stalled: {status: \"True\", reason: Forbidden}}}}\n";
    passes(&package(LIGHT, &[GREEDY], &format!("{APPLIED}{expected}")));
}

/// Before the status of the package light: it reads an object in the namespace `watched`.
const REFS: &str = "      refs:\n        - {id: limits, apiVersion: v1, kind: LimitRange, name: limits, namespace: watched, optional: true, \
                    affectsReady: true}\n      status:\n        limited: refs.limits is defined\n";
const READS: Change<'static> = ("operator.yaml", "      status:\n", REFS);
/// The namespace is there.
const WATCHED: &str = "  - apply: {apiVersion: v1, kind: Namespace, metadata: {name: watched}}\n";

#[test]
fn rights_in_a_namespace_are_granted_once_it_exists() {
    let absent = package(LIGHT, &[READS], &format!("{APPLIED}{READY}"));
    let said = [
        "a right is missing: Light a: ",
        "resource \"limitranges\" in API group \"\" in the namespace \"watched\"",
        "the package has its rights in these namespaces once they exist: watched",
    ];
    fails_with(&absent, &said);
    passes(&package(LIGHT, &[READS], &format!("{APPLIED}  - wait: 1m\n{WATCHED}{READY}")));
}

#[test]
fn condition_that_still_quotes_a_refusal_fails_no_case() {
    // The steps end as soon as the right is granted, before the manager has tried again.
    let steps =
        format!("{APPLIED}  - wait: 1m\n{WATCHED}  - expect: {{objects: {{Namespace/watched: {{}}}}}}\n");
    passes(&package(LIGHT, &[READS], &steps));
    let said = ["a right is missing: Light a: ", "attempting to grant RBAC permissions not currently held"];
    fails_with(&package(LIGHT, &[GREEDY, READS], &steps), &said);
}

#[test]
fn place_of_a_failure_is_the_first_step_of_which_a_refusal_counts() {
    // Until the namespace exists, the package may not read in it. Line 6 applies the first instance, line 10 the other one, whose Role
    // gives too much.
    let greedy = (
        GREEDY.0,
        GREEDY.1,
        "resources: [\"{{ 'pods' if name == 'b' else 'configmaps' }}\"], resourceNames: [\"{{ name }}\"], verbs: [get]",
    );
    let other = APPLIED.replace("name: a", "name: b");
    let steps = format!("{APPLIED}  - wait: 1m\n{WATCHED}  - wait: 1m\n{other}  - wait: 1m\n");
    fails_with(&package(LIGHT, &[greedy, READS], &steps), &["a right is missing: Light b: ", "a.yaml:1"]);
}

#[test]
fn rights_in_a_namespace_are_granted_when_it_comes_again() {
    let deleted = "  - delete: Namespace/watched\n  - expect: {objects: {Namespace/watched: absent}}\n";
    // A manager that starts reads all once more.
    let restarted = "  - restart: manager\n  - wait: 1m\n";
    let before = format!("{WATCHED}{APPLIED}{READY}{deleted}");
    passes(&package(LIGHT, &[READS], &format!("{before}{WATCHED}{restarted}{READY}")));
    let said = [
        "resource \"limitranges\" in API group \"\" in the namespace \"watched\"",
        "the package has its rights in these namespaces once they exist: watched",
    ];
    fails_with(&package(LIGHT, &[READS], &format!("{before}{restarted}")), &said);
}

#[test]
fn right_that_was_missing_elsewhere_is_not_forgotten_when_a_namespace_comes_again() {
    let deleted = "  - delete: Light/a\n  - expect: {objects: {Light/a: absent}}\n  - delete: Namespace/watched\n  - expect: {objects: \
                   {Namespace/watched: absent}}\n";
    let back = "  - wait: 1m\n  - expect: {objects: {Namespace/watched: {}}}\n";
    let steps = format!("{WATCHED}{APPLIED}  - wait: 1m\n{deleted}{WATCHED}{back}");
    passes(&package(LIGHT, &[READS], &steps));
    let said = ["a right is missing: ", "attempting to grant RBAC permissions not currently held"];
    fails_with(&package(LIGHT, &[GREEDY, READS], &steps), &said);
    // Nor is it if the namespace itself is where the package may not grant.
    let inside = steps
        .replace("metadata: {name: a}", "metadata: {name: a, namespace: watched}")
        .replace("Light/a", "watched/Light/a");
    passes(&package(LIGHT, &[READS], &inside));
    fails_with(&package(LIGHT, &[GREEDY, READS], &inside), &said);
}

#[test]
fn namespace_of_the_manager_is_not_counted() {
    let four = "  - expect: {objects: {Namespace/*: 4}, that: [\"objects.Namespace | length == 4\"]}\n";
    passes(&package(LIGHT, &[], &format!("{APPLIED}{READY}{four}")));
}

#[test]
fn upgrade_keeps_the_rights_to_what_it_removes() {
    let steps = format!(
        "{APPLIED}{READY}  - upgrade: ../next\n  - expect: {{objects: {{Service/a: absent, NetworkPolicy/a: {{}}}}, instance: \
         {{conditions: {{Ready: \"True\"}}}}}}\n"
    );
    let light = package(LIGHT, &[], &steps);
    let next = light.path().join("next");
    fs::create_dir(&next).unwrap();
    copy(Path::new(LIGHT), &next);
    fs::rename(next.join("templates/service.yaml"), next.join("templates/policy.yaml")).unwrap();
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: \"{{ name }}\"}\nspec: {podSelector: {}}\n";
    fs::write(next.join("templates/policy.yaml"), policy).unwrap();
    let child = "{id: service, template: templates/service.yaml}";
    change(
        &next,
        &[
            ("operator.yaml", child, "{id: policy, template: templates/policy.yaml}"),
            ("operator.yaml", "0.1.0", "0.2.0"),
        ],
    );
    passes(&light);
}

#[test]
fn users_with_a_usual_role_may_change_instances() {
    let binding = "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: eve}, roleRef: {apiGroup: \
                   rbac.authorization.k8s.io, kind: ClusterRole, name: edit}, subjects: [{kind: User, name: eve}]}";
    let steps = format!(
        "{APPLIED}{READY}  - apply: {binding}\n  - {{patch: Light/a, with: {{spec: {{greeting: hi}}}}, as: eve}}\n  - {{patch: \
         Light/a, with: {{spec: {{greeting: ho}}}}, as: bob, refused: cannot patch resource}}\n  - expect: {{objects: \
         {{ConfigMap/a: {{data: {{greeting: hi}}}}}}}}\n"
    );
    passes(&package(LIGHT, &[], &steps));
}

//! Checks packages against schemas: those of the built-in kinds, those of the CRDs of all packages that are
//! checked together, and those of their own instances.
//!
//! Only `lint` does this. `run` leaves it to the API server, whose version may differ: the dry run before the
//! first write reports what the server refuses. So a manager spends no time on these checks and keeps no
//! schemas in memory. See `docs/design/0019-schema-checks-in-lint.md`.

mod catalog;
mod cel;
mod plans;
mod resource;

use std::collections::HashSet;

use serde_json::Value;

use super::Package;
use crate::diag::Diagnostic;
use catalog::{Catalog, Custom};
use operetta_lang::schema::Kubernetes;

/// Checks packages against schemas. Each diagnostic comes with the index of its package.
pub fn check(packages: &[&Package]) -> Vec<(usize, Diagnostic)> {
    let kubernetes = Kubernetes::load();
    let mut customs = Vec::new();
    for resource in packages.iter().flat_map(|package| &package.resources) {
        let crd = resource.augmented_crd();
        customs.extend(resource.served_versions().map(|version| Custom::new(resource, &crd, version)));
    }
    let catalog = Catalog { kubernetes: &kubernetes, customs: &customs };
    let mut found: Vec<(usize, Diagnostic)> = Vec::new();
    let mut seen = HashSet::new();
    for (index, package) in packages.iter().enumerate() {
        for resource in &package.resources {
            let rules = rules(&resource.crd);
            let found_here = resource::check(package, resource, &catalog, &rules);
            for diagnostic in cel::check(resource).into_iter().chain(found_here) {
                // A template or a `let` that several children use is reported once.
                let at = diagnostic.location.as_ref().map(|at| (at.source.name.clone(), at.span.start));
                if seen.insert((index, at, diagnostic.message.clone())) {
                    found.push((index, diagnostic));
                }
            }
        }
    }
    found
}

/// Whether no known diagnostic has the same position.
pub fn is_news(known: &[Diagnostic], diagnostic: &Diagnostic) -> bool {
    let place = |diagnostic: &Diagnostic| {
        diagnostic.location.as_ref().map(|at| (at.source.name.clone(), at.span.start))
    };
    let here = place(diagnostic);
    !known.iter().any(|other| other.is_error() && here.is_some() && place(other) == here)
}

/// All CEL rules of a CRD as one text. The fields that they mention may depend on each other.
fn rules(crd: &Value) -> String {
    let mut text = String::new();
    collect(crd, &mut text);
    text
}

fn collect(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match key.as_str() {
                    "x-kubernetes-validations" | "allOf" | "anyOf" | "oneOf" | "not" => {
                        out.push_str(&value.to_string());
                        out.push('\n');
                    }
                    _ => collect(value, out),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, out)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_crd::crd_to_properties;
    use crate::{Files, compile};

    /// A package with one kind that has these plans. Its spec has an optional `backup` and a `size`.
    fn package(name: &str, plural: &str, kind: &str, plans: &str) -> Package {
        const SPEC: &str = "            spec:
              type: object
              properties:
                size: {type: integer, default: 1}
                backup:
                  type: object
                  required: [bucket]
                  properties: {schedule: {type: string}, bucket: {type: string}}
";
        let operator = format!(
            "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: {name}}}\nspec:\n  version: 0.1.0\n  \
             resources:\n    - crd: crds/kind.yaml\n      children: []\n      plans:\n{plans}"
        );
        let crd = crd_to_properties(&format!("{name}.example.org"), plural, kind) + SPEC;
        let files = vec![("operator.yaml".to_owned(), operator), ("crds/kind.yaml".to_owned(), crd)];
        match compile(&Files::from_texts(name, files)) {
            Ok((package, _)) => package,
            Err(errors) => panic!("{}", crate::diag::render(&errors, false)),
        }
    }

    fn found(packages: &[&Package]) -> Vec<String> {
        check(packages)
            .into_iter()
            .map(|(index, found)| format!("{index} {} {}", found.code, found.message))
            .collect()
    }

    #[test]
    fn step_assumes_when_of_phase_and_schedule() {
        const STEP: &str = "{name: say, message: \"{{ spec.backup.bucket }}\", wait: {duration: 1s}}";
        let of = |trigger: &str, when: &str| {
            let plans = format!(
                "        backup:\n          {trigger}\n          steps:\n            - {{name: phase, {when}steps: [{STEP}]}}\n"
            );
            found(&[&package("shop", "shops", "Shop", &plans)])
        };
        let schedule = |when: &str| format!("trigger: {{schedule: '@every 1h', {when}}}");
        let absent = ["0 type::absent `spec.backup.bucket` may be absent, and then this fails"];
        assert_eq!(of(&schedule("when: spec.backup is defined"), ""), [""; 0]);
        assert_eq!(of("params: {type: object}", "when: spec.backup is defined, "), [""; 0]);
        assert_eq!(of(&schedule("when: spec.size > 1"), ""), absent);
        assert_eq!(of("params: {type: object}", ""), absent);
        // The condition also starts the plan, and then the `when` of the schedule does not hold.
        let both = "trigger: [{schedule: '@every 1h', when: spec.backup is defined}, {condition: spec.size > 1, for: 1m}]";
        assert_eq!(of(both, ""), absent);
    }

    #[test]
    fn call_of_another_package_is_checked_against_its_plan() {
        let restore = "        restore:
          params:
            type: object
            required: [from]
            properties: {from: {type: string}, parts: {type: integer}, mode: {type: string, enum: [fast, safe]}}
          steps: [{name: note, record: {note: \"'x'\"}}]
        plain:
          steps: [{name: note, record: {note: \"'x'\"}}]
";
        let db = package("store", "dbs", "Db", restore);
        let of = |call: &str| {
            let plans = format!("        work:\n          steps: [{{name: other, plan: {{{call}}}}}]\n");
            let shop = package("shop", "shops", "Shop", &plans);
            let alone: Vec<String> = found(&[&shop]);
            assert!(alone.is_empty(), "nothing is known of the other package: {alone:?}");
            found(&[&shop, &db])
        };
        let db_of = "of: {apiVersion: store.example.org/v1, kind: Db, name: main}";
        for (call, message) in [
            ("name: restore, params: {from: x, parts: 2, mode: fast}", ""),
            ("name: restore, params: {from: \"{{ name }}\", parts: \"{{ spec.size }}\"}", ""),
            ("name: plain", ""),
            ("name: restor, params: {from: x}", "package::unknown-plan Db has no plan `restor`"),
            ("name: restore", "schema::required `from` of `params` of the plan `restore` is missing"),
            (
                "name: restore, params: {from: x, part: 2}",
                "schema::unknown-field `params` of the plan `restore` has no field `part`",
            ),
            (
                "name: restore, params: {from: x, parts: many}",
                "schema::type `parts` of `params` of the plan `restore` takes",
            ),
            (
                "name: restore, params: {from: x, parts: \"{{ name }}\"}",
                "schema::type `parts` of `params` of the plan `restore` takes",
            ),
            (
                "name: restore, params: {from: x, mode: slow}",
                "schema::value `mode` of `params` of the plan `restore` does not take",
            ),
            ("name: plain, params: {x: 1}", "package::params the plan `plain` takes no parameters"),
        ] {
            let found = of(&format!("{call}, {db_of}"));
            if message.is_empty() {
                assert!(found.is_empty(), "{call}: {found:?}");
            } else {
                assert!(
                    found.len() == 1 && found[0].starts_with(&format!("0 {message}")),
                    "{call}: {found:?}"
                );
            }
        }
        let built_in = "name: roll, of: {apiVersion: apps/v1, kind: Deployment, name: main}";
        let plans = format!("        work:\n          steps: [{{name: other, plan: {{{built_in}}}}}]\n");
        let found = found(&[&package("shop", "shops", "Shop", &plans)]);
        assert_eq!(found, ["0 package::unknown-plan Deployment has no plan `roll`"]);
    }
}

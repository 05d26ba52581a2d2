//! Checks packages against schemas: those of the built-in kinds, of the CRDs of all packages that are checked together,
//! and of their own instances.
//!
//! Only `lint` does this. `run` leaves it to the API server, whose version may differ: the dry run before the first
//! write reports what the server refuses. So a manager spends no time on this and keeps no schemas in memory. See
//! `docs/design/0019-schema-checks-in-lint.md`.

mod catalog;
mod resource;

use std::collections::HashSet;

use serde_json::Value;

use super::Package;
use crate::diag::Diagnostic;
use crate::schema::Kubernetes;
use catalog::{Catalog, Custom};

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
            for diagnostic in resource::check(package, resource, &catalog, &rules) {
                // A template or a `let` may serve several children.
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

/// All CEL rules of a CRD as one text. The fields that it mentions may depend on each other.
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

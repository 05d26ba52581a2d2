//! Reports versions of a CRD with different fields and no conversion, because a value that is written in one
//! version is dropped or hidden in the other.

use super::columns::Written;
use crate::crd::{self, Unconverted};
use crate::diag::Diagnostic;
use crate::locate::place;

/// The maximum number of fields that a message names.
const NAMED: usize = 5;

/// Reports the served versions that lack a conversion to the storage version.
pub(crate) fn versions(written: &Written<'_>) -> Vec<Diagnostic> {
    let found = crd::unconverted(written.crd);
    let warning = |found: &Unconverted| {
        let path = format!("spec.versions[{}].name", found.index);
        let Unconverted { version, storage, own, stored, different, .. } = found;
        let alone = |version: &str, fields: &[String]| {
            (!fields.is_empty()).then(|| format!("{version} alone has {}", named(fields)))
        };
        let changed = (!different.is_empty()).then(|| format!("in both, {}", named(different)));
        let parts: Vec<String> =
            [alone(version, own), alone(storage, stored), changed].into_iter().flatten().collect();
        let message = format!(
            "nothing converts between {version} and the storage version {storage}, so the API server drops values: {}",
            parts.join("; ")
        );
        Diagnostic::warning("package::no-conversion", message)
            .at(written.source, place(written.node, &path))
            .path(&path)
            .help(help(found))
    };
    found.iter().map(warning).collect()
}

fn help(found: &Unconverted) -> String {
    let Unconverted { version, own, stored, different, .. } = found;
    let only: Vec<&String> = own.iter().chain(stored).collect();
    let more = if only.len() > NAMED { ", ..." } else { "" };
    let rules: Vec<String> = only.iter().take(NAMED).map(|path| format!("{{keep: {path}}}")).collect();
    let name = if different.is_empty() { "" } else { "give a field of another type another name; " };
    let rules = if rules.is_empty() {
        String::new()
    } else {
        format!(
            "declare it beside `crd`: conversion: {{versions: {{{version}: [{}{more}]}}}}, with `move` for a field that has \
             another path; ",
            rules.join(", ")
        )
    };
    format!("{name}{rules}or set `served: false` for {version}")
}

fn named(all: &[String]) -> String {
    let more = all.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", all[..all.len() - more].join(", "))
}

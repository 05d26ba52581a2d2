//! Capability levels, as `operetta inspect` shows them.

use serde_json::{Value, json};

use crate::package::capability::{Capability, KindRating, Level, Reason};

/// A level in words.
fn words(level: Option<Level>) -> String {
    level.map_or("none".to_owned(), |level| level.to_string())
}

/// The lines for people: the level of the package, then each kind with what counts and what the next level needs.
pub(super) fn lines(capability: &Capability) -> Vec<String> {
    let mut lines = vec![words(capability.level)];
    for KindRating { kind, serves, rating } in &capability.kinds {
        let serves =
            if serves.is_empty() { String::new() } else { format!(", works for {}", serves.join(", ")) };
        lines.push(format!("{kind}: {}{serves}", words(rating.level)));
        let mut levels: Vec<Level> = rating.reasons.iter().map(|reason| reason.feature.level()).collect();
        levels.dedup();
        for level in levels {
            let of_level = rating.reasons.iter().filter(|reason| reason.feature.level() == level);
            let what: Vec<&str> = of_level.map(|reason| reason.what.as_str()).collect();
            lines.push(format!("  {}: {}", level.roman(), what.join("; ")));
        }
        if let Some(next) = rating.next() {
            lines.push(format!("  {} needs {}", next.roman(), rating.missing.join("; ")));
        }
    }
    lines
}

/// The same for programs.
pub(super) fn value(capability: &Capability) -> Value {
    let number = |level: Option<Level>| level.map(Level::number);
    let reason = |Reason { feature, what }: &Reason| json!({"level": feature.level().number(), "what": what});
    let kinds = capability.kinds.iter().map(|KindRating { kind, serves, rating }| {
        json!({
            "kind": kind, "level": number(rating.level), "worksFor": serves, "missing": rating.missing,
            "reasons": rating.reasons.iter().map(reason).collect::<Vec<_>>(),
        })
    });
    json!({"level": number(capability.level), "name": words(capability.level), "kinds": kinds.collect::<Vec<_>>()})
}

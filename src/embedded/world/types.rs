//! Checks the types of expressions of a world: fields that pods and Services do not have, comparisons that never hold.

use operetta_lang::api::Gvk;
use operetta_lang::diag::{Diagnostic, Location};
use operetta_lang::schema::{Basic, Kubernetes, Type};
use operetta_lang::template::Infer;

use super::rules::Rules;
use super::sites::{Code, sites};

/// The variables that are texts.
const TEXTS: [&str; 5] = ["now", "container", "stdin", "method", "url"];
/// The variables that are maps of texts.
const MAPS: [&str; 3] = ["env", "query", "headers"];
/// The other variables whose type is known.
const OTHERS: [&str; 5] = ["pod", "service", "pods", "seconds", "command"];

/// The mistakes in the expressions of a file.
pub(super) fn mistyped(rules: &Rules, kubernetes: &Kubernetes) -> Vec<Diagnostic> {
    let mut infer = Infer::new(&rules.engine, &rules.lets, "");
    // What a pod, a Service or an answer lacks is absent; that is no mistake.
    infer.reports_absent = false;
    let object = |kind: &str| {
        let known = kubernetes.find(&Gvk::new("v1", kind)).and_then(|known| kubernetes.schema(known));
        known.map_or_else(Type::any, Type::of_schema)
    };
    infer.set("pod", object("Pod"));
    infer.set("service", object("Service"));
    infer.set("pods", Type::each(Basic::LIST, object("Pod")));
    infer.set("seconds", Type::of(Basic::INT));
    infer.set("command", Type::each(Basic::LIST, Type::string()));
    for name in TEXTS {
        infer.set(name, Type::string());
    }
    for name in MAPS {
        infer.set(name, Type::each(Basic::MAP, Type::string()));
    }
    let is_variable = |name: &str| TEXTS.iter().chain(&MAPS).chain(&OTHERS).any(|known| *known == name);
    let mut found = Vec::new();
    // A loop may hide a variable.
    for site in sites(rules).into_iter().filter(|site| !site.item.is_some_and(is_variable)) {
        infer.refuel();
        match site.code {
            Code::Expression(expr) => drop(infer.expression(expr)),
            Code::Text(text) => drop(infer.text(text)),
        }
        for mistake in infer.take_found() {
            let place = mistake.location.as_ref();
            let is_here = place.is_some_and(|place| contains(site.at, place));
            let path =
                if is_here { Some(site.path.to_owned()) } else { place.and_then(|at| of_let(rules, at)) };
            found.push(Diagnostic { path, ..mistake });
        }
    }
    found
}

fn contains(outer: &Location, inner: &Location) -> bool {
    outer.span.start <= inner.span.start && inner.span.start <= outer.span.end
}

/// The path of the let that a place is in: the last one that begins before it.
fn of_let(rules: &Rules, at: &Location) -> Option<String> {
    let begun = rules.lets.iter().filter_map(|(name, text)| {
        let start = text.location()?.span.start;
        (start <= at.span.start).then_some((start, name))
    });
    begun.max().map(|(_, name)| format!("let.{name}"))
}

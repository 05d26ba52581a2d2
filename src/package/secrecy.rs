//! Keeps data of Secrets in Secrets: determines which expressions of a resource may use such data, and
//! reports all others. See `docs/design/0015-secret-data.md`.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::expression_sites::Parts;
use super::template_scan::{Outline, Outlines, positions_without_outline};
use super::{Child, ForEach, Ref, RefSource, Yields, is_secret};
use crate::diag::{Diagnostic, Location, Source, Span};
use crate::facts::LAST_APPLIED;
use crate::template::{Engine, Expr, Inserted, Position, Taint, TaintScope, TaintTree, Text, access};

/// Fields of a Secret that hold secret data.
const DATA: [&str; 2] = ["data", "stringData"];

/// Reports secret data outside Secrets.
pub(super) fn resource(engine: &Engine, parts: &Parts, outlines: &Outlines) -> Vec<Diagnostic> {
    let positions = positions(outlines);
    let roots = roots(parts);
    let scope = TaintScope { roots, lets: &parts.lets, positions: &positions };
    let mut checker = Checker { engine, diagnostics: Vec::new(), seen: HashSet::new(), path: None };
    checker.whole(parts, &scope);
    for reference in &parts.refs {
        checker.reference(reference, &scope);
    }
    for child in &parts.children {
        checker.child(child, &scope);
    }
    checker.plans(&parts.plans, &scope);
    checker.diagnostics
}

/// Finds the positions of the values of templates in their documents.
pub(super) fn positions(outlines: &Outlines) -> impl Fn(&Source, Span) -> Vec<Position> {
    let by_source: HashMap<&str, &Outline> =
        outlines.iter().map(|(_, outline)| (outline.source().name.as_str(), outline)).collect();
    move |source, span| match by_source.get(source.name.as_str()) {
        Some(outline) => outline.positions(span),
        None => positions_without_outline(source, span),
    }
}

/// The variables that contain secret data.
fn roots(parts: &Parts) -> BTreeMap<String, TaintTree> {
    let live = |root: &str| {
        let children = parts.children.iter().filter_map(|child| {
            let tree = of_child(child, &format!("{root}{}", access(&child.id)))?;
            let tree = if child.for_each.is_some() { TaintTree::map_of(tree) } else { tree };
            Some((child.id.clone(), tree))
        });
        (root.to_owned(), TaintTree::map(children))
    };
    let refs = parts.refs.iter().filter(|reference| reference.gvk.as_ref().is_some_and(is_secret)).map(
        |reference| {
            let tree = secret(&format!("refs{}", access(&reference.id)));
            let tree = if reference.is_list() { TaintTree::list_of(tree) } else { tree };
            let tree = if reference.for_each.is_some() { TaintTree::map_of(tree) } else { tree };
            (reference.id.clone(), tree)
        },
    );
    let shown = parts.status.iter().filter(|field| field.exposes_secret_data).map(|field| {
        let path: Vec<&str> = ["status"].into_iter().chain(field.name.split('.')).collect();
        TaintTree::below(&path, TaintTree::tainted(Taint::held(format!("instance.status.{}", field.name))))
    });
    let told = parts.conditions.iter().filter(|condition| condition.exposes_secret_data).map(|condition| {
        let source = format!("the condition {}", condition.type_);
        TaintTree::below(&["status", "conditions"], TaintTree::tainted(Taint::held(source)))
    });
    let instance = shown.chain(told).reduce(TaintTree::join);
    let mut roots =
        BTreeMap::from([live("children"), live("retained"), ("refs".to_owned(), TaintTree::map(refs))]);
    roots.extend(instance.map(|tree| ("instance".to_owned(), tree)));
    roots
}

/// The taint of a Secret object.
fn secret(source: &str) -> TaintTree {
    let data = DATA.map(|field| {
        let tree = TaintTree::tainted(Taint::held(format!("{source}.{field}")));
        // The names of the keys of a Secret are not secret.
        (field.to_owned(), TaintTree::map_of(tree))
    });
    TaintTree::map(data).join(TaintTree::map([metadata(source)]))
}

fn metadata(source: &str) -> (String, TaintTree) {
    let copy = TaintTree::tainted(Taint::held(format!("{source}.metadata.annotations")));
    (
        "metadata".to_owned(),
        TaintTree::map([("annotations".to_owned(), TaintTree::map([(LAST_APPLIED.to_owned(), copy)]))]),
    )
}

/// The taint of a live child that contains secret data.
fn of_child(child: &Child, source: &str) -> Option<TaintTree> {
    if child.kinds.iter().any(is_secret) {
        return Some(secret(source));
    }
    child.exposes_secret_data.then(|| {
        let open = ["apiVersion", "kind", "status"].map(|field| (field.to_owned(), TaintTree::default()));
        let all = TaintTree::tainted(Taint::held(source));
        TaintTree::map(open.into_iter().chain([metadata(source)])).others(all)
    })
}

/// Checks where secret data is used, and collects the diagnostics.
pub(super) struct Checker<'a> {
    pub(super) engine: &'a Engine,
    diagnostics: Vec<Diagnostic>,
    /// Positions that are already reported.
    seen: HashSet<(String, Span)>,
    /// The path of the step that is checked.
    pub(super) path: Option<String>,
}

impl Checker<'_> {
    pub(super) fn error(&mut self, taint: &Taint, at: &Location, place: &str, help: &str) {
        if self.path.is_some() && taint.is_generated() {
            return; // which is reported elsewhere
        }
        if self.seen.insert((at.source.name.clone(), at.span)) {
            let message = format!("{} is secret and must not {place}", shown(taint));
            let error = Diagnostic::error("package::secret-data", message).located(at.clone()).help(help);
            self.diagnostics.push(Diagnostic { path: self.path.clone(), ..error });
        }
    }

    /// Checks an expression that decides something: users see its result.
    pub(super) fn decision(&mut self, expr: &Expr, scope: &TaintScope<'_>, place: &str) {
        if let Some(taint) = self.engine.taint_of(expr, scope).truth() {
            let help = "test whether it exists (`is defined`), or compare it with a literal of the package";
            self.error(&taint, &expr.location(), &format!("decide {place}"), help);
        }
    }

    pub(super) fn text(&mut self, text: &Text, scope: &TaintScope<'_>, place: &str, help: &str) {
        if let Some(taint) = self.engine.taint_of_text(text, scope).any()
            && let Some(location) = text.location()
        {
            self.error(&taint, &location, place, help);
        }
    }

    /// Checks the parts of the instance as a whole.
    fn whole(&mut self, parts: &Parts, scope: &TaintScope<'_>) {
        if let Some(paused) = &parts.paused {
            self.decision(paused, scope, "whether the instance is paused");
        }
        if let Some(ready_when) = &parts.ready_when {
            self.decision(ready_when, scope, "whether the instance is ready");
        }
        for field in &parts.status {
            let taint = self.engine.taint_of(&field.expr, scope).any();
            if field.exposes_secret_data {
                let what = format!("the status field `{}`", field.name);
                self.exposed(taint.as_ref(), &what, "the instance", &field.location);
            } else if let Some(taint) = taint {
                let help = "show the name of the Secret; or, if everybody who may read the instance may know the value, \
                            {value: <expression>, exposesSecretData: true}";
                self.error(&taint, &field.expr.location(), "be shown in the status", help);
            }
        }
        for condition in &parts.conditions {
            let told = self.engine.taint_of_text(&condition.message, scope).any();
            if condition.exposes_secret_data {
                let decides = self.engine.taint_of(&condition.when, scope).truth();
                let what = format!("the condition `{}`", condition.type_);
                self.exposed(told.or(decides).as_ref(), &what, "the instance", &condition.location);
                continue;
            }
            self.decision(&condition.when, scope, "a condition");
            let help = "remove it from the message, or set exposesSecretData: true on the condition";
            self.text(&condition.message, scope, "be shown in a condition", help);
        }
    }

    /// Warns about secret data that the author exposes explicitly.
    fn exposed(&mut self, taint: Option<&Taint>, what: &str, readers: &str, at: &Location) {
        let warning = match taint {
            Some(taint) => Diagnostic::warning(
                "package::exposes-secret-data",
                format!("{what} exposes {}: everybody who may read {readers} can read it", shown(taint)),
            ),
            None => Diagnostic::warning(
                "package::exposes-secret-data",
                format!("{what} sets exposesSecretData and contains no secret data"),
            )
            .help("remove exposesSecretData"),
        };
        self.diagnostics.push(warning.located(at.clone()));
    }

    /// Checks the list of a forEach; returns the scope of each item.
    fn each<'s>(&mut self, for_each: Option<&ForEach>, scope: &TaintScope<'s>) -> TaintScope<'s> {
        let mut roots = scope.roots.clone();
        if let Some(for_each) = for_each {
            let help = "loop over names, and read the Secrets by name";
            let list = self.engine.taint_of(&for_each.in_, scope);
            let items = list.elements();
            // Without `key`, the keys of the members are the items.
            let told = list.structure().cloned().or_else(|| items.any().filter(|_| for_each.key.is_none()));
            if let Some(taint) = told {
                self.error(&taint, &for_each.in_.location(), "be the list of a forEach", help);
            }
            roots.insert(for_each.as_.clone(), items);
        }
        let scope = TaintScope { roots, lets: scope.lets, positions: scope.positions };
        if let Some(key) = for_each.and_then(|for_each| for_each.key.as_ref())
            && let Some(taint) = self.engine.taint_of(key, &scope).any()
        {
            self.error(
                &taint,
                &key.location(),
                "be a key of a forEach",
                "keys appear in labels, logs and conditions: use a name",
            );
        }
        scope
    }

    fn reference(&mut self, reference: &Ref, scope: &TaintScope<'_>) {
        let scope = self.each(reference.for_each.as_ref(), scope);
        if let Some(when) = &reference.when {
            self.decision(when, &scope, "whether a ref is read");
        }
        let what = match reference.target {
            RefSource::Name(..) => "name an object",
            RefSource::Select(..) => "select objects",
            RefSource::Observe(_) => "be a public part of a request",
        };
        for text in reference.target_texts() {
            self.text(
                text,
                &scope,
                what,
                "names, namespaces, selectors, URLs and commands are public: take them from the spec; auth, tls, headers, \
                 bodies and stdin may hold secret data",
            );
        }
    }

    fn child(&mut self, child: &Child, scope: &TaintScope<'_>) {
        let mut scope = self.each(child.for_each.as_ref(), scope);
        if !child.exposes_secret_data {
            for when in child.group_when.iter().chain(&child.when) {
                self.decision(when, &scope, "whether a child exists");
            }
        }
        let help = "take it from the spec, or use a literal";
        for (key, text) in child.settings() {
            self.text(text, &scope, &format!("be {key}"), help);
        }
        let yields = match &child.yields {
            Some(Yields::One(text)) => std::slice::from_ref(text),
            Some(Yields::List(texts)) => texts.as_slice(),
            None => &[],
        };
        for text in yields {
            self.text(text, &scope, "be a path of yields", help);
        }
        if let Some(tree) = of_child(child, "self") {
            scope.roots.insert("self".to_owned(), tree);
        }
        if !child.exposes_secret_data {
            if let Some(expr) = &child.ready_when {
                self.decision(expr, &scope, "whether a child is ready");
            }
            if let Some(expr) = &child.lost_when {
                self.decision(expr, &scope, "whether a child is lost");
            }
        }
        let Some(template) = self.engine.template(&child.template) else { return };
        let found = self.engine.taint_of_template(template, &scope);
        let kind = child.kinds.iter().find(|gvk| !is_secret(gvk));
        let kind = kind.map_or("Secret", |gvk| &*gvk.kind);
        if child.exposes_secret_data {
            let what = format!("`{}`", child.id);
            let taint = found.first().map(|inserted| inserted.taint.clone());
            self.exposed(taint.as_ref(), &what, &format!("this {kind}"), &child.location);
        }
        for inserted in &found {
            self.inserted(inserted, child, kind);
        }
    }

    fn inserted(&mut self, inserted: &Inserted, child: &Child, kind: &str) {
        let Inserted { path, key, taint, location } = inserted;
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let below_data = path.first().is_some_and(|first| DATA.contains(first));
        if child.exposes_secret_data {
            if matches!(
                path.as_slice(),
                [] | ["metadata"] | ["metadata", "name" | "namespace" | "labels", ..]
            ) {
                let help = "names and labels appear in logs and Events: take them from the spec";
                self.error(taint, location, &format!("be a name or a label of a {kind}"), help);
            }
        } else if !child.is_secret() {
            if taint.is_generated() {
                return; // which is reported elsewhere
            }
            let help = "let the pod read the Secret itself (secretKeyRef, a volume), put it into a Secret, or insert a digest \
                        (`| to_json | sha256`); exposesSecretData: true on the child allows it";
            self.error(taint, location, &format!("be in a {kind}"), help);
        } else if *key {
            let help = "keys are visible in the metadata: take them from the spec, or use literals";
            self.error(taint, location, "be a key", help);
        } else if !below_data {
            let help = "only data and stringData of a Secret are secret";
            self.error(taint, location, "be outside the data of a Secret", help);
        }
    }
}

/// The secret path as it is shown in messages.
fn shown(taint: &Taint) -> String {
    if taint.source.contains(' ') { taint.source.to_string() } else { format!("`{}`", taint.source) }
}

#[cfg(test)]
mod tests;

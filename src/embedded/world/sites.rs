//! The places of a file that have an expression or a template.

use operetta_lang::diag::Location;
use operetta_lang::template::{Expr, Text};
use operetta_package::Tree;
use operetta_package::decode::At;

use super::rules::{Change, Delay, Operation, Place, Rules, When};

/// An expression or a template.
#[derive(Clone, Copy)]
pub(super) enum Code<'r> {
    Expression(&'r Expr),
    Text(&'r Text),
}

/// A place that has one.
pub(super) struct Site<'r> {
    pub(super) code: Code<'r>,
    pub(super) at: &'r Location,
    pub(super) path: &'r str,
    /// The variable of the loop around it.
    pub(super) item: Option<&'r str>,
}

/// All places of the rules, without those of lets.
pub(super) fn sites(rules: &Rules) -> Vec<Site<'_>> {
    let mut sites = Sites { found: Vec::new(), item: None };
    sites.texts(&rules.per);
    for rule in &rules.pods {
        sites.when(&rule.when);
        sites.when(&rule.ready_when);
        if let Delay::After(text) = &rule.ready_after {
            sites.text(text);
        }
        let texts = [&rule.ends_after, &rule.exit_code, &rule.message, &rule.waiting];
        sites.texts(texts.into_iter().flatten());
        sites.changes(&rule.changes);
    }
    for rule in &rules.exec {
        sites.when(&rule.when);
        let texts = [&rule.stdout, &rule.stderr, &rule.exit_code, &rule.takes];
        sites.texts(texts.into_iter().flatten());
        sites.changes(&rule.changes);
    }
    for rule in &rules.http {
        sites.when(&rule.when);
        let texts = [&rule.per, &rule.status, &rule.body, &rule.takes, &rule.fails];
        sites.texts(texts.into_iter().flatten());
        sites.texts(rule.headers.iter().map(|(_, text)| text));
        if let Some(json) = &rule.json {
            sites.tree(&json.value, &json.at, &json.path);
        }
        sites.changes(&rule.changes);
    }
    for rule in &rules.logs {
        sites.when(&rule.when);
        sites.text(&rule.text);
    }
    for rule in &rules.balancers {
        sites.when(&rule.when);
        sites.text(&rule.address);
    }
    sites.found
}

struct Sites<'r> {
    found: Vec<Site<'r>>,
    item: Option<&'r str>,
}

impl<'r> Sites<'r> {
    fn add(&mut self, code: Code<'r>, at: &'r Location, path: &'r str) {
        self.found.push(Site { code, at, path, item: self.item });
    }

    fn when(&mut self, when: &'r When) {
        if let Some(At { value, at, path }) = when {
            self.add(Code::Expression(value), at, path);
        }
    }

    fn text(&mut self, text: &'r At<Text>) {
        self.add(Code::Text(&text.value), &text.at, &text.path);
    }

    fn texts(&mut self, texts: impl IntoIterator<Item = &'r At<Text>>) {
        for text in texts {
            self.text(text);
        }
    }

    fn tree(&mut self, tree: &'r Tree, at: &'r Location, path: &'r str) {
        match tree {
            Tree::Text(text) => self.add(Code::Text(text), at, path),
            Tree::List(items) => items.iter().for_each(|item| self.tree(item, at, path)),
            Tree::Map(entries) => entries.iter().for_each(|(_, value)| self.tree(value, at, path)),
        }
    }

    fn entries(&mut self, entries: &'r [(Place, Tree)]) {
        for (place, tree) in entries {
            self.tree(tree, &place.at, &place.path);
        }
    }

    fn changes(&mut self, changes: &'r [Change]) {
        for change in changes {
            if let Some((list, name)) = &change.each {
                self.add(Code::Expression(&list.value), &list.at, &list.path);
                self.item = Some(name.as_str());
            }
            self.when(&change.when);
            match &change.operation {
                Operation::Set(entries) => self.entries(entries),
                Operation::Add(place, item) => self.tree(item, &place.at, &place.path),
                Operation::Remove(_, which) => self.when(which),
                Operation::Change(_, which, fields) => {
                    self.when(which);
                    self.entries(fields);
                }
            }
            self.item = None;
        }
    }
}

//! The actions of steps, except HTTP requests.

use std::sync::Arc;

use serde_json::Value;

use crate::api::Gvk;
use crate::compiler::{Compiler, Names, near};
use crate::decode::{At, Must};
use crate::manifest::Tree;
use crate::plan::{Action, Call, ChildPod, Exec, Members, Of, Other, Patch, Until, manifest};
use crate::template::Text;

impl Compiler<'_> {
    pub(super) fn members(
        &mut self,
        members: &At<Vec<At<manifest::Members>>>,
        names: &Names<'_>,
    ) -> Vec<Members> {
        if members.value.is_empty() && self.complete {
            let error = members.error("package::empty", "the list names no child");
            self.diagnostics.push(error.help("add the id of a child"));
        }
        members.value.iter().filter_map(|member| self.member(member, names)).collect()
    }

    /// Compiles the reference to a child, or to one member of it.
    pub(crate) fn member(&mut self, source: &At<manifest::Members>, names: &Names<'_>) -> Option<Members> {
        let manifest::Members { child, key } = &source.value;
        let has_loop = names.children.iter().find(|(id, _)| id == child).map(|(_, has_loop)| *has_loop);
        match has_loop {
            None if self.complete => {
                let error = source.error("package::unknown-child", format!("there is no child `{child}`"));
                self.diagnostics.push(near(error, child, names.children.iter().map(|(id, _)| *id)));
            }
            Some(false) if key.is_some() => {
                let message = format!("`{child}` has no forEach, so it has no members");
                self.diagnostics.push(source.error("package::value", message).help(format!("write {child}")));
            }
            _ => {}
        }
        self.member_of_any(source)
    }

    /// Compiles a reference to a child of this or another kind.
    fn member_of_any(&mut self, source: &At<manifest::Members>) -> Option<Members> {
        let manifest::Members { child, key } = &source.value;
        let key = match key {
            Some(key) => Some(self.member_key(key, source)?),
            None => None,
        };
        Some(Members { child: child.clone(), key, location: source.at.clone() })
    }

    /// Compiles the reference to a pod of a child. Whether another instance has the child is checked once all kinds are
    /// compiled: see [`Compiler::others`].
    pub(super) fn child_pod(
        &mut self,
        of: Option<&At<String>>,
        child: &At<manifest::Members>,
        ordinal: Option<&Tree>,
        names: &Names<'_>,
    ) -> Option<ChildPod> {
        let of = match of {
            None => None,
            Some(of) => Some(self.other(of, names)?),
        };
        let members = match &of {
            None => self.member(child, names),
            Some(_) => self.member_of_any(child),
        };
        let ordinal = match ordinal {
            None => None,
            Some(Tree::Text(source)) => Some(self.text(source)?),
            Some(Tree::Constant(value @ Value::Number(_))) => Some(Text::literal(value.clone())),
            Some(_) => {
                let error = child
                    .error("package::type", "the ordinal must be a number, or a template that yields one");
                self.diagnostics.push(error.help("write ordinal: 0"));
                return None;
            }
        };
        Some(ChildPod { of, child: members?, ordinal })
    }

    fn other(&mut self, of: &At<String>, names: &Names<'_>) -> Option<Other> {
        let reference = of.value.as_str();
        if !names.refs.contains(&reference) {
            if self.complete {
                let error = of.error("package::unknown-path", format!("there is no ref `{reference}`"));
                self.diagnostics.push(near(error, reference, names.refs.iter().copied()));
            }
            return None;
        }
        let source = format!("{{{{ refs['{reference}'].metadata.uid }}}}");
        let uid = self.text(&At { value: source, at: of.at.clone(), path: of.path.clone() })?;
        Some(Other { reference: reference.to_owned(), uid, location: of.at.clone() })
    }

    /// Compiles the key of a member: an integer, a string with or without quotes, or a template.
    fn member_key(&mut self, key: &str, source: &At<manifest::Members>) -> Option<Text> {
        let quoted = ['"', '\''].into_iter().find_map(|quote| key.strip_prefix(quote)?.strip_suffix(quote));
        if let Some(inner) = quoted {
            return Some(Text::literal(Value::String(inner.to_owned())));
        }
        if let Ok(number) = key.parse::<i64>() {
            return Some(Text::literal(number.into()));
        }
        self.text(&At { value: key.to_owned(), at: source.at.clone(), path: source.path.clone() })
    }

    pub(super) fn job(&mut self, template: &Must<At<String>>, names: &Names<'_>) -> Option<String> {
        let path = template.0.as_ref()?;
        self.file(path, "templates/")?;
        let engine = Arc::clone(&self.engine);
        let Some(template) = engine.template(&path.value) else {
            self.readable = false; // it does not compile, which is already reported
            return None;
        };
        let kinds = self.note(template.kinds().map(<[Gvk]>::to_vec), &path.path)?;
        if let Some(other) = kinds.iter().find(|kind| !kind.is("batch/v1", "Job")) {
            let message = format!("the template of a job step is a {}, not a Job", other.kind);
            let help = "write apiVersion: batch/v1 and kind: Job; other objects are children";
            self.diagnostics.push(path.error("package::job", message).help(help));
        }
        self.generates_nothing(&template.reads().generates);
        if names.namespaced {
            let outline = self.outlines.get(&path.value);
            let own = crate::Namespaces::of(template.source(), outline, &mut self.diagnostics);
            if !own.is_own() {
                let message = "the Job of a namespaced instance is in the namespace of the instance";
                self.diagnostics
                    .push(path.error("package::namespace", message).help("remove metadata.namespace"));
            }
        }
        Some(path.value.clone())
    }

    /// Compiles the command of a step or of an observation.
    pub(crate) fn exec(&mut self, exec: &At<manifest::Exec>, names: &Names<'_>) -> Option<Exec> {
        let At { value: manifest, .. } = exec;
        let pod = self.child_pod(manifest.of.as_ref(), &manifest.child, manifest.ordinal.as_ref(), names);
        let command = manifest.command.0.as_ref()?;
        match &command.value {
            Tree::List(items) if items.is_empty() => {
                self.diagnostics.push(command.error("package::empty", "the command is empty"));
            }
            Tree::List(items) => {
                if items.iter().any(|item| !matches!(item, Tree::Text(_) | Tree::Constant(_))) {
                    let error =
                        command.error("package::type", "an argument must be a string, a number or a boolean");
                    self.diagnostics.push(error.help("use to_json for a list or a map"));
                }
            }
            Tree::Text(source) if source.value.contains("{{") => {}
            Tree::Text(source) => {
                let words: Vec<&str> = source.value.split_whitespace().collect();
                let error = command.error("package::type", "the command must be a list: no shell splits it");
                self.diagnostics.push(error.help(format!("write [{}]", words.join(", "))));
            }
            Tree::Map(_) | Tree::Constant(_) => {
                self.diagnostics
                    .push(command.error("package::type", "the command must be a list of strings"));
            }
        }
        Some(Exec {
            container: self.template_text(manifest.container.as_ref()),
            command: self.tree(&command.value)?,
            stdin: self.template_text(manifest.stdin.as_ref()),
            pod: pod?,
        })
    }

    pub(super) fn wait(&mut self, wait: &At<manifest::Wait>) -> Option<Action> {
        let manifest = &wait.value;
        match (&manifest.until, &manifest.json_path, &manifest.duration) {
            (Some(until), None, None) => {
                if manifest.value.is_some() {
                    let error = wait.error("package::value", "`value` requires jsonPath");
                    self.diagnostics.push(error.help("compare in the expression: until: x == 3"));
                }
                let expr = self.expression(until)?;
                Some(Action::Wait(Box::new(Until { expr, search: None, is_path: false, value: None })))
            }
            (None, Some(path), None) => {
                let result = self.engine.json_path(&path.value, &path.at);
                let (expr, search) = self.note(result, &path.path)?;
                let value = match &manifest.value {
                    Some(value) => Some(self.tree(value)?),
                    None => None,
                };
                Some(Action::Wait(Box::new(Until { expr, search, is_path: true, value })))
            }
            (None, None, Some(duration)) => self.text(&duration.0).map(Action::Pause),
            _ if !self.complete => None,
            _ => {
                let error =
                    wait.error("package::value", "wait takes one of `until`, `jsonPath` and `duration`");
                self.diagnostics
                    .push(error.help("write wait: {until: children.x is ready}, or wait: {duration: 10s}"));
                None
            }
        }
    }

    pub(super) fn patch(&mut self, manifest: &manifest::Patch, names: &Names<'_>) -> Option<Patch> {
        let merge = manifest.merge.0.as_ref()?;
        if !matches!(merge.value, Tree::Map(_)) {
            let error = merge.error("package::type", "a merge patch must be a map");
            self.diagnostics.push(error.help("write merge: {metadata: {labels: {a: b}}}"));
        }
        let namespace = match &manifest.namespace {
            Some(namespace) => {
                self.namespace(namespace, names.namespaced)?;
                Some(self.text(&namespace.0)?)
            }
            None => None,
        };
        Some(Patch {
            gvk: Gvk::new(manifest.api_version.value.0.as_str(), manifest.kind.value.0.as_str()),
            name: self.text(&manifest.name.0.as_ref()?.0)?,
            namespace,
            merge: self.tree(&merge.value)?,
        })
    }

    pub(super) fn call(&mut self, call: &manifest::Call, names: &Names<'_>) -> Option<Call> {
        let map = match call {
            manifest::Call::Name(name) => {
                self.known_plan(name, &name.value, names, &[]);
                return Some(Call { plan: name.value.clone(), of: None, params: None });
            }
            manifest::Call::Map(map) => map,
        };
        let name = map.name.0.as_ref()?;
        if map.of.is_none() {
            self.known_plan(name, &name.value, names, &[]);
        }
        let params = match &map.params {
            Some(params) => {
                if !matches!(&params.value, Tree::Map(_) | Tree::Text(_)) {
                    let error = params.error("package::type", "params must be a map");
                    self.diagnostics.push(error.help("write params: {from: 0}"));
                }
                Some(self.tree(&params.value)?)
            }
            None => None,
        };
        let of = match &map.of {
            Some(of) => Some(Of {
                gvk: Gvk::new(of.api_version.value.0.as_str(), of.kind.value.0.as_str()),
                name: self.text(&of.name.0.as_ref()?.0)?,
            }),
            None => None,
        };
        Some(Call { plan: name.value.clone(), of, params })
    }
}

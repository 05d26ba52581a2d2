//! Compiles a world, and checks the names in its expressions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use operetta_lang::diag::{Diagnostic, Location, Source, did_you_mean};
use operetta_lang::template::{Engine, Lets, ReadPath, Reads, Segment, Text};
use operetta_package::Tree;
use operetta_package::decode::{At, Constants};
use operetta_package::manifest::{self, Expression, LetValue, TemplateText};
use operetta_package::plan::manifest::Time;
use operetta_package::world::{self as format, Word, read_world};
use serde_json::{Value, json};

use super::pattern::{Command, Pattern, is_name};
use super::rules::{
    BalancerRule, Change, Delay, ExecRule, HttpRule, LogRule, Operation, Place, PodRule, Rules, When,
};

/// Variables of every rule.
const ALWAYS: [&str; 6] = ["state", "shared", "let", "now", "seconds", "pods"];
/// Variables of rules about a pod.
const OF_POD: [&str; 4] = ["pod", "owner", "env", "disks"];
const OF_EXEC: [&str; 3] = ["container", "command", "stdin"];
const OF_HTTP: [&str; 5] = ["method", "url", "query", "headers", "body"];
const OF_SERVICE: [&str; 2] = ["service", "owner"];

/// All variables that are not those of a file.
fn variables() -> impl Iterator<Item = &'static str> {
    ALWAYS.into_iter().chain(OF_POD).chain(OF_EXEC).chain(OF_HTTP).chain(OF_SERVICE)
}

/// The codes of mistakes.
const PATTERN: &str = "world::pattern";
const CHANGE: &str = "world::change";
const VALUE: &str = "world::value";

/// Compiles a world.
///
/// # Errors
/// All its mistakes.
pub(super) fn compile(source: &Arc<Source>) -> Result<Rules, Vec<Diagnostic>> {
    let world = read_world(source)?;
    let mut compiler = Compiler {
        engine: Engine::empty(),
        errors: Vec::new(),
        reads: BTreeSet::new(),
        state: BTreeSet::new(),
        shared: BTreeSet::new(),
        lets: BTreeMap::new(),
        names: variables().map(str::to_owned).collect(),
    };
    let rules = compiler.world(source, world);
    if compiler.errors.is_empty() {
        return Ok(rules);
    }
    operetta_package::sort(&mut compiler.errors);
    Err(compiler.errors)
}

struct Compiler {
    engine: Engine,
    errors: Vec<Diagnostic>,
    /// The variables that expressions read.
    reads: BTreeSet<String>,
    /// The names in the state, and in the shared state.
    state: BTreeSet<String>,
    shared: BTreeSet<String>,
    lets: BTreeMap<String, Text>,
    /// All variables of the file, those of captures and loops included.
    names: BTreeSet<String>,
}

/// The variables of a rule.
#[derive(Clone)]
struct Scope(Vec<String>);

impl Scope {
    fn of(names: &[&[&str]]) -> Self {
        Self(names.iter().copied().flatten().map(|name| (*name).to_owned()).collect())
    }

    fn with<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Self {
        Self(self.0.iter().cloned().chain(names.into_iter().map(str::to_owned)).collect())
    }
}

impl Compiler {
    fn world(&mut self, source: &Arc<Source>, world: format::World) -> Rules {
        let state = self.constants(world.state);
        let shared = self.constants(world.shared);
        let names = |value: &Value| value.as_object().into_iter().flatten().map(|(k, _)| k.clone()).collect();
        (self.state, self.shared) = (names(&state), names(&shared));
        for (name, value) in world.lets.map(|lets| lets.0).unwrap_or_default() {
            let text = match value {
                LetValue::Text(text) => self.compiled(&text),
                LetValue::Constant(value) => Some(Text::literal(value)),
            };
            if let Some(text) = text {
                self.lets.insert(name.value, text);
            }
        }
        let lets = Arc::new(Lets::new(self.lets.clone()));
        if let Some(cycle) = lets.cycle() {
            let message = format!("these values need each other: {}", cycle.join(" -> "));
            let at = self.lets.get(&cycle[0]).and_then(Text::location);
            self.errors.push(Diagnostic { location: at, ..Diagnostic::error(VALUE, message) });
        }
        let pod = Scope::of(&[&ALWAYS, &OF_POD]);
        let in_container = pod.with(["container"]);
        let per = world.per.and_then(|per| self.text(per, &Scope::of(&[&OF_POD])));
        let pods = world.pods.unwrap_or_default().into_iter().map(|rule| self.pod(rule, &pod)).collect();
        let exec = world.exec.unwrap_or_default().into_iter();
        let exec = exec.filter_map(|rule| self.exec(rule, &pod)).collect();
        let http = world.http.unwrap_or_default().into_iter();
        let http = http.filter_map(|rule| self.http(rule, &Scope::of(&[&ALWAYS, &OF_HTTP]))).collect();
        let logs = world.logs.unwrap_or_default().into_iter();
        let logs = logs.filter_map(|rule| self.log(rule, &in_container)).collect();
        let of_service = Scope::of(&[&ALWAYS, &OF_SERVICE]);
        let balancers = world.load_balancers.unwrap_or_default().into_iter();
        let balancers = balancers.filter_map(|rule| self.balancer(rule, &of_service)).collect();
        let all = Scope(self.names.iter().cloned().collect());
        for text in self.lets.clone().into_values() {
            self.check(text.reads(), &all, None);
        }
        let (engine, reads) = (std::mem::take(&mut self.engine), std::mem::take(&mut self.reads));
        let name = source.name.clone();
        Rules { engine, name, per, state, shared, lets, pods, exec, http, logs, balancers, reads }
    }

    /// The initial value of a state.
    fn constants(&mut self, constants: Option<At<Constants>>) -> Value {
        let Some(constants) = constants else { return json!({}) };
        for (name, value) in &constants.value.0 {
            if !is_name(name) {
                self.error(&constants, VALUE, format!("`{name}` is no name that expressions can read"));
            } else if value.to_string().contains("{{") {
                let message = format!("`{name}` is a constant and cannot contain a template");
                self.error(&constants, VALUE, message);
            }
        }
        Value::Object(constants.value.0)
    }

    fn error<T>(&mut self, at: &At<T>, code: &'static str, message: impl Into<String>) {
        self.errors.push(at.error(code, message));
    }

    fn compiled(&mut self, text: &At<String>) -> Option<Text> {
        let found = self.engine.text(&text.value, &text.at);
        found.map_err(|error| self.errors.push(error.path(text.path.clone()))).ok()
    }

    fn text(&mut self, text: TemplateText, scope: &Scope) -> Option<At<Text>> {
        let TemplateText(At { value, at, path }) = text;
        let text = At { value, at, path };
        let value = self.compiled(&text)?;
        self.check(value.reads(), scope, Some(&text.path));
        Some(At { value, at: text.at, path: text.path })
    }

    fn optional(&mut self, text: Option<TemplateText>, scope: &Scope) -> Option<At<Text>> {
        self.text(text?, scope)
    }

    fn time(&mut self, time: Option<Time>, scope: &Scope) -> Option<At<Text>> {
        self.text(TemplateText(time?.0), scope)
    }

    fn expression(&mut self, expression: Option<Expression>, scope: &Scope) -> When {
        let At { value, at, path } = expression?.0;
        let found = self.engine.expression(&value, &at);
        let value = found.map_err(|error| self.errors.push(error.path(path.clone()))).ok()?;
        self.check(value.reads(), scope, Some(&path));
        Some(At { value, at, path })
    }

    fn tree(&mut self, tree: manifest::Tree, scope: &Scope) -> Option<Tree> {
        Some(match tree {
            manifest::Tree::Text(text) => Tree::Text(self.text(TemplateText(text), scope)?.value),
            manifest::Tree::List(items) => {
                Tree::List(items.into_iter().map(|item| self.tree(item, scope)).collect::<Option<_>>()?)
            }
            manifest::Tree::Map(entries) => {
                let entries = entries.into_iter();
                let entries = entries.map(|(key, value)| Some((key, self.tree(value, scope)?)));
                Tree::Map(entries.collect::<Option<_>>()?)
            }
            manifest::Tree::Constant(value) => Tree::Text(Text::literal(value)),
        })
    }

    /// A number, which is between `least` and `most`.
    fn number(
        &mut self,
        number: Option<format::Number>,
        scope: &Scope,
        (least, most): (u64, u64),
    ) -> Option<At<Text>> {
        let At { value, at, path } = number?.0;
        let constant = match value {
            manifest::Tree::Text(text) => return self.text(TemplateText(text), scope),
            manifest::Tree::Constant(constant) => constant,
            _ => return None,
        };
        let found = At { value: Text::literal(constant.clone()), at, path };
        if !constant.as_u64().is_some_and(|number| (least..=most).contains(&number)) {
            self.error(&found, VALUE, format!("must be a number from {least} to {most}"));
        }
        Some(found)
    }

    fn pod(&mut self, rule: At<format::PodRule>, scope: &Scope) -> PodRule {
        let At { value: rule, at, path } = rule;
        PodRule {
            written: At { value: (), at, path },
            when: self.expression(rule.when, scope),
            ready_after: match rule.ready_after {
                None => Delay::Default,
                Some(delay) => self.time(delay.0, scope).map_or(Delay::Never, Delay::After),
            },
            ready_when: self.expression(rule.ready_when, scope),
            ends_after: self.time(rule.ends_after, scope),
            exit_code: self.number(rule.exit_code, scope, (0, 255)),
            message: self.optional(rule.message, scope),
            waiting: self.optional(rule.waiting, scope),
            changes: self.changes(rule.changes, scope),
        }
    }

    fn exec(&mut self, rule: At<format::ExecRule>, scope: &Scope) -> Option<ExecRule> {
        let At { value: rule, at, path } = rule;
        let command = self.command(rule.command.0?)?;
        let scope = scope.with(OF_EXEC).with(command.patterns().flat_map(Pattern::names));
        Some(ExecRule {
            written: At { value: (), at, path },
            when: self.expression(rule.when, &scope),
            container: rule.container,
            changes: self.changes(rule.changes, &scope),
            stdout: self.optional(rule.stdout, &scope),
            stderr: self.optional(rule.stderr, &scope),
            exit_code: self.number(rule.exit_code, &scope, (0, 255)),
            takes: self.time(rule.takes, &scope),
            command,
        })
    }

    fn http(&mut self, rule: At<format::HttpRule>, scope: &Scope) -> Option<HttpRule> {
        let At { value: rule, at, path } = rule;
        let written = At { value: (), at, path };
        let (url, is_pod) = match (rule.url, rule.path) {
            (Some(url), None) => (url, false),
            (None, Some(path)) => (path, true),
            (Some(url), Some(_)) => {
                self.error(&url, VALUE, "a rule has `url` or `path`, not both");
                return None;
            }
            (None, None) => {
                if let Some(at) = &rule.port {
                    self.error(at, VALUE, "`port` requires `path`");
                }
                let message = "a rule of `http` has neither `url` nor `path`";
                self.errors.push(written.error(VALUE, message));
                return None;
            }
        };
        if let Some(at) = rule.port.as_ref().filter(|_| !is_pod) {
            self.error(at, VALUE, "`port` requires `path`: that of a URL is in the URL");
        }
        if is_pod && !url.value.starts_with('/') {
            self.error(&url, PATTERN, "a path begins with a slash");
        }
        let pattern = self.pattern(&url, Pattern::text(&url.value, "[^/]+"))?;
        let scope = scope.with(pattern.names()).with(OF_POD.into_iter().filter(|_| is_pod));
        if let (Some(json), Some(_)) = (&rule.json, &rule.body) {
            self.error(json, VALUE, "a rule has `json` or `body`, not both");
        }
        let keyed = Scope(scope.0.iter().filter(|name| !ALWAYS.contains(&&***name)).cloned().collect());
        let headers = rule.headers.map(|headers| headers.0).unwrap_or_default().into_iter();
        Some(HttpRule {
            written,
            method: rule.method.map(|method| format!("{method:?}")),
            when: self.expression(rule.when, &scope),
            per: self.optional(rule.per, &keyed),
            changes: self.changes(rule.changes, &scope),
            status: self.number(rule.status, &scope, (100, 599)),
            headers: headers
                .filter_map(|(name, text)| Some((name.value.to_ascii_lowercase(), self.text(text, &scope)?)))
                .collect(),
            json: rule
                .json
                .and_then(|At { value, at, path }| Some(At { value: self.tree(value, &scope)?, at, path })),
            body: self.optional(rule.body, &scope),
            takes: self.time(rule.takes, &scope),
            fails: self.optional(rule.fails, &scope),
            url: pattern,
            port: rule.port.map(|port| port.value.0),
            is_pod,
        })
    }

    fn log(&mut self, rule: At<format::LogRule>, scope: &Scope) -> Option<LogRule> {
        let At { value: rule, at, path } = rule;
        let when = self.expression(rule.when, scope);
        let text = self.text(rule.text.0?, scope)?;
        Some(LogRule { written: At { value: (), at, path }, container: rule.container, when, text })
    }

    fn balancer(&mut self, rule: At<format::LoadBalancerRule>, scope: &Scope) -> Option<BalancerRule> {
        let At { value: rule, at, path } = rule;
        let when = self.expression(rule.when, scope);
        let address = self.text(rule.address.0?, scope)?;
        Some(BalancerRule { written: At { value: (), at, path }, when, address })
    }

    fn command(&mut self, words: At<Vec<Word>>) -> Option<Command> {
        let mut command = Command::default();
        if words.value.is_empty() {
            self.error(&words, PATTERN, "the command is empty");
        }
        for word in words.value {
            let (at, pattern) = match word {
                Word::Rest(at) if command.rest => {
                    self.error(&at, PATTERN, "`...` may be in a command once");
                    continue;
                }
                Word::Rest(_) => {
                    command.rest = true;
                    continue;
                }
                Word::Capture(name, _) if !is_name(&name.value) => {
                    self.error(&name, PATTERN, format!("`{}` is no name of a variable", name.value));
                    continue;
                }
                Word::Capture(name, regex) => {
                    let pattern =
                        Pattern::whole(&name.value, regex.as_ref().map_or(".*", |regex| &regex.value));
                    (regex.unwrap_or(name), pattern)
                }
                Word::Text(text) => {
                    let pattern = Pattern::text(&text.value, ".*");
                    (text, pattern)
                }
            };
            let pattern = self.pattern(&at, pattern)?;
            if command.rest { &mut command.after } else { &mut command.before }.push(pattern);
        }
        Some(command)
    }

    /// A pattern, whose captures become variables.
    fn pattern(&mut self, at: &At<String>, pattern: Result<Pattern, String>) -> Option<Pattern> {
        let pattern = pattern.map_err(|message| self.error(at, PATTERN, message)).ok()?;
        for name in pattern.names() {
            if variables().any(|variable| variable == name) {
                self.error(
                    at,
                    PATTERN,
                    format!("the name `{name}` is taken: it is a variable of every rule"),
                );
            }
            self.names.insert(name.to_owned());
        }
        Some(pattern)
    }

    fn changes(&mut self, changes: Option<Vec<format::Change>>, scope: &Scope) -> Vec<Change> {
        changes.unwrap_or_default().into_iter().filter_map(|change| self.change(change, scope)).collect()
    }

    fn change(&mut self, change: format::Change, scope: &Scope) -> Option<Change> {
        let each = change.for_each.and_then(|each| {
            let name = each.name.value.0;
            self.names.insert(name.clone());
            Some((self.expression(Some(each.list), scope)?, name))
        });
        let scope = &scope.with(each.as_ref().map(|(_, name)| name.as_str()));
        let when = self.expression(change.when, scope);
        let item = &scope.with(["item", "key"]);
        self.names.extend(["item".to_owned(), "key".to_owned()]);
        let operation = match (change.set, change.add, change.remove, change.change) {
            (Some(set), None, None, None) => {
                let entries = set.value.0.into_iter();
                let entries =
                    entries.map(|(place, tree)| Some((self.place(place)?, self.tree(tree, scope)?)));
                Operation::Set(entries.collect::<Option<_>>()?)
            }
            (None, Some(add), None, None) => {
                let Some(item) = change.item else {
                    self.error(&add, CHANGE, "`add` needs an `item`");
                    return None;
                };
                let tree = self.tree(item, scope)?;
                return Some(Change { when, each, operation: Operation::Add(self.place(add)?, tree) });
            }
            (None, None, Some(remove), None) => {
                let which = self.expression(change.where_, item);
                return Some(Change { when, each, operation: Operation::Remove(self.place(remove)?, which) });
            }
            (Some(set), None, None, Some(list)) => {
                let which = self.expression(change.where_, item);
                let fields = set.value.0.into_iter();
                let fields = fields.map(|(name, tree)| Some((field(name), self.tree(tree, item)?)));
                let fields = fields.collect::<Option<_>>()?;
                let list = self.place(list)?;
                return Some(Change { when, each, operation: Operation::Change(list, which, fields) });
            }
            (set, add, remove, list) => {
                let at = set.map(|set| At { value: String::new(), at: set.at, path: set.path });
                let at = at.or(add).or(remove).or(list);
                let message = "a change is one of: `set`; `add` with `item`; `remove`; `change` with `set`";
                match at {
                    Some(at) => self.error(&at, CHANGE, message),
                    None => self.errors.push(Diagnostic::error(CHANGE, message)),
                }
                return None;
            }
        };
        Some(Change { when, each, operation })
    }

    /// A place in the state that is declared.
    fn place(&mut self, text: At<String>) -> Option<Place> {
        let (root, rest) = text.value.split_once('.').unwrap_or((&text.value, ""));
        let known = match root {
            "state" => &self.state,
            "shared" => &self.shared,
            _ => {
                self.error(
                    &text,
                    CHANGE,
                    "a place begins with `state.` or `shared.`, for example state.members",
                );
                return None;
            }
        };
        let keys: Vec<String> = rest.split('.').map(str::to_owned).collect();
        if !known.contains(&keys[0]) {
            let error = undeclared(root, &keys[0], known);
            self.errors.push(error.located(text.at).path(text.path));
            return None;
        }
        Some(Place { is_shared: root == "shared", keys, text: text.value, at: text.at, path: text.path })
    }

    /// Checks the variables that an expression of a rule reads, also through lets.
    fn check(&mut self, reads: &Reads, scope: &Scope, path: Option<&str>) {
        let located = |error: Diagnostic, at: &Location| {
            let error = error.located(at.clone());
            if let Some(path) = path { error.path(path) } else { error }
        };
        for read in &reads.paths {
            self.reads.insert(read.root.clone());
            let error = self.wrong(read, scope).or_else(|| {
                let name = (read.root == "let").then(|| read.segments.first()?.as_key()).flatten()?;
                let mut seen = BTreeSet::new();
                path.and_then(|_| self.missing_in(name, scope, &mut seen)).map(|variable| {
                    let message = format!("`let.{name}` reads `{variable}`, which does not exist here");
                    Diagnostic::error("world::unknown-variable", message)
                })
            });
            self.errors.extend(error.map(|error| located(error, &read.location)));
        }
    }

    /// What is wrong with a path.
    fn wrong(&self, read: &ReadPath, scope: &Scope) -> Option<Diagnostic> {
        let key = read.segments.first().and_then(Segment::as_key);
        let lets;
        let known = match read.root.as_str() {
            root if !scope.0.iter().any(|name| name == root) => {
                let message = if self.names.contains(root) {
                    format!("`{root}` does not exist here")
                } else {
                    format!("unknown variable `{root}`")
                };
                let error = Diagnostic::error("world::unknown-variable", message);
                let near = did_you_mean(root, scope.0.iter().map(String::as_str));
                return Some(match near {
                    Some(near) => error.help(format!("did you mean `{near}`?")),
                    None => error.help(format!("there is {}", scope.0.join(", "))),
                });
            }
            "state" => &self.state,
            "shared" => &self.shared,
            "let" => {
                lets = self.lets.keys().cloned().collect();
                &lets
            }
            _ => return None,
        };
        key.filter(|key| !known.contains(*key)).map(|key| undeclared(&read.root, key, known))
    }

    /// A variable that a let reads, directly or through others, and that the scope lacks.
    fn missing_in(&self, name: &str, scope: &Scope, seen: &mut BTreeSet<String>) -> Option<String> {
        if !seen.insert(name.to_owned()) {
            return None;
        }
        self.lets.get(name)?.reads().paths.iter().find_map(|read| {
            if read.root == "let" {
                return self.missing_in(read.segments.first()?.as_key()?, scope, seen);
            }
            let is_missing = !read.guarded && !scope.0.contains(&read.root);
            is_missing.then(|| read.root.clone())
        })
    }
}

/// A name that is not declared.
fn undeclared(root: &str, name: &str, known: &BTreeSet<String>) -> Diagnostic {
    let error =
        Diagnostic::error("world::unknown-name", format!("`{root}.{name}` is not declared in `{root}`"));
    match did_you_mean(name, known.iter().map(String::as_str)) {
        Some(near) => error.help(format!("did you mean `{root}.{near}`?")),
        None => error.help(format!("add it: {root}: {{{name}: ...}}")),
    }
}

/// A field of an item.
fn field(name: At<String>) -> Place {
    let keys = name.value.split('.').map(str::to_owned).collect();
    Place { is_shared: false, keys, text: name.value, at: name.at, path: name.path }
}

//! Loads the test files of a package.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use operetta_embedded::World;
use serde_json::Value;

use super::absence::Claim;
use super::installed::Installed;
use super::sources::{Objects, Sources, unreadable};
use crate::api::ApiKind;
use crate::crd;
use crate::diag::{Diagnostic, Location, Source, did_you_mean};
use crate::package::decode::At;
use crate::package::manifest::Expression;
use crate::package::test_file::{
    self as format, Address, Manifest, PackageTest, Part, Partial, read_test_file,
};
use crate::package::{Package, Unread};
use crate::template::{Engine, Expr, Segment};

/// The variables of expressions of a case.
const VARIABLES: [&str; 6] = ["instance", "children", "runs", "pods", "objects", "deleted"];
/// The name of the world's file.
pub(super) const WORLD: &str = "world.yaml";
/// How long an expectation may take, if the step does not say.
const WITHIN: Duration = Duration::from_secs(3600);

/// The cases of one file.
#[derive(Debug)]
pub(crate) struct Suite {
    /// The file, as it is shown.
    pub path: String,
    pub source: Arc<Source>,
    /// What is written, with the place of each value.
    pub written: PackageTest,
    pub packages: Vec<Arc<Package>>,
    pub world: Option<World>,
    pub cases: Vec<Case>,
    /// Whether expectations that differ are recorded instead of failing.
    pub records: bool,
    /// Whether what there is at the end of a case is kept.
    pub observes: bool,
    /// What is wrong with the engine, in tests of exploration itself.
    #[cfg(test)]
    pub bug: Option<super::planted::Bug>,
    /// The cluster in which cases begin, once one has.
    installed: OnceLock<Installed>,
}

impl Suite {
    /// The cluster in which its cases begin.
    pub(super) fn installed(&self) -> &Installed {
        self.installed.get_or_init(|| Installed::of(&self.packages, applied_kinds(&self.cases)))
    }
}

/// The kinds of the CRDs that cases apply.
fn applied_kinds(cases: &[Case]) -> Vec<ApiKind> {
    let steps = cases.iter().flat_map(|case| &case.steps);
    let objects = steps.flat_map(|step| match &step.action {
        Action::Apply(objects) => &objects[..],
        _ => &[],
    });
    let crds = objects.filter(|object| object.value["kind"] == "CustomResourceDefinition");
    crds.filter_map(|object| crd::kind(&object.value)).collect()
}

#[derive(Debug)]
pub(crate) struct Case {
    pub name: String,
    pub location: Location,
    /// The invariants of the file, then those of the case.
    pub invariants: Vec<Invariant>,
    /// How many invariants the file has.
    pub shared: usize,
    /// The steps before each case of the file, then those of the case.
    pub steps: Vec<Step>,
    /// How many steps stand before each case.
    pub before: usize,
    /// What it says is absent, and must show to be there at some moment.
    pub claims: Vec<Claim>,
}

/// An expression that holds after every write, or after none.
#[derive(Debug, Clone)]
pub(crate) struct Invariant {
    pub expression: Check,
    /// Whether it must be false.
    pub is_never: bool,
}

/// A compiled expression.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    pub expr: Expr,
    /// The variables that it reads.
    pub reads: Arc<BTreeSet<String>>,
    /// The kinds that it reads of `objects` and `deleted`.
    pub kinds: Arc<BTreeSet<String>>,
    pub text: String,
    pub location: Location,
    /// Its path in the file.
    pub path: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub action: Action,
    /// The user who does it; `None` is an administrator.
    pub user: Option<String>,
    pub refused: Option<String>,
    pub location: Location,
}

#[derive(Debug, Clone)]
pub(crate) enum Action {
    Apply(Objects),
    Patch(Address, Value),
    Delete(Address),
    Run { plan: String, params: Option<Value>, of: Option<Address> },
    Approve { plan: String, of: Option<Address> },
    Exec(Command),
    Expect(Box<Expect>),
    Wait(Duration),
    Break(Break),
    RestartManager,
    Upgrade(Arc<Package>),
}

/// A command in a container, and what is expected of it.
#[derive(Debug, Clone)]
pub(crate) struct Command {
    pub namespace: String,
    pub pod: String,
    pub container: Option<String>,
    pub words: Vec<String>,
    pub stdin: Option<String>,
    pub stdout: Option<String>,
    pub stderr: Option<String>,
    pub exit_code: i32,
}

#[derive(Debug, Clone)]
pub(crate) enum Break {
    Commands(CommandFault),
    Requests(RequestFault),
}

/// Requests that fail.
#[derive(Debug, Clone)]
pub(crate) struct RequestFault {
    /// `write`, or a verb.
    pub verb: String,
    pub resource: Option<String>,
    pub answer: format::Reply,
    pub left: u32,
}

/// Commands that fail.
#[derive(Debug, Clone)]
pub(crate) struct CommandFault {
    pub words: Vec<String>,
    pub exit_code: i32,
    pub stdout: String,
    pub stderr: String,
    pub left: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Expect {
    pub instance: Option<Partial>,
    pub children: Vec<(At<String>, Partial)>,
    pub objects: Vec<(At<String>, Address, Partial)>,
    pub runs: Vec<At<Part>>,
    pub events: Vec<At<Part>>,
    pub that: Vec<Check>,
    pub within: Duration,
    pub holds_for: Duration,
}

/// Loads all files of cases of a package: `tests/*.yaml` that are no world. Returns the valid ones, and all mistakes of the others.
pub(crate) fn load(
    folder: &Path,
    package: &Arc<Package>,
    sources: &mut Sources,
) -> (Vec<Suite>, Vec<Diagnostic>) {
    let tests = folder.join("tests");
    let mut files = match sources.yaml_files(&tests) {
        Ok(files) => files,
        Err(why) => {
            let error = unreadable(&tests, &why);
            let is_missing = matches!(why, Unread::System(_));
            let help = "`operetta test --init` writes a first file";
            return (Vec::new(), vec![if is_missing { error.help(help) } else { error }]);
        }
    };
    files.retain(|path| path.file_name().is_some_and(|name| name != WORLD));
    let (mut suites, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        let source = sources.read(&file).map_err(|error| vec![error]);
        match source.and_then(|source| parse(&tests, package, source, sources)) {
            Ok(suite) => suites.push(suite),
            Err(found) => errors.extend(found),
        }
        if sources.is_full() {
            break;
        }
    }
    (suites, errors)
}

/// The cases whose name contains a text.
pub(crate) fn select(suites: &[Suite], text: Option<&str>) -> Vec<(usize, usize)> {
    let cases = suites.iter().enumerate().flat_map(|(suite, one)| {
        one.cases.iter().enumerate().map(move |(case, one)| ((suite, case), &one.name))
    });
    cases.filter(|(_, name)| text.is_none_or(|text| name.contains(text))).map(|(place, _)| place).collect()
}

/// Reads the cases of one file in the folder `tests`.
///
/// # Errors
/// All mistakes of the file.
pub(super) fn parse(
    tests: &Path,
    package: &Arc<Package>,
    source: Arc<Source>,
    sources: &mut Sources,
) -> Result<Suite, Vec<Diagnostic>> {
    let folder = tests.to_owned();
    let mut loader = Loader { folder, errors: Vec::new(), engine: Engine::empty(), package, sources };
    match loader.file(source) {
        Some(suite) if loader.errors.is_empty() => Ok(suite),
        _ => Err(loader.errors),
    }
}

struct Loader<'a> {
    folder: PathBuf,
    errors: Vec<Diagnostic>,
    engine: Engine,
    package: &'a Arc<Package>,
    sources: &'a mut Sources,
}

impl Loader<'_> {
    fn fail<T>(&mut self, error: Diagnostic) -> Option<T> {
        self.errors.push(error);
        None
    }

    fn file(&mut self, source: Arc<Source>) -> Option<Suite> {
        let file = read_test_file(&source).map_err(|errors| self.errors.extend(errors)).ok()?;
        let written = file.clone();
        let mut packages = vec![Arc::clone(self.package)];
        for folder in file.packages.unwrap_or_default() {
            packages.extend(self.package(&folder));
        }
        let world = self.world(file.world.as_ref());
        let all: Vec<Invariant> = self.invariants(file.always, file.never);
        let before: Vec<Step> =
            file.before.unwrap_or_default().into_iter().filter_map(|step| self.step(&step)).collect();
        let mut names = BTreeSet::new();
        let mut cases = Vec::new();
        for case in file.cases.0.unwrap_or_default() {
            let mut invariants = all.clone();
            invariants.extend(self.invariants(case.always, case.never));
            let Some(name) = case.name.0 else { continue };
            if !names.insert(name.value.clone()) {
                self.errors.push(name.error("test::name", format!("two cases are named {:?}", name.value)));
            }
            let mut steps = before.clone();
            steps.extend(case.steps.0.unwrap_or_default().into_iter().filter_map(|step| self.step(&step)));
            let (shared, before) = (all.len(), before.len());
            let claims = Vec::new();
            cases.push(Case {
                name: name.value,
                location: name.at,
                invariants,
                shared,
                steps,
                before,
                claims,
            });
        }
        if cases.is_empty() {
            let error = Diagnostic::error("test::none", format!("{} has no case", source.name));
            return self.fail(error);
        }
        let path = source.name.clone();
        Some(Suite {
            path,
            source,
            written,
            packages,
            world,
            cases,
            records: false,
            observes: false,
            #[cfg(test)]
            bug: None,
            installed: OnceLock::new(),
        })
    }

    fn package(&mut self, folder: &At<String>) -> Option<Arc<Package>> {
        let package = self.sources.package(&self.folder.join(&folder.value), folder);
        package.map_err(|errors| self.errors.extend(errors)).ok()
    }

    fn world(&mut self, named: Option<&At<String>>) -> Option<World> {
        let path = self.folder.join(named.map_or(WORLD, |name| name.value.as_str()));
        if named.is_none() && !path.exists() {
            return None;
        }
        self.sources.world(&path).map_err(|errors| self.errors.extend(errors)).ok()
    }

    fn invariants(
        &mut self,
        always: Option<Vec<Expression>>,
        never: Option<Vec<Expression>>,
    ) -> Vec<Invariant> {
        let always = always.into_iter().flatten().map(|expression| (expression, false));
        let never = never.into_iter().flatten().map(|expression| (expression, true));
        let all = always.chain(never).filter_map(|(expression, is_never)| {
            Some(Invariant { expression: self.check(expression)?, is_never })
        });
        all.collect()
    }

    fn check(&mut self, expression: Expression) -> Option<Check> {
        let At { value: text, at, path } = expression.0;
        let expr = self.engine.expression(&text, &at);
        let expr = expr.map_err(|error| self.errors.push(error.path(path.clone()))).ok()?;
        let reads: BTreeSet<String> = expr.reads().paths.iter().map(|path| path.root.clone()).collect();
        if let Some(unknown) = reads.iter().find(|root| !VARIABLES.contains(&root.as_str())) {
            let known = VARIABLES.join(", ");
            let mut error =
                Diagnostic::error("test::variable", format!("there is no variable `{unknown}` here"));
            error = error.located(at).path(path).help(match did_you_mean(unknown, VARIABLES) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {known}"),
            });
            return self.fail(error);
        }
        let kinds = expr.reads().paths.iter().filter_map(|path| match (&*path.root, path.segments.first()) {
            ("objects" | "deleted", Some(Segment::Key(kind))) => Some(kind.clone()),
            _ => None,
        });
        let kinds = Arc::new(kinds.collect());
        Some(Check { expr, reads: Arc::new(reads), kinds, text, location: at, path })
    }

    fn step(&mut self, at: &At<format::Step>) -> Option<Step> {
        let location = at.at.clone();
        let wrong = |message: &str| at.error("test::step", message);
        let step = at.value.clone();
        let given = [
            step.apply.is_some(),
            step.patch.is_some(),
            step.delete.is_some(),
            step.run.is_some(),
            step.approve.is_some(),
            step.expect.is_some(),
            step.wait.is_some(),
            step.breakage.is_some(),
            step.restart.is_some(),
            step.upgrade.is_some(),
            step.exec.is_some(),
        ];
        if given.iter().filter(|given| **given).count() != 1 {
            let error = wrong(
                "a step is one of apply, patch, delete, run, approve, exec, expect, wait, break, restart and upgrade",
            );
            return self.fail(error);
        }
        let stray = [
            (step.with.is_some() != step.patch.is_some(), "`patch` and `with` belong together"),
            (step.params.is_some() && step.run.is_none(), "`params` belongs to `run`"),
            (
                step.of.is_some() && step.run.is_none() && step.approve.is_none(),
                "`of` belongs to `run` and `approve`",
            ),
            (
                (step.within.is_some() || step.holds_for.is_some()) && step.expect.is_none(),
                "`within` and `for` belong to `expect`",
            ),
            (
                step.refused.is_some() && !given[..5].contains(&true),
                "`refused` belongs to `apply`, `patch`, `delete`, `run` and `approve`",
            ),
            (
                step.user.is_some() && !given[..5].contains(&true) && step.exec.is_none(),
                "`as` belongs to `apply`, `patch`, `delete`, `run`, `approve` and `exec`",
            ),
        ];
        if let Some((_, message)) = stray.iter().find(|(is_stray, _)| *is_stray) {
            let error = wrong(message);
            return self.fail(error);
        }
        let of = step.of.map(|of| of.value);
        let action = if let Some(apply) = step.apply {
            Action::Apply(self.manifests(apply.value.0)?)
        } else if let (Some(patch), Some(with)) = (step.patch, step.with) {
            Action::Patch(patch.value, Value::Object(with.value.0))
        } else if let Some(delete) = step.delete {
            Action::Delete(delete.value)
        } else if let Some(run) = step.run {
            Action::Run {
                plan: run.value,
                params: step.params.map(|params| Value::Object(params.value.0)),
                of,
            }
        } else if let Some(approve) = step.approve {
            Action::Approve { plan: approve.value, of }
        } else if let Some(expect) = step.expect {
            let within = step.within.map_or(WITHIN, |within| within.0);
            let holds_for = step.holds_for.map_or(Duration::ZERO, |length| length.0);
            Action::Expect(Box::new(self.expect(expect, within, holds_for)?))
        } else if let Some(wait) = step.wait {
            Action::Wait(wait.value.0)
        } else if let Some(breakage) = step.breakage {
            Action::Break(self.breakage(&breakage)?)
        } else if let Some(command) = step.exec {
            Action::Exec(self.command(command)?)
        } else if let Some(folder) = step.upgrade {
            Action::Upgrade(self.package(&folder)?)
        } else {
            Action::RestartManager
        };
        let (user, refused) = (step.user.map(|user| user.value), step.refused.map(|text| text.value));
        Some(Step { action, user, refused, location })
    }

    fn command(&mut self, command: At<format::Command>) -> Option<Command> {
        let at = command.at.clone();
        let command = command.value;
        let (Some(pod), Some(words)) = (command.pod.0, command.command.0) else { return None };
        if words.is_empty() {
            return self.fail(Diagnostic::error("test::exec", "`command` is empty").located(at));
        }
        let (namespace, name) = pod.value.split_once('/').unwrap_or(("default", &pod.value));
        Some(Command {
            namespace: namespace.to_owned(),
            pod: name.to_owned(),
            container: command.container,
            words,
            stdin: command.stdin,
            stdout: command.stdout,
            stderr: command.stderr,
            exit_code: command.exit_code.map_or(0, |code| i32::try_from(code.0).unwrap_or(i32::MAX)),
        })
    }

    fn manifests(&mut self, manifests: Vec<Manifest>) -> Option<Objects> {
        let mut all = Objects::new();
        for manifest in manifests {
            match manifest {
                Manifest::Object(object) => all.push(Arc::new(object)),
                Manifest::File(path) => match self.sources.objects(&self.folder.join(&path.value)) {
                    Ok(objects) => all.extend(objects),
                    Err(mut error) => {
                        if error.location.is_none() {
                            error = error.located(path.at);
                        }
                        return self.fail(error);
                    }
                },
            }
        }
        for object in &all {
            let has = |pointer: &str| {
                object
                    .value
                    .pointer(pointer)
                    .is_some_and(|value| value.as_str().is_some_and(|t| !t.is_empty()))
            };
            if !["/apiVersion", "/kind", "/metadata/name"].iter().all(|pointer| has(pointer)) {
                self.errors.push(object.error(
                    "manifest::incomplete",
                    "a manifest needs apiVersion, kind and metadata.name as strings",
                ));
            }
        }
        Some(all)
    }

    fn expect(
        &mut self,
        expect: At<format::Expect>,
        within: Duration,
        holds_for: Duration,
    ) -> Option<Expect> {
        let location = expect.at.clone();
        let expect = expect.value;
        let mut objects = Vec::new();
        for (name, partial) in expect.objects.map(|objects| objects.0).unwrap_or_default() {
            let Some(address) = Address::parse(&name.value) else {
                let message = format!("`{}` is no KIND/NAME, for example Pod/shop-0", name.value);
                let error = name.error("test::address", message);
                return self.fail(error);
            };
            if matches!(partial, Partial::Count(_)) != (address.name == "*") {
                let error =
                    name.error("test::count", "KIND/* is a number of objects, and KIND/NAME one object");
                return self.fail(error);
            }
            objects.push((name, address, partial));
        }
        let that: Vec<Check> = expect
            .that
            .unwrap_or_default()
            .into_iter()
            .filter_map(|expression| self.check(expression))
            .collect();
        let found = Expect {
            instance: expect.instance.map(|instance| instance.value),
            children: expect.children.map(|children| children.0).unwrap_or_default(),
            objects,
            runs: expect.runs.unwrap_or_default(),
            events: expect.events.unwrap_or_default(),
            that,
            within,
            holds_for,
        };
        if let Some(Partial::Count(count)) = &found.instance {
            let error = count.error("test::count", "an instance is a map, or absent");
            return self.fail(error);
        }
        let is_empty = found.instance.is_none()
            && found.children.is_empty()
            && found.objects.is_empty()
            && found.runs.is_empty()
            && found.events.is_empty()
            && found.that.is_empty();
        if is_empty {
            let error = Diagnostic::error("test::expect", "nothing is expected").located(location);
            return self.fail(error);
        }
        Some(found)
    }

    fn breakage(&mut self, breakage: &At<format::Break>) -> Option<Break> {
        let wrong = |message: &str| breakage.error("test::break", message);
        let given = breakage.value.clone();
        let times = given.times.map_or(1, |times| times.0);
        if let Some(exec) = given.exec {
            if given.verb.is_some() || given.resource.is_some() || given.answer.is_some() {
                let error =
                    wrong("`break` is about commands (exec) or about requests (verb, resource, answer)");
                return self.fail(error);
            }
            let exit_code = given.exit_code.map_or(1, |code| code.0);
            return Some(Break::Commands(CommandFault {
                words: exec.value,
                exit_code: i32::try_from(exit_code).unwrap_or(1),
                stdout: given.stdout.unwrap_or_default(),
                stderr: given.stderr.unwrap_or_default(),
                left: times,
            }));
        }
        if given.exit_code.is_some() || given.stdout.is_some() || given.stderr.is_some() {
            return self.fail(wrong("`exitCode`, `stdout` and `stderr` need `exec`: they are of commands"));
        }
        let Some(answer) = given.answer else {
            let error = wrong("`break` needs `exec`, or `answer`: a status code, lost, or cut");
            return self.fail(error);
        };
        let verb = given.verb.map_or_else(|| "write".to_owned(), |verb| verb.value);
        if !["write", "get", "create", "update", "patch", "delete"].contains(&verb.as_str()) {
            let error = wrong("`verb` is write, get, create, update, patch or delete");
            return self.fail(error);
        }
        let resource = given.resource.map(|resource| resource.value);
        Some(Break::Requests(RequestFault { verb, resource, answer: answer.value, left: times }))
    }
}

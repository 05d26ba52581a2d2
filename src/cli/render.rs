//! `operetta render`: the objects of an instance, without a cluster.

mod given;
mod print;
mod scopes;

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::Value;

use given::Given;
use print::Printer;
use scopes::is_namespaced;

use super::out;
use crate::children::{self, Blind, ChildError, Context, Found, Intent, Observed, Target};
use crate::crd;
use crate::diag::{Diagnostic, Source, Span};
use crate::naming;
use crate::package::{self, Package, Resource};
use crate::template::{Budget, EvalError, Exceeded};
use crate::yaml::{self, Node, NodeValue};

/// The namespace of instances that name none.
const NAMESPACE: &str = "default";
/// `operator.namespace`, which only a running manager knows.
const OPERATOR_NAMESPACE: &str = "operetta-system";
/// `instance.metadata.uid`, which only the API server gives.
const UID: &str = "00000000-0000-0000-0000-000000000000";
/// Bytes of one file of instances.
const MAX_INPUT: u64 = 16 << 20;
/// The variables whose values an instance or a package gives, so that time does not.
const GIVEN_ROOTS: [&str; 7] = ["instance", "spec", "name", "namespace", "labels", "operator", "defaults"];

/// Print the objects that an instance would have, without a cluster
///
/// Reads instances, fills in the defaults of the CRD, checks them against its schema and renders their
/// children in the order in which they would be created. Without `--with` it is the moment after `kubectl apply`:
/// nothing exists yet, so a child that reads the live state of another one is printed as a comment
/// that says what it waits for. With `--with` the objects of these files are all that is live: refs find
/// them, and those that are children of the instance, by their labels or by kind, namespace and name, are
/// read as `children.<id>` and `self`.
///
/// Values that the manager generates, such as passwords, are left out, with a comment, unless --with has the live
/// Secret. An instance without a namespace is in `default`, one without a uid has one of zeros, and
/// `operator.namespace` is `operetta-system`. What the manager adds for itself (labels and annotations
/// of operetta.dev, ownerReferences) is left out.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta render operators/webapp -f examples/webapp/minimal.yaml
  kubectl get etcdcluster db -o yaml | operetta render operators/etcd -f -
  operetta render operators/etcd -f examples/etcd/example-etcd-cluster.yaml -o name
  operetta render operators/webapp -f shop.yaml | kubectl diff -f -     # what a change would bring
  kubectl get configmap,secret,pod,service -o yaml | operetta render operators/etcd -f db.yaml --with -

Exit codes: 0 rendered, 1 the package or an instance is wrong, 2 wrong usage, a file\ncannot be read or the output not be written.")]
pub(super) struct Args {
    /// Folder of the package
    package: PathBuf,

    /// Files of instances, each with any number of documents; `-` is standard input
    #[arg(short, long = "filename", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Files of live objects that children and refs read, as `kubectl get -o yaml` prints them; `-` is standard input
    #[arg(long, value_name = "FILE", num_args = 1..)]
    with: Vec<PathBuf>,

    /// How the objects are printed
    #[arg(short, long, value_enum, default_value_t = Output::Yaml, value_name = "FORMAT")]
    output: Output,
}

/// How the objects are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// Documents, each with a comment that names the child
    Yaml,
    /// One List
    Json,
    /// One line an object: kind.group/name
    Name,
}

/// Renders and prints. Exit codes as the help says.
pub(super) fn run(args: &Args) -> ExitCode {
    let mut diagnostics = Vec::new();
    let mut unreadable = false;
    let mut output = Printer::new(args.output);
    if args.files.iter().chain(&args.with).filter(|path| *path == Path::new("-")).count() > 1 {
        out::note("error: standard input (`-`) can be read only once");
        return ExitCode::from(out::UNUSABLE);
    }
    match package::load(&args.package) {
        Err(found) => diagnostics = found,
        Ok((package, _)) => {
            let mut given = (!args.with.is_empty()).then(Given::default);
            for file in &args.with {
                let read = read(file).map_err(|error| {
                    unreadable = true;
                    vec![error]
                });
                let given = given.get_or_insert_default();
                if let Err(found) = read.and_then(|source| given.read(&package, &source, NAMESPACE)) {
                    diagnostics.extend(found);
                }
            }
            for file in &args.files {
                match read(file) {
                    Ok(source) => {
                        render_file(&package, &source, given.as_ref(), &mut output, &mut diagnostics);
                    }
                    Err(error) => {
                        unreadable = true;
                        diagnostics.push(error);
                    }
                }
            }
        }
    }
    unreadable |= diagnostics.iter().any(|diagnostic| diagnostic.code == package::UNREADABLE);
    let code = match () {
        () if unreadable => ExitCode::from(out::UNUSABLE),
        () if diagnostics.iter().any(Diagnostic::is_error) => ExitCode::FAILURE,
        () => ExitCode::SUCCESS,
    };
    let code = out::all(&output.finish(), code);
    out::report(&diagnostics);
    code
}

/// A file, or standard input.
fn read(path: &Path) -> Result<Arc<Source>, Diagnostic> {
    let mut bytes = Vec::new();
    let stdin = path == Path::new("-");
    let name = if stdin { "standard input".to_owned() } else { path.display().to_string() };
    let result = if stdin {
        io::stdin().lock().take(MAX_INPUT + 1).read_to_end(&mut bytes)
    } else {
        fs::File::open(path).and_then(|file| file.take(MAX_INPUT + 1).read_to_end(&mut bytes))
    };
    let unreadable = |message: String| Diagnostic::error(package::UNREADABLE, message);
    if let Err(error) = result {
        return Err(unreadable(format!("cannot read {name}: {}", out::reason(&error))));
    }
    if bytes.len() as u64 > MAX_INPUT {
        return Err(unreadable(format!("{name} is larger than {} MiB", MAX_INPUT >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|_| unreadable(format!("{name} is not UTF-8 text")))?;
    Ok(Source::new(name, text))
}

fn render_file(
    package: &Package,
    source: &Arc<Source>,
    given: Option<&Given>,
    out: &mut Printer,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let documents = match yaml::parse(source, &yaml::Options::default()) {
        Ok(documents) => documents,
        Err(error) => return diagnostics.push(error),
    };
    let mut any = false;
    for node in documents.iter().flat_map(items).filter(|node| !node.is_null()) {
        any = true;
        match instance(package, source, node) {
            Ok((resource, object)) => render(package, resource, &object, given, out, diagnostics),
            Err(found) => diagnostics.extend(found),
        }
    }
    if !any {
        let error = Diagnostic::error("render::instance", "the file holds no instance");
        diagnostics.push(error.at(source, Span::new(0, 0)));
    }
}

/// The objects of a document: those of a List, or the one that it is.
fn items(document: &Node) -> &[Node] {
    let is_list = document.get("kind").and_then(Node::as_str).is_some_and(|kind| kind.ends_with("List"));
    match document.get("items").map(|items| &items.value) {
        Some(NodeValue::Seq(items)) if is_list => items.as_slice(),
        _ => std::slice::from_ref(document),
    }
}

/// The instance of a document as the API server would store it, and the resource of its kind.
fn instance<'p>(
    package: &'p Package,
    source: &Arc<Source>,
    node: &Node,
) -> Result<(&'p Resource, Value), Vec<Diagnostic>> {
    let error =
        |span: Span, message: String| vec![Diagnostic::error("render::instance", message).at(source, span)];
    let start = Span::new(node.span.start, node.span.start);
    let text = |key: &str| node.get(key).and_then(Node::as_str);
    let (Some(api_version), Some(kind)) = (text("apiVersion"), text("kind")) else {
        return Err(error(start, "an instance needs apiVersion and kind".to_owned()));
    };
    let Some(resource) = package.resource(api_version, kind) else {
        let at = node.get("kind").map_or(start, |node| node.span);
        let kinds: Vec<String> = package
            .resources
            .iter()
            .flat_map(|resource| {
                resource
                    .served_versions()
                    .map(|version| format!("{}/{version} {}", resource.kind.group, resource.kind.kind))
            })
            .collect();
        let message = format!("the package {} has no kind {api_version} {kind}", package.name);
        return Err(error(at, message)
            .into_iter()
            .map(|error| error.help(format!("it has {}", kinds.join(", "))))
            .collect());
    };
    let mut object = node.to_json();
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let mut violations = Vec::new();
    if let Some(schema) = crd::schema_of(&resource.crd, version) {
        crd::apply_defaults(schema, &mut object);
        violations = crd::validate(schema, &object);
        // The manager's, and of what it adds the author's schema knows nothing.
        violations.retain(|violation| !is_status(&violation.path));
    }
    let mut found: Vec<_> = violations
        .into_iter()
        .map(|violation| {
            Diagnostic::error("render::schema", violation.message)
                .at(source, package::place(node, &violation.path))
                .path(violation.path)
        })
        .collect();
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        found.extend(error(start, "an instance needs metadata.name".to_owned()));
    } else if let Err(broken) = naming::check_custom(name) {
        found.extend(error(start, format!("metadata.name cannot be the name of an instance: {broken}")));
    }
    if let Some(namespace) = object.pointer("/metadata/namespace").and_then(Value::as_str)
        && let Err(broken) = naming::check_namespace(namespace)
    {
        found.extend(error(start, format!("metadata.namespace cannot be the name of a namespace: {broken}")));
    }
    if !found.is_empty() {
        return Err(found);
    }
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.entry("uid").or_insert_with(|| UID.into());
        if resource.kind.namespaced {
            metadata.entry("namespace").or_insert_with(|| NAMESPACE.into());
        }
    }
    Ok((resource, object))
}

/// Whether a path lies in the status.
fn is_status(path: &str) -> bool {
    path.strip_prefix("status").is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn render(
    package: &Package,
    resource: &Resource,
    instance: &Value,
    given: Option<&Given>,
    out: &mut Printer,
    diagnostics: &mut Vec<Diagnostic>,
) {
    // Not all objects fit into the budget at once: the next target has the next of them.
    let mut shown = Some(0);
    let mut observed = given.map(|given| given.labelled(package, resource, instance)).unwrap_or_default();
    while let Some(begin) = shown {
        match targets(package, resource, instance, given, &mut observed, begin) {
            Ok(target) => shown = show(resource, &target, begin, given, out, diagnostics),
            Err(exceeded) => return diagnostics.push(*exceeded),
        }
    }
}

/// The target, and what is live of it.
fn targets(
    package: &Package,
    resource: &Resource,
    instance: &Value,
    given: Option<&Given>,
    observed: &mut Vec<Arc<Observed>>,
    shown: usize,
) -> Result<Target, Box<Diagnostic>> {
    let mut target = target(package, resource, instance, given, observed, shown)?;
    // What a child is called may depend on others, so one round shows the next what is live.
    if let Some(given) = given {
        let uid = instance["metadata"]["uid"].as_str().unwrap_or_default();
        loop {
            let more = given.named(package, resource, &target.items, observed, uid);
            if more.is_empty() {
                break;
            }
            observed.extend(more);
            target = self::target(package, resource, instance, Some(given), observed, shown)?;
        }
    }
    Ok(target)
}

/// Prints the items from `begin` on; where to go on, if not all could be kept.
fn show(
    resource: &Resource,
    target: &Target,
    begin: usize,
    given: Option<&Given>,
    out: &mut Printer,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<usize> {
    let Target { items, open, .. } = target;
    let live: HashSet<usize> =
        items.iter().filter(|item| item.observed.is_some()).map(|item| item.child).collect();
    let first = items.get(begin).map_or(0, |item| item.child);
    let mut items = items.iter().enumerate().skip(begin).peekable();
    for (index, child) in resource.children.iter().enumerate().skip(first) {
        let missing: Vec<&str> = child
            .depends_on
            .iter()
            .filter(|on| !live.contains(on))
            .map(|&on| &*resource.children[on].id)
            .collect();
        let mut failed = |name: &str, error: &ChildError, out: &mut Printer| match cause(error, &missing) {
            Cause::Waits(what) => out.comment(&format!("child: {name} waits for {what}")),
            Cause::Mistake(diagnostic) => {
                let message = format!("child {name}: {}", diagnostic.message);
                diagnostics.push(Diagnostic { message, ..diagnostic });
            }
        };
        if let Some(error) = open.get(&index) {
            failed(&child.id, error, out);
        }
        while let Some((position, item)) = items.next_if(|(_, item)| item.child == index) {
            if item.is_later && position > begin {
                return Some(position);
            }
            match &item.intent {
                Ok(intent) => {
                    let (body, left_out) = with_generated(intent, given);
                    out.object(item, body, &left_out);
                }
                Err(error) => failed(&item.name, error, out),
            }
        }
    }
    None
}

/// An object with its generated values as they are live. Gives also the keys of those that are not: they are left
/// out, for a text in their place would be applied.
fn with_generated<'a>(intent: &'a Intent, given: Option<&Given>) -> (Value, Vec<&'a str>) {
    let mut body = (*intent.body).clone();
    let mut left_out = Vec::new();
    for generated in &intent.generated {
        let key = generated.key.as_str();
        if let Some(live) = given.and_then(|given| given.data(&intent.object, key)) {
            body["data"][key] = live.clone();
            continue;
        }
        left_out.push(key);
        if let Some(data) = body["data"].as_object_mut() {
            data.remove(key);
        }
    }
    (body, left_out)
}

fn target(
    package: &Package,
    resource: &Resource,
    instance: &Value,
    given: Option<&Given>,
    observed: &[Arc<Observed>],
    shown: usize,
) -> Result<Target, Box<Diagnostic>> {
    let context = Context {
        package,
        resource,
        instance,
        operator_namespace: OPERATOR_NAMESPACE,
        observed,
        namespaced: &|api_version, kind| Some(is_namespaced(package, api_version, kind)),
        unknown: &|_, _| None,
        unlisted: &[],
        listed: &|_, _| true,
        checked: &|_| true,
        former: &[],
        is_package_kind: &|_, _| false,
        occupant: &|_| None,
        refs: &|want| match given {
            Some(given) => given.find(want),
            None => {
                Found::Unknown(Blind::Failed("there is no cluster; --with gives live objects".to_owned()))
            }
        },
        apis: None,
        budget: Arc::new(Budget::to_show(shown)),
    };
    let target = children::target(&context);
    match context.budget.exceeded() {
        None => Ok(target),
        Some(Exceeded { subject, error, .. }) => {
            let message = format!("{subject}: {}", error.message);
            Err(Box::new(Diagnostic { message, ..*error }))
        }
    }
}

/// Why a child cannot be rendered.
enum Cause {
    /// What it reads is not live yet, or is known to a cluster only.
    Waits(String),
    /// The package or the instance is wrong.
    Mistake(Diagnostic),
}

/// `missing` are the children that it reads and that are not live.
fn cause(error: &ChildError, missing: &[&str]) -> Cause {
    let error = match error {
        ChildError::Eval(EvalError::Unknown { path, reason }) => {
            return Cause::Waits(format!("{path}, which is unknown: {reason}"));
        }
        ChildError::Eval(error) => error,
        _ => return Cause::Mistake(Diagnostic::error("render::child", error.to_string())),
    };
    let diagnostic = error.to_diagnostic();
    if !matches!(error, EvalError::Undefined(_) | EvalError::NotYet(_))
        || error.is_mixed()
        || missing.is_empty()
    {
        return Cause::Mistake(diagnostic);
    }
    let location = diagnostic.location.as_ref();
    let text = location.and_then(|at| at.source.text.get(at.span.start..at.span.end)).unwrap_or_default();
    let read: Vec<String> =
        missing.iter().map(|id| format!("children.{id}")).filter(|path| has_word(text, path)).collect();
    let awaited = if !read.is_empty() {
        read.join(", ")
    } else if GIVEN_ROOTS.iter().any(|root| has_word(text, root)) {
        return Cause::Mistake(diagnostic);
    } else {
        // A variable of the template, which may hold what is read of any of them.
        missing.iter().map(|id| format!("children.{id}")).collect::<Vec<_>>().join(", ")
    };
    let at = location.map(|location| format!(" at {location}")).unwrap_or_default();
    Cause::Waits(format!("{awaited}: {}{at}", diagnostic.message))
}

/// Whether an expression has a name, or a path of names, as a whole and not after a dot.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(|c: char| is_part(c) || c == '.')
            && !text[at + word.len()..].starts_with(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_as_a_whole() {
        assert!(has_word("children.a.b", "children.a") && has_word("x + children.a", "children.a"));
        assert!(!has_word("children.ab", "children.a") && !has_word("let.spec", "spec"));
        assert!(!has_word("myspec", "spec") && has_word("(spec)", "spec"));
    }
}

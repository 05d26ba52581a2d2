//! `operetta render`: the objects of an instance, without a cluster.

mod given;
mod print;
mod record;
mod scopes;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use operetta_kube_model::schema::apply_defaults;
use serde_json::{Map, Value};

use given::Given;
use print::Printer;
use scopes::is_namespaced;

use super::out;
use crate::api::Gvk;
use crate::children::{
    self, ActivePackage, ChildError, Context, Desired, LookupResult, MAX_FIELD_BYTES, Origin, Origins,
    ReadError, ResourceSelector, Snapshot, Target,
};
use crate::crd;
use crate::diag::{Diagnostic, Source, Span};
use crate::naming;
use crate::package::{self, Package, Resource};
use crate::template::{Budget, EvalError, Exceeded, Var, json_bytes};
use crate::yaml::{self, Node, NodeValue};

/// The namespace of instances without one.
const NAMESPACE: &str = "default";
/// The `metadata.uid` of instances without one: the API server assigns it.
const UID: &str = "00000000-0000-0000-0000-000000000000";
/// The maximum size of a file of instances, in bytes.
const MAX_INPUT: u64 = 16 << 20;
/// The variables whose values come from the instance or the package and do not change with time.
const GIVEN_ROOTS: [&str; 8] =
    ["instance", "spec", "name", "namespace", "labels", "operator", "defaults", "retained"];

/// Print the objects that an instance would have, without a cluster
///
/// Reads instances, fills in the defaults of the CRD, checks them against its schema and renders their
/// children in the order in which they would be created. Without `--with` no object exists yet, as after
/// `kubectl apply`: a child that reads the live state of another one is printed as a comment that says what it
/// waits for. With `--with` exactly the objects of these files exist: refs find them, and those that are
/// children of the instance, by their labels or by kind, namespace and name, are read as `children.<id>` and
/// `self`. Those that are labelled with another uid than the instance has, or marked as retained if it has none,
/// are of a former instance of that name, and are read as `retained.<id>` as well.
///
/// Values that the manager generates, such as passwords, are omitted, with a comment, unless --with contains the
/// live Secret. An instance without a namespace is in `default`, one without a uid has a uid of zeros, and
/// `operator.namespace` is `operetta-system`. What the manager adds for its own use (labels and annotations of
/// operetta.dev, ownerReferences) is omitted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta render operators/webapp -f examples/webapp/minimal.yaml
  kubectl get etcdcluster db -o yaml | operetta render operators/etcd -f -
  operetta render operators/etcd -f examples/etcd/example-etcd-cluster.yaml -o name
  operetta render operators/webapp -f shop.yaml | kubectl diff -f -     # what a change would bring
  kubectl get configmap,secret,pod,service -o yaml | operetta render operators/etcd -f db.yaml --with -
  operetta render operators/etcd -f db.yaml --children state.yaml --record joined=[1]      # after a failover

Exit codes: 0 rendered, 1 the package or an instance is wrong, 2 wrong usage, a file \
cannot be read or the output not be written.")]
pub(super) struct Args {
    /// Folder of the package
    package: PathBuf,

    /// Files of instances, each with any number of documents; `-` is standard input
    #[arg(short, long = "filename", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Files of live objects that children and refs read, as `kubectl get -o yaml` prints them; `-` is standard input
    #[arg(long, value_name = "FILE", num_args = 1..)]
    with: Vec<PathBuf>,

    /// Like --with, and each object must be a child of one of the instances: for states that you write by hand
    #[arg(long, value_name = "FILE", num_args = 1..)]
    children: Vec<PathBuf>,

    /// A fact that plans have recorded, `record.KEY`, or a file of facts: a map, or the instance's InstanceState as
    /// `kubectl get -o yaml` prints it. A value is read as YAML; a later one takes the place of an earlier one
    #[arg(long, value_name = "KEY=VALUE|FILE")]
    record: Vec<String>,

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

/// Renders and prints. The exit codes are those of the help.
pub(super) fn run(args: &Args) -> ExitCode {
    let mut diagnostics = Vec::new();
    let mut unreadable = false;
    let mut output = Printer::new(args.output);
    let records = args.record.iter().map(Path::new);
    if args
        .files
        .iter()
        .chain(&args.with)
        .chain(&args.children)
        .map(PathBuf::as_path)
        .chain(records)
        .filter(|path| *path == Path::new("-"))
        .count()
        > 1
    {
        out::note("error: standard input (`-`) can be read only once");
        return ExitCode::from(out::UNUSABLE);
    }
    match package::load(&args.package) {
        Err(found) => diagnostics = found,
        Ok((package, _)) => {
            let package = Arc::new(package);
            let (with, children) = (args.with.iter().map(|file| (file, false)), args.children.iter());
            let mut given = None::<Given>;
            for (file, must) in with.chain(children.map(|file| (file, true))) {
                let read = read(&package, file).map_err(|error| {
                    unreadable = true;
                    vec![error]
                });
                let given = given.get_or_insert_default();
                if let Err(found) = read.and_then(|source| given.read(&package, &source, NAMESPACE, must)) {
                    diagnostics.extend(found);
                }
            }
            let mut record = Map::new();
            for text in &args.record {
                if let Err(error) = record::add(&package, text, &mut record) {
                    diagnostics.push(*error);
                }
            }
            let known = Known { given: given.as_ref(), record: &record };
            // If an input is wrong, the printed objects would be wrong as well, so none is rendered.
            let files = if diagnostics.is_empty() { args.files.as_slice() } else { &[] };
            for file in files {
                match read(&package, file) {
                    Ok(source) => render_file(&package, &source, known, &mut output, &mut diagnostics),
                    Err(error) => {
                        unreadable = true;
                        diagnostics.push(error);
                    }
                }
            }
            if !files.is_empty() {
                diagnostics.extend(given.iter().flat_map(|given| given.strays(&package)));
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

/// A file that the user has named beside a package, or standard input.
fn read(package: &Package, path: &Path) -> Result<Arc<Source>, Diagnostic> {
    let (name, text) = if path == Path::new("-") {
        ("standard input".to_owned(), package::text(io::stdin().lock(), MAX_INPUT))
    } else {
        let text = package::read_named(&[package.files.root()], path, MAX_INPUT);
        (path.display().to_string(), text)
    };
    match text {
        Ok(text) => Ok(Source::new(name, text)),
        Err(why) => Err(Diagnostic::error(package::UNREADABLE, format!("cannot read {name}: {why}"))),
    }
}

/// What is known beside the instance.
#[derive(Clone, Copy)]
struct Known<'a> {
    /// The objects of `--with` and `--children`.
    given: Option<&'a Given>,
    /// The facts of `--record`.
    record: &'a Map<String, Value>,
}

fn render_file(
    package: &Arc<Package>,
    source: &Arc<Source>,
    known: Known<'_>,
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
            Ok((resource, object)) => render(package, resource, &object, known, out, diagnostics),
            Err(found) => diagnostics.extend(found),
        }
    }
    if !any {
        let error = Diagnostic::error("render::instance", "the file holds no instance");
        diagnostics.push(error.at(source, Span::new(0, 0)));
    }
}

/// The objects of a document: the items of a List, or the document itself.
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
    let Some(resource) = package.resource(&Gvk::new(api_version, kind)) else {
        let at = node.get("kind").map_or(start, |node| node.span);
        let kinds = package.resources.iter().flat_map(Resource::served_kinds);
        let kinds: Vec<String> = kinds.map(|gvk| format!("{} {}", gvk.api_version, gvk.kind)).collect();
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
        apply_defaults(schema, &mut object);
        violations = crd::validate(schema, &object);
        // The manager writes the status, with fields that the author's schema does not contain.
        violations.retain(|violation| !is_status(&violation.path));
    }
    let mut found: Vec<_> = violations
        .into_iter()
        .map(|violation| {
            let span = package::place(node, &violation.path);
            let error = Diagnostic::error("render::schema", violation.message).at(source, span);
            Diagnostic { help: package::boolean_help(source, span), ..error.path(violation.path) }
        })
        .collect();
    for (field, value) in object.as_object().into_iter().flatten() {
        if json_bytes(value) >= MAX_FIELD_BYTES {
            let most = MAX_FIELD_BYTES >> 20;
            let message =
                format!("`{field}` holds so many values that they take more than {most} MiB of memory");
            found.extend(error(start, message));
        }
    }
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        let span = package::place(node, "metadata.name");
        let help = package::boolean_help(source, span);
        let place = if help.is_some() { span } else { start };
        let errors = error(place, "an instance needs metadata.name".to_owned()).into_iter();
        found.extend(errors.map(|error| Diagnostic { help: help.clone(), ..error }));
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

/// Whether a path is in the status.
fn is_status(path: &str) -> bool {
    path.strip_prefix("status").is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn render(
    package: &Arc<Package>,
    resource: &Resource,
    instance: &Value,
    known: Known<'_>,
    out: &mut Printer,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let index = package.resources.iter().position(|other| std::ptr::eq(other, resource));
    let Some(active) = index.and_then(|index| ActivePackage::new(package, index)) else { return };
    let mut snapshot = Snapshot::new(active, instance.clone(), |gvk| is_namespaced(package, gvk));
    if let Some(given) = known.given {
        (snapshot.previous_children, snapshot.observed) = given.labelled(package, resource, instance);
    }
    // The budget does not hold all objects at once: the next target contains the next ones.
    let mut shown = Some(0);
    while let Some(begin) = shown {
        match target_with_live(package, resource, &mut snapshot, known, begin) {
            Ok(target) => shown = show(resource, &target, begin, known.given, out, diagnostics),
            Err(exceeded) => return diagnostics.push(*exceeded),
        }
    }
}

/// The target. Adds its live objects to the snapshot.
fn target_with_live(
    package: &Package,
    resource: &Resource,
    snapshot: &mut Snapshot,
    known: Known<'_>,
    shown: usize,
) -> Result<Target, Box<Diagnostic>> {
    loop {
        let target = target(package, resource, snapshot, known, shown)?;
        let uid = snapshot.instance["metadata"]["uid"].as_str().unwrap_or_default();
        // The name of a child may depend on other children, so each round finds more live objects.
        let seen = || snapshot.observed.iter().chain(&snapshot.previous_children);
        let more = known.given.map(|given| given.named(package, resource, &target.items, seen(), uid));
        match more {
            Some(more) if !more.is_empty() => snapshot.observed.extend(more),
            _ => return Ok(target),
        }
    }
}

/// Prints the items from `begin` on. Returns where to continue if not all of them fit into the budget.
fn show(
    resource: &Resource,
    target: &Target,
    begin: usize,
    given: Option<&Given>,
    out: &mut Printer,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<usize> {
    let Target { items, open, .. } = target;
    let live: HashSet<usize> = items
        .iter()
        .filter(|item| item.observed.is_some() || item.retained.is_some())
        .map(|item| item.child)
        .collect();
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
            match &item.desired {
                Ok(desired) => {
                    let (body, left_out) = with_generated(desired, given);
                    out.object(item, body, &left_out);
                }
                Err(error) => failed(&item.name, error, out),
            }
        }
    }
    None
}

/// An object with the live values of its generated keys. Returns also the keys without a live value: they are omitted,
/// because a placeholder would be applied.
fn with_generated<'a>(desired: &'a Desired, given: Option<&Given>) -> (Value, Vec<&'a str>) {
    let mut body = (*desired.body).clone();
    let mut left_out = Vec::new();
    let mut put = |body: &mut Value, key: &'a str, value: Option<Value>| {
        if let Some(value) = value {
            body["data"][key] = value;
            return;
        }
        left_out.push(key);
        if let Some(data) = body["data"].as_object_mut() {
            data.remove(key);
        }
    };
    for generated in desired.generated.iter().filter(|generated| generated.is_kept()) {
        let live = given.and_then(|given| given.data(&desired.object, &generated.key));
        put(&mut body, &generated.key, live.cloned());
    }
    // Texts have the values of other keys, which are filled in first.
    for (key, text) in desired.texts(&body) {
        put(&mut body, key, text.map(Value::String));
    }
    // The manager computes the proof when it applies the object.
    if !desired.generated.is_empty()
        && let Some(annotations) = body["metadata"]["annotations"].as_object_mut()
    {
        annotations.remove(children::names::GENERATED_PROOF);
    }
    (body, left_out)
}

/// The target. Refs that depend on others are looked up one after another.
fn target(
    package: &Package,
    resource: &Resource,
    snapshot: &mut Snapshot,
    known: Known<'_>,
    shown: usize,
) -> Result<Target, Box<Diagnostic>> {
    let find = |selector: &ResourceSelector| match known.given {
        Some(given) => given.find(selector),
        None => LookupResult::Unknown(ReadError::Failed(
            "there is no cluster; --with gives live objects".to_owned(),
        )),
    };
    loop {
        let origins = Origins::one(Origin { package, resource, instance: &snapshot.instance })
            .with_variable("record", Var::Json(Value::Object(known.record.clone())));
        let ctx = Context::new(snapshot, &origins, Budget::to_show(shown));
        let target = children::target(&ctx);
        if let Some(Exceeded { subject, error, .. }) = ctx.budget.exceeded() {
            let message = format!("{subject}: {}", error.message);
            return Err(Box::new(Diagnostic { message, ..*error }));
        }
        if !snapshot.look_up(target.selectors(), find) {
            return Ok(target);
        }
    }
}

/// Why a child cannot be rendered.
enum Cause {
    /// What it reads does not exist yet, or only a cluster knows it.
    Waits(String),
    /// The package or the instance is wrong.
    Mistake(Diagnostic),
}

/// Finds out why a child cannot be rendered. `missing`: the children that it depends on and that do not
/// exist.
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
        // The expression reads a variable of the template, whose value may come from any of them.
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

//! `operetta render`: the objects of an instance, without a cluster.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::out;
use crate::children::{self, Blind, ChildError, Context, Found, Item, Target};
use crate::crd;
use crate::diag::{Diagnostic, Source, Span};
use crate::package::{self, Package, Resource};
use crate::template::EvalError;
use crate::yaml::{self, Node, NodeValue};

/// The namespace of instances that name none.
const NAMESPACE: &str = "default";
/// `operator.namespace`, which only a running manager knows.
const OPERATOR_NAMESPACE: &str = "operetta-system";
/// `instance.metadata.uid`, which only the API server gives.
const UID: &str = "00000000-0000-0000-0000-000000000000";
/// Bytes of one file of instances.
const MAX_INPUT: u64 = 16 << 20;
/// In the place of a password, which is made when the object is created; no base64, so that nobody applies it.
const GENERATED: &str = "(made when it is created)";
/// What only the manager can fill in: it would be wrong, an ownerReference even harmful, elsewhere.
const OWN_PREFIX: &str = "operetta.dev/";

/// Print the objects that an instance would have, without a cluster
///
/// Reads instances, fills in the defaults of the CRD, checks them against its schema and renders their
/// children in the order in which they would be created. It is the moment after `kubectl apply`:
/// nothing exists yet, so a child that reads the live state of another one is printed as a comment
/// that says what it waits for.
///
/// An instance without a namespace is in `default`, one without a uid has one of zeros, and
/// `operator.namespace` is `operetta-system`. What the manager adds for itself (labels and annotations
/// of operetta.dev, ownerReferences) is left out.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta render operators/webapp -f examples/webapp/minimal.yaml
  kubectl get etcdcluster db -o yaml | operetta render operators/etcd -f -
  operetta render operators/etcd -f examples/etcd/example-etcd-cluster.yaml -o name
  operetta render operators/webapp -f shop.yaml | kubectl diff -f -     # what a change would bring

Exit codes: 0 rendered, 1 the package or an instance is wrong, 2 wrong usage, a file\ncannot be read or the output not be written.")]
pub(super) struct Args {
    /// Folder of the package
    package: PathBuf,

    /// Files of instances, each with any number of documents; `-` is standard input
    #[arg(short, long = "filename", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

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
    let mut output = Printer { output: args.output, text: String::new(), items: Vec::new() };
    match package::load(&args.package) {
        Err(found) => diagnostics = found,
        Ok((package, _)) => {
            for file in &args.files {
                match read(file) {
                    Ok(source) => render_file(&package, &source, &mut output, &mut diagnostics),
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
    out: &mut Printer,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let documents = match yaml::parse(source, &yaml::Options::default()) {
        Ok(documents) => documents,
        Err(error) => return diagnostics.push(error),
    };
    let before = out.items.len() + diagnostics.len();
    let mut any = false;
    for document in &documents {
        let items = match document.get("items").map(|items| &items.value) {
            Some(NodeValue::Seq(items))
                if document.get("kind").and_then(Node::as_str).is_some_and(|kind| kind.ends_with("List")) =>
            {
                items.as_slice()
            }
            _ => std::slice::from_ref(document),
        };
        for node in items.iter().filter(|node| !node.is_null()) {
            any = true;
            match instance(package, source, node) {
                Ok((resource, object)) => render(package, resource, &object, out, diagnostics),
                Err(found) => diagnostics.extend(found),
            }
        }
    }
    if !any && before == out.items.len() + diagnostics.len() {
        let error = Diagnostic::error("render::instance", "the file holds no instance");
        diagnostics.push(error.at(source, Span::new(0, 0)));
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

fn render(
    package: &Package,
    resource: &Resource,
    instance: &Value,
    out: &mut Printer,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let context = Context {
        package,
        resource,
        instance,
        operator_namespace: OPERATOR_NAMESPACE,
        observed: &[],
        namespaced: &|api_version, kind| Some(is_namespaced(package, api_version, kind)),
        unknown: &|_, _| None,
        unlisted: &[],
        listed: &|_, _| true,
        checked: &|_| true,
        former: &[],
        is_package_kind: &|_, _| false,
        occupant: &|_| None,
        refs: &|_| Found::Unknown(Blind::Failed("there is no cluster".to_owned())),
        apis: None,
    };
    let Target { items, open, .. } = children::target(&context);
    let mut items = items.iter().peekable();
    for (index, child) in resource.children.iter().enumerate() {
        if let Some(error) = open.get(&index) {
            failed(resource, index, &child.id, error, out, diagnostics);
        }
        while let Some(item) = items.next_if(|item| item.child == index) {
            match &item.intent {
                Ok(intent) => {
                    let mut body = intent.body.clone();
                    for generated in &intent.generated {
                        body["data"][generated.key.as_str()] = GENERATED.into();
                    }
                    out.object(item, body);
                }
                Err(error) => failed(resource, index, &item.name, error, out, diagnostics),
            }
        }
    }
}

/// A child that cannot be rendered: if it reads others, it may only be too early.
fn failed(
    resource: &Resource,
    index: usize,
    name: &str,
    error: &ChildError,
    out: &mut Printer,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let child = &resource.children[index];
    let awaited: Vec<_> =
        child.depends_on.iter().map(|&on| format!("children.{}", resource.children[on].id)).collect();
    let early = match error {
        ChildError::Eval(EvalError::Undefined(_) | EvalError::NotYet(_) | EvalError::Unknown { .. }) => true,
        _ => error.is_waiting(),
    };
    if early && !awaited.is_empty() {
        return out.comment(&format!("child: {name} waits for {}", awaited.join(", ")));
    }
    if let ChildError::Eval(EvalError::Unknown { path, .. }) = error {
        return out.comment(&format!("child: {name} reads {path}, which only a cluster can tell"));
    }
    let diagnostic = match error {
        ChildError::Eval(error) => error.to_diagnostic(),
        _ => Diagnostic::error("render::child", error.to_string()),
    };
    let message = format!("child {name}: {}", diagnostic.message);
    diagnostics.push(Diagnostic { message, ..diagnostic });
}

/// Whether objects of a kind lie in namespaces, as far as that is known without a cluster.
fn is_namespaced(package: &Package, api_version: &str, kind: &str) -> bool {
    if let Some(resource) = package.resource(api_version, kind) {
        return resource.kind.namespaced;
    }
    let group = crate::crd::group_of(api_version);
    !CLUSTER_SCOPED.contains(&(group, kind))
}

/// The kinds of Kubernetes that lie in no namespace.
const CLUSTER_SCOPED: [(&str, &str); 31] = [
    ("", "Namespace"),
    ("", "Node"),
    ("", "PersistentVolume"),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding"),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("apiregistration.k8s.io", "APIService"),
    ("certificates.k8s.io", "CertificateSigningRequest"),
    ("certificates.k8s.io", "ClusterTrustBundle"),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"),
    ("networking.k8s.io", "IPAddress"),
    ("networking.k8s.io", "IngressClass"),
    ("networking.k8s.io", "ServiceCIDR"),
    ("node.k8s.io", "RuntimeClass"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("resource.k8s.io", "DeviceClass"),
    ("resource.k8s.io", "DeviceTaintRule"),
    ("resource.k8s.io", "ResourceSlice"),
    ("scheduling.k8s.io", "PriorityClass"),
    ("storage.k8s.io", "CSIDriver"),
    ("storage.k8s.io", "CSINode"),
    ("storage.k8s.io", "StorageClass"),
    ("storage.k8s.io", "VolumeAttachment"),
    ("storage.k8s.io", "VolumeAttributesClass"),
    ("storagemigration.k8s.io", "StorageVersionMigration"),
];

/// Collects what is printed.
struct Printer {
    output: Output,
    text: String,
    items: Vec<Value>,
}

impl Printer {
    fn object(&mut self, item: &Item, mut body: Value) {
        strip(&mut body);
        match self.output {
            Output::Yaml => {
                let _ = write!(self.text, "---\n# child: {}\n{}", item.name, yaml::to_string(&body));
                if !self.text.ends_with('\n') {
                    self.text.push('\n');
                }
            }
            Output::Json => self.items.push(body),
            Output::Name => {
                let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                let group = text("/apiVersion")
                    .rsplit_once('/')
                    .map(|(group, _)| format!(".{group}"))
                    .unwrap_or_default();
                let _ =
                    writeln!(self.text, "{}{group}/{}", text("/kind").to_lowercase(), text("/metadata/name"));
            }
        }
    }

    fn comment(&mut self, comment: &str) {
        match self.output {
            Output::Yaml => {
                let _ = write!(self.text, "---\n# {comment}\n");
            }
            Output::Name => {
                let _ = writeln!(self.text, "# {comment}");
            }
            Output::Json => {}
        }
    }

    fn finish(self) -> String {
        match self.output {
            Output::Json => {
                format!("{:#}\n", json!({"apiVersion": "v1", "kind": "List", "items": self.items}))
            }
            _ => self.text,
        }
    }
}

/// Takes out what the manager adds for itself.
fn strip(body: &mut Value) {
    let Some(Value::Object(metadata)) = body.get_mut("metadata") else { return };
    metadata.remove("ownerReferences");
    for field in ["labels", "annotations"] {
        if let Some(Value::Object(map)) = metadata.get_mut(field) {
            map.retain(|key, _| !key.starts_with(OWN_PREFIX));
            if Map::is_empty(map) {
                metadata.remove(field);
            }
        }
    }
}

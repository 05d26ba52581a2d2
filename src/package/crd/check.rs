//! Checks a CRD as far as possible without the API server.

use operetta_kube_model::schema::join;
use serde_json::{Map, Value};

use super::structure::{self, Check, Finding};
use crate::diag::did_you_mean;

/// Reports all errors of a CRD that can be found without a server, each with the JSON path, a message and a
/// solution. The server accepts a CRD without these errors, unless a CEL rule or a pattern is wrong.
pub fn check(crd: &Value) -> Vec<Finding> {
    let mut check = Check { found: Vec::new() };
    check.root(crd);
    check.found
}

/// Reports the errors of a schema that does not belong to a CRD, such as that of parameters. Paths start in
/// the schema.
pub fn check_schema(schema: &Value) -> Vec<Finding> {
    let mut check = Check { found: Vec::new() };
    structure::check_value(&mut check, schema);
    check.found
}

const SPEC: [&str; 6] = ["conversion", "group", "names", "preserveUnknownFields", "scope", "versions"];
const NAMES: [&str; 6] = ["categories", "kind", "listKind", "plural", "shortNames", "singular"];
const VERSION: [&str; 9] = [
    "additionalPrinterColumns",
    "deprecated",
    "deprecationWarning",
    "name",
    "schema",
    "selectableFields",
    "served",
    "storage",
    "subresources",
];
const COLUMN: [&str; 6] = ["description", "format", "jsonPath", "name", "priority", "type"];

impl Check {
    pub(super) fn report(&mut self, path: impl Into<String>, message: impl Into<String>, help: Option<&str>) {
        self.found.push((path.into(), message.into(), help.map(str::to_owned)));
    }

    /// Reports unknown keys: kubectl refuses them, and the server drops them.
    pub(super) fn known(&mut self, map: &Map<String, Value>, allowed: &[&str], path: &str) {
        for key in map.keys().filter(|key| !allowed.contains(&key.as_str())) {
            let help = match did_you_mean(key, allowed.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("the allowed keys are {}", allowed.join(", ")),
            };
            self.report(join(path, key), format!("unknown key `{key}`"), Some(&help));
        }
    }

    /// Returns the object at a key; reports a missing or wrong value.
    fn object<'a>(
        &mut self,
        map: &'a Map<String, Value>,
        key: &str,
        path: &str,
    ) -> Option<&'a Map<String, Value>> {
        match map.get(key) {
            Some(Value::Object(object)) => return Some(object),
            Some(_) => self.report(join(path, key), format!("`{key}` must be a mapping"), None),
            None => self.report(path, format!("`{key}` is missing"), None),
        }
        None
    }

    /// Returns the string at a key; reports a missing, empty or wrong value.
    fn text<'a>(&mut self, map: &'a Map<String, Value>, key: &str, path: &str) -> Option<&'a str> {
        match map.get(key) {
            Some(Value::String(text)) if !text.is_empty() => return Some(text),
            Some(_) => {
                self.report(join(path, key), format!("`{key}` must be a non-empty string"), None);
            }
            None => self.report(path, format!("`{key}` is missing"), None),
        }
        None
    }

    fn root(&mut self, crd: &Value) {
        let Some(crd) = crd.as_object() else {
            self.report("", "a CustomResourceDefinition must be a mapping", None);
            return;
        };
        if self.text(crd, "kind", "").is_some_and(|kind| kind != "CustomResourceDefinition") {
            self.report("kind", "`kind` must be CustomResourceDefinition", None);
        }
        match self.text(crd, "apiVersion", "") {
            None | Some("apiextensions.k8s.io/v1") => {}
            Some("apiextensions.k8s.io/v1beta1") => self.report(
                "apiVersion",
                "apiextensions.k8s.io/v1beta1 was removed in Kubernetes 1.22",
                Some("convert it to apiextensions.k8s.io/v1: schema, subresources and columns are in each entry of spec.versions"),
            ),
            Some(_) => self.report("apiVersion", "`apiVersion` must be apiextensions.k8s.io/v1", None),
        }
        self.known(crd, &["apiVersion", "kind", "metadata", "spec", "status"], "");
        let metadata = self.object(crd, "metadata", "");
        let Some(spec) = self.object(crd, "spec", "") else { return };
        self.known(spec, &SPEC, "spec");
        if spec.get("preserveUnknownFields") == Some(&Value::Bool(true)) {
            self.report(
                "spec.preserveUnknownFields",
                "`preserveUnknownFields` must be false",
                Some("use `x-kubernetes-preserve-unknown-fields: true` in the schema instead"),
            );
        }
        let group = self.text(spec, "group", "spec");
        let plural = self.names(spec);
        self.group(group, metadata);
        if let (Some(metadata), Some(group), Some(plural)) = (metadata, group, plural) {
            let wanted = format!("{plural}.{group}");
            if self.text(metadata, "name", "metadata").is_some_and(|name| name != wanted) {
                let help = format!("the server accepts only {wanted}");
                self.report("metadata.name", "the name must be the plural and the group", Some(&help));
            }
        }
        if let Some(scope) = self.text(spec, "scope", "spec")
            && !matches!(scope, "Namespaced" | "Cluster")
        {
            self.report("spec.scope", "`scope` must be Namespaced or Cluster", None);
        }
        self.versions(spec);
    }

    fn group(&mut self, group: Option<&str>, metadata: Option<&Map<String, Value>>) {
        let Some(group) = group else { return };
        if !is_subdomain(group) {
            self.report("spec.group", "`group` must be a domain name in lower case", None);
        } else if !group.contains('.') {
            self.report(
                "spec.group",
                "`group` must be a domain with at least one dot",
                Some("for example example.org"),
            );
        }
        let protected = ["k8s.io", "kubernetes.io"].iter().any(|domain| {
            group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
        });
        let approved = metadata
            .and_then(|metadata| metadata.get("annotations")?.get("api-approved.kubernetes.io"))
            .and_then(Value::as_str)
            .is_some_and(|text| text.starts_with("https://") || text.starts_with("unapproved"));
        if protected && !approved {
            self.report(
                "spec.group",
                "groups under k8s.io and kubernetes.io are protected",
                Some("use another domain, or set the annotation api-approved.kubernetes.io"),
            );
        }
    }

    /// Checks `spec.names` and returns the plural.
    fn names<'a>(&mut self, spec: &'a Map<String, Value>) -> Option<&'a str> {
        let names = self.object(spec, "names", "spec")?;
        let path = "spec.names";
        self.known(names, &NAMES, path);
        let kind = self.text(names, "kind", path);
        let plural = self.text(names, "plural", path);
        for (key, value) in names {
            let Some(text) = value.as_str() else { continue };
            let is_kind = matches!(key.as_str(), "kind" | "listKind");
            let label = if is_kind { text.to_lowercase() } else { text.to_owned() };
            if !text.is_empty() && NAMES.contains(&key.as_str()) && !is_label(&label) {
                let case = if is_kind { "" } else { " in lower case" };
                let message = format!(
                    "`{key}` must be at most 63 letters, digits and dashes{case}, starting with a letter"
                );
                self.report(join(path, key), message, None);
            }
        }
        for list in ["shortNames", "categories"] {
            for (index, name) in names.get(list).and_then(Value::as_array).into_iter().flatten().enumerate() {
                if !name.as_str().is_some_and(is_label) {
                    let at = format!("{path}.{list}[{index}]");
                    self.report(
                        at,
                        "must be letters in lower case, digits and dashes, starting with a letter",
                        None,
                    );
                }
            }
        }
        if kind.is_some() && names.get("listKind").and_then(Value::as_str) == kind {
            self.report("spec.names.listKind", "`listKind` must differ from `kind`", None);
        }
        plural
    }

    fn versions(&mut self, spec: &Map<String, Value>) {
        let Some(versions) = spec.get("versions").and_then(Value::as_array).filter(|list| !list.is_empty())
        else {
            let at = if spec.contains_key("versions") { "spec.versions" } else { "spec" };
            self.report(at, "`versions` must list at least one version", None);
            return;
        };
        let mut names = Vec::new();
        for (index, version) in versions.iter().enumerate() {
            let path = format!("spec.versions[{index}]");
            let Some(version) = version.as_object() else {
                self.report(path, "a version must be a mapping", None);
                continue;
            };
            self.known(version, &VERSION, &path);
            if let Some(name) = self.text(version, "name", &path) {
                if !is_label(name) {
                    self.report(join(&path, "name"), "must be a name such as v1 or v1beta1", None);
                }
                if names.contains(&name) {
                    self.report(join(&path, "name"), "another version has the same name", None);
                }
                names.push(name);
            }
            for flag in ["served", "storage"] {
                match version.get(flag) {
                    Some(Value::Bool(_)) => {}
                    Some(_) => {
                        self.report(join(&path, flag), format!("`{flag}` must be true or false"), None);
                    }
                    None => self.report(&path, format!("`{flag}` is missing"), Some("true or false")),
                }
            }
            self.version(version, &path);
        }
        let count = |flag: &str| versions.iter().filter(|version| version[flag] == true).count();
        if count("storage") != 1 {
            let message = format!("exactly one version must have `storage: true`, {} have", count("storage"));
            self.report("spec.versions", message, None);
        }
        if count("served") == 0 {
            self.report(
                "spec.versions",
                "no version has `served: true`",
                Some("no object of this kind could be created"),
            );
        }
    }

    fn version(&mut self, version: &Map<String, Value>, path: &str) {
        self.columns(version, path);
        if let Some(subresources) = version.get("subresources").and_then(Value::as_object) {
            let path = join(path, "subresources");
            self.known(subresources, &["scale", "status"], &path);
            if let Some(scale) = subresources.get("scale").and_then(Value::as_object) {
                self.scale(scale, &join(&path, "scale"));
            }
        }
        let Some(schema) = self.object(version, "schema", path) else { return };
        let path = join(path, "schema");
        self.known(schema, &["openAPIV3Schema"], &path);
        if let Some(schema) = self.object(schema, "openAPIV3Schema", &path) {
            structure::check_root(self, schema, &join(&path, "openAPIV3Schema"));
        }
    }

    fn columns(&mut self, version: &Map<String, Value>, path: &str) {
        let path = join(path, "additionalPrinterColumns");
        let columns = match version.get("additionalPrinterColumns") {
            None | Some(Value::Null) => return,
            Some(Value::Array(columns)) => columns,
            Some(_) => {
                self.report(path, "must be a list of columns", None);
                return;
            }
        };
        for (index, column) in columns.iter().enumerate() {
            let path = format!("{path}[{index}]");
            let Some(column) = column.as_object() else {
                self.report(path, "a column must be a mapping", None);
                continue;
            };
            self.known(column, &COLUMN, &path);
            self.text(column, "name", &path);
            let types = ["boolean", "date", "integer", "number", "string"];
            if let Some(kind) = self.text(column, "type", &path)
                && !types.contains(&kind)
            {
                self.report(join(&path, "type"), format!("must be one of: {}", types.join(", ")), None);
            }
            let formats = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
            if column.get("format").is_some_and(|format| !formats.iter().any(|known| format == known)) {
                self.report(join(&path, "format"), format!("must be one of: {}", formats.join(", ")), None);
            }
            if let Some(json_path) = self.text(column, "jsonPath", &path)
                && !json_path.starts_with('.')
            {
                self.report(join(&path, "jsonPath"), "must start with a dot", Some("for example .spec.size"));
            }
        }
    }

    fn scale(&mut self, scale: &Map<String, Value>, path: &str) {
        self.known(scale, &["labelSelectorPath", "specReplicasPath", "statusReplicasPath"], path);
        for (key, root) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
            if let Some(value) = self.text(scale, key, path)
                && !value.starts_with(root)
            {
                self.report(
                    join(path, key),
                    format!("must be a path under {}", root.trim_end_matches('.')),
                    None,
                );
            }
        }
    }
}

/// Whether the text is an RFC 1035 label, as required for names of resources and versions.
fn is_label(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(fits)
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && !text.ends_with('-')
}

/// Whether the text is an RFC 1123 subdomain.
fn is_subdomain(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=253).contains(&text.len())
        && text.split('.').all(|label| {
            !label.is_empty() && label.bytes().all(fits) && !label.starts_with('-') && !label.ends_with('-')
        })
}

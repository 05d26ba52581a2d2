//! What the codes of findings mean, for readers of a report.

/// Where to read on. The message of each finding says what to do about it.
pub(super) const HELP: &str = "The message says what to do. The guide describes the format: docs/guide/package-reference.md, docs/guide/templates.md and docs/guide/crds.md.";

/// Codes with one sentence each. A code that is not here is described by its own words.
const RULES: [(&str, &str); 47] = [
    ("package::always", "A condition is always true, or never"),
    ("package::budget", "The package is larger than allowed"),
    ("package::cel", "A CEL rule of the CRD does not compile"),
    ("package::choice", "The value is none of those that are allowed"),
    ("package::claimed", "Another package has the same CRD"),
    ("package::crd", "The API server would refuse the CRD"),
    ("package::cycle", "Values, refs or children need each other in a circle"),
    ("package::deletion-policy", "A child holds data, and the package does not say what happens to it"),
    ("package::documents", "The file holds more than one YAML document"),
    ("package::duplicate", "A name that must be unique is given twice"),
    ("package::empty", "A file or the package is empty"),
    ("package::expression", "A value is no expression"),
    ("package::field", "A template gives a field that it must not give, or lacks one that it must"),
    ("package::foreign", "The words of another tool, which mean nothing here"),
    ("package::kind", "A kind or apiVersion is not written as Kubernetes writes it"),
    ("package::label", "No API server accepts the label or annotation"),
    ("package::missing", "A required key is missing"),
    ("package::missing-file", "The package refers to a file that it does not hold"),
    ("package::name", "A name is not valid"),
    ("package::name-taken", "Another package has the same name"),
    ("package::names-taken", "Another package has a CRD of the same names"),
    ("package::namespace", "A namespace must not be computed"),
    ("package::no-effect", "Something has no effect"),
    ("package::not-yet", "This version does not support the key"),
    ("package::object-name", "No API server accepts the name of the object"),
    ("package::own-label", "Labels and annotations of operetta.dev are reserved"),
    ("package::password", "A generated value stands where none can be generated"),
    ("package::printer-column", "A column of kubectl get stays empty"),
    ("package::quote", "YAML cuts an expression that must be quoted"),
    ("package::recreate", "An object that must stay cannot be recreated"),
    ("package::renamed", "An id in renamedFrom is in use"),
    ("package::requires", "The package needs another version of Operetta"),
    ("package::reserved", "The name is reserved"),
    ("package::same-object", "Two children, or two items of a child, are the same object"),
    ("package::selector", "A selector or port matches no pods of the resource"),
    ("package::self-read", "A child reads itself by its id"),
    ("package::type", "The value has the wrong type"),
    ("package::unknown-child", "There is no such child"),
    ("package::unknown-key", "There is no such key"),
    ("package::unknown-path", "There is no such field"),
    ("package::unknown-ref", "There is no such ref"),
    ("package::unknown-variable", "There is no such variable"),
    ("package::unreadable", "The package cannot be read"),
    ("package::unused", "Nothing reads a let or a ref"),
    ("package::unused-file", "Nothing in the package uses the file"),
    ("package::value", "The value is not allowed here"),
    ("package::yaml-boolean", "YAML reads an unquoted word as true or false"),
];

/// One sentence about a code.
pub(super) fn description(code: &str) -> String {
    if let Some((_, text)) = RULES.iter().find(|(known, _)| *known == code) {
        return (*text).to_owned();
    }
    let (area, what) = code.split_once("::").unwrap_or(("", code));
    let what = what.replace('-', " ");
    match area {
        "yaml" => format!("The file is not valid YAML: {what}"),
        "template" => format!("A template or expression is wrong: {what}"),
        "" => what,
        area => format!("{area}: {what}"),
    }
}

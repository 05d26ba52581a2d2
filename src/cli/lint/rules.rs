//! Descriptions of the codes of findings, for readers of a report.

/// Where to find more. The message of each finding contains the solution.
pub(super) const HELP: &str = "The message says what to do. The guide describes the format: docs/guide/package-reference.md, docs/guide/templates.md and docs/guide/crds.md.";

/// One sentence per code. Other codes are described by their words.
const RULES: [(&str, &str); 70] = [
    ("crd::reserved-group", "The group of the CRD is Operetta's or Kubernetes' own"),
    ("package::absent", "A comparison with `!=` or `not in` is true, too, while what it reads is absent"),
    ("package::always", "A condition is always true, or never"),
    ("package::budget", "The package is larger than allowed"),
    ("package::cel", "A CEL rule of the CRD does not compile"),
    ("package::choice", "The value is not one of the allowed values"),
    ("package::claimed", "Another package has the same CRD"),
    ("package::container", "A command names a container that the pods do not have"),
    ("package::crd", "The API server would refuse the CRD"),
    ("package::cycle", "Values, refs, children or plans depend on each other in a cycle"),
    ("package::deletion-policy", "A child holds data and has no deletionPolicy"),
    ("package::documents", "The file contains more than one YAML document"),
    ("package::duplicate", "A unique name is used twice"),
    ("package::duration", "The value is not a duration"),
    ("package::empty", "A file or the package is empty"),
    ("package::exclusive", "A plan that runs beside others does what only one run at a time may do"),
    ("package::expression", "A value is not an expression"),
    ("package::field", "A template sets a forbidden field, or lacks a required one"),
    ("package::foreign", "The syntax of another tool"),
    ("package::idempotent", "A command may run twice after a crash"),
    ("package::immutable", "A field that cannot change is made of a field of the spec that can"),
    ("package::job", "The template of a job step is no Job, or a value decides about its rights"),
    ("package::kind", "A kind or apiVersion has the wrong form"),
    ("package::label", "No API server accepts the label or annotation"),
    ("package::missing", "A required key is missing"),
    ("package::missing-file", "The package refers to a missing file"),
    ("package::lost-facts", "Volumes outlive the facts about them"),
    ("package::name", "A name is not valid"),
    ("package::name-length", "A name can be longer than its kind allows"),
    ("package::name-taken", "Another package has the same name"),
    ("package::names-taken", "Another package has a CRD of the same names"),
    ("package::namespace", "A namespace must not be computed"),
    ("package::no-effect", "Something has no effect"),
    ("package::no-object", "A pod or an object names an object or a key that no child makes"),
    ("package::not-yet", "This version does not support the key"),
    ("package::object-name", "No API server accepts the name of the object"),
    ("package::own-label", "Labels and annotations of operetta.dev are reserved"),
    ("package::params", "The schema of parameters, or the parameters of a plan, are wrong"),
    ("package::password", "A generated value is in a place without generated values"),
    ("package::printer-column", "A column of kubectl get is always empty"),
    ("package::quote", "YAML splits an unquoted expression"),
    ("package::record", "Two plans that may run at once record the same fact"),
    ("package::recreate", "An object that must stay cannot be recreated"),
    ("package::renamed", "An id in renamedFrom is in use"),
    ("package::requires", "The package requires another version of Operetta or Kubernetes"),
    ("package::reserved", "The name is reserved"),
    ("package::retained-read", "A child reads a retained object by a name that it loses"),
    ("package::same-object", "Two children, or two items of a child, are the same object"),
    ("package::schedule", "The value is not a cron line or a time zone"),
    ("package::secret-data", "Secret data is where it is visible"),
    ("package::selector", "A selector or port matches no pods of the resource"),
    ("package::self-read", "A child reads itself by its id"),
    ("package::shell", "A value is part of a shell script"),
    ("package::step-order", "A step of a first rollout needs a child that no earlier step applies"),
    ("package::trigger", "The same change starts two plans"),
    ("package::type", "The value has the wrong type"),
    ("package::unknown-child", "There is no such child"),
    ("package::unknown-key", "There is no such key"),
    ("package::unknown-path", "There is no such field"),
    ("package::unknown-plan", "There is no such plan"),
    ("package::unknown-ref", "There is no such ref"),
    ("package::unknown-step", "There is no such step before this one, or it has no such output"),
    ("package::unknown-variable", "There is no such variable"),
    ("package::unreadable", "The package cannot be read"),
    ("package::unused", "Nothing reads a let or a ref"),
    ("package::unused-field", "Nothing reads a field of the spec"),
    ("package::unused-file", "Nothing in the package uses the file"),
    ("package::url", "The URL is not valid, or a value decides its host"),
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

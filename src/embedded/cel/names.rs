//! How expressions write names.

const KEYWORDS: [&str; 22] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
    "__",
];

/// The name of a field as expressions write it.
pub(crate) fn escaped(name: &str) -> String {
    if KEYWORDS.contains(&name) {
        return format!("__{name}__");
    }
    if !name.contains(['-', '.', '/']) && !name.contains("__") {
        return name.to_owned();
    }
    name.replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__")
}

/// The name under which a variable of a policy is known: `variables.NAME`.
pub(crate) fn variable(name: &str) -> String {
    format!("variables.{name}")
}

/// Set in schemas whose fields have their own names in expressions: those of no custom resource.
pub(crate) const PLAIN: &str = "plain";

/// The names of types, which are compared with the result of `type`.
pub(super) const TYPES: [&str; 9] =
    ["int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type"];

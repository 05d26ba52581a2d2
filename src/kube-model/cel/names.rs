//! How expressions write names.

/// Words that cannot be variables.
const RESERVED: &str = "\
    as break const continue else for function if import in let loop namespace package return var void while";

pub(super) fn is_reserved(name: &str) -> bool {
    // Every name of a value is asked for.
    name.len() <= "namespace".len() && RESERVED.split(' ').any(|word| word == name)
}

fn is_keyword(name: &str) -> bool {
    is_reserved(name) || matches!(name, "true" | "false" | "null" | "__")
}

/// The name of a field as expressions write it.
pub(super) fn escaped(name: &str) -> String {
    if is_keyword(name) {
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
pub fn variable(name: &str) -> String {
    format!("variables.{name}")
}

/// Set in schemas whose fields have their own names in expressions: those of no custom resource.
pub const PLAIN: &str = "plain";

/// The names of types, which are compared with the result of `type`.
pub(super) const TYPES: [&str; 9] =
    ["int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type"];

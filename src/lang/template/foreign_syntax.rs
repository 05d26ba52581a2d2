//! Recognises the syntax of other tools and names the equivalent in Operetta, for hints in errors.

/// Recognises Go templates of Helm and KUDO, and CEL, in a line that is not a valid expression.
pub(super) fn of_line(line: &str) -> Option<&'static str> {
    let inside = inside(line);
    let code = unquoted(inside);
    let has = |word: &str| code.contains(word);
    let first = code.trim_start_matches(['-', ' ']).split([' ', '(', '.']).next().unwrap_or_default();
    if has(".Values") {
        return Some(
            "`.Values.x` is Helm's: a field of the instance is `spec.x`, a constant of the package `defaults.x`",
        );
    }
    if has(".Release") || has(".Chart") || has(".Capabilities") {
        return Some(
            "Helm's `.Release.Name` is `name`, `.Release.Namespace` is `namespace`, `.Chart.Version` is `operator.version`, `.Capabilities.APIVersions.Has` is `cluster.has`",
        );
    }
    if has(".Params") || has(".OperatorName") || has(".PlanName") {
        return Some("`.Params.X` is KUDO's: a field of the instance is `spec.x`");
    }
    if line.contains("${") {
        return Some(
            "`${...}` is kro's: write the expression without it, and in a template in `{{ }}`; `schema.spec.x` is `spec.x`",
        );
    }
    if matches!(first, "include" | "template" | "tpl") {
        return Some(
            "`{{ partial(\"x.yaml\") }}` inserts the result of another template of the package, at any indentation",
        );
    }
    if has("toYaml") || has("nindent") {
        return Some(
            "`{{ value }}` inserts a value of any type, with the correct type, indentation and quotes",
        );
    }
    if matches!(first, "if" | "range" | "with" | "end" | "define" | "block") && line.contains("{{") {
        return Some(
            "statements are in `{% %}`: `{% if x %}...{% endif %}`, `{% for x in xs %}...{% endfor %}`",
        );
    }
    if has(":=") || has("$") {
        return Some("a variable is set with `{% set x = ... %}` and read as `x`");
    }
    if has("&&") || has("||") || code.trim_start().starts_with('!') || has(" !") && !has("!=") {
        return Some("write `and`, `or`, `not`");
    }
    if has(" ? ") {
        return Some("write `a if condition else b`");
    }
    if matches!(
        first,
        "eq" | "ne"
            | "lt"
            | "gt"
            | "le"
            | "ge"
            | "and"
            | "or"
            | "not"
            | "default"
            | "quote"
            | "printf"
            | "toYaml"
    ) && code.trim_start_matches(['-', ' ']).starts_with(first)
        && code.contains(' ')
    {
        return Some(
            "functions of Go templates are operators and filters here: `a == b`, `a and b`, `x | default(1)`, `a ~ b`",
        );
    }
    if let Some(path) = code.trim_start_matches(['-', ' ']).strip_prefix('.') {
        let root = path.split(['.', ' ', '[']).next().unwrap_or_default();
        return Some(match root {
            "spec" | "children" | "refs" | "status" | "metadata" | "instance" => {
                "a path starts without a dot: `spec.x`, `children.web.status.x`; only a JSONPath, in `jsonPath:`, starts with one"
            }
            _ => "a path starts without a dot: `spec.x`",
        });
    }
    None
}

/// The content of the first `{{ }}` or `{% %}` of a line; the line if there is none.
fn inside(line: &str) -> &str {
    let Some(open) = line.find("{{").or_else(|| line.find("{%")) else { return line };
    let rest = &line[open + 2..];
    let end = rest.find("}}").or_else(|| rest.find("%}")).unwrap_or(rest.len());
    &rest[..end]
}

/// The text without quoted parts.
fn unquoted(text: &str) -> String {
    let mut quote = None;
    text.chars()
        .filter(|&c| match quote {
            Some(open) => {
                if c == open {
                    quote = None;
                }
                false
            }
            None if matches!(c, '\'' | '"') => {
                quote = Some(c);
                false
            }
            None => true,
        })
        .collect()
}

/// Recognises filters of Sprig, Ansible or Jinja.
pub(super) fn of_filter(name: &str) -> Option<&'static str> {
    Some(match name {
        "nindent" | "quote" | "squote" | "toYaml" | "to_nice_yaml" => {
            "`{{ value }}` inserts a value of any type, with the correct type, indentation and quotes"
        }
        "toJson" | "to_nice_json" | "tojson" => "write `| to_json`",
        "fromYaml" => "write `| from_yaml`",
        "b64enc" => "write `| b64encode`",
        "b64dec" => "write `| b64decode`",
        "sha256sum" | "hash" => "write `| sha256`",
        "trunc" | "trimSuffix" | "trimPrefix" => {
            "write `x[:63]`, or `| dns_label`, which shortens a name and keeps it unique"
        }
        "ternary" => "write `a if condition else b`",
        "required" | "mandatory" => "undefined values are errors anyway; the CRD defines what is required",
        "atoi" | "int64" | "toString" => "write `| int`, `| string`",
        "hasKey" => "write `'key' in map`",
        "empty" => "write `not x`",
        "coalesce" => "write `a | default(b)`",
        "mergeOverwrite" => "write `a | merge(b)`: the values of `b` take precedence",
        "ipaddr" | "bool" => "the CRD defines the type of each field",
        _ => return None,
    })
}

/// Recognises functions of Sprig or CEL.
pub(super) fn of_function(name: &str) -> Option<&'static str> {
    Some(match name {
        "has" => "write `x is defined`",
        "size" | "len" => "write `x | length`",
        "string" | "int" | "double" | "list" => "it is a filter: `x | string`",
        "toYaml" | "nindent" | "quote" => {
            "`{{ value }}` inserts a value of any type, with the correct type, indentation and quotes"
        }
        "include" | "tpl" | "template" | "lookup_template" => {
            "`{{ partial(\"x.yaml\") }}` inserts the result of another template of the package"
        }
        "lookup" | "query" => {
            "use a ref to read objects of the cluster: `refs: [{id: x, apiVersion: v1, kind: Secret, name: ...}]`"
        }
        "printf" => "write `a ~ b`, or `'%s' | format(a)`",
        "randAlphaNum" | "genPrivateKey" | "genSelfSignedCert" | "randAlpha" => {
            "write `{{ password(32) }}` or `{{ tls_self_signed([name]) }}` in the template of a Secret"
        }
        _ => return None,
    })
}

/// Recognises variables of other tools.
pub fn of_variable(name: &str) -> Option<&'static str> {
    Some(match name {
        "Values" | "values" => "a field of the instance is `spec.x`, a constant of the package `defaults.x`",
        "Release" | "release" | "ansible_operator_meta" => "write `name` and `namespace`",
        "Chart" | "chart" => "write `operator.version`, `operator.appVersion`",
        "Params" | "params" | "parameters" => "a field of the instance is `spec.x`",
        "schema" => "a field of the instance is `spec.x`: `schema.spec.x` is kro's",
        "metadata" | "meta" => "write `instance.metadata`, or `name`, `namespace` and `labels`",
        "status" => "write `instance.status`, or `children.<id>.status` of a child",
        "object" | "oldSelf" | "request" | "parent" | "resource" | "cr" | "owner" => {
            "the whole instance is `instance`"
        }
        "end" | "endif" | "endfor" | "range" => {
            "statements are in `{% %}`: `{% if x %}...{% endif %}`, `{% for x in xs %}...{% endfor %}`"
        }
        _ => return None,
    })
}

/// Recognises keys of other tools in `operator.yaml`.
pub fn of_key(name: &str) -> Option<&'static str> {
    Some(match name {
        "patches" | "fromFieldPath" | "toFieldPath" | "transforms" | "readinessChecks" => {
            "a template reads the fields directly with `{{ spec.x }}`; `readyWhen` defines when a child is ready"
        }
        "base" | "manifest" | "object" => "write `template: templates/x.yaml`, a separate file",
        "values" | "params" | "parameters" => {
            "fields of instances are defined in the CRD, constants of the package in `defaults`"
        }
        "dependencies" | "depends_on" | "after" => {
            "write `dependsOn: [id]`; a child that a template reads is awaited anyway"
        }
        "externalRef" | "lookup" => "write `refs`",
        "loop" | "with_items" | "range" | "items" | "count" => {
            "write `forEach: {in: ..., as: item, key: ...}`"
        }
        "if" | "condition" | "includeWhen" => "write `when`",
        "tasks" | "steps" => "write `children`; their reads determine the dependencies",
        _ => return None,
    })
}

/// Finds references of other tools in text, where they would remain literal: the position, the length and the
/// equivalent of each.
pub fn in_text(text: &str) -> Vec<(usize, usize, &'static str)> {
    const MARKS: [(&str, char, &str); 7] = [
        ("${schema.", '}', "it is kro's; write {{ spec.x }}"),
        ("${each.", '}', "it is kro's; write {{ item }}, with forEach of the child"),
        ("$(params.", ')', "it is Tekton's; write {{ spec.x }}"),
        ("$(context.", ')', "it is Tekton's; write {{ name }}"),
        ("$(inputs.", ')', "it is Tekton's; write {{ spec.x }}"),
        ("{{inputs.parameters.", '}', "it is Argo's; write {{ spec.x }}"),
        ("$.Values.", ' ', "it is Helm's; write {{ spec.x }}"),
    ];
    let mut found = Vec::new();
    for (mark, end, help) in MARKS {
        for (at, _) in text.match_indices(mark) {
            let line = text[..at].rfind('\n').map_or(0, |at| at + 1);
            if text[line..at].contains('#') {
                continue; // a comment
            }
            let rest = &text[at..];
            let length = rest.find([end, '\n']).map_or(rest.len(), |found| found + usize::from(end != ' '));
            found.push((at, length.min(rest.len()), help));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syntax_of_other_tools_is_recognised() {
        for (line, wanted) in [
            ("a: {{ .Values.image }}", "spec.x"),
            ("a: {{ toYaml .Values.res | nindent 4 }}", "spec.x"),
            ("a: {{ .Release.Name }}", "`name`"),
            ("a: {{ .Params.SIZE }}", "KUDO"),
            ("{{- if .Values.x }}", "spec.x"),
            ("{{- range $i, $e := list }}", "{% for"),
            ("{{ end }}", "{% if"),
            ("{{ include \"labels\" . | nindent 4 }}", "partial"),
            ("{{ $x }}", "{% set"),
            ("spec.a && spec.b", "`and`"),
            ("!spec.a", "`not`"),
            ("spec.a ? 1 : 2", "if condition else"),
            ("{{ eq spec.a 1 }}", "operators"),
            (".children.web.status.x", "jsonPath"),
            ("${schema.spec.x}", "kro"),
        ] {
            assert!(of_line(line).is_some_and(|help| help.contains(wanted)), "{line}: {:?}", of_line(line));
        }
        for line in ["a: {{ spec.x | }}", "spec.a ==", "a: {{ 'a $ b' ~ }}", "{{ name if }}"] {
            assert_eq!(of_line(line), None, "{line}");
        }
    }

    #[test]
    fn comments_and_shell_variables_are_not_references() {
        assert_eq!(in_text("a: ${schema.spec.x}-y").first().map(|found| (found.0, found.1)), Some((3, 16)));
        for text in ["# ${schema.spec.x}", "a: ${HOME} $(POD_NAME) $(date)"] {
            assert_eq!(in_text(text), [], "{text}");
        }
    }
}

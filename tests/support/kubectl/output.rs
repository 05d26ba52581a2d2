//! The output of a command.

use operetta::yaml;
use serde_json::{Value, json};

use super::arguments::Arguments;
use super::resources::Target;

/// The format of an output.
#[derive(Debug, PartialEq)]
pub(super) enum Output {
    /// A table, or a sentence that says what was done.
    Text,
    /// `RESOURCE/NAME`.
    Name,
    Json,
    Yaml,
    JsonPath(Vec<Step>),
}

/// A step of a `JSONPath`.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Field(String),
    Index(usize),
    Each,
}

impl Output {
    /// The format that a command asks for; `None` if it is unknown.
    pub(super) fn of(args: &Arguments<'_>) -> Option<Self> {
        Some(match args.flag("output") {
            None => Self::Text,
            Some("name") => Self::Name,
            Some("json") => Self::Json,
            Some("yaml") => Self::Yaml,
            Some(other) => Self::JsonPath(steps(other.strip_prefix("jsonpath=")?)?),
        })
    }

    /// What the command prints about an object to which this was `done`.
    pub(super) fn about(&self, target: &Target, object: Value, args: &Arguments<'_>, done: &str) -> String {
        match self {
            Self::Text => format!("{} {done}\n", target.shown()),
            Self::Name => format!("{}\n", target.shown()),
            _ => self.print(object, args),
        }
    }

    /// Prints an object or a list in one of the formats that show objects.
    pub(super) fn print(&self, mut object: Value, args: &Arguments<'_>) -> String {
        if let Self::JsonPath(steps) = self {
            return found(&object, steps);
        }
        if !args.is("show-managed-fields") {
            hide_managed_fields(&mut object);
            object
                .get_mut("items")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
                .for_each(hide_managed_fields);
        }
        if *self == Self::Json { format!("{object:#}\n") } else { yaml::to_string(&object) }
    }
}

fn hide_managed_fields(object: &mut Value) {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
    }
}

/// Objects as the list that kubectl makes of them.
pub(super) fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items, "metadata": {"resourceVersion": ""}})
}

/// The steps of a template that is one path; `None` for any other.
fn steps(template: &str) -> Option<Vec<Step>> {
    let path = template.strip_prefix('{')?.strip_suffix('}')?;
    let mut steps = Vec::new();
    let mut chars = path.chars().peekable();
    while let Some(first) = chars.next() {
        let mut text = String::new();
        match first {
            '.' => {
                while let Some(next) = chars.next_if(|c| !matches!(c, '.' | '[')) {
                    match next {
                        '\\' => text.push(chars.next()?),
                        c if c.is_alphanumeric() || matches!(c, '-' | '_' | '/') => text.push(c),
                        _ => return None,
                    }
                }
                steps.push(Step::Field(Some(text).filter(|text| !text.is_empty())?));
            }
            '[' => {
                text.extend(std::iter::from_fn(|| chars.next_if(|c| *c != ']')));
                chars.next()?;
                steps.push(if text == "*" { Step::Each } else { Step::Index(text.parse().ok()?) });
            }
            _ => return None,
        }
    }
    Some(steps)
}

/// What a path finds, separated by spaces; what is missing is left out.
fn found(object: &Value, steps: &[Step]) -> String {
    let mut found = vec![object];
    for step in steps {
        let next = found.into_iter().flat_map(|value| match step {
            Step::Field(name) => value.get(name).into_iter().collect::<Vec<_>>(),
            Step::Index(index) => value.get(index).into_iter().collect(),
            Step::Each => value.as_array().into_iter().flatten().collect(),
        });
        found = next.collect();
    }
    let texts = found.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    texts.collect::<Vec<_>>().join(" ")
}

#[test]
fn simple_paths_are_followed() {
    let object = json!({"items": [{"metadata": {"name": "a", "annotations": {"x.io/y": "1"}}}, {"metadata": {"name": "b"}}, {}],
        "status": {"phase": "Ready", "conditions": [{"type": "A"}]}});
    let print = |template: &str| {
        let flag = format!("jsonpath={template}");
        let args = Arguments::parse(&["get", "-o", &flag]).expect("known flags");
        Output::of(&args).map(|output| output.print(object.clone(), &args))
    };
    assert_eq!(print("{.items[*].metadata.name}").as_deref(), Some("a b"));
    assert_eq!(print(r"{.items[0].metadata.annotations.x\.io/y}").as_deref(), Some("1"));
    assert_eq!(print("{.status.phase}").as_deref(), Some("Ready"));
    assert_eq!(print("{.status.conditions}").as_deref(), Some(r#"[{"type":"A"}]"#));
    assert_eq!(print("{.status.missing}").as_deref(), Some(""));
    for unknown in ["{range .items[*]}{.a}{end}", "{.a}{.b}", "{.items[?(@.a)]}", "a", "{..a}x"] {
        assert_eq!(print(unknown), None, "{unknown}");
    }
}

#[test]
fn managed_fields_are_hidden() {
    let args = Arguments::parse(&["get", "-o", "json"]).expect("known flags");
    let printed = Output::Json.print(list(&[json!({"metadata": {"name": "a", "managedFields": []}})]), &args);
    assert!(printed.contains("\"name\": \"a\"") && !printed.contains("managedFields"), "{printed}");
}

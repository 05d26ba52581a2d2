//! The arguments of a command, and its manifests.

use std::time::Duration;

use operetta::diag::Source;
use operetta::yaml;
use serde_json::Value;

use super::session::encoded;

/// The flags that are known, each with its value if it is given without one; `None`: the value is the next argument.
const FLAGS: [(&str, Option<&str>); 33] = [
    ("all", Some("true")),
    ("all-namespaces", Some("true")),
    ("as", None),
    ("as-group", None),
    ("cascade", Some("background")),
    ("clusterrole", None),
    ("field-manager", None),
    ("field-selector", None),
    ("filename", None),
    ("for", None),
    ("force", Some("true")),
    ("force-conflicts", Some("true")),
    ("from-literal", None),
    ("grace-period", None),
    ("group", None),
    ("ignore-not-found", Some("true")),
    ("namespace", None),
    ("now", Some("true")),
    ("output", None),
    ("overwrite", Some("true")),
    ("patch", None),
    ("replicas", None),
    ("role", None),
    ("selector", None),
    ("server-side", Some("true")),
    ("serviceaccount", None),
    ("show-managed-fields", Some("true")),
    ("subresource", None),
    ("timeout", None),
    ("type", None),
    ("user", None),
    ("validate", Some("strict")),
    ("wait", Some("true")),
];

const SHORT: [(&str, &str); 6] = [
    ("A", "all-namespaces"),
    ("f", "filename"),
    ("l", "selector"),
    ("n", "namespace"),
    ("o", "output"),
    ("p", "patch"),
];

/// Flags of every command.
const COMMON: [&str; 3] = ["as", "as-group", "namespace"];

/// A command: its words, of which the first is the verb, and its flags.
#[derive(Debug, Default)]
pub(super) struct Arguments<'a> {
    pub(super) words: Vec<&'a str>,
    flags: Vec<(&'static str, &'a str)>,
}

impl<'a> Arguments<'a> {
    /// Reads arguments; `None` if a flag is unknown or lacks its value.
    pub(super) fn parse(args: &[&'a str]) -> Option<Self> {
        let mut parsed = Self::default();
        let mut args = args.iter().copied();
        while let Some(arg) = args.next() {
            let Some(flag) = arg.strip_prefix('-').filter(|flag| !flag.is_empty()) else {
                parsed.words.push(arg);
                continue;
            };
            let (name, attached) = if let Some(long) = flag.strip_prefix('-') {
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)))
            } else {
                let (letter, rest) = flag.split_at_checked(1)?;
                let (_, name) = *SHORT.iter().find(|(short, _)| *short == letter)?;
                let value = rest.strip_prefix('=').unwrap_or(rest);
                (name, Some(value).filter(|value| !value.is_empty()))
            };
            let (name, default) = *FLAGS.iter().find(|(known, _)| *known == name)?;
            let value = match attached.or(default) {
                Some(value) => value,
                None => args.next()?,
            };
            parsed.flags.push((name, value));
        }
        Some(parsed)
    }

    /// The values of a flag that can be repeated.
    pub(super) fn all(&self, name: &str) -> Vec<&'a str> {
        self.flags.iter().filter(|(flag, _)| *flag == name).map(|(_, value)| *value).collect()
    }

    /// The value of a flag.
    pub(super) fn flag(&self, name: &str) -> Option<&'a str> {
        self.all(name).pop()
    }

    /// Whether a flag is given and not false.
    pub(super) fn is(&self, name: &str) -> bool {
        self.flag(name) == Some("true")
    }

    /// `None` if there are other flags than these and those of every command.
    pub(super) fn only(&self, names: &[&str]) -> Option<()> {
        self.flags.iter().all(|(flag, _)| names.contains(flag) || COMMON.contains(flag)).then_some(())
    }

    /// The value of `--timeout`; `None` if it cannot be read.
    pub(super) fn timeout(&self, default: Duration) -> Option<Duration> {
        let Some(text) = self.flag("timeout") else { return Some(default) };
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let factor = match unit {
            "" | "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return None,
        };
        Some(Duration::from_secs(number.parse::<u64>().ok()? * factor))
    }

    /// The query of a write by this manager, unless the command names another; `None` if `--validate` cannot be read.
    pub(super) fn query(&self, manager: &str) -> Option<String> {
        let validation = match self.flag("validate").unwrap_or("true") {
            "true" | "strict" => "Strict",
            "false" | "ignore" => "Ignore",
            "warn" => "Warn",
            _ => return None,
        };
        let manager = encoded(self.flag("field-manager").unwrap_or(manager));
        Some(format!("fieldManager={manager}&fieldValidation={validation}"))
    }

    /// The manifests of `--filename`, lists as their items; `None` if there is no such flag or a file cannot be read.
    pub(super) fn manifests(&self, input: &str) -> Option<Vec<Value>> {
        let files = self.all("filename");
        let mut manifests = Vec::new();
        for file in &files {
            let text = if *file == "-" { input.to_owned() } else { std::fs::read_to_string(file).ok()? };
            for document in documents(&text)? {
                flatten(document, &mut manifests);
            }
        }
        (!files.is_empty()).then_some(manifests)
    }
}

/// The documents of a text; `None` if it cannot be read.
pub(super) fn documents(text: &str) -> Option<Vec<Value>> {
    if let Ok(value) = serde_json::from_str(text) {
        return Some(vec![value]);
    }
    let options = yaml::Options { duplicate_keys: yaml::Duplicates::Last, ..yaml::Options::default() };
    let documents = yaml::parse(&Source::new("manifest", text), &options).ok()?;
    Some(documents.iter().map(yaml::Node::to_json).collect())
}

fn flatten(mut manifest: Value, into: &mut Vec<Value>) {
    let is_list = manifest["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match manifest.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if is_list => items.into_iter().for_each(|item| flatten(item, into)),
        Some(items) => {
            manifest["items"] = items;
            into.push(manifest);
        }
        None if manifest.is_null() => {}
        None => into.push(manifest),
    }
}

#[test]
fn flags_stand_anywhere() {
    let args =
        ["get", "-n", "a", "pods", "--selector=x=y", "-ojson", "p", "--namespace", "b", "--wait", "-A"];
    let args = Arguments::parse(&args).expect("known flags");
    assert_eq!(args.words, ["get", "pods", "p"]);
    assert_eq!((args.flag("namespace"), args.flag("selector")), (Some("b"), Some("x=y")));
    assert_eq!((args.flag("output"), args.flag("type")), (Some("json"), None));
    assert!(args.is("wait") && args.is("all-namespaces") && !args.is("all"));
    assert!(args.only(&["selector", "output", "wait", "all-namespaces"]).is_some());
    assert!(args.only(&["selector", "output", "wait"]).is_none());
    for unknown in
        [&["get", "--raw", "/version"][..], &["exec", "p", "--", "sh"], &["get", "-w"], &["get", "-o"]]
    {
        assert!(Arguments::parse(unknown).is_none(), "{unknown:?}");
    }
}

#[test]
fn timeouts_have_units() {
    let timeout = |args: &[&str]| Arguments::parse(args).expect("known flags").timeout(Duration::ZERO);
    assert_eq!(timeout(&["wait", "--timeout", "2m"]), Some(Duration::from_secs(120)));
    assert_eq!(timeout(&["wait", "--timeout=1s"]), Some(Duration::from_secs(1)));
    assert_eq!(timeout(&["wait", "--timeout=1d"]), None);
    assert_eq!(timeout(&["wait"]), Some(Duration::ZERO));
}

#[test]
fn manifests_are_documents_and_items_of_lists() {
    let args = Arguments::parse(&["apply", "-f", "-"]).expect("known flags");
    let text = "kind: A\n---\n---\nkind: List\nitems:\n- kind: B\n- {kind: C, items: [1]}\n";
    let manifests = args.manifests(text).expect("YAML");
    assert_eq!(
        serde_json::json!([{"kind": "A"}, {"kind": "B"}, {"kind": "C", "items": [1]}]),
        Value::from(manifests)
    );
    assert!(args.manifests("a: [").is_none());
    assert!(Arguments::parse(&["apply"]).expect("known flags").manifests("a: b").is_none());
}

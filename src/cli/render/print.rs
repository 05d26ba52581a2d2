//! How `operetta render` prints objects.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::Output;
use crate::children::Item;
use crate::cli::command::list;
use crate::cli::out;
use crate::{printable, yaml};

/// The prefix of labels and annotations that only the manager can fill in: elsewhere they would be wrong.
const OWN_PREFIX: &str = "operetta.dev/";

/// Collects what is printed.
pub(super) struct Printer {
    output: Output,
    text: String,
    items: Vec<Value>,
}

impl Printer {
    pub(super) fn new(output: Output) -> Self {
        Self { output, text: String::new(), items: Vec::new() }
    }

    /// Prints an object. `generated` are the keys of its data that the manager will generate.
    pub(super) fn object(&mut self, item: &Item, mut body: Value, generated: &[&str]) {
        strip(&mut body);
        match self.output {
            Output::Yaml => {
                let _ = writeln!(self.text, "---\n# child: {}", printable::line(&item.name));
                for key in generated {
                    let key = printable::line(key);
                    let _ = writeln!(self.text, "# data.{key} is generated when the object is created");
                }
                self.text.push_str(&yaml::to_string(&body));
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
                let name = format!("{}{group}/{}", text("/kind").to_lowercase(), text("/metadata/name"));
                let _ = writeln!(self.text, "{}", printable::line(&name));
            }
        }
    }

    pub(super) fn comment(&mut self, comment: &str) {
        let comment = printable::sentence(comment);
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

    pub(super) fn finish(self) -> String {
        match self.output {
            Output::Json => out::json(&list(&self.items)),
            _ => self.text,
        }
    }
}

/// Removes what the manager adds for its own use.
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

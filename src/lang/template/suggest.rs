//! Creates the error about an undefined expression: its text, its position, and a suggestion.

use super::code::{Kind, Node};
use super::errors::{Fault, NOT_YET, Res, near};
use super::eval::Cx;
use super::value::Val;

impl Cx<'_> {
    /// The error about an undefined expression, with a suggestion.
    pub(super) fn undefined(&mut self, node: &Node) -> Fault {
        let fault = Fault::undefined(match self.shown(node) {
            Some(text) => format!("`{text}` is undefined"),
            None => "the value is undefined".to_owned(),
        });
        self.name_undefined(fault, node)
    }

    /// Adds the position and a suggestion for an undefined expression.
    pub(super) fn name_undefined(&mut self, fault: Fault, node: &Node) -> Fault {
        let near = self.near(node).ok().flatten();
        let fault = fault.at(&self.unit.source, node.span);
        match near {
            Some(near) => fault.suggest(near),
            None => fault.help("add a default: `| default(...)`, or `| default(omit)`"),
        }
    }

    /// The text of a path, as the author wrote it.
    pub(super) fn shown(&self, node: &Node) -> Option<String> {
        let path = matches!(node.kind, Kind::Var(_) | Kind::Attr(..) | Kind::Item(..));
        let text = self.unit.source.text.get(node.span.start..node.span.end)?;
        (path && text.len() <= 80 && !text.contains(['\n', '{'])).then(|| text.to_owned())
    }

    /// The suggestion for the first step of a path that does not exist.
    fn near(&mut self, node: &Node) -> Res<Option<String>> {
        match &node.kind {
            Kind::Var(name) => {
                if self.lookup(name).is_some() {
                    return Ok(None);
                }
                let mut names = self.scope.names();
                names.extend(self.names.all().map(str::to_owned));
                names.retain(|name| !name.starts_with('\0'));
                let near = near(name, names.iter().map(String::as_str));
                Ok(Some(match near {
                    Some(near) => format!("there is no variable `{name}`; did you mean `{near}`?"),
                    None => format!(
                        "there is no variable `{name}`; there are {}",
                        names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
                    ),
                }))
            }
            Kind::Attr(base, name) => {
                let value = match self.eval(base)? {
                    Val::Undefined => return self.near(base),
                    value => value,
                };
                let keys: Vec<String> = match &value {
                    Val::Map(map) => map.entries.keys().map(ToString::to_string).collect(),
                    Val::Live(live) => {
                        live.json.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default()
                    }
                    Val::Lets(lets) => lets.iter().map(|(name, _)| name.to_owned()).collect(),
                    _ => Vec::new(),
                };
                // The name exists, but its object does not.
                if keys.iter().any(|key| **key == **name) {
                    return Ok(match &base.kind {
                        Kind::Var(root) if **root == *"children" => {
                            Some(format!("the child `{name}` {NOT_YET}"))
                        }
                        Kind::Var(root) if **root == *"retained" => Some(format!(
                            "no former instance of that name has left an object of the child `{name}`"
                        )),
                        Kind::Var(root) if **root == *"refs" => {
                            Some(format!("`refs.{name}` has no object now"))
                        }
                        _ => None,
                    });
                }
                let near = near(name, keys.iter().map(String::as_str));
                Ok(near.map(|near| format!("did you mean `{near}`?")))
            }
            Kind::Item(base, _) => match self.eval(base)? {
                Val::Undefined => self.near(base),
                _ => Ok(None),
            },
            _ => Ok(None),
        }
    }
}

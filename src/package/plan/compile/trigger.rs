//! Triggers.

use crate::compiler::{Compiler, Names, near};
use crate::crd::{self, Lookup};
use crate::decode::At;
use crate::diag::{Diagnostic, Location, did_you_mean};
use crate::facts::LAST_APPLIED;
use crate::plan::manifest::{self, TriggerEntry};
use crate::plan::{ChangedPath, Event, Trigger};
use crate::template_scan::OWN_PREFIX;
use crate::validation::is_label_value;

impl Compiler<'_> {
    /// Compiles a trigger.
    pub(super) fn trigger(&mut self, entry: At<TriggerEntry>, names: &Names<'_>) -> Option<Trigger> {
        let At { value, at: location, path } = entry;
        let trigger = match value {
            TriggerEntry::Word(name) => return Some(Trigger { event: event(name), when: None, location }),
            TriggerEntry::Map(trigger) => *trigger,
        };
        let whole = At { value: (), at: location.clone(), path };
        let kinds = [
            ("event", trigger.event.is_some()),
            ("changed", trigger.changed.is_some()),
            ("condition", trigger.condition.is_some()),
            ("expires", trigger.expires.is_some()),
            ("schedule", trigger.schedule.is_some()),
        ];
        let kinds: Vec<&str> = kinds.into_iter().filter_map(|(kind, given)| given.then_some(kind)).collect();
        let [kind] = kinds.as_slice() else {
            let (message, help) = if kinds.is_empty() {
                let message =
                    "the trigger has none of `event`, `changed`, `condition`, `expires` and `schedule`";
                (message.to_owned(), "add one, for example {changed: [spec.size]}")
            } else {
                (format!("the trigger has {}", kinds.join(" and ")), "make it a list of two triggers")
            };
            self.diagnostics.push(whole.error("package::value", message).help(help));
            return None;
        };
        let belongs: [(&str, &[&str], bool); 7] = [
            ("for", &["condition"], trigger.hold.is_some()),
            ("cooldown", &["condition", "expires"], trigger.cooldown.is_some()),
            ("during", &["condition"], trigger.during.is_some()),
            ("before", &["expires"], trigger.before.is_some()),
            ("timeZone", &["schedule"], trigger.time_zone.is_some()),
            ("startingDeadline", &["schedule"], trigger.starting_deadline.is_some()),
            ("suspend", &["schedule"], trigger.suspend.is_some()),
        ];
        for (key, of, _) in belongs.iter().filter(|(_, of, given)| *given && !of.contains(kind)) {
            let error = whole.error("package::value", format!("`{key}` requires `{}`", of.join("` or `")));
            self.diagnostics.push(error.help("remove it"));
        }
        let when = self.optional(trigger.when.as_ref());
        let event = if let Some(name) = trigger.event {
            event(name)
        } else if let Some(paths) = trigger.changed {
            if paths.is_empty() {
                let error = whole.error("package::empty", "`changed` lists no path");
                self.diagnostics.push(error.help("add one, or write changed for any path of the spec"));
            }
            Event::Changed(paths.iter().filter_map(|path| self.changed(path, names)).collect())
        } else if let Some(condition) = &trigger.condition {
            Event::Condition {
                condition: self.expression(condition)?,
                hold: trigger.hold.as_ref().and_then(|time| self.text(&time.0)),
                cooldown: trigger.cooldown.as_ref().and_then(|time| self.text(&time.0)),
                always: trigger.during.is_some(),
            }
        } else if let Some(certificate) = &trigger.expires {
            let Some(before) = &trigger.before else {
                let error = whole.error("package::value", "`expires` requires `before`");
                self.diagnostics.push(error.help("say how long before the end the plan runs: before: 30d"));
                return None;
            };
            Event::Expires {
                certificate: self.expression(certificate)?,
                before: self.text(&before.0)?,
                cooldown: trigger.cooldown.as_ref().and_then(|time| self.text(&time.0)),
            }
        } else {
            let schedule = trigger.schedule.as_ref()?;
            Event::Schedule {
                schedule: self.text(&schedule.0)?,
                time_zone: self.template_text(trigger.time_zone.as_ref()),
                starting_deadline: trigger.starting_deadline.map(|deadline| deadline.value.0),
                suspend: self.optional(trigger.suspend.as_ref()),
            }
        };
        Some(Trigger { event, when, location })
    }

    /// Compiles a path of `changed`: a path of the spec, a label, an annotation, or a whole ref.
    fn changed(&mut self, path: &At<String>, names: &Names<'_>) -> Option<ChangedPath> {
        for (field, prefix) in [("labels", "metadata.labels."), ("annotations", "metadata.annotations.")] {
            if let Some(key) = path.value.strip_prefix(prefix) {
                return self.changed_metadata(path, field, key);
            }
        }
        let mut keys = path.value.split('.');
        let (root, keys) = (keys.next().unwrap_or_default(), keys.collect::<Vec<_>>());
        if path.value.contains(['[', '{', '(', ' ', '|']) || keys.iter().any(|key| key.is_empty()) {
            let error = path.error("package::value", format!("`{}` is not a path of the spec", path.value));
            self.diagnostics.push(error.help("write names joined by dots: spec.pod.resources"));
            return None;
        }
        match (root, keys.as_slice()) {
            ("spec", keys) => {
                let full: Vec<&str> = std::iter::once("spec").chain(keys.iter().copied()).collect();
                if let Some(schema) = names.schema
                    && let Lookup::Unknown { candidates, .. } = crd::lookup(schema, &full)
                {
                    let message = format!("the CRD's schema has no {}", path.value);
                    let error = path.error("package::unknown-path", message);
                    let last = full.last().copied().unwrap_or_default();
                    let near = did_you_mean(last, candidates.iter().map(String::as_str));
                    let help = near.map(|near| format!("did you mean `{near}`?"));
                    self.diagnostics.push(Diagnostic { help, ..error });
                }
                Some(ChangedPath::Spec(full.into_iter().map(str::to_owned).collect()))
            }
            ("refs", [id]) => {
                if self.complete && !names.refs.contains(id) {
                    let error = path.error("package::unknown-ref", format!("there is no ref `{id}`"));
                    self.diagnostics.push(near(error, id, names.refs.iter().copied()));
                }
                Some(ChangedPath::Ref((*id).to_owned()))
            }
            ("refs", [id, ..]) => {
                let error = path.error("package::value", "a trigger takes a ref as a whole");
                self.diagnostics.push(error.help(format!("write refs.{id}")));
                None
            }
            _ => {
                let message = format!("`{}` is no path that can be compared", path.value);
                let help = "write spec.x, metadata.annotations.x, metadata.labels.x or refs.x; for live objects and observations \
                            use {condition: ...}";
                self.diagnostics.push(path.error("package::value", message).help(help));
                None
            }
        }
    }

    /// Compiles a label or an annotation of `changed`. All after the prefix is its key, which may have dots.
    fn changed_metadata(&mut self, path: &At<String>, field: &'static str, key: &str) -> Option<ChangedPath> {
        let (domain, name) = key.split_once('/').unwrap_or(("", key));
        let is_key = !name.is_empty() && is_label_value(name) && domain.split('.').all(is_label_value);
        let problem = if !is_key {
            (
                format!("`{key}` is not the key of a label or an annotation"),
                "write it as in metadata, without quotes",
            )
        } else if field == "annotations" && (key.starts_with(OWN_PREFIX) || key == LAST_APPLIED) {
            (format!("changes of the annotation {key} do not count"), "use an annotation of your own")
        } else {
            return Some(ChangedPath::Metadata { field, key: key.to_owned() });
        };
        self.diagnostics.push(path.error("package::value", problem.0).help(problem.1));
        None
    }
}

fn event(name: manifest::EventName) -> Event {
    match name {
        manifest::EventName::Created => Event::Created,
        manifest::EventName::Changed => Event::Changed(Vec::new()),
        manifest::EventName::Upgraded => Event::Upgraded,
        manifest::EventName::Deleted => Event::Deleted,
    }
}

/// The implied trigger of a plan without a trigger, by its name.
pub(super) fn implied(name: &str, at: &Location) -> Vec<Trigger> {
    let event = match name {
        "deploy" => Event::Created,
        "update" => Event::Changed(Vec::new()),
        "upgrade" => Event::Upgraded,
        "cleanup" => Event::Deleted,
        _ => return Vec::new(),
    };
    vec![Trigger { event, when: None, location: at.clone() }]
}

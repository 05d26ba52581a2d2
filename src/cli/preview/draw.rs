//! Formats a preview as text. No I/O.

use std::collections::BTreeMap;

use crate::cli::out::printable;
use crate::cli::show::{Cell, Columns, Severity, Table, Terminal, named, plural};
use crate::preview::{
    Change, CrdReport, CrdWrite, FieldChange, Group, InstanceReport, Refused, Report, Shown, Write, groups,
};

/// How many characters of a value a summary shows.
const VALUE: usize = 80;
/// How many fields of a group, and how many instances of a list, a summary shows.
pub(super) const NAMED: usize = 10;

/// The text of a report. `is_single`: of one instance, with every field.
pub(super) fn text(report: &Report, is_single: bool, terminal: Terminal) -> String {
    let mut drawing = Drawing { text: String::new(), colours: terminal.colours };
    drawing.line(&printable(&shown_revisions(report)));
    for crd in &report.crds {
        drawing.crd(crd, is_single);
    }
    if report.has_refused_crd() {
        drawing.line("");
        drawing.line("Nothing of the package would be written until its CRDs are accepted.");
    } else if is_single {
        for instance in &report.instances {
            drawing.instance(instance);
        }
    } else {
        drawing.fleet(&report.instances);
    }
    if !report.rights.is_empty() {
        drawing.line("");
        for line in report.rights.lines() {
            drawing.line(&printable(&line));
        }
    }
    match terminal.width {
        Some(width) if !is_single => drawing
            .text
            .lines()
            .fold(String::new(), |text, line| text + &*console::truncate_str(line, width, "…") + "\n"),
        _ => drawing.text,
    }
}

struct Drawing {
    text: String,
    colours: bool,
}

fn severity(write: Write) -> Severity {
    match write {
        Write::Created | Write::Adopted => Severity::Good,
        Write::Updated | Write::Repaired | Write::AwaitsApproval | Write::Unmarked => Severity::Busy,
        Write::Recreated | Write::Pruned => Severity::Bad,
        Write::Retained | Write::Orphaned => Severity::Dim,
    }
}

/// What becomes of a CRD, in a word; `None` if nothing does.
pub(super) fn crd_write(write: CrdWrite) -> Option<(&'static str, Severity)> {
    match write {
        CrdWrite::Unchanged => None,
        CrdWrite::Created => Some(("created", Severity::Good)),
        CrdWrite::Updated => Some(("updated", Severity::Busy)),
        CrdWrite::Dropped => Some(("dropped", Severity::Bad)),
        CrdWrite::Refused => Some(("refused", Severity::Bad)),
    }
}

/// The revision that is previewed, and those that instances have.
pub(super) fn shown_revisions(report: &Report) -> String {
    let active: Vec<String> =
        report.active.iter().map(|(revision, count)| format!("{revision} in {count}")).collect();
    // If a CRD of the package exists, a revision was active before, although no instance reports it.
    let is_new = !report.crds.is_empty() && report.crds.iter().all(|crd| crd.write == CrdWrite::Created);
    let active = match (&active[..], is_new) {
        ([], true) => "none".to_owned(),
        ([], false) => "unknown, as no instance reports one".to_owned(),
        (active, _) => active.join(", "),
    };
    format!("{} {} (active: {active})", report.package, report.revision)
}

/// How many instances there are, and what becomes of them.
pub(super) fn counts(instances: &[InstanceReport]) -> String {
    let count = |is: &dyn Fn(&InstanceReport) -> bool| instances.iter().filter(|i| is(i)).count();
    let unchanged = count(&InstanceReport::is_unchanged);
    let refused = count(&|instance| !instance.refused.is_empty());
    let restarting = count(&|instance| instance.changes.iter().any(|change| change.restarts_pods));
    let skipped = count(&|instance| instance.skipped.is_some());
    let mut parts = vec![format!("{unchanged} unchanged"), format!("{refused} with refusals")];
    if skipped > 0 {
        parts.push(format!("{skipped} being deleted"));
    }
    parts.push(format!("pods of {restarting} restart"));
    format!("{}: {}", plural(instances.len(), "instance"), parts.join(", "))
}

/// A value in one line, at most that long.
fn shown(value: &Shown, most: usize) -> String {
    let text = match value {
        Shown::Absent => return "none".to_owned(),
        Shown::Hidden => return "(hidden)".to_owned(),
        Shown::Value(value) => value.to_string(),
    };
    let text = printable(&text);
    if text.chars().count() <= most {
        return text;
    }
    text.chars().take(most).chain(['…']).collect()
}

/// A field that differs, in one line.
fn field(field: &FieldChange, most: usize) -> String {
    let FieldChange { path, before, after } = field;
    let path = printable(path);
    match (before, after) {
        (Shown::Hidden, Shown::Hidden) => format!("{path}: (differs)"),
        (Shown::Absent, after) => format!("{path}: + {}", shown(after, most)),
        (before, Shown::Absent) => format!("{path}: - {}", shown(before, most)),
        (before, after) => format!("{path}: {} -> {}", shown(before, most), shown(after, most)),
    }
}

impl Drawing {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn styled(&self, text: &str, severity: Severity) -> String {
        severity.style(text).force_styling(self.colours).to_string()
    }

    fn crd(&mut self, crd: &CrdReport, is_single: bool) {
        let Some((word, severity)) = crd_write(crd.write) else { return };
        let word = self.styled(word, severity);
        self.line("");
        self.line(&format!("CRD {}: {word}", printable(&crd.name)));
        if crd.write == CrdWrite::Dropped {
            let instances = match crd.instances {
                0 => "it has no instances".to_owned(),
                count => format!(
                    "nothing is done any more about its {} and their children",
                    plural(count, "instance")
                ),
            };
            self.line(&format!("    the package no longer has it: the CRD stays, and {instances}"));
        }
        if let Some(why) = &crd.refused {
            self.line(&format!("    {}", printable(why)));
        }
        for version in &crd.migrates_from {
            self.line(&format!(
                "    stored instances are migrated before the version {} is removed",
                printable(version)
            ));
        }
        let most = if is_single { usize::MAX } else { NAMED };
        for rejected in crd.rejected.iter().take(most) {
            let violations = rejected.violations.join("; ");
            self.line(&format!("    {}", printable(&format!("{}: {violations}", rejected.instance))));
        }
        self.more(crd.rejected.len(), most, "instance");
        for change in crd.fields.iter().take(most) {
            self.line(&format!("    {}", field(change, VALUE)));
        }
        self.more(crd.fields.len(), most, "field");
    }

    fn more(&mut self, count: usize, most: usize, of: &str) {
        if count > most {
            self.line(&format!("    and {}", plural(count - most, &format!("more {of}"))));
        }
    }

    /// One instance, with every field.
    fn instance(&mut self, instance: &InstanceReport) {
        self.line("");
        self.line(&printable(&format!("{} {}", instance.kind, instance.full_name())));
        if let Some(why) = &instance.skipped {
            self.line(&format!("  not previewed: {}", printable(why)));
        }
        if instance.is_unchanged() {
            self.line("  nothing changes");
        }
        for plan in &instance.plans {
            let reason =
                if plan.reason.is_empty() { String::new() } else { format!(": {}", printable(&plan.reason)) };
            let (plans, cause, revision) = (plan.plans.join(", "), &plan.cause, &plan.revision);
            self.line(&format!("  plan {plans} runs ({cause}) with revision {revision}{reason}"));
            for step in &plan.steps {
                self.line(&format!("      {}", printable(step)));
            }
        }
        for change in &instance.changes {
            self.change(change);
        }
        self.refused(&instance.refused);
        for note in &instance.notes {
            self.line(&format!("  note: {}", printable(note)));
        }
        for wait in &instance.waits {
            self.line(&format!("  {}: {}", self.styled("waits", Severity::Busy), printable(wait)));
        }
    }

    fn change(&mut self, change: &Change) {
        let write = self.styled(change.write.word(), severity(change.write));
        let restarts = if change.restarts_pods { ", its pods restart" } else { "" };
        let what = printable(&format!("{} ({})", change.object, change.item));
        self.line(&format!("  {write} {what}{restarts}"));
        for change in &change.fields {
            self.line(&format!("      {}", field(change, usize::MAX)));
        }
        if change.write == Write::Updated && change.fields.is_empty() {
            self.line("      only annotations of Operetta");
        }
    }

    fn refused(&mut self, refused: &[Refused]) {
        for refused in refused {
            let word = self.styled("refused", Severity::Bad);
            self.line(&format!("  {word} ({}): {}", refused.reason, printable(&refused.message)));
        }
    }

    /// All instances; equal changes are shown together.
    fn fleet(&mut self, instances: &[InstanceReport]) {
        self.line("");
        self.line(&counts(instances));
        let groups = groups(instances);
        if !groups.is_empty() {
            self.line("");
            self.table(&groups);
        }
        self.plans(instances);
        let reasons = |refused: &Refused| {
            let child = refused.item.as_deref().map(|item| item.split('[').next().unwrap_or_default());
            format!("{} {}", refused.reason, child.unwrap_or_default())
        };
        let refusals = |instance: &InstanceReport| -> Vec<(String, String)> {
            instance.refused.iter().map(|one| (reasons(one), one.message.clone())).collect()
        };
        self.like("REFUSED", instances, &refusals);
        let waits = |instance: &InstanceReport| -> Vec<(String, String)> {
            instance.waits.iter().map(|wait| (of_kind(wait, instance), wait.clone())).collect()
        };
        self.like("WAITS", instances, &waits);
        let notes = |instance: &InstanceReport| -> Vec<(String, String)> {
            instance.notes.iter().map(|note| (of_kind(note, instance), note.clone())).collect()
        };
        self.like("NOTES", instances, &notes);
    }

    fn table(&mut self, groups: &[Group]) {
        let table = Table::new()
            .column("WRITE", |group: &Group| Cell::new(group.write.word(), severity(group.write)))
            .column("CHILD", |group| Cell::plain(&group.child))
            .column("KIND", |group| Cell::plain(&group.kind))
            .column("OBJECTS", |group| Cell::plain(group.objects.to_string()))
            .column("INSTANCES", |group| Cell::plain(group.instances.to_string()))
            .column("PODS", |group| Cell::plain(if group.restarts_pods { "restart" } else { "-" }));
        let lines = table.lines(groups, true);
        let columns = Columns::fit(&lines, self.colours);
        for (index, cells) in lines.iter().enumerate() {
            self.line(&columns.line(cells));
            let Some(group) = index.checked_sub(1).and_then(|index| groups.get(index)) else { continue };
            for one in group.fields.iter().take(NAMED) {
                let others = match one.variants {
                    0 | 1 => String::new(),
                    count => format!(", and {} of values", plural(count - 1, "other pair")),
                };
                self.line(&format!("    {}{others}", field(&one.change, VALUE)));
            }
            self.more(group.fields.len(), NAMED, "field");
            if group.write == Write::Updated && group.fields.is_empty() {
                self.line("    only annotations of Operetta");
            }
        }
    }

    fn plans(&mut self, instances: &[InstanceReport]) {
        let mut all: BTreeMap<(String, Vec<String>), Vec<String>> = BTreeMap::new();
        for instance in instances {
            for plan in &instance.plans {
                let (plans, cause, revision) = (plan.plans.join(", "), &plan.cause, &plan.revision);
                let line = format!("{plans} ({cause}) with revision {revision}");
                all.entry((line, plan.steps.clone())).or_default().push(instance.full_name());
            }
        }
        if all.is_empty() {
            return;
        }
        self.line("");
        self.line("PLANS");
        for ((line, steps), names) in all {
            self.line(&printable(&format!("{line}: {}", instances_named(&names))));
            for step in steps {
                self.line(&format!("    {}", printable(&step)));
            }
        }
    }

    /// Messages of many instances: for each key the first message, and the names of the instances that have
    /// it.
    fn like(
        &mut self,
        title: &str,
        instances: &[InstanceReport],
        of: &dyn Fn(&InstanceReport) -> Vec<(String, String)>,
    ) {
        let mut all: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
        for instance in instances {
            for (key, message) in of(instance) {
                let (_, names) = all.entry(key).or_insert_with(|| (message, Vec::new()));
                names.push(instance.full_name());
            }
        }
        if all.is_empty() {
            return;
        }
        self.line("");
        self.line(title);
        for (message, mut names) in all.into_values() {
            names.dedup();
            self.line(&printable(&instances_named(&names)));
            self.line(&format!("    {}", printable(&message)));
        }
    }
}

/// A message without the name of its instance, to compare.
fn of_kind(message: &str, instance: &InstanceReport) -> String {
    message.replace(&instance.name, "\0")
}

/// How many instances, and some of their names.
pub(super) fn instances_named(names: &[String]) -> String {
    format!("{}: {}", plural(names.len(), "instance"), named(names, NAMED))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::{Gvk, ObjectRef};
    use crate::preview::differences;

    const TERMINAL: Terminal = Terminal { colours: false, unicode: true, width: None };

    pub(in crate::cli::preview) fn instance(name: &str, image: &str) -> InstanceReport {
        let object = ObjectRef {
            gvk: Gvk::new("apps/v1", "Deployment"),
            namespace: Some("shop".into()),
            name: name.into(),
        };
        let of = |image: &str| json!({"spec": {"template": {"spec": {"image": image}}}});
        let change = Change {
            item: "web".to_owned(),
            object,
            write: Write::Updated,
            fields: differences(Some(&of("old")), &of(image)),
            restarts_pods: true,
        };
        InstanceReport {
            kind: "Web".into(),
            namespace: Some("shop".into()),
            name: name.into(),
            changes: vec![change],
            ..InstanceReport::default()
        }
    }

    #[test]
    fn a_fleet_is_summarised_and_an_instance_shown_whole() {
        let mut report = Report { package: "web".into(), revision: "2".into(), ..Report::default() };
        report.active.insert("1".into(), 3);
        report.instances = vec![instance("a", "x"), instance("b", "x"), instance("c", "y")];
        let fleet = text(&report, false, TERMINAL);
        let expected = "\
web 2 (active: 1 in 3)

3 instances: 0 unchanged, 0 with refusals, pods of 3 restart

WRITE     CHILD   KIND         OBJECTS   INSTANCES   PODS
updated   web     Deployment   3         3           restart
    spec.template.spec.image: \"old\" -> \"x\", and 1 other pair of values
";
        assert_eq!(fleet, expected);
        report.instances.truncate(1);
        let single = text(&report, true, TERMINAL);
        let expected = "\
web 2 (active: 1 in 3)

Web shop/a
  updated Deployment shop/a (web), its pods restart
      spec.template.spec.image: \"old\" -> \"x\"
";
        assert_eq!(single, expected);
    }

    #[test]
    fn text_of_objects_cannot_control_the_terminal() {
        let instances = vec![instance("a", "\u{1b}[2J\u{9b}31m")];
        let report = Report { instances, ..Report::default() };
        for is_single in [false, true] {
            let text = text(&report, is_single, TERMINAL);
            assert!(!text.contains(['\u{1b}', '\u{9b}']), "{text:?}");
        }
    }
}

//! A preview in a few lines, as `operetta install` and `upgrade` print it before they apply anything.

use std::collections::BTreeMap;

use crate::cli::out::printable;
use crate::cli::show::plural;
use crate::preview::{Report, groups};

use super::draw::{NAMED, counts, crd_write, instances_named, shown_revisions};

/// The lines, or nothing if no instance is there and no CRD is refused.
pub(in crate::cli) fn lines(report: &Report) -> Vec<String> {
    if report.instances.is_empty() && !report.has_refused_crd() {
        return Vec::new();
    }
    let mut lines = vec![shown_revisions(report)];
    for crd in &report.crds {
        let Some((word, _)) = crd_write(crd.write) else { continue };
        let why = crd.refused.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        lines.push(format!("CRD {} {word}{why}", crd.name));
    }
    if report.has_refused_crd() {
        return printable_lines(&lines);
    }
    lines.push(counts(&report.instances));
    let groups = groups(&report.instances);
    for group in groups.iter().take(NAMED) {
        let pods = if group.restarts_pods { ", pods restart" } else { "" };
        let (objects, kind) = (group.objects, &group.kind);
        lines.push(format!("  {} {objects} {kind} ({}){pods}", group.write.word(), group.child));
    }
    if groups.len() > NAMED {
        lines.push(format!("  and {}", plural(groups.len() - NAMED, "more group")));
    }
    let mut plans: BTreeMap<String, usize> = BTreeMap::new();
    for plan in report.instances.iter().flat_map(|instance| &instance.plans) {
        *plans.entry(plan.plans.join(", ")).or_default() += 1;
    }
    let notes: usize = report.instances.iter().map(|instance| instance.notes.len()).sum();
    if notes > 0 {
        lines.push(format!("  {}: `operetta preview` shows them", plural(notes, "note")));
    }
    lines.extend(
        plans.iter().map(|(plan, count)| format!("  plan {plan} runs for {}", plural(*count, "instance"))),
    );
    let refused: Vec<String> = report
        .instances
        .iter()
        .filter(|instance| !instance.refused.is_empty())
        .map(crate::preview::InstanceReport::full_name)
        .collect();
    if !refused.is_empty() {
        lines.push(format!("refused for {}", instances_named(&refused)));
    }
    printable_lines(&lines)
}

fn printable_lines(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| printable(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::draw::tests::instance;
    use super::*;
    use crate::preview::{CrdReport, CrdWrite, Refused, Rejected};

    fn crd(write: CrdWrite) -> CrdReport {
        CrdReport {
            name: "webs.example.org".into(),
            write,
            fields: Vec::new(),
            instances: 0,
            migrates_from: Vec::new(),
            refused: (write == CrdWrite::Refused).then(|| "another scope".into()),
            rejected: Vec::<Rejected>::new(),
        }
    }

    #[test]
    fn a_fleet_is_summarised_and_an_empty_one_is_omitted() {
        let mut report = Report { package: "web".into(), revision: "2".into(), ..Report::default() };
        report.crds = vec![crd(CrdWrite::Created)];
        assert_eq!(lines(&report), [""; 0]);
        report.crds = vec![crd(CrdWrite::Updated)];
        report.active.insert("1".into(), 2);
        report.instances = vec![instance("a", "x"), instance("b", "y")];
        report.instances[1].refused =
            vec![Refused { item: None, object: None, reason: "Invalid".into(), message: "no".into() }];
        assert_eq!(
            lines(&report),
            [
                "web 2 (active: 1 in 2)",
                "CRD webs.example.org updated",
                "2 instances: 0 unchanged, 1 with refusals, pods of 2 restart",
                "  updated 2 Deployment (web), pods restart",
                "refused for 1 instance: shop/b",
            ]
        );
        report.crds = vec![crd(CrdWrite::Refused)];
        assert_eq!(lines(&report)[1..], ["CRD webs.example.org refused: another scope"]);
    }
}

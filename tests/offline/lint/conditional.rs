//! Templates that read a conditional child, which exists only while its `when` is true.

use super::check;

const TEMPLATES: &str = "
//- templates/bare.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: \"{{ name }}-bare\"}
data: {uid: \"{{ children.extra.metadata.uid }}\"}
";

/// Checks that reading the child in the same template gives this warning at that place.
fn warned(resource: &str, finding: &str) {
    let marked = format!("{TEMPLATES}#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ {finding}\n");
    check(&format!("//- resource{resource}{marked}")).expect("warnings only");
}

fn fine(resource: &str, template: &str) {
    let bare =
        "//- templates/bare.yaml\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-bare\"}\n";
    check(&format!("//- resource{resource}\n{bare}{template}")).expect("nothing wrong");
}

#[test]
fn an_unguarded_read_of_a_conditional_child_is_a_warning() {
    for (when, help) in [
        (
            "spec.host",
            "`spec.host`; give `bare` `when: spec.host`, as `extra` has, or `when: children.extra is defined`; or add a default: `| default(...)`",
        ),
        (
            "spec.size > 1",
            "`spec.size > 1`; give `bare` `when: spec.size > 1`, as `extra` has, or `when: children.extra is defined`; or add a default: `| default(...)`",
        ),
    ] {
        let finding = format!(
            "warning: `bare` reads `children.extra.metadata.uid`, but the child `extra` exists only when {help}"
        );
        for own in ["", ", when: spec.free is defined"] {
            warned(
                &format!(
                    "\n    - crd: crds/web.yaml\n      children:\n        - {{id: extra, template: templates/cm.yaml, when: {when}}}\n        - {{id: bare, template: templates/bare.yaml{own}}}"
                ),
                &finding,
            );
        }
        // The other child may be in a group.
        warned(
            &format!(
                "\n    - crd: crds/web.yaml\n      children:\n        - {{when: {when}, children: [{{id: extra, template: templates/cm.yaml}}]}}\n        - {{id: bare, template: templates/bare.yaml}}"
            ),
            &finding,
        );
    }
}

#[test]
fn a_guarded_read_of_a_conditional_child_is_accepted() {
    let children = |own: &str| {
        format!(
            "\n    - crd: crds/web.yaml\n      children:\n        - {{id: extra, template: templates/cm.yaml, when: spec.host}}\n        - {{id: bare, template: templates/bare.yaml{own}}}"
        )
    };
    let read = "data: {uid: \"{{ children.extra.metadata.uid }}\"}\n";
    for own in [
        ", when: spec.host",
        ", when: spec.host and spec.size > 1",
        ", when: children.extra is defined",
        ", when: children.extra is ready",
        ", when: spec.host is defined",
    ] {
        fine(&children(own), read);
    }
    for template in [
        "data: {uid: \"{{ children.extra.metadata.uid | default('none') }}\"}\n",
        "data: {uid: \"{{ children.extra.metadata.uid if children.extra is defined else '' }}\"}\n",
        "data: {uid: \"{{ children.extra.metadata.uid if spec.host else '' }}\"}\n",
        "{% if spec.host %}\ndata: {uid: \"{{ children.extra.metadata.uid }}\"}\n{% endif %}\n",
        "{% if children.extra %}\ndata: {uid: \"{{ children.extra.metadata.uid }}\"}\n{% endif %}\n",
        "data: {ready: \"{{ children.extra is ready }}\"}\n",
    ] {
        fine(&children(""), template);
    }
    // Children of one group exist together; a forEach child is a map.
    fine(
        "\n    - crd: crds/web.yaml\n      children:\n        - when: spec.host\n          children:\n            - {id: extra, template: templates/cm.yaml}\n            - {id: bare, template: templates/bare.yaml}",
        read,
    );
    fine(
        "\n    - crd: crds/web.yaml\n      children:\n        - {id: first, template: templates/cm.yaml}\n        - {id: extra, template: templates/each.yaml, when: spec.host, forEach: {in: range(spec.size)}}\n        - {id: bare, template: templates/bare.yaml}",
        "data: {count: \"{{ children.extra | length }}\"}\n//- templates/each.yaml\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-{{ item }}\"}\n",
    );
}

//! Which files let a user of an instance choose the account of pods: templates of children, and patches of steps. In a Job of a
//! step that is an error.

use std::collections::BTreeSet;

use super::files::OPERATOR_YAML;
use super::model::{Child, Resource, Tree};
use super::plan::{Action, Plan};
use super::powers::template_of;
use crate::api::Gvk;
use crate::diag::{Location, Source, Span};
use crate::template::{Engine, Position, Taint, TaintScope, TaintTree, Text};

/// Variables that a user of an instance sets. The name of the instance is not among them: it is a part of most names.
pub(super) const OF_USERS: [&str; 9] =
    ["instance", "spec", "labels", "refs", "record", "previous", "retained", "run", "outputs"];

/// The files of a resource that let a user of an instance choose the account of pods. `positions`: where values are in their documents.
pub(super) fn choosers<'r>(
    engine: &Engine,
    resource: &'r Resource,
    positions: &dyn Fn(&Source, Span) -> Vec<Position>,
) -> BTreeSet<&'r str> {
    let scope = |items: &[&str]| {
        let tainted = |root: &str| TaintTree::tainted(Taint::held(root));
        let roots = OF_USERS.into_iter().chain(items.iter().copied());
        let roots = roots.map(|root| (root.to_owned(), tainted(root)));
        // The names of children are the package's.
        let live =
            |root| TaintTree::map([("metadata".to_owned(), TaintTree::default())]).others(tainted(root));
        let children = ("children".to_owned(), TaintTree::map_of(live("children")));
        let roots = roots.chain([children, ("self".to_owned(), live("self"))]).collect();
        TaintScope { roots, lets: &resource.lets, positions }
    };
    let mut found = BTreeSet::new();
    for child in &resource.children {
        let items: Vec<&str> = child.item().into_iter().collect();
        if in_template(engine, child, &scope(&items)) {
            found.insert(&*child.template);
        }
    }
    for visit in resource.plans.iter().flat_map(Plan::visits) {
        let Action::Patch(patch) = &visit.step.action else { continue };
        let scope = scope(&visit.inside.items);
        let is_chosen = |text: &Text| engine.taint_of_text(text, &scope).any().is_some();
        if accounts(&patch.gvk).iter().any(|path| in_tree(&patch.merge, path, &is_chosen)) {
            found.insert(OPERATOR_YAML);
        }
    }
    found
}

/// Where the account of the pods is in objects of a kind.
fn accounts(gvk: &Gvk) -> Vec<Vec<&'static str>> {
    let Some(template) = template_of(gvk) else { return Vec::new() };
    let fields = ["serviceAccountName", "serviceAccount"].into_iter();
    fields.map(|field| template.iter().copied().chain(["spec", field]).collect()).collect()
}

fn in_template(engine: &Engine, child: &Child, scope: &TaintScope<'_>) -> bool {
    let accounts: Vec<Vec<&str>> = child.kinds.iter().flat_map(accounts).collect();
    let Some(template) = engine.template(&child.template).filter(|_| !accounts.is_empty()) else {
        return false;
    };
    let is_account = |path: &[String]| {
        accounts
            .iter()
            .any(|account| path.iter().zip(account).all(|(part, field)| part == field || part == "*"))
    };
    let found = engine.taint_of_template(template, scope);
    found.iter().any(|inserted| is_account(&inserted.path) && !is_condition(&inserted.location))
}

/// Whether the value at a path of a patch, or what it is a part of, is one that a user chooses.
fn in_tree(tree: &Tree, path: &[&str], is_chosen: &dyn Fn(&Text) -> bool) -> bool {
    match (tree, path) {
        (Tree::Text(text), _) => is_chosen(text),
        (Tree::Map(entries), [first, rest @ ..]) => {
            entries.iter().any(|(key, value)| key == first && in_tree(value, rest, is_chosen))
        }
        (Tree::Map(_), []) | (Tree::List(_), _) => false,
    }
}

/// Whether an expression is in a statement, such as `{% if x %}`: it chooses between texts of the template.
fn is_condition(at: &Location) -> bool {
    let before = at.source.text.get(..at.span.start).unwrap_or_default();
    before.rfind("{%") > before.rfind("{{")
}

#[cfg(test)]
mod tests {
    use crate::powers::Power;
    use crate::test_crd::crd_to_properties;
    use crate::{Files, compile};

    /// Whether a file of a package shows that an instance chooses the account. `pod`: the pod of a child. `step`: of a plan.
    fn chooses(file: &str, pod: &str, step: &str) -> bool {
        let operator = format!(
            "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: web}}\nspec:\n  version: 0.1.0\n  \
             permissions: [{{apiGroups: [apps], resources: [deployments], verbs: [get, patch]}}]\n  \
             defaults: {{account: x}}\n  let: {{account: \"{{{{ spec.a }}}}\"}}\n  resources:\n    - crd: crds/web.yaml\n      \
             children: [{{id: a, template: templates/a.yaml}}, {{id: c, template: templates/c.yaml}}]\n      \
             plans:\n        deploy: {{steps: [{{name: a, apply: [a, c]}}]}}\n        work: {{steps: [{step}]}}\n"
        );
        let crd = crd_to_properties("example.com", "webs", "Web")
            + "            spec: {type: object, properties: {a: {type: string}, b: {type: object, x-kubernetes-preserve-unknown-fields: \
               true}}}\n";
        let pod = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: \"{{{{ name }}}}\"}}\n{pod}");
        let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\ndata: {a: \"{{ spec.a }}\"}\n";
        let texts = [
            ("operator.yaml", &*operator),
            ("crds/web.yaml", &crd),
            ("templates/a.yaml", &pod),
            ("templates/c.yaml", config),
        ];
        let (package, _) = compile(&Files::from_texts("p", texts))
            .unwrap_or_else(|errors| panic!("{}", crate::diag::render(&errors, false)));
        package.powers.of(file).contains(&Power::ServiceAccount)
    }

    #[test]
    fn an_account_that_an_instance_chooses_is_seen_through_variables() {
        let of = |spec: &str| chooses("templates/a.yaml", spec, "{name: note, record: {x: '1'}}");
        let account = |value: &str| of(&format!("spec: {{serviceAccountName: \"{value}\"}}\n"));
        for (value, is_chosen) in [
            ("{{ name }}-x", false),
            ("{{ defaults.account }}", false),
            ("{{ 'a' if spec.a == 'b' else 'c' }}", false),
            ("{{ children.c.metadata.name }}", false),
            ("{{ children.c.data.a }}", true),
            ("{{ spec.a | default(name) }}", true),
            ("{{ let.account }}", true),
        ] {
            assert_eq!(account(value), is_chosen, "{value}");
        }
        assert!(of("spec: \"{{ spec.b }}\"\n"));
        assert!(of("{% set name = spec.a %}\nspec: {serviceAccountName: \"{{ name }}\"}\n"));
        assert!(!of("spec: {containers: \"{{ spec.b.c }}\"}\n"));
        assert!(!of("spec:\n{% if spec.a %}\n  serviceAccountName: a\n{% endif %}\n  containers: []\n"));
    }

    #[test]
    fn an_account_that_an_instance_chooses_is_seen_in_patches() {
        for (spec, is_chosen) in [
            ("{serviceAccountName: \"{{ spec.a }}\"}", true),
            ("{serviceAccount: \"{{ let.account }}\"}", true),
            ("{serviceAccount: \"{{ children.c.data.a }}\"}", true),
            ("\"{{ spec.b }}\"", true),
            ("{serviceAccountName: \"{{ defaults.account }}\"}", false),
            ("{containers: \"{{ spec.b.c }}\"}", false),
        ] {
            let merge = format!("{{spec: {{template: {{spec: {spec}}}}}}}");
            let step = format!(
                "{{name: p, patch: {{apiVersion: apps/v1, kind: Deployment, name: x, merge: {merge}}}}}"
            );
            assert_eq!(chooses("operator.yaml", "spec: {}\n", &step), is_chosen, "{spec}");
        }
    }
}

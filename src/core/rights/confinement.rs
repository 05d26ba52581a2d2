//! The admission policy that confines the manager's own account. RBAC limits the account's writes to names;
//! the policy limits what the account writes under these names, and into CRDs that a package names. The
//! account has no right to the policy itself: whoever installs the manager applies it.

use serde_json::{Value, json};

use super::manager::{OWN_CRDS, WEBHOOK};
use super::objects::EXTENSIONS;
use super::{MANAGER, user};
use crate::children::names;
use crate::plan::crds::{admission_binding, admission_policy};

/// The name of the policy and of its binding, for the manager in that namespace.
pub fn name(namespace: &str) -> String {
    format!("{namespace}.manager.operetta.dev")
}

/// The policy and its binding, for the manager in that namespace.
pub fn objects(namespace: &str) -> [Value; 2] {
    let name = name(namespace);
    let rule = |group: &str, resource: &str| {
        json!({
            "apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [resource],
            "scope": "*",
        })
    };
    let rules = json!([rule(EXTENSIONS, "customresourcedefinitions"), rule("", "secrets")]);
    let list = |names: &[&str]| json!(names).to_string().replace('"', "'");
    let label = names::OPERATOR;
    let labelled =
        |object: &str| format!("has({object}.metadata.labels) && '{label}' in {object}.metadata.labels");
    let variables = json!([
        {"name": "isSecret", "expression": "request.resource.resource == 'secrets'"},
        {"name": "isNew", "expression": "request.operation == 'CREATE'"},
        {"name": "isOwn", "expression": format!("object.metadata.name in {}", list(&OWN_CRDS))},
        {"name": "group", "expression": "object.spec.group"},
        {
            "name": "isAdoptable",
            "expression": format!(
                "{} || has(oldObject.metadata.annotations) && '{adopt}' in oldObject.metadata.annotations && \
                 oldObject.metadata.annotations['{adopt}'] == 'true'",
                labelled("oldObject"), adopt = names::ADOPT
            ),
        },
        {
            "name": "webhook",
            "expression": "has(object.spec.conversion) && has(object.spec.conversion.webhook) && \
                has(object.spec.conversion.webhook.clientConfig) ? [object.spec.conversion.webhook.clientConfig] : []",
        },
        {
            "name": "oldWebhook",
            "expression": "!variables.isNew && has(oldObject.spec.conversion) && has(oldObject.spec.conversion.webhook) && \
                has(oldObject.spec.conversion.webhook.clientConfig) ? [oldObject.spec.conversion.webhook.clientConfig] : []",
        },
    ]);
    let refused = |expression: String, message: &str| json!({"expression": expression, "message": message, "reason": "Forbidden"});
    let validations = vec![
        refused(
            format!("variables.isSecret || variables.isOwn || {}", labelled("object")),
            "the manager writes only its own CustomResourceDefinitions and those that it labels with their package",
        ),
        refused(
            "variables.isSecret || variables.isOwn || variables.group != 'operetta.dev' && variables.group != 'k8s.io' && \
             !variables.group.endsWith('.k8s.io') && !variables.group.endsWith('.kubernetes.io')"
                .to_owned(),
            "the manager writes no CustomResourceDefinition of a group of Kubernetes or of Operetta for a package",
        ),
        refused(
            "variables.isSecret || variables.isNew || variables.isOwn || variables.isAdoptable".to_owned(),
            "this CustomResourceDefinition was not made by Operetta: to let it be adopted (`adopt: true`), annotate it with \
             operetta.dev/adopt=true",
        ),
        refused(
            format!(
                "variables.isSecret || variables.webhook == variables.oldWebhook || variables.webhook.all(c, \
                 has(c.service) && c.service.namespace == '{namespace}' && c.service.name == '{WEBHOOK}')"
            ),
            "the manager sets no conversion webhook but its own",
        ),
        refused(
            format!(
                "!variables.isSecret || object.metadata.namespace == '{namespace}' && object.metadata.name in {} && \
                 (!has(object.type) || object.type == 'Opaque')",
                list(&[names::KEY_SECRET, WEBHOOK])
            ),
            "the manager writes only its own Secrets, of type Opaque",
        ),
    ];
    let mut policy = admission_policy(&name, &rules, &variables, &validations);
    policy["spec"]["matchConditions"] = json!([{
        "name": "account",
        "expression": format!("request.userInfo.username == '{}'", user(namespace, MANAGER)),
    }]);
    [policy, admission_binding(&name)]
}

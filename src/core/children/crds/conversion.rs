//! The conversion of a CRD: the rules of its package, and the webhook that applies them.

use serde_json::{Value, json};

use super::model::WebhookState;
use crate::children::names;
use crate::crd::{self, Conversion};
use crate::diag::Diagnostic;
use crate::package::Resource;

/// What Operetta writes into a CRD about its conversion.
#[derive(Debug)]
pub(super) enum Wanted {
    /// No conversion.
    Nothing,
    /// This `spec.conversion`, and these rules in the annotation.
    Conversion(Value, Option<String>),
    /// The webhook is not ready.
    Starting,
    /// The package needs a webhook, and the manager serves none.
    Refused(Diagnostic),
}

/// Decides which conversion the CRD of a resource should have.
pub(super) fn wanted(resource: &Resource, live: Option<&Value>, webhook: WebhookState<'_>) -> Wanted {
    let of_live = live.map(|live| &live["spec"]["conversion"]).filter(|conversion| !conversion.is_null());
    let rules = live.and_then(|live| live["metadata"]["annotations"][names::CONVERSION].as_str());
    let Some(conversion) = &resource.conversion else {
        // An earlier version of the package declared the conversion: it is removed.
        return match rules {
            Some(_) if resource.crd["spec"]["conversion"].is_null() => {
                Wanted::Conversion(json!({"strategy": "None"}), None)
            }
            _ => Wanted::Nothing,
        };
    };
    match webhook {
        WebhookState::Foreign => match of_live {
            Some(of_live) => Wanted::Conversion(of_live.clone(), rules.map(str::to_owned)),
            None => Wanted::Nothing,
        },
        WebhookState::Starting => Wanted::Starting,
        WebhookState::Absent => {
            let name = resource.crd_name();
            let message = format!(
                "the CRD {name} declares a conversion between its versions, and this manager serves no conversion webhook"
            );
            let problem = Diagnostic::error("crd::no-webhook", message).help(
                "start the manager with --webhook-listen, and with --webhook-service or --webhook-url, by which API servers \
                 reach it",
            );
            Wanted::Refused(problem.located(resource.crd_location.clone()))
        }
        WebhookState::Up(client) => {
            let (spec, rules) = served(conversion, resource.crd_name(), client);
            Wanted::Conversion(spec, Some(rules))
        }
    }
}

/// `spec.conversion` and the annotation. The path names the rules, so that a request of an API server that has not seen a
/// change of the CRD is answered by the former rules.
fn served(conversion: &Conversion, crd: &str, client: &Value) -> (Value, String) {
    let rules = serde_json::to_string(conversion).unwrap_or_default();
    let path = format!("/convert/{crd}/{}", names::short_hash(&rules, 16));
    let mut client = client.clone();
    if let Some(url) = client["url"].as_str() {
        client["url"] = format!("{url}{path}").into();
    } else {
        client["service"]["path"] = path.into();
    }
    let spec = json!({
        "strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client},
    });
    (spec, rules)
}

/// The conversion while the CRD still has these versions, which the package removes and objects are stored
/// in; an error if nothing can convert them.
pub(super) fn interim(
    resource: &Resource,
    live: &Value,
    removed: &[&str],
    webhook: WebhookState<'_>,
) -> Result<Option<(Value, String)>, Diagnostic> {
    let of_live: Option<Conversion> = live["metadata"]["annotations"][names::CONVERSION]
        .as_str()
        .and_then(|rules| serde_json::from_str(rules).ok());
    let converts = live["spec"]["conversion"]["strategy"] == "Webhook";
    let storage = crd::storage_version(&resource.crd).unwrap_or_default();
    let impossible = || {
        let name = resource.crd_name();
        let removed = removed.join(", ");
        let message = format!(
            "the CRD {name} stays as it is: objects are stored as {removed}, which the package removes, and nothing converts \
             them to {storage}"
        );
        Diagnostic::error("crd::unconverted", message)
            .help(format!(
                "first make a version of the package active that has {removed} and {storage}, with `storage: true` for \
                 {storage} and a conversion between them"
            ))
            .located(resource.crd_location.clone())
    };
    match (&resource.conversion, of_live, converts) {
        // Without any conversion the schemas are compared. A webhook of the author's own is left alone.
        (None, _, false) | (None, None, true) => Ok(None),
        (None, Some(rules), true) if rules.knows(storage) => {
            let text = serde_json::to_string(&rules).unwrap_or_default();
            Ok(Some((live["spec"]["conversion"].clone(), text)))
        }
        (Some(own), Some(rules), true) => {
            let all = own.clone().with_versions_of(&rules, removed).ok_or_else(impossible)?;
            match webhook {
                WebhookState::Up(client) => Ok(Some(served(&all, resource.crd_name(), client))),
                _ => Ok(None),
            }
        }
        _ => Err(impossible()),
    }
}

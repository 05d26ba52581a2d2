//! The rules for `LimitRange`s and `ResourceQuota`s.

use std::collections::BTreeSet;
use std::iter::repeat_n;

use operetta_kube_model::Fault;
use operetta_kube_model::facts::{items, text};
use operetta_kube_model::quantity::Quantity;
use operetta_kube_model::validation::qualified_name;
use serde_json::Value;

use super::checks::{Faults, is_empty};

/// Resources of which quotas count objects.
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Resources of which quotas add up what pods ask for.
const OF_PODS: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// Other resources of which quotas add up amounts.
const OF_STORAGE: [&str; 4] =
    ["ephemeral-storage", "requests.ephemeral-storage", "limits.ephemeral-storage", "requests.storage"];

/// What quotas can be about.
const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Whether a name without a prefix is that of a resource of quotas.
fn is_of_quotas(name: &str) -> bool {
    COUNTED.contains(&name)
        || OF_PODS.contains(&name)
        || OF_STORAGE.contains(&name)
        || is_huge_pages(name)
        || name.starts_with("requests.hugepages-")
}

/// Whether a resource is one of Kubernetes.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether a resource is one that somebody else has added.
fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && qualified_name(&format!("requests.{name}")).is_none()
}

fn resource_name(name: &str, path: &str, faults: &mut Faults) {
    if let Some(why) = qualified_name(name) {
        faults.push(Fault::invalid(path, name, why));
    } else if !name.contains('/') && !is_of_quotas(name) && name != "storage" {
        faults.push(Fault::invalid(path, name, "must be a standard resource type or fully qualified"));
    }
}

fn container_resource(name: &str, path: &str, faults: &mut Faults) {
    resource_name(name, path, faults);
    let is_standard = ["cpu", "memory", "ephemeral-storage"].contains(&name) || is_huge_pages(name);
    if !name.contains('/') && !is_standard {
        faults.push(Fault::invalid(path, name, "must be a standard resource for containers"));
    } else if !is_native(name) && !is_extended(name) {
        faults.push(Fault::invalid(path, name, "doesn't follow extended resource name standard"));
    }
}

fn quantity(value: &Value) -> Quantity {
    Quantity::saturating(text(value)).unwrap_or_default()
}

/// The value in thousandths, rounded up.
fn thousandths(quantity: Quantity) -> i128 {
    const NANOS: i128 = 1_000_000;
    quantity.nanos().div_euclid(NANOS) + i128::from(quantity.nanos().rem_euclid(NANOS) > 0)
}

/// The rules for the spec of a `LimitRange`.
pub(super) fn limit_range(spec: &Value, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (at, limit) in items(&spec["limits"]).iter().enumerate() {
        let path = format!("spec.limits[{at}]");
        let (kind, at_kind) = (text(&limit["type"]), format!("{path}.type"));
        if let Some(why) = qualified_name(kind) {
            faults.push(Fault::invalid(&*at_kind, kind, why));
        } else if !kind.contains('/') && !["Pod", "Container", "PersistentVolumeClaim"].contains(&kind) {
            let why = "must be a standard limit type or fully qualified";
            faults.push(Fault::invalid(&*at_kind, kind, why));
        }
        if !seen.insert(kind) {
            faults.push(Fault::duplicate(at_kind, kind));
        }
        let mut names = BTreeSet::new();
        for list in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
            if kind == "Pod" && list.starts_with("default") {
                if !is_empty(&limit[list]) {
                    let why = "may not be specified when `type` is 'Pod'";
                    faults.push(Fault::forbidden(format!("{path}.{list}"), why));
                }
                continue;
            }
            if list == "maxLimitRequestRatio"
                && kind == "PersistentVolumeClaim"
                && ["min", "max"].iter().all(|bound| limit[*bound]["storage"].is_null())
            {
                let why = "either minimum or maximum storage value is required, but neither was provided";
                faults.push(Fault::required(format!("{path}.limits"), why));
            }
            for name in limit[list].as_object().into_iter().flatten().map(|(name, _)| name.as_str()) {
                let path = format!("{path}.{list}[{name}]");
                if ["Pod", "Container"].contains(&kind) {
                    container_resource(name, &path, faults);
                } else {
                    resource_name(name, &path, faults);
                }
                names.insert(name);
            }
        }
        for name in names {
            compare(limit, &path, name, faults);
        }
    }
}

/// Checks that the bounds and defaults for a resource fit each other.
fn compare(limit: &Value, path: &str, name: &str, faults: &mut Faults) {
    let of = |list: &str| limit[list].get(name).map(quantity);
    let (min, max, ratio) = (of("min"), of("max"), of("maxLimitRequestRatio"));
    let (default, request) = match text(&limit["type"]) {
        "Pod" => (None, None),
        _ => (of("default"), of("defaultRequest")),
    };
    let mut refuse = |list: &str, shown: Quantity, why: String| {
        faults.push(Fault::invalid(format!("{path}.{list}[{name}]"), shown.to_string(), why));
    };
    // What may not be more than what; the field that is to blame, and its value as the server shows it.
    let orders = [
        ((min, "min"), (max, "max"), "min", min),
        ((min, "min"), (request, "default request"), "defaultRequest", request),
        ((request, "default request"), (max, "max"), "defaultRequest", request),
        ((request, "default request"), (default, "default limit"), "defaultRequest", request),
        ((min, "min"), (default, "default"), "default", min),
        ((default, "default"), (max, "max"), "default", max),
    ];
    for ((low, low_name), (high, high_name), list, shown) in orders {
        if let (Some(low), Some(high), Some(shown)) = (low, high, shown)
            && low > high
        {
            let why = format!("{low_name} value {low} is greater than {high_name} value {high}");
            refuse(list, shown, why);
        }
    }
    if let Some(ratio) = ratio {
        if ratio < Quantity::count(1) {
            refuse("maxLimitRequestRatio", ratio, format!("ratio {ratio} is less than 1"));
        }
        if let (Some(min), Some(max)) = (min, max) {
            let (given, most) = ratios(ratio, min, max);
            if given > most {
                let why = format!("ratio {ratio} is greater than max/min = {most:.6}");
                refuse("maxLimitRequestRatio", ratio, why);
            }
        }
    }
    let may_be_overcommitted = is_native(name) && !is_huge_pages(name);
    if let (Some(default), Some(request)) = (default, request)
        && !may_be_overcommitted
        && default != request
    {
        let why = format!("default value {default} must equal to defaultRequest value {request} in {name}");
        refuse("defaultRequest", request, why);
    }
}

/// A ratio and that of a maximum to a minimum, as the server computes them: in thousandths unless the values are large.
#[allow(clippy::cast_precision_loss)]
fn ratios(ratio: Quantity, min: Quantity, max: Quantity) -> (f64, f64) {
    const LARGE: i128 = 9_223_372_036_854_775; // thousandths of these are not exact in 64 bits
    if [ratio, min, max].iter().all(|value| value.to_int() < LARGE) {
        let [ratio, min, max] = [ratio, min, max].map(|value| thousandths(value) as f64);
        return (ratio / 1000.0, max / min);
    }
    let [ratio, min, max] = [ratio, min, max].map(|value| value.to_int() as f64);
    (ratio, max / min)
}

/// The rules for the spec of a `ResourceQuota`.
pub(super) fn quota(spec: &Value, faults: &mut Faults) {
    amounts(&spec["hard"], "spec.hard", faults);
    let scopes: Vec<&str> = items(&spec["scopes"]).iter().map(text).collect();
    let refuse = |why: &str| Fault::invalid("spec.scopes", spec["scopes"].clone(), why);
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            faults.push(refuse("unsupported scope"));
        }
        faults.extend(repeat_n(refuse("unsupported scope applied to resource"), unfit(spec, scope)));
    }
    faults.extend(repeat_n(refuse("conflicting scopes"), conflicts(&scopes)));
    selector(spec, faults);
}

/// The rules for the status of a `ResourceQuota`.
pub(super) fn quota_status(status: &Value, faults: &mut Faults) {
    for list in ["hard", "used"] {
        amounts(&status[list], &format!("status.{list}"), faults);
    }
}

fn amounts(list: &Value, path: &str, faults: &mut Faults) {
    for (name, value) in list.as_object().into_iter().flatten() {
        let path = format!("{path}[{name}]");
        resource_name(name, &path, faults);
        if !name.contains('/') && !is_of_quotas(name) {
            faults.push(Fault::invalid(&*path, name.as_str(), "must be a standard resource for quota"));
        }
        let amount = quantity(value);
        if amount < Quantity::default() {
            faults.push(Fault::invalid(&*path, amount.to_string(), "must be greater than or equal to 0"));
        }
        let is_counted = COUNTED.contains(&name.as_str()) || is_extended(name);
        if is_counted && thousandths(amount) % 1000 != 0 {
            faults.push(Fault::invalid(path, amount.to_string(), "must be an integer"));
        }
    }
}

/// How many of the resources of a quota a scope does not have.
fn unfit(spec: &Value, scope: &str) -> usize {
    let fits = |name: &str| match scope {
        "BestEffort" => name == "pods",
        "VolumeAttributesClass" => ["persistentvolumeclaims", "requests.storage"].contains(&name),
        scope if SCOPES.contains(&scope) => name == "pods" || OF_PODS.contains(&name),
        _ => true,
    };
    let names = spec["hard"].as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    names.filter(|name| is_of_quotas(name) && !fits(name)).count()
}

/// How many pairs of scopes exclude each other.
fn conflicts(scopes: &[&str]) -> usize {
    let pairs = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];
    pairs.iter().filter(|pair| pair.iter().all(|scope| scopes.contains(scope))).count()
}

/// The rules for the scopes that a quota selects.
fn selector(spec: &Value, faults: &mut Faults) {
    const PATH: &str = "spec.scopeSelector.matchExpressions";
    let requirements = items(&spec["scopeSelector"]["matchExpressions"]);
    let mut scopes = Vec::new();
    for requirement in requirements {
        let [scope, operator] = ["scopeName", "operator"].map(|field| text(&requirement[field]));
        if !SCOPES.contains(&scope) {
            faults.push(Fault::invalid(format!("{PATH}.scopeName"), scope, "unsupported scope"));
        }
        let unfit = unfit(spec, scope);
        let why = "unsupported scope applied to resource";
        faults.extend(repeat_n(Fault::shown(PATH, shown(requirements), why), unfit));
        let is_named = ["PriorityClass", "VolumeAttributesClass"].contains(&scope);
        if SCOPES.contains(&scope) && !is_named && operator != "Exists" {
            let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            faults.push(Fault::invalid(format!("{PATH}.operator"), operator, why));
        }
        let values = &requirement["values"];
        match operator {
            "In" | "NotIn" if is_empty(values) => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                faults.push(Fault::required(format!("{PATH}.values"), why));
            }
            "Exists" | "DoesNotExist" if !is_empty(values) => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                faults.push(Fault::invalid(format!("{PATH}.values"), values.clone(), why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => {
                let why = "not a valid selector operator";
                faults.push(Fault::invalid(format!("{PATH}.operator"), operator, why));
            }
        }
        scopes.push(scope);
    }
    let conflict = Fault::invalid(PATH, spec["scopes"].clone(), "conflicting scopes");
    faults.extend(repeat_n(conflict, conflicts(&scopes)));
}

/// A selector of scopes with the names of Go's fields.
fn shown(requirements: &[Value]) -> String {
    let shown = requirements.iter().map(|requirement| {
        let [scope, operator] = ["scopeName", "operator"].map(|field| Value::from(text(&requirement[field])));
        format!("{{\"ScopeName\":{scope},\"Operator\":{operator},\"Values\":{}}}", requirement["values"])
    });
    format!("{{\"MatchExpressions\":[{}]}}", shown.collect::<Vec<_>>().join(","))
}

/// The warnings about the amounts of a new `ResourceQuota`.
pub(crate) fn quota_warnings(hard: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for name in ["cpu", "memory", "storage", "ephemeral-storage"] {
        let (request, limit) = (format!("requests.{name}"), format!("limits.{name}"));
        let is_short = hard[&request].is_null() && ["cpu", "memory"].contains(&name);
        let request = if is_short { name.to_owned() } else { request };
        if let (Some(least), Some(most)) = (hard.get(&request).map(quantity), hard.get(&limit).map(quantity))
            && least > most
        {
            found.push(format!("ResourceQuota {request} ({least}) should be less than {limit} ({most})"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(check: impl FnOnce(&mut Faults)) -> Vec<String> {
        let mut faults = Vec::new();
        check(&mut faults);
        faults.iter().map(Fault::message).collect()
    }

    fn of_limit(limit: &Value) -> Vec<String> {
        messages(|faults| limit_range(&json!({"limits": [limit]}), faults))
    }

    fn of_quota(spec: &Value) -> Vec<String> {
        messages(|faults| quota(spec, faults))
    }

    #[test]
    fn limits_have_known_types_and_resources() {
        let both = json!({"limits": [{"type": "Pod", "max": {"cpu": "1"}}, {"type": "Pod"}, {"type": "example.com/Thing", "max": {"example.com/x": "1"}}]});
        assert_eq!(
            messages(|faults| limit_range(&both, faults)),
            ["spec.limits[1].type: Duplicate value: \"Pod\""]
        );
        assert_eq!(
            of_limit(&json!({"type": "Thing"})),
            [
                "spec.limits[0].type: Invalid value: \"Thing\": must be a standard limit type or fully qualified"
            ]
        );
        assert_eq!(
            of_limit(
                &json!({"type": "Container", "min": {"gold": "1", "pods": "1", "hugepages-2Mi": "2Mi", "example.com/x": "1", "requests.example.com/x": "1"}})
            ),
            [
                "spec.limits[0].min[gold]: Invalid value: \"gold\": must be a standard resource type or fully qualified",
                "spec.limits[0].min[gold]: Invalid value: \"gold\": must be a standard resource for containers",
                "spec.limits[0].min[pods]: Invalid value: \"pods\": must be a standard resource for containers",
                "spec.limits[0].min[requests.example.com/x]: Invalid value: \"requests.example.com/x\": doesn't follow extended resource name standard",
            ]
        );
        assert_eq!(
            of_limit(&json!({"type": "Pod", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}})),
            [
                "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
                "spec.limits[0].defaultRequest: Forbidden: may not be specified when `type` is 'Pod'",
            ]
        );
        assert_eq!(
            of_limit(&json!({"type": "PersistentVolumeClaim", "max": {"cpu": "1"}})),
            [
                "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided"
            ]
        );
    }

    #[test]
    fn bounds_and_defaults_fit_each_other() {
        let limit = json!({"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}, "default": {"cpu": "1500m"},
            "defaultRequest": {"cpu": "1600m"}, "maxLimitRequestRatio": {"cpu": "900m"}});
        assert_eq!(
            of_limit(&limit),
            [
                "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
                "spec.limits[0].defaultRequest[cpu]: Invalid value: \"1600m\": min value 2 is greater than default request value 1600m",
                "spec.limits[0].defaultRequest[cpu]: Invalid value: \"1600m\": default request value 1600m is greater than max value 1",
                "spec.limits[0].defaultRequest[cpu]: Invalid value: \"1600m\": default request value 1600m is greater than default limit value 1500m",
                "spec.limits[0].default[cpu]: Invalid value: \"2\": min value 2 is greater than default value 1500m",
                "spec.limits[0].default[cpu]: Invalid value: \"1\": default value 1500m is greater than max value 1",
                "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"900m\": ratio 900m is less than 1",
                "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"900m\": ratio 900m is greater than max/min = 0.500000",
            ]
        );
        let fits = json!({"type": "Container", "min": {"memory": "1Gi"}, "max": {"memory": "4Gi"}, "maxLimitRequestRatio": {"memory": "4"}});
        assert!(of_limit(&fits).is_empty());
        // Whatever the ratio is, a maximum is infinitely more than nothing.
        let zero = json!({"type": "Container", "min": {"cpu": "0"}, "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "9"}});
        assert!(of_limit(&zero).is_empty());
        let pages = |request: &str| json!({"type": "Container", "default": {"hugepages-2Mi": "4Mi"}, "defaultRequest": {"hugepages-2Mi": request}});
        assert_eq!(
            of_limit(&pages("2Mi")),
            [
                "spec.limits[0].defaultRequest[hugepages-2Mi]: Invalid value: \"2Mi\": default value 4Mi must equal to defaultRequest value 2Mi in hugepages-2Mi"
            ]
        );
        assert!(of_limit(&pages("4Mi")).is_empty());
    }

    #[test]
    fn quotas_have_known_resources_and_whole_numbers_of_objects() {
        let hard = json!({"pods": "9", "requests.cpu": "500m", "count/gadgets.example.org": "9", "requests.nvidia.com/gpu": "4",
            "gold.storageclass.storage.k8s.io/requests.storage": "1Gi", "hugepages-2Mi": "2Mi"});
        assert!(of_quota(&json!({"hard": hard})).is_empty());
        for (name, value, wanted) in [
            (
                "gold",
                "1",
                &[
                    "\"gold\": must be a standard resource type or fully qualified",
                    "\"gold\": must be a standard resource for quota",
                ][..],
            ),
            ("storage", "1Gi", &["\"storage\": must be a standard resource for quota"]),
            ("pods", "1500m", &["\"1500m\": must be an integer"]),
            ("count/jobs.batch", "100u", &["\"100u\": must be an integer"]),
            ("cpu", "-1", &["\"-1\": must be greater than or equal to 0"]),
        ] {
            let wanted: Vec<String> =
                wanted.iter().map(|why| format!("spec.hard[{name}]: Invalid value: {why}")).collect();
            assert_eq!(of_quota(&json!({"hard": {name: value}})), wanted);
            let status = json!({"used": {name: value}});
            let wanted: Vec<String> =
                wanted.iter().map(|why| why.replacen("spec.hard", "status.used", 1)).collect();
            assert_eq!(messages(|faults| quota_status(&status, faults)), wanted);
        }
    }

    #[test]
    fn scopes_of_quotas_fit_their_resources_and_each_other() {
        let spec = json!({"hard": {"pods": "1", "cpu": "1", "secrets": "1"}, "scopes": ["BestEffort", "NotBestEffort", "Other"]});
        let shown = "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\",\"Other\"]";
        assert_eq!(
            of_quota(&spec),
            [
                "unsupported scope applied to resource",
                "unsupported scope applied to resource",
                "unsupported scope applied to resource",
                "unsupported scope",
                "conflicting scopes",
            ]
            .map(|why| format!("{shown}: {why}"))
        );
        let of_claims = json!({"hard": {"persistentvolumeclaims": "1", "requests.storage": "1Gi"}, "scopes": ["VolumeAttributesClass"]});
        assert!(of_quota(&of_claims).is_empty());
    }

    #[test]
    fn selectors_of_scopes_have_operators_and_values() {
        let of = |scope: &str, operator: &str, values: Value| {
            let one = json!({"scopeName": scope, "operator": operator, "values": values});
            of_quota(&json!({"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [one]}}))
        };
        let path = "spec.scopeSelector.matchExpressions";
        assert!(of("PriorityClass", "In", json!(["high"])).is_empty());
        assert!(of("Terminating", "Exists", Value::Null).is_empty());
        assert_eq!(
            of("PriorityClass", "NotIn", json!([])),
            [format!(
                "{path}.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
            )]
        );
        assert_eq!(
            of("PriorityClass", "Exists", json!(["high"])),
            [format!(
                "{path}.values: Invalid value: [\"high\"]: must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
            )]
        );
        assert_eq!(
            of("Other", "Near", Value::Null),
            [
                format!("{path}.scopeName: Invalid value: \"Other\": unsupported scope"),
                format!("{path}.operator: Invalid value: \"Near\": not a valid selector operator"),
            ]
        );
        let found = of("VolumeAttributesClass", "Exists", Value::Null);
        assert_eq!(
            found,
            [format!(
                "{path}: Invalid value: {{\"MatchExpressions\":[{{\"ScopeName\":\"VolumeAttributesClass\",\"Operator\":\"Exists\",\"Values\":null}}]}}: unsupported scope applied to resource"
            )]
        );
        let found = of("BestEffort", "In", json!(["a"]));
        assert!(
            found.len() == 1
                && found[0]
                    .starts_with(&format!("{path}.operator: Invalid value: \"In\": must be 'Exists' when"))
        );
    }

    #[test]
    fn quotas_of_requests_above_limits_are_warned_about() {
        let hard = json!({"cpu": "3", "limits.cpu": "2", "requests.memory": "1Gi", "limits.memory": "1Gi"});
        assert_eq!(quota_warnings(&hard), ["ResourceQuota cpu (3) should be less than limits.cpu (2)"]);
    }
}

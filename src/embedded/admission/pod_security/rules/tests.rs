//! Violations with their texts, by level and version.

use serde_json::json;

use super::*;

fn broken(level: Level, minor: u32, pod: &Value) -> Vec<String> {
    let found = violations(Policy { level, minor }, pod);
    found.iter().map(|violation| format!("{}: {}", violation.reason, violation.detail)).collect()
}

fn container(context: &Value) -> Value {
    json!({"spec": {"containers": [{"name": "a", "securityContext": context}]}})
}

#[test]
fn baseline_forbids_what_reaches_the_host() {
    let base = |pod: Value| broken(Level::Baseline, LATEST, &pod);
    for (context, wanted) in [
        (
            json!({"privileged": true}),
            "privileged: container \"a\" must not set securityContext.privileged=true",
        ),
        (
            json!({"capabilities": {"add": ["SYS_ADMIN", "CHOWN", "NET_RAW"]}}),
            "non-default capabilities: container \"a\" must not include \"NET_RAW\", \"SYS_ADMIN\" in securityContext.capabilities.add",
        ),
        (
            json!({"procMount": "Unmasked"}),
            "procMount: container \"a\" must not set securityContext.procMount to \"Unmasked\"",
        ),
        (
            json!({"seLinuxOptions": {"type": "t", "role": "r"}}),
            "seLinuxOptions: container \"a\" set forbidden securityContext.seLinuxOptions: type \"t\"; role may not be set",
        ),
        (
            json!({"seccompProfile": {"type": "Unconfined"}}),
            "seccompProfile: container \"a\" must not set securityContext.seccompProfile.type to \"Unconfined\"",
        ),
        (
            json!({"appArmorProfile": {"type": "Unconfined"}}),
            "forbidden AppArmor profile: container \"a\" must not set AppArmor profile type to \"Unconfined\"",
        ),
        (
            json!({"windowsOptions": {"hostProcess": true}}),
            "hostProcess: container \"a\" must not set securityContext.windowsOptions.hostProcess=true",
        ),
    ] {
        assert_eq!(base(container(&context)), [wanted]);
    }
    let host = json!({"spec": {"hostNetwork": true, "hostIPC": true, "volumes": [{"name": "v", "hostPath": {}}],
    "securityContext": {"sysctls": [{"name": "kernel.x"}]},
    "containers": [
        {"name": "b", "ports": [{"hostPort": 80}, {"hostPort": 443}]},
        {"name": "a", "ports": [{"hostPort": 80}], "livenessProbe": {"httpGet": {"host": "h"}}},
    ]}});
    assert_eq!(
        base(host),
        [
            "host namespaces: hostNetwork=true, hostIPC=true",
            "hostPath volumes: volume \"v\"",
            "hostPort: containers \"b\", \"a\" use hostPorts 443, 80",
            "probe or lifecycle host: container \"a\" uses probe or lifecycle host \"h\"",
            "forbidden sysctls: kernel.x",
        ]
    );
    assert_eq!(base(container(&json!({}))), Vec::<String>::new());
}

#[test]
fn restricted_requires_the_settings() {
    let plain = container(&json!({}));
    let wanted = [
        "allowPrivilegeEscalation != false: container \"a\" must set securityContext.allowPrivilegeEscalation=false",
        "unrestricted capabilities: container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]",
        "runAsNonRoot != true: pod or container \"a\" must set securityContext.runAsNonRoot=true",
        "seccompProfile: pod or container \"a\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
    ];
    assert_eq!(broken(Level::Restricted, 35, &plain), wanted);
    let mut good = container(&json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}));
    good["spec"]["securityContext"] =
        json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    assert_eq!(broken(Level::Restricted, 35, &good), Vec::<String>::new());
    good["spec"]["volumes"] =
        json!([{"name": "a", "nfs": {}}, {"name": "b", "hostPath": {}}, {"name": "c", "secret": {}}]);
    good["spec"]["securityContext"]["runAsUser"] = 0.into();
    assert_eq!(
        broken(Level::Restricted, 35, &good),
        [
            "restricted volume types: volumes \"a\", \"b\" use restricted volume types \"hostPath\", \"nfs\"",
            "runAsUser=0: pod must not set runAsUser=0",
        ]
    );
}

#[test]
fn older_versions_have_fewer_rules() {
    let plain = container(&json!({"procMount": "Unmasked"}));
    let reasons = |minor: u32, pod: &Value| {
        let found = violations(Policy { level: Level::Restricted, minor }, pod);
        found.iter().map(|violation| violation.reason).collect::<Vec<_>>()
    };
    assert_eq!(reasons(7, &plain), ["procMount", "runAsNonRoot != true"]);
    let (escalation, root) = ("allowPrivilegeEscalation != false", "runAsNonRoot != true");
    assert_eq!(reasons(18, &plain), ["procMount", escalation, root]);
    assert_eq!(reasons(19, &plain), ["procMount", escalation, root, "seccompProfile"]);
    let capabilities = "unrestricted capabilities";
    assert_eq!(reasons(34, &plain), ["procMount", escalation, capabilities, root, "seccompProfile"]);
    let mut isolated = plain;
    isolated["spec"]["hostUsers"] = false.into();
    assert_eq!(reasons(35, &isolated), [escalation, capabilities, "procMount", "seccompProfile"]);
    assert_eq!(broken(Level::Baseline, 35, &isolated), Vec::<String>::new());
    assert_eq!(broken(Level::Baseline, 34, &isolated).len(), 1);
    let old =
        json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}});
    assert_eq!(
        broken(Level::Baseline, 18, &old),
        ["seccompProfile: forbidden annotation seccomp.security.alpha.kubernetes.io/pod=\"unconfined\""]
    );
}

//! Validation rules of the API server for built-in kinds that their schemas do not contain. Only rules that hold in
//! every version that serves the kind, and in every case.

/// The kinds whose pods always restart.
const WORKLOADS: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"];

/// The required fields of the object at that path (items of lists are `[]`).
pub(super) fn required(kind: &str, path: &str) -> &'static [&'static str] {
    match (kind, path) {
        ("Job", "spec.template.spec") | ("CronJob", "spec.jobTemplate.spec.template.spec") => {
            &["restartPolicy"]
        }
        ("PersistentVolumeClaim" | "Service", "") => &["spec"],
        ("PersistentVolumeClaim", "spec") | ("StatefulSet", "spec.volumeClaimTemplates[].spec") => {
            &["accessModes", "resources"]
        }
        ("PersistentVolumeClaim", "spec.resources")
        | ("StatefulSet", "spec.volumeClaimTemplates[].spec.resources") => &["requests"],
        _ if path.ends_with("spec.containers[]") || path.ends_with("spec.initContainers[]") => &["image"],
        _ => &[],
    }
}

/// Fields that the schema requires although the server does not.
pub(super) fn may_lack(field: &str, path: &str) -> bool {
    matches!(field, "revision" | "lun" | "seconds" | "limits")
        || (field == "value" && path.ends_with("httpHeaders[]"))
}

/// The allowed values of the field at that path.
pub(super) fn choices(kind: &str, path: &str) -> Option<&'static [&'static str]> {
    match (kind, path) {
        ("Job", "spec.template.spec.restartPolicy")
        | ("CronJob", "spec.jobTemplate.spec.template.spec.restartPolicy") => Some(&["Never", "OnFailure"]),
        ("ClusterRoleBinding", "roleRef.kind") => Some(&["ClusterRole"]),
        ("RoleBinding", "roleRef.kind") => Some(&["ClusterRole", "Role"]),
        (kind, "spec.template.spec.restartPolicy") if WORKLOADS.contains(&kind) => Some(&["Always"]),
        _ => None,
    }
}

/// The minimum and maximum of an integer field.
pub(super) fn range(field: &str, format: Option<&str>) -> (i64, i64) {
    let most = if format == Some("int32") { i64::from(i32::MAX) } else { i64::MAX };
    match field {
        "port" | "containerPort" => (1, 65_535),
        // 0 is equivalent to absent.
        "targetPort" | "hostPort" | "nodePort" | "healthCheckNodePort" => (0, 65_535),
        "mode" | "defaultMode" => (0, 0o777),
        "maxReplicas" => (1, most),
        "runAsUser" | "runAsGroup" | "fsGroup" => (0, i64::from(i32::MAX)),
        "replicas"
        | "minReplicas"
        | "minReadySeconds"
        | "revisionHistoryLimit"
        | "backoffLimit"
        | "parallelism"
        | "completions"
        | "ttlSecondsAfterFinished"
        | "progressDeadlineSeconds"
        | "initialDelaySeconds"
        | "periodSeconds"
        | "timeoutSeconds"
        | "successThreshold"
        | "failureThreshold"
        | "successfulJobsHistoryLimit"
        | "failedJobsHistoryLimit"
        | "minAvailable"
        | "maxUnavailable"
        | "maxSurge"
        | "startingDeadlineSeconds" => (0, most),
        _ if format == Some("int32") => (i64::from(i32::MIN), most),
        _ => (i64::MIN, i64::MAX),
    }
}

//! The rules of the levels `baseline` and `restricted`, in the order of kube-apiserver's messages.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

use operetta_kube_model::facts::{BASELINE_CAPABILITIES, items, text};
use serde_json::Value;

/// The version of the rules that is called `latest`.
pub(super) const LATEST: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Privileged,
    Baseline,
    Restricted,
}

/// A level with the minor version of its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) level: Level,
    pub(super) minor: u32,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        if self.minor == LATEST {
            write!(f, "{level}:latest")
        } else {
            write!(f, "{level}:v1.{}", self.minor)
        }
    }
}

/// The version that has changed a rule last.
const NEWEST: u32 = 35;

/// A rule that a pod breaks.
#[derive(Debug)]
pub(super) struct Violation {
    pub(super) reason: &'static str,
    pub(super) detail: String,
}

type Found = Option<Violation>;

fn violation(reason: &'static str) -> impl Fn(String) -> Violation {
    move |detail| Violation { reason, detail }
}

/// The rules that a pod or template breaks.
pub(super) fn violations<'a>(policy: Policy, template: &'a Value) -> Vec<Violation> {
    if policy.level == Level::Privileged {
        return Vec::new();
    }
    let minor = policy.minor.min(NEWEST);
    let pod = Pod::of(template, minor);
    let restricted = policy.level == Level::Restricted;
    let is_windows = minor >= 25 && pod.spec["os"]["name"] == "windows";
    let has_own_users = minor >= 35 && pod.spec["hostUsers"] == false;
    let when = |applies: bool, check: fn(&Pod<'a>) -> Found| if applies { check(&pod) } else { None };
    let checks = [
        when(true, Pod::app_armor),
        when(!restricted || minor < 22, Pod::capabilities),
        when(true, Pod::host_namespaces),
        when(!restricted, Pod::host_paths),
        when(true, Pod::host_ports),
        when(minor >= 34, Pod::hosts_of_probes),
        when(true, Pod::privileged),
        when(!has_own_users && (!restricted || minor < 35), Pod::proc_mount),
        when(true, Pod::se_linux),
        when(minor < 19, Pod::seccomp_annotations),
        when(!restricted && minor >= 19, Pod::seccomp),
        when(true, Pod::sysctls),
        when(true, Pod::host_process),
        when(restricted && minor >= 8 && !is_windows, Pod::privilege_escalation),
        when(restricted && minor >= 22 && !is_windows, Pod::dropped_capabilities),
        when(restricted && minor >= 35, Pod::proc_mount),
        when(restricted, Pod::volumes),
        when(restricted && !has_own_users, Pod::non_root),
        when(restricted && minor >= 23 && !has_own_users, Pod::user),
        when(restricted && minor >= 19 && !is_windows, Pod::seccomp_set),
    ];
    checks.into_iter().flatten().collect()
}

fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

/// `"a", "b"`
fn quoted<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names = names.into_iter().map(|name| format!("\"{}\"", name.as_ref()));
    names.collect::<Vec<_>>().join(", ")
}

/// `containers "a", "b"`
fn containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

/// `volumes "a", "b"`
fn volumes(names: &[&str]) -> String {
    format!("{} {}", plural("volume", "volumes", names.len()), quoted(names))
}

/// `containers "a", "b" use hostPorts 80, 443`: how many use how many, and `what` in the singular.
fn uses(who: &str, users: usize, what: &str, count: usize, values: &str) -> String {
    format!("{who} {} {what}{} {values}", plural("uses", "use", users), plural("", "s", count))
}

/// The parts with a separator between them, if there are any.
fn joined(parts: &[String], separator: &str) -> Option<String> {
    (!parts.is_empty()).then(|| parts.join(separator))
}

/// Whether a profile of `AppArmor` or seccomp is set and does not confine a container.
fn is_unconfined(profile: &Value) -> bool {
    profile.is_object() && !["RuntimeDefault", "Localhost"].contains(&text(&profile["type"]))
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    items(list).iter().map(text)
}

/// The security context of a container.
fn context(container: &Value) -> &Value {
    &container["securityContext"]
}

/// A pod or the template of one.
struct Pod<'a> {
    annotations: &'a Value,
    spec: &'a Value,
    containers: Vec<&'a Value>,
    minor: u32,
}

impl<'a> Pod<'a> {
    fn of(template: &'a Value, minor: u32) -> Self {
        let spec = &template["spec"];
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        Self {
            annotations: &template["metadata"]["annotations"],
            spec,
            containers: lists.iter().flat_map(|list| items(&spec[*list])).collect(),
            minor,
        }
    }

    /// The names of the containers that fulfil a condition.
    fn names(&self, is_bad: impl Fn(&Value) -> bool) -> Vec<&'a str> {
        let bad = self.containers.iter().filter(|container| is_bad(container));
        bad.map(|container| text(&container["name"])).collect()
    }

    /// The security contexts of the pod and its containers.
    fn contexts(&self) -> impl Iterator<Item = &'a Value> {
        [context(self.spec)].into_iter().chain(self.containers.iter().map(|container| context(container)))
    }

    /// What the containers that fulfil a condition must do.
    fn containers_must(&self, is_bad: impl Fn(&Value) -> bool, rule: &str) -> Option<String> {
        let names = self.names(is_bad);
        (!names.is_empty()).then(|| format!("{} must {rule}", containers(&names)))
    }

    /// `pod` and the containers whose security contexts fulfil a condition.
    fn setters(&self, is_bad: impl Fn(&Value) -> bool) -> Vec<String> {
        let pod = is_bad(context(self.spec)).then(|| "pod".to_owned());
        let names = self.names(|container| is_bad(context(container)));
        pod.into_iter().chain((!names.is_empty()).then(|| containers(&names))).collect()
    }

    /// What the pod and the containers must do whose security contexts fulfil a condition.
    fn setters_must(&self, is_bad: impl Fn(&Value) -> bool, rule: &str) -> Option<String> {
        let setters = self.setters(is_bad);
        (!setters.is_empty()).then(|| format!("{} must {rule}", setters.join(" and ")))
    }

    /// The containers that have forbidden values, and those.
    fn values(&self, of: impl Fn(&'a Value) -> Vec<String>) -> Option<(Vec<&'a str>, BTreeSet<String>)> {
        let (mut names, mut all) = (Vec::new(), BTreeSet::new());
        for container in &self.containers {
            let values = of(container);
            if !values.is_empty() {
                names.push(text(&container["name"]));
                all.extend(values);
            }
        }
        (!names.is_empty()).then_some((names, all))
    }

    fn app_armor(&self) -> Found {
        let is_bad = |context: &Value| is_unconfined(&context["appArmorProfile"]);
        let mut setters = self.setters(is_bad);
        let types = self.contexts().filter(|context| is_bad(context));
        let types: BTreeSet<&str> = types.map(|context| text(&context["appArmorProfile"]["type"])).collect();
        let annotations = self.annotations.as_object().into_iter().flatten().filter_map(|(key, value)| {
            let value = text(value);
            let is_bad = key.starts_with("container.apparmor.security.beta.kubernetes.io/")
                && !["", "runtime/default"].contains(&value)
                && !value.starts_with("localhost/");
            is_bad.then(|| format!("{key}={value:?}"))
        });
        let annotations: Vec<String> = annotations.collect();
        if !annotations.is_empty() {
            setters.push(plural("annotation", "annotations", annotations.len()).to_owned());
        }
        let values: Vec<String> = types.into_iter().map(str::to_owned).chain(annotations).collect();
        let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len());
        let setters = (!setters.is_empty()).then(|| setters.join(" and "))?;
        Some(violation(reason)(format!("{setters} must not set AppArmor profile type to {}", quoted(values))))
    }

    fn capabilities(&self) -> Found {
        self.added_capabilities(&BASELINE_CAPABILITIES).map(violation("non-default capabilities"))
    }

    fn added_capabilities(&self, allowed: &[&str]) -> Option<String> {
        let (names, added) = self.values(|container| {
            let added = texts(&context(container)["capabilities"]["add"]);
            added.filter(|name| !allowed.contains(name)).map(str::to_owned).collect()
        })?;
        let names = containers(&names);
        Some(format!("{names} must not include {} in securityContext.capabilities.add", quoted(added)))
    }

    fn dropped_capabilities(&self) -> Found {
        let keeps =
            |container: &Value| !texts(&context(container)["capabilities"]["drop"]).any(|name| name == "ALL");
        let missing = self.containers_must(keeps, "set securityContext.capabilities.drop=[\"ALL\"]");
        let added = self.added_capabilities(&["NET_BIND_SERVICE"]);
        let details: Vec<String> = missing.into_iter().chain(added).collect();
        joined(&details, "; ").map(violation("unrestricted capabilities"))
    }

    fn host_namespaces(&self) -> Found {
        let fields = ["hostNetwork", "hostPID", "hostIPC"].into_iter();
        let set = fields.filter(|field| self.spec[*field] == true).map(|field| format!("{field}=true"));
        joined(&set.collect::<Vec<_>>(), ", ").map(violation("host namespaces"))
    }

    fn host_paths(&self) -> Found {
        let mounted = items(&self.spec["volumes"]).iter().filter(|volume| volume["hostPath"].is_object());
        let names: Vec<&str> = mounted.map(|volume| text(&volume["name"])).collect();
        (!names.is_empty()).then(|| violation("hostPath volumes")(volumes(&names)))
    }

    fn host_ports(&self) -> Found {
        let (names, ports) = self.values(|container| {
            let ports = items(&container["ports"]).iter().filter_map(|port| port["hostPort"].as_i64());
            ports.filter(|port| *port != 0).map(|port| port.to_string()).collect()
        })?;
        let (count, shown) = (ports.len(), Vec::from_iter(ports).join(", "));
        Some(violation("hostPort")(uses(&containers(&names), names.len(), "hostPort", count, &shown)))
    }

    fn hosts_of_probes(&self) -> Found {
        let (mut names, hosts) = self.values(|container| {
            let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|name| &container[name]);
            let hooks = ["postStart", "preStop"].map(|name| &container["lifecycle"][name]);
            let handlers = probes.into_iter().chain(hooks);
            let hosts =
                handlers.flat_map(|handler| ["httpGet", "tcpSocket"].map(|way| &handler[way]["host"]));
            hosts.map(text).filter(|host| !host.is_empty()).map(str::to_owned).collect()
        })?;
        names.sort_unstable();
        let what = "probe or lifecycle host";
        let (count, shown) = (hosts.len(), quoted(hosts));
        Some(violation(what)(uses(&containers(&names), names.len(), what, count, &shown)))
    }

    fn privileged(&self) -> Found {
        let is_bad = |container: &Value| context(container)["privileged"] == true;
        self.containers_must(is_bad, "not set securityContext.privileged=true").map(violation("privileged"))
    }

    fn proc_mount(&self) -> Found {
        let (names, types) = self.values(|container| {
            let mount = context(container)["procMount"].as_str().filter(|mount| *mount != "Default");
            mount.into_iter().map(str::to_owned).collect()
        })?;
        let names = containers(&names);
        Some(violation("procMount")(format!(
            "{names} must not set securityContext.procMount to {}",
            quoted(types)
        )))
    }

    fn se_linux(&self) -> Found {
        let allowed = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
        let allowed = if self.minor >= 31 { &allowed[..] } else { &allowed[..4] };
        let has = |options: &Value, field: &str| !text(&options[field]).is_empty();
        let setters = self.setters(|context| {
            let options = &context["seLinuxOptions"];
            !allowed.contains(&text(&options["type"])) || has(options, "user") || has(options, "role")
        });
        if setters.is_empty() {
            return None;
        }
        let all = || self.contexts().map(|context| &context["seLinuxOptions"]);
        let types: BTreeSet<&str> =
            all().map(|options| text(&options["type"])).filter(|kind| !allowed.contains(kind)).collect();
        let mut bad = Vec::new();
        if !types.is_empty() {
            bad.push(format!("{} {}", plural("type", "types", types.len()), quoted(types)));
        }
        for field in ["user", "role"] {
            if all().any(|options| has(options, field)) {
                bad.push(format!("{field} may not be set"));
            }
        }
        let (setters, bad) = (setters.join(" and "), bad.join("; "));
        Some(violation("seLinuxOptions")(format!(
            "{setters} set forbidden securityContext.seLinuxOptions: {bad}"
        )))
    }

    fn seccomp_annotations(&self) -> Found {
        let names = self.containers.iter().map(|container| text(&container["name"]));
        let keys = names.map(|name| format!("container.seccomp.security.alpha.kubernetes.io/{name}"));
        let keys = keys.chain(["seccomp.security.alpha.kubernetes.io/pod".to_owned()]);
        let forbidden: BTreeSet<String> = keys
            .filter_map(|key| {
                let value = self.annotations[&key].as_str()?;
                let is_allowed =
                    ["runtime/default", "docker/default"].contains(&value) || value.starts_with("localhost/");
                (!is_allowed).then(|| format!("{key}={value:?}"))
            })
            .collect();
        if forbidden.is_empty() {
            return None;
        }
        let word = plural("annotation", "annotations", forbidden.len());
        Some(violation("seccompProfile")(format!(
            "forbidden {word} {}",
            Vec::from_iter(forbidden).join(", ")
        )))
    }

    fn seccomp(&self) -> Found {
        let is_bad = |context: &Value| is_unconfined(&context["seccompProfile"]);
        let types = self.contexts().filter(|context| is_bad(context));
        let types: BTreeSet<&str> = types.map(|context| text(&context["seccompProfile"]["type"])).collect();
        let rule = format!("not set securityContext.seccompProfile.type to {}", quoted(types));
        self.setters_must(is_bad, &rule).map(violation("seccompProfile"))
    }

    /// A profile must be set.
    fn seccomp_set(&self) -> Found {
        let is_unset = |context: &Value| !context["seccompProfile"].is_object();
        let rule = "set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"";
        self.seccomp().or_else(|| {
            let detail = self.containers_must(|container| is_unset(context(container)), rule);
            let detail = detail.filter(|_| is_unset(context(self.spec)));
            detail.map(|detail| format!("pod or {detail}")).map(violation("seccompProfile"))
        })
    }

    fn sysctls(&self) -> Found {
        // By the version since which they are allowed.
        const ALLOWED: [(u32, &str); 12] = [
            (0, "kernel.shm_rmid_forced"),
            (0, "net.ipv4.ip_local_port_range"),
            (0, "net.ipv4.tcp_syncookies"),
            (0, "net.ipv4.ping_group_range"),
            (0, "net.ipv4.ip_unprivileged_port_start"),
            (27, "net.ipv4.ip_local_reserved_ports"),
            (29, "net.ipv4.tcp_keepalive_time"),
            (29, "net.ipv4.tcp_fin_timeout"),
            (29, "net.ipv4.tcp_keepalive_intvl"),
            (29, "net.ipv4.tcp_keepalive_probes"),
            (32, "net.ipv4.tcp_rmem"),
            (32, "net.ipv4.tcp_wmem"),
        ];
        let is_allowed =
            |name: &str| ALLOWED.iter().any(|(since, known)| *known == name && self.minor >= *since);
        let all = items(&context(self.spec)["sysctls"]).iter().map(|sysctl| text(&sysctl["name"]));
        let forbidden = all.filter(|name| !is_allowed(name)).map(str::to_owned);
        joined(&forbidden.collect::<Vec<_>>(), ", ").map(violation("forbidden sysctls"))
    }

    fn host_process(&self) -> Found {
        let is_bad = |context: &Value| context["windowsOptions"]["hostProcess"] == true;
        let detail = self.setters_must(is_bad, "not set securityContext.windowsOptions.hostProcess=true");
        detail.map(violation("hostProcess"))
    }

    fn privilege_escalation(&self) -> Found {
        let is_bad = |container: &Value| context(container)["allowPrivilegeEscalation"] != false;
        let detail = self.containers_must(is_bad, "set securityContext.allowPrivilegeEscalation=false");
        detail.map(violation("allowPrivilegeEscalation != false"))
    }

    fn volumes(&self) -> Found {
        const ALLOWED: [&str; 9] = [
            "configMap",
            "csi",
            "downwardAPI",
            "emptyDir",
            "ephemeral",
            "image",
            "persistentVolumeClaim",
            "projected",
            "secret",
        ];
        let (mut names, mut types) = (Vec::new(), BTreeSet::new());
        for volume in items(&self.spec["volumes"]) {
            let mut sources = volume.as_object().into_iter().flatten().map(|(source, _)| source.as_str());
            let source = sources.find(|source| *source != "name").unwrap_or("unknown");
            if !ALLOWED.contains(&source) {
                names.push(text(&volume["name"]));
                types.insert(source);
            }
        }
        if names.is_empty() {
            return None;
        }
        let (count, shown) = (types.len(), quoted(types));
        let detail = uses(&volumes(&names), names.len(), "restricted volume type", count, &shown);
        Some(violation("restricted volume types")(detail))
    }

    fn non_root(&self) -> Found {
        let is_false = |context: &Value| context["runAsNonRoot"] == false;
        let is_true = |context: &Value| context["runAsNonRoot"] == true;
        let explicit = self.setters_must(is_false, "not set securityContext.runAsNonRoot=false");
        let implicit = || {
            let is_unset = |container: &Value| !is_true(context(container));
            let detail = self.containers_must(is_unset, "set securityContext.runAsNonRoot=true");
            detail.filter(|_| !is_true(context(self.spec))).map(|detail| format!("pod or {detail}"))
        };
        explicit.or_else(implicit).map(violation("runAsNonRoot != true"))
    }

    fn user(&self) -> Found {
        let detail = self.setters_must(|context| context["runAsUser"] == 0, "not set runAsUser=0");
        detail.map(violation("runAsUser=0"))
    }
}

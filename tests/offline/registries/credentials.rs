//! Registries that demand credentials: they are stored, found, removed, and sent to nobody else.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::{User, WEB, failure, says, text};
use crate::registry::{Access, PASSWORD, Registry, error, reply};

/// A helper as Docker calls it: it keeps what it is given in a file of HOME, for one registry.
const HELPER: &str = r#"#!/bin/sh
case "$1" in
store) cat > "$HOME/stored" ;;
get)
  cat > /dev/null
  if [ -f "$HOME/stored" ]; then cat "$HOME/stored"; else echo "credentials not found in native keychain"; exit 1; fi ;;
erase) cat > /dev/null; rm "$HOME/stored" ;;
esac
"#;

impl User {
    /// Installs a credential helper, and names it for a registry.
    fn helper(&self, registry: &Registry, script: &str) {
        let path = self.at("bin/docker-credential-test");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(self.at("docker")).unwrap();
        let helpers = serde_json::Map::from_iter([(registry.address.clone(), Value::from("test"))]);
        fs::write(self.config(), json!({"credHelpers": helpers}).to_string()).unwrap();
    }
}

/// Whether a request brought credentials.
fn any_authorized(registry: &Registry) -> bool {
    registry.seen().iter().any(|request| request.header("authorization").is_some())
}

#[test]
fn login_stores_what_push_needs_and_logout_removes_it() {
    for access in [Access::Basic, Access::Bearer] {
        let (user, registry) = (User::new(), Registry::new(access, true));
        let repository = registry.place("acme/web");
        let push = ["push", WEB, &*repository];
        let denied = || {
            let (code, error) = user.fails(&push);
            let expected = format!("{} refuses access", registry.address);
            assert!(code == 1 && error.contains(&expected), "{access:?}: {error}");
            assert!(error.contains("no credentials are stored"), "{access:?}: {error}");
            assert!(text(&user.run(&push).stderr).contains(&format!("operetta login {}", registry.address)));
        };
        denied();
        assert!(!any_authorized(&registry), "{access:?}");

        let output = user.login(&registry, "wrong words");
        let (code, message) = failure(&["login"], &output);
        assert!(code == 1 && message.contains("the credentials do not suffice"), "{access:?}: {message}");
        assert!(message.contains(&registry.address) && !message.contains("wrong words"), "{message}");
        assert!(!user.config().exists(), "{access:?}");

        // What others have stored there stays.
        fs::create_dir_all(user.at("docker")).unwrap();
        fs::write(user.config(), r#"{"auths": {"other": {"auth": "eDp5"}}, "psFormat": "z"}"#).unwrap();
        user.log_in(&registry);
        let mode = fs::metadata(user.config()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
        let name = user.ok(&push);
        user.ok(&["pull", &name, "-o", "web.tgz"]);
        user.ok(&["package", WEB, "-o", "expected.tgz"]);
        assert!(user.read("web.tgz") == user.read("expected.tgz"), "{access:?}");
        assert!(registry.content().tag("acme/web", "0.1.0").is_some());

        user.ok(&["logout", &registry.address]);
        let stored: Value = serde_json::from_slice(&fs::read(user.config()).unwrap()).unwrap();
        assert_eq!(stored, json!({"auths": {"other": {"auth": "eDp5"}}, "psFormat": "z"}));
        denied();
        assert_eq!(user.ok(&["logout", &registry.address]), "");
    }
}

#[test]
fn credentials_of_a_helper_are_used_stored_and_erased() {
    let (user, registry) = (User::new(), Registry::new(Access::Basic, true));
    let repository = registry.place("acme/web");
    user.helper(&registry, HELPER);
    let config = fs::read(user.config()).unwrap();
    says(user.fails(&["push", WEB, &repository]), 1, &["no credentials are stored"]);

    user.log_in(&registry);
    let stored: Value = serde_json::from_slice(&fs::read(user.at("home/stored")).unwrap()).unwrap();
    assert_eq!(stored["ServerURL"], registry.address);
    assert_eq!(stored["Secret"], PASSWORD);
    user.ok(&["push", WEB, &repository]);
    user.ok(&["logout", &registry.address]);
    assert!(!user.at("home/stored").exists());
    assert!(fs::read(user.config()).unwrap() == config, "the file names the helper and nothing more");

    // A helper that fails, and one that is not installed, are named.
    user.helper(&registry, "#!/bin/sh\necho the keychain is locked\nexit 1\n");
    let (code, error) = user.fails(&["pull", &repository]);
    assert!(code == 1 && error.contains("docker-credential-test get"), "{error}");
    assert!(error.contains("the keychain is locked") && error.contains(&registry.address), "{error}");
    fs::remove_file(user.at("bin/docker-credential-test")).unwrap();
    says(user.fails(&["pull", &repository]), 1, &["docker-credential-test get"]);
}

/// Registries redirect to stores of objects, which must not learn the password.
#[test]
fn credentials_are_sent_to_no_other_server() {
    for access in [Access::Basic, Access::Bearer] {
        let (user, registry) = (User::new(), Registry::new(access, true));
        let store = Registry::start();
        user.log_in(&registry);
        let name = user.ok(&["push", WEB, &registry.place("acme/web")]);
        let blobs = Registry::with(&registry.content());
        let target = format!("http://{}", blobs.address);
        registry.lie(move |request| {
            let is_ours = request.is("GET", "/blobs/") && request.header("authorization").is_some();
            let location = format!("{target}{}", request.path);
            is_ours.then(|| reply(307, &[("location", &location)], ""))
        });
        user.ok(&["pull", &name, "-o", "web.tgz"]);
        user.ok(&["package", WEB, "-o", "expected.tgz"]);
        assert!(user.read("web.tgz") == user.read("expected.tgz"), "{access:?}");
        assert!(blobs.count("GET", "/blobs/") > 0 && !any_authorized(&blobs), "{access:?}");

        // One that asks for a password, for itself or for a server of tokens, gets none.
        let realm = format!("Bearer realm=\"http://{}/token\",service=\"test\"", store.address);
        for challenge in ["Basic realm=\"x\"".to_owned(), realm] {
            blobs.lie(move |_| Some(reply(401, &[("www-authenticate", &challenge)], "")));
            let (code, error) = user.fails(&["pull", &name, "-o", "other.tgz"]);
            let refusal = format!("{} answers 401", blobs.address);
            assert!(code == 1 && error.contains(&refusal), "{access:?}: {error}");
            assert!(!any_authorized(&blobs) && store.seen().is_empty(), "{access:?}");
        }
        assert_eq!(user.results(), ["expected.tgz", "web.tgz"]);

        // Nor does the server that an upload is to be sent to.
        let target = format!("http://{}/upload", store.address);
        registry.lie(move |request| {
            let is_begun = request.is("POST", "/uploads/") && request.header("authorization").is_some();
            is_begun.then(|| reply(202, &[("location", &target)], ""))
        });
        store.lie(|_| Some(error(403, "DENIED")));
        let (code, error) = user.fails(&["push", WEB, &registry.place("acme/other")]);
        let refusal = format!("{} answers 403", store.address);
        assert!(code == 1 && error.contains(&refusal), "{access:?}: {error}");
        assert!(store.count("PUT", "/upload") > 0 && !any_authorized(&store), "{access:?}");
        assert_eq!(registry.content().tag("acme/other", "0.1.0"), None);
    }
}

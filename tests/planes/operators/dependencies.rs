//! Packages that require kinds of others: what is locked, installed along, refused and reported.

use serde_json::{Value, json};

use super::sources::Registry;
use super::{Cluster, GROUP, OPERATOR, Package, Part, SIZE, is_active, kind_of, says, scene};
use crate::support;
use crate::support::ext::condition;

/// Writes a version of a package that requires kinds: their plurals, which are the names of their packages, and ranges.
fn write(registry: &Registry, package: &Package, version: &str, requires: &[(&str, &str)]) {
    package.write(version, &[Part::new(&package.name, SIZE, version)]);
    let apis: String = requires.iter().fold(String::new(), |all, (other, range)| {
        let (kind, place) = (kind_of(other), registry.of(&format!("acme/{other}")));
        format!(
            "{all}      - {{apiVersion: {GROUP}/v1, kind: {kind}, package: '{place}', version: '{range}'}}\n"
        )
    });
    let file = package.root.path().join("operator.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replacen("  resources:", &format!("  requires:\n    apis:\n{apis}  resources:"), 1);
    std::fs::write(
        file,
        if requires.is_empty() { text.replace("  requires:\n    apis:\n", "") } else { text },
    )
    .unwrap();
}

/// Writes a version of a package, and publishes it.
async fn publish(registry: &Registry, package: &Package, version: &str, requires: &[(&str, &str)]) -> String {
    write(registry, package, version, requires);
    registry.add(package, &format!("acme/{}", package.name)).await
}

fn lock(package: &Package) -> String {
    std::fs::read_to_string(package.root.path().join("operator.lock")).unwrap()
}

async fn told(args: &[&str]) -> (i32, String) {
    let output = support::operetta(std::path::Path::new("/nowhere"), args).await;
    (output.status.code().unwrap(), format!("{}{}", output.stdout, output.stderr))
}

#[tokio::test]
async fn required_packages_are_locked_and_updated_on_request() {
    let registry = Registry::start().await;
    let (caches, shops) = (Package::new("caches", "1.1.0", "a"), Package::new("shops", "1.0.0", "a"));
    publish(&registry, &caches, "1.1.0", &[]).await;
    let first = publish(&registry, &caches, "1.2.0", &[]).await;
    publish(&registry, &caches, "2.0.0", &[]).await;
    let before = publish(&registry, &shops, "1.0.0", &[("caches", "^1")]).await;
    assert!(lock(&shops).contains(&first) && lock(&shops).contains("\"1.2.0\""), "{}", lock(&shops));
    // A newer version is chosen only on request.
    let newer = publish(&registry, &caches, "1.3.0", &[]).await;
    assert_eq!(registry.add(&shops, "acme/shops").await, before);
    let archive = shops.root.path().join("a.tgz");
    let (folder, archive) = (shops.folder(), archive.to_str().unwrap());
    let (code, text) = told(&["package", folder, "-o", archive, "--update"]).await;
    assert!(code == 0 && text.contains("locked  caches 1.3.0 (was 1.2.0)"), "{text}");
    assert!(lock(&shops).contains(&newer));
    // The lock is part of the package.
    let layout = shops.root.path().join("layout");
    let layout = layout.to_str().unwrap();
    assert_eq!(told(&["package", archive, "-o", layout]).await.0, 0);
    let (_, text) = told(&["inspect", layout]).await;
    let installs = format!("caches 1.3.0, {}@{newer}", registry.of("acme/caches"));
    assert!(text.contains(&installs) && text.contains("operator.lock"), "{text}");
    assert!(text.contains(&format!("{GROUP}/v1/Cache, {}, ^1", registry.of("acme/caches"))), "{text}");

    // Ranges that exclude each other, and packages that require each other, are named.
    write(&registry, &shops, "1.1.0", &[("caches", "^3")]);
    says(told(&["package", folder, "-o", archive]).await, 1, &["^3 (shops 1.1.0); there is 2.0.0, 1.3.0"]);
    let (alphas, betas) = (Package::new("alphas", "1.0.0", "a"), Package::new("betas", "1.0.0", "a"));
    publish(&registry, &alphas, "1.0.0", &[]).await;
    publish(&registry, &betas, "1.0.0", &[("alphas", "^1"), ("caches", "^2")]).await;
    write(&registry, &alphas, "1.1.0", &[("betas", "^1")]);
    says(told(&["package", alphas.folder(), "-o", archive]).await, 1, &["alphas -> betas -> alphas"]);
    write(&registry, &shops, "1.1.0", &[("betas", "*"), ("caches", "^1")]);
    says(told(&["package", folder, "-o", archive]).await, 1, &["^2 (betas 1.0.0)", "^1 (shops 1.1.0)"]);
    // What a required package requires is locked, too, and before it.
    write(&registry, &shops, "1.1.0", &[("betas", "*")]);
    assert_eq!(told(&["package", folder, "-o", archive]).await.0, 0);
    let names: Vec<String> =
        lock(&shops).lines().filter_map(|line| line.strip_prefix("- name: ").map(str::to_owned)).collect();
    assert!(names == ["alphas", "caches", "betas"] || names == ["caches", "alphas", "betas"], "{names:?}");
}

#[tokio::test]
async fn required_packages_are_installed_first_and_only_if_a_person_agrees() {
    let cluster = Cluster::start().await;
    let registry = Registry::start().await;
    let (caches, shops) = (Package::new("caches", "1.2.0", "a"), Package::new("shops", "1.0.0", "a"));
    let blogs = Package::new("blogs", "1.0.0", "a");
    let digest = publish(&registry, &caches, "1.2.0", &[]).await;
    publish(&registry, &caches, "2.0.0", &[]).await;
    publish(&registry, &shops, "1.0.0", &[("caches", "^1")]).await;
    publish(&registry, &blogs, "1.0.0", &[("caches", "^2")]).await;
    let reference = |name: &str, version: &str| format!("{}:{version}", registry.of(&format!("acme/{name}")));
    let shop = reference("shops", "1.0.0");
    let text = says(cluster.told(&["install", &shop]).await, 5, &["--yes"]);
    let shown = format!("caches 1.2.0  {}@{digest}", registry.of("acme/caches"));
    assert!(text.contains(&shown) && text.contains("configmaps"), "{text}");
    for name in ["caches", "shops"] {
        assert_eq!(cluster.find(OPERATOR, name).await, None);
    }
    cluster.operetta(&["install", &shop, "--yes"]).await.ok();
    let live = cluster.until("caches", "active", is_active).await;
    assert_eq!(live["status"]["version"], "1.2.0");
    let shops_live = cluster.until("shops", "active", is_active).await;
    assert!(condition(&shops_live, "DependenciesMissing").is_null(), "{shops_live:#}");

    // Versions that do not fit together are refused by name, in both directions.
    let (code, text) = cluster.told(&["install", &reference("blogs", "1.0.0"), "--yes"]).await;
    assert!(code == 1 && text.contains("blogs 1.0.0 requires caches in ^2"), "{code} {text}");
    assert!(
        text.contains("shops 1.0.0 requires caches in ^1"),
        "an upgrade of caches would break it: {text}"
    );
    assert_eq!(cluster.find(OPERATOR, "blogs").await, None);
    let (code, text) = cluster.told(&["upgrade", &reference("caches", "2.0.0")]).await;
    assert!(code == 1 && text.contains("shops 1.0.0 requires caches in ^1"), "{code} {text}");

    // What others require is removed by force only; then the manager says what brings it.
    says(cluster.told(&["uninstall", "caches"]).await, 1, &["other packages require caches: shops"]);
    cluster.operetta(&["uninstall", "caches", "--force"]).await.ok();
    cluster.restart(async || ()).await;
    let is_missing = |operator: &Value| condition(operator, "DependenciesMissing")["status"] == "True";
    let live = cluster.until("shops", "its dependency is missing", |o| is_missing(o) && is_active(o)).await;
    let message = condition(&live, "DependenciesMissing")["message"].as_str().unwrap().to_owned();
    let command = format!("`operetta install {}@{digest}`", registry.of("acme/caches"));
    assert!(message.contains("caches 1.2.0 brings") && message.contains(&command), "{message}");
    assert_eq!(cluster.find(OPERATOR, "caches").await, None, "the manager installs nothing");
    cluster.operetta(&["install", &format!("{}@{digest}", registry.of("acme/caches"))]).await.ok();
    cluster.until("shops", "nothing is missing", |o| condition(o, "DependenciesMissing").is_null()).await;
    cluster.operetta(&["uninstall", "shops"]).await.ok();
    cluster.operetta(&["uninstall", "caches"]).await.ok();

    // A folder needs no lock: versions are chosen when it is installed.
    write(&registry, &blogs, "1.1.0", &[("caches", "^2")]);
    std::fs::remove_file(blogs.root.path().join("operator.lock")).unwrap();
    let (code, text) = cluster.told(&["install", blogs.folder(), "--yes"]).await;
    assert!(code == 0, "{code} {text}");
    let live = cluster.until("caches", "active", is_active).await;
    assert_eq!(live["status"]["version"], "2.0.0");
}

#[tokio::test]
async fn an_upgrade_brings_along_newer_versions_of_what_it_requires() {
    let cluster = Cluster::start().await;
    let registry = Registry::start().await;
    let (caches, shops) = (Package::new("caches", "1.2.0", "a"), Package::new("shops", "1.0.0", "a"));
    let blogs = Package::new("blogs", "1.0.0", "a");
    publish(&registry, &caches, "1.2.0", &[]).await;
    publish(&registry, &shops, "1.0.0", &[("caches", "^1")]).await;
    let digest = publish(&registry, &caches, "2.0.0", &[]).await;
    publish(&registry, &shops, "2.0.0", &[("caches", "^2")]).await;
    publish(&registry, &blogs, "1.0.0", &[("caches", "^2")]).await;
    publish(&registry, &caches, "3.0.0", &[]).await;
    publish(&registry, &shops, "3.0.0", &[("caches", "^3")]).await;
    let shop = |version: &str| format!("{}:{version}", registry.of("acme/shops"));
    let version = async |name: &str| {
        let live = cluster.until(name, "active", is_active).await;
        live["status"]["version"].as_str().unwrap().to_owned()
    };
    cluster.operetta(&["install", &shop("1.0.0"), "--yes"]).await.ok();
    assert_eq!(version("caches").await, "1.2.0");

    // Each of them alone does not fit to the other one that is there; nothing happens unless a person agrees.
    let (code, text) = cluster.told(&["upgrade", &format!("{}:2.0.0", registry.of("acme/caches"))]).await;
    assert!(code == 1 && text.contains("shops 1.0.0 requires caches in ^1"), "{code} {text}");
    let (code, text) = cluster.told(&["upgrade", &shop("2.0.0")]).await;
    let shown = format!("caches 2.0.0 (now 1.2.0)  {}@{digest}", registry.of("acme/caches"));
    assert!(code == 5 && text.contains(&shown) && text.contains("would be upgraded first"), "{code} {text}");
    // A preview shows what becomes of both.
    let scene = scene(&cluster).await;
    caches.ready(&scene, "one", &json!({"size": 3})).await;
    let (code, text) = cluster.told(&["upgrade", &shop("2.0.0"), "--preview"]).await;
    assert!(code == 0 && text.contains(&shown) && text.contains("1 instance: 0 unchanged"), "{code} {text}");
    let preview = cluster.operetta(&["upgrade", &shop("2.0.0"), "--preview", "-o", "json"]).await.ok();
    let preview: Value = serde_json::from_str(&preview).unwrap();
    let first = &preview["required"][0];
    assert_eq!([&preview["package"]["name"], &first["package"]["name"]], ["shops", "caches"]);
    let instance = &first["instances"][0];
    assert_eq!([&instance["name"], &instance["changes"][0]["write"]], ["one", "Updated"], "{preview:#}");
    assert_eq!([version("caches").await, version("shops").await], ["1.2.0", "1.0.0"]);
    cluster.operetta(&["upgrade", &shop("2.0.0"), "--yes"]).await.ok();
    assert_eq!([version("caches").await, version("shops").await], ["2.0.0", "2.0.0"]);
    // Once more is nothing to do.
    cluster.operetta(&["upgrade", &shop("2.0.0")]).await.ok();

    // What others need stays, and nothing goes back by itself.
    cluster.operetta(&["install", &format!("{}:1.0.0", registry.of("acme/blogs"))]).await.ok();
    let (code, text) = cluster.told(&["upgrade", &shop("3.0.0"), "--yes"]).await;
    assert!(code == 1 && text.contains("blogs 1.0.0 requires caches in ^2"), "{code} {text}");
    assert!(text.contains("shops 3.0.0 requires caches in ^3"), "{text}");
    let (code, text) = cluster.told(&["upgrade", &shop("1.0.0"), "--yes"]).await;
    assert!(
        code == 1 && text.contains("caches 2.0.0 is installed, which is not older than 1.2.0"),
        "{code} {text}"
    );
    assert_eq!([version("caches").await, version("shops").await], ["2.0.0", "2.0.0"]);

    // A package that Git names is not upgraded beside it.
    let source = serde_json::json!({"spec": {"revision": null, "source": {"package": format!("{}@{digest}", registry.of("acme/caches"))}}});
    let patch = source.to_string();
    cluster.kubectl(&["patch", "operator", "caches", "--type=merge", "-p", &patch], "").await.ok();
    cluster.operetta(&["uninstall", "blogs"]).await.ok();
    let (code, text) = cluster.told(&["upgrade", &shop("3.0.0"), "--yes"]).await;
    let expected = "shops 3.0.0 requires caches 3.0.0, and caches 2.0.0 is installed: the Operator caches names its package itself";
    assert!(code == 1 && text.contains(expected), "{code} {text}");
}

#[tokio::test]
async fn packages_of_a_mirror_are_found_beside_each_other() {
    let cluster = Cluster::start().await;
    let (origin, mirror) = (Registry::start().await, Registry::start().await);
    let (caches, shops) = (Package::new("caches", "1.2.0", "a"), Package::new("shops", "1.0.0", "a"));
    let digest = publish(&origin, &caches, "1.2.0", &[]).await;
    publish(&origin, &shops, "1.0.0", &[("caches", "^1")]).await;
    let shop = format!("{}:1.0.0", origin.of("acme/shops"));
    let copied = async |from: &str, to: &str, more: &[&str]| {
        let (code, text) = told(&[&["copy", from, to], more].concat()).await;
        assert_eq!(code, 0, "{text}");
        text
    };
    let layout = mirror.folder().join("stick");
    let layout = layout.to_str().unwrap();
    let text = copied(&shop, layout, &["--with-dependencies"]).await;
    assert!(text.contains(&format!("copied  caches 1.2.0  {layout}@{digest}")), "{text}");
    // Without the flag, only the package itself is there.
    let alone = mirror.folder().join("alone");
    copied(&shop, alone.to_str().unwrap(), &[]).await;
    // As the copy into a registry does: each in a repository of its own name.
    std::fs::create_dir(mirror.folder().join("inner")).unwrap();
    let inner = |name: &str| mirror.folder().join("inner").join(name).display().to_string();
    copied(layout, &inner("shops"), &[]).await;
    copied(&format!("{layout}@{digest}"), &format!("{}:1.2.0", inner("caches")), &[]).await;
    origin.stop();

    let (code, text) = cluster.told(&["install", alone.to_str().unwrap(), "--yes"]).await;
    assert!(code != 0 && text.contains(&origin.of("acme/caches")[6..16]), "{code} {text}");
    for (from, beside) in [
        (layout.to_owned(), format!("using {layout}@{digest}")),
        (mirror.of("inner/shops"), format!("using {}@{digest}", mirror.of("inner/caches"))),
    ] {
        says(cluster.told(&["install", &from, "--yes"]).await, 0, &[&beside]);
        cluster.until("shops", "active", is_active).await;
        for name in ["shops", "caches"] {
            cluster.operetta(&["uninstall", name]).await.ok();
        }
    }
}

#[tokio::test]
async fn versions_of_registries_are_listed_and_chosen_by_a_range() {
    let cluster = Cluster::start().await;
    let registry = Registry::start().await;
    let caches = Package::new("caches", "1.2.0", "a");
    let digest = publish(&registry, &caches, "1.2.0", &[]).await;
    let repository = registry.of("acme/caches");
    cluster.operetta(&["install", &format!("{repository}:1.2.0")]).await.ok();
    let text = cluster.operetta(&["outdated"]).await;
    assert!(text.stderr.contains("No registry has a newer version"), "{}", text.stderr);
    for version in ["1.10.0", "1.9.0", "2.0.0", "3.0.0-rc.1"] {
        publish(&registry, &caches, version, &[]).await;
    }
    let of = async |args: &[&str]| -> Value {
        serde_json::from_str(&cluster.operetta(&[args, &["-o", "json"]].concat()).await.ok()).unwrap()
    };
    // Versions are sorted as numbers; of an installed package the active one is known.
    for of_what in [&*repository, "caches"] {
        let found = of(&["versions", of_what, "--signers"]).await;
        let versions: Vec<&str> =
            found["versions"].as_array().unwrap().iter().filter_map(|one| one["version"].as_str()).collect();
        assert_eq!(versions, ["3.0.0-rc.1", "2.0.0", "1.10.0", "1.9.0", "1.2.0"]);
        assert_eq!(found["versions"][4]["digest"], *digest);
        let active = found["versions"][4]["active"].as_bool();
        assert_eq!(active, (of_what == "caches").then_some(true));
    }
    let found = of(&["outdated"]).await;
    let row = &found[0];
    assert_eq!([&row["active"], &row["compatible"], &row["newest"]], ["1.2.0", "1.10.0", "2.0.0"], "{found}");
    let (code, text) = cluster.told(&["upgrade", "caches", "--to", "^4"]).await;
    assert!(code == 1 && text.contains("has no version in ^4; there is 3.0.0-rc.1, 2.0.0"), "{text}");
    cluster.operetta(&["upgrade", "caches", "--to", "^1.2"]).await.ok();
    let live = cluster.until("caches", "upgraded", is_active).await;
    assert_eq!(live["status"]["version"], "1.10.0");

    // An Operator that names its package itself is changed where it is from.
    let source =
        serde_json::json!({"spec": {"revision": null, "source": {"package": format!("{repository}:1.9.0")}}});
    cluster
        .kubectl(&["patch", "operator", "caches", "--type=merge", "-p", &source.to_string()], "")
        .await
        .ok();
    let live =
        cluster.until("caches", "fetched", |o| is_active(o) && o["status"]["version"] == "1.9.0").await;
    for args in [&["upgrade", "caches", "--to", "^2"][..], &["rollback", "caches"]] {
        let text = says(cluster.told(args).await, 1, &["names its package itself"]);
        let wanted = if args[0] == "upgrade" { ":2.0.0@sha256:" } else { ":1.10.0@sha256:" };
        assert!(text.contains(wanted) && text.contains("kubectl patch operator caches"), "{text}");
    }
    assert_eq!(cluster.find(OPERATOR, "caches").await.unwrap()["spec"], live["spec"]);
}

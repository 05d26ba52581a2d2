//! Fetches what an image consists of, with the clients of the registries: apt, pip and Maven.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use data_encoding::HEXLOWER;
use operetta_package::FileScope;
use operetta_package::decode::At;
use operetta_package::image::{Image, ImageFile, ids};
use ring::digest;
use tokio::process::Command;

use super::layer::{Content, Layer, Node, inside};
use super::zip;
use crate::binaries::Binaries;
use crate::error::Error;
use crate::logs::last_lines;
use crate::tools::Tool;

/// The package whose shell and tools each image has.
const BUSYBOX: &str = "busybox-static";
/// The largest file that is fetched.
const FILE_BYTES: u64 = 1 << 30;
/// Files that each image has beside busybox.
const BASE: [(&str, &str); 2] = [
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
];

/// The error about a value of a description.
fn wrong<T>(value: &At<T>) -> impl Fn(String) -> Error {
    let at = value.at.to_string();
    move |reason| Error::Image { at: at.clone(), reason }
}

/// Makes the layer of an image in an empty folder.
pub(super) async fn layer(image: &Image, binaries: &Binaries, work: &Path) -> Result<Layer, Error> {
    let mut layer = Layer::default();
    let busybox = At { value: BUSYBOX.to_owned(), at: image.name.at.clone(), path: String::new() };
    let debian: Vec<&At<String>> = std::iter::once(&busybox).chain(image.debian.iter().flatten()).collect();
    for (package, archive) in debian.iter().zip(packages(&debian, work).await?) {
        layer.add_tar(archive.as_slice()).map_err(wrong(package))?;
    }
    base(&mut layer, work).await.map_err(wrong(&image.name))?;
    for wheel in image.wheels.iter().flatten() {
        let folder = scratch(work, "wheel")?;
        let project = format!("{}=={}", wheel.value.name.value, wheel.value.version.value);
        let arguments =
            ["download", "-q", "--no-deps", "--only-binary=:all:", "--no-input", "-d", ".", &project];
        run("pip3", &arguments, &folder).await.map_err(wrong(wheel))?;
        let bytes = only_file(&folder, &wheel.value.sha256)?;
        let from = wheel.value.from.as_ref().map_or(".", |from| &from.value);
        unpack(&mut layer, &bytes, from, &wheel.value.to.value).map_err(wrong(wheel))?;
    }
    for file in image.maven.iter().flatten() {
        let folder = scratch(work, "maven")?;
        let artifact = format!("-Dartifact={}", file.value.artifact.value);
        let arguments = ["-q", "-B", "dependency:copy", &artifact, "-DoutputDirectory=."];
        run("mvn", &arguments, &folder).await.map_err(wrong(file))?;
        let name = only_name(&folder).map_err(wrong(file))?;
        let bytes = only_file(&folder, &file.value.sha256)?;
        let to = &file.value.to.value;
        match &file.value.from {
            Some(from) => unpack(&mut layer, &bytes, &from.value, to),
            None => layer.add(&format!("{to}/{name}"), Node::new(Content::File(bytes), 0o644)),
        }
        .map_err(wrong(file))?;
    }
    for path in image.without.iter().flatten() {
        layer.remove(&path.value);
    }
    for (name, path) in image.tools.iter().flat_map(|tools| &tools.0) {
        let tool = tool(&name.value).ok_or_else(|| {
            let names: Vec<_> = tools().map(|(name, _)| name).collect();
            wrong(name)(format!("there is no {}; there are {}", name.value, names.join(", ")))
        })?;
        let program = binaries.path(tool);
        let bytes = fs::read(program).map_err(Error::io("read", program))?;
        layer.add(&path.value, Node::new(Content::File(bytes), 0o755)).map_err(wrong(path))?;
    }
    for file in image.files.iter().flatten() {
        layer.add(&file.value.path.value, node(&file.value)?).map_err(wrong(file))?;
    }
    Ok(layer)
}

/// What else the bytes of an image depend on, beside the text of its description.
pub(super) fn inputs(image: &Image, binaries: &Binaries) -> Result<Vec<u8>, Error> {
    let mut inputs = Vec::new();
    for file in image.files.iter().flatten() {
        if let Content::File(bytes) = node(&file.value)?.content {
            inputs.extend_from_slice(digest::digest(&digest::SHA256, &bytes).as_ref());
        }
    }
    for (name, _) in image.tools.iter().flat_map(|tools| &tools.0) {
        let program = tool(&name.value).map(|tool| binaries.path(tool).display().to_string());
        inputs.extend_from_slice(program.unwrap_or_default().as_bytes());
    }
    Ok(inputs)
}

/// The names of programs in descriptions.
fn image_name(tool: Tool) -> Option<&'static str> {
    Some(match tool {
        Tool::Etcd => "etcd-3.6",
        Tool::Etcdctl => "etcdctl-3.6",
        Tool::Etcdutl => "etcdutl-3.6",
        Tool::Etcd35 => "etcd-3.5",
        Tool::Etcdctl35 => "etcdctl-3.5",
        Tool::Etcdutl35 => "etcdutl-3.5",
        Tool::Rclone => "rclone",
        _ => return None,
    })
}

fn tools() -> impl Iterator<Item = (&'static str, Tool)> {
    let all = Tool::CONTROL_PLANE.iter().chain(Tool::NODE);
    all.filter_map(|tool| Some((image_name(*tool)?, *tool)))
}

fn tool(name: &str) -> Option<Tool> {
    tools().find(|(found, _)| *found == name).map(|(_, tool)| tool)
}

/// The name of a package without its version.
fn bare(package: &At<String>) -> &str {
    package.value.split('=').next().unwrap_or_default()
}

/// The content of Debian packages as tar archives.
async fn packages(packages: &[&At<String>], work: &Path) -> Result<Vec<Vec<u8>>, Error> {
    let folder = scratch(work, "debian")?;
    // As root: apt's own user may not write here.
    let mut arguments = vec!["-qq", "-o", "APT::Sandbox::User=root", "download"];
    arguments.extend(packages.iter().map(|package| package.value.as_str()));
    run("apt-get", &arguments, &folder).await.map_err(|output| {
        let is_named =
            |package: &At<String>| output.split([' ', '\'', '\n']).any(|word| word == bare(package));
        let named = packages.iter().copied().find(|package| is_named(package)).unwrap_or(packages[0]);
        wrong(named)(format!(
            "{output}\n  help: images are made from packages of Debian 12 (bookworm): run `apt-get update`; \
             `apt-cache policy NAME` shows the versions"
        ))
    })?;
    let mut archives = Vec::with_capacity(packages.len());
    for package in packages {
        let prefix = format!("{}_", bare(package));
        let found = fs::read_dir(&folder).map_err(Error::io("read", &folder))?.flatten();
        let mut files = found.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
        let file = files.next().ok_or_else(|| wrong(package)("apt has not fetched it".to_owned()))?.path();
        let path = file.display().to_string();
        archives.push(run("dpkg-deb", &["--fsys-tarfile", &path], &folder).await.map_err(wrong(package))?);
    }
    Ok(archives)
}

/// Adds a link for each program of busybox, and the files of [`BASE`].
async fn base(layer: &mut Layer, work: &Path) -> Result<(), String> {
    let program = work.join("busybox");
    let bytes = layer.file("bin/busybox").ok_or("busybox-static contains no bin/busybox")?;
    fs::write(&program, bytes).map_err(|error| error.to_string())?;
    let set = fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755));
    set.map_err(|error| error.to_string())?;
    let applets = run(&program.display().to_string(), &["--list"], work).await?;
    for applet in String::from_utf8_lossy(&applets).lines().filter(|applet| *applet != "busybox") {
        layer.add(&format!("bin/{applet}"), Node::new(Content::Link("busybox".to_owned()), 0o777))?;
    }
    layer.add("usr/bin/env", Node::new(Content::Link("../../bin/env".to_owned()), 0o777))?;
    layer.add("root", Node::new(Content::Folder, 0o700))?;
    layer.add("tmp", Node::new(Content::Folder, 0o1777))?;
    for (path, text) in BASE {
        layer.add(path, Node::new(Content::File(text.into()), 0o644))?;
    }
    Ok(())
}

/// The node that a description asks for.
fn node(file: &ImageFile) -> Result<Node, Error> {
    let content = match (&file.text, &file.from, &file.link) {
        (Some(text), ..) => Content::File(text.clone().into_bytes()),
        (_, Some(from), _) => {
            let source = Path::new(&from.at.source.name);
            let folder = source.parent().unwrap_or(Path::new("."));
            let path = folder.join(&from.value);
            let bytes = FileScope::within(folder).bytes(&path, FILE_BYTES);
            Content::File(
                bytes.map_err(|why| wrong(from)(format!("{} cannot be read: {why}", path.display())))?,
            )
        }
        (.., Some(target)) => Content::Link(target.clone()),
        (None, None, None) => Content::Folder,
    };
    let default = if content == Content::Folder { 0o755 } else { 0o644 };
    let mode =
        file.mode.as_ref().and_then(|mode| u32::from_str_radix(&mode.value, 8).ok()).unwrap_or(default);
    let owner = file.owner.as_ref().and_then(|owner| ids(&owner.value)).unwrap_or_default();
    Ok(Node { content, mode, owner })
}

/// Adds the files of a zip archive that are at `from` or below it.
fn unpack(layer: &mut Layer, bytes: &[u8], from: &str, to: &str) -> Result<(), String> {
    let from = inside(from)?;
    let mut is_empty = true;
    for file in zip::read(bytes)? {
        let path = inside(&file.path)?;
        let rest = if from.is_empty() {
            Some(path.as_str())
        } else if path == from {
            path.rsplit('/').next()
        } else {
            path.strip_prefix(&from).and_then(|rest| rest.strip_prefix('/'))
        };
        if let Some(rest) = rest {
            is_empty = false;
            layer.add(&format!("{to}/{rest}"), Node::new(file.content, file.mode))?;
        }
    }
    if is_empty { Err(format!("the archive contains no {from}")) } else { Ok(()) }
}

/// The only file of a folder, whose digest must be this one.
fn only_file(folder: &Path, sha256: &At<String>) -> Result<Vec<u8>, Error> {
    let name = only_name(folder).map_err(wrong(sha256))?;
    let bytes = read(&folder.join(&name)).map_err(wrong(sha256))?;
    let found = HEXLOWER.encode(digest::digest(&digest::SHA256, &bytes).as_ref());
    if !found.eq_ignore_ascii_case(&sha256.value) {
        return Err(wrong(sha256)(format!("the SHA-256 of {name} is {found}")));
    }
    Ok(bytes)
}

fn only_name(folder: &Path) -> Result<String, String> {
    let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
    let names: Vec<_> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    match names.as_slice() {
        [name] => Ok(name.clone()),
        names => Err(format!("{} files were fetched instead of one", names.len())),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    match fs::metadata(path) {
        Ok(found) if found.len() > FILE_BYTES => Err(format!("{} is larger than 1 GiB", path.display())),
        _ => fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display())),
    }
}

fn scratch(work: &Path, name: &str) -> Result<PathBuf, Error> {
    let folder = work.join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    Ok(folder)
}

/// Runs a program and returns what it prints, or the last lines of its errors.
async fn run(program: &str, arguments: &[&str], folder: &Path) -> Result<Vec<u8>, String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| format!("{program} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let text = [output.stderr, output.stdout].concat();
    Err(last_lines(String::from_utf8_lossy(&text).trim()))
}

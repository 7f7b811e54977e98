//! Images read from a registry: Debian's docker-registry, with logins, TLS, and with servers in front of it that
//! break things.

// Tests fail by panicking.
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tests::front::{Answer, Front};
use tests::node::Node;
use tests::registry::{
    Options, Registry, USER, docker_config, expected, lamina, layers, layout, login, stderr, token_registry,
};
use tests::tls::Certificates;

#[test]
fn an_image_of_a_registry_becomes_the_same_layers_as_its_layout() {
    let Some(registry) = Registry::start("an image of a registry", &Options::default()) else { return };
    let node = Node::default();
    let layout = layout(&node);
    registry.seed(&layout, "team/app", "1");
    let image = registry.image("team/app:1");
    let report = node.json(&["convert", &format!("docker://{image}")]);
    assert_eq!(report["name"], image.as_str());
    assert_eq!(layers(&report), expected(&node, &layout));
    let again = node.json(&["convert", &format!("docker://{image}@{}", report["digest"].as_str().unwrap())]);
    assert_eq!(again["images"][0]["layers"][1]["reused"], true);
    let compared = node.json(&["verify", &format!("docker://{image}")]);
    assert_eq!((&compared["count"], &compared["layers"]), (&json!(0), &json!(2)));
    let error = node.fail(1, &["convert", &format!("docker://{}", registry.image("team/other:1"))]);
    assert!(error.contains("team/other") && error.contains("404"), "{error}");
    let error = node.fail(3, &["convert", &format!("docker://{image}"), "--platform", "linux/s390x"]);
    assert!(error.contains("linux/amd64"), "{error}");
}

#[test]
fn a_login_opens_a_registry_and_its_lack_is_told() {
    let options = Options { login: true, ..Options::default() };
    let Some(registry) = Registry::start("a login", &options) else { return };
    let node = Node::default();
    registry.seed(&layout(&node), "app", "1");
    let source = format!("docker://{}", registry.image("app:1"));
    let host = registry.address.to_string();
    let convert = |docker: &Path| lamina(&node, docker, &["convert", &source]);

    let none = convert(&node.new_dir("none"));
    assert_eq!(none.status.code(), Some(1), "{}", stderr(&none));
    assert!(stderr(&none).contains("no credentials") && stderr(&none).contains("docker login"), "{}", stderr(&none));

    let wrong = json!({"auths": {&host: {"username": "mallory", "password": "x"}}});
    let wrong = convert(&docker_config(&node, "wrong", &wrong));
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("user 'mallory' from "), "{}", stderr(&wrong));

    let right = convert(&docker_config(&node, "right", &login(&host)));
    assert!(right.status.success(), "{}", stderr(&right));
}

#[test]
fn a_credential_helper_is_asked() {
    let options = Options { login: true, ..Options::default() };
    let Some(registry) = Registry::start("a credential helper", &options) else { return };
    let node = Node::default();
    registry.seed(&layout(&node), "app", "1");
    let host = registry.address.to_string();
    let docker = docker_config(&node, "helped", &json!({"credHelpers": {&host: "of-the-test"}}));
    let helper = docker.join("docker-credential-of-the-test");
    let answer = json!({"ServerURL": host, "Username": USER.0, "Secret": USER.1});
    let script = format!("#!/bin/sh\n[ \"$1\" = get ] && [ \"$(cat)\" = {host} ] || exit 1\necho '{answer}'\n");
    fs::write(&helper, script).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    let source = format!("docker://{}", registry.image("app:1"));
    let output = lamina(&node, &docker, &["convert", &source]);
    assert!(output.status.success(), "{}", stderr(&output));

    let missing = docker_config(&node, "unhelped", &json!({"credsStore": "that-is-not-there"}));
    let output = lamina(&node, &missing, &["convert", &source]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("docker-credential-that-is-not-there"), "{}", stderr(&output));
}

#[test]
fn a_private_authority_is_trusted_when_it_is_named() {
    let node = Node::default();
    let Certificates { authority, certificate, key } = Certificates::make(&node.new_dir("tls"));
    let options = Options { login: true, tls: Some((certificate, key)) };
    let Some(registry) = Registry::start("TLS", &options) else { return };
    registry.seed(&layout(&node), "app", "1");
    let docker = docker_config(&node, "docker", &login(&registry.address.to_string()));
    let source = format!("docker://{}", registry.image("app:1"));
    let stranger = lamina(&node, &docker, &["convert", &source]);
    assert_eq!(stranger.status.code(), Some(1));
    assert!(stderr(&stranger).contains("ca_file"), "{}", stderr(&stranger));

    let section = format!("[registry.\"{}\"]\nca_file = \"{}\"\n[cache]", registry.address, authority.display());
    node.reconfigure("[cache]", &section);
    let known = lamina(&node, &docker, &["convert", &source]);
    assert!(known.status.success(), "{}", stderr(&known));
}

#[test]
fn broken_connections_and_busy_servers_are_survived() {
    let Some(registry) = Registry::start("broken connections", &Options::default()) else { return };
    let node = Node::default();
    let layout = layout(&node);
    registry.seed(&layout, "app", "1");
    // Everything is answered at the second try only; each answer with a large blob ends early, and once from a part on.
    let front = Front::start(Some(registry.address), |request| match request.number {
        0 => Answer::Reply("503 Service Unavailable", vec![], vec![]),
        2 => Answer::Reply("429 Too Many Requests", vec!["Retry-After: 1".to_owned()], vec![]),
        _ if request.path.contains("/blobs/") => match request.header("range") {
            None => Answer::CutAnswer(1_000_000),
            Some(range) if range == "bytes=1000000-" => Answer::CutAnswer(1_500_000),
            Some(_) => Answer::Pass,
        },
        _ => Answer::Pass,
    });
    let report = node.json(&["convert", &format!("docker://{}/app:1", front.address), "--name", "a/b:1"]);
    assert_eq!(layers(&report), expected(&node, &layout));
    let ranges: Vec<String> = front.requests().iter().filter_map(|r| r.header("range")).collect();
    assert_eq!(ranges, ["bytes=1000000-", "bytes=2500000-"]);
}

#[test]
fn a_registry_without_ranges_sends_all_of_it_again() {
    let Some(registry) = Registry::start("no ranges", &Options::default()) else { return };
    let node = Node::default();
    let layout = layout(&node);
    registry.seed(&layout, "app", "1");
    let blobs = layout.join("blobs/sha256");
    let front = Front::start(Some(registry.address), move |request| match request.path.rsplit_once("sha256:") {
        Some((_, hex)) if request.path.contains("/blobs/") && request.header("range").is_some() => {
            Answer::Reply("200 OK", vec![], fs::read(blobs.join(hex)).unwrap())
        }
        _ if request.path.contains("/blobs/") => Answer::CutAnswer(2_000_000),
        _ => Answer::Pass,
    });
    let report = node.json(&["convert", &format!("docker://{}/app:1", front.address)]);
    assert_eq!(layers(&report), expected(&node, &layout));
    assert!(front.requests().iter().any(|r| r.header("range").is_some()));
}

#[test]
fn wrong_bytes_are_refused_and_nothing_is_written() {
    let Some(registry) = Registry::start("wrong bytes", &Options::default()) else { return };
    for kind in ["/manifests/sha256", "/blobs/"] {
        let node = Node::default();
        let front = Front::start(Some(registry.address), move |request| match request.path.contains(kind) {
            true => Answer::Flip,
            false => Answer::Pass,
        });
        let digest = registry.seed(&layout(&node), "app", "1");
        let error = node.fail(3, &["convert", &format!("docker://{}/app@{digest}", front.address)]);
        assert!(error.contains("mismatch"), "{error}");
        assert!(!node.path("store").exists(), "{kind}");
    }
}

#[test]
fn a_document_without_end_is_refused() {
    let node = Node::default();
    let endless = Front::start(None, |_| Answer::Reply("200 OK", vec![], vec![b' '; 9 << 20]));
    let error = node.fail(3, &["convert", &format!("docker://{}/app:1", endless.address)]);
    assert!(error.contains("more than 8388608 bytes"), "{error}");
}

#[test]
fn a_proxy_is_asked_for_hosts_that_are_not_this_machine() {
    let Some(registry) = Registry::start("a proxy", &Options::default()) else { return };
    let node = Node::default();
    registry.seed(&layout(&node), "app", "1");
    let proxy = Front::start(Some(registry.address), |_| Answer::Pass);
    node.reconfigure("[cache]", "[registry.\"registry.invalid:5000\"]\nplain_http = true\n[cache]");
    let mut command = node.command(&["convert", "docker://registry.invalid:5000/app:1"]);
    let output =
        command.env("HTTP_PROXY", format!("http://{}", proxy.address)).env_remove("NO_PROXY").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(proxy.requests().iter().all(|r| r.path.starts_with("http://registry.invalid:5000/v2/app/")));

    let mut command = node.command(&["convert", &format!("docker://{}", registry.image("app:1"))]);
    let output = command.env("HTTP_PROXY", "http://127.0.0.1:1").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn credentials_do_not_follow_redirects() {
    let options = Options { login: true, ..Options::default() };
    let Some(registry) = Registry::start("redirects", &options) else { return };
    let node = Node::default();
    let layout = layout(&node);
    registry.seed(&layout, "app", "1");
    let blobs = layout.join("blobs/sha256");
    let elsewhere = Front::start(None, move |request| {
        let hex = request.path.rsplit('/').next().unwrap();
        Answer::Reply("200 OK", vec![], fs::read(blobs.join(hex)).unwrap())
    });
    let target = elsewhere.address;
    let front = Front::start(Some(registry.address), move |request| match request.path.rsplit_once("blobs/sha256:") {
        Some((_, hex)) => {
            Answer::Reply("307 Temporary Redirect", vec![format!("Location: http://{target}/blob/{hex}")], vec![])
        }
        None => Answer::Pass,
    });
    let docker = docker_config(&node, "docker", &login(&front.address.to_string()));
    let output = lamina(&node, &docker, &["convert", &format!("docker://{}/app:1", front.address)]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(front.requests().iter().any(|r| r.header("authorization").is_some()));
    assert!(elsewhere.requests().len() >= 3);
    assert!(elsewhere.requests().iter().all(|r| r.header("authorization").is_none()));
}

#[test]
fn tokens_are_fetched_and_renewed_when_they_are_not_taken_any_more() {
    let Some(registry) = Registry::start("tokens", &Options::default()) else { return };
    let node = Node::default();
    registry.seed(&layout(&node), "app", "1");
    let (front, tokens) = token_registry(&registry, 2, String::new());
    let host = front.address.to_string();
    let docker = docker_config(&node, "docker", &login(&host));
    let output = lamina(&node, &docker, &["convert", &format!("docker://{host}/app:1")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let asked = tokens.requests();
    assert!(asked.len() >= 2, "{asked:?}");
    assert!(asked[0].path.contains("scope=repository%3Aapp%3Apull"), "{asked:?}");
    assert!(asked[0].path.contains("service=the+registry"), "{asked:?}");
    // base64 of robot:secret
    assert!(asked.iter().all(|r| r.header("authorization").as_deref() == Some("Basic cm9ib3Q6c2VjcmV0")), "{asked:?}");
}

#[test]
fn an_identity_token_goes_in_the_body_of_a_post() {
    let Some(registry) = Registry::start("identity tokens", &Options::default()) else { return };
    let node = Node::default();
    registry.seed(&layout(&node), "app", "1");
    let (front, tokens) = token_registry(&registry, 1000, String::new());
    let host = front.address.to_string();
    let docker = docker_config(&node, "docker", &json!({"auths": {&host: {"identitytoken": "refresh-me"}}}));
    let output = lamina(&node, &docker, &["convert", &format!("docker://{host}/app:1")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let asked = tokens.requests();
    assert_eq!((asked.len(), &*asked[0].method), (1, "POST"));
    assert!(!asked[0].path.contains("refresh-me") && asked[0].header("authorization").is_none(), "{asked:?}");
}

#[test]
fn a_token_server_that_would_get_credentials_in_the_clear_is_not_asked() {
    let Some(registry) = Registry::start("a token server", &Options::default()) else { return };
    let node = Node::default();
    registry.seed(&layout(&node), "app", "1");
    let (front, tokens) = token_registry(&registry, 1000, "http://192.0.2.1/token".to_owned());
    let host = front.address.to_string();
    let docker = docker_config(&node, "docker", &login(&host));
    let output = lamina(&node, &docker, &["convert", &format!("docker://{host}/app:1")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("192.0.2.1"), "{}", stderr(&output));
    assert!(tokens.requests().is_empty());
}

use super::*;
use blobstore::store::{Secret, USRBIO_LIBRARY};
use fuse::Face;
use std::time::Duration;

#[test]
fn an_empty_file_is_the_defaults() {
    let config = Config::parse("").unwrap();
    assert_eq!(config.store.url, "file:///var/lib/lamina/store");
    assert_eq!(config.cache.size, 20 << 30);
}

#[test]
fn the_file_that_is_shipped_lists_the_defaults() {
    let shipped = include_str!("../../../dist/config.toml");
    let config = Config::parse(shipped).unwrap();
    assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
    let listed = |key: &str| shipped.lines().any(|l| l.trim_start_matches("# ").starts_with(&format!("{key} = ")));
    // Debug names every field, as `name: value`; those that are not built yet have none.
    let text = format!("{config:?}").replace(": None", "");
    let keys = text.split([' ', '{', ',']).filter_map(|word| word.strip_suffix(':'));
    let sections = ["store", "s3", "cache", "fetch", "profile", "daemon", "snapshotter", "registry"];
    for key in keys.filter(|k| !sections.contains(k)) {
        assert!(listed(key), "{key} is not in dist/config.toml");
    }
}

#[test]
fn sizes_and_times_take_units() {
    let text = "[cache]\nsize = \"1 MiB\"\nreserve = \"7%\"\n[fetch]\ndeadline = \"250ms\"\ndecoded = 4096";
    let config = Config::parse(text).unwrap();
    assert_eq!((config.cache.size, config.cache.reserve), (1 << 20, 7));
    assert_eq!((config.fetch.deadline, config.fetch.decoded), (Duration::from_millis(250), 4096));
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let error = Config::parse("[cache]\nsize = 1\nsiez = 2\n").unwrap_err();
    assert!(error.contains("siez") && error.contains("line 3"), "{error}");
}

#[test]
fn keys_that_are_not_built_yet_say_so() {
    let text = "[store]\ntrust = { keys = [] }";
    assert!(Config::parse(text).unwrap_err().contains("built yet"), "{text}");
    let config = Config::parse("[fetch]\non_outage = \"fail\"\n[cache]\ndomain = \"tenant-7\"").unwrap();
    assert_eq!(config.cache.domain, "tenant-7");
}

#[test]
fn a_bucket_has_settings_of_its_own_and_secrets_in_them_are_not_shown() {
    let text = "[store]\nurl = \"s3://b/p\"\n[store.s3]\nendpoint = \"https://h\"\npath_style = false\naccess_key_id = \"k\"\nsecret_access_key = \"hush\"\n[fetch]\nproxy = \"http://u:hush@p\"\nca_file = \"/ca.pem\"";
    let config = Config::parse(text).unwrap();
    let settings = config.store_settings();
    assert_eq!((settings.s3.endpoint.as_deref(), settings.s3.path_style), (Some("https://h"), Some(false)));
    assert_eq!(settings.s3.secret_access_key.as_ref().map(Secret::expose), Some("hush"));
    assert!(!format!("{config:?}{settings:?}").contains("hush"));
    assert!(Config::parse("[store.s3]\nendpoint = \"x\"\nregoin = \"x\"").unwrap_err().contains("line 3"));
    let usrbio = |value: &str| Config::parse(&format!("[store]\nusrbio = {value}")).map(|c| c.store.usrbio);
    assert_eq!(usrbio("true").unwrap(), Some(USRBIO_LIBRARY.into()));
    assert_eq!(usrbio("\"/opt/lib.so\"").unwrap(), Some("/opt/lib.so".into()));
    assert_eq!(usrbio("false").unwrap(), None);
    assert!(usrbio("\"lib.so\"").unwrap_err().contains("absolute"));
    assert!(Config::parse("[store.s3]\ncredentials_file = \"x\"").unwrap_err().contains("absolute"));
}

#[test]
fn an_error_does_not_show_the_line_of_a_secret() {
    for bad in
        ["secret_access_key = \"hush", "secret_access_key = 4711", "session_token = hush", "access_key_id = [\"hush\"]"]
    {
        let error = Config::parse(&format!("[store.s3]\nregion = \"x\"\n{bad}\n")).unwrap_err();
        assert!(error.contains("line 3") && !error.contains("hush") && !error.contains("4711"), "{error}");
    }
    let error = Config::parse("[fetch]\nproxy = \"http://u:hush@p").unwrap_err();
    assert!(error.contains("line 2") && !error.contains("hush"), "{error}");
}

#[test]
fn a_size_of_another_type_is_told_as_what_it_is() {
    for (value, shown) in [("-1", "'-1'"), ("1.5", "'1.5'"), ("true", "'true'"), ("\"1.5GiB\"", "'1.5GiB'")] {
        let error = Config::parse(&format!("[cache]\nsize = {value}")).unwrap_err();
        assert!(error.contains(shown) && error.contains("is not a size such as"), "{error}");
    }
}

#[test]
fn a_file_without_an_end_is_no_configuration() {
    let error = Config::load(Some(Path::new("/dev/zero"))).unwrap_err();
    assert!(error.status == crate::failure::USAGE && error.to_string().contains("longer than"), "{error}");
}

#[test]
fn registries_are_tables_by_host() {
    let text =
        "[registry.\"h:5000\"]\nmirrors = [\"m\"]\nca_file = \"/ca.pem\"\n[registry.\"docker.io\"]\nplain_http = true";
    let config = Config::parse(text).unwrap();
    assert_eq!(config.registry["h:5000"].mirrors, ["m"]);
    assert!(config.registry["docker.io"].plain_http);
    assert!(Config::parse("[registry.\"h\"]\ninsecure = true").unwrap_err().contains("line 2"));
    assert!(Config::parse("[registry.\"h\"]\nca_file = \"ca.pem\"").unwrap_err().contains("absolute"));
}

#[test]
fn fetching_needs_room_and_time() {
    assert!(Config::parse("[fetch]\nconcurrency = 0").unwrap_err().contains("[fetch]"));
    assert!(Config::parse("[fetch]\nconcurrency = 6148914691236517205").unwrap_err().contains("at most"));
    assert!(Config::parse("[fetch]\ndeadline = \"0s\"").unwrap_err().contains("[fetch]"));
}

#[test]
fn a_word_that_means_nothing_is_refused_with_those_that_do() {
    let error = Config::parse("[fetch]\non_outage = \"never\"").unwrap_err();
    assert!(error.contains("'never' is not one of \"fail\", \"wait\"") && error.contains("line 2"), "{error}");
    assert_eq!(Config::parse("[daemon]\nface = \"loop\"").unwrap().daemon.face, Face::Loop);
}

#[test]
fn a_time_without_a_unit_and_a_relative_path_are_refused() {
    assert!(Config::parse("[fetch]\ndeadline = 30").unwrap_err().contains("30s"));
    assert!(Config::parse("[daemon]\nrun = \"here\"").unwrap_err().contains("absolute"));
}

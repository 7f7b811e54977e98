//! Profiles of AWS's own files: `~/.aws/credentials` (`[NAME]`) and `~/.aws/config` (`[profile NAME]`, `[default]`).
//!
//! The keys of both are put together, and the credentials file's win. Files are read again when they change: that is
//! how whoever rotates keys hands them over. Roles that are assumed, programs that give credentials, and single
//! sign-on are refused by name: AWS's own tools can write what they get into the file.

use crate::small_file;
use crate::store::settings::S3Settings;
use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The larger of two usual files has some kilobytes.
const FILE_MAX: u64 = 1 << 20;

/// Which profile, and the files that may have it.
#[derive(Debug, Clone)]
pub(super) struct Profiles {
    name: String,
    credentials: Option<PathBuf>,
    config: Option<PathBuf>,
}

/// What a profile says, by key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Profile(BTreeMap<String, String>);

/// How a profile gives credentials.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It has them.
    Keys,
    /// A role for which a token file stands.
    WebIdentity { role: String, token_file: String, session: Option<String> },
    /// Not at all: it has a region, perhaps.
    Nothing,
}

impl Profiles {
    /// The profile to look for, and whether somebody named it to have its credentials.
    pub(super) fn of(s3: &S3Settings) -> (Self, bool) {
        let get = |name: &str| s3.environment.get(name).map(str::to_owned);
        let home = get("HOME").map(PathBuf::from);
        let file = |variable: &str, name: &str| {
            get(variable).map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(".aws").join(name)))
        };
        let explicit = s3.profile.is_some() || s3.credentials_file.is_some();
        let name = s3.profile.clone().or_else(|| get("AWS_PROFILE")).unwrap_or_else(|| "default".to_owned());
        let credentials = s3.credentials_file.clone().or_else(|| file("AWS_SHARED_CREDENTIALS_FILE", "credentials"));
        (Self { name, credentials, config: file("AWS_CONFIG_FILE", "config") }, explicit)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// That there is no such profile, for people.
    pub(super) fn missing(&self) -> String {
        let files: Vec<String> = self.files().map(|path| path.display().to_string()).collect();
        format!("profile {} is not in {}", self.name, files.join(" or "))
    }

    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.credentials.iter().chain(&self.config)
    }

    /// The profile as it is now; `None` where no file has it. A file that is not there has none.
    pub(super) fn read(&self) -> Result<Option<Profile>, String> {
        let mut found = None;
        let in_config = match &*self.name {
            "default" => vec!["default".to_owned(), "profile default".to_owned()],
            name => vec![format!("profile {name}")],
        };
        let sources = [(&self.config, in_config), (&self.credentials, vec![self.name.clone()])];
        for (path, sections) in sources.iter().filter_map(|(path, sections)| Some((path.as_ref()?, sections))) {
            let text = read_file(path).map_err(|e| format!("{}: {e}", path.display()))?;
            for (section, key, value) in text.as_deref().map(entries).into_iter().flatten() {
                if sections.contains(&section) {
                    let profile = found.get_or_insert_with(|| Profile(BTreeMap::new()));
                    if let Some(key) = key {
                        profile.0.insert(key, value);
                    }
                }
            }
        }
        Ok(found)
    }

    /// What tells a changed file from the one before.
    fn stamp(&self) -> Vec<Option<(u64, u64, i64, i64)>> {
        let stamp = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
        };
        self.files().map(stamp).collect()
    }
}

impl Profile {
    /// The value of a key that is not empty.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// How it gives credentials; an error for the ways that are not known here.
    pub(super) fn kind(&self) -> Result<Kind, String> {
        let has = |key: &str| self.get(key).is_some();
        if let (Some(role), Some(token_file)) = (self.get("role_arn"), self.get("web_identity_token_file")) {
            let session = self.get("role_session_name").map(str::to_owned);
            return Ok(Kind::WebIdentity { role: role.to_owned(), token_file: token_file.to_owned(), session });
        }
        if has("aws_access_key_id") && has("aws_secret_access_key") && !has("role_arn") {
            return Ok(Kind::Keys);
        }
        let unknown = ["role_arn", "credential_process", "sso_session", "sso_start_url", "login_session"];
        match unknown.into_iter().find(|key| has(key)) {
            Some(key) => Err(format!(
                "an AWS profile with {key} is not supported; keys, or role_arn with web_identity_token_file, are \
                 (aws configure export-credentials gives keys)"
            )),
            None => Ok(Kind::Nothing),
        }
    }

    fn credential(&self) -> Option<AwsCredential> {
        Some(AwsCredential {
            key_id: self.get("aws_access_key_id")?.to_owned(),
            secret_key: self.get("aws_secret_access_key")?.to_owned(),
            token: self.get("aws_session_token").map(str::to_owned),
        })
    }
}

/// The file's text; `None` where there is none.
fn read_file(path: &Path) -> io::Result<Option<String>> {
    match small_file::read_text(path, FILE_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Section, key and value of each line, and each section once without a key. Indented lines belong to a nested
/// setting, which none of ours is.
fn entries(text: &str) -> Vec<(String, Option<String>, String)> {
    let (mut section, mut entries) = (String::new(), Vec::new());
    for line in text.lines() {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) || line.starts_with([' ', '\t']) {
            continue;
        }
        if let Some(name) = bare.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            section = name.split_whitespace().collect::<Vec<_>>().join(" ");
            entries.push((section.clone(), None, String::new()));
        } else if let Some((key, value)) = bare.split_once('=') {
            // A comment behind a value begins with a space.
            let value = value.split(" #").next().unwrap_or_default().split(" ;").next().unwrap_or_default();
            entries.push((section.clone(), Some(key.trim().to_lowercase()), value.trim().to_owned()));
        }
    }
    entries
}

/// How often the files are looked at, at most: every request wants credentials.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the files say, what they looked like then, and when they were last looked at.
#[derive(Debug, Clone)]
struct Kept {
    stamp: Vec<Option<(u64, u64, i64, i64)>>,
    credential: Arc<AwsCredential>,
    looked: Instant,
}

/// A profile's own keys, read again when the files change. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct ProfileProvider {
    profiles: Profiles,
    every: Duration,
    kept: Arc<Mutex<Option<Kept>>>,
}

impl ProfileProvider {
    pub(super) fn new(profiles: Profiles) -> Self {
        Self { profiles, every: LOOK_EVERY, kept: Arc::default() }
    }

    /// What is known, unless it is time to look again.
    fn known(&self) -> Option<Arc<AwsCredential>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Some(kept.as_ref().filter(|kept| kept.looked.elapsed() < self.every)?.credential.clone())
    }

    fn look(&self) -> Result<Arc<AwsCredential>, String> {
        // Looked at before it is read: what changes in between is read again next time.
        let (looked, stamp) = (Instant::now(), self.profiles.stamp());
        let before = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let credential = match before.filter(|before| before.stamp == stamp) {
            Some(before) => before.credential,
            None => {
                let profile = self.profiles.read()?.ok_or_else(|| self.profiles.missing())?;
                let credential = profile.credential().map(Arc::new);
                credential.ok_or("it has no aws_access_key_id and aws_secret_access_key")?
            }
        };
        let kept = Kept { stamp, credential: credential.clone(), looked };
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        Ok(credential)
    }
}

#[async_trait]
impl CredentialProvider for ProfileProvider {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let own = self.clone();
        let looked = tokio::task::spawn_blocking(move || own.look()).await.unwrap_or_else(|e| Err(e.to_string()));
        looked.map_err(|e| object_store::Error::Generic { store: "S3", source: e.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::settings::Environment;

    fn profiles(dir: &Path, name: &str) -> Profiles {
        let environment = Environment::of([("HOME".to_owned(), dir.display().to_string())]);
        let s3 = S3Settings { profile: Some(name.to_owned()), environment, ..S3Settings::default() };
        Profiles::of(&s3).0
    }

    fn home(credentials: &str, config: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".aws")).unwrap();
        std::fs::write(dir.path().join(".aws/credentials"), credentials).unwrap();
        std::fs::write(dir.path().join(".aws/config"), config).unwrap();
        dir
    }

    #[test]
    fn a_profile_is_what_both_files_say() {
        let credentials =
            "# mine\n[default]\naws_access_key_id = D\n[ci]\naws_access_key_id=A # old\nAWS_SECRET_ACCESS_KEY = s=3\n";
        let config = "[profile ci]\nregion = eu-1\naws_access_key_id = other\ns3 =\n  region = nested\n[ci]\nregion = wrong\n[profile  empty]\n";
        let dir = home(credentials, config);
        let ci = profiles(dir.path(), "ci").read().unwrap().unwrap();
        assert_eq!((ci.get("region"), ci.get("aws_access_key_id")), (Some("eu-1"), Some("A")));
        let credential = ci.credential().unwrap();
        assert_eq!((credential.key_id.as_str(), credential.secret_key.as_str()), ("A", "s=3"));
        assert_eq!(ci.kind(), Ok(Kind::Keys));
        assert_eq!(profiles(dir.path(), "empty").read().unwrap().unwrap().kind(), Ok(Kind::Nothing));
        assert_eq!(profiles(dir.path(), "none").read(), Ok(None));
        assert_eq!(profiles(Path::new("/not/there"), "ci").read(), Ok(None));
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let text = |key: &str| format!("[ci]\naws_access_key_id = {key}\naws_secret_access_key = s\n");
        let dir = home(&text("one"), "");
        let provider = ProfileProvider::new(profiles(dir.path(), "ci"));
        assert_eq!(provider.look().unwrap().key_id, "one");
        // As rotators do: a new file under the old name.
        std::fs::write(dir.path().join("new"), text("two")).unwrap();
        std::fs::rename(dir.path().join("new"), dir.path().join(".aws/credentials")).unwrap();
        assert_eq!(provider.look().unwrap().key_id, "two");
        std::fs::write(dir.path().join(".aws/credentials"), "[ci]\n").unwrap();
        assert!(provider.look().unwrap_err().contains("aws_access_key_id"));
    }

    #[tokio::test]
    async fn the_files_are_looked_at_now_and_then_and_not_for_each_request() {
        let text = |key: &str| format!("[ci]\naws_access_key_id = {key}\naws_secret_access_key = s\n");
        let dir = home(&text("one"), "");
        let often = ProfileProvider { every: Duration::ZERO, ..ProfileProvider::new(profiles(dir.path(), "ci")) };
        let rarely = ProfileProvider { every: Duration::MAX, ..ProfileProvider::new(profiles(dir.path(), "ci")) };
        for provider in [&often, &rarely] {
            assert_eq!(provider.get_credential().await.unwrap().key_id, "one");
        }
        std::fs::write(dir.path().join(".aws/credentials"), text("another")).unwrap();
        assert_eq!(often.get_credential().await.unwrap().key_id, "another");
        assert_eq!(rarely.get_credential().await.unwrap().key_id, "one");
    }

    #[test]
    fn what_a_profile_cannot_do_here_is_named() {
        let dir = home(
            "",
            "[profile a]\nrole_arn = r\nsource_profile = b\n[profile w]\nrole_arn = r\nweb_identity_token_file = /t\n",
        );
        let kind = |name| profiles(dir.path(), name).read().unwrap().unwrap().kind();
        assert!(kind("a").unwrap_err().contains("role_arn"));
        assert_eq!(kind("w"), Ok(Kind::WebIdentity { role: "r".into(), token_file: "/t".into(), session: None }));
    }
}

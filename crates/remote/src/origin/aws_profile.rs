//! Reads profiles from `~/.aws/credentials` and `~/.aws/config`.

use std::{fs, io, path::PathBuf};

use floe_image::ShownName;

/// The maximum size of a file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The supported settings of a profile in `~/.aws/credentials` and `~/.aws/config`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct AwsProfile {
    pub(crate) access_key_id: Option<String>,
    pub(crate) secret_access_key: Option<String>,
    pub(crate) session_token: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) endpoint_url: Option<String>,
}

impl AwsProfile {
    /// Reads the profile with this name, or the profile `default`. `variable` returns the value of an environment
    /// variable.
    ///
    /// # Errors
    /// A file cannot be read, or the named profile is in neither file.
    pub(crate) fn load(variable: impl Fn(&str) -> Option<PathBuf>, name: Option<String>) -> Result<Self, String> {
        let home = variable("HOME").map(|home| home.join(".aws"));
        let file = |name: &str, default: &str| variable(name).or_else(|| home.as_ref().map(|home| home.join(default)));
        let credentials = text(file("AWS_SHARED_CREDENTIALS_FILE", "credentials"))?;
        let config = text(file("AWS_CONFIG_FILE", "config"))?;
        let wanted = name.as_deref().unwrap_or("default");
        let mut profile = Self::default();
        // The credentials file is read last, because it takes precedence.
        let in_config = profile.take(&config, |section| {
            section == wanted && wanted == "default" || section.strip_prefix("profile ").map(str::trim) == Some(wanted)
        });
        let in_credentials = profile.take(&credentials, |section| section == wanted);
        match name {
            Some(name) if !in_config && !in_credentials => Err(format!("AWS_PROFILE: there is no profile '{name}'")),
            _ => Ok(profile),
        }
    }

    /// Applies the settings of all matching sections. Returns whether there are any.
    fn take(&mut self, text: &str, fits: impl Fn(&str) -> bool) -> bool {
        let (mut is_within, mut is_found) = (false, false);
        for line in text.lines() {
            let is_indented = line.starts_with([' ', '\t']);
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
                is_within = fits(section.trim());
                is_found |= is_within;
                continue;
            }
            // Indented lines belong to the preceding value.
            let Some((key, value)) = line.split_once('=').filter(|_| is_within && !is_indented) else { continue };
            let place = match key.trim() {
                "aws_access_key_id" => &mut self.access_key_id,
                "aws_secret_access_key" => &mut self.secret_access_key,
                "aws_session_token" => &mut self.session_token,
                "region" => &mut self.region,
                "endpoint_url" => &mut self.endpoint_url,
                _ => continue,
            };
            *place = Some(value.trim().to_owned());
        }
        is_found
    }
}

fn text(path: Option<PathBuf>) -> Result<String, String> {
    let Some(path) = path else { return Ok(String::new()) };
    let failed = |error: io::Error| format!("{}: {error}", path.shown());
    match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(failed(error)),
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => Err(failed(io::ErrorKind::FileTooLarge.into())),
        Ok(_) => fs::read_to_string(&path).map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read_from_both_files() {
        let home = tempfile::tempdir().expect("a directory");
        fs::create_dir(home.path().join(".aws")).expect("made");
        let credentials =
            "[default]\naws_access_key_id = A\naws_secret_access_key=B=\n# x\n[other]\naws_access_key_id=C\n";
        let config = "[default]\nregion = eu-1\n[profile other]\nregion=us-1\nservices = x\n  endpoint_url = http://no\n\
                      endpoint_url = http://localhost:1\naws_access_key_id=no\n[other]\nregion=no\n";
        fs::write(home.path().join(".aws/credentials"), credentials).expect("written");
        fs::write(home.path().join(".aws/config"), config).expect("written");
        let variable = |name: &str| (name == "HOME").then(|| home.path().to_owned());
        let text = |text: &str| Some(text.to_owned());
        let default = AwsProfile {
            access_key_id: text("A"),
            secret_access_key: text("B="),
            region: text("eu-1"),
            ..AwsProfile::default()
        };
        let other = AwsProfile {
            access_key_id: text("C"),
            region: text("us-1"),
            endpoint_url: text("http://localhost:1"),
            ..AwsProfile::default()
        };
        assert_eq!(AwsProfile::load(variable, None), Ok(default));
        assert_eq!(AwsProfile::load(variable, text("other")), Ok(other));
        assert_eq!(AwsProfile::load(variable, text("none")), Err("AWS_PROFILE: there is no profile 'none'".to_owned()));
        assert_eq!(AwsProfile::load(|_| None, None), Ok(AwsProfile::default()));
    }
}

//! The environment variable `SOURCE_DATE_EPOCH`, an upper limit for times in builds
//! (<https://reproducible-builds.org/specs/source-date-epoch/>).

use std::env;

use floe_image::ShownName;

/// The name of the environment variable.
const NAME: &str = "SOURCE_DATE_EPOCH";

/// The time in seconds since 1970, if it is set.
///
/// # Errors
/// The variable is not a decimal number.
pub(crate) fn from_environment() -> Result<Option<i64>, String> {
    let Some(text) = env::var_os(NAME) else { return Ok(None) };
    let digits = text.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let seconds = digits.and_then(|digits| digits.parse().ok());
    seconds.map(Some).ok_or_else(|| {
        format!("environment variable ${NAME} {} is invalid: give seconds since 1970, as date +%s does", text.shown())
    })
}

//! Regular expressions that are not UTF-8.

/// A regular expression over bytes as text: bytes that are not UTF-8 become escapes.
pub(crate) fn expression_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02X}")));
    }
    text
}

//! What is wrong with a value, in the words of whoever writes a configuration and not of those who read it.

use super::schema::meant;

const ADDRESS: &str = "an address and a port, such as \"127.0.0.1:8080\"";

/// The same in plain words. What is in plain words already stays as it is.
pub(super) fn plainly(text: &str) -> String {
    let unfit = text.strip_prefix("invalid type: ").or_else(|| text.strip_prefix("invalid value: "));
    if let Some((found, wanted)) = unfit.and_then(|rest| rest.split_once(", expected ")) {
        return match wanted {
            "a sequence" if found.starts_with("string ") => {
                let found = found_as(found);
                format!("{found} does not fit: write a list, [{found}]")
            }
            _ => format!("{} does not fit: write {}", found_as(found), wanted_as(wanted)),
        };
    }
    if let Some((found, known)) = text.strip_prefix("unknown variant ").and_then(|rest| rest.split_once(", expected "))
    {
        let found = found.trim_matches('`');
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        let choice = known.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
        return match meant(found, &known) {
            Some(meant) => format!("nobody knows {found:?}; is {meant:?} meant? Known here: {choice}"),
            None => format!("nobody knows {found:?}; known here: {choice}"),
        };
    }
    match text {
        "invalid socket address syntax" => format!("write {ADDRESS}"),
        other => other.to_owned(),
    }
}

/// What stands there, as it stands there.
fn found_as(found: &str) -> String {
    match found {
        "map" => "a table".to_owned(),
        "sequence" => "a list".to_owned(),
        "null" | "unit value" => "nothing".to_owned(),
        _ => match found.split_once('`') {
            Some((_, value)) => value.trim_end_matches('`').to_owned(),
            None => found.strip_prefix("string ").unwrap_or(found).to_owned(),
        },
    }
}

fn wanted_as(wanted: &str) -> String {
    let number = wanted.trim_start_matches("a ").trim_start_matches("nonzero ");
    let most = match number {
        "u8" => Some(u64::from(u8::MAX)),
        "u16" => Some(u64::from(u16::MAX)),
        "u32" => Some(u64::from(u32::MAX)),
        "u64" | "usize" => None,
        _ => {
            let plain = match wanted {
                "a string" | "str" | "path string" => "a text in quotes",
                "a boolean" => "true or false",
                "f64" | "f32" => "a number",
                "a sequence" => "a list",
                "socket address" => ADDRESS,
                "a map" => "a table",
                "string or map" => "a word in quotes",
                _ if wanted.starts_with("struct ") => "a table",
                other => other,
            };
            return plain.to_owned();
        }
    };
    let least = u8::from(wanted.contains("nonzero"));
    match most {
        Some(most) => format!("a whole number from {least} to {most}"),
        None => format!("a whole number from {least} on"),
    }
}

#[cfg(test)]
mod tests {
    use super::plainly;

    #[test]
    fn faults_are_told_in_plain_words() {
        for (text, plain) in [
            ("invalid type: integer `5`, expected a string", "5 does not fit: write a text in quotes"),
            ("invalid type: string \"many\", expected usize", "\"many\" does not fit: write a whole number from 0 on"),
            ("invalid value: integer `-1`, expected u64", "-1 does not fit: write a whole number from 0 on"),
            ("invalid value: integer `300`, expected u8", "300 does not fit: write a whole number from 0 to 255"),
            (
                "invalid value: integer `0`, expected a nonzero u32",
                "0 does not fit: write a whole number from 1 to 4294967295",
            ),
            ("invalid type: floating point `1.5`, expected u64", "1.5 does not fit: write a whole number from 0 on"),
            ("invalid type: string \"1\", expected f64", "\"1\" does not fit: write a number"),
            ("invalid type: string \"yes\", expected a boolean", "\"yes\" does not fit: write true or false"),
            ("invalid type: map, expected a sequence", "a table does not fit: write a list"),
            ("invalid type: string \"a\", expected a sequence", "\"a\" does not fit: write a list, [\"a\"]"),
            (
                "invalid type: integer `9464`, expected socket address",
                "9464 does not fit: write an address and a port, such as \"127.0.0.1:8080\"",
            ),
            ("invalid type: boolean `true`, expected struct KeepConfig", "true does not fit: write a table"),
            (
                "unknown variant `atach`, expected one of `attach`, `drop`",
                "nobody knows \"atach\"; is \"attach\" meant? Known here: \"attach\", \"drop\"",
            ),
            (
                "unknown variant `xyz`, expected `human` or `json`",
                "nobody knows \"xyz\"; known here: \"human\", \"json\"",
            ),
            ("invalid socket address syntax", "write an address and a port, such as \"127.0.0.1:8080\""),
            ("\"soon\" is no length of time", "\"soon\" is no length of time"),
        ] {
            assert_eq!(plainly(text), plain);
        }
    }
}

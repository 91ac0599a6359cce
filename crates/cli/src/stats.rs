//! Tables from the JSON replies of servers.

use crate::exit::Failure;
use core::fmt::Write as _;
use serde_json::Value;

/// Returns JSON as a table with a name and a value per line. The fields of a nested object are
/// indented below its name. Array elements are numbered from 1.
///
/// # Errors
/// The text is not JSON.
pub fn table(json: &str) -> Result<String, Failure> {
    let value: Value = serde_json::from_str(json)
        .map_err(|error| Failure::system(format!("the server's reply can't be parsed: {error}; --json prints it")))?;
    let mut rows = Vec::new();
    flatten(&value, 0, &mut rows);
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let numbers = rows.iter().map(|(_, value)| value.chars().count()).max().unwrap_or(0).min(16);
    let mut out = String::new();
    for (name, value) in rows {
        let line = format!("{name:width$}  {value:>numbers$}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    Ok(out)
}

fn flatten(value: &Value, depth: usize, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| row(name, value, depth, rows)),
        Value::Array(elements) => {
            (1..).zip(elements).for_each(|(number, value): (u64, _)| row(&number.to_string(), value, depth, rows));
        }
        _ => {}
    }
}

fn row(name: &str, value: &Value, depth: usize, rows: &mut Vec<(String, String)>) {
    let name = format!("{}{name}", "  ".repeat(depth));
    match value {
        Value::Object(_) | Value::Array(_) => {
            rows.push((name, String::new()));
            flatten(value, depth + 1, rows);
        }
        Value::String(text) => rows.push((name, text.clone())),
        _ => rows.push((name, value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_value() {
        let table = table(r#"{"transport":"ring","requests":{"lookup":1234567,"open":5}}"#).unwrap();
        assert_eq!(table, "requests\n  lookup   1234567\n  open           5\ntransport     ring\n");
    }

    #[test]
    fn invalid_json_is_refused() {
        assert!(table("{").unwrap_err().reason.contains("--json"));
        assert_eq!(table("{}").unwrap(), "");
    }

    #[test]
    fn array_elements_are_numbered() {
        let table = table(r#"{"replicas":[{"name":"a"},{"name":"b"}],"none":[],"words":["x"]}"#).unwrap();
        assert_eq!(table, "none\nreplicas\n  1\n    name  a\n  2\n    name  b\nwords\n  1       x\n");
    }
}

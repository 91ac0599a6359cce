//! `strata layers`: the available layers and their options.

use crate::exit::Failure;
use crate::man::item;
use crate::options::Type;
use crate::registry::suggest_path;
use core::fmt::Write as _;
use serde_json::json;
use stack::LayerType;
use stack::suggest::nearest;
use std::path::Path;

/// Output format of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Plain text.
    Text,
    /// JSON.
    Json,
    /// The types for mount -t, one name per line.
    Names,
}

/// Returns the list of layers, or the description of the layer `name`.
///
/// # Errors
/// There is no layer of that name.
pub fn list(name: Option<&str>, form: Format) -> Result<String, Failure> {
    let chosen: Vec<Type> = match name {
        None => Type::all().collect(),
        Some(name) => vec![find(name)?],
    };
    Ok(match form {
        Format::Names => chosen.iter().fold(String::new(), |out, kind| out + kind.name() + "\n"),
        Format::Json => {
            format!("{}\n", json!(chosen.iter().filter(|kind| is_part(**kind)).map(describe).collect::<Vec<_>>()))
        }
        Format::Text if name.is_some() => chosen.iter().map(|kind| in_full(*kind, name)).collect(),
        Format::Text => overview(),
    })
}

fn find(name: &str) -> Result<Type, Failure> {
    if name.contains('/') && name.ends_with(".so") {
        return plugin::load(Path::new(name)).map(Type::Layer).map_err(Failure::mount);
    }
    Type::of(name).filter(|kind| is_part(*kind)).ok_or_else(|| {
        if name.ends_with(".so") {
            let remedy = suggest_path(name).unwrap_or_else(|| format!("write ./{name} or /DIR/{name}"));
            return Failure::usage(format!("{name}: a layer in a file needs a path with a slash: {remedy}"));
        }
        let known = Type::all().filter(|kind| is_part(*kind)).map(Type::name);
        let remedy =
            nearest(name, known).map_or_else(|| "see strata layers".to_owned(), |near| format!("did you mean {near}?"));
        Failure::usage(format!("no such layer {name:?}: {remedy}"))
    })
}

/// Whether the type can be a part of a stack.
const fn is_part(kind: Type) -> bool {
    !matches!(kind, Type::Stack)
}

/// Whether the layer is over branches, which makes it the last part of a stack.
fn is_over_branches(kind: Type) -> bool {
    kind.layer().and_then(LayerType::branches).is_some()
}

/// Returns a description of the type in one line.
const fn about(kind: Type) -> &'static str {
    match kind {
        Type::Stack => "any stack",
        Type::Layer(layer) => layer.about,
    }
}

fn describe(kind: &Type) -> serde_json::Value {
    let options = kind.own().iter();
    let options: Vec<_> =
        options.map(|spec| json!({ "name": spec.name, "value": spec.value, "help": spec.help })).collect();
    let place = if is_over_branches(*kind) { "bottom" } else { "above" };
    json!({ "name": kind.name(), "about": about(*kind), "place": place, "options": options })
}

fn overview() -> String {
    let mut out = String::new();
    let (over, layers): (Vec<_>, Vec<_>) =
        Type::all().filter(|kind| is_part(*kind)).partition(|kind| is_over_branches(*kind));
    for (title, kinds) in [
        ("Layers over one other layer or directory", layers),
        ("Layers over branches (directories, or stacks in brackets); the last part of a stack", over),
    ] {
        let _ = writeln!(out, "{title}:");
        for kind in kinds {
            item(&mut out, kind.name(), about(kind));
            for spec in kind.own() {
                let _ = writeln!(out, "    ,{}", spec.usage());
            }
        }
        out.push('\n');
    }
    out.push_str(
        "strata layers NAME describes one layer. Example of a stack: strata mount 'wrapfs / /srv/data' /mnt\n",
    );
    out
}

/// Describes one type with all of its options. `given` is the name or, for a plugin, the path
/// that the user passed.
fn in_full(kind: Type, given: Option<&str>) -> String {
    let mut out = format!("{}: {}\n\n", kind.name(), about(kind));
    for spec in kind.own() {
        item(&mut out, &spec.usage(), spec.help);
    }
    if kind.own().is_empty() {
        out.push_str("  This layer has no options.\n");
    }
    let _ = match kind {
        _ if is_over_branches(kind) => writeln!(out, "\nSee mount.{}(8).", kind.name()),
        _ if given != Some(kind.name()) => {
            writeln!(out, "\nIn a stack: strata mount '{} / /srv/data' /mnt", given.unwrap_or_default())
        }
        _ => writeln!(
            out,
            "\nAlone: mount -t {name} /srv/data /mnt\nIn a stack: strata mount '{name} / /srv/data' /mnt",
            name = kind.name()
        ),
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_is_listed_in_every_format() {
        let text = list(None, Format::Text).unwrap();
        let names = list(None, Format::Names).unwrap();
        let json: serde_json::Value = serde_json::from_str(&list(None, Format::Json).unwrap()).unwrap();
        for kind in Type::all() {
            assert!(names.lines().any(|line| line == kind.name()));
            if is_part(kind) {
                assert!(text.contains(&format!("\n  {}", kind.name())), "{}", kind.name());
                assert!(json.as_array().unwrap().iter().any(|entry| entry["name"] == kind.name()));
                let full = list(Some(kind.name()), Format::Text).unwrap();
                assert!(kind.own().iter().all(|spec| full.contains(&spec.usage())), "{full}");
            }
        }
    }

    #[test]
    fn unknown_layers_are_reported() {
        let reason = |name| list(Some(name), Format::Text).unwrap_err().reason;
        assert_eq!(reason("wrapsf"), "no such layer \"wrapsf\": did you mean wrapfs?");
        assert!(reason("strata").contains("see strata layers"));
        assert!(reason("upper.so").ends_with("with a slash: write ./upper.so or /DIR/upper.so"));
    }
}

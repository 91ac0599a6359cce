//! `strata layers`: what a stack can be made of.

use crate::exit::Failure;
use crate::man::item;
use crate::options::Type;
use crate::registry::suggest_path;
use core::fmt::Write as _;
use serde_json::json;
use stack::LayerType;
use stack::suggest::nearest;
use std::path::Path;

/// How the list is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// A name a line: the types that mount(8) can be given.
    Names,
}

/// The list, or what there is to say about one of them.
///
/// # Errors
/// There is none of that name.
pub fn list(name: Option<&str>, form: Form) -> Result<String, Failure> {
    let chosen: Vec<Type> = match name {
        None => Type::all().collect(),
        Some(name) => vec![find(name)?],
    };
    Ok(match form {
        Form::Names => chosen.iter().fold(String::new(), |out, kind| out + kind.name() + "\n"),
        Form::Json => {
            format!("{}\n", json!(chosen.iter().filter(|kind| is_part(**kind)).map(describe).collect::<Vec<_>>()))
        }
        Form::Text if name.is_some() => chosen.iter().map(|kind| in_full(*kind, name)).collect(),
        Form::Text => overview(),
    })
}

fn find(name: &str) -> Result<Type, Failure> {
    if name.contains('/') && name.ends_with(".so") {
        return plugin::load(Path::new(name)).map(Type::Layer).map_err(Failure::mount);
    }
    Type::of(name).filter(|kind| is_part(*kind)).ok_or_else(|| {
        if name.ends_with(".so") {
            let way_out = suggest_path(name).unwrap_or_else(|| format!("write ./{name} or /DIR/{name}"));
            return Failure::usage(format!("{name}: a layer in a file is named by a path with a slash: {way_out}"));
        }
        let known = Type::all().filter(|kind| is_part(*kind)).map(Type::name);
        let way_out = nearest(name, known)
            .map_or_else(|| "strata layers lists them".to_owned(), |near| format!("did you mean {near}?"));
        Failure::usage(format!("there is no layer {name:?}: {way_out}"))
    })
}

/// Can it be a part of a stack?
const fn is_part(kind: Type) -> bool {
    !matches!(kind, Type::Stack)
}

/// Does it stand on branches, and end a stack?
fn is_over_branches(kind: Type) -> bool {
    kind.layer().and_then(LayerType::branches).is_some()
}

/// What it is, in a line.
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
        ("Layers, each over what is below it", layers),
        ("Over branches (directories, or stacks in brackets), at the bottom", over),
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
    out.push_str("strata layers NAME explains one. A stack: strata mount 'wrapfs / /srv/data' /mnt\n");
    out
}

/// `given`: as it was asked for, which for one that is loaded is its path.
fn in_full(kind: Type, given: Option<&str>) -> String {
    let mut out = format!("{}: {}\n\n", kind.name(), about(kind));
    for spec in kind.own() {
        item(&mut out, &spec.usage(), spec.help);
    }
    if kind.own().is_empty() {
        out.push_str("  It has no options of its own.\n");
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
    fn every_layer_is_listed_in_every_form() {
        let text = list(None, Form::Text).unwrap();
        let names = list(None, Form::Names).unwrap();
        let json: serde_json::Value = serde_json::from_str(&list(None, Form::Json).unwrap()).unwrap();
        for kind in Type::all() {
            assert!(names.lines().any(|line| line == kind.name()));
            if is_part(kind) {
                assert!(text.contains(&format!("\n  {}", kind.name())), "{}", kind.name());
                assert!(json.as_array().unwrap().iter().any(|entry| entry["name"] == kind.name()));
                let full = list(Some(kind.name()), Form::Text).unwrap();
                assert!(kind.own().iter().all(|spec| full.contains(&spec.usage())), "{full}");
            }
        }
    }

    #[test]
    fn what_there_is_not_is_named() {
        let reason = |name| list(Some(name), Form::Text).unwrap_err().reason;
        assert_eq!(reason("wrapsf"), "there is no layer \"wrapsf\": did you mean wrapfs?");
        assert!(reason("strata").contains("strata layers lists them"));
        assert!(reason("upper.so").ends_with("with a slash: write ./upper.so or /DIR/upper.so"));
    }
}

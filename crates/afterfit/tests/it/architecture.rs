//! Modules use those below them, never the reverse; ARCHITECTURE.md shows which, as the code has it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Uses = BTreeMap<String, BTreeSet<String>>;

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    files
}

/// Which top-level modules of a crate each of them names. (The umbrella error gathers what every module has: it is no part
/// of the order.)
fn uses(sources: &Path) -> Uses {
    let word = regex::Regex::new(r"\bcrate::(?:\{([^}]*)\}|([a-z_]+))").unwrap();
    let root = regex::Regex::new(r"\bcrate::[A-Z]").unwrap();
    let mut found = Uses::new();
    for file in rust_files(sources) {
        let inside = file.strip_prefix(sources).unwrap();
        let module =
            inside.components().next().unwrap().as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned();
        if module == "lib" || module == "error" {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let code: String =
            text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
        assert!(!root.is_match(&code), "{}: name the module, not the crate's root", inside.display());
        let named = found.entry(module.clone()).or_default();
        for part in word.captures_iter(&code).flat_map(|found| {
            let several = found.get(1).map(|list| list.as_str().to_owned());
            several
                .unwrap_or_else(|| found[2].to_owned())
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect::<Vec<_>>()
        }) {
            let name = part.split("::").next().unwrap_or_default().to_owned();
            if name != module && name != "error" && name.starts_with(|first: char| first.is_ascii_lowercase()) {
                named.insert(name);
            }
        }
    }
    let modules: BTreeSet<String> = found.keys().cloned().collect();
    // (Re-exported functions at the root are no modules.)
    found.values_mut().for_each(|named| named.retain(|name| modules.contains(name)));
    found
}

/// Modules in an order in which each uses only those before it.
fn ordered(uses: &Uses) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    while order.len() < uses.len() {
        let next =
            uses.iter().find(|(name, named)| !order.contains(name) && named.iter().all(|named| order.contains(named)));
        let Some((name, _)) = next else {
            let left: Vec<_> = uses.iter().filter(|(name, _)| !order.contains(name)).collect();
            panic!("modules use each other in a circle: {left:?}");
        };
        order.push(name.clone());
    }
    order
}

fn drawn(crate_name: &str, sources: &Path) -> String {
    let uses = uses(sources);
    let lines = ordered(&uses).into_iter().map(|name| {
        let named: Vec<&str> = uses[&name].iter().map(String::as_str).collect();
        format!("{name:<12} {}", if named.is_empty() { String::new() } else { format!("uses {}", named.join(", ")) })
    });
    let lines: Vec<String> = lines.map(|line| line.trim_end().to_owned()).collect();
    format!("{crate_name}\n{}\n", lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n"))
}

/// `UPDATE_ARCHITECTURE=1 cargo nextest run architecture` draws it anew.
#[test]
fn no_module_uses_one_that_uses_it_and_the_drawing_is_the_code() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let core = drawn("afterfit-core", &here.join("../afterfit-core/src"));
    let library = drawn("afterfit", &here.join("src"));
    let block = format!("```text\n{core}\n{library}```\n");
    let file = here.join("../../ARCHITECTURE.md");
    let text = std::fs::read_to_string(&file).unwrap();
    let (start, end) = ("<!-- drawn from the code -->\n", "<!-- end of the drawing -->");
    let from = text.find(start).expect("a place for the drawing") + start.len();
    let to = from + text[from..].find(end).expect("an end of the drawing");
    if std::env::var_os("UPDATE_ARCHITECTURE").is_some() {
        std::fs::write(&file, format!("{}{block}{}", &text[..from], &text[to..])).unwrap();
        return;
    }
    assert_eq!(&text[from..to], block, "ARCHITECTURE.md is out of date: UPDATE_ARCHITECTURE=1 draws it anew");
}

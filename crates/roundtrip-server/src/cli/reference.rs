//! The reference of this command, made of what it says about itself.

use std::fmt::Write;

use clap::{Arg, Command};

const HEAD: &str = "# The command\n\n<!-- Made by `roundtrip reference --cli`; a test compares the two. -->\n\n\
Options that commands share are told once, [below](#whom-a-command-speaks-to).\n\n";

/// Options that tell whom a command speaks to.
const SHARED: [&str; 6] = ["config", "url", "token", "ca", "store", "json"];

const TAIL: &str = "## Whom a command speaks to\n\n\
`--url`, else an instance that listens where the configuration says (`api.listen`), else the store itself. An embedded store \
(SQLite) that an instance owns is never touched beside it: the lock of the file tells. Stores on servers may be worked on beside \
instances.\n\n";

/// All commands, as Markdown.
pub(super) fn of(mut command: Command) -> String {
    command.build();
    let (mut text, mut shared) = (HEAD.to_owned(), Vec::new());
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        describe(&mut text, &mut shared, "roundtrip", command);
    }
    text.push_str(TAIL);
    options(&mut text, shared.iter());
    text.push('\n');
    text
}

fn describe(text: &mut String, shared: &mut Vec<Arg>, above: &str, command: &Command) {
    let name = format!("{above} {}", command.get_name());
    let subcommands: Vec<&Command> = command.get_subcommands().filter(|command| command.get_name() != "help").collect();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let level = if above == "roundtrip" { "##" } else { "###" };
    let mut line = name.clone();
    for argument in command.get_positionals() {
        let value = value_of(argument);
        let value = if argument.is_required_set() { value } else { format!("[{value}]") };
        let _ = write!(line, " {value}");
    }
    let _ = writeln!(text, "{level} `{line}`\n\n{about}.\n", about = about.trim_end_matches('.'));
    let is_shared = |argument: &&Arg| SHARED.contains(&argument.get_id().as_str()) && takes_orders(command);
    for argument in command.get_arguments().filter(is_shared) {
        if shared.iter().all(|other| other.get_id() != argument.get_id()) {
            shared.push(argument.clone());
        }
    }
    let own = command.get_arguments().filter(|argument| !is_shared(argument) && argument.get_id() != "help");
    let own: Vec<&Arg> = own.collect();
    if !own.is_empty() && subcommands.is_empty() {
        options(text, own.into_iter());
        text.push('\n');
    }
    subcommands.into_iter().for_each(|command| describe(text, shared, &name, command));
}

/// Whether a command speaks to an instance or its store.
fn takes_orders(command: &Command) -> bool {
    command.get_arguments().any(|argument| argument.get_id() == "url")
}

fn options<'a>(text: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    let _ = writeln!(text, "| option | what |\n|---|---|");
    for argument in arguments {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let default: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let is_flag = !argument.get_action().takes_values();
        let default = match default[..] {
            [] => String::new(),
            _ if is_flag => String::new(),
            _ => format!(" Default: `{}`.", default.join(",")),
        };
        let values: Vec<String> =
            argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
        let values =
            if values.is_empty() || is_flag { String::new() } else { format!(" One of {}.", values.join(", ")) };
        let env = argument.get_env().map(|name| format!(" Environment: `{}`.", name.to_string_lossy()));
        let _ = writeln!(
            text,
            "| `{}` | {}.{values}{default}{} |",
            signature(argument),
            help.trim_end_matches('.').replace('|', "\\|"),
            env.unwrap_or_default()
        );
    }
}

fn signature(argument: &Arg) -> String {
    let value = value_of(argument);
    let short = argument.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    match argument.get_long() {
        None => value,
        Some(long) if !argument.get_action().takes_values() => format!("{short}--{long}"),
        Some(long) => format!("{short}--{long} {value}"),
    }
}

fn value_of(argument: &Arg) -> String {
    let names = argument.get_value_names().map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>());
    names.map_or_else(|| argument.get_id().as_str().to_uppercase(), |names| names.join(" "))
}

//! What was probably meant by a verb that there is not, and errors of the command line as JSON.

use crate::failure::Failure;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What people type who know other tools, and how this one calls it.
const ELSEWHERE: &[(&str, &str)] = &[
    ("add", "import"),
    ("check", "fsck"),
    ("chkdsk", "fsck"),
    ("compare", "verify"),
    ("copy", "cp"),
    ("create", "mkfs"),
    ("del", "rm"),
    ("delete", "rm"),
    ("diff", "verify"),
    ("dir", "ls"),
    ("dumpe2fs", "info"),
    ("erase", "rm"),
    ("extract", "export"),
    ("fallocate", "truncate"),
    ("flush", "sync"),
    ("format", "mkfs"),
    ("get", "export"),
    ("init", "mkfs"),
    ("link", "ln"),
    ("list", "ls"),
    ("md", "mkdir"),
    ("mkfile", "touch"),
    ("move", "mv"),
    ("new", "mkfs"),
    ("put", "import"),
    ("rd", "rm -d"),
    ("remount", "mount -o remount"),
    ("remove", "rm"),
    ("ren", "mv"),
    ("rename", "mv"),
    ("repair", "fsck -y"),
    ("rmdir", "rm -d"),
    ("scrub", "fsck --scrub"),
    ("search", "find"),
    ("show", "info"),
    ("statfs", "df"),
    ("status", "info"),
    ("symlink", "ln -s"),
    ("tar", "export"),
    ("type", "cat"),
    ("unlink", "rm"),
    ("unmount", "umount"),
    ("untar", "import"),
    ("write", "tee"),
];

/// An error of the command line in our own form: where it names a verb that there is not, and where the run is to speak
/// JSON. All else the parser tells itself.
pub fn failure(error: &clap::Error, is_json: bool) -> Option<Failure> {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand)
    {
        let next = match meant(verb, error.get(ContextKind::SuggestedSubcommand)) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "myriad help lists them all".to_owned(),
        };
        return Some(Failure::usage("", format!("there is no verb `{verb}`"), next));
    }
    if !is_json || !error.use_stderr() {
        return None;
    }
    let text = error.to_string();
    // What follows is the usage and where to find help.
    let what = text.split("\n\nUsage:").next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(what).trim_end();
    Some(Failure::usage("", what.split_whitespace().collect::<Vec<_>>().join(" "), "myriad help VERB explains it"))
}

/// A verb of ours for one that is not: as other tools call it, or one of nearly the same letters.
fn meant(verb: &str, similar: Option<&ContextValue>) -> Option<String> {
    let known = ELSEWHERE.iter().find(|(word, _)| word.eq_ignore_ascii_case(verb)).map(|(_, ours)| (*ours).to_owned());
    known.or_else(|| match similar? {
        ContextValue::String(verb) => Some(verb.clone()),
        // The last is the most similar.
        ContextValue::Strings(verbs) => verbs.last().cloned(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verb::{Verb, parser};

    fn said(words: &[&str], is_json: bool) -> String {
        let line = ["myriad"].iter().chain(words);
        let error = parser().try_get_matches_from(line).expect_err("it is no good line");
        failure(&error, is_json).map_or_else(String::new, |failure| failure.to_string())
    }

    #[test]
    fn words_of_other_tools_lead_to_verbs_that_there_are() {
        for (word, ours) in ELSEWHERE {
            assert!(Verb::named(word).is_none(), "{word} is a verb itself");
            let verb = ours.split(' ').next().and_then(Verb::named);
            assert!(verb.is_some(), "{word}: there is no {ours}");
        }
        assert!(ELSEWHERE.is_sorted(), "whoever adds one finds its place");
    }

    #[test]
    fn misspelt_verbs_are_understood() {
        for (typed, meant) in [
            ("unmount", "did you mean `umount`?"),
            ("Copy", "did you mean `cp`?"),
            ("imort", "did you mean `import`?"),
            ("mkdri", "did you mean `mkdir`?"),
            ("xyzzy", "myriad help lists them all"),
        ] {
            assert_eq!(said(&[typed], false), format!("there is no verb `{typed}`; {meant}"));
        }
    }

    #[test]
    fn other_errors_are_told_by_the_parser_but_as_json() {
        assert_eq!(said(&["rm", "--nonsense", "a:/b"], false), "");
        let said = said(&["rm", "--nonsense", "a:/b"], true);
        assert!(said.starts_with("unexpected argument '--nonsense' found"), "{said}");
        assert!(said.ends_with("; myriad help VERB explains it") && !said.contains('\n'), "{said}");
    }
}

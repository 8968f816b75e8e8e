//! What was probably meant by a verb that there is not, and errors of the command line as JSON.

use crate::failure::Failure;
use crate::verbs::VERBS;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What people type who know other tools, and how this one calls it.
const ELSEWHERE: &[(&str, &str)] = &[
    ("add", "import"),
    ("check", "fsck"),
    ("chkdsk", "fsck"),
    ("cmp", "verify"),
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
        let next = match meant(verb) {
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
fn meant(word: &str) -> Option<String> {
    if let Some((_, ours)) = ELSEWHERE.iter().find(|(other, _)| other.eq_ignore_ascii_case(word)) {
        return Some((*ours).to_owned());
    }
    let word: Vec<char> = word.to_lowercase().chars().collect();
    let far = VERBS.iter().filter_map(|verb| {
        let name: Vec<char> = verb.name.chars().collect();
        let slips = slips(&word, &name);
        // Whoever slips begins rightly more often than not.
        (slips <= slips_max(&word, &name)).then(|| (slips, word.first() != name.first(), verb.name))
    });
    far.min_by_key(|(slips, is_other, _)| (*slips, *is_other)).map(|(_, _, name)| name.to_owned())
}

/// How many slips of the finger still make one word of the other: one in three letters, and at most two. Of short words, one
/// letter for another gives a word that somebody means, as `cut` and `cat`; there it is only two letters that changed places, or one
/// that is missing from three.
fn slips_max(word: &[char], name: &[char]) -> usize {
    if word == name {
        return 0;
    }
    let sorted = |letters: &[char]| {
        let mut letters = letters.to_owned();
        letters.sort_unstable();
        letters
    };
    match (word.len().max(name.len()), word.len() == name.len()) {
        (0..=3, true) => usize::from(sorted(word) == sorted(name)),
        (longer, _) => (longer / 3).min(2),
    }
}

/// The fewest letters to put in, leave out, replace, or swap with the next, that make one word of the other: the optimal string
/// alignment distance.
fn slips(word: &[char], name: &[char]) -> usize {
    let mut rows: Vec<Vec<usize>> = vec![(0..=name.len()).collect()];
    for i in 1..=word.len() {
        let mut row = vec![i];
        for j in 1..=name.len() {
            let other = usize::from(word[i - 1] != name[j - 1]);
            let mut least = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + other);
            if i > 1 && j > 1 && word[i - 1] == name[j - 2] && word[i - 2] == name[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[word.len()][name.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{named, parser};

    fn said(words: &[&str], is_json: bool) -> String {
        let line = ["myriad"].iter().chain(words);
        let error = parser().try_get_matches_from(line).expect_err("it is no good line");
        failure(&error, is_json).map_or_else(String::new, |failure| failure.to_string())
    }

    #[test]
    fn words_of_other_tools_lead_to_verbs_that_there_are() {
        for (word, ours) in ELSEWHERE {
            assert!(named(word).is_none(), "{word} is a verb itself");
            let verb = ours.split(' ').next().and_then(named);
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

    /// A hint that is wrong leads further astray than none.
    #[test]
    fn only_slips_of_the_finger_are_taken_for_verbs() {
        let wrong = "head tail grep cut tac sort wc less more awk sed dd od file which ps kill pwd cd ssh python reads";
        for word in wrong.split(' ') {
            assert_eq!(meant(word), None, "{word}");
        }
        for (word, verb) in [
            ("sl", "ls"),
            ("lls", "ls"),
            ("cta", "cat"),
            ("catt", "cat"),
            ("stta", "stat"),
            ("findd", "find"),
            ("chwon", "chown"),
            ("chomd", "chmod"),
            ("moutn", "mount"),
            ("umonut", "umount"),
            ("exprot", "export"),
            ("imprt", "import"),
            ("veryfy", "verify"),
            ("verfiy", "verify"),
            ("raedlink", "readlink"),
            ("truncat", "truncate"),
            ("truncete", "truncate"),
            ("mkfss", "mkfs"),
            ("fskc", "fsck"),
            ("touhc", "touch"),
            ("tere", "tree"),
            ("MKDIR", "mkdir"),
        ] {
            assert_eq!(meant(word).as_deref(), Some(verb), "{word}");
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

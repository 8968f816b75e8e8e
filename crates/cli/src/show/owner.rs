//! Names of users and groups, asked of the host once each.

use nix::unistd::{Gid, Group, Uid, User};
use std::collections::HashMap;

#[derive(Default)]
pub struct Owners {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
    /// Show numbers only.
    numeric: bool,
}

impl Owners {
    pub fn numeric(numeric: bool) -> Self {
        Self { numeric, ..Self::default() }
    }

    /// Name of a user, or the number if the host knows none.
    pub fn user(&mut self, uid: u32) -> &str {
        let numeric = self.numeric;
        self.users.entry(uid).or_insert_with(|| {
            let user = if numeric { None } else { User::from_uid(Uid::from_raw(uid)).ok().flatten() };
            user.map_or_else(|| uid.to_string(), |user| user.name)
        })
    }

    /// Whether the host has a name for a user.
    pub fn knows_user(&mut self, uid: u32) -> bool {
        !self.numeric && self.user(uid) != uid.to_string()
    }

    /// Whether the host has a name for a group.
    pub fn knows_group(&mut self, gid: u32) -> bool {
        !self.numeric && self.group(gid) != gid.to_string()
    }

    /// Name of a group, or the number if the host knows none.
    pub fn group(&mut self, gid: u32) -> &str {
        let numeric = self.numeric;
        self.groups.entry(gid).or_insert_with(|| {
            let group = if numeric { None } else { Group::from_gid(Gid::from_raw(gid)).ok().flatten() };
            group.map_or_else(|| gid.to_string(), |group| group.name)
        })
    }
}

/// `USER[:GROUP]` by name or number, as chown(1) takes it. Without a group: the user's own, or the user's number.
pub fn parse(text: &str) -> Result<(u32, u32), String> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let uid = parse_user(user)?;
    let gid = match group {
        None => User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or(uid, |user| user.gid.as_raw()),
        Some(group) => parse_group(group)?,
    };
    Ok((uid, gid))
}

/// Owners to be, each as a number and as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerSpec {
    pub user: Option<(u32, String)>,
    pub group: Option<(u32, String)>,
}

/// `USER`, `USER:GROUP`, `:GROUP`, or `USER:` for the user's own group, as chown(1) takes them; `+7` is never a name.
pub fn parse_spec(text: &str) -> Result<OwnerSpec, String> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let uid = if user.is_empty() { None } else { Some((parse_user(user)?, user.to_owned())) };
    let gid = match (group, &uid) {
        (None, _) | (Some(""), None) => None,
        (Some(""), Some((uid, _))) => {
            let known = User::from_uid(Uid::from_raw(*uid)).ok().flatten();
            let user = known.ok_or_else(|| format!("this host knows no group of user `{user}`; give the group"))?;
            Some((user.gid.as_raw(), Owners::default().group(user.gid.as_raw()).to_owned()))
        }
        (Some(group), _) => Some((parse_group(group)?, group.to_owned())),
    };
    Ok(OwnerSpec { user: uid, group: gid })
}

/// A user by name or number.
pub fn parse_user(text: &str) -> Result<u32, String> {
    let known = User::from_name(text).ok().flatten().map(|user| user.uid.as_raw());
    known.or_else(|| number(text)).ok_or_else(|| format!("this host knows no user `{text}`; give the number"))
}

/// A group by name or number.
pub fn parse_group(text: &str) -> Result<u32, String> {
    let known = Group::from_name(text).ok().flatten().map(|group| group.gid.as_raw());
    known.or_else(|| number(text)).ok_or_else(|| format!("this host knows no group `{text}`; give the number"))
}

/// The largest number means nobody to the kernel.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&number| number != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_names_or_numbers() {
        assert_eq!(parse("0:0"), Ok((0, 0)));
        assert_eq!(parse("root"), Ok((0, 0)));
        assert_eq!(parse("4000000:17"), Ok((4_000_000, 17)));
        let spec = |text: &str| {
            let spec = parse_spec(text).unwrap_or_else(|error| panic!("{error}"));
            (spec.user.map(|user| user.0), spec.group.map(|group| group.0))
        };
        assert_eq!(
            [spec("0"), spec(":7"), spec("+5:6"), spec("root:")],
            [(Some(0), None), (None, Some(7)), (Some(5), Some(6)), (Some(0), Some(0))]
        );
        assert_eq!([spec(""), spec(":")], [(None, None); 2]);
        assert!(parse_spec("-1").is_err() && parse_spec("4294967295").is_err() && parse_spec("4000000:").is_err());
        assert!(parse("no-such-user-here").is_err() && parse("0:no-such-group-here").is_err());
    }
}

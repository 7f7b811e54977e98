//! containerd's filter language, for List (its `pkg/filters` is the reference).
//!
//! ```text
//! filter    := selector ("," selector)*                all must match; several filters: any may
//! selector  := field ("." field)* [operator value]     alone: the field is there
//! field     := [A-Za-z0-9_]+ | quoted
//! operator  := "==" | "!=" | "~="                      "~=": a regular expression matches anywhere
//! value     := quoted | anything but white space and ","
//! quoted    := "…" with Go's escapes; after "~=" also /…/ and |…|
//! ```
//!
//! A field that is not there is "" to `!=` and `~=`, and never `==` anything.

use crate::error::{Error, Result};
use regex::Regex;

/// What a filter looks at: the value at a path of fields, if it is there.
pub(crate) type Field<'a> = dyn Fn(&[String]) -> Option<String> + 'a;

/// Filters, any of which may match. None = everything matches.
#[derive(Debug, Default)]
pub(crate) struct Filters(Vec<Vec<Selector>>);

#[derive(Debug)]
struct Selector {
    path: Vec<String>,
    test: Test,
}

#[derive(Debug)]
enum Test {
    Present,
    Equal(String),
    NotEqual(String),
    Matches(Regex),
}

impl Filters {
    pub(crate) fn parse(filters: &[String]) -> Result<Self> {
        if filters.iter().any(|filter| filter.is_empty()) {
            return Ok(Self::default());
        }
        filters.iter().map(|filter| Parser::new(filter).filter()).collect::<Result<_>>().map(Self)
    }

    pub(crate) fn matches(&self, field: &Field<'_>) -> bool {
        self.0.is_empty() || self.0.iter().any(|all| all.iter().all(|selector| selector.matches(field)))
    }
}

impl Selector {
    fn matches(&self, field: &Field<'_>) -> bool {
        let value = field(&self.path);
        match &self.test {
            Test::Present => value.is_some(),
            Test::Equal(wanted) => value.as_ref() == Some(wanted),
            Test::NotEqual(refused) => value.unwrap_or_default() != *refused,
            Test::Matches(pattern) => pattern.is_match(&value.unwrap_or_default()),
        }
    }
}

/// Reads one filter, a character after the other.
struct Parser<'a> {
    input: &'a str,
    /// Byte offset of what comes next.
    at: usize,
}

impl<'a> Parser<'a> {
    fn new(input: &'a str) -> Self {
        Self { input, at: 0 }
    }

    fn filter(&mut self) -> Result<Vec<Selector>> {
        let mut selectors = vec![self.selector()?];
        while let Some(next) = self.peek() {
            if next != ',' {
                return self.fail("expected \",\" or the end");
            }
            self.next();
            selectors.push(self.selector()?);
        }
        Ok(selectors)
    }

    fn selector(&mut self) -> Result<Selector> {
        let mut path = vec![self.field()?];
        while self.peek() == Some('.') {
            self.next();
            path.push(self.field()?);
        }
        if matches!(self.peek(), None | Some(',')) {
            return Ok(Selector { path, test: Test::Present });
        }
        self.skip_space();
        let operator = self.take(|c| matches!(c, '=' | '!' | '~'));
        self.skip_space();
        let test = match operator {
            "==" => Test::Equal(self.value(false)?),
            "!=" => Test::NotEqual(self.value(false)?),
            "~=" => {
                let pattern = self.value(true)?;
                let pattern = Regex::new(&pattern).or_else(|error| self.fail(&error.to_string()))?;
                Test::Matches(pattern)
            }
            _ => return self.fail("expected an operator (\"==\", \"!=\" or \"~=\")"),
        };
        Ok(Selector { path, test })
    }

    fn field(&mut self) -> Result<String> {
        self.skip_space();
        if self.peek() == Some('"') {
            return self.quoted();
        }
        match self.take(|c| c.is_ascii_alphanumeric() || c == '_') {
            "" => self.fail("expected a field"),
            field => Ok(field.to_owned()),
        }
    }

    fn value(&mut self, pattern: bool) -> Result<String> {
        match self.peek() {
            Some('"') => self.quoted(),
            Some('/' | '|') if pattern => self.quoted(),
            // What containerd's scanner takes for a token of its own cannot begin a bare value.
            None | Some('/' | '|' | ',' | '.' | '=' | '!' | '~') => self.fail("expected a value"),
            Some(_) => Ok(self.take(|c| c != ',' && !c.is_whitespace() && !c.is_control()).to_owned()),
        }
    }

    /// A Go string literal; what stands first is its quote.
    fn quoted(&mut self) -> Result<String> {
        let quote = self.next();
        let mut bytes = Vec::new();
        loop {
            match self.next() {
                None | Some('\n') => return self.fail("the quoted text does not end"),
                next if next == quote => break,
                Some('\\') => self.escape(quote, &mut bytes)?,
                Some(c) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        String::from_utf8(bytes).or_else(|_| self.fail("the quoted text is not UTF-8"))
    }

    fn escape(&mut self, quote: Option<char>, bytes: &mut Vec<u8>) -> Result<()> {
        let escape = self.next();
        let byte = match escape {
            Some('a') => 7,
            Some('b') => 8,
            Some('f') => 12,
            Some('n') => b'\n',
            Some('r') => b'\r',
            Some('t') => b'\t',
            Some('v') => 11,
            Some('\\') => b'\\',
            Some('x') => self.number(16, 2)? as u8,
            Some('0'..='7') => {
                self.at -= 1;
                let number = self.number(8, 3)?;
                u8::try_from(number).or_else(|_| self.fail("an octal escape is past 255"))?
            }
            Some(width @ ('u' | 'U')) => {
                let number = self.number(16, if width == 'u' { 4 } else { 8 })?;
                let Some(c) = char::from_u32(number) else { return self.fail("an escape is no character") };
                bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            Some(c) if escape == quote => c as u8,
            _ => return self.fail("unknown escape"),
        };
        bytes.push(byte);
        Ok(())
    }

    fn number(&mut self, radix: u32, digits: usize) -> Result<u32> {
        let text = self.input.get(self.at..self.at + digits).filter(|text| text.chars().all(|c| c.is_digit(radix)));
        match text.and_then(|text| u32::from_str_radix(text, radix).ok()) {
            Some(number) => {
                self.at += digits;
                Ok(number)
            }
            None => self.fail("a numeric escape is too short"),
        }
    }

    fn peek(&self) -> Option<char> {
        self.input[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += next.map_or(0, char::len_utf8);
        next
    }

    fn take(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.input[self.at..];
        let taken = &rest[..rest.find(|c| !wanted(c)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    fn skip_space(&mut self) {
        self.take(char::is_whitespace);
    }

    fn fail<T>(&self, why: &str) -> Result<T> {
        Err(Error::invalid(format!("filter {:?}, at byte {}: {why}", self.input, self.at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(path: &[String]) -> Option<String> {
        match path.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["name"] => Some("n/1".into()),
            ["parent"] => Some(String::new()),
            ["kind"] => Some("committed".into()),
            ["labels", rest @ ..] => match rest.join(".").as_str() {
                "containerd.io/snapshot.ref" => Some("sha256:ab".into()),
                "l" => Some("2".into()),
                _ => None,
            },
            _ => None,
        }
    }

    fn matches(filters: &[&str]) -> bool {
        let filters: Vec<_> = filters.iter().map(|filter| filter.to_string()).collect();
        Filters::parse(&filters).unwrap().matches(&field)
    }

    #[test]
    fn what_containerd_sends_matches() {
        assert!(matches(&[r#"labels."containerd.io/snapshot.ref"==sha256:ab,parent=="""#]));
        assert!(!matches(&[r#"labels."containerd.io/snapshot.ref"==sha256:ab,parent=="p""#]));
        assert!(matches(&[]));
        assert!(matches(&["name==x", ""]));
        assert!(matches(&["name==x", "kind==committed,labels.l"]));
        assert!(!matches(&["name==x"]));
        assert!(matches(&["labels.l==2"]));
    }

    #[test]
    fn an_absent_field_is_empty_to_unequal_and_patterns_only() {
        assert!(matches(&["labels.none!=x"]));
        assert!(matches(&["labels.none~=^$"]));
        assert!(!matches(&[r#"labels.none=="""#]));
        assert!(!matches(&["labels.none"]));
    }

    #[test]
    fn patterns_match_anywhere_and_take_three_quotes() {
        assert!(matches(&["labels.l~=2", r#"name~=/^n\/\d/"#.replace("\\d", "[0-9]").as_str()]));
        assert!(matches(&["name~=|n/[0-9]|"]));
        assert!(matches(&[r#"name~="^n""#]));
    }

    #[test]
    fn escapes_are_go_s() {
        assert!(matches(&[r#"name=="\x6e\057\u0031""#]));
        assert!(matches(&[r#"name=="n/\U00000031""#]));
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for bad in [
            "=",
            "name=",
            "name=x",
            "name==",
            "name==a b",
            "name==/x/",
            "na-me",
            "name==\"x",
            "a..b",
            "a,",
            r#"a=="\q""#,
            r#"a=="\x1""#,
            r#"a=="\777""#,
            "a~=(",
            r#"a=="\ud800""#,
            "\u{e4}",
            r#"a=="\u00e"#,
        ] {
            assert!(Filters::parse(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}

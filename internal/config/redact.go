package config

import (
	"regexp"
	"strings"
)

// redacted stands for what must not be shown.
const redacted = "xxxxx"

var (
	// storeURL finds URLs of Postgres and Redis in a text.
	storeURL = regexp.MustCompile(`(?i)\b(?:postgres(?:ql)?|rediss?|unix)://\S+`)
	// userInfo is a URL up to the end of its password. The password ends at
	// the last @, because people forget to encode an @ or / in it: hiding too
	// much is better than showing half a password.
	userInfo = regexp.MustCompile(`(?s)^(\s*[A-Za-z][A-Za-z0-9+.-]*://[^:@/?#]*):.*@`)
	// passwordParam is a password in a URL's query.
	passwordParam = regexp.MustCompile(`(?i)([?&](?:ssl)?password=)[^&\s"'#]*`)
	// passwordWord is a password in a keyword/value connection string.
	passwordWord = regexp.MustCompile(`(?i)\b((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s']\S*)`)
)

// RedactURL replaces the passwords in a URL by xxxxx and keeps the rest: user,
// host, database. It takes a Postgres keyword/value string ("host=… password=…")
// as well, and a URL with mistakes in it. Other strings are returned unchanged.
func RedactURL(s string) string {
	if strings.Contains(s, "://") {
		return redactOne(s)
	}
	return passwordWord.ReplaceAllString(s, "${1}"+redacted)
}

// RedactText replaces the passwords of all Postgres and Redis URLs in a text,
// e.g. a log message, by xxxxx. A URL in a text ends at white space.
func RedactText(s string) string {
	if !strings.Contains(s, "://") {
		return s
	}
	return storeURL.ReplaceAllStringFunc(s, redactOne)
}

func redactOne(u string) string {
	u = userInfo.ReplaceAllString(u, "${1}:"+redacted+"@")
	return passwordParam.ReplaceAllString(u, "${1}"+redacted)
}

// redactSecret is RedactURL for a value known to be secret: one that is not a
// URL is hidden whole.
func redactSecret(s string) string {
	if s == "" || strings.Contains(s, "://") {
		return RedactURL(s)
	}
	return redacted
}

package config

import (
	"strings"

	"github.com/penstock-dev/penstock/internal/auth"
)

// maxSecretFileBytes bounds a file that holds a secret.
const maxSecretFileBytes = 64 << 10

// urlFile reads the URL of a section ("postgres", "redis") from its url_file,
// if one is set.
func (l *loader) urlFile(section string, to *string, file string) {
	l.secretFile(section+".url", to, section+".url_file", file, "URL", SourceURLFile)
}

// tokenFile reads a client's token from its token_file, if one is set.
func (l *loader) tokenFile(c *Client) {
	l.secretFile("token", &c.Token, "token_file", c.TokenFile, "token", SourceTokenFile)
}

// secretFile reads the setting key, which is a what, from the file that the
// setting fileKey names, if it names one.
func (l *loader) secretFile(key string, to *string, fileKey, file, what string, source Source) {
	if file == "" {
		return
	}
	if *to != "" {
		l.faults.addf(key, "%s is set too, by %s; set only one of them", fileKey, l.origins.Of(fileKey))
		return
	}
	b, err := readLimited(file, maxSecretFileBytes)
	if err != nil {
		l.faults.addf(fileKey, "%v", err)
		return
	}
	secret := strings.TrimSpace(string(b))
	switch {
	case secret == "":
		l.faults.addf(fileKey, "%s is empty", file)
	case strings.ContainsAny(secret, "\r\n"):
		l.faults.addf(fileKey, "%s must hold one line, the %s", file, what)
	default:
		*to = secret
		l.origins.set(key, Origin{source, file})
	}
}

// tokens checks that the orchestrator's file of tokens can be used.
func (l *loader) tokens(file string) {
	if err := auth.Check(file); err != nil {
		l.faults.addf("auth.tokens_file", "%v", err)
	}
}
